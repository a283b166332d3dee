"""Cholesky factorisations of the leading tiles of a matrix, whose number may change from call to call.

One program serves all sizes, at the cost of the size in use. XLA multiplies tiles; LAPACK, with one thread,
factorises only the tiles on the diagonal. Entries beyond the tiles in use have no effect but must be finite,
since they are multiplied by zeros.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import apply_if

TILE = 64  # largest number of rows of a (square) tile

# Entries of the right-hand sides of a triangular solve. From 1024 on OpenBLAS splits a solve among threads,
# which wait for one another. Inside a user's `jit`, where nothing sets the number of threads, the inverse of
# a tile took 2 to 45 times as long, the longer the busier the machine.
MAX_ONE_THREAD_ENTRIES = 1023


def tile_size(size: int) -> int:
    """Rows of a tile such that the fewest tiles hold ``size`` rows and the last tile is nearly full."""
    return -(-size // -(-size // TILE))


def padded(size: int) -> int:
    """The number of rows of the tiles of `tile_size` that hold ``size`` rows."""
    return tile_size(size) * -(-size // TILE)


def whole(size: int) -> int:
    """``size`` rounded up to a multiple of `TILE`; unchanged up to `TILE`."""
    return size if size <= TILE else TILE * -(-size // TILE)


def rows_at(a: jax.Array, i: jax.Array, T: int) -> jax.Array:
    """The rows of tile i."""
    return lax.dynamic_slice_in_dim(a, i * T, T)


def put_rows(a: jax.Array, i: jax.Array, rows: jax.Array) -> jax.Array:
    """The array with the rows of tile i replaced."""
    return lax.dynamic_update_slice_in_dim(a, rows, i * rows.shape[0], 0)


def tile_at(a: jax.Array, i: jax.Array, j: jax.Array, T: int) -> jax.Array:
    """The tile in row i and column j of a matrix."""
    return lax.dynamic_slice(a, (i * T, j * T), (T, T))


def by_tiles(entry: Callable[[jax.Array, jax.Array, Any], Any], count: jax.Array, start: Any) -> Any:
    """The last carry of ``entry(i, j, carry)``, called for all tiles j <= i < count, row by row."""
    row = lambda i, carry: lax.fori_loop(0, i + 1, lambda j, c: entry(i, j, c), carry)
    return lax.fori_loop(0, count, row, start)


def put_both(a: jax.Array, i: jax.Array, j: jax.Array, tile: jax.Array) -> jax.Array:
    """A symmetric matrix with the tile in row i and column j, and its transpose, replaced."""
    T = tile.shape[0]
    a = lax.dynamic_update_slice(a, tile.T, (j * T, i * T))
    return lax.dynamic_update_slice(a, tile, (i * T, j * T))


class Root(NamedTuple):
    """The Cholesky factor L of the leading tiles of a matrix LL', and inverses of its diagonal tiles."""

    L: jax.Array  # (m, m); tiles above the diagonal have no meaning but are finite
    inverses: jax.Array  # (m, T), the inverses of the tiles of L on the diagonal, one below the other

    @property
    def tile(self) -> int:
        """T, the number of rows of a tile."""
        return self.inverses.shape[1]


def no_root(m: int, T: int, dtype: Any) -> Root:
    """Memory for the root of a matrix with ``m`` rows, a multiple of T."""
    return Root(jnp.zeros((m, m), dtype), jnp.zeros((m, T), dtype))


def factorised(
    tile: Callable[[jax.Array, jax.Array], jax.Array], count: jax.Array, room: Root, *, inverted: bool
) -> Root:
    """The root of a positive definite matrix of ``count`` x ``count`` tiles (left-looking, column by column).

    Args:
      tile: (i, j) -> the tile (T, T) of the matrix in row i and column j <= i.
      count: number of tiles in a row.
      room: a `Root` to overwrite.
      inverted: True inverts all tiles on the diagonal; False all but the last one, which only a solve with
        more than `MAX_LAPACK_SIDES` right-hand sides needs.
    """
    T = room.tile

    def entry(root: Root, i: jax.Array, j: jax.Array) -> Root:
        # L_ij L_jj' = A_ij - sum_{p < j} L_ip L_jp'
        def less(p: jax.Array, left: jax.Array) -> jax.Array:
            return left - tile_at(root.L, i, p, T) @ tile_at(root.L, j, p, T).T

        left = lax.fori_loop(0, j, less, tile(i, j))

        # `apply_if` gets only tiles, since it would copy the whole matrix.
        def diagonal(pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            L = lax.linalg.cholesky(left, symmetrize_input=False)
            invert = lambda _: lower_inverse(L)
            return L, invert(None) if inverted else apply_if(j < count - 1, invert, pair[1])

        inverse = rows_at(root.inverses, j, T)  # of L_jj; the tile i = j comes first and computes it
        new, inverse = apply_if(i == j, diagonal, (left, inverse))
        new = apply_if(i > j, lambda C: C @ inverse.T, new)
        L = lax.dynamic_update_slice(root.L, new, (i * T, j * T))
        return Root(L, put_rows(root.inverses, j, inverse))

    column = lambda j, root: lax.fori_loop(j, count, lambda i, root: entry(root, i, j), root)
    return lax.fori_loop(0, count, column, room)


def lower_inverse(L: jax.Array) -> jax.Array:
    """The inverse of a lower triangular matrix, such as a tile.

    The matrix is halved: the inverse of [[A, 0], [C, B]] is [[A^-1, 0], [-B^-1 C A^-1, B^-1]]. LAPACK inverts
    matrices of at most `MAX_ONE_THREAD_ENTRIES` entries, and XLA multiplies.
    """
    T = L.shape[0]
    if T * T <= MAX_ONE_THREAD_ENTRIES:
        return lax.linalg.triangular_solve(L, jnp.eye(T, dtype=L.dtype), left_side=True, lower=True)
    h = T // 2
    first, second = lower_inverse(L[:h, :h]), lower_inverse(L[h:, h:])
    corner = -second @ (L[h:, :h] @ first)
    return jnp.block([[first, jnp.zeros((h, T - h), L.dtype)], [corner, second]])


def inverse_root(S: jax.Array, shift: jax.Array) -> jax.Array:
    """The inverse of the Cholesky factor of S + shift I, of a symmetric S (m, m)."""
    n = len(S)
    m = n if n <= TILE else padded(n)
    # With ones on the diagonal beyond n the inverse has them there, too.
    beyond = jnp.arange(m) >= n
    S = jnp.pad(S, (0, m - n)) + jnp.diag(jnp.where(beyond, 1, shift))
    L = lax.linalg.cholesky(S, symmetrize_input=False)
    if n <= TILE:  # without a loop, which has no derivative in reverse mode
        return lower_inverse(L)
    T = tile_size(n)
    return lax.platform_dependent(L, cpu=lambda L: _inverse_by_tiles(L, T), default=_inverse)[:n, :n]


def _inverse(L: jax.Array) -> jax.Array:
    """The inverse of a lower triangular matrix, by one call of the accelerator's library, such as cuBLAS."""
    return lax.linalg.triangular_solve(L, jnp.eye(len(L), dtype=L.dtype), left_side=True, lower=True)


def _inverse_by_tiles(L: jax.Array, T: int) -> jax.Array:
    """`_inverse` by loops over tiles of T rows: the program is small at any size, and needs one thread.

    X = L^-1 takes the place of L: ``X_ij = -L_ii^-1 sum_{j <= p < i} L_ip X_pj`` for j < i. Row i
    is replaced from left to right: its tiles from column j on are still tiles of L.
    """

    def row(i: jax.Array, X: jax.Array) -> jax.Array:
        inverse = lower_inverse(tile_at(X, i, i, T))

        def entry(j: jax.Array, X: jax.Array) -> jax.Array:
            def add(p: jax.Array, total: jax.Array) -> jax.Array:
                return total + tile_at(X, i, p, T) @ tile_at(X, p, j, T)

            total = lax.fori_loop(j, i, add, jnp.zeros((T, T), L.dtype))
            return lax.dynamic_update_slice(X, -inverse @ total, (i * T, j * T))

        return lax.dynamic_update_slice(lax.fori_loop(0, i, entry, X), inverse, (i * T, i * T))

    return lax.fori_loop(0, len(L) // T, row, L)


# Right-hand sides are rows of B, so that every product reads rows of L.


def lower_solve(root: Root, B: jax.Array, count: jax.Array) -> jax.Array:
    """``B L'^-1`` for B (k, m) in the leading tiles, which is L^-1 times each row; 0 beyond the tiles."""
    T = root.tile

    def tile(j: jax.Array, Y: jax.Array) -> jax.Array:
        right = _part(B, j, T) - Y @ rows_at(root.L, j, T).T
        return lax.dynamic_update_slice_in_dim(Y, _over(right, root, j, True), j * T, axis=1)

    return lax.fori_loop(0, count, tile, jnp.zeros_like(B))


def upper_solve(root: Root, B: jax.Array, count: jax.Array) -> jax.Array:
    """``B L^-1`` for B (k, m) in the leading tiles, which is L'^-1 times each row; 0 beyond the tiles."""
    T = root.tile

    def tile(i: jax.Array, pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        (X, right), j = pair, count - 1 - i
        part = _over(_part(right, j, T), root, j, False)
        X = lax.dynamic_update_slice_in_dim(X, part, j * T, axis=1)
        # Tiles above the diagonal change only parts of the right-hand side that are solved already.
        return X, right - part @ rows_at(root.L, j, T)

    return lax.fori_loop(0, count, tile, (jnp.zeros_like(B), B))[0]


# Most right-hand sides of a tile for which OpenBLAS uses one thread. With more of them, a product with the
# inverse of the tile takes less time than a solve by LAPACK.
MAX_LAPACK_SIDES = MAX_ONE_THREAD_ENTRIES // TILE


def _over(B: jax.Array, root: Root, j: jax.Array, transposed: bool) -> jax.Array:
    """``B L_jj^-1``, or if ``transposed`` ``B L_jj'^-1``, with L_jj tile j on the diagonal."""
    if B.shape[0] > MAX_LAPACK_SIDES:
        inverse = rows_at(root.inverses, j, root.tile)
        return B @ (inverse.T if transposed else inverse)
    # LAPACK's matrices are stored by columns: transposes need no copy.
    U = tile_at(root.L, j, j, root.tile).T
    return lax.linalg.triangular_solve(U, B.T, left_side=True, lower=False, transpose_a=transposed).T


def _part(B: jax.Array, j: jax.Array, T: int) -> jax.Array:
    return lax.dynamic_slice_in_dim(B, j * T, T, axis=1)
