r"""Measures of selected features and of predictions.

Each checks its arguments outside a transformation. Inside `jax.jit` or `jax.vmap` only shapes and dtypes are
known; values that would have been refused there make the result NaN, or do what its docstring says.
"""

from sparsejax.metrics._concordance import concordance_index
from sparsejax.metrics._features import mean_abs_correlation, selection_error
from sparsejax.metrics._predictions import (
    MeanAUC,
    PrecisionRecallF1,
    accuracy,
    auc,
    mean_auc,
    precision_recall_f1,
    r2,
)

__all__ = [
    "MeanAUC",
    "PrecisionRecallF1",
    "accuracy",
    "auc",
    "concordance_index",
    "mean_abs_correlation",
    "mean_auc",
    "precision_recall_f1",
    "r2",
    "selection_error",
]
