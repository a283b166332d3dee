"""scikit-learn's own checks of every estimator: `check_estimator` reports no failure.

One of the `CHEAP` estimators is checked by default, the others in the matrix. Those that take 20 to 80
CPU seconds to compile are marked ``estimator_checks``: ``python -m pytest -m estimator_checks``.
"""

import pytest
from sklearn.utils.estimator_checks import check_estimator

import sparsejax.sklearn

CHEAP = (
    "LabelViewsClassifier", "MILESClassifier", "MultivariateClassifier", "OFALassoRegressor", "SparseCox",
    "SparseRegressor",
)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in CHEAP else pytest.mark.estimator_checks)
        for name in sparsejax.sklearn.__all__
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_check_estimator(name):
    results = check_estimator(getattr(sparsejax.sklearn, name)(), on_fail=None)
    assert len(results) > 40
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    assert not failed
    # the array API, which only SCIPY_ARRAY_API=1 switches on
    assert {r["check_name"] for r in results if r["status"] != "passed"} <= {"check_array_api_input"}
