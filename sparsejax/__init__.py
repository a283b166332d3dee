r"""Structured-sparse feature selection: pure, jit-compiled JAX solvers with certificates.

>>> import numpy as np, sparsejax as sj
>>> X, Y = np.eye(4, 3), np.eye(4, 2)
>>> problem = sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.L21(0.05))
>>> bool(sj.solve(problem).converged)
True
"""

from sparsejax import graphs, groups, kernels, losses, metrics, models, penalties, prox, solvers
from sparsejax._core.chunks import Interrupted
from sparsejax._core.version import __version__ as __version__
from sparsejax.certificate import duality_gap, lambda_max
from sparsejax.cross_validation import CrossValidation, cross_validate
from sparsejax.losses import Loss
from sparsejax.paths import path
from sparsejax.penalties import Penalty
from sparsejax.problem import Problem
from sparsejax.ranking import FeatureRanking, rank_features
from sparsejax.solution import ConvergenceError, ConvergenceWarning, Solution
from sparsejax.solvers import (
    admm,
    alm,
    davis_yin,
    fista,
    irls,
    newton_admm,
    prox_newton,
    smoothed_apg,
    variational_newton,
    working_set,
)
from sparsejax.solving import solve
from sparsejax.stability import StabilitySelection, stability_selection
from sparsejax.tuning import Tuning, tune

__all__ = [
    "ConvergenceError",
    "ConvergenceWarning",
    "CrossValidation",
    "FeatureRanking",
    "Interrupted",
    "Loss",
    "Penalty",
    "Problem",
    "Solution",
    "StabilitySelection",
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
    "newton_admm",
    "path",
    "penalties",
    "prox",
    "prox_newton",
    "rank_features",
    "smoothed_apg",
    "solve",
    "solvers",
    "stability_selection",
    "tune",
    "variational_newton",
    "working_set",
]
