"""Every public loss: a small instance, and its formula in numpy and for the conic solver.

The formulas are those of the docstrings, and use nothing of the library but the numbers of a problem.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from numbers_of import squares, target
from scipy.special import expit, logsumexp, softmax

from sparsejax import losses

SIMILARITY = np.random.default_rng(7).random((6, 6))


@dataclass(frozen=True)
class LossCase:
    make: Callable[..., Any]  # (X, Y, *, scale, weights, intercept)
    targets: Callable[[np.ndarray], np.ndarray] = lambda H: H  # Y, from the numbers that a linear model gives
    bounded: bool = True  # its curvature: without, there is no majorizer and no engine but fista
    by_entry: bool = True  # False: the columns of a row share one loss, and only rows have weights

    def __call__(self, X: Any, H: Any, **options: Any) -> Any:
        """The loss of X and the targets that H gives."""
        return self.make(X, self.targets(np.asarray(H)), **options)


def zero_one(H: np.ndarray) -> np.ndarray:
    """Both labels in every column."""
    return (np.median(H, axis=0) < H).astype(H.dtype)


def signs(H: np.ndarray) -> np.ndarray:
    return 2 * zero_one(H) - 1


def classes(H: np.ndarray) -> np.ndarray:
    """The largest of each row; in every other row with a probability of 1/2, the others share the rest."""
    one_hot = (H.max(axis=1, keepdims=True) == H).astype(H.dtype)
    shared = np.full_like(H, 0.5 / H.shape[1])
    return np.where((np.arange(len(H)) % 2 == 0)[:, None], one_hot, one_hot / 2 + shared)


def counts(H: np.ndarray) -> np.ndarray:
    """Whole numbers, some of them 0."""
    return np.round(np.abs(H))


def with_graph(X: Any, Y: Any, **options: Any) -> Any:
    return losses.SquaredLoss(X, Y, **options) + losses.GraphLaplacian(SIMILARITY, 0.03)


LOSSES = {
    "SquaredLoss": LossCase(losses.SquaredLoss),
    "LogisticLoss": LossCase(losses.LogisticLoss, zero_one),
    "SquaredHingeLoss": LossCase(losses.SquaredHingeLoss, signs),
    "HuberHingeLoss": LossCase(losses.HuberHingeLoss, signs),
    "SoftmaxLoss": LossCase(losses.SoftmaxLoss, classes, by_entry=False),
    "PoissonLoss": LossCase(losses.PoissonLoss, counts, bounded=False),
    "HuberLoss": LossCase(losses.HuberLoss),
    "QuantileLoss": LossCase(functools.partial(losses.QuantileLoss, q=0.3, smoothing=0.5)),
}
ALIKE = ("QuantileLoss",)  # with the code of another, HuberLoss: for tests of values, not of programs
MAIN_LOSSES = ("SquaredLoss", "LogisticLoss")  # for all of them, where what is tested lies outside the loss
SUMS = {"GraphLaplacian": LossCase(with_graph)}  # what is added to a loss
LOSS_TOOLS = {"from_batches", "observed"}  # functions beside the losses
INTERNAL_LOSSES = {"BatchedSquaredLoss", "GramLoss", "SumLoss"}  # built by methods of SquaredLoss and by +
LOSS_BASES = {"Loss", "LinearModelLoss"}
ONE_COLUMN = {"CoxLoss"}  # W is a vector, where every instance here is a matrix: `SURVIVAL`, test_cox.py

# ------------------------------------------------------------------ survival


@dataclass(frozen=True)
class SurvivalCase:
    """A variant of Cox's loss, and data for it."""

    tied: bool = False  # times, among them those of events
    weighted: bool = False  # with weights of which some are 0
    ties: str = "breslow"
    strata: bool = False  # labels a, b and c, of which c has no event
    entry: bool = False  # of every other row late, now and then at the time of an event

    def data(self, X: np.ndarray, rng: Any = None) -> dict[str, Any]:
        """time, event and what else the loss is given by row."""
        rng, n = np.random.default_rng(3) if rng is None else rng, len(X)
        time = rng.exponential(np.exp(X[:, 1] - X[:, 0]))
        time = np.round(4 * np.sqrt(time)) + 1 if self.tied else time
        found: dict[str, Any] = {"time": time, "event": rng.random(n) < 0.7}
        if self.weighted:
            found["weights"] = rng.uniform(0.2, 2, n)
            found["weights"][[2, 5, int(np.argmax(time)), int(np.argmin(time))]] = 0
        if self.strata:
            found["strata"] = np.array(["a", "b"])[rng.integers(0, 2, n)]
            found["strata"][[0, n - 1]] = "censored"[:1]
            found["event"][[0, n - 1]] = False
        if self.entry:
            entry = np.where(rng.random(n) < 0.5, 0, time * rng.random(n))
            found["entry"] = np.minimum(np.floor(entry), time - 0.5) if self.tied else entry
        return found

    def __call__(self, X: np.ndarray, H: Any = None, **options: Any) -> Any:
        """The loss of its data, or of these ones."""
        return losses.CoxLoss(X, ties=self.ties, **(self.data(X) | options))


SURVIVAL = {
    "plain": SurvivalCase(),
    "ties": SurvivalCase(tied=True),
    "weights": SurvivalCase(weighted=True),
    "ties and weights": SurvivalCase(tied=True, weighted=True),
    "efron": SurvivalCase(tied=True, weighted=True, ties="efron"),
    "strata": SurvivalCase(tied=True, weighted=True, strata=True),
    "entry": SurvivalCase(tied=True, weighted=True, entry=True),
    "efron, strata": SurvivalCase(tied=True, weighted=True, ties="efron", strata=True),
    "efron, strata, entry": SurvivalCase(tied=True, weighted=True, ties="efron", strata=True, entry=True),
}


def survival_terms(
    time: np.ndarray,
    event: np.ndarray,
    *,
    ties: str = "breslow",
    strata: Any = None,
    entry: Any = None,
    weights: Any = None,
) -> list[tuple[float, np.ndarray, np.ndarray]]:
    """One an event, by the definition: its weight, the rows at risk, and what multiplies each e^h."""
    n = len(time)
    w = np.ones(n) if weights is None else np.asarray(weights)
    strata = np.zeros(n) if strata is None else np.asarray(strata)
    entry = np.full(n, -np.inf) if entry is None else np.asarray(entry)
    found = []
    for i in np.flatnonzero((np.asarray(event) > 0) & (w > 0)):
        risk = [j for j in range(n) if w[j] > 0 and strata[j] == strata[i] and entry[j] < time[i] <= time[j]]
        tied = [j for j in risk if event[j] and time[j] == time[i]]
        if ties == "breslow":
            found.append((w[i], np.array(risk), w[risk]))
        else:
            share = tied.index(i) / len(tied)
            factors = np.array([w[j] * (1 - share if j in tied else 1) for j in risk])
            found.append((np.mean(w[tied]), np.array(risk), factors))
    return found


# ------------------------------------------------------------------ formulas


@dataclass(frozen=True)
class Entrywise:
    """A loss of each entry h of XW + b, without scale and weights."""

    value: Callable[..., np.ndarray]  # (h, y, loss)
    slope: Callable[..., np.ndarray]  # its derivative in h
    conic: Callable[..., tuple[Any, list[Any]]]  # (H, weights, loss) -> their sum, and constraints
    intercept: Callable[..., np.ndarray] | None = None  # (H, y, weights) -> b; without: by bisection


def _hinged(H: Any, weights: np.ndarray, loss: Any, delta: float) -> tuple[Any, list[Any]]:
    """The slack in two parts, of which one is squared; delta 0: all of it."""
    squared, plain = cp.Variable(H.shape, nonneg=True), cp.Variable(H.shape, nonneg=True)
    enough = squared + plain >= 1 - cp.multiply(target(loss), H)
    if delta:
        return squares(weights / (2 * delta), squared) + cp.sum(cp.multiply(weights, plain)), [enough]
    return squares(weights, squared), [enough, plain == 0]


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
    return cost + squares(weights / (2 * float(loss.smoothing)), target(loss) - H - z), []


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


FORMULAS = {
    "SquaredLoss": Entrywise(
        lambda h, y, loss: (h - y) ** 2,
        lambda h, y, loss: 2 * (h - y),
        lambda H, w, loss: (squares(w, H - target(loss)), []),
    ),
    "LogisticLoss": Entrywise(
        lambda h, y, loss: (1 - y) * np.logaddexp(0, h) + y * np.logaddexp(0, -h),
        lambda h, y, loss: expit(h) - y,
        lambda H, w, loss: (cp.sum(cp.multiply(w, cp.logistic(H) - cp.multiply(target(loss), H))), []),
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
            w[:, 0] @ (cp.log_sum_exp(H, axis=1) - cp.sum(cp.multiply(target(loss), H), axis=1)),
            [],
        ),
        _log_odds,
    ),
    "PoissonLoss": Entrywise(
        lambda h, y, loss: np.exp(h) - y * h,
        lambda h, y, loss: np.exp(h) - y,
        lambda H, w, loss: (cp.sum(cp.multiply(w, cp.exp(H) - cp.multiply(target(loss), H))), []),
        _log_counts,
    ),
    "HuberLoss": Entrywise(
        lambda h, y, loss: _huber(np.abs(h - y), float(loss.delta)) * float(loss.delta),
        lambda h, y, loss: np.clip(h - y, -float(loss.delta), float(loss.delta)),
        lambda H, w, loss: (
            cp.sum(cp.multiply(w / 2, cp.huber(H - target(loss), float(loss.delta)))),
            [],
        ),
    ),
    "QuantileLoss": Entrywise(
        lambda h, y, loss: _bent(y - h, loss)[0],
        lambda h, y, loss: -_bent(y - h, loss)[1],
        _pinball,
    ),
}
