r"""Newton's method on smooth losses of several columns, by quadratic problems with the same penalty."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.linalg import eps_of, norm, safe_divide
from sparsejax.certificate import Certificate
from sparsejax.driver import Algorithm, Link, Loop, kinds, prepare
from sparsejax.driver.chain import at_the_floor, unfinished
from sparsejax.driver.curvature import residual_step
from sparsejax.losses import Facts, hessian, num_rows, sizes
from sparsejax.problem import Problem, flattened
from sparsejax.solution import Solution
from sparsejax.solvers._chains import solved_by
from sparsejax.solvers._quadratic_admm import Answer, Quadratic

MAX_STEPS = 300
RESIDUAL_SHARE = 0.03  # residual to which a quadratic problem is solved, as a share of the residual at W
MIN_DECREASE_SHARE = 1e-3  # a step is taken if the objective falls by this share of the promised change
# Levenberg's term, as a share of the largest eigenvalue of the Hessian. A failed step multiplies it by
# DAMPING_GROWTH, to FIRST_DAMPING at least. A step that is taken multiplies it by DAMPING_DECAY, and a term
# of at most MIN_DAMPING becomes 0.
FIRST_DAMPING, DAMPING_GROWTH, DAMPING_DECAY, MIN_DAMPING = 1e-2, 10.0, 0.1, 1e-6
# Least unit of the damping, as a share of the largest curvature known: far from the hinge the Hessian of a
# hinge loss is nearly 0.
MIN_CURVATURE_SHARE = 1e-3
MAX_STALLED_STEPS = 20  # steps without progress after which the loop ends
MAX_BLOCK_UNKNOWNS = 2048  # unknowns in one block of the Hessian
# `sparsejax.solve` takes this solver for blocks of at most so many unknowns and so many rows for each
# feature.
SMALL_BLOCK_UNKNOWNS, MIN_ROWS_PER_FEATURE = 64, 4
# The same limit for data that every pass reads again: a pass is expensive there, and the Hessian takes one
# pass.
STREAMED_BLOCK_UNKNOWNS = 512


def newton_admm(
    problem: Problem,
    init: Any = None,
    *,
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
    history: int = 0,
) -> Solution:
    r"""Minimise by Newton steps, each the answer of a quadratic problem with the same penalty.

    .. math:: \min_V \langle\nabla f(W), V - W\rangle
              + \tfrac12\langle V - W, (\nabla^2 f(W) + \mu I)(V - W)\rangle + g(V)

    is solved by the iteration of `admm`, with a Cholesky factor of the Hessian, to 0.03 of the residual at W.
    A step is taken if the objective falls by a share of what the quadratic promises. If it does not,
    :math:`\mu`, which is 0 otherwise, grows until a step is taken: at last the step is a short proximal
    gradient step. About a dozen steps replace thousands of first-order ones at small strengths, with labels
    that are nearly separated, and with features that are unpenalised or nearly equal.

    The Hessian is formed. If the loss is a sum over the columns of W, as `LogisticLoss`, it has one block for
    each column, d x d, or a root of it, n x d, if n < d. Else it has one block, kd x kd.

    Args:
      problem: any twice differentiable loss, such as `LogisticLoss` or a plain function, that is not
        quadratic; a penalty of one term; blocks of at most 2048 unknowns.
      init, tol, maxiter, history: as `fista`; an iteration is a step, taken or not, here at
        most 300.

    Returns:
      `Solution`; ``params`` is a prox point, with exact zeros.

    Raises:
      TypeError, ValueError: an unfit problem or argument, before tracing.
    Source: Lee, Sun & Saunders, SIAM Journal on Optimization 24(3), 2014; Levenberg's term in place of their
      line search.

    >>> import numpy as np, sparsejax as sj
    >>> loss = sj.losses.LogisticLoss(np.eye(4, 3), np.array([1.0, 0.0, 0.0, 1.0]))
    >>> problem = sj.Problem(loss, sj.penalties.L1(0.05))
    >>> sj.newton_admm(problem).converged.item()
    True
    """
    problem, init, tol, maxiter, history = prepare("newton_admm", problem, init, tol, maxiter, history, unfit)
    return solved_by(LINK, problem, init, tol, maxiter, history)


def unfit(problem: Problem) -> str | None:
    """Why the solver does not take the problem, in words; None if it does."""
    smooth = problem.smooth
    if len(problem.penalty.terms) > 1:
        return f"needs a penalty of one term, got {kinds(problem)}."
    model = smooth.quadratic_model()
    if model.majorizer is not None and model.exact:
        return f"needs a loss that is not quadratic, got {kinds(problem)}."
    if "shape" in smooth.provides and _block(problem) > MAX_BLOCK_UNKNOWNS:
        return (
            f"forms the Hessian, in blocks of at most {MAX_BLOCK_UNKNOWNS} unknowns; here they have "
            f"{_block(problem)}: use admm, fista or working_set."
        )
    return None


def suits(problem: Problem) -> bool:
    """Whether `sparsejax.solve` takes this solver: if the Hessian costs no more than some steps of `admm`."""
    smooth, n = problem.smooth, num_rows(problem.smooth)
    model = smooth.quadratic_model()
    if n is not None and model.rereads and model.separable:
        return _block(problem) <= STREAMED_BLOCK_UNKNOWNS and n >= MIN_ROWS_PER_FEATURE * _block(problem)
    if not {"shape", "columns"} <= smooth.provides or n is None:
        return False
    return bool(
        _block(problem) <= SMALL_BLOCK_UNKNOWNS and n >= MIN_ROWS_PER_FEATURE * smooth.params_shape[0]
    )


def few_features(problem: Problem) -> bool:
    """Whether the Hessian costs less than a working set: it has at most `SMALL_BLOCK_UNKNOWNS` unknowns."""
    smooth = problem.smooth
    rereads = smooth.quadratic_model().rereads
    return (
        "shape" in smooth.provides and not rereads and math.prod(smooth.params_shape) <= SMALL_BLOCK_UNKNOWNS
    )


def _block(problem: Problem) -> int:
    """Number of rows of the matrix whose eigenvectors are computed: a block of the Hessian, or its root."""
    smooth = problem.smooth
    shape: tuple[int, ...] = smooth.params_shape
    if not smooth.quadratic_model().separable:
        return math.prod(shape)
    n = num_rows(smooth)
    return shape[0] if n is None else min(shape[0], n)


class Point(NamedTuple):
    """A point, and what was computed at it."""

    W: jax.Array  # (d, k) or (d,)
    objective: jax.Array  # ()
    facts: Facts  # of the loss
    subgradient: jax.Array  # shape of W, a subgradient of the penalty


class State(NamedTuple):
    """State of the iteration."""

    at: Point  # the last point that was taken
    trial: Answer  # the answer of the quadratic problem at this point
    promised: jax.Array  # (), change of the objective from the point to the trial, by the quadratic
    damping: jax.Array  # (), Levenberg's term mu, as a share of the largest eigenvalue
    step: jax.Array  # (), 1 / the largest curvature known


def link_if_fit(problem: Problem) -> Link | None:
    """The link that continues after another solver; None if this solver does not take the problem."""
    return LINK if unfit(problem) is None else None


def link_if_unfinished(problem: Problem) -> Link | None:
    """Same as `link_if_fit`, after a solver that reaches the floor of rounding errors by itself."""
    return replace(LINK, due=unfinished) if unfit(problem) is None else None


def _iterated(
    problem: Problem, init: Any, tol: jax.Array, maxiter: jax.Array, history: int, finish: bool = False
) -> Solution:
    problem, init, restore = flattened(problem, init)
    solution = _steps(problem, init, tol, maxiter, history, finish)
    return solution._replace(params=restore(solution.params))


def _due(solution: Solution, tol: jax.Array, maxiter: jax.Array) -> Any:
    """Whether this solver continues: tol is not met, or a first-order method has stalled at its floor."""
    return unfinished(solution, tol, maxiter) | at_the_floor(solution, tol, maxiter)


def _steps(
    problem: Problem, init: jax.Array, tol: jax.Array, maxiter: jax.Array, history: int, finish: bool
) -> Solution:
    smooth, zero = problem.smooth, jnp.zeros((), init.dtype)
    none = jnp.zeros_like(init)
    form = jax.eval_shape(lambda: smooth.facts(init, sizes(smooth)))
    facts = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), form)
    start = Point(init, jnp.full((), jnp.inf, init.dtype), facts, none)
    algorithm = Algorithm(
        state=State(start, Answer(init, none, zero), zero, zero, residual_step(smooth, init)),
        block=lambda s, n: lax.fori_loop(0, n, lambda _, s: stepped(problem, s), s),
        candidate=lambda s: s.trial.W,
        step=lambda s: s.step,
        check_every=1,
        learn=learnt,
        patience=MAX_STALLED_STEPS,
    )
    limit = jnp.minimum(maxiter, MAX_STEPS)
    return Loop(problem, init, algorithm, tol, limit, history, finish).run()[0]


def learnt(s: State, facts: Facts, certificate: Certificate) -> State:
    """The state with the trial as its point, if the objective falls enough; else with more damping."""
    objective = certificate.objective
    rounding = 10 * eps_of(objective) * jnp.abs(objective)
    falls = objective - s.at.objective <= MIN_DECREASE_SHARE * jnp.minimum(s.promised, 0) + rounding
    falls &= jnp.isfinite(objective)
    trial = Point(s.trial.W, objective, facts, s.trial.subgradient)
    at = jax.tree.map(lambda a, b: jnp.where(falls, a, b), trial, s.at)
    less = jnp.where(s.damping > MIN_DAMPING, DAMPING_DECAY * s.damping, 0)
    # A trial that failed may have left rho at a bad value: 0 restarts it.
    answer = s.trial._replace(rho=jnp.where(falls, s.trial.rho, 0))
    damping = jnp.where(falls, less, jnp.maximum(DAMPING_GROWTH * s.damping, FIRST_DAMPING))
    return s._replace(at=at, trial=answer, damping=damping)


def stepped(problem: Problem, s: State) -> State:
    """The state with the next trial: the answer of the quadratic problem at the present point."""
    penalty, (W, objective, facts, subgradient) = problem.penalty, s.at
    H = hessian(problem.smooth, W, facts.predictions)
    quadratic = Quadratic(H, facts.gradient, W, s.damping, MIN_CURVATURE_SHARE / s.step)
    wanted = RESIDUAL_SHARE * norm(facts.gradient + subgradient)
    start = Answer(W, subgradient, jnp.zeros_like(s.trial.rho))
    trial = quadratic.solve(penalty, start._replace(rho=s.trial.rho), wanted)
    finite = jnp.all(jnp.isfinite(trial.W)) & jnp.isfinite(trial.rho)
    trial = jax.tree.map(lambda a, b: jnp.where(finite, a, b), trial, start)
    before = objective - facts.value
    promised = jnp.sum(facts.gradient * (trial.W - W)) + penalty.value(trial.W) - before
    promised = jnp.where(finite, promised, -jnp.inf)  # no objective falls by so much: more damping follows
    step = jnp.minimum(s.step, safe_divide(1.0, quadratic.largest, jnp.inf))
    return s._replace(trial=trial, promised=promised, step=step)


LINK = Link("newton_admm", _iterated, rows=True, due=_due, finish_step=residual_step)
