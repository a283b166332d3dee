"""Similarities of labels, for `sparsejax.losses.GraphLaplacian`.

A similarity is a symmetric (k, k) array of nonnegative weights with a zero diagonal.
"""

import math
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float, as_numpy, as_positive, check_labels, is_traced

__all__ = ["from_views", "ngd_similarity"]

MAX_NODES = 46_340  # nodes of a graph: its similarities are then fewer than 2**31 numbers


def ngd_similarity(Y: ArrayLike, *, eta: ArrayLike = 1.0, smoothing: ArrayLike = 1.0) -> jax.Array:
    r"""Similarity of labels by how often they occur together.

    .. math:: P_{xy} = \exp(-\mathrm{NGD}(x, y) / \eta), \qquad
              \mathrm{NGD}(x, y) = \frac{\ln \max(f_x, f_y) - \ln f_{xy}}{\ln N - \ln \min(f_x, f_y)},

    the normalised Google distance. The counts f are smoothed, since a label or pair without samples has the
    count 0, whose logarithm is not finite. With c the counts in the n rows of Y, s = ``smoothing`` and x the
    rarer label:

    .. math:: N = n + s, \qquad f_x = c_x + s/2, \qquad
              f_{xy} = f_x\,\frac{c_{xy} + s f_y / N}{c_x + s}.

    The fraction estimates the probability of y where x occurs, with s samples of x added, of which the share
    :math:`f_y/N` has y. Hence :math:`0 < f_{xy} \le \min(f_x, f_y) < N`, and the distance is finite and >= 0.
    Labels that occur together as often as by chance have a distance near 1. A label without samples has the
    distance 1 to every other label.

    Args:
      Y: (n, k) of zeros and ones, one column a label (for pairs of labels: the products of two views).
      eta: > 0, shape (): the distance at which the similarity is 1/e.
      smoothing: > 0, shape (), in samples.

    Returns:
      (k, k), symmetric with a zero diagonal, in the dtype of Y, or in the default float if Y is not floating;
      entries in [0, 1].

    Raises:
      TypeError: an argument is not real.
      ValueError: Y is empty, not 2-d or has a value other than 0 and 1; ``eta`` or ``smoothing`` is not
        positive and finite.
    Source: Chen et al., MM 2011, Section 2.3, without smoothing; Cilibrasi & Vitanyi, IEEE TKDE 19, 2007.

    >>> import numpy as np, sparsejax as sj
    >>> Y = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    >>> print(sj.graphs.ngd_similarity(Y).round(2))
    [[0.   0.53 0.21]
     [0.53 0.   0.21]
     [0.21 0.21 0.  ]]
    """
    Y = as_float("Y", Y, (2,))
    if Y.size == 0:
        raise ValueError(f"Y is empty: its shape is {Y.shape}.")
    check_labels(Y, (0, 1))
    eta, s = (as_positive(name, x, Y.dtype) for name, x in (("eta", eta), ("smoothing", smoothing)))
    n, k = Y.shape
    together = jnp.matmul(Y.T, Y, precision=lax.Precision.HIGHEST)
    count = jnp.diagonal(together)
    rare, common = jnp.minimum(count[:, None], count[None]), jnp.maximum(count[:, None], count[None])
    # Each logarithm of a ratio is log1p(difference / smaller), and each difference is a sum of nonnegative
    # terms: nothing cancels, and the distance is never negative.
    N, low, high = n + s, rare + s / 2, common + s / 2
    # The shares of f_x that have y and that have not y. No product of two numbers of the size of s is
    # formed, which would underflow or overflow.
    added = s / (rare + s)
    both = together / (rare + s) + added * (high / N)
    apart = (rare - together) / (rare + s) + added * ((n - common + s / 2) / N)
    distance = jnp.log1p(((common - rare) / low + apart) / both) / jnp.log1p((n - rare + s / 2) / low)
    return jnp.where(jnp.eye(k, dtype=bool), 0, jnp.exp(-distance / eta))


def from_views(*views: ArrayLike) -> jax.Array:
    r"""Similarity of combinations of labels, one from each view, that differ in one view only.

    .. math:: P = \sum_v I \otimes \dots \otimes S_v \otimes \dots \otimes I,

    the Cartesian product of the graphs of the views: two combinations that differ only in view v are as
    similar as their two labels of view v. Columns are in row-major order, as in `numpy.ravel_multi_index` and
    `sparsejax.groups.label_views`: with two views, the pair (i, j) is column ``i * k_2 + j``.

    Args:
      views: for each view its number of labels k_v, an integer (all labels of the view then have the
        similarity 1), or :math:`S_v`, (k_v, k_v) and >= 0, which is replaced by :math:`(S_v + S_v^\top)/2`
        and whose diagonal has no effect.

    Returns:
      (k, k), k the product of the k_v; in the dtype of the first S_v, or in the default float if all views
      are numbers.

    Raises:
      TypeError: no view, or a view that is neither an integer nor a real array.
      ValueError: a number of labels below 1; a similarity that is empty, not square, negative or not finite;
        more than 46340 combinations.
    Source: Chen et al., MM 2011, Section 2.3, leaves the similarity open (any measure of joint occurrence).

    >>> import sparsejax as sj
    >>> print(sj.graphs.from_views(2, 2))
    [[0. 1. 1. 0.]
     [1. 0. 0. 1.]
     [1. 0. 0. 1.]
     [0. 1. 1. 0.]]
    """
    if not views:
        raise TypeError("from_views needs at least one view.")
    named = [(f"view {v}", view) for v, view in enumerate(views)]
    dtype = next((as_float(*known, (2,)).dtype for known in named if _ndim(*known) > 0), None)
    parts = [_view(*known, dtype) for known in named]
    if (size := math.prod(len(S) for S in parts)) > MAX_NODES:
        raise ValueError(f"the views have {size} combinations of labels; at most {MAX_NODES} are possible.")

    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        one_a, one_b = (jnp.eye(len(x), dtype=x.dtype) for x in (a, b))
        return jnp.kron(a, one_b) + jnp.kron(one_a, b)

    return reduce(product, parts)


def _ndim(name: str, view: Any) -> int:
    return view.ndim if isinstance(view, jax.Array) else as_numpy(name, view).ndim


def _view(name: str, view: Any, dtype: np.dtype | None) -> jax.Array:
    """The similarity of one view's labels: symmetric, with a zero diagonal."""
    if _ndim(name, view) == 0:
        if np.asarray(view).dtype.kind not in "iu":
            raise TypeError(f"{name} must be a number of labels or a similarity matrix, got {view!r}.")
        if view < 1:
            raise ValueError(f"{name} must have at least 1 label, got {view}.")
        if view > MAX_NODES:  # XLA ends the process for much larger arrays
            raise ValueError(f"{name} must have at most {MAX_NODES} labels, got {view}.")
        S = jnp.ones((int(view), int(view)), jnp.result_type(float) if dtype is None else dtype)
    else:
        S = as_float(name, view, (2,), dtype)
        if S.shape[0] != S.shape[1] or S.size == 0:
            raise ValueError(f"{name} has shape {S.shape}; a similarity must be square and not empty.")
        if not is_traced(S):
            low = np.asarray(S).min()
            if low < 0:
                raise ValueError(f"{name} has the similarity {low:g}; all must be >= 0.")
    return jnp.where(jnp.eye(len(S), dtype=bool), 0, S / 2 + S.T / 2)  # S + S.T may overflow
