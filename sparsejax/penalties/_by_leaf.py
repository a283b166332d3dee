"""Penalties on pytrees of parameters."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax.penalties._base import Penalty
from sparsejax.penalties._plain import as_penalty, is_penalty
from sparsejax.penalties._rules import feasible


class ByLeaf(Penalty, leaves=("penalties",)):
    """The sum of a penalty for each chosen leaf of a pytree of parameters; other leaves are not penalised.

    Args:
      penalties: a pytree of the structure of the parameters, or of their upper levels, whose leaves are
        penalties or None, such as ``{"weight": L21(0.1), "bias": None}``.

    Raises:
      TypeError: a leaf is neither a penalty nor None.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> penalty = sj.penalties.ByLeaf({"kernel": sj.penalties.L1(1.0), "bias": None})
    >>> penalty.prox({"kernel": jnp.array([3.0, -0.5]), "bias": jnp.ones(1)})["kernel"].tolist()
    [2.0, -0.0]
    """

    strengths = ("penalties",)
    _self_contained: ClassVar[bool] = False
    penalties: Any

    def __init__(self, penalties: Any):
        for part in jax.tree.leaves(penalties, is_leaf=_is_part):
            if not _is_part(part):
                raise TypeError(f"penalties must hold penalties and None, got {part!r}.")
        wrap = lambda part: None if part is None else as_penalty(part)
        self._set(penalties=jax.tree.map(wrap, penalties, is_leaf=_is_part))

    @property
    def provides(self) -> frozenset[str]:
        """The group "support" if all penalties have it; no other group."""
        parts = [part for part in jax.tree.leaves(self.penalties, is_leaf=_is_part) if part is not None]
        known = all("support" in part.provides for part in parts)
        return frozenset({"support"} if known else ())

    @property
    def _valued(self) -> bool:  # type: ignore[override]
        parts = jax.tree.leaves(self.penalties, is_leaf=_is_part)
        return all(part._valued for part in parts if part is not None)

    def _pairs(self, W: Any) -> tuple[Any, list[tuple[Any, Any]]]:
        treedef: Any
        parts, treedef = jax.tree.flatten(self.penalties, is_leaf=_is_part)
        return treedef, list(zip(parts, treedef.flatten_up_to(W), strict=True))

    def value(self, W: Any) -> jax.Array:
        """The sum of the penalties, shape ()."""
        return sum(
            (part.value(w) for part, w in self._pairs(W)[1] if part is not None),
            start=jnp.zeros((), jax.tree.leaves(W)[0].dtype),
        )

    def prox(self, V: Any, scaling: ArrayLike = 1.0) -> Any:
        """The proximal point of each leaf; leaves without a penalty are returned unchanged."""
        treedef, pairs = self._pairs(V)
        return treedef.unflatten([v if part is None else part.prox(v, scaling) for part, v in pairs])

    def smooth_where(self, W: Any) -> Any:
        """Booleans in the structure of W; all true in leaves without a penalty."""
        treedef, pairs = self._pairs(W)
        everything = lambda w: jax.tree.map(lambda x: jnp.ones(x.shape, bool), w)
        return treedef.unflatten(
            [everything(w) if part is None else part.smooth_where(w) for part, w in pairs]
        )

    def _times(self, factor: jax.Array) -> "ByLeaf":
        times = lambda part: None if part is None else part * factor
        return ByLeaf(jax.tree.map(times, self.penalties, is_leaf=_is_part))

    def _feasible(self, W: Any) -> Any:
        """A point near W at which the penalty of each leaf is finite, if the library knows one."""
        treedef, pairs = self._pairs(W)
        return treedef.unflatten([w if part is None else feasible(part, w) for part, w in pairs])


def _is_part(x: Any) -> bool:
    return x is None or is_penalty(x)
