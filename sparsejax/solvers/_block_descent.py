"""The step of `prox_newton` for few active features: descent on the Gram matrix of the blocks that matter."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.linalg import apply_if, choose, columns, like, of_all_lanes, safe_divide, safe_sqrt, take
from sparsejax._core.tiles import TILE, rows_at
from sparsejax.driver.feature_subsets import ranked
from sparsejax.groups import Groups
from sparsejax.losses import Facts
from sparsejax.penalties import of_each_block
from sparsejax.problem import Problem
from sparsejax.solvers._block_problem import LOW, Gram, Slopes, gram_of
from sparsejax.solvers._gram_descent import descended

GOAL_SHARE = 0.05  # share of the violation of the optimality conditions that descent leaves
# Tiles have half the size for blocks of one feature, if there are at most this many features and at least as
# many rows of data: the columns and the Gram matrix of the first tile are then most of the cost of a solve.
MAX_FEATURES_OF_SMALL_TILES = 256
MAX_ENTRIES_PASSED_ON = 2**22  # entries of columns that one problem of a path passes on: 16 MB
MAX_FEATURES = 2048  # most features that descent moves (but at least two tiles): a Gram matrix of 16 MB
# With a sparse X, memory for the Gram matrix and the columns is most of the cost of a solve with few active
# features: XLA fills this memory with zeros, and glibc takes blocks of more than 32 MB from the system in
# every call. Here both arrays take 20 MB. With 25 MB, and the other arrays of a solve, calls exceeded 32 MB.
MAX_ENTRIES_OF_SPARSE, MIN_FEATURES_OF_SPARSE = 5 * 2**20, 1024
# A Gram matrix holds at least 1/LEAST_PART of the features for which there is room, which is its size in a
# first step from W = 0. With groups it holds at least 1/LEAST_PART_OF_GROUPS, since more features are active.
LEAST_PART, LEAST_PART_OF_GROUPS = 8, 4
# New tiles are added to the old Gram matrix, in which idle blocks stay, unless it would then have over
# 1/STALE_PART more tiles than the blocks to move need.
STALE_PART = 4
# Blocks that a step moves besides the active and the entering ones, if there are more features than rows.
# With more rows these spare blocks may fill a further tile, which costs more than a step.
SPARE_BLOCKS = 4
# Each group takes the room of the largest group. Largest ratio of the room of all groups to all features.
MAX_PADDING = 2


def by_blocks(problem: Problem) -> bool:
    """Whether the groups of the penalty, if there are any, are of about one size."""
    groups = problem.penalty.row_norm(problem.smooth.params_shape).groups
    return groups is None or groups.num_groups * groups.max_size <= MAX_PADDING * groups.num_features


def has_sparse_columns(problem: Problem) -> bool:
    """Whether X is sparse, so that columns taken from it become dense."""
    return problem.smooth.quadratic_model().column_sizes is not None


class Layout(NamedTuple):
    """Sizes of the blocks of a penalty, and the number of features that descent can move.

    A block is a row, or a group of rows; every group takes as many places as the largest group.
    """

    number: int  # of blocks in all
    size: int  # features of the largest block
    tile: int  # features of a tile of the Gram matrix, which holds whole blocks
    room: int  # number of features that descent can move, a multiple of a tile
    groups: Groups | None  # None: the blocks are rows

    @classmethod
    def of(cls, problem: Problem, rows: int) -> "Layout":
        """The layout for a number of rows of data.

        With blocks of one entry, hardly more entries than rows are active at an optimum: there is room for a
        quarter more. With larger blocks there is room for two to four times as many.
        """
        d, k = (*problem.smooth.params_shape, 1)[:2]
        groups = problem.penalty.row_norm(problem.smooth.params_shape).groups
        count, size = (d, 1) if groups is None else (groups.num_groups, groups.max_size)
        small = size == 1 and d <= min(rows, MAX_FEATURES_OF_SMALL_TILES)
        T = TILE // 2 if small else size * max(1, TILE // size)
        times = min(k, 3) if size == 1 else min(size, 4)
        most = MAX_FEATURES
        if has_sparse_columns(problem):
            fits = (math.isqrt(rows**2 + 4 * MAX_ENTRIES_OF_SPARSE) - rows) // 2  # m (m + rows) = the limit
            most = min(max(fits, MIN_FEATURES_OF_SPARSE), most)
        wanted = max(2 * T, min(times * (rows + rows // 4) + 32, most))
        return cls(count, size, T, T * -(-min(count * size, wanted) // T), groups)

    def sums(self, a: jax.Array) -> jax.Array:
        """The sums over blocks, (number,), of an array (k, d)."""
        rows = jnp.sum(a, axis=0)
        return rows if self.groups is None else self.groups.sums(rows)

    def members(self, owner: jax.Array) -> jax.Array:
        """The features of the blocks ``owner``, ``size`` places for each block.

        Places that a smaller block leaves over hold d, the index of no feature.
        """
        if self.groups is None:
            return owner
        counts = self.groups.sums(jnp.ones(self.groups.num_features, jnp.int32))
        begin = jnp.cumsum(counts, dtype=jnp.int32) - counts
        place = jnp.arange(self.size, dtype=jnp.int32)[None]
        inside = place < take(counts, owner, 0)[:, None]
        at = jnp.where(inside, take(begin, owner, 0)[:, None] + place, self.groups.num_features)
        found = self.groups.members.at[at].get(mode="fill", fill_value=self.groups.num_features)
        return found.reshape(-1)


class Descent:
    """Steps from W towards the answer of the least squares problem at W.

    Descent moves the active blocks and about as many others, whose slopes exceed their strengths. The next
    step reuses their Gram matrix if it is told that the curvature of the loss is near enough, and if no other
    block violates its optimality condition.
    """

    def __init__(self, problem: Problem, rows: int):
        self.smooth, self.rows = problem.smooth, rows
        self.layout = layout = Layout.of(problem, rows)
        shape, norm = problem.smooth.params_shape, problem.penalty.row_norm(problem.smooth.params_shape)
        self.exact = problem.smooth.quadratic_model().exact
        self.spare = 0 if rows >= shape[0] else SPARE_BLOCKS
        least = layout.room // (LEAST_PART if layout.size == 1 else LEAST_PART_OF_GROUPS)
        # A further step costs two products with X, which take less time than a tile if X is sparse.
        self.least = layout.tile if has_sparse_columns(problem) else max(least, layout.tile)

        def each(strength: ArrayLike | None, count: int) -> jax.Array:
            return of_each_block(strength, count, problem.smooth.dtype)

        self.alpha, self.ridge = each(norm.alpha, layout.number), each(norm.ridge, layout.number)
        single = norm.groups is None and (*shape, 1)[1] == 1
        # The norm of a block of one entry is the norm of that entry.
        self.blocks = None if single else self.alpha
        self.entries = self.alpha if single else None
        self.both, self.nonnegative = norm.entries is not None, norm.nonnegative
        if self.both:
            self.entries = each(norm.entries, shape[0])

    def no_gram(self) -> Gram:
        """The Gram matrix of no feature."""
        m, layout = self.layout.room, self.layout
        ix = jnp.full(m, self.smooth.params_shape[0], jnp.int32)
        owner = jnp.full(m // layout.size, layout.number, jnp.int32)
        G, A, none = jnp.zeros((m, m), LOW), jnp.zeros((m, self.rows), LOW), jnp.int32(0)
        return Gram(ix, owner, none, G, A, none)

    def passed_on(self, gram: Gram) -> Gram:
        """The Gram matrix for the next problem of a path, without its columns if it takes long to copy them.

        Paths that are solved in several calls copy them in every call.
        """
        needed = gram.few_rows  # by the Newton step, see `newton_step`
        if needed or gram.A.size <= MAX_ENTRIES_PASSED_ON:
            return gram
        return gram._replace(A=gram.A[:, :0], known=jnp.zeros_like(gram.known))

    def received(self, gram: Gram) -> Gram:
        """A Gram matrix that `passed_on` has returned, with memory for columns."""
        m = gram.ix.shape[0]
        return gram if gram.A.shape[1] else gram._replace(A=jnp.zeros((m, self.rows), gram.A.dtype))

    def step(
        self, W: jax.Array, facts: Facts, tol: jax.Array, near: jax.Array, last: Gram
    ) -> tuple[jax.Array, Gram]:
        """The step from W, in the shape of W, and the Gram matrix that the step used.

        Args:
          W: the start of the step.
          facts: the `Facts` of the loss at W.
          tol: of the solve.
          near: whether the curvature of the loss at W is near enough to that of the last step.
          last: the Gram matrix of the last step.
        """
        Wt, layout = columns(W), self.layout
        ridge = self.ridge if layout.groups is None else layout.groups.spread(self.ridge)
        slope = columns(facts.gradient) + ridge[None] * Wt
        on, ratio = self._judged(Wt, slope)
        # If more blocks are active than the Gram matrix holds, the step is 0 and the next solver continues.
        enough = jnp.sum(on) <= last.owner.shape[0]
        outside = (on | (ratio > 1 + tol / 10)).at[last.owner].set(False, mode="drop")
        # Whether a new Gram matrix is due.
        again = enough & ((last.used == 0) | ~near | jnp.any(outside))
        gram = apply_if(of_all_lanes(again), lambda gram: self._gram(W, facts, gram, on, ratio), last)
        ix = gram.ix
        weights = take(Wt, ix, 1)
        live = (jnp.arange(ix.shape[0], dtype=jnp.int32) < gram.used) & (ix < Wt.shape[1])
        live &= enough  # without any feature that can move there is no sweep
        entries = None if self.entries is None else take(self.entries, ix, 0)
        blocks = None if self.blocks is None else take(self.blocks, gram.owner, 0)
        of_ix = weights, take(slope, ix, 1), entries, blocks, live, take(ridge, ix, 0)
        slopes = Slopes(*of_ix, self.nonnegative, layout.tile)
        E, V = descended(gram, slopes.lowered(), GOAL_SHARE)
        change = jnp.where(V == 0, -weights, E.astype(Wt.dtype))
        if self.nonnegative:  # V > 0 in float32 may be negative in the dtype of the problem
            change = jnp.maximum(change, -weights)
        change = jnp.where(enough, change, 0)
        return like(jnp.zeros_like(Wt).at[:, ix].set(change, mode="drop"), W), gram

    def _judged(self, Wt: jax.Array, slope: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Which blocks are active, and slope / strength of each block.

        A zero block with a ratio above 1 is not optimal.
        """
        # The norm of the block must balance what the bound W >= 0 and the norm of entries leave of the slope.
        unbalanced = jnp.maximum(-slope, 0) if self.nonnegative else jnp.abs(slope)
        if self.both and self.entries is not None:
            unbalanced = jnp.maximum(unbalanced - self.entries[None], 0)
        beyond = safe_sqrt(self.layout.sums(unbalanced * unbalanced))
        on = self.layout.sums(jnp.abs(Wt)) > 0
        if not (self.both or self.nonnegative):  # a block without a strength is active
            on |= self.alpha == 0
        unpenalised_ratio = jnp.asarray(jnp.inf, Wt.dtype)
        # W >= 0 keeps an entry without a strength at 0 if its slope is >= 0; else its ratio is above 1.
        if self.nonnegative:
            unpenalised_ratio = 1 + safe_divide(beyond, jnp.max(jnp.abs(slope)))
        return on, jnp.where(beyond > 0, safe_divide(beyond, self.alpha, unpenalised_ratio), 0)

    def _gram(self, W: jax.Array, facts: Facts, last: Gram, on: jax.Array, ratio: jax.Array) -> Gram:
        """The Gram matrix of the active blocks at W and of others, the largest ratios first.

        If A is the same at every W, the blocks of the last matrix stay where they are, as long as there is
        room for those that enter, whose tiles alone are computed.
        """
        m, layout = last.ix.shape[0], self.layout
        size, T, number = layout.size, layout.tile, layout.number
        b, least = m // size, self.least // size
        limit = jnp.maximum(jnp.sum(on), least)

        def tiles_for(on: jax.Array, ratio: jax.Array, least: int) -> jax.Array:
            wanted = jnp.sum(on) + jnp.minimum(jnp.sum(~on & (ratio > 1)), limit) + self.spare
            return (-(-jnp.maximum(least, wanted) * size // T)).astype(jnp.int32)

        old, tiles = jnp.int32(0), jnp.minimum(tiles_for(on, ratio, least), m // T)
        if self.exact:
            held = jnp.zeros(number, bool).at[last.owner].set(True, mode="drop")
            entering = on & ~held, jnp.where(held, -jnp.inf, ratio)
            added = last.used // T + tiles_for(*entering, 1)
            stay = (last.used > 0) & (added <= jnp.minimum(tiles + tiles // STALE_PART, m // T))
            on, ratio, tiles = choose(stay, (*entering, added), (on, ratio, tiles))
            old = jnp.where(stay, last.used, 0)
        # In a batch all lanes keep as many columns as the lane that keeps the fewest.
        tiles, kept = of_all_lanes(tiles), -of_all_lanes(-old)
        fresh = ranked(on, ratio, min(b, number))
        owner = jnp.pad(last.owner, (0, b), constant_values=number)
        fresh = jnp.pad(fresh, (0, b - fresh.shape[0]), constant_values=number)
        owner = lax.dynamic_update_slice(owner, fresh, (old // size,))[:b]
        owner = jnp.where(jnp.arange(b, dtype=jnp.int32) < tiles * (T // size), owner, number)
        ix = layout.members(owner)
        ridge = jnp.repeat(take(self.ridge, owner, 0), size)
        strips = self._strips(W, facts.predictions, ix, T)
        kept_part = last._replace(used=kept, known=jnp.minimum(kept, -of_all_lanes(-last.known)))
        G, A = gram_of(strips, ridge, tiles, T, kept_part)
        return Gram(ix, owner, tiles * T, G, A, tiles * T)

    def _strips(self, W: jax.Array, H: Any, ix: jax.Array, T: int) -> Callable[[jax.Array], jax.Array]:
        """(i) -> the columns of A of the features of tile i, as rows, in float32."""

        def matrix(smooth: Any, W: jax.Array) -> jax.Array:
            model = smooth.quadratic_model()
            return model.majorizer() if self.exact else model.least_squares_at(W, H)[0]

        by_tile = (self.exact or H is not None) and "columns" in self.smooth.provides
        if by_tile:
            part = lambda here: matrix(self.smooth.columns_at(here), take(W, here, 0))
        else:
            A = matrix(self.smooth, W)
            part = lambda here: take(A, here, 1)
        return lambda i: part(rows_at(ix, i, T)).T.astype(jnp.float32)
