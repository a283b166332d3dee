"""Proxes with piecewise constant answers: one pass finds the pieces, and the mean of each piece its value."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checks import is_traced
from sparsejax._core.linalg import apply_if, safe_divide
from sparsejax._core.pytree import movable
from sparsejax.prox._arguments import factor, one_group


def _lane_by_lane(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The function with a rule for `jax.vmap`: on a CPU it computes one lane after another.

    A batched loop would gather and scatter, since each lane is at another place of its arrays. On a CPU that
    takes a hundred times as long.
    """

    @jax.custom_batching.custom_vmap
    def one(*args: jax.Array) -> jax.Array:
        return function(*args)

    @one.def_vmap
    def rule(size: int, batched: list[bool], *args: jax.Array) -> tuple[Any, bool]:
        if jax.default_backend() != "cpu":
            return jax.vmap(function, [0 if moves else None for moves in batched])(*args), True
        lanes, with_lane = movable(args, tuple(batched))
        return lax.map(lambda own: one(*with_lane(own)), lanes), True

    return jax.jit(one)  # without jit an eager call would compile the loop every time


def sorted_l1(x: jax.Array, strengths: ArrayLike, scaling: ArrayLike = 1.0) -> jax.Array:
    r"""Prox of the sorted l1 norm :math:`g(z) = \sum_i \text{strengths}_i\,|z|_{(i)}` (SLOPE).

    :math:`|z|_{(1)} \ge |z|_{(2)} \ge \dots` are the magnitudes in decreasing order. The
    magnitudes are sorted, the strengths subtracted, adjacent violators of the order pooled, negative values
    set to 0, and order and signs restored. The derivative is that of the means of the pools: entries that
    were pooled keep equal magnitudes.

    Args:
      x: one group, floating, shape (p,).
      strengths: >= 0, not increasing, shape (p,); the first belongs to the largest magnitude.
      scaling: step size multiplying the penalty, >= 0, shape ().

    Returns:
      Shape (p,), dtype of ``x``.

    Raises:
      TypeError, ValueError: ``x`` is not floating, not 1-d or empty; strengths of another shape; scaling is
        not a scalar. Where values are known, outside jit: a strength or scaling is negative, or a strength is
        larger than the one before.
    Source: Bogdan, van den Berg, Sabatti, Su & Candes, Annals of Applied Statistics 9(3), 2015.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> print(sj.prox.sorted_l1(jnp.array([3.0, -2.75, 0.5]), jnp.array([2.0, 1.0, 0.5])))
    [ 1.375 -1.375  0.   ]
    """
    x = one_group("sorted_l1", x)
    s = factor("sorted_l1", "strengths", strengths, x, (1,)) * factor("sorted_l1", "scaling", scaling, x)
    if not is_traced(s) and (np.diff(np.asarray(s)) > 0).any():
        raise ValueError("prox.sorted_l1: strengths must not increase.")
    if s.shape != x.shape:
        raise ValueError(f"prox.sorted_l1: strengths has shape {s.shape}, x has {x.shape}.")
    # If all strengths are 0 the prox is the identity. Zero entries get x itself, since sign(x) has no
    # derivative at 0; for other entries the formula also gives the derivative in the strengths.
    return jnp.where((s[0] == 0) & (x == 0), x, jnp.sign(x) * sorted_magnitudes(jnp.abs(x), s))


def sorted_magnitudes(r: jax.Array, s: jax.Array) -> jax.Array:
    """The prox of the sorted l1 norm with strengths s at r >= 0, both (p,)."""
    order = falling_order(r)
    y = r[order] - s
    pooled = means(y, falling_pieces(lax.stop_gradient(y)))
    pooled = jnp.where(pooled <= 0, 0, pooled)  # not `maximum`, whose derivative at a tie is 1/2
    return jnp.zeros_like(r).at[order].set(pooled, unique_indices=True)


# Most entries that `falling_order` packs: their indices replace 16 of the 52 bits of the fraction of a
# float64. Of more entries, some would often agree in all bits that are left.
MAX_PACKED_SIZE = 1 << 16


@jax.jit  # without jit an eager call would compile the loop every time
def falling_order(r: jax.Array) -> jax.Array:
    """The indices (p,) that sort r >= 0 from the largest to the least; equal entries keep their order.

    XLA on a CPU sorts integers two to five times as fast as floating numbers or several arrays together. The
    bits of a number >= 0, read as an integer, sort as the number does. So the bits of an entry and its index
    are packed into one integer, with the index in place of the last bits. Entries that differ in these bits
    only may come out in the wrong order; all entries are then sorted again, as floating numbers.
    """
    r, p = jnp.abs(lax.stop_gradient(r)), len(r)
    if p > MAX_PACKED_SIZE or r.dtype.itemsize < 4 or jax.dtypes.canonicalize_dtype(np.int64) != np.int64:
        return jnp.argsort(-r)
    bits = lax.bitcast_convert_type(r, jnp.int32 if r.dtype == jnp.float32 else jnp.int64).astype(jnp.int64)
    bits = bits << 32 if r.dtype == jnp.float32 else bits
    low = jnp.int64((1 << (p - 1).bit_length()) - 1)  # the bits of an index
    packed = lax.sort((~bits & np.iinfo(np.int64).max & ~low) | jnp.arange(p), is_stable=False)
    order = packed & low
    sorted_r = r[order]
    return apply_if(jnp.any(sorted_r[:-1] < sorted_r[1:]), lambda _: jnp.argsort(-r), order)


def means(y: jax.Array, ends: jax.Array, extra: jax.Array | None = None) -> jax.Array:
    """(p,), for every entry the mean of y (and ``extra``) over the piece of the entry.

    Args:
      y: (p,).
      ends: (p,) booleans, True at the last entry of each piece.
      extra: (p,), added to y in the sums; None means 0.
    """
    first = jnp.concatenate([jnp.zeros(1, jnp.int32), ends[:-1].astype(jnp.int32)])
    labels = jnp.cumsum(first)
    add = lambda a: jax.ops.segment_sum(a, labels, y.shape[0], indices_are_sorted=True)
    return safe_divide(add(y if extra is None else y + extra), add(jnp.ones_like(y)))[labels]


class _Stack(NamedTuple):
    """The pieces of the first i entries. Fields without a shape are scalars."""

    ends: jax.Array  # (p + 2,), ends[0] = 0 and ends[j] the end of piece j, exclusive
    top: jax.Array  # number of the last piece, from 1
    high: jax.Array  # end of the last piece
    pools: jax.Array  # whether the mean of the last piece is above that of the piece before
    i: jax.Array  # number of entries in pieces


@_lane_by_lane
def falling_pieces(y: jax.Array) -> jax.Array:
    """The last entries, (p,) booleans, of the pieces of the nearest vector to y (p,) that does not increase.

    Pool adjacent violators: each entry in turn becomes a piece on a stack, and the last two pieces are joined
    as long as the mean of the last is larger. Pieces of equal mean are not joined: the derivative there is
    the one of separate pieces.
    """
    p = y.shape[0]
    sums = jnp.concatenate([jnp.zeros(1, y.dtype), jnp.cumsum(y - jnp.mean(y))])

    def mean(start: jax.Array, end: jax.Array) -> jax.Array:
        return (sums[end] - sums[start]) / jnp.maximum(end - start, 1).astype(y.dtype)

    def step(c: _Stack) -> _Stack:
        # Either join the last two pieces, whose end is that of the last, or put the next entry on the stack.
        place, end = jnp.where(c.pools, c.top - 1, c.top + 1), jnp.where(c.pools, c.high, c.i + 1)
        ends = c.ends.at[place].set(end)
        # The array is read after it is written only: XLA can then update it in place.
        begin_before, begin = ends[jnp.maximum(place - 2, 0)], ends[jnp.maximum(place - 1, 0)]
        pools = (place > 1) & (mean(begin_before, begin) < mean(begin, end))
        return _Stack(ends, place, end, pools, jnp.where(c.pools, c.i, c.i + 1))

    start = _Stack(jnp.zeros(p + 2, jnp.int32), jnp.int32(0), jnp.int32(0), jnp.zeros((), bool), jnp.int32(0))
    ends, top, *_ = lax.while_loop(lambda c: c.pools | (c.i < p), step, start)
    number = jnp.arange(p + 2, dtype=jnp.int32)
    inside = (number > 0) & (number <= top)
    return jnp.zeros(p, bool).at[jnp.where(inside, ends - 1, p)].set(True, mode="drop")


def total_variation(x: jax.Array, strength: ArrayLike, scaling: ArrayLike = 1.0) -> jax.Array:
    r"""Prox of the total variation :math:`g(z) = \text{strength}\sum_i |z_{i+1} - z_i|`, in O(p).

    The answer is piecewise constant: on a piece it is the mean of x over the piece, moved towards each
    neighbouring piece by the scaled strength / length of the piece. The derivative is taken for these pieces.

    Args:
      x: one group, floating, shape (p,).
      strength: >= 0, shape ().
      scaling: step size multiplying the penalty, >= 0, shape ().

    Returns:
      Shape (p,), dtype of ``x``.

    Raises:
      TypeError, ValueError: ``x`` is not floating, not 1-d or empty; strength or scaling is not a scalar, or
        is negative (not checked under jit).
    Source: Johnson, J. Computational and Graphical Statistics 22(2), 2013.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> print(sj.prox.total_variation(jnp.array([1.0, 2.0, 9.0, 9.0]), 1.0))
    [2.  2.  8.5 8.5]
    """
    x = one_group("total_variation", x)
    t = factor("total_variation", "strength", strength, x) * factor("total_variation", "scaling", scaling, x)
    return piecewise(x, t)


def piecewise(x: jax.Array, t: jax.Array) -> jax.Array:
    """The prox of the total variation with strength t () at x (p,)."""
    z = _taut(*lax.stop_gradient((x - jnp.mean(x), t)))
    jumps = jnp.sign(z[1:] - z[:-1])
    none = jnp.zeros(1, z.dtype)
    # On a piece the answer is the mean of x, moved by t / (length of the piece) towards each neighbour.
    pull = t * (jnp.concatenate([jumps, none]) - jnp.concatenate([none, jumps]))
    # At strength 0 the prox is the identity: each entry is a piece, also where neighbours are equal.
    return means(x, jnp.concatenate([(jumps != 0) | (t == 0), jnp.ones(1, bool)]), pull)


class _Deque(NamedTuple):
    """The linear pieces of the derivative of m_i, numbers ``left`` to ``right``; see `_taut`.

    Fields without a shape are scalars.
    """

    K: jax.Array  # (2p + 3,), k of each piece; negative if the piece was added on the left
    knots: jax.Array  # (2p + 3,), where each piece ends and the next begins
    low: jax.Array  # (p,), lower bounds of the entries so far
    high: jax.Array  # (p,), upper bounds
    left: jax.Array  # number of the first piece
    right: jax.Array  # number of the last piece
    first: tuple[jax.Array, jax.Array]  # (k, y) of the first piece
    first_knot: jax.Array  # its right end
    last: tuple[jax.Array, jax.Array]  # (k, y) of the last piece
    last_knot: jax.Array  # its left end
    i: jax.Array  # number of the next entry, from 1


@_lane_by_lane
def _taut(x: jax.Array, t: jax.Array) -> jax.Array:
    r"""The prox of the total variation with strength t () at x (p,), up to the rounding of cumulated sums.

    This is dynamic programming. Let :math:`m_i(b)` be the least cost of the first i entries if entry i + 1 is
    b, and :math:`V_i` the sum of the first i entries of x. The derivative of :math:`m_i` is piecewise linear
    and increases from -t to t. Before it is clipped to [-t, t], its piece (k, y) is
    :math:`(i - k) b - V_i + y`. Clipping removes pieces at both ends and adds the pieces (i, V_i - t) and
    (i, V_i + t). It changes the derivative for b below ``low[i]`` or above ``high[i]``; entry i lies between
    these bounds. The last entry is the b at which the derivative is 0. From there back, each entry is the
    next entry clipped to its bounds.
    """
    p, dtype = x.shape[0], x.dtype
    V = jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(x)])

    def piece(K: jax.Array, at: jax.Array) -> tuple[jax.Array, jax.Array]:
        k = jnp.abs(K[at])
        return k, V[k] + jnp.sign(K[at]).astype(dtype) * t

    def reached(piece: tuple[jax.Array, jax.Array], i: jax.Array, shift: jax.Array) -> jax.Array:
        """The b at which the piece has the value ``shift``, before the clip at entry i."""
        return (V[i] + shift - piece[1]) / (i - piece[0]).astype(dtype)

    def step(c: _Deque) -> _Deque:
        i, left, right = c.i, c.left, c.right
        # The b at which the first piece is -t and the last piece is t; after the last entry, both 0.
        shift = jnp.where(i == p, 0, t)
        a, b = reached(c.first, i, -shift), reached(c.last, i, shift)
        # A turn removes an end piece that does not reach its value, and the next turn computes a or b again;
        # one piece always stays. A turn that removes nothing takes a and b as the bounds of entry i.
        drops_left = (left < right) & (c.first_knot < a)
        drops_right = (left < right) & (c.last_knot > b) & ~(drops_left & (left + 1 >= right))
        done = ~(drops_left | drops_right)
        # Entries outside of left..right do not count: they are written before left and right change.
        K = c.K.at[left - 1].set(-i).at[right + 1].set(i)
        knots = c.knots.at[left - 1].set(a).at[right].set(b)
        left = jnp.where(done, left - 1, left + drops_left.astype(i.dtype))
        right = jnp.where(done, right + 1, right - drops_right.astype(i.dtype))
        # The arrays are read after they are written only: XLA can then update them in place.
        ends = piece(K, left), knots[left], piece(K, right), knots[right - 1]
        low, high = c.low.at[i - 1].set(a), c.high.at[i - 1].set(b)
        return _Deque(K, knots, low, high, left, right, *ends, i + done.astype(i.dtype))

    zero = jnp.int32(0), jnp.zeros((), dtype)
    start = _Deque(
        K=jnp.zeros(2 * p + 3, jnp.int32),
        knots=jnp.zeros(2 * p + 3, dtype),
        low=jnp.zeros_like(x),
        high=jnp.zeros_like(x),
        left=jnp.int32(p + 1),
        right=jnp.int32(p + 1),
        first=zero,
        first_knot=zero[1],
        last=zero,
        last_knot=zero[1],
        i=jnp.int32(1),
    )
    end = lax.while_loop(lambda c: c.i <= p, step, start)
    low, high = end.low, end.high

    def back(z: jax.Array, bound: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        z = jnp.clip(z, *bound)
        return z, z

    return lax.scan(back, low[-1], (low, high), reverse=True)[1]
