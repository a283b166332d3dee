"""Poisson regression, for counts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import xlogy

from sparsejax._core.checks import is_traced
from sparsejax._core.matrices.sharded import answer_of, first_of
from sparsejax.losses._entropy import at_most_half, relative_entropy
from sparsejax.losses._linear_model import LinearModelLoss


class PoissonLoss(LinearModelLoss):
    r"""Poisson regression with the exponential link, ``scale * sum_ij weights_ij [e^h_ij - y_ij h_ij]``.

    ``H = XW + b``: minus the log-likelihood of counts y with the means ``e^h``, without the term ``log y!``,
    so that values may be negative. For an exposure t (an offset log t) use ``Y/t`` with ``weights`` t.

    The second derivative ``e^h`` has no bound, so the loss has no ``majorizer``: `sparsejax.fista` finds its
    steps by backtracking.

    Args:
      X: (n, d), as for `SquaredLoss`.
      Y: (n, k) or (n,), every entry >= 0, whole or not.
      scale: > 0, shape (); default ``1/n``.
      weights: None, (n,) by row, or Y's shape by entry, >= 0.
      intercept: fit an unpenalised b, ``log(sum_i w_i y_i / sum_i w_i e^(x_i W))`` for each column. Under
        jit, as in a fold, a column of zeros gets an intercept at which every ``e^h`` underflows to 0.

    Raises:
      TypeError, ValueError: as `SquaredLoss`; a negative count; with ``intercept``, a column of Y that is 0
        in all its entries of weight > 0, whose best intercept is minus infinity.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> loss = sj.losses.PoissonLoss(jnp.eye(3), jnp.array([1.0, 2.0, 6.0]), intercept=True)
    >>> round(float(jnp.exp(loss.intercept(jnp.zeros(3)))), 6)
    3.0
    """

    @property
    def reach(self) -> float:
        """2 - log of the least positive number of the dtype: e^h is 0 for every h below -``reach``."""
        return 2 - float(np.log(np.finfo(self.dtype).smallest_subnormal))

    def check_targets(self) -> None:
        """Raise for a negative count; with an intercept also for a column of zeros where weights are > 0."""
        if is_traced(self.Y):
            return
        where, value = answer_of(_first_negative, self.Y)
        if value < 0:
            at = (int(where[0]), *(int(i) for i in np.unravel_index(where[1], self.Y.shape[1:])))
            raise ValueError(f"Y holds counts, which must be >= 0; it has {value:g} at {at}.")
        if not self.has_intercept or is_traced(self.weights):
            return
        silent = answer_of(_silent_columns, self.Y, self._weights())
        if silent.any():
            among = "" if self.weights is None else " in its rows of weight > 0"
            raise ValueError(
                f"column {np.argmax(silent)} of Y has nothing but zeros{among}, so its best intercept is "
                "minus infinity: drop it, or use intercept=False."
            )

    def entries(self, H: jax.Array) -> jax.Array:
        """e^h - y h."""
        return jnp.exp(H) - self.Y * H

    def mean(self, H: jax.Array) -> jax.Array:
        """e^h."""
        return jnp.exp(H)

    def lower_bound(self) -> jax.Array:
        """The value at ``e^h = y``, scale * sum_ij weights_ij (y_ij - y_ij log y_ij)."""
        y = lax.stop_gradient(self.Y)
        return self.scale * jnp.sum(self._weights() * (y - xlogy(y, y)))

    def derivatives(self, H: jax.Array) -> tuple[jax.Array, jax.Array]:
        """e^h - y and e^h."""
        mean = jnp.exp(H)
        return mean - self.Y, mean

    def divergence(self, H: jax.Array, first: jax.Array, change: jax.Array) -> jax.Array:
        """The Kullback-Leibler divergence of the mean ``e^h + change`` from ``e^h``, of Poisson's law."""
        return relative_entropy(H, change)

    def _predict(self, W: jax.Array) -> jax.Array:
        return self._weighted(super()._predict(W))

    def _value(self, H: jax.Array) -> jax.Array:
        return super()._value(self._weighted(H))

    def _weighted(self, H: jax.Array) -> jax.Array:
        """H, cut where the weight is 0: the product of weight 0 and an infinite e^h would be NaN."""
        return H if self.weights is None else jnp.where(self._weights() > 0, H, at_most_half(H))

    def _best_intercept(self, H: jax.Array) -> jax.Array:
        # b = log(sum_i w_i y_i) - log(sum_i w_i e^h_i) for each column.
        w = jnp.broadcast_to(self._weights(), H.shape)
        on = w > 0
        # The largest prediction is taken out before the exponentials, so that none overflows.
        top = jnp.max(jnp.where(on, H, -jnp.inf), axis=0, keepdims=True)
        top = lax.stop_gradient(jnp.where(top > -jnp.inf, top, 0))
        total = jnp.sum(w * jnp.exp(at_most_half(H - top)), axis=0, keepdims=True)
        counts = jnp.sum(w * self.Y, axis=0, keepdims=True)
        known = counts > 0
        best = jnp.log(jnp.where(known, counts, 1)) - jnp.log(jnp.where(known, total, 1)) - top
        # Without counts e^(h + b) underflows to 0 in all rows of weight > 0; without such rows b is 0.
        return jnp.where(known, best, jnp.where(total > 0, -top - self.reach, 0))


def _first_negative(xp: Any, y: Any) -> tuple[Any, Any]:
    """The place and the value of the first negative count; if there is none, of the first count."""
    where = first_of(xp, y < 0)
    return where, y.reshape(y.shape[0], -1)[where]


def _silent_columns(xp: Any, y: Any, weights: Any) -> Any:
    """(k,) boolean: the columns with weights > 0 whose counts there are all 0."""
    on = xp.broadcast_to(weights > 0, y.shape)
    return xp.atleast_1d(on.any(axis=0) & ~(on & (y > 0)).any(axis=0))
