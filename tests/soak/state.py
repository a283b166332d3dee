"""What public calls leave behind in their process, and what other threads see of them, as a table.

    python tests/soak/state.py

Each call is made twice, so that the second one imports and compiles nothing; both are watched.
"""

import sys
import tempfile
from pathlib import Path

import jax
import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from state_of import changes

import sparsejax as sj
from sparsejax import losses, metrics, penalties, plots
from sparsejax.models import exclusive_l21, mil, multivariate, ofa_lasso
from sparsejax.sklearn import (
    LabelViewsClassifier,
    MILESClassifier,
    MultivariateClassifier,
    OFALassoRegressor,
    SparseClassifier,
    SparseClassifierCV,
    SparseCox,
    SparseCoxCV,
    SparseRegressor,
    SparseRegressorCV,
    StabilitySelector,
    UncorrelatedGroupClassifier,
)

mpl.use("Agg")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 8))
Y = np.stack([X[:, 0], X[:, 0] - X[:, 3]], axis=1)
CODES = (X[:, 1] > 0).astype(int)
BAGS = np.arange(60) // 3
TIMES = np.exp(X[:, 0])
PROBLEM = sj.Problem(losses.SquaredLoss(X, Y[:, 0]), penalties.L1(0.1))
HALVES = (losses.SquaredLoss(X[:40], Y[:40, 0]), losses.SquaredLoss(X[40:], Y[40:, 0]))
ALPHAS = np.geomspace(0.5, 0.05, 6)
STRENGTHS = jax.vmap(penalties.L1)(ALPHAS)
FEW = {"alphas": [0.2, 0.02]}


def folder():
    return tempfile.mkdtemp()


def tuned():
    return sj.tune(PROBLEM.replace(smooth=HALVES[0]), HALVES[1])


def estimated(model, y, **options):
    def call():
        fit = model.fit(X, y, **options)
        # Estimators without a prediction transform.
        return (fit.predict if hasattr(fit, "predict") else fit.transform)(X, **options)

    return call


CALLS = {
    "solve": lambda: sj.solve(PROBLEM),
    "solve(throw=True)": lambda: sj.solve(PROBLEM, throw=True),
    "jax.grad of solve": lambda: jax.grad(
        lambda a: sj.solve(PROBLEM.replace(penalty=penalties.L1(a))).objective
    )(0.1),
    "fista": lambda: sj.fista(PROBLEM),
    "lambda_max": lambda: sj.lambda_max(PROBLEM),
    "duality_gap": lambda: sj.duality_gap(PROBLEM, np.zeros(8)),
    "path": lambda: sj.path(PROBLEM, STRENGTHS),
    "path(progress=True)": lambda: sj.path(PROBLEM, STRENGTHS, progress=True),
    "path(checkpoint=...)": lambda: sj.path(PROBLEM, STRENGTHS, checkpoint=folder()),
    "cross_validate": lambda: sj.cross_validate(PROBLEM, STRENGTHS),
    "cross_validate(progress=True)": lambda: sj.cross_validate(PROBLEM, STRENGTHS, progress=True),
    "stability_selection": lambda: sj.stability_selection(PROBLEM, STRENGTHS, num_subsamples=10),
    "tune": tuned,
    "models.exclusive_l21.fit": lambda: exclusive_l21.fit(X, CODES, alpha=0.1, beta=0.01),
    "models.multivariate.fit": lambda: multivariate.fit(
        X, 2 * CODES - 1, measure=multivariate.f_beta(), budget=2, C=1.0
    ),
    "models.mil.fit": lambda: mil.fit(
        X[:, :2], BAGS, 2 * (np.arange(20) % 2) - 1, measure=multivariate.f_beta(), budget=2, C=1.0
    ),
    "models.ofa_lasso.fit": lambda: ofa_lasso.fit(X[:6, :2], Y[:6], lam=0.5, beta=0.5),
    "metrics.r2": lambda: metrics.r2(Y, Y + 0.1),
    "metrics.accuracy": lambda: metrics.accuracy(CODES, CODES),
    "metrics.auc": lambda: metrics.auc(CODES, X[:, 1]),
    "metrics.mean_auc": lambda: metrics.mean_auc((Y > 0) * 1, Y),
    "metrics.precision_recall_f1": lambda: metrics.precision_recall_f1((Y > 0) * 1, (Y > 0.1) * 1),
    "metrics.concordance_index": lambda: metrics.concordance_index(TIMES, CODES, X[:, 0]),
    "metrics.selection_error": lambda: metrics.selection_error(X, Y, np.arange(8)),
    "metrics.mean_abs_correlation": lambda: metrics.mean_abs_correlation(X, np.array([0, 1])),
    "plots.path": lambda: plots.path(sj.path(PROBLEM, STRENGTHS), ALPHAS, ax=Figure().subplots()),
    "plots.cross_validation": lambda: plots.cross_validation(
        sj.cross_validate(PROBLEM, STRENGTHS), ax=Figure().subplots()
    ),
    "plots.stability": lambda: plots.stability(
        sj.stability_selection(PROBLEM, STRENGTHS, num_subsamples=10), ALPHAS, ax=Figure().subplots()
    ),
    "plots.convergence": lambda: plots.convergence(sj.fista(PROBLEM, history=20), ax=Figure().subplots()),
    "plots.tuning": lambda: plots.tuning(tuned(), ax=Figure().subplots()),
    "plots.support": lambda: plots.support(Y, ax=Figure().subplots()),
    "plots.correlation": lambda: plots.correlation(X, [0, 3], ax=Figure().subplots()),
    "SparseRegressor": estimated(SparseRegressor("l1", alpha=0.1), Y[:, 0]),
    "SparseRegressorCV": estimated(SparseRegressorCV(**FEW), Y),
    "SparseClassifier": estimated(SparseClassifier("l21", alpha=0.1, loss="squared"), CODES),
    "SparseClassifierCV": estimated(SparseClassifierCV("l21", loss="squared", **FEW), CODES),
    "SparseCox": estimated(SparseCox(alpha=0.1), TIMES),
    "SparseCoxCV": estimated(SparseCoxCV(**FEW), TIMES),
    "StabilitySelector": estimated(StabilitySelector(**FEW, random_state=0), Y[:, 0]),
    "UncorrelatedGroupClassifier": estimated(UncorrelatedGroupClassifier(loss="squared"), CODES),
    "LabelViewsClassifier": estimated(LabelViewsClassifier(), np.c_[CODES, X[:, 2] > 0]),
    "MultivariateClassifier": estimated(MultivariateClassifier(budget=1), CODES),
    "MILESClassifier": estimated(MILESClassifier(), BAGS < 10, bag_ids=BAGS),
    "OFALassoRegressor": estimated(OFALassoRegressor(alpha=0.001, beta=0.01), Y),
}


def watched(name: str) -> tuple[set[str], set[str]]:
    """What two calls change for other threads while they run, and what they leave changed."""
    first, second = changes(CALLS[name]), changes(CALLS[name])
    return first[0] | second[0], first[1] | second[1]


def main() -> None:
    """Print the table."""
    print("| call | changed afterwards | seen by other threads while it runs |\n| --- | --- | --- |")
    for name in CALLS:
        during, after = watched(name)
        left, seen = (", ".join(sorted(names)) or "-" for names in (after, during))
        print(f"| `{name}` | {left} | {seen} |", flush=True)


if __name__ == "__main__":
    main()
