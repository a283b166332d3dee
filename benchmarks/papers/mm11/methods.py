"""Every method, with all its settings, on a split."""

import warnings

import numpy as np
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

import sparsejax as sj
from papers.mm11.splits import pairs_of
from sparsejax import graphs
from sparsejax.models import multi_semantic

RIDGES = np.geomspace(100, 1e-3, 11)
PENALTIES = np.geomspace(3, 3e-3, 4)
GRAPHS = np.geomspace(100, 1e-1, 4)
MARGINS = np.geomspace(1e-4, 1, 5)  # C of the SVM
TOL, MAXITER = 1e-4, 3000

BOTH, SHRUNK = "IA-MSL (both, views)", "ridge + graph (views)"
METHODS = (
    "SVM", "SVM-E", "NMTL", "NMTL-E", "ridge", "ridge-E", "MTLG (graph, views)", "MTLG (graph, NGD)",
    "MTLE (exclusive)", SHRUNK, BOTH, "IA-MSL (both, NGD)",
)  # fmt: skip

Tried = dict[str, dict[tuple[float, ...], np.ndarray]]  # scores by method and setting, strong to weak


class Quadratic:
    r"""``min 1/(2n) ||XW + 1b' - Y||^2 + ridge/2 ||W||^2 + strength/2 tr(W L W')`` for any strengths.

    X'X/n and L are decomposed once; of many minimisers the one of least norm.
    """

    def __init__(self, X: np.ndarray, Y: np.ndarray, similarity: np.ndarray | None = None):
        self.mean, self.offset = X.mean(0), Y.mean(0)
        A = X - self.mean
        self.s, self.U = np.linalg.eigh(A.T @ A / len(X))
        self.s = np.where(self.s > 1e-10 * self.s[-1], self.s, 0)
        k = Y.shape[1]
        L = np.zeros((k, k)) if similarity is None else np.diag(similarity.sum(0)) - similarity
        self.l, self.V = np.linalg.eigh(L)
        self.l = np.maximum(self.l, 0)
        self.B = self.U.T @ (A.T @ (Y - self.offset) / len(X)) @ self.V

    def scores(self, X: np.ndarray, ridge: float = 0.0, strength: float = 0.0) -> np.ndarray:
        """Predictions for the rows of X."""
        curvature = self.s[:, None] + ridge + strength * self.l[None]
        seen = (self.s > 0)[:, None] & (curvature > 0)  # B is zero elsewhere
        W = self.U @ np.where(seen, self.B / np.where(seen, curvature, 1), 0) @ self.V.T
        return (X - self.mean) @ W + self.offset


def svm_scores(X: np.ndarray, Y: np.ndarray, X_new: np.ndarray, C: float) -> np.ndarray:
    """Decision values; 0 for a label that all or none have."""
    scores = np.zeros((len(X_new), Y.shape[1]))
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        for j in np.flatnonzero((Y.min(0) == 0) & (Y.max(0) == 1)):
            scores[:, j] = LinearSVC(C=C, dual=True, max_iter=200).fit(X, Y[:, j]).decision_function(X_new)
    return scores


def confident_pairs(scores1: np.ndarray, scores2: np.ndarray) -> np.ndarray:
    """Products of the confidences that the scores of two views stand for."""
    return pairs_of(expit(scores1), expit(scores2))


class Split:
    """The training rows of a split, the rows that are scored, and what strengths are relative to."""

    def __init__(self, split: dict, rows: np.ndarray):
        self.X, self.Y1, self.Y2 = (split[name][split["train"]] for name in ("X", "Y1", "Y2"))
        self.Y, self.new = pairs_of(self.Y1, self.Y2), split["X"][rows]
        self.variance = self.X.var(0).sum() / (self.X.var(0) > 0).sum()
        sizes = self.Y1.shape[1], self.Y2.shape[1]
        built = len(np.unique(self.Y1.sum(1))) == 1 and sizes == (2, 5)
        parts = sizes if built else (graphs.ngd_similarity(self.Y1), graphs.ngd_similarity(self.Y2))
        self.similarity = {"views": graphs.from_views(*parts), "NGD": graphs.ngd_similarity(self.Y)}
        self.unit = {name: self.variance / float(P.sum(0).mean()) for name, P in self.similarity.items()}
        self.gap = 0.0  # the largest of the exclusive models
        self.zeros: dict[tuple, float] = {}  # their shares of zeros, by graph and strengths

    def exclusive(self, strength: float, graph: str, gamma: float) -> np.ndarray:
        """Scores of IA-MSL."""
        laplacian = sj.losses.GraphLaplacian(self.similarity[graph], gamma * self.unit[graph])
        model = multi_semantic.fit(
            self.X, self.Y1, self.Y2, strength * self.variance, laplacian, tol=TOL, maxiter=MAXITER
        )
        self.gap = max(self.gap, float(model.solution.gap))
        self.zeros[graph, strength, gamma] = float((np.asarray(model.W) == 0).mean())
        return np.asarray(model.decision_function(self.new))


def candidates(split: Split) -> Tried:
    """The scores of every method with each of its settings."""
    return quadratic(split) | exclusive(split) | svms(split)


def quadratic(split: Split) -> Tried:
    """Least squares with ridge and graph, solved exactly."""
    X, new, v = split.X, split.new, split.variance
    plain, views = Quadratic(X, split.Y), [Quadratic(X, Y) for Y in (split.Y1, split.Y2)]
    enriched = lambda ridge: confident_pairs(*(4 * view.scores(new, ridge) - 2 for view in views))
    out: Tried = {
        "NMTL": {(): plain.scores(new)},
        "NMTL-E": {(): enriched(0)},
        "ridge": {(r,): plain.scores(new, r * v) for r in RIDGES},
        "ridge-E": {(r,): enriched(r * v) for r in RIDGES},
    }
    for name, P in split.similarity.items():
        model, unit = Quadratic(X, split.Y, np.asarray(P)), split.unit[name]
        out[f"MTLG (graph, {name})"] = {(g,): model.scores(new, 0, g * unit) for g in GRAPHS}
        if name == "views":
            out[SHRUNK] = {(r, g): model.scores(new, r * v, g * unit) for r in RIDGES[1:8:2] for g in GRAPHS}
    return out


def exclusive(split: Split) -> Tried:
    """The exclusive penalty alone, and with each graph."""
    out: Tried = {"MTLE (exclusive)": {(p,): split.exclusive(p, "views", 0.0) for p in PENALTIES}}
    for name in split.similarity:
        both = {(p, g): split.exclusive(p, name, g) for p in PENALTIES for g in GRAPHS}
        out[f"IA-MSL (both, {name})"] = both
    return out


def svms(split: Split) -> Tried:
    """Of each pair, and of each label."""
    scores = lambda Y, C: svm_scores(split.X, Y, split.new, C)
    return {
        "SVM": {(C,): scores(split.Y, C) for C in MARGINS},
        "SVM-E": {(C,): confident_pairs(scores(split.Y1, C), scores(split.Y2, C)) for C in MARGINS},
    }
