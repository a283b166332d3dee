"""Targets of which some entries are not known."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float, is_traced
from sparsejax._core.matrices.sharded import check_here


def observed(Y: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """NaN as "not observed": Y with these entries filled, and weights that leave them out.

    An entry that is not observed is filled with the first value that is observed in its column: a target that
    is valid for the loss whatever that asks for (0 would be no label for labels -1 and 1), and of no
    influence, since its weight is 0. The default scale of a loss counts all rows. `SoftmaxLoss`, whose
    columns share one target, takes weights by row only: leave out rows without a class by these.

    Args:
      Y: (n,) or (n, k), NaN where nothing was observed.

    Returns:
      Y filled, and weights of its shape, 0 or 1. Multiply these by weights of your own.

    Raises:
      TypeError, ValueError: as the losses for their Y; a column in which nothing is observed.

    Partly labelled data: two labels, of which each is known for some of the rows. Rows without the one still
    count for the other.

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
    try:
        numbers: Any = Y if is_traced(Y) else np.asarray(Y)
    except ValueError as error:  # ragged lists
        raise ValueError(f"Y is not a rectangular array: {error}") from None
    if is_traced(Y):
        missing: Any = jnp.isnan(numbers)
    else:
        missing = np.isnan(numbers) if numbers.dtype.kind == "f" else np.zeros(numbers.shape, bool)
    xp = jnp if is_traced(Y) else np  # numpy's values can be looked at in the checks, and compile nothing
    values = as_float("Y", xp.where(missing, xp.zeros_like(numbers), numbers), (1, 2))
    if values.size == 0:
        raise ValueError(f"Y is empty: its shape is {values.shape}.")
    if not is_traced(Y) and missing.all(axis=0).any():
        column = int(np.argmax(np.atleast_1d(missing.all(axis=0))))
        raise ValueError(f"column {column} of Y has no observed entry: drop it.")
    seen = ~jnp.asarray(missing)
    first = jnp.take_along_axis(values, jnp.argmax(seen, axis=0)[None], axis=0)
    return jnp.where(seen, values, first), seen.astype(values.dtype)
