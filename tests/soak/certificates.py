"""Certificates against the truth: thousands of awkward problems, their objectives in long doubles.

    python tests/soak/certificates.py [--problems 10000] [--seed 0] [--minutes 170]

Every pair of loss and penalty below is drawn with columns of X that are badly conditioned (to 1e12), nearly
copies (to 1e-15) or of sizes over sixteen decades, with copies of rows, targets of any size and strengths
from 1e-20 to 1e12 of the one that empties W; in float64, and in float32 the same numbers. Each problem is
solved by several solvers, and every point that comes back is evaluated by the formulas of the docstrings in
long doubles (`conic`). The best of all points bounds the optimum from above, so what follows is sure to be
wrong:

* a gap below how much worse its point is than the best one, or below the error of its objective;
* a point called converged that is worse than tol allows;
* a row that is 0 in a converged W, though moving it alone lowers P by more than the gap: among the points
  compared are those down every way from a row of 0 that falls at first, found by the slope in long doubles;
* a W that is not 0 where the strength leaves nothing else; W = 0, converged, where it does not; a row on an
  empty column of X that costs more than the gap allows.

A table by pair; the exit status is 1 if anything is wrong. Where no gap is known the residual decides: its
points are counted, and how many are worse than tol, but residuals promise nothing of the objective.
"""

import argparse
import dataclasses
import functools
import sys
import time
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import jax

if __name__ == "__main__":  # as a script: with 64-bit numbers and this copy of the library
    root = Path(__file__).parents[2]
    sys.path[:0] = [str(root), str(root / "tests" / "support")]
    jax.config.update("jax_enable_x64", True)

import conic
import numbers_of
import numpy as np
import penalty_cases
from cases import PAIRS, SOLVERS, K, data, weights
from loss_cases import ALIKE, LOSSES, LossCase
from penalty_cases import GROUPS, PENALTIES, PenaltyCase

import sparsejax as sj
from sparsejax.problem import as_protocol
from sparsejax.solution import NON_FINITE

LONG = np.longdouble
ROWS = (14, 6)  # more rows than columns, and fewer
MOST = 1500  # iterations
TOLS = (None, 1e-3, 1e-9, 0.0)
KINDS = ("plain", "conditioned", "near copies", "decades", "copied rows", "no columns")
SIZED = ("SquaredLoss", "HuberLoss", "QuantileLoss")  # their targets have any size
TRUTH = 1e-16  # relative error of what is evaluated in long doubles
SLACK = {np.float64: 1e-14, np.float32: 1e-6}  # of comparing the objective with the gap of the dtype
P = sj.penalties
TABLE = PENALTIES | {
    "elastic net": PenaltyCase(lambda a, m: P.L1(a) + P.SquaredL2(m), (1, 1), (1, 2)),
    "nonnegative": PenaltyCase(lambda a: P.L1(a) + P.NonNegative(), (1,)),
    "overlapping": PenaltyCase(lambda a: P.GroupLasso(a, GROUPS), (1,), (1,), GROUPS.num_groups),
    "sparse rows": PenaltyCase(lambda a, b: P.L1(a) + P.L21(b), (1, 1), (1, 1)),
}


def cox(X: Any, Y: Any, **options: Any) -> Any:
    """Of times and events; rows that are late are of two strata."""
    if options.pop("late", False):
        rows = np.arange(len(Y))
        options |= {"entry": Y[:, 0] * (rows % 3) / 3 - 0.01, "strata": rows % 2}
    return sj.losses.CoxLoss(X, Y[:, 0], Y[:, 1], **options)


def times(H: np.ndarray) -> np.ndarray:
    """Times that fall with H, and all but two rows with an event."""
    return np.stack([np.exp(H.min() - H[:, 0]) + np.finfo(H.dtype).tiny, np.arange(len(H)) > 1], axis=1)


def tied_times(H: np.ndarray) -> np.ndarray:
    return np.ceil(times(H) * 4) / 4


COX = {
    "CoxLoss": LossCase(cox, times),
    "CoxLoss, ties": LossCase(cox, tied_times),
    "CoxLoss, efron": LossCase(functools.partial(cox, ties="efron"), tied_times),
    "CoxLoss, all": LossCase(functools.partial(cox, ties="efron", late=True), tied_times),
}
TARGETS = LOSSES | COX
NO_INTERCEPT = ("SoftmaxLoss", "PoissonLoss", *COX)
# One column: what takes no other. Then every pair of the table of tests, and some sums.
CELLS = [("LogisticLoss", "L21", 1), ("HuberLoss", "L1", 1)]
CELLS += [(loss, penalty, K) for loss, penalty in [*PAIRS, *((name, "L1") for name in ALIKE)]]
CELLS += [(loss, penalty, K) for loss, penalty in zip(LOSSES, [*TABLE][len(PENALTIES) :], strict=False)]
CELLS += [("CoxLoss", "L1", 1), ("CoxLoss, ties", "elastic net", 1), ("CoxLoss, ties", "GroupLasso", 1)]
CELLS += [("CoxLoss, efron", "L1", 1), ("CoxLoss, all", "L1", 1), ("CoxLoss, all", "elastic net", 1)]


@dataclasses.dataclass(frozen=True)
class Cell:
    """A structure: what is compiled once."""

    loss: str
    penalty: str
    columns: int
    rows: int
    intercept: bool
    weighted: bool  # by row, one of 0
    solvers: tuple[str, ...]  # in float64
    single: str  # in float32


@dataclasses.dataclass
class Drawn:
    kind: str
    X: np.ndarray
    Y: np.ndarray
    strengths: list[np.ndarray]
    top: float  # the strength of the penalty, were it a norm of rows, that empties W; 0: unknown
    share: float  # the strengths, of that


@dataclasses.dataclass
class Tally:
    """What was found."""

    problems: int = 0
    solves: int = 0
    converged: int = 0
    rows: int = 0  # of 0, in points that converged
    by_residual: int = 0  # no gap is known
    loose: int = 0  # of these, converged and worse than tol
    margin: float = 0.0  # the truth over the gap, at most, where it can be told to 1e-3
    wrong: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: "Tally") -> None:
        for name in ("problems", "solves", "converged", "rows", "by_residual", "loose"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.margin = max(self.margin, other.margin)
        self.wrong += other.wrong


def cells(rng: np.random.Generator) -> list[Cell]:
    """Of each pair, with other solvers, rows and intercepts by every seed."""
    found = []
    for i, (loss, penalty, k) in enumerate(CELLS):
        n = ROWS[i % 2 if k == K else 0]
        intercept = bool(rng.integers(2)) and loss not in NO_INTERCEPT
        cell = Cell(loss, penalty, k, n, intercept, bool(rng.integers(2)), (), "")
        problem = as_protocol("solve", make(cell, draw(loss, penalty, k, n, rng)))
        fit = [name for name, solver in SOLVERS.items() if solver.fits(problem) is None]
        first = [name for name in ("prox_newton",) if k == 1 and name in fit]
        chosen = [*first, *(str(s) for s in rng.permutation([name for name in fit if name not in first]))]
        found.append(dataclasses.replace(cell, solvers=tuple(chosen[:2]), single=chosen[-1]))
    return found


# ------------------------------------------------------------------ problems


def draw(loss: str, penalty: str, k: int, n: int, rng: np.random.Generator, *, single: bool = False) -> Drawn:
    """Numbers of a problem; ``single``: that float32 holds."""
    X, H = data(seed=int(rng.integers(2**31)), n=n, k=k, dtype=np.float64)
    kind = str(rng.choice(KINDS))
    X = awkward(kind, X, rng, 8 if not single else 4)
    Y = np.asarray(TARGETS[loss].targets(H), np.float64)
    if loss in SIZED:
        Y = Y * 10 ** rng.uniform(-6, 6)
    if single:
        X, Y = (x.astype(np.float32).astype(np.float64) for x in (X, Y))
    smooth = TARGETS[loss].make(X, Y)
    G = np.abs(X.T @ conic.slopes(smooth, np.zeros(smooth.params_shape)))
    order = {"L1": np.inf, "L1Inf": 1}.get(penalty, 2)
    norms = np.linalg.norm(G, order, axis=1)
    top = float(norms.max())
    wide = rng.random()
    share = 10 ** (
        rng.uniform(-4, 0.3) if wide < 0.7 else rng.uniform(-20, -4) if wide < 0.85 else rng.uniform(0, 12)
    )
    at_zero = float(conic.loss_value(smooth, np.zeros(smooth.params_shape)))
    case, strengths = TABLE[penalty], []
    for degree in case.degrees:
        natural = top if degree == 1 else top**2 / max(at_zero, 1e-300)
        strengths.append(np.full(case.length, share * natural))
    if single:
        strengths = [np.clip(s, 1e-37, 1e37).astype(np.float32).astype(np.float64) for s in strengths]
    known = penalty in ("L1", "L21", "L1Inf") and kind != "decades"
    return Drawn(kind, X, Y, strengths, top if known else 0.0, float(strengths[0][0] / top) if top else 0.0)


def awkward(kind: str, X: np.ndarray, rng: np.random.Generator, decades: float) -> np.ndarray:
    n, d = X.shape
    if kind == "conditioned":
        U, s, Vt = np.linalg.svd(X, full_matrices=False)
        return (U * s[0] * np.geomspace(1, 10 ** -rng.uniform(0, 12), len(s))) @ Vt
    if kind == "near copies":
        copied, to = rng.permutation(d)[: 2 * (d // 3)].reshape(2, -1)
        X[:, to] = X[:, copied] + 10 ** -rng.uniform(1, 15) * rng.standard_normal((n, len(to)))
    if kind == "decades":
        X *= 10 ** rng.uniform(-decades, decades, d)
    if kind == "copied rows":
        X[1 : n // 2] = X[0]
    if kind == "no columns":
        X[:, rng.permutation(d)[:2]] = 0
    return X


def make(cell: Cell, drawn: Drawn, dtype: Any = np.float64) -> sj.Problem:
    X, Y, *strengths = (x.astype(dtype) for x in (drawn.X, drawn.Y, *drawn.strengths))
    options = {} if cell.loss in NO_INTERCEPT else {"intercept": cell.intercept}
    if cell.weighted:
        options["weights"] = np.round(weights(cell.rows), 2).astype(np.float32).astype(dtype)
    return sj.Problem(TARGETS[cell.loss].make(X, Y, **options), TABLE[cell.penalty].make(*strengths))


# ------------------------------------------------------------------ the truth


def check(cell: Cell, drawn: Drawn, single: bool, tol: float | None) -> Tally:
    """Solve by all solvers of the cell, and compare what they say with the best of their points."""
    doubles = make(cell, drawn)
    answers = []
    for name, dtype in [*((name, np.float64) for name in cell.solvers), (cell.single, np.float32)]:
        if dtype is np.float32 and not single:
            continue
        problem = doubles if dtype is np.float64 else make(cell, drawn, dtype)
        used = None if dtype is np.float32 and tol == 1e-9 else tol
        answers.append((name, dtype, used, SOLVERS[name].function(problem, tol=used, maxiter=MOST)))
    # No conic solver is asked here: a point with an entry below 0 is no better point.
    with numbers_of.long_doubles(), mock.patch.object(penalty_cases, "FEASIBLE", 0.0):
        at_zero = conic.objective(doubles, np.zeros(doubles.smooth.params_shape))
        points = [np.asarray(answer.params) for *_, answer in answers]
        values = [conic.objective(doubles, W) for W in points]
        others = [conic.objective(doubles, W) for W in nearby(drawn, points)]
        settled = [W for (*_, answer), W in zip(answers, points, strict=True) if bool(answer.converged)]
        moved = [freed(doubles, drawn, W) for W in settled]
    others += [value for values, _ in moved for value in values]
    best = min([at_zero, *(value for value in values + others if np.isfinite(value))])
    tally = Tally(problems=1, rows=sum(rows for _, rows in moved))
    for (name, dtype, used, answer), value in zip(answers, values, strict=True):
        label = f"{name}, {np.dtype(dtype)}, {drawn.kind}, strength {drawn.share:.1e}, tol {used}"
        found = judged(answer, value, best, at_zero, dtype, used)
        found.wrong += zeros(cell, drawn, answer, dtype)
        found.wrong = [f"{label}: {text}" for text in found.wrong]
        tally.add(found)
    return tally


def nearby(drawn: Drawn, points: list[np.ndarray]) -> list[np.ndarray]:
    """Points that may be better than those of the solvers."""
    points = [W.astype(LONG) for W in points if np.isfinite(W).all()]
    # without the rows of empty columns, which can be noise at strengths below the precision
    dead = ~drawn.X.any(axis=0)
    found = [np.where(dead.reshape(-1, *(1 for _ in W.shape[1:])), 0, W) for W in points if dead.any()]
    for i, W in enumerate(points):  # longer, shorter, and on the lines through two of them
        found += [W * (1 + sign * step) for step in (0.5, 1e-2, 1e-4, 1e-6, 1e-8) for sign in (-1, 1)]
        found += [W + t * (V - W) for V in points[:i] for t in (-1, -0.1, 0.1, 0.5, 0.9, 1.1, 2)]
    return found


def freed(problem: sj.Problem, drawn: Drawn, params: np.ndarray) -> tuple[list[Any], int]:
    """Objectives at which P falls from rows that are 0, each alone and all together; and how many there are.

    P is convex: along a way at whose start its slope is not negative it does not fall. The ways are those of
    the steepest descent of each penalty: minus the gradient, its largest entries alone, their signs, what a
    threshold leaves of it, with either sign of its entries where only one is allowed.
    """
    W = params.astype(LONG).reshape(len(params), -1)
    G = drawn.X.astype(LONG).T @ conic.slopes(problem.smooth, W)
    off, values = np.flatnonzero(~W.any(axis=1)), []
    at_W, g = conic.objective(problem, W), lambda V: conic.penalty_value(problem.penalty, V)
    at_g, ordinary = g(W), 1e-6 * max(float(np.abs(W).max()), 1e-30)
    for rows in [[i] for i in off] + ([off] if len(off) > 1 else []):
        for way in ways(-G[rows], drawn.strengths):
            length = np.sqrt(np.sum(way * way))
            if not length > 0:
                continue
            D = np.zeros_like(W)
            D[rows] = way / length
            fall = -np.sum(G * D) - (g(W + ordinary * D) - at_g) / ordinary
            if fall > 0:
                # the step at which a parabola with the slope and one value is least, and others
                bend = conic.objective(problem, W + ordinary * D) - at_W + ordinary * fall
                best = fall * ordinary**2 / (2 * bend) if bend > 0 else ordinary
                values += [conic.objective(problem, W + t * best * D) for t in (1e-2, 0.3, 1, 3)]
    return values, len(off)


def ways(V: np.ndarray, strengths: list[np.ndarray]) -> list[np.ndarray]:
    """From rows of 0 with minus the gradient V (r, k), of any length."""
    size = np.abs(V)
    found = [V, np.sign(V), *(np.sign(V) * np.maximum(size - s[0], 0) for s in strengths)]
    for m in range(1, V.shape[1]):
        largest = size >= np.sort(size, axis=1)[:, [-m]]
        found += [V * largest, np.sign(V) * largest]
    return found + [np.maximum(way, 0) for way in found[:2]] if (V < 0).any() else found


def judged(answer: sj.Solution, value: Any, best: Any, at_zero: Any, dtype: Any, tol: float | None) -> Tally:
    """One answer, of which ``value`` is the true objective."""
    tally = Tally(solves=1, converged=int(answer.converged))
    if not np.isfinite(np.asarray(answer.params)).all():
        if int(answer.status) != NON_FINITE:
            tally.wrong.append("params are not finite")
        return tally
    if not np.isfinite(value):
        if bool(answer.converged) or np.isfinite(float(answer.gap)):
            tally.wrong.append(f"certified, where the objective is {float(value)}")
        return tally
    size = max(abs(value), at_zero)
    excess = float((value - best) / size) if size > 0 else 0.0
    error = float(abs(LONG(np.asarray(answer.objective)) - value) / size) if size > 0 else 0.0
    gap, slack = float(answer.gap), SLACK[dtype]
    allowed = (1e-6 if dtype is np.float64 else 1e-4) if tol is None else tol
    if np.isnan(gap):
        tally.by_residual = 1
        tally.loose = int(bool(answer.converged) and excess > allowed * (1 + 1e-9) + TRUTH)
        return tally
    if np.isfinite(gap):
        tally.margin = excess / gap if gap > 0 and excess > 1e3 * TRUTH else 0.0
        if excess > gap * (1 + 1e-9) + TRUTH:
            tally.wrong.append(f"gap {gap:.3g} below the truth, {excess:.6g}")
        if error > gap + slack:
            tally.wrong.append(f"objective wrong by {error:.3g}, gap {gap:.3g}")
    if bool(answer.converged) and excess > allowed * (1 + 1e-9) + TRUTH:
        tally.wrong.append(f"converged, and worse by {excess:.3g} than the best point")
    return tally


def zeros(cell: Cell, drawn: Drawn, answer: sj.Solution, dtype: Any) -> list[str]:
    """W that is not 0 and has to be, or the other way round."""
    W, wrong = np.asarray(answer.params), []
    room = 1e-6 if dtype is np.float64 else 1e-3
    if drawn.top and not cell.intercept and not cell.weighted and bool(answer.converged):
        if drawn.share > 1 + room and W.any():
            wrong.append("W is not 0 above lambda_max")
        if drawn.share < 0.5 and not W.any() and float(answer.gap) < 1e-9:
            wrong.append("W is 0 below lambda_max")
    return wrong


# ------------------------------------------------------------------ the run


def run(problems: int, seed: int, seconds: float, show: bool = True) -> Tally:
    """Draw, solve and judge; ends early where the time is over."""
    rng, start, total = np.random.default_rng(seed), time.process_time(), Tally()
    chosen = cells(rng)
    for number, cell in enumerate(chosen):
        tally, until = Tally(), start + seconds * (number + 1) / len(chosen)
        for i in range(-(-problems // len(chosen))):
            if time.process_time() > until:
                break
            single = i % 2 == 1 and cell.loss != "SoftmaxLoss"  # probabilities must sum to 1
            drawn = draw(cell.loss, cell.penalty, cell.columns, cell.rows, rng, single=single)
            tally.add(check(cell, drawn, single, TOLS[int(rng.integers(len(TOLS)))]))
        total.add(tally)
        if show:
            row(f"{cell.loss} {cell.penalty}", ", ".join((*cell.solvers, cell.single)), tally)
            for text in tally.wrong:
                print("   WRONG", text, flush=True)
    if show:
        row("all", f"{time.process_time() - start:.0f} s of CPU time", total)
    return total


def row(name: str, solvers: str, t: Tally) -> None:
    print(
        f"{name:<38}{t.problems:>6}{t.solves:>7}{t.converged:>7}{t.rows:>7}{t.by_residual:>6}{t.loose:>5}"
        f"{len(t.wrong):>5}{t.margin:>9.4f}   {solvers}",
        flush=True,
    )


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--problems", type=int, default=10_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--minutes", type=float, default=170, help="of CPU time")
    args = options.parse_args()
    warnings.simplefilter("ignore", sj.ConvergenceWarning)
    names = f"{'drawn':>6}{'solved':>7}{'conv.':>7}{'0 rows':>7}{'resid':>6}{'>tol':>5}{'wrong':>5}"
    print(f"{'':<38}{names}{'truth/gap':>10}")
    sys.exit(bool(run(args.problems, args.seed, 60 * args.minutes).wrong))


if __name__ == "__main__":
    main()
