"""Certificates of whole batches: descent on the Gram matrix, penalties that couple rows, Cox's variants.

    python tests/soak/structures.py [--lanes 120] [--seed 0] [--minutes 60] [--only NAME] [--part 0/2]

Each cell of the table below is one shape of program, and its lanes are as many problems: X badly conditioned,
with near copies, of sizes over decades, with copied rows or empty columns; weights of 0; strengths from 1e-8
to 1e3 of the one that empties W, in a fifth of the lanes 0 in one part of the sum, in a fifth 0 in some rows.
Each problem is solved alone and in a batch, every second cell in float32 too, every fifth under jit. Then:

* another solver goes on from the answer, in float64 with tol 0, and a conic solver (Clarabel) starts anew,
  for as many lanes as ``--conic`` says. Objectives are the formulas of the docstrings in long doubles
  (`conic`). The lowest objective of a feasible point bounds the optimum from above: a gap below what remains
  to it is false, a point is called converged falsely if more than tol remains;
* `duality_gap` certifies two points at random near each answer, judged alike, if they fulfil the constraints
  to 1e-8. An answer in float64 that does not must not be converged; one in float32, as most with a sum,
  counts as unknown;
* the batch is solved again in another order, with one lane of NaN: a lane is disturbed if its bits change;
* alone, in the batch and under jit the same points converge, and objectives agree up to tol.
"""

import argparse
import dataclasses
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

if __name__ == "__main__":  # as a script: with 64-bit numbers and this copy of the library
    root = Path(__file__).parents[2]
    sys.path[:0] = [str(root), str(root / "tests" / "support")]
    jax.config.update("jax_enable_x64", True)

import certificates
import conic
import cvxpy as cp
import jax.numpy as jnp
import numbers_of
import numpy as np
from cases import SOLVERS, data
from loss_cases import LOSSES
from penalty_cases import FALLING

import sparsejax as sj
from sparsejax.problem import as_protocol

LONG, TRUTH = np.longdouble, 1e-16
SMALL, WIDE, TALL, LARGE = (14, 8), (60, 100), (100, 60), (60, 200)
TOLS = (1e-3, 1e-6, 1e-9)
P = sj.penalties
GROUPS = {d: sj.groups.from_labels(np.arange(d) // 4) for _, d in (SMALL, WIDE, TALL, LARGE)}
PENALTIES: dict[str, Callable[..., Any]] = {  # of strengths a, b and of factors of rows r (d,), mostly 1
    "L1": lambda a, b, r: P.L1(a * r),
    "L1, ridge": lambda a, b, r: P.L1(a * r) + P.SquaredL2(b),
    "L21": lambda a, b, r: P.L21(a * r),
    "GroupLasso": lambda a, b, r: P.GroupLasso(a, GROUPS[len(r)]),
    "L1, GroupLasso": lambda a, b, r: P.L1(a * r) + P.GroupLasso(b, GROUPS[len(r)]),
    "L1, L21": lambda a, b, r: P.L1(a * r) + P.L21(b * r),
    "L1 by column": lambda a, b, r: P.L1(a * jnp.asarray([1, 0.5, 2], r.dtype)),
    "L1 by entry": lambda a, b, r: P.L1(a * r[:, None] * jnp.asarray([1, 0.5, 2], r.dtype)),
    "L1 by entry, L21": lambda a, b, r: (
        P.L1(a * r[:, None] * jnp.asarray([1, 0.5, 2], r.dtype)) + P.L21(b * r)
    ),
    "SortedL1": lambda a, b, r: P.SortedL1(a * jnp.asarray(FALLING, r.dtype)),
    "SortedL1, L21": lambda a, b, r: P.SortedL1(a * jnp.asarray(FALLING, r.dtype)) + P.L21(b * r),
    "TotalVariation": lambda a, b, r: P.TotalVariation(a),
    "TotalVariation, L1": lambda a, b, r: P.TotalVariation(a) + P.L1(b * r),
    "SumTo, L1": lambda a, b, r: P.SumTo() + P.L1(a * r),
    "SumTo 1, L1": lambda a, b, r: P.SumTo(1.0) + P.L1(a * r),
    "SumTo 1, W >= 0": lambda a, b, r: P.SumTo(1.0) + P.NonNegative(),
    "SumTo 1, L1, W >= 0": lambda a, b, r: P.SumTo(1.0) + P.L1(a * r) + P.NonNegative(),
}
COX = certificates.COX
COLUMNS = 3


@dataclasses.dataclass(frozen=True)
class Cell:
    """A structure: what is compiled once. ``k`` None: W is a vector."""

    loss: str
    penalty: str
    shape: tuple[int, int]
    solver: str = "solve"
    k: int | None = None

    @property
    def name(self) -> str:
        by = "descent" if self.solver == "prox_newton" else "solve"
        return f"{self.loss}; {self.penalty}; {self.shape[0]} x {self.shape[1]} x {self.k or 1}; {by}"


def cells() -> list[Cell]:
    descent = [
        *(("SquaredLoss", "L1", s, None) for s in (SMALL, WIDE, TALL)),
        *((loss, "L1", s, None) for loss in ("LogisticLoss", "HuberLoss") for s in (WIDE, TALL)),
        ("LogisticLoss", "L1", SMALL, None),
        ("HuberLoss", "L1, ridge", SMALL, None),
        ("LogisticLoss", "L1, ridge", WIDE, None),
        *(("SquaredLoss", penalty, WIDE, COLUMNS) for penalty in ("L21", "L1, L21", "L1, GroupLasso")),
        *(("SquaredLoss", penalty, TALL, COLUMNS) for penalty in ("L21", "GroupLasso")),
        ("SquaredLoss", "L1, L21", SMALL, COLUMNS),
        ("SquaredLoss", "GroupLasso", LARGE, None),
        *((loss, "GroupLasso", s, None) for loss, s in (("LogisticLoss", WIDE), ("HuberLoss", TALL))),
        *((loss, "L1, GroupLasso", s, None) for loss, s in (("LogisticLoss", TALL), ("HuberLoss", WIDE))),
        ("SquaredLoss", "L1, GroupLasso", TALL, None),
        ("LogisticLoss", "GroupLasso", SMALL, None),
        ("LogisticLoss", "L1", LARGE, None),
        ("CoxLoss, efron", "L1", TALL, None),
        ("CoxLoss, all", "L1", WIDE, None),
        ("CoxLoss, all", "L1, GroupLasso", TALL, None),
    ]
    solve = [("SquaredLoss", name, SMALL, COLUMNS) for name in [*PENALTIES][6:]]
    solve += [("LogisticLoss", name, SMALL, None) for name in [*PENALTIES][9:]]
    solve += [("HuberLoss", name, SMALL, COLUMNS) for name in ("SortedL1", "TotalVariation, L1", "SumTo, L1")]
    solve += [("LogisticLoss", "L1 by entry", SMALL, COLUMNS)]
    solve += [
        (f"CoxLoss, {ties}", name, SMALL, None)
        for ties in ("efron", "all")
        for name in ("L1", "SortedL1", "TotalVariation, L1", "SumTo, L1", "L1, GroupLasso")
    ]
    found = [Cell(*c[:3], "prox_newton", c[3]) for c in descent]
    found += [Cell(*c[:3], "solve", c[3]) for c in solve]
    return found


# ------------------------------------------------------------------ problems


@dataclasses.dataclass
class Lane:
    X: np.ndarray
    Y: np.ndarray
    weights: np.ndarray
    strengths: tuple[float, float]
    rows: np.ndarray
    label: str

    def problem(self, cell: Cell, dtype: Any = np.float64) -> sj.Problem:
        X, Y, w, rows = (x.astype(dtype) for x in (self.X, self.Y, self.weights, self.rows))
        smooth = (LOSSES | COX)[cell.loss].make(X, Y, weights=w)
        a, b = (dtype(s) for s in self.strengths)
        return sj.Problem(smooth, PENALTIES[cell.penalty](a, b, jnp.asarray(rows)))


def draw(cell: Cell, rng: np.random.Generator) -> Lane:
    """Numbers that float32 holds."""
    n, d = cell.shape
    X, H = data(seed=int(rng.integers(2**31)), n=n, d=d, k=cell.k or 1, dtype=np.float64)
    kind = str(rng.choice(certificates.KINDS))
    X = certificates.awkward(kind, X, rng, 4)
    if cell.loss == "CoxLoss, all":  # the sizes of a loss with entries depend on its times: one set a cell
        H = data(n=n, d=d, k=1, dtype=np.float64)[1]
    Y = np.asarray((LOSSES | COX)[cell.loss].targets(H), np.float64)
    if cell.loss in ("SquaredLoss", "HuberLoss"):
        Y = Y * 10 ** rng.uniform(-3, 3)
    if cell.k is None and cell.loss not in COX:
        Y = Y[:, 0]
    w = np.round(rng.uniform(0.2, 2, n), 2)
    w[rng.random(n) < rng.choice([0, 0.1])] = 0
    X, Y, w = (x.astype(np.float32).astype(np.float64) for x in (X, Y, w))
    smooth = (LOSSES | COX)[cell.loss].make(X, Y, weights=w)
    top = float(np.abs(X.T @ conic.slopes(smooth, np.zeros(smooth.params_shape))).max())
    usual = rng.random() < 0.8
    share = 10 ** (rng.uniform(-3, 0.2) if usual else rng.uniform(-8, 3))
    a, b = top * share, top * share * 10 ** rng.uniform(-1, 1)
    if cell.penalty.endswith("ridge"):
        b = b * 10 ** rng.uniform(-3, 0)
    rows, free = np.ones(d), rng.random()
    if free < 0.2:
        rows[rng.permutation(d)[: 1 + d // 20]] = 0
    elif free < 0.4 and "," in cell.penalty:
        a, b = (a, 0.0) if rng.random() < 0.5 else (0.0, b)
    a, b = (float(np.float32(np.clip(s, 1e-30, 1e30))) if s else 0.0 for s in (a, b))
    label = (
        f"{kind}, {share:.1e} of the largest strength, a {a:.2e}, b {b:.2e}, {int((rows == 0).sum())} free"
    )
    return Lane(X, Y, w, (a, b), rows, label)


def stacked(problems: list[sj.Problem]) -> sj.Problem:
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x) for x in leaves]), *problems)


# ------------------------------------------------------------------ the truth


def repaired(cell: Cell, W: np.ndarray) -> np.ndarray:
    """The nearest point that fulfils the constraints to the last bit of a long double."""
    V = W.astype(LONG).reshape(len(W), -1)
    if "W >= 0" in cell.penalty:
        V = np.maximum(V, 0)
    if "SumTo" in cell.penalty:
        total = 1 if "SumTo 1" in cell.penalty else 0
        at = np.abs(V).argmax(0), np.arange(V.shape[1])
        V[at] += total - V.sum(0)
    return V.reshape(W.shape)


def by_clarabel(cell: Cell, problem: sj.Problem) -> np.ndarray | None:
    try:
        return np.asarray(conic.minimise(problem).params)
    except (AssertionError, cp.error.SolverError, AttributeError, ValueError, TypeError):
        return None  # it fails now and then: the other bounds of the optimum are there


@dataclasses.dataclass
class Tally:
    problems: int = 0
    certificates: int = 0
    converged: int = 0
    unconverged: int = 0  # solves that say so
    unknown: int = 0  # no gap
    conic: int = 0  # optima of the conic solver
    disturbed: int = 0
    differ: int = 0  # alone, in a batch, under jit
    margin: float = 0.0  # the truth over the gap, at most
    wrong: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: "Tally") -> None:
        for field in dataclasses.fields(self):
            mine, more = getattr(self, field.name), getattr(other, field.name)
            setattr(self, field.name, max(mine, more) if field.name == "margin" else mine + more)


@dataclasses.dataclass
class Claim:
    """A point with its certificate."""

    how: str
    W: np.ndarray
    gap: float
    converged: bool
    tol: float
    solved: bool = True  # False: any point, by `duality_gap`


def judged(claim: Claim, value: Any, best: Any, size: Any) -> Tally:
    tally = Tally(certificates=1, converged=int(claim.converged))
    tally.unconverged = int(claim.solved and not claim.converged)
    excess = float((value - best) / size) if size > 0 else 0.0
    if np.isnan(claim.gap):
        tally.unknown = 1
        return tally  # the residual decides, and promises nothing of the objective
    if np.isfinite(claim.gap):
        tally.margin = excess / claim.gap if claim.gap > 0 and excess > 1e3 * TRUTH else 0.0
        if excess > claim.gap * (1 + 1e-9) + TRUTH:
            tally.wrong.append(f"{claim.how}: gap {claim.gap:.4g} below the truth, {excess:.6g}")
    if claim.converged and excess > claim.tol * (1 + 1e-9) + TRUTH:
        tally.wrong.append(f"{claim.how}: converged, tol {claim.tol}, and worse by {excess:.4g}")
    return tally


def check(cell: Cell, lane: Lane, problem: sj.Problem, claims: list[Claim], other: np.ndarray) -> Tally:
    """Judge the claims of one lane; ``other``: more points that may be better, (number, *W.shape)."""
    with numbers_of.long_doubles():
        value = conic.objective_of(problem)
        # Gaps are relative to P at the point nearest to 0 that fulfils the constraints.
        shape = problem.smooth.params_shape
        start = np.full(shape, LONG(1) / shape[0] if "SumTo 1" in cell.penalty else LONG(0))
        at_zero = value(repaired(cell, start))
        points = [c.W for c in claims if np.isfinite(c.W).all()] + [W for W in other if np.isfinite(W).all()]
        feasible = [repaired(cell, W) for W in points]
        values = {id(c): value(c.W) for c in claims if np.isfinite(c.W).all()}
        best = min([at_zero, *(v for v in map(value, feasible) if np.isfinite(v))])
    tally = Tally(problems=1)
    for claim in claims:
        v = values.get(id(claim))
        if v is None:
            tally.add(Tally(wrong=[f"{claim.how}: params are not finite"] if claim.converged else []))
        elif np.isfinite(v):
            tally.add(judged(claim, v, best, max(abs(v), at_zero)))
        elif claim.solved and claim.how != "float32":
            tally.add(Tally(wrong=[f"{claim.how}: outside the constraints"] if claim.converged else []))
        elif claim.solved:  # a sum of float32 numbers misses the total by more than `FEASIBLE`
            tally.add(Tally(unknown=1))
    ends = [
        values[id(c)] for c in claims if c.solved and c.converged and id(c) in values and c.how != "float32"
    ]
    size = max([abs(at_zero), *map(abs, ends)])
    settled = {c.converged for c in claims if c.solved and c.how != "float32"}
    if len(settled) > 1 or (ends and max(ends) - min(ends) > (1.1 * claims[0].tol + TRUTH) * size):
        tally.differ += 1
    tally.wrong = [f"{lane.label}: {text}" for text in tally.wrong]
    return tally


# ------------------------------------------------------------------ the run


def other_solver(problem: sj.Problem) -> Any:
    fit = [name for name in ("fista", "admm", "davis_yin") if SOLVERS[name].fits(problem) is None]
    return SOLVERS[fit[0]].function


def moved(W: Any, rng: np.random.Generator) -> Any:
    """Points at random about W (lanes, ...), at two distances."""
    size = np.abs(W).max(axis=tuple(range(1, W.ndim)), keepdims=True) + 1e-6
    noise = rng.standard_normal(W.shape)
    return [W + share * size * noise * (rng.random(W.shape) < 0.5) for share in (1e-4, 0.3)]


def lanes_disturbed(batch: Any, tols: Any, first: Any, solver: Any, rng: np.random.Generator) -> int:
    """Solve in another order, with a lane of NaN in place of one: how many others change in a bit."""
    order = rng.permutation(len(tols))
    put = lambda x: x.at[0].set(jnp.nan) if jnp.issubdtype(x.dtype, jnp.floating) else x
    again = solver(jax.tree.map(lambda x: put(x[order]), batch), tols[order])
    same = lambda a, b: np.asarray(a)[order][1:] == np.asarray(b)[1:]
    W = same(first.params, again.params).reshape(len(tols) - 1, -1).all(1)
    return int((~(W & same(first.status, again.status))).sum())


def run_cell(cell: Cell, number: int, lanes: int, seed: int, share_conic: float) -> Tally:
    rng = np.random.default_rng([seed, number])
    drawn = [draw(cell, rng) for _ in range(lanes)]
    tols = jnp.asarray(rng.choice(TOLS, lanes))
    alone = [lane.problem(cell) for lane in drawn]
    batch, one = stacked(alone), SOLVERS.get(cell.solver)
    solver = sj.solve if one is None else one.function
    together = jax.vmap(lambda p, tol: solver(p, tol=tol, maxiter=certificates.MOST))
    jitted = jax.jit(lambda p, tol: solver(p, tol=tol, maxiter=certificates.MOST))
    answers = {"in a batch": together(batch, tols)}
    total = Tally(disturbed=lanes_disturbed(batch, tols, answers["in a batch"], together, rng))
    if number % 2:
        singles = stacked([lane.problem(cell, np.float32) for lane in drawn])
        loose = jnp.maximum(tols, 1e-4).astype(jnp.float32)
        answers["float32"] = together(singles, loose)
    by_itself = [solver(p, tol=t, maxiter=certificates.MOST) for p, t in zip(alone, tols, strict=True)]
    answers["alone"] = jax.tree.map(lambda *x: np.stack(x), *by_itself)
    if number % 5 == 0:
        under_jit = [jitted(p, t) for p, t in zip(alone, tols, strict=True)]
        answers["under jit"] = jax.tree.map(lambda *x: np.stack(x), *under_jit)
    other = other_solver(as_protocol("solve", alone[0]))
    further = jax.vmap(lambda p, W: other(p, W, tol=0.0, maxiter=1000))(batch, answers["in a batch"].params)
    near = moved(np.asarray(answers["in a batch"].params), rng)
    gaps = [np.asarray(jax.jit(jax.vmap(sj.duality_gap))(batch, jnp.asarray(W))) for W in near]
    for i, (lane, problem) in enumerate(zip(drawn, alone, strict=True)):
        claims = [
            Claim(how, np.asarray(s.params[i], np.float64), float(s.gap[i]), bool(s.converged[i]), tol)
            for how, s in answers.items()
            for tol in [max(float(tols[i]), 1e-4) if how == "float32" else float(tols[i])]
        ]
        claims.append(Claim("other", np.asarray(further.params[i]), float(further.gap[i]), False, 0.0, False))
        claims += [
            Claim("near", W[i], float(g[i]), False, 0.0, False) for W, g in zip(near, gaps, strict=True)
        ]
        others = [claims[0].W * (1 + t) for t in (-1e-3, -1e-6, 1e-6, 1e-3)]
        if cell.loss not in COX and rng.random() < share_conic:
            found = by_clarabel(cell, problem)
            others += [] if found is None else [found]
            total.conic += found is not None
        total.add(check(cell, lane, problem, claims, others))
    return total


def row(name: str, t: Tally, seconds: float) -> None:
    print(
        f"{name:<62}{t.problems:>6}{t.certificates:>8}{t.converged:>7}{t.unconverged:>6}{t.unknown:>6}"
        f"{t.conic:>6}{len(t.wrong):>6}{t.disturbed:>6}{t.differ:>6}{t.margin:>9.4f}{seconds:>7.0f} s",
        flush=True,
    )


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--lanes", type=int, default=120)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--minutes", type=float, default=60)
    options.add_argument("--conic", type=float, default=0.2, help="share of the problems")
    options.add_argument("--only", default="", help="cells with this in their name")
    options.add_argument("--part", default="0/1", help="i/m: of all cells the i-th of every m")
    args = options.parse_args()
    warnings.simplefilter("ignore", sj.ConvergenceWarning)
    part, parts = map(int, args.part.split("/"))
    names = ("drawn", "gaps", "conv.", "not", "NaN", "conic", "false", "dist.", "differ")
    widths = (6, 8, 7, 6, 6, 6, 6, 6, 6)
    header = "".join(f"{name:>{width}}" for name, width in zip(names, widths, strict=True))
    print(f"{'':<62}{header}{'truth/gap':>10}", flush=True)
    start, total = time.time(), Tally()
    found = cells()
    for number in np.random.default_rng(args.seed).permutation(len(found)):
        cell = found[number]
        if number % parts != part or args.only not in cell.name or time.time() - start > 60 * args.minutes:
            continue
        began = time.time()
        tally = run_cell(cell, number, args.lanes, args.seed, args.conic)
        total.add(tally)
        row(cell.name, tally, time.time() - began)
        for text in tally.wrong:
            print("   FALSE", text, flush=True)
        jax.clear_caches()
    row("all", total, time.time() - start)
    sys.exit(bool(total.wrong or total.disturbed))


if __name__ == "__main__":
    main()
