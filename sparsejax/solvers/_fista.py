"""Accelerated proximal gradient with restart, for any smooth loss."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._pytree import as_float, is_traced
from sparsejax.implicit import differentiable
from sparsejax.problem import Problem, Solution, flattened
from sparsejax.solvers import _loop

CHECK = 10
HALVINGS = 60  # of the step in one iteration, at most


class State(NamedTuple):
    W: jax.Array  # the last prox point
    V: jax.Array  # the extrapolated point
    t: jax.Array  # momentum sequence: t_1 = 1, t_{k+1} = (1 + sqrt(1 + 4 t_k^2)) / 2
    step: jax.Array  # 1/L


def fista(
    problem: Problem,
    init: Any = None,
    *,
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
    history: int = 0,
    stepsize: ArrayLike | None = None,
) -> Solution:
    r"""Minimise by accelerated proximal gradient steps, restarted when the momentum points uphill.

    .. math:: W_{+} = \operatorname{prox}_{g/L}(V - \nabla f(V)/L), \qquad
              V_{+} = W_{+} + \tfrac{t-1}{t_{+}}\,(W_{+} - W) ,

    and t starts again at 1 when :math:`\langle V - W_{+}, W_{+} - W\rangle > 0`. L is ``1/stepsize`` if
    given; for a loss with ``majorizer`` a bound of its curvature (never too small); otherwise it is
    found by backtracking, at the price of one more evaluation of the loss an iteration. The duality gap
    of W (the prox-gradient residual where no dual is known), looked at every 10 iterations, ends the
    loop.

    Args:
      problem: any smooth convex loss, and a penalty with ``prox``.
      init: start, shape of W; default zeros where the loss knows the shape.
      tol: largest accepted gap (or residual); default 1e-6 in float64, 1e-4 in float32. ``tol=0`` runs to
        the floor of the dtype, as `sparsejax.admm`.
      maxiter: iterations, >= 0.
      history: record that many iterations (it makes each of them evaluate the certificate).
      stepsize: > 0, at most 1/L; larger ones can diverge, which the status tells.

    Returns:
      `Solution`; ``params`` is a prox point, with exact zeros.

    Raises:
      TypeError, ValueError: an unfit argument, before tracing.
    Source: Beck & Teboulle, SIAM J. Imaging Sciences 2(1), 2009; restart: O'Donoghue & Candes, Foundations of
      Computational Mathematics 15, 2015, Eq. (13).
    """
    init, tol, maxiter = _loop.prepare("fista", problem, init, tol, maxiter, history)
    if stepsize is not None:
        stepsize = as_float("stepsize", stepsize, (0,), jax.tree.leaves(init)[0].dtype)
        if not is_traced(stepsize) and not np.asarray(stepsize) > 0:
            raise ValueError(f"fista: stepsize must be > 0, got {np.asarray(stepsize):g}.")
    return _fista(problem, init, tol, maxiter, history, stepsize)


@differentiable("history")
def _fista(problem, init, tol, maxiter, history, stepsize):
    problem, init, restore = flattened(problem, init)
    smooth, penalty = problem.smooth, problem.penalty
    backtrack = stepsize is None and not hasattr(smooth, "majorizer")
    if stepsize is not None:
        step = stepsize
    elif backtrack:
        step = _first_step(smooth, init)
    else:
        bound = _loop.curvature(smooth)
        step = 1 / jnp.where(bound > 0, bound, 1)
    eps = jnp.finfo(init.dtype).eps

    def forward(V, value, G, step):
        """The prox-gradient step from V, halving ``step`` until the quadratic bound holds."""
        if not backtrack:
            return penalty.prox(V - step * G, step), step

        def too_long(W, step):
            D = W - V
            bound = value + jnp.sum(G * D) + jnp.sum(D * D) / (2 * step)
            # Near the optimum the test is a difference of equal numbers: allow for their rounding.
            return ~(smooth(W) <= bound + 10 * eps * jnp.abs(value))

        def shrink(carry):
            _, step, n = carry
            step = step / 2
            return penalty.prox(V - step * G, step), step, n + 1

        def cond(carry):
            W, step, n = carry
            return too_long(W, step) & (n < HALVINGS)

        first = (penalty.prox(V - step * G, step), step, jnp.int32(0))
        W, step, _ = lax.while_loop(cond, shrink, first)
        return W, step

    def iterate(s: State) -> State:
        value, G = jax.value_and_grad(smooth)(s.V)
        W, step = forward(s.V, value, G, s.step)
        uphill = jnp.sum((s.V - W) * (W - s.W)) > 0
        t = jnp.where(uphill, 1, s.t)
        t_next = (1 + jnp.sqrt(1 + 4 * t * t)) / 2
        V = W + jnp.where(uphill, 0, (t - 1) / t_next) * (W - s.W)
        return State(W, V, t_next, step)

    solution, _ = _loop.run(
        problem,
        init,
        State(init, init, jnp.ones((), init.dtype), step),
        lambda s, n: lax.fori_loop(0, n, lambda _, s: iterate(s), s),
        lambda s: s.W,
        step=lambda s: s.step,
        tol=tol,
        maxiter=maxiter,
        check_every=CHECK,
        history=history,
    )
    return solution._replace(params=restore(solution.params))


def _first_step(smooth, init):
    """1/L from the change of the gradient over a short step along it; backtracking mends it."""
    G = jax.grad(smooth)(init)
    size = jnp.sqrt(jnp.sum(G * G))
    length = jnp.maximum(1, jnp.sqrt(jnp.sum(init * init))) * jnp.finfo(init.dtype).eps ** 0.25
    direction = G / jnp.where(size > 0, size, 1)
    change = jax.grad(smooth)(init - length * direction) - G
    L = jnp.sqrt(jnp.sum(change * change)) / length
    # The curvature along one direction is at most L: begin with a longer step than it may allow.
    return 1 / jnp.where(L > 0, L, 1)
