"""Least squares of many rows on fewer rows (`losses._few_rows`) for a path, if that saves time."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from sparsejax._core.checks import is_eager
from sparsejax._core.compiled import Compiled
from sparsejax._core.matrices.products import Products
from sparsejax._core.matrices.sharded import mesh_of
from sparsejax.losses import SquaredLoss, on_few_rows
from sparsejax.solvers import pick

# The decomposition takes as long as about (d + k) / 10 products with X. A solve of a path makes three or more
# products, and d + k rows save the share 1 - (d + k) / n of their time.
MIN_SOLVES, COLUMNS_PER_SOLVE = 10, 20
MIN_ENTRIES = 2**17  # of X: products with fewer take less time than the rest of a solve
MIN_RATIO = 2  # of n to the d + k rows that are left
MAX_ROWS = 1024  # most rows that are left: a square matrix of so many takes 8 MB


def with_fewer_rows(arguments: Any) -> Any:
    """The `PathArguments` with d + k rows in place of n, if that saves time; else the arguments unchanged.

    Only for `SquaredLoss` in float64, whose function of W stays the same up to rounding. The first solver is
    the one that `pick` finds for n rows.
    """
    problem = arguments.problem
    loss = problem.smooth
    if not saves(arguments):
        return arguments
    few = _on_few_rows(loss)
    return arguments._replace(problem=problem._replace(smooth=few), first=pick(problem).link.name)


_on_few_rows = Compiled(on_few_rows)


def saves(arguments: Any) -> bool:
    """Whether the path of these arguments takes less time with fewer rows of the loss, by shapes alone."""
    loss = arguments.problem.smooth
    if type(loss) is not SquaredLoss or isinstance(loss.X, Products) or loss.X.dtype != jnp.float64:
        return False
    n, d = loss.X.shape
    left = d + math.prod(loss.Y.shape[1:])
    solves, pays = arguments.size, COLUMNS_PER_SOLVE * arguments.size * (n - left) >= left * n
    enough = solves >= MIN_SOLVES and pays and n * d >= MIN_ENTRIES
    by_row = loss.weights is None or loss.weights.ndim == 1 or loss.Y.ndim == 1
    if not (enough and by_row and arguments.mode == "warm" and MIN_RATIO * left <= n and left <= MAX_ROWS):
        return False
    return mesh_of(loss) is None if is_eager(loss) else jax.device_count() == 1
