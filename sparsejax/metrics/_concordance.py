"""Measures of predicted risks, for times until an event, some of them censored."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float, check_labels, check_weights, is_traced
from sparsejax._core.linalg import unit_of


def concordance_index(
    time: ArrayLike, event: ArrayLike, risk: ArrayLike, weights: ArrayLike | None = None
) -> jax.Array:
    r"""Harrell's C: the share of comparable pairs in which the row with the event first has the higher risk.

    .. math:: \frac{\sum_{(i,j) \in P} w_i w_j \bigl([r_i > r_j] + \tfrac12 [r_i = r_j]\bigr)}
              {\sum_{(i,j) \in P} w_i w_j} ,

    P holds the pairs in which i has the event and :math:`t_i < t_j`, or :math:`t_i = t_j` and j is censored.
    The cost is O(n log n): rows are sorted by time, and for each row a wavelet matrix sums the weights of
    the later rows of smaller and of equal risk.

    Args:
      time: (n,); only its order matters.
      event: (n,), 1 or True where the event was seen at ``time``, 0 or False where the row is censored.
      risk: (n,), the larger, the sooner the event is expected: h = Xw of Cox's model, or minus a time.
      weights: None (all one) or (n,), >= 0.

    Returns:
      (), in the dtype of ``risk``, or in the default float if ``risk`` is not floating; in [0, 1]. NaN if no
      pair is comparable, if a traced event is neither 0 nor 1, if a traced time or risk is NaN, or if a
      traced weight is negative. Under jit an infinite risk is not noticed.

    Raises:
      TypeError: an array is not real.
      ValueError: a value is not finite, an event not 0 or 1, a weight negative; an array is empty or not 1-d;
        lengths differ.
    Source: Harrell, Califf, Pryor, Lee & Rosati, Journal of the American Medical Association 247, 1982.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> time, event = jnp.array([1.0, 2.0, 3.0, 4.0]), jnp.array([1, 1, 0, 1])
    >>> risk = jnp.array([4.0, 1.0, 2.0, 1.0])
    >>> round(float(sj.metrics.concordance_index(time, event, risk)), 3)
    0.7
    """
    risk = as_float("risk", risk, (1,))
    given, time = time, as_float("time", time, (1,))
    event = as_float("event", event, (1,), risk.dtype)
    weights = None if weights is None else as_float("weights", weights, (1,), risk.dtype)
    if risk.size == 0:
        raise ValueError("risk is empty.")
    for name, x in (("time", time), ("event", event), ("weights", weights)):
        if x is not None and x.shape != risk.shape:
            raise ValueError(f"risk has {risk.size} rows and {name} has {x.size}; they must agree.")
    check_labels(event, (0, 1), name="event")
    if weights is not None:
        check_weights(weights)
    # Times are compared in their own dtype, because a cast could make different times equal. Times that are
    # not traced are replaced by their ranks.
    if not is_traced(given):
        given = np.unique(np.asarray(given), return_inverse=True)[1].astype(np.int32)
    return _concordance(jnp.asarray(given), event, risk, weights)


@jax.jit
def _concordance(time: jax.Array, event: jax.Array, risk: jax.Array, weights: jax.Array | None) -> jax.Array:
    n, dtype = len(risk), risk.dtype
    valid = jnp.all((event == 0) | (event == 1)) & ~jnp.any(jnp.isnan(risk))
    if jnp.issubdtype(time.dtype, jnp.floating):
        valid &= ~jnp.any(jnp.isnan(time))
    if weights is not None:
        valid &= jnp.all(weights >= 0)
    # Weights are divided by a power of 2 near the largest weight, so that their products do not overflow.
    w = jnp.ones(n, np.int32) if weights is None else weights / unit_of(weights)[0]
    order = jnp.lexsort((event == 0, time))  # by rising time; at equal times events come first
    t, e, w, rank = time[order], event[order] == 1, w[order], _ranks(risk)[order]
    edge = jnp.concatenate([(t[1:] != t[:-1]) | (e[1:] != e[:-1]), jnp.ones(1, bool)])
    place = jnp.arange(1, n + 1, dtype=np.int32)
    begin = lax.cummin(jnp.where(edge, place, n), reverse=True)  # first place after the events of this time
    below, equal = _after(rank, w, begin)
    sums = _sums(w)
    after = sums[-1] - sums[begin]
    number = _sums((w > 0).astype(np.int32))
    # The events that are the first row of a comparable pair of positive weights. Rows are counted for this,
    # since ``after`` is a difference of rounded sums.
    paired = e & (w > 0) & (number[-1] > number[begin])
    of_events = lambda x: jnp.sum(jnp.where(paired, w.astype(dtype) * x.astype(dtype), 0))
    found = (of_events(below) + of_events(equal) / 2) / jnp.where(jnp.any(paired), of_events(after), 1)
    return jnp.where(valid & jnp.any(paired), jnp.clip(found, 0, 1), jnp.nan)


def _ranks(x: jax.Array) -> jax.Array:
    """(n,) integers: for each entry, the number of smaller entries."""
    return jnp.searchsorted(jnp.sort(x), x).astype(np.int32)


def _sums(x: jax.Array) -> jax.Array:
    """(n + 1,), the sums of the first 0, 1, ..., n entries."""
    return jnp.concatenate([jnp.zeros_like(x[:1]), jnp.cumsum(x)])


def _after(rank: jax.Array, w: jax.Array, begin: jax.Array) -> tuple[jax.Array, jax.Array]:
    """For each row, the total weights of the rows of lower and of equal rank from the place ``begin`` on.

    The method is a wavelet matrix. From the highest bit of the ranks down, all rows are sorted by one bit,
    stably. The rows from ``begin`` on whose higher bits equal those of the row stay together at the places
    low..high - 1; those of them with bit 0, if the row has bit 1, have a lower rank.

    Source: Claude, Navarro & Ordonez, Information Systems 47, 2015.
    """
    n = len(rank)
    bits = max(n - 1, 1).bit_length()
    here = jnp.arange(n, dtype=np.int32)

    def level(i: Any, carry: Any) -> Any:
        values, w, low, high, below = carry
        bit = bits - 1 - i
        is_zero, mine = (values >> bit) & 1 == 0, (rank >> bit) & 1 == 1
        zeros, sums = _sums(is_zero.astype(np.int32)), _sums(jnp.where(is_zero, w, 0))
        below = below + jnp.where(mine, sums[high] - sums[low], 0)
        low, high = (jnp.where(mine, zeros[-1] + x - zeros[x], zeros[x]) for x in (low, high))
        to = jnp.where(is_zero, zeros[:-1], zeros[-1] + here - zeros[:-1])
        values, w = (jnp.zeros_like(x).at[to].set(x, unique_indices=True) for x in (values, w))
        return values, w, low, high, below

    start = (rank, w, begin, jnp.full_like(begin, n), jnp.zeros_like(w))
    _, w, low, high, below = lax.fori_loop(0, bits, level, start)
    sums = _sums(w)
    return below, sums[high] - sums[low]
