"""Classification of classes or labels by few features that are not correlated."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from scipy import sparse
from scipy.special import expit
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import column_or_1d

from sparsejax.groups import Groups, from_correlation, read_lists
from sparsejax.penalties import ExclusiveGroupL21
from sparsejax.problem import Problem
from sparsejax.sklearn._classification import ProbabilisticClassifier, encoded, has_probabilities, targets
from sparsejax.sklearn._problems import CLASSIFICATION, Fitted, choose, fitted, loss_of
from sparsejax.sklearn._tables import Table, as_sample_weight, centred, gathered, precision, validated

LOSSES = {name: CLASSIFICATION[name] for name in ("logistic", "squared", "squared_hinge", "huber_hinge")}
CERTAIN_INTERCEPT = 40.0  # the intercept of a label that all rows have: its probability rounds to 1


def correlated(table: Table, d: int, threshold: float) -> np.ndarray:
    """The pairs of features whose correlation exceeds the threshold, (pairs, 2)."""
    X = table.X[:, :d]
    weighted = X[table.weights > 0]
    varying = np.flatnonzero(weighted.max(axis=0) > weighted.min(axis=0))  # a constant has no correlation
    if not len(varying):
        return np.zeros((0, 2), int)
    found = from_correlation(X[:, varying], threshold, weights=table.weights)
    return varying[np.asarray(found.members).reshape(-1, 2)]


def competing(pairs: np.ndarray, d: int) -> Groups:
    """The pairs as groups, and a group for each feature that is in no pair, so that all are penalised."""
    alone = np.setdiff1d(np.arange(d), pairs)
    ids = np.append(np.arange(len(pairs)).repeat(2), len(pairs) + np.arange(len(alone)))
    return Groups(np.append(pairs.ravel(), alone), ids, d, len(pairs) + len(alone))


def indicators(y: Any) -> np.ndarray:
    """Labels 0 and 1, or -1 and 1, (n, labels), as booleans."""
    Y = y.toarray() if sparse.issparse(y) else np.asarray(y)
    values = np.unique(Y)
    if not (np.isin(values, (0, 1)).all() or np.isin(values, (-1, 1)).all()):
        raise ValueError(f"y with columns must hold 0 and 1, or -1 and 1; it has {values[:3].tolist()}.")
    return np.asarray(Y > 0)


@dataclass(eq=False, repr=False)
class UncorrelatedGroupClassifier(ProbabilisticClassifier):
    r"""Linear classification of one or several labels by few features that are not correlated.

    .. math:: \min_{W,b} \frac{1}{\sum_i s_i} \sum_i s_i\, \phi(x_i^\top W + b;\, y_i)
              + \alpha \sum_g \Big( \sum_{j \in g} \|w_j\|_2 \Big)^2 ,

    where the features of a group compete, so that few of several correlated features stay. s are the sample
    weights: weight k counts as k copies of the row. y holds a class for each row, (n,), or it marks any
    number of labels for each row, (n, labels), by 0 and 1 or by -1 and 1. Columns of X should be on
    comparable scales, as a StandardScaler makes them.

    float64 data are solved in float64, even if JAX's 64-bit numbers are switched off, and float32 data in
    float32.

    Args:
      groups: None makes a group of every pair of features whose absolute correlation exceeds ``threshold``,
        and a group of each other feature alone, so that all are penalised. `sparsejax.groups.Groups`, or
        lists of the members' numbers, are taken as they are: features in no group are not penalised.
      threshold: in (0, 1), the threshold on correlations if groups is None.
      loss: phi of each column: "logistic", "squared", "squared_hinge", "huber_hinge". Only the first has
        probabilities.
      alpha: >= 0, (), or one value for each group if groups are given.
      tol: largest relative duality gap; None is 1e-6 for float64 and 1e-4 for float32.
      max_iter: largest number of iterations.

    Attributes:
      classes_: (k,), the classes; for a y with columns 0, 1, ..., labels - 1.
      groups_: the `sparsejax.groups.Groups`.
      coef_: (k, d), or (1, d) for two classes; exact zeros. With the logistic loss a label that all rows or
        no rows have gets zeros, and an intercept of 40 or -40.
      intercept_: (k,) or (1,); with the squared loss and a y with columns b - 1/2, so that the score of a
        predicted label is positive.
      gap_: the certificate: no coefficients lower the objective by more than ``gap_`` times the objective, or
        times its value at 0 if that is larger; NaN if none is known, as for hinge losses with features in no
        group.
      n_iter_: number of iterations made.
      n_features_in_, feature_names_in_: the number and the names of the columns of X.

    Raises:
      TypeError, ValueError: an argument is not as above, which the message names; y (n,) has one class only;
        with the logistic loss every column of y has one class only (its intercept would be infinite; with
        the other losses such a label gets zeros and the finite intercept that is best).

    Warns:
      sparsejax.ConvergenceWarning: the gap did not reach tol.
    Source: Kong et al., AAAI 2016, Eq. (2), with an unpenalised intercept.

    >>> import numpy as np
    >>> from sparsejax.sklearn import UncorrelatedGroupClassifier
    >>> X = np.random.default_rng(0).standard_normal((60, 4))
    >>> X[:, 3] = X[:, 0] + 0.1 * X[:, 3]
    >>> model = UncorrelatedGroupClassifier(alpha=0.1, loss="squared").fit(X, X[:, :2] > 0)
    >>> (model.coef_ != 0).any(axis=0).tolist(), model.predict(X[:2]).tolist()
    ([True, True, True, False], [[0, 0], [0, 1]])
    """

    groups: Any = None
    _: KW_ONLY
    threshold: float = 0.5
    loss: str = "logistic"
    alpha: Any = 0.01
    tol: float | None = None
    max_iter: int = 20_000

    # Not "input_tags.sparse": correlations need a dense X.
    _true_tags = ("classifier_tags.multi_label", "target_tags.multi_output")

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to X (n, d) and classes y (n,), or labels y (n, labels) of 0 and 1."""
        X, y = validated(self, X, y, multi_output=True)
        weights = as_sample_weight(sample_weight, len(X))
        make = choose("loss", self.loss, LOSSES)
        self.multilabel_ = type_of_target(y, input_name="y") == "multilabel-indicator"
        if not self.multilabel_:
            self.classes_, codes = encoded(column_or_1d(y), weights)
            return self._keep(self._fit(X, targets(self.loss, codes, len(self.classes_)), weights, make))
        check_classification_targets(y)
        labels = indicators(y)
        self._negative = int(min(y.min(), 0))  # what y holds where a row lacks a label: 0 or -1
        self.classes_ = np.arange(labels.shape[1])
        weighted = labels[weights > 0]
        # The logistic loss of a label that all rows or none have is least at an infinite intercept.
        varies = (weighted != weighted[:1]).any(axis=0)
        fits = varies if self.loss == "logistic" else np.ones(labels.shape[1], bool)
        coef = np.zeros((labels.shape[1], X.shape[1]), X.dtype)
        intercept = np.where(weighted[0], CERTAIN_INTERCEPT, -CERTAIN_INTERCEPT).astype(X.dtype)
        if not fits.any():
            raise ValueError("every column of y has one class only: there is nothing to learn.")
        Y = labels[:, fits].astype(X.dtype)
        found = self._fit(X, 2 * Y - 1 if self.loss.endswith("hinge") else Y, weights, make)
        coef[fits], intercept[fits] = found.coef, found.intercept
        self.gap_, self.n_iter_ = found.gap, found.num_iters
        # A score must be positive if the label is predicted. The squared loss is fitted to labels 0 and 1,
        # between which 1/2 decides: 1/2 is subtracted from its intercepts.
        self.coef_, self.intercept_ = coef, intercept - (0.5 if self.loss == "squared" else 0)
        return self

    def _fit(self, X: np.ndarray, Y: np.ndarray, weights: np.ndarray, make: Any) -> Fitted:
        d = X.shape[1]
        X, middle = centred(X, weights, True)
        table = gathered(X, Y, weights, widen=self.groups is None)
        with precision(X):
            if self.groups is None:
                if np.ndim(self.alpha):
                    raise ValueError(f"alpha must be a number if groups is None, got {np.shape(self.alpha)}.")
                pairs = correlated(table, d, self.threshold)
                groups, self.groups_ = competing(pairs, table.X.shape[1]), competing(pairs, d)
            else:
                given = isinstance(self.groups, Groups)
                groups = self.groups_ = self.groups if given else read_lists("groups", self.groups, d)
            loss = loss_of(table, make, True)
            problem = Problem(loss, ExclusiveGroupL21(self.alpha, groups))
            return fitted(problem, d, self.tol, self.max_iter).uncentred(middle)

    def predict(self, X: Any) -> np.ndarray:
        """The class of each row, (n,); or for each label, (n, labels), 0 or 1, or -1 or 1, as y had them."""
        scores = self.decision_function(X)
        if self.multilabel_:
            return np.where(scores > 0, 1, self._negative)
        return super().predict(X)

    @available_if(has_probabilities)
    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, (n, classes), or of each label, (n, labels)."""
        scores = self.decision_function(X)
        return np.asarray(expit(scores)) if self.multilabel_ else super().predict_proba(X)
