"""Checks and conversions of labels, by the convention that `sparsejax.models` states."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax._core.checks import (
    INT32_MAX,
    as_float,
    as_number,
    as_numpy,
    check_comparable,
    check_labels,
    is_traced,
)
from sparsejax._core.labels import complete_labels
from sparsejax.metrics import r2

Classes = tuple[Any, ...]
PRESENT: Classes = (0, 1)  # the classes of labels given as 0 and 1
SIGNS: Classes = (-1, 1)  # the classes of labels given as -1 and 1


def labels_of(y: Any, n: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The labels y (n,), checked, and the sorted different labels."""
    if is_traced(y):
        raise TypeError("y is traced: the labels must be known outside jit, since their number is a shape.")
    y = complete_labels("y", y)
    if n is not None and (y.ndim != 1 or len(y) != n):
        raise ValueError(f"y must have one label for each of X's {n} rows, got shape {y.shape}.")
    if y.ndim != 1 or not y.size:
        raise ValueError(f"y must have shape (n,) with n >= 1, got shape {y.shape}.")
    if y.dtype.kind not in "biufUSO":
        raise TypeError(f"y has dtype {y.dtype}; labels are numbers, booleans or strings.")
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise ValueError("y has an infinity among its labels.")
    try:
        return y, np.unique(y)
    except TypeError:
        raise TypeError("y has labels of several kinds, which cannot be sorted.") from None


def classes_of(y: Any, n: int | None = None, needed: str = "at least two") -> tuple[np.ndarray, np.ndarray]:
    """The result of `labels_of`; a ValueError if y has fewer than two different labels."""
    y, classes = labels_of(y, n)
    if len(classes) < 2:
        (one,) = classes.tolist()
        shown = f"{one:g}" if isinstance(one, float) else repr(one)
        raise ValueError(f"y has one class only, {shown}; {needed} are needed.")
    return y, classes


def two_classes(y: Any) -> tuple[np.ndarray, Classes]:
    """Whether each label is the second of the two classes, (n,) bool, and the two classes, sorted."""
    y, classes = classes_of(y, needed="both")
    if len(classes) > 2:
        raise ValueError(f"y has {len(classes)} classes; a label is one of two here.")
    return y == classes[1], tuple(classes.tolist())


def positives(y: Any, classes: Classes) -> np.ndarray:
    """Whether each label is the second of the two classes of a fitted model, (n,) bool."""
    y = as_numpy("y", y)
    if y.ndim != 1 or not y.size:
        raise ValueError(f"y must have shape (n,) with n >= 1, got shape {y.shape}.")
    second = np.asarray(y == classes[1])
    strange = y[~(second | (y == classes[0]))]
    if strange.size:
        raise ValueError(f"y has the label {strange[:1].tolist()[0]!r}; the model was fitted to {classes}.")
    return second


def presence(name: str, Y: Any, dtype: Any, ndims: tuple[int, ...] = (2,)) -> tuple[jax.Array, Classes]:
    """Labels of shape (n, k) or (n,) converted to 0 and 1, and the two classes that stand for 0 and 1 in Y.

    A traced Y is taken to hold 0 and 1; a -1 in it counts as 0.
    """
    labels = not is_traced(Y) and as_numpy(name, Y).dtype == bool
    Y = as_float(name, Y, ndims, dtype)
    if is_traced(Y):
        return jnp.where(Y == -1, 0, Y), PRESENT
    if not labels and (np.asarray(Y) == -1).any() and (np.abs(np.asarray(Y)) == 1).all():
        return (Y + 1) / 2, SIGNS
    check_labels(Y, (0, 1), name=name, others="-1 and 1 are taken, too")
    return Y, (False, True) if labels else PRESENT


def decoded(positive: Any, classes: Classes) -> Any:
    """The label of each entry of ``positive``, which says whether the entry is the second class.

    The result is a JAX array if ``positive`` is one and the labels are booleans or whole numbers.
    """
    first, second = classes
    if isinstance(first, bool):
        return positive
    whole = all(isinstance(label, int | float) and label == int(label) for label in classes)
    if whole and max(abs(first), abs(second)) <= INT32_MAX:
        where: Any = jnp.where if isinstance(positive, jax.Array) else np.where
        return where(positive, np.int32(second), np.int32(first))
    if is_traced(positive):
        raise TypeError(f"labels such as {second!r} are given outside jit only: use decision_function there.")
    return _as_array(classes)[np.asarray(positive).astype(int)]


def _as_array(classes: Classes) -> np.ndarray:
    """The classes as an array: numpy would convert whole numbers to floats if only some exceed int64."""
    if not all(type(label) is int for label in classes) or max(classes) <= np.iinfo(np.int64).max:
        return np.asarray(classes)
    return np.asarray(classes, np.uint64 if min(classes) >= 0 and max(classes) < 2**64 else object)


def labels_at(classes: Classes, numbers: Any) -> np.ndarray:
    """The labels with these numbers (n,) among the classes; whole numbers are int32, as from `decoded`."""
    labels = _as_array(classes)
    if labels.dtype.kind in "iuf" and (labels == np.floor(labels)).all():
        small = labels.min() >= -INT32_MAX and labels.max() <= INT32_MAX
        labels = labels.astype(np.int32) if small else labels
    found: np.ndarray = labels[np.asarray(numbers)]
    return found


def agreement(y: Any, predicted: Any) -> float:
    """The share of the labels that are predicted correctly."""
    predicted = np.asarray(predicted)
    y, _ = labels_of(y, len(predicted))
    check_comparable(y, predicted)
    return float(np.mean(y == predicted))


def r2_score(Y: Any, predicted: jax.Array) -> float:
    """`sparsejax.metrics.r2` of the predictions for some X."""
    Y = as_float("Y", Y, (1, 2))
    if Y.shape != predicted.shape:
        raise ValueError(f"Y has shape {Y.shape}; {predicted.shape} is needed for this X.")
    return float(r2(Y, predicted))


def as_threshold(x: Any) -> Any:
    """A threshold on scores as a number that is not NaN; a traced threshold is not checked."""
    if is_traced(x):
        return x
    threshold = as_number("threshold", x)
    if np.isnan(threshold):
        raise ValueError("threshold must be a number, got NaN.")
    return threshold
