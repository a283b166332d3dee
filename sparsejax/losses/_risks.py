"""Risk sets, and sums over them that neither overflow nor lose what is small."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsejax._core.checks import is_traced
from sparsejax._core.linalg import safe_divide


class Risks(NamedTuple):
    r"""The risk sets at h, rows in the order of falling time: each set is the rows up to some place.

    A sum over a risk set is kept relative to ``e^m``, m the largest h so far, so that nothing overflows
    and no sum that counts underflows, however far apart the h are.

    To draw a row of a risk set by its probabilities is to go down its places and stop at place k, if not
    before, with probability ``stop = w e^h / S``, S the sum of all ``w e^h`` up to k. It does not depend
    on the event whose risk set it is, so that all that sums over events can be found from ``mass``, the
    weights of the events that come as far as k.
    """

    h: jax.Array  # (n,)
    weights: jax.Array
    events: jax.Array  # the weights of the rows with an event, 0 elsewhere
    each: jax.Array  # weights e^(h - m)
    decay: jax.Array  # e^(m of the place before - m)
    sums: jax.Array  # S e^-m
    excess: jax.Array  # log S of the risk set of the row, less h
    log_stop: jax.Array
    log_pass: jax.Array  # log(1 - stop)
    ends: jax.Array  # the last place with the same time

    @property
    def stop(self) -> jax.Array:
        """The probability to stop at a place."""
        return safe_divide(self.each, self.sums)

    @property
    def onward(self) -> jax.Array:
        """1 - stop, without cancellation."""
        return safe_divide(self.decay * one_later(self.sums), self.sums)

    @property
    def first(self) -> jax.Array:
        """Nothing is before this place."""
        return ~(one_later(self.sums) > 0)

    def mass(self) -> jax.Array:
        """The weights of the events that come as far as each place."""
        at_end = jnp.zeros_like(self.events).at[self.ends].add(self.events)
        after = jnp.concatenate([self.decay[1:], jnp.ones_like(self.decay[:1])])
        return self.sums * decayed_sums(after[::-1], safe_divide(at_end, self.sums)[::-1])[::-1]

    def divergence(self, stopping: jax.Array, passing: jax.Array) -> jax.Array:
        r"""The sum over events of ``weights KL(q || p)``, p their probabilities.

        q are those with which the given weights stop at and pass each place. By the chain rule it is the sum
        over places of the mass there times KL of its two shares from ``stop`` and ``1 - stop``.
        """
        mass = stopping + passing
        share = safe_divide(stopping, mass)
        rest = safe_divide(passing, mass)
        apart = relative_entropy(share, self.stop, self.log_stop)
        apart += jnp.where(self.first, 0, relative_entropy(rest, self.onward, self.log_pass))
        return jnp.sum(jnp.where(self.weights > 0, mass * apart, 0))


def risks_of(h: jax.Array, weights: jax.Array, event: jax.Array, ends: jax.Array) -> Risks:
    """All of them in the order of falling time."""
    # Any m would do, so its derivative is none. Rows of weight 0 must not move it.
    fixed = lax.stop_gradient(h)
    m = running_max(jnp.where(weights > 0, fixed, jnp.min(fixed)))
    log_decay = jnp.concatenate([m[:1], m[:-1]]) - m
    decay = jnp.exp(log_decay)
    # Above 0 only where the weight is 0: then finite, for the derivative in the weight.
    exponent = jnp.minimum(h - m, float(np.log(np.finfo(h.dtype).max)) / 2)
    each = weights * jnp.exp(exponent)
    sums = decayed_sums(decay, each)
    log_sums = jnp.log(jnp.where(sums > 0, sums, 1))
    excess = m[ends] - h + log_sums[ends]
    log_stop = jnp.log(jnp.where(weights > 0, weights, 1)) + exponent - log_sums
    log_pass = one_later(log_sums) + log_decay - log_sums
    return Risks(h, weights, weights * event, each, decay, sums, excess, log_stop, log_pass, ends)


def relative_entropy(a: jax.Array, b: jax.Array, log_b: jax.Array) -> jax.Array:
    """``a log(a/b) - a + b >= 0``, to the last digits where a is near b, and where b underflows."""
    x = safe_divide(a - b, b, 1.0)
    near = jnp.abs(x) < 0.5
    x = jnp.where(near, x, 0)
    far = jnp.where(a > 0, a * (jnp.log(jnp.where(a > 0, a, 1)) - log_b), 0) - a + b
    return jnp.maximum(jnp.where(near, b * ((1 + x) * jnp.log1p(x) - x), far), 0)


def decayed_sums(decay: jax.Array, x: jax.Array) -> jax.Array:
    """``c_k = decay_k c_{k-1} + x_k`` from ``c_0 = x_0``, linear in x (n, ...); decay (n, 1, ...)."""

    def step(carry: Any, now: Any) -> Any:
        kept, total = carry
        d, x = now
        carry = d * kept, d * total + x
        return carry, carry

    D, X = _blocks(decay, 1), _blocks(x, 0)
    # In each block from 0, and what would be left of something before it.
    _, (kept, within) = lax.scan(step, (jnp.ones_like(D[0]), jnp.zeros_like(X[0])), (D, X))
    first = jnp.ones_like(kept[0, 0]), jnp.zeros_like(within[0, 0])
    _, (_, ends) = lax.scan(step, first, (kept[-1], within[-1]))
    sums = within + kept * one_later(ends)[None]
    return _rows(sums, len(x))


def running_sum(x: jax.Array) -> jax.Array:
    """The sum of x (n,) so far."""
    return decayed_sums(jnp.ones_like(x), x)


def running_max(x: jax.Array) -> jax.Array:
    """The largest of x (n,) so far."""

    def step(top: jax.Array, now: jax.Array) -> Any:
        top = jnp.maximum(top, now)
        return top, top

    X = _blocks(x, -jnp.inf)
    _, within = lax.scan(step, X[0], X)
    _, ends = lax.scan(step, within[-1, 0], within[-1])
    before = jnp.concatenate([jnp.full_like(ends[:1], -jnp.inf), ends[:-1]])
    return _rows(jnp.maximum(within, before[None]), len(x))


def _blocks(x: jax.Array, fill: float) -> jax.Array:
    """x (n, ...) in about sqrt(n) blocks of as many rows, (place in the block, block, ...).

    A scan over the places and one over the blocks is work of the order of n in sqrt(n) steps, and one small
    program to compile, unlike an associative scan, which is unrolled.
    """
    side = math.isqrt(len(x) - 1) + 1
    padded = jnp.pad(x, ((0, side * side - len(x)), *((0, 0) for _ in x.shape[1:])), constant_values=fill)
    return jnp.swapaxes(padded.reshape(side, side, *x.shape[1:]), 0, 1)


def _rows(blocks: jax.Array, n: int) -> jax.Array:
    """The inverse of `_blocks`."""
    return jnp.swapaxes(blocks, 0, 1).reshape(-1, *blocks.shape[2:])[:n]


def one_later(x: jax.Array) -> jax.Array:
    """x (n, ...) with 0 in front and without its last."""
    return jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])


def by_falling_time(time: Any) -> tuple[jax.Array, jax.Array]:
    """The rows by falling time, and for each place the last with the same time."""
    # By numpy where the times are known: JAX would compile it.
    xp: Any = jnp if is_traced(time) else np
    order = xp.argsort(time)[::-1]
    falling = time[order]
    ends = len(falling) - 1 - xp.searchsorted(falling[::-1], falling, side="left")
    places = order.astype(np.int32), ends.astype(np.int32)
    return places if xp is jnp else (jax.device_put(places[0]), jax.device_put(places[1]))
