"""Penalties: values and proxes are those of the documented formulas, conjugates are suprema."""

import conic
import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import penalty_cases
import pytest
from cases import K
from hypothesis import given
from hypothesis import strategies as st
from penalty_cases import PENALTIES, D
from properties import assert_firm, assert_optimal, drawn, properties

import sparsejax as sj
from sparsejax import penalties

every = pytest.mark.parametrize("name", PENALTIES)


def spread(name, factor=1.0):
    """The penalty, with another strength for every row or group."""
    return PENALTIES[name].make(*PENALTIES[name].spread(factor))


@every
def test_value_is_the_documented_formula(name, rng):
    W = rng.standard_normal((D, K)) * (rng.random((D, K)) < 0.7)
    W[1] = 0
    case = PENALTIES[name]
    for penalty in (spread(name), case.make(*case.strengths), spread(name, 0.0)):
        for point in (W, 0 * W):
            expected = conic.penalty_value(penalty, point)
            np.testing.assert_allclose(penalty.value(point), expected, rtol=1e-14)


@every
def test_prox_is_the_minimiser(name, rng):
    """Of the documented formula, by the conic solver: no lower objective, and as near as that allows."""
    V = rng.standard_normal((D, K)) * 10 ** rng.uniform(-0.5, 0.5, (D, 1))
    V[2, 1] = V[2, 0]  # a tie
    penalty, scaling = spread(name, 3.0), 0.7
    problem = sj.Problem(sj.losses.SquaredLoss(np.eye(D), V, scale=0.5 / scaling), penalty)
    ours, theirs = np.asarray(jax.jit(penalty.prox)(V, scaling)), conic.minimise(problem)
    objective = conic.objective(problem, ours)
    assert objective <= theirs.objective * (1 + 1e-13) <= objective * (1 + 1e-9)
    distance = np.sum((ours - theirs.params) ** 2) / (2 * scaling)  # strong convexity
    assert distance <= theirs.objective - objective + 1e-13 * objective
    assert (ours == 0).any()


@every
def test_nan_is_not_hidden(name, rng):
    """Inside jit, where nothing is raised: neither by the value nor by the prox."""
    W = rng.standard_normal((D, K))
    W[1, 0] = np.nan
    assert np.isnan(jax.jit(spread(name).value)(W))
    assert np.isnan(jax.jit(spread(name).prox)(W)[1, 0])


def test_half_precision(rng):
    """A prox keeps the dtype, and differs by rounding from the one in float64."""
    V = (3 * rng.standard_normal(D)).astype(np.float16)
    ours = jax.jit(penalties.L1(0.5).prox)(V)
    assert ours.dtype == np.float16
    np.testing.assert_allclose(ours, np.sign(V) * np.maximum(np.abs(V.astype(float)) - 0.5, 0), atol=8e-3)


def test_a_step_below_0_and_no_features():
    for penalty in (penalties.L1(1.0), penalties.NonNegative(), penalties.Box(-1.0, 1.0)):
        with pytest.raises(ValueError, match="scaling must be >= 0"):
            penalty.prox(np.ones(D), -1.0)
    none = np.zeros((0, K))
    assert penalties.TotalVariation(1.0).prox(none).shape == none.shape
    for penalty in (penalties.TotalVariation(1.0), penalties.L21(1.0)):
        assert (penalty + penalties.Box(-1.0, 1.0)).prox(none).shape == none.shape


# ------------------------------------------------------------------ conjugates and the dual ball


@jax.jit
def conjugates(penalty, Z, W):
    """At Z, scaled into the dual ball, and at the subgradient W - T that T = prox(W) leaves."""
    feasible = Z * jnp.minimum(1.0, penalty.dual_scale(Z))
    T = penalty.prox(W)
    at_T = penalty.value(T), penalty.conjugate(W - T, T), penalty.dual_scale(W - T)
    return feasible, penalty.value(W), penalty.conjugate(feasible), T, *at_T


@properties
@every
@drawn(30)
@given(
    seed=st.integers(0, 2**16),
    size=st.floats(-3, 3) | st.sampled_from([-320, -30, 30]),
    ties=st.booleans(),
    power=st.integers(-40, 40) | st.sampled_from([-900, -100, 100, 900]),
)
def test_what_a_penalty_is(name, seed, size, ties, power):
    """Fenchel-Young for every pair, with equality at Z in the subdifferential at W; its prox is one."""
    rng = np.random.default_rng(seed)
    Z, W, V = 10**size * rng.standard_normal((D, K)), *rng.standard_normal((2, D, K))
    if ties:
        W, V = np.round(W), np.where(rng.random((D, K)) < 0.5, 0, W)
        W[1], W[2] = W[0], 0
    case = PENALTIES[name]
    strengths = rng.uniform(0.1, 2, (len(case.strengths), case.length))
    penalty = case.make(*strengths)
    feasible, value, conjugate, T, at_T, there, dual_scale = map(np.asarray, conjugates(penalty, Z, W))
    assert value + conjugate - np.sum(feasible * W) >= -1e-13 * (np.abs(feasible * W).sum() + value)
    slack, tiny = at_T + there - np.sum((W - T) * T), 1e-12 * np.abs(W).sum() ** 2
    assert slack >= -tiny
    exact = len(penalty.terms) == 1  # of several, the prox is iterative and the conjugate a bound
    if exact:
        assert slack <= tiny
    assert dual_scale >= 1 - 1e-12
    near = 1e-13 if exact else 1e-8
    other = np.asarray(conjugates(penalty, Z, V)[3])
    assert_firm(W, V, T, other, near)
    few = np.where(rng.random((D, K)) < 0.5, T, 0)
    g = lambda U: conic.penalty_value(penalty, U)
    assert_optimal(W, T, [V, other, 0 * W, few, T + 1e-3 * V], g, 1, near)
    # in other units the same
    unit = 2.0**power
    scaled = [s * unit ** (2 - degree) for s, degree in zip(strengths, case.degrees, strict=True)]
    again = np.asarray(conjugates(case.make(*scaled), Z, unit * W)[3]) / unit
    np.testing.assert_allclose(again, T, rtol=0, atol=near * np.abs(W).max())


@every
def test_prox_in_any_units(name, rng):
    """In float32 squares of 1e19 overflow and those of 1e-23 are 0: the same bits all the same."""
    case, V = PENALTIES[name], rng.standard_normal((D, K)).astype(np.float32)
    prox = jax.jit(lambda penalty, V: penalty.prox(V))
    points = []
    for unit in np.float32(2.0) ** np.array([0, -90, 90]):
        strengths = (
            (s * unit ** (2 - p)).astype(np.float32) for s, p in zip(case.spread(), case.degrees, strict=True)
        )
        points.append(np.asarray(prox(case.make(*strengths), unit * V)) / unit)
    assert np.abs(points[0]).max() > 0.1
    np.testing.assert_array_equal(points[1], points[0])
    np.testing.assert_array_equal(points[2], points[0])


def supremum(penalty, Z):
    """sup_W <Z, W> - g(W) by the conic solver."""
    W = cp.Variable(Z.shape)
    value, constraints = penalty_cases.formula(penalty).conic(penalty, W)
    return conic.solve(cp.Maximize(cp.sum(cp.multiply(Z, W)) - value), constraints)


@pytest.mark.parametrize("seed", range(3))
def test_conjugate_of_squared_penalties_is_the_supremum(seed):
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((D, K)) * 10 ** rng.uniform(-1, 1, (D, 1))
    Z[0, 0] = Z[0, 1]  # a tie
    Z[1] = 0
    alpha, beta = rng.uniform(0, 2, D), rng.uniform(0.1, 2, D)
    alpha[2] = 0
    alpha[3] = 1.1 * np.linalg.norm(Z[3])  # inside the ball: contributes 0
    P = penalties
    for penalty in (P.ExclusiveLasso(beta), P.ExclusiveLasso(0.3), P.ExclusiveL21(alpha, beta)):
        np.testing.assert_allclose(float(penalty.conjugate(Z)), supremum(penalty, Z), rtol=1e-7)
        assert np.isinf(penalty.dual_scale(Z))
    for name in ("ExclusiveGroupL21", "ExclusiveGroupLasso"):  # a bound, without a closed form
        penalty = spread(name)
        assert float(penalty.conjugate(Z)) >= supremum(penalty, Z) * (1 - 1e-7)
        assert np.isinf(penalty.dual_scale(Z))
    # by hand, where there is one class: (|z| - alpha)_+^2 / (4 beta)
    z = Z[:, 0]
    by_hand = np.sum(np.maximum(np.abs(z) - alpha, 0) ** 2 / (4 * beta))
    np.testing.assert_allclose(float(P.ExclusiveL21(alpha, beta).conjugate(z)), by_hand, rtol=1e-13)


def test_dual_scale_is_where_the_conjugate_ends():
    P = penalties
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
                ratios.append(conic.penalty_value(penalty, W) / np.sum(Z * W))
        np.testing.assert_allclose(min(ratios), s, rtol=1e-12)
    # squared in some rows only: the others limit
    beta = np.array([0.0, 1, 1, 0, 1, 1, 1, 1])
    off = [0, 3]
    mixed = P.ExclusiveL21(strength, beta)
    np.testing.assert_allclose(mixed.dual_scale(Z), (strength / length)[off].min(), rtol=1e-14)
    assert float(P.ExclusiveLasso(beta).dual_scale(Z)) == 0
    assert float(P.L1(np.array([0.0, *(7 * [1.0])])).dual_scale(Z)) == 0
    for penalty in (P.L1(0.1), P.L21(0.0), P.ExclusiveLasso(0.0), P.ExclusiveL21(0.0, 0.0)):
        assert np.isinf(penalty.dual_scale(0 * Z))


# ------------------------------------------------------------------ limits that must coincide


def test_exclusive_l21_has_its_parts_as_limits():
    """beta = 0 is L21, alpha = 0 the exclusive lasso."""
    V, Z = np.random.default_rng(0).standard_normal((2, D, K))
    P = penalties
    for both, part in (
        (P.ExclusiveL21(0.3, 0.0), P.L21(0.3)),
        (P.ExclusiveL21(0.0, 0.3), P.ExclusiveLasso(0.3)),
    ):
        np.testing.assert_allclose(both.value(V), part.value(V), rtol=1e-15)
        np.testing.assert_allclose(both.prox(V, 0.7), part.prox(V, 0.7), rtol=1e-14)
        np.testing.assert_allclose(both.dual_scale(Z), part.dual_scale(Z), rtol=1e-15)
        np.testing.assert_allclose(both.conjugate(0.01 * Z), part.conjugate(0.01 * Z), atol=1e-15)


def test_group_lasso_without_groups():
    """As no pair of features may be correlated: all are unpenalised."""
    X = np.random.default_rng(0).standard_normal((30, 6))
    none = sj.groups.from_correlation(X, 0.95)
    p = sj.Problem(sj.losses.SquaredLoss(X, X[:, 0] - X[:, 1]), sj.penalties.GroupLasso(0.1, none))
    assert none.num_groups == 0 and float(sj.lambda_max(p)) == 0
    for solve in (sj.solve, sj.fista, jax.jit(sj.solve)):
        solution = solve(p, tol=1e-9)
        assert solution.converged
        np.testing.assert_allclose(solution.params, [1, -1, 0, 0, 0, 0], atol=1e-4)


@pytest.mark.parametrize(
    "kind", [penalties.L1, penalties.L21, penalties.L1Inf, lambda a: penalties.ExclusiveL21(a, 0.1)]
)
def test_row_slope_without_strength_and_gradient(kind):
    """A zero row without strength whose gradient is 0 stays zero: the slope is 0, not infinite."""
    slopes = kind(jnp.array([0.0, 0.0, 1.0])).row_slopes(jnp.array([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]]))
    np.testing.assert_array_equal(slopes, [0, np.inf, 1])
