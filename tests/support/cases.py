"""THE table: every public prox, loss, penalty and solver, with small instances. What is in it is tested.

`test_registry.py` fails if something public is missing. The instances have one shape and one structure
(sample weights by row of which one is 0, an intercept, a strength a row or a group), so that compiled
programs are shared; a problem is solved once in a process. Other shapes and structures: `test_reference.py`.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from loss_cases import ALIKE, LOSSES, SUMS
from penalty_cases import PENALTIES, D

import sparsejax as sj
from sparsejax import prox
from sparsejax.solvers import SOLVERS

N, K = 14, 6  # rows, columns of Y
DTYPE = np.dtype(np.float64 if jax.config.jax_enable_x64 else np.float32).type

# ------------------------------------------------------------------ proxes


@dataclass(frozen=True)
class Prox:
    name: str
    call: Callable[..., Any]  # (x, *strengths, scaling)
    penalty: Callable[..., Any]  # the documented g(z, *strengths)
    strengths: tuple[float, ...]


PROXES = [
    Prox("l1", prox.l1, lambda z, s: s * jnp.sum(jnp.abs(z)), (0.3,)),
    Prox("l2", prox.l2, lambda z, s: s * jnp.sqrt(jnp.sum(z**2)), (0.6,)),
    Prox("linf", prox.linf, lambda z, s: s * jnp.max(jnp.abs(z)), (0.6,)),
    Prox("squared_l1", prox.squared_l1, lambda z, b: b * jnp.sum(jnp.abs(z)) ** 2, (0.2,)),
    Prox(
        "exclusive_l21",
        prox.exclusive_l21,
        lambda z, a, b: a * jnp.sqrt(jnp.sum(z**2)) + b * jnp.sum(jnp.abs(z)) ** 2,
        (0.5, 0.1),
    ),
]
# of all rows at once: test_groups.py; test_coupled.py
OTHER_PROXES = {"exclusive_group_l21", "sorted_l1", "total_variation"}

# ------------------------------------------------------------------ problems


def pairs(losses: Iterable[str], penalties: Iterable[str]) -> list[tuple[str, str]]:
    """What tests go over in place of all losses x penalties, of which each costs compilations.

    Every penalty with the first loss (least squares), every other loss with exclusive l2,1, and the
    second (logistic) with l2,1.
    """
    first, second, *others = losses
    chosen = [(first, penalty) for penalty in penalties] + [(second, "L21")]
    return chosen + [(loss, "ExclusiveL21") for loss in (second, *others)]


PAIRS = pairs([loss for loss in LOSSES if loss not in ALIKE], PENALTIES)
EVERYTHING = [*PAIRS, *((loss, "ExclusiveL21") for loss in ALIKE), ("GraphLaplacian", "ExclusiveGroupLasso")]


def data(
    *, seed: int = 0, n: int = N, d: int = D, k: int | None = K, dtype: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """X (n, d) with correlated columns and numbers H (n, k) or (n,), of which the first half of X knows."""
    rng = np.random.default_rng(seed)
    columns = () if k is None else (k,)
    X = rng.standard_normal((n, d)) + 0.5 * rng.standard_normal((n, 1))
    half = (np.arange(d) < d // 2).reshape(d, *(1 for _ in columns))
    H = X @ (rng.standard_normal((d, *columns)) * half) + 0.5 * rng.standard_normal((n, *columns)) + 1
    return X.astype(dtype or DTYPE), H.astype(dtype or DTYPE)


def weights(n: int = N) -> np.ndarray:
    """One a row; one is 0."""
    w = np.random.default_rng(2).uniform(0.2, 2, n)
    w[3] = 0
    return w


@functools.cache
def smooth(loss: str, *, seed: int = 0, dtype: Any = None, **options: Any) -> Any:
    """The loss of the table, with weights and an intercept unless ``options`` say otherwise."""
    X, H = data(seed=seed, dtype=dtype)
    options = {"weights": weights().astype(X.dtype), "intercept": True} | options
    return (LOSSES | SUMS)[loss](X, H, **options)


@functools.cache
def problem(loss: str, penalty: str, *, seed: int = 0, factor: float = 1.0, dtype: Any = None) -> sj.Problem:
    """The small problem of a loss and a penalty; ``factor`` multiplies the strengths."""
    case = PENALTIES[penalty]
    strengths = [s.astype(dtype or DTYPE) for s in case.spread(factor)]
    return sj.Problem(smooth(loss, seed=seed, dtype=dtype), case.make(*strengths))


@functools.cache
def solution(loss: str, penalty: str) -> sj.Solution:
    """Of `problem`, to the floor of its dtype."""
    return sj.solve(problem(loss, penalty), tol=0.0)


# ------------------------------------------------------------------ solvers

APPROXIMATE = {"smoothed_apg"}  # up to a smoothing: test_label_views.py
OF_ONE_COLUMN = {"interior_point"}  # the problems of the table have K columns: test_interior_point.py
NOT_SOLVERS = {
    "cross_validate", "duality_gap", "lambda_max", "path", "predict", "rank_features", "solve",
    "stability_selection", "tune",
}  # fmt: skip
ENGINES = ("admm", "fista")  # the others are calls of these, or for one penalty


def engines_of(loss: str) -> tuple[str, ...]:
    """The engines that take a loss with any penalty."""
    return ENGINES if (LOSSES | SUMS)[loss].bounded else ("fista",)


def solvers_of(loss: str, penalty: str) -> list[str]:
    """The solvers whose answer to this problem can be asked for."""
    p = problem(loss, penalty)
    # of one term davis_yin makes proximal gradient descent, which takes long: test_solvers.py
    left_out = APPROXIMATE if len(p.penalty.terms) == 2 else APPROXIMATE | {"davis_yin"}
    return [name for name, solver in SOLVERS.items() if name not in left_out and solver.fits(p) is None]


def slope_at_zero(f, w, row, h=1e-4):
    """The derivative in the weight of a row, which is 0: a one-sided difference."""
    zero, one, two, three = (f(w.at[row].set(step * h)) for step in range(4))
    return (18 * one - 9 * two + 2 * three - 11 * zero) / (6 * h)
