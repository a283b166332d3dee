r"""The cutting plane method: groups of features and labellings, added as the certificate asks for them.

.. math:: \min_w J(w) = \tfrac12\|w\|_B^2 + \tfrac Cn R(w), \qquad
          \|w\|_B^2 = \min_{0\le d\le1,\,1^\top d=B} \sum_j w_j^2/d_j ,

whose norm is the B-support norm and whose dual norm sums the B largest squares. For codes z_k with losses
:math:`\Delta_k` and any :math:`\alpha\ge0` of sum at most C/n, with :math:`c = X^\top\sum_k\alpha_kz_k`,

.. math:: D(\alpha) = \Delta^\top\alpha - \tfrac12\sum_{\text{B largest}} c_j^2 \;\le\; \min J ,

and the group that attains it is the one that is missing most. The paper's schedules add it as a group to
`_master`; the interleaved one adds its features to `_feature_master`, which then knows all groups of the
features seen so far. All in float64 on the host.
"""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sparsejax.models.multivariate._data import Data
from sparsejax.models.multivariate._interior_point import Master
from sparsejax.models.multivariate._oracles import Oracle
from sparsejax.models.multivariate._points import Clock, Point, Points
from sparsejax.models.multivariate._restricted import Restricted, WorkingSet
from sparsejax.solution import CONVERGED, INTERRUPTED, MAX_ITER, NON_FINITE, STALLED

SCHEDULES = ("interleaved", "two-layer", "printed")
RESOLUTION = 0.02  # the share of the gap that is worth an oracle call on a segment
# A master's gap as a share of the whole gap. Interleaved, a central point of the master gives better cuts
# than its solution, and is a step or two of Newton from the one before; in two layers the inner one must end.
# Below EXACT Clarabel is asked too.
LOOSE, LOOSE_INNER, EXACT = 0.95, 0.03, 1e-3


class Progress(NamedTuple):
    """What ``progress`` is told after each master.

    >>> import numpy as np
    >>> from sparsejax.models import multivariate
    >>> X, y = np.eye(4, 3), np.array([1, -1, -1, 1])
    >>> seen = []
    >>> model = multivariate.fit(X, y, measure=multivariate.f_beta(), budget=2, C=1.0, progress=seen.append)
    >>> seen[0].num_iters, seen[-1].lower_bound <= seen[-1].objective
    (1, True)
    """

    num_iters: int  # masters solved
    objective: float
    lower_bound: float
    num_cuts: int
    num_groups: int  # in the master; interleaved, the number of features


class Result(NamedTuple):
    w: np.ndarray  # (m,)
    objective: float
    lower_bound: float
    status: int
    num_iters: int  # masters solved
    num_outer: int  # times that groups were added
    num_oracle_calls: int
    seconds: dict[str, float]  # by oracle, products, master, all
    history: np.ndarray  # (num_iters, 2): objective and lower bound after each master
    working_set: WorkingSet

    @property
    def gap(self) -> float:
        """Relative; 0 where the objective is."""
        return (self.objective - self.lower_bound) / self.objective if self.objective > 0 else 0.0


class CuttingPlane:
    """The state of one solve; `run` is the algorithm, the rest its steps.

    Args:
      data, oracle: of the examples.
      budget, bound: B and C/n.
      tol, eps_delta: until ``J(w) - D(alpha) <= max(tol J(w), C/n eps_delta)``.
      schedule: one of `SCHEDULES`.
    """

    def __init__(
        self,
        data: Data,
        oracle: Oracle,
        budget: float,
        bound: float,
        tol: float,
        eps_delta: float,
        schedule: str = "interleaved",
    ):
        budget, clock = min(budget, data.X.shape[1]), Clock("oracle", "products", "master")
        self.data, self.bound, self.tol, self.eps_delta = data, bound, tol, eps_delta
        self.interleaved, self.printed = schedule == "interleaved", schedule == "printed"
        self.points = Points(data, oracle, budget, bound, clock)
        self.restricted = Restricted(data, budget, bound, self.interleaved, clock)
        self.clock, self.begin = clock, time.perf_counter()
        self.best = self.points.zero()
        self.lower = 0.0
        self.history: list[tuple[float, float]] = []
        self.outer = 0  # times that groups were added
        self.loose = LOOSE if self.interleaved else LOOSE_INNER
        self.precision = self.loose
        self.inner = math.inf  # the best objective since groups were added
        self.known = self.restricted.working_set()  # before the last round

    @property
    def gap(self) -> float:
        return self.best.objective - self.lower

    @property
    def target(self) -> float:
        return max(self.tol * self.best.objective, self.bound * self.eps_delta)

    def run(
        self,
        maxiter: int = 1000,
        progress: Callable[[Progress], Any] | None = None,
        start: WorkingSet | None = None,
    ) -> Result:
        """Masters, until the gap meets its target or what comes first; Ctrl-C is a status."""
        if self.best.violation <= 0:  # w = 0 loses nothing
            self.lower = self.best.objective
            return self.result(CONVERGED)
        self.restricted.add_cut(self.best.z, self.best.delta, 1.0)
        if start is not None:
            self.restricted.resume(start)
        value, *group = self.restricted.dual()
        self.lower, self.outer = max(0.0, value), 1
        self.restricted.add_group(*group)
        status = None
        try:
            while status is None:
                self.known = self.restricted.working_set()
                status = self.round(progress) if len(self.history) < maxiter else MAX_ITER
        except KeyboardInterrupt:  # the best point and the bound hold wherever that was
            status = INTERRUPTED
        # An interior point leaves a trace of weight on every feature it knows: the smallest go, as many as
        # raise the gap by a tenth at most and do not spoil the target.
        spared = max(self.lower + self.target, self.best.objective)
        self.best = self.points.thin(self.best, min(self.best.objective + 0.1 * self.gap, spared))
        return self.result(status)

    def round(self, progress: Callable[[Progress], Any] | None) -> int | None:
        """One master and what follows from it; a status where that is the end."""
        wanted = self.precision * max(self.gap, self.target)
        master = self.restricted.solve(wanted, self.precision < EXACT)
        new = self.points.of_weights(*self.restricted.weights(master.parts))
        if not (np.isfinite(new.objective) and np.isfinite(master.alpha).all()):
            return NON_FINITE
        tried = [new] if self.printed else self.points.between(self.best, new, RESOLUTION * self.gap)
        self.best = min(self.best, *tried, key=lambda p: p.objective)
        self.restricted.shares = master.alpha / self.bound
        value, *group = self.restricted.dual()
        self.lower = max(self.lower, value)
        self.history.append((self.best.objective, self.lower))
        if progress is not None:
            known = len(self.restricted.codes), len(self.restricted.G)
            progress(Progress(len(self.history), *self.history[-1], *known))
        if self.gap <= self.target:
            return CONVERGED
        grown = self.add_cuts(master, tried if self.interleaved or self.printed else [new, self.best])
        self.inner = min(self.inner, new.objective, math.inf if self.printed else self.best.objective)
        # D < value of the master: its best group is missing
        missing = value < master.lower - 1e-14 * self.best.objective
        if self.interleaved or not grown or self.inner_ends(master):
            grown = (missing and self.add_group(*group)) or grown
            self.inner = math.inf
        if grown:
            self.precision = min(self.loose, self.precision * 10)
        elif self.precision < EXACT**2:
            return STALLED
        else:  # nothing is missing, as far as this accuracy can tell
            self.precision *= 0.01
        return None

    def add_cuts(self, master: Master, points: list[Point]) -> bool:
        """Those of the points; True if one is new. What had no weight for long goes."""
        if not self.printed:
            self.restricted.drop(np.linalg.norm(master.parts, axis=1), len(self.history))
        return any([p.violation > 0 and self.restricted.add_cut(p.z, p.delta) for p in points])

    def inner_ends(self, master: Master) -> bool:
        """The inner layer has reached its share of the target."""
        return self.inner - master.lower <= max(0.5 * self.target, 1e-9 * self.best.objective)

    def add_group(self, columns: np.ndarray, root: np.ndarray) -> bool:
        if not self.restricted.add_group(columns, root):
            return False
        self.outer += 1
        if self.printed:  # every call of Algorithm 1 starts without cuts
            self.restricted.keep_first_cut()
        return True

    def result(self, status: int) -> Result:
        w = np.zeros(self.data.shape[1])
        w[self.data.columns[self.best.support]] = self.best.w
        return Result(
            w=w,
            objective=self.best.objective,
            lower_bound=self.lower,
            status=status,
            num_iters=len(self.history),
            num_outer=self.outer,
            num_oracle_calls=self.points.calls,
            seconds=self.clock.seconds | {"all": time.perf_counter() - self.begin},
            history=np.array(self.history).reshape(-1, 2),
            working_set=self.known if status == INTERRUPTED else self.restricted.working_set(),
        )
