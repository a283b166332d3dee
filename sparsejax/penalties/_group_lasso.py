"""Group lasso, over groups of features that may overlap."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax._core.checks import as_strength
from sparsejax._core.linalg import columns, like, safe_divide, safe_norm, safe_sqrt
from sparsejax.groups import MAX_FAMILIES, Groups, check_groups
from sparsejax.penalties._base import Penalty, RowNorm, scale_strengths
from sparsejax.penalties._gauge import gauge
from sparsejax.penalties._preconditioner import Map, one_by_one, times_root
from sparsejax.penalties._terms import SeveralTerms
from sparsejax.penalties._transposed import GroupPenalty, cast, least_ratio


class GroupLasso(GroupPenalty, SeveralTerms, leaves=("alpha", "groups"), static=("family",)):
    r"""Group lasso: a group of features is kept or dropped as a whole.

    .. math:: g(W) = \sum_g \alpha_g \|W_g\|_F, \qquad W_g \text{ the rows of group } g

    All rows of a group become zero together. Groups may overlap: a row is then zero if one of its groups is
    (the latent group lasso of Jacob, Obozinski & Vert is another function). The sum over overlapping groups
    is split into terms of disjoint groups, which solvers treat one by one; ``prox`` is then iterative
    (Dykstra's algorithm). Features in no group are not penalised.

    Args:
      alpha: >= 0, shape () or (G,), one a group. It is not multiplied by sqrt(p_g), p_g the size of group g.
      groups: `sparsejax.groups.Groups`.

    Raises:
      TypeError, ValueError: alpha not real, not finite, negative, of the wrong shape; groups of another type;
        groups that overlap so much that more than 64 terms are needed.
    Source: Yuan & Lin, J. Royal Statistical Society B 68, 2006; overlapping: Jenatton, Audibert & Bach, JMLR
      12, 2011.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> groups = sj.groups.from_labels([0, 0, 1])
    >>> print(sj.penalties.GroupLasso(1.0, groups).prox(jnp.array([3.0, 4.0, 0.5])).round(3))
    [2.4 3.2 0. ]
    """

    _absolute = True
    degrees = (1,)
    family: int | None  # number of the family of disjoint groups in this term; None: all families

    def __init__(self, alpha: ArrayLike, groups: Groups):
        check_groups(groups)
        if groups.num_families > MAX_FAMILIES:
            raise ValueError(
                f"groups overlap so much that more than {MAX_FAMILIES} terms of disjoint groups are needed."
            )
        self._set(alpha=as_strength("alpha", alpha), groups=groups, family=None)

    @property
    def provides(self) -> frozenset[str]:
        """What the class defines, without *terms* if the groups are disjoint.

        There is no *row norm* and no *sparse rows* if the groups overlap or leave features out. One term of
        overlapping groups has *sparse rows*, but no *terms* and no *dual norm*.
        """
        known = self._given
        if not self.groups.disjoint:
            known -= {"row norm"}
            return known - {"sparse rows"} if self.family is None else known - {"dual norm", "terms"}
        hidden = {"terms"} | ({"sparse rows", "row norm"} if self.groups.free.shape[-1] else set())
        return known - hidden

    @property
    def terms(self) -> tuple[Any, ...]:
        """One penalty for each family of disjoint groups."""
        if self.groups.disjoint or self.family is not None:
            return (self,)
        return tuple(self._replace(family=number) for number in range(self.groups.num_families))

    def smooth_where(self, W: jax.Array) -> jax.Array:
        """The rows all of whose groups are not 0 or have no strength, boolean, shape of W."""
        Wt = columns(W)
        kink = (self._norms(Wt) <= 0) & self.members() & (cast(self.alpha, Wt) > 0)
        off = self.groups.spread(kink.astype(Wt.dtype)) > 0
        return like(jnp.broadcast_to(~off, Wt.shape), W)

    def dual_norm(self, Z: jax.Array) -> jax.Array:
        """The smallest alpha at which 0 is the prox of Z; for disjoint groups the largest ||Z_g||_F."""
        if len(self.terms) > 1:
            return gauge(self._replace(alpha=jnp.ones((), Z.dtype)), Z)
        return jnp.max(self._norms(columns(Z)), initial=0)

    def row_norm(self, params_shape: tuple[int, ...]) -> RowNorm:
        """One norm for each group, without squares."""
        return RowNorm(self.alpha, groups=self.groups)

    def row_slopes(self, Z: jax.Array, W: jax.Array | None = None) -> jax.Array:
        """||Z_g||_F / alpha_g for the group g of each feature, (d,)."""
        slopes = safe_divide(self._norms(columns(Z)), cast(self.alpha, Z), jnp.inf)
        return jnp.maximum(self.groups.largest(slopes), 0)

    def rows_at(self, ix: jax.Array) -> Penalty:
        """The penalty of a W with these rows only: each group keeps those of its features."""
        return self._replace(groups=self.groups.at(ix))

    # ------------------------------------------------------------------ hooks of a term of disjoint groups

    def members(self) -> jax.Array:
        """The groups of this term, (G,) boolean."""
        groups = self.groups
        if self.family is None:
            return jnp.ones(groups.num_groups, bool)
        return groups.family == self.family

    def held(self, Wt: jax.Array) -> jax.Array:
        """The rows that are in a group of this term with a strength > 0, (d,) boolean."""
        held = self.members() & (jnp.broadcast_to(self.alpha, (self.groups.num_groups,)) > 0)
        return self.groups.spread(held.astype(Wt.dtype)) > 0

    def _norms(self, Wt: jax.Array) -> jax.Array:
        return safe_sqrt(self.groups.sums(jnp.sum(Wt * Wt, axis=0)))

    def _value(self, Wt: jax.Array) -> jax.Array:
        alpha = jnp.where(self.members(), cast(self.alpha, Wt), 0)
        return jnp.sum(alpha * self._norms(Wt))

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        if len(self.terms) > 1:
            return super()._prox(Vt, scaling)
        norms, alpha = self._norms(Vt), scaling * cast(self.alpha, Vt)
        # Block soft thresholding: V_g (1 - alpha_g / ||V_g||)_+ in each group of this term.
        # At alpha_g = 0 that is the identity, also at V_g = 0.
        factor = jnp.where((norms <= alpha) & (alpha > 0), 0, 1 - safe_divide(alpha, norms))
        inside = self.members().astype(Vt.dtype)
        in_a_group = self.groups.spread(inside) > 0
        return Vt * jnp.where(in_a_group, self.groups.spread(inside * factor), 1)[None]

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        # a row in no group must be 0
        outside = jnp.any(~self.held(Zt) & (safe_norm(Zt) > 0))
        norms = jnp.where(self.members(), self._norms(Zt), 0)
        return jnp.where(outside, 0, least_ratio(cast(self.alpha, Zt), norms))

    def curvature(self, Wt: jax.Array) -> jax.Array:
        """The sum of alpha_g / ||W_g||_F over the groups of this term that hold each row, (d,)."""
        alpha = jnp.where(self.members(), cast(self.alpha, Wt), 0)
        return self.groups.spread(safe_divide(alpha, self._norms(Wt)))

    def _half_derivative(self, W: jax.Array, scaling: jax.Array) -> Map:
        """Approximate: without the coupling of the rows of a group.

        For overlapping groups the maps of the families of disjoint groups are applied one after another.
        """
        if len(self.terms) > 1:
            return one_by_one(self.terms, W, scaling)
        return times_root(self.curvature(columns(W))[None], scaling)

    def _penalised(self, Wt: jax.Array) -> jax.Array:
        return self.held(Wt)

    def _row_strengths(self, d: int) -> jax.Array:
        """A single alpha as it is, (); else the largest of the groups of each feature, (d,), 0 in none."""
        alpha, groups = jnp.asarray(self.alpha), self.groups
        return jnp.maximum(groups.largest(alpha), 0) if alpha.ndim else alpha

    def _rescaled(self, units: jax.Array) -> "GroupLasso":
        """Alpha of each group divided by the unit of the group."""
        return scale_strengths(self, [1 / self.groups.maxima(units)])
