"""Logistic regression, with one label in each column of Y."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.special import xlogy

from sparsejax._core.checks import check_labels, is_traced
from sparsejax._core.matrices.sharded import answer_of
from sparsejax.losses._linear_model import LinearModelLoss


class LogisticLoss(LinearModelLoss):
    r"""Logistic loss of each label on its own, ``scale * sum_ij weights_ij [log(1 + e^h_ij) - y_ij h_ij]``.

    ``H = XW + b``, one column a label (multi-label: the columns do not compete).

    Args:
      X: (n, d), as for `SquaredLoss`.
      Y: (n, k) or (n,), every entry 0 or 1.
      scale: > 0, shape (); default ``1/n``.
      weights: None, (n,) by row, or Y's shape by entry, >= 0.
      intercept: fit an unpenalised b, by a safeguarded Newton iteration for each column.

    Raises:
      TypeError, ValueError: as `SquaredLoss`; a label that is not 0 or 1; with ``intercept``, a column of Y
        that is constant in its entries of weight > 0, whose best intercept is infinite.

    >>> import numpy as np, sparsejax as sj
    >>> loss = sj.losses.LogisticLoss(np.eye(4, 3), np.array([1.0, 0.0, 0.0, 1.0]), intercept=True)
    >>> round(float(loss(np.zeros(3))), 3), round(float(loss.intercept(np.zeros(3))), 3)
    (0.693, 0.0)
    """

    curvature = 0.25
    # sigmoid(40) is 1 in float64. If the labels with a weight > 0 are all equal in a column, as may happen
    # under jit, the best intercept is infinite. The intercept returned is then about max|h| + 40 in size.
    reach = 40.0

    def check_targets(self) -> None:
        """Raise unless labels are 0 or 1 and, with an intercept, both have a weight > 0 in every column."""
        check_labels(self.Y, (0, 1), "LogisticLoss", others="of labels -1 and 1: Y > 0; of 1 and 2: Y - 1")
        if self.has_intercept and not is_traced(self.Y):
            known = self.weights is not None and not is_traced(self.weights)
            constant = answer_of(_constant_columns, self.Y, *([self.weights] if known else []))
            if constant.any():
                where = " in its rows of weight > 0" if known else ""
                raise ValueError(
                    f"column {np.argmax(constant)} of Y has one label only{where}, so its intercept has no "
                    "finite minimiser: drop it, or use intercept=False."
                )

    def mean(self, H: jax.Array) -> jax.Array:
        """The probability of the label 1, shape of H."""
        return jax.nn.sigmoid(H)

    def entries(self, H: jax.Array) -> jax.Array:
        """log(1 + e^h) - y h."""
        return optax.losses.sigmoid_binary_cross_entropy(H, self.Y)

    def derivatives(self, H: jax.Array) -> tuple[jax.Array, jax.Array]:
        """p - y and p (1 - p), with p = sigmoid(h), in a form that has all digits where p is near y."""
        p, q = jax.nn.sigmoid(H), jax.nn.sigmoid(-H)
        return (1 - self.Y) * p - self.Y * q, p * q

    def divergence(self, H: jax.Array, first: jax.Array, change: jax.Array) -> jax.Array:
        """The Kullback-Leibler divergence of the probability ``y + first + change`` from sigmoid(h)."""
        slope = first + change
        p, q = self.Y + slope, (1 - self.Y) - slope
        inside = (p >= 0) & (q >= 0)
        p, q = jnp.where(inside, p, 0), jnp.where(inside, q, 1)
        excess = xlogy(p, p) - p * jax.nn.log_sigmoid(H)
        excess += xlogy(q, q) - q * jax.nn.log_sigmoid(-H)
        return jnp.where(inside, jnp.maximum(excess, 0), jnp.inf)


def _constant_columns(xp: Any, y: Any, *weights: Any) -> Any:
    """Which columns have one label only in the entries of weight > 0, (k,) booleans."""
    low = high = y
    for w in weights:
        counted = w.reshape(w.shape + (1,) * (y.ndim - w.ndim)) > 0
        low, high = xp.where(counted, y, 1), xp.where(counted, y, 0)
    return xp.atleast_1d(low.min(axis=0) == high.max(axis=0))
