"""Malformed calls: each ends in an error that names the argument, or honestly. All of them: `fuzz.py`."""

import numpy as np
import pytest
from fuzz import Drawn, outcome, violations

import sparsejax as sj


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
