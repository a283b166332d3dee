"""Derivatives of solutions against differences of solves: many problems, every kind of loss and penalty.

    python tests/soak/derivatives.py [--cells 100] [--lanes 8] [--seed 0] [--minutes 60] [--only NAME]

A cell is one loss, one penalty and one shape of the data, and its lanes are as many problems: columns of X
that are correlated and of different sizes, strengths from 1e-3 to 0.8 of one near which W is 0. Each lane has
two functions, a weighted sum of the entries of W and `Solution.objective`, of two parameters, the logarithm
of the strengths and a direction in which X moves. The derivatives, in reverse and in forward mode, are
compared with central differences of solves to a gap of 1e-14, of two lengths.

Differences are unclear where the two lengths or the two sides disagree: the solution has a kink there, or the
solves are not accurate enough. They are also counted as unclear where a solve to `TOL` does not converge. A
derivative that is NaN is refused. A derivative is wrong if it is farther from clear differences than a
thousandth of them and three times what the two lengths differ by.

A table by cell; the exit status is 1 if anything is wrong.
"""

import argparse
import itertools
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

if __name__ == "__main__":  # as a script: with 64-bit numbers and this copy of the library
    root = Path(__file__).parents[2]
    sys.path[:0] = [str(root), str(root / "tests" / "support")]
    jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import numpy as np
from loss_cases import LOSSES, SURVIVAL
from penalty_cases import COUPLED
from transformed import OF_MATRICES, K, summands, sums

import sparsejax as sj

SHAPES = {"tall": (40, 8), "wide": (12, 20), "square": (16, 16)}  # rows and columns of X
TOL = 1e-10  # of the solutions that are differentiated
STEPS = (1e-4, 4e-4)  # lengths of the differences
WRONG = 1e-3  # relative error beyond which a derivative is wrong
KINK = 0.02  # relative difference of the two sides, or of the two lengths, beyond which they are unclear
FLOOR = 1e-6  # of the size of the function: differences below it count as 0
ZERO = 1e-12  # what counts as 0 where the function is 0, as for W = 0
COUNTS = ("derivatives", "unclear", "refused", "wrong")
SURVIVAL_X = np.random.default_rng(5).standard_normal((40, 8))  # what the times of events depend on

Cell = tuple[str, str, str, bool]  # loss, penalty, shape, whether the loss has an intercept


def cells(seed: int) -> list[Cell]:
    """All cells, in an order drawn by the seed."""
    penalties = [*summands(8), *sums(8), *(f"coupled: {name}" for name in COUPLED)]
    found = []
    for cell in itertools.product([*LOSSES, *SURVIVAL], penalties, SHAPES, (False, True)):
        loss, penalty, shape, intercept = cell
        coupled = penalty.startswith("coupled")  # of 8 features
        of_vector = not intercept and not coupled and not OF_MATRICES & set(penalty.split("+"))
        if (loss in LOSSES or of_vector) and (not coupled or shape == "tall"):
            found.append(cell)
    return [found[i] for i in np.random.default_rng(seed).permutation(len(found))]


def columns_of(loss: str, penalty: str) -> tuple[int, ...]:
    """The number of columns of W; nothing for a vector. `COUPLED` has strengths for 6 columns."""
    return () if loss in SURVIVAL else (6 if penalty.startswith("coupled") else K,)


def drawn_lane(rng: np.random.Generator, cell: Cell) -> dict[str, Any]:
    """The data of one lane; V weighs the entries of W."""
    loss, penalty, shape, _ = cell
    (n, d), columns = SHAPES[shape], columns_of(loss, penalty)
    common = rng.standard_normal((n, 1)) * rng.choice([0, 1, 5])
    X = (rng.standard_normal((n, d)) + common) * 10 ** rng.uniform(-0.5, 0.5, d)
    H = X @ (rng.standard_normal((d, *columns)) * (rng.random((d, *columns)) < 0.5))
    H = H / np.std(H) + 0.5 * rng.standard_normal((n, *columns))
    lane = {"X": X, "direction": rng.standard_normal((n, d)) * np.std(X)}
    lane |= {"V": rng.standard_normal((d, *columns)), "share": np.asarray(10 ** rng.uniform(-3, -0.1))}
    return lane if loss in SURVIVAL else lane | {"Y": LOSSES[loss].targets(H)}


def functions_of(cell: Cell) -> Callable[..., Any]:
    """(parameters, lane, tol) -> the two functions, their sizes, and whether the solve converged."""
    loss, penalty, shape, intercept = cell
    n, d = SHAPES[shape]
    name = penalty.removeprefix("coupled: ")
    make = COUPLED[name] if name != penalty else (summands(d) | sums(d))[name]

    def smooth(shift: Any, lane: Any) -> Any:
        X = lane["X"] + shift * lane["direction"]
        if loss in SURVIVAL:
            case = SURVIVAL[loss]
            return sj.losses.CoxLoss(X, ties=case.ties, **case.data(SURVIVAL_X[:n]))
        return LOSSES[loss].make(X, lane["Y"], intercept=intercept)

    def functions(parameters: Any, lane: Any, tol: float) -> tuple[jax.Array, jax.Array, jax.Array]:
        start = smooth(0.0, lane)
        # Penalties of degree 2 have no strength at which W = 0: the largest slope at 0 serves for all. The
        # strengths of `COUPLED` are a tenth of its argument.
        top = jnp.max(jnp.abs(jax.grad(start)(jnp.zeros(start.params_shape))))
        strength = jnp.exp(parameters[0]) * lane["share"] * top * (10 if name != penalty else 1)
        problem = sj.Problem(smooth(parameters[1], lane), make(strength))
        solution = sj.solve(problem, tol=tol, maxiter=5000)
        W, V = solution.params, lane["V"]
        sizes = jnp.stack([jnp.sqrt(jnp.sum(V**2) * jnp.sum(W**2)), jnp.abs(solution.objective)])
        return jnp.stack([jnp.sum(V * W), solution.objective]), sizes, solution.converged

    return functions


def judged(cell: Cell, lanes: int, seed: int) -> tuple[Counter[str], list[str]]:
    """The counts of one cell, and a line for each wrong derivative."""
    functions = functions_of(cell)
    solved = jax.jit(functions, static_argnums=2)
    modes = [
        jax.jit(lambda at, lane, mode=mode: mode(lambda t: functions(t, lane, TOL)[0])(at))
        for mode in (jax.jacrev, jax.jacfwd)
    ]
    counts, wrong, rng, zero = Counter[str](), [], np.random.default_rng([seed, lanes]), jnp.zeros(2)
    for number in range(lanes):
        lane = jax.tree.map(jnp.asarray, drawn_lane(rng, cell))
        middle, sizes, _ = map(np.asarray, solved(zero, lane, 1e-14))
        floor = FLOOR * sizes + ZERO
        derivatives = np.stack([mode(zero, lane) for mode in modes])  # (mode, function, parameter)
        counts["derivatives"] += 4
        if not solved(zero, lane, TOL)[2]:
            counts["unclear"] += 4
            continue
        for j in range(2):
            at = lambda step, j=j, lane=lane: np.asarray(solved(zero.at[j].set(step), lane, 1e-14)[0])
            ends = [(at(h), at(-h)) for h in STEPS]
            up, down = ends[0]
            short, long = ((a - b) / (2 * h) for h, (a, b) in zip(STEPS, ends, strict=True))
            sides = np.abs(up + down - 2 * middle) / STEPS[0]
            spread, allowed = np.abs(short - long), KINK * np.abs(short) + floor
            clear = (sides <= allowed) & (spread <= allowed)
            known = np.isfinite(derivatives[:, :, j]).all(axis=0)
            error = np.abs(derivatives[:, :, j] - short).max(axis=0)
            false = clear & known & ~(error <= WRONG * np.abs(short) + 3 * spread + floor)
            counts += Counter(
                unclear=int(sum(~clear)), refused=int(sum(clear & ~known)), wrong=int(sum(false))
            )
            for f in np.flatnonzero(false):
                found = f"{derivatives[:, f, j]} for {short[f]:.6g} and {long[f]:.6g}, size {sizes[f]:.3g}"
                wrong.append(f"lane {number}, share {float(lane['share']):.2g}, ({f}, {j}): {found}")
    return counts, wrong


def main() -> int:
    parser = argparse.ArgumentParser()
    for name, default in (("cells", 100), ("lanes", 8), ("seed", 0), ("minutes", 60)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    end, total = time.time() + 60 * options.minutes, Counter[str]()
    print("loss | penalty | shape | intercept |", " | ".join(COUNTS), "| CPU s")
    for cell in [c for c in cells(options.seed) if options.only in " ".join(map(str, c))][: options.cells]:
        if time.time() > end:
            break
        begun = time.process_time()
        counts, wrong = judged(cell, options.lanes, options.seed)
        jax.clear_caches()
        total += counts
        row = *cell, *(counts[name] for name in COUNTS), round(time.process_time() - begun)
        print(" | ".join(map(str, row)), *wrong, sep="\n    ", flush=True)
    print(dict(total))
    return int(total["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
