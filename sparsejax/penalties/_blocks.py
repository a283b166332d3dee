"""The dual ball of l1 plus norms of blocks, where a block is a row of W or a group of rows."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import eps_of, safe_divide
from sparsejax.penalties._group_lasso import GroupLasso
from sparsejax.penalties._transposed import cast

NEWTON_STEPS = 12  # a fixed number: the chord step at the end makes the answer feasible after any number


class Rows:
    """Blocks that are single rows. Zt is the transpose of a matrix like W, (k, d)."""

    def __init__(self, alpha: Any, Zt: jax.Array):
        self.bound = jnp.broadcast_to(cast(alpha, Zt), Zt.shape[1:])  # (d,), of the norm of each block
        self.held = jnp.ones(Zt.shape[1:], bool)  # rows in a block

    def total(self, x: jax.Array) -> jax.Array:
        """The sum of x (k, d) over each block."""
        return jnp.sum(x, axis=0)

    def largest(self, x: jax.Array) -> jax.Array:
        """The maximum of x (k, d) over each block."""
        return jnp.max(x, axis=0)

    def to_rows(self, s: jax.Array) -> jax.Array:
        """For each row the entry of s that belongs to its block, (d,)."""
        return s


class Members:
    """Blocks that are the groups of ``core``, a `GroupLasso` with disjoint groups."""

    def __init__(self, core: "GroupLasso", Zt: jax.Array):
        self.groups, self.members = core.groups, core.members()
        self.bound = jnp.where(self.members, cast(core.alpha, Zt), 0)
        self.held = self.groups.spread(self.members.astype(Zt.dtype)) > 0

    def total(self, x: jax.Array) -> jax.Array:
        """Same as `Rows.total`."""
        return jnp.where(self.members, self.groups.sums(jnp.sum(x, axis=0)), 0)

    def largest(self, x: jax.Array) -> jax.Array:
        """Same as `Rows.largest`."""
        return jnp.where(self.members, self.groups.maxima(jnp.max(x, axis=0)), 0)

    def to_rows(self, s: jax.Array) -> jax.Array:
        """Same as `Rows.to_rows`; 0 for rows in no group."""
        return self.groups.spread(jnp.where(self.members, s, 0))


def scales(blocks: Rows | Members, strength: jax.Array, Zt: jax.Array) -> jax.Array:
    r"""For each row the largest s with sZ in the sum of the dual balls, (d,), up to rounding errors.

    All rows of a block have the same s, which is inf if Z is 0 in the block. The result for a block is less
    than the exact s by a share of 4 eps, so that sZ is feasible. For a row in no block only the ball of the
    l1 norm counts, and s is the exact one but for the rounding of a division.

    The condition for a block is :math:`\|(s|z| - \text{strength})_+\| \le \text{bound}`. Its left side is
    convex in s, so that Newton's method from above decreases to the answer. A last step along the chord to
    the s at which the left side is still 0 makes the condition true even where Newton's method has not
    converged, and where the bound is 0.

    Args:
      blocks: the blocks and their bounds.
      strength: the strength of the l1 norm, of a shape that broadcasts to Zt.
      Zt: (k, d).
    """
    sizes = jnp.abs(Zt)
    strength = jnp.broadcast_to(strength, Zt.shape)

    def excess_at(s: jax.Array) -> jax.Array:
        return jnp.maximum(blocks.to_rows(s)[None] * sizes - strength, 0)

    # For one entry alone the condition is s |z| <= strength + bound: a start that is not below the answer.
    limit = strength + blocks.to_rows(blocks.bound)[None]
    need = blocks.largest(jnp.where(sizes > 0, safe_divide(sizes, limit, jnp.inf), 0))
    start = jnp.where(jnp.isinf(need), 0, safe_divide(1.0, need))

    def step(_: Any, s: jax.Array) -> jax.Array:
        excess = excess_at(s)
        norm = jnp.sqrt(blocks.total(excess * excess))
        slope = safe_divide(blocks.total(excess * sizes), norm)
        return s - jnp.where(norm > blocks.bound, safe_divide(norm - blocks.bound, slope), 0)

    s = lax.fori_loop(0, NEWTON_STEPS, step, start)
    # The chord: the left side is 0 at zero_until and ``norm`` at s. With the share bound/norm of the distance
    # between the two, convexity keeps the left side at most at the bound.
    norm = jnp.sqrt(blocks.total(excess_at(s) ** 2))
    back = jnp.where(norm > blocks.bound, safe_divide(blocks.bound, norm), 1)
    steepest = blocks.largest(jnp.where(sizes > 0, safe_divide(sizes, strength, jnp.inf), 0))
    zero_until = jnp.where(jnp.isinf(steepest), 0, safe_divide(1.0, steepest))
    s = zero_until + jnp.maximum(s - zero_until, 0) * back
    s = blocks.to_rows(s * (1 - 4 * eps_of(Zt)))
    free = blocks.to_rows((need <= 0).astype(Zt.dtype)) > 0
    alone = jnp.min(safe_divide(strength, sizes, jnp.inf), axis=0)
    return jnp.where(free, jnp.inf, jnp.where(blocks.held, s, alone))
