"""W (d, k) or (d,) is worked on transposed: with the features last, every step is a vector operation."""

import jax


def columns(W: jax.Array) -> jax.Array:
    """W (d, k) or (d,) as (k, d) or (1, d): rows become columns."""
    if W.ndim not in (1, 2):
        raise ValueError(f"W has shape {W.shape}; one W is (d, k) or (d,): use jax.vmap for a batch of them.")
    return W[None] if W.ndim == 1 else W.T


def like(Wt: jax.Array, W: jax.Array) -> jax.Array:
    """The inverse of `columns`, to the rank of W."""
    return Wt[0] if W.ndim == 1 else Wt.T
