"""One entry point that picks the solver."""

import numpy as np
from jax.typing import ArrayLike

from sparsejax._pytree import is_traced
from sparsejax.problem import MESSAGES, Problem, Solution
from sparsejax.solvers._admm import admm
from sparsejax.solvers._fista import fista


class ConvergenceError(RuntimeError):
    """Raised by ``solve(..., throw=True)`` for a solution that did not converge."""


def solve(
    problem: Problem,
    init: ArrayLike | None = None,
    *,
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
    history: int = 0,
    throw: bool = False,
) -> Solution:
    """Minimise ``problem`` by the solver that suits its structure.

    `admm` for a loss that bounds its curvature by a matrix (`SquaredLoss`, `LogisticLoss`), `fista` for every
    other, such as a plain function. The choice is static, so it works under jit and vmap.

    Args:
      problem, init, tol, maxiter, history: as `admm`.
      throw: raise `ConvergenceError` instead of returning a solution that did not converge; outside jit
        and vmap only.

    Returns:
      `Solution`; look at ``converged``.

    Raises:
      ConvergenceError: see ``throw``; its text has the certificate reached and the one asked for.
      TypeError, ValueError: an unfit problem or argument, before tracing.
    """
    solver = admm if hasattr(getattr(problem, "smooth", None), "majorizer") else fista
    solution = solver(problem, init, tol=tol, maxiter=maxiter, history=history)
    if throw:
        if is_traced(solution.status):
            raise TypeError("throw=True cannot raise inside jit or vmap: use Solution.converged there.")
        if not bool(np.all(solution.converged)):
            measure, name = float(solution.gap), "relative duality gap"
            if np.isnan(measure):
                measure, name = float(solution.residual), "residual"
            default = 1e-6 if solution.params.dtype == np.float64 else 1e-4
            wanted = default if tol is None else np.asarray(tol).item()
            raise ConvergenceError(
                f"{name} {measure:.3g} after {int(solution.num_iters)} iterations, tol is {wanted:.3g}: "
                f"{MESSAGES[int(solution.status)]}."
            )
    return solution
