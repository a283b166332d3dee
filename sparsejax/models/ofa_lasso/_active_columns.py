r"""Weighted lassos in 2n kernel columns: a working set, solved exactly, and a duality gap in all columns.

.. math:: \min_z \|y - Az\|^2 + 2\sum_i \ell_i |z_i|

Kernel columns are nearly collinear, which first-order methods pay for with thousands of steps, but few are
active. So a bucket of m columns, the active ones and those that violate their limit most, is solved on its
m x m Gram matrix by `_homotopy.follow`; one product with A' then certifies the answer, or names the
columns that the bucket lacks. A round costs one product with A' and one Gram matrix of the bucket; from a
neighbouring problem's solution two rounds are usual.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsejax.models.ofa_lasso._certificate import FULL, RUNNING, Lasso, certify, judge, lengths_of
from sparsejax.models.ofa_lasso._homotopy import Active, follow, proximal, renew
from sparsejax.solution import CONVERGED

PATIENCE = 30  # rounds without the gap halved: where n columns are active the proximal steps take a dozen


class _Round(NamedTuple):
    bucket: jax.Array  # (m,) int32 columns
    active: Active  # in the bucket
    c: jax.Array  # (p,), A'(y - Az)
    limit: jax.Array  # (p,), of the last solved problem
    objective: jax.Array
    gap: jax.Array
    best: jax.Array  # smallest gap so far
    waited: jax.Array  # int32 rounds since it was last halved
    num_iters: jax.Array  # int32
    status: jax.Array  # int32


class Along:
    """Solutions for limits (p,) after limits, each from the one before.

    Args:
      At: (p, n), the transpose of A, every row of mean 0.
      y: (n,), of mean 0.
      limit: those that come first; > 0, half the strengths.
      tol: on the relative gap.
      maxiter: rounds for each of the limits.
      bucket: columns solved together, at most p.
    """

    def __init__(
        self, At: jax.Array, y: jax.Array, limit: jax.Array, tol: jax.Array, maxiter: jax.Array, bucket: int
    ):
        self.At, self.y, self.tol, self.maxiter = At, y, tol, maxiter
        self.lengths = lengths_of(At)
        zero, c = jnp.zeros(bucket, y.dtype), At @ y
        self.start = _Round(
            bucket=jnp.arange(bucket, dtype=jnp.int32),
            active=Active(zero, zero, jnp.zeros((bucket, bucket), y.dtype)),
            c=c,
            limit=jnp.maximum(limit, jnp.max(jnp.abs(c) / limit) * limit),
            objective=jnp.sum(y * y),
            gap=jnp.full((), jnp.inf, y.dtype),
            best=jnp.full((), jnp.inf, y.dtype),
            waited=jnp.int32(0),
            num_iters=jnp.int32(0),
            status=jnp.int32(RUNNING),
        )

    def step(self, state: Any, limit: jax.Array) -> tuple[Any, Lasso]:
        """The next state and the solution."""
        # What did not converge, a NaN above all, is no start for the next.
        usable = state.status == CONVERGED
        state = jax.tree.map(lambda a, b: jnp.where(usable, a, b), state, self.start)
        state = _solve(self.At, self.y, limit, self.lengths, state, self.tol, self.maxiter)
        z = jnp.zeros(self.At.shape[0], self.y.dtype).at[state.bucket].set(state.active.z)
        return state, Lasso(z, state.objective, state.gap, state.num_iters, state.status)


def _solve(
    At: jax.Array,
    y: jax.Array,
    limit: jax.Array,
    lengths: jax.Array,
    state: _Round,
    tol: jax.Array,
    maxiter: jax.Array,
) -> _Round:
    p, m = At.shape[0], state.bucket.shape[0]

    def judged(state: _Round, residual: jax.Array) -> _Round:
        """The state with its certificate, and whether to go on."""
        certificate = certify(y, residual, state.c, limit, lengths, state.active.z, state.bucket)
        halved = certificate.gap <= state.best / 2
        waited = jnp.where(halved, 0, state.waited + 1)
        crowded = (m < p) & (8 * jnp.count_nonzero(state.active.sign) > 7 * m)
        otherwise = jnp.where(crowded, FULL, RUNNING)
        return state._replace(
            objective=certificate.objective,
            gap=certificate.gap,
            best=jnp.where(halved, certificate.gap, state.best),
            waited=waited,
            status=judge(certificate, state.num_iters, tol, maxiter, waited >= PATIENCE, otherwise),
        )

    def body(state: _Round) -> _Round:
        bucket = _refill(state, limit)
        rows = At[bucket]
        H = proximal(rows @ rows.T)
        active = _refresh(H, state.active, state.c[bucket])
        active, _ = follow(H, limit[bucket], state.limit[bucket], state.c[bucket], active, 20 * m)
        residual = y - active.z @ rows
        state = state._replace(
            bucket=bucket, active=active, c=At @ residual, limit=limit, num_iters=state.num_iters + 1
        )
        return judged(state, residual)

    infinite = jnp.full((), jnp.inf, y.dtype)
    state = state._replace(best=infinite, waited=jnp.int32(0), num_iters=jnp.int32(0))
    residual = y - state.active.z @ At[state.bucket]
    return lax.while_loop(lambda s: s.status == RUNNING, body, judged(state, residual))


def _refill(state: _Round, limit: jax.Array) -> jax.Array:
    """The bucket with its active columns where they are, and the worst violators in the other places."""
    m = state.bucket.shape[0]
    active = state.active.sign != 0
    score = jnp.abs(state.c) / limit
    # Out of reach for those that are in already.
    score = score.at[jnp.where(active, state.bucket, limit.shape[0])].set(-1, mode="drop")
    worst = lax.top_k(score, m)[1].astype(jnp.int32)
    place = jnp.cumsum(~active, dtype=jnp.int32) - 1
    return jnp.where(active, state.bucket, worst[place])


def _refresh(H: jax.Array, active: Active, c: jax.Array) -> Active:
    """With the inverse computed anew where rounding has spoilt it: where H times it times c is not c."""
    on = active.sign != 0
    c = jnp.where(on, c, 0)
    again = jnp.where(on, H @ (active.inverse @ c), 0)
    wrong = ~(jnp.max(jnp.abs(again - c)) <= np.finfo(H.dtype).eps ** 0.5 * jnp.max(jnp.abs(c)))
    return active._replace(inverse=renew(H, on, active.inverse, wrong))
