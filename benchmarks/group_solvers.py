"""Reweighting, FISTA and ADMM on the exclusive group l2,1 penalty; and its cost as features grow.

    python benchmarks/group_solvers.py --data DIR [--only solvers|wide|scale] [--theta 0.3] [--repeats 3]

**solvers**: seconds to an objective within 1e-2, 1e-4, 1e-6 of the minimum (relative), and to a certified
gap of 1e-6, on scene, emotions and corel5k, squared and logistic loss, over strengths. The number of
iterations to an objective is read off a run with history, then that many are timed; compiled before timing,
medians, solvers in turn, columns standardised, float64, groups of pairs of features with absolute correlation
above ``--theta``, 0.3. `irls` is timed with ``polish`` where a gap is asked for.
**wide**: CPU seconds to a gap of 1e-6 of the engine on all features and of working sets, on glioma and nci60,
with groups of features that say the same (k-means of the columns, by correlation), disjoint and with half as
many larger ones over them; one thread by ``OMP_NUM_THREADS=1
XLA_FLAGS="--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"``.
**scale**: seconds and peak memory of building groups and of solving to a gap of 1e-4, n = 200, 5 outputs, 10
random pairs a feature, each size in a process of its own (``--only one --size D``: one size in this process).
"""

import argparse
from functools import partial
from pathlib import Path

import jax
import numpy as np
from harness.data import folder, load_multilabel, load_standardised, standardise
from harness.jobs import alone, parser
from harness.tables import Printed
from harness.timing import in_turn, peak_mb, timed

import sparsejax as sj
from sparsejax.solvers import pick

jax.config.update("jax_enable_x64", True)

LEVELS = (1e-2, 1e-4, 1e-6)
BUDGET = {"irls": 200, "fista": 3000, "admm": 3000}
SOLVERS = {"irls": sj.irls, "fista": sj.fista, "admm": sj.admm}


# ---------------------------------------------------------------- solvers


def instance(name: str, path: Path, loss: str, theta: float) -> tuple[sj.Loss, sj.groups.Groups]:
    """The loss and the groups of a data set."""
    X, Y = load_multilabel(path, name)
    (X,) = standardise(X)
    Y = Y[:, (Y.sum(0) > 0) & (Y.sum(0) < len(Y))]
    groups = sj.groups.from_correlation(X, theta)
    if loss == "squared":
        return sj.losses.SquaredLoss(X, Y - Y.mean(0)), groups
    return sj.losses.LogisticLoss(X, Y, intercept=True), groups


def minimum(problem: sj.Problem, maxiter: int) -> sj.Solution:
    """By ADMM, or where that does not end by FISTA if it comes lower."""
    best = sj.admm(problem, tol=1e-9, maxiter=maxiter)
    if bool(best.converged):
        return best
    other = sj.fista(problem, tol=1e-9, maxiter=maxiter)
    return other if float(other.objective) < float(best.objective) else best


def steps_to(problem: sj.Problem, name: str, least: float, maxiter: int) -> list[int | None]:
    """For every level the iterations after which the objective is within it, None if never."""
    history = SOLVERS[name](problem, tol=1e-14, maxiter=maxiter, history=maxiter + 1).history
    excess = np.asarray(history.objective) / least - 1
    hits = [np.flatnonzero(excess <= level) for level in LEVELS]
    return [int(hit[0]) if hit.size else None for hit in hits]


def runs_of(problem: sj.Problem, least: float, maxiter: int) -> dict:
    """A call for each solver and each level that it reaches, and for the gap."""
    runs = {}
    for name, function in SOLVERS.items():
        budget = min(BUDGET[name], maxiter)
        for level, count in zip(LEVELS, steps_to(problem, name, least, budget), strict=True):
            if count is not None:
                runs[name, level] = partial(jax.jit(partial(function, maxiter=count, tol=1e-14)), problem)
        options = {"polish": True} if name == "irls" else {}
        call = jax.jit(partial(function, tol=1e-6, maxiter=budget, **options))
        if bool(call(problem).converged):
            runs[name, "gap"] = partial(call, problem)
    return runs | {("solve", "gap"): partial(jax.jit(partial(sj.solve, tol=1e-6)), problem)}


def solvers(args: argparse.Namespace) -> None:
    """A table for each data set and loss."""
    path = folder(args.data)
    for name in args.sets.split(","):
        for loss in args.losses.split(","):
            smooth, groups = instance(name, path, loss, args.theta)
            (n, d), k = smooth.X.shape, smooth.Y.shape[1]
            print(f"\n{name}, {loss}: n = {n}, d = {d}, k = {k}, {groups.num_groups} pairs, "
                  f"{groups.free.shape[0]} features in none")  # fmt: skip
            levels = [(f"1e-{digits}", ">16") for digits in (2, 4, 6)]
            printed = Printed(
                ("alpha", ">8g"), ("zero rows", ">11"), ("solver", ">9"), *levels, ("gap 1e-6", ">18")
            )
            for alpha in args.alphas:
                problem = sj.Problem(smooth, sj.penalties.ExclusiveGroupL21(alpha, groups))
                best = minimum(problem, args.maxiter)
                zeros = int((np.asarray(best.params) == 0).all(axis=1).sum())
                found = in_turn(runs_of(problem, float(best.objective), args.maxiter), args.repeats)
                texts = {
                    key: f"{timing.seconds:.3f} s / {int(timing.result.num_iters)}"
                    for key, timing in found.items()
                }
                for solver in (*SOLVERS, "solve"):
                    printed.row(alpha, zeros, solver, *(texts.get((solver, end)) for end in (*LEVELS, "gap")))


# ---------------------------------------------------------------- wide


def alike(X: np.ndarray, counts: tuple[int, ...]) -> sj.groups.Groups:
    """Of every number of groups a partition of the features by the correlation of their columns."""
    from sklearn.cluster import KMeans  # noqa: PLC0415

    columns = (X / np.linalg.norm(X, axis=0)).T
    labels = [
        KMeans(G, n_init=1, max_iter=10, random_state=i).fit(columns).labels_ for i, G in enumerate(counts)
    ]
    return sj.groups.from_lists(
        [np.flatnonzero(label == g) for label in labels for g in np.unique(label)], X.shape[1]
    )


def wide(args: argparse.Namespace) -> None:
    """One table."""
    print()
    loss_names = {"squared": sj.losses.SquaredLoss, "logistic": sj.losses.LogisticLoss}
    columns = [("groups", ">6"), ("alpha", ">7g"), ("active", ">8"), ("admm", ">17")]
    printed = Printed(("set", "<7"), ("loss", "<9"), *columns, ("working_set", ">17"), ("solve", ">13"))
    calls = {name: jax.jit(partial(getattr(sj, name), tol=1e-6)) for name in ("admm", "working_set")}
    for name, losses in (("nci60", ("squared",)), ("glioma", ("squared", "logistic"))):
        X, Y = load_standardised(folder(args.data), name)
        for counts in ((30,), (200,), (60, 30)):
            groups = alike(X, counts)
            for kind in losses:
                targets = Y if kind == "squared" else (Y > 0).astype(float)
                loss = loss_names[kind](X, targets)
                for alpha in (1e-2, 1.0):
                    problem = sj.Problem(loss, sj.penalties.ExclusiveGroupL21(alpha, groups))
                    runs = {solver: partial(call, problem) for solver, call in calls.items()}
                    found = in_turn(runs, args.repeats)
                    texts = [f"{t.cpu:.3f} s / {int(t.result.num_iters)}" for t in found.values()]
                    active = int(np.asarray(found["working_set"].result.params).any(axis=1).sum())
                    chosen = pick(problem).function.__name__
                    printed.row(name, kind, "+".join(map(str, counts)), alpha, active, *texts, chosen)


# ---------------------------------------------------------------- scale


def scale(args: argparse.Namespace) -> None:
    """Each size in a process of its own."""
    print()
    printed = growth_table()
    for d in (1_000, 10_000, 100_000):
        printed.row(*alone(grown, d))


def one(args: argparse.Namespace) -> None:
    """A single size in this process."""
    growth_table().row(*grown(args.size))


def growth_table() -> Printed:
    """Its headings."""
    times = [("groups s", ">10.2f"), ("solve s", ">9.2f"), ("steps", ">7")]
    return Printed(("d", ">8"), ("pairs", ">10"), *times, ("gap", ">10.1e"), ("MB", ">8.0f"))


def grown(d: int) -> tuple:
    """A row of the table."""
    n, k = 200, 5
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    Y = X[:, :20] @ rng.standard_normal((20, k)) + rng.standard_normal((n, k))
    pairs = np.stack([np.repeat(np.arange(d), 10), rng.integers(0, d - 1, 10 * d)], axis=1)
    pairs[:, 1] += pairs[:, 1] >= pairs[:, 0]
    built = timed(lambda: sj.groups.from_lists(pairs, d))
    problem = sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.ExclusiveGroupL21(0.01, built.result))
    solve = jax.jit(partial(sj.solve, tol=1e-4))
    solved = in_turn({"solve": partial(solve, problem)}, 3)["solve"]
    steps, gap = int(solved.result.num_iters), float(solved.result.gap)
    return d, len(pairs), built.seconds, solved.seconds, steps, gap, peak_mb()


PARTS = {"solvers": solvers, "wide": wide, "scale": scale, "one": one}


def main() -> None:
    """Run what ``--only`` names, or both tables."""
    options = parser(__doc__)
    options.add_argument("--only", choices=PARTS)
    options.add_argument("--sets", default="emotions,scene,corel5k")
    options.add_argument("--losses", default="squared,logistic")
    options.add_argument("--theta", type=float, default=0.3, help="least correlation of a pair")
    options.add_argument("--alphas", type=float, nargs="+", default=[1e-3, 1e-2, 1e-1, 1.0, 10.0])
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--maxiter", type=int, default=20_000)
    options.add_argument("--size", type=int, default=1000)
    args = options.parse_args()
    for part in (args.only,) if args.only else ("solvers", "wide", "scale"):
        PARTS[part](args)


if __name__ == "__main__":
    main()
