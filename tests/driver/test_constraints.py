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


class Loop(sj.Penalty, leaves=("strength",)):
    """An l1 norm by a loop that has no reverse mode."""

    strengths = ("strength",)

    def value(self, W):
        add = lambda c: (c[0] + 1, c[1] + jnp.abs(W[c[0]]))
        return self.strength * jax.lax.while_loop(lambda c: c[0] < W.size, add, (0, jnp.zeros(())))[1]

    def prox(self, V, scaling=1.0):
        return penalties.L1(1.0).prox(V, scaling * self.strength)


def test_a_value_without_reverse_mode_leaves_the_derivative_of_the_weights():
    solved = lambda a, make: sj.solve(sj.Problem(LOSS, make(a)), tol=1e-10)
    size = lambda a, make: jnp.sum(solved(a, make).params ** 2)
    got, wanted = (jax.grad(size)(0.1, make) for make in (lambda a: Loop(jnp.asarray(a)), penalties.L1))
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
    assert np.isnan(jax.grad(lambda a: solved(a, lambda a: Loop(jnp.asarray(a))).objective)(0.1))
