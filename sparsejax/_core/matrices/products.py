"""Matrices that are not arrays and are known only by their products with arrays."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.pytree import Pytree


class Products(Pytree):
    """Base of matrices X (n, d) whose products XW and X'U are computed by `product`."""

    # Groups of the protocol of losses that a loss with this X lacks: methods of these groups form matrices
    # of the size of X, or X'X.
    lacks: ClassVar[frozenset[str]] = frozenset({"free features"})
    shape: tuple[int, int]

    @property
    def dtype(self) -> Any:
        """dtype of the entries of X."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """2, the number of dimensions."""
        return 2

    def product(self, W: jax.Array, *, transposed: bool) -> jax.Array:
        """XW, or X'W if ``transposed``, for W (., k); JAX never differentiates or transposes it."""
        raise NotImplementedError

    def system(self, both: jax.Array, *, transposed: bool) -> jax.Array:
        """(W; H - XW), or (W; H - X'W) if ``transposed``, for ``both`` = (W; H), differentiable in X.

        JAX transposes this function, but computes it only for derivatives in X. A matrix without derivatives
        returns ``both``.
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
        """X', which has products only."""
        return Transposed(self)


class Transposed:
    """The transpose of a `Products`."""

    def __init__(self, X: Products):
        self.X = X
        self.shape = X.shape[::-1]

    def __matmul__(self, U: jax.Array) -> jax.Array:
        """X'U, (d, k) or (d,)."""
        return _product(self.X, U, transposed=True)


def times(X: Any, W: jax.Array, *, transposed: bool = False) -> jax.Array:
    """XW, or X'W if ``transposed``, for W (., k), in loops that JAX does not differentiate.

    A `Products` is multiplied by its method `product`, without the linear system of `_product`.
    """
    if isinstance(X, Products):
        return X.product(W, transposed=transposed)
    return X.T @ W if transposed else X @ W


def _product(X: Products, W: jax.Array, *, transposed: bool) -> jax.Array:
    """XW, or X'W if ``transposed``, which every JAX transformation treats as linear in W.

    JAX cannot transpose a loop or a host callback by itself. H = XW is therefore written as the solution of
    (I, 0; -X, I) (W; H) = (W; 0) by `lax.custom_linear_solve`, whose transpose is a solve with X'. If nothing
    depends on the product, the barrier passes an array of zeros to that transpose.
    """
    n, d = X.shape
    given, size = (n, d) if transposed else (d, n)  # rows of W, and rows of H
    vector = W.ndim == 1
    # `product` computes in the dtype of W: in integers the entries of a streamed X would be rounded.
    W = (W[:, None] if vector else W).astype(jnp.promote_types(X.dtype, W.dtype))
    if W.shape[1] == 0:
        return jnp.zeros((size, 0), W.dtype)

    def system(both: jax.Array) -> jax.Array:
        return X.system(both, transposed=transposed)

    def solve(_: Any, both: jax.Array) -> jax.Array:
        return both.at[given:].add(X.product(both[:given], transposed=transposed))

    def transpose(_: Any, both: jax.Array) -> jax.Array:
        return both.at[:given].add(X.product(both[given:], transposed=not transposed))

    both = jnp.concatenate([W, jnp.zeros((size, W.shape[1]), W.dtype)])
    H = lax.optimization_barrier(lax.custom_linear_solve(system, both, solve, transpose)[given:])
    return H[:, 0] if vector else H
