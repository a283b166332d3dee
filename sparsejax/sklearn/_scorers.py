"""Scores of fits on folds: by the scorers of scikit-learn, or by our own with other weights."""

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.metrics import get_scorer
from sklearn.utils import _safe_indexing

from sparsejax import metrics
from sparsejax._core.precision import full_precision, users_level
from sparsejax.losses import Loss
from sparsejax.predictions import intercept_of
from sparsejax.selection.fold_task import Fits
from sparsejax.selection.resampling import masked
from sparsejax.selection.scoring import SCORES, positive, predicted, score_of
from sparsejax.sklearn._problems import Fitted

_Scorer = type(get_scorer("r2"))  # a named scorer, which knows its metric and what it needs of an estimator

# A function from fits with the axes (folds, betas, alphas) to their scores, with the same axes.
Judge = Callable[[Fits], np.ndarray]


def scorer_of(scoring: Any) -> Any:
    """The scorer of scikit-learn that ``scoring`` names or is; None for a scoring of our `cross_validate`.

    A function with ``X`` as its second argument, as ``(estimator, X, y)``, is a scorer of scikit-learn.

    Raises:
      TypeError, ValueError: scoring is no name of a scorer and no function.
    """
    if scoring is None or (isinstance(scoring, str) and scoring in SCORES):
        return None
    if isinstance(scoring, str):
        try:
            return get_scorer(scoring)
        except (ValueError, KeyError):
            raise ValueError(
                f"scoring must be None, one of {', '.join(map(repr, SCORES))}, a name of "
                f"sklearn.metrics.get_scorer_names(), or a function; got {scoring!r}."
            ) from None
    if not callable(scoring):
        raise TypeError(f"scoring must be None, a name or a function, got {scoring!r}.")
    return scoring if _arguments(scoring)[1:2] == ["X"] else None


def of_single_labels(scoring: Any, num_classes: int) -> Any:
    """The scoring as scikit-learn means it for rows of one label each.

    F1 of all labels together is then the accuracy, and F1 of two classes is that of the second, whether the
    loss has one column for both classes or two.
    """
    if not isinstance(scoring, str):
        return scoring
    return {"f1_micro": "accuracy", "f1": _f1_of_second if num_classes == 2 else "f1"}.get(scoring, scoring)


def _f1_of_second(Y: jax.Array, mean: jax.Array, weights: jax.Array) -> jax.Array:
    Y, labels = (a.reshape(len(a), -1)[:, -1] for a in (positive(Y), predicted(Y, mean, mean)))
    return metrics.precision_recall_f1(Y, labels, weights=weights).f1


def _arguments(function: Any) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # functions written in C may have no signature
        return []


def as_given(estimator: Any, given: Any, X: Any) -> Any:
    """What a scorer gets as X: the user's table if it has names of features, else the validated array."""
    return given if "feature_names_in_" in vars(estimator) else X


def judge_of(
    scorer: Any,
    estimator_of: Callable[[Fitted, np.ndarray], Any],
    X: Any,
    y: np.ndarray,
    weights: np.ndarray | None,
    folds: np.ndarray,
    loss: Loss,
) -> Judge:
    """A function that scores all fits on their held-out rows.

    The scorer is called on every fold for coefficients of 0, with their best intercept, so that an unfit
    scorer raises before the first solve. A fit that it refuses later has the score NaN, with a warning.

    Args:
      scorer: a scorer of scikit-learn.
      estimator_of: makes a fitted estimator from a `Fitted`, for predictions of the rows given.
      X, y: the data; X is the result of `as_given`, and y has no missing values.
      weights: sample weights for the scorer, (n,), or None; rows of weight 0 are left out.
      folds: (n,), the fold that holds out each row.
      loss: the loss of all rows.
    """
    metric = scorer._score_func if isinstance(scorer, _Scorer) else scorer
    used = {} if weights is None or "sample_weight" not in _arguments(metric) else {"sample_weight": weights}
    counted = True if weights is None else weights > 0

    def score(coef: np.ndarray, intercept: np.ndarray, fold: int) -> float:
        rows = np.flatnonzero((folds == fold) & counted)
        options = {name: values[rows] for name, values in used.items()}
        return scorer(
            estimator_of(Fitted(coef, intercept, np.nan, 0), rows),
            _safe_indexing(X, rows),
            y[rows],
            **options,
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nothing = np.zeros(loss.params_shape, loss.dtype)
        intercept = np.asarray(intercept_of(loss, nothing))
        for fold in range(folds.max() + 1):
            score(nothing[: X.shape[1]].T, intercept, fold)

    def judge(fits: Fits) -> np.ndarray:
        W, b = np.asarray(fits.params), np.asarray(fits.intercept)
        scores, refused = np.full(b.shape[:3], np.nan), []
        for fold, *at in np.argwhere(~_lost(W)):
            one = (fold, *at)
            try:
                scores[one] = score(W[one][: X.shape[1]].T, b[one], fold)
            except ValueError as error:  # such as a deviance of predictions that are not positive
                refused.append(error)
        if refused:
            text = f"scoring refused {len(refused)} of {scores.size} fits, which score NaN: {refused[-1]}"
            warnings.warn(text, UserWarning, stacklevel=users_level())
        return scores

    return judge


def _lost(W: np.ndarray) -> np.ndarray:
    """Whether a fit is NaN: not solved before Ctrl-C, or not finite, of which `warn_unconverged` tells."""
    return np.isnan(W).any(axis=tuple(range(3, W.ndim)))


def judge_of_our_own(scoring: Any, loss: Loss, weights: np.ndarray, folds: np.ndarray) -> Judge:
    """`judge_of` for a ``scoring`` of `sparsejax.cross_validate`, with other weights than the fit."""

    def judge(fits: Fits) -> np.ndarray:
        scores = []
        for fold, of_fold in enumerate(zip(*fits, strict=True)):
            held_out = masked(jnp.asarray(weights, loss.dtype), jnp.asarray(folds == fold))
            score = jax.vmap(jax.vmap(functools.partial(_score, scoring, loss), (0, 0, None)), (0, 0, None))
            scores.append(np.asarray(score(*of_fold, held_out)))
        return np.where(_lost(np.asarray(fits.params)), np.nan, np.stack(scores))

    return judge


_score = full_precision()(jax.jit(score_of, static_argnums=0))
