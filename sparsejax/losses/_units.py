"""Units of the data, which are powers of two, so that changing units rounds nothing."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsejax._core.linalg import column_maxima, column_sums, eps_of, of_all_lanes, opaque, safe_sqrt
from sparsejax._core.matrices.sparse import Sparse
from sparsejax._core.matrices.sparse import column_sums as sparse_column_sums

MIN_UNSCALED_SIZE, MAX_UNSCALED_SIZE = 1e-8, 1e8  # data of a size between these keep their units
MAX_LOG_ROOT = 4 * math.log(10)  # largest magnitude of the logarithm of a factor in `balanced`
MIN_COLUMN_SIZE = 1e-4  # least size of a column divided by its unit; the largest size is the inverse


class Units(NamedTuple):
    r"""Units of a problem F: it is solved as :math:`F'(V) = \gamma F(\sigma V/s)/\sigma^2`."""

    sigma: jax.Array  # (), unit of W, a power of two
    gamma: jax.Array  # (), factor of the objective, a power of two
    rows: jax.Array | None = None  # s, (d,), powers of two for the rows of W; None: 1

    def params(self, V: jax.Array) -> jax.Array:
        """W = sigma V / s."""
        W = V * self.sigma
        return W if self.rows is None else W / by_row(self.rows, V)

    def start(self, W: jax.Array) -> jax.Array:
        """V = s W / sigma."""
        V = W / self.sigma
        return V if self.rows is None else V * by_row(self.rows, V)

    def objective(self, value: jax.Array) -> jax.Array:
        """F(W) from F'(V). The order of the factors avoids overflow and underflow of partial products."""
        return value * self.sigma / self.gamma * self.sigma

    def start_objective(self, value: jax.Array) -> jax.Array:
        """F'(V) from F(W)."""
        return value / self.sigma * self.gamma / self.sigma


def by_row(units: jax.Array, W: jax.Array) -> jax.Array:
    """Units (d,), reshaped to multiply the rows of W (d,) or (d, k)."""
    return jnp.reshape(units, (-1, *(1 for _ in W.shape[1:])))


def power_of_two(x: jax.Array) -> jax.Array:
    """The power of two nearest to x > 0; 1 where x is 0, not finite, or between 1e-8 and 1e8.

    Very small and very large x are clipped, so that neither the power nor its inverse overflows or becomes 0.
    """
    info = np.finfo(x.dtype)
    scaled = (x > 0) & (x < jnp.inf) & ((x < MIN_UNSCALED_SIZE) | (x > MAX_UNSCALED_SIZE))
    x = jnp.clip(jnp.where(scaled, x, 1), info.tiny, 1 / info.tiny)
    return jnp.where(scaled, lax.reduce_precision(x, int(info.nexp), 0), 1)  # no mantissa bits


def row_unit(size: jax.Array) -> jax.Array:
    r"""The unit of a column of each size: the power of two nearest to the square root of the size.

    The unit is 1 where the size is 0. Division by the root, and not by the size, suits ADMM. One step size
    :math:`\rho` is right for all rows of the splitting W = Z if the ratio of multipliers to parameters is of
    one order in all rows. With one strength for all rows, the parameters of a column of size s are of the
    order 1/s and its multipliers of the order of the strength; units :math:`\sqrt s` make the ratio the same.

    For sizes below 1e-8 or above 1e8 the unit is further from 1 than the root, so that size / unit is
    between `MIN_COLUMN_SIZE` and its inverse, as far as the dtype allows.
    """
    size = jnp.where(size > 0, size, 1)
    return _power(size / jnp.clip(jnp.sqrt(size), MIN_COLUMN_SIZE, 1 / MIN_COLUMN_SIZE))


def _power(unit: jax.Array) -> jax.Array:
    """The nearest power of two that is a unit in this dtype."""
    info = np.finfo(unit.dtype)
    # An exclusive penalty divides its strengths by squares of the units, which must not overflow.
    unit = jnp.clip(unit, 2.0 ** -(info.maxexp // 4), 2.0 ** (2 * info.maxexp // 5))
    return lax.reduce_precision(unit, int(info.nexp), 0)


def balanced(units: jax.Array, strengths: jax.Array) -> jax.Array:
    r"""The units (d,) of `row_unit`, adapted to the strengths (d,) of the rows.

    The multipliers of a row are of the order of its strength :math:`\lambda_i`. With the size :math:`s_i` of
    column i, the units :math:`\sqrt{s_i\lambda_i}` would make the ratio of `row_unit` the same in all rows.
    Relative to geometric means over the rows, each unit is clipped to the range from :math:`\sqrt{s_i}` to
    :math:`s_i`, so that no strength makes the sizes of the columns less equal. A row whose strength is 0 or
    infinite keeps its unit. Under vmap all lanes get the largest of their factors, so that they share one X.
    """
    strengths = lax.stop_gradient(strengths).astype(units.dtype)
    known = (strengths > 0) & (strengths < jnp.inf)
    logs = jnp.log(jnp.where(known, strengths, 1))
    typical = jnp.sum(logs) / jnp.maximum(jnp.sum(known, dtype=logs.dtype), 1)
    log_root = (logs - typical) / 2  # the logarithm of sqrt(strength / typical strength)
    relative = jnp.log(units) - jnp.mean(jnp.log(units))
    log_root = jnp.clip(log_root, jnp.minimum(relative, 0), jnp.maximum(relative, 0))
    factor = jnp.exp(jnp.clip(log_root, -MAX_LOG_ROOT, MAX_LOG_ROOT))
    factor = of_all_lanes(jnp.where(known, factor, 0))  # 0, less than any factor: this lane has none
    return _power(units * jnp.where(factor > 0, factor, 1))


def row_units(X: jax.Array, *, centred: bool) -> jax.Array:
    """`row_unit` of the size of each column of X (n, d), (d,).

    The size is the geometric mean of the largest and the mean absolute entry, of deviations from the mean of
    the column if ``centred`` and X is dense. It is near the root mean square for dense and for sparse
    columns, and no entry is squared.
    """
    if isinstance(X, Sparse):
        n, centred = X.shape[0], False  # centring would fill in the zeros
        zero = jnp.zeros(X.shape[1], X.dtype)  # by the largest and the least entry: abs(X) would be a copy
        top = jnp.maximum(zero.at[X.cols].max(X.data), -zero.at[X.cols].min(X.data))
        top = top if X.scale is None else top * X.scale
        return row_unit(safe_sqrt(sparse_column_sums(jnp.abs, X) / n) * safe_sqrt(top))
    X = opaque(X)
    n, d = X.shape
    middle = column_sums(lambda x: x, X) / n if centred else jnp.zeros(d, X.dtype)
    far = lambda x: jnp.abs(x - (middle if x.ndim == 1 else middle[None]))
    top = column_maxima(far, X)
    # A constant column, centred, is rounding error: its size must not be taken for data.
    least = eps_of(X) ** 0.5 * (jnp.abs(middle) + top)
    return row_unit(jnp.maximum(safe_sqrt(column_sums(far, X) / n) * safe_sqrt(top), least))
