"""Ridge and the constraints W >= 0 and low <= W <= high, which are mostly added to other penalties."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float, as_strength, check_array, check_step, is_traced
from sparsejax._core.linalg import like, safe_divide, safe_norm
from sparsejax.penalties._base import Penalty, RowNorm
from sparsejax.penalties._preconditioner import Map, times_root
from sparsejax.penalties._transposed import (
    SmoothRowPenalty,
    SparseRowPenalty,
    cast,
    check_by_row,
    checked,
    least_ratio,
    where_unsquared,
)


class SquaredL2(SmoothRowPenalty, SparseRowPenalty, leaves=("strength",)):
    r"""Ridge: rows shrink but do not become zero, unless the gradient of the loss is zero in the row.

    .. math:: g(W) = \sum_i \tfrac12\, \text{strength}_i\, \|w_i\|_2^2

    Args:
      strength: >= 0, shape () or (d,).

    Raises:
      TypeError, ValueError: not real, not finite, negative, of the wrong rank.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> print(sj.penalties.SquaredL2(1.0).prox(jnp.array([2.0, -4.0])))
    [ 1. -2.]
    """

    strengths = ("strength",)
    degrees = (2,)
    finite_conjugate = True
    strength: jax.Array

    def __init__(self, strength: ArrayLike):
        self._set(strength=as_strength("strength", strength))

    @property
    def provides(self) -> frozenset[str]:
        """All groups but "sparse rows", whose methods are defined here for use in sums only."""
        return self._given - {"sparse rows"}

    def smooth_where(self, W: jax.Array) -> jax.Array:
        """All entries, boolean, shape of W."""
        return jnp.ones(W.shape, bool)

    def _half_derivative(self, W: jax.Array, scaling: jax.Array) -> Map:
        """Exact: one factor for each row."""
        return times_root(jnp.broadcast_to(cast(self.strength, W), W.shape[:1])[None], scaling)

    def _value(self, Wt: jax.Array) -> jax.Array:
        return jnp.sum(cast(self.strength, Wt) / 2 * jnp.sum(Wt * Wt, axis=0))

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        shrink = 1 / (1 + scaling * jnp.broadcast_to(cast(self.strength, Vt), Vt.shape[1:]))
        return Vt * shrink[None]

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        return least_ratio(where_unsquared(self.strength, jnp.zeros((), Zt.dtype)), safe_norm(Zt))

    def _conjugate(self, Zt: jax.Array) -> jax.Array:
        return jnp.sum(safe_divide(jnp.sum(Zt * Zt, axis=0), 2 * cast(self.strength, Zt)))

    def _slopes(self, Zt: jax.Array) -> jax.Array:
        return jnp.where(safe_norm(Zt) > 0, jnp.inf, 0).astype(Zt.dtype)


class NonNegative(Penalty, leaves=()):
    """The constraint W >= 0: 0 inside, infinite outside.

    Alone the constraint has no duality gap, and the residual decides when to stop. Its sum with a norm or a
    squared penalty has a gap.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> print(sj.penalties.NonNegative().prox(jnp.array([2.0, -4.0])))
    [2. 0.]
    """

    degrees = ()

    def __init__(self) -> None:
        """The constraint has no parameters."""

    def value(self, W: jax.Array) -> jax.Array:
        """0, or inf if an entry is negative."""
        check_array(W)
        return jnp.where(jnp.all(W >= 0), 0, jnp.inf).astype(W.dtype)

    def prox(self, V: jax.Array, scaling: ArrayLike = 1.0) -> jax.Array:
        """max(V, 0)."""
        check_array(V, "V")
        check_step("scaling", scaling)
        return jnp.where(V <= 0, 0, V)

    def smooth_where(self, W: jax.Array) -> jax.Array:
        """The entries > 0, boolean."""
        return W > 0

    def row_norm(self, params_shape: tuple[int, ...]) -> RowNorm:
        """A norm of strength 0, with the constraint W >= 0."""
        return RowNorm(0.0, nonnegative=True)

    def _times(self, factor: jax.Array) -> "NonNegative":
        return self

    def _feasible(self, W: jax.Array) -> jax.Array:
        return self.prox(W)

    def _row_units(self, wanted: Callable[[], jax.Array]) -> jax.Array:
        """The units wanted: constraints accept any units."""
        return wanted()


class Box(Penalty, leaves=("low", "high")):
    r"""The constraint ``low_i <= w_ij <= high_i``: 0 inside, infinite outside.

    Solutions are differentiated through the prox, so that derivatives in the bounds are right too.

    Args:
      low, high: shape () or (d,), low <= high; -inf or inf where there is no bound.

    Raises:
      TypeError, ValueError: not real, NaN, of the wrong rank or of different lengths; low > high, low = inf
        or high = -inf.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> print(sj.penalties.Box(-1.0, 1.0).prox(jnp.array([2.0, -4.0])))
    [ 1. -1.]
    """

    degrees = ()
    finite_conjugate = True
    _offset = True
    low: jax.Array
    high: jax.Array

    def __init__(self, low: ArrayLike, high: ArrayLike):
        low, high = as_bound("low", low), as_bound("high", high)
        if not (is_traced(low) or is_traced(high)):
            try:
                crossed = np.asarray(low) > np.asarray(high)
            except ValueError:
                raise ValueError(f"low and high have shapes {low.shape} and {high.shape}.") from None
            if crossed.any():
                raise ValueError(f"low must be <= high, got {np.asarray(low)} and {np.asarray(high)}.")
            if (np.asarray(low) == np.inf).any() or (np.asarray(high) == -np.inf).any():
                raise ValueError("low must be < inf and high > -inf.")
        self._set(low=low, high=high)

    def check(self, params_shape: tuple[int, ...]) -> None:
        """Raise unless bounds by row have one value for each of the d rows."""
        check_by_row(self, ("low", "high"), params_shape[0])

    def value(self, W: jax.Array) -> jax.Array:
        """0, or inf if an entry is outside."""
        Wt = checked(self, W, "W")
        low, high = self.bounds(Wt)
        return jnp.where(jnp.all((Wt >= low) & (Wt <= high)), 0, jnp.inf).astype(W.dtype)

    def prox(self, V: jax.Array, scaling: ArrayLike = 1.0) -> jax.Array:
        """V, each entry moved to the nearest point of its interval."""
        Vt = checked(self, V, "V")
        check_step("scaling", scaling)
        low, high = self.bounds(Vt)
        return like(jnp.clip(Vt, low, high), V)

    def conjugate(self, Z: jax.Array, aux: Any = None) -> jax.Array:
        """sum_ij max(low_i z_ij, high_i z_ij), shape (), for Z with ``dual_scale(Z) > 0``.

        If the bound with the larger product is infinite, the other bound counts, or 0 if both are infinite:
        `dual_scale` is then 0, or z is 0.
        """
        Zt = checked(self, Z, "Z")
        low, high = self.bounds(Zt)
        best, other = jnp.where(Zt > 0, high, low), jnp.where(Zt > 0, low, high)
        best = jnp.where(jnp.isinf(best), jnp.where(jnp.isinf(other), 0, other), best)
        return jnp.sum(best * Zt)

    def dual_scale(self, Z: jax.Array) -> jax.Array:
        """0 if an entry of Z has the sign of an infinite bound, else inf; shape ()."""
        Zt = checked(self, Z, "Z")
        low, high = self.bounds(Zt)
        outside = ((Zt > 0) & (high == jnp.inf)) | ((Zt < 0) & (low == -jnp.inf))
        return jnp.where(jnp.any(outside), 0, jnp.inf).astype(Z.dtype)

    def _times(self, factor: jax.Array) -> "Box":
        return self

    def bounds(self, Wt: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Low and high, (1, d) each, in the dtype of Wt."""
        low, high = (jnp.broadcast_to(cast(bound, Wt), Wt.shape[1:])[None] for bound in (self.low, self.high))
        return low, high

    def _feasible(self, W: jax.Array) -> jax.Array:
        return self.prox(W)

    def _row_units(self, wanted: Callable[[], jax.Array]) -> jax.Array:
        """The units wanted: constraints accept any units."""
        return wanted()

    def _rescaled(self, units: jax.Array) -> "Box":
        """The bounds of V = W * units."""
        low, high = (jnp.asarray(bound, units.dtype) for bound in (self.low, self.high))
        return self._replace(low=low * units, high=high * units)

    def _in_units(self, sigma: jax.Array, gamma: jax.Array) -> "Box":
        """The bounds of V = W / sigma."""
        low, high = (jnp.asarray(bound, sigma.dtype) for bound in (self.low, self.high))
        return self._replace(low=low / sigma, high=high / sigma)


def as_bound(name: str, x: Any) -> jax.Array:
    """A bound of a `Box`, () or (d,), which may be infinite but not NaN; an error for anything else."""
    try:
        bound = as_float(name, x, (0, 1), finite=False)
    except TypeError as error:
        raise TypeError(f"{name} must be a real number or one a row: {error}") from None
    if not is_traced(bound) and np.isnan(np.asarray(bound)).any():
        raise ValueError(f"{name} must be a scalar or one value a row, without NaN, got {bound}.")
    return bound
