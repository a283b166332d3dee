r"""The experiments of Zhang et al., "Output Feature Augmented Lasso", ICDM 2014.

``python benchmarks/icdm14.py --data DIR --out DIR [--only synthetic,usps,sp500,mtr] [--runs 10]``

Six methods, three with the inputs as they are (group I) and three with a Gaussian kernel of them (group II):

* Lasso and GLasso: an independent lasso for each output, in the inputs or in kernel columns;
* MtLasso-I and -II: l2,1 over the outputs, ``min ||XW + b - Y||^2 + lam ||W||_{2,1}``;
* OFA-Lasso-I and -II: the outputs as features of one another through a Gaussian kernel.

All have a free intercept, the paper's scale (no factor before the squared error) and the paper's candidates,
0.1 * 5^1..5^5, for lam and beta, one pair for all outputs, chosen by 2-fold cross-validation of the error
below. Bandwidths are medians over the pairs of training rows. Certificates: relative duality gap 1e-6 for the
lassos, 1e-4 for l2,1. The error is the paper's, summed over the outputs,

.. math:: \mathrm{MAE} = \frac1n \sum_{i=1}^n \sum_{j=1}^d |y_{ij} - \hat y_{ij}| ,

so that it grows with d; it is given per output too (divided by d). Nothing is standardised unless said.

**Synthetic (Table I).** k = 500 inputs, uniform on [0, 1], d = 3 outputs, 200 rows to train and 800 to test.
``y_j = w_j'x + f(y_k)`` (group 1) or ``+ f(y_k) + f(y_l)`` (group 2), f one of sin, 1/y, exp; each w has 5
nonzeros, uniform on [0, 1]. The paper does not say which outputs depend on which; ours take f of outputs that
are linear in x (f of f of them reaches 1e7 for exp): y_1 = w_1'x; group 1: y_j = w_j'x + f(y_1), j = 2, 3;
group 2: y_2 = w_2'x, y_3 = w_3'x + f(y_1) + f(y_2). There is no noise, as none is mentioned.

**USPS (Table II).** The 16 pixels in the middle from the other 240. 1000 training images are set aside to
choose the strengths by 2-fold cross-validation, as the paper says; then n = 100, 200, 500, 1000 of the others
are trained on, and all 2007 test images predicted. (Strengths found with 500 rows serve all n, since the
paper describes one choice; but errors are summed, so that the same strengths regularise less with more rows.
"own" are therefore strengths chosen by 2-fold cross-validation of the n rows themselves.)

**S&P 500 (Table III).** Closes of day t of the first d companies from those of day t - 1 of 200 companies
drawn at random: 150 rows to train (in time), 49 to test (the first of 200 days has no day before). The data
has 234 of the paper's 500 companies, its prices are adjusted for splits. The paper's errors, 1.7 to 4 summed
over 16 to 64 stocks, cannot be of raw prices, where yesterday's close itself errs more; prices are
standardised by company with the training days' mean and deviation. "yesterday" is the error of no change.

**mtr**: jura, enb and wq of Mulan, not in the paper: 10 random halves, inputs and outputs standardised by
the training half (columns that are constant there dropped).

Each setting's numbers go to their own JSON file in ``--out`` when all its runs are done; a setting whose file
exists is skipped. The tables are rewritten from all files there as ``icdm14.md``.
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

import sparsejax as sj
from sparsejax import kernels
from sparsejax.models import ofa_lasso

GRID = 0.1 * 5.0 ** np.arange(1, 6)
METHODS = ("Lasso", "MtLasso-I", "OFA-Lasso-I", "GLasso", "MtLasso-II", "OFA-Lasso-II")
MTR = ("jura", "enb", "wq")

# What the paper prints: Tables I, II and III.
PAPER = {
    "synthetic sin 1": (0.0401, 0.0351, 0.0325, 0.2588, 0.2593, 0.2334),
    "synthetic inverse 1": (0.0649, 0.0644, 0.0605, 0.3049, 0.3546, 0.2702),
    "synthetic exp 1": (0.1211, 0.1210, 0.1210, 0.5132, 0.7995, 0.4953),
    "synthetic sin 2": (0.0696, 0.0649, 0.0608, 0.2834, 0.3082, 0.2536),
    "synthetic inverse 2": (0.1396, 0.1349, 0.1308, 0.3609, 0.4220, 0.3325),
    "synthetic exp 2": (0.2458, 0.2237, 0.2433, 0.8237, 1.2623, 0.8135),
    "usps 100": (0.4189, 0.4664, 0.4023, 0.4273, 0.4736, 0.4165),
    "usps 200": (0.4219, 0.4289, 0.4017, 0.4257, 0.4229, 0.4216),
    "usps 500": (0.4084, 0.3982, 0.3827, 0.3658, 0.3671, 0.3571),
    "usps 1000": (0.3815, 0.3825, 0.3746, 0.3443, 0.3486, 0.3363),
    "sp500 16": (1.7863, 1.6987, 1.7145, 3.1773, 8.5401, 2.8287),
    "sp500 32": (2.4041, 2.3417, 2.3176, 3.0155, 7.8591, 2.9838),
    "sp500 48": (2.0149, 2.5117, 1.9880, 3.9375, 9.4883, 3.6347),
    "sp500 64": (2.1704, 2.3244, 1.9851, 3.2856, 9.3996, 2.7524),
}


# ---------------------------------------------------------------- methods


def multi_task(F, Y, F_test, lams):
    """Predictions of ``min ||FW + b - Y||^2 + lam ||W||_{2,1}`` for each lam (largest first), and the gap."""
    loss = sj.losses.SquaredLoss(F, Y, scale=1.0, intercept=True)
    problem = sj.Problem(loss, sj.penalties.L21(1.0))
    solution = sj.path(problem, jax.vmap(sj.penalties.L21)(jnp.asarray(lams)), mode="warm", tol=1e-4)
    predicted = [np.asarray(F_test @ W + loss.intercept(W)[None]) for W in solution.params]
    return predicted, float(solution.gap.max())


def columns(X, X_test, input):
    """The features of MtLasso: X itself, or kernel columns of the training rows."""
    if input == "linear":
        return X, X_test
    s = kernels.median_bandwidth(X)
    return kernels.gaussian(X, bandwidth=s), kernels.gaussian(X_test, X, bandwidth=s)


def choose(X, Y) -> dict:
    """Strengths by 2-fold cross-validation, for all methods."""
    chosen = {}
    for input, group in (("linear", "I"), ("kernel", "II")):
        cv = ofa_lasso.cross_validate(X, Y, GRID, GRID, folds=2, input=input)
        if not bool(cv.converged.all()):
            warnings.warn(f"{int((~cv.converged).sum())} fits, gap {float(cv.gap.max()):.0e}", stacklevel=2)
        chosen[f"OFA-Lasso-{group}"] = (float(cv.lam), float(cv.beta))
        chosen["Lasso" if input == "linear" else "GLasso"] = (float(cv.start_lam),)
        errors = np.zeros(len(GRID))
        for fold in range(2):
            out = np.arange(len(X)) % 2 == fold
            F, F_out = columns(X[~out], X[out], input)
            predicted, _ = multi_task(F, Y[~out], F_out, GRID[::-1])
            errors += [mae(Y[out], p) for p in predicted]
        chosen[f"MtLasso-{group}"] = (float(GRID[::-1][errors.argmin()]),)
    return chosen


def errors(X, Y, X_test, Y_test, chosen) -> dict:
    """The test error of every method at its strengths, and how its training and prediction ended."""
    out = {}
    for input, group in (("linear", "I"), ("kernel", "II")):
        lasso, ofa = ("Lasso" if input == "linear" else "GLasso"), f"OFA-Lasso-{group}"
        start = time.perf_counter()
        model = ofa_lasso.fit(X, Y, *chosen[ofa], input=input)
        info = model.predict_with_info(X_test)
        out[ofa] = {
            "mae": mae(Y_test, info.y),
            "start": mae(Y_test, info.start),  # the independent lassos at the same lam
            "residual": float(jnp.mean(info.residual)),
            "start residual": float(jnp.mean(info.start_residual)),
            "nonzeros": [float((model.u != 0).sum(1).mean()), float((model.v != 0).sum(1).mean())],
            "gap": float(model.solution.gap.max()),
            "seconds": time.perf_counter() - start,
        }
        # The lasso is the start of an OFA-Lasso; beta only has to be large.
        alone = ofa_lasso.fit(X, Y, *chosen[lasso], 1e6, input=input)
        predicted = alone.predict_with_info(X_test, maxiter=0).start
        out[lasso] = {"mae": mae(Y_test, predicted), "gap": float(alone.start_solution.gap.max())}
        F, F_test = columns(X, X_test, input)
        predicted, gap = multi_task(F, Y, F_test, chosen[f"MtLasso-{group}"])
        out[f"MtLasso-{group}"] = {"mae": mae(Y_test, predicted[0]), "gap": gap}
    return out


# ---------------------------------------------------------------- data


def synthetic(name: str, group: int, seed: int):
    rng = np.random.default_rng(seed)
    f = {"sin": np.sin, "exp": np.exp, "inverse": lambda y: 1 / y}[name]
    X = rng.uniform(size=(1000, 500))
    W = np.zeros((500, 3))
    for j in range(3):
        W[rng.choice(500, 5, replace=False), j] = rng.uniform(size=5)
    Y = X @ W
    Y[:, 2] += f(Y[:, 0]) + (f(Y[:, 1]) if group == 2 else 0)
    Y[:, 1] += f(Y[:, 0]) if group == 1 else 0
    return X[:200], Y[:200], X[200:], Y[200:]


def sp500(data: Path, d: int, seed: int):
    with np.load(data / "sp500_2009.npz") as f:
        prices = f["X"].astype(float)
    inputs = np.random.default_rng(seed).choice(prices.shape[1], 200, replace=False)
    mean, deviation = prices[:150].mean(0), prices[:150].std(0)
    prices = (prices - mean) / deviation
    X, Y = prices[:-1, inputs], prices[1:, :d]
    return X[:150], Y[:150], X[150:], Y[150:], prices[150:-1, :d]


def mtr(data: Path, name: str, seed: int):
    with np.load(data / f"mtr_{name}.npz") as f:
        X, Y = f["X"].astype(float), f["Y"].astype(float)
    order = np.random.default_rng(seed).permutation(len(X))
    train, test = order[: len(X) // 2], order[len(X) // 2 :]

    def standardise(A):
        keep = A[train].std(0) > 0
        A = A[:, keep]
        return (A - A[train].mean(0)) / A[train].std(0)

    X, Y = standardise(X), standardise(Y)
    return X[train], Y[train], X[test], Y[test]


# ---------------------------------------------------------------- settings


def settings() -> list[str]:
    names = [f"synthetic {f} {g}" for g in (1, 2) for f in ("sin", "inverse", "exp")]
    names += [f"usps {n}{own}" for own in ("", " own") for n in (100, 200, 500, 1000)]
    names += [f"sp500 {d}" for d in (16, 32, 48, 64)]
    return names + [f"mtr {name}" for name in MTR]


def run_setting(data: Path, name: str, runs: int, out: Path) -> dict:
    kind, *rest = name.split()
    results = []
    for seed in range(runs):
        begin, extra = time.perf_counter(), {}
        if kind == "usps":
            (X, Y), (X_test, Y_test) = load_regression_usps(data)
            aside = np.random.default_rng(1000).permutation(len(X))
            rows = np.random.default_rng(seed).choice(aside[1000:], int(rest[0]), replace=False)
            own = rest[1:] == ["own"]
            chosen = (
                choose(X[rows], Y[rows]) if own else usps_strengths(X[aside[:1000]], Y[aside[:1000]], out)
            )
            X, Y = X[rows], Y[rows]
        else:
            if kind == "synthetic":
                X, Y, X_test, Y_test = synthetic(rest[0], int(rest[1]), seed)
            elif kind == "sp500":
                X, Y, X_test, Y_test, before = sp500(data, int(rest[0]), seed)
                extra["yesterday"] = mae(Y_test, before)
            else:
                X, Y, X_test, Y_test = mtr(data, rest[0], seed)
            chosen = choose(X, Y)
        methods = errors(X, Y, X_test, Y_test, chosen)
        extra["mean"] = mae(Y_test, Y.mean(0)[None])
        results.append({"methods": methods, "chosen": chosen, "seconds": time.perf_counter() - begin} | extra)
        brief = {m: round(methods[m]["mae"], 4) for m in METHODS}
        print(f"{name} run {seed}: {results[-1]['seconds']:.0f} s, {brief}", flush=True)
    return {"n": len(X), "d": Y.shape[1], "runs": results}


def usps_strengths(X, Y, out: Path) -> dict:
    """Chosen once, kept in a file."""
    file = out / "usps_strengths.json"
    if not file.exists():
        file.write_text(json.dumps(choose(X, Y)))
    return json.loads(file.read_text())


# ---------------------------------------------------------------- tables


def table(results: dict[str, dict], kind: str) -> str:
    """MAE, mean and deviation over the runs, the paper's in brackets; then by output, and details."""
    lines = [
        f"**{kind}**",
        "",
        "| setting | " + " | ".join(METHODS) + " |",
        "| --- " * (len(METHODS) + 1) + "|",
    ]
    notes = []
    for name, result in results.items():
        if not name.startswith(kind):
            continue
        scores = np.array([[run["methods"][m]["mae"] for m in METHODS] for run in result["runs"]])
        means = scores.mean(0)
        best = means.reshape(2, 3).min(1).repeat(3)  # of each group
        cells = []
        for m in range(len(METHODS)):
            mean, deviation = means[m], scores[:, m].std()
            text = f"**{mean:.4f}**" if mean <= best[m] else f"{mean:.4f}"
            printed = f" [{PAPER[name][m]:.4f}]" if name in PAPER else ""
            cells.append(f"{text} ± {deviation:.4f}{printed}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
        by_output = means / result["d"]
        lines.append("| per output | " + " | ".join(f"{x:.4f}" for x in by_output) + " |")
        better = [
            int((scores[:, i] < np.delete(scores[:, g : g + 3], 2, 1).min(1)).sum())
            for g, i in ((0, 2), (3, 5))
        ]
        others = [k for k in ("mean", "yesterday") if k in result["runs"][0]]
        constant = ", ".join(f"{k} {np.mean([r[k] for r in result['runs']]):.4f}" for k in others)
        notes.append(
            f"{name}: OFA-Lasso best of its group in {better[0]} and {better[1]} of {len(scores)} runs; "
            f"error of predicting by {constant}; largest gap "
            f"{max(r['methods'][m]['gap'] for r in result['runs'] for m in METHODS):.0e}."
        )
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data")
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", default="", help="settings that begin with one of these, by commas")
    parser.add_argument("--runs", type=int, default=10)
    arguments = parser.parse_args()
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    wanted = tuple(arguments.only.split(",")) if arguments.only else ("",)
    for name in settings():
        file = out / f"icdm14_{name.replace(' ', '_')}.json"
        if name.startswith(wanted) and not file.exists():
            result = run_setting(folder(arguments.data), name, arguments.runs, out)
            file.write_text(json.dumps(result))
    results = {}
    for name in settings():
        file = out / f"icdm14_{name.replace(' ', '_')}.json"
        if file.exists():
            results[name] = json.loads(file.read_text())
    kinds = [k for k in ("synthetic", "usps", "sp500", "mtr") if any(n.startswith(k) for n in results)]
    (out / "icdm14.md").write_text("\n".join(table(results, kind) for kind in kinds))


if __name__ == "__main__":
    main()
