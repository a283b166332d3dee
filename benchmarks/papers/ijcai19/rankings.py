"""The data sets, and the features that each method ranks first for each class."""

import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from fast_select import ReliefF, mRMR
from harness.data import draw_of_each, load, one_hot
from sklearn.feature_selection import f_classif

import sparsejax as sj

SEED, TOL, MOST = 0, 1e-4, 80  # features a class that are ever looked at

Lists = list[np.ndarray]  # the features of each class, the first the best


def load_cut(path: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A data set, with 100 images a digit of mnist5k."""
    X, y = load(path, name)
    if name == "mnist5k":
        rows = draw_of_each(y, 100, SEED)
        return X[rows], y[rows]
    return X, y


# ---------------------------------------------------------------- sparse models


def weights_kept(d: int, k: int, share: float | None = None) -> int:
    """The common number T of nonzero weights; ``share`` of all if given."""
    return int(share * d * k) if share else min(max(120 * k, int(1.25 * d)), d * k)


def fit_weights(
    X: np.ndarray, y: np.ndarray, kind: str, ratio: float = 1.0, share: float | None = None
) -> np.ndarray:
    """W (d, k) with as nearly T nonzeros as the first passage of the path allows."""
    loss = sj.losses.SquaredLoss(X, one_hot(y), scale=1.0, intercept=True)
    top = float(sj.lambda_max(sj.Problem(loss, sj.penalties.L21(1.0))))
    make = {
        "l2,1": sj.penalties.L21,
        "exclusive lasso": sj.penalties.ExclusiveLasso,
        "exclusive l2,1": lambda alpha: sj.penalties.ExclusiveL21(alpha, ratio * alpha),
    }[kind]
    T = weights_kept(*loss.params_shape, share)
    away = lambda W: abs(np.count_nonzero(W) - T)

    # l2,1 and exclusive l2,1 are 0 at `top`; the exclusive lasso has no such strength: it starts far above.
    high, factor = (1024 * top, 4.0) if kind == "exclusive lasso" else (top, 2.0)
    low, best = None, None
    for between in (False, False, True, True, True):
        if between and (low is None or away(best) <= 0.01 * T):
            break  # T is out of reach (the largest count seen is the nearest), or met
        if not between and low is not None:
            continue
        grid = np.geomspace(high, low, 6)[1:5] if between else high * factor ** -np.arange(1.0, 5.0)
        W = path_to(T, loss, make, grid)
        found = min(W, key=away)
        best = found if best is None else min(best, found, key=away)
        passed = np.count_nonzero(W[-1]) >= T
        low = grid[len(W) - 1] if passed else low
        high = grid[len(W) - 2] if passed and len(W) > 1 else high if passed else grid[-1]
    return best


def path_to(T: int, loss: sj.losses.SquaredLoss, make: Callable, strengths: np.ndarray) -> list[np.ndarray]:
    """Weights along a warm path, up to the first with T nonzeros."""
    problem = sj.Problem(loss, make(1.0))
    solution = sj.path(problem, jax.vmap(make)(strengths), mode="warm", tol=TOL, maxiter=5000)
    if not bool(solution.converged.all()):
        warnings.warn(f"gap {float(solution.gap.max()):.1e}", stacklevel=2)
    W = list(np.asarray(solution.params))
    passed = [i for i, w in enumerate(W) if np.count_nonzero(w) >= T]
    return W[: passed[0] + 1] if passed else W


def by_class(W: np.ndarray) -> Lists:
    """The features of each class by decreasing |W_ij|, the nonzero ones, at least one."""
    ranking = sj.rank_features(W, min(len(W), MOST))
    order, scores = np.asarray(ranking.indices).T, np.asarray(ranking.scores).T
    return [o[: max(1, int((s > 0).sum()))] for o, s in zip(order, scores, strict=True)]


# ---------------------------------------------------------------- filters


def first(scores: np.ndarray) -> np.ndarray:
    """The features of largest score."""
    return np.argsort(-scores, kind="stable")[:MOST]


def f_statistic(X: np.ndarray, y: np.ndarray, k: int) -> Lists:
    """Of all classes together."""
    return [first(f_classif(X, y)[0])] * k


def f_by_class(X: np.ndarray, y: np.ndarray, k: int) -> Lists:
    """Of each class against the rest."""
    return [first(f_classif(X, y == c)[0]) for c in range(k)]


def relief(X: np.ndarray, y: np.ndarray, k: int) -> Lists:
    """ReliefF; a class with fewer than 10 members uses those it has."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        scores = ReliefF(n_features_to_select=1, n_neighbors=10, backend="cpu", n_jobs=1).fit(X, y)
    return [first(scores.feature_importances_)] * k


def mrmr(X: np.ndarray, y: np.ndarray, k: int) -> Lists:
    """Difference form, features cut in three."""
    thirds = np.digitize(X, [-0.5, 0.5])
    return [mRMR(MOST, method="MID", backend="cpu").fit(thirds, y).top_features_] * k


FILTERS = {"F statistic": f_statistic, "F, by class": f_by_class, "ReliefF": relief, "mRMR": mrmr}
