"""Minimise a quadratic with a given Hessian plus a penalty, by ADMM."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import columns, eps_of, like, norm, tiny_of
from sparsejax._core.tiles import inverse_root
from sparsejax.penalties import Penalty, prox_columns, prox_start
from sparsejax.solvers._admm import RELAXATION, RESIDUAL_RATIO

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
      damping: (); mu is ``damping`` times ``unit``.
      least: (); ``unit`` is a bound of the largest eigenvalue of H, or ``least`` if that is larger.
    """

    def __init__(
        self, hessian: jax.Array, gradient: jax.Array, W: jax.Array, damping: jax.Array, least: jax.Array
    ):
        self.W, self.at, self.gradient = W, columns(W), columns(gradient)
        self.hessian, self.shape = hessian, (hessian.shape[0], hessian.shape[2])
        self.root = hessian.shape[1] < hessian.shape[2]
        # A'A and AA' have the same eigenvalues, but for zeros.
        self.squares = jnp.einsum("bij,bkj->bik", hessian, hessian) if self.root else hessian
        self.trace = jnp.einsum("bii->", self.squares)
        # The norm of all entries of a block is at least its largest eigenvalue.
        self.largest = jnp.sqrt(jnp.max(jnp.sum(self.squares**2, axis=(1, 2))))
        self.unit = jnp.maximum(self.largest, least)
        self.mu = damping * self.unit

    def _times(self, V: jax.Array) -> jax.Array:
        """``hessian`` times V (b, r), by block."""
        return jnp.einsum("bij,bj->bi", self.hessian, V)

    def _transposed_times(self, V: jax.Array) -> jax.Array:
        """The transpose of ``hessian`` times V, by block."""
        return jnp.einsum("bij,bi->bj", self.hessian, V)

    def slope(self, Vt: jax.Array) -> jax.Array:
        """The gradient of the quadratic at V."""
        D = Vt - self.at
        product = self._times(D.reshape(self.shape))
        product = self._transposed_times(product) if self.root else product
        return self.gradient + product.reshape(D.shape) + self.mu * D

    def factor(self, shift: jax.Array) -> jax.Array:
        """The inverse of the Cholesky factor, by block, of H + shift I; with a root, of AA' + shift I."""
        # One block is factorised without `jax.vmap`: folds that are solved in threads would wait for one
        # another in a program that factorises a batch.
        if len(self.squares) == 1:
            return inverse_root(self.squares[0], shift)[None]
        return jax.vmap(inverse_root, (0, None))(self.squares, shift)

    def inverse(self, Rt: jax.Array, factor: jax.Array, shift: jax.Array) -> jax.Array:
        """``(H + shift I)^-1 R``; with a root by Woodbury's identity."""
        R = Rt.reshape(self.shape)
        inner = jnp.einsum("bij,bj->bi", factor, self._times(R) if self.root else R)
        inner = jnp.einsum("bij,bi->bj", factor, inner)
        found = (R - self._transposed_times(inner)) / shift if self.root else inner
        return found.reshape(Rt.shape)

    def solve(self, penalty: Penalty, start: Answer, wanted: jax.Array) -> Answer:
        """Minimise the quadratic plus the penalty, until a subgradient has a norm of at most ``wanted``.

        The answer may be less accurate: the iterations end after `MAX_CHECKS` evaluations of this norm.
        """
        mean = self.trace / self.W.size + self.mu  # the mean eigenvalue of H + mu I, the first rho
        rho = jnp.where(start.rho > 0, start.rho, jnp.where(mean > 0, mean, self.unit))
        Z = columns(start.W)
        V = Z + columns(start.subgradient) / rho

        def iterate(factor: jax.Array, s: State) -> State:
            # (H + (mu + rho) I) (point - W) = rho (2Z - V - W) - G: solved for the change from W, since an
            # equation for the point itself would cancel with a small rho.
            change = s.rho * (2 * s.Z - s.V - self.at) - self.gradient
            point = self.at + self.inverse(change, factor, self.mu + s.rho)
            V = s.V + RELAXATION * (point - s.Z)
            Z, warm = prox_columns(penalty, V, 1 / s.rho, s.warm, self.W)
            return s._replace(Z=Z, V=V, old=(s.Z, s.V), warm=warm)

        def checked(s: State) -> State:
            factor = self.factor(self.mu + s.rho)
            return self.balanced(lax.fori_loop(0, ITERATIONS_PER_CHECK, lambda _, s: iterate(factor, s), s))

        infinite, warm = jnp.full((), jnp.inf, V.dtype), prox_start(penalty, like(V, self.W))
        end = lax.while_loop(
            lambda s: ~(s.residual <= wanted) & (s.checks < MAX_CHECKS),
            checked,
            State(Z, V, (Z, V), warm, rho, infinite, jnp.int32(0)),
        )
        return Answer(like(end.Z, self.W), like(end.rho * (end.V - end.Z), self.W), end.rho)

    def balanced(self, s: State) -> State:
        """The state with the residual evaluated and with rho balanced, as in `admm`."""
        U, (Z, V) = s.V - s.Z, s.old
        # The primal residual W - Z, with the last W from the update of V, is relative to |Z|, and the dual
        # residual, the change of Z, to |U|.
        parts = jnp.stack([Z + (s.V - V) / RELAXATION - s.Z, s.Z, s.Z - Z, U])
        primal, size, dual, dual_size = jnp.maximum(jnp.sqrt(jnp.sum(parts * parts, axis=(1, 2))), tiny_of(V))
        ratio = RESIDUAL_RATIO * (primal / size) * (dual_size / dual)
        factor = jnp.clip(jnp.sqrt(ratio), 0.1, 10.0)  # rho changes by a factor of 10 at most
        # Bound rho: the ratio of two rounding errors is arbitrary, and with a shift below the rounding errors
        # of H there may be no Cholesky factor.
        least, most = self.shape[1] * eps_of(V) * self.unit, self.unit / eps_of(V)
        factor = jnp.clip(s.rho * factor, jnp.minimum(s.rho, least), jnp.maximum(s.rho, most)) / s.rho
        residual = norm(self.slope(s.Z) + s.rho * U)  # rho U is a subgradient of the penalty at Z
        # The subgradient rho U stays the same.
        return s._replace(V=s.Z + U / factor, rho=s.rho * factor, residual=residual, checks=s.checks + 1)
