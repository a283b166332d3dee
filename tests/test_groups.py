"""Groups and what is built on them: the prox, the penalty, reweighting."""

import conic
import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest
from aaai16_example import X as EXAMPLE_X
from aaai16_example import Y as EXAMPLE_Y
from cases import K, data
from hypothesis import given
from hypothesis import strategies as st
from loss_cases import LOSSES
from penalty_cases import GROUPS, D
from properties import drawn, properties

import sparsejax as sj
from sparsejax import groups, losses, penalties, prox

OVERLAPPING = [[0, 1, 2], [2, 3], [1, 3, 4], [5], [5, 6], [5, 6]]
DISJOINT = [[0, 3], [1, 2, 6], [4, 5]]


def large(lists, d):
    """The same groups as a set of many features would have them: without their matrix."""
    g = groups.from_lists(lists, d)
    return g._replace(common=jnp.zeros((0, 0), jnp.int32))


KINDS = {
    "disjoint": groups.from_lists(DISJOINT, 7),
    "overlapping": groups.from_lists(OVERLAPPING, 7),
    "many": large(OVERLAPPING, 7),
    "free": groups.from_lists([[0, 1], [1, 4]], 7),
    "none": groups.from_lists([], 7),
}
kinds = pytest.mark.parametrize("kind", KINDS)


# ------------------------------------------------------------------ construction


def membership(g):
    M = np.zeros((g.num_features, g.num_groups))
    M[np.asarray(g.members), np.asarray(g.group_ids)] = 1
    return M


@kinds
def test_sums_and_spread_are_products_with_the_memberships(kind, rng):
    g = KINDS[kind]
    M = membership(g)
    r, s = rng.standard_normal(7), rng.standard_normal(g.num_groups)
    np.testing.assert_allclose(g.sums(jnp.asarray(r)), M.T @ r, atol=1e-14)
    np.testing.assert_allclose(g.spread(jnp.asarray(s)), M @ s, atol=1e-14)
    np.testing.assert_array_equal(g.free, np.flatnonzero(M.sum(1) == 0))
    assert g.disjoint == bool((M.sum(1) <= 1).all())
    if g.common.size:
        np.testing.assert_array_equal(g.common, M @ M.T)
    if g.num_groups:
        maxima = [r[M[:, j] > 0].max() for j in range(g.num_groups)]
        np.testing.assert_array_equal(g.maxima(jnp.asarray(r)), maxima)


@jax.jit
def _of_groups(alpha, g, V):
    penalty = penalties.ExclusiveGroupL21(alpha, g)
    return g.sums(V[:, 0]), g.maxima(V[:, 0]), g.spread(alpha), penalty.value(V), penalty.prox(V)


@properties
@drawn(20)
@given(seed=st.integers(0, 2**16))
def test_equal_groups_however_they_are_written(seed):
    """Labels of any names, lists in any order, features in any order: the same sums, values and proxes."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.concatenate([np.arange(4), rng.integers(0, 4, D - 4)]))
    alpha, V = rng.uniform(0.1, 1, 4), rng.standard_normal((D, 2))
    expected = [np.asarray(x) for x in _of_groups(alpha, groups.from_labels(labels), V)]
    names = np.sort(rng.choice(1000, 4, replace=False)) - 500
    order = rng.permutation(4)
    lists = [rng.permutation(np.flatnonzero(labels == g)).tolist() for g in order]
    features = rng.permutation(D)
    renamed, listed, moved = (
        [np.asarray(x) for x in _of_groups(*args)]
        for args in (
            (alpha, groups.from_labels(names[labels]), V),
            (alpha[order], groups.from_lists(lists, D), V),
            (alpha, groups.from_labels(labels[features]), V[features]),
        )
    )
    for (sums, maxima, spread, value, prox_), by_group, by_feature in (
        (renamed, np.arange(4), np.arange(D)),
        (listed, order, np.arange(D)),
        (moved, np.arange(4), features),
    ):
        np.testing.assert_allclose(sums, expected[0][by_group], atol=1e-14)
        np.testing.assert_array_equal(maxima, expected[1][by_group])
        np.testing.assert_array_equal(spread, expected[2][by_feature])
        np.testing.assert_allclose(value, expected[3], rtol=1e-14)
        np.testing.assert_allclose(prox_, expected[4][by_feature], atol=1e-14)


def test_lists_come_back():
    assert KINDS["overlapping"].tolist() == OVERLAPPING  # one listed twice counts twice
    assert groups.from_labels(["b", "a", "b"]).tolist() == [[1], [0, 2]]
    assert KINDS["none"].tolist() == []


def test_paper_example_has_the_printed_pairs():
    """Kong et al., Eq. (7): 13 pairs, for any threshold in (0.2142, 0.2793), not at their 0.3."""
    printed = [13, 23, 14, 24, 15, 25, 36, 17, 27, 37, 47, 57, 67]
    pairs = sorted([pair // 10 - 1, pair % 10 - 1] for pair in printed)
    for threshold in (0.2143, 0.279):
        assert groups.from_correlation(EXAMPLE_X, threshold, centered=False).tolist() == pairs
    assert len(groups.from_correlation(EXAMPLE_X, 0.3, centered=False).tolist()) == 10


def test_boston_pairs(shared_data):
    """The 8 printed pairs of the paper are among the 11 of uncentred columns; centred ones have none."""
    with np.load(shared_data / "boston.npz") as f:
        X = f["X"]
    assert X.shape == (506, 14)
    found = {(a + 1, b + 1) for a, b in groups.from_correlation(X, 0.93, centered=False).tolist()}
    printed = {(3, 10), (5, 6), (5, 7), (5, 11), (6, 11), (6, 12), (6, 14), (7, 11)}
    assert found == printed | {(5, 10), (10, 11), (11, 12)}
    assert groups.from_correlation(X, 0.93).num_groups == 0
    assert groups.from_correlation(X, 0.90).num_groups == 1


def test_correlation_in_tiles(monkeypatch, rng):
    X = rng.standard_normal((30, 23)) + 0.8 * rng.standard_normal((30, 1))
    R = np.abs(np.corrcoef(X.T))
    expected = [[i, j] for i in range(23) for j in range(i + 1, 23) if R[i, j] > 0.4]
    assert 20 < len(expected) < 230
    for entries in (1, 4 * 23, 7 * 23, 23 * 23, 100 * 100):  # tiles of 1, 4, 7 and all rows
        monkeypatch.setattr(groups, "MAX_TILE_ENTRIES", entries)
        assert groups.from_correlation(X, 0.4).tolist() == expected


def test_correlation_of_weighted_rows(rng):
    """A row of weight k is k rows."""
    X, w = rng.standard_normal((12, 8)) + 3, rng.integers(0, 4, 12)
    for centered, threshold in ((True, 0.3), (False, 0.9)):
        expected = groups.from_correlation(X.repeat(w, axis=0), threshold, centered=centered)
        found = groups.from_correlation(X, threshold, centered=centered, weights=w)
        assert found.tolist() == expected.tolist() != groups.from_correlation(X, threshold).tolist()
    for bad in (np.ones(11), -w, 0 * w):
        with pytest.raises(ValueError, match="weights must be >= 0, one for each of X's 12 rows"):
            groups.from_correlation(X, 0.3, weights=bad)


def test_constant_columns_are_left_out(rng):
    X = rng.standard_normal((20, 4)) + rng.standard_normal((20, 1)) * 3
    X[:, 1] = 0.1  # not a binary fraction: centring leaves rounding errors
    with pytest.warns(UserWarning, match=r"1 constant column.*at 1"):
        g = groups.from_correlation(X, 0.3)
    assert g.tolist() == [[0, 2], [0, 3], [2, 3]]
    X[:, 1] = 0
    with pytest.warns(UserWarning, match="zero column"):
        assert groups.from_correlation(X, 0.3, centered=False).tolist() == [[0, 2], [0, 3], [2, 3]]


@pytest.mark.parametrize(
    "lists, message",
    [
        ([[0, 7]], "group 0 has index 7"),
        ([[0], [-1, 2]], "group 1 has index -1"),
        ([[0, 1], []], "group 1 is empty"),
        ([[2, 1, 2]], "feature 2 more than once"),
        ([[0.5]], "integer indices"),
    ],
)
def test_bad_lists(lists, message):
    with pytest.raises((ValueError, TypeError), match=message):
        groups.from_lists(lists, 7)


@pytest.mark.parametrize("threshold", [0, 1, -0.2, 1.5, True, float("nan")])
def test_bad_threshold(threshold, rng):
    with pytest.raises(ValueError, match=r"threshold must be in \(0, 1\)"):
        groups.from_correlation(rng.standard_normal((5, 3)), threshold)


def test_other_bad_input(rng):
    with pytest.raises(ValueError, match="num_features"):
        groups.from_lists([[0]], 0)
    with pytest.raises(ValueError, match="labels has a NaN"):
        groups.from_labels([0.0, np.nan])
    with pytest.raises(ValueError, match="NaN or None"):
        groups.from_labels(np.array([0.0, np.nan, np.nan], object))
    with pytest.raises(ValueError, match="NaN or None"):
        groups.from_labels(["a", np.nan])
    for missing in (np.float32("nan"), pandas.NaT, pandas.NA):
        with pytest.raises(ValueError, match="NaN or None"):
            groups.from_labels(np.array(["a", missing], object))
    with pytest.raises(ValueError, match="one entry a feature"):
        groups.from_labels(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="X has 1 value"):
        groups.from_correlation(np.array([[1.0, np.nan], [1, 2], [2, 1]]), 0.5)
    with pytest.raises(ValueError, match="two rows"):
        groups.from_correlation(np.ones((1, 3)), 0.5)
    with pytest.raises(TypeError, match="outside jit"):
        jax.jit(lambda X: groups.from_correlation(X, 0.5).spread)(jnp.ones((4, 3)))
    g = KINDS["disjoint"]
    with pytest.raises(TypeError, match="built by sparsejax"):
        penalties.ExclusiveGroupL21(0.1, DISJOINT)
    with pytest.raises(ValueError, match="alpha must be >= 0"):
        penalties.ExclusiveGroupL21(-0.1, g)
    smooth = losses.SquaredLoss(rng.standard_normal((9, 7)), rng.standard_normal(9))
    with pytest.raises(ValueError, match="one value a group"):
        sj.Problem(smooth, penalties.ExclusiveGroupL21(np.ones(7), g))
    with pytest.raises(ValueError, match="7 features; X has 3"):
        sj.Problem(losses.SquaredLoss(np.ones((9, 3)), np.ones(9)), penalties.ExclusiveGroupL21(1.0, g))
    with pytest.raises(ValueError, match="must have 7 rows"):
        prox.exclusive_group_l21(jnp.ones((3, 2)), 0.1, g)
    with pytest.raises(ValueError, match="one value a group"):
        prox.exclusive_group_l21(jnp.ones((7, 2)), jnp.ones(2), g)
    with pytest.raises(ValueError, match="no finite strength"):
        sj.lambda_max(sj.Problem(smooth, penalties.ExclusiveGroupL21(1.0, g)))


# ------------------------------------------------------------------ the prox


def kkt_error(V, U, alpha, g):
    """Largest violation of the optimality conditions, relative to the largest row of V."""
    rho, r = np.linalg.norm(V, axis=1), np.linalg.norm(U, axis=1)
    M = membership(g)
    slope = 2 * M @ (alpha * (M.T @ r))
    error = np.where(r > 0, np.abs(r + slope - rho), np.maximum(rho - slope, 0))
    direction = np.abs(U - V * (r / np.where(rho > 0, rho, 1))[:, None]).max()
    return max(error.max(), direction) / rho.max()


jitted, jacobian = jax.jit(prox.exclusive_group_l21), jax.jit(jax.jacrev(prox.exclusive_group_l21))


@kinds
@pytest.mark.parametrize("by_group", [False, True])
def test_prox_is_optimal(kind, by_group, rng):
    g = KINDS[kind]
    for alpha in (0.0, 1e-3, 0.1, 1.0, 30.0, 1e4):
        for tie in (False, True):
            V = rng.standard_normal((7, 3))
            V = np.round(V) if tie else V
            strength = alpha * rng.uniform(0.5, 2, g.num_groups) if by_group else alpha
            U = np.asarray(jitted(jnp.asarray(V), strength, g))
            assert kkt_error(V, U, strength, g) < 1e-14
            if kind != "none" and alpha == 1.0:
                assert (U == 0).any()


def test_prox_of_many_random_groups(rng):
    """Chains, cliques and repeated groups, where K is singular on many sets of rows."""
    d = 40
    for lists in (
        [[i, i + 1] for i in range(d - 1)],
        [[i, j] for i in range(d) for j in range(i + 1, d) if (i + j) % 3],
        [rng.choice(d, rng.integers(2, 20), False).tolist() for _ in range(30)],
        [list(range(d))] * 3,
    ):
        for g in (groups.from_lists(lists, d), large(lists, d)):
            for alpha in (1e-3, 0.05, 1.0, 1e3):
                V = rng.standard_normal((d, 2)) * np.geomspace(1e-6, 1, d)[:, None]
                assert kkt_error(V, np.asarray(jitted(jnp.asarray(V), alpha, g)), alpha, g) < 1e-13


@kinds
def test_prox_against_conic_solver(kind, rng):
    g, V, scaling = KINDS[kind], rng.standard_normal((7, 3)), 0.7
    penalty = penalties.ExclusiveGroupL21(0.3, g)
    best = conic.minimise(sj.Problem(losses.SquaredLoss(np.eye(7), V, scale=0.5 / scaling), penalty))
    np.testing.assert_allclose(
        prox.exclusive_group_l21(jnp.asarray(V), 0.3, g, scaling), best.params, atol=1e-6
    )


@kinds
def test_prox_derivatives(kind, rng):
    """Forward = reverse = central differences in V, alpha by group and the scaling, to second order."""
    g = KINDS[kind]
    args = (
        jnp.asarray(rng.standard_normal((7, 2))),
        jnp.asarray(rng.uniform(0.1, 0.3, g.num_groups)),
        jnp.asarray(0.8),
    )
    if kind == "overlapping":
        args = (args[0], jnp.asarray(0.2), args[2])  # one strength for all: the factorised form
    f = lambda *args: jnp.sum(jnp.sin(prox.exclusive_group_l21(args[0], args[1], g, args[2])))
    value, gradient = jax.jit(f), jax.jit(jax.grad(f, argnums=(0, 1, 2)))
    second = jax.jit(lambda args, ways: jax.jvp(jax.grad(f, argnums=(0, 1, 2)), args, ways)[1])
    support = lambda args: np.asarray(jitted(args[0], args[1], g, args[2]) != 0)
    h = 1e-5
    for _ in range(4):
        ways = jax.tree.map(lambda x: jnp.asarray(rng.standard_normal(x.shape)), args)
        up, down = (jax.tree.map(lambda x, d, s=s: x + s * h * d, args, ways) for s in (1, -1))
        assert (support(up) == support(down)).all()  # so that differences mean something
        along = sum(jax.tree.leaves(jax.tree.map(lambda a, d: jnp.sum(a * d), gradient(*args), ways)))
        assert float(along) == pytest.approx(float(value(*up) - value(*down)) / (2 * h), rel=1e-6, abs=1e-8)
        differences = jax.tree.map(lambda a, b: (a - b) / (2 * h), gradient(*up), gradient(*down))
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), second(args, ways), differences
        )
    J = jax.jit(jax.jacfwd(prox.exclusive_group_l21))(*args[:2], g).reshape(14, 14)
    reverse = jacobian(*args[:2], g).reshape(14, 14)
    np.testing.assert_allclose(J, reverse, atol=1e-14)
    np.testing.assert_allclose(J, J.T, atol=1e-14)


@kinds
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_prox_transformations(kind, dtype, rng):
    """jit = eager, vmap over points and strengths = a loop, the dtype stays, zero and strength 0."""
    g = KINDS[kind]
    V = rng.standard_normal((5, 7, 2)).astype(dtype)
    alphas = np.geomspace(1e-2, 10, 5).astype(dtype)
    pairs = [tuple(map(jnp.asarray, pair)) for pair in zip(V, alphas, strict=True)]
    loop = np.stack([prox.exclusive_group_l21(v, a, g) for v, a in pairs])
    assert loop.dtype == dtype
    tol = 2e-6 if dtype == np.float32 else 1e-14
    batch = jax.jit(jax.vmap(lambda v, a: prox.exclusive_group_l21(v, a, g)))(V, alphas)
    np.testing.assert_allclose(batch, loop, atol=tol)
    first, none = V[0].copy(), np.zeros((), dtype)
    vector, column = (np.asarray(jitted(part, alphas[0], g)) for part in (first[:, 0], first[:, :1]))
    np.testing.assert_allclose(vector, column[:, 0], atol=tol)
    np.testing.assert_array_equal(jitted(0 * first, alphas[0], g), 0)
    np.testing.assert_array_equal(jitted(first, none, g), first)
    first[2] = 0
    np.testing.assert_allclose(jacobian(first, none, g).reshape(14, 14), np.eye(14), atol=tol)


@kinds
def test_any_warm_start_gives_the_same_point(kind, rng):
    penalty = penalties.ExclusiveGroupL21(0.3, KINDS[kind])
    step = jax.jit(lambda V, *at: penalties.prox_columns(penalty, V.T, *at, V))
    cold = jax.jit(penalty.prox)
    V = jnp.asarray(rng.standard_normal((7, 2)))
    warm = penalties.prox_start(penalty, V)
    for _ in range(6):
        for scaling in (1.0, 1.0, 0.2):
            Z, warm = step(V, jnp.asarray(scaling), warm)
            np.testing.assert_allclose(Z.T, cold(V, scaling), atol=1e-14)
        V = jnp.asarray(rng.standard_normal((7, 2)))


# ------------------------------------------------------------------ the penalty


@pytest.mark.parametrize("kind", ["disjoint", "overlapping", "many"])
def test_conjugate_bounds_and_is_exact_at_a_subgradient(kind, rng):
    g = KINDS[kind]
    penalty = penalties.ExclusiveGroupL21(rng.uniform(0.2, 1, g.num_groups), g)
    W = rng.standard_normal((7, 3))
    W[2] = 0
    Z = np.asarray(jax.jit(jax.grad(penalty.value))(W))  # 0 in the zero row: a subgradient
    exact = float(np.sum(Z * W) - penalty.value(jnp.asarray(W)))  # Fenchel's equality
    conjugate = jax.jit(penalty.conjugate)
    assert float(conjugate(Z, W)) == pytest.approx(exact, rel=1e-12)
    assert float(conjugate(Z)) == pytest.approx(exact, rel=1e-6)
    for other in rng.standard_normal((20, 7, 3)):
        assert float(conjugate(Z, other)) >= exact * (1 - 1e-12)


def test_path_tune_and_cross_validate():
    """Groups go along with every candidate, however the candidates were made."""
    g = GROUPS
    p = sj.Problem(losses.SquaredLoss(*data(n=30), intercept=True), penalties.ExclusiveGroupL21(0.1, g))
    alphas = np.geomspace(1.0, 0.01, 4)
    direct = sj.path(p, penalties.ExclusiveGroupL21(alphas, g), tol=1e-9)
    mapped = sj.path(p, jax.vmap(lambda a: penalties.ExclusiveGroupL21(a, g))(alphas), tol=1e-9)
    for i, alpha in enumerate(alphas):
        single = sj.solve(p.replace(penalty=penalties.ExclusiveGroupL21(alpha, g)), tol=1e-9)
        np.testing.assert_allclose(direct.objective[i], single.objective, rtol=1e-8)
    np.testing.assert_array_equal(direct.params, mapped.params)
    cv = sj.cross_validate(p, penalties.ExclusiveGroupL21(alphas, g), folds=3, tol=1e-4)
    assert cv.best.groups.tolist() == g.tolist() and cv.best.alpha.shape == ()
    tuned = sj.tune(p, p.smooth, maxiter=4)
    assert tuned.penalty.groups.tolist() == g.tolist()
    assert tuned.tried.penalties.alpha.shape == (4,)
    assert float(tuned.loss) <= float(tuned.tried.loss[0])


# ------------------------------------------------------------------ reweighting


@pytest.mark.parametrize("loss, n", [("SquaredLoss", 6), ("LogisticLoss", 25)])
def test_irls_decreases_at_every_step(loss, n):
    problem = sj.Problem(LOSSES[loss](*data(n=n)), penalties.ExclusiveGroupL21(0.1, GROUPS))
    s = sj.irls(problem, tol=0.0, maxiter=40, history=41, epsilon=1e-10)
    objective = np.asarray(s.history.objective)
    assert np.isfinite(objective).all()
    start = conic.objective(problem, np.zeros((D, K)))
    # of the smoothed objective, which shrinks to this one: late steps show it
    assert (np.diff(objective[20:]) <= 1e-9 * start).all()
    assert objective[40] < objective[0]
    assert not (np.asarray(s.params) == 0).any()
    polished = sj.irls(problem, tol=1e-6, maxiter=2000, polish=True)
    assert bool(polished.converged) and (np.asarray(polished.params) == 0).any()


def test_irls_is_locked_and_biased_as_known():
    """The paper's example at scale 1: a row at zero stays, and smoothing costs what math says it does."""
    pairs = groups.from_correlation(EXAMPLE_X, 0.25, centered=False)
    smooth = losses.SquaredLoss(EXAMPLE_X, EXAMPLE_Y, scale=1.0)
    problem = sj.Problem(smooth, penalties.ExclusiveGroupL21(1.0, pairs))
    best = sj.admm(problem, tol=1e-12)
    free = sj.irls(problem, tol=1e-6, maxiter=2000)
    np.testing.assert_allclose(free.objective, best.objective, rtol=1e-5)
    # no smoothing left, its square underflows: the row stays for ever
    start = free.params.at[0].set(0.0)
    locked = sj.irls(problem, start, tol=1e-6, maxiter=300, faithful=True, epsilon=1e-200)
    assert float(jnp.abs(locked.params[0]).max()) == 0
    assert not bool(locked.converged)
    assert float(locked.objective) / float(best.objective) - 1 == pytest.approx(0.127, abs=2e-3)
    assert bool(sj.irls(problem, start, tol=1e-6, maxiter=300, faithful=True, epsilon=1e-12).converged)
    biased = [sj.irls(problem, tol=0.0, maxiter=300, epsilon=e) for e in (1e-1, 1e-2, 1e-3)]
    excess = [float(s.objective / best.objective) - 1 for s in biased]
    assert excess[0] > 10 * excess[1] > 100 * excess[2] > 0


def test_paper_example_solution():
    """Kong et al., Eq. (8) at alpha = 100, scale 1: within half a unit of print; rows 1, 2, 5, 6."""
    pairs = groups.from_correlation(EXAMPLE_X, 0.25, centered=False)
    smooth = losses.SquaredLoss(EXAMPLE_X, EXAMPLE_Y, scale=1.0)
    s = sj.solve(sj.Problem(smooth, penalties.ExclusiveGroupL21(100.0, pairs)), tol=1e-12)
    printed = np.zeros((7, 3))
    printed[[0, 1, 4, 5]] = [[5, 4, 4], [3, 1, 6], [3, 3, 1], [6, 5, 7]]
    np.testing.assert_allclose(np.abs(s.params), printed / 1000, atol=6e-4)
    np.testing.assert_array_equal((np.asarray(s.params) != 0).any(1), printed.any(1))


@pytest.mark.parametrize("size", [1e-170, 1e170])
def test_correlation_has_no_unit(size, rng, recwarn):
    X = rng.standard_normal((40, 3))
    X[:, 2] = X[:, 0] + 0.01 * X[:, 1]
    size = size if jax.config.jax_enable_x64 else size**0.15
    w = rng.uniform(0.5, 2, 40)
    assert groups.from_correlation(size * X, 0.9).tolist() == [[0, 2]]
    assert groups.from_correlation(size * X, 0.9, centered=False, weights=w).tolist() == [[0, 2]]
    assert not recwarn.list


def test_unsigned_members():
    lists = [np.array([0, 1], np.uint64), [2]]
    assert sj.groups.from_lists(lists, 4).tolist() == [[0, 1], [2]]


def test_rows_of_weight_zero_do_not_set_the_unit():
    X = np.random.default_rng(0).standard_normal((20, 2))
    X[:, 1] = X[:, 0] + 0.01 * X[:, 1]
    more, weights = np.vstack([X, [1e30, 1.0]]).astype(np.float32), np.append(np.ones(20, np.float32), 0)
    assert sj.groups.from_correlation(more, 0.9, weights=weights).tolist() == [[0, 1]]
