"""Risk sets of Cox's model, and sums over them that neither overflow nor lose small terms."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsejax._core.checks import is_traced
from sparsejax._core.linalg import safe_divide


class Risks(NamedTuple):
    r"""The risk sets at h. Rows are in the order of falling time: a risk set is all rows up to a place.

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
    ends: jax.Array  # int, the last place with the same time

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
        """Whether no earlier place has a weight > 0."""
        return ~(one_later(self.sums) > 0)

    def mass(self) -> jax.Array:
        """The weight of the events whose draw reaches each place."""
        at_end = jnp.zeros_like(self.events).at[self.ends].add(self.events)
        return self.sums * sums_to_come(self.top, safe_divide(at_end, self.sums))

    def divergence(self, stopping: jax.Array, passing: jax.Array) -> jax.Array:
        r"""The sum over events of ``weights KL(q || p)``, p the probabilities of the rows of the risk set.

        q are the probabilities of a draw of which ``stopping`` stops at each place and ``passing`` goes on.
        By the chain rule of KL the sum is, over places, the mass there times KL of the two shares of
        ``stopping`` and ``passing`` from (``stop``, ``1 - stop``).
        """
        mass = stopping + passing
        share = safe_divide(stopping, mass)
        onward_share = safe_divide(passing, mass)
        apart = relative_entropy(share, self.stop, self.log_stop)
        apart += jnp.where(self.first, 0, relative_entropy(onward_share, self.onward, self.log_pass))
        return jnp.sum(jnp.where(self.weights > 0, mass * apart, 0))


def risks_of(h: jax.Array, weights: jax.Array, event: jax.Array, ends: jax.Array) -> Risks:
    """The `Risks` of rows given in the order of falling time; ``event`` is 0 or 1, all shapes (n,)."""
    # The sums do not depend on m: it needs no derivative. Rows of weight 0 must not change m.
    fixed = lax.stop_gradient(h)
    m = running_max(jnp.where(weights > 0, fixed, jnp.min(fixed)))
    log_decay = jnp.concatenate([m[:1], m[:-1]]) - m
    decay = jnp.exp(log_decay)
    # h - m > 0 only where the weight is 0. The bound keeps e^(h - m) finite there: the derivative in the
    # weight needs it.
    exponent = jnp.minimum(h - m, float(np.log(np.finfo(h.dtype).max)) / 2)
    each = weights * jnp.exp(exponent)
    sums = decayed_sums(m, each)
    log_sums = jnp.log(jnp.where(sums > 0, sums, 1))
    excess = m[ends] - h + log_sums[ends]
    log_stop = jnp.log(jnp.where(weights > 0, weights, 1)) + exponent - log_sums
    log_pass = one_later(log_sums) + log_decay - log_sums
    return Risks(h, weights, weights * event, m, each, decay, sums, excess, log_stop, log_pass, ends)


def relative_entropy(a: jax.Array, b: jax.Array, log_b: jax.Array) -> jax.Array:
    """``a log(a/b) - a + b >= 0``, with all digits where a is near b, and also where b underflows."""
    x = safe_divide(a - b, b, 1.0)
    near = jnp.abs(x) < 0.5
    x = jnp.where(near, x, 0)
    far = jnp.where(a > 0, a * (jnp.log(jnp.where(a > 0, a, 1)) - log_b), 0) - a + b
    return jnp.maximum(jnp.where(near, b * ((1 + x) * jnp.log1p(x) - x), far), 0)


BLOCK_ROWS = 32  # rows of a block in `decayed_sums`: its triangle has 32 x 32 entries


def decayed_sums(m: jax.Array, x: jax.Array) -> jax.Array:
    """``sum_{j <= i} e^{m_j - m_i} x_j`` for each i, for m (n,) that never falls; linear in x (n, ...).

    Within a block of rows this is a product with a triangular matrix; the sums of all earlier blocks come
    from a recursive call on the last row of each block. Work and memory are of the order of n, and the
    program is far smaller than a scan.
    """
    if len(x) <= BLOCK_ROWS:
        return _triangles(m) @ x
    M, blocks = _blocks(m, "edge"), _blocks(x, "constant")
    within = _triangles(M) @ blocks.reshape(*M.shape, -1)
    before = one_later(decayed_sums(M[:, -1], within[:, -1]))
    since = jnp.exp(jnp.concatenate([M[:1, :1], M[:-1, -1:]]) - M)
    sums = within + since[:, :, None] * before[:, None]
    return sums.reshape(-1, *x.shape[1:])[: len(x)]


def sums_to_come(m: jax.Array, x: jax.Array) -> jax.Array:
    """``sum_{j >= i} e^{m_i - m_j} x_j`` for each i: the transpose of `decayed_sums`."""
    return decayed_sums(-m[::-1], x[::-1])[::-1]


def running_sum(x: jax.Array) -> jax.Array:
    """The cumulative sum of x (n,)."""
    return decayed_sums(jnp.zeros_like(x), x)


def running_max(x: jax.Array) -> jax.Array:
    """The cumulative maximum of x (n,)."""
    if len(x) <= BLOCK_ROWS:
        return _max_within(x)
    within = _max_within(_blocks(x, "edge"))
    ends = running_max(within[:, -1])
    before = jnp.concatenate([jnp.full_like(ends[:1], -jnp.inf), ends[:-1]])
    return jnp.maximum(within, before[:, None]).reshape(-1)[: len(x)]


def _triangles(m: jax.Array) -> jax.Array:
    """The matrices with e^{m_j - m_i} for j <= i, else 0; m (..., r) -> (..., r, r)."""
    lower = np.tri(m.shape[-1], dtype=bool)
    ones = (1,) * (m.ndim - 1)
    return jnp.where(
        lower.reshape(*ones, *lower.shape), jnp.exp(jnp.minimum(m[..., None, :] - m[..., None], 0)), 0
    )


def _max_within(x: jax.Array) -> jax.Array:
    """The cumulative maximum along the last axis of x."""
    lower = np.tri(x.shape[-1], dtype=bool).reshape((1,) * (x.ndim - 1) + (x.shape[-1],) * 2)
    return jnp.max(jnp.where(lower, x[..., None, :], -jnp.inf), axis=-1)


def _blocks(x: jax.Array, fill: str) -> jax.Array:
    """x (n, ...) as (blocks, BLOCK_ROWS, ...); ``fill`` is a mode of `jnp.pad` for the end of the last."""
    more = -len(x) % BLOCK_ROWS
    padded = jnp.pad(x, ((0, more), *((0, 0) for _ in x.shape[1:])), mode=fill)
    return padded.reshape(-1, BLOCK_ROWS, *x.shape[1:])


def one_later(x: jax.Array) -> jax.Array:
    """x (n, ...) moved by one place: 0, x_0, ..., x_(n-2)."""
    return jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])


def by_falling_time(time: Any) -> tuple[jax.Array, jax.Array]:
    """The rows in the order of falling time, and for each place the last place with the same time."""
    # By numpy where the times are concrete: JAX would compile the sort.
    xp: Any = jnp if is_traced(time) else np
    order = xp.argsort(time)[::-1]
    falling = time[order]
    ends = len(falling) - 1 - xp.searchsorted(falling[::-1], falling, side="left")
    places = order.astype(np.int32), ends.astype(np.int32)
    return places if xp is jnp else (jax.device_put(places[0]), jax.device_put(places[1]))
