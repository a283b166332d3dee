"""Precision: a warning where JAX makes float64 data float32, and matrix products in full precision."""

import contextlib
import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

SWITCH = 'jax.config.update("jax_enable_x64", True)'  # a program calls it before it makes any array
_told = False


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """A context, or a decorator as ``@full_precision()``: products in all digits of their dtype.

    On a GPU or a TPU JAX multiplies float32 matrices with about three digits by default. With so few digits
    solvers stall, and a computed duality gap can be smaller than the true gap. The context has no effect on a
    CPU, or if the user has set ``jax_default_matmul_precision``.
    """
    chosen: Any = jax.config  # its attributes are made at run time
    if jax.default_backend() == "cpu" or chosen.jax_default_matmul_precision is not None:
        yield
    else:
        with jax.default_matmul_precision("highest"):
            yield


def users_level() -> int:
    """The ``stacklevel`` with which `warnings.warn`, called by the caller, names the first user frame."""
    frame: Any = inspect.currentframe()
    # contextlib calls the functions that `full_precision` decorates.
    inner, level = (__name__.split(".")[0], "contextlib"), 0
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in inner:
        frame, level = frame.f_back, level + 1
    return max(level, 1)


def is_cast(dtype: Any) -> bool:
    """Whether data of this dtype are float64 that JAX makes float32, because its 64-bit numbers are off."""
    return bool(dtype == np.float64 and jax.dtypes.canonicalize_dtype(dtype) == np.float32)


def tell_of_cast(name: str, given: Any, eager: Any) -> None:
    """Warn, once a process, if data of the dtype ``given`` will be cast and ``eager()`` is True (no jit)."""
    global _told  # noqa: PLW0603  (once a process)
    if _told or not is_cast(given) or not eager():
        return
    _told = True
    text = (
        f"{name} is float64, but JAX's 64-bit numbers are off, so that sparsejax computes in float32, and "
        f"solves to a tol of 1e-4 by default. For float64, write {SWITCH} at the start of the program; for "
        f"float32 without this warning, pass {name}.astype(numpy.float32). (Said once.)"
    )
    warnings.warn(text, UserWarning, stacklevel=users_level())
