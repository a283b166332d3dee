"""The sorted l1 norm, SLOPE: the larger a coefficient, the larger its strength."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import ndtri
from jax.typing import ArrayLike

from sparsejax import prox
from sparsejax._core.checks import as_float, as_int, as_strength, is_traced
from sparsejax._core.linalg import columns, safe_divide, safe_norm
from sparsejax.penalties._base import Penalty
from sparsejax.penalties._transposed import TransposedPenalty, cast


class SortedL1(TransposedPenalty, leaves=("strength",)):
    r"""SLOPE: the largest strength for the largest row norm.

    .. math:: g(W) = \sum_i \text{strengths}_i\, \|w\|_{(i)}, \qquad \|w\|_{(1)} \ge \|w\|_{(2)} \ge \dots

    The first strength multiplies the largest norm. Rows with nearly equal effects get the same norm. With
    `slope_strengths` and orthogonal features the expected share of false discoveries is bounded, see there.
    For a vector W the norms are magnitudes; for a matrix the penalty is group SLOPE. With equal strengths the
    penalty is `L1`, or `L21` for a matrix. Solutions are differentiated through the prox: rows of equal norm
    keep equal norms.

    Args:
      strengths: (d,), >= 0, none larger than the one before.

    Raises:
      TypeError, ValueError: not real, not finite, negative, increasing, not one for each of the d rows.
        Under jit increasing strengths give NaN and the status that the data are not finite.
    Source: Bogdan, van den Berg, Sabatti, Su & Candes, Annals of Applied Statistics 9(3), 2015; of groups:
      Brzyski, Gossmann, Su & Bogdan, J. American Statistical Association 114, 2019.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> penalty = sj.penalties.SortedL1(jnp.array([2.0, 1.0, 0.5]))
    >>> W = jnp.array([0.5, 3.0, -2.75])
    >>> float(penalty.value(W))
    9.0
    >>> print(penalty.prox(W))
    [ 0.     1.375 -1.375]
    """

    strengths = ("strength",)
    degrees = (1,)
    _absolute = True
    strength: jax.Array

    def __init__(self, strengths: ArrayLike):
        strength = as_strength("strengths", strengths)
        if strength.ndim != 1:
            raise ValueError(f"strengths must be one value a row, (d,), got shape {strength.shape}.")
        if not is_traced(strength) and (np.diff(np.asarray(strength)) > 0).any():
            raise ValueError(
                "strengths must not increase: the first strength is for the largest row, got "
                f"{np.asarray(strength)}."
            )
        self._set(strength=strength)

    def check(self, params_shape: tuple[int, ...]) -> None:
        """Raise if there is not one strength for each of the d rows."""
        if jnp.shape(self.strength)[-1:] != params_shape[:1]:
            raise ValueError(
                f"SortedL1: strengths has shape {jnp.shape(self.strength)}; it must be one value a row, "
                f"({params_shape[0]},)."
            )

    def dual_norm(self, Z: jax.Array) -> jax.Array:
        """The smallest factor of the strengths at which 0 is the prox of Z, shape ()."""
        return jnp.max(_ratios(*self._sums(columns(Z))))

    def row_slopes(self, Z: jax.Array, W: jax.Array | None = None) -> jax.Array:
        """(d,), at most 1 for zero rows of W that stay 0, where Z is minus the gradient; W None means W = 0.

        The nonzero rows use the first strengths. The zero rows are sorted by the norm of Z and get the other
        strengths in this order. The slope of a row is the largest ratio of a sum of leading norms to the sum
        of their strengths, over the sums that contain the row.
        """
        Zt = columns(Z)
        on = jnp.zeros(Zt.shape[1:], bool) if W is None else jnp.any(columns(W) != 0, axis=0)
        norms = jnp.where(on, jnp.inf, safe_norm(Zt))
        order = prox.falling_order(norms)
        counts = ~on[order]
        leading = jnp.cumsum(jnp.where(counts, norms[order], 0))
        strengths = jnp.cumsum(jnp.where(counts, cast(self.strength, Zt), 0))
        return jnp.zeros_like(norms).at[order].set(lax.cummax(_ratios(leading, strengths), reverse=True))

    def rows_at(self, ix: jax.Array) -> Penalty:
        """The penalty on these rows if all other rows are 0: it has the first strengths."""
        return self._replace(strength=self.strength[: ix.shape[0]])

    def _sums(self, Zt: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(d,) each, the sums of the 1, ..., d largest norms, and of as many strengths."""
        return jnp.cumsum(_falling(Zt)), jnp.cumsum(cast(self.strength, Zt))

    def _value(self, Wt: jax.Array) -> jax.Array:
        s = cast(self.strength, Wt)
        return jnp.sum(_checked(s) * _falling(Wt))

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        norms = safe_norm(Vt)
        strengths = scaling * _checked(cast(self.strength, Vt))
        shrunk = prox.sorted_magnitudes(norms, strengths)
        # At strengths of 0 the prox is the identity. Zero rows get Vt; others keep a derivative in strengths.
        same = (strengths[0] == 0) & (norms == 0)
        return jnp.where(same[None], Vt, Vt * safe_divide(shrunk, norms)[None])

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        norms, strengths = self._sums(Zt)
        return jnp.min(safe_divide(strengths, norms, jnp.inf))

    def _penalised(self, Wt: jax.Array) -> jax.Array:
        """All rows, unless the largest strength is 0."""
        return jnp.broadcast_to(cast(self.strength, Wt)[0] > 0, Wt.shape[1:])


def _checked(strengths: jax.Array) -> jax.Array:
    """The strengths, (d,); NaN if one is larger than the one before, where the penalty is not convex."""
    return jnp.where(jnp.all(strengths[1:] <= strengths[:-1]), strengths, jnp.nan)


def _falling(Wt: jax.Array) -> jax.Array:
    """The norms of the rows of W, (d,), from the largest to the least."""
    norms = safe_norm(Wt)
    return norms[prox.falling_order(norms)]


def _ratios(norms: jax.Array, strengths: jax.Array) -> jax.Array:
    return safe_divide(norms, strengths, jnp.where(norms > 0, jnp.inf, 0))


def slope_strengths(d: int, q: ArrayLike) -> jax.Array:
    r"""Strengths of `SortedL1`, :math:`\Phi^{-1}(1 - iq/(2d))` for i = 1, ..., d: Benjamini and Hochberg's.

    With an orthonormal X (n, d), noise of variance 1 and the loss :math:`\tfrac12\|Xw - y\|^2` the expected
    share of false discoveries is at most q. For another noise or loss multiply the penalty by a number t:
    ``t * SortedL1(slope_strengths(d, q))``.

    Args:
      d: number of features.
      q: bound of the expected share, in (0, 1), shape ().

    Returns:
      Shape (d,), positive, none larger than the one before; in the dtype of q, or in the default float.

    Raises:
      TypeError, ValueError: d is not a positive integer; q is not a number in (0, 1), or so small that q/(2d)
        is not a normal number.
    Source: Bogdan et al., Annals of Applied Statistics 9(3), 2015, Eq. (1.10).

    >>> import sparsejax as sj
    >>> print(sj.penalties.slope_strengths(3, 0.3).round(2))
    [1.64 1.28 1.04]
    """
    d, share = as_int("d", d, 1), as_float("q", q, (0,))
    # If q/(2d) counted as 0, strengths would be infinite.
    if not is_traced(share) and not 2 * d * np.finfo(share.dtype).tiny <= np.asarray(share) < 1:
        raise ValueError(f"q must be in (0, 1), got {np.asarray(share):g}.")
    return -ndtri(share / (2 * d) * jnp.arange(1, d + 1, dtype=share.dtype))
