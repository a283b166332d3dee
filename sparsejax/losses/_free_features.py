"""Bases of the predictions of features that are not penalised, to which a dual point must be orthogonal."""

from typing import Any

import jax
import jax.numpy as jnp

from sparsejax._core.linalg import columns_along, eps_of, safe_divide, safe_norm
from sparsejax._core.tiles import inverse_root


def span(F: jax.Array) -> jax.Array:
    """Orthonormal columns (n, min(n, r)) that span the columns of F (n, r); some are 0 if F has lower rank.

    The columns are scaled to length 1. A singular value of the order of rounding errors counts as 0. All
    entries are NaN if another singular value is less than eps^(1/3) times the largest. The best parameters
    may then be so large that they multiply the rounding error of the constraint, and no gap is known.
    """
    U, sizes, _ = jnp.linalg.svd(F * safe_divide(1.0, safe_norm(F))[None], full_matrices=False)
    keep = sizes > max(F.shape) * eps_of(F) * sizes[0]  # the usual numerical rank, of columns of length 1
    unclear = jnp.any(keep & (sizes < eps_of(F) ** (1 / 3) * sizes[0]))
    return jnp.where(unclear, jnp.nan, jnp.where(keep[None], U, 0))


def projected(basis: jax.Array, V: jax.Array) -> jax.Array:
    """V (n, k) or (n,) projected on the columns of a basis (n, r).

    If the basis is (k, n, r), one for each column of V, column j of V (n, k) is projected on basis j.
    """
    if basis.ndim == 2:
        return basis @ (basis.T @ V)
    return jnp.einsum("knr,kr->nk", basis, jnp.einsum("knr,nk->kr", basis, V))


def coefficients(M: jax.Array, rhs: jax.Array) -> jax.Array:
    """c with M c = rhs, for a positive semidefinite M (r, r) with rhs (r,) in its range; NaN if M is 0."""
    # The ridge exceeds the rounding error of M; the second solve removes the error that the ridge causes.
    half = inverse_root(M, 4 * M.shape[0] * eps_of(M) * jnp.trace(M))
    c = half.T @ (half @ rhs)
    return c + half.T @ (half @ (rhs - M @ c))


def newton_change(basis: jax.Array, U: jax.Array, curved: jax.Array) -> jax.Array:
    """``Q (Q' diag(curved) Q)^-1 Q'U``: a Newton step along a basis Q subtracts this from the predictions.

    Args:
      basis: Q, (n, r) for all columns, or (k, n, r), one for each column.
      U: slopes, (n, k) or (n,).
      curved: second derivatives, shape of U.
    """

    def one(Q: jax.Array, u: jax.Array, h: jax.Array) -> jax.Array:
        return Q @ coefficients(Q.T @ (h[:, None] * Q), Q.T @ u)

    if U.ndim == 1:  # the basis is (n, r) or (1, n, r)
        return one(basis.reshape(len(U), -1), U, curved)
    return jax.vmap(one, (0 if basis.ndim == 3 else None, 1, 1), 1)(basis, U, curved)


def by_column(free: jax.Array) -> bool:
    """Whether ``free`` has indices of features for each column of W, (k, f), and not directions (d, f)."""
    return free.ndim == 2 and bool(jnp.issubdtype(free.dtype, jnp.integer))


def basis_of(X: Any, free: jax.Array, w: jax.Array, k: int, constant: bool) -> jax.Array:
    """The `span` of the free features, and of a constant column if ``constant``.

    One basis (n, r) serves all k columns of Y. Each column has its own, (k, n, r), if ``free`` is by column
    or the weights are by entry. Rows without a weight > 0 are 0.

    Args:
      X: (n, d).
      free: indices of features (f,), or for each column of W (k, f), or directions (d, f).
      w: weights with as many dimensions as Y; an axis along which they are equal may have length 1.
      k: the number of columns of Y.
      constant: whether a constant column joins the free features.
    """

    def one(free: jax.Array, w: jax.Array) -> jax.Array:
        F = columns_along(X, free)
        there = jnp.broadcast_to(w > 0, F.shape[:1]).astype(F.dtype)
        if constant:
            F = F - safe_divide(there @ F, jnp.sum(there))[None]  # the same span, better conditioned
            F = jnp.concatenate([jnp.ones((F.shape[0], 1), F.dtype), F], axis=1)
        return span(jnp.where(w[:, None] > 0, F, 0))

    several = by_column(free)
    if not several and (w.ndim == 1 or w.shape[1] == 1):
        return one(free, w.reshape(-1))
    columns = jnp.broadcast_to(w, (w.shape[0], k)).T
    return jax.vmap(one, in_axes=(0 if several else None, 0))(free, columns)
