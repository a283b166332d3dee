"""jaxopt's programs on our solvers, beside jaxopt; proxes after optax's optimisers; penalties by leaf."""

import re
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.tree_util import Partial

import sparsejax as sj
from sparsejax.interop import jaxopt as sjo
from sparsejax.interop import optax as sjx

GUIDE = Path(__file__).parents[2] / "docs" / "migrating-from-jaxopt.md"


@pytest.fixture
def jaxopt():
    """The real one; it warns when imported, and mixes types and ranks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import jaxopt

        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            yield jaxopt


@pytest.fixture
def regression():
    rng = np.random.default_rng(0)
    X = jnp.asarray(rng.standard_normal((40, 6)))
    Y = X[:, :2] @ jnp.array([[1.0, -1.0], [0.5, 2.0]]) + 0.1 * jnp.asarray(rng.standard_normal((40, 2)))
    return X, Y


SECTIONS = re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", GUIDE.read_text(), re.S | re.M)


def test_the_guide_has_its_sections():
    assert len(SECTIONS) == 6


@pytest.mark.parametrize("title, text", SECTIONS, ids=[s[0] for s in SECTIONS])
def test_guide(title, text, jaxopt, regression):
    """Before and after of every section give the same numbers."""
    X, Y = regression
    names = {"jax": jax, "jnp": jnp, "X": X, "Y": Y, "y": Y[:, 0], "jaxopt": jaxopt, "sj": sj, "sjo": sjo}
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, names)
    np.testing.assert_allclose(names["after"], names["before"], atol=2e-4)
    assert np.abs(np.asarray(names["before"])).max() > 1e-3


# ------------------------------------------------- ten programs in jaxopt's style, the library exchanged


def least_squares(w, data):
    X, y = data
    return jnp.mean((X @ w - y) ** 2) / 2


def logistic(w, l2, data):
    X, y = data
    h = X @ w
    return jnp.mean(jnp.logaddexp(0.0, h) - (y > 0) * h) + l2 * jnp.sum(w * w) / 2


def with_bias(params, data):
    X, y = data
    return jnp.mean((X @ params["w"] + params["b"] - y) ** 2) / 2


def kernel_dual(a, K, y):
    return jnp.sum(a * (K @ a)) / 2 - jnp.sum(a * y)


def nmf(H, W, data):
    return jnp.mean((W @ H - data) ** 2)


def huber(w, data, delta=0.5):
    X, y = data
    return jnp.mean(optax.losses.huber_loss(X @ w, y, delta=delta))


def has_aux(w, data):
    value = least_squares(w, data)
    return value, {"loss": value}


def programs(lib, jaxopt, X, Y):
    """name -> the answer; ``lib`` is jaxopt or the wrapper, and nothing else differs."""
    y, zero = Y[:, 0], jnp.zeros(6)
    options = {"tol": 1e-8, "maxiter": 10_000}
    prox, projection = jaxopt.prox, jaxopt.projection
    run = lambda solver, *args, **kwargs: solver.run(*args, **kwargs).params
    prox_tree = lambda p, s, scaling=1.0: {"w": prox.prox_lasso(p["w"], s, scaling), "b": p["b"]}
    gradient = jax.grad(
        lambda s: jnp.sum(
            run(lib.ProximalGradient(least_squares, prox.prox_lasso, **options), zero, s, (X, y)) ** 2
        )
    )
    return {
        "lasso": run(lib.ProximalGradient(least_squares, prox.prox_lasso, **options), zero, 0.1, (X, y)),
        "elastic net, logistic": run(
            lib.ProximalGradient(logistic, prox.prox_elastic_net, **options), zero, (0.02, 0.5), 0.1, data=(X, y)
        ),
        "pytree with a bias": run(
            lib.ProximalGradient(with_bias, prox_tree, **options), {"w": zero, "b": jnp.zeros(())}, 0.1, (X, y)
        ),
        "group lasso, vmapped": run(
            lib.ProximalGradient(least_squares, jax.vmap(prox.prox_group_lasso, in_axes=(0, None, None)), **options),
            jnp.zeros((6, 2)), 0.05, (X, Y),
        ),
        "nonnegative": run(lib.ProjectedGradient(least_squares, projection.projection_non_negative, **options), zero, None, (X, y)),
        "box, svm dual": run(lib.ProjectedGradient(kernel_dual, projection.projection_box, **options), jnp.zeros(40), (-0.2, 0.2), X @ X.T + jnp.eye(40), y),
        "l1 ball": run(lib.ProjectedGradient(huber, projection.projection_l1_ball, **options), zero, 0.7, (X, y)),
        "nmf, one factor": run(
            lib.ProximalGradient(nmf, prox.prox_non_negative_lasso, **options), jnp.ones((3, 5)), 0.01, jnp.abs(X[:, :3]), jnp.abs(X[:, 1:])
        ),
        "has_aux": run(lib.ProximalGradient(has_aux, prox.prox_lasso, has_aux=True, **options), zero, 0.1, (X, y)),
        "derivative of run": gradient(0.1),
    }  # fmt: skip


def test_ten_programs(jaxopt, regression):
    X, Y = regression
    ours, theirs = (programs(lib, jaxopt, X, Y) for lib in (sjo, jaxopt))
    assert len(ours) == 10
    for name in ours:
        chex_equal = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), ours[name], theirs[name])
        assert np.max(jax.tree.leaves(chex_equal)) < 1e-5, name


def test_there_and_back(jaxopt, regression):
    X, Y = regression
    problem = sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.ExclusiveL21(0.05, 0.02))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        theirs = sjo.to_jaxopt(problem, tol=1e-8, maxiter=5000)
    params = theirs.run(jnp.zeros((6, 2)), problem.penalty).params
    np.testing.assert_allclose(params, sj.solve(problem, tol=1e-12).params, atol=1e-6)
    prox = sjo.prox(sj.penalties.ExclusiveL21)
    again = jaxopt.ProximalGradient(lambda W: problem.smooth(W), prox, tol=1e-8, maxiter=5000)
    np.testing.assert_allclose(again.run(jnp.zeros((6, 2)), (0.05, 0.02)).params, params, atol=1e-6)


def test_bad_input_of_the_wrappers():
    with pytest.raises(TypeError, match="fun must be callable"):
        sjo.ProximalGradient(3)
    with pytest.raises(TypeError, match="class of"):
        sjo.prox(sj.penalties.L1(0.1))
    with pytest.raises(TypeError, match="value must be callable"):
        sjo.FromProx(lambda x, h, s: x, value=1)


# ------------------------------------------------------------------ parameters that are pytrees


def soft(x, strength, scaling=1.0):
    return jnp.sign(x) * jnp.maximum(jnp.abs(x) - strength * scaling, 0)


def test_a_prox_without_its_value(regression):
    """The residual alone decides: the loss alone may be lower elsewhere."""
    X, Y = regression
    loss, start = sj.losses.SquaredLoss(X, Y), jnp.asarray(np.linalg.lstsq(X, Y)[0])
    strengths = jnp.array([0.2, 0.05])
    expected = sj.path(
        sj.Problem(loss, sj.penalties.L1(0.0)), jax.vmap(sj.penalties.L1)(strengths), tol=1e-12
    )
    for strength, W in zip(strengths, expected.params, strict=True):
        step = sjo.ProximalGradient(loss, soft, tol=1e-9).run(start, strength)
        assert step.state.converged
        np.testing.assert_allclose(step.params, W, atol=1e-7)
    of_each = jax.vmap(lambda s: sjo.FromProx(soft, s))(strengths)
    found = sj.path(sj.Problem(loss, sjo.FromProx(soft, 0.0)), of_each, tol=1e-9)
    assert found.converged.all()
    np.testing.assert_allclose(found.params, expected.params, atol=1e-7)
    both = sj.Problem(loss, sjo.FromProx(soft, 0.05) + sj.penalties.NonNegative())
    assert sj.solve(both, tol=1e-8).converged


@pytest.mark.parametrize("tol", [1e-6, 1e-13])
def test_derivatives_on_a_ball(tol, regression):
    """The prox takes away the whole cotangent of ||W||^2, which is along W; Python's floats are tangents."""
    X, Y = regression
    ball = lambda w, r: w * jnp.minimum(1, r / jnp.maximum(jnp.linalg.norm(w), 1e-30))
    loss = sj.losses.SquaredLoss(X, Y[:, 0])
    for solver in (sj.solve, sj.fista):
        size = lambda r, solver=solver: jnp.sum(
            solver(sj.Problem(loss, sjo.from_projection(ball, r)), tol=tol).params ** 2
        )
        r = 0.5 * float(jnp.linalg.norm(jnp.linalg.lstsq(X, Y[:, 0])[0]))
        np.testing.assert_allclose(jax.grad(size)(r), 2 * r, rtol=1e-6)
        np.testing.assert_allclose(jax.jvp(size, (r,), (1.0,))[1], 2 * r, rtol=1e-6)


def test_pytree_parameters(regression):
    """An unpenalised bias as a leaf of its own is the intercept of the loss."""
    X, Y = regression
    y = Y[:, 0]
    penalty = sj.penalties.ByLeaf({"w": sj.penalties.L1(0.1), "b": None})
    start = {"w": jnp.zeros(6), "b": jnp.zeros(())}
    problem = sj.Problem(Partial(with_bias, data=(X, y)), penalty)
    solution = sj.fista(problem, start, tol=1e-11, history=3)
    loss = sj.losses.SquaredLoss(X, y, intercept=True)
    reference = sj.solve(sj.Problem(loss, sj.penalties.L1(0.1)), tol=1e-13)
    np.testing.assert_allclose(solution.params["w"], reference.params, atol=1e-8)
    np.testing.assert_allclose(solution.params["b"], loss.intercept(reference.params), atol=1e-8)
    assert bool((solution.params["w"] == 0).any()) and bool(jnp.isfinite(solution.history.objective).all())
    assert bool(jnp.isnan(solution.gap)) and bool(solution.converged)

    def size(s):
        p = sj.penalties.ByLeaf({"w": sj.penalties.L1(s), "b": None})
        found = sj.fista(problem.replace(penalty=p), start, tol=1e-12).params
        return jnp.sum(found["w"]) + found["b"]

    np.testing.assert_allclose(jax.grad(size)(0.1), (size(0.1 + 1e-5) - size(0.1 - 1e-5)) / 2e-5, rtol=1e-5)
    batch = jax.jit(jax.vmap(size))(jnp.array([0.1, 0.2]))
    np.testing.assert_allclose(batch, [size(0.1), size(0.2)], rtol=1e-8)
    again = sj.fista(problem, solution.params, tol=1e-6)
    assert int(again.num_iters) == 0


@pytest.mark.parametrize(
    "smooth, init, match",
    [
        (lambda w: w, jnp.zeros(3), "differentiable function"),
        (lambda w: jnp.sum(w > 0), jnp.zeros(3), "differentiable function"),
        (lambda w: float(np.sum(np.asarray(w))), jnp.zeros(3), "differentiable function"),
        (lambda w: jnp.sum(w["b"]), {"a": jnp.zeros(3)}, "differentiable function"),
        (lambda w: jnp.sum(w), {}, "no arrays"),
        (
            lambda w: jnp.sum(w.astype(float)),
            jnp.zeros(3, jnp.float32),
            "returns float64 where init is float32",
        ),
        (lambda w: jnp.sum(w[0]), [jnp.zeros(2), jnp.zeros(2, jnp.float32)], "float32, float64"),
    ],
)
def test_bad_functions_are_named_before_tracing(smooth, init, match):
    problem = sj.Problem(Partial(smooth), sj.penalties.ByLeaf(None))
    with pytest.raises((TypeError, ValueError), match=match):
        sj.fista(problem, init)


def test_by_leaf_refuses_what_is_no_penalty():
    with pytest.raises(TypeError, match="penalties and None"):
        sj.penalties.ByLeaf({"w": 0.1})


# ------------------------------------------------------------------ after an optax optimiser


@pytest.mark.parametrize("schedule", [False, True])
def test_sgd_with_a_prox_is_proximal_gradient(schedule, regression):
    X, Y = regression
    penalty = sj.penalties.L21(0.05)
    loss = sj.losses.SquaredLoss(X, Y)
    rate = optax.constant_schedule(0.3) if schedule else 0.3
    optimizer = sjx.proximal(optax.sgd(rate), penalty, rate)

    @jax.jit
    def step(carry, _):
        W, state = carry
        updates, state = optimizer.update(jax.grad(loss)(W), state, W)
        return (optax.apply_updates(W, updates), state), None

    start = jnp.ones((6, 2))
    (W, state), _ = jax.lax.scan(step, (start, optimizer.init(start)), length=2000)
    reference = sj.solve(sj.Problem(loss, penalty), tol=1e-13).params
    np.testing.assert_allclose(W, reference, atol=1e-9)
    assert int(state.step) == 2000
    np.testing.assert_array_equal(W == 0, reference == 0)
    assert bool((W == 0).any())


@pytest.mark.parametrize("dtype", ["int32", "bfloat16", "float32"])
def test_a_first_leaf_of_another_dtype(dtype):
    """It neither rounds the step size nor changes its own dtype."""
    penalty = sj.penalties.ByLeaf({"count": None, "w": sj.penalties.L1(1.0)})
    optimizer = sjx.proximal(optax.sgd(0.1), penalty, 0.1)
    params = {"count": jnp.ones(1, dtype), "w": jnp.array([1.0, 0.05])}
    zero = jax.tree.map(jnp.zeros_like, params)
    with jax.numpy_dtype_promotion("standard"):  # optax multiplies integers by a float
        updates, _ = optimizer.update(zero, optimizer.init(params), params)
    new = optax.apply_updates(params, updates)
    np.testing.assert_allclose(new["w"], [0.9, 0.0], atol=1e-6)
    assert new["count"].dtype == dtype and updates["count"].dtype == dtype


def test_momentum_makes_the_step_longer(regression):
    X, y = regression[0], regression[1][:, 0]
    fun, penalty = lambda w: jnp.mean((X @ w - y) ** 2) / 2, sj.penalties.L1(0.1)
    optimizer = sjx.proximal(optax.sgd(0.05, momentum=0.9), penalty, 0.05 / (1 - 0.9))

    def step(carry, _):
        w, state = carry
        updates, state = optimizer.update(jax.grad(fun)(w), state, w)
        return (optax.apply_updates(w, updates), state), None

    start = jnp.zeros(X.shape[1])
    end = jax.lax.scan(step, (start, optimizer.init(start)), length=5000)[0][0]
    best = sj.solve(sj.Problem(sj.losses.SquaredLoss(X, y), penalty), tol=1e-12).params
    np.testing.assert_allclose(end, best, atol=1e-8)
    assert ((end == 0) == (best == 0)).all()


def test_chosen_leaves_of_a_network(regression):
    X, Y = regression
    noise = jnp.asarray(np.random.default_rng(1).standard_normal((40, 6)))
    Z = jnp.concatenate([X, noise], axis=1)
    key = jax.random.split(jax.random.PRNGKey(0))
    params = {
        "first": {"kernel": 0.3 * jax.random.normal(key[0], (12, 8)), "bias": jnp.zeros(8)},
        "last": {"kernel": 0.3 * jax.random.normal(key[1], (8, 2))},
    }
    penalty = sj.penalties.ByLeaf({"first": {"kernel": sj.penalties.L21(0.3), "bias": None}, "last": None})
    optimizer = sjx.proximal(optax.sgd(0.1, momentum=0.5), penalty, 0.1)

    def loss(p):
        hidden = jnp.tanh(Z @ p["first"]["kernel"] + p["first"]["bias"][None])
        return jnp.mean((hidden @ p["last"]["kernel"] - Y) ** 2)

    @jax.jit
    def step(carry, _):
        p, state = carry
        updates, state = optimizer.update(jax.grad(loss)(p), state, p)
        return (optax.apply_updates(p, updates), state), None

    (trained, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), length=3000)
    rows = np.asarray((trained["first"]["kernel"] != 0).any(axis=1))
    assert rows[:2].all() and not rows[2:].all() and not rows[6:].any()  # exact zeros: no noise is used
    assert float(loss(trained)) < 0.3 * float(loss(params))
    assert bool((trained["last"]["kernel"] != 0).all())


def test_bad_input_of_proximal():
    with pytest.raises(TypeError, match="GradientTransformation"):
        sjx.proximal(0.1, sj.penalties.L1(0.1), 0.1)
    with pytest.raises(TypeError, match="prox"):
        sjx.proximal(optax.sgd(0.1), 0.1, 0.1)
    for bad in (0.0, -1.0, np.nan, "a"):
        with pytest.raises(ValueError, match="step_size"):
            sjx.proximal(optax.sgd(0.1), sj.penalties.L1(0.1), bad)
    optimizer = sjx.proximal(optax.sgd(0.1), sj.penalties.L1(0.1), 0.1)
    with pytest.raises(ValueError, match="needs params"):
        optimizer.update(jnp.zeros(3), optimizer.init(jnp.zeros(3)))


def test_defaults_of_the_wrapper():
    fun = lambda w: jnp.sum((w - 1) ** 2) / 2
    free = sjo.ProximalGradient(fun, tol=1e-8).run(jnp.zeros(3))
    np.testing.assert_allclose(free.params, 1, atol=1e-6)
    fixed = sjo.ProximalGradient(fun, sjo.prox(sj.penalties.L1), stepsize=0.5, tol=1e-8)
    fixed = fixed.run(jnp.zeros(3), 0.25)
    np.testing.assert_allclose(fixed.params, 0.75, atol=1e-6)


@pytest.mark.parametrize("start", [0.0, -2.0, 3.0])
def test_a_set_without_the_start(start):
    """Outside the set, at W = 0 too, the loss may be lower than at the answer."""
    above = sjo.from_projection(lambda x: jnp.maximum(x, 1.0))
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3))
    losses = [
        lambda w: jnp.sum(w * w) / 2,
        sj.losses.SquaredLoss(X, X @ np.array([0.5, 0.2, 0.1])),
        sj.losses.LogisticLoss(X, (X[:, 0] + rng.standard_normal(40) > 0).astype(float)),
    ]
    for loss in losses:
        for solver in (sj.solve, sj.fista):
            solution = solver(sj.Problem(loss, above), jnp.full(3, start))
            assert solution.converged
            assert solution.params.min() == 1
    onto = lambda w, low: {"w": jnp.maximum(w["w"], low)}
    found = sjo.ProjectedGradient(lambda w: jnp.sum(w["w"] ** 2), onto).run({"w": jnp.full(3, start)}, 1.0)
    assert found.state.converged
    np.testing.assert_array_equal(found.params["w"], 1)


def test_the_derivative_of_an_objective_without_the_value_of_the_penalty(regression):
    """The objective is the loss alone, which is not stationary along the part of dW that a prox brings."""
    X, Y = regression
    loss = sj.losses.SquaredLoss(X * jnp.arange(1.0, 7.0)[None], Y[:, 0])
    solved = lambda s: sj.fista(sj.Problem(loss, sjo.FromProx(soft, s)), tol=1e-12)
    found = jax.grad(lambda s: solved(s).objective)(0.3)
    np.testing.assert_allclose(found, jax.grad(lambda s: loss(solved(s).params))(0.3), rtol=1e-6)
    difference = (solved(0.3 + 1e-5).objective - solved(0.3 - 1e-5).objective) / 2e-5
    np.testing.assert_allclose(found, difference, rtol=1e-5)


def test_a_prox_without_its_value_of_a_pytree():
    """The loss is lower at the start than at the answer: the residual decides for a pytree, too."""
    fun = lambda w: sum(jnp.sum((leaf - 1) ** 2) / 2 for leaf in jax.tree.leaves(w))
    prox = lambda x, strength, scaling=1.0: jax.tree.map(lambda leaf: soft(leaf, strength, scaling), x)
    for start in (jnp.ones(3), jnp.ones(()), {"a": jnp.ones(2), "b": jnp.ones(1)}):
        solution = sj.fista(sj.Problem(fun, sjo.FromProx(prox, 0.25)), start)
        assert solution.converged
        for leaf in jax.tree.leaves(solution.params):
            np.testing.assert_allclose(leaf, 0.75, atol=1e-5)


def test_newton_needs_the_value_of_a_penalty(regression):
    """`newton_admm` refuses every step that raises the loss, as steps to the answer may."""
    X, Y = regression
    loss = sj.losses.LogisticLoss(X, (Y[:, 0] > 0.1).astype(float))
    start = sj.solve(sj.Problem(loss, sj.penalties.SquaredL2(0.01))).params
    problem = sj.Problem(loss, sjo.FromProx(soft, 0.05))
    with pytest.raises(TypeError, match="lack the value"):
        sj.newton_admm(problem)
    found, expected = sj.solve(problem, start), sj.solve(sj.Problem(loss, sj.penalties.L1(0.05)), tol=1e-9)
    assert found.converged
    np.testing.assert_allclose(found.params, expected.params, atol=1e-4)


def test_the_prox_of_a_class_without_arguments():
    fun = lambda w: jnp.sum((w - jnp.array([1.0, -1.0])) ** 2) / 2
    fit = sjo.ProximalGradient(fun, sjo.prox(sj.penalties.NonNegative), tol=1e-6)
    np.testing.assert_allclose(fit.run(jnp.zeros(2)).params, [1.0, 0.0], atol=1e-4)
