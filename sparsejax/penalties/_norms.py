"""Norms of the rows: l1, l2 and l-infinity."""

from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax import prox
from sparsejax._core.checks import as_strength
from sparsejax._core.linalg import columns, like, safe_divide, safe_norm
from sparsejax.penalties._base import Penalty, RowNorm
from sparsejax.penalties._rules import is_a
from sparsejax.penalties._transposed import (
    SmoothRowPenalty,
    SparseRowPenalty,
    cast,
    least_ratio,
    over_norm,
    slope_ratio,
)


class RowNormPenalty(SparseRowPenalty):
    r"""``g(W) = sum_i alpha_i ||w_i||``; a subclass gives the norm and the dual norm of each row."""

    _adapter: ClassVar[bool] = True
    strengths = ("alpha",)
    degrees = (1,)
    alpha: jax.Array

    def __init__(self, alpha: ArrayLike):
        self._set(alpha=as_strength("alpha", alpha))

    def dual_norm(self, Z: jax.Array) -> jax.Array:
        """The largest dual norm of a row of Z, shape ()."""
        return jnp.max(self._dual_norms(columns(Z)))

    def _norms(self, Wt: jax.Array) -> jax.Array:
        raise NotImplementedError

    def _dual_norms(self, Zt: jax.Array) -> jax.Array:
        raise NotImplementedError

    def _value(self, Wt: jax.Array) -> jax.Array:
        return jnp.sum(cast(self.alpha, Wt) * self._norms(Wt))

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        return least_ratio(cast(self.alpha, Zt), self._dual_norms(Zt))

    def _slopes(self, Zt: jax.Array) -> jax.Array:
        return slope_ratio(self._dual_norms(Zt), cast(self.alpha, Zt))


class L1(SmoothRowPenalty, SparseRowPenalty, leaves=("strength",)):
    r"""Lasso: entries become exactly zero.

    .. math:: g(W) = \sum_{ij} \text{strength}_{ij}\, |w_{ij}|

    Args:
      strength: >= 0, shape () or (d,), one a row; for a W of (d, k) also (d, k), or one a column, (k,), where
        k > 1 and d != k. For strengths by column or entry `sparsejax.lambda_max` returns the smallest factor
        of these strengths at which W = 0 is optimal.

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
    _absolute = True
    strength: jax.Array

    def __init__(self, strength: ArrayLike):
        self._set(strength=as_strength("strength", strength, (0, 1, 2)))

    def check(self, params_shape: tuple[int, ...]) -> None:
        """Raise if the strengths are neither a number nor one for each row, column or entry."""
        shape, (d, *columns_of) = jnp.shape(self.strength), params_shape
        allowed = [(), (d,), *([(d, *columns_of)] if columns_of else [])]
        same = columns_of == [d]
        if columns_of and columns_of[0] > 1 and not same:
            allowed.append((columns_of[0],))
        if shape not in allowed:
            raise ValueError(
                f"L1: strength has shape {shape}; for a W of {params_shape} it must be a scalar or one value "
                f"a row, column or entry: {', '.join(map(str, allowed))}{f'; ({d},) is by row' * same}."
            )

    def row_norm(self, params_shape: tuple[int, ...]) -> RowNorm | None:
        """The `RowNorm` of the strengths if W has one column, where |w_i| is a norm of row i; else None."""
        if len(params_shape) > 1 and params_shape[1] > 1:
            return None
        return RowNorm(self.strength if jnp.ndim(self.strength) < 2 else self.strength[..., 0])

    def dual_norm(self, Z: jax.Array) -> jax.Array:
        """The largest absolute entry of Z, shape ().

        For strengths by column or entry, the smallest factor of these strengths at which 0 is the prox of Z.
        """
        if jnp.shape(self.strength) in ((), columns(Z).shape[1:]):
            return jnp.max(jnp.abs(Z))
        return safe_divide(1.0, self.dual_scale(Z), jnp.inf)

    def smooth_where(self, W: jax.Array) -> jax.Array:
        """The entries that are not 0 or have no strength, boolean, shape of W."""
        Wt = columns(W)
        return like((Wt != 0) | (self.entrywise(Wt) == 0), W)

    def rows_at(self, ix: jax.Array) -> Penalty:
        """The penalty of a W with these rows only. Strengths by column must be (1, k), see `by_entry`."""
        if jnp.ndim(self.strength) < 2:
            return super().rows_at(ix)
        if self.strength.shape[0] == 1:
            return self
        return self._replace(strength=jnp.take(self.strength, ix, axis=0, mode="fill", fill_value=1))

    def entrywise(self, Wt: jax.Array) -> jax.Array:
        """The strength of each entry of W', (1, 1), (1, d), (k, 1) or (k, d)."""
        strength = cast(self.strength, Wt)
        if strength.ndim == 2:
            return strength.T
        return strength[:, None] if strength.shape not in ((), Wt.shape[1:]) else strength.reshape(1, -1)

    def _value(self, Wt: jax.Array) -> jax.Array:
        return jnp.sum(self.entrywise(Wt) * jnp.abs(Wt))

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        return jnp.min(safe_divide(self.entrywise(Zt), jnp.abs(Zt), jnp.inf))

    def _slopes(self, Zt: jax.Array) -> jax.Array:
        strength = jnp.broadcast_to(self.entrywise(Zt), Zt.shape)
        return jnp.max(slope_ratio(jnp.abs(Zt), strength), axis=0)

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        return prox.soft_threshold(Vt, scaling * self.entrywise(Vt))

    def _by_row(self, factor: jax.Array) -> "L1":
        strength = jnp.asarray(self.strength)
        if strength.ndim == 1 and strength.shape != factor.shape:
            strength = strength[None]
        return self._replace(strength=strength * (factor[:, None] if strength.ndim == 2 else factor))

    def curvature(self, Wt: jax.Array) -> tuple[jax.Array, jax.Array]:
        zero = jnp.zeros(Wt.shape[1:], Wt.dtype)
        return zero, zero

    def _rescaled(self, units: jax.Array) -> "L1":
        return self._by_row(1 / units)

    def _penalised(self, Wt: jax.Array) -> jax.Array:
        """The rows, or for strengths by column or entry the entries, with a strength that is not 0."""
        strength = self.entrywise(Wt)
        if strength.shape[0] == 1:
            return jnp.broadcast_to(strength[0] > 0, Wt.shape[1:])
        return jnp.broadcast_to(strength > 0, Wt.shape)

    def _by_entry(self, params_shape: tuple[int, ...]) -> "L1":
        strength = jnp.asarray(self.strength)
        by_column = strength.ndim == 1 and strength.shape == params_shape[1:] != params_shape[:1]
        return self._replace(strength=strength[None]) if by_column else self


def entrywise(parts: Sequence[Any], Wt: jax.Array) -> jax.Array:
    """The sum of the strengths of the `L1` among the parts, of rank 2, broadcastable to Wt."""
    entries = [part.entrywise(Wt) for part in parts if is_a(part, L1)]
    return sum(entries, start=jnp.zeros((1, 1), Wt.dtype))


class L21(SmoothRowPenalty, RowNormPenalty, leaves=("alpha",)):
    r"""Row-sparse group lasso: a feature is kept or dropped for all columns.

    .. math:: g(W) = \sum_i \alpha_i \|w_i\|_2

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

    _absolute = True

    def row_norm(self, params_shape: tuple[int, ...]) -> RowNorm:
        """One norm for each row, without squares."""
        return RowNorm(self.alpha)

    def smooth_where(self, W: jax.Array) -> jax.Array:
        """The rows that are not 0 or have no strength, boolean, shape of W."""
        Wt = columns(W)
        rows = jnp.any(Wt != 0, axis=0) | (cast(self.alpha, Wt) == 0)
        return like(jnp.broadcast_to(rows, Wt.shape), W)

    def _norms(self, Wt: jax.Array) -> jax.Array:
        return safe_norm(Wt)

    def _dual_norms(self, Zt: jax.Array) -> jax.Array:
        return safe_norm(Zt)

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        return prox.l2_columns(Vt, scaling * cast(self.alpha, Vt))

    def curvature(self, Wt: jax.Array) -> tuple[jax.Array, jax.Array]:
        return over_norm(self.alpha, Wt), jnp.zeros(Wt.shape[1:], Wt.dtype)


class L1Inf(RowNormPenalty, leaves=("alpha",)):
    r"""Row-sparse group lasso by the largest entry.

    .. math:: g(W) = \sum_i \alpha_i \max_j |w_{ij}|

    Entries below the largest of their row cost nothing. Columns (classes) therefore share features, and the
    largest magnitudes of a row are mostly equal. Such entries change together, so that solutions are
    differentiated through the prox.

    Args:
      alpha: >= 0, shape () or (d,).

    Raises:
      TypeError, ValueError: not real, not finite, negative, of the wrong rank.
    Source: Quattoni, Carreras, Collins & Darrell, ICML 2009, as the constraint g(W) <= C.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> penalty = sj.penalties.L1Inf(1.0)
    >>> W = jnp.array([[3.0, -4.0], [0.5, 0.0]])
    >>> float(penalty.value(W))
    4.5
    >>> print(penalty.prox(W))
    [[ 3. -3.]
     [ 0.  0.]]
    """

    _absolute = True

    def _norms(self, Wt: jax.Array) -> jax.Array:
        return jnp.max(jnp.abs(Wt), axis=0)

    def _dual_norms(self, Zt: jax.Array) -> jax.Array:
        return jnp.sum(jnp.abs(Zt), axis=0)

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        return prox.linf_columns(Vt, scaling * cast(self.alpha, Vt))
