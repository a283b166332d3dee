"""A penalty in other units of W: one unit for all rows, or one for each row."""

from collections.abc import Callable

import jax

from sparsejax._core.linalg import opaque
from sparsejax.penalties._base import Penalty, scale_strengths
from sparsejax.penalties._rules import Rule


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
