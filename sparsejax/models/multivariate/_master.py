r"""The master problem: weights of T groups under K cuts, a small conic quadratic program.

With :math:`G_t` (r, K), the cuts restricted to group t, losses :math:`\Delta` (K,) and the bound
:math:`\hat C = C/n`,

.. math:: \min_w \tfrac12\Big(\sum_t \|w_t\|\Big)^2 + \hat C\max\Big(0, \max_k \Delta_k - \sum_t
          \langle w_t, G_{tk}\rangle\Big)
          \;=\; \max_{\alpha\ge0,\,1^\top\alpha\le\hat C} \Delta^\top\alpha - \tfrac12\max_t\|G_t\alpha\|^2 .

By default an interior point method with Nesterov-Todd scaling solves it; if the method stalls, Clarabel
continues, if it is installed.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sparsejax.models.multivariate._interior_point import (
    CLARABEL_LIMIT,
    Best,
    Cones,
    Master,
    Target,
    conic,
    interior_point,
)

MAX_STALLED_STEPS = 6  # interior point steps in which the gap does not shrink by a tenth


def solve(G: np.ndarray, delta: np.ndarray, bound: float, tol: float, exact: bool = False) -> Master:
    """Solve the master to an absolute gap ``tol``, or as accurately as possible.

    Args:
      G: (T, r, K), finite.
      delta: (K,), not all <= 0.
      bound: C/n, > 0.
      tol: bound on ``value - lower``.
      exact: run Clarabel too, whatever the gap is.
    """
    # In units in which alpha sums to 1, the largest loss is 1 and so is the price of not fitting at all.
    unit = bound * float(delta.max())
    cones = Groups(np.ascontiguousarray(G) * (bound / np.sqrt(unit)), delta / delta.max())
    best = Best(cones, np.zeros(G.shape[:2]))
    interior_point(best, tol / unit, MAX_STALLED_STEPS)
    if (exact or best.gap > tol / unit) and G.shape[0] * min(G.shape[1:]) * G.shape[2] <= CLARABEL_LIMIT:
        clarabel(cones.R, cones.losses, best)
    return Master(bound * best.beta, np.sqrt(unit) * best.point, unit * best.primal, unit * best.dual)


class _Change(NamedTuple):
    level: float
    s0: np.ndarray  # W^-1 ds
    s1: np.ndarray
    z0: np.ndarray  # W dz
    z1: np.ndarray


class _Scaling(NamedTuple):
    """The Nesterov-Todd point (w0, w1) and scale eta of each cone: W z = W^-1 s = l."""

    w0: np.ndarray
    w1: np.ndarray
    eta: np.ndarray
    l0: np.ndarray
    l1: np.ndarray
    det: np.ndarray  # of l


class Groups(Cones[np.ndarray, _Change]):
    """``q = gamma^2 / 2`` with ``(gamma; R_t beta)`` in T second-order cones, of duals (z0, z1)_t.

    Every iterate is feasible for both sides. At the optimum ``w_t = -z1_t``.
    """

    scaling: _Scaling

    def __init__(self, R: np.ndarray, losses: np.ndarray):
        self.R, self.losses, self.pairs = R, losses, R.shape[0]
        self.grams = R.transpose(0, 2, 1) @ R if 2 * R.shape[1] >= R.shape[2] else None

    def primal(self, point: np.ndarray) -> float:
        slack = self.losses - np.tensordot(point, self.R, 2)
        return float(0.5 * _norms(point).sum() ** 2 + max(0.0, slack.max()))

    def dual(self, beta: np.ndarray) -> float:
        return float(self.losses @ beta - 0.5 * ((self.R @ beta) ** 2).sum(1).max())

    def start(self, beta: np.ndarray) -> np.ndarray:
        T, r, _ = self.R.shape
        beta = beta / max(1.0, _norms(self.R @ beta).max())
        self.s1 = self.R @ beta
        self.gamma = float(_norms(self.s1).max()) + 1
        self.z0, self.z1 = np.full(T, self.gamma / T), np.zeros((T, r))
        return beta

    def point(self) -> np.ndarray:
        return -self.z1

    def complementarity(self) -> float:
        return float(self.gamma * self.z0.sum() + (self.s1 * self.z1).sum())

    def system(self) -> tuple[np.ndarray, np.ndarray]:
        T, r, K = self.R.shape
        self.scaling = w0, w1, eta, *_ = _scaling_of(self.gamma, self.s1, self.z0, self.z1)
        e, u = eta**-2, (w1[:, None] @ self.R)[:, 0]
        H = np.empty((K + 1, K + 1))
        if self.grams is None:
            flat = self.R.reshape(T * r, K) * np.repeat(1 / eta, r)[:, None]
            H[:K, :K] = flat.T @ flat
        else:
            H[:K, :K] = np.tensordot(e, self.grams, 1)
        H[:K, :K] += 2 * (u * e[:, None]).T @ u
        H[:K, K] = H[K, :K] = -2 * (e * w0) @ u
        H[K, K] = 1 + e @ (2 * w0**2 - 1)
        return H, np.append(-self.losses - np.tensordot(self.z1, self.R, 2), self.gamma - self.z0.sum())

    def target(self, centre: float, guess: _Change | None) -> Target:
        """q = W ds + W^-1 dz, the solution of ``l o q = -l o l + centre - (scaled ds) o (scaled dz)``."""
        _, _, _, l0, l1, det = self.scaling
        if guess is None:
            return -l0, -l1
        c0 = centre - (guess.s0 * guess.z0 + (guess.s1 * guess.z1).sum(1))
        c1 = -(guess.s0[:, None] * guess.z1 + guess.z0[:, None] * guess.s1)
        x0 = (l0 * c0 - (l1 * c1).sum(1)) / det
        return x0 - l0, (c1 - x0[:, None] * l1) / l0[:, None] - l1

    def eliminate(self, target: Target) -> tuple[np.ndarray, Callable[[np.ndarray, float], _Change]]:
        q0, q1 = target
        t0, t1 = self.unscale(q0, q1)

        def change(beta: np.ndarray, level: float) -> _Change:
            s0, s1 = self.unscale(np.full(len(q0), level), self.R @ beta)
            return _Change(level, s0, s1, q0 - s0, q1 - s1)

        return np.append(np.tensordot(t1, self.R, 2), t0.sum()), change

    def ratio(self, change: _Change) -> float:
        return max(self._ratio(change.s0, change.s1), self._ratio(change.z0, change.z1))

    def _ratio(self, x0: np.ndarray, x1: np.ndarray) -> float:
        """The inverse of the step from l along x to the boundary of the first cone that it reaches."""
        root = np.sqrt(self.scaling.det)
        m0, m1 = self.scaling.l0 / root, self.scaling.l1 / root[:, None]
        along = m0 * x0 - (m1 * x1).sum(1)
        beside = _norms(x1 - ((along + x0) / (m0 + 1))[:, None] * m1)
        return float(((beside - along) / root).max())

    def move(self, length: float, change: _Change, beta: np.ndarray) -> None:
        dz0, dz1 = self.unscale(change.z0, change.z1)
        self.gamma, self.s1 = self.gamma + length * change.level, self.R @ beta
        self.z0, self.z1 = self.z0 + length * dz0, self.z1 + length * dz1

    def unscale(self, x0: np.ndarray, x1: np.ndarray) -> Target:
        """W^-1 x."""
        y0, y1 = _scale(self.scaling.w0, -self.scaling.w1, x0, x1)
        return y0 / self.scaling.eta, y1 / self.scaling.eta[:, None]


def _scaling_of(gamma: float, s1: np.ndarray, z0: np.ndarray, z1: np.ndarray) -> _Scaling:
    size_s, size_z = _norms(s1), _norms(z1)
    det_s, det_z = (gamma - size_s) * (gamma + size_s), (z0 - size_z) * (z0 + size_z)
    if not (det_s.min() > 0 and det_z.min() > 0):
        raise FloatingPointError("on the border of a cone")
    ds, dz = np.sqrt(det_s), np.sqrt(det_z)
    a0, a1, b0, b1 = gamma / ds, s1 / ds[:, None], z0 / dz, z1 / dz[:, None]
    zeta = np.sqrt(0.5 + 0.5 * (a0 * b0 + (a1 * b1).sum(1)))
    w0, w1, eta = (a0 + b0) / (2 * zeta), (a1 - b1) / (2 * zeta[:, None]), np.sqrt(ds / dz)
    l0, l1 = _scale(w0, w1, z0, z1)
    return _Scaling(w0, w1, eta, eta * l0, eta[:, None] * l1, ds * dz)


def _norms(x: np.ndarray) -> np.ndarray:
    return np.sqrt((x * x).sum(1))


def _scale(w0: np.ndarray, w1: np.ndarray, x0: np.ndarray, x1: np.ndarray) -> Target:
    """The hyperbolic map of each cone, [w0, w1'; w1, I + w1 w1'/(1 + w0)] x; its inverse has -w1."""
    inner = (w1 * x1).sum(1)
    return w0 * x0 + inner, x1 + (x0 + inner / (1 + w0))[:, None] * w1


def clarabel(R: np.ndarray, losses: np.ndarray, best: Best[np.ndarray]) -> None:
    """Solve the problem by Clarabel, and update ``best``: x = (beta, gamma), w_t = -(part of dual t)."""
    K = R.shape[2]
    Q, S = (None, R) if R.shape[1] <= K else np.linalg.qr(R)
    T, r = S.shape[:2]
    rows = [np.vstack([-np.eye(K, K + 1), np.append(np.ones(K), 0.0)])]
    for block in S:
        rows.append(np.block([[np.zeros((1, K)), -np.ones((1, 1))], [-block, np.zeros((r, 1))]]))
    b = np.zeros(K + 1 + T * (r + 1))
    b[K] = 1
    answer = conic(np.append(-losses, 0.0), K, np.vstack(rows), b, K + 1, [r + 1] * T)
    if answer is not None:
        z1 = answer[1][K + 1 :].reshape(T, r + 1)[:, 1:]
        best.see(-(z1 if Q is None else (Q @ z1[:, :, None])[:, :, 0]), answer[0][:K])
