"""ADMM for the weighted lassos: with two blocks and a fixed parameter mu, and as the paper prints it.

The objective is ``||y - Az||^2 + 2 sum_i limit_i |z_i|``, with y (n,); the argument ``At`` is A', (p, n).
The gap of `_certificate` judges a solution.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax.models.ofa_lasso._certificate import RUNNING, Lasso, certify, judge, lengths_of
from sparsejax.prox import soft_threshold

CHECK_EVERY = 25  # steps between two certificates
PRINTED_TOL = 1e-7  # tolerance of the printed stopping rule

State = TypeVar("State")


def admm(
    At: jax.Array, y: jax.Array, limit: jax.Array, tol: jax.Array, maxiter: jax.Array, mu: jax.Array
) -> Lasso:
    r"""ADMM with two blocks, z by least squares and p by shrinkage; it converges for every mu > 0.

    .. math:: z = (2A^\top A + \mu I)^{-1} b
              = \tfrac1\mu\bigl(b - A^\top(\tfrac\mu2 I + AA^\top)^{-1} A b\bigr),
              \quad b = 2A^\top y + \mu p + Z

    then :math:`p = S_{2\ell/\mu}[z - Z/\mu]` and :math:`Z \mathrel{+}= \mu(p - z)`: one Cholesky
    factorisation, n x n.
    """
    n = y.shape[0]
    factor = jnp.linalg.cholesky(At.T @ At + mu / 2 * jnp.eye(n, dtype=y.dtype))
    Aty = 2 * (At @ y)

    def step(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        p, Z = state
        b = Aty + mu * p + Z
        z = (b - At @ jax.scipy.linalg.cho_solve((factor, True), b @ At)) / mu
        p = soft_threshold(z - Z / mu, 2 * limit / mu)
        return p, Z + mu * (p - z)

    zero = jnp.zeros_like(limit)
    never = lambda state: jnp.zeros((), bool)
    return _run(At, y, limit, (zero, zero), step, lambda s: s[0], never, CHECK_EVERY, tol, maxiter)


def printed(
    At: jax.Array,
    split: int,
    y: jax.Array,
    limit: jax.Array,
    tol: jax.Array,
    maxiter: jax.Array,
    mu: jax.Array,
    growth: jax.Array,
) -> Lasso:
    """Algorithm 1 of the paper, with its stopping rule: u, v, p, q in turn; mu grows by ``growth`` each step.

    The inverses are computed from an eigendecomposition of each block, ``At[:split]`` and ``At[split:]``.
    """
    Kt, Gt = At[:split], At[split:]
    (values_u, basis_u), (values_v, basis_v) = (jnp.linalg.eigh(2 * (B @ B.T)) for B in (Kt, Gt))
    KtG, Kty, Gty = 2 * (Kt @ Gt.T), 2 * (Kt @ y), 2 * (Gt @ y)
    limit_p, limit_q = 2 * limit[:split], 2 * limit[split:]

    def step(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        # Z and Q are the multipliers of p = u and q = v.
        _, v, p, q, Z, Q, mu = state
        u = basis_u @ ((basis_u.T @ (Kty - KtG @ v + mu * p + Z)) / (values_u + mu))
        v = basis_v @ ((basis_v.T @ (Gty - KtG.T @ u + mu * q + Q)) / (values_v + mu))
        p, q = soft_threshold(u - Z / mu, limit_p / mu), soft_threshold(v - Q / mu, limit_q / mu)
        return u, v, p, q, Z + mu * (p - u), Q + mu * (q - v), mu * growth

    def ended(state: tuple[jax.Array, ...]) -> jax.Array:
        u, v, p, q = state[:4]
        return _near(p, u) & _near(q, v)

    zero_u, zero_v = jnp.zeros_like(limit_p), jnp.zeros_like(limit_q)
    state: tuple[jax.Array, ...] = (zero_u, zero_v, zero_u, zero_v, zero_u, zero_v, mu)
    answer = lambda s: jnp.concatenate([s[2], s[3]])
    return _run(At, y, limit, state, step, answer, ended, 1, tol, maxiter)


def _near(a: jax.Array, b: jax.Array) -> jax.Array:
    """Whether ``||a - b||^2`` is at most `PRINTED_TOL` times the larger of ``||a||^2`` and ``||b||^2``."""
    return jnp.sum((a - b) ** 2) <= PRINTED_TOL * jnp.maximum(jnp.sum(a * a), jnp.sum(b * b))


def _run(
    At: jax.Array,
    y: jax.Array,
    limit: jax.Array,
    state: State,
    step: Callable[[State], State],
    answer: Callable[[State], jax.Array],
    ended: Callable[[State], jax.Array],
    every: int,
    tol: jax.Array,
    maxiter: jax.Array,
) -> Lasso:
    """Iterate until the gap, computed after ``every`` steps, or the rule of the algorithm ends the loop."""
    lengths = lengths_of(At)

    def judged(state: State, k: jax.Array, over: jax.Array) -> Lasso:
        z = answer(state)
        residual = y - z @ At
        certificate = certify(y, residual, At @ residual, limit, lengths, z)
        return Lasso(z, *certificate[:2], k, judge(certificate, k, tol, maxiter, over))

    def body(carry: tuple[State, Lasso]) -> tuple[State, Lasso]:
        state, out = carry
        count = jnp.minimum(every, maxiter - out.num_iters)
        state = lax.fori_loop(0, count, lambda _, s: step(s), state)
        return state, judged(state, out.num_iters + count, ended(state))

    start = state, judged(state, jnp.int32(0), jnp.zeros((), bool))
    end: tuple[State, Lasso] = lax.while_loop(lambda carry: carry[1].status == RUNNING, body, start)
    return end[1]
