"""The same objective by the library that a user would pick: objectives, times, first calls.

    python benchmarks/neighbours.py --out DIR

Generated data, float64. Each pair solves one problem: ours to a certified gap of 1e-6; the peer at the
loosest of its tolerances (1e-3, 1e-4, ...) at which its objective is within 1e-6 of the optimum, relative to
the objective at 0. Warm: medians of five calls in turn. Cold: the first call of each, ours with compilation
(and numba's for skglm), in a process of its own.

Writes ``DIR/results/neighbours.md``.
"""

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
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
TOLERANCES = [10.0**-k for k in range(3, 13)]
TARGET = 1e-6


class Pair(NamedTuple):
    """One problem and what else solves it."""

    problem: sj.Problem
    peer: str
    fit: Callable[[float], Any]  # tolerance -> W


def data(n: int, d: int, nonzero: int) -> tuple[np.ndarray, np.ndarray]:
    """Correlated columns of variance 1, and what a model of few of them says."""
    rng = np.random.default_rng(0)
    common = rng.standard_normal((n, 20)) @ rng.standard_normal((20, d)) / 20**0.5
    X = rng.standard_normal((n, d)) + 0.7 * common
    X = (X - X.mean(0)) / X.std(0)
    w = np.zeros(d)
    w[rng.choice(d, nonzero, replace=False)] = rng.standard_normal(nonzero)
    return X, X @ w


def strength(loss: Any, penalty: Callable[[float], Any], part: float) -> float:
    """The part of lambda_max."""
    return float(sj.lambda_max(sj.Problem(loss, penalty(1.0)))) / part


def elastic_net() -> Pair:
    """scikit-learn."""
    from sklearn.linear_model import ElasticNet  # noqa: PLC0415

    X, h = data(500, 1000, 20)
    y = h + np.random.default_rng(1).standard_normal(500)
    loss, penalty = sj.losses.SquaredLoss(X, y), lambda a: sj.penalties.ElasticNet(a, 0.5)
    a = strength(loss, penalty, 20)

    def fit(tol: float) -> Any:
        return ElasticNet(alpha=a, l1_ratio=0.5, tol=tol, max_iter=10**6, fit_intercept=False).fit(X, y).coef_

    return Pair(sj.Problem(loss, penalty(a)), "scikit-learn", fit)


def multinomial() -> Pair:
    """scikit-learn's saga, the only one of its solvers for l1 and several classes at once."""
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    X, h = data(400, 200, 10)
    classes = np.digitize(h, np.quantile(h, [0.33, 0.67]))
    loss = sj.losses.SoftmaxLoss(X, np.eye(3)[classes])
    a = strength(loss, sj.penalties.L1, 10)

    def fit(tol: float) -> Any:
        model = LogisticRegression(
            C=1 / (400 * a), l1_ratio=1.0, solver="saga", tol=tol, max_iter=10**5, fit_intercept=False
        )
        return model.fit(X, classes).coef_.T

    return Pair(sj.Problem(loss, sj.penalties.L1(a)), "scikit-learn", fit)


def sparse_group() -> Pair:
    """skglm's block coordinate descent."""
    from skglm.datafits import QuadraticGroup  # noqa: PLC0415
    from skglm.penalties import WeightedL1GroupL2  # noqa: PLC0415
    from skglm.solvers import GroupBCD  # noqa: PLC0415
    from skglm.utils.data import grp_converter  # noqa: PLC0415

    n, d, size = 200, 1000, 5
    X, h = data(n, d, 20)
    y = h + np.random.default_rng(1).standard_normal(n)
    groups = sj.groups.from_labels(np.arange(d) // size)
    loss, penalty = sj.losses.SquaredLoss(X, y), lambda a: sj.penalties.SparseGroupLasso(a, 0.3, groups)
    a = strength(loss, penalty, 10)
    indices, pointers = grp_converter(size, d)
    Xf = np.asfortranarray(X)

    def fit(tol: float) -> Any:
        datafit = QuadraticGroup(pointers, indices)
        l2, l1 = np.full(d // size, 0.7 * size**0.5), np.full(d, 0.3)
        known = WeightedL1GroupL2(a, l2, l1, pointers, indices)
        solver = GroupBCD(tol=tol, max_iter=1000, fit_intercept=False, ws_strategy="fixpoint")
        return solver.solve(Xf, y, datafit, known)[0]

    return Pair(sj.Problem(loss, penalty(a)), "skglm", fit)


def by_skglm(
    loss: Any, datafit: str, options: dict[str, Any], part: float, solver: str = "AndersonCD"
) -> Pair:
    """A lasso with another loss."""
    import skglm  # noqa: PLC0415

    X, y = np.asfortranarray(loss.X), np.asarray(loss.Y)
    a = strength(loss, sj.penalties.L1, part)

    def fit(tol: float) -> Any:
        known = getattr(skglm.datafits, datafit)(**options)
        how = getattr(skglm.solvers, solver)(tol=tol, fit_intercept=False)
        return how.solve(X, y, known, skglm.penalties.L1(a))[0]

    return Pair(sj.Problem(loss, sj.penalties.L1(a)), "skglm", fit)


def huber() -> Pair:
    """skglm."""
    X, h = data(500, 200, 10)
    y = h + np.random.default_rng(1).standard_t(2, 500)
    return by_skglm(sj.losses.HuberLoss(X, y, delta=1.0), "Huber", {"delta": 1.0}, 20)


def poisson() -> Pair:
    """skglm's prox-Newton."""
    X, h = data(500, 200, 10)
    y = np.random.default_rng(1).poisson(np.exp(0.3 * h / h.std()))
    return by_skglm(sj.losses.PoissonLoss(X, y.astype(float)), "Poisson", {}, 20, "ProxNewton")


PAIRS = {
    "elastic net, 500 x 1000": elastic_net,
    "multinomial l1, 400 x 200, 3 classes": multinomial,
    "sparse group lasso, 200 x 1000": sparse_group,
    "Huber l1, 500 x 200": huber,
    "Poisson l1, 500 x 200": poisson,
}


def excess(pair: Pair, W: Any, optimum: float) -> float:
    """Above the optimum, relative to the objective at 0."""
    W = jnp.asarray(W).reshape(pair.problem.smooth.params_shape)
    at_zero = float(pair.problem(jnp.zeros_like(W)))
    if isinstance(pair.problem.smooth, sj.losses.SoftmaxLoss):
        W = W - jnp.median(W, axis=1, keepdims=True)  # what l1 makes of classes that are free to shift
    return (float(pair.problem(W)) - optimum) / abs(at_zero)


def compared(name: str) -> list[str]:
    """A row of the table."""
    pair = PAIRS[name]()
    best = sj.solve(pair.problem, tol=1e-12)
    optimum = float(best.objective)
    good = [tol for tol in TOLERANCES if excess(pair, pair.fit(tol), optimum) <= TARGET]
    calls: dict[str, Callable[[], Any]] = {"ours": lambda: sj.solve(pair.problem)}
    if good:
        calls["peer"] = lambda: pair.fit(good[0])
    times = in_turn(calls, 5)
    ours = times["ours"]
    cold = {who: first(name, who, good[0] if good else 0.0) for who in calls}
    row = [name, pair.peer, f"{optimum:.8g}", f"{excess(pair, ours.result.params, optimum):.1e}"]
    if not good:
        return [*row, "not within 1e-6", f"{ours.cpu:.4f}", "", "", f"{cold['ours']:.1f}", ""]
    peer = times["peer"]
    row += [f"{excess(pair, peer.result, optimum):.1e}", f"{ours.cpu:.4f}", f"{peer.cpu:.4f}"]
    return [*row, f"{peer.cpu / ours.cpu:.2f}", f"{cold['ours']:.1f}", f"{cold['peer']:.1f}"]


def first(name: str, who: str, tol: float) -> float:
    """CPU seconds of a first call, in a process of its own."""
    command = [sys.executable, __file__, "--out", ".", "--first", json.dumps([name, who, tol])]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Run the pairs and write the table."""
    arguments = parser(__doc__, data=False, out="results/neighbours.md")
    arguments.add_argument("--first", type=json.loads, help=argparse.SUPPRESS)
    args = arguments.parse_args()
    if args.first:
        name, who, tol = args.first
        pair = PAIRS[name]()
        before = time.process_time()
        jax.block_until_ready(sj.solve(pair.problem) if who == "ours" else pair.fit(tol))
        print(time.process_time() - before)
        return
    titles = ["problem", "peer", "optimum", "ours above it", "peer above it", "ours, CPU s", "peer, CPU s"]
    titles += ["peer / ours", "ours, first", "peer, first"]
    rows = [compared(name) for name in PAIRS]
    text = "# The same objective by other libraries\n\n" + __doc__.split("\n\n")[2] + "\n\n"
    text += table(titles, rows)
    print(text)
    (args.out / "results").mkdir(parents=True, exist_ok=True)
    (args.out / "results" / "neighbours.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
