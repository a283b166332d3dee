r"""The master problem over features: all groups of B of them at once.

With G (J, K), the cuts restricted to J features, losses :math:`\Delta` (K,) and the bound
:math:`\hat C = C/n`,

.. math:: \min_{w,\,0\le d\le1,\,1^\top d=B} \tfrac12\sum_j\frac{w_j^2}{d_j}
          + \hat C\max(0, \max_k \Delta_k - g_k^\top w)
          \;=\; \max_{\alpha\ge0,\,1^\top\alpha\le\hat C} \Delta^\top\alpha
          - \tfrac12\sum_{\text{B largest}}(G\alpha)_j^2 .

Where `_master` knows the groups that it was given, this knows every group of the features that it was given:
fewer rounds, and J rows instead of T times B. A primal-dual interior point, condensed to K + 1 unknowns;
Clarabel takes over where it stalls, if it is installed.
"""

from typing import Any, NamedTuple

import numpy as np

from sparsejax.models.multivariate._master import CLARABEL_LIMIT, PATIENCE, STEP, Master, newton_solver


def solve(
    G: np.ndarray, delta: np.ndarray, bound: float, budget: float, tol: float, exact: bool = False
) -> Master:
    """The master to an absolute gap ``tol``, or as near as can be; parts are w, (J, 1).

    Args:
      G: (J, K), finite.
      delta: (K,), not all <= 0.
      bound: C/n, > 0.
      budget: B > 0.
      tol: on ``value - lower``.
      exact: take Clarabel's answer too, whatever the gap.
    """
    J, K = G.shape
    if K < J <= budget and np.isfinite(gram := G.T @ G).all():
        # the l2 norm, the same in every basis: K coordinates are enough
        squares, V = np.linalg.eigh(gram)
        lengths = np.sqrt(np.maximum(squares, 1e-16 * squares[-1] + np.finfo(float).tiny))
        small = solve(lengths[:, None] * V.T, delta, bound, K, tol, exact)
        return small._replace(parts=G @ (V @ (small.parts / lengths[:, None])))
    if budget >= J:  # d = 1 has no interior: a feature of zeros makes one
        budget, G = J, np.vstack([G, np.zeros(K)])
    unit = bound * float(delta.max())
    best = _Best(G * (bound / np.sqrt(unit)), delta / delta.max(), budget)
    interior_point(best, tol / unit)
    if (exact or best.gap > tol / unit) and G.size <= CLARABEL_LIMIT:
        clarabel(best)
    w = np.sqrt(unit) * best.w[:J, None]
    return Master(bound * best.beta, w, unit * best.primal, unit * best.dual)


class _Best:
    """The best primal and the best dual point seen, by their true values."""

    def __init__(self, R, losses, budget):
        self.R, self.losses, self.budget = R, losses, budget
        self.primal, self.w = max(0.0, float(losses.max())), np.zeros(len(R))
        self.dual, self.beta = 0.0, np.zeros(R.shape[1])

    @property
    def gap(self):
        return self.primal - self.dual

    def see(self, w, d, beta):
        """A point with 0 < d <= 1 and the sum of d at most B, up to rounding; and any beta."""
        beta = np.maximum(beta, 0)
        beta = beta / max(1.0, beta.sum())
        d = d / max(1.0, d.max(), d.sum() / self.budget)
        primal = 0.5 * (w * w / d).sum() + max(0.0, (self.losses - w @ self.R).max())
        squares, size = (self.R @ beta) ** 2, int(np.ceil(self.budget))
        largest = np.sort(np.partition(squares, len(squares) - size)[len(squares) - size :])
        top = largest.sum() - (size - self.budget) * largest[0]
        dual = self.losses @ beta - 0.5 * top
        if primal < self.primal:
            self.primal, self.w = float(primal), w
        if dual > self.dual:
            self.dual, self.beta = float(dual), beta


def interior_point(best: _Best, tol: float, maxiter: int = 100) -> None:
    r"""Predictor and corrector on ``min 1/2 (B tau + sum s) - losses' beta`` under ``c_j^2 <= tau + s_j``.

    With c = R beta, the slack p of that constraint has the multiplier d/2, and s >= 0 has (1 - d)/2;
    beta >= 0 has lam and ``sigma = 1 - 1'beta >= 0`` has nu. Optimality:

        R'(d c) - losses + nu - lam = 0,  sum d = B,  p = tau + s - c^2,
        p d = s (1 - d) = lam beta = nu sigma = 0 .

    The weights are w = d c.
    """
    R, losses, budget = best.R, best.losses, best.budget
    J, K = R.shape
    beta = np.full(K, 1 / (K + 1))
    beta /= max(1.0, np.abs(R @ beta).max())
    d, sigma, nu = np.full(J, budget / J), 1 - beta.sum(), 2.0
    e, c = 1 - d, R @ beta
    tau, s, lam = float((c * c).max()), np.full(J, 1.0), nu - losses
    p = tau + s - c * c

    smallest, since = np.inf, 0
    for _ in range(maxiter):
        best.see(d * c, d, beta)
        since = 0 if best.gap < 0.9 * smallest else since + 1
        smallest = min(smallest, best.gap)
        if best.gap <= tol or since > 2 * PATIENCE:
            return
        try:
            newton = _Newton(R, losses, budget, _At(beta, tau, d, e, s, p, lam, nu, sigma, c))
        except ArithmeticError:
            return  # rounding has the last word
        mu = (p @ d + s @ e + lam @ beta + nu * sigma) / (2 * J + K + 1)
        guess = newton.direction(-p * d, -s * e, -lam * beta, -nu * sigma)
        target = (1 - newton.longest(guess)) ** 3 * mu
        step = newton.direction(
            target - p * d - guess.p * guess.d,
            target - s * e + guess.s * guess.d,
            target - lam * beta - guess.lam * guess.beta,
            target - nu * sigma + guess.nu * guess.beta.sum(),
        )
        t = STEP * newton.longest(step)
        beta, tau, s, p = beta + t * step.beta, tau + t * step.tau, s + t * step.s, p + t * step.p
        d, e, lam = d + t * step.d, e - t * step.d, lam + t * step.lam
        nu, sigma, c = nu + t * step.nu, sigma - t * step.beta.sum(), R @ beta


class _At(NamedTuple):
    """An iterate; e = 1 - d and sigma are kept apart, so that they do not cancel."""

    beta: np.ndarray
    tau: float
    d: np.ndarray
    e: np.ndarray
    s: np.ndarray
    p: np.ndarray
    lam: np.ndarray
    nu: float
    sigma: float
    c: np.ndarray


class _Step(NamedTuple):
    beta: np.ndarray
    tau: float
    d: np.ndarray
    s: np.ndarray
    p: np.ndarray
    lam: np.ndarray
    nu: float


class _Newton:
    """The factorised (K+1) x (K+1) system of one iterate; ArithmeticError if it has none."""

    def __init__(self, R, losses, budget, at: _At):
        K = R.shape[1]
        self.R, self.at = R, at
        self.r_beta = R.T @ (at.d * at.c) - losses + at.nu - at.lam
        self.r_p, self.r_d = at.tau + at.s - at.c * at.c - at.p, budget - at.d.sum()
        self.h = h = at.p / at.d + at.s / at.e
        H = np.empty((K + 1, K + 1))
        weighted = R * np.sqrt(at.d + 2 * at.c * at.c / h)[:, None]
        H[:K, :K] = weighted.T @ weighted + at.nu / at.sigma
        H[np.arange(K), np.arange(K)] += at.lam / at.beta
        H[:K, K] = H[K, :K] = -R.T @ (at.c / h)
        H[K, K] = 0.5 * (1 / h).sum()
        self.solve = newton_solver(H)

    def direction(self, pd, se, lb, ns) -> _Step:
        """The step by which the products p d, s e, lam beta and nu sigma change so, to first order."""
        at, R, h = self.at, self.R, self.h
        q = pd / at.d - se / at.e - self.r_p
        rhs = np.append(
            lb / at.beta - ns / at.sigma - self.r_beta - R.T @ (at.c * q / h),
            0.5 * ((q / h).sum() - self.r_d),
        )
        x = self.solve(rhs)
        beta, tau = x[:-1], x[-1]
        d = (q - tau + 2 * at.c * (R @ beta)) / h
        return _Step(
            beta, tau, d, (se + at.s * d) / at.e, (pd - at.p * d) / at.d,
            (lb - at.lam * beta) / at.beta, (ns + at.nu * beta.sum()) / at.sigma,
        )  # fmt: skip

    def longest(self, step: _Step) -> float:
        """The share of the step, at most 1, that keeps everything positive."""
        at = self.at
        pairs = [(step.beta, at.beta), (step.d, at.d), (-step.d, at.e), (step.s, at.s), (step.p, at.p)]
        ratios = [-(change / value).min() for change, value in (*pairs, (step.lam, at.lam))]
        return 1 / max(1.0, *ratios, step.beta.sum() / at.sigma, -step.nu / at.nu)


def clarabel(best: _Best) -> None:
    """The same problem by Clarabel, shown to ``best``; nothing happens where it is missing or fails."""
    try:
        import clarabel as package  # type: ignore[import-untyped]  # noqa: PLC0415
        from scipy import sparse  # type: ignore[import-untyped]  # noqa: PLC0415
    except ImportError:
        return
    R = best.R
    J, K = R.shape
    eye, one = sparse.eye_array(J), sparse.csr_array(np.ones((J, 1)))
    # x = (beta, tau, s); c^2 <= t = tau + s as the cone (t + 1; 2c, t - 1)
    positive = sparse.hstack([sparse.eye_array(K), sparse.csr_array((K, 1 + J))])
    sums = sparse.hstack([sparse.csr_array(-np.ones((1, K))), sparse.csr_array((1, 1 + J))])
    slack = sparse.hstack([sparse.csr_array((J, K + 1)), eye])
    t = sparse.hstack([sparse.csr_array((J, K)), one, eye])
    c = sparse.hstack([sparse.csr_array(2 * R), sparse.csr_array((J, 1 + J))])
    order = np.arange(3 * J).reshape(3, J).T.ravel()
    A = sparse.vstack([positive, sums, slack, sparse.vstack([t, c, t]).tocsr()[order]])
    b = np.concatenate([np.zeros(K), [1.0], np.zeros(J), np.tile([1.0, 0.0, -1.0], J)])
    cones: list[Any] = [package.NonnegativeConeT(K + 1 + J), *[package.SecondOrderConeT(3)] * J]
    settings = package.DefaultSettings()
    settings.verbose, settings.time_limit, settings.max_threads = False, 60.0, 1
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-13
    cost = np.concatenate([-best.losses, [0.5 * best.budget], np.full(J, 0.5)])
    P = sparse.csc_matrix((len(cost), len(cost)))
    answer = package.DefaultSolver(P, cost, sparse.csc_matrix(-A), b, cones, settings).solve()
    x, z = np.asarray(answer.x), np.asarray(answer.z)[K + 1 + J :].reshape(J, 3)
    if np.isfinite(x).all() and np.isfinite(z).all():
        d = np.clip(2 * (z[:, 0] + z[:, 2]), 1e-12, 1.0)
        best.see(-2 * z[:, 1], d, x[:K])
