"""The state of a process that calls could change: before a call, while it runs, and after."""

import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import jax
import matplotlib
import numpy as np
import threadpoolctl

SECONDS = 0.0005  # between two looks while a call runs


class State:
    """Looks at the state of this process."""

    def __init__(self) -> None:
        self._pools = threadpoolctl.ThreadpoolController()

    def of_process(self) -> dict[str, Any]:
        """What all threads share."""
        blas = self._pools.select(user_api="blas").info()
        return {
            "JAX's configuration": dict(jax.config.values),
            "BLAS threads": {pool["filepath"]: pool["num_threads"] for pool in blas},
            "warning filters": (list(warnings.filters), warnings.showwarning),
            "signal handlers": [signal.getsignal(number) for number in sorted(signal.valid_signals())],
            "random state": (random.getstate(), np.random.get_state()[1].tolist()),  # noqa: NPY002
            "matplotlib": dict(matplotlib.rcParams),
        }

    def of_thread(self) -> dict[str, Any]:
        """What belongs to the thread that calls."""
        return {
            "JAX's configuration, of the thread": {
                name: getattr(jax.config, name, None) for name in jax.config.values
            },
            "numpy's errors": (np.geterr(), np.geterrcall()),
            "numpy's printing": np.get_printoptions(),
        }


def changes(call: Callable[[], Any]) -> tuple[set[str], set[str]]:
    """What another thread has seen changed while the call ran, and what is changed after it.

    Filters of warnings are changed for moments that are too short to be seen: each use of
    `warnings.catch_warnings` is noted instead, with the package that it was called from.
    """
    state, ended, seen = State(), threading.Event(), set()
    before = state.of_process()

    def watch() -> None:
        while not ended.wait(SECONDS):
            now = state.of_process()
            seen.update(name for name in now if now[name] != before[name])

    def noted(self: Any) -> Any:
        frame = sys._getframe(1)
        if threading.current_thread() is main:
            users.add(frame.f_globals.get("__name__", "?").split(".")[0])
        return enter(self)

    users: set[str] = set()
    own, main = state.of_thread(), threading.current_thread()
    enter, warnings.catch_warnings.__enter__ = warnings.catch_warnings.__enter__, noted
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        call()
    finally:
        ended.set()
        watcher.join()
        warnings.catch_warnings.__enter__ = enter
    after = {**state.of_process(), **state.of_thread()}
    left = {name for name, value in {**before, **own}.items() if after[name] != value}
    seen -= {"warning filters"}
    return seen | {f"warning filters by {user}" for user in users}, left
