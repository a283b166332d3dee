"""The exclusive group lasso over label views, graphs of labels, and their solvers."""

import warnings

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import sparsejax as sj
from sparsejax import groups, losses, penalties

CLARABEL = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12, "tol_ktratio": 1e-10}
SIZES = (2, 3)


def instance(n=14, d=5, sizes=SIZES, seed=0, labels=False):
    """X, Y and a similarity: correlated columns, several labels of a sample, unequal similarities."""
    rng = np.random.default_rng(seed)
    k = int(np.prod(sizes))
    X = rng.standard_normal((n, d)) + 0.5 * rng.standard_normal((n, 1))
    W = rng.standard_normal((d, k)) * (rng.random((d, k)) < 0.5)
    Y = X @ W + 0.3 * rng.standard_normal((n, k))
    P = rng.random((k, k))
    return X, (Y > 0).astype(float) if labels else Y, P


def problem(strength=0.05, gamma=0.03, loss=losses.SquaredLoss, sizes=SIZES, **kwargs):
    X, Y, P = instance(sizes=sizes, labels=loss is losses.LogisticLoss, **kwargs)
    smooth = loss(X, Y) + losses.GraphLaplacian(P, gamma)
    return sj.Problem(smooth, penalties.ExclusiveGroupLasso(strength, groups.label_views(*sizes)))


def members(view):
    return [np.asarray(group) for group in view.tolist()]


def penalty_value(W, strength, views):
    """The formula, group by group."""
    rows = np.broadcast_to(strength, len(W))
    total = 0.0
    for i, row in enumerate(W):
        for view in views:
            total += rows[i] / 2 * sum(np.linalg.norm(row[g]) for g in members(view)) ** 2
    return total


def graph_value(W, P, gamma):
    """The sum over pairs of labels."""
    P = (P + P.T) / 2
    k = len(P)
    return gamma / 2 * sum(P[i, j] * np.sum((W[:, i] - W[:, j]) ** 2) for i in range(k) for j in range(i))


def conic_penalty(W, strength, views):
    d = W.shape[0]
    rows = np.broadcast_to(strength, d)
    return sum(
        rows[i] / 2 * cp.square(sum(cp.norm(W[i, g], 2) for g in members(view)))
        for i in range(d)
        for view in views
    )


def minimise(expression):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says so when it stops short of these tolerances
        cp.Problem(cp.Minimize(expression)).solve("CLARABEL", **CLARABEL)


def conic(loss, X, Y, P, strength, gamma, views, weights=None, intercept=False):
    """The minimiser by Clarabel."""
    n, d = X.shape
    W, b = cp.Variable((d, Y.shape[1])), cp.Variable((1, Y.shape[1]))
    H = X @ W + (np.ones((n, 1)) @ b if intercept else 0)
    weights = np.ones_like(Y) if weights is None else weights
    if loss is losses.SquaredLoss:
        fit = cp.sum(cp.multiply(weights, cp.square(H - Y))) / (2 * n)
    else:
        fit = cp.sum(cp.multiply(weights, cp.logistic(H) - cp.multiply(Y, H))) / n
    S = (P + P.T) / 2
    factor = np.linalg.cholesky(np.diag(S.sum(axis=1)) - S + 1e-13 * np.eye(len(S)))
    smooth = gamma / 2 * cp.sum_squares(W @ factor)
    minimise(fit + smooth + conic_penalty(W, strength, views))
    return W.value


def objective(loss, X, Y, P, strength, gamma, views, W, weights=None, intercept=False):
    """In numpy, but for the best intercept (tested elsewhere)."""
    smooth = loss(X, Y, weights=weights, intercept=intercept)
    H = X @ W + np.asarray(smooth.intercept(jnp.asarray(W)))[None]
    entries = (H - Y) ** 2 / 2 if loss is losses.SquaredLoss else np.logaddexp(0, H) - Y * H
    weights = np.ones_like(Y) if weights is None else weights
    return np.sum(weights * entries) / len(X) + graph_value(W, P, gamma) + penalty_value(W, strength, views)


# ------------------------------------------------------------------ views and values


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


def test_values_are_the_documented_formulas(rng):
    views = groups.label_views(2, 3)
    W, P = rng.standard_normal((4, 6)), rng.random((6, 6))
    W[1] = 0
    rows = np.array([0.3, 1.0, 0.0, 2.0])
    for strength in (0.7, rows):
        value = penalties.ExclusiveGroupLasso(strength, views).value(jnp.asarray(W))
        np.testing.assert_allclose(value, penalty_value(W, strength, views), rtol=1e-14)
    graph = losses.GraphLaplacian(P, 0.4)
    np.testing.assert_allclose(graph(jnp.asarray(W)), graph_value(W, P, 0.4), rtol=1e-13)
    sparse = losses.GraphLaplacian(scipy.sparse.csr_array(P), 0.4)
    np.testing.assert_array_equal(sparse.similarity, graph.similarity)
    X, Y = rng.standard_normal((7, 4)), rng.standard_normal((7, 6))
    loss = losses.SquaredLoss(X, Y, intercept=True)
    for total in (loss + graph + graph, graph + (graph + loss)):
        np.testing.assert_allclose(
            total(jnp.asarray(W)), loss(jnp.asarray(W)) + 2 * graph(jnp.asarray(W)), rtol=1e-13
        )
        np.testing.assert_array_equal(total.intercept(jnp.asarray(W)), loss.intercept(jnp.asarray(W)))


def test_one_view_of_single_labels_is_the_exclusive_lasso(rng):
    V = jnp.asarray(rng.standard_normal((5, 4)))
    ours = penalties.ExclusiveGroupLasso(0.6, groups.from_labels(range(4)))
    theirs = penalties.ExclusiveLasso(0.3)
    np.testing.assert_allclose(ours.value(V), theirs.value(V), rtol=1e-14)
    np.testing.assert_allclose(ours.prox(V, 0.7), theirs.prox(V, 0.7), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(ours.conjugate(V), theirs.conjugate(V), rtol=1e-14)


@pytest.mark.parametrize("views", [groups.label_views(2, 3), (groups.from_labels([0, 1, 1, 0, 0, 2]),)])
def test_prox_against_the_conic_solver(views, rng):
    """Its objective is no higher, and its point, by strong convexity, as near as that allows."""
    V = rng.standard_normal((3, 6)) * np.array([[3.0], [1.0], [0.3]])
    strength, scaling = np.array([0.4, 1.5, 6.0]), 0.7
    ours = np.asarray(penalties.ExclusiveGroupLasso(strength, views).prox(jnp.asarray(V), scaling))
    U = cp.Variable(V.shape)
    fit = cp.sum_squares(U - V) / 2 + scaling * conic_penalty(U, strength, views)
    minimise(fit)
    value = lambda Z: np.sum((Z - V) ** 2) / 2 + scaling * penalty_value(Z, strength, views)
    assert value(ours) <= value(U.value) + 1e-13
    np.testing.assert_allclose(ours, U.value, atol=3e-6)
    assert (ours == 0).any()


# ------------------------------------------------------------------ solutions

CASES = [
    (losses.SquaredLoss, {}, {}),
    (losses.SquaredLoss, {"n": 6, "d": 9}, {}),  # Woodbury
    (losses.SquaredLoss, {"sizes": (2, 2, 2)}, {"intercept": True}),  # three views
    (losses.LogisticLoss, {}, {"intercept": True}),
    (losses.LogisticLoss, {"n": 6, "d": 9}, {}),
]


@pytest.mark.parametrize("loss, kwargs, options", CASES)
def test_against_the_conic_solver(loss, kwargs, options):
    """Objective within 1e-8; the gap is no lie and closes."""
    sizes = kwargs.get("sizes", SIZES)
    X, Y, P = instance(labels=loss is losses.LogisticLoss, **kwargs)
    views, gamma = groups.label_views(*sizes), 0.03
    strength = np.linspace(0.03, 0.12, X.shape[1])
    p = sj.Problem(
        loss(X, Y, **options) + losses.GraphLaplacian(P, gamma),
        penalties.ExclusiveGroupLasso(strength, views),
    )
    value = lambda W: objective(loss, X, Y, P, strength, gamma, views, W, **options)
    found = sj.solve(p, tol=1e-12)
    best = min(
        value(conic(loss, X, Y, P, strength, gamma, views, **options)), value(np.asarray(found.params))
    )
    for tol in (1e-6, 1e-9):
        s = sj.solve(p, tol=tol)
        assert bool(s.converged) and float(s.gap) <= tol
        np.testing.assert_allclose(s.objective, value(np.asarray(s.params)), rtol=1e-12)
        excess = float(s.objective) - best
        assert excess <= float(s.gap) * max(float(s.objective), float(p(jnp.zeros_like(s.params)))) + 1e-12
    assert excess <= 1e-8 * best
    assert bool(found.converged) and float(found.residual) < 1e-5


def test_entries_that_vanish_are_zero():
    """Groups vanish as wholes, and the zeros are those of the optimum."""
    s = sj.solve(problem(strength=2.0), tol=1e-13)
    W = np.asarray(s.params)
    zero = W == 0
    assert 0.1 < zero.mean() < 0.9
    on = np.ones_like(zero)
    for view in groups.label_views(*SIZES):
        for group in members(view):
            on[:, group] &= (~zero[:, group]).any(axis=1)[:, None]
    np.testing.assert_array_equal(zero, ~on)


def test_weights_by_entry_and_no_graph():
    X, Y, P = instance()
    weights = np.random.default_rng(1).uniform(0.2, 2, Y.shape)
    views = groups.label_views(*SIZES)
    p = sj.Problem(losses.SquaredLoss(X, Y, weights=weights), penalties.ExclusiveGroupLasso(0.1, views))
    value = lambda W: objective(losses.SquaredLoss, X, Y, P, 0.1, 0.0, views, W, weights=weights)
    W = conic(losses.SquaredLoss, X, Y, P, 0.1, 0.0, views, weights=weights)
    s = sj.solve(p, tol=1e-11)
    assert bool(s.converged)
    assert float(s.objective) <= value(W) * (1 + 1e-8)


@pytest.mark.parametrize("penalty", [penalties.L21(0.2), penalties.ExclusiveL21(0.05, 0.05)])
@pytest.mark.parametrize("loss", [losses.SquaredLoss, losses.LogisticLoss])
def test_graphs_with_other_penalties(loss, penalty):
    """Any penalty, by two solvers; the gap with a norm needs the conjugate of the graph."""
    X, Y, P = instance(labels=loss is losses.LogisticLoss)
    p = sj.Problem(loss(X, Y) + losses.GraphLaplacian(P, 0.1), penalty)
    a, b = sj.admm(p, tol=1e-11), sj.fista(p, tol=1e-11)
    assert bool(a.converged) and bool(b.converged)
    np.testing.assert_allclose(a.objective, b.objective, rtol=1e-10)
    rough = sj.fista(p, tol=0.1)
    scale = max(float(rough.objective), float(p(jnp.zeros_like(a.params))))
    assert float(rough.objective - a.objective) <= float(rough.gap) * scale
    top = sj.lambda_max(p.replace(penalty=penalties.L21(1.0)))
    at_top = sj.solve(p.replace(penalty=penalties.L21(top)))
    assert int(at_top.num_iters) == 0 and bool(at_top.converged) and not at_top.params.any()


def test_the_gap_bounds_every_point(rng):
    p = problem()
    best = float(sj.solve(p, tol=1e-13).objective)
    top = float(p(jnp.zeros((5, 6))))
    for size in (0.0, 0.01, 1.0):
        W = jnp.asarray(size * rng.standard_normal((5, 6)))
        assert float(sj.duality_gap(p, W)) * max(float(p(W)), top) >= float(p(W)) - best
    found = sj.solve(p, tol=1e-13).params
    assert float(sj.duality_gap(p, found)) < 1e-11


@pytest.mark.parametrize("n, d", [(6, 9)])  # n > d: in the table of all solvers
def test_davis_yin_agrees(n, d):
    p = problem(n=n, d=d)
    a, b = sj.admm(p, tol=1e-11), sj.davis_yin(p, tol=1e-11)
    assert bool(b.converged)
    np.testing.assert_allclose(a.objective, b.objective, rtol=1e-10)
    np.testing.assert_array_equal(a.params == 0, b.params == 0)
    again = sj.davis_yin(p, b.params, tol=1e-9)
    assert int(again.num_iters) == 0 and bool(again.converged)


def test_davis_yin_on_one_term_is_proximal_gradient():
    X, Y, _ = instance()
    p = sj.Problem(losses.SquaredLoss(X, Y), penalties.L21(0.3))
    s = sj.davis_yin(p, tol=1e-9)
    assert bool(s.converged)
    np.testing.assert_allclose(s.objective, sj.admm(p, tol=1e-11).objective, rtol=1e-8)


# ------------------------------------------------------------------ smoothing


def test_smoothing_error_is_within_its_bound():
    p = problem(strength=0.3)
    best = float(sj.solve(p, tol=1e-13).objective)
    errors = []
    for mu, continuation in ((1e-1, True), (1e-2, False), (1e-3, True)):
        s = sj.smoothed_apg(p, mu=mu, continuation=continuation, tol=1e-12)
        assert not bool(s.converged) and int(s.status) == 3  # solved, as far as the smoothing lets it
        bound = mu / 2 * 0.3 * np.linalg.norm(s.params, axis=1).sum() * (2**1.5 + 3**1.5)
        errors.append(float(s.objective) - best)
        assert 0 <= errors[-1] <= 1.01 * bound
        assert errors[-1] <= float(s.gap) * float(p(jnp.zeros_like(s.params)))
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
    X, Y, P = instance()
    views, strength, gamma = groups.label_views(*SIZES), 2.0, 0.5
    smooth = losses.SquaredLoss(X, Y, scale=0.5) + losses.GraphLaplacian(P, gamma)
    p = sj.Problem(smooth, penalties.ExclusiveGroupLasso(strength, views))
    R = np.sqrt(np.sum(Y**2) / 2 / strength)
    s = sj.smoothed_apg(p, mu=1e-2, faithful=True, tol=0.0, maxiter=25)
    best = printed(X, Y, P, strength, gamma, SIZES, 1e-2, R, 25)
    W = np.asarray(s.params)
    np.testing.assert_allclose(W, best, rtol=1e-9)
    # With a constant that forgets the loss, it diverges where the loss is steep.
    steep = sj.Problem(losses.SquaredLoss(30 * X, Y, scale=0.5) + losses.GraphLaplacian(P, gamma), p.penalty)
    s = sj.smoothed_apg(steep, mu=1.0, faithful=True, tol=0.0, maxiter=2000)
    assert int(s.status) == 2 and not bool(s.converged)
    assert bool(sj.smoothed_apg(steep, mu=1e-6, tol=1e-3).converged)


# ------------------------------------------------------------------ derivatives, paths, folds


def test_derivatives_in_everything(rng):
    """Of the solution in strengths, similarity and data, against central differences."""
    p = problem(strength=0.2)
    direction = jax.tree.map(
        lambda leaf: rng.standard_normal(leaf.shape) if jnp.issubdtype(leaf.dtype, jnp.floating) else None, p
    )
    c = rng.standard_normal((5, 6))

    def along(t):
        strength = p.penalty.strength + t * direction.penalty.strength * 0.1
        data, graph = p.smooth.loss, p.smooth.graphs[0]
        shift = jax.tree.map(lambda x: t * x, direction.smooth)
        smooth = losses.SquaredLoss(data.X + shift.loss.X, data.Y + shift.loss.Y) + losses.GraphLaplacian(
            graph.similarity + 0.1 * shift.graphs[0].similarity,
            graph.strength + 0.01 * shift.graphs[0].strength,
        )
        s = sj.solve(sj.Problem(smooth, penalties.ExclusiveGroupLasso(strength, p.penalty.views)), tol=1e-13)
        return jnp.sum(jnp.asarray(c) * s.params)

    h = 1e-5
    expected = (along(h) - along(-h)) / (2 * h)
    np.testing.assert_allclose(jax.grad(along)(0.0), expected, rtol=1e-5)


def test_derivative_of_the_joint_prox(rng):
    views = groups.label_views(2, 3)
    V, dV, c = (jnp.asarray(rng.standard_normal((4, 6))) for _ in range(3))

    def value(t):
        U = penalties.ExclusiveGroupLasso(0.5 + t, views).prox(V + t * dV, 0.8 + 2 * t)
        return jnp.sum(c * U)

    h = 1e-6
    expected = (value(h) - value(-h)) / (2 * h)
    np.testing.assert_allclose(jax.grad(value)(0.0), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.jvp(value, (0.0,), (1.0,))[1], expected, rtol=1e-6)


def test_folds_of_a_loss_with_a_graph():
    """Rows held out are judged without the graph."""
    p = problem()
    views = p.penalty.views
    strengths = jnp.asarray([0.3, 0.1])
    candidates = jax.vmap(lambda s: penalties.ExclusiveGroupLasso(s, views))(strengths)
    folds = sj.cross_validate(p, candidates, folds=2, mode="warm", tol=1e-8)
    data, graph = p.smooth.loss, p.smooth.graphs[0]
    out = np.arange(14) % 2 == 0
    train = losses.SquaredLoss(data.X[~out], data.Y[~out]) + graph
    W = sj.solve(p.replace(smooth=train, penalty=penalties.ExclusiveGroupLasso(0.1, views)), tol=1e-8).params
    held_out = losses.SquaredLoss(data.X[out], data.Y[out])(W)
    np.testing.assert_allclose(folds.fold_loss[0, 1], held_out, rtol=1e-5)


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
    X, Y, P = instance()
    views = groups.label_views(*SIZES)
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
    with pytest.raises(TypeError):
        _ = loss + loss
    with pytest.raises(TypeError, match="added to a loss"):
        losses.SumLoss(lambda W: 0.0, (losses.GraphLaplacian(P, 0.1),))
    with pytest.raises(ValueError, match="views are of 6 labels"):
        sj.Problem(losses.SquaredLoss(X, Y[:, :4]), penalty)
    with pytest.raises(ValueError, match="strength has shape"):
        sj.Problem(loss, penalties.ExclusiveGroupLasso(np.ones(3), views))
    with pytest.raises(ValueError, match="strength must be >= 0"):
        penalties.ExclusiveGroupLasso(-1.0, views)
    with pytest.raises(ValueError, match="no finite strength"):
        sj.lambda_max(sj.Problem(loss, penalty))
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
        group = penalties.ExclusiveGroupL21(0.1, groups.from_lists([[0, 1]], 5))
        sj.irls(sj.Problem(loss + losses.GraphLaplacian(P, 0.1), group))


def test_strength_zero_has_no_certificate_but_the_residual():
    """A view of strength 0 has an infinite conjugate: the residual decides, as elsewhere."""
    X, Y, P = instance()
    views = groups.label_views(*SIZES)
    smooth = losses.SquaredLoss(X, Y) + losses.GraphLaplacian(P, 0.1)
    s = sj.solve(sj.Problem(smooth, penalties.ExclusiveGroupLasso(0.0, views)), tol=1e-8)
    assert np.isnan(s.gap) and bool(s.converged)
    L = np.diag(((P + P.T) / 2).sum(axis=1)) - (P + P.T) / 2
    system = np.kron(X.T @ X / len(X), np.eye(6)) + 0.1 * np.kron(np.eye(5), L)
    W = np.linalg.solve(system, (X.T @ Y / len(X)).ravel()).reshape(5, 6)
    np.testing.assert_allclose(s.params, W, atol=1e-6)
