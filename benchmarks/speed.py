"""Iterations and time to a certified gap, and what one iteration costs beyond its matrix products.

    python benchmarks/speed.py --data DIR [--repeats 5] [--sketch FILE]

Columns standardised, one-hot Y centred, float64, compiled before timing; medians of several runs,
solvers taken in turn so that a busy machine slows all alike. l2,1 at alpha_max/10 and /100 (loss scale
1/(2n)); exclusive l2,1 at alpha = beta = 1 and alpha_max/10 (loss scale 1, as in Ming & Ding, IJCAI
2019). ``--sketch`` names a Python file with functions ``l21(x, y, alpha, tol) -> (W, steps, gap)`` for
the loss scale 1/(2n) and ``exclusive_l21(x, y, alpha, beta, tol) -> (W, rho, steps, gap)`` for the loss
scale 1/2, to be run beside ours. FISTA is limited to 5000 iterations and shown with the gap it reached.
"""

import argparse
import importlib.util
import time
from functools import partial

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import numpy as np
from _data import folder, load

import sparsejax as sj
from sparsejax.implicit import factorise
from sparsejax.solvers import _admm


def standardised(name, path):
    """Columns of mean 0 and standard deviation 1 (constant ones dropped), centred one-hot targets."""
    X, y = load(path, name)
    X = X - X.mean(0)
    spread = X.std(0)
    X = X[:, spread > 1e-12] / spread[spread > 1e-12]
    Y = (y[:, None] == np.unique(y)).astype(float)
    return jnp.asarray(X), jnp.asarray(Y - Y.mean(0))


def in_turn(functions, repeats):
    """Median seconds of each function, called in turn after one warm-up; and the last results."""
    seconds = {name: [] for name in functions}
    results = {}
    for name, function in functions.items():
        results[name] = jax.block_until_ready(function())
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            results[name] = jax.block_until_ready(function())
            seconds[name].append(time.perf_counter() - start)
    return {name: float(np.median(s)) for name, s in seconds.items()}, results


def cases(names, path):
    """(label, problem, sketch's arguments) for every instance."""
    for name in names:
        X, Y = standardised(name, path)
        loss = sj.losses.SquaredLoss(X, Y)
        top = float(sj.lambda_max(sj.Problem(loss, sj.penalties.L21(1.0))))
        for part in (10, 100):
            problem = sj.Problem(loss, sj.penalties.L21(top / part))
            yield f"l2,1 {name} /{part}", problem, ("l21", (X, Y, top / part))
        loss = sj.losses.SquaredLoss(X, Y, scale=1.0)
        top = float(sj.lambda_max(sj.Problem(loss, sj.penalties.L21(1.0))))
        for label, value in (("1", 1.0), ("max/10", top / 10)):
            problem = sj.Problem(loss, sj.penalties.ExclusiveL21(value, value))
            yield f"ex2,1 {name} {label}", problem, ("exclusive_l21", (X, Y, value / 2, value / 2))


def to_a_gap(args, sketch):
    """The first table."""
    print(f"{'instance':<22}{'tol':>7}" + 2 * f"{'seconds':>10}{'steps':>7}{'gap':>9}", "(solve, fista)")
    for label, problem, (kind, data) in cases(args.datasets.split(","), folder(args.data)):
        for tol in (1e-6, 1e-9):
            functions = {"solve": partial(sj.solve, problem, tol=tol)}
            if sketch:
                functions["sketch"] = partial(getattr(sketch, kind), *data, tol)
            seconds, results = in_turn(functions, args.repeats)
            once, fista = in_turn({"fista": partial(sj.fista, problem, tol=tol, maxiter=5000)}, 1)
            seconds, results = seconds | once, results | fista
            line = f"{label:<22}{tol:>7.0e}"
            for name in ("solve", "fista"):
                s = results[name]
                line += f"{seconds[name]:>10.3f}{int(s.num_iters):>7}{float(s.gap):>9.0e}"
            if sketch:
                ratio = seconds["sketch"] / seconds["solve"]
                steps = int(results["sketch"][-2])
                line += f"   sketch {seconds['sketch']:.3f} s, {steps} steps, {ratio:.1f} times ours"
            print(line, flush=True)


def one_iteration(args):
    """The second table: time of an iteration over the time of its matrix products.

    Once alone (no certificate, no change of rho, 500 iterations), and once as the mean over a solve to 1e-6.
    """
    print(f"\n{'instance':<38}{'products':>10}{'iteration':>10}{'solve':>7}", flush=True)
    rng = np.random.default_rng(0)
    often = _admm.CHECK
    for n, d, k in [(1560, 617, 26), (600, 500, 10), (1000, 1000, 20), (500, 1000, 10), (600, 2000, 20)]:
        # Singular values over four decades, so that a solve takes a while.
        side = min(n, d)
        left, _ = np.linalg.qr(rng.standard_normal((n, side)))
        right, _ = np.linalg.qr(rng.standard_normal((d, side)))
        X = np.sqrt(n) * (left * np.geomspace(10, 1e-3, side)) @ right.T
        Y = X[:, :20] @ rng.standard_normal((20, k)) + rng.standard_normal((n, k))
        loss = sj.losses.SquaredLoss(X, Y)
        top = float(sj.lambda_max(sj.Problem(loss, sj.penalties.L21(1.0))))
        for name, penalty in (
            ("l2,1", sj.penalties.L21(top / 1e3)),
            ("exclusive l2,1", sj.penalties.ExclusiveL21(top / 1e3, top / 1e3)),
        ):
            problem = sj.Problem(loss, penalty)
            factor = jax.jit(factorise)(problem.smooth)
            start = jnp.zeros((d, k))

            def compiled(check, problem=problem, factor=factor, start=start):
                def run(problem, factor, start, maxiter):
                    return _admm.solve_factored(problem, factor, start, None, 1e-6, maxiter, 0)[0]

                _admm.CHECK = check
                run = jax.jit(run).lower(problem, factor, start, 0).compile()
                return partial(run, problem, factor, start)

            solve, alone = compiled(often), compiled(10**6)
            functions = {"solve": partial(solve, 20_000), "0": partial(solve, 0)}
            for count in (50, 550):
                functions[f"alone {count}"] = partial(alone, count)
                functions[f"products {count}"] = jax.jit(partial(products, count, jnp.asarray(right.T), k))
            seconds, results = in_turn(functions, args.repeats)
            product = (seconds["products 550"] - seconds["products 50"]) / 500
            iteration = (seconds["alone 550"] - seconds["alone 50"]) / 500
            steps = int(results["solve"].num_iters)
            mean = (seconds["solve"] - seconds["0"]) / steps
            label = f"{name}, n {n}, d {d}, k {k}"
            line = f"{label:<38}{product * 1e6:>7.0f} us{iteration / product:>10.2f}{mean / product:>7.2f}"
            print(f"{line}  ({steps} iterations)", flush=True)
    _admm.CHECK = often


def products(count, basis, k):
    """The matrix products of ``count`` iterations, to the eigenbasis and back."""
    step = lambda _, W: (W @ basis.T) @ basis
    return jax.lax.fori_loop(0, count, step, jnp.ones((k, basis.shape[1])))


def main():
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="folder with the .npz files")
    parser.add_argument("--datasets", default="yale,glioma,isolet")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sketch", help="Python file of another implementation")
    parser.add_argument("--only", choices=["gap", "iteration"])
    args = parser.parse_args()
    sketch = None
    if args.sketch:
        spec = importlib.util.spec_from_file_location("sketch", args.sketch)
        sketch = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sketch)
    if args.only != "iteration":
        to_a_gap(args, sketch)
    if args.only != "gap":
        one_iteration(args)


if __name__ == "__main__":
    main()
