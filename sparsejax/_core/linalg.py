"""Small pieces of linear algebra, and of control, that proximal operators, derivatives and solvers share."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checks import is_traced


def eps_of(x: jax.Array) -> float:
    """The relative rounding error of the dtype of x."""
    return float(np.finfo(x.dtype).eps)


def tiny_of(x: jax.Array) -> float:
    """The least normal number of the dtype of x."""
    return float(np.finfo(x.dtype).tiny)


def unit_of(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A power of 2 near the largest entry of x, 1 at x = 0, and its inverse; no derivative.

    In units of it no square of an entry overflows, as of 1e20 in float32, and not all of them underflow;
    what is multiplied or divided by it is not rounded. Strengths are multiplied by the inverse, of which XLA
    knows nothing: it makes ``a / (unit * norm)`` of ``a / unit / norm``, and the product may underflow.
    """
    top = lax.stop_gradient(jnp.max(jnp.abs(x)))
    fine = (top >= tiny_of(x)) & jnp.isfinite(top)
    exponent = jnp.frexp(jnp.where(fine, top, 1))[1] - 2  # so that the inverse is a normal number, too
    exponent = jnp.maximum(exponent, np.finfo(x.dtype).minexp)
    unit = jnp.ldexp(jnp.ones((), x.dtype), exponent)
    return unit, opaque(1 / unit)


def safe_divide(a: ArrayLike, b: jax.Array, otherwise: ArrayLike = 0.0) -> jax.Array:
    """``a / b`` where b > 0, ``otherwise`` elsewhere, with finite derivatives in both."""
    positive = b > 0
    return jnp.where(positive, a / jnp.where(positive, b, 1), otherwise)


def safe_norm(x: jax.Array) -> jax.Array:
    """2-norm of the columns of x (p, ...), with derivative 0 rather than NaN at 0."""
    return safe_sqrt(jnp.sum(x * x, axis=0))


def safe_sqrt(x: jax.Array) -> jax.Array:
    """The root where x > 0, else 0, with derivative 0 there."""
    return jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1)), 0)


def norm(x: jax.Array) -> jax.Array:
    """Frobenius norm; not differentiable at 0."""
    return jnp.sqrt(jnp.sum(x * x))


def joint_norm(arrays: Sequence[jax.Array]) -> jax.Array:
    """Frobenius norm of several arrays together; not differentiable at 0."""
    return jnp.sqrt(sum(jnp.sum(x * x) for x in arrays))


LONG = 512  # entries of a row from which it is worth while to go from row to row


def fold_rows(step: Callable[[jax.Array, jax.Array], jax.Array], X: jax.Array, start: jax.Array) -> jax.Array:
    """``step(step(start, x_0), x_1) ...`` over the rows of X.

    For sums and maxima down the columns of a wide matrix, which XLA reduces column by column, each row from
    another page of memory: ten to fifteen times as long.
    """
    return lax.scan(lambda a, x: (step(a, x), None), start, X)[0]


def across(R: jax.Array, A: jax.Array) -> jax.Array:
    """R'A for a narrow R (n, k) and a wide A (n, d): by the rows of A.

    XLA would transpose within the product, which on a CPU takes three to twelve times as long.
    """
    return lax.optimization_barrier(R.T) @ A


def opaque(x: jax.Array) -> jax.Array:
    """x, so that XLA does not fold for seconds what depends on data that a user's jit has made constants."""
    if not is_traced(x):
        return x
    return lax.optimization_barrier(x)


def hidden_zeros(shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Zeros of which XLA does not know that they are one number: one of them is -0.

    Of a product with a matrix of one number, and of what reduces it row by row, jaxlib 0.10.2 makes a program
    for a CPU that reads what was never written, and its answer may be NaN.
    """
    zero = np.zeros(math.prod(shape), dtype)
    zero[-1:] = -0.0
    return opaque(jnp.asarray(zero.reshape(shape)))


def once(active: jax.Array, function: Callable[[Any], Any], value: Any) -> Any:
    """``function(value)`` where ``active``, else value: as a loop, so that a batch skips it if none is."""
    return lax.while_loop(lambda c: c[1], lambda c: (function(c[0]), jnp.zeros((), bool)), (value, active))[0]


@jax.custom_batching.custom_vmap
def of_all_lanes(count: jax.Array) -> jax.Array:
    """The count; in a batch the largest of its lanes, one for all.

    Of loops that every lane at work goes through as often as the others: a batched loop whose lanes may end
    apart would choose, in every turn, between the old and the new value of all that it carries.
    """
    return count


@of_all_lanes.def_vmap
def _of_all_lanes(size: int, batched: Any, count: jax.Array) -> tuple[jax.Array, bool]:
    return of_all_lanes(jnp.max(count, axis=0)), False


def column_sums(function: Callable[[jax.Array], jax.Array], X: jax.Array) -> jax.Array:
    """The sums down the columns of ``function(X)``, which is elementwise and takes single rows too."""
    n, d = X.shape
    if d <= n and d < LONG:
        return jnp.sum(function(X), axis=0)
    return fold_rows(lambda total, x: total + function(x), X, jnp.zeros(d, X.dtype))


def column_maxima(function: Callable[[jax.Array], jax.Array], X: jax.Array) -> jax.Array:
    """The maxima down the columns of ``function(X) >= 0``, likewise."""
    n, d = X.shape
    if d <= n:
        return jnp.max(function(X), axis=0)
    return fold_rows(lambda top, x: jnp.maximum(top, function(x)), X, jnp.zeros(d, X.dtype))


def conjugate_gradients(
    matvec: Callable[[jax.Array], jax.Array],
    b: jax.Array,
    precondition: Callable[[jax.Array], jax.Array],
    tol: jax.Array | float,
    maxiter: int,
    *,
    confirmed: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Preconditioned conjugate gradients from zero until the residual falls by ``tol``: x and ``b - Ax``.

    A direction without curvature (a singular system) ends the iteration. The residual is the one carried
    along, which may drift, or if ``confirmed`` that of x itself, by one more pass. The loop holds all of it,
    so that matrix and preconditioner are compiled once.
    """
    size = norm(b)

    def body(c: _Gradients) -> _Gradients:
        z = precondition(c.r)
        rz = jnp.sum(c.r * z)
        p = z + safe_divide(rz, c.rz) * c.p
        product = matvec(jnp.where(c.last, c.x, p))
        a = jnp.where(c.last | ~(rz > 0), 0, safe_divide(rz, jnp.sum(p * product)))
        x, r = c.x + a * p, jnp.where(c.last, b, c.r) - jnp.where(c.last, 1, a) * product
        going = (norm(r) > tol * size) & (a > 0) & (c.n + 1 < maxiter)
        return _Gradients(x, r, p, rz, c.n + 1, ~going, c.last if confirmed else ~going)

    zero = jnp.zeros_like(b)
    none = size <= 0
    start = _Gradients(zero, b, zero, jnp.zeros((), b.dtype), jnp.int32(0), none, none)
    end = lax.while_loop(lambda c: ~c.over, body, start)
    return end.x, end.r


class _Gradients(NamedTuple):
    x: jax.Array
    r: jax.Array
    p: jax.Array
    rz: jax.Array
    n: jax.Array
    last: jax.Array  # the next pass finds the residual of x itself
    over: jax.Array


def largest_eigenvalue_bound(A: jax.Array) -> jax.Array:
    r"""An upper bound, at most 6 % too large up to 1000 rows or columns, of the largest eigenvalue of A'A.

    :math:`\|G^{m}\|_F^{1/m}` with m = 64 by repeated squaring of the smaller Gram matrix: products
    only, so cheap on every device and in a batch, and never below the true value, unlike a power
    iteration.
    """
    n, d = A.shape
    G = A.T @ A if d <= n else A @ A.T
    squarings = 6
    log_norm = jnp.zeros((), A.dtype)
    for i in range(squarings + 1):
        size = norm(G)
        log_norm = log_norm + jnp.where(size > 0, jnp.log(jnp.where(size > 0, size, 1)), -jnp.inf) / 2**i
        G = safe_divide(G, size)
        if i < squarings:
            G = G @ G
    # Room for the rounding of the products.
    return jnp.exp(log_norm) * (1 + 8 * math.sqrt(min(n, d)) * eps_of(A))


def along(X: Any, directions: jax.Array) -> jax.Array:
    """The columns of X of these indices (f,), or X times these directions (d, f)."""
    return X[:, directions] if directions.ndim == 1 else X @ directions


def take(a: jax.Array, ix: jax.Array, axis: int) -> jax.Array:
    """The parts of these numbers, 0 for the number of no feature."""
    return jnp.take(a, ix, axis=axis, mode="fill", fill_value=0)


# W (d, k) or (d,) is worked on transposed: with the features last, every step is a vector operation.


def columns(W: jax.Array) -> jax.Array:
    """W (d, k) or (d,) as (k, d) or (1, d): rows become columns."""
    if W.ndim not in (1, 2):
        raise ValueError(f"W has shape {W.shape}; one W is (d, k) or (d,): use jax.vmap for a batch of them.")
    return W[None] if W.ndim == 1 else W.T


def like(Wt: jax.Array, W: jax.Array) -> jax.Array:
    """The inverse of `columns`, to the rank of W."""
    return Wt[0] if W.ndim == 1 else Wt.T
