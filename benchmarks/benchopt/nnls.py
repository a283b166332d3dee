"""Non-negative least squares, for https://github.com/benchopt/benchmark_nnls."""

import jax
import numpy as np
from benchopt import BaseSolver
from benchopt.stopping_criterion import SufficientProgressCriterion

import sparsejax as sj


class Solver(BaseSolver):
    """``1/2 ||y - Xw||^2`` with w >= 0; tol is the relative residual, as the constraint alone has no gap."""

    name = "sparsejax"
    sampling_strategy = "tolerance"
    stopping_criterion = SufficientProgressCriterion(patience=6, strategy="tolerance")

    def skip(self, X, y, fit_intercept):
        return fit_intercept, "the benchmark's objective has no intercept" if fit_intercept else None

    def set_objective(self, X, y, fit_intercept):
        jax.config.update("jax_enable_x64", True)
        loss = sj.losses.SquaredLoss(X, y, scale=0.5)
        self.problem = sj.Problem(loss, sj.penalties.NonNegative())

    def warm_up(self):
        self.run_once(1e-9)

    def get_next(self, tol):
        return min(tol, 1.0) / 10

    def run(self, tol):
        self.w = jax.block_until_ready(sj.solve(self.problem, tol=tol).params)

    def get_result(self):
        return {"beta": np.asarray(self.w)}
