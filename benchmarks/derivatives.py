"""What a gradient through the solution costs, and how tuning by it compares with a grid.

    python benchmarks/derivatives.py --data DIR --out DIR [--only cost|lasso|tune] [--repeats 7]

**cost**: the time of value and gradient of a held-out loss, in the strengths and in X, over that of the
solve alone: medians of calls in turn, float64, standardised columns, 30 % of the rows held out; and the
temporary memory of the two compiled programs.
**lasso**: the gradient in the strength on a lasso with n = 1000, d = 2000, against the closed form on the
support (the formula behind sparse-ho: Bertrand et al., JMLR 23, 2022) in numpy.
**tune**: `sparsejax.tune` over (alpha, beta) of exclusive l2,1 on yale and glioma, from four starts, against
the best of a 30 x 30 grid, lambda_max to lambda_max / 1000 on both axes; a figure of its walks.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import numpy as np
from harness.data import folder, load_standardised
from harness.figures import panels
from harness.jobs import parser
from harness.tables import Printed
from harness.timing import in_turn
from matplotlib.axes import Axes

import sparsejax as sj
from sparsejax import plots

jax.config.update("jax_enable_x64", True)

SIDE = np.geomspace(1, 1e-3, 30)  # of the grid, relative to lambda_max
STARTS = ((0.1, 0.1), (0.3, 0.03), (0.03, 0.3), (0.5, 0.5))


def halves(name: str, path: Path) -> tuple[sj.losses.SquaredLoss, sj.losses.SquaredLoss, float]:
    """Training and held-out loss of a data set, and the alpha of l2,1 that empties W."""
    X, Y = load_standardised(path, name)
    rows = np.random.default_rng(0).permutation(len(X))
    parts = np.split(rows, [len(X) * 7 // 10])
    train, test = (sj.losses.SquaredLoss(X[part], Y[part], intercept=True) for part in parts)
    return train, test, float(sj.lambda_max(sj.Problem(train, sj.penalties.L21(1.0))))


# ---------------------------------------------------------------- cost


def cost(args: argparse.Namespace) -> None:
    """Time and memory of the gradient over those of the solve."""
    gradients = [("+ d/d strengths", ">17"), ("+ d/dX too", ">12"), ("  temporary MB", "")]
    printed = Printed(("instance", "<28"), ("steps", ">7"), ("solve s", ">9.3f"), *gradients)
    for name in ("glioma", "isolet"):
        train, test, top = halves(name, folder(args.data))
        for label, penalty in (
            ("l2,1 /10", sj.penalties.L21(top / 10)),
            ("l2,1 /100", sj.penalties.L21(top / 100)),
            ("exclusive l2,1 /10", sj.penalties.ExclusiveL21(top / 10, top / 10)),
            ("exclusive l2,1 /100", sj.penalties.ExclusiveL21(top / 100, top / 100)),
        ):
            loss = partial(held_out, test)
            jitted = {
                "solve": jax.jit(loss),
                "strengths": jax.jit(jax.value_and_grad(loss)),
                "X": jax.jit(jax.value_and_grad(loss, argnums=(0, 1))),
            }
            programs = {key: f.lower(penalty, train).compile() for key, f in jitted.items()}
            found = in_turn({key: partial(f, penalty, train) for key, f in programs.items()}, args.repeats)
            assert all(map(np.isfinite, jax.tree.leaves(found["strengths"].result)))
            memory = [program.memory_analysis().temp_size_in_bytes / 1e6 for program in programs.values()]
            solve = found["solve"]
            printed.row(
                f"{name} {label}",
                int(sj.solve(sj.Problem(train, penalty)).num_iters),
                solve.seconds,
                *(f"{found[key].over(solve):.2f} x" for key in ("strengths", "X")),
                "  " + ", ".join(f"{m:.1f}" for m in memory),
            )


def held_out(test: sj.losses.SquaredLoss, penalty: sj.Penalty, train: sj.losses.SquaredLoss) -> jax.Array:
    """The loss of the rows held out, at the solution of the others."""
    W = sj.solve(sj.Problem(train, penalty)).params
    return test.evaluate(W, train.intercept(W))


# ---------------------------------------------------------------- lasso


def lasso(args: argparse.Namespace) -> None:
    """Against the closed form on the support."""
    rng = np.random.default_rng(0)
    n, d = 1000, 2000
    X = rng.standard_normal((n, d))
    y = X[:, :50] @ rng.standard_normal(50) + rng.standard_normal(n)
    X_test = rng.standard_normal((500, d))
    y_test = X_test[:, :50] @ np.ones(50)
    train, test = sj.losses.SquaredLoss(X, y), sj.losses.SquaredLoss(X_test, y_test)
    top = float(sj.lambda_max(sj.Problem(train, sj.penalties.L1(1.0))))

    def solution(strength: float) -> jax.Array:
        return sj.solve(sj.Problem(train, sj.penalties.L1(strength)), tol=1e-10).params

    def closed_form(w: np.ndarray) -> float:
        on = w != 0
        A = X[:, on]
        step = np.linalg.solve(A.T @ A / n, -np.sign(w[on]))
        return (X_test[:, on] @ step) @ (X_test @ w - y_test) / len(y_test)

    gradient = [
        ("gradient", ">12.5f"),
        ("difference", ">12.0e"),
        ("solve s", ">9.3f"),
        ("gradient s", ">12.3f"),
    ]
    print()
    printed = Printed(("lasso, strength", "<18"), ("support", ">8"), *gradient, ("closed form s", ">15.3f"))
    loss = lambda strength: test(solution(strength))
    solve, ours = jax.jit(loss), jax.jit(jax.value_and_grad(loss))
    for part in (3, 10, 100):
        strength = top / part
        w = np.asarray(solution(strength))
        calls: dict[str, Callable] = {"solve": partial(solve, strength), "ours": partial(ours, strength)}
        found = in_turn(calls | {"closed form": partial(closed_form, w)}, args.repeats)
        value, reference = float(found["ours"].result[1]), float(found["closed form"].result)
        seconds = {name: timing.seconds for name, timing in found.items()}
        printed.row(
            f"lambda_max / {part}", np.count_nonzero(w), value, abs(value / reference - 1), seconds["solve"],
            seconds["ours"] - seconds["solve"], seconds["closed form"],
        )  # fmt: skip


# ---------------------------------------------------------------- tune


def tuning(args: argparse.Namespace) -> None:
    """A table, and a figure of the walks over the contours of the grid."""
    figure, axes = panels(2, 2, (5.5, 4.6), layout="constrained")
    print()
    solves = [("ratio", ">8.4f"), ("solves", ">8"), ("within 1 % after", ">18")]
    printed = Printed(("tune", "<28"), ("best of grid", ">13.5f"), ("tuned", ">10.5f"), *solves)
    for name, axis in zip(("yale", "glioma"), axes, strict=True):
        train, test, top = halves(name, folder(args.data))
        problem = sj.Problem(train, sj.penalties.ExclusiveL21(top, top))
        grid = losses_on_grid(problem, test, top)
        best = grid.min()
        walks = {}
        for start in STARTS:
            penalty = sj.penalties.ExclusiveL21(start[0] * top, start[1] * top)
            tuned = sj.tune(problem.replace(penalty=penalty), test)
            good = np.flatnonzero(np.asarray(tuned.tried.loss) <= 1.01 * best)
            loss, after = float(tuned.loss), str(good[0] + 1) if good.size else "never"
            printed.row(f"{name} from {start}", best, loss, loss / best, int(tuned.num_solves), after)
            walks[f"from {start}"] = tuned
        plots.tuning(walks, ax=axis)
        draw_grid(axis, grid, name, top * SIDE)
    figure.suptitle("tune: every solve; cross: best of the 30 x 30 grid, contours: excess over it")
    figure.savefig(args.out / "tune.png", dpi=130)


def losses_on_grid(problem: sj.Problem, test: sj.losses.SquaredLoss, top: float) -> np.ndarray:
    """Held-out losses, (betas, alphas)."""
    evaluate = jax.jit(jax.vmap(lambda W: test.evaluate(W, problem.smooth.intercept(W))))

    def row(beta: float) -> jax.Array:
        penalties = jax.vmap(lambda alpha: sj.penalties.ExclusiveL21(alpha, beta))(SIDE * top)
        return evaluate(sj.path(problem, penalties).params)

    return np.array([row(beta) for beta in SIDE * top])


def draw_grid(axis: Axes, grid: np.ndarray, name: str, side: np.ndarray) -> None:
    """Contours of the excess over the best of the grid, and where that is."""
    levels = grid.min() * np.array([1.001, 1.01, 1.03, 1.06, 1.1, 1.2, 1.4, 1.7])
    contours = axis.contour(side, side, grid, levels, colors="0.6", linewidths=0.8, zorder=0)
    axis.clabel(contours, fmt=lambda level: f"{100 * (level / grid.min() - 1):.3g} %", fontsize=7)
    low = np.unravel_index(grid.argmin(), grid.shape)
    axis.plot(side[low[1]], side[low[0]], "kx", ms=11, mew=2)
    axis.set(xlim=side[[-1, 0]], ylim=side[[-1, 0]], title=name)


def main() -> None:
    """Run what ``--only`` names, or all three."""
    options = parser(__doc__)
    options.add_argument("--out", type=Path, default=Path(), help="folder for the figure")
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--only", choices=["cost", "lasso", "tune"])
    args = options.parse_args()
    for key, function in (("cost", cost), ("lasso", lasso), ("tune", tuning)):
        if args.only in (None, key):
            function(args)


if __name__ == "__main__":
    main()
