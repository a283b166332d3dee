r"""Structured-sparse feature selection: pure, jit-compiled JAX solvers with certificates.

>>> import numpy as np, sparsejax as sj
>>> X, Y = np.eye(4, 3), np.eye(4, 2)
>>> problem = sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.L21(0.05))
>>> bool(sj.solve(problem).converged)
True
"""

from sparsejax import graphs, groups, kernels, losses, metrics, models, penalties, prox
from sparsejax.cross_validation import CrossValidation, cross_validate
from sparsejax.paths import path
from sparsejax.problem import Problem, Solution, duality_gap, lambda_max
from sparsejax.ranking import FeatureRanking, rank_features
from sparsejax.solve import ConvergenceError, solve
from sparsejax.solvers._admm import admm
from sparsejax.solvers._alm import alm
from sparsejax.solvers._davis_yin import davis_yin
from sparsejax.solvers._fista import fista
from sparsejax.solvers._irls import irls
from sparsejax.solvers._smoothed_apg import smoothed_apg
from sparsejax.tuning import Tuning, tune

__version__ = "0.1.0"

__all__ = [
    "ConvergenceError",
    "CrossValidation",
    "FeatureRanking",
    "Problem",
    "Solution",
    "Tuning",
    "admm",
    "alm",
    "cross_validate",
    "davis_yin",
    "duality_gap",
    "fista",
    "graphs",
    "groups",
    "irls",
    "kernels",
    "lambda_max",
    "losses",
    "metrics",
    "models",
    "path",
    "penalties",
    "prox",
    "rank_features",
    "smoothed_apg",
    "solve",
    "tune",
]
