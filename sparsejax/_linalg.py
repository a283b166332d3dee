"""Small pieces of linear algebra that proximal operators, derivatives and solvers share."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax


def safe_norm(x: jax.Array) -> jax.Array:
    """2-norm of the columns of x (p, ...), with derivative 0 rather than NaN at 0."""
    n2 = jnp.sum(x * x, axis=0)
    return jnp.where(n2 > 0, jnp.sqrt(jnp.where(n2 > 0, n2, 1)), 0)


def norm(x: jax.Array) -> jax.Array:
    """Frobenius norm; not differentiable at 0."""
    return jnp.sqrt(jnp.sum(x * x))


def joint_norm(arrays: Sequence[jax.Array]) -> jax.Array:
    """Frobenius norm of several arrays together; not differentiable at 0."""
    return jnp.sqrt(sum(jnp.sum(x * x) for x in arrays))


def conjugate_gradients(
    matvec: Callable[[jax.Array], jax.Array],
    b: jax.Array,
    precondition: Callable[[jax.Array], jax.Array],
    tol: jax.Array | float,
    maxiter: int,
) -> jax.Array:
    """Preconditioned conjugate gradients from zero until the residual has fallen by ``tol``.

    A direction without curvature (a singular system) ends the iteration.
    """

    def cond(c):
        _, r, _, rz, n = c
        return (norm(r) > tol * size) & (rz > 0) & (n < maxiter)

    def body(c):
        x, r, p, rz, n = c
        Ap = matvec(p)
        curvature = jnp.sum(p * Ap)
        a = jnp.where(curvature > 0, rz / jnp.where(curvature > 0, curvature, 1), 0)
        x, r = x + a * p, r - a * Ap
        z = precondition(r)
        new = jnp.where(a > 0, jnp.sum(r * z), 0)
        return x, r, z + new / rz * p, new, n + 1

    size = norm(b)
    z = precondition(b)
    start = (jnp.zeros_like(b), b, z, jnp.sum(b * z), jnp.int32(0))
    return lax.while_loop(cond, body, start)[0]
