r"""Section 6 of Ming & Ding, IJCAI 2019 (exclusive l2,1 feature selection).

``python benchmarks/ijcai19.py --data DIR --out DIR [--datasets yale,glioma] [--figure 1|2|both|none]
[--kept SHARE]``

**Figure 2, accuracy by number of features.** 5-fold stratified cross-validation. In each training fold:
constant columns are dropped, the others standardised (mean and deviation of that fold, applied to the test
fold); then

.. math:: \min_W \|XW + \mathbf 1 b^\top - Y\|_F^2 + g(W), \qquad
          g = \alpha\|W\|_{2,1},\quad \beta\sum_i\|w_i\|_1^2,\quad \alpha\|W\|_{2,1} + \beta\sum_i\|w_i\|_1^2,

Y the one-hot labels, b a free intercept, each to a relative duality gap of 1e-4 in float64. The strengths are
set so that all of these keep the same number of nonzero weights, as near as they can,

.. math:: T = \max(120\,k,\; 1.25\,d) :

the exclusive lasso keeps one weight a row at least, so T > d, and 80 features for each of k classes need
T > 80 k, with room for classes that get fewer. For l2,1, which keeps rows whole, T counts weights too.
Search: a warm path of decreasing strengths until the count first passes T, then up to three times four
more strengths in between; the nearest count wins and is recorded. In glioma (n k << T) l2,1 and
exclusive l2,1 with a small beta cannot reach T; the path ends at 1/256 of the strength that makes W = 0.
Exclusive l2,1 has two strengths: one row of the tables has alpha = beta, as Figure 1 of the paper does;
in the other beta / alpha in ``RATIOS`` is picked by the accuracy in a 25 % hold-out split off the
*training* fold. That is one more thing tuned than the other methods have. For a given ratio the count is
not monotone in the strength, and the strongest solution that has T weights is taken. ``--kept 0.5`` sets
T to half of all d k weights instead: the rule is ours, the paper does not say how many weights it keeps.

Class j takes the m features of largest |W_ij| (at most the nonzero ones) and trains LIBSVM (linear, C = 1)
to tell j from the rest; the class of largest decision value wins. The paper says "majority voting" of "an
SVM classifier for each class". Of k yes/no answers the majority is a tie unless exactly one is yes;
breaking ties by the decision value *is* our rule, since the largest value is a yes if any is. Breaking them
at random is reported as "votes". In another reading each class's features train a classifier for all
classes, and these k vote: "committee", computed at m in ``COMMITTEE`` except in yaleb, where it takes long;
ties go to the class whose label comes first.

Filters give one ranking for all classes, as they are commonly used and, we think, in the paper: the F
statistic (scikit-learn), ReliefF (10 neighbours) and mRMR (difference form; features cut in three at mean
-+ deviation / 2), both of fast-select. "F, by class" ranks by the F statistic of each class against the
rest: what a ranking for each class is worth without any sparse model.

mnist5k is cut to 100 images a digit, as in the paper. newsgroups20_2000 comes with its 5000 terms chosen by
the F statistic on *all* documents, as in the paper, so its accuracies are optimistic, for all methods.

**Figure 1, convergence.** alpha = beta = 1, standardised columns, all rows: the objective by iteration of the
algorithm of the paper as printed (`sj.alm(faithful=True)`) from zero and from N(0, 0.01^2) weights, of
`sj.admm` and of `sj.fista` from zero, as relative excess over the optimum, which its duality gap certifies.

Each data set's numbers go to their own JSON file in ``--out`` as soon as they are known; tables and figures
are rewritten from all files there (``--figure none`` does only that).
"""

import argparse
import itertools
import json
import time
import warnings
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import matplotlib
import numpy as np
from _data import draw_of_each, folder, load
from fast_select import ReliefF, mRMR
from sklearn.feature_selection import f_classif
from sklearn.model_selection import StratifiedKFold, StratifiedShuffleSplit
from sklearn.svm import SVC

import sparsejax as sj

matplotlib.use("Agg")
import matplotlib.pyplot as plt

DATASETS = ("yale", "glioma", "cnae9", "mnist5k", "isolet", "yaleb", "newsgroups20_2000")
CONVERGENCE = ("yale", "isolet", "glioma", "yaleb")
SIZES = (10, 20, 30, 40, 50, 60, 70, 80)
HOLD_OUT_SIZES = (10, 20, 40, 80)
COMMITTEE = (10, 20)
RATIOS = (0.1, 1.0, 10.0, 100.0)
SEED, FOLDS, TOL, HISTORY = 0, 5, 1e-4, 300

TUNED, EQUAL = "exclusive l2,1 (ratio tuned)", "exclusive l2,1 (alpha = beta)"
OTHERS = ("l2,1", "exclusive lasso", "mRMR", "F statistic", "ReliefF")
METHODS = (TUNED, EQUAL, *OTHERS, "F, by class")


# ---------------------------------------------------------------- sparse models


def weights_kept(d: int, k: int, share: float | None = None) -> int:
    """The common number T of nonzero weights; ``share`` of all if given."""
    return int(share * d * k) if share else min(max(120 * k, int(1.25 * d)), d * k)


def fit_weights(X, y, kind: str, ratio: float = 1.0, share: float | None = None) -> np.ndarray:
    """W (d, k) with as nearly T nonzeros as the first passage of the path allows."""
    Y = np.eye(y.max() + 1)[y]
    loss = sj.losses.SquaredLoss(X, Y, scale=1.0, intercept=True)
    top = float(sj.lambda_max(sj.Problem(loss, sj.penalties.L21(1.0))))
    make = {
        "l2,1": sj.penalties.L21,
        "exclusive lasso": sj.penalties.ExclusiveLasso,
        "exclusive l2,1": lambda alpha: sj.penalties.ExclusiveL21(alpha, ratio * alpha),
    }[kind]
    T, problem = weights_kept(*loss.params_shape, share), sj.Problem(loss, make(1.0))

    def solve(strengths):
        """Counts and weights along a warm path."""
        solution = sj.path(problem, jax.vmap(make)(strengths), mode="warm", tol=TOL, maxiter=5000)
        if not bool(solution.converged.all()):
            warnings.warn(f"{kind}: gap {float(solution.gap.max()):.1e}", stacklevel=2)
        W = np.asarray(solution.params)
        return (W != 0).sum((1, 2)), W

    # l2,1 and exclusive l2,1 are 0 at `top`; the exclusive lasso has no such strength: it starts far above.
    high, factor = (1024 * top, 4.0) if kind == "exclusive lasso" else (top, 2.0)
    low, best = high, None
    for stage in range(4):
        passed = False
        for _ in range(1 if stage else 2):
            grid = high * factor ** -np.arange(1.0, 5.0) if stage == 0 else np.geomspace(high, low, 6)[1:5]
            counts, W = solve(grid)
            passed = bool((counts >= T).any())
            first = int(np.argmax(counts >= T)) if passed else 3
            at = int(np.argmin(abs(counts[: first + 1] - T)))
            if best is None or abs(counts[at] - T) < abs((best != 0).sum() - T):
                best = W[at]
            if passed or stage:
                break
            high = grid[-1]
        if stage == 0 and not passed:
            break  # out of reach: the largest count seen is the nearest
        if passed:
            low = grid[first]
            high = grid[first - 1] if first else high
        else:
            high = grid[-1]
        if abs((best != 0).sum() - T) <= 0.01 * T:
            break
    return best


def by_class(W: np.ndarray) -> list[np.ndarray]:
    """The features of each class by decreasing |W_ij|, the nonzero ones, at least one."""
    ranking = sj.rank_features(W, min(len(W), max(SIZES)))
    order, scores = np.asarray(ranking.indices).T, np.asarray(ranking.scores).T
    return [o[: max(1, int((s > 0).sum()))] for o, s in zip(order, scores, strict=True)]


# ---------------------------------------------------------------- filters


def f_statistic(X, y, k):
    order = np.argsort(-f_classif(X, y)[0], kind="stable")[: max(SIZES)]
    return [order] * k


def f_by_class(X, y, k):
    return [np.argsort(-f_classif(X, y == c)[0], kind="stable")[: max(SIZES)] for c in range(k)]


def relief(X, y, k):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class with fewer than 10 members uses those it has
        scores = ReliefF(n_features_to_select=1, n_neighbors=10, backend="cpu", n_jobs=1).fit(X, y)
    return [np.argsort(-scores.feature_importances_, kind="stable")[: max(SIZES)]] * k


def mrmr(X, y, k):
    thirds = np.digitize(X, [-0.5, 0.5])
    return [mRMR(max(SIZES), method="MID", backend="cpu").fit(thirds, y).top_features_] * k


# ---------------------------------------------------------------- classification


def decisions(X, y, X_test, lists, m: int) -> np.ndarray:
    """Decision values (n_test, k): class j against the rest on its own m features."""
    values = []
    for c, features in enumerate(lists):
        columns = features[:m]
        machine = SVC(kernel="linear", C=1.0).fit(X[:, columns], y == c)
        values.append(machine.decision_function(X_test[:, columns]))
    return np.stack(values, axis=1)


def accuracy(values, y) -> float:
    return float(np.mean(values.argmax(1) == y))


def vote_accuracy(values, y) -> float:
    """Each class votes yes or no; ties are broken at random, which is averaged exactly."""
    yes = values > 0
    yes[~yes.any(1)] = True
    return float(np.mean(yes[np.arange(len(y)), y] / yes.sum(1)))


def committee_accuracy(X, y, X_test, y_test, lists, m: int) -> float | None:
    """Each list of features trains a machine for all classes; these vote."""
    if len(X) * len(lists) > 50_000:
        return None
    votes = np.zeros((len(X_test), len(lists)))
    same = all(a is lists[0] for a in lists)
    for features in lists[:1] if same else lists:
        columns = features[:m]
        answer = SVC(kernel="linear", C=1.0).fit(X[:, columns], y).predict(X_test[:, columns])
        votes[np.arange(len(answer)), answer] += 1
    return accuracy(votes, y_test)


def all_features(X, y, X_test, y_test) -> float:
    K, K_test = X @ X.T, X_test @ X.T
    machines = [SVC(kernel="precomputed", C=1.0).fit(K, y == c) for c in range(y.max() + 1)]
    return accuracy(np.stack([m.decision_function(K_test) for m in machines], axis=1), y_test)


# ---------------------------------------------------------------- one fold


def standardise(X, X_test):
    """By the mean and deviation of X, without the columns that are constant in X."""
    mean, deviation = X.mean(0), X.std(0)
    keep = deviation > 1e-12 * np.maximum(1, abs(mean))
    return (X[:, keep] - mean[keep]) / deviation[keep], (X_test[:, keep] - mean[keep]) / deviation[keep]


def tuned_ratio(X, y, seed: int, share: float | None) -> float:
    """beta / alpha of best mean accuracy in a hold-out part of this training fold (the smallest, if tied)."""
    split = StratifiedShuffleSplit(1, test_size=0.25, random_state=seed)
    fit, held = next(split.split(X, y))
    A, B = standardise(X[fit], X[held])

    def score(ratio):
        lists = by_class(fit_weights(A, y[fit], "exclusive l2,1", ratio, share))
        return np.mean([accuracy(decisions(A, y[fit], B, lists, m), y[held]) for m in HOLD_OUT_SIZES])

    return max(RATIOS, key=score)


def describe(X, lists, W=None) -> dict:
    """What kind of features a method picked: 20 a class."""
    top = [set(o[:20].tolist()) for o in lists]
    pairs = [len(a & b) / 20 for a, b in itertools.combinations(top, 2)]
    C = [abs(np.corrcoef(X[:, o[:20]].T)) for o in lists if len(o) > 1]
    out = {
        "distinct": len(set().union(*top)),  # features used by all classes together
        "shared": float(np.mean(pairs)),  # mean overlap of two classes
        "correlation": float(np.mean([(c.sum() - len(c)) / (len(c) * (len(c) - 1)) for c in C])),
    }
    if W is not None:
        short = [len(o) for o in lists]
        out |= {"nonzeros": int((W != 0).sum()), "rows": int((W != 0).any(1).sum()), "least": min(short)}
    return out


def run_fold(X, y, X_test, y_test, seed: int, share: float | None) -> dict:
    """Every method on one training fold: accuracies, and what was picked."""
    raw, k = X, int(y.max()) + 1
    X, X_test = standardise(X, X_test)
    ratio = tuned_ratio(raw, y, seed, share)
    W = {
        EQUAL: fit_weights(X, y, "exclusive l2,1", share=share),
        "l2,1": fit_weights(X, y, "l2,1", share=share),
        "exclusive lasso": fit_weights(X, y, "exclusive lasso", share=share),
    }
    W[TUNED] = W[EQUAL] if ratio == 1 else fit_weights(X, y, "exclusive l2,1", ratio, share)
    lists = {name: by_class(w) for name, w in W.items()}
    filters = {"F statistic": f_statistic, "F, by class": f_by_class, "ReliefF": relief, "mRMR": mrmr}
    lists |= {name: rank(X, y, k) for name, rank in filters.items()}

    out = {"ratio": ratio, "T": weights_kept(X.shape[1], k, share), "d": X.shape[1], "methods": {}}
    out["all features"] = all_features(X, y, X_test, y_test)
    mine = [set(o[:20].tolist()) for o in lists[TUNED]]
    for name in METHODS:
        values = [decisions(X, y, X_test, lists[name], m) for m in SIZES]
        picked = describe(X, lists[name], W.get(name))
        theirs = [set(o[:20].tolist()) for o in lists[name]]
        picked["as tuned"] = float(np.mean([len(a & b) / 20 for a, b in zip(mine, theirs, strict=True)]))
        out["methods"][name] = {
            "accuracy": [accuracy(v, y_test) for v in values],
            "votes": [vote_accuracy(v, y_test) for v in values],
            "committee": [committee_accuracy(X, y, X_test, y_test, lists[name], m) for m in COMMITTEE],
            "picked": picked,
        }
    return out


def run_dataset(data: Path, name: str, share: float | None) -> dict:
    """Cross-validation of every method."""
    X, y = load_cut(data, name)
    folds = []
    for i, (fit, test) in enumerate(StratifiedKFold(FOLDS, shuffle=True, random_state=SEED).split(X, y)):
        start = time.time()
        folds.append(run_fold(X[fit], y[fit], X[test], y[test], SEED + i, share))
        first = {n: f"{r['accuracy'][1]:.3f}" for n, r in folds[-1]["methods"].items()}
        print(
            f"{name} fold {i}: {time.time() - start:.0f} s, ratio {folds[-1]['ratio']:g}, m = 20: {first}",
            flush=True,
        )
    return {"n": len(X), "d": X.shape[1], "k": int(y.max() + 1), "sizes": SIZES, "folds": folds}


def load_cut(data: Path, name: str):
    X, y = load(data, name)
    if name == "mnist5k":
        rows = draw_of_each(y, 100, SEED)
        return X[rows], y[rows]
    return X, y


# ---------------------------------------------------------------- figure 1


def run_convergence(data: Path, name: str, _: float | None) -> dict:
    """Objectives by iteration of each algorithm, and the certified optimum."""
    X, y = load_cut(data, name)
    X, _ = standardise(X, X)
    loss = sj.losses.SquaredLoss(X, np.eye(y.max() + 1)[y], scale=1.0, intercept=True)
    problem = sj.Problem(loss, sj.penalties.ExclusiveL21(1.0, 1.0))
    random = 0.01 * np.random.default_rng(SEED).standard_normal(loss.params_shape)
    runs = {
        "paper's ALM, from 0": lambda: sj.alm(
            problem, faithful=True, tol=0, maxiter=HISTORY, history=HISTORY
        ),
        "paper's ALM, from N(0, 0.01²)": lambda: sj.alm(
            problem, random, faithful=True, tol=0, maxiter=HISTORY, history=HISTORY
        ),
        "ADMM": lambda: sj.admm(problem, tol=1e-12, maxiter=HISTORY, history=HISTORY),
        "FISTA": lambda: sj.fista(problem, tol=1e-12, maxiter=HISTORY, history=HISTORY),
    }
    optimum = sj.solve(problem, tol=1e-10, maxiter=50_000)
    out = {"optimum": float(optimum.objective), "gap": float(optimum.gap), "runs": {}}
    for label, run in runs.items():
        start = time.time()
        solution = run()
        objective = np.asarray(solution.history.objective)
        objective = objective[np.isfinite(objective)]
        excess = objective / out["optimum"] - 1
        out["runs"][label] = {
            "excess": excess.tolist(),
            "iterations": int(solution.num_iters),
            "message": solution.message,
        }
        print(f"{name}, {label}: {time.time() - start:.0f} s, excess {excess[-1]:.1e}", flush=True)
    return out


# ---------------------------------------------------------------- tables and figures


def by_fold(result: dict, method: str, what: str = "accuracy") -> np.ndarray:
    """(folds, sizes)."""
    return np.array([fold["methods"][method][what] for fold in result["folds"]], dtype=float)


def mean_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return values.mean(0), values.std(0, ddof=1) / np.sqrt(len(values))


def table(name: str, result: dict) -> str:
    """Accuracy in per cent, mean and standard error over the folds."""
    everything = 100 * np.mean([fold["all features"] for fold in result["folds"]])
    counts = {
        m: np.mean([fold["methods"][m]["picked"]["nonzeros"] for fold in result["folds"]])
        for m in (TUNED, EQUAL, "l2,1", "exclusive lasso")
    }
    lines = [
        f"**{name}** (n = {result['n']}, d = {result['d']}, k = {result['k']}; "
        f"all features {everything:.1f}; "
        f"T = {result['folds'][0]['T']}; beta / alpha by fold {[f['ratio'] for f in result['folds']]})",
        "",
        "| method | weights | " + " | ".join(str(m) for m in result["sizes"]) + " |",
        "| --- " * (len(result["sizes"]) + 2) + "|",
    ]
    means = {m: by_fold(result, m).mean(0) for m in METHODS}
    best = np.max(list(means.values()), axis=0)
    for method in METHODS:
        mean, error = mean_error(100 * by_fold(result, method))
        cells = [
            f"**{a:.1f}** ± {e:.1f}" if a >= 100 * b - 1e-9 else f"{a:.1f} ± {e:.1f}"
            for a, e, b in zip(mean, error, best, strict=True)
        ]
        kept = f"{counts[method]:.0f}" if method in counts else "-"
        lines.append(f"| {method} | {kept} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def difference(result: dict, method: str, low: int, high: int, what: str = "accuracy"):
    """The best of OTHERS over these sizes, and by how much ``method`` beats it: mean, paired error."""
    sizes = result["sizes"] if what != "committee" else COMMITTEE
    at = [i for i, m in enumerate(sizes) if low <= m <= high]
    scores = {m: 100 * by_fold(result, m, what)[:, at].mean(1) for m in (method, *OTHERS)}
    rival = max(OTHERS, key=lambda m: scores[m].mean())
    mean, error = mean_error(scores[method] - scores[rival])
    return rival, float(mean), float(error)


def summary(results: dict) -> str:
    """Exclusive l2,1 less the best of the five others, in points."""
    lines = []
    for method in (TUNED, EQUAL):
        lines += [
            f"{method}, less the best other, points ± paired standard error",
            "",
            "| data | 10-20 | best other | 60-80 | best other | 10-20, votes | 10-20, committee |",
            "| --- " * 7 + "|",
        ]
        for name, result in results.items():
            a, b = difference(result, method, 10, 20), difference(result, method, 60, 80)
            votes = difference(result, method, 10, 20, "votes")
            group = difference(result, method, 10, 20, "committee")
            committee = f"{group[1]:+.1f} ± {group[2]:.1f}" if np.isfinite(group[1]) else "-"
            lines.append(
                f"| {name} | {a[1]:+.1f} ± {a[2]:.1f} | {a[0]} | {b[1]:+.1f} ± {b[2]:.1f} | {b[0]} "
                f"| {votes[1]:+.1f} ± {votes[2]:.1f} | {committee} |"
            )
        lines.append("")
    return "\n".join(lines)


def picks(results: dict) -> str:
    """What the methods picked at 20 features a class."""
    lines = [
        "At 20 features a class, mean over folds: distinct features / share common to two classes / mean "
        "|correlation| of the features of a class / share in common with exclusive l2,1 (ratio tuned)",
        "",
        "| data | " + " | ".join(METHODS) + " |",
        "| --- " * (len(METHODS) + 1) + "|",
    ]
    for name, result in results.items():
        cells = []
        for method in METHODS:
            p = [fold["methods"][method]["picked"] for fold in result["folds"]]
            a, b, c, e = (
                np.mean([q[x] for q in p]) for x in ("distinct", "shared", "correlation", "as tuned")
            )
            cells.append(f"{a:.0f} / {b:.2f} / {c:.2f} / {e:.2f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


# Okabe & Ito's colours, which colour-blind readers can tell apart; markers differ as well.
STYLE = {
    TUNED: ("#D55E00", "o", "-"),
    EQUAL: ("#E69F00", "v", "-"),
    "l2,1": ("#0072B2", "s", "-"),
    "exclusive lasso": ("#009E73", "D", "-"),
    "mRMR": ("#CC79A7", "^", "--"),
    "F statistic": ("#000000", "x", "--"),
    "ReliefF": ("#56B4E9", "+", "--"),
    "F, by class": ("#999999", ".", ":"),
}


def figure_2(results: dict, path: Path) -> None:
    fig, axes = plt.subplots(2, 4, figsize=(13, 6.2), constrained_layout=True)
    for ax, (name, result) in zip(axes.flat, results.items(), strict=False):
        for i, method in enumerate(METHODS):
            colour, marker, line = STYLE[method]
            mean, error = mean_error(100 * by_fold(result, method))
            x = np.array(result["sizes"]) + 0.5 * (i - 3.5)  # so that error bars do not hide each other
            ax.errorbar(
                x, mean, error, color=colour, marker=marker, linestyle=line, label=method,
                markersize=4.5, linewidth=1.3, elinewidth=0.6,
            )  # fmt: skip
        everything = 100 * np.mean([fold["all features"] for fold in result["folds"]])
        ax.axhline(everything, color="0.6", linewidth=0.8, zorder=0, label="all features")
        ax.set_title(
            f"{name.removesuffix('_2000')}  (n={result['n']}, d={result['d']}, k={result['k']})", fontsize=10
        )
        ax.set_xticks(result["sizes"])
        ax.grid(alpha=0.25)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    for ax in axes.flat[len(results) :]:
        ax.axis("off")
    if len(results) < axes.size:
        axes.flat[-1].legend(handles, labels, loc="center", fontsize=10, frameon=False)
    fig.supxlabel("features for each class", fontsize=11)
    fig.supylabel("5-fold accuracy, % (± standard error)", fontsize=11)
    fig.savefig(path, dpi=110)
    plt.close(fig)


def figure_1(results: dict, path: Path) -> None:
    style = {
        "paper's ALM, from 0": ("#0072B2", "-"),
        "paper's ALM, from N(0, 0.01²)": ("#56B4E9", "--"),
        "ADMM": ("#D55E00", "-"),
        "FISTA": ("#009E73", "-."),
    }
    fig, axes = plt.subplots(1, len(results), figsize=(3.3 * len(results), 3.3), sharey=True, squeeze=False)
    for ax, (name, result) in zip(axes[0], results.items(), strict=True):
        for label, run in result["runs"].items():
            colour, line = style[label]
            excess = np.maximum(run["excess"], 1e-10)
            ax.semilogy(excess, color=colour, linestyle=line, label=label, linewidth=1.6)
        ax.set_title(name, fontsize=10)
        ax.set_ylim(5e-11, 1e2)
        ax.set_xlabel("iteration")
        ax.grid(alpha=0.25)
    axes[0, 0].set_ylabel("relative excess over the optimum")
    fig.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="lower center", ncols=4, frameon=False, fontsize=9
    )
    fig.tight_layout(rect=(0, 0.08, 1, 1))
    fig.savefig(path, dpi=120)
    plt.close(fig)


def collect(out: Path, figure: str, names: tuple[str, ...]) -> dict:
    """The finished results of one figure in ``out``."""
    paths = {name: out / f"ijcai19_fig{figure}_{name}.json" for name in names}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def report(out: Path) -> None:
    """Tables, figures and one JSON of everything from what is finished."""
    one, two = collect(out, "1", CONVERGENCE), collect(out, "2", DATASETS)
    (out / "ijcai19.json").write_text(json.dumps({"figure 1": one, "figure 2": two}))
    if one:
        figure_1(one, out / "ijcai19_fig1.png")
    if two:
        figure_2(two, out / "ijcai19_fig2.png")
        parts = [summary(two), picks(two), *(table(name, result) for name, result in two.items())]
        (out / "ijcai19.md").write_text("\n".join(parts))


def main() -> None:
    parser = argparse.ArgumentParser(description="Section 6 of Ming & Ding, IJCAI 2019.")
    parser.add_argument("--data", help="folder with the .npz files; default $SPARSEJAX_DATA")
    parser.add_argument("--out", type=Path, required=True, help="folder for tables, figures and numbers")
    parser.add_argument("--datasets", default=",".join(DATASETS))
    parser.add_argument("--figure", choices=("1", "2", "both", "none"), default="both")
    parser.add_argument("--kept", type=float, help="share of the d k weights kept, in place of T")
    args = parser.parse_args()
    data, names = folder(args.data), args.datasets.split(",")
    unknown = set(names) - set(DATASETS)
    if unknown:
        parser.error(f"unknown data sets {sorted(unknown)}; there are {', '.join(DATASETS)}")
    args.out.mkdir(parents=True, exist_ok=True)
    if args.figure == "none":
        report(args.out)
    jobs = {"1": (run_convergence, CONVERGENCE), "2": (run_dataset, DATASETS)}
    for figure, (run, possible) in jobs.items():
        for name in names if args.figure in (figure, "both") else ():
            if name in possible:
                start = time.time()
                result = run(data, name, args.kept)
                (args.out / f"ijcai19_fig{figure}_{name}.json").write_text(json.dumps(result))
                report(args.out)
                print(f"figure {figure}, {name}: {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
