"""Figures: panels, curves, legends. No backend is chosen: a `matplotlib.figure.Figure` can save itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe & Ito's colours, which colour-blind readers can tell apart; markers differ as well.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, RED, PINK, GREY = "#0072B2", "#D55E00", "#CC79A7", "#999999"


class Style(NamedTuple):
    """How a method is drawn, the same in all panels."""

    color: str
    marker: str = ""
    linestyle: str = "-"


def panels(count: int, across: int, size: tuple[float, float], **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels of this size, so many in a row."""
    down = -(-count // across)
    figure = Figure(figsize=(size[0] * across, size[1] * down), **options)
    return figure, list(figure.subplots(down, across, squeeze=False).flat)


def curve(axis: Axes, x: Any, y: Any, style: Style, label: str, error: Any = None) -> None:
    """A line with markers and, if errors are given, their bars."""
    axis.errorbar(x, y, error, label=label, markersize=4.5, linewidth=1.3, elinewidth=0.6, **style._asdict())


def legend_in_free_panel(axes: Sequence[Axes], used: int) -> None:
    """The legend of the first panel in the last, if there is one more than is used."""
    for axis in axes[used:]:
        axis.axis("off")
    if used < len(axes):
        axes[-1].legend(*axes[0].get_legend_handles_labels(), loc="center", fontsize=10, frameon=False)


def save_with_legend_below(figure: Figure, room: float, path: Path) -> None:
    """The legend of the first panel under all of them, in that share of the height."""
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="lower center", ncols=4, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, room, 1, 1))
    figure.savefig(path, dpi=110)
