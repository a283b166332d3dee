"""Matrices that are no arrays: what is known of them are their products."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.pytree import Pytree


class Products(Pytree):
    """Base of X (n, d) with XW and X'U by `moved`."""

    # Groups of the protocol of losses that form matrices of the size of X, or products with itself.
    lacks: ClassVar[frozenset[str]] = frozenset({"free features"})
    shape: tuple[int, int]

    @property
    def dtype(self) -> Any:
        """That of the numbers."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """2."""
        return 2

    def moved(self, W: jax.Array, *, transposed: bool) -> jax.Array:
        """XW, or X'W, of a W with columns; neither its transpose nor its derivative in X is asked for."""
        raise NotImplementedError

    def system(self, both: jax.Array, *, transposed: bool) -> jax.Array:
        """Of W, and H under it, W and H - XW (or X'W), differentiable in X.

        JAX transposes it, but runs it for derivatives in X alone: where there are none, it is nothing.
        """
        return both

    def __matmul__(self, W: jax.Array) -> jax.Array:
        """XW, (n, k) or (n,)."""
        return _product(self, jnp.asarray(W), transposed=False)

    def __rmatmul__(self, U: jax.Array) -> jax.Array:
        """UX, (k, d) or (d,)."""
        return (self.T @ jnp.asarray(U).T).T

    @property
    def T(self) -> "Transposed":
        """X', for products."""
        return Transposed(self)


class Transposed:
    """X' of an X known by its products."""

    def __init__(self, X: Products):
        self.X = X
        self.shape = X.shape[::-1]

    def __matmul__(self, U: jax.Array) -> jax.Array:
        """X'U, (d, k) or (d,)."""
        return _product(self.X, U, transposed=True)


def _product(X: Products, W: jax.Array, *, transposed: bool) -> jax.Array:
    """XW or X'W, linear in W for every transformation.

    JAX would not find the transpose of a loop or of a call of the host, so that it is told: as the solution
    of an equation (I, 0; -X, I) (W, H) = (W, 0), whose transpose has X' in it. Where nothing depends on the
    product, JAX 0.6 hands that transpose no array of zeros; that of the barrier makes one.
    """
    n, d = X.shape
    at, size = (n, d) if transposed else (d, n)
    vector = W.ndim == 1
    W = W[:, None] if vector else W
    if W.shape[1] == 0:
        return jnp.zeros((size, 0), W.dtype)

    def system(both: jax.Array) -> jax.Array:
        return X.system(both, transposed=transposed)

    def solve(_: Any, both: jax.Array) -> jax.Array:
        return both.at[at:].add(X.moved(both[:at], transposed=transposed))

    def transpose(_: Any, both: jax.Array) -> jax.Array:
        return both.at[:at].add(X.moved(both[at:], transposed=not transposed))

    both = jnp.concatenate([W, jnp.zeros((size, W.shape[1]), W.dtype)])
    H: jax.Array = lax.custom_linear_solve(system, both, solve, transpose)[at:]
    H = lax.optimization_barrier(H)
    return H[:, 0] if vector else H
