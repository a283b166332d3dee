"""Accelerated proximal gradient with restart, for any smooth loss."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checks import as_positive
from sparsejax._core.linalg import eps_of, tiny_of
from sparsejax.driver import Algorithm, Link, Loop, prepare
from sparsejax.driver.curvature import first_step, step_length
from sparsejax.problem import Problem, flattened
from sparsejax.solution import Solution
from sparsejax.solvers._chains import solved_by

ITERATIONS_PER_CHECK = 10  # iterations between two certificates
MAX_HALVINGS = 60  # of the step, in one iteration
GROWTH = 1.125  # factor by which backtracking tries a longer step, in each iteration


class State(NamedTuple):
    """State of the iteration."""

    W: jax.Array  # shape of the start, the last prox point
    V: jax.Array  # the same shape, the extrapolated point
    t: jax.Array  # (), momentum sequence: t_1 = 1, t_{k+1} = (1 + sqrt(1 + 4 t_k^2)) / 2
    step: jax.Array  # (), 1/L


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
    given; for a loss with a majorizer a bound of its curvature (never too small); otherwise it is
    found by backtracking, at the price of one more evaluation of the loss an iteration; each iteration first
    tries a step that is an eighth longer, as the curvature may fall on the way. Every 10 iterations
    the duality gap of W is computed (the prox-gradient residual if no dual is known); the loop ends when it
    is at most ``tol``.

    Args:
      problem: any smooth convex loss, and a penalty with ``prox``.
      init: start, shape of W; default zeros where the loss knows the shape.
      tol: largest accepted gap (or residual); default 1e-6 in float64, 1e-4 in float32. ``tol=0`` runs to
        the floor of the dtype, as `sparsejax.admm`.
      maxiter: iterations, >= 0.
      history: record that many iterations; every iteration of the solve is then certified.
      stepsize: > 0, at most 1 over the largest curvature of the loss. With a longer step the iteration can
        diverge; the status then says so.

    Returns:
      `Solution`; ``params`` is a prox point, with exact zeros.

    Raises:
      TypeError, ValueError: an unfit argument, before tracing.
    Source: Beck & Teboulle, SIAM J. Imaging Sciences 2(1), 2009; restart: O'Donoghue & Candes, Foundations of
      Computational Mathematics 15, 2015, Eq. (13); longer steps: Scheinberg, Goldfarb & Bai, Foundations of
      Computational Mathematics 14, 2014.

    >>> import numpy as np, sparsejax as sj
    >>> problem = sj.Problem(sj.losses.SquaredLoss(np.eye(4, 3), np.eye(4, 2)), sj.penalties.L21(0.0625))
    >>> sj.fista(problem, tol=1e-5).converged.item()
    True
    """
    problem, init, tol, maxiter, history = prepare("fista", problem, init, tol, maxiter, history)
    if stepsize is not None:
        stepsize = as_positive("fista: stepsize", stepsize, jax.tree.leaves(init)[0].dtype)
    return solved_by(LINK, problem, init, tol, maxiter, history, (stepsize,))


def unfit(problem: Problem) -> None:
    """None: the solver takes every problem."""


def iterated(
    problem: Problem,
    init: Any,
    tol: jax.Array,
    maxiter: jax.Array,
    history: int,
    stepsize: jax.Array | None = None,
    finish: bool = True,
) -> Solution:
    """The iteration of `fista` on checked arguments, to call inside a compiled program.

    Args:
      problem, init, tol, maxiter, history, stepsize: as `fista`, checked.
      finish: whether Newton steps on the support finish a solve that stalls.
    """
    problem, init, restore = flattened(problem, init)
    backtrack = stepsize is None and problem.smooth.quadratic_model().majorizer is None
    if stepsize is None:
        stepsize = first_step(problem.smooth, init) if backtrack else step_length(problem.smooth)
    algorithm = Algorithm(
        state=State(init, init, jnp.ones((), init.dtype), stepsize),
        block=lambda s, n: lax.fori_loop(0, n, lambda _, s: _iterate(problem, s, backtrack), s),
        candidate=lambda s: s.W,
        step=lambda s: s.step,
        check_every=ITERATIONS_PER_CHECK,
    )
    solution, _ = Loop(problem, init, algorithm, tol, maxiter, history, finish).run()
    return solution._replace(params=restore(solution.params))


def _iterate(problem: Problem, s: State, backtrack: bool) -> State:
    """One iteration, with the restart of O'Donoghue & Candes, Eq. (13)."""
    value, G = jax.value_and_grad(problem.smooth)(s.V)
    W, step = _forward(problem, s.V, value, G, longer(s.step) if backtrack else s.step, backtrack)
    uphill = jnp.sum((s.V - W) * (W - s.W)) > 0
    t = jnp.where(uphill, 1, s.t)
    t_next = (1 + jnp.sqrt(1 + 4 * t * t)) / 2
    V = W + jnp.where(uphill, 0, (t - 1) / t_next) * (W - s.W)
    return State(W, V, t_next, step)


def longer(step: jax.Array) -> jax.Array:
    """The step that backtracking tries after this one; never 0 or infinity, which no factor would change."""
    tiny = tiny_of(step)
    return jnp.clip(step * GROWTH, tiny, 1 / tiny)


def _forward(
    problem: Problem, V: jax.Array, value: jax.Array, G: jax.Array, step: jax.Array, backtrack: bool
) -> tuple[jax.Array, jax.Array]:
    """The prox-gradient step from V, halving ``step`` until the quadratic bound holds."""
    smooth, penalty = problem.smooth, problem.penalty
    first = penalty.prox(V - step * G, step)
    if not backtrack:
        return first, step
    eps = eps_of(V)

    def too_long(carry: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        W, step, n = carry
        D = W - V
        bound = value + jnp.sum(G * D) + jnp.sum(D * D) / (2 * step)
        # Near the optimum the two sides are nearly equal: allow for their rounding, and for the rounding of W
        # times the slope, which is not small if W is constrained.
        rounding = 10 * eps * (jnp.abs(value) + jnp.sum(jnp.abs(G * W)))
        bound_holds: jax.Array = smooth(W) <= bound + rounding
        return ~bound_holds & (n < MAX_HALVINGS)

    def shrink(carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        _, step, n = carry
        step = step / 2
        return penalty.prox(V - step * G, step), step, n + 1

    W, step, _ = lax.while_loop(too_long, shrink, (first, step, jnp.int32(0)))
    return W, step


LINK = Link(
    "fista",
    iterated,
    # In units of the data the curvature is gamma times as large.
    arrays_in_units=lambda units, arrays: tuple(step / units.gamma for step in arrays if step is not None),
)
