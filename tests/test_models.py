"""Linear models: labels in, labels out."""

import jax
import numpy as np
import pytest
from sklearn.datasets import load_wine

from sparsejax import groups, models


def test_exclusive_l21():
    """Labels in, labels out; the README's entry point to the paper's method."""
    X, y = load_wine(return_X_y=True)
    X = (X - X.mean(0)) / X.std(0)
    names = np.asarray(["barolo", "grignolino", "barbera"])[y]
    model = models.exclusive_l21.fit(X, names, alpha=0.05, beta=0.05)
    assert bool(model.solution.converged)
    assert (model.predict(X) == names).mean() > 0.95
    removed = np.all(np.asarray(model.W) == 0, axis=1)
    assert 0 < removed.sum() < 13
    np.testing.assert_allclose(
        jax.jit(lambda m, X: m.decision_function(X))(model, X).mean(0), 59 / 178, atol=0.2
    )
    assert model.rank_features(3).indices.shape == (3, 3)


@pytest.mark.parametrize("loss", ["logistic", "squared", "huber_hinge"])
def test_uncorrelated_group(loss, rng):
    X = rng.standard_normal((80, 6))
    X = np.concatenate([X, X[:, :2] + 0.05 * rng.standard_normal((80, 2))], axis=1)
    Y = (X[:, :3] + rng.standard_normal((80, 3)) > 0.3).astype(int)
    pairs = groups.from_correlation(X, 0.6)
    assert [0, 6] in pairs.tolist() and [1, 7] in pairs.tolist()
    model = models.uncorrelated_group.fit(X, Y, 10.0, pairs, loss=loss)
    assert bool(model.solution.converged)
    # of two features that say the same, one goes
    gone = (np.asarray(model.W) == 0).all(1)
    assert gone[[0, 6]].sum() == 1 and gone[[1, 7]].sum() == 1
    model = models.uncorrelated_group.fit(X, Y, 0.01, pairs, loss=loss)
    predicted = np.asarray(model.predict(X))
    assert set(np.unique(predicted)) <= {0, 1}
    assert (predicted == Y).mean() > 0.7
    few = model.predict(X, threshold=0.9)
    assert np.asarray(few).sum() < predicted.sum()
    if loss == "logistic":
        np.testing.assert_array_equal(model.predict_proba(X) > 0.5, predicted == 1)
        with pytest.raises(ValueError, match="threshold must be in"):
            model.predict(X, threshold=1.0)
    else:
        with pytest.raises(ValueError, match="predict_proba"):
            model.predict_proba(X)


def test_bad_input_of_uncorrelated_group(rng):
    X, g = rng.standard_normal((20, 7)), groups.from_lists([[0, 3], [1, 2, 6], [4, 5]], 7)
    fit = models.uncorrelated_group.fit
    Y = rng.integers(0, 2, (20, 2))
    with pytest.raises(ValueError, match="loss must be one of"):
        fit(X, Y, 0.1, g, loss="hinge")
    for loss in ("logistic", "squared_hinge"):
        with pytest.raises(ValueError, match="Y must hold 0 and 1"):
            fit(X, 2 * Y + 1, 0.1, g, loss=loss)
    with pytest.raises(ValueError, match="column 1 of Y has one label only"):
        fit(X, Y * [1, 0], 0.1, g)
    with pytest.raises(ValueError, match="3 columns"):
        fit(X, Y, 0.1, g).decision_function(X[:, :3])
