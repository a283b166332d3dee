"""Sums and maxima over the places up to each one, for risk sets.

On a CPU they are loops. XLA compiles such a loop to one kernel, which takes 4 to 12 ns a place, a quarter of
the time of sums by blocks. On other devices, where each step of a loop would be a kernel of its own, they use
`lax.associative_scan`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Pair = tuple[jax.Array, jax.Array]
# Without jit an eager call would compile its loop every time. Traces get the loop itself, not a call.
_jit = functools.partial(jax.jit, inline=True)


def decays_of(m: jax.Array, strata: jax.Array | None) -> jax.Array:
    """The factors of `decayed_sums`, (n,): e^{m_(i-1) - m_i}, and 0 where a stratum begins.

    m (n,) must not decrease in a stratum; equal numbers of ``strata`` (n,) are adjacent. Without strata the
    first factor is 1: it multiplies a sum of nothing.
    """
    decay = jnp.exp(jnp.minimum(jnp.concatenate([m[:1], m[:-1]]) - m, 0))
    return decay if strata is None else jnp.where(starts_of(strata, m), 0, decay)


def starts_of(strata: jax.Array | None, x: jax.Array) -> jax.Array:
    """Whether a stratum begins at each place, (n,) boolean; of x only the length is used."""
    if strata is None:
        return jnp.arange(len(x)) == 0
    return jnp.concatenate([jnp.ones(1, bool), strata[1:] != strata[:-1]])


@jax.custom_jvp
@_jit
def decayed_sums(decay: jax.Array, x: jax.Array) -> jax.Array:
    """``s_i = decay_i s_(i-1) + x_i`` for i = 0, ..., n - 1 from 0, linear in x (n,).

    The decays (n,) are between 0 and 1. No derivative is taken in them. In float32 on a CPU the rounding
    error of each addition is computed, after Knuth, and added to the next sum: without this correction a long
    sum of equal small numbers would be off by a percent. Float64 needs no correction, since the sum of a
    million equal numbers is off by 2e-11 at most, and the loop is twice as fast without it.
    """
    if jax.default_backend() != "cpu" or x.dtype == np.float64:
        return decayed_rows(decay, x)

    def add(carry: Pair, place: Pair) -> tuple[Pair, jax.Array]:
        (total, error), (factor, new) = carry, place
        old = factor * total
        s = old + new
        old_rounded = s - new
        # s plus (old - old_rounded) + (new - (s - old_rounded)) is old + new without a rounding error.
        error = factor * error + ((old - old_rounded) + (new - (s - old_rounded)))
        total = s + error
        return (total, error - (total - s)), total

    zero = jnp.zeros((), x.dtype)
    return lax.scan(add, (zero, zero), (decay, x))[1]


@decayed_sums.defjvp
def _(primals: Pair, tangents: Any) -> Pair:
    decay, x = primals
    return decayed_sums(decay, x), _change(decay, x, tangents[1])


@jax.jit  # with ``inline`` an eager gradient would compile the transpose every time
def _change(decay: jax.Array, x: jax.Array, change: jax.Array) -> jax.Array:
    """The change of `decayed_sums` where x changes by ``change``."""
    # The loop is made inside `jax.jvp`, since JAX 0.9 transposes only loops that it made in a derivative.
    return jax.jvp(lambda x: decayed_rows(decay, x), (x,), (change,))[1]


@_jit
def decayed_rows(decay: jax.Array, x: jax.Array) -> jax.Array:
    """Same as `decayed_sums` for x (n, ...), without the correction of rounding errors."""
    if jax.default_backend() == "cpu":

        def add(total: jax.Array, place: Pair) -> Pair:
            total = place[0] * total + place[1]
            return total, total

        return lax.scan(add, jnp.zeros(x.shape[1:], x.dtype), (decay, x))[1]

    def joined(a: Pair, b: Pair) -> Pair:
        return a[0] * b[0], b[0] * a[1] + b[1]

    factors = decay.reshape(-1, *(1,) * (x.ndim - 1))
    sums: Pair = lax.associative_scan(joined, (jnp.broadcast_to(factors, x.shape), x))
    return sums[1]


def sums_to_come(decay: jax.Array, x: jax.Array) -> jax.Array:
    """``s_i = x_i + decay_(i+1) s_(i+1)``, (n,): the transpose of `decayed_sums`."""
    return decayed_sums(jnp.concatenate([decay[:1], decay[:0:-1]]), x[::-1])[::-1]


def running_sum(x: jax.Array, strata: jax.Array | None = None) -> jax.Array:
    """For each place i the sum x_0 + ... + x_i, (n,); each stratum has its own sums."""
    return decayed_sums(decays_of(jnp.zeros_like(x), strata), x)


@_jit
def running_max(x: jax.Array, strata: jax.Array | None = None) -> jax.Array:
    """For each place i the largest of x_0, ..., x_i, (n,); each stratum has its own maxima."""
    starts = starts_of(strata, x)
    if jax.default_backend() != "cpu":
        found: Pair = lax.associative_scan(_larger, (starts, x))
        return found[1]

    def larger(top: jax.Array, place: Pair) -> Pair:
        top = jnp.where(place[0], place[1], jnp.maximum(top, place[1]))
        return top, top

    return lax.scan(larger, x[0], (starts, x))[1]


def _larger(a: Pair, b: Pair) -> Pair:
    return a[0] | b[0], jnp.where(b[0], b[1], jnp.maximum(a[1], b[1]))
