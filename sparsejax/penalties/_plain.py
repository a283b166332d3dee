"""Wraps a user's pytree that has ``value`` and ``prox`` but does not inherit from `Penalty`."""

from typing import Any, ClassVar

import jax
from jax.typing import ArrayLike

from sparsejax._core.checks import check_registered
from sparsejax.penalties._base import Penalty

PLAIN_GROUPS = ("dual", "support")  # the groups that a class which does not inherit from `Penalty` may define


class PlainPenalty(Penalty, leaves=("penalty",)):
    """A pytree ``penalty`` as a `Penalty`, with the groups of `PLAIN_GROUPS` that ``penalty`` defines."""

    _self_contained: ClassVar[bool] = False
    penalty: Any

    @property
    def provides(self) -> frozenset[str]:
        return frozenset(group for group in PLAIN_GROUPS if _states(self.penalty, group))

    @property
    def finite_conjugate(self) -> bool:  # type: ignore[override]  # a class attribute of the base
        return bool(self.penalty.finite_conjugate)

    def value(self, W: Any) -> jax.Array:
        return self.penalty.value(W)

    def prox(self, V: Any, scaling: ArrayLike = 1.0) -> Any:
        return self.penalty.prox(V, scaling)

    def conjugate(self, Z: jax.Array, aux: Any = None) -> jax.Array:
        return self.penalty.conjugate(Z, aux)

    def dual_scale(self, Z: jax.Array) -> jax.Array:
        return self.penalty.dual_scale(Z)

    def smooth_where(self, W: Any) -> Any:
        return self.penalty.smooth_where(W)


def is_penalty(x: Any) -> bool:
    """Whether x is a `Penalty`, or another instance with the methods value and prox."""
    if isinstance(x, type):
        return False
    return isinstance(x, Penalty) or all(callable(getattr(x, name, None)) for name in ("value", "prox"))


def as_penalty(x: Any) -> Penalty:
    """A `Penalty` as it is; another pytree with ``value`` and ``prox`` wrapped in `PlainPenalty`.

    Raises:
      TypeError: x is a class, has no value or no prox, is not registered with JAX, or defines only a part of
        a group.
    """
    if isinstance(x, Penalty):
        check_registered("penalty", x, Penalty._page)
        return x
    if not is_penalty(x):
        missing = [name for name in ("value", "prox") if not callable(getattr(x, name, None))]
        what = "a class, not an instance" if isinstance(x, type) else f"without {' and '.join(missing)}"
        raise TypeError(f"penalty must have value(W) and prox(V, scaling), got {x!r}: {what}.")
    check_registered("penalty", x, Penalty._page)
    for group in PLAIN_GROUPS:
        _states(x, group)
    return PlainPenalty(x)


def _states(x: Any, group: str) -> bool:
    """Whether x defines the whole group; an error if it defines a part."""
    there = [name for name in Penalty._groups[group] if hasattr(x, name)]
    return Penalty._is_whole(group, there, type(x).__name__)
