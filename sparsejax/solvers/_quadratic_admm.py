"""A quadratic given by its Hessian, plus a penalty, by ADMM."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import columns, eps_of, like, norm, tiny_of
from sparsejax.penalties import Penalty, prox_columns, prox_start

RELAX, BALANCE = 1.6, 0.3  # as of `admm`
CHECK = 10  # iterations between two looks at the residual; rho is balanced then
LOOKS = 100  # at most


class Answer(NamedTuple):
    """Of a quadratic problem."""

    W: jax.Array  # a prox point, with exact zeros
    subgradient: jax.Array  # of the penalty there
    rho: jax.Array  # the last


class State(NamedTuple):
    """What is iterated, on transposes, and what is known since the last look."""

    Z: jax.Array
    V: jax.Array
    old: tuple[jax.Array, jax.Array]  # Z and V an iteration before
    warm: Any
    rho: jax.Array
    residual: jax.Array
    looks: jax.Array


class Quadratic:
    r""":math:`\langle G, V - W\rangle + \tfrac12\langle V - W, (H + \mu I)(V - W)\rangle` of V.

    ``hessian`` is that of `sparsejax.losses.QuadraticModel`: H in blocks, or the roots A of blocks A'A
    where these have fewer rows than columns. Its largest eigenvalue, at least ``least``, times ``damping`` is
    mu.
    """

    def __init__(
        self, hessian: jax.Array, gradient: jax.Array, W: jax.Array, damping: jax.Array, least: jax.Array
    ):
        self.W, self.at, self.gradient = W, columns(W), columns(gradient)
        self.shape = hessian.shape[0], hessian.shape[2]
        self.root = hessian.shape[1] < hessian.shape[2]
        squares = jnp.einsum("bij,bkj->bik", hessian, hessian) if self.root else hessian
        values, vectors = jnp.linalg.eigh(squares, symmetrize_input=False)
        # Eigenvectors as rows; of a root they are as long as the roots of their eigenvalues.
        self.basis = jnp.einsum("bij,bik->bjk", vectors, hessian) if self.root else vectors.swapaxes(1, 2)
        self.values = jnp.maximum(values, 0)
        self.largest = jnp.max(self.values)
        self.unit = jnp.maximum(self.largest, least)
        self.mu = damping * self.unit

    def rotated(self, Vt: jax.Array) -> jax.Array:
        return jnp.einsum("bij,bj->bi", self.basis, Vt.reshape(self.shape))

    def back(self, coordinates: jax.Array) -> jax.Array:
        return jnp.einsum("bij,bi->bj", self.basis, coordinates).reshape(self.at.shape)

    def slope(self, Vt: jax.Array) -> jax.Array:
        """The gradient at V."""
        D = Vt - self.at
        coordinates = self.rotated(D)
        product = self.back(coordinates if self.root else self.values * coordinates)
        return self.gradient + product + self.mu * D

    def inverse(self, Rt: jax.Array, shift: jax.Array) -> jax.Array:
        """``(H + shift I)^-1 R``, of a root by Woodbury's identity."""
        coordinates = self.rotated(Rt) / (self.values + shift)
        return (Rt - self.back(coordinates)) / shift if self.root else self.back(coordinates)

    def solve(self, penalty: Penalty, start: Answer, wanted: jax.Array) -> Answer:
        """The minimiser with the penalty, until the norm of a subgradient of it all is ``wanted``."""
        mean = jnp.sum(self.values) / self.W.size + self.mu
        rho = jnp.where(start.rho > 0, start.rho, jnp.where(mean > 0, mean, self.unit))
        Z = columns(start.W)
        V = Z + columns(start.subgradient) / rho

        def iterate(_: Any, s: State) -> State:
            # In the change from W, so that nothing cancels where rho is small.
            change = s.rho * (2 * s.Z - s.V - self.at) - self.gradient
            point = self.at + self.inverse(change, self.mu + s.rho)
            V = s.V + RELAX * (point - s.Z)
            Z, warm = prox_columns(penalty, V, 1 / s.rho, s.warm, self.W)
            return s._replace(Z=Z, V=V, old=(s.Z, s.V), warm=warm)

        infinite, warm = jnp.full((), jnp.inf, V.dtype), prox_start(penalty, like(V, self.W))
        end = lax.while_loop(
            lambda s: ~(s.residual <= wanted) & (s.looks < LOOKS),
            lambda s: self.balanced(lax.fori_loop(0, CHECK, iterate, s)),
            State(Z, V, (Z, V), warm, rho, infinite, jnp.int32(0)),
        )
        return Answer(like(end.Z, self.W), like(end.rho * (end.V - end.Z), self.W), end.rho)

    def balanced(self, s: State) -> State:
        """The residual, and rho between the relative primal and dual one, as `admm` does."""
        U, (Z, V) = s.V - s.Z, s.old
        parts = jnp.stack([Z + (s.V - V) / RELAX - s.Z, s.Z, s.Z - Z, U])
        primal, at, dual, dual_at = jnp.maximum(jnp.sqrt(jnp.sum(parts * parts, axis=(1, 2))), tiny_of(V))
        by = jnp.clip(jnp.sqrt(BALANCE * (primal / at) * (dual_at / dual)), 0.1, 10.0)
        # Where both residuals are rounding errors rho would run away.
        least, most = eps_of(V) * self.unit, self.unit / eps_of(V)
        by = jnp.clip(s.rho * by, jnp.minimum(s.rho, least), jnp.maximum(s.rho, most)) / s.rho
        residual = norm(self.slope(s.Z) + s.rho * U)
        return s._replace(V=s.Z + U / by, rho=s.rho * by, residual=residual, looks=s.looks + 1)
