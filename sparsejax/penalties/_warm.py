"""Iterative proxes that start from the result of the last call; most proxes are closed and need no start."""

from typing import Any

import jax

from sparsejax._core.linalg import columns, like
from sparsejax.penalties._base import Penalty
from sparsejax.penalties._rules import Rule


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
