"""The stored entries of a sparse matrix of scipy or JAX, checked."""

from typing import Any

import jax
import numpy as np

from sparsejax._core.checks import as_float_on_host, is_traced


def stored_by_column(name: str, X: Any) -> Any:
    """A copy of X as a csc_matrix: floating, sorted, without duplicates and stored zeros."""
    import scipy.sparse  # noqa: PLC0415  (slow to import, and seldom needed)

    if any(map(is_traced, jax.tree.leaves(X))):
        raise TypeError(
            f"{name} is sparse and traced: build the loss outside jit, and pass it as an argument."
        )

    def values(data: Any) -> np.ndarray:
        return as_float_on_host(f"the stored values of {name}", data)

    if scipy.sparse.issparse(X) and X.format in ("csr", "csc", "bsr"):
        try:  # scipy would use the indices without checking them
            X.check_format(full_check=True)
        except ValueError as error:
            raise ValueError(f"{name} is no valid {type(X).__name__}: {error}.") from None
    if scipy.sparse.issparse(X) and X.format in ("csr", "csc"):
        like = scipy.sparse.csr_matrix if X.format == "csr" else scipy.sparse.csc_matrix
        found = like((values(X.data), X.indices, X.indptr), shape=X.shape)
        found = found.copy() if X.format == "csc" else found.tocsc()
    else:
        data, rows, cols = _stored(name, X)
        for ix, size, which in ((rows, X.shape[0], "row"), (cols, X.shape[1], "column")):
            if ix.size and (ix.min() < 0 or ix.max() >= size):
                raise ValueError(
                    f"{name} has {which} indices from {ix.min()} to {ix.max()}; its shape is {X.shape}."
                )
        found = scipy.sparse.csc_matrix((values(data), (rows, cols)), shape=X.shape)
    found.sum_duplicates()
    if not np.isfinite(found.data).all():
        raise ValueError(f"{name} has entries that are stored several times, and whose sum overflows.")
    found.eliminate_zeros()
    return found


def _stored(name: str, X: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, rows and columns of the stored entries, as they are: unsorted, maybe with duplicates."""
    import scipy.sparse  # noqa: PLC0415
    from jax.experimental.sparse import BCOO, BCSR  # noqa: PLC0415

    if scipy.sparse.issparse(X):
        coo = X.tocoo()
        return coo.data, np.asarray(coo.row), np.asarray(coo.col)
    if isinstance(X, BCSR) and X.n_batch == 0 and X.n_dense == 0:
        X = X.to_bcoo()
    if not isinstance(X, BCOO) or X.n_batch or X.n_dense:
        kind = type(X).__name__
        if isinstance(X, BCOO | BCSR):
            kind += f" with n_batch={X.n_batch} and n_dense={X.n_dense}, which must be 0"
        raise TypeError(f"{name} is a {kind}; BCOO, BCSR or a matrix of scipy.sparse is needed.")
    indices = np.asarray(X.indices)
    # BCOO pads with indices beyond the shape. Negative indices stay: the caller raises.
    there = (indices < np.asarray(X.shape)).all(axis=1) | (indices < 0).any(axis=1)
    return np.asarray(X.data)[there], indices[there, 0], indices[there, 1]
