r"""Least squares with norms of blocks, on few features: descent on their Gram matrix, with Newton steps.

.. math:: \min_E\; \langle R, E\rangle + \tfrac12\langle E, GE\rangle
          + \sum_i \lambda_i \|w_i + e_i\|_1 + \sum_b \alpha_b \|W_b + E_b\|_F

in the change E of W, where a block b is a row of k columns, or a group of rows. What float32 is to resolve is
E and the slopes at W alone, which are given in the dtype of the problem: near the optimum both are small, and
no digits cancel. Arrays of features have the features last, (k, m).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import once, safe_divide
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
TOGETHER = 4  # single coordinates of an iteration: the triangle between them is written out
SWEEPS_A_CHECK = 2
SWEEPS_A_NEWTON = 6  # sweeps over coordinates that may pass without the goal before each Newton step
SWEEPS_A_NEWTON_OF_BLOCKS = 2  # the same of sweeps over blocks
MOST_SWEEPS = 120
MOST_UNKNOWNS = 2048  # entries of W on the support, for a Newton step
RIDGE = 3e-6  # of each diagonal entry, for Newton: a few hundred roundings of float32
SHORTEST = 0.01  # part of a Newton step that is tried


class Slopes(NamedTuple):
    """The problem at W, in float32. A slope is what the objective changes by, to first order, with E."""

    W: jax.Array  # (k, m)
    R: jax.Array  # (k, m), the slope of all that is smooth at W: of the norms too where W is not 0
    entries: jax.Array | None  # (m,), lambda; None: no such term
    blocks: jax.Array | None  # (b,), alpha; None: no such term. The block of feature i is i // (m // b)
    live: jax.Array  # (m,), whether the feature can move

    @property
    def size(self) -> int:
        """Features of a block."""
        return 1 if self.blocks is None else int(self.W.shape[1] // self.blocks.shape[0])

    @property
    def single(self) -> bool:
        """Whether every entry is a block of its own."""
        return self.blocks is None and self.W.shape[0] == 1


class Point(NamedTuple):
    """Where descent stands."""

    V: jax.Array  # W + E, with its exact zeros
    E: jax.Array
    R: jax.Array  # the slope of what is smooth at W, at W + E: R of the slopes, and GE


class Gram(NamedTuple):
    """A'A of some columns of A."""

    ix: jax.Array  # (m,), their numbers; of no column where there is none
    owner: jax.Array  # (b,), the numbers of the blocks that they form, in order
    tiles: jax.Array  # in use; rows and columns of G beyond them hold anything finite
    G: jax.Array  # (m, m) in float32

    @property
    def tile(self) -> int:
        """T, features of a tile."""
        return tile_of(self.ix.shape[0] // self.owner.shape[0])


def tile_of(size: int) -> int:
    """Features of a tile that holds whole blocks of a size: about `TILE`, and one block at least."""
    return size * max(1, TILE // size)


def no_gram(m: int, size: int, none: int) -> Gram:
    """Room for m columns in blocks of a size, in whole tiles; ``none``: a number that no column has."""
    owner = jnp.full(m // size, none, jnp.int32)
    return Gram(jnp.full(m, none, jnp.int32), owner, jnp.int32(0), jnp.zeros((m, m), LOW))


def gram_of(
    strip: Callable[[jax.Array], jax.Array], diagonal: jax.Array, tiles: jax.Array, n: int, gram: Gram
) -> jax.Array:
    """A'A + a diagonal, (m, m) in float32, in the leading tiles.

    Args:
      strip: (i) -> the columns of tile i as rows, (T, n), in float32.
      diagonal: (m,).
      tiles: in use.
      n: rows of A.
      gram: whose matrix is overwritten.
    """
    room, T = gram.G, gram.tile

    def row(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        rows, G = carry
        new = strip(i)
        rows = put_rows(rows, i, new)
        own = jnp.diag(rows_at(diagonal, i, T).astype(LOW))

        def tile(j: jax.Array, G: jax.Array) -> jax.Array:
            return put_both(G, i, j, new @ rows_at(rows, j, T).T + jnp.where(i == j, own, 0))

        return rows, lax.fori_loop(0, i + 1, tile, G)

    return lax.fori_loop(0, tiles, row, (jnp.zeros((room.shape[0], n), LOW), room))[1]


def of_blocks(a: jax.Array, size: int) -> jax.Array:
    """The sums over blocks, (b,), of an array of features (k, m)."""
    return jnp.sum(a.reshape(a.shape[0], -1, size), axis=(0, 2))


def to_features(a: jax.Array, size: int) -> jax.Array:
    """Of each feature what its block has: (1, m) from (b,)."""
    return jnp.repeat(a, size)[None]


def units(W: jax.Array, size: int) -> jax.Array:
    """W over the norms of its blocks, 0 where these are 0."""
    return safe_divide(W, to_features(jnp.sqrt(of_blocks(W * W, size)), size))


def slopes_of(W: jax.Array, gradient: jax.Array, entries: Any, blocks: Any, live: jax.Array) -> Slopes:
    """`Slopes`, formed in the dtype of the problem."""
    R = gradient
    if entries is not None:
        R = R + entries[None] * jnp.sign(W)
    if blocks is not None:
        size = W.shape[1] // blocks.shape[0]
        R = R + to_features(blocks, size) * units(W, size)
    low = lambda part: None if part is None else part.astype(LOW)
    return Slopes(W.astype(LOW), R.astype(LOW), low(entries), low(blocks), live)


def _turned(s: Slopes, blocks: jax.Array, V: jax.Array, E: jax.Array) -> jax.Array:
    """By how much the units of blocks that are not 0 at W have turned, alpha times; no digits cancel."""
    size = s.size
    before, after = (jnp.sqrt(of_blocks(a * a, size)) for a in (s.W, V))
    longer = safe_divide(of_blocks((2 * s.W + E) * E, size), before + after)
    unit = units(s.W, size)
    alpha, after, longer = (to_features(a, size) for a in (blocks, after, longer))
    was = to_features(before > 0, size)
    return alpha * jnp.where(was, safe_divide(E - longer * unit, after), units(V, size))


def slope_at(s: Slopes, p: Point) -> jax.Array:
    """The slope of what is smooth at V, in the entries that are not 0 there."""
    slope = p.R
    if s.entries is not None:
        slope = slope + s.entries[None] * (jnp.sign(p.V) - jnp.sign(s.W))
    if s.blocks is not None:
        slope = slope + _turned(s, s.blocks, p.V, jnp.where(p.V == 0, -s.W, p.E))
    return slope


def violation(s: Slopes, p: Point) -> jax.Array:
    """The largest slope of an entry, or of a block that is 0, beyond what its norms allow."""
    slope = jnp.abs(slope_at(s, p))
    smooth = p.R  # without the norms
    if s.entries is not None:
        smooth = smooth - s.entries[None] * jnp.sign(s.W)
    if s.blocks is not None:
        smooth = smooth - to_features(s.blocks, s.size) * units(s.W, s.size)
    left = jnp.abs(smooth) if s.entries is None else jnp.maximum(jnp.abs(smooth) - s.entries[None], 0)
    if s.blocks is None:
        worst = jnp.where(p.V == 0, left, slope)
    else:
        # Of a block that is 0 its norm; of an entry of another block what the first norm leaves.
        zero = to_features(of_blocks(p.V * p.V, s.size) == 0, s.size)
        beyond = jnp.maximum(jnp.sqrt(of_blocks(left * left, s.size)) - s.blocks, 0)
        entry = slope if s.entries is None else jnp.where(p.V == 0, left, slope)
        worst = jnp.where(zero, to_features(beyond, s.size), entry)
    return jnp.max(jnp.where(s.live[None], worst, 0))


def descended(gram: Gram, s: Slopes, share: float) -> tuple[jax.Array, jax.Array]:
    """E, and W + E with its exact zeros, once the violation is that ``share`` of what it was.

    Args:
      gram: of the features, by `gram_of`.
      s: the slopes at W, by `slopes_of`.
      share: of the violation, below 1.
    """
    first = Point(s.W, jnp.zeros_like(s.W), s.R)
    before = violation(s, first)
    goal = share * before
    sweeps = _by_coordinates(gram, s) if s.single else _by_blocks(gram, s)
    patience = SWEEPS_A_NEWTON if s.single else SWEEPS_A_NEWTON_OF_BLOCKS

    def body(carry: Any) -> Any:
        p, _, k = carry
        p = sweeps(p, SWEEPS_A_CHECK)
        k, left = k + SWEEPS_A_CHECK, violation(s, p)
        stalls = (k % patience == 0) & (left > goal)
        return once(stalls, lambda p: newton_step(gram.G, s, p), p), left, k

    more = lambda carry: (carry[1] > goal) & (carry[2] < MOST_SWEEPS)
    p, _, _ = lax.while_loop(more, body, (first, before, jnp.int32(0)))
    return p.E, p.V


def _by_coordinates(gram: Gram, s: Slopes) -> Callable[[Point, int], Point]:
    """Sweeps over single entries, `TOGETHER` of them an iteration."""
    G, b = gram.G, TOGETHER
    blocks = gram.tiles * (TILE // b)
    L = jnp.diagonal(G)
    L = jnp.where(L > 0, L, 1)
    # The slope of what is left of the norm: up for V > 0, -down for V < 0.
    sign, entries = jnp.sign(s.W[0]), jnp.zeros_like(L) if s.entries is None else s.entries
    up, down = (jnp.where(s.live, entries * (1 + c * sign), jnp.inf) for c in (-1, 1))

    def block(i: jax.Array, p: Point) -> Point:
        at = (i % blocks) * b
        R = lax.dynamic_slice_in_dim(G, at, b)
        H = lax.dynamic_slice_in_dim(R, at, b, axis=1)
        v, q, rise, fall, size = (lax.dynamic_slice_in_dim(a, at, b) for a in (p.V, p.R, up, down, L))
        steps: list[jax.Array] = []
        for c in range(b):
            slope = q[c] + sum((steps[j] * H[c, j] for j in range(c)), jnp.zeros((), LOW))
            right, left = -(slope + rise[c]) / size[c], -(slope - fall[c]) / size[c]
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
    """Sweeps over blocks: each goes to the prox of a gradient step, with a bound L of its own curvature."""
    G, size, m = gram.G, s.size, s.W.shape[1]
    alpha = jnp.zeros(m, LOW) if s.blocks is None else s.blocks
    b = m // size
    count = gram.tiles * (gram.tile // size)
    at = jnp.arange(b, dtype=jnp.int32) * size
    own = jax.vmap(lambda i: lax.dynamic_slice(G, (i, i), (size, size)))(at)
    L = jnp.minimum(jnp.max(jnp.sum(jnp.abs(own), axis=1), axis=1), jnp.sqrt(jnp.sum(own * own, axis=(1, 2))))
    L = jnp.where(L > 0, L, 1)
    norms = jnp.sqrt(of_blocks(s.W * s.W, size))
    # The prox is taken of V - (slope without the norm)/L, which is cW + H with c = 1 + alpha/(L |W|): near
    # the optimum H is small, and nothing cancels.
    threshold = alpha / L
    c = 1 + safe_divide(threshold, norms)

    def block(i: jax.Array, p: Point) -> Point:
        j = i % count
        at = j * size
        W, E, R = (lax.dynamic_slice_in_dim(a, at, size, axis=1) for a in (s.W, p.E, p.R))
        low, long, length, far = L[j], c[j], norms[j], threshold[j]
        H, there = E - R / low, jnp.ones((), bool)
        if s.entries is not None:
            cut = lax.dynamic_slice_in_dim(s.entries, at, size)[None] / low
            whole_step = long * W + H
            kept = (W != 0) & (whole_step * W > 0)
            other = whole_step + cut * jnp.sign(W)
            there = kept | (jnp.abs(other) > cut)
            H = jnp.where(kept, H, jnp.sign(other) * jnp.maximum(jnp.abs(other) - cut, 0) - long * W)
        U = jnp.where(there, long * W + H, 0)
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
    """The step to where the slopes of the entries that are not 0 vanish, as far as none changes its sign.

    The Hessian on the support is G, and of the norm of a block with unit U alpha (I - UU')/|V|. Signs matter
    where there is a norm of entries.
    """
    (k, m), T, size = p.V.shape, TILE, s.size
    most = min(whole(k * m), MOST_UNKNOWNS)
    on = p.V != 0
    S = jnp.nonzero(on.reshape(-1), size=most, fill_value=k * m)[0].astype(jnp.int32)
    count = jnp.sum(on, dtype=jnp.int32)
    tiles = -(-jnp.minimum(count, most) // T)
    here, feature, column = k * m > S, S % m, S // m
    feature = jnp.where(here, feature, m)
    H = G.at[feature].get(mode="fill", fill_value=0)
    slope = slope_at(s, p)
    pick = lambda a: a.reshape(-1).at[S].get(mode="fill", fill_value=0)
    if s.blocks is not None:
        long = jnp.sqrt(of_blocks(p.V * p.V, size))
        bend = pick(jnp.broadcast_to(to_features(safe_divide(s.blocks, long), size), p.V.shape))
        unit, owner = pick(units(p.V, size)), feature // size

    def tile(i: jax.Array, j: jax.Array) -> jax.Array:
        block = rows_at(H, i, T).at[:, rows_at(feature, j, T)].get(mode="fill", fill_value=0)
        if k > 1:
            block = jnp.where(rows_at(column, i, T)[:, None] == rows_at(column, j, T)[None], block, 0)
        own = jnp.where(rows_at(here, i, T), RIDGE * jnp.diagonal(block), 1)
        if s.blocks is not None:
            same = rows_at(owner, i, T)[:, None] == rows_at(owner, j, T)[None]
            outer = rows_at(unit, i, T)[:, None] * rows_at(unit, j, T)[None]
            block = block - jnp.where(same, rows_at(bend, i, T)[:, None] * outer, 0)
            own = own + rows_at(bend, i, T)
        return block + jnp.where(i == j, jnp.diag(own), 0)

    root = factorised(tile, tiles, no_root(most, T, LOW), inverted=False)
    x = upper_solve(root, lower_solve(root, -pick(slope)[None], tiles), tiles)[0]
    x = jnp.zeros(k * m, LOW).at[S].set(x, mode="drop").reshape(k, m)

    def bent(step: jax.Array) -> jax.Array:
        """What the norms of blocks change by beyond the first order, in each block."""
        assert s.blocks is not None
        old, new = (jnp.sqrt(of_blocks(a * a, size)) for a in (p.V, p.V + step))
        longer = safe_divide(of_blocks((2 * p.V + step) * step, size), old + new)
        return s.blocks * (longer - safe_divide(of_blocks(p.V * step, size), old))

    def shorter(carry: Any) -> Any:
        t = carry[0] / 2
        step = t * x
        if s.entries is not None:
            step = jnp.where(jnp.sign(p.V + step) == jnp.sign(p.V), step, -p.V)
        if s.blocks is not None:
            ahead = to_features(of_blocks((p.V + step) * p.V, size) > 0, size)
            step = jnp.where(ahead, step, -p.V)
        step = jnp.where(on, step, 0)
        change = step @ G
        fall = jnp.sum(step * jnp.where(on, slope + change / 2, 0))
        return t, step, change, fall if s.blocks is None else fall + jnp.sum(bent(step))

    start = (jnp.asarray(2, LOW), jnp.zeros_like(p.V), jnp.zeros_like(p.R), jnp.asarray(jnp.inf, LOW))
    _, step, change, fall = lax.while_loop(lambda c: ~(c[3] <= 0) & (c[0] >= SHORTEST), shorter, start)
    falls = (fall <= 0) & (count <= most)
    new = Point(jnp.where(step == -p.V, 0, p.V + step), p.E + step, p.R + change)
    return Point(*(jnp.where(falls, b, a) for a, b in zip(p, new, strict=True)))
