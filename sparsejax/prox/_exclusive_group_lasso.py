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
    identity = jnp.broadcast_to(strength == 0, norms.shape).astype(norms.dtype)  # also at norms of 0
    factor = jnp.where(jnp.isnan(norms), norms, safe_divide(shrunk, norms, identity))
    return Vt * factor[view.sorted_group_ids], theta
