"""What comes back from a solver: how it ended, in codes and in words."""

import inspect
import math
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax._core.checks import is_traced
from sparsejax._core.pytree import Pytree

CONVERGED, MAX_ITER, NON_FINITE, STALLED, HOST_FAILURE, INTERRUPTED = range(6)

# The solvers that `Solution.link` numbers: those of the library's table, then others by their first use.
SOLVERS: list[str] = []

MESSAGES = {
    CONVERGED: "converged: the duality gap is at most tol",
    MAX_ITER: "maxiter reached before tol: raise maxiter, or tol",
    NON_FINITE: (
        "a NaN or infinity appeared, or a strength or weight is negative: look at the data, the strengths "
        "and the start"
    ),
    STALLED: (
        "stopped above tol with no progress left: at the precision of the dtype (use float64, or a "
        "larger tol), or by a published stopping rule that the certificate does not bear out"
    ),
    HOST_FAILURE: "the solver called on the host failed",
    INTERRUPTED: "interrupted before it was done",
}


class ConvergenceWarning(UserWarning):
    """A solver called outside jit did not converge: what came back is not the solution asked for.

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
    """The first iterations of a solver, the start at index 0, NaN after its end.

    NaN also at a start other than 0 of `variational_newton`, which does not look at it.

    >>> import numpy as np, sparsejax as sj
    >>> problem = sj.Problem(sj.losses.SquaredLoss(np.eye(4, 3), np.eye(4, 2)), sj.penalties.L21(0.0625))
    >>> sj.fista(problem, history=3).history.objective.shape
    (3,)
    """

    objective: jax.Array  # (history,)
    gap: jax.Array  # (history,)


class Solution(
    Pytree, leaves=("params", "objective", "gap", "residual", "num_iters", "status", "history", "link")
):
    """How a solver ended.

    Attributes:
      params: the point with the best certificate that was seen; shape and dtype of W.
      objective: F(params), shape ().
      gap: relative duality gap of params, ``(P - D) / max(|P|, P(0))`` and a bound of its rounding error: no
        point is better than params by more. NaN where no dual is known (a plain function with a norm, or
        strength 0), or where a strength or weight is negative.
      residual: relative prox-gradient residual, ``||G + S|| / max(||G||, ||S||, ||grad f(0)||)`` with
        ``G = grad f(W)`` and ``S = L(W - T) - G``, a subgradient of g at the prox-gradient step
        ``T = prox(W - G/L, 1/L)``; it decides where gap is NaN. For a penalty of several terms the same
        of each term with its part of -G, all of them together.
      num_iters: () int32, 0 if the start was good enough.
      status: () int32, one of the codes in `sparsejax.solution`; `message` says it in words.
      history: `History` of length ``history`` (0 unless asked for).
      link: () int32, the number in `sparsejax.solution.SOLVERS` of the solver that found params; another of
        its chain may have begun. -1: not known. `solver` says it in words.

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
        self._set(
            params=params,
            objective=objective,
            gap=gap,
            residual=residual,
            num_iters=num_iters,
            status=status,
            history=history,
            link=link,
        )

    def __getitem__(self, index: Any) -> "Solution":
        """One solution of a batch, or some: the index is of the leading axes, and every field is indexed.

        As of an array with the shape of ``status``: integers, slices, tuples, masks. One problem alone has
        nothing to index, a TypeError.
        """
        shape = self.status.shape
        if not shape:
            raise TypeError(
                "this Solution is of one problem; only a batch, as of sparsejax.path, has an index."
            )
        size = math.prod(shape)
        traced = any(map(is_traced, jax.tree.leaves(index)))
        # by numpy where it can be: it refuses what is out of range
        numbers = (jnp if traced else np).arange(size).reshape(shape)[index]
        return jax.tree.map(lambda leaf: leaf.reshape(size, *leaf.shape[len(shape) :])[numbers], self)

    @property
    def converged(self) -> jax.Array:
        """True where the certificate met tol, shape of ``status``."""
        return self.status == CONVERGED

    @property
    def measure(self) -> jax.Array:
        """What was compared with tol: the gap, or the residual where no gap is known."""
        return jnp.where(jnp.isnan(self.gap), self.residual, self.gap)

    @property
    def solver(self) -> str | list[str]:
        """The solver that found params, for each problem of a batch; not available under jit."""
        if is_traced(self.link):
            raise TypeError("Solution.solver is text: read it outside jit and vmap.")
        names = [SOLVERS[i] if 0 <= i < len(SOLVERS) else "" for i in np.ravel(self.link)]
        return names if self.link.ndim else names[0]

    @property
    def message(self) -> str | list[str]:
        """The status in words, one for each problem of a batch; not available under jit."""
        if is_traced(self.status):
            raise TypeError("Solution.message is text: read it outside jit and vmap.")
        if self.status.ndim == 0:
            return _message(int(self.status), bool(np.isnan(self.gap)))
        pairs = zip(np.ravel(self.status), np.ravel(self.gap), strict=True)
        return [_message(int(code), bool(np.isnan(gap))) for code, gap in pairs]


def number_of(solver: str) -> int:
    """The number of a solver in `SOLVERS`, to which a new name is added."""
    if solver not in SOLVERS:
        SOLVERS.append(solver)
    return SOLVERS.index(solver)


def _message(code: int, gap_unknown: bool) -> str:
    if code == CONVERGED and gap_unknown:
        return "converged: the residual is at most tol (no duality gap is known here)"
    return MESSAGES[code]


def warn_unconverged(problem: Any, solution: Solution, tol: Any) -> None:
    """Warn, once a call, of solutions that did not converge; not inside jit, where ``converged`` tells."""
    if is_traced(solution.status):
        return
    converged, gap = np.asarray(solution.status) == CONVERGED, np.asarray(solution.gap)
    if converged.all():
        return
    measure = np.asarray(np.where(np.isnan(gap), solution.residual, gap))
    eps = float(np.finfo(measure.dtype).eps)
    if not is_traced(tol) and np.asarray(tol) < 2 * eps:
        # It asks for the floor of the dtype and never counts as converged.
        converged = converged | (measure <= 1000 * eps)
        if converged.all():
            return
    worst = float(np.max(np.where(converged, 0, measure)))
    text = MESSAGES[int(np.asarray(solution.status)[~converged].ravel()[0])]
    which = f"{int((~converged).sum())} of {converged.size} solves did" if converged.ndim else "the solve did"
    name = "residual" if np.isnan(gap).all() else "relative duality gap"
    message = f"{which} not converge ({name} {worst:.1e}): {text}."
    if any(map(is_traced, jax.tree.leaves(problem))):
        message = f"the derivative of a solution that did not converge is not reliable: {message}"
    warnings.warn(message, ConvergenceWarning, stacklevel=users_level())


def users_level() -> int:
    """The stacklevel, for the caller of this function, of the first frame outside this package."""
    frame: Any = inspect.currentframe()
    package, level = __name__.split(".")[0], 0
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] == package:
        frame, level = frame.f_back, level + 1
    return max(level, 1)
