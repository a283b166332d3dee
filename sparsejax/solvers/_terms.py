"""Penalties of several terms: one point a term, joined into the answer."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from sparsejax._core.layout import columns, like
from sparsejax.penalties import Penalty


def joined(penalty: Penalty, points: tuple[jax.Array, ...], W: jax.Array) -> jax.Array:
    """Of one prox point a term the last, set to zero where another term's point is zero in its whole group.

    Points are transposes of matrices like W.
    """
    *others, Wt = points
    for term, other in zip(penalty.terms, others, strict=False):
        point = like(other, W)
        on = term.smooth_where(point) if "support" in term.provides else point != 0
        Wt = jnp.where(columns(on), Wt, 0)
    return Wt


def minus(a: Sequence[jax.Array], b: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Of tuples, entry by entry."""
    return tuple(x - y for x, y in zip(a, b, strict=True))
