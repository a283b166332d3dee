r"""The master problem: the best weights under the cuts so far, in some groups of features.

With :math:`G_t` (r, K), the cuts restricted to group t, losses :math:`\Delta` (K,) and the bound
:math:`\hat C = C/n`,

.. math:: \min_{w,\,0\le d\le1,\,1^\top d=B} \tfrac12\sum_t\frac{\|w_t\|^2}{d_t}
          + \hat C\max\Big(0, \max_k \Delta_k - \sum_t \langle w_t, G_{tk}\rangle\Big)
          \;=\; \max_{\alpha\ge0,\,1^\top\alpha\le\hat C} \Delta^\top\alpha
          - \tfrac12\sum_{\text{B largest}}\|G_t\alpha\|^2 .

With B = 1 it is the master of the paper, which has the T groups that were added: its first term is half the
square of :math:`\sum_t\|w_t\|`. With groups of one feature each and the budget B, the master has every group
of B of the features that were added, and needs fewer rounds.

An interior point method solves it, started from the last master if that is near; if the method stalls,
Clarabel continues, if it is installed. The result is the best primal and the best dual point of all iterates,
with values computed from the points: their difference is a valid gap whatever rounding does to the iterates.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sparsejax.models.multivariate._support_norm import top_group

BOUNDARY_SHARE = 0.995  # a step goes at most this share of the way to the boundary
# With predictor steps the method ends after more than this number of steps in a row in which the gap has not
# shrunk by a tenth. Without predictor steps it makes at most this number of steps.
MAX_STALLED_STEPS = 12
# A new cut starts with at most this part of the mean share: more would disturb the other products.
MAX_NEW_SHARE = 0.3
CLARABEL_LIMIT = 1_000_000  # entries of G; Clarabel does not get larger masters


class Iterate(NamedTuple):
    """An iterate of a master with K cuts and T groups, a start for a master with more of both.

    In units in which the shares beta of the cuts sum to at most 1, the master is

        max losses'beta - (B tau + sum s) / 2  where  ||c_t||^2 <= tau + s_t,  s >= 0,  c = R beta .

    The slack p of that constraint has the multiplier d/2, and s >= 0 has (1 - d)/2. At the optimum

        R'(d c) - losses + nu - lam = 0,  sum d = B,  p = tau + s - ||c||^2,

    the products of `pairs` are 0, and the weights are w = d c. The fields are > 0, except tau. Changes of the
    fields are stored as an `Iterate` too. sigma and e are fields, because to compute them from beta and d
    would lose digits where they are small.
    """

    beta: np.ndarray  # (K,), the shares
    sigma: Any  # 1 - sum beta
    lam: np.ndarray  # (K,), multipliers of beta >= 0
    nu: Any  # multiplier of sigma >= 0
    d: np.ndarray  # (T,)
    e: np.ndarray  # (T,), 1 - d
    s: np.ndarray  # (T,)
    p: np.ndarray  # (T,)
    tau: Any

    @property
    def pairs(self) -> tuple[tuple[Any, Any], ...]:
        """The factors of the products that tend to 0."""
        return (self.beta, self.lam), (self.sigma, self.nu), (self.d, self.p), (self.e, self.s)

    def centre(self) -> float:
        """The mean of the products."""
        return float(sum(np.sum(a * b) for a, b in self.pairs)) / (len(self.beta) + 1 + 2 * len(self.d))

    def scaled(self, factor: float) -> "Iterate":
        """This iterate for the same master with its objective multiplied by ``factor``."""
        _, _, lam, nu, _, _, s, p, tau = self
        return self._replace(lam=factor * lam, nu=factor * nu, s=factor * s, p=factor * p, tau=factor * tau)

    def keep(self, cuts: np.ndarray, groups: np.ndarray) -> "Iterate":
        """The iterate restricted to the cuts and groups whose mask is True."""
        beta, sigma, lam, nu, d, e, s, p, tau = self
        beta = beta[cuts] * (1 - sigma) / beta[cuts].sum()
        return Iterate(beta, sigma, lam[cuts], nu, d[groups], e[groups], s[groups], p[groups], tau)


class Master(NamedTuple):
    alpha: np.ndarray  # (K,), a dual feasible point
    parts: np.ndarray  # (T, r), the weights w_t of the groups
    value: float  # primal value at parts
    lower: float  # dual value at alpha
    iterate: Iterate | None  # an iterate from which a similar master can start, if any


def solve(
    G: np.ndarray,
    delta: np.ndarray,
    bound: float,
    budget: float,
    tol: float,
    exact: bool = False,
    start: Iterate | None = None,
) -> Master:
    """Solve the master to an absolute gap ``tol``, or as accurately as possible.

    Args:
      G: (T, r, K), finite; r = 1 or ``budget`` = 1.
      delta: (K,), not all <= 0.
      bound: C/n, > 0.
      budget: B > 0.
      tol: bound on ``value - lower``.
      exact: run Clarabel too, whatever the gap is.
      start: iterate of a master with the first of these cuts and groups and the same bound and budget.
    """
    T, r, K = G.shape
    if r == 1 and K < T <= budget:  # the norm is the l2 norm of all features
        R, back = rotated(G.reshape(1, T, K))
        small = solve(R.reshape(K, 1, K), delta, bound, K, tol, exact)
        return small._replace(parts=back(small.parts.T).T)
    if r > K:
        R, back = rotated(G)
        small = solve(R, delta, bound, budget, tol, exact, start)
        return small._replace(parts=back(small.parts))
    padded = budget >= T
    if padded:  # d <= 1 with sum d = T has no interior point; a further group of zeros gives one
        budget, G, start = T, np.concatenate([G, np.zeros((1, r, K))]), None
    # Solve in units in which alpha sums to at most 1 and the largest loss is 1: the objective at w = 0 is 1.
    unit = bound * float(delta.max())
    best = Best(G * (bound / np.sqrt(unit)), delta / delta.max(), budget)
    at = None
    if start is not None:
        # No predictor steps: a few steps are enough from here, and central points make better cuts.
        at = interior_point(best, resumed(best, start.scaled(1 / unit)), tol / unit, predict=False)
    if at is None or best.gap > tol / unit:
        at = interior_point(best, first(best), tol / unit)
    if (exact or best.gap > tol / unit) and G.size <= CLARABEL_LIMIT:
        clarabel(best)
    iterate = None if padded or at is None else at.scaled(unit)
    parts = np.sqrt(unit) * best.point[:T]
    return Master(bound * best.beta, parts, unit * best.primal, unit * best.dual, iterate)


def rotated(G: np.ndarray) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """The same groups in K coordinates each, (T, K, K), since an l2 norm does not depend on the coordinates.

    Also returns the map of weights (T, K) in these coordinates back to those of G, (T, r).
    """
    size = max(float(np.abs(G).max()), np.finfo(float).tiny)  # so that no square overflows
    unit = G / size
    squares, V = np.linalg.eigh(unit.transpose(0, 2, 1) @ unit)
    lengths = size * np.sqrt(np.maximum(squares, 1e-16 * squares[:, -1:] + np.finfo(float).tiny))
    back = lambda parts: (G @ (V @ (parts / lengths)[:, :, None]))[:, :, 0]
    return lengths[:, :, None] * V.transpose(0, 2, 1), back


class Best:
    """A master, and its best primal and dual points so far, which start at values ``max(losses)`` and 0.

    Args:
      R: (T, r, K), the cuts restricted to the groups.
      losses: (K,), the largest is 1.
      budget: B < T.
    """

    def __init__(self, R: np.ndarray, losses: np.ndarray, budget: float):
        self.R, self.losses, self.budget = R, losses, budget
        self.rows = R.reshape(-1, len(losses))  # of all groups, one below the other
        self.primal, self.point = max(0.0, float(losses.max())), np.zeros(R.shape[:2])
        self.dual, self.beta = 0.0, np.zeros(len(losses))

    @property
    def gap(self) -> float:
        return self.primal - self.dual

    def see(self, w: np.ndarray, d: np.ndarray, beta: np.ndarray) -> None:
        """Compare weights (T, r) with their d (T,) > 0, and a beta, with the best points.

        d and beta are first made feasible.
        """
        beta = np.maximum(beta, 0)
        beta = beta / max(1.0, beta.sum())
        slack = self.losses - w.ravel() @ self.rows
        d = d / max(1.0, d.max(), d.sum() / self.budget)
        primal = 0.5 * float(((w * w).sum(1) / d).sum()) + max(0.0, float(slack.max()))
        dual = float(self.losses @ beta) - 0.5 * top_group(_norms(self.weighted_cuts(beta)), self.budget)[2]
        if primal < self.primal:
            self.primal, self.point = primal, w
        if dual > self.dual:
            self.dual, self.beta = dual, beta

    def weighted_cuts(self, beta: np.ndarray) -> np.ndarray:
        """R beta, (T, r)."""
        return (self.rows @ beta).reshape(self.R.shape[:2])


def _norms(c: np.ndarray) -> np.ndarray:
    return np.sqrt((c * c).sum(1))


def first(best: Best) -> Iterate:
    """The start of a solve without an earlier iterate."""
    T, K = len(best.R), len(best.losses)
    beta = np.full(K, 1 / (K + 1))
    beta /= max(1.0, _norms(best.weighted_cuts(beta)).max())
    squares, d, s = _norms(best.weighted_cuts(beta)) ** 2, np.full(T, best.budget / T), np.ones(T)
    tau = squares.max()
    return Iterate(beta, 1 - beta.sum(), 2.0 - best.losses, 2.0, d, 1 - d, s, tau + s - squares, tau)


def resumed(best: Best, start: Iterate) -> Iterate:
    """A start from the iterate of a master that had the first of these cuts and groups.

    The products of new cuts and groups (see `Iterate.pairs`) are about the mean product of the old ones.
    """
    beta, sigma, lam, nu, d, e, s, p, tau = start
    centre, known = start.centre(), len(beta)
    c = (best.rows[:, :known] @ beta).reshape(best.R.shape[:2])
    # centre / d = tau + s - ||c||^2 and centre / e = s, with excess = ||c||^2 - tau
    excess = _norms(c[len(d) :]) ** 2 - tau
    root = np.hypot(excess, 2 * centre)
    d = np.append(d, 2 * centre / (2 * centre + root - excess))
    e = np.append(e, 2 * centre / (2 * centre + root + excess))
    s, p = np.append(s, centre / e[len(s) :]), np.append(p, centre / d[len(p) :])
    slack = nu - best.losses[known:] + (d[:, None] * c).ravel() @ best.rows[:, known:]
    lam = np.append(lam, np.maximum(slack, centre / (MAX_NEW_SHARE * beta.mean())))
    beta = np.append(beta, centre / lam[known:])
    beta *= (1 - sigma) / beta.sum()
    residual = tau + s - _norms(best.weighted_cuts(beta)) ** 2 - p  # what the new shares have changed
    return Iterate(beta, sigma, lam, nu, d, e, s + np.maximum(-residual, 0), p + np.maximum(residual, 0), tau)


def interior_point(
    best: Best, at: Iterate, tol: float, predict: bool = True, maxiter: int = 100
) -> Iterate | None:
    """Iterate until the gap of ``best`` is ``tol``, or does not shrink.

    With ``predict`` these are Mehrotra's steps to the optimum; without, Newton steps to a point of the
    central path whose gap is between ``tol / 2`` and ``tol``. Returns the last iterate; None if rounding
    leaves the Newton system without a Cholesky factor.
    """
    smallest, stalled = np.inf, 0  # the smallest gap; steps in a row that have not lowered it by a tenth
    for _ in range(maxiter if predict else MAX_STALLED_STEPS):
        c = best.weighted_cuts(at.beta)
        best.see(at.d[:, None] * c, at.d, at.beta)
        stalled = 0 if best.gap < 0.9 * smallest else stalled + 1
        smallest = min(smallest, best.gap)
        if best.gap <= tol or stalled > MAX_STALLED_STEPS:
            break
        try:
            newton = _Newton(best, at, c)
        except ArithmeticError:
            return None
        guess, centre = None, tol / (len(at.beta) + 1 + 2 * len(at.d))
        if predict:  # the longer the step to centre 0 can be, the smaller the centre
            guess = newton.direction(0.0, None)
            centre = (1 - newton.longest(guess)) ** 3 * at.centre()
        at = newton.move(newton.direction(centre, guess))
    return at


class _Newton:
    """The factorised Newton system of one iterate; ArithmeticError if it has none.

    The changes of beta and tau solve a condensed (K+1) x (K+1) system, and give all others. Its rows are the
    linearised equations ``R'(d c) - losses + nu - lam = 0`` and ``(B - sum d) / 2 = 0`` of `Iterate`. The
    changes of lam and nu follow from their products. The change of d follows from e = 1 - d, the products of
    d and e, and p = tau + s - ||c||^2: it is ``(q - (change of tau) + 2 <c, change of c>) / h``.
    """

    def __init__(self, best: Best, at: Iterate, c: np.ndarray):
        self.best, self.at, self.c = best, at, c
        _, r, K = best.R.shape
        self.h = h = at.p / at.d + at.s / at.e  # the factor of a change of ||c||^2
        if r == 1:
            rows = best.rows * np.sqrt(at.d + 2 * c[:, 0] ** 2 / h)[:, None]
        else:
            across = (c[:, None] @ best.R)[:, 0] * np.sqrt(2 / h)[:, None]
            rows = np.concatenate([best.rows * np.repeat(np.sqrt(at.d), r)[:, None], across])
        H = np.empty((K + 1, K + 1))
        np.matmul(rows.T, rows, out=H[:K, :K])
        H[:K, :K] += at.nu / at.sigma
        H[np.arange(K), np.arange(K)] += at.lam / at.beta
        H[:K, K] = H[K, :K] = -self.gathered(1 / h)
        H[K, K] = 0.5 * (1 / h).sum()
        gradient = self.gathered(at.d) - best.losses + at.nu - at.lam
        self.residual = np.append(gradient, 0.5 * (best.budget - at.d.sum()))
        self.solve = newton_solver(H)

    def gathered(self, x: np.ndarray) -> np.ndarray:
        """``sum_t x_t R_t'c_t``, (K,)."""
        return (x[:, None] * self.c).ravel() @ self.best.rows

    def direction(self, centre: float, guess: Iterate | None) -> Iterate:
        """The changes after which all products are ``centre``, second-order terms taken from ``guess``."""
        at, c, h = self.at, self.c, self.h
        changes = [centre - a * b for a, b in at.pairs]
        if guess is not None:
            changes = [old - a * b for old, (a, b) in zip(changes, guess.pairs, strict=True)]
        by_beta, by_sigma, by_d, by_e = changes
        q = by_d / at.d - by_e / at.e - (at.tau + at.s - _norms(c) ** 2 - at.p)
        by_shares = by_beta / at.beta - by_sigma / at.sigma - self.gathered(q / h)
        x = self.solve(np.append(by_shares, 0.5 * (q / h).sum()) - self.residual)
        beta, tau = x[:-1], float(x[-1])
        sigma, d = -beta.sum(), (q - tau + 2 * (c * self.best.weighted_cuts(beta)).sum(1)) / h
        lam, nu = (by_beta - at.lam * beta) / at.beta, (by_sigma - at.nu * sigma) / at.sigma
        return Iterate(beta, sigma, lam, nu, d, -d, (by_e + at.s * d) / at.e, (by_d - at.p * d) / at.d, tau)

    def longest(self, step: Iterate) -> float:
        """The largest share of the step, at most 1, that leaves the fields before tau positive."""
        ratios = [-np.min(change / value) for change, value in zip(step[:-1], self.at[:-1], strict=True)]
        return 1 / float(max(1.0, *ratios))

    def move(self, step: Iterate) -> Iterate:
        """The iterate after most of the largest step."""
        t = BOUNDARY_SHARE * self.longest(step)
        return Iterate(*(value + t * change for value, change in zip(self.at, step, strict=True)))


def newton_solver(H: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """rhs -> H^-1 rhs for a symmetric positive definite H, with one step of refinement.

    Raises FloatingPointError where H is not finite, or not positive definite.
    """
    from scipy.linalg.lapack import dpotrf, dpotrs  # noqa: PLC0415

    scale = 1 / np.sqrt(np.diag(H))
    scaled = H * scale[:, None]
    scaled *= scale
    scaled[np.diag_indices_from(scaled)] += 1e-15
    if not np.isfinite(scaled).all():
        raise FloatingPointError("overflow")
    factor, failed = dpotrf(scaled.T, overwrite_a=True, clean=False)
    if failed:
        raise FloatingPointError("not positive definite")
    once = lambda right: scale * dpotrs(factor, scale * right)[0]

    def solve(right: np.ndarray) -> np.ndarray:
        x: np.ndarray = once(right)
        x += once(right - H @ x)
        return x

    return solve


def clarabel(best: Best) -> None:
    """Solve the master by Clarabel, if it is installed, and compare its answer with ``best``.

    The unknowns are (beta, tau, s), and ||c||^2 <= t = tau + s is the cone (t + 1; 2c, t - 1).
    """
    try:
        import clarabel  # noqa: PLC0415
        from scipy import sparse  # noqa: PLC0415
    except ImportError:
        return
    T, r, K = best.R.shape
    eye, one = sparse.eye_array(T), np.ones((T, 1))
    simplex = [[sparse.eye_array(K), None, None], [-np.ones((1, K)), None, None]]
    s, t, c = [None, None, eye], [None, one, eye], [2 * best.rows, None, None]
    A = sparse.block_array([*simplex, s, t, c, t], format="csr")
    # Rows of each cone one after another: those of t + 1, of 2c, and of t - 1.
    simple = K + 1 + T
    blocks = np.split(np.arange(simple, A.shape[0]), [T, T + T * r])
    order = np.hstack([block.reshape(T, -1) for block in blocks]).ravel()
    A = A[np.append(np.arange(simple), order)]
    ends = np.tile([1.0, *np.zeros(r), -1.0], T)
    b = np.concatenate([np.zeros(K), [1.0], np.zeros(T), ends])
    cost = np.concatenate([-best.losses, [0.5 * best.budget], np.full(T, 0.5)])
    settings = clarabel.DefaultSettings()
    settings.verbose, settings.time_limit, settings.max_threads = False, 60.0, 1
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-13
    cones = [clarabel.NonnegativeConeT(simple), *[clarabel.SecondOrderConeT(r + 2)] * T]
    P = sparse.csc_matrix((len(cost), len(cost)))
    answer = clarabel.DefaultSolver(P, cost, sparse.csc_matrix(-A), b, cones, settings).solve()
    x, z = np.asarray(answer.x), np.asarray(answer.z)
    if np.isfinite(x).all() and np.isfinite(z).all():
        z = z[simple:].reshape(T, r + 2)
        best.see(-2 * z[:, 1:-1], np.clip(2 * (z[:, 0] + z[:, -1]), 1e-12, 1.0), x[:K])
