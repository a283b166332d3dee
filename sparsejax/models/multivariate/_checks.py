"""Checks of the numbers of a fit on the host, which are Python floats, in float64 whatever JAX's setting."""

import math
from typing import Any

from sparsejax._core.checks import as_number


def positive(name: str, value: Any) -> float:
    number = as_number(name, value)
    if not 0 < number < math.inf:
        raise ValueError(f"{name} must be > 0 and finite, got {number:g}.")
    return number


def nonnegative(name: str, value: Any) -> float:
    number = as_number(name, value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{name} must be >= 0 and finite, got {number:g}.")
    return number


def as_budget(value: Any) -> float:
    """B > 0, which may be infinite: more than m counts as m."""
    number = as_number("budget", value)
    if not number > 0:
        raise ValueError(f"budget must be > 0, got {number:g}.")
    return number
