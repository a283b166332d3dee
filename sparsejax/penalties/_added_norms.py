"""A sum of penalties as one norm of rows or groups, if the sum is one."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import jax.numpy as jnp

from sparsejax.penalties._base import RowNorm
from sparsejax.penalties._norms import L1
from sparsejax.penalties._rules import is_a
from sparsejax.penalties._simple import SquaredL2


def added_norms(parts: Sequence[Any], params_shape: tuple[int, ...]) -> RowNorm | None:
    """The `RowNorm` that is the sum of the parts for a W of this shape; None if the sum is no such norm.

    The parts are `SquaredL2`, `L1` and other penalties with a ``row_norm``. If one part is a norm of groups,
    all other parts must be `L1` or `SquaredL2`, and the strengths of the squares must be scalars. The
    strength of an `L1` must be a scalar or have one value a row. If every block is one entry, the strength of
    the `L1` is added to the norms. If not, it becomes the ``entries`` of the `RowNorm`, and the sum needs
    another part with a ``row_norm``.
    """
    squares = [jnp.asarray(part.strength) for part in parts if is_a(part, SquaredL2)]
    l1 = [jnp.asarray(part.strength) for part in parts if is_a(part, L1)]
    others = [part for part in parts if not is_a(part, SquaredL2, L1)]
    norms = [part.row_norm(params_shape) for part in others]
    groups = [norm.groups for norm in norms if norm is not None and norm.groups is not None]
    if None in norms or not (l1 or norms):
        return None
    if groups and (len(norms) > 1 or any(strength.ndim for strength in squares)):
        return None
    nonnegative = any(norm.nonnegative for norm in norms if norm is not None)
    single = not groups and (len(params_shape) == 1 or params_shape[1] == 1)  # blocks of one entry
    if single:
        l1 = [strength.reshape(-1) if strength.ndim == 2 else strength for strength in l1]
    if any(strength.shape not in ((), params_shape[:1]) for strength in l1) or not (norms or single):
        return None
    alphas = [jnp.asarray(norm.alpha) for norm in norms] + (l1 if single else [])
    ridge = reduce(jnp.add, squares) if squares else None
    entries = reduce(jnp.add, l1) if l1 and not single else None
    return RowNorm(reduce(jnp.add, alphas), ridge, groups[0] if groups else None, entries, nonnegative)
