"""Norms of rows and columns of X, for a bound on the rounding error of the predictions XW."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sparsejax._core.linalg import safe_divide, safe_sqrt
from sparsejax._core.matrices.sparse import column_sums, row_sums
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
    return Sizes(safe_sqrt(row_sums(jnp.square, X, safe_divide(1.0, squares))), squares)
