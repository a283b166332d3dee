"""Least squares of many rows as least squares of few rows: the triangle of a QR decomposition of the data."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import safe_divide
from sparsejax.losses._squared import SquaredLoss

# Rows of a block for each column of (X, Y): larger blocks take more memory, smaller blocks take more work.
ROWS_PER_COLUMN = 4


def on_few_rows(loss: SquaredLoss) -> SquaredLoss:
    r"""The same function of W as a loss of d + k rows without weights and without an intercept.

    Let B be the rows (X, Y), centred if there is an intercept, and multiplied by the roots of their weights.
    If ``B = QR``, then :math:`\|B_X W - B_Y\| = \|R_X W - R_Y\|`. Weights must be by row. Do not take
    derivatives in the data: see `held_out_on_few_rows`.
    """
    loss = _with_even_weights(loss)
    if not loss.has_intercept:
        return _few_rows(loss, loss.Y, lambda X: X)
    mean = mean_row(loss)
    return _few_rows(loss, loss.Y - mean.Y, lambda X: X - mean.X)


def held_out_on_few_rows(loss: SquaredLoss) -> SquaredLoss:
    """``loss.evaluate(W, b)`` as a loss of d + 1 + k rows, whose parameters are W with b as a last row.

    Weights must be by row. Do not take derivatives in the data: the root of a weight has no derivative at 0,
    and R has none where columns are linearly dependent.
    """
    loss = _with_even_weights(loss)
    return _few_rows(loss, loss.Y, lambda X: jnp.pad(X, ((0, 0), (0, 1)), constant_values=1))


def mean_row(loss: SquaredLoss) -> SquaredLoss:
    """The loss of one row, the weighted mean row, with the same ``intercept(W)``. Weights must be by row."""
    loss = _with_even_weights(loss)
    w = jnp.broadcast_to(loss._weights().reshape(-1), loss.X.shape[:1])
    X, Y = (safe_divide(w @ rows, jnp.sum(w))[None] for rows in (loss.X, loss.Y))
    return loss._replace(X=X, Y=Y, weights=None)


def _with_even_weights(loss: SquaredLoss) -> SquaredLoss:
    """The same loss with the largest weight in [1/2, 1), so that products with extreme data stay finite.

    A power of two moves from the weights to the scale.
    """
    if loss.weights is None:
        return loss
    exponent = jnp.frexp(jnp.max(loss.weights))[1]
    return loss._replace(weights=jnp.ldexp(loss.weights, -exponent), scale=jnp.ldexp(loss.scale, exponent))


def _few_rows(loss: SquaredLoss, Y: jax.Array, columns: Callable[[jax.Array], jax.Array]) -> SquaredLoss:
    """A loss without weights and intercept whose few rows are R of ``QR = sqrt(weights) (columns(X), Y)``.

    R is updated by one block of rows after another, so that no copy of X is made. The error of R is of the
    order of rounding the weighted rows; products X'X would lose half of the digits.
    """
    n, Z = len(Y), Y.reshape(len(Y), -1)
    root = jnp.sqrt(jnp.broadcast_to(loss._weights().reshape(-1), (n,)))
    d = jax.eval_shape(columns, loss.X).shape[1]
    few = d + Z.shape[1]
    size = min(n, ROWS_PER_COLUMN * few)

    def updated(i: jax.Array, R: jax.Array) -> jax.Array:
        start = jnp.minimum(i * size, n - size)  # the last block ends with the last row
        part = lambda rows: lax.dynamic_slice_in_dim(rows, start, size)
        unread = jnp.arange(size) >= i * size - start  # the last block overlaps the block before it
        block = jnp.concatenate([columns(part(loss.X)), part(Z)], axis=1)
        block = jnp.where(unread, part(root), 0)[:, None] * block
        return jnp.linalg.qr(jnp.concatenate([R, block]), mode="r")

    R = lax.fori_loop(0, -(-n // size), updated, jnp.zeros((few, few), loss.dtype))
    # Solvers estimate the size of a column from its entries. The orthogonal matrix spreads each column of R
    # over all rows, and the factor gives the column the root mean square that it had in n rows.
    R = _cosines(few, loss.dtype) @ R * (few / n) ** 0.5
    Y = R[:, d:].reshape(few, *Y.shape[1:])
    return loss._replace(X=R[:, :d], Y=Y, scale=loss.scale * (n / few), weights=None, has_intercept=False)


def _cosines(n: int, dtype: jnp.dtype) -> jax.Array:
    """The orthogonal matrix of the discrete cosine transform, (n, n), whose entries are of about one size."""
    i = jnp.arange(n, dtype=jnp.int32)
    # Entry (i, j) is cos(pi (2j + 1) i / 2n). The integer (2j + 1) i, which fits int32 for n up to 32 000, is
    # reduced to one period, 4n: an angle of up to pi n would have a rounding error n times as large.
    places = (2 * i[None] + 1) * i[:, None] % (4 * n)
    C = jnp.cos(jnp.pi / (2 * n) * places.astype(dtype)) * (2 / n) ** 0.5
    return C.at[0].divide(2**0.5)
