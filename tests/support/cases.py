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

import sparsejax as sj
from sparsejax import groups, losses, penalties, prox
from sparsejax.solvers import SOLVERS

N, D, K = 14, 8, 6  # rows, features, columns of Y
DTYPE = np.dtype(np.float64 if jax.config.jax_enable_x64 else np.float32).type

# overlapping, and every feature in some group
GROUPS = groups.from_lists([[0, 1, 4], [1, 5], [2, 3, 6], [6, 7], [7, 4]], D)
PARTITION = groups.from_labels([0, 0, 1, 1, 2, 2, 3, 3])
VIEWS = groups.label_views(2, 3)
SIMILARITY = np.random.default_rng(7).random((K, K))

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
OTHER_PROXES = {"exclusive_group_l21"}  # of all rows at once: test_groups.py

# ------------------------------------------------------------------ penalties


@dataclass(frozen=True)
class PenaltyCase:
    make: Callable[..., Any]  # of the strengths
    strengths: tuple[float, ...]  # at which the problem of this file has some zeros and some nonzeros
    degrees: tuple[int, ...] = (1,)  # of homogeneity in W, of what each strength multiplies
    length: int = D  # of a strength that is not a scalar: one value a row, or a group

    def spread(self, factor: float = 1.0) -> list[np.ndarray]:
        """The strengths, a different one for each row or group."""
        uneven = np.random.default_rng(1).uniform(0.5, 2, self.length)
        return [factor * s * uneven for s in self.strengths]

    def full(self, *strengths: Any) -> Any:
        """The penalty with these strengths, each the same in every row or group."""
        return self.make(*(np.full(self.length, s) for s in strengths))


PENALTIES = {
    "L1": PenaltyCase(penalties.L1, (0.1,)),
    "L21": PenaltyCase(penalties.L21, (0.3,)),
    "L1Inf": PenaltyCase(penalties.L1Inf, (0.5,)),
    "ExclusiveLasso": PenaltyCase(penalties.ExclusiveLasso, (0.05,), degrees=(2,)),
    "ExclusiveL21": PenaltyCase(penalties.ExclusiveL21, (0.2, 0.02), degrees=(1, 2)),
    "ExclusiveGroupL21": PenaltyCase(
        functools.partial(penalties.ExclusiveGroupL21, groups=GROUPS), (0.1,), (2,), GROUPS.num_groups
    ),
    "GroupLasso": PenaltyCase(
        functools.partial(penalties.GroupLasso, groups=PARTITION), (0.9,), (1,), PARTITION.num_groups
    ),
    "ExclusiveGroupLasso": PenaltyCase(
        functools.partial(penalties.ExclusiveGroupLasso, views=VIEWS), (0.3,), (2,)
    ),
}
# made of penalties: test_interop.py; what is mostly added to others, and sums: test_sums.py
STRUCTURE = {"ByLeaf", "Box", "ElasticNet", "NonNegative", "SparseGroupLasso", "SquaredL2", "Sum"}
PENALTY_BASES = {"Penalty", "RowNorm"}

# ------------------------------------------------------------------ losses


@dataclass(frozen=True)
class LossCase:
    make: Callable[..., Any]  # (X, Y, *, scale, weights, intercept)
    targets: Callable[[np.ndarray], np.ndarray] = lambda H: H  # Y, from the numbers that a linear model gives
    bounded: bool = True  # its curvature: without, there is no majorizer and no engine but fista
    by_entry: bool = True  # False: the columns of a row share one loss, and only rows have weights

    def __call__(self, X: Any, H: Any, **options: Any) -> Any:
        """The loss of X and the targets that H gives."""
        return self.make(X, self.targets(np.asarray(H)), **options)


def zero_one(H: np.ndarray) -> np.ndarray:
    """Both labels in every column."""
    return (np.median(H, axis=0) < H).astype(H.dtype)


def signs(H: np.ndarray) -> np.ndarray:
    return 2 * zero_one(H) - 1


def classes(H: np.ndarray) -> np.ndarray:
    """The largest of each row; in every other row with a probability of 1/2, the others share the rest."""
    one_hot = (H.max(axis=1, keepdims=True) == H).astype(H.dtype)
    shared = np.full_like(H, 0.5 / H.shape[1])
    return np.where((np.arange(len(H)) % 2 == 0)[:, None], one_hot, one_hot / 2 + shared)


def counts(H: np.ndarray) -> np.ndarray:
    """Whole numbers, some of them 0."""
    return np.round(np.abs(H))


def with_graph(X: Any, Y: Any, **options: Any) -> Any:
    return losses.SquaredLoss(X, Y, **options) + losses.GraphLaplacian(SIMILARITY, 0.03)


LOSSES = {
    "SquaredLoss": LossCase(losses.SquaredLoss),
    "LogisticLoss": LossCase(losses.LogisticLoss, zero_one),
    "SquaredHingeLoss": LossCase(losses.SquaredHingeLoss, signs),
    "HuberHingeLoss": LossCase(losses.HuberHingeLoss, signs),
    "SoftmaxLoss": LossCase(losses.SoftmaxLoss, classes, by_entry=False),
    "PoissonLoss": LossCase(losses.PoissonLoss, counts, bounded=False),
    "HuberLoss": LossCase(losses.HuberLoss),
    "QuantileLoss": LossCase(functools.partial(losses.QuantileLoss, q=0.3, smoothing=0.5)),
}
ALIKE = ("QuantileLoss",)  # with the code of another, HuberLoss: for tests of values, not of programs
MAIN_LOSSES = ("SquaredLoss", "LogisticLoss")  # for all of them, where what is tested lies outside the loss
SUMS = {"GraphLaplacian": LossCase(with_graph)}  # what is added to a loss
LOSS_TOOLS = {"from_batches", "observed"}  # functions beside the losses
INTERNAL_LOSSES = {"BatchedSquaredLoss", "GramLoss", "SumLoss"}  # built by methods of SquaredLoss and by +
LOSS_BASES = {"Loss", "LinearModelLoss"}
ONE_COLUMN = {"CoxLoss"}  # W is a vector, where every instance here is a matrix: test_cox.py

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
NOT_SOLVERS = {
    "cross_validate", "duality_gap", "lambda_max", "path", "rank_features", "solve", "stability_selection",
    "tune",
}  # fmt: skip
SINGLE = {"prox_newton"}  # of one column, where every instance has several: test_prox_newton.py
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
