"""Threads of the host's BLAS, where it works on small matrices in a loop."""

import contextlib
import functools
import importlib
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

FEW = 1024  # rows or columns of the arguments of a program, up to which BLAS is left one thread


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """BLAS and LAPACK of numpy and scipy, which XLA calls on a CPU, on one thread; by threadpoolctl, if any.

    On small matrices several threads wait for one another: with other work on the machine up to ten times as
    long. The number is one for the whole process, and so left to its main thread: of several that come and go
    each would put back what it found.
    """
    pools = _pools() if threading.current_thread() is threading.main_thread() else None
    with pools.limit(limits=1, user_api="blas") if pools is not None else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def threads_for(args: Any) -> Iterator[None]:
    """`one_blas_thread` where a program of these arguments runs on a CPU and all its matrices are small."""
    sizes = [min(jnp.shape(leaf)[-2:]) for leaf in jax.tree.leaves(args) if jnp.ndim(leaf) > 1]
    small = jax.default_backend() == "cpu" and max(sizes, default=0) <= FEW
    with one_blas_thread() if small else contextlib.nullcontext():
        yield


@functools.cache  # looking for the libraries takes milliseconds
def _pools() -> Any:
    try:
        from threadpoolctl import ThreadpoolController  # noqa: PLC0415
    except ModuleNotFoundError:
        return None
    # Of a library that is loaded later it would not know; jaxlib loads this one to call LAPACK.
    importlib.import_module("scipy.linalg.cython_lapack")
    return ThreadpoolController()
