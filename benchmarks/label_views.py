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
in a process of its own; an iteration is the difference of two runs of different lengths.
**full**: 50 000 x 1134 and 8 x 81 labels in float32, the size of the paper's first experiment: what
Algorithm 1 (mended) reaches in 100 iterations, after which the paper's curve is flat; the seconds that `admm`
takes to a certified gap, and to score 1000 new rows.
"""

import argparse
import resource
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import jax

if "full" not in sys.argv:
    jax.config.update("jax_enable_x64", True)

import numpy as np
from speed import in_turn

import sparsejax as sj

STRENGTH, GRAPH = 10.0, 1.0
MUS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


def data(n, d, sizes, seed=0, dtype=float):
    """X, Y and a similarity of the labels."""
    rng = np.random.default_rng(seed)
    k = int(np.prod(sizes))
    normal = partial(rng.standard_normal, dtype=dtype)
    X = normal((n, 40)) @ normal((40, d)) / np.sqrt(40).astype(dtype) + dtype(0.5) * normal((n, d))
    X = (X - X.mean(0)) / X.std(0)
    W = dtype(0.3) * normal((d, k)) * (rng.random((d, k)) < 0.05)
    F = X @ W + dtype(0.5) * normal((n, k))
    Y = np.zeros((n, k), dtype)
    Y[np.arange(n), F.argmax(1)] = 1
    return X, Y, np.exp(-3 * rng.random((k, k))).astype(dtype)


def make(n=500, d=200, sizes=(8, 10), strength=STRENGTH, dtype=float):
    """The problem."""
    X, Y, P = data(n, d, sizes, dtype=dtype)
    smooth = sj.losses.SquaredLoss(X, Y, scale=0.5) + sj.losses.GraphLaplacian(P, dtype(GRAPH))
    views = sj.groups.label_views(*sizes)
    return sj.Problem(smooth, sj.penalties.ExclusiveGroupLasso(dtype(strength), views))


def smoothing(args):
    """The table of errors."""
    problem = make()
    best = float(sj.solve(problem, tol=1e-13).objective)
    print(f"{'mu':>8}{'iterations':>12}{'excess / minimum':>19}{'bound / minimum':>18}{'gap':>11}")
    for mu in MUS:
        s = sj.smoothed_apg(problem, mu=mu, tol=1e-12, maxiter=50_000)
        rows = np.linalg.norm(np.asarray(s.params), axis=1).sum()
        bound = mu / 2 * STRENGTH * rows * (8**1.5 + 10**1.5)
        excess = float(s.objective) - best
        print(
            f"{mu:8.0e}{int(s.num_iters):12d}{excess / best:19.2e}{bound / best:18.2e}{float(s.gap):11.1e}",
            flush=True,
        )


def convergence(args):
    """The figure."""
    import matplotlib  # noqa: PLC0415

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True)
    for axis, strength in zip(axes, (10.0, 50.0), strict=True):
        problem = make(strength=strength)
        best = float(sj.solve(problem, tol=1e-13).objective)
        steps = 2000
        runs = {
            "ADMM": sj.admm,
            "Davis-Yin": sj.davis_yin,
            "smoothing, mu = 1e-5, continuation": partial(sj.smoothed_apg, mu=1e-5),
            "smoothing, mu = 1e-5": partial(sj.smoothed_apg, mu=1e-5, continuation=False),
            "smoothing, mu = 1e-3": partial(sj.smoothed_apg, mu=1e-3, continuation=False),
            "as printed, mu = 1e-3": partial(sj.smoothed_apg, mu=1e-3, faithful=True),
        }
        for name, solver in runs.items():
            s = solver(problem, tol=1e-13, maxiter=steps, history=steps)
            excess = np.asarray(s.history.objective) / best - 1
            axis.loglog(np.arange(1, steps + 1), np.maximum(excess, 1e-14), label=name)
            hits = [np.flatnonzero(excess <= level) for level in (1e-2, 1e-4, 1e-6, 1e-8)]
            text = [str(int(hit[0])) if hit.size else "-" for hit in hits]
            print(f"strength {strength:g}, {name}: iterations to 1e-2, 1e-4, 1e-6, 1e-8: {', '.join(text)}")
        axis.set(xlabel="iteration", title=f"strength {strength:g}", ylim=(1e-13, 10))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("objective: relative excess over the minimum")
    axes[1].legend(fontsize=8, loc="lower left")
    figure.tight_layout()
    figure.savefig(Path(args.out) / "label_views.png", dpi=120)


def speed(args):
    """Seconds to a gap."""
    for strength in (10.0, 50.0):
        problem = make(strength=strength)
        for tol in (1e-6, 1e-9):
            calls = {
                "admm": partial(sj.admm, problem, tol=tol),
                "davis_yin": partial(sj.davis_yin, problem, tol=tol),
            }
            if tol == 1e-6:
                calls["smoothed_apg"] = partial(sj.smoothed_apg, problem, tol=tol, mu=1e-6, maxiter=50_000)
            seconds, found = in_turn(calls, args.repeats)
            for name, s in found.items():
                print(
                    f"strength {strength:g}, gap {tol:g}: {name:13s}{int(s.num_iters):7d} iterations"
                    f"{seconds[name]:9.3f} s  gap {float(s.gap):.1e}",
                    flush=True,
                )


def scale(args):
    """One size in this process, or all in their own."""
    if args.size:
        n, d, a, b = args.size
        problem = make(n, d, (a, b))
        run = lambda m: sj.admm(problem, tol=0.0, maxiter=m)
        seconds, found = in_turn({m: partial(run, m) for m in (10, 40)}, args.repeats)
        steps = int(found[40].num_iters) - int(found[10].num_iters)
        each = (seconds[40] - seconds[10]) / steps * 1e3
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"n {n:6d}, d {d:5d}, {a:3d} x {b:3d} labels: {each:8.2f} ms an iteration, 10 with all else "
            f"{seconds[10]:6.2f} s, peak {peak:6.0f} MB (X and Y {8 * n * (d + a * b) / 2**20:.0f})",
            flush=True,
        )
        return
    for size in (
        (1000, 200, 8, 10), (10_000, 200, 8, 10), (50_000, 200, 8, 10),
        (1000, 400, 8, 10), (1000, 800, 8, 10),
        (1000, 200, 8, 20), (1000, 200, 8, 40), (1000, 200, 8, 80),
    ):  # fmt: skip
        subprocess.run([sys.executable, __file__, "--only", "scale", "--size", *map(str, size)], check=True)


def full(args):
    """The paper's size."""
    n, d, *sizes = args.size or (50_000, 1134, 8, 81)
    start = time.perf_counter()
    # Strengths in proportion to n, as the loss is a sum over samples.
    problem = make(n, d, tuple(sizes), strength=STRENGTH * n / 500, dtype=np.float32)
    print(f"data made in {time.perf_counter() - start:.0f} s", flush=True)

    def timed(name, call):
        jax.block_until_ready(call(maxiter=0).params)  # compiles
        start = time.perf_counter()
        s = jax.block_until_ready(call())
        seconds = time.perf_counter() - start
        print(
            f"{name}: {int(s.num_iters)} iterations, {seconds:.1f} s, objective {float(s.objective):.6g}, "
            f"gap {float(s.gap):.1e}; {s.message}",
            flush=True,
        )
        return s, seconds

    zero = float(problem(np.zeros((d, int(np.prod(sizes))), np.float32)))
    print(f"objective at 0: {zero:.6g}")
    for tol in (1e-2, 1e-3, 1e-4):
        s, _ = timed(f"admm to gap {tol:g}", partial(sj.admm, problem, tol=tol))
    best = float(s.objective)
    for mu in (1e-2, 1e-3):
        apg, _ = timed(
            f"smoothed_apg, mu {mu:g}, 100 iterations",
            lambda maxiter=100, mu=mu: sj.smoothed_apg(
                problem, mu=mu, tol=1e-7, maxiter=maxiter, continuation=False
            ),
        )
        print(f"  excess over the best {float(apg.objective) / best - 1:.2e}")
    X = np.asarray(problem.smooth.X[:1000])
    score = jax.jit(lambda X, W: X @ W)
    jax.block_until_ready(score(X, s.params))
    start = time.perf_counter()
    jax.block_until_ready(score(X, s.params))
    print(f"1000 rows scored in {(time.perf_counter() - start) * 1e3:.1f} ms")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


PARTS = {"smoothing": smoothing, "convergence": convergence, "speed": speed, "scale": scale, "full": full}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--out", default=".")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--size", type=int, nargs=4, metavar=("N", "D", "L1", "L2"))
    arguments = parser.parse_args()
    for part in [arguments.only] if arguments.only else [p for p in PARTS if p != "full"]:
        print(f"\n{part}")
        PARTS[part](arguments)
