"""Estimators that choose their strengths by cross-validation, in one compiled call."""

from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.model_selection import check_cv

from sparsejax._core.checks import check_choice
from sparsejax.problem import Problem
from sparsejax.selection.chosen import CrossValidation
from sparsejax.selection.cross_validation import cross_validate
from sparsejax.sklearn._classification import ProbabilisticClassifier, targets
from sparsejax.sklearn._problems import CLASSIFICATION, Fitted, family, fitted, loss_of, strengths
from sparsejax.sklearn._regression import LinearRegressor
from sparsejax.sklearn._tables import as_sample_weight, gathered, precision

DEFAULT_SPAN = 1e-3  # the smallest strength tried by default, relative to lambda_max


class Choice(NamedTuple):
    """The strengths chosen by cross-validation, and the fit for them to all rows."""

    found: Fitted
    result: CrossValidation  # with the axes (betas, alphas)
    alphas: np.ndarray  # those tried, from large to small
    betas: np.ndarray  # those tried, from large to small
    loss: Any  # the loss of all rows
    index: Any  # of the chosen point of the grid, (beta, alpha)


def fold_of_rows(cv: Any, X: Any, y: np.ndarray, classifier: bool) -> np.ndarray:
    """The fold that holds out each row, (n,), from anything that scikit-learn accepts as cv."""
    n = len(y)
    folds, times = np.full(n, -1), np.zeros(n, int)
    for number, (train, test) in enumerate(check_cv(cv, y, classifier=classifier).split(X, y)):
        folds[test] = number
        times[test] += 1
        if (np.bincount(np.concatenate([train, test]), minlength=n) != 1).any():
            raise ValueError(f"cv: split {number} must have each row once, in its first or its second part.")
    if (times != 1).any():
        row = int(np.argmax(times != 1))
        raise ValueError(
            f"cv holds row {row} out {times[row]} times: each row must be held out once, as by KFold, "
            "StratifiedKFold or GroupKFold; for other splits use GridSearchCV."
        )
    return folds


def chosen_by_folds(
    estimator: Any,
    data: tuple[Any, np.ndarray, np.ndarray],
    make: Any,
    labels: np.ndarray,
    classifier: bool,
) -> Choice:
    """Cross-validate the estimator's grid of strengths, and fit the best ones to all rows."""
    X, Y, weights = data
    folds = used_folds(estimator.cv, X, labels, weights, classifier)
    table = gathered(X, Y, weights, folds=folds, widen=isinstance(estimator.penalty, str))
    with precision(X):
        loss = loss_of(table, make, estimator.fit_intercept)
        return chosen(estimator, loss, table.folds, X.shape[1])


def used_folds(cv: Any, X: Any, y: np.ndarray, weights: np.ndarray, classifier: bool) -> np.ndarray:
    """`fold_of_rows`, each of which has a row with a weight."""
    folds = fold_of_rows(cv, X, y, classifier)
    if len(np.unique(folds[weights > 0])) <= folds.max():
        raise ValueError("every fold needs a row whose sample_weight is not zero.")
    return folds


def chosen(
    estimator: Any, loss: Any, folds: np.ndarray, num_features: int, selection: str = "best"
) -> Choice:
    """The best point of the grid, or the sparsest within one standard error of it, fitted to all rows."""
    check_choice("selection", selection, ("best", "1se"))
    penalty_of, has = family(estimator.penalty)
    dtype = loss.dtype
    start = Problem(loss, penalty_of(jnp.ones((), dtype), jnp.zeros((), dtype)))
    betas = strengths("betas", estimator.betas, None, "beta" in has, dtype, DEFAULT_SPAN)
    alphas = strengths("alphas", estimator.alphas, start, "alpha" in has, dtype, DEFAULT_SPAN)
    alpha, beta = (jnp.asarray(x) for x in np.meshgrid(alphas, betas))
    result = cross_validate(
        start,
        jax.vmap(jax.vmap(penalty_of))(alpha, beta),
        folds=folds,
        scoring=estimator.scoring,
        tol=estimator.tol,
        maxiter=estimator.max_iter,
    )
    best = selection == "best"
    index = result.index if best else result.index_1se
    problem = start.replace(penalty=result.best if best else result.best_1se)
    found = fitted(problem, num_features, estimator.tol, estimator.max_iter)
    return Choice(found, jax.tree.map(np.asarray, result), alphas, betas, loss, tuple(map(int, index)))


class ByFolds:
    """Base of the estimators that choose their strengths."""

    def _chosen(self, choice: Choice) -> None:
        """Set the attributes that describe the choice."""
        beta, alpha = choice.index
        self.alphas_, self.betas_ = choice.alphas, choice.betas
        self.alpha_, self.beta_ = float(choice.alphas[alpha]), float(choice.betas[beta])
        self.scores_ = np.moveaxis(np.asarray(choice.result.score), 1, 2)
        self.cross_validation_ = choice.result


class SparseRegressorCV(ByFolds, LinearRegressor):
    r"""`SparseRegressor` with the strengths that score best on held-out rows.

    `sparsejax.cross_validate` solves all folds and strengths by one compiled program, each fold along its
    path; the best strengths are then fitted to all rows. GridSearchCV with `SparseRegressor` over the same
    folds, scoring and strengths finds the same, in more time.

    Args:
      penalty: as `SparseRegressor`; the strengths of a penalty object are multiplied by alphas.
      loss, fit_intercept, tol, max_iter: as `SparseRegressor`.
      alphas: the strengths to try, >= 0; or their number, >= 2: from `sparsejax.lambda_max`, the least that
        leaves no feature, down to a thousandth of it.
      betas: the strengths of the exclusive part to try, if the penalty has one: a number or several.
      cv: as in scikit-learn: None for five folds, a number, a splitter, or an iterable of splits; every row
        must be held out once.
      scoring: None for the least held-out loss, "r2", or a function as for `sparsejax.cross_validate`.

    Attributes:
      alpha_, beta_: the chosen strengths; 0 for one that the penalty does not have.
      alphas_, betas_: the strengths tried, from large to small.
      scores_: (folds, alphas, betas), the scores of the held-out rows, greater is better.
      cross_validation_: the `sparsejax.CrossValidation`, with the axes (folds, betas, alphas).
      coef_, intercept_, gap_, n_iter_, n_features_in_, feature_names_in_: as `SparseRegressor`, of the
        fit to all rows.

    Raises:
      TypeError, ValueError: as `SparseRegressor`; cv does not hold each row out once; alphas is a number of
        strengths, and no finite strength makes all coefficients 0.

    >>> import numpy as np
    >>> from sparsejax.sklearn import SparseRegressorCV
    >>> X = np.random.default_rng(0).standard_normal((50, 6))
    >>> Y = np.stack([X[:, 0], X[:, 0] - X[:, 3]], axis=1)
    >>> model = SparseRegressorCV(alphas=[0.5, 0.05]).fit(X, Y)
    >>> model.alpha_, model.scores_.shape, np.flatnonzero(model.coef_.any(axis=0)).tolist()
    (0.05, (5, 2, 1), [0, 3])
    """

    def __init__(
        self,
        penalty: Any = "l21",
        *,
        loss: Any = "squared",
        alphas: Any = 10,
        betas: Any = 0.01,
        cv: Any = None,
        scoring: Any = None,
        fit_intercept: bool = True,
        tol: float | None = None,
        max_iter: int = 20_000,
    ):
        self.penalty = penalty
        self.loss = loss
        self.alphas = alphas
        self.betas = betas
        self.cv = cv
        self.scoring = scoring
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Choose strengths on X (n, d) and y (n,) or (n, outputs), and fit."""
        X, y = self._read(X, y)
        data = X, y.reshape(len(y), -1), as_sample_weight(sample_weight, len(y))
        choice = chosen_by_folds(self, data, self._make(), y, classifier=False)
        self._chosen(choice)
        with precision(X):
            return self._keep(choice.found, choice.loss, y)


class SparseClassifierCV(ByFolds, ProbabilisticClassifier):
    r"""`SparseClassifier` with the strengths that score best on held-out rows.

    `sparsejax.cross_validate` solves all folds and strengths by one compiled program, each fold along its
    path; the best strengths are then fitted to all rows. GridSearchCV with `SparseClassifier` over the same
    folds, scoring and strengths finds the same, in more time.

    Args:
      penalty: as `SparseClassifier`; the strengths of a penalty object are multiplied by alphas.
      loss, fit_intercept, tol, max_iter: as `SparseClassifier`.
      alphas: the strengths to try, >= 0; or their number, >= 2: from `sparsejax.lambda_max`, the least that
        leaves no feature, down to a thousandth of it.
      betas: the strengths of the exclusive part to try, if the penalty has one: a number or several.
      cv: as in scikit-learn: None for five stratified folds, a number, a splitter, or an iterable of splits;
        every row must be held out once.
      scoring: None for the least held-out loss; "accuracy", "f1", "f1_micro", "roc_auc" or a function as for
        `sparsejax.cross_validate`.

    Attributes:
      alpha_, beta_: the chosen strengths; 0 for one that the penalty does not have.
      alphas_, betas_: the strengths tried, from large to small.
      scores_: (folds, alphas, betas), the scores of the held-out rows, greater is better.
      cross_validation_: the `sparsejax.CrossValidation`, with the axes (folds, betas, alphas).
      classes_, coef_, intercept_, gap_, n_iter_, n_features_in_, feature_names_in_: as `SparseClassifier`, of
        the fit to all rows.

    Raises:
      TypeError, ValueError: as `SparseClassifier`; cv does not hold each row out once; alphas is a number of
        strengths, and no finite strength makes all coefficients 0.

    >>> import numpy as np
    >>> from sparsejax.sklearn import SparseClassifierCV
    >>> X = np.random.default_rng(0).standard_normal((60, 6))
    >>> model = SparseClassifierCV("l21", loss="squared", alphas=[0.2, 0.02]).fit(X, X[:, 1] > 0)
    >>> model.alpha_, model.scores_.shape
    (0.02, (5, 2, 1))
    """

    def __init__(
        self,
        penalty: Any = "exclusive_l21",
        *,
        loss: str = "softmax",
        alphas: Any = 10,
        betas: Any = 0.01,
        cv: Any = None,
        scoring: Any = None,
        fit_intercept: bool = True,
        tol: float | None = None,
        max_iter: int = 20_000,
    ):
        self.penalty = penalty
        self.loss = loss
        self.alphas = alphas
        self.betas = betas
        self.cv = cv
        self.scoring = scoring
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Choose strengths on X (n, d) and labels y (n,), and fit."""
        X, codes, weights = self._read(X, y, sample_weight)
        data = X, targets(self.loss, codes, len(self.classes_)), weights
        choice = chosen_by_folds(self, data, CLASSIFICATION[self.loss], codes, classifier=True)
        self._chosen(choice)
        return self._keep(choice.found)
