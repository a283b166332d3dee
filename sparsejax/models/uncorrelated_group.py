"""Multi-label classification and regression by few, uncorrelated features (Kong et al., AAAI 2016)."""

from typing import Any, Literal

import jax
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float, check_labels, is_traced
from sparsejax.groups import Groups
from sparsejax.losses import HuberHingeLoss, LogisticLoss, SquaredHingeLoss, SquaredLoss
from sparsejax.models._linear import LinearModel
from sparsejax.penalties import ExclusiveGroupL21
from sparsejax.problem import Problem
from sparsejax.solution import Solution
from sparsejax.solving import solve

__all__ = ["Model", "fit"]

LOSSES = {
    "logistic": LogisticLoss,
    "squared": SquaredLoss,
    "squared_hinge": SquaredHingeLoss,
    "huber_hinge": HuberHingeLoss,
}
Loss = Literal["logistic", "squared", "squared_hinge", "huber_hinge"]


class Model(LinearModel, leaves=("W", "intercept", "solution"), static=("loss",)):
    """A fitted linear model with one column a label; a pytree.

    Attributes:
      W: (d, k), or (d,) if Y was a vector; rows of removed features are exactly zero.
      intercept: (k,) or ().
      solution: the `sparsejax.Solution` behind it: look at ``solution.converged``.
      loss: the name of the loss.

    >>> import numpy as np, sparsejax as sj
    >>> X, Y = np.eye(4, 3), np.eye(4, 2)
    >>> model = sj.models.uncorrelated_group.fit(X, Y, 0.01, sj.groups.from_labels([0, 0, 1]))
    >>> model.predict(X).shape, bool(model.solution.converged)
    ((4, 2), True)
    """

    loss: str

    def __init__(self, W: jax.Array, intercept: jax.Array, solution: Solution, loss: str):
        self._set(W=W, intercept=intercept, solution=solution, loss=loss)

    def predict_proba(self, X: ArrayLike) -> jax.Array:
        """The probability of every label, (n, k) or (n,); for the logistic loss."""
        if self.loss != "logistic":
            raise ValueError(f"predict_proba needs loss='logistic'; this model has loss={self.loss!r}.")
        return jax.nn.sigmoid(self.decision_function(X))

    def predict(self, X: ArrayLike, threshold: float | None = None) -> jax.Array:
        """Labels 0 and 1, int32, (n, k) or (n,): where the score exceeds the threshold.

        Args:
          X: (n, d).
          threshold: on the probability for the logistic loss, default 0.5, in (0, 1); on the score for the
            others, default 0 for the hinge losses and 0.5 for the squared loss, which is fitted to 0 and 1.
        """
        if self.loss == "logistic":
            threshold = 0.5 if threshold is None else threshold
            if not is_traced(threshold) and not 0 < threshold < 1:
                raise ValueError(f"threshold must be in (0, 1), got {threshold!r}.")
            return (self.predict_proba(X) > threshold).astype("int32")
        default = 0.5 if self.loss == "squared" else 0.0
        return (self.decision_function(X) > (default if threshold is None else threshold)).astype("int32")


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

    Columns of X should be on comparable scales. Groups of pairs of correlated features, as in the paper:
    ``sparsejax.groups.from_correlation(X, threshold)``.

    Args:
      X: (n, d).
      Y: (n, k) or (n,), every entry 0 or 1; the hinge losses see them as -1 and 1. For the squared loss any
        real targets.
      alpha: >= 0, shape () or (G,), one a group.
      groups: `sparsejax.groups.Groups` of d features; those in no group are not penalised.
      loss: "logistic", "squared", "squared_hinge" or "huber_hinge" (`sparsejax.losses`).
      scale: > 0; default that of the loss.
      tol, maxiter: as `sparsejax.solve`.

    Returns:
      `Model`.

    Raises:
      TypeError, ValueError: as the loss and `ExclusiveGroupL21`; with the logistic loss, a label that all
        rows or none have, whose intercept is infinite: leave it out.
    Source: Kong et al., AAAI 2016, Eq. (2), with an unpenalised intercept added.

    >>> import numpy as np, sparsejax as sj
    >>> X, Y = np.eye(4, 3), np.eye(4, 2)
    >>> model = sj.models.uncorrelated_group.fit(X, Y, 0.01, sj.groups.from_labels([0, 0, 1]))
    >>> model.predict(X).shape, bool(model.solution.converged)
    ((4, 2), True)
    """
    if loss not in LOSSES:
        raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {loss!r}.")
    X = as_float("X", X, (2,))
    Y = as_float("Y", Y, (1, 2), X.dtype)
    if loss.endswith("hinge"):
        check_labels(Y, (0, 1))
        Y = 2 * Y - 1
    make: Any = LOSSES[loss]
    smooth = make(X, Y, scale=scale, intercept=True)
    solution = solve(Problem(smooth, ExclusiveGroupL21(alpha, groups)), tol=tol, maxiter=maxiter)
    return Model(solution.params, smooth.intercept(solution.params), solution, loss)
