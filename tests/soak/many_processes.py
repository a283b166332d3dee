"""One, two and four processes of jax.distributed: the same answer, memory, time, what they tell each other.

    python tests/soak/many_processes.py [--rows 160000] [--features 200] [--outputs 5] [--processes 1,2,4]

X (rows, features) in float64 is made by its processes, block by block, so that it is the same however many
these are, and none ever has more than its part. Each loss is solved with l2,1 at lambda_max/10 to a gap of
1e-8 by `sj.solve`, called eagerly, twice: the first call compiles. Each process has one thread.

**memory**: the peak of the resident memory of a process, the largest of all, beyond what it has after a tiny
solve of the same loss; its part of X is in it. **difference**: of W from that of one process. **killed**: of
four processes that solve in a loop one is killed by SIGKILL, first the last one, then number 0, which holds
the coordination service; seconds until all others have ended, with ``heartbeat_timeout_seconds=10``, and how.
**collectives**: what the compiled text of a solve has with X on four devices, by the depth of its loops: 0 is
outside, an iteration is in the innermost one; certificates and the finish have loops of their own, which are
counted with it. n rows, d features, k outputs.
"""

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # its tables and readers of data

from harness.tables import Printed

import sparsejax as sj

jax.config.update("jax_enable_x64", True)

BLOCKS = 8  # of rows, each with a seed of its own
LOSSES = ("SquaredLoss", "LogisticLoss", "SoftmaxLoss")
HEARTBEAT, LIMIT = 10, 600  # seconds
FLAGS = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
CALL = r"(?:condition|body|to_apply|calls|\w+_computations?)=\{?([^,)}\s]+(?:, %[^,}]+)*)"
COLLECTIVE = r"= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("


def rows_of(name: str, number: int, count: int, shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The part of a process of X and Y."""
    n, d, k = shape
    size, per = n // BLOCKS, BLOCKS // count
    X, Y = np.empty((per * size, d)), np.empty((per * size, k))
    W = np.random.default_rng(0).standard_normal((d, k)) * (np.arange(d) < d // 10)[:, None]
    for i in range(per):
        rng, part = np.random.default_rng((1, number * per + i)), slice(i * size, (i + 1) * size)
        rng.standard_normal(out=X[part])
        H = X[part] @ W + 3 * rng.standard_normal((size, k))
        Y[part] = {"SquaredLoss": H, "LogisticLoss": H > 0, "SoftmaxLoss": np.eye(k)[H.argmax(1)]}[name]
    return X, Y


def resident(which: str) -> float:
    """Megabytes of the resident memory: VmRSS now, VmHWM at its peak."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{which}:\s+(\d+)", status).group(1)) / 1024


def worker(port: int, number: int, count: int, shape: tuple[int, int, int], folder: Path, loop: bool) -> None:
    if count > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"localhost:{port}", count, number, heartbeat_timeout_seconds=HEARTBEAT)
    rows = NamedSharding(Mesh(np.array(jax.devices()), ("rows",)), P("rows"))

    def problem(name: str, shape: tuple[int, int, int]) -> sj.Problem:
        parts = rows_of(name, number, count, shape)
        X, Y = (jax.make_array_from_process_local_data(rows, part) for part in parts)
        loss = getattr(sj.losses, name)(X, Y)
        top = float(sj.lambda_max(sj.Problem(loss, sj.penalties.L21(1.0))))
        return sj.Problem(loss, sj.penalties.L21(top / 10))

    while loop:
        sj.solve(problem("SquaredLoss", (40 * BLOCKS, 10, 2)))
        (folder / "going").touch()
    for name in LOSSES:
        sj.solve(problem(name, (40 * BLOCKS, 10, 2)))
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before, seconds = resident("VmRSS"), []
        big = problem(name, shape)
        for _ in range(2):
            start = time.perf_counter(), time.process_time()
            solution = jax.block_until_ready(sj.solve(big, tol=1e-8))
            seconds.append((time.perf_counter() - start[0], time.process_time() - start[1]))
        W = np.asarray(solution.params)
        peak = resident("VmHWM") - before
        facts = [float(solution.gap), int(solution.num_iters), peak, *seconds[0], *seconds[1]]
        np.savez(folder / f"{name}{number}.npz", W=W, facts=facts)
        del big, solution


def started(count: int, options: argparse.Namespace, folder: Path, loop: bool = False) -> list[Any]:
    """The processes."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"XLA_FLAGS": FLAGS, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    shape = ["--rows", options.rows, "--features", options.features, "--outputs", options.outputs]
    place = ["--worker", port, "--count", count, "--folder", folder, *(["--loop"] if loop else [])]
    processes = []
    for number in range(count):
        words = [sys.executable, __file__, *shape, *place, "--number", number]
        with (folder / f"{number}.log").open("w") as log:
            processes.append(subprocess.Popen(list(map(str, words)), env=environment, stdout=log, stderr=log))
    return processes


def measured(options: argparse.Namespace) -> None:
    size = options.rows * options.features * 8 / 2**20
    print(f"X {options.rows} x {options.features}, {size:.0f} MB, {options.outputs} outputs\n")
    found: dict[tuple[int, str], Any] = {}
    for count in options.processes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            processes = started(count, options, folder)
            codes = [process.wait(LIMIT) for process in processes]
            if any(codes):
                sys.exit((folder / f"{next(i for i, code in enumerate(codes) if code)}.log").read_text())
            for loss in LOSSES:
                found[count, loss] = [dict(np.load(folder / f"{loss}{i}.npz")) for i in range(count)]
    answer = ("gap", ">9.1e"), ("steps", ">7d"), ("difference", ">12.1e")
    cost = ("MB each", ">9.0f"), ("of one", ">8.2f"), ("first s", ">9.1f"), ("then s", ">8.1f")
    table = Printed(("loss", "<14"), ("processes", ">9d"), *answer, *cost, ("CPU s each", ">12.1f"))
    for loss in LOSSES:
        one = found[options.processes[0], loss][0]
        for count in options.processes:
            parts = found[count, loss]
            gap, steps, _, first, _, then, _ = parts[0]["facts"]
            peak, cpu = (max(part["facts"][i] for part in parts) for i in (2, 6))
            apart = max(np.abs(part["W"] - one["W"]).max() for part in parts)
            table.row(loss, count, gap, int(steps), apart, peak, peak / one["facts"][2], first, then, cpu)


def killed(options: argparse.Namespace) -> None:
    print()
    table = Printed(("killed", "<8"), ("others ended after s", ">21.1f"), ("exit codes", ">20"))
    for victim in (3, 0):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            processes = started(4, options, folder, loop=True)
            while not (folder / "going").exists():
                time.sleep(0.1)
            processes[victim].send_signal(signal.SIGKILL)
            start = time.perf_counter()
            codes = [process.wait(LIMIT) for process in processes]
            others = sorted({code for i, code in enumerate(codes) if i != victim})
            table.row(f"{victim} of 4", time.perf_counter() - start, str(others))


# ------------------------------------------------------------------ what is said in the innermost loops


def collectives(text: str) -> dict[int, Counter]:
    """Of a compiled text: kinds and shapes by the depth of the loop they are in."""
    here: dict[str, list[str]] = {}
    calls: dict[str, list[tuple[str, int]]] = {}
    name = entry = ""
    for line in text.splitlines():
        if head := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$", line):
            name = head.group(2)
            entry = name if head.group(1) else entry
            here[name], calls[name] = [], []
        if found := re.search(COLLECTIVE, line):
            shapes = re.findall(r"\w+\[[\d,]*\]", found.group(1))
            here[name] += [f"{found.group(2)} {' '.join(shapes)}"]
        for names in re.findall(CALL, line):
            calls[name] += [(one.strip().lstrip("%"), int(" while(" in line)) for one in names.split(",")]
    depths: dict[int, Counter] = {}

    def walk(name: str, depth: int) -> None:
        if here.get(name):
            depths.setdefault(depth, Counter()).update(here[name])
        for callee, more in calls.get(name, []):
            walk(callee, depth + more)

    walk(entry, 0)
    return depths


def told(options: argparse.Namespace) -> None:
    """On four devices of one process."""
    mesh = Mesh(np.array(jax.devices()), ("x",))
    shown = Printed(
        ("X by", "<9"), ("loss", "<14"), ("solver", "<8"), ("depth", ">5d"), ("  collectives", "<1")
    )
    for by, (n, d, k), spec in (("rows", (400, 30, 3), P("x")), ("columns", (60, 800, 3), P(None, "x"))):
        numbers = np.random.default_rng(0).standard_normal((n, d))
        X, Y = jax.device_put(numbers, NamedSharding(mesh, spec)), np.eye(k)[np.argmax(numbers[:, :k], 1)]
        letters = {str(n): "n", str(d): "d", str(k): "k"}
        for name in LOSSES:
            problem = sj.Problem(getattr(sj.losses, name)(X, Y), sj.penalties.L21(0.01))
            for solver in (sj.fista, sj.admm, sj.solve) if by == "rows" else (sj.fista, sj.solve):
                text = jax.jit(solver).lower(problem).compile().as_text()
                for depth, what in sorted(collectives(text).items()):
                    words = "; ".join(f"{times} x {kind}" for kind, times in what.items())
                    words = re.sub(r"\d+(?=[,\]])", partial(lettered, letters), words)
                    shown.row(by, name, solver.__name__, depth, f"  {words}")


def lettered(letters: dict[str, str], number: re.Match) -> str:
    return letters.get(number.group(), number.group())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=160_000)
    parser.add_argument("--features", type=int, default=200)
    parser.add_argument("--outputs", type=int, default=5)
    parser.add_argument("--processes", default="1,2,4", type=lambda text: [int(x) for x in text.split(",")])
    parser.add_argument("--only", choices=("measured", "killed", "told"))
    hidden = {"help": argparse.SUPPRESS}
    for name in ("worker", "count", "number"):
        parser.add_argument(f"--{name}", type=int, **hidden)
    parser.add_argument("--folder", type=Path, **hidden)
    parser.add_argument("--loop", action="store_true", **hidden)
    options = parser.parse_args()
    if options.worker is not None:
        shape = (options.rows, options.features, options.outputs)
        worker(options.worker, options.number, options.count, shape, options.folder, options.loop)
        return
    if options.only in (None, "measured"):
        measured(options)
    if options.only in (None, "killed"):
        killed(options)
    if options.only == "told" and jax.device_count() == 4:
        told(options)
    elif options.only in (None, "told"):  # devices are counted before jax begins
        print(flush=True)
        environment = os.environ | {
            "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
            "JAX_PLATFORMS": "cpu",
        }
        subprocess.run([sys.executable, __file__, "--only", "told"], env=environment, check=True)


if __name__ == "__main__":
    main()
