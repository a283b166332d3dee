"""Base class of penalties that are implemented on the transpose of W, on which solvers work."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax._core.checks import check_step
from sparsejax._core.linalg import columns, like, unit_of
from sparsejax.penalties._base import Penalty
from sparsejax.penalties._in_units import in_units


def checked(penalty: Penalty, W: jax.Array, name: str) -> jax.Array:
    """The transpose of W; an error if the penalty does not fit it, in which W has this name."""
    Wt = columns(W, name)
    try:
        penalty.check(W.shape)
    except ValueError as error:
        raise ValueError(f"{name} has shape {W.shape}. {error}") from None
    return Wt


class TransposedPenalty(Penalty):
    """Implements the protocol by hooks on ``Wt`` = W' (k, d), whose rows are the columns of W.

    A subclass defines ``_value``, ``_prox`` and ``_dual_scale``, and ``_conjugate`` if that is not 0. Unless
    it says more, derivatives of solutions are those of the prox.
    """

    _adapter: ClassVar[bool] = True
    finite_conjugate: bool = False

    def value(self, W: jax.Array) -> jax.Array:
        """g(W), shape ()."""
        return self._value(checked(self, W, "W"))

    def prox(self, V: jax.Array, scaling: ArrayLike = 1.0) -> jax.Array:
        """The exact proximal point of V at step size ``scaling``; shape and dtype of V."""
        Vt = checked(self, V, "V")
        check_step("scaling", scaling)
        scaling = jnp.asarray(scaling, V.dtype)
        if "units" not in self.provides or len(self.degrees) != len(self.strengths):
            return like(self._prox(Vt, scaling), V)
        unit, inverse = unit_of(V)  # in this unit squares of V neither overflow nor underflow
        scaled = in_units(self, unit, jnp.ones((), V.dtype))
        return unit * like(scaled._prox(columns(V * inverse), scaling), V)

    def conjugate(self, Z: jax.Array, aux: Any = None) -> jax.Array:
        """g*(Z), shape (), for Z with ``dual_scale(Z) >= 1``.

        The condition is not checked, since rounding can violate it. ``aux`` is a point at which Z is nearly a
        subgradient, or a split of Z; closed forms do not use it.
        """
        return self._conjugate(checked(self, Z, "Z"))

    def dual_scale(self, Z: jax.Array, aux: Any = None) -> jax.Array:
        """The largest s >= 0 such that ``conjugate(s * Z)`` is finite; inf if it is finite for all s."""
        return self._dual_scale(checked(self, Z, "Z"))

    # ------------------------------------------------------------------ the hooks

    def _value(self, Wt: jax.Array) -> jax.Array:
        raise NotImplementedError

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        raise NotImplementedError

    def _conjugate(self, Zt: jax.Array) -> jax.Array:
        return jnp.zeros((), Zt.dtype)

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        raise NotImplementedError
