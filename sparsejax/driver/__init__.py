"""Code that solvers share: arguments, loop, chains, batches, derivatives; see docs/adding-a-solver.md.

`OPTIONS` holds the compiler options of XLA for eager calls on a CPU.
"""

from sparsejax._core.compiled import OPTIONS
from sparsejax.driver.arguments import kinds, prepare
from sparsejax.driver.chain import Chain, Link, run, unfinished
from sparsejax.driver.curvature import step_length
from sparsejax.driver.loop import Algorithm, Loop

__all__ = [
    "OPTIONS",
    "Algorithm",
    "Chain",
    "Link",
    "Loop",
    "kinds",
    "prepare",
    "run",
    "step_length",
    "unfinished",
]
