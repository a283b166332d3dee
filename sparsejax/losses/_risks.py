"""Risk sets of Cox's model, and sums over them that neither overflow nor lose small terms."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsejax._core.linalg import safe_divide
from sparsejax.losses._risk_places import Places


class Risks(NamedTuple):
    r"""The risk sets at h, rows by stratum and falling time: each is the rows of a stratum up to a place.

    A sum S over a risk set is stored as ``S e^-m`` with m the largest h up to that place: nothing overflows,
    and no sum with a weight > 0 underflows, however far apart the h are.

    A row of a risk set is drawn by its probability in this way: start at the last place of the risk set, go
    to earlier places, and stop at place k with probability ``stop = w e^h / S``, S the sum of ``w e^h`` up to
    k. ``stop`` does not depend on the event whose risk set it is. Sums over events therefore need only
    ``mass``, the weight of the events whose draw reaches place k.

    All fields have shape (n,).
    """

    h: jax.Array  # the predictions
    weights: jax.Array  # of the rows, >= 0
    events: jax.Array  # the weights of the rows with an event, 0 for the others
    top: jax.Array  # m, the largest h up to this place
    each: jax.Array  # weights e^(h - m)
    decay: jax.Array  # e^(m of the place before - m)
    sums: jax.Array  # S e^-m
    excess: jax.Array  # log S of the risk set of the row, minus h
    log_stop: jax.Array  # log(stop)
    log_pass: jax.Array  # log(1 - stop)
    places: Places

    @property
    def stop(self) -> jax.Array:
        """The probability that a draw which has reached a place stops there."""
        return safe_divide(self.each, self.sums)

    @property
    def onward(self) -> jax.Array:
        """1 - stop, the probability to go on, computed without cancellation."""
        return safe_divide(self.decay * one_later(self.sums), self.sums)

    @property
    def first(self) -> jax.Array:
        """(n,), whether no row of positive weight of the stratum is before this place."""
        return starts_of(self.places.strata, self.h) | ~(one_later(self.sums) > 0)

    def value(self) -> jax.Array:
        """The sum over events of their weight times log S less h."""
        return jnp.sum(self.events * self.excess)

    def log_sums(self) -> jax.Array:
        """log S of the risk set of each row."""
        return self.excess + self.h

    def mass(self) -> jax.Array:
        """(n,), weight of the events whose draw reaches each place."""
        at_end = jnp.zeros_like(self.events).at[self.places.ends].add(self.events)
        return self.sums * sums_to_come(self.top, safe_divide(at_end, self.sums), self.places.strata)

    def stopped(self) -> jax.Array:
        """(n,), weight of the events whose draw stops at each place."""
        return self.stop * self.mass()

    def scaled_divergence(self, s: jax.Array) -> jax.Array:
        """`divergence` of draws of which the share s is as at h, and 1 - s stops at the event's own row."""
        mass = self.mass()
        stopping = s * self.stop * mass + (1 - s) * self.events
        return self.divergence(stopping, s * self.onward * mass + (1 - s) * self.waiting())

    def waiting(self) -> jax.Array:
        """(n,), weight of the events that pass each place if every event stops at its own row.

        A draw begins at the last row of its time, and passes the rows of that time after its own.
        """
        at_end = jnp.zeros_like(self.events).at[self.places.ends].add(self.events)
        return jnp.maximum(one_later(running_sum(self.events - at_end)), 0)

    def divergence(self, stopping: jax.Array, passing: jax.Array) -> jax.Array:
        r"""The sum over events of ``weights KL(q || p)``, with p the probabilities at h of the rows at risk.

        q are the probabilities of other draws: at each place the weight ``stopping`` stops, and the weight
        ``passing`` does not. By the chain rule of KL the sum is a sum over places: stopping + passing, times
        KL of their two shares from (``stop``, ``1 - stop``).
        """
        mass = stopping + passing
        share = safe_divide(stopping, mass)
        onward_share = safe_divide(passing, mass)
        apart = relative_entropy(share, self.stop, self.log_stop)
        apart += jnp.where(self.first, 0, relative_entropy(onward_share, self.onward, self.log_pass))
        return jnp.sum(jnp.where(self.weights > 0, mass * apart, 0))


def risks_of(h: jax.Array, weights: jax.Array, event: jax.Array, places: Places) -> Risks:
    """`Risks` at h; h, weights and event are (n,), by place."""
    # The sums do not depend on m, hence no derivative in it. Rows of weight 0 must not change m.
    fixed, ends, strata = lax.stop_gradient(h), places.ends, places.strata
    m = running_max(jnp.where(weights > 0, fixed, jnp.min(fixed)), strata)
    log_decay = jnp.minimum(jnp.concatenate([m[:1], m[:-1]]) - m, 0)
    decay = jnp.exp(log_decay) if strata is None else jnp.where(starts_of(strata, h), 0, jnp.exp(log_decay))
    exponent = at_most_half(h - m)
    each = weights * jnp.exp(exponent)
    sums = decayed_sums(m, each, strata)
    log_sums = jnp.log(jnp.where(sums > 0, sums, 1))
    excess = m[ends] - h + log_sums[ends]
    log_stop = jnp.log(jnp.where(weights > 0, weights, 1)) + exponent - log_sums
    log_pass = one_later(log_sums) + log_decay - log_sums
    return Risks(h, weights, weights * event, m, each, decay, sums, excess, log_stop, log_pass, places)


def relative_entropy(a: jax.Array, b: jax.Array, log_b: jax.Array) -> jax.Array:
    """``a log(a/b) - a + b >= 0``, to full precision if a is close to b, and also if b underflows."""
    x = safe_divide(a - b, b, 1.0)
    near = jnp.abs(x) < 0.5
    x = jnp.where(near, x, 0)
    far = jnp.where(a > 0, a * (jnp.log(jnp.where(a > 0, a, 1)) - log_b), 0) - a + b
    return jnp.maximum(jnp.where(near, b * ((1 + x) * jnp.log1p(x) - x), far), 0)


def at_most_half(exponent: jax.Array) -> jax.Array:
    """Exponents, cut at half of the largest: the derivative of ``weight e^exponent`` in the weight is finite.

    Only rows of weight 0 have exponents above 0.
    """
    return jnp.minimum(exponent, float(np.log(np.finfo(exponent.dtype).max)) / 2)


def starts_of(strata: jax.Array | None, x: jax.Array) -> jax.Array:
    """Whether a stratum begins at each of the places of x."""
    if strata is None:
        return jnp.arange(len(x)) == 0
    return jnp.concatenate([jnp.ones(1, bool), strata[1:] != strata[:-1]])


# Rows of a block. A row takes as many exponentials as its block has rows: few in the first place. The blocks
# of the sums that follow hold more, so that there are few levels.
FIRST_ROWS, BLOCK_ROWS = 8, 32


def decayed_sums(
    m: jax.Array, x: jax.Array, strata: jax.Array | None = None, rows: int = FIRST_ROWS
) -> jax.Array:
    """``sum_{j <= i} e^{m_j - m_i} x_j`` for i = 0, ..., n - 1, linear in x (n, ...).

    m (n,) must not decrease. With strata (n,), where equal numbers are adjacent, the sum is over the j of the
    stratum of i, and m must not decrease in a stratum. Rows are in blocks: the sums in a block are a product
    with a triangular matrix, and the sums of all earlier blocks come from the same function on the last rows
    of the blocks. Work and memory are O(n); the compiled program is far smaller than with `lax.scan`.
    """
    if len(x) <= BLOCK_ROWS:
        return _triangles(m, strata) @ x
    M, blocks = _blocks(m, "edge", rows), _blocks(x, "constant", rows)
    S = None if strata is None else _blocks(strata, "edge", rows)
    within = _triangles(M, S) @ blocks.reshape(*M.shape, -1)
    last = None if S is None else S[:, -1]
    before = one_later(decayed_sums(M[:, -1], within[:, -1], last, BLOCK_ROWS))
    since = jnp.exp(jnp.minimum(jnp.concatenate([M[:1, :1], M[:-1, -1:]]) - M, 0))
    if S is not None:
        since = jnp.where(jnp.concatenate([S[:1, :1], S[:-1, -1:]]) == S, since, 0)
    sums = within + since[:, :, None] * before[:, None]
    return sums.reshape(-1, *x.shape[1:])[: len(x)]


def sums_to_come(m: jax.Array, x: jax.Array, strata: jax.Array | None = None) -> jax.Array:
    """``sum_{j >= i} e^{m_i - m_j} x_j``, the transpose of `decayed_sums`."""
    return decayed_sums(-m[::-1], x[::-1], None if strata is None else strata[::-1])[::-1]


def running_sum(x: jax.Array, strata: jax.Array | None = None) -> jax.Array:
    """The sums of x_0, ..., x_i, for x (n,), in each stratum."""
    return decayed_sums(jnp.zeros_like(x), x, strata)


def running_max(x: jax.Array, strata: jax.Array | None = None, rows: int = FIRST_ROWS) -> jax.Array:
    """The largest of x_0, ..., x_i, for x (n,), in each stratum."""
    if len(x) <= BLOCK_ROWS:
        return _max_within(x, strata)
    S = None if strata is None else _blocks(strata, "edge", rows)
    within = _max_within(_blocks(x, "edge", rows), S)
    ends = running_max(within[:, -1], None if S is None else S[:, -1], BLOCK_ROWS)
    before = jnp.concatenate([jnp.full_like(ends[:1], -jnp.inf), ends[:-1]])[:, None]
    if S is not None:
        before = jnp.where(jnp.concatenate([S[:1, :1], S[:-1, -1:]]) == S, before, -jnp.inf)
    return jnp.maximum(within, before).reshape(-1)[: len(x)]


def _lower(side: int, strata: jax.Array | None, ndim: int) -> Any:
    """Mask of the pairs (i, j) of rows of a block with j <= i and of one stratum."""
    lower = np.tri(side, dtype=bool).reshape((1,) * (ndim - 1) + (side, side))
    return lower if strata is None else lower & (strata[..., None, :] == strata[..., None])


def _triangles(m: jax.Array, strata: jax.Array | None) -> jax.Array:
    """e^{m_j - m_i} for j <= i, else 0, along the last axis of m."""
    pairs = _lower(m.shape[-1], strata, m.ndim)
    return jnp.where(pairs, jnp.exp(jnp.minimum(m[..., None, :] - m[..., None], 0)), 0)


def _max_within(x: jax.Array, strata: jax.Array | None) -> jax.Array:
    """The largest of x_0, ..., x_i along the last axis."""
    return jnp.max(jnp.where(_lower(x.shape[-1], strata, x.ndim), x[..., None, :], -jnp.inf), axis=-1)


def _blocks(x: jax.Array, fill: str, rows: int) -> jax.Array:
    """x (n, ...) as (blocks, rows, ...); ``fill``, a mode of `jnp.pad`, fills the last block."""
    more = -len(x) % rows
    padded = jnp.pad(x, ((0, more), *((0, 0) for _ in x.shape[1:])), mode=fill)
    return padded.reshape(-1, rows, *x.shape[1:])


def one_later(x: jax.Array) -> jax.Array:
    """x (n, ...) moved by one place: 0, x_0, ..., x_(n-2)."""
    return jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])
