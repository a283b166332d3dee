"""Classifiers that optimise a measure of the whole labelling, for rows and for bags of rows."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

import numpy as np
from scipy import sparse

from sparsejax._core.checks import as_numpy
from sparsejax._core.labels import complete_labels, indexed_labels
from sparsejax.models import mil, multivariate
from sparsejax.sklearn._classification import LinearClassifier, encoded
from sparsejax.sklearn._problems import Fitted, check_max_iter, choose
from sparsejax.sklearn._tables import as_labels, as_sample_weight, filled, precision, validated

MEASURES = {
    "f1": multivariate.f_beta,
    "prbep": multivariate.prbep,
    "roc_area": multivariate.roc_area,
    "hamming": multivariate.hamming,
}


def select(estimator: Any, X: Any, codes: np.ndarray) -> Fitted:
    """Fit the models with a column of ones, whose weight is the intercept, and tune their thresholds.

    There is a model for each class against the others, or one for the second of two classes. The thresholds
    are tuned on the rows of the fit. The gap and the number of iterations are the largest of all models.
    """
    n, d = X.shape
    measure, budget = estimator.measure, estimator.budget
    made = choose("measure", measure, MEASURES)() if isinstance(measure, str) else measure
    budget = max(1, round(d**0.5)) if budget is None else budget
    check_max_iter(estimator.max_iter, 1)
    ones = np.ones((n, 1))
    X = sparse.hstack([X, ones], "csc") if sparse.issparse(X) else np.append(np.asarray(X, float), ones, 1)
    given = as_numpy("budget", budget)
    if given.ndim == 0 and given.dtype.kind in "iuf" and budget > 0:  # `fit` refuses others
        budget = budget + 1  # for the column of ones
    options = {"measure": made, "budget": budget}
    options |= {"C": estimator.C, "tol": estimator.tol, "maxiter": estimator.max_iter}
    if len(estimator.classes_) == 2:
        first, models = 1, [multivariate.fit(X, 2 * codes - 1, **options)]
    else:
        first, models = 0, list(multivariate.fit_one_vs_rest(X, codes, **options).models)
    thresholds = [
        threshold(made, model.decision_function(X), np.where(codes == c, 1, -1))
        for c, model in enumerate(models, first)
    ]
    return Fitted(
        np.stack([model.w[:d] for model in models]),
        np.array([model.w[d] for model in models]) - thresholds,
        max(float(model.gap) for model in models),
        max(int(model.num_iters) for model in models),
    )


def threshold(measure: Any, scores: np.ndarray, y: np.ndarray) -> float:
    """The best threshold for the measure, moved to within 1 of the range of the scores.

    If the measure does not depend on the threshold, or allows none, the result has the fewest errors.
    """
    try:
        best = multivariate.tune_threshold(measure, scores, y)
    except ValueError:
        best = multivariate.tune_threshold(multivariate.hamming(), scores, y)
    return float(np.clip(best, scores.min() - 1, scores.max() + 1))


@dataclass(eq=False, repr=False)
class MultivariateClassifier(LinearClassifier):
    r"""Linear classification by few features, for F1, precision at k and the like.

    .. math:: \min_w \tfrac12\min_{0\le d\le1,\,\sum_jd_j=B+1}\sum_j\frac{w_j^2}{d_j}
              + \frac Cn\max\Big(0,\,\max_{y'}\Delta(y',y)-\sum_i(y_i-y'_i)\,x_i^\top w\Big) ,

    where Delta is 100 times one minus the measure of the whole labelling (for "hamming" the number of
    errors). X gets a further column of ones, for which the budget is 1 larger. The intercept is the weight of
    this column, less the threshold that does best on the rows of the fit. Of two classes the second of
    ``classes_`` is the positive one, whose F1 or precision is meant: "no" of "has" and "no". With more than
    two classes, each is fitted against the others. ``score`` is the accuracy, as of all classifiers of
    scikit-learn: give GridSearchCV a ``scoring``, such as "f1". Columns of X should be on comparable scales,
    as a StandardScaler makes them. X may be a matrix or array of scipy.sparse, which is never made dense. The
    solver computes with numpy in float64; there are no sample weights.

    Args:
      measure: "f1", "prbep" (where precision and recall are equal), "roc_area", "hamming" (the number of
        errors), or one that `models.multivariate` makes, such as ``multivariate.precision_at(50)``.
      budget: B > 0; None for the rounded root of the number of features. The number of features with a
        weight is usually above B: up to about 2 B if C is small, and if C is large all that matter.
      C: > 0, as in `models.multivariate.fit`; a larger C fits the rows more closely.
      tol: largest relative gap of each fit.
      max_iter: largest number of master problems.

    Attributes:
      classes_: (k,), the labels.
      coef_: (k, d), or (1, d) for two classes, of the second; exact zeros.
      intercept_: (k,) or (1,).
      gap_: the largest of the fits' certificates: no w, with the column of ones, lowers the objective of a
        fit by more than ``gap_`` times this objective.
      n_iter_: largest number of master problems of a fit.
      n_features_in_, feature_names_in_: the number and the names of the columns of X.

    Raises:
      TypeError, ValueError: an argument is not as above, which the message names; y has one class only.

    Warns:
      sparsejax.ConvergenceWarning: a gap did not reach tol.
    Source: Mao & Tsang, IEEE TPAMI 35 (2013).

    >>> import numpy as np
    >>> from sparsejax.sklearn import MultivariateClassifier
    >>> X = np.random.default_rng(0).standard_normal((80, 20))
    >>> model = MultivariateClassifier(budget=1).fit(X, X[:, 3] > 1)
    >>> int(np.abs(model.coef_).argmax()), model.score(X, X[:, 3] > 1) > 0.9
    (3, True)
    """

    measure: Any = "f1"
    _: KW_ONLY
    budget: float | None = None
    C: float = 10.0
    tol: float = 1e-3
    max_iter: int = 1000

    _true_tags: ClassVar[tuple[str, ...]] = ("input_tags.sparse",)

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to X (n, d), dense or of scipy.sparse, and labels y (n,)."""
        X, y = validated(self, X, y)
        self.classes_, codes = encoded(y, np.ones(X.shape[0]))
        self.coef_, self.intercept_, self.gap_, self.n_iter_ = select(self, X, codes)
        return self


@dataclass(eq=False, repr=False, kw_only=True)
class MILESClassifier(MultivariateClassifier):
    r"""Classification of bags of rows by their similarity to a few rows of the training data.

    A row is an instance, and a bag holds the rows with the same id. Bag i becomes the vector of similarities
    :math:`\max_{x \in \text{bag } i} \exp(-\|x - p_k\|^2 / (2\sigma^2))` to all rows :math:`p_k` of the fit.
    The fit selects some of these rows, the prototypes, by a measure of the bags' labelling, as
    `MultivariateClassifier` selects features.

    ``bag_ids`` is a parameter of fit, predict, decision_function and score, by metadata routing:
    ``MILESClassifier().set_fit_request(bag_ids=True)`` and so on in a Pipeline or a GridSearchCV, whose folds
    should keep bags together (GroupKFold). In a fit without ``bag_ids`` every row is its own bag; after a fit
    with ``bag_ids`` the other methods need them too. Predictions are by row: each row gets its bag's result.
    Columns of X should be on comparable scales, as a StandardScaler makes them. There are no sample
    weights.

    Args:
      measure, C, tol, max_iter: as `MultivariateClassifier`, for bags.
      budget: B > 0, for prototypes; None for the rounded root of the number of rows.
      bandwidth: sigma > 0; None for `models.mil.median_bandwidth`.

    Attributes:
      classes_: (k,), the labels.
      prototypes_: (s, d), the rows that have a weight.
      prototype_indices_: (s,), the numbers of these rows in the X of the fit.
      prototype_weights_: (k, s), or (1, s) for two classes, of the second.
      intercept_: (k,) or (1,).
      bandwidth_: sigma.
      gap_, n_iter_: as `MultivariateClassifier`.
      n_features_in_, feature_names_in_: the number and the names of the columns of X.

    Raises:
      TypeError, ValueError: an argument is not as above, which the message names; rows of one bag have
        different labels; y has one class only; bandwidth is not given and the median distance is 0.

    Warns:
      sparsejax.ConvergenceWarning: a gap did not reach tol.
    Source: Mao & Tsang, IEEE TPAMI 35 (2013), Algorithm 3; the embedding: Chen, Bi & Wang, IEEE TPAMI 28
      (2006).

    >>> import numpy as np
    >>> from sparsejax.sklearn import MILESClassifier
    >>> rng = np.random.default_rng(0)
    >>> X, bags = rng.standard_normal((60, 2)), np.arange(60) // 3
    >>> X[:30:3] += 4  # one row of each of the first ten bags
    >>> model = MILESClassifier().fit(X, bags < 10, bag_ids=bags)
    >>> model.score(X, bags < 10, bag_ids=bags)
    1.0
    """

    bandwidth: float | None = None

    _true_tags = ()  # distances to prototypes need a dense X

    def fit(self, X: Any, y: Any, bag_ids: Any = None) -> Self:
        """Fit to X (n, d), labels y (n,), equal within a bag, and bag ids (n,), which can be sorted."""
        X, y = validated(self, X, y)
        self.classes_, codes = encoded(y, np.ones(len(X)))
        bags, first = numbered(bag_ids, len(X))
        self._has_bags = bag_ids is not None
        _check_agreement(codes, bags, first)
        with precision(X):
            bandwidth = mil.median_bandwidth(X) if self.bandwidth is None else self.bandwidth
            S = _embedded(X, bags, X, bandwidth)
        found = select(self, S, codes[first])
        self.prototype_indices_ = np.flatnonzero(found.coef.any(axis=0))
        self.prototypes_ = X[self.prototype_indices_]
        self.prototype_weights_ = found.coef[:, self.prototype_indices_]
        self.intercept_, self.gap_, self.n_iter_ = found[1:]
        self.bandwidth_ = float(bandwidth)
        return self

    def decision_function(self, X: Any, bag_ids: Any = None) -> np.ndarray:
        """Scores of each row's bag, (n, classes); for two classes (n,), positive for the second."""
        X = self._rows(X)
        if bag_ids is None and self._has_bags:
            raise ValueError(
                "bag_ids is missing, but fit had it: give those of these rows, or np.arange(len(X)) if each "
                "row is a bag."
            )
        bags, first = numbered(bag_ids, len(X))
        scores = np.tile(self.intercept_, (len(first), 1))
        if len(self.prototypes_):
            with precision(X):
                S = _embedded(X, bags, self.prototypes_, self.bandwidth_)
            scores += S @ self.prototype_weights_.T
        return scores[bags, 0] if len(self.intercept_) == 1 else scores[bags]

    def predict(self, X: Any, bag_ids: Any = None) -> np.ndarray:
        """The label of the bag of each row, (n,)."""
        return self._best(self.decision_function(X, bag_ids))

    def score(self, X: Any, y: Any, sample_weight: Any = None, bag_ids: Any = None) -> float:
        """The share of bags whose label is right; the weight of a bag is the mean weight of its rows.

        Rows of one bag with different labels are a ValueError, as in `fit`.
        """
        predicted = self.predict(X, bag_ids)
        y, (bags, first) = as_labels(y, predicted), numbered(bag_ids, len(predicted))
        _check_agreement(y, bags, first)
        right, weights = y == predicted, as_sample_weight(sample_weight, len(predicted))
        return float(np.average(right[first], weights=np.bincount(bags, weights) / np.bincount(bags)))


def _check_agreement(labels: np.ndarray, bags: np.ndarray, first: np.ndarray) -> None:
    """Raise unless all rows of a bag have one label; ``bags`` and ``first`` are the results of `numbered`."""
    differs = labels != labels[first][bags]
    if differs.any():
        raise ValueError(f"row {int(np.argmax(differs))} has another label than others of its bag.")


def numbered(bag_ids: Any, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The number 0, 1, ... of the bag of each row, (n,), and the first row of each bag, (bags,)."""
    if bag_ids is None:
        return np.arange(n), np.arange(n)
    ids = complete_labels("bag_ids", bag_ids)
    if ids.shape != (n,):
        raise ValueError(f"bag_ids must have shape ({n},), one for each row; got {ids.shape}.")
    _, bags = indexed_labels("bag_ids", ids)
    return bags, np.unique(bags, return_index=True)[1]


def _embedded(X: np.ndarray, bags: np.ndarray, prototypes: np.ndarray, bandwidth: Any) -> np.ndarray:
    """Similarities of the bags to the prototypes, (bags, prototypes).

    Rows, prototypes and bags are padded to few sizes, which share compiled programs. The padding rows are
    copies of the first row. Each makes a further bag, until the number of bags is one of few too; the rest
    join the last further bag, or the bag of the first row if there is none. The result leaves all these out.
    """
    rows, Z = filled(X), filled(prototypes)
    count = int(bags.max()) + 1
    room = len(filled(np.zeros((count, 1)))) - count
    extra = np.arange(len(rows) - len(X))
    ids = np.append(bags, count + np.minimum(extra, room - 1) if room else np.full(len(extra), bags[0]))
    S = mil.embed(rows, ids, Z, bandwidth)
    return np.asarray(S, dtype=float)[:count, : len(prototypes)]
