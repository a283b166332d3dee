"""Sparse logistic regression, for https://github.com/benchopt/benchmark_logreg_l1."""

import jax
import numpy as np
from benchopt import BaseSolver
from benchopt.stopping_criterion import SufficientProgressCriterion

import sparsejax as sj


class Solver(BaseSolver):
    """``sum_i log(1 + exp(-y_i x_i w)) + lmbd ||w||_1``, y in {-1, 1}; tol is the relative duality gap.

    The benchmark has no intercept: it asks its solvers for none.
    """

    name = "sparsejax"
    sampling_strategy = "tolerance"
    stopping_criterion = SufficientProgressCriterion(patience=6, strategy="tolerance")

    def set_objective(self, X, y, lmbd):
        jax.config.update("jax_enable_x64", True)
        loss = sj.losses.LogisticLoss(X, np.asarray(y > 0, X.dtype), scale=1.0)
        self.problem = sj.Problem(loss, sj.penalties.L1(lmbd))

    def warm_up(self):
        self.run_once(1e-9)

    def get_next(self, tol):
        return min(tol, 1.0) / 10

    def run(self, tol):
        self.w = jax.block_until_ready(sj.solve(self.problem, tol=tol).params)

    def get_result(self):
        return {"beta": np.asarray(self.w)}
