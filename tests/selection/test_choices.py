"""Cross-validation, tuning and stability selection where events are few or dtypes differ."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsejax as sj
from sparsejax import losses, penalties
from sparsejax.selection import resampling

X = np.random.default_rng(0).standard_normal((40, 5))
Y = X[:, 0] + np.random.default_rng(1).standard_normal(40)
PROBLEM = sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.L1(0.1))
STRENGTHS = jax.vmap(sj.penalties.L1)(np.array([0.3, 0.2, 0.1]))


def test_a_fold_that_holds_no_event_out_is_told():
    time, event = np.arange(1.0, 41), np.arange(40) % 5 > 0
    p = sj.Problem(sj.losses.CoxLoss(X, time, event), sj.penalties.L1(0.1))
    with pytest.warns(UserWarning, match="fold 0 holds no event out"):
        assert (sj.cross_validate(p, STRENGTHS, folds=5).fold_loss[0] == 0).all()


def test_a_held_out_loss_of_another_dtype():
    with jax.enable_x64(True):
        loss = sj.losses.SquaredLoss(X.astype(np.float32), Y.astype(np.float32))
        problem = sj.Problem(loss, sj.penalties.L1(np.float32(0.1)))
        assert sj.tune(problem, sj.losses.SquaredLoss(X, Y), maxiter=2).loss.dtype == np.float32
    for wrong in (lambda W: W, jnp.count_nonzero):
        with pytest.raises(TypeError, match="tune: held_out must return one real number"):
            sj.tune(PROBLEM, wrong)


def test_a_threshold_of_float32():
    one = jax.vmap(sj.penalties.L1)(np.array([0.2]))
    select = lambda t, seed: sj.stability_selection(PROBLEM, one, num_subsamples=10, threshold=t, seed=seed)
    for seed in range(20):
        np.testing.assert_array_equal(select(0.6, seed).selected, select(np.float32(0.6), seed).selected)
    assert resampling.subsamples(1, float(np.float32(0.29)), 0, 100).sum() == 29


def test_a_fold_that_holds_a_whole_column_out_is_told():
    X = np.random.default_rng(0).standard_normal((30, 3))
    weights = np.ones((30, 2))
    weights[10:, 1] = 0
    loss = losses.SquaredLoss(X, 5 + X[:, :2], weights=weights, intercept=True)
    problem, grid = sj.Problem(loss, penalties.L21(0.1)), jax.vmap(penalties.L21)(np.array([0.1]))
    with pytest.warns(UserWarning, match="fold 0 holds all rows of weight > 0 in column 1 out"):
        sj.cross_validate(problem, grid, folds=np.arange(30) // 10)
    assert np.isfinite(sj.cross_validate(problem, grid, folds=3).loss).all()


@pytest.mark.parametrize("power", [-40, 36])
def test_the_standard_error_of_tiny_and_large_losses(power):
    x, y, unit = X.astype(np.float32), Y.astype(np.float32), np.float32(2.0**power)

    def result(unit):
        problem = sj.Problem(losses.SquaredLoss(x, unit * y), penalties.L1(np.float32(0.1)))
        strengths = unit * np.geomspace(2, 0.01, 12, dtype=np.float32)
        return sj.cross_validate(problem, jax.vmap(penalties.L1)(strengths), tol=1e-5)

    usual, scaled = result(np.float32(1)), result(unit)
    assert int(usual.index_1se) != int(usual.index)
    assert int(scaled.index) == int(usual.index) and int(scaled.index_1se) == int(usual.index_1se)
    np.testing.assert_allclose(scaled.standard_error / unit**2, usual.standard_error, rtol=1e-3)
