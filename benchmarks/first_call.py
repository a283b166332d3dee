"""What the first call in a new process costs, most of which is compilation.

    python benchmarks/first_call.py [--repeats 5] [--only NAME,NAME] [--fusions]

CPU seconds from the call to the finished answer, in float64 on a CPU, nothing compiled before and no cache
kept: medians over processes, the cases taken in turn, and their ratios over jaxopt's ``ProximalGradient``
with ``prox_group_lasso`` (maxiter=500, tol=1e-6, implicit_diff=False) on the same data. X has 400 rows and
64 columns (``wide``: 2000), ten outputs, an intercept; data and loss are made before the clock starts.
``fit`` is `models.exclusive_l21` with 1024 features and 40 classes. Cases of two words such as ``cox folds``
are one of `ONE_COLUMN` and a call: a solve, a solve inside the user's jit, an eager `jax.grad` of a solve, a
path of ten strengths, five folds of it. ``path`` has 20 strengths. ``--fusions`` counts instead what a
program consists of, as it is compiled inside a jit.
"""

import argparse
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from harness.jobs import parser
from harness.tables import Printed
from harness.timing import timed

import sparsejax as sj

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_enable_compilation_cache", False)


def data(d: int = 64, k: int = 10) -> tuple[Any, Any]:
    """X and Y of a linear model with 10 features that matter."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, d))
    return X, X[:, :10] @ rng.standard_normal((10, k)) + rng.standard_normal((400, k))


def ready(case: str) -> Callable[[], Any]:
    """The call of a case, with all that is not timed done."""
    wide = case.endswith("wide")
    X, Y = data(1024, 40) if "fit" in case else data(2000 if wide else 64)
    if case.startswith("jaxopt"):
        return _jaxopt(X, Y)
    if case in OTHER_CASES:
        return _called(*case.split())
    if case == "fit":
        labels = Y.argmax(axis=1)
        return lambda: sj.models.exclusive_l21.fit(X, labels, alpha=0.01, beta=0.01).solution
    logistic = case == "logistic"
    loss = (sj.losses.LogisticLoss if logistic else sj.losses.SquaredLoss)(
        X, (Y > 0).astype(float) if logistic else Y, intercept=True
    )
    l21 = sj.Problem(loss, sj.penalties.L21(0.1))
    exclusive = sj.Problem(loss, sj.penalties.ExclusiveL21(0.1, 0.05))
    if case.startswith("path"):
        alphas = np.geomspace(1.0, 0.1, 20)
        return lambda: sj.path(l21, jax.vmap(sj.penalties.L21)(alphas))
    if case == "gradient":
        norm = lambda a, b: jnp.sum(
            sj.solve(l21.replace(penalty=sj.penalties.ExclusiveL21(a, b))).params ** 2
        )
        return lambda: jax.grad(norm, (0, 1))(0.1, 0.05)
    return lambda: sj.solve(l21 if case.startswith("l21") else exclusive)


def _called(name: str, call: str) -> Callable[[], Any]:
    """A call on 300 rows of 600 columns; a sparse X has 5000 columns, 2 % of its entries are not 0."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 600))
    y = X[:, :5].sum(axis=1) + rng.standard_normal(300)
    S = scipy.sparse.random_array((300, 5000), density=0.02, rng=rng, format="csr")
    make, penalty = ONE_COLUMN[name]
    loss = make(S if "sparse" in name else X, y)
    problem = lambda strength: sj.Problem(loss, penalty(strength))
    top = float(sj.lambda_max(problem(1.0)))
    strengths = jax.vmap(penalty)(top * np.geomspace(0.9, 0.1, 10))
    calls = {
        "solve": lambda: sj.solve(problem(top / 5)),
        "jit": lambda: jax.jit(lambda strength: sj.solve(problem(strength)))(top / 5),
        "gradient": lambda: jax.grad(lambda a: jnp.sum(sj.solve(problem(a)).params ** 2))(top / 5),
        "path": lambda: sj.path(problem(1.0), strengths),
        "folds": lambda: sj.cross_validate(problem(1.0), strengths, folds=5),
    }
    return calls[call]


def _jaxopt(X: np.ndarray, Y: np.ndarray) -> Callable[[], Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import jaxopt  # noqa: PLC0415
    X, Y = jnp.asarray(X - X.mean(0)), jnp.asarray(Y - Y.mean(0))
    loss = lambda W, X, Y: 0.5 * jnp.mean(jnp.sum((X @ W - Y) ** 2, axis=1))
    solver = jaxopt.ProximalGradient(
        loss, jaxopt.prox.prox_group_lasso, maxiter=500, tol=1e-6, implicit_diff=False
    )
    W = jnp.zeros((X.shape[1], Y.shape[1]))
    return lambda: solver.run(W, hyperparams_prox=0.1, X=X, Y=Y)


LOSSES, PENALTIES = sj.losses, sj.penalties
ONE_COLUMN = {
    "lasso": (lambda X, y: LOSSES.SquaredLoss(X, y, intercept=True), PENALTIES.L1),
    "l1-logistic": (lambda X, y: LOSSES.LogisticLoss(X, y > 0, intercept=True), PENALTIES.L1),
    "cox": (lambda X, y: LOSSES.CoxLoss(X, np.exp(-y), y > -1), PENALTIES.L1),
    "sparse-lasso": (lambda X, y: LOSSES.SquaredLoss(X, y, intercept=True), PENALTIES.L1),
    "sparse-softmax": (
        lambda X, y: LOSSES.SoftmaxLoss(X, np.eye(3)[np.digitize(y, [-1, 1])], intercept=True),
        PENALTIES.L21,
    ),
}
OTHER_CASES = tuple(
    f"{name} {call}"
    for name, calls in {
        "lasso": "solve jit gradient path folds",
        "l1-logistic": "solve jit path folds",
        "cox": "solve path folds",
        "sparse-lasso": "solve path folds",
        "sparse-softmax": "solve path",
    }.items()
    for call in calls.split()
)
CASES = (
    "jaxopt",
    "l21",
    "exclusive",
    "logistic",
    "gradient",
    "path",
    "fit",
    "jaxopt wide",
    "l21 wide",
    "path wide",
    "jaxopt fit",
    *OTHER_CASES,
)


def fusions() -> None:
    """Kernels, loops and seconds of compilation of the solvers' programs."""
    printed = Printed(
        ("case", "<12"), ("fusions", ">9"), ("loops", ">7"), ("trace s", ">9.2f"), ("compile s", ">11.2f")
    )
    for case in ("l21", "exclusive", "logistic", "gradient", "path"):
        start = time.process_time()
        lowered = jax.jit(ready(case)).lower()
        traced = time.process_time()
        text = lowered.compile().as_text()
        count = [len(re.findall(pattern, text)) for pattern in (r"= .* fusion\(", r" while\(")]
        printed.row(case, *count, traced - start, time.process_time() - traced)


def main() -> None:
    """All cases in turn."""
    found = parser(__doc__, data=False)
    found.add_argument("--repeats", type=int, default=5)
    found.add_argument("--only", default=",".join(CASES))
    found.add_argument("--fusions", action="store_true")
    found.add_argument("--case", help=argparse.SUPPRESS)
    args = found.parse_args()
    if args.case:
        print(timed(ready(args.case)).cpu)
        return
    if args.fusions:
        fusions()
        return
    chosen = [case for case in CASES if case in args.only.split(",") or case.startswith("jaxopt")]
    seconds: dict[str, list[float]] = {case: [] for case in chosen}
    for _ in range(args.repeats):
        for case in chosen:
            command = [sys.executable, __file__, "--case", case]
            done = subprocess.run(
                command,
                check=True,
                capture_output=True,
                text=True,
                env={"JAX_PLATFORMS": "cpu", **os.environ},
            )
            seconds[case].append(float(done.stdout.split()[-1]))
    printed = Printed(("case", "<20"), ("CPU s", ">8.2f"), ("over jaxopt", ">13.2f"))
    for case, times in seconds.items():
        middle = float(np.median(times))
        kind = case.split()[-1]
        base = float(np.median(seconds[f"jaxopt {kind}" if kind in ("wide", "fit") else "jaxopt"]))
        printed.row(case, middle, middle / base)


if __name__ == "__main__":
    main()
