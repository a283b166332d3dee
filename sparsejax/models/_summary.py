"""The repr of a fitted model, in one line."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from sparsejax._core.checks import is_traced
from sparsejax._core.pytree import Pytree


def summary(model: Pytree, sizes: str, solutions: Sequence[Any], kept: Callable[[], str]) -> str:
    """Name and sizes of a model, the number of selected features, the largest gap, and whether it converged.

    Args:
      model: a model of a module of `sparsejax.models`.
      sizes: its sizes as text.
      solutions: objects with ``gap`` and ``converged``.
      kept: () -> the number of selected features as text; not called inside jit.
    """
    parts = [sizes]
    if any(map(is_traced, jax.tree.leaves(model))):
        parts.append("traced")
    else:
        gap = np.max([np.max(np.asarray(solution.gap)) for solution in solutions])
        converged = all(np.asarray(solution.converged).all() for solution in solutions)
        known = "gap unknown" if np.isnan(gap) else f"gap {gap:.1e}"
        parts += [kept(), known, "converged" if converged else "not converged"]
    name = f"{type(model).__module__.split('.')[2]}.{type(model).__name__}"
    return f"{name}({', '.join(parts)})"
