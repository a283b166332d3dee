r"""Norms of rows, or of groups of rows, as Newton's method on one scalar each wants them.

.. math:: g(W) = \sum_b \alpha_b\|W_b\|_F + \tfrac{m_b}{2}\|W_b\|_F^2 .
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sparsejax._core.buckets import buckets, chosen, group_buckets, ranked, take
from sparsejax._core.linalg import safe_divide, safe_norm, safe_sqrt
from sparsejax.groups import Groups

FILL = 0.95  # of a bucket: a full one could not exchange blocks
STAYS = 0.2  # of the blocks about to come in, how many are taken to stay

Size = tuple[int, int]  # of a bucket: features, blocks


class Chosen(NamedTuple):
    """What a step moves."""

    blocks: jax.Array  # numbers; as many as there are where there is none
    ix: jax.Array  # features, those of a block together; d where there is none
    at: jax.Array | None  # for each of them the place in ``blocks`` of its block; None: its own


class Blocks:
    """What rows and groups have in common."""

    def __init__(self, alpha: jax.Array, ridge: jax.Array | None, sizes: tuple[Size, ...]):
        self.alpha, self.ridge, self.sizes = alpha, ridge, sizes

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

    def norms_of(self, C: jax.Array, at: jax.Array | None, b: int) -> jax.Array:
        """Of the b blocks of a bucket, by C (k, m) of its features and their places."""
        return safe_norm(C)

    def spread(self, t: jax.Array) -> jax.Array:
        """From blocks to features, (d,)."""
        return t

    def chosen(self, active: jax.Array, score: jax.Array, level: jax.Array) -> Chosen:
        """The active blocks, and of the others those of the largest scores, in the bucket of this number."""
        room = jnp.asarray([features for features, _ in self.sizes], jnp.int32)[level]
        ix = chosen(active, score, room, self.sizes[-1][0])
        return Chosen(ix, ix, None)

    def full(self, size: Size, active: jax.Array, ratios: jax.Array) -> jax.Array:
        """Whether the active blocks leave a bucket of this size too little room."""
        m = size[0]
        return jnp.sum(active) > (int(FILL * m) if m < active.shape[0] else m)

    def crowded(self, size: Size, active: jax.Array, beyond: jax.Array) -> jax.Array:
        """Whether a bucket of this size will have too little room, for these beside the active blocks."""
        more = jnp.sum(beyond & ~active, dtype=self.alpha.dtype)
        return jnp.sum(active, dtype=self.alpha.dtype) + STAYS * more > FILL * size[0]

    def curvature(
        self, quadratic: Any, root: Any, part: Any, C: jax.Array, at: jax.Array | None, b: int
    ) -> jax.Array:
        """The Hessian by the scales of b blocks, (b, b); C (k, m) and ``part`` of their features."""
        H: jax.Array = quadratic.curvature(root, part) * (C.T @ C)
        return H


class Grouped(Blocks):
    """Blocks of disjoint groups, which hold all features."""

    def __init__(self, alpha: jax.Array, ridge: jax.Array | None, sizes: tuple[Size, ...], groups: Groups):
        super().__init__(alpha, ridge, sizes)
        self.groups = groups
        self.counts = groups.sums(jnp.ones(groups.num_features, jnp.int32))

    def norms(self, C: jax.Array) -> jax.Array:
        """As of `Rows`."""
        return safe_sqrt(self.groups.sums(jnp.sum(C * C, axis=0)))

    def norms_of(self, C: jax.Array, at: jax.Array | None, b: int) -> jax.Array:
        """As of `Rows`."""
        return safe_sqrt(jnp.zeros(b, C.dtype).at[at].add(jnp.sum(C * C, axis=0), mode="drop"))

    def spread(self, t: jax.Array) -> jax.Array:
        """As of `Rows`."""
        return t[self.groups.sorted_group_ids]

    def chosen(self, active: jax.Array, score: jax.Array, level: jax.Array) -> Chosen:
        """As of `Rows`; a group enters as a whole or not at all."""
        counts, ids = self.counts, self.groups.group_ids
        (m, b), (d, count) = self.sizes[-1], (ids.shape[0], counts.shape[0])
        features, blocks = jnp.asarray(self.sizes, jnp.int32)[level]
        numbers, place = ranked(active, score, b), jnp.arange(b, dtype=jnp.int32)
        held = take(counts, numbers, 0)
        end = jnp.cumsum(held, dtype=jnp.int32)
        whole = (end <= features) & (place < blocks)
        numbers = jnp.where(whole, numbers, count)
        begin = jnp.full(count, m, jnp.int32).at[numbers].set(end - held, mode="drop")
        number = jnp.full(count, b, jnp.int32).at[numbers].set(place, mode="drop")
        # memberships are sorted by group
        rest = jnp.arange(d, dtype=jnp.int32) - (jnp.cumsum(counts, dtype=jnp.int32) - counts)[ids]
        place = begin[ids] + rest
        ix = jnp.full(m, d, jnp.int32).at[place].set(self.groups.members, mode="drop")
        return Chosen(numbers, ix, jnp.full(m, b, jnp.int32).at[place].set(number[ids], mode="drop"))

    def held(self, active: jax.Array) -> jax.Array:
        """How many features the active blocks hold."""
        return jnp.sum(jnp.where(active, self.counts, 0), dtype=jnp.int32)

    def full(self, size: Size, active: jax.Array, ratios: jax.Array) -> jax.Array:
        """As of `Rows`: the largest group that may want to come in must fit."""
        m, b = size
        larger = jnp.max(jnp.where(~active & (ratios > 1), self.counts, 0))
        full = self.held(active) + larger > m
        return full | (jnp.sum(active) > int(FILL * b)) if b < active.shape[0] else full

    def crowded(self, size: Size, active: jax.Array, beyond: jax.Array) -> jax.Array:
        """As of `Rows`."""
        held, more = (self.held(some).astype(self.alpha.dtype) for some in (active, beyond & ~active))
        return held + STAYS * more > FILL * size[0]

    def curvature(
        self, quadratic: Any, root: Any, part: Any, C: jax.Array, at: jax.Array | None, b: int
    ) -> jax.Array:
        """As of `Rows`, by the cheaper order of sums."""
        assert at is not None
        (k, m), numbers = C.shape, jnp.arange(b, dtype=jnp.int32)
        held = (at[:, None] == numbers[None]).astype(C.dtype)
        if m <= k * b:
            H: jax.Array = held.T @ (quadratic.curvature(root, part) * (C.T @ C)) @ held
        else:
            H = quadratic.curvature(root, part, held[:, None] * C.T[:, :, None])
        return H


def weights(t: jax.Array, ridge: jax.Array | None) -> jax.Array:
    """What C is multiplied with, ``t / (1 + m t)``."""
    return t if ridge is None else t / (1 + ridge * t)


def scales(s: jax.Array, ridge: jax.Array | None) -> jax.Array:
    """The inverse of `weights`, bounded where there is none."""
    return s if ridge is None else s / jnp.maximum(1 - ridge * s, 1e-3)


def limited(blocks: Rows | Grouped, t: jax.Array) -> jax.Array:
    """t, without the smallest where the last bucket does not hold all."""
    last = jnp.int32(len(blocks.sizes) - 1)
    kept = blocks.chosen(jnp.zeros(t.shape, bool), t, last).blocks
    return jnp.zeros_like(t).at[kept].set(take(t, kept, 0), mode="drop")


def blocks_of(penalty: Any, W: jax.Array, n: int) -> Rows | Grouped:
    """Those of a penalty of such a W; n rows of data."""
    norm, (d, k) = penalty.row_norm(W.shape), (*W.shape, 1)[:2]
    count = d if norm.groups is None else norm.groups.num_groups
    alpha, ridge = (
        None if strength is None else jnp.broadcast_to(jnp.asarray(strength, W.dtype), (count,))
        for strength in (norm.alpha, norm.ridge)
    )
    assert alpha is not None
    if norm.groups is None:
        return Rows(alpha, ridge, tuple((m, m) for m in buckets(n, d, k)))
    return Grouped(alpha, ridge, group_buckets(n, d, k, count), norm.groups)
