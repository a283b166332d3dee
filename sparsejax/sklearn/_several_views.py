"""Classification of rows that have one label in each of several views, such as objects and moods."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from sparsejax._core.checks import as_nonnegative, as_strength
from sparsejax._core.labels import complete_labels
from sparsejax.graphs import from_views
from sparsejax.groups import label_views
from sparsejax.losses import GraphLaplacian, SquaredLoss
from sparsejax.penalties import ExclusiveGroupLasso
from sparsejax.problem import Problem
from sparsejax.sklearn._classification import encoded, of_classes
from sparsejax.sklearn._problems import fitted, loss_of
from sparsejax.sklearn._tables import (
    Estimator,
    as_labels,
    as_sample_weight,
    centred,
    check_dense,
    gathered,
    precision,
    validated,
)


def _of_one_kind(labels: np.ndarray) -> np.ndarray:
    """Labels in an array of objects, as a table of numbers and text gives, as numbers if all are numbers."""
    if labels.dtype != object:
        return labels
    complete_labels("y", labels)
    plain = np.asarray(labels.tolist())
    return plain if plain.dtype.kind in "biuf" else labels


@dataclass(eq=False, repr=False)
class LabelViewsClassifier(Estimator, ClassifierMixin, BaseEstimator):
    r"""Linear classification by the labels of several views at once, such as objects and moods.

    A combination holds one label of each view. Every combination is a column of Y, which is 1 for the rows
    that have all its labels and 0 for the others, and is fitted by least squares,

    .. math:: \min_{W,b} \frac{1}{2\sum_i s_i} \sum_i s_i \|x_i^\top W + b - y_i\|^2
              + \sum_{j=1}^d \frac{\alpha_j}2 \sum_v \Big( \sum_{l \in v} \|w_{j,(l)}\|_2 \Big)^2
              + \frac\beta2 \operatorname{tr}(W L W^\top) ,

    where :math:`w_{j,(l)}` are the weights of feature j for the combinations with label l: the labels of a
    view compete for features. L is the Laplacian of the graph that joins two combinations if they differ in
    one view only (`sparsejax.graphs.from_views`): combinations with few rows or none get weights near those
    of their neighbours.
    s are the sample weights: weight k counts as k copies of the row. Columns of X should be on comparable
    scales, as a StandardScaler makes them.

    float64 data are solved in float64, even if JAX's 64-bit numbers are switched off, and float32 data in
    float32.

    Args:
      alpha: >= 0, () or (d,), the strength of the competition.
      beta: >= 0, the strength of the graph; not used with one view, whose graph would join all labels.
      tol: largest relative duality gap; None is 1e-6 for float64 and 1e-4 for float32.
      max_iter: largest number of iterations.

    Attributes:
      classes_: (k,) the labels for y (n,); for y (n, views) a list of one array each.
      coef_: (combinations, d), where the label of the last view varies fastest; (1, d) for one view of two
        labels, the second minus the first; exact zeros.
      intercept_: (combinations,) or (1,).
      gap_: the certificate: no coefficients lower the objective by more than ``gap_`` times the objective, or
        times its value at 0 if that is larger.
      n_iter_: number of iterations made.
      n_features_in_, feature_names_in_: the number and the names of the columns of X.

    Raises:
      TypeError, ValueError: an argument is not as above, which the message names; a view has one label only.

    Warns:
      sparsejax.ConvergenceWarning: the gap did not reach tol.
    Source: Chen et al., ACM MM 2011, Eq. (5), with an unpenalised intercept and any number of views.

    >>> import numpy as np
    >>> from sparsejax.sklearn import LabelViewsClassifier
    >>> X = np.random.default_rng(0).standard_normal((80, 5))
    >>> y = np.stack([np.where(X[:, 0] > 0, "dog", "cat"), np.where(X[:, 1] > 0, "happy", "sad")], axis=1)
    >>> model = LabelViewsClassifier().fit(X, y)
    >>> model.predict(X[:2]).tolist(), model.scores(X).shape
    ([['dog', 'sad'], ['dog', 'happy']], (80, 2, 2))
    """

    _: KW_ONLY
    alpha: Any = 0.01
    beta: float = 0.01
    tol: float | None = None
    max_iter: int = 20_000

    _true_tags = ("target_tags.multi_output",)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to X (n, d) and the labels y (n, views), or (n,) of one view."""
        check_dense("y", y)
        X, y = validated(self, X, y, multi_output=True)
        weights = as_sample_weight(sample_weight, len(X))
        self._flat = y.ndim == 1
        views = [encoded(_of_one_kind(column), weights) for column in y.reshape(len(X), -1).T]
        classes, codes = [view[0] for view in views], [view[1] for view in views]
        sizes = tuple(len(labels) for labels in classes)
        Y = np.eye(int(np.prod(sizes)))[np.ravel_multi_index(codes, sizes)]
        with precision(X):
            alpha = np.asarray(as_strength("alpha", self.alpha))
            beta = as_nonnegative("beta", self.beta, X.dtype)
        if alpha.ndim and len(alpha) != X.shape[1]:
            raise ValueError(
                f"alpha has shape {alpha.shape}; it must be a number or one a feature, ({X.shape[1]},)."
            )
        X, middle = centred(X, weights, True)
        table = gathered(X, Y, weights, widen=alpha.ndim == 0)
        with precision(X):
            loss = smooth = loss_of(table, SquaredLoss, True)
            if len(sizes) > 1:
                smooth = loss + GraphLaplacian(from_views(*sizes), beta)
            problem = Problem(smooth, ExclusiveGroupLasso(alpha, label_views(*sizes)))
            found = fitted(problem, X.shape[1], self.tol, self.max_iter, loss).uncentred(middle)
        self.classes_ = classes[0] if self._flat else classes
        self.coef_, self.intercept_ = (found.coef, found.intercept) if len(sizes) > 1 else of_classes(found)
        self.gap_, self.n_iter_ = found.gap, found.num_iters
        return self

    def scores(self, X: Any) -> np.ndarray:
        """Scores of the combinations with an axis for each view, (n, labels of view 1, of view 2, ...).

        They estimate probabilities linearly, so they may lie outside [0, 1]: use them to rank.
        """
        H: np.ndarray = self._rows(X) @ self.coef_.T + self.intercept_
        if H.shape[1] == 1:  # h2 - h1; the columns of Y sum to 1, and so do h1 and h2
            H = np.concatenate([1 - H, 1 + H], axis=1) / 2
        return H.reshape(len(H), *(len(labels) for labels in self._views()))

    def marginals(self, X: Any) -> list[np.ndarray]:
        """Scores of the labels of each view, (n, labels): the sum of the scores of their combinations."""
        scores = self.scores(X)
        axes = range(1, scores.ndim)
        return [scores.sum(axis=tuple(other for other in axes if other != view)) for view in axes]

    def predict(self, X: Any) -> np.ndarray:
        """For each view the label with the largest marginal score, (n, views), or (n,) if y was."""
        best = [scores.argmax(axis=1) for scores in self.marginals(X)]
        labels = [names[ix] for names, ix in zip(self._views(), best, strict=True)]
        if len({view.dtype.kind for view in labels}) > 1:  # numbers and text stay what they are
            labels = [view.astype(object) for view in labels]
        return labels[0] if self._flat else np.stack(labels, axis=1)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of rows whose labels are right in all views."""
        predicted = self.predict(X)
        right = (as_labels(y, predicted) == predicted).reshape(len(predicted), -1).all(axis=1)
        return float(np.average(right, weights=as_sample_weight(sample_weight, len(right))))

    def _views(self) -> list[np.ndarray]:
        return [np.asarray(self.classes_)] if self._flat else list(self.classes_)
