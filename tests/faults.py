"""Threads, repeated calls and thousands of solves: the same bits, and no memory that is not given back.

    python tests/faults.py [--solves 10000] [--shapes 500]

**threads**: eight of them solve 40 problems each, by five solvers; every answer must have the bits of the
same call alone. **bits**: calls repeated, in this process and in another one, must agree to the last bit;
an eager call and one within a user's jit, which are two programs, to 1e-10 of the largest weight at the
tolerance 1e-12. **memory**: thousands of solves of changing strengths must add nothing; each of hundreds of
shapes adds what JAX keeps of its program.

Prints the figures; the exit status is 1 where bits differ or memory grows.
"""

import argparse
import gc
import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    jax.config.update("jax_enable_x64", True)

import sparsejax as sj

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


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--solves", type=int, default=10_000)
    options.add_argument("--shapes", type=int, default=500)
    options.add_argument("--digest", action="store_true")
    given = options.parse_args()
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
    sys.exit(bool(different) or not (again and elsewhere) or apart > 1e-10 or one > 20)


if __name__ == "__main__":
    main()
