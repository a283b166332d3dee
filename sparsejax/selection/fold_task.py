"""The folds of cross-validation as a task: the problem of each fold, and what judges its solutions."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from sparsejax.losses import LinearModelLoss, Loss, SquaredLoss, held_out_on_few_rows, mean_row
from sparsejax.problem import Problem
from sparsejax.selection.resampling import masked, restricted, weights_of
from sparsejax.selection.scoring import Scoring, loss_by_output, score_by_output, score_of
from sparsejax.solution import Solution


class Fits(NamedTuple):
    """The solutions on all folds, or one of them, without the leading axes."""

    params: jax.Array  # (folds, candidates, *shape of W)
    intercept: jax.Array  # (folds, candidates, *shape of the intercept)


class Judged(NamedTuple):
    """The results of one solution, or of all with the leading axes (folds, candidates)."""

    loss: jax.Array  # () or by output (k,), the loss of the held-out rows
    nonzero: jax.Array  # integers of the same shape, the number of nonzero weights
    solution: Solution  # without W: its ``params`` are a placeholder
    score: jax.Array | None  # of the same shape; None if the score is minus the loss
    fits: Fits | None = None  # W and the intercept; None: they are not kept


class Judge(NamedTuple):
    """The losses and weights by which the solutions on a fold are judged."""

    fit: Loss  # the loss of the rows of the fit, which gives the intercept
    test: Loss  # the loss of the held-out rows
    weights: jax.Array | None  # for a score: weights of all rows, 0 for those of the fit
    counted: jax.Array | None = None  # for a score: whether a row has a weight, in the fit or held out, (n,)


@dataclass(frozen=True)
class Folds:
    """The `Task` (see path_runner.py) of cross-validation: a path for each fold.

    Its ``data`` are the fold of every row (n,), the numbers of the folds to solve, and how many these are.
    """

    count: int = field(compare=False)  # number of folds; not compared, since no program depends on it
    scoring: Scoring | None
    most: int | None  # bound of the number of rows in a fit, which are copied; None: the others get weight 0
    most_out: int | None  # the same for the held-out rows
    per_output: bool  # whether each column of W is judged by itself
    keeps_fits: bool = False  # whether the solutions are kept
    compact: bool = False  # whether the losses of a `Judge` are given on few rows, see fewer_rows.py

    def rounds(self, data: Any) -> jax.Array:
        return data[2]

    def of(self, problem: Problem, data: Any, number: jax.Array) -> tuple[Problem, Judge]:
        return self.parts(problem, data[0], data[1][number])

    def parts(self, problem: Problem, fold_of: jax.Array, fold: jax.Array) -> tuple[Problem, Judge]:
        """The problem of all rows but those of a fold, and the `Judge` of its solutions."""
        smooth, out = problem.smooth, fold_of == fold.astype(fold_of.dtype)
        fit = restricted(smooth, ~out, self.most, self.per_output)
        test = restricted(smooth, out, self.most_out, self.per_output)
        judge = Judge(fit, test, None)
        if self.scoring is not None:
            weights = weights_of(smooth)
            counted = jnp.any(weights.reshape(len(weights), -1) > 0, axis=1)
            judge = Judge(fit, test, masked(weights, out), counted)
        if isinstance(fit, SquaredLoss) and isinstance(test, SquaredLoss) and self.compact:
            judge = Judge(mean_row(fit), held_out_on_few_rows(test), None)
        return problem._replace(smooth=fit), judge

    def evaluated(self, judge: Judge, solution: Solution) -> Judged:
        """The loss of the held-out rows, the score, and the number of nonzero weights of a solution."""
        W, (fit, test, weights, counted), score = solution.params, judge, None
        b = fit.intercept(W)
        # A loss of `held_out_on_few_rows` takes the intercept as a last row of W.
        at = (jnp.concatenate([W, b[None]]), jnp.zeros_like(b)) if self.compact else (W, b)
        if self.scoring is not None and weights is not None:
            args = (self.scoring, test, W, b, weights)
            score = score_by_output(*args) if self.per_output else score_of(*args, counted)
        without_weights = solution._replace(params=solution.num_iters)
        if self.per_output:
            each = loss_by_output(cast(LinearModelLoss, test), *at)  # `check_separable` has checked it
            return Judged(each, jnp.count_nonzero(W, axis=0), without_weights, score)
        fits = Fits(W, b) if self.keeps_fits else None
        return Judged(test.evaluate(*at), jnp.count_nonzero(W), without_weights, score, fits)

    def record(self, found: Judged, solution: Solution, judge: Judge, at: Any) -> Judged:
        one = self.evaluated(judge, solution)
        return jax.tree.map(lambda all, one: all.at[at].set(one), found, one)

    def like(self, problem: Problem, fold_of: jax.Array, fold: jax.Array, solution: Solution) -> Judged:
        """The result of a solution, computed for its shapes and dtypes alone."""
        return self.evaluated(self.parts(problem, fold_of, fold)[1], solution)
