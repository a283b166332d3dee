"""A matrix of which only the entries that are not zero are stored."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax._core.checks import INT32_MAX, as_float, is_sparse, is_traced
from sparsejax._core.linalg import column_sums as dense_column_sums
from sparsejax._core.pytree import Pytree


class Sparse(Pytree, leaves=("data", "rows", "cols"), static=("shape",)):
    """X (n, d) by its stored entries, row after row: ``X[rows[i], cols[i]] = data[i]``.

    Products gather and add by index: 16 bytes a stored value in float64, no host, every transformation.
    """

    data: jax.Array  # (nnz,)
    rows: jax.Array  # (nnz,), sorted
    cols: jax.Array  # (nnz,)
    shape: tuple[int, int]

    @property
    def dtype(self) -> Any:
        """That of the entries."""
        return self.data.dtype

    @property
    def ndim(self) -> int:
        """2."""
        return 2

    def __matmul__(self, W: jax.Array) -> jax.Array:
        """XW, (n, k) or (n,)."""
        return _product(self.data, self.rows, self.cols, self.shape[0], jnp.asarray(W), sorted_=True)

    def __rmatmul__(self, U: jax.Array) -> jax.Array:
        """UX, (k, d) or (d,)."""
        return (self.T @ jnp.asarray(U).T).T

    @property
    def T(self) -> "Transposed":
        """X', for products."""
        return Transposed(self)

    def map(self, function: Callable[[jax.Array], jax.Array]) -> "Sparse":
        """Entry by entry, by a function that is 0 at 0."""
        return self._replace(data=function(self.data))

    def divided(self, units: jax.Array) -> "Sparse":
        """Columns divided by units (d,)."""
        return self._replace(data=self.data / units.at[self.cols].get(mode="promise_in_bounds"))

    def columns_at(self, ix: jax.Array) -> jax.Array:
        """The columns of these numbers, dense; of number d: zero."""
        n, d = self.shape
        m = ix.shape[0]
        place = jnp.full(d + 1, m, jnp.int32).at[ix].set(jnp.arange(m, dtype=jnp.int32))
        at = place.at[self.cols].get(mode="promise_in_bounds")
        return jnp.zeros((n, m), self.dtype).at[self.rows, at].add(self.data, mode="drop")


class Transposed:
    """X' of a sparse X."""

    def __init__(self, X: Sparse):
        self.X = X
        self.shape = X.shape[::-1]

    def __matmul__(self, U: jax.Array) -> jax.Array:
        """X'U, (d, k) or (d,)."""
        X = self.X
        return _product(X.data, X.cols, X.rows, X.shape[1], U, sorted_=False)


def _product(
    data: jax.Array, to: jax.Array, of: jax.Array, size: int, W: jax.Array, *, sorted_: bool
) -> jax.Array:
    def column(w: jax.Array) -> jax.Array:
        moved = data * w.at[of].get(mode="promise_in_bounds")
        zero = jnp.zeros(size, moved.dtype)
        return zero.at[to].add(moved, mode="promise_in_bounds", indices_are_sorted=sorted_)

    if W.ndim == 1:
        return column(W)
    # One column after the other: the entries of all of them at once would be k times the matrix.
    found: jax.Array = jax.lax.map(column, W.T)
    return found.T


def column_sums(function: Callable[[jax.Array], jax.Array], X: Any) -> jax.Array:
    """The sums down the columns of ``function(X)``, elementwise, of single rows too, and 0 at 0."""
    if isinstance(X, Sparse):
        return X.map(function).T @ jnp.ones(X.shape[0], X.dtype)
    return dense_column_sums(function, X)


def row_sums(function: Callable[[jax.Array], jax.Array], X: Any, weights: jax.Array) -> jax.Array:
    """The sums along the rows of ``function(X)``, likewise, times weights (d,)."""
    if isinstance(X, Sparse):
        return X.map(function) @ weights
    return jnp.sum(function(X) * weights[None], axis=1)


def columns_at(X: Any, ix: jax.Array) -> jax.Array:
    """Columns of X, dense; of number d: zero."""
    if isinstance(X, Sparse):
        return X.columns_at(ix)
    return jnp.take(X, ix, axis=1, mode="fill", fill_value=0)


def divided(X: Any, units: jax.Array) -> Any:
    """Columns of X divided by units (d,)."""
    return X.divided(units) if isinstance(X, Sparse) else X * (1 / units)[None]


def as_matrix(name: str, X: Any) -> Any:
    """X as a dense array or `Sparse`: a matrix of scipy.sparse or of jax.experimental.sparse stays sparse."""
    if isinstance(X, Sparse) or not is_sparse(X):
        return X if isinstance(X, Sparse) else as_float(name, X, (2,))
    if len(X.shape) != 2:
        raise ValueError(f"{name} has shape {tuple(X.shape)}; it must be 2-d.")
    data, rows, cols = _stored(name, X)
    n, d = (int(size) for size in X.shape)
    if max(n, d, len(data)) > INT32_MAX:
        raise ValueError(f"{name} has {len(data)} stored values and shape {(n, d)}: at most {INT32_MAX}.")
    for ix, size, which in ((rows, n, "row"), (cols, d, "column")):
        if ix.size and (ix.min() < 0 or ix.max() >= size):
            raise ValueError(
                f"{name} has {which} indices from {ix.min()} to {ix.max()}; its shape is {(n, d)}."
            )
    values = np.asarray(as_float(f"the stored values of {name}", data, (1,)))
    values, rows, cols = _in_order(values, rows, cols, d)
    put = jax.device_put
    return Sparse(put(values), put(rows.astype(np.int32)), put(cols.astype(np.int32)), (n, d))


def _stored(name: str, X: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, rows and columns, unsorted and with duplicates."""
    import scipy.sparse  # type: ignore[import-untyped]  # noqa: PLC0415  (slow to import, and seldom needed)
    from jax.experimental.sparse import BCOO, BCSR  # noqa: PLC0415

    if any(map(is_traced, jax.tree.leaves(X))):
        raise TypeError(f"{name} is sparse and traced: build the loss outside jit, and hand it in.")
    if scipy.sparse.issparse(X):
        if X.format in ("csr", "csc", "bsr"):
            try:  # scipy follows indices without looking at them
                X.check_format(full_check=True)
            except ValueError as error:
                raise ValueError(f"{name} is no valid {type(X).__name__}: {error}.") from None
        coo = X.tocoo()
        return coo.data, np.asarray(coo.row), np.asarray(coo.col)
    if isinstance(X, BCSR) and X.n_batch == 0 and X.n_dense == 0:
        X = X.to_bcoo()
    if not isinstance(X, BCOO) or X.n_batch or X.n_dense:
        raise TypeError(f"{name} is a {type(X).__name__}; BCOO, BCSR or a matrix of scipy.sparse is needed.")
    indices = np.asarray(X.indices)
    there = (indices < np.asarray(X.shape)).all(axis=1) | (indices < 0).any(axis=1)  # the rest is padding
    return np.asarray(X.data)[there], indices[there, 0], indices[there, 1]


def _in_order(
    data: np.ndarray, rows: np.ndarray, cols: np.ndarray, d: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sorted by row, then column; duplicates added, zeros left out."""
    key = rows.astype(np.int64) * d + cols
    if not (key[1:] > key[:-1]).all():
        order = np.argsort(key, kind="stable")
        key, data = key[order], data[order]
        first = np.concatenate([[True], key[1:] != key[:-1]])
        data, key = np.add.reduceat(data, np.flatnonzero(first)).astype(data.dtype), key[first]
    if (data == 0).any():
        key, data = key[data != 0], data[data != 0]
    rows, cols = np.divmod(key, d)
    return data, rows, cols
