"""Functions of a penalty that work for every class, with better rules registered for some classes."""

from collections.abc import Callable, Sequence
from functools import lru_cache, singledispatch
from typing import Any

import jax
import jax.numpy as jnp

from sparsejax._core.checks import is_traced
from sparsejax._core.linalg import columns, like, opaque
from sparsejax._core.matrices.sharded import answer_of
from sparsejax.penalties._base import Penalty, all_valid, scale_strengths, strength_numbers


class Rule:
    """A function of a penalty: it calls the rule registered for the penalty's class, or else ``default``.

    The rule of a class holds for its subclasses. A subclass outside this library that replaces ``value`` or
    ``prox`` gets the default, since the rule may not fit its function.
    """

    def __init__(self, default: Callable[..., Any]):
        self.table = singledispatch(default)

    def __call__(self, penalty: Any, *args: Any, **options: Any) -> Any:
        return self.table.dispatch(known_class(penalty.__class__))(penalty, *args, **options)

    def register(self, *classes: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A decorator that makes a function the rule of these classes."""

        def add(rule: Callable[..., Any]) -> Callable[..., Any]:
            for cls in classes:
                self.table.register(cls, rule)
            return rule

        return add


def added(found: Sequence[jax.Array | None]) -> jax.Array | None:
    """The sum of those that are not None; None if there are none."""
    some = [one for one in found if one is not None]
    return sum(some[1:], start=some[0]) if some else None


@lru_cache(maxsize=256)
def known_class(cls: type) -> type:
    """The class whose rule holds for ``cls``: its first base (or itself) that is defined in this library.

    It is `Penalty` if a class outside the library defines value or prox before that base.
    """
    for base in cls.__mro__:
        if base.__module__.split(".")[0] == __name__.split(".")[0]:
            return base
        if "value" in vars(base) or "prox" in vars(base):
            break
    return Penalty


# ---- where a penalty g is finite, smooth, constant


@Rule
def penalised(penalty: Penalty, Wt: jax.Array) -> jax.Array:
    """Boolean (d,) or (k, d): the rows or entries that g depends on. Wt (k, d) gives only shape and dtype."""
    return jnp.ones(Wt.shape[1:], bool)


@Rule
def covers(penalty: Penalty, Wt: jax.Array) -> jax.Array:
    """Boolean (d,) or (k, d): the rows or entries that can be the only nonzero ones of a subgradient of g."""
    return penalised(penalty, Wt)


@Rule
def cleared(penalty: Penalty, Z: jax.Array) -> jax.Array:
    """Z, nearly a subgradient of g, projected onto the span of all subgradients; here Z: no span is known."""
    return Z


@Rule
def inside(penalty: Penalty, W: jax.Array) -> jax.Array:
    """Boolean, shape of W: where g is known to be smooth at W. The other entries may leave 0 nearby."""
    return penalty.smooth_where(W) if "support" in penalty.provides else jnp.zeros(W.shape, bool)


@Rule
def unpenalised(penalty: Penalty, d: int, dtype: Any) -> jax.Array:
    """The directions in which g is constant: indices of rows (f,), or orthonormal columns (d, f)."""
    return penalty.free


@Rule
def feasible(penalty: Penalty, W: Any) -> Any:
    """A point near W at which g is finite: W, or the prox of W at a scaling of 0 if g(W) is infinite."""
    outside = penalty.value(W) == jnp.inf
    return jax.tree.map(lambda w, near: jnp.where(outside, near, w), W, penalty.prox(W, 0.0))


# ---- other units of W, one for all rows or for each


@Rule
def in_units(penalty: Penalty, sigma: jax.Array, gamma: jax.Array) -> Penalty:
    r"""The penalty V -> gamma g(sigma V) / sigma^2: gamma sigma^(p-2) times each strength of degree p."""
    # `opaque` keeps XLA from merging the factor into a product that underflows, see `linalg.unit_of`.
    factors = [gamma if degree == 2 else opaque(gamma * sigma ** (degree - 2)) for degree in penalty.degrees]
    return scale_strengths(penalty, factors)


@Rule
def row_units(penalty: Penalty, wanted: Callable[[], jax.Array]) -> jax.Array | None:
    """Units (d,) for `rescaled`, near those that ``wanted()`` returns; None if g allows no units of rows."""
    return None


@Rule
def row_strengths(penalty: Penalty, d: int) -> jax.Array | None:
    """Strengths of norms, () or one for each of the d rows; None if g has no such strength."""
    return None


@Rule
def rescaled(penalty: Penalty, units: jax.Array) -> Penalty:
    """The penalty of V = W * units (d,), row by row: a strength of degree p is divided by units^p."""
    return scale_strengths(penalty, [1 / units**degree for degree in penalty.degrees])


@Rule
def by_entry(penalty: Penalty, params_shape: tuple[int, ...]) -> Penalty:
    """The penalty with strengths by column (k,) reshaped to (1, k), so that they are not taken for rows."""
    return penalty


# ---- iterative proxes that start where the last ended


@Rule
def prox_start(penalty: Penalty, V: jax.Array) -> Any:
    """The argument ``warm`` for the first call of `prox_columns`; here empty: the prox is not iterative."""
    return ()


@Rule
def prox_columns(
    penalty: Penalty, Vt: jax.Array, scaling: jax.Array, warm: Any, W: jax.Array
) -> tuple[jax.Array, Any]:
    """The prox of Vt, the transpose of a V in the shape of W, and ``warm`` for the next call.

    It is nearly exact if ``warm`` comes from a nearby call. Solvers iterate on transposes.
    """
    return columns(penalty.prox(like(Vt, W), scaling)), warm


# ---- what a message or a plot calls the numbers of g


@Rule
def leaf_names(penalty: Penalty) -> list[str]:
    """The name of each leaf: its attribute, and in a `Sum` its term, "strength of L1"."""
    paths = jax.tree_util.tree_flatten_with_path(penalty)[0]
    return [jax.tree_util.keystr(key).lstrip(".") for key, _ in paths]


def check_strengths(caller: str, penalty: Penalty) -> None:
    """Raise if a strength is negative or not finite: constructors check nothing under `jax.vmap`."""
    leaves, names = jax.tree.leaves(penalty), leaf_names(penalty)
    for number in strength_numbers(penalty):
        leaf = leaves[number]
        if not is_traced(leaf) and not answer_of(all_valid, leaf):
            raise ValueError(f"{caller}: {names[number]} must be finite and >= 0, got {leaf}.")
