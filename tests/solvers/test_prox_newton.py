"""Newton on losses of one column: the engine's answers in a handful of steps."""

import conic
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse

import sparsejax as sj
from sparsejax.solvers import pick
from sparsejax.solvers._trend import Trend


def made(n, d, seed=0, noise=1.0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + 0.5 * rng.standard_normal((n, 1))
    score = X[:, 0] - X[:, 1] + 0.5 * X[:, 2]
    return X, score + noise * rng.standard_normal(n) + 0.3


SHAPES = [(60, 8), (25, 70)]
LOSSES = {
    "logistic": lambda X, s, **o: sj.losses.LogisticLoss(X, (s > 0).astype(X.dtype), **o),
    "squared hinge": lambda X, s, **o: sj.losses.SquaredHingeLoss(X, np.sign(s).astype(X.dtype), **o),
    "huber hinge": lambda X, s, **o: sj.losses.HuberHingeLoss(X, np.sign(s).astype(X.dtype), **o),
    "weights": lambda X, s, **o: sj.losses.LogisticLoss(
        X, (s > 0).astype(X.dtype), weights=np.where(np.arange(len(s)) % 5 == 0, 0, 1 + np.abs(s)), **o
    ),
    "by entry": lambda X, s, **o: sj.losses.SquaredLoss(X, s[:, None], weights=np.abs(s)[:, None], **o),
}


def problem(loss, shape, ratio=10.0, intercept=False, **options):
    smooth = LOSSES[loss](*made(*shape, **options), intercept=intercept)
    top = float(sj.lambda_max(sj.Problem(smooth, sj.penalties.L1(1.0))))
    return sj.Problem(smooth, sj.penalties.L1(top / ratio))


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("loss", LOSSES)
def test_against_the_engine(loss, shape, intercept):
    p = problem(loss, shape, intercept=intercept)
    solution, engine = sj.prox_newton(p, tol=1e-9), sj.admm(p, tol=1e-9)
    assert solution.converged and solution.num_iters <= 30, solution.message
    assert sj.duality_gap(p, solution.params) <= 2e-9
    np.testing.assert_allclose(solution.objective, engine.objective, rtol=3e-9)
    np.testing.assert_array_equal(solution.params == 0, engine.params == 0)


BY_DESCENT = [(90, 140), (150, 80)]  # more than 64 rows and columns


@pytest.mark.parametrize("shape", BY_DESCENT)
@pytest.mark.parametrize(
    ("loss", "ratio"),
    [
        ("logistic", 10.0),
        ("logistic", 200.0),
        ("squared hinge", 10.0),
        ("weights", 10.0),
        ("huber hinge", 3.0),
    ],
)
def test_descent_on_few_features(loss, ratio, shape):
    p = problem(loss, shape, ratio=ratio, intercept=True)
    solution, engine = sj.prox_newton(p, tol=1e-9), sj.admm(p, tol=1e-9)
    assert solution.converged and solution.num_iters <= 25 and solution.solver == "prox_newton"
    assert sj.duality_gap(p, solution.params) <= 2e-9
    np.testing.assert_allclose(solution.objective, engine.objective, rtol=3e-9)
    np.testing.assert_array_equal(solution.params == 0, engine.params == 0)


@pytest.mark.parametrize("ratio", [3.0, 30.0, 100.0])
@pytest.mark.parametrize("shape", [(90, 620), (150, 80)])
def test_least_squares(shape, ratio):
    X, s = made(*shape)
    smooth = sj.losses.SquaredLoss(X, s, intercept=True)
    top = float(sj.lambda_max(sj.Problem(smooth, sj.penalties.L1(1.0))))
    p = sj.Problem(smooth, sj.penalties.L1(top / ratio))
    solution, engine = sj.prox_newton(p, tol=1e-9), sj.admm(p, tol=1e-9)
    assert solution.converged and sj.duality_gap(p, solution.params) <= 2e-9
    np.testing.assert_allclose(solution.objective, engine.objective, rtol=3e-9)
    np.testing.assert_array_equal(solution.params == 0, engine.params == 0)


def test_nearly_as_many_active_features_as_rows():
    X, s = made(90, 620)
    smooth = sj.losses.SquaredLoss(X, s, intercept=True)
    top = float(sj.lambda_max(sj.Problem(smooth, sj.penalties.L1(1.0))))
    solution = sj.solve(sj.Problem(smooth, sj.penalties.L1(top / 1000)))
    assert solution.converged and solution.solver == "prox_newton"
    assert np.count_nonzero(solution.params) > 80


def test_which_least_squares_solve_takes():
    """Of one column, on many features, however few the rows; along paths and in float32 as well."""
    X, s = made(90, 620)
    p = sj.Problem(sj.losses.SquaredLoss(X, s), sj.penalties.L1(0.1))
    assert pick(p).function is sj.prox_newton
    wide = sj.Problem(sj.losses.SquaredLoss(X[:70], s[:70]), sj.penalties.L1(0.1))
    columns = sj.Problem(sj.losses.SquaredLoss(X, np.stack([s, -s], axis=1)), sj.penalties.L21(0.1))
    assert pick(wide).function is sj.prox_newton and pick(columns).function is sj.prox_newton
    wider = columns.replace(smooth=sj.losses.SquaredLoss(np.tile(X, 6), np.stack([s, -s], axis=1)))
    assert pick(wider).function is sj.variational_newton
    top = float(sj.lambda_max(p))
    path = sj.path(p, jax.vmap(sj.penalties.L1)(top * jnp.array([1.0, 0.3, 0.03])), tol=1e-9)
    assert path.converged.all() and not path.params[0].any()
    ends = sj.variational_newton(p.replace(penalty=sj.penalties.L1(0.03 * top)), tol=1e-9)
    np.testing.assert_allclose(path.params[2], ends.params, atol=1e-7)
    low = sj.losses.SquaredLoss(X.astype(np.float32), s.astype(np.float32))
    solution = sj.solve(sj.Problem(low, sj.penalties.L1(np.float32(0.03 * top))))
    assert solution.converged and solution.solver == "prox_newton"
    np.testing.assert_allclose(solution.params, ends.params, atol=5e-3)
    floor = sj.solve(p, tol=0.0)
    np.testing.assert_allclose(floor.params, sj.variational_newton(p, tol=0.0).params, atol=1e-9)


def test_weak_strengths_with_many_features_and_few_rows():
    """More entries than rows are active before the end: the Hessian on the support is singular."""
    p = problem("by entry", (66, 700), ratio=300.0, noise=3.0)
    solution = sj.prox_newton(p, tol=1e-9)
    assert solution.converged and solution.solver == "prox_newton", solution.message
    assert 50 < np.count_nonzero(solution.params) <= 66
    assert sj.duality_gap(p, solution.params) <= 2e-9


NONNEGATIVE = {
    "alone": lambda a: sj.penalties.NonNegative(),
    "l1": lambda a: sj.penalties.L1(a) + sj.penalties.NonNegative(),
    "elastic net": lambda a: sj.penalties.ElasticNet(a, 0.5) + sj.penalties.NonNegative(),
    "strengths": lambda a: (
        sj.penalties.L1(a * jnp.where(jnp.arange(140) < 5, 0, 1.0)) + sj.penalties.NonNegative()
    ),
}


@pytest.mark.parametrize("penalty", NONNEGATIVE)
@pytest.mark.parametrize("loss", ["by entry", "logistic"])
def test_nonnegative(loss, penalty):
    """Against the conic solver; a start outside the constraint does no harm."""
    smooth = LOSSES[loss](*made(190, 140))
    p = sj.Problem(smooth, NONNEGATIVE[penalty](0.002))
    init = -jnp.ones(smooth.params_shape)
    solution, optimum = sj.prox_newton(p, init, tol=1e-10), conic.minimise(p)
    assert solution.converged and solution.solver == "prox_newton" and solution.num_iters <= 20
    assert np.all(solution.params >= 0) and 5 < np.count_nonzero(solution.params) < 140
    assert conic.objective(p, solution.params) <= optimum.objective * (1 + 1e-8)


def test_nonnegative_in_transformations_and_float32():
    X, y = made(90, 140)
    of = lambda s, X=X, y=y: sj.Problem(
        sj.losses.SquaredLoss(X, y), sj.penalties.L1(s) + sj.penalties.NonNegative()
    )
    one = lambda s: sj.prox_newton(of(s), tol=1e-10)
    strengths = 0.05 * jnp.array([0.1, 1.0, 100.0])
    alone, together = [one(s) for s in strengths], jax.jit(jax.vmap(one))(strengths)
    assert together.converged.all() and not np.any(together.params[2])
    np.testing.assert_allclose(together.params, [solution.params for solution in alone], atol=1e-9)
    size, h, s = lambda s: jnp.sum(one(s).params ** 2), 1e-6, float(strengths[1])
    np.testing.assert_allclose(jax.grad(size)(s), (size(s + h) - size(s - h)) / (2 * h), rtol=1e-5)
    low = sj.prox_newton(of(np.float32(s), X.astype(np.float32), y.astype(np.float32)))
    assert low.converged and low.params.dtype == np.float32 and np.all(low.params >= 0)
    np.testing.assert_allclose(low.params, alone[1].params, atol=2e-3)


def test_nonnegative_least_squares_of_scipy():
    """With more features than rows the residual may be 0 at many points, of which the solver finds one."""
    for shape in ((90, 600), (1500, 90)):
        X, y = made(*shape)
        w, left = scipy.optimize.nnls(X, y)
        loss = sj.losses.SquaredLoss(X, y, scale=1.0)
        solution = sj.solve(sj.Problem(loss, sj.penalties.NonNegative()), tol=1e-9)
        assert solution.converged and solution.solver == "prox_newton", solution.message
        np.testing.assert_allclose(solution.objective, left**2, atol=1e-12 * (y @ y), rtol=1e-9)
        if shape[0] > shape[1]:
            np.testing.assert_allclose(solution.params, w, atol=1e-7)


def test_descent_with_a_ridge_a_strength_a_row_and_free_features():
    """Against the conic solver, which knows nothing of the library."""
    smooth = LOSSES["logistic"](*made(90, 140), intercept=True)
    strengths = np.where(np.arange(140) < 3, 0.0, np.random.default_rng(0).uniform(0.02, 0.06, 140))
    p = sj.Problem(smooth, sj.penalties.L1(strengths) + sj.penalties.SquaredL2(0.05))
    solution, optimum = sj.prox_newton(p, tol=1e-11), conic.minimise(p)
    assert solution.converged and solution.solver == "prox_newton" and solution.num_iters <= 20
    assert np.all(solution.params[:3] != 0) and 5 < np.count_nonzero(solution.params) < 100
    assert conic.objective(p, solution.params) <= optimum.objective * (1 + 1e-8)
    np.testing.assert_allclose(solution.params, optimum.params, atol=1e-5)


def test_descent_by_a_loss_of_ones_own():
    """Without ``columns_at`` and predictions the whole A is asked for."""

    class Own(sj.Loss, leaves=("inner",)):
        params_shape = property(lambda self: self.inner.params_shape)
        dtype = property(lambda self: self.inner.dtype)

        def __call__(self, W):
            return self.inner(W)

        def quadratic_model(self):
            model = self.inner.quadratic_model()
            return sj.losses.QuadraticModel(
                majorizer=model.majorizer, least_squares_at=lambda W, H: model.least_squares_at(W, None)
            )

        def dual_scaling(self, W, limit, H=None):
            return self.inner.dual_scaling(W, limit)

    p = problem("logistic", (90, 140))
    own, known = (sj.prox_newton(q, tol=1e-9) for q in (p.replace(smooth=Own(p.smooth)), p))
    assert own.converged and own.solver == "prox_newton"
    np.testing.assert_allclose(own.params, known.params, atol=1e-6)


def test_more_active_features_than_descent_has_room_for(monkeypatch):
    monkeypatch.setattr("sparsejax.solvers._block_descent.MAX_FEATURES", 64)
    p = problem("logistic", (270, 190), ratio=2000.0, noise=5.0)
    solution, engine = sj.prox_newton(p, tol=1e-6), sj.admm(p, tol=1e-6)
    assert np.count_nonzero(engine.params) > 128 and solution.converged
    assert solution.solver == "newton_admm"  # `prox_newton` had no room
    np.testing.assert_allclose(solution.objective, engine.objective, rtol=3e-6)


def test_descent_in_transformations_and_float32():
    p = problem("logistic", (90, 140), intercept=True)
    strengths = p.penalty.strength * jnp.array([0.2, 1.0, 30.0])
    one = lambda s: sj.prox_newton(sj.Problem(p.smooth, sj.penalties.L1(s)), tol=1e-10)
    alone, together = [one(s) for s in strengths], jax.jit(jax.vmap(one))(strengths)
    assert together.converged.all() and not np.any(together.params[2])
    assert together.num_iters.tolist() == [int(solution.num_iters) for solution in alone]
    np.testing.assert_allclose(together.params, [solution.params for solution in alone], atol=1e-9)
    size, h = lambda s: jnp.sum(one(s).params ** 2), 1e-6
    s = float(strengths[1])
    np.testing.assert_allclose(jax.grad(size)(s), (size(s + h) - size(s - h)) / (2 * h), rtol=1e-5)
    X, score = made(90, 140)
    low = sj.losses.LogisticLoss(X.astype(np.float32), (score > 0).astype(np.float32), intercept=True)
    solution = sj.prox_newton(sj.Problem(low, sj.penalties.L1(np.float32(s))))
    assert solution.converged and solution.params.dtype == np.float32
    np.testing.assert_allclose(solution.params, alone[1].params, atol=2e-3)


ON_PATHS = [("squared", (90, 620)), ("logistic", (90, 620)), ("logistic", (700, 520))]


@pytest.mark.parametrize(("loss", "shape"), ON_PATHS)
def test_a_path_passes_on_what_it_knows(loss, shape):
    """Strengths that fall and rise, a ridge that changes: the last Gram matrix serves, or a new one."""
    X, score = made(*shape)
    smooth = sj.losses.SquaredLoss(X, score) if loss == "squared" else LOSSES[loss](X, score)
    top = float(sj.lambda_max(sj.Problem(smooth, sj.penalties.L1(1.0))))
    penalty = lambda a, r: sj.penalties.L1(a) + sj.penalties.SquaredL2(r)
    alphas = top * np.array([1.1, 0.5, 0.4, 0.3, 0.3, 0.1, 0.05, 0.4, 0.4])
    ridges = top * np.repeat([0.0, 0.1, 0.02], 3)
    path = sj.path(sj.Problem(smooth, penalty(1.0, 1.0)), jax.vmap(penalty)(alphas, ridges), tol=1e-9)
    assert set(path.solver) == {"prox_newton"} and path.converged.all()
    steps = 0
    for i, (a, r) in enumerate(zip(alphas, ridges, strict=True)):
        one = sj.Problem(smooth, penalty(a, r))
        solution = sj.prox_newton(one, tol=1e-9)
        assert sj.duality_gap(one, path.params[i]) <= 2e-9
        np.testing.assert_allclose(path.objective[i], solution.objective, rtol=3e-9)
        np.testing.assert_array_equal(path.params[i] == 0, solution.params == 0)
        steps += int(solution.num_iters)
    assert int(np.sum(path.num_iters)) < steps


def test_a_path_from_where_the_loss_overflows():
    """Every strength says so, and none believes facts that no finite point has."""
    X, score = made(90, 620)
    p = sj.Problem(sj.losses.SquaredLoss(X, score), sj.penalties.L1(1.0))
    strengths = float(sj.lambda_max(p)) * np.array([0.5, 0.3, 0.1])
    path = sj.path(p, jax.vmap(sj.penalties.L1)(strengths), init=np.full(620, 1e200))
    assert path.solver == ["prox_newton"] * 3
    assert set(np.asarray(path.status).tolist()) == {sj.solution.NON_FINITE}


def test_a_path_with_columns_that_take_long_to_copy(monkeypatch):
    monkeypatch.setattr("sparsejax.solvers._block_descent.MAX_ENTRIES_PASSED_ON", 0)
    X, score = made(96, 530)
    p = sj.Problem(LOSSES["logistic"](X, score), sj.penalties.L1(1.0))
    strengths = float(sj.lambda_max(p)) * np.array([0.5, 0.2, 0.1, 0.05])
    path = sj.path(p, jax.vmap(sj.penalties.L1)(strengths), tol=1e-9)
    assert set(path.solver) == {"prox_newton"} and path.converged.all()
    singles = [sj.prox_newton(p.replace(penalty=sj.penalties.L1(a)), tol=1e-9) for a in strengths]
    np.testing.assert_allclose(path.objective, [one.objective for one in singles], rtol=3e-9)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_small_strengths_and_separated_labels(shape, noise):
    """Where first-order steps are thousands."""
    p = problem("logistic", shape, ratio=3000.0, noise=noise)
    solution = sj.prox_newton(p, tol=1e-8)
    assert solution.converged and solution.num_iters <= 50, solution.num_iters
    assert sj.duality_gap(p, solution.params) <= 2e-8


def test_columns_of_all_sizes_and_copies():
    X, s = made(40, 12)
    X = np.concatenate([X, X[:, :4], np.zeros((40, 2))], axis=1) * 10.0 ** np.resize([-3, 0, 2], 18)
    smooth = LOSSES["logistic"](X, s, intercept=True)
    p = sj.Problem(smooth, sj.penalties.L1(np.resize([1e-4, 1e-2, 1.0], 18)))
    solution, engine = sj.prox_newton(p, tol=1e-8), sj.admm(p, tol=1e-8)
    assert solution.converged
    np.testing.assert_allclose(solution.objective, engine.objective, rtol=2e-8)


def test_strength_zero_by_row_is_left_to_the_engine():
    smooth = LOSSES["logistic"](*made(60, 8))
    p = sj.Problem(smooth, sj.penalties.L1(np.where(np.arange(8) == 0, 0.0, 0.05)))
    solution, engine = sj.prox_newton(p, tol=1e-10), sj.admm(p, tol=1e-10)
    assert solution.converged == engine.converged
    np.testing.assert_allclose(solution.params, engine.params, atol=1e-6)


def test_jit_vmap_matrix_and_float32():
    assert pick(problem("logistic", (60, 80), intercept=True)).function is sj.prox_newton
    p = problem("logistic", (60, 8), intercept=True)
    assert pick(p).function is sj.newton_admm  # few features: the whole Hessian costs less than a working set
    strengths = p.penalty.strength * jnp.array([0.1, 1.0, 30.0])
    one = lambda s: sj.prox_newton(sj.Problem(p.smooth, sj.penalties.L1(s)), tol=1e-8)
    together = jax.jit(jax.vmap(one))(strengths)
    assert together.converged.all() and not np.any(together.params[2])
    np.testing.assert_allclose(together.objective, [one(s).objective for s in strengths], rtol=1e-7)
    path = sj.path(p, jax.vmap(sj.penalties.L1)(strengths[::-1]), tol=1e-8)
    np.testing.assert_allclose(path.params[::-1], together.params, atol=1e-6)
    X, s = made(60, 8)
    column = sj.losses.LogisticLoss(X, (s > 0).astype(float)[:, None], intercept=True)
    matrix = sj.prox_newton(sj.Problem(column, sj.penalties.L21(strengths[1])), tol=1e-8)
    np.testing.assert_allclose(matrix.params[:, 0], together.params[1], atol=1e-6)
    single = sj.losses.LogisticLoss(X.astype(np.float32), (s > 0).astype(np.float32), intercept=True)
    solution = sj.prox_newton(sj.Problem(single, sj.penalties.L1(strengths[1].astype(np.float32))))
    assert solution.converged and solution.params.dtype == np.float32
    np.testing.assert_allclose(solution.objective, together.objective[1], rtol=1e-4)


SPARSE = {
    "squared": lambda X, s: sj.losses.SquaredLoss(X, s, intercept=True, weights=1 + np.abs(s)),
    "logistic": lambda X, s: sj.losses.LogisticLoss(X, (s > 0) * 1.0, intercept=True),
    "huber": lambda X, s: sj.losses.HuberLoss(X, s, delta=0.5),
    "cox": lambda X, s: sj.losses.CoxLoss(X, np.exp(s), s < 1),
}
GROUPS = sj.groups.from_labels(np.arange(600) // 3)


@pytest.mark.parametrize("penalty", [sj.penalties.L1, lambda a: sj.penalties.GroupLasso(a, GROUPS)])
@pytest.mark.parametrize("loss", SPARSE)
def test_a_sparse_matrix_gives_what_a_dense_one_gives(loss, penalty):
    X = scipy.sparse.random(100, 600, 0.05, random_state=1, format="csr")
    score = 4 * np.asarray(X[:, :9].sum(axis=1)).ravel() + 0.3 * np.random.default_rng(1).standard_normal(100)
    dense, spread = SPARSE[loss](X.toarray(), score), SPARSE[loss](X, score)
    strengths = float(sj.lambda_max(sj.Problem(dense, penalty(1.0)))) * np.array([0.3, 0.1])
    solve = jax.jit(jax.vmap(lambda a: sj.solve(sj.Problem(spread, penalty(a)), tol=1e-9)))
    found = solve(strengths)
    for a, W, solver in zip(strengths, found.params, found.link, strict=True):
        one, known = (sj.prox_newton(sj.Problem(each, penalty(a)), tol=1e-9) for each in (spread, dense))
        assert one.converged and solver == one.link and (one.solver == "prox_newton" or loss == "huber")
        np.testing.assert_allclose(one.params, known.params, atol=1e-6 * np.abs(known.params).max())
        np.testing.assert_allclose(W, known.params, atol=1e-6 * np.abs(known.params).max())


def test_a_long_sparse_matrix_is_left_to_other_solvers(monkeypatch):
    X = scipy.sparse.random(100, 600, 0.05, random_state=1, format="csr")
    p = sj.Problem(sj.losses.SquaredLoss(X, np.asarray(X.sum(axis=1)).ravel()), sj.penalties.L1(0.01))
    assert pick(p).function is sj.prox_newton
    monkeypatch.setattr("sparsejax.solvers._prox_newton.MAX_ENTRIES_OF_COLUMNS", 100 * 100)
    assert pick(p).function is not sj.prox_newton
    quantile = sj.losses.QuantileLoss(X, np.asarray(X.sum(axis=1)).ravel(), q=0.5, smoothing=0.1)
    assert sj.solve(p.replace(smooth=quantile)).converged  # an error before, as that of Huber's loss
    monkeypatch.setattr("sparsejax._core.matrices.sparse.MAX_DENSE_SIZE", 100)
    with pytest.raises(TypeError, match="needs a loss with majorizer"):
        sj.prox_newton(p)


@pytest.mark.parametrize("shape", SHAPES)
def test_derivative(shape):
    p = problem("logistic", shape, intercept=True)

    def value(t):
        q = sj.Problem(p.smooth, sj.penalties.L1(p.penalty.strength * (1 + t)))
        return jnp.sum(sj.prox_newton(q, tol=1e-12).params ** 2)

    h = 1e-5
    np.testing.assert_allclose(jax.grad(value)(0.0), (value(h) - value(-h)) / (2 * h), rtol=1e-5)


def test_starts_history_and_maxiter():
    p = problem("logistic", (60, 8), ratio=50.0)
    solution = sj.prox_newton(p, tol=1e-9, history=40)
    k = int(solution.num_iters)
    np.testing.assert_allclose(solution.history.objective[k], solution.objective)
    assert np.all(np.diff(solution.history.objective[: k + 1]) <= 1e-12)
    assert sj.prox_newton(p, solution.params, tol=1e-9).num_iters == 0
    far = sj.prox_newton(p, 50 * np.ones(8), tol=1e-9)
    assert far.converged
    np.testing.assert_allclose(far.objective, solution.objective, rtol=1e-8)
    short = sj.prox_newton(p, tol=1e-9, maxiter=1)
    assert short.num_iters == 1 and not short.converged


@pytest.mark.parametrize(
    ("smooth", "penalty", "message"),
    [
        ("two columns", sj.penalties.L21(0.1), "single column"),
        ("logistic", sj.penalties.ExclusiveLasso(0.1), "norm of each row"),
        ("by its products", sj.penalties.L1(0.1), "least_squares_at"),
    ],
)
def test_unfit(smooth, penalty, message):
    X, s = made(30, 5)
    losses = {
        "two columns": sj.losses.LogisticLoss(X, np.stack([s > 0, s > 1], axis=1).astype(float)),
        "logistic": LOSSES["logistic"](X, s),
        "by its products": sj.losses.SquaredLoss(X, s).gram(),
    }
    with pytest.raises(TypeError, match=message):
        sj.prox_newton(sj.Problem(losses[smooth], penalty))


def test_one_solution_is_no_trend():
    loss = sj.losses.SquaredLoss(np.eye(3), np.ones(3))
    make = lambda a: sj.Problem(loss, sj.penalties.L1(a))
    _, trend = Trend.none(jnp.zeros(3)).start(make(1.0), jnp.zeros(3))
    start, trend = trend.start(make(2.0), jnp.ones(3))
    np.testing.assert_array_equal(start, 1.0)
    np.testing.assert_allclose(trend.start(make(3.0), 0.8 * jnp.ones(3))[0], 0.6, rtol=1e-6)


def test_huge_groups_are_left_to_other_solvers():
    """A step has room for two groups of any size, and a Gram matrix of that size."""
    loss = sj.losses.SquaredLoss(np.ones((300, 4200)), np.ones(300))
    for size, name in ((2100, "variational_newton"), (1400, "prox_newton")):
        groups = sj.groups.from_labels(np.arange(4200) // size)
        assert pick(sj.Problem(loss, sj.penalties.GroupLasso(1.0, groups))).link.name == name
