r"""Least squares with norms of blocks, on few features: descent on their Gram matrix, with Newton steps.

.. math:: \min_E\; \langle R, E\rangle + \tfrac12\langle E, GE\rangle
          + \sum_i \lambda_i \|w_i + e_i\|_1 + \sum_b \alpha_b \|W_b + E_b\|_F

in the change E of W. A block b is a row of k entries, or a group of rows; R is the gradient of the loss at W.
Only E and the slopes at W are in float32, and the slopes are computed in the dtype of the problem first: near
the optimum both are small, so that no digits cancel. Arrays by feature have the features last, (k, m).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import apply_if, conjugate_gradients, safe_divide
from sparsejax._core.tiles import (
    TILE,
    factorised,
    lower_solve,
    no_root,
    put_both,
    put_rows,
    rows_at,
    upper_solve,
    whole,
)

LOW = jnp.float32
COORDINATES_PER_ITERATION = 8  # entries that one loop iteration updates; their mutual terms are unrolled
SWEEPS_PER_NEWTON, BLOCK_SWEEPS_PER_NEWTON = 4, 2  # before each Newton step: of single entries, of blocks
MAX_SWEEPS = 120
MAX_UNKNOWNS = 2048  # single entries on the support for which a Newton step is made
CG_SHARE, MAX_CG_STEPS = 0.1, 60  # share of the slope that conjugate gradients leave, and their limit
RIDGE_SHARE = 3e-6  # ridge of a Newton step, as a share of the diagonal: 25 times the eps of float32
MIN_STEP_LENGTH = 0.01  # the shortest Newton step of blocks that is tried, as a share of the whole step


class Slopes(NamedTuple):
    """The problem at W, in float32. A slope is a derivative of the objective in an entry of E."""

    W: jax.Array  # (k, m)
    R: jax.Array  # (k, m), slope at W of the loss, and of each norm that is smooth there (not at 0)
    entries: jax.Array | None  # (m,), lambda; None: no such term
    blocks: jax.Array | None  # (b,), alpha; None: no such term. The block of feature i is i // (m // b)
    live: jax.Array  # (m,), whether the feature can move
    nonnegative: bool  # whether W + E >= 0 is required; of single entries only

    @property
    def size(self) -> int:
        """Number of features in a block."""
        return 1 if self.blocks is None else int(self.W.shape[1] // self.blocks.shape[0])

    @property
    def single(self) -> bool:
        """Whether single entries are the blocks: one column and no norms of groups."""
        return self.blocks is None and self.W.shape[0] == 1


class Point(NamedTuple):
    """State of descent, arrays (k, m)."""

    V: jax.Array  # W + E, with exact zeros
    E: jax.Array  # the change of W
    R: jax.Array  # ``Slopes.R`` + GE: the slope after the change, without that of the norms' own change


class Gram(NamedTuple):
    """A'A of some columns of A."""

    ix: jax.Array  # (m,), numbers of the columns, padded with d
    owner: jax.Array  # (b,), numbers of the blocks that the columns form, in the same order
    tiles: jax.Array  # (), tiles in use; G beyond them holds any finite numbers
    G: jax.Array  # (m, m), in float32
    A: jax.Array  # (m, n), in float32, the columns as rows; kept as memory for those of the next matrix

    @property
    def tile(self) -> int:
        """T, features of a tile."""
        return tile_of(self.ix.shape[0] // self.owner.shape[0])


def tile_of(size: int) -> int:
    """Features of a tile that holds whole blocks of this size: about `TILE`, and at least one block."""
    return size * max(1, TILE // size)


def no_gram(m: int, size: int, none: int, n: int) -> Gram:
    """A `Gram` of m columns of n rows without any column yet; ``none`` is a number that no column has."""
    ix, owner = jnp.full(m, none, jnp.int32), jnp.full(m // size, none, jnp.int32)
    return Gram(ix, owner, jnp.int32(0), jnp.zeros((m, m), LOW), jnp.zeros((m, n), LOW))


def gram_of(
    strip: Callable[[jax.Array], jax.Array], diagonal: jax.Array, tiles: jax.Array, gram: Gram
) -> tuple[jax.Array, jax.Array]:
    """A'A + diag(diagonal), (m, m), and A', (m, n), in float32, in the tiles in use.

    Args:
      strip: (i) -> the columns of A of tile i, as rows (T, n), in float32.
      diagonal: (m,).
      tiles: (), tiles in use.
      gram: its matrices are overwritten.
    """
    T = gram.tile

    def row(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        G, rows = carry
        new = strip(i)
        rows = put_rows(rows, i, new)
        own = jnp.diag(rows_at(diagonal, i, T).astype(LOW))

        def tile(j: jax.Array, G: jax.Array) -> jax.Array:
            return put_both(G, i, j, new @ rows_at(rows, j, T).T + jnp.where(i == j, own, 0))

        return lax.fori_loop(0, i + 1, tile, G), rows

    return lax.fori_loop(0, tiles, row, (gram.G, gram.A))


def of_blocks(a: jax.Array, size: int) -> jax.Array:
    """The sums over blocks, (b,), of an array of features (k, m)."""
    return jnp.sum(a.reshape(a.shape[0], -1, size), axis=(0, 2))


def to_features(a: jax.Array, size: int) -> jax.Array:
    """The value of its block for each feature: (1, m) from (b,)."""
    return jnp.repeat(a, size)[None]


def units(W: jax.Array, size: int) -> jax.Array:
    """W divided by the norms of its blocks; 0 in blocks of norm 0."""
    return safe_divide(W, to_features(jnp.sqrt(of_blocks(W * W, size)), size))


def slopes_of(
    W: jax.Array, gradient: jax.Array, entries: Any, blocks: Any, live: jax.Array, nonnegative: bool = False
) -> Slopes:
    """`Slopes` at W (k, m) with this gradient of the loss, computed in the dtype of the problem first."""
    R = gradient
    if entries is not None:
        R = R + entries[None] * jnp.sign(W)
    if blocks is not None:
        size = W.shape[1] // blocks.shape[0]
        R = R + to_features(blocks, size) * units(W, size)
    low = lambda part: None if part is None else part.astype(LOW)
    return Slopes(W.astype(LOW), R.astype(LOW), low(entries), low(blocks), live, nonnegative)


def _turned(s: Slopes, blocks: jax.Array, V: jax.Array, E: jax.Array) -> jax.Array:
    """alpha times the change of the units V/|V| from W to V = W + E, without cancellation.

    For a block that is not 0 at W the change is ``(E - (|V| - |W|) W/|W|) / |V|``; else it is V/|V|.
    """
    size = s.size
    # |V| - |W| = <2W + E, E> / (|V| + |W|)
    before, after = (jnp.sqrt(of_blocks(a * a, size)) for a in (s.W, V))
    longer = safe_divide(of_blocks((2 * s.W + E) * E, size), before + after)
    unit = units(s.W, size)
    alpha, after, longer = (to_features(a, size) for a in (blocks, after, longer))
    was = to_features(before > 0, size)
    return alpha * jnp.where(was, safe_divide(E - longer * unit, after), units(V, size))


def slope_at(s: Slopes, p: Point) -> jax.Array:
    """The slope of the objective at V, (k, m); valid in entries where V is not 0."""
    slope = p.R
    if s.entries is not None:
        slope = slope + s.entries[None] * (jnp.sign(p.V) - jnp.sign(s.W))
    if s.blocks is not None:
        slope = slope + _turned(s, s.blocks, p.V, jnp.where(p.V == 0, -s.W, p.E))
    return slope


def violation(s: Slopes, p: Point) -> jax.Array:
    """(), the largest distance of a slope of the loss from the subdifferential of the norms.

    It is taken by entry, and for blocks that are 0 in the norm of the block.
    """
    slope = jnp.abs(slope_at(s, p))
    smooth = p.R  # and below without the slopes of the norms at W, so that the loss is left
    if s.entries is not None:
        smooth = smooth - s.entries[None] * jnp.sign(s.W)
    if s.blocks is not None:
        smooth = smooth - to_features(s.blocks, s.size) * units(s.W, s.size)
    left = (
        jnp.maximum(-smooth, 0) if s.nonnegative else jnp.abs(smooth)
    )  # a positive slope keeps an entry at 0
    left = left if s.entries is None else jnp.maximum(left - s.entries[None], 0)
    if s.blocks is None:
        worst = jnp.where(p.V == 0, left, slope)
    else:
        # A block that is 0 counts with its norm. An entry that is 0 in another block counts with what the
        # norm of entries leaves of its slope.
        zero = to_features(of_blocks(p.V * p.V, s.size) == 0, s.size)
        beyond = jnp.maximum(jnp.sqrt(of_blocks(left * left, s.size)) - s.blocks, 0)
        entry = slope if s.entries is None else jnp.where(p.V == 0, left, slope)
        worst = jnp.where(zero, to_features(beyond, s.size), entry)
    return jnp.max(jnp.where(s.live[None], worst, 0))


def descended(gram: Gram, s: Slopes, share: float) -> tuple[jax.Array, jax.Array]:
    """Descend until the violation is ``share`` of that at W.

    Args:
      gram: the Gram matrix of the features, by `gram_of`.
      s: the slopes at W, by `slopes_of`.
      share: in (0, 1).

    Returns:
      E and W + E, the latter with exact zeros, (k, m) each.
    """
    first = Point(s.W, jnp.zeros_like(s.W), s.R)
    before, count = violation(s, first), SWEEPS_PER_NEWTON if s.single else BLOCK_SWEEPS_PER_NEWTON
    goal = share * before
    sweeps = _by_coordinates(gram, s) if s.single else _by_blocks(gram, s)

    def body(carry: Any) -> Any:
        p, _, k = carry
        p = sweeps(p, count)
        left = violation(s, p)
        return apply_if(left > goal, lambda p: newton_step(gram.G, s, p), p), left, k + count

    more = lambda carry: (carry[1] > goal) & (carry[2] < MAX_SWEEPS)
    p, _, _ = lax.while_loop(more, body, (first, before, jnp.int32(0)))
    return p.E, p.V


def _by_coordinates(gram: Gram, s: Slopes) -> Callable[[Point, int], Point]:
    """The function (point, number of sweeps) -> point, by exact minimisation in one entry after another."""
    G, b = gram.G, COORDINATES_PER_ITERATION
    blocks = gram.tiles * (TILE // b)
    L = jnp.diagonal(G)
    # XLA fuses products, and not quotients, into one kernel for all entries of an iteration.
    inverse = 1 / jnp.where(L > 0, L, 1)
    # Slope of the norm at V minus its slope at W (which is in R): ``up`` for V > 0, ``-down`` for V < 0.
    # An entry that cannot move has infinite slopes.
    sign, entries = jnp.sign(s.W[0]), jnp.zeros_like(L) if s.entries is None else s.entries
    up, down = (jnp.where(s.live, entries * (1 + c * sign), jnp.inf) for c in (-1, 1))
    if s.nonnegative:
        down = jnp.full_like(down, jnp.inf)

    def block(i: jax.Array, p: Point) -> Point:
        at = lax.rem(i, blocks) * b
        R = lax.dynamic_slice_in_dim(G, at, b)
        H = lax.dynamic_slice_in_dim(R, at, b, axis=1)
        v, q, rise, fall, scale = (lax.dynamic_slice_in_dim(a, at, b) for a in (p.V, p.R, up, down, inverse))
        steps: list[jax.Array] = []
        for c in range(b):
            # slope of entry c after the steps of the entries before it, of the same iteration
            slope = q[c] + sum((steps[j] * H[c, j] for j in range(c)), jnp.zeros((), LOW))
            right, left = -(slope + rise[c]) * scale[c], -(slope - fall[c]) * scale[c]
            steps.append(jnp.where(v[c] + right > 0, right, jnp.where(v[c] + left < 0, left, -v[c])))
        step = jnp.stack(steps)
        e = lax.dynamic_slice_in_dim(p.E, at, b) + step
        put = lambda a, new: lax.dynamic_update_slice_in_dim(a, new, at, 0)
        return Point(put(p.V, v + step), put(p.E, e), p.R + step @ R)

    def sweeps(p: Point, count: int) -> Point:
        p = Point(*(a[0] for a in p))
        return Point(*(a[None] for a in lax.fori_loop(0, count * blocks, block, p)))

    return sweeps


def _by_blocks(gram: Gram, s: Slopes) -> Callable[[Point, int], Point]:
    """The function (point, number of sweeps) -> point: a proximal gradient step in one block after another.

    The step of a block has length 1/L with L a bound of the curvature of the block.
    """
    G, size, m = gram.G, s.size, s.W.shape[1]
    alpha = jnp.zeros(m, LOW) if s.blocks is None else s.blocks
    b = m // size
    count = gram.tiles * (gram.tile // size)
    at = jnp.arange(b, dtype=jnp.int32) * size
    own = jax.vmap(lambda i: lax.dynamic_slice(G, (i, i), (size, size)))(at)
    L = jnp.minimum(jnp.max(jnp.sum(jnp.abs(own), axis=1), axis=1), jnp.sqrt(jnp.sum(own * own, axis=(1, 2))))
    L = jnp.where(L > 0, L, 1)
    norms = jnp.sqrt(of_blocks(s.W * s.W, size))
    # The argument of the prox is V - (slope of the loss)/L = cW + H, c = 1 + alpha/(L |W|) and H = E - R/L.
    # Near the optimum H is small, so that the change new - E is computed from H without cancellation.
    threshold = alpha / L
    c = 1 + safe_divide(threshold, norms)

    def block(i: jax.Array, p: Point) -> Point:
        j = i % count
        at = j * size
        W, E, R = (lax.dynamic_slice_in_dim(a, at, size, axis=1) for a in (s.W, p.E, p.R))
        low, long, length, far = L[j], c[j], norms[j], threshold[j]
        H, there = E - R / low, jnp.ones((), bool)
        if s.entries is not None:
            # R has the slope of the norm of entries for the signs of W. Entries that would change their sign
            # are soft-thresholded without that slope.
            cut = lax.dynamic_slice_in_dim(s.entries, at, size)[None] / low
            whole_step = long * W + H
            same_sign = (W != 0) & (whole_step * W > 0)
            other = whole_step + cut * jnp.sign(W)
            there = same_sign | (jnp.abs(other) > cut)
            H = jnp.where(same_sign, H, jnp.sign(other) * jnp.maximum(jnp.abs(other) - cut, 0) - long * W)
        U = jnp.where(there, long * W + H, 0)
        # The prox of the norm of the block is U - far U/|U| if |U| > far, else 0. As cW - W = far W/|W|, the
        # new E is H - far (U/|U| - W/|W|), with U/|U| - W/|W| = (H - (|U| - c|W|) W/|W|) / |U|.
        reach = jnp.sqrt(jnp.sum(U * U))
        inverse = safe_divide(1.0, reach)
        longer = safe_divide(jnp.sum((2 * long * W + H) * H), reach + long * length)
        turned = jnp.where(length > 0, (H - longer * safe_divide(W, length)) * inverse, U * inverse)
        new = jnp.where(reach > far, H - far * turned, -W)
        V = jnp.where((reach > far) & there, W + new, 0)
        rows = lax.dynamic_slice_in_dim(G, at, size)
        put = lambda a, part: lax.dynamic_update_slice_in_dim(a, part, at, 1)
        return Point(put(p.V, V), put(p.E, new), p.R + (new - E) @ rows)

    return lambda p, number: lax.fori_loop(0, number * count, block, p)


def newton_step(G: jax.Array, s: Slopes, p: Point) -> Point:
    """A Newton step on the entries that are not 0, halved until the objective falls.

    The Hessian on the support is G plus, for the norm of a block with unit U = V/|V|,
    ``alpha (I - UU')/|V|``. With a norm of entries, an entry that would change its sign becomes 0; with norms
    of blocks, a block that would point away from V becomes 0. A step of single entries is at least so
    long that the first entry changes its sign: the objective falls up to there, even if G is singular.
    """
    size, on = s.size, p.V != 0
    slope = jnp.where(on, slope_at(s, p), 0)
    x, solved = _by_factor(G, on, slope) if s.single else _by_conjugate_gradients(G, s, p.V, slope)

    def bent(alpha: jax.Array, step: jax.Array) -> jax.Array:
        """alpha (|V + step| - |V| - <V, step>/|V|) of each block: what the first order leaves out."""
        old, new = (jnp.sqrt(of_blocks(a * a, size)) for a in (p.V, p.V + step))
        longer = safe_divide(of_blocks((2 * p.V + step) * step, size), old + new)
        return alpha * (longer - safe_divide(of_blocks(p.V * step, size), old))

    # The share of the step at which an entry would change its sign; an entry without a strength may do so.
    kink = jnp.ones((), bool) if s.nonnegative or s.entries is None else (s.entries > 0)[None]
    crossing = safe_divide(jnp.abs(p.V), jnp.where(kink & (p.V * x < 0), jnp.abs(x), 0), jnp.inf)
    shortest = jnp.minimum(jnp.min(crossing), 1.0) if s.single else jnp.asarray(MIN_STEP_LENGTH, LOW)

    def shorter(carry: Any) -> Any:
        t = jnp.maximum(carry[0] / 2, shortest)
        step = t * x
        if s.entries is not None:
            step = jnp.where(crossing > t, step, -p.V)
        if s.blocks is not None:
            ahead = to_features(of_blocks((p.V + step) * p.V, size) > 0, size)
            step = jnp.where(ahead, step, -p.V)
        step = jnp.where(on, step, 0)
        change = step @ G
        fall = jnp.sum(step * jnp.where(on, slope + change / 2, 0))
        return t, step, change, fall if s.blocks is None else fall + jnp.sum(bent(s.blocks, step))

    start = (jnp.asarray(2, LOW), jnp.zeros_like(p.V), jnp.zeros_like(p.R), jnp.asarray(jnp.inf, LOW))
    _, step, change, fall = lax.while_loop(lambda c: ~(c[3] <= 0) & (c[0] > shortest), shorter, start)
    new = Point(jnp.where(step == -p.V, 0, p.V + step), p.E + step, p.R + change)
    return Point(*(jnp.where((fall <= 0) & solved, b, a) for a, b in zip(p, new, strict=True)))


def _by_factor(G: jax.Array, on: jax.Array, slope: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The Newton step of single entries, (1, m), by a Cholesky factor; False with too many on the support."""
    m, T = on.shape[1], TILE
    most = min(whole(m), MAX_UNKNOWNS)
    S = jnp.nonzero(on[0], size=most, fill_value=m)[0].astype(jnp.int32)
    count, here = jnp.sum(on, dtype=jnp.int32), m > S
    tiles = -(-jnp.minimum(count, most) // T)
    H = G.at[S].get(mode="fill", fill_value=0)

    def tile(i: jax.Array, j: jax.Array) -> jax.Array:
        block = rows_at(H, i, T).at[:, rows_at(S, j, T)].get(mode="fill", fill_value=0)
        ridge = jnp.where(rows_at(here, i, T), RIDGE_SHARE * jnp.diagonal(block), 1)
        return block + jnp.where(i == j, jnp.diag(ridge), 0)

    root = factorised(tile, tiles, no_root(most, T, LOW), inverted=False)
    right = slope[0].at[S].get(mode="fill", fill_value=0)
    x = upper_solve(root, lower_solve(root, -right[None], tiles), tiles)[0]
    return jnp.zeros_like(slope).at[0, S].set(x, mode="drop"), count <= most


def _by_conjugate_gradients(
    G: jax.Array, s: Slopes, V: jax.Array, slope: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The Newton step of blocks, (k, m), up to `CG_SHARE` of the slope; True, since there is no limit.

    To factorise a system of 2000 entries takes as long as hundreds of products with G; conjugate gradients,
    preconditioned by the diagonal, need 10 to 60.
    """
    size, on, L = s.size, V != 0, jnp.diagonal(G)[None]
    bend, unit = jnp.zeros((), LOW), units(V, size)
    if s.blocks is not None:
        bend = to_features(safe_divide(s.blocks, jnp.sqrt(of_blocks(V * V, size))), size)
    scale = L + bend * (1 - unit * unit)
    scale = jnp.where(scale > 0, scale, 1)

    def hessian(x: jax.Array) -> jax.Array:
        turned = x - unit * to_features(of_blocks(unit * x, size), size)
        return jnp.where(on, x @ G + RIDGE_SHARE * L * x + bend * turned, 0)

    x, _ = conjugate_gradients(hessian, -slope, lambda r: r / scale, CG_SHARE, MAX_CG_STEPS)
    return x, jnp.ones((), bool)
