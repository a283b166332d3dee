"""A Newton step on the support of the problem of `_block_problem`."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import choose, conjugate_gradients, safe_divide
from sparsejax._core.tiles import TILE, factorised, lower_solve, no_root, rows_at, upper_solve, whole
from sparsejax.solvers._block_problem import (
    LOW,
    Gram,
    Point,
    Slopes,
    of_blocks,
    slope_at,
    times_gram,
    to_features,
    units,
)

# A Newton step of single entries factorises a Gram matrix of at most this many features. With more features,
# conjugate gradients take less time; with few, they would leave too much of the slope at very weak strengths.
MAX_FACTORISED = 256
CG_SHARE, MAX_CG_STEPS = 0.5, 30  # conjugate gradients: share of the slope that they leave; most steps
RIDGE_SHARE = 3e-6  # ridge of a Newton step, as a share of the diagonal: 25 times the eps of float32
MIN_STEP_LENGTH = 0.01  # the shortest Newton step of blocks that is tried, as a share of the whole step


def newton_step(gram: Gram, s: Slopes, p: Point) -> Point:
    """A Newton step on the entries that are not 0, halved until the objective falls.

    The Hessian on the support is G plus, for the norm of a block with unit U = V/|V|,
    ``alpha (I - UU')/|V|``. With a norm of entries, an entry that would change its sign becomes 0; with norms
    of blocks, a block that would point away from V becomes 0. A step of single entries is not halved below
    the length at which the first entry changes its sign, or below the whole step if no entry does: the
    objective falls up to there, even if G is singular.
    """
    G, size, on = gram.G, s.size, p.V != 0
    slope = jnp.where(on, slope_at(s, p), 0)
    few = s.single and len(G) <= MAX_FACTORISED
    x = _by_factor(G, on, slope) if few else _by_conjugate_gradients(gram, s, p.V, slope)

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
        change = times_gram(step, gram, s.tile)
        # Change of the objective: <slope, step> + <step, G step>/2, and what the norms of blocks add.
        fall = jnp.sum(step * jnp.where(on, slope + change / 2, 0))
        return t, step, change, fall if s.blocks is None else fall + jnp.sum(bent(s.blocks, step))

    start = (jnp.asarray(2, LOW), jnp.zeros_like(p.V), jnp.zeros_like(p.R), jnp.asarray(jnp.inf, LOW))
    _, step, change, fall = lax.while_loop(lambda c: ~(c[3] <= 0) & (c[0] > shortest), shorter, start)
    new = Point(jnp.where(step == -p.V, 0, p.V + step), p.E + step, p.R + change)
    return choose(fall <= 0, new, p)


def _by_factor(G: jax.Array, on: jax.Array, slope: jax.Array) -> jax.Array:
    """The Newton step of single entries, (1, m), by a Cholesky factor of their part of G."""
    m = on.shape[1]
    room = whole(m)
    T = min(room, TILE)
    S = jnp.nonzero(on[0], size=room, fill_value=m)[0].astype(jnp.int32)
    here, tiles = m > S, -(-jnp.sum(on, dtype=jnp.int32) // T)

    def tile(i: jax.Array, j: jax.Array) -> jax.Array:
        block = G.at[rows_at(S, i, T)[:, None], rows_at(S, j, T)[None]].get(mode="fill", fill_value=0)
        ridge = jnp.where(rows_at(here, i, T), RIDGE_SHARE * jnp.diagonal(block), 1)
        return block + jnp.where(i == j, jnp.diag(ridge), 0)

    root = factorised(tile, tiles, no_root(room, T, LOW), inverted=False)
    right = slope[0].at[S].get(mode="fill", fill_value=0)
    x = upper_solve(root, lower_solve(root, -right[None], tiles), tiles)[0]
    return jnp.zeros_like(slope).at[0, S].set(x, mode="drop")


def _by_conjugate_gradients(gram: Gram, s: Slopes, V: jax.Array, slope: jax.Array) -> jax.Array:
    """Nearly the Newton step, (k, m): conjugate gradients end when `CG_SHARE` of the slope is left.

    To factorise a system of 2000 entries takes as long as hundreds of products with G; conjugate gradients,
    preconditioned by the diagonal, need 10 to 30, and the sweeps that follow make up for what they leave.
    """
    size, on, L = s.size, V != 0, jnp.diagonal(gram.G)[None]
    scale = L
    if s.blocks is not None:
        bend = to_features(safe_divide(s.blocks, jnp.sqrt(of_blocks(V * V, size))), size)
        unit = units(V, size)
        scale = L + bend * (1 - unit * unit)
    scale = jnp.where(scale > 0, scale, 1)

    by_gram = lambda x: times_gram(x, gram, s.tile)
    by_rows = lambda x: (x @ gram.A) @ gram.A.T + s.ridge[None] * x
    # On the support of many more features than rows G has more entries than A and A'.
    many = jnp.sum(jnp.any(on, axis=0)) > 2 * gram.A.shape[1]

    def product(x: jax.Array) -> jax.Array:
        return lax.cond(many, by_rows, by_gram, x) if gram.few_rows else by_gram(x)

    def hessian(x: jax.Array) -> jax.Array:
        Hx = product(x) + RIDGE_SHARE * L * x
        if s.blocks is not None:
            Hx += bend * (x - unit * to_features(of_blocks(unit * x, size), size))
        return jnp.where(on, Hx, 0)

    return conjugate_gradients(hessian, -slope, lambda r: r / scale, CG_SHARE, MAX_CG_STEPS)[0]
