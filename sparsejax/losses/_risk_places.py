"""Places of the rows: an order by stratum and falling time in which risk sets are ranges."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax._core.checks import is_traced

Sums = tuple[jax.Array, ...] | None  # results of loops at some predictions; None: not known
# Least length of `Windows.leaves`, so that small data of any number of event times share a program.
MIN_LEAVES = 64


class Windows(NamedTuple):
    """The times of events at which each row is at risk, for rows that enter late.

    The different times of events, in each stratum, are called leaves and numbered by stratum and falling
    time. A row is at risk at the leaves first..last. The leaf of its own event is not among them: `Terms`
    adds a row with an event there separately.
    """

    first: jax.Array  # (n,), by place
    last: jax.Array  # (n,), by place; first - 1 or less if the row is at risk at no leaf
    leaf: jax.Array  # (n,), the leaf of each place's time, or the last leaf before a time without events
    leaves: jax.Array  # zeros, at least as many as there are leaves: only the static length is used


class Places(NamedTuple):
    """An order of the rows: by stratum, then by falling time; at one time censored rows come first."""

    order: jax.Array  # (n,), the row at each place
    ends: jax.Array  # (n,), the last place of the same stratum and time
    strata: jax.Array | None = None  # (n,), number of the stratum of each place; None: there is one stratum
    windows: Windows | None = None  # None: all rows are at risk from the start

    def at_ends(self, x: jax.Array) -> jax.Array:
        """(n,), the sums of x over the rows of one stratum and time, at the last of their places; else 0."""
        return jnp.zeros_like(x).at[self.ends].add(x)

    def restricted(self, kept: jax.Array, most: int) -> tuple[jax.Array, "Places"]:
        """The kept rows in the order of their places, (most,), and the `Places` of data of these rows only.

        If fewer than ``most`` rows are kept, the number n fills up the array. Each of these entries has an
        end of its own.

        Args:
          kept: (n,) boolean, by row, at most ``most`` of them True.
          most: static.
        """
        n = len(self.order)
        in_order = kept[self.order]
        counts = jnp.cumsum(in_order.astype(jnp.int32))
        at = jnp.nonzero(in_order, size=most, fill_value=n)[0]
        there, here = at < n, jnp.arange(most, dtype=jnp.int32)
        at = jnp.minimum(at, n - 1)
        ends = jnp.where(there, counts[self.ends[at]] - 1, here)
        strata = windows = None
        if self.strata is not None:
            number = self.strata[at]
            strata = _numbered(jnp, number[1:] != number[:-1])
        if self.windows is not None:
            first, last, leaf, leaves = self.windows
            windows = Windows(first[at], last[at], leaf[at], leaves)
        return jnp.where(there, self.order[at], n), Places(here, ends, strata, windows)


def places_of(time: Any, event: Any, strata: Any = None, entry: Any = None) -> Places:
    """The places of rows with these times, events, numbers of strata and times of entry, (n,) each."""
    given = [x for x in (time, event, strata, entry) if x is not None]
    # Known times are sorted by numpy, since JAX would compile a program.
    xp: Any = jnp if any(map(is_traced, given)) else np
    n = len(event)
    stratum = xp.zeros(n, np.int32) if strata is None else xp.asarray(strata)
    order = xp.lexsort((xp.asarray(event) <= 0, time, stratum))[::-1]
    falling, number = xp.asarray(time)[order], stratum[order]
    new = (falling[1:] != falling[:-1]) | (number[1:] != number[:-1])
    group, dense = _numbered(xp, new), _numbered(xp, number[1:] != number[:-1])
    ends = xp.searchsorted(group, group, side="right") - 1
    windows = None
    if entry is not None:
        events = xp.asarray(event)[order] > 0
        windows = _windows_of(xp, order, group, events, (stratum, time, entry))
    found = Places(order, ends, None if strata is None else dense, windows)
    as_int = lambda x: x.astype(np.int32)
    return jax.tree.map(as_int if xp is jnp else lambda x: jax.device_put(as_int(x)), found)


def _numbered(xp: Any, new: Any) -> Any:
    """(n,), 0, 1, ... by place: the number grows by 1 at each place i + 1 for which ``new[i]`` is True."""
    return xp.cumsum(xp.concatenate([xp.zeros(1, bool), new]).astype(np.int32))


def _windows_of(xp: Any, order: Any, group: Any, events: Any, keys: tuple[Any, ...]) -> Windows:
    """The `Windows` of all rows.

    Args:
      xp: the module `jax.numpy` or `numpy`.
      order: (n,), as in `Places`.
      group: (n,), by place: the number of the stratum and time, 0, 1, ...
      events: (n,) booleans, by place.
      keys: stratum, time and time of entry of each row, (n,) each, not by place.
    """
    stratum, time, entry = keys
    n = len(order)
    # For each row, the number of rows of earlier strata, plus the number of rows of its own stratum with a
    # time after its entry. Entries and times are sorted together by falling value. An entry comes before the
    # times that are equal to it, which are therefore not counted.
    is_entry = xp.concatenate([xp.ones(n, bool), xp.zeros(n, bool)])
    value = xp.concatenate([xp.asarray(entry), xp.asarray(time)])
    both = xp.lexsort((is_entry, value, xp.concatenate([stratum, stratum])))
    is_row = (both >= n)[::-1]
    seen = xp.cumsum(is_row.astype(np.int32))
    rank = xp.argsort(both[::-1])[:n]
    until = seen[rank][order] - 1  # the last place with a time after the entry
    # Leaves are the times with an event. ``upto`` and ``own`` are, for each place, the number of leaves up to
    # its time, and whether its time is a leaf.
    has = xp.isin(xp.arange(n, dtype=np.int32), xp.where(events, group, np.int32(-1)))
    count = xp.cumsum(has.astype(np.int32))  # leaves up to each time, by group
    upto = count[group]
    own = has[group]
    leaf = xp.maximum(upto - 1, 0)
    # At the leaf of its own time a censored row is at risk; a row with the event is added separately.
    first = xp.where(own & ~events, upto - 1, upto)
    last = upto[until] - 1
    # A power of two, so that data of similar size, such as those of folds, share a program.
    leaves = n if xp is jnp else 1 << max(int(count[group[-1]]), MIN_LEAVES - 1).bit_length()
    return Windows(first, last, leaf, xp.zeros(leaves, np.int32))
