"""Least squares, given by its data."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.linalg import opaque, safe_divide
from sparsejax._core.matrices.products import Products
from sparsejax.losses._base import Facts, InUnits, Loss, Pair
from sparsejax.losses._batches import from_batches
from sparsejax.losses._curvature import centred, quadratic_scaling
from sparsejax.losses._gram import GramLoss
from sparsejax.losses._linear_model import LinearModelLoss
from sparsejax.losses._quadratic_model import QuadraticModel
from sparsejax.losses._units import power_of_two


class SquaredLoss(LinearModelLoss):
    r"""Least squares, ``scale * sum_i weights_i ||x_i W + b - y_i||^2``.

    Args:
      X: (n, d), float32 or float64; integers and booleans are converted to the default float. The dtype of X
        is the dtype of the whole solve. Constant columns are allowed. A matrix of scipy.sparse, BCOO or BCSR
        stays sparse.
      Y: (n, k), or (n,) for a vector W; converted to the dtype of X.
      scale: > 0, shape (); default ``1/(2n)``, n the number of rows of X whatever the weights.
      weights: None (all one), (n,) by row, or Y's shape by entry, >= 0; 0 leaves the entry out.
      intercept: fit an unpenalised b, which is the weighted mean of ``y_i - x_i W`` for each column.

    Raises:
      TypeError, ValueError: wrong rank, length or dtype, NaN or inf, empty data, a negative weight.
    Source: the default scale is that of scikit-learn, celer and skglm. Ming & Ding (IJCAI 2019, Eq. 14) have
      scale 1, Chen et al. (ACM MM 2011) scale 1/2.

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
        """The model with the exact Hessian; with weights by entry, which differ by column, only a bound."""
        model, weights = super().quadratic_model(), self.weights
        if weights is not None and self.Y.ndim > 1 and weights.ndim == self.Y.ndim:
            return model
        n, d = self.X.shape[-2:]
        in_memory = model.majorizer is not None
        return model._replace(
            exact=True,
            target=self._target,
            factored=self._factored if in_memory and not self.has_intercept else None,
            condensed=self._gram if in_memory and n > d else None,
        )

    def entries(self, H: jax.Array) -> jax.Array:
        """(h - y)^2."""
        R = H - self.Y
        return R * R

    def derivatives(self, H: jax.Array) -> Pair:
        """2 (h - y) and 2."""
        return 2 * (H - self.Y), jnp.full_like(H, 2)

    def divergence(self, H: jax.Array, first: jax.Array, change: jax.Array) -> jax.Array:
        """``change^2 / 4`` of each entry."""
        return change * change / 4

    def dual_scaling(self, W: jax.Array, limit: jax.Array, H: jax.Array | None = None) -> Pair:
        """The best s with ``0 <= s <= limit``, and the change ``l*(sU) - l*(U)`` of the conjugate."""
        R = (self._predict(W) if H is None else H) - self.Y
        wR = self._weights() * R
        return quadratic_scaling(2 * self.scale * jnp.sum(wR * self.Y), self.scale * jnp.sum(wR * R), limit)

    def facts(self, W: jax.Array, sizes: Any = None) -> Facts:
        """Facts at W, with ``linear = <U, Y>``: the conjugate is ``l*(sU) = s <U, Y> + s^2 f(W)``."""
        H = self._predict(W)
        R = H - self.Y
        U = 2 * self.scale * self._weights() * R
        linear = jnp.sum(U * self.Y)
        return Facts(self._value(H), self._gradient(U), self._rounding(H, W, sizes), linear)

    def gram(self) -> GramLoss:
        """The same function of W, given by X'X and X'Y.

        Raises:
          TypeError: X is sparse or read in batches; weights are by entry, so that each column of Y has its
            own X'X.
        """
        if isinstance(self.X, Products):
            raise TypeError("gram: X is sparse, or read in batches; GramLoss takes an X'X that you compute.")
        if not self.quadratic_model().exact:
            raise TypeError("gram: weights by entry give each column its own X'X; use weights by row.")
        found = self._gram()
        return found._replace(constant=jnp.where(self.valid(), jnp.asarray(found.constant), jnp.nan))

    def _gram(self) -> GramLoss:
        """The result of `gram`, without checks."""
        X, Y = opaque(self.X), self._centred()
        w = jnp.broadcast_to(2 * self.scale * self._weights().reshape(-1), X.shape[:1])
        if self.has_intercept:
            X = centred(X, w)
        # The products use weights, not their roots: a root has no derivative where the weight is 0.
        V = w.reshape(-1, *(1 for _ in Y.shape[1:])) * Y
        G = X.T @ (w[:, None] * X)
        return GramLoss.of_data((G + G.T) / 2, X.T @ V, 0.5 * jnp.sum(Y * V))

    @staticmethod
    def from_batches(
        batches: Iterable[tuple[Any, Any]],
        *,
        folds: int = 1,
        scale: ArrayLike | None = None,
        intercept: bool = False,
    ) -> Loss:
        """Least squares on rows that are read in batches, in one pass, and are never all in memory.

        The products X'X and X'Y are summed in float64 with compensation, whatever the dtype of X. The memory
        needed is one batch, its copy in float64 (unless it is floating), and a few arrays of (d, d + k)
        numbers for each fold. Near the optimum the loss has fewer digits than a `SquaredLoss` of the same
        rows, since only products of the data are stored.

        Args:
          batches: an iterable of pairs (X, Y), as `SquaredLoss` takes them but dense, of one row or more:
            slices of a `numpy.memmap`, row groups of a Parquet file, a generator.
          folds: F >= 1: row i, counted over all batches, goes to fold ``i % F``. `cross_validate` with
            ``folds=F`` then leaves one of them out at a time and reads no data again.
          scale, intercept: as for `SquaredLoss`; weights by row are not supported.

        Returns:
          `BatchedSquaredLoss`, the same function of W; in float64 if JAX's 64-bit numbers are on, else in
          float32.

        Raises:
          TypeError, ValueError: no batch; fewer rows than folds; a scale that is not > 0; a batch that is not
            finite, or differs from earlier ones in its columns or dtype (the message gives its number).

        >>> import numpy as np, sparsejax as sj
        >>> X = np.random.default_rng(0).standard_normal((100, 4))
        >>> batches = ((X[i : i + 30], X[i : i + 30, 0]) for i in range(0, 100, 30))
        >>> loss = sj.losses.SquaredLoss.from_batches(batches)
        >>> np.flatnonzero(sj.solve(sj.Problem(loss, sj.penalties.L1(0.1))).params).tolist()
        [0]
        """
        return from_batches(batches, folds=folds, scale=scale, intercept=intercept)

    def _target(self) -> jax.Array:
        """B, shape of Y, with loss ``1/2 ||AW - B||^2`` + constant; A is `_majorizer`."""
        return jnp.sqrt(2 * self.scale * self._weights()) * self._centred()

    def _factored(self) -> Pair:
        """X, and the factors (n,) by which its rows are multiplied to give A."""
        root = jnp.sqrt(2 * self.scale * self._weights().reshape(-1))
        return opaque(self.X), jnp.broadcast_to(root, self.X.shape[:1])

    def in_units(self) -> InUnits:
        """The loss of the base class in its units, with Y divided by sigma, too.

        With an intercept the mean of Y is subtracted first, which the intercept absorbs. This saves the
        digits of targets that are far from 0.
        """
        known = super().in_units()
        return known.loss._replace(Y=self._centred() / known.units.sigma)._known_in(known.units)

    def _unit_of_params(self) -> jax.Array:
        return power_of_two(lax.stop_gradient(jnp.max(jnp.abs(self._centred()))))

    def _centred(self) -> jax.Array:
        """Y, less its weighted means if there is an intercept; a column of equal numbers becomes 0."""
        if not self.has_intercept:
            return self.Y
        Y = self.Y - self._best_intercept(jnp.zeros_like(self.Y))
        # The mean of equal numbers may have a rounding error, which would be all that is left of the target.
        there = jnp.broadcast_to(self._weights() > 0, Y.shape)
        high = jnp.max(jnp.where(there, self.Y, -jnp.inf), axis=0, keepdims=True)
        low = jnp.min(jnp.where(there, self.Y, jnp.inf), axis=0, keepdims=True)
        return Y - lax.stop_gradient(jnp.where(high == low, Y, 0))

    def _best_intercept(self, H: jax.Array) -> jax.Array:
        w = jnp.broadcast_to(self._weights(), H.shape)
        total = jnp.sum(w, axis=0, keepdims=True)
        return safe_divide(jnp.sum(w * (self.Y - H), axis=0, keepdims=True), total)
