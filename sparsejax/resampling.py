"""Some of the rows of a loss, as weights: what folds and subsamples share."""

from typing import Any

import jax
import jax.numpy as jnp

from sparsejax._core.linalg import safe_divide
from sparsejax.losses import Loss


def num_rows(caller: str, smooth: Loss, given: Any) -> int:
    """How many rows the loss has; an error if it has no weights. ``given``: the loss as the user knows it."""
    if "data" not in smooth.provides:
        raise TypeError(
            f"{caller} needs a loss with weights, as those of sparsejax.losses have, got "
            f"{type(given).__name__}."
        )
    if smooth.num_rows is None:
        raise TypeError(
            f"{caller}: {type(smooth).__name__} has weights None and no num_rows: give one of them."
        )
    return smooth.num_rows


def weights_of(smooth: Loss) -> jax.Array:
    """Its weights; ones by row where it has none."""
    weights: jax.Array | None = smooth.weights
    return jnp.ones(smooth.num_rows, smooth.dtype) if weights is None else weights


def masked(weights: jax.Array, mask: jax.Array) -> jax.Array:
    """The weights of the rows in the mask, (n,) of 0 and 1; 0 for the others."""
    return weights * mask.reshape(mask.shape + (1,) * (weights.ndim - 1)).astype(weights.dtype)


def kept(smooth: Loss, mask: jax.Array) -> Loss:
    """The loss of the rows in the mask, (n,) of 0 and 1.

    The weights that remain are scaled up to their old sum: a strength means on some rows what it means on
    all.
    """
    weights = weights_of(smooth)
    total, remaining = jnp.sum(weights), masked(weights, mask)
    return smooth.reweighted(remaining * safe_divide(total, jnp.sum(remaining), total))
