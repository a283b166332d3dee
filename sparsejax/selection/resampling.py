"""Some of the rows of a loss, as weights: what folds and subsamples share."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax._core.checks import as_int, is_eager
from sparsejax._core.linalg import safe_divide
from sparsejax._core.matrices.sharded import mesh_of
from sparsejax.losses import Loss, num_rows, rows_alone


def rows_of(caller: str, smooth: Loss, given: Any) -> int:
    """How many rows the loss has; an error if it has no weights. ``given``: the loss as the user knows it."""
    if "data" not in smooth.provides:
        raise TypeError(
            f"{caller} needs a loss with weights, as those of sparsejax.losses have, got "
            f"{type(given).__name__}."
        )
    rows = num_rows(smooth)
    if rows is None:
        raise TypeError(
            f"{caller}: {type(smooth).__name__} has weights None and no num_rows in its quadratic_model(): "
            "give one of them."
        )
    return rows


def weights_of(smooth: Loss) -> jax.Array:
    """Its weights; ones by row where it has none."""
    weights: jax.Array | None = smooth.weights
    return jnp.ones(num_rows(smooth) or 0, smooth.dtype) if weights is None else weights


def masked(weights: jax.Array, mask: jax.Array) -> jax.Array:
    """The weights of the rows in the mask, (n,) of 0 and 1; 0 for the others."""
    return weights * mask.reshape(mask.shape + (1,) * (weights.ndim - 1)).astype(weights.dtype)


def kept(smooth: Loss, mask: jax.Array, most: int | None = None) -> Loss:
    """The loss of the rows in the mask, (n,) of 0 and 1; with ``most``, at least as many, of no others.

    The weights that remain are scaled up to their old sum: a strength means on some rows what it means on
    all.
    """
    weights = weights_of(smooth)
    total, remaining = jnp.sum(weights), masked(weights, mask)
    weights = remaining * safe_divide(total, jnp.sum(remaining), total)
    return smooth.reweighted(weights) if most is None else rows_alone(smooth, weights, most)


def gathers(mode: str, arguments: Any) -> bool:
    """Whether the rows that are kept are copied: half the rows take half the time.

    In a batch all share the data, and on several devices rows would have to move.
    """
    one = mesh_of(arguments) is None if is_eager(arguments) else jax.device_count() == 1
    return mode == "warm" and one


def subsamples(num_subsamples: int, fraction: float, seed: int, rows: int) -> np.ndarray:
    """The masks, (num_subsamples, rows) of booleans: data, so that no other program is needed for others."""
    count = as_int("stability_selection: num_subsamples", num_subsamples, 1)
    size = math.floor(fraction * rows + 1e-9)  # 0.29 of 100 are 29
    if size < 1:
        raise ValueError(f"stability_selection: fraction {fraction:g} of {rows} rows is less than one row.")
    pairs = fraction == 0.5
    if pairs and count % 2:
        raise ValueError(
            "stability_selection: num_subsamples must be even at fraction 0.5, where they are pairs, "
            f"got {count}."
        )
    rng = np.random.default_rng(as_int("stability_selection: seed", seed, 0))
    masks = np.zeros((count, rows), bool)
    for i in range(0, count, 2 if pairs else 1):
        order = rng.permutation(rows)
        masks[i, order[:size]] = True
        if pairs:
            masks[i + 1, order[size : 2 * size]] = True
    return masks
