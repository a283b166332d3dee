"""Descent on the problem of `_block_problem`: one entry or block after another, and Newton steps between."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import apply_if, safe_divide
from sparsejax._core.one_kernel import compiles_loops, one_kernel
from sparsejax.solvers._block_problem import LOW, Gram, Point, Slopes, of_blocks, plus_rows, violation
from sparsejax.solvers._support_newton import newton_step

# Sweeps between two Newton steps: of single entries, of blocks. A Newton step costs 10 to 30 sweeps.
SWEEPS_PER_NEWTON, BLOCK_SWEEPS_PER_NEWTON = 16, 10
# Entries that one loop iteration updates on an accelerator, by code written out for each.
ENTRIES_PER_ITERATION = 8
FIRST_SWEEPS = 4  # sweeps before the first Newton step, which is the last one if W is near the answer
MAX_SWEEPS = 240  # after which a call begins no further sweeps; the caller judges the point reached


def descended(gram: Gram, s: Slopes, share: float) -> tuple[jax.Array, jax.Array]:
    """Descend until the violation is at most ``share`` of the violation at W, or for `MAX_SWEEPS` sweeps.

    Each pass makes some sweeps over all entries or blocks. If the violation is then too large still, a Newton
    step follows, and the next pass.

    Args:
      gram: the Gram matrix of the features, by `gram_of`.
      s: the slopes at W, by `Slopes.lowered`.
      share: in (0, 1).

    Returns:
      E and W + E, the latter with exact zeros, (k, m) each.
    """
    first = Point(s.W, jnp.zeros_like(s.W), s.R)
    before, per_newton = violation(s, first), SWEEPS_PER_NEWTON if s.single else BLOCK_SWEEPS_PER_NEWTON
    goal = share * before
    b = ENTRIES_PER_ITERATION if s.single and not compiles_loops() else 1
    one = _by_coordinates(gram, s, b) if s.single else _by_blocks(gram, s)
    sweep = lambda p: lax.fori_loop(0, gram.used // (b * s.size), one, p)
    sweeps = one_kernel(lambda p, number: lax.fori_loop(0, number, lambda _, p: sweep(p), p))

    def body(carry: Any) -> Any:
        p, _, done = carry
        number = jnp.where(done == 0, FIRST_SWEEPS, per_newton).astype(jnp.int32)
        p = sweeps(p, number)
        left = violation(s, p)
        return apply_if(left > goal, lambda p: newton_step(gram, s, p), p), left, done + number

    more = lambda carry: (carry[1] > goal) & (carry[2] < MAX_SWEEPS)
    p, _, _ = lax.while_loop(more, body, (first, before, jnp.int32(0)))
    return p.E, p.V


def _by_coordinates(gram: Gram, s: Slopes, b: int) -> Callable[[jax.Array, Point], Point]:
    """The function (number, point) -> point that minimises exactly over b entries, one after the other."""
    L = jnp.diagonal(gram.G)
    # XLA fuses products, and not quotients, into one kernel for all entries of an iteration.
    inverse = 1 / jnp.where(L > 0, L, 1)
    # Slope of the norm at V minus its slope at W, which R contains: ``up`` for V > 0, ``-down`` for V < 0.
    # An entry that cannot move is 0, and infinite slopes keep it there.
    sign, entries = jnp.sign(s.W[0]), jnp.zeros_like(L) if s.entries is None else s.entries
    up, down = (jnp.where(s.live, entries * (1 + c * sign), jnp.inf) for c in (-1, 1))
    if s.nonnegative:
        down = jnp.full_like(down, jnp.inf)

    def entries_of(i: jax.Array, p: Point) -> Point:
        at = i * b
        own = lax.dynamic_slice(gram.G, (at, at), (b, b))
        of_v, of_r = (lax.dynamic_slice_in_dim(a[0], at, b) for a in (p.V, p.R))
        rise, fall, scale = (lax.dynamic_slice_in_dim(a, at, b) for a in (up, down, inverse))
        steps: list[jax.Array] = []
        for c in range(b):
            # The slope of the loss in entry c after the steps of the entries before c. The step leads to the
            # minimum over entry c: right of 0, left of 0, or else at 0.
            v, slope = of_v[c], of_r[c] + sum((steps[j] * own[c, j] for j in range(c)), jnp.zeros((), LOW))
            right, left = -(slope + rise[c]) * scale[c], -(slope - fall[c]) * scale[c]
            steps.append(jnp.where(v + right > 0, right, jnp.where(v + left < 0, left, -v)))
        step = jnp.stack(steps)[None]
        e = lax.dynamic_slice_in_dim(p.E, at, b, axis=1) + step
        put = lambda a, new: lax.dynamic_update_slice_in_dim(a, new, at, 1)
        return Point(put(p.V, of_v[None] + step), put(p.E, e), plus_rows(p.R, gram, s.tile, at, step))

    return entries_of


def _by_blocks(gram: Gram, s: Slopes) -> Callable[[jax.Array, Point], Point]:
    """The function (number, point) -> point that makes a proximal gradient step in the block of that number.

    The step of a block has length 1/L, with L a bound of the largest eigenvalue of the block's own part of G:
    its largest row sum of magnitudes, or its Frobenius norm if that is smaller.
    """
    G, size, m = gram.G, s.size, s.W.shape[1]
    alpha = jnp.zeros(m, LOW) if s.blocks is None else s.blocks
    b = m // size
    at = jnp.arange(b, dtype=jnp.int32) * size
    own = jax.vmap(lambda i: lax.dynamic_slice(G, (i, i), (size, size)))(at)
    L = jnp.minimum(jnp.max(jnp.sum(jnp.abs(own), axis=1), axis=1), jnp.sqrt(jnp.sum(own * own, axis=(1, 2))))
    L = jnp.where(L > 0, L, 1)
    norms = jnp.sqrt(of_blocks(s.W * s.W, size))
    # The argument of the prox is V - (slope of the loss)/L = cW + H, c = 1 + alpha/(L |W|) and H = E - R/L.
    # Near the optimum H is small, so that the change new - E is computed from H without cancellation.
    threshold = alpha / L
    c = 1 + safe_divide(threshold, norms)

    def block(j: jax.Array, p: Point) -> Point:
        at = j * size
        W, E, R = (lax.dynamic_slice_in_dim(a, at, size, axis=1) for a in (s.W, p.E, p.R))
        bound, factor, length, cut = L[j], c[j], norms[j], threshold[j]
        H, nonzero = E - R / bound, jnp.ones((), bool)
        if s.entries is not None:
            # R contains the slope of the norm of entries for the signs of W. An entry whose sign would change
            # is soft-thresholded instead, after this slope is taken out of its step.
            lam = lax.dynamic_slice_in_dim(s.entries, at, size)[None] / bound
            whole_step = factor * W + H
            same_sign = (W != 0) & (whole_step * W > 0)
            other = whole_step + lam * jnp.sign(W)
            nonzero = same_sign | (jnp.abs(other) > lam)
            H = jnp.where(same_sign, H, jnp.sign(other) * jnp.maximum(jnp.abs(other) - lam, 0) - factor * W)
        U = jnp.where(nonzero, factor * W + H, 0)
        # The prox of the norm of the block is U - cut U/|U| if |U| > cut, else 0. As cW - W = cut W/|W|, the
        # new E is H - cut ``turned``, with turned = U/|U| - W/|W| = (H - longer W/|W|) / |U| and longer =
        # |U| - c|W| = <2cW + H, H> / (|U| + c|W|).
        length_U = jnp.sqrt(jnp.sum(U * U))
        inverse = safe_divide(1.0, length_U)
        longer = safe_divide(jnp.sum((2 * factor * W + H) * H), length_U + factor * length)
        turned = jnp.where(length > 0, (H - longer * safe_divide(W, length)) * inverse, U * inverse)
        new = jnp.where(length_U > cut, H - cut * turned, -W)
        V = jnp.where((length_U > cut) & nonzero, W + new, 0)
        put = lambda a, part: lax.dynamic_update_slice_in_dim(a, part, at, 1)
        # E + change and not ``new``: where XLA reads E again after ``new`` it copies all of E for each block.
        change = new - E
        return Point(put(p.V, V), put(p.E, E + change), plus_rows(p.R, gram, s.tile, at, change))

    return block
