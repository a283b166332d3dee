"""Stability selection: the features that are selected on most subsamples of the rows."""

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

from sparsejax._core.checkpoints import Checkpoint, saved_or_computed
from sparsejax._core.checks import as_number, is_eager
from sparsejax._core.compiled import Compiled, cores
from sparsejax._core.linalg import columns
from sparsejax._core.progress import SLICES, Interrupted, bar_of, in_slices
from sparsejax._core.pytree import Pytree
from sparsejax.problem import Problem
from sparsejax.selection.path_runner import (
    PathArguments,
    checkpoint_of,
    joined,
    run_in_chunks,
    solution_like,
    unsolved,
)
from sparsejax.selection.paths import prepare_path, unchecked_path, with_axes
from sparsejax.selection.resampling import check_subsamples, copied_rows, restricted, rows_of, subsamples
from sparsejax.solution import NON_FINITE, Solution, warn_unconverged

NAME = "stability_selection"
MAX_BATCH_BYTES = 2**30  # about the most memory of the subsamples that are solved at once


class StabilitySelection(
    Pytree, leaves=("frequencies", "selected", "bound", "num_selected", "gap", "converged")
):
    """How often each feature was selected, for m strengths on N subsamples.

    If the strengths have several leading axes, these replace the axis m.

    Attributes:
      frequencies: (m, d), the share of the subsamples on which the feature's row of W is not 0; NaN for a
        strength at which a solve is not finite.
      selected: (d,) boolean, whether a feature's largest frequency is at least the threshold; False for all
        features if any frequency is NaN.
      bound: (), a bound of the expected number of false selections, see `stability_selection`; NaN if none
        is known.
      num_selected: (N,) int32, the number of features that a subsample selects at any strength, by the solves
        that are finite; the mean is q in the bound.
      gap, converged: (N, m), the certificate of each solution.

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
    r"""Find the features that a path of penalties selects on most subsamples of the rows.

    One compiled program solves all subsamples. As in the folds of `sparsejax.cross_validate`, the weights of
    a subsample's rows are scaled up to the sum of all weights. In mode "warm" the other rows are left out, if
    X is dense and the copy of the rows of a subsample has at most 256 MB; else they have weight 0. A feature
    is selected if its row of W is not 0.

    Let q be the average over subsamples of the number of features selected at any strength. ``bound`` is

    .. math:: q^2 \,/\, ((2\,\text{threshold} - 1)\, d) .

    A subsample has ``floor(fraction * n)`` rows. The meaning of ``bound`` depends on ``fraction``:

    * 1/2: subsamples 2j and 2j + 1 are disjoint (complementary pairs). The bound is on the expected number of
      selected features whose probability of selection on a subsample is at most q/d, the probability of a
      feature drawn at random. It holds for every problem, penalty and num_subsamples (Shah & Samworth,
      Theorem 1 (a) with theta = q/d). Their sharper bounds for unimodal frequencies are not used.
    * less: subsamples are drawn independently. The bound is on the expected number of selected noise
      features, in the limit of many subsamples, if noise features are exchangeable and the selection is no
      worse than guessing (Meinshausen & Buehlmann, Theorem 1, whose proof uses halves only to have a second,
      disjoint subsample).
    * more: subsamples are drawn independently, any two overlap, and ``bound`` is NaN.

    The theorems assume that the rows are independent draws; q, an expectation there, is estimated by the
    average over the subsamples.

    Args:
      problem: its loss must have weights, as the losses of `sparsejax.losses` do; its strengths are not used.
      penalties: the strengths, as for `sparsejax.path`. The fewer features the weakest of them selects, the
        smaller the bound.
      init: the first start of each path, as in `sparsejax.path`.
      num_subsamples: N >= 1; even at fraction 1/2, where both subsamples of a pair count.
      fraction: share of the rows in a subsample, in (0, 1). The weights in the loss do not affect the draw.
      threshold: in (1/2, 1].
      seed: a nonnegative integer. Equal seeds give equal subsamples, in every dtype.
      mode: "warm" solves each path from its first strength on, as `sparsejax.path` does: on a CPU outside jit
        one subsample a core at a time, else one at a time. "batch" solves as many subsamples at once as fit
        in about a gigabyte, each at all strengths. "auto" is warm on a CPU, else batch.
      tol, maxiter: as in `sparsejax.path`, for each subsample.
      progress: show a bar with the last gap and stop at Ctrl-C, as in `sparsejax.path`; in mode "batch" there
        are more than eight chunks if the memory bounds the number of subsamples that are solved at once.
      checkpoint: a folder for the solves made so far, as in `sparsejax.path`.

    Returns:
      `StabilitySelection`.

    Raises:
      Interrupted: Ctrl-C, with ``progress=True`` or a checkpoint. Its ``partial`` is the
        `StabilitySelection` of the finished subsamples, without a bound, or None if there are none.
      TypeError: the loss has no weights, W has no rows, or as `sparsejax.path`.
      ValueError: num_subsamples is odd at fraction 1/2, fraction or threshold is out of range, a subsample
        has no row, or none of weight > 0, or as `sparsejax.path`.
      OSError: the checkpoint cannot be written; the solves written before are intact.

    Warns:
      ConvergenceWarning: outside jit, once a call, some solutions did not converge.
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
    check_subsamples(smooth, masks)
    store = checkpoint_of(NAME, checkpoint, arguments, progress, subsamples=masks)
    if progress or store is not None:
        found = _in_chunks(arguments, masks, threshold, progress, store)
    else:
        found = _on_all(arguments, masks)
    warn_unconverged(arguments.problem, found.solution, arguments.tol)
    return _result(arguments, found, threshold, fraction)


class _Found(NamedTuple):
    """The results of N subsamples at m strengths."""

    counts: jax.Array  # (m, d) int32, the number of subsamples that select the feature
    num_selected: jax.Array  # (N,) int32, the number of features selected at any strength
    solution: Solution  # (N, m), without the weights


def _result(arguments: PathArguments, found: _Found, threshold: float, fraction: float) -> StabilitySelection:
    count = found.num_selected.shape[0]
    # Counts are exact, frequencies are rounded: a feature selected 60 times in 100 reaches threshold 0.6.
    # 1e-7 is more than the rounding error of a threshold that is a float32.
    least_count = math.ceil(threshold * count * (1 - 1e-7))
    dtype, d = arguments.init.dtype, arguments.init.shape[0]
    factor = 1 / ((2 * threshold - 1) * d) if fraction <= 0.5 else math.nan
    frequencies, selected, bound = _summary(found, np.int32(least_count), np.asarray(factor, dtype))
    return StabilitySelection(
        frequencies=with_axes(frequencies, arguments.shape),
        selected=selected,
        bound=bound,
        num_selected=found.num_selected,
        gap=with_axes(found.solution.gap, arguments.shape, 1),
        converged=with_axes(found.solution.converged, arguments.shape, 1),
    )


@Compiled
def _summary(found: _Found, least_count: jax.Array, factor: jax.Array) -> tuple[jax.Array, ...]:
    """The frequencies, which features are selected, and the bound: q^2 times ``factor``."""
    dtype = factor.dtype
    q = jnp.mean(found.num_selected.astype(dtype))
    # A W of NaN selects nothing, which is no observation: the frequencies of its strength are NaN.
    failed = jnp.any(found.solution.status == NON_FINITE, axis=0)
    frequencies = found.counts.astype(dtype) / found.num_selected.shape[0]
    known = ~jnp.any(failed)
    selected = known & (jnp.max(found.counts, axis=0) >= least_count)
    return (
        jnp.where(failed[:, None], jnp.nan, frequencies),
        selected,
        jnp.where(known, q * q * factor, jnp.nan),
    )


def _on_all(arguments: PathArguments, masks: np.ndarray) -> _Found:
    """The results of all subsamples: in one call, or in mode "warm" on a CPU in one call a core."""
    count, at_once = masks.shape[0], _max_at_once(arguments, masks.shape[1])
    calls, chunk = 1, 1
    if arguments.mode == "batch":
        chunk = -(-count // -(-count // at_once))  # so that the last chunk is about as full as the others
    elif is_eager(arguments) and jax.default_backend() == "cpu":
        calls = _num_calls(count, at_once)
    length = -(-count // (calls * chunk)) * chunk
    # Repeated masks fill up the last call; ``counted`` is False for them.
    numbers = np.arange(calls * length)
    filled, counted = masks[numbers % count], numbers < count
    static = {"chunk": chunk, "most": _rows_each(arguments, masks)}
    if calls == 1:
        found = _all_subsamples(arguments.without_shape, filled, counted, **static)
        return _first(found, count) if length > count else found
    parts = [(filled[i : i + length], counted[i : i + length]) for i in range(0, len(numbers), length)]
    return _joined(_all_subsamples.together((arguments.without_shape,), parts, **static), count)


def _num_calls(count: int, most: int) -> int:
    """The number of calls to make at the same time, at most one a core: a path keeps about one core busy."""
    return -(-count // -(-count // min(count, most, cores())))


def _rows_each(arguments: PathArguments, masks: np.ndarray) -> int | None:
    """The number of rows that a subsample copies; None if it copies none."""
    return copied_rows(int(masks.sum(axis=1).max()), arguments)


def _joined(parts: Sequence[_Found], count: int) -> _Found:
    """The results of all parts together, for the first ``count`` subsamples."""
    counts: Any = np.sum([part.counts for part in parts], axis=0, dtype=np.int32)
    by_subsample = joined([(part.num_selected, part.solution) for part in parts], count)
    return _Found(jax.device_put(counts), *by_subsample)


def _in_chunks(
    arguments: PathArguments, masks: np.ndarray, threshold: float, progress: bool, store: Checkpoint | None
) -> _Found:
    """The results of all subsamples by many short calls, with a progress bar and checkpoints between them."""
    count, at_once, size = masks.shape[0], _max_at_once(arguments, masks.shape[1]), arguments.size
    copied = _rows_each(arguments, masks)
    with bar_of(NAME, count * size, shown=progress, checkpoint=store) as bar:
        if arguments.mode == "batch":
            chunk = min(at_once, -(-count // SLICES))

            def call(numbers: np.ndarray) -> _Found:
                counted = np.diff(numbers, prepend=-1) > 0  # False for repeats that fill up the last slice
                return _all_subsamples(
                    arguments.without_shape, masks[numbers], counted, chunk=chunk, most=copied
                )

            bar.each = size
            like = _nothing(arguments, chunk).found
            done = in_slices(call, count, chunk, bar, lambda found: found.solution.measure, like)
        else:
            threads = lambda: np.int64(_num_calls(count, at_once) if jax.default_backend() == "cpu" else 1)
            # A checkpoint from a machine with more cores is continued with as many threads as there.
            calls = int(saved_or_computed(store, "threads", np.int64(0), threads))
            # One part a thread, of ``length`` masks; repeats, which are not solved, fill up the last parts.
            length = -(-count // calls)
            numbers = np.arange(calls * length).reshape(calls, length)
            parts = [((masks[i % count], np.int32(n)), n) for i in numbers if (n := int(np.sum(i < count)))]
            nothing = _nothing(arguments, length)
            places = run_in_chunks(arguments, _Selected(copied), parts, nothing, bar)
            done = [_first(place.found.found, int(place.round)) for place in places]
        if bar.stop.is_set():
            found = _joined(done, count) if done else None
            known = 0 if found is None else found.num_selected.shape[0]
            # Pairs of subsamples may be incomplete, so a partial result has no bound.
            partial = _result(arguments, found, threshold, math.nan) if found is not None and known else None
            raise Interrupted(f"{NAME}: interrupted after {known} of {count} subsamples", partial)
    return _joined(done, count)


class _Progress(NamedTuple):
    """The records of a task that is not finished."""

    found: _Found
    now: jax.Array  # (m, d) boolean, the features that the current subsample selects


@dataclass(frozen=True)
class _Selected:
    """The `Task` of stability selection: a path for each subsample.

    ``data`` holds the masks, and how many of them are used.
    """

    most: int | None  # rows that a subsample copies

    def rounds(self, data: Any) -> jax.Array:
        return data[1]

    def of(self, problem: Problem, data: Any, number: jax.Array) -> tuple[Problem, None]:
        return problem._replace(smooth=restricted(problem.smooth, data[0][number], self.most)), None

    def record(self, progress: _Progress, solution: Solution, judge: None, at: Any) -> _Progress:
        (counts, num_selected, solutions), now = progress
        now = now.at[at[1]].set(_nonzero_rows(solution.params))
        over = at[1] == len(now) - 1  # whether the path of this subsample ends here
        light = solution._replace(params=solution.num_iters)
        found = _Found(
            counts + (now & over).astype(jnp.int32),
            num_selected.at[at[0]].set(jnp.sum(jnp.any(now, axis=0), dtype=jnp.int32)),
            jax.tree.map(lambda all, one: all.at[at].set(one), solutions, light),
        )
        return _Progress(found, now)


def _nothing(arguments: PathArguments, length: int) -> _Progress:
    """The records of ``length`` subsamples before they are solved; numpy arrays, which compile nothing."""
    size, d, like = arguments.size, arguments.init.shape[0], solution_like(arguments.init)
    light = unsolved(like._replace(params=like.num_iters), (length, size))
    found = _Found(np.zeros((size, d), np.int32), np.zeros(length, np.int32), light)  # type: ignore[arg-type]
    return _Progress(found, np.zeros((size, d), bool))  # type: ignore[arg-type]


def _first(found: _Found, count: int) -> _Found:
    """The results with the arrays by subsample cut to the first ``count``; the counts stay."""
    counts, *by_subsample = found
    return _Found(counts, *jax.tree.map(lambda leaf: leaf[:count], by_subsample))


def _nonzero_rows(W: jax.Array) -> jax.Array:
    """(d,) boolean, whether the feature's row of W is not 0."""
    return jnp.any(jnp.abs(columns(W)) > 0, axis=0)  # False for NaN, which is also != 0


def _max_at_once(arguments: PathArguments, rows: int) -> int:
    """The number of subsamples that may be solved at once."""
    d, *others = arguments.init.shape
    k, m = math.prod(others), arguments.size
    # A subsample takes a copy of X and a factor of it; a strength takes about 8 iterates and 4 predictions.
    numbers = 2 * rows * d + min(rows, d) ** 2 + m * k * (8 * d + 4 * rows)
    return max(MAX_BATCH_BYTES // (numbers * int(arguments.init.dtype.itemsize)), 1)


def _by_subsample(
    arguments: PathArguments, masks: jax.Array, counted: jax.Array, *, chunk: int, most: int | None
) -> _Found:
    """The results of the subsamples ``masks`` at all strengths, as one program.

    It solves ``chunk`` subsamples at once; masks whose ``counted`` is False do not enter the counts.
    """
    problem = arguments.problem

    def one(mask: jax.Array) -> tuple[jax.Array, jax.Array, Solution]:
        changed = problem._replace(smooth=restricted(problem.smooth, mask, most))
        solution = unchecked_path(arguments._replace(problem=changed))
        found = jax.vmap(_nonzero_rows)(solution.params)  # (strengths, d)
        union = jnp.sum(jnp.any(found, axis=0), dtype=jnp.int32)
        return found, union, solution._replace(params=solution.num_iters)

    def step(counts: jax.Array, part: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, Any]:
        masks, counted = part
        if chunk > 1:
            found, *by_subsample = jax.vmap(one)(masks)
        else:
            found, *by_subsample = jax.tree.map(lambda leaf: leaf[None], one(masks[0]))
        return counts + jnp.sum(found & counted[:, None, None], axis=0, dtype=jnp.int32), by_subsample

    start = jnp.zeros((arguments.size, arguments.init.shape[0]), jnp.int32)
    parts = masks.reshape(-1, chunk, masks.shape[1]), counted.reshape(-1, chunk)
    counts, by_chunk = lax.scan(step, start, parts)
    union, solution = jax.tree.map(lambda leaf: leaf.reshape(len(masks), *leaf.shape[2:]), by_chunk)
    return _Found(counts, union, solution)


_all_subsamples = Compiled(_by_subsample, ("chunk", "most"))
