"""How one solver goes on where another has stopped."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from sparsejax._core.linalg import eps_of
from sparsejax.compiling import in_users_units
from sparsejax.problem import Problem, in_units, units_of
from sparsejax.solution import CONVERGED, STALLED, History, Solution


def continued(
    run: Callable[[Problem, jax.Array, jax.Array, int], Solution],
    problem: Problem,
    solution: Solution,
    maxiter: jax.Array,
) -> Solution:
    """``run(problem, start, iterations left, length of the history)``, in units of each column of X."""
    before, history = solution.num_iters, solution.history
    known, length = units_of(problem, rows=True), history.gap.shape[0]
    problem = in_units(problem, known)
    start = solution.params if known is None else known.units.start(solution.params)
    rest = in_users_units(run(problem, start, maxiter - before, length), known)
    first = jnp.arange(length, dtype=jnp.int32) < before
    joined = [jnp.where(first, a, jnp.roll(b, before)) for a, b in zip(history, rest.history, strict=True)]
    return rest._replace(num_iters=before + rest.num_iters, history=History(*joined))


def at_the_floor(solution: Solution, tol: jax.Array, maxiter: jax.Array) -> jax.Array:
    """Whether there may be digits left for the finish of a `Loop`."""
    status, below = solution.status, tol < 2 * eps_of(solution.objective)
    return (status == STALLED) | ((status == CONVERGED) & below)
