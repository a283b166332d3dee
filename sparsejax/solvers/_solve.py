"""`solve`, which picks the solver for a problem."""

from typing import Any

import numpy as np
from jax.typing import ArrayLike

from sparsejax._core.checks import check_bool, default_tol, is_traced
from sparsejax.driver import prepare, run
from sparsejax.problem import Problem
from sparsejax.solution import CONVERGED, ConvergenceError, Solution, failed_read, text_of_failure
from sparsejax.solvers._chains import chosen_chain


def solve(
    problem: Problem,
    init: Any = None,
    *,
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
    history: int = 0,
    throw: bool = False,
) -> Solution:
    """Minimise ``problem`` by the solver that suits its structure.

    The choice depends on structure and shapes alone, so that it works under jit and vmap. It is the first of
    these that takes the problem:

    * `interior_point` for `QuantileLoss` of a dense X and one column with `L1`, perhaps with `SquaredL2`;
    * `variational_newton` for a norm of rows or groups, such as `L21` or `GroupLasso`, with least squares on
      512 features or more, if many may be active;
    * `prox_newton` for such a norm with least squares of few active features, or with another loss of one
      column and more than 64 features;
    * `working_set` for penalties with sparse rows: on many times more features than samples, or with
      `SoftmaxLoss` and a dense X, unless `newton_admm` suits the problem;
    * `newton_admm` for another loss (or least squares with weights by entry or a sparse X) with a small
      Hessian: W of up to 64 entries, if `prox_newton` takes the problem or the loss is `CoxLoss`; or up to 64
      features (times columns, if the loss couples these) and at least 4 rows for each feature. For data that
      `losses.from_batches` reads again in every pass, the limit is 512 features;
    * `admm` for a loss that bounds its curvature by a matrix (`SquaredLoss`, `LogisticLoss`);
    * `fista` for every other problem, such as a plain function.

    If the first solver does not converge, another one continues. For example, `newton_admm` follows `admm` if
    the loss is not quadratic and the steps of `admm` are slow, at small strengths or with labels that are
    nearly separated. `admm` follows `prox_newton` for least squares with more active rows than a step can
    move. docs/choose-a-solver.md lists all chains. The chain is the same inside `jax.jit`, `jax.vmap` or
    `jax.grad`; ``solution.solver`` is the last solver that ran.

    Args:
      problem: `sparsejax.Problem`.
      init, tol, maxiter, history: as `admm`.
      throw: raise `ConvergenceError` instead of returning a solution that did not converge; outside jit
        and vmap only.

    Returns:
      `Solution`; look at ``converged``.

    Raises:
      ConvergenceError: see ``throw``; its text has the certificate reached and the one asked for.
      TypeError, ValueError: an unfit argument, before tracing; ``throw`` inside jit or vmap.

    Warns:
      ConvergenceWarning: outside jit and without ``throw``, a solution that did not converge; not if tol is
        below the precision of the dtype (``tol=0``), and the solve went on to that precision.

    >>> import numpy as np, sparsejax as sj
    >>> X, Y = np.eye(4, 3), np.eye(4, 2)
    >>> solution = sj.solve(sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.L21(0.05)))
    >>> bool(solution.converged)
    True
    """
    check_bool("solve: throw", throw)
    problem, init, wanted, maxiter, history = prepare("solve", problem, init, tol, maxiter, history)
    chain = chosen_chain(problem)
    solution = run(chain, problem, init, wanted, maxiter, history, quiet=throw)  # throw: error, not warning
    if throw:
        if is_traced(solution.status):
            raise TypeError("throw=True cannot raise inside jit or vmap: use Solution.converged there.")
        if not (np.asarray(solution.status) == CONVERGED).all():
            raise ConvergenceError(_failure(problem, solution, tol)) from failed_read(problem)
    return solution


def _failure(problem: Problem, solution: Solution, tol: Any) -> str:
    measure, name = float(solution.gap), "relative duality gap"
    if np.isnan(measure):
        measure, name = float(solution.residual), "residual"
    wanted = default_tol(solution.objective.dtype) if tol is None else np.asarray(tol).item()
    return (
        f"{name} {measure:.3g} after {int(solution.num_iters)} iterations, tol is {wanted:.3g}: "
        f"{text_of_failure(problem, int(solution.status), solution.objective.dtype)}."
    )
