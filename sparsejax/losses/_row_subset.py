"""A copy of a loss that has only the rows with a weight."""

import jax
import jax.numpy as jnp

from sparsejax._core.linalg import take
from sparsejax._core.matrices.products import Products
from sparsejax.losses._base import Loss
from sparsejax.losses._cox import CoxLoss
from sparsejax.losses._graph import SumLoss
from sparsejax.losses._linear_model import BASE_LEAVES, LinearModelLoss

MAX_COPY_BYTES = 2**28  # 256 MiB, of the copy of X: each core may make one at the same time


def rows_alone(smooth: Loss, weights: jax.Array, most: int) -> Loss:
    """The loss with these weights; if possible a copy that has only the rows whose weight is not 0.

    The copy has ``most`` rows: rows of zeros with the weight 0 fill it up. The loss keeps all rows if

    * ``most`` is at least n, or the copy of X would take more than `MAX_COPY_BYTES`;
    * X is sparse or read in batches;
    * the class is not of this library, is neither a `LinearModelLoss` nor a `CoxLoss`, or has a leaf of its
      own that is not a scalar.

    Args:
      smooth: the loss of n rows.
      weights: (n,) by row or (n, k) by entry.
      most: static, an upper bound on the number of rows with a weight that is not 0.
    """
    if isinstance(smooth, SumLoss):  # graphs are about labels and have no rows
        return smooth._replace(loss=rows_alone(smooth.loss, weights, most))
    n = weights.shape[0]
    if not isinstance(smooth, LinearModelLoss | CoxLoss) or isinstance(smooth.X, Products) or most >= n:
        return smooth.reweighted(weights)
    large = most * smooth.X.shape[1] * smooth.X.dtype.itemsize > MAX_COPY_BYTES
    if large or not smooth._self_contained:
        return smooth.reweighted(weights)
    if isinstance(smooth, CoxLoss):
        return smooth.rows_alone(weights, most)
    more = [getattr(smooth, name) for name in smooth._leaves if name not in BASE_LEAVES]
    if any(map(jnp.ndim, more)):
        return smooth.reweighted(weights)
    ix = jnp.nonzero(jnp.any(weights.reshape(n, -1) != 0, axis=1), size=most, fill_value=n)[0]
    X, Y, kept = (take(a, ix, 0) for a in (smooth.X, smooth.Y, weights))
    return smooth._replace(X=X, Y=Y, weights=kept)
