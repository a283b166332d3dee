"""Arithmetic of penalties of several terms: one array a term."""

from collections.abc import Sequence

import jax


def minus(a: Sequence[jax.Array], b: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Of tuples, entry by entry."""
    return tuple(x - y for x, y in zip(a, b, strict=True))
