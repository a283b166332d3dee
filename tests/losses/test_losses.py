"""Losses: weights, intercepts, curvature and conjugates, against scipy, by hand and by the conic solver."""

import functools

import conic
import cvxpy as cp
import jax
import jax.numpy as jnp
import loss_cases
import numpy as np
import pytest
import scipy.sparse
from cases import K, N, data, slope_at_zero, smooth, weights
from hypothesis import given
from hypothesis import strategies as st
from loss_cases import LOSSES, SIMILARITY, SUMS, signs, zero_one
from penalty_cases import D
from properties import drawn, properties
from scipy.optimize import minimize_scalar
from scipy.sparse import csr_array
from scipy.special import expit

import sparsejax as sj
from sparsejax import losses

HINGES = ("SquaredHingeLoss", "HuberHingeLoss")


@jax.jit
def facts(loss, W):
    """Value, gradient and best intercept."""
    return *jax.value_and_grad(loss)(W), loss.intercept(W)


@pytest.mark.parametrize("loss", [*LOSSES, *SUMS])
def test_value_is_the_documented_formula(loss, rng):
    f, W = smooth(loss), rng.standard_normal((D, K))
    value, gradient, intercept = facts(f, W)
    np.testing.assert_allclose(value, conic.loss_value(f, W), rtol=1e-13)
    np.testing.assert_allclose(intercept, conic.intercept(f.loss if loss in SUMS else f, W), atol=1e-9)
    step = rng.standard_normal((D, K))
    ahead, back = (conic.loss_value(f, W + h * step) for h in (1e-6, -1e-6))
    np.testing.assert_allclose(np.sum(np.asarray(gradient) * step), (ahead - back) / 2e-6, rtol=1e-7)


@pytest.mark.parametrize("loss", [*LOSSES, *SUMS])
def test_rows_of_weight_zero_may_be_left_out(loss, rng):
    f, W, kept = smooth(loss), rng.standard_normal((D, K)), rng.permutation(N) < N // 2
    weights = (f.loss if loss in SUMS else f).weights
    weights = jnp.asarray(np.asarray(weights) * kept.reshape(-1, *[1] * (weights.ndim - 1)))
    few = losses.rows_alone(f, weights, N // 2 + 1)  # one place is left
    assert (few.loss if loss in SUMS else few).X.shape == (N // 2 + 1, D)
    for found, expected in zip(facts(few, W), facts(f.reweighted(weights), W), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)


def test_rows_of_a_class_that_may_have_more_by_row_are_all_kept():
    class Shifted(losses.LinearModelLoss, leaves=("shift",)):
        entries = lambda self, H: (H - self.shift) ** 2
        derivatives = lambda self, H: (2 * (H - self.shift), jnp.full_like(H, 2))

        def __init__(self, X, Y, shift):
            super().__init__(X, Y)
            self._set(shift=shift)

    f = Shifted(np.eye(4, 3), np.zeros(4), jnp.arange(4.0))
    few = losses.rows_alone(f, jnp.array([0.0, 0.0, 1.0, 1.0]), 2)
    assert few.X.shape == (4, 3) and float(few(jnp.zeros(3))) == (4 + 9) / 4


@functools.cache
def majorised(loss):
    """A of the bound of the curvature A'A; None where there is none."""
    f = smooth(loss)
    majorizer = f.quadratic_model().majorizer
    return None if majorizer is None else np.asarray(majorizer())


@properties
@pytest.mark.parametrize("loss", LOSSES)
@drawn(20)
@given(
    seed=st.integers(0, 2**16),
    size=st.floats(-3, 2) | st.sampled_from([-320, -30]),
    near=st.floats(-6, 0),
    copied=st.booleans(),
    power=st.sampled_from([0, 0, -900, -100, 100, 900]),
)
def test_what_a_loss_is(loss, seed, size, near, copied, power):
    """Above its tangents, below its majorizer; blind to the order of rows and columns and the units of X."""
    rng = np.random.default_rng(seed)
    f, W = smooth(loss), 10**size * rng.standard_normal((D, K))
    if copied:  # rows and columns of X and of W
        X = np.array(f.X)
        X[1:4], X[:, 1] = X[0], X[:, 0]
        f = LOSSES[loss].make(X, f.Y, weights=f.weights, intercept=True)
        W[1], W[:, 2] = W[0], W[:, 1]
    step = 10**near * rng.standard_normal((D, K)) * np.abs(W).max()
    value, gradient, b = map(np.asarray, facts(f, W))
    there, slope, _ = map(np.asarray, facts(f, W + step))
    rise, rounding = there - value - np.sum(gradient * step), 1e-13 * (there + value)
    rounding += 1e-9 * np.sum(np.abs((slope - gradient) * step))  # of the intercept, in the gradient
    assert rise >= -rounding
    if majorised(loss) is not None and not copied:
        assert rise <= np.sum((majorised(loss) @ step) ** 2) / 2 + rounding
    rows, columns = rng.permutation(N), rng.permutation(K)
    X, Y, w = (np.asarray(x)[rows] for x in (f.X, f.Y, f.weights))
    unit = 2.0**power
    mixed = LOSSES[loss].make(unit * X, Y[:, columns], weights=w, intercept=True)
    again, mixed_gradient, mixed_b = facts(mixed, W[:, columns] / unit)
    np.testing.assert_allclose(again, value, rtol=1e-11)
    close = 1e-9 * (1 + np.abs(gradient).max())
    np.testing.assert_allclose(np.asarray(mixed_gradient) / unit, gradient[:, columns], atol=close)
    if size < 0:  # beyond, a whole interval of intercepts can be best
        np.testing.assert_allclose(mixed_b, b[columns], atol=1e-7)


# ------------------------------------------------------------------ weights and intercepts


def same_function(a, b, rng):
    """Two losses are the same function of W: values, gradients, intercepts, curvature."""
    for W in rng.standard_normal((3, *a.params_shape)):
        value, gradient, intercept = facts(a, W)
        other, other_gradient, other_intercept = facts(b, W)
        np.testing.assert_allclose(value, other, rtol=1e-13)
        np.testing.assert_allclose(gradient, other_gradient, rtol=1e-9, atol=1e-13)
        np.testing.assert_allclose(intercept, other_intercept, rtol=1e-9, atol=1e-13)
    if a.quadratic_model().majorizer is not None:
        A, B = (np.asarray(f.quadratic_model().majorizer()) for f in (a, b))
        np.testing.assert_allclose(A.T @ A, B.T @ B, atol=1e-13)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_weights_leave_rows_out_and_repeat_them(loss, intercept, rng):
    """Weight 0 is a row left out, weight 2 a row twice; weights by entry agree with weights by row."""
    X, H = data()
    Y, make = LOSSES[loss].targets(H), LOSSES[loss].make
    scale = make(X, Y).scale
    counts = rng.integers(0, 4, len(X))
    assert 0 in counts and 1 in counts and 3 in counts
    index = np.repeat(np.arange(len(X)), counts)
    repeated = make(X[index], Y[index], scale=scale, intercept=intercept)
    by_row = make(X, Y, weights=counts, intercept=intercept)
    if not LOSSES[loss].by_entry:
        return same_function(repeated, by_row, rng)
    by_entry = make(X, Y, weights=np.repeat(counts[:, None], K, axis=1), intercept=intercept)
    same_function(repeated, by_row, rng)
    same_function(by_entry, by_row, rng)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", [*LOSSES, "gram"])
def test_derivative_in_a_weight_of_zero(loss, intercept, rng):
    """Of the value and of the gradient, as in other weights."""
    X, H = data()
    w, W = jnp.ones(len(X)).at[:3].set(0), jnp.asarray(rng.standard_normal((D, K)) / 4)
    case = LOSSES["SquaredLoss" if loss == "gram" else loss]

    @jax.jit
    def slope(w):
        smooth = case(X, H, weights=w, intercept=intercept)
        smooth = smooth.gram() if loss == "gram" else smooth
        return jnp.append(jax.grad(smooth)(W).ravel(), smooth(W))

    found = jax.jacfwd(slope)(w)
    for row in (0, 2, 7):
        expected = slope_at_zero(slope, w, row) if row < 3 else (slope(w.at[7].add(1e-6)) - slope(w)) / 1e-6
        np.testing.assert_allclose(found[:, row], expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(jax.grad(lambda w: slope(w)[-1])(w), found[-1], atol=1e-13)


def test_entries_left_out_are_columns_solved_alone(rng):
    """With weights by entry each column sees its own rows."""
    X, H = data(n=40)  # so many that no interval of intercepts is best
    weights = np.stack([rng.permutation(np.arange(len(X)) % 2) for _ in range(K)], axis=1)
    for case in (case for case in LOSSES.values() if case.by_entry):
        labels = case.targets(H)
        whole = case.make(X, labels, weights=weights, intercept=True)
        W = rng.standard_normal((D, K))
        value, _, intercept = facts(whole, W)
        alone = 0
        for j, w in enumerate(weights.T.astype(bool)):
            column = case.make(X[w], labels[w, j], scale=whole.scale, intercept=True)
            column_value, _, column_intercept = facts(column, W[:, j])
            alone += column_value
            np.testing.assert_allclose(intercept[j], column_intercept, rtol=1e-9)
        np.testing.assert_allclose(value, alone, rtol=1e-12)


def test_intercept_is_centring_by_hand(rng):
    X, Y = data()
    loss = losses.SquaredLoss(X, Y, intercept=True)
    centred = losses.SquaredLoss(X - X.mean(0), Y - Y.mean(0))
    for W in rng.standard_normal((3, D, K)):
        value, gradient, intercept = facts(loss, W)
        other, other_gradient, _ = facts(centred, W)
        np.testing.assert_allclose(value, other, rtol=1e-13)
        np.testing.assert_allclose(gradient, other_gradient, rtol=1e-9, atol=1e-13)
        np.testing.assert_allclose(intercept, Y.mean(0) - X.mean(0) @ W, rtol=1e-9, atol=1e-13)
    A, B = (np.asarray(f.quadratic_model().majorizer()) for f in (loss, centred))
    np.testing.assert_allclose(A.T @ A, B.T @ B, atol=1e-13)


@pytest.mark.parametrize("value, weight", [(1.0, 1.1), (3.7, 0.3)])
def test_targets_that_are_all_equal_are_fitted_by_the_intercept(value, weight):
    """Their weighted mean may differ from them by a rounding, which is no target to fit."""
    X, Y = data()
    loss = losses.SquaredLoss(X, np.full_like(Y, value), weights=np.full(N, weight), intercept=True)
    solution = sj.solve(sj.Problem(loss, sj.penalties.L21(0.01)))
    assert solution.converged and solution.gap == 0 and not np.any(solution.params)


def test_logistic_intercept_is_stationary_and_shift_free(rng):
    """Residuals sum to zero at the best intercept, and moving X moves nothing but the intercept."""
    X, H = data()
    labels = zero_one(H)
    loss = losses.LogisticLoss(X, labels, intercept=True)
    moved = losses.LogisticLoss(X + 1, labels, intercept=True)
    for factor in (1e-3, 1.0, 1e3):  # linear, usual, and all sigmoids at 0 or 1
        W = factor * rng.standard_normal((D, K))
        (value, _, b), (moved_value, _, moved_b) = facts(loss, W), facts(moved, W)
        residual = expit(X @ W + np.asarray(b)) - labels
        np.testing.assert_allclose(residual.sum(0), 0, atol=1e-10 * max(1, factor))
        np.testing.assert_allclose(moved_value, value, rtol=1e-10)
        if factor <= 1:  # beyond, a whole interval is best to the last digit
            np.testing.assert_allclose(moved_b, np.asarray(b) - W.sum(0), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("loss", HINGES)
def test_hinge_intercept_is_the_minimiser(loss, rng):
    """Against scipy, near and far from the data, also in columns all of one label; and its derivative."""
    X, H = data()
    labels, make, entries = signs(H), LOSSES[loss].make, loss_cases.FORMULAS[loss].value
    labels[:, 1], labels[:, 2] = 1, -1
    weights = rng.integers(0, 3, labels.shape)
    smooth = make(X, labels, weights=weights, intercept=True)
    shifted = make(X + 1, labels, weights=weights, intercept=True)
    for factor in (0.0, 0.1, 1.0, 1e3):
        W = factor * rng.standard_normal((D, K))
        at_W, _, b = map(np.asarray, facts(smooth, W))

        def value(t, W=W):
            return np.sum(weights * entries(X @ W + t, labels, smooth), axis=0) / len(X)

        ours = value(b)
        assert np.isfinite(b).all() and (ours[1:3] <= 1e-30).all()
        for j in range(K):
            best = minimize_scalar(lambda t, j=j: value(t)[j], bracket=(b[j] - 1, b[j] + 1), tol=1e-12).fun
            assert ours[j] <= best * (1 + 1e-14)
        np.testing.assert_allclose(at_W, ours.sum(), rtol=1e-13)
        np.testing.assert_allclose(facts(shifted, W)[0], at_W, rtol=1e-9)
    W, step = rng.standard_normal((2, D, K))
    # with these weights all the intercepts of an interval can be best: the loss has its derivative still
    _, gradient, _ = facts(smooth, W)
    there, back = (facts(smooth, W + h * step)[0] for h in (1e-6, -1e-6))
    np.testing.assert_allclose(np.sum(np.asarray(gradient) * step), (there - back) / 2e-6, rtol=1e-7)
    smooth = make(X, labels, weights=weights * rng.uniform(0.9, 1.1, labels.shape), intercept=True)
    slope = jax.jit(lambda W, step: jax.jvp(smooth.intercept, (W,), (step,))[1])(W, step)
    there, back = (np.asarray(facts(smooth, W + h * step)[2]) for h in (1e-6, -1e-6))
    two_labels = [j for j in range(K) if j not in (1, 2)]
    np.testing.assert_allclose(slope[np.array(two_labels)], ((there - back) / 2e-6)[two_labels], rtol=1e-7)


# ------------------------------------------------------------------ curvature


@pytest.mark.parametrize(
    "make", [losses.SquaredHingeLoss, functools.partial(losses.HuberHingeLoss, delta=4.0)]
)
def test_majorizer_of_hinge_losses(make, rng):
    """It is the Hessian where every entry is on a curved part, such as at W = 0."""
    X, h = data(k=None)
    loss = make(X, signs(h), weights=rng.uniform(0, 2, len(X)), intercept=True)
    A = np.asarray(loss.quadratic_model().majorizer())
    np.testing.assert_allclose(A.T @ A, jax.jit(jax.hessian(loss))(np.zeros(D)), atol=1e-13)


# ------------------------------------------------------------------ conjugates


def conjugate_of_loss(f, U):
    """sup_H <U, H> - l(H) by the conic solver, over the entries that have a weight."""
    on = np.asarray(f.weights) > 0
    w, y, u = (np.asarray(values)[on] for values in (f.weights, f.Y, U))
    h, r, q = cp.Variable(on.sum()), cp.Variable(on.sum(), nonneg=True), cp.Variable(on.sum(), nonneg=True)
    if isinstance(f, losses.HuberHingeLoss):  # the slack in two parts, of which one is squared
        slack, cost = q + r, w @ r + cp.sum_squares(cp.multiply(np.sqrt(w / (2 * float(f.delta))), q))
    else:
        slack, cost = r, cp.sum_squares(cp.multiply(np.sqrt(w), r))
    return conic.solve(cp.Maximize(u @ h - float(f.scale) * cost), [slack >= 1 - cp.multiply(y, h)])


SCALED = {
    "squared": losses.SquaredHingeLoss,
    "rounded": losses.HuberHingeLoss,
    "wide": functools.partial(losses.HuberHingeLoss, delta=4.0),  # no entry on its straight part
}


@pytest.mark.parametrize("hinge", SCALED)
def test_dual_scaling_of_hinge_losses(hinge):
    """The change of the conjugate is that of the supremum; no other s is better, or even finite."""
    X, H = data()
    rng = np.random.default_rng(3)
    weights = rng.uniform(0.2, 2, H.shape)
    weights[:2] = 0
    f = SCALED[hinge](X, signs(H), weights=weights)
    slope = loss_cases.FORMULAS[type(f).__name__].slope
    dual_scaling = jax.jit(f.dual_scaling)
    for size in (0.01, 0.5):
        W = size * rng.standard_normal((D, K))
        U = float(f.scale) * weights * slope(X @ W, np.asarray(f.Y), f)
        at_one = conjugate_of_loss(f, U)
        best, least = map(float, dual_scaling(W, np.inf))
        for limit in (0.0, 0.3, 1.0, np.inf):
            s, change = map(float, dual_scaling(W, limit))
            assert s == min(limit, best)
            there = conjugate_of_loss(f, s * U) if s else 0.0  # less the least loss
            np.testing.assert_allclose(change, there - at_one, atol=1e-7)
        for other in (0.9 * best, 1.1 * best):
            assert conjugate_of_loss(f, other * U) > at_one + least + 1e-4
        if hinge == "rounded":
            assert best == 1 and conjugate_of_loss(f, 1.01 * U) == np.inf


# ------------------------------------------------------------------ graphs


def test_sums_with_graphs(rng):
    """Dense or sparse, in any order; the intercept is that of the loss."""
    W = rng.standard_normal((D, K))
    X, Y = data()
    loss, graph = (
        losses.SquaredLoss(X, Y, weights=weights(), intercept=True),
        losses.GraphLaplacian(SIMILARITY, 0.4),
    )
    sparse = losses.GraphLaplacian(csr_array(SIMILARITY), 0.4)
    np.testing.assert_array_equal(sparse.similarity, graph.similarity)
    edges = (
        0.4
        / 2
        * sum(
            (SIMILARITY[i, j] + SIMILARITY[j, i]) / 2 * np.sum((W[:, i] - W[:, j]) ** 2)
            for i in range(K)
            for j in range(i)
        )
    )
    np.testing.assert_allclose(graph(jnp.asarray(W)), edges, rtol=1e-13)
    value, _, intercept = facts(loss, W)
    for total in (loss + graph + graph, graph + (graph + loss)):
        with_graphs, _, other = facts(total, W)
        np.testing.assert_allclose(with_graphs, value + 2 * edges, rtol=1e-13)
        np.testing.assert_array_equal(other, intercept)


@pytest.mark.parametrize("kind", [sj.losses.SquaredHingeLoss, sj.losses.HuberHingeLoss])
def test_hinge_losses_of_nan_weights_are_nan(kind):
    loss = kind(np.eye(4, 2), np.array([1.0, -1.0, 1.0, -1.0]))
    value, slope = jax.value_and_grad(loss)(jnp.array([jnp.nan, 0.0]))
    assert np.isnan(value) and np.isnan(slope[0])


def test_masked_values_of_a_sparse_matrix_are_refused():
    """The stored values of a sparse X lose no mask in silence."""
    X = scipy.sparse.random(20, 5, 0.5, format="csc", random_state=0)
    X.data = np.ma.masked_array(X.data, X.data > 0.5)
    with pytest.raises(TypeError, match="masked"):
        sj.losses.SquaredLoss(X, np.ones(20))
