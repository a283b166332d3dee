"""Base classes of penalties whose hooks take the transpose of W, on which solvers work."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax._core.checks import check_step
from sparsejax._core.linalg import columns, like, safe_divide, safe_norm, unit_of
from sparsejax.groups import Groups
from sparsejax.penalties._base import Penalty
from sparsejax.penalties._preconditioner import Map, in_planes
from sparsejax.penalties._rules import added, in_units


def checked(penalty: Penalty, W: jax.Array, name: str) -> jax.Array:
    """The transpose of W, (k, d), after a check that the penalty fits W; ``name`` is for errors.

    Raises:
      TypeError: W is not a floating array.
      ValueError: W is neither (d, k) nor (d,), or the penalty does not fit this shape.
    """
    Wt = columns(W, name)
    try:
        penalty.check(W.shape)
    except ValueError as error:
        raise ValueError(f"{name} has shape {W.shape}. {error}") from None
    return Wt


def check_by_row(penalty: Penalty, names: tuple[str, ...], d: int) -> None:
    """Raise if an attribute given by row does not have one value for each of the d rows."""
    for name in names:
        shape = jnp.shape(getattr(penalty, name))
        if shape and shape[-1] != d:
            raise ValueError(
                f"{type(penalty).__name__}: {name} has shape {shape}; it must be a scalar or one value a "
                f"row, ({d},)."
            )


class TransposedPenalty(Penalty):
    """Implements the protocol by hooks on ``Wt`` = W' (k, d), whose rows are the columns of W.

    A subclass defines ``_value``, ``_prox`` and ``_dual_scale``, and ``_conjugate`` if the conjugate is not 0
    where it is finite. Without ``smooth_where`` solutions are differentiated through the prox.
    """

    _adapter: ClassVar[bool] = True
    finite_conjugate: bool = False

    def value(self, W: jax.Array) -> jax.Array:
        """g(W), shape ()."""
        return self._value(checked(self, W, "W"))

    def prox(self, V: jax.Array, scaling: ArrayLike = 1.0) -> jax.Array:
        """The exact proximal point of V at step size ``scaling``; shape and dtype of V."""
        Vt = checked(self, V, "V")
        check_step("scaling", scaling)
        scaling = jnp.asarray(scaling, V.dtype)
        # Another unit of V needs other strengths, which follow from the degree of each strength.
        if "units" not in self.provides or len(self.degrees) != len(self.strengths):
            return like(self._prox(Vt, scaling), V)
        unit, inverse = unit_of(V)  # in this unit squares of V neither overflow nor underflow
        scaled = in_units(self, unit, jnp.ones((), V.dtype))
        return unit * like(scaled._prox(columns(V * inverse), scaling), V)

    def conjugate(self, Z: jax.Array, aux: Any = None) -> jax.Array:
        """g*(Z), shape (), for Z with ``dual_scale(Z) >= 1``.

        The condition is not checked, since rounding errors can violate it. ``aux`` is a point at which Z is
        nearly a subgradient, or a split of Z over the terms; closed forms do not use it.
        """
        return self._conjugate(checked(self, Z, "Z"))

    def dual_scale(self, Z: jax.Array, aux: Any = None) -> jax.Array:
        """The largest s >= 0, (), such that ``conjugate(s * Z)`` is finite; inf if it is finite for all s."""
        return self._dual_scale(checked(self, Z, "Z"))

    # ------------------------------------------------------------------ the hooks

    def _value(self, Wt: jax.Array) -> jax.Array:
        raise NotImplementedError

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        raise NotImplementedError

    def _conjugate(self, Zt: jax.Array) -> jax.Array:
        return jnp.zeros((), Zt.dtype)

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        raise NotImplementedError

    def _feasible(self, W: jax.Array) -> jax.Array:
        """W, unchanged: a subclass that is infinite somewhere has a method of its own."""
        return W


class GroupPenalty(TransposedPenalty):
    """A penalty on groups of features; features in no group are not penalised."""

    _adapter: ClassVar[bool] = True
    strengths = ("alpha",)
    alpha: jax.Array
    groups: Groups

    @property
    def free(self) -> jax.Array:
        """The unpenalised features, (f,)."""
        return self.groups.free

    def check(self, params_shape: tuple[int, ...]) -> None:
        """Raise if the groups have another number of features than W, or alpha another number of groups."""
        self.groups.check(type(self).__name__, self.alpha, params_shape)

    def _row_units(self, wanted: Any) -> jax.Array:
        """One unit for all features that overlapping groups connect: the largest unit wanted among them."""
        return self.groups.connected_maxima(wanted())


class RowPenalty(TransposedPenalty):
    """A penalty that is a sum over the rows of W.

    A subclass with an iterative prox also defines ``start_columns`` and ``warm_columns``, so that a call can
    start from the result of a nearby one.
    """

    _adapter: ClassVar[bool] = True

    def check(self, params_shape: tuple[int, ...]) -> None:
        """Raise if a strength given by row does not have one value for each of the d rows."""
        check_by_row(self, self.strengths, params_shape[0])

    def start_columns(self, Vt: jax.Array) -> Any:
        """The argument ``warm`` for the first call of `warm_columns`."""
        return ()

    def warm_columns(self, Vt: jax.Array, scaling: jax.Array, warm: Any) -> tuple[jax.Array, Any]:
        """The prox, nearly exact if ``warm`` comes from a nearby call, and ``warm`` for the next call."""
        return self._prox(Vt, scaling), warm

    def _prox_start(self, V: jax.Array) -> Any:
        return self.start_columns(columns(V))

    def _prox_columns(
        self, Vt: jax.Array, scaling: jax.Array, warm: Any, W: jax.Array
    ) -> tuple[jax.Array, Any]:
        return self.warm_columns(Vt, scaling, warm)

    def _row_units(self, wanted: Any) -> jax.Array:
        """The units wanted: a sum over rows accepts any units."""
        return wanted()

    def _row_strengths(self, d: int) -> jax.Array | None:
        """The sum of the strengths of degree 1, () or (d,); of strengths by entry the largest of each row.

        Strengths of another shape do not count. None if there is no strength.
        """
        found = [
            jnp.asarray(getattr(self, name))
            for name, degree in zip(self.strengths, self.degrees, strict=True)
            if degree == 1
        ]
        by_row = [strength if strength.ndim < 2 else jnp.max(strength, axis=1) for strength in found]
        return added([strength for strength in by_row if strength.shape in ((), (d,))])

    def _penalised(self, Wt: jax.Array) -> jax.Array:
        """The rows in which a strength is not 0."""
        rows = jnp.zeros(Wt.shape[1:], bool)
        for name in self.strengths:
            rows |= cast(getattr(self, name), Wt) > 0
        return rows


class SparseRowPenalty(RowPenalty):
    """A `RowPenalty` that makes rows zero; ``_slopes`` says which zero rows stay zero at a gradient."""

    _adapter: ClassVar[bool] = True

    def row_slopes(self, Z: jax.Array, W: jax.Array | None = None) -> jax.Array:
        """(d,), at most 1 where a zero row stays zero if Z is minus the gradient."""
        return self._slopes(columns(Z))

    def rows_at(self, ix: jax.Array) -> Penalty:
        """The penalty of a W with the rows ``ix`` only; the index d, which is no row, gets the strength 1."""
        take = lambda strength: jnp.take(strength, ix, axis=-1, mode="fill", fill_value=1)
        return jax.tree.map(lambda leaf: take(leaf) if jnp.ndim(leaf) else leaf, self)

    def _slopes(self, Zt: jax.Array) -> jax.Array:
        raise NotImplementedError


class SmoothRowPenalty(RowPenalty):
    """A `RowPenalty` that is smooth on the support of its prox points, with the Hessian ``curvature``."""

    _adapter: ClassVar[bool] = True

    def smooth_where(self, W: jax.Array) -> jax.Array:
        """The entries that are not 0, boolean, shape of W."""
        return W != 0

    def curvature(self, Wt: jax.Array) -> tuple[jax.Array, jax.Array]:
        r"""(q, b), each (d,): on the support the Hessian of row i is :math:`q_i(I - uu^\top) + b_i ss^\top`.

        Here u = w_i/||w_i|| and s = sign(w_i).
        """
        raise NotImplementedError

    def _half_derivative(self, W: jax.Array, scaling: jax.Array) -> Map:
        half = in_planes(columns(W), *(scaling * c for c in self.curvature(columns(W))))
        return lambda V: like(half(columns(V)), V)


def cast(strength: ArrayLike, Wt: jax.Array) -> jax.Array:
    """A strength as an array in the dtype of Wt."""
    return jnp.asarray(strength, Wt.dtype)


def over_norm(alpha: ArrayLike, Wt: jax.Array) -> jax.Array:
    """alpha_i / ||w_i||, 0 in zero rows."""
    return safe_divide(cast(alpha, Wt), safe_norm(Wt))


def least_ratio(strength: jax.Array, norm: jax.Array) -> jax.Array:
    """min over rows of strength / norm, inf where the norm is 0."""
    # The derivative of inf / norm would be infinite; NaN stays.
    norm = jnp.where(jnp.isinf(strength) & jnp.isfinite(norm), 0, norm)
    return jnp.min(safe_divide(strength, norm, jnp.inf), initial=jnp.inf)


def slope_ratio(norm: jax.Array, strength: jax.Array) -> jax.Array:
    """norm / strength; without a strength 0 where the norm is 0, so that a zero stays, else inf."""
    return safe_divide(norm, strength, jnp.where(norm != 0, jnp.inf, 0))


def where_unsquared(beta: ArrayLike, strength: jax.Array) -> jax.Array:
    """The strength in rows with beta = 0; inf, which is no limit, in rows with a squared part (beta > 0)."""
    return jnp.where(jnp.asarray(beta) > 0, jnp.inf, strength)


def squared_conjugate(m: jax.Array, beta: jax.Array) -> jax.Array:
    """sum_i m_i^2 / (4 beta_i), (), over the rows with beta_i > 0: the conjugate of sum_i beta_i ||w_i||^2.

    m_i is the dual norm of row i, for any norm. For exclusive l2,1, m_i is the `tail_threshold` of row i.
    """
    return jnp.sum(safe_divide(m * m, 4 * beta))
