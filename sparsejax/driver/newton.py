"""Newton's method on the support of W: the last digits, for which first-order steps take long."""

import jax
import jax.numpy as jnp

from sparsejax._core.linalg import conjugate_gradients, eps_of
from sparsejax.problem import Problem

ROUNDS = 5
INNER = 1000  # conjugate gradient steps at most, in each


def newton_step(problem: Problem, W: jax.Array) -> tuple[jax.Array, jax.Array]:
    """W after a Newton step in the entries where the penalty is smooth, and whether there are any.

    The system is symmetric positive semidefinite and solved by conjugate gradients on Hessian
    products, so that dependent columns do no harm. Zeros stay exactly zero.
    """
    support = problem.penalty.smooth_where(W)
    mask: jax.Array = support.astype(W.dtype)
    eps = eps_of(W)

    def gradient(V: jax.Array) -> jax.Array:
        return jax.grad(problem)(V) * mask

    value, hessian = jax.linearize(gradient, W)
    step, _ = conjugate_gradients(lambda D: hessian(D * mask), value, lambda r: r, eps, INNER)
    return W - step, jnp.any(support)
