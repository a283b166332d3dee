"""A scalar threshold theta for each column of a matrix: the Newton iteration, and the sums that it needs.

An equation for theta has sums over the entries of |x| above theta. The unknown is delta = max|x| - theta. An
entry exceeds theta by r = delta - below if this is > 0, with below = max|x| - |x|. In this form nothing
cancels where theta is close to max|x|.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.linalg import eps_of

MAX_PASSES = 200  # Newton steps; 4 to 8 are usual
ROUGH_CHANGE = 0.1  # with ``rough`` the iteration ends when delta changes by less than this share
MAX_UNROLLED = 64  # entries of a column up to which a reduction is written out as separate operations

# delta -> the next delta by Newton's method, and a boolean for each column: whether the step is usable.
Step = Callable[[jax.Array], tuple[jax.Array, jax.Array]]

Moments = tuple[jax.Array, jax.Array, jax.Array]


def newton(
    step: Step,
    top: jax.Array,
    alive: jax.Array,
    *,
    least: ArrayLike = 0.0,
    guess: jax.Array | None = None,
    rough: bool = False,
) -> jax.Array:
    """The root delta of every column, in [least, top], by a Newton iteration that decreases to the root.

    From ``top`` the steps must decrease and stay above the root. A ``guess`` in (0, top] is tried first: a
    usable step from the guess must land at the root or above, and if that step is not usable, the iteration
    starts from ``top``. Any other guess counts as ``top``. The loop does not wait for columns that are not
    ``alive``; their steps must not be usable. The loop ends when no delta decreases by more than rounding; if
    ``rough``, when no delta changes by more than `ROUGH_CHANGE` of itself. The relative error is then of the
    order of `ROUGH_CHANGE` squared.
    """
    first = top if guess is None else jnp.where((guess > 0) & (guess <= top), guess, top)
    Carry = tuple[jax.Array, jax.Array, jax.Array]

    def cond(carry: Carry) -> jax.Array:
        _, moving, n = carry
        return jnp.any(moving) & (n < MAX_PASSES)

    def body(carry: Carry) -> Carry:
        delta, _, n = carry
        landing = (n == 0) & (guess is not None)
        new, usable = step(delta)
        # Steps are monotone up to rounding: the first step that does not decrease delta is the last. It is
        # taken, since it corrects the cancellation in the long step before it.
        moving = usable & (new < delta * (1 - 4 * eps_of(delta)))
        new = jnp.where(usable, jnp.clip(new, least, top), jnp.where(landing, top, delta))
        if rough:
            # After an unusable guess the iteration has only arrived at ``top``: no step has been taken.
            moving = alive & ((jnp.abs(new - delta) > ROUGH_CHANGE * delta) | (landing & ~usable))
        else:
            moving = jnp.where(landing, alive, moving)
        return new, moving, n + 1

    return lax.while_loop(cond, body, (first, alive, jnp.int32(0)))[0]


def moments(delta: jax.Array, below: jax.Array) -> Moments:
    """Sum, sum of squares and number of the positive entries r of delta - below, for each column.

    One pass over the matrix. For short columns the reduction is written out: on a CPU XLA takes up to 20
    times as long for three reductions along a short leading axis, and about twice as long for one reduction
    with three results, which is used for long columns.
    """

    def add(x: Moments, y: Moments) -> Moments:
        return x[0] + y[0], x[1] + y[1], x[2] + y[2]

    def powers(r: jax.Array) -> Moments:
        return r, r * r, (r > 0).astype(r.dtype)

    if below.shape[0] <= MAX_UNROLLED:
        return functools.reduce(add, [powers(jnp.maximum(delta - row, 0)) for row in below])
    zero = jnp.zeros((), below.dtype)
    a1, n2, count = lax.reduce(powers(jnp.maximum(delta[None] - below, 0)), (zero,) * 3, add, (0,))
    return a1, n2, count


def sum_squares(x: jax.Array) -> jax.Array:
    """The sum of squares of every column, written out for short columns as in `moments`."""
    return functools.reduce(jnp.add, list(x * x)) if x.shape[0] <= MAX_UNROLLED else jnp.sum(x * x, axis=0)
