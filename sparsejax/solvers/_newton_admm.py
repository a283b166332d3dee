r"""Newton's method on smooth losses of several columns, by quadratic problems with the same penalty."""

import math
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

STEPS = 300  # at most
LOOSE = 0.1  # residual of the quadratic problem, as a share of that of the whole
SUFFICIENT = 1e-3  # decrease, of what the quadratic promises
# Levenberg's term, as a share of the largest eigenvalue: where a step fails FIRST, or MORE times as much as
# there is; where it does not LESS of it, and below LEAST none.
FIRST, MORE, LESS, LEAST = 1e-2, 10.0, 0.1, 1e-6
FLATTEST = 1e-3  # of the curvature: what a Hessian is taken for that all but vanishes, as of hinges far away
PATIENCE = 20  # steps without progress, at the precision of the dtype
LARGEST = 2048  # unknowns that a block of the Hessian couples, at most
# Unknowns of a block up to which, and rows for each feature from which, `sparsejax.solve` takes this solver.
SMALL, ROWS = 64, 4
REREAD = 512  # likewise, where a pass over the data is dear and the Hessian one pass


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

    is solved by the iteration of `admm` in the eigenvectors of the Hessian, to a tenth of the residual at W.
    A step that the objective does not bear out is not taken, and :math:`\mu`, else 0, grows until one is: in
    the end it is a short proximal gradient step. A dozen steps where first-order ones are thousands: small
    strengths, labels that are nearly separated, features that are not penalised or nearly copies.

    The Hessian is formed: a block for each column of W where the columns do not meet in the loss, as in
    `LogisticLoss`, d x d or for n < d its root; else one of all columns, kd x kd.

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
    if "shape" in smooth.provides and _block(problem) > LARGEST:
        return (
            f"forms the Hessian, in blocks of at most {LARGEST} unknowns; here they have {_block(problem)}: "
            "use admm, fista or working_set."
        )
    return None


def suits(problem: Problem) -> bool:
    """Whether `sparsejax.solve` takes it: where the Hessian costs no more than some steps of `admm`."""
    smooth, n = problem.smooth, num_rows(problem.smooth)
    model = smooth.quadratic_model()
    if n is not None and model.rereads and model.separable:
        return _block(problem) <= REREAD and n >= ROWS * _block(problem)
    if not {"shape", "columns"} <= smooth.provides or n is None:
        return False
    return bool(_block(problem) <= SMALL and n >= ROWS * smooth.params_shape[0])


def few_features(problem: Problem) -> bool:
    """Whether the whole Hessian costs less than a working set: of one column and at most `SMALL` features."""
    smooth = problem.smooth
    rereads = smooth.quadratic_model().rereads
    return "shape" in smooth.provides and not rereads and math.prod(smooth.params_shape) <= SMALL


def _block(problem: Problem) -> int:
    """The size of what is decomposed."""
    smooth = problem.smooth
    shape: tuple[int, ...] = smooth.params_shape
    if not smooth.quadratic_model().separable:
        return math.prod(shape)
    n = num_rows(smooth)
    return shape[0] if n is None else min(shape[0], n)


class Point(NamedTuple):
    """A point, and what is known of it."""

    W: jax.Array
    objective: jax.Array
    facts: Facts
    subgradient: jax.Array  # of the penalty


class State(NamedTuple):
    """What is iterated."""

    at: Point  # the last that was taken
    trial: Answer  # of the quadratic problem there
    promised: jax.Array  # change of the objective, by the quadratic
    damping: jax.Array  # Levenberg's term, as a share of the largest eigenvalue
    step: jax.Array  # 1 / the largest curvature known


def goes_on(problem: Problem) -> Link | None:
    """The link for where another solver has stopped, if it takes the problem."""
    return LINK if unfit(problem) is None else None


def _iterated(
    problem: Problem, init: Any, tol: jax.Array, maxiter: jax.Array, history: int, finish: bool = False
) -> Solution:
    problem, init, restore = flattened(problem, init)
    solution = _steps(problem, init, tol, maxiter, history, finish)
    return solution._replace(params=restore(solution.params))


def _due(solution: Solution, tol: jax.Array, maxiter: jax.Array) -> Any:
    """Whether it goes on: there may be digits left at the floor of a first-order method, too."""
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
        patience=PATIENCE,
    )
    limit = jnp.minimum(maxiter, STEPS)
    return Loop(problem, init, algorithm, tol, limit, history, finish).run()[0]


def learnt(s: State, facts: Facts, certificate: Certificate) -> State:
    """The state with the trial taken, or more damping."""
    objective = certificate.objective
    rounding = 10 * eps_of(objective) * jnp.abs(objective)
    falls = objective - s.at.objective <= SUFFICIENT * jnp.minimum(s.promised, 0) + rounding
    falls &= jnp.isfinite(objective)
    trial = Point(s.trial.W, objective, facts, s.trial.subgradient)
    at = jax.tree.map(lambda a, b: jnp.where(falls, a, b), trial, s.at)
    less = jnp.where(s.damping > LEAST, LESS * s.damping, 0)
    # Where the trial was too far rho may have followed it.
    answer = s.trial._replace(rho=jnp.where(falls, s.trial.rho, 0))
    damping = jnp.where(falls, less, jnp.maximum(MORE * s.damping, FIRST))
    return s._replace(at=at, trial=answer, damping=damping)


def stepped(problem: Problem, s: State) -> State:
    """The next trial."""
    penalty, (W, objective, facts, subgradient) = problem.penalty, s.at
    H = hessian(problem.smooth, W, facts.predictions)
    quadratic = Quadratic(H, facts.gradient, W, s.damping, FLATTEST / s.step)
    wanted = LOOSE * norm(facts.gradient + subgradient)
    start = Answer(W, subgradient, jnp.zeros_like(s.trial.rho))
    trial = quadratic.solve(penalty, start._replace(rho=s.trial.rho), wanted)
    finite = jnp.all(jnp.isfinite(trial.W)) & jnp.isfinite(trial.rho)
    trial = jax.tree.map(lambda a, b: jnp.where(finite, a, b), trial, start)
    before = objective - facts.value
    promised = jnp.sum(facts.gradient * (trial.W - W)) + penalty.value(trial.W) - before
    promised = jnp.where(finite, promised, -jnp.inf)  # which no objective bears out
    step = jnp.minimum(s.step, safe_divide(1.0, quadratic.largest, jnp.inf))
    return s._replace(trial=trial, promised=promised, step=step)


LINK = Link("newton_admm", _iterated, rows=True, due=_due, finish_step=residual_step)
