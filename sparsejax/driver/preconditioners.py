"""Preconditioners: exact or approximate inverses of the Hessian on the support.

Derivatives of solutions and Newton steps solve the linear system of that Hessian: by conjugate gradients, or
by a few corrections with a preconditioner that is nearly the inverse.
``mask`` has the shape of W: 1 on the support, 0 off it, where each preconditioner is the identity. ``gram``
is A'A, the Hessian of the loss or a bound of it; None if it is not known yet.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import cho_solve

from sparsejax._core.linalg import columns, eps_of, like, safe_divide, safe_norm, take
from sparsejax._core.tiles import (
    factorised,
    lower_solve,
    no_root,
    padded,
    put_rows,
    rows_at,
    tile_at,
    tile_size,
    upper_solve,
)
from sparsejax.driver.curvature import CholeskyFactor, HessianFactor, factorise
from sparsejax.losses import Loss
from sparsejax.penalties import Penalty, RowNorm, half_derivative, of_each_block

Product = Callable[[jax.Array], jax.Array]  # V -> MV with a symmetric M

# Shifts of sqrt(eps), relative to the largest or the mean diagonal entry, are above rounding and far below
# the curvature. The shift rho of `splitting_inverse` is relative to the mean eigenvalue of M: from 0.1 to 1
# the number of conjugate gradient steps hardly changes.
SHIFT_PER_MEAN_EIGENVALUE = 0.2


def dense_inverse(matvec: Product, W: jax.Array) -> Product:
    """The inverse of the matrix H of ``matvec`` plus a small multiple of I.

    This inverse commutes with H: conjugate gradients find the solution of least norm where H is singular.
    """
    eye = jnp.eye(W.size, dtype=W.dtype).reshape(W.size, *W.shape)
    H = lax.stop_gradient(jax.vmap(matvec)(eye).reshape(W.size, W.size))
    shift = eps_of(W) ** 0.5 * jnp.max(jnp.diagonal(H))
    factor = jnp.linalg.cholesky(H + shift * jnp.eye(W.size, dtype=W.dtype))
    return lambda R: cho_solve((factor, True), R.ravel()).reshape(R.shape)


def norm_of_rows(smooth: Loss, penalty: Penalty, W: jax.Array) -> RowNorm | None:
    """The penalty as a norm of each row; None if it is not one, or if the loss has the Laplacian of a graph.

    Here a norm of each row has no groups of rows, no terms of single entries and no constraint W >= 0. With
    a Laplacian the columns of W have no Hessian in common.
    """
    if "row norm" not in penalty.provides or smooth.quadratic_model().laplacian is not None:
        return None
    found = penalty.row_norm(W.shape)
    if found is None or found.groups is not None or found.entries is not None or found.nonnegative:
        return None
    return found


def one_column(smooth: Loss, W: jax.Array) -> bool:
    """Whether W is one column and the loss has a least squares model at each W, and no Laplacian."""
    model = smooth.quadratic_model()
    return W.size == W.shape[0] and model.least_squares_at is not None and model.laplacian is None


def newton_inverse(smooth: Loss, penalty: Penalty, W: jax.Array, mask: jax.Array) -> Product:
    """The inverse of A'A plus the Hessian of the penalty plus a small shift, on the support; if `one_column`.

    The features of the support come first. Only their tiles of A'A are computed and factorised; the Hessian
    of the penalty is computed for all features.
    """
    A = smooth.quadratic_model().least_squares_at(W, None)[0]  # type: ignore[misc]  # see `one_column`
    d, T, m = A.shape[1], tile_size(A.shape[1]), padded(A.shape[1])
    on = mask.reshape(-1) > 0
    ix = jnp.concatenate([jnp.argsort(~on, stable=True), jnp.full(m - d, d)])
    tiles = (jnp.sum(on) + T - 1) // T
    shift = eps_of(W) ** 0.5 * jnp.max(jnp.sum(A * A, axis=0))
    in_support = take(on, ix, 0)  # False from the end of the support on
    added = jnp.where(in_support, shift, 1)
    curvature = jax.vmap(partial(_penalty_product, penalty, W, mask))(jnp.eye(d, dtype=W.dtype))
    curvature = take(take(curvature, ix, 0), ix, 1)

    def gather(t: jax.Array, At: jax.Array) -> jax.Array:
        part = rows_at(ix, t, T)
        return put_rows(At, t, jnp.where(rows_at(in_support, t, T)[:, None], take(A.T, part, 0), 0))

    At = lax.fori_loop(0, tiles, gather, jnp.zeros((m, A.shape[0]), A.dtype))

    def tile(i: jax.Array, j: jax.Array) -> jax.Array:
        product = rows_at(At, i, T) @ rows_at(At, j, T).T + tile_at(curvature, i, j, T)
        return product + jnp.where(i == j, jnp.diag(rows_at(added, i, T)), 0)

    root = factorised(tile, tiles, no_root(m, T, A.dtype), inverted=False)

    def apply(R: jax.Array) -> jax.Array:
        b = take(mask.reshape(-1) * R.reshape(-1), ix, 0)
        x = upper_solve(root, lower_solve(root, b[None], tiles), tiles)[0]
        return (1 - mask) * R + mask * jnp.zeros(d, R.dtype).at[ix].set(x, mode="drop").reshape(R.shape)

    return apply


def _penalty_product(penalty: Penalty, W: jax.Array, mask: jax.Array, v: jax.Array) -> jax.Array:
    """The Hessian of the penalty on the support times v (d,)."""
    product = jax.jvp(jax.grad(penalty.value), (W,), (mask * v.reshape(W.shape),))[1]
    return (mask * product).reshape(-1)


def row_norm_inverse(
    smooth: Loss, gram: jax.Array | None, row_norm: RowNorm, W: jax.Array, mask: jax.Array
) -> Product:
    r"""The inverse of the Hessian on the support, for a norm of each row.

    With :math:`\beta_i = \alpha_i/\|w_i\|` and :math:`u_i = w_i/\|w_i\|` the Hessian of
    :math:`\alpha_i\|w_i\| + \tfrac{m_i}{2}\|w_i\|^2` is :math:`\beta_i(I - u_iu_i^\top) + m_i I`. So each
    column has the Hessian A'A + D, minus :math:`\beta_i u_iu_i^\top` in row i, with D the diagonal of
    :math:`\beta_i + m_i` and a shift. With the rows :math:`u_i` of U (the code holds its transpose) and
    :math:`V = (A'A + D)^{-1}`, Woodbury's identity leaves one equation a row, with the matrix
    :math:`\operatorname{diag}(1/\beta_i) - V\circ(UU^\top)`. In this matrix alone beta is multiplied by
    1 - eps^(1/3), so that rounding leaves it positive definite.
    """
    Wt, (d, _), eps = columns(W), W.shape, eps_of(W)
    if gram is None:
        A = smooth.quadratic_model().majorizer()  # type: ignore[misc]  # `_system` has checked it
        gram = A.T @ A
    on, sizes = jnp.any(columns(mask) > 0, axis=0), safe_norm(Wt)  # rows in the support, norms of rows
    alpha, ridge = (of_each_block(strength, d, W.dtype) for strength in (row_norm.alpha, row_norm.ridge))
    beta = jnp.where(on, safe_divide(alpha, sizes), 0)
    shift = eps**0.5 * jnp.trace(gram) / d
    # A'A + D on the rows of the support, the identity off them.
    M = jnp.where(on[:, None] & on[None], gram, 0) + jnp.diag(jnp.where(on, beta + ridge + shift, 1))
    V = cho_solve((jnp.linalg.cholesky(M, symmetrize_input=False), True), jnp.eye(d, dtype=W.dtype))
    Ut = jnp.where(beta > 0, safe_divide(Wt, sizes[None]), 0)
    diagonal = safe_divide(1.0, (1 - eps ** (1 / 3)) * beta, 1.0)
    root = jnp.linalg.cholesky(jnp.diag(diagonal) - V * (Ut.T @ Ut), symmetrize_input=False)
    succeeded = jnp.all(jnp.isfinite(root))  # else the preconditioner is V, the inverse of a larger matrix

    def apply(R: jax.Array) -> jax.Array:
        first = columns(mask * R) @ V
        along = cho_solve((root, True), jnp.sum(Ut * first, axis=0))
        second = jnp.where(succeeded, (Ut * along[None]) @ V, 0)
        return mask * like(first + second, R) + (1 - mask) * R

    return apply


def splitting_inverse(
    smooth: Loss, gram: jax.Array | None, penalty: Penalty, W: jax.Array, mask: jax.Array
) -> Product:
    r"""``J^{1/2} (M + rho I)^{-1} J^{1/2}`` with J nearly the derivative of the prox at step 1/rho.

    M is A'A plus the Laplacian of a graph, if the loss has one. ``J (M + rho I)^{-1}`` is, up to a factor,
    the derivative of one ADMM step for the splitting W = Z; the two roots of J make it symmetric.
    """
    model = smooth.quadratic_model()
    if model.laplacian is not None:
        factor: HessianFactor = factorise(smooth)
    elif gram is None:
        factor = CholeskyFactor.of(model.majorizer())  # type: ignore[misc]  # `_system` has checked it
    else:
        factor = CholeskyFactor(gram, gram)  # of its first argument only the shape and dtype serve here
    rho = SHIFT_PER_MEAN_EIGENVALUE * factor.mean
    prepared = factor.prepared_for(factor.nothing_prepared(), rho)
    half = half_derivative(penalty, W, 1 / rho)

    def apply(R: jax.Array) -> jax.Array:
        Rt = factor.step(columns(half(mask * R)), rho, prepared)
        return mask * half(like(Rt, R)) + (1 - mask) * R

    return apply
