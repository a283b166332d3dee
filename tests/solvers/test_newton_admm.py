"""Newton for several columns: weak strengths, separated labels, losses of a user's own."""

import conic
import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import penalty_cases
import pytest
import scipy.sparse
from conic import ACCURACY

import sparsejax as sj
from sparsejax.solution import MAX_ITER
from sparsejax.solvers import _admm, chain_of, pick

N, D, K = 48, 8, 3
RATIOS = (10.0, 1e3, 1e4)  # of lambda_max over the strength
# two features in no group, which are not penalised
FREE = sj.groups.from_lists([[0, 1], [1, 4], [2, 3, 5]], D)
PENALTIES = {
    "L1": sj.penalties.L1,
    "L21": sj.penalties.L21,
    "ExclusiveL21": lambda s: sj.penalties.ExclusiveL21(s, s / 10),
    "ExclusiveGroupL21": lambda s: sj.penalties.ExclusiveGroupL21(s, FREE),
}


def made(n=N, d=D, seed=0, noise=2.0):
    """X with a common part, and 0/1 labels that a linear model knows but for the noise."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + 0.5 * rng.standard_normal((n, 1))
    H = X @ rng.standard_normal((d, K)) + noise * rng.standard_normal((n, K)) + 0.3
    return X, (H > 0).astype(float)


def top_of(loss, init=None):
    return float(sj.lambda_max(sj.Problem(loss, sj.penalties.L21(1.0)), init))


def logistic(intercept=True, **options):
    return sj.losses.LogisticLoss(*made(**options), intercept=intercept)


def assert_optimal(problem, solution, tol=1e-9):
    assert solution.converged and solution.num_iters <= 40, solution.num_iters
    assert sj.duality_gap(problem, solution.params) <= 2 * tol
    best = conic.minimise(problem)
    assert abs(conic.objective(problem, solution.params) / best.objective - 1) <= ACCURACY + tol
    np.testing.assert_allclose(problem.smooth.intercept(solution.params), best.intercept, atol=1e-2)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_weak_strengths(penalty):
    loss = logistic()
    for ratio in RATIOS:
        problem = sj.Problem(loss, PENALTIES[penalty](jnp.asarray(top_of(loss) / ratio)))
        assert_optimal(problem, sj.newton_admm(problem, tol=1e-9))


def test_separated_labels():
    """The Hessian all but vanishes where the answer is."""
    loss = logistic(noise=0.0)
    for ratio in RATIOS:
        problem = sj.Problem(loss, sj.penalties.L21(jnp.asarray(top_of(loss) / ratio)))
        assert_optimal(problem, sj.newton_admm(problem, tol=1e-9))


@pytest.mark.parametrize("shape", [(N, D), (15, 20)])
def test_copies_zero_columns_and_more_features_than_rows(shape):
    X, Y = made(*shape)
    X = np.concatenate([X, X[:, :4], X[:, :2] + 1e-7, np.zeros((len(X), 2))], axis=1)
    loss = sj.losses.LogisticLoss(X, Y)
    for ratio in RATIOS:
        problem = sj.Problem(loss, sj.penalties.L1(jnp.asarray(top_of(loss) / ratio)))
        # Between columns that differ by 1e-7 nothing decides but the last digits.
        solution = sj.newton_admm(problem, tol=1e-7)
        assert_optimal(problem, solution, tol=1e-7)
        assert not np.any(solution.params[-2:])


def test_weights_of_0_and_a_graph_on_the_labels():
    """Weights by entry; columns that meet."""
    X, Y = made()
    weights = np.random.default_rng(1).uniform(0.2, 2, Y.shape) * (np.arange(N) % 5 > 0)[:, None]
    weighted = sj.losses.LogisticLoss(X, Y, weights=weights, intercept=True)
    graph = sj.losses.GraphLaplacian(np.random.default_rng(2).random((K, K)), 0.05)
    for loss in (weighted, weighted + graph):
        problem = sj.Problem(loss, sj.penalties.L21(1e-3 * top_of(weighted)))
        solution = sj.newton_admm(problem, tol=1e-9)
        assert solution.converged and solution.num_iters <= 30
        best = conic.minimise(problem)
        assert abs(conic.objective(problem, solution.params) / best.objective - 1) <= ACCURACY


# ------------------------------------------------------------------ losses of a user's own, without curvature


class Poisson(sj.losses.LinearModelLoss):
    """e^h - y h: no curvature bounds it."""

    def entries(self, H):
        return jnp.exp(H) - self.Y * H

    def derivatives(self, H):
        return jnp.exp(H) - self.Y, jnp.exp(H)


def counts(scale=1.0):
    X = made()[0]
    rate = np.exp(np.clip(X[:, :2] @ np.array([[0.5, -0.5, 0.2], [0.3, 0.4, -0.6]]), -3, 3))
    return np.concatenate([X, X[:, :1]], axis=1), np.random.default_rng(3).poisson(scale * rate).astype(float)


@pytest.mark.parametrize("penalty", ["L21", "ExclusiveL21"])
def test_poisson(penalty):
    X, Y = counts()
    loss = Poisson(X, Y)
    for ratio in (10.0, 1e4):
        problem = sj.Problem(loss, PENALTIES[penalty](jnp.asarray(top_of(loss) / ratio)))
        solution = sj.newton_admm(problem, tol=1e-9)
        assert solution.converged and solution.num_iters <= 30
        W = cp.Variable((D + 1, K))
        cost = cp.sum(cp.exp(X @ W) - cp.multiply(Y, X @ W)) / N
        more, constraints = penalty_cases.formula(problem.penalty).conic(problem.penalty, W)
        best = conic.solve(cp.Minimize(cost + more), constraints)
        np.testing.assert_allclose(float(solution.objective), best, rtol=1e-7, atol=1e-8)


def test_steps_that_overflow_are_not_taken():
    """From 0 a Newton step leads to rates of e^1000."""
    X, Y = counts(scale=1000.0)
    loss = Poisson(X, Y)
    problem = sj.Problem(loss, sj.penalties.L21(1e-3 * top_of(loss)))
    solution = sj.newton_admm(problem, tol=1e-8, history=60)
    assert solution.converged
    seen = np.asarray(solution.history.objective)[: int(solution.num_iters) + 1]
    assert not np.all(seen < 1e3 * seen[0])  # some step was too long
    from_above = sj.newton_admm(problem, np.full((D + 1, K), 0.5), tol=1e-8)
    np.testing.assert_allclose(from_above.objective, solution.objective, rtol=1e-9)


def softmax(X, Y, W):
    H = X @ W
    return jnp.mean(jax.nn.logsumexp(H, axis=1) - jnp.sum(Y * H, axis=1))


@pytest.mark.parametrize("penalty", ["L21", "ExclusiveL21"])
def test_softmax_as_a_plain_function(penalty):
    X, Y = made(noise=0.5)
    Y = np.eye(K)[(Y @ np.array([1, 2, 3])).astype(int) % K]
    loss, init = jax.tree_util.Partial(softmax, X, Y), np.zeros((D, K))
    for ratio in (10.0, 1e3):
        problem = sj.Problem(loss, PENALTIES[penalty](jnp.asarray(top_of(loss, init) / ratio)))
        solution = sj.newton_admm(problem, init, tol=1e-9)
        assert solution.converged and solution.num_iters <= 40
        W = cp.Variable((D, K))
        cost = (cp.sum(cp.log_sum_exp(X @ W, axis=1)) - cp.sum(cp.multiply(Y, X @ W))) / N
        more, constraints = penalty_cases.formula(problem.penalty).conic(problem.penalty, W)
        best = conic.solve(cp.Minimize(cost + more), constraints)
        np.testing.assert_allclose(float(solution.objective), best, rtol=ACCURACY)


def test_parameters_in_a_tree():
    X, Y = made()

    def fun(X, y, p):
        h = X @ p["w"] + p["b"]
        return jnp.mean(jnp.logaddexp(0, h) - y * h)

    init = {"w": np.zeros(D), "b": np.zeros(())}
    penalty = sj.penalties.ByLeaf({"w": sj.penalties.L1(1e-4), "b": None})
    problem = sj.Problem(jax.tree_util.Partial(fun, X, Y[:, 0]), penalty)
    solution = sj.newton_admm(problem, init, tol=1e-9)
    known = sj.losses.LogisticLoss(X, Y[:, 0], intercept=True)
    expected = sj.newton_admm(sj.Problem(known, sj.penalties.L1(1e-4)), tol=1e-11)
    assert solution.converged
    np.testing.assert_allclose(solution.params["w"], expected.params, atol=1e-5)
    np.testing.assert_allclose(solution.objective, expected.objective, rtol=1e-10)


# ------------------------------------------------------------------ as every solver


def test_jit_vmap_and_float32():
    loss = logistic()
    strengths = top_of(loss) * np.array([2.0, 0.1, 1e-3])
    one = lambda s: sj.newton_admm(sj.Problem(loss, sj.penalties.L21(s)), tol=1e-9)
    together = jax.jit(jax.vmap(one))(strengths)
    assert together.converged.all() and not np.any(together.params[0]) and together.num_iters[0] == 0
    singles = [one(s) for s in strengths]
    np.testing.assert_allclose(together.objective, [s.objective for s in singles], rtol=1e-9)
    X, Y = (a.astype(np.float32) for a in made())
    single = sj.losses.LogisticLoss(X, Y, intercept=True)
    for strength, known in zip(strengths[1:], singles[1:], strict=True):
        solution = sj.newton_admm(sj.Problem(single, sj.penalties.L21(np.float32(strength))))
        assert solution.converged and solution.params.dtype == np.float32
        np.testing.assert_allclose(solution.objective, known.objective, rtol=1e-4)


def test_derivative():
    loss = logistic()
    alpha = top_of(loss) / 300

    def value(t):
        problem = sj.Problem(loss, sj.penalties.L21(alpha * (1 + t)))
        return jnp.sum(sj.newton_admm(problem, tol=1e-13).params ** 2)

    h = 1e-5
    np.testing.assert_allclose(jax.grad(value)(0.0), (value(h) - value(-h)) / (2 * h), rtol=1e-5)


def test_starts_history_floor_and_maxiter():
    loss = logistic()
    problem = sj.Problem(loss, sj.penalties.L21(top_of(loss) / 100))
    solution = sj.newton_admm(problem, tol=1e-9, history=30)
    k = int(solution.num_iters)
    np.testing.assert_allclose(solution.history.objective[k], solution.objective, rtol=1e-14)
    assert np.isnan(solution.history.gap[k + 1 :]).all()
    assert sj.newton_admm(problem, solution.params, tol=1e-9).num_iters == 0
    far = sj.newton_admm(problem, np.full((D, K), 50.0), tol=1e-9)
    assert far.converged
    np.testing.assert_allclose(far.objective, solution.objective, rtol=1e-9)
    floor = sj.newton_admm(problem, tol=0.0)
    assert floor.gap < 1e-13 and floor.residual < 1e-13 and floor.num_iters < 400
    short = sj.newton_admm(problem, tol=1e-9, maxiter=2)
    assert short.num_iters == 2 and int(short.status) == MAX_ITER


@pytest.mark.parametrize("make", [sj.losses.HuberHingeLoss, sj.losses.SquaredHingeLoss])
def test_to_the_floor_of_a_loss_with_kinks(make):
    """Steps go on after the last digit: what they bring must not count, NaN least of all."""
    X, Y = made()
    problem = sj.Problem(make(X, 2 * Y - 1), sj.penalties.L21(0.1))
    solution = jax.jit(lambda p: sj.newton_admm(p, tol=0.0))(problem)
    assert solution.gap < 1e-13 and solution.residual < 1e-12 and solution.num_iters < 200
    assert sj.duality_gap(problem, solution.params) < 1e-13


def test_strength_zero_has_no_certificate_that_lies():
    """Labels that are separated, and nothing that holds W back: there is no minimiser."""
    loss = logistic(noise=0.0, intercept=False)
    solution = sj.newton_admm(sj.Problem(loss, sj.penalties.L21(0.0)), maxiter=30)
    assert np.isnan(solution.gap) and np.isfinite(solution.params).all()
    assert bool(solution.converged) == (float(solution.residual) <= 1e-6)


# ------------------------------------------------------------------ who takes it, and who hands over


def test_solve_takes_it_where_the_hessian_is_cheap():
    alpha = sj.penalties.L21(0.01)
    assert pick(sj.Problem(logistic(), alpha)).function is sj.newton_admm
    assert pick(sj.Problem(logistic(n=20), alpha)).function is sj.admm
    assert pick(sj.Problem(Poisson(*counts()), alpha)).function is sj.newton_admm


PATHS = {
    "logistic": lambda X, Y: sj.losses.LogisticLoss(X, Y, intercept=True),
    "Poisson": lambda X, Y: sj.losses.PoissonLoss(0.3 * X, 3 * Y),
    "softmax": lambda X, Y: sj.losses.SoftmaxLoss(X, np.eye(K)[np.argmax(Y, axis=1)]),
}


@pytest.mark.parametrize("loss", PATHS)
def test_a_path_passes_on_what_it_knows(loss):
    """Strengths that fall and rise: the last facts and the last Hessian serve, also inside a jit."""
    smooth = PATHS[loss](*made())
    p = sj.Problem(smooth, sj.penalties.L21(1.0))
    strengths = top_of(smooth) * np.array([1.1, 0.5, 0.4, 0.4, 0.1, 0.01, 1e-3, 0.5])
    candidates = jax.vmap(sj.penalties.L21)(strengths)
    path = sj.path(p, candidates, tol=1e-9)
    within = jax.jit(lambda p: sj.path(p, candidates, tol=1e-9))(p)
    singles = [sj.newton_admm(p.replace(penalty=sj.penalties.L21(a)), tol=1e-9) for a in strengths]
    assert set(path.solver) == {"newton_admm"} and path.converged.all() and within.converged.all()
    for found in (path, within):
        np.testing.assert_allclose(found.objective, [one.objective for one in singles], rtol=3e-9)
        np.testing.assert_array_equal(found.params == 0, np.stack([one.params for one in singles]) == 0)
    assert int(np.sum(path.num_iters)) < sum(int(one.num_iters) for one in singles)


def test_a_path_from_where_the_loss_overflows():
    """Every strength says so, and none believes facts that no finite point has."""
    X, Y = made()
    p = sj.Problem(sj.losses.PoissonLoss(X, Y), sj.penalties.L21(1.0))
    candidates = jax.vmap(sj.penalties.L21)(top_of(p.smooth) * np.array([0.5, 0.3, 0.1]))
    path = sj.path(p, candidates, init=np.full((D, K), 1e200))
    assert path.solver == ["newton_admm"] * 3
    assert set(np.asarray(path.status).tolist()) == {sj.solution.NON_FINITE}


def test_the_engine_hands_over(monkeypatch):
    """After some iterations, and the same inside a jit."""
    monkeypatch.setattr(_admm, "MAX_ITERATIONS", 40)
    X, Y = made(n=22, d=13)
    loss = sj.losses.LogisticLoss(X, Y)
    problem = sj.Problem(loss, sj.penalties.L21(1e-4 * top_of(loss)))
    solution = sj.admm(problem, tol=1e-9, history=45)
    assert solution.converged and 40 < solution.num_iters < 80
    seen = np.asarray(solution.history.objective)[:45]
    assert np.isfinite(seen).all() and seen[44] < seen[40] < seen[0]
    within = jax.jit(lambda p: sj.admm(p, tol=1e-9, history=45))(problem)
    assert solution.solver == within._replace(link=np.asarray(within.link)).solver == "newton_admm"
    assert int(within.num_iters) == int(solution.num_iters) and within.converged
    np.testing.assert_allclose(within.params, solution.params, atol=1e-9)
    np.testing.assert_allclose(within.history.objective, solution.history.objective, rtol=1e-9)
    short = sj.admm(problem, tol=1e-9, maxiter=30)
    assert short.num_iters == 30 and int(short.status) == MAX_ITER


@pytest.mark.parametrize(
    ("smooth", "penalty", "message"),
    [
        (sj.losses.SquaredLoss(*made()), sj.penalties.L21(0.1), "not quadratic"),
        (
            sj.losses.LogisticLoss(made()[0], np.tile(made()[1], (1, 2))),
            sj.penalties.ExclusiveGroupLasso(0.1, sj.groups.label_views(2, 3)),
            "one term",
        ),
        (
            sj.losses.LogisticLoss(np.ones((2049, 2049), np.float32), np.arange(2049) % 2.0),
            sj.penalties.L1(0.1),
            "at most 2048 unknowns",
        ),
    ],
)
def test_unfit(smooth, penalty, message):
    with pytest.raises(TypeError, match=message):
        sj.newton_admm(sj.Problem(smooth, penalty))


@pytest.mark.parametrize("ties", ["breslow", "efron"])
def test_solve_takes_it_where_the_bound_of_the_curvature_is_loose(ties):
    """With few rows for each feature and another penalty `admm` took thousands of iterations."""
    rng = np.random.default_rng(0)
    X, time = rng.standard_normal((40, 20)), rng.exponential(size=40)
    loss = sj.losses.CoxLoss(X, time, rng.random(40) < 0.7, ties=ties)
    problem = sj.Problem(loss, sj.penalties.SortedL1(0.01 * sj.penalties.slope_strengths(20, 0.1)))
    solution, other = sj.solve(problem, tol=1e-9), sj.admm(problem, tol=1e-9)
    assert solution.converged and solution.solver == "newton_admm" and solution.num_iters < 50
    np.testing.assert_allclose(solution.params, other.params, atol=1e-5)


def test_many_short_steps():
    """Unequal columns, 0.01 to 10 000, within groups, which no units mend, and a kink: hundreds of steps."""
    rng = np.random.default_rng(5)
    sizes = np.geomspace(1e-2, 1e4, 8)
    X = rng.standard_normal((40, 8)) * sizes
    y = X @ (np.r_[np.ones(3), np.zeros(5)] / sizes) + 0.3 * rng.standard_normal(40)
    group = sj.groups.from_labels(np.arange(8) // 3)
    loss = sj.losses.QuantileLoss(X, y, 0.3, 0.01, intercept=True)
    solution = sj.solve(sj.Problem(loss, sj.penalties.GroupLasso(0.05, group)))
    assert solution.converged and solution.num_iters > 300


def test_a_wide_sparse_matrix_is_not_for_newton():
    """Its Hessian is computed by products, d x d: with 20 000 columns a jitted solve compiled for minutes."""
    X = scipy.sparse.random(100, 3000, 0.01, random_state=0, format="csr")
    p = sj.Problem(sj.losses.SquaredLoss(X, np.ones(100)), sj.penalties.L1(0.1))
    with pytest.raises(TypeError, match="at most 2048 unknowns; here they have 3000"):
        sj.newton_admm(p)
    assert [link.name for link in chain_of(pick(p).link, p).links] == ["prox_newton", "fista"]
