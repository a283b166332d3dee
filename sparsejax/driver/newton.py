"""Newton's method on the support of W, for the last digits, where first-order steps are slow."""

import jax
import jax.numpy as jnp

from sparsejax._core.linalg import conjugate_gradients, eps_of
from sparsejax.problem import Problem

MAX_POLISHING_STEPS = 5  # Newton steps of a finish
MAX_CG_STEPS = 1000  # conjugate gradient steps in each Newton step


def newton_step(problem: Problem, W: jax.Array) -> tuple[jax.Array, jax.Array]:
    """W after a Newton step in the entries where the penalty is smooth, and whether there are such entries.

    The system is symmetric positive semidefinite. Conjugate gradients on Hessian products solve it also if
    columns of X depend on one another. Zeros stay exactly zero.
    """
    support = problem.penalty.smooth_where(W)
    mask: jax.Array = support.astype(W.dtype)
    eps = eps_of(W)

    def gradient(V: jax.Array) -> jax.Array:
        return jax.grad(problem)(V) * mask

    value, hessian = jax.linearize(gradient, W)
    step, _ = conjugate_gradients(lambda D: hessian(D * mask), value, lambda r: r, eps, MAX_CG_STEPS)
    return W - step, jnp.any(support)
