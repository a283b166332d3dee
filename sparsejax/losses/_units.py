"""Units of the data: powers of two, so that going to them and back rounds nothing."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsejax._core.linalg import column_maxima, column_sums, eps_of, opaque, safe_sqrt
from sparsejax._core.matrices.sparse import Sparse
from sparsejax._core.matrices.sparse import column_sums as sparse_column_sums

# Data of this size are left in their own units.
SMALL, LARGE = 1e-8, 1e8
LEFT = 1e-4


class Units(NamedTuple):
    r"""A problem in units of its data: :math:`F'(V) = \gamma F(\sigma V/s)/\sigma^2`, powers of two."""

    sigma: jax.Array  # (), of W
    gamma: jax.Array  # ()
    rows: jax.Array | None = None  # s, (d,)

    def params(self, V: jax.Array) -> jax.Array:
        """W of V."""
        W = V * self.sigma
        return W if self.rows is None else W / by_row(self.rows, V)

    def start(self, W: jax.Array) -> jax.Array:
        """V of W."""
        V = W / self.sigma
        return V if self.rows is None else V * by_row(self.rows, V)

    def objective(self, value: jax.Array) -> jax.Array:
        """F(W) of F'(V), in an order that loses nothing before the end."""
        return value * self.sigma / self.gamma * self.sigma

    def start_objective(self, value: jax.Array) -> jax.Array:
        """F'(V) of F(W)."""
        return value / self.sigma * self.gamma / self.sigma


def by_row(units: jax.Array, W: jax.Array) -> jax.Array:
    """Units (d,) that multiply W (d,) or (d, k)."""
    return jnp.reshape(units, (-1, *(1 for _ in W.shape[1:])))


def power_of_two(x: jax.Array) -> jax.Array:
    """The power of two nearest to x > 0, 1 where x is 0, not finite, or between 1e-8 and 1e8."""
    bits = int(np.finfo(x.dtype).nexp)
    there = (x > 0) & (x < jnp.inf) & ((x < SMALL) | (x > LARGE))
    return jnp.where(there, lax.reduce_precision(jnp.where(there, x, 1), bits, 0), 1)


def row_unit(size: jax.Array) -> jax.Array:
    r"""The power of two nearest to the root of each size > 0, 1 where it is 0.

    The root, so that columns are brought half the way to one size: one :math:`\rho` suits all rows of a
    splitting W = Z if multipliers over parameters are of one order in all of them, and where a strength is
    shared the parameters of a column of size s are of the order 1/s, the multipliers of that of the strength.
    What is left of extreme sizes is between `LEFT` and its inverse, as far as the dtype allows.
    """
    info = np.finfo(size.dtype)
    size = jnp.where(size > 0, size, 1)
    unit = size / jnp.clip(jnp.sqrt(size), LEFT, 1 / LEFT)
    # An exclusive penalty divides its strengths by squares of these.
    unit = jnp.clip(unit, 2.0 ** -(info.maxexp // 4), 2.0 ** (2 * info.maxexp // 5))
    return lax.reduce_precision(unit, int(info.nexp), 0)


def row_units(X: jax.Array, *, centred: bool) -> jax.Array:
    """`row_unit` of the size of each column of X, centred or as it is.

    The geometric mean of its largest and its mean entry, which is near the root mean square for dense and for
    sparse columns and squares nothing.
    """
    if isinstance(X, Sparse):
        n, centred = X.shape[0], False  # a mean would have to be taken off what is not stored
        zero = jnp.zeros(X.shape[1], X.dtype)  # largest and least: absolute values would be a copy
        top = jnp.maximum(zero.at[X.cols].max(X.data), -zero.at[X.cols].min(X.data))
        top = top if X.scale is None else top * X.scale
        return row_unit(safe_sqrt(sparse_column_sums(jnp.abs, X) / n) * safe_sqrt(top))
    X = opaque(X)
    n, d = X.shape
    middle = column_sums(lambda x: x, X) / n if centred else jnp.zeros(d, X.dtype)
    far = lambda x: jnp.abs(x - (middle if x.ndim == 1 else middle[None]))
    top = column_maxima(far, X)
    # What is left of a constant column is rounding error.
    least = eps_of(X) ** 0.5 * (jnp.abs(middle) + top)
    return row_unit(jnp.maximum(safe_sqrt(column_sums(far, X) / n) * safe_sqrt(top), least))
