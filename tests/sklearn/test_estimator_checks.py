"""scikit-learn's own checks of every estimator: `check_estimator` reports no failure.

One of the `CHEAP` estimators is checked by default. The others take up to 80 CPU seconds to compile: all of
them are in the matrix.
"""

import pytest
from sklearn.utils.estimator_checks import check_estimator

import sparsejax.sklearn

CHEAP = (
    "LabelViewsClassifier", "MILESClassifier", "MultivariateClassifier", "OFALassoRegressor", "SparseCox",
    "SparseRegressor",
)  # fmt: skip
OTHERS = [name for name in sparsejax.sklearn.__all__ if name not in CHEAP]
no_skips = pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")


def assert_no_failure(name):
    results = check_estimator(getattr(sparsejax.sklearn, name)(), on_fail=None)
    assert len(results) > 40
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    assert not failed
    # the array API, which only SCIPY_ARRAY_API=1 switches on
    assert {r["check_name"] for r in results if r["status"] != "passed"} <= {"check_array_api_input"}


@no_skips
@pytest.mark.parametrize("name", CHEAP)
def test_check_estimator(name):
    assert_no_failure(name)


@no_skips
@pytest.mark.parametrize("name", OTHERS)
def test_check_estimator_that_compiles_much(name):
    assert_no_failure(name)
