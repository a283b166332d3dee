r"""The exclusive group lasso over views of the labels, on the transpose W' (k, d): value, prox, subgradients.

.. math:: g(W) = \tfrac12 \sum_i s_i \sum_v \Big( \sum_{g \in v} \|w_{i,g}\|_2 \Big)^2 ,

where every view v is a partition of the k labels. The prox of one view is the prox of the exclusive lasso on
the norms of the groups. For several views no closed form is known (to apply the proxes in turn does not give
it); Dykstra's algorithm computes the prox.
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

VIEW_CYCLES = 1000  # largest number of cycles of Dykstra's algorithm
MAX_CG_STEPS = 1000  # conjugate gradient steps for the derivative of the joint prox

Views = tuple[Groups, ...]
Parts = tuple[jax.Array, ...]


def view_norms(view: Groups, Wt: jax.Array) -> jax.Array:
    """(G, d), the norms of the groups of labels in every row of W; derivative 0 where they are 0."""
    # A matrix product, since on a CPU a segment sum adds one entry after another.
    member = jax.nn.one_hot(view.sorted_group_ids, view.num_groups, dtype=Wt.dtype, axis=0)
    squares = jnp.matmul(member, Wt * Wt, precision=lax.Precision.HIGHEST)
    return safe_sqrt(squares)


def views_value(views: Views, strength: jax.Array, Wt: jax.Array) -> jax.Array:
    """g(W), shape ()."""
    sums = [jnp.sum(view_norms(view, Wt), axis=0) for view in views]
    return 0.5 * jnp.sum(strength * sum(s * s for s in sums))


def views_support(views: Views, Wt: jax.Array) -> jax.Array:
    """(k, d) bool: the entries whose groups are zero in no view."""
    on = jnp.ones(Wt.shape, bool)
    for view in views:
        on &= (view_norms(view, Wt) != 0)[view.sorted_group_ids]
    return on


def view_slopes(view: Groups, strength: jax.Array, Wt: jax.Array) -> jax.Array:
    """(k, d): factors by which Wt is multiplied to give the gradient of one view; 0 in zero groups."""
    norms = view_norms(view, Wt)
    total = strength * jnp.sum(norms, axis=0)
    return safe_divide(total[None], norms)[view.sorted_group_ids]


def view_columns(
    view: Groups, strength: jax.Array, Vt: jax.Array, theta: jax.Array, rough: bool
) -> tuple[jax.Array, jax.Array]:
    """The prox of one view, and the thresholds (d,); ``theta`` and ``rough`` as `exclusive_l21_columns`."""
    norms = view_norms(view, Vt)
    shrunk, theta = exclusive_l21_columns(norms, jnp.zeros((), Vt.dtype), strength / 2, theta, rough)
    factor = jnp.where(jnp.isnan(norms), norms, safe_divide(shrunk, norms))
    return Vt * factor[view.sorted_group_ids], theta


class _Cycle(NamedTuple):
    points: Parts  # (k, d) each, the point after the prox of each view
    parts: Parts  # (k, d) each, the correction of each view
    thetas: Parts  # (d,) each, thresholds, from which the next prox of each view starts
    moving: jax.Array  # () boolean: the last cycle changed the point
    n: jax.Array  # () int32, cycles so far


@jax.jit  # without jit an eager call would compile the loop every time
def dykstra(
    views: Views, strength: jax.Array, X: jax.Array, parts: Parts, cycles: jax.Array
) -> tuple[Parts, Parts]:
    """The prox of all views at ``X + sum(parts)``: a point for each view, and the parts at the end.

    Dykstra's algorithm is coordinate descent on the parts, so that it converges from any start. X, points and
    parts are transposes, (k, d). ``cycles``, (), is the largest number of cycles.
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
    """The prox of all views, (k, d), at Vt (k, d): the point of the last view at the end of `dykstra`.

    A group that is zero in the point of another view is set to zero.
    """
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
    # On the support (I + H) dW = dV - c, with H the Hessian of g at W and c the change of grad g(W) with s.
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
        return conjugate_gradients(matvec, b, lambda r: r, 4 * eps, MAX_CG_STEPS)[0]

    return Wt, lax.custom_linear_solve(matvec, mask * (dV - moved), solve, symmetric=True)


def views_split(
    views: Views,
    strength: jax.Array,
    Zt: jax.Array,
    Wt: jax.Array,
    guess: Parts | None = None,
    cycles: int = VIEW_CYCLES,
) -> Parts:
    """Parts with the sum Z, one (k, d) for each view; W and Z are transposed, (k, d).

    If Z is a subgradient of g at W, each part is a subgradient of its view. In a group that is not zero the
    part is the gradient of the view. In a zero group it comes from ``guess``, or without a guess from
    Dykstra's algorithm: for a subgradient Z, ``W = prox(W + tZ, t)``, and the algorithm splits tZ. The
    difference between Z and the sum is then shared out as in `_settle`.
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
    """Parts that are gradients in groups that are not zero, else the guess, corrected to have the sum Z.

    For each entry the correction is shared equally by the views in which the group of the entry is zero, or
    by all views if the group is zero in none.
    """
    on = [views_support((view,), Wt) for view in views]
    parts = [
        jnp.where(there, view_slopes(view, strength, Wt) * Wt, part)
        for view, there, part in zip(views, on, guess, strict=True)
    ]
    free = reduce(jnp.add, [(~there).astype(Zt.dtype) for there in on])
    share = (Zt - sum(parts)) / jnp.where(free > 0, free, len(parts))
    return tuple(
        part + jnp.where(there & (free > 0), 0, share) for part, there in zip(parts, on, strict=True)
    )
