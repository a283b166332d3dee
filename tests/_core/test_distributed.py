"""Several processes of jax.distributed give what one gives, and none of them waits for another that has died.

The processes are this file run as a script. All is done in one run of two processes with two devices each,
since they take their time to compile.
"""

import inspect
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import sparsejax as sj

PROCESSES = 2
SECONDS = 240  # for all of it; it takes some twenty
HEARTBEAT = 6  # seconds without a sign of life after which a process counts as dead
NO_GLOO = 77  # exit code
N, D, K = 24, 4, 2
TOL = 1e-13


def arrays():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, D))
    noisy = X[:, :K] + rng.standard_normal((N, K))
    return X, noisy, (noisy > 0) * 1.0, np.eye(K)[np.argmax(noisy, axis=1)]


def problems(X, noisy, labels, classes):
    penalty = sj.penalties.L21(0.02)
    return {
        "squared": sj.Problem(sj.losses.SquaredLoss(X, noisy, intercept=True), penalty),
        "logistic": sj.Problem(sj.losses.LogisticLoss(X, labels), penalty),
        "softmax": sj.Problem(sj.losses.SoftmaxLoss(X, classes), penalty),
    }


def in_jit(problem):
    return sj.fista(problem, tol=TOL)


def answers(problems, solve_in_jit):
    """What is compared, by solvers that are quickly compiled."""
    squared, logistic, softmax = problems.values()
    found = {
        "squared": sj.solve(squared, tol=TOL),
        "logistic": solve_in_jit(logistic),
        "softmax": sj.fista(softmax, tol=TOL),
    }
    numbers = {name: solution.params for name, solution in found.items()}
    numbers |= {f"objective {name}": solution.objective for name, solution in found.items()}
    numbers["lambda_max"] = sj.lambda_max(squared)
    numbers["duality_gap"] = sj.duality_gap(squared, np.zeros((D, K)))
    return found, numbers


# ------------------------------------------------------------------ the processes


def refusals(shared, sharding, number):
    """What is wrong on one process only is an error on all, with these words."""
    X, noisy, *_ = arrays()
    loss, squared, half = sj.losses.SquaredLoss, shared["squared"], N // PROCESSES
    bad = X.copy()
    bad[-1, 1] = np.nan
    own = slice(number * half, (number + 1) * half)
    spread = lambda local: jax.make_array_from_process_local_data(sharding, local)
    cases = {
        r"X has 1 value\(s\) that are NaN.*the first at \(23, 1\)": lambda: loss(spread(bad[own]), noisy),
        "parts of unequal length": lambda: loss(spread(X[: half + 2 * number]), noisy),
        "differs from process to process": lambda: sj.solve(
            squared.replace(penalty=sj.penalties.L21(0.1 + number))
        ),
        "sharded by its type": lambda: jax.jit(lambda X: loss(X, noisy).scale)(spread(X[own])),
        "of one process": lambda: sj.path(
            squared, jax.vmap(sj.penalties.L21)(np.array([0.2, 0.1])), progress=True
        ),
    }
    if all(kind == AxisType.Auto for kind in sharding.mesh.axis_types):
        del cases["sharded by its type"]
    for words, call in cases.items():
        with pytest.raises((TypeError, ValueError), match=words):
            call()
    with pytest.raises(ValueError, match=r"columns.*not found in mesh"):  # before there is an array
        NamedSharding(sharding.mesh, P("columns"))


def check_collectives(text):
    """Of an iteration: one sum of the gradient over the devices; nothing is gathered anywhere."""
    assert not re.findall(r"= .* (all-gather|all-to-all|collective-permute|reduce-scatter)", text)
    loops = re.findall(r"= (\S+) all-reduce\(.*op_name=\"[^\"]*while/body/while/body/while/body", text)
    assert len(loops) > 0 and all(len(re.findall(r"\[", shape)) == 1 for shape in loops)
    assert {re.sub(r"\{.*", "", shape) for shape in loops} == {f"f64[{K},{D}]"}


def worker(port, number, folder):
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # Seconds after which a silent process counts as dead.
    known = inspect.signature(jax.distributed.initialize).parameters
    limit = {name: HEARTBEAT for name in ("heartbeat_timeout_seconds",) if name in known}
    jax.distributed.initialize(f"localhost:{port}", PROCESSES, number, **limit)
    try:
        jax.devices()
    except (AttributeError, RuntimeError) as error:
        print(error, flush=True)
        os._exit(NO_GLOO if "gloo" in str(error).lower() else 1)
    assert len(jax.devices()) == 2 * PROCESSES and len(jax.local_devices()) == 2
    mesh = jax.make_mesh((2 * PROCESSES,), ("rows",))
    sharding, half = NamedSharding(mesh, P("rows")), N // PROCESSES
    own = slice(number * half, (number + 1) * half)
    spread = lambda x: jax.make_array_from_process_local_data(sharding, x[own])
    shared = problems(*map(spread, arrays()))
    program = jax.jit(in_jit).lower(shared["logistic"]).compile()
    check_collectives(program.as_text())
    solutions, numbers = answers(shared, program)
    assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(solutions))
    assert all(float(solution.gap) <= TOL and bool(solution.converged) for solution in solutions.values())
    refusals(shared, sharding, number)
    np.savez(folder / f"{number}.npz", **numbers)
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while True:  # what the one that is left gets is an error
        jax.block_until_ready(sj.solve(shared["squared"], tol=TOL))


# ------------------------------------------------------------------ the tests


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder with the numbers of both processes, how they ended, and their words."""
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    root = Path(__file__).parents[2]
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_ENABLE_X64": "1", "PYTHONPATH": str(root)}
    processes, logs = [], []
    for number in range(PROCESSES):
        with (folder / f"{number}.log").open("w") as log:
            command = [sys.executable, __file__, str(port), str(number), str(folder)]
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    try:
        codes = [process.wait(SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
        logs = [(folder / f"{number}.log").read_text() for number in range(PROCESSES)]
    if NO_GLOO in codes:
        pytest.skip(f"no collectives of gloo between processes: {logs[codes.index(NO_GLOO)]}")
    return folder, codes, logs


def test_two_processes_give_what_one_gives(run):
    """Eagerly and inside the caller's jit, on every process; what is wrong on one is an error on both."""
    folder, _, logs = run
    assert all((folder / f"{number}.npz").exists() for number in range(PROCESSES)), "\n".join(logs)
    _, expected = answers(problems(*arrays()), jax.jit(in_jit))
    for number in range(PROCESSES):
        with np.load(folder / f"{number}.npz") as found:
            for name, value in expected.items():
                np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-10, err_msg=name)


def test_a_process_that_dies_ends_the_other_with_an_error(run):
    _, codes, logs = run
    assert codes[1] == -signal.SIGKILL
    assert codes[0] not in (0, None) and re.search("Error|error|UNAVAILABLE", logs[0])


if __name__ == "__main__":
    worker(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
