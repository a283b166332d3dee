"""Derivatives of solutions, against differences of solutions run to the floor."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.sparse as sp
from cases import K, N, data, problem
from loss_cases import LOSSES, MAIN_LOSSES
from penalty_cases import PENALTIES, D

import sparsejax as sj
from sparsejax import groups, losses, penalties
from sparsejax._core.matrices import sparse
from sparsejax.driver.support import MAX_DENSE_UNKNOWNS
from sparsejax.interop import jaxopt as sjo

optimised = pytest.mark.optimised

C = np.random.default_rng(5).standard_normal((D, K))
BY_ROW = ("L1", "L21", "ExclusiveLasso", "ExclusiveL21")
EVERY = [(loss, penalty) for loss in MAIN_LOSSES for penalty in BY_ROW]
EVERY += [("SquaredLoss", "L1Inf"), ("HuberHingeLoss", "L21"), ("SquaredLoss", "ExclusiveGroupL21")]
EVERY += [("PoissonLoss", "L21"), ("HuberLoss", "L21"), ("SoftmaxLoss", "ExclusiveL21")]
EVERY += [("GraphLaplacian", "ExclusiveGroupLasso")]


def outcome(p, tol=0.0):
    """A smooth function of the solution."""
    W = sj.solve(p, tol=tol).params
    return jnp.sum(C.astype(W.dtype) * W) + jnp.sum(W * W) / 2


def along(p, *choices, seed=1):
    """t -> the problem with the leaves of choice i, ``(size, *ends of paths)``, moved by t[i] at random."""
    rng = np.random.default_rng(seed)
    leaves, treedef = jax.tree_util.tree_flatten_with_path(p)
    ways = []
    for path, leaf in leaves:
        chosen = [
            i for i, (_, *ends) in enumerate(choices) if jax.tree_util.keystr(path).endswith(tuple(ends))
        ]
        way = chosen and choices[chosen[0]][0] * rng.standard_normal(leaf.shape)
        ways.append((leaf, (chosen[0], way.astype(leaf.dtype)) if chosen else None))

    def moved(t):
        return jax.tree.unflatten(treedef, [leaf + t[way[0]] * way[1] if way else leaf for leaf, way in ways])

    return moved


X, Y = (1.0, ".X"), (1.0, ".Y")
GRAPH = (0.01, ".similarity", "].strength")


def strengths(p):
    return (0.1, *(f".penalty.{name}" for name in p.penalty.strengths))


def difference(f, h=1e-5):
    """Fourth-order central difference at 0."""
    at = lambda s: f(jnp.asarray(s * h))
    return (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * h)


@pytest.mark.parametrize(
    "loss, penalty",
    [pytest.param(*pair, marks=() if pair[1] in BY_ROW[:3] else optimised) for pair in EVERY],
)
def test_against_differences(loss, penalty):
    """In the strengths, X, Y, a graph; forward = reverse; single precision against the same differences."""
    p = problem(loss, penalty)
    choices = [strengths(p), X, Y] + ([GRAPH] if loss == "GraphLaplacian" else [])
    moved, ways = along(p, *choices), np.eye(len(choices))
    f = lambda t: outcome(moved(t))
    expected = np.array([difference(lambda s, e=e: f(s * e)) for e in ways])
    assert np.abs(expected).min() > 1e-3
    _, forward = jax.linearize(f, jnp.zeros(len(ways)))
    slopes = np.array([forward(jnp.asarray(e)) for e in ways])
    np.testing.assert_allclose(slopes, expected, rtol=1e-6)
    (reverse,) = jax.linear_transpose(forward, jnp.zeros(len(ways)))(jnp.ones(()))
    np.testing.assert_allclose(reverse, slopes, rtol=1e-8)
    if loss != "SquaredLoss" and penalty != "ExclusiveL21":
        return
    low = along(problem(loss, penalty, dtype=np.float32), *choices)
    gradient = jax.grad(lambda t: outcome(low(t)))
    gradient = (
        gradient if penalty == "L1" else jax.jit(gradient)
    )  # eagerly once; as one program it is cheaper
    slope = gradient(jnp.zeros(len(ways), jnp.float32))
    assert slope.dtype == jnp.float32
    np.testing.assert_allclose(slope, expected, rtol=1e-2)


TALL, WIDE = (150, 100), (40, 100)


@pytest.mark.parametrize(
    "loss, penalty, shape",
    [
        ("SquaredLoss", "L1", WIDE),
        ("SquaredLoss", "L21", TALL),
        ("SquaredLoss", "ExclusiveLasso", TALL),
        pytest.param("SquaredLoss", "ExclusiveL21", WIDE, marks=optimised),
        pytest.param("LogisticLoss", "ExclusiveL21", TALL, marks=optimised),
    ],
)
def test_too_large_to_factorise(loss, penalty, shape):
    """300 unknowns: conjugate gradients with the preconditioner of the splitting."""
    n, d = shape
    at = {"L1": (0.1,), "L21": (0.16,), "ExclusiveLasso": (0.06,), "ExclusiveL21": (0.12, 0.04)}[penalty]
    p = sj.Problem(LOSSES[loss](*data(n=n, d=d, k=3)), PENALTIES[penalty].make(*at))
    weights = np.random.default_rng(2).standard_normal((d, 3))
    assert weights.size > MAX_DENSE_UNKNOWNS
    moved = along(p, strengths(p), (0.1, ".X"))
    f = lambda t: jnp.sum(weights * sj.solve(moved((t, t)), tol=0.0).params)
    np.testing.assert_allclose(jax.grad(f)(0.0), difference(f, 1e-6), rtol=1e-6)


def by_strengths(loss):
    """(alpha, beta) -> the solution for exclusive l2,1 with these strengths, unevenly over the rows."""
    p = problem(loss, "ExclusiveL21")
    uneven = [s / s.mean() for s in PENALTIES["ExclusiveL21"].spread()]

    def params(s):
        alpha, beta = (a * way for a, way in zip(s, uneven, strict=True))
        return sj.solve(p.replace(penalty=penalties.ExclusiveL21(alpha, beta)), tol=0.0).params

    return params


STRENGTHS = (0.2, 0.02)


@optimised
def test_jacobians():
    params, s = by_strengths("SquaredLoss"), jnp.array(STRENGTHS)
    forward, backward = jax.jacfwd(params)(s), jax.jacrev(params)(s)
    assert forward.shape == (D, K, 2)
    np.testing.assert_allclose(forward, backward, atol=1e-9)


@optimised
def test_second_derivative_in_the_strengths():
    params, s = by_strengths("LogisticLoss"), jnp.array(STRENGTHS)

    def value(s):
        W = params(s)
        return jnp.sum(C * W) + jnp.sum(W * W)

    gradient = jax.jit(jax.grad(value))
    expected = np.stack([difference(lambda t, e=e: gradient(s + t * e)) for e in np.eye(2)])
    np.testing.assert_allclose(jax.hessian(value)(s), expected, rtol=1e-6)


@optimised
def test_second_derivative_in_the_data():
    moved = along(problem("SquaredLoss", "ExclusiveL21"), X)
    slope = jax.grad(lambda t: outcome(moved((t,))))
    np.testing.assert_allclose(jax.grad(slope)(jnp.zeros(())), difference(jax.jit(slope)), rtol=1e-6)


@optimised
def test_jit_vmap_grad_with_data_closed_over():
    p = problem("SquaredLoss", "ExclusiveL21")
    beta = p.penalty.beta

    def held_out(alpha):
        return outcome(p.replace(penalty=penalties.ExclusiveL21(alpha * np.ones(D), beta)), 1e-10)

    alphas = 2 * sj.lambda_max(p) * jnp.geomspace(1.0, 0.005, 50)  # the first are above lambda_max
    batch = jax.jit(jax.vmap(jax.grad(held_out)))(alphas)
    single = jax.jit(jax.grad(held_out))
    loop = np.stack([single(alpha) for alpha in alphas])
    np.testing.assert_allclose(batch, loop, rtol=1e-5, atol=1e-7)
    assert 25 < np.sum(loop != 0) < 50


def test_data_inside_a_plain_function():
    """Traced arrays that a function closes over are differentiated like those given as its arguments."""
    X, Y = map(jnp.asarray, data())
    penalty = penalties.L21(0.3)

    def fit(scale, closed):
        A = X * scale
        fun = lambda A, W: jnp.mean((A @ W - Y) ** 2)
        smooth = jax.tree_util.Partial((lambda W: fun(A, W)) if closed else fun, *([] if closed else [A]))
        return jnp.sum(C * sj.fista(sj.Problem(smooth, penalty), jnp.zeros((D, K)), tol=1e-11).params)

    given = jax.jit(lambda t: fit(1.0 + t, closed=False))
    expected = jax.grad(given)(0.0)
    np.testing.assert_allclose(expected, difference(given, 1e-4), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(lambda s: fit(s, closed=True))(1.0), expected, rtol=1e-8)
    batch = jax.jit(jax.vmap(jax.grad(lambda s: fit(s, closed=True))))(jnp.array([1.0, 1.1]))
    np.testing.assert_allclose(batch[0], expected, rtol=1e-6)


@pytest.mark.parametrize("penalty", ["L1", "L21", "ExclusiveL21"])
def test_zero_and_finite_at_and_above_lambda_max(penalty):
    p, case = problem("SquaredLoss", penalty), PENALTIES[penalty]
    top = float(sj.lambda_max(p))
    gradient = jax.jit(jax.grad(outcome))
    for factor in (1.0, 2.0, 1e6):
        slopes = gradient(p.replace(penalty=case.full(factor * top, *case.strengths[1:])))
        assert all(bool((leaf == 0).all()) for leaf in jax.tree.leaves(slopes))


def test_at_a_change_of_support_todays_zeros_stay():
    """The lasso on the identity thresholds: at |y| = strength are two derivatives, ours is that of zero."""

    @jax.jit
    def slope(y):
        smooth = losses.SquaredLoss(np.ones((1, 1)), y[None], scale=0.5)
        solve = lambda s: sj.solve(sj.Problem(smooth, penalties.L1(s)), tol=0.0).params[0]
        return jax.grad(solve)(1.0)

    assert float(slope(1.0)) == pytest.approx(0.0)
    assert float(slope(1.0 + 1e-9)) == pytest.approx(-1.0)


@optimised
def test_dependent_columns():
    """Least norm where the system can be solved, the same predictions as without the copy; NaN where not."""
    X, Y = data()
    twice = np.concatenate([X, X[:, :1]], axis=1)
    strengths = jnp.array(0.01)

    def fit(X, s):
        return sj.solve(sj.Problem(losses.SquaredLoss(X, Y[:, 0]), penalties.L1(s)), tol=0.0).params

    once = X @ jax.jacfwd(lambda s: fit(X, s))(strengths)
    copied = np.asarray(jax.jacfwd(lambda s: fit(twice, s))(strengths))
    W = fit(twice, strengths)
    assert W[0] != 0 and W[-1] != 0
    np.testing.assert_allclose(twice @ copied, once, atol=1e-8)
    np.testing.assert_allclose(copied[0], copied[-1], rtol=1e-6)  # least norm shares between the copies
    # If one of the copies moves alone, the solution jumps: it has no derivative.
    moved = np.zeros_like(twice)
    moved[:, 0] = Y[:, 0]
    jump = jax.jvp(lambda t: fit(twice + t * moved, strengths), (0.0,), (1.0,))[1]
    assert bool(jnp.isnan(jump).all())


@pytest.mark.parametrize("case", ["softmax of two classes", "copies, several columns"])
def test_where_only_predictions_are_determined(case):
    """Shares of a weight are free: the gradient of a held-out loss agrees with differences all the same."""
    rng = np.random.default_rng(2)
    X, Z = rng.standard_normal((60, 6)), rng.standard_normal((20, 6))
    X[:, 5], Z[:, 5] = X[:, 0], Z[:, 0]
    labels, others = X[:, 1] + 0.7 * rng.standard_normal(60) > X[:, 2], rng.integers(0, 2, 20)
    Y, T = np.eye(2)[labels.astype(int)], np.eye(2)[others]
    if case == "softmax of two classes":
        X, Z, loss, penalty = X[:, :5], Z[:, :5], losses.SoftmaxLoss, penalties.L1
    else:
        loss, penalty = losses.SquaredLoss, penalties.L21

    @jax.jit
    def held_out(strength):
        return loss(Z, T)(sj.solve(sj.Problem(loss(X, Y), penalty(strength)), tol=1e-11).params)

    value = (held_out(0.03 + 1e-5) - held_out(0.03 - 1e-5)) / 2e-5
    np.testing.assert_allclose(jax.grad(held_out)(0.03), value, rtol=1e-5)


def test_near_copies_on_the_support():
    """1e-4 apart, where the gap has not settled which of them it is: NaN, not a number like 1e8."""

    @jax.jit
    def slopes(X, way, Y, tol):
        fit = lambda t: sj.solve(sj.Problem(losses.SquaredLoss(X + t * way, Y), penalties.L1(0.1)), tol=tol)
        return jax.jvp(lambda t: fit(t).params, (0.0,), (1.0,))[1]

    unsettled = 0
    for seed in range(12):
        X, Y = data(seed=seed)
        rng = np.random.default_rng(seed)
        X[:, -2:] = X[:, :2] + 1e-4 * rng.standard_normal((N, 2))
        way = rng.standard_normal(X.shape)
        loose, exact = (np.asarray(slopes(X, way, Y[:, 0], tol)) for tol in (1e-6, 0.0))
        assert np.isfinite(exact).all() and np.abs(exact).max() < 100
        if np.isnan(loose).any():
            unsettled += 1
        else:
            np.testing.assert_allclose(loose, exact, atol=1e-2 * np.abs(exact).max())
    assert 0 < unsettled < 12


def test_weights_scale_intercept_objective():
    f = problem("LogisticLoss", "L21").smooth
    X, Y, penalty = f.X, f.Y, problem("LogisticLoss", "L21").penalty

    def fit(t):
        smooth = losses.LogisticLoss(
            X, Y, scale=(1 + t) / 12, weights=1 + t * np.linspace(0, 1, len(X)), intercept=True
        )
        s = sj.solve(sj.Problem(smooth, penalties.L21(penalty.alpha + t / 10)), tol=0.0)
        return jnp.sum(C * s.params) + s.objective + jnp.sum(smooth.intercept(s.params))

    np.testing.assert_allclose(jax.grad(fit)(0.0), difference(fit), rtol=1e-6)


@optimised
def test_path():
    p = problem("SquaredLoss", "ExclusiveL21")
    beta, ones = p.penalty.beta, np.ones(D)
    alphas = jnp.geomspace(0.6, 0.06, 3)

    def total(alphas):
        candidates = jax.vmap(lambda a: penalties.ExclusiveL21(a * ones, beta))(alphas)
        return jnp.sum(C[None] * sj.path(p, candidates, mode="warm", tol=1e-11).params)

    def single(alpha):
        return jnp.sum(
            C * sj.solve(p.replace(penalty=penalties.ExclusiveL21(alpha * ones, beta)), tol=1e-11).params
        )

    gradient = jax.jit(jax.grad(single))
    expected = [gradient(alpha) for alpha in alphas]
    np.testing.assert_allclose(jax.grad(total)(alphas), expected, rtol=1e-4, atol=1e-9)


PROJECTIONS = {
    "simplex": (optax.projections.projection_simplex, 1.0),
    "box": (lambda x, h: jnp.clip(x, -h, h), 0.1),
    "l2 ball": (optax.projections.projection_l2_ball, 0.3),
}


@pytest.mark.parametrize("name", PROJECTIONS)
def test_through_a_projection(name):
    """Penalties known by their prox alone are differentiated through it."""
    # optax's projections mix types, which this suite otherwise forbids.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        through_a_projection(*PROJECTIONS[name])


def through_a_projection(projection, size):
    X, Y = map(jnp.asarray, data())
    direction = np.random.default_rng(3).standard_normal(X.shape)

    def fit(t):
        smooth = jax.tree_util.Partial(lambda X, w: jnp.mean((X @ w - Y[:, 0]) ** 2), X + t * direction)
        constraint = sjo.from_projection(projection, size + t)
        s = sj.fista(sj.Problem(smooth, constraint), jnp.full(D, 1 / D), tol=1e-13)
        return jnp.sum(C[:, 0] * s.params)

    slope = jax.grad(fit)(jnp.zeros(()))
    np.testing.assert_allclose(slope, difference(fit, 1e-4), rtol=1e-5)
    np.testing.assert_allclose(jax.jvp(fit, (jnp.zeros(()),), (jnp.ones(()),))[1], slope, rtol=1e-8)


FREE = np.array([0.0, 0.05, 0.05, 0.05])  # strengths by row or, the first two, by group
GROUPS = groups.from_labels([0, 1, 1, 1])


@pytest.mark.parametrize(
    "penalty",
    [
        penalties.L1(FREE),
        penalties.L21(FREE),
        penalties.ElasticNet(0.1, 0.0),
        penalties.ExclusiveLasso(FREE),
        penalties.ExclusiveL21(FREE, FREE),
        penalties.ExclusiveGroupLasso(FREE, groups.label_views(2)),
        penalties.GroupLasso(FREE[:2], GROUPS),
        penalties.ExclusiveGroupL21(FREE[:2], GROUPS),
    ],
    ids=lambda penalty: type(penalty).__name__,
)
def test_entries_without_a_strength_have_no_kink_at_zero(penalty):
    X = np.linalg.qr(np.random.default_rng(0).standard_normal((8, 4)))[0]
    Y = jnp.outer(X[:, 0], jnp.array([1.0, 0.0]))
    solved = lambda Y: sj.solve(sj.Problem(losses.SquaredLoss(X, Y), penalty)).params[0, 0]
    slope = jax.jvp(solved, (jnp.zeros((8, 2)),), (Y,))[1]
    assert abs(slope - solved(Y)) < 1e-5 and slope > 0.5  # the solution is linear in this direction


def test_zeros_of_a_row_without_a_squared_part_move():
    """With beta = 0 exclusive l2,1 is l2,1: an entry of a nonzero row has no kink at 0."""
    X = np.linalg.qr(np.random.default_rng(0).standard_normal((8, 4)))[0]
    Y = jnp.outer(X[:, 0], jnp.array([1.0, 0.0]))
    prox = lambda V: penalties.ExclusiveL21(0.5, 0.0).prox(V)
    v, dv = jnp.array([[3.0, 0.0]]), jnp.array([[0.0, 1.0]])
    np.testing.assert_allclose(jax.jvp(prox, (v,), (dv,))[1], [[0.0, 1 - 0.5 / 3]], rtol=1e-12)
    moves = []
    for penalty in (penalties.L21(0.01), penalties.ExclusiveL21(0.01, 0.0)):
        solved = lambda Y, penalty=penalty: sj.solve(sj.Problem(losses.SquaredLoss(X, Y), penalty)).params
        moves.append(jax.jvp(solved, (Y,), (Y[:, ::-1],))[1])
    np.testing.assert_allclose(moves[0], moves[1], atol=1e-8)
    assert moves[0][0, 1] > 0.5


def test_float32_settles_what_is_above_its_rounding():
    """At a gap of 7e-6, 60 eps of float32, the derivative was a third too large."""
    rng = np.random.default_rng(1)
    X, W = rng.standard_normal((60, 60)), np.zeros((60, 3))
    W[::9] = rng.standard_normal((7, 3))
    Y = X @ W + 0.5 * rng.standard_normal((60, 3))

    def slope(dtype):
        train, held_out = (
            losses.SquaredLoss(X[rows].astype(dtype), Y[rows].astype(dtype), intercept=True)
            for rows in (slice(30), slice(30, None))
        )
        solved = lambda a: sj.solve(sj.Problem(train, penalties.ExclusiveL21(a, a / 10)), tol=1e-4).params
        return jax.grad(lambda a: held_out(solved(a)))(jnp.asarray(0.027966236257453404, dtype))

    np.testing.assert_allclose(slope(np.float32), slope(np.float64), rtol=1e-3)


def test_a_derivative_of_what_did_not_converge_warns():
    p = problem("SquaredLoss", "L21")
    with pytest.warns(sj.ConvergenceWarning, match="did not converge"):
        slope = jax.grad(lambda p: jnp.sum(sj.admm(p, tol=1e-12, maxiter=10).params))(p)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(slope))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.grad(lambda p: jnp.sum(sj.admm(p, tol=1e-8).params))(p)
    # The start and the tolerance have no derivative.
    assert float(jax.grad(lambda t: jnp.sum(sj.admm(p, tol=t).params))(1e-8)) == 0


def test_a_support_whose_stored_entries_exceed_the_room(monkeypatch):
    """113 of 256 columns hold 5553 entries, for 1024 of which there is room."""
    monkeypatch.setattr(sparse, "MAX_DENSE_SIZE", 0)
    monkeypatch.setattr(sparse, "MIN_ROOM_ENTRIES", 1024)
    rng = np.random.default_rng(0)
    X = sp.random(240, 256, 0.2, random_state=1, format="csc", data_rvs=rng.standard_normal)
    y = X[:, :80] @ rng.choice([-2.0, 2.0], 80)

    def at(strength, X):
        problem = sj.Problem(losses.SquaredLoss(X, y), penalties.L1(strength))
        return jnp.sum(sj.solve(problem, tol=1e-10).params ** 2)

    found, expected = (jax.grad(at)(0.05, A) for A in (X, X.toarray()))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_derivatives_of_targets_in_large_units():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((200, 300)), 1e6 * rng.standard_normal(200)
    loss = losses.SquaredLoss(X, y)
    top = 0.7 * sj.lambda_max(sj.Problem(loss, penalties.L1(1.0)))
    params = lambda a: sj.solve(sj.Problem(loss, penalties.L1(a)), tol=1e-6).params
    W, slope = jax.jvp(params, (top,), (jnp.ones_like(top),))
    on = np.flatnonzero(W)
    expected = -np.linalg.solve(X[:, on].T @ X[:, on] / 200, np.sign(W[on]))
    np.testing.assert_allclose(slope[on], expected, rtol=1e-4)


def test_weights_that_are_not_penalised_are_always_settled():
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((40, 5)))[0] * 40**0.5
    y, penalty = 2 * Q[:, 0] + Q[:, 1], penalties.L1(jnp.array([0.1, 0.1, 0.0, 0.0, 0.0]))
    params = lambda y: sj.solve(sj.Problem(losses.HuberLoss(Q, y, delta=100.0), penalty)).params
    np.testing.assert_allclose(jax.jvp(params, (y,), (Q[:, 3],))[1], np.eye(5)[3], atol=1e-6)


def test_a_support_of_more_features_than_rows():
    """l2,1 of four columns has 92 active features for 35 rows: they are settled at the default tolerance."""
    rng = np.random.default_rng(0)
    X, Y, V = (rng.standard_normal(shape) for shape in ((35, 600), (35, 4), (10, 600)))
    loss = losses.SquaredLoss(X, Y)
    alpha = sj.lambda_max(sj.Problem(loss, penalties.L21(1.0))) / 30

    def f(alpha, tol):
        return jnp.sum(jnp.sin(V @ sj.solve(sj.Problem(loss, penalties.L21(alpha)), tol=tol).params))

    np.testing.assert_allclose(jax.grad(f)(alpha, 1e-6), jax.grad(f)(alpha, 1e-12), rtol=5e-7)


@pytest.mark.parametrize("loss", [losses.SquaredLoss, losses.LogisticLoss])
def test_the_residual_step_counts_the_graph(loss):
    X, Y = np.eye(4, 3), np.eye(4, 2)
    smooth = loss(X, Y) + losses.GraphLaplacian(np.array([[0.0, 1.0], [1.0, 0.0]]), 1e4)
    assert sj.driver.curvature.residual_step(smooth, jnp.zeros((3, 2))) <= sj.driver.step_length(smooth)
