"""Linear models: labels in, labels out."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_wine
from sklearn.metrics import accuracy_score, fbeta_score, r2_score, roc_auc_score

from sparsejax import ConvergenceWarning, groups, models

F1 = models.multivariate.f_beta()


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
    shares = np.mean(names[:, None] == np.asarray(model.classes), axis=0)  # an intercept fits the means
    scores = jax.jit(lambda m, X: m.decision_function(X))(model, X)
    np.testing.assert_allclose(scores.mean(0), shares, atol=1e-12)
    paper = models.exclusive_l21.fit(X, names, 0.05 * 356, 0.05 * 356, scale=1.0)  # default: 1/(2n)
    np.testing.assert_allclose(paper.W, model.W, atol=1e-10)
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
    # a matrix of labels in any code; the squared loss alone is fitted to numbers as they are
    for coded in (Y == 1, 2 * Y - 1):
        other = models.uncorrelated_group.fit(X, coded, 0.01, pairs, loss=loss)
        labels = np.asarray(other.predict(X))
        assert set(np.unique(labels)) == set(np.unique(coded))
        assert other.score(X, Y) == other.score(X, coded) == np.mean((labels == coded).all(1)) > 0.4
    np.testing.assert_allclose(other.W, model.W * (2 if loss == "squared" else 1), atol=1e-2)
    with pytest.raises(ValueError, match=r"Y has shape \(80,\); \(80, 3\) is needed"):
        model.score(X, Y[:, 0])
    with pytest.raises(ValueError, match="Y must hold 0 and 1 only; it has 2"):
        model.score(X, 2 * Y)
    if loss == "squared":
        numbers = models.uncorrelated_group.fit(X, X[:, :3] + 0.1, 0.01, pairs, loss=loss)
        assert numbers.classes is None
        expected = r2_score(X[:, :3], numbers.decision_function(X))
        assert numbers.score(X, X[:, :3]) == pytest.approx(expected)


CODES = {
    "0/1": (0, 1),
    "-1/1": (-1, 1),
    "booleans": (False, True),
    "strings": ("no", "yes"),
    "numbers": (1.5, 2.5),
}
SMALL = np.random.default_rng(0).standard_normal((30, 4))
POSITIVE = SMALL[:, 0] + 0.3 * SMALL[:, 1] > 0.1


def fits(y):
    """A model of each kind of one label, and the arguments of its rows."""
    single, g = models.multivariate, groups.from_lists([[0, 1], [2, 3]], 4)
    plane = {"measure": single.f_beta(), "budget": 2, "C": 30.0}
    ids = np.arange(30)
    yield single.fit(SMALL, y, **plane), (SMALL,)
    yield models.mil.fit(SMALL, ids, y, bandwidth=1.0, **plane), (SMALL, ids)
    yield models.uncorrelated_group.fit(SMALL, y, 0.01, g), (SMALL,)
    yield models.exclusive_l21.fit(SMALL, y, 0.01, 0.01), (SMALL,)


@pytest.mark.parametrize("code", CODES)
def test_labels_come_back_as_they_came(code):
    """And in whatever code, the model is the same."""
    y = np.asarray(CODES[code])[POSITIVE.astype(int)]
    for (model, rows), (known, _) in zip(fits(y), fits(np.where(POSITIVE, 1, 0)), strict=True):
        predicted = np.asarray(model.predict(*rows))
        np.testing.assert_array_equal(model.decision_function(*rows), known.decision_function(*rows))
        np.testing.assert_array_equal(predicted, np.asarray(CODES[code])[np.asarray(known.predict(*rows))])
        classes = model.linear.classes if isinstance(model, models.mil.Model) else model.classes
        assert classes == CODES[code]
        if code in ("0/1", "-1/1"):
            assert predicted.dtype == np.int32
        score = model.score(*rows, y)
        assert score == known.score(*rows, np.where(POSITIVE, 1, 0)) > 0.6
        if not isinstance(model, models.multivariate.Model | models.mil.Model):
            assert score == pytest.approx((predicted == y).mean())


def test_scores_of_measures():
    """Each the one that it was fitted for, by scikit-learn."""
    mv, y = models.multivariate, np.where(POSITIVE, 1, 0)
    v, few = SMALL[:, 0] + SMALL[:, 2], np.argsort(-(SMALL[:, 0] + SMALL[:, 2]))[:6]
    p = y.sum()
    for measure, expected in (
        (mv.f_beta(2.0), fbeta_score(y, v > 0, beta=2.0)),
        (mv.hamming(3.0), accuracy_score(y, v > 0)),
        (mv.precision_at(6), y[few].mean()),
        (mv.recall_at(6), y[few].sum() / p),
        (mv.prbep(), y[np.argsort(-v)[:p]].mean()),
        (mv.roc_area(), roc_auc_score(y, v)),
        (mv.contingency(lambda a, b, c, d: b + 2 * c), -np.sum((v > 0) > y) - 2 * np.sum((v > 0) < y)),
    ):
        assert measure.score(v, y == 1) == pytest.approx(expected), measure.name
    model = mv.fit(SMALL, y, measure=mv.recall_at(40 - 20), budget=2, C=30.0)
    assert model.score(SMALL, y) == measure_of(mv.recall_at(20), model, y)
    with pytest.raises(ValueError, match=r"the label 2; the model was fitted to \(0, 1\)"):
        model.score(SMALL, y + 1)
    with pytest.raises(ValueError, match="y has no positive label, which recall_at needs"):
        model.score(SMALL, 0 * y)


def measure_of(measure, model, y):
    return measure.score(model.decision_function(SMALL), y == 1)


def test_labels_inside_jit():
    """Numbers are known there, names are not."""
    fit = lambda y: models.multivariate.fit(SMALL, y, measure=models.multivariate.f_beta(), budget=2, C=30.0)
    predict = jax.jit(lambda model, X: model.predict(X))
    known = fit(np.where(POSITIVE, 7, 3))
    np.testing.assert_array_equal(predict(known, SMALL), known.predict(SMALL))
    with pytest.raises(TypeError, match="labels such as 'yes' are given outside jit only"):
        predict(fit(np.where(POSITIVE, "yes", "no")), SMALL)


def test_a_repr_is_a_line():
    y = np.where(POSITIVE, "yes", "no")
    shown = [repr(model) for model, _ in fits(y)]
    mv = models.multivariate
    shown.append(repr(mv.fit_one_vs_rest(SMALL, y, measure=mv.f_beta(), budget=2, C=30.0)))
    for text in shown:
        assert re.fullmatch(r"\w+\.\w+\(.*kept, gap \d\.\de[-+]\d\d, converged\)", text), text
        assert len(text) <= 110 and "\n" not in text
    model = models.exclusive_l21.fit(SMALL, y, 0.01, 0.01, maxiter=0)
    assert repr(model).endswith("not converged)")
    several = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), model)
    assert repr(several).startswith("exclusive_l21.Model([2] models of 4 features, 2 columns, 0 kept")
    traced = []
    jax.jit(lambda model: traced.append(repr(model)))(model)
    assert traced == ["exclusive_l21.Model(4 features, 2 columns, traced)"]


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


@pytest.mark.parametrize(
    "fit",
    [
        lambda X, Y, y: models.ofa_lasso.fit(X, Y, 1e-3, 1e-3, maxiter=0),
        lambda X, Y, y: models.ofa_lasso.cross_validate(X, Y, [1e-3], [1e-3], maxiter=0),
        lambda X, Y, y: models.multivariate.fit(X, y, measure=F1, budget=2, C=10.0, maxiter=1),
        lambda X, Y, y: models.multivariate.path(X, y, measure=F1, budget=2, C=[1.0, 10.0], maxiter=1),
        lambda X, Y, y: models.multivariate.fit_one_vs_rest(X, y, measure=F1, budget=2, C=9.0, maxiter=1),
        lambda X, Y, y: models.mil.fit(X, np.arange(40), y, measure=F1, budget=2, C=10.0, maxiter=1),
    ],
    ids=["ofa", "ofa folds", "cutting plane", "path", "one against rest", "bags"],
)
def test_a_fit_that_did_not_converge_warns(fit, rng):
    X, Y = rng.standard_normal((40, 6)), rng.standard_normal((40, 2))
    with pytest.warns(ConvergenceWarning, match=r"not converge \(relative duality gap [0-9.]+e") as caught:
        fit(X, Y, np.where(X[:, 0] + Y[:, 0] > 0, 1, -1))
    assert {warning.filename for warning in caught} == {__file__}


def test_squared_loss_of_two_numbers(rng):
    """Fitted as they are, and told apart at their mean."""
    X, pairs = rng.standard_normal((60, 6)), groups.from_labels([0, 0, 1, 1, 2, 2])
    second = X[:, 0] + 0.3 * rng.standard_normal(60) > 0
    signs = models.uncorrelated_group.fit(X, np.where(second, 1, -1), 0.01, pairs, loss="squared")
    for low, high in ((1, 2), (-3.5, 4.0)):
        y = np.where(second, high, low)
        half = (high - low) / 2  # the penalty is a square, as the loss
        model = models.uncorrelated_group.fit(X, y, 0.01, pairs, loss="squared")
        np.testing.assert_allclose(model.W, half * signs.W, atol=1e-5)
        assert model.score(X, y) == signs.score(X, np.where(second, 1, -1)) > 0.7
        assert set(np.asarray(model.predict(X)).tolist()) == {low, high}
    text = models.uncorrelated_group.fit(X, np.where(second, "yes", "no"), 0.01, pairs, loss="squared")
    assert (text.predict(X) == np.where(np.asarray(signs.predict(X)) > 0, "yes", "no")).all()


def test_scores_of_models_are_in_full_precision(monkeypatch):
    X = np.random.default_rng(0).standard_normal((30, 5)).astype(np.float32)
    model = models.exclusive_l21.fit(X, X[:, 0] > 0, 0.01, 0.01)
    bags, options = np.arange(12) // 3, {"measure": models.multivariate.hamming(), "budget": 2, "C": 20.0}
    mil = models.mil.fit(X[:12], bags, [1, -1, 1, -1], bandwidth=1.0, **options)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # on a CPU the context has no effect
    for scores, data in (
        (model.decision_function, X),
        (lambda X: mil.decision_function(X, bags), X[:12]),
        (mil.linear.decision_function, jnp.asarray(X[:12, :1] @ np.ones((1, 12), np.float32))),
    ):
        program = str(jax.make_jaxpr(scores)(data))
        assert program.count("dot_general") == program.count("(Precision.HIGHEST, Precision.HIGHEST)") > 0


def test_labels_of_64_bits():
    assert models._labels.labels_at((-(2**63), 5), [0, 1]).tolist() == [-(2**63), 5]


def test_traced_labels_of_several_classes_are_refused():
    fit = lambda y: models.exclusive_l21.fit(np.eye(4, 3), y, 0.1, 0.1).W
    with pytest.raises(TypeError, match="y is traced"):
        jax.eval_shape(fit, np.arange(4) % 2)


def test_two_numbers_are_labels_as_they_were_given():
    X = np.random.default_rng(0).standard_normal((30, 4)).astype(np.float32)
    y = np.where(X[:, 0] > 0, 0.9, 0.1)
    model = models.uncorrelated_group.fit(X, y, 0.01, groups.from_labels([0, 0, 1, 1]), loss="squared")
    assert model.classes == (0.1, 0.9) and set(model.predict(X)) == {0.1, 0.9} and model.score(X, y) > 0.8


def test_a_sparse_X_is_refused_by_name():
    with pytest.raises(TypeError, match="sparse csr_array; a dense array is needed"):
        models.exclusive_l21.fit(sparse.csr_array(np.eye(4, 3)), np.array([0, 1, 0, 1]), 0.1, 0.1)


def test_signs_under_jit_are_the_labels_that_they_are_outside():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 4))
    Y = np.sign(X[:, :2] + 0.5 * rng.standard_normal((30, 2)))
    pairs = groups.from_labels([0, 0, 1, 1])

    def weights(Y):
        return models.uncorrelated_group.fit(X, Y, 0.05, pairs, loss="squared_hinge", tol=1e-9).W

    np.testing.assert_allclose(jax.jit(weights)(Y), weights(Y), atol=1e-5)


def test_labels_beyond_int64_keep_their_digits():
    y = np.repeat(np.array([1, 2**63 + 1, 2**63 + 5], np.uint64), 5)
    X = 10.0 * np.eye(3)[np.repeat(np.arange(3), 5)]
    model = models.exclusive_l21.fit(X, y, 1e-3, 1e-3)
    assert model.predict(X).tolist() == y.tolist()


@pytest.mark.parametrize("low, high", [(5, 7), (-1, 1), (0, 1), (False, True)])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_numbers_of_dtype_object_are_numbers(loss, low, high):
    X = np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32)
    pairs, y = groups.from_labels([0, 0, 1, 1]), np.where(X[:, 0] + X[:, 1] > 0.3, high, low)
    plain = models.uncorrelated_group.fit(X, y, 0.001, pairs, loss=loss)
    boxed = models.uncorrelated_group.fit(X, y.astype(object), 0.001, pairs, loss=loss)
    np.testing.assert_array_equal(boxed.predict(X), plain.predict(X))
    assert boxed.score(X, y.astype(object)) == plain.score(X, y) > 0.8


@pytest.mark.parametrize("labels", [(-1, 2**63), (1, 2**70), (2**63 - 1, 2**63)])
def test_huge_labels_of_dtype_object(labels):
    X, y = np.tile([[3.0, 0.0], [0.0, 3.0]], (6, 1)), np.array(labels * 6, object)
    pairs = groups.from_labels([0, 1])
    for model in (
        models.exclusive_l21.fit(X, y, 1e-3, 1e-3),
        models.uncorrelated_group.fit(X, y, 1e-3, pairs),
    ):
        assert model.predict(X).tolist() == y.tolist()
