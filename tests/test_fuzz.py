"""Malformed calls: each ends in an error that names the argument, or honestly. All of them: `fuzz.py`."""

import numpy as np
import pytest
from fuzz import Drawn, outcome, violations

import sparsejax as sj

MASKED = np.ma.masked_array(np.ones((4, 2)), np.eye(4, 2))
DATES = np.full(12, np.datetime64("1970-01-02"))  # 1, as a number


def test_a_few_hundred():
    _, wrong = violations(calls=300, seed=0)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        ("accuracy", "Y_pred", np.ma.masked_array(np.ones((12, 2)), np.eye(12, 2))),
        ("L21", "alpha", np.ma.masked),
        ("prox.l1", "x", np.array([np.nan, 1.0])),
        ("prox.l1", "strength", -1.0),
        ("prox.exclusive_group_l21", "groups", 1j),
        ("mil.fit", "bag_ids", np.array([2**40] * 12)),
        ("cross_validate", "folds", np.array([2**40, 1] * 6)),
        ("cross_validate", "folds", [[1, 2], [3]]),
        ("evaluate", "intercept", "text"),
        ("evaluate", "W", np.full((4, 2), "a")),
        ("tune", "solver_maxiter", "3"),
        ("lambda_max", "init", 1.0),
        ("tune_threshold", "v", np.full(12, np.datetime64("2020-01-01"))),
        ("from_lists", "lists", "text"),
        ("from_batches", "batches", [(MASKED, MASKED)] * 2),
        ("L21 prox", "scaling", "0.1"),
        ("L21 prox", "scaling", -1.0),
        ("L21 prox", "V", np.ones((4, 2), bool)),
        ("L21 conjugate", "Z", 1j),
        ("ExclusiveGroupL21 dual_scale", "Z", MASKED),
        ("ExclusiveGroupL21 value", "W", np.ones((3, 2))),
        ("ExclusiveGroupL21 conjugate", "Z", np.ones((3, 2))),
        ("observed", "Y", np.ma.masked_array(np.ones((12, 2)), np.eye(12, 2))),
        ("Sum", "parts", 3),
        ("Box", "low", np.ma.masked),
        ("slope_strengths", "q", 1e-320),
        ("mean_abs_correlation", "selected", np.ma.masked_array([0, 1], [True, False])),
        ("path", "checkpoint", "a\0b"),
        ("to_jaxopt", "problem", 1.5),
        ("ProximalGradient", "has_aux", []),
        ("ProximalGradient", "stepsize", np.ones(4)),
        ("proximal", "step_size", [[1, 2], [3]]),
        ("plots.convergence", "optimum", [None]),
        ("plots.convergence", "optimum", np.nan),
        ("plots.correlation", "selected", np.ma.masked_array([0, 1], [True, False])),
        ("plots.stability", "threshold", -np.inf),
        ("uncorrelated_group.fit", "loss", np.zeros(2)),
        ("uncorrelated_group.fit", "Y", [[1, 2], [3]]),
        ("most_violated", "measure", sj.Problem),
        ("mil.fit", "y", [[1, 2], [3]]),
        ("multivariate.predict", "threshold", 1j),
        ("multivariate.predict", "threshold", np.nan),
        ("one_vs_rest.score", "y", [[1, 2], [3]]),
        ("one_vs_rest.score", "y", np.full(12, "a")),
        ("one_vs_rest.score", "y", np.array([np.inf, 1, 2] * 4)),
        ("SparseRegressor", "fit_intercept", 1),
        ("SparseRegressor", "max_iter", -1),
        ("SparseRegressor", "sample_weight", len),
        ("SparseRegressor", "sample_weight", DATES),
        ("SparseRegressor", "X", np.array([DATES] * 4).T),
        ("SparseRegressor offset", "offset", DATES),
        ("SparseRegressor offset", "loss", np.zeros(2)),
        ("SparseRegressorCV", "cv", 13),
        ("SparseRegressorCV", "alphas", [[1, 2], [3]]),
        ("SparseClassifier", "class_weight", {0: 0.0}),
        ("SparseCox", "strata", np.zeros(3)),
        ("SparseCox", "entry", np.zeros((2, 2))),
        ("SparseCox", "ties", np.zeros(2)),
        ("SparseCox", "entry", np.array([{}] * 12)),
        ("SparseRegressor", "y", np.ma.masked_array(np.ones(12), np.arange(12) == 0)),
        ("LabelViewsClassifier", "alpha", []),
        ("LabelViewsClassifier", "beta", -1.0),
        ("UncorrelatedGroupClassifier", "groups", 3),
        ("StabilitySelector", "beta", "0.1"),
        ("OFALassoRegressor", "max_iter", "text"),
        ("MultivariateClassifier", "max_iter", 1.5),
        ("MultivariateClassifier", "budget", [[1, 2], [3]]),
    ],
)
def test_found_and_mended(name, argument, value):
    """Each was taken, or ended inside numpy or JAX, or did not name the argument."""
    found = outcome(name, argument, Drawn(value, True))
    assert found.what == "clear", found.told


def test_what_is_wrong_is_told(monkeypatch):
    """The test can fail."""
    assert outcome("rank_features", "num", Drawn(1, True)).what == "must be refused"
    monkeypatch.setattr(sj.selection.ranking, "as_float", lambda name, W, ndims: W.no_such_method())
    assert outcome("rank_features", "W", Drawn(np.ones(3), False)).what == "raw"
