r"""The B-support norm, the groups that a vector is made of, and the dual norm.

.. math:: \|w\|_B^2 = \min_{0\le d\le1,\,1^\top d=B} \sum_j w_j^2/d_j
"""

import math

import numpy as np


def support_norm(w: np.ndarray, budget: float) -> tuple[float, np.ndarray]:
    """The squared B-support norm of w, and the gradient of half of it.

    With a = |w| in decreasing order it is ``sum_{i<=r} a_i^2 + (sum_{i>r} a_i)^2 / (B - r)``: the r largest
    entries count as in the l2 norm, the others as in the l1 norm.
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
    gradient: np.ndarray = np.sign(w) * tau[r]
    gradient[order[:r]] = w[order[:r]]
    return float(sorted_a[:r] @ sorted_a[:r] + tau[r] ** 2 * (budget - r)), gradient


def memberships(w: np.ndarray, budget: float) -> np.ndarray:
    """The minimiser d in the B-support norm of w: for each feature the weight of the groups that hold it."""
    d = np.zeros(len(w))
    on = np.flatnonzero(w)
    _, gradient = support_norm(w[on], budget)
    d[on] = np.minimum(w[on] / gradient, 1.0)
    return d


def by_size(x: np.ndarray) -> np.ndarray:
    """Indices of the entries that are not 0, the largest |x| first."""
    on = np.flatnonzero(x)
    order = np.argsort(-np.abs(x[on]), kind="stable")
    return on[order]


def groups_of(d: np.ndarray) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Groups, and weights with the sum 1, such that the groups with feature j have the total weight d_j.

    Place intervals of the lengths d_j one after another. For u in [0, 1) the group consists of the features
    whose intervals contain u, u + 1, u + 2, ...; its weight is the length of the set of such u. Each group
    has sum(d) features, rounded down or up.
    """
    on = by_size(d)
    if not len(on):
        return (), np.zeros(0)
    ends = np.cumsum(d[on])
    total = round(ends[-1])
    if abs(ends[-1] - total) < 1e-9:  # a whole number up to rounding: then every group has so many features
        ends[-1] = total
        ends = np.minimum(ends, total)
    starts = np.append(0.0, ends[:-1])
    cuts = np.unique(np.concatenate([[0.0, 1.0], np.mod(ends, 1.0)]))
    keep = np.append(np.diff(cuts) > 1e-12, True)  # shorter pieces are rounding errors of the sums
    cuts = cuts[keep]
    u = (cuts[:-1] + cuts[1:]) / 2
    chosen = np.ceil(ends[None] - u[:, None]) > np.ceil(starts[None] - u[:, None])
    return tuple(np.sort(on[row]) for row in chosen), np.diff(cuts) / (cuts[-1] - cuts[0])


def top_group(c: np.ndarray, budget: float) -> tuple[np.ndarray, np.ndarray, float]:
    """The d with 0 <= d <= 1 and the sum B that maximises ``sum d_j c_j^2``. The function overwrites c.

    Returns the indices of the d_j > 0, the square roots of these d_j, and the maximum.
    """
    squares, size = np.square(c, out=c), math.ceil(budget)
    chosen = np.sort(np.argpartition(squares, len(c) - size)[len(c) - size :])
    d = np.ones(size)
    d[np.argmin(squares[chosen])] += budget - size  # the fractional entry, if any
    return chosen, np.sqrt(d), float(d @ squares[chosen])
