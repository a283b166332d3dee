"""Paths of 50 strengths and folds of 5, l1 logistic and group lasso, beside skglm.

    python benchmarks/few_active_paths.py --out DIR [--threads 1]

Generated data as in ``few_active.py``, float64; strengths from lambda_max to its hundredth part. Ours to a
certified gap of 1e-6 at every strength; skglm, started at its last answer, at the loosest of its tolerances
(1e-2, 1e-3, ...) at which all objectives are within 1e-6 of the optimum, relative to the objective at 0. CPU
seconds, warm, medians of ``--repeats`` calls in turn. A fold is a path of the rows outside it; ours scores
the rows held out besides. (adelie 1.1.52 needs a numpy that JAX no longer takes: it cannot run beside.)

Writes ``DIR/results/few_active_paths.md``.
"""

from collections.abc import Callable
from typing import Any

import few_active as one  # sets the threads before the libraries load
import jax
import jax.numpy as jnp
import numpy as np
from harness.jobs import parser
from harness.tables import table
from harness.timing import in_turn

import sparsejax as sj

COUNT, FOLDS, SIZE = 50, 5, 10
SHAPES = ((500, 2000), (2000, 1000), (200, 1000))
TOLERANCES = [10.0**-k for k in range(2, 9)]


def path_of_skglm(X: Any, y: Any, kind: str, alphas: Any, tol: float) -> np.ndarray:
    """W at every strength, (strengths, d)."""
    import skglm  # noqa: PLC0415
    from skglm.datafits import QuadraticGroup  # noqa: PLC0415
    from skglm.utils.data import grp_converter  # noqa: PLC0415

    X, d = np.asfortranarray(X), X.shape[1]
    w, out = np.zeros(d), []
    weights = np.full(d // SIZE, SIZE**0.5)
    members, pointers = grp_converter(SIZE, d)
    for alpha in alphas:
        if kind == "logistic":
            solver = skglm.solvers.ProxNewton(tol=tol, fit_intercept=False, max_iter=100)
            datafit, penalty = skglm.datafits.Logistic(), skglm.penalties.L1(alpha)
        else:
            solver = skglm.solvers.GroupBCD(tol=tol, fit_intercept=False, max_iter=200)
            datafit = QuadraticGroup(pointers, members)
            penalty = skglm.penalties.WeightedGroupL2(alpha, weights, pointers, members)
        w = solver.solve(X, y, datafit, penalty, w_init=w.copy(), Xw_init=X @ w)[0]
        out.append(w)
    return np.array(out)


def rows_of(name: str, n: int, d: int, kind: str, repeats: int) -> list[list[str]]:
    """The rows of a path and of folds."""
    X, H = one.simulated(n, d, 0.3, d // 20, 2.0, 0)
    y = np.sign(H[:, 0]) if kind == "logistic" else H[:, 0]
    groups = sj.groups.from_labels(np.arange(d) // SIZE)
    form: Callable[[Any], Any] = (
        sj.penalties.L1 if kind == "logistic" else lambda a: sj.penalties.GroupLasso(a * SIZE**0.5, groups)
    )
    loss = sj.losses.LogisticLoss(X, (y + 1) / 2) if kind == "logistic" else sj.losses.SquaredLoss(X, y)
    alphas = float(sj.lambda_max(sj.Problem(loss, form(1.0)))) * np.geomspace(1, 0.01, COUNT)
    problem, penalties = sj.Problem(loss, form(1.0)), jax.vmap(form)(jnp.asarray(alphas))
    best = sj.path(problem, penalties, tol=1e-9)
    scale = float(problem(jnp.zeros(d)))

    def worst(W: np.ndarray) -> float:
        value = [float(problem._replace(penalty=form(a))(w)) for a, w in zip(alphas, W, strict=True)]
        return float(np.max(np.array(value) - np.asarray(best.objective))) / scale

    good = (t for t in TOLERANCES if worst(path_of_skglm(X, y, kind, alphas, t)) <= one.TARGET)
    if (tol := next(good, None)) is None:
        raise RuntimeError(f"{name} {n} x {d}: skglm is not within {one.TARGET:g} at any of {TOLERANCES}.")
    parts = [np.arange(n) % FOLDS != f for f in range(FOLDS)]
    single = {
        "ours": lambda: sj.path(problem, penalties, tol=1e-6),
        "skglm": lambda: path_of_skglm(X, y, kind, alphas, tol),
    }
    folds = np.arange(n) % FOLDS
    many = {
        "ours": lambda: sj.cross_validate(problem, penalties, folds=folds, tol=1e-6),
        "skglm": lambda: [path_of_skglm(X[p], y[p], kind, alphas, tol) for p in parts],
    }
    found = []
    for what, calls in (("path", single), ("folds", many)):
        times = in_turn(calls, repeats)
        ours = times["ours"].cpu
        found.append(
            [f"{name} {n} x {d}", what, *(f"{1e3 * times[who].cpu:.0f}" for who in ("ours", "skglm"))]
        )
        found[-1] += [f"{times['skglm'].cpu / ours:.2f}", f"{tol:.0e}"]
        print(" | ".join(found[-1]), flush=True)
    return found


def main() -> None:
    """Run the cases and write the table."""
    arguments = parser(__doc__, data=False, out="results/few_active_paths.md")
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--threads", default="")
    args = arguments.parse_args()
    lines = []
    for n, d in SHAPES:
        for kind, name in (("logistic", "l1 logistic"), ("groups", "groups of 10")):
            lines += rows_of(name, n, d, kind, args.repeats)
    titles = ["problem", "what", "ours, ms", "skglm, ms", "skglm / ours", "tolerance of skglm"]
    text = "# Paths and folds with few active features\n\n" + (__doc__ or "").split("\n\n")[2]
    (args.out / "results").mkdir(parents=True, exist_ok=True)
    (args.out / "results" / "few_active_paths.md").write_text(text + "\n\n" + table(titles, lines) + "\n")


if __name__ == "__main__":
    main()
