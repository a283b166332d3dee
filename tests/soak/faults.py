"""Threads, repeated calls, thousands of solves, Ctrl-C: the same bits, no memory and no process that stays.

    python tests/soak/faults.py [--solves 10000] [--shapes 500] [--interrupts 5]

**threads**: eight of them solve 40 problems each, by five solvers; every answer must have the bits of the
same call alone. **bits**: calls repeated, in this process and in another one, must agree to the last bit;
an eager call and one within a user's jit, which are two programs, to 1e-10 of the largest weight at the
tolerance 1e-12. **memory**: thousands of solves of changing strengths must add nothing; each of hundreds of
shapes adds what JAX keeps of its program. **Ctrl-C**: every long call, in a process of its own, gets SIGINT
at random moments, as does all that it started; it must end with a KeyboardInterrupt within `PATIENCE`
seconds, leave no process, and the records of a checkpoint that can be read. **Address space**: what works on
the host, given 20, 60 and 100 MB more than the process has (RLIMIT_AS), must return or raise a `MemoryError`,
or JAX's, and work again without the limit.

Prints the figures; the exit status is 1 where bits differ or memory grows.
"""

import argparse
import contextlib
import gc
import hashlib
import itertools
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import scipy.sparse

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    jax.config.update("jax_enable_x64", True)

import sparsejax as sj

PATIENCE = 60  # seconds until a process counts as hanging
RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 12))
Y = X[:, :2] + 0.3 * RNG.standard_normal((40, 2))
LABELS = (Y > 0).astype(float)
GROUPS = sj.groups.from_lists([[0, 1], [2, 3, 4]], 12)
PROBLEMS = {
    "admm": sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.L21(0.1)),
    "fista": sj.Problem(
        sj.losses.LogisticLoss(X, (Y > 0).astype(float)), sj.penalties.ExclusiveL21(0.05, 0.05)
    ),
    "prox_newton": sj.Problem(sj.losses.LogisticLoss(X, (Y[:, 0] > 0).astype(float)), sj.penalties.L1(0.05)),
    "irls": sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.ExclusiveGroupL21(0.1, GROUPS)),
    "working_set": sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.L21(0.1)),
}


def solved(name: str, factor: float, **options: object) -> np.ndarray:
    problem = PROBLEMS[name]
    changed = problem.replace(penalty=factor * problem.penalty)
    return np.asarray(getattr(sj, name)(changed, tol=1e-8, **options).params)


def check_threads() -> int:
    """How many answers differ."""
    calls = [(name, factor) for factor in np.geomspace(0.2, 2, 8) for name in PROBLEMS]
    alone = [solved(*call) for call in calls]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda call: solved(*call), 8 * calls))
    return sum(not np.array_equal(a, b) for a, b in zip(8 * alone, together, strict=True))


def digest_of_all() -> str:
    found = hashlib.sha256()
    for name in PROBLEMS:
        found.update(solved(name, 1.0).tobytes())
    return found.hexdigest()


def check_bits() -> tuple[bool, bool, float]:
    """The same again; the same in another process; the largest difference from a call within jit."""
    here = digest_of_all()
    command = [sys.executable, str(Path(__file__).resolve()), "--digest"]
    there = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    apart = 0.0
    for name, problem in PROBLEMS.items():
        solver = getattr(sj, name)
        eager = np.asarray(solver(problem, tol=1e-12).params)
        within = np.asarray(jax.jit(lambda p, solver=solver: solver(p, tol=1e-12))(problem).params)
        apart = max(apart, float(np.abs(eager - within).max() / np.abs(eager).max()))
    return here == digest_of_all(), here == there, apart


def resident() -> float:
    """MB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def check_memory(solves: int, shapes: int) -> tuple[float, float]:
    """MB added by solves of one shape; by solves of many, for each."""
    for factor in np.geomspace(0.1, 3, 500):
        solved("admm", factor)
    before = resident()
    for factor in np.geomspace(0.1, 3, solves):
        solved("admm", factor)
    one = resident() - before
    before = resident()
    for n in range(shapes):
        A = RNG.standard_normal((20 + n, 6))
        sj.solve(sj.Problem(sj.losses.SquaredLoss(A, A[:, 0]), sj.penalties.L1(0.1)))
    each = (resident() - before) / max(shapes, 1)
    return one, each


# ------------------------------------------------------------------ too little memory


def on_host(large: bool) -> dict[str, Callable[[], object]]:
    """What numpy and scipy do, on 64 MB of data or on a little."""
    n = 4000 if large else 20
    A, y = np.ones((n, n), np.float32), np.where(np.arange(n) % 2, 1, -1)
    A[:: n // 10] = np.random.default_rng(0).standard_normal((10, n))
    target, losses, fit = (y > 0).astype(np.float32), sj.losses, sj.models.multivariate
    rows = scipy.sparse.csr_array(A)
    entries = rows.tocoo()
    return {
        "multivariate.fit": lambda: fit.fit(A, y, measure=fit.hamming(), budget=2, C=1.0, maxiter=2),
        "SquaredLoss.from_batches": lambda: losses.SquaredLoss.from_batches([(A, target)]),
        "losses.from_batches": lambda: losses.from_batches(losses.LogisticLoss, [(A, target)]),
        "sparse X by rows": lambda: losses.SquaredLoss(rows, target),
        "sparse X by entries": lambda: losses.SquaredLoss(entries, target),
    }


def limited(name: str, room: int) -> None:
    """The child: the call within so many MB, and again on a little without a limit."""
    small, call = on_host(False)[name], on_host(True)[name]
    small()  # compiled
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    used = pages * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + room * 2**20, resource.RLIM_INFINITY))
    try:
        call()
        told = "returned"
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        told = type(error).__name__
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    small()
    print(told)


def check_limits() -> int:
    """How many ended otherwise."""
    wrong = 0
    for name in on_host(False):
        told = []
        for room in (20, 60, 100):
            command = [sys.executable, str(Path(__file__).resolve()), "--limited", name, str(room)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
                told.append(done.stdout.strip() if done.returncode == 0 else f"status {done.returncode}")
            except subprocess.TimeoutExpired:
                told.append("it hangs")
            wrong += told[-1] not in ("returned", "MemoryError", "JaxRuntimeError")
        print(f"address space: {name}: {', '.join(told)}", flush=True)
    return wrong


# ------------------------------------------------------------------ Ctrl-C

AGAIN = 10  # seconds until the next Ctrl-C: JAX loses one that comes while Python collects garbage
LATEST = 8  # seconds after which the signal comes at the latest
WIDE = np.random.default_rng(1).standard_normal((200, 600))
RESPONSE = WIDE[:, :10].sum(axis=1) + np.random.default_rng(2).standard_normal(200)
SEVERAL = WIDE[:, :3] + np.random.default_rng(3).standard_normal((200, 3))
CLASSES = np.argmax(SEVERAL, axis=1)


def strengths(problem: sj.Problem) -> sj.penalties.L1:
    top = float(sj.lambda_max(problem))
    return jax.vmap(sj.penalties.L1)(np.geomspace(top, top / 1e4, 200))


def long_calls() -> dict[str, Callable[[str], object]]:
    """By name, of a folder for a checkpoint."""
    least = sj.Problem(sj.losses.SquaredLoss(WIDE, RESPONSE), sj.penalties.L1(1.0))
    a, fit, ofa = strengths(least), sj.models.multivariate, sj.models.ofa_lasso
    measure = fit.f_beta()
    return {
        # it is seen when the program ends, so that there is little of it
        "path, one program": lambda folder: sj.path(least, jax.tree.map(lambda x: x[::20], a)),
        "path": lambda folder: sj.path(least, a, tol=1e-9, progress=True),
        "path, checkpoint": lambda folder: sj.path(least, a, tol=1e-9, checkpoint=folder),
        "cross_validate": lambda folder: sj.cross_validate(least, a, folds=3, checkpoint=folder),
        "stability_selection": lambda folder: sj.stability_selection(least, a, checkpoint=folder),
        "multivariate.fit": lambda folder: fit.fit(
            WIDE, 2 * (RESPONSE > 0) - 1, measure=measure, budget=20, C=10.0, tol=1e-9
        ),
        "fit_one_vs_rest": lambda folder: fit.fit_one_vs_rest(
            WIDE, CLASSES, measure=measure, budget=20, C=10.0, workers=2, tol=1e-9
        ),
        "ofa_lasso.cross_validate": lambda folder: ofa.cross_validate(
            WIDE, SEVERAL, np.geomspace(1, 0.01, 20), [0.1, 1.0], progress=True
        ),
        "mil.fit": lambda folder: sj.models.mil.fit(
            WIDE, np.arange(200) // 4, np.where(RESPONSE[::4] > 0, 1, -1), measure=measure, budget=20, C=10.0
        ),
    }


def again_and_again(name: str, folder: str) -> None:
    """The child: the call for ever, each time with a new folder."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    print("begin", flush=True)
    for number in itertools.count():
        long_calls()[name](str(Path(folder) / str(number)))


def interrupted(name: str, wait: float) -> tuple[float, str]:
    """Seconds until the process ends, and what is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(Path(__file__).resolve()), "--child", name, folder]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        assert process.stdout is not None and process.stdout.readline() == "begin\n"
        time.sleep(wait)
        begin, told = time.perf_counter(), None
        while told is None and time.perf_counter() - begin < PATIENCE:
            os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                told = process.communicate(timeout=AGAIN)[1]
        seconds = time.perf_counter() - begin
        if told is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return seconds, "it goes on"
        if process.returncode == 0 or ("KeyboardInterrupt" not in told and "Interrupted" not in told):
            return seconds, f"exit status {process.returncode}: {told[-300:]}"
        for record in Path(folder).rglob("*.npz"):
            with np.load(record) as arrays:
                assert all(arrays[entry] is not None for entry in arrays.files)
    for _ in range(AGAIN):
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return seconds, ""
        time.sleep(1)
    os.killpg(process.pid, signal.SIGKILL)
    return seconds, "a process is left"


def check_interrupts(times: int) -> int:
    """How many went wrong; prints the longest time to the end of each call."""
    draw, wrong = random.Random(0), 0
    for name in long_calls() if times else ():
        found = [interrupted(name, draw.uniform(0, LATEST)) for _ in range(times)]
        bad = [text for _, text in found if text]
        wrong += len(bad)
        longest = max(seconds for seconds, _ in found)
        print(f"Ctrl-C: {name}: {times} times, ended within {longest:.1f} s", *bad, sep="\n   ", flush=True)
    return wrong


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--solves", type=int, default=10_000)
    options.add_argument("--shapes", type=int, default=500)
    options.add_argument("--interrupts", type=int, default=5, help="of each call")
    options.add_argument("--digest", action="store_true")
    options.add_argument("--child", nargs=2)
    options.add_argument("--limited", nargs=2)
    given = options.parse_args()
    if given.child:
        again_and_again(*given.child)
    if given.limited:
        limited(given.limited[0], int(given.limited[1]))
        return
    if given.digest:
        print(digest_of_all())
        return
    different = check_threads()
    again, elsewhere, apart = check_bits()
    one, each = check_memory(given.solves, given.shapes)
    print(f"threads: {different} of {8 * 8 * len(PROBLEMS)} answers differ from the same call alone")
    print(f"bits: again {again}, in another process {elsewhere}; eager and within jit differ by {apart:.1e}")
    memory = f"{one:.1f} MB more after {given.solves} solves"
    print(f"memory: {memory}; {each:.2f} MB for each of {given.shapes} shapes")
    wrong = check_limits() + check_interrupts(given.interrupts)
    sys.exit(bool(different) or not (again and elsewhere) or apart > 1e-10 or one > 20 or wrong > 0)


if __name__ == "__main__":
    main()
