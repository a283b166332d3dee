"""Bases of penalties that are sums over rows, whose hooks take the transpose of W."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax._core.linalg import columns, like, safe_divide, safe_norm
from sparsejax.penalties._base import Penalty
from sparsejax.penalties._in_units import prox_in_units, row_units
from sparsejax.penalties._terms import feasible
from sparsejax.penalties._warm import prox_start, prox_warm


class RowPenalty(Penalty):
    """Implements the protocol by hooks that take ``Wt`` (k, d), the transpose of W on which solvers work.

    A subclass gives ``_value``, ``_prox`` or ``warm_columns``, ``_dual_scale`` and, where it is not 0,
    ``_conjugate``.
    """

    _adapter: ClassVar[bool] = True
    finite_conjugate: bool = False

    def value(self, W: jax.Array) -> jax.Array:
        """g(W), shape ()."""
        return self._value(columns(W))

    def prox(self, V: jax.Array, scaling: ArrayLike = 1.0) -> jax.Array:
        """The exact proximal point of V at step size ``scaling``; shape and dtype of V."""
        found = prox_in_units(self, lambda penalty, Vt, step: penalty._prox(Vt, step), columns(V), scaling)
        return like(found, V)

    def conjugate(self, Z: jax.Array, aux: Any = None) -> jax.Array:
        """g*(Z), shape (), for a Z with ``dual_scale(Z) >= 1``, which is not tested because of rounding.

        ``aux`` is a point at which Z is nearly a subgradient, or a split of Z; closed forms do not use it.
        """
        return self._conjugate(columns(Z))

    def dual_scale(self, Z: jax.Array, aux: Any = None) -> jax.Array:
        """The largest s >= 0 at which ``conjugate(s * Z)`` is finite; inf if there is no largest."""
        return self._dual_scale(columns(Z))

    def check(self, params_shape: tuple[int, ...]) -> None:
        """Raise if a strength given by row does not have one value for each of the d rows."""
        for name in self.strengths:
            strength = jnp.shape(getattr(self, name))
            if strength and strength[-1] != params_shape[0]:
                raise ValueError(
                    f"{type(self).__name__}: {name} has shape {strength}; it must be a scalar or "
                    f"one value a row, ({params_shape[0]},)."
                )

    # ------------------------------------------------------------------ the hooks

    def _value(self, Wt: jax.Array) -> jax.Array:
        raise NotImplementedError

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        raise NotImplementedError

    def start_columns(self, Vt: jax.Array) -> Any:
        """The argument ``warm`` for the first call of `warm_columns`."""
        return ()

    def warm_columns(self, Vt: jax.Array, scaling: jax.Array, warm: Any) -> tuple[jax.Array, Any]:
        """The prox, nearly exact if ``warm`` comes from a nearby call, and ``warm`` for the next call."""
        return self._prox(Vt, scaling), warm

    def _conjugate(self, Zt: jax.Array) -> jax.Array:
        return jnp.zeros((), Zt.dtype)

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        raise NotImplementedError


@prox_start.register(RowPenalty)
def _(penalty: RowPenalty, V: jax.Array) -> Any:
    return penalty.start_columns(columns(V))


@prox_warm.register(RowPenalty)
def _(penalty: RowPenalty, V: jax.Array, scaling: jax.Array, warm: Any) -> tuple[jax.Array, Any]:
    Zt, warm = penalty.warm_columns(columns(V), scaling, warm)
    return like(Zt, V), warm


@row_units.register(RowPenalty)
def _(penalty: RowPenalty, wanted: Any) -> jax.Array:
    """The units wanted: a sum over rows accepts any units."""
    return wanted()


@feasible.register(RowPenalty)
def _(penalty: RowPenalty, W: jax.Array) -> jax.Array:
    """W, unchanged: a sum over rows is finite everywhere."""
    return W


class SparseRowPenalty(RowPenalty):
    """A `RowPenalty` that makes rows zero; ``_slopes`` says which zero rows stay zero at a gradient."""

    _adapter: ClassVar[bool] = True

    def row_slopes(self, Z: jax.Array, W: jax.Array | None = None) -> jax.Array:
        """(d,), at most 1 where a zero row stays zero if Z is minus the gradient."""
        return self._slopes(columns(Z))

    def rows_at(self, ix: jax.Array) -> Penalty:
        """The penalty of a W with the rows ``ix`` only; for the index d, no row, strengths are 1."""
        leaves, treedef = jax.tree.flatten(self)
        taken = [
            leaf if jnp.ndim(leaf) == 0 else jnp.take(leaf, ix, axis=-1, mode="fill", fill_value=1)
            for leaf in leaves
        ]
        return jax.tree.unflatten(treedef, taken)

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


def cast(strength: ArrayLike, Wt: jax.Array) -> jax.Array:
    """A strength as an array in the dtype of Wt."""
    return jnp.asarray(strength, Wt.dtype)


def over_norm(alpha: ArrayLike, Wt: jax.Array) -> jax.Array:
    """alpha_i / ||w_i||, 0 in zero rows."""
    return safe_divide(cast(alpha, Wt), safe_norm(Wt))


def least_ratio(strength: jax.Array, norm: jax.Array) -> jax.Array:
    """min over rows of strength / norm, inf where the norm is 0."""
    return jnp.min(safe_divide(strength, norm, jnp.inf))


def where_unsquared(beta: ArrayLike, strength: jax.Array) -> jax.Array:
    """The strength in rows with beta = 0; inf, which is no limit, in rows with a squared part (beta > 0)."""
    return jnp.where(jnp.asarray(beta) > 0, jnp.inf, strength)


def squared_conjugate(m: jax.Array, beta: jax.Array) -> jax.Array:
    """sum_i m_i^2 / (4 beta_i) over the rows with beta_i > 0: the conjugate of sum_i beta_i ||w_i||^2."""
    return jnp.sum(safe_divide(m * m, 4 * beta))
