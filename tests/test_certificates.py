"""Certificates tell the truth: gaps bound the suboptimality, conjugates are suprema, statuses honest."""

import functools
import re

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from registry import pairs as chosen_pairs

import sparsejax as sj
from sparsejax.problem import CONVERGED, MAX_ITER, NON_FINITE, STALLED

P = sj.penalties
N, D, K = 14, 6, 3
LOSSES = {
    "squared": sj.losses.SquaredLoss,
    "logistic": sj.losses.LogisticLoss,
    "squared hinge": sj.losses.SquaredHingeLoss,
    "huber hinge": sj.losses.HuberHingeLoss,
}
MAIN = ("squared", "logistic")  # for all, where what is tested lies outside the loss
PENALTIES = {
    "L1": (P.L1, (0.04,)),
    "L21": (P.L21, (0.06,)),
    "L1Inf": (P.L1Inf, (0.1,)),
    "ExclusiveLasso": (P.ExclusiveLasso, (0.03,)),
    "ExclusiveL21": (P.ExclusiveL21, (0.04, 0.02)),
}
PAIRS = chosen_pairs(LOSSES, PENALTIES)
pairs = pytest.mark.parametrize("loss, penalty", PAIRS)


def data(loss, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, D)) + 0.5 * rng.standard_normal((N, 1))
    H = X @ rng.standard_normal((D, K)) + 0.5 * rng.standard_normal((N, K)) + 1
    labels = (np.median(H, axis=0) < H).astype(float)
    return X, H if loss == "squared" else labels if loss == "logistic" else 2 * labels - 1


@functools.cache
def problem(loss, penalty):
    """With weights (one is 0) and an intercept, strengths by row: one structure for the whole file."""
    X, Y = data(loss)
    rng = np.random.default_rng(1)
    weights = rng.uniform(0.2, 2, N)
    weights[3] = 0
    make, strengths = PENALTIES[penalty]
    smooth = LOSSES[loss](X, Y, weights=weights, intercept=True)
    return sj.Problem(smooth, make(*(s * rng.uniform(0.5, 2, D) for s in strengths)))


@functools.cache
def solution(loss, penalty):
    """To the floor of float64."""
    return sj.solve(problem(loss, penalty), tol=0.0)


# ------------------------------------------------------------------ the gap


@pairs
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(seed=st.integers(0, 2**16), size=st.floats(-9, 3), zeros=st.floats(0, 1), near=st.booleans())
def test_gap_bounds_the_suboptimality(loss, penalty, seed, size, zeros, near):
    """At any W, far or near, sparse or not: gap >= (F(W) - F*) / max(|F(W)|, F(0))."""
    p, best = problem(loss, penalty), solution(loss, penalty)
    rng = np.random.default_rng(seed)
    W = 10**size * rng.standard_normal((D, K)) * (rng.random((D, K)) >= zeros)
    W = W + best.params if near else W
    value, at_zero = float(p(W)), float(p(np.zeros((D, K))))
    excess = (value - float(best.objective)) / max(abs(value), at_zero)
    gap = float(sj.duality_gap(p, W))
    assert np.isfinite(gap) and gap >= 0
    assert gap >= excess - 1e-12
    if near and size < -5:  # and it is not a trivial bound
        assert gap <= 1e3 * 10**size


@pairs
def test_gap_at_the_solution(loss, penalty):
    p, s = problem(loss, penalty), solution(loss, penalty)
    assert float(s.gap) <= 1e-14
    np.testing.assert_allclose(float(sj.duality_gap(p, s.params)), float(s.gap), atol=1e-15)
    assert float(s.objective) < float(p(jnp.zeros((D, K))))
    assert float(s.residual) <= 1e-12


@pairs
def test_gap_does_not_depend_on_units(loss, penalty):
    """Objective times c: same gap. X in other units: same gap at the W that makes up for it."""
    p = problem(loss, penalty)
    make, strengths = PENALTIES[penalty]
    W = np.random.default_rng(2).standard_normal((D, K))
    gap = float(sj.duality_gap(p.replace(penalty=make(*(np.full(D, s) for s in strengths))), W))
    for c in (1e-6, 1e6):
        f = p.smooth
        again = type(f)(f.X, f.Y, scale=c * f.scale, weights=f.weights, intercept=True)
        scaled = make(*(np.full(D, c * s) for s in strengths))
        np.testing.assert_allclose(float(sj.duality_gap(sj.Problem(again, scaled), W)), gap, rtol=1e-9)
        again = type(f)(f.X * c, f.Y, weights=f.weights, intercept=True)
        powers = {"ExclusiveLasso": [c**2], "ExclusiveL21": [c, c**2]}.get(penalty, [c])
        scaled = make(*(np.full(D, s * power) for s, power in zip(strengths, powers, strict=True)))
        np.testing.assert_allclose(float(sj.duality_gap(sj.Problem(again, scaled), W / c)), gap, rtol=1e-9)


def test_gap_of_nothing_is_zero():
    """Y = 0, or no weight at all: P = D = 0 at W = 0, and 0/0 is 0."""
    p = problem("squared", "ExclusiveL21")
    f = p.smooth
    W = np.ones((D, K))
    for empty in (
        sj.losses.SquaredLoss(f.X, 0 * f.Y, weights=f.weights, intercept=True),
        sj.losses.SquaredLoss(f.X, f.Y, weights=0 * f.weights, intercept=True),
        sj.losses.SquaredLoss(0 * f.X, 0 * f.Y, weights=f.weights, intercept=True),
    ):
        q = p.replace(smooth=empty)
        assert float(sj.duality_gap(q, 0 * W)) == 0
        assert float(sj.duality_gap(q, W)) > 0
        s = sj.solve(q, W, tol=1e-12)
        assert bool(s.converged)
        assert np.abs(s.params).max() < 1e-6


def test_argument_of_duality_gap():
    p = problem("squared", "L21")
    for bad, error, match in (
        (np.ones(D), ValueError, r"W has shape \(6,\).*\(6, 3\)"),
        (np.ones((D, 1)), ValueError, r"W has shape \(6, 1\)"),
        (np.ones((1, D, K)), ValueError, r"W has shape \(1, 6, 3\)"),
        (np.full((D, K), np.nan), ValueError, "W has 18 .*NaN"),
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


# ------------------------------------------------------------------ conjugates and the dual ball


def supremum(penalty, Z):
    """sup_W <Z, W> - g(W) by the conic solver."""
    W, t, r = cp.Variable((D, K)), cp.Variable(D), cp.Variable(D)
    cost = cp.sum_squares(cp.multiply(np.sqrt(np.broadcast_to(penalty.beta, (D,))), t))
    if hasattr(penalty, "alpha"):
        cost += np.broadcast_to(penalty.alpha, (D,)) @ r
    constraints = [cp.norm(W, 1, axis=1) <= t, cp.norm(W, 2, axis=1) <= r]
    supremum = cp.Problem(cp.Maximize(cp.sum(cp.multiply(Z, W)) - cost), constraints)
    return supremum.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_conjugate_of_squared_penalties_is_the_supremum(seed):
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((D, K)) * 10 ** rng.uniform(-1, 1, (D, 1))
    Z[0, 0] = Z[0, 1]  # a tie
    Z[1] = 0
    alpha, beta = rng.uniform(0, 2, D), rng.uniform(0.1, 2, D)
    alpha[2] = 0
    alpha[3] = 1.1 * np.linalg.norm(Z[3])  # inside the ball: contributes 0
    for penalty in (P.ExclusiveLasso(beta), P.ExclusiveLasso(0.3), P.ExclusiveL21(alpha, beta)):
        np.testing.assert_allclose(float(penalty.conjugate(Z)), supremum(penalty, Z), rtol=1e-7)
        assert np.isinf(penalty.dual_scale(Z))
    # by hand, where there is one class: (|z| - alpha)_+^2 / (4 beta)
    z = Z[:, 0]
    by_hand = np.sum(np.maximum(np.abs(z) - alpha, 0) ** 2 / (4 * beta))
    np.testing.assert_allclose(float(P.ExclusiveL21(alpha, beta).conjugate(z)), by_hand, rtol=1e-13)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(seed=st.integers(0, 2**16), size=st.floats(-3, 3))
def test_fenchel_young(seed, size):
    """<Z, W> <= g(W) + g*(Z) for every pair, with equality at Z in the subdifferential at W."""
    rng = np.random.default_rng(seed)
    Z, W = 10**size * rng.standard_normal((D, K)), rng.standard_normal((D, K))
    alpha, beta = rng.uniform(0.1, 2, (2, D))
    norms = P.L1(alpha), P.L21(alpha), P.L1Inf(alpha)
    for penalty in (*norms, P.ExclusiveLasso(beta), P.ExclusiveL21(alpha, beta)):
        feasible = Z * min(1.0, float(penalty.dual_scale(Z)))
        scale = np.abs(feasible * W).sum() + float(penalty.value(W))
        slack = float(penalty.value(W) + penalty.conjugate(feasible)) - np.sum(feasible * W)
        assert slack >= -1e-13 * scale
        T = np.asarray(penalty.prox(W))  # W - T is a subgradient at T
        size_ = np.abs(W).sum() ** 2
        slack = float(penalty.value(T) + penalty.conjugate(W - T)) - np.sum((W - T) * T)
        assert abs(slack) <= 1e-12 * size_
        assert float(penalty.dual_scale(W - T)) >= 1 - 1e-12


def test_dual_scale_is_where_the_conjugate_ends():
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((D, K))
    strength = rng.uniform(0.1, 2, D)
    largest = np.abs(Z).max(axis=1)
    length = np.linalg.norm(Z, axis=1)
    total = np.abs(Z).sum(axis=1)
    for penalty, expected in (
        (P.L1(0.7), 0.7 / largest.max()),
        (P.L1(strength), (strength / largest).min()),
        (P.L21(0.7), 0.7 / length.max()),
        (P.L21(strength), (strength / length).min()),
        (P.L1Inf(0.7), 0.7 / total.max()),
        (P.L1Inf(strength), (strength / total).min()),
        (P.ExclusiveL21(strength, 0.0), (strength / length).min()),
    ):
        s = float(penalty.dual_scale(Z))
        np.testing.assert_allclose(s, expected, rtol=1e-14)
        # from here on some ray climbs for ever, s <Z, tW> > g(tW): a row of Z, its largest entry or its signs
        ratios = []
        for i in range(D):
            for w in (Z[i], np.eye(K)[np.abs(Z[i]).argmax()] * np.sign(Z[i]), np.sign(Z[i])):
                W = np.zeros((D, K))
                W[i] = w
                ratios.append(float(penalty.value(W)) / np.sum(Z * W))
        np.testing.assert_allclose(min(ratios), s, rtol=1e-12)
    # squared in some rows only: the others limit
    beta = np.array([0.0, 1, 1, 0, 1, 1])
    off = [0, 3]
    mixed = P.ExclusiveL21(strength, beta)
    np.testing.assert_allclose(mixed.dual_scale(Z), (strength / length)[off].min(), rtol=1e-14)
    assert float(P.ExclusiveLasso(beta).dual_scale(Z)) == 0
    assert float(P.L1(np.array([0.0, 1, 1, 1, 1, 1])).dual_scale(Z)) == 0
    for penalty in (P.L1(0.1), P.L21(0.0), P.ExclusiveLasso(0.0), P.ExclusiveL21(0.0, 0.0)):
        assert np.isinf(penalty.dual_scale(0 * Z))


def conjugate_of_loss(f, U):
    """sup_H <U, H> - l(H) by the conic solver, over the entries that have a weight."""
    on = np.asarray(f.weights) > 0
    w, y, u = (np.asarray(values)[on] for values in (f.weights, f.Y, U))
    r, q, h = cp.Variable(on.sum(), nonneg=True), cp.Variable(on.sum(), nonneg=True), cp.Variable(on.sum())
    if isinstance(f, sj.losses.HuberHingeLoss):  # the slack in two parts, of which one is squared
        slack, cost = q + r, w @ r + cp.sum_squares(cp.multiply(np.sqrt(w / (2 * float(f.delta))), q))
    else:
        slack, cost = r, cp.sum_squares(cp.multiply(np.sqrt(w), r))
    gain = u @ h - float(f.scale) * cost
    supremum = cp.Problem(cp.Maximize(gain), [slack >= 1 - cp.multiply(y, h)])
    return supremum.solve(solver=cp.CLARABEL, tol_gap_abs=1e-8, tol_gap_rel=1e-8, tol_feas=1e-8)


HINGES = {
    "squared": sj.losses.SquaredHingeLoss,
    "rounded": sj.losses.HuberHingeLoss,
    "wide": functools.partial(sj.losses.HuberHingeLoss, delta=4.0),  # no entry on its straight part
}


@pytest.mark.parametrize("hinge", HINGES)
def test_dual_scaling_of_hinge_losses(hinge):
    """The change of the conjugate is that of the supremum; no other s is better, or even finite."""
    X, Y = data("squared hinge")
    rng = np.random.default_rng(3)
    weights = rng.uniform(0.2, 2, Y.shape)
    weights[:2] = 0
    f = HINGES[hinge](X, Y, weights=weights)
    for size in (0.01, 0.5):
        W = jnp.asarray(size * rng.standard_normal((D, K)))
        U = np.asarray(jax.grad(f._value)(f._predict(W)))
        at_one = conjugate_of_loss(f, U)
        best, least = map(float, f.dual_scaling(W, jnp.asarray(np.inf)))
        for limit in (0.0, 0.3, 1.0, np.inf):
            s, change = map(float, f.dual_scaling(W, jnp.asarray(limit)))
            assert s == min(limit, best)
            there = conjugate_of_loss(f, s * U) if s else 0.0  # less the least loss
            np.testing.assert_allclose(change, there - at_one, atol=1e-7)
        for other in (0.9 * best, 1.1 * best):
            assert conjugate_of_loss(f, other * U) > at_one + least + 1e-4
        if hinge == "rounded":
            assert best == 1 and conjugate_of_loss(f, 1.01 * U) == np.inf


# ------------------------------------------------------------------ lambda_max


def with_strength(penalty, alpha):
    """The penalty whose (first) strength is alpha in every row."""
    make, strengths = PENALTIES[penalty]
    return make(*(np.full(D, s) for s in (alpha, *strengths[1:])))


@pytest.mark.parametrize("loss, penalty", [pair for pair in PAIRS if pair[1] != "ExclusiveLasso"])
def test_lambda_max_is_where_the_solution_becomes_zero(loss, penalty):
    p = problem(loss, penalty)
    top = float(sj.lambda_max(p))
    for solver in (sj.solve, sj.fista) if penalty == "L21" else (sj.solve,):
        for alpha in (top, 1.01 * top, 1e6 * top):
            s = solver(p.replace(penalty=with_strength(penalty, alpha)), tol=1e-14)
            assert int(s.num_iters) == 0 and bool(s.converged)
            assert not np.any(s.params)
        s = solver(p.replace(penalty=with_strength(penalty, 0.999 * top)), tol=1e-12)
        assert np.any(s.params) and bool(s.converged) and int(s.num_iters) > 0

    # whatever strengths are stored
    for alpha in (0.0, 1e-3, 1e3):
        assert float(sj.lambda_max(p.replace(penalty=with_strength(penalty, alpha)))) == top
    # by hand
    f = p.smooth
    b = np.asarray(f.intercept(jnp.zeros((D, K))))
    Y, w = np.asarray(f.Y), np.asarray(f.weights)[:, None]
    residual = {
        "squared": 2 * (b - Y),
        "logistic": 1 / (1 + np.exp(-b)) - Y,
        "squared hinge": -2 * Y * np.maximum(1 - Y * b, 0),
        "huber hinge": -Y * np.clip((1 - Y * b) / 0.5, 0, 1),
    }[loss]
    G = float(f.scale) * np.asarray(f.X).T @ (w * residual)
    order = {"L1": np.inf, "L1Inf": 1}.get(penalty, 2)
    by_hand = np.linalg.norm(G, order, axis=1).max()
    np.testing.assert_allclose(top, by_hand, rtol=1e-13)
    # it scales with the loss
    twice = type(f)(f.X, f.Y, scale=2 * f.scale, weights=f.weights, intercept=True)
    np.testing.assert_allclose(float(sj.lambda_max(p.replace(smooth=twice))), 2 * top, rtol=1e-14)


def test_lambda_max_where_there_is_none():
    with pytest.raises(ValueError, match=r"ExclusiveLasso has no finite strength .* W = 0"):
        sj.lambda_max(problem("squared", "ExclusiveLasso"))
    plain = jax.tree_util.Partial(lambda W: jnp.sum(W**2))
    with pytest.raises(TypeError, match=r"shape of W is unknown.*plain function"):
        sj.lambda_max(sj.Problem(plain, P.L1(0.1)))


# ------------------------------------------------------------------ where no dual is known


def plain_squared(X, Y, W):
    return jnp.sum((X @ W - Y) ** 2) / (2 * X.shape[0])


def test_a_plain_function_with_a_norm_is_judged_by_its_residual():
    X, Y = map(jnp.asarray, data("squared"))
    init = jnp.zeros((D, K))
    plain = sj.Problem(jax.tree_util.Partial(plain_squared, X, Y), P.L21(0.06))
    known = sj.solve(sj.Problem(sj.losses.SquaredLoss(X, Y), P.L21(0.06)), tol=1e-13)
    for tol in (1e-4, 1e-10):
        s = sj.solve(plain, init, tol=tol)  # solve picks fista
        assert np.isnan(s.gap) and bool(s.converged) and 0 < float(s.residual) <= tol
        excess = (float(s.objective) - float(known.objective)) / float(plain(init))
        assert excess <= tol
    assert np.isnan(sj.duality_gap(plain, init))
    s = sj.fista(plain, init, tol=1e-13, maxiter=5)
    assert int(s.status) == MAX_ITER and float(s.residual) > 1e-13
    # a step too short to move is no convergence
    start = jnp.asarray(np.random.default_rng(0).standard_normal((D, K)))
    s = sj.fista(plain, start, tol=1e-6, stepsize=1e-12, maxiter=50)
    assert int(s.status) == MAX_ITER
    # one too long diverges, and what comes back is the best point, not the last
    s = sj.fista(plain, start, tol=1e-6, stepsize=100.0)
    assert int(s.status) == NON_FINITE
    assert float(s.objective) <= float(plain(start)) and np.isfinite(s.params).all()


def test_a_plain_function_with_a_squared_penalty_has_a_gap():
    X, Y = map(jnp.asarray, data("squared"))
    init = jnp.zeros((D, K))
    plain = sj.Problem(jax.tree_util.Partial(plain_squared, X, Y), P.ExclusiveL21(0.04, 0.02))
    s = sj.solve(plain, init, tol=1e-9)
    assert bool(s.converged) and 0 <= float(s.gap) <= 1e-9
    known = sj.Problem(sj.losses.SquaredLoss(X, Y), plain.penalty)
    np.testing.assert_allclose(sj.duality_gap(plain, init + 1), sj.duality_gap(known, init + 1), rtol=1e-12)
    excess = float(s.objective - sj.solve(known, tol=1e-13).objective) / float(plain(init))
    assert excess <= float(s.gap) + 1e-14


@pytest.mark.parametrize("loss", MAIN)
def test_unpenalised_rows(loss):
    """Strength 0 in some rows: no dual, the residual decides, their gradients vanish, the others obey."""
    f = problem(loss, "L1").smooth
    strength = np.array([0, 0, 0.05, 0.05, 0.05, 0.05])
    # labels by chance: separable ones would have no finite minimiser
    Y = f.Y if loss == "squared" else np.random.default_rng(5).integers(0, 2, (N, K))
    smooth = LOSSES[loss](f.X, Y, weights=f.weights, intercept=True)
    q = sj.Problem(smooth, P.L1(strength))
    for solver in (sj.solve, sj.fista):
        s = solver(q, tol=1e-11)
        assert bool(s.converged) and np.isnan(s.gap) and float(s.residual) <= 1e-11
        G, W = np.asarray(jax.grad(q.smooth)(s.params)), np.asarray(s.params)
        on = W != 0
        assert on[:2].all() and 0 < on[2:].sum() < on[2:].size
        np.testing.assert_allclose(G[:2], 0, atol=1e-9)
        penalised = np.broadcast_to(strength[:, None], W.shape)
        np.testing.assert_allclose(G[on], -(penalised * np.sign(W))[on], atol=1e-9)
        assert (np.abs(G[~on]) <= penalised[~on] + 1e-9).all()
    # at W = 0 the certificate does not call the start good
    assert np.isnan(sj.duality_gap(q, np.zeros((D, K))))


# ------------------------------------------------------------------ how a solve ends


@pairs
def test_status(loss, penalty):
    """Converged exactly where the gap meets tol; stalled at the floor; cut off by maxiter."""
    p = problem(loss, penalty)
    start = np.random.default_rng(0).standard_normal((D, K))
    s = solution(loss, penalty)  # tol = 0
    assert int(s.status) == (CONVERGED if float(s.gap) == 0 else STALLED)
    assert bool(s.converged) == (int(s.status) == CONVERGED)

    s = sj.solve(p, start, tol=1e-13, maxiter=3)
    assert int(s.status) == MAX_ITER and int(s.num_iters) == 3 and float(s.gap) > 1e-13
    assert "raise maxiter" in s.message
    s = sj.solve(p, start, tol=1e-13, maxiter=0)
    assert int(s.status) == MAX_ITER and int(s.num_iters) == 0
    np.testing.assert_array_equal(s.params, start)
    np.testing.assert_allclose(float(s.gap), float(sj.duality_gap(p, start)), rtol=1e-12)
    s = sj.solve(p, start, tol=1e9, maxiter=0)
    assert bool(s.converged) and int(s.num_iters) == 0


def test_throw():
    p = problem("squared", "L21")
    with pytest.raises(sj.ConvergenceError) as error:
        sj.solve(p, tol=1e-13, maxiter=2, throw=True)
    s = sj.solve(p, tol=1e-13, maxiter=2)
    text = str(error.value)
    assert re.search(r"gap (\S+) after 2 iterations, tol is (\S+):", text).groups() == (
        f"{float(s.gap):.3g}", "1e-13",
    )  # fmt: skip
    assert "raise maxiter" in text
    with pytest.raises(sj.ConvergenceError, match=r"tol is 1e-06"):
        sj.solve(p, maxiter=0, throw=True)
    unpenalised = p.replace(penalty=P.L21(np.zeros(D)))
    with pytest.raises(sj.ConvergenceError, match=r"residual \S+ after 1 iterations"):
        sj.solve(unpenalised, tol=1e-13, maxiter=1, throw=True)
    assert bool(sj.solve(p, throw=True).converged)
    with pytest.raises(TypeError, match="throw=True cannot raise inside jit"):
        jax.jit(lambda p: sj.solve(p, throw=True))(p)


# ------------------------------------------------------------------ NaN, and lanes of a batch

MAKE = {
    "admm": (sj.admm, "squared", P.ExclusiveL21, (0.04, 0.02)),
    "fista": (sj.fista, "squared", P.L1, (0.04,)),
    "admm logistic": (sj.admm, "logistic", P.L21, (0.06,)),
}


@pytest.mark.parametrize("name", MAKE)
def test_nan_is_reported_and_stays_in_its_lane(name):
    """Values are not checked under jit: the status tells; other lanes are as if solved alone."""
    solver, loss, penalty, strengths = MAKE[name]
    batch = [data(loss, seed) for seed in range(4)]
    X, Y = (np.stack(arrays) for arrays in zip(*batch, strict=True))
    X[1, 2, 3] = np.nan
    Y[3, 0, 0] = np.inf

    def solve(X, Y):
        smooth = LOSSES[loss](X, Y, intercept=True)
        return solver(sj.Problem(smooth, penalty(*strengths)), tol=1e-9)

    lanes = jax.jit(jax.vmap(solve))(X, Y)
    assert np.asarray(lanes.status).tolist() == [CONVERGED, NON_FINITE, CONVERGED, NON_FINITE]
    assert np.asarray(lanes.converged).tolist() == [True, False, True, False]
    assert [m.startswith("a NaN") for m in lanes.message] == [False, True, False, True]
    alone = jax.jit(solve)
    for i in range(4):
        s = alone(X[i], Y[i])
        assert int(s.status) == int(lanes.status[i])
        assert int(s.num_iters) == int(lanes.num_iters[i])
        if bool(s.converged):
            np.testing.assert_allclose(lanes.params[i], s.params, rtol=1e-7, atol=1e-9)
            np.testing.assert_allclose(lanes.objective[i], s.objective, rtol=1e-12)
        else:
            assert int(s.num_iters) == 0 and not np.any(s.params)  # the start comes back
            assert "NaN or infinity" in s.message


def test_nan_in_start_or_strength_under_jit():
    p = problem("squared", "L21")
    solve = jax.jit(lambda init, alpha: sj.solve(p.replace(penalty=P.L21(alpha)), init))
    good, alpha = np.zeros((D, K)), np.full(D, 0.05)
    assert bool(solve(good, alpha).converged)
    assert int(solve(good + np.nan, alpha).status) == NON_FINITE
    assert int(solve(good, alpha * np.nan).status) == NON_FINITE
    assert int(solve(good + 1e200, alpha).status) == NON_FINITE  # its objective overflows
