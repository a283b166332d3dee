"""The best intercept of a loss of a linear model, of each column or of classes that compete."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import eps_of, safe_divide

STEPS = 200  # of Newton for classes, at most
COOLING = 16.0  # what the range of predictions is divided by, for the heat to begin with


@jax.jit
def balance(loss: Any, H: jax.Array) -> jax.Array:
    """A root b of the increasing function ``loss.imbalance(b, H)``, by Newton with a bisection safeguard."""
    bound = loss.reach + jnp.max(jnp.abs(H), axis=0)
    eps = eps_of(H)

    def body(carry: Any) -> Any:
        b, low, high, _, n = carry
        value, slope = loss.imbalance(b, H)
        low, high = jnp.where(value < 0, b, low), jnp.where(value > 0, b, high)
        step = b - safe_divide(value, slope, value)
        inside = (slope > 0) & (step > low) & (step < high)
        new = jnp.where(value == 0, b, jnp.where(inside, step, (low + high) / 2))
        return new, low, high, jnp.abs(new - b) > 2 * eps * (1 + jnp.abs(b)), n + 1

    def cond(carry: Any) -> jax.Array:
        return jnp.any(carry[3]) & (carry[4] < 100)

    start = (jnp.zeros_like(bound), -bound, bound, jnp.ones(bound.shape, bool), jnp.int32(0))
    return lax.while_loop(cond, body, start)[0]


class Classes(NamedTuple):
    """The intercepts of classes that compete: minimise ``sum_i w_i logsumexp(h_i + b) - <counts, b>``."""

    H: jax.Array  # (n, k)
    w: jax.Array  # (n,)
    counts: jax.Array  # (k,), the weight of each class

    @property
    def present(self) -> jax.Array:
        """The classes that have a weight, (k,): the others have their minimum at minus infinity."""
        return self.counts > 0

    def imbalance(self, b: jax.Array, heat: jax.Array | float = 1.0) -> tuple[jax.Array, jax.Array]:
        """The gradient of the above for ``heat * logsumexp((h_i + b)/heat)``, and a matrix to solve with.

        The gradient is that for b whose sum is fixed. The matrix is the Hessian, written as the Laplacian of
        a graph of classes, in which nothing cancels, and what makes it regular: a constant, and a ridge of
        the order of rounding errors.
        """
        P = jax.nn.softmax(jnp.where(self.present[None], (self.H + b[None]) / heat, -jnp.inf), axis=1)
        P = jnp.where(jnp.any(self.present), P, 0)
        mass = self.w @ P
        off = P.T @ (self.w[:, None] * P) / heat * (1 - jnp.eye(b.shape[0], dtype=b.dtype))
        total = jnp.sum(self.counts)
        constant = self.counts[:, None] * safe_divide(self.counts, total)[None]
        ridge = jnp.where(self.present, eps_of(b) * total, 1)
        return self.centred(mass - self.counts), jnp.diag(jnp.sum(off, axis=1) + ridge) - off + constant

    def centred(self, b: jax.Array) -> jax.Array:
        """With the sum 0 over the classes that are present, and 0 elsewhere."""
        mean = safe_divide(jnp.sum(jnp.where(self.present, b, 0)), jnp.sum(self.present.astype(b.dtype)))
        return jnp.where(self.present, b - mean, 0)

    def newton(self, b: jax.Array) -> jax.Array:
        """b again, with the derivative that the minimiser has: that of one more step from there."""
        gradient, matrix = self.imbalance(b)
        step = self.centred(jnp.linalg.solve(lax.stop_gradient(matrix), -gradient))
        return b + (step - lax.stop_gradient(step))


@jax.jit
def balance_classes(classes: Classes) -> jax.Array:
    r"""The intercepts (k,) with the sum 0, by damped Newton.

    With :math:`\delta` the range of the entries of the step, :math:`\log(1 + \delta)/\delta` of it lowers the
    sum at every point (the third cumulant of what is in an interval is at most its length times the
    variance; Sun & Tran-Dinh, Mathematical Programming 178, 2019), and near the minimum that is the whole
    step. Predictions of the order of hundreds, whose curvature underflows, are first divided by a heat that
    falls to 1.
    """
    H, w, present = classes.H, classes.w, classes.present
    b = jnp.where(present, jnp.log(jnp.where(present, classes.counts, 1)), 0)
    spread = jnp.where(w[:, None] > 0, H, 0)
    highest = jnp.max(jnp.where(present[None], spread, -jnp.inf), axis=1)
    lowest = jnp.min(jnp.where(present[None], spread, jnp.inf), axis=1)
    eps, total = eps_of(H), jnp.sum(classes.counts)

    def body(carry: Any) -> Any:
        b, heat, _, n = carry
        gradient, matrix = classes.imbalance(b, heat)
        step = classes.centred(jnp.linalg.solve(matrix, -gradient))
        length = (jnp.max(step) - jnp.min(step)) / heat
        b = b + jnp.where(length > eps, jnp.log1p(length) / jnp.where(length > eps, length, 1), 1) * step
        last = (heat <= 1) & (
            (jnp.max(jnp.abs(gradient)) <= 4 * eps * total) | (length <= 4 * eps * (1 + jnp.max(jnp.abs(b))))
        )
        heat = jnp.where(length <= 1, jnp.maximum(heat / 2, 1), heat)
        return b, heat, ~last & jnp.isfinite(length), n + 1

    start = (
        classes.centred(b),
        jnp.maximum(jnp.max(highest - lowest) / COOLING, 1),
        jnp.ones((), bool),
        jnp.int32(0),
    )
    return lax.while_loop(lambda c: c[2] & (c[3] < STEPS), body, start)[0]
