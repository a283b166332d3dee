"""Solvers for the exclusive group lasso over two label views with a graph (Chen et al., ACM MM 2011).

    python benchmarks/label_views.py [--only smoothing|convergence|speed|scale|full] [--out DIR] [--repeats 5]

Data are generated: 40 latent factors and noise, columns standardised, sparse weights, and for every sample
the pair of labels of largest score; the similarities of labels are random. Loss of scale 1/2 as in the
paper, strength 10, graph 1, n = 500, d = 200, 8 x 10 labels unless said otherwise; float64.

**smoothing**: the excess of `smoothed_apg`'s objective over the minimum for every mu, and its bound
``mu/2 * strength * sum_i ||w_i|| * (8^1.5 + 10^1.5)``.
**convergence**: ``label_views.png``, relative excess of the objective by iteration.
**speed**: iterations and seconds to a certified relative gap, solvers in turn, compiled before, medians.
**scale**: seconds an iteration and peak memory of `admm` as n, d and the numbers of labels grow, each size
in a process of its own (``--size``: one size in this process); an iteration is the difference of two runs of
different lengths.
**full**: 50 000 x 1134 and 8 x 81 labels in float32, the size of the paper's first experiment: what
Algorithm 1 (mended) reaches in 100 iterations, after which the paper's curve is flat; the seconds that `admm`
takes to a certified gap, and to score 1000 new rows.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import numpy as np
from harness.figures import panels, save_with_legend_below
from harness.jobs import alone, parser
from harness.tables import Printed
from harness.timing import Timing, in_turn, peak_mb, per_step, timed

import sparsejax as sj
from sparsejax import plots

jax.config.update("jax_enable_x64", True)

STRENGTH, GRAPH = 10.0, 1.0
MUS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
GROWTH = (
    (1000, 200, 8, 10), (10_000, 200, 8, 10), (50_000, 200, 8, 10),
    (1000, 400, 8, 10), (1000, 800, 8, 10),
    (1000, 200, 8, 20), (1000, 200, 8, 40), (1000, 200, 8, 80),
)  # fmt: skip


def generated(n: int, d: int, sizes: tuple[int, int], dtype: type) -> tuple[np.ndarray, ...]:
    """X, Y and a similarity of the labels."""
    rng = np.random.default_rng(0)
    k = int(np.prod(sizes))
    normal = partial(rng.standard_normal, dtype=dtype)
    X = normal((n, 40)) @ normal((40, d)) / np.sqrt(40).astype(dtype) + dtype(0.5) * normal((n, d))
    X = (X - X.mean(0)) / X.std(0)
    W = dtype(0.3) * normal((d, k)) * (rng.random((d, k)) < 0.05)
    F = X @ W + dtype(0.5) * normal((n, k))
    Y = np.zeros((n, k), dtype)
    Y[np.arange(n), F.argmax(1)] = 1
    return X, Y, np.exp(-3 * rng.random((k, k))).astype(dtype)


def make(
    n: int = 500,
    d: int = 200,
    sizes: tuple[int, int] = (8, 10),
    strength: float = STRENGTH,
    dtype: type = float,
) -> sj.Problem:
    """The problem."""
    X, Y, P = generated(n, d, sizes, dtype)
    smooth = sj.losses.SquaredLoss(X, Y, scale=0.5) + sj.losses.GraphLaplacian(P, dtype(GRAPH))
    views = sj.groups.label_views(*sizes)
    return sj.Problem(smooth, sj.penalties.ExclusiveGroupLasso(dtype(strength), views))


def smoothing(args: argparse.Namespace) -> None:
    """The table of errors."""
    problem = make()
    best = float(sj.solve(problem, tol=1e-13).objective)
    ratios = [("excess / minimum", ">19.2e"), ("bound / minimum", ">18.2e"), ("gap", ">11.1e")]
    printed = Printed(("mu", ">8.0e"), ("iterations", ">12"), *ratios)
    for mu in MUS:
        s = sj.smoothed_apg(problem, mu=mu, tol=1e-12, maxiter=50_000)
        rows = np.linalg.norm(np.asarray(s.params), axis=1).sum()
        bound = mu / 2 * STRENGTH * rows * (8**1.5 + 10**1.5)
        printed.row(mu, int(s.num_iters), float(s.objective) / best - 1, bound / best, float(s.gap))


def convergence(args: argparse.Namespace) -> None:
    """The figure, and a table of iterations to an excess."""
    solvers = {
        "ADMM": sj.admm,
        "Davis-Yin": sj.davis_yin,
        "smoothing, mu = 1e-5, continuation": partial(sj.smoothed_apg, mu=1e-5),
        "smoothing, mu = 1e-5": partial(sj.smoothed_apg, mu=1e-5, continuation=False),
        "smoothing, mu = 1e-3": partial(sj.smoothed_apg, mu=1e-3, continuation=False),
        "as printed, mu = 1e-3": partial(sj.smoothed_apg, mu=1e-3, faithful=True),
    }
    figure, axes = panels(2, 2, (5.5, 4.0))
    levels, steps = (1e-2, 1e-4, 1e-6, 1e-8), 2000
    printed = Printed(("strength", "<10g"), ("iterations to", "<36"), *((f"{x:.0e}", ">7") for x in levels))
    for axis, strength in zip(axes, (10.0, 50.0), strict=True):
        problem = make(strength=strength)
        best = float(sj.solve(problem, tol=1e-13).objective)
        runs = {n: f(problem, tol=1e-13, maxiter=steps, history=steps) for n, f in solvers.items()}
        for name, s in runs.items():
            excess = np.asarray(s.history.objective) / best - 1
            hits = (np.flatnonzero(excess <= level) for level in levels)
            printed.row(strength, name, *(int(hit[0]) if hit.size else None for hit in hits))
        plots.convergence(runs, "objective", optimum=best, ax=axis)
        axis.get_legend().remove()
        axis.set(xscale="log", title=f"strength {strength:g}", ylim=(1e-13, 10))
    save_with_legend_below(figure, 0.1, args.out / "label_views.png")


def speed(args: argparse.Namespace) -> None:
    """Seconds to a gap."""
    ends = [("iterations", ">12"), ("seconds", ">9.3f"), ("gap", ">9.1e")]
    printed = Printed(("strength", "<10g"), ("to", "<7g"), ("solver", "<13"), *ends)
    for strength in (10.0, 50.0):
        problem = make(strength=strength)
        for tol in (1e-6, 1e-9):
            calls = {
                "admm": partial(sj.admm, problem, tol=tol),
                "davis_yin": partial(sj.davis_yin, problem, tol=tol),
            }
            if tol == 1e-6:
                calls["smoothed_apg"] = partial(sj.smoothed_apg, problem, tol=tol, mu=1e-6, maxiter=50_000)
            for name, found in in_turn(calls, args.repeats).items():
                solution = found.result
                iterations, gap = int(solution.num_iters), float(solution.gap)
                printed.row(strength, tol, name, iterations, found.seconds, gap)


def scale(args: argparse.Namespace) -> None:
    """One size in this process, or all in their own."""
    if args.size:
        grown(args.size, args.repeats)
        return
    for size in GROWTH:
        alone(grown, size, args.repeats)


def grown(size: tuple[int, int, int, int], repeats: int) -> None:
    """One size, printed."""
    n, d, a, b = size
    problem = make(n, d, (a, b))
    found = in_turn({m: partial(sj.admm, problem, tol=0.0, maxiter=m) for m in (10, 40)}, repeats)
    steps = int(found[40].result.num_iters) - int(found[10].result.num_iters)
    print(
        f"n {n:6d}, d {d:5d}, {a:3d} x {b:3d} labels: "
        f"{per_step(found[10], found[40], steps) * 1e3:8.2f} ms an iteration, 10 with all else "
        f"{found[10].seconds:6.2f} s, peak {peak_mb():6.0f} MB (X and Y {8 * n * (d + a * b) / 2**20:.0f})",
        flush=True,
    )


def full(args: argparse.Namespace) -> None:
    """The paper's size."""
    jax.config.update("jax_enable_x64", False)
    n, d, *sizes = args.size or (50_000, 1134, 8, 81)
    # Strengths in proportion to n, as the loss is a sum over samples.
    made = timed(lambda: make(n, d, tuple(sizes), strength=STRENGTH * n / 500, dtype=np.float32))
    problem = made.result
    print(f"data made in {made.seconds:.0f} s", flush=True)
    zero = float(problem(np.zeros((d, int(np.prod(sizes))), np.float32)))
    print(f"objective at 0: {zero:.6g}")
    for tol in (1e-2, 1e-3, 1e-4):
        found = compiled(f"admm to gap {tol:g}", partial(sj.admm, problem, tol=tol), 20_000)
    W, best = found.result.params, float(found.result.objective)
    for mu in (1e-2, 1e-3):
        apg = partial(sj.smoothed_apg, problem, mu=mu, tol=1e-7, continuation=False)
        found = compiled(f"smoothed_apg, mu {mu:g}, 100 iterations", apg, 100)
        print(f"  excess over the best {float(found.result.objective) / best - 1:.2e}")
    X = np.asarray(problem.smooth.X[:1000])
    score = jax.jit(lambda X, W: X @ W)
    scored = in_turn({"score": partial(score, X, W)}, 1)["score"]
    print(f"1000 rows scored in {scored.seconds * 1e3:.1f} ms")
    print(f"peak memory {peak_mb():.0f} MB")


def compiled(name: str, call: Callable[..., sj.Solution], maxiter: int) -> Timing:
    """A solve, compiled before it is timed, printed."""
    jax.block_until_ready(call(maxiter=0).params)
    found = timed(partial(call, maxiter=maxiter))
    s = found.result
    print(
        f"{name}: {int(s.num_iters)} iterations, {found.seconds:.1f} s, objective {float(s.objective):.6g}, "
        f"gap {float(s.gap):.1e}; {s.message}",
        flush=True,
    )
    return found


PARTS = {"smoothing": smoothing, "convergence": convergence, "speed": speed, "scale": scale, "full": full}


def main() -> None:
    """Run what ``--only`` names, or all but ``full``."""
    options = parser(__doc__, data=False)
    options.add_argument("--only", choices=PARTS)
    options.add_argument("--out", type=Path, default=Path(), help="folder for the figure")
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--size", type=int, nargs=4, metavar=("N", "D", "L1", "L2"))
    args = options.parse_args()
    for part in [args.only] if args.only else [p for p in PARTS if p != "full"]:
        print(f"\n{part}")
        PARTS[part](args)


if __name__ == "__main__":
    main()
