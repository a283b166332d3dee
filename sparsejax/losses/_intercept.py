"""The best intercept of a loss of a linear model."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import eps_of, safe_divide


@jax.jit
def balance(loss: Any, H: jax.Array) -> jax.Array:
    """A root b of the increasing function ``loss.imbalance(b, H)``, by Newton with a bisection safeguard."""
    bound = loss.reach + jnp.max(jnp.abs(H), axis=0)
    eps = eps_of(H)

    def body(carry: Any) -> Any:
        b, low, high, _, n = carry
        value, slope = loss.imbalance(b, H)
        low, high = jnp.where(value < 0, b, low), jnp.where(value > 0, b, high)
        step = b - safe_divide(value, slope, value)
        inside = (slope > 0) & (step > low) & (step < high)
        new = jnp.where(value == 0, b, jnp.where(inside, step, (low + high) / 2))
        return new, low, high, jnp.abs(new - b) > 2 * eps * (1 + jnp.abs(b)), n + 1

    def cond(carry: Any) -> jax.Array:
        going: jax.Array = jnp.any(carry[3]) & (carry[4] < 100)
        return going

    start = (jnp.zeros_like(bound), -bound, bound, jnp.ones(bound.shape, bool), jnp.int32(0))
    root: jax.Array = lax.while_loop(cond, body, start)[0]
    return root
