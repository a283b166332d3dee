"""Axes, line styles, names, and checks of the arguments, for all pictures."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from sparsejax._core.checks import as_numpy, is_traced
from sparsejax.solution import Solution

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# Okabe & Ito's colours without yellow, which is faint on white, and black, which is invisible on black.
STYLES = (
    {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    {"color": "#E69F00", "linestyle": "--", "marker": "s"},
    {"color": "#009E73", "linestyle": "-.", "marker": "^"},
    {"color": "#D55E00", "linestyle": "-", "marker": "D"},
    {"color": "#CC79A7", "linestyle": "--", "marker": "v"},
    {"color": "#56B4E9", "linestyle": "-.", "marker": "P"},
)
BLUE, FAINT = STYLES[0]["color"], "#999999"
# More lines than this of one kind are drawn fainter, and as one image in a vector graphic.
MAX_VECTOR_LINES = 200


def library() -> Any:
    """The module matplotlib; if it is missing, an error says how to install it."""
    try:
        import matplotlib  # noqa: PLC0415
        import matplotlib.axes  # noqa: PLC0415
        import matplotlib.collections  # noqa: PLC0415
        import matplotlib.colors  # noqa: PLC0415
        import matplotlib.patches  # noqa: PLC0415
        import matplotlib.ticker  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'sparsejax.plots needs matplotlib (the extra "sparsejax[plots]"): pip install matplotlib.'
        ) from error
    return matplotlib


def axes_of(name: str, ax: "Axes | None") -> "Axes":
    """The axes to draw into: ``ax``, or new ones of pyplot for None."""
    matplotlib = library()
    if ax is None:
        import matplotlib.pyplot as plt  # noqa: PLC0415

        return plt.subplots(layout="constrained")[1]
    if not isinstance(ax, matplotlib.axes.Axes):
        raise TypeError(f"{name}: ax must be matplotlib axes, got {type(ax).__name__}.")
    return ax


def ink(ax: "Axes") -> Any:
    """The colour of the axes' text: black on white, white on black."""
    return ax.xaxis.label.get_color()


def check_kind(name: str, x: Any, kind: type, source: str) -> None:
    """Raise a TypeError unless x is of the class ``kind``, which the function ``source`` returns."""
    if not isinstance(x, kind):
        raise TypeError(f"{name} must be the {kind.__name__} of {source}, got {type(x).__name__}.")


def as_real(name: str, x: Any) -> np.ndarray:
    """The argument ``name`` as a numpy array of real numbers; an error if it is traced or something else."""
    if any(map(is_traced, jax.tree.leaves(x))):
        raise TypeError(f"{name} is traced: draw outside jit and vmap.")
    found = as_numpy(name, x)
    if found.dtype.kind not in "biuf":
        raise TypeError(f"{name} must hold real numbers, got {type(x).__name__} of {found.dtype}.")
    return found.astype(float) if found.dtype == bool else found


def weights_of(name: str, x: Any, ndims: tuple[int, ...]) -> np.ndarray:
    """The weights, given as such or by one solution, as one array with an allowed number of axes."""
    if isinstance(x, Solution):
        if x.status.ndim:
            raise ValueError(f"{name} is a batch of {x.status.shape} solutions; draw one, solutions[i].")
        x = x.params
    W = as_real(name, x)
    if W.ndim not in ndims:
        raise ValueError(f"{name} has shape {W.shape}; it must be {' or '.join(f'{n}-d' for n in ndims)}.")
    return W


def names_of(name: str, names: Iterable[str] | None, count: int) -> list[str]:
    """The names as ``count`` strings; numbers for None."""
    if names is None:
        return [str(i) for i in range(count)]
    several = isinstance(names, Iterable) and not isinstance(names, str)
    found = [_text(label) for label in names] if several else []
    if len(found) != count or not several:
        raise ValueError(f"{name} must be {count} names, got {names!r}.")
    return found


def _text(label: Any) -> str:
    """The label, changed so that matplotlib shows it: no formula between dollars, no hidden leading "_"."""
    text = str(label).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def by_name(name: str, x: Any, kinds: tuple[type, ...], source: str) -> dict[str, Any]:
    """The objects to draw, by name; a single object gets an empty name."""
    found = dict(x) if isinstance(x, Mapping) else {"": x}
    if not found:
        raise ValueError(f"{name} is empty.")
    for key, value in found.items():
        if not isinstance(value, kinds):
            what = f"{name}[{key!r}]" if isinstance(x, Mapping) else name
            kind = " or ".join(k.__name__ for k in kinds)
            raise TypeError(
                f"{what} must be a {kind}, as {source} gives, or a dict of them by name; got "
                f"{type(value).__name__}."
            )
    return {_text(key): value for key, value in found.items()}


def style(number: int) -> dict[str, Any]:
    """The style of the line with this number, with a marker at every point."""
    return {**STYLES[number % len(STYLES)], "markersize": 4.5, "linewidth": 1.5}


def spaced_style(number: int, x: np.ndarray) -> dict[str, Any]:
    """`style` with about ten markers along the line, at other places than those of the other lines.

    A line of a single x has its marker.
    """
    every = (0.1 * number / len(STYLES), 0.1) if np.ptp(x) > 0 else None
    return style(number) | {"markevery": every}


def faint_lines(ax: "Axes", x: np.ndarray, Y: np.ndarray, color: str, label: str) -> None:
    """Draw all columns of Y (m, count) as one object; a line is interrupted where Y is NaN.

    Many lines are fainter than few, so that they look like a shade.
    """
    if Y.shape[1] == 0:
        return
    lines = np.stack(np.broadcast_arrays(x[:, None], Y), axis=2).swapaxes(0, 1)
    many = Y.shape[1] > MAX_VECTOR_LINES
    options = {"colors": color, "alpha": 0.3 if many else 0.6, "linewidths": 0.7, "rasterized": many}
    ax.add_collection(library().collections.LineCollection(lines, label=label, **options))
    ax.autoscale_view()


def legend(ax: "Axes", title: str | None = None, *, room: bool = False) -> None:
    """Draw a small legend where it hides the least, if a line has a name.

    With ``room`` the upper limit rises, so that the legend has a place above all lines. If the legend would
    take more than half of the height, its letters are smaller.
    """
    handles, labels = ax.get_legend_handles_labels()
    if not handles:
        return
    letter = library().rcParams["font.size"] / 1.2 / 72  # height of a small letter in inches
    width, height = (pixels / ax.figure.dpi / letter for pixels in (ax.bbox.width, ax.bbox.height))
    for fontsize, share in (("small", 1), ("x-small", 1 / 1.2), ("xx-small", 1 / 1.2**2)):
        size: dict[str, Any] = {"fontsize": fontsize, "title_fontsize": fontsize, "columnspacing": 1.0}
        ncols = 1 if len(labels) <= 4 else next((n for n in (3, 2) if share * _width(labels, n) < width), 1)
        # The legend's height in letters: 1.5 for a row with its distance; title and border count as 2 rows.
        rows = -(-len(labels) // ncols) + 2
        needed = share * 1.5 * rows
        if not room or needed < 0.5 * height:
            break
    if room:
        low, high = ax.get_ylim()
        ax.set_ylim(low, low + (high - low) / (1 - min(needed / height, 0.6)))
    where: Any = "upper center" if room else "best"
    drawn = ax.legend(handles, labels, loc=where, title=title, ncols=ncols, borderpad=0.3, **size)
    for handle in drawn.legend_handles:  # many lines are faint; a single line in the legend is not
        if handle is not None and not isinstance(handle, library().patches.Patch):
            handle.set_alpha(1)


def _width(labels: list[str], ncols: int) -> float:
    """About the width of a legend, in heights of a letter: 0.55 for each letter, 4 for each column's line."""
    rows = -(-len(labels) // ncols)
    longest = (max(map(len, labels[i : i + rows])) for i in range(0, len(labels), rows))
    return sum(4 + 0.55 * length for length in longest)
