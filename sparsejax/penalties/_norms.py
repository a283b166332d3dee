"""Norms of the rows: l1, l2 and l-infinity."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax import prox
from sparsejax._core.checks import as_strength
from sparsejax._core.linalg import columns, like, safe_divide, safe_norm
from sparsejax.penalties._base import RowNorm
from sparsejax.penalties._row_penalty import SmoothRowPenalty, SparseRowPenalty, cast, least_ratio, over_norm


class RowNormPenalty(SparseRowPenalty):
    r"""``g(W) = sum_i strength_i ||w_i||``, from two hooks: the norm of each row and the dual norm."""

    _adapter: ClassVar[bool] = True
    degrees = (1,)

    def dual_norm(self, Z: jax.Array) -> jax.Array:
        """The largest dual norm of a row of Z."""
        return jnp.max(self._dual_norms(columns(Z)))

    def _norms(self, Wt: jax.Array) -> jax.Array:
        raise NotImplementedError

    def _dual_norms(self, Zt: jax.Array) -> jax.Array:
        raise NotImplementedError

    def _strength(self, Wt: jax.Array) -> jax.Array:
        return cast(getattr(self, self.strengths[0]), Wt)

    def _value(self, Wt: jax.Array) -> jax.Array:
        return jnp.sum(self._strength(Wt) * self._norms(Wt))

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        return least_ratio(self._strength(Zt), self._dual_norms(Zt))

    def _slopes(self, Zt: jax.Array) -> jax.Array:
        return safe_divide(self._dual_norms(Zt), self._strength(Zt), jnp.inf)


class L1(SmoothRowPenalty, RowNormPenalty, leaves=("strength",)):
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
    _absolute = True
    strength: jax.Array

    def __init__(self, strength: ArrayLike):
        self._set(strength=as_strength("strength", strength))

    def row_norm(self, params_shape: tuple[int, ...]) -> RowNorm | None:
        """The strengths, for a single column."""
        return RowNorm(self.strength) if len(params_shape) == 1 or params_shape[1] == 1 else None

    def _norms(self, Wt: jax.Array) -> jax.Array:
        return jnp.sum(jnp.abs(Wt), axis=0)

    def _dual_norms(self, Zt: jax.Array) -> jax.Array:
        return jnp.max(jnp.abs(Zt), axis=0)

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        strength = self._strength(Vt)
        return prox.l1(Vt, strength if strength.ndim == 0 else strength[None], scaling)

    def entrywise(self, Wt: jax.Array) -> jax.Array:
        """The strength of each entry of W', (1, 1), (1, d), (k, 1) or (k, d)."""
        return self._strength(Wt).reshape(1, -1)

    def curvature(self, Wt: jax.Array) -> tuple[jax.Array, jax.Array]:
        zero = jnp.zeros(Wt.shape[1:], Wt.dtype)
        return zero, zero


class L21(SmoothRowPenalty, RowNormPenalty, leaves=("alpha",)):
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
    _absolute = True
    alpha: jax.Array

    def __init__(self, alpha: ArrayLike):
        self._set(alpha=as_strength("alpha", alpha))

    def row_norm(self, params_shape: tuple[int, ...]) -> RowNorm:
        """The strengths."""
        return RowNorm(self.alpha)

    def smooth_where(self, W: jax.Array) -> jax.Array:
        """The rows that are not 0, boolean, shape of W."""
        Wt = columns(W)
        return like(jnp.broadcast_to(jnp.any(Wt != 0, axis=0), Wt.shape), W)

    def _norms(self, Wt: jax.Array) -> jax.Array:
        return safe_norm(Wt)

    def _dual_norms(self, Zt: jax.Array) -> jax.Array:
        return safe_norm(Zt)

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        return prox.l2_columns(Vt, scaling * self._strength(Vt))

    def curvature(self, Wt: jax.Array) -> tuple[jax.Array, jax.Array]:
        return over_norm(self.alpha, Wt), jnp.zeros(Wt.shape[1:], Wt.dtype)


class L1Inf(RowNormPenalty, leaves=("alpha",)):
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
    _absolute = True
    alpha: jax.Array

    def __init__(self, alpha: ArrayLike):
        self._set(alpha=as_strength("alpha", alpha))

    def _norms(self, Wt: jax.Array) -> jax.Array:
        return jnp.max(jnp.abs(Wt), axis=0)

    def _dual_norms(self, Zt: jax.Array) -> jax.Array:
        return jnp.sum(jnp.abs(Zt), axis=0)

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        return prox.linf_columns(Vt, scaling * self._strength(Vt))
