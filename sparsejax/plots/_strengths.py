"""Pictures over the strength: paths, cross-validation, stability selection."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sparsejax._core.checks import as_int, as_number
from sparsejax.penalties import leaf_names
from sparsejax.plots._axes import (
    BLUE,
    FAINT,
    STYLES,
    as_real,
    axes_of,
    check_kind,
    faint_lines,
    ink,
    legend,
    names_of,
    spaced_style,
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
    feature_names: Iterable[str] | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    r"""Draw the weights along a path of strengths, a line for each feature that is nonzero at one of them.

    For w (d,) the lines show the coefficients :math:`w_i`; for W (d, k) the coefficients of one task, or the
    norms :math:`\|w_i\|_2` of the rows. The strongest penalty is on the left, the weakest on the right. The
    six features that are largest at the first mark (``chosen``; without it at the weakest strength) have a
    style of their own and a name; the others are grey. A line shows its nonzero weights and the zeros next to
    them.

    Args:
      solutions: the result of `sparsejax.path`, with one leading axis of m strengths.
      strengths: (m,), in any unit and order, such as ``alphas`` or ``alphas / lambda_max``.
      chosen: the index of a strength to mark, or a `CrossValidation` over the same strengths, such as
        ``cross_validation_`` of an estimator, whose two choices are marked as in
        `sparsejax.plots.cross_validation`.
      task: the column of W whose coefficients are drawn; None for the norms of the rows.
      feature_names: d names; by default numbers.
      ax: axes to draw into; None for new ones.

    Returns:
      The axes. A cross at the bottom marks a strength whose solution did not converge.

    Raises:
      TypeError, ValueError: another type than a path, a wrong number of strengths or names, an index out of
        range.
      ModuleNotFoundError: matplotlib is not installed.

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
        sizes = _finite(W if W.ndim == 2 else np.linalg.norm(W.astype(float), axis=2))  # (m, d)
    reference = np.abs(np.nan_to_num(sizes[next(iter(marks.values()), order[-1])]))
    axes = axes_of("plots.path", ax)
    kept = np.flatnonzero(np.any(np.nan_to_num(sizes) != 0, axis=0))
    first = kept[np.argsort(-reference[kept], kind="stable")][: len(STYLES)]
    others = np.setdiff1d(kept, first)
    shown = _without_zeros(sizes[order])
    faint_lines(axes, x[order], shown[:, others], FAINT, f"{len(others)} others")
    for number, i in enumerate(first):
        axes.plot(x[order], shown[:, i], label=labels[i], zorder=3, **spaced_style(number, x))
    _lines_at(axes, {name: x[index] for name, index in marks.items()})
    _finish(axes, x, ~np.asarray(solutions.converged), "strength")
    axes.set_ylabel("coefficient" if W.ndim == 2 else "norm of the row")
    legend(axes, "feature", room=True)
    return axes


def cross_validation(
    result: CrossValidation, strengths: ArrayLike | None = None, *, ax: "Axes | None" = None
) -> "Axes":
    r"""Draw the held-out loss, or score, by strength: the mean over folds, with a band of one standard error.

    The band is :math:`\bar s \pm \text{sd}/\sqrt K` over the K folds. A vertical line marks the best mean,
    and a dashed vertical line the sparsest candidate within one standard error of the best (1 s.e.). A dotted
    horizontal line is one standard error worse than the best mean. For a grid, the line along its last axis
    through the best candidate is drawn in this way; the other lines along this axis are grey.

    Args:
      result: the result of `sparsejax.cross_validate`.
      strengths: (m,), the strengths of the last axis, in any unit. The default is to take them from
        ``result.penalties``, where one strength must vary, or several that are multiples of one another; of a
        single candidate the first strength is taken.
      ax: axes to draw into; None for new ones.

    Returns:
      The axes. A cross at the bottom marks a candidate of the best line that did not converge on some fold.

    Raises:
      TypeError, ValueError: another type of result, a result of ``per_output=True``, strengths that are not
        multiples of one another, or a wrong number of strengths.
      ModuleNotFoundError: matplotlib is not installed.

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
    if result.outputs is not None:
        raise ValueError(
            "plots.cross_validation: result is of per_output=True, with a curve and a choice for each "
            "output; output j has result.fold_loss[..., j] and result.index[j]."
        )
    score, loss = as_real("plots.cross_validation: result", result.score), np.asarray(result.fold_loss)
    is_loss = np.array_equal(score, -loss, equal_nan=True)
    best, sparse = _index(result.index), _index(result.index_1se)
    # A grid that varies along one axis alone, as that of the betas of an estimator, is a single line.
    varied = [axis for axis, count in enumerate(score.shape[1:]) if count > 1] or [len(best) - 1]
    shape = score.shape[1:] if len(varied) > 1 else (score.shape[1 + varied[0]],)
    best, sparse = ((at if len(varied) > 1 else (at[varied[0]],)) for at in (best, sparse))
    with np.errstate(invalid="ignore"):
        mean = _finite((loss if is_loss else score).mean(axis=0)).reshape(shape)
        error = _finite(np.asarray(result.standard_error)).reshape(shape)
    lines = list(np.ndindex(mean.shape[:-1]))
    axis_of = {line: _strengths_in(result.penalties, line, mean.shape, strengths) for line in lines}
    axes = axes_of("plots.cross_validation", ax)
    x, label = axis_of[best[:-1]]
    order = np.argsort(-x, kind="stable")
    middle, width = mean[best[:-1]][order], error[best[:-1]][order]
    for number, line in enumerate(other for other in lines if other != best[:-1]):
        x_of_line = axis_of[line][0]
        by_strength = np.argsort(-x_of_line, kind="stable")
        name = f"{len(lines) - 1} other lines of the grid" if number == 0 else None
        axes.plot(x_of_line[by_strength], mean[line][by_strength], color=FAINT, linewidth=0.7, label=name)
    band: dict[str, Any] = {"color": BLUE, "alpha": 0.25, "label": "one standard error"}
    band["linewidth"] = 0 if len(x) > 1 else 6  # the band of one strength is a line from end to end
    axes.fill_between(x[order], middle - width, middle + width, **band)
    axes.plot(x[order], middle, color=BLUE, marker="o", markersize=3, linewidth=1.3)
    level = mean[best] + (error[best] if is_loss else -error[best])
    axes.axhline(level, color=ink(axes), linewidth=0.8, linestyle=":")
    positions = {name: axis_of[at[:-1]][0][at[-1]] for name, at in zip(CHOICES, (best, sparse), strict=True)}
    _lines_at(axes, positions)
    rings = {"color": ink(axes), "fillstyle": "none", "markersize": 8, "linestyle": ""}
    axes.plot([*positions.values()], [mean[best], mean[sparse]], "o", **rings)
    _finish(axes, x, ~np.all(result.converged, axis=0).reshape(shape)[best[:-1]], label)
    axes.set_ylabel(f"{'held-out loss' if is_loss else 'score'}, mean of {len(score)} folds")
    legend(axes)
    return axes


def stability(
    result: StabilitySelection,
    strengths: ArrayLike,
    *,
    threshold: float | None = None,
    feature_names: Iterable[str] | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    r"""Draw stability paths: the share of the subsamples on which each feature is selected, by strength.

    The first six selected features (by their largest share, then by their mean share) have a style of their
    own and a name. The other selected features are blue; features that are nonzero but not selected are grey.

    Args:
      result: the result of `sparsejax.stability_selection`, with one axis of m strengths.
      strengths: (m,), in any unit and order.
      threshold: the threshold of the selection, drawn as a dotted line.
      feature_names: d names; by default numbers.
      ax: axes to draw into; None for new ones.

    Returns:
      The axes. A cross at the bottom marks a strength at which a subsample did not converge.

    Raises:
      TypeError, ValueError: another type of result, a wrong number of strengths or names, a threshold that
        did not select these features.
      ModuleNotFoundError: matplotlib is not installed.
    Source: Meinshausen & Buehlmann, J. R. Statist. Soc. B 72, 2010, Figure 1.

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
    share = as_real(f"{name}: result", result.frequencies)
    x, order = _one_axis(name, share[..., 0], strengths)
    labels = names_of(f"{name}: feature_names", feature_names, share.shape[1])
    selected, largest = np.asarray(result.selected), np.nan_to_num(share).max(axis=0)
    threshold = None if threshold is None else as_number(f"{name}: threshold", threshold)
    expected = (largest >= (threshold or 0) - 1e-6) & ~np.isnan(share).any()  # with a NaN none is selected
    fits = threshold is None or (0 < threshold <= 1 and np.array_equal(expected, selected))
    if not fits:
        raise ValueError(f"{name}: threshold {threshold:g} is not the one that selected these features.")
    axes = axes_of(name, ax)
    ranks = np.lexsort((-np.nan_to_num(share).mean(axis=0), -largest))
    chosen, rejected = ranks[selected[ranks]], ranks[~selected[ranks] & (largest[ranks] > 0)]
    first, others = chosen[: len(STYLES)], chosen[len(STYLES) :]
    shown = _without_zeros(share[order])
    faint_lines(axes, x[order], shown[:, rejected], FAINT, f"{len(rejected)} not selected")
    faint_lines(axes, x[order], shown[:, others], BLUE, f"{len(others)} others selected")
    for number, i in enumerate(first):
        axes.plot(x[order], shown[:, i], label=labels[i], zorder=3, **spaced_style(number, x))
    if threshold is not None:
        axes.axhline(threshold, color=ink(axes), linewidth=1, linestyle=":", label="threshold")
    _finish(axes, x, ~np.all(result.converged, axis=0), "strength")
    axes.set(ylabel="share of the subsamples", ylim=(0, 1), yticks=np.linspace(0, 1, 6))
    legend(axes, "feature", room=True)
    return axes


CHOICES = ("best", "1 s.e.")


def _one_axis(name: str, of_each: Any, strengths: Any) -> tuple[np.ndarray, np.ndarray]:
    """The strengths of a path with one axis, and the indices that sort them from large to small."""
    shape = as_real(name, of_each).shape
    if len(shape) == 0:
        raise ValueError(f"{name}: this is one solution; a path of several strengths is needed.")
    if len(shape) > 1:
        raise ValueError(f"{name}: the strengths have {len(shape)} axes, {shape}; draw one line of the grid.")
    x = _as_strengths(name, strengths, shape[0])
    return x, np.argsort(-x, kind="stable")


def _as_strengths(name: str, strengths: Any, count: int) -> np.ndarray:
    x = as_real(f"{name}: strengths", strengths).astype(float)
    if x.shape != (count,) or not np.isfinite(x).all():
        raise ValueError(f"{name}: strengths must be {count} finite numbers, ({count},), got {x.shape}.")
    return x


def _strengths_in(
    penalties: Any, line: tuple[int, ...], shape: tuple[int, ...], given: Any
) -> tuple[np.ndarray, str]:
    """The strengths along one line of the candidates' grid, and the label of their axis."""
    name, count = "plots.cross_validation", shape[-1]
    if given is not None:
        return _as_strengths(name, given, count), "strength"
    varied: dict[str, np.ndarray] = {}
    for label, leaf in zip(leaf_names(penalties), jax.tree.leaves(penalties), strict=True):
        if jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            values = np.asarray(leaf)[line].reshape(count, -1)
            # One candidate does not say what would vary: the first leaf that is not 0 stands for it.
            if (values != values[:1]).any() or (count == 1 and values.any() and not varied):
                varied[label] = values
    if not varied:
        raise ValueError(f"{name}: the strengths are all the same: give strengths, ({count},).")
    everything = np.concatenate(list(varied.values()), axis=1)
    size = everything.max(axis=1)
    # Multiples of one another, up to float32 rounding: all columns change by the same factor.
    if not np.allclose(everything * size[:1], size[:, None] * everything[:1], rtol=1e-4, atol=0):
        names = " and ".join(varied)
        raise ValueError(f"{name}: {names} are not multiples of one another: give strengths, ({count},).")
    label = next(iter(varied))
    return varied[label].max(axis=1), label


def _index(index: Any) -> tuple[int, ...]:
    found = index if isinstance(index, tuple) else (index,)
    if np.ndim(found[0]):
        raise ValueError(
            f"plots: the CrossValidation is a batch of {np.shape(found[0])}; draw one of them, "
            "jax.tree.map(lambda leaf: leaf[i], result)."
        )
    return tuple(map(int, found))


def _marks_of(chosen: Any, count: int) -> dict[str, int]:
    """The indices of the strengths to mark, by the name of the mark."""
    if chosen is None:
        return {}
    if not isinstance(chosen, CrossValidation):
        return {"chosen": as_int("plots.path: chosen", chosen, 0, count - 1)}
    candidates = chosen.score.shape[1:]
    # Results of the estimators have the axes (betas, alphas); with one beta, or one alpha, the candidates
    # form a path.
    if chosen.outputs is not None or math.prod(candidates) != count or count not in candidates:
        raise ValueError(f"plots.path: chosen has candidates {candidates}, but the path has ({count},).")
    axis = candidates.index(count) - len(candidates)
    both = _index(chosen.index)[axis], _index(chosen.index_1se)[axis]
    return dict(zip(CHOICES, both, strict=True))


def _lines_at(ax: "Axes", positions: dict[str, float]) -> None:
    for (name, position), dash in zip(positions.items(), ("-", "--"), strict=False):
        ax.axvline(position, color=ink(ax), linewidth=1, linestyle=dash, label=name)


def _without_zeros(sizes: np.ndarray) -> np.ndarray:
    """``sizes`` (m, d) with NaN for zeros, except those next to a strength with a nonzero value."""
    kept = np.pad(np.nan_to_num(sizes) != 0, ((1, 1), (0, 0)))
    return np.where(kept[:-2] | kept[1:-1] | kept[2:], sizes, np.nan)


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.nan)


def _finish(ax: "Axes", x: np.ndarray, unconverged: np.ndarray, label: str) -> None:
    """Scale and label the axis of strengths, and draw a cross at each strength that did not converge."""
    if unconverged.any():
        bottom: dict[str, Any] = {"transform": ax.get_xaxis_transform(), "clip_on": False, "zorder": 5}
        crosses = x[unconverged]
        ax.plot(crosses, 0 * crosses, "x", color=STYLES[3]["color"], label="not converged", **bottom)
    # The axis shows all strengths, also those at which nothing is drawn. For one strength alone matplotlib
    # may make an axis that is as narrow as a rounding error.
    ends = x if np.ptp(x) > 0 else x[:1] * [0.5, 2]
    ax.update_datalim(np.stack([ends, ends], axis=1), updatey=False)
    ax.set_xlabel(label)
    ax.set_xscale("log" if (x > 0).all() else "linear")
    ax.autoscale_view(scaley=False)
    if not ax.xaxis_inverted():
        ax.invert_xaxis()
