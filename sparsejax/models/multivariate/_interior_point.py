r"""The interior point of both masters: predictor and corrector over the shares of the cuts and a level.

A master is, in units in which the shares beta of the K cuts sum to 1 at most,

.. math:: \max_{\beta\ge0,\;\sigma = 1-1^\top\beta\ge0} \ell^\top\beta - q(\beta) ,

whose concave :math:`-q` is written with one more unknown, the level, and cones in which it and
:math:`R\beta` must lie. The simplex with its multipliers, the steps and when they end are here; a `Cones`
brings the rest. What comes back is the best primal and the best dual point that were seen, each by its true
value, so that their difference is a certificate whatever rounding does to the iterates.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

STEP = 0.995  # of the way to the border
CLARABEL_LIMIT = 1_000_000  # entries of the dense blocks that Clarabel is given at most

Point = TypeVar("Point")
Change = TypeVar("Change")
Target = tuple[np.ndarray, np.ndarray]


class Master(NamedTuple):
    alpha: np.ndarray  # (K,), dual feasible
    parts: np.ndarray  # (T, r), the w_t
    value: float  # of the primal at parts
    lower: float  # of the dual at alpha
    iterate: Any = None  # to start a similar master from, where that can be done


class Cones(ABC, Generic[Point, Change]):
    """What is a master's own: its two values, an iterate inside its cones, and their Newton equations."""

    losses: np.ndarray  # (K,), the largest 1
    pairs: int  # by which the sum of the cones' products is divided, with K + 1 for the simplex

    @abstractmethod
    def primal(self, point: Point) -> float:
        """The value of weights, whatever they are."""

    @abstractmethod
    def dual(self, beta: np.ndarray) -> float:
        """The value of shares, (K,), in the simplex."""

    @abstractmethod
    def start(self, beta: np.ndarray) -> np.ndarray:
        """Enter at a multiple, at most 1, of beta: that multiple."""

    @abstractmethod
    def point(self) -> Point:
        """The weights at the iterate."""

    @abstractmethod
    def complementarity(self) -> float:
        """The sum of the products that tend to 0."""

    @abstractmethod
    def system(self) -> tuple[np.ndarray, np.ndarray]:
        """The condensed (K+1) x (K+1) matrix and the residual (K+1,), both without the simplex' part.

        ArithmeticError where rounding leaves none.
        """

    @abstractmethod
    def target(self, centre: float, guess: Change | None) -> Target:
        """By what the products must change to become ``centre``, second-order terms taken from ``guess``."""

    @abstractmethod
    def eliminate(self, target: Target) -> tuple[np.ndarray, Callable[[np.ndarray, float], Change]]:
        """Their part of the right-hand side, (K+1,), and their change, given that of beta and level."""

    @abstractmethod
    def ratio(self, change: Change) -> float:
        """1 over the share of the step that reaches the border of a cone."""

    @abstractmethod
    def move(self, length: float, change: Change, beta: np.ndarray) -> None:
        """Take this share of the step; beta is the new one."""


class Best(Generic[Point]):
    """The best primal and the best dual point seen; at first those given, of value ``max(losses)`` and 0."""

    def __init__(self, cones: Cones[Point, Any], point: Point):
        self.cones, self.point = cones, point
        self.primal = max(0.0, float(cones.losses.max()))
        self.dual, self.beta = 0.0, np.zeros(len(cones.losses))

    @property
    def gap(self) -> float:
        return self.primal - self.dual

    def see(self, point: Point, beta: np.ndarray) -> None:
        """Weights, and any beta: it is brought into the simplex."""
        beta = np.maximum(beta, 0)
        beta = beta / max(1.0, beta.sum())
        primal, dual = self.cones.primal(point), self.cones.dual(beta)
        if primal < self.primal:
            self.primal, self.point = primal, point
        if dual > self.dual:
            self.dual, self.beta = dual, beta


class Simplex(NamedTuple):
    """The shares with their multipliers: the products lam beta and nu sigma tend to 0."""

    beta: np.ndarray  # (K,), > 0
    sigma: float  # 1 - 1'beta, kept apart so that it does not cancel
    lam: np.ndarray  # (K,), > 0
    nu: float


class _Step(NamedTuple, Generic[Change]):
    beta: np.ndarray
    lam: np.ndarray
    nu: float
    cones: Change


def interior_point(best: Best[Any], tol: float, patience: int, maxiter: int = 100) -> Simplex | None:
    """Iterates shown to ``best``, until its gap is ``tol`` or did not shrink by a tenth for ``patience``.

    The last one is left in the cones and returned: None if rounding had the last word.
    """
    cones = best.cones
    K = len(cones.losses)
    beta = cones.start(np.full(K, 1 / (K + 1)))
    at = Simplex(beta, 1 - beta.sum(), 2.0 - cones.losses, 2.0)

    smallest, since = np.inf, 0
    for _ in range(maxiter):
        best.see(cones.point(), at.beta)
        since = 0 if best.gap < 0.9 * smallest else since + 1
        smallest = min(smallest, best.gap)
        if best.gap <= tol or since > patience:
            break
        try:
            newton = _Newton(cones, at)
        except ArithmeticError:
            return None
        products = at.lam @ at.beta + at.nu * at.sigma + cones.complementarity()
        guess = newton.direction(0.0, None)
        centre = (1 - newton.longest(guess)) ** 3 * products / (cones.pairs + K + 1)
        at = newton.move(newton.direction(centre, guess))
    return at


def recentre(best: Best[Any], at: Simplex, tol: float, patience: int) -> Simplex | None:
    """The same from an iterate near the central path, to its point of gap ``tol``, in ``patience`` steps.

    Nothing is guessed ahead: a few steps are enough, and what is central makes better cuts.
    """
    cones = best.cones
    centre = tol / (cones.pairs + len(cones.losses) + 1)
    for _ in range(patience):
        best.see(cones.point(), at.beta)
        if best.gap <= tol:
            break
        try:
            newton = _Newton(cones, at)
        except ArithmeticError:
            return None
        at = newton.move(newton.direction(centre, None))
    return at


class _Newton(Generic[Change]):
    """The factorised system of one iterate; ArithmeticError if it has none."""

    def __init__(self, cones: Cones[Any, Change], at: Simplex):
        self.cones, self.at = cones, at
        H, self.residual = cones.system()
        K = len(at.beta)
        H[:K, :K] += at.nu / at.sigma
        H[np.arange(K), np.arange(K)] += at.lam / at.beta
        self.residual[:K] += at.nu - at.lam
        self.solve = newton_solver(H)

    def direction(self, centre: float, guess: _Step[Change] | None) -> _Step[Change]:
        """The step after which all products are ``centre``, second-order terms taken from ``guess``."""
        at = self.at
        by_beta, by_sigma = centre - at.lam * at.beta, centre - at.nu * at.sigma
        target = self.cones.target(centre, None if guess is None else guess.cones)
        if guess is not None:
            by_beta, by_sigma = by_beta - guess.lam * guess.beta, by_sigma + guess.nu * guess.beta.sum()
        right, change = self.cones.eliminate(target)
        right[:-1] += by_beta / at.beta - by_sigma / at.sigma
        x = self.solve(right - self.residual)
        beta, level = x[:-1], float(x[-1])
        lam, nu = (by_beta - at.lam * beta) / at.beta, (by_sigma + at.nu * beta.sum()) / at.sigma
        return _Step(beta, lam, nu, change(beta, level))

    def longest(self, step: _Step[Change]) -> float:
        """The share of the step, at most 1, that stays inside everything."""
        at = self.at
        ratios = [-(step.beta / at.beta).min(), -(step.lam / at.lam).min(), self.cones.ratio(step.cones)]
        return 1 / float(max(1.0, *ratios, step.beta.sum() / at.sigma, -step.nu / at.nu))

    def move(self, step: _Step[Change]) -> Simplex:
        """Most of the way that stays inside."""
        at, t = self.at, STEP * self.longest(step)
        beta, sigma = at.beta + t * step.beta, at.sigma - t * step.beta.sum()
        self.cones.move(t, step.cones, beta)
        return Simplex(beta, sigma, at.lam + t * step.lam, at.nu + t * step.nu)


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

    def once(right: np.ndarray) -> np.ndarray:
        return scale * dpotrs(factor, scale * right)[0]

    def solve(right: np.ndarray) -> np.ndarray:
        x = once(right)
        x += once(right - H @ x)
        return x

    return solve


def conic(
    linear: np.ndarray, square: int | None, A: Any, b: np.ndarray, orthant: int, second_order: list[int]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Clarabel's answer to ``min linear'x + x_square^2/2`` with ``b - Ax`` in the cones: x and its dual.

    The first ``orthant`` rows are >= 0, the others in second-order cones of the sizes given. None where
    Clarabel is missing or fails.
    """
    try:
        import clarabel  # noqa: PLC0415
        from scipy import sparse  # noqa: PLC0415
    except ImportError:
        return None
    settings = clarabel.DefaultSettings()
    settings.verbose, settings.time_limit, settings.max_threads = False, 60.0, 1
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-13
    diagonal = np.zeros(len(linear))
    if square is not None:
        diagonal[square] = 1
    P = sparse.csc_matrix(sparse.diags_array(diagonal))
    P.eliminate_zeros()
    cones = [clarabel.NonnegativeConeT(orthant), *map(clarabel.SecondOrderConeT, second_order)]
    answer = clarabel.DefaultSolver(P, linear, sparse.csc_matrix(A), b, cones, settings).solve()
    x, z = np.asarray(answer.x), np.asarray(answer.z)
    return (x, z) if np.isfinite(x).all() and np.isfinite(z).all() else None
