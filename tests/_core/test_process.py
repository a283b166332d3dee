"""Processes: what a forked child does, and what a call leaves behind in its process."""

import os
import subprocess
import sys

import pytest

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
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=60
    )
    assert run.stdout.count('start processes by multiprocessing.get_context("spawn")') == 3
