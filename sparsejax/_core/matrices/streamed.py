"""Matrices whose rows the host reads again, batch by batch, for every product."""

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax._core.matrices.products import Products


class Source:
    """The batches of rows of a matrix.

    Args:
      begin: () -> a new iterator over all batches.
      counts: number of rows of each batch at the first reading.
      width: d, number of columns.
    """

    def __init__(self, begin: Callable[[], Iterator[np.ndarray]], counts: tuple[int, ...], width: int):
        self.begin, self.counts, self.width = begin, counts, width
        self.failed: Exception | None = None  # the error that made the last product NaN
        self.digest = ""  # the hash of all rows, once `lengths` has read them

    def __repr__(self) -> str:
        """The counts and the digest, by which a checkpoint recognises the rows."""
        return f"Source({self.counts}, {self.width}, {self.digest!r})"

    def lengths(self, squares: np.ndarray) -> np.ndarray:
        """||x_i / D|| for each row x_i, (n,), with D^2 the ``squares`` (d,); finds `digest` on the way."""
        inverse = np.divide(1, squares, out=np.zeros_like(squares), where=squares > 0)
        seen, found = sha256(), []
        for _, X in self.chunks():
            seen.update(f"{X.dtype} {X.shape} ".encode())
            seen.update(np.ascontiguousarray(X).reshape(-1).view(np.uint8).data)
            found.append(np.sqrt((X.astype(float) ** 2) @ inverse))
        self.digest = seen.hexdigest()
        return np.concatenate(found)

    def chunks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """(slice of row numbers, rows) for each batch.

        Raises:
          ValueError: the number of batches or the shape of a batch differs from the first reading.
        """
        start, number = 0, -1
        for number, X in enumerate(self.begin()):
            if number >= len(self.counts) or X.shape != (self.counts[number], self.width):
                raise ValueError(f"batch {number} has another shape than when it was read first: {X.shape}.")
            yield slice(start, start + len(X)), X
            start += len(X)
        if number + 1 < len(self.counts):
            raise ValueError(f"there are {number + 1} batches; at first there were {len(self.counts)}.")

    def guarded(self, product: Callable[..., np.ndarray], *args: Any) -> Any:
        """``product(*args)``, or None if reading fails, since a callback must not raise.

        The error is then in `failed`. A batch with NaN or infinite entries is an error too.
        """
        args = tuple(np.asarray(a) for a in args)
        try:
            self.failed = None
            found = product(*args)
            if not np.isfinite(found).all() and all(np.isfinite(a).all() for a in args):
                self._check_finite()
            return found
        except Exception as error:  # whatever a reader of files may raise
            self.failed = error
            return None

    def _check_finite(self) -> None:
        """Raise if a batch is not finite; the message has the number of the batch."""
        for number, (_, X) in enumerate(self.chunks()):
            if not np.isfinite(X).all():
                raise ValueError(f"batch {number} is not finite; it was finite when it was first read.")


class Chunked(Products, leaves=("squares", "lengths"), static=("source", "shape")):
    """X (n, d) by its `Source`: numpy computes every product in one pass over the rows.

    Under vmap a batch of products is one pass. Columns cannot be selected, and there is no derivative in X.
    """

    lacks: ClassVar[frozenset[str]] = Products.lacks | {"columns"}
    squares: jax.Array  # (d,), D^2, the squared norms of the columns
    lengths: jax.Array  # (n,), ||x_i / D|| for each row x_i
    source: Source
    shape: tuple[int, int]  # (n, d)

    @property
    def dtype(self) -> Any:
        """dtype of all products."""
        return self.squares.dtype

    def product(self, W: jax.Array, *, transposed: bool) -> jax.Array:
        """XW, or X'W if ``transposed``."""
        size = self.shape[1 if transposed else 0]

        def product(W: np.ndarray) -> np.ndarray:
            lead, (_, k) = W.shape[:-2], W.shape[-2:]
            # The columns of all lanes of a vmap side by side, so that one pass serves them all.
            flat = np.moveaxis(W.reshape(-1, *W.shape[-2:]), 0, 1).reshape(W.shape[-2], -1)
            found = np.zeros((size, flat.shape[1]), W.dtype)
            for rows, read in self.source.chunks():
                X = read.astype(W.dtype, copy=False)
                if transposed:
                    found += X.T @ flat[rows]
                else:
                    found[rows] = X @ flat
            return np.moveaxis(found.reshape(size, -1, k), 1, 0).reshape(*lead, size, k)

        return self._on_host(product, (size, W.shape[1]), W)

    def gram(self, C: jax.Array, *, centred: bool) -> jax.Array:
        """X' diag(c) X for each column c >= 0 of C (n, k), shape (k, d, d).

        With ``centred`` the result is for the rows minus their mean weighted by c. The part of the mean is
        subtracted from the products, in one pass: digits cancel if means are much larger than deviations.
        """
        k, d = C.shape[1], self.shape[1]

        def product(C: np.ndarray) -> np.ndarray:
            lead = C.shape[:-2]
            flat = np.moveaxis(C, -2, 0).reshape(self.shape[0], -1)
            found = np.zeros((flat.shape[1], d, d), C.dtype)
            sums = np.zeros((flat.shape[1], d), C.dtype)
            for rows, read in self.source.chunks():
                X = read.astype(C.dtype, copy=False)
                for i, c in enumerate(flat[rows].T):
                    root = X * np.sqrt(c)[:, None]
                    found[i] += root.T @ root  # BLAS forms half of it
                    sums[i] += c @ X
            if centred:
                total = flat.sum(axis=0)
                inverse = np.divide(1, total, out=np.zeros_like(total), where=total != 0)
                # X'CX - s s'/sum(c) with s = X'c: the products of the rows minus their mean s/sum(c).
                found -= inverse[:, None, None] * sums[:, :, None] * sums[:, None, :]
            return found.reshape(*lead, k, d, d)

        return self._on_host(product, (k, d, d), C)

    def _on_host(self, product: Callable[..., np.ndarray], shape: tuple[int, ...], A: jax.Array) -> jax.Array:
        def call(A: Any) -> np.ndarray:
            found = self.source.guarded(product, A)
            return np.full((*np.shape(A)[:-2], *shape), np.nan, A.dtype) if found is None else found

        like: Any = jax.eval_shape(lambda A: jnp.zeros(shape, A.dtype), A)
        return jax.pure_callback(call, like, A, vmap_method="broadcast_all")
