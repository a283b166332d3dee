"""Frozen pytree classes, and the checks of what a user hands in.

A class is registered here rather than by `jax.tree_util.register_dataclass` because that calls
``__init__`` when it unflattens; ours checks its arguments, and must not do so inside `jax.vmap`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

DTYPES = (jnp.float32, jnp.float64)


class Pytree:
    """Base of losses, penalties, `Problem` and `Solution`: immutable, leaves named in ``leaves``.

    A subclass says ``class C(Pytree, leaves=("X",), static=("flag",))`` and sets its attributes
    in ``__init__`` through ``self._set``. Static attributes must be hashable.
    """

    _leaves: tuple[str, ...]
    _static: tuple[str, ...]

    def __init_subclass__(cls, *, leaves: Sequence[str] = (), static: Sequence[str] = ()):
        super().__init_subclass__()
        if not leaves:  # a mixin, not a concrete class
            return
        cls._leaves, cls._static = tuple(leaves), tuple(static)

        def flatten_with_keys(obj):
            keys = [(jax.tree_util.GetAttrKey(name), getattr(obj, name)) for name in cls._leaves]
            return keys, tuple(getattr(obj, name) for name in cls._static)

        def flatten(obj):
            return [getattr(obj, name) for name in cls._leaves], tuple(
                getattr(obj, name) for name in cls._static
            )

        def unflatten(static_values, leaf_values):
            obj = object.__new__(cls)
            obj._set(
                **dict(zip(cls._leaves, leaf_values, strict=True)),
                **dict(zip(cls._static, static_values, strict=True)),
            )
            return obj

        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: build a new one to change {name!r}.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable.")

    def __repr__(self) -> str:
        names = (*self._leaves, *self._static)
        return f"{type(self).__name__}({', '.join(f'{n}={_show(getattr(self, n))}' for n in names)})"

    def _replace(self, **values: Any) -> Self:
        """A copy with some attributes changed and nothing checked (for code inside a trace)."""
        obj = object.__new__(type(self))
        obj._set(**{name: getattr(self, name) for name in (*self._leaves, *self._static)} | values)
        return obj


def _show(value: Any) -> str:
    if isinstance(value, (jax.Array, np.ndarray)):
        if value.ndim == 0 and not is_traced(value):
            return f"{value.item():.6g}" if jnp.issubdtype(value.dtype, jnp.floating) else str(value.item())
        return f"{value.dtype.name}{list(value.shape)}"
    return repr(value)


def split_floating(tree: Any) -> tuple[tuple[jax.Array, ...], Callable[[Any], Any]]:
    """The floating leaves of a tree, and the function that puts others in their places.

    Of a penalty these are its strengths; the other leaves are the indices of groups.
    """
    leaves, treedef = jax.tree.flatten(tree)
    floating = [jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in leaves]

    def rebuild(values):
        values = iter(values)
        return jax.tree.unflatten(
            treedef, [next(values) if f else leaf for f, leaf in zip(floating, leaves, strict=True)]
        )

    return tuple(leaf for f, leaf in zip(floating, leaves, strict=True) if f), rebuild


def is_traced(x: Any) -> bool:
    """True inside a transformation, where values cannot be looked at."""
    return isinstance(x, jax.core.Tracer)


def as_float(name: str, x: Any, ndims: tuple[int, ...], dtype: Any = None) -> jax.Array:
    """``x`` as a float32 or float64 array (of ``dtype`` if given), or an error that names it.

    Integers and booleans are converted. Values are looked at only outside a transformation,
    and with numpy, since inside one even `jnp.isfinite` of a constant is traced.
    """
    if hasattr(x, "toarray"):
        raise TypeError(f"{name} is a sparse {type(x).__name__}; a dense array is needed: {name}.toarray().")
    if not isinstance(x, jax.Array):
        try:
            x = np.asarray(x)
        except ValueError as error:  # ragged lists
            raise ValueError(f"{name} is not a rectangular array: {error}") from None
    if not (jnp.issubdtype(x.dtype, jnp.number) or x.dtype == bool):
        raise TypeError(f"{name} has dtype {x.dtype}; real numbers are needed.")
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise TypeError(f"{name} is complex ({x.dtype}); real numbers are needed.")
    if jnp.issubdtype(x.dtype, jnp.floating) and x.dtype not in DTYPES:
        raise TypeError(f"{name} has dtype {x.dtype}; float32 or float64 is needed.")
    if x.ndim not in ndims:
        allowed = " or ".join(f"{n}-d" for n in ndims)
        raise ValueError(f"{name} has shape {tuple(x.shape)}; it must be {allowed}.")
    if dtype is None:
        dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.result_type(float)
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    if not is_traced(x):
        with np.errstate(over="ignore"):
            finite = np.isfinite(np.asarray(x).astype(dtype))
        if not finite.all():
            where = tuple(int(i) for i in np.argwhere(~finite)[0])
            at = f", the first at {where}" if where else ""
            raise ValueError(
                f"{name} has {int((~finite).sum())} value(s) that are NaN, infinite or too large for "
                f"{dtype.name}{at}; all must be finite."
            )
    # A copy of what is not already JAX's: on a CPU asarray would share memory with the caller's array.
    return x.astype(dtype) if isinstance(x, jax.Array) else jnp.array(x, dtype=dtype)


def as_strength(name: str, x: Any) -> jax.Array:
    """A nonnegative finite strength, scalar or one a row; converted to the default float if not float."""
    x = as_float(name, x, (0, 1))
    if not is_traced(x):
        values = np.asarray(x)
        if x.ndim == 1 and x.size == 0:
            raise ValueError(f"{name} is empty; a scalar or one value a row is needed.")
        if (values < 0).any():
            raise ValueError(f"{name} must be >= 0, got {values.min():g}.")
    return x


def as_positive(name: str, x: Any, dtype: Any) -> jax.Array:
    """A positive finite scalar of ``dtype``."""
    x = as_float(name, x, (0,), dtype)
    if not is_traced(x) and not np.asarray(x) > 0:
        raise ValueError(f"{name} must be > 0, got {np.asarray(x):g}.")
    return x


def as_classes(y: Any, n: int) -> tuple[np.ndarray, np.ndarray]:
    """One label of any sortable kind for each of n rows, (n,), and the classes; at least two."""
    y = np.asarray(y)
    if y.ndim != 1 or len(y) != n:
        raise ValueError(f"y must have one label for each of X's {n} rows, got shape {y.shape}.")
    if y.dtype.kind == "f" and np.isnan(y).any():
        raise ValueError("y has a NaN among its labels.")
    classes = np.unique(y)
    if len(classes) < 2:
        raise ValueError(f"y has one class only, {classes.tolist()}; at least two are needed.")
    return y, classes


def check_labels(Y: jax.Array, allowed: tuple[int, int], owner: str = "", *, name: str = "Y") -> None:
    """Raise if a concrete Y holds anything but the two labels; ``owner`` is the loss that wants them."""
    if is_traced(Y):
        return
    y = np.asarray(Y)
    strange = y[(y != allowed[0]) & (y != allowed[1])]
    if strange.size:
        whose = f" for {owner}" if owner else ""
        raise ValueError(
            f"{name} must hold {allowed[0]} and {allowed[1]} only{whose}; it has {strange[0]:g}."
        )
