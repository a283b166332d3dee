"""Threads on the host: how many BLAS uses, and programs that must not run at the same time."""

import contextlib
import functools
import importlib
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr

# Primitives of JAX. XLA divides one of them, for several matrices, among its threads and waits for all parts.
FACTORISATIONS = ("cholesky", "eigh", "lu", "qr", "geqrf", "householder_product", "svd")
_ONE_AT_A_TIME = threading.Lock()  # held by programs with such a factorisation

# The smaller of rows and columns of a matrix. A program with a larger matrix keeps all threads of BLAS.
MAX_ONE_THREAD_SIZE = 1024


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """A context in which BLAS and LAPACK use one thread; it has no effect without threadpoolctl.

    On small matrices the threads of BLAS wait for one another: with other work on the machine this takes up
    to ten times as long. The number of threads belongs to the process, so that only the main thread sets it:
    several threads would each restore what they found, which may be the setting of another.
    """
    pools = _pools() if threading.current_thread() is threading.main_thread() else ()
    # ``num_threads`` is None for a library that does not report it.
    several = [(pool, pool.num_threads) for pool in pools if (pool.num_threads or 1) > 1]
    for pool, _ in several:
        pool.set_num_threads(1)
    try:
        yield
    finally:
        for pool, count in several:
            pool.set_num_threads(count)


@contextlib.contextmanager
def threads_for(args: Any) -> Iterator[None]:
    """`one_blas_thread` if the default device is a CPU and no matrix exceeds `MAX_ONE_THREAD_SIZE`."""
    sizes = [min(jnp.shape(leaf)[-2:]) for leaf in jax.tree.leaves(args) if jnp.ndim(leaf) > 1]
    small = jax.default_backend() == "cpu" and max(sizes, default=0) <= MAX_ONE_THREAD_SIZE
    with one_blas_thread() if small else contextlib.nullcontext():
        yield


@functools.cache  # looking for the libraries takes milliseconds
def _pools() -> tuple[Any, ...]:
    """The BLAS libraries of this process, as threadpoolctl controls them; none without threadpoolctl."""
    try:
        from threadpoolctl import ThreadpoolController  # noqa: PLC0415
    except ModuleNotFoundError:
        return ()
    # The controller knows only libraries that are loaded now; jaxlib loads this one later to call LAPACK.
    importlib.import_module("scipy.linalg.cython_lapack")
    return tuple(ThreadpoolController().select(user_api="blas").lib_controllers)


def factorises_batches(jaxpr: Jaxpr) -> bool:
    """Whether a program, a jaxpr, has a matrix factorisation of several matrices at once."""
    for equation in jaxpr.eqns:
        first: Any = equation.invars[0].aval if equation.invars else None
        several = equation.primitive.name in FACTORISATIONS and first.ndim > 2
        if several or any(map(factorises_batches, jaxprs_in(tuple(equation.params.values())))):
            return True
    return False


def jaxprs_in(value: Any) -> Iterator[Jaxpr]:
    """The jaxprs in a parameter of an equation."""
    if isinstance(value, tuple | list):
        for one in value:
            yield from jaxprs_in(one)
    elif isinstance(value, ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, Jaxpr):
        yield value


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """A context for programs with factorisations of several matrices at once: one thread is in it at a time.

    With jaxlib 0.10.2 on a CPU such programs, running at the same time, can wait for one another for ever:
    each holds a thread of XLA while its parts wait for a free thread. Alone each of them uses all threads.
    """
    with _ONE_AT_A_TIME if jax.default_backend() == "cpu" else contextlib.nullcontext():
        yield
