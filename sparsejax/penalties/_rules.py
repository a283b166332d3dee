"""Functions of a penalty that work for every class, with better rules registered for some classes."""

from collections.abc import Callable
from functools import lru_cache, singledispatch
from typing import Any

import jax
import jax.numpy as jnp

from sparsejax._core.linalg import columns, like, opaque
from sparsejax.penalties._base import Penalty, scale_strengths


class Rule:
    """A function of a penalty: the rule registered for its class, or else ``default``.

    The rule of a class holds for its subclasses, except for a subclass outside this library that replaces
    ``value`` or ``prox``: for such a class the default holds.
    """

    def __init__(self, default: Callable[..., Any]):
        self.table = singledispatch(default)

    def __call__(self, penalty: Any, *args: Any, **options: Any) -> Any:
        return self.table.dispatch(_known(penalty.__class__))(penalty, *args, **options)

    def register(self, *classes: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A decorator that makes a function the rule of these classes."""

        def add(rule: Callable[..., Any]) -> Callable[..., Any]:
            for cls in classes:
                self.table.register(cls, rule)
            return rule

        return add


@lru_cache(maxsize=256)
def _known(cls: type) -> type:
    """The first base of this library whose ``value`` and ``prox`` the class inherits, else `Penalty`."""
    for base in cls.__mro__:
        if base.__module__.split(".")[0] == __name__.split(".")[0]:
            return base
        if "value" in vars(base) or "prox" in vars(base):
            break
    return Penalty


# ---- where a penalty is finite, smooth, constant


@Rule
def penalised(penalty: Penalty, Wt: jax.Array) -> jax.Array:
    """(d,) or (k, d) boolean: the rows or entries on which g depends, by its strengths; Wt (k, d)."""
    return jnp.ones(Wt.shape[1:], bool)


@Rule
def covers(penalty: Penalty, Wt: jax.Array) -> jax.Array:
    """(d,) or (k, d) boolean: where g has subgradients that are nonzero in one row or entry, at some W."""
    return penalised(penalty, Wt)


@Rule
def cleared(penalty: Penalty, Z: jax.Array) -> jax.Array:
    """Z, a subgradient of g but for rounding, without the part of the rounding that no subgradient has."""
    return Z


@Rule
def inside(penalty: Penalty, W: jax.Array) -> jax.Array:
    """The entries, boolean, in which g is known to be smooth at W, whether or not other entries stay at 0."""
    return penalty.smooth_where(W) if "support" in penalty.provides else jnp.zeros(W.shape, bool)


@Rule
def unpenalised(penalty: Penalty, d: int, dtype: Any) -> jax.Array:
    """The directions that g does not see: indices of rows (f,), or orthonormal columns (d, f)."""
    return penalty.free


@Rule
def feasible(penalty: Penalty, W: Any) -> Any:
    """A point near W at which g is finite: W, or the prox of W at a scaling of 0 if g(W) is infinite."""
    outside = penalty.value(W) == jnp.inf
    return jax.tree.map(lambda w, near: jnp.where(outside, near, w), W, penalty.prox(W, 0.0))


# ---- other units of W, one for all rows or for each


@Rule
def in_units(penalty: Penalty, sigma: jax.Array, gamma: jax.Array) -> Penalty:
    r"""The penalty gamma g(sigma V) / sigma^2 of V: a strength of degree p times gamma sigma^(p-2)."""
    # `opaque` keeps XLA from merging the factor into a product that underflows, see `unit_of`.
    factors = [gamma if degree == 2 else opaque(gamma * sigma ** (degree - 2)) for degree in penalty.degrees]
    return scale_strengths(penalty, factors)


@Rule
def row_units(penalty: Penalty, wanted: Callable[[], jax.Array]) -> jax.Array | None:
    """Units (d,) near ``wanted()`` that `rescaled` accepts for this penalty; None if it accepts none."""
    return None


@Rule
def rescaled(penalty: Penalty, units: jax.Array) -> Penalty:
    """The penalty of V = W * units (d,), row by row: a strength of degree p is divided by units^p."""
    return scale_strengths(penalty, [1 / units**degree for degree in penalty.degrees])


@Rule
def by_entry(penalty: Penalty, params_shape: tuple[int, ...]) -> Penalty:
    """The penalty with strengths by column, (k,), in the form (1, k), which tells columns from rows."""
    return penalty


# ---- iterative proxes that start where the last ended


@Rule
def prox_start(penalty: Penalty, V: jax.Array) -> Any:
    """The argument ``warm`` for the first call of `prox_warm`."""
    return ()


@Rule
def prox_warm(penalty: Penalty, V: jax.Array, scaling: jax.Array, warm: Any) -> tuple[jax.Array, Any]:
    """The prox, nearly exact if ``warm`` comes from a nearby call, and ``warm`` for the next call."""
    return penalty.prox(V, scaling), warm


def prox_columns(
    penalty: Penalty, Vt: jax.Array, scaling: jax.Array, warm: Any, W: jax.Array
) -> tuple[jax.Array, Any]:
    """`prox_warm` for the transpose Vt of a matrix like W; solvers iterate on transposes."""
    V, warm = prox_warm(penalty, like(Vt, W), scaling, warm)
    return columns(V), warm
