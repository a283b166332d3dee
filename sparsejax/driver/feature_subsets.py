"""Choosing the features that a step moves, and the static sizes of the arrays that hold them."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsejax._core.linalg import take
from sparsejax.losses import Loss, QuadraticModel

# A bucket holds the features that a step moves, in arrays of a static size.
MAX_BUCKET_FEATURES = 1024  # most features in a bucket if n < d, unless groups are large
MIN_GROUPS_IN_BUCKET = 32  # the largest bucket holds at least so many groups of the mean size
MIN_WORKING_SET_FEATURES = 256  # unless d is smaller
MIN_FEATURES_TO_GATHER = 512  # fewest features of W for which gathering some of them saves time


def chosen(
    active: jax.Array,
    score: jax.Array,
    room: jax.Array | int,
    m: int,
    sizes: jax.Array | None = None,
    most: int = 0,
) -> jax.Array:
    """Indices (m,) of the active features, then of those with the largest scores; at most ``room`` in all.

    Unused places hold d, which is the index of no feature; a feature with the score -inf is never chosen
    unless it is active. If there are more active features than places, those with the largest indices are
    left out.

    Args:
      active: (d,) boolean.
      score: (d,), orders the features that are not active.
      room: number of features to choose, at most m; may be traced.
      m: length of the result, static.
      sizes: (d,), the size of each feature, such as its number of stored entries; None: sizes do not count.
      most: the largest sum of the sizes of the chosen features.
    """
    ix = ranked(active, score, m)
    ix = jnp.where(jnp.arange(m, dtype=jnp.int32) < room, ix, score.shape[0])
    if sizes is None:
        return ix
    return jnp.where(jnp.cumsum(take(sizes, ix, 0), dtype=jnp.int32) <= most, ix, score.shape[0])


def ranked(active: jax.Array, score: jax.Array, m: int) -> jax.Array:
    """Indices (m,) of the active features, then of the others from the largest score to the smallest.

    The scores are compared in float32: XLA on a CPU finds the largest float32 numbers without sorting all.
    """
    most = float(np.finfo(np.float32).max)  # a larger score would become infinite, as that of active features
    keys = jnp.where(active, jnp.inf, jnp.minimum(score, most)).astype(jnp.float32)
    found, ix = lax.top_k(keys, m)
    return jnp.where(found > -jnp.inf, ix, score.shape[0])


def can_be_active(n: int, k: int) -> int:
    """About the largest number of active features if d > n, unless the strengths are tiny."""
    return max(n * min(k + 2, 8) if k > 1 else 2 * n, 128)


def most_features(n: int, d: int, k: int) -> int:
    """The number of features that a step may move.

    These are all features if d <= n, else as many as can be active, at most `MAX_BUCKET_FEATURES`.
    """
    return min(d, MAX_BUCKET_FEATURES, can_be_active(n, k)) if n < d else d


def most_groups(n: int, d: int, k: int, count: int) -> tuple[int, int]:
    """The number of features and the number of groups that a step may move, of ``count`` groups in all.

    There is room for 1.5 times as many groups as groups of the mean size would fill, since some are smaller.
    """
    mean, most = d / count, float(d)
    if n < d:  # as many groups can be active as single features could
        most = min(d, max(MAX_BUCKET_FEATURES, MIN_GROUPS_IN_BUCKET * mean), mean * can_be_active(n, k))
    m = math.ceil(most)
    return m, min(m, count, math.ceil(1.5 * m / mean))


def working_set_size(n: int, params_shape: tuple[int, ...], always: int = 0) -> int:
    """The number of features in a working set: for ``always`` active ones, and for others that can be active.

    It is a multiple of 64 from `MIN_WORKING_SET_FEATURES` to `MAX_BUCKET_FEATURES`, or d if that is less.
    With one column hardly more than n features are active: there is room for 3n/2.

    Args:
      n: number of rows of X.
      params_shape: shape of W, (d, k) or (d,).
      always: number of features that are active however large the strengths are.
    """
    d, k = (*params_shape, 1)[:2]
    room = can_be_active(n, k) if k > 1 else 3 * n // 2
    return min(max(64 * math.ceil((always + room) / 64), MIN_WORKING_SET_FEATURES), MAX_BUCKET_FEATURES, d)


def model_of_part(smooth: Loss, part: Callable[[Any], Any]) -> QuadraticModel:
    """The quadratic model of ``part(smooth)``, such as a loss of some features; use only its static fields.

    ``part`` and ``quadratic_model`` are traced, not run, since they may compute with arrays.
    """
    found: list[QuadraticModel] = []
    jax.eval_shape(lambda smooth: found.append(part(smooth).quadratic_model()), smooth)
    return found[0]
