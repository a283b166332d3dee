"""Linear algebra and control flow that proximal operators, derivatives and solvers share."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checks import check_array, is_traced


def eps_of(x: jax.Array) -> float:
    """The machine epsilon of the dtype of x."""
    return float(jnp.finfo(x.dtype).eps)


def tiny_of(x: jax.Array) -> float:
    """The least positive normal number of the dtype of x."""
    return float(jnp.finfo(x.dtype).tiny)


def unit_of(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A power of 2 near the largest absolute entry of x, and its inverse; no derivative.

    The largest entry is 1 to 4 units. The unit is 1/2 if the largest entry is 0, not finite or not normal.

    In this unit no square of an entry overflows, as squares of 1e20 do in float32, and not all underflow.
    Multiplication or division by a power of 2 does not round. Multiply strengths by the inverse instead of
    dividing by the unit: XLA rewrites ``a / unit / norm`` as ``a / (unit * norm)``, whose product may
    underflow. The inverse is `opaque`, so that XLA does not do the same with it.
    """
    top = lax.stop_gradient(jnp.max(jnp.abs(x), initial=0))
    fine = (top >= tiny_of(x)) & jnp.isfinite(top)
    exponent = jnp.frexp(jnp.where(fine, top, 1))[1] - 2  # - 2: the inverse is a normal number too
    exponent = jnp.maximum(exponent, jnp.finfo(x.dtype).minexp)
    unit = jnp.ldexp(jnp.ones((), x.dtype), exponent)
    return unit, opaque(1 / unit)


def safe_divide(a: ArrayLike, b: jax.Array, otherwise: ArrayLike = 0.0) -> jax.Array:
    """``a / b`` where b > 0, ``otherwise`` elsewhere, with finite derivatives in both cases."""
    positive = b > 0
    return jnp.where(positive, a / jnp.where(positive, b, 1), otherwise)


def safe_norm(x: jax.Array) -> jax.Array:
    """2-norm of the columns of x (p, ...), with derivative 0 rather than NaN at 0."""
    return safe_sqrt(jnp.sum(x * x, axis=0))


def safe_sqrt(x: jax.Array) -> jax.Array:
    """The square root where x > 0, 0 with derivative 0 where x <= 0, NaN of NaN."""
    return jnp.where(x <= 0, 0, jnp.sqrt(jnp.where(x <= 0, 1, x)))


def norm(x: jax.Array) -> jax.Array:
    """Frobenius norm; not differentiable at 0."""
    return jnp.sqrt(jnp.sum(x * x))


def joint_norm(arrays: Sequence[jax.Array]) -> jax.Array:
    """Frobenius norm of several arrays together; not differentiable at 0."""
    return jnp.sqrt(sum(jnp.sum(x * x) for x in arrays))


def across(R: jax.Array, A: jax.Array) -> jax.Array:
    """R'A for a narrow R (n, k) and a wide A (n, d).

    R is transposed before the product: XLA would transpose within the product, which on a CPU takes three to
    twelve times as long.
    """
    return lax.optimization_barrier(R.T) @ A


def opaque(x: jax.Array) -> jax.Array:
    """x, behind a barrier if it is traced: XLA then neither folds it as a constant nor regroups products.

    To fold a user's large constants would take seconds. Regrouped products may underflow, see `unit_of`.
    """
    return lax.optimization_barrier(x) if is_traced(x) else x


def hidden_zeros(shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Zeros that XLA does not recognise as copies of one number: one of them is -0.

    For a product with a matrix of copies of one number that is then reduced row by row, jaxlib 0.10.2
    compiles a program for CPUs that reads uninitialised memory, and the result may be NaN.
    """
    zero = np.zeros(math.prod(shape), dtype)
    zero[-1:] = -0.0
    return opaque(jnp.asarray(zero.reshape(shape)))


def apply_if(active: jax.Array, function: Callable[[Any], Any], value: Any) -> Any:
    """``function(value)`` if ``active``, else value; under vmap ``function`` is skipped if no lane is active.

    The program has a loop of at most one turn: `lax.cond` under vmap would always compute both branches.
    """
    return lax.while_loop(lambda c: c[1], lambda c: (function(c[0]), jnp.zeros((), bool)), (value, active))[0]


def choose(condition: jax.Array, a: Any, b: Any) -> Any:
    """The tree ``a`` where the condition holds, else ``b``, leaf by leaf."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), a, b)


@jax.custom_batching.custom_vmap
def of_all_lanes(count: jax.Array) -> jax.Array:
    """The count; under vmap the largest count of all lanes, not batched.

    Use it as the bound of a loop: if lanes could end at different counts, the batched loop would select, in
    every turn, between the old and the new value of everything that it carries.
    """
    return count


@of_all_lanes.def_vmap
def _of_all_lanes(size: int, batched: Any, count: jax.Array) -> tuple[jax.Array, bool]:
    return of_all_lanes(jnp.max(count, axis=0)), False


MIN_FOLDED_ROW = 512  # entries of a row; if d <= n, `_down` saves time for rows from this length on
ENTRIES_IN_CACHE = 2**16  # most entries of a block of rows in `row_sums_of_squares`


def column_sums(function: Callable[[jax.Array], jax.Array], X: jax.Array) -> jax.Array:
    """The sums of ``function(X)`` down its columns, (d,); ``function``, elementwise, takes X or a row."""
    n, d = X.shape
    if d > n or d >= MIN_FOLDED_ROW:
        return _down(jnp.add, jnp.sum, function, X)
    return jnp.sum(function(X), axis=0)


def column_maxima(function: Callable[[jax.Array], jax.Array], X: jax.Array) -> jax.Array:
    """The maxima of ``function(X) >= 0`` down its columns, (d,); ``function`` as for `column_sums`."""
    n, d = X.shape
    return _down(jnp.maximum, jnp.max, function, X) if d > n else jnp.max(function(X), axis=0)


def _down(
    step: Callable[..., jax.Array],
    whole: Callable[..., jax.Array],
    function: Callable[[jax.Array], jax.Array],
    X: jax.Array,
) -> jax.Array:
    """``whole(function(X), axis=0)``; on a CPU ``step`` takes the rows of X one after the other.

    On a CPU XLA reduces column by column, reads each row from another page of memory, and takes ten to
    fifteen times as long. On an accelerator each row would be a program of its own.
    """
    if jax.default_backend() != "cpu":
        return whole(function(X), axis=0)
    parts, axis = _by_device(X)

    def turn(i: jax.Array, a: jax.Array) -> jax.Array:
        return step(a, function(lax.dynamic_index_in_dim(parts, i, axis, keepdims=False)))

    start = jnp.zeros((*parts.shape[:axis], X.shape[1]), X.dtype)
    found = lax.fori_loop(0, parts.shape[axis], turn, start)
    return whole(found, axis=0) if axis else found


def row_sums_of_squares(X: jax.Array, weights: jax.Array) -> jax.Array:
    """The sums of ``X^2 * weights`` along the rows of X, (n,), with weights (d,).

    On a CPU the squares of some rows at a time stay in the cache; XLA's sum of products takes twice as long.
    """
    if jax.default_backend() != "cpu":
        # Not X^2 * weights: where the same program also sums X^2 down the columns, XLA would store X^2.
        return jnp.sum((X * weights[None]) * X, axis=1)
    parts, axis = _by_device(X)
    number = parts.shape[axis]
    rows = min(number, max(1, ENTRIES_IN_CACHE // X.shape[1]))

    def block(i: jax.Array, sums: jax.Array) -> jax.Array:
        part = lax.dynamic_slice_in_dim(parts, i * rows, rows, axis)  # the last two blocks may overlap
        return lax.dynamic_update_slice_in_dim(sums, (part * part) @ weights, i * rows, axis)

    sums = lax.fori_loop(0, -(-number // rows), block, jnp.zeros(parts.shape[:-1], X.dtype))
    return sums.reshape(X.shape[0])


def _by_device(X: jax.Array) -> tuple[jax.Array, int]:
    """X as (blocks, n / blocks, d), and the axis of its rows for a loop; with one device X itself, and 0.

    A loop over all rows of an X whose rows are spread over devices would gather X whole on each of them. The
    number of devices that its rows are on divides n and the number of all devices, and so it divides the
    number of blocks: each device has the rows of its own blocks. With one device X is not reshaped: if X
    is itself computed in the program, XLA would compute and store it a second time for the new shape.
    """
    n, d = X.shape
    blocks = math.gcd(n, jax.device_count())
    return (X.reshape(blocks, n // blocks, d), 1) if blocks > 1 else (X, 0)


def conjugate_gradients(
    matvec: Callable[[jax.Array], jax.Array],
    b: jax.Array,
    precondition: Callable[[jax.Array], jax.Array],
    tol: jax.Array | float,
    maxiter: int,
    *,
    confirmed: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Preconditioned conjugate gradients from x = 0 until ``||b - Ax|| <= tol ||b||``: x and the residual.

    The iteration also ends after ``maxiter`` steps, or at a direction without curvature (a singular system).
    The residual returned is the r of the recurrence, which may drift from ``b - Ax``; with ``confirmed`` it
    is ``b - Ax``, computed in one more turn of the loop. That turn is in the same loop so that ``matvec`` and
    ``precondition`` are compiled once.
    """
    size = norm(b)

    def body(c: _Gradients) -> _Gradients:
        # One step; in the last turn the product is A x, the step length 0, and r = b - A x.
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
    x: jax.Array  # the iterate, shape of b
    r: jax.Array  # its residual, by the recurrence
    p: jax.Array  # the direction
    rz: jax.Array  # (), <r, precondition(r)>
    n: jax.Array  # () int32, steps so far
    last: jax.Array  # () boolean: the next turn only computes b - Ax
    over: jax.Array  # () boolean: the loop ends


def largest_eigenvalue_bound(A: jax.Array) -> jax.Array:
    r"""An upper bound on the largest eigenvalue of A'A, at most 6 % too large up to 1000 rows or columns.

    The bound is :math:`\|G^{m}\|_F^{1/m}` with m = 64, by repeated squaring of the smaller Gram matrix G. It
    takes matrix products only, so that it is cheap on every device and under vmap. For a finite G it is never
    below the true value, as a power iteration may be. The entries of G may be as large or small as the dtype
    allows.
    """
    n, d = A.shape
    G = A.T @ A if d <= n else A @ A.T
    unit, inverse = unit_of(G)
    G = G * inverse
    squarings = 6  # m = 2^6; the bound is at most min(n, d)^(1/(2m)) times too large
    log_norm = jnp.zeros((), A.dtype)
    for i in range(squarings + 1):  # here G is the 2^i-th power of the Gram matrix, times exp(-2^i log_norm)
        size = norm(G)
        log_norm = log_norm + jnp.where(size == 0, -jnp.inf, jnp.log(jnp.where(size == 0, 1, size))) / 2**i
        G = safe_divide(G, size)
        if i < squarings:
            G = G @ G
    # The factor covers the rounding of the products.
    return unit * (jnp.exp(log_norm) * (1 + 8 * math.sqrt(min(n, d)) * eps_of(A)))


def columns_along(X: Any, directions: jax.Array) -> jax.Array:
    """X times directions (d, f), or the columns of X with the indices ``directions`` (f,).

    An index out of range gives a column of zeros.
    """
    return take(X, directions, 1) if directions.ndim == 1 else X @ directions


def take(a: jax.Array, ix: jax.Array, axis: int) -> jax.Array:
    """The entries ``ix`` of ``a`` along an axis; an index out of range, which means no feature, gives 0."""
    return jnp.take(a, ix, axis=axis, mode="fill", fill_value=0)


# Solvers work on the transpose of W (d, k) or (d,): with the features last, every step is a vector operation.


def columns(W: jax.Array, name: str = "W") -> jax.Array:
    """The transpose of W: (k, d) for W (d, k), (1, d) for W (d,); ``name`` is for errors."""
    check_array(W, name)
    if W.ndim == 0:
        raise ValueError(
            f"{name} is a single number; one W is (d, k) or (d,): give it an axis, or leave it unpenalised, "
            "as penalties.ByLeaf does."
        )
    if W.ndim not in (1, 2):
        raise ValueError(
            f"{name} has shape {W.shape}; one W is (d, k) or (d,): use jax.vmap for a batch of them."
        )
    return W[None] if W.ndim == 1 else W.T


def mask_columns(mask: jax.Array) -> jax.Array:
    """`columns` of a boolean array of the shape of W."""
    return mask[None] if mask.ndim == 1 else mask.T


def like(Wt: jax.Array, W: jax.Array) -> jax.Array:
    """The inverse of `columns`: Wt transposed, with as many dimensions as W."""
    return Wt[0] if W.ndim == 1 else Wt.T
