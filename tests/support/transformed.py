"""One solve, called eagerly, jitted, vmapped and scanned: the table of `test_transformations.py`.

`soak/test_every_transformation.py` goes over all of it.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from cases import data
from jax import lax
from loss_cases import LOSSES, SURVIVAL, classes
from penalty_cases import PENALTIES

import sparsejax as sj
from sparsejax import groups, losses, penalties

SHAPES = {"tall": (30, 6), "wide": (12, 40)}
DIVISORS = (10.0, 1000.0)  # of the strength at which W = 0, or of one near it
TOL = 1e-5
K = 4  # columns


def plain(X: Any, H: Any) -> Callable[[Any], jax.Array]:
    """A function of W that closes over its data."""
    X, Y = jnp.asarray(X), jnp.asarray(H)
    return lambda W: jnp.sum(jnp.log(jnp.cosh(X @ W - Y)))


def cox(X: Any, H: Any) -> Any:
    """Of one column."""
    return losses.CoxLoss(X, np.exp(H[:, 0] / 4), np.arange(len(X)) % 3 != 0)


SMOOTH = {name: case for name, case in LOSSES.items() if name != "SoftmaxLoss"} | {
    "SoftmaxLoss": lambda X, H: losses.SoftmaxLoss(X, classes(H)),
    "CoxLoss": cox,
    "CoxLoss, efron, strata, entry": SURVIVAL["efron, strata, entry"],
    "plain": plain,
}


def penalties_of(d: int) -> dict[str, Callable[[Any], Any]]:
    """Each penalty of a strength near that at which W = 0, for d features and K columns."""
    pairs = groups.from_labels(np.arange(d) // 2)
    overlapping = groups.from_lists([[i, i + 1, (i + 3) % d] for i in range(0, d, 2)], d)
    views = groups.label_views(2, K // 2)
    return {
        "L1": penalties.L1,
        "L21": penalties.L21,
        "L1Inf": penalties.L1Inf,
        "ExclusiveLasso": penalties.ExclusiveLasso,
        "ExclusiveL21": lambda a: penalties.ExclusiveL21(a, a / 10),
        "ExclusiveGroupL21": lambda a: penalties.ExclusiveGroupL21(a, overlapping),
        "GroupLasso": lambda a: penalties.GroupLasso(a, pairs),
        "ExclusiveGroupLasso": lambda a: penalties.ExclusiveGroupLasso(a, views),
        "ElasticNet": lambda a: penalties.ElasticNet(a, a / 10),
        "SparseGroupLasso": lambda a: penalties.SparseGroupLasso(a, 0.5, pairs),
    }


ADDED = {
    "SquaredL2": penalties.SquaredL2,
    "NonNegative": lambda a: penalties.NonNegative(),
    "Box": lambda a: penalties.Box(-0.2, 0.3),
}
OF_MATRICES = {"L21", "ExclusiveL21", "ExclusiveGroupL21", "ExclusiveGroupLasso", "ExclusiveLasso"}
assert set(PENALTIES) <= set(penalties_of(4))


def summands(d: int) -> dict[str, Callable[[Any], Any]]:
    """What sums are made of."""
    return penalties_of(d) | ADDED


def sums(d: int) -> dict[str, Callable[[Any], Any]]:
    """Every sum of two of them."""
    of = lambda p, q: lambda a: p(a) + q(a)
    return {f"{a}+{b}": of(p, q) for (a, p), (b, q) in itertools.combinations(summands(d).items(), 2)}


@functools.cache
def smooth_of(loss: str, shape: str) -> Any:
    """The loss of data of this shape."""
    n, d = SHAPES[shape]
    X, H = data(seed=3, n=n, d=d, k=K)
    return SMOOTH[loss](X, H)


def case_of(loss: str, penalty: str, shape: str) -> tuple[Any, Callable[[Any], Any], Any, np.ndarray]:
    """The loss, the penalty of a strength, a start where the loss has no shape, and strengths."""
    d, smooth = SHAPES[shape][1], smooth_of(loss, shape)
    make = (summands(d) | sums(d))[penalty]
    init = jnp.zeros((d, K)) if loss == "plain" else None
    W = jnp.zeros((d, K) if loss == "plain" else smooth.params_shape)
    # Of penalties of the second degree none makes W = 0: of all, about the slope that a strength meets there.
    top = float(jnp.max(jnp.abs(jax.grad(smooth)(W))))
    return smooth, make, init, np.array([top / divisor for divisor in DIVISORS])


def check(loss: str, penalty: str, shape: str) -> None:
    """The same status and, where it is solved, the same objective, whatever the solve is wrapped in."""
    smooth, make, init, strengths = case_of(loss, penalty, shape)
    compare(smooth, make, init, strengths, TOL)


def compare(smooth: Any, make: Any, init: Any, strengths: Any, tol: float) -> list[sj.Solution]:
    """Eager, jitted, vmapped and scanned solves agree; the eager ones."""
    solve = lambda a: sj.solve(sj.Problem(smooth, make(a)), init=init, tol=tol, maxiter=2000)
    strengths = jnp.asarray(strengths)
    eager = [solve(a) for a in strengths]
    scanned = lambda strengths: lax.scan(lambda carry, a: (carry, solve(a)), 0, strengths)[1]
    jitted = jax.jit(solve)
    ways = {
        "jit": [jitted(a) for a in strengths],
        "vmap": lanes(jax.jit(jax.vmap(solve))(strengths), len(strengths)),
        "scan": lanes(jax.jit(scanned)(strengths), len(strengths)),
    }
    zero = jnp.zeros_like(eager[0].params) if init is None else init
    for way, found in ways.items():
        for a, one, other in zip(strengths, eager, found, strict=True):
            what = f"{way} at {float(a):.3g}: {one} and {other}"
            assert one.status == other.status and one.solver == other.solver, what
            problem = sj.Problem(smooth, make(a))
            unit = max(abs(float(one.objective)), float(abs(smooth(zero) + problem.penalty.value(zero))))
            if one.converged:
                assert abs(float(one.objective - other.objective)) <= 2 * tol * unit, what
    return eager


def lanes(solution: sj.Solution, count: int) -> list[sj.Solution]:
    """The solutions of a batch."""
    return [jax.tree.map(lambda leaf, i=i: leaf[i], solution) for i in range(count)]
