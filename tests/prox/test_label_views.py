"""The exclusive group lasso over label views: its prox, smoothing, the printed algorithm."""

import conic
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import K, data, problem, solution
from loss_cases import SIMILARITY
from penalty_cases import VIEWS, D

import sparsejax as sj
from sparsejax import groups, losses, penalties
from sparsejax.solution import NON_FINITE, STALLED

SIZES = (2, 3)
TABLE = ("GraphLaplacian", "ExclusiveGroupLasso")  # with a graph of the labels, as the paper has it


def members(view):
    return [np.asarray(group) for group in view.tolist()]


def test_label_views_are_the_axes_of_a_product():
    views = groups.label_views(2, 3, 2)
    for v, view in enumerate(views):
        expected = [[] for _ in range((2, 3, 2)[v])]
        for column in range(12):
            expected[np.unravel_index(column, (2, 3, 2))[v]].append(column)
        assert view.tolist() == expected and view.disjoint and view.num_features == 12
    assert groups.label_views(2, 3)[0].tolist() == [[0, 1, 2], [3, 4, 5]]
    for bad in ((), (0, 2), (2.0,), (True, 2)):
        with pytest.raises(ValueError, match="view"):
            groups.label_views(*bad)


def test_one_view_of_single_labels_is_the_exclusive_lasso(rng):
    V = rng.standard_normal((5, 4))
    ours = penalties.ExclusiveGroupLasso(0.6, groups.from_labels(range(4)))
    theirs = penalties.ExclusiveLasso(0.3)
    np.testing.assert_allclose(ours.value(V), theirs.value(V), rtol=1e-14)
    np.testing.assert_allclose(
        jax.jit(ours.prox)(V, 0.7), jax.jit(theirs.prox)(V, 0.7), rtol=1e-12, atol=1e-14
    )
    np.testing.assert_allclose(ours.conjugate(V), theirs.conjugate(V), rtol=1e-14)


def test_prox_of_one_uneven_view(rng):
    """Against the conic solver: no product of labels has this view."""
    V, scaling = rng.standard_normal((3, 6)) * np.array([[3.0], [1.0], [0.3]]), 0.7
    view = groups.from_labels([0, 1, 1, 0, 0, 2])
    penalty = penalties.ExclusiveGroupLasso(np.array([0.4, 1.5, 6.0]), (view,))
    p = sj.Problem(losses.SquaredLoss(np.eye(3), V, scale=0.5 / scaling), penalty)
    ours, best = np.asarray(jax.jit(penalty.prox)(V, scaling)), conic.minimise(p)
    assert conic.objective(p, ours) <= best.objective + 1e-13
    np.testing.assert_allclose(ours, best.params, atol=3e-6)
    assert (ours == 0).any()


def test_derivative_of_the_joint_prox(rng):
    V, dV, c = rng.standard_normal((3, 4, K))

    @jax.jit
    def value(t):
        U = penalties.ExclusiveGroupLasso(0.5 + t, VIEWS).prox(V + t * dV, 0.8 + 2 * t)
        return jnp.sum(c * U)

    h = 1e-6
    expected = (value(h) - value(-h)) / (2 * h)
    np.testing.assert_allclose(jax.grad(value)(0.0), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.jvp(value, (0.0,), (1.0,))[1], expected, rtol=1e-6)


# ------------------------------------------------------------------ solutions


def test_entries_that_vanish_are_zero():
    """Groups vanish as wholes, and the zeros are those of the optimum."""
    p = problem(*TABLE)
    s = sj.solve(p.replace(penalty=penalties.ExclusiveGroupLasso(np.full(D, 3.0), VIEWS)), tol=1e-13)
    zero = np.asarray(s.params) == 0
    assert 0.1 < zero.mean() < 0.9
    on = np.ones_like(zero)
    for view in VIEWS:
        for group in members(view):
            on[:, group] &= (~zero[:, group]).any(axis=1)[:, None]
    np.testing.assert_array_equal(zero, ~on)


def test_davis_yin_agrees():
    p, a = problem(*TABLE), solution(*TABLE)
    b = sj.davis_yin(p, tol=1e-11)
    assert bool(b.converged)
    np.testing.assert_allclose(a.objective, b.objective, rtol=1e-10)
    np.testing.assert_array_equal(np.asarray(a.params) == 0, np.asarray(b.params) == 0)
    again = sj.davis_yin(p, b.params, tol=1e-9)
    assert int(again.num_iters) == 0 and bool(again.converged)


def test_folds_of_a_loss_with_a_graph():
    """Rows held out are judged without the graph."""
    X, Y = data()
    graph = losses.GraphLaplacian(SIMILARITY, 0.03)
    p = sj.Problem(losses.SquaredLoss(X, Y) + graph, penalties.ExclusiveGroupLasso(0.1, VIEWS))
    candidates = jax.vmap(lambda s: penalties.ExclusiveGroupLasso(s, VIEWS))(np.array([0.3, 0.1]))
    folds = sj.cross_validate(p, candidates, folds=2, mode="warm", tol=1e-8)
    out = np.arange(len(X)) % 2 == 0
    W = sj.solve(p.replace(smooth=losses.SquaredLoss(X[~out], Y[~out]) + graph), tol=1e-8).params
    held_out = conic.loss_value(losses.SquaredLoss(X[out], Y[out]), W)
    np.testing.assert_allclose(folds.fold_loss[0, 1], held_out, rtol=1e-5)


def test_strength_zero_has_no_certificate_but_the_residual():
    """A view of strength 0 has an infinite conjugate: the residual decides, as elsewhere."""
    X, Y = data()
    smooth = losses.SquaredLoss(X, Y) + losses.GraphLaplacian(SIMILARITY, 0.1)
    s = sj.solve(sj.Problem(smooth, penalties.ExclusiveGroupLasso(0.0, VIEWS)), tol=1e-8)
    assert np.isnan(s.gap) and bool(s.converged)
    P = (SIMILARITY + SIMILARITY.T) / 2
    system = np.kron(X.T @ X / len(X), np.eye(K)) + 0.1 * np.kron(np.eye(D), np.diag(P.sum(axis=1)) - P)
    W = np.linalg.solve(system, (X.T @ Y / len(X)).ravel()).reshape(D, K)
    np.testing.assert_allclose(s.params, W, atol=1e-6)


# ------------------------------------------------------------------ smoothing


def test_smoothing_error_is_within_its_bound():
    p, best = problem(*TABLE), float(solution(*TABLE).objective)
    at_zero = conic.objective(p, np.zeros((D, K)))
    errors = []
    for mu, continuation in ((1e-1, True), (1e-2, False), (1e-3, True)):
        s = sj.smoothed_apg(p, mu=mu, continuation=continuation, tol=1e-12)
        assert not bool(s.converged) and int(s.status) == STALLED  # solved, as far as the smoothing lets it
        lengths = np.linalg.norm(s.params, axis=1)
        bound = mu / 2 * (np.asarray(p.penalty.strength) @ lengths) * (2**1.5 + 3**1.5)
        errors.append(float(s.objective) - best)
        assert 0 <= errors[-1] <= 1.01 * bound
        assert errors[-1] <= float(s.gap) * at_zero
    assert errors[2] < 0.1 * errors[0]
    assert (np.asarray(s.params) != 0).all()
    polished = sj.smoothed_apg(p, mu=1e-3, polish=True, tol=1e-12)
    assert (np.asarray(polished.params) == 0).any()


def printed(X, Y, P, strength, gamma, sizes, mu, R, steps):
    """Algorithm 1 as the paper prints it, in its layout: labels x features."""
    d = X.shape[1]
    P = (P + P.T) / 2
    L = np.diag(P.sum(axis=1)) - P
    L_mu = d * sum(2**0.5 * R / mu + size**2 for size in sizes)
    W = V = np.zeros((Y.shape[1], d))
    a = 1.0
    for t in range(steps):
        U = (1 - a) * W + a * V
        smooth = np.zeros_like(U)
        for axis in (1, 0):
            T = U.reshape(*sizes, d)
            norms = np.sqrt((T * T).sum(axis=axis, keepdims=True))
            v = T / np.maximum(mu, norms)
            q = ((T * v).sum(axis=axis, keepdims=True) - mu / 2 * (v * v).sum(axis=axis, keepdims=True)).sum(
                axis=1 - axis, keepdims=True
            )
            smooth += (q * v).reshape(U.shape)
        G = -(Y.T - W @ X.T) @ X + strength * smooth + gamma * L @ W
        V = V - G / (a * L_mu)
        W = (1 - a) * W + a * V
        a = 2 / (t + 1)
    return W.T


def test_the_printed_algorithm():
    X, Y = data()
    strength, gamma = 2.0, 0.5
    graph = losses.GraphLaplacian(SIMILARITY, gamma)
    p = sj.Problem(
        losses.SquaredLoss(X, Y, scale=0.5) + graph, penalties.ExclusiveGroupLasso(strength, VIEWS)
    )
    R = np.sqrt(np.sum(Y**2) / 2 / strength)
    s = sj.smoothed_apg(p, mu=1e-2, faithful=True, tol=0.0, maxiter=25)
    best = printed(X, Y, SIMILARITY, strength, gamma, SIZES, 1e-2, R, 25)
    np.testing.assert_allclose(s.params, best, rtol=1e-9)
    # With a constant that forgets the loss, it diverges where the loss is steep.
    steep = p.replace(smooth=losses.SquaredLoss(30 * X, Y, scale=0.5) + graph)
    s = sj.smoothed_apg(steep, mu=1.0, faithful=True, tol=0.0, maxiter=2000)
    assert int(s.status) == NON_FINITE and not bool(s.converged)
    assert bool(sj.smoothed_apg(steep, mu=1e-6, tol=1e-3).converged)


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    "views, message",
    [
        ((), "views is empty"),
        ((groups.from_lists([[0, 1], [1, 2]], 3),), "two groups"),
        ((groups.from_lists([[0, 1]], 3),), "no group"),
        ((groups.from_labels([0, 1]), groups.from_labels([0, 1, 1])), "must agree"),
        (([[0, 1], [2]],), "sparsejax.groups"),
    ],
)
def test_views_must_partition_the_labels(views, message):
    with pytest.raises((TypeError, ValueError), match=message):
        penalties.ExclusiveGroupLasso(1.0, views)


def test_bad_input():
    (X, Y), P, views = data(), SIMILARITY, VIEWS
    loss = losses.SquaredLoss(X, Y)
    penalty = penalties.ExclusiveGroupLasso(0.1, views)
    for bad, message in (
        (P[:3], "square"),
        (-P, ">= 0"),
        (np.where(P > 0.5, np.nan, P), "finite"),
        (P[0], "2-d"),
    ):
        with pytest.raises(ValueError, match=f"similarity.*{message}"):
            losses.GraphLaplacian(bad, 0.1)
    with pytest.raises(ValueError, match="strength must be >= 0"):
        losses.GraphLaplacian(P, -0.1)
    with pytest.raises(ValueError, match="similarity is of 5 labels; Y has 6 columns"):
        _ = loss + losses.GraphLaplacian(P[:5, :5], 0.1)
    with pytest.raises(ValueError, match="no columns"):
        _ = losses.SquaredLoss(X, Y[:, 0]) + losses.GraphLaplacian(P[:1, :1], 0.1)
    with pytest.raises(TypeError, match="unsupported operand"):
        _ = loss + loss
    with pytest.raises(TypeError, match="added to a loss"):
        losses.SumLoss(lambda W: 0.0, (losses.GraphLaplacian(P, 0.1),))
    with pytest.raises(ValueError, match="views are of 6 labels"):
        sj.Problem(losses.SquaredLoss(X, Y[:, :4]), penalty)
    with pytest.raises(ValueError, match="strength has shape"):
        sj.Problem(loss, penalties.ExclusiveGroupLasso(np.ones(3), views))
    with pytest.raises(ValueError, match="strength must be >= 0"):
        penalties.ExclusiveGroupLasso(-1.0, views)
    p = sj.Problem(loss, penalty)
    for mu in (0.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="mu"):
            sj.smoothed_apg(p, mu=mu)
    with pytest.raises(TypeError, match="smoothed_apg needs"):
        sj.smoothed_apg(p.replace(penalty=penalties.L21(0.1)))
    with pytest.raises(TypeError, match="faithful must be"):
        sj.smoothed_apg(p, faithful=1)
    three = penalties.ExclusiveGroupLasso(0.1, (*views, views[0]))
    with pytest.raises(TypeError, match="at most two terms"):
        sj.davis_yin(p.replace(penalty=three))
    with pytest.raises(TypeError, match="irls needs"):
        group = penalties.ExclusiveGroupL21(0.1, groups.from_lists([[0, 1]], D))
        sj.irls(sj.Problem(loss + losses.GraphLaplacian(P, 0.1), group))
