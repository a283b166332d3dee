"""Pictures of iterations: the convergence of solvers, and the search of `sparsejax.tune`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax
import numpy as np

from sparsejax._core.checks import as_number, check_choice
from sparsejax.penalties import leaf_names
from sparsejax.plots._axes import STYLES, as_real, axes_of, by_name, ink, legend, style
from sparsejax.selection.tuning import Tuning
from sparsejax.solution import History, Solution

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def convergence(
    solutions: Solution | History | Mapping[str, Solution | History],
    quantity: str = "gap",
    *,
    optimum: float | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    r"""Draw the relative duality gap, or the excess of the objective, by iteration, a line for each solver.

    The excess is :math:`(F_t - F^\star)/|F^\star|`, or :math:`F_t` if :math:`F^\star` is 0. By default
    :math:`F^\star` is the lowest objective in ``solutions``, so that the line of the best solver stops where
    it reaches this value; with an ``optimum`` from a solve with a smaller tol the line goes on to its end.
    The axis is logarithmic and leaves out values of zero and below. The gap of an iterate is an upper bound
    on its excess, relative to the same value as `Solution.gap`.

    Args:
      solutions: a `Solution` or `History` of any solver called with ``history=`` a number of iterations; or a
        dict of several by name.
      quantity: "gap" or "objective".
      optimum: F* for "objective".
      ax: axes to draw into; None for new ones.

    Returns:
      The axes.

    Raises:
      TypeError, ValueError: another type, a batch, no history, an unknown gap, or an optimum that is above an
        objective in ``solutions`` by more than 1e-4 of it.
      ModuleNotFoundError: matplotlib is not installed.

    >>> import numpy as np, sparsejax as sj
    >>> from matplotlib.figure import Figure
    >>> from sparsejax import plots
    >>> X = np.random.default_rng(0).standard_normal((30, 5))
    >>> problem = sj.Problem(sj.losses.SquaredLoss(X, X[:, 0]), sj.penalties.L1(0.1))
    >>> runs = {"ADMM": sj.admm(problem, history=50), "FISTA": sj.fista(problem, history=50)}
    >>> ax = plots.convergence(runs, ax=Figure().subplots())
    >>> ax.get_ylabel(), ax.get_legend_handles_labels()[1]
    ('relative duality gap', ['ADMM', 'FISTA'])
    """
    name = "plots.convergence"
    check_choice(f"{name}: quantity", quantity, ("gap", "objective"))
    found = by_name(f"{name}: solutions", solutions, (Solution, History), "a solver with history=100")
    values = {key: _recorded(f"{name}: {key or 'solutions'}", x, quantity) for key, x in found.items()}
    label = "relative duality gap"
    if quantity == "objective":
        ends = [np.asarray(x.objective) for x in found.values() if isinstance(x, Solution)]
        seen = min(np.nanmin(np.append(value, ends)) for value in values.values())
        lowest = seen if optimum is None else as_number(f"{name}: optimum", optimum)
        if not np.isfinite(lowest):
            raise ValueError(f"{name}: optimum must be finite, got {lowest:g}.")
        if seen < lowest - 1e-4 * abs(lowest):
            raise ValueError(f"{name}: optimum is {lowest:g}, but an objective of {seen:g} was reached.")
        label = "objective over the lowest, relative" if lowest else "objective over the lowest"
        values = {key: (value - lowest) / (abs(lowest) or 1) for key, value in values.items()}
    axes = axes_of(name, ax)
    for number, (key, value) in enumerate(values.items()):
        above = np.where(value > 0, value, np.nan)
        # Markers are at 1, 1/2, 1/4, ... of the iterations, which suits linear and logarithmic axes. The
        # markers of each line are a little earlier than the markers of the line before.
        marked = (len(value) - 1) * (1 - 0.05 * (number % len(STYLES))) / 2.0 ** np.arange(7)
        line = style(number) | {"markevery": np.unique(marked.astype(int)).tolist()}
        axes.plot(np.arange(len(value)), above, label=key, **line)
    axes.set(xlabel="iteration", ylabel=label, yscale="log")
    legend(axes)
    return axes


def tuning(tunings: Tuning | Mapping[str, Tuning], *, ax: "Axes | None" = None) -> "Axes":
    """Draw all solves of a search by `sparsejax.tune`, from the start (a hollow square) to the best (a star).

    Two tuned strengths are drawn against each other. For one strength the held-out loss is drawn against it.
    For more strengths, or vectors, the held-out loss is drawn against the number of the solve.

    Args:
      tunings: a result of `sparsejax.tune`; or a dict of several by name, for example from other starts.
      ax: axes to draw into; None for new ones.

    Returns:
      The axes.

    Raises:
      TypeError, ValueError: another type, a batch, or searches over different strengths.
      ModuleNotFoundError: matplotlib is not installed.

    >>> import numpy as np, sparsejax as sj
    >>> from matplotlib.figure import Figure
    >>> from sparsejax import plots
    >>> X = np.random.default_rng(0).standard_normal((30, 5))
    >>> problem = sj.Problem(sj.losses.SquaredLoss(X[:20], X[:20, 0]), sj.penalties.L1(0.1))
    >>> tuned = sj.tune(problem, sj.losses.SquaredLoss(X[20:], X[20:, 0]))
    >>> ax = plots.tuning(tuned, ax=Figure().subplots())
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('strength', 'held-out loss')
    """
    name = "plots.tuning"
    found = by_name(f"{name}: tunings", tunings, (Tuning,), "sparsejax.tune")
    searches = {key: _search(f"{name}: {key or 'tunings'}", tuned) for key, tuned in found.items()}
    labels, *others = ((x, y) for x, y, *_ in searches.values())
    if any(other != labels for other in others):
        raise ValueError(f"{name}: the searches are over different strengths, {[labels, *others]}.")
    axes = axes_of(name, ax)
    for number, (key, (_, _, x, y, best)) in enumerate(searches.items()):
        line = style(number) | {"markersize": 3, "linewidth": 1}
        color, last = line["color"], number == len(searches) - 1
        axes.plot(x, y, label=key, **line)
        axes.plot(
            x[0], y[0], "s", color=color, fillstyle="none", markersize=8, label="start" if last else None
        )
        marks = {"color": color, "markersize": 10, "markeredgecolor": ink(axes), "markeredgewidth": 0.6}
        axes.plot(x[best], y[best], "*", zorder=4, label="best" if last else None, **marks)
    axes.set(xlabel=labels[0], ylabel=labels[1])
    if labels[0] != SOLVE:
        axes.set_xscale("log")
    if labels[1] != LOSS:
        axes.set_yscale("log")
    legend(axes)
    return axes


SOLVE, LOSS = "solve", "held-out loss"


def _recorded(name: str, x: Solution | History, quantity: str) -> np.ndarray:
    """The recorded values of a quantity by iteration; an error if none of them is finite."""
    history = x.history if isinstance(x, Solution) else x
    values = as_real(name, getattr(history, quantity))
    if values.ndim != 1:
        raise ValueError(f"{name}: a history of shape {values.shape} is a batch; draw one, solutions[i].")
    objective = np.asarray(history.objective)
    if not len(values) or np.isnan(objective).all():
        raise ValueError(f"{name} has no history: call the solver with history=100 to record 100 iterations.")
    if not np.isfinite(values).any():
        hint = '; if none is known, draw quantity="objective"' if quantity == "gap" else ""
        raise ValueError(f"{name}: no finite {quantity} was recorded{hint}.")
    made = np.flatnonzero(~np.isnan(objective))[-1] + 1
    return np.where(np.isfinite(values), values, np.nan)[:made]


def _search(name: str, tuned: Tuning) -> tuple[str, str, np.ndarray, np.ndarray, int]:
    """The names of the two axes, the two coordinates of every solve, and the number of the best."""
    count, loss = as_real(name, tuned.num_solves), as_real(name, tuned.tried.loss)
    if count.ndim:
        raise ValueError(f"{name}: a batch of {count.shape} searches; draw one.")
    loss = loss[: int(count)]
    best = int(np.nanargmin(loss)) if np.isfinite(loss).any() else 0
    tried, last = jax.tree.leaves(tuned.tried.penalties), jax.tree.leaves(tuned.penalty)
    moved = {
        label: np.asarray(leaf)[: int(count)]
        for label, leaf, one in zip(leaf_names(tuned.penalty), tried, last, strict=True)
        if np.ndim(leaf) > np.ndim(one)
    }
    if all(values.ndim == 1 for values in moved.values()) and len(moved) <= 2:
        (xlabel, x), (ylabel, y) = [*moved.items(), (LOSS, loss)][:2]
        return xlabel, ylabel, x, y, best
    return SOLVE, LOSS, np.arange(1, len(loss) + 1), loss, best
