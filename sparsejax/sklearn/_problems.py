"""Losses and penalties by name, and the solution of a table as what an estimator keeps."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from sparsejax import losses, penalties
from sparsejax._core.checks import as_strength
from sparsejax._core.compiled import Compiled
from sparsejax.certificate import lambda_max
from sparsejax.losses import LinearModelLoss, Loss
from sparsejax.penalties import is_penalty
from sparsejax.problem import Problem
from sparsejax.sklearn._tables import Table
from sparsejax.solution import Solution
from sparsejax.solvers import solve

REGRESSION: dict[str, Callable[..., Loss]] = {
    "squared": losses.SquaredLoss,
    "huber": losses.HuberLoss,
    "poisson": losses.PoissonLoss,
}
CLASSIFICATION: dict[str, Callable[..., Loss]] = {
    "softmax": losses.SoftmaxLoss,
    "logistic": losses.LogisticLoss,
    "squared": losses.SquaredLoss,
    "squared_hinge": losses.SquaredHingeLoss,
    "huber_hinge": losses.HuberHingeLoss,
}
# By name: the penalty of alpha and beta, and which of the two it has.
PENALTIES: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "l1": (lambda alpha, beta: penalties.L1(alpha), "alpha"),
    "l21": (lambda alpha, beta: penalties.L21(alpha), "alpha"),
    "l1_inf": (lambda alpha, beta: penalties.L1Inf(alpha), "alpha"),
    "exclusive_lasso": (lambda alpha, beta: penalties.ExclusiveLasso(beta), "beta"),
    "exclusive_l21": (penalties.ExclusiveL21, "alpha, beta"),
}


def choose(name: str, x: Any, table: dict[str, Any], other: str = "") -> Any:
    """The entry of the table; an error that names the argument and what is allowed."""
    if isinstance(x, str) and x in table:
        return table[x]
    raise ValueError(f"{name} must be one of {', '.join(map(repr, table))}{other}, got {x!r}.")


def as_penalty(penalty: Any, alpha: Any, beta: Any, num_features: int, width: int) -> Any:
    """The penalty by its name, or the object itself, whose strengths are its own.

    Strengths by feature, (d,), are repeated at their end for columns that only fill up a table of this width.
    """
    if is_penalty(penalty):
        return penalty
    make, _ = choose("penalty", penalty, PENALTIES, " or a penalty of sparsejax.penalties")

    def wide(name: str, strength: Any) -> Any:
        values = np.asarray(as_strength(name, strength))
        if values.ndim == 0:
            return values
        if len(values) != num_features:
            raise ValueError(
                f"{name} has shape {values.shape}; it must be a number or one a feature, ({num_features},)."
            )
        return np.pad(values, (0, width - num_features), mode="edge")

    return make(wide("alpha", alpha), wide("beta", beta))


class Fitted(NamedTuple):
    """What estimators keep of a solution, by numpy."""

    coef: np.ndarray  # (k, d)
    intercept: np.ndarray  # (k,)
    gap: float
    num_iters: int


_intercept = Compiled(lambda loss, W: loss.intercept(W))


def fitted(problem: Problem, num_features: int, tol: Any, max_iter: Any, loss: Loss | None = None) -> Fitted:
    """The solution of a table; ``loss`` is what has the intercept, where it is not that of the problem."""
    solution = solve(problem, tol=tol, maxiter=max_iter)
    return kept(solution, problem.smooth if loss is None else loss, num_features)


def kept(solution: Solution, loss: Loss, num_features: int) -> Fitted:
    """By numpy, without the columns that filled up the table."""
    intercept = np.asarray(_intercept(loss, solution.params))
    coef = np.ascontiguousarray(np.asarray(solution.params)[:num_features].T)
    return Fitted(coef, intercept, float(solution.gap), int(solution.num_iters))


def loss_of(table: Table, make: Callable[..., Any], fit_intercept: bool) -> Any:
    """The loss of a table at its default scale: the weighted mean over the rows given."""
    loss = make(table.X, table.Y, weights=table.weights, intercept=fit_intercept)
    if not isinstance(loss, LinearModelLoss):
        raise TypeError(
            f"loss must make a sparsejax.losses.LinearModelLoss of (X, Y, weights=, intercept=), got "
            f"{type(loss).__name__}."
        )
    return loss


def mean_of(loss: Any) -> Any:
    """The loss of one row, for what it expects of Y, by `mean`: None where that is the prediction itself."""
    if type(loss).mean is LinearModelLoss.mean:
        return None
    row = np.zeros((1, loss.X.shape[1]), loss.dtype)
    return jax.tree.map(np.asarray, loss._replace(X=row, Y=loss.Y[:1], weights=None))


def family(penalty: Any) -> tuple[Any, str]:
    """The penalty of two strengths, and which of them it has."""
    if is_penalty(penalty):
        known = penalties.as_penalty(penalty)
        return (lambda alpha, beta: known * alpha), "alpha"
    return choose("penalty", penalty, PENALTIES, " or a penalty of sparsejax.penalties")


def strengths(
    name: str, given: Any, problem: Problem | None, used: bool, dtype: Any, span: float
) -> np.ndarray:
    """The strengths to try, from large to small; one, 0, where the penalty has no such strength.

    With a problem a number is how many, from the least that leaves no feature down to ``span`` times it.
    """
    if not used:
        return np.zeros(1, dtype)
    values = np.asarray(given)
    if problem is not None and values.ndim == 0 and values.dtype.kind in "iu":
        if values < 2:
            raise ValueError(f"{name} must be a number of strengths >= 2, or the strengths; got {given!r}.")
        top = max(float(lambda_max(problem)), float(np.finfo(dtype).tiny) / span)
        return np.geomspace(top, span * top, int(values)).astype(dtype)
    values = np.atleast_1d(values)
    fine = values.ndim == 1 and values.size and values.dtype.kind in "iuf"
    if not fine or not np.isfinite(values).all() or (values < 0).any():
        raise ValueError(f"{name} must be one or several finite numbers >= 0, got {given!r}.")
    return np.sort(values.astype(dtype))[::-1]
