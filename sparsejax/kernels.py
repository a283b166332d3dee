r"""Kernels :math:`k(x, x')`, and the usual bandwidth for the Gaussian kernel."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float, as_int, as_positive, is_traced
from sparsejax._core.linalg import safe_sqrt, unit_of
from sparsejax._core.precision import full_precision

__all__ = ["gaussian", "linear", "median_bandwidth", "polynomial", "squared_distances"]


def squared_distances(X: ArrayLike, Z: ArrayLike | None = None) -> jax.Array:
    r"""``||x_i - z_j||^2``, shape (n, m); Z = X if not given, and then the diagonal is exactly 0.

    Computed as :math:`\|x\|^2 + \|z\|^2 - 2x^\top z`, and at least 0. The mean of Z is first subtracted from
    X and Z, since a common offset would cost digits. The error is about eps times the largest square norm of
    the centred rows.

    Args:
      X: (n, d).
      Z: (m, d), converted to the dtype of X.

    Raises:
      TypeError, ValueError: not real, not finite, no rows or columns, different numbers of columns.

    >>> import numpy as np, sparsejax as sj
    >>> print(sj.kernels.squared_distances(np.array([[0.0, 0.0], [3.0, 4.0]])))
    [[ 0. 25.]
     [25.  0.]]
    """
    X, Z, same = _rows(X, Z)
    return _squared_distances(X, Z, same=same)


def gaussian(X: ArrayLike, Z: ArrayLike | None = None, *, bandwidth: ArrayLike) -> jax.Array:
    r""":math:`\exp(-\|x_i - z_j\|^2 / (2\sigma^2))`, shape (n, m); Z = X if not given.

    Squared distances have the error of `squared_distances`. If Z is given, the similarity of equal rows is
    therefore below 1 where the bandwidth is less than about sqrt(eps) times the size of the centred rows.

    Args:
      X: (n, d).
      Z: (m, d).
      bandwidth: :math:`\sigma > 0`, shape (), for example `median_bandwidth`.

    Raises:
      TypeError, ValueError: as `squared_distances`; a bandwidth <= 0.

    >>> import numpy as np, sparsejax as sj
    >>> print(sj.kernels.gaussian(np.array([[0.0, 0.0], [3.0, 4.0]]), bandwidth=5.0).round(2))
    [[1.   0.61]
     [0.61 1.  ]]
    """
    X, Z, same = _rows(X, Z)
    return _gaussian(X, Z, as_positive("bandwidth", bandwidth, X.dtype), same=same)


def polynomial(
    X: ArrayLike,
    Z: ArrayLike | None = None,
    *,
    degree: int = 3,
    scale: ArrayLike = 1.0,
    offset: ArrayLike = 1.0,
) -> jax.Array:
    r""":math:`(\text{scale}\; x_i^\top z_j + \text{offset})^{\text{degree}}`, (n, m); Z = X if not given.

    Args:
      X: (n, d).
      Z: (m, d).
      degree: an integer >= 1.
      scale: > 0, shape ().
      offset: real, shape ().

    Raises:
      TypeError, ValueError: as `squared_distances`; a degree or scale out of range.

    >>> import numpy as np, sparsejax as sj
    >>> print(sj.kernels.polynomial(np.array([[1.0, 0.0], [3.0, 4.0]]), degree=2))
    [[  4.  16.]
     [ 16. 676.]]
    """
    degree = as_int("degree", degree, 1)
    X, Z, _ = _rows(X, Z)
    scale = as_positive("scale", scale, X.dtype)
    return _polynomial(X, Z, scale, as_float("offset", offset, (0,), X.dtype), degree=degree)


def linear(X: ArrayLike, Z: ArrayLike | None = None) -> jax.Array:
    r""":math:`x_i^\top z_j`, shape (n, m); Z = X if not given.

    Args:
      X, Z: (n, d) and (m, d).

    Raises:
      TypeError, ValueError: as `squared_distances`.

    >>> import numpy as np, sparsejax as sj
    >>> print(sj.kernels.linear(np.array([[1.0, 0.0], [3.0, 4.0]])))
    [[ 1.  3.]
     [ 3. 25.]]
    """
    X, Z, _ = _rows(X, Z)
    return _linear(X, Z)


def kernel_of(kernel: str, degree: int, bandwidth: Any, X: ArrayLike, Z: ArrayLike) -> jax.Array:
    """The kernel with this name, (n, m): "gaussian", "polynomial" or "linear"."""
    if kernel == "gaussian":
        return gaussian(X, Z, bandwidth=bandwidth)
    return polynomial(X, Z, degree=degree) if kernel == "polynomial" else linear(X, Z)


def median_bandwidth(X: ArrayLike) -> jax.Array:
    r"""The median of :math:`\|x_i - x_j\|` over :math:`i < j`, shape ().

    Args:
      X: (n, d), n >= 2.

    Raises:
      TypeError, ValueError: as `squared_distances`; X has one row; the median is 0, since more than half of
        the pairs are equal rows (choose a bandwidth yourself); squares of distances overflow or underflow.
        Under jit a median of 0 or infinity is returned.

    >>> import numpy as np, sparsejax as sj
    >>> round(float(sj.kernels.median_bandwidth(np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]))), 2)
    4.24
    """
    X, _, _ = _rows(X, None)
    n = X.shape[0]
    if n < 2:
        raise ValueError("X has one row, and so no distance to take the median of: give a bandwidth.")
    D, pairs = _squared_distances(X, X, same=True), np.triu_indices(n, 1)
    if is_traced(D):
        return jnp.median(safe_sqrt(D[pairs]))
    median = np.median(np.sqrt(np.asarray(D)[pairs]))  # numpy selects, about ten times faster than a sort
    if _mostly_equal(np.asarray(X)):
        raise ValueError(
            "the median distance of X's rows is 0 (more than half of the pairs are equal): give a bandwidth."
        )
    if not np.isfinite(median):
        raise ValueError(f"the squared distances of X's rows overflow in {X.dtype}: rescale X.")
    if median == 0:
        raise ValueError(
            f"the squared distances of X's rows underflow in {X.dtype}, or are rounding errors beside its "
            "largest rows: rescale X, or give a bandwidth."
        )
    return jnp.asarray(median, X.dtype)


def _mostly_equal(X: np.ndarray) -> bool:
    """Whether more than half of the pairs of rows are equal; computed distances are 0 only up to rounding."""
    counts, n = np.unique(X, axis=0, return_counts=True)[1], len(X)
    return bool(2 * np.sum(counts * (counts - 1)) > n * (n - 1))


def _rows(X: Any, Z: Any) -> tuple[jax.Array, jax.Array, bool]:
    """X and Z, checked, and whether Z is X."""
    X = as_float("X", X, (2,))
    same = Z is None
    Z = X if same else as_float("Z", Z, (2,), X.dtype)
    if X.shape[1] != Z.shape[1]:
        raise ValueError(f"X has {X.shape[1]} columns and Z has {Z.shape[1]}; they must agree.")
    for name, M in (("X", X), ("Z", Z)):
        if 0 in M.shape:
            raise ValueError(f"{name} is empty, of shape {tuple(M.shape)}.")
    return X, Z, same


@partial(jax.jit, static_argnames="same")
@full_precision()
def _squared_distances(X: jax.Array, Z: jax.Array, *, same: bool = False) -> jax.Array:
    mean = jnp.mean(Z, axis=0, keepdims=True)
    X, Z = X - mean, Z - mean
    size, other = (jnp.sum(A * A, axis=1) for A in (X, Z))
    distances = jnp.maximum(size[:, None] + other[None] - 2 * (X @ Z.T), 0)
    # Under jit nothing refuses a row with NaN or infinity: its place on the diagonal is NaN, not 0.
    zero = jnp.where(jnp.isnan(size), size, 0)[None]
    return jnp.where(jnp.eye(len(X), dtype=bool), zero, distances) if same else distances


@partial(jax.jit, static_argnames="same")
@full_precision()
def _gaussian(X: jax.Array, Z: jax.Array, bandwidth: jax.Array, *, same: bool = False) -> jax.Array:
    X, Z, ratio = in_units(X, Z, bandwidth)
    return similarity(_squared_distances(X, Z, same=same), ratio)


def in_units(X: jax.Array, Z: jax.Array, bandwidth: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """X (n, d) and Z (m, d) in a unit that suits squares of distances, and unit / bandwidth, ().

    The larger of the bandwidth and the largest entry of Z is 1 to 4 units. The size of X does not count: one
    huge row would make the squares of all other rows underflow. Its own squares may overflow: the similarity
    to all rows of Z is then 0.
    """
    unit, inverse = unit_of(jnp.maximum(jnp.max(jnp.abs(Z)), bandwidth))
    # X'Z of a row whose squares overflow would be NaN where infinities of both signs are added.
    most = float(jnp.finfo(X.dtype).max) ** 0.5
    X = jnp.where(jnp.max(jnp.abs(X), axis=1, keepdims=True) > most * unit, most * unit, X)
    return X * inverse, Z * inverse, unit / bandwidth  # infinite where XLA takes the least bandwidths for 0


def similarity(d2: jax.Array, ratio: jax.Array) -> jax.Array:
    """The Gaussian kernel of squared distances in the unit of `in_units`; NaN stays NaN."""
    return jnp.exp(-jnp.where(d2 == 0, 0, d2 * ratio * ratio / 2))


@partial(jax.jit, static_argnames="degree")
@full_precision()
def _polynomial(X: jax.Array, Z: jax.Array, scale: jax.Array, offset: jax.Array, *, degree: int) -> jax.Array:
    return (scale * (X @ Z.T) + offset) ** degree


@jax.jit
@full_precision()
def _linear(X: jax.Array, Z: jax.Array) -> jax.Array:
    return X @ Z.T
