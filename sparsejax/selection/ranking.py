"""Lists of selected features, from a weight matrix."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float, as_int


class FeatureRanking(NamedTuple):
    """Features of each class by decreasing weight, from `rank_features`.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> sj.rank_features(jnp.array([[1.0, 0.0], [-2.0, 3.0]]), 1).scores.tolist()
    [[2.0, 3.0]]
    """

    indices: jax.Array  # (num, k) or (num,), int32: features by decreasing |weight|, one column a class
    scores: jax.Array  # same shape: |weight|; 0 means that the feature is not selected


def rank_features(W: ArrayLike, num: int | None = None) -> FeatureRanking:
    """The features with the largest weights of each class.

    Args:
      W: (d, k), or (d,) for one class.
      num: how many to return for each class, 1 <= num <= d; default all d.

    Returns:
      `FeatureRanking` with ``indices`` and ``scores`` of shape (num, k), or (num,). Equal weights keep
      the order of the features. A score of exactly 0 belongs to a feature that the penalty removed: it
      only fills the list.

    Raises:
      TypeError, ValueError: W does not hold real numbers, is not 1-d or 2-d, has no rows or is not finite
        (under jit NaN ranks first), or ``num`` is out of range.
    Source: Ming & Ding, IJCAI 2019, Section 6.2 ("top features with largest weights for each class").

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> sj.rank_features(jnp.array([[1.0, 0.0], [-2.0, 3.0]]), 1).indices.tolist()
    [[1, 1]]
    """
    W = as_float("W", W, tuple(range(33)))
    if W.ndim not in (1, 2) or W.shape[0] == 0:
        raise ValueError(f"W must have shape (d, k) or (d,), got {W.shape}.")
    num = as_int("num", W.shape[0] if num is None else num, 1, W.shape[0])
    scores = jnp.abs(W)
    order = jnp.argsort(scores, axis=0, stable=True, descending=True)[:num].astype(jnp.int32)
    return FeatureRanking(order, jnp.take_along_axis(scores, order, axis=0))
