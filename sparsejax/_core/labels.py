"""Labels of any kind as arrays of numpy, checked for missing entries, and numbered."""

from operator import ne
from typing import Any

import numpy as np

from sparsejax._core.checks import as_numpy


def complete_labels(name: str, x: Any) -> np.ndarray:
    """Labels as an array of numpy; ``name`` is for errors.

    Raises:
      TypeError: ``x`` is a masked array.
      ValueError: ``x`` is a ragged list, or a label is missing: None, NaN, NaT or `pandas.NA`.
    """
    labels = as_numpy(name, x)
    if labels.dtype.kind in "US" and not isinstance(x, np.ndarray):
        # numpy turns all entries of a list into text if one is text, even NaN and numbers.
        entries = np.asarray(x, object)
        labels = labels if all(isinstance(entry, str | bytes) for entry in entries.ravel()) else entries
    if labels.dtype.kind in "mMf":
        missing = bool(np.isnan(labels).any())  # true of NaT too, a missing date
    else:
        missing = labels.dtype.kind == "O" and any(map(_is_missing, labels.ravel().tolist()))
    if missing:
        raise ValueError(f"{name} has a NaN or None among its labels.")
    return labels


def _is_missing(label: Any) -> bool:
    """Whether a label is None, NaN or NaT, which do not equal themselves, or `pandas.NA`.

    The comparison of `pandas.NA` with itself has no truth value: `bool` raises a TypeError.
    """
    try:
        return label is None or bool(ne(label, label))
    except TypeError:
        return True


def indexed_labels(name: str, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct labels, sorted, and for each entry the index of its label; ``name`` is for errors."""
    try:
        return np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise TypeError(f"{name} must hold labels of one kind: {error}.") from None
