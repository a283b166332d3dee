r"""The interior point method of both masters: predictor-corrector steps in the shares of cuts and a level.

In units in which the shares beta of the K cuts sum to at most 1, a master is

.. math:: \max_{\beta\ge0,\;\sigma = 1-1^\top\beta\ge0} \ell^\top\beta - q(\beta) ,

where the concave :math:`-q` is written with one more unknown, the level, and with cones that contain the
level and :math:`R\beta`. This file has the simplex with its multipliers, the steps and the stopping rule; a
`Cones` has the rest. The result is the best primal and the best dual point of all iterates, with values
computed from the points: their difference is a valid gap whatever rounding does to the iterates.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

BOUNDARY_SHARE = 0.995  # a step goes at most this share of the way to the boundary of the cones
CLARABEL_LIMIT = 1_000_000  # entries of the dense blocks; Clarabel does not get larger masters

Point = TypeVar("Point")
Change = TypeVar("Change")
Target = tuple[np.ndarray, np.ndarray]


class Master(NamedTuple):
    alpha: np.ndarray  # (K,), a dual feasible point
    parts: np.ndarray  # (T, r), the weights w_t of the groups
    value: float  # primal value at parts
    lower: float  # dual value at alpha
    iterate: Any = None  # an iterate from which a similar master can start, if any


class Cones(ABC, Generic[Point, Change]):
    """The part of a master that depends on its kind: values, an iterate in cones, and Newton equations."""

    losses: np.ndarray  # (K,), the largest is 1
    pairs: int  # number of complementary pairs of the cones; the simplex has K + 1 more

    @abstractmethod
    def primal(self, point: Point) -> float:
        """The primal value of any weights."""

    @abstractmethod
    def dual(self, beta: np.ndarray) -> float:
        """The dual value of shares (K,) in the simplex."""

    @abstractmethod
    def start(self, beta: np.ndarray) -> np.ndarray:
        """Start the iterate at a multiple (at most 1) of beta, and return the multiple of beta."""

    @abstractmethod
    def point(self) -> Point:
        """The weights at the iterate."""

    @abstractmethod
    def complementarity(self) -> float:
        """The sum of the complementarity products of the cones, which tends to 0."""

    @abstractmethod
    def system(self) -> tuple[np.ndarray, np.ndarray]:
        """The condensed (K+1) x (K+1) matrix and the residual (K+1,), both without the simplex' part.

        ArithmeticError where rounding leaves none.
        """

    @abstractmethod
    def target(self, centre: float, guess: Change | None) -> Target:
        """The changes of the products that lead to ``centre``, with second-order terms from ``guess``."""

    @abstractmethod
    def eliminate(self, target: Target) -> tuple[np.ndarray, Callable[[np.ndarray, float], Change]]:
        """The cones' part of the right-hand side, (K+1,), and their change for that of beta and level."""

    @abstractmethod
    def ratio(self, change: Change) -> float:
        """The inverse of the share of the step that reaches the boundary of a cone."""

    @abstractmethod
    def move(self, length: float, change: Change, beta: np.ndarray) -> None:
        """Take this share of the step; ``beta`` is the new beta."""


class Best(Generic[Point]):
    """The best primal and dual points so far, which start at values ``max(losses)`` and 0."""

    def __init__(self, cones: Cones[Point, Any], point: Point):
        self.cones, self.point = cones, point
        self.primal = max(0.0, float(cones.losses.max()))
        self.dual, self.beta = 0.0, np.zeros(len(cones.losses))

    @property
    def gap(self) -> float:
        return self.primal - self.dual

    def see(self, point: Point, beta: np.ndarray) -> None:
        """Compare weights, and a beta that is first made feasible, with the best points."""
        beta = np.maximum(beta, 0)
        beta = beta / max(1.0, beta.sum())
        primal, dual = self.cones.primal(point), self.cones.dual(beta)
        if primal < self.primal:
            self.primal, self.point = primal, point
        if dual > self.dual:
            self.dual, self.beta = dual, beta


class Simplex(NamedTuple):
    """The shares and their multipliers; the products lam * beta and nu * sigma tend to 0."""

    beta: np.ndarray  # (K,), > 0
    sigma: float  # 1 - 1'beta > 0, stored so that it does not cancel
    lam: np.ndarray  # (K,), > 0, multipliers of beta >= 0
    nu: float  # > 0, multiplier of sigma >= 0


class _Step(NamedTuple, Generic[Change]):
    beta: np.ndarray
    lam: np.ndarray
    nu: float
    cones: Change


def interior_point(best: Best[Any], tol: float, patience: int, maxiter: int = 100) -> Simplex | None:
    """Iterate until the gap of ``best`` is ``tol``, or for ``patience`` steps has not shrunk by a tenth.

    Returns the last iterate, whose cones are in ``best.cones``; None if rounding leaves the Newton
    system without a Cholesky factor.
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
        # Mehrotra's rule: the longer the predictor step to centre 0 can be, the smaller the centre.
        products = at.lam @ at.beta + at.nu * at.sigma + cones.complementarity()
        guess = newton.direction(0.0, None)
        centre = (1 - newton.longest(guess)) ** 3 * products / (cones.pairs + K + 1)
        at = newton.move(newton.direction(centre, guess))
    return at


def recentre(best: Best[Any], at: Simplex, tol: float, patience: int) -> Simplex | None:
    """From an iterate near the central path to the point of the path with gap ``tol``, in ``patience`` steps.

    There is no predictor step: a few steps are enough, and central points make better cuts.
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
        """The largest share of the step, at most 1, that stays in all cones."""
        at = self.at
        ratios = [-(step.beta / at.beta).min(), -(step.lam / at.lam).min(), self.cones.ratio(step.cones)]
        return 1 / float(max(1.0, *ratios, step.beta.sum() / at.sigma, -step.nu / at.nu))

    def move(self, step: _Step[Change]) -> Simplex:
        """The iterate after most of the largest step that stays in all cones."""
        at, t = self.at, BOUNDARY_SHARE * self.longest(step)
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
