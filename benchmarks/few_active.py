"""Few active features: lasso, l1 logistic, l2,1 and groups beside celer and skglm, the same objective.

    python benchmarks/few_active.py --out DIR [--only lasso,nonnegative,logistic,...] [--threads 1]

Generated data, float64. A row is one problem: ours to a certified gap of 1e-6; the peer at the loosest of its
tolerances (1e-2, 1e-3, ...) at which its objective is within 1e-6 of the optimum, relative to the objective
at 0. CPU seconds, warm, medians of ``--repeats`` calls in turn: of `sparsejax.solve`, of the same inside
`jax.jit`, and of the peer; the last column is the ratio of the times on the clock.

Writes ``DIR/results/few_active.md``.
"""

import argparse
import os
import sys

if "--threads" in sys.argv:  # before the libraries that read them
    count = sys.argv[sys.argv.index("--threads") + 1]
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "NPROC"):
        os.environ[name] = count
    os.environ["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen={str(count != '1').lower()}"

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from harness.jobs import parser
from harness.tables import table
from harness.timing import in_turn

import sparsejax as sj

jax.config.update("jax_enable_x64", True)
warnings.filterwarnings("ignore")
TOLERANCES = [10.0**-k for k in range(2, 13)]
TARGET = 1e-6


class Case(NamedTuple):
    """A problem and what else solves it."""

    problem: sj.Problem
    peer: str
    fit: Callable[[float], Any]  # tolerance -> W


def columns(n: int, d: int, rho: float, rng: Any) -> np.ndarray:
    """Columns of an autoregressive process, variance 1."""
    noise = rng.standard_normal((n, d))
    X = np.empty((n, d))
    X[:, 0] = noise[:, 0]
    for j in range(1, d):
        X[:, j] = rho * X[:, j - 1] + (1 - rho**2) ** 0.5 * noise[:, j]
    return X


def simulated(n: int, d: int, rho: float, active: int, snr: float, seed: int, k: int = 1) -> Any:
    """X, and the predictions of few of its columns with noise."""
    rng = np.random.default_rng(seed)
    X = columns(n, d, rho, rng)
    W = np.zeros((d, k))
    W[rng.choice(d, active, replace=False)] = rng.standard_normal((active, k))
    signal = X @ W
    noise = rng.standard_normal((n, k))
    return X, signal + noise * np.linalg.norm(signal) / np.linalg.norm(noise) / snr


def largest(loss: Any, penalty: Callable[[float], Any]) -> float:
    """lambda_max."""
    return float(sj.lambda_max(sj.Problem(loss, penalty(1.0))))


def lasso(n: int, d: int, rho: float, part: float, active: int = 0, seed: int = 0) -> Case:
    """Beside celer."""
    from celer import Lasso  # noqa: PLC0415

    X, y = simulated(n, d, rho, active or d // 10, 3.0, seed)
    y, Xf = y[:, 0], np.asfortranarray(X)
    loss = sj.losses.SquaredLoss(X, y)
    a = largest(loss, sj.penalties.L1) * part

    def fit(tol: float) -> Any:
        return Lasso(alpha=a, fit_intercept=False, tol=tol, max_iter=1000).fit(Xf, y).coef_

    return Case(sj.Problem(loss, sj.penalties.L1(a)), "celer", fit)


def nonnegative(n: int, d: int, part: float, positive: bool = False, seed: int = 0) -> Case:
    """Least squares with W >= 0 and, unless part is 0, l1, beside skglm; ``positive``: X >= 0 too."""
    import skglm  # noqa: PLC0415

    X, y = simulated(n, d, 0.0, d // 10, 3.0, seed)
    X, y = np.abs(X) if positive else X, y[:, 0]
    Xf, loss = np.asfortranarray(X), sj.losses.SquaredLoss(X, y)
    form: Callable[[float], Any] = lambda a: sj.penalties.NonNegative()
    known = skglm.penalties.PositiveConstraint()
    a = 0.0
    if part:
        form = lambda a: sj.penalties.L1(a) + sj.penalties.NonNegative()
        a = largest(loss, form) * part
        known = skglm.penalties.L1(a, positive=True)

    def fit(tol: float) -> Any:
        solver = skglm.solvers.AndersonCD(tol=tol, fit_intercept=False)
        return solver.solve(Xf, y, skglm.datafits.Quadratic(), known)[0]

    return Case(sj.Problem(loss, form(a)), "skglm", fit)


def logistic(n: int, d: int, rho: float, part: float, active: int = 0, seed: int = 0) -> Case:
    """Beside skglm."""
    import skglm  # noqa: PLC0415

    X, h = simulated(n, d, rho, active or d // 10, 1.7, seed)
    y = np.sign(h[:, 0])
    Xf = np.asfortranarray(X)
    loss = sj.losses.LogisticLoss(X, (y + 1) / 2)
    a = largest(loss, sj.penalties.L1) * part

    def fit(tol: float) -> Any:
        solver = skglm.solvers.ProxNewton(tol=tol, fit_intercept=False, max_iter=100)
        return solver.solve(Xf, y, skglm.datafits.Logistic(), skglm.penalties.L1(a))[0]

    return Case(sj.Problem(loss, sj.penalties.L1(a)), "skglm", fit)


def rows(n: int, d: int, k: int, rho: float, part: float, seed: int = 0) -> Case:
    """l2,1 beside celer."""
    from celer.homotopy import mtl_path  # noqa: PLC0415

    X, Y = simulated(n, d, rho, max(d // 100, 5), 3.0, seed, k)
    Xf, Yf = np.asfortranarray(X), np.asfortranarray(Y)
    loss = sj.losses.SquaredLoss(X, Y)
    a = largest(loss, sj.penalties.L21) * part

    def fit(tol: float) -> Any:
        return mtl_path(Xf, Yf, alphas=np.array([a]), tol=tol, max_iter=1000)[1][:, :, 0].T

    return Case(sj.Problem(loss, sj.penalties.L21(a)), "celer", fit)


def grouped(n: int, d: int, size: int, rho: float, part: float, l1: float = 0.0, seed: int = 0) -> Case:
    """Group lasso, or with a share of l1 the sparse group lasso, beside skglm."""
    from skglm.datafits import QuadraticGroup  # noqa: PLC0415
    from skglm.penalties import WeightedGroupL2, WeightedL1GroupL2  # noqa: PLC0415
    from skglm.solvers import GroupBCD  # noqa: PLC0415
    from skglm.utils.data import grp_converter  # noqa: PLC0415

    X, y = simulated(n, d, rho, d // 20, 3.0, seed)
    y, Xf, count = y[:, 0], np.asfortranarray(X), d // size
    groups = sj.groups.from_labels(np.arange(d) // size)
    loss = sj.losses.SquaredLoss(X, y)
    weights = np.full(count, (1 - l1) * size**0.5)
    form: Callable[[float], Any] = lambda a: sj.penalties.GroupLasso(a * weights, groups)
    if l1:
        form = lambda a: sj.penalties.GroupLasso(a * weights, groups) + sj.penalties.L1(a * l1)
    a = largest(loss, form) * part
    indices, pointers = grp_converter(size, d)

    def fit(tol: float) -> Any:
        solver = GroupBCD(
            tol=tol, max_iter=1000, fit_intercept=False, ws_strategy="fixpoint" if l1 else "subdiff"
        )
        if l1:
            known = WeightedL1GroupL2(a, weights, np.full(d, l1), pointers, indices)
        else:
            known = WeightedGroupL2(a, weights, pointers, indices)
        return solver.solve(Xf, y, QuadraticGroup(pointers, indices), known)[0]

    return Case(sj.Problem(loss, form(a)), "skglm", fit)


def huber(n: int, d: int, part: float) -> Case:
    """Huber's loss with l1 beside skglm."""
    import skglm  # noqa: PLC0415

    X, y = simulated(n, d, 0.3, 10, 3.0, 0)
    y, Xf = y[:, 0], np.asfortranarray(X)
    loss = sj.losses.HuberLoss(X, y, delta=1.0)
    a = largest(loss, sj.penalties.L1) * part

    def fit(tol: float) -> Any:
        solver = skglm.solvers.AndersonCD(tol=tol, fit_intercept=False)
        return solver.solve(Xf, y, skglm.datafits.Huber(1.0), skglm.penalties.L1(a))[0]

    return Case(sj.Problem(loss, sj.penalties.L1(a)), "skglm", fit)


def elastic_net(n: int, d: int, part: float) -> Case:
    """Beside celer."""
    from celer import ElasticNet  # noqa: PLC0415

    X, y = simulated(n, d, 0.3, 20, 3.0, 0)
    y, Xf = y[:, 0], np.asfortranarray(X)
    loss, form = sj.losses.SquaredLoss(X, y), lambda a: sj.penalties.ElasticNet(a, 0.5)
    a = largest(loss, form) * part

    def fit(tol: float) -> Any:
        model = ElasticNet(alpha=a, l1_ratio=0.5, fit_intercept=False, tol=tol, max_iter=1000)
        return model.fit(Xf, y).coef_

    return Case(sj.Problem(loss, form(a)), "celer", fit)


def drawn() -> Iterator[tuple[str, Callable[[], Case]]]:
    """Twelve shapes by a seed."""
    rng = np.random.default_rng(32)
    for number in range(12):
        n, d = (int(round(10 ** rng.uniform(*ends), -1)) for ends in ((2.2, 3.2), (2.8, 3.8)))
        rho, part = round(float(rng.uniform(0, 0.8)), 2), round(float(10 ** rng.uniform(-2, -0.5)), 3)
        kind, make = (
            ("lasso", partial(lasso, n, d, rho, part, 0, 7)),
            ("logistic", partial(logistic, n, d, rho, part, 0, 7)),
            ("l2,1 k = 3", partial(rows, n, d, 3, rho, part, 7)),
            ("groups of 5", partial(grouped, n, d - d % 5, 5, rho, part, 0.0, 7)),
        )[number % 4]
        yield f"{kind} {n} x {d}, rho {rho}, x {part}", make


def cases() -> dict[str, dict[str, Callable[[], Case]]]:
    """By kind and name."""
    found: dict[str, dict[str, Callable[[], Case]]] = {
        kind: {} for kind in ("logistic", "lasso", "nonnegative", "rows", "groups", "losses")
    }
    for n, d, rho, parts in (
        (500, 2000, 0.6, (0.1, 0.05, 0.01)),
        (500, 5000, 0.6, (0.1, 0.05, 0.01)),
        (2000, 1000, 0.6, (0.1, 0.05, 0.01)),
        (450, 2200, 0.3, (0.1, 0.03)),
        (1800, 900, 0.3, (0.1,)),
        (400, 6000, 0.0, (0.1,)),
    ):
        for part in parts:
            name = f"logistic {n} x {d}, rho {rho}, x {part}"
            found["logistic"][name] = partial(logistic, n, d, rho, part)
    for n, d, rho, parts, active in (
        (500, 600, 0.6, (0.1, 0.05), 0),
        (500, 600, 0.0, (0.1, 0.05), 0),
        (480, 640, 0.6, (0.1,), 0),
        (900, 900, 0.3, (0.1,), 0),
        (150, 3000, 0.0, (1 / 3, 0.1, 0.01, 0.001), 15),
        (100, 10_000, 0.5, (0.1, 0.05), 20),
        (500, 300, 0.3, (0.1,), 0),
        (10_000, 100, 0.6, (0.1,), 0),
    ):
        for part in parts:
            name = f"lasso {n} x {d}, rho {rho}, x {part:.3g}"
            found["lasso"][name] = partial(lasso, n, d, rho, part, active)
    for n, d, positive in ((100, 10_000, False), (100, 10_000, True), (500, 600, False), (2000, 500, False)):
        for part in (0.0, 0.1, 0.01):
            name = f"W >= 0, {n} x {d}{', X >= 0' * positive}, x {part:.3g}"
            found["nonnegative"][name] = partial(nonnegative, n, d, part, positive)
    for n, d, k, rho in ((200, 4000, 3, 0.0), (300, 3000, 2, 0.5)):
        for part in (1 / 3, 0.1, 0.01):
            name = f"l2,1 {n} x {d}, k {k}, rho {rho}, x {part:.3g}"
            found["rows"][name] = partial(rows, n, d, k, rho, part)
    for part in (0.1, 0.01):
        for l1, kind in ((0.0, "groups"), (0.5, "sparse groups")):
            found["groups"][f"{kind} of 10, 1000 x 2000, x {part}"] = partial(
                grouped, 1000, 2000, 10, 0.3, part, l1
            )
    found["losses"] = {
        "Huber l1 500 x 200, x .05": partial(huber, 500, 200, 0.05),
        "Huber l1 500 x 2000, x .05": partial(huber, 500, 2000, 0.05),
        "elastic net 500 x 1000, x .05": partial(elastic_net, 500, 1000, 0.05),
    }
    return {**found, "drawn": dict(drawn())}


def excess(case: Case, W: Any, optimum: float) -> float:
    """Above the optimum, relative to the objective at 0."""
    W = jnp.asarray(W).reshape(case.problem.smooth.params_shape)
    return (float(case.problem(W)) - optimum) / abs(float(case.problem(jnp.zeros_like(W))))


def compared(name: str, case: Case, repeats: int) -> list[str]:
    """A row of the table."""
    best = sj.solve(case.problem, tol=1e-10)
    optimum = float(best.objective)
    good = [tol for tol in TOLERANCES if excess(case, case.fit(tol), optimum) <= TARGET]
    solve = jax.jit(lambda problem: sj.solve(problem, tol=1e-6))
    calls: dict[str, Callable[[], Any]] = {
        "ours": lambda: sj.solve(case.problem, tol=1e-6), "jitted": lambda: solve(case.problem),
    }  # fmt: skip
    if good:
        calls["peer"] = lambda: case.fit(good[0])
    times = in_turn(calls, repeats)
    ours = times["ours"].result
    size = jnp.linalg.norm(ours.params.reshape(ours.params.shape[0], -1), axis=1)
    row = [name, case.peer, ours.solver, str(ours.num_iters), str(int(jnp.sum(size > 0)))]
    row += [
        f"{excess(case, ours.params, optimum):.0e}",
        str(bool(ours.converged)),
        f"{1e3 * times['ours'].cpu:.2f}",
    ]
    row += [f"{1e3 * times['jitted'].cpu:.2f}"]
    if not good:
        return [*row, "not within 1e-6", "", ""]
    peer = times["peer"]
    return [
        *row,
        f"{1e3 * peer.cpu:.2f}",
        f"{peer.cpu / times['ours'].cpu:.2f}",
        f"{peer.over(times['ours']):.2f}",
    ]


def main() -> None:
    """Run the cases and write the table."""
    arguments = parser(__doc__, data=False, out="results/few_active.md")
    arguments.add_argument("--only", default="logistic,lasso,nonnegative,rows,groups,losses,drawn")
    arguments.add_argument("--repeats", type=int, default=7)
    arguments.add_argument("--threads", default="")
    arguments.add_argument("--match", default="", help=argparse.SUPPRESS)
    args = arguments.parse_args()
    titles = [
        "problem",
        "peer",
        "solver",
        "steps",
        "active",
        "above the optimum",
        "certified",
        "ours, ms",
        "jitted, ms",
    ]
    titles += ["peer, ms", "peer / ours", "on the clock"]
    found = cases()
    lines = []
    for kind in args.only.split(","):
        for name, make in found[kind].items():
            if args.match in name:
                lines.append(compared(name, make(), args.repeats))
                print(" | ".join(lines[-1]), flush=True)
    text = "# Few active features\n\n" + (__doc__ or "").split("\n\n")[2] + "\n\n" + table(titles, lines)
    (args.out / "results").mkdir(parents=True, exist_ok=True)
    (args.out / "results" / "few_active.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
