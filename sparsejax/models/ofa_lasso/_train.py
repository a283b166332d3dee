"""All outputs at all strengths, in one compiled call."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsejax._core.checks import is_traced
from sparsejax.models.ofa_lasso import _admm
from sparsejax.models.ofa_lasso._certificate import FULL, Lasso, in_units
from sparsejax.models.ofa_lasso._data import Data, inputs, kernel_of
from sparsejax.models.ofa_lasso._working_set import solve_path
from sparsejax.solution import MAX_ITER

BUCKET = 128  # columns solved together at first
TOGETHER = 4  # outputs solved together


class Fitted(NamedTuple):
    """Solutions of every output (first axis): of the starts, then of the pairs of strengths (second)."""

    lasso: Lasso
    intercept: jax.Array


def train(
    data: Data,
    lams: jax.Array,
    betas: jax.Array,
    start_lams: jax.Array,
    tol: jax.Array,
    maxiter: jax.Array,
    mu: jax.Array,
    growth: jax.Array,
    algorithm: str,
) -> Fitted:
    """All outputs without the others' part at ``start_lams`` (S, d), then at the pairs of ``lams``, ``betas``
    (L, d); again with a larger bucket where the first is too small.
    """
    p = data.Y.shape[0] + (data.X.shape[1] if data.input == "linear" else data.Y.shape[0])
    traced = is_traced(data.Y) or is_traced(lams)
    bucket = min(p, 256 if traced else BUCKET)
    while True:
        fitted: Fitted = _train_bucket(
            data, lams, betas, start_lams, tol, maxiter, mu, growth, algorithm=algorithm, bucket=bucket
        )
        status = fitted.lasso.status
        if traced or bucket == p or not (np.asarray(status) == FULL).any():
            break
        bucket = min(p, 3 * bucket)
    ended = fitted.lasso._replace(status=jnp.where(status == FULL, MAX_ITER, status))
    return fitted._replace(lasso=ended)


@partial(jax.jit, static_argnames=("algorithm", "bucket"))
def _train_bucket(
    data: Data,
    lams: jax.Array,
    betas: jax.Array,
    start_lams: jax.Array,
    tol: jax.Array,
    maxiter: jax.Array,
    mu: jax.Array,
    growth: jax.Array,
    *,
    algorithm: str,
    bucket: int,
) -> Fitted:
    Y = data.Y
    n, d = Y.shape
    F = inputs(data, data.X)
    Ft = (F - jnp.mean(F, axis=0, keepdims=True)).T  # shared by the outputs
    q = Ft.shape[0]
    mean = jnp.mean(Y, axis=0)

    def solve(At: jax.Array, y: jax.Array, limits: jax.Array) -> Lasso:
        if algorithm == "auto":
            return solve_path(At, y, limits, tol, maxiter, bucket)
        if algorithm == "admm":
            one = lambda limit: _admm.admm(At, y, limit, tol, maxiter, mu)
        else:
            one = lambda limit: _admm.printed(At, q, y, limit, tol, maxiter, mu, growth)
        solved: Lasso = lax.map(one, limits)
        return solved

    def output(j: jax.Array) -> Fitted:
        others = jnp.where(jnp.arange(d)[None] == j, 0, Y)
        G = kernel_of(data.kernel, data.degree, data.output_bandwidth[j], others, others)
        At = jnp.concatenate([Ft, (G - jnp.mean(G, axis=0, keepdims=True)).T])
        y = Y[:, j] - mean[j]
        # No residual is longer than y: at this strength no column of G can enter.
        off = 1 + 2 * jnp.sqrt(jnp.max(jnp.sum(At * At, axis=1)) * jnp.sum(y * y))
        lam = jnp.concatenate([start_lams[:, j], lams[:, j]])
        beta = jnp.concatenate([jnp.broadcast_to(off, start_lams.shape[:1]), betas[:, j]])
        limits = jnp.concatenate([_columns(lam / 2, q), _columns(beta / 2, n)], axis=1)
        solved = in_units(partial(solve, At), y, limits)
        means = jnp.concatenate([jnp.mean(F, axis=0), jnp.mean(G, axis=0)])
        return Fitted(solved, mean[j] - solved.z @ means)

    # As many at a time as fit in about a gigabyte, in rounds of equal size; the last repeats a few.
    together = min(TOGETHER, max(1, 2**27 // ((n + q) * n)))
    rounds = -(-d // together)
    together = -(-d // rounds)
    fitted = lax.map(output, jnp.arange(rounds * together) % d, batch_size=together)
    outputs: Fitted = jax.tree.map(lambda leaf: leaf[:d], fitted)
    return outputs


def _columns(x: jax.Array, count: int) -> jax.Array:
    """x (L,) in each of so many columns."""
    return jnp.broadcast_to(x[:, None], (x.shape[0], count))
