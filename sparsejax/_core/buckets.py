"""Features gathered into arrays of static sizes."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

HALVINGS = 24
# How many, each of which takes .4 s to compile; the size of the first, and that of the last for n < d.
BUCKETS, SMALL, LARGEST = 6, 64, 1024
LAST = 2048  # of rows alone, in place of the last but one, where more than LARGEST can be active
FEWEST, GROUPS = 8, 32  # groups of the mean size in the first bucket, and at least in the last
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

    The active ones come first. Places that are left hold d, the number of no feature; where even the active
    ones are too many the last of them are left out. With ``sizes`` (d,) they have no more than ``most``
    together.
    """
    d = score.shape[0]

    def fits(more: jax.Array) -> jax.Array:
        number = jnp.sum(more | active, dtype=jnp.int32) <= room
        if sizes is None:
            return number
        return number & (jnp.sum(jnp.where(more | active, sizes, 0), dtype=jnp.int32) <= most)

    rank = ranks(active, score, fits)
    place = places(rank, 1, m)
    place = jnp.where(place < room, place, m)
    ix = jnp.full(m, d, jnp.int32).at[place].set(jnp.arange(d, dtype=jnp.int32), mode="drop")
    if sizes is None:
        return ix
    return jnp.where(jnp.cumsum(take(sizes, ix, 0), dtype=jnp.int32) <= most, ix, d)


def ranks(active: jax.Array, score: jax.Array, fits: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """0 for the active ones; 1 for the largest scores that fit beside them; 2 for the next score; else 3.

    A threshold of the scores is found by bisection: to sort them all takes ten times as long.
    """
    top = jnp.max(jnp.where(jnp.isinf(score), 0, score))

    def halve(_: Any, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = ends
        middle = (low + high) / 2
        fit = fits((score > middle) & ~active)
        return jnp.where(fit, low, middle), jnp.where(fit, middle, high)

    low, high = lax.fori_loop(0, HALVINGS, halve, (-top - 1, top))
    # What is between the two are equal scores: the first of them come in.
    return jnp.where(active, 0, jnp.where(score > high, 1, jnp.where(score > low, 2, 3)))


def places(rank: jax.Array, size: jax.Array | int, none: int) -> jax.Array:
    """Where each begins, put one after the other by rank, each taking its size; of rank 3 ``none``.

    One running sum over the three ranks in turn: three of them take three times as long to compile.
    """
    members = rank[None] == jnp.arange(3, dtype=rank.dtype)[:, None]
    size = jnp.broadcast_to(size, rank.shape)[None]
    taken = jnp.where(members, size, 0).astype(jnp.int32)
    begin = jnp.cumsum(taken.ravel(), dtype=jnp.int32).reshape(taken.shape) - size
    return jnp.where(rank < 3, jnp.sum(jnp.where(members, begin, 0), axis=0, dtype=jnp.int32), none)


def can_be_active(n: int, k: int) -> int:
    """About how many of more than n features are active at most, unless strengths are tiny."""
    return max(n * min(k + 2, 8) if k > 1 else 2 * n, 128)


def buckets(n: int, d: int, k: int) -> tuple[int, ...]:
    """How many features a step may move, smallest first, closer together where they are small.

    The last one holds what can be active, for d <= n all.
    """
    most = min(d, LARGEST, can_be_active(n, k)) if n < d else d
    wanted = (most * (number / BUCKETS) ** 1.5 for number in range(1, BUCKETS + 1))
    sizes = sorted({min(max(32 * math.ceil(size / 32), SMALL), d) for size in wanted})
    last = min(d, LAST, can_be_active(n, k))
    return (*sizes[:-2], sizes[-1], last) if n < d and last > sizes[-1] else tuple(sizes)


def group_buckets(n: int, d: int, k: int, count: int) -> tuple[tuple[int, int], ...]:
    """How many features and how many groups a step may move, of ``count`` groups of all d features.

    As many features as so many groups of the mean size have, and half as many groups again: some are smaller.
    """
    mean = d / count
    most = min(d, max(LARGEST, GROUPS * mean), mean * can_be_active(n, k)) if n < d else d
    found = set()
    for number in range(1, BUCKETS + 1):
        size = max(most * (number / BUCKETS) ** 1.5, SMALL, FEWEST * mean)
        m = min(32 * math.ceil(size / 32), d)
        found.add((m, min(m, count, 32 * math.ceil(1.5 * m / mean / 32))))
    return tuple(sorted(found))


def working_set_size(n: int, params_shape: tuple[int, ...], always: int = 0) -> int:
    """Of a working set: what can be active beside what ``always`` is, within `LEAST` and `LARGEST`."""
    d, k = (*params_shape, 1)[:2]
    return min(max(64 * math.ceil((always + can_be_active(n, k)) / 64), LEAST), LARGEST, d)


def take(a: jax.Array, ix: jax.Array, axis: int) -> jax.Array:
    """The parts of these numbers, 0 for the number of no feature."""
    return jnp.take(a, ix, axis=axis, mode="fill", fill_value=0)
