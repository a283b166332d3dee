r"""Least squares with norms of blocks, on few features, by their Gram matrix: the problem of `_gram_descent`.

.. math:: \min_E\; \langle R, E\rangle + \tfrac12\langle E, GE\rangle
          + \sum_i \lambda_i \|w_i + e_i\|_1 + \sum_b \alpha_b \|W_b + E_b\|_F

in the change E of W. A block b is a row of k entries, or a group of rows. R is the gradient at W, and G the
Hessian, of the loss plus the ridge. All arrays are in float32, but the slopes at W are first computed in the
dtype of the problem: near the optimum they and E are small, so that no digits cancel. Arrays by feature have
the features last, (k, m).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import safe_divide
from sparsejax._core.one_kernel import compiles_loops, one_kernel
from sparsejax._core.tiles import put_both, put_rows, rows_at

LOW = jnp.float32


class Slopes(NamedTuple):
    """The problem at W; in float32 after `lowered`. A slope is a derivative in an entry of E."""

    W: jax.Array  # (k, m)
    # (k, m), slope at W of the loss and the ridge; after `lowered` also of each norm that is smooth there
    R: jax.Array
    entries: jax.Array | None  # (m,), lambda; None: no such term
    blocks: jax.Array | None  # (b,), alpha; None: no such term. The block of feature i is i // (m // b)
    live: jax.Array  # (m,), whether the feature can move
    ridge: jax.Array  # (m,), strength of `SquaredL2`, which G has on its diagonal
    nonnegative: bool  # whether W + E >= 0 is required; of single entries only
    tile: int  # features of a tile of the Gram matrix

    @property
    def size(self) -> int:
        """Number of features in a block."""
        return 1 if self.blocks is None else int(self.W.shape[1] // self.blocks.shape[0])

    @property
    def single(self) -> bool:
        """Whether single entries are the blocks: one column and no norms of groups."""
        return self.blocks is None and self.W.shape[0] == 1

    def with_norms(self, R: jax.Array, sign: int) -> jax.Array:
        """R (k, m) plus ``sign`` times the slopes at W of the norms that are smooth there."""
        if self.entries is not None:
            R = R + sign * self.entries[None] * jnp.sign(self.W)
        if self.blocks is not None:
            R = R + sign * to_features(self.blocks, self.size) * units(self.W, self.size)
        return R

    def lowered(self) -> "Slopes":
        """The problem in float32, from R of the loss alone and all fields in the dtype of the problem."""
        low: Any = lambda part: None if part is None else part.astype(LOW)
        R, entries, blocks = low(self.with_norms(self.R, 1)), low(self.entries), low(self.blocks)
        return self._replace(W=low(self.W), R=R, entries=entries, blocks=blocks, ridge=low(self.ridge))


class Point(NamedTuple):
    """State of descent, arrays (k, m)."""

    V: jax.Array  # W + E, with exact zeros
    E: jax.Array  # the change of W
    R: jax.Array  # ``Slopes.R`` + GE: the slope of the loss at V, plus the slopes of the norms at W


class Gram(NamedTuple):
    """A'A of some columns of A, plus the ridge."""

    ix: jax.Array  # (m,), numbers of the columns, padded with d
    owner: jax.Array  # (b,), numbers of the blocks that the columns form, in the same order
    used: jax.Array  # (), columns in use, whole tiles of them; G beyond them holds any finite numbers
    G: jax.Array  # (m, m), in float32
    A: jax.Array  # (m, n), in float32, the columns of A as rows
    known: jax.Array  # (), rows of ``A`` that are filled: ``used``, or 0 if a path has not passed ``A`` on

    @property
    def few_rows(self) -> bool:
        """Whether products with A and A' may read less memory than one with G."""
        m, n = self.A.shape
        return bool(2 * n < m)


def gram_of(
    strip: Callable[[jax.Array], jax.Array], diagonal: jax.Array, tiles: jax.Array, T: int, old: Gram
) -> tuple[jax.Array, jax.Array]:
    """A'A + diag(diagonal), (m, m), and A', (m, n), in float32, in the tiles in use.

    Args:
      strip: (i) -> the columns of A of tile i, as rows (T, n), in float32.
      diagonal: (m,).
      tiles: (), tiles in use.
      T: features of a tile.
      old: a matrix of the first columns, ``old.used`` of them, which stays; the rest is overwritten.
    """
    fill = lambda i, rows: put_rows(rows, i, strip(i))
    rows = lax.fori_loop(old.known // T, tiles, fill, old.A)

    def row(i: jax.Array, G: jax.Array) -> jax.Array:
        new, own = rows_at(rows, i, T), jnp.diag(rows_at(diagonal, i, T).astype(LOW))

        def tile(j: jax.Array, G: jax.Array) -> jax.Array:
            return put_both(G, i, j, new @ rows_at(rows, j, T).T + jnp.where(i == j, own, 0))

        return lax.fori_loop(0, i + 1, tile, G)

    return lax.fori_loop(old.used // T, tiles, row, old.G), rows


def plus_rows(R: jax.Array, gram: Gram, T: int, at: jax.Array, X: jax.Array) -> jax.Array:
    """R + X G_b, with G_b the rows of G of block b.

    Within `one_kernel` it reads the tiles in use only, and nothing if X is 0.

    Args:
      R: (k, m).
      T: features of a tile.
      at: number of the first feature of the block b, of s features.
      X: (k, s).
    """
    if not compiles_loops():
        return R + X @ lax.dynamic_slice_in_dim(gram.G, at, X.shape[1])
    tiles = jnp.where(jnp.any(X != 0), gram.used // T, 0)

    def tile(j: jax.Array, R: jax.Array) -> jax.Array:
        rows = lax.dynamic_slice(gram.G, (at, j * T), (X.shape[1], T))
        products = [X[:, f : f + 1] * rows[f : f + 1] for f in range(len(rows))]
        own = lax.dynamic_slice_in_dim(R, j * T, T, axis=1)
        return lax.dynamic_update_slice_in_dim(R, sum(products, own), j * T, axis=1)

    return lax.fori_loop(0, tiles, tile, R)


def times_gram(X: jax.Array, gram: Gram, T: int) -> jax.Array:
    """X G in the tiles in use, for X (k, m), by the rows of G of the features in which X is not 0.

    Even if X is 0 nowhere, this takes no longer than a product of the whole matrices.
    """
    if not compiles_loops():
        return X @ gram.G
    row = lambda i, Y: plus_rows(Y, gram, T, i, lax.dynamic_slice_in_dim(X, i, 1, axis=1))
    return one_kernel(lambda Y: lax.fori_loop(0, gram.used, row, Y))(jnp.zeros_like(X))


def of_blocks(a: jax.Array, size: int) -> jax.Array:
    """The sums over blocks, (b,), of an array of features (k, m)."""
    return jnp.sum(a.reshape(a.shape[0], -1, size), axis=(0, 2))


def to_features(a: jax.Array, size: int) -> jax.Array:
    """The value of its block for each feature: (1, m) from (b,)."""
    return jnp.repeat(a, size)[None]


def units(W: jax.Array, size: int) -> jax.Array:
    """W divided by the norms of its blocks; 0 in blocks of norm 0."""
    return safe_divide(W, to_features(jnp.sqrt(of_blocks(W * W, size)), size))


def _turned(s: Slopes, blocks: jax.Array, V: jax.Array, E: jax.Array) -> jax.Array:
    """alpha times the change of the units V/|V| from W to V = W + E, without cancellation.

    For a block that is not 0 at W the change is ``(E - (|V| - |W|) W/|W|) / |V|``; else it is V/|V|.
    """
    size = s.size
    # |V| - |W| = <2W + E, E> / (|V| + |W|)
    before, after = (jnp.sqrt(of_blocks(a * a, size)) for a in (s.W, V))
    longer = safe_divide(of_blocks((2 * s.W + E) * E, size), before + after)
    unit = units(s.W, size)
    alpha, after, longer = (to_features(a, size) for a in (blocks, after, longer))
    was = to_features(before > 0, size)
    return alpha * jnp.where(was, safe_divide(E - longer * unit, after), units(V, size))


def slope_at(s: Slopes, p: Point) -> jax.Array:
    """The slope of the objective at V, (k, m); valid in entries where V is not 0."""
    slope = p.R
    if s.entries is not None:
        slope = slope + s.entries[None] * (jnp.sign(p.V) - jnp.sign(s.W))
    if s.blocks is not None:
        slope = slope + _turned(s, s.blocks, p.V, jnp.where(p.V == 0, -s.W, p.E))
    return slope


def violation(s: Slopes, p: Point) -> jax.Array:
    """(), the largest distance of a slope of the loss from the subdifferential of the norms.

    It is taken by entry, and for blocks that are 0 in the norm of the block.
    """
    slope = jnp.abs(slope_at(s, p))
    of_loss = s.with_norms(p.R, -1)  # the slope of the loss
    # Under V >= 0 a slope > 0 keeps an entry at 0.
    left = jnp.maximum(-of_loss, 0) if s.nonnegative else jnp.abs(of_loss)
    left = left if s.entries is None else jnp.maximum(left - s.entries[None], 0)
    if s.blocks is None:
        worst = jnp.where(p.V == 0, left, slope)
    else:
        # A block that is 0 counts with its norm. An entry that is 0 in another block counts with what the
        # norm of entries leaves of its slope.
        zero = to_features(of_blocks(p.V * p.V, s.size) == 0, s.size)
        beyond = jnp.maximum(jnp.sqrt(of_blocks(left * left, s.size)) - s.blocks, 0)
        entry = slope if s.entries is None else jnp.where(p.V == 0, left, slope)
        worst = jnp.where(zero, to_features(beyond, s.size), entry)
    return jnp.max(jnp.where(s.live[None], worst, 0))
