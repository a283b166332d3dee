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

from sparsejax.models.multivariate import _feature_master, _master
from sparsejax.models.multivariate._data import Data
from sparsejax.problem import CONVERGED, MAX_ITER, NON_FINITE, STALLED

SCHEDULES = ("interleaved", "two-layer", "printed")
SEARCH, RESOLUTION = 6, 0.02  # oracle calls on a segment, and the share of the gap that is worth one
# A master's gap as a share of the whole gap. Interleaved, a central point of the master gives better cuts
# than its solution; in two layers the inner one must end. Below EXACT Clarabel is asked too.
LOOSE, LOOSE_INNER, EXACT = 0.5, 0.03, 1e-3
# What had less weight than this for so many masters is dropped: a cut, as a share of the mean (a master costs
# K^3, and interior points leave a trace of weight on every cut), a group or feature, as a share of the sum.
# In a long solve cuts stay longer, for a fifth of the masters so far, so that nothing can cycle for ever.
IDLE_CUT, SMALL_CUT, IDLE_GROUP, SMALL_GROUP = 10, 0.1, 50, 1e-5


class Progress(NamedTuple):
    """What ``progress`` is told after each master."""

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
    working_set: "WorkingSet"


class WorkingSet(NamedTuple):
    """What another budget or C can start from."""

    # cuts: K codes z_k (n,), their losses, their alpha over C/n
    codes: tuple[np.ndarray, ...]
    deltas: np.ndarray
    shares: np.ndarray
    # groups: their columns (T, r), and the square roots of their d
    columns: np.ndarray
    root: np.ndarray
    budget: float


def support_norm(w: np.ndarray, budget: float) -> tuple[float, np.ndarray]:
    """The squared B-support norm of w, and the gradient of its half.

    The r largest |w| count as in the l2 norm, the others as in the l1 norm:
    ``sum_{i<=r} a_i^2 + (sum_{i>r} a_i)^2 / (B - r)``.
    """
    a = np.abs(w)
    if np.count_nonzero(a) <= budget:
        return float(w @ w), w
    last = math.ceil(budget) - 1
    order = np.argsort(-a, kind="stable")
    sorted_a = a[order]
    tail = np.cumsum(sorted_a[::-1])[::-1][: last + 1]  # sum over i >= r, for r = 0..last
    tau = tail / (budget - np.arange(last + 1))
    fits = tau >= sorted_a[: last + 1]
    fits[last] = True
    r = int(np.argmax(fits))
    gradient = np.sign(w) * tau[r]
    gradient[order[:r]] = w[order[:r]]
    return float(sorted_a[:r] @ sorted_a[:r] + tau[r] ** 2 * (budget - r)), gradient


def memberships(w: np.ndarray, budget: float) -> np.ndarray:
    """The d of the B-support norm: 1 for features in every group, their share of the groups for others."""
    d = np.zeros(len(w))
    on = np.flatnonzero(w)
    _, gradient = support_norm(w[on], budget)
    d[on] = np.minimum(w[on] / gradient, 1.0)
    return d


def by_size(x: np.ndarray) -> np.ndarray:
    """Indices of the entries that are not 0, the largest |x| first."""
    on = np.flatnonzero(x)
    return on[np.argsort(-np.abs(x[on]), kind="stable")]


def groups_of(d: np.ndarray) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Groups and their weights, of sum 1, such that feature j is in groups of weight d_j.

    Lay the d_j end to end and pick what lies at u, u + 1, u + 2, ...: as u goes from 0 to 1 this passes
    through the groups. Each has sum d features (rounded down or up).
    """
    on = by_size(d)
    if not len(on):
        return (), np.zeros(0)
    ends = np.cumsum(d[on])
    ends[-1] = max(ends[-1], round(ends[-1])) if abs(ends[-1] - round(ends[-1])) < 1e-9 else ends[-1]
    starts = np.append(0.0, ends[:-1])
    cuts = np.unique(np.concatenate([[0.0, 1.0], np.mod(ends, 1.0)]))
    keep = np.append(np.diff(cuts) > 1e-12, True)
    cuts = cuts[keep]
    u = (cuts[:-1] + cuts[1:]) / 2
    chosen = np.ceil(ends[None] - u[:, None]) > np.ceil(starts[None] - u[:, None])
    return tuple(np.sort(on[row]) for row in chosen), np.diff(cuts) / (cuts[-1] - cuts[0])


def top_group(c: np.ndarray, budget: float) -> tuple[np.ndarray, np.ndarray, float]:
    """The d of largest sum d_j c_j^2: its indices, the square roots of their d_j, and that sum; spoils c."""
    squares, size = np.square(c, out=c), math.ceil(budget)
    chosen = np.sort(np.argpartition(squares, len(c) - size)[len(c) - size :])
    d = np.ones(size)
    d[np.argmin(squares[chosen])] += budget - size  # the fractional entry, if any
    return chosen, np.sqrt(d), float(d @ squares[chosen])


def has_weight(shares: np.ndarray) -> np.ndarray:
    return len(shares) * shares > SMALL_CUT * shares.sum()


class _Point(NamedTuple):
    support: np.ndarray
    w: np.ndarray  # on the support
    v: np.ndarray  # scores, (n,)
    objective: float
    z: np.ndarray
    delta: float
    violation: float  # delta - z'v
    gradient: np.ndarray  # of half the squared norm, on the support


class CuttingPlane:
    """The state of one solve: `run` is the algorithm, the rest its steps.

    The master knows T groups of r columns. Interleaved, r = 1: it knows features, and all groups of them.
    Columns are counted in ``data.X``.
    """

    def __init__(
        self,
        data: Data,
        oracle: Callable[..., Any],
        budget: float,
        bound: float,
        schedule: str = "interleaved",
    ):
        self.n, self.m = data.X.shape
        self.data, self.oracle, self.budget, self.bound = data, oracle, min(budget, self.m), bound
        self.schedule, self.by_feature = schedule, schedule == "interleaved"
        self.seconds = {"oracle": 0.0, "products": 0.0, "master": 0.0}
        self.calls = 0
        # cuts: codes, losses, shares alpha/(C/n), and for how many masters they had no weight
        self.codes: list[np.ndarray] = []
        self.known: set[bytes] = set()
        self.deltas, self.shares, self.idle_cuts = np.zeros(0), np.zeros(0), np.zeros(0, int)
        # groups: columns, square roots of d, and for how many masters they had no weight
        r = 1 if self.by_feature else math.ceil(self.budget)
        self.index, self.root, self.idle_groups = np.zeros((0, r), int), np.zeros((0, r)), np.zeros(0, int)
        self.G = np.zeros((0, r, 0))  # (T, r, K): the cuts restricted to each group

    # ------------------------------------------------------------ points

    def timed(self, name, function, *args):
        start = time.perf_counter()
        out = function(*args)
        self.seconds[name] += time.perf_counter() - start
        return out

    def point(self, support, w, v) -> _Point:
        self.calls += 1
        z, delta = self.timed("oracle", self.oracle, v)
        violation = delta - float(z @ v)
        square, gradient = support_norm(w, self.budget)
        objective = 0.5 * square + self.bound * max(0.0, violation)
        return _Point(support, w, v, objective, z, delta, violation, gradient)

    def of_weights(self, support, w) -> _Point:
        v = self.timed("products", self.data.scores, support, w) if len(support) else np.zeros(self.n)
        return self.point(support, w, v)

    def of_parts(self, parts) -> _Point:
        """w = sum_t sqrt(d^t) w_t and all that follows from it."""
        support, place = np.unique(self.index, return_inverse=True)
        w = np.bincount(place.ravel(), (self.root * parts).ravel(), len(support))
        return self.of_weights(support[w != 0], w[w != 0])

    def search(self, old: _Point, new: _Point, resolution: float) -> _Point:
        """The lowest of the points tried on the segment between two, by tangents; scores are only mixed."""
        support = np.union1d(old.support, new.support)
        ends = []
        for p in (old, new):
            w, at = np.zeros(len(support)), np.searchsorted(support, p.support)
            w[at] = p.w
            ends.append(w)
        dw, dv = ends[1] - ends[0], new.v - old.v

        def slope(p):
            at = np.searchsorted(support, p.support)
            return p.gradient @ dw[at] - self.bound * float(p.z @ dv) * (p.violation > 0)

        best = min(old, new, key=lambda p: p.objective)
        low, high = (0.0, old.objective, min(slope(old), 0.0)), (1.0, new.objective, slope(new))
        if high[2] <= 0:
            return best
        for _ in range(SEARCH):
            width = high[0] - low[0]
            # where the tangents of the two ends meet, and how low that is
            t = (low[1] - high[1] + high[2] * width) / (high[2] - low[2]) if high[2] > low[2] else width / 2
            if best.objective - (low[1] + low[2] * t) <= resolution:
                break
            theta = low[0] + min(max(t, 0.1 * width), 0.9 * width)
            p = self.point(support, ends[0] + theta * dw, old.v + theta * dv)
            if p.objective < best.objective:
                best = p
            side = (theta, p.objective, slope(p))
            low, high = (side, high) if side[2] < 0 else (low, side)
        return best

    # ------------------------------------------------------------ working set

    def add_cut(self, z, delta, share=0.0) -> bool:
        """False if it is there already."""
        key = z.tobytes()
        if key in self.known:
            return False
        self.known.add(key)
        self.codes.append(z)
        self.deltas, self.shares = np.append(self.deltas, delta), np.append(self.shares, share)
        self.idle_cuts = np.append(self.idle_cuts, 0)
        g = self.timed("products", self.data.back, z.astype(float))
        self.G = np.concatenate([self.G, (self.root * g[self.index])[:, :, None]], axis=2)
        return True

    def add_group(self, columns, root) -> bool:
        """False if it is there already; by feature, if all of them are."""
        if self.by_feature:
            index = np.setdiff1d(columns, self.index)[:, None]
            root = np.ones(index.shape)
        else:
            index, root = columns[None], root[None]
            if ((self.index == index) & (self.root == root)).all(1).any():
                return False
        if not len(index):
            return False
        columns = index.ravel()
        rows = self.timed("products", self.data.rows, columns, self.codes).reshape(*index.shape, -1)
        self.G = np.concatenate([self.G, root[:, :, None] * rows])
        self.index, self.root = np.vstack([self.index, index]), np.vstack([self.root, root])
        self.idle_groups = np.append(self.idle_groups, np.zeros(len(index), int))
        return True

    def drop(self, mu, masters):
        """Forget what had no weight for a long time."""
        self.idle_cuts = np.where(has_weight(self.shares), 0, self.idle_cuts + 1)
        self.idle_groups = np.where(mu > SMALL_GROUP * mu.sum(), 0, self.idle_groups + 1)
        self.keep(self.idle_cuts <= max(IDLE_CUT, masters // 5), self.idle_groups <= IDLE_GROUP)

    def keep(self, cuts, groups):
        if cuts.all() and groups.all():
            return
        self.codes = [z for z, stays in zip(self.codes, cuts, strict=True) if stays]
        self.known = {z.tobytes() for z in self.codes}
        self.index, self.root = self.index[groups], self.root[groups]
        self.G = np.ascontiguousarray(self.G[groups][:, :, cuts])
        self.deltas, self.shares, self.idle_cuts = self.deltas[cuts], self.shares[cuts], self.idle_cuts[cuts]
        self.idle_groups = self.idle_groups[groups]

    def solve_master(self, tol, exact):
        if self.by_feature:
            return _feature_master.solve(self.G[:, 0], self.deltas, self.bound, self.budget, tol, exact)
        return _master.solve(self.G, self.deltas, self.bound, tol, exact)

    def dual(self):
        """D at the present shares, and the group that attains it: its columns and the square roots of d."""
        beta = np.zeros(self.n)
        for share, z in zip(self.shares, self.codes, strict=True):
            if share > 0:
                beta += self.bound * share * z
        columns, root, square = top_group(self.timed("products", self.data.back, beta), self.budget)
        return self.bound * float(self.deltas @ self.shares) - 0.5 * square, columns, root

    # ------------------------------------------------------------ the algorithm

    def run(
        self,
        tol: float,
        eps_delta: float = 0.0,
        maxiter: int = 1000,
        progress: Callable[[Progress], Any] | None = None,
        start: WorkingSet | None = None,
    ) -> Result:
        """Cuts and groups until ``J(w) - D(alpha) <= max(tol J(w), C/n eps_delta)``, or what comes first."""
        begin = time.perf_counter()
        schedule, nothing = self.schedule, np.zeros(0, int)
        best = zero = self.of_weights(nothing, np.zeros(0))
        if zero.violation <= 0:  # w = 0 loses nothing
            return self.result(zero, zero.objective, CONVERGED, [], 0, begin)
        self.add_cut(zero.z, zero.delta, 1.0)
        if start is not None:
            self.resume(start)
        value, *group = self.dual()
        history: list[tuple[float, float]] = []
        lower, status, outer = max(0.0, value), MAX_ITER, 1
        self.add_group(*group)

        loose, inner = LOOSE if self.by_feature else LOOSE_INNER, math.inf
        precision = loose
        while len(history) < maxiter:
            target = max(tol * best.objective, self.bound * eps_delta)
            wanted = precision * max(best.objective - lower, target)
            master = self.timed("master", self.solve_master, wanted, precision < EXACT)
            new = self.of_parts(master.parts)
            if not (np.isfinite(new.objective) and np.isfinite(master.alpha).all()):
                status = NON_FINITE
                break
            if schedule != "printed":
                best = self.search(best, new, RESOLUTION * (best.objective - lower))
            elif new.objective < best.objective:
                best = new
            self.shares = master.alpha / self.bound
            value, *group = self.dual()
            lower = max(lower, value)
            history.append((best.objective, lower))
            if progress is not None:
                progress(Progress(len(history), *history[-1], len(self.codes), len(self.G)))
            target = max(tol * best.objective, self.bound * eps_delta)
            if best.objective - lower <= target:
                status = CONVERGED
                break

            inner = min(inner, new.objective, best.objective if schedule != "printed" else math.inf)
            if schedule != "printed":
                self.drop(np.linalg.norm(master.parts, axis=1), len(history))
            grown = new.violation > 0 and self.add_cut(new.z, new.delta)
            if schedule != "printed" and best.violation > 0:
                grown = self.add_cut(best.z, best.delta) or grown
            if (
                schedule == "interleaved"
                or not grown
                or inner - master.lower <= max(0.5 * target, 1e-9 * best.objective)
            ):
                # D < value of the master: its best group is missing
                if value < master.lower - 1e-14 * best.objective and self.add_group(*group):
                    grown, outer = True, outer + 1
                    if schedule == "printed":  # every call of Algorithm 1 starts without cuts
                        self.keep(np.arange(len(self.codes)) == 0, np.ones(len(self.G), bool))
                inner = math.inf
            if grown:
                precision = min(loose, precision * 10)
            elif precision < EXACT**2:
                status = STALLED
                break
            else:  # nothing is missing, as far as this accuracy can tell
                precision *= 0.01
        return self.result(self.thin(best, lower, target), lower, status, history, outer, begin)

    def resume(self, start: WorkingSet):
        """Take over cuts with weight, features, and groups if the budget is the same."""
        self.shares[:] = 0
        for k in np.flatnonzero(has_weight(start.shares)):
            if not self.add_cut(start.codes[k], float(start.deltas[k]), float(start.shares[k])):
                self.shares[0] = start.shares[k]  # the cut at w = 0
        there = np.isin(start.columns, self.data.columns)
        columns = np.searchsorted(self.data.columns, start.columns)
        if self.by_feature:
            self.add_group(np.unique(columns[there]), None)
        elif start.budget == self.budget and start.columns.shape[1] == self.index.shape[1]:
            for t in np.flatnonzero(there.all(1)):
                self.add_group(columns[t], start.root[t])

    def thin(self, best: _Point, lower: float, target: float) -> _Point:
        """Without the smallest weights, as far as the certificate does not feel it.

        An interior point leaves a trace of weight on every feature it knows; as many go as raise the gap by
        a tenth at most and do not spoil the target.
        """
        gap = best.objective - lower
        allowed = min(best.objective + 0.1 * gap, max(lower + target, best.objective))
        order = np.argsort(np.abs(best.w), kind="stable")
        full, fewest, most = best, 0, len(order)  # fewest can go
        while most - fewest > 1:
            middle = (fewest + most) // 2
            stays = np.sort(order[middle:])
            p = self.of_weights(full.support[stays], full.w[stays])
            if p.objective <= allowed:
                fewest, best = middle, p
            else:
                most = middle
        return best

    def result(self, best, lower, status, history, outer, begin) -> Result:
        w = np.zeros(self.data.shape[1])
        w[self.data.columns[best.support]] = best.w
        return Result(
            w=w,
            objective=best.objective,
            lower_bound=lower,
            status=status,
            num_iters=len(history),
            num_outer=outer,
            num_oracle_calls=self.calls,
            seconds=self.seconds | {"all": time.perf_counter() - begin},
            history=np.array(history).reshape(-1, 2),
            working_set=WorkingSet(
                tuple(self.codes),
                self.deltas,
                self.shares,
                self.data.columns[self.index],
                self.root,
                self.budget,
            ),
        )
