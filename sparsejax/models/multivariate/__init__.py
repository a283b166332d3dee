"""Feature selection for multivariate performance measures (Mao & Tsang)."""

from sparsejax.models.multivariate._cutting_plane import Progress
from sparsejax.models.multivariate._fit import fit
from sparsejax.models.multivariate._grid import OneVsRest, fit_one_vs_rest, path
from sparsejax.models.multivariate._measures import (
    Measure,
    contingency,
    f_beta,
    hamming,
    most_violated,
    prbep,
    precision_at,
    recall_at,
    roc_area,
    tune_threshold,
)
from sparsejax.models.multivariate._model import Model, Report

__all__ = [
    "Measure",
    "Model",
    "OneVsRest",
    "Progress",
    "Report",
    "contingency",
    "f_beta",
    "fit",
    "fit_one_vs_rest",
    "hamming",
    "most_violated",
    "path",
    "prbep",
    "precision_at",
    "recall_at",
    "roc_area",
    "tune_threshold",
]
