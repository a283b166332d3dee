"""Derivatives of solutions, against differences of solutions run to the floor."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from registry import MAIN_LOSSES, data, problem

import sparsejax as sj
from sparsejax.interop import jaxopt as sjo

C = jnp.asarray(np.random.default_rng(5).standard_normal((8, 3)))
SMOOTH_ON_SUPPORT = ("L1", "L21", "ExclusiveLasso", "ExclusiveL21")
EVERY = [(loss, penalty) for loss in MAIN_LOSSES for penalty in SMOOTH_ON_SUPPORT]
EVERY += [("SquaredLoss", "L1Inf"), ("HuberHingeLoss", "L21")]
every = pytest.mark.parametrize("loss, penalty", EVERY)


def outcome(p, tol=0.0):
    """A smooth function of the solution."""
    W = sj.solve(p, tol=jnp.asarray(tol, p.smooth.dtype)).params
    C_here = C.astype(W.dtype)
    return jnp.sum(C_here * W) + jnp.sum(W * W) / 2


def along(p, what, seed=1):
    """t -> the problem moved by t in a random direction of its strengths, X or Y."""
    rng = np.random.default_rng(seed)
    part = p.penalty if what == "strengths" else getattr(p.smooth, what)
    size = 0.1 if what == "strengths" else 1.0
    direction = jax.tree.map(lambda x: jnp.asarray(size * rng.standard_normal(x.shape), x.dtype), part)

    def moved(t):
        new = jax.tree.map(lambda x, dx: x + t.astype(x.dtype) * dx, part, direction)
        if what == "strengths":
            return p._replace(penalty=new)
        return p._replace(smooth=p.smooth._replace(**{what: new}))

    return moved


def difference(f, h=1e-5):
    """Fourth-order central difference at 0."""
    at = lambda s: f(jnp.asarray(s * h))
    return (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * h)


def along_all(p):
    """t (3,) -> the problem moved in its strengths, in X and in Y."""
    parts = [along(p, what) for what in ("strengths", "X", "Y")]

    def moved(t):
        strengths, X, Y = (part(t[i]) for i, part in enumerate(parts))
        smooth = p.smooth._replace(X=X.smooth.X, Y=Y.smooth.Y)
        return p._replace(smooth=smooth, penalty=strengths.penalty)

    return moved


@every
def test_against_differences(loss, penalty):
    """In the strengths, X and Y; forward = reverse; single precision against the same differences."""
    p = problem(loss, penalty)
    moved = along_all(p)
    f = jax.jit(lambda t: outcome(moved(t)))
    zero = jnp.zeros(3)
    expected = np.array([difference(lambda s, e=e: f(s * e)) for e in np.eye(3)])
    assert np.abs(expected).min() > 1e-3
    forward = jax.jit(jax.jacfwd(f))(zero)
    np.testing.assert_allclose(forward, expected, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(f)(zero), forward, rtol=1e-8)
    if loss != "SquaredLoss" and penalty != "ExclusiveL21":
        return
    low = along_all(jax.tree.map(lambda x: x.astype(jnp.float32), p))
    slope = jax.grad(lambda t: outcome(low(t)))(jnp.zeros(3, jnp.float32))
    assert slope.dtype == jnp.float32
    np.testing.assert_allclose(slope, expected, rtol=1e-2)


TALL, WIDE = (150, 100), (40, 100)


@pytest.mark.parametrize(
    "loss, penalty, shape",
    [
        ("SquaredLoss", "L1", WIDE),
        ("SquaredLoss", "L21", TALL),
        ("SquaredLoss", "ExclusiveLasso", TALL),
        ("SquaredLoss", "ExclusiveL21", WIDE),
        ("LogisticLoss", "ExclusiveL21", TALL),
    ],
)
def test_too_large_to_factorise(loss, penalty, shape):
    """300 unknowns: conjugate gradients with the preconditioner of the splitting."""
    p = problem(loss, penalty, n=shape[0], d=shape[1], factor=2.0)
    weights = jnp.asarray(np.random.default_rng(2).standard_normal(300).reshape(100, 3))
    assert p.smooth.X.shape[1] * 3 > sj.implicit.DENSE
    strengths, X = along(p, "strengths"), along(p, "X")

    def f(t):
        moved = strengths(t)._replace(smooth=X(t).smooth)
        return jnp.sum(weights * sj.solve(moved, tol=0.0).params)

    np.testing.assert_allclose(jax.grad(f)(jnp.zeros(())), difference(f, 1e-6), rtol=1e-6)


@pytest.mark.parametrize("loss", MAIN_LOSSES)
def test_jacobians_and_second_derivatives(loss):
    p = problem(loss, "ExclusiveL21")

    def params(s):
        return sj.solve(p._replace(penalty=sj.penalties.ExclusiveL21(s[0], s[1])), tol=0.0).params

    def value(s):
        W = params(s)
        return jnp.sum(C * W) + jnp.sum(W * W)

    s = jnp.array([0.06, 0.02])
    forward, backward = jax.jacfwd(params)(s), jax.jacrev(params)(s)
    assert forward.shape == (8, 3, 2)
    np.testing.assert_allclose(forward, backward, atol=1e-9)
    if loss == "LogisticLoss":
        expected = np.stack([difference(lambda t, e=e: jax.grad(value)(s + t * e)) for e in np.eye(2)])
        np.testing.assert_allclose(jax.hessian(value)(s), expected, rtol=1e-6)
        return
    moved = along(p, "X")  # also in the data
    f = lambda t: outcome(moved(t))
    np.testing.assert_allclose(jax.grad(jax.grad(f))(jnp.zeros(())), difference(jax.grad(f)), rtol=1e-6)


def test_jit_vmap_grad_with_data_closed_over():
    X, Y = data("SquaredLoss")

    def held_out(alpha):
        p = sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.ExclusiveL21(alpha, 0.02))
        return outcome(p, 1e-10)

    alphas = jnp.geomspace(1.0, 0.005, 50)  # the first are above lambda_max
    batch = jax.jit(jax.vmap(jax.grad(held_out)))(alphas)
    loop = jnp.stack([jax.grad(held_out)(alpha) for alpha in alphas])
    np.testing.assert_allclose(batch, loop, rtol=1e-5, atol=1e-7)
    assert int(jnp.sum(loop != 0)) > 25


def test_data_inside_a_plain_function():
    """Traced arrays that a function closes over are differentiated like those given as its arguments."""
    X, Y = map(jnp.asarray, data("SquaredLoss"))
    penalty = sj.penalties.L21(0.08)

    def fit(scale, closed):
        A = X * scale
        fun = lambda A, W: jnp.mean((A @ W - Y) ** 2)
        smooth = jax.tree_util.Partial((lambda W: fun(A, W)) if closed else fun, *([] if closed else [A]))
        return jnp.sum(C * sj.fista(sj.Problem(smooth, penalty), jnp.zeros((8, 3)), tol=1e-11).params)

    expected = jax.grad(lambda s: fit(s, closed=False))(1.0)
    np.testing.assert_allclose(expected, difference(lambda t: fit(1.0 + t, closed=False), 1e-4), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(lambda s: fit(s, closed=True))(1.0), expected, rtol=1e-8)
    batch = jax.jit(jax.vmap(jax.grad(lambda s: fit(s, closed=True))))(jnp.array([1.0, 1.1]))
    np.testing.assert_allclose(batch[0], expected, rtol=1e-6)


@pytest.mark.parametrize("penalty", ["L1", "L21", "ExclusiveL21"])
def test_zero_and_finite_at_and_above_lambda_max(penalty):
    p = problem("SquaredLoss", penalty)
    top = sj.lambda_max(p)
    name = p.penalty._leaves[0]
    for factor in (1.0, 2.0, 1e6):
        at = p._replace(penalty=p.penalty._replace(**{name: factor * top}))
        gradient = jax.grad(outcome)(at)
        assert all(bool((leaf == 0).all()) for leaf in jax.tree.leaves(gradient))


def test_at_a_change_of_support_todays_zeros_stay():
    """The lasso on the identity thresholds: at |y| = strength are two derivatives, ours is that of zero."""
    for y, expected in ((1.0, 0.0), (1.0 + 1e-9, -1.0)):
        p = sj.Problem(sj.losses.SquaredLoss([[1.0]], [y], scale=0.5), sj.penalties.L1(1.0))
        slope = jax.grad(lambda s, p=p: sj.solve(p._replace(penalty=sj.penalties.L1(s)), tol=0.0).params[0])(
            1.0
        )
        assert float(slope) == pytest.approx(expected)


def test_dependent_columns():
    """Least norm where the system can be solved, the same predictions as without the copy; NaN where not."""
    X, Y = data("SquaredLoss")
    twice = np.concatenate([X, X[:, :1]], axis=1)
    strengths = jnp.array(0.01)

    def fit(X, s):
        return sj.solve(sj.Problem(sj.losses.SquaredLoss(X, Y[:, 0]), sj.penalties.L1(s)), tol=0.0).params

    once = jax.jacfwd(lambda s: X @ fit(X, s))(strengths)
    copied = jax.jacfwd(lambda s: fit(twice, s))(strengths)
    W = fit(twice, strengths)
    assert W[0] != 0 and W[-1] != 0
    np.testing.assert_allclose(twice @ copied, once, atol=1e-8)
    np.testing.assert_allclose(copied[0], copied[-1], rtol=1e-6)  # least norm shares between the copies
    # If one of the copies moves alone, the solution jumps: it has no derivative.
    moved = jnp.zeros_like(jnp.asarray(twice)).at[:, 0].set(jnp.asarray(Y[:, 0]))
    jump = jax.jvp(lambda t: fit(twice + t * moved, strengths), (0.0,), (1.0,))[1]
    assert bool(jnp.isnan(jump).all())


def test_weights_scale_intercept_objective_and_path():
    X, Y = data("LogisticLoss")

    def fit(t):
        smooth = sj.losses.LogisticLoss(
            X, Y, scale=(1 + t) / 12, weights=1 + t * jnp.arange(12.0) / 12, intercept=True
        )
        s = sj.solve(sj.Problem(smooth, sj.penalties.L21(0.05 + t / 10)), tol=0.0)
        return jnp.sum(C * s.params) + s.objective + jnp.sum(smooth.intercept(s.params))

    zero = jnp.zeros(())
    np.testing.assert_allclose(jax.grad(fit)(zero), difference(fit), rtol=1e-6)

    p = problem("SquaredLoss", "ExclusiveL21")
    make = jax.vmap(lambda a: sj.penalties.ExclusiveL21(a, 0.02))
    alphas = jnp.geomspace(0.3, 0.03, 3)
    total = lambda alphas: jnp.sum(C[None] * sj.path(p, make(alphas), mode="warm", tol=1e-11).params)

    def single(alpha):
        penalty = sj.penalties.ExclusiveL21(alpha, 0.02)
        return jnp.sum(C * sj.solve(p._replace(penalty=penalty), tol=1e-11).params)

    expected = [jax.grad(single)(alpha) for alpha in alphas]
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
    X, Y = map(jnp.asarray, data("SquaredLoss"))
    direction = jnp.asarray(np.random.default_rng(3).standard_normal(X.shape))

    def fit(t):
        smooth = jax.tree_util.Partial(lambda X, w: jnp.mean((X @ w - Y[:, 0]) ** 2), X + t * direction)
        constraint = sjo.from_projection(projection, size + t)
        solution = sj.fista(sj.Problem(smooth, constraint), jnp.full(8, 1 / 8), tol=1e-13)
        return jnp.sum(C[:, 0] * solution.params)

    slope = jax.grad(fit)(jnp.zeros(()))
    np.testing.assert_allclose(slope, difference(fit, 1e-4), rtol=1e-5)
    np.testing.assert_allclose(jax.jvp(fit, (jnp.zeros(()),), (jnp.ones(()),))[1], slope, rtol=1e-8)


def test_a_derivative_of_what_did_not_converge_warns():
    p = problem("SquaredLoss", "L21")
    with pytest.warns(UserWarning, match="did not converge"):
        slope = jax.grad(lambda p: jnp.sum(sj.admm(p, tol=1e-12, maxiter=3).params))(p)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(slope))
    jax.grad(lambda p: jnp.sum(sj.admm(p, tol=1e-8).params))(p)  # warnings are errors here
    # The start and the tolerance have no derivative.
    assert float(jax.grad(lambda t: jnp.sum(sj.admm(p, tol=t).params))(1e-8)) == 0
