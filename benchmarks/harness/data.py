"""Data sets kept as numpy ``.npz`` archives, and what is done to them first.

An archive holds ``y`` (a label a row) or ``Y`` (outputs; or zeros and ones, a column a label), and ``X``,
dense, or its compressed sparse rows as ``data``, ``indices``, ``indptr`` and ``shape``; if columns of X are
codes of categories, ``nominal`` lists them. The folder is given by ``--data`` or by the environment variable
SPARSEJAX_DATA.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from scipy import sparse
from sklearn.model_selection import train_test_split

Arrays = tuple[np.ndarray, np.ndarray]


def folder(argument: str | None) -> Path:
    """The folder with the archives, or an error that says how to name it."""
    path = argument or os.environ.get("SPARSEJAX_DATA")
    if not path or not Path(path).is_dir():
        raise SystemExit("give the folder with the .npz files: --data DIR, or SPARSEJAX_DATA=DIR")
    return Path(path)


def load(path: Path, name: str) -> Arrays:
    """X (n, d) as float64 and the labels as 0..k-1."""
    with np.load(path / f"{name}.npz") as f:
        return _dense(f), np.unique(f["y"], return_inverse=True)[1]


def load_sparse(path: Path, name: str) -> tuple[sparse.csr_array, np.ndarray]:
    """X (n, d) as sparse rows, and the labels as they are in the archive."""
    with np.load(path / f"{name}.npz") as f:
        return _sparse(f), f["y"].astype(int)


def load_outputs(path: Path, name: str) -> Arrays:
    """X (n, d) and Y (n, k) as float64."""
    with np.load(path / f"{name}.npz") as f:
        return _dense(f), f["Y"].astype(float)


def load_multilabel(path: Path, name: str) -> Arrays:
    """X (n, d) as float64, a 0/1 column for each category of a nominal column, and Y (n, k) of 0. and 1."""
    X, Y = load_outputs(path, name)
    with np.load(path / f"{name}.npz") as f:
        nominal = set(f["nominal"].tolist()) if "nominal" in f else set()
    columns = [x[:, None] == np.unique(x) if j in nominal else x[:, None] for j, x in enumerate(X.T)]
    return np.hstack(columns).astype(float), Y


def load_regression_usps(path: Path) -> tuple[Arrays, Arrays]:
    """USPS images: the outer 240 pixels and the 16 in the middle; of training (7291) and of test (2007)."""
    with np.load(path / "usps.npz") as f:
        images, test = f["X"].astype(float), f["split"] == 1
    square = np.zeros((16, 16), bool)
    square[6:10, 6:10] = True
    middle = square.ravel()
    X, Y = images[:, ~middle], images[:, middle]
    return (X[~test], Y[~test]), (X[test], Y[test])


def load_standardised(path: Path, name: str) -> Arrays:
    """Columns of mean 0 and deviation 1 (constant ones dropped), and centred one-hot targets."""
    X, y = load(path, name)
    Y = one_hot(y)
    return standardise(X)[0], Y - Y.mean(0)


def _dense(f: Mapping[str, np.ndarray]) -> np.ndarray:
    return f["X"].astype(float) if "X" in f else _sparse(f).toarray()


def _sparse(f: Mapping[str, np.ndarray]) -> sparse.csr_array:
    data, columns, starts = f["data"].astype(float), f["indices"].astype(np.int32), f["indptr"]
    return sparse.csr_array((data, columns, starts), shape=tuple(f["shape"].tolist()))


def one_hot(labels: np.ndarray) -> np.ndarray:
    """Zeros and ones, a column for each of the labels 0..k-1."""
    return np.eye(labels.max() + 1)[labels]


def moments(X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means and standard deviations of the columns, and which of these are not constant."""
    mean, deviation = X.mean(0), X.std(0)
    return mean, deviation, deviation > 1e-12 * np.maximum(1, abs(mean))


def standardise(X: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    """X and the others by the means and deviations of X, without the columns that are constant in X."""
    mean, deviation, varies = moments(X)
    return [(A[:, varies] - mean[varies]) / deviation[varies] for A in (X, *others)]


def hold_out(labels: np.ndarray, share: float, seed: int) -> list[np.ndarray]:
    """Rows to fit to and rows held out, a ``share`` of every label."""
    return train_test_split(np.arange(len(labels)), test_size=share, stratify=labels, random_state=seed)


def draw_of_each(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Rows of ``count`` examples a class, drawn without replacement."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.choice(np.flatnonzero(labels == c), count, False) for c in np.unique(labels)])


def mae(Y: np.ndarray, predicted: np.ndarray) -> float:
    """The absolute errors of a row summed over the outputs, averaged over the rows (Zhang et al., 2014)."""
    return float(np.mean(np.sum(abs(np.asarray(Y) - np.asarray(predicted)), axis=1)))
