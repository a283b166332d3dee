"""Threads of the host's BLAS, where numpy works in a loop."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """BLAS of numpy and scipy on one thread: on small matrices several wait for one another.

    By threadpoolctl, of the extra ``multivariate``; without it nothing is changed.
    """
    pools = _pools()
    if pools is None:
        yield
        return
    with pools.limit(limits=1, user_api="blas"):
        yield


@functools.cache  # looking for the libraries takes milliseconds
def _pools() -> Any:
    try:
        from threadpoolctl import ThreadpoolController  # noqa: PLC0415
    except ModuleNotFoundError:
        return None
    return ThreadpoolController()
