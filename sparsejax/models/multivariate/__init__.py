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
