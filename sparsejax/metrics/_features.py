"""Measures of selected features."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float, as_numpy, check_bool, is_traced
from sparsejax._core.linalg import eps_of
from sparsejax._core.precision import full_precision


def selection_error(X: ArrayLike, Y: ArrayLike, order: ArrayLike) -> jax.Array:
    r"""The share of Y that the first r features of a ranking leave unexplained, for every r.

    .. math:: J_r = \min_W \|Y - X_r W\|_F^2 \,/\, \|Y\|_F^2, \qquad r = 1, \dots, \text{len(order)},

    where X_r are the first r columns in ``order``. There is no intercept: centre X and Y for one. A column
    counts as a combination of earlier ones, and changes nothing, if its part orthogonal to them is at most
    10 eps sqrt(n) times its norm, with eps of the dtype. The cost is O(n r min(n, r) + n r k).

    Args:
      X: (n, d).
      Y: (n, k) or (n,), not all zero.
      order: distinct columns of X, best first, integers, shape (r,).

    Returns:
      (r,), in the dtype of X, in [0, 1] and never increasing. Under jit values are not checked: all entries
      are NaN if Y is zero, the entries from the first index out of range on are NaN, and a repeated index
      changes nothing.

    Raises:
      TypeError: X or Y is not real, or ``order`` not integer.
      ValueError: shapes do not fit, an array is empty or not finite, Y is zero, or ``order`` has an index
        that is out of range or repeated.
    Source: Kong et al., AAAI 2016, Eq. (9). The factor :math:`1/\|Y\|_F^2` is missing in their equation, but
      the values that they print include it.

    >>> import numpy as np, sparsejax as sj
    >>> X, Y = np.eye(4, 3), np.eye(4, 2)
    >>> print(sj.metrics.selection_error(X, Y, np.array([0, 2, 1])).round(2))
    [0.5 0.5 0. ]
    """
    X = as_float("X", X, (2,))
    A = _listed(X, "order", order, least=1)
    Y = as_float("Y", Y, (1, 2), X.dtype)
    if Y.shape[0] != X.shape[0]:
        raise ValueError(f"X has {X.shape[0]} rows and Y has {Y.shape[0]}; they must agree.")
    if Y.ndim == 2 and Y.shape[1] == 0:
        raise ValueError("Y has no columns.")
    if not is_traced(Y) and not np.asarray(Y).any():
        raise ValueError("Y is zero: the error relative to ||Y||_F^2 is undefined.")
    return _selection_error(A, Y[:, None] if Y.ndim == 1 else Y)


@jax.jit
@full_precision()
def _selection_error(A: jax.Array, Y: jax.Array) -> jax.Array:
    """J (r,), by Gram-Schmidt: each column is orthogonalised twice, then projected out of the residual R.

    A: (n, r), the columns in their order; Y: (n, k).
    """
    n, r = A.shape
    tolerance = 10 * eps_of(A) * n**0.5
    Carry = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
    R = Y / jnp.max(jnp.abs(Y))
    R = R / jnp.sqrt(jnp.sum(R * R))

    def step(carry: Carry, v: jax.Array) -> tuple[Carry, jax.Array]:
        Q, rank, R, J = carry  # Q has `rank` orthonormal rows, then zeros
        size = jnp.sqrt(jnp.sum(v * v))
        for _ in range(2):
            v = v - (Q @ v) @ Q
        left = jnp.sqrt(jnp.sum(v * v))
        dependent = left <= tolerance * size  # False for NaN, so that the result is NaN
        q = jnp.where(dependent, 0, v / jnp.where(dependent, 1, left))
        R = R - q[:, None] * (q @ R)[None]
        J = jnp.where(dependent, J, jnp.minimum(J, jnp.sum(R * R)))
        return (Q.at[rank].set(q, mode="drop"), rank + jnp.where(dependent, 0, 1), R, J), J

    whole = jnp.where(jnp.isnan(jnp.sum(R)), jnp.nan, jnp.ones((), A.dtype))  # NaN if Y is zero
    start = (jnp.zeros((min(n, r), n), A.dtype), jnp.int32(0), R, whole)
    return lax.scan(step, start, _scaled(A).T)[1]


def mean_abs_correlation(X: ArrayLike, selected: ArrayLike, *, centered: bool = True) -> jax.Array:
    r"""Mean absolute correlation of the pairs of selected features.

    .. math:: \frac{1}{|P|} \sum_{(s,t) \in P} \frac{|\langle x_s, x_t\rangle|}{\|x_s\|_2\,\|x_t\|_2},

    where x_s are the columns of X, minus their means if ``centered``, and P are the pairs s < t of selected
    columns. A constant column (a zero column if not centred) has no correlation; its pairs are not in P.

    Args:
      X: (n, d).
      selected: at least two distinct columns of X, integers, shape (r,).
      centered: True for Pearson's correlation, False for cosines.

    Returns:
      (), in the dtype of X, in [0, 1]; NaN if P is empty, or under jit if an index is out of range. Under jit
      a repeated index counts as several columns.

    Raises:
      TypeError: X is not real, ``selected`` not integer, ``centered`` not a bool.
      ValueError: X is empty or not finite, or ``selected`` is not 1-d, has fewer than two entries, or one
        that is out of range or repeated.
    Source: Kong et al., AAAI 2016, Eq. (4), stated for centred columns; the values printed there are cosines.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> X = jnp.array([[1.0, 1.0, 0.0], [-1.0, -1.0, 1.0], [1.0, 1.0, 2.0]])
    >>> round(float(sj.metrics.mean_abs_correlation(X, jnp.array([0, 1]))), 3)
    1.0
    """
    A = _listed(as_float("X", X, (2,)), "selected", selected, least=2)
    check_bool("centered", centered)
    return _mean_abs_correlation(A, centered)


@partial(jax.jit, static_argnames="centered")
@full_precision()
def _mean_abs_correlation(A: jax.Array, centered: bool) -> jax.Array:
    U = _scaled(A)
    if centered:
        # A constant column minus its rounded mean would be rounding noise and not zero.
        U = jnp.where((jnp.max(A, axis=0) == jnp.min(A, axis=0))[None], 0, U - jnp.mean(U, axis=0)[None])
        U = U - jnp.mean(U, axis=0)[None]  # the rounding error of the first mean
    norm = jnp.sqrt(jnp.sum(U * U, axis=0))
    constant = norm == 0
    U = U / jnp.where(constant, 1, norm)[None]
    C = jnp.minimum(jnp.abs(U.T @ U), 1)
    pairs = jnp.triu(~(constant[:, None] | constant[None]), 1)
    return jnp.sum(jnp.where(pairs, C, 0)) / jnp.sum(pairs).astype(A.dtype)


def _listed(X: jax.Array, name: str, index: ArrayLike, least: int) -> jax.Array:
    """The columns of X with these indices; a traced index out of range gives NaN, a concrete one raises."""
    n, d = X.shape
    if n == 0 or d == 0:
        raise ValueError(f"X is empty: its shape is {X.shape}.")
    if not isinstance(index, jax.Array):
        try:
            index = as_numpy(name, index)
        except ValueError as error:  # ragged lists
            raise ValueError(f"{name} is not a list of columns: {error}") from None
    if index.ndim != 1:
        raise ValueError(f"{name} has shape {tuple(index.shape)}; it must be 1-d, a list of columns of X.")
    if index.size < least:
        raise ValueError(f"{name} lists {index.size} columns; at least {least} needed.")
    if not jnp.issubdtype(index.dtype, jnp.integer):
        raise TypeError(f"{name} has dtype {index.dtype}; integers are needed, the columns' numbers.")
    if not is_traced(index):
        values = np.asarray(index)
        wrong = values[(values < 0) | (values >= d)]
        if wrong.size:
            raise ValueError(f"{name} has the index {wrong[0]}; X has columns 0 to {d - 1}.")
        distinct, counts = np.unique(values, return_counts=True)
        if (counts > 1).any():
            raise ValueError(f"{name} lists column {distinct[counts > 1][0]} more than once.")
    index = jnp.asarray(index)
    small = index.astype(jnp.int32)
    outside = (small < 0) | (small.astype(index.dtype) != index)  # the cast of a large index may be a column
    return jnp.take(X, jnp.where(outside, d, small), axis=1, mode="fill", fill_value=jnp.nan)


def _scaled(A: jax.Array) -> jax.Array:
    """Each column divided by its largest absolute entry, so that squares neither overflow nor underflow."""
    largest = jnp.max(jnp.abs(A), axis=0)
    return A / jnp.where(largest == 0, 1, largest)[None]
