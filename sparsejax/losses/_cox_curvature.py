"""The curvature of the partial likelihood: a bound of the Hessian, and least squares at a point."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular

from sparsejax._core.linalg import eps_of, safe_divide, safe_sqrt
from sparsejax.losses._curvature import centred
from sparsejax.losses._free_features import coefficients
from sparsejax.losses._linear_model import FLATTEST
from sparsejax.losses._risk_places import Places
from sparsejax.losses._risks import Risks, one_later
from sparsejax.losses._running_sums import decayed_rows, decayed_sums, decays_of, running_sum, sums_to_come


def bounding_rows(X: jax.Array, weights: jax.Array, events: jax.Array, places: Places) -> jax.Array:
    r"""Rows A (n, d), by place, with A'A an upper bound of the Hessian: centred rows of X times factors.

    The Hessian in h is the sum over events e of ``events_e (diag(p) - pp')``, with p the probabilities over
    the risk set of e, whose rows are in the stratum of e and have no less time. With y = Xv the bracket gives
    Var_p(y), which depends neither on a shift of the rows of X nor on rows outside of the risk set. It is

    * at most :math:`(y_a - y_b)^2/4 \le (y_a^2 + y_b^2)/2`, where :math:`y_a` and :math:`y_b` are the ends of
      the range of y, and so at most half the sum of squares over the rows at risk;
    * at most the largest :math:`y_j^2 \le \kappa \|y\|^2`, with the largest leverage
      :math:`\kappa = \max_j x_j^\top (X^\top X)^{-1} x_j`. This bound is the smaller one if there are many
      rows for each feature.

    Each event takes the bound with the smaller trace.

    Args:
      X: (n, d), by place.
      weights: (n,), by place, of the rows.
      events: (n,), by place, the weight of the row times the scale if the row has an event, else 0.
      places: the order of the rows.
    """
    counted, strata = weights > 0, places.strata
    X = jnp.where(counted[:, None], centred(X, counted.astype(X.dtype), strata), 0)
    squares = jnp.sum(X * X, axis=1)
    half, kappa = _half_sums(squares, places), _leverage(X)
    small = half <= kappa * jnp.sum(squares)
    # A row is in the risk set of an event if its time is at least the time of the event: in the order of
    # places, the rows up to the last place with the time of the event.
    at_ends = places.at_ends(jnp.where(small, events, 0))
    bound = sums_to_come(decays_of(jnp.zeros_like(weights), strata), at_ends) / 2
    bound += kappa * jnp.sum(jnp.where(small, 0, events))
    return jnp.sqrt(bound)[:, None] * X


def trace_bound(X: jax.Array, weights: jax.Array, events: jax.Array, places: Places) -> jax.Array:
    """(), an upper bound of the trace of the Hessian: the first bound of `bounding_rows`, for every event.

    X and weights are by row, since sorting X would take as long as the rest of the function; ``events`` is by
    place. X is centred over all rows, not in each stratum.
    """
    counted = weights > 0
    squares = jnp.sum(centred(X, counted.astype(X.dtype), None) ** 2, axis=1)
    squares = jnp.where(counted, squares, 0).at[places.order].get(unique_indices=True)
    return jnp.sum(events * _half_sums(squares, places))


def _half_sums(squares: jax.Array, places: Places) -> jax.Array:
    """Half the sum of the squares of the rows at risk, (n,) by place."""
    return running_sum(squares, places.strata)[places.ends] / 2


def _leverage(X: jax.Array) -> jax.Array:
    """(), the largest leverage of a row of X, up to rounding; 1 if X has at most as many rows as columns."""
    n, d = X.shape
    if n <= d:
        return jnp.ones((), X.dtype)
    G = X.T @ X
    # With a ridge of the size of rounding errors, the Cholesky factor also exists if columns are dependent.
    room = 8 * d * eps_of(X) * jnp.trace(G)
    L = jnp.linalg.cholesky(G + jnp.where(room > 0, room, 1) * jnp.eye(d, dtype=X.dtype))
    half = X @ solve_triangular(L, jnp.eye(d, dtype=X.dtype), lower=True).T
    return jnp.minimum(jnp.max(jnp.sum(half * half, axis=1)), 1)


def chain_rows(chain: Risks, X: jax.Array, factor: jax.Array) -> jax.Array:
    r"""Rows :math:`a_k = x_k - \mu_{k-1}` of `chain_squares`, (n, d), times factors (n,); X is by place."""
    inverse = jnp.where(chain.first, 0, safe_divide(1.0, one_later(chain.sums)))
    if jax.default_backend() != "cpu":
        before = one_later(decayed_rows(chain.decay, chain.each[:, None] * X))
        return factor[:, None] * (X - inverse[:, None] * before)

    def add(total: jax.Array, place: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        decay, each, inverse, factor, x = place
        return decay * total + each * x, factor * (x - inverse * total)

    return lax.scan(add, jnp.zeros_like(X[0]), (chain.decay, chain.each, inverse, factor, X), unroll=2)[1]


def chain_hessian(chain: Risks, X: jax.Array, stopped: jax.Array) -> jax.Array:
    r"""The Hessian :math:`\sum_k c_k a_k a_k^\top` (d, d) for nested risk sets, see `chain_squares`."""
    A = chain_rows(chain, X, safe_sqrt(chain.onward * stopped))
    return A.T @ A


def chain_squares(chain: Risks, X: jax.Array, stopped: jax.Array) -> tuple[jax.Array, jax.Array]:
    r"""Rows A (n, d) by place with A'A the Hessian, and z (n,) with A'z the gradient, both without the scale.

    Rows enter the risk set one by one, in the order of falling time. Let :math:`S_k` be the sum of
    :math:`w e^h` and :math:`\mu_k` the mean of X, with these weights, over the first k rows of a stratum, and
    :math:`U_k = g_k - \text{events}_k` the derivative of the loss in :math:`h_k`. Row k adds one square to
    the sum of squares about the mean of the risk set, :math:`(S_{k-1}/S_k)\, w_k e^{h_k}\, a_k a_k^\top` with
    :math:`a_k = x_k - \mu_{k-1}`. So the Hessian is :math:`\sum_k c_k a_k a_k^\top`, where
    :math:`c_k = (S_{k-1}/S_k)\, g_k` and :math:`g_k` is the sum over the events of weight times probability
    of row k. The gradient is :math:`\sum_k \rho_k a_k` with
    :math:`\rho_k = U_k - (w_k e^{h_k}/S_k) \sum_{i \le k} U_i`, by back substitution from the last row.
    As in other losses, a smaller c is raised to `FLATTEST` :math:`|\rho|`, so A'A may exceed the Hessian.

    ``stopped`` (n,) holds the g of each place. For risk sets that are not nested, by Efron's ties or delayed
    entry, A'z is the gradient and A'A is only close to the Hessian, since :math:`\mu` are the means of nested
    risk sets.
    """
    U = stopped - chain.events
    rho = U - chain.stop * running_sum(U, chain.places.strata)
    root = safe_sqrt(jnp.maximum(chain.onward * stopped, FLATTEST * jnp.abs(rho)))
    return chain_rows(chain, X, root), safe_divide(rho, root)


def off_basis_by_curvature(
    chain: Risks, mass: jax.Array, basis: jax.Array, U: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The change of slopes U (n,) by projection orthogonal to a basis (n, r), in the metric of the Hessian.

    Same as `LinearModelLoss._off_basis_by_curvature`, by place and for nested risk sets; ``mass`` is
    `Risks.mass`. The second result, (n,), is the change of the weight that passes each place, see `Risks`. It
    has a formula of its own, since a running sum of the first result would lose digits to cancellation.
    """
    stopped, at_ends = chain.stop * mass, chain.places.at_ends(chain.events)
    A = chain_rows(chain, basis, safe_sqrt(chain.onward * stopped))
    v = basis @ coefficients(A.T @ A, basis.T @ U)
    mean = safe_divide(decayed_sums(chain.decay, chain.each * v), chain.sums)
    of_events = sums_to_come(chain.decay, safe_divide(at_ends * mean, chain.sums))
    passed = chain.onward * (chain.sums * of_events - one_later(mean) * mass)
    return chain.each * of_events - stopped * v, passed
