"""Quantile regression with l1, for https://github.com/benchopt/benchmark_quantile_regression."""

import jax
import numpy as np
from benchopt import BaseSolver
from benchopt.stopping_criterion import SufficientProgressCriterion

import sparsejax as sj


class Solver(BaseSolver):
    """``mean_i rho(y_i - x_i w - b) + lmbd ||w||_1``, rho the pinball loss, b = 0 without an intercept.

    `sj.losses.QuantileLoss` rounds the corner of rho. A width of ``tol mean |y|`` makes the minimum lower by
    at most half of that, and tol is the relative duality gap too: both errors shrink together.
    """

    name = "sparsejax"
    sampling_strategy = "tolerance"
    stopping_criterion = SufficientProgressCriterion(patience=6, strategy="tolerance")

    def set_objective(self, X, y, lmbd, quantile, fit_intercept):
        jax.config.update("jax_enable_x64", True)
        self.X, self.y, self.quantile = X, y, quantile
        self.penalty = sj.penalties.L1(lmbd)
        self.fit_intercept = fit_intercept

    def warm_up(self):
        self.run_once(1e-3)

    def get_next(self, tol):
        return min(tol, 1.0) / 10

    def run(self, tol):
        tol = min(tol, 1.0)
        width = tol * np.abs(self.y).mean()
        self.loss = sj.losses.QuantileLoss(self.X, self.y, self.quantile, width, intercept=self.fit_intercept)
        self.w = jax.block_until_ready(sj.solve(sj.Problem(self.loss, self.penalty), tol=tol).params)

    def get_result(self):
        w = np.asarray(self.w)
        return {"params": np.append(w, self.loss.intercept(w)) if self.fit_intercept else w}
