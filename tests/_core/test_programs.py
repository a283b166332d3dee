"""What tells programs and problems apart, so that none is taken for another one."""

import cmath
import functools
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsejax as sj
from sparsejax import closures, losses, penalties
from sparsejax._core import programs

of_range = lambda places: functools.lru_cache(functools.partial(np.take, indices=places))


@pytest.mark.parametrize(
    "hosts",
    [
        (np.vectorize(np.exp), np.vectorize(np.log)),
        (np.frompyfunc(lambda w: 1.0, 1, 1), np.frompyfunc(lambda w: 5.0, 1, 1)),
        (of_range(range(3)), of_range(range(2, -1, -1))),
        (math.log, cmath.log),
    ],
    ids=["vectorize", "frompyfunc", "range", "C"],
)
def test_functions_on_the_host_that_differ_are_other_programs(hosts):
    def program(host):
        like = jax.ShapeDtypeStruct((3,), jnp.result_type(float))
        return closures.trace(lambda W: W @ jax.pure_callback(host, like, W), jnp.zeros(3))[0]

    assert program(hosts[0]) != program(hosts[1])


def test_files_beside_a_known_folder_are_the_users():
    for folder in (jax.__file__, np.__file__, sj.__file__):
        assert not f"{Path(folder).parent}_mine/losses.py".startswith(programs._KNOWN_FILES)
        assert folder.startswith(programs._KNOWN_FILES)


def test_a_call_while_64_bit_numbers_are_off_leaves_no_float32_behind():
    with jax.enable_x64(True):
        problem = sj.Problem(losses.SquaredLoss(np.eye(41, 37), np.arange(41.0)), penalties.L1(0.1))
    with jax.enable_x64(False):
        sj.driver.prepare("solve", problem, None, None, 10)
    with jax.enable_x64(True):
        init, tol = sj.driver.prepare("solve", problem, None, None, 10)[1:3]
    assert init.dtype == tol.dtype == np.float64 and tol == 1e-6


def test_a_rule_that_is_also_called_on_the_host_is_refused_in_any_order():
    def both(p, t):
        return p[0] * 2, t[0] * 2

    @jax.custom_jvp
    def ruled(x):
        return x * 2

    ruled.defjvp(both)

    def called(x):
        like = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(both, (like, like), (x,), (x,))[0]

    for program in (lambda x: ruled(called(x)), lambda x: called(ruled(x))):
        with pytest.raises(TypeError, match="on the host"):
            programs.text_of_program("scoring", jax.make_jaxpr(program)(jnp.ones(3)))
