r"""Structured-sparse feature selection: pure, jit-compiled JAX solvers with certificates.

>>> import numpy as np, sparsejax as sj
>>> X, Y = np.eye(4, 3), np.eye(4, 2)
>>> problem = sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.L21(0.05))
>>> bool(sj.solve(problem).converged)
True
"""

from sparsejax import graphs, groups, kernels, losses, metrics, models, penalties, prox, selection, solvers
from sparsejax._core.progress import Interrupted
from sparsejax._core.version import __version__ as __version__
from sparsejax.certificate import duality_gap, lambda_max
from sparsejax.losses import Loss
from sparsejax.penalties import Penalty
from sparsejax.predictions import predict
from sparsejax.problem import Problem
from sparsejax.selection import (
    CrossValidation,
    FeatureRanking,
    StabilitySelection,
    Tuning,
    cross_validate,
    path,
    rank_features,
    stability_selection,
    tune,
)
from sparsejax.solution import ConvergenceError, ConvergenceWarning, Solution
from sparsejax.solvers import (
    admm,
    alm,
    davis_yin,
    fista,
    interior_point,
    irls,
    newton_admm,
    prox_newton,
    smoothed_apg,
    solve,
    variational_newton,
    working_set,
)

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
    "interior_point",
    "irls",
    "kernels",
    "lambda_max",
    "losses",
    "metrics",
    "models",
    "newton_admm",
    "path",
    "penalties",
    "predict",
    "prox",
    "prox_newton",
    "rank_features",
    "selection",
    "smoothed_apg",
    "solve",
    "solvers",
    "stability_selection",
    "tune",
    "variational_newton",
    "working_set",
]
