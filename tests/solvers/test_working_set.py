"""Working sets around the engine: the same answers, and nothing lost where they do not suffice."""

import conic
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import sparsejax as sj
from sparsejax.driver.feature_subsets import chosen, working_set_size
from sparsejax.solvers import chain_of, pick
from sparsejax.solvers._working_set import MAX_ROUNDS

N, D, K = 20, 700, 3


def made(seed=0):
    """Columns with a common part, of which a few matter."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, D)) + 0.5 * rng.standard_normal((N, 1))
    W = np.zeros((D, K))
    W[:5] = rng.standard_normal((5, K))
    return X, X @ W + 0.3 * rng.standard_normal((N, K))


X, Y = made()
LOSSES = {
    "squared": sj.losses.SquaredLoss(X, Y + 2, intercept=True, weights=np.linspace(0.2, 2, N)),
    "by entry": sj.losses.SquaredLoss(X, Y, weights=np.abs(Y)),
    "logistic": sj.losses.LogisticLoss(X, (Y > 0).astype(float)),
    "squared hinge": sj.losses.SquaredHingeLoss(X, np.sign(Y)),
}
PENALTIES = {
    "L1": sj.penalties.L1,
    "L21": sj.penalties.L21,
    "L1Inf": sj.penalties.L1Inf,
    "ExclusiveL21": lambda alpha: sj.penalties.ExclusiveL21(alpha, 0.3 * alpha),
}


# Overlapping in threes, sixteen halves and five fifths; the last two features are free.
HALVES, FIFTHS = np.arange(D - 2) % 16, np.arange(D - 2) % 5
GROUPS = sj.groups.from_lists(
    [np.flatnonzero(labels == g) for labels in (HALVES, FIFTHS) for g in range(labels.max() + 1)]
    + [np.arange(40), np.arange(30, 80)],
    D,
)
# the others with two that stand for norms and for squares
CASES = [("squared", penalty) for penalty in PENALTIES]
CASES += [(loss, penalty) for loss in list(LOSSES)[1:] for penalty in ("L21", "ExclusiveL21")]


def grouped(loss, factor=1.0):
    alpha = 0.02 * np.random.default_rng(1).uniform(0.5, 1.5, GROUPS.num_groups)
    return sj.Problem(LOSSES[loss], sj.penalties.ExclusiveGroupL21(factor * alpha, GROUPS))


def problem(loss, penalty, ratio=5.0):
    top = float(sj.lambda_max(sj.Problem(LOSSES[loss], PENALTIES[penalty](1.0))))
    by_row = np.random.default_rng(1).uniform(0.7, 1.5, D)
    return sj.Problem(LOSSES[loss], PENALTIES[penalty](top / ratio * by_row))


@pytest.mark.parametrize(("loss", "penalty"), CASES)
def test_against_the_engine(loss, penalty):
    p = problem(loss, penalty)
    solution, engine = sj.working_set(p, tol=1e-9), sj.admm(p, tol=1e-10)
    assert solution.converged and solution.num_iters <= MAX_ROUNDS, solution.message
    assert sj.duality_gap(p, solution.params) <= 2e-9
    np.testing.assert_allclose(solution.objective, engine.objective, rtol=2e-9)
    np.testing.assert_allclose(solution.params, engine.params, atol=1e-3 * np.abs(engine.params).max())


@pytest.mark.parametrize("penalty", ["L1", "L21"])
def test_nonnegative_weights(penalty):
    """The sign of a slope matters: half of the features cannot become active, however large it is."""
    W = np.zeros((D, K))
    W[:5] = -np.abs(np.random.default_rng(2).standard_normal((5, K)))
    W[5:10] = 0.3
    loss = sj.losses.SquaredLoss(X, X @ W, intercept=True)
    made = lambda alpha: sj.Problem(loss, PENALTIES[penalty](alpha) + sj.penalties.NonNegative())
    p = made(float(sj.lambda_max(made(1.0))) / 5)
    solution, engine = sj.working_set(p, tol=1e-9), sj.admm(p, tol=1e-10)
    assert solution.converged and solution.solver == "working_set", solution.message
    np.testing.assert_allclose(solution.objective, engine.objective, rtol=2e-9)
    assert 0 < np.count_nonzero(np.asarray(solution.params).any(axis=1)) < 60


@pytest.mark.parametrize("loss", ["squared", "logistic", "squared hinge"])
def test_groups_against_the_reference(loss):
    p = grouped(loss)
    assert GROUPS.num_families > 1 and pick(p).function is sj.working_set
    solution, optimum = sj.working_set(p, tol=1e-9), conic.minimise(p)
    assert solution.converged and solution.num_iters <= MAX_ROUNDS, solution.message
    if loss != "squared hinge":  # of which none is known where features are free
        assert sj.duality_gap(p, solution.params) <= 2e-9
    np.testing.assert_allclose(solution.objective, optimum.objective, rtol=1e-7)
    off = ~np.asarray(solution.params).any(axis=1)
    assert D / 2 < off.sum() < D and not off[-2:].any()
    assert np.linalg.norm(optimum.params[off], axis=1).max() < 1e-4 * np.abs(optimum.params).max()


def test_groups_jit_vmap_derivative_and_float32():
    p, h = grouped("squared"), 1e-4
    many = sj.groups.from_lists([[0, i] for i in range(1, 70)], D)
    assert "sparse rows" not in sj.penalties.ExclusiveGroupL21(0.1, many).provides
    assert "sparse rows" in (p.penalty + sj.penalties.SquaredL2(0.1)).provides
    assert "sparse rows" not in (p.penalty + sj.penalties.NonNegative()).provides

    def solved(factor):
        penalty = sj.penalties.ExclusiveGroupL21(factor * p.penalty.alpha, GROUPS)
        return sj.working_set(sj.Problem(p.smooth, penalty), tol=1e-11)

    value = lambda factor: jnp.sum(solved(factor).params ** 2)
    np.testing.assert_allclose(jax.grad(value)(1.0), (value(1 + h) - value(1 - h)) / (2 * h), rtol=1e-5)
    together = jax.jit(jax.vmap(solved))(jnp.array([1.0, 10.0]))
    assert together.converged.all()
    expected = [solved(factor).objective for factor in (1.0, 10.0)]
    np.testing.assert_allclose(together.objective, expected, rtol=1e-9)
    X32, Y32, weights, alpha = (
        np.asarray(a, np.float32) for a in (p.smooth.X, p.smooth.Y, p.smooth.weights, p.penalty.alpha)
    )
    single = sj.losses.SquaredLoss(X32, Y32, intercept=True, weights=weights)
    rough = sj.working_set(sj.Problem(single, sj.penalties.ExclusiveGroupL21(alpha, GROUPS)))
    assert rough.converged and rough.params.dtype == np.float32
    np.testing.assert_allclose(rough.objective, expected[0], rtol=2e-4)


def test_solve_takes_it_for_few_samples():
    squared, logistic = problem("squared", "ExclusiveL21"), problem("logistic", "L21")
    assert pick(squared).function is pick(logistic).function is sj.working_set
    many = sj.losses.LogisticLoss(np.tile(X, (60, 1)), np.tile(Y > 0, (60, 1)).astype(float))
    assert pick(sj.Problem(many, sj.penalties.L21(0.1))).function is sj.admm
    alphas = jnp.array([100.0, 1.0])[:, None] * logistic.penalty.alpha[None]
    solutions = sj.path(logistic, jax.vmap(sj.penalties.L21)(alphas))
    assert solutions.converged.all() and not np.any(solutions.params[0])
    np.testing.assert_allclose(solutions.objective[1], sj.admm(logistic).objective, rtol=1e-5)


@pytest.mark.parametrize("penalty", ["L1", "L21"])
def test_classes_of_a_sparse_x(penalty):
    """Against `admm` on a dense X. As in a fold, the rows of a class may have no weight."""
    some = np.where(np.abs(X) > 1.2, X, 0)
    Y = np.eye(K)[np.arange(N) % K]
    weights = np.where(np.arange(N) < 14, np.linspace(0.5, 2, N), 0)
    absent = jnp.asarray(np.where(Y[:, 2] > 0, 0, weights))
    sparse, dense = (
        sj.losses.SoftmaxLoss(A, Y, weights=weights, intercept=True)
        for A in (scipy.sparse.csr_array(some), some)
    )
    for each in (jnp.asarray(weights), absent):
        p = sj.Problem(sparse.reweighted(each), PENALTIES[penalty](0.02))
        same = p.replace(smooth=dense.reweighted(each))
        assert pick(p).function is sj.working_set
        s = sj.solve(p, tol=1e-8)
        assert s.converged and s.solver == "working_set" and 0 < np.count_nonzero(s.params) < s.params.size
        np.testing.assert_allclose(s.objective, sj.admm(same, tol=1e-8).objective, rtol=5e-8)
        np.testing.assert_allclose(same(s.params), p(s.params), rtol=1e-12)


@pytest.mark.parametrize(("jit", "ratio"), [(False, 1e3), (True, 1e5)])
def test_more_rows_than_it_holds(monkeypatch, jit, ratio):
    monkeypatch.setattr("sparsejax.solvers._working_set.working_set_size", lambda n, shape, always: 16)
    p = problem("squared", "ExclusiveL21", ratio)
    jax.clear_caches()
    solver = lambda p: sj.working_set(p, tol=1e-7, history=300)
    solution, engine = (jax.jit(solver) if jit else solver)(p), sj.admm(p, tol=1e-8)
    jax.clear_caches()
    assert solution.converged
    np.testing.assert_allclose(solution.objective, engine.objective, rtol=2e-7)
    assert np.isfinite(solution.history.gap[: min(int(solution.num_iters) + 1, 300)]).all()


def test_derivative():
    p = problem("logistic", "L21")

    def value(t):
        q = sj.Problem(p.smooth, sj.penalties.L21(p.penalty.alpha * (1 + t)))
        return jnp.sum(sj.working_set(q, tol=1e-12).params ** 2)

    h = 1e-4
    np.testing.assert_allclose(jax.grad(value)(0.0), (value(h) - value(-h)) / (2 * h), rtol=1e-5)


def test_starts_and_maxiter():
    p = problem("logistic", "L21")
    solution = sj.working_set(p, tol=1e-8)
    assert sj.working_set(p, solution.params, tol=1e-8).num_iters == 0
    noise = sj.working_set(p, np.random.default_rng(0).standard_normal((D, K)), tol=1e-8)
    np.testing.assert_allclose(noise.objective, solution.objective, rtol=1e-7)
    short = sj.working_set(p, tol=1e-8, maxiter=2)
    assert short.num_iters == 2 and not short.converged


def test_chosen():
    active = jnp.array([False, True, False, False, True, False])
    score = jnp.array([3.0, 0.1, 5.0, 5.0, 0.2, 4.0])
    np.testing.assert_array_equal(chosen(active, score, 4, 5), [1, 4, 2, 3, 6])
    np.testing.assert_array_equal(chosen(active, score, 3, 5), [1, 4, 2, 6, 6])  # of equals the first
    np.testing.assert_array_equal(chosen(active, score, 1, 5), [1, 6, 6, 6, 6])
    np.testing.assert_array_equal(np.sort(chosen(active, score, 6, 6)), np.arange(6))
    infinite = jnp.where(active, jnp.inf, score)
    np.testing.assert_array_equal(chosen(jnp.zeros(6, bool), infinite, 2, 2), [1, 4])


@pytest.mark.parametrize("shape", [(1000, 4), (1000,), (300, 1), (5000, 30)])
def test_size(shape):
    sizes = [working_set_size(n, shape) for n in (5, 50, 500)]
    assert sizes == sorted(sizes) and sizes[0] >= min(256, shape[0]) and sizes[-1] <= min(1024, shape[0])


def test_unfit():
    graph = LOSSES["squared"] + sj.losses.GraphLaplacian(np.ones((K, K)), 0.1)
    with pytest.raises(TypeError, match=r"columns_at"):
        sj.working_set(sj.Problem(graph, sj.penalties.L21(0.1)))
    with pytest.raises(TypeError, match="makes rows zero, with row_slopes"):
        sj.working_set(sj.Problem(LOSSES["squared"], sj.penalties.ExclusiveLasso(0.1)))


def test_classes_of_many_features():
    """Features are gathered whatever the number of rows; `fista` continues if most are active."""
    rng = np.random.default_rng(7)
    X, Y = rng.standard_normal((150, 600)), np.eye(4)[np.arange(150) % 4]
    for rows, penalty in ((150, "L1"), (40, "L21")):
        loss = sj.losses.SoftmaxLoss(X[:rows], Y[:rows], intercept=True)
        top = sj.lambda_max(sj.Problem(loss, PENALTIES[penalty](1.0)))
        p = sj.Problem(loss, PENALTIES[penalty](top / 50))
        chain = chain_of(pick(p).link, p)
        assert [link.name for link in chain.links] == ["working_set", "fista"]
        s, other = sj.solve(p, tol=1e-8), sj.fista(p, tol=1e-8)
        assert s.converged and s.solver == "working_set" and other.converged
        np.testing.assert_allclose(s.objective, other.objective, rtol=5e-8)


@pytest.mark.parametrize("penalty", ["L1", "L21"])
def test_classes_of_few_features(penalty):
    """A working set may hold all features, all active; against `newton_admm`."""
    rng = np.random.default_rng(5)
    X, Y = rng.standard_normal((40, 12)), np.eye(6)[np.arange(40) % 6]
    loss = sj.losses.SoftmaxLoss(X, Y, intercept=True)
    top = float(sj.lambda_max(sj.Problem(loss, PENALTIES[penalty](1.0))))
    p = sj.Problem(loss, PENALTIES[penalty](top / 50))
    assert pick(p).function is sj.working_set
    s, other = sj.solve(p, tol=1e-9), sj.newton_admm(p, tol=1e-9)
    assert s.converged and s.solver == "working_set" and np.any(np.asarray(s.params) != 0, axis=1).all()
    np.testing.assert_allclose(s.objective, other.objective, rtol=1e-8)
