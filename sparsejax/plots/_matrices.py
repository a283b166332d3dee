"""Maps of weights, and of correlations between selected features."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float
from sparsejax.plots._axes import FAINT, as_real, axes_of, library, names_of, weights_of
from sparsejax.selection.stability import StabilitySelection
from sparsejax.solution import Solution

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_NAMED_LINES = 40  # with more rows or columns than this, a map names only some of them
MAX_MAP_LINES = 300  # most rows of a map, so that each is a pixel high at least
MAX_BARS = 40  # most bars of one output, so that each has room for its name
POSITIVE, NEGATIVE = "#0072B2", "#D55E00"  # of Okabe & Ito: blue and vermilion


def support(
    weights: Solution | ArrayLike,
    *,
    feature_names: Iterable[str] | None = None,
    task_names: Iterable[str] | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the nonzero weights: signed bars for one output, a map of features by tasks for several.

    Features whose weights are all zero are left out, and the label says how many are kept.

    One output (k = 1) has a bar for each kept feature, the largest |weight| first; if more than 40 features
    are kept, the 40 largest are drawn. Several outputs have a map. Weights that are exactly zero are hatched
    in the map; all others, however small, have a colour. Colours go from dark (negative) to light (positive)
    with the square root of |weight|, so that the signs of small weights can be seen. If more than 300
    features are kept, a row of the map stands for several adjacent kept features, and shows for each task
    the weight with the largest absolute value.

    Args:
      weights: a `Solution` of one problem, or W, (d, k) or (d,); ``coef_.T`` of an estimator.
      feature_names: d names; by default numbers.
      task_names: k names; by default numbers. The name of a single output is written beside "weight".
      ax: axes to draw into; None for new ones. The colour bar of a map takes some of their space.

    Returns:
      The axes.

    Raises:
      TypeError, ValueError: a batch of solutions, another type or shape, a NaN or infinite weight, or a wrong
        number of names.
      ModuleNotFoundError: matplotlib is not installed.

    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from sparsejax import plots
    >>> W = np.zeros((2000, 3))
    >>> W[[5, 700]] = [[1.0, 0.0, 1e-9], [-1.0, 0.5, 0.0]]
    >>> ax = plots.support(W, ax=Figure().subplots())
    >>> ax.get_ylabel(), [text.get_text() for text in ax.get_yticklabels()]
    ('feature (2 of 2000 are kept)', ['5', '700'])
    """
    name = "plots.support"
    W = weights_of(f"{name}: weights", weights, (1, 2))
    if not np.isfinite(W).all():
        raise ValueError(f"{name}: weights must be finite.")
    W = W[:, None] if W.ndim == 1 else W
    rows = names_of(f"{name}: feature_names", feature_names, W.shape[0])
    columns = names_of(f"{name}: task_names", task_names, W.shape[1])
    kept = np.flatnonzero(np.any(W != 0, axis=1))
    axes = axes_of(name, ax)
    if W.shape[1] == 1 and len(kept):
        _bars(axes, W[:, 0], kept, rows, "weight" if task_names is None else f"weight ({columns[0]})")
        return axes
    each = -(-len(kept) // MAX_MAP_LINES)  # features for each line of the map
    several = f", {each} to a line" if each > 1 else ""
    axes.set(xlabel="task", ylabel=f"feature ({len(kept)} of {len(W)} are kept{several})")
    if not len(kept):
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "every weight is zero", transform=axes.transAxes, ha="center", va="center")
        return axes
    shown, bound = _largest(W[kept], each), float(np.abs(W).max())
    low, high = (-bound if shown.min() < 0 else 0.0), (bound if shown.max() > 0 else 0.0)
    root = lambda x: np.sign(x) * np.sqrt(np.abs(x))
    norm = library().colors.FuncNorm((root, lambda x: x * np.abs(x)), low, high)
    _map(axes, np.ma.masked_equal(shown, 0), "weight", cmap="viridis", norm=norm)
    _label(axes.xaxis, columns)
    _label(axes.yaxis, [rows[i] for i in kept[::each]])
    return axes


def correlation(
    X: ArrayLike,
    selected: Solution | StabilitySelection | ArrayLike,
    *,
    feature_names: Iterable[str] | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    r"""Draw a map of the absolute correlations between the selected features.

    .. math:: |\langle x_s, x_t\rangle| \,/\, (\|x_s\|_2\|x_t\|_2), \qquad x_s \text{ centred},

    from light (0) to dark (1); the sign is left out, as in `sparsejax.metrics.mean_abs_correlation`. A
    constant feature has no correlation and is hatched.

    Args:
      X: (n, d), dense.
      selected: a `Solution` of one problem or a `StabilitySelection`, whose selected features are drawn; or
        the numbers of features, (r,) integers, in the order to be drawn.
      feature_names: d names; by default numbers.
      ax: axes to draw into; None for new ones. The colour bar takes some of their space.

    Returns:
      The axes.

    Raises:
      TypeError, ValueError: X or the selection has another type or shape, fewer than two features are
        selected, or the number of names is wrong.
      ModuleNotFoundError: matplotlib is not installed.
    Source: Kong et al., AAAI 2016, Eq. (4).

    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from sparsejax import plots
    >>> X = np.random.default_rng(0).standard_normal((30, 5))
    >>> ax = plots.correlation(X, [0, 3], feature_names=list("abcde"), ax=Figure().subplots())
    >>> [text.get_text() for text in ax.get_xticklabels()]
    ['a', 'd']
    """
    name = "plots.correlation"
    A = as_real(f"{name}: X", as_float(f"{name}: X", X, (2,)))
    if not len(A):
        raise ValueError(f"{name}: X has no rows.")
    chosen = _selected(name, selected, A.shape[1])
    labels = names_of(f"{name}: feature_names", feature_names, A.shape[1])
    axes = axes_of(name, ax)
    A = A[:, chosen].astype(float)
    # A constant column minus its rounded mean is not exactly zero, so it is set to zero.
    constant = A.max(axis=0) == A.min(axis=0)
    A = A / np.maximum(np.abs(A).max(axis=0), np.finfo(float).tiny)
    A = np.where(constant, 0, A - A.mean(axis=0))
    A = A / np.where(constant, 1, np.sqrt(np.sum(A * A, axis=0)))
    sizes = np.ma.masked_array(np.minimum(np.abs(A.T @ A), 1), constant[:, None] | constant)
    _map(axes, sizes, "|correlation|", cmap="Blues", vmin=0, vmax=1)
    for axis in (axes.xaxis, axes.yaxis):
        _label(axis, [labels[i] for i in chosen])
    axes.set(xlabel="selected feature", ylabel="selected feature")
    return axes


def _selected(name: str, selected: Solution | StabilitySelection | ArrayLike, d: int) -> np.ndarray:
    """The numbers of the selected features."""
    if isinstance(selected, Solution):
        W = weights_of(f"{name}: selected", selected, (1, 2))
        if not np.isfinite(W).all():  # NaN != 0 is True: all features would count as selected
            raise ValueError(f"{name}: selected has weights that are not finite.")
        mask = W != 0 if W.ndim == 1 else np.any(W != 0, axis=1)
    elif isinstance(selected, StabilitySelection):
        mask = as_real(f"{name}: selected", selected.selected)
    else:
        numbers = as_real(f"{name}: selected", selected)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            raise TypeError(
                f"{name}: selected must be a Solution, a StabilitySelection or the features' numbers, (r,) "
                f"integers (of a mask: numpy.flatnonzero(mask)); got {np.asarray(selected).dtype} "
                f"{numbers.shape}."
            )
        wrong = numbers[(numbers < 0) | (numbers >= d)]
        if wrong.size:
            raise ValueError(f"{name}: selected has {wrong[0]}; X has columns 0 to {d - 1}.")
        mask = None
    if mask is not None:
        if mask.shape != (d,):
            raise ValueError(f"{name}: selected has {len(mask)} features, but X has {d} columns.")
        numbers = np.flatnonzero(mask)
    if len(numbers) < 2:
        raise ValueError(f"{name}: {len(numbers)} features are selected; at least two are needed.")
    return numbers


def _largest(W: np.ndarray, each: int) -> np.ndarray:
    """For every ``each`` adjacent rows of W and each column, the entry with the largest absolute value."""
    blocks = np.pad(W, ((0, -len(W) % each), (0, 0))).reshape(-1, each, W.shape[1])
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
    return largest[:, 0]


def _bars(ax: "Axes", w: np.ndarray, kept: np.ndarray, names: list[str], label: str) -> None:
    """Draw a horizontal bar for each kept feature, the largest weight at the top."""
    order = kept[np.argsort(-np.abs(w[kept]), kind="stable")][:MAX_BARS]
    places = np.arange(len(order))
    colours = [POSITIVE if w[i] > 0 else NEGATIVE for i in order]
    ax.barh(places, w[order], color=colours, height=0.7)
    ax.axvline(0, color=FAINT, linewidth=0.8)
    _label(ax.yaxis, [names[i] for i in order])
    largest = f", the {MAX_BARS} largest are drawn" if len(kept) > MAX_BARS else ""
    ax.set(xlabel=label, ylabel=f"feature ({len(kept)} of {len(w)} are kept{largest})")
    ax.set_ylim(len(order) - 0.5, -0.5)


def _map(ax: "Axes", values: Any, label: str, **scale: Any) -> None:
    """Draw the image of an array, hatched where it is masked, and its colour bar."""
    ax.patch.set(edgecolor=FAINT, hatch="////")
    image = ax.imshow(values, aspect="auto", interpolation="nearest", **scale)
    ax.figure.colorbar(image, ax=ax, label=label)


def _label(axis: Any, names: list[str]) -> None:
    """Label an axis with all names if they are few, else with those at round positions."""
    ticker = library().ticker
    if len(names) > MAX_NAMED_LINES:
        axis.set_major_locator(ticker.MaxNLocator(20, integer=True))
        name_at = lambda i, _: names[round(i)] if -0.5 <= i < len(names) - 0.5 else ""
        axis.set_major_formatter(ticker.FuncFormatter(name_at))
    else:
        axis.set_ticks(range(len(names)), names)
    axis.set_tick_params(labelsize="small" if len(names) <= 20 else "x-small")
    shown, each = min(len(names), 20), max(map(len, names)) + 1.5
    inches = axis.axes.bbox.width / axis.axes.figure.dpi
    # A small letter is about 0.05 inches wide, and the colour bar takes 0.15 of the width.
    if axis.axis_name == "x" and 0.05 * shown * each > 0.85 * inches:
        axis.set_tick_params(rotation=90)
