"""The number of threads of BLAS on the host."""

import contextlib
import functools
import importlib
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

MAX_ONE_THREAD_SIZE = 1024  # rows or columns: programs with larger arguments keep all threads of BLAS


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """A context in which BLAS and LAPACK use one thread; it has no effect without threadpoolctl.

    On small matrices the threads of BLAS wait for one another: with other work on the machine this takes up
    to ten times as long. The number of threads belongs to the process, so that only the main thread sets it:
    several threads would each restore what they found, which may be the setting of another.
    """
    pools = _pools() if threading.current_thread() is threading.main_thread() else None
    with pools.limit(limits=1, user_api="blas") if pools is not None else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def threads_for(args: Any) -> Iterator[None]:
    """`one_blas_thread` if a program of these arguments runs on a CPU and all matrices are small."""
    sizes = [min(jnp.shape(leaf)[-2:]) for leaf in jax.tree.leaves(args) if jnp.ndim(leaf) > 1]
    small = jax.default_backend() == "cpu" and max(sizes, default=0) <= MAX_ONE_THREAD_SIZE
    with one_blas_thread() if small else contextlib.nullcontext():
        yield


@functools.cache  # looking for the libraries takes milliseconds
def _pools() -> Any:
    try:
        from threadpoolctl import ThreadpoolController  # noqa: PLC0415
    except ModuleNotFoundError:
        return None
    # The controller knows only libraries that are loaded now; jaxlib loads this one later to call LAPACK.
    importlib.import_module("scipy.linalg.cython_lapack")
    return ThreadpoolController()
