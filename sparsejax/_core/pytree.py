"""Frozen classes that are pytrees, and functions that replace some leaves of a tree."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from sparsejax._core.checks import is_traced


class Pytree:
    """Base of losses, penalties, `Problem`, `Solution`, groups and fitted models.

    ``class C(Pytree, leaves=("X",), static=("flag",))`` registers C with JAX. Its leaves are arrays or
    pytrees, and its static attributes are hashable. Each attribute can be set only once, and there are no
    others. Without ``leaves`` the class is neither registered nor frozen; its author registers it.

    `jax.tree_util.register_dataclass` is not used because it calls ``__init__`` to unflatten. ``__init__`` of
    these classes checks arguments, which must not happen inside `jax.vmap`.
    """

    _leaves: ClassVar[tuple[str, ...]] = ()
    _static: ClassVar[tuple[str, ...]] = ()
    _frozen: ClassVar[bool] = False

    def __init_subclass__(cls, *, leaves: Sequence[str] | None = None, static: Sequence[str] = ()) -> None:
        super().__init_subclass__()
        cls._frozen = leaves is not None
        if leaves is None:
            return
        names = (leaves,) if isinstance(leaves, str) else tuple(leaves)
        cls._leaves, cls._static = names, (static,) if isinstance(static, str) else tuple(static)

        def flatten_with_keys(obj: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
            keys = [(jax.tree_util.GetAttrKey(name), getattr(obj, name)) for name in cls._leaves]
            return keys, tuple(getattr(obj, name) for name in cls._static)

        # A call flattens its problem a dozen times, so speed matters: ``map`` is faster than a generator.
        def flatten(obj: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            value_of = partial(getattr, obj)
            return tuple(map(value_of, cls._leaves)), tuple(map(value_of, cls._static))

        def unflatten(static_values: Any, leaf_values: Any) -> Any:
            obj = object.__new__(cls)
            vars(obj).update(zip(cls._leaves, leaf_values, strict=True))
            vars(obj).update(zip(cls._static, static_values, strict=True))
            return obj

        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)

    def __init__(self, *values: Any, **named: Any):
        """Set the leaves and the static attributes, in this order or by name, without checks of values."""
        names = (*self._leaves, *self._static)
        if len(values) > len(names):
            raise TypeError(f"{type(self).__name__} takes {', '.join(names) or 'no arguments'}.")
        given = dict(zip(names, values, strict=False))
        # The names given twice, and those that are missing or unknown.
        wrong = (set(given) & set(named)) | (set(names) ^ (set(given) | set(named)))
        if wrong:
            raise TypeError(f"{type(self).__name__} takes {', '.join(names)} once each: {sorted(wrong)}.")
        self._set(**given, **named)

    def _set(self, **values: Any) -> None:
        vars(self).update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._frozen and (name in vars(self) or name not in (*self._leaves, *self._static)):
            raise AttributeError(f"{type(self).__name__} is immutable: build a new one to change {name!r}.")
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        if self._frozen:
            raise AttributeError(f"{type(self).__name__} is immutable.")
        object.__delattr__(self, name)

    def __repr__(self) -> str:
        if not self._frozen:
            return object.__repr__(self)
        names = (*self._leaves, *self._static)
        return f"{type(self).__name__}({', '.join(f'{n}={_show(getattr(self, n))}' for n in names)})"

    def _replace(self, **values: Any) -> Self:
        """A copy with some attributes changed; nothing is checked, so that it may be used in a trace."""
        obj, names = object.__new__(type(self)), (*self._leaves, *self._static)
        vars(obj).update(zip(names, map(partial(getattr, self), names), strict=True))
        vars(obj).update(values)
        return obj


def _show(value: Any) -> str:
    if isinstance(value, (jax.Array, np.ndarray)):
        if value.ndim == 0 and not is_traced(value):
            return f"{value.item():.6g}" if jnp.issubdtype(value.dtype, jnp.floating) else str(value.item())
        return f"{value.dtype.name}{list(value.shape)}"
    return repr(value)


def form_of(tree: Any) -> Any:
    """Hashable: the structure of a tree, shape and dtype of each array leaf, the type of each other leaf."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = (jax.Array, np.ndarray, np.generic)
    return structure, *(
        (leaf.shape, leaf.dtype) if isinstance(leaf, arrays) else type(leaf) for leaf in leaves
    )


def moving(tangent: Any) -> tuple[tuple[bool, ...], list[jax.Array]]:
    """Whether each leaf moves, and the tangents of the leaves that move.

    A leaf moves if its tangent is neither a symbolic zero nor of integers.
    """
    changes = jax.tree.leaves(tangent, is_leaf=lambda x: isinstance(x, SymbolicZero))
    moves = tuple(
        not isinstance(change, SymbolicZero) and jnp.issubdtype(jnp.result_type(change), jnp.inexact)
        for change in changes
    )
    return moves, [change for change, move in zip(changes, moves, strict=True) if move]


def movable(tree: Any, moves: tuple[bool, ...]) -> tuple[list[jax.Array], Callable[[Any], Any]]:
    """The leaves for which ``moves`` is True, and a function that returns the tree with new ones."""
    leaves, treedef = jax.tree.flatten(tree)

    def with_values(values: Any) -> Any:
        new = list(leaves)
        for number, value in zip((i for i, move in enumerate(moves) if move), values, strict=True):
            new[number] = value
        return jax.tree.unflatten(treedef, new)

    return [leaf for leaf, move in zip(leaves, moves, strict=True) if move], with_values


def floating_leaves(tree: Any) -> tuple[tuple[jax.Array, ...], Any]:
    """The floating leaves of a tree, and a function that returns the tree with new ones.

    The other leaves of a problem are indices and counts: of groups, of a sparse X, of risk sets.
    """
    dtypes = map(jnp.result_type, jax.tree.leaves(tree))
    values, rebuild = movable(tree, tuple(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes))
    return tuple(values), rebuild
