"""The exclusive group l2,1 penalty, under which the features of a group compete."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax import prox
from sparsejax._core.checks import as_strength
from sparsejax._core.linalg import columns, like, safe_divide, safe_norm, tiny_of
from sparsejax.groups import MAX_FAMILIES, Groups, check_groups
from sparsejax.penalties._base import Penalty, scale_strengths
from sparsejax.penalties._rules import penalised
from sparsejax.penalties._transposed import GroupPenalty, SmoothRowPenalty, cast, checked


class ExclusiveGroupL21(GroupPenalty, SmoothRowPenalty, leaves=("alpha", "groups")):
    r"""Exclusive group l2,1: the features of a group compete.

    .. math:: g(W) = \sum_g \alpha_g \Big(\sum_{i \in g} \|w_i\|_2\Big)^2

    Features of a group compete with each other, so that few redundant features are selected; groups do not
    compete. For a W of one column this is the exclusive lasso over groups of features of Campbell & Allen
    (Electronic J. of Statistics 11, 2017), with their factor 1/2 in alpha.

    Features in no group are not penalised. A whole group is zero only if its gradient is zero: as alpha
    grows, the set of zero rows becomes constant and the other rows shrink like 1/alpha.

    Args:
      alpha: >= 0, shape () or (G,), one a group.
      groups: `sparsejax.groups.Groups`, for example pairs of correlated features (`from_correlation`).

    Raises:
      TypeError, ValueError: alpha not real, not finite, negative, of the wrong shape; groups of another type.
    Source: Kong et al., AAAI 2016, Eq. (2). The square root of g is a norm if every feature is in a group. g
      itself is not, contrary to their Prop. 1, since it grows with the square of W.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> penalty = sj.penalties.ExclusiveGroupL21(0.5, sj.groups.from_labels([0, 0]))
    >>> W = jnp.array([[3.0, 4.0], [0.5, 0.0]])
    >>> float(penalty.value(W))
    15.125
    >>> print(penalty.prox(W))
    [[1.5 2. ]
     [0.  0. ]]
    """

    _absolute = True
    degrees = (2,)
    finite_conjugate = True

    def __init__(self, alpha: ArrayLike, groups: Groups):
        check_groups(groups)
        self._set(alpha=as_strength("alpha", alpha), groups=groups)

    @property
    def provides(self) -> frozenset[str]:
        """What the class defines; no *sparse rows* if the groups need more than `MAX_FAMILIES` families."""
        hidden = {"sparse rows"} if self.groups.num_families > MAX_FAMILIES else set()
        return self._given - hidden

    def smooth_where(self, W: jax.Array) -> jax.Array:
        """The rows that are not 0, and those in no group with a strength and another row; shape of W."""
        Wt = columns(W)
        kinked = (cast(self.alpha, Wt) > 0) & ~self._single(Wt)
        on = jnp.any(Wt != 0, axis=0) | ~(self.groups.spread(kinked.astype(Wt.dtype)) > 0)
        return like(jnp.broadcast_to(on, Wt.shape), W)

    def slopes(self, norms: jax.Array) -> jax.Array:
        r"""c (d,): the derivative of the penalty in the norm of row i is :math:`2c_i`; norms (d,)."""
        return self.groups.spread(cast(self.alpha, norms) * self.groups.sums(norms))

    def row_slopes(self, Z: jax.Array, W: jax.Array | None = None) -> jax.Array:
        r"""(d,), :math:`1 + (\|z_i\| - 2c_i)/\max_j\|z_j\|`; inf for unpenalised rows.

        At most 1 means that a zero row stays zero. The difference, and not the ratio of ||z_i|| and 2c_i,
        ranks the rows: the ratio is infinite for all rows of a group that is zero, however small ||z_i|| is.
        W None means W = 0, where any ||z_i|| > 0 moves a row.
        """
        W = jnp.zeros_like(Z) if W is None else W
        norms = safe_norm(columns(Z))
        beyond = norms - 2 * self.slopes(safe_norm(columns(W)))
        slopes = 1 + safe_divide(beyond, jnp.max(norms, initial=0), 0)
        return slopes.at[self.groups.free].set(jnp.inf)

    def rows_at(self, ix: jax.Array) -> Penalty:
        """The penalty of a W with these rows only: each group keeps those of its features."""
        return self._replace(groups=self.groups.at(ix))

    def conjugate(self, Z: jax.Array, aux: Any = None) -> jax.Array:
        r"""An upper bound on g*(Z), shape (), exact if Z is a subgradient of g at ``aux``.

        .. math:: g^*(Z) = \min_y \big\{ \textstyle\sum_g y_g^2/(4\alpha_g) :
                  \sum_{g \ni i} y_g \ge \|z_i\| \big\} ,

        so any feasible y gives an upper bound. This one is ``y_g = 2 alpha_g sum_{i in g} ||w_i||`` with
        W = ``aux``, increased until it is feasible. If ``aux`` is None, W is a point that nearly attains the
        supremum of <Z, W> - g(W), found by a prox with a large step.
        """
        Zt = checked(self, Z, "Z")
        alpha, groups = cast(self.alpha, Zt), self.groups
        if aux is None:
            # argmax <Z, W> - g(W) - ||W||^2 / (2 t). With 1/t = 1e-8 times the largest alpha the last term is
            # small beside the term of this group. The result is an upper bound for any W.
            t = 1e8 / jnp.maximum(jnp.max(alpha, initial=0), tiny_of(Zt))
            Wt = self._prox(t * Zt, t)
        else:
            Wt = columns(aux)
        wanted = safe_norm(Zt)
        y = 2 * alpha * groups.sums(safe_norm(Wt))
        held = jnp.broadcast_to(alpha > 0, y.shape)  # the groups with a strength
        degree = groups.spread(held.astype(Zt.dtype))  # number of these groups that hold each feature
        # Feasible: each of the ``degree`` groups of row i adds at least 1/degree of what is missing in row i.
        missing = safe_divide(jnp.maximum(wanted - groups.spread(y), 0), degree)
        most = jnp.maximum(groups.maxima(missing), 0)  # the maximum over an empty group is -inf
        y = jnp.where(held, y + most, 0)
        return jnp.sum(safe_divide(y * y, 4 * alpha))

    def _value(self, Wt: jax.Array) -> jax.Array:
        sums = self.groups.sums
        # The square of one norm has its second derivative at 0 too, if it is computed without a root.
        squares = jnp.where(self._single(Wt), sums(jnp.sum(Wt * Wt, axis=0)), sums(safe_norm(Wt)) ** 2)
        return jnp.sum(cast(self.alpha, Wt) * squares)

    def _single(self, Wt: jax.Array) -> jax.Array:
        """The groups of one row, (G,) boolean: their term is ``alpha_g ||w_i||^2``, without a kink at 0."""
        return self.groups.sums(jnp.ones(Wt.shape[1:], Wt.dtype)) == 1

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        return prox.exclusive_group_l21_columns(Vt, scaling * cast(self.alpha, Vt), self.groups, None)[0]

    def start_columns(self, Vt: jax.Array) -> Any:
        return prox.exclusive_group_l21_start(safe_norm(Vt), cast(self.alpha, Vt), self.groups)

    def warm_columns(self, Vt: jax.Array, scaling: jax.Array, warm: Any) -> tuple[jax.Array, Any]:
        return prox.exclusive_group_l21_columns(Vt, scaling * cast(self.alpha, Vt), self.groups, warm)

    def curvature(self, Wt: jax.Array) -> tuple[jax.Array, jax.Array]:
        # The Hessian within a row. The coupling of rows is left out: preconditioners do not need it.
        norm = safe_norm(Wt)
        q = safe_divide(2 * self.slopes(norm), norm)
        return q, jnp.zeros_like(q)

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        """0 if Z is not 0 in some row that is in no group with a strength, else inf."""
        outside = jnp.where(penalised(self, Zt), 0, safe_norm(Zt))
        return jnp.where(jnp.any(outside > 0), 0, jnp.inf).astype(Zt.dtype)

    def _rescaled(self, units: jax.Array) -> "ExclusiveGroupL21":
        """Alpha of each group divided by the square of the unit of the group."""
        return scale_strengths(self, [1 / self.groups.maxima(units) ** 2])

    def _penalised(self, Wt: jax.Array) -> jax.Array:
        """The rows in a group with a strength that is not 0."""
        held = jnp.broadcast_to(cast(self.alpha, Wt) > 0, (self.groups.num_groups,))
        return self.groups.spread(held.astype(Wt.dtype)) > 0
