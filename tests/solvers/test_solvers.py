"""The transformation table of the solvers, generated from the table of cases; what one solver promises."""

import functools

import conic
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DTYPE, ENGINES, PAIRS, SOLVERS, K, data, problem, smooth, solution, solvers_of
from loss_cases import LOSSES, MAIN_LOSSES
from penalty_cases import PENALTIES, D

import sparsejax as sj
from sparsejax import penalties
from sparsejax._core.linalg import largest_eigenvalue_bound

FUNCTIONS = {"solve": sj.solve} | {name: solver.function for name, solver in SOLVERS.items()}
# `solve` calls the others: one problem for each of its ways
WAYS = [("SquaredLoss", "ExclusiveL21"), ("SquaredLoss", "ExclusiveGroupL21"), ("LogisticLoss", "L21")]
CASES = [
    (solver, *pair)
    for pair in PAIRS
    for solver in solvers_of(*pair)
    if solver != "working_set" or pair[0] in MAIN_LOSSES  # the engine on a part, for every loss alike
] + [("solve", *pair) for pair in WAYS]
OF_ENGINES = [case for case in CASES if case[0] in ENGINES]
HISTORY = 40  # iterations recorded
# float32 has its own run, with 64-bit numbers off as in plain JAX (see conftest.py)
TOL = 1e-5 if np.float32 == DTYPE else 1e-9
# A relative gap of tol leaves about its square root in W; the objective it bounds directly.
ATOL = 3e-2 if np.float32 == DTYPE else 2e-4

float32_only_ok = pytest.mark.float32_only_ok


def stack(trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def run(solver, **options):
    return functools.partial(FUNCTIONS[solver], tol=DTYPE(TOL), **options)


def three(loss, penalty):
    """Three problems of different data and strengths."""
    return [problem(loss, penalty, seed=s, factor=f) for s, f in ((0, 0.5), (1, 1.0), (2, 2.0))]


def assert_same(batch, singles):
    """Each lane of a batch is as good as the same problem solved alone, and says so."""
    batch = jax.tree.map(np.asarray, batch)
    for i, single in enumerate(singles):
        assert batch.status[i] == 0 and bool(single.converged)
        assert batch.params.dtype == batch.objective.dtype == DTYPE
        np.testing.assert_allclose(batch.objective[i], single.objective, rtol=3 * TOL)
        np.testing.assert_allclose(batch.params[i], single.params, atol=ATOL)


def check_history(s, at_zero):
    """Every iteration is recorded, and the recorded gaps bound the recorded objectives."""
    objective, gap = np.asarray(s.history.objective), np.asarray(s.history.gap)
    end = min(int(s.num_iters) + 1, HISTORY)
    assert np.isfinite(objective[:end]).all() and np.isnan(objective[end:]).all()
    exact = objective.dtype == np.float64
    np.testing.assert_allclose(objective[0], at_zero, rtol=1e-12 if exact else 1e-5)
    size = np.maximum(np.abs(objective[:end]), objective[0])
    slack = 1e-12 if exact else 1e-5
    assert (objective[:end] - float(s.objective) <= gap[:end] * size + slack).all()


@float32_only_ok
@pytest.mark.parametrize("solver, loss, penalty", CASES)
def test_jit_and_vmap(solver, loss, penalty):
    """jit = eager; vmap over data and strengths together = a loop; the history of every lane."""
    solve, problems = run(solver), three(loss, penalty)
    singles = [solve(p) for p in problems]
    # The engines' programs for other losses are seen in a batch only.
    alone = penalty == "ExclusiveL21" and (solver not in ENGINES or loss in MAIN_LOSSES)
    if alone or solver in ("alm", "solve"):
        assert_same(stack([jax.jit(solve)(problems[1])]), [singles[1]])
    if solver not in ("admm", "fista", "irls"):
        if not alone and solver not in ("alm", "solve"):  # nothing above has compared these
            assert_same(stack(singles), [run("fista")(p) for p in problems])
        return
    recorded = run(solver, history=HISTORY) if solver in ENGINES else solve
    batch = jax.jit(jax.vmap(recorded))(stack(problems))
    assert_same(batch, singles)
    if solver in ENGINES:
        lanes = jax.tree.map(np.asarray, batch)
        for i, p in enumerate(problems):
            check_history(lanes[i], conic.objective(p, np.zeros((D, K))))


@pytest.mark.parametrize("loss", MAIN_LOSSES)
@pytest.mark.parametrize("solver", ENGINES)
def test_vmap_over_one_of_the_two(solver, loss):
    """vmap over strengths with the data shared, and over data with the strengths shared = a loop."""
    solve, problems = run(solver), three(loss, "ExclusiveL21")
    first = problems[0]
    strengths = stack([p.penalty for p in problems])
    over_strengths = jax.vmap(lambda penalty: solve(first.replace(penalty=penalty)))(strengths)
    assert_same(over_strengths, [solve(first.replace(penalty=p.penalty)) for p in problems])
    stacked = stack([p.smooth for p in problems])
    over_data = jax.vmap(lambda smooth: solve(first.replace(smooth=smooth)))(stacked)
    assert_same(over_data, [solve(first.replace(smooth=p.smooth)) for p in problems])


@float32_only_ok
@pytest.mark.parametrize("loss", [*MAIN_LOSSES, "HuberHingeLoss"])  # intercepts: closed, smooth, kinked
def test_vmap_of_constructors_over_folds(loss):
    """Folds are a vmap over 0/1 weights, the problem built inside."""
    X, H = data()
    Y, make = LOSSES[loss].targets(H), LOSSES[loss].make
    masks = (np.arange(len(X))[None] % 3 != np.arange(3)[:, None]).astype(DTYPE)
    solve = lambda smooth: run("solve")(sj.Problem(smooth, penalties.ExclusiveL21(0.05, 0.02)))
    whole = make(X, Y)
    singles = [
        solve(make(X[mask], Y[mask], scale=whole.scale, intercept=True)) for mask in masks.astype(bool)
    ]
    assert_same(jax.vmap(lambda mask: solve(make(X, Y, weights=mask, intercept=True)))(masks), singles)


@pytest.mark.parametrize("solver, loss, penalty", OF_ENGINES)
def test_warm_start(solver, loss, penalty):
    """Nothing is left to do from a solution."""
    p, solve = problem(loss, penalty), FUNCTIONS[solver]
    cold = solve(p, tol=1e-8)
    assert bool(cold.converged)
    warm = solve(p, cold.params, tol=1e-8)
    assert int(warm.num_iters) == 0
    np.testing.assert_array_equal(warm.params, cold.params)


@pytest.mark.parametrize("solver, loss", [("admm", "SquaredLoss"), ("fista", "LogisticLoss")])
def test_history(solver, loss):
    """Called eagerly; in a batch, for every problem: `test_jit_and_vmap`."""
    p = problem(loss, "ExclusiveL21")
    s = FUNCTIONS[solver](p, tol=1e-8, history=HISTORY)
    assert bool(s.converged)
    check_history(s, conic.objective(p, np.zeros((D, K))))


@jax.jit
def prox_gradient_point(problem, W):
    return problem.penalty.prox(W - jax.grad(problem.smooth)(W), 1.0)


@pytest.mark.parametrize("solver, loss, penalty", OF_ENGINES)
def test_to_the_floor(solver, loss, penalty):
    """tol=0 ends at the precision of the dtype, polished by Newton, and does not claim convergence."""
    p = problem(loss, penalty)
    s = solution(loss, penalty) if solver == "admm" else FUNCTIONS[solver](p, tol=0.0)
    assert float(s.gap) < 1e-13
    assert float(s.residual) < 1e-12
    assert bool(s.converged) == (float(s.gap) == 0)
    fixed = prox_gradient_point(p, s.params)
    np.testing.assert_allclose(fixed, s.params, atol=1e-12)
    np.testing.assert_array_equal(np.asarray(fixed) == 0, np.asarray(s.params) == 0)


# ------------------------------------------------------------------ other promises


@pytest.mark.parametrize("loss", MAIN_LOSSES)
def test_vector_target(loss):
    """y (n,) gives w (d,), the same as one column (for every penalty's prox: test_prox.py)."""
    f, case = smooth(loss), PENALTIES["ExclusiveL21"]
    solve = lambda Y: sj.solve(
        sj.Problem(LOSSES[loss].make(f.X, Y, weights=f.weights, intercept=True), case.make(*case.spread())),
        tol=1e-10,
    )
    Y = np.asarray(f.Y)
    vector, matrix = solve(Y[:, 0]), solve(Y[:, :1])
    assert vector.params.shape == (D,)
    np.testing.assert_allclose(vector.params, matrix.params[:, 0], atol=1e-4)
    np.testing.assert_allclose(vector.objective, matrix.objective, rtol=1e-9)


def test_general_smooth_function_with_backtracking(rng):
    """fista on a plain function: a Poisson regression, whose curvature has no global bound."""
    X = jnp.asarray(rng.standard_normal((40, 6)))
    counts = jnp.asarray(rng.poisson(np.exp(0.5 * np.asarray(X[:, :2]).sum(1))), X.dtype)

    def poisson(X, y, w):
        h = X @ w
        return jnp.mean(jnp.exp(h) - y * h)

    loss = jax.tree_util.Partial(poisson, X, counts)
    p = sj.Problem(loss, penalties.L1(0.1))
    s = sj.fista(p, np.zeros(6), tol=1e-9)
    assert bool(s.converged) and np.isnan(s.gap)
    g, w = np.asarray(jax.jit(jax.grad(loss))(s.params)), np.asarray(s.params)
    assert 0 < (w != 0).sum() < 6
    np.testing.assert_allclose(g[w != 0], -0.1 * np.sign(w[w != 0]), atol=1e-7)
    assert (np.abs(g[w == 0]) <= 0.1).all()
    with_step = sj.fista(p, np.zeros(6), tol=1e-9, stepsize=1e-1)
    np.testing.assert_allclose(with_step.params, s.params, atol=1e-6)
    # for a squared penalty the gap is known for any convex function
    squared = sj.fista(sj.Problem(loss, penalties.ExclusiveLasso(0.1)), np.zeros(6), tol=1e-9)
    assert 0 <= float(squared.gap) <= 1e-9


def test_davis_yin_on_one_term_is_proximal_gradient():
    p = problem("SquaredLoss", "L21")
    s = sj.davis_yin(p, tol=1e-9)
    assert bool(s.converged)
    np.testing.assert_allclose(s.objective, solution("SquaredLoss", "L21").objective, rtol=1e-8)


@pytest.mark.parametrize("copies, share", [(True, 0.3), (True, 0.1), (False, 1e-4)])
def test_few_rows_and_columns_that_are_nearly_copies(copies, share):
    """`solve` takes `admm`, whose rho must not change for ever."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((15, 40))
    y = X[:, :3] @ np.array([2, -1, 1.0]) + rng.standard_normal(15)
    if copies:
        X[:, 1] = X[:, 0]
        X[:, 2] = X[:, 0] * (1 + 1e-5 * rng.standard_normal(15))
    loss = sj.losses.SquaredLoss(X, y)
    top = sj.lambda_max(sj.Problem(loss, penalties.L1(1.0)))
    p = sj.Problem(loss, penalties.L1(share * top))
    for solve in (sj.solve, jax.jit(sj.solve)):
        s = solve(p)
        assert s.solver == "admm" and s.converged and s.gap <= 1e-6
        assert s.num_iters <= 8000
    assert abs(s.objective - sj.prox_newton(p).objective) <= 1e-6 * p(np.zeros(40))


def test_bound_of_the_curvature(rng):
    """At most 6 % above the largest eigenvalue of A'A, and never below it."""
    bound = jax.jit(largest_eigenvalue_bound)
    for shape in ((3, 50), (50, 3), (30, 30), (1, 1)):
        for A in (
            rng.standard_normal(shape),
            np.ones(shape),
            1e6 * np.eye(*shape),
            1e-9 * rng.standard_normal(shape),
        ):
            true = np.linalg.norm(A, 2) ** 2
            assert true <= float(bound(A)) <= 1.06 * true
    assert float(bound(np.zeros((3, 50)))) == 0
    assert np.isnan(bound(np.full((3, 50), np.nan)))


@pytest.mark.parametrize("scale", [1e-10, 1e10])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_the_step_length_is_in_the_users_units(scale, wrap):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((20, 5)), rng.standard_normal(20)
    L = 2 * scale * np.linalg.norm(X, 2) ** 2
    p = sj.Problem(sj.losses.SquaredLoss(X, y, scale=scale), sj.penalties.L1(2 * scale))
    s = wrap(lambda p: sj.fista(p, stepsize=1 / L, maxiter=1000))(p)
    assert s.converged


@pytest.mark.parametrize("size", [1e9, 1e-9])
def test_the_smoothing_is_in_the_users_units(size):
    rng = np.random.default_rng(0)
    X, Y, views = rng.standard_normal((20, 5)), rng.standard_normal((20, 4)), sj.groups.label_views(2, 2)

    def gap(size):
        p = sj.Problem(sj.losses.SquaredLoss(X, size * Y), sj.penalties.ExclusiveGroupLasso(0.1, views))
        return sj.smoothed_apg(p, mu=1e-2 * size, tol=1e-12).gap

    np.testing.assert_allclose(gap(size), gap(1.0), rtol=1e-3)


def test_irls_with_a_traced_epsilon_of_nan_ends_as_non_finite():
    rng = np.random.default_rng(0)
    loss = sj.losses.SquaredLoss(rng.standard_normal((20, 6)), rng.standard_normal(20))
    p = sj.Problem(loss, sj.penalties.ExclusiveGroupL21(0.1, sj.groups.from_lists([[0, 1], [1, 2, 3]], 6)))
    s = jax.jit(lambda epsilon: sj.irls(p, epsilon=epsilon, maxiter=50))(np.nan)
    assert s.status == sj.solution.NON_FINITE


def recorded_problem(name):
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((20, 6)), rng.standard_normal((20, 4))
    squares, P = sj.losses.SquaredLoss(X, Y), penalties
    if name == "interior_point":
        return sj.Problem(sj.losses.QuantileLoss(X, Y[:, 0], 0.3, 0.1), P.L1(0.02))
    views = P.ExclusiveGroupLasso(0.1, sj.groups.label_views(2, 2))
    return sj.Problem(squares, P.ExclusiveL21(0.1, 0.05) if name == "alm" else views)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("alm", {}),
        ("alm", {"faithful": True}),
        ("davis_yin", {}),
        ("smoothed_apg", {"mu": 1e-3}),
        ("interior_point", {}),
    ],
)
def test_history_start_and_maxiter_of_the_other_solvers(name, options):
    """The first entry is the start, each gap bounds its objective, the answer is that without a history."""
    problem, solver = recorded_problem(name), FUNCTIONS[name]
    start = np.full(problem.smooth.params_shape, 0.1)
    s = solver(problem, start, tol=1e-12, maxiter=12, history=20, **options)
    objective, gap, k = np.asarray(s.history.objective), np.asarray(s.history.gap), int(s.num_iters)
    np.testing.assert_allclose(objective[0], problem(start), rtol=1e-12)
    assert 0 < k <= 12 and np.isfinite(objective[: k + 1]).all() and np.isnan(objective[k + 1 :]).all()
    best = float(sj.solve(problem, tol=1e-11).objective)
    size = np.maximum(np.abs(objective), float(problem(0 * start)))
    assert (gap * size - objective >= -best - 1e-9)[: k + 1].all()
    if name != "smoothed_apg":  # its smoothing changes where a gap is computed
        again = solver(problem, start, tol=1e-12, maxiter=12, **options)
        np.testing.assert_allclose(s.params, again.params, atol=1e-9)
