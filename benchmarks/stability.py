"""Stability selection and cross-validation in one call, beside joblib and celer on the same cores.

    python benchmarks/stability.py --data DIR --out DIR [--datasets glioma,isolet] [--peer isolet=8]

Columns standardised, Y centred, float64, l2,1. One thread a process, or a call of ours (the script starts
itself anew with every library on one thread). Ours and the peer one after the other, each in
processes of its own:

**stability**: 200 subsamples of half the rows, 20 strengths from alpha_max to a tenth of it. Ours is a single
call of `sparsejax.stability_selection`, twice, the second one with another seed. The peer is
`joblib.Parallel(n_jobs=2)` over celer's `mtl_path` (tol 1e-6) on the rows of each subsample. ``--peer`` gives
it fewer subsamples, for data on which it takes long; its times are then multiplied up, and it has no folds.
**folds**: 50 strengths, down to a hundredth, on 5 folds: `sparsejax.cross_validate` beside a celer path
a fold.

Writes ``stability.md`` and a figure of the stability paths of each data set. Needs celer and joblib.
"""

import argparse
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from harness.data import folder, load_standardised
from harness.figures import panels
from harness.jobs import alone, chosen, parser
from harness.tables import table
from harness.timing import peak_mb, timed

import sparsejax as sj
from sparsejax import plots
from sparsejax.selection.stability import subsamples

jax.config.update("jax_enable_x64", True)
warnings.filterwarnings("ignore")

DATASETS = ("glioma", "isolet")
COUNT, STRENGTHS, THRESHOLD = 200, 20, 0.6
FOLDS, CANDIDATES = 5, 50
PROCESSES = 2
TOL = 1e-6
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}


def problem_of(data: Path, name: str) -> tuple[np.ndarray, np.ndarray, sj.Problem, float]:
    """The data, the problem and alpha_max."""
    X, Y = load_standardised(data, name)
    problem = sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.L21(1.0))
    return X, Y, problem, float(sj.lambda_max(problem))


def path_of(alphas: np.ndarray) -> Any:
    """The penalties of these strengths."""
    return jax.vmap(sj.penalties.L21)(jnp.asarray(alphas))


# ---------------------------------------------------------------- ours, each in a process of its own


def ours_stability(data: Path, name: str) -> dict[str, Any]:
    """A first call, which compiles, and one with another seed."""
    X, Y, problem, top = problem_of(data, name)
    alphas = top * np.geomspace(1, 0.1, STRENGTHS)
    before = peak_mb()
    call = lambda seed: sj.stability_selection(
        problem, path_of(alphas), num_subsamples=COUNT, threshold=THRESHOLD, seed=seed, tol=TOL
    )
    first, again = timed(lambda: call(1)), timed(lambda: call(0))
    stable = again.result
    return {
        "shape": (*X.shape, Y.shape[1]),
        "alphas": alphas / top,
        "first": first.seconds,
        "seconds": again.seconds,
        "cpu": again.cpu,
        "mb": (before, peak_mb()),
        "stable": jax.tree.map(np.asarray, stable),
        "q": float(jnp.mean(stable.num_selected.astype(float))),
        "bound": float(stable.bound),
        "gap": float(stable.gap.max()),
        "converged": bool(stable.converged.all()),
    }


def ours_folds(data: Path, name: str) -> dict[str, Any]:
    """Likewise, with other strengths in the second call."""
    _, _, problem, top = problem_of(data, name)
    alphas = top * np.geomspace(1, 0.01, CANDIDATES)
    call = lambda alphas: sj.cross_validate(problem, path_of(alphas), folds=FOLDS, tol=TOL)
    first, again = timed(lambda: call(1.01 * alphas)), timed(lambda: call(alphas))
    loss = np.asarray(again.result.fold_loss)
    return {
        "first": first.seconds,
        "seconds": again.seconds,
        "cpu": again.cpu,
        "mb": (0.0, peak_mb()),
        "loss": loss,
        "gap": float(again.result.gap.max()),
        "index": int(again.result.index),
    }


# ---------------------------------------------------------------- the peer


Found = tuple[np.ndarray, float, float]


def celer_path(X: np.ndarray, Y: np.ndarray, alphas: np.ndarray, rows: np.ndarray) -> Found:
    """W on these rows, (d, k, strengths), CPU seconds, and the most memory its process has had, in MB."""
    import resource  # noqa: PLC0415  (nothing of the harness, which would import JAX)

    from celer.homotopy import mtl_path  # noqa: PLC0415

    start = time.process_time()
    F, B = np.asfortranarray(X[rows]), np.asfortranarray(Y[rows])
    W = mtl_path(F, B, alphas=alphas, tol=TOL)[1].transpose(1, 0, 2)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return W, time.process_time() - start, memory


def celer_found(X: np.ndarray, Y: np.ndarray, alphas: np.ndarray, rows: np.ndarray) -> Found:
    """Which features are selected at each strength, (strengths, d)."""
    W, cpu, memory = celer_path(X, Y, alphas, rows)
    return np.any(W != 0, axis=1).T, cpu, memory


def in_parallel(
    function: Any, X: np.ndarray, Y: np.ndarray, alphas: np.ndarray, masks: Any
) -> dict[str, Any]:
    """All masks by joblib; its processes have imported everything before."""
    from joblib import Parallel, delayed  # noqa: PLC0415

    with Parallel(n_jobs=PROCESSES) as pool:
        few = np.arange(len(X)) < 10
        pool(delayed(function)(X, Y, alphas[:2], few) for _ in range(2 * PROCESSES))
        start = time.perf_counter()
        found = pool(delayed(function)(X, Y, alphas, mask) for mask in masks)
        seconds = time.perf_counter() - start
    results, cpu, mb = zip(*found, strict=True)
    return {"seconds": seconds, "cpu": sum(cpu), "mb": PROCESSES * max(mb), "results": results}


def celer_stability(data: Path, name: str, count: int) -> dict[str, Any]:
    """The first subsamples of the second call of ours."""
    X, Y, _, top = problem_of(data, name)
    masks = subsamples(COUNT, 0.5, 0, len(X))[:count]
    found = in_parallel(celer_found, X, Y, top * np.geomspace(1, 0.1, STRENGTHS), masks)
    return found | {"results": np.mean(found["results"], axis=0)}


def celer_folds(data: Path, name: str) -> dict[str, Any]:
    """The loss of the rows of each fold, as of ours."""
    X, Y, _, top = problem_of(data, name)
    out = [np.arange(len(X)) % FOLDS == fold for fold in range(FOLDS)]
    found = in_parallel(celer_path, X, Y, top * np.geomspace(1, 0.01, CANDIDATES), [~mask for mask in out])
    loss = [
        [np.sum((X[mask] @ W[..., i] - Y[mask]) ** 2) / (2 * mask.sum()) for i in range(CANDIDATES)]
        for mask, W in zip(out, found["results"], strict=True)
    ]
    return found | {"results": np.array(loss)}


# ---------------------------------------------------------------- tables and the figure


def stability(args: argparse.Namespace, name: str) -> tuple[list[Any], str]:
    """A row of the first table, and what is to be said of it."""
    data = folder(args.data)
    ours = alone(ours_stability, data, name)
    count = args.peer.get(name, COUNT)
    peer = celer_stability(data, name, count)
    factor = COUNT / count
    figure_of(args.out, name, ours)
    n, d, k = ours["shape"]
    text = (
        f"{name}: {ours['stable'].selected.sum()} of {d} features reach {THRESHOLD}, "
        f"bound {ours['bound']:.1f} "
        f"(q = {ours['q']:.0f} features on a subsample); the largest gap is {ours['gap']:.1e}, "
        f"{'all' if ours['converged'] else 'not all'} converged."
    )
    if count == COUNT:
        difference = np.abs(peer["results"] - ours["stable"].frequencies).max()
        text += f" celer's frequencies differ by at most {difference:.3f}."
    else:
        text += f" celer: {count} subsamples, times multiplied by {factor:g}."
    times = [ours["seconds"], ours["cpu"], factor * peer["seconds"], factor * peer["cpu"]]
    row = [
        name, f"{n} x {d} x {k}", f"{ours['first']:.1f}", *(f"{t:.1f}" for t in times),
        f"{times[2] / times[0]:.1f}", f"{ours['mb'][1]:.0f} ({ours['mb'][0]:.0f} before)",
        f"{peer['mb']:.0f}",
    ]  # fmt: skip
    return row, text


def folds(args: argparse.Namespace, name: str) -> tuple[list[Any], str]:
    """A row of the second."""
    data = folder(args.data)
    ours = alone(ours_folds, data, name)
    row = [name, f"{ours['first']:.1f}", f"{ours['seconds']:.2f}", f"{ours['cpu']:.2f}"]
    text = f"{name}: candidate {ours['index']} is chosen; the largest gap is {ours['gap']:.1e}."
    if name in args.peer:
        return [*row, "-", "-", "-"], f"{text} celer was not run."
    peer = celer_folds(data, name)
    index = int(peer["results"].mean(0).argmin())
    difference = np.abs(peer["results"] / ours["loss"] - 1).max()
    text += f" celer's choice: {index}; its held-out losses differ by at most {difference:.1e} of ours."
    ratio = peer["seconds"] / ours["seconds"]
    return [*row, f"{peer['seconds']:.2f}", f"{peer['cpu']:.2f}", f"{ratio:.1f}"], text


def figure_of(out: Path, name: str, ours: dict[str, Any]) -> None:
    """The frequency of every feature that is ever selected, against the strength."""
    figure, (pane,) = panels(1, 1, (6.5, 4.2))
    plots.stability(ours["stable"], ours["alphas"], threshold=THRESHOLD, ax=pane)
    pane.set_xlabel("strength / alpha_max")
    pane.set_title(f"{name}: {COUNT} subsamples of half the rows", fontsize=10)
    figure.tight_layout()
    figure.savefig(out / f"stability_{name}.png", dpi=110)


def counts(text: str) -> dict[str, int]:
    """``isolet=8,...``."""
    return {name: int(count) for name, count in (part.split("=") for part in text.split(",") if part)}


def main() -> None:
    """Write the tables."""
    found = parser(__doc__, out="stability.md and the figures")
    found.add_argument("--datasets", default=",".join(DATASETS))
    found.add_argument("--peer", type=counts, default={"isolet": 8}, help="subsamples of celer, name=count")
    args = found.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ONE_THREAD)
    args.out.mkdir(parents=True, exist_ok=True)
    names = chosen(found, args.datasets, DATASETS)
    header = ["first call s", "ours s", "CPU s", "celer s", "CPU s", "celer / ours"]
    parts = [
        "# Many paths in one call",
        f"```\npython benchmarks/stability.py --data DIR --out DIR --datasets {args.datasets}\n```",
        f"Wall and CPU seconds on {os.cpu_count()} cores, which others may have used at the same time: CPU "
        "seconds are the fairer ones. l2,1, float64, one thread a process. Written by the script.",
    ]
    for heading, run, columns in (
        (
            f"Stability selection: {COUNT} subsamples x {STRENGTHS} strengths",
            stability,
            ["data", "n x d x k", *header, "MB", f"MB, {PROCESSES} processes of celer"],
        ),
        (f"Cross-validation: {CANDIDATES} strengths x {FOLDS} folds", folds, ["data", *header]),
    ):
        rows, texts = [], []
        for name in names:
            row, text = run(args, name)
            print(heading, row, text, flush=True)
            rows.append(row)
            texts.append(text)
        parts += [f"## {heading}", table(columns, rows).rstrip(), *texts]
    parts += [f"![Stability paths of {name}](../figures/stability_{name}.png)" for name in names]
    (args.out / "stability.md").write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
