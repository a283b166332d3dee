"""Loading of data sets kept as numpy ``.npz`` archives.

An archive holds ``y`` (a label a row) or ``Y`` (zeros and ones, a column a label), and ``X``, dense, or its
compressed sparse rows as ``data``, ``indices``, ``indptr`` and ``shape``; if columns of X are codes of
categories, ``nominal`` lists them. The folder is given by ``--data`` or by the environment variable
SPARSEJAX_DATA.
"""

import os
from pathlib import Path

import numpy as np


def folder(argument: str | None) -> Path:
    """The folder with the archives, or an error that says how to name it."""
    path = argument or os.environ.get("SPARSEJAX_DATA")
    if not path or not Path(path).is_dir():
        raise SystemExit("give the folder with the .npz files: --data DIR, or SPARSEJAX_DATA=DIR")
    return Path(path)


def load(path: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """X (n, d) as float64 and the labels as 0..k-1."""
    with np.load(path / f"{name}.npz") as f:
        return _dense(f), np.unique(f["y"], return_inverse=True)[1]


def load_multilabel(path: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """X (n, d) as float64, a 0/1 column for each category of a nominal column, and Y (n, k) of 0. and 1."""
    with np.load(path / f"{name}.npz") as f:
        X, Y = _dense(f), f["Y"].astype(float)
        nominal = set(f["nominal"].tolist()) if "nominal" in f else set()
    columns = [x[:, None] == np.unique(x) if j in nominal else x[:, None] for j, x in enumerate(X.T)]
    return np.hstack(columns).astype(float), Y


def _dense(f) -> np.ndarray:
    if "X" in f:
        return f["X"].astype(float)
    data, columns, starts = f["data"], f["indices"].astype(int), f["indptr"]
    X = np.zeros(tuple(int(s) for s in f["shape"]))
    X[np.repeat(np.arange(len(X)), np.diff(starts)), columns] = data
    return X


def draw_of_each(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Rows of ``count`` examples a class, drawn without replacement."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.choice(np.flatnonzero(labels == c), count, False) for c in np.unique(labels)])


def load_regression_usps(path: Path) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """USPS images: the outer 240 pixels and the 16 in the middle; of training (7291) and of test (2007)."""
    with np.load(path / "usps.npz") as f:
        images, test = f["X"].astype(float), f["split"] == 1
    middle = np.zeros((16, 16), bool)
    middle[6:10, 6:10] = True
    middle = middle.ravel()
    X, Y = images[:, ~middle], images[:, middle]
    return (X[~test], Y[~test]), (X[test], Y[test])


def mae(Y, predicted) -> float:
    """The absolute errors of a row summed over the outputs, averaged over the rows (Zhang et al., 2014)."""
    return float(np.mean(np.sum(abs(np.asarray(Y) - np.asarray(predicted)), axis=1)))
