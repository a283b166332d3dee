"""Multi-label classification and regression by few, uncorrelated features (Kong et al., AAAI 2016)."""

from typing import Any, Literal

import jax
import numpy as np
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float, as_numpy, check_choice, is_traced
from sparsejax._core.matrices.sparse import as_dense
from sparsejax.groups import Groups
from sparsejax.losses import HuberHingeLoss, LogisticLoss, SquaredHingeLoss, SquaredLoss
from sparsejax.models._labels import (
    PRESENT,
    SIGNS,
    Classes,
    as_threshold,
    decoded,
    positives,
    presence,
    r2_score,
    two_classes,
)
from sparsejax.models._linear_fit import LinearModel
from sparsejax.penalties import ExclusiveGroupL21
from sparsejax.problem import Problem
from sparsejax.solvers import solve

__all__ = ["Model", "fit"]

LOSSES = {
    "logistic": LogisticLoss,
    "squared": SquaredLoss,
    "squared_hinge": SquaredHingeLoss,
    "huber_hinge": HuberHingeLoss,
}
Loss = Literal["logistic", "squared", "squared_hinge", "huber_hinge"]


class Model(LinearModel, leaves=("W", "intercept", "solution"), static=("loss", "classes")):
    """A fitted linear model with one column for each label; a pytree.

    Attributes:
      W: (d, k), or (d,) if Y was a vector; rows of removed features are exactly zero.
      intercept: (k,) or ().
      solution: the `sparsejax.Solution` of the fit; check ``solution.converged``.
      loss: the name of the loss.
      classes: the two classes of every label in Y, sorted, such as (0, 1). None if the squared loss was
        fitted to numbers that are no labels. Labels are 0 and 1, or -1 and 1; in a vector Y any two values
        are labels.

    >>> import numpy as np, sparsejax as sj
    >>> X, Y = np.eye(4, 3), np.eye(4, 2)
    >>> model = sj.models.uncorrelated_group.fit(X, Y, 0.01, sj.groups.from_labels([0, 0, 1]))
    >>> model.predict(X).shape, model.score(X, Y), bool(model.solution.converged)
    ((4, 2), 1.0, True)
    """

    loss: str
    classes: Classes | None

    def predict_proba(self, X: ArrayLike) -> jax.Array:
        """The probability of every label, (n, k) or (n,); a ValueError if the loss is not logistic."""
        if self.loss != "logistic":
            raise ValueError(f"predict_proba needs loss='logistic'; this model has loss={self.loss!r}.")
        return jax.nn.sigmoid(self.decision_function(X))

    def predict(self, X: ArrayLike, threshold: float | None = None) -> Any:
        """Labels like those given to `fit`, (n, k) or (n,): the second class where the score > threshold.

        Whole numbers are int32. If `classes` is None the labels are 0 and 1.

        Args:
          X: (n, d).
          threshold: for the logistic loss a threshold on the probability, in (0, 1), default 0.5. For other
            losses a threshold on the score. Its default is 0 for the hinge losses; for the squared loss it is
            the mean of the two labels if they are numbers, else 0.5.
        """
        return decoded(self._positive(X, threshold), self.classes or PRESENT)

    def score(self, X: ArrayLike, Y: Any) -> float:
        """The accuracy: the share of the rows in which `predict` returns all labels correctly.

        If `classes` is None, the score is `sparsejax.metrics.r2`.
        """
        Y = _as_numbers(Y)
        if self.classes is None:
            return r2_score(Y, self.decision_function(X))
        predicted, shape = np.asarray(self._positive(X, None)), as_numpy("Y", Y).shape
        if shape != predicted.shape:
            raise ValueError(f"Y has shape {shape}; {predicted.shape} is needed for this X.")
        vector = predicted.ndim == 1 and self.classes not in (PRESENT, SIGNS)
        true = positives(Y, self.classes) if vector else np.asarray(presence("Y", Y, None, (1, 2))[0]) == 1
        return float(np.mean((predicted == true).reshape(len(true), -1).all(axis=1)))

    def _positive(self, X: ArrayLike, threshold: float | None) -> jax.Array:
        threshold = None if threshold is None else as_threshold(threshold)
        if self.loss == "logistic":
            threshold = 0.5 if threshold is None else threshold
            if not is_traced(threshold) and not 0 < threshold < 1:
                raise ValueError(f"threshold must be in (0, 1), got {threshold!r}.")
            return self.predict_proba(X) > threshold
        if threshold is None:
            # The squared loss is fitted to numbers as they are, and to other labels as 0 and 1.
            low, high = self.classes or PRESENT
            low, high = (low, high) if isinstance(low, int | float) else PRESENT
            threshold = (low + high) / 2 if self.loss == "squared" else 0.0
        return self.decision_function(X) > threshold


def fit(
    X: ArrayLike,
    Y: ArrayLike,
    alpha: ArrayLike,
    groups: Groups,
    *,
    loss: Loss = "logistic",
    scale: ArrayLike | None = None,
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
) -> Model:
    r"""Fit ``min_{W,b} f(XW + 1b') + sum_g alpha_g (sum_{i in g} ||w_i||_2)^2``.

    Columns of X should be on comparable scales. ``sparsejax.groups.from_correlation(X, threshold)`` makes
    groups of pairs of correlated features, as in the paper.

    Args:
      X: (n, d).
      Y: (n, k), all entries 0 or 1, or all -1 or 1, or booleans; or (n,), labels of two classes (see
        `sparsejax.models`). The squared loss also takes any real numbers, which are not converted.
      alpha: >= 0, shape () or (G,), one value for each group.
      groups: `sparsejax.groups.Groups` of d features; those in no group are not penalised.
      loss: "logistic", "squared", "squared_hinge" or "huber_hinge" (`sparsejax.losses`).
      scale: > 0; the default is that of the loss.
      tol, maxiter: as `sparsejax.solve`.

    Returns:
      `Model`.

    Raises:
      TypeError, ValueError: as the loss and `ExclusiveGroupL21`; with the logistic loss also for a label that
        all rows or none have, since its intercept would be infinite.
    Source: Kong et al., AAAI 2016, Eq. (2), with an unpenalised intercept added.

    >>> import numpy as np, sparsejax as sj
    >>> X, Y = np.eye(4, 3), np.eye(4, 2)
    >>> model = sj.models.uncorrelated_group.fit(X, Y, 0.01, sj.groups.from_labels([0, 0, 1]))
    >>> model.predict(X).shape, bool(model.solution.converged)
    ((4, 2), True)
    """
    check_choice("loss", loss, tuple(LOSSES))
    X = as_dense("X", X)
    Y, classes = _targets(_as_numbers(Y), X.dtype, loss)
    make: Any = LOSSES[loss]
    smooth = make(X, Y, scale=scale, intercept=True)
    solution = solve(Problem(smooth, ExclusiveGroupL21(alpha, groups)), tol=tol, maxiter=maxiter)
    return Model(solution.params, smooth.intercept(solution.params), solution, loss, classes)


def _as_numbers(Y: Any) -> Any:
    """Y; a vector of numbers or booleans of dtype object, as pandas makes, in the dtype of its entries."""
    labels = None if is_traced(Y) else as_numpy("Y", Y)
    if labels is None or labels.dtype != object or labels.ndim != 1:
        return Y
    numbers = all(isinstance(label, int | float | np.number | np.bool_) for label in labels)
    found = np.array(labels.tolist()) if numbers else labels
    return found if bool((found == labels).all()) else Y  # a mixture of huge integers would become floats


def _targets(Y: Any, dtype: np.dtype, loss: str) -> tuple[jax.Array, Classes | None]:
    """Y converted for the loss, and the two classes of the labels, or None."""
    classes: Classes | None
    numbers = is_traced(Y) or as_numpy("Y", Y).dtype.kind in "iuf"
    if loss == "squared" and numbers:
        values = [] if is_traced(Y) else np.unique(as_numpy("Y", Y)).tolist()  # as given, not in X's dtype
        Y = as_float("Y", Y, (1, 2), dtype)
        two = tuple(values) if len(values) == 2 and Y.ndim == 1 else None
        return Y, PRESENT if set(values) <= {0, 1} else SIGNS if set(values) <= {-1, 1} else two
    if np.ndim(Y) == 1 and not is_traced(Y):
        positive, classes = two_classes(Y)
        Y = jax.device_put(positive.astype(dtype))
    else:
        Y, classes = presence("Y", Y, dtype, (1, 2))
    return (2 * Y - 1 if loss.endswith("hinge") else Y), classes
