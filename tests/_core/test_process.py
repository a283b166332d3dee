"""Processes: what a forked child does, and what a call leaves behind in its process."""

import os
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
import threadpoolctl
from state import CALLS, watched
from state_of import changes

import sparsejax as sj

FORK = """
import os
import numpy as np
import sparsejax as sj

X = np.eye(4, 3, dtype=np.float32)
make = lambda: sj.Problem(sj.losses.SquaredLoss(X, X[:, 0]), sj.penalties.L1(0.1))
problem = make()
if os.fork() == 0:
    for call in (lambda: sj.solve(problem), make, lambda: sj.lambda_max(problem)):
        try:
            call()
        except RuntimeError as error:
            print(error, flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_says_so():
    """JAX would wait for ever there."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], check=True, capture_output=True, text=True, timeout=60
    )
    assert run.stdout.count('start processes by multiprocessing.get_context("spawn")') == 3


# What cannot be helped (docs/trust.md): BLAS has one number of threads for the process, Python one handler of
# a signal; scikit-learn, matplotlib and tqdm change the filters of warnings for moments.
BLAS, SIGNALS = "BLAS threads", "signal handlers"
# JAX 0.8 does, too, now and then.
OLD_JAX = ["jax"] if tuple(map(int, jax.__version__.split(".")[:2])) < (0, 9) else []
OTHERS = {
    f"warning filters by {package}" for package in ("sklearn", "matplotlib", "tqdm", "joblib", *OLD_JAX)
}
DEFERRED = {name for name in CALLS if "progress=True" in name or "checkpoint" in name}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_leaves_no_trace(name):
    during, after = watched(name)
    assert not after
    assert during <= {BLAS} | OTHERS | ({SIGNALS} if name in DEFERRED else set())


def test_traces_are_found():
    """By what the test above uses."""

    def leaves():
        np.random.seed(1)  # noqa: NPY002
        np.seterr(under="warn")

    state, errors = np.random.get_state(), np.geterr()  # noqa: NPY002
    try:
        assert changes(leaves)[1] == {"random state", "numpy's errors"}
    finally:
        np.random.set_state(state)  # noqa: NPY002
        np.seterr(**errors)

    def briefly():
        with threadpoolctl.threadpool_limits(limits=3, user_api="blas"):
            time.sleep(0.3)

    during, after = changes(briefly)
    assert during == {BLAS} and not after


def test_threads_that_throw_leave_the_filters_of_warnings():
    """Each of many at a time; before, a filter of one could stay for good."""
    before = list(warnings.filters)
    problem = sj.Problem(sj.losses.SquaredLoss(np.eye(4, 3), np.ones(4)), sj.penalties.L1(0.1))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: sj.solve(problem, throw=True), range(64)))
    assert warnings.filters == before


TOGETHER = """
from concurrent.futures import ThreadPoolExecutor
import jax, jax.numpy as jnp, numpy as np
from sparsejax._core.compiled import Compiled

A = np.random.default_rng(0).standard_normal((6, 120, 120)).astype(np.float32)
A = A @ A.transpose(0, 2, 1) + np.eye(120, dtype=np.float32)
starts = [np.float32(i) for i in range(12)]
for one in (jnp.linalg.cholesky, lambda M: jnp.linalg.eigh(M)[0]):
    turn = lambda i, s: s + jnp.sum(jax.vmap(one)(A + s * 1e-12))
    function = Compiled(lambda start: jax.lax.fori_loop(0, 10, turn, start))
    at_once = function.together((), [(start,) for start in starts])
    with ThreadPoolExecutor(3) as pool:
        by_threads = list(pool.map(function, starts))
    for found in (at_once, by_threads):
        np.testing.assert_allclose(found, [function(start) for start in starts], rtol=1e-5)
print("done")
"""


def test_threads_that_factorise_many_matrices_do_not_wait_for_ever():
    """With jaxlib 0.10.2 they do on two cores, unless they take turns."""
    run = subprocess.run(
        [sys.executable, "-c", TOGETHER], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.stdout == "done\n", run.stderr
