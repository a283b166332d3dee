"""Features gathered into arrays of static sizes."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsejax._core.linalg import take

LARGEST = 1024  # features that a bucket holds where n < d
GROUPS = 32  # groups of the mean size in the largest bucket, at least
LEAST = 256  # features of a working set
MANY = 512  # features from which it is worth while to gather those that matter


def chosen(
    active: jax.Array,
    score: jax.Array,
    room: jax.Array | int,
    m: int,
    sizes: jax.Array | None = None,
    most: int = 0,
) -> jax.Array:
    """The numbers of the active features and of the others of the largest scores, at most ``room``, in (m,).

    The active ones come first. Places that are left, and those of scores of -inf, hold d, the number of no
    feature; where even the active ones are too many the last of them are left out. With ``sizes`` (d,) they
    have no more than ``most`` together.
    """
    ix = ranked(active, score, m)
    ix = jnp.where(jnp.arange(m, dtype=jnp.int32) < room, ix, score.shape[0])
    if sizes is None:
        return ix
    return jnp.where(jnp.cumsum(take(sizes, ix, 0), dtype=jnp.int32) <= most, ix, score.shape[0])


def ranked(active: jax.Array, score: jax.Array, m: int) -> jax.Array:
    """The numbers of the first m, the active ones before the others, these by their scores, largest first.

    The scores are compared in float32, of which XLA finds the largest on a CPU without sorting them all.
    """
    most = float(np.finfo(np.float32).max)
    low = jnp.where(active, jnp.inf, jnp.minimum(score, most)).astype(jnp.float32)
    found, ix = lax.top_k(low, m)
    return jnp.where(found > -jnp.inf, ix, score.shape[0])


def can_be_active(n: int, k: int) -> int:
    """About how many of more than n features are active at most, unless strengths are tiny."""
    return max(n * min(k + 2, 8) if k > 1 else 2 * n, 128)


def most_features(n: int, d: int, k: int) -> int:
    """How many features a step may move: what can be active, for d <= n all."""
    return min(d, LARGEST, can_be_active(n, k)) if n < d else d


def most_groups(n: int, d: int, k: int, count: int) -> tuple[int, int]:
    """How many features and how many groups a step may move, of ``count`` groups of all d features.

    As many features as so many groups of the mean size have, and half as many groups again: some are smaller.
    """
    mean = d / count
    most = min(d, max(LARGEST, GROUPS * mean), mean * can_be_active(n, k)) if n < d else d
    m = min(math.ceil(most), d)
    return m, min(m, count, math.ceil(1.5 * m / mean))


def working_set_size(n: int, params_shape: tuple[int, ...], always: int = 0) -> int:
    """Of a working set: what can be active beside what ``always`` is, within `LEAST` and `LARGEST`."""
    d, k = (*params_shape, 1)[:2]
    return min(max(64 * math.ceil((always + can_be_active(n, k)) / 64), LEAST), LARGEST, d)
