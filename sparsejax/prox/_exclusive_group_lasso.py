r"""The exclusive group lasso over views of the labels, on the columns W' (k, d): value, prox, subgradients.

.. math:: g(W) = \tfrac12 \sum_i s_i \sum_v \Big( \sum_{g \in v} \|w_{i,g}\|_2 \Big)^2 ,

every view v a partition of the k labels. The prox of one view is that of the exclusive lasso on the norms of
the groups. For several no closed form is known (one prox after the other is wrong); Dykstra's algorithm
finds it.
Strengths s, () or (d,), include the step size.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import conjugate_gradients, eps_of, safe_divide, safe_sqrt
from sparsejax.groups import Groups
from sparsejax.prox._squared_l1 import exclusive_l21_columns

VIEW_CYCLES = 1000  # of Dykstra's algorithm, at most

Views = tuple[Groups, ...]
Parts = tuple[jax.Array, ...]


def view_group_of(view: Groups) -> jax.Array:
    """(k,), the group of each label of a partition."""
    return view.sorted_group_ids


def view_norms(view: Groups, Wt: jax.Array) -> jax.Array:
    """(G, d), the norms of the groups of labels in every row of W; derivative 0 where they are 0."""
    # As a product: on a CPU a segment sum adds entry by entry.
    member = jax.nn.one_hot(view_group_of(view), view.num_groups, dtype=Wt.dtype, axis=0)
    squares = jnp.matmul(member, Wt * Wt, precision=lax.Precision.HIGHEST)
    return safe_sqrt(squares)


def views_value(views: Views, strength: jax.Array, Wt: jax.Array) -> jax.Array:
    """g(W), shape ()."""
    sums = [jnp.sum(view_norms(view, Wt), axis=0) for view in views]
    return 0.5 * jnp.sum(strength * sum(s * s for s in sums))


def views_support(views: Views, Wt: jax.Array) -> jax.Array:
    """(k, d) bool: where the groups of all views are not zero."""
    on = jnp.ones(Wt.shape, bool)
    for view in views:
        on &= (view_norms(view, Wt) > 0)[view_group_of(view)]
    return on


def view_slopes(view: Groups, strength: jax.Array, Wt: jax.Array) -> jax.Array:
    """(k, d): the gradient of one view is W' times these where its groups are not zero; 0 elsewhere."""
    norms = view_norms(view, Wt)
    total = strength * jnp.sum(norms, axis=0)
    return safe_divide(total[None], norms)[view_group_of(view)]


def view_columns(
    view: Groups, strength: jax.Array, Vt: jax.Array, theta: jax.Array, rough: bool
) -> tuple[jax.Array, jax.Array]:
    """The prox of one view, and the thresholds (d,); ``theta`` and ``rough`` as `exclusive_l21_columns`."""
    norms = view_norms(view, Vt)
    shrunk, theta = exclusive_l21_columns(norms, jnp.zeros((), Vt.dtype), strength / 2, theta, rough)
    return Vt * safe_divide(shrunk, norms)[view_group_of(view)], theta


class _Cycle(NamedTuple):
    points: Parts  # after the prox of each view
    parts: Parts
    thetas: Parts  # (d,) each, thresholds, from which the next prox starts
    moving: jax.Array
    n: jax.Array


@jax.jit  # eagerly, the loop would be compiled anew every time
def dykstra(
    views: Views, strength: jax.Array, X: jax.Array, parts: Parts, cycles: jax.Array
) -> tuple[Parts, Parts]:
    """The prox of all views at ``X + sum(parts)``: a point of each view, and the parts.

    Dykstra's algorithm is coordinate descent on the parts, so any start is right.
    """
    size = jnp.max(jnp.abs(X + sum(parts)))

    def cycle(c: _Cycle) -> _Cycle:
        X = c.points[-1]
        points, new_parts, thetas = [], [], []
        for view, part, theta in zip(views, c.parts, c.thetas, strict=True):
            Y = X + part
            X, new_theta = view_columns(view, strength, Y, theta, rough=True)
            points.append(X)
            new_parts.append(Y - X)
            thetas.append(new_theta)
        change = jnp.max(jnp.abs(X - c.points[-1]))
        moving = change > 2 * eps_of(X) * size
        return _Cycle(tuple(points), tuple(new_parts), tuple(thetas), moving, c.n + 1)

    K = len(views)
    thetas = (jnp.zeros(X.shape[1:], X.dtype),) * K
    start = _Cycle((X,) * K, parts, thetas, jnp.ones((), bool), jnp.int32(0))
    end = lax.while_loop(lambda c: c.moving & (c.n < cycles), cycle, start)
    return end.points, end.parts


@jax.custom_jvp
def views_joint_columns(views: Views, strength: jax.Array, Vt: jax.Array) -> jax.Array:
    """The prox of all views: the last view's point, zero where a group of any other view's point is."""
    cold = (jnp.zeros_like(Vt),) * len(views)
    points: Parts = dykstra(views, strength, Vt, cold, jnp.int32(VIEW_CYCLES))[0]
    *others, Wt = points
    for view, other in zip(views, others, strict=False):
        Wt = jnp.where(views_support((view,), other), Wt, 0)
    return Wt


@views_joint_columns.defjvp
def _joint_prox_jvp(
    primals: tuple[Views, jax.Array, jax.Array], tangents: tuple[Any, jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    # On the support: (I + H) dW = dV - d(grad g) at fixed W, H the Hessian of g.
    (views, strength, _), (_, dstrength, dV) = primals, tangents
    Wt = views_joint_columns(*primals)
    mask = views_support(views, Wt).astype(Wt.dtype)

    def slope(strength: jax.Array, Wt: jax.Array) -> jax.Array:
        return jax.grad(views_value, argnums=2)(views, strength, Wt)

    moved = jax.jvp(lambda strength: slope(strength, Wt), (strength,), (dstrength,))[1]
    _, hessian = jax.linearize(lambda Wt: slope(strength, Wt), Wt)
    eps = eps_of(Wt)

    def matvec(D: jax.Array) -> jax.Array:
        curved: jax.Array = hessian(mask * D)
        return D + mask * curved

    def solve(matvec: Callable[[jax.Array], jax.Array], b: jax.Array) -> jax.Array:
        return conjugate_gradients(matvec, b, lambda r: r, 4 * eps, 1000)[0]

    return Wt, lax.custom_linear_solve(matvec, mask * (dV - moved), solve, symmetric=True)


def views_split(
    views: Views,
    strength: jax.Array,
    Zt: jax.Array,
    Wt: jax.Array,
    guess: Parts | None = None,
    cycles: int = VIEW_CYCLES,
) -> Parts:
    """Parts of Z, one a view, that sum to it and are subgradients at W if Z is one of g.

    In groups that are not zero they are the gradients there. What is left to choose, where the groups of all
    views are zero, is taken from ``guess``; without one it is found by Dykstra's algorithm, since
    ``W = prox(W + tZ, t)`` and its parts are those of tZ.
    """
    K = len(views)
    parts = _settle(views, strength, Zt, Wt, (Zt / K,) * K if guess is None else guess)
    if guess is None:
        size, wanted = jnp.max(jnp.abs(Zt)), jnp.max(jnp.abs(Wt))
        some = (size > 0) & (wanted > 0)
        t = jnp.where(some, safe_divide(wanted, size), 1)
        start = tuple(t * part for part in parts)
        _, found = dykstra(views, t * strength, Wt, start, jnp.where(some, cycles, 0))
        parts = _settle(views, strength, Zt, Wt, tuple(part / t for part in found))
    return parts


def _settle(views: Views, strength: jax.Array, Zt: jax.Array, Wt: jax.Array, guess: Parts) -> Parts:
    """The gradients in groups that are not zero, the guess elsewhere; what is missing there, evenly."""
    on = [views_support((view,), Wt) for view in views]
    parts = [
        jnp.where(there, view_slopes(view, strength, Wt) * Wt, part)
        for view, there, part in zip(views, on, guess, strict=True)
    ]
    free = reduce(jnp.add, [(~there).astype(Zt.dtype) for there in on])
    rest = (Zt - sum(parts)) / jnp.where(free > 0, free, len(parts))
    return tuple(part + jnp.where(there & (free > 0), 0, rest) for part, there in zip(parts, on, strict=True))
