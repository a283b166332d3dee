"""What a solve costs inside jit, vmap, scan, grad: beside the same solves called eagerly.

    python benchmarks/transformations.py [--data DIR] [--only batches,first,gradients,layer] [--repeats 5]

CPU seconds of the process (``--threads 1``: of one thread of XLA and of BLAS), float64, medians of calls
taken in turn; a first call is one in a process of its own, nothing compiled before and no cache kept. Data
are drawn by a seed: X normal, 10 features that matter, noise .5. With ``--data`` glioma (50 x 4434, 4
classes) is there too.

**batches**: several strengths as an eager loop, `jax.jit` of `jax.vmap`, of `lax.map`, of `lax.scan`, and as
`sparsejax.path`; 100 bootstraps by weights; dictionary learning (10 steps of a scan with a gradient in X; 256
lanes of one problem each, beside one problem of 256 columns and jaxopt's vmap). **first**: first calls,
eager, jitted, vmapped over 3 strengths, the gradient in the strength, and that jitted. **gradients**: value
and gradient over the value alone, eager and jitted; `jit(vmap(grad))` of 3 over three. **layer**: 300 steps
of SGD through a layer of 64 lanes; steps whose gradient was not finite.
"""

import argparse
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

if "--threads" in sys.argv and sys.argv[sys.argv.index("--threads") + 1] == "1":
    for name in ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"

import jax
import jax.numpy as jnp
import numpy as np
from harness.data import folder, load_standardised
from harness.jobs import parser
from harness.tables import Printed
from harness.timing import timed
from jax import lax

import sparsejax as sj
from sparsejax import groups, losses, penalties

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_enable_compilation_cache", False)

Case = tuple[Any, Callable[[Any], Any], float]  # the loss, the penalty of a strength, lambda_max


def draw(n: int, d: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """X and the numbers H that a linear model of 10 features gives."""
    rng = np.random.default_rng(0)
    X, W = rng.standard_normal((n, d)), np.zeros((d, k))
    W[:10] = rng.standard_normal((10, k))
    return X, X @ W + 0.5 * rng.standard_normal((n, k))


def case(kind: str, n: int, d: int, k: int = 4) -> Case:
    """A problem of this kind on data of this shape."""
    X, H = draw(n, d, k)
    labels = np.eye(3)[np.argmax(H[:, :3] if k > 2 else np.hstack([H, -H, 0 * H]), axis=1)]
    one = {
        "l1": lambda: (losses.SquaredLoss(X, H[:, 0]), penalties.L1),
        "l21": lambda: (losses.SquaredLoss(X, H), penalties.L21),
        "exclusive": lambda: (losses.SquaredLoss(X, H), lambda a: penalties.ExclusiveL21(a, 0.1 * a)),
        "logistic": lambda: (losses.LogisticLoss(X, (H[:, 0] > 0).astype(float)), penalties.L1),
        "softmax": lambda: (losses.SoftmaxLoss(X, labels), penalties.L21),
        "poisson": lambda: (losses.PoissonLoss(X, np.round(np.abs(H[:, 0]))), penalties.L1),
        "cox": lambda: (
            losses.CoxLoss(X, np.exp(H[:, 0] / 4), np.arange(n) % 3 != 0),
            lambda a: penalties.ElasticNet(a, 0.1 * a),
        ),
        "group lasso": lambda: (losses.SquaredLoss(X, H[:, 0]), group_lasso(d)),
    }
    loss, penalty = one[kind]()
    return loss, penalty, float(sj.lambda_max(sj.Problem(loss, penalty(1.0))))


def group_lasso(d: int) -> Callable[[Any], Any]:
    """Groups of ten features."""
    found = groups.from_labels(np.arange(d) // 10)
    return lambda a: penalties.GroupLasso(a, found)


def glioma(kind: str, path: Any) -> Case:
    """The same kinds on the real set."""
    X, Y = load_standardised(path, "glioma")
    one = {
        "logistic": lambda: (losses.LogisticLoss(X, (Y[:, 0] > 0).astype(float)), penalties.L1),
        "group lasso": lambda: (losses.SquaredLoss(X, Y[:, 0]), group_lasso(X.shape[1])),
        "exclusive": lambda: (losses.SquaredLoss(X, Y), lambda a: penalties.ExclusiveL21(a, 0.1 * a)),
        "l21": lambda: (losses.SquaredLoss(X, Y), penalties.L21),
    }
    loss, penalty = one[kind]()
    return loss, penalty, float(sj.lambda_max(sj.Problem(loss, penalty(1.0))))


def medians(calls: dict[str, Callable[[], Any]], repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """CPU seconds of each call, in turn, and of its first call."""
    first = {name: timed(call).cpu for name, call in calls.items()}
    rounds = [{name: timed(call).cpu for name, call in calls.items()} for _ in range(repeats)]
    return {name: float(np.median([r[name] for r in rounds])) for name in calls}, first


# ---------------------------------------------------------------- batches


def batches(args: argparse.Namespace) -> None:
    """Several problems at once."""
    names = ("jit(vmap)", "jit(lax.map)", "jit(scan)", "path")
    columns = [(name, ">14") for name in names]
    printed = Printed(
        ("strengths, over the eager loop", "<40"), ("eager s", ">9.4f"), *columns, ("worst gap", ">11.0e")
    )
    cases: dict[str, tuple[Callable[[], Case], int]] = {
        "l2,1 171 x 5748 x 4, 20": (partial(case, "l21", 171, 5748), 20),
        "least squares l1 40 x 600, 3": (partial(case, "l1", 40, 600), 3),
        "l2,1 40 x 600 x 4, 3": (partial(case, "l21", 40, 600), 3),
        "logistic l1 40 x 600, 3": (partial(case, "logistic", 40, 600), 3),
    }
    if args.data or os.environ.get("SPARSEJAX_DATA"):
        path = folder(args.data)
        for kind in ("l21", "logistic", "group lasso", "exclusive"):
            for count in (3, 50):
                cases[f"{kind} glioma, {count}"] = (partial(glioma, kind, path), count)
    for name, (make, count) in cases.items():
        strengths(printed, name, make(), count, args.repeats)
    bootstraps(args.repeats)
    dictionary(args.repeats)


def strengths(printed: Printed, name: str, problem: Case, count: int, repeats: int) -> None:
    """A row: the same strengths in five ways."""
    loss, penalty, top = problem
    alphas = jnp.asarray(top * np.geomspace(0.9, 0.01, count))
    one = lambda a: sj.solve(sj.Problem(loss, penalty(a)))
    ways = {
        "eager": lambda: [one(a) for a in alphas],
        "jit(vmap)": partial(jax.jit(jax.vmap(one)), alphas),
        "jit(lax.map)": partial(jax.jit(partial(lax.map, one)), alphas),
        "jit(scan)": partial(jax.jit(lambda a: lax.scan(lambda c, x: (c, one(x)), 0, a)[1]), alphas),
        "path": lambda: sj.path(sj.Problem(loss, penalty(1.0)), jax.vmap(penalty)(alphas)),
    }
    found, first = medians(ways, repeats)
    eager = found["eager"]
    cells = [f"{found[way] / eager:.2f} ({first[way]:.1f} s)" for way in list(ways)[1:]]
    printed.row(name, eager, *cells, float(jnp.max(ways["jit(vmap)"]().gap)))


def bootstraps(repeats: int) -> None:
    """Logistic 200 x 50, 100 bootstraps by weights."""
    X, H = draw(200, 50, 1)
    y = (H[:, 0] > 0).astype(float)
    W = np.random.default_rng(1).multinomial(200, np.full(200, 1 / 200), 100).astype(float)
    alpha = 0.05 * float(sj.lambda_max(sj.Problem(losses.LogisticLoss(X, y), penalties.L1(1.0))))
    one = lambda w: sj.solve(sj.Problem(losses.LogisticLoss(X, y, weights=w), penalties.L1(alpha)))
    ways = {
        "eager loop": lambda: [one(w) for w in jnp.asarray(W)],
        "jit(lax.map)": partial(jax.jit(partial(lax.map, one)), W),
        "jit(vmap)": partial(jax.jit(jax.vmap(one)), W),
    }
    found, _ = medians(ways, repeats)
    print("\n100 bootstraps, CPU s:", ", ".join(f"{name} {value:.3f}" for name, value in found.items()))


def dictionary(repeats: int) -> None:
    """256 targets of one X of 64 x 128, a scan of ten steps with the gradient in X."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((64, 128)) / 8
    codes = rng.standard_normal((256, 128)) * (rng.random((256, 128)) < 0.05)
    targets = jnp.asarray(codes @ X.T + 0.05 * rng.standard_normal((256, 64)))
    start = jnp.asarray(X + 0.02 * rng.standard_normal(X.shape))
    alpha = 0.1 * float(sj.lambda_max(sj.Problem(losses.SquaredLoss(X, targets.T), penalties.L1(1.0))))

    def lanes(X: jax.Array) -> jax.Array:
        code = lambda y: sj.solve(sj.Problem(losses.SquaredLoss(X, y), penalties.L1(alpha)), tol=1e-6).params
        return jnp.sum((targets - jax.vmap(code)(targets) @ X.T) ** 2)

    def columns(X: jax.Array) -> jax.Array:
        found = sj.solve(sj.Problem(losses.SquaredLoss(X, targets.T), penalties.L1(alpha)), tol=1e-6).params
        return jnp.sum((targets.T - X @ found) ** 2)

    def steps(loss: Callable[[jax.Array], jax.Array]) -> Callable[[], Any]:
        step = lambda X, _: (X - 1e-4 * jax.grad(loss)(X), loss(X))
        return partial(jax.jit(lambda X: lax.scan(step, X, length=10)), start)

    ways = {"jit(vmap)": steps(lanes), "256 columns": steps(columns)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import jaxopt  # noqa: PLC0415
    squares = lambda w, X, y: 0.5 * jnp.mean((X @ w - y) ** 2)
    solver = jaxopt.ProximalGradient(squares, jaxopt.prox.prox_lasso, maxiter=5000, tol=1e-5)

    def theirs(X: jax.Array) -> jax.Array:
        code = lambda y: solver.run(jnp.zeros(128), hyperparams_prox=alpha, X=X, y=y).params
        return jnp.sum((targets - jax.vmap(code)(targets) @ X.T) ** 2)

    ways["jaxopt's vmap, 1e-5"] = steps(theirs)
    found, _ = medians(ways, repeats)
    print("dictionary, CPU s:", ", ".join(f"{name} {value:.2f}" for name, value in found.items()))


# ---------------------------------------------------------------- first calls

KINDS = ("l21", "exclusive", "logistic", "softmax", "poisson", "cox", "group lasso")
SHAPES = {"tall": (200, 20), "wide": (60, 2000)}
FIRST = ("eager", "jit", "vmap", "grad", "jit(grad)")


def scalar(problem: Case) -> Callable[[Any], jax.Array]:
    """A number of the answer, of the strength."""
    loss, penalty, _ = problem
    return lambda a: jnp.sum(sj.solve(sj.Problem(loss, penalty(a))).params ** 2)


def first_call(kind: str, shape: str, way: str) -> float:
    """CPU seconds of the first call of this way, in this process."""
    loss, penalty, top = problem = case(kind, *SHAPES[shape])
    a, some = jnp.asarray(top / 10), jnp.asarray(top * np.array([0.5, 0.2, 0.1]))
    one = lambda a: sj.solve(sj.Problem(loss, penalty(a)))
    calls = {
        "eager": lambda: one(a),
        "jit": lambda: jax.jit(one)(a),
        "vmap": lambda: jax.vmap(one)(some),
        "grad": lambda: jax.grad(scalar(problem))(a),
        "jit(grad)": lambda: jax.jit(jax.grad(scalar(problem)))(a),
    }
    return timed(calls[way]).cpu


def first(args: argparse.Namespace) -> None:
    """A process a call."""
    columns = [(way, ">11.1f") for way in FIRST]
    ratios = [("jit/eager", ">11.1f"), ("vmap/eager", ">12.1f"), ("jit(grad)/grad", ">16.1f")]
    printed = Printed(("first call, CPU s", "<24"), *columns, *ratios)
    for shape in SHAPES:
        for kind in args.kinds.split(","):
            s = {}
            for way in FIRST:
                command = [sys.executable, __file__, "--first", f"{kind},{shape},{way}"]
                if args.threads:
                    command += ["--threads", str(args.threads)]
                runs = [
                    float(
                        subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
                    )
                    for _ in range(args.first_repeats)
                ]
                s[way] = float(np.median(runs))
            printed.row(
                f"{kind} {shape}",
                *s.values(),
                s["jit"] / s["eager"],
                s["vmap"] / s["eager"],
                s["jit(grad)"] / s["grad"],
            )


# ---------------------------------------------------------------- gradients


def gradients(args: argparse.Namespace) -> None:
    """Warm."""
    printed = Printed(
        ("value and gradient over solve", "<34"), ("solve s", ">9.4f"), ("eager", ">8.2f"),
        ("jitted", ">8.2f"), ("3 lanes / 3", ">13.2f"),
    )  # fmt: skip
    for shape, size in SHAPES.items():
        for kind in args.kinds.split(","):
            problem = case(kind, *size)
            value, a = scalar(problem), jnp.asarray(problem[2] / 10)
            some = jnp.asarray(problem[2] * np.array([0.2, 0.1, 0.05]))
            slope = jax.jit(jax.grad(value))
            jitted, batch = jax.jit(value), jax.jit(jax.vmap(jax.grad(value)))
            ways = {
                "solve": lambda v=value, a=a: v(a),
                "grad": lambda v=value, a=a: jax.grad(v)(a),
                "jit": partial(jitted, a),
                "jit grad": partial(slope, a),
                "batch": partial(batch, some),
                "loop": lambda s=slope, some=some: [s(a) for a in some],
            }
            found, _ = medians(ways, args.repeats)
            printed.row(
                f"{kind} {shape}", found["solve"], found["grad"] / found["solve"],
                found["jit grad"] / found["jit"], found["batch"] / found["loop"],
            )  # fmt: skip


# ---------------------------------------------------------------- a layer


def layer(args: argparse.Namespace) -> None:
    """300 steps of SGD through a layer of 64 lanes."""
    for tol in (None, 1e-4):
        rng = np.random.default_rng(0)
        A = jnp.asarray(rng.standard_normal((20, 30)) / 5)
        targets = jnp.asarray(rng.standard_normal((64, 20)))
        wanted = jnp.asarray(rng.standard_normal((64, 5)))

        def loss(params: Any, y: jax.Array, z: jax.Array, tol: Any = tol) -> jax.Array:
            D, log_alpha, out = params
            solve = lambda t: sj.solve(
                sj.Problem(losses.SquaredLoss(D, t), penalties.L1(jnp.exp(log_alpha))), tol=tol
            )
            return jnp.mean((jax.vmap(lambda t: solve(t).params)(y) @ out - z) ** 2)

        step = jax.jit(jax.value_and_grad(loss))
        params = (A, jnp.asarray(-4.0), jnp.asarray(rng.standard_normal((30, 5)) / 5))
        start, values, wrong = time.process_time(), [], 0
        for _ in range(300):
            value, slope = step(params, targets, wanted)
            finite = all(bool(jnp.all(jnp.isfinite(g))) for g in slope)
            wrong += not finite
            if finite:
                params = jax.tree.map(lambda p, g: p - 0.05 * g, params, slope)
            values.append(float(value))
        seconds = time.process_time() - start
        print(
            f"layer, tol {tol}: loss {values[0]:.3f} -> {values[-1]:.3f}, "
            f"not finite {wrong} of 300, {seconds:.1f} s"
        )


def main() -> None:
    """Run what ``--only`` names, or all."""
    options = parser(__doc__)
    options.add_argument("--only", default="batches,first,gradients,layer")
    options.add_argument("--kinds", default=",".join(KINDS))
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--first-repeats", type=int, default=1)
    options.add_argument("--threads", type=int, default=0)
    options.add_argument("--first", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.first:
        print(first_call(*args.first.split(",")))
        return
    parts = {"batches": batches, "first": first, "gradients": gradients, "layer": layer}
    for name in args.only.split(","):
        parts[name](args)
        print()


if __name__ == "__main__":
    main()
