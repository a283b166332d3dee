r"""The master problem over features: all groups of B of them at once.

With G (J, K), the cuts restricted to J features, losses :math:`\Delta` (K,) and the bound
:math:`\hat C = C/n`,

.. math:: \min_{w,\,0\le d\le1,\,1^\top d=B} \tfrac12\sum_j\frac{w_j^2}{d_j}
          + \hat C\max(0, \max_k \Delta_k - g_k^\top w)
          \;=\; \max_{\alpha\ge0,\,1^\top\alpha\le\hat C} \Delta^\top\alpha
          - \tfrac12\sum_{\text{B largest}}(G\alpha)_j^2 .

`_master` has only the groups that were added; this master has every group of the features that were added. It
needs fewer rounds, and J rows instead of T times B. By default an interior point method solves it, started
from the last master if that is near; if the method stalls, Clarabel continues, if it is installed.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sparsejax.models.multivariate._interior_point import (
    CLARABEL_LIMIT,
    Best,
    Cones,
    Master,
    Simplex,
    Target,
    conic,
    interior_point,
    recentre,
)

MAX_STALLED_STEPS = 12  # interior point steps in which the gap does not shrink by a tenth
# A new cut starts with at most this part of the mean share: more would disturb the cones of the features.
MAX_NEW_SHARE = 0.3

Weights = tuple[np.ndarray, np.ndarray]  # w and d, (J,)


class Iterate(NamedTuple):
    """The last iterate of a master with K cuts and J features, a start for a master with more of both."""

    simplex: Simplex
    features: np.ndarray  # (4, J): d, e, s and p of `Features`
    tau: float
    unit: float  # of the objective

    def keep(self, cuts: np.ndarray, features: np.ndarray) -> "Iterate":
        """The iterate restricted to the cuts and features whose mask is True."""
        beta, sigma, lam, nu = self.simplex
        simplex = Simplex(beta[cuts] * (1 - sigma) / beta[cuts].sum(), sigma, lam[cuts], nu)
        return self._replace(simplex=simplex, features=self.features[:, features])


def solve(
    G: np.ndarray,
    delta: np.ndarray,
    bound: float,
    budget: float,
    tol: float,
    exact: bool = False,
    start: Iterate | None = None,
) -> Master:
    """Solve the master to an absolute gap ``tol``, or as accurately as possible; parts are w, (J, 1).

    Args:
      G: (J, K), finite.
      delta: (K,), not all <= 0.
      bound: C/n, > 0.
      budget: B > 0.
      tol: bound on ``value - lower``.
      exact: run Clarabel too, whatever the gap is.
      start: iterate of a master with the first of these cuts and features and the same bound and budget.
    """
    J, K = G.shape
    if K < J <= budget and np.isfinite(gram := G.T @ G).all():
        # The B-support norm is the l2 norm here, which is invariant under rotation: K coordinates are enough.
        squares, V = np.linalg.eigh(gram)
        lengths = np.sqrt(np.maximum(squares, 1e-16 * squares[-1] + np.finfo(float).tiny))
        small = solve(lengths[:, None] * V.T, delta, bound, K, tol, exact)
        return small._replace(parts=G @ (V @ (small.parts / lengths[:, None])))
    padded = budget >= J
    if padded:  # d <= 1 with sum d = J has no interior point; a further feature of zeros gives one
        budget, G, start = J, np.vstack([G, np.zeros(K)]), None
    unit = bound * float(delta.max())
    cones = Features(G * (bound / np.sqrt(unit)), delta / delta.max(), budget)
    best = Best[Weights](cones, (np.zeros(len(G)), np.ones(len(G))))
    at = None
    if start is not None:
        at = recentre(best, cones.resume(start, unit), tol / unit, MAX_STALLED_STEPS)
    if at is None or best.gap > tol / unit:
        at = interior_point(best, tol / unit, MAX_STALLED_STEPS)
    iterate = None if padded or at is None else cones.leave(at, unit)
    if (exact or best.gap > tol / unit) and G.size <= CLARABEL_LIMIT:
        clarabel(cones.R, cones.losses, budget, best)
    w = np.sqrt(unit) * best.point[0][:J, None]
    return Master(bound * best.beta, w, unit * best.primal, unit * best.dual, iterate)


class _Change(NamedTuple):
    level: float  # change of tau
    d: np.ndarray  # (J,), change of d
    s: np.ndarray  # (J,), change of s
    p: np.ndarray  # (J,), change of p


class Features(Cones[Weights, _Change]):
    """``q = (B tau + sum s) / 2`` under ``c_j^2 <= tau + s_j``, s >= 0, with c = R beta.

    The slack p of that constraint has the multiplier d/2, and s >= 0 has (1 - d)/2. The conditions of
    optimality, besides those of the simplex, are

        R'(d c) - losses + nu - lam = 0,  sum d = B,  p = tau + s - c^2,  p d = s (1 - d) = 0 .

    The weights are w = d c. e = 1 - d is stored, so that it does not cancel.
    """

    h: np.ndarray  # (J,), the factor of a change of c_j^2 in the condensed system

    def __init__(self, R: np.ndarray, losses: np.ndarray, budget: float):
        self.R, self.losses, self.budget, self.pairs = R, losses, budget, 2 * len(R)

    def primal(self, point: Weights) -> float:
        """The primal value of w and d, with 0 < d <= 1 and sum d <= B up to rounding."""
        w, d = point
        d = d / max(1.0, d.max(), d.sum() / self.budget)
        return float(0.5 * (w * w / d).sum() + max(0.0, (self.losses - w @ self.R).max()))

    def dual(self, beta: np.ndarray) -> float:
        squares, size = (self.R @ beta) ** 2, int(np.ceil(self.budget))
        largest = np.sort(np.partition(squares, len(squares) - size)[len(squares) - size :])
        top = largest.sum() - (size - self.budget) * largest[0]
        return float(self.losses @ beta - 0.5 * top)

    def start(self, beta: np.ndarray) -> np.ndarray:
        J = len(self.R)
        beta = beta / max(1.0, np.abs(self.R @ beta).max())
        self.c, self.d, self.s = self.R @ beta, np.full(J, self.budget / J), np.ones(J)
        self.e, self.tau = 1 - self.d, float((self.c * self.c).max())
        self.p = self.tau + self.s - self.c * self.c
        return beta

    def resume(self, start: Iterate, unit: float) -> Simplex:
        """Start at an iterate of the first cuts and features; new ones get the mean product."""
        beta, sigma, lam, nu = start.simplex
        scale = start.unit / unit
        (d, e), (s, p) = start.features[:2], scale * start.features[2:]
        lam, nu, self.tau = scale * lam, scale * nu, scale * start.tau
        centre = (lam @ beta + nu * sigma + p @ d + s @ e) / (len(beta) + 1 + 2 * len(d))
        # mu / d = tau + s - c^2 and mu / e = s, with excess = c^2 - tau
        excess = (self.R[len(d) :, : len(beta)] @ beta) ** 2 - self.tau
        root = np.hypot(excess, 2 * centre)
        d = np.append(d, 2 * centre / (2 * centre + root - excess))
        e = np.append(e, 2 * centre / (2 * centre + root + excess))
        s, p = np.append(s, centre / e[len(s) :]), np.append(p, centre / d[len(p) :])
        w = d * (self.R[:, : len(beta)] @ beta)
        slack = nu - self.losses[len(beta) :] + w @ self.R[:, len(beta) :]
        lam = np.append(lam, np.maximum(slack, centre / (MAX_NEW_SHARE * beta.mean())))
        beta = np.append(beta, centre / lam[len(beta) :])
        beta *= (1 - sigma) / beta.sum()
        self.c = self.R @ beta
        residual = self.tau + s - self.c * self.c - p  # what the new shares have changed
        self.d, self.e, self.s, self.p = d, e, s + np.maximum(-residual, 0), p + np.maximum(residual, 0)
        return Simplex(beta, sigma, lam, nu)

    def leave(self, at: Simplex, unit: float) -> Iterate:
        """The iterate at which `resume` of a later master can start."""
        return Iterate(at, np.stack([self.d, self.e, self.s, self.p]), self.tau, unit)

    def point(self) -> Weights:
        return self.d * self.c, self.d

    def complementarity(self) -> float:
        return float(self.p @ self.d + self.s @ self.e)

    def system(self) -> tuple[np.ndarray, np.ndarray]:
        R, c, d = self.R, self.c, self.d
        K = R.shape[1]
        self.h = h = self.p / d + self.s / self.e
        H = np.empty((K + 1, K + 1))
        weighted = R * np.sqrt(d + 2 * c * c / h)[:, None]
        np.matmul(weighted.T, weighted, out=H[:K, :K])
        H[:K, K] = H[K, :K] = -(R.T @ (c / h))
        H[K, K] = 0.5 * (1 / h).sum()
        return H, np.append(R.T @ (d * c) - self.losses, 0.5 * (self.budget - d.sum()))

    def target(self, centre: float, guess: _Change | None) -> Target:
        """The changes that p d and s e need to reach ``centre``."""
        pd, se = centre - self.p * self.d, centre - self.s * self.e
        return (pd, se) if guess is None else (pd - guess.p * guess.d, se + guess.s * guess.d)

    def eliminate(self, target: Target) -> tuple[np.ndarray, Callable[[np.ndarray, float], _Change]]:
        pd, se = target
        q = pd / self.d - se / self.e - (self.tau + self.s - self.c * self.c - self.p)

        def change(beta: np.ndarray, level: float) -> _Change:
            d = (q - level + 2 * self.c * (self.R @ beta)) / self.h
            return _Change(level, d, (se + self.s * d) / self.e, (pd - self.p * d) / self.d)

        return np.append(-(self.R.T @ (self.c * q / self.h)), 0.5 * (q / self.h).sum()), change

    def ratio(self, change: _Change) -> float:
        pairs = ((change.d, self.d), (-change.d, self.e), (change.s, self.s), (change.p, self.p))
        return max(float(-(step / value).min()) for step, value in pairs)

    def move(self, length: float, change: _Change, beta: np.ndarray) -> None:
        self.tau += length * change.level
        self.s, self.p = self.s + length * change.s, self.p + length * change.p
        self.d, self.e, self.c = self.d + length * change.d, self.e - length * change.d, self.R @ beta


def clarabel(R: np.ndarray, losses: np.ndarray, budget: float, best: Best[Weights]) -> None:
    """Solve the same problem by Clarabel, and compare the result with ``best``.

    The unknowns are x = (beta, tau, s), and c^2 <= t = tau + s is the cone (t + 1; 2c, t - 1).
    """
    from scipy import sparse  # noqa: PLC0415

    J, K = R.shape
    eye, one = sparse.eye_array(J), sparse.csr_array(np.ones((J, 1)))
    positive = sparse.hstack([sparse.eye_array(K), sparse.csr_array((K, 1 + J))])
    sums = sparse.hstack([sparse.csr_array(-np.ones((1, K))), sparse.csr_array((1, 1 + J))])
    slack = sparse.hstack([sparse.csr_array((J, K + 1)), eye])
    t = sparse.hstack([sparse.csr_array((J, K)), one, eye])
    c = sparse.hstack([sparse.csr_array(2 * R), sparse.csr_array((J, 1 + J))])
    order = np.arange(3 * J).reshape(3, J).T.ravel()
    A = sparse.vstack([positive, sums, slack, sparse.vstack([t, c, t]).tocsr()[order]])
    b = np.concatenate([np.zeros(K), [1.0], np.zeros(J), np.tile([1.0, 0.0, -1.0], J)])
    cost = np.concatenate([-losses, [0.5 * budget], np.full(J, 0.5)])
    answer = conic(cost, None, -A, b, K + 1 + J, [3] * J)
    if answer is not None:
        z = answer[1][K + 1 + J :].reshape(J, 3)
        best.see((-2 * z[:, 1], np.clip(2 * (z[:, 0] + z[:, 2]), 1e-12, 1.0)), answer[0][:K])
