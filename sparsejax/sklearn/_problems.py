"""Losses and penalties by name, and solves whose results an estimator stores."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax import losses, penalties
from sparsejax._core.checks import as_int, as_numpy, as_strength, check_bool
from sparsejax._core.compiled import Compiled
from sparsejax._core.linalg import columns, like
from sparsejax.certificate import lambda_max
from sparsejax.groups import Groups
from sparsejax.losses import LinearModelLoss, Loss
from sparsejax.penalties import Penalty, is_penalty
from sparsejax.predictions import intercept_of
from sparsejax.problem import Problem, zeros
from sparsejax.sklearn._groups import as_groups
from sparsejax.sklearn._tables import Table, centred, gathered
from sparsejax.sklearn._targets import ExposedPoissonLoss
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
GROUP_LASSO = "group_lasso"
MAX_RAISES = 20  # how often `least_factor` may multiply its factor by 10
# For each name the function (alpha, beta) -> penalty, and which of the two strengths it uses.
PENALTIES: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "l1": (lambda alpha, beta: penalties.L1(alpha), "alpha"),
    "l21": (lambda alpha, beta: penalties.L21(alpha), "alpha"),
    "l1_inf": (lambda alpha, beta: penalties.L1Inf(alpha), "alpha"),
    "exclusive_lasso": (lambda alpha, beta: penalties.ExclusiveLasso(beta), "beta"),
    "exclusive_l21": (penalties.ExclusiveL21, "alpha, beta"),
}


def groups_of(estimator: Any, num_features: int) -> Groups | None:
    """The groups of an estimator that is being fitted if its penalty is "group_lasso", else None.

    Raises:
      TypeError, ValueError: wrong groups; groups for another penalty; no such penalty.
    """
    if isinstance(estimator.penalty, str) and estimator.penalty == GROUP_LASSO:
        return as_groups(estimator.groups, vars(estimator).get("feature_names_in_"), num_features)
    if estimator.groups is not None:
        raise ValueError(f'groups are for penalty="group_lasso", got penalty={estimator.penalty!r}.')
    if not is_penalty(estimator.penalty):
        other = f", {GROUP_LASSO!r} or a penalty of sparsejax.penalties"
        choose("penalty", estimator.penalty, PENALTIES, other)
    return None


def widens(penalty: Any) -> bool:
    """Whether a table for this penalty may be padded by columns of zeros."""
    return isinstance(penalty, str) and penalty != GROUP_LASSO


def choose(name: str, x: Any, table: dict[str, Any], other: str = "") -> Any:
    """The entry ``x`` of the table.

    Raises:
      ValueError: the table has no such entry; the message has the argument's name and what is allowed.
    """
    if isinstance(x, str) and x in table:
        return table[x]
    raise ValueError(f"{name} must be one of {', '.join(map(repr, table))}{other}, got {x!r}.")


def as_penalty(estimator: Any, num_features: int, width: int, groups: Groups | None = None) -> Any:
    """The penalty that the estimator names, with its alpha and beta; or the estimator's penalty object.

    Strengths by feature, (num_features,), are padded to ``width``, the number of columns of a padded table.
    ``groups`` are the groups of "group_lasso"; None for other penalties.
    """
    if is_penalty(estimator.penalty):
        return estimator.penalty
    if groups is not None:
        values = np.asarray(as_strength("alpha", estimator.alpha))
        if values.ndim and len(values) != groups.num_groups:
            raise ValueError(
                f"alpha has shape {values.shape}; it must be a number or one a group, ({groups.num_groups},)."
            )
        return penalties.GroupLasso(values, groups)
    make, _ = family(estimator.penalty)

    def wide(name: str, strength: Any) -> Any:
        values = np.asarray(as_strength(name, strength))
        if values.ndim == 0:
            return values
        if len(values) != num_features:
            raise ValueError(
                f"{name} has shape {values.shape}; it must be a number or one a feature, ({num_features},). "
                f"To try several strengths use the CV form of the estimator, with {name}s=."
            )
        return np.pad(values, (0, width - num_features), mode="edge")

    return make(wide("alpha", estimator.alpha), wide("beta", estimator.beta))


class Fitted(NamedTuple):
    """The parts of a solution that estimators store."""

    coef: np.ndarray  # (k, d)
    intercept: np.ndarray  # (k,)
    gap: float
    num_iters: int

    def uncentred(self, middle: np.ndarray) -> "Fitted":
        """The fit to the data before ``middle`` was subtracted from them, see `centred`."""
        return self._replace(intercept=(self.intercept - self.coef @ middle).astype(self.intercept.dtype))


def fitted(problem: Problem, num_features: int, tol: Any, max_iter: Any, loss: Loss | None = None) -> Fitted:
    """Solve the problem of a table; ``loss`` gives the intercept if the problem's own loss does not."""
    check_max_iter(max_iter)
    solution = solve(problem, tol=tol, maxiter=max_iter)
    intercept = np.asarray(intercept_of(problem.smooth if loss is None else loss, solution.params))
    # Leave out the columns that only pad the table.
    coef = np.ascontiguousarray(np.asarray(solution.params)[:num_features].T)
    return Fitted(coef, intercept, float(solution.gap), int(solution.num_iters))


def fitted_to(
    estimator: Any, X: Any, Y: np.ndarray, weights: np.ndarray, make: Callable[..., Any]
) -> tuple[Fitted, Any]:
    """Fit these data with the estimator's penalty and the loss that ``make`` makes.

    Returns the fit and the loss.
    """
    groups = groups_of(estimator, X.shape[1])
    X, middle = centred(X, weights, estimator.fit_intercept)
    table = gathered(X, Y, weights, widen=widens(estimator.penalty))
    penalty = as_penalty(estimator, X.shape[1], table.X.shape[1], groups)
    loss = loss_of(table, make, estimator.fit_intercept)
    found = fitted(Problem(loss, penalty), X.shape[1], estimator.tol, estimator.max_iter)
    return found.uncentred(middle), loss


def check_max_iter(max_iter: Any, low: int = 0) -> None:
    """Raise unless max_iter is an integer >= ``low``; errors of the solvers would call it maxiter."""
    as_int("max_iter", max_iter, low, floats=True)


def loss_of(table: Table, make: Callable[..., Any], fit_intercept: bool) -> Any:
    """The loss of a table at its default scale: the weighted mean over the rows that the user gave."""
    check_bool("fit_intercept", fit_intercept)
    loss = make(table.X, table.Y, weights=table.weights, intercept=fit_intercept)
    if not isinstance(loss, LinearModelLoss):
        raise TypeError(
            f"loss must make a sparsejax.losses.LinearModelLoss of (X, Y, weights=, intercept=), got "
            f"{type(loss).__name__}."
        )
    return loss


def mean_of(loss: Any) -> Any:
    """A loss of one row, whose ``mean`` gives the expected value of Y; None if that value is XW + b."""
    if type(loss).mean is LinearModelLoss.mean:
        return None
    row = np.zeros((1, loss.X.shape[1]), loss.dtype)
    more = {"exposure": loss.exposure[:1]} if isinstance(loss, ExposedPoissonLoss) else {}
    return jax.tree.map(np.asarray, loss._replace(X=row, Y=loss.Y[:1], weights=None, **more))


def family(penalty: Any, groups: Groups | None = None) -> tuple[Any, str]:
    """The function (alpha, beta) -> penalty, and which of the two strengths it uses."""
    if is_penalty(penalty):
        known = penalties.as_penalty(penalty)
        return (lambda alpha, beta: known * alpha), "alpha"
    if groups is not None:
        return (lambda alpha, beta: penalties.GroupLasso(alpha, groups)), "alpha"
    return choose("penalty", penalty, PENALTIES, " or a penalty of sparsejax.penalties")


@Compiled
def _free_entries(norms: Penalty, W: jax.Array) -> jax.Array:
    """The entries of W that no part of ``norms`` penalises, boolean, shape of W."""
    return like(jnp.broadcast_to(penalties.unpenalised_entries(norms, W), columns(W).shape), W)


@Compiled
def _factor_at(problem: Problem, W: jax.Array, free: jax.Array) -> jax.Array:
    """The smallest factor of the strengths that keeps all weights that are not ``free`` at 0, near W."""
    return problem.penalty.dual_norm(jnp.where(free, 0, -jax.grad(problem.smooth)(W)))


def least_factor(problem: Problem) -> float:
    """The smallest factor of the strengths of a penalty at which the penalty selects no feature.

    For strengths of 1 it is `lambda_max`. Weights that no norm penalises, such as weights of strength 0, are
    fitted with all other weights at 0. The gradient of the loss at this fit gives the factor. If weights
    without a norm have a ridge penalty, the factor is approximate, since it multiplies the ridge, too.
    """
    joint = penalties.Sum((problem.penalty,))
    norms = tuple(part for part in joint.parts if 1 in part.degrees)
    if "dual norm" not in joint.provides or not norms:
        return float(lambda_max(problem))
    problem, W = problem.replace(penalty=joint), zeros(problem)
    free = np.asarray(_free_entries(penalties.Sum(norms), W))
    if not free.any():
        return float(lambda_max(problem))
    # If the gradient at W = 0 has no part that the norms penalise, the search starts from 1.
    factor = float(_factor_at(problem, W, free)) or 1.0
    for _ in range(MAX_RAISES):
        W = solve(problem.replace(penalty=joint * factor)).params
        if not np.any(np.where(free, 0, W)):
            return float(_factor_at(problem, W, free))
        factor *= 10
    return factor


def strengths(
    name: str, given: Any, problem: Problem | None, used: bool, dtype: Any, span: float
) -> np.ndarray:
    """The strengths to try, from large to small; 0 alone if the penalty has no such strength.

    With a problem, ``given`` may be a number of strengths, from `least_factor` down to ``span`` times it.
    """
    if not used:
        return np.zeros(1, dtype)
    values = as_numpy(name, given)
    if problem is not None and values.ndim == 0 and values.dtype.kind in "iu":
        if values < 2:
            raise ValueError(f"{name} must be a number of strengths >= 2, or the strengths; got {given!r}.")
        top = max(least_factor(problem), float(np.finfo(dtype).tiny) / span)
        return np.geomspace(top, span * top, int(values)).astype(dtype)
    values = np.atleast_1d(values)
    fine = values.ndim == 1 and values.size and values.dtype.kind in "iuf"
    if not fine or not np.isfinite(values).all() or (values < 0).any():
        raise ValueError(f"{name} must be one or several finite numbers >= 0, got {given!r}.")
    return np.sort(values.astype(dtype))[::-1]
