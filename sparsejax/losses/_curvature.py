"""The Hessian of a loss, in blocks."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.layout import columns, like
from sparsejax._core.linalg import safe_divide


def by_products(loss: Any, W: jax.Array) -> jax.Array:
    """The Hessian in the columns of W one after the other, (1, kd, kd), of any loss."""
    product = jax.linearize(jax.grad(loss), W)[1]
    basis = jnp.eye(W.size, dtype=W.dtype).reshape(W.size, *columns(W).shape)
    H = jax.vmap(lambda Vt: columns(product(like(Vt, W))))(basis).reshape(W.size, W.size)
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
    blocks: jax.Array = lax.map(block, curved.T)
    return blocks
