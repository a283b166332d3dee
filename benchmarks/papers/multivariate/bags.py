"""Fig. 5: bags of instances."""

import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness.data import hold_out, standardise
from harness.jobs import Job
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold

from papers.multivariate.methods import GRID_HAMMING, GRID_SVM, Rows, choose, signs, svm, train_ours
from sparsejax.models import mil

COREL = "mil_corel2000"
BAGS = ("musk1", "mil_elephant", "mil_fox", COREL)
BUDGETS = (2, 5, 10, 20, 50, 100)
GRID, GRID_MILES = (1e-4, 1e-3, 1e-2, 0.1), (0.1, 1.0, 10.0, 100.0)


def classes(name: str) -> Iterable[int]:
    """The categories that are told from the rest."""
    return range(7) if name == COREL else (1,)


def jobs(path: Path, sets: Iterable[str]) -> Iterator[Job]:
    """One for each class of each split."""
    for name in sets:
        for seed in range(3 if name == COREL else 10):
            for label in classes(name):
                yield (f"bags_{name}_{seed}_{label}", run_class, path, name, seed, label)


def take(X: np.ndarray, ids: np.ndarray, bags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The instances of some bags, renumbered in their order."""
    number = np.full(ids.max() + 1, -1)
    number[bags] = np.arange(len(bags))
    inside = number[ids] >= 0
    return X[inside], number[ids[inside]]


def embedded(path: Path, name: str, seed: int, label: int) -> tuple[Rows, float]:
    """Bags of training and of test by their likeness to the training instances, and the bandwidth of it."""
    with np.load(path / f"{name}.npz") as f:
        X, ids, y = f["X"].astype(float), f["bag"].astype(int), signs(f["y"].astype(int), label)
    if name == COREL:
        fit, test = hold_out(y, 0.4, seed)
    else:
        fit, test = list(StratifiedKFold(10, shuffle=True, random_state=0).split(y, y))[seed]
    (A, a_ids), (T, t_ids) = take(X, ids, fit), take(X, ids, test)
    A, T = standardise(A, T)
    sigma = mil.median_bandwidth(A)
    S, U = (np.asarray(mil.embed(Z, i, A, sigma), float) for Z, i in ((A, a_ids), (T, t_ids)))
    return Rows(S, y[fit], U, y[test]), sigma


def run_class(path: Path, name: str, seed: int, label: int) -> dict:
    """All methods."""
    rows, sigma = embedded(path, name, seed, label)
    S, a = rows.S, rows.a
    part, held = hold_out(a, 0.25, seed)

    def held_out(model: Any) -> float:
        return f1_score(a[held], model.predict(S[held]), zero_division=0)

    counts = {}
    for kind, grid in (("F1", GRID), ("Hamming", GRID_HAMMING)):
        c = choose(grid, partial(train_ours, S[part], a[part], kind, 10), held_out)
        found = dict(rows.add_ours(kind, BUDGETS, c))
        counts = counts or found
    for weighted in (False, True):
        how = "weighted" if weighted else "plain"
        fit = lambda C, l1, w=weighted: svm(S[part], a[part], C, w, l1)
        C = choose(GRID_MILES, partial(fit, l1=True), held_out)
        start = time.perf_counter()
        miles = svm(S, a, C, weighted, l1=True)
        seconds = time.perf_counter() - start
        rows.add("MILES", how, None, np.count_nonzero(miles.coef_), miles, seconds, c=C)
        C = choose(GRID_SVM, partial(fit, l1=False), held_out)
        rows.add_at_counts(weighted, C, counts)
    bags = len(rows.a) + len(rows.t)
    return {"set": name, "seed": seed, "label": int(label), "bags": bags, "sigma": sigma, "rows": rows}
