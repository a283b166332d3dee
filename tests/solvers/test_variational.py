"""Newton on one scalar a row: what it solves, and what it leaves to the engine."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsejax as sj
from sparsejax.driver.feature_subsets import most_features
from sparsejax.solvers import _variational, pick
from sparsejax.solvers._newton_on_scales import MAX_NEWTON_STEPS

N, D, K = 24, 90, 3


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Newton in all these: `test_crowded` is about the rule that leaves some to the engine from the start."""
    monkeypatch.setattr("sparsejax.solvers._variational.MAX_STRENGTH_RATIO", np.inf)


def made(n=N, d=D, k=K, seed=0, common=0.5):
    """Columns with a common part, of which a few matter."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + common * rng.standard_normal((n, 1))
    W = np.zeros((d, k))
    W[:5] = rng.standard_normal((5, k))
    return X, X @ W + 0.3 * rng.standard_normal((n, k))


def problem(ratio=10.0, X=None, Y=None, **options):
    if X is None:
        X, Y = made()
    loss = sj.losses.SquaredLoss(X, Y, **options)
    top = sj.lambda_max(sj.Problem(loss, sj.penalties.L21(0.0)))
    return sj.Problem(loss, sj.penalties.L21(top / ratio))


def assert_solved(p, tol=1e-10, rtol=1e-5, **options):
    """By Newton alone, and as the engine does."""
    solution = sj.variational_newton(p, tol=tol, **options)
    engine = sj.admm(p, tol=1e-12)
    assert solution.converged and solution.num_iters < 60, solution.message
    assert sj.duality_gap(p, solution.params) <= 2 * tol
    np.testing.assert_allclose(solution.objective, engine.objective, rtol=1e-9)
    size = np.abs(engine.params).max()
    np.testing.assert_allclose(solution.params, engine.params, atol=rtol * size)
    return solution


@pytest.mark.parametrize("n", [N, 150])
@pytest.mark.parametrize("ratio", [1.5, 10.0, 100.0])
def test_both_shapes(n, ratio):
    X, Y = made(n)
    solution = assert_solved(problem(ratio, X, Y))
    zero = np.all(np.asarray(solution.params) == 0, axis=1)
    assert zero.any() or n > D


@pytest.mark.parametrize("n", [N, 150])
def test_strengths_by_row_weights_and_intercept(n):
    X, Y = made(n)
    rng = np.random.default_rng(1)
    loss = sj.losses.SquaredLoss(X, Y + 3, weights=rng.uniform(0, 2, n), intercept=True, scale=0.7)
    assert_solved(sj.Problem(loss, sj.penalties.L21(rng.uniform(0.5, 9, D))))


def test_one_column_is_the_lasso():
    X, Y = made(k=1)
    p = problem(8.0, X, Y)
    columns = assert_solved(p)
    lasso = sj.Problem(sj.losses.SquaredLoss(X, Y[:, 0]), sj.penalties.L1(p.penalty.alpha))
    np.testing.assert_allclose(assert_solved(lasso).params, columns.params[:, 0], atol=1e-9)
    matrix = sj.variational_newton(p.replace(penalty=sj.penalties.L1(p.penalty.alpha)), tol=1e-10)
    np.testing.assert_allclose(matrix.params, columns.params, atol=1e-9)


def test_gram():
    X, Y = made(150)
    p = problem(10.0, X, Y)
    assert_solved(sj.Problem(p.smooth.gram(), p.penalty))


def test_above_lambda_max():
    solution = assert_solved(problem(0.999999))
    assert not np.any(solution.params) and solution.num_iters == 0


@pytest.mark.parametrize("start", ["solution", "noise", "huge"])
def test_starts(start):
    p = problem(10.0)
    solution = assert_solved(p)
    rng = np.random.default_rng(2)
    init = {
        "solution": solution.params,
        "noise": rng.standard_normal((D, K)),
        "huge": 1e12 * rng.standard_normal((D, K)),
    }[start]
    again = sj.variational_newton(p, init, tol=1e-10)
    assert again.converged
    assert start != "solution" or again.num_iters <= 1
    np.testing.assert_allclose(again.params, solution.params, atol=1e-5)


def degenerate():
    rng = np.random.default_rng(3)
    X, Y = made()
    yield "copies of columns", np.concatenate([X[:, :30]] * 3, axis=1), Y
    yield "zero columns", np.where(np.arange(D) % 3 == 0, 0, X), Y
    yield "rank 1", X[:, :1] * rng.standard_normal((1, D)), Y
    yield "copies of one column", np.repeat(X[:, :1], D, axis=1), Y
    yield "one sample", X[:1], Y[:1]
    yield "two samples, one column", X[:2], Y[:2, :1]
    yield "columns of all sizes", X * 10.0 ** rng.integers(-4, 5, D), Y
    yield "nothing to explain", X, np.zeros_like(Y)
    yield "rank 1, tall", np.outer(rng.standard_normal(150), rng.standard_normal(D)), made(150)[1]


@pytest.mark.parametrize(
    ("name", "X", "Y"), list(degenerate()), ids=lambda x: x if isinstance(x, str) else ""
)
@pytest.mark.parametrize("ratio", [2.0, 50.0])
def test_degenerate_data(name, X, Y, ratio):
    loss = sj.losses.SquaredLoss(X, Y)
    top = float(sj.lambda_max(sj.Problem(loss, sj.penalties.L21(0.0))))
    p = sj.Problem(loss, sj.penalties.L21(max(top / ratio, 1e-3)))
    solution, engine = sj.variational_newton(p, tol=1e-9), sj.admm(p, tol=1e-9)
    assert solution.converged, (name, solution.message)
    np.testing.assert_allclose(solution.objective, engine.objective, rtol=3e-9, atol=1e-12)


def test_strength_zero_by_row_is_left_to_the_engine():
    X, Y = made(60, 20)
    alpha = np.where(np.arange(20) < 2, 0.0, 0.3)
    p = sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.L21(alpha))
    solution, engine = sj.variational_newton(p), sj.admm(p)
    np.testing.assert_allclose(solution.params, engine.params, atol=1e-9)
    assert solution.converged == engine.converged


@pytest.mark.parametrize("how", ["eager", "jit", "working sets"])
def test_more_rows_than_the_last_bucket_holds(monkeypatch, how):
    """The engine takes over: the answer, the count of iterations and the history go on."""
    monkeypatch.setattr("sparsejax.solvers._norm_blocks.most_features", lambda n, d, k: 8)
    X, Y = made(seed=4)
    p, jit = problem(60.0, X, Y), how == "jit"
    if how == "working sets":
        monkeypatch.setattr(_variational, "most_features", lambda n, d, k: 14)
    larger = _variational.larger_working_set(p)
    assert (None if larger is None else dict(larger.options)) == (
        {"size": 3 * 14} if how == "working sets" else None
    )
    solver = lambda p: sj.variational_newton(p, tol=1e-8, history=400)
    jax.clear_caches()
    solution = (jax.jit(solver) if jit else solver)(p)
    engine = sj.admm(p, tol=1e-8)
    jax.clear_caches()
    assert solution.solver in (("working_set", "admm") if how == "working sets" else ("admm",))
    assert solution.converged and np.sum(np.any(np.asarray(solution.params) != 0, axis=1)) > 8
    np.testing.assert_allclose(solution.objective, engine.objective, rtol=1e-7)
    gaps = np.asarray(solution.history.gap)
    assert np.isfinite(gaps[: min(int(solution.num_iters), 400)]).all()
    assert gaps[0] > 0.5


def test_maxiter_is_kept():
    solution = sj.variational_newton(problem(50.0), tol=1e-10, maxiter=3)
    assert solution.num_iters == 3 and not solution.converged


def test_history():
    solution = sj.variational_newton(problem(10.0), tol=1e-10, history=50)
    k = int(solution.num_iters)
    assert 3 < k < MAX_NEWTON_STEPS
    np.testing.assert_allclose(solution.history.objective[k], solution.objective, rtol=1e-9)
    assert np.all(np.diff(solution.history.gap[: k + 1][-3:]) < 0)
    assert np.isnan(solution.history.gap[k + 1])


def test_prediction():
    """Exact where the norms are linear in the strength; where it would be a leap, the point itself."""
    y = np.array([5.0, -4.0, 3.0, 0.5])
    loss = sj.losses.SquaredLoss(np.eye(4, 5), y, scale=0.5)
    shared, zero = _variational.share(loss), jnp.zeros(5)
    make = lambda alpha: sj.Problem(loss, sj.penalties.L1(alpha))
    path = _variational.start(shared, make(2.0), zero)
    point = path.point._replace(known=jnp.ones((), bool))
    for alpha in (2.0, 1.5):
        norms = jnp.maximum(jnp.append(jnp.abs(y), 0) - alpha, 0)
        path = _variational.PathState(point._replace(t=norms / alpha), jnp.full(5, alpha), norms, *path[1:3])
    predicted = lambda alpha: _variational._predicted(_variational._blocks(make(alpha), zero), path)
    np.testing.assert_allclose(predicted(1.2).t * 1.2, [3.8, 2.8, 1.8, 0, 0], rtol=1e-12)
    assert not predicted(1.2).known
    for alpha in (1.7, 0.2):
        assert predicted(alpha).known and np.array_equal(predicted(alpha).t, path.point.t)


@pytest.mark.parametrize("weights", ["row", "entry"])
def test_gradient_of_the_certificate(weights, rng):
    """By a product of its own; `jax.grad` gives the same."""
    X, Y = rng.standard_normal((6, 9)), rng.standard_normal((6, 2))
    w = {"row": np.arange(6.0), "entry": rng.uniform(size=(6, 2))}[weights]
    loss = sj.losses.SquaredLoss(X, Y, weights=w, intercept=True)
    W = jnp.asarray(rng.standard_normal((9, 2)))
    facts = loss.facts(W)
    np.testing.assert_allclose(facts.gradient, jax.grad(loss)(W), atol=1e-13)
    np.testing.assert_allclose(facts.value, loss(W), rtol=1e-13)


def test_jit_and_vmap():
    p = problem(10.0)
    alphas = p.penalty.alpha * jnp.array([0.3, 1.0, 4.0, 20.0])
    one = lambda alpha: sj.variational_newton(sj.Problem(p.smooth, sj.penalties.L21(alpha)), tol=1e-9)
    together = jax.jit(jax.vmap(one))(alphas)
    assert together.converged.all()
    for i, alpha in enumerate(alphas):
        np.testing.assert_allclose(together.params[i], one(alpha).params, atol=1e-6)


def test_vmap_over_data():
    sets = [made(seed=seed) for seed in range(3)]
    X, Y = (np.stack(arrays) for arrays in zip(*sets, strict=True))
    one = lambda X, Y: sj.variational_newton(sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.L21(0.3)))
    together = jax.vmap(one)(X, Y)
    assert together.converged.all()
    for i, (x, y) in enumerate(sets):
        np.testing.assert_allclose(together.params[i], one(x, y).params, atol=1e-4)


@pytest.mark.parametrize("n", [N, 150])
def test_derivative(n):
    X, Y = made(n)
    p = problem(10.0, X, Y)
    direction = np.random.default_rng(5).standard_normal(X.shape)

    def value(t):
        loss = sj.losses.SquaredLoss(X + t * direction, Y)
        penalty = sj.penalties.L21(p.penalty.alpha * (1 + t))
        return jnp.sum(sj.variational_newton(sj.Problem(loss, penalty), tol=1e-13).params ** 2)

    h = 1e-5
    np.testing.assert_allclose(jax.grad(value)(0.0), (value(h) - value(-h)) / (2 * h), rtol=1e-5)
    np.testing.assert_allclose(jax.jvp(value, (0.0,), (1.0,))[1], jax.grad(value)(0.0), rtol=1e-6)


@pytest.mark.parametrize("n", [N, 150])
def test_float32(n):
    X, Y = (a.astype(np.float32) for a in made(n))
    p = problem(10.0, X, Y)
    solution = sj.variational_newton(p)
    assert solution.converged and solution.params.dtype == np.float32
    exact = sj.admm(sj.Problem(sj.losses.SquaredLoss(*map(np.float64, (X, Y))), p.penalty), tol=1e-10)
    assert float(solution.objective) <= float(exact.objective) * (1 + 1e-4)


@pytest.mark.parametrize("mode", ["warm", "batch"])
@pytest.mark.parametrize("n", [N, 700])
def test_path(mode, n):
    """In the library it is taken for many features."""
    X, Y = made(n, 600)
    Y = np.hstack([np.roll(Y, i, axis=0) for i in range(4)])  # of up to ten columns `prox_newton` takes it
    p = problem(1.0, X, Y)
    assert pick(p).function is sj.variational_newton
    alphas = p.penalty.alpha * jnp.array([1.0, 0.5, 0.2, 0.1])
    solutions = sj.path(p, jax.vmap(sj.penalties.L21)(alphas), mode=mode, tol=1e-9)
    assert solutions.converged.all() and solutions.num_iters.max() < 40
    engine = sj.admm(sj.Problem(p.smooth, sj.penalties.L21(alphas[2])), tol=1e-10)
    np.testing.assert_allclose(solutions.params[2], engine.params, atol=1e-6)


def test_crowded(monkeypatch):
    """Few features, a weak strength, no start: the engine from the first step."""
    p = problem(100.0)
    newton = sj.variational_newton(p, tol=1e-8)
    monkeypatch.setattr("sparsejax.solvers._variational.MAX_STRENGTH_RATIO", 32)
    jax.clear_caches()
    left = sj.variational_newton(p, tol=1e-8)
    jax.clear_caches()
    assert newton.num_iters < MAX_NEWTON_STEPS < left.num_iters
    np.testing.assert_allclose(newton.objective, left.objective, rtol=1e-7)


def test_path_that_is_left_to_the_engine(monkeypatch):
    monkeypatch.setattr("sparsejax.solvers._norm_blocks.most_features", lambda n, d, k: 8)
    X, Y = made(N, 600)
    p = problem(1.0, X, Y)
    penalties = jax.vmap(sj.penalties.L21)(p.penalty.alpha * jnp.array([1.0, 0.5, 0.05]))
    jax.clear_caches()
    eager, nested = sj.path(p, penalties), jax.jit(lambda q: sj.path(p, q))(penalties)
    jax.clear_caches()
    assert eager.converged.all() and nested.converged.all()
    np.testing.assert_allclose(eager.objective, nested.objective, rtol=1e-5)


@pytest.mark.parametrize("k", [1, 2, 12, 30])
@pytest.mark.parametrize(("n", "d"), [(60, 1000), (400, 20_000), (300, 301), (900, 700), (5, 6)])
def test_the_largest_bucket(n, d, k):
    most = most_features(n, d, k)
    assert min(d, n) <= most <= d and (n < d or most == d)


@pytest.mark.parametrize(
    ("smooth", "penalty", "message"),
    [
        ("squared", sj.penalties.L1(0.1), "of this W, without l1 or NonNegative, got SquaredLoss with L1"),
        ("squared", sj.penalties.ExclusiveL21(0.1, 0.1), "norm of each row"),
        ("logistic", sj.penalties.L21(0.1), "quadratic loss"),
        ("weights by entry", sj.penalties.L21(0.1), "quadratic loss"),
        ("graph", sj.penalties.L21(0.1), "graph"),
    ],
)
def test_unfit(smooth, penalty, message):
    X, Y = made()
    squared = sj.losses.SquaredLoss(X, Y)
    losses = {
        "squared": squared,
        "logistic": sj.losses.LogisticLoss(X, (Y > 0).astype(float)),
        "weights by entry": sj.losses.SquaredLoss(X, Y, weights=np.ones_like(Y)),
        "graph": squared + sj.losses.GraphLaplacian(np.ones((K, K)), 0.1),
    }
    p = sj.Problem(losses[smooth], penalty)
    with pytest.raises(TypeError, match=message):
        sj.variational_newton(p)
    assert pick(p).function is not sj.variational_newton


def test_start_where_the_gradient_is_zero():
    Y = np.arange(240.0).reshape(120, 2) - 50
    p = sj.Problem(sj.losses.SquaredLoss(np.eye(120), Y, scale=0.5), sj.penalties.L21(2.0))
    solution = sj.variational_newton(p, init=Y, tol=1e-8)
    assert solution.converged and solution.solver == "variational_newton"


def test_no_iterations_have_the_same_solver_eagerly_and_under_jit(monkeypatch):
    monkeypatch.setattr("sparsejax.solvers._variational.MAX_STRENGTH_RATIO", 32)
    p = problem(100.0)
    eager, jitted = (
        sj.variational_newton(p, maxiter=0),
        jax.jit(lambda p: sj.variational_newton(p, maxiter=0))(p),
    )
    assert eager.solver == jitted.solver == "variational_newton"


def test_the_error_names_what_does_not_fit():
    @jax.tree_util.register_pytree_node_class
    class Own:
        value = lambda self, W: jnp.sum(jnp.abs(W))
        prox = lambda self, V, scaling=1.0: jnp.sign(V) * jnp.maximum(jnp.abs(V) - scaling, 0)
        tree_flatten = lambda self: ((), None)
        tree_unflatten = classmethod(lambda cls, aux, leaves: cls())

    loss = sj.losses.SquaredLoss(np.eye(3), np.ones((3, 2)))
    with pytest.raises(TypeError, match="got SquaredLoss with Own"):
        sj.variational_newton(sj.Problem(loss, Own()))
    problem = sj.Problem(lambda W: jnp.sum(W * W), sj.penalties.L21(0.1))
    with pytest.raises(TypeError, match="needs a quadratic loss that knows the shape of W"):
        sj.variational_newton(problem, jnp.zeros((3, 2)))
