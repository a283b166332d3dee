"""Newton's method on the support of W, for the last digits, where first-order steps are slow."""

import jax
import jax.numpy as jnp

from sparsejax._core.linalg import conjugate_gradients, eps_of
from sparsejax.problem import Problem

MAX_FINISH_STEPS = 5  # at most so many Newton steps follow a stalled solve, see `Loop`
MAX_CG_STEPS = 1000  # conjugate gradient steps in each Newton step


def newton_step(problem: Problem, W: jax.Array) -> tuple[jax.Array, jax.Array]:
    """W after a Newton step in the entries where the penalty is smooth, and whether there are such entries.

    The system is symmetric positive semidefinite. Conjugate gradients on Hessian products solve it even if
    columns of X depend on one another. The step has full length, so that the objective may rise: the caller
    keeps the better of the two points. The other entries of W stay as they are.
    """
    support = problem.penalty.smooth_where(W)
    mask: jax.Array = support.astype(W.dtype)
    eps = eps_of(W)

    def gradient(V: jax.Array) -> jax.Array:
        return jax.grad(problem)(V) * mask

    g, hessian = jax.linearize(gradient, W)
    # H step = g
    step, _ = conjugate_gradients(lambda D: hessian(D * mask), g, lambda r: r, eps, MAX_CG_STEPS)
    return W - step, jnp.any(support)
