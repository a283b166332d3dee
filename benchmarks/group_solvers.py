"""Reweighting, FISTA and ADMM on the exclusive group l2,1 penalty; and its cost as features grow.

    python benchmarks/group_solvers.py --data DIR [--only solvers|scale] [--theta 0.3] [--repeats 3]

**solvers**: seconds to an objective within 1e-2, 1e-4, 1e-6 of the minimum (relative), and to a certified
gap of 1e-6, on scene, emotions and corel5k, squared and logistic loss, over strengths. The number of
iterations to an objective is read off a run with history, then that many are timed; compiled before timing,
medians, solvers in turn, columns standardised, float64, groups of pairs of features with absolute correlation
above ``--theta``, 0.3. `irls` is timed with ``polish`` where a gap is asked for.
**scale**: seconds and peak memory of building groups and of solving to a gap of 1e-4, n = 200, 5 outputs, 10
random pairs a feature, each size in a process of its own.
"""

import argparse
import resource
import subprocess
import sys
import time
from functools import partial

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np
from _data import folder, load_multilabel
from speed import in_turn

import sparsejax as sj

LEVELS = (1e-2, 1e-4, 1e-6)
BUDGET = {"irls": 200, "fista": 3000, "admm": 3000}
SOLVERS = {"irls": sj.irls, "fista": sj.fista, "admm": sj.admm}


def instance(name, path, loss, theta):
    """The loss and the groups of a data set."""
    X, Y = load_multilabel(path, name)
    X = X - X.mean(0)
    spread = X.std(0)
    X = X[:, spread > 1e-12] / spread[spread > 1e-12]
    Y = Y[:, (Y.sum(0) > 0) & (Y.sum(0) < len(Y))].astype(float)
    groups = sj.groups.from_correlation(X, theta)
    if loss == "squared":
        return sj.losses.SquaredLoss(X, Y - Y.mean(0)), groups
    return sj.losses.LogisticLoss(X, Y, intercept=True), groups


def steps_to(problem, name, minimum, maxiter):
    """For every level the iterations after which the objective is within it, None if never."""
    history = SOLVERS[name](problem, tol=1e-14, maxiter=maxiter, history=maxiter + 1).history
    excess = np.asarray(history.objective) / minimum - 1
    hits = [np.flatnonzero(excess <= level) for level in LEVELS]
    return [int(hit[0]) if hit.size else None for hit in hits]


def solvers(args):
    """The table."""
    for name in args.sets.split(","):
        for loss in args.losses.split(","):
            smooth, groups = instance(name, folder(args.data), loss, args.theta)
            n, d = smooth.X.shape
            print(
                f"\n{name}, {loss}: n = {n}, d = {d}, k = {smooth.Y.shape[1]}, {groups.num_groups} pairs, "
                f"{groups.free.shape[0]} features in none\n"
                f"{'alpha':>8}{'zero rows':>11}{'solver':>9}"
                f"{'1e-2':>16}{'1e-4':>16}{'1e-6':>16}{'gap 1e-6':>18}"
            )
            for alpha in args.alphas:
                problem = sj.Problem(smooth, sj.penalties.ExclusiveGroupL21(alpha, groups))
                best = sj.admm(problem, tol=1e-9, maxiter=args.maxiter)
                if not bool(best.converged):
                    other = sj.fista(problem, tol=1e-9, maxiter=args.maxiter)
                    best = other if float(other.objective) < float(best.objective) else best
                zeros = int((np.asarray(best.params) == 0).all(axis=1).sum())
                runs, texts = {}, {}
                for solver, function in SOLVERS.items():
                    budget = min(BUDGET[solver], args.maxiter)
                    steps = steps_to(problem, solver, float(best.objective), budget)
                    for level, count in zip(LEVELS, steps, strict=True):
                        if count is not None:
                            call = jax.jit(partial(function, maxiter=count, tol=1e-14))
                            runs[solver, level] = partial(call, problem)
                            texts[solver, level] = count
                    options = {"polish": True} if solver == "irls" else {}
                    call = jax.jit(partial(function, tol=1e-6, maxiter=budget, **options))
                    solution = call(problem)
                    texts[solver, "gap"] = int(solution.num_iters)
                    if bool(solution.converged):
                        runs[solver, "gap"] = partial(call, problem)
                runs["solve", "gap"] = partial(jax.jit(partial(sj.solve, tol=1e-6)), problem)
                seconds, results = in_turn(runs, args.repeats)
                for solver in (*SOLVERS, "solve"):
                    cells = ""
                    for level in (*LEVELS, "gap"):
                        key, width = (solver, level), 18 if level == "gap" else 16
                        text = "-"
                        if key in seconds:
                            count = texts.get(key, int(results[key].num_iters))
                            text = f"{seconds[key]:.3f} s / {count}"
                        cells += f"{text:>{width}}"
                    print(f"{alpha:>8g}{zeros:>11}{solver:>9}{cells}", flush=True)


def scale(args):
    """Each size in a process of its own, so that peak memory is its own."""
    print(f"\n{'d':>8}{'pairs':>10}{'groups s':>10}{'solve s':>9}{'steps':>7}{'gap':>10}{'MB':>8}")
    for d in (1_000, 10_000, 100_000):
        subprocess.run([sys.executable, __file__, "--only", "one", "--size", str(d)], check=True)


def one(args):
    """A single size, printed."""
    d, n, k = args.size, 200, 5
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    Y = X[:, :20] @ rng.standard_normal((20, k)) + rng.standard_normal((n, k))
    pairs = np.stack([np.repeat(np.arange(d), 10), rng.integers(0, d - 1, 10 * d)], axis=1)
    pairs[:, 1] += pairs[:, 1] >= pairs[:, 0]
    start = time.perf_counter()
    groups = sj.groups.from_lists(pairs, d)
    built = time.perf_counter() - start
    problem = sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.ExclusiveGroupL21(0.01, groups))
    solve = jax.jit(partial(sj.solve, tol=1e-4))
    seconds, results = in_turn({"solve": partial(solve, problem)}, 3)
    s = results["solve"]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(
        f"{d:>8}{len(pairs):>10}{built:>10.2f}{seconds['solve']:>9.2f}{int(s.num_iters):>7}"
        f"{float(s.gap):>10.1e}{memory:>8.0f}",
        flush=True,
    )


if __name__ == "__main__":
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--data")
    parser.add_argument("--only", choices=("solvers", "scale", "one"))
    parser.add_argument("--sets", default="emotions,scene,corel5k")
    parser.add_argument("--losses", default="squared,logistic")
    parser.add_argument("--theta", type=float, default=0.3, help="least correlation of a pair")
    parser.add_argument("--alphas", type=float, nargs="+", default=[1e-3, 1e-2, 1e-1, 1.0, 10.0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--maxiter", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=1000)
    arguments = parser.parse_args()
    for name in (arguments.only,) if arguments.only else ("solvers", "scale"):
        globals()[name](arguments)
