"""Every solver against an interior-point conic solver, scikit-learn, and limits that must coincide.

Objectives are evaluated in numpy. The conic solver's point is an upper bound of the optimum, and so is every
point of ours: the lowest of all stands for the optimum.
"""

import functools

import conic
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import EVERYTHING, SOLVERS, K, N, data, problem, solution, solvers_of
from conic import ACCURACY
from loss_cases import LOSSES, SIMILARITY
from peers import L1_OF_SCIKIT_LEARN
from penalty_cases import GROUPS, PENALTIES, D
from sklearn.datasets import load_wine
from sklearn.linear_model import Lasso, LogisticRegression, MultiTaskLasso

import sparsejax as sj
from sparsejax import groups, losses, penalties
from sparsejax.solution import MAX_ITER, STALLED

optimised = pytest.mark.optimised

# ------------------------------------------------------------------ the table


@optimised
@pytest.mark.parametrize("loss, penalty", EVERYTHING)
def test_optimum_of_every_loss_and_penalty(loss, penalty):
    """Of every instance of the table, by every solver that takes it; some entries are zero, some are not."""
    p, best = problem(loss, penalty), conic.minimise(problem(loss, penalty))
    names = solvers_of(loss, penalty)
    answers = {"floor": solution(loss, penalty)}
    answers |= {name: SOLVERS[name].function(p, tol=1e-9) for name in names}
    objectives = {name: conic.objective(p, s.params) for name, s in answers.items()}
    for name, s in answers.items():
        assert bool(s.converged) or name == "floor"
        np.testing.assert_allclose(float(s.objective), objectives[name], rtol=1e-13)
        assert abs(objectives[name] / best.objective - 1) <= ACCURACY
        loss_of_data = p.smooth.loss if loss == "GraphLaplacian" else p.smooth
        np.testing.assert_allclose(loss_of_data.intercept(s.params), best.intercept, atol=1e-3)
    np.testing.assert_allclose(answers["floor"].params, best.params, atol=1e-4)
    assert 0.05 < (np.asarray(answers["floor"].params) == 0).mean() < 0.95


# ------------------------------------------------------------------ other shapes and structures

TOLS = (1e-1, 1e-6, 1e-8, 1e-10)
SHAPES = {"tall": (N, D, K), "wide": (6, D, K), "vector": (N, D, None), "long": (60, D, K)}


def without_matrix(groups):
    """The same groups as a set of many features would have them."""
    return groups._replace(common=jnp.zeros((0, 0), jnp.int32))


OTHERS = {
    "disjoint groups": groups.from_lists([[0, 3], [1, 2, 6], [4, 5, 7]], D),
    "free features": groups.from_lists([[0, 1], [1, 4], [2, 3, 5]], D),
    "many groups": without_matrix(GROUPS),
    "three views": groups.label_views(2, 2, 2),
}
GRAPHS = {"SquaredLoss + graph": "SquaredLoss", "LogisticLoss + graph": "LogisticLoss"}

# (loss, penalty, shape, weights, strengths, intercept, solvers beside admm): with the table, where all are
# tall, with weights and strengths by row and an intercept, every pair of settings occurs. A row costs one
# compilation a solver.
CASES = [
    ("SquaredLoss", "L1", "tall", None, "scalar", True, "fista"),
    ("SquaredLoss", "L1", "wide", "entry", "row", False, ""),
    ("SquaredLoss", "L21", "wide", None, "scalar", False, "fista"),
    ("SquaredLoss", "ExclusiveLasso", "vector", "row", "scalar", True, ""),
    ("SquaredLoss", "ExclusiveLasso", "wide", "entry", "row", True, "fista"),
    ("SquaredLoss", "ExclusiveL21", "tall", "entry", "row", False, ""),
    ("SquaredLoss", "ExclusiveL21", "wide", "row", "scalar", True, "fista"),
    ("LogisticLoss", "L1", "vector", None, "row", False, "fista"),
    ("LogisticLoss", "L1", "wide", "row", "scalar", True, ""),
    ("LogisticLoss", "L21", "tall", "entry", "scalar", True, "fista"),
    ("LogisticLoss", "L21", "wide", None, "row", False, ""),
    ("LogisticLoss", "ExclusiveLasso", "tall", None, "row", True, "fista"),
    ("LogisticLoss", "ExclusiveLasso", "vector", "entry", "scalar", False, ""),
    ("LogisticLoss", "ExclusiveL21", "wide", "entry", "scalar", False, "fista"),
    ("SquaredLoss", "L1Inf", "tall", "entry", "scalar", True, "fista"),
    ("SquaredLoss", "L1Inf", "wide", None, "row", False, ""),
    ("SquaredHingeLoss", "L21", "tall", "row", "scalar", True, ""),
    ("SquaredHingeLoss", "ExclusiveL21", "vector", "entry", "row", False, ""),
    ("HuberHingeLoss", "L1", "wide", None, "scalar", False, ""),
    ("HuberHingeLoss", "ExclusiveL21", "tall", "entry", "row", True, "fista"),
    ("SquaredLoss", "disjoint groups", "tall", None, "row", False, "fista irls"),
    ("LogisticLoss", "ExclusiveGroupL21", "tall", None, "scalar", True, "fista irls"),
    ("SquaredLoss", "free features", "long", None, "scalar", True, "fista irls"),
    ("LogisticLoss", "free features", "long", None, "scalar", True, "fista irls"),
    ("SquaredLoss", "many groups", "wide", None, "row", False, "fista irls"),
    ("SquaredLoss + graph", "ExclusiveGroupLasso", "wide", None, "row", False, "davis_yin"),
    ("SquaredLoss", "three views", "tall", None, "row", True, ""),
    ("LogisticLoss + graph", "ExclusiveGroupLasso", "tall", None, "row", True, ""),
    ("LogisticLoss + graph", "ExclusiveGroupLasso", "wide", None, "row", False, ""),
    ("SquaredLoss", "ExclusiveGroupLasso", "tall", "entry", "scalar", False, ""),
    ("SquaredLoss + graph", "L21", "tall", None, "scalar", False, "fista"),
    ("SquaredLoss + graph", "ExclusiveL21", "tall", None, "scalar", False, "fista"),
    ("LogisticLoss + graph", "L21", "tall", None, "scalar", False, "fista"),
    ("LogisticLoss + graph", "ExclusiveL21", "tall", None, "scalar", False, "fista"),
]


def case_id(case):
    return "-".join("intercept" if c is True else str(c) for c in case if c not in (None, False, ""))


def make_penalty(name):
    """The constructor from strengths, and the strengths."""
    if name not in OTHERS:
        return PENALTIES[name].make, PENALTIES[name].strengths
    if name == "three views":
        return functools.partial(penalties.ExclusiveGroupLasso, views=OTHERS[name]), (0.1,)
    return functools.partial(penalties.ExclusiveGroupL21, groups=OTHERS[name]), (0.05,)


def instances(case, dtype=np.float64):
    """The instances of one structure: independent columns, and everything that is awkward."""
    loss, penalty, shape, weights_by, strengths_by, intercept, _ = case
    rng = np.random.default_rng(CASES.index(case))
    n, d, k = SHAPES[shape]
    k = 8 if penalty == "three views" else k
    columns = () if k is None else (k,)
    made = []
    for awkward in (False, True):
        X = rng.standard_normal((n, d))
        if awkward:
            X = 0.4 * X + rng.standard_normal((n, 1))  # correlated
            X[:, 1] = X[:, 0]  # a tie between features
            X[:, 2] = 1.5  # a constant column
            X[:, 3] = 0
        truth = rng.standard_normal((d, *columns)) * (rng.random((d,) + (1,) * len(columns)) < 0.5)
        H = X @ truth + 0.5 * rng.standard_normal((n, *columns))
        if awkward and columns:
            H[:, 1] = H[:, 0]  # a tie between classes
        weights = None
        if weights_by is not None:
            weights = rng.uniform(0.2, 2, (n,) if weights_by == "row" else H.shape)
            weights[:2] = 0
        make, strengths = make_penalty(penalty)
        if strengths_by == "row":
            held = make(*strengths)
            length = held.groups.num_groups if isinstance(held, penalties.ExclusiveGroupL21) else d
            strengths = tuple(s * rng.uniform(0.3, 3, length) for s in strengths)
            if penalty == "ExclusiveL21":  # rows with one of the two terms only
                strengths[0][:2] = 0
                strengths[1][2:4] = 0
        cast = lambda a: None if a is None else np.asarray(a, dtype)
        smooth = LOSSES[GRAPHS.get(loss, loss)](cast(X), cast(H), weights=cast(weights), intercept=intercept)
        if loss in GRAPHS:
            smooth = smooth + losses.GraphLaplacian(cast(SIMILARITY), 0.05)
        made.append(sj.Problem(smooth, make(*map(cast, strengths))))
    if penalty == "ExclusiveL21" and strengths_by == "scalar":
        alpha, beta = map(cast, strengths)
        made.append(made[1].replace(penalty=make(alpha, 0 * beta)))
        made.append(made[1].replace(penalty=make(0 * alpha, beta)))
    return made


def answers_of(p, case):
    """[(tol, solution)]."""
    names = ["admm", *case[-1].split()]
    answers = []
    for name in names:
        if name == "irls":
            answers.append((1e-6, sj.irls(p, tol=1e-6, polish=True, maxiter=2000)))
        else:
            answers += [(tol, SOLVERS[name].function(p, tol=tol)) for tol in TOLS]
    # calls of the others, which share their compilation
    answers.append((TOLS[-1], sj.solve(p, tol=TOLS[-1])))
    if SOLVERS["alm"].fits(p) is None:
        answers.append((TOLS[-1], sj.alm(p, tol=TOLS[-1])))
    return answers


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=optimised) if "wide" in c else c for c in CASES], ids=case_id
)
def test_against_conic_solver(case):
    """Objective, certificate and status of all solvers, at four tolerances."""
    for p in instances(case):
        reference = conic.minimise(p).objective
        answers = answers_of(p, case)
        objectives = [conic.objective(p, s.params) for _, s in answers]
        optimum = min([reference, *objectives])
        at_zero = conic.objective(p, np.zeros(p.smooth.params_shape))
        assert reference <= optimum * (1 + ACCURACY)
        for (tol, s), objective in zip(answers, objectives, strict=True):
            assert bool(s.converged) and 0 <= float(s.gap) <= tol
            np.testing.assert_allclose(float(s.objective), objective, rtol=1e-13)
            excess = (objective - optimum) / max(abs(objective), at_zero)
            assert excess <= float(s.gap) + 1e-14
            if tol == TOLS[-1]:
                assert objective <= reference * (1 + ACCURACY)


@optimised
@pytest.mark.parametrize("case", [CASES[i] for i in (0, 5, 6, 9)], ids=case_id)
def test_float32(case):
    """In float32 the gap bounds the excess too, and a gap above tol is never called converged."""
    for p in instances(case, np.float32):
        exact = jax.tree.map(lambda leaf: leaf.astype(np.float64), p)
        optimum = conic.minimise(exact).objective
        for solve in (sj.solve, sj.fista) if case == CASES[6] else (sj.solve,):
            for tol in (1e-4, 1e-5):
                s = solve(p, tol=tol)
                assert s.params.dtype == s.objective.dtype == s.gap.dtype == np.float32
                assert bool(s.converged) == (float(s.gap) <= np.float32(tol))
                assert bool(s.converged) or int(s.status) in (MAX_ITER, STALLED)
                assert bool(s.converged) or tol < 1e-4  # the default is reached
                objective = conic.objective(exact, s.params)
                at_zero = conic.objective(exact, np.zeros(s.params.shape))
                excess = (objective - optimum) / max(objective, at_zero)
                assert excess <= float(s.gap) + 1e-6


@optimised
@pytest.mark.parametrize("strength", [1e-1, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_raw_columns(dtype, strength):
    """Columns of very unequal size (wine as it is measured: 0.1 to 750), to the default tol."""
    X, labels = load_wine(return_X_y=True)
    Y = np.eye(3)[labels]
    loss = losses.SquaredLoss(X.astype(dtype), Y.astype(dtype), intercept=True)
    p = sj.Problem(loss, penalties.L21(1.0))
    p = p.replace(penalty=penalties.L21(strength * sj.lambda_max(p)))
    s = sj.solve(p)
    assert bool(s.converged) and int(s.num_iters) <= 100
    exact = sj.Problem(losses.SquaredLoss(X, Y, intercept=True), penalties.L21(float(p.penalty.alpha)))
    optimum = conic.objective(exact, sj.solve(exact, tol=1e-9).params)
    assert conic.objective(exact, s.params) <= optimum * (1 + (2e-4 if dtype == np.float32 else 2e-6))


PAIRS = groups.from_labels(np.arange(13) // 2)
IN_PROPORTION = {  # strengths by column size, for columns that are multiples of these sizes
    "L1": penalties.L1,
    "L21": penalties.L21,
    "GroupLasso": lambda sizes: penalties.GroupLasso(sizes[::2], PAIRS),
    "SparseGroupLasso": lambda sizes: penalties.GroupLasso(sizes[::2], PAIRS) + penalties.L1(sizes),
    "ElasticNet": lambda sizes: penalties.L1(sizes) + penalties.SquaredL2(sizes**2),
}


@pytest.mark.parametrize("penalty", IN_PROPORTION)
def test_strengths_in_proportion_to_the_columns(penalty):
    """Of wine as it is measured. ADMM took thousands of iterations, or 20 000 without an end."""
    X, labels = load_wine(return_X_y=True)
    Y = np.eye(3)[labels] if penalty == "L21" else 1.0 * (labels == 0)
    loss, sizes = losses.SquaredLoss(X, Y, intercept=True), X.std(axis=0)
    raw = sj.Problem(loss, IN_PROPORTION[penalty](0.02 * sizes))
    solution = sj.solve(raw, tol=1e-7)
    assert bool(solution.converged) and int(solution.num_iters) <= 300
    low = losses.SquaredLoss(X.astype(np.float32), Y.astype(np.float32), intercept=True)
    assert bool(sj.solve(raw.replace(smooth=low)).converged)  # strengths in float64
    if "Group" not in penalty:  # the same problem in other units
        alike = sj.Problem(
            losses.SquaredLoss(X / sizes, Y, intercept=True), IN_PROPORTION[penalty](np.full(13, 0.02))
        )
        np.testing.assert_allclose(solution.objective, sj.solve(alike, tol=1e-7).objective, rtol=1e-6)
    else:
        solved = lambda factor: sj.solve(raw.replace(penalty=IN_PROPORTION[penalty](factor * 0.02 * sizes)))
        lanes = jax.vmap(solved)(jnp.array([1.0, 3.0]))
        assert lanes.converged.all()
        np.testing.assert_allclose(lanes.objective[0], solution.objective, rtol=1e-5)


SCALED = {
    "L21": lambda: penalties.L21(0.1),
    "ExclusiveL21": lambda: penalties.ExclusiveL21(0.1, 0.1),
    "ExclusiveGroupL21": lambda: penalties.ExclusiveGroupL21(0.1, GROUPS),
}


@pytest.mark.parametrize("penalty", SCALED)
def test_units_of_rows_are_those_of_the_columns(penalty):
    """Columns times powers of two, and a constant and a zero one: the same predictions."""
    X, Y = data()
    X[:, 3], X[:, 6] = 1.5, 0
    factors = 2.0 ** np.array([-7, 3, 0, 4, -2, 9, 0, -5])
    if penalty == "ExclusiveGroupL21":
        factors[:] = 2.0**-7  # one unit for all features that groups connect
    p = sj.Problem(losses.SquaredLoss(X, Y, intercept=True), SCALED[penalty]())
    base, strengths = sj.solve(p, tol=1e-12), p.penalty
    if penalty == "ExclusiveGroupL21":
        strengths = strengths._replace(alpha=strengths.alpha * factors[0] ** 2)
    else:
        strengths = type(strengths)(
            *(
                getattr(strengths, name) * factors**degree
                for name, degree in zip(strengths.strengths, strengths.degrees, strict=True)
            )
        )
    scaled = sj.solve(sj.Problem(losses.SquaredLoss(X * factors, Y, intercept=True), strengths), tol=1e-12)
    np.testing.assert_allclose(scaled.params * factors[:, None], base.params, atol=1e-5)
    assert not np.asarray(scaled.params)[6].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e-30, 1e30])
@pytest.mark.parametrize("some", [True, False])
def test_columns_of_extreme_size(dtype, size, some):
    """Finite, and where one answer is possible that one: a tiny column cannot pay its strength."""
    X, Y = data()
    X[:, 3], X[:, 6] = 1.5, 0
    X[:, : 3 if some else D] *= size
    for make in SCALED.values():
        s = sj.solve(
            sj.Problem(losses.SquaredLoss(X.astype(dtype), Y.astype(dtype), intercept=True), make()),
            maxiter=500,
        )
        W = np.asarray(s.params)
        assert np.isfinite(W).all() and np.isfinite(float(s.objective))
        if isinstance(make(), penalties.L21):
            assert not W[6].any()
            if size < 1:
                assert bool(s.converged) and not W[:3].any()


# ------------------------------------------------------------------ a second library


@optimised
def test_lasso_and_multitask_lasso_of_scikit_learn():
    """Their scale is ours, 1/(2n); their weights are brought to the sum n, as a scale does here."""
    X, Y = data(n=20)
    weights = np.random.default_rng(0).uniform(0, 2, len(X))
    y = Y[:, 0]
    theirs = Lasso(alpha=0.1, tol=1e-14, max_iter=100_000).fit(X, y, sample_weight=weights)
    loss = losses.SquaredLoss(X, y, weights=weights, intercept=True, scale=0.5 / weights.sum())
    ours = sj.solve(sj.Problem(loss, penalties.L1(0.1)), tol=1e-13)
    assert 0 < np.count_nonzero(theirs.coef_) < D
    np.testing.assert_allclose(ours.params, theirs.coef_, atol=1e-7)
    np.testing.assert_array_equal(np.asarray(ours.params) == 0, theirs.coef_ == 0)
    np.testing.assert_allclose(loss.intercept(ours.params), theirs.intercept_, atol=1e-7)

    theirs = MultiTaskLasso(alpha=0.3, tol=1e-14, max_iter=100_000).fit(X, Y)
    loss = losses.SquaredLoss(X, Y, intercept=True)
    ours = sj.solve(sj.Problem(loss, penalties.L21(0.3)), tol=1e-13)
    assert 0 < np.count_nonzero(theirs.coef_.any(axis=0)) < D
    np.testing.assert_allclose(ours.params, theirs.coef_.T, atol=1e-7)
    np.testing.assert_array_equal(np.asarray(ours.params) == 0, theirs.coef_.T == 0)
    np.testing.assert_allclose(loss.intercept(ours.params), theirs.intercept_, atol=1e-7)


@optimised
def test_logistic_regression_of_scikit_learn():
    """Their C is 1/(n strength); saga leaves the intercept unpenalised."""
    X, H = data(n=20, k=None)
    y = (np.median(H) < H).astype(float)
    theirs = LogisticRegression(
        C=1 / (len(X) * 0.05),
        solver="saga",
        tol=1e-13,
        max_iter=200_000,
        random_state=0,
        **L1_OF_SCIKIT_LEARN,
    ).fit(X, y)
    loss = losses.LogisticLoss(X, y, intercept=True)
    ours = sj.solve(sj.Problem(loss, penalties.L1(0.05)), tol=1e-13)
    assert 0 < np.count_nonzero(theirs.coef_) < D
    np.testing.assert_allclose(ours.params, theirs.coef_[0], atol=1e-6)
    np.testing.assert_array_equal(np.asarray(ours.params) == 0, theirs.coef_[0] == 0)
    np.testing.assert_allclose(loss.intercept(ours.params), theirs.intercept_[0], atol=1e-6)


# ------------------------------------------------------------------ limits that must coincide


def test_exclusive_l21_without_squares_is_l21():
    """As a solution; as functions, both limits are in test_penalties.py."""
    p, alpha = problem("SquaredLoss", "L21"), problem("SquaredLoss", "L21").penalty.alpha
    both = sj.solve(p.replace(penalty=penalties.ExclusiveL21(alpha, np.zeros(D))), tol=1e-12)
    part = sj.solve(p, tol=1e-12)
    assert bool(both.converged) and bool(part.converged)
    np.testing.assert_allclose(both.params, part.params, atol=1e-7)
    np.testing.assert_allclose(both.objective, part.objective, rtol=1e-12)


def test_exclusive_lasso_of_one_class_is_ridge_regression():
    X, y = data(n=20, k=None)
    rng = np.random.default_rng(0)
    weights, beta = rng.uniform(0, 2, len(X)), rng.uniform(0.01, 0.1, D)
    centred, target = X - weights @ X / weights.sum(), y - weights @ y / weights.sum()
    A = centred.T * (weights / (2 * len(X)))
    ridge = np.linalg.solve(A @ centred + np.diag(beta), A @ target)
    loss = losses.SquaredLoss(X, y, weights=weights, intercept=True)
    s = sj.solve(sj.Problem(loss, penalties.ExclusiveLasso(beta)), tol=1e-14)
    np.testing.assert_allclose(s.params, ridge, atol=1e-7)
