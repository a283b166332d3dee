"""How far a gradient is from moving W off 0, for a sum of several terms."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import columns, eps_of, like, safe_divide
from sparsejax.penalties._terms import CYCLES, dykstra, feasible, joined, shared

ROUNDS = 200  # at most; five to a hundred are the rule


class _State(NamedTuple):
    low: jax.Array
    high: jax.Array
    W: jax.Array
    best: jax.Array  # the W of ``low``
    n: jax.Array


def gauge(penalty: Any, Z: jax.Array) -> jax.Array:
    r"""The least t with Z a subgradient of t g at 0, inf if there is none; g of degree 1, on a cone.

    It is the maximum of :math:`\langle Z, W\rangle / g(W)`: Dinkelbach's iteration on that ratio from below,
    each step from the last W (at the answer the maximum is flat along rays, so that a step from 0 would have
    to end there). What a step leaves of Z is a split over the terms, and the least t that holds every part in
    its ball is a bound from above: that is returned.

    Source: Dinkelbach, Management Science 13(7), 1967.
    """
    varied = penalty, Z
    penalty, Z = lax.stop_gradient(varied)
    size, near = jnp.max(jnp.abs(Z)), 100 * eps_of(Z)

    def above(parts: tuple[jax.Array, ...]) -> jax.Array:
        parts = shared(penalty, tuple(like(part, Z) for part in parts), Z)
        scales = [term.dual_scale(part) for term, part in zip(penalty.terms, parts, strict=True)]
        return jnp.max(jnp.stack([safe_divide(1.0, scale, jnp.inf) for scale in scales]))

    def round_(c: _State) -> _State:
        V = Z + c.W * safe_divide(size, jnp.max(jnp.abs(c.W)))
        points, parts = dykstra(penalty, columns(V), c.low, jnp.int32(CYCLES))
        W = like(joined(penalty, points, Z), Z)
        low = _ratio(penalty, Z, W)
        best = jnp.where(low > c.low, W, c.best)
        return _State(jnp.maximum(low, c.low), jnp.minimum(above(parts), c.high), W, best, c.n + 1)

    W = feasible(penalty, Z)
    low = _ratio(penalty, Z, W)
    start = _State(low, jnp.where(low > 0, jnp.full_like(low, jnp.inf), 0), W, W, jnp.int32(0))
    end = lax.while_loop(
        lambda c: (c.high > c.low * (1 + near)) & (c.low < jnp.inf) & (c.n < ROUNDS), round_, start
    )
    # The derivative of a maximum is that at the maximiser.
    ratio = _ratio(*varied, end.best)
    return end.high + jnp.where(jnp.isfinite(ratio), ratio - lax.stop_gradient(ratio), 0)


def _ratio(penalty: Any, Z: jax.Array, W: jax.Array) -> jax.Array:
    product = jnp.sum(Z * W)
    return safe_divide(product, penalty.value(W), jnp.where(product > 0, jnp.inf, 0))
