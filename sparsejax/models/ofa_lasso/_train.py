"""All outputs at all strengths, in one compiled call."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsejax._pytree import is_traced
from sparsejax.models.ofa_lasso import _admm
from sparsejax.models.ofa_lasso._data import inputs, kernel_of
from sparsejax.models.ofa_lasso._working_set import FULL, Lasso, solve_path
from sparsejax.problem import MAX_ITER

BUCKET = 128  # columns solved together at first
TOGETHER = 4  # outputs solved together


class Fitted(NamedTuple):
    """Solutions of every output (first axis): of the starts, then of the pairs of strengths (second)."""

    lasso: Lasso
    intercept: jax.Array


def train(data, lams, betas, start_lams, tol, maxiter, mu, growth, algorithm) -> Fitted:
    """All outputs without the others' part at ``start_lams`` (S, d), then at the pairs of ``lams``, ``betas``
    (L, d); again with a larger bucket where the first is too small.
    """
    p = data.Y.shape[0] + (data.X.shape[1] if data.input == "linear" else data.Y.shape[0])
    traced = is_traced(data.Y) or is_traced(lams)
    bucket = min(p, 256 if traced else BUCKET)
    while True:
        fitted = _train_bucket(
            data, lams, betas, start_lams, tol, maxiter, mu, growth, algorithm=algorithm, bucket=bucket
        )
        status = fitted.lasso.status
        if traced or bucket == p or not (np.asarray(status) == FULL).any():
            break
        bucket = min(p, 3 * bucket)
    ended = fitted.lasso._replace(status=jnp.where(status == FULL, MAX_ITER, status))
    return fitted._replace(lasso=ended)


@partial(jax.jit, static_argnames=("algorithm", "bucket"))
def _train_bucket(data, lams, betas, start_lams, tol, maxiter, mu, growth, *, algorithm, bucket) -> Fitted:
    Y = data.Y
    n, d = Y.shape
    F = inputs(data, data.X)
    Ft = (F - jnp.mean(F, axis=0, keepdims=True)).T  # shared by the outputs
    q = Ft.shape[0]
    mean = jnp.mean(Y, axis=0)

    def solve(At, y, limits):
        if algorithm == "auto":
            return solve_path(At, y, limits, tol, maxiter, bucket)
        if algorithm == "admm":
            one = lambda limit: _admm.admm(At, y, limit, tol, maxiter, mu)
        else:
            one = lambda limit: _admm.printed(At, q, y, limit, tol, maxiter, mu, growth)
        return lax.map(one, limits)

    def output(j):
        others = jnp.where(jnp.arange(d)[None] == j, 0, Y)
        G = kernel_of(data.kernel, data.degree, data.output_bandwidth[j], others, others)
        At = jnp.concatenate([Ft, (G - jnp.mean(G, axis=0, keepdims=True)).T])
        y = Y[:, j] - mean[j]
        # No residual is longer than y: at this strength no column of G can enter.
        off = 1 + 2 * jnp.sqrt(jnp.max(jnp.sum(At * At, axis=1)) * jnp.sum(y * y))
        lam = jnp.concatenate([start_lams[:, j], lams[:, j]])
        beta = jnp.concatenate([jnp.broadcast_to(off, start_lams.shape[:1]), betas[:, j]])
        half = lambda strengths, size: jnp.broadcast_to(strengths[:, None] / 2, (strengths.shape[0], size))
        solved = solve(At, y, jnp.concatenate([half(lam, q), half(beta, n)], axis=1))
        means = jnp.concatenate([jnp.mean(F, axis=0), jnp.mean(G, axis=0)])
        return Fitted(solved, mean[j] - solved.z @ means)

    # As many at a time as fit in about a gigabyte, in rounds of equal size; the last repeats a few.
    together = min(TOGETHER, max(1, 2**27 // ((n + q) * n)))
    rounds = -(-d // together)
    together = -(-d // rounds)
    fitted = lax.map(output, jnp.arange(rounds * together) % d, batch_size=together)
    return jax.tree.map(lambda leaf: leaf[:d], fitted)
