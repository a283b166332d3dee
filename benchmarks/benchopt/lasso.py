"""The lasso, for https://github.com/benchopt/benchmark_lasso."""

import jax
import numpy as np
from benchopt import BaseSolver
from benchopt.stopping_criterion import SufficientProgressCriterion

import sparsejax as sj


class Solver(BaseSolver):
    """``1/2 ||y - Xw - b||^2 + lmbd ||w||_1``, b = 0 without an intercept; tol is the relative gap."""

    name = "sparsejax"
    sampling_strategy = "tolerance"
    stopping_criterion = SufficientProgressCriterion(patience=6, strategy="tolerance")

    def set_objective(self, X, y, lmbd, fit_intercept):
        jax.config.update("jax_enable_x64", True)
        loss = sj.losses.SquaredLoss(X, y, scale=0.5, intercept=fit_intercept)
        self.problem = sj.Problem(loss, sj.penalties.L1(lmbd))
        self.fit_intercept = fit_intercept

    def warm_up(self):
        self.run_once(1e-9)

    def get_next(self, tol):
        return min(tol, 1.0) / 10

    def run(self, tol):
        self.w = jax.block_until_ready(sj.solve(self.problem, tol=tol).params)

    def get_result(self):
        w = np.asarray(self.w)
        return {"beta": np.append(w, self.problem.smooth.intercept(w)) if self.fit_intercept else w}
