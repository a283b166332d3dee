"""Loops of many small steps, compiled into one function of machine code on a CPU."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata

# XLA on a CPU starts a kernel for each operation of a loop: about 0.1 us each, and ten times that where it
# spreads the operations of an iteration, if they are more than eight, over threads. Inside a call with the
# first attribute it makes one function of the whole loop; the second keeps the call from being dissolved.
# Versions of XLA that do not know the first attribute compute the same results.
ATTRIBUTES = {"xla_cpu_small_call": "true", "inlineable": "false"}


def compiles_loops() -> bool:
    """Whether `one_kernel` has an effect: only if the default device is a CPU."""
    return jax.default_backend() == "cpu"


def one_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled as a whole where it is called inside a program for a CPU.

    It suits loops whose iterations touch some hundred numbers: coordinate descent, recursions along an array.
    A large product in it is slower than outside, and XLA compiles neither a call of LAPACK nor a scatter in
    it. To write entries, use `lax.dynamic_update_slice`; a `jax.vmap` over its index makes it a scatter. On a
    CPU no solver that uses `one_kernel` has a batched index, since its lanes run one after another (see
    `sparsejax.driver.batching`). If the default device is an accelerator, an index may be batched, but then
    `one_kernel` calls the function as it is.

    Args:
      function: a function of arrays or of pytrees of arrays.

    Returns:
      A function with the same arguments and results.

    >>> import jax.numpy as jnp
    >>> from jax import lax
    >>> powers = one_kernel(lambda x: lax.fori_loop(0, 10, lambda i, y: y * x, 1.0))
    >>> float(powers(jnp.float32(2)))
    1024.0
    """
    compiled = jax.jit(function)

    def kernel(*args: Any) -> Any:
        with set_xla_metadata(**ATTRIBUTES):
            return compiled(*args)

    def call(*args: Any) -> Any:
        if not compiles_loops():
            return function(*args)
        # A program may be exported to another platform.
        return lax.platform_dependent(*args, cpu=kernel, default=function)

    return call
