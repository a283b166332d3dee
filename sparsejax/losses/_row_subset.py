"""A loss of some of its rows."""

import jax
import jax.numpy as jnp

from sparsejax._core.linalg import take
from sparsejax._core.matrices.products import Products
from sparsejax.losses._base import Loss
from sparsejax.losses._graph import SumLoss
from sparsejax.losses._linear_model import BASE_LEAVES, LinearModelLoss

LARGEST = 2**28  # bytes of a copy


def rows_alone(smooth: Loss, weights: jax.Array, most: int) -> Loss:
    """The loss with these weights, of which at most ``most`` rows are not 0: of those rows alone, copied.

    Of all rows where X is no array, or where a loss is not of `sparsejax.losses` or has more that is by row;
    and where the copy, one for each core, would take too much memory.
    """
    if isinstance(smooth, SumLoss):  # graphs are of labels
        return smooth._replace(loss=rows_alone(smooth.loss, weights, most))
    n = weights.shape[0]
    if not isinstance(smooth, LinearModelLoss) or isinstance(smooth.X, Products) or most >= n:
        return smooth.reweighted(weights)
    more = [getattr(smooth, name) for name in smooth._leaves if name not in BASE_LEAVES]
    large = most * smooth.X.shape[1] * smooth.X.dtype.itemsize > LARGEST
    if large or not smooth._self_contained or any(map(jnp.ndim, more)):
        return smooth.reweighted(weights)
    ix = jnp.nonzero(jnp.any(weights.reshape(n, -1) != 0, axis=1), size=most, fill_value=n)[0]
    X, Y, kept = (take(a, ix, 0) for a in (smooth.X, smooth.Y, weights))
    return smooth._replace(X=X, Y=Y, weights=kept)
