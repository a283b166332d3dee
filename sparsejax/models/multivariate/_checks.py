"""Checks of what a fit on the host is given."""

import math

import numpy as np

from sparsejax.models.multivariate._callback import VMAP_METHODS
from sparsejax.models.multivariate._cutting_plane import SCHEDULES


def _check_number(name, value):
    if isinstance(value, (bool, np.bool_)) or np.ndim(value) or np.asarray(value).dtype.kind not in "iuf":
        raise TypeError(f"{name} must be a number, got {value!r}.")
    return float(value)


def check_positive(name, value):
    value = _check_number(name, value)
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be > 0 and finite, got {value:g}.")
    return value


def check_budget(budget):
    budget = _check_number("budget", budget)
    if not budget > 0:
        raise ValueError(f"budget must be > 0, got {budget:g}.")
    return budget


def check_tol(tol):
    tol = _check_number("tol", tol)
    if not 0 <= tol < math.inf:
        raise ValueError(f"tol must be >= 0 and finite, got {tol:g}.")
    return tol


def check_options(eps_delta, maxiter, schedule, vmap_method):
    if not 0 <= _check_number("eps_delta", eps_delta) < math.inf:
        raise ValueError(f"eps_delta must be >= 0 and finite, got {eps_delta:g}.")
    if isinstance(maxiter, bool) or not isinstance(maxiter, (int, np.integer)) or maxiter < 1:
        raise ValueError(f"maxiter must be an integer >= 1, got {maxiter!r}.")
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {schedule!r}.")
    if vmap_method not in VMAP_METHODS:
        raise ValueError(f"vmap_method must be one of {', '.join(VMAP_METHODS)}, got {vmap_method!r}.")
