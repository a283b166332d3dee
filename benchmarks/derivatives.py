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
from functools import partial
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np
from _data import folder
from speed import in_turn, standardised

import sparsejax as sj


def halves(name, path):
    """Training and held-out loss of a data set."""
    X, Y = standardised(name, path)
    rows = np.random.default_rng(0).permutation(len(X))
    train, test = np.split(rows, [len(X) * 7 // 10])
    return (sj.losses.SquaredLoss(X[part], Y[part], intercept=True) for part in (train, test))


def cost(args):
    """Time and memory of the gradient over those of the solve."""
    print(
        f"{'instance':<28}{'steps':>7}{'solve s':>9}{'+ d/d strengths':>17}{'+ d/dX too':>12}  temporary MB"
    )
    for name in ("glioma", "isolet"):
        train, test = halves(name, folder(args.data))
        top = float(sj.lambda_max(sj.Problem(train, sj.penalties.L21(1.0))))
        for label, penalty in (
            ("l2,1 /10", sj.penalties.L21(top / 10)),
            ("l2,1 /100", sj.penalties.L21(top / 100)),
            ("exclusive l2,1 /10", sj.penalties.ExclusiveL21(top / 10, top / 10)),
            ("exclusive l2,1 /100", sj.penalties.ExclusiveL21(top / 100, top / 100)),
        ):
            problem = sj.Problem(train, penalty)

            def held_out(penalty, smooth, test=test):
                W = sj.solve(sj.Problem(smooth, penalty)).params
                return test.evaluate(W, smooth.intercept(W))

            jitted = {
                "solve": jax.jit(held_out),
                "strengths": jax.jit(jax.value_and_grad(held_out)),
                "X": jax.jit(jax.value_and_grad(held_out, argnums=(0, 1))),
            }
            programs = {key: f.lower(penalty, train).compile() for key, f in jitted.items()}
            seconds, results = in_turn(
                {key: partial(f, penalty, train) for key, f in programs.items()}, args.repeats
            )
            assert all(map(np.isfinite, jax.tree.leaves(results["strengths"])))
            memory = [programs[key].memory_analysis().temp_size_in_bytes / 1e6 for key in programs]
            steps = int(sj.solve(problem).num_iters)
            print(
                f"{name + ' ' + label:<28}{steps:>7}{seconds['solve']:>9.3f}"
                f"{seconds['strengths'] / seconds['solve']:>15.2f} x{seconds['X'] / seconds['solve']:>10.2f} x"
                f"  {', '.join(f'{m:.1f}' for m in memory)}",
                flush=True,
            )


def lasso(args):
    """Against the closed form on the support."""
    rng = np.random.default_rng(0)
    n, d = 1000, 2000
    X = rng.standard_normal((n, d))
    y = X[:, :50] @ rng.standard_normal(50) + rng.standard_normal(n)
    X_test = rng.standard_normal((500, d))
    y_test = X_test[:, :50] @ np.ones(50)
    train, test = sj.losses.SquaredLoss(X, y), sj.losses.SquaredLoss(X_test, y_test)
    top = float(sj.lambda_max(sj.Problem(train, sj.penalties.L1(1.0))))
    print(f"\n{'lasso, strength':<18}{'support':>8}{'gradient':>12}{'difference':>12}{'solve s':>9}"
          f"{'gradient s':>12}{'closed form s':>15}")  # fmt: skip
    for part in (3, 10, 100):
        strength = top / part
        loss = lambda s, train=train: test(sj.solve(sj.Problem(train, sj.penalties.L1(s)), tol=1e-10).params)
        w = np.asarray(sj.solve(sj.Problem(train, sj.penalties.L1(strength)), tol=1e-10).params)

        def closed_form(w=w):
            on = w != 0
            A = X[:, on]
            step = np.linalg.solve(A.T @ A / n, -np.sign(w[on]))
            return (X_test[:, on] @ step) @ (X_test @ w - y_test) / len(y_test)

        seconds, results = in_turn(
            {
                "solve": partial(jax.jit(loss), strength),
                "ours": partial(jax.jit(jax.value_and_grad(loss)), strength),
                "closed form": closed_form,
            },
            args.repeats,
        )
        ours, reference = float(results["ours"][1]), float(results["closed form"])
        print(
            f"{f'lambda_max / {part}':<18}{np.count_nonzero(w):>8}{ours:>12.5f}{abs(ours / reference - 1):>12.0e}"
            f"{seconds['solve']:>9.3f}{seconds['ours'] - seconds['solve']:>12.3f}{seconds['closed form']:>15.3f}",
            flush=True,
        )


def tuning(args):
    """Tables and a figure of the walks over the contours of the grid."""
    import matplotlib  # noqa: PLC0415

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    side = np.geomspace(1, 1e-3, 30)
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), constrained_layout=True)
    print(f"\n{'tune':<28}{'best of grid':>13}{'tuned':>10}{'ratio':>8}{'solves':>8}{'within 1 % after':>18}")
    for name, axis in zip(("yale", "glioma"), axes, strict=True):
        train, test = halves(name, folder(args.data))
        top = float(sj.lambda_max(sj.Problem(train, sj.penalties.L21(1.0))))
        problem = sj.Problem(train, sj.penalties.ExclusiveL21(top, top))
        evaluate = jax.jit(jax.vmap(lambda W: test.evaluate(W, train.intercept(W))))
        grid = np.array([
            evaluate(sj.path(problem, jax.vmap(lambda a: sj.penalties.ExclusiveL21(a, b * top))(side * top)).params)
            for b in side
        ])  # fmt: skip
        levels = grid.min() * np.array([1.001, 1.01, 1.03, 1.06, 1.1, 1.2, 1.4, 1.7])
        contours = axis.contour(side, side, grid, levels, colors="0.6", linewidths=0.8)
        axis.clabel(
            contours, fmt=lambda level, least=grid.min(): f"{100 * (level / least - 1):.3g} %", fontsize=7
        )
        for colour, start in zip(
            ("C0", "C1", "C2", "C3"), [(0.1, 0.1), (0.3, 0.03), (0.03, 0.3), (0.5, 0.5)], strict=True
        ):
            tuned = sj.tune(
                problem.replace(penalty=sj.penalties.ExclusiveL21(start[0] * top, start[1] * top)), test
            )
            loss = np.asarray(tuned.tried.loss)
            good = np.flatnonzero(loss <= 1.01 * grid.min())
            print(
                f"{f'{name} from {start}':<28}{grid.min():>13.5f}{float(tuned.loss):>10.5f}"
                f"{float(tuned.loss) / grid.min():>8.4f}{int(tuned.num_solves):>8}"
                f"{good[0] + 1 if good.size else 'never':>18}",
                flush=True,
            )
            walk = [
                np.asarray(leaf) / top for leaf in (tuned.tried.penalties.alpha, tuned.tried.penalties.beta)
            ]
            axis.plot(*walk, "o-", color=colour, ms=3, lw=1)
            axis.plot(walk[0][0], walk[1][0], "s", color=colour, ms=7)
        low = np.unravel_index(grid.argmin(), grid.shape)
        axis.plot(side[low[1]], side[low[0]], "k*", ms=11)
        axis.set(xscale="log", yscale="log", xlim=(1e-3, 1), ylim=(1e-3, 1), title=name,
                 xlabel="alpha / lambda_max", ylabel="beta / lambda_max")  # fmt: skip
    figure.suptitle(
        "tune: every solve (squares: starts; star: best of the 30 x 30 grid; contours: excess over it)"
    )
    figure.savefig(args.out / "tune.png", dpi=130)


def main():
    """Run what ``--only`` names, or all three."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="folder with the .npz files")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the figure")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", choices=["cost", "lasso", "tune"])
    args = parser.parse_args()
    for key, function in (("cost", cost), ("lasso", lasso), ("tune", tuning)):
        if args.only in (None, key):
            function(args)


if __name__ == "__main__":
    main()
