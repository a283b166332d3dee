"""The Hessian of a loss, in blocks; the scaling of a dual point of a quadratic one."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import columns, eps_of, like, safe_divide


def by_products(loss: Any, W: jax.Array, together: int | None = None) -> jax.Array:
    """The Hessian in the columns of W one after the other, (1, kd, kd), of any loss.

    So many of its columns at once, if not all.
    """
    product = jax.linearize(jax.grad(loss), W)[1]
    basis = jnp.eye(W.size, dtype=W.dtype).reshape(W.size, *columns(W).shape)

    def column(Vt: jax.Array) -> jax.Array:
        return columns(product(like(Vt, W)))

    found = jax.vmap(column)(basis) if together is None else lax.map(column, basis, batch_size=together)
    H = found.reshape(W.size, W.size)
    return (H + H.T)[None] / 2


def of_columns(X: jax.Array, curved: jax.Array, centred: bool) -> jax.Array:
    """X' diag(c) X for each column c of ``curved`` (n, k): (k, d, d), or for n < d the roots (k, n, d).

    With ``centred`` the best intercept of each column is eliminated.
    """

    def block(c: jax.Array) -> jax.Array:
        B = X - safe_divide(c @ X, jnp.sum(c))[None] if centred else X
        if X.shape[0] < X.shape[1]:
            return jnp.sqrt(c)[:, None] * B
        return (B * c[:, None]).T @ B

    # One after the other: products of matrices, and no memory for more than one.
    return lax.map(block, curved.T)


def of_classes(X: jax.Array, p: jax.Array, w: jax.Array, intercept: bool) -> jax.Array:
    r"""The Hessian of the multinomial loss at probabilities p (n, k) and weights w (n,), (kd, kd).

    Its blocks are :math:`X^\top \operatorname{diag}(w(p_a[a = b] - p_a p_b))X`. With ``intercept`` the best
    intercepts are eliminated: a column of ones, whose own block is singular along equal intercepts.
    """
    (n, d), k = X.shape, p.shape[1]
    if intercept:
        X = jnp.concatenate([X, jnp.ones((n, 1), X.dtype)], axis=1)
    e = X.shape[1]
    M = (jnp.sqrt(w)[:, None] * p)[:, :, None] * X[:, None]  # (n, k, e)
    H: jax.Array = -(M.reshape(n, k * e).T @ M.reshape(n, k * e)).reshape(k, e, k, e)
    own = lax.map(lambda c: (X * c[:, None]).T @ X, (w[:, None] * p).T)
    H = H + own[:, :, None] * jnp.eye(k, dtype=X.dtype)[:, None, :, None]
    if not intercept:
        return H.reshape(k * e, k * e)
    rest, C, B = H[:, :d, :, :d].reshape(k * d, k * d), H[:, d, :, :d].reshape(k, k * d), H[:, d, :, d]
    size = jnp.trace(B) / k
    # classes of no row have an intercept that does nothing
    one = jnp.eye(k, dtype=B.dtype)
    B = jnp.where(size > 0, B + size * (1 + 4 * eps_of(B) * one), one)
    return rest - C.T @ jnp.linalg.solve(B, C)


def quadratic_scaling(linear: jax.Array, square: jax.Array, limit: jax.Array) -> tuple[jax.Array, jax.Array]:
    """For l*(sU) = s*linear + s^2*square: its minimiser over 0 <= s <= limit, and l*(sU) - l*(U).

    Not below 0: the domain of a conjugate need not be symmetric.
    """
    best = safe_divide(-linear, 2 * square, 1)
    s = jnp.clip(best, 0, limit)
    return s, (s - 1) * (linear + (s + 1) * square)
