"""Sparse matrices, which store only the entries that are not zero."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsejax._core.checks import (
    INT32_MAX,
    as_float,
    as_numpy,
    is_eager,
    is_sparse,
)
from sparsejax._core.linalg import column_sums as dense_column_sums
from sparsejax._core.linalg import row_sums_of_squares, take
from sparsejax._core.matrices.products import Products
from sparsejax._core.matrices.stored import stored_by_column
from sparsejax._core.precision import tell_of_cast
from sparsejax._core.pytree import movable

# Stored entries that a product reads at once, a chunk: CHUNK_ENTRIES for one column of W, fewer for more, but
# at least MIN_CHUNK_ENTRIES, or MIN_LARGE_CHUNK_ENTRIES if W or XW has more than MAX_CACHED_SIZE numbers:
# XLA then shares the work among threads, which takes about 5 us a chunk.
CHUNK_ENTRIES, MIN_CHUNK_ENTRIES, MIN_LARGE_CHUNK_ENTRIES = 8192, 512, 4096
MAX_CACHED_SIZE = 2**16
MAX_DENSE_SIZE = 2**21  # numbers: selected columns become a dense array if it has no more entries
MIN_ROOM_ENTRIES = 2**14  # a sparse selection of columns has room for so many stored entries, or all of X


class Rows(NamedTuple):
    """The entries of a `Sparse` row by row, without its ``scale``."""

    data: jax.Array  # (nnz,), values; padding is beyond the last row
    cols: jax.Array  # (nnz,) int32, the column of each value
    starts: jax.Array  # (n + 1,) int32, the place of the first value of each row


class RowOrder(NamedTuple):
    """The entries of a `Sparse` row by row, as places in its arrays."""

    order: jax.Array  # (nnz,) int32
    starts: jax.Array  # (n + 1,) int32, where each row starts in ``order``


class Sparse(
    Products, leaves=("data", "rows", "cols", "starts", "scale", "used", "by_row"), static=("shape",)
):
    """X (n, d) by its stored entries, column by column: ``X[rows[i], cols[i]] = data[i] * scale[cols[i]]``.

    A stored value takes 16 bytes in float64. Products read the entries in chunks that fit in the cache; for
    each entry they multiply a row of W and add it to a row of XW. With several columns X'U uses the kernel
    that JAX has on a CPU for a BCSR matrix, and so does XW if the entries are known row by row.

    In one thread XW and X'U take 8 and 8 ms for 2e6 entries of 20 000 x 200 000 and one column (scipy 6 and
    5, the kernel 21 for X'u), and 15 and 8 ms for 9e5 entries and 20 columns (scipy 14 and 9, column by
    column 60 and 91). A callback to scipy would not work on an accelerator or in an exported program.
    """

    data: jax.Array  # (nnz,), values; padding is 0
    rows: jax.Array  # (nnz,) int32, the row of each value
    cols: jax.Array  # (nnz,) int32, the column of each value, sorted
    starts: jax.Array  # (d + 1,) int32, the place of the first value of each column
    scale: jax.Array | None  # (d,), a factor for each column; None: 1. It saves a copy of data
    used: jax.Array | None  # () int32, number of values before the padding; None: products read all values
    by_row: Rows | None  # None: the entries are known by column only
    shape: tuple[int, int]  # (n, d)

    @property
    def dtype(self) -> Any:
        """dtype of the entries."""
        return self.data.dtype

    def product(self, W: jax.Array, *, transposed: bool) -> jax.Array:
        """XW, or X'W if ``transposed``."""
        return self._product(W, transposed)

    def sums(
        self, function: Callable[[jax.Array], jax.Array], w: jax.Array, *, transposed: bool
    ) -> jax.Array:
        """f(X) w, or f(X)' w if ``transposed``, for an elementwise f; not differentiable in X.

        f must satisfy f(0) = 0 and f(xy) = f(x) f(y).
        """
        return self._product(w[:, None], transposed, function)[:, 0]

    def _product(self, W: jax.Array, transposed: bool, function: Any = None) -> jax.Array:
        used = jnp.int32(self.data.shape[0]) if self.used is None else self.used
        data, scale, by_line = self.data, self.scale, self.by_row
        if transposed:  # the lines of X' are the columns of X
            by_line = Rows(data, self.rows, self.starts)
        if function is not None:
            data, by_line = lax.stop_gradient(data), None
            scale = None if scale is None else function(scale)
        if scale is not None and not transposed:
            W = W * scale[:, None]
        H = _product_of(transposed, self.shape, function)(data, self.rows, self.cols, used, by_line, W)
        return H if scale is None or not transposed else H * scale[:, None]

    def system(self, both: jax.Array, *, transposed: bool) -> jax.Array:
        """(W; H - XW) for ``both`` = (W; H); JAX uses it for derivatives in the entries only."""
        n, d = self.shape
        to, of = (self.cols + n, self.rows) if transposed else (self.rows + d, self.cols)

        data = self.data
        if self.scale is not None:
            data = data * self.scale.at[self.cols].get(mode="promise_in_bounds")

        def column(both: jax.Array) -> jax.Array:
            terms = data * both.at[of].get(mode="promise_in_bounds")
            return both.at[to].add(-terms, mode="promise_in_bounds")

        # All columns at once: a loop over columns (`lax.map`) would take less memory.
        return jax.vmap(column, in_axes=1, out_axes=1)(both)

    def divided(self, units: jax.Array) -> "Sparse":
        """The matrix with each column divided by its unit, units (d,)."""
        return self._replace(scale=1 / units if self.scale is None else self.scale / units)

    @property
    def sizes(self) -> jax.Array:
        """The number of stored entries of each column, (d,)."""
        return self.starts[1:] - self.starts[:-1]

    @property
    def room(self) -> int:
        """The number of stored entries for which the result of `columns_at` has room."""
        nnz = self.data.shape[0]
        return min(nnz, max(nnz // 4 // CHUNK_ENTRIES * CHUNK_ENTRIES, MIN_ROOM_ENTRIES))

    def columns_at(self, ix: jax.Array) -> "jax.Array | Sparse":
        """The columns ``ix``, dense up to `MAX_DENSE_SIZE` numbers, else sparse; the index d gives zeros.

        A sparse result has at most `room` stored entries; entries of the columns beyond them are left out.
        """
        dense = self.shape[0] * ix.shape[0] <= MAX_DENSE_SIZE
        return self._selected(ix, self.data.shape[0] if dense else self.room, dense)

    def sparse_columns_at(self, ix: jax.Array, by_row: RowOrder) -> "Sparse":
        """The columns ``ix``, sparse with room for all entries of X, also by row; the index d gives zeros.

        Args:
          ix: (m,), each column once.
          by_row: `row_order`, the same for all ``ix``.
        """
        (d, m), order = (self.shape[1], ix.shape[0]), by_row.order
        place = jnp.full(d + 1, m, jnp.int32).at[ix].set(jnp.arange(m, dtype=jnp.int32)).at[d].set(m)
        slot = place[self.cols[order]]
        before = jnp.cumsum(slot < m, dtype=jnp.int32)
        to = jnp.where(slot < m, before - 1, order.shape[0])
        put = lambda a: jnp.zeros_like(a).at[to].set(a, mode="drop", unique_indices=True)
        # A row begins at its place in X less the number of entries before this place that are left out.
        starts = jnp.concatenate([jnp.zeros(1, jnp.int32), before])[by_row.starts]
        values = self.data if self.scale is None else self.data * self.scale[self.cols]
        rows = Rows(put(values[order]), put(slot), starts)
        return self._selected(ix, self.data.shape[0], False)._replace(by_row=rows)

    def row_order(self) -> RowOrder:
        """The entries row by row."""
        counts = jnp.zeros(self.shape[0] + 1, jnp.int32).at[self.rows + 1].add(1)
        return RowOrder(jnp.argsort(self.rows, stable=True), jnp.cumsum(counts, dtype=jnp.int32))

    def _selected(self, ix: jax.Array, room: int, dense: bool) -> Any:
        """The columns ``ix``, dense or sparse, of at most ``room`` stored entries."""
        (n, d), m = self.shape, ix.shape[0]
        none = ix >= d
        sizes = jnp.where(none, 0, take(self.sizes, ix, 0))
        room = min(room, n * m)
        ends = jnp.minimum(jnp.cumsum(sizes, dtype=jnp.int32), room)
        starts = jnp.concatenate([jnp.zeros(1, jnp.int32), ends])
        first = take(self.starts, jnp.where(none, d, ix), 0) - starts[:-1]

        def entries(room: int) -> tuple[jax.Array, jax.Array, jax.Array]:
            """Value, row and column of each of ``room`` places; zeros past the last entry."""
            # The column: how many columns begin at or before the place, counting empty ones.
            begun = jnp.zeros(room, jnp.int32).at[starts[:-1]].add(1, mode="drop")
            slot = jnp.cumsum(begun, dtype=jnp.int32) - 1
            place = jnp.arange(room, dtype=jnp.int32)
            there = place < ends[-1]
            source = jnp.where(there, place + first[slot], 0)
            data = jnp.where(there, self.data[source], 0)
            if self.scale is not None:
                data = data * take(self.scale, ix, 0)[slot]
            return data, jnp.where(there, self.rows[source], 0), slot

        def as_dense(room: int) -> jax.Array:
            data, rows, slot = entries(room)
            return jnp.zeros((m, n), self.dtype).at[slot, rows].add(data).T

        if dense:
            # Unused places take time too: use a 32nd or an eighth of the room if this is enough, else all.
            rooms = [max(room >> shift, 1) for shift in (5, 3, 0)]
            at = jnp.sum(ends[-1] > jnp.array(rooms[:-1], jnp.int32), dtype=jnp.int32)
            return lax.switch(at, [functools.partial(as_dense, room) for room in rooms])
        data, rows, slot = entries(room)
        return Sparse(data, rows, slot, starts, None, ends[-1], None, (n, m))


@functools.cache
def _product_of(transposed: bool, shape: tuple[int, int], function: Any) -> Callable[..., jax.Array]:
    """A function (data, rows, cols, used, by_line, W) -> XW, or X'W; of f(X) if ``function`` f is given.

    ``by_line`` holds the lines (rows) of X, or of X', for the kernel; None: the product is made in chunks.
    Under vmap over W the batch becomes further columns of W, so that X is read once.
    """
    size = shape[1 if transposed else 0]

    def by_chunks(
        data: jax.Array, rows: jax.Array, cols: jax.Array, used: jax.Array, _: Any, W: jax.Array
    ) -> jax.Array:
        nnz, k = data.shape[0], W.shape[1]
        to, of = (cols, rows) if transposed else (rows, cols)
        # A power of two of entries that with k columns stays within CHUNK_ENTRIES.
        least = MIN_CHUNK_ENTRIES if max(shape) * k <= MAX_CACHED_SIZE else MIN_LARGE_CHUNK_ENTRIES
        length = min(max(1 << (CHUNK_ENTRIES // k).bit_length() >> 1, least), nnz)

        def add(start: Any, length: int, H: jax.Array) -> jax.Array:
            x, i, j = (lax.dynamic_slice(a, (start,), (length,)) for a in (data, to, of))
            x = x if function is None else function(x)
            terms = x[:, None] * W.at[j].get(mode="promise_in_bounds")
            return H.at[i].add(terms, mode="promise_in_bounds")

        whole = nnz // length
        count = jnp.minimum((used + length - 1) // length, whole)
        H = jnp.zeros((size, k), W.dtype)
        H = lax.fori_loop(0, count, lambda i, H: add(i * length, length, H), H)
        return add(whole * length, nnz % length, H) if nnz % length else H

    def by_kernel(*args: Any) -> jax.Array:
        from jax.experimental.sparse import BCSR  # noqa: PLC0415

        lines, W = args[-2:]
        k, of = W.shape[1], shape[0 if transposed else 1]
        # The kernel is 2 to 4 times faster if the columns fill registers of 32 bytes.
        W = jnp.pad(W, ((0, 0), (0, -k % (32 // W.dtype.itemsize))))
        return (BCSR(tuple(lines), shape=(size, of)) @ W)[:, :k]

    @jax.custom_batching.custom_vmap
    def product(*args: Any) -> jax.Array:
        by_line, W = args[-2:]
        # For one column chunks are 2 to 6 times faster than the kernel, and as fast as its padded form.
        if by_line is None or W.shape[1] == 1:
            return by_chunks(*args)
        return lax.platform_dependent(*args, cpu=by_kernel, default=by_chunks)

    product.def_vmap(functools.partial(_batched, product))
    # Without jit an eager call would compile the loop every time.
    return jax.jit(product, inline=True)


def _batched(product: Callable[..., jax.Array], size: int, batch: Any, *args: Any) -> tuple[jax.Array, bool]:
    """The rule of a product under vmap: lanes of W become further columns; lanes of X are mapped in turn."""
    *X, W = args
    if any(jax.tree.leaves(batch[:-1])):
        lanes, with_values = movable(args, tuple(jax.tree.leaves(batch)))
        return lax.map(lambda values: product(*with_values(values)), lanes), True
    k = W.shape[-1]
    H = product(*X, jnp.moveaxis(W, 0, 1).reshape(-1, size * k))
    return jnp.moveaxis(H.reshape(-1, size, k), 1, 0), True


def column_sums(function: Callable[[jax.Array], jax.Array], X: Any) -> jax.Array:
    """The sums of ``function(X)`` down its columns, (d,); ``function``: as in `Sparse.sums`, also of rows."""
    if isinstance(X, Sparse):
        return X.sums(function, jnp.ones(X.shape[0], X.dtype), transposed=True)
    return dense_column_sums(function, X)


def squares_along_rows(X: Any, weights: jax.Array) -> jax.Array:
    """The sums of ``X^2 * weights`` along its rows, (n,), with weights (d,)."""
    if isinstance(X, Sparse):
        return X.sums(jnp.square, weights, transposed=False)
    return row_sums_of_squares(X, weights)


def columns_at(X: Any, ix: jax.Array) -> Any:
    """The columns ``ix`` of X; the index d gives a zero column."""
    return X.columns_at(ix) if isinstance(X, Sparse) else take(X, ix, 1)


def divided(X: Any, units: jax.Array) -> Any:
    """X with each column divided by its unit, units (d,)."""
    return X.divided(units) if isinstance(X, Sparse) else X * (1 / units)[None]


def as_dense(name: str, X: Any) -> jax.Array:
    """X as a checked dense matrix (n, d); warns if float64 data become float32."""
    if not isinstance(X, jax.Array) and not is_sparse(X):
        X = as_numpy(name, X)
        tell_of_cast(name, X.dtype, lambda: is_eager(()))
    return as_float(name, X, (2,))


def as_matrix(name: str, X: Any) -> Any:
    """X checked: `Products` as they are, a sparse matrix of scipy or JAX as `Sparse`, else a dense array.

    Warns if float64 data become float32. A sparse X must not be traced, and its indices must fit in int32.
    """
    if isinstance(X, Products) or not is_sparse(X):
        return X if isinstance(X, Products) else as_dense(name, X)
    if len(X.shape) != 2:
        raise ValueError(f"{name} has shape {tuple(X.shape)}; it must be 2-d.")
    shape = n, d = (int(X.shape[0]), int(X.shape[1]))
    if max(n, d) >= INT32_MAX:  # before memory for one index a column is needed
        raise ValueError(f"{name} has shape {shape}; indices are int32, up to {INT32_MAX}.")
    tell_of_cast(name, X.dtype, lambda: is_eager(()))
    by_column = stored_by_column(name, X)
    room = _room(by_column.nnz)
    if room > INT32_MAX:
        raise ValueError(f"{name} has {by_column.nnz} stored values; places are int32, up to {INT32_MAX}.")
    starts = by_column.indptr.astype(np.int32)
    parts = [by_column.data, by_column.indices.astype(np.int32, copy=False)]
    del by_column
    # Padding is zeros at the end of the last column. Each array is freed before the next one is made.
    rows = _placed(parts.pop(), room, 0)
    data = _placed(parts.pop(), room, 0)
    cols = _placed(np.repeat(np.arange(d, dtype=np.int32), np.diff(starts)), room, d - 1)
    return Sparse(data, rows, cols, jax.device_put(starts), None, None, None, shape)


def _placed(a: np.ndarray, room: int, value: int) -> jax.Array:
    """``a`` padded with ``value`` to the length ``room``, as an array of JAX."""
    filled = np.full(room, value, a.dtype)
    filled[: len(a)] = a
    del a
    return jax.device_put(filled)


def _room(nnz: int) -> int:
    """nnz rounded up to its four leading binary digits: matrices of nearly one size then share programs."""
    step = 1 << max(nnz.bit_length() - 4, 0)
    return max(-(-nnz // step) * step, 1)
