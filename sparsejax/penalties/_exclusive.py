"""Squared l1 norms of the rows, alone and with the l2 norms of the rows."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax import prox
from sparsejax._core.checks import as_strength
from sparsejax._core.linalg import columns, safe_divide, safe_norm
from sparsejax.penalties._transposed import (
    SmoothRowPenalty,
    SparseRowPenalty,
    cast,
    least_ratio,
    over_norm,
    squared_conjugate,
    where_unsquared,
)


class CompetingColumns(SmoothRowPenalty):
    """Base of both penalties: sum over rows of ``alpha_i ||w_i||_2 + beta_i ||w_i||_1^2``, alpha 0 here."""

    _adapter: ClassVar[bool] = True
    finite_conjugate = True
    beta: jax.Array

    def _alpha(self, Wt: jax.Array) -> jax.Array:
        return jnp.zeros((), Wt.dtype)

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        return self.warm_columns(Vt, scaling, self.start_columns(Vt), rough=False)[0]

    def start_columns(self, Vt: jax.Array) -> jax.Array:
        return jnp.zeros(Vt.shape[1:], Vt.dtype)

    def warm_columns(
        self, Vt: jax.Array, scaling: jax.Array, warm: Any, rough: bool = True
    ) -> tuple[jax.Array, Any]:
        alpha, beta = scaling * self._alpha(Vt), scaling * cast(self.beta, Vt)
        return prox.exclusive_l21_columns(Vt, alpha, beta, warm, rough)

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        return least_ratio(where_unsquared(self.beta, self._alpha(Zt)), safe_norm(Zt))


class ExclusiveL21(CompetingColumns, SparseRowPenalty, leaves=("alpha", "beta")):
    r"""Exclusive l2,1: drops features, and lets the columns compete for the others.

    .. math:: g(W) = \sum_i \alpha_i \|w_i\|_2 + \beta_i \|w_i\|_1^2

    The first term removes features from all classes; the second makes the classes compete for the features
    that are left.

    Args:
      alpha, beta: >= 0, shape () or (d,).

    Raises:
      TypeError, ValueError: not real, not finite, negative, of the wrong rank.
    Source: Ming & Ding, IJCAI 2019, Eq. (14), with a loss of scale 1. With the default ``scale=1/(2n)`` of
      `SquaredLoss`, divide their strengths by 2n.

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
        """The largest ||z_i||_2; beta does not matter, since the slope of a square is 0 at 0."""
        return jnp.max(safe_norm(columns(Z)))

    def _value(self, Wt: jax.Array) -> jax.Array:
        squared = jnp.sum(jnp.abs(Wt), axis=0) ** 2
        return jnp.sum(cast(self.alpha, Wt) * safe_norm(Wt) + cast(self.beta, Wt) * squared)

    def _alpha(self, Wt: jax.Array) -> jax.Array:
        return cast(self.alpha, Wt)

    def curvature(self, Wt: jax.Array) -> tuple[jax.Array, jax.Array]:
        return over_norm(self.alpha, Wt), 2 * jnp.broadcast_to(cast(self.beta, Wt), Wt.shape[1:])

    def _slopes(self, Zt: jax.Array) -> jax.Array:
        return safe_divide(safe_norm(Zt), cast(self.alpha, Zt), jnp.inf)

    def _conjugate(self, Zt: jax.Array) -> jax.Array:
        return squared_conjugate(prox.tail_threshold(Zt, cast(self.alpha, Zt)), cast(self.beta, Zt))


class ExclusiveLasso(CompetingColumns, leaves=("beta",)):
    r"""Exclusive lasso: the columns compete for each feature.

    .. math:: g(W) = \sum_i \beta_i \|w_i\|_1^2

    A row is zero only if its gradient is zero: the penalty selects classes for each feature, but not
    features.

    Args:
      beta: >= 0, shape () or (d,).

    Raises:
      TypeError, ValueError: not real, not finite, negative, of the wrong rank.
    Source: Zhou, Jin & Hoi, AISTATS 2010, with a factor 1/2. Ming & Ding (IJCAI 2019) write
      ``||W||_{1,2}^2``.

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
        return jnp.sum(cast(self.beta, Wt) * jnp.sum(jnp.abs(Wt), axis=0) ** 2)

    def curvature(self, Wt: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros(Wt.shape[1:], Wt.dtype), 2 * jnp.broadcast_to(cast(self.beta, Wt), Wt.shape[1:])

    def _conjugate(self, Zt: jax.Array) -> jax.Array:
        return squared_conjugate(jnp.max(jnp.abs(Zt), axis=0), cast(self.beta, Zt))
