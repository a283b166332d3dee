"""The paper's solver of its weighted lassos: two blocks and a fixed penalty parameter, and as printed.

For ``||y - Az||^2 + 2 sum_i limit_i |z_i|`` as in `_working_set`, whose gap judges both.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax.models.ofa_lasso._working_set import RUNNING, Lasso, certify
from sparsejax.problem import CONVERGED, MAX_ITER, NON_FINITE, STALLED

CHECK_EVERY = 25
DELTA = 1e-7  # of the printed stopping rule


def admm(At: jax.Array, y: jax.Array, limit: jax.Array, tol, maxiter, mu) -> Lasso:
    r"""z (least squares) and p (shrinkage) in turn; converges for every mu > 0.

    .. math:: z = (2A^\top A + \mu I)^{-1} b
              = \tfrac1\mu\bigl(b - A^\top(\tfrac\mu2 I + AA^\top)^{-1} A b\bigr),
              \quad b = 2A^\top y + \mu p + Z

    then :math:`p = S_{2\ell/\mu}[z - Z/\mu]` and :math:`Z \mathrel{+}= \mu(p - z)`: one Cholesky
    factorisation, n x n.
    """
    n = y.shape[0]
    factor = jnp.linalg.cholesky(At.T @ At + mu / 2 * jnp.eye(n, dtype=y.dtype))
    Aty = 2 * (At @ y)

    def step(state):
        p, Z = state
        b = Aty + mu * p + Z
        z = (b - At @ jax.scipy.linalg.cho_solve((factor, True), b @ At)) / mu
        p = _shrink(z - Z / mu, 2 * limit / mu)
        return p, Z + mu * (p - z)

    zero = jnp.zeros_like(limit)
    never = lambda old, new: jnp.zeros((), bool)
    return _run(At, y, limit, (zero, zero), step, never, CHECK_EVERY, tol, maxiter)


def printed(At: jax.Array, split: int, y: jax.Array, limit: jax.Array, tol, maxiter, mu, growth) -> Lasso:
    """Algorithm 1: u, v, p, q one after the other, mu multiplied by ``growth`` every time; the printed stop.

    Its inverses are taken from one eigendecomposition of each block, ``At[:split]`` and ``At[split:]``.
    """
    Kt, Gt = At[:split], At[split:]
    (values_u, basis_u), (values_v, basis_v) = (jnp.linalg.eigh(2 * (B @ B.T)) for B in (Kt, Gt))
    KtG, Kty, Gty = 2 * (Kt @ Gt.T), 2 * (Kt @ y), 2 * (Gt @ y)
    limit_p, limit_q = 2 * limit[:split], 2 * limit[split:]

    def step(state):
        _, v, p, q, Z, Q, mu = state
        u = basis_u @ ((basis_u.T @ (Kty - KtG @ v + mu * p + Z)) / (values_u + mu))
        v = basis_v @ ((basis_v.T @ (Gty - KtG.T @ u + mu * q + Q)) / (values_v + mu))
        p, q = _shrink(u - Z / mu, limit_p / mu), _shrink(v - Q / mu, limit_q / mu)
        return u, v, p, q, Z + mu * (p - u), Q + mu * (q - v), mu * growth

    def ended(old, new):
        del old
        u, v, p, q = new[:4]
        near = lambda a, b: jnp.sum((a - b) ** 2) <= DELTA * jnp.maximum(jnp.sum(a * a), jnp.sum(b * b))
        return near(p, u) & near(q, v)

    zero_u, zero_v = jnp.zeros_like(limit_p), jnp.zeros_like(limit_q)
    state = (zero_u, zero_v, zero_u, zero_v, zero_u, zero_v, jnp.asarray(mu, y.dtype))
    answer = lambda s: jnp.concatenate([s[2], s[3]])
    return _run(At, y, limit, state, step, ended, 1, tol, maxiter, answer)


def _shrink(x, threshold):
    return jnp.sign(x) * jnp.maximum(jnp.abs(x) - threshold, 0)


def _run(
    At: jax.Array,
    y: jax.Array,
    limit: jax.Array,
    state: Any,
    step: Callable[[Any], Any],
    ended: Callable[[Any, Any], jax.Array],
    every: int,
    tol,
    maxiter,
    answer: Callable[[Any], jax.Array] = lambda state: state[0],
) -> Lasso:
    """Steps until the gap meets tol (looked at ``every`` so many), or the algorithm's own rule ends it."""

    def judge(state, k, over):
        z = answer(state)
        residual = y - z @ At
        c = At @ residual
        objective, gap = certify(y, residual, c, z, c, limit, limit)
        status = jnp.where(k < maxiter, RUNNING, MAX_ITER)
        status = jnp.where(over, STALLED, status)
        status = jnp.where(gap <= tol, CONVERGED, status)
        finite = jnp.isfinite(objective) & jnp.isfinite(gap)
        status = jnp.where(finite, status, NON_FINITE).astype(jnp.int32)
        return Lasso(z, objective, gap, k, status)

    def body(carry):
        state, out = carry
        count = jnp.minimum(every, maxiter - out.num_iters)
        new = lax.fori_loop(0, count, lambda _, s: step(s), state)
        return new, judge(new, out.num_iters + count, ended(state, new))

    start = judge(state, jnp.int32(0), jnp.zeros((), bool))
    return lax.while_loop(lambda carry: carry[1].status == RUNNING, body, (state, start))[1]
