"""Counts, wild residuals, quantiles, and targets that are not observed."""

import functools

import conic
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import K, data, problem, smooth, weights
from loss_cases import counts
from penalty_cases import D
from scipy.optimize import linprog

import sparsejax as sj
from sparsejax import groups, losses, penalties
from sparsejax.losses import HuberLoss, PoissonLoss, QuantileLoss, SquaredLoss, observed

X, H = data()
FREE = groups.from_lists([[0, 1], [1, 4]], D)
ROBUST = ("HuberLoss", "QuantileLoss")


@jax.jit
def facts(loss, W):
    return *jax.value_and_grad(loss)(W), loss.intercept(W)


@pytest.mark.parametrize(
    "loss, step, atol",
    [*((name, 1e-7, 1e-6) for name in ("PoissonLoss", *ROBUST)), ("SoftmaxLoss", 1e-6, 1e-8)],
)
def test_derivatives_of_the_intercept_and_of_the_gradient(loss, step, atol, rng):
    loss = smooth(loss)
    W, V = rng.standard_normal((2, D, K)) / 2
    forward = jax.jit(lambda W, V: jax.jvp(lambda W: (loss.intercept(W), jax.grad(loss)(W)), (W,), (V,))[1])
    db, dG = forward(W, V)
    (_, G, b), (_, back_G, back_b) = facts(loss, W + step * V), facts(loss, W - step * V)
    np.testing.assert_allclose(db, (b - back_b) / (2 * step), atol=atol)
    np.testing.assert_allclose(dG, (G - back_G) / (2 * step), atol=atol)


@pytest.mark.parametrize("loss", ["LogisticLoss", "SoftmaxLoss"])
def test_second_derivatives_of_the_intercept(loss, rng):
    """In W and in the weights together, forward over reverse and reverse over reverse."""
    loss = smooth(loss)
    W, V = rng.standard_normal((2, D, K)) / 2
    w = jnp.ones(len(loss.X)) if loss.weights is None else loss.weights

    def value(t):
        moved = loss.reweighted(w.reshape(len(w), -1)[:, 0] * (1 + t * jnp.cos(jnp.arange(len(w)))))
        return jnp.sum(jnp.sin(moved.intercept(W + t * V)))

    slope = jax.jit(jax.grad(value))
    expected = (slope(1e-5) - slope(-1e-5)) / 2e-5
    assert abs(expected) > 1e-2
    for second in (jax.jacfwd(jax.grad(value)), jax.grad(jax.grad(value))):
        np.testing.assert_allclose(jax.jit(second)(0.0), expected, rtol=1e-7)


# ------------------------------------------------------------------ counts


def test_predictions_of_hundreds_with_an_intercept():
    """In logarithms: the weights of rows are all that is left of exponentials that would overflow."""
    loss = smooth("PoissonLoss")
    for size in (1.0, 1e2, 1e4):
        W = size * np.random.default_rng(0).standard_normal((D, K))
        value, gradient, b = facts(loss, W)
        np.testing.assert_allclose(value, conic.loss_value(loss, W), rtol=1e-12)
        np.testing.assert_allclose(b, conic.intercept(loss, W), rtol=1e-12)
        assert np.isfinite(gradient).all()


def test_overflow_is_infinite_and_no_concern_of_a_row_left_out():
    """e^800 is infinite, not NaN; in a row of weight 0 it is nothing at all."""
    x, y = np.array([[1.0], [800.0]]), np.array([2.0, 3.0])
    one = jnp.ones(1)
    assert np.isposinf(float(PoissonLoss(x, y)(one)))
    for w in ([1.0, 0.0], [[1.0], [0.0]]):
        make = functools.partial(PoissonLoss, x, y.reshape(np.shape(w)), weights=w, scale=1.0)
        W = one.reshape(1, *(1 for _ in np.shape(w)[1:]))
        value, gradient, _ = facts(make(), W)
        np.testing.assert_allclose(value, np.e - 2, rtol=1e-15)
        np.testing.assert_allclose(gradient, np.full(W.shape, np.e - 2), rtol=1e-15)
        np.testing.assert_allclose(make().evaluate(W), np.e - 2, rtol=1e-15)
        p = sj.Problem(make(intercept=True), penalties.L1(0.1))
        assert np.isfinite([float(p(W)), float(sj.duality_gap(p, W))]).all()
        # one row and an intercept: its mean is its count
        np.testing.assert_allclose(float(p.smooth(W)), 2 - 2 * np.log(2), rtol=1e-14)


def test_a_column_of_zeros_where_values_are_not_looked_at():
    """As in a fold: its loss is exactly its infimum, 0, and the other columns are as without it."""
    p = problem("PoissonLoss", "L21")
    silent = np.array(p.smooth.Y)
    silent[:, 2] = 0
    loss = p.smooth._replace(Y=jnp.asarray(silent))
    W = np.random.default_rng(0).standard_normal((D, K))
    value, gradient, b = facts(loss, W)
    keep = np.arange(K) != 2
    others = PoissonLoss(X, silent[:, keep], weights=weights(), intercept=True)
    np.testing.assert_allclose(value, conic.loss_value(others, W[:, keep]), rtol=1e-12)
    assert np.isfinite(b).all() and not np.asarray(gradient)[:, 2].any()
    s = sj.solve(p.replace(smooth=loss), tol=1e-9)
    assert bool(s.converged) and not np.asarray(s.params)[:, 2].any()
    np.testing.assert_allclose(s.objective, conic.minimise(p.replace(smooth=others)).objective, rtol=1e-8)


def test_divergence_of_counts(rng):
    """Against extended precision, for changes that cancel, large ones, and means that underflow."""
    loss, big = PoissonLoss(X, counts(H)), np.longdouble
    F = 10 * rng.standard_normal(H.shape)
    divergence, mean = jax.jit(loss.divergence), np.exp(F.astype(big))
    first = loss.derivatives(F)[0]
    for size in (1e-6, 0.008, 0.012, 0.9, 1.1, 1e3):
        sign = 1 if size > 1 else np.where(F > 0, 1, -1)
        change = (sign * size * mean).astype(float)
        expected = ((mean + change) * np.log1p(change / mean) - change).astype(float)
        np.testing.assert_allclose(divergence(F, first, change), expected, rtol=1e-10)
    # phi(h) + phi*(u) - u h with phi*(u) = m log m - m, m = y + u
    m = loss.Y + first + change
    by_parts = loss.entries(F) + (m * np.log(m) - m) - (first + change) * F
    np.testing.assert_allclose(divergence(F, first, change), by_parts, rtol=1e-9, atol=1e-12)
    assert np.isinf(divergence(F, first, -1.01 * np.exp(F))).all()
    nothing = np.full_like(F, -800.0)
    expected = 3 * np.log(3) + 3 * 800 - 3
    np.testing.assert_allclose(divergence(nothing, first, np.full_like(F, 3.0)), expected, rtol=1e-13)
    assert not np.any(divergence(nothing, first, np.zeros_like(F)))


def test_exposures_are_weights_of_rates(rng):
    """An offset log t: the same function, but for a constant, as counts over t with the weights t."""
    t, W, V = rng.uniform(0.5, 2, len(X)), *0.3 * rng.standard_normal((2, D, K))
    rates = PoissonLoss(X, counts(H) / t[:, None], weights=t)
    by_hand = lambda W: np.mean(np.sum(np.exp(X @ W) * t[:, None] - counts(H) * (X @ W), axis=1))
    np.testing.assert_allclose(facts(rates, W)[0] - facts(rates, V)[0], by_hand(W) - by_hand(V), rtol=1e-11)


def test_a_large_constant_does_not_hide_a_small_effect(rng):
    """Of counts of 1e4 the loss is mostly a constant, -1e5: W = 0 would be within 1e-4 of it."""
    X = rng.standard_normal((60, 5))
    loss = PoissonLoss(X, 1.0 * rng.poisson(1e4 * np.exp(0.03 * X[:, 0])), intercept=True)
    top = sj.lambda_max(sj.Problem(loss, penalties.L1(1.0)))
    problem = sj.Problem(loss, penalties.L1(top / 100))
    exact = sj.solve(problem, tol=1e-11)
    solution, null = sj.solve(problem, tol=1e-4), sj.duality_gap(problem, jnp.zeros(5))
    assert exact.converged and solution.converged and abs(float(exact.params[0])) > 0.02
    np.testing.assert_allclose(solution.params, exact.params, atol=5e-4)
    lowest = loss.lower_bound()
    np.testing.assert_allclose(lowest, loss._value(jnp.log(loss.Y)), rtol=1e-12)
    assert lowest < exact.objective
    of_null = problem(jnp.zeros(5))
    assert null >= (of_null - exact.objective) / (of_null - lowest) > 0.5


# ------------------------------------------------------------------ bounded slopes


def test_huber_is_that_of_optax_and_least_squares_within_delta(rng):
    W = rng.standard_normal((D, K))
    for delta in (0.3, 5.0, 1e3):
        entries = optax.losses.huber_loss(X @ W, H, delta=delta)
        np.testing.assert_allclose(HuberLoss(X, H, delta=delta)(W), np.mean(entries) * K, rtol=1e-13)
    half = SquaredLoss(X, H, intercept=True)
    wide = HuberLoss(X, H, delta=1e3, intercept=True)
    np.testing.assert_allclose(facts(wide, W)[1], facts(half, W)[1], atol=1e-12)


def test_quantile_is_below_the_pinball_loss_by_what_it_says(rng):
    W, q, mu = rng.standard_normal((D, K)), 0.8, 0.7
    R = H - X @ W
    pinball = np.maximum(q * R, (q - 1) * R)
    below = pinball - np.asarray(QuantileLoss(X, H, q, mu).entries(X @ W))
    assert below.min() >= -1e-15
    np.testing.assert_allclose(below.max(), mu * max(q, 1 - q) ** 2 / 2, rtol=1e-12)


def test_quantile_regression_by_linear_programming():
    """The minimum of the pinball loss with l1 is within the stated distance of ours."""
    q, mu, strength, y = 0.7, 0.02, 0.05, H[:, 0]
    n, one = len(X), np.ones(D)
    # positive and negative parts of w and of the residual
    cost = np.r_[strength * one, strength * one, np.full(n, q / n), np.full(n, (1 - q) / n)]
    exact = linprog(cost, A_eq=np.c_[X, -X, np.eye(n), -np.eye(n)], b_eq=y)
    s = sj.solve(sj.Problem(QuantileLoss(X, y, q, mu), penalties.L1(strength)), tol=1e-6)
    assert bool(s.converged)
    below = exact.fun - float(s.objective)
    assert -1e-6 <= below <= mu * q**2 / 2


@pytest.mark.parametrize("loss", ROBUST)
def test_gap_with_unpenalised_features(loss):
    """Residuals at the bounds, where a projection alone would leave the domain: the gap is finite."""
    p = sj.Problem(smooth(loss), penalties.ExclusiveGroupL21(0.05, FREE))
    best, rng = sj.solve(p, tol=1e-8), np.random.default_rng(0)
    assert bool(best.converged) and 0 <= float(best.gap) <= 1e-8
    for radius, gap, excess, scale in conic.near(
        p, best.params, best.objective, (1e-6, 1e-3, 1e-1, 10.0), rng
    ):
        assert np.isfinite(gap) and (gap <= 1e3 * radius or radius > 1e-2)
        assert gap * scale >= excess * (1 - 1e-6) - 1e-8


@pytest.mark.parametrize("loss", ROBUST)
def test_units_of_the_targets(loss):
    """Y, delta or smoothing, and what multiplies W to the first power, times 1e-30: W times 1e-30."""
    c, case = 2.0**-100, smooth(loss)
    name, degree = ("delta", 2) if loss == "HuberLoss" else ("smoothing", 1)
    small = case._replace(Y=case.Y * c, **{name: getattr(case, name) * c})
    s = sj.solve(sj.Problem(case, penalties.L21(0.1)), tol=1e-9)
    t = sj.solve(sj.Problem(small, penalties.L21(0.1 * c ** (degree - 1))), tol=1e-9)
    assert bool(s.converged) and bool(t.converged)
    np.testing.assert_allclose(t.objective / c**degree, s.objective, rtol=2e-9)
    np.testing.assert_allclose(t.params / c, s.params, atol=1e-4)


# ------------------------------------------------------------------ targets that are not observed


def test_observed_entries_only_count(rng):
    """Labels of -1 and 1: what is filled is a label, and any other gives the same function."""
    labels = np.where(rng.random((len(X), 3)) < 0.5, -1.0, 1.0)
    labels[0] = [-1, 1, 1]
    missing = rng.random(labels.shape) < 0.3
    missing[0] = [False, True, False]
    Y, weights = observed(np.where(missing, np.nan, labels))
    np.testing.assert_array_equal(weights, ~missing)
    np.testing.assert_array_equal(np.where(missing, 0, Y), np.where(missing, 0, labels))
    assert set(np.unique(Y)) == {-1.0, 1.0}
    loss, W = losses.SquaredHingeLoss(X, Y, weights=weights), rng.standard_normal((D, 3))
    np.testing.assert_allclose(loss(W), losses.SquaredHingeLoss(X, labels, weights=weights)(W), rtol=1e-14)
    by_hand = np.sum(np.maximum(1 - labels * (X @ W), 0)[~missing] ** 2) / len(X)
    np.testing.assert_allclose(loss(W), by_hand, rtol=1e-13)


def test_observed_of_vectors_integers_and_traced_values():
    Y, weights = jax.jit(observed)(np.array([np.nan, 2.0, 3.0]))
    assert Y.tolist() == [2, 2, 3] and weights.tolist() == [0, 1, 1]
    Y, weights = observed([[True, False], [False, True]])
    assert Y.tolist() == [[1, 0], [0, 1]] and weights.tolist() == [[1, 1], [1, 1]]
    assert observed(np.ones(2, np.float32))[1].dtype == np.float32


BAD = {
    "negative": (lambda: PoissonLoss(X, H), r"Y holds counts, which must be >= 0; it has -.* at \("),
    "all zero": (
        lambda: PoissonLoss(X, np.eye(14)[:, :2] * [1, 0], intercept=True),
        "column 1 of Y has nothing but zeros.*intercept=False",
    ),
    "left out": (
        lambda: PoissonLoss(X, np.eye(14)[0], weights=1 - np.eye(14)[0], intercept=True),
        "column 0 of Y has nothing but zeros",
    ),
    "delta": (lambda: HuberLoss(X, H, delta=0), "delta must be > 0"),
    "q": (lambda: QuantileLoss(X, H, 1.0, 0.1), "q is a quantile, 0 < q < 1, got 1"),
    "smoothing": (lambda: QuantileLoss(X, H, 0.5, -1), "smoothing must be > 0"),
    "nothing observed": (lambda: observed([[1, np.nan], [2, np.nan]]), "column 1 of Y has no observed entry"),
    "ragged": (lambda: observed([1, [2]]), "Y is not a rectangular array"),
    "infinite": (lambda: observed([1, np.inf]), "Y has 1 value.*infinite"),
    "empty": (lambda: observed(np.ones((0, 2))), "Y is empty"),
}


@pytest.mark.parametrize("name", BAD)
def test_is_refused(name):
    call, pattern = BAD[name]
    with pytest.raises(ValueError, match=pattern):
        call()


def test_poisson_has_no_majorizer_and_says_so():
    with pytest.raises(TypeError, match="admm needs a loss with a majorizer"):
        sj.admm(problem("PoissonLoss", "L21"))
    assert float(PoissonLoss(X, np.zeros(14))(jnp.zeros(D))) == 1  # of no counts without an intercept


@pytest.mark.parametrize("leaf, value", [("delta", -1.0), ("q", 1.5), ("smoothing", 0.0)])
def test_what_is_not_convex_has_no_certificate(leaf, value):
    loss = smooth("HuberLoss" if leaf == "delta" else "QuantileLoss")
    p = sj.Problem(loss._replace(**{leaf: jnp.asarray(value)}), penalties.L21(0.1))
    assert np.isnan(float(sj.duality_gap(p, np.zeros((D, K)))))
