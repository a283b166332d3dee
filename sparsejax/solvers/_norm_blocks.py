r"""Norms of rows, or of groups of rows, as Newton's method on one scalar each wants them.

.. math:: g(W) = \sum_b \alpha_b\|W_b\|_F + \tfrac{m_b}{2}\|W_b\|_F^2 .
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.linalg import safe_divide, safe_norm, safe_sqrt, take
from sparsejax._core.tiles import TILE, by_tiles, put_both, rows_at, whole
from sparsejax.driver.feature_subsets import chosen, most_features, most_groups, ranked
from sparsejax.groups import Groups

FILL = 0.95  # of a bucket: a full one could not exchange blocks
STAYS = 0.2  # of the blocks about to come in, how many are taken to stay
LOW = jnp.float32  # precise enough for the Hessian of a step
FEWEST_GROUPS = 8  # groups of the mean size in the smallest bucket


class Chosen(NamedTuple):
    """What a step moves: the blocks of a bucket, in whole tiles of features and of blocks."""

    blocks: jax.Array  # (b,) numbers; as many as there are where there is none
    ix: jax.Array  # (m,) features, those of a block together; d where there is none
    at: Any  # (m,) for each of them the place in ``blocks`` of its block; None: its own
    block_tiles: jax.Array  # tiles of blocks in use


class Blocks:
    """What rows and groups have in common.

    Args:
      alpha, ridge: of each block.
      most: features and blocks that the largest bucket holds, in `whole` tiles.
      least: tiles of features in the smallest bucket.
    """

    def __init__(self, alpha: jax.Array, ridge: jax.Array | None, most: tuple[int, int], least: int):
        self.alpha, self.ridge, self.most, self.least = alpha, ridge, most, least
        self.tile, self.block_tile = (min(size, TILE) for size in most)
        self.tiles = most[0] // self.tile

    def ratios(self, t: jax.Array, c: jax.Array) -> jax.Array:
        """How far c, the norms of the blocks of C, is above what t allows: 1 where t is right."""
        if self.ridge is not None:
            c = c / (1 + self.ridge * t)
        return safe_divide(c, self.alpha, jnp.inf)

    def value(self, t: jax.Array, c: jax.Array) -> jax.Array:
        """g(W)."""
        if self.ridge is None:
            return jnp.sum(self.alpha * t * c)
        size = weights(t, self.ridge) * c
        return jnp.sum(self.alpha * size + self.ridge / 2 * size * size)

    def conjugate(self, c: jax.Array) -> tuple[jax.Array, jax.Array | float]:
        """The largest s <= 1 at which g*(sC) is finite, and g*(sC)."""
        beyond = safe_divide(c, self.alpha, jnp.inf)
        if self.ridge is None:
            return 1 / jnp.maximum(jnp.max(beyond), 1), 0.0
        s = 1 / jnp.maximum(jnp.max(jnp.where(self.ridge > 0, 0, beyond)), 1)
        above = jnp.maximum(s * c - self.alpha, 0)
        return s, jnp.sum(safe_divide(above * above, 2 * self.ridge))


class Rows(Blocks):
    """Every row a block."""

    def norms(self, C: jax.Array) -> jax.Array:
        """Of the blocks of C (k, d)."""
        return safe_norm(C)

    def spread(self, t: jax.Array) -> jax.Array:
        """From blocks to features, (d,)."""
        return t

    def chosen(self, active: jax.Array, score: jax.Array, tiles: jax.Array) -> Chosen:
        """The active blocks, and of the others those of the largest scores, in so many tiles of features."""
        (m, _), d = self.most, score.shape[0]
        ix = chosen(active, score, tiles * self.tile, min(m, d))
        ix = jnp.pad(ix, (0, m - ix.shape[0]), constant_values=d)
        return Chosen(ix, ix, None, tiles)

    def wanted(self, active: jax.Array, enters: jax.Array, beyond: jax.Array) -> tuple[jax.Array, jax.Array]:
        """How many features a bucket must hold, and how many it had better.

        Beside the active blocks there are those that may enter, and those beyond, which are about to.
        """
        count = jnp.sum(active, dtype=self.alpha.dtype)
        more = jnp.sum(beyond & ~active, dtype=self.alpha.dtype)
        least = count / FILL
        if self.most[0] >= active.shape[0]:  # a bucket of all may be full
            least = jnp.minimum(least, active.shape[0])
        return least, (count + STAYS * more) / FILL

    def room(self) -> jax.Array:
        """For the Hessian by the scales."""
        m, _ = self.most
        return jnp.zeros((m, m), LOW)

    def windows(self, S: Any, C: jax.Array, at: Any, tiles: jax.Array, room: jax.Array) -> jax.Array:
        """The Hessian by the scales, (b, b): of S(i, j), tiles of A'K^-1 A, and C (m, k) of the features."""
        T = self.tile

        def entry(i: jax.Array, j: jax.Array) -> jax.Array:
            Q: jax.Array = rows_at(C, i, T) @ rows_at(C, j, T).T
            return Q * jnp.asarray(S(i, j))

        return by_tiles(lambda i, j, H: put_both(H, i, j, entry(i, j)), tiles, room)


class Grouped(Blocks):
    """Blocks of disjoint groups, which hold all features."""

    def __init__(
        self, alpha: jax.Array, ridge: jax.Array | None, most: tuple[int, int], least: int, groups: Groups
    ):
        super().__init__(alpha, ridge, most, least)
        self.groups = groups
        self.counts = groups.sums(jnp.ones(groups.num_features, jnp.int32))

    def norms(self, C: jax.Array) -> jax.Array:
        """Same as of `Rows`."""
        return safe_sqrt(self.groups.sums(jnp.sum(C * C, axis=0)))

    def spread(self, t: jax.Array) -> jax.Array:
        """Same as of `Rows`."""
        return t[self.groups.sorted_group_ids]

    def chosen(self, active: jax.Array, score: jax.Array, tiles: jax.Array) -> Chosen:
        """Same as `Rows.chosen`; a group enters as a whole or not at all."""
        counts, ids = self.counts, self.groups.group_ids
        (m, b), (d, count) = self.most, (ids.shape[0], counts.shape[0])
        numbers = ranked(active, score, min(b, count))
        numbers = jnp.pad(numbers, (0, b - numbers.shape[0]), constant_values=count)
        place = jnp.arange(b, dtype=jnp.int32)
        held = take(counts, numbers, 0)
        end = jnp.cumsum(held, dtype=jnp.int32)
        entered = (end <= tiles * self.tile) & (numbers < count)
        numbers = jnp.where(entered, numbers, count)
        begin = jnp.full(count, m, jnp.int32).at[numbers].set(end - held, mode="drop")
        number = jnp.full(count, b, jnp.int32).at[numbers].set(place, mode="drop")
        # memberships are sorted by group
        rest = jnp.arange(d, dtype=jnp.int32) - (jnp.cumsum(counts, dtype=jnp.int32) - counts)[ids]
        place = begin[ids] + rest
        ix = jnp.full(m, d, jnp.int32).at[place].set(self.groups.members, mode="drop")
        at = jnp.full(m, b, jnp.int32).at[place].set(number[ids], mode="drop")
        size = self.block_tile
        return Chosen(numbers, ix, at, (jnp.sum(entered, dtype=jnp.int32) + size - 1) // size)

    def held(self, active: jax.Array) -> jax.Array:
        """How many features the active blocks hold."""
        return jnp.sum(jnp.where(active, self.counts, 0), dtype=jnp.int32)

    def wanted(self, active: jax.Array, enters: jax.Array, beyond: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Same as `Rows.wanted`: the largest group that may enter must fit."""
        held, (_, b), dtype = self.held(active), self.most, self.alpha.dtype
        full = jnp.sum(active) > (int(FILL * b) if b < active.shape[0] else b)
        larger = jnp.max(jnp.where(enters & ~active, self.counts, 0))
        least = jnp.where(full, jnp.inf, (held + larger).astype(dtype))
        coming = self.held(beyond & ~active).astype(dtype)
        return least, (held.astype(dtype) + STAYS * coming) / FILL

    def room(self) -> jax.Array:
        """With room for the windows of the last blocks, and of features that there are not."""
        b = self.most[1] + self.tile
        return jnp.zeros((b, b), LOW)

    def windows(self, S: Any, C: jax.Array, at: Any, tiles: jax.Array, room: jax.Array) -> jax.Array:
        """Same as `Rows.windows`.

        The features of a block stand together, so that those of a tile belong to blocks that stand together,
        at most as many as a tile has features: a window of H.
        """
        b, T = self.most[1], self.tile
        local = jnp.arange(T, dtype=jnp.int32)

        def held(i: jax.Array) -> tuple[jax.Array, jax.Array]:
            places = rows_at(at, i, T)
            first = jnp.minimum(places[0], b)
            return first, ((places - first)[:, None] == local[None]).astype(C.dtype)

        def entry(i: jax.Array, j: jax.Array, H: jax.Array) -> jax.Array:
            (a, left), (c, right) = held(i), held(j)
            tile = left.T @ (S(i, j) * (rows_at(C, i, T) @ rows_at(C, j, T).T)) @ right
            H = _added(H, tile, a, c)
            return _added(H, jnp.where(i == j, 0, tile.T), c, a)

        return by_tiles(entry, tiles, jnp.zeros_like(room))


def _added(H: jax.Array, tile: jax.Array, i: jax.Array, j: jax.Array) -> jax.Array:
    old = lax.dynamic_slice(H, (i, j), tile.shape)
    return lax.dynamic_update_slice(H, old + tile, (i, j))


def weights(t: jax.Array, ridge: jax.Array | None) -> jax.Array:
    """What C is multiplied with, ``t / (1 + m t)``."""
    return t if ridge is None else t / (1 + ridge * t)


def scales(s: jax.Array, ridge: jax.Array | None) -> jax.Array:
    """The inverse of `weights`, bounded where there is none."""
    return s if ridge is None else s / jnp.maximum(1 - ridge * s, 1e-3)


def limited(blocks: Rows | Grouped, t: jax.Array) -> jax.Array:
    """t, without the smallest where the largest bucket does not hold all."""
    kept = blocks.chosen(jnp.zeros(t.shape, bool), t, jnp.int32(blocks.tiles)).blocks
    return jnp.zeros_like(t).at[kept].set(take(t, kept, 0), mode="drop")


def blocks_of(penalty: Any, W: jax.Array, n: int) -> Rows | Grouped:
    """Those of a penalty of such a W; n rows of data."""
    norm, (d, k) = penalty.row_norm(W.shape), (*W.shape, 1)[:2]
    count = d if norm.groups is None else norm.groups.num_groups

    def of_each_block(strength: ArrayLike) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(strength, W.dtype), (count,))

    alpha, ridge = of_each_block(norm.alpha), None if norm.ridge is None else of_each_block(norm.ridge)
    if norm.groups is None:
        m = whole(most_features(n, d, k))
        return Rows(alpha, ridge, (m, m), 1)
    features, groups = most_groups(n, d, k, count)
    m = whole(features)
    least = -(-int(FEWEST_GROUPS * d / count) // min(m, TILE))
    return Grouped(alpha, ridge, (m, whole(groups)), max(1, min(least, m // min(m, TILE))), norm.groups)
