"""The least strength at which W = 0 is optimal, for a penalty with several terms."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import columns, eps_of, like, safe_divide, unit_of
from sparsejax.penalties._base import Penalty
from sparsejax.penalties._rules import feasible
from sparsejax.penalties._terms import MAX_CYCLES, dykstra, joined, shared

MAX_ROUNDS = 200  # rounds of `gauge`; most penalties take 5 to 100
MAX_RATIO_ROUNDS = 60  # rounds of `largest_ratio`, which usually takes three to five


class _State(NamedTuple):
    low: jax.Array  # (), the largest ratio so far: a lower bound on the answer
    high: jax.Array  # (), the least upper bound so far
    W: jax.Array  # the last point, shape of Z
    best: jax.Array  # the point whose ratio is ``low``, shape of Z
    n: jax.Array  # () int32, rounds so far


def gauge(penalty: Penalty, Z: jax.Array) -> jax.Array:
    r"""The least t such that Z is a subgradient of t g at 0; inf if there is no such t.

    g is homogeneous of degree 1 on a cone. t is the maximum of :math:`\langle Z, W\rangle / g(W)`, found by
    Dinkelbach's iteration, which gives lower bounds: each round is a prox of ``low`` times g. A round starts
    from the last W, not from 0: at the answer the maximum is attained on a ray, and a prox step from 0 would
    stop at 0. The prox also splits Z over the terms; the least t at which each part is in the dual ball of
    its term is an upper bound. The upper bound is returned.

    Source: Dinkelbach, Management Science 13(7), 1967.
    """
    unit, inverse = unit_of(Z)  # the squares of Z below may overflow or underflow
    with_derivatives = penalty, Z * inverse
    penalty, Z = lax.stop_gradient(with_derivatives)
    size, rtol = jnp.max(jnp.abs(Z)), 100 * eps_of(Z)  # bounds that differ by less are equal up to rounding

    def upper_bound(parts: tuple[jax.Array, ...]) -> jax.Array:
        """The least t at which each part of Z is in the dual ball of t times its term."""
        parts = shared(penalty, tuple(like(part, Z) for part in parts), Z)
        scales = [term.dual_scale(part) for term, part in zip(penalty.terms, parts, strict=True)]
        return jnp.max(jnp.stack([safe_divide(1.0, scale, jnp.inf) for scale in scales]))

    def round_(c: _State) -> _State:
        V = Z + c.W * safe_divide(size, jnp.max(jnp.abs(c.W)))
        points, parts = dykstra(penalty, columns(V), c.low, jnp.int32(MAX_CYCLES))
        W = like(joined(penalty, points, Z), Z)
        low = _ratio(penalty, Z, W)
        best = jnp.where(low > c.low, W, c.best)
        return _State(jnp.maximum(low, c.low), jnp.minimum(upper_bound(parts), c.high), W, best, c.n + 1)

    W = feasible(penalty, Z)
    low = _ratio(penalty, Z, W)
    start = _State(low, jnp.where(low > 0, jnp.full_like(low, jnp.inf), 0), W, W, jnp.int32(0))
    end = lax.while_loop(
        lambda c: (c.high > c.low * (1 + rtol)) & (c.low < jnp.inf) & (c.n < MAX_ROUNDS), round_, start
    )
    top = unit * _with_derivative(end.high, _ratio(*with_derivatives, end.best))
    return jnp.where(jnp.isfinite(size), top, size)  # NaN for NaN


def largest_ratio(better: Callable[..., jax.Array], values: tuple[jax.Array, ...], dtype: Any) -> jax.Array:
    """The largest ratio numerator / denominator, (), or 0 if that is larger, by Dinkelbach's iteration.

    ``better(t, *values)`` is the ratio at the maximiser of numerator - t * denominator. It is greater than t
    unless t is at least the largest ratio. The derivative in ``values`` is the derivative at the maximiser.
    """
    fixed = lax.stop_gradient(values)
    # t; the t of the round before; whether the last round made t larger; rounds so far.
    State = tuple[jax.Array, jax.Array, jax.Array, jax.Array]

    def round_(c: State) -> State:
        t, before, _, n = c
        new = better(t, *fixed)
        more = (new > t * (1 + 4 * eps_of(t))) & jnp.isfinite(new)
        return jnp.maximum(new, t), jnp.where(new > t, t, before), more, n + 1

    zero = jnp.zeros((), dtype)
    first = zero, zero, jnp.ones((), bool), jnp.int32(0)
    t, before, _, _ = lax.while_loop(lambda c: c[2] & (c[3] < MAX_RATIO_ROUNDS), round_, first)
    # Each t is the ratio at the maximiser for the t before.
    return _with_derivative(t, jnp.where(t > 0, better(before, *values), 0))


def _with_derivative(value: jax.Array, ratio: jax.Array) -> jax.Array:
    """``value``, a maximum, with the derivative of ``ratio``, its ratio at the maximiser; 0 if not finite.

    The derivative of a maximum is the derivative at the maximiser (envelope theorem).
    """
    return value + jnp.where(jnp.isfinite(ratio), ratio - lax.stop_gradient(ratio), 0)


def _ratio(penalty: Penalty, Z: jax.Array, W: jax.Array) -> jax.Array:
    """<Z, W> / g(W), (); if g(W) is 0: inf if the product is positive, else 0."""
    product = jnp.sum(Z * W)
    return safe_divide(product, penalty.value(W), jnp.where(product > 0, jnp.inf, 0))
