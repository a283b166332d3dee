"""Checks of the arguments of a survival loss."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sparsejax._core.checks import (
    as_float,
    check_entry,
    check_labels,
    check_weights,
    is_traced,
    known_cast,
)
from sparsejax._core.labels import complete_labels, indexed_labels
from sparsejax._core.matrices.sharded import check_here
from sparsejax.losses._risk_places import Places, places_of


class Survival(NamedTuple):
    """Checked data of n rows."""

    time: jax.Array  # (n,), in the dtype of X, see `_in_dtype`
    event: jax.Array  # (n,), 0 or 1; NaN in a row with a traced value that is not allowed
    weights: jax.Array | None  # (n,)
    places: Places  # the order of the rows, by stratum and time


def survival_data(
    X: Any, time: ArrayLike, event: ArrayLike, strata: Any, entry: Any, weights: ArrayLike | None
) -> Survival:
    """The checked data of the rows of X.

    Raises:
      TypeError, ValueError: an argument is wrong; the message names it.
    """
    n = X.shape[0]
    given = {"time": time, "event": event, "strata": strata, "entry": entry, "weights": weights}
    for name, x in given.items():
        if x is not None:
            check_here(name, x)
    times = _as_given("time", time)
    event = as_float("event", event, (1,), X.dtype)
    entry = None if entry is None else _as_given("entry", entry)
    strata = None if strata is None else _numbers("strata", strata)
    weights = None if weights is None else as_float("weights", weights, (1,), X.dtype)
    read = {"time": times, "event": event, "strata": strata, "entry": entry, "weights": weights}
    for name, x in read.items():
        if x is not None and x.shape[0] != n:
            raise ValueError(f"X has {n} rows and {name} has {x.shape[0]}; they must agree.")
    if not is_traced(times) and (times <= 0).any():
        raise ValueError(f"time must be > 0, got {times.min():g}.")
    if entry is not None and not (is_traced(times) or is_traced(entry)):
        check_entry(entry, times)
    if weights is not None:
        check_weights(weights)
    check_labels(event, (0, 1), "CoxLoss", name="event", others="of 1 and 2, as in R: event - 1")
    traced = any(map(is_traced, (times, event, strata, entry)))
    at, begin = _comparable(times, entry) if traced else (times, entry)
    places = places_of(at, event if is_traced(event) else np.asarray(event), strata, begin)
    _check_varies(event, weights, places)
    if traced:
        # ``begin`` may be whole numbers, in which an infinite or NaN entry cannot be seen any more.
        finite = True if entry is None else jnp.isfinite(jnp.asarray(entry))
        event = jnp.where(finite & _allowed(at, event, strata, begin), event, jnp.nan)
    return Survival(_in_dtype(times, X.dtype), event, weights, places)


def _comparable(times: Any, entry: Any) -> tuple[Any, Any]:
    """Times and entries in which JAX finds the same order as numpy.

    JAX may convert 64 bits to 32, and whole numbers to float32, which could make different times equal.

    * Known times become ranks from 1 on, and an entry the number of different times that are at most the
      entry: this number is less than the rank of a time if and only if the entry is before that time.
    * Traced times stay. Beside traced whole times an entry is rounded down: it stays before the same times.
    """
    if not is_traced(times):
        known, number = np.unique(times, return_inverse=True)
        return (number + 1).astype(np.int32), None if entry is None else _number_up_to(known, entry)
    if entry is not None:
        entry = jnp.asarray(entry)
        if jnp.issubdtype(times.dtype, jnp.signedinteger) and jnp.issubdtype(entry.dtype, jnp.floating):
            entry = jnp.floor(entry).astype(times.dtype)
    return times, entry


def _number_up_to(known: np.ndarray, entry: Any) -> Any:
    """For each entry, the number of ``known`` times, sorted and different, that are at most the entry."""
    if not is_traced(entry):
        return np.searchsorted(known, entry, side="right").astype(np.int32)
    # t <= entry holds if and only if t, rounded up to a number of the dtype of the entry, is <= entry.
    if jnp.issubdtype(entry.dtype, jnp.floating):
        with np.errstate(over="ignore"):
            up = known.astype(entry.dtype)
        up = np.where(up < known, np.nextafter(up, up.dtype.type(np.inf)), up)
    else:
        entry = entry.astype(np.int32) if entry.dtype == bool else entry
        up = np.minimum(np.ceil(known), np.iinfo(entry.dtype).max).astype(entry.dtype)
    return jnp.searchsorted(jnp.asarray(up), entry, side="right").astype(np.int32)


def _allowed(time: Any, event: Any, strata: Any, entry: Any) -> jax.Array:
    """(n,), whether the values of a row are allowed: what is checked above if no value is traced."""
    time, event = jnp.asarray(time), jnp.asarray(event)
    allowed = (time > 0) & jnp.isfinite(time) & ((event == 0) | (event == 1))
    if strata is not None:
        allowed &= jnp.isfinite(jnp.asarray(strata))
    if entry is not None:
        dtype = jnp.promote_types(time.dtype, entry.dtype)
        entry = jnp.asarray(entry, dtype)
        allowed &= jnp.isfinite(entry) & (entry < time.astype(dtype))
    return allowed


def _in_dtype(times: Any, dtype: Any) -> jax.Array:
    """The times in a dtype; their ranks from 1 on, if the dtype would make different times equal.

    Traced times are replaced by ranks unless the dtype is floating and has all their digits.
    """
    if is_traced(times):
        floating = jnp.issubdtype(times.dtype, jnp.floating)
        exact = floating and jnp.finfo(times.dtype).nmant <= jnp.finfo(dtype).nmant
        return (times if exact else jnp.searchsorted(jnp.sort(times), times) + 1).astype(dtype)
    # A cast that changes nothing, as usual, needs no sort of the times.
    if (times.astype(dtype).astype(times.dtype) != times).any():
        different, number = np.unique(times, return_inverse=True)
        if len(np.unique(different.astype(dtype))) < len(different):
            times = number + 1
    return known_cast(times, dtype)


def _as_given(name: str, x: Any) -> Any:
    """x, checked to be finite, in its own dtype: a cast could make different times equal."""
    as_float(name, x, (1,))
    return x if is_traced(x) else np.asarray(x)


def _numbers(name: str, labels: Any) -> Any:
    """The number of each label in sorted order, (n,), for labels of any kind that can be sorted.

    Traced labels must be numbers and are returned as they are.
    """
    if is_traced(labels):
        as_float(name, labels, (1,))
        return labels
    labels = complete_labels(name, labels)
    if labels.ndim != 1:
        raise ValueError(f"{name} has shape {labels.shape}; it must be 1-d, one label a row.")
    if labels.dtype.kind in "fc":
        as_float(name, labels, (1,))
    return indexed_labels(name, labels)[1].astype(np.int32)


def _check_varies(event: jax.Array, weights: jax.Array | None, places: Places) -> None:
    """Raise if the loss has the same value for every w; traced values are not checked."""
    if any(map(is_traced, jax.tree.leaves((event, weights, places)))):
        return
    counted = np.ones(len(event), bool) if weights is None else np.asarray(weights) > 0
    order, ends = np.asarray(places.order), np.asarray(places.ends)
    events = (counted & (np.asarray(event) > 0))[order]
    if not events.any():
        names = "event" if weights is None else "event and weights"
        raise ValueError(f"{names}: every row is censored or has weight 0, so there is nothing to fit.")
    if not (events & (_at_risk(counted[order], events, ends, places) > 1)).any():
        raise ValueError(
            "event: every event is the only row in its risk set, the rows with time at least its own"
            + ("" if places.strata is None else " in its stratum")
            + ("" if places.windows is None else " that have entered")
            + ", so that the likelihood is the same for every w."
        )


def _at_risk(counted: np.ndarray, events: np.ndarray, ends: np.ndarray, places: Places) -> np.ndarray:
    """(n,), the number of rows with ``counted`` in the risk set of each place; right at places with an event.

    All arguments are by place.
    """
    if places.windows is not None:
        windows = jax.tree.map(np.asarray, places.windows)
        # The rows at risk at each leaf: a row counts from its first leaf on, until after its last.
        size = len(windows.leaves)
        there = counted & (windows.first <= windows.last)
        change = np.bincount(windows.first[there], minlength=size + 1)
        change = change - np.bincount(windows.last[there] + 1, minlength=size + 1)
        # Rows with their event at a leaf are not among the rows of the leaf, see `Windows`: add these.
        return np.cumsum(change)[windows.leaf] + np.bincount(ends, events, len(ends))[ends]
    # Times fall from place to place: at risk are the rows up to the end of a time, less earlier strata.
    so_far = np.cumsum(counted)
    if places.strata is None:
        return so_far[ends]
    strata = np.asarray(places.strata)
    new = np.append(True, strata[1:] != strata[:-1])
    start = np.maximum.accumulate(np.where(new, np.arange(len(new)), 0))
    return so_far[ends] - (so_far - counted)[start]
