"""Norms of rows and columns of X, for a bound on the rounding error of the predictions XW."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import safe_divide, safe_sqrt
from sparsejax._core.matrices.sparse import column_sums, squares_along_rows
from sparsejax._core.matrices.streamed import Chunked


class Sizes(NamedTuple):
    """Numbers for the bound ``sum_j |x_ij w_j| <= ||x_i / D|| ||D w||``, D the norms of the columns of X."""

    rows: jax.Array  # (n,), ||x_i / D|| for each row x_i
    squares: jax.Array  # (d,), D^2, the squared norm of each column


def sizes_of(X: Any) -> Sizes:
    """The `Sizes` of X: dense, sparse or read in batches."""
    if isinstance(X, Chunked):  # the first pass over the data has computed them
        return Sizes(X.lengths, X.squares)
    squares = column_sums(jnp.square, X)
    return Sizes(safe_sqrt(squares_along_rows(X, safe_divide(1.0, squares))), squares)


def trace_of(X: Any, bound: float | None, scale: jax.Array) -> Callable[[], jax.Array] | None:
    """A function that returns the trace of ``scale * bound * X'X``; None without a bound or a dense X.

    Args:
      X: (n, d), of a loss without weights and without an intercept.
      bound: upper bound on the second derivative in an entry of the predictions, or None.
      scale: ().
    """
    if bound is None or not isinstance(X, jax.Array):
        return None
    # Without the barrier XLA would merge both sums into one sum over all entries, and read X again for it.
    return lambda: scale * bound * jnp.sum(lax.optimization_barrier(sizes_of(X).squares))
