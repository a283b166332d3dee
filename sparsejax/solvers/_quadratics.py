"""A least squares problem as Newton's method on the weights of its rows wants it, by shape."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import cho_solve

from sparsejax._core.buckets import take
from sparsejax._core.layout import columns
from sparsejax._core.linalg import across

KEPT = 256  # rows up to which the root of K is kept


class Wide(NamedTuple):
    """n < d: through K, n x n, or in a small bucket through the Gram matrix of its features.

    A is ``matrix``, its rows times ``factor``: no second matrix of that size is written. ``aux`` is K^-1 B
    and, of few rows, the root of K and whether it is that of t: small buckets leave none, and to carry a
    large one along takes longer than their steps.
    """

    matrix: jax.Array  # (n, d)
    factor: jax.Array | None  # (n, 1)
    B: jax.Array  # (n, k)

    @property
    def rows(self) -> int:
        """n."""
        return self.matrix.shape[0]

    @property
    def size(self) -> jax.Array:
        """The squares of B."""
        return jnp.sum(self.B * self.B)

    @property
    def trace(self) -> jax.Array:
        """Of A'A."""
        return jnp.sum(self._times(self.matrix) ** 2)

    @property
    def rank(self) -> int:
        """The most that the Hessian by the weights can have."""
        return int(self.B.size)

    def small(self, m: int) -> bool:
        """Whether a bucket of m features goes through its Gram matrix."""
        return 2 * m <= self.rows

    def zero(self) -> Any:
        """``aux`` at t = 0."""
        n = self.rows
        return self.B, jnp.eye(n if n <= KEPT else 0, dtype=self.B.dtype), jnp.ones((), bool)

    def part(self, ix: jax.Array) -> Any:
        """What a step needs of these features."""
        X = self._times(take(self.matrix, ix, 1))
        return X, (X.T @ X, across(self.B, X)) if self.small(ix.shape[0]) else None

    def kept_root(self, aux: Any, m: int) -> tuple[Any, jax.Array]:
        """A root of the form that `evaluate` finds, and whether it is that of t."""
        n, no = self.rows, jnp.zeros((), bool)
        if self.small(m):
            return _no_root(m, self.B), no
        return (aux[1], aux[2]) if n <= KEPT else (jnp.zeros((n, n), self.B.dtype), no)

    def evaluate(self, t: jax.Array, part: Any) -> tuple[Any, Any]:
        """``aux`` of a bucket at its t, and the root that `curvature` needs."""
        X, gram = part
        if gram is not None:
            W, root = _weights(t, *gram)
            return (self.B - X @ W.T, self.zero()[1], jnp.zeros((), bool)), root
        L = cholesky(jnp.eye(X.shape[0], dtype=t.dtype) + (X * t[None]) @ X.T)
        kept = L if self.rows <= KEPT else self.zero()[1]
        return (cho_solve((L, True), self.B), kept, jnp.ones((), bool)), L

    def curvature(self, root: Any, part: Any, P: jax.Array | None = None) -> jax.Array:
        """S = X' K^-1 X, (m, m), or for P (m, k, b) the sum of P' S P over k."""
        X, gram = part
        if gram is not None:
            return _curvature(root, gram[0], P)
        if P is None:
            half = lower_solve(root, X)
        else:
            n, (m, k, b) = X.shape[0], P.shape
            half = lower_solve(root, X @ P.reshape(m, k * b)).reshape(n * k, b)
        return half.T @ half

    def gradient(self, aux: Any, part: Any) -> jax.Array:
        """C' of the features of a bucket, (k, m), by its ``aux``."""
        return across(aux[0], part[0])

    def placed(self, ix: jax.Array, aux: Any) -> Any:
        """``aux`` of a bucket as that of all features."""
        return aux

    def taken(self, ix: jax.Array, aux: Any) -> Any:
        """And back."""
        return aux

    def along(self, aux: Any) -> jax.Array:
        """<B, K^-1 B>."""
        return jnp.sum(self.B * aux[0])

    def look(self, aux: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        """C' (k, d), ||K^-1 B||^2 and <B, K^-1 B>."""
        xi = aux[0]
        return across(self._times(xi), self.matrix), jnp.sum(xi * xi), self.along(aux)

    def _times(self, rows: jax.Array) -> jax.Array:
        return rows if self.factor is None else self.factor * rows


class Tall(NamedTuple):
    """d <= n: through G = A'A, so that no row is touched again. ``aux`` is W', (k, d)."""

    G: jax.Array
    b: jax.Array  # B'A, (k, d)
    size: jax.Array

    @property
    def trace(self) -> jax.Array:
        """Of A'A."""
        return jnp.trace(self.G)

    @property
    def rank(self) -> int:
        """As of `Wide`."""
        return int(self.b.size)

    def zero(self) -> Any:
        """``aux`` at t = 0."""
        return jnp.zeros_like(self.b)

    def part(self, ix: jax.Array) -> Any:
        """What a step needs of these features."""
        return take(take(self.G, ix, 0), ix, 1), take(self.b, ix, 1)

    def kept_root(self, aux: Any, m: int) -> tuple[Any, jax.Array]:
        """As of `Wide`: none is."""
        return _no_root(m, self.G), jnp.zeros((), bool)

    def evaluate(self, t: jax.Array, part: Any) -> tuple[Any, Any]:
        """As of `Wide`."""
        return _weights(t, *part)

    def curvature(self, root: Any, part: Any, P: jax.Array | None = None) -> jax.Array:
        """As of `Wide`."""
        return _curvature(root, part[0], P)

    def gradient(self, aux: Any, part: Any) -> jax.Array:
        """C' of the features of a bucket, (k, m), by its ``aux``."""
        G, b = part
        C: jax.Array = b - aux @ G
        return C

    def placed(self, ix: jax.Array, aux: Any) -> Any:
        """``aux`` of a bucket as that of all features."""
        return jnp.zeros_like(self.b).at[:, ix].set(aux, mode="drop")

    def taken(self, ix: jax.Array, aux: Any) -> Any:
        """And back."""
        return take(aux, ix, 1)

    def along(self, aux: Any) -> jax.Array:
        """<B, B - AW>."""
        return self.size - jnp.sum(self.b * aux)

    def look(self, aux: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        """C' (k, d), ||B - AW||^2 and <B, B - AW>."""
        C, along = self.b - aux @ self.G, self.along(aux)
        return C, along - jnp.sum(C * aux), along


def _curvature(root: Any, G: jax.Array, P: jax.Array | None) -> jax.Array:
    """S = G - G (diag(1/t) + G)^-1 G, (m, m), or for P (m, k, b) the sum of P' S P over k."""
    h, L = root
    if P is None:
        half = lower_solve(L, h[:, None] * G)
        S: jax.Array = G - half.T @ half
        return S
    m, k, b = P.shape
    flat = m * k, b
    product = G @ P.reshape(m, k * b)
    half = lower_solve(L, h[:, None] * product).reshape(flat)
    S = P.reshape(flat).T @ product.reshape(flat) - half.T @ half
    return S


def _weights(t: jax.Array, G: jax.Array, b: jax.Array) -> tuple[jax.Array, Any]:
    """W' = b (diag(1/t) + G)^-1, (k, m), and the root of t: that of I + diag(h) G diag(h), h = t^.5."""
    h = jnp.sqrt(t)
    L = cholesky(jnp.eye(t.shape[0], dtype=t.dtype) + h[:, None] * G * h[None])
    W: jax.Array = (h[:, None] * cho_solve((L, True), (b * h[None]).T)).T
    return W, (h, L)


def _no_root(m: int, like: jax.Array) -> Any:
    return jnp.zeros(m, like.dtype), jnp.zeros((m, m), like.dtype)


def quadratic_of(smooth: Any) -> "Wide | Tall":
    """The loss of a problem that is not `unfit`."""
    target = smooth.target()
    if target is not None:
        matrix, factor = smooth.factored()
        return least_squares(matrix, columns(target).T, None if factor is None else factor[:, None])
    A = smooth.majorizer()
    zero = jnp.zeros(smooth.params_shape, smooth.dtype)
    value, gradient = jax.value_and_grad(smooth)(zero)
    return Tall(A.T @ A, -columns(gradient), 2 * value)


def least_squares(matrix: jax.Array, B: jax.Array, factor: jax.Array | None = None) -> "Wide | Tall":
    """||AW - B||^2 / 2, B (n, k), A the matrix with its rows times the factor (n, 1)."""
    if matrix.shape[0] < matrix.shape[1]:
        return Wide(matrix, factor, B)
    A = matrix if factor is None else factor * matrix
    return Tall(A.T @ A, B.T @ A, jnp.sum(B * B))


def cholesky(M: jax.Array) -> jax.Array:
    """L of LL'; only the lower half of M is read."""
    L: jax.Array = lax.linalg.cholesky(M, symmetrize_input=False)
    return L


def lower_solve(L: jax.Array, B: jax.Array, *, transposed: bool = False) -> jax.Array:
    """L^-1 B, or L'^-1 B."""
    return lax.linalg.triangular_solve(L, B, left_side=True, lower=True, transpose_a=transposed)
