"""One solve, whatever wraps it: jit, vmap, scan and grad give what an eager call gives, and say the same."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import data
from loss_cases import LOSSES, classes
from transformed import SHAPES, K, check, sums

import sparsejax as sj
from sparsejax import losses, penalties
from sparsejax.driver import Chain, prepare, run
from sparsejax.losses import Loss, SquaredLoss
from sparsejax.penalties import L1, L21, ExclusiveL21, Penalty

CELLS = [  # all others: soak/
    ("SquaredLoss", "L21", "wide"),
    ("SquaredLoss", "ExclusiveL21+SquaredL2", "tall"),
    ("LogisticLoss", "L1", "wide"),
    ("plain", "L21", "tall"),
]


@pytest.mark.parametrize(("loss", "penalty", "shape"), CELLS)
def test_eager_is_jit_is_vmap_is_scan(loss, penalty, shape):
    check(loss, penalty, shape)


def test_links_of_a_chain_follow_inside_jit_too():
    """Strengths near 0, where majorised steps crawl: another solver goes on, eagerly and traced."""
    X, H = data(seed=0, n=100, d=70, k=3)
    loss = losses.SoftmaxLoss(X, classes(H))
    solve = lambda a: sj.admm(sj.Problem(loss, ExclusiveL21(a, a / 100)))
    eager, traced = solve(1e-5), jax.jit(solve)(1e-5)
    assert eager.converged and traced.converged
    assert eager.solver == traced.solver == "newton_admm"
    np.testing.assert_allclose(eager.objective, traced.objective, rtol=2e-6)


def test_lanes_of_a_numpy_array_inside_jit():
    """A script writes `jax.vmap` over `numpy.geomspace` inside its `jax.jit`; JAX 0.11.2 needs help."""
    X, H = data(seed=0, n=20, d=6, k=1)
    p = sj.Problem(SquaredLoss(X, H[:, 0]), L1(0.0))
    strengths = np.geomspace(0.5, 0.1, 3) * float(sj.lambda_max(p))
    candidates = jax.vmap(L1)(strengths)
    assert isinstance(candidates.strength, np.ndarray)
    solve = lambda p, a: sj.solve(p.replace(penalty=L1(a)), tol=1e-9).params
    lanes = jax.jit(lambda p: jax.vmap(lambda a: solve(p, a))(strengths))(p)
    path = jax.jit(lambda p: sj.path(p, candidates, tol=1e-9).params)(p)
    np.testing.assert_allclose(lanes, [solve(p, a) for a in strengths], atol=1e-6)
    np.testing.assert_allclose(path, lanes, atol=1e-6)


def test_groups_of_a_path_that_jit_closes_over():
    X, H = data(seed=0, n=20, d=6, k=1)
    groups = sj.groups.from_labels([0, 0, 1, 1, 2, 2])
    make = lambda a: penalties.GroupLasso(a, groups)
    p = sj.Problem(SquaredLoss(X, H[:, 0]), make(1.0))
    candidates = jax.vmap(make)(jnp.geomspace(0.5, 0.1, 3) * sj.lambda_max(p))
    inside = jax.jit(lambda p: sj.path(p, candidates, tol=1e-9).params)(p)
    np.testing.assert_allclose(inside, sj.path(p, candidates, tol=1e-9).params, atol=1e-6)


def weighed(X, y, w):
    """Least squares with a weight that the class closes over, and a curvature that knows it."""

    class Weighed(Loss, leaves=()):
        params_shape, dtype = X.shape[1:], X.dtype

        def __call__(self, W):
            return w * jnp.sum((X @ W - y) ** 2) / 2

        def quadratic_model(self):
            return losses.QuadraticModel(majorizer=lambda: jnp.sqrt(w) * X, exact=True)

    return Weighed()


def rows(a):
    """l2,1 with a strength that the class closes over, and a row norm that knows it."""

    class Rows(Penalty, leaves=()):
        def value(self, W):
            return L21(a).value(W)

        def prox(self, V, scaling=1.0):
            return L21(a).prox(V, scaling)

        def row_norm(self, shape):
            return L21(a).row_norm(shape)

    return Rows()


def test_what_an_object_can_do_is_asked_after_its_arrays_are_known():
    """Classes that close over what is traced, and state what they can do: solved and differentiated."""
    X, H = map(jnp.asarray, data(seed=1, n=20, d=5, k=2))
    size = lambda problem: jnp.sum(sj.solve(problem, tol=1e-9).params ** 2)
    problems = {
        "loss": (
            lambda w: sj.Problem(weighed(X, H[:, 0], w), L1(2.0)),
            lambda w: sj.Problem(SquaredLoss(X, H[:, 0], scale=w / 2), L1(2.0)),
        ),
        "penalty": (
            lambda a: sj.Problem(SquaredLoss(X, H), rows(a)),
            lambda a: sj.Problem(SquaredLoss(X, H), L21(a)),
        ),
    }
    for name, (own, ours) in problems.items():
        wanted = jax.grad(lambda a, ours=ours: size(ours(a)))(1.5)
        of_own = lambda a, own=own: size(own(a))
        for slope in (jax.grad(of_own), jax.jit(jax.grad(of_own))):
            np.testing.assert_allclose(slope(1.5), wanted, rtol=1e-4, err_msg=name)
        np.testing.assert_allclose(jax.jit(of_own)(1.5), size(ours(1.5)), rtol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    ("loss", "penalty", "d"),
    [
        ("SquaredLoss", lambda: L21(0.1), 30),
        ("SquaredLoss", lambda: ExclusiveL21(0.1, 0.02), 6),
        ("LogisticLoss", lambda: L21(0.1), 6),
        ("PoissonLoss", lambda: L21(0.1), 6),
    ],
)
def test_nan_in_nan_out(loss, penalty, d):
    """A NaN in the data of one lane: NaN in all its params, and nothing of it in the others."""
    X, H = data(seed=2, n=12, d=d, k=2)
    targets = LOSSES[loss].targets(H)
    broken = np.array(X)
    broken[3, 1] = np.nan
    both = jnp.asarray(np.stack([X, broken]))
    solve = lambda X: sj.solve(sj.Problem(LOSSES[loss].make(X, targets), penalty()))
    found = jax.jit(jax.vmap(solve))(both)
    assert found.converged[0] and jnp.all(jnp.isfinite(found.params[0]))
    np.testing.assert_allclose(found.params[0], solve(X).params, atol=1e-10)
    assert not found.converged[1] and jnp.all(jnp.isnan(found.params[1]))


def test_a_layer_of_lanes_trains():
    """At default tolerances no gradient of a lane is NaN, and each is a derivative."""
    rng = np.random.default_rng(0)
    D, A = jnp.asarray(rng.standard_normal((20, 16))), jnp.asarray(rng.standard_normal((20, 8)))
    inputs, wanted = jnp.asarray(rng.standard_normal((64, 8))), jnp.asarray(rng.standard_normal((64, 16)))

    def codes(A, x, tol=1e-6):
        return sj.solve(sj.Problem(SquaredLoss(D, A @ x), L1(1.0)), tol=tol, maxiter=10_000).params

    def fit(A, tol=1e-6):
        return jnp.mean((jax.vmap(lambda x: codes(A, x, tol))(inputs) - wanted) ** 2)

    slope = jax.jit(jax.grad(fit))
    for _ in range(5):
        G = slope(A)
        assert jnp.all(jnp.isfinite(G))
        A = A - 0.05 * G
    direction, step = jnp.asarray(rng.standard_normal(A.shape)), 1e-5
    exact = jax.jit(lambda A: fit(A, 1e-12))
    difference = (exact(A + step * direction) - exact(A - step * direction)) / (2 * step)
    np.testing.assert_allclose(jnp.sum(slope(A) * direction), difference, rtol=1e-2)


def test_limits_that_are_traced():
    """No tolerance is met that is not finite; the number of iterations is an integer, as eagerly."""
    X, H = data(n=30)
    problem = sj.Problem(losses.LogisticLoss(X, (H > 0).astype(float)), sj.penalties.L1(0.01))
    solve = jax.jit(lambda tol, maxiter: sj.solve(problem, tol=tol, maxiter=maxiter))
    for tol in (np.inf, np.nan, -1.0):
        assert not solve(tol, 2000).converged
    assert solve(1e-6, 2000).converged
    with pytest.raises(TypeError, match="maxiter must be an integer"):
        solve(1e-6, 1.5)


def test_a_function_of_W_is_a_loss():
    """A lambda, eagerly too, a partial and a custom derivative; and `solvers.pick` of it."""
    X, H = map(jnp.asarray, data(seed=1, n=20, d=5, k=None))
    problem = sj.Problem(lambda W: jnp.sum((X @ W - H) ** 2) / 2, L1(2.0))
    assert sj.solvers.pick(problem).function is sj.fista
    found, ours = (
        sj.solve(problem, init=jnp.zeros(5), tol=1e-9),
        sj.Problem(SquaredLoss(X, H, scale=0.5), L1(2.0)),
    )
    np.testing.assert_allclose(found.params, sj.solve(ours, tol=1e-9).params, atol=1e-6)
    custom = jax.custom_jvp(problem.smooth)
    custom.defjvp(lambda at, way: (problem.smooth(*at), jnp.vdot(jax.grad(problem.smooth)(*at), *way)))
    for form in (custom, functools.partial(lambda target, W: jnp.sum((X @ W - target) ** 2) / 2, H)):
        again = sj.solve(problem.replace(smooth=form), init=jnp.zeros(5), tol=1e-9)
        np.testing.assert_allclose(again.params, found.params, atol=1e-12)


def test_sum_of_penalties():
    p, q = L21(0.3), penalties.SquaredL2(0.2)
    W = jnp.ones((3, 2))
    np.testing.assert_allclose(sum([p, q]).value(W), p.value(W) + q.value(W))
    assert sum([p]) is p
    with pytest.raises(TypeError, match="penalty must have value"):
        1 + p


@pytest.mark.parametrize("way", ["eager", "jit", "vmap", "path"])
def test_nothing_is_sent_to_the_device(way):
    """Of arrays that are there, and strengths that are arrays. The answers of checks come from the device."""
    X, H = (jax.device_put(x, jax.devices()[0]) for x in data(seed=1, n=20, d=5, k=2))
    loss, strengths, a = SquaredLoss(X, H), jnp.array([0.5, 0.2]), jnp.asarray(0.3)
    grid = jax.vmap(L21)(strengths)
    solve = lambda a: sj.solve(sj.Problem(loss, L21(a)))
    calls = {
        "eager": lambda: solve(a),
        "jit": lambda: jax.jit(solve)(a),
        "vmap": lambda: jax.jit(jax.vmap(solve))(strengths),
        "path": lambda: sj.path(sj.Problem(loss, L21(a)), grid),
    }
    on_cpu = jax.default_backend() == "cpu"
    with jax.transfer_guard("disallow") if on_cpu else jax.transfer_guard_host_to_device("disallow"):
        found = calls[way]()
    assert jnp.all(found.converged)


PAIRS = [
    f"{a}+{b}"
    for a in ("ExclusiveL21", "ExclusiveLasso", "ExclusiveGroupL21")
    for b in ("SquaredL2", "NonNegative")
]


THREE = ["L1Inf+ElasticNet", "ExclusiveGroupLasso+SparseGroupLasso"]  # terms; all pairs: soak/


@pytest.mark.parametrize(
    ("loss", "penalty"),
    [
        *(("HuberLoss", penalty) for penalty in PAIRS[1::3]),
        *(pytest.param("LogisticLoss", penalty, marks=pytest.mark.matrix) for penalty in PAIRS + THREE),
    ],
)
def test_every_pair_of_penalties_is_solved(loss, penalty):
    d = SHAPES["tall"][1]
    X, H = data(seed=3, n=30, d=d, k=K)
    problem = sj.Problem(LOSSES[loss](X, H), sums(d)[penalty](0.05))
    found = sj.solve(problem, tol=1e-4)
    assert (found.converged and found.gap <= 1e-4) or sj.duality_gap(problem, found.params) <= 1e-4


def test_lanes_of_different_maxiter_in_a_batch_of_batches():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 8))
    Y = X @ rng.standard_normal((8, 2)) + 0.1 * rng.standard_normal((30, 2))
    loss = losses.SquaredLoss(X, Y)
    solve = lambda m, a: sj.solve(sj.Problem(loss, penalties.L21(a)), tol=0.0, maxiter=m)
    strengths = jnp.array([0.01, 0.003])
    both = jax.vmap(lambda m: jax.vmap(lambda a: solve(m, a))(strengths))(jnp.array([3, 17]))
    alone = jax.jit(solve)(3, 0.01)
    assert both.num_iters[0, 0] == alone.num_iters == 3
    np.testing.assert_allclose(both.params[0, 0], alone.params, rtol=1e-9)


def test_a_chain_of_one_link_is_never_empty():
    """If the link declined the problem, the eager run found no link and failed."""
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((40, 60)), rng.standard_normal((40, 3))
    problem = sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.L21(1e-4))
    chain = Chain((sj.solvers.SOLVERS["variational_newton"].link,))
    arguments = prepare("variational_newton", problem, None, 1e-6, 1000)
    eager = run(chain, *arguments, quiet=True)
    traced = jax.jit(lambda *a: run(chain, *a, quiet=True))(*arguments[:4])
    assert int(eager.status) == int(traced.status)
    np.testing.assert_allclose(eager.objective, traced.objective)
