"""The result of a solver: the solution, its certificate, and how the solver ended, as a code and as text."""

import math
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sparsejax._core.checks import is_traced, without_gradient
from sparsejax._core.matrices.streamed import Chunked
from sparsejax._core.precision import SWITCH, users_level
from sparsejax._core.pytree import Pytree

CONVERGED, MAX_ITER, NON_FINITE, STALLED, HOST_FAILURE, INTERRUPTED = range(6)

# Names of the solvers: first those of the library, then others as `number_of` adds them. `Solution.link` is
# an index of this list.
SOLVERS: list[str] = []

MESSAGES = {
    CONVERGED: "converged: the duality gap is at most tol",
    MAX_ITER: (
        "maxiter reached before tol, or the solver's own limit, where num_iters is less than maxiter: raise "
        "maxiter, or tol"
    ),
    NON_FINITE: (
        "a NaN or infinity appeared, or a strength or weight is negative: look at the data, the strengths, "
        "the start, and the loss at W = 0, which must be finite"
    ),
    STALLED: (
        "stopped above tol with no progress left: at the precision of the dtype (use a larger tol), or by a "
        "published stopping rule, although the certificate is above tol"
    ),
    HOST_FAILURE: "the solver called on the host failed",
    INTERRUPTED: "interrupted before it was done",
}


class ConvergenceWarning(UserWarning):
    """Warns that a solver called outside jit did not converge, so that its result does not meet ``tol``.

    >>> import warnings
    >>> import numpy as np, sparsejax as sj
    >>> problem = sj.Problem(sj.losses.SquaredLoss(np.eye(4, 3), np.eye(4, 2)), sj.penalties.L21(0.0625))
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     solution = sj.solve(problem, maxiter=0)
    >>> issubclass(caught[0].category, sj.ConvergenceWarning), bool(solution.converged)
    (True, False)
    """


class ConvergenceError(RuntimeError):
    """Raised by ``solve(..., throw=True)`` for a solution that did not converge.

    >>> import numpy as np, sparsejax as sj
    >>> problem = sj.Problem(sj.losses.SquaredLoss(np.eye(4, 3), np.eye(4, 2)), sj.penalties.L21(0.0625))
    >>> try:
    ...     sj.solve(problem, maxiter=0, throw=True)
    ... except sj.ConvergenceError as error:
    ...     print(str(error)[:20])
    relative duality gap
    """


class History(NamedTuple):
    """Objective and gap at the first iterations of a solver, with the start at index 0.

    Entries after the last iteration are NaN. `variational_newton` evaluates no start other than 0; at index 0
    the history holds the first point that it evaluates, near the start.

    >>> import numpy as np, sparsejax as sj
    >>> problem = sj.Problem(sj.losses.SquaredLoss(np.eye(4, 3), np.eye(4, 2)), sj.penalties.L21(0.0625))
    >>> sj.fista(problem, history=3).history.objective.shape
    (3,)
    """

    objective: jax.Array  # (history,), F(W)
    gap: jax.Array  # (history,), relative duality gap


class Solution(
    Pytree, leaves=("params", "objective", "gap", "residual", "num_iters", "status", "history", "link")
):
    """The result of a solver.

    Attributes:
      params: the point with the best certificate of all points evaluated; shape and dtype of W.
      objective: F(params), shape ().
      gap: relative duality gap of params, ``(P - D) / max(|P|, P(0))`` plus a bound on its rounding error.
        With P the objective: no point has an objective below P by more than gap times ``max(|P|, P(0))``. NaN
        where no dual is known (a plain function with a norm, a strength that is one number and 0, and other
        cases that `sparsejax.duality_gap` lists), or where a strength or weight is negative.
      residual: relative prox-gradient residual, ``||G + S|| / max(||G||, ||S||, ||grad f(0)||)`` with
        ``G = grad f(W)`` and ``S = L(W - T) - G``, a subgradient of g at the prox-gradient step
        ``T = prox(W - G/L, 1/L)``. It is compared with tol where gap is NaN. For a penalty of several terms
        the norms are over all terms, each with its part of -G.
      num_iters: () int32, 0 if the start met tol.
      status: () int32, one of the codes CONVERGED, MAX_ITER, NON_FINITE, STALLED, HOST_FAILURE, INTERRUPTED
        in `sparsejax.solution`; `message` is its text.
      history: `History` of length ``history`` (0 by default).
      link: () int32, the index in `sparsejax.solution.SOLVERS` of the solver that found params, which may
        have continued from another solver of its chain. -1: not known. `solver` is its name.

    >>> import numpy as np, sparsejax as sj
    >>> problem = sj.Problem(sj.losses.SquaredLoss(np.eye(4, 3), np.eye(4, 2)), sj.penalties.L21(0.0625))
    >>> solution = sj.solve(problem)
    >>> print(solution.params.round(2))
    [[0.75 0.  ]
     [0.   0.75]
     [0.   0.  ]]
    >>> solution.message, bool(solution.gap <= 1e-4)
    ('converged: the duality gap is at most tol', True)
    """

    params: jax.Array
    objective: jax.Array
    gap: jax.Array
    residual: jax.Array
    num_iters: jax.Array
    status: jax.Array
    history: History
    link: jax.Array

    def __init__(
        self,
        params: Any,
        objective: Any,
        gap: Any,
        residual: Any,
        num_iters: Any,
        status: Any,
        history: Any,
        link: Any = None,
    ):
        if link is None:
            link = np.full(np.shape(status), -1, np.int32)
        super().__init__(params, objective, gap, residual, num_iters, status, history, link)

    def __getitem__(self, index: Any) -> "Solution":
        """One solution of a batch, or some: every field is indexed on the axes of the batch.

        The index is as for an array with the shape of ``status``: integers, slices, tuples, masks.

        Raises:
          TypeError: the solution is not a batch.
          IndexError: a concrete index is out of range.
        """
        shape = self.status.shape
        if not shape:
            raise TypeError(
                "this Solution is of one problem; only a batch, as of sparsejax.path, has an index."
            )
        size = math.prod(shape)
        traced = any(map(is_traced, jax.tree.leaves(index)))
        # By numpy if the index is concrete, since numpy raises for an index out of range.
        numbers = (jnp if traced else np).arange(size).reshape(shape)[index]
        return jax.tree.map(lambda leaf: leaf.reshape(size, *leaf.shape[len(shape) :])[numbers], self)

    @property
    def converged(self) -> jax.Array:
        """True where the certificate met tol, shape of ``status``."""
        return self.status == CONVERGED

    @property
    def measure(self) -> jax.Array:
        """The number that is compared with tol: the gap, or the residual where no gap is known."""
        return jnp.where(jnp.isnan(self.gap), self.residual, self.gap)

    @property
    def solver(self) -> str | list[str]:
        """The name of the solver that found params, "" if not known; a flat list of names for a batch.

        Raises:
          TypeError: the solution is traced, as under jit.
        """
        if is_traced(self.link):
            raise TypeError("Solution.solver is text: read it outside jit and vmap.")
        names = [SOLVERS[i] if 0 <= i < len(SOLVERS) else "" for i in np.ravel(self.link)]
        return names if self.link.ndim else names[0]

    @property
    def message(self) -> str | list[str]:
        """The status as text; a flat list of texts for a batch.

        Raises:
          TypeError: the solution is traced, as under jit.
        """
        if is_traced(self.status):
            raise TypeError("Solution.message is text: read it outside jit and vmap.")
        pairs = zip(np.ravel(self.status), np.ravel(self.gap), strict=True)
        texts = [_message(int(code), gap) for code, gap in pairs]
        return texts if self.status.ndim else texts[0]

    def __getattr__(self, name: str) -> Any:
        """Raise an AttributeError that says where intercept, predictions and weights are found instead.

        Python calls this method for names that do not exist.
        """
        where = {
            "intercept": "the loss has it: problem.smooth.intercept(solution.params)",
            "predict": "write sparsejax.predict(solution, problem, X)",
            "weights": "they are solution.params",
            "coef_": "the weights are solution.params",
            "intercept_": "the loss has it: problem.smooth.intercept(solution.params)",
        }
        if name not in where:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise AttributeError(
            f"a Solution has no {name}: {where[name]}; sparsejax.predict(solution, problem, X) predicts new "
            "rows."
        )


def lost_unless(valid: jax.Array, solution: Solution) -> Solution:
    """The solution; unless ``valid``, (), with NaN for params and certificate and the status NON_FINITE."""
    numbers = solution.params, solution.objective, solution.gap, solution.residual
    params, objective, gap, residual = jax.tree.map(lambda a: jnp.where(valid, a, jnp.nan), numbers)
    status = jnp.where(valid, solution.status, NON_FINITE)
    return solution._replace(params=params, objective=objective, gap=gap, residual=residual, status=status)


def number_of(solver: str) -> int:
    """The number of a solver in `SOLVERS`; a name that is new is added."""
    if solver not in SOLVERS:
        SOLVERS.append(solver)
    return SOLVERS.index(solver)


def _message(code: int, gap: Any) -> str:
    """The text of a status; ``gap``, in the dtype of the solve, is NaN if no gap is known."""
    if code == CONVERGED and np.isnan(gap):
        return "converged: the residual is at most tol (no duality gap is known here)"
    return text_of_status(code, gap.dtype)


def text_of_status(code: int, dtype: Any) -> str:
    """The text of a status of a solve in this dtype; for float32 it also names float64 as a remedy."""
    text = MESSAGES[code]
    if code != STALLED or dtype != np.float32:
        return text
    data = "float64 data" if jax.dtypes.canonicalize_dtype(np.float64) == np.float64 else SWITCH
    return text.replace("use a larger tol", f"use float64, by {data}, or a larger tol")


def failed_read(problem: Any) -> Exception | None:
    """The error of the last pass over rows that are read again for every product; None if no pass failed."""
    parts = jax.tree.leaves(problem, is_leaf=lambda part: isinstance(part, Chunked))
    failed = [part.source.failed for part in parts if isinstance(part, Chunked)]
    return next((error for error in failed if error is not None), None)


def text_of_failure(problem: Any, code: int, dtype: Any) -> str:
    """The text of `text_of_status`; if rows could not be read again, the text of that error instead."""
    error = failed_read(problem)
    if error is not None:
        return f"a batch of rows could not be read again: {error!r}"
    return text_of_status(code, dtype)


def warn_unconverged(problem: Any, solution: Solution, tol: ArrayLike | None) -> None:
    """Give one `ConvergenceWarning` for all solutions of a batch that did not converge.

    Under jit there is no warning; users read ``converged`` instead.
    """
    solution = solution._replace(
        gap=without_gradient(solution.gap), residual=without_gradient(solution.residual)
    )
    if any(map(is_traced, (solution.status, solution.gap, solution.residual))):
        return
    converged, gap = np.asarray(solution.status) == CONVERGED, np.asarray(solution.gap)
    if converged.all():
        return
    measure = np.asarray(np.where(np.isnan(gap), solution.residual, gap))
    eps = float(np.finfo(measure.dtype).eps)
    if not is_traced(tol) and np.asarray(tol) < 2 * eps:
        # Such a tol asks for the precision of the dtype, which no solve reports as converged: no warning
        # where a solve has ended for that reason.
        ended = np.asarray(solution.status) != MAX_ITER
        converged = converged | (ended & (measure <= 1000 * eps))
        if converged.all():
            return
    left = np.where(converged, -np.inf, measure)
    worst = float(np.max(left))
    code = int(np.ravel(solution.status)[np.argmax(left)])
    text = text_of_failure(problem, code, gap.dtype)
    which = f"{int((~converged).sum())} of {converged.size} solves did" if converged.ndim else "the solve did"
    name = "residual" if np.isnan(gap[~converged]).all() else "relative duality gap"
    message = f"{which} not converge ({name} {worst:.1e}): {text}."
    if any(map(is_traced, jax.tree.leaves(problem))):
        message = f"the derivative of a solution that did not converge is not reliable: {message}"
    warnings.warn(message, ConvergenceWarning, stacklevel=users_level())
