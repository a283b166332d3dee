"""Table 2, Fig. 5 and 7 in kind, and Fig. 1: text and web sets."""

import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness.data import hold_out, load_sparse
from harness.jobs import Job
from sklearn.metrics import f1_score

from papers.multivariate.methods import (
    GRID_HAMMING,
    GRID_SVM,
    Rows,
    choose,
    evaluate,
    signs,
    svm,
    train_ours,
    weigh,
)

SETS = ("basehock", "relathe", "cnae9", "w8a", "newsgroups20_full")
BUDGETS = (2, 5, 10, 50, 100, 150, 200, 250)
GRID = (0.01, 0.1, 1.0, 10.0)
SEEDS = 3
MEASURES = ("F1", "PRBEP", "Rec@2p", "Hamming")


def jobs(path: Path, sets: Iterable[str]) -> Iterator[Job]:
    """One for each class of each split."""
    for name in sets:
        labels = np.unique(load_sparse(path, name)[1])
        labels = labels[-1:] if len(labels) == 2 else labels
        for seed in range(1 if name == "newsgroups20_full" else SEEDS):
            for label in labels.tolist():
                yield (f"accuracy_{name}_{seed}_{label}", run_class, path, name, seed, label)


def run_class(path: Path, name: str, seed: int, label: int) -> dict:
    """All methods."""
    X, y = load_sparse(path, name)
    fit, test = hold_out(y, 0.4, seed)
    A, T = weigh(X[fit], X[test])
    a = signs(y[fit], label)
    part, held = hold_out(a, 0.25, seed)
    inner, outer = weigh(X[fit][part], X[fit][held])
    rows, counts = Rows(A, a, T, signs(y[test], label)), {}

    def held_out(model: Any, target: str) -> float:
        scores, inner_scores = (model.decision_function(Z) for Z in (outer, inner))
        return evaluate(scores, a[held], inner_scores, a[part])[target]

    for kind in MEASURES:
        hamming, m = kind == "Hamming", A.shape[1]
        score = partial(held_out, target="F1" if hamming else kind)
        grid = GRID_HAMMING if hamming else GRID
        c = choose(grid, partial(train_ours, inner, a[part], kind, 50), score)
        budgets = [b for b in BUDGETS if b < m] + ([] if hamming else [m])
        for budget, features in rows.add_ours(kind, budgets, c):
            if kind == "F1" and budget < m:
                counts[budget] = features

    for weighted in (False, True):
        how = "weighted" if weighted else "plain"
        C = choose(
            GRID_SVM,
            lambda C, w=weighted: svm(inner, a[part], C, w),
            lambda fitted: f1_score(a[held], fitted.predict(outer), zero_division=0),
        )
        rows.add("SVM", how, None, A.shape[1], svm(A, a, C, weighted), 0.0, c=C)
        rows.add_at_counts(weighted, C, counts)
    return {"set": name, "seed": seed, "label": int(label), "n": len(a), "m": A.shape[1], "rows": rows}


def run_sensitivity(path: Path) -> dict:
    """F1 and number of features by C and B, on basehock."""
    X, y = load_sparse(path, "basehock")
    fit, test = hold_out(y, 0.4, 0)
    A, T = weigh(X[fit], X[test])
    a, t, rows = signs(y[fit], y.max()), signs(y[test], y.max()), []
    for c in (0.01, 0.1, 1.0, 10.0):
        model = None
        for budget in BUDGETS:
            start = time.perf_counter()
            model = train_ours(A, a, "F1", budget, c, model)
            result = evaluate(model.decision_function(T), t, model.decision_function(A), a)
            rows.append({"c": c, "budget": budget, "features": len(model.selected), "gap": float(model.gap),
                         "seconds": time.perf_counter() - start, **result})  # fmt: skip
    return {"rows": rows}
