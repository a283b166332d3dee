"""Paths are loops of solves, compiled once."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import PAIRS, K, data, problem
from penalty_cases import PENALTIES, D

import sparsejax as sj
from sparsejax import losses, penalties
from sparsejax.solution import CONVERGED, NON_FINITE

TOL = 1e-9


def replaced(p, penalty):
    return p.replace(penalty=penalty)


def assert_same(path, singles):
    for i, single in enumerate(singles):
        assert bool(path.converged[i]) and bool(single.converged)
        np.testing.assert_allclose(path.objective[i], single.objective, rtol=3 * TOL)
        np.testing.assert_allclose(path.params[i], single.params, atol=2e-4)


# The lanes of a batch are those of `test_solvers.py`, for every pair: here one of each kind.
BATCHES = [
    ("SquaredLoss", "ExclusiveL21"),
    ("SquaredLoss", "ExclusiveGroupL21"),  # groups beside the strengths
    ("SquaredLoss", "ExclusiveGroupLasso"),  # two terms
    ("LogisticLoss", "L21"),  # no quadratic
    ("PoissonLoss", "ExclusiveL21"),  # not by the engine
]


@pytest.mark.parametrize(
    "loss, penalty, mode", [(*pair, "warm") for pair in PAIRS] + [(*pair, "batch") for pair in BATCHES]
)
def test_path_is_a_loop_of_solves(loss, penalty, mode):
    p, case = problem(loss, penalty), PENALTIES[penalty]
    grid = [np.geomspace(4, 0.5, 5)[:, None] * s[None] for s in case.spread()]
    path = sj.path(p, jax.vmap(case.make)(*grid), mode=mode, tol=TOL)
    assert path.params.shape == (5, D, K)
    singles = [sj.solve(replaced(p, case.make(*values)), tol=TOL) for values in zip(*grid, strict=True)]
    assert_same(path, singles)


def test_path_over_one_strength_of_two():
    """Given directly, without `jax.vmap`; the other is shared."""
    p = problem("SquaredLoss", "ExclusiveL21")
    beta = p.penalty.beta
    alphas = np.geomspace(0.2, 0.02, 4)[:, None] * np.ones(D)
    path = sj.path(p, penalties.ExclusiveL21(0.0, beta)._replace(alpha=jnp.asarray(alphas)), tol=TOL)
    singles = [sj.solve(replaced(p, penalties.ExclusiveL21(alpha, beta)), tol=TOL) for alpha in alphas]
    assert_same(path, singles)


def test_path_over_scalar_strengths():
    X, Y = data()
    p = sj.Problem(losses.SquaredLoss(X, Y), penalties.ExclusiveL21(0.1, 0.02))
    alphas = np.geomspace(0.2, 0.02, 4)
    path = sj.path(p, penalties.ExclusiveL21(alphas, 0.02), tol=TOL)
    singles = [sj.solve(replaced(p, penalties.ExclusiveL21(alpha, 0.02)), tol=TOL) for alpha in alphas]
    assert_same(path, singles)


def plain_squared(traces, X, Y, W):
    traces.append(1)
    return jnp.sum((X @ W - Y) ** 2) / (2 * len(X))


class WithoutCurvature(losses.LinearModelLoss):
    def entries(self, H):
        return (H - self.Y) ** 2 / 2

    def derivatives(self, H):
        return H - self.Y, jnp.ones_like(H)


@pytest.mark.parametrize("plain", [False, True])
def test_path_without_the_engine(plain):
    """Of a plain function, and of a loss of which the curvature is not known."""
    X, Y = data()
    known = sj.Problem(losses.SquaredLoss(X, Y), penalties.L21(0.3))
    smooth = WithoutCurvature(X, Y)
    if plain:
        smooth = jax.tree_util.Partial(lambda X, Y, W: plain_squared([], X, Y, W), X, Y)
    strengths = jax.vmap(penalties.L21)(np.array([0.6, 0.3]))
    path = sj.path(known.replace(smooth=smooth), strengths, np.zeros((D, K)), tol=1e-8)
    np.testing.assert_allclose(path.objective, sj.path(known, strengths, tol=1e-8).objective, rtol=1e-7)


def test_one_compilation_for_fifty_strengths():
    p, traces = problem("SquaredLoss", "ExclusiveL21"), []
    X, Y = data()
    plain = replaced(p, penalties.ExclusiveL21(0.1, 0.02)).replace(
        smooth=jax.tree_util.Partial(lambda X, Y, W: plain_squared(traces, X, Y, W), X, Y)
    )

    @jax.jit
    @chex.assert_max_traces(n=1)
    def solve(alpha):
        return sj.solve(replaced(p, penalties.ExclusiveL21(alpha, p.penalty.beta)))

    alphas = np.geomspace(0.6, 0.006, 50)
    for alpha in alphas:
        assert bool(solve(alpha * np.ones(D)).converged)

    init, count = np.zeros((D, K)), 0
    for i, alpha in enumerate(alphas):
        sj.fista(replaced(plain, penalties.ExclusiveL21(alpha, 0.02)), init)
        count = len(traces) if i == 0 else count
    assert len(traces) == count  # the public solvers compile once for all strengths, too

    for mode in ("warm", "batch"):
        for i, low in enumerate((0.006, 0.007, 0.008)):
            grid = np.geomspace(0.6, low, 50)
            strengths = jax.vmap(penalties.ExclusiveL21)(grid, grid)
            assert bool(sj.path(plain, strengths, init, mode=mode).converged.all())
            count = len(traces) if i == 0 else count
        assert len(traces) == count


class OwnL1(sj.Penalty, leaves=("strength",)):
    def value(self, W):
        return self.strength * jnp.sum(jnp.abs(W))

    def prox(self, V, scaling=1.0):
        return sj.prox.l1(V, self.strength, scaling)


def test_strengths_that_are_integers():
    """Those of a class that converts nothing; integers are indices of groups elsewhere."""
    p = sj.Problem(losses.SquaredLoss(np.eye(4, 3), np.ones(4)), OwnL1(1.0))
    with pytest.raises(ValueError, match="give strengths as floating numbers"):
        sj.path(p, jax.vmap(OwnL1)(jnp.array([3, 2, 1])))


def test_several_axes():
    """A vmap in a vmap: the answers of the list, with the axes of the grid; groups stay one copy."""
    p, case = problem("SquaredLoss", "ExclusiveGroupL21"), PENALTIES["ExclusiveGroupL21"]
    (s,) = case.spread()
    strengths = np.geomspace(4, 0.5, 6)[:, None] * s[None]
    listed = sj.path(p, jax.vmap(case.make)(strengths), tol=TOL)
    square = sj.path(p, jax.vmap(jax.vmap(case.make))(strengths.reshape(2, 3, -1)), tol=TOL)
    assert square.params.shape == (2, 3, D, K) and square.history.gap.shape == (2, 3, 0)
    for one, other in zip(jax.tree.leaves(square), jax.tree.leaves(listed), strict=True):
        np.testing.assert_array_equal(one.reshape(other.shape), other)


def test_a_path_starts_beyond_its_last_solution():
    """Where no feature enters or leaves, W of a lasso is linear in the strength: the start is the answer."""
    X = np.random.default_rng(0).standard_normal((400, 600))
    y = X[:, :5].sum(axis=1)
    p = sj.Problem(losses.SquaredLoss(X, y), penalties.L1(0.1))
    assert sj.solvers.chain_of(sj.solvers.pick(p).link, p).links[0].name == "prox_newton"
    strengths = np.linspace(0.6, 0.4, 9)
    for order in (strengths, strengths[::-1].copy()):
        path = sj.path(p, jax.vmap(penalties.L1)(order), tol=1e-8)
        assert path.converged.all() and (path.params[:, :5] != 0).all() and not path.params[:, 5:].any()
        assert (np.asarray(path.num_iters)[2:] == 0).all() and path.num_iters[0] > 0
    # Strengths at random: the answers are those of single solves.
    order = np.random.default_rng(1).permutation(np.geomspace(0.5, 0.02, 8))
    path = sj.path(p, jax.vmap(penalties.L1)(order), tol=TOL)
    assert_same(path, [sj.solve(p.replace(penalty=penalties.L1(s)), tol=TOL) for s in order])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_a_strength_that_is_not_allowed_spoils_no_other(bad):
    """Under jit, where nothing can be raised; in the order of one solve after another too."""
    p = problem("SquaredLoss", "L21").replace(penalty=penalties.L21(1.0))
    top = float(sj.lambda_max(p))
    strengths = jnp.array([top / 2, bad, top / 4, top / 8])

    @jax.jit
    def warm(strengths):
        return sj.path(p, jax.vmap(penalties.L21)(strengths), mode="warm", tol=TOL)

    found = warm(strengths)
    assert found.status.tolist() == [CONVERGED, NON_FINITE, CONVERGED, CONVERGED]
    assert np.isnan(found.params[1]).all() and np.isnan(found.gap[1]) and found.num_iters[1] == 0
    good = np.array([0, 2, 3])
    assert_same(
        found[good], [sj.solve(p.replace(penalty=penalties.L21(strengths[i])), tol=TOL) for i in good]
    )
