r"""Norms of rows or of groups of rows, with what Newton's method on one scalar a block needs of them.

.. math:: g(W) = \sum_b \alpha_b\|W_b\|_F + \tfrac{m_b}{2}\|W_b\|_F^2 .
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import safe_divide, safe_norm, safe_sqrt, take
from sparsejax._core.tiles import TILE, by_tiles, put_both, rows_at, whole
from sparsejax.driver.feature_subsets import chosen, most_features, most_groups, ranked
from sparsejax.groups import Groups
from sparsejax.penalties import of_each_block

MAX_FILL_SHARE = 0.95  # of a bucket that active blocks may fill: a full bucket could not exchange blocks
STAYING_SHARE = 0.2  # estimated share of the entering blocks that stay active
LOW = jnp.float32  # dtype of the Hessian of a step: a step need not be exact
MIN_BUCKET_GROUPS = 8  # the smallest bucket holds so many groups of the mean size


class Chosen(NamedTuple):
    """A bucket: the blocks that a step moves, in whole tiles of features and of blocks."""

    blocks: jax.Array  # (b,), numbers of the blocks, padded with the number of all blocks
    ix: jax.Array  # (m,), their features, block by block, padded with d
    at: Any  # (m,), place in ``blocks`` of the block of each feature; None: every feature is a block
    block_tiles: jax.Array  # (), tiles of blocks in use


class Blocks:
    """Base class of `Rows` and `Grouped`.

    Args:
      alpha, ridge: strengths of the norm and of the ridge, one for each block; ridge None means no ridge.
      most: numbers of features and of blocks in the largest bucket, multiples of a tile.
      least: tiles of features in the smallest bucket.
    """

    def __init__(self, alpha: jax.Array, ridge: jax.Array | None, most: tuple[int, int], least: int):
        self.alpha, self.ridge, self.most, self.least = alpha, ridge, most, least
        self.tile, self.block_tile = (min(size, TILE) for size in most)
        self.tiles = most[0] // self.tile

    def ratios(self, t: jax.Array, c: jax.Array) -> jax.Array:
        """Ratios of c, the norms of the blocks of C, to alpha (1 + ridge t): 1 at the optimal t > 0."""
        if self.ridge is not None:
            c = c / (1 + self.ridge * t)
        return safe_divide(c, self.alpha, jnp.inf)

    def value(self, t: jax.Array, c: jax.Array) -> jax.Array:
        """g(W) at W = diag(s) C; c holds the norms of the blocks of C."""
        if self.ridge is None:
            return jnp.sum(self.alpha * t * c)
        size = scales_of(t, self.ridge) * c
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
    """Blocks of one row each."""

    def norms(self, C: jax.Array) -> jax.Array:
        """Norms of the blocks of C (k, d)."""
        return safe_norm(C)

    def by_feature(self, t: jax.Array) -> jax.Array:
        """The value of its block for each feature, (d,)."""
        return t

    def chosen(self, active: jax.Array, score: jax.Array, tiles: jax.Array) -> Chosen:
        """The bucket of so many tiles of features: active blocks first, then those of the largest scores."""
        (m, _), d = self.most, score.shape[0]
        ix = chosen(active, score, tiles * self.tile, min(m, d))
        ix = jnp.pad(ix, (0, m - ix.shape[0]), constant_values=d)
        return Chosen(ix, ix, None, tiles)

    def wanted(self, active: jax.Array, enters: jax.Array, beyond: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The number of features that a bucket must hold, and the number that it should hold.

        Args:
          active: blocks that are not 0.
          enters: blocks that may become active in the next step.
          beyond: blocks that are likely to become active in the next step.
        """
        count = jnp.sum(active, dtype=self.alpha.dtype)
        more = jnp.sum(beyond & ~active, dtype=self.alpha.dtype)
        least = count / MAX_FILL_SHARE
        if self.most[0] >= active.shape[0]:  # a bucket of all features may be full: it exchanges nothing
            least = jnp.minimum(least, active.shape[0])
        return least, (count + STAYING_SHARE * more) / MAX_FILL_SHARE

    def room(self) -> jax.Array:
        """Zeros for the Hessian in the scales s."""
        m, _ = self.most
        return jnp.zeros((m, m), LOW)

    def windows(self, S: Any, C: jax.Array, at: Any, tiles: jax.Array, room: jax.Array) -> jax.Array:
        """The Hessian in the scales s, shape of ``room``: A'K^-1 A times CC' by entry, summed over blocks.

        Args:
          S: (i, j) -> the tile of A'K^-1 A.
          C: (m, k), of the features of the bucket.
          at: as in `Chosen`.
          tiles: tiles of features in use.
          room: the array to overwrite.
        """
        T = self.tile

        def entry(i: jax.Array, j: jax.Array) -> jax.Array:
            return (rows_at(C, i, T) @ rows_at(C, j, T).T) * S(i, j)

        return by_tiles(lambda i, j, H: put_both(H, i, j, entry(i, j)), tiles, room)


class Grouped(Blocks):
    """Blocks that are the groups of a partition of all features."""

    def __init__(
        self, alpha: jax.Array, ridge: jax.Array | None, most: tuple[int, int], least: int, groups: Groups
    ):
        super().__init__(alpha, ridge, most, least)
        self.groups = groups
        self.counts = groups.sums(jnp.ones(groups.num_features, jnp.int32))

    def norms(self, C: jax.Array) -> jax.Array:
        """Same as `Rows.norms`."""
        return safe_sqrt(self.groups.sums(jnp.sum(C * C, axis=0)))

    def by_feature(self, t: jax.Array) -> jax.Array:
        """Same as `Rows.by_feature`."""
        return t[self.groups.sorted_group_ids]

    def chosen(self, active: jax.Array, score: jax.Array, tiles: jax.Array) -> Chosen:
        """Same as `Rows.chosen`; a group enters as a whole or not at all."""
        counts, ids = self.counts, self.groups.group_ids
        (m, b), (d, count) = self.most, (ids.shape[0], counts.shape[0])
        numbers = ranked(active, score, min(b, count))
        numbers = jnp.pad(numbers, (0, b - numbers.shape[0]), constant_values=count)
        held = take(counts, numbers, 0)
        end = jnp.cumsum(held, dtype=jnp.int32)
        entered = (end <= tiles * self.tile) & (numbers < count)
        numbers = jnp.where(entered, numbers, count)
        begin = jnp.full(count, m, jnp.int32).at[numbers].set(end - held, mode="drop")
        places = jnp.arange(b, dtype=jnp.int32)
        place_of_block = jnp.full(count, b, jnp.int32).at[numbers].set(places, mode="drop")
        # ``members`` is sorted by group: the offset of a feature counts from the first member of its group.
        offset = jnp.arange(d, dtype=jnp.int32) - (jnp.cumsum(counts, dtype=jnp.int32) - counts)[ids]
        place = begin[ids] + offset
        ix = jnp.full(m, d, jnp.int32).at[place].set(self.groups.members, mode="drop")
        at = jnp.full(m, b, jnp.int32).at[place].set(place_of_block[ids], mode="drop")
        size = self.block_tile
        return Chosen(numbers, ix, at, (jnp.sum(entered, dtype=jnp.int32) + size - 1) // size)

    def held(self, active: jax.Array) -> jax.Array:
        """The number of features in the active blocks."""
        return jnp.sum(jnp.where(active, self.counts, 0), dtype=jnp.int32)

    def wanted(self, active: jax.Array, enters: jax.Array, beyond: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Same as `Rows.wanted`, and the largest group that may enter must fit."""
        held, (_, b), dtype = self.held(active), self.most, self.alpha.dtype
        full = jnp.sum(active) > (int(MAX_FILL_SHARE * b) if b < active.shape[0] else b)
        larger = jnp.max(jnp.where(enters & ~active, self.counts, 0))
        # Without a place for another group no bucket is large enough: infinity ends the solve.
        least = jnp.where(full, jnp.inf, (held + larger).astype(dtype))
        coming = self.held(beyond & ~active).astype(dtype)
        return least, (held.astype(dtype) + STAYING_SHARE * coming) / MAX_FILL_SHARE

    def room(self) -> jax.Array:
        """Zeros for the Hessian, with T further rows for windows at the last blocks and at the padding."""
        b = self.most[1] + self.tile
        return jnp.zeros((b, b), LOW)

    def windows(self, S: Any, C: jax.Array, at: Any, tiles: jax.Array, room: jax.Array) -> jax.Array:
        """Same as `Rows.windows`.

        Features are in the order of their blocks. The T features of a tile therefore belong to at most T
        consecutive blocks, and a tile of features contributes to a T x T window of H only.
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
    """H with the tile added to the window that begins at (i, j)."""
    old = lax.dynamic_slice(H, (i, j), tile.shape)
    return lax.dynamic_update_slice(H, old + tile, (i, j))


def scales_of(t: jax.Array, ridge: jax.Array | None) -> jax.Array:
    """The scales ``s = t / (1 + mt)`` in W = diag(s) C, with m the ridge."""
    return t if ridge is None else t / (1 + ridge * t)


def scalars_of(s: jax.Array, ridge: jax.Array | None) -> jax.Array:
    """t with ``scales_of(t) = s``. No t has a scale s >= 1/m: 1 - ms counts as 1e-3 at least."""
    return s if ridge is None else s / jnp.maximum(1 - ridge * s, 1e-3)


def limited(blocks: Rows | Grouped, t: jax.Array) -> jax.Array:
    """t with its largest entries, as many as the largest bucket holds; all other entries are 0."""
    numbers = blocks.chosen(jnp.zeros(t.shape, bool), t, jnp.int32(blocks.tiles)).blocks
    return jnp.zeros_like(t).at[numbers].set(take(t, numbers, 0), mode="drop")


def blocks_of(penalty: Any, W: jax.Array, n: int) -> Rows | Grouped:
    """The blocks of a penalty, for W of this shape and data with n rows."""
    norm, (d, k) = penalty.row_norm(W.shape), (*W.shape, 1)[:2]
    count = d if norm.groups is None else norm.groups.num_groups

    alpha = of_each_block(norm.alpha, count, W.dtype)
    ridge = None if norm.ridge is None else of_each_block(norm.ridge, count, W.dtype)
    if norm.groups is None:
        m = whole(most_features(n, d, k))
        return Rows(alpha, ridge, (m, m), 1)
    features, groups = most_groups(n, d, k, count)
    m = whole(features)
    least = -(-int(MIN_BUCKET_GROUPS * d / count) // min(m, TILE))
    return Grouped(alpha, ridge, (m, whole(groups)), max(1, min(least, m // min(m, TILE))), norm.groups)
