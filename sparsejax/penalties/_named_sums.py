"""Sums of penalties with names of their own: elastic net and sparse group lasso."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sparsejax._core.checks import as_strength, is_traced
from sparsejax.groups import Groups, check_groups
from sparsejax.penalties._group_lasso import GroupLasso
from sparsejax.penalties._norms import L1
from sparsejax.penalties._simple import SquaredL2
from sparsejax.penalties._sum import Sum


def ElasticNet(alpha: ArrayLike, l1_ratio: ArrayLike) -> Sum:
    r"""``alpha l1_ratio ||W||_1 + alpha (1 - l1_ratio)/2 ||W||_F^2``: scikit-learn's penalty.

    Args:
      alpha: >= 0, shape () or (d,).
      l1_ratio: in [0, 1], shape ().

    Returns:
      `Sum` of an `L1` and a `SquaredL2`.

    Raises:
      TypeError, ValueError: alpha or l1_ratio is not real, not finite, negative or of the wrong rank;
        l1_ratio is greater than 1.
    Source: Zou & Hastie, J. Royal Statistical Society B 67(2), 2005.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> print(sj.penalties.ElasticNet(1.0, 0.5).prox(jnp.array([2.0, 0.25])))
    [1. 0.]
    """
    alpha, share = as_strength("alpha", alpha), _as_ratio(l1_ratio)
    return Sum((L1(alpha * share.astype(alpha.dtype)), SquaredL2(alpha * (1 - share).astype(alpha.dtype))))


def SparseGroupLasso(alpha: ArrayLike, l1_ratio: ArrayLike, groups: Groups) -> Sum:
    r"""``alpha l1_ratio ||W||_1 + alpha (1 - l1_ratio) sum_g sqrt(p_g) ||W_g||_F``, p_g features in group g.

    Args:
      alpha: >= 0, shape ().
      l1_ratio: in [0, 1], shape ().
      groups: `sparsejax.groups.Groups`.

    Returns:
      `Sum` of an `L1` and a `GroupLasso`.

    Raises:
      TypeError, ValueError: as `GroupLasso`; alpha is not a scalar; l1_ratio is not a number in [0, 1].
    Source: Simon, Friedman, Hastie & Tibshirani, J. Computational and Graphical Statistics 22(2), 2013.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> penalty = sj.penalties.SparseGroupLasso(1.0, 0.5, sj.groups.from_labels([0, 0]))
    >>> print(penalty.prox(jnp.array([3.0, 0.25])).round(2))
    [1.79 0.  ]
    """
    alpha, share = as_strength("alpha", alpha), _as_ratio(l1_ratio)
    check_groups(groups)
    if alpha.ndim:
        raise ValueError(f"alpha must be a scalar, got shape {alpha.shape}.")
    share = share.astype(alpha.dtype)
    root_sizes = jnp.sqrt(groups.sums(jnp.ones(groups.num_features, alpha.dtype)))
    return Sum((L1(alpha * share), GroupLasso(alpha * (1 - share) * root_sizes, groups)))


def _as_ratio(l1_ratio: ArrayLike) -> jax.Array:
    share = as_strength("l1_ratio", l1_ratio)
    if share.ndim or (not is_traced(share) and np.asarray(share) > 1):
        raise ValueError(f"l1_ratio must be a number in [0, 1], got {l1_ratio}.")
    return share
