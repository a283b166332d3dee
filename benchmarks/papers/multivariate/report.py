"""Tables and figures."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import figures
from harness.jobs import Results
from harness.tables import table
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from scipy.stats import ttest_rel

from papers.multivariate import accuracy, bags

SVMS = [(m, w) for m in ("SVM-RFE", "l1-SVM") for w in ("plain", "weighted")]
OURS = [("ours", "F1"), ("ours", "Hamming")]

# Figures of each job as arrays, by (method, trained for, budget) and name; the budget of all features is "m".
Groups = dict[tuple, dict[str, np.ndarray]]


def collect(results: Results, pattern: str) -> tuple[int, Groups]:
    """The number of jobs, and their figures in the jobs' order."""
    jobs = results.matching(pattern)
    groups: dict = {}
    for result in jobs:
        for row in result["rows"]:
            everything = row["method"] == "ours" and row["budget"] not in (*accuracy.BUDGETS, *bags.BUDGETS)
            key = (row["method"], row["trained"], "m" if everything else row["budget"])
            for name, value in row.items():
                if isinstance(value, (int, float)):
                    groups.setdefault(key, {}).setdefault(name, []).append(value)
    return len(jobs), {k: {n: np.array(v) for n, v in g.items()} for k, g in groups.items()}


def with_other(g: Groups, other: str, *key: Any) -> str:
    """Mean F1 at decision 0, and another measure in brackets."""
    return f"{g[key]['F1'].mean():.1f} ({g[key][other].mean():.1f})" if key in g else "-"


def mean(g: Groups, what: str, *key: Any, digits: int = 1) -> str:
    """Over the jobs."""
    return f"{g[key][what].mean():.{digits}f}" if key in g else "-"


def accuracy_table(g: Groups) -> str:
    """F1 (tuned) by budget, all methods at as many features; PRBEP of ours trained for it."""
    rows, prbep = [], (("ours", "PRBEP"), ("SVM-RFE", "plain"), ("l1-SVM", "plain"))
    for budget in (b for b in accuracy.BUDGETS if ("ours", "F1", b) in g):
        cells = [with_other(g, "F1 tuned", *key, budget) for key in (*OURS, *SVMS)]
        last = [mean(g, "PRBEP", *key, budget) for key in prbep]
        rows.append((budget, mean(g, "features", "ours", "F1", budget, digits=0), *cells, *last))
    everything = mean(g, "features", "SVM", "plain", None, digits=0)
    ours, *svms = (
        with_other(g, "F1 tuned", *key)
        for key in (("ours", "F1", "m"), ("SVM", "plain", None), ("SVM", "weighted", None))
    )
    last = [mean(g, "PRBEP", "ours", "PRBEP", "m"), mean(g, "PRBEP", "SVM", "plain", None)]
    rows.append(("all", everything, ours, "-", *svms, "-", "-", *last, "-"))
    heads = [f"{m} {w}" if w == "weighted" else m for m, w in SVMS]
    header = ("B", "features", "ours F1", "ours Hamming", *heads, "PRBEP: ours", "SVM-RFE", "l1-SVM")
    return table(header, rows)


def table_2(g: Groups) -> str:
    """The paper's Table 2: at the largest budget.

    In brackets the jobs in which ours is above / below the row, with a star where a paired t-test over jobs
    tells them apart at 0.95.
    """
    largest = max(b for m, t, b in g if (m, t) == ("ours", "F1") and b != "m")
    measures = {"F1": "F1", "F1 tuned": "F1", "Rec@2p": "Rec@2p", "PRBEP": "PRBEP"}  # trained for
    first = f"ours, B = {largest}"
    methods = {first: lambda kind: ("ours", kind, largest)}
    methods[f"ours Hamming, B = {largest}"] = lambda kind: ("ours", "Hamming", largest)
    methods["ours, B = m (SVMperf)"] = lambda kind: ("ours", kind, "m")
    for m, w in SVMS:
        methods[f"{m} {w}"] = lambda kind, m=m, w=w: (m, w, largest)
    for w in ("plain", "weighted"):
        methods[f"SVM {w}"] = lambda kind, w=w: ("SVM", w, None)
    rows = []
    for name, key in methods.items():
        cells = []
        for measure, kind in measures.items():
            ours, other = (g[k][measure] for k in (methods[first](kind), key(kind)))
            cells.append(f"{other.mean():.1f}" + ("" if name == first else compared(ours, other)))
        counts = [mean(g, "features", *k, digits=0) for k in dict.fromkeys(map(key, measures.values()))]
        rows.append((name, *cells, " / ".join(counts)))
    return table(("", *measures, "features (F1 / Rec@2p / PRBEP)"), rows)


def compared(ours: np.ndarray, other: np.ndarray) -> str:
    """Jobs above / below, with a star."""
    star = "*" if len(ours) > 2 and ttest_rel(ours, other).pvalue < 0.05 else ""
    return f" ({(ours > other).sum()}/{(ours < other).sum()}){star}"


def bag_rows(name: str, jobs: int, g: Groups) -> Iterator[tuple]:
    """F1 (accuracy) of all methods at as many instances; MILES, whose C is chosen freely, once."""
    free = [with_other(g, "accuracy", "MILES", w, None) for w in ("plain", "weighted")]
    last = [*free, mean(g, "features", "MILES", "plain", None, digits=0)]
    for budget, start in ((10, (name, jobs)), (100, ("", ""))):
        cells = [with_other(g, "accuracy", *key, budget) for key in (*OURS, *SVMS)]
        instances = mean(g, "features", "ours", "F1", budget, digits=0)
        yield (*start, budget, instances, *cells, *last)
        last = [""] * 3


def accuracy_report(results: Results) -> Iterator[str]:
    """Two tables a set; a figure into the folder."""
    for name in accuracy.SETS:
        jobs, g = collect(results, f"accuracy_{name}_*")
        if jobs:
            yield f"### {name} (means of {jobs} classes and splits)\n"
            yield from (accuracy_table(g), table_2(g))
            panels = {f"{name}: {measure}": (g, measure) for measure in ("F1", "F1 tuned")}
            draw(results.folder / f"multivariate_{name}.png", panels, 2)


def bags_report(results: Results) -> Iterator[str]:
    """One table; a figure into the folder."""
    rows, panels = [], {}
    for name in bags.BAGS:
        for label in bags.classes(name):
            jobs, g = collect(results, f"bags_{name}_*_{label}")
            if jobs:
                panels[f"{name} {label}"] = (g, "F1")
                rows += bag_rows(f"{name} {label}", jobs, g)
    if rows:
        heads = ("ours F1", "ours Hamming", *(f"{m} {w}" for m, w in SVMS), "MILES", "MILES weighted", "its")
        yield "### bags: F1 (accuracy)\n"
        yield table(("class", "splits", "B", "instances", *heads), rows)
        draw(results.folder / "multivariate_bags.png", panels, 5)


def speed_report(results: Results) -> Iterator[str]:
    """Tables of what `papers.multivariate.speed` measures."""
    for name, result in results.found(("schedules", "newsgroups")).items():
        yield from (f"### {name}\n", as_table(result["rows"]))
    growth = results.matching("growth_*")
    if growth:
        yield from ("### growth\n", as_table(sorted(growth, key=lambda row: (row["m"], row["n"]))))


def as_table(rows: list[dict]) -> str:
    """Rows as they are."""
    header = list(dict.fromkeys(key for row in rows for key in row))
    shown = lambda value: f"{value:.4g}" if isinstance(value, float) else value
    return table(header, [[shown(row.get(key, "-")) for key in header] for row in rows])


def sensitivity_report(results: Results) -> Iterator[str]:
    """F1 and number of features by C and B."""
    for result in results.found(("sensitivity",)).values():
        rows = result["rows"]
        cell = lambda r: f"{r['F1']:.1f} ({r['features']})"
        found = {b: [cell(r) for r in rows if r["budget"] == b] for b in accuracy.BUDGETS}
        header = ("B", *(f"C/n = {c:g} (2000/n)^2" for c in dict.fromkeys(r["c"] for r in rows)))
        yield "### sensitivity on basehock: F1 (features)\n"
        yield table(header, [(b, *cells) for b, cells in found.items()])


def draw(path: Path, panels: dict[str, tuple[Groups, str]], across: int) -> None:
    """A measure of each method by its number of features; a panel is (figures by method, measure)."""
    figure, axes = figures.panels(len(panels), across, (4 + 2 / across, 4), layout="tight")
    for axis, (title, (g, measure)) in zip(axes, panels.items(), strict=False):
        for method, trained in dict.fromkeys((m, t) for m, t, b in g if b not in ("m", None)):
            line = [v for (m, t, b), v in g.items() if (m, t) == (method, trained) and b not in ("m", None)]
            points = sorted((v["features"].mean(), v[measure].mean()) for v in line)
            style = {"ours": "-o", "SVM-RFE": "--s", "l1-SVM": ":^"}[method]
            axis.semilogx(*zip(*points, strict=True), style, ms=3, label=f"{method}, {trained}")
        axis.set(xlabel="features", title=title)
        axis.xaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), major_formatter=StrMethodFormatter("{x:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
    for axis in axes[len(panels) :]:
        axis.axis("off")
    axes[0].set_ylabel("test F1, %")
    axes[0].legend(fontsize=7)
    figure.savefig(path, dpi=120)


def report(results: Results) -> list[str]:
    """Everything that is finished."""
    parts = (accuracy_report, bags_report, speed_report, sensitivity_report)
    return [text for part in parts for text in part(results)]
