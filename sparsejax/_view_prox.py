r"""The exclusive group lasso over views of the labels, on the columns W' (k, d): value, prox, subgradients.

.. math:: g(W) = \tfrac12 \sum_i s_i \sum_v \Big( \sum_{g \in v} \|w_{i,g}\|_2 \Big)^2 ,

every view v a partition of the k labels. The prox of one view is that of the exclusive lasso on the norms of
the groups. For several no closed form is known (one prox after the other is wrong); Dykstra's algorithm
finds it.
Strengths s, () or (d,), include the step size.
"""

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._linalg import conjugate_gradients
from sparsejax.groups import Groups
from sparsejax.prox import exclusive_l21_columns

CYCLES = 1000  # of Dykstra's algorithm, at most
PASSES = 2  # Newton steps in the prox of a view within them; each cycle starts from the last

Views = tuple[Groups, ...]
Parts = tuple[jax.Array, ...]


def group_of(view: Groups) -> jax.Array:
    """(k,), the group of each label of a partition."""
    return view.sorted_group_ids


def group_norms(view: Groups, Wt: jax.Array) -> jax.Array:
    """(G, d), the norms of the groups of labels in every row of W; derivative 0 where they are 0."""
    # As a product: on a CPU a segment sum adds entry by entry.
    member = jax.nn.one_hot(group_of(view), view.num_groups, dtype=Wt.dtype, axis=0)
    squares = jnp.matmul(member, Wt * Wt, precision=lax.Precision.HIGHEST)
    return jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)


def value(views: Views, strength: jax.Array, Wt: jax.Array) -> jax.Array:
    """g(W), shape ()."""
    sums = [jnp.sum(group_norms(view, Wt), axis=0) for view in views]
    return 0.5 * jnp.sum(strength * sum(s * s for s in sums))


def support(views: Views, Wt: jax.Array) -> jax.Array:
    """(k, d) bool: where the groups of all views are not zero."""
    on = jnp.ones(Wt.shape, bool)
    for view in views:
        on &= (group_norms(view, Wt) > 0)[group_of(view)]
    return on


def slopes(view: Groups, strength: jax.Array, Wt: jax.Array) -> jax.Array:
    """(k, d): the gradient of one view is W' times these where its groups are not zero; 0 elsewhere."""
    norms = group_norms(view, Wt)
    total = strength * jnp.sum(norms, axis=0)
    return jnp.where(norms > 0, total[None] / jnp.where(norms > 0, norms, 1), 0)[group_of(view)]


def shrink(view: Groups, strength: jax.Array, Vt: jax.Array, theta: jax.Array, passes: int | None):
    """The prox of one view, and the thresholds (d,); ``theta`` and ``passes`` as `exclusive_l21_columns`."""
    norms = group_norms(view, Vt)
    shrunk, theta = exclusive_l21_columns(norms, jnp.zeros((), Vt.dtype), strength / 2, theta, passes)
    return Vt * (shrunk / jnp.where(norms > 0, norms, 1))[group_of(view)], theta


@jax.jit  # eagerly, the loop would be compiled anew every time
def dykstra(
    views: Views, strength: jax.Array, X: jax.Array, parts: Parts, cycles: jax.Array
) -> tuple[Parts, Parts]:
    """The prox of all views at ``X + sum(parts)``: a point of each view, and the parts.

    Dykstra's algorithm is coordinate descent on the parts, so any start is right.
    """
    size = jnp.max(jnp.abs(X + sum(parts)))

    def cycle(carry):
        points, parts, thetas, _, n = carry
        X, new = points[-1], []
        for view, part, theta in zip(views, parts, thetas, strict=True):
            Y = X + part
            X, new_theta = shrink(view, strength, Y, theta, PASSES)
            new.append((X, Y - X, new_theta))
        change = jnp.max(jnp.abs(X - points[-1]))
        return *zip(*new, strict=True), change > 2 * jnp.finfo(X.dtype).eps * size, n + 1

    K = len(views)
    thetas = (jnp.zeros(X.shape[1:], X.dtype),) * K
    carry = ((X,) * K, parts, thetas, jnp.ones((), bool), jnp.int32(0))
    points, parts, *_ = lax.while_loop(lambda c: c[3] & (c[4] < cycles), cycle, carry)
    return points, parts


@jax.custom_jvp
def joint_prox(views: Views, strength: jax.Array, Vt: jax.Array) -> jax.Array:
    """The prox of all views: the last view's point, zero where a group of any other view's point is."""
    points, _ = dykstra(views, strength, Vt, (jnp.zeros_like(Vt),) * len(views), jnp.int32(CYCLES))
    *others, Wt = points
    for view, other in zip(views, others, strict=False):
        Wt = jnp.where(support((view,), other), Wt, 0)
    return Wt


@joint_prox.defjvp
def _joint_prox_jvp(primals, tangents):
    # On the support: (I + H) dW = dV - d(grad g) at fixed W, H the Hessian of g.
    (views, strength, _), (_, dstrength, dV) = primals, tangents
    Wt = joint_prox(*primals)
    mask = support(views, Wt).astype(Wt.dtype)
    slope = lambda strength, Wt: jax.grad(value, argnums=2)(views, strength, Wt)
    moved = jax.jvp(lambda strength: slope(strength, Wt), (strength,), (dstrength,))[1]
    _, hessian = jax.linearize(lambda Wt: slope(strength, Wt), Wt)
    eps = float(jnp.finfo(Wt.dtype).eps)
    solve = lambda matvec, b: conjugate_gradients(matvec, b, lambda r: r, 4 * eps, 1000)
    matvec = lambda D: D + mask * hessian(mask * D)
    return Wt, lax.custom_linear_solve(matvec, mask * (dV - moved), solve, symmetric=True)


def split(
    views: Views,
    strength: jax.Array,
    Zt: jax.Array,
    Wt: jax.Array,
    guess: Parts | None = None,
    cycles: int = CYCLES,
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
        t = jnp.where(some, wanted / jnp.where(size > 0, size, 1), 1)
        start = tuple(t * part for part in parts)
        _, found = dykstra(views, t * strength, Wt, start, jnp.where(some, cycles, 0))
        parts = _settle(views, strength, Zt, Wt, tuple(part / t for part in found))
    return parts


def _settle(views, strength, Zt, Wt, guess):
    """The gradients in groups that are not zero, the guess elsewhere; what is missing there, evenly."""
    on = [support((view,), Wt) for view in views]
    parts = [
        jnp.where(there, slopes(view, strength, Wt) * Wt, part)
        for view, there, part in zip(views, on, guess, strict=True)
    ]
    free = sum((~there).astype(Zt.dtype) for there in on)
    rest = (Zt - sum(parts)) / jnp.where(free > 0, free, len(parts))
    return tuple(part + jnp.where(there & (free > 0), 0, rest) for part, there in zip(parts, on, strict=True))
