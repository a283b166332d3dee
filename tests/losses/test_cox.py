"""Cox's partial likelihood: against sums written out, the conic solver, and finite differences."""

import functools
from decimal import Decimal, getcontext

import conic
import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import penalty_cases
import pytest
from cases import slope_at_zero
from conic import ACCURACY
from loss_cases import SURVIVAL, survival_terms
from scipy.special import logsumexp

import sparsejax as sj
from sparsejax import penalties
from sparsejax.losses._risks import relative_entropy

N, D = 26, 6
TIED, ALL = "ties and weights", "efron, strata, entry"
both = pytest.mark.parametrize("name", [TIED, ALL])
every = pytest.mark.parametrize("name", SURVIVAL)
OPTIONS = ("plain", "ties", "weights", "ties and weights")  # of one stratum, nobody late
NESTED = [name for name, case in SURVIVAL.items() if case.ties == "breslow" and not case.entry]


def arrays(name, n=N):
    """X, and what else the loss is given."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((n, D)) + 0.5 * rng.standard_normal((n, 1)) + 2
    return X, SURVIVAL[name].data(X, rng)


@functools.cache
def loss(name, dtype=np.float64, n=N):
    X, data = arrays(name, n)
    return SURVIVAL[name](X.astype(dtype), **data)


@functools.cache
def terms(name, n=N):
    return survival_terms(ties=SURVIVAL[name].ties, **arrays(name, n)[1])


def counted(name, n=N):
    """The weights."""
    return arrays(name, n)[1].get("weights", np.ones(n))


def written_out(name, h):
    """The documented formula, at scale 1/n."""
    data, w = arrays(name, len(h))[1], counted(name, len(h))
    sums = sum(weight * logsumexp(h[risk], b=factors) for weight, risk, factors in terms(name, len(h)))
    return (sums - np.where(w > 0, w * h, 0) @ data["event"]) / len(h)


def conic_loss(name, h):
    """The same for cvxpy."""
    data, w = arrays(name)[1], counted(name)
    found = [weight * cp.log_sum_exp(h[risk] + np.log(factors)) for weight, risk, factors in terms(name)]
    return (sum(found) - (w * data["event"]) @ h) / N


@jax.jit
def parts(f, W):
    """Value, gradient, Hessian."""
    return *jax.value_and_grad(f)(W), jax.hessian(f)(W)


@jax.jit
def facts(f, W):
    return f.facts(W)


@jax.jit
def known_from(f, W, facts):
    """The Hessian as solvers ask it, and the dual scaling, both from what the facts kept."""
    kept = facts.predictions
    return sj.losses.hessian(f, W, kept)[0], f.dual_scaling(W, 0.9, kept)[1], f.dual_scaling(W, 0.9)[1]


# ------------------------------------------------------------------ the function


@every
def test_value_gradient_and_hessian(name, rng):
    f, X = loss(name), arrays(name)[0]
    for size in (0.0, 0.3, 3.0):
        W, step = size * rng.standard_normal(D), rng.standard_normal(D)
        value, gradient, hessian = parts(f, W)
        np.testing.assert_allclose(value, written_out(name, X @ W), rtol=1e-13)
        ahead, back = (written_out(name, X @ (W + h * step)) for h in (1e-5, -1e-5))
        np.testing.assert_allclose(gradient @ step, (ahead - back) / 2e-5, rtol=1e-7, atol=1e-9)
        ahead, back = (parts(f, W + h * step)[1] for h in (1e-5, -1e-5))
        np.testing.assert_allclose(hessian @ step, (ahead - back) / 2e-5, rtol=1e-6, atol=1e-9)
        known = facts(f, W)
        np.testing.assert_allclose(known.value, value, rtol=1e-14)
        np.testing.assert_allclose(known.gradient, gradient, atol=1e-13)
        own, change, again = known_from(f, W, known)
        np.testing.assert_allclose(own, hessian, atol=1e-13 * max(1, np.abs(hessian).max()))
        np.testing.assert_allclose(change, again, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", [name for name in SURVIVAL if name not in OPTIONS])
def test_facts_by_the_definition(name, rng):
    """What a certificate asks of the variants, and that some are jitted with their places unknown."""
    f, (X, data) = loss(name), arrays(name)
    W, step = 0.3 * rng.standard_normal(D), rng.standard_normal(D)
    known = facts(f, W)
    np.testing.assert_allclose(known.value, written_out(name, X @ W), rtol=1e-13)
    ahead, back = (written_out(name, X @ (W + h * step)) for h in (1e-5, -1e-5))
    np.testing.assert_allclose(known.gradient @ step, (ahead - back) / 2e-5, rtol=1e-7)
    if name == ALL:
        data = data | {"strata": np.unique(data["strata"], return_inverse=True)[1]}
        traced = jax.jit(lambda data: SURVIVAL[name](X, **data)(W))(data)
        np.testing.assert_allclose(traced, known.value, rtol=1e-13)


@every
def test_derivative_in_a_weight_of_zero(name, rng):
    """As in other weights; with Efron's ties only of rows that change no number of tied events."""
    case = SURVIVAL[name]
    X = rng.standard_normal((20, 4))
    given = case.data(X, rng) | {"weights": None}
    W = jnp.asarray(rng.standard_normal(4) / 2)
    event, time = np.asarray(given["event"]), np.asarray(given["time"])
    alone = np.array([np.sum(event & (time == t)) < 2 for t in time])
    rows = np.flatnonzero(alone | ~event if case.ties == "efron" else np.ones(20, bool))[:3]
    w = jnp.ones(20).at[rows].set(0)

    @jax.jit
    def slope(w):
        loss = case(X, **(given | {"weights": w}))
        return jnp.append(jax.grad(loss)(W), loss(W))

    found = jax.jacfwd(slope)(w)
    for row in rows:
        expected = slope_at_zero(slope, w, row)
        np.testing.assert_allclose(found[:, row], expected, rtol=1e-5, atol=1e-7)


@every
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_predictions_of_hundreds(name, dtype):
    """h of 700 and -700 in one risk set, and all of them at 700."""
    X, eps = arrays(name)[0], np.finfo(dtype).eps
    f = loss(name, dtype)
    centred = X[:, 0] - (X[:, 0].max() + X[:, 0].min()) / 2
    far = f._replace(X=jnp.asarray((centred * 700 / centred.max())[:, None] * np.eye(D)[:1], dtype))
    W = jnp.eye(D, dtype=dtype)[0]
    for shift in (0, 700):
        moved = far._replace(X=far.X + dtype(shift))
        h = np.asarray(moved.X[:, 0], float)
        value, gradient, hessian = parts(moved, W)
        np.testing.assert_allclose(value, written_out(name, h), rtol=20 * eps)
        assert value.dtype == dtype and np.isfinite(gradient).all() and np.isfinite(hessian).all()
        A, B = jax.jit(lambda f, W: f.quadratic_model().least_squares_at(W))(moved, W)
        assert np.isfinite(A).all() and np.isfinite(B).all()
        s, change = jax.jit(lambda f, W: f.dual_scaling(W, 0.9))(moved, W)
        # at s < 1 an event that was as good as impossible must happen with probability 1 - s
        assert np.isfinite(change) and s == dtype(0.9)
    far_from_one = moved._replace(X=moved.X[:, :1] * jnp.zeros((1, D), dtype) + dtype(700))
    np.testing.assert_allclose(parts(far_from_one, W)[0], written_out(name, np.zeros(N)), rtol=20 * eps)


def test_weights_leave_rows_out_and_repeat_them(rng):
    """Weight 0 is a row left out, whatever it holds, 2 a row twice; a common factor adds a constant."""
    X, data = arrays("ties")
    time, event = data["time"], data["event"]
    counts = rng.integers(0, 4, N)
    index = np.repeat(np.arange(N), counts)
    repeated = sj.losses.CoxLoss(X[index], time[index], event[index], scale=1 / N)
    weighted = sj.losses.CoxLoss(np.where(counts[:, None] > 0, X, 1e6), time, event, weights=counts)
    tripled = weighted.reweighted(3.0 * counts)
    for W in rng.standard_normal((3, D)):
        value, gradient, hessian = parts(repeated, W)
        again = parts(weighted, W)
        np.testing.assert_allclose(again[0], value, rtol=1e-13)
        np.testing.assert_allclose(again[1], gradient, atol=1e-13)
        np.testing.assert_allclose(again[2], hessian, atol=1e-12)
        constant = 3 * np.log(3) * counts[event].sum() / N
        np.testing.assert_allclose(parts(tripled, W)[0], 3 * value + constant, rtol=1e-13)


@every
def test_rows_of_weight_zero_may_be_left_out(name, rng):
    """With a place to spare and without; one stratum may lose all its rows."""
    f, kept = loss(name), rng.permutation(N) < N // 2
    weights = jnp.asarray(counted(name) * kept)
    most = int(np.sum(np.asarray(weights) > 0))
    for more in (0, 2):
        few = jax.jit(sj.losses.rows_alone, static_argnums=2)(f, weights, most + more)
        assert few.X.shape == (most + more, D)
        for W in 0.5 * rng.standard_normal((2, D)):
            ours, all_rows = facts(few, W), facts(f.reweighted(weights), W)
            np.testing.assert_allclose(ours.value, all_rows.value, rtol=1e-12)
            np.testing.assert_allclose(ours.gradient, all_rows.gradient, atol=1e-13)
            known = known_from(few, W, ours), known_from(f.reweighted(weights), W, all_rows)
            for found, expected in zip(*known, strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-13)


def test_entropies_to_full_precision():
    """Of shares that differ by little, and by much, beside decimals of 40 digits."""
    getcontext().prec = 40
    b = np.array([0.7, 0.2, 1e-3])[:, None]
    a = b * (
        1 + np.array([1e-12, -1e-9, 1e-6, -1e-3, 0.1, -0.2499, 0.2499, 0.2501, -0.2501, 0.4, -0.9, 0.42])
    )
    found = np.asarray(relative_entropy(jnp.asarray(a), jnp.asarray(b), jnp.log(b)))
    for row, (one, others) in enumerate(zip(b[:, 0], a, strict=True)):
        for column, other in enumerate(others):
            x, y = Decimal(float(other)), Decimal(float(one))
            exact = float(x * (x / y).ln() - x + y)
            np.testing.assert_allclose(
                found[row, column], exact, rtol=2e-13 if abs(x / y - 1) < 0.3 else 1e-14
            )


def test_derivative_in_the_weights():
    """Also where the weight is 0."""
    f, W = loss("ties and weights"), np.linspace(-0.5, 0.5, D)
    data = arrays("ties and weights")[1]
    time, event, weights = data["time"], data["event"], data["weights"]
    slope = jax.jit(jax.grad(lambda w, f: f.reweighted(w)(W)))(weights, f)
    value = lambda w: float(parts(f.reweighted(w), W)[0])
    for i in (2, 7, 11):
        # where an event of weight 0 has no other row in its risk set the derivative is infinite
        assert not event[i] or weights[i] > 0 or ((time >= time[i]) & (weights > 0)).any()
        step = 1e-6 * (np.arange(N) == i)
        np.testing.assert_allclose(slope[i], (value(weights + step) - value(weights)) / 1e-6, rtol=1e-4)


def test_times_are_compared_as_given():
    """Integers that float32 could not tell apart, and times that are known only under jit or vmap."""
    X, data = arrays("ties")
    time, event = data["time"], data["event"]
    ranks, W = np.unique(time, return_inverse=True)[1], np.linspace(-0.5, 0.5, D)
    large = sj.losses.CoxLoss(X.astype(np.float32), 2**40 + ranks, event)
    np.testing.assert_array_equal(large.places.ends, loss("ties").places.ends)
    np.testing.assert_array_equal(large.places.order, loss("ties").places.order)
    at = lambda t: sj.losses.CoxLoss(X, t, event)(W)
    value = parts(loss("ties"), W)[0]
    np.testing.assert_allclose(jax.vmap(at)(np.stack([time, 3 * time])), [value, value], rtol=1e-14)


def test_whole_times_under_jit_are_compared_as_given():
    """Seconds since 1970, in int32: float32 would make all of them equal."""
    X, data = arrays("ties")
    X, seconds = X.astype(np.float32), 1_600_000_000 + np.arange(len(X), dtype=np.int32)
    make = lambda time, entry=None: sj.losses.CoxLoss(X, time, data["event"], entry=entry)
    for known in ((seconds,), (seconds, seconds - np.int32(7))):
        ours, theirs = jax.jit(make)(*known), make(*known)
        W = np.linspace(-0.5, 0.5, D, dtype=np.float32)
        np.testing.assert_allclose(ours(W), theirs(W), rtol=1e-6)
        np.testing.assert_array_equal(np.argsort(ours.time), np.arange(len(X)))
        assert len(np.unique(ours.time)) == len(X) and np.isfinite(ours.event).all()


# ------------------------------------------------------------------ curvature and conjugate


@every
def test_least_squares_and_majorizer(name, rng):
    """A'A is the Hessian, B makes the gradient right; the majorizer is above the Hessian everywhere.

    After Efron and with delayed entry A'A is near it.
    """
    f = loss(name)
    both = jax.jit(lambda f, W: (f.quadratic_model().least_squares_at(W), f.quadratic_model().majorizer()))
    for size in (0.0, 0.3, 1.0, 30.0):
        W = size * rng.standard_normal(D)
        _, gradient, hessian = parts(f, W)
        (A, B), M = both(f, W)
        np.testing.assert_allclose(A.T @ (A @ W - B[:, 0]), gradient, atol=1e-12 * (1 + size))
        if size <= 0.3:  # beyond, what is flat has a least curvature
            if name in NESTED:
                np.testing.assert_allclose(A.T @ A, hessian, atol=1e-13)
            ratio = np.linalg.eigvals(np.linalg.solve(hessian, A.T @ A)).real
            low, high = (0.2, 10) if SURVIVAL[name].entry else (0.8, 1.2)
            assert ratio.min() >= low and ratio.max() <= high
        if name in NESTED:
            assert np.linalg.eigvalsh(A.T @ A - hessian).min() >= -1e-12
        assert np.linalg.eigvalsh(M.T @ M - hessian).min() >= 0
        assert np.trace(M.T @ M) <= 20 * np.trace(parts(f, 0 * W)[2])


def test_majorizer_with_many_rows():
    """By leverages, so that it does not grow with the number of rows."""
    f = loss("plain", n=4000)
    M, hessian = jax.jit(lambda f: f.quadratic_model().majorizer())(f), parts(f, jnp.zeros(D))[2]
    excess = np.linalg.eigvals(np.linalg.solve(hessian, M.T @ M)).real
    assert excess.min() >= 1 and excess.max() <= 10 * D


@jax.jit
def slopes(f, W):
    """The gradient in h, from that in X: its outer product with W."""
    return jax.grad(lambda X: f._replace(X=X)(W))(f.X) @ W / (W @ W)


def conjugate(name, U):
    """sup_h <U, h> - l(h)."""
    h = cp.Variable(N)
    strata = np.asarray(arrays(name)[1].get("strata", np.zeros(N)))
    at_risk = np.zeros(N)
    for _, risk, _ in terms(name):
        at_risk[risk] = 1
    fixed = [h[int(np.argmax((strata == s) & (at_risk > 0)))] == 0 for s in np.unique(strata)]
    return conic.solve(cp.Maximize(U @ h - conic_loss(name, h)), [cp.multiply(1 - at_risk, h) == 0, *fixed])


@every
def test_dual_scaling(name, rng):
    """The change of the conjugate is that of the supremum."""
    f, X = loss(name), arrays(name)[0]
    scaled = jax.jit(lambda f, W, limit: f.dual_scaling(W, limit))
    for size in (0.1, 1.0):
        W = size * rng.standard_normal(D)
        U = slopes(f, W)
        np.testing.assert_allclose(X.T @ U, parts(f, W)[1], atol=1e-12)
        at_one = U @ (X @ W) - written_out(name, X @ W)
        for limit in (0.3, 0.9, 1.0, np.inf):
            s, change = map(float, scaled(f, W, limit))
            assert s == min(limit, 1)
            exact = conjugate(name, s * U) - at_one
            assert change >= exact - 2e-7
            if name in NESTED:
                np.testing.assert_allclose(change, exact, atol=2e-7)
            else:  # the dual value is a little less
                assert change <= exact + 0.3 * (1 - s) + 2e-7


FREE = [2, 4]


@every
def test_dual_projection(name, rng):
    """Orthogonal to the free features; the divergence is that of the supremum, infinite outside.

    Of the shortest projection and that in the metric of the Hessian the one with less divergence is taken.
    """
    f, X = loss(name), arrays(name)[0]
    basis = f.unpenalised_basis(jnp.array(FREE))
    project = jax.jit(lambda f, W: f.dual_projection(W, basis))
    W = 0.1 * rng.standard_normal(D)
    for _ in range(4):  # Newton on the free features, so that little is left to project
        _, gradient, hessian = (np.asarray(x) for x in parts(f, W))
        W[FREE] -= np.linalg.solve(hessian[np.ix_(FREE, FREE)], gradient[FREE])
    W[FREE] += 1e-3
    dG, divergence = project(f, W)
    G, H = parts(f, W)[1] + dG, X @ W
    np.testing.assert_allclose(G[np.array(FREE)], 0, atol=1e-13)
    U, shortest = slopes(f, W), basis @ (basis.T @ slopes(f, W))
    if name not in NESTED:  # another dual point, whose divergence is that of the objectives
        assert 0 < divergence <= 1e-4 and project(f, 100 * rng.standard_normal(D))[1] > 1
        best = np.array(W)
        for _ in range(6):
            _, gradient, hessian = (np.asarray(x) for x in parts(f, best))
            best[FREE] -= np.linalg.solve(hessian[np.ix_(FREE, FREE)], gradient[FREE])
        Z = slopes(f, best)
        np.testing.assert_allclose(dG, X.T @ (Z - slopes(f, W)), atol=1e-9)
        expected = written_out(name, H) - written_out(name, X @ best) + Z @ (X @ (best - W))
        np.testing.assert_allclose(divergence, expected, atol=1e-10)
        return
    in_rows = parts(f._replace(X=jnp.eye(len(H))), H)[2]  # the Hessian in the predictions
    by_curvature = in_rows @ basis @ np.linalg.lstsq(basis.T @ in_rows @ basis, basis.T @ U, rcond=1e-12)[0]
    apart = [written_out(name, H) + conjugate(name, U - V) - (U - V) @ H for V in (shortest, by_curvature)]
    np.testing.assert_allclose(divergence, min(apart), atol=1e-8)
    taken = (shortest, by_curvature)[int(np.argmin(apart))]
    np.testing.assert_allclose(dG, -X.T @ taken, atol=1e-9)
    assert divergence > 0 and project(f, 100 * rng.standard_normal(D))[1] == np.inf


# ------------------------------------------------------------------ solutions

STRENGTHS = np.linspace(0.03, 0.15, D)  # by row
PENALTIES = {
    "L1": lambda: penalties.L1(STRENGTHS),
    "ExclusiveL21": lambda: penalties.ExclusiveL21(STRENGTHS / 2, STRENGTHS / 2),
    "ExclusiveGroupL21": lambda: penalties.ExclusiveGroupL21(
        0.05, sj.groups.from_lists([[0, 1], [1, 3], [4, 5]], D)
    ),  # the third feature is free
}


@functools.cache
def optimum(name, penalty):
    """Of the conic solver: an upper bound of the minimum."""
    W, g = cp.Variable((D, 1)), PENALTIES[penalty]()
    cost, constraints = penalty_cases.formula(g).conic(g, W)
    conic.solve(cp.Minimize(conic_loss(name, arrays(name)[0] @ W[:, 0]) + cost), constraints)
    return objective(name, g, W.value[:, 0])


def objective(name, g, W):
    return written_out(name, arrays(name)[0] @ np.asarray(W, float)) + conic.penalty_value(g, W)


@pytest.mark.optimised
@pytest.mark.parametrize(
    ("name", "penalty"),
    [(TIED, p) for p in PENALTIES]
    + [(name, "L1") for name in SURVIVAL if name not in (TIED, "plain")]
    + [(ALL, "ExclusiveL21"), ("strata", "ExclusiveGroupL21"), (ALL, "ExclusiveGroupL21")],
)
def test_against_conic_solver(name, penalty):
    """Objectives by every solver that takes the problem; gaps are never below what they bound."""
    g = PENALTIES[penalty]()
    p, best = sj.Problem(loss(name), g), optimum(name, penalty)
    solvers = ("solve", "fista") if (name, penalty) == (TIED, "L1") else ("solve",)  # admm, but for L1
    answers = {s: getattr(sj, s)(p, tol=1e-12 if s == "solve" else 1e-10) for s in solvers}
    for s in answers.values():
        assert s.converged and s.gap <= 1e-10
        np.testing.assert_allclose(s.objective, objective(name, g, s.params), rtol=1e-13)
        assert abs(float(s.objective) / best - 1) <= ACCURACY
    floor = answers["solve"]
    best = min(best, *(float(s.objective) for s in answers.values()))
    rng = np.random.default_rng(0)
    # In a user's jit once, and elsewhere by an eager call, which compiles in half the time.
    gap, known = jax.jit(sj.duality_gap) if (name, penalty) == (ALL, "ExclusiveL21") else sj.duality_gap, 0
    for k in range(60):
        W = 10.0 ** rng.uniform(-8, 2) * rng.standard_normal(D) * (rng.random(D) < 0.8)
        near = k % 2 == 0
        W = W + np.asarray(floor.params) if near else W
        value = objective(name, g, W)
        bound = float(gap(p, W))
        assert bound >= (value - best) / max(abs(value), objective(name, g, np.zeros(D))) - 1e-13
        known += np.isfinite(bound)
    assert known == 60 or (penalty == "ExclusiveGroupL21" and known >= 15)
    if penalty == "L1":
        assert 0 < np.count_nonzero(floor.params) < D


def test_the_gap_falls_as_fast_as_the_distance():
    """However many rows there are: the conjugate is exact."""
    p = sj.Problem(loss("plain", n=4000), penalties.L1(0.02))
    s = sj.solve(p, tol=1e-9)
    assert s.converged and s.num_iters <= 6
    near = np.asarray(s.params) * (1 + 1e-6)
    assert sj.duality_gap(p, near) <= 1e-5


def test_float32():
    for name in ("ties", TIED, ALL):
        g = penalties.L1(STRENGTHS.astype(np.float32))
        s = sj.solve(sj.Problem(loss(name, np.float32), g))
        assert s.converged and s.params.dtype == s.gap.dtype == np.float32
        best, value = optimum(name, "L1"), objective(name, g, s.params)
        assert (value - best) / value <= float(s.gap) + 1e-6


def test_zero_at_lambda_max():
    p = sj.Problem(loss(TIED), penalties.L1(STRENGTHS))
    top = sj.lambda_max(p) * np.ones(D)
    at, below = (sj.solve(p.replace(penalty=penalties.L1(c * top)), tol=1e-8) for c in (1, 0.99))
    assert at.converged and at.num_iters == 0 and not np.any(at.params) and np.any(below.params)


def test_columns_that_do_not_vary_and_units():
    """A constant column cancels; X and the scale in other units have the same answer."""
    f = loss(TIED)
    f = f._replace(X=f.X.at[:, 2].set(5.0))
    base = sj.solve(sj.Problem(f, penalties.L1(STRENGTHS)), tol=1e-10)
    assert base.converged and base.params[2] == 0
    c = 1e-12
    small = sj.Problem(f._replace(scale=f.scale * c, X=f.X * 2.0**20), penalties.L1(STRENGTHS * c * 2.0**20))
    again = sj.solve(small, tol=1e-10)
    assert again.converged
    np.testing.assert_allclose(again.params * 2.0**20, base.params, atol=1e-6)


# ------------------------------------------------------------------ transformations


@pytest.mark.parametrize("name", ["ties", ALL])
def test_vmap_over_strengths_and_weights_is_a_loop(name):
    """Masks of rows as weights; a lane in which no event is left has W = 0, certified."""
    f, event = loss(name), arrays(name)[1]["event"]
    masks = np.stack([np.arange(N) % 3 != 0, np.arange(N) % 3 != 1, ~event]).astype(float)
    strengths = STRENGTHS * np.array([[0.5], [1.5], [1.0]])
    one = lambda s, w: sj.solve(sj.Problem(f.reweighted(w), penalties.L1(s)), tol=1e-9)
    together = jax.jit(jax.vmap(one))(strengths, masks)
    assert together.converged.all() and not np.any(together.params[2]) and together.gap[2] == 0
    for i in range(2):
        alone = one(strengths[i], masks[i])
        np.testing.assert_allclose(together.objective[i], alone.objective, rtol=1e-8)
        np.testing.assert_allclose(together.params[i], alone.params, atol=1e-5)


@both
def test_cross_validation_by_hand(name):
    X, data = arrays(name)
    weights, case = data["weights"], SURVIVAL[name]
    p = sj.Problem(loss(name), penalties.L1(STRENGTHS))
    candidates = jax.vmap(penalties.L1)(STRENGTHS * np.array([[3.0], [1.0], [0.1]]))
    result = sj.cross_validate(p, candidates, folds=3, tol=1e-9)
    assert result.converged.all()
    for fold in range(3):
        out = np.arange(N) % 3 == fold
        kept, held = (weights * mask for mask in (~out, out))
        of_fit, of_test = (weights.sum() / w.sum() / N for w in (kept, held))
        train = case(X, **(data | {"weights": kept}), scale=of_fit)
        W = sj.solve(sj.Problem(train, penalties.L1(STRENGTHS)), tol=1e-9).params
        some = {key: value[out] for key, value in (data | {"weights": held}).items()}
        judged = case(X[out], **some, scale=of_test)
        np.testing.assert_allclose(result.fold_loss[fold, 1], parts(judged, W)[0], rtol=1e-5)
    assert p.smooth.intercept(jnp.zeros(D)) == 0


@both
def test_derivative_of_the_solution(name):
    """In the strength and in X, and forward over reverse in both."""
    f = loss(name)

    def value(s, t):
        q = sj.Problem(f._replace(X=f.X * (1 + t * jnp.cos(f.X))), penalties.L1(STRENGTHS * (1 + s)))
        return jnp.sum(jnp.sin(sj.solve(q, tol=1e-13).params))

    both = jax.jit(lambda s, t: jax.jvp(jax.value_and_grad(value, (0, 1)), (s, t), (1.0, 1.0)))
    (_, gradient), (slope, second) = both(0.0, 0.0)
    h = 1e-5
    (ahead, _), (back, _) = (both(c, 0.0)[0] for c in (h, -h))
    np.testing.assert_allclose(gradient[0], (ahead - back) / (2 * h), rtol=1e-6)
    (ahead, _), (back, _) = (both(0.0, c)[0] for c in (h, -h))
    np.testing.assert_allclose(gradient[1], (ahead - back) / (2 * h), rtol=1e-6)
    np.testing.assert_allclose(slope, sum(gradient), rtol=1e-9)
    ahead, back = (np.array(both(c, c)[0][1]) for c in (h, -h))
    np.testing.assert_allclose(second, (ahead - back) / (2 * h), rtol=1e-5)


# ------------------------------------------------------------------ bad input

X, (TIME, EVENT) = arrays("plain")[0], arrays("plain")[1].values()
BAD = {
    "time NaN": (dict(time=np.where(TIME[3] == TIME, np.nan, TIME)), "time has 1 .*NaN"),
    "time inf": (dict(time=np.where(TIME[3] == TIME, np.inf, TIME)), "time has 1 .*infinite"),
    "time of rank 2": (dict(time=TIME[:, None]), "time has shape .*must be 1-d"),
    "event of rank 2": (dict(event=EVENT[:, None]), "event has shape .*must be 1-d"),
    "short time": (dict(time=TIME[1:]), "X has 26 rows and time has 25"),
    "time 0": (dict(time=TIME - TIME.min()), "time must be > 0, got 0"),
    "ties": (dict(ties="exact"), "ties must be one of 'breslow', 'efron', got 'exact'"),
    "short entry": (dict(entry=TIME[1:] / 2), "X has 26 rows and entry has 25"),
    "entry at time": (dict(entry=np.where(TIME[3] == TIME, TIME, 0)), "entry must be before time.*row 3"),
    "entry NaN": (dict(entry=np.full(N, np.nan)), "entry has 26 .*NaN"),
    "short strata": (dict(strata=np.arange(25)), "X has 26 rows and strata has 25"),
    "strata of rank 2": (dict(strata=np.ones((N, 1))), "strata has shape .*must be 1-d"),
    "stratum NaN": (dict(strata=np.where(TIME[3] == TIME, np.nan, 0)), "strata has a NaN or None"),
    "stratum missing": (dict(strata=[None, *range(N - 1)]), "strata has a NaN or None"),
    "stratum NaN among texts": (dict(strata=[np.nan, *["a"] * (N - 1)]), "strata has a NaN or None"),
    "alone in strata": (dict(strata=np.arange(N)), "only row in its risk set, .* in its stratum"),
    "alone by entry": (dict(entry=TIME - 1e-9), "only row in its risk set, .* that have entered"),
    "short event": (dict(event=EVENT[1:]), "X has 26 rows and event has 25"),
    "short weights": (dict(weights=np.ones(25)), "X has 26 rows and weights has 25"),
    "weights by entry": (dict(weights=np.ones((N, 1))), "weights has shape .*must be 1-d"),
    "negative weight": (dict(weights=-np.ones(N)), "weights must be >= 0, got -1"),
    "event 2": (dict(event=EVENT + 1), "event must hold 0 and 1 only for CoxLoss; it has 2"),
    "signs": (dict(event=2 * EVENT - 1.0), "event must hold 0 and 1 only"),
    "censored": (dict(event=0 * EVENT), "every row is censored"),
    "events of weight 0": (
        dict(weights=1.0 - EVENT),
        "event and weights: every row is censored",
    ),
    "alone": (dict(event=np.max(TIME) == TIME), "the only row in its risk set"),
    "alone by weights": (dict(weights=1.0 * (TIME[EVENT][0] == TIME)), "the only row in its risk set"),
    "intercept": (dict(intercept=True), "no intercept: .*cancel"),
    "X": (dict(X=X[:, :0]), "X is empty"),
    "scale": (dict(scale=0.0), "scale must be > 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case):
    changed, message = BAD[case]
    arguments = dict(X=X, time=TIME, event=EVENT) | changed
    with pytest.raises(ValueError, match=message):
        sj.losses.CoxLoss(**arguments)


def test_traced_data_that_is_not_allowed():
    """Under jit nothing can be raised: the status says it, and no gap is claimed."""
    X, data = arrays("plain")

    def changed(**values):
        given = {"time": data["time"], "event": data["event"] * 1.0, "entry": np.zeros(N)}
        for name, value in values.items():
            given[name] = np.where(np.arange(N) == 3, value, given[name])
        return given

    wrong = [dict(time=x) for x in (0.0, -1.0, np.nan, np.inf)]
    wrong += [dict(event=x) for x in (2.0, 0.5, -1.0, np.nan)]
    wrong += [dict(entry=x) for x in (data["time"][3], 99.0, np.nan, -np.inf)]
    lanes = jax.tree.map(lambda *rows: np.stack(rows), changed(), *(changed(**values) for values in wrong))

    @jax.jit
    def solved(lanes):
        at = lambda data: sj.solve(sj.Problem(sj.losses.CoxLoss(X, **data), penalties.L1(0.05)))
        return jax.vmap(at)(lanes)

    found = solved(lanes)
    assert found.converged.tolist() == [True] + 12 * [False]
    assert np.isnan(found.gap).tolist() == [False] + 12 * [True]


def test_other_errors():
    f = loss("plain")
    with pytest.raises(TypeError, match="strata must hold labels of one kind"):
        sj.losses.CoxLoss(X, TIME, EVENT, strata=np.array(["a", *range(N - 1)], object))
    with pytest.raises(ValueError, match=r"W has shape \(6, 1\); one W has shape \(6,\)"):
        f(jnp.zeros((D, 1)))
    with pytest.raises(TypeError, match="intercept must be True or False"):
        sj.losses.CoxLoss(X, TIME, EVENT, intercept=1)
    with pytest.raises(ValueError, match="Y has no columns"):
        f + sj.losses.GraphLaplacian(np.ones((2, 2)), 1.0)
    negative = jax.jit(
        lambda w: sj.duality_gap(sj.Problem(f.reweighted(w), penalties.L1(STRENGTHS)), jnp.zeros(D))
    )
    assert np.isnan(negative(jnp.ones(N).at[3].set(-1.0)))


def test_late_entries_of_similar_data_have_one_form():
    """Folds would else compile anew, one for each number of event times."""
    forms = []
    for rows in (np.arange(N) % 4 != k for k in range(4)):
        loss = sj.losses.CoxLoss(X[rows][:18], TIME[rows][:18], EVENT[rows][:18], entry=TIME[rows][:18] / 2)
        forms.append([leaf.shape for leaf in jax.tree.leaves(loss)])
    assert all(form == forms[0] for form in forms)


@pytest.mark.parametrize("traced", ["event", "strata", "entry"])
@pytest.mark.parametrize("step", [1, 1000.0])
def test_known_times_beside_traced_values_are_compared_as_given(traced, step):
    n = 8
    X = np.random.default_rng(0).standard_normal((n, 2)).astype(np.float32)
    time = 1_700_000_000_000 + step * np.arange(n)[::-1]
    data = {"event": np.ones(n, np.float32), "strata": np.zeros(n, np.int32)}
    with jax.enable_x64(False):
        early = np.minimum(time - 0.75 * step, 1.7e12 - 2**18).astype(np.float32)
        for entry in (None, time - 2.5 * step, early):
            given = data | {"entry": entry}
            if given[traced] is None or given[traced].dtype == np.float64:
                continue
            make = lambda x, given=given: sj.losses.CoxLoss(X, time, **given | {traced: x})
            ours, theirs, W = jax.jit(make)(given[traced]), make(given[traced]), np.ones(2, np.float32)
            np.testing.assert_allclose(ours(W), theirs(W), rtol=1e-5)


def test_entries_between_whole_times_under_jit():
    X = np.random.default_rng(1).standard_normal((4, 2)).astype(np.float32)
    time = np.array([1_600_000_150, 1_600_001_000, 1_600_002_000, 1_600_003_000], np.int32)
    entry, W = np.array([0, 1_600_000_128, 0, 0], np.float32), np.ones(2, np.float32)
    at = lambda time, entry: sj.losses.CoxLoss(X, time, np.ones(4), entry=entry)(W)
    with jax.enable_x64(False), jax.numpy_dtype_promotion("strict"):
        np.testing.assert_allclose(jax.jit(at)(time, entry), at(time, entry), rtol=1e-5)


def test_traced_times_of_more_digits_than_X_keep_their_order():
    X = np.random.default_rng(1).standard_normal((8, 2)).astype(np.float32)
    make = lambda time: sj.losses.CoxLoss(X, time, np.ones(8))
    time = 1000 + 1e-7 * np.arange(8)
    assert len(np.unique(make(time).time)) == len(np.unique(jax.jit(make)(time).time)) == 8
