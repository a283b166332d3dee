"""Times: medians of calls made in turn, so that a busy machine slows all alike; memory."""

import re
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np


class Timing(NamedTuple):
    """What a call took and gave."""

    seconds: float
    cpu: float  # seconds of this process on all cores
    result: Any

    def over(self, other: "Timing") -> float:
        """How many times as long as another call."""
        return self.seconds / other.seconds


def timed(call: Callable[[], Any]) -> Timing:
    """One call, to the end of what it computes."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = jax.block_until_ready(call())
    return Timing(time.perf_counter() - wall, time.process_time() - cpu, result)


def in_turn(
    calls: Mapping[Any, Callable[[], Any]], repeats: int, *, warm_up: bool = True
) -> dict[Any, Timing]:
    """Medians of each call, made in turn, after each has been made once; and the last results.

    The order is drawn anew each round: a call takes up to 2 ms longer right after one that left the memory
    to the system.
    """
    if warm_up:
        for call in calls.values():
            jax.block_until_ready(call())
    rng, names = np.random.default_rng(0), list(calls)
    orders = [rng.permutation(len(names)) for _ in range(repeats)]
    rounds = [{names[i]: timed(calls[names[i]]) for i in order} for order in orders]
    found = {name: [once[name] for once in rounds] for name in calls}
    return {name: _median(timings) for name, timings in found.items()}


def _median(timings: Sequence[Timing]) -> Timing:
    seconds, cpu, results = zip(*timings, strict=True)
    return Timing(float(np.median(seconds)), float(np.median(cpu)), results[-1])


def per_step(few: Timing, many: Timing, steps: int) -> float:
    """Seconds of a step, from two calls that differ by so many of them and in nothing else."""
    return (many.seconds - few.seconds) / steps


def peak_mb() -> float:
    """The most memory that this process has had.

    By Linux itself where it says so: what `resource` says is at least what the parent had.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s+(\d+)", status.read_text()).group(1)) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
