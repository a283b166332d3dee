"""Tables and figure of the accuracies (Figure 2)."""

from pathlib import Path

import numpy as np
from harness import figures
from harness.figures import Style, curve
from harness.tables import gain, mean_error, score, table

from papers.ijcai19.accuracy import COMMITTEE, EQUAL, METHODS, OTHERS, SPARSE, TUNED


def by_fold(result: dict, method: str, what: str = "accuracy") -> np.ndarray:
    """In per cent, (folds, sizes)."""
    return 100 * np.array([fold["methods"][method][what] for fold in result["folds"]], dtype=float)


def picked(result: dict, method: str, what: str) -> float:
    """What a method picked, mean over the folds."""
    return float(np.mean([fold["methods"][method]["picked"][what] for fold in result["folds"]]))


def everything(result: dict) -> float:
    """The accuracy with all features, in per cent."""
    return float(100 * np.mean([fold["all features"] for fold in result["folds"]]))


def accuracy_table(name: str, result: dict) -> str:
    """Mean and standard error over the folds."""
    best = np.max([by_fold(result, m).mean(0) for m in METHODS], axis=0)
    rows = []
    for method in METHODS:
        kept = f"{picked(result, method, 'nonzeros'):.0f}" if method in SPARSE else "-"
        cells = (score(values, b) for values, b in zip(by_fold(result, method).T, best, strict=True))
        rows.append((method, kept, *cells))
    title = (
        f"**{name}** (n = {result['n']}, d = {result['d']}, k = {result['k']}; "
        f"all features {everything(result):.1f}; "
        f"T = {result['folds'][0]['T']}; beta / alpha by fold {[f['ratio'] for f in result['folds']]})\n\n"
    )
    return title + table(("method", "weights", *result["sizes"]), rows)


def against_best(result: dict, method: str, low: int, high: int, what: str = "accuracy") -> tuple[str, str]:
    """By how much ``method`` beats the best of OTHERS over these sizes, and which that is."""
    sizes = COMMITTEE if what == "committee" else result["sizes"]
    at = [i for i, m in enumerate(sizes) if low <= m <= high]
    scores = {m: by_fold(result, m, what)[:, at].mean(1) for m in (method, *OTHERS)}
    rival = max(OTHERS, key=lambda m: scores[m].mean())
    difference = scores[method] - scores[rival]
    return gain(difference) if np.isfinite(difference).all() else "-", rival


def summary(results: dict, method: str) -> str:
    """Exclusive l2,1 less the best of the five others, in points."""
    rows = []
    for name, result in results.items():
        few, many = against_best(result, method, 10, 20), against_best(result, method, 60, 80)
        other = (against_best(result, method, 10, 20, what)[0] for what in ("votes", "committee"))
        rows.append((name, *few, *many, *other))
    header = ("data", "10-20", "best other", "60-80", "best other", "10-20, votes", "10-20, committee")
    return f"{method}, less the best other, points ± paired standard error\n\n" + table(header, rows)


def picks(results: dict) -> str:
    """What the methods picked at 20 features a class."""

    def cell(result: dict, method: str) -> str:
        a, b, c, e = (picked(result, method, x) for x in ("distinct", "shared", "correlation", "as tuned"))
        return f"{a:.0f} / {b:.2f} / {c:.2f} / {e:.2f}"

    rows = ((name, *(cell(result, method) for method in METHODS)) for name, result in results.items())
    title = (
        "At 20 features a class, mean over folds: distinct features / share common to two classes / mean "
        "|correlation| of the features of a class / share in common with exclusive l2,1 (ratio tuned)\n\n"
    )
    return title + table(("data", *METHODS), rows)


STYLE = {
    TUNED: Style(figures.RED, "o"),
    EQUAL: Style(figures.ORANGE, "v"),
    "l2,1": Style(figures.BLUE, "s"),
    "exclusive lasso": Style(figures.GREEN, "D"),
    "mRMR": Style(figures.PINK, "^", "--"),
    "F statistic": Style(figures.BLACK, "x", "--"),
    "ReliefF": Style(figures.SKY, "+", "--"),
    "F, by class": Style(figures.GREY, ".", ":"),
}


def draw(results: dict, path: Path) -> None:
    """Accuracy by number of features, a panel a set."""
    figure, axes = figures.panels(8, 4, (3.25, 3.1), layout="constrained")
    for axis, (name, result) in zip(axes, results.items(), strict=False):
        for i, (method, style) in enumerate(STYLE.items()):
            mean, error = mean_error(by_fold(result, method))
            x = np.array(result["sizes"]) + 0.5 * (i - 3.5)  # so that error bars do not hide each other
            curve(axis, x, mean, style, method, error)
        axis.axhline(everything(result), color="0.6", linewidth=0.8, zorder=0, label="all features")
        size = f"n={result['n']}, d={result['d']}, k={result['k']}"
        axis.set_title(f"{name.removesuffix('_2000')}  ({size})", fontsize=10)
        axis.set_xticks(result["sizes"])
        axis.grid(alpha=0.25)
    figures.legend_in_free_panel(axes, len(results))
    figure.supxlabel("features for each class", fontsize=11)
    figure.supylabel("5-fold accuracy, % (± standard error)", fontsize=11)
    figure.savefig(path, dpi=110)


def report(results: dict, folder: Path) -> list[str]:
    """Tables; the figure into the folder."""
    draw(results, folder / "ijcai19_fig2.png")
    summaries = [summary(results, method) for method in (TUNED, EQUAL)]
    return [*summaries, picks(results), *(accuracy_table(name, result) for name, result in results.items())]
