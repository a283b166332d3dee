"""Labels of any kind, read by numpy."""

import math
from typing import Any

import numpy as np

from sparsejax._core.checks import as_numpy


def complete_labels(name: str, x: Any) -> np.ndarray:
    """Labels as an array of numpy, of which none is missing; ``name`` is for errors."""
    labels = as_numpy(name, x)
    if labels.dtype.kind in "US" and not isinstance(x, np.ndarray):
        # numpy makes texts of all entries of a list with one text, also of NaN and of numbers.
        entries = np.asarray(x, object)
        labels = labels if all(isinstance(entry, str | bytes) for entry in entries.ravel()) else entries
    if labels.dtype.kind in "mM":
        missing = bool(np.isnat(labels).any())
    else:
        gone = lambda entry: entry is None or (isinstance(entry, float) and math.isnan(entry))
        missing = labels.dtype.kind in "fO" and any(map(gone, labels.ravel().tolist()))
    if missing:
        raise ValueError(f"{name} has a NaN or None among its labels.")
    return labels


def numbered_labels(name: str, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different labels, sorted, and the number of each label among them; ``name`` is for errors."""
    try:
        return np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise TypeError(f"{name} must hold labels of one kind: {error}.") from None
