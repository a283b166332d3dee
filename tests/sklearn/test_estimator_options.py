"""Options of the estimators: weights of classes and entries, missing targets, groups, scorers.

Each option is compared with scikit-learn, with repeated rows, or with the objective that it documents.
"""

import copy
import functools
import pickle
import warnings

import jax
import numpy as np
import pandas as pd
import pytest
import sklearn
from peers import L1_OF_SCIKIT_LEARN
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.linear_model import Lasso, LogisticRegression, QuantileRegressor
from sklearn.metrics import balanced_accuracy_score, make_scorer, mean_poisson_deviance, mean_squared_error
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, PredefinedSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import sparsejax as sj
from sparsejax import groups, losses, penalties
from sparsejax.selection.scoring import score_of
from sparsejax.sklearn import (
    LabelViewsClassifier,
    OFALassoRegressor,
    SparseClassifier,
    SparseClassifierCV,
    SparseCoxCV,
    SparseRegressor,
    SparseRegressorCV,
    StabilitySelector,
    UncorrelatedGroupClassifier,
)

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 8))
Y = X[:, :2] @ RNG.standard_normal((2, 3)) + 0.3 * RNG.standard_normal((60, 3))
RARE = (X[:, 0] + 0.3 * X[:, 1] > 0.8).astype(int)
CV = PredefinedSplit(np.arange(60) % 4)
ALPHAS = [0.1, 0.02]
HOLES = Y.copy()
HOLES[::5, 0] = HOLES[1::3, 2] = np.nan
HOLES[7] = np.nan


def lasso(y, alpha, weights=None):
    seen = ~np.isnan(y)
    weights = None if weights is None else weights[seen]
    return Lasso(alpha=alpha, tol=1e-12).fit(X[seen], y[seen], weights)


# ------------------------------------------------------------------ targets and weights


@pytest.mark.parametrize("unit", [5e-324, 1e308])
def test_the_unit_of_weights_has_no_influence(unit):
    """Their sum may be infinite, or its inverse."""
    alone, weighted = (
        SparseRegressor("l1", alpha=0.05).fit(X, Y[:, 0], w) for w in (None, np.full(60, unit))
    )
    np.testing.assert_array_equal(weighted.coef_, alone.coef_)


def test_missing_targets_are_left_out():
    """Of one output the rows are; of several each column is a lasso of its observed rows."""
    ours = SparseRegressor("l1", alpha=0.05, tol=1e-10).fit(X, HOLES[:, 0])
    np.testing.assert_allclose(ours.coef_, lasso(HOLES[:, 0], 0.05).coef_, atol=1e-8)
    ours = SparseRegressor("l1", alpha=0.05, tol=1e-10).fit(X, pd.DataFrame(HOLES))
    seen = ~np.isnan(HOLES)
    for j in range(3):
        theirs = lasso(HOLES[:, j], 0.05 * seen.sum() / 3 / seen[:, j].sum())
        np.testing.assert_allclose(ours.coef_[j], theirs.coef_, atol=1e-8)
        np.testing.assert_allclose(ours.intercept_[j], theirs.intercept_, atol=1e-8)
    filled = SparseRegressor("l1", alpha=0.05, tol=1e-10).fit(X, np.where(seen, Y, 99), seen.astype(float))
    np.testing.assert_allclose(filled.coef_, ours.coef_, atol=1e-9)
    predicted = ours.predict(X)
    scores = [sklearn.metrics.r2_score(Y[rows, j], predicted[rows, j]) for j, rows in enumerate(seen.T)]
    np.testing.assert_allclose(ours.score(X, HOLES), np.mean(scores), rtol=1e-12)
    with pytest.raises(ValueError, match=r"y has 1 output\(s\), but the fit had 3"):
        ours.score(X, HOLES[:, 0])


def test_weights_by_entry():
    weights = RNG.uniform(0, 2, (60, 3))
    ours = SparseRegressor("l1", alpha=0.05, tol=1e-10).fit(X, Y, weights)
    for j, w in enumerate(weights.T):
        theirs = lasso(Y[:, j], 0.05 * weights.sum() / 3 / w.sum(), w)
        np.testing.assert_allclose(ours.coef_[j], theirs.coef_, atol=1e-8)
    same = SparseRegressor("l1", alpha=0.05).fit(X, Y, np.repeat(weights[:, :1], 3, axis=1))
    by_row = SparseRegressor("l1", alpha=0.05).fit(X, Y, weights[:, 0])
    np.testing.assert_array_equal(same.coef_, by_row.coef_)
    times = RNG.integers(0, 3, (60, 3)).astype(float)
    rows = np.repeat(np.arange(60), 2)
    halves = np.stack([np.ceil(times / 2), np.floor(times / 2)], axis=1).reshape(120, 3)
    once = SparseRegressor("l1", alpha=0.05).fit(X, Y, times)
    twice = SparseRegressor("l1", alpha=0.05).fit(X[rows], Y[rows], halves)
    np.testing.assert_allclose(once.coef_, twice.coef_, atol=1e-12)


def test_cross_validation_with_missing_targets():
    model = SparseRegressorCV("l1", alphas=ALPHAS, cv=CV, scoring="r2", tol=1e-12).fit(X, HOLES)
    grid = {"alpha": ALPHAS}
    search = GridSearchCV(SparseRegressor("l1", tol=1e-12), grid, cv=CV, refit=False).fit(X, HOLES)
    theirs = np.stack([search.cv_results_[f"split{k}_test_score"] for k in range(4)])
    np.testing.assert_allclose(model.scores_[:, :, 0], theirs, atol=1e-7)
    with pytest.raises(ValueError, match="is for whole rows of y"):
        SparseRegressorCV(scoring="neg_mean_squared_error", cv=CV).fit(X, HOLES)


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_class_weights_are_sample_weights(loss):
    make = {"penalty": "l1", "loss": loss, "alpha": 0.05, "tol": 1e-10}
    balanced = {c: 60 / 2 / (c == RARE).sum() for c in (0, 1)}
    ours = SparseClassifier(**make, class_weight="balanced").fit(X, RARE)
    by_hand = SparseClassifier(**make).fit(X, RARE, np.where(RARE, balanced[1], balanced[0]))
    np.testing.assert_allclose(ours.coef_, by_hand.coef_, atol=1e-10)
    by_dict = SparseClassifier(**make, class_weight=balanced).fit(X, RARE)
    np.testing.assert_array_equal(ours.coef_, by_dict.coef_)
    twice = SparseClassifier(**make, class_weight={1: 2}).fit(X, RARE)
    rows = np.r_[np.arange(60), np.flatnonzero(RARE)]
    np.testing.assert_array_equal(twice.coef_, SparseClassifier(**make).fit(X[rows], RARE[rows]).coef_)
    weights = RNG.integers(1, 3, 60).astype(float)
    rows = np.repeat(np.arange(60), weights.astype(int))
    weighted = SparseClassifier(**make, class_weight="balanced").fit(X, RARE, weights)
    repeated = SparseClassifier(**make, class_weight="balanced").fit(X[rows], RARE[rows])
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-10)
    if loss == "logistic":
        saga = LogisticRegression(solver="saga", C=1 / (0.05 * 60), class_weight="balanced")
        theirs = saga.set_params(**L1_OF_SCIKIT_LEARN, tol=1e-12, max_iter=100_000).fit(X, RARE)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-7)


def test_poisson_with_an_offset():
    time = RNG.uniform(0.5, 4, 60)
    counts = RNG.poisson(time * np.exp(X[:, 0] / 2))
    offset = np.log(time)
    model = SparseRegressor(penalties.SquaredL2(0.1), loss="poisson", tol=1e-14)
    model.fit(X, counts, offset=offset)

    def objective(v):
        h = X @ v[:8] + v[8] + offset
        return np.mean(np.exp(h) - counts * h) + 0.05 * v[:8] @ v[:8]

    best = minimize(objective, np.zeros(9), tol=1e-12).x
    np.testing.assert_allclose(np.r_[model.coef_, model.intercept_], best, atol=1e-5)
    rates = np.exp(X @ model.coef_ + model.intercept_)
    np.testing.assert_allclose(model.predict(X), rates)
    np.testing.assert_allclose(model.predict(X, offset=offset), rates * time)
    # a constant only moves the intercept
    moved = clone(model).fit(X, counts, offset=offset + 3)
    np.testing.assert_allclose(moved.coef_, model.coef_, atol=1e-6)
    np.testing.assert_allclose(moved.intercept_, model.intercept_ - 3, atol=1e-6)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X, offset=offset), model.predict(X, offset=offset))
    with sklearn.config_context(enable_metadata_routing=True):
        routed = SparseRegressor("l1", loss="poisson", tol=1e-10)
        routed.set_fit_request(offset=True).set_score_request(offset=True).set_predict_request(offset=True)
        search = GridSearchCV(
            make_pipeline(StandardScaler(), routed), {"sparseregressor__alpha": ALPHAS}, cv=CV
        )
        search.fit(X, counts, offset=offset)
        assert np.isfinite(search.best_score_)
    options = {"alphas": ALPHAS, "cv": CV, "loss": "poisson", "tol": 1e-10}
    chosen = SparseRegressorCV("l1", scoring="neg_mean_poisson_deviance", **options)
    chosen.fit(X, counts, offset=offset)
    rows = np.arange(60) % 4 == 0
    part = SparseRegressor("l1", loss="poisson", alpha=ALPHAS[0], tol=1e-10)
    part.fit(X[~rows], counts[~rows], offset=offset[~rows])
    mean = part.predict(X[rows], offset=offset[rows])
    deviance = sklearn.metrics.mean_poisson_deviance(counts[rows], mean)
    np.testing.assert_allclose(chosen.scores_[0, 0, 0], -deviance, atol=1e-6)


@pytest.mark.parametrize("q", [0.5, 0.9])
def test_quantiles(q):
    """As low as scikit-learn's linear programme, up to what rounding the corner may cost."""
    y = Y[:, 0]

    def objective(model):
        r = y - X @ model.coef_ - model.intercept_
        return np.mean(np.maximum(q * r, (q - 1) * r)) + 0.02 * np.abs(model.coef_).sum()

    ours = SparseRegressor("l1", loss="quantile", quantile=q, alpha=0.02).fit(X, y)
    theirs = QuantileRegressor(quantile=q, alpha=0.02).fit(X, y)
    spread = 0.01 * np.subtract(*np.quantile(y, [0.75, 0.25]))
    assert 0 <= objective(ours) - objective(theirs) + 1e-12 <= spread * max(q, 1 - q) ** 2
    assert ours.gap_ <= 1e-6 and abs(np.mean(y <= ours.predict(X)) - q) < 0.07
    constant = SparseRegressor("l1", loss="quantile", quantile=q).fit(X, np.ones(60))
    assert not constant.coef_.any() and np.isclose(constant.intercept_, 1)


# ------------------------------------------------------------------ groups

TABLE = pd.DataFrame({
    "age": X[:, 0],
    "size": X[:, 1],
    "color": np.array(["r", "g", "b"])[RNG.integers(0, 3, 60)],
})  # fmt: skip
ENCODED = ColumnTransformer([("num", StandardScaler(), ["age", "size"]), ("cat", OneHotEncoder(), ["color"])])
ENCODED.set_output(transform="default")


def test_groups_in_every_form():
    """Indices, names, a prefix, a ColumnTransformer, and the names of its columns."""
    y = TABLE["age"] + 2 * (TABLE["color"] == "r") + 0.1 * Y[:, 0]
    encoder = clone(ENCODED).set_params(cat=OneHotEncoder(sparse_output=False))
    array = encoder.fit_transform(TABLE)
    names = encoder.get_feature_names_out()
    frame = pd.DataFrame(array, columns=names)
    problem_groups = groups.from_lists([[2, 3, 4], [0], [1]], num_features=5)
    loss = losses.SquaredLoss(array, y.to_numpy()[:, None], intercept=True)
    problem = sj.Problem(loss, penalties.GroupLasso(0.2, problem_groups))
    expected = np.asarray(sj.solve(problem, tol=1e-10).params)[:, 0]
    for given in ([[2, 3, 4]], [list(names[2:])], ["cat__color"], "cat__", [["num__age"], "cat__"]):
        model = SparseRegressor("group_lasso", groups=given, alpha=0.2, tol=1e-10).fit(frame, y)
        np.testing.assert_allclose(model.coef_, expected, atol=1e-7)
        assert clone(model).get_params()["groups"] == given
    by_transformer = SparseRegressor("group_lasso", groups=[[0, 1], [2, 3, 4]], alpha=0.2).fit(array, y).coef_
    for data, given in ((frame, encoder), (array, encoder), (array, names), (frame, clone(encoder))):
        model = SparseRegressor("group_lasso", groups=given, alpha=0.2).fit(data, y)
        np.testing.assert_array_equal(model.coef_, by_transformer)
    pipeline = make_pipeline(
        clone(encoder).set_output(transform="pandas"), SparseRegressor("group_lasso", groups=["cat__"])
    )
    search = GridSearchCV(pipeline, {"sparseregressor__alpha": ALPHAS}, cv=CV).fit(TABLE, y)
    assert search.best_score_ > 0.9
    weights = SparseRegressor("group_lasso", groups=[[2, 3, 4]], alpha=[0.2, 0.0, 9.0]).fit(array, y)
    assert weights.coef_[1] == 0 and weights.coef_[0] != 0


def test_groups_of_the_other_estimators():
    given = [[0, 1], [2, 3], [4, 5, 6, 7]]
    for model in (
        SparseRegressorCV("group_lasso", groups=given, alphas=ALPHAS, cv=CV).fit(X, Y),
        SparseClassifier("group_lasso", groups=given, loss="squared", alpha=0.1).fit(X, RARE),
        SparseClassifierCV("group_lasso", groups=given, loss="squared", alphas=ALPHAS, cv=CV).fit(X, RARE),
    ):
        alive = model.coef_.any(axis=0)
        assert alive[0] and alive[0] == alive[1] and alive[2] == alive[3] and len(set(alive[4:])) == 1


# ------------------------------------------------------------------ choosing strengths


def held_out_accuracy(estimator, X, y):
    return balanced_accuracy_score(y, estimator.predict(X))


SCORERS = {
    "balanced_accuracy": "balanced_accuracy",
    "average_precision": "average_precision",
    "neg_log_loss": "neg_log_loss",
    "accuracy": "accuracy",
    "roc_auc": "roc_auc",
    "a function": held_out_accuracy,
    "make_scorer": make_scorer(balanced_accuracy_score, adjusted=True),
}


def assert_as_a_grid_search(X, scoring, **options):
    options = {"loss": "logistic", **options}
    model = SparseClassifierCV("l1", alphas=ALPHAS, cv=CV, scoring=scoring, **options).fit(X, RARE)
    grid = GridSearchCV(
        SparseClassifier("l1", **options), {"alpha": ALPHAS}, cv=CV, scoring=scoring, refit=False
    )
    found = grid.fit(X, RARE).cv_results_
    theirs = np.stack([found[f"split{k}_test_score"] for k in range(4)])
    np.testing.assert_allclose(model.scores_[:, :, 0], theirs, atol=1e-8)


@pytest.mark.parametrize("name", SCORERS)
def test_every_scorer_is_that_of_a_grid_search(name):
    assert_as_a_grid_search(X, SCORERS[name], class_weight={0: 1, 1: 3}, tol=1e-12)


def mean_below(estimator, X, y):
    """A score that needs the values and the names of columns: the accuracy of years before 2000."""
    before = (X["year"] < 2000).to_numpy()
    return float(np.mean(estimator.predict(X)[before] == y[before]))


def test_a_scorer_gets_the_table_as_given(recwarn):
    """Columns far from 0 are centred for the solver only, and a table keeps its names."""
    table = pd.DataFrame(X + 2000, columns=["year", *"abcdefg"])
    assert_as_a_grid_search(table, mean_below, tol=1e-10)
    seen = []

    def score(estimator, X, y):
        seen.append(float(X[["year"]].to_numpy().min()))
        return estimator.score(X, y)

    SparseRegressorCV("l1", alphas=ALPHAS, cv=CV, scoring=score).fit(table, Y)
    assert min(seen) > 1900
    assert not [w for w in recwarn if "feature names" in str(w.message)]


def test_a_class_without_a_row_outside_a_fold():
    y = np.where(np.arange(60) % 4 == 2, "c", np.where(RARE == 1, "b", "a"))
    with pytest.warns(UserWarning, match="All rows of class .*c.* are in fold 2"):
        SparseClassifierCV("l1", alphas=ALPHAS, cv=CV).fit(X, y)


def test_scorers_of_regressors():
    weights = RNG.uniform(0, 2, 60) * (np.arange(60) != 3)
    scorer = "neg_mean_absolute_error"
    model = SparseRegressorCV("l1", alphas=ALPHAS, cv=CV, scoring=scorer, tol=1e-12).fit(X, Y, weights)
    rows = np.arange(60) % 4 == 1
    part = SparseRegressor("l1", alpha=ALPHAS[1], tol=1e-12).fit(X[~rows], Y[~rows], weights[~rows])
    error = np.abs(part.predict(X[rows]) - Y[rows]).mean(axis=1)
    expected = -np.average(error, weights=weights[rows])
    np.testing.assert_allclose(model.scores_[1, 1, 0], expected, atol=1e-8)


def test_one_standard_error_progress_and_checkpoint(tmp_path, capsys):
    alphas, noisy = np.geomspace(1, 0.01, 16), Y + np.random.default_rng(1).standard_normal((60, 3))
    options = {"alphas": alphas, "cv": CV}
    best = SparseRegressorCV("l21", **options).fit(X, noisy)
    sparse = SparseRegressorCV("l21", selection="1se", **options).fit(X, noisy)
    result = best.cross_validation_
    assert best.alpha_ == alphas[result.index[1]] and sparse.alpha_ == alphas[result.index_1se[1]]
    assert sparse.alpha_ > best.alpha_
    same = SparseRegressor(alpha=sparse.alpha_).fit(X, noisy)
    np.testing.assert_allclose(sparse.coef_, same.coef_, atol=1e-5)
    shown = SparseRegressorCV("l21", progress=True, checkpoint=tmp_path / "fits", verbose=1, **options)
    shown.fit(X, noisy)
    np.testing.assert_allclose(shown.scores_, best.scores_, atol=1e-5)
    out, err = capsys.readouterr()
    assert "[SparseRegressorCV] 4 folds x 16 strengths" in out and "chosen: alpha" in out
    assert "64/64" in err and list((tmp_path / "fits").iterdir())
    again = clone(shown).fit(X, noisy)
    np.testing.assert_array_equal(again.scores_, shown.scores_)


def test_verbose_of_cox_counts_the_features(capsys):
    model = SparseCoxCV(alphas=4, cv=3, verbose=1).fit(X, np.exp(Y[:, 0]))
    assert np.count_nonzero(model.coef_) > 1
    assert f" {np.count_nonzero(model.coef_)} features\n" in capsys.readouterr().out


def test_default_strengths_of_an_object_begin_where_it_selects_nothing():
    """Whatever its strengths are: by feature, by group, far from 1, and 0 for features that always stay."""
    y = 100 * Y[:, 0]
    loss = losses.SquaredLoss(X, y, intercept=True)
    by_row = np.geomspace(1e-3, 1e3, X.shape[1])
    kept = np.arange(X.shape[1]) == 2
    blocks = sj.groups.from_labels(np.arange(X.shape[1]) // 2)
    uneven = np.array([1.0, 50.0, 0.0, 3.0])[: blocks.num_groups]
    for penalty, always in (
        (penalties.L1(2e4), 0),
        (penalties.L1(by_row), 0),
        (penalties.L1(1.0 - kept), 1),
        (penalties.L1(1.0 - kept) + penalties.NonNegative(), 1),
        (penalties.GroupLasso(uneven, blocks), 2),
    ):
        top = SparseRegressorCV(penalty, alphas=3, cv=CV).fit(X, y).alphas_[0]
        above, below = (sj.solve(sj.Problem(loss, penalty * (c * top)), tol=1e-8) for c in (1.001, 0.98))
        counts = [np.count_nonzero(found.params) for found in (above, below)]
        assert counts[0] <= always < counts[1], (penalty, counts)


def test_a_selector_that_selects_nothing_says_what_to_change():
    noise = np.random.default_rng(1).standard_normal(60)
    with pytest.warns(UserWarning, match=r"selected no feature: .* threshold is 1\. Try weaker strengths"):
        StabilitySelector(alphas=[0.3, 0.2], num_subsamples=20, threshold=1.0).fit(X, noise)
    with pytest.warns(UserWarning, match=r"No strength tried selects any: try weaker alphas, below 50"):
        StabilitySelector(alphas=[60.0, 50.0], num_subsamples=20).fit(X, noise)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_columns_far_from_zero(dtype):
    """An intercept absorbs what is added to a column, before the solver loses its digits."""
    far = np.where(np.arange(8) % 2, 3000.0, 0)
    plain, moved = X.astype(dtype), (X + far).astype(dtype)
    weights = 1.0 + np.arange(60) % 3
    for make, y in (
        (lambda: SparseRegressor("l1", alpha=0.05), Y[:, 0]),
        (lambda: SparseClassifier("l21", alpha=0.02), RARE),
        (lambda: SparseRegressorCV("l1", alphas=ALPHAS, cv=CV), Y[:, 0]),
        (lambda: SparseRegressorCV("l1", alphas=ALPHAS, cv=CV, scoring="neg_mean_absolute_error"), Y[:, 0]),
        (lambda: SparseClassifierCV("l21", alphas=ALPHAS, cv=CV), RARE),
    ):
        one, other = make().fit(plain, y, weights), make().fit(moved, y, weights)
        np.testing.assert_allclose(one.coef_, other.coef_, atol=5e-3)
        assert other.gap_ <= (1e-4 if dtype == "float32" else 1e-6)
        np.testing.assert_allclose(one.score(plain, y), other.score(moved, y), atol=0.02)
        if "CV" in type(one).__name__:
            np.testing.assert_allclose(one.scores_, other.scores_, rtol=1e-2, atol=1e-3)
    selected = [StabilitySelector(alphas=ALPHAS, num_subsamples=20).fit(D, Y[:, 0]) for D in (plain, moved)]
    np.testing.assert_allclose(*(s.frequencies_ for s in selected), atol=0.11)


@pytest.mark.parametrize("loss", ["softmax", "logistic", "squared_hinge"])
@pytest.mark.parametrize("scoring", ["f1", "f1_micro"])
def test_f1_is_that_of_scikit_learn(loss, scoring):
    """Of two classes that of the second, whether the loss has a column for each or one for both."""
    options = {"alphas": ALPHAS, "cv": CV, "scoring": scoring, "tol": 1e-8}
    ours = SparseClassifierCV("l1", loss=loss, **options).fit(X, RARE)
    one = SparseClassifier("l1", loss=loss, tol=1e-8)
    theirs = GridSearchCV(one, {"alpha": ALPHAS}, cv=CV, scoring=scoring).fit(X, RARE).cv_results_
    np.testing.assert_allclose(ours.scores_[:, :, 0].mean(0), theirs["mean_test_score"], atol=1e-12)


# ------------------------------------------------------------------ errors

FRAME = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": ["e", "f", "g"]})
NAN = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [1.0, np.nan, 0.0]})
BAD = {
    "text": (lambda: SparseRegressor().fit(FRAME, [1, 2, 3]), r"to float: 'e'\. The column 'b' holds 'e'"),
    "a date": (
        lambda: SparseRegressor().fit(FRAME.assign(b=pd.Timestamp("2020")), [1, 2, 3]),
        "The column 'b' holds .*2020.*, which is not a number: encode it first",
    ),
    "categories": (
        lambda: SparseRegressor().fit(
            FRAME.assign(c=pd.array([1] * 3, "Int64"), b=pd.Categorical(["u"] * 3)), [1, 2, 3]
        ),
        "The column 'b' holds 'u'",
    ),
    "text of an array": (lambda: SparseRegressor().fit(FRAME.to_numpy(), [1, 2, 3]), "column 1 holds 'e'"),
    "NaN": (
        lambda: SparseRegressor().fit(NAN, [1, 2, 3]),
        r"contains NaN\. The column 'b' holds nan",
    ),
    "penalty": (lambda: SparseRegressor("l3").fit(X, Y), "one of 'l1', .*'group_lasso' or a penalty of"),
    "no feature left out": (
        lambda: StabilitySelector("exclusive_lasso").fit(X, Y[:, 0]),
        "'exclusive_lasso' leaves no feature out",
    ),
    "folds by groups": (
        lambda: SparseRegressorCV(cv=GroupKFold(3)).fit(X, Y),
        r"cv=list\(splitter.split\(X, y, groups\)\)",
    ),
    "a fold without targets": (
        lambda: SparseRegressorCV("l1", cv=CV).fit(X, np.where(np.arange(60) % 4, Y[:, 0], np.nan)),
        "every fold needs a row with a target",
    ),
    "alpha True": (lambda: SparseRegressor(alpha=True).fit(X, Y), "alpha must be a number, got True"),
    "beta True": (lambda: SparseClassifier(beta=True).fit(X, RARE), "beta must be a number, got True"),
    "OFA beta True": (lambda: OFALassoRegressor(beta=True).fit(X, Y), "beta must be a number, got True"),
    "several alphas": (lambda: SparseRegressor(alpha=[0.1, 0.2]).fit(X, Y), "use the CV form .* alphas="),
    "a loss": (lambda: SparseRegressor(loss=losses.SquaredLoss(X, Y)).fit(X, Y), "loss must be a name"),
    "no target": (
        lambda: SparseRegressor().fit(X, pd.DataFrame({"u": Y[:, 0], "v": np.nan})),
        "column 'v' of y is NaN in every row",
    ),
    "weights of an output": (
        lambda: SparseRegressor().fit(X, Y, np.ones((60, 3)) * [1, 0, 1]),
        "zeros only in column 1",
    ),
    "weights by entry": (lambda: SparseRegressor().fit(X, Y, np.ones((60, 2))), r"or \(60, 3\), one for"),
    "quantile": (
        lambda: SparseRegressor(loss="quantile", quantile=1.5).fit(X, Y),
        "quantile must be a",
    ),
    "offset": (lambda: SparseRegressor().fit(X, Y, offset=np.ones(60)), 'offset is for loss="poisson"'),
    "offset shape": (
        lambda: SparseRegressor(loss="poisson").fit(X, RARE, offset=np.ones(3)),
        r"offset must have shape \(60,\)",
    ),
    "infinite offset": (
        lambda: SparseRegressor(loss="poisson").fit(X, RARE, offset=np.full(60, -np.inf)),
        "offset has a value",
    ),
    "groups": (lambda: SparseRegressor(groups=[[0]]).fit(X, Y), 'groups are for penalty="group_lasso"'),
    "no groups": (lambda: SparseRegressor("group_lasso").fit(X, Y), "needs groups, such as"),
    "group of no name": (lambda: SparseRegressor("group_lasso", groups=["q"]).fit(X, Y), "X has no names"),
    "a prefix": (
        lambda: SparseRegressor("group_lasso", groups=["q"]).fit(TABLE[["age"]], Y),
        "no column of X has a name that begins with 'q'",
    ),
    "a name": (
        lambda: SparseRegressor("group_lasso", groups=[["q"]]).fit(TABLE[["age"]], Y),
        "group 0 has the column 'q', which X does not have",
    ),
    "an index": (lambda: SparseRegressor("group_lasso", groups=[[9]]).fit(X, Y), "group 0 has index 9"),
    "a number": (lambda: SparseRegressor("group_lasso", groups=[3]).fit(X, Y), "must list columns"),
    "alpha by group": (
        lambda: SparseRegressor("group_lasso", groups=[[0, 1]], alpha=[1.0, 2.0]).fit(X, Y),
        r"one a group, \(7,\)",
    ),
    "another transformer": (
        lambda: SparseRegressor("group_lasso", groups=ENCODED).fit(X, Y),
        "ColumnTransformer is not fitted",
    ),
    "class_weight": (
        lambda: SparseClassifier(class_weight="equal").fit(X, RARE),
        "must be None, .balanced",
    ),
    "class_weight label": (lambda: SparseClassifier(class_weight={7: 1}).fit(X, RARE), "not all labels of y"),
    "class_weight < 0": (
        lambda: SparseClassifier(class_weight={1: -1}).fit(X, RARE),
        "class_weight of 1",
    ),
    "scoring": (lambda: SparseClassifierCV(scoring="best").fit(X, RARE), "get_scorer_names"),
    "scoring type": (lambda: SparseClassifierCV(scoring=3).fit(X, RARE), "a name or a function"),
    "no probabilities": (
        lambda: SparseClassifierCV(loss="squared", scoring="neg_log_loss").fit(X, RARE),
        "predict_proba",
    ),
    "selection": (lambda: SparseRegressorCV(selection="2se").fit(X, Y), "selection must be one of"),
    "verbose": (lambda: SparseRegressorCV(verbose="yes").fit(X, Y), "verbose must be"),
    "progress": (lambda: SparseRegressorCV(progress="yes").fit(X, Y), "progress must be True or False"),
    "checkpoint": (lambda: SparseRegressorCV(checkpoint=3).fit(X, Y), "checkpoint must be the path"),
    "verbose of Cox": (lambda: SparseCoxCV(verbose=-1).fit(X, 1 + Y[:, 0] ** 2), "verbose must be"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options(case):
    fit, message = BAD[case]
    with pytest.raises((ValueError, TypeError, AttributeError), match=message):
        fit()


def test_a_class_of_weight_0_counts_in_scores():
    y, options = (X[:, 0] > 0.5) + (X[:, 1] > 0).astype(int), {"class_weight": {0: 0, 1: 1, 2: 1}}
    options |= {"loss": "squared", "penalty": "l21"}
    found = SparseClassifierCV(alphas=[0.05], scoring="accuracy", cv=CV, **options).fit(X, y)
    for fold, (train, test) in enumerate(CV.split()):
        one = SparseClassifier(alpha=0.05, **options).fit(X[train], y[train])
        assert found.scores_[fold].item() == pytest.approx(one.score(X[test], y[test]))


@pytest.mark.parametrize("make", [UncorrelatedGroupClassifier, LabelViewsClassifier])
def test_columns_far_from_0(make):
    near, far = make(tol=1e-10).fit(X, RARE), make(tol=1e-10).fit(X + 1e7, RARE)
    assert far.gap_ <= 1e-10
    np.testing.assert_allclose(far.coef_, near.coef_, atol=1e-6)
    np.testing.assert_array_equal(far.predict(X + 1e7), near.predict(X))


@pytest.mark.parametrize(
    ("make", "y", "message"),
    [
        (lambda: OFALassoRegressor(beta=-1), Y[:, 0], "beta must be >= 0, got -1"),
        (lambda: OFALassoRegressor(alpha=0), Y, "alpha must be > 0"),
        (lambda: OFALassoRegressor(alpha=[0.1, 0.1]), Y, "alpha has 2 values; .* each of 3 outputs"),
        (StabilitySelector, np.where(RARE, "yes", "no"), "text labels.*loss='logistic'"),
    ],
)
def test_errors_name_the_parameter(make, y, message):
    with pytest.raises(ValueError, match=message):
        make().fit(X, y)


def test_one_strength_in_a_list_for_one_output():
    one, listed = (OFALassoRegressor(alpha=alpha).fit(X, Y[:, 0]) for alpha in (0.1, [0.1]))
    np.testing.assert_array_equal(one.dual_coef_, listed.dual_coef_)


def test_names_of_groups_are_those_of_the_columns():
    """Whatever the order of the columns; a prefix that no column has is an error for two columns, too."""
    frame = pd.DataFrame(X[:, :4], columns=["cat__a", "num__x", "cat__b", "num__y"])
    expected = SparseRegressor("group_lasso", groups=[[0, 2], [1, 3]], alpha=0.1).fit(frame, Y[:, 0]).coef_
    for names in (list(frame.columns), ["num__x", "num__y", "cat__a", "cat__b"]):
        model = SparseRegressor("group_lasso", groups=names, alpha=0.1).fit(frame, Y[:, 0])
        np.testing.assert_allclose(model.coef_, expected, atol=1e-6)
    with pytest.raises(ValueError, match="no column of X has a name that begins with 'cat__'"):
        SparseRegressor("group_lasso", groups=["num__", "cat__"]).fit(frame[["num__x", "num__y"]], Y[:, 0])


def test_label_views_have_strengths_of_the_precision_of_the_data():
    X = np.random.default_rng(0).standard_normal((80, 5))
    y = np.where(X[:, :2] > 0, "yes", "no")
    fits = []
    for on in (False, True):
        with jax.enable_x64(on):
            fits.append(LabelViewsClassifier(tol=1e-12).fit(X, y).coef_)
    np.testing.assert_array_equal(*fits)


@pytest.mark.parametrize("fit_intercept", [True, np.True_])
def test_classes_that_a_fold_lacks_are_told(fit_intercept):
    X, y = np.random.default_rng(0).standard_normal((60, 6)), np.repeat([0, 1, 2], 20)
    folds = [(np.flatnonzero(y != k), np.flatnonzero(y == k)) for k in range(3)]
    model = SparseClassifierCV("l21", alphas=[0.3, 0.1], cv=folds, fit_intercept=fit_intercept)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.fit(X, y)
    assert sum("All rows of class" in str(one.message) for one in told) == 3


def test_a_quantile_without_effect_is_refused():
    X = np.random.default_rng(0).standard_normal((20, 2))
    loss = functools.partial(sj.losses.QuantileLoss, q=0.5, smoothing=0.1)
    with pytest.raises(ValueError, match=r"quantile=0\.9 needs loss='quantile'"):
        SparseRegressor("l1", loss=loss, quantile=0.9).fit(X, X[:, 0])


def test_what_an_unfitted_transformer_of_groups_needs():
    table = pd.DataFrame(np.random.default_rng(0).standard_normal((20, 2)), columns=["a", "b"])
    short = make_column_transformer((StandardScaler(), ["a", "b"]), verbose_feature_names_out=False)
    with pytest.raises(ValueError, match="verbose_feature_names_out=True"):
        SparseRegressor("group_lasso", groups=short).fit(table, table["a"])


def test_the_area_of_a_softmax_ranks_probabilities():
    """A number added to the scores of a row changes no probability, and so no area."""
    rng = np.random.default_rng(0)
    t = np.linspace(-2, 2, 120)
    X = np.c_[t, rng.standard_normal((120, 3))]
    y = np.digitize(t + 0.3 * rng.standard_normal(120), [-0.7, 0.7])
    options = {"alphas": [0.15, 0.05, 0.01], "cv": KFold(3, shuffle=True, random_state=0)}
    found = [SparseClassifierCV("l1", scoring=s, **options).fit(X, y) for s in ("roc_auc", "roc_auc_ovr")]
    np.testing.assert_allclose(found[0].scores_, found[1].scores_, rtol=1e-12)


def test_scores_of_a_softmax_with_ties_and_with_a_graph():
    """Labels come from XW + b, the first of equal ones; a graph does not change an area."""
    X, y = np.random.default_rng(0).standard_normal((40, 3)), np.repeat(np.arange(4), [16, 8, 8, 8])
    loss = losses.SoftmaxLoss(X, np.eye(4)[y])
    at, shuffled = (np.zeros((3, 4)), np.zeros(4)), np.random.default_rng(1).permutation(40) % 4
    weights = np.ones(40, loss.dtype)
    assert score_of("accuracy", loss, *at, weights) == 0.4
    with_graph = loss + losses.GraphLaplacian(np.ones((4, 4)) - np.eye(4), 0.0)
    grid = jax.vmap(penalties.L1)(np.array([0.05, 0.01]))
    found = [
        sj.cross_validate(sj.Problem(f, penalties.L1(0.1)), grid, folds=shuffled, scoring="roc_auc").score
        for f in (loss, with_graph)
    ]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


def test_an_output_without_weighted_targets_is_refused():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 3))
    Y = X[:, :2].copy()
    Y[10:, 1] = np.nan
    weights = np.r_[np.zeros(10), np.ones(20)]
    with pytest.raises(ValueError, match="every row with an observed target in column 1 of y has"):
        SparseRegressor().fit(X, Y, sample_weight=weights)
    model = SparseRegressor().fit(X, Y)
    with pytest.raises(ValueError, match="output 1 has no observed target"):
        model.score(X, Y, sample_weight=weights)
    with pytest.warns(UserWarning, match="fold 0 holds all rows of weight > 0 in column 1 out"):
        SparseRegressorCV(cv=KFold(3)).fit(X, Y)  # the next fault


def test_scorers_of_positive_predictions():
    """The check of a scorer before the solves uses the best intercept; a fit that it refuses scores NaN."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3))
    y = 3 + 0.3 * X[:, 0] + 0.1 * rng.standard_normal(60)
    options = {"cv": 3, "scoring": "neg_mean_gamma_deviance"}
    model = SparseRegressorCV("l1", alphas=[0.1, 0.01], **options).fit(X, y)
    grid = GridSearchCV(SparseRegressor("l1"), {"alpha": [0.1, 0.01]}, **options).fit(X, y)
    np.testing.assert_allclose(model.scores_.mean(0)[:, 0], grid.cv_results_["mean_test_score"], rtol=1e-5)
    y = np.maximum(X[:, 0], 0.01)
    with pytest.warns(UserWarning, match="scoring refused . of 6 fits"):
        model = SparseRegressorCV("l1", alphas=[0.6, 0.001], **options).fit(X, y)
    assert model.alpha_ == 0.6 and np.isnan(model.scores_[:, 1]).any()


def test_a_scorer_is_tried_on_all_folds_before_the_solves(monkeypatch):
    """The last fold has no row of class 2, which log_loss refuses."""

    def solved(*args, **options):
        raise AssertionError("solved")

    monkeypatch.setattr("sparsejax.sklearn._folds.judged_on_folds", solved)
    y = np.arange(90) % 3
    y[60:] %= 2
    X = np.random.default_rng(0).standard_normal((90, 3))
    with pytest.raises(ValueError, match="contain different number of"):
        SparseClassifierCV("l21", scoring="neg_log_loss", cv=KFold(3), alphas=[0.1]).fit(X, y)


@pytest.mark.parametrize(
    ("make", "y"),
    [
        (functools.partial(SparseRegressor, alpha=0.01, tol=1e-14), Y),
        (functools.partial(SparseRegressorCV, alphas=[0.1, 0.01], cv=2, tol=1e-14), Y),
        (functools.partial(SparseClassifier, alpha=0.01, tol=1e-14), RARE),
        (functools.partial(SparseClassifierCV, alphas=[0.1, 0.01], cv=2, tol=1e-14), RARE),
        (functools.partial(SparseCoxCV, alphas=[0.1, 0.01], cv=2, tol=1e-14), np.exp(Y[:, 0])),
        (functools.partial(UncorrelatedGroupClassifier, tol=1e-14), RARE),
        (functools.partial(LabelViewsClassifier, tol=1e-14), np.stack([RARE, Y[:, 0] > 0], axis=1)),
        (functools.partial(OFALassoRegressor, alpha=1e-4, tol=1e-14), Y[:, 0]),
    ],
)
def test_max_iter_limits_the_work_and_warns(make, y):
    with pytest.warns(sj.ConvergenceWarning, match="converge"):
        model = make(max_iter=2).fit(X, y)
    assert np.max(model.n_iter_) <= 2 and model.gap_ > 1e-14


@pytest.mark.matrix
def test_kernels_of_ofa_lasso_and_their_bandwidths():
    polynomial = {"kernel": "polynomial", "degree": 2}
    for options in (polynomial, {"bandwidth": 2.0, "output_bandwidth": np.array([1.0, 2.0, 3.0])}):
        ours = OFALassoRegressor(alpha=0.1, beta=0.2, **options).fit(X, Y)
        core = sj.models.ofa_lasso.fit(X, Y, lam=0.1 * 120, beta=0.2 * 120, **options)
        np.testing.assert_allclose(ours.dual_coef_, core.u, atol=1e-10)
        np.testing.assert_allclose(ours.output_coef_, core.v, atol=1e-10)
        np.testing.assert_allclose(ours.predict(X[:5]), core.predict(X[:5]), atol=1e-7)
    one = OFALassoRegressor(alpha=0.5, tol=1e-13, **polynomial).fit(X, Y[:, 0])
    K = (X @ X.T + 1) ** 2
    np.testing.assert_allclose(one.predict(X), K @ one.dual_coef_ + one.intercept_, atol=1e-9)
    theirs = Lasso(alpha=0.5, tol=1e-10, max_iter=10**6).fit(K, Y[:, 0])
    np.testing.assert_allclose(one.predict(X), theirs.predict(K), atol=1e-4)


def test_text_labels_for_a_regressor():
    with pytest.raises(ValueError, match=r"y must hold numbers .*SparseClassifier takes labels"):
        SparseRegressor().fit(X, np.where(Y[:, 0] > 0, "a", "b"))


def test_a_scorer_may_call_score_of_a_fit_with_an_offset():
    offset = RNG.uniform(-1, 1, 60)
    counts = RNG.poisson(np.exp(X[:, 0] / 2 + offset)).astype(float)
    options = {"loss": "poisson", "tol": 1e-10}
    scorer = lambda estimator, X, y: estimator.score(X, y)
    model = SparseRegressorCV("l1", alphas=[0.1], cv=KFold(3), scoring=scorer, **options)
    model.fit(X, counts, offset=offset)
    train, test = next(KFold(3).split(X))
    one = SparseRegressor("l1", alpha=0.1, **options).fit(X[train], counts[train], offset=offset[train])
    expected = one.score(X[test], counts[test], offset=offset[test])
    np.testing.assert_allclose(model.scores_[0, 0, 0], expected, atol=1e-6)


@pytest.mark.parametrize("unit", [5e-324, 0.3, 1e307])
def test_the_unit_of_weights_has_no_influence_on_what_is_made_of_them(unit):
    """The smoothing of a quantile, balanced class weights, and shares of right labels."""
    weights = np.full(60, unit)
    for model, y in (
        (SparseRegressor("l1", loss="quantile", quantile=0.7, alpha=0.02), Y[:, 0]),
        (SparseClassifier("l1", loss="squared", class_weight="balanced", alpha=0.02), RARE),
    ):
        expected = model.fit(X, y).coef_
        np.testing.assert_allclose(model.fit(X, y, weights).coef_, expected, atol=1e-12)
    model = LabelViewsClassifier().fit(X, RARE)
    assert model.score(X, RARE, weights) == pytest.approx(model.score(X, RARE))


@pytest.mark.parametrize("kind", [pd.Series, list, lambda y: pd.Series(y, dtype="category")])
def test_text_labels_of_every_kind_need_another_loss(kind):
    with pytest.raises(ValueError, match=r"text labels.*loss='logistic'"):
        StabilitySelector().fit(X, kind(np.where(RARE, "rare", "usual")))


@pytest.mark.parametrize(
    ("scoring", "error"),
    [("neg_mean_poisson_deviance", mean_poisson_deviance), ("neg_mean_squared_error", mean_squared_error)],
)
def test_scorers_of_scikit_learn_for_a_fit_with_an_offset(scoring, error):
    offset = RNG.uniform(-1, 1, 60)
    counts = RNG.poisson(np.exp(X[:, 0] / 2 + offset)).astype(float)
    options = {"loss": "poisson", "tol": 1e-10}
    model = SparseRegressorCV("l1", alphas=[0.1], cv=KFold(3), scoring=scoring, **options)
    model.fit(X, counts, offset=offset)
    train, test = next(KFold(3).split(X))
    one = SparseRegressor("l1", alpha=0.1, **options).fit(X[train], counts[train], offset=offset[train])
    expected = -error(counts[test], one.predict(X[test], offset=offset[test]))
    np.testing.assert_allclose(model.scores_[0, 0, 0], expected, rtol=1e-6)


def score_of_a_copy(estimator, X, y):
    return copy.deepcopy(estimator).score(X, y)


def score_of_a_pickle(estimator, X, y):
    return pickle.loads(pickle.dumps(estimator)).score(X, y)


def test_a_scorer_may_pickle_a_fit_with_an_offset():
    """As scikit-learn does for scorers with several processes."""
    offset = RNG.uniform(-1, 1, 60)
    counts = RNG.poisson(np.exp(X[:, 0] / 2 + offset)).astype(float)
    plain = lambda estimator, X, y: estimator.score(X, y)
    found = [
        SparseRegressorCV("l1", loss="poisson", alphas=[0.1], cv=KFold(3), scoring=scorer)
        .fit(X, counts, offset=offset)
        .scores_
        for scorer in (plain, score_of_a_copy, score_of_a_pickle)
    ]
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


@pytest.mark.parametrize("small", [1e-130, 1e-20])
def test_huge_weights_leave_the_small_ones(small):
    """Weights of one output may be far below those of another."""
    weights = np.ones((60, 2)) * [1e200, small]
    model = SparseRegressor("l21", alpha=0.01).fit(X, Y[:, :2])
    assert model.score(X, Y[:, :2], weights) == pytest.approx(model.score(X, Y[:, :2]))


def test_strengths_to_try_where_the_gradient_at_0_vanishes():
    X = np.tile(np.array([[2.0, 1], [0, -1], [-1, 1], [-1, -1]]), (4, 1))
    y = np.tile(np.array([1.0, 1, -1, -1]), 4)
    penalty = sj.penalties.L1(np.array([0.0, 1.0]))
    model = SparseRegressorCV(penalty=penalty, alphas=4, fit_intercept=False, cv=4).fit(X, y)
    np.testing.assert_allclose(model.alphas_.max(), 1 / 3, rtol=1e-3)


@pytest.mark.parametrize("dtype", [np.int8, bool])
def test_a_quantile_of_small_integers_or_booleans_is_that_of_floats(dtype):
    X = np.random.default_rng(0).standard_normal((60, 4))
    y = np.where(X[:, 0] > 0, 120, -120).astype(np.int8) if dtype is np.int8 else X[:, 0] > 0
    fit = lambda y: SparseRegressor(loss="quantile", alpha=0.01, penalty="l1").fit(X, y).coef_
    np.testing.assert_allclose(fit(y), fit(y.astype(float)), atol=1e-6)


def test_groups_of_a_transformer_with_more_outputs_than_columns():
    """A fitted ColumnTransformer with more output columns than X is refused, not cut to the columns of X."""
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0], "b": list("xyzx")})
    parts = [("num", StandardScaler(), ["a"]), ("cat", OneHotEncoder(), ["b"])]
    transformer = ColumnTransformer(parts).fit(frame)  # 1 + 3 output columns
    model = SparseRegressor("group_lasso", groups=transformer)
    with pytest.raises(ValueError, match="has 4 output columns, and X has 3"):
        model.fit(np.eye(4, 3), np.arange(4.0))


def test_an_empty_last_fold_is_refused():
    """A fold without rows is an error wherever it stands among the splits."""
    first, second, none = np.arange(30), np.arange(30, 60), np.arange(0)
    splits = [(second, first), (first, second), (np.arange(60), none)]
    with pytest.raises(ValueError, match="every fold needs a row with a target"):
        SparseRegressorCV("l1", alphas=[0.1], cv=splits).fit(X, Y)


@pytest.mark.parametrize("penalty", [penalties.NonNegative(), penalties.Box(-1.0, 1.0)])
def test_a_selector_needs_a_penalty_with_a_strength(penalty):
    X = np.random.default_rng(0).standard_normal((40, 6))
    with pytest.raises(ValueError, match="has no strength that alphas could multiply"):
        StabilitySelector(penalty, alphas=[0.3, 0.1], num_subsamples=10).fit(X, X[:, 0])
