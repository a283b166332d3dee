"""Against the strength: paths, cross-validation, stability."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sparsejax._core.checks import as_int
from sparsejax.plots._axes import (
    BLUE,
    FAINT,
    MANY,
    STYLES,
    axes_of,
    check_kind,
    faint_lines,
    ink,
    known,
    legend,
    names_of,
    style,
    weights_of,
)
from sparsejax.selection.chosen import CrossValidation
from sparsejax.selection.stability import StabilitySelection
from sparsejax.solution import Solution

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def path(
    solutions: Solution,
    strengths: ArrayLike,
    *,
    chosen: int | CrossValidation | None = None,
    task: int | None = None,
    feature_names: Any = None,
    ax: Any = None,
) -> "Axes":
    r"""The weights along a path of strengths, a line for each feature that is kept at one of them.

    Of w (d,) the coefficients :math:`w_i`, of W (d, k) those of one task or the norms of the rows,
    :math:`\|w_i\|_2`, from the strongest penalty on the left to the weakest on the right. The six largest at
    the chosen strength, else at the weakest, have a style of their own and a name; the others are grey. Where
    a feature is zero there is no line but for the step to it.

    Args:
      solutions: of `sparsejax.path`, on one leading axis of m strengths.
      strengths: (m,), in any unit and order, such as ``alphas`` or ``alphas / lambda_max``.
      chosen: the index of a strength to mark, or a `CrossValidation` over the same strengths, of which the
        two choices are marked as `sparsejax.plots.cross_validation` marks them.
      task: the column of W whose coefficients are drawn; None for the norms of the rows.
      feature_names: d of them; by default numbers.
      ax: axes to draw into; None for new ones.

    Returns:
      The axes. A cross at the bottom marks a strength whose solution did not converge.

    Raises:
      TypeError, ValueError: what is not a path, strengths or names that are not as many, an index out of
        range; ModuleNotFoundError without matplotlib.

    >>> import jax, jax.numpy as jnp, numpy as np, sparsejax as sj
    >>> from matplotlib.figure import Figure
    >>> from sparsejax import plots
    >>> X = np.random.default_rng(0).standard_normal((30, 5))
    >>> problem = sj.Problem(sj.losses.SquaredLoss(X, X[:, 0]), sj.penalties.L1(0.0))
    >>> strengths = jnp.array([0.5, 0.05])
    >>> solutions = sj.path(problem, jax.vmap(sj.penalties.L1)(strengths))
    >>> ax = plots.path(solutions, strengths, chosen=1, ax=Figure().subplots())
    >>> ax.get_ylabel(), ax.get_legend_handles_labels()[1]
    ('coefficient', ['0', 'chosen'])
    """
    check_kind("plots.path: solutions", solutions, Solution, "sparsejax.path")
    x, order = _one_axis("plots.path", solutions.status, strengths)
    W = weights_of("plots.path: solutions.params", solutions.params, (2, 3))
    if task is not None:
        W = W.reshape(*W.shape, 1) if W.ndim == 2 else W
        W = W[..., as_int("plots.path: task", task, 0, W.shape[2] - 1)]
    labels = names_of("plots.path: feature_names", feature_names, W.shape[1])
    marks = _marks_of(chosen, len(x))
    with np.errstate(over="ignore", invalid="ignore"):
        sizes = _finite(W if W.ndim == 2 else np.linalg.norm(W, axis=2))  # (m, d)
    reference = np.abs(np.nan_to_num(sizes[next(iter(marks.values()), order[-1])]))
    axes = axes_of("plots.path", ax)
    kept = np.flatnonzero(np.any(np.nan_to_num(sizes) != 0, axis=0))
    first = kept[np.argsort(-reference[kept], kind="stable")][: len(STYLES)]
    others = np.setdiff1d(kept, first)
    shown = _without_zeros(sizes[order])
    faint_lines(axes, x[order], shown[:, others], f"{len(others)} others", **_faint(FAINT, others))
    for number, i in enumerate(first):
        axes.plot(x[order], shown[:, i], label=labels[i], zorder=3, **style(number))
    _mark(axes, x, marks)
    _finish(axes, x, ~np.asarray(solutions.converged), "strength")
    axes.set_ylabel("coefficient" if W.ndim == 2 else "norm of the row")
    legend(axes, "feature", room=True)
    return axes


def cross_validation(
    result: CrossValidation, strengths: ArrayLike | None = None, *, ax: Any = None
) -> "Axes":
    r"""The held-out loss, or score, by strength: the mean over folds, and a band of one standard error.

    The band is :math:`\bar s \pm \text{sd}/\sqrt K` over the K folds. A line marks the best mean, a dashed
    one the sparsest candidate within one standard error of it (1 s.e.), and a dotted one the level that took.
    Of a grid the last axis is drawn, through the best candidate; the other lines of the grid are grey.

    Args:
      result: of `sparsejax.cross_validate`.
      strengths: (m,), of the last axis, in any unit; by default those of ``result.penalties``, if it is one
        that varies, or if those that vary are multiples of one another.
      ax: axes to draw into; None for new ones.

    Returns:
      The axes. A cross at the bottom marks a candidate that did not converge on every fold.

    Raises:
      TypeError, ValueError: another kind of result, strengths that vary each in its own way or are not as
        many; ModuleNotFoundError without matplotlib.

    >>> import jax, jax.numpy as jnp, numpy as np, sparsejax as sj
    >>> from matplotlib.figure import Figure
    >>> from sparsejax import plots
    >>> X = np.random.default_rng(0).standard_normal((30, 5))
    >>> problem = sj.Problem(sj.losses.SquaredLoss(X, X[:, 0]), sj.penalties.L1(0.0))
    >>> result = sj.cross_validate(problem, jax.vmap(sj.penalties.L1)(jnp.array([0.5, 0.05])))
    >>> ax = plots.cross_validation(result, ax=Figure().subplots())
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('strength', 'held-out loss, mean of 5 folds')
    """
    check_kind("plots.cross_validation: result", result, CrossValidation, "sparsejax.cross_validate")
    score, loss = known("plots.cross_validation: result", result.score), np.asarray(result.fold_loss)
    is_loss = np.array_equal(score, -loss, equal_nan=True)
    with np.errstate(invalid="ignore"):
        mean = _finite((loss if is_loss else score).mean(axis=0))
        error = _finite(np.asarray(result.standard_error))
    best, sparse = _index(result.index), _index(result.index_1se)
    lines = list(np.ndindex(mean.shape[:-1]))
    axis_of = {line: _strengths_in(result.penalties, line, mean.shape, strengths) for line in lines}
    axes = axes_of("plots.cross_validation", ax)
    x, label = axis_of[best[:-1]]
    order = np.argsort(-x, kind="stable")
    middle, width = mean[best[:-1]][order], error[best[:-1]][order]
    for number, line in enumerate(other for other in lines if other != best[:-1]):
        its, by = axis_of[line][0], np.argsort(-axis_of[line][0], kind="stable")
        name = f"{len(lines) - 1} other lines of the grid" if number == 0 else None
        axes.plot(its[by], mean[line][by], color=FAINT, linewidth=0.7, label=name)
    band: dict[str, Any] = {"color": BLUE, "alpha": 0.25, "linewidth": 0, "label": "one standard error"}
    axes.fill_between(x[order], middle - width, middle + width, **band)
    axes.plot(x[order], middle, color=BLUE, marker="o", markersize=3, linewidth=1.3)
    level = mean[best] + (error[best] if is_loss else -error[best])
    axes.axhline(level, color=ink(axes), linewidth=0.8, linestyle=":")
    positions = {name: axis_of[at[:-1]][0][at[-1]] for name, at in zip(CHOICES, (best, sparse), strict=True)}
    _lines_at(axes, positions)
    rings = {"color": ink(axes), "fillstyle": "none", "markersize": 8, "linestyle": ""}
    axes.plot([*positions.values()], [mean[best], mean[sparse]], "o", **rings)
    _finish(axes, x, ~np.all(result.converged, axis=0)[best[:-1]], label)
    axes.set_ylabel(f"{'held-out loss' if is_loss else 'score'}, mean of {len(score)} folds")
    legend(axes)
    return axes


def stability(
    result: StabilitySelection,
    strengths: ArrayLike,
    *,
    threshold: float | None = None,
    feature_names: Any = None,
    ax: Any = None,
) -> "Axes":
    r"""Stability paths: on which share of the subsamples each feature is selected, by strength.

    The first six of those selected (by their largest share, then by the mean of it) have a style of their
    own and a name, the other selected ones are blue, the rest of those ever kept are grey.

    Args:
      result: of `sparsejax.stability_selection`, on one axis of m strengths.
      strengths: (m,), in any unit and order.
      threshold: the one of the selection, to be drawn as a dotted line.
      feature_names: d of them; by default numbers.
      ax: axes to draw into; None for new ones.

    Returns:
      The axes. A cross at the bottom marks a strength at which a subsample did not converge.

    Raises:
      TypeError, ValueError: another kind of result, strengths or names that are not as many, a threshold that
        did not select these features; ModuleNotFoundError without matplotlib.
    Source: the picture is that of Meinshausen & Buehlmann, J. R. Statist. Soc. B 72, 2010, Figure 1.

    >>> import jax, jax.numpy as jnp, numpy as np, sparsejax as sj
    >>> from matplotlib.figure import Figure
    >>> from sparsejax import plots
    >>> X = np.random.default_rng(0).standard_normal((60, 8))
    >>> problem = sj.Problem(sj.losses.SquaredLoss(X, X[:, 0] - X[:, 1]), sj.penalties.L1(0.0))
    >>> strengths = jnp.array([0.5, 0.3])
    >>> stable = sj.stability_selection(
    ...     problem, jax.vmap(sj.penalties.L1)(strengths), num_subsamples=20
    ... )
    >>> ax = plots.stability(stable, strengths, threshold=0.6, ax=Figure().subplots())
    >>> sorted(ax.get_legend_handles_labels()[1])
    ['0', '1', 'threshold']
    """
    name = "plots.stability"
    check_kind(f"{name}: result", result, StabilitySelection, "sparsejax.stability_selection")
    share = known(f"{name}: result", result.frequencies)
    x, order = _one_axis(name, share[..., 0], strengths)
    labels = names_of(f"{name}: feature_names", feature_names, share.shape[1])
    selected, largest = np.asarray(result.selected), share.max(axis=0)
    if threshold is not None and not np.array_equal(largest >= threshold - 1e-6, selected):
        raise ValueError(f"{name}: threshold {threshold:g} is not the one that selected these features.")
    axes = axes_of(name, ax)
    ranks = np.lexsort((-share.mean(axis=0), -largest))
    chosen, rest = ranks[selected[ranks]], ranks[~selected[ranks] & (largest[ranks] > 0)]
    first, others = chosen[: len(STYLES)], chosen[len(STYLES) :]
    shown = _without_zeros(share[order])
    faint_lines(axes, x[order], shown[:, rest], f"{len(rest)} not selected", **_faint(FAINT, rest))
    faint_lines(axes, x[order], shown[:, others], f"{len(others)} others selected", **_faint(BLUE, others))
    for number, i in enumerate(first):
        axes.plot(x[order], shown[:, i], label=labels[i], zorder=3, **style(number))
    if threshold is not None:
        axes.axhline(threshold, color=ink(axes), linewidth=1, linestyle=":", label="threshold")
    _finish(axes, x, ~np.all(result.converged, axis=0), "strength")
    axes.set(ylabel="share of the subsamples", ylim=(0, 1), yticks=np.linspace(0, 1, 6))
    legend(axes, "feature", room=True)
    return axes


CHOICES = ("best", "1 s.e.")


def _one_axis(name: str, of_each: Any, strengths: Any) -> tuple[np.ndarray, np.ndarray]:
    """The strengths of a path, and their order from large to small."""
    shape = known(name, of_each).shape
    if len(shape) == 0:
        raise ValueError(f"{name}: this is one solution; a path of several strengths is needed.")
    if len(shape) > 1:
        raise ValueError(f"{name}: the strengths have {len(shape)} axes, {shape}; draw one line of the grid.")
    x = _as_strengths(name, strengths, shape[0])
    return x, np.argsort(-x, kind="stable")


def _as_strengths(name: str, strengths: Any, count: int) -> np.ndarray:
    x = known(f"{name}: strengths", strengths).astype(float)
    if x.shape != (count,) or not np.isfinite(x).all():
        raise ValueError(f"{name}: strengths must be {count} finite numbers, ({count},), got {x.shape}.")
    return x


def _strengths_in(
    penalties: Any, line: tuple[int, ...], shape: tuple[int, ...], given: Any
) -> tuple[np.ndarray, str]:
    """The strengths along one line of the candidates, and their name."""
    name, count = "plots.cross_validation", shape[-1]
    if given is not None:
        return _as_strengths(name, given, count), "strength"
    varied = {}
    for key, leaf in jax.tree_util.tree_flatten_with_path(penalties)[0]:
        if jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            values = np.asarray(leaf)[line].reshape(count, -1)
            if (values != values[:1]).any():
                varied[jax.tree_util.keystr(key).lstrip(".")] = values
    if not varied:
        raise ValueError(f"{name}: the strengths are all the same: give strengths, ({count},).")
    everything = np.concatenate(list(varied.values()), axis=1)
    size = everything.max(axis=1)
    if not np.allclose(everything * size[:1], size[:, None] * everything[:1], rtol=1e-4, atol=0):
        names = " and ".join(varied)
        raise ValueError(f"{name}: {names} vary each in its own way: give strengths, ({count},).")
    label = next(iter(varied))
    return varied[label].max(axis=1), label


def _index(index: Any) -> tuple[int, ...]:
    return tuple(map(int, index)) if isinstance(index, tuple) else (int(index),)


def _marks_of(chosen: Any, count: int) -> dict[str, int]:
    """The strengths to mark, by name."""
    if chosen is None:
        return {}
    if not isinstance(chosen, CrossValidation):
        return {"chosen": as_int("plots.path: chosen", chosen, 0, count - 1)}
    if chosen.score.shape[1:] != (count,):
        raise ValueError(
            f"plots.path: chosen is of candidates {chosen.score.shape[1:]}, and the path of ({count},)."
        )
    return dict(zip(CHOICES, (int(chosen.index), int(chosen.index_1se)), strict=True))


def _mark(ax: "Axes", x: np.ndarray, marks: dict[str, int]) -> None:
    _lines_at(ax, {name: x[index] for name, index in marks.items()})


def _lines_at(ax: "Axes", positions: dict[str, float]) -> None:
    for (name, position), dash in zip(positions.items(), ("-", "--"), strict=False):
        ax.axvline(position, color=ink(ax), linewidth=1, linestyle=dash, label=name)


def _faint(color: str, lines: np.ndarray) -> dict[str, Any]:
    """The fainter the more, so that many are seen as a shade."""
    return {"colors": color, "alpha": 0.3 if len(lines) > MANY else 0.6}


def _without_zeros(sizes: np.ndarray) -> np.ndarray:
    """NaN for zeros, but for those next to a strength at which the feature is kept."""
    kept = np.pad(np.nan_to_num(sizes) != 0, ((1, 1), (0, 0)))
    return np.where(kept[:-2] | kept[1:-1] | kept[2:], sizes, np.nan)


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.nan)


def _finish(ax: "Axes", x: np.ndarray, unconverged: np.ndarray, label: str) -> None:
    """The axis of strengths, and a cross where what is shown is not a solution."""
    if unconverged.any():
        bottom: dict[str, Any] = {"transform": ax.get_xaxis_transform(), "clip_on": False, "zorder": 5}
        crosses = x[unconverged]
        ax.plot(crosses, 0 * crosses, "x", color=STYLES[3].color, label="not converged", **bottom)
    ax.set_xlabel(label)
    ax.set_xscale("log" if (x > 0).all() else "linear")
    if not ax.xaxis_inverted():
        ax.invert_xaxis()
