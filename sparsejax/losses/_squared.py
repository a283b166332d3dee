"""Least squares, by its data or by its Gram matrix."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.linalg import opaque, safe_divide
from sparsejax._core.matrices.products import Products
from sparsejax.losses._base import Facts, InUnits, Loss
from sparsejax.losses._batches import from_batches
from sparsejax.losses._curvature import quadratic_scaling
from sparsejax.losses._gram import GramLoss
from sparsejax.losses._linear_model import LinearModelLoss
from sparsejax.losses._quadratic_model import QuadraticModel
from sparsejax.losses._units import power_of_two


class SquaredLoss(LinearModelLoss):
    r"""Least squares, ``scale * sum_i weights_i ||x_i W + b - y_i||^2``.

    Args:
      X: (n, d), float32 or float64; integers and booleans are converted to the default float. Its
        dtype is the dtype of the whole solve. Constant columns are allowed.
      Y: (n, k), or (n,) for a vector W; converted to the dtype of X.
      scale: > 0, shape (); default ``1/(2n)``, n the number of rows of X whatever the weights.
      weights: None (all one), (n,) by row, or Y's shape by entry, >= 0; 0 leaves the entry out.
      intercept: fit an unpenalised b (then b is the weighted mean residual of each column).

    Raises:
      TypeError, ValueError: wrong rank, length or dtype, NaN or inf, empty data, a negative weight.
    Source: the scale of scikit-learn, celer, skglm. Ming & Ding (IJCAI 2019, Eq. 14) have scale 1,
      Chen et al. (ACM MM 2011) scale 1/2.

    >>> import numpy as np, sparsejax as sj
    >>> loss = sj.losses.SquaredLoss(np.eye(4, 3), np.eye(4, 2))
    >>> loss.params_shape, float(loss(np.zeros((3, 2))))
    ((3, 2), 0.25)
    """

    curvature = 2.0
    reach = 0.0

    def _default_scale(self, n: int) -> float:
        return 1 / (2 * n)

    def quadratic_model(self) -> QuadraticModel:
        """The Hessian itself, unless weights are by entry, so that every column has another A'A."""
        model, weights = super().quadratic_model(), self.weights
        if weights is not None and self.Y.ndim > 1 and weights.ndim == self.Y.ndim:
            return model
        n, d = self.X.shape[-2:]
        in_memory = model.majorizer is not None
        return model._replace(
            exact=True,
            target=self._target,
            factored=self._factored if in_memory and not self.has_intercept else None,
            condensed=self.gram if in_memory and n > d else None,
        )

    def entries(self, H: jax.Array) -> jax.Array:
        """(h - y)^2."""
        R = H - self.Y
        return R * R

    def derivatives(self, H: jax.Array) -> tuple[jax.Array, jax.Array]:
        """2 (h - y) and 2."""
        return 2 * (H - self.Y), jnp.full_like(H, 2)

    def divergence(self, H: jax.Array, first: jax.Array, change: jax.Array) -> jax.Array:
        """A quarter of the square of the change."""
        return change * change / 4

    def dual_scaling(
        self, W: jax.Array, limit: jax.Array, H: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """The best s, ``0 <= s <= limit``, and the change of the conjugate."""
        R = (self._predict(W) if H is None else H) - self.Y
        wR = self._weights() * R
        return quadratic_scaling(2 * self.scale * jnp.sum(wR * self.Y), self.scale * jnp.sum(wR * R), limit)

    def facts(self, W: jax.Array, sizes: Any = None) -> Facts:
        """With the part of the conjugate that is linear in s; the square has the value of the loss."""
        H = self._predict(W)
        R = H - self.Y
        wR = 2 * self.scale * self._weights() * R
        linear = jnp.sum(wR * self.Y)
        return Facts(self._value(H), self._gradient(wR), self._rounding(H, W, sizes), linear)

    def gram(self) -> GramLoss:
        """The same function of W from X'X and X'Y alone.

        Raises:
          TypeError: weights are by entry, so that every column of Y has another X'X.
        """
        if isinstance(self.X, Products):
            raise TypeError("gram: X is sparse, or read in batches; GramLoss takes an X'X of yours.")
        if not self.quadratic_model().exact:
            raise TypeError("gram: weights by entry give every column another X'X; weights by row have one.")
        A, B = self._majorizer(), self._target()
        return GramLoss(A.T @ A, A.T @ B, 0.5 * jnp.sum(B * B))

    @staticmethod
    def from_batches(
        batches: Iterable[tuple[Any, Any]],
        *,
        folds: int = 1,
        scale: ArrayLike | None = None,
        intercept: bool = False,
    ) -> Loss:
        """The loss of rows that come in batches and need not be in memory together, in one pass.

        The products X'X and X'Y are summed in float64 with compensation, whatever the dtype of X; memory is
        that of one batch and of (d, d + k) numbers a fold. Near the optimum such a loss has fewer digits than
        `SquaredLoss` itself, since squares of the data are what is left of them.

        Args:
          batches: an iterable of pairs (X, Y), as `SquaredLoss` takes them but dense, of any number of rows:
            slices of a `numpy.memmap`, row groups of a Parquet file, a generator.
          folds: F >= 1: row i, counted over all batches, goes to fold ``i % F``. `cross_validate` with
            ``folds=F`` then leaves one of them out at a time and reads no data again.
          scale, intercept: as `SquaredLoss`; there are no weights by row.

        Returns:
          A loss of the same function of W, with a duality gap; float64 where JAX has 64-bit numbers.

        Raises:
          TypeError, ValueError: no batch; one that is not like those before, or not finite, by its number.

        >>> import numpy as np, sparsejax as sj
        >>> X = np.random.default_rng(0).standard_normal((100, 4))
        >>> batches = ((X[i : i + 30], X[i : i + 30, 0]) for i in range(0, 100, 30))
        >>> loss = sj.losses.SquaredLoss.from_batches(batches)
        >>> np.flatnonzero(sj.solve(sj.Problem(loss, sj.penalties.L1(0.1))).params).tolist()
        [0]
        """
        return from_batches(batches, folds=folds, scale=scale, intercept=intercept)

    def _target(self) -> jax.Array:
        """B, shape of Y: the loss is ``1/2 ||AW - B||^2`` + constant."""
        Y, w = self.Y, self._weights()
        if self.has_intercept:
            Y = Y - self._best_intercept(jnp.zeros_like(Y))
        return jnp.sqrt(2 * self.scale * w) * Y

    def _factored(self) -> tuple[jax.Array, jax.Array]:
        """X itself, and what multiplies its rows."""
        root = jnp.sqrt(2 * self.scale * self._weights().reshape(-1))
        return opaque(self.X), jnp.broadcast_to(root, self.X.shape[:1])

    def in_units(self) -> InUnits:
        """Y of the order of 1 too, where it is of another; with an intercept, less its mean.

        That tells nothing, and takes the digits of targets far from 0.
        """
        known = super().in_units()
        return known.loss._replace(Y=self._centred() / known.units.sigma)._known_in(known.units)

    def _unit_of_params(self) -> jax.Array:
        return power_of_two(lax.stop_gradient(jnp.max(jnp.abs(self._centred()))))

    def _centred(self) -> jax.Array:
        return self.Y - self._best_intercept(jnp.zeros_like(self.Y)) if self.has_intercept else self.Y

    def _best_intercept(self, H: jax.Array) -> jax.Array:
        w = jnp.broadcast_to(self._weights(), H.shape)
        total = jnp.sum(w, axis=0, keepdims=True)
        return safe_divide(jnp.sum(w * (self.Y - H), axis=0, keepdims=True), total)
