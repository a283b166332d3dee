"""Checks of what a fit on the host is given."""

import math
from typing import Any

import numpy as np

from sparsejax.models.multivariate._callback import VMAP_METHODS
from sparsejax.models.multivariate._cutting_plane import SCHEDULES


def as_data(X: Any) -> Any:
    """X as float64: by columns if sparse, else a numpy array; checked."""
    if hasattr(X, "tocsc"):
        from scipy import sparse  # type: ignore[import-untyped]  # noqa: PLC0415

        _check_real(X.dtype)
        if hasattr(X, "check_format"):
            try:
                X.check_format(full_check=True)
            except ValueError as error:
                raise ValueError(
                    f"X is not a valid sparse array (too small an index dtype?): {error}"
                ) from None
        X = sparse.csc_array(X, dtype=float)
        values = X.data
    else:
        if hasattr(X, "todense"):
            raise TypeError(f"X is a {type(X).__name__}; a dense or scipy.sparse array is needed.")
        X = np.asarray(X)
        _check_real(X.dtype)
        X = values = np.asarray(X, dtype=float)
    if len(X.shape) != 2 or 0 in X.shape:
        raise ValueError(f"X must have shape (n, m) with n, m >= 1, got {X.shape}.")
    bad = ~np.isfinite(values)
    if bad.any():
        raise ValueError(f"X has {int(bad.sum())} value(s) that are NaN or infinite; all must be finite.")
    return X


def _check_real(dtype):
    if dtype.kind not in "biuf":
        raise TypeError(f"X has dtype {dtype}; real numbers are needed.")


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
