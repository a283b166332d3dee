"""Estimators for scikit-learn, of the extra ``sklearn``: thin, over the rest of the library."""

try:
    import sklearn  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'sparsejax.sklearn needs scikit-learn: pip install "sparsejax[sklearn]"'
    ) from error

from sparsejax.sklearn._classification import SparseClassifier
from sparsejax.sklearn._folds import SparseClassifierCV, SparseRegressorCV
from sparsejax.sklearn._measures import MILESClassifier, MultivariateClassifier
from sparsejax.sklearn._ofa import OFALassoRegressor
from sparsejax.sklearn._regression import SparseRegressor
from sparsejax.sklearn._uncorrelated import UncorrelatedGroupClassifier
from sparsejax.sklearn._views import LabelViewsClassifier

__all__ = ["LabelViewsClassifier", "MILESClassifier", "MultivariateClassifier", "OFALassoRegressor", "SparseClassifier", "SparseClassifierCV", "SparseRegressor", "SparseRegressorCV", "UncorrelatedGroupClassifier"]
