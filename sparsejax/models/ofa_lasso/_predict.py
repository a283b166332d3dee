r"""Prediction: a search for the y that minimises ``sum_j (y_j - f_j(x, y without j))^2``.

The problem is not convex: the result is the point with the least sum that searches from given starts reach.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from sparsejax.kernels import similarity

POINTS_AT_ONCE = 16  # points that are predicted at once: a block takes as long as its slowest point
LBFGS_PAIRS = 10  # pairs of differences that L-BFGS stores


class Outputs(NamedTuple):
    """The kernel part of each model f_j, which depends on the other outputs: centers of nonzero weight."""

    centers: jax.Array  # (d, s, d): training outputs minus shift; centers[j, :, j] is 0
    weights: jax.Array  # (d, s): the weights of the centers in f_j, 0 where f_j has fewer than s
    bandwidth: jax.Array  # (d,)
    shift: jax.Array  # (d,), subtracted from y, so that large outputs do not cancel in distances


class Prediction(NamedTuple):
    """Predictions for m points, with their starts and residuals.

    Attributes:
      y: (m, d), the predictions.
      residual: (m,), ``sum_j (y_j - f_j(x, y without j))^2`` at y; never above ``start_residual``.
      start: (m, d), the predictions of the independent lassos, from which the first search starts.
      start_residual: (m,), the same sum at ``start``.
      num_stationary: (m,) int32, the number of distinct stationary points that the searches found. 1 means
        that all searches that met ``tol`` agree; there may be other points. 0 means that no search met it.

    >>> import numpy as np
    >>> from sparsejax.models import ofa_lasso
    >>> X, Y = np.random.default_rng(0).standard_normal((2, 6, 2))
    >>> found = ofa_lasso.fit(X, Y, lam=0.5, beta=0.5).predict_with_info(X)
    >>> found.y.shape, bool((found.residual <= found.start_residual).all())
    ((6, 2), True)
    """

    y: jax.Array
    residual: jax.Array
    start: jax.Array
    start_residual: jax.Array
    num_stationary: jax.Array


def disagreement(kernel: str, degree: int, outputs: Outputs, base: jax.Array, y: jax.Array) -> jax.Array:
    """The objective at y (d,); ``base`` (d,) is the part of each f_j that depends on x, plus intercept."""
    y_shifted = y - outputs.shift
    product = jnp.einsum("jsl,l->js", outputs.centers, y_shifted, precision=lax.Precision.HIGHEST)
    if kernel == "gaussian":
        # ||y_-j - c||^2 = ||y_-j||^2 + ||c||^2 - 2 <c, y>, with y_-j all but output j, since c_j = 0. Row j
        # of ``others`` is y_-j: the sum of all squares minus y_j^2 would lose the digits of small outputs.
        others = jnp.where(jnp.eye(len(y), dtype=bool), 0, y_shifted[None])
        size = jnp.sum(others**2, axis=1)
        distance = size[:, None] + jnp.sum(outputs.centers**2, axis=2) - 2 * product
        features = similarity(jnp.maximum(distance, 0), 1 / outputs.bandwidth[:, None])
    else:
        features = (product + 1) ** degree if kernel == "polynomial" else product
    return jnp.sum((y - base - jnp.sum(outputs.weights * features, axis=1)) ** 2)


def search(
    kernel: str,
    degree: int,
    outputs: Outputs,
    base: jax.Array,
    start: jax.Array,
    further: jax.Array,
    scale: jax.Array,
    tol: jax.Array | float,
    maxiter: int,
) -> Prediction:
    """Predictions from ``start`` (m, d) and, for every point, from the rows of ``further`` (p, d).

    Args:
      kernel, degree, outputs: the models.
      base: (m, d), for each point as in `disagreement`.
      start: (m, d), where the first search of each point starts.
      further: (p, d), where p further searches of every point start.
      scale: (d,) > 0, the size of each output: y is searched in its units, and two stationary points
        are distinct if they differ by more than ``sqrt(tol)`` in one of them.
      tol: with the objective divided by ``mean(scale^2)``, a point is stationary if no entry of the gradient
        in y / scale exceeds ``tol * (1 + objective)``.
      maxiter: largest number of L-BFGS steps for each start.
    """
    unit = jnp.mean(scale * scale)
    solver = optax.lbfgs(memory_size=LBFGS_PAIRS)

    def descend(base: jax.Array, y0: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        def fun(w: jax.Array) -> jax.Array:
            return disagreement(kernel, degree, outputs, base, w * scale) / unit

        value_and_grad = optax.value_and_grad_from_state(fun)

        def flat(state: Any) -> jax.Array:
            gradient = optax.tree_utils.tree_get(state, "grad")
            value = optax.tree_utils.tree_get(state, "value")
            return jnp.max(jnp.abs(gradient)) <= tol * (1 + value)

        def body(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            w, state, k, _ = carry
            value, gradient = value_and_grad(w, state=state)
            updates, state = solver.update(gradient, state, w, value=value, grad=gradient, value_fn=fun)
            w = optax.apply_updates(w, updates)
            return w, state, k + 1, flat(state)

        w0 = y0 / scale
        # Inside, optax promotes ranks and integers, which the user's configuration of JAX may forbid.
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            carry = (w0, solver.init(w0), jnp.int32(0), jnp.zeros((), bool))
            w, _, _, stationary = lax.while_loop(lambda c: (c[2] < maxiter) & ~c[3], body, carry)
        return w, fun(w), fun(w0), stationary

    def point(base: jax.Array, start: jax.Array) -> Prediction:
        starts = jnp.concatenate([start[None], further])
        w, value, first, stationary = jax.vmap(lambda y0: descend(base, y0))(starts)
        value = jnp.where(value <= first, value, jnp.inf)  # inf after a rise or a NaN
        best = jnp.argmin(value)
        # If no search has improved on the start, the start is returned.
        improved = value[best] < first[0]
        y = jnp.where(improved, w[best] * scale, start)
        residual = jnp.where(improved, value[best], first[0]) * unit
        return Prediction(y, residual, start, first[0] * unit, _distinct(w, stationary, tol**0.5))

    return lax.map(lambda a: point(*a), (base, start), batch_size=POINTS_AT_ONCE)


def _distinct(w: jax.Array, stationary: jax.Array, apart: jax.Array | float) -> jax.Array:
    """The number of stationary rows of w (starts, d) farther than ``apart`` from all earlier such rows."""
    count = w.shape[0]
    near = jnp.max(jnp.abs(w[:, None] - w[None]), axis=2) <= apart
    earlier = jnp.tril(jnp.ones((count, count), bool), -1)
    seen = jnp.any(near & earlier & stationary[None], axis=1)
    return jnp.sum(stationary & ~seen, dtype=jnp.int32)
