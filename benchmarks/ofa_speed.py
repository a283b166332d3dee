"""OFA-Lasso: training time for a grid of strengths against scikit-learn, and prediction.

    python benchmarks/ofa_speed.py --data DIR [--n 1000] [--outputs 16] [--repeat 3] [--descent] [--out DIR]
    python benchmarks/ofa_speed.py --data DIR --predict [--n 1000] [--lam 2.5 --beta 2.5] [--starts 1 2 5 20]

USPS digits, the 16 pixels in the middle from the other 240: n images in two folds of n/2, bandwidths computed
beforehand for every method, kernels too for scikit-learn. The grid is the paper's, 0.1 * 5^1..5^5 for lam and
for beta: 25 pairs, so 2 * 16 * 25 lassos, of n columns each. Every answer is judged by the same relative
duality gap.

* ours: `ofa_lasso.fit` for each fold and pair, all outputs in one compiled call (and the independent lassos,
  from which predictions start: twice the lassos that the others are asked for). Its kernels are in the time.
* ``lars_path``, by pair: the homotopy of scikit-learn, for each output and pair.
* ``lars_path``, by ratio: one path for each of the 9 ratios beta/lam, which passes all pairs of that ratio;
  its solutions at the pairs by interpolation, exact since paths are piecewise linear: an expert's way.
* ``Lasso``: coordinate descent, for one output only and the largest strengths first (warm start), as it is
  far slower; ``tol`` is the largest power of ten at which every gap is at most 1e-6.

Times are medians over ``--repeat`` rounds in which all methods run in turn, after a first round of ours,
which compiles and is reported apart. Processor time is given too, since a busy machine stretches the others.

``--predict``: the 16 outputs of all 2007 test images, warm, by the number of starts: seconds, the residual
``sum_j (y_j - f_j)^2`` beside that of the independent lassos, the error, and how many images the searches
ended at more than one stationary point for.
"""

import argparse
import json
import warnings
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from harness.data import Arrays, folder, load_regression_usps, mae
from harness.jobs import parser
from harness.tables import table
from harness.timing import Timing, in_turn, timed
from sklearn.linear_model import Lasso, lars_path

from sparsejax import kernels
from sparsejax.models import ofa_lasso

jax.config.update("jax_enable_x64", True)

GRID = 0.1 * 5.0 ** np.arange(1, 6)
TOL = 1e-6


class Fold(NamedTuple):
    """Rows to train on, and the lassos of their outputs: (columns, targets), both centred."""

    X: np.ndarray
    Y: np.ndarray
    bandwidth: jax.Array
    output_bandwidth: np.ndarray
    lassos: list[tuple[np.ndarray, np.ndarray]]


def fold_of(X: np.ndarray, Y: np.ndarray) -> Fold:
    """With the bandwidths that `ofa_lasso.fit` takes by default."""
    bandwidth = kernels.median_bandwidth(X)
    outputs = range(Y.shape[1])
    output_bandwidth = np.array([kernels.median_bandwidth(np.delete(Y, j, axis=1)) for j in outputs])
    K, lassos = np.asarray(kernels.gaussian(X, bandwidth=bandwidth)), []
    for j in outputs:
        G = np.asarray(kernels.gaussian(np.delete(Y, j, axis=1), bandwidth=output_bandwidth[j]))
        A = np.hstack([K, G])
        lassos.append((A - A.mean(0), Y[:, j] - Y[:, j].mean()))
    return Fold(X, Y, bandwidth, output_bandwidth, lassos)


# ---------------------------------------------------------------- methods: each returns its largest gap


def gap(A: np.ndarray, y: np.ndarray, z: np.ndarray, half: np.ndarray) -> float:
    """Relative duality gap of ``||y - Az||^2 + 2 sum half |z|``, y and A centred."""
    r = y - A @ z
    c = A.T @ r
    s = np.clip(r @ y / (r @ r), 0, 1 / np.max(abs(c) / half))
    excess = 2 * np.sum(half * abs(z) - s * c * z) + (1 - s) ** 2 * (r @ r)
    return max(excess, 0) / max(r @ r + 2 * np.sum(half * abs(z)), y @ y)


def halves(n: int, lam: float, beta: float) -> np.ndarray:
    """Half the strength of each column."""
    return np.repeat([lam / 2, beta / 2], n)


def pairs_of_ratio(exponent: int) -> list[tuple[float, float]]:
    """The pairs (lam, beta) of the grid with beta = 5^exponent lam, the largest first."""
    return [(GRID[i], GRID[i + exponent]) for i in range(4, -1, -1) if 0 <= i + exponent < 5]


def ours(folds: list[Fold]) -> float:
    """All outputs of a pair at once."""
    fitted = (
        ofa_lasso.fit(X, Y, lam, beta, bandwidth=bandwidth, output_bandwidth=output_bandwidth, tol=TOL)
        for X, Y, bandwidth, output_bandwidth, _ in folds
        for lam in GRID
        for beta in GRID
    )
    return max(float(model.solution.gap.max()) for model in fitted)


def by_pair(folds: list[Fold], outputs: int) -> float:
    """A homotopy for each pair."""
    worst = 0.0
    for fold in folds:
        for A, y in fold.lassos[:outputs]:
            n = len(y)
            for lam in GRID:
                for beta in GRID:
                    half = halves(n, lam, beta)
                    scaled = np.asfortranarray(A / half * (lam / 2))
                    z = lars_path(scaled, y, method="lasso", alpha_min=lam / (2 * n), max_iter=5000)[2][:, -1]
                    worst = max(worst, gap(A, y, z / half * (lam / 2), half))
    return worst


def by_ratio(folds: list[Fold], outputs: int) -> float:
    """A homotopy for each ratio of the strengths."""
    worst = 0.0
    for fold in folds:
        for A, y in fold.lassos[:outputs]:
            n = len(y)
            for e in range(-4, 5):
                pairs, scale = pairs_of_ratio(e), halves(n, 1.0, 5.0**e) * 2
                scaled, low = np.asfortranarray(A / scale), pairs[-1][0] / (2 * n)
                alphas, _, path = lars_path(scaled, y, method="lasso", alpha_min=low, max_iter=5000)
                for lam, beta in pairs:
                    z = on_path(alphas, path, lam / (2 * n))
                    worst = max(worst, gap(A, y, z / scale, halves(n, lam, beta)))
    return worst


def on_path(alphas: np.ndarray, path: np.ndarray, alpha: float) -> np.ndarray:
    """A piecewise linear path at a strength between its knots."""
    at = np.clip(alpha, alphas[-1], alphas[0])
    k = max(1, int(np.searchsorted(-alphas, -at))) if len(alphas) > 1 else 0
    if not k:
        return path[:, 0]
    t = (alphas[k - 1] - at) / (alphas[k - 1] - alphas[k])
    return (1 - t) * path[:, k - 1] + t * path[:, k]


def descent(fold: Fold, tol: float) -> float:
    """Coordinate descent, one output."""
    worst, (A, y) = 0.0, fold.lassos[0]
    n = len(y)
    for e in range(-4, 5):
        scale = halves(n, 1.0, 5.0**e) * 2
        model = Lasso(fit_intercept=False, tol=tol, max_iter=10**5, warm_start=True)
        scaled = np.asfortranarray(A / scale)
        for lam, beta in pairs_of_ratio(e):
            model.set_params(alpha=lam / (2 * n))
            z = model.fit(scaled, y).coef_ / scale
            worst = max(worst, gap(A, y, z, halves(n, lam, beta)))
    return worst


# ---------------------------------------------------------------- the two tables


def train(args: argparse.Namespace, X: np.ndarray, Y: np.ndarray) -> None:
    """Training times."""
    folds, k = [fold_of(X[::2], Y[::2]), fold_of(X[1::2], Y[1::2])], Y.shape[1]
    first = timed(partial(ours, folds)).seconds
    calls = {
        "ours": partial(ours, folds),
        "lars_path, by ratio": partial(by_ratio, folds, args.outputs),
        "lars_path, by pair": partial(by_pair, folds, args.outputs),
    }
    with warnings.catch_warnings(action="ignore"):
        found = in_turn(calls, args.repeat, warm_up=False)
        methods = {name: spread(t, k / args.outputs if name != "ours" else 1) for name, t in found.items()}
        for tol in 10.0 ** -np.arange(4, 13) if args.descent else ():
            found = timed(partial(descent, folds[0], tol))
            if found.result <= TOL:
                break
        if args.descent:
            methods[f"Lasso, tol {tol:g}"] = spread(found, 2 * k)
    print(f"n = {args.n}, {k} outputs, 25 pairs, 2 folds; first call {first:.1f} s")
    rows = (
        (name, f"{t.seconds:.2f}", f"{t.cpu:.2f}", f"{t.over(methods['ours']):.1f}", f"{t.result:.0e}")
        for name, t in methods.items()
    )
    print(table(("method", "wall s", "cpu s", "wall / ours", "worst gap"), rows))
    if args.out:
        kept = {name: {"wall": t.seconds, "cpu": t.cpu, "gap": t.result} for name, t in methods.items()}
        result = {"n": args.n, "timed_outputs": args.outputs, "compile": first, "methods": kept}
        (args.out / "ofa_speed.json").write_text(json.dumps(result, indent=1))


def spread(timing: Timing, times: float) -> Timing:
    """What was timed on some of the lassos, for all."""
    return timing._replace(seconds=timing.seconds * times, cpu=timing.cpu * times)


def predict(args: argparse.Namespace, X: np.ndarray, Y: np.ndarray, test: Arrays) -> None:
    """Times and errors of predictions."""
    X_test, Y_test = test
    model = ofa_lasso.fit(X, Y, args.lam, args.beta)
    u, v = (float((weights != 0).sum(1).mean()) for weights in (model.u, model.v))
    print(
        f"n = {args.n}, lam = {args.lam:g}, beta = {args.beta:g}: gap "
        f"{float(model.solution.gap.max()):.0e}, nonzeros of an output: u {u:.0f}, v {v:.0f}"
    )
    residuals = ("median residual", "mean residual", "of the start")
    header = ("starts", "s", *residuals, "MAE", "several", "none met tol")
    rows = []
    for starts in args.starts:
        call = partial(model.predict_with_info, X_test, num_starts=starts)
        found = in_turn({"predict": call}, args.repeat)["predict"]
        info = found.result
        residual, count = np.asarray(info.residual), np.asarray(info.num_stationary)
        rows.append((
            starts, f"{found.seconds:.2f}", f"{np.median(residual):.2e}", f"{residual.mean():.2e}",
            f"{float(info.start_residual.mean()):.2e}", f"{mae(Y_test, info.y):.4f}", (count > 1).sum(),
            (count == 0).sum(),
        ))  # fmt: skip
    print(table(header, rows))
    print(f"independent lassos: MAE {mae(Y_test, info.start):.4f}")


def main() -> None:
    """Training or prediction."""
    options = parser(__doc__)
    options.add_argument("--out", type=Path, help="folder for the times as JSON")
    options.add_argument("--n", type=int, default=1000)
    options.add_argument("--outputs", type=int, default=16, help="outputs that scikit-learn is timed on")
    options.add_argument("--repeat", type=int, default=3)
    options.add_argument("--descent", action="store_true", help="time Lasso too: minutes")
    options.add_argument("--predict", action="store_true")
    options.add_argument("--lam", type=float, default=2.5)
    options.add_argument("--beta", type=float, default=2.5)
    options.add_argument("--starts", type=int, nargs="+", default=[1, 2, 5, 20])
    args = options.parse_args()
    (X, Y), test = load_regression_usps(folder(args.data))
    rows = np.random.default_rng(0).choice(len(X), args.n, replace=False)
    if args.predict:
        predict(args, X[rows], Y[rows], test)
    else:
        train(args, X[rows], Y[rows])


if __name__ == "__main__":
    main()
