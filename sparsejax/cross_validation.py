"""Choosing strengths on a grid, by cross-validation."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checks import as_int, is_traced
from sparsejax._core.linalg import safe_divide
from sparsejax._core.pytree import Pytree
from sparsejax.compiling import Compiled
from sparsejax.paths import PathArguments, batched_path, floating_leaves, prepare_path
from sparsejax.problem import Problem
from sparsejax.solution import Solution, warn_unconverged


class CrossValidation(
    Pytree,
    leaves=("penalties", "fold_loss", "num_nonzero", "gap", "converged", "index", "index_1se"),
):
    """What was tried, m candidates on K folds, and the choices.

    Attributes:
      penalties: the candidates, every strength with a leading axis of length m.
      fold_loss: (K, m), the loss of the rows left out, at the scale of the whole set.
      num_nonzero: (K, m), nonzero weights of each solution.
      gap, converged: (K, m), the certificates.
      index: the candidate of least mean loss.
      index_1se: the candidate with the fewest nonzero weights (mean over folds) among those whose mean
        loss is within one standard error of the least; of equally sparse ones the better.
    """

    penalties: Any
    fold_loss: jax.Array
    num_nonzero: jax.Array
    gap: jax.Array
    converged: jax.Array
    index: jax.Array
    index_1se: jax.Array

    def __init__(
        self,
        penalties: Any,
        fold_loss: jax.Array,
        num_nonzero: jax.Array,
        gap: jax.Array,
        converged: jax.Array,
    ):
        mean = jnp.mean(fold_loss, axis=0)
        # A candidate without a finite loss is never chosen.
        mean = jnp.where(jnp.isfinite(mean), mean, jnp.inf)
        index = jnp.argmin(mean)
        self._set(
            penalties=penalties, fold_loss=fold_loss, num_nonzero=num_nonzero, gap=gap, converged=converged,
            index=index,
        )  # fmt: skip
        near = mean <= mean[index] + self.standard_error[index]
        size = jnp.mean(num_nonzero.astype(mean.dtype), axis=0)
        least = jnp.min(jnp.where(near, size, jnp.inf))
        self._set(index_1se=jnp.argmin(jnp.where(near & (size == least), mean, jnp.inf)))

    @property
    def loss(self) -> jax.Array:
        """(m,), the mean over folds."""
        return jnp.mean(self.fold_loss, axis=0)

    @property
    def standard_error(self) -> jax.Array:
        """(m,), of that mean."""
        folds = self.fold_loss.shape[0]
        error: jax.Array = jnp.std(self.fold_loss, axis=0, ddof=1) / folds**0.5
        return error

    @property
    def best(self) -> Any:
        """The penalty of least mean loss."""
        return self._candidate(self.index)

    @property
    def best_1se(self) -> Any:
        """The sparsest penalty within one standard error of it."""
        return self._candidate(self.index_1se)

    def _candidate(self, index: jax.Array) -> Any:
        strengths, rebuild = floating_leaves(self.penalties)
        return rebuild([leaf[index] for leaf in strengths])


def cross_validate(
    problem: Problem,
    penalties: Any,
    init: Any = None,
    *,
    folds: int | ArrayLike = 5,
    mode: str = "auto",
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
) -> CrossValidation:
    """The held-out loss of every candidate penalty on every fold, in one compiled call.

    A fold is a mask in the weights of the loss, so all folds have one shape: they are solved one after the
    other in mode "warm", all at once in mode "batch".
    The weights that remain are scaled up to their old sum: a strength means on a fold what it means on
    the whole set. The rows left out are judged by the same loss, likewise scaled, with the
    intercept of the fit.

    Args:
      problem: its loss must have weights, as those of `sparsejax.losses`; its strengths are not used.
      penalties: the candidates, as for `sparsejax.path`.
      init: the first start of each fold, as `sparsejax.solve`; needed where the loss does not know the shape
        of W.
      folds: K >= 2, row i is left out in fold ``i % K`` (shuffle sorted rows first); or integers
        0..K-1, shape (n,), the fold of each row.
      mode, tol, maxiter: as `sparsejax.path`, for each fold.

    Returns:
      `CrossValidation`.

    Raises:
      TypeError, ValueError: a loss without weights, folds that are not as above, and as `sparsejax.path`.

    Warns:
      ConvergenceWarning: outside jit, solutions that did not converge, once a call.

    >>> import jax, jax.numpy as jnp, numpy as np, sparsejax as sj
    >>> X = np.random.default_rng(0).standard_normal((30, 5))
    >>> problem = sj.Problem(sj.losses.SquaredLoss(X, X[:, 0]), sj.penalties.L1(0.0))
    >>> result = sj.cross_validate(problem, jax.vmap(sj.penalties.L1)(jnp.array([0.5, 0.05])))
    >>> int(result.index)
    1
    """
    arguments = prepare_path("cross_validate", problem, penalties, init, mode, tol, maxiter)
    smooth = arguments.problem.smooth
    if "data" not in smooth.provides:
        raise TypeError(
            "cross_validate needs a loss with weights, as those of sparsejax.losses have, got "
            f"{type(problem.smooth).__name__}."
        )
    rows = smooth.num_rows
    if rows is None:
        raise TypeError(
            f"cross_validate: {type(smooth).__name__} has weights None and no num_rows: give one of them."
        )
    fold_of, count = _folds(folds, rows)
    static = {"axes": arguments.axes, "mode": arguments.mode, "count": count}
    loss, nonzero, solution = _cross_validate(arguments[:5], fold_of, **static)
    warn_unconverged(arguments.problem, solution, arguments.tol)
    length = loss.shape[1]
    leaves, rebuild = floating_leaves(arguments.penalties)
    full = [
        jnp.broadcast_to(leaf, (length, *leaf.shape)) if axis is None else jnp.asarray(leaf)
        for leaf, axis in zip(leaves, arguments.axes, strict=True)
    ]
    return CrossValidation(rebuild(full), loss, nonzero, solution.gap, solution.converged)


def _all_folds(
    arguments: tuple[Any, ...], fold_of: jax.Array, *, count: int, axes: tuple[int | None, ...], mode: str
) -> tuple[jax.Array, jax.Array, Solution]:
    problem, penalties, init, tol, maxiter = arguments
    smooth = problem.smooth
    total = jnp.ones(smooth.num_rows, smooth.dtype) if smooth.weights is None else smooth.weights

    def keep(mask: jax.Array) -> Any:
        mask = mask.reshape(mask.shape + (1,) * (total.ndim - 1))
        weights = total * mask
        kept = jnp.sum(weights)
        return smooth.reweighted(weights * safe_divide(jnp.sum(total), kept, jnp.sum(total)))

    def one(fold: jax.Array) -> tuple[jax.Array, jax.Array, Solution]:
        out = (fold_of == fold).astype(total.dtype)
        train, test = keep(1 - out), keep(out)
        changed = problem._replace(smooth=train)
        solution = batched_path(PathArguments(changed, penalties, init, tol, maxiter, axes, mode))
        loss = jax.vmap(lambda W: test.evaluate(W, train.intercept(W)))(solution.params)
        nonzero = jax.vmap(jnp.count_nonzero)(solution.params)
        return loss, nonzero, solution

    numbers = jnp.arange(count)
    # one after the other on a CPU, where a batch would take every branch for each of its problems
    loss, nonzero, solution = lax.map(one, numbers) if mode == "warm" else jax.vmap(one)(numbers)
    # The weights themselves are not asked for.
    return loss, nonzero, solution._replace(params=solution.num_iters)


_cross_validate = Compiled(_all_folds, ("count", "axes", "mode"))


def _folds(folds: Any, n: int) -> tuple[jax.Array, int]:
    """The fold of every row, and their number, checked."""
    if is_traced(folds):
        raise TypeError("folds must be known outside jit: their number is a shape.")
    if np.ndim(folds) == 0:
        count = as_int("folds", folds, 0)
        if not 2 <= count <= n:
            raise ValueError(f"folds must be between 2 and the number of rows, {n}, got {count}.")
        return jnp.arange(n) % count, count
    labels = np.asarray(folds)
    if labels.shape != (n,) or labels.dtype.kind not in "iu":
        raise ValueError(
            f"folds must be an integer, or one integer a row, ({n},); got {labels.dtype} {labels.shape}."
        )
    count = int(labels.max()) + 1
    if count < 2 or not np.array_equal(np.unique(labels), np.arange(count)):
        raise ValueError(f"folds must use every label 0..K-1, K >= 2; got {np.unique(labels).tolist()}.")
    return jnp.asarray(labels), count
