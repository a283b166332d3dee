"""Estimators that choose their strengths by cross-validation, in one compiled call."""

import copy
import functools
import warnings
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.model_selection import check_cv

from sparsejax._core.checks import check_choice
from sparsejax._core.progress import bar_of
from sparsejax.groups import Groups
from sparsejax.losses import Loss
from sparsejax.problem import Problem
from sparsejax.selection.cross_validation import cross_validate, judged_on_folds
from sparsejax.sklearn._classification import PenalisedClassifier, has_probabilities, targets
from sparsejax.sklearn._problems import (
    CLASSIFICATION,
    Fitted,
    check_max_iter,
    family,
    fitted,
    groups_of,
    loss_of,
    strengths,
    widens,
)
from sparsejax.sklearn._regression import LinearRegressor
from sparsejax.sklearn._scorers import (
    Judge,
    as_given,
    judge_of,
    judge_of_our_own,
    of_single_labels,
    scorer_of,
)
from sparsejax.sklearn._tables import centred, gathered, precision
from sparsejax.sklearn._targets import Targets

DEFAULT_SPAN = 1e-3  # the smallest of the default strengths, relative to lambda_max


def used_folds(cv: Any, X: Any, y: np.ndarray, weights: np.ndarray, classifier: bool) -> np.ndarray:
    """The number of the fold that holds out each row, (n,), from anything that scikit-learn accepts as cv.

    Raises:
      ValueError: cv does not hold each row out exactly once, or a fold has no row with a weight above 0.
    """
    n = len(y)
    folds, times = np.full(n, -1), np.zeros(n, int)
    try:
        splits = [
            (np.arange(n)[train], np.arange(n)[test])
            for train, test in check_cv(cv, y, classifier=classifier).split(X, y)
        ]
    except (TypeError, ValueError, IndexError) as error:
        raise ValueError(
            f"cv must be None, a number, a splitter or pairs of rows of X: {error} (a splitter that needs "
            "groups: cv=list(splitter.split(X, y, groups)))"
        ) from None
    for number, (train, test) in enumerate(splits):
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
    if len(np.unique(folds[weights > 0])) < len(splits):
        raise ValueError("every fold needs a row with a target, and with a sample_weight that is not zero.")
    return folds


@dataclass(eq=False, repr=False, kw_only=True)
class ByFolds(BaseEstimator):
    """Base of the estimators that choose their strengths: the parameters and the results of the choice."""

    alphas: Any = 10
    betas: Any = 0.01
    cv: Any = None
    scoring: Any = None
    selection: str = "best"
    progress: bool = False
    checkpoint: Any = None
    verbose: int = 0

    def _choose(
        self,
        loss: Loss,
        folds: np.ndarray,
        num_features: int,
        groups: Groups | None = None,
        judge: Judge | None = None,
        scoring: Any = None,
    ) -> Fitted:
        """The fit to all rows at the strengths that ``selection`` chooses.

        The method sets the attributes that tell of the choice, such as ``alpha_`` and ``scores_``. ``judge``
        scores the fits; without it ``scoring`` does, as an argument of `sparsejax.cross_validate`.
        """
        check_choice("selection", self.selection, ("best", "1se"))
        verbose = self.verbose
        if not isinstance(verbose, (bool, int, np.bool_, np.integer)) or verbose < 0:
            raise ValueError(f"verbose must be False, True or an integer >= 0, got {verbose!r}.")
        check_max_iter(self.max_iter)
        penalty_of, has = family(self.penalty, groups)
        dtype = loss.dtype
        # The start has the strengths of a penalty object as they are: alphas are factors of them.
        start = Problem(loss, penalty_of(jnp.ones((), dtype), jnp.zeros((), dtype)))
        betas = strengths("betas", self.betas, None, "beta" in has, dtype, DEFAULT_SPAN)
        alphas = strengths("alphas", self.alphas, start, "alpha" in has, dtype, DEFAULT_SPAN)
        alpha, beta = (jnp.asarray(x) for x in np.meshgrid(alphas, betas))
        name = type(self).__name__
        if verbose:
            print(f"[{name}] {folds.max() + 1} folds x {alphas.size * betas.size} strengths")
        grid = start, jax.vmap(jax.vmap(penalty_of))(alpha, beta)
        options = {"folds": folds, "tol": self.tol, "maxiter": self.max_iter}
        options |= {"progress": self.progress, "checkpoint": self.checkpoint}
        if judge is None:
            result = cross_validate(*grid, scoring=scoring, **options)
        else:
            result = judged_on_folds(*grid, judge, **options)
        best = self.selection == "best"
        index = tuple(map(int, result.index if best else result.index_1se))
        problem = start.replace(penalty=result.best if best else result.best_1se)
        progress = bar_of(f"{name}: fit to all rows", 1, deferred=False, shown=self.progress)
        with progress as bar:
            found = fitted(problem, num_features, self.tol, self.max_iter)
            bar.show(1, found.gap)
        self.cross_validation_ = jax.tree.map(np.asarray, result)
        score = self.cross_validation_.score
        self.scores_ = np.moveaxis(score, 1, 2)
        self.alphas_, self.betas_ = alphas, betas
        self.alpha_, self.beta_ = float(alphas[index[1]]), float(betas[index[0]])
        if verbose:
            values = {"alpha": self.alpha_, "beta": self.beta_}
            chosen = ", ".join(f"{strength} {values[strength]:.4g}" for strength in has.split(", "))
            kept = int(np.atleast_2d(found.coef).any(axis=0).sum())
            mean = float(np.mean(score, axis=0)[index])
            print(f"[{name}] chosen: {chosen}, score {mean:.4g}, {kept} features")
        return found


@dataclass(eq=False, repr=False, kw_only=True)
class SparseRegressorCV(ByFolds, LinearRegressor):
    r"""`SparseRegressor` with the strengths that score best on held-out rows.

    `sparsejax.cross_validate` solves all folds and strengths by one compiled program, each fold along its
    path. A last fit, with the chosen strengths, is to all rows. GridSearchCV with `SparseRegressor` over the
    same folds, scoring and strengths finds the same result in more time.

    Args:
      penalty: as `SparseRegressor`; the strengths of a penalty object are multiplied by alphas.
      loss, quantile, groups, fit_intercept, tol, max_iter: as `SparseRegressor`. The smoothing of "quantile"
        is computed once, from all rows, for all folds.
      alphas: the strengths to try, >= 0; or their number, >= 2, from the least strength that selects no
        feature (`sparsejax.lambda_max`) down to a thousandth of this strength.
      betas: the strengths of the exclusive part to try, if the penalty has one: a number or several.
      cv: as in scikit-learn: None for five folds, a number, a splitter, or an iterable of splits; every row
        must be held out once.
      scoring: None for the least held-out loss, "r2", or a function ``(Y, predictions, weights)`` as for
        `sparsejax.cross_validate`. Or any scorer of scikit-learn, by its name, such as
        "neg_mean_absolute_error", or as a function ``(estimator, X, y)``, whose second argument must be
        called X; the scorer gets the sample weights, if there are any and it takes them. With an offset, "r2"
        compares counts divided by the exposure.
      selection: "best", or "1se": the sparsest fit within one standard error of the best score.
      progress: show a bar, and stop at Ctrl-C, as `sparsejax.cross_validate`; needs tqdm.
      checkpoint: a folder for the solves made so far, from which a killed fit continues.
      verbose: 1 prints a line before the folds, and a line with the choice after the last fit.

    Attributes:
      alpha_, beta_: the chosen strengths; 0 for a strength that the penalty does not have.
      alphas_, betas_: the strengths tried, from large to small.
      scores_: (folds, alphas, betas), the scores of the held-out rows, greater is better.
      cross_validation_: the `sparsejax.CrossValidation`, with the axes (folds, betas, alphas).
      coef_, intercept_, gap_, n_iter_, n_features_in_, feature_names_in_: as `SparseRegressor`, of the
        fit to all rows.

    Raises:
      TypeError, ValueError: as `SparseRegressor`; cv does not hold each row out once; alphas is a number of
        strengths, and no finite strength makes all coefficients 0.

    Warns:
      sparsejax.ConvergenceWarning: the gap of some fits did not reach tol.
      UserWarning: no strengths have a finite mean score; a scorer refused some fits, which score NaN; a fold
        holds all targets of an output out.

    >>> import numpy as np
    >>> from sparsejax.sklearn import SparseRegressorCV
    >>> X = np.random.default_rng(0).standard_normal((50, 6))
    >>> Y = np.stack([X[:, 0], X[:, 0] - X[:, 3]], axis=1)
    >>> model = SparseRegressorCV(alphas=[0.5, 0.05]).fit(X, Y)
    >>> model.alpha_, model.scores_.shape, np.flatnonzero(model.coef_.any(axis=0)).tolist()
    (0.05, (5, 2, 1), [0, 3])
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None) -> Self:
        """Choose strengths and fit to all rows of X and y; arguments as those of `SparseRegressor.fit`."""
        scorer, given = scorer_of(self.scoring), X
        X, targets = self._read(X, y, sample_weight, offset)
        data = as_given(self, given, X)
        groups, by_row = groups_of(self, X.shape[1]), targets.weights.reshape(X.shape[0], -1).max(axis=1)
        folds = used_folds(self.cv, X, targets.y, by_row, classifier=False)
        X, middle = centred(X, targets.weights, self.fit_intercept)
        table = gathered(X, targets.columns, targets.weights, folds=folds, widen=widens(self.penalty))
        with precision(X):
            loss = loss_of(table, self._make(targets), self.fit_intercept)
            keep = lambda found: copy.copy(self)._keep(found.uncentred(middle), loss, targets.y)
            judge = None
            if scorer is not None:
                judge = self._judge(scorer, data, targets, sample_weight, folds, keep, loss)
            found = self._choose(loss, table.folds, X.shape[1], groups, judge, self.scoring)
            return self._keep(found.uncentred(middle), loss, targets.y)

    def _judge(
        self,
        scorer: Any,
        X: Any,
        targets: Targets,
        sample_weight: Any,
        folds: np.ndarray,
        keep: Any,
        loss: Loss,
    ) -> Judge:
        """A `Judge` by a scorer of scikit-learn; ``keep`` makes a fitted estimator from a `Fitted`.

        Rows without a target do not count.
        """
        weights, y = targets.weights, targets.y
        missing = np.isnan(y)
        if weights.ndim > 1 or (missing.ndim > 1 and missing.any()):
            raise ValueError(
                f"scoring={self.scoring!r} of scikit-learn is for whole rows of y: with missing targets or "
                'weights by entry use None or "r2".'
            )
        given = weights if sample_weight is not None or missing.any() else None

        def estimator_of(found: Fitted, rows: np.ndarray) -> Any:
            model = keep(found)
            if targets.exposure is not None:
                own = np.log(targets.exposure[rows])
                model.__dict__["predict"] = functools.partial(predict, model, own)
            return model

        return judge_of(scorer, estimator_of, X, y, given, folds, loss)


# Scorers of scikit-learn read the name of this function, and pickle it for other processes.
def predict(model: Any, own: np.ndarray, X: Any, offset: Any = None) -> np.ndarray:
    """The predictions of a model at the offset ``own`` of its held-out rows; `score` gives None as offset."""
    predicted: np.ndarray = type(model).predict(model, X, own if offset is None else offset)
    return predicted


@dataclass(eq=False, repr=False, kw_only=True)
class SparseClassifierCV(ByFolds, PenalisedClassifier):
    r"""`SparseClassifier` with the strengths that score best on held-out rows.

    `sparsejax.cross_validate` solves all folds and strengths by one compiled program, each fold along its
    path. A last fit, with the chosen strengths, is to all rows. GridSearchCV with `SparseClassifier` over the
    same folds, scoring and strengths finds the same result in more time.

    Args:
      penalty: as `SparseClassifier`; the strengths of a penalty object are multiplied by alphas.
      loss, groups, class_weight, fit_intercept, tol, max_iter: as `SparseClassifier`. Balanced class weights
        are computed once, from all rows, for all folds. Of the scores only the held-out loss uses class
        weights.
      alphas: the strengths to try, >= 0; or their number, >= 2, from the least strength that selects no
        feature (`sparsejax.lambda_max`) down to a thousandth of this strength.
      betas: the strengths of the exclusive part to try, if the penalty has one: a number or several.
      cv: as in scikit-learn: None for five stratified folds, a number, a splitter, or an iterable of splits;
        every row must be held out once.
      scoring: None for the least held-out loss; "accuracy", "f1" (with two classes the F1 of the second, else
        the mean over classes), "f1_micro", "roc_auc", or a function ``(Y, predictions, weights)``, as for
        `sparsejax.cross_validate`. Or any scorer of scikit-learn, by its name, such as "balanced_accuracy",
        "average_precision" or "neg_log_loss", or as a function ``(estimator, X, y)``, whose second argument
        must be called X; the scorer gets the sample weights, if there are any and it takes them.
      selection: "best", or "1se": the sparsest fit within one standard error of the best score.
      progress: show a bar, and stop at Ctrl-C, as `sparsejax.cross_validate`; needs tqdm.
      checkpoint: a folder for the solves made so far, from which a killed fit continues.
      verbose: 1 prints a line before the folds, and a line with the choice after the last fit.

    Attributes:
      alpha_, beta_: the chosen strengths; 0 for a strength that the penalty does not have.
      alphas_, betas_: the strengths tried, from large to small.
      scores_: (folds, alphas, betas), the scores of the held-out rows, greater is better.
      cross_validation_: the `sparsejax.CrossValidation`, with the axes (folds, betas, alphas).
      classes_, coef_, intercept_, gap_, n_iter_, n_features_in_, feature_names_in_: as `SparseClassifier`, of
        the fit to all rows.

    Raises:
      TypeError, ValueError: as `SparseClassifier`; cv does not hold each row out once; alphas is a number of
        strengths, and no finite strength makes all coefficients 0.

    Warns:
      sparsejax.ConvergenceWarning: the gap of some fits did not reach tol.
      UserWarning: no strengths have a finite mean score; a scorer refused some fits, which score NaN; all
        rows of a class are in one fold, and the loss has probabilities.

    >>> import numpy as np
    >>> from sparsejax.sklearn import SparseClassifierCV
    >>> X = np.random.default_rng(0).standard_normal((60, 6))
    >>> model = SparseClassifierCV("l21", loss="squared", alphas=[0.2, 0.02]).fit(X, X[:, 1] > 0)
    >>> model.alpha_, model.scores_.shape
    (0.02, (5, 2, 1))
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Choose strengths on X (n, d) and labels y (n,), and fit; sample_weight (n,), >= 0."""
        scorer, given = scorer_of(self.scoring), X
        X, codes, weights, by_class = self._read(X, y, sample_weight)
        data, scoring = as_given(self, given, X), of_single_labels(self.scoring, len(self.classes_))
        groups, Y = groups_of(self, X.shape[1]), targets(self.loss, codes, len(self.classes_))
        total = weights * by_class[codes]
        folds = used_folds(self.cv, X, codes, total, classifier=True)
        if self.fit_intercept and has_probabilities(self):
            self._warn_of_missing_classes(folds, codes, total)
        X, middle = centred(X, total, self.fit_intercept)
        # Rows whose class has weight 0 count in scores, so that they stay in the table.
        table = gathered(X, Y, total, folds=folds, counted=weights > 0, widen=widens(self.penalty))
        with precision(X):
            loss = loss_of(table, CLASSIFICATION[self.loss], self.fit_intercept)
            judge = None
            if scorer is not None:
                sample = None if sample_weight is None else weights
                estimator_of = lambda found, rows: copy.copy(self)._keep(found.uncentred(middle))
                judge = judge_of(scorer, estimator_of, data, self.classes_[codes], sample, folds, loss)
            elif scoring is not None and self.class_weight is not None:
                # Classes weigh more in the fit, not in the score.
                plain = gathered(X, Y, weights, folds=folds, widen=False)
                judge = judge_of_our_own(scoring, loss, plain.weights, table.folds)
            found = self._choose(loss, table.folds, X.shape[1], groups, judge, scoring)
        return self._keep(found.uncentred(middle))

    def _warn_of_missing_classes(self, folds: np.ndarray, codes: np.ndarray, weights: np.ndarray) -> None:
        """Warn if all rows of a class are in one fold: without this fold its best intercept is infinite."""
        rows = np.zeros((folds.max() + 1, len(self.classes_)), int)
        np.add.at(rows, (folds, codes), weights > 0)
        for fold, code in np.argwhere(rows == rows.sum(axis=0)):
            warnings.warn(
                f"All rows of class {self.classes_[code]!r} are in fold {fold}: the fit without this "
                "fold has no row of the class, so its held-out loss is infinite, and the number reported is "
                "merely large.",
                UserWarning,
                stacklevel=3,
            )
