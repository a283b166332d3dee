"""The data sets, their pairs of correlated features, and how tables name both."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from harness.data import load_multilabel, moments

import sparsejax as sj

SETS = ("flags", "emotions", "scene", "cal500", "medical", "bibtex", "corel5k")
ROWS = {"bibtex": 1000, "corel5k": 1500}
RESTRICTED, POSITIVES = ("cal500", "bibtex", "corel5k"), 20
THETA, FREE, DENSE, PAIRS = 0.3, 0.5, 0.5, 10
SEED = 0


def dataset(path: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """X and Y of the rows and labels that are used."""
    X, Y = load_multilabel(path, name)
    if len(X) > ROWS.get(name, len(X)):
        rows = np.random.default_rng(SEED).choice(len(X), ROWS[name], replace=False)
        X, Y = X[rows], Y[rows]
    return X, Y[:, Y.sum(0) >= POSITIVES] if name in RESTRICTED else Y


def standardise_rows(X: np.ndarray, fit: np.ndarray | slice) -> tuple[np.ndarray, np.ndarray]:
    """All rows by the mean and deviation of the rows ``fit``; columns constant in these become 0."""
    mean, deviation, varies = moments(X[fit])
    return np.where(varies, (X - mean) / np.where(varies, deviation, 1), 0), varies


class Pairs(NamedTuple):
    """The pairs of correlated features, and the threshold they come from."""

    lists: list[list[int]]  # [[s, t], ...]
    theta: float
    at_paper: dict  # what theta = 0.3 does

    def free(self, d: int) -> np.ndarray:
        """The features in no pair."""
        return np.setdiff1d(np.arange(d), np.array(self.lists, dtype=int).ravel())


def pairs_of(X: np.ndarray) -> Pairs:
    """By the rule of the protocol; X has no constant column."""
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


def describe(n: int, d: int, k: int, pairs: Pairs, free: int) -> dict:
    """What a result says of its data."""
    return {
        "n": n, "d": d, "k": k, "theta": pairs.theta, "pairs": len(pairs.lists), "free": free,
        "theta = 0.3": pairs.at_paper,
    }  # fmt: skip


def grouping(result: dict) -> str:
    """The threshold and the pairs, in words."""
    paper = result["theta = 0.3"]
    text = f"theta {result['theta']:.3g}: {result['pairs']} pairs, {result['free']} features without one"
    if result["theta"] == THETA:
        return text
    return f"{text} (theta 0.3: {paper['pairs']} pairs, {paper['free']} without one)"


def size(result: dict) -> str:
    """The size of a set, in words."""
    return f"n = {result['n']}, d = {result['d']}, k = {result['k']}"
