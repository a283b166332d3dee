"""The dual ball of l1 plus norms of blocks: rows of W, or disjoint groups of them."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import eps_of, safe_divide
from sparsejax.penalties._row_penalty import cast

STEPS = 12  # of Newton's method


class Rows:
    """Every row a block."""

    def __init__(self, alpha: Any, Zt: jax.Array):
        self.bound = jnp.broadcast_to(cast(alpha, Zt), Zt.shape[1:])  # of the norm of each block
        self.held = jnp.ones(Zt.shape[1:], bool)  # rows in a block

    def total(self, x: jax.Array) -> jax.Array:
        """The sum over each block of x (k, d)."""
        return jnp.sum(x, axis=0)

    def largest(self, x: jax.Array) -> jax.Array:
        """The maximum over each block of x (k, d)."""
        return jnp.max(x, axis=0)

    def spread(self, s: jax.Array) -> jax.Array:
        """From blocks to rows, (d,)."""
        return s


class Members:
    """Every group of a `GroupLasso` of disjoint groups a block."""

    def __init__(self, core: Any, Zt: jax.Array):
        self.groups, self.members = core.groups, core.members()
        self.bound = jnp.where(self.members, cast(core.alpha, Zt), 0)
        self.held = self.groups.spread(self.members.astype(Zt.dtype)) > 0

    def total(self, x: jax.Array) -> jax.Array:
        """As of `Rows`."""
        return jnp.where(self.members, self.groups.sums(jnp.sum(x, axis=0)), 0)

    def largest(self, x: jax.Array) -> jax.Array:
        """As of `Rows`."""
        return jnp.where(self.members, self.groups.maxima(jnp.max(x, axis=0)), 0)

    def spread(self, s: jax.Array) -> jax.Array:
        """As of `Rows`; 0 for rows in none."""
        return self.groups.spread(jnp.where(self.members, s, 0))


def scales(blocks: Rows | Members, strength: jax.Array, Zt: jax.Array) -> jax.Array:
    r"""By row, the largest s with sZ in the sum of the dual balls; inf where Z is 0.

    That is :math:`\|(s|z| - \text{strength})_+\| \le \text{bound}` for its block, where the left side is
    convex in s: Newton's method from above, then a step back along the chord, which ends inside whatever
    Newton has left.
    """
    sizes = jnp.abs(Zt)
    strength = jnp.broadcast_to(strength, Zt.shape)

    def left(s: jax.Array) -> jax.Array:
        return jnp.maximum(blocks.spread(s)[None] * sizes - strength, 0)

    # One entry alone allows no more than this.
    limit = strength + blocks.spread(blocks.bound)[None]
    need = blocks.largest(jnp.where(sizes > 0, safe_divide(sizes, limit, jnp.inf), 0))
    start = jnp.where(jnp.isinf(need), 0, safe_divide(1.0, need))

    def step(_: Any, s: jax.Array) -> jax.Array:
        rest = left(s)
        norm = jnp.sqrt(blocks.total(rest * rest))
        slope = safe_divide(blocks.total(rest * sizes), norm)
        return s - jnp.where(norm > blocks.bound, safe_divide(norm - blocks.bound, slope), 0)

    s = lax.fori_loop(0, STEPS, step, start)
    norm = jnp.sqrt(blocks.total(left(s) ** 2))
    back = jnp.where(norm > blocks.bound, safe_divide(blocks.bound, norm), 1)
    s = blocks.spread(s * back * (1 - 4 * eps_of(Zt)))
    free = blocks.spread((need <= 0).astype(Zt.dtype)) > 0
    alone = jnp.min(safe_divide(strength, sizes, jnp.inf), axis=0)
    return jnp.where(free, jnp.inf, jnp.where(blocks.held, s, alone))
