"""Malformed calls, drawn from the signatures: each must end in an error that names the argument, or honestly.

    python tests/soak/fuzz.py [--calls 20000] [--seed 0]

A call is a good one (`CALLS`) in which one argument is replaced by a value drawn for what it is (`KINDS`, by
its name). What is never right must raise a TypeError or ValueError of ours that names the argument; what may
be right must do so, too, or return, and then nothing may say converged that is not finite.
"""

import argparse
import collections
import functools
import inspect
import re
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse

import sparsejax as sj
from sparsejax import graphs, groups, kernels, losses, metrics, models, penalties, prox

PACKAGE = str(Path(sj.__file__).parent)
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
COLUMN = sj.Problem(losses.LogisticLoss(X, LABELS[:, 0]), penalties.L1(0.1))
EXCLUSIVE = sj.Problem(losses.SquaredLoss(X, Y), penalties.ExclusiveL21(0.1, 0.1))
GROUPED = sj.Problem(losses.SquaredLoss(X, Y), penalties.ExclusiveGroupL21(0.1, PAIRS))
LOGISTIC = sj.Problem(losses.LogisticLoss(X, LABELS), penalties.L21(0.1))
STACKED = jax.vmap(penalties.L21)(np.array([0.2, 0.1]))
SIMILAR = np.array([[0.0, 0.5], [0.5, 0.0]])
BAGS = np.arange(N) // 2
BAG_SIGNS = np.where(np.arange(N // 2) % 2, 1, -1)
MEASURE = models.multivariate.f_beta()


# ------------------------------------------------------------------ values


class Drawn(NamedTuple):
    """A value in place of an argument."""

    value: Any
    never: bool  # it must be refused


class Opaque:
    """Of no use to anybody."""


def never(*values: Any) -> list[Drawn]:
    return [Drawn(value, True) for value in values]


def maybe(*values: Any) -> list[Drawn]:
    return [Drawn(value, False) for value in values]


STRANGE = (
    "text",
    {"a": 1},
    Opaque(),
    len,
    np.float64,
    1j,
    np.datetime64("2020-01-01"),
    [[1, 2], [3]],
    {1, 2},
)


def arrays(rng: np.random.Generator, good: Any) -> list[Drawn]:
    """In place of an array."""
    good = np.asarray(good)
    shape = good.shape or (1,)
    poisoned = np.array(good, float)
    if poisoned.size:
        poisoned.flat[rng.integers(poisoned.size)] = rng.choice([np.nan, np.inf, -np.inf])
    masked = np.ma.masked_array(good, np.arange(good.size).reshape(good.shape) == 0)
    other = tuple(int(s) for s in rng.integers(0, 4, rng.integers(0, 4)))
    return [
        *never(
            *STRANGE,
            poisoned,
            masked,
            np.full(shape, "a"),
            good + 1j,
            np.full(shape, np.datetime64("2020-01-01")),
            np.array([{}] * max(good.size, 1), object).reshape(shape),
            np.zeros((2, 2, 2, 2)),
        ),
        *maybe(
            None,
            0,
            True,
            -1.5,
            np.zeros(shape),
            good[:-1] if good.ndim else 2.0,
            good.tolist(),
            -good,
            good.T,
            np.float64(1e38) * good.astype(np.float32),
            good.astype(np.int64),
            good.astype(np.float16),
            good > 0,
            np.zeros(other),
            rng.standard_normal(other),
            scipy.sparse.coo_array(np.atleast_2d(good)),
            1e300 * good,
            5e-324 * np.ones(shape),
            np.asfortranarray(good),
            good[None],
            [],
        ),
    ]


def numbers(rng: np.random.Generator, good: Any) -> list[Drawn]:
    """In place of a real number."""
    return [
        *never(
            *STRANGE,
            np.nan,
            "0.1",
            b"1",
            np.zeros((2, 3, 4, 5)),
            [None],
            np.array(["x"]),
            np.array(None),
            np.ma.masked,
            [[]],
        ),
        *maybe(
            None,
            0,
            -1,
            True,
            np.float16(1),
            np.inf,
            -np.inf,
            1e-320,
            1e300,
            10.0 ** rng.uniform(-12, 12),
            [1.0],
            np.ones(D),
            np.ones((D, K)),
            -(10.0 ** rng.uniform(-12, 12)),
            np.float32(0.5),
            np.int8(3),
            2**70,
            [],
            (),
        ),
    ]


def counts(rng: np.random.Generator, good: Any) -> list[Drawn]:
    """In place of an integer."""
    return [
        *never(
            *STRANGE,
            np.nan,
            "3",
            1.5,
            np.inf,
            -1,
            -(2**40),
            [1.5],
            np.float32(0.5),
            np.array(["x"]),
            np.zeros((2, 3, 4)),
            [None],
        ),
        *maybe(None, 0, 1, True, 2.0, 2**31, 2**40, 2**70, [1, 2], np.int8(3), np.uint64(2), [], (1,)),
    ]


def ids(rng: np.random.Generator, good: Any) -> list[Drawn]:
    """In place of integers that name something."""
    good = np.arange(N) % 3 if np.ndim(good) == 0 else np.asarray(good)
    far = np.array(good)
    far.flat[0] = 2**40
    return [
        *never(*STRANGE, good * np.nan, good[..., None, None]),
        *maybe(
            good + 0.5,
            np.full(good.shape, "a"),
            good + 1j,
            far,
            -1 - good,
            None,
            3,
            good[:-1],
            good.astype(float),
            good.astype(str),
            good > 0,
            [],
            [1, "a", None, 2.5],
            np.ma.masked_array(good, good == 0),
            good.astype(np.uint8),
            good.tolist(),
            np.zeros((2, 2, 2, 2)),
            good.astype(object),
            np.full(good.shape, np.datetime64("2020-01-01")),
        ),
    ]


def switches(rng: np.random.Generator, good: Any) -> list[Drawn]:
    """In place of True or False; or of the values of an intercept."""
    if not isinstance(good, bool) and good is not None:
        return numbers(rng, good)
    return never(
        *STRANGE, 0, 1, 2, None, "yes", "True", 1.0, np.array([True, False]), [], [True], np.nan, np.int64(1)
    )


def choices(rng: np.random.Generator, good: Any) -> list[Drawn]:
    """In place of a name."""
    return never(
        "", "no such", good.upper() + "x", 0, 1.5, None, [good], {good: 1}, Opaque(), np.zeros(2), True
    )


def objects(rng: np.random.Generator, good: Any) -> list[Drawn]:
    """In place of an object of ours."""
    return never(
        "text",
        3,
        1.5,
        {"a": 1},
        Opaque(),
        [good, good],
        type(good),
        np.zeros(3),
        np.datetime64("2020-01-01"),
        sj.Problem,
        [1, "a"],
        1j,
    )


# ------------------------------------------------------------------ calls

KINDS: dict[str, Callable[..., list[Drawn]]] = {
    **dict.fromkeys(
        (
            "X",
            "Y",
            "Z",
            "W",
            "V",
            "x",
            "y",
            "init",
            "weights",
            "time",
            "event",
            "entry",
            "Y_true",
            "Y_pred",
            "scores",
            "similarity",
            "instances",
            "prototypes",
            "scores1",
            "scores2",
            "Y1",
            "Y2",
            "v",
            "G",
            "B",
        ),
        arrays,
    ),
    **dict.fromkeys(
        (
            "alpha",
            "beta",
            "strength",
            "scaling",
            "scale",
            "delta",
            "q",
            "smoothing",
            "tol",
            "threshold",
            "eta",
            "bandwidth",
            "output_bandwidth",
            "offset",
            "lam",
            "lams",
            "betas",
            "mu",
            "growth",
            "fraction",
            "low",
            "high",
            "solver_tol",
            "epsilon",
            "stepsize",
            "budget",
            "C",
            "eps_delta",
            "constant",
        ),
        numbers,
    ),
    **dict.fromkeys(
        (
            "maxiter",
            "history",
            "num",
            "num_subsamples",
            "seed",
            "degree",
            "num_starts",
            "k",
            "num_features",
            "solver_maxiter",
            "workers",
        ),
        counts,
    ),
    **dict.fromkeys(("labels", "bag_ids", "order", "selected", "lists", "folds"), ids),
    **dict.fromkeys(
        (
            "intercept",
            "throw",
            "faithful",
            "polish",
            "continuation",
            "refit",
            "progress",
            "centered",
        ),
        switches,
    ),
    **dict.fromkeys(("mode", "average", "kernel", "input", "method", "schedule"), choices),
    **dict.fromkeys(("problem", "penalties", "penalty", "smooth", "groups", "views", "held_out"), objects),
}

DATA = {"X": X, "Y": Y}
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
    if name == "multivariate":
        return models.multivariate.fit(X, SIGNS[:, 0], **CUT)
    if name == "mil":
        return models.mil.fit(X, BAGS, BAG_SIGNS, **CUT)
    if name == "uncorrelated_group":
        return models.uncorrelated_group.fit(X, LABELS, alpha=0.1, groups=PAIRS)
    return models.ofa_lasso.fit(X, Y, 0.1, 0.1)


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
    "prox.l1": (prox.l1, {"x": W, "strength": 0.1, "scaling": 1.0}),
    "prox.l2": (prox.l2, {"x": W[0], "strength": 0.1, "scaling": 1.0}),
    "prox.linf": (prox.linf, {"x": W[0], "strength": 0.1, "scaling": 1.0}),
    "prox.squared_l1": (prox.squared_l1, {"x": W[0], "beta": 0.1, "scaling": 1.0}),
    "prox.exclusive_l21": (prox.exclusive_l21, {"x": W[0], "alpha": 0.1, "beta": 0.1, "scaling": 1.0}),
    "prox.exclusive_group_l21": (
        prox.exclusive_group_l21,
        {"V": W, "alpha": 0.1, "groups": PAIRS, "scaling": 1.0},
    ),
    "from_correlation": (groups.from_correlation, {"X": X, "threshold": 0.5}),
    "from_labels": (groups.from_labels, {"labels": np.array([0, 0, 1, 1])}),
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
    "selection_error": (metrics.selection_error, {**DATA, "order": np.arange(D)}),
    "rank_features": (sj.rank_features, {"W": W, "num": 2}),
    "lambda_max": (sj.lambda_max, {"problem": PROBLEM}),
    "duality_gap": (sj.duality_gap, {"problem": PROBLEM, "W": W}),
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
    "multivariate.predict": (lambda X: fitted("multivariate").predict(X), {"X": X}),
    "multivariate.score": (lambda X, y: fitted("multivariate").score(X, y), {"X": X, "y": SIGNS[:, 0]}),
    "uncorrelated_group.predict": (lambda X: fitted("uncorrelated_group").predict(X), {"X": X}),
    "ofa_lasso.predict": (lambda X: fitted("ofa_lasso").predict(X), {"X": X}),
    "mil.predict": (
        lambda instances, bag_ids: fitted("mil").predict(instances, bag_ids),
        {"instances": X, "bag_ids": BAGS},
    ),
    "multi_semantic.fit": (
        models.multi_semantic.fit,
        {"X": X, "Y1": ONE_OF, "Y2": ONE_OF, "strength": 0.1, "maxiter": 50},
    ),
    "multi_semantic.enrich": (models.multi_semantic.enrich, {"scores1": Y, "scores2": Y}),
}


@functools.cache
def arguments_of(name: str) -> dict[str, Any]:
    """What may be replaced: the good value of every argument that has a kind."""
    function, good = CALLS[name]
    found = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in KINDS:
            default = None if parameter.default is inspect.Parameter.empty else parameter.default
            found[parameter.name] = good.get(parameter.name, default)
    return found | {key: value for key, value in good.items() if key in KINDS}


# ------------------------------------------------------------------ a call


class Outcome(NamedTuple):
    what: str  # "clear", "unclear", "raw", "accepted", "must be refused", "dishonest"
    told: str


def outcome(name: str, argument: str, drawn: Drawn) -> Outcome:
    """What comes of the call with the argument replaced."""
    function, good = CALLS[name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = function(**good | {argument: drawn.value})
            jax.block_until_ready(jax.tree.leaves(result))
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        inside = traceback.extract_tb(error.__traceback__)[-1].filename.startswith(PACKAGE)
        if not isinstance(error, (TypeError, ValueError)) or not inside:
            return Outcome("raw", told)
        return Outcome("clear" if re.search(rf"\b{argument}\b", str(error)) else "unclear", told)
    if drawn.never:
        return Outcome("must be refused", repr(result)[:200])
    if not honest(result):
        return Outcome("dishonest", repr(result)[:200])
    return Outcome("accepted", "")


def honest(result: Any) -> bool:
    """Nothing that is not finite is said to have converged."""
    if not isinstance(result, sj.Solution):
        return True
    return not np.asarray(result.converged).any() or bool(np.isfinite(np.asarray(result.params)).all())


# What is wrong elsewhere is right here: groups of several lengths, a function that is told of the progress,
# any rank, targets of which some are missing.
RIGHT = {("from_lists", "lists"), ("multivariate.fit", "progress"), ("prox.l1", "x"), ("observed", "Y")}


def draw(rng: np.random.Generator) -> tuple[str, str, Drawn]:
    """A function, one of its arguments, a value in its place."""
    name = list(CALLS)[rng.integers(len(CALLS))]
    good = arguments_of(name)
    argument = list(good)[rng.integers(len(good))]
    default = np.ones(N) if good[argument] is None and KINDS[argument] is arrays else good[argument]
    values = KINDS[argument](rng, default)
    drawn = values[rng.integers(len(values))]
    if (drawn.value is None and good[argument] is None) or (name, argument) in RIGHT:
        drawn = drawn._replace(never=False)
    return name, argument, drawn


def violations(calls: int, seed: int) -> tuple[collections.Counter, list[str]]:
    """How the calls ended, and those that must not end so."""
    rng = np.random.default_rng(seed)
    ends: collections.Counter = collections.Counter()
    wrong = []
    for i in range(calls):
        name, argument, drawn = draw(rng)
        found = outcome(name, argument, drawn)
        ends[found.what] += 1
        if found.what not in ("clear", "accepted"):
            value = re.sub(r"\s+", " ", repr(drawn.value))[:80]
            wrong.append(f"{found.what}: {name}({argument}={value}): {found.told[:300]}")
        if i % 500 == 499:
            jax.clear_caches()
    return ends, wrong


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--calls", type=int, default=20_000)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    jax.config.update("jax_enable_x64", True)
    ends, wrong = violations(given.calls, given.seed)
    print("\n".join(sorted(set(wrong))))
    print(dict(ends))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
