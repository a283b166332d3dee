"""Every public penalty: a small instance, and its formula in numpy and for the conic solver.

The formulas are those of the docstrings, and use nothing of the library but the numbers of a problem.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from numbers_of import by_row, members, numbers, squares

from sparsejax import groups, penalties

D = 8  # features of the instances
FEASIBLE = 1e-8  # what the conic solver may exceed a bound by
# overlapping, and every feature in some group
GROUPS = groups.from_lists([[0, 1, 4], [1, 5], [2, 3, 6], [6, 7], [7, 4]], D)
PARTITION = groups.from_labels([0, 0, 1, 1, 2, 2, 3, 3])
VIEWS = groups.label_views(2, 3)


@dataclass(frozen=True)
class PenaltyCase:
    make: Callable[..., Any]  # of the strengths
    strengths: tuple[float, ...]  # at which the problem of this file has some zeros and some nonzeros
    degrees: tuple[int, ...] = (1,)  # of homogeneity in W, of what each strength multiplies
    length: int = D  # of a strength that is not a scalar: one value a row, or a group

    def spread(self, factor: float = 1.0) -> list[np.ndarray]:
        """The strengths, a different one for each row or group."""
        uneven = np.random.default_rng(1).uniform(0.5, 2, self.length)
        return [factor * s * uneven for s in self.strengths]

    def full(self, *strengths: Any) -> Any:
        """The penalty with these strengths, each the same in every row or group."""
        return self.make(*(np.full(self.length, s) for s in strengths))


PENALTIES = {
    "L1": PenaltyCase(penalties.L1, (0.1,)),
    "L21": PenaltyCase(penalties.L21, (0.3,)),
    "L1Inf": PenaltyCase(penalties.L1Inf, (0.5,)),
    "ExclusiveLasso": PenaltyCase(penalties.ExclusiveLasso, (0.05,), degrees=(2,)),
    "ExclusiveL21": PenaltyCase(penalties.ExclusiveL21, (0.2, 0.02), degrees=(1, 2)),
    "ExclusiveGroupL21": PenaltyCase(
        functools.partial(penalties.ExclusiveGroupL21, groups=GROUPS), (0.1,), (2,), GROUPS.num_groups
    ),
    "GroupLasso": PenaltyCase(
        functools.partial(penalties.GroupLasso, groups=PARTITION), (0.9,), (1,), PARTITION.num_groups
    ),
    "ExclusiveGroupLasso": PenaltyCase(
        functools.partial(penalties.ExclusiveGroupLasso, views=VIEWS), (0.3,), (2,)
    ),
}
# Of a factor of the strengths: what is no sum over rows, alone and in sums of one exact prox or split.
FALLING = np.linspace(2, 0.5, D)
UNEVEN = np.random.default_rng(4).uniform(0.05, 0.2, (D, 6))
COUPLED: dict[str, Callable[[Any], Any]] = {
    "L1 by column": lambda t: penalties.L1(t * UNEVEN[0]),
    "L1 by entry": lambda t: penalties.L1(t * UNEVEN),
    "L1 by column, ridge by row": lambda t: (
        penalties.L1(t * UNEVEN[0]) + penalties.SquaredL2(t * UNEVEN[:, 0])
    ),
    "L1 by entry, L21": lambda t: penalties.L1(t * UNEVEN) + penalties.L21(0.1 * t),
    "SumTo, L1": lambda t: penalties.SumTo() + penalties.L1(0.1 * t),
    "SumTo 1, L1 by row": lambda t: penalties.SumTo(1.0) + penalties.L1(t * UNEVEN[:, 0]),
    "SumTo -2, L1, ridge": lambda t: (
        penalties.SumTo(-2.0) + penalties.L1(0.1 * t) + penalties.SquaredL2(0.1 * t)
    ),
    "SumTo, W >= 0": lambda t: penalties.SumTo(1.0) + penalties.NonNegative(),
    "SumTo, L1, W >= 0": lambda t: (
        penalties.SumTo(1.0) + penalties.L1(t * UNEVEN[:, 0]) + penalties.NonNegative()
    ),
    "SumTo, L21": lambda t: penalties.SumTo(1.0) + penalties.L21(0.1 * t),
    "SortedL1": lambda t: penalties.SortedL1(0.1 * t * FALLING),
    "SortedL1, ridge": lambda t: penalties.SortedL1(0.1 * t * FALLING) + penalties.SquaredL2(0.1 * t),
    "SortedL1, W >= 0": lambda t: penalties.SortedL1(0.1 * t * FALLING) + penalties.NonNegative(),
    "SortedL1, L21": lambda t: penalties.SortedL1(0.1 * t * FALLING) + penalties.L21(0.1 * t),
    "TotalVariation": lambda t: penalties.TotalVariation(0.1 * t),
    "TotalVariation, L1": lambda t: penalties.TotalVariation(0.1 * t) + penalties.L1(0.05 * t),
    "TotalVariation, L1, ridge": lambda t: (
        penalties.TotalVariation(0.1 * t) + penalties.L1(0.05 * t) + penalties.SquaredL2(0.1 * t)
    ),
    "TotalVariation, L1 by row": lambda t: penalties.TotalVariation(0.1 * t) + penalties.L1(t * UNEVEN[:, 0]),
}
# made of penalties: test_interop.py; what is mostly added to others, and sums: test_sums.py; what couples
# rows, and its strengths: test_coupled.py
STRUCTURE = {"ByLeaf", "Box", "ElasticNet", "NonNegative", "SparseGroupLasso", "SquaredL2", "Sum"}
STRUCTURE |= {"SortedL1", "SumTo", "TotalVariation", "slope_strengths"}
PENALTY_BASES = {"Penalty", "RowNorm"}

# ------------------------------------------------------------------ formulas


@dataclass(frozen=True)
class Formula:
    value: Callable[[Any, np.ndarray], Any]  # (penalty, W (d, k)) -> g(W)
    conic: Callable[[Any, Any], tuple[Any, list[Any]]]  # (penalty, variable) -> expression, constraints


def _l1(W: np.ndarray) -> np.ndarray:
    return np.abs(W).sum(1)


def _l2(W: np.ndarray) -> np.ndarray:
    return np.sqrt((W**2).sum(1))


def _l1_conic(W: Any) -> tuple[Any, list[Any]]:
    """Variables (d,) that are at least the l1 norms of the rows, and the constraints on them."""
    norms, A = cp.Variable(W.shape[0]), cp.Variable(W.shape)
    return norms, [A >= W, A >= -W, norms >= cp.sum(A, axis=1)]


def _l2_conic(W: Any) -> tuple[Any, list[Any]]:
    norms = cp.Variable(W.shape[0])
    return norms, [cp.norm(W, 2, axis=1) <= norms]


def _largest_conic(W: Any) -> tuple[Any, list[Any]]:
    norms, A = cp.Variable(W.shape[0]), cp.Variable(W.shape)
    return norms, [A >= W, A >= -W, norms >= cp.max(A, axis=1)]


def _weighted(strength: Any, norms: Any) -> Any:
    """``sum(strength * norms)``, of numbers or of variables."""
    return by_row(strength, norms.shape[0]) @ norms


def _squared(strength: Any, norms: Any) -> Any:
    return squares(by_row(strength, norms.shape[0]), norms)


def _norms(norm: Any, conic: Any, strength: str) -> Formula:
    """``sum_i strength_i norm(w_i)``."""

    def make(p: Any, W: Any) -> tuple[Any, list[Any]]:
        norms, constraints = conic(W)
        return _weighted(getattr(p, strength), norms), constraints

    return Formula(lambda p, W: _weighted(getattr(p, strength), norm(W)), make)


def _exclusive(p: Any, W: Any) -> tuple[Any, list[Any]]:
    norms, constraints = _l1_conic(W)
    return _squared(p.beta, norms), constraints


def _both(p: Any, W: Any) -> tuple[Any, list[Any]]:
    (norm, constraints), (square, more) = FORMULAS["L21"].conic(p, W), _exclusive(p, W)
    return norm + square, [*constraints, *more]


def _group_sums(p: Any, W: np.ndarray) -> Any:
    sums = [_l2(W)[group].sum() ** 2 for group in members(p.groups)]
    return by_row(p.alpha, len(sums)) @ np.array(sums)


def _group_sums_conic(p: Any, W: Any) -> tuple[Any, list[Any]]:
    norms, constraints = _l2_conic(W)
    sums = [cp.sum(norms[group]) for group in members(p.groups)]
    return (_squared(p.alpha, cp.hstack(sums)), constraints) if sums else (0, [])


def _view_sums(p: Any, W: np.ndarray) -> Any:
    totals = [sum(_l2(W[:, group]) for group in members(view)) for view in p.views]
    return by_row(p.strength, len(W)) / 2 @ sum(total**2 for total in totals)


def _view_sums_conic(p: Any, W: Any) -> tuple[Any, list[Any]]:
    totals = [sum(cp.norm(W[:, group], 2, axis=1) for group in members(view)) for view in p.views]
    return sum(_squared(p.strength, total) for total in totals) / 2, []


def _group_norms(p: Any, W: np.ndarray) -> Any:
    return _weighted(p.alpha, np.array([np.linalg.norm(W[group]) for group in members(p.groups)]))


def _group_norms_conic(p: Any, W: Any) -> tuple[Any, list[Any]]:
    return _weighted(p.alpha, cp.hstack([cp.norm(W[group], "fro") for group in members(p.groups)])), []


def _ridge_conic(p: Any, W: Any) -> tuple[Any, list[Any]]:
    strength = by_row(p.strength, W.shape[0])
    return squares(np.broadcast_to(strength[:, None], W.shape) / 2, W), []


def _within(p: Any, W: np.ndarray) -> float:
    low, high = (by_row(bound, len(W))[:, None] for bound in (p.low, p.high))
    return 0.0 if ((low - FEASIBLE <= W) & (high + FEASIBLE >= W)).all() else np.inf


def _within_conic(p: Any, W: Any) -> tuple[Any, list[Any]]:
    low, high = (np.broadcast_to(by_row(bound, W.shape[0])[:, None], W.shape) for bound in (p.low, p.high))
    below = [low <= W] if np.isfinite(low).all() else []
    return 0, [*below, high >= W] if np.isfinite(high).all() else below


def _parts_conic(p: Any, W: Any) -> tuple[Any, list[Any]]:
    parts = [formula(part).conic(part, W) for part in p.parts]
    return sum(value for value, _ in parts), [c for _, constraints in parts for c in constraints]


def _entries(p: Any, W: Any) -> np.ndarray:
    """One strength an entry: from a number, one a row, a column or an entry."""
    strength = numbers(p.strength)
    by_rows = strength.ndim == 1 and strength.shape == W.shape[:1]
    return np.broadcast_to(strength[:, None] if by_rows else strength, W.shape)


def _sorted_conic(p: Any, W: Any) -> tuple[Any, list[Any]]:
    norms, constraints = _l2_conic(W)
    steps = -np.diff(numbers(p.strength), append=0)
    return sum(step * cp.sum_largest(norms, i + 1) for i, step in enumerate(steps) if step), constraints


def _of_sum(p: Any, W: np.ndarray) -> float:
    return 0.0 if (np.abs(W.sum(0) - float(p.total)) <= FEASIBLE * (1 + np.abs(W).sum(0))).all() else np.inf


FORMULAS = {
    "L1": Formula(
        lambda p, W: np.sum(_entries(p, W) * np.abs(W)),
        lambda p, W: (cp.sum(cp.multiply(_entries(p, W), cp.abs(W))), []),
    ),
    "SortedL1": Formula(lambda p, W: numbers(p.strength) @ np.sort(_l2(W))[::-1], _sorted_conic),
    "TotalVariation": Formula(
        lambda p, W: numbers(p.strength) * np.abs(np.diff(W, axis=0)).sum(),
        lambda p, W: (float(p.strength) * cp.sum(cp.abs(W[1:] - W[:-1])), []),
    ),
    "SumTo": Formula(_of_sum, lambda p, W: (0, [cp.sum(W, axis=0) == float(p.total)])),
    "L21": _norms(_l2, _l2_conic, "alpha"),
    "L1Inf": _norms(lambda W: np.abs(W).max(1), _largest_conic, "alpha"),
    "ExclusiveLasso": Formula(lambda p, W: _weighted(p.beta, _l1(W) ** 2), _exclusive),
    "ExclusiveL21": Formula(lambda p, W: _weighted(p.alpha, _l2(W)) + _weighted(p.beta, _l1(W) ** 2), _both),
    "ExclusiveGroupL21": Formula(_group_sums, _group_sums_conic),
    "ExclusiveGroupLasso": Formula(_view_sums, _view_sums_conic),
    "GroupLasso": Formula(_group_norms, _group_norms_conic),
    "SquaredL2": Formula(lambda p, W: _weighted(p.strength, _l2(W) ** 2) / 2, _ridge_conic),
    "NonNegative": Formula(
        lambda p, W: 0.0 if (W >= -FEASIBLE).all() else np.inf, lambda p, W: (0, [W >= 0])
    ),
    "Box": Formula(_within, _within_conic),
    "Sum": Formula(lambda p, W: sum(formula(part).value(part, W) for part in p.parts), _parts_conic),
}


def formula(penalty: Any) -> Formula:
    """Of the class of a penalty."""
    return FORMULAS[type(penalty).__name__]
