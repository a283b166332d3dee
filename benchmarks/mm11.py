r"""The ablation of Chen et al., ACM MM 2011 (two label views), on data of their kind.

``python benchmarks/mm11.py --data DIR --out DIR [--sets cal500,usps,mnist5k] [--splits 12] [--report]``

The paper's images (NUS-WIDE) could not be had. Here a row of X has labels of two views, a task is a pair
(i, j) of them, and the measure is the area under the ROC curve of each pair in the test rows, averaged over
the pairs with as many training samples. A constant score counts 1/2 (the paper has 0 where there are none).

**Sets.**

* cal500: songs; the 18 emotion tags (the first of the file, "Angry-Agressive", lacks its prefix) and the 31
  genre tags ("Genre-Best" repeats them and is left out), without the NOT- tags: 558 pairs, 8 a song on
  average. 160 songs are for testing and 92 for validation. Of the other 250, those with a pair that is held
  out are dropped and 200 of the rest are for training. Held out are up to 8 pairs, drawn at random of those
  with 4 to 15 of the 250 songs and at least 2 test songs, as long as no more than 50 songs are dropped.
  Features are standardised by the training songs.
* usps, mnist5k: digits as pairs of parity and size (0-1, 2-3, ..., 8-9), 2 x 5, one a row: built sets. The
  ten digits, in random order, have 0, 0, 3, 3, 10, 10, 50, 50, 200 and 200 training samples; the two without
  are of different size, so that each label of a view is seen. 40 of each digit with samples are for
  validation, at most 150 of the rest of every digit for testing. Pixels are only centred.

**Methods.** All linear with a free intercept; squared loss, ``1/(2n)``, of targets 0 and 1, but for SVM.

* NMTL: independent least squares, the solution of least norm where there are many.
* ridge: the same with a tuned ridge penalty, so that what shrinkage alone gains is seen.
* MTLG: least squares + graph; MTLE: + exclusive group lasso; IA-MSL: both (`models.multi_semantic`).
* ridge + graph: IA-MSL with the exclusive penalty replaced by shrinkage.
* SVM: scikit-learn's LinearSVC of each pair; a pair without training samples has a constant score.
* -E, "enrichment": a model for each label of each view, then products of their scores, Eq. (13). For these
  to be confidences, decision values f of the SVM become sigmoid(f) and least-squares scores s become
  sigmoid(4s - 2): two raw ones may both be negative.

Two graphs: "views" joins pairs that share a label (`graphs.from_views`), by the NGD similarity of the other
two labels in cal500 and all alike in the built sets, where labels of a view never meet. "NGD" is the paper's,
of the pairs, with smoothed counts. eta = 1.

Strengths are chosen by the mean AUC of the pairs that are not held out in the validation rows, one for all
pairs; where there are two, from all combinations. They are relative: of a penalty to the mean variance v of
the features, of a graph to v over its mean degree. No method is fitted to the validation rows. Exclusive
models are solved to a relative duality gap of 1e-4, or for ``MAXITER`` iterations; the report has the largest
gap. NMTL, MTLG and both with ridge are solved exactly, by decomposing X'X and L.

Means and standard errors are over random splits, which share rows, so that the errors are somewhat too small.
A column of the tables is shown if every split has pairs with so many samples and with test samples.
Each set's numbers go to their own JSON file in ``--out`` as soon as they are known; a set that has one is not
run again (delete the file to do so). Tables and the figure are rewritten from all files there.
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import matplotlib
import numpy as np
from _data import folder, load, load_multilabel
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

import sparsejax as sj
from sparsejax import graphs
from sparsejax.models import multi_semantic

matplotlib.use("Agg")
import matplotlib.pyplot as plt

SETS = ("cal500", "usps", "mnist5k")
SAMPLES = (0, 0, 3, 3, 10, 10, 50, 50, 200, 200)  # of the ten digits
GROUPS = {"held out": (-1, -1), "0": (0, 0), "1-5": (1, 5), "6-20": (6, 20), "21-100": (21, 100),
          ">100": (101, 10**9)}  # fmt: skip
RIDGES = np.geomspace(100, 1e-3, 11)
PENALTIES = np.geomspace(3, 3e-3, 4)
GRAPHS = np.geomspace(100, 1e-1, 4)
MARGINS = np.geomspace(1e-4, 1, 5)  # C of the SVM
TOL, MAXITER = 1e-4, 3000

BOTH, SHRUNK = "IA-MSL (both, views)", "ridge + graph (views)"
METHODS = (
    "SVM", "SVM-E", "NMTL", "NMTL-E", "ridge", "ridge-E", "MTLG (graph, views)", "MTLG (graph, NGD)",
    "MTLE (exclusive)", SHRUNK, BOTH, "IA-MSL (both, NGD)",
)  # fmt: skip


# ---------------------------------------------------------------- data


def cal500(data: Path, rng) -> dict:
    """A split of the songs, and the pairs that are held out."""
    X, Y = load_multilabel(data, "cal500")
    with np.load(data / "cal500.npz") as f:
        names = f["label_names"].tolist()
    emotion = [i for i, name in enumerate(names) if name.startswith("Emotion-") or name == "Angry-Agressive"]
    genre = [i for i, name in enumerate(names) if name.startswith("Genre-") and "Best" not in name]
    Y1, Y2 = Y[:, emotion], Y[:, genre]
    pairs = np.asarray(multi_semantic.enrich(Y1, Y2))
    test, validation, pool = np.split(rng.permutation(len(X)), (160, 252))

    count = pairs[pool].sum(0)
    eligible = np.flatnonzero((count >= 4) & (count <= 15) & (pairs[test].sum(0) >= 2))
    held = np.zeros(pairs.shape[1], bool)
    for pair in rng.permutation(eligible):
        if held.sum() < 8 and (pairs[pool][:, held].any(1) | (pairs[pool, pair] > 0)).sum() <= 50:
            held[pair] = True
    train = pool[~pairs[pool][:, held].any(1)][:200]
    X = X - X[train].mean(0)
    return {
        "X": X / X[train].std(0), "Y1": Y1, "Y2": Y2, "train": train, "validation": validation,
        "test": test, "held": held, "names": [[names[i] for i in view] for view in (emotion, genre)],
    }  # fmt: skip


def digits(data: Path, name: str, rng) -> dict:
    """A draw of the rows of each digit; digit q is the pair (q mod 2, q div 2)."""
    X, y = load(data, name)
    order = rng.permutation(10)
    while order[0] // 2 == order[1] // 2:
        order = rng.permutation(10)
    train, validation, test = [], [], []
    for digit, samples in zip(order, SAMPLES, strict=True):
        rows = rng.permutation(np.flatnonzero(y == digit))
        rest = samples + 40 * (samples > 0)
        train.append(rows[:samples])
        validation.append(rows[samples:rest])
        test.append(rows[rest : rest + 150])
    train = np.concatenate(train)
    varies = X[train].std(0) > 0
    X = (X[:, varies] - X[train][:, varies].mean(0)) / np.ptp(X)
    X = np.hstack([X, np.zeros((len(X), len(varies) - X.shape[1]))])  # one shape for all splits
    held = np.zeros(10, bool)
    held[5 * (order[:2] % 2) + order[:2] // 2] = True
    return {
        "X": X, "Y1": np.eye(2)[y % 2], "Y2": np.eye(5)[y // 2], "train": train,
        "validation": np.concatenate(validation), "test": np.concatenate(test), "held": held,
        "names": [["even", "odd"], ["0-1", "2-3", "4-5", "6-7", "8-9"]],
    }  # fmt: skip


# ---------------------------------------------------------------- methods


class Quadratic:
    r"""``min 1/(2n) ||XW + 1b' - Y||^2 + ridge/2 ||W||^2 + strength/2 tr(W L W')`` for any strengths.

    X'X/n and L are decomposed once; of many minimisers the one of least norm.
    """

    def __init__(self, X, Y, similarity=None):
        self.mean, self.offset = X.mean(0), Y.mean(0)
        A = X - self.mean
        self.s, self.U = np.linalg.eigh(A.T @ A / len(X))
        self.s = np.where(self.s > 1e-10 * self.s[-1], self.s, 0)
        k = Y.shape[1]
        L = np.zeros((k, k)) if similarity is None else np.diag(similarity.sum(0)) - similarity
        self.l, self.V = np.linalg.eigh(L)
        self.l = np.maximum(self.l, 0)
        self.B = self.U.T @ (A.T @ (Y - self.offset) / len(X)) @ self.V

    def scores(self, X, ridge=0.0, strength=0.0):
        curvature = self.s[:, None] + ridge + strength * self.l[None]
        seen = (self.s > 0)[:, None] & (curvature > 0)  # B is zero elsewhere
        W = self.U @ np.where(seen, self.B / np.where(seen, curvature, 1), 0) @ self.V.T
        return (X - self.mean) @ W + self.offset


def svm_scores(X, Y, X_new, C):
    """Decision values; 0 for a label that all or none have."""
    scores = np.zeros((len(X_new), Y.shape[1]))
    for j in np.flatnonzero((Y.min(0) == 0) & (Y.max(0) == 1)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            scores[:, j] = LinearSVC(C=C, dual=True, max_iter=200).fit(X, Y[:, j]).decision_function(X_new)
    return scores


def product(scores1, scores2):
    return np.asarray(multi_semantic.enrich(scores1, scores2))


def candidates(split: dict, rows: np.ndarray, record: dict) -> dict:
    """For each method its settings, strong to weak, and the scores of ``rows`` with each."""
    X, Y1, Y2 = (split[name][split["train"]] for name in ("X", "Y1", "Y2"))
    new, Y, sizes = split["X"][rows], product(Y1, Y2), (Y1.shape[1], Y2.shape[1])
    variance = X.var(0).sum() / (X.var(0) > 0).sum()
    out: dict = {}

    built = len(np.unique(Y1.sum(1))) == 1 and sizes == (2, 5)
    parts = sizes if built else (graphs.ngd_similarity(Y1), graphs.ngd_similarity(Y2))
    similarity = {"views": graphs.from_views(*parts), "NGD": graphs.ngd_similarity(Y)}
    unit = {name: variance / float(P.sum(0).mean()) for name, P in similarity.items()}

    plain, view1, view2 = Quadratic(X, Y), Quadratic(X, Y1), Quadratic(X, Y2)
    confidence = lambda model, ridge: expit(4 * model.scores(new, ridge) - 2)
    out["NMTL"] = {(): plain.scores(new)}
    out["NMTL-E"] = {(): product(confidence(view1, 0), confidence(view2, 0))}
    out["ridge"] = {(r,): plain.scores(new, r * variance) for r in RIDGES}
    out["ridge-E"] = {
        (r,): product(confidence(view1, r * variance), confidence(view2, r * variance)) for r in RIDGES
    }
    for name, P in similarity.items():
        model = Quadratic(X, Y, np.asarray(P))
        out[f"MTLG (graph, {name})"] = {(g,): model.scores(new, 0, g * unit[name]) for g in GRAPHS}
        if name == "views":
            out[SHRUNK] = {
                (r, g): model.scores(new, r * variance, g * unit[name]) for r in RIDGES[1:8:2] for g in GRAPHS
            }

    def exclusive(strength, name, gamma):
        graph = sj.losses.GraphLaplacian(similarity[name], gamma * unit[name])
        model = multi_semantic.fit(X, Y1, Y2, strength * variance, graph, tol=TOL, maxiter=MAXITER)
        record["gap"] = max(record.get("gap", 0), float(model.solution.gap))
        record["zeros"][name, strength, gamma] = float((np.asarray(model.W) == 0).mean())
        return np.asarray(model.decision_function(new))

    out["MTLE (exclusive)"] = {(p,): exclusive(p, "views", 0.0) for p in PENALTIES}
    for name in similarity:
        out[f"IA-MSL (both, {name})"] = {(p, g): exclusive(p, name, g) for p in PENALTIES for g in GRAPHS}

    svms = {C: svm_scores(X, Y, new, C) for C in MARGINS}
    out["SVM"] = {(C,): scores for C, scores in svms.items()}
    out["SVM-E"] = {
        (C,): product(expit(svm_scores(X, Y1, new, C)), expit(svm_scores(X, Y2, new, C))) for C in MARGINS
    }
    return out


def run_split(split: dict) -> dict:
    """Every method: the strengths chosen, and the test AUC of each pair (None where undefined)."""
    pairs = product(split["Y1"], split["Y2"])
    validation, test, held = split["validation"], split["test"], split["held"]
    record: dict = {"zeros": {}}
    scores = candidates(split, np.concatenate([validation, test]), record)
    count = pairs[split["train"]].sum(0)
    if count[held].any():
        raise RuntimeError("a pair that is held out has training samples")

    def quality(values):
        return float(
            sj.metrics.mean_auc(pairs[validation][:, ~held], values[: len(validation)][:, ~held]).mean
        )

    out: dict = {"count": np.where(held, -1, count).astype(int).tolist(), "gap": record["gap"], "methods": {}}
    for method in METHODS:
        tried = {setting: quality(values) for setting, values in scores[method].items()}
        best = max(tried, key=tried.__getitem__)
        area = np.asarray(sj.metrics.auc(pairs[test], scores[method][best][len(validation) :]))
        out["methods"][method] = {
            "setting": [float(x) for x in best],
            "validation": tried[best],
            "zeros": record["zeros"]["views", *best] if method == BOTH else None,
            "auc": [None if np.isnan(a) else float(a) for a in area],
        }
    return out


def run_set(data: Path, name: str, splits: int) -> dict:
    out: dict = {"splits": []}
    for seed in range(splits):
        start, rng = time.time(), np.random.default_rng(seed)
        split = cal500(data, rng) if name == "cal500" else digits(data, name, rng)
        out["splits"].append(run_split(split))
        both, independent = (groups_of(out["splits"][-1], m)["all"] for m in (BOTH, "NMTL"))
        print(
            f"{name}, split {seed}: {time.time() - start:.0f} s, both {both:.3f}, NMTL {independent:.3f}",
            flush=True,
        )
    out |= {"n": len(split["train"]), "d": split["X"].shape[1], "names": split["names"]}
    return out


# ---------------------------------------------------------------- tables and figure


def groups_of(split: dict, method: str) -> dict:
    """Mean AUC of the pairs with as many training samples, NaN if there are none."""
    count = np.array(split["count"])
    area = np.array(split["methods"][method]["auc"], float)
    groups = {name: (count >= low) & (count <= high) for name, (low, high) in GROUPS.items()}
    groups["all"] = np.ones(len(count), bool)
    return {
        name: float(np.mean(area[at & ~np.isnan(area)])) if (at & ~np.isnan(area)).any() else np.nan
        for name, at in groups.items()
    }


def by_split(result: dict, method: str) -> dict:
    """(splits,) for each group that has pairs in every split."""
    rows = [groups_of(split, method) for split in result["splits"]]
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    return {name: x for name, x in columns.items() if np.isfinite(x).all()}


def mean_error(x: np.ndarray) -> tuple[float, float]:
    return float(x.mean()), float(x.std(ddof=1) / np.sqrt(len(x))) if len(x) > 1 else float("nan")


def table(name: str, result: dict) -> str:
    """AUC in per cent by group, the best of each group in bold; then what both together gain."""
    values = {m: by_split(result, m) for m in METHODS}
    columns = list(values[BOTH])
    splits = result["splits"]
    sizes = {
        c: np.mean([
            sum(a is not None and (c == "all" or GROUPS[c][0] <= k <= GROUPS[c][1])
                for k, a in zip(s["count"], s["methods"][BOTH]["auc"], strict=True))
            for s in splits
        ])
        for c in columns
    }  # fmt: skip
    lines = [
        f"**{name}**: n = {result['n']}, d = {result['d']}, "
        f"{' x '.join(str(len(v)) for v in result['names'])} labels, {len(splits)} splits; "
        f"largest gap {max(s['gap'] for s in splits):.0e}; zeros in W of IA-MSL (views), "
        f"{100 * np.mean([s['methods'][BOTH]['zeros'] for s in splits]):.0f} %",
        "",
        "| training samples | " + " | ".join(columns) + " |",
        "| --- " * (len(columns) + 1) + "|",
        "| pairs with a test AUC | " + " | ".join(f"{sizes[c]:.0f}" for c in columns) + " |",
    ]
    best = {c: max(values[m][c].mean() for m in METHODS) for c in columns}
    for m in METHODS:
        cells = []
        for c in columns:
            mean, error = mean_error(100 * values[m][c])
            cells.append(
                f"**{mean:.1f}** ± {error:.1f}"
                if values[m][c].mean() == best[c]
                else f"{mean:.1f} ± {error:.1f}"
            )
        lines.append(f"| {m} | " + " | ".join(cells) + " |")
    lines += ["", "IA-MSL (views) less each, points ± paired standard error:", ""]
    lines += ["| less | " + " | ".join(columns) + " |", "| --- " * (len(columns) + 1) + "|"]
    for m in METHODS:
        if m != BOTH:
            cells = (mean_error(100 * (values[BOTH][c] - values[m][c])) for c in columns)
            lines.append(f"| {m} | " + " | ".join(f"{a:+.1f} ± {e:.1f}" for a, e in cells) + " |")
    return "\n".join(lines) + "\n"


PARTS = ("NMTL", "MTLG (graph, views)", "MTLE (exclusive)")
OTHERS = tuple(m for m in METHODS if not m.startswith("IA-MSL"))


def judged(gains: dict) -> str:
    """Where a gain is more than two errors above, and below, zero."""
    above = [c for c, (mean, error) in gains.items() if mean > 2 * error]
    below = [c for c, (mean, error) in gains.items() if mean < -2 * error]
    return f"{', '.join(above) or '-'} | {', '.join(below) or '-'}"


def verdict(results: dict) -> str:
    """The claim, "both together win most where samples are few", group by group, from the numbers."""
    lines = [
        "Does IA-MSL (both, views) win, and most where samples are few? Points over the best of its parts",
        "(the paper's ablation) and over the best of all methods but IA-MSL, ± paired standard error. The",
        "best has the largest mean in the group, which favours it a little.",
        "",
        "| data | training samples | over the best part | part | over the best other | other |",
        "| --- " * 6 + "|",
    ]
    gains: dict = {}
    for name, result in results.items():
        values = {m: by_split(result, m) for m in METHODS}
        gains[name] = {
            m: {c: mean_error(100 * (values[BOTH][c] - values[m][c])) for c in values[m]} for m in METHODS
        }
        for c in values[BOTH]:
            best = [max(rivals, key=lambda m: values[m][c].mean()) for rivals in (PARTS, OTHERS)]
            cells = ["{:+.1f} ± {:.1f} | {}".format(*gains[name][m][c], m) for m in best]
            lines.append(f"| {name} | {c} | " + " | ".join(cells) + " |")
    lines += ["", "Where IA-MSL (both, views) is better, and where worse, by more than two errors:", ""]
    lines += ["| data | than | better | worse |", "| --- " * 4 + "|"]
    for name, by_method in gains.items():
        lines += [f"| {name} | {m} | {judged(by_method[m])} |" for m in METHODS if m != BOTH]
    return "\n".join(lines) + "\n"


STYLE = {  # Okabe & Ito's colours, which colour-blind readers can tell apart; markers differ as well
    "SVM": ("#999999", "x", ":"),
    "ridge-E": ("#CC79A7", "^", "--"),
    "NMTL": ("#000000", "s", ":"),
    "ridge": ("#56B4E9", "+", "--"),
    "MTLG (graph, views)": ("#0072B2", "D", "-"),
    "MTLE (exclusive)": ("#009E73", "v", "-"),
    SHRUNK: ("#E69F00", ".", "--"),
    BOTH: ("#D55E00", "o", "-"),
}


def figure(results: dict, path: Path) -> None:
    fig, axes = plt.subplots(1, len(results), figsize=(4.3 * len(results), 4.2), squeeze=False)
    for ax, (name, result) in zip(axes[0], results.items(), strict=True):
        for i, (method, (colour, marker, line)) in enumerate(STYLE.items()):
            values = {c: x for c, x in by_split(result, method).items() if c != "all"}
            mean, error = np.array([mean_error(100 * x) for x in values.values()]).T
            ax.errorbar(
                np.arange(len(values)) + 0.04 * (i - 3.5), mean, error, color=colour, marker=marker,
                linestyle=line, label=method, markersize=5, linewidth=1.4, elinewidth=0.7,
            )  # fmt: skip
        ax.set_xticks(np.arange(len(values)), values)
        ax.set_title(f"{name} ({' x '.join(str(len(v)) for v in result['names'])} labels)", fontsize=10)
        ax.set_xlabel("training samples of the pair")
        ax.grid(alpha=0.25)
    axes[0, 0].set_ylabel("mean test AUC, % (± standard error)")
    fig.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="lower center", ncols=4, frameon=False, fontsize=9
    )
    fig.tight_layout(rect=(0, 0.12, 1, 1))
    fig.savefig(path, dpi=110)
    plt.close(fig)


def report(out: Path) -> None:
    """Tables and figure from what is finished."""
    paths = {name: out / f"mm11_{name}.json" for name in SETS}
    results = {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
    if results:
        figure(results, out / "mm11.png")
        parts = [verdict(results), *(table(name, result) for name, result in results.items())]
        (out / "mm11.md").write_text("\n".join(parts))


def main() -> None:
    parser = argparse.ArgumentParser(description="The ablation of Chen et al., ACM MM 2011.")
    parser.add_argument("--data", help="folder with the .npz files; default $SPARSEJAX_DATA")
    parser.add_argument("--out", type=Path, required=True, help="folder for tables, the figure and numbers")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--splits", type=int, default=12, help="random splits of each set")
    parser.add_argument("--report", action="store_true", help="only rewrite tables and the figure")
    args = parser.parse_args()
    names = args.sets.split(",")
    unknown = set(names) - set(SETS)
    if unknown:
        parser.error(f"unknown sets {sorted(unknown)}; there are {', '.join(SETS)}")
    args.out.mkdir(parents=True, exist_ok=True)
    for name in [] if args.report else names:
        path, start = args.out / f"mm11_{name}.json", time.time()
        if not path.exists():
            path.write_text(json.dumps(run_set(folder(args.data), name, args.splits)))
            print(f"{name}: {time.time() - start:.0f} s", flush=True)
    report(args.out)


if __name__ == "__main__":
    main()
