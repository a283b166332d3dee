"""Use with other libraries: optax optimisers, and programs written for jaxopt."""

from sparsejax.interop import jaxopt, optax

__all__ = ["jaxopt", "optax"]
