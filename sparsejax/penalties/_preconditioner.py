r"""Approximate square roots of the derivative of a prox, for `Penalty._half_derivative`."""

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp

from sparsejax._core.linalg import columns, like, safe_divide, safe_norm
from sparsejax.penalties._rules import half_derivative

Map = Callable[[jax.Array], jax.Array]  # linear, V -> an array of the shape of V


def times_root(curvature: Any, scaling: jax.Array) -> Map:
    """The exact map for a diagonal Hessian, (1, d) or (k, d)."""
    half = 1 / jnp.sqrt(1 + scaling * curvature)
    return lambda V: like(half * columns(V), V)


def one_by_one(parts: Iterable[Any], W: jax.Array, scaling: jax.Array) -> Map:
    """The maps of the parts, one after another."""
    halves = [half_derivative(part, W, scaling) for part in parts]
    return lambda V: reduce(lambda v, half: half(v), halves, V)


def in_planes(Wt: jax.Array, q: jax.Array, b: jax.Array) -> Map:
    r"""The exact map if scaling times g has the Hessian :math:`q_i(I - uu^\top) + b_i ss^\top` in row i.

    Here u = w_i/||w_i|| and s = sign(w_i); q and b, each (d,), are `SmoothRowPenalty.curvature` times the
    scaling. :math:`J^{-1} = I + \text{scaling}\,\nabla^2 g(W)` is a multiple of I except in the plane spanned
    by u and s, where it is the 2 x 2 matrix N below; :math:`N^{-1/2} = (N^{-1} + \delta I)/\tau` with
    :math:`\delta = \det(N)^{-1/2}`, :math:`\tau^2 = \operatorname{tr} N^{-1} + 2\delta`.
    """
    # Orthonormal e1, e2 span the plane of s and u = c1 e1 + c2 e2.
    s, norm = jnp.sign(Wt), safe_norm(Wt)
    length = jnp.sqrt(jnp.maximum(jnp.sum(s * s, axis=0), 1))  # of s
    e1, u = s / length[None], safe_divide(Wt, norm[None])
    c1 = jnp.sum(u * e1, axis=0)
    orthogonal = u - c1[None] * e1
    c2 = safe_norm(orthogonal)
    e2 = safe_divide(orthogonal, c2[None])
    # N = (1 + q) I + b length^2 e1 e1' - q (c1, c2)(c1, c2)' with c1^2 + c2^2 = 1. No sum below has a
    # negative term: in a row that is nearly 0 q is huge, and 1 + q - q c1^2 would be rounding error.
    along_s, q1, q2 = 1 + b * length**2, q * c1 * c1, q * c2 * c2
    n11, n12, n22 = along_s + q2, -q * c1 * c2, 1 + q1
    det = along_s * n22 + q2
    delta = 1 / jnp.sqrt(det)
    tau = jnp.sqrt((n11 + n22) / det + 2 * delta)
    h11, h12, h22 = (n22 / det + delta) / tau, -n12 / det / tau, (n11 / det + delta) / tau
    plain = 1 / jnp.sqrt(1 + q)  # J^(1/2) off the plane

    def apply(V: jax.Array) -> jax.Array:
        v1, v2 = jnp.sum(e1 * V, axis=0), jnp.sum(e2 * V, axis=0)
        along1 = (h11 - plain) * v1 + h12 * v2
        along2 = (h22 - plain) * v2 + h12 * v1
        return plain[None] * V + e1 * along1[None] + e2 * along2[None]

    return apply
