"""Cox's model with l1 beside skglm and Coxnet by size: one strength, a path, folds; CPU seconds, one thread.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/cox_sizes.py --out DIR [--only "200 20,6500 100"]

Simulated patients, standardised columns of which 10 matter, a third censored, times that differ, Breslow,
scale 1/n, float64. **one**: lambda_max/10. **one, in jit**: the same solve inside a user's `jax.jit`.
**path**: 50 strengths to lambda_max/100 (of more columns than rows to /10). **folds**: five folds of such a
path; of the peers the fits alone, ours with the held-out loss. Each is solved to a relative 1e-6 of the
objective: ours to a certified gap, the peers at the loosest of their tolerances (1e-2, 1e-3, ...) that
reaches it by sums written out. Medians of five calls in turn, warm. Coxnet and skglm are left out where they
are not installed, and where no tolerance reaches it.

Writes ``DIR/results/cox_sizes.md``.
"""

import argparse
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from harness.data import standardise
from harness.jobs import parser
from harness.tables import table
from harness.timing import in_turn

import sparsejax as sj

jax.config.update("jax_enable_x64", True)
warnings.filterwarnings("ignore")

SIZES = ("200 20", "200 1000", "6500 100")
TARGET, STRENGTHS, FOLDS = 1e-6, 50, 5
TOLERANCES = 10.0 ** -np.arange(2, 13)
Fits = Callable[[np.ndarray, float], np.ndarray]  # strengths, tol -> (strengths, d)


class Patients(NamedTuple):
    """Data, or those of a fold."""

    X: np.ndarray
    time: np.ndarray
    event: np.ndarray

    def part(self, rows: np.ndarray) -> "Patients":
        """Some of them."""
        return Patients(*(x[rows] for x in self))


def simulated(n: int, d: int) -> Patients:
    """Half of the variance of the risk is of 10 columns."""
    rng = np.random.default_rng(0)
    X = standardise(rng.standard_normal((n, d)) + 0.5 * rng.standard_normal((n, 1)))[0]
    w = np.zeros(d)
    w[rng.choice(d, 10, replace=False)] = rng.choice([-0.5, 0.5], 10)
    until, lost = rng.exponential(np.exp(-X @ w)), rng.exponential(2.0, n)
    return Patients(X, np.minimum(until, lost), until <= lost)


def objective(data: Patients, strength: float, w: np.ndarray) -> float:
    """By sums written out; times differ."""
    order = np.argsort(data.time)
    h, event = (data.X @ w)[order], data.event[order]
    risk = np.logaddexp.accumulate(h[::-1])[::-1]
    return float(np.sum((risk - h)[event]) / len(h) + strength * abs(w).sum())


def skglm(data: Patients) -> Fits:
    """Of `ProxNewton`, each strength from the one before."""
    from skglm.datafits import Cox  # noqa: PLC0415
    from skglm.penalties import L1  # noqa: PLC0415
    from skglm.solvers import ProxNewton  # noqa: PLC0415
    from skglm.utils.jit_compilation import compiled_clone  # noqa: PLC0415

    X = np.asfortranarray(data.X)
    y = np.column_stack([data.time, data.event]).astype(float, order="F")
    datafit = compiled_clone(Cox(use_efron=False))
    datafit.initialize(X, y)

    def fits(strengths: np.ndarray, tol: float) -> np.ndarray:
        solver, w, found = ProxNewton(fit_intercept=False, tol=tol, max_iter=200, max_pn_iter=1000), None, []
        for strength in strengths:
            begin = (None, None) if w is None else (w.copy(), X @ w)
            w = np.asarray(solver.solve(X, y, datafit, compiled_clone(L1(strength)), *begin)[0])
            found.append(w)
        return np.array(found)

    return fits


def coxnet(data: Patients) -> Fits:
    """Of scikit-survival."""
    from sksurv.linear_model import CoxnetSurvivalAnalysis  # noqa: PLC0415

    y = np.array(list(zip(data.event, data.time, strict=True)), [("event", bool), ("time", float)])

    def fits(strengths: np.ndarray, tol: float) -> np.ndarray:
        options = {"l1_ratio": 1.0, "alphas": strengths, "tol": tol, "max_iter": 10**6}
        return CoxnetSurvivalAnalysis(**options).fit(data.X, y).coef_.T

    return fits


PEERS = {"skglm": skglm, "Coxnet": coxnet}


def tolerance(fits: Fits, data: Patients, strengths: np.ndarray, goals: np.ndarray) -> float | None:
    """The loosest at which each objective reaches its goal."""
    for tol in TOLERANCES:
        try:
            found = fits(strengths, tol)
        except (ValueError, ArithmeticError):  # "weights are too large"
            continue
        if all(objective(data, s, w) <= g for s, w, g in zip(strengths, found, goals, strict=True)):
            return float(tol)
    return None


def goals_of(data: Patients, strengths: np.ndarray) -> np.ndarray:
    """What counts as solved."""
    loss = sj.losses.CoxLoss(data.X, data.time, data.event)
    p = sj.Problem(loss, sj.penalties.L1(1.0))
    path = sj.path(p, jax.vmap(sj.penalties.L1)(strengths), tol=1e-11)
    best = [objective(data, s, w) for s, w in zip(strengths, np.asarray(path.params), strict=True)]
    return np.array(best) * (1 + TARGET)


def measured(size: str) -> list[list[Any]]:
    """The rows of a size."""
    n, d = map(int, size.split())
    data = simulated(n, d)
    problem = sj.Problem(sj.losses.CoxLoss(data.X, data.time, data.event), sj.penalties.L1(1.0))
    top = float(sj.lambda_max(problem))
    strengths = np.geomspace(top, top / (10 if d > n else 100), STRENGTHS)
    candidates, folds = jax.vmap(sj.penalties.L1)(strengths), np.arange(n) % FOLDS
    one = np.array([top / 10])
    parts = [data.part(folds != fold) for fold in range(FOLDS)]
    solve_one = lambda strength: sj.solve(problem.replace(penalty=sj.penalties.L1(strength)), tol=TARGET)
    jitted = jax.jit(solve_one)
    calls: dict[str, dict[str, Callable[[], Any]]] = {
        "one": {"ours": lambda: solve_one(one[0])},
        "one, in jit": {"ours": lambda: jitted(one[0])},
        "path": {"ours": lambda: sj.path(problem, candidates, tol=TARGET)},
        "folds": {"ours": lambda: sj.cross_validate(problem, candidates, folds=folds, tol=TARGET)},
    }
    goals = {"one": goals_of(data, one), "path": goals_of(data, strengths)}
    for name, make in PEERS.items():
        try:
            fits = make(data)
        except ImportError:
            continue
        for what, grid in (("one", one), ("path", strengths)):
            tol = tolerance(fits, data, grid, goals[what])
            if tol is None:
                continue
            calls[what][name] = lambda f=fits, g=grid, t=tol: f(g, t)
            if what == "one":
                calls["one, in jit"][name] = calls[what][name]
            if what == "path":  # the folds at the tolerance of the path
                each = [make(part) for part in parts]
                calls["folds"][name] = lambda each=each, t=tol: [f(strengths, t) for f in each]
    rows = []
    for what, of_each in calls.items():
        found = in_turn(of_each, 5)
        ours = found["ours"]
        row = [f"{n} x {d}", what, f"{float(np.max(ours.result.gap)):.0e}", f"{ours.cpu:.4f}"]
        for name in PEERS:
            theirs = found.get(name)
            row += [f"{theirs.cpu:.4f}", f"{theirs.cpu / ours.cpu:.2f}"] if theirs else ["-", "-"]
        rows.append(row)
        print(*row, flush=True)
    return rows


def main() -> None:
    found = parser(__doc__, data=False, out="results/cox_sizes.md")
    found.add_argument("--only", default=",".join(SIZES), help="sizes to run")
    args: argparse.Namespace = found.parse_args()
    header = ["patients x columns", "what", "largest gap", "ours"]
    header += [name for peer in PEERS for name in (peer, f"{peer} / ours")]
    rows = [row for size in args.only.split(",") for row in measured(size)]
    text = "# Cox's model with l1 by size\n\n" + __doc__.split("\n\n", 2)[2].rsplit("\n\n", 1)[0].strip()
    command = "OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/cox_sizes.py --out benchmarks"
    text += (
        f"\n\n```\n{command}\n```\n\nMedians of CPU seconds on one busy core; of the ratios those above 1 "
    )
    text += "say that ours takes less.\n\n"
    (args.out / "results").mkdir(parents=True, exist_ok=True)
    (args.out / "results" / "cox_sizes.md").write_text(text + table(header, rows))


if __name__ == "__main__":
    main()
