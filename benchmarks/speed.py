"""Iterations and time to a certified gap, and what one iteration costs beyond its matrix products.

    python benchmarks/speed.py --data DIR [--datasets yale,glioma,isolet] [--only gap|iteration] [--repeats 5]
                               [--sketch FILE]

Columns standardised, one-hot Y centred, float64, compiled before timing; medians of several runs,
solvers taken in turn so that a busy machine slows all alike.

**gap**: l2,1 at alpha_max/10 and /100 (loss scale 1/(2n)); exclusive l2,1 at alpha = beta = 1 and
alpha_max/10 (loss scale 1, as in Ming & Ding, IJCAI 2019). ``--sketch`` names a Python file with functions
``l21(x, y, alpha, tol) -> (W, steps, gap)`` for the loss scale 1/(2n) and ``exclusive_l21(x, y, alpha, beta,
tol) -> (W, rho, steps, gap)`` for the loss scale 1/2, to be run beside ours. FISTA is limited to 5000
iterations and shown with the gap it reached.
**iteration**: seconds of an iteration of the engine, with its share of certificates (the gap is looked at
every ten) and changes of rho, over those of its two matrix products alone, which run in turn with it. Both
are differences of two calls over the difference of their iterations, so that compilation, decomposition and
the certificates at the start and at the end cancel. The calls of the engine are warm paths of ``PATH`` solves
(``tol=0``, ``maxiter`` 10 and 60) over two strengths by turns, so that none is ever done.
"""

import argparse
import importlib.util
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from harness.data import folder, load_standardised
from harness.jobs import parser
from harness.tables import Printed
from harness.timing import in_turn, per_step

import sparsejax as sj

jax.config.update("jax_enable_x64", True)

SIZES = [(1560, 617, 26), (600, 500, 10), (1000, 1000, 20), (500, 1000, 10), (600, 2000, 20)]
PATH = 20


def cases(names: list[str], path: Path) -> Iterator[tuple[str, sj.Problem, str, tuple]]:
    """Label, problem, and the function of the sketch with its arguments, for every instance."""
    for name in names:
        X, Y = map(jnp.asarray, load_standardised(path, name))
        loss = sj.losses.SquaredLoss(X, Y)
        top = float(sj.lambda_max(sj.Problem(loss, sj.penalties.L21(1.0))))
        for part in (10, 100):
            problem = sj.Problem(loss, sj.penalties.L21(top / part))
            yield f"l2,1 {name} /{part}", problem, "l21", (X, Y, top / part)
        loss = sj.losses.SquaredLoss(X, Y, scale=1.0)
        top = float(sj.lambda_max(sj.Problem(loss, sj.penalties.L21(1.0))))
        for label, value in (("1", 1.0), ("max/10", top / 10)):
            problem = sj.Problem(loss, sj.penalties.ExclusiveL21(value, value))
            yield f"ex2,1 {name} {label}", problem, "exclusive_l21", (X, Y, value / 2, value / 2)


def to_a_gap(args: argparse.Namespace) -> None:
    """Seconds, steps and gap of `solve` and FISTA, and of the sketch."""
    sketch = module(args.sketch) if args.sketch else None
    rest = [("steps", ">7"), ("gap", ">9.0e")]
    ours, fista = [("solve s", ">10.3f"), *rest], [("fista s", ">10.3f"), *rest]
    theirs = [("sketch s", ">10.3f"), ("steps", ">7"), ("over ours", ">11.1f")] if sketch else []
    printed = Printed(("instance", "<22"), ("tol", ">7.0e"), *ours, *fista, *theirs)
    for label, problem, kind, data in cases(args.datasets.split(","), folder(args.data)):
        for tol in (1e-6, 1e-9):
            calls = {"solve": partial(sj.solve, problem, tol=tol)}
            if sketch:
                calls["sketch"] = partial(getattr(sketch, kind), *data, tol)
            found = in_turn(calls, args.repeats)
            found |= in_turn({"fista": partial(sj.fista, problem, tol=tol, maxiter=5000)}, 1)
            cells: list[Any] = [label, tol]
            for name in ("solve", "fista"):
                solution = found[name].result
                cells += [found[name].seconds, int(solution.num_iters), float(solution.gap)]
            if sketch:
                other = found["sketch"]
                cells += [other.seconds, int(other.result[-2]), other.over(found["solve"])]
            printed.row(*cells)


def module(path: str) -> ModuleType:
    """The Python file of another implementation."""
    spec = importlib.util.spec_from_file_location("sketch", path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def one_iteration(args: argparse.Namespace) -> None:
    """An iteration over its matrix products."""
    printed = Printed(("instance", "<38"), ("products", ">12"), ("iteration", ">10.2f"))
    rng = np.random.default_rng(0)
    for n, d, k in SIZES:
        loss, basis = instance(rng, n, d, k)
        top = float(sj.lambda_max(sj.Problem(loss, sj.penalties.L21(1.0))))
        for name, make in (
            ("l2,1", sj.penalties.L21),
            ("exclusive l2,1", lambda alpha: sj.penalties.ExclusiveL21(alpha, alpha)),
        ):
            strengths = jax.vmap(make)(jnp.tile(jnp.array([top / 1e3, top / 2e3]), PATH // 2))
            path = partial(engine_path, loss, strengths)
            product = partial(products, basis=basis, k=k)
            few, many, few_products, many_products = in_turn(
                {
                    "10": partial(path, maxiter=10),
                    "60": partial(path, maxiter=60),
                    "50 products": jax.jit(partial(product, 50)),
                    "550 products": jax.jit(partial(product, 550)),
                },
                args.repeats,
            ).values()
            steps = int(many.result.num_iters.sum() - few.result.num_iters.sum())
            alone = per_step(few_products, many_products, 500)
            ratio = per_step(few, many, steps) / alone
            printed.row(f"{name}, n {n}, d {d}, k {k}", f"{alone * 1e6:.0f} us", ratio)


@jax.jit
def engine_path(loss: sj.losses.SquaredLoss, penalties: Any, maxiter: int) -> sj.Solution:
    """The engine on one penalty after the other, whatever `sparsejax.path` would take."""

    def step(W: jax.Array, penalty: Any) -> tuple[jax.Array, sj.Solution]:
        solution = sj.admm(sj.Problem(loss, penalty), W, tol=0, maxiter=maxiter)
        return solution.params, solution

    return jax.lax.scan(step, jnp.zeros(loss.params_shape), penalties)[1]


def instance(rng: np.random.Generator, n: int, d: int, k: int) -> tuple[sj.losses.SquaredLoss, jax.Array]:
    """A loss whose singular values range over four decades, so that solves take a while; its eigenvectors."""
    side = min(n, d)
    left, _ = np.linalg.qr(rng.standard_normal((n, side)))
    right, _ = np.linalg.qr(rng.standard_normal((d, side)))
    X = np.sqrt(n) * (left * np.geomspace(10, 1e-3, side)) @ right.T
    Y = X[:, :20] @ rng.standard_normal((20, k)) + rng.standard_normal((n, k))
    return sj.losses.SquaredLoss(X, Y), jnp.asarray(right.T)


def products(count: int, basis: jax.Array, k: int) -> jax.Array:
    """The matrix products of ``count`` iterations, to the eigenbasis and back."""
    step = lambda _, W: (W @ basis.T) @ basis
    return jax.lax.fori_loop(0, count, step, jnp.ones((k, basis.shape[1])))


def main() -> None:
    """Print both tables."""
    options = parser(__doc__)
    options.add_argument("--datasets", default="yale,glioma,isolet")
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--sketch", help="Python file of another implementation")
    options.add_argument("--only", choices=["gap", "iteration"])
    args = options.parse_args()
    if args.only != "iteration":
        to_a_gap(args)
    if args.only != "gap":
        one_iteration(args)


if __name__ == "__main__":
    main()
