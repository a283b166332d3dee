"""What the public proxes ask of their arguments."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike


def cast(value: ArrayLike, like: jax.Array) -> jax.Array:
    """A strength or step size in the dtype of the thing being projected."""
    return jnp.asarray(value, like.dtype)


def floating(name: str, x: jax.Array) -> jax.Array:
    """``x`` as an array, which must be floating; ``name`` is the prox."""
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"prox.{name} needs a floating array, got {x.dtype}.")
    return x


def one_group(name: str, x: jax.Array) -> jax.Array:
    """The same, of shape (p,) with p >= 1."""
    x = floating(name, x)
    if x.ndim != 1 or x.size == 0:
        raise ValueError(
            f"prox.{name}: one group has shape (p,) with p >= 1, got {x.shape}; use jax.vmap over groups."
        )
    return x
