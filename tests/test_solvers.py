"""The transformation table of the solvers, generated from the registry; paths; one compilation."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import LOSSES, MAIN_LOSSES, PAIRS, PENALTIES, SOLVERS, data, fits, problem
from sklearn.datasets import load_wine

import sparsejax as sj
from sparsejax.solvers._loop import smoothness

# `solve` calls the others: one problem for each of its ways
WAYS = [("SquaredLoss", "ExclusiveL21"), ("SquaredLoss", "ExclusiveGroupL21"), ("LogisticLoss", "L21")]
CASES = [
    (solver, *pair)
    for solver in SOLVERS
    for pair in (WAYS if solver == "solve" else PAIRS)
    if fits(solver, *pair)
]
# float32 has its own run, with 64-bit numbers off as in plain JAX (see conftest.py)
ENGINES = [case for case in CASES if case[0] in ("admm", "fista")]  # the others are calls of these
DTYPES = [np.float64] if jax.config.jax_enable_x64 else [np.float32]
TOL = {np.float32: 1e-5, np.float64: 1e-9}
# A relative gap of tol leaves about its square root in W; the objective it bounds directly.
ATOL = {np.float32: 3e-2, np.float64: 2e-4}

every = pytest.mark.parametrize("solver, loss, penalty", CASES)
both_dtypes = pytest.mark.parametrize("dtype", DTYPES)
float32_only_ok = pytest.mark.float32_only_ok


def stack(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def run(solver, dtype):
    return functools.partial(SOLVERS[solver], tol=jnp.asarray(TOL[dtype], dtype))


def assert_same(batch, singles, dtype):
    """Each lane of a batch is as good as the same problem solved alone, and says so."""
    for i, single in enumerate(singles):
        lane = jax.tree.map(lambda leaf, i=i: leaf[i], batch)
        assert bool(lane.converged) and bool(single.converged)
        assert lane.params.dtype == lane.objective.dtype == dtype
        np.testing.assert_allclose(lane.objective, single.objective, rtol=3 * TOL[dtype])
        np.testing.assert_allclose(lane.params, single.params, atol=ATOL[dtype])


@float32_only_ok
@every
@both_dtypes
def test_jit_and_vmap(solver, loss, penalty, dtype):
    """jit = eager; vmap over data and strengths together = a loop."""
    solve = run(solver, dtype)
    problems = [
        problem(loss, penalty, dtype=dtype, seed=s, factor=f) for s, f in ((0, 0.5), (1, 1.0), (2, 2.0))
    ]
    singles = [solve(p) for p in problems]
    if solver in ("alm", "solve") or penalty == "ExclusiveL21":
        jitted = jax.jit(solve)(problems[1])
        assert_same(stack([jitted]), [singles[1]], dtype)
    if solver in ("admm", "fista", "irls"):
        batch = jax.jit(jax.vmap(solve))(stack(problems))
        assert_same(batch, singles, dtype)


@pytest.mark.parametrize("penalty", ["ExclusiveL21"])
@pytest.mark.parametrize("loss", MAIN_LOSSES)
@pytest.mark.parametrize("solver", ["admm", "fista"])
def test_vmap_over_one_of_the_two(solver, loss, penalty):
    """vmap over strengths with the data shared, and over data with the strengths shared = a loop."""
    solve = run(solver, np.float64)
    problems = [problem(loss, penalty, seed=s, factor=f) for s, f in ((0, 0.5), (1, 1.0), (2, 2.0))]
    first = problems[0]
    strengths = stack([p.penalty for p in problems])
    over_strengths = jax.vmap(lambda penalty: solve(first.replace(penalty=penalty)))(strengths)
    singles = [solve(first.replace(penalty=p.penalty)) for p in problems]
    assert_same(over_strengths, singles, np.float64)
    losses = stack([p.smooth for p in problems])
    over_data = jax.vmap(lambda smooth: solve(first.replace(smooth=smooth)))(losses)
    assert_same(over_data, [solve(first.replace(smooth=p.smooth)) for p in problems], np.float64)


@float32_only_ok
@pytest.mark.parametrize("loss", [*MAIN_LOSSES, "HuberHingeLoss"])  # intercepts: closed, smooth, kinked
@both_dtypes
def test_vmap_of_constructors_over_folds(loss, dtype):
    """Folds are a vmap over 0/1 weights, the problem built inside."""
    X, Y = data(loss, dtype=dtype)
    masks = jnp.asarray(np.arange(12)[None] % 3 != np.arange(3)[:, None], dtype)

    def fold(mask):
        smooth = LOSSES[loss](X, Y, weights=mask, intercept=True)
        return sj.solve(sj.Problem(smooth, sj.penalties.ExclusiveL21(0.05, 0.02)), tol=TOL[dtype])

    singles = []
    for mask in np.asarray(masks, bool):
        smooth = LOSSES[loss](X[mask], Y[mask], scale=LOSSES[loss](X, Y).scale, intercept=True)
        singles.append(sj.solve(sj.Problem(smooth, sj.penalties.ExclusiveL21(0.05, 0.02)), tol=TOL[dtype]))
    assert_same(jax.vmap(fold)(masks), singles, dtype)


@pytest.mark.parametrize("solver, loss, penalty", ENGINES)
def test_warm_start_and_history(solver, loss, penalty):
    p = problem(loss, penalty)
    cold = SOLVERS[solver](p, tol=1e-8, history=40)
    assert bool(cold.converged)
    warm = SOLVERS[solver](p, cold.params, tol=1e-8)
    assert int(warm.num_iters) == 0
    np.testing.assert_array_equal(warm.params, cold.params)
    objective, gap = np.asarray(cold.history.objective), np.asarray(cold.history.gap)
    end = min(int(cold.num_iters) + 1, 40)
    assert np.isfinite(objective[:end]).all() and np.isnan(objective[end:]).all()
    np.testing.assert_allclose(objective[0], p(jnp.zeros_like(cold.params)), rtol=1e-12)
    # the recorded gaps bound the recorded objectives
    size = np.maximum(np.abs(objective[:end]), objective[0])
    assert (objective[:end] - float(cold.objective) <= gap[:end] * size + 1e-12).all()


@pytest.mark.parametrize("solver, loss, penalty", ENGINES)
def test_to_the_floor(solver, loss, penalty):
    """tol=0 ends at the precision of the dtype, polished by Newton, and does not claim convergence."""
    p = problem(loss, penalty)
    s = SOLVERS[solver](p, tol=0.0)
    assert float(s.gap) < 1e-13
    assert float(s.residual) < 1e-12
    assert bool(s.converged) == (float(s.gap) == 0)
    gradient = jax.grad(p.smooth)(s.params)
    fixed = p.penalty.prox(s.params - gradient, 1.0)
    np.testing.assert_allclose(fixed, s.params, atol=1e-12)
    np.testing.assert_array_equal(np.asarray(fixed) == 0, np.asarray(s.params) == 0)


# ------------------------------------------------------------------ paths


@pytest.mark.parametrize("loss, penalty", PAIRS)
@pytest.mark.parametrize("mode", ["warm", "batch"])
def test_path_is_a_loop_of_solves(loss, penalty, mode):
    dtype = DTYPES[-1]
    p = problem(loss, penalty, dtype=dtype)
    make, strengths = PENALTIES[penalty]
    grid = [jnp.asarray(s * np.geomspace(4, 0.5, 5), dtype) for s in strengths]
    path = sj.path(p, jax.vmap(make)(*grid), mode=mode, tol=TOL[dtype])
    singles = [
        sj.solve(p.replace(penalty=make(*values)), tol=TOL[dtype]) for values in zip(*grid, strict=True)
    ]
    assert path.params.shape == (5, 8, 3)
    assert_same(path, singles, dtype)


def test_path_over_one_strength_and_by_row(rng):
    p = problem("SquaredLoss", "ExclusiveL21")
    alphas = np.geomspace(0.2, 0.02, 4)
    shared = sj.path(p, sj.penalties.ExclusiveL21(alphas, 0.02))
    for i, alpha in enumerate(alphas):
        single = sj.solve(p.replace(penalty=sj.penalties.ExclusiveL21(alpha, 0.02)))
        np.testing.assert_allclose(shared.objective[i], single.objective, rtol=1e-6)
    by_row = rng.uniform(0.5, 1.5, (4, 8)) * alphas[:, None]
    template = p.replace(penalty=sj.penalties.L21(np.ones(8)))
    rows = sj.path(template, jax.vmap(sj.penalties.L21)(by_row))
    for i in range(4):
        single = sj.solve(p.replace(penalty=sj.penalties.L21(by_row[i])))
        np.testing.assert_allclose(rows.objective[i], single.objective, rtol=1e-6)


def test_path_of_a_plain_loss():
    """A loss that is not ours goes through fista; ours without engine too."""
    X, Y = data("SquaredLoss")
    p = problem("SquaredLoss", "L21")
    strengths = jax.vmap(sj.penalties.L21)(jnp.asarray([0.3, 0.1]))

    class Plain(sj.losses.SquaredLoss, leaves=("X", "Y", "scale", "weights"), static=("has_intercept",)):
        majorizer = property()  # hidden: hasattr is False

    assert not hasattr(Plain(X, Y), "majorizer")
    plain = sj.path(p.replace(smooth=Plain(X, Y)), strengths, tol=1e-8)
    np.testing.assert_allclose(plain.objective, sj.path(p, strengths, tol=1e-8).objective, rtol=1e-7)


def test_one_compilation_for_fifty_strengths():
    p = problem("SquaredLoss", "ExclusiveL21")
    traces = []

    def smooth(data, W):
        traces.append(1)
        X, Y = data
        return jnp.sum((X @ W - Y) ** 2) / (2 * len(X))

    plain = sj.Problem(jax.tree_util.Partial(smooth, data("SquaredLoss")), p.penalty)

    @jax.jit
    @chex.assert_max_traces(n=1)
    def solve(alpha):
        return sj.solve(p.replace(penalty=sj.penalties.ExclusiveL21(alpha, 0.02)))

    for alpha in np.geomspace(0.3, 0.003, 50):
        assert bool(solve(alpha).converged)

    init = jnp.zeros((8, 3))
    for i, alpha in enumerate(np.geomspace(0.3, 0.003, 50)):
        sj.fista(plain.replace(penalty=sj.penalties.ExclusiveL21(alpha, 0.02)), init)
        if i == 0:
            count = len(traces)
    assert len(traces) == count  # the public solvers compile once for all strengths, too

    for mode in ("warm", "batch"):
        before = sj.paths.batched_path._cache_size()
        for low in (0.003, 0.004, 0.005):
            alphas = jnp.asarray(np.geomspace(0.3, low, 50))
            assert bool(
                sj.path(p, jax.vmap(sj.penalties.ExclusiveL21)(alphas, alphas), mode=mode).converged.all()
            )
        assert sj.paths.batched_path._cache_size() == before + 1


# ------------------------------------------------------------------ other promises


@pytest.mark.parametrize("loss", MAIN_LOSSES)
def test_vector_target(loss):
    """y (n,) gives w (d,), the same as one column (for every penalty's prox: test_prox.py)."""
    X, Y = data(loss)
    make, strengths = PENALTIES["ExclusiveL21"]
    vector = sj.solve(sj.Problem(LOSSES[loss](X, Y[:, 0]), make(*strengths)), tol=1e-10)
    matrix = sj.solve(sj.Problem(LOSSES[loss](X, Y[:, :1]), make(*strengths)), tol=1e-10)
    assert vector.params.shape == (8,)
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
    p = sj.Problem(loss, sj.penalties.L1(0.1))
    s = sj.fista(p, jnp.zeros(6), tol=1e-9)
    assert bool(s.converged) and np.isnan(s.gap)
    g = np.asarray(jax.grad(loss)(s.params))
    w = np.asarray(s.params)
    assert 0 < (w != 0).sum() < 6
    np.testing.assert_allclose(g[w != 0], -0.1 * np.sign(w[w != 0]), atol=1e-7)
    assert (np.abs(g[w == 0]) <= 0.1).all()
    with_step = sj.fista(p, jnp.zeros(6), tol=1e-9, stepsize=1e-1)
    np.testing.assert_allclose(with_step.params, s.params, atol=1e-6)
    # for a squared penalty the gap is known for any convex function
    squared = sj.fista(sj.Problem(loss, sj.penalties.ExclusiveLasso(0.1)), jnp.zeros(6), tol=1e-9)
    assert 0 <= float(squared.gap) <= 1e-9


def test_smoothness_bound_is_a_bound(rng):

    for shape in ((3, 50), (50, 3), (30, 30), (1, 1)):
        for A in (
            rng.standard_normal(shape),
            np.ones(shape),
            1e6 * np.eye(*shape),
            1e-9 * rng.standard_normal(shape),
        ):
            true = np.linalg.norm(A, 2) ** 2
            assert true <= float(smoothness(jnp.asarray(A))) <= 1.06 * true
    assert float(smoothness(jnp.zeros((4, 3)))) == 0


def test_rank_features():
    W = jnp.asarray([[0.0, 3.0], [-2.0, 0.0], [1.0, 0.0]])
    ranking = sj.rank_features(W, 2)
    np.testing.assert_array_equal(ranking.indices, [[1, 0], [2, 1]])
    np.testing.assert_array_equal(ranking.scores, [[2, 3], [1, 0]])
    np.testing.assert_array_equal(jax.jit(sj.rank_features, static_argnums=1)(W, 2).indices, ranking.indices)
    assert sj.rank_features(W[:, 0]).indices.tolist() == [1, 2, 0]


def test_pytrees_round_trip():
    """Problems and solutions pass through jit whole, are frozen, and print without their data."""
    p = problem("LogisticLoss", "ExclusiveL21")
    q = jax.jit(lambda p: p)(p)
    assert jax.tree.structure(p) == jax.tree.structure(q)
    with pytest.raises(AttributeError, match="immutable"):
        p.penalty = None
    assert "float64[12, 8]" in repr(p) and "alpha=0.06" in repr(p)
    s = sj.solve(p)
    assert "status=0" in repr(jax.jit(lambda s: s)(s))
    assert s.message.startswith("converged")


def test_model():
    """Labels in, labels out; the README's entry point to the paper's method."""
    X, y = load_wine(return_X_y=True)
    X = (X - X.mean(0)) / X.std(0)
    names = np.asarray(["barolo", "grignolino", "barbera"])[y]
    model = sj.models.exclusive_l21.fit(X, names, alpha=0.05, beta=0.05)
    assert bool(model.solution.converged)
    assert (model.predict(X) == names).mean() > 0.95
    removed = np.all(np.asarray(model.W) == 0, axis=1)
    assert 0 < removed.sum() < 13
    np.testing.assert_allclose(
        jax.jit(lambda m, X: m.decision_function(X))(model, X).mean(0), 59 / 178, atol=0.2
    )
    assert model.rank_features(3).indices.shape == (3, 3)
