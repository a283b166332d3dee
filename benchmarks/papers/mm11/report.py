"""Tables and figure."""

from pathlib import Path

import numpy as np
from harness import figures
from harness.figures import Style, curve
from harness.tables import gain, mean_error, score, table

from papers.mm11.methods import BOTH, METHODS, SHRUNK

GROUPS = {"held out": (-1, -1), "0": (0, 0), "1-5": (1, 5), "6-20": (6, 20), "21-100": (21, 100),
          ">100": (101, 10**9), "all": (-1, 10**9)}  # fmt: skip
PARTS = ("NMTL", "MTLG (graph, views)", "MTLE (exclusive)")
OTHERS = tuple(m for m in METHODS if not m.startswith("IA-MSL"))


def groups_of(split: dict, method: str) -> dict[str, np.ndarray]:
    """Test AUC of the pairs with as many training samples, in per cent, where it is defined."""
    count = np.array(split["count"])
    area = 100 * np.array(split["methods"][method]["auc"], float)
    return {
        name: area[(count >= low) & (count <= high) & ~np.isnan(area)] for name, (low, high) in GROUPS.items()
    }


def mean_auc(split: dict, method: str) -> float:
    """Of all pairs."""
    return float(groups_of(split, method)["all"].mean())


def by_split(result: dict, method: str) -> dict[str, np.ndarray]:
    """Mean AUC, (splits,), for each group that has pairs in every split."""
    rows = [groups_of(split, method) for split in result["splits"]]
    return {c: np.array([row[c].mean() for row in rows]) for c in GROUPS if all(row[c].size for row in rows)}


def labels(result: dict) -> str:
    """How many there are in each view."""
    return f"{' x '.join(str(len(view)) for view in result['names'])} labels"


def set_tables(name: str, result: dict) -> str:
    """AUC by group, the best of each group in bold; then what both together gain."""
    values, splits = {m: by_split(result, m) for m in METHODS}, result["splits"]
    columns = list(values[BOTH])
    sizes = {c: np.mean([groups_of(split, BOTH)[c].size for split in splits]) for c in columns}
    best = {c: max(values[m][c].mean() for m in METHODS) for c in columns}
    rows = [("pairs with a test AUC", *(f"{sizes[c]:.0f}" for c in columns))]
    rows += [(m, *(score(values[m][c], best[c]) for c in columns)) for m in METHODS]
    gains = ((m, *(gain(values[BOTH][c] - values[m][c]) for c in columns)) for m in METHODS if m != BOTH)
    zeros = 100 * np.mean([split["methods"][BOTH]["zeros"] for split in splits])
    gap = max(split["gap"] for split in splits)
    title = (
        f"**{name}**: n = {result['n']}, d = {result['d']}, {labels(result)}, {len(splits)} splits; "
        f"largest gap {gap:.0e}; zeros in W of IA-MSL (views), {zeros:.0f} %\n\n"
    )
    between = "\nIA-MSL (views) less each, points ± paired standard error:\n\n"
    both = table(("training samples", *columns), rows), table(("less", *columns), gains)
    return title + between.join(both)


def judged(differences: dict[str, np.ndarray]) -> tuple[str, str]:
    """Where a gain is more than two errors above, and below, zero."""
    gains = {c: mean_error(values) for c, values in differences.items()}
    above = [c for c, (mean, error) in gains.items() if mean > 2 * error]
    below = [c for c, (mean, error) in gains.items() if mean < -2 * error]
    return ", ".join(above) or "-", ", ".join(below) or "-"


def verdict(results: dict) -> str:
    """The claim, "both together win most where samples are few", group by group, from the numbers."""
    rows, judgements = [], []
    for name, result in results.items():
        values = {m: by_split(result, m) for m in METHODS}
        gains = {m: {c: values[BOTH][c] - values[m][c] for c in values[m]} for m in METHODS}
        for c in values[BOTH]:
            best = [max(rivals, key=lambda m, c=c: values[m][c].mean()) for rivals in (PARTS, OTHERS)]
            rows.append((name, c, *(cell for m in best for cell in (gain(gains[m][c]), m))))
        judgements += [(name, m, *judged(gains[m])) for m in METHODS if m != BOTH]
    text = (
        "Does IA-MSL (both, views) win, and most where samples are few? Points over the best of its parts\n"
        "(the paper's ablation) and over the best of all methods but IA-MSL, ± paired standard error. The\n"
        "best has the largest mean in the group, which favours it a little.\n\n"
    )
    over = ("over the best part", "part", "over the best other", "other")
    text += table(("data", "training samples", *over), rows)
    text += "\nWhere IA-MSL (both, views) is better, and where worse, by more than two errors:\n\n"
    return text + table(("data", "than", "better", "worse"), judgements)


STYLE = {
    "SVM": Style(figures.GREY, "x", ":"),
    "ridge-E": Style(figures.PINK, "^", "--"),
    "NMTL": Style(figures.BLACK, "s", ":"),
    "ridge": Style(figures.SKY, "+", "--"),
    "MTLG (graph, views)": Style(figures.BLUE, "D"),
    "MTLE (exclusive)": Style(figures.GREEN, "v"),
    SHRUNK: Style(figures.ORANGE, ".", "--"),
    BOTH: Style(figures.RED, "o"),
}


def draw(results: dict, path: Path) -> None:
    """Mean AUC by group, a panel a set."""
    figure, axes = figures.panels(len(results), len(results), (4.3, 4.2))
    for axis, (name, result) in zip(axes, results.items(), strict=True):
        for i, (method, style) in enumerate(STYLE.items()):
            values = {c: x for c, x in by_split(result, method).items() if c != "all"}
            mean, error = np.array([mean_error(x) for x in values.values()]).T
            curve(axis, np.arange(len(values)) + 0.04 * (i - 3.5), mean, style, method, error)
        axis.set_xticks(np.arange(len(values)), values)
        axis.set_title(f"{name} ({labels(result)})", fontsize=10)
        axis.set_xlabel("training samples of the pair")
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("mean test AUC, % (± standard error)")
    figures.save_with_legend_below(figure, 0.12, path)


def report(results: dict, folder: Path) -> list[str]:
    """Tables; the figure into the folder."""
    draw(results, folder / "mm11.png")
    return [verdict(results), *(set_tables(name, result) for name, result in results.items())]
