"""Cholesky factorisations of matrices of which a changing number of leading tiles is in use.

One program serves all sizes, at the cost of the size in use: products of tiles are XLA's, and only the tiles
of the diagonal go to LAPACK, which works on them with one thread. What stands beyond the tiles in use is
never looked at, but must be finite: it is multiplied by zeros.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import once

TILE = 64  # rows and columns of a tile, at most


def tile_size(size: int) -> int:
    """Rows of each of the fewest tiles that hold so many, the last one nearly full as well."""
    return -(-size // -(-size // TILE))


def padded(size: int) -> int:
    """The least number of rows that whole tiles of `tile_size` have."""
    return tile_size(size) * -(-size // TILE)


def whole(size: int) -> int:
    """The least number of rows in whole tiles of `TILE`; up to one tile the number itself."""
    return size if size <= TILE else TILE * -(-size // TILE)


def rows_at(a: jax.Array, i: jax.Array, T: int) -> jax.Array:
    """The rows of tile i."""
    return lax.dynamic_slice_in_dim(a, i * T, T)


def put_rows(a: jax.Array, i: jax.Array, rows: jax.Array) -> jax.Array:
    """The array with other rows in tile i."""
    return lax.dynamic_update_slice_in_dim(a, rows, i * rows.shape[0], 0)


def tile_at(a: jax.Array, i: jax.Array, j: jax.Array, T: int) -> jax.Array:
    """The tile in row i and column j of a matrix."""
    return lax.dynamic_slice(a, (i * T, j * T), (T, T))


def by_tiles(entry: Callable[[jax.Array, jax.Array, Any], Any], count: jax.Array, start: Any) -> Any:
    """``entry(i, j, carry)`` for all tiles j <= i < count."""
    row = lambda i, carry: lax.fori_loop(0, i + 1, lambda j, c: entry(i, j, c), carry)
    return lax.fori_loop(0, count, row, start)


def put_both(a: jax.Array, i: jax.Array, j: jax.Array, tile: jax.Array) -> jax.Array:
    """The symmetric matrix with another tile in row i and column j, and its transpose in row j."""
    T = tile.shape[0]
    a = lax.dynamic_update_slice(a, tile.T, (j * T, i * T))
    return lax.dynamic_update_slice(a, tile, (i * T, j * T))


class Root(NamedTuple):
    """L of the leading tiles of a matrix LL', and inverses of tiles on its diagonal."""

    L: jax.Array  # (m, m); tiles above the diagonal hold anything finite
    inverses: jax.Array  # (m, T)

    @property
    def tile(self) -> int:
        """T."""
        return self.inverses.shape[1]


def no_root(m: int, T: int, dtype: Any) -> Root:
    """Room for the root of a matrix of ``m`` rows, a multiple of T."""
    return Root(jnp.zeros((m, m), dtype), jnp.zeros((m, T), dtype))


def factorised(
    tile: Callable[[jax.Array, jax.Array], jax.Array], count: jax.Array, room: Root, *, inverted: bool
) -> Root:
    """The root of a positive definite matrix of ``count`` rows of tiles, tile by tile from the left.

    Args:
      tile: (i, j) -> the tile (T, T) in row i and column j <= i.
      count: tiles in a row.
      room: overwritten.
      inverted: with the inverses of all tiles on the diagonal, for many right sides; else without the last.
    """
    T = room.tile
    eye = jnp.eye(T, dtype=room.L.dtype)

    def entry(root: Root, i: jax.Array, j: jax.Array) -> Root:
        def less(p: jax.Array, left: jax.Array) -> jax.Array:
            return left - tile_at(root.L, i, p, T) @ tile_at(root.L, j, p, T).T

        left = lax.fori_loop(0, j, less, tile(i, j))

        # Only what is small goes through a loop of one turn: what is large would be copied.
        def diagonal(pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            L = lax.linalg.cholesky(left, symmetrize_input=False)

            def inverse(_: jax.Array) -> jax.Array:
                return lax.linalg.triangular_solve(L, eye, left_side=True, lower=True)

            return L, inverse(L) if inverted else once(j < count - 1, inverse, pair[1])

        own = rows_at(root.inverses, j, T)
        new, own = once(i == j, diagonal, (left, own))
        new = once(i > j, lambda C: C @ own.T, new)
        return Root(lax.dynamic_update_slice(root.L, new, (i * T, j * T)), put_rows(root.inverses, j, own))

    column = lambda j, root: lax.fori_loop(j, count, lambda i, root: entry(root, i, j), root)
    return lax.fori_loop(0, count, column, room)


# Right sides are rows, so that every product reads rows of L.


def lower_solve(root: Root, B: jax.Array, count: jax.Array) -> jax.Array:
    """``B L'^-1`` for B (k, m) of the leading tiles: L^-1 of each row; 0 elsewhere."""
    T = root.tile

    def tile(j: jax.Array, Y: jax.Array) -> jax.Array:
        rest = _part(B, j, T) - Y @ rows_at(root.L, j, T).T
        return lax.dynamic_update_slice_in_dim(Y, _over(rest, root, j, True), j * T, axis=1)

    return lax.fori_loop(0, count, tile, jnp.zeros_like(B))


def upper_solve(root: Root, B: jax.Array, count: jax.Array) -> jax.Array:
    """``B L^-1`` for B (k, m) of the leading tiles: L'^-1 of each row; 0 elsewhere."""
    T = root.tile

    def tile(i: jax.Array, pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        (X, rest), j = pair, count - 1 - i
        part = _over(_part(rest, j, T), root, j, False)
        X = lax.dynamic_update_slice_in_dim(X, part, j * T, axis=1)
        # What stands above the diagonal changes only what is done already.
        return X, rest - part @ rows_at(root.L, j, T)

    return lax.fori_loop(0, count, tile, (jnp.zeros_like(B), B))[0]


FEW = 16  # right sides up to which LAPACK solves with a tile; beyond, a product with its inverse is faster


def _over(B: jax.Array, root: Root, j: jax.Array, transposed: bool) -> jax.Array:
    """``B L'^-1``, or ``B L^-1``, of the tile j on the diagonal."""
    if B.shape[0] > FEW:
        inverse = rows_at(root.inverses, j, root.tile)
        return B @ (inverse.T if transposed else inverse)
    # LAPACK reads columns: a transpose lies in memory as it wants it, and nothing is copied.
    U = tile_at(root.L, j, j, root.tile).T
    return lax.linalg.triangular_solve(U, B.T, left_side=True, lower=False, transpose_a=transposed).T


def _part(B: jax.Array, j: jax.Array, T: int) -> jax.Array:
    return lax.dynamic_slice_in_dim(B, j * T, T, axis=1)
