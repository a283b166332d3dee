"""Risk sets of Cox's model, and sums over them that neither overflow nor lose small terms."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import safe_divide
from sparsejax.losses._entropy import MAX_SERIES_RATIO, at_most_half, log_excess
from sparsejax.losses._risk_places import Places, Sums
from sparsejax.losses._running_sums import (
    decayed_sums,
    decays_of,
    running_max,
    running_sum,
    starts_of,
    sums_to_come,
)


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
    log_sums: jax.Array  # log of ``sums``, 0 where that is 0
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
        """The sum over events of ``weight (log S - h)``, ()."""
        return self.events @ self.excess

    def at_risk(self) -> jax.Array:
        """log S of the risk set of each row."""
        return self.excess + self.h

    def mass(self) -> jax.Array:
        """(n,), weight of the events whose draw reaches each place."""
        at_ends = self.places.at_ends(self.events)
        return self.sums * sums_to_come(self.decay, safe_divide(at_ends, self.sums))

    def scaled_divergence(self, s: jax.Array, mass: jax.Array) -> jax.Array:
        """`mixed_divergence` of the draws at h."""
        return self.mixed_divergence(s, self.stop * mass, self.onward * mass)

    def mixed_divergence(self, s: jax.Array | float, stopping: jax.Array, passing: jax.Array) -> jax.Array:
        """`divergence` of draws that are as given with share s, and else stop at each event's own row."""
        return self.divergence(s * stopping + (1 - s) * self.events, s * passing + (1 - s) * self.waiting())

    def after_change(
        self, mass: jax.Array, change: tuple[jax.Array, jax.Array], counted: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The weights that stop at and pass each place after a change, and their `divergence`.

        The draws at h have the weights ``stop * mass`` and ``onward * mass``. The divergence is infinite if a
        changed weight is negative, since no draws have such weights.

        Args:
          mass: (n,), `mass` at h.
          change: the additions to both weights, (n,) each.
          counted: (n,) booleans, the rows in the risk set of some event; other rows get the weights 0.
        """
        stopping = self.stop * mass + change[0]
        passing = jnp.where(self.first, 0, self.onward * mass + change[1])
        possible = jnp.all(jnp.where(counted, (stopping >= 0) & (passing >= 0), True))
        stopping, passing = (jnp.where(counted & possible, x, 0) for x in (stopping, passing))
        return stopping, passing, jnp.where(possible, self.divergence(stopping, passing), jnp.inf)

    def waiting(self) -> jax.Array:
        """(n,), weight of the events that pass each place if every event stops at its own row.

        The draw of an event begins at the last row of its time. On its way to its own row it passes the rows
        of that time that come after this row.
        """
        return jnp.maximum(one_later(running_sum(self.events - self.places.at_ends(self.events))), 0)

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


def risks_of(h: jax.Array, weights: jax.Array, event: jax.Array, places: Places, known: Sums = None) -> Risks:
    """`Risks` at h; h, weights and event are (n,), by place.

    ``known`` is None, or the fields (top, sums, log_sums) at h, which are then not computed again.
    """
    # The sums do not depend on m, hence no derivative in it. Rows of weight 0 must not change m.
    fixed, ends, strata = lax.stop_gradient(h), places.ends, places.strata
    m = running_max(jnp.where(weights > 0, fixed, jnp.min(fixed)), strata) if known is None else known[0]
    log_decay = jnp.minimum(jnp.concatenate([m[:1], m[:-1]]) - m, 0)
    decay = decays_of(m, strata)
    exponent = at_most_half(h - m)
    each = weights * jnp.exp(exponent)
    sums = decayed_sums(decay, each) if known is None else known[1]
    log_sums = jnp.log(jnp.where(sums > 0, sums, 1)) if known is None else known[2]
    excess = m[ends] - h + log_sums[ends]
    log_stop = jnp.log(jnp.where(weights > 0, weights, 1)) + exponent - log_sums
    # Where a stratum begins, log_decay and log_pass are those of a row of the stratum before: `Risks.first`
    # is True there, and `divergence` does not use them.
    log_pass = one_later(log_sums) + log_decay - log_sums
    return Risks(
        h, weights, weights * event, m, each, decay, sums, log_sums, excess, log_stop, log_pass, places
    )


def relative_entropy(a: jax.Array, b: jax.Array, log_b: jax.Array) -> jax.Array:
    """``a log(a/b) - a + b >= 0``, to full precision if a is close to b, and also if b underflows."""
    x = safe_divide(a - b, b, 1.0)
    near = jnp.abs(x) < MAX_SERIES_RATIO
    x = jnp.where(near, x, 0)
    far = jnp.where(a > 0, a * (jnp.log(jnp.where(a > 0, a, 1)) - log_b), 0) - a + b
    return jnp.maximum(jnp.where(near, b * log_excess(x), far), 0)


def one_later(x: jax.Array) -> jax.Array:
    """x (n, ...) moved by one place: 0, x_0, ..., x_(n-2)."""
    return jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])
