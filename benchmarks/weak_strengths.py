"""Losses that are not quadratic, from moderate to weak strengths: what `solve` takes, and the engines.

    python benchmarks/weak_strengths.py --data DIR [--only cancer,digits,glioma,poisson] [--threads 1]

CPU seconds to a certified gap (Poisson, a plain function, with norms: residual) of 1e-6 in float64, compiled:
medians of three. ``first`` is the first call, at the largest strength, compilation included. The engines are
within a jit, where they hand over to nobody, and have 3000 iterations: a dash where these are not enough, and
from there on.

**cancer**: scikit-learn's breast cancer, 569 x 30, k 2. **digits**: 1797 x 64, k 10. **glioma**: 50 x 4434,
k 4. Logistic, one-hot, with an intercept, columns standardised. **poisson**: made, 500 x 50, half of the
features nearly copies of the others.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from harness.data import folder, load_standardised
from harness.jobs import parser
from harness.tables import Printed
from harness.timing import timed
from sklearn.datasets import load_breast_cancer, load_digits
from wide import ONE_THREAD

import sparsejax as sj
from sparsejax.driver import OPTIONS

jax.config.update("jax_enable_x64", True)
warnings.filterwarnings("ignore")

RATIOS = (10, 100, 1000, 10_000)
ENGINES = 3000  # iterations
PENALTIES: dict[str, Callable[[Any], Any]] = {
    "L21": sj.penalties.L21,
    "L1": sj.penalties.L1,
    "ExclusiveL21": lambda s: sj.penalties.ExclusiveL21(s, s),
}
SOLVERS = ("solve", "newton_admm", "admm", "fista")


def _one_hot(X: Any, y: Any) -> Any:
    spread = np.where(X.std(0) > 0, X.std(0), 1)
    labels = (y[:, None] == np.unique(y)[None]).astype(float)
    return sj.losses.LogisticLoss((X - X.mean(0)) / spread, labels, intercept=True)


def _glioma(args: argparse.Namespace) -> Any:
    X, Y = load_standardised(folder(args.data), "glioma")
    return sj.losses.LogisticLoss(X, (Y > 0).astype(float), intercept=True)


def _poisson(args: argparse.Namespace) -> Any:
    rng = np.random.default_rng(0)
    half = rng.standard_normal((500, 25))
    X = np.concatenate([half, half + 0.05 * rng.standard_normal(half.shape)], axis=1)
    y = rng.poisson(np.exp(X[:, :8] @ (0.3 * rng.standard_normal((8, 1))))).astype(float)

    def value(X: Any, y: Any, W: Any) -> Any:
        H = X @ W
        return jnp.mean(jnp.exp(H) - y * H)

    return jax.tree_util.Partial(value, X, y)


DATA: dict[str, Callable[[argparse.Namespace], Any]] = {
    "cancer": lambda args: _one_hot(*load_breast_cancer(return_X_y=True)),
    "digits": lambda args: _one_hot(*load_digits(return_X_y=True)),
    "glioma": _glioma,
    "poisson": _poisson,
}


def measured(problems: list[Any], init: Any, solver: str) -> tuple[float, list[float | None]]:
    """The first call of the first problem, and the medians of each of them; None from a failure on."""
    jax.clear_caches()
    function = getattr(sj, solver)
    if solver in ("admm", "fista"):
        function = jax.jit(
            lambda problem, init, f=function: f(problem, init, maxiter=ENGINES), compiler_options=OPTIONS
        )
    first, seconds = timed(lambda: function(problems[0], init)), list[float | None]()
    for problem in problems:
        once = timed(lambda p=problem: function(p, init))
        if not once.result.converged:
            break
        times = [timed(lambda p=problem: function(p, init)).cpu for _ in range(3 if once.cpu < 3 else 1)]
        seconds.append(float(np.median(times)))
    return first.cpu, seconds + [None] * (len(problems) - len(seconds))


def main() -> None:
    """Print the table."""
    found = parser(__doc__)
    found.add_argument("--only", default=",".join(DATA))
    found.add_argument("--solvers", default=",".join(SOLVERS))
    found.add_argument("--threads", choices=["1"])
    args = found.parse_args()
    if args.threads and os.environ.get("OMP_NUM_THREADS") != "1":
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ONE_THREAD)
    strengths = ((f"max/{ratio}", ">11.3f") for ratio in RATIOS)
    printed = Printed(("data", "<9"), ("penalty", "<14"), ("solver", "<13"), ("first", ">6.2f"), *strengths)
    for name in args.only.split(","):
        loss = DATA[name](args)
        init = np.zeros((50, 1)) if name == "poisson" else None
        for kind, make in PENALTIES.items():
            base = sj.penalties.L1(1.0) if kind == "L1" else sj.penalties.L21(1.0)
            top = float(sj.lambda_max(sj.Problem(loss, base), init))
            problems = [sj.Problem(loss, make(jnp.asarray(top / ratio))) for ratio in RATIOS]
            for solver in args.solvers.split(","):
                if solver == "admm" and name == "poisson":
                    continue
                first, seconds = measured(problems, init, solver)
                printed.row(name, kind, solver, first, *seconds)


if __name__ == "__main__":
    main()
