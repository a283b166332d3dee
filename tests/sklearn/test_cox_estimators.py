"""Cox's estimators: every form of y, the core's problem, survival functions, scikit-learn's conventions."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sparsejax as sj
from sparsejax.sklearn import SparseCox, SparseCoxCV

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 8))
TIME = np.ceil(8 * RNG.exponential(np.exp(X[:, 1] - X[:, 0])))
EVENT = RNG.random(60) < 0.7
STRATA = np.array(["a", "b"])[np.arange(60) % 2]
ENTRY = np.where(np.arange(60) % 3 == 0, TIME / 2 - 0.25, 0)
WEIGHTS = RNG.uniform(0.5, 2, 60) * (np.arange(60) % 7 > 0)
PAIRS = np.stack([EVENT, TIME], axis=1)
FITTED = SparseCox(alpha=0.05).fit(X, PAIRS)

FORMS = {
    "structured": np.array(list(zip(EVENT, TIME, strict=True)), [("cens", bool), ("days", float)]),
    "by name": np.array(list(zip(TIME, EVENT * 1, strict=True)), [("time", float), ("event", int)]),
    "frame": pd.DataFrame({"time": TIME, "event": EVENT * 1}),
    "frame of booleans": pd.DataFrame({"days": TIME, "dead": EVENT}),
    "one name": pd.DataFrame({"Time": TIME, "status": EVENT * 1}),
    "frame in order": pd.DataFrame({"dead": EVENT * 1, "days": TIME}),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_y(form):
    model = SparseCox(alpha=0.05).fit(X, FORMS[form])
    np.testing.assert_array_equal(model.coef_, FITTED.coef_)
    assert model.score(X, FORMS[form]) == FITTED.score(X, PAIRS)


def test_times_alone_are_all_events():
    every = SparseCox(alpha=0.05).fit(X, np.stack([np.ones(60), TIME], axis=1))
    np.testing.assert_array_equal(SparseCox(alpha=0.05).fit(X, TIME).coef_, every.coef_)


@pytest.mark.parametrize("ties", ["breslow", "efron"])
def test_it_solves_the_problem_of_the_core(ties):
    model = SparseCox(alpha=0.05, ties=ties, tol=1e-10)
    model.fit(X, PAIRS, sample_weight=WEIGHTS, strata=STRATA, entry=ENTRY)
    options = {"ties": ties, "strata": STRATA, "entry": ENTRY, "weights": WEIGHTS}
    loss = sj.losses.CoxLoss(X, TIME, EVENT, scale=1 / WEIGHTS.sum(), **options)
    problem = sj.Problem(loss, sj.penalties.L1(0.05))
    assert sj.duality_gap(problem, model.coef_) <= 1e-8 and model.gap_ <= 1e-10
    assert 0 < np.count_nonzero(model.coef_) < 8
    np.testing.assert_array_equal(model.predict(X), X @ model.coef_)
    expected = sj.metrics.concordance_index(TIME, EVENT, X @ model.coef_, WEIGHTS)
    np.testing.assert_allclose(model.score(X, PAIRS, WEIGHTS), expected, rtol=1e-14)


def test_the_gap_is_that_of_the_objective_as_stated():
    """Rows that fill up the table, and the scale of weights within it, add nothing to the objective."""
    model = SparseCox(alpha=0.01, tol=0.3).fit(X[:12], PAIRS[:12], sample_weight=3 * WEIGHTS[:12])
    weights = 3 * WEIGHTS[:12]
    loss = sj.losses.CoxLoss(X[:12], TIME[:12], EVENT[:12], weights=weights, scale=1 / weights.sum())
    problem = sj.Problem(loss, sj.penalties.L1(0.01))
    np.testing.assert_allclose(model.gap_, sj.duality_gap(problem, model.coef_), rtol=1e-9)
    assert model.gap_ > 1e-3


@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_weights_of_extreme_size(size):
    model = SparseCox(alpha=0.05, tol=1e-10).fit(X, PAIRS, sample_weight=size * WEIGHTS)
    other = SparseCox(alpha=0.05, tol=1e-10).fit(X, PAIRS, sample_weight=WEIGHTS)
    np.testing.assert_allclose(model.coef_, other.coef_, atol=1e-8)


def test_a_row_held_out_alone_says_nothing():
    """Its risk set is itself, whatever the number of folds."""
    model = SparseCoxCV(alphas=[0.1, 0.02], cv=12)
    with pytest.warns(UserWarning, match="holds no event out: its loss is 0 for all candidates"):
        model.fit(X[:12], PAIRS[:12])
    np.testing.assert_array_equal(model.scores_, 0)


@pytest.mark.parametrize("ties", ["breslow", "efron"])
def test_survival_functions_by_the_definition(ties):
    """Breslow's baseline: at each time the weight of its events over the sum of the risk set, by stratum."""
    model = SparseCox(alpha=0.05, ties=ties)
    model.fit(X, PAIRS, sample_weight=WEIGHTS, strata=STRATA, entry=ENTRY)
    times = np.array([0.5, 1.0, 3.0, 3.5, 1e3])
    found = model.predict_survival_function(X[:9], times, STRATA[:9])
    risk = WEIGHTS * np.exp(X @ model.coef_)
    for i in range(9):
        for t, survival in zip(times, found[i], strict=True):
            hazard = 0.0
            for j in np.flatnonzero(EVENT & (t >= TIME) & (STRATA[i] == STRATA)):
                at = (TIME[j] > ENTRY) & (TIME[j] <= TIME) & (STRATA[i] == STRATA)
                hazard += WEIGHTS[j] / risk[at].sum()
            np.testing.assert_allclose(survival, np.exp(-hazard * np.exp(X[i] @ model.coef_)), rtol=1e-9)
    np.testing.assert_array_equal(model.event_times_, np.unique(TIME[EVENT & (WEIGHTS > 0)]))
    whole = model.predict_survival_function(X[:2], strata=STRATA[:2])
    assert whole.shape == (2, len(model.event_times_)) and (np.diff(whole, axis=1) <= 0).all()


def test_strengths_by_folds():
    """The folds are those of the core; the rule of one standard error leaves no more features."""
    cv = KFold(4, shuffle=True, random_state=0)
    best, sparse = (
        SparseCoxCV(alphas=6, cv=cv, selection=rule, scoring="concordance").fit(X, PAIRS)
        for rule in ("best", "1se")
    )
    assert best.alpha_ == best.alphas_[best.scores_.mean(0)[:, 0].argmax()]
    assert sparse.alpha_ == best.alphas_[int(best.cross_validation_.index_1se[1])] >= best.alpha_
    alone = SparseCox(alpha=sparse.alpha_).fit(X, PAIRS)
    np.testing.assert_allclose(sparse.coef_, alone.coef_, atol=1e-4)
    for fold, (train, test) in enumerate(cv.split(X)):
        model = SparseCox(alpha=float(best.alphas_[2]), tol=1e-9).fit(X[train], PAIRS[train])
        np.testing.assert_allclose(best.scores_[fold, 2, 0], model.score(X[test], PAIRS[test]), atol=0.02)
    likely = SparseCoxCV(alphas=[0.2, 0.05], cv=4).fit(X, PAIRS, strata=STRATA, entry=ENTRY)
    assert likely.scores_.shape == (4, 2, 1) and likely.gap_ <= 1e-6


def test_a_pipeline_and_a_grid():
    """Also with parameters of fit."""
    pipeline = make_pipeline(StandardScaler(), SparseCox())
    search = GridSearchCV(pipeline, {"sparsecox__alpha": [0.2, 0.05]}, cv=2)
    search.fit(X, FORMS["structured"], sparsecox__strata=STRATA, sparsecox__entry=ENTRY)
    assert search.best_score_ > 0.6
    model = search.best_estimator_[-1]
    assert model.strata_.tolist() == ["a", "b"]


def test_sparse_float32_and_names():
    narrow = SparseCox(alpha=0.05).fit(X.astype(np.float32), PAIRS)
    assert narrow.coef_.dtype == np.float32 and narrow.score(X.astype(np.float32), PAIRS) > 0.6
    np.testing.assert_allclose(narrow.coef_, FITTED.coef_, atol=2e-2)
    stored = SparseCox(alpha=0.05).fit(scipy.sparse.csr_array(X), PAIRS)
    np.testing.assert_allclose(stored.coef_, FITTED.coef_, atol=1e-3)
    frame = pd.DataFrame(X, columns=list("abcdefgh"))
    assert SparseCox().fit(frame, PAIRS).feature_names_in_.tolist() == list("abcdefgh")


def fit(y=PAIRS, **options):
    return SparseCox().fit(X, y, **options)


BAD = {
    "three columns": (lambda: fit(np.ones((60, 3))), "y has shape .*columns must be .event, time."),
    "names": (lambda: fit(FORMS["frame"].assign(more=1)), "must have two columns, event and time"),
    "order": (lambda: fit(PAIRS[:, ::-1]), "event in y must be 0 or 1.*the columns are .event, time."),
    "time 0": (lambda: fit(PAIRS * [1, 0]), "time in y must be > 0, got 0"),
    "NaN": (lambda: fit(PAIRS * [1, np.nan]), "time in y has a value that is NaN"),
    "words": (lambda: fit(pd.DataFrame({"event": EVENT, "time": ["x"] * 60})), "time in y must be numbers"),
    "numbers as text": (lambda: fit(np.full(60, "3.5")), "time in y must be numbers, got <U3"),
    "words for events": (
        lambda: fit(pd.DataFrame({"t": TIME, "e": pd.Categorical(np.where(EVENT, "dead", "alive"))})),
        "the column 'e'. must be numbers, got object; the columns are .event, time., unless the names of",
    ),
    "times for events": (
        lambda: fit(pd.DataFrame({"t": TIME, "e": EVENT * 1})),
        "event in y .the column 't'. must be 0 or 1",
    ),
    "censored": (lambda: fit(PAIRS * [0, 1]), "every row is censored"),
    "rows": (lambda: fit(PAIRS[1:]), "inconsistent numbers of samples"),
    "strata": (lambda: fit(strata=STRATA[1:]), "inconsistent numbers of samples"),
    "stratum missing": (lambda: fit(strata=[None, *STRATA[1:]]), "strata has a NaN or None"),
    "stratum NaN in a list": (
        lambda: fit(strata=[np.nan, *map(str, STRATA[1:])]),
        "strata has a NaN or None",
    ),
    "entry": (lambda: fit(entry=TIME), "entry must be before time, and finite.* row 0 has entry"),
    "ties": (lambda: SparseCox(ties="exact").fit(X, PAIRS), "ties must be one of"),
    "penalty": (lambda: SparseCox("l7").fit(X, PAIRS), "penalty must be one of"),
    "score": (
        lambda: SparseCoxCV(scoring="c_index").fit(X, PAIRS),
        "scoring .unless it is a function or None. must be one of 'concordance', got 'c_index'",
    ),
    "score of labels": (
        lambda: SparseCoxCV(scoring="r2").fit(X, PAIRS),
        "scoring='r2' is not of CoxLoss: it has .concordance",
    ),
    "selection": (lambda: SparseCoxCV(selection="2se").fit(X, PAIRS), "selection must be one of"),
    "unknown strata": (lambda: FITTED.predict_survival_function(X, strata=STRATA), "without strata"),
    "no strata": (lambda: fit(strata=STRATA).predict_survival_function(X), "fitted with strata"),
    "new stratum": (
        lambda: fit(strata=STRATA).predict_survival_function(X[:1], strata=["c"]),
        "'c'.*which the model was not fitted to",
    ),
    "times": (lambda: FITTED.predict_survival_function(X, times=[np.nan]), "times must be"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_scikit_survival_agrees():
    """Coefficients along the strengths, survival functions and C, in its own format."""
    sksurv = pytest.importorskip("sksurv.linear_model")
    y = FORMS["structured"]
    theirs = sksurv.CoxnetSurvivalAnalysis(
        l1_ratio=1.0, alphas=[0.05], tol=1e-15, max_iter=10**6, fit_baseline_model=True
    )
    theirs.fit(X, y)
    ours = SparseCox(alpha=0.05, tol=1e-11).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_[:, 0], atol=1e-6)
    expected = np.stack([f(ours.event_times_) for f in theirs.predict_survival_function(X[:5])])
    np.testing.assert_allclose(ours.predict_survival_function(X[:5]), expected, atol=1e-6)
    np.testing.assert_allclose(ours.score(X, y), theirs.score(X, y), atol=1e-12)


def test_strata_of_predictions_are_read_as_those_of_the_fit():
    """A number among texts is another label, though numpy would make a text of it."""
    model = fit(strata=["1", "2"] * 30)
    with pytest.raises(ValueError, match="strata has 1, which the model was not fitted to"):
        model.predict_survival_function(X[:2], strata=[1, "2"])


def test_times_of_64_bits():
    """Integers that floats cannot tell apart are not ties."""
    rank = np.argsort(np.argsort(TIME + 0.001 * np.arange(60)))
    late = np.array(list(zip(EVENT, 2**60 + rank, strict=True)), [("event", bool), ("time", np.int64)])
    model = SparseCox(alpha=0.05).fit(X, late)
    np.testing.assert_array_equal(model.coef_, SparseCox(alpha=0.05).fit(X, np.c_[EVENT, rank + 1]).coef_)


@pytest.mark.matrix
def test_penalties_and_ties_by_folds():
    """A grid of two strengths, with Efron's ties: the scores are those of fits on the rows kept."""
    cv = KFold(3, shuffle=True, random_state=0)
    options = {"penalty": "exclusive_l21", "ties": "efron", "tol": 1e-10}
    alphas, betas = [0.1, 0.02], [0.1, 0.001]
    model = SparseCoxCV(alphas=alphas, betas=betas, cv=cv, scoring="concordance", **options).fit(X, PAIRS)
    assert model.scores_.shape == (3, 2, 2)
    for fold, (train, test) in enumerate(cv.split(X)):
        for i, j in np.ndindex(2, 2):
            one = SparseCox(alpha=alphas[i], beta=betas[j], **options).fit(X[train], PAIRS[train])
            np.testing.assert_allclose(model.scores_[fold, i, j], one.score(X[test], PAIRS[test]), atol=1e-9)
    i, j = np.unravel_index(model.scores_.mean(0).argmax(), (2, 2))
    assert (model.alpha_, model.beta_) == (alphas[i], betas[j])


def test_a_stratum_whose_rows_have_weight_0_is_none():
    rng = np.random.default_rng(0)
    y = np.stack([rng.random(60) < 0.7, rng.exponential(np.exp(X[:, 1]))], axis=1)
    strata, kept = np.array(["a", "b", "c"])[np.arange(60) % 3], np.arange(60) % 3 != 1
    model = SparseCox(alpha=0.05, tol=1e-10).fit(X, y, sample_weight=kept.astype(float), strata=strata)
    alone = SparseCox(alpha=0.05, tol=1e-10).fit(X[kept], y[kept], strata=strata[kept])
    assert model.strata_.tolist() == ["a", "c"]
    np.testing.assert_allclose(model.coef_, alone.coef_, atol=1e-8)
    found = (m.predict_survival_function(X[kept], [0.5, 2.0], strata[kept]) for m in (model, alone))
    np.testing.assert_allclose(*found, atol=1e-8)
    with pytest.raises(ValueError, match=r"'b'.*which the model was not fitted to"):
        model.predict_survival_function(X[:1], strata=["b"])


@pytest.mark.parametrize("size", [1e-50, 1e39, 1e200])
def test_scores_of_float32_take_weights_and_times_of_extreme_size(size):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3)).astype(np.float32)
    y, weights = np.c_[rng.random(40) < 0.7, rng.exponential(np.exp(-X[:, 0]))], rng.integers(1, 4, 40)
    model = SparseCox(alpha=0.01).fit(X, y)
    assert model.score(X, y * [1, size], size * weights) == pytest.approx(model.score(X, y, weights))
