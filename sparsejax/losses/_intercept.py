"""The best intercept of a loss of a linear model: for each column alone, or for classes jointly."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import eps_of, safe_divide, safe_sqrt

MAX_COLUMN_STEPS = 100  # Newton or bisection steps; bisection alone needs about 60 in float64
MAX_CLASS_STEPS = 200  # damped Newton steps
SHORT_CLASS_STEP = 2.0**16  # in eps: a step this short ends the loop if it is not below half of the last step
FIRST_RANGE = 16.0  # range of the predictions of a row at the first temperature: softmax does not underflow


@jax.jit
def balance(loss: Any, H: jax.Array) -> jax.Array:
    """A root b of the increasing function ``loss.imbalance(b, H)``, by Newton steps kept in a bracket.

    A Newton step that leaves the bracket [low, high] of the root is replaced by bisection. ``loss`` is a
    `LinearModelLoss` and H its predictions without intercept, (n, k) or (n,); b has shape (k,) or ().
    """
    bound = loss.reach + jnp.max(jnp.abs(H), axis=0)
    eps = eps_of(H)

    def body(carry: Any) -> Any:
        b, low, high, _, n = carry
        # Shrink the bracket to the side of the root; a Newton step, or bisection if that leaves the bracket.
        value, slope = loss.imbalance(b, H)
        low, high = jnp.where(value < 0, b, low), jnp.where(value > 0, b, high)
        step = b - safe_divide(value, slope, value)  # not used where the slope is 0: see ``inside``
        inside = (slope > 0) & (step > low) & (step < high)
        new = jnp.where(value == 0, b, jnp.where(inside, step, (low + high) / 2))
        return new, low, high, jnp.abs(new - b) > 2 * eps * (1 + jnp.abs(b)), n + 1

    def cond(carry: Any) -> jax.Array:
        return jnp.any(carry[3]) & (carry[4] < MAX_COLUMN_STEPS)

    start = (jnp.zeros_like(bound), -bound, bound, jnp.ones(bound.shape, bool), jnp.int32(0))
    return lax.while_loop(cond, body, start)[0]


def best_intercept(loss: Any, H: jax.Array) -> jax.Array:
    """The root b of `balance`, improved by one Newton step; derivatives by the implicit function theorem.

    H is (n, k) or (n,), and b (k,) or (). Derivatives of every order exist, also in arrays that a class of
    the user closes over.
    """

    def root(_: Any, start: jax.Array) -> jax.Array:
        b = balance(loss, H)
        return b - safe_divide(*loss.imbalance(b, H))

    def over_slope(product: Any, y: jax.Array) -> jax.Array:  # each column has an equation of its own
        return safe_divide(y, product(jnp.ones_like(y)))

    b: jax.Array = lax.custom_root(lambda b: loss.imbalance(b, H)[0], jnp.zeros_like(H[0]), root, over_slope)
    return b


class Classes(NamedTuple):
    """The problem of the intercepts of a softmax: minimise ``sum_i w_i logsumexp(h_i + b) - <counts, b>``."""

    H: jax.Array  # (n, k), predictions without intercept
    w: jax.Array  # (n,), weights of the rows
    counts: jax.Array  # (k,), sum over rows of w_i y_i: the weight of each class

    @property
    def present(self) -> jax.Array:
        """The classes with a weight > 0, (k,); the best intercept of another class is minus infinity."""
        return self.counts > 0

    def imbalance(self, b: jax.Array, temperature: jax.Array | float = 1.0) -> tuple[jax.Array, jax.Array]:
        """Gradient (k,) of the objective with ``T logsumexp((h_i + b)/T)``, and a matrix (k, k) >= Hessian.

        T is the temperature. The gradient is projected on the intercepts whose sum is 0.
        """
        P = jax.nn.softmax(jnp.where(self.present[None], (self.H + b[None]) / temperature, -jnp.inf), axis=1)
        P = jnp.where(jnp.any(self.present), P, 0)  # without any class the softmax is NaN
        return self.imbalance_of(self.w @ P, P.T @ (self.w[:, None] * P) / temperature)

    def imbalance_of(self, mass: jax.Array, products: jax.Array) -> tuple[jax.Array, jax.Array]:
        """`imbalance` at probabilities P (n, k).

        The Hessian is written as the Laplacian of a graph of classes, so that nothing cancels. The Hessian is
        singular: equal shifts of all intercepts change nothing. The matrix returned adds ``counts counts'``
        divided by the sum of counts, which makes the matrix regular and changes only the mean of a step; and
        a ridge of the order of rounding errors, 1 for a class that is absent.

        Args:
          mass: w'P, (k,).
          products: P' diag(w) P divided by the temperature, (k, k).
        """
        off = products * (1 - jnp.eye(mass.shape[0], dtype=mass.dtype))
        total = jnp.sum(self.counts)
        constant = self.counts[:, None] * safe_divide(self.counts, total)[None]
        ridge = jnp.where(self.present, eps_of(mass) * total, 1)
        return self.centred(mass - self.counts), jnp.diag(jnp.sum(off, axis=1) + ridge) - off + constant

    def centred(self, b: jax.Array) -> jax.Array:
        """b shifted so that it sums to 0 over the classes that are present, and 0 for the others."""
        mean = safe_divide(jnp.sum(jnp.where(self.present, b, 0)), jnp.sum(self.present.astype(b.dtype)))
        return jnp.where(self.present, b - mean, 0)

    def step(self, S: jax.Array) -> jax.Array:
        """A damped Newton step (k,) of the intercepts at probabilities P; S = diag(sqrt(w)) P, (n, k)."""
        gradient, matrix = self.imbalance_of(safe_sqrt(self.w) @ S, S.T @ S)
        return damped(self.centred(jnp.linalg.solve(matrix, -gradient)), eps_of(S))[0]


def damped(step: jax.Array, eps: float, temperature: jax.Array | float = 1.0) -> tuple[jax.Array, jax.Array]:
    """The damped step, see `balance_classes`; and the range of the undamped step / temperature, ()."""
    length = (jnp.max(step) - jnp.min(step)) / temperature
    return jnp.where(length > eps, jnp.log1p(length) / jnp.where(length > eps, length, 1), 1) * step, length


@jax.jit
def balance_classes(classes: Classes) -> jax.Array:
    r"""The intercepts (k,), with the sum 0, that minimise the objective of `Classes`, by damped Newton steps.

    A step is multiplied by :math:`\log(1 + \delta)/\delta`, :math:`\delta` the range of its entries. Such a
    step lowers the objective at every point, and near the minimum it is the whole Newton step: the third
    cumulant of a variable in an interval is at most the length of the interval times the variance, which
    makes the objective generalised self-concordant (Sun & Tran-Dinh, Mathematical Programming 178, 2019).
    The curvature underflows where predictions differ by hundreds. So predictions are first divided by a
    temperature, which falls to 1 in the course of the steps.

    Rounding can leave a gradient larger than the stopping rule allows: where all rows have the same
    predictions, as at W = 0, the rounding errors of their probabilities are equal and add up. So short steps
    that no longer shrink end the loop too.
    """
    H, w, present = classes.H, classes.w, classes.present
    b = jnp.where(present, jnp.log(jnp.where(present, classes.counts, 1)), 0)
    weighted = jnp.where(w[:, None] > 0, H, 0)
    highest = jnp.max(jnp.where(present[None], weighted, -jnp.inf), axis=1)
    lowest = jnp.min(jnp.where(present[None], weighted, jnp.inf), axis=1)
    eps, total = eps_of(H), jnp.sum(classes.counts)

    def body(carry: Any) -> Any:
        b, temperature, before, _, n = carry
        # First the damped Newton step. Then the stopping rule, at temperature 1: a gradient or a step of the
        # order of rounding errors, or a short step that has not halved. Then cooling, if the step was short.
        gradient, matrix = classes.imbalance(b, temperature)
        step = classes.centred(jnp.linalg.solve(matrix, -gradient))
        step, length = damped(step, eps, temperature)
        b = b + step
        size = 1 + jnp.max(jnp.abs(b))
        last = (jnp.max(jnp.abs(gradient)) <= 4 * eps * total) | (length <= 4 * eps * size)
        last |= (length <= SHORT_CLASS_STEP * eps * size) & (length >= before / 2)
        last &= temperature <= 1
        temperature = jnp.where(length <= 1, jnp.maximum(temperature / 2, 1), temperature)
        return b, temperature, length, ~last & jnp.isfinite(length), n + 1

    hot, before = jnp.maximum(jnp.max(highest - lowest) / FIRST_RANGE, 1), jnp.full((), jnp.inf, b.dtype)
    start = classes.centred(b), hot, before, jnp.ones((), bool), jnp.int32(0)
    return lax.while_loop(lambda c: c[3] & (c[4] < MAX_CLASS_STEPS), body, start)[0]


@jax.custom_jvp
def best_intercepts(classes: Classes) -> jax.Array:
    """`balance_classes`, with derivatives of every order by the implicit function theorem."""
    return balance_classes(classes)


@best_intercepts.defjvp
def _(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    (classes,) = primals
    b = best_intercepts(classes)
    (_, matrix), (change, _) = jax.jvp(lambda classes: classes.imbalance(b), primals, tangents)
    return b, classes.centred(jnp.linalg.solve(matrix, -change))
