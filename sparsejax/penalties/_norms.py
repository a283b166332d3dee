"""Norms of the rows: l1, l2 and l-infinity."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax import prox
from sparsejax._core.checks import as_strength
from sparsejax._core.linalg import columns, like, safe_divide, safe_norm
from sparsejax.penalties._base import RowNorm
from sparsejax.penalties._row_penalty import SmoothRowPenalty, SparseRowPenalty, cast, least_ratio, over_norm


class L1(SmoothRowPenalty, SparseRowPenalty, leaves=("strength",)):
    r"""Lasso: ``g(W) = sum_i strength_i ||w_i||_1``.

    Args:
      strength: >= 0, shape () or (d,).

    Raises:
      TypeError, ValueError: not real, not finite, negative, of the wrong rank.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> penalty = sj.penalties.L1(1.0)
    >>> W = jnp.array([[3.0, -4.0], [0.5, 0.0]])
    >>> float(penalty.value(W))
    7.5
    >>> print(penalty.prox(W))
    [[ 2. -3.]
     [ 0.  0.]]
    """

    strengths = ("strength",)
    degrees = (1,)
    strength: jax.Array

    def __init__(self, strength: ArrayLike):
        self._set(strength=as_strength("strength", strength))

    def dual_norm(self, Z: jax.Array) -> jax.Array:
        """The largest |z_ij|."""
        return jnp.max(jnp.abs(Z))

    def row_norm(self, params_shape: tuple[int, ...]) -> RowNorm | None:
        """The strengths, for a single column."""
        return RowNorm(self.strength) if len(params_shape) == 1 or params_shape[1] == 1 else None

    def _value(self, Wt: jax.Array) -> jax.Array:
        return jnp.sum(cast(self.strength, Wt) * jnp.sum(jnp.abs(Wt), axis=0))

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        strength = cast(self.strength, Vt)
        return prox.l1(Vt, strength if strength.ndim == 0 else strength[None], scaling)

    def _curvature(self, Wt: jax.Array) -> tuple[jax.Array, jax.Array]:
        zero = jnp.zeros(Wt.shape[1:], Wt.dtype)
        return zero, zero

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        return least_ratio(cast(self.strength, Zt), jnp.max(jnp.abs(Zt), axis=0))

    def _slopes(self, Zt: jax.Array) -> jax.Array:
        return safe_divide(jnp.max(jnp.abs(Zt), axis=0), cast(self.strength, Zt), jnp.inf)


class L21(SmoothRowPenalty, SparseRowPenalty, leaves=("alpha",)):
    r"""Row-sparse group lasso: ``g(W) = sum_i alpha_i ||w_i||_2``.

    Args:
      alpha: >= 0, shape () or (d,).

    Raises:
      TypeError, ValueError: not real, not finite, negative, of the wrong rank.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> penalty = sj.penalties.L21(2.5)
    >>> W = jnp.array([[3.0, -4.0], [0.5, 0.0]])
    >>> float(penalty.value(W))
    13.75
    >>> print(penalty.prox(W))
    [[ 1.5 -2. ]
     [ 0.   0. ]]
    """

    strengths = ("alpha",)
    degrees = (1,)
    alpha: jax.Array

    def __init__(self, alpha: ArrayLike):
        self._set(alpha=as_strength("alpha", alpha))

    def dual_norm(self, Z: jax.Array) -> jax.Array:
        """The largest ||z_i||_2."""
        return jnp.max(safe_norm(columns(Z)))

    def row_norm(self, params_shape: tuple[int, ...]) -> RowNorm:
        """The strengths."""
        return RowNorm(self.alpha)

    def smooth_where(self, W: jax.Array) -> jax.Array:
        """The rows that are not 0, boolean, shape of W."""
        Wt = columns(W)
        return like(jnp.broadcast_to(jnp.any(Wt != 0, axis=0), Wt.shape), W)

    def _value(self, Wt: jax.Array) -> jax.Array:
        return jnp.sum(cast(self.alpha, Wt) * safe_norm(Wt))

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        return prox.l2_columns(Vt, scaling * cast(self.alpha, Vt))

    def _curvature(self, Wt: jax.Array) -> tuple[jax.Array, jax.Array]:
        return over_norm(self.alpha, Wt), jnp.zeros(Wt.shape[1:], Wt.dtype)

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        return least_ratio(cast(self.alpha, Zt), safe_norm(Zt))

    def _slopes(self, Zt: jax.Array) -> jax.Array:
        return safe_divide(safe_norm(Zt), cast(self.alpha, Zt), jnp.inf)


class L1Inf(SparseRowPenalty, leaves=("alpha",)):
    r"""Row-sparse group lasso by the largest entry: ``g(W) = sum_i alpha_i max_j |w_ij|``.

    Entries below the largest of their row cost nothing, so that features are shared by classes, and the
    largest entries of a row mostly tie. Tied entries move together: derivatives of solutions go through
    the prox.

    Args:
      alpha: >= 0, shape () or (d,).

    Raises:
      TypeError, ValueError: not real, not finite, negative, of the wrong rank.
    Source: Quattoni, Carreras, Collins & Darrell, ICML 2009 (there as the constraint g(W) <= C).

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> penalty = sj.penalties.L1Inf(1.0)
    >>> W = jnp.array([[3.0, -4.0], [0.5, 0.0]])
    >>> float(penalty.value(W))
    4.5
    >>> print(penalty.prox(W))
    [[ 3. -3.]
     [ 0.  0.]]
    """

    strengths = ("alpha",)
    degrees = (1,)
    alpha: jax.Array

    def __init__(self, alpha: ArrayLike):
        self._set(alpha=as_strength("alpha", alpha))

    def dual_norm(self, Z: jax.Array) -> jax.Array:
        """The largest ||z_i||_1."""
        return jnp.max(jnp.sum(jnp.abs(columns(Z)), axis=0))

    def _value(self, Wt: jax.Array) -> jax.Array:
        return jnp.sum(cast(self.alpha, Wt) * jnp.max(jnp.abs(Wt), axis=0))

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        return prox.linf_columns(Vt, scaling * cast(self.alpha, Vt))

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        return least_ratio(cast(self.alpha, Zt), jnp.sum(jnp.abs(Zt), axis=0))

    def _slopes(self, Zt: jax.Array) -> jax.Array:
        return safe_divide(jnp.sum(jnp.abs(Zt), axis=0), cast(self.alpha, Zt), jnp.inf)
