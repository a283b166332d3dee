"""Targets with missing entries, turned into filled targets and weights."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float, as_numpy, is_traced
from sparsejax._core.matrices.sharded import check_here


def observed(Y: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Fill the missing entries (NaN) of Y, and return weights that leave them out.

    A missing entry gets the weight 0, so that its value has no influence. Its value is the first observed
    value of its column, which every loss accepts as a target (0 would not be a label where labels are -1 and
    1). The default scale of a loss counts all rows. `SoftmaxLoss` takes weights by row only, so this function
    does not serve it: give a row without a class the weight 0.

    Args:
      Y: (n,) or (n, k), NaN where nothing was observed.

    Returns:
      Y filled, and weights of the shape and dtype of the filled Y, 0 or 1. Multiply them by your own
      weights, if any.

    Raises:
      TypeError, ValueError: as the losses for their Y; an empty Y; a column in which nothing is observed.
        Under jit such a column is filled with zeros of weight 0 instead.

    Two labels, each of them known for some rows only. A row without the first label counts for the second:

    >>> import jax.numpy as jnp, numpy as np, sparsejax as sj
    >>> X = np.random.default_rng(0).standard_normal((40, 5))
    >>> labels = (X[:, :2] > 0).astype(float)
    >>> labels[::3, 0] = np.nan
    >>> labels[1::3, 1] = np.nan
    >>> Y, weights = sj.losses.observed(labels)
    >>> loss = sj.losses.LogisticLoss(X, Y, weights=weights, intercept=True)
    >>> solution = sj.solve(sj.Problem(loss, sj.penalties.L21(0.1)))
    >>> np.flatnonzero(np.asarray(solution.params).any(axis=1)).tolist()
    [0, 1]
    """
    check_here("Y", Y)
    traced = is_traced(Y)
    xp: Any = jnp if traced else np  # numpy compiles nothing, and checks can read its values
    numbers: Any = Y if traced else as_numpy("Y", Y)
    missing = xp.isnan(numbers) if numbers.dtype.kind == "f" else xp.zeros(numbers.shape, bool)
    values = as_float("Y", xp.where(missing, xp.zeros_like(numbers), numbers), (1, 2))
    if values.size == 0:
        raise ValueError(f"Y is empty: its shape is {values.shape}.")
    if not traced and missing.all(axis=0).any():
        column = int(np.argmax(np.atleast_1d(missing.all(axis=0))))
        raise ValueError(f"column {column} of Y has no observed entry: drop it.")
    seen = ~jnp.asarray(missing)
    first = jnp.take_along_axis(values, jnp.argmax(seen, axis=0)[None], axis=0)
    return jnp.where(seen, values, first), seen.astype(values.dtype)
