"""Three-operator splitting: a smooth loss and two penalties with exact proxes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax.implicit import differentiable
from sparsejax.penalties import columns, joined, like, prox_columns, prox_start, terms_of
from sparsejax.problem import Problem, Solution
from sparsejax.solvers import _loop

CHECK = 25
START = 100  # cycles at most to split the gradient at the start; the iteration does the rest


class State(NamedTuple):
    V: jax.Array  # (k, d), what is iterated
    P: jax.Array  # (k, d), the prox point of the first term
    Q: jax.Array  # (k, d), that of the second
    parts: tuple[jax.Array, ...]  # subgradients of the two at P and Q
    warm: tuple[Any, Any]


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

    with L an upper bound of the curvature of the loss. The answer is Q, zero too where P is zero in a whole
    group; ``L(V - Q)`` and its counterpart at P split its gradient for the gap, which is looked at every 25
    iterations.

    Args:
      problem: a loss with ``majorizer``, as those of `sparsejax.losses`, with or without graphs; a penalty of
        two terms, as `ExclusiveGroupLasso` of two views (one term is proximal gradient descent).
      init, tol, maxiter, history: as `sparsejax.admm`.

    Returns:
      `Solution`; ``params`` has exact zeros.

    Raises:
      TypeError, ValueError: an unfit problem or argument, before tracing.
    Source: Davis & Yin, Set-Valued and Variational Analysis 25, 2017, Algorithm 1, at step 1/L.
    """
    init, tol, maxiter = _loop.prepare("davis_yin", problem, init, tol, maxiter, history)
    count = len(terms_of(problem.penalty))
    if count > 2 or not hasattr(problem.smooth, "majorizer"):
        raise TypeError(
            "davis_yin needs a loss with majorizer(), as those of sparsejax.losses have, and a penalty of at "
            f"most two terms, got {type(problem.smooth).__name__} and {count} terms; admm takes any number, "
            "fista any smooth function."
        )
    return _davis_yin(problem, init, tol, maxiter, history)


@differentiable("history")
def _davis_yin(problem, init, tol, maxiter, history):
    smooth, penalty = problem.smooth, problem.penalty
    terms = terms_of(penalty)
    first, second = (terms[0], None) if len(terms) == 1 else terms
    tall = bool(smooth.quadratic) and smooth.X.shape[0] > smooth.X.shape[1]
    hidden = getattr(penalty, "free", jnp.zeros(0)).shape[0] > 0
    quick = problem._replace(smooth=smooth.gram()) if tall and not hidden else None
    bound = _loop.curvature(smooth)
    step = 1 / jnp.where(bound > 0, bound, 1)

    def grad(Wt):
        return columns(jax.grad((quick or problem).smooth)(like(Wt, init)))

    def prox(term, Vt, warm):
        return (Vt, warm) if term is None else prox_columns(term, Vt, step, warm, init)

    def iterate(_, s: State) -> State:
        Q, warm2 = prox(second, s.V, s.warm[1])
        target = 2 * Q - s.V - step * grad(Q)
        P, warm1 = prox(first, target, s.warm[0])
        return State(s.V + P - Q, P, Q, ((target - P) / step, (s.V - Q) / step), (warm1, warm2))

    def points(s: State) -> tuple[jax.Array, ...]:
        return (s.P,) if second is None else (s.P, s.Q)

    Zt = columns(init)
    parts: tuple[jax.Array, ...] = (Zt, Zt)  # of no use for one term
    if second is not None:
        parts = tuple(map(columns, penalty.split(-jax.grad(smooth)(init), init, cycles=START)))
    V = Zt if second is None else Zt + step * parts[1]
    state = State(V, Zt, Zt, parts, (prox_start(first, Zt), prox_start(second, Zt)))
    return _loop.run(
        problem,
        init,
        state,
        lambda s, n: lax.fori_loop(0, n, iterate, s),
        lambda s: like(joined(penalty, points(s)), init),
        split=None if second is None else lambda s: tuple(like(part, init) for part in s.parts),
        step=lambda _: step,
        tol=tol,
        maxiter=maxiter,
        check_every=CHECK,
        history=history,
        quick=quick,
    )[0]
