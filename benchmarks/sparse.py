"""Sparse X: seconds to a certified gap beside scikit-learn and celer, the cost of products, and memory.

    python benchmarks/sparse.py --data DIR [--only text,few_rows,newsgroups,memory,products] [--limit 120]

One thread each, all taken in turn in one run; a peer that takes longer than the limit is stopped.

**text**: 20 000 x 200 000 with 5e-4 filled, logistic l1 with an intercept at lambda_max/5, gap 1e-4; twice,
the first time with compilation. liblinear and saga are scikit-learn's, at tolerances whose objectives are
shown; celer's loss has no intercept. **few_rows**: basehock (1993 x 4862) and relathe
(1427 x 4322), logistic l1 without intercept, gap 1e-6, warm; a peer at the loosest of its tolerances at which
its objective is within 1e-6 of the optimum, relative to the objective at 0. **newsgroups**:
`newsgroups20_full` (18 221 x 36 568, 20 classes), least squares with l2,1 at lambda_max/5 and /20.
**memory**: peak of a process that loads X by
`scipy.sparse.load_npz` and solves once, above its import and a tiny solve, at fixed n and d and 1e6, 2e6, 4e6
stored values. **products**: milliseconds of XW and X'U.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from harness.data import folder, load_sparse, one_hot
from harness.jobs import alone, chosen, parser
from harness.timing import peak_mb, timed
from wide import ONE_THREAD

import sparsejax as sj

jax.config.update("jax_enable_x64", True)
warnings.filterwarnings("ignore")
PARTS = ("text", "few_rows", "newsgroups", "memory", "products")
N, D = 20_000, 200_000


def generated(stored: int = 2_000_000) -> tuple[Any, np.ndarray]:
    """Positive values at random places, labels by 400 of the columns and noise."""
    rng = np.random.default_rng(0)
    places = rng.integers(0, N, stored), rng.integers(0, D, stored)
    X = scipy.sparse.csr_matrix((np.abs(rng.standard_normal(stored)), places), shape=(N, D))
    w = np.zeros(D)
    w[rng.integers(0, D, 400)] = 5 * rng.standard_normal(400)
    return X, 1.0 * (X @ w + 0.5 * rng.standard_normal(N) > 0)


def strength_of(X: Any, y: np.ndarray) -> float:
    return float(np.abs(X.T @ (y - y.mean())).max() / len(y) / 5)


def objective(X: Any, y: np.ndarray, alpha: float, w: np.ndarray, b: float) -> float:
    H = X @ w + b
    return float(np.mean(np.logaddexp(0, H) - y * H) + alpha * np.abs(w).sum())


def peer(name: str, tol: float, pipe: Any) -> None:
    """One solve of the text problem, in a process that can be stopped."""
    X, y = generated()
    alpha = strength_of(X, y)
    C = 1 / (len(y) * alpha)
    if name == "celer":
        from celer import LogisticRegression  # noqa: PLC0415

        X = X.tocsc()
        model: Any = LogisticRegression(C=C, tol=tol, fit_intercept=False)
        labels = 2 * y - 1
    else:
        from sklearn.linear_model import LogisticRegression as Model  # noqa: PLC0415

        more = {"intercept_scaling": 100} if name == "liblinear" else {"max_iter": 1000}
        model, labels = Model(penalty="l1", solver=name, C=C, tol=tol, **more), y
    start = time.process_time()
    model.fit(X, labels)
    seconds = time.process_time() - start
    w, b = np.ravel(model.coef_), float(np.ravel(model.intercept_)[0]) if name != "celer" else 0.0
    pipe.send((seconds, objective(X, y, alpha, w, b), int((w != 0).sum())))


def text(args: argparse.Namespace) -> None:
    """Ours, then every peer."""
    X, y = generated()
    alpha = strength_of(X, y)
    line = "{:<22}{:>9.2f}{:>14.8f}{:>9}{:>10}"
    print(f"{'text':<22}{'CPU s':>9}{'objective':>14}{'nonzero':>9}{'gap':>10}")

    def ours() -> Any:
        loss = sj.losses.LogisticLoss(X, y, intercept=True)
        return sj.solve(sj.Problem(loss, sj.penalties.L1(alpha)), tol=1e-4)

    for name in ("ours, first call", "ours"):
        once = timed(ours)
        found = once.result
        count = int((found.params != 0).sum())
        print(
            line.format(name, once.cpu, float(found.objective), count, f"{float(found.gap):.0e}"), flush=True
        )
    for name, tol in (("liblinear", 1e-2), ("liblinear", 1e-3), ("saga", 1e-3), ("celer", 1e-4)):
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=peer, args=(name, tol, there))
        process.start()
        if here.poll(args.limit):
            seconds, value, count = here.recv()
            print(line.format(f"{name} {tol:.0e}", seconds, value, count, "-"), flush=True)
        else:
            print(f"{name} {tol:.0e}: not within {args.limit:.0f} s", flush=True)
        process.kill()
        process.join()


def few_rows(args: argparse.Namespace) -> None:
    """Two sets of texts, at three strengths."""
    from celer import LogisticRegression  # noqa: PLC0415
    from sklearn.linear_model import LogisticRegression as Model  # noqa: PLC0415

    print(f"{'few rows':<22}{'nonzero':>9}{'CPU s':>9}{'celer':>9}{'liblinear':>11}")
    for name in ("basehock", "relathe"):
        X, y = load_sparse(folder(args.data), name)
        X, y = scipy.sparse.csc_matrix(X, dtype=float), 1.0 * (y == y.max())
        loss = sj.losses.LogisticLoss(X, y)
        top = float(sj.lambda_max(sj.Problem(loss, sj.penalties.L1(1.0))))
        for share in (0.5, 0.1, 0.03):
            problem, C = sj.Problem(loss, sj.penalties.L1(share * top)), 1 / (len(y) * share * top)
            sj.solve(problem, tol=1e-6)
            once = min(
                (timed(lambda problem=problem: sj.solve(problem, tol=1e-6)) for _ in range(3)), key=_cpu
            )
            best = float(sj.solve(problem, tol=1e-10).objective)
            found = once.result
            line = f"{f'{name} x {share}':<22}{int((found.params != 0).sum()):>9}{once.cpu:>9.3f}"
            assert bool(found.converged)
            for make in (
                lambda tol, C=C: LogisticRegression(C=C, tol=tol, fit_intercept=False, max_iter=200),
                lambda tol, C=C: Model(penalty="l1", solver="liblinear", C=C, tol=tol, fit_intercept=False),
            ):
                line += f"{_peer_seconds(make, X, y, share * top, best):>10}"
            print(line, flush=True)


def _peer_seconds(make: Any, X: Any, y: np.ndarray, alpha: float, best: float) -> str:
    """CPU seconds at the loosest tolerance that suffices; "-" if none does."""
    for tol in 10.0 ** -np.arange(1, 9):
        model = make(tol)
        once = min((timed(lambda model=model: model.fit(X, 2 * y - 1)) for _ in range(3)), key=_cpu)
        if objective(X, y, alpha, np.ravel(once.result.coef_), 0.0) <= best + 1e-6 * np.log(2):
            return f"{once.cpu:.3f}"
    return "-"


def _cpu(once: Any) -> float:
    return float(once.cpu)


def newsgroups(args: argparse.Namespace) -> None:
    """Least squares of all classes."""
    X, y = load_sparse(folder(args.data), "newsgroups20_full")
    loss = sj.losses.SquaredLoss(X, one_hot(y), intercept=True)
    top = sj.lambda_max(sj.Problem(loss, sj.penalties.L21(1.0)))
    print(f"{'newsgroups':<22}{'first s':>9}{'CPU s':>9}{'gap':>10}{'rows':>7}{'rounds':>8}")
    for share in (5, 20):
        problem = sj.Problem(loss, sj.penalties.L21(top / share))
        first, once = (timed(lambda problem=problem: sj.solve(problem, tol=1e-4)) for _ in range(2))
        found = once.result
        rows, rounds = int(jnp.any(found.params != 0, axis=1).sum()), int(found.num_iters)
        gap = float(found.gap)
        print(
            f"{f'max/{share}':<22}{first.cpu:9.2f}{once.cpu:9.2f}{gap:10.0e}{rows:7d}{rounds:8d}", flush=True
        )


def peak(path: Path) -> float:
    """MB over import and a tiny solve, of one solve."""
    tiny = sj.losses.LogisticLoss(np.eye(3), np.array([0.0, 1, 1]))
    sj.solve(sj.Problem(tiny, sj.penalties.L1(0.1)))
    base = peak_mb()
    X, y = scipy.sparse.load_npz(path / "X.npz"), np.load(path / "y.npy")
    loss = sj.losses.LogisticLoss(X, y, intercept=True)
    found = sj.solve(sj.Problem(loss, sj.penalties.L1(strength_of(X, y))), tol=1e-4)
    assert bool(found.converged)
    return peak_mb() - base


def memory(_: argparse.Namespace) -> None:
    """By the number of stored values."""
    print(f"{'stored values':<22}{'peak MB':>9}")
    peaks = {}
    for stored in (1_000_000, 2_000_000, 4_000_000):
        with tempfile.TemporaryDirectory() as name:
            X, y = generated(stored)
            scipy.sparse.save_npz(Path(name) / "X.npz", X, compressed=False)
            np.save(Path(name) / "y.npy", y)
            peaks[X.nnz] = alone(peak, Path(name))
        print(f"{X.nnz:<22}{peaks[X.nnz]:9.0f}", flush=True)
    slope = np.polyfit(list(peaks), list(peaks.values()), 1)[0]
    print(f"{slope * 2**20:.1f} bytes a stored value, the matrix of scipy included")


def products(args: argparse.Namespace) -> None:
    """Of one column and of twenty, beside scipy's."""
    print(f"{'products, ms':<22}{'XW':>8}{'XU':>8}{'scipy':>8}{'scipy':>8}")
    news = load_sparse(folder(args.data), "newsgroups20_full")[0].astype(float)
    for name, matrix, k in (("text, 1 column", generated()[0], 1), ("newsgroups, 20", news, 20)):
        X = sj.losses.SquaredLoss(matrix, np.zeros(matrix.shape[0])).X
        rng = np.random.default_rng(0)
        W, U = (rng.standard_normal((size, k)) for size in matrix.shape[::-1])
        by_row, by_column = matrix.tocsr(), matrix.T.tocsr()
        calls = (
            jax.jit(lambda X, W, U: X @ W),
            jax.jit(lambda X, W, U: X.T @ U),
            lambda X, W, U, by_row=by_row: by_row @ W,
            lambda X, W, U, by_column=by_column: by_column @ U,
        )
        print(f"{name:<22}" + "".join(f"{_median(call, X, W, U):8.1f}" for call in calls), flush=True)


def _median(call: Any, *args: Any) -> float:
    jax.block_until_ready(call(*args))
    return 1e3 * float(np.median([timed(lambda: call(*args)).cpu for _ in range(5)]))


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--only", default=",".join(PARTS), help="parts, between commas")
    options.add_argument("--limit", type=float, default=120.0, help="seconds for a peer")
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ONE_THREAD)
    arguments = options.parse_args()
    for part in chosen(options, arguments.only, PARTS):
        {
            "text": text,
            "few_rows": few_rows,
            "newsgroups": newsgroups,
            "memory": memory,
            "products": products,
        }[part](arguments)
