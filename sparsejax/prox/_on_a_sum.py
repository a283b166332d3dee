"""The prox of l1 restricted to vectors with a given sum, and the projection onto a simplex."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import eps_of, safe_divide, unit_of

# Newton's method takes a few steps. Bisection alone would take about as many as a float64 has bits, 64.
MAX_STEPS = 200


@functools.partial(jax.jit, static_argnames="positive")  # without jit an eager call would compile the loop
def on_a_sum(V: jax.Array, strength: jax.Array, total: jax.Array, positive: bool) -> jax.Array:
    r"""Argmin of :math:`\tfrac12\|z - v\|^2 + \sum_i s_i|z_i|` over z with a given sum, for each row v of V.

    The answer z is soft thresholding of :math:`v - \nu` at s. The sum of z is a decreasing, piecewise linear
    function of :math:`\nu`. Newton's method with bounds finds the :math:`\nu` with the right sum; bisection
    replaces a Newton step that leaves the bounds. The derivative is that of z and :math:`\nu` for the given
    set of entries that are not 0.

    Args:
      V: (k, p).
      strength: s >= 0, broadcastable to V, of rank 2.
      total: (), the sum of z.
      positive: static; True demands z >= 0 as well, and then the total must be >= 0.

    Returns:
      Shape (k, p).
    """
    # The sum of z loses digits if the entries of v have a large part in common. So that part is subtracted
    # first, which changes nu alone. ``common`` is the entry if all are equal, else a multiple of ``grid``, a
    # power of 2 above the differences of the entries, so that the subtraction is exact; ``common`` is 0 if
    # the entries differ by about their size.
    first = lax.stop_gradient(V[:, :1])
    apart = V - first
    grid = 8 * jax.vmap(unit_of)(apart)[0][:, None]
    common = jnp.where(jnp.all(first == V, axis=1, keepdims=True), first, grid * jnp.trunc(first / grid))
    finite = jnp.all(jnp.isfinite(apart), axis=1, keepdims=True) & jnp.isfinite(common)
    V = V - jnp.where(finite, common, 0)
    upper, lower = V - strength, V + strength  # z + nu where z > 0 (upper), and where z < 0 (lower)

    def ends(nu: jax.Array, upper: jax.Array, lower: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The positive and the negative parts of z, both >= 0."""
        below = jnp.zeros_like(lower) if positive else jnp.maximum(nu - lower, 0)
        return jnp.maximum(upper - nu, 0), below

    def excess(nu: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The sum of z minus the total, and the number of z != 0: minus the slope of the sum; (k, 1) each."""
        above, below = ends(nu, *fixed)
        count = jnp.sum((above > 0) | (below > 0), axis=1, keepdims=True)
        return jnp.sum(above - below, axis=1, keepdims=True) - aim, count.astype(V.dtype)

    def step(c: Any) -> Any:
        low, high, nu, _, n = c
        over, count = excess(nu)
        low, high = jnp.where(over >= 0, nu, low), jnp.where(over <= 0, nu, high)
        new = nu + safe_divide(over, count)
        middle = low + (high - low) / 2
        # Newton steps could lead from one bound to the other and back for ever. So a step onto a bound, or
        # beyond it, is taken only if it is so short that it ends the loop.
        rounding = 2 * eps_of(V) * size
        inside = (new > low) & (new < high) | (jnp.abs(new - nu) <= rounding)
        new = jnp.where((count > 0) & inside, new, middle)
        near = jnp.abs(new - nu) <= rounding
        return low, high, new, jnp.any(~(near | (over == 0))), n + 1

    *fixed, aim = lax.stop_gradient((upper, lower, total))
    size = jnp.max(jnp.abs(fixed[0]), axis=1, keepdims=True) + jnp.abs(aim)
    # At ``low`` each z is at least |total| / p, at ``high`` at most minus that (0 with ``positive``).
    share = jnp.abs(aim) / V.shape[1]
    low = jnp.min(fixed[0], axis=1, keepdims=True) - share
    high = jnp.max(fixed[1], axis=1, keepdims=True) + share
    start = low, high, low + (high - low) / 2, jnp.ones((), bool), jnp.int32(0)
    _, _, nu, _, _ = lax.while_loop(lambda c: c[3] & (c[4] < MAX_STEPS), step, start)
    # Given which entries of z are not 0, nu = (sum of their ``known`` - total) / count. Each turn computes
    # this nu, with its derivative, and subtracts it from ``upper`` and ``lower``, which then are z itself.
    # The second turn mends the rounding of the first, and leaves out entries that only rounding had kept from
    # 0. An entry of strength 0 has no kink at 0: it counts as not 0.
    plain = jnp.zeros(V.shape, bool) if positive else jnp.broadcast_to(strength == 0, V.shape)
    for _ in range(2):
        above, below = ends(nu, *lax.stop_gradient((upper, lower)))
        known = jnp.where(above > 0, upper, jnp.where((below > 0) | plain, lower, 0))
        count = jnp.sum((above > 0) | (below > 0) | plain, axis=1, keepdims=True).astype(V.dtype)
        nu = jnp.where(count > 0, safe_divide(jnp.sum(known, axis=1, keepdims=True) - total, count), nu)
        upper, lower, nu = upper - nu, lower - nu, jnp.zeros_like(nu)
    above, below = ends(nu, upper, lower)
    zero = (above <= 0) & (below <= 0) & ~plain
    return jnp.where(zero, 0, jnp.where(above > 0, upper, lower))
