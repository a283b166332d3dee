"""A loss on some of its rows, by weights: what folds and subsamples have in common."""

import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax._core.checks import as_int, as_numpy, is_eager, is_traced
from sparsejax._core.linalg import safe_divide
from sparsejax._core.matrices.sharded import answer_of, mesh_of
from sparsejax._core.precision import users_level
from sparsejax.losses import CoxLoss, Loss, num_rows, rows_alone

ROWS_TOGETHER = 32  # the number of rows that a fit copies is a multiple of this


def rows_of(caller: str, smooth: Loss, given: object) -> int:
    """The number of rows of a loss.

    Args:
      caller: the public function, for error messages.
      smooth: the loss in the protocol.
      given: the loss as the user gave it, for error messages.

    Raises:
      TypeError: the loss has no weights, or does not know its number of rows.
    """
    if "data" not in smooth.provides:
        raise TypeError(
            f"{caller} needs a loss with weights, such as those of sparsejax.losses, got "
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
    """The weights of a loss, (n,) or (n, k); ones (n,) if it was given none."""
    weights: jax.Array | None = smooth.weights
    return jnp.ones(num_rows(smooth) or 0, smooth.dtype) if weights is None else weights


def masked(weights: jax.Array, mask: jax.Array) -> jax.Array:
    """The weights, set to 0 for the rows where ``mask`` (n,) is 0."""
    return weights * mask.reshape(mask.shape + (1,) * (weights.ndim - 1)).astype(weights.dtype)


def restricted(smooth: Loss, mask: jax.Array, most: int | None = None, by_output: bool = False) -> Loss:
    """The loss on the rows where ``mask`` (n,) is 1.

    A factor, the sum of all weights divided by the sum of the remaining ones, multiplies the loss, so that a
    strength means the same as on all rows. It is NaN if all remaining weights are 0. With ``by_output`` each
    column of weights has its own factor.
    With ``most``, an upper bound on the number of kept rows, these are copied if `rows_alone` can do so; else
    the other rows get the weight 0.
    """
    weights = weights_of(smooth)
    remaining = masked(weights, mask)
    total, left = (
        jnp.sum(w, axis=0, keepdims=True) if by_output else jnp.sum(w) for w in (weights, remaining)
    )
    factor = safe_divide(total, left, jnp.nan)
    if isinstance(smooth, CoxLoss):  # a factor of the weights would add a constant to the loss
        smooth, weights = smooth._replace(scale=smooth.scale * factor), remaining
    else:
        weights = remaining * factor
    return smooth.reweighted(weights) if most is None else rows_alone(smooth, weights, most)


def copied_rows(most: int, arguments: Any) -> int | None:
    """The number of rows that a fit copies, so that products leave out the other rows; None: no copy.

    A fit copies no rows in a batch, whose lanes share X, nor on several devices, between which rows would
    move. The number is rounded up, so that the folds of data of similar size share a program.

    Args:
      most: the largest number of rows in a fit.
      arguments: the `PathArguments`.
    """
    one_device = mesh_of(arguments) is None if is_eager(arguments) else jax.device_count() == 1
    return -(-most // ROWS_TOGETHER) * ROWS_TOGETHER if arguments.mode == "warm" and one_device else None


def check_folds_weigh(caller: str, smooth: Loss, fold_of: Any, count: int, by_output: bool = False) -> None:
    """Raise unless each of ``count`` folds holds out some rows of weight > 0, but not all of them.

    With ``by_output`` this must be true in each column of weights. Without ``by_output``, a fold that holds
    out all rows of weight > 0 of a column gives a warning. Of a `CoxLoss` no fold may hold out all events; a
    fold that holds out no event gives a warning. Traced values are not checked.
    """
    weights = () if smooth.weights is None else (smooth.weights,)
    if any(map(is_traced, (*weights, fold_of))):  # inside jit fold_of is traced, even if the weights are not
        return
    columns = [*weights[0].T] if weights and by_output and weights[0].ndim > 1 else weights
    for column, column_weights in enumerate(columns):
        held_out = answer_of(_rows_of_folds, fold_of, column_weights, count=count)
        for fold, rows in enumerate(held_out):
            if rows in (0, held_out.sum()):
                which = "no row" if not rows else "all rows"
                where = f" in column {column}" if len(columns) > 1 else ""
                raise ValueError(f"{caller}: fold {fold} holds {which} of weight > 0{where} out.")
    if weights and weights[0].ndim > 1 and not by_output:
        entries = answer_of(_entries_of_folds, fold_of, weights[0], count=count)
        in_one_fold = (entries.max(axis=0) > 0) & (entries.max(axis=0) == entries.sum(axis=0))  # (k,)
        if in_one_fold.any():
            column = in_one_fold.argmax()
            text = (
                f"{caller}: fold {entries[:, column].argmax()} holds all rows of weight > 0 in column "
                f"{column} out: the other rows have no data for the column, whose loss on the fold is that "
                "of W = 0 for all candidates."
            )
            warnings.warn(text, UserWarning, stacklevel=users_level())
    if isinstance(smooth, CoxLoss) and not is_traced(smooth.event):
        events = answer_of(_rows_of_folds, fold_of, smooth.event, *weights, count=count)
        if 0 < events.sum() == events.max():
            raise ValueError(
                f"{caller}: fold {events.argmax()} holds all events out: without it nothing is left to fit."
            )
        if 0 == events.min() < events.sum():
            text = f"{caller}: fold {events.argmin()} holds no event out: its loss is 0 for all candidates."
            warnings.warn(text, UserWarning, stacklevel=users_level())


def _rows_of_folds(xp: Any, fold_of: Any, *arrays: Any, count: int) -> Any:
    """The number of rows in each fold, (count,), for which every array has an entry > 0."""
    counted = xp.ones(len(fold_of), bool)
    for array in arrays:
        counted &= array.reshape(len(array), -1).max(axis=1) > 0
    return ((fold_of[:, None] == xp.arange(count)) & counted[:, None]).sum(axis=0)


def _entries_of_folds(xp: Any, fold_of: Any, weights: Any, *, count: int) -> Any:
    """The number of entries > 0 of each column of ``weights`` (n, k) in each fold, (count, k)."""
    return xp.stack([((weights > 0) & (fold_of == f)[:, None]).sum(axis=0) for f in range(count)])


def subsample_size(fraction: float, rows: int) -> int:
    """The number of rows of a subsample: the floor of ``fraction * rows``, but for rounding errors."""
    # 0.29 * 100 rounds below 29, and means 29 rows; 1e-7 is more than the rounding error of a float32. For
    # many rows 1e-7 of them could be a whole row, hence at most 1e-3.
    return math.floor(fraction * rows + min(1e-7 * rows, 1e-3))


def subsamples(num_subsamples: int, fraction: float, seed: int, rows: int) -> np.ndarray:
    """The rows of each subsample as masks, (num_subsamples, rows) boolean, drawn without replacement.

    At fraction 1/2 the subsamples 2j and 2j + 1 are disjoint.
    """
    count = as_int("stability_selection: num_subsamples", num_subsamples, 1)
    size = subsample_size(fraction, rows)
    if size < 1:
        raise ValueError(f"stability_selection: fraction {fraction:g} of {rows} rows is less than one row.")
    pairs = fraction == 0.5
    if pairs and count % 2:
        raise ValueError(
            "stability_selection: num_subsamples must be even at fraction 0.5, where subsamples are pairs, "
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


def check_subsamples(smooth: Loss, masks: np.ndarray) -> None:
    """Raise if a subsample, a row of ``masks`` (N, n), has no row of weight > 0; not of traced weights."""
    if smooth.weights is None or is_traced(smooth.weights):
        return
    empty = ~(masks @ answer_of(_rows_that_weigh, smooth.weights))
    if empty.any():
        raise ValueError(
            f"stability_selection: subsample {empty.argmax()} has no row of weight > 0 ({empty.sum()} of "
            f"{len(masks)} have none): leave out the rows of weight 0, or take a larger fraction."
        )


def _rows_that_weigh(xp: Any, weights: Any) -> Any:
    """(n,) boolean: whether the row has a weight > 0."""
    return weights.reshape(len(weights), -1).max(axis=1) > 0


def folds_of(folds: Any, n: int) -> tuple[jax.Array, np.ndarray]:
    """Check ``folds``; returns the fold of every row (n,), and the number of rows of each fold."""
    if is_traced(folds):
        raise TypeError("folds must be known outside jit: their number is a shape.")
    if not isinstance(folds, list | tuple) and np.ndim(folds) == 0:
        if as_numpy("folds", folds).dtype.kind not in "iu":
            raise ValueError(
                f"folds must be an integer >= 2, or one integer a row, ({n},); got {folds!r}. For a splitter "
                "of scikit-learn write: for k, (_, out) in enumerate(splitter.split(X, y)): folds[out] = k."
            )
        count = as_int("folds", folds, 0)
        if not 2 <= count <= n:
            raise ValueError(
                f"folds must be between 2 and {n}, the number of rows (with from_batches: of its folds), "
                f"got {count}."
            )
        # fold f has ceil((n - f) / count) rows
        return jnp.arange(n) % count, (n + np.arange(count)[::-1]) // count
    labels = as_numpy("folds", folds)
    if labels.shape != (n,) or labels.dtype.kind not in "iu":
        raise ValueError(
            f"folds must be an integer, or one integer a row, ({n},); got {labels.dtype} {labels.shape}."
        )
    count = int(labels.max()) + 1
    if not 2 <= count <= n or not np.array_equal(np.unique(labels), np.arange(count)):
        raise ValueError(f"folds must use every label 0..K-1, K >= 2; got {np.unique(labels).tolist()}.")
    return jnp.asarray(labels), np.bincount(labels)
