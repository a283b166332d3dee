"""The partial likelihood as a sum of logarithms: for Efron's ties and for rows that enter late."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsejax._core.linalg import eps_of, safe_divide
from sparsejax.losses._entropy import at_most_half
from sparsejax.losses._risk_places import Places, Sums, Windows
from sparsejax.losses._risks import relative_entropy
from sparsejax.losses._running_sums import decayed_sums, decays_of, running_max, running_sum


class Terms(NamedTuple):
    r"""One term for each event: ``share * log(N + (1 - lam) T)``.

    T is the sum of ``w e^h`` over the events of the same stratum and time, N the same sum over the other rows
    at risk. Both are stored divided by ``e^m``, so that they do not overflow. With Breslow's ties ``lam`` is
    0; with Efron's it is k/d for event k of d tied events, k = 0, ..., d - 1. ``share`` is the mean weight
    of the tied events.

    Fields have shape (n,), by place in the order of `Places`.
    """

    h: jax.Array  # the predictions
    weights: jax.Array  # of the rows, >= 0
    events: jax.Array  # the weights of the rows with an event, 0 for the others
    # d; 0 if the row has no event. With Efron's ties also 0 if the event has weight 0, and another event of
    # the same stratum and time has a weight > 0.
    tied: jax.Array
    share: jax.Array  # mean weight of the tied events
    lam: jax.Array  # k/d, or 0
    top: jax.Array  # m, the largest h of the rows at risk with a weight > 0
    own: jax.Array  # T e^-m
    log_own: jax.Array  # log T, finite even if T e^-m underflows
    others: jax.Array  # N e^-m
    part: jax.Array  # w e^h of the row divided by the sum of its tied events
    log_part: jax.Array  # log(part)
    places: Places

    @property
    def inside(self) -> jax.Array:
        """(N + (1 - lam) T) e^-m."""
        return self.others + (1 - self.lam) * self.own

    @property
    def counted(self) -> jax.Array:
        """Whether the row has a term: an event, and a sum > 0."""
        return (self.tied > 0) & (self.inside > 0)

    def value(self) -> jax.Array:
        """The sum over events of ``share log(N + (1 - lam) T) - weight h``, ()."""
        return self.logarithms() + jnp.sum(self.events * (self.top - self.h))

    def at_risk(self) -> jax.Array:
        """log of the sum of ``w e^h`` over the risk set, for each row with an event; 0 for other rows."""
        total = self.others + self.own
        counted = (self.tied > 0) & (total > 0)
        return jnp.where(counted, jnp.log(jnp.where(counted, total, 1)) + self.top, 0)

    def logarithms(self) -> jax.Array:
        """The sum over events of ``share (log(N + (1 - lam) T) - m)``, ()."""
        counted = self.counted
        return jnp.sum(jnp.where(counted, self.share * jnp.log(jnp.where(counted, self.inside, 1)), 0))

    def scaled_divergence(self, s: jax.Array | float) -> jax.Array:
        r"""An upper bound, (), of the least sum over events of ``weights KL(q || p)`` at the dual point sU.

        For each event, p is the distribution over the rows at risk at h. The bound is the sum for
        q = s p + (1 - s) e, where e is the distribution over the events of the same time in proportion to
        their weights. The shares of q within the events of one time are the same for all these events.
        """
        counted, ends = self.counted, self.places.ends
        kept, inside = 1 - self.lam, jnp.where(counted, self.inside, 1)
        p = jnp.where(counted, kept * self.own / inside, 0)
        log_p = jnp.log(kept) + self.log_own - self.top - jnp.log(inside)
        rest = jnp.where(counted, self.others / inside, 0)
        log_rest = jnp.log(jnp.where(rest > 0, rest, 1))
        stops = s * p + (1 - s)
        apart = relative_entropy(stops, p, log_p)
        apart += jnp.where(rest > 0, relative_entropy(s * rest, rest, log_rest), 0)
        each = safe_divide(self.events, at_end(self.events, ends))
        of_events = s * at_end(p, ends)
        total = of_events + (1 - s) * self.tied
        mixed = safe_divide(of_events * self.part + (1 - s) * self.tied * each, total)
        within = total * relative_entropy(mixed, self.part, self.log_part)
        return jnp.sum(jnp.where(counted, self.share * (apart + within), 0))


def at_end(x: jax.Array, ends: jax.Array) -> jax.Array:
    """The sum of x over the rows with the same end, that is of the same stratum and time, at each row."""
    return jnp.zeros_like(x).at[ends].add(x)[ends]


def terms_of(
    h: jax.Array, weights: jax.Array, event: jax.Array, places: Places, efron: bool, known: Sums = None
) -> Terms:
    """`Terms` at h; h, weights and event are (n,), by place.

    ``known`` is None, or the fields (top, others) at h, whose loops then need not run again.
    """
    ends = places.ends
    # The sums do not depend on m, hence no derivative in it. Rows of weight 0 must not change m.
    fixed = lax.stop_gradient(h)
    low = jnp.min(fixed)
    weighted = (weights > 0) & (event > 0)
    # Breslow's terms depend smoothly on a weight that is 0, and have a derivative in it. The number of
    # Efron's terms jumps with the weight, unless the event is the only one of its time.
    counted = event > 0
    if efron:
        counted = jnp.where(at_end(weighted.astype(h.dtype), ends) > 0, weighted, counted)
    counted = counted.astype(h.dtype)
    events = weights * event
    peak = jnp.full_like(h, low).at[ends].max(jnp.where(weighted, fixed, low))[ends]
    each = events * jnp.exp(at_most_half(h - peak))
    own = at_end(each, ends)
    tied = at_end(counted, ends)
    share = safe_divide(at_end(events, ends), tied)
    so_far = running_sum(counted)  # including the row itself
    # lam = k/d: k = so_far - 1 minus the count before this time, which is so_far[ends] - d.
    lam = safe_divide(so_far - 1 - (so_far[ends] - tied), tied) if efron else jnp.zeros_like(h)
    lam = jnp.where(counted > 0, lam, 0)
    if known is not None:
        m, others = known
    elif places.windows is None:
        m, others = _others_so_far(fixed, h, weights, event, places, low)
    else:
        leaf = places.windows.leaf
        m, others = (x[leaf] for x in window_sums(h, weights, places.windows, low))
    top = jnp.maximum(m, peak)
    log_own = jnp.log(jnp.where(own > 0, own, 1))
    log_part = jnp.log(jnp.where(events > 0, events, 1)) + at_most_half(h - peak) - log_own
    others, shrunk = others * jnp.exp(m - top), own * jnp.exp(peak - top)
    part, tied = safe_divide(each, own), jnp.where(counted > 0, tied, 0)
    return Terms(
        h, weights, events, tied, share, lam, top, shrunk, log_own + peak, others, part, log_part, places
    )


def _others_so_far(
    fixed: jax.Array, h: jax.Array, weights: jax.Array, event: jax.Array, places: Places, low: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """For each row, m and N e^-m over the rows of its stratum that come before the events of its time."""
    ends, strata, here = places.ends, places.strata, jnp.arange(len(h), dtype=np.int32)
    m = running_max(jnp.where(weights > 0, fixed, low), strata)
    sums = decayed_sums(decays_of(m, strata), weights * jnp.exp(at_most_half(h - m)))
    before = ends - at_end((event > 0).astype(np.int32), ends)
    at = jnp.maximum(before, 0)
    there = before >= 0 if strata is None else (before >= 0) & (strata[at] == strata[here])
    return jnp.where(there, m[at], low), jnp.where(there, sums[at], 0)


def stopped(terms_at: Callable[[jax.Array], Terms], h: jax.Array) -> jax.Array:
    """(n,), for each row the sum over events of weight times probability of the row, at h."""
    return jax.grad(lambda h: terms_at(h).logarithms())(h)


MAX_NEWTON_STEPS = 6  # steps of `balanced`, which start at predictions near a minimum


def balanced(
    terms_at: Callable[[jax.Array], Terms], h: jax.Array, basis: jax.Array, s: jax.Array | float
) -> tuple[jax.Array, jax.Array]:
    r"""A dual point :math:`sU'` orthogonal to a basis B, from the slopes :math:`U'` at other predictions.

    These predictions are :math:`h' = h + Bb`, with the b that minimises the loss; Newton's method finds b.
    The slopes at any predictions are in the domain of the conjugate, with
    :math:`\ell^*(U') = \langle U', h'\rangle - \ell(h')`.

    Args:
      terms_at: h -> `Terms`.
      h: (n,), by place.
      basis: B, (n, r), by place.
      s: scale of the dual point, 0 <= s <= 1.

    Returns:
      The change from the slopes at h to :math:`sU'`, (n,); and the divergence

      .. math:: \ell(h) + \ell^*(sU') - \langle sU', h\rangle
                = \ell(h) - \ell(h') + s \langle U', h' - h\rangle
                + [\ell^*(sU') - \ell^*(U') - (s - 1) \langle U', h'\rangle] ,

      whose bracket is `Terms.scaled_divergence`. It is infinite if b was not found. Both are without the
      scale of the loss.
    """
    events, eps = terms_at(h).events, eps_of(h)
    slopes = lambda b: basis.T @ (stopped(terms_at, h + basis @ b) - events)
    one = jnp.eye(basis.shape[1], dtype=h.dtype)

    def step(_: Any, b: jax.Array) -> jax.Array:
        left, push = jax.linearize(slopes, b)
        J = jax.vmap(push)(one)
        room = eps * jnp.trace(J)
        return b - jnp.linalg.solve(J + jnp.where(room > 0, room, 1) * one, left)

    b = lax.fori_loop(0, MAX_NEWTON_STEPS, step, jnp.zeros(basis.shape[1], h.dtype))
    before, after = terms_at(h), terms_at(h + basis @ b)
    U = stopped(terms_at, after.h) - events
    found = jnp.max(jnp.abs(basis.T @ U)) <= 16 * eps * jnp.sum(events)
    apart = before.value() - after.value() + s * jnp.sum(U * (after.h - h)) + after.scaled_divergence(s)
    dU = jnp.where(found, s * U, 0) - (stopped(terms_at, h) - events)
    return dU, jnp.where(found, jnp.maximum(apart, 0), jnp.inf)


def levels_of(windows: Windows) -> int:
    """Number of levels in `window_sums`; level k has blocks of 2^k leaves."""
    return max(len(windows.leaves) - 1, 1).bit_length()


def window_sums(
    h: jax.Array, weights: jax.Array, windows: Windows, low: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """For each leaf, m and the sum of ``w e^(h - m)`` over the rows whose window contains the leaf.

    The sums are additions of positive numbers only: nothing cancels. Let k be the highest bit in which first
    and last of a window differ. The window then consists of the end of one block of 2^k leaves and of the
    beginning of the next block. Each row is therefore in two running sums, and each leaf adds two running
    sums for each level k. A window of one leaf is in one running sum, of level 0.

    h and weights are (n,), by place; ``low``, (), is at most every h, and is the m of a leaf without rows.
    """
    size, levels = len(windows.leaves), levels_of(windows)
    first, last = windows.first, windows.last
    there = first <= last
    differ = jnp.where(there, first ^ last, 0)
    level = jnp.zeros_like(first)
    for k in range(1, levels):
        level = jnp.where(differ >> k > 0, k, level)
    # The left side of a window, from ``first`` to the end of its block, is in the sums that run up from the
    # beginning of the block, where its row is added at ``first``. The right side, up to ``last``, is in the
    # sums that run down from the end of the next block, where the row is added at ``last``. A window of one
    # leaf has a right side only. One array holds the running sums of all levels: first of the left sides,
    # then of the right sides, the latter in the reverse order of leaves.
    blocks = np.arange(size, dtype=np.int32)[None] >> np.arange(levels, dtype=np.int32)[:, None]
    left = blocks + (np.arange(levels, dtype=np.int32) * size)[:, None]
    block = np.concatenate([left.ravel(), left.ravel() + levels * size])
    left_at = level * size + first
    right_at = levels * size + level * size + last
    none = 2 * levels * size  # an index out of range, which the scatter drops
    at = jnp.concatenate([jnp.where(there & (differ > 0), left_at, none), jnp.where(there, right_at, none)])
    fixed, twice = lax.stop_gradient(h), lambda x: jnp.concatenate([x, x])
    # Rows of weight 0 must not change m; their part in the sums, 0, has a derivative in the weight.
    peaks = jnp.full(none, low, h.dtype).at[at].max(twice(jnp.where(weights > 0, fixed, low)), mode="drop")
    peaks, turn = _turned(peaks, levels, size), lambda x: _turned(x, levels, size)
    strata = turn(jnp.asarray(block))
    m = running_max(peaks, strata)
    relative = turn(m).at[at].get(mode="fill", fill_value=0)
    each = twice(weights) * jnp.exp(at_most_half(twice(h) - relative))
    sums = decayed_sums(decays_of(m, strata), turn(jnp.zeros(none, h.dtype).at[at].add(each, mode="drop")))
    m, sums = (turn(x).reshape(2 * levels, size) for x in (m, sums))
    m = jnp.where(sums > 0, m, low)
    top = lax.stop_gradient(jnp.max(m, axis=0))
    return top, jnp.sum(sums * jnp.exp(m - top[None]), axis=0)


def _turned(x: jax.Array, levels: int, size: int) -> jax.Array:
    """x with its second half, the right sides, reversed; the function is its own inverse."""
    sides: Any = x.reshape(2, levels * size)
    return jnp.concatenate([sides[0], sides[1][::-1]])
