"""Strengths of 0: in a part of a sum, where the other parts decide, and in some rows, which are then free."""

import conic
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from penalty_cases import PARTITION, D

import sparsejax as sj
from sparsejax import losses, penalties
from sparsejax.penalties import (
    L1,
    L21,
    ExclusiveGroupL21,
    ExclusiveL21,
    GroupLasso,
    L1Inf,
    SortedL1,
    SparseGroupLasso,
    SumTo,
    TotalVariation,
)

K, N = 6, 30
rng = np.random.default_rng(0)
X = rng.standard_normal((N, D))
Y = X[:, :K] + rng.standard_normal((N, K))

# name: (a sum of which one part has the strength 0, the other part alone)
SUMS = {
    "SparseGroupLasso, l1 alone": (SparseGroupLasso(0.1, 1.0, PARTITION), L1(0.1)),
    "SparseGroupLasso, groups alone": (
        SparseGroupLasso(0.1, 0.0, PARTITION),
        GroupLasso(0.1 * np.sqrt(np.asarray(PARTITION.sums(jnp.ones(D)))), PARTITION),
    ),
    "L1 + L21": (L1(0.1) + L21(0.0), L1(0.1)),
    "L1 by row + L21": (L1(np.full(D, 0.1)) + L21(np.zeros(D)), L1(0.1)),
    "L1 + L21, l1 is 0": (L1(0.0) + L21(0.1), L21(0.1)),
    "L1Inf + L1": (L1Inf(0.1) + L1(0.0), L1Inf(0.1)),
    "L1Inf + L21": (L1Inf(0.0) + L21(0.1), L21(0.1)),
    "L1 + L1Inf + L21": (L1(0.1) + L1Inf(0.1) + L21(0.0), L1(0.1) + L1Inf(0.1)),
    "L1Inf + SortedL1": (L1Inf(0.1) + SortedL1(np.zeros(D)), L1Inf(0.1)),
    "TotalVariation + L21": (TotalVariation(0.0) + L21(0.1), L21(0.1)),
    "ExclusiveL21 + L1": (ExclusiveL21(0.1, 0.1) + L1(0.0), ExclusiveL21(0.1, 0.1)),
    "ExclusiveGroupL21 + L1": (
        ExclusiveGroupL21(0.1, PARTITION) + L1(0.0),
        ExclusiveGroupL21(0.1, PARTITION),
    ),
    "ExclusiveGroupL21 + L1, groups are 0": (ExclusiveGroupL21(0.0, PARTITION) + L1(0.1), L1(0.1)),
}
# A square has a slope of 0 at 0: no strength of it makes W = 0.
WITHOUT_LARGEST = ("ExclusiveGroupL21 + L1",)


def three_ways(penalty, loss, tol):
    """The solution of a problem eagerly, jitted, and in a lane."""
    problem = sj.Problem(loss, penalty)
    eager, jitted = sj.solve(problem, tol=tol), jax.jit(lambda p: sj.solve(p, tol=tol))(problem)
    lanes = jax.vmap(lambda y: sj.solve(sj.Problem(loss._replace(Y=y), penalty), tol=tol))(
        jnp.stack([loss.Y, loss.Y])
    )
    return eager, jitted, jax.tree.map(lambda a: a[0], lanes)


@pytest.mark.parametrize("name", SUMS)
def test_a_part_of_strength_zero(name):
    """A gap, the same however it is called; the solution and the largest strength of the other parts."""
    penalty, alone = SUMS[name]
    loss = losses.SquaredLoss(X, Y)
    problem, other = sj.Problem(loss, penalty), sj.Problem(loss, alone)
    best = sj.solve(other, tol=1e-10)
    for s in three_ways(penalty, loss, 1e-8):
        assert s.converged and 0 <= s.gap <= 1e-8
        np.testing.assert_allclose(s.objective, best.objective, rtol=1e-7)
    for size in (1e-3, 1.0):
        W = best.params + size * rng.standard_normal((D, K))
        P = float(problem(W))
        assert (
            sj.duality_gap(problem, W) >= (P - float(best.objective)) / max(P, float(problem(0 * W))) - 1e-9
        )
    if name in WITHOUT_LARGEST:
        with pytest.raises(ValueError, match="no finite factor"):
            sj.lambda_max(problem)
        return
    top = float(sj.lambda_max(problem))
    strength = 0.1 if name.startswith(("Sparse", "L1", "TotalV", "Exclusive")) else 1.0
    if not isinstance(alone, penalties.Sum) and name != "SparseGroupLasso, groups alone":
        np.testing.assert_allclose(top, float(sj.lambda_max(other)) / strength, rtol=1e-6)
    for factor in (1.0, 0.99):
        assert np.any(np.asarray(sj.solve(sj.Problem(loss, factor * top * penalty)).params)) == (factor < 1)


@pytest.mark.parametrize("bound", [0.0, 1e-14, 1e-3])
def test_dual_ball_where_a_norm_has_no_room(bound):
    """The largest scale is that of l1 alone, but for the bound of the norms, at every Z."""
    for seed in range(20):
        Z = np.random.default_rng(seed).standard_normal((D, K))
        for other in (L21(bound), GroupLasso(bound, PARTITION)):
            scale = float((L1(0.1) + other).dual_scale(jnp.asarray(Z)))
            alone = 0.1 / np.max(np.abs(Z))
            assert alone * (1 - 1e-14) <= scale <= alone + bound / np.min(np.max(np.abs(Z), axis=1))


# ------------------------------------------------------------------ rows and entries of strength 0

ROWS = np.array([0, 0, *[0.05] * (D - 2)])
ENTRIES = np.full((D, K), 0.05)
ENTRIES[0, 0] = ENTRIES[3, 2] = 0
WEIGHTS = (rng.random((N, K)) < 0.9).astype(float)
LABELS = rng.integers(0, 2, (N, K)).astype(float)  # by chance: separable ones have no minimum
CLASSES = np.eye(K)[rng.integers(0, K, N)]
LOSSES = {
    "squared": losses.SquaredLoss(X, Y, intercept=True),
    "weights by entry": losses.SquaredLoss(X, Y, weights=WEIGHTS),
    "logistic": losses.LogisticLoss(X, LABELS, intercept=True),
    "poisson": losses.PoissonLoss(X, LABELS),
    "huber": losses.HuberLoss(X, Y),
    "softmax": losses.SoftmaxLoss(X, CLASSES, intercept=True),
}
FREE = {
    "L1": L1(ROWS),
    "L1 by entry": L1(ENTRIES),
    "L21": L21(ROWS),
    "ExclusiveL21": ExclusiveL21(ROWS, ROWS),
    "L1 + L21": L1(ROWS) + L21(ROWS),
}
PAIRS = [*((name, "L1") for name in LOSSES), *(("squared", name) for name in FREE if name != "L1")]
PAIRS += [("weights by entry", "L1 by entry"), ("logistic", "L1 by entry"), ("softmax", "L1 + L21")]


@pytest.mark.parametrize(("loss", "penalty"), PAIRS)
def test_gap_with_rows_or_entries_of_strength_zero(loss, penalty):
    """The gap bounds the excess over the optimum of a conic solver, near and far, and reaches tol."""
    problem = sj.Problem(LOSSES[loss], FREE[penalty])
    best = conic.minimise(problem)
    s = sj.solve(problem, tol=1e-9)
    assert s.converged and 0 <= s.gap <= 1e-9
    for size, gap, excess, scale in conic.near(problem, s.params, best.objective, (0, 1e-6, 1e-3, 1.0), rng):
        assert gap >= excess / scale - 1e-12
        assert not size <= 1e-6 or gap <= 1e-4


@pytest.mark.parametrize("penalty", ["L1", "L1 by entry"])
def test_gap_is_the_same_however_the_solve_is_called(penalty):
    loss = losses.SquaredLoss(X, Y)
    gaps = [float(s.gap) for s in three_ways(FREE[penalty], loss, 1e-9)]
    assert np.isfinite(gaps).all() and max(gaps) <= 1e-9
    # where no gap is known, it is known in none: a loss without the products, or too many free features
    for known, strengths in ((loss.gram(), ROWS), (losses.SquaredHingeLoss(X, 2 * LABELS - 1), ROWS)):
        p = sj.Problem(known, L1(strengths))
        for s in (sj.solve(p, tol=1e-7), jax.jit(lambda p: sj.solve(p, tol=1e-7))(p)):
            assert s.converged and np.isnan(s.gap)


def test_a_covariate_in_large_units_is_judged_by_its_gap():
    """A column that is not penalised, times 1e4: the residual would accept a point far from the optimum."""
    wide = X * np.array([1e4, *[1.0] * (D - 1)])
    problem = sj.Problem(losses.SquaredLoss(wide, Y, intercept=True), L1(np.array([0, *[0.05] * (D - 1)])))
    best = conic.minimise(sj.Problem(losses.SquaredLoss(X, Y, intercept=True), problem.penalty))
    assert sj.solve(problem, tol=1e-2).converged
    for solver in (sj.fista, sj.admm, sj.solve):  # fista takes many more iterations
        s = jax.jit(lambda p, solver=solver: solver(p, tol=1e-2, maxiter=2000))(problem)
        value = conic.objective(problem, s.params)
        excess = (value - best.objective) / max(value, conic.objective(problem, np.zeros((D, K))))
        assert excess <= s.gap and bool(s.converged) == bool(s.gap <= 1e-2)


def test_more_free_features_than_a_gap_is_known_with():
    """More than 64: the residual decides. With 64 of them a gap is known."""
    rng = np.random.default_rng(1)
    wide, y = rng.standard_normal((100, 80)), rng.standard_normal(100)
    for count in (64, 65):
        strength = np.where(np.arange(80) < count, 0, 0.05)
        s = sj.solve(sj.Problem(losses.SquaredLoss(wide, y), L1(strength)), tol=1e-7)
        assert s.converged and np.isfinite(s.gap) == (count == 64)


@pytest.mark.parametrize("name", ["logistic", "softmax", "cox", "cox by stratum"])
@pytest.mark.parametrize("penalty", ["L1", "TotalVariation"])
def test_separated_labels(name, penalty):
    """Probabilities near 0 and 1 leave hardly any room to project a dual point, but there is a gap."""
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((90, D))
    h = Z[:, 0] + Z[:, 2] - Z[:, 4]
    loss = {
        "logistic": lambda: losses.LogisticLoss(Z, (h > 0).astype(float), intercept=True),
        "softmax": lambda: losses.SoftmaxLoss(Z, np.eye(3)[np.digitize(h, [-1, 1])], intercept=True),
        "cox": lambda: losses.CoxLoss(Z, np.exp(-h), np.ones(90)),
        "cox by stratum": lambda: losses.CoxLoss(Z, np.exp(-h), np.ones(90), strata=np.arange(90) % 3),
    }[name]()
    strength = 1e-4 if name in ("logistic", "softmax") else 1e-3
    problem = sj.Problem(loss, TotalVariation(strength) if penalty != "L1" else L1(strength * (ROWS > 0)))
    s = sj.solve(problem, tol=1e-8, maxiter=100)
    assert s.converged and s.num_iters <= 40
    at_zero = conic.objective(problem, np.zeros_like(s.params))
    if not name.startswith("cox"):
        assert abs(float(s.objective) - conic.minimise(problem).objective) <= 1e-6 * at_zero
    for size, gap, excess, scale in conic.near(problem, s.params, s.objective, (1e-6, 1e-3, 0.1), rng):
        assert gap >= excess / scale - 1e-12
        assert not size <= 1e-6 or gap <= 1e-4


# ------------------------------------------------------------------ where no gap is known


@pytest.mark.parametrize(
    ("penalty", "known"),
    [
        (SumTo(0.3) + L1(np.array([0, *[0.1] * (D - 1)])), True),
        (SumTo(0.3) + L1(np.array([0, 0, *[0.1] * (D - 2)])), False),
        (SumTo(0.3) + L1(np.array([0, 0, *[0.1] * (D - 2)])) + penalties.NonNegative(), True),
        (SumTo(0.3) + L1(np.array([0, 0, *[0.1] * (D - 2)])) + penalties.SquaredL2(0.1), True),
        (SumTo(0.3) + L21(np.array([0, *[0.1] * (D - 1)])), False),
        (L1(0.0), False),
        (L1(np.zeros(D)), True),
        (L1(0.0) + L21(0.1), True),
    ],
)
def test_which_strengths_of_zero_leave_a_gap(penalty, known):
    """Beside a given sum, and as one number: `duality_gap` lists them."""
    s = sj.solve(sj.Problem(losses.SquaredLoss(X, Y), penalty))
    assert s.converged and np.isfinite(s.gap) == known


def test_gap_of_a_free_row_beside_rows_with_a_norm_and_rows_with_squares() -> None:
    # Row 0 is free, row 1 has a norm alone, and the other rows also have squares.
    alpha = np.array([0.0, *[0.01] * (D - 1)])
    beta = np.array([0.0, 0.0, *[0.1] * (D - 2)])
    problem = sj.Problem(losses.SquaredLoss(X, Y), ExclusiveL21(alpha, beta))
    solution = sj.solve(problem, tol=1e-10)
    assert solution.converged and solution.gap <= 1e-10
    at_0 = problem.smooth(jnp.zeros((D, K)))
    for size in (0, 1e-4, 0.1, 1):
        W = jnp.asarray(size * np.random.default_rng(0).standard_normal((D, K)))
        gap, value = sj.duality_gap(problem, W), problem.smooth(W) + problem.penalty.value(W)
        excess = (value - solution.objective) / jnp.maximum(value, at_0)
        assert excess - 1e-10 <= gap < jnp.inf
