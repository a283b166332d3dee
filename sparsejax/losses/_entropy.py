"""The relative entropy p log(p/q) - p + q, the divergence of the Poisson and the multinomial loss."""

import jax
import jax.numpy as jnp
from jax.scipy.special import xlogy

from sparsejax._core.linalg import safe_divide

# With t = (p - q)/q the entropy is q sum_{j >= 2} (-1)^j t^j / (j (j - 1)). For |t| below this bound seven
# terms have all digits of float64, while p log(p/q) - (p - q) loses digits to cancellation.
MAX_SERIES_RATIO = 0.01
SERIES_COEFFICIENTS = (1 / 56, -1 / 42, 1 / 30, -1 / 20, 1 / 12, -1 / 6, 1 / 2)  # from j = 8 to j = 2


def relative_entropy(log_q: jax.Array, change: jax.Array) -> jax.Array:
    """``p log(p/q) - p + q >= 0`` of each entry ``p = q + change``; inf where p < 0 or q is not finite."""
    q = jnp.exp(log_q)
    p = q + change
    inside = (p >= 0) & (q < jnp.inf)
    log_q, p = jnp.where(inside, log_q, 0), jnp.where(inside, p, 1)
    t = jnp.where(inside, safe_divide(change, q, jnp.inf), 0)  # q may be 0 by underflow
    moderate, near = jnp.abs(t) < 1, jnp.abs(t) < MAX_SERIES_RATIO
    t = jnp.where(moderate, t, 0)
    series = jnp.zeros_like(t)
    for coefficient in SERIES_COEFFICIENTS:  # Horner's scheme
        series = series * t + coefficient
    direct = jnp.where(moderate, p * jnp.log1p(t), xlogy(p, p) - p * log_q) - change
    excess = jnp.where(near, q * t * t * series, jnp.maximum(direct, 0))
    return jnp.where(inside, excess, jnp.inf)
