"""Checks of the arguments of the public proximal operators."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax._core.checks import as_float, as_numpy, is_traced

ANY_RANK = tuple(range(33))  # numpy's arrays have at most 32 dimensions


def factor(name: str, of: str, value: Any, like: jax.Array, ndims: tuple[int, ...] = (0,)) -> jax.Array:
    """A strength or step size >= 0 in the dtype of ``like``.

    Args:
      name: name of the prox.
      of: name of the argument.
      value: value of the argument.
      like: the array that the prox is taken of.
      ndims: allowed numbers of dimensions of the value.
    """
    if is_traced(value):
        return jnp.asarray(value, like.dtype)
    argument = f"prox.{name}: {of}"
    known: jax.Array = as_float(argument, value, ndims, like.dtype)
    if (np.asarray(value) < 0).any():
        raise ValueError(f"{argument} must be >= 0, got {np.asarray(value).min():g}.")
    return known


def floating(name: str, argument: str, x: Any) -> jax.Array:
    """``x`` as a floating array; an error for another dtype. ``name`` is the name of the prox."""
    known = f"prox.{name}: {argument}"
    dtype = x.dtype if isinstance(x, jax.Array) else as_numpy(known, x).dtype
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"prox.{name} needs a floating array, got {dtype} for {argument}.")
    return as_float(known, x, ANY_RANK)


def one_group(name: str, x: Any) -> jax.Array:
    """``x`` as a floating array of shape (p,) with p >= 1."""
    group = floating(name, "x", x)
    if group.ndim != 1 or group.size == 0:
        raise ValueError(
            f"prox.{name}: one group has shape (p,) with p >= 1, got {group.shape} for x; use jax.vmap."
        )
    return group
