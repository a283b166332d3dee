"""Minimise a quadratic with a given Hessian plus a penalty, by ADMM."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import columns, eps_of, like, norm, tiny_of
from sparsejax.penalties import Penalty, prox_columns, prox_start

RELAXATION, RESIDUAL_RATIO = 1.6, 0.3  # same as in `admm`
ITERATIONS_PER_CHECK = 10  # iterations between two evaluations of the residual; each balances rho
MAX_CHECKS = 100  # evaluations of the residual after which the loop ends


class Answer(NamedTuple):
    """The answer of a quadratic problem."""

    W: jax.Array  # (d, k) or (d,), a prox point, with exact zeros
    subgradient: jax.Array  # shape of W, a subgradient of the penalty at W
    rho: jax.Array  # (), the last rho


class State(NamedTuple):
    """State of the iteration, on transposes (k, d)."""

    Z: jax.Array  # (k, d), the last prox point
    V: jax.Array  # (k, d), Z = prox(V)
    old: tuple[jax.Array, jax.Array]  # Z and V one iteration before
    warm: Any  # state that the prox passes to its next call
    rho: jax.Array  # ()
    residual: jax.Array  # (), at the last check; inf before the first
    checks: jax.Array  # (), number of checks so far


class Quadratic:
    r"""The function :math:`\langle G, V - W\rangle + \tfrac12\langle V - W, (H + \mu I)(V - W)\rangle` of V.

    Args:
      hessian: as `sparsejax.losses.hessian` returns it: H in blocks (b, r, r), or roots A (b, n, r) of blocks
        A'A with n < r.
      gradient: G, like W.
      W: (d, k) or (d,).
      damping: (); mu is ``damping`` times the largest eigenvalue of H, which counts as ``least`` at least.
      least: ().
    """

    def __init__(
        self, hessian: jax.Array, gradient: jax.Array, W: jax.Array, damping: jax.Array, least: jax.Array
    ):
        self.W, self.at, self.gradient = W, columns(W), columns(gradient)
        self.shape = hessian.shape[0], hessian.shape[2]
        self.root = hessian.shape[1] < hessian.shape[2]
        squares = jnp.einsum("bij,bkj->bik", hessian, hessian) if self.root else hessian
        values, vectors = jnp.linalg.eigh(squares, symmetrize_input=False)
        # Eigenvectors as rows. With a root A they are A'v, v an eigenvector of AA': their length is the
        # square root of the eigenvalue.
        self.basis = jnp.einsum("bij,bik->bjk", vectors, hessian) if self.root else vectors.swapaxes(1, 2)
        self.values = jnp.maximum(values, 0)
        self.largest = jnp.max(self.values)
        self.unit = jnp.maximum(self.largest, least)
        self.mu = damping * self.unit

    def rotated(self, Vt: jax.Array) -> jax.Array:
        """Coordinates of V in the basis, by block."""
        return jnp.einsum("bij,bj->bi", self.basis, Vt.reshape(self.shape))

    def back(self, coordinates: jax.Array) -> jax.Array:
        """V' (k, d) with these coordinates."""
        return jnp.einsum("bij,bi->bj", self.basis, coordinates).reshape(self.at.shape)

    def slope(self, Vt: jax.Array) -> jax.Array:
        """The gradient of the quadratic at V."""
        D = Vt - self.at
        coordinates = self.rotated(D)
        product = self.back(coordinates if self.root else self.values * coordinates)
        return self.gradient + product + self.mu * D

    def inverse(self, Rt: jax.Array, shift: jax.Array) -> jax.Array:
        """``(H + shift I)^-1 R``; with a root by Woodbury's identity."""
        coordinates = self.rotated(Rt) / (self.values + shift)
        return (Rt - self.back(coordinates)) / shift if self.root else self.back(coordinates)

    def solve(self, penalty: Penalty, start: Answer, wanted: jax.Array) -> Answer:
        """Minimise the quadratic plus the penalty, until a subgradient of the sum has norm ``wanted``."""
        mean = jnp.sum(self.values) / self.W.size + self.mu
        rho = jnp.where(start.rho > 0, start.rho, jnp.where(mean > 0, mean, self.unit))
        Z = columns(start.W)
        V = Z + columns(start.subgradient) / rho

        def iterate(_: Any, s: State) -> State:
            # The equations are for the change from W: with a small rho, other forms cancel.
            change = s.rho * (2 * s.Z - s.V - self.at) - self.gradient
            point = self.at + self.inverse(change, self.mu + s.rho)
            V = s.V + RELAXATION * (point - s.Z)
            Z, warm = prox_columns(penalty, V, 1 / s.rho, s.warm, self.W)
            return s._replace(Z=Z, V=V, old=(s.Z, s.V), warm=warm)

        infinite, warm = jnp.full((), jnp.inf, V.dtype), prox_start(penalty, like(V, self.W))
        end = lax.while_loop(
            lambda s: ~(s.residual <= wanted) & (s.checks < MAX_CHECKS),
            lambda s: self.balanced(lax.fori_loop(0, ITERATIONS_PER_CHECK, iterate, s)),
            State(Z, V, (Z, V), warm, rho, infinite, jnp.int32(0)),
        )
        return Answer(like(end.Z, self.W), like(end.rho * (end.V - end.Z), self.W), end.rho)

    def balanced(self, s: State) -> State:
        """The state with the residual evaluated and with rho balanced, as in `admm`."""
        U, (Z, V) = s.V - s.Z, s.old
        parts = jnp.stack([Z + (s.V - V) / RELAXATION - s.Z, s.Z, s.Z - Z, U])
        primal, at, dual, dual_at = jnp.maximum(jnp.sqrt(jnp.sum(parts * parts, axis=(1, 2))), tiny_of(V))
        by = jnp.clip(jnp.sqrt(RESIDUAL_RATIO * (primal / at) * (dual_at / dual)), 0.1, 10.0)
        # If both residuals are rounding errors their ratio is arbitrary: bound rho.
        least, most = eps_of(V) * self.unit, self.unit / eps_of(V)
        by = jnp.clip(s.rho * by, jnp.minimum(s.rho, least), jnp.maximum(s.rho, most)) / s.rho
        residual = norm(self.slope(s.Z) + s.rho * U)
        return s._replace(V=s.Z + U / by, rho=s.rho * by, residual=residual, checks=s.checks + 1)
