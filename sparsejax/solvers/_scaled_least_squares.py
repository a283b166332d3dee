"""Least squares ``||AW - B||^2 / 2``, with what Newton's method on the scales s of the rows of W needs.

W = diag(s) C with C = A' K^-1 B and K = I + A diag(s) A'. A bucket holds the features that a step moves, in
whole tiles (`sparsejax._core.tiles`). Products with K^-1 use either the Cholesky factor ("root") of K, n x n,
or, for few features or many rows, the root of I + h G h, m x m, with G the Gram matrix of the m features of
the bucket and h the square roots of their scales.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import across, columns, take
from sparsejax._core.tiles import (
    TILE,
    Root,
    by_tiles,
    factorised,
    lower_solve,
    no_root,
    padded,
    put_both,
    put_rows,
    rows_at,
    tile_at,
    tile_size,
    upper_solve,
)
from sparsejax.solvers._norm_blocks import LOW


class Wide(NamedTuple):
    """Least squares with n < d.

    Its ``aux`` is a triple: K^-1 B (n, k); a root of K; and whether both belong to the same scales. N in the
    shapes below is ``padded(n)``, n rounded up to whole tiles; features are 0 beyond n.
    A is ``matrix`` with rows multiplied by ``factor``; the product is not stored, which saves a copy of X.
    """

    matrix: jax.Array  # (n, d)
    factor: jax.Array | None  # (n, 1); None: 1
    B: jax.Array  # (n, k)

    @property
    def rows(self) -> int:
        """n."""
        return self.matrix.shape[0]

    @property
    def size(self) -> jax.Array:
        """||B||^2."""
        return jnp.sum(self.B * self.B)

    @property
    def trace(self) -> jax.Array:
        """The trace of A'A."""
        return jnp.sum(self._times(self.matrix) ** 2)

    @property
    def rank(self) -> int:
        """The largest rank that the Hessian in the scales can have."""
        return int(self.B.size)

    @property
    def gram_features(self) -> int:
        """Largest number of features for which their Gram matrix is cheaper than K: n/4, in whole tiles."""
        return TILE * (self.rows // 4 // TILE)

    def zero(self) -> Any:
        """``aux`` with all scales 0: the residual is B."""
        N, T, dtype = padded(self.rows), tile_size(self.rows), self.B.dtype
        inverses = jnp.tile(jnp.eye(T, dtype=dtype), (N // T, 1))
        return self.B, Root(jnp.eye(N, dtype=dtype), inverses), jnp.ones((), bool)

    def room(self, m: int) -> jax.Array:
        """Zeros for `features` with m features."""
        return jnp.zeros((m, padded(self.rows)), self.B.dtype)

    def features(self, ix: jax.Array, count: jax.Array, T: int, room: jax.Array) -> jax.Array:
        """The columns of A of some features, as rows (m, N).

        Args:
          ix: (m,), the features; d, for no feature, gives zeros.
          count: (), tiles of features in use.
          T: features of a tile.
          room: the array to overwrite.
        """
        more = room.shape[1] - self.rows

        def gathered(i: jax.Array, F: jax.Array) -> jax.Array:
            X = self._times(take(self.matrix, rows_at(ix, i, T), 1))
            return put_rows(F, i, jnp.pad(X, ((0, more), (0, 0))).T)

        return lax.fori_loop(0, count, gathered, room)

    def by_root(self, s: jax.Array, F: jax.Array, count: jax.Array, T: int) -> Any:
        """``aux`` at scales s (m,) of the features F of a bucket; all other scales are 0."""
        n, N = self.rows, F.shape[1]

        def add(i: jax.Array, K: jax.Array) -> jax.Array:
            X = rows_at(F, i, T)
            return K + (rows_at(s, i, T)[:, None] * X).T @ X

        K = lax.fori_loop(0, count, add, jnp.eye(N, dtype=F.dtype))
        size = tile_size(n)
        tiles = jnp.int32(N // size)
        entry, room = lambda i, j: tile_at(K, i, j, size), no_root(N, size, F.dtype)
        root = factorised(entry, tiles, room, inverted=True)
        B = jnp.pad(self.B.T, ((0, 0), (0, N - n)))
        xi = upper_solve(root, lower_solve(root, B, tiles), tiles)
        return xi[:, :n].T, root, jnp.ones((), bool)

    def halves_of_root(self, aux: Any, F: jax.Array, count: jax.Array, T: int, room: jax.Array) -> jax.Array:
        """P (m, N), in float32, with A'K^-1 A = PP' on the features F of a bucket: P = A'L^-T, K = LL'."""
        root: Root = jax.tree.map(lambda a: a.astype(LOW), aux[1])
        tiles = jnp.int32(root.L.shape[0] // root.tile)

        def half(i: jax.Array, P: jax.Array) -> jax.Array:
            return put_rows(P, i, lower_solve(root, rows_at(F, i, T).astype(LOW), tiles))

        return lax.fori_loop(0, count, half, room)

    def gram(self, F: jax.Array, ix: jax.Array, count: jax.Array, T: int) -> "Gram":
        """The Gram matrix of the features of a bucket. Arguments as in `Wide.features`."""
        B = jnp.pad(self.B, ((0, F.shape[1] - self.rows), (0, 0)))
        add = lambda i, b: put_rows(b, i, rows_at(F, i, T) @ B)
        b = lax.fori_loop(0, count, add, jnp.zeros((F.shape[0], B.shape[1]), F.dtype))
        return Gram.of(lambda i, j: rows_at(F, i, T) @ rows_at(F, j, T).T, b, count, T)

    def by_gram(self, W: jax.Array, F: jax.Array, ix: jax.Array, count: jax.Array, T: int, aux: Any) -> Any:
        """``aux`` at W (m, k) of the features of a bucket; its root belongs to earlier scales."""
        add = lambda i, a: a + rows_at(F, i, T).T @ rows_at(W, i, T)
        AW = lax.fori_loop(0, count, add, jnp.zeros((F.shape[1], W.shape[1]), F.dtype))
        return self.B - AW[: self.rows], aux[1], jnp.zeros((), bool)

    def target_product(self, aux: Any) -> jax.Array:
        """<B, K^-1 B>."""
        return jnp.sum(self.B * aux[0])

    def evaluate(self, aux: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        """C' (k, d), ||K^-1 B||^2 and <B, K^-1 B>."""
        xi = aux[0]
        return across(self._times(xi), self.matrix), jnp.sum(xi * xi), self.target_product(aux)

    def _times(self, rows: jax.Array) -> jax.Array:
        return rows if self.factor is None else self.factor * rows


class Tall(NamedTuple):
    """Least squares with d <= n, by A'A: no evaluation reads the rows again. Its ``aux`` is W' (k, d)."""

    G: jax.Array  # (d, d), A'A
    b: jax.Array  # (k, d), B'A
    size: jax.Array  # (), ||B||^2

    @property
    def trace(self) -> jax.Array:
        """The trace of A'A."""
        return jnp.trace(self.G)

    @property
    def rank(self) -> int:
        """The largest rank that the Hessian in the scales can have."""
        return int(self.b.size)

    def zero(self) -> Any:
        """``aux`` with all scales 0."""
        return jnp.zeros_like(self.b)

    def gram(self, F: None, ix: jax.Array, count: jax.Array, T: int) -> "Gram":
        """The Gram matrix of the features of a bucket. Arguments as in `Wide.features`."""
        tile = lambda i, j: take(take(self.G, rows_at(ix, i, T), 0), rows_at(ix, j, T), 1)
        return Gram.of(tile, take(self.b, ix, 1).T, count, T)

    def by_gram(self, W: jax.Array, F: None, ix: jax.Array, count: jax.Array, T: int, aux: Any) -> Any:
        """``aux`` at W (m, k) of the features of a bucket; other rows are 0."""
        return jnp.zeros_like(self.b).at[:, ix].set(W.T, mode="drop")

    def target_product(self, aux: Any) -> jax.Array:
        """<B, B - AW>."""
        return self.size - jnp.sum(self.b * aux)

    def evaluate(self, aux: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        """C' (k, d), ||B - AW||^2 and <B, B - AW>."""
        C, target_product = self.b - aux @ self.G, self.target_product(aux)
        # ||B - AW||^2 = <B, B - AW> - <W, A'(B - AW)>
        return C, target_product - jnp.sum(C * aux), target_product


class Gram(NamedTuple):
    """The Gram matrix of the features of a bucket."""

    G: jax.Array  # (m, m)
    b: jax.Array  # (m, k), A'B
    tiles: jax.Array  # (), tiles of G in use
    T: int  # features of a tile

    @classmethod
    def of(cls, tile: Any, b: jax.Array, count: jax.Array, T: int) -> "Gram":
        """The matrix with tiles ``tile(i, j)``, which is called for j <= i only."""
        start = jnp.zeros((b.shape[0], b.shape[0]), b.dtype)
        return cls(by_tiles(lambda i, j, G: put_both(G, i, j, tile(i, j)), count, start), b, count, T)

    def solved(self, s: jax.Array) -> tuple[jax.Array, Root, jax.Array]:
        """Solve at scales s (m,), with h their square roots: W = h (I + h G h)^-1 h A'B.

        Returns:
          W (m, k), the root of I + diag(h) G diag(h), and h.
        """
        h, T = jnp.sqrt(s), self.T
        eye = jnp.eye(T, dtype=s.dtype)

        def tile(i: jax.Array, j: jax.Array) -> jax.Array:
            scaled = rows_at(h, i, T)[:, None] * tile_at(self.G, i, j, T) * rows_at(h, j, T)[None]
            return scaled + jnp.where(i == j, eye, 0)

        root = factorised(tile, self.tiles, no_root(s.shape[0], T, s.dtype), inverted=True)
        right = lower_solve(root, h[None] * self.b.T, self.tiles)
        return (h[None] * upper_solve(root, right, self.tiles)).T, root, h

    def halves(self, root: Root, h: jax.Array) -> jax.Array:
        """P (m, m), in float32, with A'K^-1 A = G - PP' (Woodbury): P = G h L^-T, LL' = I + h G h."""
        low: Root = jax.tree.map(lambda a: a.astype(LOW), root)

        def half(i: jax.Array, P: jax.Array) -> jax.Array:
            row = rows_at(self.G, i, self.T) * h[None]
            return put_rows(P, i, lower_solve(low, row.astype(LOW), self.tiles))

        return lax.fori_loop(0, self.tiles, half, jnp.zeros(self.G.shape, LOW))


def quadratic_of(smooth: Any) -> "Wide | Tall":
    """The least squares problem of a quadratic loss. A loss without a target B must have n >= d."""
    model = smooth.quadratic_model()
    if model.target is not None:
        matrix, factor = (model.majorizer(), None) if model.factored is None else model.factored()
        return least_squares(matrix, columns(model.target()).T, None if factor is None else factor[:, None])
    A = model.majorizer()
    zero = jnp.zeros(smooth.params_shape, smooth.dtype)
    value, gradient = jax.value_and_grad(smooth)(zero)  # ||B||^2 / 2 and -A'B
    return Tall(A.T @ A, -columns(gradient), 2 * value)


def least_squares(matrix: jax.Array, B: jax.Array, factor: jax.Array | None = None) -> "Wide | Tall":
    """``||AW - B||^2 / 2``, B (n, k), A = factor * matrix, factor (n, 1): `Wide` if n < d, else `Tall`."""
    if matrix.shape[0] < matrix.shape[1]:
        return Wide(matrix, factor, B)
    A = matrix if factor is None else factor * matrix
    return Tall(A.T @ A, B.T @ A, jnp.sum(B * B))
