"""`one_kernel` changes how XLA compiles a function for a CPU, not what the function is."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax

from sparsejax._core.one_kernel import ATTRIBUTES, one_kernel


def sweep(x, count):
    """Sums along an array, in which each iteration needs the last one."""

    def step(i, x):
        last, own = (lax.dynamic_slice(x, ((i + back) % 5,), (1,)) for back in (4, 0))
        return lax.dynamic_update_slice(x, own + jnp.sin(last) / 2, (i % 5,))

    return lax.fori_loop(0, count, step, x)


def test_it_is_the_function_in_every_transformation(rng):
    kernel, x = one_kernel(sweep), jnp.asarray(rng.standard_normal((3, 5)))
    np.testing.assert_allclose(kernel(x[0], 12), sweep(x[0], 12), rtol=1e-14)
    lanes = jax.jit(jax.vmap(kernel, (0, None)))(x, 7)
    np.testing.assert_allclose(lanes, [sweep(one, 7) for one in x], rtol=1e-14)
    tangents = [jax.jvp(lambda x, f=f: f(x, 7), (x[0],), (x[1],))[1] for f in (kernel, sweep)]
    np.testing.assert_allclose(*tangents, rtol=1e-14)


def test_only_a_program_for_a_cpu_has_the_attributes(rng):
    x = rng.standard_normal(5)
    for platform in ("cpu", "cuda"):
        module = export.export(jax.jit(one_kernel(sweep)), platforms=[platform])(x, 7).mlir_module()
        assert all((name in module) == (platform == "cpu") for name in ATTRIBUTES)
    text = jax.jit(one_kernel(sweep)).lower(x, 7).compile().as_text()
    assert " call(" in text  # it was not dissolved
