r"""Least squares with an l1 norm on few features: cyclic descent on their Gram matrix, with Newton steps.

.. math:: \min_e\; \langle g, e\rangle + \tfrac12 e^\top G e + \sum_i \alpha_i |w_i + e_i|

in the change e of w. What float32 is to resolve is e and the slopes at w alone, which are given in the dtype
of the problem: near the optimum both are small, and no digits cancel.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import once
from sparsejax._core.tiles import (
    TILE,
    factorised,
    lower_solve,
    no_root,
    put_both,
    put_rows,
    rows_at,
    upper_solve,
)

LOW = jnp.float32
TOGETHER = 4  # coordinates of an iteration: the triangle between them is written out
SWEEPS_A_CHECK = 2
SWEEPS_A_NEWTON = 6  # sweeps that may pass without the goal before each Newton step
MOST_SWEEPS = 120
RIDGE = 3e-6  # of each diagonal entry, for Newton: a few hundred roundings of float32
SHORTEST = 0.01  # part of a Newton step that is tried


class Slopes(NamedTuple):
    """What the objective changes by, to first order, where e is 0."""

    q: jax.Array  # (m,), g_i + alpha_i sign(w_i)
    up: jax.Array  # (m,), what is added where w_i + e_i > 0: alpha_i (1 - sign(w_i))
    down: jax.Array  # (m,), what is taken off where w_i + e_i < 0: alpha_i (1 + sign(w_i))

    def violation(self, v: jax.Array, q: jax.Array) -> jax.Array:
        """The largest slope that is not zero, at v = w + e and q the slopes there."""
        at_zero = jnp.maximum(jnp.maximum(q - self.down, -q - self.up), 0)
        slope = jnp.where(v > 0, jnp.abs(q + self.up), jnp.abs(q - self.down))
        return jnp.max(jnp.where(v == 0, at_zero, slope))


class Point(NamedTuple):
    v: jax.Array  # w + e
    e: jax.Array
    q: jax.Array  # q at 0, and Ge


class Gram(NamedTuple):
    """A'A of some columns of A."""

    ix: jax.Array  # (m,), their numbers; of no column where there is none
    tiles: jax.Array  # in use; rows and columns of G beyond them hold anything finite
    G: jax.Array  # (m, m) in float32


def no_gram(m: int, none: int) -> Gram:
    """Room for m columns, a multiple of `TILE`."""
    return Gram(jnp.full(m, none, jnp.int32), jnp.int32(0), jnp.zeros((m, m), LOW))


def gram_of(
    strip: Callable[[jax.Array], jax.Array], diagonal: jax.Array, tiles: jax.Array, n: int, room: jax.Array
) -> jax.Array:
    """A'A + a diagonal, (m, m) in float32, in the leading tiles.

    Args:
      strip: (i) -> the columns of tile i as rows, (T, n), in float32.
      diagonal: (m,).
      tiles: in use.
      n: rows of A.
      room: overwritten.
    """

    def row(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        rows, G = carry
        new = strip(i)
        rows = put_rows(rows, i, new)
        own = jnp.diag(rows_at(diagonal, i, TILE).astype(LOW))

        def tile(j: jax.Array, G: jax.Array) -> jax.Array:
            return put_both(G, i, j, new @ rows_at(rows, j, TILE).T + jnp.where(i == j, own, 0))

        return rows, lax.fori_loop(0, i + 1, tile, G)

    return lax.fori_loop(0, tiles, row, (jnp.zeros((room.shape[0], n), LOW), room))[1]


def slopes_of(w: jax.Array, gradient: jax.Array, alpha: jax.Array, within: jax.Array) -> Slopes:
    """In float32, formed in the dtype of the problem; what is not within cannot move."""
    sign = jnp.sign(w)
    parts = gradient + alpha * sign, alpha * (1 - sign), alpha * (1 + sign)
    q, up, down = (part.astype(LOW) for part in parts)
    return Slopes(q, jnp.where(within, up, jnp.inf), jnp.where(within, down, jnp.inf))


def descended(gram: Gram, w: jax.Array, slopes: Slopes, share: float) -> tuple[jax.Array, jax.Array]:
    """e, and w + e with its exact zeros, once the violation is that ``share`` of what it was.

    Args:
      gram: of the features, by `gram_of`.
      w: (m,).
      slopes: at w.
      share: of the violation, below 1.
    """
    G, tiles = gram.G, gram.tiles
    L = jnp.diagonal(G)
    L = jnp.where(L > 0, L, 1)
    first = Point(w.astype(LOW), jnp.zeros_like(L), slopes.q)
    before = slopes.violation(first.v, first.q)
    goal = share * before
    b, blocks = TOGETHER, tiles * (TILE // TOGETHER)

    def block(i: jax.Array, p: Point) -> Point:
        at = (i % blocks) * b
        R = lax.dynamic_slice_in_dim(G, at, b)
        H = lax.dynamic_slice_in_dim(R, at, b, axis=1)
        v, q, up, down, size = (
            lax.dynamic_slice_in_dim(a, at, b) for a in (p.v, p.q, slopes.up, slopes.down, L)
        )
        steps: list[jax.Array] = []
        for c in range(b):
            slope = q[c] + sum((steps[j] * H[c, j] for j in range(c)), jnp.zeros((), LOW))
            right, left = -(slope + up[c]) / size[c], -(slope - down[c]) / size[c]
            steps.append(jnp.where(v[c] + right > 0, right, jnp.where(v[c] + left < 0, left, -v[c])))
        step = jnp.stack(steps)
        e = lax.dynamic_slice_in_dim(p.e, at, b) + step
        put = lambda a, new: lax.dynamic_update_slice_in_dim(a, new, at, 0)
        return Point(put(p.v, v + step), put(p.e, e), p.q + step @ R)

    def body(carry: Any) -> Any:
        p, _, k = carry
        p = lax.fori_loop(0, SWEEPS_A_CHECK * blocks, block, p)
        k, left = k + SWEEPS_A_CHECK, slopes.violation(p.v, p.q)
        stalls = (k % SWEEPS_A_NEWTON == 0) & (left > goal)
        return once(stalls, lambda p: newton_step(G, slopes, p), p), left, k

    more = lambda carry: (carry[1] > goal) & (carry[2] < MOST_SWEEPS)
    p, _, _ = lax.while_loop(more, body, (first, before, jnp.int32(0)))
    return p.e, p.v


def newton_step(G: jax.Array, slopes: Slopes, p: Point) -> Point:
    """The step to where the slopes of the features that are not 0 vanish, as far as none changes its sign."""
    m, T = G.shape[0], TILE
    on = p.v != 0
    S = jnp.nonzero(on, size=m, fill_value=m)[0].astype(jnp.int32)
    tiles = -(-jnp.sum(on, dtype=jnp.int32) // T)
    here = m > S
    H = G.at[S].get(mode="fill", fill_value=0)

    def tile(i: jax.Array, j: jax.Array) -> jax.Array:
        block = rows_at(H, i, T).at[:, rows_at(S, j, T)].get(mode="fill", fill_value=0)
        own = jnp.where(rows_at(here, i, T), RIDGE * jnp.diagonal(block), 1)
        return block + jnp.where(i == j, jnp.diag(own), 0)

    root = factorised(tile, tiles, no_root(m, T, LOW), inverted=False)
    slope = p.q + jnp.where(p.v > 0, slopes.up, -slopes.down)
    right = -slope.at[S].get(mode="fill", fill_value=0)[None]
    x = upper_solve(root, lower_solve(root, right, tiles), tiles)[0]
    x = jnp.zeros_like(p.v).at[S].set(x, mode="drop")

    def shorter(carry: Any) -> Any:
        t = carry[0] / 2
        kept = jnp.sign(p.v + t * x) == jnp.sign(p.v)
        step = jnp.where(on, jnp.where(kept, t * x, -p.v), 0)
        change = step @ G
        return t, step, change, jnp.sum(step * jnp.where(on, slope + change / 2, 0))

    start = (jnp.asarray(2, LOW), jnp.zeros_like(p.v), jnp.zeros_like(p.q), jnp.asarray(jnp.inf, LOW))
    _, step, change, fall = lax.while_loop(lambda c: ~(c[3] <= 0) & (c[0] >= SHORTEST), shorter, start)
    falls = fall <= 0
    return Point(*(jnp.where(falls, a + b, a) for a, b in zip(p, (step, step, change), strict=True)))
