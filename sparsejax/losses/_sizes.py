"""Norms of the columns and scaled rows of X, for the rounding error of XW, and the trace of X'X."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import safe_divide, safe_sqrt
from sparsejax._core.matrices.sparse import column_sums, squares_along_rows
from sparsejax._core.matrices.streamed import Chunked


class Sizes(NamedTuple):
    """Norms with which a loss bounds the rounding error of its predictions XW.

    For a row x_i of X and a column w of W, ``sum_j |x_ij w_j| <= ||x_i / D|| ||D w||`` (Cauchy-Schwarz).
    D (d,) holds the norms of the columns of X; ``x_i / D`` and ``D w`` are by entry. A loss takes 2 eps times
    the right side as the error of ``x_i w``. D makes the bound independent of the units of the columns.
    """

    scaled_row_norms: jax.Array  # (n,), ||x_i / D|| for each row x_i
    squares: jax.Array  # (d,), D^2, the squared norm of each column


def sizes_of(X: Any) -> Sizes:
    """The `Sizes` of X: dense, sparse or read in batches."""
    if isinstance(X, Chunked):  # `from_batches` has computed both norms, in two passes over the rows
        return Sizes(X.lengths, X.squares)
    squares = column_sums(jnp.square, X)
    # Where D_j = 0, column j is zero: `safe_divide` gives it the weight 0 in the norm of x_i / D.
    return Sizes(safe_sqrt(squares_along_rows(X, safe_divide(1.0, squares))), squares)


def trace_of(X: Any, bound: jax.Array | float | None, scale: jax.Array) -> Callable[[], jax.Array] | None:
    """`QuadraticModel.trace`: a function that returns the trace of ``scale * bound * X'X``, shape ().

    None if there is no bound, or if X is sparse or read in batches.

    Args:
      X: (n, d), of a loss without weights and intercept: only then ``scale * bound * X'X`` is the A'A of
        `QuadraticModel`.
      bound: `LinearModelLoss.curvature`, an upper bound on the second derivative in a prediction, or None.
      scale: (), the scale of the loss.
    """
    if bound is None or not isinstance(X, jax.Array):
        return None
    # A program that also computes `Sizes` shares their column sums. Without the barrier XLA would merge the
    # sum down the columns and the sum over columns into one over all entries, and read X again for that sum.
    return lambda: scale * bound * jnp.sum(lax.optimization_barrier(column_sums(jnp.square, X)))
