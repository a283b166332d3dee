"""The checked matrix of examples, and the products with it that a fit needs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsejax._core.checks import as_numpy, is_sparse


class Data:
    """Products with X, which is never made dense.

    A sparse X is stored by columns, without its empty columns: their weights are 0, and a vector over all
    columns could take more memory than X.

    Attributes:
      X: (n, m'), float64, csc or dense.
      columns: (m',), the numbers of these columns in the given X.
      shape: (n, m), shape of the given X.
    """

    def __init__(self, X: Any):
        self.shape: tuple[int, int] = X.shape
        self.sparse = not isinstance(X, np.ndarray)
        if self.sparse:
            self.columns = np.flatnonzero(X.indptr[1:] > X.indptr[:-1])
            if not len(self.columns):
                self.columns = np.zeros(1, int)
            # Empty columns hold no entries, so that a column ends where the next non-empty one starts.
            indptr = np.append(X.indptr[self.columns], X.indptr[-1])
            X = type(X)((X.data, X.indices, indptr), shape=(X.shape[0], len(self.columns)))
        else:
            self.columns = np.arange(X.shape[1])
        self.X = X

    def scores(self, columns: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Xw for weights w of these columns, (n,)."""
        return self.X[:, columns] @ w

    def back(self, z: np.ndarray) -> np.ndarray:
        """X'z, (m',)."""
        return self.X.T @ z

    def rows(self, columns: np.ndarray, codes: Sequence[np.ndarray]) -> np.ndarray:
        """X[:, columns]' Z, (r, K), where the K codes are the columns of Z.

        The product is computed for 16 codes at a time, to bound the memory.
        """
        S = self.X[:, columns].T
        S = S.tocsr() if self.sparse else np.ascontiguousarray(S)
        out = np.empty((len(columns), len(codes)))
        for k in range(0, len(codes), 16):
            out[:, k : k + 16] = S @ np.stack(codes[k : k + 16], axis=1).astype(float)
        return out


def as_data(X: Any) -> Data:
    """X as `Data`; raises unless X is a real, finite matrix, dense or of scipy.sparse."""
    if isinstance(X, Data):
        return X
    if hasattr(X, "tocsc"):
        from scipy import sparse  # noqa: PLC0415

        check_real("X", X.dtype)
        if hasattr(X, "check_format"):  # compressed formats have this method
            try:
                X.check_format(full_check=True)
            except ValueError as error:
                raise ValueError(
                    f"X is not a valid sparse array (too small an index dtype?): {error}"
                ) from None
        X = sparse.csc_array(X, dtype=float)
        values = X.data
    else:
        if is_sparse(X):
            raise TypeError(f"X is a {type(X).__name__}; a dense or scipy.sparse array is needed.")
        X = as_numpy("X", X)
        check_real("X", X.dtype)
        X = values = np.asarray(X, dtype=float)
    if len(X.shape) != 2 or 0 in X.shape:
        raise ValueError(f"X must have shape (n, m) with n, m >= 1, got {X.shape}.")
    bad = ~np.isfinite(values)
    if bad.any():
        raise ValueError(f"X has {int(bad.sum())} value(s) that are NaN or infinite; all must be finite.")
    return Data(X)


def check_real(name: str, dtype: np.dtype) -> None:
    """Raise a TypeError unless the dtype holds real numbers or booleans; ``name`` is for errors."""
    if dtype.kind not in "biuf":
        raise TypeError(f"{name} has dtype {dtype}; real numbers are needed.")
