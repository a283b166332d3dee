"""A quadratic given by its Gram matrix: what it accepts, and certificates that are true or NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsejax as sj
from sparsejax.losses import GramLoss, GraphLaplacian, SquaredLoss
from sparsejax.penalties import L1, L21, SquaredL2

rng = np.random.default_rng(0)
X, Y = rng.standard_normal((30, 6)), rng.standard_normal((30, 3))
G, B, C = X.T @ X, X.T @ Y, 0.5 * np.sum(Y * Y)
LEAST = 0.5 * np.sum(B * np.linalg.solve(G, B))  # the least constant at which the quadratic is not negative
TEXT = np.full((6, 6), "a")


@pytest.mark.parametrize(
    ("G", "B", "constant", "error", "message"),
    [
        (np.eye(2), np.array([1.0, 0.5]), 0.0, ValueError, r"constant must be at least .* = 0\.625"),
        (G, B, 0.99 * LEAST, ValueError, "constant must be at least"),
        (G, B, -1.0, ValueError, "constant must be at least"),
        (np.zeros((2, 2)), np.ones(2), 1e9, ValueError, "constant must be at least"),
        (np.diag([1.0, 0.0]), np.ones(2), 1e3, ValueError, "constant must be at least"),
        (np.diag([1.0, -1.0]), np.zeros(2), None, ValueError, "G is not positive semidefinite.* -1"),
        (np.diag([1.0, -1.0]), np.ones(2), 9.0, ValueError, "G is not positive semidefinite"),
        (np.array([[1.0, 0.5], [0.0, 1.0]]), np.ones(2), None, ValueError, "G is not symmetric"),
        (G[:3], B, C, ValueError, r"G has shape \(3, 6\)"),
        (G[:0, :0], B[:0], C, ValueError, r"G has shape \(0, 0\)"),
        (G[0], B, C, ValueError, r"G has shape \(6,\)"),
        (G, B[:5], C, ValueError, r"B has shape \(5, 3\) and G \(6, 6\)"),
        (G, B[None], C, ValueError, r"B has shape \(1, 6, 3\)"),
        (G, B, np.ones(2), ValueError, r"constant has shape \(2,\)"),
        (G, B, np.nan, ValueError, "constant has 1 value"),
        (G * np.nan, B, C, ValueError, "G has 36 value"),
        (G, "text", C, TypeError, "B has dtype"),
        (TEXT, B, C, TypeError, "G has dtype"),
        (None, B, C, TypeError, "G has dtype object"),
        (G, None, C, TypeError, "B has dtype object"),
        (G, B, "text", TypeError, "constant has dtype"),
        (G + 0j, B, C, TypeError, "G is complex"),
    ],
)
def test_what_is_refused(G, B, constant, error, message):
    with pytest.raises(error, match=message):
        GramLoss(G, B, constant)


def problems(penalty=None):
    penalty = L21(2.0) if penalty is None else penalty
    return sj.Problem(GramLoss(G, B, C), penalty), sj.Problem(SquaredLoss(X, Y, scale=0.5), penalty)


def test_is_the_loss_of_the_data():
    """With the constant of the data: the gap of the squared loss. It bounds the excess at every W."""
    ours, theirs = problems()
    a, b = (sj.solve(problem, tol=1e-10) for problem in (ours, theirs))
    assert a.converged and 0 <= a.gap <= 1e-10
    np.testing.assert_allclose(a.params, b.params, atol=1e-8)
    for size in (1e-3, 1e-1, 1.0, 10.0):
        W = np.asarray(b.params) + size * rng.standard_normal((6, 3))
        excess = (float(theirs(W)) - float(b.objective)) / max(float(theirs(W)), C)
        assert sj.duality_gap(ours, W) >= excess * (1 - 1e-9)


@pytest.mark.parametrize("constant", [LEAST, LEAST * (1 + 1e-9), 100 * C])
def test_every_constant_that_is_large_enough_has_a_true_gap(constant):
    ours = problems()[0].replace(smooth=GramLoss(G, B, constant))
    best = sj.solve(ours, tol=1e-12)
    assert best.converged
    for size in (1e-3, 1e-1, 1.0):
        W = np.asarray(best.params) + size * rng.standard_normal((6, 3))
        P, at_zero = float(ours(W)), float(ours(np.zeros((6, 3))))
        assert sj.duality_gap(ours, W) >= (P - float(best.objective)) / max(P, at_zero) * (1 - 1e-6)


@pytest.mark.parametrize("penalty", [L21(2.0), SquaredL2(1.0), L1(1.0) + L21(1.0)])
@pytest.mark.parametrize("graph", [False, True])
def test_without_the_constant_the_residual_decides(penalty, graph):
    """No gap is known, since P(0) is not; the solution is that of the data, eagerly and under jit."""
    alone = GramLoss(G, B)
    whole = GramLoss(G, B, C)
    if graph:
        similar = GraphLaplacian(np.ones((3, 3)) - np.eye(3), 0.5)
        alone, whole = alone + similar, whole + similar
    a, b = (sj.solve(sj.Problem(loss, penalty), tol=1e-9) for loss in (alone, whole))
    assert a.converged and np.isnan(a.gap) and a.residual <= 1e-9 and b.converged
    np.testing.assert_allclose(a.params, b.params, atol=1e-7)
    np.testing.assert_allclose(a.objective + C, b.objective, rtol=1e-7)
    assert np.isnan(sj.duality_gap(sj.Problem(alone, penalty), np.zeros((6, 3))))
    jitted = jax.jit(lambda p: sj.solve(p, tol=1e-9))(sj.Problem(alone, penalty))
    assert jitted.converged and np.isnan(jitted.gap)


@pytest.mark.parametrize(
    ("shift", "constant", "good"), [(0.0, C, True), (0.0, 0.9 * LEAST, False), (-1e3, C, False)]
)
def test_under_jit_a_wrong_quadratic_has_no_certificate(shift, constant, good):
    def solved(G, B, constant):
        return sj.solve(sj.Problem(GramLoss(G, B, constant), L21(2.0)), tol=1e-8)

    for solve in (jax.jit(solved), lambda *a: jax.tree.map(lambda x: x[0], jax.vmap(solved)(*_one(a)))):
        s = solve(G + shift * np.eye(6), B, constant)
        assert bool(s.converged) == good and bool(np.isnan(s.gap)) == bool(np.isnan(s.residual)) == (not good)


def _one(arrays):
    return tuple(jnp.asarray(a)[None] for a in arrays)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("condition", [1.0, 1e4, 1e8, 1e14])
def test_products_of_data_are_accepted(dtype, condition):
    """Targets that the features fit exactly have the least constant; rounding refuses none of them."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        d = (1, 7, 39)[seed % 3]  # few shapes: each is compiled
        X = rng.standard_normal((60, d)) * np.geomspace(1, condition**-1, d)
        X = (X @ np.linalg.qr(rng.standard_normal((d, d)))[0]).astype(dtype)
        y = X @ rng.standard_normal(d).astype(dtype)
        assert GramLoss(X.T @ X, X.T @ y, 0.5 * y @ y).valid()


def test_the_gram_form_of_a_loss_with_a_negative_weight_under_jit():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((10, 4)), rng.standard_normal(10)

    def at(weights):
        s = sj.solve(sj.Problem(SquaredLoss(X, y, weights=weights).gram(), L1(0.1)))
        return s.converged, s.gap

    assert jax.jit(at)(jnp.ones(10))[0]
    converged, gap = jax.jit(at)(jnp.asarray(np.r_[-3.0, np.ones(9)]))
    assert not converged and np.isnan(gap)
