"""The numbers of a problem as numpy arrays, and what formulas share."""

import contextlib
from collections.abc import Iterator
from typing import Any

import cvxpy as cp
import numpy as np

_precision: list[type] = [np.float64]


@contextlib.contextmanager
def long_doubles() -> Iterator[None]:
    """Objectives and intercepts in 64 bits of mantissa, where the machine has them."""
    _precision.append(np.longdouble)
    try:
        yield
    finally:
        _precision.pop()


def numbers(x: Any) -> np.ndarray:
    return np.asarray(x, _precision[-1])


def target(loss: Any) -> np.ndarray:
    """Y, (n, k)."""
    return numbers(loss.Y).reshape(len(loss.Y), -1)


def scaled_weights(loss: Any) -> np.ndarray:
    """(n, k), with the scale."""
    shape = target(loss).shape
    each = 1.0 if loss.weights is None else numbers(loss.weights).reshape(shape[0], -1)
    return float(loss.scale) * np.broadcast_to(each, shape)


def is_long() -> bool:
    """Whether numbers have 64 bits of mantissa now."""
    return _precision[-1] is np.longdouble


def squares(weights: np.ndarray, R: Any) -> Any:
    """``sum(weights * R^2)`` as an expression of cvxpy."""
    return cp.sum_squares(cp.multiply(np.sqrt(weights), R))


def by_row(strength: Any, d: int) -> np.ndarray:
    """One strength a row, or a group."""
    return np.broadcast_to(numbers(strength), (d,))


def members(groups: Any) -> list[list[int]]:
    """The indices of each group."""
    return [list(map(int, group)) for group in groups.tolist()]
