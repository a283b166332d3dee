"""The estimators at home in scikit-learn: its conventions, and the same numbers as the functions they call.

Least squares and one table size wherever that will do: what costs here is compiling. `check_estimator` is in
test_estimator_checks.py.
"""

import functools
import importlib
import pickle
import signal
import sys
import threading
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import sklearn
from scipy.special import expit
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import SelectFromModel
from sklearn.linear_model import Lasso, MultiTaskLasso
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, PredefinedSplit, TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sparsejax as sj
import sparsejax.sklearn as estimators
from sparsejax import groups, losses, models, penalties
from sparsejax._core import progress
from sparsejax.models import mil, multivariate
from sparsejax.selection import cross_validation
from sparsejax.sklearn import (
    LabelViewsClassifier,
    MILESClassifier,
    MultivariateClassifier,
    OFALassoRegressor,
    SparseClassifier,
    SparseClassifierCV,
    SparseCox,
    SparseRegressor,
    SparseRegressorCV,
    StabilitySelector,
    UncorrelatedGroupClassifier,
)

FLOOR = 1e-15  # a tol below what floats resolve: solvers run to the last digit
RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 8))
Y = X[:, :2] @ RNG.standard_normal((2, 3)) + 0.3 * RNG.standard_normal((60, 3))
CODES = np.digitize(X[:, 0] + 0.3 * X[:, 1], [-0.5, 0.5])
NAMES = np.array(["low", "middle", "top"])[CODES]
RARE = (CODES == 2).astype(int)
FOLDS = np.arange(60) % 4
SQUARED = functools.partial(SparseClassifier, loss="squared")
ALL = [getattr(estimators, name) for name in estimators.__all__]
CLASSIFIERS = [E for E in ALL if hasattr(E, "predict") and E().__sklearn_tags__().classifier_tags]


def certified(model, problem, loss=None):
    """The coefficients solve the core's own problem, by its own certificate."""
    assert 0 <= model.gap_ <= 1e-6
    assert float(sj.duality_gap(problem, model.coef_.T)) <= 1.01e-6
    loss = problem.smooth if loss is None else loss
    np.testing.assert_allclose(model.intercept_, loss.intercept(model.coef_.T), atol=1e-8)


# ------------------------------------------------------------------ the same numbers


def test_a_table_is_the_same_problem():
    """Rows of weight 0 out, equal rows as one, filled up with what has no weight; in an order of its own."""
    from sparsejax.sklearn._tables import gathered  # noqa: PLC0415

    weights = RNG.integers(0, 3, 60).astype(float)
    table = gathered(X.repeat(2, axis=0), Y.repeat(2, axis=0), weights.repeat(2))
    assert table.X.shape == (128, 32) and np.isclose(table.weights.mean(), 1)
    there = table.weights > 0
    assert there.sum() == (weights > 0).sum() and not table.X[:, 8:].any()
    expected = (X * weights[:, None]).T @ Y / weights.sum()
    np.testing.assert_allclose((table.X * table.weights[:, None]).T[:8] @ table.Y / 128, expected)
    other = gathered(X[::-1], Y[::-1], 2 * weights[::-1])
    for mine, its in zip(table, other, strict=True):
        np.testing.assert_array_equal(mine, its)
    folds = gathered(X, Y, weights, folds=FOLDS).folds[there]
    assert np.bincount(folds).tolist() == np.bincount(FOLDS[weights > 0]).tolist()
    # of much data, at most an eighth more rows
    many = np.arange(1000.0)[:, None]
    assert gathered(many, many, np.ones(1000)).X.shape == (1024, 1)


@pytest.mark.float32_only_ok
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_dtype_of_the_data_is_the_dtype_of_the_work(dtype):
    """float64 is float64 whether or not JAX's 64-bit numbers are on, and leaves that as it is."""
    before = jnp.zeros(()).dtype
    model = SparseRegressor(alpha=0.1).fit(X.astype(dtype), Y)
    assert jnp.zeros(()).dtype == before
    assert model.coef_.dtype == model.intercept_.dtype == model.predict(X.astype(dtype)).dtype == dtype
    assert model.gap_ <= (1e-6 if dtype == np.float64 else 1e-4) and model.n_iter_ >= 1
    reference = MultiTaskLasso(alpha=0.1, tol=1e-10).fit(X, Y)
    np.testing.assert_allclose(model.coef_, reference.coef_, atol=1e-3)


def test_lasso_with_weights():
    weights = RNG.uniform(0, 2, 60)
    ours = SparseRegressor("l1", alpha=0.05, tol=FLOOR).fit(X, Y[:, 0], weights)
    theirs = Lasso(alpha=0.05, tol=1e-12).fit(X, Y[:, 0], weights)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-9)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_)
    assert ours.coef_.shape == (8,) and np.shape(ours.intercept_) == ()
    assert ours.predict(X).shape == (60,)


def test_exclusive_l21_is_the_model():
    ours = SQUARED(alpha=0.02, beta=0.03).fit(X, NAMES)
    loss = losses.SquaredLoss(X, NAMES[:, None] == ours.classes_, intercept=True)
    certified(ours, sj.Problem(loss, penalties.ExclusiveL21(0.02, 0.03)))
    np.testing.assert_array_equal(ours.predict(X), ours.classes_[ours.decision_function(X).argmax(axis=1)])
    assert ours.score(X, NAMES) > 0.8 and not hasattr(ours, "predict_proba")


@pytest.mark.parametrize("loss", ["softmax", "logistic"])
def test_two_classes_are_the_second_minus_the_first(loss):
    y = np.where(CODES > 0, "yes", "no")
    model = SparseClassifier("l21", loss=loss).fit(X, y)
    assert model.coef_.shape == (1, 8) and model.intercept_.shape == (1,)
    scores, p = model.decision_function(X), model.predict_proba(X)
    assert scores.shape == (60,) and p.shape == (60, 2)
    np.testing.assert_allclose(np.log(p[:, 1] / p[:, 0]), scores)
    np.testing.assert_array_equal(model.predict(X) == "yes", scores > 0)
    # the loss falls at least as far as certified: no better intercept
    np.testing.assert_allclose(p[:, 1].mean(), (y == "yes").mean(), atol=1e-4)


def test_grid_search_is_cross_validate():
    """GridSearchCV of the bare estimator over the same folds and scoring; SparseRegressorCV too."""
    alphas = np.array([0.3, 0.1, 0.03])
    grid = {"alpha": alphas}
    search = GridSearchCV(
        SparseRegressor(tol=FLOOR), grid, cv=PredefinedSplit(FOLDS), scoring="r2", refit=False
    )
    theirs = search.fit(X, Y).cv_results_
    theirs = np.stack([theirs[f"split{k}_test_score"] for k in range(4)])
    problem = sj.Problem(losses.SquaredLoss(X, Y, intercept=True), penalties.L21(0.0))
    ours = sj.cross_validate(
        problem, jax.vmap(penalties.L21)(alphas), folds=FOLDS, scoring="r2", tol=FLOOR
    ).score
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-8)
    model = SparseRegressorCV(alphas=alphas, cv=PredefinedSplit(FOLDS), scoring="r2", tol=FLOOR).fit(X, Y)
    np.testing.assert_allclose(model.scores_[:, :, 0], ours, rtol=0, atol=1e-8)
    assert model.alpha_ == alphas[theirs.mean(axis=0).argmax()]
    best = SparseRegressor(alpha=model.alpha_, tol=FLOOR).fit(X, Y)
    np.testing.assert_allclose(model.coef_, best.coef_, atol=1e-9)


def test_grid_search_of_a_classifier_is_cross_validate():
    alphas, betas = np.array([0.2, 0.05]), np.array([0.1, 0.01])
    grid = {"alpha": alphas, "beta": betas}
    search = GridSearchCV(SQUARED(tol=FLOOR), grid, cv=PredefinedSplit(FOLDS), refit=False).fit(X, NAMES)
    theirs = np.stack([search.cv_results_[f"split{k}_test_score"] for k in range(4)]).reshape(4, 2, 2)
    folds = PredefinedSplit(FOLDS)
    options = {"alphas": alphas, "betas": betas, "scoring": "accuracy", "tol": FLOOR}
    model = SparseClassifierCV(loss="squared", cv=folds, **options).fit(X, NAMES)
    np.testing.assert_allclose(model.scores_, theirs, rtol=0, atol=1e-8)
    assert model.cross_validation_.score.shape == (4, 2, 2)
    assert (model.alphas_[0], model.betas_[0]) == (0.2, 0.1) and model.predict(X[:1]).dtype == NAMES.dtype


def test_penalty_objects_and_losses_of_ones_own():
    """Strengths of their own in SparseRegressor, multiplied by alphas in SparseRegressorCV."""
    penalty = penalties.L1(0.05) + penalties.NonNegative()
    model = SparseRegressor(penalty).fit(X, Y[:, 0])
    assert (model.coef_ >= 0).all() and model.gap_ <= 1e-6
    same = clone(model).fit(X, Y[:, 0])
    np.testing.assert_array_equal(same.coef_, model.coef_)
    twice = functools.partial(losses.SquaredLoss, scale=1 / 128)  # the rows of the table
    model = SparseRegressor(loss=twice, alpha=0.2).fit(X, Y)
    np.testing.assert_allclose(model.coef_, SparseRegressor(alpha=0.1).fit(X, Y).coef_, atol=1e-3)
    with pytest.raises(TypeError, match="loss must make a"):
        SparseRegressor(loss=lambda X, Y, **options: jnp.sum).fit(X, Y)
    options = {"cv": PredefinedSplit(FOLDS), "scoring": "r2", "tol": FLOOR}
    by_name = SparseRegressorCV(alphas=[0.3, 0.1, 0.03], **options).fit(X, Y)
    by_object = SparseRegressorCV(penalties.L21(0.5), alphas=[0.6, 0.2, 0.06], **options).fit(X, Y)
    np.testing.assert_allclose(by_name.scores_, by_object.scores_, atol=1e-9)
    np.testing.assert_allclose(by_object.alpha_, 2 * by_name.alpha_)
    # a number of alphas: from the least factor of the sum that leaves no feature
    known = penalties.L1(2.0) + penalties.NonNegative()
    model = SparseRegressorCV(known, alphas=3, **options).fit(X, Y[:, 0])
    loss = losses.SquaredLoss(X, Y[:, :1], intercept=True)
    np.testing.assert_allclose(model.alphas_[0], sj.lambda_max(sj.Problem(loss, known)), rtol=1e-6)
    assert (model.coef_ >= 0).all() and model.coef_.any()


def test_strengths_by_feature():
    """Of a table that is wider than the data."""
    alpha = np.linspace(0.01, 0.5, 8)
    model = SparseRegressor(alpha=alpha).fit(X, Y)
    certified(model, sj.Problem(losses.SquaredLoss(X, Y, intercept=True), penalties.L21(alpha)))


def test_sparse_data():
    """The same problem, in any order of the rows; a row of weight 2 is two; folds of one form."""
    from sparsejax.sklearn._tables import gathered  # noqa: PLC0415

    Z = np.where(np.abs(X) > 0.5, X, 0)
    few = scipy.sparse.coo_array(Z)
    assert isinstance(gathered(few, Y, np.ones(60)).X, np.ndarray)
    narrow = SparseRegressor(alpha=0.1).fit(few, Y)
    Z = np.pad(Z, ((0, 0), (0, 600)))
    stored = scipy.sparse.coo_array(Z)
    assert scipy.sparse.issparse(gathered(stored, Y, np.ones(60)).X)
    model = SparseRegressor(alpha=0.1).fit(stored, Y)
    np.testing.assert_allclose(narrow.coef_, model.coef_[:, :8], atol=1e-4)
    certified(model, sj.Problem(losses.SquaredLoss(Z, Y, intercept=True), penalties.L21(0.1)))
    np.testing.assert_allclose(model.predict(stored), Z @ model.coef_.T + model.intercept_)
    twice = np.r_[np.arange(60)[::-1], 3]
    again = SparseRegressor(alpha=0.1).fit(stored.tocsr()[twice], Y[twice])
    weighted = SparseRegressor(alpha=0.1).fit(stored, Y, 1.0 + (np.arange(60) == 3))
    np.testing.assert_allclose(again.coef_, weighted.coef_, rtol=1e-12)
    size = np.count_nonzero(Z, axis=1)
    folds = [stored.tocsr()[rows] for rows in (np.arange(60) != i for i in (size.argmin(), size.argmax()))]
    tables = [gathered(part, Y[:59], np.ones(59)) for part in folds]
    assert folds[0].nnz != folds[1].nnz
    one, other = ([a.shape for a in jax.tree.leaves(losses.SquaredLoss(t.X, t.Y))] for t in tables)
    assert one == other  # so that they share their programs
    with pytest.raises(TypeError, match="Sparse data was passed"):
        UncorrelatedGroupClassifier().fit(stored, CODES)


def test_poisson_predicts_rates():
    y = RNG.poisson(np.exp(X[:, 0]))
    model = SparseRegressor("l1", loss="poisson").fit(X, y)
    np.testing.assert_allclose(model.predict(X), np.exp(X @ model.coef_ + model.intercept_))
    np.testing.assert_allclose(model.predict(X).mean(), y.mean(), rtol=1e-3)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


# ------------------------------------------------------------------ the papers' models


def correlated_data():
    rng = np.random.default_rng(0)  # of its own: the same data whichever tests ran before
    Z = np.concatenate([X[:, :4], X[:, :2] + 0.05 * rng.standard_normal((60, 2))], axis=1)
    return Z, (Z[:, :3] + 0.5 * rng.standard_normal((60, 3)) > 0.2).astype(int)


def test_uncorrelated_groups():
    Z, labels = correlated_data()
    model = UncorrelatedGroupClassifier(alpha=1.0, loss="squared").fit(Z, labels)
    assert model.groups_.tolist() == [[0, 4], [1, 5], [2], [3]]
    gone = ~model.coef_.any(axis=0)
    assert gone[[0, 4]].sum() == 1 and gone[[1, 5]].sum() == 1
    assert model.predict(Z).shape == (60, 3) and model.classes_.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(model.predict(Z), model.decision_function(Z) > 0)
    given = [[0, 4], [1, 5]]
    ours = UncorrelatedGroupClassifier(given, alpha=1.0, loss="squared").fit(Z, labels)
    loss, penalty = losses.SquaredLoss(Z, labels, intercept=True), penalties.ExclusiveGroupL21
    ours.intercept_ += 0.5  # a score is positive where a label is predicted
    certified(ours, sj.Problem(loss, penalty(1.0, groups.from_lists(given, 6))))
    assert clone(ours).get_params()["groups"] == given


def test_a_label_that_all_rows_have():
    """As folds of rare labels have it: no fit, a constant prediction. A constant column is no error."""
    Z, labels = correlated_data()
    labels[:, 1], Z[:, 3] = 1, 7
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = UncorrelatedGroupClassifier().fit(Z, labels)
    assert not model.coef_[1].any() and model.predict_proba(Z)[:, 1].min() == 1
    assert (model.predict(Z)[:, 1] == 1).all() and (model.predict(Z) == labels).mean() > 0.8
    with pytest.raises(ValueError, match="every column of y has one class only"):
        UncorrelatedGroupClassifier().fit(Z, labels[:, [1, 1]])


def test_label_views():
    y = np.stack([np.where(X[:, 0] > 0, "a", "b"), NAMES], axis=1)
    ours = LabelViewsClassifier(alpha=0.02, beta=0.05).fit(X, y)
    codes = [(column[:, None] == np.unique(column)).astype(float) for column in y.T]
    loss = losses.SquaredLoss(X, models.multi_semantic.enrich(*codes), intercept=True)
    graph = losses.GraphLaplacian(sj.graphs.from_views(2, 3), 0.05)
    penalty = penalties.ExclusiveGroupLasso(0.02, groups.label_views(2, 3))
    certified(ours, sj.Problem(loss + graph, penalty), loss)
    scores = (X @ ours.coef_.T + ours.intercept_).reshape(60, 2, 3)
    np.testing.assert_array_equal(ours.scores(X), scores)
    for mine, axis in zip(ours.marginals(X), (2, 1), strict=True):
        np.testing.assert_array_equal(mine, scores.sum(axis=axis))
    assert [view.tolist() for view in ours.classes_] == [["a", "b"], ["low", "middle", "top"]]
    assert ours.predict(X).shape == (60, 2) and ours.score(X, y) > 0.5
    flat = LabelViewsClassifier().fit(X, y[:, 0])
    assert flat.coef_.shape == (1, 8) and flat.predict(X).shape == (60,)
    np.testing.assert_allclose(flat.scores(X).sum(axis=1), 1)
    assert flat.score(X, y[:, 0]) > 0.9


def test_ofa_lasso():
    ours = OFALassoRegressor(alpha=0.01, beta=0.02).fit(X, Y)
    core = models.ofa_lasso.fit(X, Y, lam=0.01 * 120, beta=0.02 * 120)
    np.testing.assert_allclose(ours.dual_coef_, core.u, atol=1e-10)
    np.testing.assert_allclose(ours.output_coef_, core.v, atol=1e-10)
    np.testing.assert_allclose(ours.predict(X), core.predict(np.resize(X, (128, 8)))[:60], atol=1e-9)
    assert ours.gap_ <= 1e-6 and not hasattr(ours, "coef_")
    again = pickle.loads(pickle.dumps(ours))
    np.testing.assert_array_equal(again.predict(X), ours.predict(X))


def test_ofa_lasso_of_one_output():
    """A lasso in kernels, and with linear inputs the lasso."""
    y = np.sin(2 * X[:, 0])
    model = OFALassoRegressor(alpha=0.001).fit(X, y)
    assert model.dual_coef_.shape == (60,) and model.predict(X).shape == (60,)
    K = sj.kernels.gaussian(X, bandwidth=sj.kernels.median_bandwidth(X))
    np.testing.assert_allclose(model.predict(X), K @ model.dual_coef_ + model.intercept_, atol=1e-10)
    assert model.score(X, y) > 0.5
    linear = OFALassoRegressor(alpha=0.05, input="linear", tol=FLOOR).fit(X, Y[:, 0])
    np.testing.assert_allclose(linear.coef_, Lasso(alpha=0.05, tol=1e-12).fit(X, Y[:, 0]).coef_, atol=1e-9)
    model.set_params(input="linear").fit(X, y)  # leaves nothing of the fit with kernels
    assert model.coef_.shape == (8,) and not hasattr(model, "dual_coef_")


def test_multivariate():
    y = X[:, 3] + 0.5 * X[:, 1] > 1.2
    model = MultivariateClassifier(budget=2).fit(X, y)
    with_ones = np.append(X, np.ones((60, 1)), axis=1)
    core = multivariate.fit(with_ones, 2 * y - 1, measure=multivariate.f_beta(), budget=3, C=10.0)
    np.testing.assert_array_equal(model.coef_[0], core.w[:8])
    assert model.gap_ == core.gap and model.score(X, y) > 0.9
    best = multivariate.tune_threshold(multivariate.f_beta(), core.decision_function(with_ones), 2 * y - 1)
    np.testing.assert_array_equal(model.predict(X), core.predict(with_ones, best) > 0)
    matrix = scipy.sparse.csr_array(X)
    sparse = MultivariateClassifier(budget=2).fit(matrix, y)
    np.testing.assert_allclose(sparse.coef_, model.coef_, atol=1e-6)
    np.testing.assert_array_equal(sparse.predict(matrix), model.predict(X))
    for measure in ("roc_area", "hamming", "prbep", multivariate.precision_at(5)):
        assert MultivariateClassifier(measure).fit(X, y).score(X, y) > 0.8
    several = MultivariateClassifier().fit(X, NAMES)
    assert several.coef_.shape == (3, 8) and several.score(X, NAMES) > 0.7


def test_bags_by_metadata_routing():
    """Rows of a bag stay together, and have one prediction."""
    bags = np.array([f"b{i:02d}" for i in RNG.permutation(60) // 3])
    Z = X[:, :2].copy()
    positive = np.isin(bags, np.unique(bags)[:10])
    first = np.array([np.flatnonzero(bags == name)[0] for name in np.unique(bags)[:10]])
    Z[first] += 4  # one instance of each positive bag
    model = MILESClassifier().fit(Z, positive, bag_ids=bags)
    assert model.score(Z, positive, bag_ids=bags) == 1
    wrong = positive ^ (bags == "b00")
    later = ~np.isin(np.arange(60), np.unique(bags, return_index=True)[1])  # not the first row of its bag
    assert model.score(Z, wrong, bag_ids=bags) == 0.95
    assert model.score(Z, wrong, sample_weight=1 + (bags == "b00"), bag_ids=bags) == 1 - 2 / 21
    np.testing.assert_allclose(model.score(Z, wrong, sample_weight=later.astype(float), bag_ids=bags), 0.95)
    scores = pd.Series(model.decision_function(Z, bag_ids=bags))
    assert (scores.groupby(bags).nunique() == 1).all()
    S = mil.embed(Z, np.unique(bags, return_inverse=True)[1], model.prototypes_, model.bandwidth_)
    by_bag = np.asarray(S @ model.prototype_weights_[0] + model.intercept_[0])
    np.testing.assert_allclose(scores.groupby(bags).first(), by_bag, atol=1e-6)
    with sklearn.config_context(enable_metadata_routing=True):
        requests = {f"set_{method}_request": {"bag_ids": True} for method in ("fit", "predict", "score")}
        routed = MILESClassifier()
        for method, request in requests.items():
            getattr(routed, method)(**request)
        # A pipeline passes on what `score` asks for from scikit-learn 1.8 on.
        pipes = tuple(map(int, sklearn.__version__.split(".")[:2])) >= (1, 8)
        model = make_pipeline(StandardScaler(), routed) if pipes else routed
        search = GridSearchCV(model, {"milesclassifier__C" if pipes else "C": [1.0]}, cv=2)
        search.set_params(cv=GroupKFold(2)).fit(Z, positive, bag_ids=bags, groups=bags)
        assert search.best_score_ > 0.7
    with pytest.raises(ValueError, match="another label than others of its bag"):
        MILESClassifier().fit(Z, np.arange(60) % 2, bag_ids=bags)
    with pytest.raises(ValueError, match=r"bag_ids must have shape \(60,\)"):
        MILESClassifier().fit(Z, positive, bag_ids=bags[:5])


@pytest.mark.float32_only_ok
def test_stability_selector():
    """In threads of its own, which know nothing of what is switched on here."""
    y = X[:, 0] - X[:, 1] + 0.3 * RNG.standard_normal(60)
    selector = StabilitySelector(alphas=[0.5, 0.3], threshold=0.9, random_state=0).fit(X, y)
    assert selector.get_support(indices=True).tolist() == [0, 1]
    seed = int(np.random.RandomState(0).randint(np.iinfo(np.int32).max))
    with jax.enable_x64(True):
        core = sj.stability_selection(
            sj.Problem(losses.SquaredLoss(X, y[:, None], intercept=True), penalties.L21(0.0)),
            jax.vmap(penalties.L21)(np.array([0.5, 0.3])),
            threshold=0.9,
            seed=seed,
        )
    np.testing.assert_array_equal(selector.frequencies_, core.frequencies)
    assert selector.bound_ == float(core.bound) and selector.gap_ == np.asarray(core.gap).max()
    few = StabilitySelector(alphas=[0.1, 0.05], loss="logistic", num_subsamples=10).fit(X, NAMES)
    assert few.get_support()[0] and few.frequencies_.shape == (2, 8)


# ------------------------------------------------------------------ its conventions


def test_frames():
    """Names are kept, results are frames, and columns in the wrong order are an error."""
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(8)])
    model = SparseRegressor(alpha=0.1).fit(frame, pd.DataFrame(Y))
    assert model.feature_names_in_.tolist() == frame.columns.tolist() and model.n_features_in_ == 8
    other = pl.DataFrame(X, schema=frame.columns.tolist())
    np.testing.assert_array_equal(model.predict(frame), model.predict(other))
    for wrong in (frame[frame.columns[::-1]], other[:, ::-1]):
        with pytest.raises(ValueError, match="same order"):
            model.predict(wrong)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame.rename(columns={"x0": "z"}))
    with pytest.raises(ValueError, match="7 features, but SparseRegressor is expecting 8"):
        SparseRegressor(alpha=0.1).fit(X, Y).predict(X[:, :7])
    kept = np.flatnonzero(model.coef_.any(axis=0))
    assert 0 < len(kept) < 8
    for output, of in (("pandas", pd), ("polars", pl)):
        selector = SelectFromModel(SparseRegressor(alpha=0.1), threshold=1e-12)
        pipeline = make_pipeline(StandardScaler(), selector).set_output(transform=output)
        chosen = pipeline.fit_transform(frame, Y)
        assert isinstance(chosen, of.DataFrame) and set(chosen.columns) <= set(frame.columns)
        stable = StabilitySelector(alphas=[0.5, 0.3], threshold=0.9).set_output(transform=output)
        assert list(stable.fit_transform(frame, X[:, 0] - X[:, 1]).columns) == ["x0", "x1"]


def test_pipelines_and_searches():
    data, classes = load_wine(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), SQUARED())
    search = GridSearchCV(pipeline, {"sparseclassifier__alpha": [1.0, 0.03]}, cv=3).fit(data, classes)
    assert search.best_params_ == {"sparseclassifier__alpha": 0.03} and search.best_score_ > 0.95
    scores = search.predict(data)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(search)).predict(data), scores)


@pytest.mark.parametrize("Estimator", ALL)
def test_every_estimator(Estimator):
    """Made without arguments, shown on a line, refused before it is fitted, and NaN by name."""
    model = Estimator()
    assert repr(model) == f"{Estimator.__name__}()" and Estimator.__name__ in estimators.__all__
    with pytest.raises(NotFittedError, match=f"This {Estimator.__name__} instance is not fitted yet"):
        (model.transform if Estimator is StabilitySelector else model.predict)(X)
    missing = X.copy()
    missing[3, 1] = np.nan
    with pytest.raises(ValueError, match="Input X contains NaN"):
        model.fit(missing, CODES)
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples: \[60, 59\]"):
        model.fit(X, CODES[:59])


@pytest.mark.parametrize("Estimator", CLASSIFIERS)
def test_one_class(Estimator):
    with pytest.raises(ValueError, match=r"y has one class only, \['low'\]"):
        Estimator().fit(X, np.full(60, "low"))
    with pytest.raises(ValueError, match="Unknown label type"):
        Estimator().fit(X, Y[:, 0])


def test_a_class_that_was_not_seen():
    """Is wrong, no error; and a class of weight 0 is none."""
    model = SQUARED("l21").fit(X, NAMES, CODES < 2)
    assert model.classes_.tolist() == ["low", "middle"] and model.coef_.shape == (1, 8)
    assert model.score(X, NAMES) < 1 - (CODES == 2).mean() + 1e-12
    with pytest.raises(ValueError, match="one class only"):
        SQUARED("l21").fit(X, NAMES, CODES < 1)


def test_labels_of_minus_one_stay_minus_one():
    signs = np.where(X[:, :2] > 0, 1, -1)
    model = UncorrelatedGroupClassifier().fit(X, signs)
    assert set(np.unique(model.predict(X))) == {-1, 1}
    assert model.score(X, signs) == UncorrelatedGroupClassifier().fit(X, signs > 0).score(X, signs > 0)


def test_views_of_numbers_and_of_text():
    views = pd.DataFrame({"a": np.where(X[:, 0] > 0, 1, 2), "b": np.where(X[:, 1] > 0, "h", "s")})
    model = LabelViewsClassifier().fit(X, views)
    predicted = model.predict(X)
    assert {type(x) for x in predicted[:, 0]} == {int} and {type(x) for x in predicted[:, 1]} == {str}
    assert model.score(X, views) == (predicted == views.to_numpy()).all(axis=1).mean() > 0.5


BAD = {
    "penalty class": (lambda: SparseRegressor(penalties.L1).fit(X, Y), "penalty must be one of"),
    "loss": (lambda: SparseRegressor(loss="softmax").fit(X, Y), "loss must be one of 'squared'"),
    "alpha of views": (
        lambda: LabelViewsClassifier(alpha=np.ones(3)).fit(X, CODES),
        r"alpha has shape \(3,\); it must be a number or one a feature, \(8,\)",
    ),
    "weight 0 of a class": (
        lambda: SparseClassifier(class_weight={"a": 0}).fit(X, np.array(["a", "b"])[CODES // 2]),
        "class_weight of 'a' is 0",
    ),
    "loss of labels": (lambda: SparseClassifier(loss="huber").fit(X, CODES), "loss must be one of 'softmax'"),
    "alpha": (lambda: SparseRegressor(alpha=-1.0).fit(X, Y), "alpha must be >= 0, got -1"),
    "beta": (lambda: SparseClassifier(beta=np.nan).fit(X, CODES), "beta has 1 value"),
    "alpha by feature": (lambda: SparseRegressor(alpha=np.ones(40)).fit(X, Y), "alpha has shape"),
    "fit_intercept": (
        lambda: SparseRegressor(fit_intercept="no").fit(X, Y),
        "intercept must be True or False",
    ),
    "tol": (lambda: SparseRegressor(tol=-1.0).fit(X, Y), "tol"),
    "max_iter": (lambda: SparseRegressor(max_iter=2.5).fit(X, Y), "max_iter must be an integer"),
    "weights": (lambda: SparseRegressor().fit(X, Y, -np.ones(60)), "sample_weight must be >= 0, got -1"),
    "no weights": (lambda: SparseRegressor().fit(X, Y, np.zeros(60)), "sample_weight holds zeros only"),
    "few weights": (
        lambda: SparseRegressor().fit(X, Y, np.ones(6)),
        r"sample_weight must have shape \(60,\)",
    ),
    "NaN weights": (lambda: SparseRegressor().fit(X, Y, np.full(60, np.nan)), "sample_weight has a value"),
    "alphas": (lambda: SparseRegressorCV(alphas=[-1.0]).fit(X, Y), "alphas must be one or several"),
    "no alphas": (lambda: SparseRegressorCV(alphas=[]).fit(X, Y), "alphas must be one or several"),
    "one alpha": (lambda: SparseRegressorCV(alphas=1).fit(X, Y), "alphas must be a number of strengths >= 2"),
    "betas": (lambda: SparseClassifierCV(betas="a").fit(X, CODES), "betas must be one or several"),
    "cv in part": (
        lambda: SparseRegressorCV(cv=TimeSeriesSplit(3)).fit(X, Y),
        "cv: split 0 must have each row",
    ),
    "cv not all": (lambda: SparseRegressorCV(cv=[next(KFold().split(X))]).fit(X, Y), "row 12 out 0 times"),
    "scoring": (lambda: SparseRegressorCV(scoring="mse").fit(X, Y), "scoring"),
    "no lambda_max": (
        lambda: SparseRegressorCV(penalties.SquaredL2(1.0), cv=FOLD_LIST).fit(X, Y),
        "no finite strength",
    ),
    "threshold": (lambda: UncorrelatedGroupClassifier(threshold=2.0).fit(X, CODES), "threshold must be in"),
    "group loss": (lambda: UncorrelatedGroupClassifier(loss="softmax").fit(X, CODES), "loss must be one of"),
    "groups": (lambda: UncorrelatedGroupClassifier([[0, 8]]).fit(X, CODES), "group 0 has index 8"),
    "labels": (lambda: UncorrelatedGroupClassifier().fit(X, 1 + (X > 0)), "must hold 0 and 1, or -1 and 1"),
    "one view": (lambda: LabelViewsClassifier().fit(X, np.c_[CODES, np.ones(60)]), "one class only"),
    "measure": (lambda: MultivariateClassifier("auc").fit(X, CODES), "measure must be one of 'f1'"),
    "budget": (lambda: MultivariateClassifier(budget=0).fit(X, CODES), "budget"),
    "C": (lambda: MultivariateClassifier(C=-1.0).fit(X, CODES), "C"),
    "bandwidth": (lambda: MILESClassifier(bandwidth=-1.0).fit(X, CODES), "bandwidth must be > 0"),
    "kernel": (lambda: OFALassoRegressor(kernel="rbf").fit(X, Y), "kernel must be one of"),
    "kernel of one": (lambda: OFALassoRegressor(kernel="rbf").fit(X, Y[:, 0]), "kernel must be one of"),
    "degree": (lambda: OFALassoRegressor(degree=0).fit(X, Y), "degree must be an integer >= 1"),
    "degree of one": (lambda: OFALassoRegressor(degree=0).fit(X, Y[:, 0]), "degree must be an integer >= 1"),
    "stability loss": (lambda: StabilitySelector(loss="cox").fit(X, CODES), "loss must be one of"),
    "subsamples": (lambda: StabilitySelector(num_subsamples=3).fit(X, CODES), "num_subsamples must be even"),
}
FOLD_LIST = list(KFold(3).split(X))
MASKED = np.ma.masked_greater(X, 1.0)
MASKED_Y = np.ma.masked_greater(CODES, 0)
BAD |= {
    "masked X": (lambda: SparseRegressor().fit(MASKED, Y), "X is a masked array"),
    "masked X of predict": (lambda: SparseRegressor().fit(X, Y).predict(MASKED), "X is a masked array"),
    "masked y": (lambda: SparseClassifier().fit(X, MASKED_Y), "y is a masked array"),
    "masked y of Cox": (
        lambda: SparseCox().fit(X, np.ma.masked_less(1 + X[:, 0] ** 2, 1.1)),
        "y is a masked",
    ),
    "masked strata": (lambda: SparseCox().fit(X, 1 + X[:, 0] ** 2, strata=MASKED_Y), "strata is a masked"),
    "masked weights": (lambda: SparseRegressor().fit(X, Y, MASKED[:, 0] ** 2), "sample_weight is a masked"),
    "missing bags": (
        lambda: MILESClassifier().fit(X, CODES > 0, bag_ids=np.full(60, np.nan)),
        "bag_ids has a NaN or None among its labels",
    ),
    "no bags where fit had some": (
        lambda: MILESClassifier().fit(X, CODES > 0, bag_ids=np.arange(60)).predict(X),
        "bag_ids is missing, but fit had it",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case):
    fit, message = BAD[case]
    with pytest.raises((ValueError, TypeError), match=message):
        fit()


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "sparsejax.sklearn")
    with pytest.raises(ModuleNotFoundError, match=r'"sparsejax\[sklearn\]"\): pip install scikit-learn'):
        importlib.import_module("sparsejax.sklearn")


@pytest.mark.parametrize("model", [SparseRegressorCV(), SparseClassifierCV("l21", loss="squared")])
def test_ctrl_c(model, monkeypatch):
    """It ends the fit after the chunk that runs on each core; no work goes on."""
    ended = []
    learn = progress._Pace.learn

    def pressed(self, *args):
        ended.append(args)
        if len(ended) == 2:
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # the main one sleeps on
        if len(ended) >= 2:
            time.sleep(0.05)  # all 50 solves may take less time than the main thread needs to see the signal
        learn(self, *args)

    monkeypatch.setattr(progress._Pace, "learn", pressed)
    monkeypatch.setattr(progress, "CHUNK_SECONDS", 0.0)
    monkeypatch.setattr(cross_validation, "MIN_LONG_WORK", 0)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, CODES)
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler
    time.sleep(0.2)
    assert len(ended) < 25  # of 5 x 10 solves, each a chunk of its own; a few end before the handler runs


@pytest.mark.parametrize("Estimator", [SparseClassifier, LabelViewsClassifier])
def test_labels_that_are_missing(Estimator):
    y = np.array(["a", "b", None] * 20, object)
    with pytest.raises(ValueError, match="NaN or None among its labels"):
        Estimator().fit(np.arange(60.0)[:, None], y)


def test_the_exclusive_part_and_no_intercept():
    model = SparseRegressor("exclusive_l21", alpha=0.02, beta=0.03).fit(X, Y)
    loss = losses.SquaredLoss(X, Y, intercept=True)
    certified(model, sj.Problem(loss, penalties.ExclusiveL21(0.02, 0.03)))
    options = {"alphas": [0.3, 0.02], "betas": [0.5, 0.03], "cv": PredefinedSplit(FOLDS)}
    chosen = SparseRegressorCV("exclusive_l21", **options).fit(X, Y)
    assert chosen.scores_.shape == (4, 2, 2) and (chosen.alpha_, chosen.beta_) == (0.02, 0.03)
    through = SparseRegressor("l1", alpha=0.05, fit_intercept=False, tol=FLOOR).fit(X + 1, Y[:, 0])
    theirs = Lasso(alpha=0.05, fit_intercept=False, tol=1e-12).fit(X + 1, Y[:, 0])
    np.testing.assert_allclose(through.coef_, theirs.coef_, atol=1e-9)
    assert through.intercept_ == 0
    y = X[:, 0] - X[:, 1]
    few = StabilitySelector(alphas=[0.5, 0.3], fraction=0.3, num_subsamples=5).fit(X, y)
    assert set(np.unique(np.round(5 * few.frequencies_, 9))) <= set(range(6))


DAYS = np.datetime64("2020-01-01") + np.arange(40).astype("m8[D]")


@pytest.mark.parametrize("kind", [np.asarray, pd.Series, list, lambda days: pd.Series(days - days[0])])
def test_dates_are_no_numbers(kind):
    """numpy would convert them to numbers of days or nanoseconds."""
    X, y = np.random.default_rng(0).standard_normal((40, 2)), kind(DAYS)
    for model in SparseRegressor(), OFALassoRegressor(), StabilitySelector():
        with pytest.raises(TypeError, match=r"y has dtype .*; real numbers are needed"):
            model.fit(X, y)


def test_columns_of_dates_are_no_numbers():
    y = np.arange(40.0)
    with pytest.raises(TypeError, match=r"X has dtype .* in column 'day'; real numbers are needed"):
        SparseRegressor().fit(pd.DataFrame({"day": DAYS}), y)


@pytest.mark.parametrize("make", [SparseClassifier, MultivariateClassifier, MILESClassifier])
def test_lists_of_labels_are_not_turned_into_texts(make):
    """numpy would make the labels "nan" and "1" of NaN and 1 beside a text."""
    with pytest.raises(ValueError, match="NaN or None among its labels"):
        make().fit(X, ["a", "b", np.nan] * 20)
    with pytest.raises(TypeError, match="y must hold labels of one kind"):
        make().fit(X, ["a", 1, "1"] * 20)


def test_label_views_in_lists_have_no_missing_labels():
    with pytest.raises(ValueError, match="NaN or None among its labels"):
        LabelViewsClassifier().fit(X, [["a", "u"], ["b", np.nan], ["a", "v"]] * 20)
    model = MILESClassifier().fit(X, NAMES)
    with pytest.raises(ValueError, match="NaN or None among its labels"):
        model.score(X, ["low", np.nan, "top"] * 20)


def test_bag_ids_in_lists_are_not_turned_into_texts():
    y = np.arange(4) % 2
    for ids in (["a", "b", "c", np.nan], pd.array(["a", "b", "c", pd.NA], dtype="string")):
        with pytest.raises(ValueError, match="bag_ids has a NaN or None among its labels"):
            MILESClassifier().fit(X[:4], y, bag_ids=ids)
    with pytest.raises(TypeError, match="bag_ids must hold labels of one kind"):
        MILESClassifier().fit(X[:4], y, bag_ids=[1, "2", "1", 2])


@pytest.mark.parametrize("size", [8, 32])
def test_strengths_by_group_need_groups(size):
    """32 is the width of the padded table."""
    with pytest.raises(ValueError, match="alpha must be a number if groups is None"):
        UncorrelatedGroupClassifier(alpha=np.full(size, 0.1), loss="squared").fit(X, RARE)


def test_ofa_lasso_of_one_output_with_columns_far_from_0():
    for dtype, far in ((np.float32, 3000), (np.float64, 1e7)):
        model = OFALassoRegressor(alpha=0.05, input="linear").fit((X + far).astype(dtype), Y[:, 0])
        assert model.gap_ <= (1e-4 if dtype == np.float32 else 1e-6)
        theirs = Lasso(alpha=0.05, tol=1e-12).fit(X, Y[:, 0])
        np.testing.assert_allclose(model.coef_, theirs.coef_, atol=5e-3)
        np.testing.assert_allclose(model.predict((X + far).astype(dtype)), theirs.predict(X), atol=0.05)


def test_small_probabilities_have_digits():
    model = SparseClassifier("l21", loss="logistic", alpha=0.001).fit(X, RARE)
    far = 20 * X[np.abs(model.decision_function(X)).argsort()[:30]]
    scores = model.decision_function(far)
    assert np.abs(scores).max() > 40
    np.testing.assert_allclose(
        model.predict_proba(far), expit(np.stack([-scores, scores], axis=1)), rtol=1e-12
    )
    several = SparseClassifier("l21", loss="logistic", alpha=0.001).fit(X, NAMES)
    several.intercept_ = several.intercept_ - 800.0  # all sigmoids underflow
    found = several.predict_proba(X)
    np.testing.assert_array_equal(several.classes_[found.argmax(axis=1)], several.predict(X))
    np.testing.assert_allclose(found.sum(axis=1), 1)


def test_tolerances_reach_the_solvers():
    y = X[:, 0] + 0.5 * X[:, 1] > 0.3
    for make in (MultivariateClassifier, MILESClassifier):
        loose, tight = make(tol=0.5).fit(X, y), make(tol=1e-7).fit(X, y)
        assert tight.gap_ <= 1e-7 and 1e-3 < loose.gap_ <= 0.5 and loose.n_iter_ < tight.n_iter_
        with pytest.warns(sj.ConvergenceWarning, match="maxiter"):
            assert make(max_iter=1, tol=1e-7).fit(X, y).n_iter_ == 1


def test_stability_selector_with_an_exclusive_part():
    options = {"num_subsamples": 10, "tol": 1e-8}
    ours = StabilitySelector("exclusive_l21", alphas=[0.3, 0.1], beta=0.05, **options).fit(X, Y)
    assert ours.gap_ <= 1e-8
    seed = int(np.random.RandomState(0).randint(np.iinfo(np.int32).max))
    with jax.enable_x64(True):
        grid = jax.vmap(lambda alpha: penalties.ExclusiveL21(alpha, 0.05))(np.array([0.3, 0.1]))
        problem = sj.Problem(losses.SquaredLoss(X, Y, intercept=True), penalties.ExclusiveL21(0.0, 0.05))
        core = sj.stability_selection(problem, grid, seed=seed, **options)
    np.testing.assert_array_equal(ours.frequencies_, core.frequencies)
    assert StabilitySelector("l21", alphas=[0.3, 0.1], num_subsamples=10, tol=0.3).fit(X, Y).gap_ > 1e-3


@pytest.mark.parametrize("make", [LabelViewsClassifier, StabilitySelector, OFALassoRegressor])
def test_a_sparse_y_is_refused_by_name(make):
    two = np.c_[CODES > 0, X[:, 0] > 0].astype(float)
    with pytest.raises(TypeError, match=r"y is a sparse csr_array; a dense array is needed: y\.toarray\(\)"):
        make().fit(X, scipy.sparse.csr_array(two))
    if make is LabelViewsClassifier:
        with pytest.raises(TypeError, match="y is a sparse csr_array"):
            make().fit(X, two).score(X, scipy.sparse.csr_array(two))


def test_labels_of_uncorrelated_groups_may_be_sparse():
    two = np.c_[CODES > 0, X[:, 0] > 0].astype(float)
    dense, stored = (UncorrelatedGroupClassifier().fit(X, y) for y in (two, scipy.sparse.csr_array(two)))
    np.testing.assert_array_equal(stored.coef_, dense.coef_)


def test_the_score_of_a_bag_with_two_labels_is_refused():
    bags = np.arange(60) // 3
    model = MILESClassifier().fit(X, bags < 10, bag_ids=bags)
    mixed = (bags < 10) ^ (np.arange(60) % 3 > 0)
    with pytest.raises(ValueError, match="row 1 has another label than others of its bag"):
        model.score(X, mixed, bag_ids=bags)
