"""Table 2: prediction of labels, by cross-validation."""

import itertools
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from fast_select import ReliefF
from harness.tables import gain, score, table
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold

import sparsejax as sj
from papers.aaai16.sets import SEED, Pairs, dataset, describe, grouping, pairs_of, size, standardise_rows

FOLDS, HELD = 5, 0.2
L21, L1INF, EXCLUSIVE = "l2,1", "l1,infinity", "exclusive lasso"
OURS, RELIEF = "exclusive group l2,1", "ReliefF"
METHODS = (L21, L1INF, EXCLUSIVE, OURS, RELIEF)
MEASURES = ("macro precision", "macro F1", "micro precision", "micro F1")
GRID, TOL, MAXITER, RELIEF_BUDGET = 8, 1e-4, 300, 3e9

Found = tuple[list[float], np.ndarray, np.ndarray, dict]  # inner scores, features, answers, anything else


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
        """Those that do not fill up."""
        return int((self.weights > 0).any(1).sum())

    @property
    def free(self) -> np.ndarray:
        """The features in no pair."""
        return self.pairs.free(self.X.shape[1] - 2)


def part_of(X: np.ndarray, Y: np.ndarray, fit: np.ndarray, held: np.ndarray, rows: int) -> Part:
    """Standardised by, and with the pairs of, the rows that are fitted."""
    S, varies = standardise_rows(X, fit)
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


# ---------------------------------------------------------------- sparse models


def filled_groups(part: Part, count: int) -> sj.groups.Groups:
    """``count`` groups of two: a feature without a pair is with an empty one; pairs of empty ones fill up."""
    d = part.X.shape[1] - 2
    lists = part.pairs.lists + [[int(i), d] for i in part.free]
    return sj.groups.from_lists(lists + [[d, d + 1]] * (count - len(lists)), d + 2)


def penalty_and_scale(method: str, part: Part, loss: sj.Loss, count: int) -> tuple[Callable, float]:
    """A function of the strength, and the strength that the grid is relative to."""
    p = sj.penalties
    simple = {L21: p.L21, L1INF: p.L1Inf, EXCLUSIVE: p.ExclusiveLasso}
    if method == EXCLUSIVE:
        return simple[method], 1.0
    if method in simple:
        return simple[method], float(sj.lambda_max(sj.Problem(loss, simple[method](np.float32(1)))))
    groups = filled_groups(part, count)
    mean = (2 * len(part.pairs.lists) + len(part.free)) / (part.X.shape[1] - 2)
    return lambda alpha: p.ExclusiveGroupL21(alpha, groups), 1 / mean


intercepts = jax.jit(jax.vmap(lambda loss, W: loss.intercept(W), (None, 0)))


def sparse_models(method: str, part: Part, count: int, last: int = GRID - 1) -> tuple[np.ndarray, ...]:
    """Weights (GRID, d, k), intercepts and gaps along the path to strength number ``last``, then repeated."""
    scale = np.float32(1 / part.rows)
    loss = sj.losses.LogisticLoss(part.X, part.Y, weights=part.weights, scale=scale, intercept=True)
    make, unit = penalty_and_scale(method, part, loss, count)
    grid = np.geomspace(1 / 2, 1 / 100, GRID) if method in (L21, L1INF) else np.geomspace(0.5, 1e-3, GRID)
    strengths = jnp.asarray(unit * grid[np.minimum(np.arange(GRID), last)], jnp.float32)
    problem = sj.Problem(loss, make(np.float32(1)))
    found = sj.path(problem, jax.vmap(make)(strengths), mode="warm", tol=TOL, maxiter=MAXITER)
    return tuple(map(np.asarray, (found.params, intercepts(loss, found.params), found.gap)))


def predictions(part: Part, W: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The labels of the rows held out."""
    return np.where(part.fitted, part.X_held @ W + b > 0, part.constant > 0)


def by_sparse_model(method: str, inner: Part, outer: Part, count: int) -> Found:
    """The strength by the inner part, features and answers of the outer one."""
    W, b, _ = sparse_models(method, inner, count)
    inside = [micro_f1(inner, predictions(inner, *model)) for model in zip(W, b, strict=True)]
    W, b, gap = sparse_models(method, outer, count, int(np.argmax(inside)))
    selected = np.flatnonzero((W[-1] != 0).any(1))
    return inside, selected, predictions(outer, W[-1], b[-1]), {"gap": float(gap[-1])}


# ---------------------------------------------------------------- ReliefF


def relief_order(part: Part, seed: int) -> tuple[np.ndarray, int]:
    """Features by their mean score over labels, and the rows that were looked at."""
    live = np.flatnonzero(part.X.any(0))
    labels = np.flatnonzero(part.fitted)
    count = min(part.rows, int(np.sqrt(RELIEF_BUDGET / (len(live) * len(labels)))))
    rows = np.sort(np.random.default_rng(seed).choice(part.rows, count, replace=False))
    A, scores = part.X[np.ix_(rows, live)], np.zeros(len(live))
    model = ReliefF(n_features_to_select=1, n_neighbors=10, backend="cpu", n_jobs=1)
    # A class with fewer than 10 members uses those it has.
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        for j in labels:
            y = part.Y[rows, j].astype(int)
            if y.min() < y.max():
                scores += model.fit(A, y).feature_importances_
    return live[np.argsort(-scores, kind="stable")], count


def relief_sizes(d: int) -> np.ndarray:
    """The numbers of features that are tried."""
    return np.geomspace(max(2, d / 64), d, GRID).round().astype(int)


def relief_predictions(part: Part, columns: np.ndarray) -> np.ndarray:
    """Logistic regression of each label on these columns."""
    answers = np.tile(part.constant > 0, (len(part.X_held), 1))
    A, held = part.X[: part.rows, columns], part.X_held[:, columns]
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        for j in np.flatnonzero(part.fitted):
            model = LogisticRegression(C=1.0, max_iter=200).fit(A, part.Y[: part.rows, j])
            answers[:, j] = model.predict(held) > 0
    return answers


def by_relief(inner: Part, outer: Part, seed: int) -> Found:
    """The number of features by the inner part, features and answers of the outer one."""
    order, _ = relief_order(inner, seed)
    inside = [micro_f1(inner, relief_predictions(inner, order[:m])) for m in relief_sizes(len(order))]
    order, rows = relief_order(outer, seed)
    selected = order[: relief_sizes(len(order))[int(np.argmax(inside))]]
    return inside, selected, relief_predictions(outer, selected), {"rows": rows}


# ---------------------------------------------------------------- folds


def scores_of(part: Part, answers: np.ndarray) -> dict:
    """Precision, recall and F1, averaged both ways."""
    out = {}
    for average in ("macro", "micro"):
        s = sj.metrics.precision_recall_f1(part.Y_held, answers, average)
        values = {"precision": s.precision, "recall": s.recall, "F1": s.f1}
        out |= {f"{average} {what}": float(value) for what, value in values.items()}
    return out


def micro_f1(part: Part, answers: np.ndarray) -> float:
    """What parameters are chosen by."""
    return scores_of(part, answers)["micro F1"]


def run_method(method: str, inner: Part, outer: Part, count: int, seed: int) -> dict:
    """The parameter by the inner part, the scores of the outer one."""
    start = time.perf_counter()
    if method == RELIEF:
        inside, selected, answers, extra = by_relief(inner, outer, seed)
    else:
        inside, selected, answers, extra = by_sparse_model(method, inner, outer, count)
    kept = np.zeros_like(outer.X)
    kept[:, selected] = outer.X[:, selected]  # what is 0 has no correlation and does not count
    return scores_of(outer, answers) | extra | {
        "inner micro F1": inside,
        "chosen": int(np.argmax(inside)),
        "features": len(selected),
        "correlation": float(sj.metrics.mean_abs_correlation(kept, np.arange(kept.shape[1]))),
        "seconds": time.perf_counter() - start,
    }  # fmt: skip


def run(path: Path, name: str) -> dict:
    """Cross-validation of every method."""
    X, Y = dataset(path, name)
    splits = list(KFold(FOLDS, shuffle=True, random_state=SEED).split(X))
    rows = max(len(fit) for fit, _ in splits)
    parts = []
    for i, (fit, test) in enumerate(splits):
        shuffled = np.random.default_rng(SEED + i).permutation(fit)
        cut = round(HELD * len(fit))
        inner, held = np.sort(shuffled[cut:]), np.sort(shuffled[:cut])
        parts.append((part_of(X, Y, inner, held, rows), part_of(X, Y, fit, test, rows)))
    count = 1 + max(len(p.pairs.lists) + len(p.free) for p in itertools.chain(*parts))
    folds = []
    for i, (inner, outer) in enumerate(parts):
        methods = {m: run_method(m, inner, outer, count, SEED + i) for m in METHODS}
        d = int(outer.X.any(0).sum())
        free = d - len(set(itertools.chain(*outer.pairs.lists)))
        about = describe(outer.rows, d, int(outer.fitted.sum()), outer.pairs, free)
        folds.append(about | {"methods": methods})
        brief = {m: f"{r['micro F1']:.3f} ({r['seconds']:.0f} s)" for m, r in methods.items()}
        print(f"{name} fold {i}: {brief}", flush=True)
    live = int((X.max(0) > X.min(0)).sum())
    return {"n": len(X), "d": live, "k": Y.shape[1], "folds": folds}


# ---------------------------------------------------------------- tables


def by_fold(result: dict, method: str, what: str) -> np.ndarray:
    """A score of each fold; NaN where a method has none."""
    return np.array([fold["methods"][method].get(what, np.nan) for fold in result["folds"]], dtype=float)


def score_table(name: str, result: dict) -> str:
    """Per cent, mean and standard error over the folds."""
    all_methods = lambda what: [by_fold(result, m, what) for m in METHODS]
    rows = []
    for what in MEASURES:
        values = [100 * v for v in all_methods(what)]
        best = max(v.mean() for v in values)
        rows.append((what, *(score(v, best) for v in values)))
    gaps = [v.max() for v in all_methods("gap")]
    rows += [
        ("features", *(f"{np.nanmean(v):.0f}" for v in all_methods("features"))),
        ("mean correlation", *(f"{np.nanmean(v):.3f}" for v in all_methods("correlation"))),
        (f"chosen, of {GRID}", *(", ".join(f"{x + 1:.0f}" for x in v) for v in all_methods("chosen"))),
        ("largest gap", *("-" if np.isnan(gap) else f"{gap:.0e}" for gap in gaps)),
        ("seconds", *(f"{v.sum():.0f}" for v in all_methods("seconds"))),
    ]
    title = f"**{name}** ({size(result)}; first fold, {grouping(result['folds'][0])})\n\n"
    return title + table(("", *METHODS), rows)


def comparison(results: dict) -> str:
    """The paper's claim, set by set."""
    rows = []
    for name, result in results.items():
        cells, wins, rival = [], [], ""
        for what in MEASURES:
            scores = {m: 100 * by_fold(result, m, what) for m in METHODS}
            ours = scores.pop(OURS)
            rival = max(scores, key=lambda m: scores[m].mean())
            cells.append(f"{gain(ours - scores[rival])} ({rival})")
            wins.append(ours.mean() > scores[rival].mean())
        claim = "yes" if all(wins) else f"no, in {sum(wins)}"
        both = [np.nanmean(by_fold(result, m, "correlation")) for m in (OURS, rival)]
        rows.append((name, *cells, claim, f"{both[0]:.3f}, {both[1]:.3f}"))
    title = f"{OURS} less the best other, points ± paired standard error (the other)\n\n"
    header = ("data", *MEASURES, "best in all four", "mean correlation, best other in micro F1")
    return title + table(header, rows)


def report(results: dict) -> list[str]:
    """All tables."""
    tables = [score_table(name, result) for name, result in results.items()]
    return ["## Prediction (Table 2)\n", comparison(results), *tables]
