"""The data sets: random splits, and the pairs of labels that are held out."""

from pathlib import Path

import numpy as np
from harness.data import load, load_multilabel

from sparsejax.models import multi_semantic

SAMPLES = (0, 0, 3, 3, 10, 10, 50, 50, 200, 200)  # of the ten digits


def pairs_of(scores1: np.ndarray, scores2: np.ndarray) -> np.ndarray:
    """The products of labels, or scores, of two views."""
    return np.asarray(multi_semantic.enrich(scores1, scores2))


def split_of(path: Path, name: str, rng: np.random.Generator) -> dict:
    """X, labels of both views, rows of each part, pairs held out and names of the labels."""
    return cal500(path, rng) if name == "cal500" else digits(path, name, rng)


def cal500(path: Path, rng: np.random.Generator) -> dict:
    """A split of the songs."""
    X, Y = load_multilabel(path, "cal500")
    with np.load(path / "cal500.npz") as f:
        names = f["label_names"].tolist()
    emotion = [i for i, name in enumerate(names) if name.startswith("Emotion-") or name == "Angry-Agressive"]
    genre = [i for i, name in enumerate(names) if name.startswith("Genre-") and "Best" not in name]
    Y1, Y2 = Y[:, emotion], Y[:, genre]
    pairs = pairs_of(Y1, Y2)
    test, validation, pool = np.split(rng.permutation(len(X)), (160, 252))

    count = pairs[pool].sum(0)
    eligible = np.flatnonzero((count >= 4) & (count <= 15) & (pairs[test].sum(0) >= 2))
    held = np.zeros(pairs.shape[1], bool)
    for pair in rng.permutation(eligible):
        if held.sum() < 8 and (pairs[pool][:, held].any(1) | (pairs[pool, pair] > 0)).sum() <= 50:
            held[pair] = True
    train = pool[~pairs[pool][:, held].any(1)][:200]
    X = X - X[train].mean(0)
    return {
        "X": X / X[train].std(0), "Y1": Y1, "Y2": Y2, "train": train, "validation": validation,
        "test": test, "held": held, "names": [[names[i] for i in view] for view in (emotion, genre)],
    }  # fmt: skip


def digits(path: Path, name: str, rng: np.random.Generator) -> dict:
    """A draw of the rows of each digit; digit q is the pair (q mod 2, q div 2)."""
    X, y = load(path, name)
    order = rng.permutation(10)
    while order[0] // 2 == order[1] // 2:
        order = rng.permutation(10)
    parts: list[list[np.ndarray]] = []
    for digit, samples in zip(order, SAMPLES, strict=True):
        rows = rng.permutation(np.flatnonzero(y == digit))
        rest = samples + 40 * (samples > 0)
        parts.append(np.split(rows[: rest + 150], [samples, rest]))
    train, validation, test = map(np.concatenate, zip(*parts, strict=True))
    varies = X[train].std(0) > 0
    X = (X[:, varies] - X[train][:, varies].mean(0)) / np.ptp(X)
    X = np.hstack([X, np.zeros((len(X), len(varies) - X.shape[1]))])  # one shape for all splits
    held = np.zeros(10, bool)
    held[5 * (order[:2] % 2) + order[:2] // 2] = True
    return {
        "X": X, "Y1": np.eye(2)[y % 2], "Y2": np.eye(5)[y // 2], "train": train, "validation": validation,
        "test": test, "held": held, "names": [["even", "odd"], ["0-1", "2-3", "4-5", "6-7", "8-9"]],
    }  # fmt: skip
