"""My rows lie in several processes: how do I solve with all of them?

Each process has its own rows (here made from a seed; a real script reads its part of a file).
`jax.make_array_from_process_local_data` makes one array of all parts; the lines after it are the same as for
one process. Without arguments the script runs as one process. Under Slurm,

    srun --ntasks=4 python examples/many_processes.py

starts four processes, which find each other. By hand, start two processes with

    python examples/many_processes.py localhost:12345 2 NUMBER

Prints, on the first process, what was selected and the certificate.
"""

import os
import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import sparsejax as sj

PARTS, ROWS, FEATURES, TRUE = 4, 300, 40, 5


def join() -> None:
    """Become one of several processes, if there are several: by hand, or by a scheduler that jax knows."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # on a GPU it is NCCL, without this line
    if len(sys.argv) == 4:
        address, count, number = sys.argv[1:]
        jax.distributed.initialize(address, int(count), int(number), heartbeat_timeout_seconds=30)
    elif int(os.environ.get("SLURM_NTASKS", "1")) > 1:
        jax.distributed.initialize(heartbeat_timeout_seconds=30)


def part(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Some of the rows: X, and labels that depend on the first five features."""
    rng = np.random.default_rng(number)
    X = rng.standard_normal((ROWS, FEATURES)).astype(np.float32)
    signal = X[:, :TRUE].sum(1) + rng.standard_normal(ROWS)
    return X, (signal > 0).astype(np.float32)


def main() -> None:
    """Read the rows of this process, solve with the others, print."""
    join()
    count, number = jax.process_count(), jax.process_index()
    own = [part(i) for i in range(number * PARTS // count, (number + 1) * PARTS // count)]
    rows = NamedSharding(Mesh(np.array(jax.devices()), ("rows",)), P("rows"))
    X, y = (
        jax.make_array_from_process_local_data(rows, np.concatenate(some)) for some in zip(*own, strict=True)
    )
    problem = sj.Problem(sj.losses.LogisticLoss(X, y, intercept=True), sj.penalties.L1(1.0))
    problem = problem.replace(penalty=sj.penalties.L1(sj.lambda_max(problem) / 3))
    solution = sj.solve(problem)
    if number == 0:
        print(f"{X.shape[0]} rows, {X.shape[1]} features, {count} process{'es' if count > 1 else ''}")
        print(f"selected: {np.flatnonzero(solution.params).tolist()}")
        print(f"{solution.message}, gap at most 1e-4: {float(solution.gap) <= 1e-4}")


if __name__ == "__main__":
    main()
