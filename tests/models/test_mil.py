"""Bags: the embedding against its definition, and classifiers of bags."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsejax.models import mil
from sparsejax.models import multivariate as mv
from sparsejax.sklearn import MILESClassifier


def bags(rng, count=40, d=3):
    """A bag is positive iff one of its instances is near (2, ..., 2)."""
    sizes = rng.integers(1, 6, count)
    ids = np.repeat(np.arange(count), sizes)
    X = rng.standard_normal((len(ids), d))
    y = np.where(np.arange(count) % 2, 1, -1)
    for i in np.flatnonzero(y > 0):
        X[np.flatnonzero(ids == i)[0]] = 2 + 0.3 * rng.standard_normal(d)
    return X, ids, y


def definition(X, ids, P, sigma):
    similarity = np.exp(-((X[:, None] - P[None]) ** 2).sum(2) / (2 * sigma**2))
    return np.stack([similarity[ids == i].max(0) for i in range(ids.max() + 1)])


@pytest.mark.parametrize("dtype, atol", [(np.float64, 1e-13), (np.float32, 2e-6)])
def test_embedding_is_its_definition(dtype, atol, rng, monkeypatch):
    monkeypatch.setattr(mil, "BLOCK_PROTOTYPES", 7)  # several blocks, the last one short
    X, ids, _ = bags(rng)
    shuffle = rng.permutation(len(ids))
    X, ids, P = X[shuffle].astype(dtype), ids[shuffle], (X[:17] + 5).astype(dtype)
    S = mil.embed(X, ids, P, 1.3)
    assert S.dtype == dtype and S.shape == (40, 17)
    np.testing.assert_allclose(S, definition(X, ids, P, 1.3), atol=atol)
    assert S.min() >= 0 and S.max() <= 1
    own = mil.embed(X, ids, X[:3], 1.0)  # an instance is at distance 0 of its own bag
    np.testing.assert_allclose(own[ids[:3], np.arange(3)], 1, atol=10 * atol)


def test_no_underflow_in_comparisons(rng):
    """Far from all prototypes every similarity is 0, and nothing is NaN."""
    X, ids, _ = bags(rng)
    S = mil.embed(X, ids, X[:4] + 1e3, 0.1)
    assert not S.any()


def test_embedding_under_transformations(rng):
    X, ids, _ = bags(rng, 6)
    P = jnp.asarray(X[:4])
    f = lambda X, s: mil.embed(X, ids, P, s)
    np.testing.assert_allclose(jax.jit(f)(X, 1.1), f(X, 1.1), atol=1e-14)
    many = jax.vmap(f, in_axes=(None, 0))(jnp.asarray(X), jnp.array([0.5, 1.1]))
    np.testing.assert_allclose(many[1], f(X, 1.1), atol=1e-14)
    g = jax.grad(lambda s: f(jnp.asarray(X), s).sum())(1.1)
    h = 1e-5
    assert float(g) == pytest.approx(float(f(X, 1.1 + h).sum() - f(X, 1.1 - h).sum()) / (2 * h), rel=1e-7)


@pytest.mark.parametrize("bandwidth", [1e-320, 1e-200])
def test_a_bandwidth_whose_square_is_0_tells_equal_from_unequal(bandwidth):
    X = np.array([[0.0, 1.0], [2.0, 3.0]])
    np.testing.assert_array_equal(mil.embed(X, [0, 1], X, bandwidth), np.eye(2))


def test_bandwidth(rng):
    X = rng.standard_normal((400, 50))
    assert mil.median_bandwidth(X) == pytest.approx(np.sqrt(50), rel=0.05)
    many = rng.standard_normal((3000, 50))
    assert mil.median_bandwidth(many) == mil.median_bandwidth(many) != mil.median_bandwidth(many, seed=1)
    i, j = np.triu_indices(5, 1)
    distances = np.linalg.norm(X[:5][i] - X[:5][j], axis=1)
    assert mil.median_bandwidth(X[:5]) == pytest.approx(np.sqrt(np.median(distances**2) / 2))


def test_bags_are_classified(rng):
    X, ids, y = bags(rng)
    new, new_ids, new_y = bags(rng)
    model = mil.fit(X, ids, y, measure=mv.f_beta(), budget=3, C=40.0, bandwidth=1.0, tol=1e-2)
    assert model.linear.converged
    assert (np.asarray(model.predict(X, ids)) == y).mean() >= 0.95
    assert (np.asarray(model.predict(new, new_ids)) == new_y).mean() >= 0.95
    # the scores are those of the full embedding, though only the chosen instances were kept
    S = definition(new, new_ids, X, 1.0)
    np.testing.assert_allclose(model.decision_function(new, new_ids), S @ model.linear.w, atol=1e-10)
    np.testing.assert_array_equal(model.prototypes, X[model.indices])
    assert model.weights.shape == (len(model.linear.selected),) and len(model.indices) < len(X)
    best = model.prototypes[int(np.argmax(model.weights))]
    assert np.linalg.norm(best - 2) < 1.5  # where the positive instances are
    scores = jax.jit(lambda m, X: m.decision_function(X, new_ids))(model, new)
    np.testing.assert_allclose(scores, S @ model.linear.w, atol=1e-10)


def test_float32_and_other_prototypes(rng):
    X, ids, y = bags(rng, 20)
    model = mil.fit(
        X.astype(np.float32), ids, y, measure=mv.hamming(2.0), budget=2, C=20.0, prototypes=X[:9], tol=1e-2
    )
    assert model.decision_function(X.astype(np.float32), ids).dtype == np.float32
    assert model.linear.w.shape == (9,) and float(model.bandwidth) > 0
    zero = mil.fit(X, ids, y, measure=mv.recall_at(20), budget=2, C=1.0)  # w = 0
    assert zero.prototypes.shape == (0, 3)
    np.testing.assert_array_equal(zero.decision_function(X, ids), np.zeros(20))
    np.testing.assert_array_equal(zero.predict(X, ids), -np.ones(20))


def test_musk(shared_data):
    with np.load(shared_data / "musk1.npz") as f:
        X, ids, y = f["X"].astype(float), f["bag"], np.where(f["y"] > 0, 1, -1)
    X = (X - X.mean(0)) / X.std(0)
    train = np.arange(92) % 4 > 0
    inside = train[ids]
    number = np.cumsum(train) - 1
    model = mil.fit(
        X[inside],
        number[ids[inside]],
        y[train],
        measure=mv.hamming(),
        budget=10,
        C=345.0,
        bandwidth=7.0,
        tol=0.05,
    )
    number = np.cumsum(~train) - 1
    assert (np.asarray(model.predict(X[~inside], number[ids[~inside]])) == y[~train]).mean() > 0.7


DATA, IDS, LABELS = np.eye(4, 2), np.array([0, 0, 1, 1]), np.array([1, -1])


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: mil.embed(DATA, [0, 0, 2, 2], DATA, 1.0), ValueError, "bag 1 is empty.*0, ..., 2"),
        (lambda: mil.embed(DATA, [0, 0, -1, 1], DATA, 1.0), ValueError, "bag_ids must be >= 0; there is -1"),
        (lambda: mil.embed(DATA, [0, 1], DATA, 1.0), ValueError, r"bag_ids must have shape \(4,\)"),
        (lambda: mil.embed(DATA, [0.0, 0, 1, 1], DATA, 1.0), TypeError, "bag_ids have dtype float64"),
        (lambda: mil.embed(DATA, IDS, DATA[:, :1], 1.0), ValueError, r"prototypes have shape \(4, 1\)"),
        (lambda: mil.embed(DATA, IDS, DATA, 0.0), ValueError, "bandwidth must be > 0, got 0"),
        (lambda: mil.embed(DATA * np.nan, IDS, DATA, 1.0), ValueError, "instances has 8 value.*NaN"),
        (lambda: jax.jit(lambda i: mil.embed(DATA, i, DATA, 1.0))(IDS), TypeError, "outside jit"),
        (lambda: mil.median_bandwidth(np.ones((5, 2))), ValueError, "median distance of the instances is 0"),
        (lambda: jax.jit(mil.median_bandwidth)(DATA), TypeError, "outside jit"),
        (
            lambda: mil.fit(DATA, IDS, LABELS[:1], measure=mv.f_beta(), budget=1, C=1.0),
            ValueError,
            "y must have",
        ),
        (
            lambda: mil.fit(DATA, IDS, [1, 1], measure=mv.f_beta(), budget=1, C=1.0),
            ValueError,
            "one class only",
        ),
        (lambda: mil.fit(DATA, IDS, LABELS, measure=mv.f_beta(), budget=0, C=1.0), ValueError, "budget"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_model_without_prototypes_knows_its_columns():
    """With k = n there is one labelling, and w = 0."""
    X = np.random.default_rng(0).standard_normal((10, 3))
    model = mil.fit(X, np.arange(10) // 2, [0, 1, 1, 0, 1], measure=mv.recall_at(5), budget=3, C=1.0)
    assert not model.weights.size and model.predict(X, np.arange(10) // 2).tolist() == [0] * 5
    with pytest.raises(ValueError, match="instances have 4 columns; the fit had 3"):
        model.predict(np.zeros((2, 4)), [0, 1])


def test_bag_ids_of_two_kinds():
    with pytest.raises(TypeError, match="bag_ids must hold labels of one kind"):
        MILESClassifier().fit(np.eye(4), [0, 0, 1, 1], bag_ids=np.array(["a", 1, "b", 2], object))


def test_a_median_distance_that_overflows():
    with pytest.raises(ValueError, match="overflow"):
        mil.median_bandwidth(np.array([[0.0], [1e200], [3e200]]))


def test_a_nan_and_the_unit_of_an_embedding(rng):
    """The bag of a NaN instance has NaN; the similarities do not depend on the unit."""
    X, Z, ids = rng.standard_normal((6, 3)), rng.standard_normal((4, 3)), [0, 0, 1, 2, 2, 1]
    known = mil.embed(X, ids, Z, 1.3)
    for unit in (1e-200, 1e200):
        np.testing.assert_allclose(mil.embed(unit * X, ids, unit * Z, 1.3 * unit), known, rtol=1e-12)
    X[1, 2] = np.nan
    S = np.asarray(jax.jit(lambda X: mil.embed(X, ids, Z, 1.3))(X))
    assert np.isnan(S[0]).all() and np.isfinite(S[1:]).all()


def test_a_huge_instance_leaves_other_bags(rng):
    """Its squares overflow; in its own unit the squares of all others would underflow."""
    X, Z = rng.standard_normal((2, 6, 3)).astype(np.float32)
    known = mil.embed(X, [0, 0, 1, 2, 2, 1], Z, 1.0)
    X[0] = 1e20
    found = mil.embed(X, [3, 0, 1, 2, 2, 1], Z, 1.0)
    np.testing.assert_allclose(found[1:3], known[1:], rtol=1e-6)
    assert (found[3] == 0).all()
