"""Which features are selected on most subsamples of the rows."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checkpoints import Checkpoint, kept_in
from sparsejax._core.checks import as_number, is_eager
from sparsejax._core.compiled import Compiled, cores
from sparsejax._core.linalg import columns
from sparsejax._core.matrices.sharded import check_one_process
from sparsejax._core.progress import SLICES, Interrupted, Place, bar_of, check_progress, in_slices
from sparsejax._core.pytree import Pytree
from sparsejax.problem import Problem
from sparsejax.selection.path_runner import PathArguments, checkpoint_of, solution_like, unknown, walk
from sparsejax.selection.paths import batched_path, prepare_path, with_axes
from sparsejax.selection.resampling import gathers, kept, rows_of, subsamples
from sparsejax.solution import Solution, warn_unconverged

NAME = "stability_selection"
CHUNK = 2**30  # bytes, about, that subsamples solved at once may take


class StabilitySelection(
    Pytree, leaves=("frequencies", "selected", "bound", "num_selected", "gap", "converged")
):
    """How often each feature was selected, m strengths on N subsamples.

    Where the strengths have several leading axes, these stand in the place of m.

    Attributes:
      frequencies: (m, d), the share of the subsamples on which the row of W is not 0.
      selected: (d,) boolean, the largest of a feature's frequencies is at least the threshold.
      bound: (), a bound of the expected number of false selections, see `stability_selection`; NaN where
        none is known.
      num_selected: (N,) int32, features selected at any strength; the q of the bound is their mean.
      gap, converged: (N, m), the certificates.

    >>> import jax, jax.numpy as jnp, numpy as np, sparsejax as sj
    >>> X = np.random.default_rng(0).standard_normal((60, 8))
    >>> problem = sj.Problem(sj.losses.SquaredLoss(X, X[:, 0] - X[:, 1]), sj.penalties.L1(0.0))
    >>> penalties = jax.vmap(sj.penalties.L1)(jnp.array([0.5, 0.3]))
    >>> stable = sj.stability_selection(problem, penalties, num_subsamples=20)
    >>> stable.frequencies.shape, [int(i) for i in jnp.flatnonzero(stable.selected)]
    ((2, 8), [0, 1])
    """

    frequencies: jax.Array
    selected: jax.Array
    bound: jax.Array
    num_selected: jax.Array
    gap: jax.Array
    converged: jax.Array


def stability_selection(
    problem: Problem,
    penalties: Any,
    init: Any = None,
    *,
    num_subsamples: int = 100,
    fraction: float = 0.5,
    threshold: float = 0.6,
    seed: int = 0,
    mode: str = "auto",
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
    progress: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
) -> StabilitySelection:
    r"""The features that a path of penalties selects on most subsamples of the rows, by one compiled program.

    The weights of the rows of a subsample are scaled up to their old sum, as the folds of
    `sparsejax.cross_validate`; the other rows are left out, or in a batch have weight 0. A feature is
    selected where its row of W is not 0.

    With q the number of features selected on a subsample at any of the strengths, on average, ``bound`` is

    .. math:: q^2 \,/\, ((2\,\text{threshold} - 1)\, d) .

    What it bounds depends on ``fraction``, at which each subsample has ``floor(fraction * n)`` rows:

    * 1/2: subsamples 2j and 2j + 1 are disjoint (complementary pairs). It is the expected number of selected
      features whose probability to be selected on a subsample is at most q/d, that of a feature
      drawn at random; whatever the problem, the penalty and num_subsamples (Shah & Samworth, Theorem 1 (a)
      with theta = q/d). Their sharper bounds for unimodal frequencies are not used.
    * less: subsamples are drawn independently. It is the expected number of selected noise features if these
      are exchangeable and the selection is no worse than guessing (Meinshausen & Buehlmann, Theorem 1, whose
      proof needs of a half only that another one is disjoint from it), in the limit of many subsamples.
    * more: drawn independently; two of them overlap, and ``bound`` is NaN.

    The rows are taken for independent draws, and q, an expectation, for its average over the subsamples.

    Args:
      problem: its loss must have weights, as those of `sparsejax.losses`; its strengths are not used.
      penalties: the strengths, as for `sparsejax.path`. The fewer features the weakest of them selects, the
        smaller the bound.
      init: the first start of each path, as `sparsejax.path`.
      num_subsamples: N >= 1; at fraction 1/2 even, since it counts both of a pair.
      fraction: of the rows, in (0, 1). Rows are drawn whatever their weights in the loss.
      threshold: in (1/2, 1].
      seed: a nonnegative integer. The same one gives the same subsamples, whatever the dtype.
      mode: "warm" goes through each path from its first strength on, as `sparsejax.path`: on a CPU outside
        jit one subsample a core at a time, else one at a time. "batch" solves as many subsamples at once as
        fit in about a gigabyte, each at all strengths. "auto" is warm on a CPU, else batch.
      tol, maxiter: as `sparsejax.path`, for each subsample.
      progress: show a bar with the last gap and stop at Ctrl-C, as `sparsejax.path`.
      checkpoint: a folder in which what is done is kept, as `sparsejax.path`.

    Returns:
      `StabilitySelection`.

    Raises:
      Interrupted: Ctrl-C, with ``progress=True`` or a checkpoint. Its ``partial`` is the
        `StabilitySelection` of the subsamples that were done, with no bound; or None.
      TypeError: a loss without weights, a W that has no rows, and as `sparsejax.path`.
      ValueError: num_subsamples odd at fraction 1/2, fraction or threshold out of range, no row in a
        subsample, and as `sparsejax.path`.
      OSError: the checkpoint cannot be written; what was kept by then is whole.

    Warns:
      ConvergenceWarning: outside jit, solutions that did not converge, once a call.
    Source: Meinshausen & Buehlmann, J. R. Statist. Soc. B 72, 2010; Shah & Samworth, J. R. Statist. Soc. B
      75, 2013.

    >>> import jax, jax.numpy as jnp, numpy as np, sparsejax as sj
    >>> X = np.random.default_rng(0).standard_normal((60, 8))
    >>> problem = sj.Problem(sj.losses.SquaredLoss(X, X[:, 0] - X[:, 1]), sj.penalties.L1(0.0))
    >>> penalties = jax.vmap(sj.penalties.L1)(jnp.array([0.5, 0.3]))
    >>> stable = sj.stability_selection(problem, penalties, num_subsamples=20)
    >>> stable.frequencies.shape, [int(i) for i in jnp.flatnonzero(stable.selected)]
    ((2, 8), [0, 1])
    """
    arguments = prepare_path(NAME, problem, penalties, init, mode, tol, maxiter)
    smooth = arguments.problem.smooth
    rows = rows_of(NAME, smooth, problem.smooth)
    if not jax.tree_util.all_leaves([arguments.init]) or arguments.init.ndim == 0:
        raise TypeError(f"{NAME}: W must be one array with a row for each feature.")
    fraction, threshold = (
        as_number(f"{NAME}: {name}", x) for name, x in (("fraction", fraction), ("threshold", threshold))
    )
    if not 0 < fraction < 1:
        raise ValueError(f"{NAME}: fraction must be above 0 and below 1, got {fraction:g}.")
    if not 0.5 < threshold <= 1:
        raise ValueError(f"{NAME}: threshold must be above 1/2 and at most 1, got {threshold:g}.")
    masks = subsamples(num_subsamples, fraction, seed, rows)
    check_progress(NAME, progress, arguments, checkpoint)
    check_one_process(NAME, progress or checkpoint is not None, arguments)
    store = checkpoint_of(NAME, checkpoint, arguments, subsamples=masks)
    if progress or store is not None:
        found = _in_chunks(arguments, masks, threshold, progress, store)
    else:
        found = _on_all(arguments, masks)
    warn_unconverged(arguments.problem, found.solution, arguments.tol)
    return _result(arguments, found, threshold, fraction)


class _Found(NamedTuple):
    """What is known of N subsamples."""

    counts: jax.Array  # (m, d) int32, how many select the feature
    num_selected: jax.Array  # (N,) int32
    solution: Solution  # (N, m), without the weights


def _result(arguments: PathArguments, found: _Found, threshold: float, fraction: float) -> StabilitySelection:
    count = found.num_selected.shape[0]
    # of counts, which are exact: a feature of 60 in 100 reaches 0.6
    least = math.ceil(threshold * count - 1e-9)
    dtype, d = arguments.init.dtype, arguments.init.shape[0]
    q = jnp.mean(found.num_selected.astype(dtype))
    factor = 1 / ((2 * threshold - 1) * d) if fraction <= 0.5 else math.nan
    return StabilitySelection(
        frequencies=with_axes(found.counts.astype(dtype) / count, arguments.shape),
        selected=jnp.max(found.counts, axis=0) >= least,
        bound=q * q * factor,
        num_selected=found.num_selected,
        gap=with_axes(found.solution.gap, arguments.shape, 1),
        converged=with_axes(found.solution.converged, arguments.shape, 1),
    )


def _on_all(arguments: PathArguments, masks: np.ndarray) -> _Found:
    """`_by_subsample` of all masks: in one call, or in one a core, of the same program at the same time."""
    count, most = masks.shape[0], _fitting(arguments, masks.shape[1])
    calls, chunk = 1, 1
    if arguments.mode == "batch":
        chunk = -(-count // -(-count // most))  # the last chunk about as full as the others
    elif is_eager(arguments) and jax.default_backend() == "cpu":
        calls = _cores(count, most)
    length = -(-count // (calls * chunk)) * chunk
    # Places that are left hold masks that are there already, and are not counted.
    numbers = np.arange(calls * length)
    filled, counted = masks[numbers % count], numbers < count
    static = _static(arguments, masks, chunk)
    if calls == 1:
        found = _all_subsamples(arguments[:5], filled, counted, **static)
        if length > count:
            rest = jax.tree.map(lambda leaf: leaf[:count], (found.num_selected, found.solution))
            found = _Found(found.counts, *rest)
        return found
    parts = [(filled[i : i + length], counted[i : i + length]) for i in range(0, len(numbers), length)]
    return _joined(_all_subsamples.together((arguments[:5],), parts, **static), count)


def _cores(count: int, most: int) -> int:
    """How many calls at a time: a path by itself keeps one core busy, hardly more."""
    return -(-count // -(-count // min(count, most, cores())))


def _rows_each(arguments: PathArguments, masks: np.ndarray) -> int | None:
    """How many rows a subsample has, if they are copied."""
    return int(masks.sum(axis=1).max()) if gathers(arguments.mode, arguments) else None


def _static(arguments: PathArguments, masks: np.ndarray, chunk: int) -> dict[str, Any]:
    size, most = math.prod(arguments.shape), _rows_each(arguments, masks)
    return {"axes": arguments.axes, "mode": arguments.mode, "size": size, "chunk": chunk, "most": most}


def _joined(parts: Sequence[_Found], count: int) -> _Found:
    """All parts in one, of which the first so many subsamples are told of."""
    counts: Any = np.sum([part.counts for part in parts], axis=0, dtype=np.int32)
    rest = [(part.num_selected, part.solution) for part in parts]
    joined = jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *rest)
    return jax.device_put(_Found(counts, *joined))


def _in_chunks(
    arguments: PathArguments, masks: np.ndarray, threshold: float, progress: bool, store: Checkpoint | None
) -> _Found:
    """`_on_all` with a bar of its progress, and with what is done kept in a folder."""
    count, most, size = masks.shape[0], _fitting(arguments, masks.shape[1]), math.prod(arguments.shape)
    with bar_of(NAME, count * size, shown=progress, checkpoint=store) as bar:
        if arguments.mode == "batch":
            chunk = min(most, -(-count // SLICES))
            static = _static(arguments, masks, chunk)

            def call(numbers: np.ndarray) -> _Found:
                counted = np.diff(numbers, prepend=-1) > 0  # not what fills up the last slice
                return _all_subsamples(arguments[:5], masks[numbers], counted, **static)

            bar.each = size
            like = _nothing(arguments, chunk, size).found
            done = in_slices(call, count, chunk, bar, lambda found: found.solution.measure, like)
        else:
            threads = lambda: np.int64(_cores(count, most) if jax.default_backend() == "cpu" else 1)
            # One that was begun on a machine with more cores goes on with as many threads.
            calls = int(kept_in(store, "threads", np.int64(0), threads))
            length = -(-count // calls)
            numbers = np.arange(calls * length).reshape(calls, length)
            parts = [((masks[i % count], np.int32(n)), n) for i in numbers if (n := int(np.sum(i < count)))]
            task = _Selected(size, _rows_each(arguments, masks))
            nothing = _nothing(arguments, length, size)
            places = walk(arguments, task, parts, nothing, bar)
            done = [_rounds(place) for place in places]
        if bar.stop.is_set():
            found = _joined(done, count) if done else None
            known = 0 if found is None else found.num_selected.shape[0]
            # Whether pairs of subsamples are whole is not looked at: no bound.
            partial = _result(arguments, found, threshold, math.nan) if found is not None and known else None
            raise Interrupted(f"{NAME}: interrupted after {known} of {count} subsamples", partial)
    return _joined(done, count)


class _Walked(NamedTuple):
    """What is found on the way."""

    found: _Found
    now: jax.Array  # (m, d) boolean, of the subsample at hand


@dataclass(frozen=True)
class _Selected:
    """The paths of subsamples; the data are their masks, and how many of them are meant."""

    size: int  # strengths
    most: int | None  # rows of a subsample, if they are copied

    def rounds(self, data: Any) -> jax.Array:
        return data[1]

    def problem(self, problem: Problem, data: Any, number: jax.Array) -> Problem:
        return problem._replace(smooth=kept(problem.smooth, data[0][number], self.most))

    def record(self, walked: _Walked, solution: Solution, problem: Problem, data: Any, at: Any) -> _Walked:
        (counts, num_selected, solutions), now = walked
        now = now.at[at[1]].set(_rows(solution.params))
        over = at[1] == self.size - 1
        light = solution._replace(params=solution.num_iters)
        found = _Found(
            counts + (now & over).astype(jnp.int32),
            num_selected.at[at[0]].set(jnp.sum(jnp.any(now, axis=0), dtype=jnp.int32)),
            jax.tree.map(lambda all, one: all.at[at].set(one), solutions, light),
        )
        return _Walked(found, now)


def _nothing(arguments: PathArguments, length: int, size: int) -> _Walked:
    d, like = arguments.init.shape[0], solution_like(arguments.init)
    light = unknown(like._replace(params=like.num_iters), (length, size))
    found = _Found(np.zeros((size, d), np.int32), np.zeros(length, np.int32), light)  # type: ignore[arg-type]
    return _Walked(found, np.zeros((size, d), bool))  # type: ignore[arg-type]


def _rounds(place: Place) -> _Found:
    """Of the subsamples that are done."""
    (counts, *rest), done = place.found.found, int(place.round)
    return _Found(counts, *jax.tree.map(lambda leaf: leaf[:done], rest))


def _rows(W: jax.Array) -> jax.Array:
    """Which features are, (d,)."""
    return jnp.any(columns(W) != 0, axis=0)


def _fitting(arguments: PathArguments, rows: int) -> int:
    """How many subsamples may be solved at once."""
    d, *rest = arguments.init.shape
    k, m = math.prod(rest), math.prod(arguments.shape)
    # a factor and a copy of the data for each subsample; for each strength a few iterates and predictions
    numbers = 2 * rows * d + min(rows, d) ** 2 + m * k * (8 * d + 4 * rows)
    return max(CHUNK // (numbers * int(arguments.init.dtype.itemsize)), 1)


def _by_subsample(
    arguments: tuple[Any, ...],
    masks: jax.Array,
    counted: jax.Array,
    *,
    axes: tuple[int | None, ...],
    mode: str,
    size: int,
    chunk: int,
    most: int | None,
) -> _Found:
    """How often each feature is selected at each of ``size`` strengths, at how many in all, certificates."""
    problem, penalties, init, tol, maxiter = arguments

    def one(mask: jax.Array) -> tuple[jax.Array, jax.Array, Solution]:
        changed = problem._replace(smooth=kept(problem.smooth, mask, most))
        solution = batched_path(
            PathArguments(changed, penalties, init, tol, maxiter, axes, mode, ()), brief=True
        )
        found = jax.vmap(_rows)(solution.params)  # (size, d)
        union = jnp.sum(jnp.any(found, axis=0), dtype=jnp.int32)
        return found, union, solution._replace(params=solution.num_iters)

    def step(counts: jax.Array, part: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, Any]:
        masks, counted = part
        if chunk > 1:
            found, *rest = jax.vmap(one)(masks)
        else:
            found, *rest = jax.tree.map(lambda leaf: leaf[None], one(masks[0]))
        return counts + jnp.sum(found & counted[:, None, None], axis=0, dtype=jnp.int32), rest

    start = jnp.zeros((size, init.shape[0]), jnp.int32)
    parts = masks.reshape(-1, chunk, masks.shape[1]), counted.reshape(-1, chunk)
    counts, rest = lax.scan(step, start, parts)
    union, solution = jax.tree.map(lambda leaf: leaf.reshape(len(masks), *leaf.shape[2:]), rest)
    return _Found(counts, union, solution)


_all_subsamples = Compiled(_by_subsample, ("axes", "mode", "size", "chunk", "most"))
