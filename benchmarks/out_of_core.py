"""Least squares on a million rows that are read from disk in chunks: seconds, gap, peak memory.

    python benchmarks/out_of_core.py --out DIR [--rows 1000000]

X (rows x 160, float64, 1.28 GB) and five outputs are written below DIR in chunks, and removed at the end.
A process of its own then reads them in chunks, so that its peak memory has nothing of the writing: the sums
of one pass (`SquaredLoss.from_batches`, five folds, with an intercept), l2,1 and group lasso (40 groups of 4
features) at lambda_max/50 to a gap of 1e-6, and a path of 50 strengths over the five folds from that pass.
Then logistic l2,1 of the signs of the outputs at lambda_max/50 by `losses.from_batches`, which reads again.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from harness.jobs import fresh_processes, parser
from harness.timing import peak_mb, timed

import sparsejax as sj

jax.config.update("jax_enable_x64", True)
D, K, CHUNK, FOLDS, STRENGTHS = 160, 5, 50_000, 5, 50


def write(path: Path, n: int) -> None:
    """Correlated columns of unequal size; outputs of 30 of them, in groups of three among four."""
    rng = np.random.default_rng(0)
    mix = rng.standard_normal((D, D)) * 0.1 + np.eye(D)
    W = np.zeros((D, K))
    W[:40][np.arange(40) % 4 < 3] = rng.standard_normal((30, K))
    with open(path / "X", "wb") as x, open(path / "Y", "wb") as y:
        for start in range(0, n, CHUNK):
            X = rng.standard_normal((min(CHUNK, n - start), D)) @ mix + 1
            X.tofile(x)
            (X @ W + 5 * rng.standard_normal((len(X), K))).tofile(y)


def chunks(path: Path, n: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Slices of two maps, opened anew for each: what a map has read stays in memory until it is closed."""
    for start in range(0, n, CHUNK):
        rows = slice(start, start + CHUNK)
        X = np.memmap(path / "X", np.float64, "r", shape=(n, D))
        Y = np.memmap(path / "Y", np.float64, "r", shape=(n, K))
        yield X[rows], Y[rows]
        del X, Y


def measure(path: Path, n: int) -> None:
    """Everything after the writing."""
    tiny = sj.losses.SquaredLoss(np.eye(4, 3), np.eye(4, 2))
    sj.solve(sj.Problem(tiny, sj.penalties.L21(0.1)))
    base = peak_mb()
    print(f"{'':<36}{'CPU s':>8}{'wall s':>8}{'gap':>9}{'rows of W':>11}{'peak MB':>9}")

    def shown(name: str, call: Any) -> Any:
        once = timed(call)
        found = once.result
        text = ""
        if isinstance(found, sj.Solution):
            assert bool(found.converged.all())
            text = f"{float(found.gap):9.0e}{int(jnp.any(found.params != 0, axis=1).sum()):11d}"
        print(f"{name:<36}{once.cpu:8.2f}{once.seconds:8.2f}{text or '-':>20}{peak_mb():9.0f}", flush=True)
        return found

    make = lambda: sj.losses.SquaredLoss.from_batches(chunks(path, n), folds=FOLDS, intercept=True)
    print(f"{'import and a tiny solve':<36}{'':36}{base:9.0f}")
    loss = shown("one pass", make)
    groups = sj.groups.from_labels(np.arange(D) // 4)
    for name, make_penalty in (
        ("l2,1", sj.penalties.L21),
        ("group lasso", lambda alpha: sj.penalties.GroupLasso(alpha, groups)),
    ):
        top = sj.lambda_max(sj.Problem(loss, make_penalty(1.0)))
        problem = sj.Problem(loss, make_penalty(top / 50))
        shown(f"{name}, first call", lambda problem=problem: sj.solve(problem))
        shown(f"{name}, second", lambda problem=problem: sj.solve(problem))
        grid = jax.vmap(make_penalty)(top * jnp.geomspace(1, 1 / 50, STRENGTHS))
        call = lambda problem=problem, grid=grid: sj.cross_validate(problem, grid, folds=FOLDS)
        found = shown(f"{name}, path of 50, five folds", call)
        print(f"    largest gap {float(found.gap.max()):.0e}, best {int(found.index)}")
    del loss
    passes = []

    def read() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        passes.append(1)
        return ((X, Y > Y0) for X, Y in chunks(path, n))

    Y0 = np.fromfile(path / "Y", np.float64, 1000 * K).reshape(-1, K).mean(0)
    logistic = shown(
        "logistic: two passes",
        lambda: sj.losses.from_batches(sj.losses.LogisticLoss, read, intercept=True),
    )
    top = sj.lambda_max(sj.Problem(logistic, sj.penalties.L21(1.0)))
    passes.clear()
    problem = sj.Problem(logistic, sj.penalties.L21(top / 50))
    shown("logistic l2,1, first call", lambda: sj.solve(problem))
    print(f"    {len(passes)} passes")


def main(args: argparse.Namespace) -> None:
    """Write, measure in a process of its own, remove."""
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.out) as folder, fresh_processes(1) as pool:
        write(Path(folder), args.rows)
        pool.submit(measure, Path(folder), args.rows).result()


if __name__ == "__main__":
    options = parser(__doc__, data=False, out="the data, which are removed at the end")
    options.add_argument("--rows", type=int, default=1_000_000)
    main(options.parse_args())
