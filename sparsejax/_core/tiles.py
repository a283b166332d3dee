"""Cholesky factorisations of matrices of which a changing number of leading tiles is in use.

One program serves all sizes, at the cost of the size in use: products of tiles are XLA's, and only the tiles of
the diagonal go to LAPACK, which works on them with one thread.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import once

TILE = 64  # rows and columns


def padded(size: int) -> int:
    """The size of an array that holds so many rows in whole tiles; up to one tile it is the size itself."""
    return size if size <= TILE else TILE * -(-size // TILE)


def tile_size(size: int) -> int:
    """Rows of a tile of an array of a `padded` size."""
    return min(size, TILE)


def rows_at(a: jax.Array, i: jax.Array) -> jax.Array:
    """The rows of tile i."""
    T = tile_size(a.shape[0])
    return lax.dynamic_slice_in_dim(a, i * T, T)


def put_rows(a: jax.Array, i: jax.Array, rows: jax.Array) -> jax.Array:
    """The array with other rows in tile i."""
    return lax.dynamic_update_slice_in_dim(a, rows, i * rows.shape[0], 0)


class Root(NamedTuple):
    """L of the leading tiles of a matrix LL', and the inverses of its tiles on the diagonal."""

    L: jax.Array  # (m, m); tiles above the diagonal hold anything finite
    inverses: jax.Array  # (m, T)


def no_root(m: int, dtype: object) -> Root:
    """Room for the root of a matrix of ``m`` rows, a `padded` number."""
    return Root(jnp.zeros((m, m), dtype), jnp.zeros((m, tile_size(m)), dtype))


def factorised(tile: Callable[[jax.Array, jax.Array], jax.Array], count: jax.Array, room: Root) -> Root:
    """The root of a positive definite matrix of ``count`` rows of tiles, tile by tile from the left.

    Args:
      tile: (i, j) -> the tile (T, T) in row i and column j <= i.
      count: tiles in a row.
      room: overwritten.
    """
    m, T = room.inverses.shape
    eye = jnp.eye(T, dtype=room.L.dtype)

    def entry(root: Root, i: jax.Array, j: jax.Array) -> Root:
        def less(p: jax.Array, C: jax.Array) -> jax.Array:
            return C - _tile(root.L, i, p) @ _tile(root.L, j, p).T

        left = lax.fori_loop(0, j, less, tile(i, j))

        def inverted(inverses: jax.Array) -> jax.Array:
            L = lax.linalg.cholesky(left, symmetrize_input=False)
            inverse = lax.linalg.triangular_solve(L, eye, left_side=True, lower=True)
            return put_rows(inverses, i, inverse)

        inverses = once(i == j, inverted, root.inverses)
        # On the diagonal LL' (L^-1)' is L as well.
        L = lax.dynamic_update_slice(root.L, left @ rows_at(inverses, j).T, (i * T, j * T))
        return Root(L, inverses)

    def column(j: jax.Array, root: Root) -> Root:
        return lax.fori_loop(j, count, lambda i, root: entry(root, i, j), root)

    return lax.fori_loop(0, count, column, room)


def lower_solve(root: Root, B: jax.Array, count: jax.Array) -> jax.Array:
    """L^-1 B of the leading tiles; 0 in the other rows."""

    def row(j: jax.Array, Y: jax.Array) -> jax.Array:
        return put_rows(Y, j, rows_at(root.inverses, j) @ (rows_at(B, j) - rows_at(root.L, j) @ Y))

    return lax.fori_loop(0, count, row, jnp.zeros_like(B))


def upper_solve(root: Root, B: jax.Array, count: jax.Array) -> jax.Array:
    """L'^-1 B of the leading tiles; 0 in the other rows."""
    T = root.inverses.shape[1]

    def row(k: jax.Array, X: jax.Array) -> jax.Array:
        j = count - 1 - k
        column = lax.dynamic_slice_in_dim(root.L, j * T, T, axis=1)
        return put_rows(X, j, rows_at(root.inverses, j).T @ (rows_at(B, j) - column.T @ X))

    return lax.fori_loop(0, count, row, jnp.zeros_like(B))


def _tile(a: jax.Array, i: jax.Array, j: jax.Array) -> jax.Array:
    T = tile_size(a.shape[0])
    return lax.dynamic_slice(a, (i * T, j * T), (T, T))
