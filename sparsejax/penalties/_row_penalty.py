"""Bases of penalties that are sums over rows, whose hooks take the transpose of W."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax._core.linalg import columns, like, safe_divide, safe_norm
from sparsejax.penalties._base import Penalty
from sparsejax.penalties._in_units import row_units
from sparsejax.penalties._terms import penalised
from sparsejax.penalties._transposed import TransposedPenalty
from sparsejax.penalties._warm import prox_start, prox_warm


class RowPenalty(TransposedPenalty):
    """A penalty that is a sum over the rows of W.

    A subclass gives ``warm_columns`` instead of ``_prox`` where a nearby call helps.
    """

    _adapter: ClassVar[bool] = True

    def check(self, params_shape: tuple[int, ...]) -> None:
        """Raise if a strength given by row does not have one value for each of the d rows."""
        for name in self.strengths:
            strength = jnp.shape(getattr(self, name))
            if strength and strength[-1] != params_shape[0]:
                raise ValueError(
                    f"{type(self).__name__}: {name} has shape {strength}; it must be a scalar or "
                    f"one value a row, ({params_shape[0]},)."
                )

    def start_columns(self, Vt: jax.Array) -> Any:
        """The argument ``warm`` for the first call of `warm_columns`."""
        return ()

    def warm_columns(self, Vt: jax.Array, scaling: jax.Array, warm: Any) -> tuple[jax.Array, Any]:
        """The prox, nearly exact if ``warm`` comes from a nearby call, and ``warm`` for the next call."""
        return self._prox(Vt, scaling), warm


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


@penalised.register(RowPenalty)
def _(penalty: RowPenalty, Wt: jax.Array) -> jax.Array:
    """The rows in which a strength is not 0."""
    rows = jnp.zeros(Wt.shape[1:], bool)
    for name in penalty.strengths:
        rows |= cast(getattr(penalty, name), Wt) > 0
    return rows


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
    return jnp.min(safe_divide(strength, norm, jnp.inf), initial=jnp.inf)


def where_unsquared(beta: ArrayLike, strength: jax.Array) -> jax.Array:
    """The strength in rows with beta = 0; inf, which is no limit, in rows with a squared part (beta > 0)."""
    return jnp.where(jnp.asarray(beta) > 0, jnp.inf, strength)


def squared_conjugate(m: jax.Array, beta: jax.Array) -> jax.Array:
    """sum_i m_i^2 / (4 beta_i) over the rows with beta_i > 0: the conjugate of sum_i beta_i ||w_i||^2."""
    return jnp.sum(safe_divide(m * m, 4 * beta))
