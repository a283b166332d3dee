"""Long calls that are killed at random moments, again and again, until they end.

    python tests/soak/kills.py --data DIR [--kills 50] [--seed 0]

Glioma, l2,1, 50 strengths, by `path`, by `cross_validate` on 3 folds and by `stability_selection` on 4
subsamples in turn. Each call has a checkpoint, a record after every solve, and a process of its own, which
gets SIGKILL at a moment drawn from 0 to as long as the call takes when it is left alone, and is started
again. After every kill the records must be whole and none of the solves lost; the answer of the process that
ends must have the bits of one that was left alone. Then every record is given 200 random flips of one bit,
each of which must be refused, or change nothing that is read (a bit of zip's own fields may mean nothing).

Prints the kills, how many came with some of the solves done, and the flips. It ends with an error where
something differs.
"""

import hashlib
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # its tables and readers of data

from harness.data import folder, load_standardised
from harness.jobs import parser
from harness.tables import table

import sparsejax as sj
from sparsejax._core import progress
from sparsejax._core.checkpoints import Checkpoint

jax.config.update("jax_enable_x64", True)
warnings.filterwarnings("ignore")

CALLS = {
    "path": {},
    "cross_validate": {"folds": 3},
    "stability_selection": {"num_subsamples": 4},
}
FLIPS = 200


def child(name: str, data: str, directory: str) -> None:
    """The call, and a digest of its answer."""
    progress.CHUNK_SECONDS, progress.MAX_SAVING_SHARE = 0.0, np.inf  # a record a solve
    X, Y = load_standardised(Path(data), "glioma")
    problem = sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.L21(1.0))
    top = float(sj.lambda_max(problem))
    strengths = jax.vmap(sj.penalties.L21)(np.geomspace(top, top / 100, 50))
    print("begin", flush=True)
    found = getattr(sj, name)(problem, strengths, checkpoint=directory, mode="warm", **CALLS[name])
    bits = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(found))
    print(hashlib.sha256(bits).hexdigest(), flush=True)


def started(name: str, data: Path, directory: Path, cache: Path) -> subprocess.Popen:
    """A process that has begun with the call."""
    settings = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    command = [sys.executable, str(Path(__file__).resolve()), "--child", name, str(data), str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | settings)
    assert process.stdout is not None and process.stdout.readline() == "begin\n"
    return process


def answer_of(process: subprocess.Popen) -> str:
    text, _ = process.communicate()
    assert process.returncode == 0
    return str(text.strip())


def solves_in(directory: Path) -> list[int]:
    """Of each thread, by its record, which is checked."""
    done = []
    for record in sorted(directory.glob("part-*.npz")):
        with np.load(record) as arrays:
            done.append(int(arrays["leaf-0"]))
            for name in arrays.files:
                assert arrays[name] is not None
    return done


def killed(name: str, data: Path, kills: int, draw: random.Random, work: Path) -> tuple:
    """Kill it so many times, till it ends more than once if need be; a row of the table."""
    cache, whole = work / "cache", work / f"{name}-whole"
    answer_of(started(name, data, work / f"{name}-first", cache))  # compiled, and kept by JAX
    begin = time.perf_counter()
    process = started(name, data, whole, cache)
    since = time.perf_counter()
    expected = answer_of(process)
    seconds, total = time.perf_counter() - since, sum(solves_in(whole))
    count, ends, midway, before = 0, 0, 0, []
    directory = work / f"{name}-0"
    while count < kills or before:
        process = started(name, data, directory, cache)
        if count < kills:
            time.sleep(draw.uniform(0, seconds))
            if process.poll() is None:
                process.kill()
                process.communicate()
                count += 1
                done = solves_in(directory)
                if len(done) < len(before) or any(a < b for a, b in zip(done, before, strict=False)):
                    raise SystemExit(f"{name}: {before} solves were done, {done} are left")
                midway += 0 < sum(done) < total
                before = done
                continue
        if answer_of(process) != expected:
            raise SystemExit(f"{name}: another answer after {count} kills")
        ends, before, directory = ends + 1, [], work / f"{name}-{ends + 1}"
    print(f"{name}: {time.perf_counter() - begin:.0f} s", file=sys.stderr)
    return name, total, f"{seconds:.1f}", count, midway, ends, *flipped(whole, draw)


def flipped(directory: Path, draw: random.Random) -> tuple[int, int]:
    """Flips of one bit that were refused, and that changed nothing."""
    refused = harmless = 0
    for record in sorted(directory.glob("*.npz")):
        whole = record.read_bytes()
        with np.load(record) as arrays:
            kept = {name: arrays[name] for name in arrays.files}
        reader = object.__new__(Checkpoint)
        reader.directory, reader._name = directory, "flipped"
        for _ in range(FLIPS):
            place = draw.randrange(8 * len(whole))
            damaged = bytearray(whole)
            damaged[place // 8] ^= 1 << place % 8
            record.write_bytes(damaged)
            try:
                found = reader._read(record.stem)
            except ValueError:
                refused += 1
                continue
            assert found is not None
            same = found.keys() == kept.keys() and all(
                np.array_equal(found[name], kept[name], equal_nan=kept[name].dtype.kind == "f")
                for name in kept
            )
            if not same:
                raise SystemExit(f"{record}: bit {place} changes what is read")
            harmless += 1
        record.write_bytes(whole)
    return refused, harmless


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--kills", type=int, default=50)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    data, draw = folder(given.data), random.Random(given.seed)
    with tempfile.TemporaryDirectory() as work:
        rows = [killed(name, data, given.kills, draw, Path(work)) for name in CALLS]
    header = ("call", "solves", "s", "kills", "with some solves done", "ended", "flips refused", "harmless")
    print(table(header, rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()
