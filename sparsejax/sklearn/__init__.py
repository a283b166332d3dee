"""Estimators for scikit-learn, which call the solvers and models of this library.

They need scikit-learn, which the extra ``sklearn`` installs. No other module of the library imports this
package. docs/scikit-learn.md has examples.
"""

try:
    import sklearn  # noqa: F401
except ModuleNotFoundError as error:
    text = 'sparsejax.sklearn needs scikit-learn (the extra "sparsejax[sklearn]"): pip install scikit-learn'
    raise ModuleNotFoundError(text) from error

from sparsejax.sklearn._classification import SparseClassifier
from sparsejax.sklearn._cox_models import SparseCox, SparseCoxCV
from sparsejax.sklearn._folds import SparseClassifierCV, SparseRegressorCV
from sparsejax.sklearn._multivariate import MILESClassifier, MultivariateClassifier
from sparsejax.sklearn._ofa import OFALassoRegressor
from sparsejax.sklearn._regression import SparseRegressor
from sparsejax.sklearn._several_views import LabelViewsClassifier
from sparsejax.sklearn._stability import StabilitySelector
from sparsejax.sklearn._uncorrelated import UncorrelatedGroupClassifier

__all__ = [
    "LabelViewsClassifier",
    "MILESClassifier",
    "MultivariateClassifier",
    "OFALassoRegressor",
    "SparseClassifier",
    "SparseClassifierCV",
    "SparseCox",
    "SparseCoxCV",
    "SparseRegressor",
    "SparseRegressorCV",
    "StabilitySelector",
    "UncorrelatedGroupClassifier",
]
