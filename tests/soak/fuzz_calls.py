"""The good calls that `fuzz.py` changes: every public function, class and method, with small arguments."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

import sparsejax as sj
import sparsejax.sklearn as estimators
from sparsejax import graphs, groups, kernels, losses, metrics, models, penalties, plots, prox
from sparsejax.interop import jaxopt
from sparsejax.interop.optax import proximal

RNG = np.random.default_rng(0)
N, D, K = 12, 4, 2
X = RNG.standard_normal((N, D))
Y = RNG.standard_normal((N, K))
W = RNG.standard_normal((D, K))
LABELS = (Y > 0).astype(float)
SIGNS = 2 * LABELS - 1
ONE_OF = np.eye(K)[np.arange(N) % K]
PAIRS = groups.from_lists([[0, 1], [2, 3]], D)
VIEWS = groups.label_views(1, 1)
PROBLEM = sj.Problem(losses.SquaredLoss(X, Y), penalties.L21(0.1))
VIEWED = PROBLEM.replace(penalty=penalties.ExclusiveGroupLasso(0.1, groups.label_views(K, 1)))
COLUMN = sj.Problem(losses.LogisticLoss(X, LABELS[:, 0]), penalties.L1(0.1))
EXCLUSIVE = sj.Problem(losses.SquaredLoss(X, Y), penalties.ExclusiveL21(0.1, 0.1))
GROUPED = sj.Problem(losses.SquaredLoss(X, Y), penalties.ExclusiveGroupL21(0.1, PAIRS))
LOGISTIC = sj.Problem(losses.LogisticLoss(X, LABELS), penalties.L21(0.1))
STACKED = jax.vmap(penalties.L21)(np.array([0.2, 0.1]))
SIMILAR = np.array([[0.0, 0.5], [0.5, 0.0]])
BAGS = np.arange(N) // 2
BAG_SIGNS = np.where(np.arange(N // 2) % 2, 1, -1)
MEASURE = models.multivariate.f_beta()


DATA = {"X": X, "Y": Y}
HISTORY = sj.solution.History(np.ones(3), np.ones(3))
SOLUTION = sj.Solution(W, np.ones(()), np.zeros(()), np.zeros(()), np.int32(3), np.int32(1), HISTORY)
SOLUTIONS = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), SOLUTION)
ALL = np.ones((3, 2))
FOLDED = sj.CrossValidation(STACKED, ALL, ALL, 0 * ALL, ALL > 0)
STABLE = sj.StabilitySelection(
    np.ones((2, D)), np.ones(D, bool), np.ones(()), np.ones(()), np.zeros((4, 2)), np.ones((4, 2), bool)
)
TRIED = sj.selection.tuning.Tried(STACKED, np.ones(2), np.ones(2), np.zeros(2))
TUNED = sj.Tuning(penalties.L21(0.1), SOLUTION, np.ones(()), np.int32(2), np.int32(1), TRIED)
PENALTY_METHODS = {
    "value": {"W": jnp.asarray(W)},
    "prox": {"V": jnp.asarray(W), "scaling": 1.0},
    "conjugate": {"Z": jnp.asarray(W)},
    "dual_scale": {"Z": jnp.asarray(W)},
    "__mul__": {"factor": 2.0},
}
PATH = {"problem": PROBLEM, "penalties": STACKED, "maxiter": 50}
CUT = {"measure": MEASURE, "budget": 2.0, "C": 1.0}
LINEAR = {
    "SquaredLoss": Y,
    "LogisticLoss": LABELS,
    "SquaredHingeLoss": SIGNS,
    "HuberHingeLoss": SIGNS,
    "PoissonLoss": LABELS,
    "HuberLoss": Y,
    "SoftmaxLoss": ONE_OF,
}
NAMED = {"scale": None, "weights": None, "intercept": False}


@functools.cache
def fitted(name: str) -> Any:
    """A model, fitted when it is first asked for."""
    if name in ESTIMATORS:
        return fit_of(name)(**ESTIMATORS[name])
    y, one_vs_rest = SIGNS[:, 0], models.multivariate.fit_one_vs_rest
    return {
        "multivariate": lambda: models.multivariate.fit(X, y, **CUT),
        "one_vs_rest": lambda: one_vs_rest(X, np.arange(N) % 3, **CUT),
        "mil": lambda: models.mil.fit(X, BAGS, BAG_SIGNS, **CUT),
        "exclusive_l21": lambda: models.exclusive_l21.fit(X, np.arange(N) % 3, 0.1, 0.1),
        "uncorrelated_group": lambda: models.uncorrelated_group.fit(X, LABELS, alpha=0.1, groups=PAIRS),
        "multi_semantic": lambda: models.multi_semantic.fit(X, ONE_OF, ONE_OF, 0.1),
        "ofa_lasso": lambda: models.ofa_lasso.fit(X, Y, 0.1, 0.1),
    }[name]()


def fit_of(name: str) -> Callable[..., Any]:
    """The constructor of an estimator and its ``fit`` as one function of all their arguments."""
    kind = getattr(estimators, name)
    own = inspect.signature(kind).parameters

    def fit(**given: Any) -> Any:
        made = kind(**{key: value for key, value in given.items() if key in own})
        return made.fit(**{key: value for key, value in given.items() if key not in own})

    return fit


def method_of(name: str, method: str) -> Callable[..., Any]:
    """A method of a model that is fitted when it is first called."""

    def call(**given: Any) -> Any:
        return getattr(fitted(name), method)(**given)

    return call


TABLES = {"X": X, "y": Y[:, 0], "sample_weight": np.ones(N)}
CLASSES = {"X": X, "y": np.arange(N) % 3}
WEIGHED = {**CLASSES, "sample_weight": np.ones(N)}
TIMES = {**TABLES, "y": np.stack([LABELS[:, 0], 1.0 + np.arange(N)], axis=1)}
LATE = {"strata": np.arange(N) % 2, "entry": 0.5 * np.arange(N)}
ONE = {"penalty": "l1", "alpha": 0.1, "beta": 0.1, "tol": 1e-4, "max_iter": 100}
FOLDS = {
    **{"penalty": "exclusive_l21", "alphas": [0.2, 0.1], "betas": 0.1, "tol": 1e-4, "max_iter": 100},
    **{"cv": 3, "scoring": None, "selection": "best", "progress": False, "checkpoint": None, "verbose": 0},
}
LINES = {"groups": None, "fit_intercept": True}
QUANTILE = {**LINES, "loss": "quantile", "quantile": 0.5}
LABELLED = {**LINES, "loss": "softmax", "class_weight": None}
GROUPED_BY = {"penalty": "group_lasso", "groups": [[0, 1], [2, 3]]}
MEASURED = {"measure": "f1", "budget": 2.0, "C": 1.0, "tol": 1e-2, "max_iter": 100}
ESTIMATORS: dict[str, dict[str, Any]] = {
    "SparseRegressor": {**ONE, **QUANTILE, **TABLES},
    "SparseRegressorCV": {**FOLDS, **QUANTILE, **TABLES},
    "SparseClassifier": {**ONE, **LABELLED, **WEIGHED},
    "SparseClassifierCV": {**FOLDS, **LABELLED, **WEIGHED},
    "SparseCox": {**ONE, "ties": "breslow", **TIMES, **LATE},
    "SparseCoxCV": {**FOLDS, "ties": "breslow", **TIMES, **LATE},
    "StabilitySelector": {
        **{
            "penalty": "exclusive_l21",
            "loss": "squared",
            "alphas": [0.2, 0.1],
            "beta": 0.1,
            "num_subsamples": 4,
        },
        **{"fraction": 0.5, "threshold": 0.6, "random_state": 0, "tol": 1e-4, "X": X, "y": Y[:, 0]},
    },
    "UncorrelatedGroupClassifier": {
        **{"groups": None, "threshold": 0.5, "loss": "logistic", "alpha": 0.1, "tol": 1e-4, "max_iter": 100},
        **WEIGHED,
    },
    "LabelViewsClassifier": {"alpha": 0.1, "beta": 0.1, "tol": 1e-4, "max_iter": 100, **WEIGHED},
    "MultivariateClassifier": {**MEASURED, **CLASSES},
    "MILESClassifier": {**MEASURED, "bandwidth": None, **CLASSES, "bag_ids": np.arange(N)},
    "OFALassoRegressor": {
        **{"alpha": 0.1, "beta": 0.1, "kernel": "gaussian", "input": "kernel", "bandwidth": None},
        **{"output_bandwidth": None, "degree": 3, "tol": 1e-2, "max_iter": 20, "X": X, "y": Y[:, 0]},
    },
}
SCORED = {"X": X, "y": np.arange(N) % 3}
# Without those that are scikit-learn's own.
METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "SparseRegressor": {"predict": {"X": X}, "score": TABLES},
    "SparseClassifier": {"predict": {"X": X}, "predict_proba": {"X": X}},
    "SparseCox": {
        "predict": {"X": X},
        "predict_survival_function": {"X": X, "times": [1.0, 2.0], "strata": LATE["strata"]},
        "score": TIMES,
    },
    "UncorrelatedGroupClassifier": {"predict_proba": {"X": X}},
    "LabelViewsClassifier": {"marginals": {"X": X}, "score": WEIGHED},
    "MILESClassifier": {"predict": {"X": X, "bag_ids": np.arange(N)}},
    "OFALassoRegressor": {"predict": {"X": X}},
    "multivariate": {
        "predict": {"X": X, "threshold": 0.0},
        "decision_function": {"X": X},
        "score": {"X": X, "y": SIGNS[:, 0]},
    },
    "one_vs_rest": {"predict": {"X": X}, "decision_function": {"X": X}, "score": SCORED},
    "mil": {
        "predict": {"instances": X, "bag_ids": BAGS, "threshold": 0.0},
        "score": {"instances": X, "bag_ids": BAGS, "y": BAG_SIGNS},
    },
    "exclusive_l21": {"predict": {"X": X}, "score": SCORED},
    "uncorrelated_group": {
        "predict": {"X": X, "threshold": 0.5},
        "predict_proba": {"X": X},
        "score": {"X": X, "Y": LABELS},
    },
    "multi_semantic": {
        "predict": {"X": X},
        "marginals": {"X": X},
        "score": {"X": X, "Y1": ONE_OF, "Y2": ONE_OF},
    },
    "ofa_lasso": {
        "predict": {"X": X},
        "predict_with_info": {"X": X, "num_starts": 1, "tol": None, "maxiter": 20},
        "score": {"X": X, "Y": Y},
    },
}


def drawn(picture: Callable[..., Any]) -> Callable[..., Any]:
    """The picture, drawn until the pixels; into axes of its own if none are given."""

    def draw(*, ax: Any = None, **given: Any) -> None:
        axes = picture(**given, ax=Figure((2, 2), dpi=20).subplots() if ax is None else ax)
        axes.figure.canvas.draw()

    return draw


NAMES = {"feature_names": None, "ax": None}
PICTURES: dict[str, dict[str, Any]] = {
    "convergence": {"solutions": SOLUTION, "quantity": "objective", "optimum": 0.5, "ax": None},
    "correlation": {"X": X, "selected": np.array([0, 2]), **NAMES},
    "cross_validation": {"result": FOLDED, "strengths": [0.2, 0.1], "ax": None},
    "path": {"solutions": SOLUTIONS, "strengths": [0.2, 0.1], "chosen": 1, "task": 0, **NAMES},
    "stability": {"result": STABLE, "strengths": [0.2, 0.1], "threshold": 0.6, **NAMES},
    "support": {"weights": Y[:D], "task_names": None, **NAMES},
    "tuning": {"tunings": TUNED, "ax": None},
}


def squares(w: jax.Array) -> jax.Array:
    return jnp.sum((w - 1) ** 2) / 2


def shrunk(x: Any, strength: Any = 1.0, scaling: Any = 1.0) -> Any:
    return x / (1 + strength * scaling)


def trained(params: Any, step_size: Any, penalty: Any, optimizer: Any) -> Any:
    """One step of `proximal`."""
    found = proximal(optimizer, penalty, step_size)
    return found.update(params, found.init(params), params)


def descended(init_params: Any, hyperparams_prox: Any, **options: Any) -> Any:
    return jaxopt.ProximalGradient(**options).run(init_params, hyperparams_prox)


CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    **{name: (getattr(losses, name), {"X": X, "Y": Y_, **NAMED}) for name, Y_ in LINEAR.items()},
    "HuberLoss delta": (losses.HuberLoss, {**DATA, "delta": 1.0}),
    "HuberHingeLoss delta": (losses.HuberHingeLoss, {"X": X, "Y": SIGNS, "delta": 0.5}),
    "QuantileLoss": (losses.QuantileLoss, {**DATA, "q": 0.3, "smoothing": 0.1, **NAMED}),
    "CoxLoss": (losses.CoxLoss, {"X": X, "time": 1.0 + np.arange(N), "event": LABELS[:, 0], **NAMED}),
    "CoxLoss late": (
        losses.CoxLoss,
        {
            "X": X,
            "time": 1.0 + np.arange(N),
            "event": LABELS[:, 0],
            "ties": "efron",
            "strata": np.arange(N) % 2,
            "entry": 0.5 * np.arange(N),
        },
    ),
    "GramLoss": (losses.GramLoss, {"G": X.T @ X, "B": X.T @ Y, "constant": np.sum(Y * Y)}),
    "GraphLaplacian": (losses.GraphLaplacian, {"similarity": SIMILAR, "strength": 0.1}),
    "from_batches": (losses.from_batches, {"loss": losses.SquaredLoss, "batches": [(X, Y)] * 2, **NAMED}),
    "SquaredLoss.from_batches": (
        losses.SquaredLoss.from_batches,
        {"batches": [(X, Y)] * 2, "folds": 1, "scale": None, "intercept": False},
    ),
    "observed": (losses.observed, {"Y": Y}),
    "predictions": (losses.SquaredLoss(X, Y).predictions, {"W": W}),
    "evaluate": (losses.SquaredLoss(X, Y).evaluate, {"W": W}),
    "L1": (penalties.L1, {"strength": 0.1}),
    "L21": (penalties.L21, {"alpha": 0.1}),
    "L1Inf": (penalties.L1Inf, {"alpha": 0.1}),
    "ExclusiveL21": (penalties.ExclusiveL21, {"alpha": 0.1, "beta": 0.1}),
    "ExclusiveLasso": (penalties.ExclusiveLasso, {"beta": 0.1}),
    "ExclusiveGroupL21": (penalties.ExclusiveGroupL21, {"alpha": 0.1, "groups": PAIRS}),
    "ExclusiveGroupLasso": (penalties.ExclusiveGroupLasso, {"strength": 0.1, "views": VIEWS}),
    "GroupLasso": (penalties.GroupLasso, {"alpha": 0.1, "groups": PAIRS}),
    "SquaredL2": (penalties.SquaredL2, {"strength": 0.1}),
    "Problem": (sj.Problem, {"smooth": PROBLEM.smooth, "penalty": PROBLEM.penalty}),
    "Box": (penalties.Box, {"low": -1.0, "high": 1.0}),
    "ByLeaf": (penalties.ByLeaf, {"penalties": {"a": penalties.L1(0.1), "b": None}}),
    "ElasticNet": (penalties.ElasticNet, {"alpha": 0.1, "l1_ratio": 0.5}),
    "SparseGroupLasso": (penalties.SparseGroupLasso, {"alpha": 0.1, "l1_ratio": 0.5, "groups": PAIRS}),
    "SortedL1": (penalties.SortedL1, {"strengths": np.arange(D)[::-1] / 10}),
    "slope_strengths": (penalties.slope_strengths, {"d": D, "q": 0.1}),
    "Sum": (penalties.Sum, {"parts": [penalties.L1(0.1), penalties.NonNegative()]}),
    "SumTo": (penalties.SumTo, {"total": 1.0}),
    "TotalVariation": (penalties.TotalVariation, {"strength": 0.1}),
    **{
        f"{name} {method}": (getattr(penalty, method), good)
        for name, penalty in {"L21": PROBLEM.penalty, "ExclusiveGroupL21": GROUPED.penalty}.items()
        for method, good in PENALTY_METHODS.items()
    },
    "prox.l1": (prox.l1, {"x": W, "strength": 0.1, "scaling": 1.0}),
    "prox.l2": (prox.l2, {"x": W[0], "strength": 0.1, "scaling": 1.0}),
    "prox.linf": (prox.linf, {"x": W[0], "strength": 0.1, "scaling": 1.0}),
    "prox.sorted_l1": (prox.sorted_l1, {"x": Y[:D, 0], "strengths": np.arange(D)[::-1] / 10, "scaling": 1.0}),
    "prox.total_variation": (prox.total_variation, {"x": Y[:, 0], "strength": 0.1, "scaling": 1.0}),
    "prox.squared_l1": (prox.squared_l1, {"x": W[0], "beta": 0.1, "scaling": 1.0}),
    "prox.exclusive_l21": (prox.exclusive_l21, {"x": W[0], "alpha": 0.1, "beta": 0.1, "scaling": 1.0}),
    "prox.exclusive_group_l21": (
        prox.exclusive_group_l21,
        {"V": W, "alpha": 0.1, "groups": PAIRS, "scaling": 1.0},
    ),
    "from_correlation": (groups.from_correlation, {"X": X, "threshold": 0.5}),
    "from_labels": (groups.from_labels, {"labels": np.array([0, 0, 1, 1])}),
    "label_views": (lambda sizes: groups.label_views(sizes, 2), {"sizes": 2}),
    "graphs.from_views": (lambda view: graphs.from_views(view, 2), {"view": 2}),
    "from_lists": (groups.from_lists, {"lists": [[0, 1], [2, 3]], "num_features": D}),
    "ngd_similarity": (graphs.ngd_similarity, {"Y": LABELS}),
    "gaussian": (kernels.gaussian, {"X": X, "Z": X, "bandwidth": 1.0}),
    "linear": (kernels.linear, {"X": X, "Z": X}),
    "polynomial": (kernels.polynomial, {"X": X, "Z": X, "degree": 2, "scale": 1.0, "offset": 1.0}),
    "median_bandwidth": (kernels.median_bandwidth, {"X": X}),
    "squared_distances": (kernels.squared_distances, {"X": X, "Z": X}),
    "accuracy": (metrics.accuracy, {"Y_true": LABELS, "Y_pred": LABELS}),
    "auc": (metrics.auc, {"Y_true": LABELS[:, 0], "scores": Y[:, 0]}),
    "mean_auc": (metrics.mean_auc, {"Y_true": LABELS, "scores": Y}),
    "precision_recall_f1": (metrics.precision_recall_f1, {"Y_true": LABELS, "Y_pred": LABELS}),
    "r2": (metrics.r2, {"Y_true": Y, "Y_pred": Y}),
    "mean_abs_correlation": (metrics.mean_abs_correlation, {"X": X, "selected": np.array([0, 1])}),
    "concordance_index": (
        metrics.concordance_index,
        {"time": 1.0 + np.arange(N), "event": LABELS[:, 0], "risk": Y[:, 1], "weights": None},
    ),
    "selection_error": (metrics.selection_error, {**DATA, "order": np.arange(D)}),
    "rank_features": (sj.rank_features, {"W": W, "num": 2}),
    "lambda_max": (sj.lambda_max, {"problem": PROBLEM}),
    "duality_gap": (sj.duality_gap, {"problem": PROBLEM, "W": W}),
    "predict": (sj.predict, {"solution": SOLUTION, "problem": PROBLEM, "X": X}),
    "smoothed_apg": (sj.smoothed_apg, {"problem": VIEWED, "init": W, "maxiter": 50}),
    "solve": (sj.solve, {"problem": PROBLEM, "init": W, "maxiter": 50}),
    "admm": (sj.admm, {"problem": PROBLEM, "init": W, "maxiter": 50}),
    "fista": (sj.fista, {"problem": PROBLEM, "init": W, "maxiter": 50}),
    "davis_yin": (sj.davis_yin, {"problem": EXCLUSIVE, "init": W, "maxiter": 50}),
    "alm": (sj.alm, {"problem": EXCLUSIVE, "init": W, "maxiter": 50}),
    "irls": (sj.irls, {"problem": GROUPED, "init": W, "maxiter": 50}),
    "working_set": (sj.working_set, {"problem": PROBLEM, "init": W, "maxiter": 50}),
    "variational_newton": (sj.variational_newton, {"problem": PROBLEM, "init": W, "maxiter": 50}),
    "prox_newton": (sj.prox_newton, {"problem": COLUMN, "init": W[:, 0], "maxiter": 50}),
    "newton_admm": (sj.newton_admm, {"problem": LOGISTIC, "init": W, "maxiter": 50}),
    "path": (sj.path, PATH),
    "cross_validate": (sj.cross_validate, {**PATH, "folds": np.arange(N) % 3}),
    "stability_selection": (sj.stability_selection, {**PATH, "num_subsamples": 4}),
    "tune": (sj.tune, {"problem": PROBLEM, "held_out": PROBLEM.smooth, "maxiter": 2}),
    "ofa_lasso.fit": (models.ofa_lasso.fit, {**DATA, "lam": 0.1, "beta": 0.1, "maxiter": 20}),
    "ofa_lasso.cross_validate": (
        models.ofa_lasso.cross_validate,
        {**DATA, "lams": [0.1], "betas": [0.1], "maxiter": 20},
    ),
    "multivariate.fit": (models.multivariate.fit, {"X": X, "y": SIGNS[:, 0], **CUT}),
    "multivariate.path": (models.multivariate.path, {"X": X, "y": SIGNS[:, 0], **CUT, "C": [1.0]}),
    "multivariate.fit_one_vs_rest": (
        models.multivariate.fit_one_vs_rest,
        {"X": X, "y": np.arange(N) % 3, **CUT},
    ),
    "most_violated": (
        models.multivariate.most_violated,
        {"measure": MEASURE, "v": Y[:, 0], "y": SIGNS[:, 0]},
    ),
    "tune_threshold": (
        models.multivariate.tune_threshold,
        {"measure": MEASURE, "v": Y[:, 0], "y": SIGNS[:, 0]},
    ),
    "f_beta": (models.multivariate.f_beta, {"beta": 1.0}),
    "precision_at": (models.multivariate.precision_at, {"k": 2}),
    "recall_at": (models.multivariate.recall_at, {"k": 2}),
    "hamming": (models.multivariate.hamming, {"scale": 1.0}),
    "mil.fit": (models.mil.fit, {"instances": X, "bag_ids": BAGS, "y": BAG_SIGNS, **CUT}),
    "mil.embed": (models.mil.embed, {"instances": X, "bag_ids": BAGS, "prototypes": X[:3], "bandwidth": 1.0}),
    "mil.median_bandwidth": (models.mil.median_bandwidth, {"instances": X}),
    "uncorrelated_group.fit": (
        models.uncorrelated_group.fit,
        {"X": X, "Y": LABELS, "alpha": 0.1, "groups": PAIRS, "maxiter": 50},
    ),
    "multi_semantic.fit": (
        models.multi_semantic.fit,
        {"X": X, "Y1": ONE_OF, "Y2": ONE_OF, "strength": 0.1, "maxiter": 50},
    ),
    "multi_semantic.enrich": (models.multi_semantic.enrich, {"scores1": Y, "scores2": Y}),
    "exclusive_l21.fit": (
        models.exclusive_l21.fit,
        {"X": X, "y": np.arange(N) % 3, "alpha": 0.1, "beta": 0.1, "maxiter": 50},
    ),
    "proximal": (
        trained,
        {
            **{"params": jnp.ones(D), "step_size": 0.1, "penalty": penalties.L1(0.1)},
            **{"optimizer": optax.sgd(0.1)},
        },
    ),
    "ProximalGradient": (
        descended,
        {
            **{"init_params": jnp.zeros(D), "hyperparams_prox": 0.25, "fun": squares, "prox": shrunk},
            **{"maxiter": 50, "tol": 1e-3, "stepsize": 0.0, "has_aux": False},
        },
    ),
    "ProjectedGradient": (jaxopt.ProjectedGradient, {"fun": squares, "projection": shrunk}),
    "FromProx": (jaxopt.FromProx, {"fun": shrunk, "value": None}),
    "from_projection": (jaxopt.from_projection, {"projection": shrunk}),
    "jaxopt.prox": (jaxopt.prox, {"penalty": penalties.L1}),
    "to_jaxopt": (jaxopt.to_jaxopt, {"problem": PROBLEM}),
    **{f"plots.{name}": (drawn(getattr(plots, name)), good) for name, good in PICTURES.items()},
    **{name: (fit_of(name), good) for name, good in ESTIMATORS.items()},
    "SparseRegressor groups": (fit_of("SparseRegressor"), {**TABLES, **GROUPED_BY, "alpha": 0.1}),
    "SparseRegressor offset": (
        fit_of("SparseRegressor"),
        {**TABLES, "loss": "poisson", "y": np.arange(N) % 3, "offset": np.zeros(N)},
    ),
    **{
        f"{name}.{method}": (method_of(name, method), good)
        for name, of_model in METHODS.items()
        for method, good in of_model.items()
    },
}
