"""Where rows stand among the risk sets: by stratum and time, and the times at which each is at risk."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax._core.checks import is_traced


class Windows(NamedTuple):
    """The places at which each row is at risk before its own time, for rows that enter late.

    Every time of an event is a leaf, numbered by stratum and falling time. A row is at risk at the leaves
    first..last; at its own time it is counted apart if it has the event.
    """

    first: jax.Array  # (n,), by place
    last: jax.Array  # (n,), below first where the row is at no leaf
    leaf: jax.Array  # (n,), the leaf of the time of each place
    leaves: jax.Array  # (number of leaves,), for their number alone: zeros


class Places(NamedTuple):
    """Where the rows stand: by stratum, in each by falling time, at one time the censored ones first."""

    order: jax.Array  # (n,), the row at each place
    ends: jax.Array  # (n,), the last place of the same stratum and time
    strata: jax.Array | None = None  # (n,), the number of the stratum of each place; None: there is one
    windows: Windows | None = None  # where rows enter late


def places_of(time: Any, event: Any, strata: Any = None, entry: Any = None) -> Places:
    """The places of rows with these times, events, numbers of strata and times of entry, by row."""
    given = [x for x in (time, event, strata, entry) if x is not None]
    # By numpy where the times are known: JAX would compile it.
    xp: Any = jnp if any(map(is_traced, given)) else np
    n = len(event)
    stratum = xp.zeros(n, np.int32) if strata is None else xp.asarray(strata)
    order = xp.lexsort((xp.asarray(event) <= 0, time, stratum))[::-1]
    falling, number = xp.asarray(time)[order], stratum[order]
    new = (falling[1:] != falling[:-1]) | (number[1:] != number[:-1])
    numbered = lambda new: xp.cumsum(xp.concatenate([xp.zeros(1, bool), new]).astype(np.int32))
    group, dense = numbered(new), numbered(number[1:] != number[:-1])
    ends = xp.searchsorted(group, group, side="right") - 1
    windows = None
    if entry is not None:
        events = xp.asarray(event)[order] > 0
        windows = _windows_of(xp, order, group, ends, events, (stratum, time, entry))
    found = Places(order, ends, None if strata is None else dense, windows)
    as_int = lambda x: x.astype(np.int32)
    return jax.tree.map(as_int if xp is jnp else lambda x: jax.device_put(as_int(x)), found)


def _windows_of(xp: Any, order: Any, group: Any, ends: Any, events: Any, keys: tuple[Any, ...]) -> Windows:
    stratum, time, entry = keys
    n = len(order)
    # How many rows are of a stratum before, or of the same with a time after the entry: entries and times
    # sorted together by falling time, an entry before the times that are equal to it.
    both = xp.lexsort(
        (
            xp.concatenate([xp.ones(n, bool), xp.zeros(n, bool)]),
            xp.concatenate([xp.asarray(entry), xp.asarray(time)]),
            xp.concatenate([stratum, stratum]),
        )
    )
    is_row = (both >= n)[::-1]
    seen = xp.cumsum(is_row.astype(np.int32))
    rank = xp.argsort(both[::-1])[:n]
    until = seen[rank][order] - 1  # the last place with a time after the entry
    # Leaves: times with an event. Of a place: the leaves before its time, and whether its time is one.
    has = xp.isin(xp.arange(n, dtype=np.int32), xp.where(events, group, np.int32(-1)))
    count = xp.cumsum(has.astype(np.int32))  # leaves up to each time, by group
    upto = count[group]
    own = has[group]
    leaf = xp.maximum(upto - 1, 0)
    # at its own time a row with the event is counted apart, a censored one is at risk
    first = xp.where(own & ~events, upto - 1, upto)
    last = upto[until] - 1
    leaves = n if xp is jnp else max(int(count[group[-1]]), 1)
    return Windows(first, last, leaf, xp.zeros(leaves, np.int32))
