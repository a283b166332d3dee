r"""Measures of selected features and of predictions.

Arguments are checked outside transformations. Under `jax.jit` or `jax.vmap` only shapes and dtypes are known:
a value that would raise outside makes the result NaN, or has the effect that the docstring states.
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
