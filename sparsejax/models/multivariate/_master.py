r"""The master problem: weights of T groups under K cuts, a small conic quadratic program.

With :math:`G_t` (r, K), the cuts restricted to group t, losses :math:`\Delta` (K,) and the bound
:math:`\hat C = C/n`,

.. math:: \min_w \tfrac12\Big(\sum_t \|w_t\|\Big)^2 + \hat C\max\Big(0, \max_k \Delta_k - \sum_t
          \langle w_t, G_{tk}\rangle\Big)
          \;=\; \max_{\alpha\ge0,\,1^\top\alpha\le\hat C} \Delta^\top\alpha - \tfrac12\max_t\|G_t\alpha\|^2 .

A primal-dual interior point with Nesterov-Todd scaling, condensed to a (K+1) x (K+1) system, is the default:
every iterate is feasible for both sides, so that each gives a certified pair of values, and the best of each
side is what comes back. Clarabel takes over where it stalls, if it is installed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

STEP, PATIENCE = 0.995, 6
CLARABEL_LIMIT = 1_000_000  # entries of its dense blocks; beyond it takes a minute and more


class Master(NamedTuple):
    alpha: np.ndarray  # (K,), dual feasible
    parts: np.ndarray  # (T, r), the w_t
    value: float  # of the primal at parts
    lower: float  # of the dual at alpha


def solve(G: np.ndarray, delta: np.ndarray, bound: float, tol: float, exact: bool = False) -> Master:
    """The master to an absolute gap ``tol``, or as near as can be.

    Args:
      G: (T, r, K), finite.
      delta: (K,), not all <= 0.
      bound: C/n, > 0.
      tol: on ``value - lower``.
      exact: take Clarabel's answer too, whatever the gap.
    """
    # In units in which alpha sums to 1, the largest loss is 1 and so is the price of not fitting at all.
    unit = bound * float(delta.max())
    R, losses = np.ascontiguousarray(G) * (bound / np.sqrt(unit)), delta / delta.max()
    best = _Best(R, losses)
    interior_point(R, losses, tol / unit, best)
    if (exact or best.gap > tol / unit) and R.shape[0] * min(R.shape[1:]) * R.shape[2] <= CLARABEL_LIMIT:
        clarabel(R, losses, best)
    return Master(bound * best.beta, np.sqrt(unit) * best.w, unit * best.primal, unit * best.dual)


class _Best:
    """The best primal and the best dual point seen, by their true values."""

    def __init__(self, R, losses):
        self.R, self.losses = R, losses
        self.primal, self.w = max(0.0, float(losses.max())), np.zeros(R.shape[:2])
        self.dual, self.beta = 0.0, np.zeros(R.shape[2])

    @property
    def gap(self):
        return self.primal - self.dual

    def see(self, w, beta):
        beta = np.maximum(beta, 0)
        beta = beta / max(1.0, beta.sum())
        slack = self.losses - np.tensordot(w, self.R, 2)
        primal = 0.5 * np.linalg.norm(w, axis=1).sum() ** 2 + max(0.0, slack.max())
        dual = self.losses @ beta - 0.5 * ((self.R @ beta) ** 2).sum(1).max()
        if primal < self.primal:
            self.primal, self.w = float(primal), w.copy()
        if dual > self.dual:
            self.dual, self.beta = float(dual), beta


def interior_point(R: np.ndarray, losses: np.ndarray, tol: float, best: _Best, maxiter: int = 80) -> None:
    r"""Mehrotra's predictor and corrector on ``min 1/2 gamma^2 - losses' beta``, shown to ``best``.

    Cones: ``(gamma; R_t beta)`` second order with dual (z0, z1)_t, ``beta >= 0`` with lam,
    ``sigma = 1 - 1'beta >= 0`` with nu. At the optimum ``w_t = -z1_t``.
    """
    T, r, K = R.shape
    grams = R.transpose(0, 2, 1) @ R if 2 * r >= K else None
    beta = np.full(K, 1 / (K + 1))
    beta = beta / max(1.0, _norms(R @ beta).max())
    gamma, sigma, nu = _norms(R @ beta).max() + 1, 1 - beta.sum(), 2.0
    z0, z1, lam = np.full(T, gamma / T), np.zeros((T, r)), nu - losses

    smallest, since = np.inf, 0
    for _ in range(maxiter):
        best.see(-z1, beta)
        since = 0 if best.gap < 0.9 * smallest else since + 1
        smallest = min(smallest, best.gap)
        if best.gap <= tol or since > PATIENCE:
            return
        try:
            newton = _Newton(R, grams, losses, beta, gamma, sigma, lam, nu, z0, z1)
        except ArithmeticError:
            return  # rounding has the last word
        l0, l1 = newton.l0, newton.l1
        mu = (gamma * z0.sum() + (newton.s1 * z1).sum() + lam @ beta + nu * sigma) / (T + K + 1)
        guess = newton.direction(-l0, -l1, -lam * beta, -nu * sigma)
        target = (1 - newton.longest(guess)) ** 3 * mu
        # l o q = -l o l + target - (scaled ds) o (scaled dz)
        c0 = target - (guess.s0 * guess.z0 + (guess.s1 * guess.z1).sum(1))
        c1 = -(guess.s0[:, None] * guess.z1 + guess.z0[:, None] * guess.s1)
        x0 = (l0 * c0 - (l1 * c1).sum(1)) / newton.det
        step = newton.direction(
            x0 - l0,
            (c1 - x0[:, None] * l1) / l0[:, None] - l1,
            target - guess.beta * guess.lam - lam * beta,
            target + guess.beta.sum() * guess.nu - nu * sigma,
        )
        length = STEP * newton.longest(step)
        dz0, dz1 = newton.unscale(step.z0, step.z1)
        beta, gamma, sigma = (
            beta + length * step.beta,
            gamma + length * step.gamma,
            sigma - length * step.beta.sum(),
        )
        nu, lam = nu + length * step.nu, lam + length * step.lam
        z0, z1 = z0 + length * dz0, z1 + length * dz1


def newton_solver(H: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """rhs -> H^-1 rhs for a symmetric positive definite H, with one step of refinement.

    Raises FloatingPointError where H is not finite, or not positive definite.
    """
    from scipy.linalg import LinAlgError, cho_factor, cho_solve  # type: ignore[import-untyped]  # noqa: PLC0415

    scale = 1 / np.sqrt(np.diag(H))
    scaled = H * scale[:, None] * scale + 1e-15 * np.eye(len(H))
    if not np.isfinite(scaled).all():
        raise FloatingPointError("overflow")
    try:
        factor = cho_factor(scaled, check_finite=False)
    except LinAlgError as error:
        raise FloatingPointError("not positive definite") from error

    def solve(rhs):
        once = lambda rhs: scale * cho_solve(factor, scale * rhs, check_finite=False)
        x = once(rhs)
        return x + once(rhs - H @ x)

    return solve


class _Step(NamedTuple):
    beta: np.ndarray
    gamma: float
    lam: np.ndarray
    nu: float
    s0: np.ndarray  # W^-1 ds
    s1: np.ndarray
    z0: np.ndarray  # W dz
    z1: np.ndarray


class _Newton:
    """The scaling at one iterate, and the factorised (K+1) x (K+1) system; ArithmeticError if it has none."""

    def __init__(self, R, grams, losses, beta, gamma, sigma, lam, nu, z0, z1):
        T, r, K = R.shape
        self.R, self.at, self.s1 = R, (beta, sigma, lam, nu), R @ beta
        det_s = (gamma - _norms(self.s1)) * (gamma + _norms(self.s1))
        det_z = (z0 - _norms(z1)) * (z0 + _norms(z1))
        if not (det_s.min() > 0 and det_z.min() > 0):
            raise FloatingPointError("on the border of a cone")
        # the Nesterov-Todd point (w0, w1) and scale eta of each cone: W z = W^-1 s = l
        ds, dz = np.sqrt(det_s), np.sqrt(det_z)
        a0, a1, b0, b1 = gamma / ds, self.s1 / ds[:, None], z0 / dz, z1 / dz[:, None]
        zeta = np.sqrt(0.5 + 0.5 * (a0 * b0 + (a1 * b1).sum(1)))
        w0, w1, eta = (a0 + b0) / (2 * zeta), (a1 - b1) / (2 * zeta[:, None]), np.sqrt(ds / dz)
        l0, l1 = _scale(w0, w1, z0, z1)
        self.w0, self.w1, self.eta, self.det = w0, w1, eta, ds * dz
        self.l0, self.l1 = eta * l0, eta[:, None] * l1
        self.residual = np.append(-losses - np.tensordot(z1, R, 2) - lam + nu, gamma - z0.sum())

        e, u = eta**-2, (w1[:, None] @ R)[:, 0]
        H = np.empty((K + 1, K + 1))
        if grams is None:
            flat = R.reshape(T * r, K) * np.repeat(1 / eta, r)[:, None]
            H[:K, :K] = flat.T @ flat
        else:
            H[:K, :K] = np.tensordot(e, grams, 1)
        H[:K, :K] += 2 * (u * e[:, None]).T @ u + nu / sigma
        H[np.arange(K), np.arange(K)] += lam / beta
        H[:K, K] = H[K, :K] = -2 * (e * w0) @ u
        H[K, K] = 1 + e @ (2 * w0**2 - 1)
        self.solve = newton_solver(H)

    def unscale(self, x0, x1):
        """W^-1 x."""
        y0, y1 = _scale(self.w0, -self.w1, x0, x1)
        return y0 / self.eta, y1 / self.eta[:, None]

    def direction(self, q0, q1, by_beta, by_sigma) -> _Step:
        """The step that moves the scaled cones by q in sum, and the products lam beta, nu sigma by these."""
        beta, sigma, lam, nu = self.at
        t0, t1 = self.unscale(q0, q1)
        rhs = (
            np.append(np.tensordot(t1, self.R, 2) + by_beta / beta - by_sigma / sigma, t0.sum())
            - self.residual
        )
        x = self.solve(rhs)
        s0, s1 = self.unscale(np.full(len(q0), x[-1]), self.R @ x[:-1])
        d_lam, d_nu = (by_beta - lam * x[:-1]) / beta, (by_sigma + nu * x[:-1].sum()) / sigma
        return _Step(x[:-1], x[-1], d_lam, d_nu, s0, s1, q0 - s0, q1 - s1)

    def longest(self, step: _Step) -> float:
        """The share of the step, at most 1, that stays in all cones."""
        beta, sigma, lam, nu = self.at
        ratios = [-(step.beta / beta).min(), -(step.lam / lam).min(), step.beta.sum() / sigma, -step.nu / nu]
        ratios += [self._ratio(step.s0, step.s1), self._ratio(step.z0, step.z1)]
        return 1 / max(1.0, *ratios)

    def _ratio(self, x0, x1):
        """1 over the step from l along x to the border of a cone, the largest of all cones."""
        root = np.sqrt(self.det)
        m0, m1 = self.l0 / root, self.l1 / root[:, None]
        along = m0 * x0 - (m1 * x1).sum(1)
        return ((_norms(x1 - ((along + x0) / (m0 + 1))[:, None] * m1) - along) / root).max()


def _norms(x):
    return np.sqrt((x * x).sum(1))


def _scale(w0, w1, x0, x1):
    """The hyperbolic map of each cone, [w0, w1'; w1, I + w1 w1'/(1 + w0)] x; its inverse has -w1."""
    inner = (w1 * x1).sum(1)
    return w0 * x0 + inner, x1 + (x0 + inner / (1 + w0))[:, None] * w1


def clarabel(R: np.ndarray, losses: np.ndarray, best: _Best) -> None:
    """The same problem by Clarabel, shown to ``best``; nothing happens where it is missing or fails."""
    try:
        import clarabel as package  # type: ignore[import-untyped]  # noqa: PLC0415
        from scipy import sparse  # type: ignore[import-untyped]  # noqa: PLC0415
    except ImportError:
        return
    K = R.shape[2]
    Q, S = (None, R) if R.shape[1] <= K else np.linalg.qr(R)
    T, r = S.shape[:2]
    cones: list[Any] = [package.NonnegativeConeT(K + 1), *[package.SecondOrderConeT(r + 1)] * T]
    rows = [np.vstack([-np.eye(K, K + 1), np.append(np.ones(K), 0.0)])]
    for block in S:
        rows.append(np.block([[np.zeros((1, K)), -np.ones((1, 1))], [-block, np.zeros((r, 1))]]))
    b = np.zeros(K + 1 + T * (r + 1))
    b[K] = 1
    settings = package.DefaultSettings()
    settings.verbose, settings.time_limit, settings.max_threads = False, 60.0, 1
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-13
    P = sparse.csc_matrix(([1.0], ([K], [K])), shape=(K + 1, K + 1))
    A = sparse.csc_matrix(np.vstack(rows))
    answer = package.DefaultSolver(P, np.append(-losses, 0.0), A, b, cones, settings).solve()
    x, z = np.asarray(answer.x), np.asarray(answer.z)[K + 1 :].reshape(T, r + 1)
    if np.isfinite(x).all() and np.isfinite(z).all():
        z1 = z[:, 1:] if Q is None else (Q @ z[:, 1:, None])[:, :, 0]
        best.see(-z1, x[:K])
