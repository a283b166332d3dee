"""Paths of strengths, cross-validation, stability selection, tuning, and rankings of features.

>>> import numpy as np, sparsejax as sj
>>> sj.selection.rank_features(np.array([[1.0], [-2.0]]), 1).indices.tolist()
[[1]]
"""

from sparsejax.selection.chosen import CrossValidation
from sparsejax.selection.cross_validation import cross_validate
from sparsejax.selection.paths import path
from sparsejax.selection.ranking import FeatureRanking, rank_features
from sparsejax.selection.stability import StabilitySelection, stability_selection
from sparsejax.selection.tuning import Tuning, tune

__all__ = [
    "CrossValidation",
    "FeatureRanking",
    "StabilitySelection",
    "Tuning",
    "cross_validate",
    "path",
    "rank_features",
    "stability_selection",
    "tune",
]
