"""Figure 2: the accuracy of linear SVMs on the features of each method, by cross-validation."""

import itertools
import time
from pathlib import Path

import numpy as np
from harness.data import hold_out, standardise
from sklearn.model_selection import StratifiedKFold
from sklearn.svm import SVC

from papers.ijcai19.rankings import FILTERS, SEED, Lists, by_class, fit_weights, load_cut, weights_kept

SIZES = (10, 20, 30, 40, 50, 60, 70, 80)
HOLD_OUT_SIZES = (10, 20, 40, 80)
COMMITTEE = (10, 20)
RATIOS = (0.1, 1.0, 10.0, 100.0)
FOLDS = 5

TUNED, EQUAL = "exclusive l2,1 (ratio tuned)", "exclusive l2,1 (alpha = beta)"
SPARSE = (TUNED, EQUAL, "l2,1", "exclusive lasso")
OTHERS = ("l2,1", "exclusive lasso", "mRMR", "F statistic", "ReliefF")
METHODS = (TUNED, EQUAL, *OTHERS, "F, by class")


# ---------------------------------------------------------------- classification


def decisions(X: np.ndarray, y: np.ndarray, X_test: np.ndarray, lists: Lists, m: int) -> np.ndarray:
    """Decision values (n_test, k): class j against the rest on its own m features."""
    values = []
    for c, features in enumerate(lists):
        columns = features[:m]
        machine = SVC(kernel="linear", C=1.0).fit(X[:, columns], y == c)
        values.append(machine.decision_function(X_test[:, columns]))
    return np.stack(values, axis=1)


def accuracy(values: np.ndarray, y: np.ndarray) -> float:
    """The class of largest decision value wins."""
    return float(np.mean(values.argmax(1) == y))


def vote_accuracy(values: np.ndarray, y: np.ndarray) -> float:
    """Each class votes yes or no; ties are broken at random, which is averaged exactly."""
    yes = values > 0
    yes[~yes.any(1)] = True
    return float(np.mean(yes[np.arange(len(y)), y] / yes.sum(1)))


def committee_accuracy(
    X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray, lists: Lists, m: int
) -> float | None:
    """Each list of features trains a machine for all classes; these vote."""
    if len(X) * len(lists) > 50_000:
        return None
    votes = np.zeros((len(X_test), len(lists)))
    same = all(a is lists[0] for a in lists)
    for features in lists[:1] if same else lists:
        columns = features[:m]
        answer = SVC(kernel="linear", C=1.0).fit(X[:, columns], y).predict(X_test[:, columns])
        votes[np.arange(len(answer)), answer] += 1
    return accuracy(votes, y_test)


def all_features(X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray) -> float:
    """Without any selection."""
    K, K_test = X @ X.T, X_test @ X.T
    machines = [SVC(kernel="precomputed", C=1.0).fit(K, y == c) for c in range(y.max() + 1)]
    return accuracy(np.stack([m.decision_function(K_test) for m in machines], axis=1), y_test)


# ---------------------------------------------------------------- one fold


def tuned_ratio(X: np.ndarray, y: np.ndarray, seed: int, share: float | None) -> float:
    """beta / alpha of best mean accuracy in a hold-out part of this training fold (the smallest, if tied)."""
    fit, held = hold_out(y, 0.25, seed)
    A, B = standardise(X[fit], X[held])

    def score(ratio: float) -> float:
        lists = by_class(fit_weights(A, y[fit], "exclusive l2,1", ratio, share))
        scores = [accuracy(decisions(A, y[fit], B, lists, m), y[held]) for m in HOLD_OUT_SIZES]
        return float(np.mean(scores))

    return max(RATIOS, key=score)


def first_20(lists: Lists) -> list[set[int]]:
    """The features of each class that are described."""
    return [set(o[:20].tolist()) for o in lists]


def describe(X: np.ndarray, lists: Lists, tuned: Lists, W: np.ndarray | None) -> dict:
    """What kind of features a method picked: 20 a class."""
    top = first_20(lists)
    pairs = [len(a & b) / 20 for a, b in itertools.combinations(top, 2)]
    C = [abs(np.corrcoef(X[:, o[:20]].T)) for o in lists if len(o) > 1]
    out = {
        "distinct": len(set().union(*top)),  # features used by all classes together
        "shared": float(np.mean(pairs)),  # mean overlap of two classes
        "correlation": float(np.mean([(c.sum() - len(c)) / (len(c) * (len(c) - 1)) for c in C])),
        "as tuned": float(np.mean([len(a & b) / 20 for a, b in zip(first_20(tuned), top, strict=True)])),
    }
    if W is not None:
        rows, least = int((W != 0).any(1).sum()), min(len(o) for o in lists)
        out |= {"nonzeros": int(np.count_nonzero(W)), "rows": rows, "least": least}
    return out


def run_fold(
    X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray, seed: int, share: float | None
) -> dict:
    """Every method on one training fold: accuracies, and what was picked."""
    ratio, k = tuned_ratio(X, y, seed, share), int(y.max()) + 1
    X, X_test = standardise(X, X_test)
    W = {
        EQUAL: fit_weights(X, y, "exclusive l2,1", share=share),
        "l2,1": fit_weights(X, y, "l2,1", share=share),
        "exclusive lasso": fit_weights(X, y, "exclusive lasso", share=share),
    }
    W[TUNED] = W[EQUAL] if ratio == 1 else fit_weights(X, y, "exclusive l2,1", ratio, share)
    lists = {name: by_class(w) for name, w in W.items()}
    lists |= {name: rank(X, y, k) for name, rank in FILTERS.items()}

    out = {"ratio": ratio, "T": weights_kept(X.shape[1], k, share), "d": X.shape[1], "methods": {}}
    out["all features"] = all_features(X, y, X_test, y_test)
    for name in METHODS:
        values = [decisions(X, y, X_test, lists[name], m) for m in SIZES]
        out["methods"][name] = {
            "accuracy": [accuracy(v, y_test) for v in values],
            "votes": [vote_accuracy(v, y_test) for v in values],
            "committee": [committee_accuracy(X, y, X_test, y_test, lists[name], m) for m in COMMITTEE],
            "picked": describe(X, lists[name], lists[TUNED], W.get(name)),
        }
    return out


def run(path: Path, name: str, share: float | None) -> dict:
    """Cross-validation of every method."""
    X, y = load_cut(path, name)
    folds = []
    for i, (fit, test) in enumerate(StratifiedKFold(FOLDS, shuffle=True, random_state=SEED).split(X, y)):
        start = time.perf_counter()
        folds.append(run_fold(X[fit], y[fit], X[test], y[test], SEED + i, share))
        first = {n: f"{r['accuracy'][1]:.3f}" for n, r in folds[-1]["methods"].items()}
        seconds, ratio = time.perf_counter() - start, folds[-1]["ratio"]
        print(f"{name} fold {i}: {seconds:.0f} s, ratio {ratio:g}, m = 20: {first}", flush=True)
    return {"n": len(X), "d": X.shape[1], "k": int(y.max() + 1), "sizes": SIZES, "folds": folds}
