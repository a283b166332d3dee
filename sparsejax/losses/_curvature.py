"""The Hessian of a loss, in blocks; the best scaling of a dual point of a quadratic loss."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import columns, eps_of, like, safe_divide


def by_products(
    loss: Callable[[jax.Array], jax.Array], W: jax.Array, at_once: int | None = None
) -> jax.Array:
    """The Hessian of any loss in the stacked columns of W, (1, kd, kd), by Hessian-vector products.

    ``at_once``: how many columns of the Hessian are computed at the same time; None: all of them.
    """
    product = jax.linearize(jax.grad(loss), W)[1]
    basis = jnp.eye(W.size, dtype=W.dtype).reshape(W.size, *columns(W).shape)

    def column(Vt: jax.Array) -> jax.Array:
        return columns(product(like(Vt, W)))

    found = jax.vmap(column)(basis) if at_once is None else lax.map(column, basis, batch_size=at_once)
    H = found.reshape(W.size, W.size)
    return (H + H.T)[None] / 2


def centred(X: jax.Array, weights: jax.Array, strata: jax.Array | None = None) -> jax.Array:
    """X (n, d) minus its mean weighted by weights (n,), over all rows or in each stratum.

    Over all rows this eliminates the best intercept.
    """
    if strata is None:
        return X - safe_divide(weights @ X, jnp.sum(weights))[None]
    # For each row the sum of x over the rows of its stratum.
    stratum_sums = lambda x: jnp.zeros_like(x).at[strata].add(x)[strata]
    return X - safe_divide(stratum_sums(weights[:, None] * X), stratum_sums(weights)[:, None])


def of_columns(X: jax.Array, curved: jax.Array, intercept: bool) -> jax.Array:
    """``X' diag(c) X`` for each column c of ``curved`` (n, k), (k, d, d).

    For n < d the result is instead a root A of each product ``A'A``, (k, n, d). ``intercept`` eliminates the
    best intercept of each column: X is centred at its mean weighted by c.
    """

    def block(c: jax.Array) -> jax.Array:
        B = centred(X, c) if intercept else X
        if X.shape[0] < X.shape[1]:
            return jnp.sqrt(c)[:, None] * B
        return (B * c[:, None]).T @ B

    # One block after another: a batched product would hold k copies of X.
    return lax.map(block, curved.T)


def of_classes(X: jax.Array, p: jax.Array, w: jax.Array, intercept: bool) -> jax.Array:
    r"""The Hessian of the multinomial loss at probabilities p (n, k) and weights w (n,), (kd, kd).

    Its blocks are :math:`X^\top \operatorname{diag}(w(p_a[a = b] - p_a p_b))X`. With ``intercept`` a column
    of ones joins X and its part of the Hessian is eliminated (a Schur complement).
    """
    (n, d), k = X.shape, p.shape[1]
    if intercept:
        X = jnp.concatenate([X, jnp.ones((n, 1), X.dtype)], axis=1)
    e = X.shape[1]
    # All blocks get -X' diag(w p_a p_b) X, by one product; the diagonal blocks also get X' diag(w p_a) X.
    M = (jnp.sqrt(w)[:, None] * p)[:, :, None] * X[:, None]  # (n, k, e)
    H: jax.Array = -(M.reshape(n, k * e).T @ M.reshape(n, k * e)).reshape(k, e, k, e)
    own = lax.map(lambda c: (X * c[:, None]).T @ X, (w[:, None] * p).T)
    H = H + own[:, :, None] * jnp.eye(k, dtype=X.dtype)[:, None, :, None]
    if not intercept:
        return H.reshape(k * e, k * e)
    # The Hessian is [[A, C'], [C, B]], B of the intercepts; the result is A - C'B^-1 C.
    A, C, B = H[:, :d, :, :d].reshape(k * d, k * d), H[:, d, :, :d].reshape(k, k * d), H[:, d, :, d]
    # B is singular: equal intercepts of all classes change nothing. Adding ``size`` to every entry makes it
    # regular and leaves C'B^-1 C as it is, since each column of C sums to 0. The ridge of 4 eps keeps B
    # regular if a class has probability 0. If no row has a weight, B and C are 0.
    size = jnp.trace(B) / k
    eye = jnp.eye(k, dtype=B.dtype)
    B = jnp.where(size > 0, B + size * (1 + 4 * eps_of(B) * eye), eye)
    return A - C.T @ jnp.linalg.solve(B, C)


def quadratic_scaling(linear: jax.Array, square: jax.Array, limit: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The minimiser s of ``l*(sU) = s*linear + s^2*square`` over ``0 <= s <= limit``, and l*(sU) - l*(U).

    s is not negative, since the domain of the conjugate may contain U and not -U. All shapes are ().
    """
    best = safe_divide(-linear, 2 * square, 1)  # square is 0 for U = 0: any s will do
    s = jnp.clip(best, 0, limit)
    return s, (s - 1) * (linear + (s + 1) * square)
