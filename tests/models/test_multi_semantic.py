"""Pairs of labels of two views: the fit against Clarabel, the columns' order, and pairs that nobody has."""

import conic
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsejax as sj
from sparsejax.graphs import from_views, ngd_similarity
from sparsejax.losses import GraphLaplacian
from sparsejax.metrics import auc
from sparsejax.models import multi_semantic
from sparsejax.models.multi_semantic import enrich, fit

N, D, L1, L2 = 40, 6, 2, 3


def data(seed=0, n=N):
    """Several labels of a view in some rows, none in others; row 0 has none at all, row 1 has all."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, D))
    Y1 = X[:, :L1] + 0.5 * rng.standard_normal((n, L1)) > 0.3
    Y2 = X[:, 2 : 2 + L2] + 0.5 * rng.standard_normal((n, L2)) > 0.3
    Y1[0], Y2[0], Y1[1], Y2[1] = False, False, True, True
    return X, Y1.astype(float), Y2.astype(float)


def pairs(Y1, Y2):
    return np.stack([np.kron(a, b) for a, b in zip(Y1, Y2, strict=True)])


def similarity(seed=0):
    return np.abs(np.random.default_rng(seed).standard_normal((L1 * L2, L1 * L2)))


@pytest.mark.parametrize("gamma", [0.0, 0.05])
def test_fit_is_the_optimum_of_the_paper(gamma):
    """Eq. (5), with an intercept, by the conic solver."""
    X, Y1, Y2 = data()
    graph = GraphLaplacian(similarity(), gamma) if gamma else None
    model = fit(X, Y1, Y2, 1.0, graph, tol=1e-11)
    smooth = sj.losses.SquaredLoss(X, pairs(Y1, Y2), intercept=True)
    views = sj.groups.label_views(L1, L2)
    penalty = sj.penalties.ExclusiveGroupLasso(1.0, views)
    best = conic.minimise(sj.Problem(smooth + graph if gamma else smooth, penalty))
    assert bool(model.solution.converged) and model.sizes == (L1, L2)
    np.testing.assert_allclose(model.solution.objective, best.objective, rtol=1e-8)
    np.testing.assert_allclose(model.W, best.params, atol=1e-5)
    np.testing.assert_allclose(model.intercept, best.intercept, atol=1e-5)
    zero = np.asarray(model.W) == 0
    assert 0 < zero.sum() < zero.size
    assert (np.abs(best.params[zero]) < 1e-5).all()


def test_scores_of_pairs_and_views():
    X, Y1, Y2 = data()
    model = fit(X, Y1, Y2, 0.1)
    new = data(1, n=7)[0]
    scores = new @ np.asarray(model.W) + np.asarray(model.intercept)
    np.testing.assert_allclose(model.decision_function(new), scores, rtol=1e-13)
    cube = np.asarray(model.predict(new))
    assert cube.shape == (7, L1, L2)
    for i in range(L1):
        for j in range(L2):
            np.testing.assert_allclose(cube[:, i, j], scores[:, i * L2 + j], rtol=1e-13)
    view1, view2 = model.marginals(new)
    np.testing.assert_allclose(view1, sum(cube[:, :, j] for j in range(L2)), rtol=1e-12)
    np.testing.assert_allclose(view2, sum(cube[:, i] for i in range(L1)), rtol=1e-12)
    np.testing.assert_array_equal(jax.jit(lambda model, new: model.predict(new))(model, new), cube)
    area = np.nanmean(np.asarray(auc(enrich(Y1, Y2), model.decision_function(X))))
    assert model.score(X, 2 * Y1 - 1, Y2 > 0) == pytest.approx(area)  # in any code
    other = fit(X, 2 * Y1 - 1, Y2 > 0, 0.1)
    assert repr(other) == repr(model) and repr(model).startswith(
        "multi_semantic.Model(6 features, 6 columns, 6 kept"
    )
    with pytest.raises(ValueError, match=r"have \(2, 2\) columns; the model was fitted with \(2, 3\)"):
        model.score(X, Y1, Y2[:, :2])


def test_marginals_of_views_with_one_label_a_row():
    """They are the scores of the views' own regressions: least squares is linear in the targets."""
    rng = np.random.default_rng(0)
    X, y1, y2 = rng.standard_normal((N, D)), rng.integers(L1, size=N), rng.integers(L2, size=N)
    Y1, Y2 = np.eye(L1)[y1], np.eye(L2)[y2]
    # No strength: least squares, and so the exact answer by `lstsq`.
    model = fit(X, Y1, Y2, 0.0, tol=1e-12)
    A = np.hstack([X, np.ones((N, 1))])
    for scores, Y in zip(model.marginals(X), (Y1, Y2), strict=True):
        np.testing.assert_allclose(scores, A @ np.linalg.lstsq(A, Y, rcond=None)[0], atol=1e-8)


def test_a_pair_that_nobody_has():
    """Without a graph its weights are zero; with one it is found by what its neighbours share with it."""
    held = 1 * L2 + 2
    X, Y1, Y2 = data(2, n=4 * N)
    seen = np.flatnonzero(pairs(Y1, Y2)[:, held] == 0)[:N]
    X, Y1, Y2 = X[seen], Y1[seen], Y2[seen]
    unseen = fit(X, Y1, Y2, 0.01)
    np.testing.assert_array_equal(np.asarray(unseen.W)[:, held], 0)

    new, labels1, labels2 = data(3, n=2000)
    label = pairs(labels1, labels2)[:, held]
    area = lambda model: float(auc(label, model.decision_function(new)[:, held]))
    assert area(unseen) == 0.5
    # Neighbours that share a label say more than all pairs alike, which is all that counts of zero can tell.
    for P, least in ((from_views(L1, L2), 0.7), (ngd_similarity(enrich(Y1, Y2)), 0.6)):
        assert area(fit(X, Y1, Y2, 0.01, GraphLaplacian(P, 0.03))) > least


def test_enrich_is_the_kronecker_product_of_rows():
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((5, 3)), rng.standard_normal((5, 4))
    np.testing.assert_array_equal(enrich(A, B), pairs(A, B))
    assert enrich(A.astype(np.float32), B).dtype == np.float32
    assert enrich(A > 0, B).dtype == jnp.result_type(float)


def test_fit_under_jit_in_float32():
    X, Y1, Y2 = data(3)  # where no two scores of a column, whose ranks are compared, are nearly equal
    graph = GraphLaplacian(similarity(), 0.05)
    model = fit(X, Y1, Y2, 1.0, graph)
    single = jax.jit(fit)(X.astype(np.float32), Y1 > 0, Y2.astype(int), 1.0, graph, scale=0.5 / N)
    assert single.W.dtype == single.predict(X).dtype == np.float32 and bool(single.solution.converged)
    np.testing.assert_allclose(single.W, model.W, atol=2e-3)
    assert np.array_equal(single.rank_features(2).indices, model.rank_features(2).indices)


# ------------------------------------------------------------------ bad input

X, Y1, Y2 = data()
P = similarity()

BAD = {
    "Y1 2": (lambda: fit(X, 2 * Y1, Y2, 0.1), ValueError, "Y1 must hold 0 and 1 only; it has 2"),
    "Y2 -1 and 0": (lambda: fit(X, Y1, -Y2, 0.1), ValueError, "Y2 must hold 0 and 1 only; it has -1"),
    "Y2 NaN": (lambda: fit(X, Y1, np.nan * Y2, 0.1), ValueError, "Y2 has 120 .*NaN"),
    "Y1 rows": (lambda: fit(X, Y1[:9], Y2, 0.1), ValueError, r"Y1 must have 40 rows.*got shape \(9, 2\)"),
    "Y2 rows": (lambda: fit(X, Y1, Y2[:9], 0.1), ValueError, r"Y2 must have 40 rows.*got shape \(9, 3\)"),
    "Y2 vector": (lambda: fit(X, Y1, Y2[:, 0], 0.1), ValueError, r"Y2 has shape \(40,\); it must be 2-d"),
    "Y1 ragged": (lambda: fit(X, [[1, 0], [1]], Y2, 0.1), ValueError, "Y1 is not a rectangular array"),
    "Y1 empty": (lambda: fit(X, Y1[:, :0], Y2, 0.1), ValueError, "Y1 must have .* a column a label"),
    "names": (lambda: fit(X, [["cat"]] * N, Y2, 0.1), TypeError, "Y1 has dtype <U3"),
    "X": (lambda: fit(X * np.inf, Y1, Y2, 0.1), ValueError, "X has 240 .*infinite"),
    "strength": (lambda: fit(X, Y1, Y2, -0.1), ValueError, "strength must be >= 0, got -0.1"),
    "a matrix": (
        lambda: fit(X, Y1, Y2, 0.1, P),
        TypeError,
        "graph must be a losses.GraphLaplacian .*ndarray",
    ),
    "graph of one view": (
        lambda: fit(X, Y1, Y2, 0.1, GraphLaplacian(P[:3, :3], 1.0)),
        ValueError,
        "graph is of 3 labels; Y1 and Y2 have 2 and 3, that is 6 pairs",
    ),
    "enrich rows": (lambda: enrich(Y1, Y2[:9]), ValueError, "scores1 has 40 rows and scores2 has 9"),
    "enrich rank": (lambda: enrich(Y1[0], Y2), ValueError, r"scores1 has shape \(2,\)"),
    "columns": (
        lambda: multi_semantic.Model(P, P[0], None, (2, 3)).predict(X[:, :4]),
        ValueError,
        "X has 4 columns; the model was fitted with 6",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, kind, message = BAD[name]
    with np.errstate(invalid="ignore"), pytest.raises(kind, match=message):
        call()


def test_a_sum_keeps_what_the_model_of_its_loss_knows():
    loss = sj.losses.SquaredLoss(np.eye(4, 3), np.eye(4, 2))
    model = (loss + sj.losses.GraphLaplacian(np.ones((2, 2)), 2.0)).quadratic_model()
    assert float(model.trace()) == float(loss.quadratic_model().trace())
