"""Newton on one scalar a row with a ridge, and on one scalar a group: the engine's answers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsejax as sj
from sparsejax.driver.feature_subsets import most_groups
from sparsejax.solvers import pick

N, D, K = 24, 90, 3
# of sizes 1 to 12, their members far apart
LABELS = np.random.default_rng(1).permutation(
    np.repeat(np.arange(25), [1, 1, *[2] * 9, *[3] * 5, *[5] * 7, 8, 12])
)


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """As in `test_variational.py`."""
    monkeypatch.setattr("sparsejax.solvers._variational.MAX_STRENGTH_RATIO", np.inf)


def made(n=N, d=D, k=K, seed=0):
    """Columns with a common part, of which a few matter."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + 0.5 * rng.standard_normal((n, 1))
    W = np.zeros((d, k))
    W[:5] = rng.standard_normal((5, k))
    return X, X @ W + 0.3 * rng.standard_normal((n, k))


GROUPS = sj.groups.from_labels(LABELS)
PENALTIES = {
    "ridge": sj.penalties.L21(1.0) + sj.penalties.SquaredL2(0.3),
    "ridge in some rows": sj.penalties.L21(np.linspace(0.5, 1.5, D))
    + sj.penalties.SquaredL2(np.where(np.arange(D) % 2, 0.0, 0.5)),
    "groups": sj.penalties.GroupLasso(np.linspace(0.5, 1.5, 25), GROUPS),
    "groups and ridge": sj.penalties.GroupLasso(1.0, GROUPS) + sj.penalties.SquaredL2(0.2),
}


def scaled(smooth, penalty, ratio=10.0):
    """The strengths at which W is 0, divided."""
    return sj.Problem(smooth, float(sj.lambda_max(sj.Problem(smooth, penalty))) / ratio * penalty)


def assert_solved(p, tol=1e-12, rtol=1e-5):
    """By Newton alone, and as the engine does."""
    solution, engine = sj.variational_newton(p, tol=tol), sj.admm(p, tol=1e-12)
    assert solution.converged and solution.num_iters < 60, solution.message
    assert sj.duality_gap(p, solution.params) <= 2 * tol
    np.testing.assert_allclose(solution.objective, engine.objective, rtol=1e-9)
    np.testing.assert_allclose(solution.params, engine.params, atol=rtol * np.abs(engine.params).max())
    return solution


@pytest.mark.parametrize("kind", PENALTIES)
def test_against_the_engine(kind):
    smooth = sj.losses.SquaredLoss(*made())
    for ratio in (1.5, 10.0, 60.0):
        solution = assert_solved(scaled(smooth, PENALTIES[kind], ratio))
        on = np.any(np.asarray(solution.params) != 0, axis=1)
        assert on.any() and not on.all()
        if "groups" in kind:
            assert all(len(set(on[g == LABELS])) == 1 for g in range(25))


@pytest.mark.parametrize("kind", ["ridge in some rows", "groups and ridge"])
def test_more_rows_than_features(kind):
    smooth = sj.losses.SquaredLoss(*made(150), intercept=True)
    for ratio in (2.0, 30.0):
        assert_solved(scaled(smooth, PENALTIES[kind], ratio))


def test_one_column():
    """Elastic net, and groups by the cheaper order of sums."""
    X, Y = made(k=1)
    for y in (Y[:, 0], Y):
        assert_solved(scaled(sj.losses.SquaredLoss(X, y), sj.penalties.ElasticNet(1.0, 0.5)))
    p = scaled(sj.losses.SquaredLoss(X, Y), PENALTIES["groups"])
    groups = assert_solved(p)
    vector = sj.variational_newton(p.replace(smooth=sj.losses.SquaredLoss(X, Y[:, 0])), tol=1e-10)
    np.testing.assert_allclose(vector.params, groups.params[:, 0], atol=1e-9)


def test_rows_enough_for_gram_matrices_of_buckets():
    """And a step to a larger bucket that needs the root of K."""
    X, Y = made(130, 300, 1)
    smooth = sj.losses.SquaredLoss(X, Y[:, 0])
    for ratio in (5.0, 200.0):
        assert_solved(scaled(smooth, sj.penalties.L1(1.0), ratio))


def test_groups_of_one_are_rows():
    p = scaled(sj.losses.SquaredLoss(*made()), sj.penalties.L21(1.0))
    single = sj.penalties.GroupLasso(p.penalty.alpha, sj.groups.from_labels(np.arange(D)[::-1]))
    rows, groups = (sj.variational_newton(q, tol=1e-11) for q in (p, p.replace(penalty=single)))
    np.testing.assert_allclose(groups.params, rows.params, atol=1e-8)


def test_one_group_of_everything():
    p = scaled(
        sj.losses.SquaredLoss(*made()), sj.penalties.GroupLasso(1.0, sj.groups.from_labels(np.zeros(D)))
    )
    assert np.all(np.asarray(assert_solved(p).params) != 0)


def degenerate():
    X, Y = made()
    yield "copies of columns", np.concatenate([X[:, :30]] * 3, axis=1), Y
    yield "zero columns", np.where(np.arange(D) % 3 == 0, 0, X), Y
    yield "rank 1", X[:, :1] * np.random.default_rng(3).standard_normal((1, D)), Y
    yield "copies of one column", np.repeat(X[:, :1], D, axis=1), Y
    yield "nothing to explain", X, np.zeros_like(Y)
    yield "one sample", X[:1], Y[:1]


@pytest.mark.parametrize("kind", ["ridge in some rows", "groups"])
def test_degenerate_data(kind):
    for name, X, Y in degenerate():
        smooth = sj.losses.SquaredLoss(X, Y)
        top = float(sj.lambda_max(sj.Problem(smooth, PENALTIES[kind])))
        for ratio in (2.0, 50.0):
            p = sj.Problem(smooth, max(top / ratio, 1e-3) * PENALTIES[kind])
            solution, engine = sj.variational_newton(p, tol=1e-10), sj.admm(p, tol=1e-10)
            assert solution.converged, (name, solution.message)
            np.testing.assert_allclose(
                solution.objective, engine.objective, rtol=3e-9, atol=1e-12, err_msg=name
            )


def test_strength_zero_is_left_to_the_engine():
    smooth = sj.losses.SquaredLoss(*made())
    penalty = sj.penalties.GroupLasso(np.where(np.arange(25) < 2, 0.0, 0.3), GROUPS) + sj.penalties.SquaredL2(
        0.2
    )
    solution, engine = (solver(sj.Problem(smooth, penalty)) for solver in (sj.variational_newton, sj.admm))
    assert solution.converged and solution.num_iters > 0
    np.testing.assert_allclose(solution.params, engine.params, atol=1e-5)


@pytest.mark.parametrize("size", [(8, 8), (64, 4)])
def test_more_than_the_last_bucket_holds(monkeypatch, size):
    """Of features, by a group that is larger than all, or of groups: the engine takes over."""
    monkeypatch.setattr("sparsejax.solvers._norm_blocks.most_groups", lambda *shape: size)
    p = scaled(sj.losses.SquaredLoss(*made()), PENALTIES["groups"], 60.0)
    jax.clear_caches()
    solution = sj.variational_newton(p, tol=1e-8)
    jax.clear_caches()
    assert solution.converged and np.sum(np.any(np.asarray(solution.params) != 0, axis=1)) > 8
    np.testing.assert_allclose(solution.objective, sj.admm(p, tol=1e-8).objective, rtol=1e-7)


@pytest.mark.parametrize("kind", ["ridge", "groups and ridge"])
def test_starts(kind):
    p = scaled(sj.losses.SquaredLoss(*made()), PENALTIES[kind])
    solution = sj.variational_newton(p, tol=1e-10)
    assert sj.variational_newton(p, solution.params, tol=1e-9).num_iters <= 1
    noise = np.random.default_rng(2).standard_normal((D, K))
    for start in (noise, 1e12 * noise):
        again = sj.variational_newton(p, start, tol=1e-10)
        assert again.converged and again.num_iters < 60
        np.testing.assert_allclose(again.params, solution.params, atol=1e-5)
    unmoved = sj.variational_newton(p, noise, maxiter=0)
    assert unmoved.num_iters == 0 and not unmoved.converged


def test_jit_and_vmap():
    p = scaled(sj.losses.SquaredLoss(*made()), PENALTIES["groups and ridge"])
    factors = jnp.array([0.3, 1.0, 4.0, 20.0])
    one = lambda factor: sj.variational_newton(p.replace(penalty=factor * p.penalty), tol=1e-10).params
    together = jax.jit(jax.vmap(one))(factors)
    for i, factor in enumerate(factors):
        np.testing.assert_allclose(together[i], one(factor), atol=1e-6)


@pytest.mark.parametrize("kind", ["ridge in some rows", "groups and ridge"])
def test_float32(kind):
    X, Y = (a.astype(np.float32) for a in made())
    p = scaled(sj.losses.SquaredLoss(X, Y), PENALTIES[kind])
    solution = sj.variational_newton(p)
    assert solution.converged and solution.params.dtype == np.float32
    exact = sj.admm(sj.Problem(sj.losses.SquaredLoss(*map(np.float64, (X, Y))), p.penalty), tol=1e-10)
    assert float(solution.objective) <= float(exact.objective) * (1 + 1e-4)


def test_path_and_derivative_on_many_features():
    """Both strengths vary along the path; the derivative is that of the features of the support."""
    X, Y = made(N, 600)
    smooth, groups = sj.losses.SquaredLoss(X, Y), sj.groups.from_labels(np.arange(600) % 150)
    penalty = lambda factor: sj.penalties.GroupLasso(factor, groups) + sj.penalties.SquaredL2(0.1 * factor)
    top = sj.lambda_max(sj.Problem(smooth, penalty(1.0)))
    factors = top * jnp.array([1.0, 0.5, 0.2, 0.1])
    p = sj.Problem(smooth, penalty(factors[2]))
    assert pick(p).function is sj.variational_newton
    for init in (None, np.where(np.arange(600)[:, None] < 3, 0.1, np.zeros((1, K)))):
        path = sj.path(p, jax.vmap(penalty)(factors), mode="warm", tol=1e-10, init=init)
        assert path.converged.all() and path.num_iters.max() < 40
        np.testing.assert_allclose(path.params[2], sj.admm(p, tol=1e-11).params, atol=1e-5)

    def value(t):
        return jnp.sum(sj.solve(p.replace(penalty=penalty(factors[2] * (1 + t))), tol=1e-13).params ** 2)

    h = 1e-5
    np.testing.assert_allclose(jax.grad(value)(0.0), (value(h) - value(-h)) / (2 * h), rtol=1e-5)


def test_unfit():
    """What stays with other solvers, and why."""
    smooth = sj.losses.SquaredLoss(*made())
    overlapping = sj.groups.from_lists([range(50), range(40, D)], D)
    free = sj.groups.from_lists([range(50)], D)
    for penalty in (
        sj.penalties.GroupLasso(0.1, overlapping),
        sj.penalties.GroupLasso(0.1, free),
        sj.penalties.GroupLasso(0.1, GROUPS) + sj.penalties.SquaredL2(np.full(D, 0.1)),
        sj.penalties.GroupLasso(0.1, GROUPS) + sj.penalties.L21(0.1),
        sj.penalties.ElasticNet(0.1, 0.5),
        sj.penalties.L21(0.1) + sj.penalties.NonNegative(),
        sj.penalties.SquaredL2(0.1),
    ):
        p = sj.Problem(smooth, penalty)
        with pytest.raises(TypeError, match="norm of each row or group"):
            sj.variational_newton(p)
        assert pick(p).function is not sj.variational_newton


@pytest.mark.parametrize("penalty", ["elastic net", "groups"])
def test_losses_of_one_column(penalty):
    """By `prox_newton`."""
    X, Y = made(60, k=1)
    smooth = sj.losses.LogisticLoss(X, (Y[:, 0] > 0).astype(float), intercept=True)
    kinds = {"elastic net": sj.penalties.ElasticNet(1.0, 0.5), "groups": PENALTIES["groups and ridge"]}
    p = scaled(smooth, kinds[penalty], 20.0)
    assert pick(p).function is sj.prox_newton
    solution, engine = sj.prox_newton(p, tol=1e-10), sj.admm(p, tol=1e-10)
    assert solution.converged and solution.num_iters <= 30
    np.testing.assert_allclose(solution.objective, engine.objective, rtol=1e-9)
    np.testing.assert_allclose(solution.params, engine.params, atol=1e-4)


@pytest.mark.parametrize(("d", "count"), [(1000, 1), (1000, 999), (5000, 1000), (90, 25), (50_000, 50)])
@pytest.mark.parametrize("n", [10, 400, 100_000])
def test_the_largest_bucket_of_groups(n, d, count):
    m, b = most_groups(n, d, 3, count)
    assert min(d, n) <= m <= d and b <= min(m, count) and (n < d or (m, b) == (d, count))
