"""SLOPE paths beside sortedl1 and skglm, and the prox of the total variation beside condat-tv.

The same objective, least squares with the strengths of Benjamini and Hochberg, along 30 factors from the
first at which a feature enters to a 20th of it; one thread, one process, the median of five runs after a
first one. CPU milliseconds, and the worst relative excess over the least objective that any of them found.
sortedl1 and condat-tv are on PyPI; what is not there is left out.
"""

import os

os.environ.update({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"})
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import importlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from harness.timing import in_turn

import sparsejax as sj


def installed(name: str) -> Any:
    """A package, or None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


sortedl1, condat_tv = installed("sortedl1"), installed("condat_tv")
datafits, penalties, solvers = (installed(f"skglm.{part}") for part in ("datafits", "penalties", "solvers"))

SHAPES = {"tall": (1000, 100, 0.0), "wide": (200, 1000, 0.0), "wide, correlated": (200, 1000, 0.6)}
FACTORS = np.geomspace(1, 1 / 20, 30)
TOL = 1e-6


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """What it returns, and the median CPU milliseconds of five runs after a first one."""
    found = in_turn({"run": run}, 5)["run"]
    return found.result, 1e3 * found.cpu


def data(n: int, d: int, correlation: float) -> tuple[np.ndarray, np.ndarray]:
    """Neighbours correlated; twenty features matter."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    for j in range(1, d):
        X[:, j] = correlation * X[:, j - 1] + np.sqrt(1 - correlation**2) * X[:, j]
    return X, X[:, :: d // 20] @ rng.choice([-1.0, 1.0], 20) + rng.standard_normal(n)


def paths(X: np.ndarray, y: np.ndarray) -> dict[str, tuple[np.ndarray, float]]:
    """The weights (factors, d) and milliseconds of each."""
    d = X.shape[1]
    strengths = np.asarray(sj.penalties.slope_strengths(d, 0.1))
    problem = sj.Problem(sj.losses.SquaredLoss(X, y), sj.penalties.SortedL1(strengths))
    factors = float(sj.lambda_max(problem)) * FACTORS
    candidates = jax.vmap(sj.penalties.SortedL1)(factors[:, None] * strengths)
    ours, took = timed(lambda: jax.block_until_ready(sj.path(problem, candidates, tol=TOL)))
    print(f"  certified gaps at most {float(ours.gap.max()):.1e}")
    found = {"sparsejax": (np.asarray(ours.params), took)}
    if sortedl1:
        model = sortedl1.Slope(lam=strengths, fit_intercept=False, tol=TOL)
        run = lambda: model.path(X, y, alphas=factors, tol_dev_change=0.0, tol_dev_ratio=1.0)
        result, took = timed(run)
        coefs = np.asarray(result.coefs).reshape(d, -1).T
        found["sortedl1"] = coefs, took
    if solvers:
        X = np.asfortranarray(X)

        def walk() -> np.ndarray:
            W, w = [], np.zeros(d)
            for factor in factors:
                solver = solvers.FISTA(max_iter=20_000, tol=TOL, opt_strategy="fixpoint")
                penalty = penalties.SLOPE(factor * strengths)
                w = solver.solve(X, y, datafits.Quadratic(), penalty, w_init=w)[0]
                W.append(w.copy())
            return np.stack(W)

        found["skglm"] = timed(walk)
    objective = lambda W: np.array([
        np.mean((y - X @ w) ** 2) / 2 + factor * strengths @ np.sort(np.abs(w))[::-1]
        for factor, w in zip(factors, W, strict=True)
    ])  # fmt: skip
    values = {name: objective(W) for name, (W, _) in found.items()}
    least = np.min(list(values.values()), axis=0)
    for name, (_, took) in found.items():
        print(f"  {name:10} {took:9.0f} ms   excess {np.max(values[name] / least - 1):.0e}")
    return found


def variation() -> None:
    """A million entries: noise on steps of a hundred."""
    rng = np.random.default_rng(0)
    x = np.repeat(3 * rng.standard_normal(10_000), 100) + rng.standard_normal(1_000_000)
    prox, on_device = jax.jit(sj.prox.total_variation), jax.device_put(x)
    for strength in (0.1, 1.0, 10.0, 1000.0):
        z, took = timed(lambda s=strength: jax.block_until_ready(prox(on_device, s)))
        line = f"  strength {strength:6g}: {took:6.0f} ms"
        if condat_tv:
            other, theirs = timed(lambda s=strength: condat_tv.tv_denoise(x, s))
            line += f", condat-tv {theirs:6.0f} ms, largest difference {np.max(np.abs(z - other)):.0e}"
        print(line)


def main() -> None:
    """All of it."""
    jax.config.update("jax_enable_x64", True)
    for name, (n, d, correlation) in SHAPES.items():
        print(f"SLOPE path, {name}, {n} x {d}:")
        paths(*data(n, d, correlation))
    print("prox of the total variation, 1 000 000 entries:")
    variation()


if __name__ == "__main__":
    main()
