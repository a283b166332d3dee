"""Text as vectors, the models, and the rows of a result: a method with so many features, measured."""

import functools
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import f1_score
from sklearn.svm import LinearSVC

from sparsejax.models import multivariate as mv

GRID_HAMMING, GRID_SVM = (0.05, 0.5, 5.0), (0.1, 1.0, 10.0)
LOSS, TOL = 0.1, 1e-2

Matrix = np.ndarray | sparse.csr_array


def weigh(train: sparse.csr_array, *others: sparse.csr_array) -> list[sparse.csr_array]:
    """Log counts times the inverse document frequency of the training rows, rows of length 1."""
    frequency = np.bincount(train.indices, minlength=train.shape[1])
    idf = np.log(train.shape[0] / np.maximum(frequency, 1))
    out = []
    for X in (train, *others):
        A = sparse.csr_array((np.log1p(X.data) * idf[X.indices], X.indices, X.indptr), shape=X.shape)
        length = np.sqrt(np.asarray(A.multiply(A).sum(1)).ravel())
        out.append(sparse.csr_array(sparse.diags_array(1 / np.where(length > 0, length, 1)) @ A))
    return out


def signs(y: np.ndarray, positive: int) -> np.ndarray:
    """One class against the rest."""
    return np.where(y == positive, 1, -1)


# ---------------------------------------------------------------- ours


def train_ours(
    X: Matrix, y: np.ndarray, kind: str, budget: float, c: float, init: mv.Model | None = None
) -> mv.Model:
    """Trained for a measure."""
    measure = {
        "F1": mv.f_beta(),
        "PRBEP": mv.prbep(),
        "Rec@2p": mv.recall_at(min(2 * int((y == 1).sum()), len(y))),
        "Hamming": mv.hamming(2.0),
    }[kind]
    # the Hamming loss is a sum over examples: a tenth of a percent of it is LOSS n / 50
    eps = LOSS * len(y) / 50 if kind == "Hamming" else LOSS
    c = c if kind == "Hamming" else c * trade_off(len(y))
    return mv.fit(X, y, measure=measure, budget=budget, C=c * len(y), tol=TOL, eps_delta=eps, init=init)


def trade_off(n: int) -> float:
    """C/n for the same trade-off as at 2000 examples: these losses are 100 at most, while scores add up."""
    return (2000 / n) ** 2


# ---------------------------------------------------------------- the others


def svm(X: Matrix, y: np.ndarray, C: float, weighted: bool, l1: bool = False) -> LinearSVC:
    """LIBLINEAR, of all features or with a penalty that selects."""
    options: dict = {"penalty": "l1", "dual": False, "max_iter": 2000} if l1 else {}
    machine = LinearSVC(C=C, class_weight="balanced" if weighted else None, random_state=0, **options)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        return machine.fit(X, y)


def eliminate(X: Matrix, y: np.ndarray, C: float, weighted: bool, counts: Iterable[int]) -> dict:
    """SVM-RFE: (columns, machine) for each wanted count."""
    columns, found = np.arange(X.shape[1]), {}
    for target in sorted({min(c, X.shape[1]) for c in counts}, reverse=True):
        while True:
            fitted = svm(X[:, columns], y, C, weighted)
            if len(columns) <= target:
                break
            keep = max(target, int(0.8 * len(columns)))
            columns = np.sort(columns[np.argsort(-np.abs(fitted.coef_[0]), kind="stable")[:keep]])
        found[target] = (columns, fitted)
    return found


def lassos(X: Matrix, y: np.ndarray, weighted: bool, counts: Iterable[int]) -> dict:
    """l1-SVM: for each wanted count the machine whose number of features is nearest, C by bisection."""

    @functools.cache
    def at(exponent: float) -> tuple[int, LinearSVC]:
        fitted = svm(X, y, 10**exponent, weighted, l1=True)
        return np.count_nonzero(fitted.coef_), fitted

    found = {}
    for count in counts:
        low, high, tried = -4.0, 3.0, []
        for _ in range(12):
            middle = (low + high) / 2
            tried.append(at(middle))
            if abs(tried[-1][0] - count) <= 0.05 * count:
                break
            low, high = (middle, high) if tried[-1][0] < count else (low, middle)
        found[count] = min(tried, key=lambda t: abs(t[0] - count))[1]
    return found


# ---------------------------------------------------------------- rows


def evaluate(scores: np.ndarray, y: np.ndarray, train_scores: np.ndarray, train_y: np.ndarray) -> dict:
    """F1 (decision 0, tuned threshold), PRBEP, Rec@2p and accuracy, in percent."""
    threshold = mv.tune_threshold(mv.f_beta(), train_scores, train_y)
    order, p = np.argsort(-scores, kind="stable"), int((y == 1).sum())
    first = lambda k: float((y[order[:k]] == 1).sum())
    return {
        "F1": 100 * f1_score(y, np.where(scores > 0, 1, -1), zero_division=0),
        "F1 tuned": 100 * f1_score(y, np.where(scores > threshold, 1, -1), zero_division=0),
        "PRBEP": 100 * first(p) / p,
        "Rec@2p": 100 * first(min(2 * p, len(y))) / p,
        "accuracy": 100 * float(np.mean((scores > 0) == (y == 1))),
    }


def choose(grid: Sequence[float], train: Callable[[float], Any], score: Callable[[Any], float]) -> float:
    """The value of the grid with the best score in a held-out part (the first, if tied)."""
    return max(grid, key=lambda c: score(train(c)))


class Rows(list):
    """The rows of one class of one split: training data S, a and test data U, t."""

    def __init__(self, S: Matrix, a: np.ndarray, U: Matrix, t: np.ndarray):
        super().__init__()
        self.S, self.a, self.U, self.t = S, a, U, t

    def add(
        self, method: str, trained: str, budget: float | None, features: int, model: Any, seconds: float,
        columns: np.ndarray | slice = slice(None), **more: Any,
    ) -> None:  # fmt: skip
        """Measure a model of these columns."""
        scores, train_scores = (model.decision_function(Z[:, columns]) for Z in (self.U, self.S))
        self.append({
            "method": method, "trained": trained, "budget": budget, "features": int(features),
            "seconds": seconds, **evaluate(scores, self.t, train_scores, self.a), **more,
        })  # fmt: skip

    def add_ours(self, kind: str, budgets: Iterable[float], c: float) -> Iterator[tuple[float, int]]:
        """Our models at each budget, each from the last; yields the budgets and numbers of features."""
        model = None
        for budget in budgets:
            start = time.perf_counter()
            model = train_ours(self.S, self.a, kind, budget, c, model)
            seconds, features = time.perf_counter() - start, len(model.selected)
            ended = {"gap": float(model.gap), "status": int(model.status), "masters": int(model.num_iters)}
            self.add("ours", kind, budget, features, model, seconds, c=c, **ended)
            yield budget, max(features, 1)

    def add_at_counts(self, weighted: bool, C: float, counts: dict[float, int]) -> None:
        """SVM-RFE and l1-SVM with as many features as ``counts`` has for each budget."""
        how = "weighted" if weighted else "plain"
        start = time.perf_counter()
        nested = eliminate(self.S, self.a, C, weighted, counts.values())
        seconds = time.perf_counter() - start
        for budget, count in counts.items():
            columns, fitted = nested[min(count, self.S.shape[1])]
            self.add("SVM-RFE", how, budget, len(columns), fitted, seconds, columns, c=C)
        start = time.perf_counter()
        machines = lassos(self.S, self.a, weighted, counts.values())
        seconds = time.perf_counter() - start
        for budget, count in counts.items():
            fitted = machines[count]
            self.add("l1-SVM", how, budget, np.count_nonzero(fitted.coef_), fitted, seconds)
