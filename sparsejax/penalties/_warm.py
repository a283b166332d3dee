"""Proxes that begin where the last call ended; of most penalties the prox has nothing to begin from."""

from typing import Any

import jax

from sparsejax._core.linalg import columns, like
from sparsejax.penalties._base import Penalty
from sparsejax.penalties._rules import Rule


@Rule
def prox_start(penalty: Any, V: jax.Array) -> Any:
    """The first ``warm`` of `prox_warm`."""
    return ()


@Rule
def prox_warm(penalty: Any, V: jax.Array, scaling: jax.Array, warm: Any) -> tuple[jax.Array, Any]:
    """The prox, exact or nearly when ``warm`` is near, and what makes the next call cheaper."""
    return penalty.prox(V, scaling), warm


def prox_columns(
    penalty: Penalty, Vt: jax.Array, scaling: jax.Array, warm: Any, W: jax.Array
) -> tuple[jax.Array, Any]:
    """`prox_warm` on the transpose of a matrix like W, which is what solvers iterate on."""
    V, warm = prox_warm(penalty, like(Vt, W), scaling, warm)
    return columns(V), warm
