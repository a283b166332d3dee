"""Group lasso and sparse group lasso, for https://github.com/mathurinm/benchmark_group_lasso."""

import jax
import numpy as np
from benchopt import BaseSolver
from benchopt.stopping_criterion import SufficientProgressCriterion

import sparsejax as sj


class Solver(BaseSolver):
    """``||y - Xw||^2 / (2n) + lmbd (tau ||w||_1 + (1 - tau) sum_g ||w_g||_2)``.

    tol is the relative duality gap. No group has a weight here, where `sj.penalties.SparseGroupLasso` weights
    by the square root of the size: hence the sum of its two parts.
    """

    name = "sparsejax"
    sampling_strategy = "tolerance"
    stopping_criterion = SufficientProgressCriterion(patience=6, strategy="tolerance")

    def set_objective(self, X, y, lmbd, groups, grp_indices, grp_ptr, tau):
        jax.config.update("jax_enable_x64", True)
        members = sj.groups.from_lists(np.split(grp_indices, grp_ptr[1:-1]), num_features=X.shape[1])
        penalty = sj.penalties.GroupLasso(lmbd * (1 - tau), members)
        if tau:
            penalty = sj.penalties.L1(lmbd * tau) + penalty
        self.problem = sj.Problem(sj.losses.SquaredLoss(X, y), penalty)

    def warm_up(self):
        self.run_once(1e-9)

    def get_next(self, tol):
        return min(tol, 1.0) / 10

    def run(self, tol):
        self.w = jax.block_until_ready(sj.solve(self.problem, tol=tol).params)

    def get_result(self):
        return {"beta": np.asarray(self.w)}
