"""What a bound of the rounding error of predictions wants to know of X."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sparsejax._core.linalg import safe_divide, safe_sqrt
from sparsejax._core.matrices.sparse import column_sums, row_sums
from sparsejax._core.matrices.streamed import Chunked


class Sizes(NamedTuple):
    """For the error bound of XW: with D the norms of the columns, ``|x_i||w_j| <= ||x_i / D|| ||D w_j||``."""

    rows: jax.Array  # (n,), ||x_i / D||
    squares: jax.Array  # (d,), D^2


def sizes_of(X: Any) -> Sizes:
    """Those of X, dense or sparse."""
    if isinstance(X, Chunked):  # known since the first pass
        return Sizes(X.lengths, X.squares)
    squares = column_sums(jnp.square, X)
    return Sizes(safe_sqrt(row_sums(jnp.square, X, safe_divide(1.0, squares))), squares)
