r"""Penalties :math:`g(W)` on the rows of a (d, k) matrix, one row a feature.

Each is a pytree whose strengths are leaves, so they can be vmapped and differentiated where they
stand, and brings

* ``value(W)``;
* ``prox(V, scaling=1.0)`` :math:`= \arg\min_W \tfrac12\|W-V\|_F^2 + \text{scaling}\cdot g(W)`, exact;
* ``dual_scale(Z)``: the largest s at which the conjugate of sZ is finite, ``inf`` for squared norms;
* ``conjugate(Z, aux=None)`` :math:`= \sup_W \langle Z,W\rangle - g(W)`, where Z is so scaled;
* ``dual_norm(Z)``: the smallest ``strength`` (or ``alpha``) for which W = 0 solves the prox at Z;
* ``support(W)``: the entries in which g is smooth at W; the rest stay at zero nearby. Unused where
  ``by_prox`` is True: g has kinks elsewhere too, and solutions are differentiated through the prox.

A strength is a scalar or one value a row, shape (d,). W may be a vector (d,): then every row has one
entry. Strengths are cast to the dtype of W.
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax import _group_prox, _view_prox
from sparsejax import prox as _prox
from sparsejax._pytree import Pytree, as_strength
from sparsejax.groups import Groups

# Newton steps in the prox when it starts from the last one: its error falls with the square of the step
# between the calls. Run to the end it costs more and saves no iteration of the solver (yale, glioma, isolet).
PASSES = 2


class _RowPenalty(Pytree):
    """A penalty that is a sum over rows, written for matrices whose columns are those rows.

    Subclasses give ``_value``, ``_prox``, ``_conjugate``, ... on ``Wt`` (k, d): solvers keep that
    layout, in which every step is a vector operation over the d features.
    """

    finite_conjugate = False

    def value(self, W: jax.Array) -> jax.Array:
        """g(W), shape ()."""
        return self._value(columns(W))

    def prox(self, V: jax.Array, scaling: ArrayLike = 1.0) -> jax.Array:
        """The exact proximal point of V at step size ``scaling``; shape and dtype of V."""
        Vt = columns(V)
        return like(self._prox(Vt, jnp.asarray(scaling, Vt.dtype)), V)

    def conjugate(self, Z: jax.Array, aux=None) -> jax.Array:
        """g*(Z), shape (), for Z with ``dual_scale(Z) >= 1`` (not tested: rounding would spoil it).

        ``aux`` is a split of Z, for sums of penalties without a closed form; unused here.
        """
        return self._conjugate(columns(Z))

    def dual_scale(self, Z: jax.Array) -> jax.Array:
        """The largest s >= 0 at which ``conjugate(s * Z)`` is finite, inf if all are."""
        return self._dual_scale(columns(Z))

    def dual_norm(self, Z: jax.Array) -> jax.Array:
        """The smallest strength at which 0 is the proximal point of Z."""
        raise ValueError(
            f"{type(self).__name__} has no finite strength that makes W = 0: a squared norm has slope 0 "
            "at zero, so its minimiser only shrinks like 1/strength. Use L1, L21 or ExclusiveL21."
        )

    def support(self, W: jax.Array) -> jax.Array:
        """Boolean, shape of W."""
        return W != 0

    @property
    def terms(self) -> tuple["_RowPenalty", ...]:
        """Parts with an exact prox each: here the penalty itself."""
        return (self,)

    def check(self, params_shape: tuple[int, ...]) -> None:
        """Raise if a strength given by row does not have one value for each of the d rows."""
        for name in self._leaves:
            strength = getattr(self, name)
            if strength.ndim and strength.shape[-1] != params_shape[0]:
                raise ValueError(
                    f"{type(self).__name__}: {name} has shape {strength.shape}; it must be a scalar or "
                    f"one value a row, ({params_shape[0]},)."
                )

    def _value(self, Wt: jax.Array) -> jax.Array:
        raise NotImplementedError

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        raise NotImplementedError

    def _prox_start(self, Vt: jax.Array):
        """First ``warm`` for `_prox_warm`."""
        return ()

    def _prox_warm(self, Vt: jax.Array, scaling: jax.Array, warm):
        """The prox, exact or nearly when ``warm`` is near, and what makes the next call cheaper."""
        return self._prox(Vt, scaling), warm

    def _curvature(self, Wt: jax.Array) -> tuple[jax.Array, jax.Array]:
        r"""(q, b), by row: on the support the Hessian of row i is :math:`q_i(I - uu^\top) + b_i ss^\top`.

        u = w_i/||w_i||, s = sign(w_i).
        """
        raise NotImplementedError

    def _half_derivative(self, Wt: jax.Array, scaling: jax.Array):
        r"""The map :math:`V \mapsto J^{1/2}V`, J the derivative of the prox, on the support of the answer Wt.

        :math:`J^{-1} = I + \text{scaling}\,\nabla^2 g(W)` is a multiple of I but for the plane spanned by u
        and s, where it is the 2 x 2 matrix N below; :math:`N^{-1/2} = (N^{-1} + \delta I)/\tau` with
        :math:`\delta = \det(N)^{-1/2}`, :math:`\tau^2 = \operatorname{tr} N^{-1} + 2\delta`.
        """
        q, b = (scaling * c for c in self._curvature(Wt))
        s, norm = jnp.sign(Wt), _prox.safe_norm(Wt)
        count = jnp.sqrt(jnp.maximum(jnp.sum(s * s, axis=0), 1))
        e1, u = s / count[None], Wt / jnp.where(norm > 0, norm, 1)[None]
        c1 = jnp.sum(u * e1, axis=0)
        rest = u - c1[None] * e1
        c2 = _prox.safe_norm(rest)
        e2 = rest / jnp.where(c2 > 0, c2, 1)[None]
        # N = (1 + q) I + b count^2 e1 e1' - q (c1, c2)(c1, c2)'
        n11, n12, n22 = 1 + q + b * count**2 - q * c1 * c1, -q * c1 * c2, 1 + q - q * c2 * c2
        det = n11 * n22 - n12 * n12
        delta = 1 / jnp.sqrt(det)
        tau = jnp.sqrt((n11 + n22) / det + 2 * delta)
        h11, h12, h22 = (n22 / det + delta) / tau, -n12 / det / tau, (n11 / det + delta) / tau
        plain = 1 / jnp.sqrt(1 + q)

        def apply(V):
            v1, v2 = jnp.sum(e1 * V, axis=0), jnp.sum(e2 * V, axis=0)
            along1 = (h11 - plain) * v1 + h12 * v2
            along2 = (h22 - plain) * v2 + h12 * v1
            return plain[None] * V + e1 * along1[None] + e2 * along2[None]

        return apply

    def _conjugate(self, Zt: jax.Array) -> jax.Array:
        return jnp.zeros((), Zt.dtype)

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        return jnp.full((), jnp.inf, Zt.dtype)


class L1(_RowPenalty, leaves=("strength",)):
    r"""Lasso: ``g(W) = sum_i strength_i ||w_i||_1``.

    Args:
      strength: >= 0, shape () or (d,).

    Raises:
      TypeError, ValueError: not real, not finite, negative, of the wrong rank.
    """

    strength: jax.Array

    def __init__(self, strength: ArrayLike):
        self._set(strength=as_strength("strength", strength))

    def _value(self, Wt):
        return jnp.sum(_cast(self.strength, Wt) * jnp.sum(jnp.abs(Wt), axis=0))

    def _prox(self, Vt, scaling):
        strength = _cast(self.strength, Vt)
        return _prox.l1(Vt, strength if strength.ndim == 0 else strength[None], scaling)

    def _curvature(self, Wt):
        zero = jnp.zeros(Wt.shape[1:], Wt.dtype)
        return zero, zero

    def _dual_scale(self, Zt):
        return _ratio(_cast(self.strength, Zt), jnp.max(jnp.abs(Zt), axis=0))

    def dual_norm(self, Z: jax.Array) -> jax.Array:
        return jnp.max(jnp.abs(Z))


class L21(_RowPenalty, leaves=("alpha",)):
    r"""Row-sparse group lasso: ``g(W) = sum_i alpha_i ||w_i||_2``.

    Args:
      alpha: >= 0, shape () or (d,).

    Raises:
      TypeError, ValueError: not real, not finite, negative, of the wrong rank.
    """

    alpha: jax.Array

    def __init__(self, alpha: ArrayLike):
        self._set(alpha=as_strength("alpha", alpha))

    def _value(self, Wt):
        return jnp.sum(_cast(self.alpha, Wt) * _prox.safe_norm(Wt))

    def _prox(self, Vt, scaling):
        return _prox.l2_columns(Vt, scaling * _cast(self.alpha, Vt))

    def _curvature(self, Wt):
        return _over_norm(self.alpha, Wt), jnp.zeros(Wt.shape[1:], Wt.dtype)

    def _dual_scale(self, Zt):
        return _ratio(_cast(self.alpha, Zt), _prox.safe_norm(Zt))

    def dual_norm(self, Z: jax.Array) -> jax.Array:
        return jnp.max(_prox.safe_norm(columns(Z)))

    def support(self, W: jax.Array) -> jax.Array:
        return like(jnp.broadcast_to(jnp.any(columns(W) != 0, axis=0), columns(W).shape), W)


class L1Inf(_RowPenalty, leaves=("alpha",)):
    r"""Row-sparse group lasso by the largest entry: ``g(W) = sum_i alpha_i max_j |w_ij|``.

    Entries below the largest of their row cost nothing, so that features are shared by classes, and the
    largest entries of a row mostly tie. Tied entries move together: derivatives of solutions go through
    the prox (``by_prox``).

    Args:
      alpha: >= 0, shape () or (d,).

    Raises:
      TypeError, ValueError: not real, not finite, negative, of the wrong rank.
    Source: Quattoni, Carreras, Collins & Darrell, ICML 2009 (there as the constraint g(W) <= C).
    """

    by_prox = True
    alpha: jax.Array

    def __init__(self, alpha: ArrayLike):
        self._set(alpha=as_strength("alpha", alpha))

    def _value(self, Wt):
        return jnp.sum(_cast(self.alpha, Wt) * jnp.max(jnp.abs(Wt), axis=0))

    def _prox(self, Vt, scaling):
        return _prox.linf_columns(Vt, scaling * _cast(self.alpha, Vt))

    def _dual_scale(self, Zt):
        return _ratio(_cast(self.alpha, Zt), jnp.sum(jnp.abs(Zt), axis=0))

    def dual_norm(self, Z: jax.Array) -> jax.Array:
        return jnp.max(jnp.sum(jnp.abs(columns(Z)), axis=0))


class ExclusiveL21(_RowPenalty, leaves=("alpha", "beta")):
    r"""Exclusive l2,1: ``g(W) = sum_i alpha_i ||w_i||_2 + beta_i ||w_i||_1^2``.

    The first term removes features from all classes, the second lets the classes compete for those
    that stay.

    Args:
      alpha, beta: >= 0, shape () or (d,).

    Raises:
      TypeError, ValueError: not real, not finite, negative, of the wrong rank.
    Source: Ming & Ding, IJCAI 2019, Eq. (14), where the loss has scale 1: at this library's default
      ``scale=1/(2n)`` the same problem has their strengths divided by 2n.
    """

    finite_conjugate = True
    alpha: jax.Array
    beta: jax.Array

    def __init__(self, alpha: ArrayLike, beta: ArrayLike):
        self._set(alpha=as_strength("alpha", alpha), beta=as_strength("beta", beta))

    def _value(self, Wt):
        squared = jnp.sum(jnp.abs(Wt), axis=0) ** 2
        return jnp.sum(_cast(self.alpha, Wt) * _prox.safe_norm(Wt) + _cast(self.beta, Wt) * squared)

    def _prox(self, Vt, scaling):
        return self._prox_warm(Vt, scaling, self._prox_start(Vt), None)[0]

    def _prox_start(self, Vt):
        return jnp.zeros(Vt.shape[1:], Vt.dtype)

    def _prox_warm(self, Vt, scaling, warm, passes=PASSES):
        return _prox.exclusive_l21_columns(
            Vt, scaling * _cast(self.alpha, Vt), scaling * _cast(self.beta, Vt), warm, passes
        )

    def _curvature(self, Wt):
        return _over_norm(self.alpha, Wt), 2 * jnp.broadcast_to(_cast(self.beta, Wt), Wt.shape[1:])

    def _dual_scale(self, Zt):
        return _ratio(_where_unsquared(self.beta, _cast(self.alpha, Zt)), _prox.safe_norm(Zt))

    def _conjugate(self, Zt):
        return _squared_conjugate(_prox.tail_threshold(Zt, _cast(self.alpha, Zt)), _cast(self.beta, Zt))

    def dual_norm(self, Z: jax.Array) -> jax.Array:
        """The smallest alpha at which 0 is the proximal point of Z, the same for every beta."""
        return jnp.max(_prox.safe_norm(columns(Z)))


class ExclusiveLasso(_RowPenalty, leaves=("beta",)):
    r"""Exclusive lasso over the entries of each row: ``g(W) = sum_i beta_i ||w_i||_1^2``.

    No row is ever zero unless its gradient is: the penalty selects classes for each feature, not
    features.

    Args:
      beta: >= 0, shape () or (d,).

    Raises:
      TypeError, ValueError: not real, not finite, negative, of the wrong rank.
    Source: Zhou, Jin & Hoi, AISTATS 2010 (there with a factor 1/2); Ming & Ding write it
      ``||W||_{1,2}^2``.
    """

    finite_conjugate = True
    beta: jax.Array

    def __init__(self, beta: ArrayLike):
        self._set(beta=as_strength("beta", beta))

    def _value(self, Wt):
        return jnp.sum(_cast(self.beta, Wt) * jnp.sum(jnp.abs(Wt), axis=0) ** 2)

    def _prox(self, Vt, scaling):
        return self._prox_warm(Vt, scaling, self._prox_start(Vt), None)[0]

    def _prox_start(self, Vt):
        return jnp.zeros(Vt.shape[1:], Vt.dtype)

    def _prox_warm(self, Vt, scaling, warm, passes=PASSES):
        zero = jnp.zeros((), Vt.dtype)
        return _prox.exclusive_l21_columns(Vt, zero, scaling * _cast(self.beta, Vt), warm, passes)

    def _curvature(self, Wt):
        return jnp.zeros(Wt.shape[1:], Wt.dtype), 2 * jnp.broadcast_to(_cast(self.beta, Wt), Wt.shape[1:])

    def _dual_scale(self, Zt):
        return _ratio(_where_unsquared(self.beta, jnp.zeros((), Zt.dtype)), _prox.safe_norm(Zt))

    def _conjugate(self, Zt):
        return _squared_conjugate(jnp.max(jnp.abs(Zt), axis=0), _cast(self.beta, Zt))


class ExclusiveGroupL21(_RowPenalty, leaves=("alpha", "groups")):
    r"""Exclusive group l2,1 over groups of features: ``g(W) = sum_g alpha_g (sum_{i in g} ||w_i||_2)^2``.

    Features of a group compete, so that few of those that say the same are kept; different groups do not.
    Features in no group are not penalised. Unless its gradient is 0, no group vanishes as a whole: the
    minimiser only shrinks like 1/alpha while its zero rows settle.

    Args:
      alpha: >= 0, shape () or (G,), one a group.
      groups: `sparsejax.groups.Groups`, say of pairs of correlated features (`from_correlation`).

    Raises:
      TypeError, ValueError: alpha not real, not finite, negative, of the wrong shape; groups of another type.
    Source: Kong et al., AAAI 2016, Eq. (2). Its square root is a norm if every feature is in a group; the
      penalty itself is not (Prop. 1), since it grows with the square of W.
    """

    finite_conjugate = True
    alpha: jax.Array
    groups: Groups

    def __init__(self, alpha: ArrayLike, groups: Groups):
        if not isinstance(groups, Groups):
            raise TypeError(
                f"groups must be built by sparsejax.groups (from_lists, ...), got {type(groups).__name__}."
            )
        self._set(alpha=as_strength("alpha", alpha), groups=groups)

    @property
    def free(self) -> jax.Array:
        """The unpenalised features, (f,)."""
        return self.groups.free

    def check(self, params_shape: tuple[int, ...]) -> None:
        """Raise if the groups are of another number of features, or alpha of another number of groups."""
        if params_shape[0] != self.groups.num_features:
            raise ValueError(
                f"ExclusiveGroupL21: groups has {self.groups.num_features} features; X has {params_shape[0]}."
            )
        if self.alpha.shape not in ((), (self.groups.num_groups,)):
            raise ValueError(
                f"ExclusiveGroupL21: alpha has shape {self.alpha.shape}; it must be a scalar or one value a "
                f"group, ({self.groups.num_groups},)."
            )

    def support(self, W: jax.Array) -> jax.Array:
        on = jnp.any(columns(W) != 0, axis=0).at[self.groups.free].set(True)
        return like(jnp.broadcast_to(on, columns(W).shape), W)

    def _value(self, Wt):
        return jnp.sum(_cast(self.alpha, Wt) * self.groups.sums(_prox.safe_norm(Wt)) ** 2)

    def _prox(self, Vt, scaling):
        return _group_prox.exclusive_group_l21_columns(
            Vt, scaling * _cast(self.alpha, Vt), self.groups, None
        )[0]

    def _prox_start(self, Vt):
        return _group_prox.start(_prox.safe_norm(Vt), _cast(self.alpha, Vt), self.groups)

    def _prox_warm(self, Vt, scaling, warm):
        return _group_prox.exclusive_group_l21_columns(Vt, scaling * _cast(self.alpha, Vt), self.groups, warm)

    def _slopes(self, norms):
        r"""c (d,): the penalty grows by :math:`2c_i` for each unit of the norm of row i."""
        return self.groups.spread(_cast(self.alpha, norms) * self.groups.sums(norms))

    def _curvature(self, Wt):
        # The part within a row; preconditioners do without the coupling of the rows.
        norm = _prox.safe_norm(Wt)
        q = jnp.where(norm > 0, 2 * self._slopes(norm) / jnp.where(norm > 0, norm, 1), 0)
        return q, jnp.zeros_like(q)

    def _dual_scale(self, Zt):
        held = self.groups.spread(jnp.broadcast_to(_cast(self.alpha, Zt), (self.groups.num_groups,))) > 0
        outside = jnp.where(held, 0, _prox.safe_norm(Zt))
        return jnp.where(jnp.any(outside > 0), 0, jnp.inf).astype(Zt.dtype)

    def conjugate(self, Z: jax.Array, aux=None) -> jax.Array:
        r"""An upper bound of g*(Z), shape (), exact if Z is a subgradient of g at ``aux``.

        .. math:: g^*(Z) = \min_y \big\{ \textstyle\sum_g y_g^2/(4\alpha_g) :
                  \sum_{g \ni i} y_g \ge \|z_i\| \big\} ,

        so any feasible y bounds it from above: here ``y_g = 2 alpha_g sum_{i in g} ||w_i||`` of W = ``aux``,
        increased where it falls short. ``aux`` None: a W that nearly attains the supremum, by the prox.
        """
        Zt = columns(Z)
        alpha, groups = _cast(self.alpha, Zt), self.groups
        if aux is None:
            # argmax <Z, W> - g(W) - ||W||^2 / (2 t), for a large t
            t = 1e8 / jnp.maximum(jnp.max(alpha, initial=0), jnp.finfo(Zt.dtype).tiny)
            Wt = self._prox(t * Zt, t)
        else:
            Wt = columns(aux)
        wanted = _prox.safe_norm(Zt)
        y = 2 * alpha * groups.sums(_prox.safe_norm(Wt))
        held = jnp.broadcast_to(alpha > 0, y.shape)
        degree = groups.spread(held.astype(Zt.dtype))
        missing = jnp.maximum(wanted - groups.spread(y), 0) / jnp.where(degree > 0, degree, 1)
        y = jnp.where(held, y + groups.maxima(missing), 0)
        return jnp.sum(y * y / jnp.where(held, 4 * alpha, 1))


class ExclusiveGroupLasso(_RowPenalty, leaves=("strength", "views")):
    r"""Exclusive group lasso over views of the labels.

    .. math:: g(W) = \tfrac12 \sum_i \text{strength}_i \sum_v
              \Big( \sum_{g \in \text{view } v} \|w_{i,g}\|_2 \Big)^2 ,

    where every view is a partition of the k columns of W. In each view the groups compete for feature i: an
    entry stays only if its groups in all views do. No row vanishes unless its gradient does.

    The prox of one view has a closed form; that of several together, ``prox``, is iterative (Dykstra's
    algorithm to the last digits, 1000 cycles at most), so that solvers which treat the views one by one,
    `admm` and `davis_yin`, are much faster than `fista`.

    Args:
      strength: >= 0, shape () or (d,).
      views: tuple of `sparsejax.groups.Groups` of the k labels, each of them a partition; for the
        product of two or more sets of labels, `sparsejax.groups.label_views`.

    Raises:
      TypeError, ValueError: strength not real, not finite, negative; no view; a view that leaves out a
        label, has one in two groups, or is of another number of labels.
    Source: Chen et al., ACM MM 2011, Eq. (3), with their factor 1/2. One view of single labels is
      `ExclusiveLasso` with ``beta = strength/2``.
    """

    finite_conjugate = True
    strength: jax.Array
    views: tuple[Groups, ...]

    def __init__(self, strength: ArrayLike, views: Iterable[Groups]):
        views = (views,) if isinstance(views, Groups) else tuple(views)
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
        self._set(strength=as_strength("strength", strength), views=views)

    @property
    def terms(self) -> tuple["ExclusiveGroupLasso", ...]:
        """One penalty for each view, whose prox is exact."""
        return tuple(self._replace(views=(view,)) for view in self.views)

    def check(self, params_shape: tuple[int, ...]) -> None:
        """Raise if the labels are not as many as W's columns, or strengths not as many as its rows."""
        labels = self.views[0].num_features
        if params_shape[1:] != (labels,):
            raise ValueError(
                f"ExclusiveGroupLasso: views are of {labels} labels; Y must have as many columns, and W has "
                f"shape {params_shape}."
            )
        if self.strength.shape not in ((), params_shape[:1]):
            raise ValueError(
                f"ExclusiveGroupLasso: strength has shape {self.strength.shape}; it must be a scalar or one "
                f"value a row, ({params_shape[0]},)."
            )

    def support(self, W: jax.Array) -> jax.Array:
        return like(_view_prox.support(self.views, columns(W)), W)

    def _value(self, Wt):
        return _view_prox.value(self.views, _cast(self.strength, Wt), Wt)

    def _prox(self, Vt, scaling):
        strength = scaling * _cast(self.strength, Vt)
        if len(self.views) > 1:
            return _view_prox.joint_prox(self.views, strength, Vt)
        return _view_prox.shrink(self.views[0], strength, Vt, self._prox_start(Vt), None)[0]

    def _prox_start(self, Vt):
        return jnp.zeros(Vt.shape[1:], Vt.dtype)

    def _prox_warm(self, Vt, scaling, warm):
        if len(self.views) > 1:
            return self._prox(Vt, scaling), warm
        return _view_prox.shrink(self.views[0], scaling * _cast(self.strength, Vt), Vt, warm, PASSES)

    def _half_derivative(self, Wt, scaling):
        # Only its diagonal, the largest part.
        curvature = sum(_view_prox.slopes(view, _cast(self.strength, Wt), Wt) for view in self.views)
        half = 1 / jnp.sqrt(1 + scaling * curvature)
        return lambda V: half * V

    def _dual_scale(self, Zt):
        return _ratio(_where_unsquared(self.strength, jnp.zeros((), Zt.dtype)), _prox.safe_norm(Zt))

    def split(
        self,
        Z: jax.Array,
        W: jax.Array,
        guess: tuple[jax.Array, ...] | None = None,
        cycles: int = _view_prox.CYCLES,
    ) -> tuple[jax.Array, ...]:
        """Parts of Z (d, k), one a view, that sum to it and are subgradients at W if Z is one of g.

        ``guess`` are such parts, or nearly, say the multipliers of a solver; without them the parts are
        found by iteration, of at most so many ``cycles``.
        """
        if len(self.views) == 1:
            return (Z,)
        known = None if guess is None else tuple(map(columns, guess))
        strength = _cast(self.strength, Z)
        parts = _view_prox.split(self.views, strength, columns(Z), columns(W), known, cycles)
        return tuple(like(part, Z) for part in parts)

    def conjugate(self, Z: jax.Array, aux=None) -> jax.Array:
        r"""An upper bound of g*(Z), shape (), exact for the best ``aux``.

        .. math:: g^*(Z) = \min_{\sum_v S_v = Z} \sum_i \frac{1}{2\,\text{strength}_i}
                  \sum_v \max_{g \in \text{view } v} \|(S_v)_{i,g}\|_2^2 .

        Args:
          Z: (d, k).
          aux: the split, a tuple of one (d, k) a view that sum to Z; or a W at which Z is (nearly) a
            subgradient, from which it is found; or None: a W that nearly attains the supremum, by the
            prox.
        """
        strength = _cast(self.strength, Z)
        if not isinstance(aux, tuple):
            if aux is None:
                # argmax <Z, W> - g(W) - ||W||^2 / (2t), for a large t
                t = 1e8 / jnp.maximum(jnp.max(strength), jnp.finfo(Z.dtype).tiny)
                aux = self.prox(t * Z, t)
            aux = self.split(Z, aux)
        total = jnp.zeros((), Z.dtype)
        for view, part in zip(self.views, aux, strict=True):
            largest = jnp.max(_view_prox.group_norms(view, columns(part)), axis=0)
            total += _squared_conjugate(largest, strength / 2)
        return total


class ByLeaf(Pytree, leaves=("penalties",)):
    """A penalty for each chosen leaf of a pytree of parameters, none for the others; their sum.

    Args:
      penalties: a pytree of the structure of the parameters, or of their upper levels, with a penalty
        or None in the places of leaves, such as ``{"weight": L21(0.1), "bias": None}``.

    Raises:
      TypeError: something in it is neither a penalty nor None.
    """

    penalties: Any

    def __init__(self, penalties: Any):
        for part in jax.tree.leaves(penalties, is_leaf=_is_part):
            if not _is_part(part):
                raise TypeError(f"penalties must hold penalties and None, got {part!r}.")
        self._set(penalties=penalties)

    def _pairs(self, W: Any):
        treedef: Any
        parts, treedef = jax.tree.flatten(self.penalties, is_leaf=_is_part)
        return treedef, list(zip(parts, treedef.flatten_up_to(W), strict=True))

    def value(self, W: Any) -> jax.Array:
        """The sum, shape ()."""
        return sum(
            (part.value(w) for part, w in self._pairs(W)[1] if part is not None),
            start=jnp.zeros((), jax.tree.leaves(W)[0].dtype),
        )

    def prox(self, V: Any, scaling: ArrayLike = 1.0) -> Any:
        """The proximal point, leaf by leaf; leaves without a penalty stay as they are."""
        treedef, pairs = self._pairs(V)
        return treedef.unflatten([v if part is None else part.prox(v, scaling) for part, v in pairs])

    def support(self, W: Any) -> Any:
        """Booleans of the structure of W; all true where there is no penalty."""
        treedef, pairs = self._pairs(W)
        everything = lambda w: jax.tree.map(lambda x: jnp.ones(x.shape, bool), w)
        return treedef.unflatten([everything(w) if part is None else part.support(w) for part, w in pairs])


def _is_part(x):
    return x is None or hasattr(x, "prox")


def terms_of(penalty: Any) -> tuple[Any, ...]:
    """The parts of a penalty whose prox is exact: the penalty itself if it does not say."""
    return getattr(penalty, "terms", (penalty,))


def prox_start(term: Any, Vt: jax.Array) -> Any:
    """First ``warm`` for `prox_columns`."""
    return term._prox_start(Vt) if hasattr(term, "_prox_start") else ()


def prox_columns(term: Any, Vt: jax.Array, scaling: jax.Array, warm: Any, W: jax.Array) -> tuple[Any, Any]:
    """The prox on columns of matrices like W, from the last call's by-product where the term has one."""
    if hasattr(term, "_prox_warm"):
        return term._prox_warm(Vt, scaling, warm)
    return columns(term.prox(like(Vt, W), scaling)), warm


def joined(penalty: Any, points: tuple[jax.Array, ...]) -> jax.Array:
    """Of one prox point a term the last, set to zero where another term's point is zero in its whole group.

    Points are (k, d), or (1, d) of a vector.
    """
    *others, Wt = points
    for term, other in zip(terms_of(penalty), others, strict=False):
        Wt = jnp.where(support_of(term, other.T).T, Wt, 0)
    return Wt


def support_of(penalty: Any, W: Any) -> Any:
    """The entries in which the penalty is smooth, those that are not 0 if it does not say."""
    if hasattr(penalty, "support"):
        return penalty.support(W)
    return jax.tree.map(lambda w: w != 0, W)


def columns(W: jax.Array) -> jax.Array:
    """W (d, k) or (d,) as (k, d) or (1, d): rows become columns."""
    return W[None] if W.ndim == 1 else W.T


def like(Wt: jax.Array, W: jax.Array) -> jax.Array:
    """The inverse of `columns`, to the rank of W."""
    return Wt[0] if W.ndim == 1 else Wt.T


def _cast(strength, Wt):
    return strength.astype(Wt.dtype)


def _over_norm(alpha, Wt):
    """alpha_i / ||w_i||, 0 in zero rows."""
    norm = _prox.safe_norm(Wt)
    return jnp.where(norm > 0, _cast(alpha, Wt) / jnp.where(norm > 0, norm, 1), 0)


def _ratio(strength, norm):
    """min over rows of strength / norm, inf where the norm is 0."""
    return jnp.min(jnp.where(norm > 0, strength / jnp.where(norm > 0, norm, 1), jnp.inf))


def _where_unsquared(beta, strength):
    """The strength of the norm in rows whose squared part is switched off; no limit in the others."""
    return jnp.where(beta > 0, jnp.inf, strength)


def _squared_conjugate(m, beta):
    """sum_i m_i^2 / (4 beta_i), over the rows with beta_i > 0."""
    return jnp.sum(jnp.where(beta > 0, m * m / (4 * jnp.where(beta > 0, beta, 1)), 0))
