"""Cox's partial likelihood with l1 on survival data: a path with cross-validation, and times beside skglm.

    python benchmarks/cox.py --out DIR [--only single,path,validation]

Data sets of scikit-survival; categories as 0/1 columns, rows with a missing entry dropped, columns
standardised, float64. The objective is one: Breslow ties, scale 1/n, no intercept.

**single**: lambda_max/10 and /100. Seconds in turn, medians of five (warm), and, at /10 to 1e-6, of the first
fit in a process of its own, compilation included (cold). The time of skglm is that of the loosest of its
tolerances (1e-3, 1e-4, ...) whose objective is within 1e-6, or 1e-9, of the optimum; ours is that of a
certified gap of as much. Without skglm ours alone is timed.
**path**: 50 strengths from lambda_max to /100, warm starts on both sides, to 1e-6; skglm at the tolerance
that reaches it at /100.
**validation**: five folds of 50 strengths on two of the sets, each in one call, and a figure.

Writes ``DIR/results/cox.md`` and ``DIR/figures/cox.png``.
"""

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
from harness.data import standardise
from harness.figures import panels
from harness.jobs import parser
from harness.tables import table
from harness.timing import in_turn, timed

import sparsejax as sj
from sparsejax import plots

jax.config.update("jax_enable_x64", True)
warnings.filterwarnings("ignore")

SETS = {
    "breast cancer": "load_breast_cancer",
    "whas500": "load_whas500",
    "gbsg2": "load_gbsg2",
    "flchain": "load_flchain",
}
PARTS = (10, 100)
TARGETS = (1e-6, 1e-9)
STRENGTHS = 50
FOLDS = 5
VALIDATED = {"breast cancer": 10, "whas500": 100}  # and the last strength, as a part of lambda_max


class Survival(NamedTuple):
    """A data set."""

    X: np.ndarray
    time: np.ndarray
    event: np.ndarray
    names: list[str]


@cache
def load(name: str) -> Survival:
    """Of scikit-survival."""
    import pandas as pd  # noqa: PLC0415
    from sksurv import datasets  # noqa: PLC0415

    frame, y = getattr(datasets, SETS[name])()
    event, time = y.dtype.names
    frame = frame.drop(columns="chapter", errors="ignore")  # flchain: the cause of death
    whole = frame.notna().all(axis=1).to_numpy()
    frame = pd.get_dummies(frame[whole], drop_first=True).astype(float)
    X = frame.to_numpy()
    kept = X.std(0) > 1e-12 * np.maximum(1, abs(X.mean(0)))
    names = [column for column, keep in zip(frame.columns, kept, strict=True) if keep]
    # Of days: three of flchain's patients died on day 0, which counts as half a day.
    times = np.maximum(y[time][whole].astype(float), 0.5)
    return Survival(standardise(X)[0], times, y[event][whole], names)


def problem(name: str, part: float) -> sj.Problem:
    """At a part of lambda_max."""
    data = load(name)
    loss = sj.losses.CoxLoss(data.X, data.time, data.event)
    top = sj.lambda_max(sj.Problem(loss, sj.penalties.L1(1.0)))
    return sj.Problem(loss, sj.penalties.L1(top / part))


def objective(name: str, strength: float, w: np.ndarray) -> float:
    """By sums written out, in float64."""
    data = load(name)
    order = np.argsort(data.time)
    h, time, event = (data.X @ w)[order], data.time[order], data.event[order]
    # of the rows from the first with this time on
    risk = np.logaddexp.accumulate(h[::-1])[::-1][np.searchsorted(time, time)]
    loss = np.sum((risk - h)[event]) / len(h)
    return float(loss + strength * abs(w).sum())


def peer(name: str) -> Callable[..., np.ndarray] | None:
    """skglm's ProxNewton as a function of strength, tol and start; None if it is not installed."""
    try:
        from skglm.datafits import Cox  # noqa: PLC0415
        from skglm.penalties import L1  # noqa: PLC0415
        from skglm.solvers import ProxNewton  # noqa: PLC0415
        from skglm.utils.jit_compilation import compiled_clone  # noqa: PLC0415
    except ImportError:
        return None
    data = load(name)
    X, y = np.asfortranarray(data.X), np.column_stack([data.time, data.event]).astype(float, order="F")
    datafit = compiled_clone(Cox(use_efron=False))
    datafit.initialize(X, y)

    def fit(strength: float, tol: float, start: np.ndarray | None = None) -> np.ndarray:
        solver = ProxNewton(fit_intercept=False, tol=tol, max_iter=200, max_pn_iter=1000)
        begin = (None, None) if start is None else (start.copy(), X @ start)
        return np.asarray(solver.solve(X, y, datafit, compiled_clone(L1(strength)), *begin)[0])

    return fit


def tolerance(name: str, strength: float, goal: float) -> float | None:
    """The loosest of skglm whose objective reaches the goal."""
    fit = peer(name)
    assert fit is not None
    for tol in 10.0 ** -np.arange(3, 13):
        if objective(name, strength, fit(strength, tol)) <= goal:
            return float(tol)
    return None


def cold(who: str, name: str, part: float, tol: float) -> float:
    """Seconds of the first fit in a process of its own, data and imports aside."""
    command = [sys.executable, __file__, "--out", "-", "--cold", json.dumps([who, name, part, tol])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def print_cold(who: str, name: str, part: float, tol: float) -> None:
    data, fit = load(name), peer(name) if who == "skglm" else None
    if fit is None:
        call: Callable[[], Any] = lambda: sj.solve(problem(name, part), tol=tol)
    else:
        # lambda_max without our loss, which would compile
        share = np.array([data.X[data.time >= t].mean(0) for t in data.time[data.event]])
        strength = float(abs((share - data.X[data.event]).sum(0)).max() / len(data.X) / part)
        call = lambda: fit(strength, tol)
    print(timed(call).seconds)


def shown(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)


def single(args: argparse.Namespace) -> str:
    """One strength."""
    rows = []
    for name in SETS:
        for part in PARTS:
            p = problem(name, part)
            strength = float(p.penalty.strength)
            best = sj.solve(p, tol=1e-12)
            least = objective(name, strength, np.asarray(best.params))
            for target in TARGETS:
                calls: dict[str, Callable[[], Any]] = {"ours": lambda p=p, t=target: sj.solve(p, tol=t)}
                fit = peer(name)
                tol = None if fit is None else tolerance(name, strength, least * (1 + target))
                if fit is not None and tol is not None:
                    calls["skglm"] = lambda f=fit, s=strength, t=tol: f(s, t)
                found = in_turn(calls, 5)
                ours, start = found["ours"], part == PARTS[0] and target == TARGETS[0]
                first = cold("ours", name, part, target) if start else None
                row = [name, len(p.smooth.event), p.smooth.params_shape[0], f"/{part}", f"{target:g}"]
                row += [int(np.count_nonzero(best.params)), f"{float(ours.result.gap):.0e}"]
                value = objective(name, strength, np.asarray(ours.result.params))
                row += [f"{value / least - 1:.0e}", f"{ours.seconds:.4f}", shown(first, ".1f")]
                if "skglm" in found:
                    theirs = found["skglm"]
                    their_first = cold("skglm", name, part, tol or 0) if start else None
                    value = objective(name, strength, theirs.result)
                    row += [f"{value / least - 1:.0e}", f"{theirs.seconds:.4f}", shown(their_first, ".1f")]
                    row += [f"{theirs.over(ours):.2f}"]
                    row += [shown(their_first / first if first and their_first else None, ".1f")]
                else:
                    row += ["-"] * 5
                rows.append(row)
                print(*row, flush=True)
    header = ["data", "n", "d", "strength", "to", "nonzero", "gap", "excess", "warm", "cold"]
    return table([*header, "skglm: excess", "warm", "cold", "ratio warm", "ratio cold"], rows)


def path(args: argparse.Namespace) -> str:
    """Many strengths."""
    rows = []
    for name in SETS:
        p = problem(name, 1)
        top, target = float(p.penalty.strength), TARGETS[0]
        strengths = np.geomspace(top, top / PARTS[-1], STRENGTHS)
        candidates = jax.vmap(sj.penalties.L1)(strengths)
        calls: dict[str, Callable[[], Any]] = {
            "ours": lambda p=p, c=candidates: sj.path(p, c, tol=TARGETS[0])
        }
        fit = peer(name)
        if fit is not None:
            last = strengths[-1]
            least = objective(name, last, np.asarray(sj.path(p, candidates, tol=1e-11).params[-1]))
            tol = tolerance(name, last, least * (1 + target)) or 1e-12

            def theirs(fit: Any = fit, strengths: Any = strengths, tol: float = tol, name: str = name) -> Any:
                w, found = np.zeros(len(load(name).names)), []
                for s in strengths:
                    w = fit(s, tol, w)
                    found.append(w)
                return np.array(found)

            calls["skglm"] = theirs
        times = in_turn(calls, 3)
        ours = times["ours"]
        worst = float(np.max(ours.result.gap))
        row = [name, f"{worst:.0e}", f"{ours.seconds:.3f}"]
        if "skglm" in times:
            pairs = zip(strengths, times["skglm"].result, ours.result.params, strict=True)
            excess = [objective(name, s, w) / objective(name, s, np.asarray(v)) - 1 for s, w, v in pairs]
            row += [f"{max(excess):.0e}", f"{times['skglm'].seconds:.3f}", f"{times['skglm'].over(ours):.2f}"]
        else:
            row += ["-"] * 3
        rows.append(row)
        print(*row, flush=True)
    return table(["data", "largest gap", "seconds", "skglm: excess over ours", "seconds", "ratio"], rows)


def validation(args: argparse.Namespace) -> str:
    """Five folds, and the figure."""
    figure, axes = panels(2 * len(VALIDATED), 2, (5.2, 3.5))
    text = ""
    for name, (left, right) in zip(VALIDATED, zip(axes[::2], axes[1::2], strict=True), strict=True):
        data, p = load(name), problem(name, 1)
        top = float(p.penalty.strength)
        strengths = np.geomspace(top, top / VALIDATED[name], STRENGTHS)
        candidates = jax.vmap(sj.penalties.L1)(strengths)
        # Folds of as many events each: those with an event first, then the others.
        folds = np.empty(len(data.time), int)
        folds[np.argsort(~data.event, kind="stable")] = np.arange(len(folds)) % FOLDS
        validate = lambda p=p, c=candidates, folds=folds: sj.cross_validate(p, c, folds=folds)
        first, again = timed(validate), timed(validate)
        result, solutions = again.result, sj.path(p, candidates)
        assert bool(result.converged.all()) and bool(solutions.converged.all())
        W = np.asarray(solutions.params)
        draw(left, right, name, data, strengths / top, result, solutions)
        index = int(result.index)
        chosen = np.argsort(-abs(W[index]))[: np.count_nonzero(W[index])]
        listed = ", ".join(f"{data.names[i]} {W[index, i]:+.3f}" for i in chosen)
        text += (
            f"**{name}**: {len(data.time)} patients, {len(data.names)} columns, {int(data.event.sum())} "
            f"events; {FOLDS} folds of {STRENGTHS} strengths in one call: {first.seconds:.1f} s the first "
            f"time, {again.seconds:.2f} s again. Largest gap of {result.gap.size} solutions: "
            f"{float(result.gap.max()):.0e}. Least held-out loss at lambda_max/{top / strengths[index]:.1f}, "
            f"with {len(chosen)} columns: {listed}.\n\n"
        )
        print(text, flush=True)
    figure.tight_layout()
    (args.out / "figures").mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out / "figures" / "cox.png", dpi=110)
    return text + "![Cross-validation and path](../figures/cox.png)\n"


def draw(
    left: Any, right: Any, name: str, data: Survival, x: Any, result: sj.CrossValidation, path: sj.Solution
) -> None:
    """Held-out loss with standard errors, and coefficients along the path."""
    plots.cross_validation(result, x, ax=left)
    plots.path(path, x, chosen=result, feature_names=data.names, ax=right)
    for axis in (left, right):
        axis.set_xlabel("strength / lambda_max")
    left.set_title(name, fontsize=9)
    w = np.asarray(path.params[int(result.index)])
    right.set_title(f"{np.count_nonzero(w)} of {len(w)} columns at the best", fontsize=9)


RUN = {"single": single, "path": path, "validation": validation}
TITLES = {
    "single": "One strength",
    "path": f"A path of {STRENGTHS} strengths to lambda_max/100",
    "validation": "Cross-validation",
}


def main() -> None:
    found = parser(__doc__, data=False, out="results/cox.md and figures/cox.png")
    found.add_argument("--only", default=",".join(RUN), help="parts to run")
    found.add_argument("--cold", help=argparse.SUPPRESS)
    args = found.parse_args()
    if args.cold:
        print_cold(*json.loads(args.cold))
        return
    text = (
        "# Cox's partial likelihood\n\n```\npython benchmarks/cox.py --out benchmarks\n```\n\n" + INTRODUCTION
    )
    for name in args.only.split(","):
        text += f"\n## {TITLES[name]}\n\n{RUN[name](args)}"
    (args.out / "results").mkdir(parents=True, exist_ok=True)
    (args.out / "results" / "cox.md").write_text(text)


INTRODUCTION = """Written by the script: l1 and Breslow's partial likelihood on the survival data of
scikit-survival, beside skglm's `ProxNewton` with its `Cox` datafit; two shared cores, busy with other work,
so that times can be compared within a line and hardly between lines; float64. Seconds of skglm over ours are
the ratios: above 1 ours is faster. `excess` is the objective, by sums written out, over the least known,
less 1; `gap` is what ours certifies. Cold is the first fit in a process of its own, compilation included.
"""

if __name__ == "__main__":
    main()
