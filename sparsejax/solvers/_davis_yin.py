"""Three-operator splitting: a smooth loss and two penalties with exact proxes."""

from typing import Any, NamedTuple

import jax
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.linalg import columns, like
from sparsejax.driver import Algorithm, Link, Loop, kinds, prepare
from sparsejax.driver.curvature import step_length
from sparsejax.losses import condensed
from sparsejax.penalties import joined, prox_columns, prox_start, split, unpenalised
from sparsejax.problem import Problem
from sparsejax.solution import Solution
from sparsejax.solvers._chains import solved_by

ITERATIONS_PER_CHECK = 25  # iterations between two certificates
MAX_SPLIT_CYCLES = 100  # cycles to split the gradient at the start among the terms; a rough split suffices


class State(NamedTuple):
    """State of the iteration, on transposes (k, d)."""

    V: jax.Array  # (k, d), the argument of the prox of the second term
    P: jax.Array  # (k, d), the prox point of the first term
    Q: jax.Array  # (k, d), the prox point of the second term
    parts: tuple[jax.Array, ...]  # (k, d) each, subgradients of the first term at P and the second at Q
    warm: tuple[Any, ...]  # state that the prox of each term passes to its next call


def davis_yin(
    problem: Problem,
    init: ArrayLike | None = None,
    *,
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
    history: int = 0,
) -> Solution:
    r"""Minimise a loss and a penalty of two ``terms`` by gradient steps and one exact prox of each.

    .. math:: Q = \operatorname{prox}_{g_2/L}(V), \qquad
              P = \operatorname{prox}_{g_1/L}(2Q - V - \nabla f(Q)/L), \qquad V = V + P - Q ,

    with L an upper bound of the curvature of the loss. The answer is Q, with zeros in every group that is
    zero in P. The gap needs a subgradient of each term: ``L(V - Q)`` of :math:`g_2` at Q, and
    :math:`L(2Q - V - P) - \nabla f(Q)` of :math:`g_1` at P. The gap is computed every 25 iterations.

    Args:
      problem: a loss with a majorizer, as those of `sparsejax.losses`, with or without graphs; a penalty of
        at most two terms, such as `ExclusiveGroupLasso` of two views. With one term the iteration is proximal
        gradient descent.
      init, tol, maxiter, history: as `sparsejax.admm`.

    Returns:
      `Solution`; ``params`` has exact zeros.

    Raises:
      TypeError, ValueError: an unfit problem or argument, before tracing.
    Source: Davis & Yin, Set-Valued and Variational Analysis 25, 2017, Algorithm 1, at step 1/L.

    >>> import numpy as np, sparsejax as sj
    >>> loss = sj.losses.SquaredLoss(np.eye(4, 3), np.eye(4, 2))
    >>> views = sj.groups.label_views(2)
    >>> problem = sj.Problem(loss, sj.penalties.ExclusiveGroupLasso(0.1, views))
    >>> sj.davis_yin(problem).converged.item()
    True
    """
    return solved_by(LINK, *prepare("davis_yin", problem, init, tol, maxiter, history, unfit))


def unfit(problem: Problem) -> str | None:
    """Why the solver does not take the problem, in words; None if it does."""
    count = len(problem.penalty.terms)
    if count <= 2 and problem.smooth.quadratic_model().majorizer is not None:
        return None
    return (
        "needs a loss with a majorizer in its quadratic_model(), as those of sparsejax.losses have, and a "
        f"penalty of at most two terms, got {kinds(problem)}, {count} terms; admm takes any number, "
        "fista any smooth function."
    )


def _iterated(
    problem: Problem, init: jax.Array, tol: jax.Array, maxiter: jax.Array, history: int
) -> Solution:
    smooth, penalty, terms = problem.smooth, problem.penalty, problem.penalty.terms
    first, second = (terms[0], None) if len(terms) == 1 else terms
    cheap, step = condensed(smooth), step_length(smooth)
    hidden = unpenalised(penalty, init.shape[0], init.dtype).shape[-1] > 0

    def prox(term: Any, Vt: jax.Array, warm: Any) -> tuple[jax.Array, Any]:
        return (Vt, warm) if term is None else prox_columns(term, Vt, step, warm, init)

    def iterate(_: Any, s: State) -> State:
        Q, warm2 = prox(second, s.V, s.warm[1])
        target = 2 * Q - s.V - step * columns(jax.grad(cheap)(like(Q, init)))
        P, warm1 = prox(first, target, s.warm[0])
        return State(s.V + P - Q, P, Q, ((target - P) / step, (s.V - Q) / step), (warm1, warm2))

    def points(s: State) -> tuple[jax.Array, ...]:
        return (s.P,) if second is None else (s.P, s.Q)

    Zt = columns(init)
    parts: tuple[jax.Array, ...] = (Zt, Zt)  # not used for one term
    if second is not None:
        parts = tuple(map(columns, split(penalty, -jax.grad(smooth)(init), init, cycles=MAX_SPLIT_CYCLES)))
    # If parts[1] is a subgradient of the second term at init, the prox of this V is init: Q starts there.
    V = Zt if second is None else Zt + step * parts[1]
    warm = tuple(() if term is None else prox_start(term, like(Zt, init)) for term in (first, second))
    algorithm = Algorithm(
        state=State(V, Zt, Zt, parts, warm),
        block=lambda s, n: lax.fori_loop(0, n, iterate, s),
        candidate=lambda s: like(joined(penalty, points(s), init), init),
        step=lambda _: step,
        check_every=ITERATIONS_PER_CHECK,
        split=None if second is None else lambda s: tuple(like(part, init) for part in s.parts),
        quick=None if hidden or cheap is smooth else cheap,
    )
    return Loop(problem, init, algorithm, tol, maxiter, history, finish=True).run()[0]


LINK = Link("davis_yin", _iterated)
