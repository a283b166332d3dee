"""Checks of the arguments of the public proximal operators."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax._core.checks import as_float, as_numpy, is_traced

ANY_RANK = tuple(range(33))  # up to 32 dimensions, as many as arrays had before numpy 2


def factor(name: str, of: str, value: Any, like: jax.Array, ndims: tuple[int, ...] = (0,)) -> jax.Array:
    """A strength or step size >= 0 in the dtype of ``like``; of a traced value the sign is not checked.

    Args:
      name: name of the prox, for errors.
      of: name of the argument, for errors.
      value: value of the argument.
      like: the array whose prox is computed; its dtype is used.
      ndims: allowed numbers of dimensions of the value.

    Raises:
      TypeError, ValueError: the value is not a real number >= 0, or has another number of dimensions.
    """
    argument = f"prox.{name}: {of}"
    known: jax.Array = as_float(argument, value, ndims, like.dtype)
    if not is_traced(value) and (np.asarray(value) < 0).any():
        raise ValueError(f"{argument} must be >= 0, got {np.asarray(value).min():g}.")
    return known


def floating(name: str, argument: str, x: Any) -> jax.Array:
    """``x`` as a float32 or float64 array; an error for another dtype. ``name`` is the name of the prox."""
    label = f"prox.{name}: {argument}"
    dtype = x.dtype if isinstance(x, jax.Array) else as_numpy(label, x).dtype
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"prox.{name} needs a floating array, got {dtype} for {argument}.")
    return as_float(label, x, ANY_RANK)


def one_group(name: str, x: Any) -> jax.Array:
    """``x`` as a floating array of shape (p,) with p >= 1."""
    group = floating(name, "x", x)
    if group.ndim != 1 or group.size == 0:
        raise ValueError(
            f"prox.{name}: one group has shape (p,) with p >= 1, got {group.shape} for x; use jax.vmap."
        )
    return group
