"""Multi-class feature selection by exclusive l2,1 (Ming & Ding, IJCAI 2019)."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sparsejax._core.matrices.sparse import as_dense
from sparsejax.losses import SquaredLoss
from sparsejax.models._labels import agreement, classes_of, labels_at
from sparsejax.models._linear_fit import LinearModel
from sparsejax.penalties import ExclusiveL21
from sparsejax.problem import Problem
from sparsejax.solvers import solve

__all__ = ["Model", "fit"]


class Model(LinearModel, leaves=("W", "intercept", "solution"), static=("classes",)):
    """A fitted linear classifier; a pytree.

    Attributes:
      W: (d, k), one column a class; rows of removed features are exactly zero.
      intercept: (k,).
      solution: the `sparsejax.Solution` of the fit; check ``solution.converged``.
      classes: tuple of the k labels, in the order of the columns.

    >>> import numpy as np, sparsejax as sj
    >>> X, y = np.eye(4, 3), np.array(["a", "b", "a", "b"])
    >>> model = sj.models.exclusive_l21.fit(X, y, alpha=0.01, beta=0.01)
    >>> model.classes, model.W.shape, model.score(X, y)
    (('a', 'b'), (3, 2), 1.0)
    """

    classes: tuple[Any, ...]

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The label with the largest score in each row, (n,). Under jit use `decision_function` instead."""
        return labels_at(self.classes, jnp.argmax(self.decision_function(X), axis=1))

    def score(self, X: ArrayLike, y: Any) -> float:
        """The accuracy: the share of the labels y (n,) that `predict` returns."""
        return agreement(y, self.predict(X))


def fit(
    X: ArrayLike,
    y: Any,
    alpha: ArrayLike,
    beta: ArrayLike,
    *,
    scale: ArrayLike | None = None,
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
) -> Model:
    r"""Fit ``min_{W,b} scale ||XW + 1b' - Y||_F^2 + sum_i (alpha ||w_i||_2 + beta ||w_i||_1^2)``.

    Y is the 0/1 indicator matrix of the labels. Columns of X should be on comparable scales.

    Args:
      X: (n, d).
      y: (n,), labels (see `sparsejax.models`), at least two different ones.
      alpha: strength that removes features, >= 0, shape () or (d,).
      beta: strength with which the classes compete for a feature, >= 0, shape () or (d,).
      scale: > 0, default ``1/(2n)``; strengths of the paper are for ``scale=1``.
      tol, maxiter: as `sparsejax.solve`.

    Returns:
      `Model`.

    Raises:
      TypeError, ValueError: as `SquaredLoss` and `ExclusiveL21`; one class only; X and y of different
        lengths; a NaN or infinity among the labels.
    Source: Ming & Ding, IJCAI 2019, Eq. (14), with an unpenalised intercept added.

    >>> import numpy as np, sparsejax as sj
    >>> X, y = np.eye(4, 3), np.array(["a", "b", "a", "b"])
    >>> model = sj.models.exclusive_l21.fit(X, y, alpha=0.01, beta=0.01)
    >>> model.predict(X).tolist()
    ['a', 'b', 'a', 'b']
    """
    X = as_dense("X", X)
    y, classes = classes_of(y, X.shape[0])
    loss = SquaredLoss(X, y[:, None] == classes, scale=scale, intercept=True)
    solution = solve(Problem(loss, ExclusiveL21(alpha, beta)), tol=tol, maxiter=maxiter)
    return Model(solution.params, loss.intercept(solution.params), solution, tuple(classes.tolist()))
