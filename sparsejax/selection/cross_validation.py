"""Cross-validation: choosing strengths from a grid by the loss or score on held-out rows."""

import functools
import math
import os
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checkpoints import Checkpoint, saved_or_computed
from sparsejax._core.checks import check_bool, is_eager, is_traced
from sparsejax._core.compiled import Compiled, cores
from sparsejax._core.matrices.sharded import mesh_of
from sparsejax._core.precision import users_level
from sparsejax._core.progress import Interrupted, bar_of
from sparsejax.driver.chain import Chain
from sparsejax.losses import num_rows
from sparsejax.problem import Problem
from sparsejax.selection.chosen import CrossValidation
from sparsejax.selection.fewer_rows import saves, with_fewer_rows
from sparsejax.selection.fold_task import Fits, Folds, Judged
from sparsejax.selection.path_runner import (
    MAX_CARRIED_BYTES,
    PathArguments,
    checkpoint_of,
    joined,
    run_in_chunks,
    run_in_slices,
    solution_like,
    unsolved,
)
from sparsejax.selection.paths import (
    full_penalties,
    prepare_path,
    unchecked_path,
    unfinished_solves,
    with_axes,
)
from sparsejax.selection.resampling import check_folds_weigh, copied_rows, folds_of, rows_of
from sparsejax.selection.scoring import (
    Scoring,
    check_scoring,
    check_separable,
    text_of_scoring,
    traced_scoring,
)
from sparsejax.solution import warn_unconverged
from sparsejax.solvers import solve

NAME = "cross_validate"
# Work (see `_work`) that takes about a second: more work is done in short calls, which Ctrl-C can end.
MIN_LONG_WORK = 10**7
# Work that takes some twenty seconds: the whole chain does more work at once, see `_on_folds`.
MAX_REPEATED_WORK = 10**9


def cross_validate(
    problem: Problem,
    penalties: Any,
    init: Any = None,
    *,
    folds: int | ArrayLike = 5,
    scoring: Scoring | None = None,
    refit: bool = False,
    per_output: bool = False,
    mode: str = "auto",
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
    progress: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
) -> CrossValidation:
    """Compute the held-out loss of every candidate penalty on every fold.

    All folds have the same shape and share one compiled program. Mode "batch" solves all folds at once. Mode
    "warm" solves the folds one after the other; on a CPU, outside jit, without ``progress`` and
    ``checkpoint``, each core works on a fold. In mode "warm" the rows of a fit are copied if X is dense, up
    to 256 MB; otherwise the held-out rows have weight 0. The remaining weights are scaled up to the sum of
    all weights, so that a strength means the same on a fold as on all rows. The held-out rows are judged by
    the same loss, scaled in the same way, with the intercept of the fit. Least squares of many rows is solved
    on few, as in `sparsejax.path`.

    Args:
      problem: its loss must have weights, as the losses of `sparsejax.losses` do; its strengths are not used.
      penalties: the candidates, as for `sparsejax.path`; with several leading axes for a grid of strengths.
      init: the first start of each fold, as in `sparsejax.solve`; required if the loss does not know the
        shape of W.
      folds: the number K >= 2 of folds: row i is held out in fold ``i % K`` (shuffle sorted rows first). Or
        integers 0..K-1, shape (n,), the fold of each row.
      scoring: the candidate with the greatest mean score is chosen. None scores by minus the held-out loss. A
        name scores by `sparsejax.metrics`, with the weights of the loss:

        * "accuracy", "f1" (the mean over columns), "f1_micro": Y holds 0 and 1, or -1 and 1. If every row of
          Y has exactly one of several labels, the label with the largest prediction is predicted. Else a
          label is predicted if its prediction is nearer to 1 than to the other value (for `LogisticLoss`: if
          its probability is above 1/2);
        * "roc_auc": the mean over columns, of XW + b, or for `SoftmaxLoss` of the probabilities;
        * "r2": the mean over columns, of the expected value of Y;
        * "concordance": for `CoxLoss`, over all pairs of held-out rows, across strata too.

        A function ``(Y, predictions, weights) -> ()``, traced by JAX, scores as it likes. The predictions are
        the expected values of Y: probabilities for `LogisticLoss` and `SoftmaxLoss`, exp(XW + b) for
        `PoissonLoss`, else XW + b. For `CoxLoss` they are XW, and Y is (n, 2): times and events. The function
        gets all rows, with ``per_output`` one column (n, 1) at a time; its weights, (n,), or (n, k) if the
        loss has weights by entry, are 0 for rows that are not held out.
        A function that computes the same as an earlier one is not compiled again.
      refit: also solve for the chosen candidate on all rows.
      per_output: each column of W chooses its own strength, as neurons or voxels that share X do. The columns
        of the loss must be independent, the penalty must be `L1` of one number, alone or with `NonNegative`,
        and the candidates must have one leading axis. The refit is one solve with `L1` of one strength a
        column.
      mode, tol, maxiter: as in `sparsejax.path`, for each fold.
      progress: show a bar with the last gap and stop at Ctrl-C, as in `sparsejax.path`.
      checkpoint: a folder for the solves made so far, as in `sparsejax.path`.

    Returns:
      `CrossValidation`.

    Raises:
      Interrupted: Ctrl-C, with ``progress=True`` or a checkpoint. Its ``partial`` is the `CrossValidation` of
        the finished folds if there are two, else None; in mode "batch" it has all folds, and missing values
        are NaN. Without progress and checkpoint, Ctrl-C also ends long work in mode "warm" on a CPU, within
        about a third of a second or at the end of the running solve; ``partial`` is then None.
      TypeError, ValueError: the loss has no weights, or ``scoring`` is given and it has no predictions;
        folds, scoring or, with ``per_output``, the problem are not as above; a fold holds no row of weight
        > 0 out, or all of them (under jit its losses are NaN), with ``per_output`` in some column; a fold of
        `CoxLoss` holds all events out; or as `sparsejax.path`.
      OSError: the checkpoint cannot be written; the solves written before are intact.

    Warns:
      ConvergenceWarning: outside jit, once a call, some solutions on the folds did not converge; with
        ``refit`` a second warning if the solution on all rows did not.
      UserWarning: outside jit, no candidate has a finite mean score: on some fold the score is not defined,
        for example because all its rows have one label. With ``per_output``, for some column. Or a fold of
        `CoxLoss` holds no event out; or with weights by entry a fold holds all of a column out: this loss
        is then the same for all candidates.

    >>> import jax, jax.numpy as jnp, numpy as np, sparsejax as sj
    >>> X = np.random.default_rng(0).standard_normal((30, 5))
    >>> problem = sj.Problem(sj.losses.SquaredLoss(X, X[:, 0]), sj.penalties.L1(0.0))
    >>> result = sj.cross_validate(problem, jax.vmap(sj.penalties.L1)(jnp.array([0.5, 0.05])))
    >>> int(result.index)
    1
    >>> grid = jax.vmap(jax.vmap(sj.penalties.L1))(jnp.array([[0.5, 0.05], [0.2, 0.1]]))
    >>> result = sj.cross_validate(problem, grid, scoring="r2", refit=True)
    >>> result.score.shape, [int(i) for i in result.index], result.solution.params.shape
    ((5, 2, 2), [0, 1], (5,))
    """
    check_bool(f"{NAME}: refit", refit)
    check_bool(f"{NAME}: per_output", per_output)
    arguments = prepare_path(NAME, problem, penalties, init, mode, tol, maxiter)
    store, found = _solved(arguments, problem, folds, scoring, refit, per_output, progress, checkpoint)
    smooth, result = arguments.problem.smooth, _result(arguments, found, per_output)
    warn_undefined(result)
    if not refit:
        return result
    whole = functools.partial(solve, problem.replace(penalty=result.best), init, tol=tol, maxiter=maxiter)
    try:
        solution = saved_or_computed(store, "refit", solution_like(arguments.init), whole)
    except KeyboardInterrupt:
        if not progress and store is None:
            raise
        raise Interrupted(f"{NAME}: interrupted after all folds, before the refit", result) from None
    if isinstance(solution.status, np.ndarray):  # read from the checkpoint: in this call no `solve` warned
        warn_unconverged(arguments.problem, solution, arguments.tol)
        solution = jax.device_put(solution)
    return result._replace(solution=solution, intercept=smooth.intercept(solution.params))


def judged_on_folds(
    problem: Problem,
    penalties: Any,
    judge: Callable[[Fits], np.ndarray],
    *,
    folds: ArrayLike,
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
    progress: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
) -> CrossValidation:
    """Same as `cross_validate`, with scores (K, *grid) that ``judge`` computes from the fits on all folds."""
    arguments = prepare_path(NAME, problem, penalties, None, "auto", tol, maxiter)

    def scored(found: Judged) -> Judged:
        score = judge(with_axes(found.fits, arguments.shape, 1)).reshape(found.loss.shape)
        return found._replace(score=jnp.asarray(score, found.loss.dtype))

    _, found = _solved(arguments, problem, folds, None, False, False, progress, checkpoint, scored)
    result = _result(arguments, found, False)
    warn_undefined(result)
    return result


def warn_undefined(result: CrossValidation) -> None:
    """Warn outside jit if no candidate has a finite score; with ``per_output``, in some column of W."""
    if is_traced(result.score):
        return
    finite = np.isfinite(np.mean(result.score, axis=0))
    undefined = ~(finite.any() if result.outputs is None else finite.any(axis=0))
    if undefined.any():
        columns = "" if result.outputs is None else f" in column(s) {np.flatnonzero(undefined).tolist()}"
        none = ~np.isfinite(result.score.reshape(len(result.score), -1)).any(axis=1)
        where = f"fold(s) {np.flatnonzero(none).tolist()}" if none.any() else "some fold"
        text = (
            f"no candidate has a finite score{columns}, and the first is chosen: on {where} the score is not "
            "defined, for example because all its rows have one label, or no event is followed by another "
            "row (concordance). Choose other folds, such as shuffled ones."
        )
        warnings.warn(text, UserWarning, stacklevel=users_level())


def _solved(
    arguments: PathArguments,
    given: Problem,
    folds: Any,
    scoring: Scoring | None,
    refit: bool,
    per_output: bool,
    progress: bool,
    checkpoint: Any,
    scored: Callable[[Judged], Judged] | None = None,
) -> tuple[Checkpoint | None, Judged]:
    """The checkpoint and the results of all folds; ``scored`` adds scores to them, also after Ctrl-C."""
    smooth = arguments.problem.smooth
    if per_output:
        check_separable(NAME, arguments)
    rows = rows_of(NAME, smooth, given.smooth)
    if scoring is not None:
        check_scoring(NAME, scoring, smooth, arguments.init, given.smooth)
        scoring = traced_scoring(NAME, scoring, smooth, arguments.init, per_output)
    fold_of, sizes = folds_of(folds, rows)
    check_folds_weigh(NAME, smooth, fold_of, len(sizes), per_output)
    # Inside jit a scoring function has no text, and `checkpoint_of` raises.
    judge = None if checkpoint is None or not is_eager(arguments) else text_of_scoring(scoring)
    options = {"folds": fold_of, "scoring": judge, "refit": bool(refit), "per_output": bool(per_output)}
    if scored is not None:
        options["keeps_fits"] = True
    store = checkpoint_of(NAME, checkpoint, arguments, progress, **options)
    most, out = (copied_rows(int(m), arguments) for m in (rows - min(sizes), max(sizes)))
    # Held-out rows are copied where that saves time: not with ``scoring``, which gets all rows; not for short
    # work, since copies take longer to compile; not of large data, which would be copied for each strength.
    W = jax.tree.leaves(arguments.init)[0]
    large = rows * math.prod(W.shape[:1]) * W.dtype.itemsize > MAX_CARRIED_BYTES
    # Only eagerly: losses on few rows have other derivatives in the data.
    compact = scoring is None and is_eager(arguments) and saves(arguments)
    if not compact and (scoring is not None or large or _work(arguments, len(sizes)) < MIN_LONG_WORK):
        out = None
    task = Folds(len(sizes), scoring, most, out, per_output, scored is not None, compact)
    with_scores = scored or (lambda found: found)
    if progress or store is not None:
        found = _in_chunks(arguments, fold_of, task, progress, store, with_scores)
    else:
        found = _on_folds(arguments, fold_of, task)
    found = with_scores(found)
    warn_unconverged(arguments.problem, found.solution, arguments.tol)
    return store, found


def _result(arguments: PathArguments, found: Judged, per_output: bool) -> CrossValidation:
    found = with_axes(found, arguments.shape, 1)
    gap, converged = found.solution.gap, found.solution.converged
    penalties = full_penalties(arguments)
    outputs = tuple(arguments.problem.smooth.params_shape) if per_output else None
    return CrossValidation(penalties, found.loss, found.nonzero, gap, converged, found.score, outputs)


_like = jax.jit(Folds.like, static_argnums=0)  # it remembers the shapes


def _on_folds(arguments: PathArguments, fold_of: jax.Array, task: Folds) -> Judged:
    """The results of all folds, without progress and checkpoint.

    One call solves all folds, except in mode "warm" on a CPU outside jit. In that case each core takes folds:
    long work in short calls, since a running call cannot be interrupted; other work in one call a fold.

    At first the first solver of the chain runs alone: compiling it takes half to two thirds of the time that
    compiling the whole chain takes. If it leaves a problem of a fold unfinished, the whole chain solves this
    fold again. Work that would take long to repeat is done by the whole chain at once.
    """
    shared, numbers = (arguments.without_shape, fold_of), np.arange(task.count, dtype=np.int32)
    if not (arguments.mode == "warm" and jax.default_backend() == "cpu" and is_eager(shared)):
        return _cross_validate(*shared, numbers, task=task)
    work = _work(arguments, task.count)
    long = work >= MIN_LONG_WORK and mesh_of(shared) is None
    solved = _in_short_calls if long else _in_calls_by_fold
    if long and work >= MAX_REPEATED_WORK:
        return solved(arguments, fold_of, task, numbers, complete=True)
    found = solved(arguments, fold_of, task, numbers, complete=False)
    chain = _chain_of_folds(arguments, fold_of, task)
    left = numbers[unfinished_solves(arguments, chain, found.solution).any(axis=1)]
    if not left.size:
        return found
    again = solved(arguments, fold_of, task, left, complete=True)

    def replaced(all_: jax.Array, some: jax.Array) -> np.ndarray:
        whole = np.array(all_)
        whole[left] = some
        return whole

    return jax.device_put(jax.tree.map(replaced, found, again))


def _in_calls_by_fold(
    arguments: PathArguments, fold_of: jax.Array, task: Folds, numbers: np.ndarray, complete: bool
) -> Judged:
    """The results of these folds, each in a call of its own."""
    folds = [(number,) for number in numbers[:, None]]
    shared = arguments.without_shape, fold_of
    return joined(_cross_validate.together(shared, folds, task=task, complete=complete), len(numbers))


def _chain_of_folds(arguments: PathArguments, fold_of: jax.Array, task: Folds) -> Chain:
    """The chain that solves every fold, found from shapes alone."""
    if not saves(arguments):  # fewer rows save no time in a fold either
        return arguments.chain
    found: list[Chain] = []

    def of_first(arguments: PathArguments, fold_of: jax.Array) -> None:
        problem, _ = task.parts(arguments.problem, fold_of, jnp.int32(0))
        found.append(with_fewer_rows(arguments._replace(problem=problem)).chain)

    jax.eval_shape(of_first, arguments.without_shape, fold_of)
    return found[0]


def _work(arguments: PathArguments, folds: int) -> int:
    """A rough count of work: rows times the size of W, for every fold and candidate."""
    rows = num_rows(arguments.problem.smooth) or 0
    return rows * sum(leaf.size for leaf in jax.tree.leaves(arguments.init)) * folds * arguments.size


def _in_short_calls(
    arguments: PathArguments, fold_of: jax.Array, task: Folds, numbers: np.ndarray, complete: bool
) -> Judged:
    """The results of these folds, a part of them on each core; Ctrl-C ends the work between two calls."""
    each = -(-len(numbers) // min(len(numbers), cores()))
    shares = [numbers[i : i + each] for i in range(0, len(numbers), each)]
    nothing = _unsolved_folds(arguments, fold_of, task, each)
    data = [((fold_of, np.resize(part, each), np.int32(len(part))), len(part)) for part in shares]
    with bar_of(NAME, None, shown=False, deferred=False) as bar:
        places = run_in_chunks(arguments, task, data, nothing, bar, complete)
    return joined([place.found for place in places], len(numbers))  # the last part alone may have fewer folds


def _unsolved_folds(arguments: PathArguments, fold_of: jax.Array, task: Folds, count: int) -> Judged:
    """The results of some folds before they are solved."""
    like = _like.eval_shape(task, arguments.problem, fold_of, np.int32(0), solution_like(arguments.init))
    found: Judged = unsolved(like, (count, arguments.size))
    return found


def _all_folds(
    arguments: PathArguments, fold_of: jax.Array, numbers: jax.Array, *, task: Folds, complete: bool = True
) -> Judged:
    """The results of the folds ``numbers``, as one program; ``complete`` as in `PathSolver`."""

    def one(fold: jax.Array) -> Judged:
        changed, judge = task.parts(arguments.problem, fold_of, fold)
        solutions = unchecked_path(arguments._replace(problem=changed), complete=complete)
        return jax.vmap(lambda solution: task.evaluated(judge, solution))(solutions)

    # `jax.vmap` would make each `lax.cond` compute both branches, which takes long on a CPU.
    return lax.map(one, numbers) if arguments.mode == "warm" else jax.vmap(one)(numbers)


_cross_validate = Compiled(_all_folds, ("task", "complete"))


def _in_chunks(
    arguments: PathArguments,
    fold_of: jax.Array,
    task: Folds,
    progress: bool,
    store: Checkpoint | None,
    scored: Callable[[Judged], Judged],
) -> Judged:
    """The results of all folds by many short calls, with a progress bar and a checkpoint between them."""
    nothing, folds = _unsolved_folds(arguments, fold_of, task, task.count), task.count
    count = folds * arguments.size
    with bar_of(NAME, count, shown=progress, checkpoint=store) as bar:
        if arguments.mode == "warm":
            data = fold_of, np.arange(folds, dtype=np.int32), np.int32(folds)
            (place,) = run_in_chunks(arguments, task, [(data, folds)], nothing, bar)
            found, folds = place.found, int(place.round)
        else:
            call = lambda some: _on_folds(arguments._replace(penalties=some), fold_of, task)
            bar.each = folds
            found = run_in_slices(arguments, call, nothing, 1, bar)
        if bar.stop.is_set():
            done, text = bar.count, f"{NAME}: interrupted after {bar.count} of {count} solves"
            whole = jax.tree.map(lambda leaf: leaf[:folds], found)
            some = folds > 1 and done > 0
            raise Interrupted(text, _result(arguments, scored(whole), task.per_output) if some else None)
    return found
