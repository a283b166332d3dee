"""OFA-Lasso: training time for a grid of strengths against scikit-learn, and prediction.

``python benchmarks/ofa_speed.py --data DIR [--n 1000] [--outputs 16] [--repeat 3] [--descent] [--out DIR]``
``python benchmarks/ofa_speed.py --data DIR --predict [--n 1000] [--lam 2.5 --beta 2.5] [--starts 1 2 5 20]``

USPS digits, the 16 pixels in the middle from the other 240: n images in two folds of n/2, kernels of each
fold computed beforehand for every method. The grid is the paper's, 0.1 * 5^1..5^5 for lam and for beta: 25
pairs, so 2 * 16 * 25 lassos, of n columns each. Every answer is judged by the same relative duality gap.

* ours: for each fold one compiled call for all outputs and all pairs (and the independent lassos, from which
  predictions start: 5 more for each output, which the others are not asked for). Its kernels are in the time.
* ``lars_path``, by pair: the homotopy of scikit-learn, for each output and pair.
* ``lars_path``, by ratio: one path for each of the 9 ratios beta/lam, which passes all pairs of that ratio;
  its solutions at the pairs by interpolation, exact since paths are piecewise linear: an expert's way.
* ``Lasso``: coordinate descent, for one output only and the largest strengths first (warm start), as it is
  far slower; ``tol`` is the largest power of ten at which every gap is at most 1e-6.

Times are medians over ``--repeat`` rounds in which all methods run in turn, after a first call of ours, which
compiles and is reported apart. Processor time is given too, since a busy machine stretches the others.

``--predict``: the 16 outputs of all 2007 test images, warm, by the number of starts: seconds, the residual
``sum_j (y_j - f_j)^2`` beside that of the independent lassos, the error, and how many images the searches
ended at more than one stationary point for.
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import numpy as np
from _data import folder, load_regression_usps, mae
from sklearn.linear_model import Lasso, lars_path

from sparsejax.models import ofa_lasso
from sparsejax.models.ofa_lasso._cross_validation import train_grid
from sparsejax.models.ofa_lasso._data import check, inputs, kernel_of

GRID = 0.1 * 5.0 ** np.arange(1, 6)


def gap(A, y, z, half):
    """Relative duality gap of ``||y - Az||^2 + 2 sum half |z|``, y and A centred."""
    r = y - A @ z
    c = A.T @ r
    s = np.clip(r @ y / (r @ r), 0, 1 / np.max(abs(c) / half))
    excess = 2 * np.sum(half * abs(z) - s * c * z) + (1 - s) ** 2 * (r @ r)
    return max(excess, 0) / max(r @ r + 2 * np.sum(half * abs(z)), y @ y)


def half(n, lam, beta):
    return np.repeat([lam / 2, beta / 2], n)


def timed(call):
    wall, processor = time.perf_counter(), time.process_time()
    result = call()
    return result, time.perf_counter() - wall, time.process_time() - processor


def ours(folds, tol=1e-6):
    strengths = jnp.asarray(GRID)
    return [
        jax.block_until_ready(train_grid(data, strengths, strengths, jnp.asarray(tol), jnp.int32(100)))
        for data, _ in folds
    ]


def by_pair(folds, outputs):
    worst = 0.0
    for _, problems in folds:
        for A, y in problems[:outputs]:
            n = len(y)
            for lam in GRID:
                for beta in GRID:
                    scaled = np.asfortranarray(A / half(n, lam, beta) * (lam / 2))
                    z = lars_path(scaled, y, method="lasso", alpha_min=lam / (2 * n), max_iter=5000)[2][:, -1]
                    worst = max(worst, gap(A, y, z / half(n, lam, beta) * (lam / 2), half(n, lam, beta)))
    return worst


def by_ratio(folds, outputs):
    worst = 0.0
    for _, problems in folds:
        for A, y in problems[:outputs]:
            n = len(y)
            for e in range(-4, 5):
                pairs = [(GRID[i], GRID[i + e]) for i in range(5) if 0 <= i + e < 5]
                scale = half(n, 1.0, 5.0**e) * 2
                low = min(lam for lam, _ in pairs)
                alphas, _, path = lars_path(
                    np.asfortranarray(A / scale), y, method="lasso", alpha_min=low / (2 * n), max_iter=5000
                )
                for lam, beta in pairs:
                    at = np.clip(lam / (2 * n), alphas[-1], alphas[0])
                    k = max(1, int(np.searchsorted(-alphas, -at))) if len(alphas) > 1 else 0
                    t = (alphas[k - 1] - at) / (alphas[k - 1] - alphas[k]) if k else 0.0
                    z = (1 - t) * path[:, k - 1] + t * path[:, k] if k else path[:, 0]
                    worst = max(worst, gap(A, y, z / scale, half(n, lam, beta)))
    return worst


def descent(folds, tol):
    """One output of one fold."""
    worst, (A, y) = 0.0, folds[0][1][0]
    n = len(y)
    for e in range(-4, 5):
        scale = half(n, 1.0, 5.0**e) * 2
        model = Lasso(fit_intercept=False, tol=tol, max_iter=10**5, warm_start=True)
        scaled = np.asfortranarray(A / scale)
        for i in range(4, -1, -1):
            if 0 <= i + e < 5:
                model.set_params(alpha=GRID[i] / (2 * n))
                z = model.fit(scaled, y).coef_ / scale
                worst = max(worst, gap(A, y, z, half(n, GRID[i], GRID[i + e])))
    return worst


def predict(arguments):
    (X, Y), (X_test, Y_test) = load_regression_usps(folder(arguments.data))
    rows = np.random.default_rng(0).choice(len(X), arguments.n, replace=False)
    model = ofa_lasso.fit(X[rows], Y[rows], arguments.lam, arguments.beta)
    u, v = (float((weights != 0).sum(1).mean()) for weights in (model.u, model.v))
    print(
        f"n = {arguments.n}, lam = {arguments.lam:g}, beta = {arguments.beta:g}: gap "
        f"{float(model.solution.gap.max()):.0e}, nonzeros of an output: u {u:.0f}, v {v:.0f}"
    )
    head = (
        "starts",
        "s",
        "median residual",
        "mean residual",
        "of the start",
        "MAE",
        "several",
        "none met tol",
    )
    print("| " + " | ".join(head) + " |\n" + "| --- " * len(head) + "|")
    for starts in arguments.starts:
        run = lambda starts=starts: jax.block_until_ready(model.predict_with_info(X_test, num_starts=starts))
        run()
        clocks = []
        for _ in range(arguments.repeat):
            info, wall, _ = timed(run)
            clocks.append(wall)
        residual, count = np.asarray(info.residual), np.asarray(info.num_stationary)
        print(
            f"| {starts} | {np.median(clocks):.2f} | {np.median(residual):.2e} | {residual.mean():.2e} | "
            f"{float(info.start_residual.mean()):.2e} | {mae(Y_test, info.y):.4f} | {(count > 1).sum()} | "
            f"{(count == 0).sum()} |",
            flush=True,
        )
    print(f"independent lassos: MAE {mae(Y_test, info.start):.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data")
    parser.add_argument("--out")
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--outputs", type=int, default=16, help="outputs that scikit-learn is timed on")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--descent", action="store_true", help="time Lasso too: minutes")
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--lam", type=float, default=2.5)
    parser.add_argument("--beta", type=float, default=2.5)
    parser.add_argument("--starts", type=int, nargs="+", default=[1, 2, 5, 20])
    arguments = parser.parse_args()
    if arguments.predict:
        return predict(arguments)
    (X, Y), _ = load_regression_usps(folder(arguments.data))
    rows = np.random.default_rng(0).choice(len(X), arguments.n, replace=False)
    folds = []
    for part in (rows[::2], rows[1::2]):
        data = check(X[part], Y[part], "gaussian", "kernel", None, None, 3)
        K = np.asarray(inputs(data, data.X))
        problems = []
        for j in range(Y.shape[1]):
            others = data.Y.at[:, j].set(0)
            G = np.asarray(kernel_of("gaussian", 3, data.output_bandwidth[j], others, others))
            A = np.hstack([K, G])
            problems.append((A - A.mean(0), np.asarray(data.Y[:, j] - data.Y[:, j].mean())))
        folds.append((data, problems))

    share = arguments.outputs / Y.shape[1]
    _, compile_time, _ = timed(lambda: ours(folds))
    rows = {"ours": [], "lars_path, by ratio": [], "lars_path, by pair": []}
    for _ in range(arguments.repeat):
        trained, *clock = timed(lambda: ours(folds))
        rows["ours"].append(clock)
        worst = max(float(fitted.lasso.gap.max()) for fitted, _ in trained)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ratio, *clock = timed(lambda: by_ratio(folds, arguments.outputs))
            rows["lars_path, by ratio"].append([t / share for t in clock])
            pair, *clock = timed(lambda: by_pair(folds, arguments.outputs))
            rows["lars_path, by pair"].append([t / share for t in clock])
    gaps = {"ours": worst, "lars_path, by ratio": ratio, "lars_path, by pair": pair}
    table = {
        name: {
            "wall": float(np.median([w for w, _ in v])),
            "cpu": float(np.median([c for _, c in v])),
            "gap": gaps[name],
        }
        for name, v in rows.items()
    }
    if arguments.descent:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for tol in 10.0 ** -np.arange(4, 13):
                found, wall, processor = timed(lambda tol=tol: descent(folds, tol))
                if found <= 1e-6:
                    break
        table[f"Lasso, tol {tol:g}"] = {"wall": wall * 32, "cpu": processor * 32, "gap": found}
    print(f"n = {arguments.n}, {Y.shape[1]} outputs, 25 pairs, 2 folds; first call {compile_time:.1f} s")
    print("| method | wall s | cpu s | wall / ours | worst gap |\n| --- | --- | --- | --- | --- |")
    for name, t in table.items():
        ratio = t["wall"] / table["ours"]["wall"]
        print(f"| {name} | {t['wall']:.2f} | {t['cpu']:.2f} | {ratio:.1f} | {t['gap']:.0e} |")
    if arguments.out:
        result = {
            "n": arguments.n,
            "timed_outputs": arguments.outputs,
            "compile": compile_time,
            "methods": table,
        }
        (Path(arguments.out) / "ofa_speed.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
