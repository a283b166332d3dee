"""Least squares of many rows given by few: by the triangle of a QR decomposition of the data."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import safe_divide
from sparsejax.losses._squared import SquaredLoss

ROWS_PER_COLUMN = 4  # of a block of rows: more take more memory, fewer take more work


def on_few_rows(loss: SquaredLoss) -> SquaredLoss:
    r"""The same function of W without weights and intercept, on d + k rows.

    With B the rows of X and Y, centred if there is an intercept and multiplied by the roots of their weights,
    ``B = QR`` and :math:`\|XW - Y\| = \|R_X W - R_Y\|`. Weights must be by row.
    """
    loss = _with_even_weights(loss)
    if not loss.has_intercept:
        return _few_rows(loss, loss.Y, lambda X: X)
    mean = mean_row(loss)
    return _few_rows(loss, loss.Y - mean.Y, lambda X: X - mean.X)


def held_out_on_few_rows(loss: SquaredLoss) -> SquaredLoss:
    """``loss.evaluate(W, b)`` as a function of W with the last row b, on d + 1 + k rows; weights by row.

    Its derivative in the data is not that of ``evaluate``: roots of weights have none at 0, nor has R where
    columns depend on each other.
    """
    loss = _with_even_weights(loss)
    return _few_rows(loss, loss.Y, lambda X: jnp.pad(X, ((0, 0), (0, 1)), constant_values=1))


def mean_row(loss: SquaredLoss) -> SquaredLoss:
    """The loss of one row, the weighted mean, which has the same ``intercept(W)``; weights by row."""
    loss = _with_even_weights(loss)
    w = jnp.broadcast_to(loss._weights().reshape(-1), loss.X.shape[:1])
    X, Y = (safe_divide(w @ rows, jnp.sum(w))[None] for rows in (loss.X, loss.Y))
    return loss._replace(X=X, Y=Y, weights=None)


def _with_even_weights(loss: SquaredLoss) -> SquaredLoss:
    """The same loss with weights of at most 1, whose products with extreme data do not over- or underflow."""
    if loss.weights is None:
        return loss
    exponent = jnp.frexp(jnp.max(loss.weights))[1]
    return loss._replace(weights=jnp.ldexp(loss.weights, -exponent), scale=jnp.ldexp(loss.scale, exponent))


def _few_rows(loss: SquaredLoss, Y: jax.Array, columns: Callable[[jax.Array], jax.Array]) -> SquaredLoss:
    """The loss without weights and intercept of rows with the R of ``columns(X)`` and Y.

    R is updated by blocks of rows, so that no copy of X is made. Its error is that of rounding the columns of
    the weighted rows, not that of rounding products X'X.
    """
    n, Z = len(Y), Y.reshape(len(Y), -1)
    root = jnp.sqrt(jnp.broadcast_to(loss._weights().reshape(-1), (n,)))
    d = jax.eval_shape(columns, loss.X).shape[1]
    few = d + Z.shape[1]
    size = min(n, ROWS_PER_COLUMN * few)

    def updated(i: jax.Array, R: jax.Array) -> jax.Array:
        start = jnp.minimum(i * size, n - size)  # the last block ends with the last row
        part = lambda rows: lax.dynamic_slice_in_dim(rows, start, size)
        new = jnp.arange(size) >= i * size - start
        block = jnp.concatenate([columns(part(loss.X)), part(Z)], axis=1)
        block = jnp.where(new, part(root), 0)[:, None] * block
        return jnp.linalg.qr(jnp.concatenate([R, block]), mode="r")

    R = lax.fori_loop(0, -(-n // size), updated, jnp.zeros((few, few), loss.dtype))
    # Solvers take the size of a column from its entries: they get the size that they had, and none is 0.
    R = _cosines(few, loss.dtype) @ R * (few / n) ** 0.5
    Y = R[:, d:].reshape(few, *Y.shape[1:])
    return loss._replace(X=R[:, :d], Y=Y, scale=loss.scale * (n / few), weights=None, has_intercept=False)


def _cosines(n: int, dtype: jnp.dtype) -> jax.Array:
    """The orthogonal matrix of the discrete cosine transform, (n, n), of entries of about one size."""
    i = jnp.arange(n, dtype=dtype)
    C = jnp.cos(jnp.pi / n * (i[None] + 0.5) * i[:, None]) * (2 / n) ** 0.5
    return C.at[0].divide(2**0.5)
