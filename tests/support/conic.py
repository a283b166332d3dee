"""The reference: an interior-point conic solver (cvxpy with Clarabel), and objectives in numpy.

Both from the formulas in the docstrings, and from nothing of the library but the numbers of a problem.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logsumexp, softmax

import sparsejax as sj

ACCURACY = 1e-8  # relative, of the objective at what it returns
FEASIBLE = 1e-8  # what it may exceed a bound by
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


# ------------------------------------------------------------------ losses


@dataclass(frozen=True)
class Entrywise:
    """A loss of each entry h of XW + b, without scale and weights."""

    value: Callable[..., np.ndarray]  # (h, y, loss)
    slope: Callable[..., np.ndarray]  # its derivative in h
    conic: Callable[..., tuple[Any, list[Any]]]  # (H, weights, loss) -> their sum, and constraints
    intercept: Callable[..., np.ndarray] | None = None  # (H, y, weights) -> b; without: by bisection


def _squares(weights: np.ndarray, R: Any) -> Any:
    return cp.sum_squares(cp.multiply(np.sqrt(weights), R))


def _hinged(H: Any, weights: np.ndarray, loss: Any, delta: float) -> tuple[Any, list[Any]]:
    """The slack in two parts, of which one is squared; delta 0: all of it."""
    squared, plain = cp.Variable(H.shape, nonneg=True), cp.Variable(H.shape, nonneg=True)
    enough = squared + plain >= 1 - cp.multiply(_target(loss), H)
    if delta:
        return _squares(weights / (2 * delta), squared) + cp.sum(cp.multiply(weights, plain)), [enough]
    return _squares(weights, squared), [enough, plain == 0]


def _slack(h: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.maximum(1 - y * h, 0)


def _huber(slack: np.ndarray, delta: float) -> np.ndarray:
    return np.where(slack < delta, slack**2 / (2 * delta), slack - delta / 2)


def _bent(r: np.ndarray, loss: Any) -> tuple[np.ndarray, np.ndarray]:
    """The envelope of the pinball loss of r = y - h and its slope in r, from the pieces of the docstring."""
    q, mu = float(loss.q), float(loss.smoothing)
    above, below = q * r - mu * q**2 / 2, (q - 1) * r - mu * (1 - q) ** 2 / 2
    value = np.where(r > mu * q, above, np.where(r < -mu * (1 - q), below, r**2 / (2 * mu)))
    return value, np.where(r > mu * q, q, np.where(r < -mu * (1 - q), q - 1, r / mu))


def _pinball(H: Any, weights: np.ndarray, loss: Any) -> tuple[Any, list[Any]]:
    """The envelope by its definition: z with the pinball loss, r - z squared."""
    z, q = cp.Variable(H.shape), float(loss.q)
    cost = cp.sum(cp.multiply(weights, cp.maximum(q * z, (q - 1) * z)))
    return cost + _squares(weights / (2 * float(loss.smoothing)), _target(loss) - H - z), []


def _log_counts(H: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    return np.log((w * y).sum(axis=0)) - logsumexp(H, axis=0, b=w)


def _log_odds(H: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Of classes, with the sum 0: by proportional fitting, which needs no derivative."""
    b, mass = np.zeros(H.shape[1]), np.log((w * y).sum(axis=0))
    for _ in range(100_000):
        moved = mass - logsumexp(H - logsumexp(H + b, axis=1, keepdims=True), axis=0, b=w)
        moved -= moved.mean()
        done, b = np.abs(moved - b).max() <= 1e-14 * (1 + np.abs(b).max()), moved
        if done:
            break
    return b


ENTRIES = {
    "SquaredLoss": Entrywise(
        lambda h, y, loss: (h - y) ** 2,
        lambda h, y, loss: 2 * (h - y),
        lambda H, w, loss: (_squares(w, H - _target(loss)), []),
    ),
    "LogisticLoss": Entrywise(
        lambda h, y, loss: (1 - y) * np.logaddexp(0, h) + y * np.logaddexp(0, -h),
        lambda h, y, loss: expit(h) - y,
        lambda H, w, loss: (cp.sum(cp.multiply(w, cp.logistic(H) - cp.multiply(_target(loss), H))), []),
    ),
    "SquaredHingeLoss": Entrywise(
        lambda h, y, loss: _slack(h, y) ** 2,
        lambda h, y, loss: -2 * y * _slack(h, y),
        lambda H, w, loss: _hinged(H, w, loss, 0),
    ),
    "HuberHingeLoss": Entrywise(
        lambda h, y, loss: _huber(_slack(h, y), float(loss.delta)),
        lambda h, y, loss: -y * np.clip(_slack(h, y) / float(loss.delta), 0, 1),
        lambda H, w, loss: _hinged(H, w, loss, float(loss.delta)),
    ),
    "SoftmaxLoss": Entrywise(
        lambda h, y, loss: y * (logsumexp(h, axis=1, keepdims=True) - h),
        lambda h, y, loss: softmax(h, axis=1) - y,
        lambda H, w, loss: (
            w[:, 0] @ (cp.log_sum_exp(H, axis=1) - cp.sum(cp.multiply(_target(loss), H), axis=1)),
            [],
        ),
        _log_odds,
    ),
    "PoissonLoss": Entrywise(
        lambda h, y, loss: np.exp(h) - y * h,
        lambda h, y, loss: np.exp(h) - y,
        lambda H, w, loss: (cp.sum(cp.multiply(w, cp.exp(H) - cp.multiply(_target(loss), H))), []),
        _log_counts,
    ),
    "HuberLoss": Entrywise(
        lambda h, y, loss: _huber(np.abs(h - y), float(loss.delta)) * float(loss.delta),
        lambda h, y, loss: np.clip(h - y, -float(loss.delta), float(loss.delta)),
        lambda H, w, loss: (
            cp.sum(cp.multiply(w / 2, cp.huber(H - _target(loss), float(loss.delta)))),
            [],
        ),
    ),
    "QuantileLoss": Entrywise(
        lambda h, y, loss: _bent(y - h, loss)[0],
        lambda h, y, loss: -_bent(y - h, loss)[1],
        _pinball,
    ),
}


_precision: list[type] = [np.float64]


@contextlib.contextmanager
def long_doubles() -> Iterator[None]:
    """Objectives and intercepts in 64 bits of mantissa, where the machine has them."""
    _precision.append(np.longdouble)
    try:
        yield
    finally:
        _precision.pop()


def _numbers(x: Any) -> np.ndarray:
    return np.asarray(x, _precision[-1])


def _target(loss: Any) -> np.ndarray:
    """Y, (n, k)."""
    return _numbers(loss.Y).reshape(len(loss.Y), -1)


def _weights(loss: Any) -> np.ndarray:
    """(n, k), with the scale."""
    shape = _target(loss).shape
    weights = 1.0 if loss.weights is None else _numbers(loss.weights).reshape(shape[0], -1)
    return float(loss.scale) * np.broadcast_to(weights, shape)


def intercept(loss: Any, W: Any) -> np.ndarray:
    """The best b (k,), by bisection."""
    Y, weights, slope = _target(loss), _weights(loss), ENTRIES[type(loss).__name__].slope
    H = _numbers(loss.X) @ _numbers(W).reshape(loss.X.shape[1], -1)
    if not loss.has_intercept:
        return np.zeros(Y.shape[1])
    if ENTRIES[type(loss).__name__].intercept is not None:
        return ENTRIES[type(loss).__name__].intercept(H, Y, weights)
    bound = 50 + np.abs(H).max() + np.abs(Y).max()
    if _precision[-1] is np.longdouble:
        low, high = np.full(Y.shape[1], -bound), np.full(Y.shape[1], bound)
        for _ in range(120):
            middle = (low + high) / 2
            rises = np.sum(weights * slope(H + middle, Y, loss), axis=0) > 0
            low, high = np.where(rises, low, middle), np.where(rises, middle, high)
        return (low + high) / 2
    return np.array([
        brentq(lambda b, h=h, y=y, w=w: w @ slope(h + b, y, loss), -bound, bound, xtol=1e-15, rtol=1e-14)
        for h, y, w in zip(H.T, Y.T, weights.T, strict=True)
    ])  # fmt: skip


def _of_data(smooth: Any) -> tuple[Any, tuple[Any, ...]]:
    """The loss of the data, and the graphs that are added to it."""
    return (smooth.loss, smooth.graphs) if isinstance(smooth, sj.losses.SumLoss) else (smooth, ())


def _edges(graph: Any) -> list[tuple[int, int, float]]:
    P, k = _numbers(graph.similarity), len(graph.similarity)
    return [(i, j, float(graph.strength) / 2 * (P[i, j] + P[j, i]) / 2) for i in range(k) for j in range(i)]


def _cox(loss: Any, h: np.ndarray) -> tuple[Any, np.ndarray]:
    """The partial likelihood of h (n,), event by event, and its slope; as the loss has sorted the rows."""
    order, ends = np.asarray(loss.order), np.asarray(loss.ends)
    w = np.ones(len(h), h.dtype) if loss.weights is None else _numbers(loss.weights)
    value, slope = h.dtype.type(0), np.zeros_like(h)
    for place in np.flatnonzero((np.asarray(loss.event) * w)[order] > 0):
        i, risk = order[place], order[: ends[place] + 1]
        risk = risk[w[risk] > 0]
        log_sum = logsumexp(h[risk], b=w[risk])
        value += w[i] * (log_sum - h[i])
        slope[i] -= w[i]
        slope[risk] += w[i] * w[risk] * np.exp(h[risk] - log_sum)
    return float(loss.scale) * value, float(loss.scale) * slope


def slopes(loss: Any, W: Any) -> np.ndarray:
    """The derivative of f in XW, (n, k), at the best intercept."""
    W = _numbers(W).reshape(loss.X.shape[1], -1)
    H = _numbers(loss.X) @ W
    if isinstance(loss, sj.losses.CoxLoss):
        return _cox(loss, H[:, 0])[1][:, None]
    return _weights(loss) * ENTRIES[type(loss).__name__].slope(H + intercept(loss, W), _target(loss), loss)


def loss_value(smooth: Any, W: Any) -> float:
    """f(W), with the best intercept."""
    loss, graphs = _of_data(smooth)
    W = _numbers(W).reshape(loss.X.shape[1], -1)
    if isinstance(loss, sj.losses.CoxLoss):
        return _cox(loss, (_numbers(loss.X) @ W)[:, 0])[0]
    H = _numbers(loss.X) @ W + intercept(loss, W)
    H = np.where(_weights(loss) > 0, H, 0)
    value = np.sum(_weights(loss) * ENTRIES[type(loss).__name__].value(H, _target(loss), loss))
    return value + sum(p * np.sum((W[:, i] - W[:, j]) ** 2) for g in graphs for i, j, p in _edges(g))


# ------------------------------------------------------------------ penalties


def _rows(strength: Any, d: int) -> np.ndarray:
    return np.broadcast_to(_numbers(strength), (d,))


def _members(groups: Any) -> list[list[int]]:
    return [list(map(int, group)) for group in groups.tolist()]


def penalty_value(penalty: Any, W: Any) -> float:
    """g(W)."""
    W = _numbers(W).reshape(len(W), -1)
    d, name = len(W), type(penalty).__name__
    l1, l2, largest = np.abs(W).sum(1), np.sqrt((W**2).sum(1)), np.abs(W).max(1)
    if name == "L1":
        return _rows(penalty.strength, d) @ l1
    if name == "L21":
        return _rows(penalty.alpha, d) @ l2
    if name == "L1Inf":
        return _rows(penalty.alpha, d) @ largest
    if name == "ExclusiveLasso":
        return _rows(penalty.beta, d) @ l1**2
    if name == "ExclusiveL21":
        return _rows(penalty.alpha, d) @ l2 + _rows(penalty.beta, d) @ l1**2
    if name == "ExclusiveGroupL21":
        sums = [l2[group].sum() ** 2 for group in _members(penalty.groups)]
        return _rows(penalty.alpha, len(sums)) @ np.array(sums)
    if name == "ExclusiveGroupLasso":
        norms = [
            sum(np.sqrt((W[:, group] ** 2).sum(1)) for group in _members(view)) for view in penalty.views
        ]
        return _rows(penalty.strength, d) / 2 @ sum(total**2 for total in norms)
    if name == "GroupLasso":
        norms = np.array([np.linalg.norm(W[group]) for group in _members(penalty.groups)])
        return _rows(penalty.alpha, len(norms)) @ norms
    if name == "SquaredL2":
        return _rows(penalty.strength, d) / 2 @ l2**2
    if name == "NonNegative":
        return 0.0 if (W >= -FEASIBLE).all() else np.inf
    if name == "Box":
        low, high = _rows(penalty.low, d)[:, None], _rows(penalty.high, d)[:, None]
        return 0.0 if ((low - FEASIBLE <= W) & (high + FEASIBLE >= W)).all() else np.inf
    if name == "Sum":
        return sum(penalty_value(part, W) for part in penalty.parts)
    raise KeyError(name)


def penalty_conic(penalty: Any, W: cp.Variable) -> tuple[Any, list[Any]]:
    """g(W) as an expression of epigraph variables, and the constraints on them."""
    d, name = W.shape[0], type(penalty).__name__
    largest, l1, l2 = cp.Variable(d), cp.Variable(d), cp.Variable(d)
    A = cp.Variable(W.shape)
    absolute = [A >= W, A >= -W]
    entries, lengths = [*absolute, l1 >= cp.sum(A, axis=1)], [cp.norm(W, 2, axis=1) <= l2]
    weighted = lambda strength, x: _rows(strength, x.size) @ x
    squared = lambda strength, x: _squares(_rows(strength, x.size), x)
    if name == "L1":
        return weighted(penalty.strength, l1), entries
    if name == "L21":
        return weighted(penalty.alpha, l2), lengths
    if name == "L1Inf":
        return weighted(penalty.alpha, largest), [*absolute, largest >= cp.max(A, axis=1)]
    if name == "ExclusiveLasso":
        return squared(penalty.beta, l1), entries
    if name == "ExclusiveL21":
        return weighted(penalty.alpha, l2) + squared(penalty.beta, l1), [*entries, *lengths]
    if name == "ExclusiveGroupL21":
        members = _members(penalty.groups)
        sums = [cp.sum(l2[group]) for group in members]
        return (squared(penalty.alpha, cp.hstack(sums)), lengths) if members else (0, [])
    if name == "ExclusiveGroupLasso":
        totals = [sum(cp.norm(W[:, group], 2, axis=1) for group in _members(view)) for view in penalty.views]
        return sum(squared(penalty.strength, total) for total in totals) / 2, []
    if name == "GroupLasso":
        norms = [cp.norm(W[group], "fro") for group in _members(penalty.groups)]
        return weighted(penalty.alpha, cp.hstack(norms)), []
    if name == "SquaredL2":
        strength = _rows(penalty.strength, d)
        return _squares(np.broadcast_to(strength[:, None], W.shape) / 2, W), []
    if name == "NonNegative":
        return 0, [W >= 0]
    if name == "Box":
        bounds = (_rows(bound, d)[:, None] for bound in (penalty.low, penalty.high))
        low, high = (np.broadcast_to(bound, W.shape) for bound in bounds)
        below = [low <= W] if np.isfinite(low).all() else []
        return 0, [*below, high >= W] if np.isfinite(high).all() else below
    if name == "Sum":
        parts = [penalty_conic(part, W) for part in penalty.parts]
        return sum(value for value, _ in parts), [c for _, constraints in parts for c in constraints]
    raise KeyError(name)


# ------------------------------------------------------------------ problems


def objective(problem: sj.Problem, W: Any) -> Any:
    """F(W) in float64, or as `long_doubles` has it, with the best intercept."""
    return loss_value(problem.smooth, W) + penalty_value(problem.penalty, W)


@dataclass(frozen=True)
class Optimum:
    params: np.ndarray  # the shape of W
    intercept: np.ndarray  # (k,)
    objective: float  # at params: an upper bound of the minimum


def minimise(problem: sj.Problem) -> Optimum:
    """By the conic solver."""
    loss, graphs = _of_data(problem.smooth)
    X, shape = _numbers(loss.X), _target(loss).shape
    W, b = cp.Variable((X.shape[1], shape[1])), cp.Variable((1, shape[1]))
    H = X @ W + (np.ones((len(X), 1)) @ b if loss.has_intercept else 0)
    cost, constraints = ENTRIES[type(loss).__name__].conic(H, _weights(loss), loss)
    cost += sum(p * cp.sum_squares(W[:, i] - W[:, j]) for g in graphs for i, j, p in _edges(g))
    if isinstance(loss, sj.losses.SoftmaxLoss):
        constraints = [*constraints, cp.sum(b) == 0]  # as it says; any other sum is as good
    penalty, more = penalty_conic(problem.penalty, W)
    solve(cp.Minimize(cost + penalty), [*constraints, *more])
    params = W.value.reshape(loss.params_shape)
    return Optimum(
        params, b.value[0] if loss.has_intercept else np.zeros(shape[1]), objective(problem, params)
    )
