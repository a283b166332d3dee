"""Penalties that couple rows, and strengths by column: prox, gap, solutions and derivatives."""

import functools

import conic
import cvxpy
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import K, data
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from penalty_cases import COUPLED, FALLING, D
from properties import assert_firm, assert_optimal, drawn, properties
from scipy.optimize import isotonic_regression
from scipy.stats import norm

import sparsejax as sj
from sparsejax import losses, penalties, prox
from sparsejax.prox import falling_order

every = pytest.mark.parametrize("name", COUPLED)
PLAIN = [name for name in COUPLED if len(COUPLED[name](1.0).terms) == 1]
LOSSES = {
    "squared": losses.SquaredLoss,
    "logistic": lambda X, H: losses.LogisticLoss(X, (H > 0).astype(X.dtype), scale=0.3),
    "Poisson": lambda X, H: losses.PoissonLoss(X, np.floor(np.exp(np.clip(H / 2, -2, 2))), scale=0.3),
}


def problem_of(name, loss="squared", seed=0, factor=1.0, dtype=None):
    X, H = data(seed=seed, n=30, dtype=dtype)
    penalty = jax.tree.map(lambda leaf: jnp.asarray(leaf, X.dtype), COUPLED[name](factor))
    return sj.Problem(LOSSES[loss](X, H), penalty)


# ------------------------------------------------------------------ proxes


def test_the_sorted_norm_is_that_of_its_limits(rng):
    """Equal strengths are l1; a first strength alone is l-infinity; by isotonic regression in between."""
    x = 3 * rng.standard_normal(9)
    np.testing.assert_allclose(prox.sorted_l1(x, np.full(9, 0.7)), prox.l1(x, 0.7), atol=1e-15)
    np.testing.assert_allclose(prox.sorted_l1(x, np.eye(9)[0] * 2), prox.linf(x, 2.0), atol=1e-14)
    order, s = np.argsort(-np.abs(x)), np.sort(rng.uniform(0, 3, 9))[::-1]
    pooled = np.maximum(isotonic_regression(np.abs(x)[order] - s, increasing=False).x, 0)
    found = np.asarray(prox.sorted_l1(x, s))
    np.testing.assert_allclose(np.abs(found)[order], pooled, atol=1e-14)
    assert len(np.unique(pooled)) < 9 and (found * x >= 0).all()


def test_total_variation_of_many_numbers(rng):
    """The subgradient equation: cumulated sums within the strength, at it where the answer jumps."""
    x = np.repeat(rng.standard_normal(40), 25) + 0.3 * rng.standard_normal(1000)
    for strength in (1e-3, 0.1, 2.0, 1e4):
        z = np.asarray(jax.jit(prox.total_variation)(x, strength))
        sums, jumps = np.cumsum(x - z), np.diff(z)
        assert np.abs(sums).max() <= strength * (1 + 1e-12) + 1e-12 and abs(sums[-1]) < 1e-11
        at = jumps != 0
        np.testing.assert_allclose(sums[:-1][at], -strength * np.sign(jumps[at]), atol=1e-11)
    assert np.ptp(z) == 0
    np.testing.assert_allclose(prox.total_variation(x, 0.0), x, atol=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_proxes_in_lanes(dtype, rng):
    """A batch is its lanes, of derivatives too, and float32 is near float64."""
    x, s = rng.standard_normal((4, 12)).astype(dtype), (0.4 * np.linspace(2, 1, 12)).astype(dtype)
    for f in (lambda v: prox.sorted_l1(v, s), lambda v: prox.total_variation(v, 0.3)):
        both = jax.jit(lambda v, f=f: (f(v), jax.jacrev(f)(v)))
        found = jax.vmap(both)(x)
        for i, v in enumerate(x):
            for a, b in zip(found, both(v), strict=True):
                assert a.dtype == dtype
                np.testing.assert_allclose(a[i], b, rtol=0, atol=10 * np.finfo(dtype).eps)
        J = np.asarray(found[1][0])
        np.testing.assert_allclose(J @ J, J, atol=100 * np.finfo(dtype).eps)  # a projection on the pieces


@every
def test_prox_is_the_minimiser(name, rng):
    V = rng.standard_normal((D, K)) * 10 ** rng.uniform(-0.5, 0.5, (D, 1))
    penalty, scaling = COUPLED[name](3.0), 0.7
    problem = sj.Problem(sj.losses.SquaredLoss(np.eye(D), V, scale=0.5 / scaling), penalty)
    ours, theirs = np.asarray(jax.jit(penalty.prox)(V, scaling)), conic.minimise(problem)
    distance = np.sum((ours - theirs.params) ** 2) / (2 * scaling)  # strong convexity, and their accuracy
    assert distance <= 1e-8 * (1 + abs(theirs.objective))
    assert conic.objective(problem, ours) <= theirs.objective + 1e-8 * abs(theirs.objective)


@jax.jit
def conjugates(penalty, Z, V):
    edge = Z * jnp.minimum(1.0, penalty.dual_scale(Z))
    T = penalty.prox(V)
    at_T = penalty.value(T), penalty.conjugate(V - T), penalty.dual_scale(V - T)
    return edge, penalty.conjugate(edge), T, *at_T


@properties
@pytest.mark.parametrize("name", PLAIN)
@drawn(20)
@given(seed=st.integers(0, 2**16), size=st.floats(-2, 2) | st.sampled_from([-320, -30, 12]))
def test_what_a_penalty_is(name, seed, size):
    """Equality at the subgradient that the prox leaves, inequality to the edge of the domain; a prox."""
    rng = np.random.default_rng(seed)
    penalty = COUPLED[name](rng.uniform(0.1, 3))
    Z, V = 10**size * rng.standard_normal((D, K)), rng.standard_normal((D, K))
    edge, conjugate, T, at_T, there, scale = map(np.asarray, conjugates(penalty, Z, V))
    W = np.asarray(penalty.prox(rng.standard_normal((D, K)), 0.0))
    value = float(penalty.value(W))
    tiny = 1e-12 * (np.abs(edge * W).sum() + abs(value)) + 1e-300  # subnormal numbers count as 0
    assert value + conjugate - np.sum(edge * W) >= -tiny
    assert abs(at_T + there - np.sum((V - T) * T)) <= 1e-11 * (np.abs(V).sum() ** 2 + np.abs(T).sum() ** 2)
    assert scale >= 1 - 1e-10
    far = 10**size * rng.standard_normal((D, K))
    other = np.asarray(conjugates(penalty, Z, far)[2])
    assert_firm(V, far, T, other, 1e-12)
    assert_optimal(V, T, [W, other], lambda U: float(penalty.value(U)), 1, 1e-12)


# ------------------------------------------------------------------ solutions


@functools.cache
def gaps(form):
    """Of many points at once: a program for each form of a problem."""
    return jax.jit(jax.vmap(lambda p, W: (sj.duality_gap(p, W), p(W)), (None, 0)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("loss", LOSSES)
@every
def test_solution_is_the_minimum(name, loss, seed):
    """The gap is never below the distance to the minimum, at 200 other points either."""
    problem = problem_of(name, loss, seed)
    solution = sj.solve(problem, tol=5e-9)
    minimum = conic.minimise(problem).objective
    assert solution.converged and 0 <= solution.gap <= 5e-9, solution.message
    zero = sj.penalties.feasible(problem.penalty, jnp.zeros((D, K)))
    top = max(float(problem(zero)), abs(minimum))
    assert abs(minimum - float(solution.objective)) <= 1e-8 * top
    rng = np.random.default_rng(seed)
    sizes = np.where(np.arange(200) < 100, 0.01, 1.0).reshape(-1, 1, 1)
    points = np.asarray(solution.params) + sizes * rng.standard_normal((200, D, K))
    points = jax.vmap(lambda W: penalties.feasible(problem.penalty, W))(points)
    gap, value = map(np.asarray, gaps(jax.tree.structure(problem))(problem, points))
    held = np.isfinite(gap)
    # No gap: a split that no part can take; constants whose price is outside the domain of the conjugate.
    assert (
        held.all() or len(problem.penalty.terms) > 1 or (name, loss == "squared") == ("TotalVariation", False)
    )
    assert (gap - (value - minimum) / np.maximum(top, np.abs(value)) >= -1e-8)[held].all()


@jax.jit
def refined(smooth, penalty, W):
    """W after proximal gradient steps: with a ridge, a gap of eps leaves half the digits of W."""
    if len(penalty.terms) > 1:
        return W
    H = jax.hessian(lambda w: smooth(w.reshape(W.shape)))(W.ravel())
    step = 0.7 / jnp.linalg.eigvalsh(H)[-1]
    return lax.fori_loop(0, 2000, lambda _, W: penalty.prox(W - step * jax.grad(smooth)(W), step), W)


@pytest.mark.parametrize(
    ("name", "loss"),  # least squares, and one of the other two in turn
    [(name, loss) for i, name in enumerate(COUPLED) for loss in ("squared", ("logistic", "Poisson")[i % 2])],
)
def test_derivatives_lanes_and_single_precision(name, loss):
    """Against differences to 1e-6, forward and in reverse; a batch is its lanes; float32 is near.

    Lanes and float32 with one loss: `test_solvers` and `test_losses` ask the others.
    """
    C = np.random.default_rng(5).standard_normal((D, K))
    problem = problem_of(name, loss)
    strengths, rebuild = penalties.split_strengths(problem.penalty)
    ways = [0.1 * np.cos(np.arange(s.size)).reshape(s.shape) * np.asarray(s) for s in strengths]

    def outcome(t, u, more=False):
        moved = problem.smooth._replace(X=problem.smooth.X + u * np.sin(np.arange(30 * D)).reshape(30, D))
        penalty = rebuild([s + t * way for s, way in zip(strengths, ways, strict=True)])
        W = sj.solve(sj.Problem(moved, penalty), tol=0.0).params
        W = refined(moved, penalty, W) if more else W
        return jnp.sum(C * W) + jnp.sum(W * W) / 2

    grad = jax.grad(outcome, (0, 1))
    found, h = np.asarray(grad(0.0, 0.0)), 3e-4
    for way, slope in zip(np.eye(2) * h, found, strict=True):
        four = [float(outcome(*(step * way), more=True)) for step in (1, -1, 2, -2)]
        expected = (8 * (four[0] - four[1]) - (four[2] - four[3])) / (12 * h)
        assert abs(slope - expected) <= 1e-6 * max(1, abs(expected), np.abs(found).max())
    if loss != "squared":
        return
    lanes = jnp.array([0.0, 0.5])
    np.testing.assert_allclose(jax.vmap(lambda t: outcome(t, 0.0))(lanes)[1], outcome(0.5, 0.0), rtol=1e-6)
    single = sj.solve(problem_of(name, loss, dtype=np.float32))
    assert single.params.dtype == np.float32 and single.converged
    excess = float(problem(jnp.asarray(single.params, float)) if name[:5] != "SumTo" else single.objective)
    exact = float(sj.solve(problem, tol=1e-9).objective)
    assert abs(excess - exact) <= 2e-4 * max(abs(exact), float(problem.smooth(jnp.zeros((D, K)))))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "name", ["SortedL1", "TotalVariation, L1", "SumTo, L1", "L1 by column", "L1 by entry"]
)
def test_lambda_max(name, loss):
    """The smallest factor with W = 0, at which the start is the answer."""
    problem = problem_of(name, loss)
    top = float(sj.lambda_max(problem))
    at = sj.solve(problem.replace(penalty=top * problem.penalty))
    assert at.converged and at.num_iters == 0 and not at.params.any()
    assert sj.solve(problem.replace(penalty=0.999 * top * problem.penalty), tol=1e-12).params.any()


@pytest.mark.parametrize("loss", LOSSES)
def test_lambda_max_of_total_variation(loss):
    """The strength from which every column is constant."""
    problem = problem_of("TotalVariation", loss)
    top = float(sj.lambda_max(problem))
    W = [sj.solve(problem.replace(penalty=penalties.TotalVariation(f * top)), tol=1e-12).params
         for f in (1.001, 0.999)]  # fmt: skip
    assert np.ptp(W[0], axis=0).max() == 0 < np.ptp(W[1], axis=0).max()


def test_limits_of_solutions(rng):
    """SLOPE of equal strengths is the lasso, of matrices l2,1; many more features than rows, too."""
    X, H = data(n=12, d=160, k=2)
    for Y, same in ((H[:, 0], penalties.L1), (H, penalties.L21)):
        loss = losses.SquaredLoss(X, Y)
        strength = float(sj.lambda_max(sj.Problem(loss, same(1.0)))) / 4
        slope = sj.working_set(sj.Problem(loss, penalties.SortedL1(np.full(160, strength))), tol=1e-10)
        other = sj.solve(sj.Problem(loss, same(strength)), tol=1e-10)
        assert slope.converged and np.count_nonzero(slope.params) < 80
        np.testing.assert_allclose(slope.params, other.params, atol=1e-5)


def test_slope_strengths():
    d, q = 7, 0.2
    wanted = norm.ppf(1 - q * np.arange(1, d + 1) / (2 * d))
    np.testing.assert_allclose(penalties.slope_strengths(d, q), wanted, rtol=1e-12)
    penalties.SortedL1(penalties.slope_strengths(d, q))


def test_a_gap_does_not_take_negative_scales():
    """A dual point of the wrong sign is no certificate where W >= 0: at w = 3 this gap was too small."""
    problem = sj.Problem(
        losses.SquaredLoss(np.eye(1), np.ones(1)), penalties.L1(0.1) + penalties.NonNegative()
    )
    W = jnp.array([3.0])
    assert sj.duality_gap(problem, W) >= (
        problem(W) - problem(sj.solve(problem, tol=1e-12).params)
    ) / problem(W)


# ------------------------------------------------------------------ bad input


BAD = {
    "increasing": (lambda: penalties.SortedL1([1.0, 2.0]), "strengths must not increase"),
    "negative": (lambda: penalties.SortedL1([1.0, -2.0]), "strengths must be >= 0"),
    "a number": (lambda: penalties.SortedL1(1.0), "one value a row"),
    "of other features": (
        lambda: problem_of("SortedL1").replace(penalty=penalties.SortedL1(FALLING[:3])),
        r"strengths has shape \(3,\)",
    ),
    "a variation by row": (lambda: penalties.TotalVariation(np.ones(3)), "must be a number"),
    "totals by column": (lambda: penalties.SumTo(np.ones(3)), "total has shape"),
    "no total": (lambda: penalties.SumTo(np.nan), "total"),
    "no such simplex": (
        lambda: problem_of("SumTo, L1").replace(penalty=penalties.SumTo(-1.0) + penalties.NonNegative()),
        "no column within the bounds sums to -1",
    ),
    "too small a box": (
        lambda: problem_of("SumTo, L1").replace(penalty=penalties.SumTo(1.0) + penalties.Box(-1.0, 0.1)),
        "no column within the bounds sums to 1",
    ),
    "sums to two totals": (lambda: penalties.SumTo(1.0) + penalties.SumTo(2.0), "no column has two sums"),
    "no strength": (
        lambda: sj.lambda_max(
            problem_of("SumTo, L1").replace(penalty=penalties.SumTo(0.0) + penalties.NonNegative())
        ),
        "a constraint has no strength",
    ),
    "no factor": (lambda: sj.lambda_max(problem_of("SumTo 1, L1 by row")), "no finite factor"),
    "q": (lambda: penalties.slope_strengths(3, 1.0), r"q must be in \(0, 1\)"),
    "increasing, of the prox": (
        lambda: prox.sorted_l1(np.ones(2), np.array([1.0, 2.0])),
        "must not increase",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()


class Between(sj.Penalty, leaves=("low", "high")):
    """A box of one's own: of a value that is infinite outside, and a prox."""

    def value(self, W):
        return jnp.where(jnp.all((self.low <= W) & (self.high >= W)), 0.0, jnp.inf)

    def prox(self, V, scaling=1.0):
        return jnp.clip(V, self.low, self.high)


@pytest.mark.parametrize("name", ["L1, SumTo", "SumTo", "L21, SumTo", "L1, own", "W >= 0, own"])
def test_two_constraints(name, rng):
    """Each iterate that is certified is within both, or has no objective and ends the solve."""
    X = rng.standard_normal((15, 12))
    y = X[:, :3] @ [1.0, -1.0, 0.5] + 0.3 * rng.standard_normal(15)
    bounds, on = (-0.3, 0.4), penalties.SumTo(0.1) + penalties.Box(-0.3, 0.4)
    penalty = {
        "L1, SumTo": penalties.L1(0.05) + on, "SumTo": on, "L21, SumTo": penalties.L21(0.05) + on,
        "L1, own": penalties.L1(0.05) + Between(*bounds),
        "W >= 0, own": penalties.NonNegative() + Between(*bounds),
    }[name]  # fmt: skip
    w = cvxpy.Variable(12)
    f = cvxpy.sum_squares(X @ w - y) / 30 + (0.05 * cvxpy.norm1(w) if name[0] == "L" else 0)
    within = [
        w >= (0 if name[0] == "W" else -0.3),
        w <= 0.4,
        *([cvxpy.sum(w) == 0.1] if "SumTo" in name else []),
    ]
    best = cvxpy.Problem(cvxpy.Minimize(f), within).solve(solver=cvxpy.CLARABEL)
    problem = sj.Problem(losses.SquaredLoss(X, y), penalty)
    for solver in (sj.solve, sj.fista, *([sj.davis_yin] if len(penalty.terms) < 3 else [])):
        solution = solver(problem, tol=1e-7)
        assert solution.converged and abs(float(solution.objective) - best) <= 1e-6
        assert np.isfinite(penalty.value(solution.params))


def test_sums_in_float32(rng):
    """To rounding errors, not merely to what the value accepts."""
    X = rng.standard_normal((15, 30)).astype(np.float32)
    y = (X[:, :3] @ np.array([1.0, -1.0, 0.5]) + 0.3 * rng.standard_normal(15)).astype(np.float32)
    slope = penalties.SortedL1(np.linspace(0.2, 0.01, 30).astype(np.float32))
    for penalty in (slope + penalties.SumTo(0.0), penalties.L1(0.05) + penalties.SumTo(0.0)):
        for solver in (sj.solve, sj.fista):
            solution = solver(sj.Problem(losses.SquaredLoss(X, y), penalty))
            W = np.asarray(solution.params, float)
            assert solution.converged and abs(W.sum()) <= 2e-6 * np.abs(W).sum()


def test_increasing_strengths_under_jit():
    """Nothing raises there: the status says it, and there is no answer."""
    X, H = data(n=30)
    loss = losses.SquaredLoss(X, H)
    solve = jax.jit(lambda s: sj.solve(sj.Problem(loss, penalties.SortedL1(s))))
    solution = solve(FALLING[::-1].copy())
    assert not solution.converged and np.isnan(solution.params).all()
    assert solve(FALLING).converged
    near = jax.jit(lambda s: penalties.SortedL1(s).prox(jnp.ones(FALLING.size)))
    assert np.isnan(near(FALLING[::-1].copy())).all() and np.isfinite(near(FALLING)).all()


def test_a_negative_simplex_under_jit():
    """No W >= 0 has a negative sum: there is no prox and no answer."""
    X, H = data(n=30)
    loss, on = losses.SquaredLoss(X, H), lambda total: penalties.SumTo(total) + penalties.NonNegative()
    solution = jax.jit(lambda total: sj.solve(sj.Problem(loss, on(total))))(-1.0)
    assert not solution.converged
    near = jax.jit(lambda total: on(total).prox(jnp.ones(3)))
    assert np.isnan(near(-1.0)).all() and np.isfinite(near(1.0)).all()


# ------------------------------------------------------------------ a strength for each column


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("scoring", [None, "r2"])
def test_each_column_chooses_its_strength(loss, scoring):
    """As if each were alone: losses, scores, choices and the refit."""
    problem = problem_of("L1 by column", loss)
    noise = (np.sin(7 * np.arange(30.0)) > 0) - (0.5 if loss == "squared" else 0.0)
    smooth = problem.smooth._replace(Y=problem.smooth.Y.at[:, 0].set(noise))
    problem = sj.Problem(smooth, penalties.L1(0.0))
    candidates = jax.vmap(penalties.L1)(float(sj.lambda_max(problem)) * jnp.array([1.0, 0.1, 0.01, 0.001]))
    options = {"tol": 1e-9, "scoring": scoring, "refit": True, "folds": 3}
    found = sj.cross_validate(problem, candidates, per_output=True, **options)
    assert found.score.shape == found.fold_loss.shape == (3, 4, K) and found.index.shape == (K,)
    assert found.best.strength.shape == (K,) and found.solution.gap <= 1e-9
    assert len(np.unique(found.index)) > 1
    scale = problem.smooth.scale
    for j in range(2):
        alone = problem.replace(smooth=problem.smooth._replace(Y=problem.smooth.Y[:, j], scale=scale))
        one = sj.cross_validate(alone, candidates, **options)
        np.testing.assert_allclose(found.fold_loss[:, :, j], one.fold_loss, rtol=1e-4)
        np.testing.assert_allclose(found.score[:, :, j], one.score, rtol=1e-4, atol=1e-6)
        assert (found.index[j], found.index_1se[j]) == (one.index, one.index_1se)
        np.testing.assert_allclose(found.solution.params[:, j], one.solution.params, atol=1e-4)


def test_columns_that_meet_choose_together():
    X, H = data(n=30)
    candidates = jax.vmap(penalties.L1)(jnp.array([0.1, 0.2]))
    choose = functools.partial(sj.cross_validate, penalties=candidates, per_output=True)
    with pytest.raises(TypeError, match="whose columns do not meet"):
        choose(sj.Problem(losses.SquaredLoss(X, H[:, 0]), penalties.L1(0.0)))
    with pytest.raises(TypeError, match="one number for each column"):
        sj.cross_validate(
            sj.Problem(losses.SquaredLoss(X, H), penalties.L21(0.0)),
            jax.vmap(penalties.L21)(jnp.array([0.1, 0.2])),
            per_output=True,
        )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 2, 320, 1025, 70_000])
def test_falling_order(size, dtype):
    """From the largest to the least, equal entries in their order; neighbours in the last digit, too."""
    normal = np.abs(np.random.default_rng(0).standard_normal(size)).astype(dtype)
    near = np.where(np.arange(size) % 3 > 0, np.nextafter(dtype(1), dtype(2)), dtype(1))
    zeros = np.where(np.arange(size) % 2, dtype(0), np.finfo(dtype).tiny)
    infinite = np.where(np.arange(size) == size // 2, dtype(np.inf), normal)
    many = [normal, near, zeros, infinite, normal.round(1)]
    for r in many:
        np.testing.assert_array_equal(falling_order(jnp.asarray(r)), np.argsort(-r, kind="stable"))
    together = jax.vmap(falling_order)(jnp.asarray(np.stack(many)))
    np.testing.assert_array_equal(together[1], np.argsort(-near, kind="stable"))


def test_a_given_sum_where_newton_goes_from_bound_to_bound():
    """Two entries of sum 0 are t and -t: the prox is a soft threshold of their difference."""
    rng = np.random.default_rng(0)
    V, S = rng.standard_normal((2000, 2)), rng.exponential(size=(2000, 2)) * rng.integers(0, 2, (2000, 2))
    V[0], S[0] = [-1.41354576, 0.68273887], [0.0, 1.35155892]
    at = lambda v, s: (penalties.SumTo(0.0) + penalties.L1(s)).prox(v)
    apart, room = V[:, 0] - V[:, 1], S.sum(axis=1)
    t = np.sign(apart) * np.maximum(np.abs(apart) - room, 0) / 2
    np.testing.assert_allclose(jax.vmap(at)(V, S), np.stack([t, -t], axis=1), atol=1e-14)


def test_a_step_size_multiplies_the_strengths(rng):
    x, s = rng.standard_normal(7), np.linspace(1, 0.2, 7)
    np.testing.assert_allclose(prox.sorted_l1(x, s, 0.4), prox.sorted_l1(x, 0.4 * s), atol=1e-15)
    np.testing.assert_allclose(prox.total_variation(x, 0.5, 0.4), prox.total_variation(x, 0.2), atol=1e-15)


@pytest.mark.parametrize("base", [penalties.TotalVariation(1.0), penalties.SumTo()])
def test_lambda_max_has_a_gradient(base):
    X, Y = data()
    penalty = base + penalties.L1(0.5)
    top = lambda t: sj.lambda_max(sj.Problem(losses.SquaredLoss(X + t * X**2, Y), penalty))
    slope = jax.grad(top)(0.0)
    np.testing.assert_allclose(
        slope, (top(1e-4) - top(-1e-4)) / 2e-4, rtol=1e-5 if X.dtype == np.float64 else 0.1
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", ["alone", "L1", "W >= 0", "ridge"])
def test_a_large_common_part_leaves_the_sum_right(name, dtype):
    others = {"L1": penalties.L1(0.05), "W >= 0": penalties.NonNegative(), "ridge": penalties.SquaredL2(0.1)}
    on = penalties.SumTo(1.0) + others[name] if name in others else penalties.SumTo(1.0)
    rng = np.random.default_rng(0)
    for size in (1e3, 1e4, 1e6):
        V = (size * (1 + 0.3 * rng.standard_normal((8, 1))) + 0.3 * rng.standard_normal((8, 5))).astype(dtype)
        for v in V:
            assert on.value(on.prox(jnp.asarray(v))) < np.inf, size
    X = np.random.default_rng(1).standard_normal((30, 5)).astype(dtype)
    problem = sj.Problem(losses.HuberLoss(X, X[:, 0]), on)
    assert sj.solve(problem, np.full(5, -1e4, dtype), tol=1e-4).converged
