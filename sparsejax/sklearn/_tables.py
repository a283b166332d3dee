"""What estimators hand to the core: data in their own precision, each row once, in tables of few sizes."""

import contextlib
import hashlib
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

try:
    from jax import enable_x64
except ImportError:  # until JAX 0.8 it was experimental
    from jax.experimental import enable_x64  # type: ignore[attr-defined,no-redef]

FLOATS = [np.float64, np.float32]  # what validate_data leaves as it is; all else becomes the first
FEW_ROWS, FEW_COLUMNS = 512, 32  # up to which a table larger than the data costs no time worth naming
LEAST_ROWS = 128


def precision(X: Any) -> contextlib.AbstractContextManager[Any]:
    """64-bit numbers within, in this thread, for float64 data, whether or not they are switched on."""
    return enable_x64(True) if X.dtype == np.float64 else contextlib.nullcontext()


def as_sample_weight(sample_weight: Any, n: int) -> np.ndarray:
    """Finite weights >= 0, one a row and not all zero; ones where none are given."""
    if sample_weight is None:
        return np.ones(n)
    weights = np.asarray(sample_weight, dtype=float)
    if weights.shape != (n,):
        raise ValueError(f"sample_weight must have shape ({n},), one for each row; got {weights.shape}.")
    if not np.isfinite(weights).all():
        raise ValueError("sample_weight has a value that is NaN or infinite; all must be finite.")
    if (weights < 0).any():
        raise ValueError(f"sample_weight must be >= 0, got {weights.min():g}.")
    if not weights.any():
        raise ValueError("sample_weight holds zeros only: at least one weight must be above zero.")
    return weights


class Table(NamedTuple):
    """Rows that differ, with their weights, and rows and columns that only fill it up."""

    X: Any  # (n', d'), columns beyond the given ones are 0; of scipy.sparse if it was given so
    Y: np.ndarray  # (n', k)
    weights: np.ndarray  # (n',), mean 1, so that a loss of default scale is a mean over the rows given
    folds: np.ndarray  # (n',) integers


def gathered(
    X: Any,
    Y: np.ndarray,
    weights: np.ndarray,
    *,
    folds: np.ndarray | None = None,
    widen: bool = True,
) -> Table:
    """The table of these rows.

    Rows of weight 0 are left out and equal ones are made one, in an order of their own: a row of weight k is
    to the last digit what k copies of it are, and nothing depends on the order of the rows. The table is
    filled up to one of few sizes by rows of weight 0 and, with ``widen`` and few data, by columns of zeros,
    whose coefficients are 0: folds and subsets of nearly one size share what JAX compiles. A sparse X is
    filled up by rows only.
    """
    there = np.flatnonzero(weights > 0)
    fold = np.zeros(X.shape[0], int) if folds is None else folds
    X, Y = np.ascontiguousarray(X) if isinstance(X, np.ndarray) else _canonical(X), np.asarray(Y, X.dtype)
    # by a digest of each row: to sort the rows themselves takes ten times as long
    digests = b"".join(_digest(*_entries(X, int(i)), Y[i], fold[i]) for i in there)
    _, first, number = np.unique(np.frombuffer(digests, "V16"), return_index=True, return_inverse=True)
    n, d = len(first), X.shape[1]
    rows, width = _room(n, d)
    # filled up with copies, which leave the size of a column as it is
    ix = there[np.append(first, np.full(rows - n, first[0]))]
    mass = np.append(np.bincount(number.ravel(), weights[there]), np.zeros(rows - n))
    mean_one = (mass * (rows / mass.sum())).astype(X.dtype)
    if sparse.issparse(X):  # with rows without entries, whose number is rounded up where they are stored
        table = X[there[first]]
        table.resize((rows, d))
        return Table(table, Y[ix], mean_one, fold[ix])
    table = X[ix]
    if widen and width > d:
        table = np.append(table, np.zeros((rows, width - d), X.dtype), axis=1)
    return Table(table, Y[ix], mean_one, fold[ix])


def _canonical(X: Any) -> Any:
    """By rows, with each entry once and no zeros."""
    X = sparse.csr_array(X, copy=True)
    X.sum_duplicates()
    X.eliminate_zeros()
    return X


def _entries(X: Any, i: int) -> tuple[np.ndarray, ...]:
    """What there is of row i."""
    if isinstance(X, np.ndarray):
        return (X[i],)
    part = slice(X.indptr[i], X.indptr[i + 1])
    return X.indices[part].astype(np.int32), X.data[part]


def _digest(*parts: np.ndarray) -> bytes:
    return hashlib.blake2b(b"".join(part.tobytes() for part in parts), digest_size=16).digest()


def _room(n: int, d: int) -> tuple[int, int]:
    """The rows and columns of a table for n rows of d features: of few data one of three sizes.

    Else the next number of rows of four binary digits and zeros, at most an eighth more.
    """
    if n <= FEW_ROWS and d <= FEW_COLUMNS:
        return max(1 << (n - 1).bit_length(), LEAST_ROWS), FEW_COLUMNS
    step = 1 << max(n.bit_length() - 4, 0)
    return -(-n // step) * step, d


def filled(X: np.ndarray) -> np.ndarray:
    """X with copies of its first row at its end, to one of few numbers of rows."""
    rows = _room(len(X), 1)[0]
    return X[np.append(np.arange(len(X)), np.zeros(rows - len(X), int))]
