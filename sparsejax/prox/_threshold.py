"""Scalar thresholds, one a column: the Newton iteration that finds them and the sums that it needs.

All of them cut a column x at a level theta, found from sums over the entries of |x| above it. The unknown is
delta = max|x| - theta, and the entries above are those of r = (delta - below)_+ with below = max|x| - |x|:
so nothing cancels where theta is close to max|x|.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.linalg import eps_of

MAX_PASSES = 200  # of the iteration; 4 to 8 are usual
ROUGH = 0.1
UNROLL = 64  # entries a column up to which a reduction over them is written out

# From delta: the Newton step, and in which columns it may be taken from there.
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
    """The delta of every column, in [least, top], by a Newton iteration that falls to it from above.

    From ``top`` the steps must fall without passing the root. A ``guess`` is tried first: from wherever in
    (0, top] the step is usable it must land at the root or above; any other guess counts as ``top``.
    Columns that are not ``alive`` are not waited for. The steps end where rounding begins, or if ``rough``
    where no column moves by more than `ROUGH` of its delta, which leaves an error of its square.
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
        # Monotone until rounding: the first step that does not shrink delta is the last. It is
        # taken all the same, since it repairs what the long step before it lost to cancellation.
        moving = usable & (new < delta * (1 - 4 * eps_of(delta)))
        new = jnp.where(usable, jnp.clip(new, least, top), jnp.where(landing, top, delta))
        if rough:
            moving = alive & (jnp.abs(new - delta) > ROUGH * delta)
        else:
            moving = jnp.where(landing, alive, moving)
        return new, moving, n + 1

    return lax.while_loop(cond, body, (first, alive, jnp.int32(0)))[0]


def moments(delta: jax.Array, below: jax.Array) -> Moments:
    """Sum, sum of squares and number of the positive entries r of delta - below, column by column.

    One pass over the matrix. Written out for the usual few entries a column, because XLA on a CPU
    takes up to 20 times as long for three separate reductions along a short leading axis, and
    about twice as long for one reduction with three results (which is what long columns get).
    """

    def add(x: Moments, y: Moments) -> Moments:
        return x[0] + y[0], x[1] + y[1], x[2] + y[2]

    def powers(r: jax.Array) -> Moments:
        return r, r * r, (r > 0).astype(r.dtype)

    if below.shape[0] <= UNROLL:
        return functools.reduce(add, [powers(jnp.maximum(delta - row, 0)) for row in below])
    zero = jnp.zeros((), below.dtype)
    a1, n2, count = lax.reduce(powers(jnp.maximum(delta[None] - below, 0)), (zero,) * 3, add, (0,))
    return a1, n2, count


def sum_squares(x: jax.Array) -> jax.Array:
    """Of every column; written out for short columns for the same reason."""
    return functools.reduce(jnp.add, list(x * x)) if x.shape[0] <= UNROLL else jnp.sum(x * x, axis=0)
