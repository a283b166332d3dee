"""Losses with a bounded slope, so that an outlier has a bounded influence: Huber's loss and quantiles."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float, as_positive, is_traced
from sparsejax._core.linalg import safe_divide
from sparsejax._core.matrices.products import Products
from sparsejax.losses._base import InUnits, Pair
from sparsejax.losses._linear_model import LinearModelLoss
from sparsejax.losses._quadratic_model import BoundedSlope, QuadraticModel
from sparsejax.losses._units import power_of_two

# Share of the curvature bound that a quadratic model takes on the linear parts. Steps of the solver on three
# Huber problems: 13 to 18 for the shares 1/4 and 1/2, 7 to 26 for 1, 12 to 50 for nearly 0.
SHARE_OF_BOUND = 0.3


class BoundedSlopeLoss(LinearModelLoss):
    r"""Base of `HuberLoss` and `QuantileLoss`: ``phi(r) = v r - width v^2/2`` of the residual ``r = h - y``.

    v is ``r/width`` clipped to [``low``, ``high``]; it is the slope of phi. The conjugate in h is
    ``width u^2/2 + u y`` for ``low <= u <= high`` and infinite elsewhere.
    """

    _adapter: ClassVar[bool] = True

    def _model_curvature(self, H: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
        """The second derivative, but on the linear parts `SHARE_OF_BOUND` times slope / residual.

        On the linear parts the second derivative is 0: Newton steps with 0 would be far too long. A quadratic
        model with the full slope / residual would be an upper bound of the loss.
        """
        return jnp.maximum(second, SHARE_OF_BOUND * safe_divide(jnp.abs(first), jnp.abs(H - self.Y)))

    def quadratic_model(self) -> QuadraticModel:
        """The model of the base class, with ``bounded_slope`` for a dense X and one column of Y."""
        model = super().quadratic_model()
        suited = not isinstance(self.X, Products) and self.Y.size == len(self.Y)
        return model._replace(bounded_slope=self._bounded_slope if suited else None)

    def _bounded_slope(self) -> BoundedSlope:
        numbers = (jnp.asarray(number, self.dtype) for number in self.bend)
        weights = self.scale * jnp.broadcast_to(self._weights(), self.Y.shape).reshape(-1)
        return BoundedSlope(self.X, self.has_intercept, weights, self.Y.reshape(-1), *numbers)

    @property
    def bend(self) -> tuple[ArrayLike, ArrayLike, ArrayLike]:
        """(width, low, high): least and largest slope; phi is quadratic for width low <= r <= width high."""
        raise NotImplementedError

    @property
    def curvature(self) -> Any:
        """1 / width."""
        return 1 / self.bend[0]

    @property
    def reach(self) -> Any:
        """The largest absolute y: beyond it all residuals have one sign."""
        return jnp.max(jnp.abs(self.Y))

    def _slope(self, r: jax.Array) -> jax.Array:
        width, low, high = self.bend
        v = r / width
        return jnp.where(v < low, low, jnp.where(v > high, high, v))

    def entries(self, H: jax.Array) -> jax.Array:
        """phi of each residual."""
        r = H - self.Y
        v = self._slope(r)
        return v * (r - self.bend[0] / 2 * v)

    def derivatives(self, H: jax.Array) -> Pair:
        """The slope, and the second derivative: 1/width where the slope is within its bounds, else 0."""
        width, low, high = self.bend
        slope = self._slope(H - self.Y)
        return slope, jnp.where((slope > low) & (slope < high), jnp.ones_like(slope) / width, 0)

    def divergence(self, H: jax.Array, first: jax.Array, change: jax.Array) -> jax.Array:
        """``change (width first - r) + width change^2/2`` for a slope first + change within its bounds.

        Neither summand is negative there. Elsewhere the conjugate and so the divergence are infinite.
        """
        _, low, high = self.bend
        u = first + change
        inside = (u >= low) & (u <= high)
        return jnp.where(inside, self._excess(H, first, change), jnp.inf)

    def _excess(self, H: jax.Array, first: jax.Array, change: jax.Array) -> jax.Array:
        width = self.bend[0]
        beyond = width * first - (H - self.Y)  # 0 up to rounding where the slope is within its bounds
        return jnp.maximum(change * beyond, 0) + width / 2 * change * change

    def dual_projection(
        self, W: jax.Array, basis: jax.Array, H: jax.Array | None = None, s: jax.Array | float = 1.0
    ) -> Pair:
        """Same as `LinearModelLoss.dual_projection`, but each column is scaled down into the domain.

        A scaled column stays orthogonal to the basis. Since 0 is inside the domain of the conjugate, a factor
        > 0 suffices, and the divergence is finite at every W.
        """
        H = self._predict(W) if H is None else H
        w = jnp.broadcast_to(self.scale * self._weights(), H.shape)
        first = self.derivatives(H)[0]
        u = first + self._off_basis(first, w, basis)
        _, low, high = self.bend
        over = jnp.max(jnp.where(w > 0, jnp.maximum(u / low, u / high), 0), axis=0)
        u = jnp.where(w > 0, jnp.clip(u / jnp.maximum(over, 1)[None], low, high), first)
        change = s * u - first
        excess = jnp.where(w > 0, w * self._excess(H, first, change), 0)
        return self.X.T @ (w * change), jnp.sum(excess)

    def _unit_of_params(self) -> jax.Array:
        return power_of_two(lax.stop_gradient(jnp.max(jnp.abs(self.Y))))


class HuberLoss(BoundedSlopeLoss, leaves=("delta",)):
    r"""Huber's loss of the residual ``r = h - y``, ``scale * sum_ij weights_ij phi(r_ij)``.

    .. math:: \phi(r) = r^2/2 \text{ if } |r| \le \delta, \qquad \delta(|r| - \delta/2) \text{ otherwise,}

    with ``H = XW + b``: least squares within delta, absolute deviations beyond.

    Args:
      X: (n, d), as for `SquaredLoss`.
      Y: (n, k) or (n,).
      delta: > 0, shape (), default 1, in the units of Y: the residual beyond which the loss is linear.
      scale: > 0, shape (); default ``1/n``.
      weights: None, (n,) by row, or Y's shape by entry, >= 0.
      intercept: fit an unpenalised b, by a safeguarded Newton iteration for each column. Where several
        are best, b is one of them.

    Raises:
      TypeError, ValueError: as `SquaredLoss`; delta not > 0.
    Source: Huber, The Annals of Mathematical Statistics 35(1), 1964; phi has the scale of
      `optax.losses.huber_loss`.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> loss = sj.losses.HuberLoss(jnp.eye(2), jnp.array([0.5, 10.0]), delta=1.0, scale=1.0)
    >>> float(loss(jnp.zeros(2)))  # 0.5^2/2 + 1 (10 - 1/2)
    9.625
    """

    delta: jax.Array

    def __init__(self, X: ArrayLike, Y: ArrayLike, *, delta: ArrayLike = 1.0, **options: Any):
        super().__init__(X, Y, **options)
        self._set(delta=as_positive("delta", delta, self.dtype))

    @property
    def bend(self) -> tuple[ArrayLike, ArrayLike, ArrayLike]:
        """1, -delta and delta."""
        return 1.0, -self.delta, self.delta

    def valid(self) -> jax.Array:
        """() boolean: also delta > 0."""
        return super().valid() & (self.delta > 0)

    def in_units(self) -> InUnits:
        """The loss of the base class in its units, with Y and delta divided by sigma, the unit of Y, too."""
        known = super().in_units()
        sigma = known.units.sigma
        loss = known.loss._replace(Y=self.Y / sigma, delta=self.delta / sigma)
        return loss._known_in(known.units)


class QuantileLoss(BoundedSlopeLoss, leaves=("q", "smoothing")):
    r"""Quantile regression with a rounded corner, ``scale * sum_ij weights_ij phi(y_ij - h_ij)``.

    The pinball loss of the quantile q, :math:`\rho(r) = q\,r` for r >= 0 and :math:`(q-1)\,r` below,
    is smoothed to its Moreau envelope :math:`\phi(r) = \min_z \rho(z) + (r - z)^2/(2\mu)`, with mu the
    ``smoothing``:

    .. math:: \phi(r) = r^2/(2\mu) \text{ if } -\mu(1-q) \le r \le \mu q, \qquad
              q\,r - \mu q^2/2 \text{ above,} \qquad (q-1)\,r - \mu(1-q)^2/2 \text{ below.}

    phi is never above the pinball loss, and below it by at most :math:`\mu \max(q, 1-q)^2/2`. The minimum of
    the loss is therefore below that of the pinball loss by at most this bound times the scale and the sum of
    the weights. ``H = XW + b``.

    Args:
      X: (n, d), as for `SquaredLoss`.
      Y: (n, k) or (n,).
      q: the quantile, 0 < q < 1, shape (); at 0.5 rho is half the absolute deviation.
      smoothing: mu > 0, shape (), in the units of Y: the width of the rounded part. The curvature is 1/mu, so
        that a small mu costs iterations.
      scale: > 0, shape (); default ``1/n``.
      weights: None, (n,) by row, or Y's shape by entry, >= 0.
      intercept: fit an unpenalised b, by a safeguarded Newton iteration for each column. Where several
        are best, b is one of them.

    Raises:
      TypeError, ValueError: as `SquaredLoss`; q not between 0 and 1; smoothing not > 0.
    Source: Koenker & Bassett, Econometrica 46(1), 1978.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> loss = sj.losses.QuantileLoss(jnp.eye(2), jnp.array([10.0, -10.0]), 0.9, 0.1, scale=1.0)
    >>> round(float(loss(jnp.zeros(2))), 6)  # 9 - 0.0405 + 1 - 0.0005
    9.959
    """

    q: jax.Array
    smoothing: jax.Array

    def __init__(self, X: ArrayLike, Y: ArrayLike, q: ArrayLike, smoothing: ArrayLike, **options: Any):
        super().__init__(X, Y, **options)
        q = as_float("q", q, (0,), self.dtype)
        if not is_traced(q) and not 0 < np.asarray(q) < 1:
            raise ValueError(f"q is a quantile, 0 < q < 1, got {np.asarray(q):g}.")
        self._set(q=q, smoothing=as_positive("smoothing", smoothing, self.dtype))

    def quadratic_model(self) -> QuadraticModel:
        """The model without ``least_squares_at``, which would be wrong beyond the short curved part."""
        return super().quadratic_model()._replace(least_squares_at=None)

    @property
    def bend(self) -> tuple[ArrayLike, ArrayLike, ArrayLike]:
        """The smoothing, and the bounds -q and 1 - q of the slope in h."""
        return self.smoothing, -self.q, 1 - self.q

    def valid(self) -> jax.Array:
        """() boolean: also 0 < q < 1 and smoothing > 0."""
        return super().valid() & (self.q > 0) & (self.q < 1) & (self.smoothing > 0)

    def in_units(self) -> InUnits:
        """The loss of the base class in its units, with Y and mu divided by sigma, the unit of Y, too.

        phi(c r) with the smoothing c mu is c phi(r) with mu, so that gamma is multiplied by sigma.
        """
        known = super().in_units()
        sigma, gamma = known.units.sigma, known.units.gamma
        loss = known.loss._replace(Y=self.Y / sigma, smoothing=self.smoothing / sigma)
        return loss._known_in(known.units._replace(gamma=gamma * sigma))
