"""What looks strange and is fine: integers, lists, memory layouts, degenerate data; objects are frozen."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsejax as sj
from sparsejax import losses, penalties
from sparsejax.losses import HuberHingeLoss, LogisticLoss, SquaredLoss
from sparsejax.penalties import L21, ExclusiveL21, ExclusiveLasso

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((8, 4)), RNG.standard_normal((8, 3))
LABELS = (Y > 0).astype(float)
SIGNS = 2 * LABELS - 1
W = np.zeros((4, 3))


def problem(smooth=None):
    return sj.Problem(smooth or SquaredLoss(X, Y), L21(0.1))


@pytest.mark.parametrize("dtype", [int, bool, np.int8, np.uint64])
def test_integers_become_the_default_float(dtype):
    whole = (10 * X).astype(dtype)
    default = jnp.result_type(float)
    for loss in (SquaredLoss(whole, whole[:, :2]), SquaredLoss(whole.tolist(), whole[:, 0].tolist())):
        assert loss.X.dtype == loss.Y.dtype == default
        np.testing.assert_array_equal(loss.X, whole.astype(float))
    assert LogisticLoss(whole, LABELS.astype(dtype)).Y.dtype == default
    assert L21(3).alpha.dtype == ExclusiveLasso([1, 2]).beta.dtype == default


@pytest.mark.parametrize("init", [-1.5, np.float64(0)])
def test_the_unknown_of_a_plain_function_may_be_a_number(init):
    s = sj.fista(sj.Problem(lambda w: (w - 1) ** 2 / 2, penalties.NonNegative()), init)
    assert s.params.shape == () and bool(s.converged)
    np.testing.assert_allclose(s.params, 1, rtol=1e-5)


def test_bytes_in_the_other_order():
    """As FITS and netCDF files have them."""
    X = np.eye(4, 3)
    loss = losses.SquaredLoss(X.astype(">f4"), X[:, 0].astype(">f8"))
    assert loss.dtype == np.float32
    np.testing.assert_array_equal(loss.X, X)


def test_dtype_of_x_rules():
    loss = SquaredLoss(X.astype(np.float32), Y, weights=np.ones(8), scale=np.float64(0.5))
    assert {leaf.dtype for leaf in jax.tree.leaves(loss)} == {np.dtype(np.float32)}
    s = sj.solve(problem(smooth=loss), W)  # float64 strengths and start
    assert s.params.dtype == s.gap.dtype == np.float32 and bool(s.converged)


def test_memory_layouts_and_containers():
    """Strided, Fortran-ordered, read-only, jax arrays, lists and tuples: all the same numbers."""
    strided = np.repeat(np.repeat(X, 2, axis=0), 3, axis=1)[::2, ::3]
    reversed_ = X[::-1, ::-1].copy()[::-1, ::-1]
    frozen = X.copy()
    frozen.flags.writeable = False
    expected = SquaredLoss(X, Y)(W + 1)
    for other in (strided, reversed_, np.asfortranarray(X), frozen, jnp.asarray(X), X.tolist(), tuple(X)):
        np.testing.assert_array_equal(SquaredLoss(other, Y)(W + 1), expected)


def aligned(values):
    """A writable copy at a multiple of 64 bytes, which JAX on a CPU would rather borrow than copy."""
    values = np.asarray(values, float)
    memory = np.empty(values.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    array = memory[start : start + values.nbytes].view(float).reshape(values.shape)
    array[...] = values
    return array


def test_data_are_copied():
    """Arrays that the caller changes later do not change the problem."""
    mine = [aligned(values) for values in (X, Y, np.ones(8), np.full(4, 0.1))]
    p = sj.Problem(SquaredLoss(mine[0], mine[1], weights=mine[2]), L21(mine[3]))
    before = float(p(W + 1))
    for array in mine:
        array[...] = 0
    assert float(p(W + 1)) == before


def test_degenerate_data_are_allowed():
    """Constant and zero columns, one row, one feature, one class, all targets alike, no weight at all."""
    constant = X.copy()
    constant[:, 1], constant[:, 2] = 3.0, 0.0
    some = {"weights": np.ones(8), "intercept": True}
    for loss in (
        SquaredLoss(constant, Y, **some),
        SquaredLoss(X, 0 * Y, **some),
        SquaredLoss(0 * X, Y, **some),
        SquaredLoss(X, Y, weights=np.zeros(8), intercept=True),
        SquaredLoss(X[:1, :1], Y[:1, :1], intercept=True),
        LogisticLoss(constant, LABELS, intercept=True),
        HuberHingeLoss(constant, np.c_[SIGNS, np.ones(8)], intercept=True),  # one column has one label
        LogisticLoss(X[:1], np.ones(1)),
    ):
        s = sj.solve(sj.Problem(loss, ExclusiveL21(0.05, 0.05)), tol=1e-8)
        assert bool(s.converged) and np.isfinite(s.params).all()
        if loss.X.shape == X.shape:
            unused = np.asarray(loss.X == 0).all(axis=0)
            unused |= np.ptp(np.asarray(loss.X), axis=0) == 0  # the intercept does it
            assert not np.any(np.asarray(s.params)[unused])


@pytest.mark.parametrize(
    "make",
    [
        problem,
        lambda: losses.LogisticLoss(X, LABELS),
        lambda: penalties.ExclusiveL21(0.1, 0.2),
        lambda: sj.solve(problem()),
    ],
)
def test_objects_are_frozen(make):
    frozen = make()
    name = frozen._leaves[0]
    for change in (
        lambda: setattr(frozen, name, 1),
        lambda: setattr(frozen, "unknown", 1),
        lambda: delattr(frozen, name),
    ):
        with pytest.raises(AttributeError, match=f"{type(frozen).__name__} is immutable"):
            change()
    for other in (copy.copy(frozen), copy.deepcopy(frozen), pickle.loads(pickle.dumps(frozen))):
        assert jax.tree.structure(other) == jax.tree.structure(frozen)
        jax.tree.map(np.testing.assert_array_equal, other, frozen)


@pytest.mark.parametrize("size", [2.5e38, 3e38])
def test_targets_near_the_largest_number_keep_the_strength(size):
    X, y = np.array([[2, 1], [0, -1], [-1, 1], [-1, -1]], np.float32), np.array([1, 1, -1, -1], np.float32)

    def params(unit):
        problem = sj.Problem(sj.losses.SquaredLoss(X, y * unit), sj.penalties.L1(unit / 4))
        assert np.isfinite(sj.lambda_max(problem))
        solution = sj.solve(problem, tol=1e-5)
        assert solution.converged
        return np.asarray(solution.params, float) / float(unit)

    np.testing.assert_allclose(params(np.float32(size)), params(np.float32(1)), atol=1e-3)
