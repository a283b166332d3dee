"""Least squares from batches of rows: the same function as from all rows at once."""

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsejax as sj
from sparsejax.losses import SquaredLoss
from sparsejax.penalties import L21

rng = np.random.default_rng(0)
X = rng.standard_normal((50, 6)) + 100  # far from 0: sums about it would lose digits
Y = X[:, :2] - 3 * X[:, 2:4] + rng.standard_normal((50, 2))


def batches(size=17, Y=Y):
    return ((X[i : i + size], Y[i : i + size]) for i in range(0, len(X), size))


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("columns", [2, None])
def test_is_the_loss_of_all_rows(intercept, columns):
    targets = Y if columns else Y[:, 0]
    loss = SquaredLoss.from_batches(batches(Y=targets), folds=3, intercept=intercept)
    whole = SquaredLoss(X, targets, intercept=intercept)
    W = rng.standard_normal(whole.params_shape)
    for function in (jax.value_and_grad, lambda loss: loss.intercept):
        ours, theirs = (jax.tree.leaves(function(f)(W)) for f in (loss, whole))
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    b = rng.standard_normal(targets.shape[1:])
    np.testing.assert_allclose(loss.evaluate(W, b), whole.evaluate(W, b), rtol=1e-10)


def test_solution_and_folds():
    """A certified solution; folds that leave blocks out are folds of the rows."""
    loss, whole = (
        SquaredLoss.from_batches(batches(), folds=3, intercept=True),
        SquaredLoss(X, Y, intercept=True),
    )
    ours, theirs = (sj.Problem(f, L21(0.5)) for f in (loss, whole))
    a, b = (sj.solve(problem, tol=1e-9) for problem in (ours, theirs))
    assert a.converged and np.isfinite(a.gap)
    np.testing.assert_allclose(a.params, b.params, atol=1e-7)
    np.testing.assert_allclose(sj.lambda_max(ours), sj.lambda_max(theirs), rtol=1e-10)
    grid = jax.vmap(L21)(jnp.array([1.0, 0.1]))
    a, b = (sj.cross_validate(problem, grid, folds=3, tol=1e-9) for problem in (ours, theirs))
    np.testing.assert_allclose(a.fold_loss, b.fold_loss, rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "batches is empty"),
        (3, "batches must be an iterable"),
        ([X], "batch 0 must be a pair"),
        ([(X, Y), (X[:, :5], Y)], "batch 1: X has 5 columns"),
        ([(X, Y), (X, Y[:, 0])], r"batch 1: X has 6 columns .* a row of Y has shape \(\);"),
        ([(X, Y[:3])], "batch 0: X has shape"),
        ([(X[:0], Y[:0])], "batch 0 is empty"),
        ([(X, Y), (X.astype(np.float32), Y)], "batch 1: .* dtype float32, .* in earlier batches .* float64"),
        ([(X * np.nan, Y)], "X of batch 0 has values that are NaN"),
        ([(X, Y.astype(str))], "Y of batch 0 has dtype"),
    ],
)
def test_bad_batches(given, message):
    with pytest.raises((TypeError, ValueError), match=message):
        SquaredLoss.from_batches(given)


def test_more_folds_than_rows():
    with pytest.raises(ValueError, match="folds must be at most the number of rows, 50"):
        SquaredLoss.from_batches(batches(), folds=60)


def extended(W, X, Y, rows=None):
    """``||(X - mean) W - (Y - mean)||^2 / 2n`` in long doubles, X and Y of the rows given."""
    X, Y, W = (np.asarray(a, np.longdouble) for a in (X, Y, W))
    R = (X - X.mean(0)) @ W - (Y - Y.mean(0))
    return float((R * R).sum() / (2 * len(X)))


@pytest.mark.parametrize("zeros", [1, 17])
@pytest.mark.parametrize("folds", [1, 3])
def test_rows_far_from_the_first_batch(zeros, folds):
    """The first batch is 0, all other rows are at 1e7: values, folds and the gap are those of the rows."""
    rng = np.random.default_rng(1)
    far = rng.standard_normal((1000, 6)) + 1e7
    targets = (far[:, :2] - 1e7) + rng.standard_normal((1000, 2))
    far[:zeros], targets[:zeros] = 0, 0
    parts = [(far[:zeros], targets[:zeros])]
    parts += [(far[i : i + 100], targets[i : i + 100]) for i in range(zeros, 1000, 100)]
    loss = SquaredLoss.from_batches(parts, folds=folds, intercept=True)
    p = sj.Problem(loss, L21(0.05))
    good = np.eye(6, 2) - 1 / 6  # its columns sum to 0, so that the shift of the rows does not count
    at_zero, least = extended(0 * good, far, targets), extended(good, far, targets)
    least += 0.05 * float(L21(1.0).value(good))
    np.testing.assert_allclose(loss(jnp.zeros((6, 2))), at_zero, rtol=1e-13)
    for W in map(jnp.asarray, (good, jax.jit(sj.solve)(p).params, rng.standard_normal((6, 2)))):
        # Rounding of products of 1e14/n that cancel, no more; the gap counts it.
        value, size = extended(W, far, targets), np.sum(np.sqrt(np.diag(loss.gram().G)) @ np.abs(W)) ** 2
        assert abs(float(loss(W)) - value) <= 1e-15 * (size + at_zero)
        objective = value + 0.05 * float(L21(1.0).value(W))
        excess = (objective - least) / max(objective, at_zero)
        assert float(sj.duality_gap(p, W)) >= excess - 1e-12
    if folds == 3:
        W = jnp.asarray(good)
        for held in range(3):
            kept = loss.reweighted(loss.weights.at[held].set(0.0))
            rest = np.arange(1000) % 3 != held
            there = 2 * extended(W, far[rest], targets[rest]) * rest.sum()
            size = np.sum(np.sqrt(np.diag(kept.gram().G)) @ np.abs(W)) ** 2 * 1000
            assert abs(2000 * float(kept(W)) - there) <= 1e-14 * (size + there)


def test_a_float32_batch_is_not_copied_whole():
    X = np.ones((100_000, 10), np.float32)
    tracemalloc.start()
    SquaredLoss.from_batches([(X, X[:, 0])])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.8 * X.nbytes  # a copy in float64 alone has 2


def test_scale():
    loss, whole = SquaredLoss.from_batches(batches(), scale=0.3), SquaredLoss(X, Y, scale=0.3)
    W = rng.standard_normal((6, 2))
    np.testing.assert_allclose(loss(W), whole(W), rtol=1e-9)


def test_the_shape_of_w_and_of_the_intercept_is_checked(rng):
    X, y = rng.standard_normal((20, 3)), rng.standard_normal(20)
    loss = sj.losses.SquaredLoss.from_batches([(X, y)])
    for method in (loss.evaluate, loss.intercept):
        with pytest.raises(ValueError, match="W has shape"):
            method(jnp.ones((3, 1)))
    with pytest.raises(ValueError, match="intercept has shape"):
        loss.evaluate(jnp.ones(3), np.ones(3))
