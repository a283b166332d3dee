r"""The exclusive group lasso over views of the labels, on the transpose W' (k, d): value, prox, subgradients.

.. math:: g(W) = \tfrac12 \sum_i s_i \sum_v \Big( \sum_{g \in v} \|w_{i,g}\|_2 \Big)^2 ,

where every view v is a partition of the k labels. The prox of one view is the prox of the exclusive lasso on
the norms of the groups. For several views no closed form is known: their proxes in turn do not give it.
Strengths s, () or (d,), include the step size.
"""

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import safe_divide, safe_sqrt
from sparsejax.groups import Groups
from sparsejax.prox._squared_l1 import exclusive_l21_columns

Views = tuple[Groups, ...]


def view_norms(view: Groups, Wt: jax.Array) -> jax.Array:
    """(G, d), the norms of the groups of labels in every row of W; derivative 0 where they are 0."""
    # A matrix product, since on a CPU a segment sum adds one entry after another.
    member = jax.nn.one_hot(view.sorted_group_ids, view.num_groups, dtype=Wt.dtype, axis=0)
    squares = jnp.matmul(member, Wt * Wt, precision=lax.Precision.HIGHEST)
    return safe_sqrt(squares)


def views_value(views: Views, strength: jax.Array, Wt: jax.Array) -> jax.Array:
    """g(W), shape ()."""

    def square(view: Groups) -> jax.Array:
        if view.num_groups == 1:  # has its second derivative at 0 too
            return jnp.sum(Wt * Wt, axis=0)
        return jnp.sum(view_norms(view, Wt), axis=0) ** 2

    return 0.5 * jnp.sum(strength * sum(map(square, views)))


def views_support(views: Views, Wt: jax.Array) -> jax.Array:
    """(k, d) bool: the entries whose groups are zero in no view. A view of one group has no kink at 0."""
    on = jnp.ones(Wt.shape, bool)
    for view in views:
        on &= (view_norms(view, Wt) != 0)[view.sorted_group_ids] | (view.num_groups == 1)
    return on


def view_slopes(view: Groups, strength: jax.Array, Wt: jax.Array) -> jax.Array:
    """(k, d): factors by which Wt is multiplied to give the gradient of one view; 0 in zero groups.

    In a view of one group the factor is the strength, also at 0.
    """
    norms = view_norms(view, Wt)
    total = strength * jnp.sum(norms, axis=0)
    at_zero = strength if view.num_groups == 1 else 0.0
    return safe_divide(total[None], norms, at_zero)[view.sorted_group_ids]


def view_columns(
    view: Groups, strength: jax.Array, Vt: jax.Array, theta: jax.Array, rough: bool
) -> tuple[jax.Array, jax.Array]:
    """The prox of one view, and the thresholds (d,); ``theta`` and ``rough`` as `exclusive_l21_columns`."""
    norms = view_norms(view, Vt)
    shrunk, theta = exclusive_l21_columns(norms, jnp.zeros((), Vt.dtype), strength / 2, theta, rough)
    # At norms of 0: the identity without a strength, the prox of a square if there is one group, else 0.
    at_zero = 1 / (1 + strength) if view.num_groups == 1 else jnp.where(strength == 0, 1, 0)
    at_zero = jnp.broadcast_to(at_zero, norms.shape).astype(norms.dtype)
    factor = jnp.where(jnp.isnan(norms), norms, safe_divide(shrunk, norms, at_zero))
    return Vt * factor[view.sorted_group_ids], theta
