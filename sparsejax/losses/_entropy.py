"""Exponentials and the relative entropy p log(p/q) - p + q of the Poisson, multinomial and Cox losses."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy

from sparsejax._core.linalg import safe_divide

# With t = (p - q)/q the entropy is q `log_excess`(t). The series computes it for |t| below this bound, where
# the formula p log(p/q) - (p - q) loses digits to cancellation.
MAX_SERIES_RATIO = 0.25
LAST_EXPONENT = 19  # of u in the series of `log_excess`


def log_excess(x: jax.Array) -> jax.Array:
    r"""``(1 + x) log(1 + x) - x`` for :math:`|x| < 1/4`, to full precision.

    With :math:`u = x/(2 + x)` the value is :math:`2/(1 - u)` times
    :math:`u^2 + (1 + u)(u^3/3 + u^5/5 + \ldots)`, where nothing cancels. A CPU computes this polynomial in
    less time than ``log1p``. As |u| <= 1/7, the terms beyond `LAST_EXPONENT` are below the rounding of
    float64.
    """
    u = x / (2 + x)
    square, series = u * u, jnp.zeros_like(u)
    for k in range(LAST_EXPONENT, 1, -2):
        series = series * square + 1 / k
    return 2 / (1 - u) * square * (1 + (1 + u) * u * series)


def relative_entropy(log_q: jax.Array, change: jax.Array) -> jax.Array:
    """``p log(p/q) - p + q >= 0`` of each entry ``p = q + change``; inf where p < 0 or q is not finite."""
    q = jnp.exp(log_q)
    p = q + change
    inside = (p >= 0) & (q < jnp.inf)
    log_q, p = jnp.where(inside, log_q, 0), jnp.where(inside, p, 1)
    t = jnp.where(inside, safe_divide(change, q, jnp.inf), 0)  # q may be 0 by underflow
    moderate, near = jnp.abs(t) < 1, jnp.abs(t) < MAX_SERIES_RATIO
    t = jnp.where(moderate, t, 0)
    direct = jnp.where(moderate, p * jnp.log1p(t), xlogy(p, p) - p * log_q) - change
    excess = jnp.where(near, q * log_excess(t), jnp.maximum(direct, 0))
    return jnp.where(inside, excess, jnp.inf)


def at_most_half(exponent: jax.Array) -> jax.Array:
    """The exponents, cut at half of the largest x for which e^x is finite.

    A row of weight 0 may have any exponent. The cut keeps ``weight * e^exponent``, and its derivative in the
    weight, finite there. Callers shift exponents so that rows with a weight > 0 are never cut.
    """
    return jnp.minimum(exponent, float(np.log(np.finfo(exponent.dtype).max)) / 2)
