"""The exclusive group lasso, under which groups of labels compete, in one view or several."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax import prox
from sparsejax._core.checks import as_strength
from sparsejax._core.linalg import columns, like, safe_norm
from sparsejax.groups import Groups
from sparsejax.penalties._preconditioner import Map, times_root
from sparsejax.penalties._terms import SeveralTerms
from sparsejax.penalties._transposed import (
    SmoothRowPenalty,
    cast,
    least_ratio,
    squared_conjugate,
    where_unsquared,
)


class ExclusiveGroupLasso(SmoothRowPenalty, SeveralTerms, leaves=("strength", "views")):
    r"""Exclusive group lasso over views of the labels.

    .. math:: g(W) = \tfrac12 \sum_i \text{strength}_i \sum_v
              \Big( \sum_{g \in \text{view } v} \|w_{i,g}\|_2 \Big)^2 ,

    where every view is a partition of the k columns of W. In each view the groups compete for feature i: an
    entry is zero if its group is zero in any view. A whole row is zero only if the gradient of the loss is
    zero in this row.

    The prox of one view has a closed form. The prox of several views is iterative (Dykstra's algorithm to the
    last digits, at most 1000 cycles). `admm`, and `davis_yin` for two views, treat the views one by one and
    are much faster than `fista`.

    Args:
      strength: >= 0, shape () or (d,).
      views: tuple of `sparsejax.groups.Groups` of the k labels, each of them a partition, or a single one. If
        the labels are the product of two or more sets, `sparsejax.groups.label_views` makes the views.

    Raises:
      TypeError, ValueError: strength not real, not finite, negative; no view; a view that leaves out a
        label, has a label in two groups, or has another number of labels than the others.
    Source: Chen et al., ACM MM 2011, Eq. (3), with their factor 1/2. With one view whose groups are single
      labels the penalty is `ExclusiveLasso` with ``beta = strength/2``.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> penalty = sj.penalties.ExclusiveGroupLasso(1.0, sj.groups.label_views(2))
    >>> W = jnp.array([[3.0, -0.5], [0.5, 0.0]])
    >>> float(penalty.value(W))
    6.25
    >>> print(penalty.prox(W))
    [[ 1.5  -0.  ]
     [ 0.25  0.  ]]
    """

    strengths = ("strength",)
    _absolute = True
    degrees = (2,)
    finite_conjugate = True
    strength: jax.Array
    views: tuple[Groups, ...]

    def __init__(self, strength: ArrayLike, views: Iterable[Groups]):
        if not isinstance(views, Groups | Iterable):
            raise TypeError(f"views must be groups of labels, one for each view, got {views!r}.")
        views = (views,) if isinstance(views, Groups) else tuple(views)
        _check_views(views)
        self._set(strength=as_strength("strength", strength), views=views)

    @property
    def terms(self) -> tuple["ExclusiveGroupLasso", ...]:
        """One penalty for each view, whose prox is exact."""
        if len(self.views) == 1:
            return (self,)
        return tuple(self._replace(views=(view,)) for view in self.views)

    def check(self, params_shape: tuple[int, ...]) -> None:
        """Raise unless W has a column for each label and strengths by row have one value for each row."""
        labels = self.views[0].num_features
        if params_shape[1:] != (labels,):
            raise ValueError(
                f"ExclusiveGroupLasso: views are of {labels} labels; Y must have as many columns, and W has "
                f"shape {params_shape}."
            )
        super().check(params_shape)

    def smooth_where(self, W: jax.Array) -> jax.Array:
        """The entries whose group is nonzero in every view of several groups, and rows of strength 0."""
        Wt = columns(W)
        free = jnp.broadcast_to(cast(self.strength, Wt) == 0, Wt.shape[1:])
        return like(prox.views_support(self.views, Wt) | free[None], W)

    def _conjugate(self, Zt: jax.Array) -> jax.Array:
        """Of one view: the sum over rows of the largest ||z_{i,g}||_2^2 / (2 strength_i)."""
        largest = jnp.max(prox.view_norms(self.views[0], Zt), axis=0)
        return squared_conjugate(largest, cast(self.strength, Zt) / 2)

    def _value(self, Wt: jax.Array) -> jax.Array:
        return prox.views_value(self.views, cast(self.strength, Wt), Wt)

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        if len(self.views) > 1:
            return super()._prox(Vt, scaling)
        strength, start = scaling * cast(self.strength, Vt), self.start_columns(Vt)
        return prox.view_columns(self.views[0], strength, Vt, start, rough=False)[0]

    def start_columns(self, Vt: jax.Array) -> jax.Array:
        return jnp.zeros(Vt.shape[1:], Vt.dtype)

    def warm_columns(self, Vt: jax.Array, scaling: jax.Array, warm: Any) -> tuple[jax.Array, Any]:
        if len(self.views) > 1:
            return self._prox(Vt, scaling), warm
        return prox.view_columns(self.views[0], scaling * cast(self.strength, Vt), Vt, warm, rough=True)

    def _half_derivative(self, W: jax.Array, scaling: jax.Array) -> Map:
        """Approximate: only the diagonal of the Hessian, which is its largest part."""
        Wt = columns(W)
        slopes = [prox.view_slopes(view, cast(self.strength, Wt), Wt) for view in self.views]
        return times_root(sum(slopes), scaling)

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        # 0 if Z is nonzero in a row of strength 0, where g* is infinite; else inf
        return least_ratio(where_unsquared(self.strength, jnp.zeros((), Zt.dtype)), safe_norm(Zt))


def _check_views(views: tuple[Any, ...]) -> None:
    if not views:
        raise ValueError("views is empty; at least one is needed.")
    for v, view in enumerate(views):
        if not isinstance(view, Groups):
            raise TypeError(
                "views must be built by sparsejax.groups (label_views, from_labels, from_lists), got "
                f"{type(view).__name__}."
            )
        if not view.disjoint or view.free.shape[-1]:
            what = "a label in two groups" if not view.disjoint else "a label in no group"
            raise ValueError(f"view {v} has {what}; it must be a partition of the labels.")
        if view.num_features != views[0].num_features:
            raise ValueError(
                f"view {v} is of {view.num_features} labels, view 0 of {views[0].num_features}; they "
                "must agree."
            )
