"""Total variation along the rows, alone and with l1 (fused lasso)."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax import prox
from sparsejax._core.checks import as_strength
from sparsejax._core.linalg import eps_of, safe_divide
from sparsejax.penalties._gauge import largest_ratio
from sparsejax.penalties._norms import L1
from sparsejax.penalties._transposed import TransposedPenalty, cast


class TotalVariation(TransposedPenalty, leaves=("strength",)):
    r"""Total variation of each column: neighbouring rows become equal.

    .. math:: g(W) = \text{strength} \sum_i \|w_{i+1} - w_i\|_1

    Each column of the answer is piecewise constant. g is 0 for constant columns; `sparsejax.lambda_max` is
    the least strength at which every column of the answer is constant. The sum with an `L1` of one number is
    the fused lasso; its prox is exact too. Derivatives of solutions keep the pieces as they are.

    Args:
      strength: >= 0, shape ().

    Raises:
      TypeError, ValueError: not real, not finite, negative, not a scalar.
    Source: Tibshirani, Saunders, Rosset, Zhu & Knight, J. Royal Statistical Society B 67(1), 2005.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> penalty = sj.penalties.TotalVariation(1.0)
    >>> w = jnp.array([1.0, 2.0, 9.0, 9.0])
    >>> float(penalty.value(w))
    8.0
    >>> print(penalty.prox(w), (penalty + sj.penalties.L1(2.5)).prox(w))
    [2.  2.  8.5 8.5] [0. 0. 6. 6.]
    """

    strengths = ("strength",)
    degrees = (1,)
    strength: jax.Array

    def __init__(self, strength: ArrayLike):
        strength = as_strength("strength", strength)
        if strength.ndim:
            raise ValueError(f"strength of TotalVariation must be a number, got shape {strength.shape}.")
        self._set(strength=strength)

    def dual_norm(self, Z: jax.Array) -> jax.Array:
        """The largest absolute cumulative sum in a column of Z; inf if a column does not sum to 0."""
        return 1 / self._replace(strength=jnp.ones((), Z.dtype)).dual_scale(Z)

    def _value(self, Wt: jax.Array) -> jax.Array:
        return cast(self.strength, Wt) * jnp.sum(jnp.abs(jnp.diff(Wt, axis=1)))

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        t = scaling * cast(self.strength, Vt)
        if not Vt.size:  # `piecewise` needs an entry
            return Vt
        if Vt.shape[0] == 1:
            return prox.piecewise(Vt[0], t)[None]
        return jax.vmap(lambda v: prox.piecewise(v, t))(Vt)

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        """The largest s such that sZ is a subgradient of g at 0; 0 if a column of Z does not sum to 0.

        A sum of up to 32 eps times the sum of absolute values is rounding error and counts as 0.
        """
        total = jnp.sum(Zt, axis=1, keepdims=True)
        rounding = 32 * eps_of(Zt) * jnp.sum(jnp.abs(Zt), axis=1, keepdims=True)
        sums = jnp.cumsum(Zt - total / Zt.shape[1], axis=1)[:, :-1]
        scale = safe_divide(cast(self.strength, Zt), jnp.max(jnp.abs(sums), initial=0), jnp.inf)
        return jnp.where(jnp.any(jnp.abs(total) > rounding), 0, scale)

    def _join(self, others: list[Any], positive: bool) -> tuple[Any, list[Any], bool]:
        """A `FusedLasso` of this and all `L1` of one number, the other penalties, and ``positive``."""
        joined = [o for o in others if type(o) is L1 and jnp.ndim(o.strength) == 0]
        if not joined:
            return self, others, positive
        return FusedLasso(self, tuple(joined)), [o for o in others if o not in joined], positive

    def _covers(self, Wt: jax.Array) -> jax.Array:
        """No row: subgradients sum to 0, so that none is nonzero in one row alone."""
        return jnp.zeros(Wt.shape[1:], bool)

    def _penalised(self, Wt: jax.Array) -> jax.Array:
        """All rows, unless the strength is 0."""
        return jnp.broadcast_to(cast(self.strength, Wt) > 0, Wt.shape[1:])

    def _cleared(self, Z: jax.Array) -> jax.Array:
        """Z minus the mean of each column: subgradients sum to 0."""
        return Z - jnp.mean(Z, axis=0, keepdims=True)

    def _unpenalised(self, d: int, dtype: Any) -> jax.Array:
        """(d, 1), of norm 1: g does not change along constant columns."""
        return jnp.full((d, 1), d**-0.5, dtype)


class FusedLasso(TransposedPenalty, leaves=("variation", "l1_terms")):
    r"""`TotalVariation` plus `L1` of one number.

    The prox is soft thresholding of the prox of the total variation. Soft thresholding keeps the order of
    neighbours: a subgradient of the total variation before it is a subgradient after it, too.

    Source: Friedman, Hastie, Hoefling & Tibshirani, Annals of Applied Statistics 1(2), 2007.
    """

    variation: TotalVariation
    l1_terms: tuple[L1, ...]

    def _l1_strength(self, Wt: jax.Array) -> jax.Array:
        return sum((cast(term.strength, Wt) for term in self.l1_terms), start=jnp.zeros((), Wt.dtype))

    def _value(self, Wt: jax.Array) -> jax.Array:
        return self.variation._value(Wt) + self._l1_strength(Wt) * jnp.sum(jnp.abs(Wt))

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        return prox.soft_threshold(self.variation._prox(Vt, scaling), scaling * self._l1_strength(Vt))

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        r"""The least :math:`g(w) / |\langle z, w\rangle|` over all w and all columns z of Z.

        A w that is 1 on an interval of rows and 0 elsewhere attains the least ratio. For m rows its g(w) is m
        times the l1 strength, plus the variation strength for each end of the interval that is not an end of
        the column. Dinkelbach's iteration maximises the inverse, <z, w> / g(w), over z and -z in steps of
        O(d).
        """
        l1, variation = self._l1_strength(Zt), cast(self.variation.strength, Zt)
        both = jnp.concatenate([Zt, -Zt])
        largest = jnp.max(jax.vmap(lambda z: _largest_of_intervals(z, l1, variation))(both))
        return safe_divide(1.0, largest, jnp.inf)


def _largest_of_intervals(z: jax.Array, l1: jax.Array, variation: jax.Array) -> jax.Array:
    """(), the largest ratio, over intervals, of the sum of z to g of the interval. z is (d,)."""
    # An interval is the rows from start to end - 1, both from 0 to d. An end within the column has a cost.
    place = jnp.arange(z.shape[0] + 1)
    end_cost = jnp.where((place > 0) & (place < z.shape[0]), variation, 0)
    sums, counts = jnp.concatenate([jnp.zeros(1, z.dtype), jnp.cumsum(z)]), place.astype(z.dtype)

    def better(t: jax.Array, sums: jax.Array, l1: jax.Array, end_cost: jax.Array) -> jax.Array:
        """The ratio of the interval with the largest ``gain - t * cost``: above t, or t is the largest.

        The last three are arguments, since `largest_ratio` takes the derivative in them.
        """
        excess = sums - t * l1 * counts
        starts = -excess - t * end_cost  # by place: what an interval that starts there gains
        best_before = lax.cummax(starts)
        end = jnp.argmax(excess[1:] - t * end_cost[1:] + best_before[:-1]) + 1
        start = jnp.argmax(jnp.where(place < end, starts, -jnp.inf))
        gain = sums[end] - sums[start]
        cost = l1 * (counts[end] - counts[start]) + end_cost[end] + end_cost[start]
        return safe_divide(gain, cost, jnp.where(gain > 0, jnp.inf, 0))

    return largest_ratio(better, (sums, l1, end_cost), z.dtype)
