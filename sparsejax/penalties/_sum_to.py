"""The constraint that columns have a given sum: alone, with l1 (log-contrast lasso), or W >= 0 (simplex)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sparsejax import prox
from sparsejax._core.checks import as_float, is_traced
from sparsejax._core.linalg import columns, eps_of, like, safe_divide
from sparsejax.penalties._gauge import largest_ratio
from sparsejax.penalties._norms import L1, entrywise
from sparsejax.penalties._rules import feasible
from sparsejax.penalties._transposed import TransposedPenalty, cast

# Errors of the sum of a column, in units of eps times (the sum of its magnitudes + |total|): the largest that
# counts as feasible in the value, and the largest that `feasible` leaves as it is (without W >= 0).
MAX_ERROR_EPS, LEFT_ERROR_EPS = 1000, 8


class SumTo(TransposedPenalty, leaves=("total",)):
    r"""The constraint that each column of W sums to ``total``: 0 there, infinite elsewhere.

    ``SumTo + L1`` is the log-contrast lasso for compositional data: X holds the logarithms of parts of a
    whole, and with total 0 predictions do not depend on the size of the whole. ``SumTo + NonNegative`` is the
    simplex. Both sums have an exact prox and a gap. The constraint alone has a gap only where the gradient of
    the loss is constant in each column; elsewhere the residual decides on convergence. Solutions are
    differentiated through the prox.

    Args:
      total: shape (), any sign.

    Raises:
      TypeError, ValueError: not real, not finite, or not a scalar. In a sum with `Box` or `NonNegative`, when
        a problem is made: no column within the bounds has this sum.
    Source: Lin, Shi, Feng & Li, Biometrika 101(4), 2014.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> v, on = jnp.array([2.0, 1.0, -5.0]), sj.penalties.SumTo(1.0)
    >>> print(on.prox(v), (on + sj.penalties.NonNegative()).prox(v))
    [ 3.  2. -4.] [1. 0. 0.]
    """

    degrees = ()
    _offset = True
    total: jax.Array

    def __init__(self, total: ArrayLike = 0.0):
        self._set(total=as_float("total", total, (0,)))

    def _times(self, factor: jax.Array) -> "SumTo":
        return self

    def _value(self, Wt: jax.Array) -> jax.Array:
        return jnp.where(_sums_to(Wt, cast(self.total, Wt)), 0, jnp.inf).astype(Wt.dtype)

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        return _moved(_moved(Vt, cast(self.total, Vt)), cast(self.total, Vt))

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        apart = jnp.ptp(Zt, axis=1) > 32 * eps_of(Zt) * jnp.max(jnp.abs(Zt), axis=1)
        return jnp.where(jnp.any(apart), 0, jnp.inf).astype(Zt.dtype)

    def _conjugate(self, Zt: jax.Array) -> jax.Array:
        return cast(self.total, Zt) * jnp.sum(jnp.mean(Zt, axis=1))

    def _join(self, others: list[Any], positive: bool) -> tuple[Any, list[Any], bool]:
        """Join all `L1`, and W >= 0 if ``positive``, in an `OnASum`."""
        entries = [other for other in others if type(other) is L1]
        if not entries and not positive:
            return self, others, positive
        rest = [other for other in others if type(other) is not L1]
        return OnASum(tuple(entries), self.total, positive), rest, False

    def fits(self, low: jax.Array, high: jax.Array, d: int) -> None:
        """Raise if no column within these bounds sums to the total."""
        if any(map(is_traced, (low, high, self.total))):
            return
        total = float(np.asarray(self.total))
        least, most = (float(np.broadcast_to(np.asarray(bound, float), (d,)).sum()) for bound in (low, high))
        if not least <= total <= most:
            raise ValueError(
                f"SumTo: no column within the bounds sums to {total:g}: sums are {least:g} to {most:g}."
            )

    def _feasible(self, W: jax.Array) -> jax.Array:
        """A point near W whose columns have this sum. Zeros stay 0, except in a column of zeros only."""
        Wt = columns(W)
        moves = (Wt != 0) | ~jnp.any(Wt != 0, axis=1, keepdims=True)
        total = cast(self.total, Wt)
        moved = _moved(_moved(Wt, total, moves), total, moves)
        return like(jnp.where(_sums_to(Wt, total, LEFT_ERROR_EPS), Wt, moved), W)

    def _covers(self, Wt: jax.Array) -> jax.Array:
        """No row: the columns of subgradients are constant, so that none is nonzero in one row alone."""
        return jnp.zeros(Wt.shape[1:], bool)

    def _cleared(self, Z: jax.Array) -> jax.Array:
        """Each column of Z replaced by its mean: the columns of subgradients are constant."""
        return jnp.broadcast_to(jnp.mean(Z, axis=0, keepdims=True), Z.shape)

    def _in_units(self, sigma: jax.Array, gamma: jax.Array) -> "SumTo":
        """The constraint for V = W / sigma: the total is divided by sigma."""
        return self._replace(total=jnp.asarray(self.total, sigma.dtype) / sigma)


class OnASum(TransposedPenalty, leaves=("entries", "total"), static=("positive",)):
    r"""The sum of `SumTo`, of any number of `L1`, and of W >= 0 if ``positive``."""

    _offset = True
    entries: tuple[L1, ...]
    total: jax.Array
    positive: bool

    @property
    def finite_conjugate(self) -> bool:  # type: ignore[override]
        """Whether the conjugate is finite everywhere: with W >= 0 the set, a simplex, is bounded."""
        return self.positive

    def _value(self, Wt: jax.Array) -> jax.Array:
        inside = _sums_to(Wt, cast(self.total, Wt))
        if self.positive:
            inside &= jnp.all(Wt >= 0)
        return jnp.where(inside, jnp.sum(entrywise(self.entries, Wt) * jnp.abs(Wt)), jnp.inf)

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        total = cast(self.total, Vt)
        if self.positive:
            total = jnp.where(total >= 0, total, jnp.nan)  # no W >= 0 has a negative sum
        return prox.on_a_sum(Vt, scaling * entrywise(self.entries, Vt), total, self.positive)

    def _conjugate(self, Zt: jax.Array) -> jax.Array:
        r"""The sum over columns of total times :math:`\nu`, where :math:`|z_i - \nu| \le s_i` for all i.

        :math:`\nu` is the least such number if total >= 0, else the largest. With W >= 0 the condition is
        :math:`z_i - \nu \le s_i`.
        """
        strength, total = entrywise(self.entries, Zt), cast(self.total, Zt)
        least = jnp.sum(jnp.max(Zt - strength, axis=1))
        if self.positive:
            return jnp.where(total >= 0, total * least, jnp.nan)
        return total * jnp.where(total >= 0, least, jnp.sum(jnp.min(Zt + strength, axis=1)))

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        r"""1 over the largest :math:`(z_i - z_j)/(s_i + s_j)` in a column, by Dinkelbach's iteration."""
        if self.positive:
            return jnp.full((), jnp.inf, Zt.dtype)
        Zt = jnp.asarray(Zt)  # traced numbers index it, which an array of numpy refuses
        strength = jnp.broadcast_to(entrywise(self.entries, Zt), Zt.shape)
        rows = jnp.arange(Zt.shape[0])

        def better(t: jax.Array, Zt: jax.Array, strength: jax.Array) -> jax.Array:
            i, j = jnp.argmax(Zt - t * strength, axis=1), jnp.argmin(Zt + t * strength, axis=1)
            apart, room = Zt[rows, i] - Zt[rows, j], strength[rows, i] + strength[rows, j]
            return jnp.max(safe_divide(apart, room, jnp.where(apart > 0, jnp.inf, 0)))

        return safe_divide(1.0, largest_ratio(better, (Zt, strength), Zt.dtype), jnp.inf)

    def _feasible(self, W: jax.Array) -> jax.Array:
        """Same as for `SumTo`. With W >= 0: W on the simplex, else the nearest point with its zeros."""
        if not self.positive:
            return feasible(SumTo._replace(SumTo(), total=self.total), W)
        Wt, total = columns(W), cast(self.total, W)
        low = -2 * (jnp.max(jnp.abs(Wt)) + jnp.abs(total))
        moves = (Wt != 0) | ~jnp.any(Wt != 0, axis=1, keepdims=True)
        near = prox.on_a_sum(jnp.where(moves, Wt, low), jnp.zeros((1, 1), Wt.dtype), total, True)
        return like(jnp.where(jnp.isinf(self._value(Wt)), near, Wt), W)


def _moved(Vt: jax.Array, total: jax.Array, moves: jax.Array | bool = True) -> jax.Array:
    """V with the entries ``moves`` of each column moved by one number, so that the column sums to ``total``.

    The sum has an error of the order of eps times the entries of V: a second call brings the error down to
    that of the entries of the result, which can be much smaller.
    """
    moves = jnp.broadcast_to(moves, Vt.shape)
    rest = total - jnp.sum(Vt, axis=1, keepdims=True)
    return Vt + jnp.where(moves, rest / jnp.sum(moves.astype(Vt.dtype), axis=1, keepdims=True), 0)


def _sums_to(Wt: jax.Array, total: jax.Array, most: int = MAX_ERROR_EPS) -> jax.Array:
    """Whether all columns sum to ``total``, (), up to errors of ``most`` units as of `MAX_ERROR_EPS`."""
    room = most * eps_of(Wt) * (jnp.sum(jnp.abs(Wt), axis=1) + jnp.abs(total))
    return jnp.all(jnp.abs(jnp.sum(Wt, axis=1) - total) <= room)
