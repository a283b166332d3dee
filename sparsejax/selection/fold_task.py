"""The folds of cross-validation as a task: what is solved for each fold, and what judges its solutions."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from sparsejax.losses import LinearModelLoss, Loss
from sparsejax.problem import Problem
from sparsejax.selection.resampling import masked, restricted, weights_of
from sparsejax.selection.scoring import Scoring, loss_by_output, score_by_output, score_of
from sparsejax.solution import Solution


class Fits(NamedTuple):
    """The solutions on all folds."""

    params: jax.Array  # with the axes (folds, candidates), then the shape of W
    intercept: jax.Array  # with the axes (folds, candidates), then the shape of the intercept


class Judged(NamedTuple):
    """The results of one solution, or of all with the axes (folds, candidates)."""

    loss: jax.Array  # (), of the held-out rows
    nonzero: jax.Array  # () integer, the number of nonzero weights
    solution: Solution  # without its weights, which the result does not hold
    score: jax.Array | None  # (); None if the score is minus the loss
    fits: Fits | None = None  # W and the intercept, if they are kept


class Judge(NamedTuple):
    """What judges the solutions on a fold."""

    fit: Loss  # of the rows of the fit, for the intercept
    test: Loss  # of the held-out rows
    weights: jax.Array | None  # of all rows, 0 where they are not held out, for a score


@dataclass(frozen=True)
class Folds:
    """The `Task` of cross-validation: a path for each fold.

    The data are the fold of every row (n,), the numbers of the folds to solve, and how many these are.
    """

    count: int = field(compare=False)  # number of folds, on which no program depends
    scoring: Scoring | None
    most: int | None  # rows that a fit copies
    most_out: int | None  # held-out rows that are copied
    per_output: bool  # whether each column is judged by itself
    keeps_fits: bool = False  # whether the solutions are kept

    def rounds(self, data: Any) -> jax.Array:
        return data[2]

    def of(self, problem: Problem, data: Any, number: jax.Array) -> tuple[Problem, Judge]:
        return self.parts(problem, data[0], data[1][number])

    def parts(self, problem: Problem, fold_of: jax.Array, fold: jax.Array) -> tuple[Problem, Judge]:
        """The problem of all rows but those of a fold, and what judges its solutions."""
        smooth, out = problem.smooth, fold_of == fold.astype(fold_of.dtype)
        fit, test = restricted(smooth, ~out, self.most), restricted(smooth, out, self.most_out)
        weights = None if self.scoring is None else masked(weights_of(smooth), out)
        return problem._replace(smooth=fit), Judge(fit, test, weights)

    def judged(self, judge: Judge, solution: Solution) -> Judged:
        W, (fit, test, weights), score = solution.params, judge, None
        b = fit.intercept(W)
        if self.scoring is not None and weights is not None:
            of = score_by_output if self.per_output else score_of
            score = of(self.scoring, test, W, b, weights)
        without_weights = solution._replace(params=solution.num_iters)
        if self.per_output:
            each = loss_by_output(cast(LinearModelLoss, test), W, b)  # as `check_separable` has seen
            return Judged(each, jnp.count_nonzero(W, axis=0), without_weights, score)
        fits = Fits(W, b) if self.keeps_fits else None
        return Judged(test.evaluate(W, b), jnp.count_nonzero(W), without_weights, score, fits)

    def record(self, found: Judged, solution: Solution, judge: Judge, at: Any) -> Judged:
        one = self.judged(judge, solution)
        return jax.tree.map(lambda all, one: all.at[at].set(one), found, one)

    def like(self, problem: Problem, fold_of: jax.Array, fold: jax.Array, solution: Solution) -> Judged:
        """The result of a solution, for its shapes alone."""
        return self.judged(self.parts(problem, fold_of, fold)[1], solution)
