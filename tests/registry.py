"""Every public prox, loss, penalty and solver, with small instances: what is listed here is tested.

`test_registry.py` fails if something public is missing from this table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

import sparsejax as sj
from sparsejax import losses, penalties, prox


@dataclass(frozen=True)
class Prox:
    name: str
    call: Callable[..., Any]  # (x, *strengths, scaling)
    penalty: Callable[..., Any]  # the documented g(z, *strengths)
    strengths: tuple[float, ...]


PROXES = [
    Prox("l1", prox.l1, lambda z, s: s * jnp.sum(jnp.abs(z)), (0.3,)),
    Prox("l2", prox.l2, lambda z, s: s * jnp.sqrt(jnp.sum(z**2)), (0.6,)),
    Prox("squared_l1", prox.squared_l1, lambda z, b: b * jnp.sum(jnp.abs(z)) ** 2, (0.2,)),
    Prox(
        "exclusive_l21",
        prox.exclusive_l21,
        lambda z, a, b: a * jnp.sqrt(jnp.sum(z**2)) + b * jnp.sum(jnp.abs(z)) ** 2,
        (0.5, 0.1),
    ),
]

# strengths at which the small problems below have some zeros and some nonzeros
PENALTIES = {
    "L1": (penalties.L1, (0.05,)),
    "L21": (penalties.L21, (0.08,)),
    "ExclusiveLasso": (penalties.ExclusiveLasso, (0.03,)),
    "ExclusiveL21": (penalties.ExclusiveL21, (0.06, 0.02)),
}

STRUCTURE = {"ByLeaf"}  # made of penalties; see test_interop.py

LOSSES = {
    "SquaredLoss": losses.SquaredLoss,
    "LogisticLoss": losses.LogisticLoss,
}
INTERNAL_LOSSES = {"GramLoss"}  # built by SquaredLoss.gram only

SOLVERS = {"admm": sj.admm, "fista": sj.fista, "alm": sj.alm, "solve": sj.solve}
NOT_SOLVERS = {"cross_validate", "duality_gap", "lambda_max", "path", "rank_features", "tune"}


def fits(solver: str, loss: str, penalty: str) -> bool:
    """Whether the solver takes the problem."""
    return solver != "alm" or (loss == "SquaredLoss" and penalty != "L1")


def data(loss: str, n: int = 12, d: int = 8, k: int = 3, dtype: Any = np.float64, seed: int = 0):
    """A small X (n, d) with correlated columns and a Y (n, k) of the kind the loss needs."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + 0.5 * rng.standard_normal((n, 1))
    W = rng.standard_normal((d, k)) * (np.arange(d) < d // 2)[:, None]
    H = X @ W + 0.3 * rng.standard_normal((n, k))
    Y = (H > 0) if loss == "LogisticLoss" else H
    return X.astype(dtype), Y.astype(dtype)


def problem(loss: str, penalty: str, *, dtype: Any = np.float64, factor: float = 1.0, **kwargs: Any):
    """The small problem of a loss and a penalty."""
    X, Y = data(loss, dtype=dtype, **kwargs)
    make, strengths = PENALTIES[penalty]
    values = [jnp.asarray(factor * s, dtype) for s in strengths]
    return sj.Problem(LOSSES[loss](X, Y), make(*values))
