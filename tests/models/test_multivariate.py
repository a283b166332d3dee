"""The cutting plane solver against problems written out in full: every labelling, every group."""

import functools
import itertools
import pickle
import re
import sys
import tracemalloc

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_breast_cancer
from sklearn.svm import LinearSVC

import sparsejax as sj
from sparsejax.models import multivariate as mv
from sparsejax.models.multivariate import _cutting_plane, _master, _restricted, _support_norm
from sparsejax.models.multivariate._data import as_data
from sparsejax.solution import CONVERGED, HOST_FAILURE, MAX_ITER, MESSAGES, NON_FINITE, STALLED

# asked for more than it can give, so that it gives all it can; the values are good to 1e-8 and better
inaccurate = pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
TIGHT = {"solver": "CLARABEL", "tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}


def pair_costs(a, b, c, d):
    """A user's measure: not decomposable, not concave in b."""
    return 20 * np.sqrt(c) + 10 * np.minimum(b, 2)


MEASURES = {
    "hamming": lambda n, p: mv.hamming(),
    "F1": lambda n, p: mv.f_beta(),
    "F2": lambda n, p: mv.f_beta(2.0),
    "prbep": lambda n, p: mv.prbep(),
    "precision": lambda n, p: mv.precision_at(max(1, n // 3)),
    "recall at 2p": lambda n, p: mv.recall_at(min(n - 1, 2 * p)),
    "roc_area": lambda n, p: mv.roc_area(),
    "own": lambda n, p: mv.contingency(pair_costs),
}


def draw(rng, n=None, m=None):
    n, m = n or int(rng.integers(4, 9)), m or int(rng.integers(2, 7))
    y = np.where(rng.random(n) < 0.4, 1, -1)
    y[:2] = 1, -1
    return rng.standard_normal((n, m)), y


def risk(measure, X, y):
    """R as a function of a cvxpy variable or an array of scores: the maximum over all labellings."""
    if measure.name == "roc_area":
        pairs = [(i, j) for i in np.flatnonzero(y == 1) for j in np.flatnonzero(y == -1)]
        z = np.zeros((len(pairs), len(y)))
        for row, (i, j) in zip(z, pairs, strict=True):
            row[i], row[j] = 1, -1
        return lambda v: 100 / len(pairs) * cp.sum(cp.pos(1 - z @ v))
    codes, losses = [], []
    for guess in map(np.array, itertools.product((-1, 1), repeat=len(y))):
        table = [float(((y == s) & (guess == t)).sum()) for s, t in ((1, 1), (-1, 1), (1, -1), (-1, -1))]
        if np.isfinite(measure.delta(*table)):
            codes.append(y - guess)
            losses.append(float(measure.delta(*table)))
    return lambda v: cp.maximum(0, cp.max(np.array(losses) - np.array(codes) @ v))


def enumerated(X, y, measure, budget, C):
    """The optimum with d as a variable, and J as a function of w."""
    n, m = X.shape
    R = risk(measure, X, y)

    def value(w=None):
        variable, d = cp.Variable(m), cp.Variable(m)
        u = variable if w is None else w
        norm = sum(cp.quad_over_lin(u[j], d[j]) for j in range(m) if w is None or w[j] != 0)
        problem = cp.Problem(
            cp.Minimize(0.5 * norm + C / n * R(X @ u)), [d >= 0, d <= 1, cp.sum(d) == min(budget, m)]
        )
        return problem.solve(**TIGHT)

    return value(), value


# ------------------------------------------------------------------ against enumeration


@inaccurate
@pytest.mark.parametrize("schedule", ["interleaved", "two-layer", "printed"])
@pytest.mark.parametrize("name", MEASURES)
def test_equal_to_full_enumeration(name, schedule, rng):
    budgets = (1, 2.0, 1.5, 9, 0.6)
    for i in range(5 if schedule == "interleaved" else 2):
        X, y = draw(rng)
        measure, C = MEASURES[name](len(y), int((y == 1).sum())), len(y) * 10.0 ** rng.uniform(-3, 0.7)
        optimum, J = enumerated(X, y, measure, budgets[i], C)
        model = mv.fit(X, y, measure=measure, budget=budgets[i], C=C, tol=1e-6, schedule=schedule)
        assert model.status == CONVERGED
        assert optimum * (1 - 1e-7) <= model.objective <= optimum * (1 + 1.01e-6)
        assert model.lower_bound <= optimum * (1 + 1e-7)
        assert model.gap == pytest.approx((model.objective - model.lower_bound) / model.objective)
        assert 0 <= model.gap <= 1e-6
        assert J(model.w) == pytest.approx(float(model.objective), rel=1e-7)
        bounds = np.vstack([model.report.history, [[model.objective, model.lower_bound]]])
        assert (np.diff(bounds[:-1, 0]) <= 0).all() and (np.diff(bounds[:, 1]) >= 0).all()
        assert (bounds[:, 1] <= optimum * (1 + 1e-7)).all() and (bounds[:, 0] >= optimum * (1 - 1e-7)).all()


def test_all_groups_written_out(rng):
    """The paper's Eq. (9) with a weight vector for each of the groups, rather than the closed form of d."""
    X, y = draw(rng, 6, 5)
    measure, C, R = mv.f_beta(), 1.0, risk(mv.f_beta(), X, y)
    groups = list(itertools.combinations(range(5), 2))
    W = cp.Variable((len(groups), 2))
    w = sum(np.eye(5)[:, list(g)] @ W[t] for t, g in enumerate(groups))
    optimum = cp.Problem(
        cp.Minimize(0.5 * cp.sum(cp.norm(W, axis=1)) ** 2 + C / 6 * R(X @ w))
    ).solve(**TIGHT)  # fmt: skip
    model = mv.fit(X, y, measure=measure, budget=2, C=C, tol=1e-7)
    assert float(model.objective) == pytest.approx(optimum, rel=1e-7)
    assert all(tuple(g) in groups for g in model.groups)
    assert model.report.group_weights.sum() == pytest.approx(1)
    assert set(np.concatenate(model.groups).tolist()) == set(model.selected.tolist())


@inaccurate
def test_support_norm(rng):
    for budget in (1, 2, 2.5, 4, 7, 0.3):
        for w in (rng.standard_normal(7), np.array([3.0, -1, 1, 1, 0, 0, -1]), np.zeros(7), np.eye(7)[2]):
            d = cp.Variable(7)
            terms = [cp.quad_over_lin(x, d[j]) for j, x in enumerate(w) if x]
            value = cp.Problem(cp.Minimize(sum(terms)), [d >= 0, d <= 1, cp.sum(d) == budget]).solve(**TIGHT)
            square, gradient = _support_norm.support_norm(w, budget)
            assert square == pytest.approx(value, rel=1e-6, abs=1e-8)
            # a subgradient of half the square: the inequality holds, and Euler's identity
            assert gradient @ w == pytest.approx(square)
            for _ in range(10):
                u = w + rng.standard_normal(7)
                other = _support_norm.support_norm(u, budget)[0]
                slope = np.where(w == 0, 0.0, gradient)
                assert 0.5 * other >= 0.5 * square + slope @ (u - w) - 1e-10


def test_svm_is_a_special_case():
    """Hamming loss with scale 2 and B = m is the linear SVM; B = 1 is a squared l1 norm."""
    X, target = load_breast_cancer(return_X_y=True)
    X, y = X[:150] / np.linalg.norm(X[:150], axis=0), np.where(target[:150] > 0, 1, -1)
    C = 3000.0
    model = mv.fit(X, y, measure=mv.hamming(2.0), budget=30, C=C, tol=1e-6)
    svm = LinearSVC(C=2 * C / 150, loss="hinge", fit_intercept=False, tol=1e-9, max_iter=10**6).fit(X, y)
    w = svm.coef_[0]
    expected = 0.5 * w @ w + 2 * C / 150 * np.maximum(1 - y * (X @ w), 0).sum()
    assert float(model.objective) == pytest.approx(expected, rel=1e-5)
    assert model.lower_bound <= expected
    lasso = mv.fit(X, y, measure=mv.hamming(2.0), budget=1, C=C, tol=1e-5)
    v = cp.Variable(30)
    hinge = cp.sum(cp.pos(1 - cp.multiply(y, X @ v)))
    optimum = cp.Problem(cp.Minimize(0.5 * cp.norm1(v) ** 2 + 2 * C / 150 * hinge)).solve(**TIGHT)
    assert optimum * (1 - 1e-8) <= lasso.objective <= optimum * (1 + 1e-5)
    assert len(lasso.selected) < 30


# ------------------------------------------------------------------ the master


@pytest.mark.parametrize("T, r, K, scale", [(1, 1, 1, 1.0), (3, 4, 6, 1.0), (4, 9, 3, 0.2), (5, 3, 20, 30.0)])
def test_master_against_conic_solver(T, r, K, scale, rng):
    G, delta, bound = scale * (rng.standard_normal((T, r, K)) + 0.5), rng.uniform(1, 100, K), 0.3
    W = cp.Variable((T, r))
    slack = delta - sum(G[t].T @ W[t] for t in range(T))
    optimum = cp.Problem(
        cp.Minimize(0.5 * cp.sum(cp.norm(W, axis=1)) ** 2 + bound * cp.maximum(0, cp.max(slack)))
    ).solve(**TIGHT)  # fmt: skip
    for exact in (False, True):
        m = _master.solve(G, delta, bound, 1, 1e-9 * optimum, exact)
        assert m.lower <= m.value <= m.lower + 2e-8 * optimum
        assert m.value == pytest.approx(optimum, rel=3e-8)
        assert m.alpha.min() >= 0 and m.alpha.sum() <= bound * (1 + 1e-15)
        square = ((G @ m.alpha) ** 2).sum(1).max()
        assert delta @ m.alpha - 0.5 * square == pytest.approx(m.lower, rel=1e-12)


def test_master_of_degenerate_problems(rng):
    """Equal groups, equal cuts, a zero group, cuts that nothing can satisfy: certified all the same."""
    G = rng.standard_normal((2, 3, 5))
    G = np.concatenate([G, G, np.zeros((1, 3, 5))])
    G = np.concatenate([G, G, np.zeros((5, 3, 1))], axis=2)
    delta = np.append(np.tile(rng.uniform(1, 5, 5), 2), 0.0)
    m = _master.solve(G, delta, 2.0, 1, 1e-9)
    assert m.value - m.lower <= 1e-8 * m.value and np.isfinite(m.parts).all()
    m = _master.solve(np.zeros((2, 3, 4)), np.ones(4), 0.7, 1, 1e-9)
    assert m.value == pytest.approx(0.7) and m.lower == pytest.approx(0.7) and not m.parts.any()


@pytest.mark.parametrize(
    "J, K, budget, scale", [(1, 2, 1, 1.0), (5, 7, 2, 1.0), (6, 4, 2.5, 1.0), (5, 9, 5, 9.0), (9, 4, 9, 3.0)]
)
def test_master_over_features_knows_all_groups(J, K, budget, scale, rng):
    G, delta, bound = scale * (rng.standard_normal((J, K)) + 0.5), rng.uniform(1, 100, K), 0.3
    size = int(np.ceil(budget))
    groups, roots = [], []  # every d of `size` columns, each in turn with the fractional entry
    for chosen in itertools.combinations(range(J), size):
        for last in range(size if budget < size else 1):
            groups.append(G[list(chosen)])
            roots.append(np.where(np.arange(size) == last, np.sqrt(budget - size + 1), 1.0))
    reference = _master.solve(np.array(roots)[:, :, None] * np.array(groups), delta, bound, 1, 0.0, True)
    for exact in (False, True):
        m = _master.solve(G[:, None], delta, bound, budget, 1e-9 * reference.value, exact)
        assert m.lower <= m.value <= m.lower + 2e-8 * reference.value
        assert m.value == pytest.approx(reference.value, rel=3e-8)
        assert m.alpha.min() >= 0 and m.alpha.sum() <= bound * (1 + 1e-15)
        square = _support_norm.top_group(G @ m.alpha, budget)[2]
        assert delta @ m.alpha - 0.5 * square == pytest.approx(m.lower, rel=1e-12)
        norm = _support_norm.support_norm(m.parts[:, 0], budget)[0]
        J_of_w = 0.5 * norm + bound * max(0, (delta - m.parts[:, 0] @ G).max())
        assert m.lower * (1 - 1e-12) <= J_of_w <= m.value * (1 + 1e-12)


def test_master_starts_from_one_with_fewer_cuts_and_features(monkeypatch, rng):
    J, K, budget, bound = 40, 30, 7.5, 0.3
    G, delta = rng.standard_normal((J, 1, K)) + 0.5, rng.uniform(1, 90, K)
    delta[-1] = 95.0  # the unit of the losses changes too
    optimum = _master.solve(G, delta, bound, budget, 0.0).value
    first = _master.solve(G[:-4, :, :-3], delta[:-3], bound, budget, 0.1 * optimum)
    monkeypatch.setattr(_master, "first", lambda *args: pytest.fail("began anew"))
    second = _master.solve(G, delta, bound, budget, 0.1 * optimum, start=first.iterate)
    cuts, features = np.arange(K) % 5 > 0, np.arange(J) % 9 > 0
    start = second.iterate.keep(cuts, features)
    third = _master.solve(G[features][:, :, cuts], delta[cuts], bound, budget, 0.1 * optimum, start=start)
    for m in (second, third):
        assert m.value - m.lower <= 0.1 * optimum and m.alpha.sum() <= bound * (1 + 1e-15)
    assert second.lower <= optimum <= second.value * (1 + 1e-9)


def test_memberships_and_groups(rng):
    for budget, count in ((3, 9), (2.5, 9), (4, 3), (1, 6), (0.4, 5)):
        w = np.zeros(12)
        w[rng.permutation(12)[:count]] = rng.standard_normal(count)
        d = _support_norm.memberships(w, budget)
        assert (d > 0).sum() == count and d.max() <= 1 and d.sum() <= budget + 1e-12
        on = w != 0
        assert (w[on] ** 2 / d[on]).sum() == pytest.approx(_support_norm.support_norm(w, budget)[0])
        groups, weights = _support_norm.groups_of(d)
        assert weights.sum() == pytest.approx(1) and weights.min() > 0
        assert {len(g) for g in groups} <= {int(np.floor(d.sum() + 1e-9)), int(np.ceil(d.sum() - 1e-9))}
        total = np.zeros(12)
        for g, weight in zip(groups, weights, strict=True):
            assert len(set(g.tolist())) == len(g)
            total[g] += weight
        np.testing.assert_allclose(total, d, atol=1e-9)
    assert _support_norm.groups_of(np.zeros(3))[0] == ()


def test_without_clarabel(monkeypatch, rng):
    monkeypatch.setitem(sys.modules, "clarabel", None)
    X, y = draw(rng, 60, 20)
    model = mv.fit(X, y, measure=mv.f_beta(), budget=3, C=6.0, tol=1e-6)
    assert model.status == CONVERGED
    model = mv.fit(X, y, measure=mv.f_beta(), budget=3, C=6.0, tol=1e-15)  # below what floats resolve
    assert model.status == STALLED and 0 <= model.gap < 1e-7 and "precision" in model.message


@pytest.mark.parametrize("what", ["nothing", "nan", "error"])
def test_a_failing_master_gives_a_status(what, monkeypatch, rng):
    def fail(best, *args, **named):
        if what == "nan":
            best.primal, best.point = 0.0, np.full_like(best.point, np.nan)
        if what == "error":
            raise MemoryError("no room")

    monkeypatch.setattr(_master, "interior_point", fail)
    monkeypatch.setattr(_master, "clarabel", lambda *args: None)
    X, y = draw(rng, 20, 5)
    solve = functools.partial(mv.fit, measure=mv.f_beta(), budget=2, C=5.0)
    expected = {"nothing": STALLED, "nan": NON_FINITE, "error": HOST_FAILURE}[what]
    if what == "error":
        with pytest.raises(MemoryError):
            solve(X, y)
    else:
        model = solve(X, y)
        assert model.status == expected and np.isfinite(model.w).all() and model.gap > 0.1
    model = jax.jit(solve)(X, y)
    assert model.status == expected


# ------------------------------------------------------------------ kinds of data


def text(rng, n=300, m=400, k=12):
    """Sparse rows; five columns of few tell of y."""
    columns = np.concatenate([rng.choice(m, k, False) for _ in range(n)])
    X = sparse.csr_array((rng.uniform(0.5, 1.5, n * k), columns, np.arange(0, n * k + 1, k)), shape=(n, m))
    score = np.asarray(X[:, :5].sum(1)).ravel()
    return X, np.where(score + 0.1 * rng.standard_normal(n) > np.quantile(score, 0.9), 1, -1)


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "csr_matrix", "int64", "dense", "jax", "odd"])
def test_all_kinds_of_matrices(kind, rng, monkeypatch):
    X, y = text(rng)
    fit = functools.partial(mv.fit, y=y, measure=mv.f_beta(), budget=5, C=30.0, tol=1e-3)
    reference = fit(X.toarray())
    assert set(range(5)) <= set(reference.selected.tolist())
    given = {
        "csr": lambda: X, "csc": X.tocsc, "coo": X.tocoo, "csr_matrix": lambda: sparse.csr_matrix(X),
        "dense": lambda: np.asfortranarray(X.toarray()), "jax": lambda: jnp.asarray(X.toarray()),
    }  # fmt: skip
    if kind == "int64":
        A = X.copy()
        A.indices, A.indptr = A.indices.astype(np.int64), A.indptr.astype(np.int64)
    elif kind == "odd":  # each entry in two halves, an explicit zero, and a column of negative zeros
        C = X.tocoo()
        row, col = (np.concatenate([i, i, [0, 1, 2]]) for i in (C.row, C.col))
        col[-3:] = 399, 398, 398
        data = np.concatenate([C.data / 2, C.data / 2, [0.0, -0.0, -0.0]])
        order = np.lexsort((col, row))
        indptr = np.searchsorted(row[order], np.arange(301))
        A = sparse.csr_array((data[order], col[order], indptr), shape=(300, 400))
        assert not A.has_canonical_format
    else:
        A = given[kind]()
    if sparse.issparse(A):
        before = A.copy()
        for cls in (type(A), sparse.csc_array, sparse.csr_array):
            monkeypatch.setattr(cls, "toarray", lambda *a, **k: pytest.fail("densified"))
            monkeypatch.setattr(cls, "todense", lambda *a, **k: pytest.fail("densified"))
    model = fit(A)
    assert model.status == CONVERGED
    assert float(model.objective) == pytest.approx(float(reference.objective), rel=1e-3)
    np.testing.assert_allclose(model.decision_function(A), A @ model.w, atol=1e-12)
    assert set(np.asarray(model.predict(A)).tolist()) == {-1, 1}
    if sparse.issparse(A):  # as it was
        assert A.nnz == before.nnz and (A.data == before.data).all()


@pytest.mark.parametrize("schedule", ["interleaved", "two-layer"])
@pytest.mark.parametrize("budget", [3, 40])
def test_columns_without_entries(budget, schedule, rng):
    """They are left out, and what comes back counts them."""
    dense, y = draw(rng, 30, 40)
    dense[:, rng.permutation(40)[:25]] = np.where(np.arange(25) < 5, -0.0, 0)
    X = sparse.csr_array(dense)
    fit = functools.partial(
        mv.fit, y=y, measure=mv.f_beta(), budget=budget, C=20.0, tol=1e-6, schedule=schedule
    )
    model, reference = fit(X), fit(dense)
    assert model.converged and model.w.shape == model.report.memberships.shape == (40,)
    np.testing.assert_allclose(model.w, reference.w, atol=1e-2 * np.abs(reference.w).max())
    assert float(model.objective) == pytest.approx(float(reference.objective), rel=1e-6)
    for found in (model, reference):
        assert dense[:, np.unique(np.concatenate(found.groups))].any(0).all()
        assert dense[:, found.selected].any(0).all()
    for A, start in ((X, reference), (dense, model)):  # one starts the other
        again = fit(A, init=start)
        assert again.num_iters < model.num_iters / 2
        assert float(again.objective) == pytest.approx(float(reference.objective), rel=1e-6)
    nothing = fit(sparse.csr_array((30, 40)))
    # The first cut has no gradient: w = 0 is optimal, and its bound is exact before any master.
    assert nothing.converged and nothing.gap == 0 and not nothing.w.any()
    assert float(nothing.objective) == float(fit(np.zeros((30, 40))).objective) > 0


def test_text(shared_data):
    """Few masters on a real set: one group and one cut a round took 39, the paper's schedule about 2000."""
    with np.load(shared_data / "basehock.npz") as f:
        X = sparse.csr_array((f["data"].astype(float), f["indices"].astype(int), f["indptr"]), f["shape"])
        y = np.where(f["y"] == 2, 1, -1)
    X.data = np.log1p(X.data) * np.log(len(y) / np.bincount(X.indices))[X.indices]
    length = np.sqrt(np.asarray(X.multiply(X).sum(1)).ravel())
    X = sparse.diags_array(1 / np.where(length > 0, length, 1)) @ X
    model = mv.fit(X, y, measure=mv.f_beta(), budget=20, C=0.01 * len(y), tol=3e-3)
    assert model.converged and model.num_iters <= 60
    assert 20 <= len(model.selected) <= 200 and (model.predict(X) == y).mean() > 0.9


def test_memory_stays_within_three_times_X(rng):
    n, m, k = 20_000, 20_000, 40
    columns = rng.integers(0, m, (n, k)).ravel()
    X = sparse.csr_array((rng.random(n * k), columns, np.arange(0, n * k + 1, k)), shape=(n, m))
    y = np.where(np.asarray(X[:, :50].sum(1)).ravel() > 0.2, 1, -1)
    size = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
    tracemalloc.start()
    model = mv.fit(X, y, measure=mv.f_beta(), budget=10, C=1000.0, maxiter=8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert model.num_iters == 8
    assert peak < 2 * size  # beside X itself


def test_nothing_to_learn_gives_zero(rng):
    X, y = draw(rng, 9, 3)
    model = mv.fit(X, y, measure=mv.recall_at(9), budget=2, C=1.0)  # one labelling only
    assert model.converged and model.objective == 0 and model.gap == 0 and not model.w.any()
    assert model.selected.size == 0 and model.groups == ()


def test_separable_data_needs_a_tolerance_on_the_loss(rng):
    X, y = draw(rng, 40, 10)
    X[:, 0] += 3 * y
    model = mv.fit(X, y, measure=mv.f_beta(), budget=2, C=1e7, eps_delta=0.1)
    assert model.converged and model.objective - model.lower_bound <= 1e7 / 40 * 0.1
    assert (model.predict(X) == y).all()


def test_maxiter_and_progress(rng):
    X, y = draw(rng, 60, 20)
    told = []
    model = mv.fit(X, y, measure=mv.f_beta(), budget=3, C=60.0, maxiter=4, progress=told.append)
    assert model.status == MAX_ITER and model.num_iters == 4 and not model.converged
    assert model.message == MESSAGES[MAX_ITER]
    assert [p.num_iters for p in told] == [1, 2, 3, 4]
    np.testing.assert_array_equal([(p.objective, p.lower_bound) for p in told], model.report.history)
    assert told[-1].num_cuts <= 9 and told[-1].num_groups <= 20


@pytest.mark.parametrize("schedule", ["interleaved", "two-layer"])
def test_cuts_and_groups_without_weight_are_dropped(schedule, monkeypatch, rng):
    X, y = draw(rng, 80, 40)
    counts = []
    arguments = dict(measure=mv.f_beta(), budget=4, C=40.0, tol=1e-5, schedule=schedule)
    everything = mv.fit(X, y, **arguments)
    # nearly all cuts go at once: this ends only because they stay longer as it goes on
    monkeypatch.setattr(_restricted, "IDLE_GROUP", 3)
    monkeypatch.setattr(_restricted, "IDLE_CUT", 0)
    monkeypatch.setattr(_restricted, "SMALL_CUT", 1.0)
    model = mv.fit(X, y, **arguments, progress=lambda p: counts.append((p.num_cuts, p.num_groups)))
    assert model.converged and min(np.diff(counts, axis=0).min(0)) < 0
    assert float(model.objective) == pytest.approx(float(everything.objective), rel=1e-5)


# ------------------------------------------------------------------ grids, classes


@pytest.mark.parametrize("grid", [dict(budget=[2, 3.5, 6], C=30.0), dict(budget=3, C=[3.0, 10.0, 30.0])])
def test_path_is_a_loop_of_fits(grid, rng):
    X, y = draw(rng, 60, 20)
    models = mv.path(X, y, measure=mv.f_beta(), **grid, tol=1e-4)
    alone, masters = [], 0
    for b, c in zip(np.broadcast_to(grid["budget"], 3), np.broadcast_to(grid["C"], 3), strict=True):
        alone.append(mv.fit(X, y, measure=mv.f_beta(), budget=b, C=c, tol=1e-4))
    for a, b in zip(models, alone, strict=True):
        assert a.converged and float(a.objective) == pytest.approx(float(b.objective), rel=1e-4)
        masters += int(b.num_iters) - int(a.num_iters)
    assert masters > 0  # the start was worth something
    again = mv.path(X, y, measure=mv.f_beta(), **grid, tol=1e-4, init=models[0])
    assert again[0].num_iters <= models[0].num_iters


def test_one_against_the_rest(rng):
    X, _ = draw(rng, 90, 8)
    names = np.array(["a", "b", "c"])[X[:, :3].argmax(1)]
    measures = [mv.recall_at(2 * int((names == c).sum()) - 1) for c in "abc"]
    model = mv.fit_one_vs_rest(X, names, measure=measures, budget=4, C=90.0, workers=1)
    single = mv.fit(X, np.where(names == "b", 1, -1), measure=measures[1], budget=4, C=90.0)
    np.testing.assert_array_equal(model.models[1].w, single.w)
    assert model.classes == ("a", "b", "c")
    model = mv.fit_one_vs_rest(X, names, measure=mv.f_beta(), budget=4, C=90.0)
    assert model.decision_function(X).shape == (90, 3)
    assert (model.predict(X) == names).mean() > 0.9
    assert (pickle.loads(pickle.dumps(model)).predict(X) == model.predict(X)).all()


def test_parallel_processes_give_the_same(rng):
    X, y = text(rng)
    labels = np.where(y > 0, "rare", np.where(np.arange(300) % 2, "odd", "even"))
    fit = functools.partial(mv.fit_one_vs_rest, X, labels, measure=mv.f_beta(), budget=3, C=30.0, tol=0.01)
    for a, b in zip(fit(workers=2).models, fit(workers=1).models, strict=True):
        np.testing.assert_allclose(a.w, b.w, rtol=1e-6, atol=1e-9)
        assert a.objective == pytest.approx(float(b.objective), rel=1e-9)


# ------------------------------------------------------------------ inside JAX


@pytest.fixture(scope="module")
def small():
    return draw(np.random.default_rng(3), 30, 6)


def traced(X, y, budget, C, method="sequential"):
    return mv.fit(X, y, measure=mv.f_beta(), budget=budget, C=C, vmap_method=method)


def same(batch, i, one):
    np.testing.assert_array_equal(np.asarray(batch.w)[i], one.w)
    for name in ("objective", "lower_bound", "gap", "status", "num_iters"):
        assert np.asarray(getattr(batch, name))[i] == getattr(one, name), name


def test_jit_is_the_host(small):
    X, y = small
    host, inside = traced(X, y, 2, 20.0), jax.jit(traced, static_argnums=2)(X, y, 2, 20.0)
    same(inside, (), host)
    assert isinstance(inside.w, jax.Array) and inside.report is None and inside.converged
    np.testing.assert_allclose(jax.jit(inside.decision_function)(X), X @ host.w, atol=1e-12)
    np.testing.assert_array_equal(inside.predict(X), host.predict(X))
    with pytest.raises(AttributeError, match="on the host"):
        _ = inside.groups


def test_jit_in_float32(small):
    X, y = small
    inside = jax.jit(traced)(X.astype(np.float32), y, 2.0, 20.0)
    assert {inside.w.dtype, inside.objective.dtype, inside.gap.dtype} == {jnp.dtype(jnp.float32)}
    host = traced(X.astype(np.float32), y, 2.0, 20.0)
    np.testing.assert_array_equal(inside.w, host.w.astype(np.float32))


@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all"])
def test_vmap_is_a_loop(method, small):
    X, y = small
    fit = functools.partial(traced, method=method)
    Cs, ys, Xs = jnp.array([5.0, -1.0, 20.0]), jnp.stack([y, -y, y]), jnp.stack([X, 2 * X, X])
    batch = jax.jit(jax.vmap(fit, in_axes=(None, None, None, 0)))(X, y, 2.0, Cs)
    for i in (0, 2):
        same(batch, i, traced(X, y, 2.0, float(Cs[i])))
    assert batch.status[1] == HOST_FAILURE and np.isnan(batch.w[1]).all()  # and no other lane is disturbed
    both = jax.jit(jax.vmap(jax.vmap(fit, in_axes=(None, 0, None, None)), in_axes=(0, None, 0, None)))
    batch = both(Xs, ys, jnp.array([2.0, 2.0, 3.0]), 20.0)
    for i, j in ((0, 1), (1, 2), (2, 0)):
        same(batch, (i, j), traced(np.asarray(Xs[i]), np.asarray(ys[j]), [2.0, 2.0, 3.0][i], 20.0))


def test_lax_map_and_sparse_data(small):
    X, y = small
    A = sparse.csr_array(X)
    batch = jax.jit(lambda Cs: jax.lax.map(lambda C: traced(A, y, 2.0, C), Cs))(jnp.array([5.0, 20.0]))
    for i, C in enumerate((5.0, 20.0)):
        same(batch, i, traced(A, y, 2.0, C))


@pytest.mark.parametrize("wrapped", [jax.jit, jax.vmap])
def test_ctrl_c_ends_a_traced_call(small, wrapped, monkeypatch):
    X, y = small
    rounds = []

    def interrupted(plane, progress):
        rounds.append(plane)
        raise KeyboardInterrupt

    monkeypatch.setattr(_cutting_plane.CuttingPlane, "round", interrupted)
    fit = wrapped(lambda C: mv.fit(X, y, measure=mv.f_beta(), budget=2, C=C).w)
    with pytest.raises(jax.errors.JaxRuntimeError, match="KeyboardInterrupt"):
        jax.block_until_ready(fit(np.array([1e3, 2e3]) if wrapped is jax.vmap else 1e3))
    assert len(rounds) == 1  # no other lane goes on


def test_bad_values_give_a_status_in_jit(small):
    X, y = small
    fit = jax.jit(traced)
    bad = X.copy()
    bad[3, 1] = np.nan
    cases = [
        (bad, y, 2.0, 5.0, NON_FINITE), (X, 0 * y, 2.0, 5.0, HOST_FAILURE),
        (X, 0 * y + 1, 2.0, 5.0, HOST_FAILURE),
        (X, y, 0.0, 5.0, HOST_FAILURE), (X, y, np.nan, 5.0, NON_FINITE), (X, y, 2.0, np.inf, NON_FINITE),
        (X, y, -2.0, 5.0, HOST_FAILURE), (X, y, 2.0, -5.0, HOST_FAILURE),
        (X, y, -np.inf, 5.0, NON_FINITE), (X, y, 2.0, -np.inf, NON_FINITE), (X, y, 2.0, np.nan, NON_FINITE),
    ]  # fmt: skip
    for A, t, B, C, status in cases:
        model = fit(A, t, B, C)
        assert model.status == status and np.isnan(model.w).all() and np.isnan(model.gap)
        assert np.isnan(model.objective) and np.isnan(model.lower_bound) and not model.converged
    huge = fit(1e200 * X, y, 2.0, 1e200)
    assert huge.status in (NON_FINITE, STALLED, CONVERGED, MAX_ITER)
    assert not huge.converged or (np.isfinite(huge.w).all() and 0 <= huge.gap <= 1e-3)
    for call, error, message in (
        (lambda: jax.jit(traced)(X, y[:5], 2.0, 5.0), ValueError, r"y must have shape \(30,\)"),
        (lambda: jax.jit(traced)(X, y, jnp.ones(2), 5.0), ValueError, "budget must be a number"),
        (lambda: jax.jit(lambda C: traced(X, y, -2, C))(5.0), ValueError, "budget must be > 0"),
        (
            lambda: jax.jit(lambda X: mv.fit(X, y, measure=mv.recall_at(31), budget=1, C=1.0))(X),
            ValueError,
            "at most the number of examples, 30",
        ),
        (
            lambda: jax.jit(lambda X: mv.fit(X, y, measure=mv.f_beta(), budget=1, C=1.0, progress=print))(X),
            TypeError,
            "inside jit",
        ),
    ):
        with pytest.raises(error, match=message):
            call()


# ------------------------------------------------------------------ bad input, before the first cut

DATA, SIGNS = np.eye(4, 3), np.array([1, 1, -1, -1])
WITH_NAN = sparse.csr_array(np.array([[np.nan, 1.0], [0.0, 1.0]]))


def overflowed():
    """As int32 indices look when they have overflowed."""
    X = sparse.csr_array(DATA)
    X.indices[0] = -(2**31)
    return X


def fit_with(X=DATA, y=SIGNS, measure=None, budget=1, C=1.0, **options):
    return mv.fit(X, y, measure=measure or mv.f_beta(), budget=budget, C=C, **options)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (dict(y=np.ones(4)), ValueError, "one class only, 1; both"),
        (dict(y=-np.ones(4)), ValueError, "one class only, -1; both"),
        (dict(y=[0, 1, 2, 0]), ValueError, "y has 3 classes; a label is one of two here"),
        (dict(y=[0, np.nan, 1, 0]), ValueError, "y has a NaN or None among its labels"),
        (dict(y=[0, np.inf, 1, 0]), ValueError, "y has an infinity among its labels"),
        (dict(y=[0, 1j, 1, 0]), TypeError, "y has dtype complex128; labels are"),
        (dict(y=[1, -1]), ValueError, "X has 4 rows and y has 2"),
        (dict(y=np.array([1, "b", 1, "b"], object)), TypeError, "labels of several kinds"),
        (dict(budget=0), ValueError, "budget must be > 0, got 0"),
        (dict(budget=-1.5), ValueError, "budget must be > 0"),
        (dict(budget=np.nan), ValueError, "budget must be > 0, got nan"),
        (dict(budget=True), TypeError, "budget must be a number"),
        (dict(budget=[1, 2]), TypeError, "budget must be a number"),
        (dict(C=0), ValueError, "C must be > 0 and finite, got 0"),
        (dict(C=-2.0), ValueError, "C must be > 0"),
        (dict(C=np.inf), ValueError, "C must be > 0 and finite"),
        (dict(tol=-1e-3), ValueError, "tol must be >= 0"),
        (dict(eps_delta=-1.0), ValueError, "eps_delta must be >= 0"),
        (dict(maxiter=0), ValueError, "maxiter must be an integer >= 1"),
        (dict(schedule="eager"), ValueError, "schedule must be one of 'interleaved', 'two-layer', 'printed'"),
        (dict(vmap_method="legacy"), ValueError, "vmap_method must be one of"),
        (dict(init=3), TypeError, "init must be a Model"),
        (dict(measure=mv.precision_at(5)), ValueError, "k must be at most .*, 4; got 5"),
        (dict(measure=mv.f_beta), TypeError, "call it"),
        (dict(measure="F1"), TypeError, "measure must be made by"),
        (dict(X=DATA[0]), ValueError, r"X must have shape \(n, m\)"),
        (dict(X=np.zeros((4, 0))), ValueError, r"X must have shape \(n, m\) with n, m >= 1"),
        (dict(X=np.where(DATA, np.nan, 0)), ValueError, "X has 3 value.*NaN"),
        (dict(X=WITH_NAN, y=[1, -1]), ValueError, "X has 1 value.*NaN"),
        (dict(X=DATA + 0j), TypeError, "X has dtype complex128"),
        (dict(X=DATA.astype(str)), TypeError, "X has dtype"),
        (dict(X=overflowed()), ValueError, "not a valid sparse array"),
    ],
)  # fmt: skip
def test_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        fit_with(**arguments)


def test_other_bad_input(small):
    X, y = small
    model = mv.fit(X, y, measure=mv.f_beta(), budget=2, C=1.0)
    with pytest.raises(ValueError, match=r"X has shape \(30, 5\); it must be \(n, 6\)"):
        model.predict(X[:, :5])
    with pytest.raises(ValueError, match="init was fitted to 30 rows; X has 29"):
        mv.fit(X[1:], y[1:], measure=mv.f_beta(), budget=2, C=1.0, init=model)
    with pytest.raises(ValueError, match="exactly one of budget and C"):
        mv.path(X, y, measure=mv.f_beta(), budget=2, C=1.0)
    with pytest.raises(ValueError, match="C is empty"):
        mv.path(X, y, measure=mv.f_beta(), budget=2, C=[])
    rest = functools.partial(mv.fit_one_vs_rest, X, budget=2, C=1.0)
    with pytest.raises(ValueError, match="one class only"):
        rest(np.zeros(30), measure=mv.f_beta())
    with pytest.raises(ValueError, match="NaN or None among its labels"):
        rest(np.where(y > 0, np.nan, 1), measure=mv.f_beta())
    with pytest.raises(ValueError, match="1 measures for 2 classes"):
        rest(y, measure=[mv.f_beta()])
    with pytest.raises(ValueError, match="workers must be an integer >= 1"):
        rest(y, measure=mv.f_beta(), workers=0)
    with pytest.raises(ValueError, match="one label for each"):
        rest(y[1:], measure=mv.f_beta())


def test_uint16_indices_are_taken(small):
    """As small archives store them."""
    X, _ = small
    A = sparse.csr_matrix(X)
    B = sparse.csr_matrix((A.data, A.indices.astype(np.uint16), A.indptr), shape=A.shape)
    np.testing.assert_array_equal(as_data(B).X.toarray(), X)


def test_blas_works_on_one_thread_within(monkeypatch):
    """And as before afterwards; without threadpoolctl it works as it is."""
    from threadpoolctl import threadpool_info  # noqa: PLC0415

    from sparsejax._core import threads as within_one  # noqa: PLC0415

    def threads():
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    X, y = np.random.default_rng(0).standard_normal((12, 4)), np.tile([-1, 1], 6)
    before, within = threads(), []
    fit = lambda: mv.fit(
        X, y, measure=mv.f_beta(), budget=2, C=1.0, progress=lambda _: within.append(threads())
    )
    first = fit()
    assert within and all(set(counts) == {1} for counts in within) and threads() == before
    monkeypatch.setattr(within_one, "_pools", lambda: ())
    np.testing.assert_array_equal(fit().w, first.w)


def test_init_of_another_measure_or_of_other_labels_is_refused():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 6))
    y = np.where(X[:, 0] + 0.5 * rng.standard_normal(40) > 0, 1, -1)
    other = np.where(np.arange(40) < 20, -y, y)
    for measure in (mv.f_beta(), mv.roc_area()):
        init = mv.fit(X, y, measure=measure, budget=2, C=0.5)
        assert mv.fit(X, y, measure=measure, budget=2, C=1.0, init=init).converged
        for labels, another in ((y, mv.hamming()), (other, measure)):
            with pytest.raises(ValueError, match="other labels or for another measure"):
                mv.fit(X, labels, measure=another, budget=2, C=20.0, init=init)


def test_an_infinite_budget_is_m_under_jit_too():
    X, y = np.eye(6, 3) + 0.1, np.array([1, -1, -1, 1, 1, -1])
    fit = lambda X: mv.fit(X, y, measure=mv.hamming(), budget=np.inf, C=5.0)
    assert jax.jit(fit)(jnp.asarray(X)).objective == pytest.approx(float(fit(X).objective), rel=1e-5)


@pytest.mark.parametrize("method", ["dual", "add_cut"])
def test_ctrl_c_outside_a_master_has_no_partial_model(method, monkeypatch):
    pytest.importorskip("tqdm")

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(mv._cutting_plane.Restricted, method, stop)
    options = {"measure": mv.f_beta(), "budget": 2, "progress": True}
    X, y = np.eye(4, 3, dtype=np.float32), [1, -1, -1, 1]
    with pytest.raises(sj.Interrupted) as caught:
        sj.models.mil.fit(X, np.arange(4), y, C=1.0, bandwidth=1.0, **options)
    assert caught.value.partial is None
    with pytest.raises(sj.Interrupted) as caught:
        mv.path(X, y, C=[1.0, 2.0], **options)
    assert caught.value.partial == []


def test_no_group_exceeds_a_whole_budget():
    """The sum of d exceeds B by a rounding error, which must not count as one more feature."""
    d = np.full(2000, 0.25)
    d[-1] += 1e-11
    groups, weights = _support_norm.groups_of(d)
    assert {len(group) for group in groups} == {500}
    np.testing.assert_allclose(weights.sum(), 1)


def test_a_batch_of_models_says_so():
    X, y = np.eye(4, 3, dtype=np.float32), jnp.array([1, -1, -1, 1])
    fit = lambda C: mv.fit(jnp.asarray(X), y, measure=mv.f_beta(), budget=2, C=C)
    model = jax.vmap(fit)(jnp.array([0.5, 1.0]))
    assert len(model.message) == 2
    for use in (lambda: model.decision_function(X), lambda: model.selected, lambda: model.predict(X)):
        with pytest.raises(ValueError, match=re.escape("a batch of (2,) models")):
            use()
    assert jax.vmap(lambda m: m.decision_function(X))(model).shape == (2, 4)
