"""Sums of penalties, and what is mostly part of one, against the conic solver."""

import dataclasses

import conic
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import K, data
from hypothesis import given
from hypothesis import strategies as st
from loss_cases import LOSSES
from penalty_cases import D
from properties import assert_firm, assert_optimal, drawn, properties

import sparsejax as sj
from sparsejax.penalties import (
    L1,
    L21,
    Box,
    ElasticNet,
    ExclusiveGroupL21,
    ExclusiveL21,
    ExclusiveLasso,
    GroupLasso,
    L1Inf,
    NonNegative,
    SparseGroupLasso,
    SquaredL2,
)

DISJOINT = sj.groups.from_labels([0, 0, 1, 1, 1, 2, 2, 3])
OVERLAPPING = sj.groups.from_lists([[0, 1, 4], [1, 5], [2, 3, 6], [6, 7], [7, 4]], D)
PARTIAL = sj.groups.from_lists([[0, 1, 4], [1, 5], [2, 3]], D)  # two features in no group

RIDGE = 0.2 * (np.arange(D) % 2)

# name: (the penalty times a factor, how many terms); the factor 1 leaves zeros and nonzeros
SUMS = {
    "ridge": (lambda t: SquaredL2(0.1 * t), 1),
    "box": (lambda t: Box(-0.2, 0.3), 1),
    "box without 0": (lambda t: Box(0.1, 0.3), 1),
    "overlapping": (lambda t: GroupLasso(0.2 * t, OVERLAPPING), 3),
    "features in no group": (lambda t: GroupLasso(0.2 * t, PARTIAL), 2),
    "elastic net": (lambda t: ElasticNet(0.3 * t, 0.4), 1),
    "l1 + l21": (lambda t: L1(0.05 * t) + L21(0.2 * t), 1),
    "sparse group": (lambda t: SparseGroupLasso(0.2 * t, 0.3, DISJOINT), 1),
    "sparse, overlapping": (lambda t: SparseGroupLasso(0.15 * t, 0.3, OVERLAPPING), 3),
    "nonnegative lasso": (lambda t: L1(0.1 * t) + NonNegative(), 1),
    "nonnegative l21": (lambda t: L21(0.2 * t) + NonNegative(), 1),
    "nonnegative exclusive lasso": (lambda t: NonNegative() + ExclusiveLasso(0.05 * t), 1),
    "nonnegative groups": (lambda t: GroupLasso(0.2 * t, DISJOINT) + NonNegative(), 1),
    "exclusive l21 + ridge": (lambda t: ExclusiveL21(0.1 * t, 0.02 * t) + SquaredL2(0.2 * t), 1),
    "exclusive groups + ridge": (lambda t: ExclusiveGroupL21(0.1 * t, OVERLAPPING) + SquaredL2(0.1), 1),
    "all": (lambda t: L1(0.05 * t) + L21(0.1 * t) + SquaredL2(0.1 * t) + NonNegative(), 1),
    "lasso in a box": (lambda t: L1(0.1 * t) + Box(-0.2, 0.3), 1),
    "elastic net in a box": (lambda t: Box(-0.2, np.inf) + ElasticNet(0.2 * t, 0.5), 1),
    "lasso above 0.1": (lambda t: L1(0.1 * t) + Box(0.1, np.inf), 1),
    "ridge by row, box without 0": (lambda t: L1(0.1 * t) + SquaredL2(RIDGE * t) + Box(0.1, 0.3), 1),
    "l21 in a box": (lambda t: L21(0.2 * t) + Box(-0.2, 0.3), 2),
    "nonnegative ridge": (lambda t: SquaredL2(0.3 * t) + NonNegative(), 1),
    "l1inf + l1": (lambda t: L1Inf(0.2 * t) + L1(0.05 * t), 2),
    "rows and groups": (lambda t: L21(0.1 * t) + GroupLasso(0.1 * t, DISJOINT), 2),
}
EXACT = [name for name, (_, terms) in SUMS.items() if terms == 1]
every = pytest.mark.parametrize("name", SUMS)


def penalty_of(name, factor=1.0):
    return SUMS[name][0](factor)


def problem_of(name, dtype=None):
    X, H = data(dtype=dtype)
    return sj.Problem(sj.losses.SquaredLoss(X, H), penalty_of(name))


@every
def test_terms_and_value(name, rng):
    """As many terms as the docstring says; the value is the documented one, inf outside a constraint."""
    penalty = penalty_of(name)
    assert len(penalty.terms) == SUMS[name][1]
    for W in (np.full((D, K), 0.15), rng.standard_normal((D, K)), np.zeros((D, K))):
        np.testing.assert_allclose(penalty.value(W), conic.penalty_value(penalty, W), rtol=1e-13)


@every
def test_prox_is_the_minimiser(name, rng):
    V = rng.standard_normal((D, K)) * 10 ** rng.uniform(-0.5, 0.5, (D, 1))
    penalty, scaling = penalty_of(name, 3.0), 0.7
    problem = sj.Problem(sj.losses.SquaredLoss(np.eye(D), V, scale=0.5 / scaling), penalty)
    ours, theirs = np.asarray(jax.jit(penalty.prox)(V, scaling)), conic.minimise(problem)
    distance = np.sum((ours - theirs.params) ** 2) / (2 * scaling)  # strong convexity, and their accuracy
    assert distance <= 1e-8 * (1 + abs(theirs.objective))
    assert conic.objective(problem, ours) <= theirs.objective + 1e-8 * abs(theirs.objective)


@properties
@pytest.mark.parametrize("name", EXACT)
@drawn(20)
@given(seed=st.integers(0, 2**16), size=st.floats(-2, 2) | st.sampled_from([-320, -30, 12]))
def test_what_a_sum_is(name, seed, size):
    """Equality at the subgradient that the prox leaves, inequality to the edge of the domain; a prox."""
    rng = np.random.default_rng(seed)
    penalty = penalty_of(name, rng.uniform(0.1, 3))
    Z, V = 10**size * rng.standard_normal((D, K)), rng.standard_normal((D, K))
    edge, conjugate, T, at_T, there, scale = map(np.asarray, _conjugates(penalty, Z, V))
    W = np.asarray(sj.penalties.feasible(penalty, np.asarray(rng.standard_normal((D, K)))))
    value = float(penalty.value(W))
    assert value + conjugate - np.sum(edge * W) >= -1e-12 * (np.abs(edge * W).sum() + abs(value))
    assert abs(at_T + there - np.sum((V - T) * T)) <= 1e-11 * np.abs(V).sum() ** 2
    assert scale >= 1 - 1e-10
    far = 10**size * rng.standard_normal((D, K))
    other = np.asarray(_conjugates(penalty, Z, far)[2])
    assert_firm(V, far, T, other, 1e-12)
    assert_optimal(V, T, [W, other], lambda U: float(penalty.value(U)), 1, 1e-12)


@jax.jit
def _conjugates(penalty, Z, V):
    edge = Z * jnp.minimum(1.0, penalty.dual_scale(Z))
    T = penalty.prox(V)
    return (
        edge,
        penalty.conjugate(edge),
        T,
        penalty.value(T),
        penalty.conjugate(V - T),
        penalty.dual_scale(V - T),
    )


@every
def test_solution_is_the_minimum(name):
    """By what `solve` picks; the gap is never below the distance to the minimum, at other points either."""
    problem = problem_of(name)
    solution = sj.solve(problem, tol=1e-9)
    minimum = conic.minimise(problem).objective
    assert solution.converged, solution.message
    assert abs(float(solution.objective) - minimum) <= 1e-8 * abs(minimum)
    assert 0 <= solution.gap <= 1e-9
    rng = np.random.default_rng(3)
    top = max(float(problem(sj.penalties.feasible(problem.penalty, jnp.zeros((D, K))))), abs(minimum))
    for size in (0.01, 1.0):
        W = sj.penalties.feasible(problem.penalty, solution.params + size * rng.standard_normal((D, K)))
        gap, excess = float(sj.duality_gap(problem, W)), float(problem(W)) - minimum
        assert gap >= excess / max(top, abs(float(problem(W)))) - 1e-8


@pytest.mark.parametrize("name", ["sparse group", "l21 in a box"])
@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss != "SquaredLoss"])
def test_every_loss(loss, name):
    """A joint term, and two of them."""
    smooth = LOSSES[loss](*data())
    top = float(jnp.max(jnp.abs(jax.grad(smooth)(jnp.zeros((D, K))))))
    problem = sj.Problem(smooth, penalty_of(name, top / 1.5))
    solution = sj.solve(problem, tol=1e-9)
    minimum = conic.minimise(problem).objective
    assert solution.converged, solution.message
    assert abs(float(solution.objective) - minimum) <= 1e-8 * abs(minimum)


@pytest.mark.parametrize("loss", ["SquaredLoss", "LogisticLoss", "SoftmaxLoss", "HuberLoss"])
def test_gap_with_features_in_no_group(loss):
    """Known at any point, or infinite; never below the distance to the minimum."""
    smooth = LOSSES[loss](*data(n=30), intercept=True)
    problem = sj.Problem(smooth, GroupLasso(0.1, PARTIAL))
    solution = sj.solve(problem, tol=1e-9)
    assert solution.converged and solution.gap <= 1e-9
    rng, at_zero, gap_of = (
        np.random.default_rng(0),
        float(problem(jnp.zeros((D, K)))),
        jax.jit(sj.duality_gap),
    )
    for _ in range(20):
        W = solution.params + 10 ** rng.uniform(-4, 0) * rng.standard_normal((D, K))
        value = float(problem(W))
        excess = (value - float(solution.objective)) / max(abs(value), at_zero)
        assert float(gap_of(problem, W)) >= excess - 1e-8


@pytest.mark.parametrize("high", [0.3, np.inf])
def test_a_box_without_0_has_the_conjugate_of_its_entries(high):
    """A norm, a square and Box(0.1, 0.3) had too small a gap; with Box(0.1, inf) nothing converged."""
    penalty, Z = L1(0.05) + SquaredL2(0.5) + Box(0.1, high), np.array([0.3, -0.2, 0.02, 1.5, -3.0])
    w = np.linspace(0.1, min(high, 9.0), 100_001)
    best = sum(np.max(z * w - 0.05 * w - 0.25 * w**2) for z in Z)
    np.testing.assert_allclose(penalty.conjugate(Z), best, rtol=1e-8)
    X, _ = data()
    y = X @ np.linspace(-2, 2, D)
    solution = sj.solve(sj.Problem(sj.losses.SquaredLoss(X, y), L1(0.01) + Box(0.1, high)), tol=1e-10)
    assert solution.converged and np.any(solution.params > 0.11)


def test_a_constraint_alone_is_judged_by_its_residual():
    problem = sj.Problem(sj.losses.SquaredLoss(*data()), NonNegative())
    solution = sj.solve(problem, tol=1e-9)
    assert solution.converged and np.isnan(solution.gap) and (np.asarray(solution.params) >= 0).all()
    minimum = conic.minimise(problem).objective
    assert abs(float(solution.objective) - minimum) <= 1e-8 * minimum


@pytest.mark.parametrize("solver", ["fista", "davis_yin"])
def test_other_solvers(solver):
    """One by the joint prox, one by the terms."""
    problem = problem_of("l21 in a box")
    solution = getattr(sj, solver)(problem, tol=1e-8)
    assert solution.converged
    reference = float(sj.solve(problem, tol=1e-10).objective)
    np.testing.assert_allclose(float(solution.objective), reference, rtol=1e-8)


@pytest.mark.parametrize(
    "name",
    ["l1 + l21", "sparse group", "nonnegative l21", "overlapping", "l21 in a box", "l1inf + l1"],
)
def test_lanes_and_derivatives(name):
    """vmap over strengths, jit, and both modes of differentiation against differences."""
    smooth = sj.losses.SquaredLoss(*data())

    def solve(t):
        return sj.solve(sj.Problem(smooth, penalty_of(name, t)), tol=1e-13)

    factors = jnp.array([0.7, 1.0, 1.3])
    lanes = jax.jit(jax.vmap(solve))(factors)
    assert lanes.converged.all()
    np.testing.assert_allclose(lanes.params[1], solve(1.0).params, atol=1e-9)
    direction = np.random.default_rng(5).standard_normal((D, K))
    f = lambda t: jnp.sum(direction * solve(t).params)
    slope = (f(1.0 + 1e-5) - f(1.0 - 1e-5)) / 2e-5
    np.testing.assert_allclose(jax.grad(f)(1.0), slope, rtol=1e-4)
    np.testing.assert_allclose(jax.jvp(f, (1.0,), (1.0,))[1], slope, rtol=1e-4)


def test_derivative_in_the_bounds():
    """Where a bound moves the solution moves with it."""
    smooth = sj.losses.SquaredLoss(*data())
    f = lambda high: jnp.sum(sj.solve(sj.Problem(smooth, L1(0.05) + Box(-0.2, high)), tol=1e-13).params ** 2)
    slope = (f(0.3 + 1e-5) - f(0.3 - 1e-5)) / 2e-5
    np.testing.assert_allclose(jax.grad(f)(0.3), slope, rtol=1e-4)
    assert abs(float(slope)) > 0.1


@pytest.mark.parametrize("name", ["sparse group", "all", "l21 in a box", "overlapping"])
def test_float32(name):
    solution = sj.solve(problem_of(name, dtype=np.float32))
    assert solution.converged and solution.params.dtype == np.float32
    reference = sj.solve(problem_of(name), tol=1e-9)
    assert float(solution.objective) <= float(reference.objective) * (1 + 2e-4)


@pytest.mark.parametrize(
    "name",
    [
        "elastic net",
        "l1 + l21",
        "nonnegative l21",
        "lasso in a box",
        "sparse, overlapping",
        "l21 in a box",
        "l1inf + l1",
    ],
)
def test_lambda_max_is_the_least_factor_with_no_features(name):
    problem = problem_of(name)
    top = float(sj.lambda_max(problem))
    at = lambda factor: sj.solve(problem.replace(penalty=factor * problem.penalty), tol=1e-12).params
    assert not np.any(at(top))
    assert np.any(at(0.999 * top))


def test_lambda_max_where_there_is_none():
    loss = sj.losses.SquaredLoss(*data())
    for penalty in (SquaredL2(1.0), ExclusiveLasso(1.0) + SquaredL2(1.0), L1(0.1) + Box(0.1, 0.3)):
        with pytest.raises(ValueError, match=r"has no finite strength|no finite factor"):
            sj.lambda_max(sj.Problem(loss, penalty))


@pytest.mark.parametrize("name", ["sparse group", "elastic net", "groups"])
def test_wide(name):
    """By Newton on one scalar a group or the working set: certified, and the same as by the engine alone."""
    rng = np.random.default_rng(0)
    n, d = 40, 800
    X = rng.standard_normal((n, d)) + 0.5 * rng.standard_normal((n, 1))
    Y = X[:, :12] @ rng.standard_normal((12, 2)) + 0.1 * rng.standard_normal((n, 2))
    groups = sj.groups.from_labels(np.arange(d) // 4)
    penalty = {
        "sparse group": lambda a: SparseGroupLasso(a, 0.3, groups),
        "elastic net": lambda a: ElasticNet(a, 0.5),
        "groups": lambda a: GroupLasso(a, groups),
    }[name]
    problem = sj.Problem(sj.losses.SquaredLoss(X, Y), penalty(1.0))
    problem = problem.replace(penalty=penalty(float(sj.lambda_max(problem)) / 10))
    solution = sj.solve(problem, tol=1e-8)
    expected = sj.variational_newton if name == "groups" else sj.working_set
    assert sj.solvers.pick(problem).function is expected
    assert solution.converged and 0 < np.any(np.asarray(solution.params), axis=1).sum() < d / 4
    np.testing.assert_allclose(solution.objective, sj.admm(problem, tol=1e-9).objective, rtol=1e-8)


def test_path_folds_and_tuning():
    problem = problem_of("sparse group")
    penalties = jax.vmap(lambda a: SparseGroupLasso(a, 0.3, DISJOINT))(jnp.array([0.4, 0.2, 0.1]))
    solutions = sj.path(problem, penalties, tol=1e-9)
    assert solutions.converged.all()
    alone = sj.solve(problem.replace(penalty=SparseGroupLasso(0.1, 0.3, DISJOINT)), tol=1e-9)
    np.testing.assert_allclose(solutions.objective[2], alone.objective, rtol=1e-8)
    assert sj.cross_validate(problem, penalties, folds=2).converged.all()
    tuned = sj.tune(problem, sj.losses.SquaredLoss(*data(seed=1)), maxiter=3)
    assert all(
        np.isfinite(part.strength if hasattr(part, "strength") else part.alpha).all()
        for part in tuned.penalty.parts
    )


def test_path_with_infinite_bounds():
    bounded = lambda a, high=np.inf: L1(a) + Box(-0.2, high)
    problem = problem_of("lasso in a box").replace(penalty=bounded(0.1))
    solutions = sj.path(problem, jax.vmap(bounded)(jnp.array([0.2, 0.1])))
    assert solutions.converged.all() and (np.asarray(solutions.params) >= -0.2).all()
    with pytest.raises(ValueError, match="path: high of Box must not be NaN"):
        sj.path(problem, jax.vmap(bounded)(jnp.array([0.2, 0.1]), jnp.full(2, np.nan)))


def test_errors_name_the_part():
    problem, both = problem_of("lasso in a box"), jax.vmap(lambda a, b: L1(a) + L1(b))
    penalties = both(jnp.array([0.2, 0.1]), jnp.array([0.1, -0.1]))
    with pytest.raises(ValueError, match="path: strength of L1 2 must be finite and >= 0"):
        sj.path(problem.replace(penalty=L1(0.1) + L1(0.2)), penalties)


def test_groups_built_outside_serve_inside_jit():
    @jax.jit
    def solve(groups, alpha):
        return sj.solve(sj.Problem(sj.losses.SquaredLoss(*data()), GroupLasso(alpha, groups)), tol=1e-9)

    inside = solve(OVERLAPPING, 0.2)
    outside = sj.solve(problem_of("overlapping"), tol=1e-9)
    np.testing.assert_allclose(inside.objective, outside.objective, rtol=1e-9)


def test_multiples_scale_what_is_a_strength():
    W = np.abs(np.random.default_rng(0).standard_normal((D, K)))
    for penalty in (L1(0.3), ExclusiveL21(0.1, 0.2), penalty_of("all"), penalty_of("overlapping")):
        np.testing.assert_allclose((2 * penalty).value(W), 2 * penalty.value(W), rtol=1e-14)
    assert (3 * NonNegative()).value(-W) == np.inf
    np.testing.assert_array_equal((2 * Box(-1.0, 1.0)).high, 1.0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mine:
    """A lasso that is known by value and prox alone."""

    strength: float

    def value(self, W):
        return self.strength * jnp.sum(jnp.abs(W))

    def prox(self, V, scaling=1.0):
        return jnp.sign(V) * jnp.maximum(jnp.abs(V) - scaling * self.strength, 0)


def test_your_own_in_a_sum():
    """From either side; no gap is made up, and the minimum is right."""
    smooth = sj.losses.SquaredLoss(*data())
    for penalty in (Mine(0.05) + L21(0.2), L21(0.2) + Mine(0.05), Mine(0.05) + SquaredL2(0.1)):
        solution = sj.solve(sj.Problem(smooth, penalty), tol=1e-8)
        assert solution.converged and np.isnan(solution.gap)
        known = L1(0.05) + (L21(0.2) if len(penalty.terms) > 1 else SquaredL2(0.1))
        np.testing.assert_allclose(
            solution.objective, sj.solve(sj.Problem(smooth, known), tol=1e-10).objective, rtol=1e-8
        )


class ByRow(sj.Penalty, leaves=("strengths_of_rows",)):
    """l1 of vectors W (d,) with a strength for each row."""

    strengths = ("strengths_of_rows",)

    def value(self, W):
        return jnp.sum(self.strengths_of_rows * jnp.abs(W))

    def prox(self, V, scaling=1.0):
        return jnp.sign(V) * jnp.maximum(jnp.abs(V) - scaling * self.strengths_of_rows, 0)


class ByRowInFull(ByRow, leaves=("strengths_of_rows",)):
    """The same with a certificate and all else."""

    degrees = (1,)
    finite_conjugate = False

    def conjugate(self, Z, aux=None):
        return jnp.zeros((), Z.dtype)

    def dual_scale(self, Z):
        return 1 / self.dual_norm(Z)

    def dual_norm(self, Z):
        return jnp.max(jnp.abs(Z) / self.strengths_of_rows)

    def smooth_where(self, W):
        return W != 0


class Slope(sj.Penalty, leaves=("s",)):
    """SLOPE of vectors, which sorts along the last axis."""

    strengths = ("s",)

    def value(self, W):
        return jnp.sum(self.s * jnp.sort(jnp.abs(W))[::-1])

    def prox(self, V, scaling=1.0):
        return sj.prox.sorted_l1(V, scaling * self.s)


ADDED = [SquaredL2(0.2), NonNegative(), Box(-0.2, 0.3), sj.penalties.TotalVariation(0.05), L1(0.05)]


@pytest.mark.parametrize("added", ADDED, ids=lambda part: type(part).__name__)
@pytest.mark.parametrize("own", [ByRow, ByRowInFull, Slope])
def test_a_sum_gives_a_penalty_of_vectors_vectors(own, added):
    """Not matrices of one column, for which strengths by row and sorted ones would mean another function."""
    X, H = data(n=30)
    s = jnp.linspace(0.3, 0.1, D)
    known = (sj.penalties.SortedL1 if own is Slope else L1)(s)
    problem, same = (sj.Problem(sj.losses.SquaredLoss(X, H[:, 0]), part(s) + added)
                     for part in (own, lambda s: known))  # fmt: skip
    V = jnp.cos(jnp.linspace(0.0, 9.0, D))
    np.testing.assert_allclose(problem.penalty.prox(V, 0.7), same.penalty.prox(V, 0.7), atol=1e-12)
    expected = sj.solve(same, tol=1e-10)
    tol = 1e-10 if own is ByRowInFull else 1e-7
    for solve in (sj.solve, jax.jit(sj.solve))[: 2 if added is ADDED[0] else 1]:
        found = solve(problem, tol=tol)
        assert found.converged and found.objective <= expected.objective * (1 + 1e-8)
        np.testing.assert_allclose(found.params, expected.params, atol=1e-4)
    if own is ByRowInFull:
        assert sj.duality_gap(problem, expected.params) <= 1e-5
        np.testing.assert_allclose(sj.lambda_max(problem), sj.lambda_max(same), rtol=1e-6)
    if added is ADDED[0]:
        twice = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), problem.penalty)
        np.testing.assert_allclose(sj.path(problem, twice, tol=tol).params[1], expected.params, atol=1e-4)


def test_the_chosen_sum_has_the_parts_that_were_given():
    X, H = data(n=30)
    problem = sj.Problem(sj.losses.SquaredLoss(X, H[:, 0]), ByRow(jnp.full(D, 0.1)) + SquaredL2(0.1))
    candidates = jax.vmap(lambda f: f * problem.penalty)(jnp.array([1.0, 0.5]))
    chosen = (
        sj.cross_validate(problem, candidates, folds=3).best,
        sj.tune(problem, problem.smooth, maxiter=1).penalty,
    )
    assert all(isinstance(penalty.parts[0], ByRow) for penalty in chosen)


def test_a_part_that_closes_over_a_traced_array():
    X, H = data(n=30)
    loss = sj.losses.SquaredLoss(X, H[:, 0])

    def total(strength, own):
        class Closing(sj.Penalty, leaves=()):
            def value(self, W):
                return strength * jnp.sum(jnp.abs(W))

            def prox(self, V, scaling=1.0):
                return sj.prox.l1(V, strength, scaling)

        penalty = (Closing() if own else L1(strength)) + SquaredL2(0.1)
        return jnp.sum(sj.solve(sj.Problem(loss, penalty), tol=1e-9).params)

    for transform in (jax.jit, jax.grad):
        found, expected = (transform(lambda s, own=own: total(s, own))(0.1) for own in (True, False))
        np.testing.assert_allclose(found, expected, rtol=1e-4)


X8 = np.eye(D)
BAD = {
    "a sum with itself": (lambda p: p + p, ValueError, "with itself.*2 \\* penalty"),
    "a number": (lambda p: p + 1, TypeError, "unsupported operand"),
    "by leaf": (lambda p: p + sj.penalties.ByLeaf({"a": L1(1.0)}), TypeError, "put the sum inside"),
    "low > high": (lambda p: Box(1.0, 0.0), ValueError, "low must be <= high"),
    "NaN bound": (lambda p: Box(np.nan, 0.0), ValueError, "low .* without NaN"),
    "a word": (lambda p: Box("a", 0.0), TypeError, "low must be"),
    "bounds of another length": (
        lambda p: sj.Problem(sj.losses.SquaredLoss(X8, X8), Box(np.zeros(3), 1.0)),
        ValueError,
        "low has shape",
    ),
    "boxes apart": (lambda p: Box(0.0, 1.0) + Box(2.0, 3.0), ValueError, "no point in common"),
    "a box below zero": (lambda p: NonNegative() + Box(-2.0, -1.0), ValueError, "no point in common"),
    "negative factor": (lambda p: -1.0 * p, ValueError, "factor of a penalty must be >= 0"),
    "factors": (
        lambda p: p * np.ones(3),
        ValueError,
        r"factor of a penalty must be a number, got shape \(3,\)",
    ),
    "factors before": (lambda p: np.ones(3) * p, ValueError, r"must be a number, got shape \(3,\)"),
    "l1_ratio": (lambda p: ElasticNet(1.0, 1.5), ValueError, r"l1_ratio must be a number in \[0, 1\]"),
    "no groups": (lambda p: SparseGroupLasso(1.0, 0.5, [[0]]), TypeError, "groups must be built"),
    "groups of another width": (
        lambda p: sj.Problem(sj.losses.SquaredLoss(X8, X8), GroupLasso(1.0, sj.groups.from_labels([0, 1]))),
        ValueError,
        "groups has 2 features",
    ),
    "too many terms": (
        lambda p: GroupLasso(1.0, sj.groups.from_lists([[0, i] for i in range(1, 80)], 80)),
        ValueError,
        "more than 64 terms",
    ),
    "no penalty": (lambda p: sj.penalties.Sum([]), ValueError, "parts is empty"),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_input(bad):
    call, error, pattern = BAD[bad]
    with pytest.raises(error, match=pattern):
        call(L1(0.1))


@pytest.mark.parametrize("penalty", [NonNegative(), L1(0.1) + Box(-0.5, 0.5)])
def test_a_start_outside_the_constraint_is_moved_inside(penalty, rng):
    X = rng.standard_normal((20, 4))
    p = sj.Problem(sj.losses.SquaredLoss(X, X @ np.array([1.0, -2.0, 0.0, 3.0])), penalty)
    start = np.array([-7.0, 7.0, -7.0, 0.25])
    for solve in (sj.solve, jax.jit(sj.solve)):
        assert np.isfinite(solve(p, start, maxiter=0).objective)
        np.testing.assert_allclose(solve(p, start, tol=1e-9).params, sj.solve(p, tol=1e-9).params, atol=1e-6)


def test_sum_from_a_zero_of_numpy():
    penalty = L1(1.0)
    assert np.int64(0) + penalty is penalty and len(sum([penalty, L21(1.0)], np.int64(0)).parts) == 2


def test_bounds_of_a_wrong_length_are_named_beside_a_sum():
    X, y = np.eye(6, 4), np.ones(6)
    for penalty in (
        sj.penalties.SumTo(1.0) + Box(np.zeros(5), np.ones(5)),
        Box(np.zeros(5), np.ones(5)) + sj.penalties.SumTo(1.0),
    ):
        with pytest.raises(ValueError, match=r"Box: low has shape \(5,\)"):
            sj.Problem(sj.losses.SquaredLoss(X, y), penalty)


def test_boxes_of_different_lengths_are_refused_by_name():
    with pytest.raises(ValueError, match=r"bounds of different lengths, \[4, 5\]"):
        Box(np.zeros(5), np.ones(5)) + Box(np.zeros(4), np.ones(4))


def test_boxes_whose_bounds_vary_along_a_path():
    stacked = jax.vmap(lambda low: Box(low, jnp.ones(4)))(jnp.zeros((3, 4)))
    with jax.numpy_rank_promotion("allow"):
        assert len((stacked + Box(np.zeros(4), np.ones(4))).parts) == 2


@pytest.mark.parametrize(("low", "high"), [(-np.inf, -1.0), (1.0, np.inf), (-np.inf, 1.0), (-2.0, -1.0)])
def test_a_box_alone_has_the_conjugate_of_its_entries(low, high):
    """With one infinite bound and without 0 the conjugate was 0, and the gap of an exact solution was 0.8."""
    w, Z = np.linspace(max(low, -9.0), min(high, 9.0), 1001), np.array([2.0, 0.5, 0.0])
    Z = -Z if np.isinf(high) else Z
    np.testing.assert_allclose(Box(low, high).conjugate(Z), sum(np.max(z * w) for z in Z), rtol=1e-12)
    at_zero = jax.grad(Box(low, high).conjugate)(jnp.zeros(2))  # a point of the interval: a subgradient
    assert ((at_zero >= low) & (at_zero <= high)).all()
    X = np.random.default_rng(0).standard_normal((30, 4))
    loss = sj.losses.SquaredLoss(X, X @ np.array([2.0, 0.0, 1.5, -1.0]))
    assert sj.solve(sj.Problem(loss, Box(low, high))).converged


@pytest.mark.parametrize("factor", [2.0**-80, 2.0**-64, 2.0**64, 2.0**80])
def test_dual_norm_of_several_terms_at_any_size(factor):
    G = sj.groups.from_lists([[0, 1, 2], [2, 3, 4]], num_features=5)
    Z = jnp.array([1.0, -2.0, 0.5, 3.0, -1.0], jnp.float32)[:, None]
    for penalty in (GroupLasso(1.0, G), GroupLasso(1.0, G) + L1(0.5)):
        np.testing.assert_allclose(penalty.dual_norm(Z * factor) / factor, penalty.dual_norm(Z), rtol=1e-5)
        assert jnp.isnan(penalty.dual_norm(Z.at[0].set(jnp.nan)))
        assert penalty.dual_norm(0 * Z) == 0


class Centred(sj.Penalty, leaves=()):
    def value(self, W):
        return 0

    def prox(self, V, scaling=1.0):
        return V - jnp.mean(V)


@pytest.mark.parametrize("other", [NonNegative(), L1(0.05)])
def test_a_users_value_may_be_an_integer_in_a_sum(other):
    X, y = np.random.default_rng(0).standard_normal((2, 20, 8))
    problem = sj.Problem(sj.losses.SquaredLoss(X, y[:, 0]), Centred() + other)
    assert np.isfinite(sj.fista(problem).objective)
