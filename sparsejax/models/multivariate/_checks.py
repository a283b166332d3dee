"""Checks of the numbers of a fit on the host, which are Python floats, in float64 whatever JAX's setting."""

import math
from collections.abc import Callable
from typing import Any

from sparsejax._core.checks import as_number


def positive(name: str, value: Any) -> float:
    return _number(name, value, lambda x: 0 < x < math.inf, "> 0 and finite")


def nonnegative(name: str, value: Any) -> float:
    return _number(name, value, lambda x: 0 <= x < math.inf, ">= 0 and finite")


def as_budget(value: Any) -> float:
    """B > 0, which may be infinite: more than m counts as m."""
    return _number("budget", value, lambda x: x > 0, "> 0")


def _number(name: str, value: Any, fits: Callable[[float], bool], what: str) -> float:
    number = as_number(name, value)
    if not fits(number):
        raise ValueError(f"{name} must be {what}, got {number:g}.")
    return number
