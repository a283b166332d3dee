"""The problem restricted to some cuts and groups: adding them, dropping them, and solving its master."""

import math
from typing import NamedTuple

import numpy as np

from sparsejax.models.multivariate import _master
from sparsejax.models.multivariate._data import Data
from sparsejax.models.multivariate._points import Clock
from sparsejax.models.multivariate._support_norm import top_group

# A cut is dropped after more than IDLE_CUT masters in a row in which its weight was below SMALL_CUT of the
# mean weight: a master costs K^3, and interior points leave a tiny weight on every cut. A group or feature is
# dropped after more than IDLE_GROUP masters below SMALL_GROUP of the sum. In a long solve cuts stay for a
# twentieth of the masters so far, so that the method cannot cycle.
IDLE_CUT, SMALL_CUT, IDLE_GROUP, SMALL_GROUP = 5, 0.1, 50, 1e-5


class WorkingSet(NamedTuple):
    """Cuts and groups of a solve, from which a solve with another budget or C can start."""

    codes: tuple[np.ndarray, ...]  # codes z_k of the K cuts, (n,) each
    deltas: np.ndarray  # (K,), losses of the cuts
    shares: np.ndarray  # (K,), alpha of the cuts divided by C/n
    columns: np.ndarray  # (T, r), columns of the groups
    root: np.ndarray  # (T, r), square roots of d in the groups
    budget: float  # B


class Restricted:
    """K cuts and T groups of r columns, numbered as in ``data.X``.

    Args:
      data: the matrix of examples.
      budget, bound: B and C/n.
      by_feature: False: a group is B columns, and the weights of the groups sum to 1. True: a group is one
        feature (r = 1), and the weights sum to B, which allows every group of B of the T features.
      clock: a `Clock` with the parts "products" and "master".
    """

    def __init__(self, data: Data, budget: float, bound: float, by_feature: bool, clock: Clock):
        self.data, self.budget, self.bound, self.by_feature = data, budget, bound, by_feature
        self.clock = clock
        # cuts: codes, losses, shares alpha/(C/n), and for how many masters they had no weight
        self.codes: list[np.ndarray] = []
        self.deltas, self.shares, self.idle_cuts = np.zeros(0), np.zeros(0), np.zeros(0, int)
        # groups: columns, square roots of d, and for how many masters they had no weight
        r = 1 if by_feature else math.ceil(budget)
        self.index, self.root, self.idle_groups = np.zeros((0, r), int), np.zeros((0, r)), np.zeros(0, int)
        self.iterate: _master.Iterate | None = None  # of the last master
        self.G = np.zeros((0, r, 0))  # (T, r, K): the cuts restricted to each group

    def add_cut(self, z: np.ndarray, delta: float, share: float = 0.0) -> bool:
        """Add a cut with its code (n,) and its loss; False if the code is there already."""
        if any(np.array_equal(z, code) for code in self.codes):
            return False
        self.codes.append(z)
        self.deltas, self.shares = np.append(self.deltas, delta), np.append(self.shares, share)
        self.idle_cuts = np.append(self.idle_cuts, 0)
        g = self.clock.timed("products", self.data.back, z.astype(float))
        self.G = np.concatenate([self.G, (self.root * g[self.index])[:, :, None]], axis=2)
        return True

    def add_group(self, columns: np.ndarray, root: np.ndarray) -> bool:
        """Add a group, or its features; False if the group, or all the features, are there already.

        ``root`` holds the square roots of d of the columns; features have the root 1, whatever is given.
        """
        if self.by_feature:
            index = np.setdiff1d(columns, self.index)[:, None]
            root = np.ones(index.shape)
        else:
            index, root = columns[None], root[None]
            if ((self.index == index) & (self.root == root)).all(1).any():
                return False
        if not len(index):
            return False
        rows = self.clock.timed("products", self.data.rows, index.ravel(), self.codes)
        self.G = np.concatenate([self.G, root[:, :, None] * rows.reshape(*index.shape, -1)])
        self.index, self.root = np.vstack([self.index, index]), np.vstack([self.root, root])
        self.idle_groups = np.append(self.idle_groups, np.zeros(len(index), int))
        return True

    def drop(self, mu: np.ndarray, masters: int) -> None:
        """Drop cuts and groups that had little weight in many masters.

        Args:
          mu: (T,), the weights of the groups in the last master.
          masters: the number of masters solved so far.
        """
        self.idle_cuts = np.where(_has_weight(self.shares), 0, self.idle_cuts + 1)
        self.idle_groups = np.where(mu > SMALL_GROUP * mu.sum(), 0, self.idle_groups + 1)
        self.keep(self.idle_cuts <= max(IDLE_CUT, masters // 20), self.idle_groups <= IDLE_GROUP)

    def keep_first_cut(self) -> None:
        self.iterate = None  # groups were added after this iterate
        self.keep(np.arange(len(self.codes)) == 0, np.ones(len(self.G), bool))

    def keep(self, cuts: np.ndarray, groups: np.ndarray) -> None:
        """Drop all cuts and groups but these, (K,) and (T,) bool; ``iterate`` is None or has all K and T."""
        if cuts.all() and groups.all():
            return
        self.codes = [z for z, stays in zip(self.codes, cuts, strict=True) if stays]
        self.index, self.root = self.index[groups], self.root[groups]
        self.G = np.ascontiguousarray(self.G[groups][:, :, cuts])
        self.deltas, self.shares, self.idle_cuts = self.deltas[cuts], self.shares[cuts], self.idle_cuts[cuts]
        self.idle_groups = self.idle_groups[groups]
        if self.iterate is not None:  # nothing was added after this iterate
            self.iterate = self.iterate.keep(cuts, groups) if cuts.any() and groups.any() else None

    def solve(self, tol: float, exact: bool) -> _master.Master:
        """Solve the master to an absolute gap ``tol``."""
        budget = self.budget if self.by_feature else 1
        problem = self.G, self.deltas, self.bound, budget
        master = self.clock.timed("master", _master.solve, *problem, tol, exact, self.iterate)
        self.iterate = master.iterate
        return master

    def weights(self, parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The support and the values there of ``w = sum_t sqrt(d^t) w_t``."""
        support, place = np.unique(self.index, return_inverse=True)
        w = np.bincount(place.ravel(), (self.root * parts).ravel(), len(support))
        return support[w != 0], w[w != 0]

    def dual(self) -> tuple[float, np.ndarray, np.ndarray]:
        """D at the current shares, and the columns and square roots of d of the group that attains D."""
        beta = np.zeros(self.data.X.shape[0])
        for share, z in zip(self.shares, self.codes, strict=True):
            if share > 0:
                beta += self.bound * share * z
        columns, root, square = top_group(self.clock.timed("products", self.data.back, beta), self.budget)
        return self.bound * float(self.deltas @ self.shares) - 0.5 * square, columns, root

    def resume(self, start: WorkingSet) -> None:
        """Take over the cuts that have a weight, and the features or groups, of an earlier solve.

        With ``by_feature`` the features are taken over; otherwise the groups, if the budget is the same.
        """
        self.shares[:] = 0
        for k in np.flatnonzero(_has_weight(start.shares)):
            if not self.add_cut(start.codes[k], float(start.deltas[k]), float(start.shares[k])):
                self.shares[0] = start.shares[k]  # the cut at w = 0
        there = np.isin(start.columns, self.data.columns)
        columns = np.searchsorted(self.data.columns, start.columns)
        if self.by_feature:
            self.add_group(np.unique(columns[there]), np.ones(0))
        elif start.budget == self.budget and start.columns.shape[1] == self.index.shape[1]:
            for t in np.flatnonzero(there.all(1)):
                self.add_group(columns[t], start.root[t])

    def working_set(self) -> WorkingSet:
        columns = self.data.columns[self.index]
        return WorkingSet(tuple(self.codes), self.deltas, self.shares, columns, self.root, self.budget)


def _has_weight(shares: np.ndarray) -> np.ndarray:
    """Which cuts have more than `SMALL_CUT` of the mean weight, (K,) bool."""
    return len(shares) * shares > SMALL_CUT * shares.sum()
