"""Linear classification with any loss and penalty."""

import numbers
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import expit, log_expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets

from sparsejax._core.labels import complete_labels, indexed_labels
from sparsejax.sklearn._problems import CLASSIFICATION, Fitted, choose, fitted_to
from sparsejax.sklearn._tables import Estimator, as_sample_weight, precision, validated


def encoded(y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The classes of the rows whose weight is not 0, and for each row the index of its class, (n,)."""
    if y.dtype == object:  # numpy and scikit-learn would only say that such labels cannot be compared
        indexed_labels("y", complete_labels("y", y))
    check_classification_targets(y)
    classes = np.unique(y[weights > 0])
    if len(classes) < 2:
        raise ValueError(f"y has one class only, {classes.tolist()}; at least two classes are needed.")
    return classes, np.searchsorted(classes, y).clip(max=len(classes) - 1)


def class_weights(
    class_weight: Any, classes: np.ndarray, codes: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """The weight of each class, (classes,).

    "balanced": the sum of all sample weights, divided by the number of classes and by the sum of the sample
    weights of the class. A dict has weights >= 0 by label; a label that the dict does not have gets weight 1.
    """
    if class_weight is None:
        return np.ones(len(classes))
    if isinstance(class_weight, str) and class_weight == "balanced":
        return np.asarray(weights.sum() / (len(classes) * np.bincount(codes, weights, len(classes))))
    if not isinstance(class_weight, Mapping):
        raise ValueError(f'class_weight must be None, "balanced" or a dict, got {class_weight!r}.')
    found = np.array([class_weight.get(label, 1.0) for label in classes.tolist()], dtype=object)
    for label, value in zip(classes.tolist(), found, strict=True):
        if not isinstance(value, numbers.Real) or not 0 <= float(value) < np.inf:
            raise ValueError(f"class_weight of {label!r} must be a finite number >= 0, got {value!r}.")
    known = sum(label in class_weight for label in classes.tolist())
    if known < len(classes) and known < len(class_weight):
        raise ValueError(
            f"class_weight has {list(class_weight)!r}, which are not all labels of y, {classes.tolist()}."
        )
    if not found.any():
        raise ValueError("class_weight has zeros only: at least one class must weigh more.")
    return found.astype(float)


def targets(loss: str, codes: np.ndarray, num_classes: int) -> np.ndarray:
    """The Y of a loss, (n, k): a column for each class, of 0 and 1, or for hinge losses of -1 and 1.

    Two classes have one column, unless the loss is "softmax" or "squared".
    """
    Y = np.eye(num_classes)[codes]
    if num_classes == 2 and loss not in ("softmax", "squared"):
        Y = Y[:, 1:]
    return 2 * Y - 1 if loss.endswith("hinge") else Y


def of_classes(found: Fitted) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients (k, d) and intercepts (k,); for two classes one row, the second minus the first."""
    coef, intercept = found.coef, found.intercept
    return (coef[1:] - coef[:1], intercept[1:] - intercept[:1]) if len(coef) == 2 else (coef, intercept)


def has_probabilities(estimator: Any) -> bool:
    return estimator.loss in ("softmax", "logistic")


class LinearClassifier(Estimator, ClassifierMixin, BaseEstimator):
    """Base of the classifiers of one label a row: decisions and predictions from ``coef_``."""

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores ``X coef' + intercept``, (n, classes); for two classes (n,), positive for the second."""
        scores: np.ndarray = self._rows(X) @ self.coef_.T + self.intercept_
        return scores[:, 0] if len(self.coef_) == 1 else scores

    def predict(self, X: Any) -> np.ndarray:
        """For each row the class with the largest score, (n,)."""
        return self._best(self.decision_function(X))

    def _best(self, scores: np.ndarray) -> np.ndarray:
        best = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[best]


class ProbabilisticClassifier(LinearClassifier):
    """Base of the classifiers whose loss may have probabilities."""

    _true_tags: ClassVar[tuple[str, ...]] = ("input_tags.sparse",)

    @available_if(has_probabilities)
    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities, (n, classes): the softmax of the scores; for the logistic loss scaled sigmoids."""
        scores = self.decision_function(X)
        if scores.ndim == 1:  # not 1 minus the second, which has few digits or none if it is near 1
            return np.stack([expit(-scores), expit(scores)], axis=1)
        # Logarithms of sigmoids, because all sigmoids of a row may underflow to 0.
        return np.asarray(softmax(scores if self.loss == "softmax" else log_expit(scores), axis=1))

    def _keep(self, found: Fitted) -> Self:
        """Set the fitted attributes."""
        self.coef_, self.intercept_ = of_classes(found)
        self.gap_, self.n_iter_ = found.gap, found.num_iters
        return self


@dataclass(eq=False, repr=False)
class PenalisedClassifier(ProbabilisticClassifier):
    """Base of the classifiers with any penalty: their common parameters, and checks of the data."""

    penalty: Any = "exclusive_l21"
    _: KW_ONLY
    loss: str = "softmax"
    groups: Any = None
    class_weight: Any = None
    fit_intercept: bool = True
    tol: float | None = None
    max_iter: int = 20_000

    def _read(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
        """X, the number of each row's class, sample weights, and those by class; ``classes_`` is set."""
        X, y = validated(self, X, y)
        weights = as_sample_weight(sample_weight, len(y))
        choose("loss", self.loss, CLASSIFICATION)
        self.classes_, codes = encoded(y, weights)
        by_class = class_weights(self.class_weight, self.classes_, codes, weights)
        if self.fit_intercept and has_probabilities(self) and not by_class.all():
            label = self.classes_.tolist()[int(np.argmin(by_class))]
            raise ValueError(
                f"class_weight of {label!r} is 0, so that no row has this label, and its best intercept is "
                "infinite: leave its rows out, or use fit_intercept=False."
            )
        return X, codes, weights, by_class


@dataclass(eq=False, repr=False, kw_only=True)
class SparseClassifier(PenalisedClassifier):
    r"""Linear classification in which a penalty selects features.

    .. math:: \min_{W,b} \frac{1}{\sum_i s_i} \sum_i s_i\, \phi(x_i^\top W + b;\, y_i)
              + \sum_{j=1}^d \alpha \|w_j\|_2 + \beta \|w_j\|_1^2 ,

    for the default penalty, exclusive l2,1: alpha removes features from all classes, and beta makes the
    classes compete for the remaining ones. s are the sample weights: weight k counts as k copies of the row,
    weight 0 leaves the row out. Columns of X should be on comparable scales, as a StandardScaler makes them.

    float64 data are solved in float64, even if JAX's 64-bit numbers are switched off, and float32 data in
    float32. Data sets of equally many columns and about as many rows share a compiled program. X may be a
    matrix or array of scipy.sparse, which is made dense only up to 511 columns and 128 MB.

    Args:
      penalty: "exclusive_l21", "l21", "l1", "l1_inf", "exclusive_lasso", "group_lasso"; or a penalty of
        `sparsejax.penalties`, whose own strengths then apply instead of alpha and beta.
      loss: "softmax" (multinomial logistic regression); "logistic", "squared_hinge", "huber_hinge" (each
        class against the others), "squared" (least squares on 0 and 1, as in the source). Only the first two
        have probabilities.
      groups: for "group_lasso", as `SparseRegressor`.
      class_weight: None, "balanced" (the sum of all sample weights, divided by the number of classes and the
        sum of the class), or a dict {label: weight >= 0}; it multiplies the sample weights.
      alpha: >= 0, () or (d,), the strength of the row norms (for "l1": of the absolute values); for
        "group_lasso" () or one a group.
      beta: >= 0, () or (d,), the strength of the exclusive part, if the penalty has one.
      fit_intercept: fit b, which is not penalised.
      tol: largest relative duality gap; None is 1e-6 for float64 and 1e-4 for float32.
      max_iter: largest number of iterations.

    Attributes:
      classes_: (k,), the labels, of any sortable kind.
      coef_: (k, d), or (1, d) for two classes, the second minus the first; exact zeros.
      intercept_: (k,) or (1,).
      gap_: the certificate: no coefficients lower the objective by more than ``gap_`` times the objective, or
        times its value at 0 if that is larger; NaN if none is known (`sparsejax.Solution`).
      n_iter_: number of iterations made.
      n_features_in_, feature_names_in_: the number and the names of the columns of X.

    Raises:
      TypeError, ValueError: an argument is not as above, which the message names; y has one class only; or
        scikit-learn refuses the data.

    Warns:
      sparsejax.ConvergenceWarning: the gap did not reach tol.
    Source: Ming & Ding, IJCAI 2019, for the default penalty.

    >>> import numpy as np
    >>> from sparsejax.sklearn import SparseClassifier
    >>> X = np.random.default_rng(0).standard_normal((60, 6))
    >>> y = np.array(["low", "middle", "high"])[np.digitize(X[:, 1], [-0.5, 0.5])]
    >>> model = SparseClassifier(alpha=0.1).fit(X, y)
    >>> np.flatnonzero(model.coef_.any(axis=0)).tolist(), model.predict(X[:2]).tolist()
    ([1], ['middle', 'high'])
    >>> rare = SparseClassifier("l21", class_weight="balanced").fit(X, X[:, 1] > 1)
    >>> bool(rare.predict(X).sum() >= (X[:, 1] > 1).sum())
    True
    """

    alpha: Any = 0.01
    beta: Any = 0.01

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to X (n, d) and labels y (n,)."""
        X, codes, weights, by_class = self._read(X, y, sample_weight)
        Y = targets(self.loss, codes, len(self.classes_))
        with precision(X):
            found, _ = fitted_to(self, X, Y, weights * by_class[codes], CLASSIFICATION[self.loss])
        return self._keep(found)
