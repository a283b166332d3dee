"""Wraps a user's penalty of W (d,) for a sum, whose terms compute with W (d, 1)."""

from typing import Any

import jax
from jax.typing import ArrayLike

from sparsejax.penalties._base import Penalty, RowNorm
from sparsejax.penalties._plain import PlainPenalty
from sparsejax.penalties._rules import feasible, in_units, known_class, rescaled


class OnVectors(Penalty, leaves=("penalty",)):
    """A user's penalty of W (d,), which takes and returns arrays (d, 1) too.

    Without the wrapper a user's strengths (d,) and W (d, 1) would broadcast to (d, d), and a sort along the
    last axis would do nothing.
    """

    strengths = ("penalty",)  # all strengths of the penalty that the attribute holds, see `split_strengths`
    penalty: Any

    @property
    def _self_contained(self) -> bool:  # type: ignore[override]
        return self.penalty._self_contained

    @property
    def provides(self) -> frozenset[str]:
        return self.penalty.provides

    @property
    def degrees(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.penalty.degrees

    @property
    def _valued(self) -> bool:  # type: ignore[override]
        return self.penalty._valued

    @property
    def finite_conjugate(self) -> bool:  # type: ignore[override]
        return self.penalty.finite_conjugate

    @property
    def terms(self) -> tuple[Any, ...]:
        return tuple(map(on_vectors, self.penalty.terms)) if len(self.penalty.terms) > 1 else (self,)

    @property
    def free(self) -> jax.Array:
        return self.penalty.free

    def __repr__(self) -> str:
        """The text of the user's penalty, for messages."""
        return repr(self.penalty)

    def check(self, params_shape: tuple[int, ...]) -> None:
        self.penalty.check(params_shape[:1])

    def value(self, W: jax.Array) -> jax.Array:
        return self.penalty.value(_vector(W))

    def prox(self, V: jax.Array, scaling: ArrayLike = 1.0) -> jax.Array:
        return self.penalty.prox(_vector(V), scaling).reshape(V.shape)

    def conjugate(self, Z: jax.Array, aux: Any = None) -> jax.Array:
        # A user's conjugate may take Z alone.
        return self.penalty.conjugate(_vector(Z), *(() if aux is None else (jax.tree.map(_vector, aux),)))

    def dual_scale(self, Z: jax.Array) -> jax.Array:
        return self.penalty.dual_scale(_vector(Z))

    def dual_norm(self, Z: jax.Array) -> jax.Array:
        return self.penalty.dual_norm(_vector(Z))

    def smooth_where(self, W: jax.Array) -> jax.Array:
        return self.penalty.smooth_where(_vector(W)).reshape(W.shape)

    def row_norm(self, params_shape: tuple[int, ...]) -> RowNorm | None:
        return self.penalty.row_norm(params_shape[:1])

    def row_slopes(self, Z: jax.Array, W: jax.Array | None = None) -> jax.Array:
        return self.penalty.row_slopes(_vector(Z), None if W is None else _vector(W))

    def rows_at(self, ix: jax.Array) -> "OnVectors":
        return OnVectors(self.penalty.rows_at(ix))

    def _times(self, factor: jax.Array) -> "OnVectors":
        return OnVectors(self.penalty * factor)

    def _in_units(self, sigma: jax.Array, gamma: jax.Array) -> "OnVectors":
        return OnVectors(in_units(self.penalty, sigma, gamma))

    def _rescaled(self, units: jax.Array) -> "OnVectors":
        return OnVectors(rescaled(self.penalty, units))

    def _feasible(self, W: jax.Array) -> jax.Array:
        return feasible(self.penalty, _vector(W)).reshape(W.shape)


def on_vectors(penalty: Any) -> Any:
    """A penalty whose value or prox a user has written, as `OnVectors`; any other penalty as it is."""
    users: bool = known_class(penalty.__class__) in {Penalty, PlainPenalty}
    return OnVectors(penalty) if users else penalty


def _vector(W: jax.Array) -> jax.Array:
    return W.reshape(-1)
