"""The interior point method for quantiles and l1: against linear programmes, in lanes, and what it leaves."""

import conic
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

import sparsejax as sj
from sparsejax.losses import HuberLoss, QuantileLoss
from sparsejax.penalties import L1, L21, NonNegative, SquaredL2

SHAPES = {"tall": (60, 12), "square": (40, 50), "wide": (30, 90)}


def data(shape, seed=0, dtype=np.float64):
    n, d = SHAPES[shape]
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    y = X[:, :4] @ [2.0, -1.0, 1.0, 0.5] + rng.standard_t(2, n) + 3
    return X.astype(dtype), y.astype(dtype), rng


def least(X, y, q, alpha, weights, intercept):
    """The minimum of the weighted mean pinball loss plus the l1 norm, by HiGHS."""
    n, c = len(y), weights / len(y)
    ones = np.ones((n, 1)) * intercept
    cost = np.r_[alpha, alpha, 0, 0, q * c, (1 - q) * c]
    left = np.hstack([X, -X, ones, -ones, np.eye(n), -np.eye(n)])
    return linprog(cost, A_eq=left, b_eq=y, method="highs").fun


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("q, factor", [(0.5, 0.1), (0.9, 0.02)])
def test_against_a_linear_programme(shape, q, factor, intercept):
    """The smoothing is so small that the answer is that of the pinball loss itself."""
    X, y, rng = data(shape, seed=round(10 * q))
    weights = rng.integers(0, 3, len(y)).astype(float)
    slopes = (weights * np.where(y > 0, q, q - 1)) @ X / len(y)
    alpha = factor * np.abs(slopes).max() * rng.uniform(0.5, 2, X.shape[1])
    smoothing = 1e-6
    loss = QuantileLoss(X, y, q, smoothing, weights=weights, intercept=intercept)
    s = sj.solve(sj.Problem(loss, L1(alpha)))
    assert s.solver == "interior_point" and s.converged and s.num_iters < 40
    w = np.asarray(s.params)
    assert 0 < np.count_nonzero(w) < len(w) or shape == "tall"
    r = y - X @ w - float(loss.intercept(s.params))
    value = weights @ np.maximum(q * r, (q - 1) * r) / len(y) + alpha @ np.abs(w)
    best = least(X, y, q, alpha, weights, intercept)
    # The gap is relative to the value at zero; smoothing lowers the minimum by at most its half.
    assert best - 1e-9 <= value <= best + 1e-6 * float(loss(jnp.zeros_like(s.params))) + smoothing


@pytest.mark.parametrize(
    "loss, shape, intercept",
    [
        ("quantile", "tall", False),
        ("quantile", "wide", True),
        ("Huber", "square", True),
        ("Huber", "wide", False),
    ],
)
def test_against_conic_solver(loss, shape, intercept):
    X, y, rng = data(shape, seed=3)
    if loss == "quantile":
        smooth = QuantileLoss(X, y, 0.3, 0.5, intercept=intercept)
    else:
        smooth = HuberLoss(X, y, delta=0.7, intercept=intercept)
    problem = sj.Problem(smooth, L1(rng.uniform(0.02, 0.2, X.shape[1])) + SquaredL2(0.05))
    s, theirs = sj.interior_point(problem, tol=1e-9), conic.minimise(problem)
    assert s.converged and s.solver == "interior_point"
    assert abs(s.objective - theirs.objective) <= 1e-8 * (1 + abs(theirs.objective))
    size = max(float(s.objective), float(smooth(jnp.zeros_like(s.params))))
    assert float(s.objective) - float(s.gap) * size <= theirs.objective + 1e-9


def test_lanes_are_a_loop():
    """Over strengths, data, weights, quantiles; a jitted call is the eager one."""
    X, y, rng = data("square")
    many = 3
    leaves = {
        "alpha": np.geomspace(0.2, 0.02, many),
        "q": np.array([0.2, 0.5, 0.7]),
        "weights": rng.uniform(0.5, 2, (many, len(y))),
        "X": X + 0.1 * rng.standard_normal((many, *X.shape)),
    }

    def solved(at):
        loss = QuantileLoss(at["X"], y, at["q"], 0.01, weights=at["weights"], intercept=True)
        return sj.solve(sj.Problem(loss, L1(at["alpha"])))

    found = jax.jit(jax.vmap(solved))(leaves)
    jitted = jax.jit(solved)
    for i in range(many):
        at = {name: leaf[i] for name, leaf in leaves.items()}
        for alone in (solved(at), jitted(at)):
            assert alone.converged and found.status[i] == 0
            assert int(alone.num_iters) == int(found.num_iters[i])
            np.testing.assert_allclose(found.params[i], alone.params, atol=1e-6)


def test_path_and_derivative():
    X, y, _ = data("square")
    problem = sj.Problem(QuantileLoss(X, y, 0.4, 0.2), L1(0.1))
    alphas = np.geomspace(0.2, 0.05, 4)
    path = sj.path(problem, L1(alphas), tol=1e-10)
    for i, alpha in enumerate(alphas):
        one = sj.solve(problem.replace(penalty=L1(alpha)), tol=1e-10)
        assert path.converged[i] and path.solver[i] == "interior_point"
        np.testing.assert_allclose(path.params[i], one.params, atol=1e-7)

    def size(alpha):
        return (sj.solve(problem.replace(penalty=L1(alpha)), tol=1e-12).params ** 2).sum()

    h = 1e-6
    difference = (size(0.1 + h) - size(0.1 - h)) / (2 * h)
    for derivative in (jax.grad(size)(0.1), jax.jvp(size, (0.1,), (1.0,))[1]):
        np.testing.assert_allclose(derivative, difference, rtol=1e-5)


@pytest.mark.parametrize("shape", ["tall", "wide"])
def test_float32(shape):
    X, y, _ = data(shape, dtype=np.float32)
    problem = sj.Problem(QuantileLoss(X, y, 0.5, np.float32(0.05), intercept=True), L1(np.float32(0.03)))
    s = sj.solve(problem)
    assert s.converged and s.params.dtype == np.float32 and s.solver == "interior_point"
    X, y, _ = data(shape)
    exact = sj.solve(sj.Problem(QuantileLoss(X, y, 0.5, 0.05, intercept=True), L1(0.03)), tol=1e-9)
    assert abs(float(s.objective) - float(exact.objective)) <= 2e-4 * float(exact.objective)


def test_what_it_leaves_to_others():
    """A strength of 0, which has no interior; eagerly and jitted. A start that is the answer stays."""
    X, y, _ = data("tall")
    alpha = np.where(np.arange(X.shape[1]) < 2, 0, 0.05)
    problem = sj.Problem(QuantileLoss(X, y, 0.5, 0.5), L1(alpha))
    for solve in (sj.solve, jax.jit(sj.solve)):
        s = solve(problem)
        assert s.converged and s.solver == "newton_admm"
    problem = problem.replace(penalty=L1(0.05))
    answer = sj.solve(problem, tol=1e-9)
    again = sj.solve(problem, answer.params, tol=1e-8)
    assert again.converged and again.num_iters == 0
    few = sj.interior_point(problem, tol=1e-9, maxiter=3)
    assert not few.converged and few.num_iters == 3


def test_nan_is_not_solved():
    X, y, _ = data("tall")
    solve = jax.jit(lambda alpha: sj.solve(sj.Problem(QuantileLoss(X, y, 0.5, 0.5), L1(alpha))))
    assert not solve(np.nan).converged and not solve(-1.0).converged


@pytest.mark.parametrize(
    "loss, penalty, reason",
    [
        (sj.losses.SquaredLoss, L1(0.1), "bounded_slope"),
        (lambda X, y: QuantileLoss(X, np.stack([y, y], 1), 0.5, 0.1), L1(0.1), "single column"),
        (lambda X, y: QuantileLoss(X, y, 0.5, 0.1), L1(0.1) + NonNegative(), "L1"),
        (lambda X, y: QuantileLoss(X, y, 0.5, 0.1), sj.penalties.SquaredL2(0.1), "L1"),
        (lambda X, y: QuantileLoss(np.zeros((2100, 2100)), np.zeros(2100), 0.5, 0.1), L1(0.1), "2048"),
    ],
)
def test_what_does_not_fit(loss, penalty, reason):
    X, y, _ = data("tall")
    with pytest.raises(TypeError, match=reason):
        sj.interior_point(sj.Problem(loss(X, y), penalty))


@pytest.mark.parametrize("shape", ["tall", "wide"])
def test_columns_that_depend_on_one_another(shape):
    """Twins, a sum and nearly a sum, active at a weak strength: the matrix is singular but for rounding."""
    X, y, rng = data(shape)
    X[:, 4:6], X[:, 6] = X[:, :2], X[:, 0] + X[:, 1]
    X[:, 7] = X[:, 2] - X[:, 3] + 1e-9 * rng.standard_normal(len(X))
    loss = QuantileLoss(X, y, 0.5, 1e-3, intercept=True)
    problem = sj.Problem(loss, L1(1e-3))
    s = sj.solve(problem)
    assert s.converged and s.solver == "interior_point"
    best = least(X, y, 0.5, np.full(X.shape[1], 1e-3), np.ones(len(y)), True)
    r = y - X @ np.asarray(s.params) - float(loss.intercept(s.params))
    value = np.abs(r).mean() / 2 + 1e-3 * np.abs(s.params).sum()
    assert best - 1e-9 <= value <= best + 2e-4


def test_rows_of_one_column_are_entries():
    """`L21` of one column is l1; a column (d, 1) is a vector."""
    X, y, _ = data("tall")
    vector = sj.solve(sj.Problem(QuantileLoss(X, y, 0.5, 0.1), L1(0.05)), tol=1e-9)
    column = sj.solve(sj.Problem(QuantileLoss(X, y[:, None], 0.5, 0.1), L21(0.05)), tol=1e-9)
    assert column.solver == "interior_point" and column.params.shape == (X.shape[1], 1)
    np.testing.assert_allclose(column.params[:, 0], vector.params, atol=1e-8)
