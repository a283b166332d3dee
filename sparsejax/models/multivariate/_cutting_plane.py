r"""The cutting plane method, which adds cuts (labellings) and groups of features until the gap is small.

.. math:: \min_w J(w) = \tfrac12\|w\|_B^2 + \tfrac Cn R(w), \qquad
          \|w\|_B^2 = \min_{0\le d\le1,\,1^\top d=B} \sum_j w_j^2/d_j ,

where the norm is the B-support norm. The square of its dual norm is the sum of the B largest squares. A cut
is a labelling y', stored as its code z = y - y' with its loss :math:`\Delta`. For codes z_k with losses
:math:`\Delta_k` and any :math:`\alpha\ge0` of sum at most C/n, with :math:`c = X^\top\sum_k\alpha_kz_k`,

.. math:: D(\alpha) = \Delta^\top\alpha - \tfrac12\sum_{\text{B largest}} c_j^2 \;\le\; \min J ,

and the B features with the largest squares are the group that violates optimality most. The schedules of the
paper add this group to the master. The interleaved schedule adds the features of the group, so that the
master has all groups that these features can form. Everything is in float64 on the host.
"""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sparsejax.models.multivariate._data import Data
from sparsejax.models.multivariate._master import Master
from sparsejax.models.multivariate._oracles import Oracle
from sparsejax.models.multivariate._points import Clock, Point, Points
from sparsejax.models.multivariate._restricted import Restricted, WorkingSet
from sparsejax.solution import CONVERGED, INTERRUPTED, MAX_ITER, NON_FINITE, STALLED

MIN_SEARCH_GAIN = 0.02  # a search on a segment ends when it can gain less than this share of the gap
# The gap to which a master is solved, as a share of the whole gap. With the interleaved schedule a central
# point of the master gives better cuts than its solution, and is one or two Newton steps from the last
# central point. With two layers the inner layer needs the solution.
MASTER_GAP, INNER_MASTER_GAP = 0.95, 0.03
CLARABEL_GAP = 1e-3  # masters that are solved to a smaller share of the gap use Clarabel too


class Progress(NamedTuple):
    """The argument with which ``progress`` is called after each master.

    >>> import numpy as np
    >>> from sparsejax.models import multivariate
    >>> X, y = np.eye(4, 3), np.array([1, -1, -1, 1])
    >>> seen = []
    >>> model = multivariate.fit(X, y, measure=multivariate.f_beta(), budget=2, C=1.0, progress=seen.append)
    >>> seen[0].num_iters, seen[-1].lower_bound <= seen[-1].objective
    (1, True)
    """

    num_iters: int  # masters solved
    objective: float  # the best so far
    lower_bound: float  # the best so far
    num_cuts: int  # cuts in the master
    num_groups: int  # groups in the master; with the interleaved schedule its features


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
        """The relative gap; 0 if the objective is 0."""
        return (self.objective - self.lower_bound) / self.objective if self.objective > 0 else 0.0


class CuttingPlane:
    """The state of one solve; `run` is the algorithm, the other methods are its steps.

    Args:
      data, oracle: the matrix of examples, and the oracle for their truth.
      budget, bound: B and C/n.
      tol, eps_delta: the solve ends when ``J(w) - D(alpha) <= max(tol J(w), C/n eps_delta)``.
      schedule: as in `fit`.
    """

    def __init__(
        self,
        data: Data,
        oracle: Oracle,
        budget: float,
        bound: float,
        tol: float,
        eps_delta: float,
        schedule: str,
    ):
        budget, clock = min(budget, data.X.shape[1]), Clock("oracle", "products", "master")
        self.data, self.bound, self.tol, self.eps_delta = data, bound, tol, eps_delta
        self.interleaved, self.printed = schedule == "interleaved", schedule == "printed"
        self.points = Points(data, oracle, budget, bound, clock)
        self.restricted = Restricted(data, budget, bound, self.interleaved, clock)
        self.clock, self.begin = clock, time.perf_counter()
        self.best = self.points.of_weights(np.zeros(0, int), np.zeros(0))
        self.lower = 0.0
        self.history: list[tuple[float, float]] = []
        self.outer = 0  # times that groups were added
        self.loose = MASTER_GAP if self.interleaved else INNER_MASTER_GAP
        self.precision = self.loose
        self.inner = math.inf  # the best objective since groups were added
        self.known = self.restricted.working_set()  # the working set before the last round

    @property
    def gap(self) -> float:
        """The absolute gap; `Result.gap` is the relative one."""
        return self.best.objective - self.lower

    @property
    def target(self) -> float:
        """The absolute gap at which the solve ends."""
        return max(self.tol * self.best.objective, self.bound * self.eps_delta)

    def run(
        self,
        maxiter: int,
        progress: Callable[[Progress], Any] | None,
        start: WorkingSet | None,
    ) -> Result:
        """Solve masters until the gap meets its target, ``maxiter`` masters are solved, or Ctrl-C is pressed.

        The status of the result says which of these ended the solve.
        """
        if self.best.violation <= 0:  # R(0) = 0, so that w = 0 is the solution
            self.lower = self.best.objective
            return self.result(CONVERGED)
        self.restricted.add_cut(self.best.z, self.best.delta, 1.0)
        if start is not None:
            self.restricted.resume(start)
        value, *group = self.restricted.dual()
        self.lower, self.outer = max(0.0, value), 1
        self.restricted.add_group(*group)
        status = CONVERGED if self.gap <= self.target else None  # w = 0 may be the solution, as for X = 0
        try:
            while status is None:
                self.known = self.restricted.working_set()
                status = self.round(progress) if len(self.history) < maxiter else MAX_ITER
        except KeyboardInterrupt:  # the best point and the lower bound are valid at any moment
            status = INTERRUPTED
        # An interior point leaves a tiny weight on every feature. The smallest weights are set to 0, as many
        # as these bounds on the objective allow: the gap grows by at most a tenth, and not above its target.
        within_target = max(self.lower + self.target, self.best.objective)
        self.best = self.points.thin(self.best, min(self.best.objective + 0.1 * self.gap, within_target))
        return self.result(status)

    def round(self, progress: Callable[[Progress], Any] | None) -> int | None:
        """Solve one master and add cuts and groups; a status if the solve ends, else None."""
        # Solve the master, and search from the best point to its solution.
        wanted = self.precision * max(self.gap, self.target)
        master = self.restricted.solve(wanted, self.precision < CLARABEL_GAP)
        new = self.points.of_weights(*self.restricted.weights(master.parts))
        if not (np.isfinite(new.objective) and np.isfinite(master.alpha).all()):
            return NON_FINITE
        tried = [new] if self.printed else self.points.between(self.best, new, MIN_SEARCH_GAIN * self.gap)
        self.best = min(self.best, *tried, key=lambda p: p.objective)
        # The lower bound D at the shares of the master.
        self.restricted.shares = master.alpha / self.bound
        value, *group = self.restricted.dual()
        self.lower = max(self.lower, value)
        self.history.append((self.best.objective, self.lower))
        if progress is not None:
            sizes = len(self.restricted.codes), len(self.restricted.G)
            progress(Progress(len(self.history), *self.history[-1], *sizes))
        if self.gap <= self.target:
            return CONVERGED
        # Add cuts, and a group if one is missing and the inner layer has ended.
        grown = self.add_cuts(master, tried if self.interleaved or self.printed else [new, self.best])
        self.inner = min(self.inner, new.objective, math.inf if self.printed else self.best.objective)
        # D below the value of the master by more than rounding errors means that the group that attains D is
        # not in the master. The inner layer ends at half the target, or at a gap that accuracy still allows.
        missing = value < master.lower - 1e-14 * self.best.objective
        inner_target = max(0.5 * self.target, 1e-9 * self.best.objective)
        if self.interleaved or not grown or self.inner - master.lower <= inner_target:
            grown = (missing and self.add_group(*group)) or grown
            self.inner = math.inf
        if grown:
            self.precision = min(self.loose, self.precision * 10)
        elif self.precision < CLARABEL_GAP**2:
            return STALLED
        else:  # at this accuracy nothing can be added: solve the next master more accurately
            self.precision *= 0.01
        return None

    def add_cuts(self, master: Master, points: list[Point]) -> bool:
        """Drop idle cuts and groups, and add the cuts of these points; True if one is new."""
        if not self.printed:
            self.restricted.drop(np.linalg.norm(master.parts, axis=1), len(self.history))
        # A list: `any` of a generator would stop at the first new cut, and the others would not be added.
        return any([p.violation > 0 and self.restricted.add_cut(p.z, p.delta) for p in points])

    def add_group(self, columns: np.ndarray, root: np.ndarray) -> bool:
        if not self.restricted.add_group(columns, root):
            return False
        self.outer += 1
        if self.printed:  # every call of Algorithm 1 starts with the first cut alone
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
