r"""The experiments of Kong, Liu, Liu & Bao, AAAI 2016 (Uncorrelated Group LASSO), on data of their kind.

``python benchmarks/aaai16.py --data DIR --out DIR [--sets emotions,flags] [--only figure|table|report]``

The paper's images (MSRC, Barcelona, TRECVID) could not be had; these are other multi-label sets. Nominal
columns are one-hot; constant columns are dropped, the others standardised by the rows that a model is
fitted to. Of the sets in ``ROWS`` that many rows are drawn; in those of ``RESTRICTED``, labels with fewer
than 20 positives in these rows are left out. The tables say how many remain.

**Groups.** One group for each pair of features whose absolute (centred) correlation exceeds theta = 0.3, as
in the paper. A feature in no pair is not penalised there. Where more than half of the features would be
free of the penalty, or more than half of all pairs would be groups, theta is instead the quantile of the
correlations that leaves each feature in 10 pairs, on average. "Covered": each feature in no pair is a group
by itself, so that all are penalised.

**Figure 2: selection error.** All rows; squared loss of the centred labels;

.. math:: J(X_r) = \min_W \|Y - X_r W\|_F^2 / \|Y\|_F^2

of r selected features. The paper sets the strength so that r rows of W are not zero. For l2,1 nearly every r
can be had. No strength empties the W of the exclusive group l2,1: as alpha grows W shrinks like 1/alpha and
its zero rows settle, with most rows still there if groups are pairs (a row in many pairs is pressed down by
as many terms of its own as by its neighbours), and features in no pair always. Hence these curves:

* "supports": the nonzero rows themselves, along a path of 40 strengths, for about 30 different numbers of
  rows at most. The strongest strength with that number counts.
* "by norm": the first r features by :math:`\|w_i\|`, at the strength at which the exclusive group l2,1 has
  the fewest rows (the weakest of these; its own for "covered"), for l2,1 at the strength with the nearest
  number. Only in this sense can the exclusive group l2,1 select 10 features of 72.
* "by norm, best strength": the least error over all strengths of the path, for each r on its own: the most
  that tuning the strength to r can give, and so a bound for what the paper's curves may be.
* "greedy": orthogonal least squares, which takes the feature that lowers J most, then the next.

**Table 2: prediction.** 5-fold cross-validation; logistic loss of each label with a free intercept; a label
is predicted where its probability exceeds 1/2. Methods:

* l2,1; l1,infinity; exclusive lasso (over the labels, for each feature); exclusive group l2,1, covered: where
  features without a penalty separate a label, the logistic loss has no minimiser. Relative duality gap 1e-4
  or ``MAXITER`` iterations, float32; the largest gap of the chosen models is in the table.
* ReliefF (10 neighbours) of each label, scores averaged over labels, on as many rows as ``RELIEF_BUDGET``
  allows; then scikit-learn's logistic regression (C = 1) of each label on the best features.

Each has one parameter, of 8 values, chosen by the micro F1 in 20 % of the training fold on a model of the
other 80 % (the first, if tied). Strengths are relative, from strong to weak: l2,1 and l1,infinity to the
one that empties W (1/2 to 1/100), exclusive lasso to 1, exclusive group l2,1 to 1 over the mean number of
groups of a feature (0.5 to 1e-3). ReliefF: the number of features, d/64 to d. The model is then fitted to
the whole training fold. Labels that are constant in the rows of a fit are left out of it and predicted as
that constant. 0/0 is 0 in precision and F1. The paper's MLSI, MDDM and MLLS, which project and do not
select, are not here.

Arrays have one shape for all folds, so that each method is compiled once a set: rows of weight 0 fill up the
smaller fits, two empty columns and groups of these fill up the smaller lists of groups (a feature without
a pair is paired with an empty one). None of this changes an answer.

Each set's numbers go to their own JSON file in ``--out`` as soon as they are known; a set that has one is not
run again (delete the file to do so). Tables and figures are rewritten from all files there.
"""

import argparse
import itertools
import json
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import matplotlib
import numpy as np
from _data import folder, load_multilabel
from fast_select import ReliefF
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold

import sparsejax as sj

matplotlib.use("Agg")
import matplotlib.pyplot as plt

SETS = ("flags", "emotions", "scene", "cal500", "medical", "bibtex", "corel5k")
ROWS = {"bibtex": 1000, "corel5k": 1500}
RESTRICTED, POSITIVES = ("cal500", "bibtex", "corel5k"), 20
THETA, FREE, DENSE, PAIRS = 0.3, 0.5, 0.5, 10
SEED, FOLDS, HELD = 0, 5, 0.2

PREFIX, POINTS = 200, 30  # the paper's axis ends at 200
SHOWN = (5, 10, 20, 50, 100, 200)

L21, L1INF, EXCLUSIVE = "l2,1", "l1,infinity", "exclusive lasso"
PRINTED, COVERED = "exclusive", "exclusive, covered"
OURS, RELIEF = "exclusive group l2,1", "ReliefF"
METHODS = (L21, L1INF, EXCLUSIVE, OURS, RELIEF)
MEASURES = ("macro precision", "macro F1", "micro precision", "micro F1")
GRID, TOL, MAXITER, RELIEF_BUDGET = 8, 1e-4, 300, 3e9


def dataset(data: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """X and Y of the rows and labels that are used."""
    X, Y = load_multilabel(data, name)
    if len(X) > ROWS.get(name, len(X)):
        rows = np.random.default_rng(SEED).choice(len(X), ROWS[name], replace=False)
        X, Y = X[rows], Y[rows]
    return X, Y[:, Y.sum(0) >= POSITIVES] if name in RESTRICTED else Y


def standardise(X, fit):
    """All rows by the mean and deviation of the rows ``fit``; columns constant in these become 0."""
    mean, deviation = X[fit].mean(0), X[fit].std(0)
    varies = deviation > 1e-12 * np.maximum(1, abs(mean))
    return np.where(varies, (X - mean) / np.where(varies, deviation, 1), 0), varies


class Pairs(NamedTuple):
    """The pairs of correlated features, and the threshold they come from."""

    lists: list  # [[s, t], ...]
    theta: float
    at_paper: dict  # what theta = 0.3 does

    def free(self, d: int) -> np.ndarray:
        """The features in no pair."""
        return np.setdiff1d(np.arange(d), np.array(self.lists, dtype=int).ravel())


def pairs_of(X) -> Pairs:
    """By the rule above; X has no constant column."""
    d = X.shape[1]
    R = abs(np.corrcoef(X.T))[np.triu_indices(d, 1)]
    groups = sj.groups.from_correlation(X, THETA)
    at_paper = {
        "pairs": groups.num_groups,
        "free": len(groups.free),
        "share of pairs": float(np.mean(R > THETA)),
    }
    theta = THETA
    if len(groups.free) > FREE * d or np.mean(R > THETA) > DENSE:
        theta = float(np.sort(R)[-min(len(R), PAIRS * d // 2 + 1)])
        groups = sj.groups.from_correlation(X, theta)
    return Pairs(groups.tolist(), theta, at_paper)


# ---------------------------------------------------------------- figure 2


def greedy(X, Y, count: int) -> np.ndarray:
    """Orthogonal least squares: the feature that lowers the residual most, one after the other."""
    X, C, size = X.copy(), X.T @ Y, (X**2).sum(0)
    order, first = [], size.copy()
    for _ in range(count):
        usable = size > 1e-10 * first
        gain = np.where(usable, (C**2).sum(1) / np.where(usable, size, 1), -1.0)
        gain[order] = -2
        best = int(np.argmax(gain))
        if gain[best] < 0:
            break
        order.append(best)
        q = X[:, best] / np.sqrt(size[best])
        along = q @ X
        C -= np.outer(along, q @ Y)  # the residual of Y, by that of X: what is left of X is orthogonal to q
        X -= np.outer(q, along)
        size = (X**2).sum(0)
    return np.array(order)


class Measure:
    """J and mean absolute correlation of selections, compiled for few lengths: zero columns fill them up."""

    def __init__(self, X, Y):
        self.d, self.Y = X.shape[1], jnp.asarray(Y)
        self.X = jnp.asarray(np.hstack([X, np.zeros_like(X)]))

    def _filled(self, selected):
        length = min(self.d, max(64, 1 << (len(selected) - 1).bit_length()))
        return np.concatenate([selected, self.d + np.arange(length - len(selected))])

    def correlation(self, selected) -> float | None:
        value = float(sj.metrics.mean_abs_correlation(self.X, self._filled(selected)))
        return None if np.isnan(value) else value

    def errors(self, order) -> np.ndarray:
        """J of the first 1, 2, ... of a ranking."""
        return np.asarray(sj.metrics.selection_error(self.X, self.Y, self._filled(order)))[: len(order)]

    def of_supports(self, supports) -> dict:
        return {
            "r": [len(s) for s in supports],
            "error": [float(self.errors(s)[-1]) for s in supports],
            "correlation": [self.correlation(s) for s in supports],
        }

    def of_ranking(self, order) -> dict:
        r, J = thinned(len(order)), self.errors(order)
        return {
            "r": r.tolist(),
            "error": J[r - 1].tolist(),
            "correlation": [self.correlation(order[:m]) for m in r],
        }


def thinned(last: int, first: int = 1) -> np.ndarray:
    """About POINTS numbers from first to last, evenly by their logarithm, with those that tables show."""
    r = np.geomspace(first, last, POINTS).round().astype(int)
    return np.union1d(r, [m for m in SHOWN if first <= m <= last])


def supports_of(norms) -> list[np.ndarray]:
    """Supports along a path (strengths, d), the strongest of each size, thinned out."""
    sizes = (norms > 0).sum(1)
    distinct, at = np.unique(sizes, return_index=True)
    at = at[distinct > 0]
    distinct = distinct[distinct > 0]
    if len(distinct) > POINTS:
        wanted = thinned(distinct[-1], distinct[0])
        at = at[np.unique([np.argmin(abs(np.log(distinct / r))) for r in wanted])]
    return [np.flatnonzero(norms[i]) for i in at]


def path_norms(problem, penalties, tol) -> tuple[np.ndarray, dict]:
    """Row norms along a warm path, (strengths, d), and how it went."""
    start = time.time()
    solution = sj.path(problem, penalties, mode="warm", tol=tol, maxiter=5000)
    norms = np.linalg.norm(np.asarray(solution.params), axis=2)
    about = {"gap": float(solution.gap.max()), "iterations": int(solution.num_iters.sum())}
    return norms, about | {"seconds": time.time() - start}


def run_figure(data: Path, name: str) -> dict:
    """Every curve of one set."""
    X, Y = dataset(data, name)
    X, varies = standardise(X, slice(None))
    X, Y = X[:, varies], Y - Y.mean(0)
    (n, d), pairs = X.shape, pairs_of(X)
    groups = sj.groups.from_lists(pairs.lists, d)
    out = describe(n, d, Y.shape[1], pairs) | {"free": len(groups.free)}
    print(f"{name}: {out}", flush=True)

    loss = sj.losses.SquaredLoss(X, Y)
    l21 = sj.penalties.L21(1.0)
    top = float(sj.lambda_max(sj.Problem(loss, l21)))
    strengths = np.geomspace(top, top / 300, 41)[1:]
    out["paths"], ours = {}, {}
    norms, about = path_norms(sj.Problem(loss, l21), jax.vmap(sj.penalties.L21)(strengths), 1e-6)
    theirs, out["paths"]["l2,1"] = norms, about
    alone = [[int(i)] for i in groups.free]
    for variant, lists in ((PRINTED, pairs.lists), (COVERED, pairs.lists + alone)):
        if variant == COVERED and not alone:
            ours[COVERED] = ours[PRINTED]
            continue
        groups = sj.groups.from_lists(lists, d)
        make = lambda alpha, groups=groups: sj.penalties.ExclusiveGroupL21(alpha, groups)
        strengths = np.geomspace(1e3, 1e-3, 40) * d / len(groups.members)
        norms, about = path_norms(sj.Problem(loss, make(1.0)), jax.vmap(make)(strengths), 1e-8)
        ours[variant], out["paths"][variant] = norms, about

    sizes = {variant: (norms > 0).sum(1) for variant, norms in ours.items()}
    fewest = int(sizes[PRINTED].min())
    weakest = {variant: len(m) - 1 - int(np.argmin(m[::-1])) for variant, m in sizes.items()}
    same = int(np.argmin(abs((theirs > 0).sum(1) - fewest)))
    last = min(PREFIX, fewest)
    ranking = lambda norms: np.argsort(-norms, kind="stable")[: min(last, int((norms > 0).sum()))]
    measure = Measure(X, Y)

    def best_strength(norms):
        rows = [measure.errors(ranking(w)) for w in norms if (w > 0).any()]
        errors = np.min([np.pad(J, (0, last - len(J)), constant_values=np.inf) for J in rows], axis=0)
        r = thinned(last)
        return {"r": r.tolist(), "error": errors[r - 1].tolist(), "correlation": [None] * len(r)}

    start = time.time()
    out |= {"fewest": fewest, "fewest, covered": int(sizes[COVERED].min())}
    out["curves"] = {
        "l2,1, supports": measure.of_supports(supports_of(theirs)),
        f"{PRINTED}, supports": measure.of_supports(supports_of(ours[PRINTED])),
        "l2,1, by norm": measure.of_ranking(ranking(theirs[same])),
        f"{PRINTED}, by norm": measure.of_ranking(ranking(ours[PRINTED][weakest[PRINTED]])),
        f"{COVERED}, by norm": measure.of_ranking(ranking(ours[COVERED][weakest[COVERED]])),
        "l2,1, by norm, best strength": best_strength(theirs),
        f"{COVERED}, by norm, best strength": best_strength(ours[COVERED]),
        "greedy": measure.of_ranking(greedy(X, Y, min(PREFIX, d))),
    }
    return out | {"measuring seconds": time.time() - start}


def describe(n, d, k, pairs: Pairs) -> dict:
    return {
        "n": n, "d": d, "k": k, "theta": pairs.theta, "pairs": len(pairs.lists),
        "free": len(pairs.free(d)), "theta = 0.3": pairs.at_paper,
    }  # fmt: skip


# ---------------------------------------------------------------- table 2


class Part(NamedTuple):
    """Rows to fit a model to and rows held out of it, in arrays of the set's one shape."""

    X: np.ndarray  # (rows, d + 2) float32, standardised; rows of zeros and two empty columns fill it up
    Y: np.ndarray  # (rows, k)
    weights: np.ndarray  # (rows, k), 0 for what fills up and for labels that are constant
    fitted: np.ndarray  # (k,) labels that are not constant
    constant: np.ndarray  # (k,) the value of those that are
    pairs: Pairs
    X_held: np.ndarray
    Y_held: np.ndarray

    @property
    def rows(self) -> int:
        return int((self.weights > 0).any(1).sum())


def part_of(X, Y, fit, held, rows: int) -> Part:
    """Standardised by, and with the pairs of, the rows that are fitted."""
    S, varies = standardise(X, fit)
    live = np.flatnonzero(varies)
    pairs = pairs_of(S[np.ix_(fit, live)])
    pairs = pairs._replace(lists=live[np.array(pairs.lists, dtype=int).reshape(-1, 2)].tolist())
    S = np.pad(S, ((0, 0), (0, 2))).astype(np.float32)
    fill = ((0, rows - len(fit)), (0, 0))
    A, B = np.pad(S[fit], fill), np.pad(Y[fit], fill).astype(np.float32)
    fitted = Y[fit].min(0) < Y[fit].max(0)
    weights = np.pad(np.ones((len(fit), 1), np.float32), fill) * fitted
    B[0, ~fitted], B[1, ~fitted] = 0, 1  # of weight 0: LogisticLoss refuses constant columns
    return Part(A, B, weights, fitted, Y[fit[0]], pairs, S[held], Y[held])


def logistic(part: Part):
    scale = np.float32(1 / part.rows)
    return sj.losses.LogisticLoss(part.X, part.Y, weights=part.weights, scale=scale, intercept=True)


def filled_groups(part: Part, count: int):
    """``count`` groups of two: a feature without a pair is with an empty one; pairs of empty ones fill up."""
    d = part.X.shape[1] - 2
    lists = part.pairs.lists + [[int(i), d] for i in part.pairs.free(d)]
    return sj.groups.from_lists(lists + [[d, d + 1]] * (count - len(lists)), d + 2)


def penalty_and_scale(method: str, part: Part, loss, count: int):
    """A function of the strength, and the strength that the grid is relative to."""
    p = sj.penalties
    simple = {L21: p.L21, L1INF: p.L1Inf, EXCLUSIVE: p.ExclusiveLasso}
    if method == EXCLUSIVE:
        return simple[method], 1.0
    if method in simple:
        return simple[method], float(sj.lambda_max(sj.Problem(loss, simple[method](np.float32(1)))))
    d = part.X.shape[1] - 2
    groups = filled_groups(part, count)
    mean = (2 * len(part.pairs.lists) + len(part.pairs.free(d))) / d
    return lambda alpha: p.ExclusiveGroupL21(alpha, groups), 1 / mean


intercepts = jax.jit(jax.vmap(lambda loss, W: loss.intercept(W), (None, 0)))


def sparse_models(method: str, part: Part, count: int, last: int = GRID - 1):
    """Weights (GRID, d, k), intercepts and gaps along the path to strength number ``last``, then repeated."""
    loss = logistic(part)
    make, unit = penalty_and_scale(method, part, loss, count)
    grid = np.geomspace(1 / 2, 1 / 100, GRID) if method in (L21, L1INF) else np.geomspace(0.5, 1e-3, GRID)
    strengths = jnp.asarray(unit * grid[np.minimum(np.arange(GRID), last)], jnp.float32)
    problem = sj.Problem(loss, make(np.float32(1)))
    solution = sj.path(problem, jax.vmap(make)(strengths), mode="warm", tol=TOL, maxiter=MAXITER)
    return (
        np.asarray(solution.params),
        np.asarray(intercepts(loss, solution.params)),
        np.asarray(solution.gap),
    )


def predictions(part: Part, W, b) -> np.ndarray:
    return np.where(part.fitted, part.X_held @ W + b > 0, part.constant > 0)


def relief_order(part: Part, seed: int) -> tuple[np.ndarray, int]:
    """Features by their mean score over labels, and the rows that were looked at."""
    live = np.flatnonzero(part.X.any(0))
    labels = np.flatnonzero(part.fitted)
    count = min(part.rows, int(np.sqrt(RELIEF_BUDGET / (len(live) * len(labels)))))
    rows = np.sort(np.random.default_rng(seed).choice(part.rows, count, replace=False))
    A, scores = part.X[np.ix_(rows, live)], np.zeros(len(live))
    model = ReliefF(n_features_to_select=1, n_neighbors=10, backend="cpu", n_jobs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class with fewer than 10 members uses those it has
        for j in labels:
            y = part.Y[rows, j].astype(int)
            if y.min() < y.max():
                scores += model.fit(A, y).feature_importances_
    return live[np.argsort(-scores, kind="stable")], count


def relief_sizes(d: int) -> np.ndarray:
    return np.geomspace(max(2, d / 64), d, GRID).round().astype(int)


def relief_predictions(part: Part, columns) -> np.ndarray:
    """Logistic regression of each label on these columns."""
    answers = np.tile(part.constant > 0, (len(part.X_held), 1))
    A, held = part.X[: part.rows, columns], part.X_held[:, columns]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for j in np.flatnonzero(part.fitted):
            model = LogisticRegression(C=1.0, max_iter=200).fit(A, part.Y[: part.rows, j])
            answers[:, j] = model.predict(held) > 0
    return answers


def scores_of(part: Part, answers) -> dict:
    out = {}
    for average in ("macro", "micro"):
        s = sj.metrics.precision_recall_f1(part.Y_held, answers, average)
        values = {"precision": s.precision, "recall": s.recall, "F1": s.f1}
        out |= {f"{average} {what}": float(value) for what, value in values.items()}
    return out


def run_method(method: str, inner: Part, outer: Part, count: int, seed: int) -> dict:
    """The parameter by the inner part, the scores of the outer one."""
    start = time.time()
    micro = lambda answers: scores_of(inner, answers)["micro F1"]
    if method == RELIEF:
        order, _ = relief_order(inner, seed)
        inside = [micro(relief_predictions(inner, order[:m])) for m in relief_sizes(len(order))]
        chosen = int(np.argmax(inside))
        order, rows = relief_order(outer, seed)
        selected = order[: relief_sizes(len(order))[chosen]]
        answers, extra = relief_predictions(outer, selected), {"rows": rows}
    else:
        W, b, _ = sparse_models(method, inner, count)
        inside = [micro(predictions(inner, *model)) for model in zip(W, b, strict=True)]
        chosen = int(np.argmax(inside))
        W, b, gap = sparse_models(method, outer, count, chosen)
        selected = np.flatnonzero((W[-1] != 0).any(1))
        answers, extra = predictions(outer, W[-1], b[-1]), {"gap": float(gap[-1])}
    kept = np.zeros_like(outer.X)
    kept[:, selected] = outer.X[:, selected]  # what is 0 has no correlation and does not count
    return scores_of(outer, answers) | extra | {
        "inner micro F1": inside,
        "chosen": chosen,
        "features": len(selected),
        "correlation": float(sj.metrics.mean_abs_correlation(kept, np.arange(kept.shape[1]))),
        "seconds": time.time() - start,
    }  # fmt: skip


def run_table(data: Path, name: str) -> dict:
    """Cross-validation of every method."""
    X, Y = dataset(data, name)
    parts = []
    splits = list(KFold(FOLDS, shuffle=True, random_state=SEED).split(X))
    rows = max(len(fit) for fit, _ in splits)
    for i, (fit, test) in enumerate(splits):
        shuffled = np.random.default_rng(SEED + i).permutation(fit)
        cut = round(HELD * len(fit))
        inner, held = np.sort(shuffled[cut:]), np.sort(shuffled[:cut])
        parts.append((part_of(X, Y, inner, held, rows), part_of(X, Y, fit, test, rows)))
    d = X.shape[1]
    count = 1 + max(len(p.pairs.lists) + len(p.pairs.free(d)) for p in itertools.chain(*parts))
    folds = []
    for i, (inner, outer) in enumerate(parts):
        methods = {m: run_method(m, inner, outer, count, SEED + i) for m in METHODS}
        about = describe(outer.rows, int(outer.X.any(0).sum()), int(outer.fitted.sum()), outer.pairs)
        about["free"] = about["d"] - len(set(itertools.chain(*outer.pairs.lists)))
        folds.append(about | {"methods": methods})
        brief = {m: f"{r['micro F1']:.3f} ({r['seconds']:.0f} s)" for m, r in methods.items()}
        print(f"{name} fold {i}: {brief}", flush=True)
    live = int((X.max(0) > X.min(0)).sum())
    return {"n": len(X), "d": live, "k": Y.shape[1], "folds": folds}


# ---------------------------------------------------------------- tables and figures


def mean_error(values) -> tuple[float, float]:
    values = np.asarray(values, dtype=float)
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


def by_fold(result: dict, method: str, what: str) -> np.ndarray:
    return np.array([fold["methods"][method][what] for fold in result["folds"]], dtype=float)


def grouping(result: dict) -> str:
    paper = result["theta = 0.3"]
    text = f"theta {result['theta']:.3g}: {result['pairs']} pairs, {result['free']} features without one"
    if result["theta"] == THETA:
        return text
    return f"{text} (theta 0.3: {paper['pairs']} pairs, {paper['free']} without one)"


def score_table(name: str, result: dict) -> str:
    """Per cent, mean and standard error over the folds."""
    lines = [
        f"**{name}** (n = {result['n']}, d = {result['d']}, k = {result['k']}; first fold, "
        f"{grouping(result['folds'][0])})",
        "",
        "| | " + " | ".join(METHODS) + " |",
        "| --- " * (len(METHODS) + 1) + "|",
    ]
    for what in MEASURES:
        cells = {m: mean_error(100 * by_fold(result, m, what)) for m in METHODS}
        best = max(mean for mean, _ in cells.values())
        row = [
            f"**{a:.1f}** ± {e:.1f}" if a > best - 1e-9 else f"{a:.1f} ± {e:.1f}" for a, e in cells.values()
        ]
        lines.append(f"| {what} | " + " | ".join(row) + " |")
    mean = lambda what: [np.nanmean(by_fold(result, m, what)) for m in METHODS]
    lines.append("| features | " + " | ".join(f"{v:.0f}" for v in mean("features")) + " |")
    lines.append("| mean correlation | " + " | ".join(f"{v:.3f}" for v in mean("correlation")) + " |")
    chosen = [", ".join(f"{v + 1:.0f}" for v in by_fold(result, m, "chosen")) for m in METHODS]
    lines.append(f"| chosen, of {GRID} | " + " | ".join(chosen) + " |")
    gaps = [f"{by_fold(result, m, 'gap').max():.0e}" for m in METHODS if m != RELIEF]
    lines.append("| largest gap | " + " | ".join(gaps) + " | - |")
    lines.append(
        "| seconds | " + " | ".join(f"{by_fold(result, m, 'seconds').sum():.0f}" for m in METHODS) + " |"
    )
    return "\n".join(lines) + "\n"


def comparison(results: dict) -> str:
    """The paper's claim, set by set."""
    lines = [
        f"{OURS} less the best other, points ± paired standard error (the other)",
        "",
        "| data | "
        + " | ".join(MEASURES)
        + " | best in all four | mean correlation, best other in micro F1 |",
        "| --- " * (len(MEASURES) + 3) + "|",
    ]
    for name, result in results.items():
        cells, wins, rival = [], [], ""
        for what in MEASURES:
            scores = {m: 100 * by_fold(result, m, what) for m in METHODS}
            ours = scores.pop(OURS)
            rival = max(scores, key=lambda m: scores[m].mean())
            mean, error = mean_error(ours - scores[rival])
            cells.append(f"{mean:+.1f} ± {error:.1f} ({rival})")
            wins.append(mean > 0)
        claim = "yes" if all(wins) else f"no, in {sum(wins)}"
        both = [np.nanmean(by_fold(result, m, "correlation")) for m in (OURS, rival)]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {claim} | {both[0]:.3f}, {both[1]:.3f} |")
    return "\n".join(lines) + "\n"


def at(curve: dict, r, what: str = "error") -> np.ndarray:
    """A curve at numbers of features, NaN outside its ends; linear between its points."""
    known = [i for i, value in enumerate(curve[what]) if value is not None]
    if not known:
        return np.full(np.shape(r), np.nan)
    x, y = np.array(curve["r"])[known], np.array(curve[what], dtype=float)[known]
    return np.interp(r, x, y, left=np.nan, right=np.nan)


def error_table(name: str, result: dict) -> str:
    """J and, in brackets, the mean absolute correlation."""
    shown = [r for r in SHOWN if r <= result["d"]]
    shown = sorted({*shown, result["fewest"]})
    lines = [
        f"**{name}** (n = {result['n']}, d = {result['d']}, k = {result['k']}; {grouping(result)}; "
        f"fewest nonzero rows {result['fewest']}, covered {result['fewest, covered']})",
        "",
        "| J (mean correlation) at r = | " + " | ".join(str(r) for r in shown) + " |",
        "| --- " * (len(shown) + 1) + "|",
    ]
    for label, curve in result["curves"].items():
        cells = []
        for r in shown:
            J, c = float(at(curve, r)), float(at(curve, r, "correlation"))
            cells.append("-" if np.isnan(J) else f"{J:.3f}" + ("" if np.isnan(c) else f" ({c:.2f})"))
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def error_summary(results: dict) -> str:
    """At what share of the r the exclusive group l2,1 has the smaller error."""
    against = (
        (f"{PRINTED}, supports", "l2,1, supports"),
        (f"{PRINTED}, by norm", "l2,1, supports"),
        (f"{COVERED}, by norm", "l2,1, supports"),
        (f"{COVERED}, by norm", "l2,1, by norm"),
        (f"{COVERED}, by norm, best strength", "l2,1, by norm, best strength"),
        (f"{COVERED}, by norm, best strength", "l2,1, supports"),
        ("l2,1, supports", "greedy"),
    )
    lines = [
        "Share of r at which the first has the smaller J; mean difference of J, first less second (negative: "
        "the first is better); at the r of the first, which are nearly even by logarithm",
        "",
        "| data | features | fewest rows | " + " | ".join(f"{a} : {b}" for a, b in against) + " |",
        "| --- " * (len(against) + 3) + "|",
    ]
    for name, result in results.items():
        cells = []
        for a, b in against:
            first, second = result["curves"][a], result["curves"][b]
            difference = np.array(first["error"]) - at(second, first["r"])
            difference = difference[np.isfinite(difference)]
            if difference.size:
                cells.append(f"{100 * np.mean(difference < -1e-9):.0f} %, {difference.mean():+.3f}")
            else:
                cells.append("-")
        lines.append(f"| {name} | {result['d']} | {result['fewest']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


# Okabe & Ito's colours, which colour-blind readers can tell apart; markers differ as well.
STYLE = {
    "l2,1, supports": ("#0072B2", "s", "-"),
    f"{PRINTED}, supports": ("#D55E00", "o", "-"),
    "l2,1, by norm": ("#56B4E9", "x", "--"),
    f"{PRINTED}, by norm": ("#999999", "v", "--"),
    f"{COVERED}, by norm": ("#E69F00", "^", "--"),
    f"{COVERED}, by norm, best strength": ("#CC79A7", ".", ":"),
    "greedy": ("#000000", "", "-"),
}


def figure(results: dict, what: str, label: str, path: Path) -> None:
    across = min(4, len(results) + 1)
    down = len(results) // across + 1  # one place at least is for the legend
    fig, axes = plt.subplots(down, across, figsize=(3.3 * across, 3.1 * down), constrained_layout=True)
    for ax, (name, result) in zip(axes.flat, results.items(), strict=False):
        for key, (colour, marker, line) in STYLE.items():
            curve = result["curves"][key]
            value = np.array(curve[what], dtype=float)
            if np.isnan(value).all():
                continue
            ax.plot(
                curve["r"], value, color=colour, marker=marker, linestyle=line, label=key, markersize=4,
                linewidth=1.3,
            )  # fmt: skip
        ax.set_xscale("log")
        ticks = [m for m in (1, *SHOWN, 500, 1000) if m <= result["d"]]
        ax.set_xticks(ticks, [str(m) for m in ticks])
        ax.minorticks_off()
        ax.axvline(result["fewest"], color="0.7", linewidth=0.8, zorder=0)
        ax.set_title(f"{name}  (n={result['n']}, d={result['d']}, k={result['k']})", fontsize=10)
        ax.grid(alpha=0.25)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    for ax in axes.flat[len(results) :]:
        ax.axis("off")
    axes.flat[-1].legend(handles, labels, loc="center", fontsize=10, frameon=False)
    fig.supxlabel("selected features r (line: fewest nonzero rows of the exclusive group l2,1)", fontsize=11)
    fig.supylabel(label, fontsize=11)
    fig.savefig(path, dpi=110)
    plt.close(fig)


def collect(out: Path, kind: str) -> dict:
    """The finished results of one kind in ``out``."""
    paths = {name: out / f"aaai16_{kind}_{name}.json" for name in SETS}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def report(out: Path) -> None:
    """Tables and figures from what is finished."""
    errors, scores = collect(out, "figure"), collect(out, "table")
    parts = []
    if errors:
        figure(errors, "error", "selection error J", out / "aaai16_error.png")
        figure(errors, "correlation", "mean |correlation| of the selected", out / "aaai16_correlation.png")
        parts += ["## Selection error (Figure 2)\n", error_summary(errors)]
        parts += [error_table(name, result) for name, result in errors.items()]
    if scores:
        parts += ["## Prediction (Table 2)\n", comparison(scores)]
        parts += [score_table(name, result) for name, result in scores.items()]
    (out / "aaai16.md").write_text("\n".join(parts))


def main() -> None:
    parser = argparse.ArgumentParser(description="The experiments of Kong et al., AAAI 2016.")
    parser.add_argument("--data", help="folder with the .npz files; default $SPARSEJAX_DATA")
    parser.add_argument("--out", type=Path, required=True, help="folder for tables, figures and numbers")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--only", choices=("figure", "table", "report"), help="report: from finished results")
    args = parser.parse_args()
    data, names = folder(args.data), args.sets.split(",")
    unknown = set(names) - set(SETS)
    if unknown:
        parser.error(f"unknown data sets {sorted(unknown)}; there are {', '.join(SETS)}")
    args.out.mkdir(parents=True, exist_ok=True)
    for kind, run in (("figure", run_figure), ("table", run_table)):
        for name in names if args.only in (kind, None) else ():
            path = args.out / f"aaai16_{kind}_{name}.json"
            if path.exists():
                print(f"{kind}, {name}: there is {path}", flush=True)
                continue
            start = time.time()
            result = run(data, name)
            path.write_text(json.dumps(result | {"seconds": time.time() - start}))
            report(args.out)
            print(f"{kind}, {name}: {time.time() - start:.0f} s", flush=True)
    report(args.out)


if __name__ == "__main__":
    main()
