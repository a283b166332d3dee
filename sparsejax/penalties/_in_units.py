"""A penalty in other units of W: one for all of it, or one a row."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax._core.linalg import opaque, unit_of
from sparsejax.penalties._base import scale_strengths
from sparsejax.penalties._rules import Rule


@Rule
def in_units(penalty: Any, sigma: jax.Array, gamma: jax.Array) -> Any:
    r"""gamma g(sigma V) / sigma^2 of V: strengths of degree p times gamma sigma^(p-2)."""
    # Behind a barrier for the reason that `unit_of` gives.
    factors = [gamma if degree == 2 else opaque(gamma * sigma ** (degree - 2)) for degree in penalty.degrees]
    return scale_strengths(penalty, factors)


@Rule
def row_units(penalty: Any, wanted: Callable[[], jax.Array]) -> jax.Array | None:
    """The units (d,), near those wanted, that `rescaled` takes; None where it takes none."""
    return None


@Rule
def rescaled(penalty: Any, units: jax.Array) -> Any:
    """The penalty of V = W * units, row by row: strengths divided by the power that is their degree."""
    return scale_strengths(penalty, [1 / units**degree for degree in penalty.degrees])


@Rule
def by_entry(penalty: Any, params_shape: tuple[int, ...]) -> Any:
    """The penalty with strengths by column, (k,), as (1, k): rows can be taken of it without their number."""
    return penalty


def prox_in_units(
    penalty: Any, prox: Callable[..., jax.Array], V: jax.Array, scaling: ArrayLike
) -> jax.Array:
    """``prox(penalty, V, scaling)`` where squares of V neither overflow nor are all 0: in units of V."""
    scaling = jnp.asarray(scaling, V.dtype)
    if "units" not in penalty.provides or len(penalty.degrees) != len(penalty.strengths):
        return prox(penalty, V, scaling)
    unit, _ = unit_of(V)
    return unit * prox(in_units(penalty, unit, jnp.ones((), V.dtype)), V / unit, scaling)
