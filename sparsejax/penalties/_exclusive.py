"""Penalties of squared l1 norms of the rows: `ExclusiveLasso`, and `ExclusiveL21`, which adds l2 norms."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax import prox
from sparsejax._core.checks import as_strength
from sparsejax._core.linalg import columns, like, safe_norm
from sparsejax.penalties._transposed import (
    SmoothRowPenalty,
    SparseRowPenalty,
    cast,
    least_ratio,
    over_norm,
    slope_ratio,
    squared_conjugate,
    where_unsquared,
)


class CompetingColumns(SmoothRowPenalty):
    """Base of `ExclusiveL21` and of `ExclusiveLasso`, which is `ExclusiveL21` with alpha = 0.

    The function is the sum over the rows w_i of W of ``alpha_i ||w_i||_2 + beta_i ||w_i||_1^2``. Arguments
    that end in t are transposes: column i of ``Wt`` (k, d) is w_i.
    """

    _adapter: ClassVar[bool] = True
    finite_conjugate = True  # if every beta_i > 0; else `dual_scale` says up to which s g*(sZ) is finite
    beta: jax.Array

    def _alpha(self, Wt: jax.Array) -> jax.Array:
        """alpha, () or (d,), in the dtype of Wt; 0 in a subclass without such a strength."""
        return jnp.zeros((), Wt.dtype)

    def smooth_where(self, W: jax.Array) -> jax.Array:
        """Boolean, shape of W: the entries that are not 0, and entries at 0 where g has no kink.

        g has no kink at 0 in a row that is nonzero or has alpha_i = 0, if beta_i = 0 or W has one column.
        """
        Wt = columns(W)
        live = jnp.any(Wt != 0, axis=0) | (self._alpha(Wt) == 0)
        return like((Wt != 0) | (live & ((cast(self.beta, Wt) == 0) | (len(Wt) == 1)))[None], W)

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        return self.warm_columns(Vt, scaling, self.start_columns(Vt), rough=False)[0]

    def start_columns(self, Vt: jax.Array) -> jax.Array:
        """The first guess of each row's threshold theta, (d,): 0, which saves no Newton step."""
        return jnp.zeros(Vt.shape[1:], Vt.dtype)

    def warm_columns(
        self, Vt: jax.Array, scaling: jax.Array, warm: Any, rough: bool = True
    ) -> tuple[jax.Array, Any]:
        """The prox and the thresholds theta of its rows, (d,), which are ``warm`` for the next call.

        If ``rough``, Newton's method ends early and the prox is nearly exact, see `exclusive_l21_columns`.
        """
        alpha, beta = scaling * self._alpha(Vt), scaling * cast(self.beta, Vt)
        return prox.exclusive_l21_columns(Vt, alpha, beta, warm, rough)

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        # If beta_i > 0, g* is finite for every z_i. If beta_i = 0, it is finite where ||z_i||_2 <= alpha_i.
        return least_ratio(where_unsquared(self.beta, self._alpha(Zt)), safe_norm(Zt))


class ExclusiveL21(CompetingColumns, SparseRowPenalty, leaves=("alpha", "beta")):
    r"""Exclusive l2,1: drops features, and lets the classes compete for the remaining features.

    .. math:: g(W) = \sum_i \alpha_i \|w_i\|_2 + \beta_i \|w_i\|_1^2

    The rows of W are features, its columns classes. The alpha term makes rows zero, which removes a feature
    from all classes. The beta term makes entries of the other rows zero: the classes compete for a feature.

    Args:
      alpha, beta: >= 0, shape () or (d,).

    Raises:
      TypeError, ValueError: not real, not finite, negative, of the wrong rank.
    Source: Ming & Ding, IJCAI 2019, Eq. (14), whose loss has scale 1. For the default ``scale=1/(2n)`` of
      `SquaredLoss`, divide the alpha and beta of the paper by 2n.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> penalty = sj.penalties.ExclusiveL21(0.5, 0.5)
    >>> W = jnp.array([[3.0, -0.5], [0.5, 0.0]])
    >>> round(float(penalty.value(W)), 3)
    8.021
    >>> print(penalty.prox(W))
    [[ 1.25 -0.  ]
     [ 0.    0.  ]]
    """

    strengths = ("alpha", "beta")
    _absolute = True
    degrees = (1, 2)
    alpha: jax.Array

    def __init__(self, alpha: ArrayLike, beta: ArrayLike):
        self._set(alpha=as_strength("alpha", alpha), beta=as_strength("beta", beta))

    def dual_norm(self, Z: jax.Array) -> jax.Array:
        """The smallest alpha at which 0 is the prox of Z: the largest ||z_i||_2, shape ().

        beta has no effect, since the squared term has slope 0 at W = 0.
        """
        return jnp.max(safe_norm(columns(Z)))

    def _value(self, Wt: jax.Array) -> jax.Array:
        return jnp.sum(cast(self.alpha, Wt) * safe_norm(Wt) + cast(self.beta, Wt) * _squared_l1(Wt))

    def _alpha(self, Wt: jax.Array) -> jax.Array:
        return cast(self.alpha, Wt)

    def curvature(self, Wt: jax.Array) -> tuple[jax.Array, jax.Array]:
        # With u = w_i/||w_i|| and s = sign(w_i), the Hessian of alpha ||w_i||_2 is alpha/||w_i|| (I - uu'),
        # and the Hessian of beta ||w_i||_1^2 on the support is 2 beta ss'.
        return over_norm(self.alpha, Wt), 2 * jnp.broadcast_to(cast(self.beta, Wt), Wt.shape[1:])

    def _slopes(self, Zt: jax.Array) -> jax.Array:
        # A zero row stays zero where ||z_i||_2 <= alpha_i: the slope of the squared term is 0 at w_i = 0.
        return slope_ratio(safe_norm(Zt), cast(self.alpha, Zt))

    def _conjugate(self, Zt: jax.Array) -> jax.Array:
        # g* is the infimal convolution of both terms' conjugates: the sum over rows of m_i^2/(4 beta_i),
        # where `tail_threshold` m_i is the least value of max|z_i - v| over all v with ||v||_2 <= alpha_i.
        return squared_conjugate(prox.tail_threshold(Zt, cast(self.alpha, Zt)), cast(self.beta, Zt))


class ExclusiveLasso(CompetingColumns, leaves=("beta",)):
    r"""Exclusive lasso: the classes (columns of W) compete for each feature (row of W).

    .. math:: g(W) = \sum_i \beta_i \|w_i\|_1^2

    At a solution a row is zero only if the gradient of the loss is zero in the row: the penalty selects
    classes for each feature, but drops no feature.

    Args:
      beta: >= 0, shape () or (d,).

    Raises:
      TypeError, ValueError: not real, not finite, negative, of the wrong rank.
    Source: Zhou, Jin & Hoi, AISTATS 2010, whose penalty has a factor 1/2 that this one has not. Ming & Ding
      (IJCAI 2019) write it ``||W||_{1,2}^2``.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> penalty = sj.penalties.ExclusiveLasso(0.5)
    >>> W = jnp.array([[3.0, -0.5], [0.5, 0.0]])
    >>> float(penalty.value(W))
    6.25
    >>> print(penalty.prox(W))
    [[ 1.5  -0.  ]
     [ 0.25  0.  ]]
    """

    strengths = ("beta",)
    _absolute = True
    degrees = (2,)

    def __init__(self, beta: ArrayLike):
        self._set(beta=as_strength("beta", beta))

    def _value(self, Wt: jax.Array) -> jax.Array:
        return jnp.sum(cast(self.beta, Wt) * _squared_l1(Wt))

    def curvature(self, Wt: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros(Wt.shape[1:], Wt.dtype), 2 * jnp.broadcast_to(cast(self.beta, Wt), Wt.shape[1:])

    def _conjugate(self, Zt: jax.Array) -> jax.Array:
        return squared_conjugate(jnp.max(jnp.abs(Zt), axis=0), cast(self.beta, Zt))


def _squared_l1(Wt: jax.Array) -> jax.Array:
    """||w_i||_1^2 of each row, (d,); of one column as w_i^2, which has its second derivative at 0 too."""
    return Wt[0] * Wt[0] if len(Wt) == 1 else jnp.sum(jnp.abs(Wt), axis=0) ** 2
