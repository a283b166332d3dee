"""Steps of first-order solvers where the data are so large or small that a loss or a square overflows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsejax as sj
from sparsejax._core.linalg import largest_eigenvalue_bound
from sparsejax.driver.curvature import first_step
from sparsejax.solvers._fista import longer

NON_FINITE = 2


def at(share, loss, penalty):
    """The problem with this share of the strength at which W becomes 0."""
    top = sj.lambda_max(sj.Problem(loss, penalty(1.0)))
    return sj.Problem(loss, penalty(jnp.asarray(share, top.dtype) * top))


def assert_solved(s, tol):
    assert s.converged and s.gap <= tol and np.isfinite(s.residual), s


def counts_of_large_columns(dtype, size, d):
    """A Poisson loss whose exponentials overflow on a step of eps^(1/4)."""
    X = np.abs(np.random.default_rng(0).standard_normal((30, d))) * size
    return sj.losses.PoissonLoss(X.astype(dtype), np.full(30, 5, dtype))


@pytest.mark.parametrize("dtype, size, tol", [(np.float64, 1e7, 1e-6), (np.float32, 3e3, 1e-4)])
def test_exponentials_that_overflow_at_the_first_probe(dtype, size, tol):
    p = at(0.1, counts_of_large_columns(dtype, size, 2), sj.penalties.L1)
    s = sj.fista(p)
    assert_solved(s, tol)
    assert s.num_iters <= 100
    np.testing.assert_allclose(s.objective, sj.newton_admm(p).objective, rtol=10 * tol)


def test_solve_of_many_columns_whose_exponentials_overflow():
    s = sj.solve(at(0.1, counts_of_large_columns(np.float64, 1e7, 100), sj.penalties.L1))
    assert s.solver == "fista"
    assert_solved(s, 1e-6)


@pytest.mark.float32_only_ok
@pytest.mark.parametrize("share", [0.9, 0.3, 0.01])
def test_counts_with_columns_of_many_sizes(share):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((15, 40)) * 10 ** rng.uniform(-3, 4, 40)
    Y = rng.poisson(3, (15, 3))
    loss = sj.losses.PoissonLoss(X.astype(np.float32), Y.astype(np.float32))
    assert_solved(sj.solve(at(share, loss, sj.penalties.L21)), 1e-4)


@pytest.mark.float32_only_ok
@pytest.mark.parametrize("size", [1e3, 1e10, 1e16])
def test_the_first_step_is_near_the_inverse_of_the_curvature(size):
    """Exact for a quadratic loss; for exponentials within what some iterations of backtracking mend."""
    x = jnp.asarray(size, jnp.float32)
    quadratic = jax.tree_util.Partial(lambda x, w: jnp.sum((x * w - 1) ** 2) / 2, x)
    exponential = jax.tree_util.Partial(lambda x, w: jnp.sum(jnp.exp(x * w) - 5 * x * w), x)
    for loss in (quadratic, exponential):
        step = jax.jit(first_step)(loss, jnp.zeros(1, jnp.float32))
        ratio = float(step) * size * size
        assert 0.05 <= ratio <= 1.05, (loss, ratio)
    assert abs(float(first_step(quadratic, jnp.zeros(1, jnp.float32))) * size * size - 1) <= 1e-3


@pytest.mark.float32_only_ok
@pytest.mark.parametrize("size", [1e10, 1e16, 1e-10, 1e-16])
@pytest.mark.parametrize("solver", [sj.fista, sj.davis_yin])
def test_squares_of_squares_that_overflow(solver, size):
    """The columns of X have squares within float32, but the squares of X'X are not."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((20, 4)), rng.standard_normal(20)
    X = (X * size).astype(np.float32)
    for loss in (
        sj.losses.SquaredLoss(X, y.astype(np.float32)),
        sj.losses.LogisticLoss(X, (y > 0).astype(np.float32)),
    ):
        assert_solved(solver(at(0.3, loss, sj.penalties.L1)), 1e-4)


@pytest.mark.float32_only_ok
@pytest.mark.parametrize("size", [1e-16, 1e10, 1e17])
def test_the_bound_of_the_curvature_in_all_units(size):
    A = np.random.default_rng(0).standard_normal((6, 9)).astype(np.float32)
    true = np.linalg.norm(A.astype(float), 2) ** 2
    bound = float(largest_eigenvalue_bound(jnp.asarray(A * np.float32(size)))) / float(np.float32(size)) ** 2
    assert (1 - 1e-6) * true <= bound <= 1.06 * true


@pytest.mark.float32_only_ok
@pytest.mark.parametrize("size", [1e19, 3e19])
def test_a_curvature_out_of_range_has_no_step(size):
    """The solve says so at once, rather than make steps of 0."""
    X, y = np.random.default_rng(0).standard_normal((2, 20, 4)).astype(np.float32)
    loss = sj.losses.SquaredLoss(X * np.float32(size), y[:, 0] * np.float32(1e-5))
    assert np.isnan(sj.driver.step_length(loss))
    for solver in (sj.fista, sj.davis_yin):
        s = solver(at(0.3, loss, sj.penalties.L1))
        assert s.status == NON_FINITE and s.num_iters <= 100


@pytest.mark.float32_only_ok
def test_no_step_is_stuck_at_0_or_infinity():
    for step in (0.0, np.inf):
        found = longer(jnp.asarray(step, jnp.float32))
        assert 0 < found < np.inf
