"""Certificates tell the truth: gaps bound the suboptimality, at `lambda_max` the solution becomes zero."""

import functools

import conic
import jax
import jax.numpy as jnp
import loss_cases
import numpy as np
import pytest
from cases import ENGINES, EVERYTHING, PAIRS, SOLVERS, K, N, data, engines_of, problem, smooth, solution
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_cases import LOSSES, MAIN_LOSSES
from penalty_cases import PARTITION, PENALTIES, D

import sparsejax as sj
from sparsejax import groups, losses, penalties
from sparsejax.driver import Algorithm, Loop
from sparsejax.solution import MAX_ITER, NON_FINITE

optimised = pytest.mark.optimised  # run as users compile, too
everything = pytest.mark.parametrize("loss, penalty", EVERYTHING)

# ------------------------------------------------------------------ the gap


@functools.cache
def objective_at_zero(loss, penalty):
    return conic.objective(problem(loss, penalty), np.zeros((D, K)))


@everything
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(seed=st.integers(0, 2**16), size=st.floats(-9, 3), zeros=st.floats(0, 1), near=st.booleans())
def test_gap_bounds_the_suboptimality(loss, penalty, seed, size, zeros, near):
    """At any W, far or near, sparse or not: gap >= (F(W) - F*) / max(|F(W)|, F(0))."""
    p, best = problem(loss, penalty), solution(loss, penalty)
    rng = np.random.default_rng(seed)
    W = 10**size * rng.standard_normal((D, K)) * (rng.random((D, K)) >= zeros)
    W = W + np.asarray(best.params) if near else W
    value = conic.objective(p, W)
    excess = (value - float(best.objective)) / max(abs(value), objective_at_zero(loss, penalty))
    gap = float(sj.duality_gap(p, W))
    assert np.isfinite(gap) and gap >= 0
    assert gap >= excess - 1e-12
    if near and size < -5 and len(p.penalty.terms) == 1:  # and it is not a trivial bound
        assert gap <= 1e3 * 10**size


@optimised
@everything
def test_gap_at_the_solution(loss, penalty):
    p, s = problem(loss, penalty), solution(loss, penalty)
    assert float(s.gap) <= 1e-14
    again = float(sj.duality_gap(p, s.params))
    assert again <= 1e-14
    if len(p.penalty.terms) == 1:  # of several, the solver knows subgradients that W alone does not tell
        np.testing.assert_allclose(again, float(s.gap), atol=1e-15)
    assert float(s.objective) < objective_at_zero(loss, penalty)
    assert float(s.residual) <= 1e-12


@pytest.mark.parametrize("loss, penalty", PAIRS)
def test_gap_does_not_depend_on_units(loss, penalty):
    """Objective times c: same gap. X in other units: same gap at the W that makes up for it."""
    p, case, make = problem(loss, penalty), PENALTIES[penalty], LOSSES[loss].make
    f, W = p.smooth, np.random.default_rng(2).standard_normal((D, K))
    gap = float(sj.duality_gap(p.replace(penalty=case.full(*case.strengths)), W))
    for c in (1e-6, 1e6):
        again = make(f.X, f.Y, scale=c * f.scale, weights=f.weights, intercept=True)
        scaled = case.full(*(c * s for s in case.strengths))
        np.testing.assert_allclose(float(sj.duality_gap(sj.Problem(again, scaled), W)), gap, rtol=1e-9)
        again = make(f.X * c, f.Y, weights=f.weights, intercept=True)
        scaled = case.full(*(s * c**degree for s, degree in zip(case.strengths, case.degrees, strict=True)))
        np.testing.assert_allclose(float(sj.duality_gap(sj.Problem(again, scaled), W / c)), gap, rtol=1e-9)


def test_gap_of_nothing_is_zero():
    """Y = 0, or no weight at all: P = D = 0 at W = 0, and 0/0 is 0."""
    p = problem("SquaredLoss", "ExclusiveL21")
    f = p.smooth
    W = np.ones((D, K))
    for empty in (
        losses.SquaredLoss(f.X, 0 * f.Y, weights=f.weights, intercept=True),
        losses.SquaredLoss(f.X, f.Y, weights=0 * f.weights, intercept=True),
        losses.SquaredLoss(0 * f.X, 0 * f.Y, weights=f.weights, intercept=True),
    ):
        q = p.replace(smooth=empty)
        assert float(sj.duality_gap(q, 0 * W)) == 0
        assert float(sj.duality_gap(q, W)) > 0
        s = sj.solve(q, W, tol=1e-12)
        assert bool(s.converged)
        assert np.abs(s.params).max() < 1e-6


def test_argument_of_duality_gap():
    p = problem("SquaredLoss", "L21")
    for bad, error, match in (
        (np.ones(D), ValueError, r"W has shape \(8,\).*\(8, 6\)"),
        (np.ones((D, 1)), ValueError, r"W has shape \(8, 1\)"),
        (np.ones((1, D, K)), ValueError, r"W has shape \(1, 8, 6\)"),
        (np.full((D, K), np.nan), ValueError, "W has 48 .*NaN"),
        (np.ones((D, K)) * 1j, TypeError, "W is complex"),
    ):
        with pytest.raises(error, match=match):
            sj.duality_gap(p, bad)
    with pytest.raises(ValueError, match="W has shape"):
        p(np.ones(D))
    # integers, lists and the other float are converted
    W = np.ones((D, K))
    expected = float(sj.duality_gap(p, W))
    for other in (W.astype(int), W.tolist(), W.astype(np.float32)):
        np.testing.assert_allclose(float(sj.duality_gap(p, other)), expected, rtol=1e-14)


@pytest.mark.parametrize("loss", LOSSES)
def test_gap_where_some_rows_are_not_squared(loss):
    """beta = 0 there: the conjugate ends, whether those rows are zero (large alpha) or not."""
    p = problem(loss, "ExclusiveL21")
    alpha, beta = map(np.array, (p.penalty.alpha, p.penalty.beta))
    beta[2:4] = 0
    for factor in (0.1, 1.0, 10.0):
        alpha[2:4] = factor * np.asarray(p.penalty.alpha)[2:4]
        s = sj.solve(p.replace(penalty=penalties.ExclusiveL21(alpha, beta)), tol=1e-9)
        assert bool(s.converged) and 0 <= float(s.gap) <= 1e-9
        assert np.any(np.asarray(s.params)[2:4]) == (factor < 10)


# ------------------------------------------------------------------ unpenalised features

FREE = groups.from_lists([[0, 1], [1, 4]], D)


@optimised
@pytest.mark.parametrize("loss", MAIN_LOSSES)
def test_gap_with_unpenalised_features(loss):
    """Features in no group: a gap that bounds at points far from the minimum too."""
    X, H = data(n=60)
    p = sj.Problem(LOSSES[loss](X, H, intercept=True), penalties.ExclusiveGroupL21(0.05, FREE))
    best, rng = sj.admm(p, tol=1e-12), np.random.default_rng(0)
    assert bool(best.converged)
    for _, gap, excess, scale in conic.near(p, best.params, best.objective, (1e-6, 1e-4, 1e-2, 1.0), rng):
        assert gap * scale >= excess * (1 - 1e-6)


@pytest.mark.parametrize("loss, free", [("SquaredHingeLoss", True), ("HuberHingeLoss", False)])
def test_gap_of_hinge_losses_with_groups(loss, free):
    """A gap where all features are penalised; where some are not, the residual decides."""
    tol = 1e-5 if free else 1e-8
    p = problem(loss, "ExclusiveGroupL21")
    p = p.replace(penalty=penalties.ExclusiveGroupL21(0.05, FREE)) if free else p
    a, b = sj.admm(p, tol=tol), sj.fista(p, tol=tol)
    assert bool(a.converged) and bool(b.converged)
    assert np.isnan(float(a.gap)) == free
    np.testing.assert_allclose(a.objective, b.objective, rtol=10 * tol)


def test_no_certificate_yet_keeps_the_lowest_objective():
    """Separable by the free features: no minimum, the gap stays infinite, the answer is not the start."""
    X = np.random.default_rng(0).standard_normal((6, D))
    p = sj.Problem(losses.LogisticLoss(X, X[:, 6:7] > 0), penalties.ExclusiveGroupL21(0.1, FREE))
    s = sj.fista(p, maxiter=200)
    assert not bool(s.converged)
    assert float(s.objective) < 0.5 * conic.objective(p, np.zeros((D, 1)))


def test_a_huge_point_does_not_replace_the_start():
    """Its gap, relative to its own objective, is 1; that of W = 0 is larger, and its objective is lower."""
    X = np.random.default_rng(0).standard_normal((6, D))
    p = sj.Problem(losses.LogisticLoss(X, X[:, 6:7] > 0), penalties.ExclusiveL21(1e-12, 1e-12))
    start = jnp.zeros((D, 1))
    run_away = Algorithm(
        state=start,
        block=lambda W, n: W - 1e30 * jax.grad(p.smooth)(start) * jnp.asarray(n, W.dtype) ** 2,
        candidate=lambda W: W,
        step=lambda W: jnp.ones(()),
        check_every=10,
    )
    solution, _ = Loop(p, start, run_away, jnp.asarray(1e-6), jnp.int32(50), 0).run()
    assert not bool(solution.converged) and float(sj.duality_gap(p, start)) > 0.5
    np.testing.assert_array_equal(solution.params, start)


@pytest.mark.parametrize("loss", MAIN_LOSSES)
def test_rows_of_strength_zero(loss):
    """Free features: a gap, their gradients vanish, the others obey."""
    f = smooth(loss)
    strength = np.array([0, 0, *(6 * [0.05])])
    # labels by chance: separable ones would have no finite minimiser
    Y = f.Y if loss == "SquaredLoss" else np.random.default_rng(6).integers(0, 2, (N, K))
    q = sj.Problem(LOSSES[loss].make(f.X, Y, weights=f.weights, intercept=True), penalties.L1(strength))
    gradient = jax.jit(jax.grad(q.smooth))
    for name in ENGINES:
        s = SOLVERS[name].function(q, tol=1e-15)
        assert 0 <= float(s.gap) <= 4e-15 and float(s.residual) <= 1e-8
        G, W = np.asarray(gradient(s.params)), np.asarray(s.params)
        on = W != 0
        assert on[:2].all() and 0 < on[2:].sum() < on[2:].size
        np.testing.assert_allclose(G[:2], 0, atol=1e-9)
        penalised = np.broadcast_to(strength[:, None], W.shape)
        np.testing.assert_allclose(G[on], -(penalised * np.sign(W))[on], atol=1e-9)
        assert (np.abs(G[~on]) <= penalised[~on] + 1e-9).all()
    # at W = 0 the certificate does not call the start good
    assert sj.duality_gap(q, np.zeros((D, K))) > 1e-2


# ------------------------------------------------------------------ where no dual is known


def plain_squared(X, Y, W):
    return jnp.sum((X @ W - Y) ** 2) / (2 * X.shape[0])


def test_a_plain_function_with_a_norm_is_judged_by_its_residual():
    X, Y = map(jnp.asarray, data())
    init = np.zeros((D, K))
    plain = sj.Problem(jax.tree_util.Partial(plain_squared, X, Y), penalties.L21(0.3))
    known = sj.solve(sj.Problem(losses.SquaredLoss(X, Y), penalties.L21(0.3)), tol=1e-13)
    at_zero = np.sum(np.asarray(Y) ** 2) / (2 * N)
    for tol in (1e-4, 1e-10):
        s = sj.solve(plain, init, tol=tol)  # solve picks fista
        assert np.isnan(s.gap) and bool(s.converged) and 0 < float(s.residual) <= tol
        excess = (float(s.objective) - float(known.objective)) / at_zero
        assert excess <= tol
    assert np.isnan(sj.duality_gap(plain, init))
    s = sj.fista(plain, init, tol=1e-13, maxiter=5)
    assert int(s.status) == MAX_ITER and float(s.residual) > 1e-13
    # a step too short to move is no convergence
    start = np.random.default_rng(0).standard_normal((D, K))
    s = sj.fista(plain, start, tol=1e-6, stepsize=1e-12, maxiter=50)
    assert int(s.status) == MAX_ITER
    # one too long diverges, and what comes back is the best point, not the last
    s = sj.fista(plain, start, tol=1e-6, stepsize=100.0)
    assert int(s.status) == NON_FINITE
    assert float(s.objective) <= float(plain(jnp.asarray(start))) and np.isfinite(s.params).all()


class Mine(sj.Penalty, leaves=("strength",)):
    """l1 without a dual, a support or degrees: `converged` rests on the residual alone."""

    def value(self, W):
        return self.strength * jnp.sum(jnp.abs(W))

    def prox(self, V, scaling=1.0):
        return sj.prox.l1(V, self.strength, scaling)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e3, 1e5])
@pytest.mark.parametrize("loss", ["SquaredLoss", "LogisticLoss"])
def test_a_large_column_does_not_hide_the_others_from_the_residual(loss, size, dtype):
    """The gradient at 0 is that of the large column, against which all others seem to be solved at once."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 4))
    y = X @ [1.0, -1.0, 0.0, 0.0] + 0.3 * rng.standard_normal(20)
    y = (y > 0) * 1.0 if loss == "LogisticLoss" else y
    make, X = getattr(losses, loss), X * [1, 1, size, 1]
    best = sj.solve(sj.Problem(make(X, y), penalties.L1(0.1)), tol=1e-10)
    assert best.converged
    p = sj.Problem(make(X.astype(dtype), y.astype(dtype)), Mine(dtype(0.1)))
    truth = lambda W: make(X, y)(np.asarray(W, float)) + 0.1 * np.abs(W, dtype=float).sum()
    tol = 1e-6 if dtype == np.float64 else 1e-4
    for solver in (sj.solve, sj.fista):
        s = solver(p, maxiter=2000)
        excess = float(truth(s.params) - best.objective) / float(truth(np.zeros(4)))
        assert np.isnan(s.gap) and (not bool(s.converged) or excess <= tol)
        assert s.converged or solver is sj.fista or dtype == np.float32


def test_a_large_curvature_does_not_round_the_residual_to_zero():
    """W - step * gradient is W in float32 if the step is short: every W would seem to be a fixed point."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 4))
    y = 100 * (X @ [1.0, -1.0, 0.0, 0.0] + 0.3 * rng.standard_normal(20))
    best = sj.solve(sj.Problem(losses.QuantileLoss(X, y, 0.3, 1e-4), penalties.SumTo(100.0)), tol=1e-9)
    X, y = X.astype(np.float32), y.astype(np.float32)
    for smoothing in (1e-4, 1e-5):
        loss = losses.QuantileLoss(X, y, 0.3, smoothing)
        s = sj.solve(sj.Problem(loss, penalties.SumTo(np.float32(100))))
        excess = float(s.objective) / float(best.objective) - 1
        assert best.converged and float(s.residual) > 0 and (not bool(s.converged) or excess <= 1e-4)

    class Loose(losses.LinearModelLoss):
        curvature = 1e10

        def entries(self, H):
            return (H - self.Y) ** 2 / 2

        def derivatives(self, H):
            return H - self.Y, jnp.ones_like(H)

    X, y = X.astype(float), y.astype(float) / 100
    known = sj.solve(sj.Problem(losses.SquaredLoss(X, y), penalties.L1(0.1)), tol=1e-12)
    s = sj.solve(sj.Problem(Loose(X, y), penalties.L1(0.1)), tol=1e-8)
    assert s.converged and 0 < float(s.residual) <= 1e-8
    np.testing.assert_allclose(s.params, known.params, atol=1e-7)


def test_a_plain_function_with_a_squared_penalty_has_a_gap():
    X, Y = map(jnp.asarray, data())
    init = np.zeros((D, K))
    plain = sj.Problem(jax.tree_util.Partial(plain_squared, X, Y), penalties.ExclusiveL21(0.2, 0.02))
    s = sj.solve(plain, init, tol=1e-9)
    assert bool(s.converged) and 0 <= float(s.gap) <= 1e-9
    known = sj.Problem(losses.SquaredLoss(X, Y), plain.penalty)
    np.testing.assert_allclose(sj.duality_gap(plain, init + 1), sj.duality_gap(known, init + 1), rtol=1e-12)
    excess = float(s.objective - sj.solve(known, tol=1e-13).objective) / (
        np.sum(np.asarray(Y) ** 2) / (2 * N)
    )
    assert excess <= float(s.gap) + 1e-14


# ------------------------------------------------------------------ lambda_max

NORMS = [(loss, penalty) for loss, penalty in PAIRS if PENALTIES[penalty].degrees[0] == 1]


@pytest.mark.parametrize("loss, penalty", NORMS)
def test_lambda_max_is_where_the_solution_becomes_zero(loss, penalty):
    p, case = problem(loss, penalty), PENALTIES[penalty]
    with_strength = lambda alpha: p.replace(penalty=case.full(alpha, *case.strengths[1:]))
    top = float(sj.lambda_max(p))
    for name in engines_of(loss) if penalty == "L21" else engines_of(loss)[:1]:
        solver = SOLVERS[name].function
        for alpha in (top, 1.01 * top, 1e6 * top):
            s = solver(with_strength(alpha), tol=1e-14)
            assert int(s.num_iters) == 0 and bool(s.converged)
            assert not np.any(s.params)
        s = solver(with_strength(0.999 * top), tol=1e-12)
        assert np.any(s.params) and bool(s.converged) and int(s.num_iters) > 0

    # whatever strengths are stored
    for alpha in (0.0, 1e-3, 1e3):
        assert float(sj.lambda_max(with_strength(alpha))) == top
    # by hand
    f = p.smooth
    Y, w = np.asarray(f.Y), np.asarray(f.weights)[:, None]
    b = np.broadcast_to(conic.intercept(f, np.zeros((D, K))), Y.shape)
    slope = loss_cases.FORMULAS[loss].slope(b, Y, f)
    G = float(f.scale) * np.asarray(f.X).T @ (w * slope)
    order = {"L1": np.inf, "L1Inf": 1}.get(penalty, 2)
    if penalty == "GroupLasso":
        G = G.reshape(PARTITION.num_groups, -1)  # its groups are pairs of neighbours
    by_hand = np.linalg.norm(G, order, axis=1).max()
    np.testing.assert_allclose(top, by_hand, rtol=1e-13)
    # it scales with the loss
    twice = LOSSES[loss].make(f.X, f.Y, scale=2 * f.scale, weights=f.weights, intercept=True)
    np.testing.assert_allclose(float(sj.lambda_max(p.replace(smooth=twice))), 2 * top, rtol=1e-14)


@pytest.mark.parametrize("penalty", [name for name in PENALTIES if 1 not in PENALTIES[name].degrees])
def test_lambda_max_of_squared_penalties(penalty):
    with pytest.raises(ValueError, match=f"{penalty} has no finite strength .* W = 0"):
        sj.lambda_max(problem("SquaredLoss", penalty))


def test_lambda_max_needs_the_shape():
    plain = jax.tree_util.Partial(lambda W: jnp.sum(W**2))
    with pytest.raises(TypeError, match=r"shape of W is unknown.*plain function"):
        sj.lambda_max(sj.Problem(plain, penalties.L1(0.1)))


def test_lambda_max_with_a_graph():
    p = problem("GraphLaplacian", "ExclusiveGroupLasso").replace(penalty=penalties.L21(1.0))
    at_top = sj.solve(p.replace(penalty=penalties.L21(sj.lambda_max(p))))
    assert int(at_top.num_iters) == 0 and bool(at_top.converged) and not np.any(at_top.params)


def test_lambda_max_with_a_free_feature():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 1)) + 0.5 * rng.standard_normal((50, 3))
    y = X @ np.array([1.0, -1.0, 3.0]) + 0.1 * rng.standard_normal(50)
    free = X[:, 2]
    left = y - free * (free @ y) / (free @ free)
    penalty = penalties.GroupLasso(1.0, groups.from_lists([[0, 1]], num_features=3))
    top = sj.lambda_max(sj.Problem(losses.SquaredLoss(X, y), penalty))
    np.testing.assert_allclose(top, np.linalg.norm(X[:, :2].T @ left) / 50, rtol=1e-10)
    at = lambda y: sj.lambda_max(sj.Problem(losses.SquaredLoss(X, y), penalty))
    change = (at(y + 1e-6 * X[:, 0]) - at(y - 1e-6 * X[:, 0])) / 2e-6
    np.testing.assert_allclose(jax.grad(at)(y) @ X[:, 0], change, rtol=1e-6)


def test_gap_of_a_negative_objective():
    c = jnp.array([3.0, -1.0, 2.0])
    fun = lambda w: 1e6 * (jnp.sum(w * w) / 2 - c @ w) + 1e-3
    problem = sj.Problem(fun, penalties.SquaredL2(1e5))
    s = sj.solve(problem, jnp.zeros(3), tol=1e-9)
    assert s.converged
    w = c / 1.1 + 1e-3
    P = float(problem(w))
    np.testing.assert_allclose(sj.duality_gap(problem, w), 18.15 / abs(P), rtol=1e-3)


def test_the_gap_of_squares_of_rows_has_derivatives_in_both_modes():
    """Reverse mode met a loop in the conjugate, and the infinite derivative of a scale without limit."""
    rng = np.random.default_rng(0)
    X, Y, W = rng.standard_normal((9, 4)), rng.standard_normal((9, 3)), jnp.full((4, 3), 0.3)
    problem = sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.ExclusiveL21(0.1, 0.1))
    gap = lambda W: sj.duality_gap(problem, W)
    gradient = jax.grad(gap)(W)
    np.testing.assert_allclose(gradient, jax.jacfwd(gap)(W), atol=1e-12)
    V = rng.standard_normal(W.shape)
    difference = (gap(W + 1e-6 * V) - gap(W - 1e-6 * V)) / 2e-6
    np.testing.assert_allclose(jnp.sum(gradient * V), difference, rtol=1e-6)
