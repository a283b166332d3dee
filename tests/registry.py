"""Every public prox, loss, penalty and solver, with small instances: what is listed here is tested.

`test_registry.py` fails if something public is missing from this table.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

import sparsejax as sj
from sparsejax import groups, losses, penalties, prox


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

# overlapping, and every one of the 8 features in some group
GROUPS = groups.from_lists([[0, 1, 4], [1, 5], [2, 3, 6], [6, 7], [7, 4]], 8)

# of the 3 labels below; no product of two sets has 3, but any partitions will do
VIEWS = (groups.from_labels([0, 0, 1]), groups.from_labels([0, 1, 1]))

OTHER_PROXES = {"exclusive_group_l21"}  # of all rows at once; see test_groups.py

# strengths at which the small problems below have some zeros and some nonzeros
PENALTIES = {
    "L1": (penalties.L1, (0.05,)),
    "L21": (penalties.L21, (0.08,)),
    "L1Inf": (penalties.L1Inf, (0.2,)),
    "ExclusiveLasso": (penalties.ExclusiveLasso, (0.03,)),
    "ExclusiveL21": (penalties.ExclusiveL21, (0.06, 0.02)),
    "ExclusiveGroupL21": (functools.partial(penalties.ExclusiveGroupL21, groups=GROUPS), (0.05,)),
    "ExclusiveGroupLasso": (functools.partial(penalties.ExclusiveGroupLasso, views=VIEWS), (0.05,)),
}

STRUCTURE = {"ByLeaf"}  # made of penalties; see test_interop.py

LOSSES = {
    "SquaredLoss": losses.SquaredLoss,
    "LogisticLoss": losses.LogisticLoss,
    "SquaredHingeLoss": losses.SquaredHingeLoss,
    "HuberHingeLoss": losses.HuberHingeLoss,
}
MAIN_LOSSES = ("SquaredLoss", "LogisticLoss")  # for all of them, where what is tested lies outside the loss
INTERNAL_LOSSES = {"GramLoss"}  # built by SquaredLoss.gram only
GRAPHS = {"GraphLaplacian", "SumLoss"}  # added to the others; see test_views.py

SOLVERS = {
    "admm": sj.admm,
    "fista": sj.fista,
    "alm": sj.alm,
    "irls": sj.irls,
    "davis_yin": sj.davis_yin,
    "solve": sj.solve,
}
APPROXIMATE = {"smoothed_apg": sj.smoothed_apg}  # up to a smoothing; see test_views.py
NOT_SOLVERS = {"cross_validate", "duality_gap", "lambda_max", "path", "rank_features", "tune"}


def fits(solver: str, loss: str, penalty: str) -> bool:
    """Whether the solver takes the problem."""
    by_alm = penalty in ("L21", "ExclusiveLasso", "ExclusiveL21")
    if solver == "irls":
        return penalty == "ExclusiveGroupL21"
    if solver == "davis_yin":  # takes others as proximal gradient descent, too slow for the tests
        return penalty == "ExclusiveGroupLasso"
    return solver != "alm" or (loss == "SquaredLoss" and by_alm)


def pairs(losses: Iterable[str], penalties: Iterable[str]) -> list[tuple[str, str]]:
    """What tests go over in place of all losses x penalties, of which each costs compilations.

    Every penalty with the first loss (least squares), every other loss with exclusive l2,1, and the
    second (logistic) with l2,1.
    """
    first, second, *others = losses
    chosen = [(first, penalty) for penalty in penalties] + [(second, "L21")]
    return chosen + [(loss, "ExclusiveL21") for loss in (second, *others)]


PAIRS = pairs(LOSSES, PENALTIES)


def data(loss: str, n: int = 12, d: int = 8, k: int = 3, dtype: Any = np.float64, seed: int = 0):
    """A small X (n, d) with correlated columns and a Y (n, k) of the kind the loss needs."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + 0.5 * rng.standard_normal((n, 1))
    W = rng.standard_normal((d, k)) * (np.arange(d) < d // 2)[:, None]
    H = X @ W + 0.3 * rng.standard_normal((n, k))
    Y = H if loss == "SquaredLoss" else (H > 0) if loss == "LogisticLoss" else np.sign(H)
    return X.astype(dtype), Y.astype(dtype)


def problem(loss: str, penalty: str, *, dtype: Any = np.float64, factor: float = 1.0, **kwargs: Any):
    """The small problem of a loss and a penalty."""
    X, Y = data(loss, dtype=dtype, **kwargs)
    make, strengths = PENALTIES[penalty]
    values = [jnp.asarray(factor * s, dtype) for s in strengths]
    return sj.Problem(LOSSES[loss](X, Y), make(*values))
