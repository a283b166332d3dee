r"""One picture of the times beside other libraries: those of results/; nothing is measured here.

A dot is the peer's time over ours for the same objective, ours to a certified gap of 1e-6, the peer's at the
loosest of its tolerances that is as good: right of 1 ours is faster, left of it the peer. Each row names the
table, how its line begins and two columns, so that the picture says what the tables say. Writes
``figures/peers.png`` into the folder ``--out``. Run it with ``python benchmarks/peers.py --out benchmarks``.
"""

import argparse
import re
from pathlib import Path

from harness.figures import BLUE, GREEN, ORANGE, panels
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

RESULTS = Path(__file__).parent / "results"
STYLES = {"celer": (BLUE, "o"), "scikit-learn": (ORANGE, "s"), "skglm": (GREEN, "D")}
# What is shown, the peer, the file (and a heading in it), how its line begins, the columns of peer and ours.
ROWS = (
    ("path of 50, l2,1, isolet (1560 x 617, 26 columns)", "celer", "wide ## Paths", "isolet", -1, -3),
    ("path of 50, l2,1, yale", "celer", "wide ## Paths", "yale", -1, -3),
    ("path of 50, l2,1, glioma (50 x 4434, 4 columns)", "celer", "wide ## Paths", "glioma", -1, -3),
    ("path of 50, lasso, 60 x 1000", "celer", "wide ## Paths", "n 60, d 1000, k 1", -1, -3),
    ("one l2,1, isolet", "scikit-learn", "wide", "isolet /10 1e-06", -1, -3),
    ("one l2,1, glioma", "celer", "wide", "glioma /10 1e-06", -2, -3),
    (
        "one l2,1, independent columns, 200 x 4000",
        "celer",
        "wide",
        "n 200, d 4000, k 4, common 0.0 /10 1e-06",
        -2,
        -3,
    ),
    ("one lasso, 100 x 100 000", "celer", "wide ## Lasso", "0.3", -1, -3),
    ("multinomial l1, 400 x 200", "scikit-learn", "neighbours", "multinomial l1", 6, 5),
    ("Poisson l1, 500 x 200", "skglm", "neighbours", "Poisson l1", 6, 5),
    ("Huber l1, 500 x 200", "skglm", "neighbours", "Huber l1", 6, 5),
    ("sparse group lasso, 200 x 1000", "skglm", "neighbours", "sparse group lasso", 6, 5),
    ("elastic net, 500 x 1000", "scikit-learn", "neighbours", "elastic net", 6, 5),
    ("Cox l1, 6524 patients", "skglm", "cox", "flchain 6524 23 /10 1e-06", 11, 8),
    ("Cox l1, 198 patients", "skglm", "cox", "breast cancer 198 82 /10 1e-06", 11, 8),
    ("first call, Cox l1", "skglm", "cox", "breast cancer 198 82 /10 1e-06", 12, 9),
    ("first call, sparse group lasso", "skglm", "neighbours", "sparse group lasso", 9, 8),
    ("first call, multinomial l1", "scikit-learn", "neighbours", "multinomial l1", 9, 8),
)


def ratio(file: str, start: str, peer: int, ours: int) -> float:
    """The peer's seconds over ours, of the first line that begins so (below the heading, if one is named)."""
    name, _, heading = file.partition(" ## ")
    text = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    for line in text[text.index(f"## {heading}") if heading else 0 :].splitlines():
        cells = re.split(r" *\| *", line.strip("| ")) if line.startswith("|") else line.split()
        if " ".join(cells).startswith(start):
            return float(cells[peer]) / float(cells[ours])
    raise ValueError(f"{file}.md has no line that begins with {start!r}")


def draw(axis: Axes) -> None:
    """One line a row, the fastest of ours on top."""
    rows = sorted((ratio(*where), label, peer) for label, peer, *where in ROWS)
    for place, (times, _, peer) in enumerate(rows):
        color, marker = STYLES[peer]
        axis.plot([1, times], [place, place], color=color, linewidth=1.5, alpha=0.5)
        axis.plot(times, place, marker, color=color, markersize=6)
        told = f"{times:.0f}" if times >= 100 else f"{times:.2g}"
        axis.annotate(told, (times, place), (8 if times > 1 else -8, 0), textcoords="offset points",
                      va="center", ha="left" if times > 1 else "right", fontsize=8)  # fmt: skip
    axis.axvline(1, color="0.3", linewidth=1)
    axis.set_xscale("log")
    axis.set_xlim(min(rows)[0] / 2.2, max(rows)[0] * 2)
    axis.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    axis.set_yticks(range(len(rows)), [label for _, label, _ in rows], fontsize=9)
    axis.set_xlabel(
        "the peer's time / ours        (left of the line the peer is faster, right of it sparsejax)"
    )
    handles = [Line2D([], [], color=c, marker=m, linestyle="", label=name) for name, (c, m) in STYLES.items()]
    axis.legend(handles=handles, loc="lower right", frameon=False)
    axis.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Read the tables, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder that gets figures/peers.png")
    figure, (axis,) = panels(1, 1, (9, 5.2), layout="constrained")
    draw(axis)
    path = parser.parse_args().out / "figures" / "peers.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, pil_kwargs={"optimize": True})
    print(path)


if __name__ == "__main__":
    main()
