"""Checks of the targets of survival estimators: times and events in several forms, strata, entries."""

from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import column_or_1d

from sparsejax._core.checks import as_numpy, check_entry
from sparsejax._core.labels import complete_labels, indexed_labels
from sparsejax.sklearn._tables import Table, as_real, check_unmasked, names_of

ORDER = "the columns are (event, time), unless the names of the columns say otherwise."  # for errors


class Targets(NamedTuple):
    """Checked targets, (n,) each."""

    time: np.ndarray  # > 0
    event: np.ndarray  # booleans
    codes: np.ndarray  # number of the stratum of each row; any number for a row that does not count
    strata: np.ndarray | None  # (number of strata,), the sorted labels; None: one stratum
    entry: np.ndarray | None  # None: rows are at risk from the start


def times_and_events(y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Times > 0 and events, from a structured array, a DataFrame, an array (n, 2) or times alone."""
    (of_event, event), (of_time, time) = _columns(y)
    event, time = _finite(of_event, event), _finite(of_time, time)
    if not np.isin(event, (0, 1)).all():
        strange = event[~np.isin(event, (0, 1))][0]
        raise ValueError(f"{of_event} must be 0 or 1, it has {strange:g}; {ORDER}")
    if (time <= 0).any():
        raise ValueError(f"{of_time} must be > 0, got {time.min():g}.")
    return time, event > 0


def _finite(name: str, x: np.ndarray) -> np.ndarray:
    try:
        numbers = x if x.dtype.kind in "iuf" else x.astype(float)
    except (TypeError, ValueError):
        numbers = None
    if numbers is None or x.dtype.kind in "cmMUS":
        raise ValueError(f"{name} must be numbers, got {x.dtype}; {ORDER}")
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name} has a value that is NaN or infinite; all must be finite.")
    return numbers


def _columns(y: Any) -> list[tuple[str, np.ndarray]]:
    """The columns event and time of y, each with its name for error messages.

    The name "event" or "time", in upper or lower case, tells which column is which. Without these names the
    event is the boolean column if there is exactly one, else the first column.
    """
    names = names_of(y)
    if names is None:
        y = as_numpy("y", y)
        names = list(y.dtype.names or ())
    if not names:
        array = np.asarray(y)
        if array.ndim == 2 and array.shape[1] == 2:
            return [("event in y", array[:, 0]), ("time in y", array[:, 1])]
        if array.ndim == 2 and array.shape[1] != 1:
            raise ValueError(f"y has shape {array.shape}; its columns must be (event, time).")
        time = column_or_1d(array, warn=True)
        return [("event in y", np.ones(len(time), bool)), ("time in y", time)]
    if len(names) != 2:
        raise ValueError(f"y must have two columns, event and time; it has {names}.")
    read = {name: np.asarray(y[name]) for name in names}
    known, of_bool = [str(name).lower() for name in names], [x.dtype == bool for x in read.values()]
    if "event" in known:
        first = known.index("event")
    elif "time" in known:
        first = 1 - known.index("time")
    else:
        first = of_bool.index(True) if sum(of_bool) == 1 else 0
    found = []
    for what, at in (("event", first), ("time", 1 - first)):
        named = "" if known[at] == what else f" (the column {names[at]!r})"
        found.append((f"{what} in y{named}", read[names[at]]))
    return found


def read_targets(y: Any, strata: Any, entry: Any, counted: np.ndarray) -> Targets:
    """Check times, events, strata and entries; only the rows ``counted``, (n,), give labels of strata.

    Raises:
      TypeError, ValueError: a value or shape is wrong; the message names it.
    """
    for name, given in (("y", y), ("strata", strata), ("entry", entry)):
        check_unmasked(name, given)
    time, event = times_and_events(y)
    labels, codes = None, np.zeros(len(time), int)
    if strata is not None:
        strata = _by_row("strata", complete_labels("strata", strata), time)
        labels, codes = indexed_labels("strata", strata)
        known = np.unique(codes[counted])
        labels, codes = labels[known], np.searchsorted(known, codes).clip(max=len(known) - 1)
    if entry is not None:
        entry = _by_row("entry", as_real("entry", entry), time)
        check_entry(entry, time)
    return Targets(time, event, codes, labels, entry)


def _by_row(name: str, x: np.ndarray, time: np.ndarray) -> np.ndarray:
    if x.shape != time.shape:
        raise ValueError(f"{name} has shape {x.shape} and y {time.shape}: inconsistent numbers of samples.")
    return x


def all_times(targets: Targets) -> np.ndarray:
    """All different times and entries, sorted; the time of rank r has the index r - 1."""
    # Times alone keep their dtype: 64-bit integers above 2^53 would become equal as floats.
    return np.unique(targets.time if targets.entry is None else np.append(targets.time, targets.entry))


def as_numbers(targets: Targets, efron: bool) -> np.ndarray:
    """The targets as columns of integers, (n, 5): rank of time, event, stratum, rank of entry, number of row.

    Rows that are equal in all columns may be merged to one row with the sum of their weights. With Efron's
    ties that would change the loss, so that rows have different numbers; otherwise the number is 0.
    """
    known, none = all_times(targets), np.zeros(len(targets.time), int)
    rank_of = lambda times: np.searchsorted(known, times) + 1
    entry = none if targets.entry is None else rank_of(targets.entry)
    own = np.arange(len(none)) if efron else none
    return np.stack([rank_of(targets.time), targets.event, targets.codes, entry, own], axis=1)


def options_of(table: Table, targets: Targets) -> dict[str, Any]:
    """The keyword arguments of `CoxLoss` for a table whose Y are the columns of `as_numbers`."""
    time, event, codes, entry, _ = (column.astype(int) for column in table.Y.T)
    return {
        "time": time,
        "event": event,
        "strata": None if targets.strata is None else codes,
        "entry": None if targets.entry is None else entry,
        "weights": table.weights,
        "scale": 1 / table.weights.sum(),
    }
