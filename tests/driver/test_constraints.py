"""Problems with bounds and totals: the derivative of the objective, and constraints on leaves of a pytree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsejax as sj
from sparsejax import losses, penalties

Y = np.array([3.0, 0.5, -2.0])
LOSS = losses.SquaredLoss(np.eye(3), Y, scale=0.5)
CONSTRAINED = {
    "Box": lambda t: penalties.Box(-1.0, t),
    "Box, L1": lambda t: penalties.Box(-1.0, t) + penalties.L1(0.1),
    "SumTo": penalties.SumTo,
    "SumTo, L1": lambda t: penalties.SumTo(t) + penalties.L1(0.1),
    "simplex": lambda t: penalties.SumTo(t) + penalties.NonNegative(),
}


@pytest.mark.parametrize("name", CONSTRAINED)
def test_objective_in_a_bound(name):
    """The objective changes with a bound or a total, by the multiplier of the constraint."""
    F = lambda t: sj.solve(sj.Problem(LOSS, CONSTRAINED[name](t)), tol=1e-10).objective
    np.testing.assert_allclose(jax.grad(F)(1.0), (F(1 + 1e-5) - F(1 - 1e-5)) / 2e-5, rtol=1e-4)
    np.testing.assert_allclose(jax.jvp(F, (1.0,), (1.0,))[1], (F(1 + 1e-5) - F(1 - 1e-5)) / 2e-5, rtol=1e-4)


def test_objective_in_a_bound_of_a_leaf():
    fun = lambda p: 0.5 * jnp.sum((p["w"] - Y) ** 2) + 0.5 * jnp.sum((p["b"] - 1) ** 2)
    start = {"w": jnp.zeros(3), "b": jnp.zeros(1)}
    of = lambda t: sj.Problem(fun, penalties.ByLeaf({"w": penalties.Box(-1.0, t), "b": None}))
    F = lambda t: sj.solve(of(t), start, tol=1e-10).objective
    np.testing.assert_allclose(jax.grad(F)(1.0), -2, rtol=1e-4)


def test_leaves():
    fun = lambda p: 0.5 * jnp.sum((p["w"] - Y) ** 2) + 0.5 * jnp.sum((p["b"] - 1) ** 2)
    start = {"w": jnp.full(3, 1.5), "b": jnp.zeros(1)}
    s = sj.solve(sj.Problem(fun, penalties.ByLeaf({"w": penalties.Box(1.0, 2.0), "b": None})), start)
    assert s.converged
    np.testing.assert_allclose(s.params["w"], [2, 1, 1], atol=1e-5)
    of = lambda a: sj.Problem(fun, penalties.ByLeaf({"w": penalties.L1(a), "b": None}))
    solve = jax.jit(lambda a: sj.solve(of(a), start))
    assert solve(0.1).converged and not solve(-0.1).converged
