"""Checks of the numbers of a fit on the host, which are Python floats, in float64 whatever JAX's setting."""

import math
from collections.abc import Callable
from typing import Any

from sparsejax._core.checks import as_number


def positive(name: str, value: Any) -> float:
    return _number(name, value, "> 0 and finite", lambda x: 0 < x < math.inf)


def nonnegative(name: str, value: Any) -> float:
    return _number(name, value, ">= 0 and finite", lambda x: 0 <= x < math.inf)


def as_budget(value: Any) -> float:
    """B > 0, which may be infinite: more than m counts as m."""
    return _number("budget", value, "> 0", lambda x: x > 0)


def _number(name: str, value: Any, required: str, allowed: Callable[[float], bool]) -> float:
    number = as_number(name, value)
    if not allowed(number):  # NaN is not allowed: every comparison with it is False
        raise ValueError(f"{name} must be {required}, got {number:g}.")
    return number
