"""Solves, batches and paths on the first device of JAX: run it on a GPU, and on the same machine's CPU.

`python benchmarks/gpu.py`, and `JAX_PLATFORMS=cpu python benchmarks/gpu.py` for the CPU with all its cores. A
line for each case and dtype: seconds of the first call, which compiles, the median milliseconds of five
further calls, whether all converged, and the largest gap, in units of 1e-6. Data are on the device before a
call; a call builds the problem, as a user's does, and waits for the answer.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from harness.timing import in_turn, timed

import sparsejax as sj
from sparsejax.losses import LogisticLoss, SquaredLoss
from sparsejax.penalties import L1, L21, ExclusiveL21, SortedL1

REPEATS = 5
rng = np.random.default_rng(0)


def data(n: int, d: int, k: int, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Independent columns, of which twenty matter, and noise."""
    X = rng.standard_normal((n, d), dtype=np.float32)
    Y = X[:, :20] @ rng.standard_normal((20, k), dtype=np.float32)
    return jnp.asarray(X, dtype), jnp.asarray(Y + 0.5 * rng.standard_normal((n, k), dtype=np.float32), dtype)


def top(loss: Any, penalty: Callable[[Any], Any]) -> float:
    """The strength at which the first feature enters."""
    return float(sj.lambda_max(sj.Problem(loss, penalty(1.0))))


SINGLE: dict[str, tuple[int, int, int, Any, Callable[[Any], Any]]] = {
    "l1, 200 x 1000": (200, 1000, 1, SquaredLoss, L1),
    "l1, 50 000 x 2000": (50_000, 2000, 1, SquaredLoss, L1),
    "l2,1, 2000 x 20 000 x 4": (2000, 20_000, 4, SquaredLoss, L21),
    "exclusive l2,1, 5000 x 5000 x 8": (5000, 5000, 8, SquaredLoss, lambda a: ExclusiveL21(a, a)),
    "SLOPE, 200 x 1000": (200, 1000, 1, SquaredLoss, lambda a: SortedL1(a * np.linspace(1, 0.5, 1000))),
    "logistic l1, 5000 x 10 000": (5000, 10_000, 1, LogisticLoss, L1),
}


def cases(dtype: Any) -> Iterator[tuple[str, Callable[[], sj.Solution]]]:
    """The names of the cases and their calls."""
    for name, (n, d, k, loss, penalty) in SINGLE.items():
        X, Y = data(n, d, k, dtype)
        Y = (Y > 0).astype(dtype) if loss is LogisticLoss else Y
        a = top(loss(X, Y), penalty) / 10
        yield name, lambda X=X, Y=Y, a=a, new=loss, p=penalty: sj.solve(sj.Problem(new(X, Y), p(a)))
    X, Y = data(200, 1000, 1, dtype)
    many = Y + jnp.asarray(rng.standard_normal((256, 200, 1)), dtype)
    a = top(SquaredLoss(X, Y), L1)
    batch = jax.jit(jax.vmap(lambda y: sj.solve(sj.Problem(SquaredLoss(X, y), L1(a / 5)))))
    yield "jit(vmap) of 256 l1, 200 x 1000", lambda: batch(many)
    X3, Y3 = data(200, 500, 3, dtype)
    many3 = Y3 + jnp.asarray(rng.standard_normal((64, 200, 3)), dtype)
    a3 = top(SquaredLoss(X3, Y3), L21)
    batch3 = jax.jit(jax.vmap(lambda y: sj.solve(sj.Problem(SquaredLoss(X3, y), L21(a3 / 5)))))
    yield "jit(vmap) of 64 l2,1, 200 x 500 x 3", lambda: batch3(many3)
    grid = L1(jnp.asarray(a * np.geomspace(1, 0.05, 20), dtype))
    problem = sj.Problem(SquaredLoss(X, Y), L1(a))
    for mode in ("warm", "batch"):
        yield f"path of 20, {mode}, 200 x 1000", lambda mode=mode: sj.path(problem, grid, mode=mode)


def main() -> None:
    """A table of all cases, in float32 and float64."""
    jax.config.update("jax_enable_x64", True)
    device = jax.devices()[0]
    print(f"{device.device_kind} ({device.platform}), jax {jax.__version__}\n")
    print(
        "| case | dtype | first, s | warm, ms | converged | largest gap, 1e-6 |\n|" + " --- |" * 6, flush=True
    )
    for dtype in (np.float32, np.float64):
        for name, call in cases(dtype):
            first, warm = timed(call), in_turn({name: call}, REPEATS, warm_up=False)[name]
            gap, converged = 1e6 * float(jnp.max(warm.result.gap)), bool(warm.result.converged.all())
            row = (f"{first.seconds:.1f}", f"{1e3 * warm.seconds:.1f}", converged, f"{gap:.2g}")
            print("|", " | ".join(map(str, (name, np.dtype(dtype).name, *row))), "|", flush=True)


if __name__ == "__main__":
    main()
