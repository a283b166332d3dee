r"""Weighted lassos in p kernel columns by a working set that is solved exactly.

.. math:: \min_z \|y - Az\|^2 + 2\sum_i \ell_i |z_i|

Kernel columns are nearly collinear, so that first-order methods take thousands of steps, but few columns are
active. A working set (bucket) has m columns: the active ones, and those that violate their limit most.
`_homotopy.follow` solves the lasso in these columns on their m x m Gram matrix. A product with A' then gives
the duality gap in all columns, or the columns that violate their limits next. A round costs one product with
A' and one Gram matrix; from the solution of a neighbouring problem two rounds are usual.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsejax.models.ofa_lasso._certificate import FULL, RUNNING, Lasso, certify, judge, lengths_of
from sparsejax.models.ofa_lasso._homotopy import Active, follow, proximal, renew
from sparsejax.solution import CONVERGED

MAX_WAIT_ROUNDS = 30  # a solve stalls after so many rounds that do not halve the gap; a dozen are normal


class _Round(NamedTuple):
    bucket: jax.Array  # (m,) int32, the columns of the working set
    active: Active  # the solution in the working set
    c: jax.Array  # (p,), A'(y - Az)
    limit: jax.Array  # (p,), limits of the problem solved last
    objective: jax.Array  # ()
    gap: jax.Array  # (), relative duality gap
    best: jax.Array  # (), the gap when it was last halved
    waited: jax.Array  # () int32, rounds since the gap was last halved
    num_iters: jax.Array  # () int32, rounds for this problem
    status: jax.Array  # () int32


class LassoPath:
    """A path of solutions for a sequence of limits (p,), each started from the one before.

    Args:
      At: (p, n), the transpose of A, every row of mean 0.
      y: (n,), of mean 0.
      limit: the first limits of the path, > 0: half the strengths.
      tol: bound on the relative gap.
      maxiter: largest number of rounds for each problem.
      bucket: m, the number of columns in the working set, at most p.
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
            # z = 0 is the solution for these limits, at or above ``limit`` and proportional to it.
            limit=jnp.maximum(limit, jnp.max(jnp.abs(c) / limit) * limit),
            objective=jnp.sum(y * y),
            gap=jnp.full((), jnp.inf, y.dtype),
            best=jnp.full((), jnp.inf, y.dtype),
            waited=jnp.int32(0),
            num_iters=jnp.int32(0),
            status=jnp.int32(RUNNING),
        )

    def step(self, state: Any, limit: jax.Array) -> tuple[Any, Lasso]:
        """The next state, and the solution for ``limit`` (p,)."""
        # A state that has not converged, or has a NaN, is replaced by the first state.
        usable = state.status == CONVERGED
        state = jax.tree.map(lambda a, b: jnp.where(usable, a, b), state, self.start)
        infinite = jnp.full((), jnp.inf, self.y.dtype)
        state = state._replace(best=infinite, waited=jnp.int32(0), num_iters=jnp.int32(0))
        residual = self.y - state.active.z @ self.At[state.bucket]
        state = lax.while_loop(
            lambda s: s.status == RUNNING,
            lambda s: self._round(s, limit),
            self._judged(state, limit, residual),
        )
        z = jnp.zeros(self.At.shape[0], self.y.dtype).at[state.bucket].set(state.active.z)
        return state, Lasso(z, state.objective, state.gap, state.num_iters, state.status)

    def _round(self, state: _Round, limit: jax.Array) -> _Round:
        bucket = _refill(state, limit)
        rows = self.At[bucket]
        H = proximal(rows @ rows.T)
        active = _refresh(H, state.active, state.c[bucket])
        steps = 20 * len(bucket)
        active = follow(H, limit[bucket], state.limit[bucket], state.c[bucket], active, steps)
        residual = self.y - active.z @ rows
        state = state._replace(
            bucket=bucket, active=active, c=self.At @ residual, limit=limit, num_iters=state.num_iters + 1
        )
        return self._judged(state, limit, residual)

    def _judged(self, state: _Round, limit: jax.Array, residual: jax.Array) -> _Round:
        """The state with the certificate and the status of its solution."""
        z, p, m = state.active.z, len(limit), len(state.bucket)
        certificate = certify(self.y, residual, state.c, limit, self.lengths, z, state.bucket)
        halved = certificate.gap <= state.best / 2
        waited = jnp.where(halved, 0, state.waited + 1)
        # With more than 7/8 of the columns active the working set has too few places for violators.
        crowded = (m < p) & (8 * jnp.count_nonzero(state.active.sign) > 7 * m)
        otherwise, stalled = jnp.where(crowded, FULL, RUNNING), waited >= MAX_WAIT_ROUNDS
        return state._replace(
            objective=certificate.objective,
            gap=certificate.gap,
            best=jnp.where(halved, certificate.gap, state.best),
            waited=waited,
            status=judge(certificate, state.num_iters, self.tol, self.maxiter, stalled, otherwise),
        )


def _refill(state: _Round, limit: jax.Array) -> jax.Array:
    """The new working set: active columns stay in their places, the worst violators fill all others."""
    m = state.bucket.shape[0]
    active = state.active.sign != 0
    score = jnp.abs(state.c) / limit
    # Active columns are in the set already: the score -1 keeps them from being chosen again.
    score = score.at[jnp.where(active, state.bucket, limit.shape[0])].set(-1, mode="drop")
    worst = lax.top_k(score, m)[1].astype(jnp.int32)
    place = jnp.cumsum(~active, dtype=jnp.int32) - 1
    return jnp.where(active, state.bucket, worst[place])


def _refresh(H: jax.Array, active: Active, c: jax.Array) -> Active:
    """``active`` with its inverse recomputed if it is inaccurate: if H (inverse c) differs from c."""
    on = active.sign != 0
    c = jnp.where(on, c, 0)
    again = jnp.where(on, H @ (active.inverse @ c), 0)
    wrong = ~(jnp.max(jnp.abs(again - c)) <= np.finfo(H.dtype).eps ** 0.5 * jnp.max(jnp.abs(c)))
    return active._replace(inverse=renew(H, on, active.inverse, wrong))
