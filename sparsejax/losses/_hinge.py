"""Smooth hinge losses: the square of the hinge, and the hinge with a rounded corner."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax._core.checks import as_positive, check_labels
from sparsejax._core.linalg import safe_divide
from sparsejax.losses._base import Pair
from sparsejax.losses._curvature import quadratic_scaling
from sparsejax.losses._linear_model import LinearModelLoss


class HingeLoss(LinearModelLoss):
    """Base of the hinge losses: labels -1 and 1, and the slack ``max(0, 1 - yh)`` of each entry.

    Hinge losses define no ``divergence``, so they have no gap where features are not penalised. The reason:
    the dual value of an entry without slack is at the boundary of the domain of the conjugate, and a
    projection of the dual point would leave the domain.
    """

    _adapter: ClassVar[bool] = True
    # At b > 1 + max|h| no positive label has slack, and at b < -1 - max|h| no negative label: a reach of 1
    # would suffice. A reach of 2 also serves labels that finite differences move away from -1 and 1.
    reach = 2.0

    def check_targets(self) -> None:
        """Raise if a label is not -1 or 1."""
        check_labels(self.Y, (-1, 1), type(self).__name__)

    def slack(self, H: jax.Array) -> jax.Array:
        """max(0, 1 - y h)."""
        margin = self.Y * H
        return jnp.where(margin >= 1, 0, 1 - margin)  # NaN if the margin is NaN


class SquaredHingeLoss(HingeLoss):
    r"""Squared hinge loss, ``scale * sum_ij weights_ij max(0, 1 - y_ij h_ij)^2``.

    ``H = XW + b``, one column a label. It is the hinge loss of support vector machines, squared.

    Args:
      X: (n, d), as for `SquaredLoss`.
      Y: (n, k) or (n,), every entry -1 or 1.
      scale: > 0, shape (); default ``1/n``.
      weights: None, (n,) by row, or Y's shape by entry, >= 0.
      intercept: fit an unpenalised b, by a safeguarded Newton iteration for each column. Where several
        are best, as for a column with one label only, b is one of them.

    Raises:
      TypeError, ValueError: as `SquaredLoss`; a label that is not -1 or 1.
    Source: Fan et al., JMLR 9, 2008 (LIBLINEAR), where scale is C and the intercept is penalised as well.

    >>> import numpy as np, sparsejax as sj
    >>> loss = sj.losses.SquaredHingeLoss(np.eye(4, 3), np.array([1.0, -1.0, -1.0, 1.0]))
    >>> float(loss(np.zeros(3))), float(loss(np.array([1.0, -1.0, -1.0])))
    (1.0, 0.25)
    """

    curvature = 2.0

    def entries(self, H: jax.Array) -> jax.Array:
        """The squared slack."""
        r = self.slack(H)
        return r * r

    def derivatives(self, H: jax.Array) -> Pair:
        """First derivative, -2 y times the slack; second derivative, 2 where there is slack, else 0."""
        r = self.slack(H)
        return -2 * self.Y * r, jnp.where(r > 0, 2 * self.Y * self.Y, 0)

    def dual_scaling(self, W: jax.Array, limit: jax.Array, H: jax.Array | None = None) -> Pair:
        r"""The best s, ``0 <= s <= limit``, and the change of the conjugate.

        ``l*(sU) = sum -s a + (s a)^2 / (4 scale weights)`` for s >= 0, where ``a = -U/Y = 2 scale weights r``
        with the slack r.
        """
        r = self.slack(self._predict(W) if H is None else H)
        wr = self._weights() * r
        return quadratic_scaling(-2 * self.scale * jnp.sum(wr), self.scale * jnp.sum(wr * r), limit)


class HuberHingeLoss(HingeLoss, leaves=("delta",)):
    r"""Hinge loss with its corner rounded off, ``scale * sum_ij weights_ij phi(y_ij h_ij)``.

    .. math:: \phi(m) = 0 \text{ if } m \ge 1, \qquad (1-m)^2/(2\delta) \text{ if } 1-\delta < m < 1,
              \qquad 1-m-\delta/2 \text{ otherwise;}

    at most :math:`\delta/2` below the hinge loss ``max(0, 1 - m)``. ``H = XW + b``, one column a label.

    Args:
      X: (n, d), as for `SquaredLoss`.
      Y: (n, k) or (n,), every entry -1 or 1.
      delta: > 0, shape (), default 0.5: the width of the rounded part, in units of the margin.
      scale: > 0, shape (); default ``1/n``.
      weights: None, (n,) by row, or Y's shape by entry, >= 0.
      intercept: fit an unpenalised b, by a safeguarded Newton iteration for each column. Where several
        are best, as for a column with one label only, b is one of them.

    Raises:
      TypeError, ValueError: as `SquaredLoss`; a label that is not -1 or 1; delta not > 0.
    Source: Chapelle, Neural Computation 19(5), 2007. His loss with the parameter h is phi with ``delta = 2h``
      and margins moved by h, so that its rounded part is centred at m = 1.

    >>> import numpy as np, sparsejax as sj
    >>> loss = sj.losses.HuberHingeLoss(np.eye(4, 3), np.array([1.0, -1.0, -1.0, 1.0]))
    >>> float(loss(np.zeros(3))) > float(loss(np.array([1.0, -1.0, -1.0])))
    True
    """

    delta: jax.Array

    def __init__(self, X: ArrayLike, Y: ArrayLike, *, delta: ArrayLike = 0.5, **options: Any):
        super().__init__(X, Y, **options)
        self._set(delta=as_positive("delta", delta, self.dtype))

    @property
    def curvature(self) -> jax.Array:
        """1 / delta."""
        return 1 / self.delta

    def _clipped_slack(self, r: jax.Array) -> jax.Array:
        """min(r, delta): delta times the slope of phi in the slack r."""
        return jnp.where(r >= self.delta, self.delta, r)

    def entries(self, H: jax.Array) -> jax.Array:
        """phi of the margin."""
        r = self.slack(H)
        q = self._clipped_slack(r)
        return (q / self.delta) * (r - q / 2)

    def derivatives(self, H: jax.Array) -> Pair:
        """First derivative; second derivative, which is 1/delta on the rounded part and 0 elsewhere."""
        r = self.slack(H)
        curved = (r > 0) & (r < self.delta)
        second = jnp.where(curved, self.Y * self.Y / self.delta, 0)
        return -self.Y * self._clipped_slack(r) / self.delta, second

    def dual_scaling(self, W: jax.Array, limit: jax.Array, H: jax.Array | None = None) -> Pair:
        r"""The best s, ``0 <= s <= limit`` and ``s p <= 1``, and the change of the conjugate.

        ``l*(sU) = sum -s a + delta (s a)^2 / (2 scale weights)`` for ``0 <= s a <= scale weights``, where
        ``a = -U/Y = scale weights p`` with ``p = min(r/delta, 1)``, r the slack.
        """
        p = self._clipped_slack(self.slack(self._predict(W) if H is None else H)) / self.delta
        w = self._weights()
        top = jnp.max(jnp.where(w > 0, p, 0))
        limit = jnp.minimum(limit, safe_divide(1.0, top, jnp.inf))
        linear, square = -self.scale * jnp.sum(w * p), 0.5 * self.delta * self.scale * jnp.sum(w * p * p)
        return quadratic_scaling(linear, square, limit)

    def valid(self) -> jax.Array:
        """() boolean: also delta > 0."""
        return super().valid() & (self.delta > 0)
