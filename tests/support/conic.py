"""The reference: an interior-point conic solver (cvxpy with Clarabel), and objectives in numpy.

Both from the formulas in `loss_cases` and `penalty_cases`.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from loss_cases import FORMULAS, survival_terms
from numbers_of import is_long, numbers, scaled_weights, target
from penalty_cases import formula as penalty_formula
from scipy.optimize import brentq
from scipy.special import logsumexp

import sparsejax as sj

ACCURACY = 1e-8  # relative, of the objective at what it returns
# More digits than it can always reach. Where it fails, as it does now and then, other settings mostly help.
CLARABEL = {
    "tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11, "tol_ktratio": 1e-10, "max_iter": 500,
}  # fmt: skip
ATTEMPTS = ({}, {"max_step_fraction": 0.9}, {"equilibrate_enable": False}, {"max_step_fraction": 0.7})


def solve(goal: Any, constraints: Any = ()) -> float:
    """The optimal value; the variables hold the optimum."""
    problem = cp.Problem(goal, list(constraints))
    for options in ATTEMPTS:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Solution may be inaccurate")
            try:
                return float(problem.solve(solver=cp.CLARABEL, **(CLARABEL | options)))
            except cp.error.SolverError:
                continue
    raise AssertionError("the conic solver failed")


# ------------------------------------------------------------------ values


def intercept(loss: Any, W: Any) -> np.ndarray:
    """The best b (k,), by bisection."""
    Y, each, formula = target(loss), scaled_weights(loss), FORMULAS[type(loss).__name__]
    H = numbers(loss.X) @ numbers(W).reshape(loss.X.shape[1], -1)
    if not loss.has_intercept:
        return np.zeros(Y.shape[1])
    if formula.intercept is not None:
        return formula.intercept(H, Y, each)
    bound = 50 + np.abs(H).max() + np.abs(Y).max()
    if is_long():
        low, high = np.full(Y.shape[1], -bound), np.full(Y.shape[1], bound)
        for _ in range(120):
            middle = (low + high) / 2
            rises = np.sum(each * formula.slope(H + middle, Y, loss), axis=0) > 0
            low, high = np.where(rises, low, middle), np.where(rises, middle, high)
        return (low + high) / 2
    slope = formula.slope
    return np.array([
        brentq(lambda b, h=h, y=y, w=w: w @ slope(h + b, y, loss), -bound, bound, xtol=1e-15, rtol=1e-14)
        for h, y, w in zip(H.T, Y.T, each.T, strict=True)
    ])  # fmt: skip


def _of_data(smooth: Any) -> tuple[Any, tuple[Any, ...]]:
    """The loss of the data, and the graphs that are added to it."""
    return (smooth.loss, smooth.graphs) if isinstance(smooth, sj.losses.SumLoss) else (smooth, ())


def _edges(graph: Any) -> list[tuple[int, int, float]]:
    P, k = numbers(graph.similarity), len(graph.similarity)
    return [(i, j, float(graph.strength) / 2 * (P[i, j] + P[j, i]) / 2) for i in range(k) for j in range(i)]


def _rows_of_cox(loss: Any) -> dict[str, np.ndarray]:
    """Times, strata and entries that have the order in which the loss has sorted the rows."""
    places, event, n = loss.places, np.asarray(loss.event), len(loss.event)
    by_row = lambda x: np.asarray(x)[np.argsort(np.asarray(places.order))]
    time = n - by_row(places.ends).astype(float)
    found = {"time": time, "strata": np.zeros(n) if places.strata is None else by_row(places.strata)}
    if places.windows is not None:
        leaf, last = by_row(places.windows.leaf), by_row(places.windows.last)
        # before the earliest time with an event at which the row is at risk
        found["entry"] = np.array([
            min([time[j] for j in range(n) if leaf[j] == last[i] and event[j]], default=time[i]) - 0.5
            for i in range(n)
        ])  # fmt: skip
        found["entry"] = np.minimum(found["entry"], time - 0.5)
    return found


def _cox(loss: Any, h: np.ndarray) -> tuple[Any, np.ndarray]:
    """The partial likelihood of h (n,), event by event, and its slope; as the loss has sorted the rows."""
    w = np.ones(len(h), h.dtype) if loss.weights is None else numbers(loss.weights)
    events = np.where(w > 0, numbers(loss.event) * w, 0)
    value, slope = -(events @ np.where(events > 0, h, 0)), -events
    options = {name: by_row for name, by_row in _rows_of_cox(loss).items() if name != "time"}
    for weight, risk, factors in survival_terms(
        _rows_of_cox(loss)["time"], np.asarray(loss.event), ties=loss.ties, weights=w, **options
    ):
        log_sum = logsumexp(h[risk], b=factors)
        value += weight * log_sum
        slope[risk] += weight * factors * np.exp(h[risk] - log_sum)
    return float(loss.scale) * value, float(loss.scale) * slope


def slopes(loss: Any, W: Any) -> np.ndarray:
    """The derivative of f in XW, (n, k), at the best intercept."""
    W = numbers(W).reshape(loss.X.shape[1], -1)
    H = numbers(loss.X) @ W
    if isinstance(loss, sj.losses.CoxLoss):
        return _cox(loss, H[:, 0])[1][:, None]
    return scaled_weights(loss) * FORMULAS[type(loss).__name__].slope(
        H + intercept(loss, W), target(loss), loss
    )


def loss_value(smooth: Any, W: Any) -> float:
    """f(W), with the best intercept."""
    loss, graphs = _of_data(smooth)
    W = numbers(W).reshape(loss.X.shape[1], -1)
    if isinstance(loss, sj.losses.CoxLoss):
        return _cox(loss, (numbers(loss.X) @ W)[:, 0])[0]
    H = numbers(loss.X) @ W + intercept(loss, W)
    H = np.where(scaled_weights(loss) > 0, H, 0)
    value = np.sum(scaled_weights(loss) * FORMULAS[type(loss).__name__].value(H, target(loss), loss))
    return value + sum(p * np.sum((W[:, i] - W[:, j]) ** 2) for g in graphs for i, j, p in _edges(g))


def penalty_value(penalty: Any, W: Any) -> float:
    """g(W)."""
    return penalty_formula(penalty).value(penalty, numbers(W).reshape(len(W), -1))


# ------------------------------------------------------------------ problems


def objective_of(problem: sj.Problem) -> Callable[[Any], Any]:
    """`objective` of many points: the events of Cox's loss and who is at risk are found once."""
    loss = problem.smooth
    if not isinstance(loss, sj.losses.CoxLoss):
        return lambda W: objective(problem, W)
    X, event = numbers(loss.X), np.asarray(loss.event)
    w = np.ones(len(X)) if loss.weights is None else numbers(loss.weights)
    rows = _rows_of_cox(loss)
    terms = survival_terms(rows.pop("time"), event, ties=loss.ties, weights=w, **rows)
    events, each = np.where(w > 0, event * w, 0), np.array([weight for weight, *_ in terms])
    factors = np.zeros((len(terms), len(X)), X.dtype)
    for i, (_, risk, shares) in enumerate(terms):
        factors[i, risk] = shares

    def value(W: Any) -> Any:
        h = X @ numbers(W).reshape(len(W))
        sums = logsumexp(np.broadcast_to(h, factors.shape), b=factors, axis=1) if len(terms) else each
        likelihood = each @ sums - events @ np.where(events > 0, h, 0)
        return float(loss.scale) * likelihood + penalty_value(problem.penalty, W)

    return value


def objective(problem: sj.Problem, W: Any) -> Any:
    """F(W) in float64, or as `long_doubles` has it, with the best intercept."""
    return loss_value(problem.smooth, W) + penalty_value(problem.penalty, W)


def near(
    problem: sj.Problem, W: Any, optimum: Any, sizes: Iterable[float], rng: np.random.Generator
) -> Iterator[tuple[float, float, float, float]]:
    """A random point at each distance from W: distance, gap, excess over ``optimum``, and its scale."""
    W = np.asarray(W)
    at_zero = objective(problem, np.zeros_like(W))
    for size in sizes:
        V = W + size * rng.standard_normal(W.shape)
        value = objective(problem, V)
        yield size, float(sj.duality_gap(problem, V)), value - float(optimum), max(abs(value), at_zero)


@dataclass(frozen=True)
class Optimum:
    params: np.ndarray  # the shape of W
    intercept: np.ndarray  # (k,)
    objective: float  # at params: an upper bound of the minimum


def minimise(problem: sj.Problem) -> Optimum:
    """By the conic solver."""
    loss, graphs = _of_data(problem.smooth)
    X, shape = numbers(loss.X), target(loss).shape
    W, b = cp.Variable((X.shape[1], shape[1])), cp.Variable((1, shape[1]))
    H = X @ W + (np.ones((len(X), 1)) @ b if loss.has_intercept else 0)
    cost, constraints = FORMULAS[type(loss).__name__].conic(H, scaled_weights(loss), loss)
    cost += sum(p * cp.sum_squares(W[:, i] - W[:, j]) for g in graphs for i, j, p in _edges(g))
    if isinstance(loss, sj.losses.SoftmaxLoss):
        constraints = [*constraints, cp.sum(b) == 0]  # as it says; any other sum is as good
    penalty, more = penalty_formula(problem.penalty).conic(problem.penalty, W)
    solve(cp.Minimize(cost + penalty), [*constraints, *more])
    params = W.value.reshape(loss.params_shape)
    return Optimum(
        params, b.value[0] if loss.has_intercept else np.zeros(shape[1]), objective(problem, params)
    )
