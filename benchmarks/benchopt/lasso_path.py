"""Paths of lassos, for https://github.com/benchopt/benchmark_lasso_path."""

import jax
import numpy as np
from benchopt import BaseSolver
from benchopt.stopping_criterion import SufficientProgressCriterion

import sparsejax as sj


class Solver(BaseSolver):
    """``1/2 ||y - Xw - b||^2 + lambda ||w||_1`` for each of ``lambdas``; tol is the relative gap of each."""

    name = "sparsejax"
    sampling_strategy = "tolerance"
    stopping_criterion = SufficientProgressCriterion(patience=6, strategy="tolerance")

    def set_objective(self, X, y, lambdas, fit_intercept):
        jax.config.update("jax_enable_x64", True)
        loss = sj.losses.SquaredLoss(X, y, scale=0.5, intercept=fit_intercept)
        self.problem = sj.Problem(loss, sj.penalties.L1(lambdas[0]))
        self.penalties = jax.vmap(sj.penalties.L1)(np.array(lambdas))
        self.fit_intercept = fit_intercept

    def warm_up(self):
        self.run_once(1e-9)

    def get_next(self, tol):
        return min(tol, 1.0) / 10

    def run(self, tol):
        self.W = jax.block_until_ready(sj.path(self.problem, self.penalties, tol=tol).params)

    def get_result(self):
        rows = [np.asarray(self.W).T]
        if self.fit_intercept:
            rows.append(np.asarray(jax.vmap(self.problem.smooth.intercept)(self.W))[None])
        return {"coefs": np.concatenate(rows)}
