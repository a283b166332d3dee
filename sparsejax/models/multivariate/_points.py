"""Points: weights w with their scores, their objective and the labelling that violates the margin most."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sparsejax.models.multivariate._data import Data
from sparsejax.models.multivariate._oracles import Oracle
from sparsejax.models.multivariate._support_norm import support_norm

MAX_SEARCH_CALLS = 6  # oracle calls of a search on a segment

Out = TypeVar("Out")


class Clock:
    """Adds up the seconds that named parts of the work take."""

    def __init__(self, *names: str):
        self.seconds = dict.fromkeys(names, 0.0)

    def timed(self, name: str, function: Callable[..., Out], *args: Any) -> Out:
        start = time.perf_counter()
        out = function(*args)
        self.seconds[name] += time.perf_counter() - start
        return out


class Point(NamedTuple):
    support: np.ndarray  # (s,), indices of the features with a weight
    w: np.ndarray  # (s,), their weights
    v: np.ndarray  # (n,), scores Xw
    objective: float  # J(w)
    z: np.ndarray  # (n,), code of the labelling that violates the margin most
    delta: float  # its loss
    violation: float  # delta - z'v
    gradient: np.ndarray  # (s,), gradient of half the squared norm


class Points:
    """Makes points, with one call of the oracle for each.

    Args:
      data, oracle: the matrix of examples, and the oracle for their truth.
      budget, bound: B and C/n of the objective.
      clock: a `Clock` with the parts "oracle" and "products".
    """

    def __init__(self, data: Data, oracle: Oracle, budget: float, bound: float, clock: Clock):
        self.data, self.oracle, self.budget, self.bound, self.clock = data, oracle, budget, bound, clock
        self.calls = 0

    def of_weights(self, support: np.ndarray, w: np.ndarray) -> Point:
        return self.of_scores(support, w, self.clock.timed("products", self.data.scores, support, w))

    def of_scores(self, support: np.ndarray, w: np.ndarray, v: np.ndarray) -> Point:
        self.calls += 1
        z, delta = self.clock.timed("oracle", self.oracle, v)
        violation = delta - float(z @ v)
        square, gradient = support_norm(w, self.budget)
        objective = 0.5 * square + self.bound * max(0.0, violation)
        return Point(support, w, v, objective, z, delta, violation, gradient)

    def between(self, old: Point, new: Point, resolution: float) -> list[Point]:
        """The points that a search for the lowest objective on the segment from ``old`` to ``new`` has tried.

        ``old`` and ``new`` are among them. The scores of a point are interpolated, without a product with X.
        The search intersects tangents, and ends when they allow no decrease by more than ``resolution``.
        """
        support = np.union1d(old.support, new.support)
        places = [np.searchsorted(support, p.support) for p in (old, new)]
        start, end = np.zeros(len(support)), np.zeros(len(support))
        start[places[0]], end[places[1]] = old.w, new.w
        dw, dv = end - start, new.v - old.v

        def slope(p: Point) -> float:
            at = np.searchsorted(support, p.support)
            return float(p.gradient @ dw[at]) - self.bound * float(p.z @ dv) * (p.violation > 0)

        tried = [old, new]
        # The ends of the interval that holds the minimum: (place on the segment, objective, slope).
        low, high = (0.0, old.objective, min(slope(old), 0.0)), (1.0, new.objective, slope(new))
        if high[2] <= 0:
            return tried
        for _ in range(MAX_SEARCH_CALLS):
            width = high[0] - low[0]
            # The tangents at the two ends meet at low[0] + t, at the value low[1] + low[2] t.
            t = (low[1] - high[1] + high[2] * width) / (high[2] - low[2]) if high[2] > low[2] else width / 2
            if min(p.objective for p in tried) - (low[1] + low[2] * t) <= resolution:
                break
            theta = low[0] + min(max(t, 0.1 * width), 0.9 * width)
            p = self.of_scores(support, start + theta * dw, old.v + theta * dv)
            tried.append(p)
            side = (theta, p.objective, slope(p))
            low, high = (side, high) if side[2] < 0 else (low, side)
        return tried

    def thin(self, best: Point, allowed: float) -> Point:
        """The point without its smallest weights: as many as leave an objective of at most ``allowed``.

        The number is found by bisection.
        """
        order = np.argsort(np.abs(best.w), kind="stable")
        full, enough, too_many = best, 0, len(order)  # numbers of weights that can, and cannot, be left out
        while too_many - enough > 1:
            middle = (enough + too_many) // 2
            stays = np.sort(order[middle:])
            p = self.of_weights(full.support[stays], full.w[stays])
            if p.objective <= allowed:
                enough, best = middle, p
            else:
                too_many = middle
        return best
