r"""Newton's method on smooth losses of several columns, by quadratic problems with the same penalty."""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.linalg import apply_if, choose, eps_of, norm, safe_divide
from sparsejax.certificate import Certificate
from sparsejax.driver import Algorithm, Link, Loop, kinds, prepare
from sparsejax.driver.chain import at_the_floor, unfinished
from sparsejax.driver.curvature import residual_step
from sparsejax.losses import Facts, facts_unless_known, hessian, no_facts, num_rows, sizes
from sparsejax.problem import Problem, flattened
from sparsejax.solution import Solution
from sparsejax.solvers._chains import solved_by
from sparsejax.solvers._quadratic_admm import Answer, Quadratic

MAX_STEPS = 2000
RESIDUAL_SHARE = 0.03  # residual to which a quadratic problem is solved, as a share of the residual at W
MIN_DECREASE_SHARE = 1e-3  # a step is taken if the objective falls by this share of the promised change
# Levenberg's term, as a share of a bound of the largest eigenvalue of the Hessian. A failed step multiplies
# the term by DAMPING_GROWTH, to FIRST_DAMPING at least. A step that is taken multiplies it by DAMPING_DECAY,
# and a term of at most MIN_DAMPING becomes 0.
FIRST_DAMPING, DAMPING_GROWTH, DAMPING_DECAY, MIN_DAMPING = 1e-2, 10.0, 0.1, 1e-6
# Least unit of the damping, as a share of the largest curvature known: far from the hinge the Hessian of a
# hinge loss is nearly 0.
MIN_CURVATURE_SHARE = 1e-3
MAX_STALLED_STEPS = 20  # steps without progress after which the loop ends
MAX_BLOCK_UNKNOWNS = 2048  # rows of one block of the Hessian, or of the root of a block if n < d
# `sparsejax.solve` takes this solver for blocks of at most SMALL_BLOCK_UNKNOWNS unknowns, with at least
# MIN_ROWS_PER_FEATURE rows of data for each feature.
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
    If one more step as good as the last one would meet tol, the next step uses the last Hessian again. So
    does the first step at each strength of a path, if the solve at the strength before has converged.
    A step is taken if the objective falls by a share of the change of
    :math:`\langle\nabla f(W), V\rangle + g(V)`. :math:`\mu` is 0 at first, grows with each refused step, at
    last to a short proximal gradient step, and falls with each step that is taken. About a dozen steps
    replace thousands of first-order ones at small strengths, with labels that are nearly separated, and with
    features that are unpenalised or nearly equal.

    The Hessian is formed. If the loss is a sum over the columns of W, as `LogisticLoss`, it has one block for
    each column, d x d, or a root of it, n x d, if n < d. Else it has one block, kd x kd.

    Args:
      problem: any twice differentiable loss, such as `LogisticLoss` or a plain function, that is not least
        squares of a dense X without weights by entry; a penalty of one term with its value (not
        `interop.jaxopt.from_projection`, or `FromProx` without ``value``); blocks of the Hessian, or their
        roots, of at most 2048 rows. The size of the Hessian of a plain function is not checked.
      init, tol, maxiter, history: as `fista`; an iteration is a step, taken or not, here at
        most 2000.

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
    return solved_by(LINK, *prepare("newton_admm", problem, init, tol, maxiter, history, unfit))


def unfit(problem: Problem) -> str | None:
    """Why the solver does not take the problem, in words; None if it does."""
    smooth = problem.smooth
    if len(problem.penalty.terms) > 1:
        return f"needs a penalty of one term, got {kinds(problem)}."
    if not problem.penalty._valued:
        return f"compares objectives, which lack the value of the penalty, got {kinds(problem)}: use fista."
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
    if n is None:
        return False
    if model.rereads and model.separable:
        return _block(problem) <= STREAMED_BLOCK_UNKNOWNS and n >= MIN_ROWS_PER_FEATURE * _block(problem)
    small = {"shape", "columns"} <= smooth.provides and _block(problem) <= SMALL_BLOCK_UNKNOWNS
    return bool(small and n >= MIN_ROWS_PER_FEATURE * smooth.params_shape[0])


def few_features(problem: Problem) -> bool:
    """Whether the Hessian costs less than a working set: it has at most `SMALL_BLOCK_UNKNOWNS` unknowns."""
    smooth = problem.smooth
    few = "shape" in smooth.provides and math.prod(smooth.params_shape) <= SMALL_BLOCK_UNKNOWNS
    return few and not smooth.quadratic_model().rereads


def _block(problem: Problem) -> int:
    """Number of rows of the matrix that is factorised: a block of the Hessian, or AA' of its root A."""
    smooth = problem.smooth
    shape: tuple[int, ...] = smooth.params_shape
    model = smooth.quadratic_model()
    if model.hessian is None or not model.separable:  # without ``hessian``, by products: all of it
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
    promised: jax.Array  # (), change of linearised loss plus penalty from the point to the trial
    damping: jax.Array  # (), Levenberg's term mu, as a share of `Quadratic.unit`
    step: jax.Array  # (), 1 / the largest curvature known
    hessian: jax.Array  # of the last step, as `sparsejax.losses.hessian` returns it
    near: jax.Array  # () boolean, whether the next step uses ``hessian``
    measure: jax.Array  # (), gap (or residual) at the last point


class Last(NamedTuple):
    """What one problem of a path passes on to the next."""

    W: jax.Array  # (d, k) or (d,), the last point; NaN if there is none whose facts are known
    facts: Facts  # of the loss at W
    hessian: jax.Array  # of the last step
    near: jax.Array  # () boolean, whether the next problem may begin with ``hessian``


def _iterated(
    problem: Problem, init: Any, tol: jax.Array, maxiter: jax.Array, history: int, finish: bool = False
) -> Solution:
    known = sizes(problem.smooth)
    last = nothing_before(known, problem, init)
    return resume(problem, known, init, last, tol, maxiter, history=history, finish=finish, alone=True)[0]


def _due(solution: Solution, tol: jax.Array, maxiter: jax.Array) -> Any:
    """Whether this solver continues: tol is not met, or a first-order method has stalled at its floor."""
    return unfinished(solution, tol, maxiter) | at_the_floor(solution, tol, maxiter)


def nothing_before(known: Any, problem: Problem, init: Any) -> Last:
    """The `Last` with which a path begins."""
    problem, init, _ = flattened(problem, init)
    facts = no_facts(problem.smooth, init, known)
    form = jax.eval_shape(lambda: hessian(problem.smooth, init, facts.predictions))
    none = jnp.zeros(form.shape, form.dtype)
    return Last(jnp.full_like(init, jnp.nan), facts, none, jnp.zeros((), bool))


def resume(
    problem: Problem,
    known: Any,
    init: Any,
    last: Last,
    tol: jax.Array,
    maxiter: jax.Array,
    history: int = 0,
    finish: bool = False,
    alone: bool = False,
) -> tuple[Solution, Last]:
    """The solution of the next problem of a path.

    Args:
      known: `sparsejax.losses.sizes` of the loss.
      last: what the problem before passes on. If ``init`` is its W, its facts are used, and the first step
        may use its Hessian.
      alone: whether there is no other problem; the program then never asks for the facts of ``last``.
    """
    problem, init, restore = flattened(problem, init)
    smooth, zero, none = problem.smooth, jnp.zeros((), init.dtype), jnp.zeros_like(init)

    # The start is a trial from an infinite objective, so that the first check takes it.
    start = Point(last.W, jnp.full((), jnp.inf, init.dtype), last.facts, none)
    algorithm = Algorithm(
        state=State(
            at=start,
            trial=Answer(init, none, zero),
            promised=zero,
            damping=zero,
            step=residual_step(smooth, init),
            hessian=last.hessian,
            near=last.near & jnp.all(init == last.W),
            measure=zero + jnp.inf,
        ),
        block=lambda s, n: lax.fori_loop(0, n, lambda _, s: stepped(problem, s), s),
        candidate=lambda s: s.trial.W,
        step=lambda s: s.step,
        check_every=1,
        learn=partial(learnt, tol),
        patience=MAX_STALLED_STEPS,
        facts=None if alone else lambda s, W: facts_unless_known(smooth, W, known, s.at.W, s.at.facts),
    )
    limit = jnp.minimum(maxiter, MAX_STEPS)
    solution, s = Loop(problem, init, algorithm, tol, limit, history, finish, known).run()
    W = jnp.where(jnp.isfinite(s.at.objective), s.at.W, jnp.nan)  # else no trial was taken
    near = solution.converged & (s.near | (solution.num_iters > 0))
    return solution._replace(params=restore(solution.params)), Last(W, s.at.facts, s.hessian, near)


def learnt(tol: jax.Array, s: State, facts: Facts, certificate: Certificate) -> State:
    """The state with the trial as its point, if the objective falls enough; else with more damping."""
    objective = certificate.objective
    rounding = 10 * eps_of(objective) * jnp.abs(objective)
    falls = objective - s.at.objective <= MIN_DECREASE_SHARE * jnp.minimum(s.promised, 0) + rounding
    falls &= jnp.isfinite(objective)
    at = choose(falls, Point(s.trial.W, objective, facts, s.trial.subgradient), s.at)
    less = jnp.where(s.damping > MIN_DAMPING, DAMPING_DECAY * s.damping, 0)
    # A trial that failed may have left rho at a bad value: for rho = 0 `Quadratic.solve` chooses a new rho.
    answer = s.trial._replace(rho=jnp.where(falls, s.trial.rho, 0))
    # After a step that failed with an old Hessian, a new Hessian comes before more damping.
    more = jnp.where(s.near, s.damping, jnp.maximum(DAMPING_GROWTH * s.damping, FIRST_DAMPING))
    # The next step reuses the Hessian if one more step as good as this one would meet tol. The start was not
    # reached by a step: from there the Hessian of the problem before is used, if there is one.
    first, measure = jnp.isinf(s.at.objective), certificate.measure
    one_more = safe_divide(measure, s.measure) * measure <= tol
    near = falls & jnp.where(first, s.near, one_more)
    measure = jnp.where(falls, measure, s.measure)
    return s._replace(at=at, trial=answer, damping=jnp.where(falls, less, more), near=near, measure=measure)


def stepped(problem: Problem, s: State) -> State:
    """The state with the next trial: the answer of the quadratic problem at the present point."""
    penalty, (W, objective, facts, subgradient) = problem.penalty, s.at
    H = apply_if(~s.near, lambda _: hessian(problem.smooth, W, facts.predictions), s.hessian)
    quadratic = Quadratic(H, facts.gradient, W, s.damping, MIN_CURVATURE_SHARE / s.step)
    wanted = RESIDUAL_SHARE * norm(facts.gradient + subgradient)
    start = Answer(W, subgradient, jnp.zeros_like(s.trial.rho))
    trial = quadratic.solve(penalty, start._replace(rho=s.trial.rho), wanted)
    finite = jnp.all(jnp.isfinite(trial.W)) & jnp.isfinite(trial.rho)
    trial = choose(finite, trial, start)
    before = objective - facts.value  # g(W)
    promised = jnp.sum(facts.gradient * (trial.W - W)) + penalty.value(trial.W) - before
    promised = jnp.where(finite, promised, -jnp.inf)  # no objective falls by so much: more damping follows
    step = jnp.minimum(s.step, safe_divide(1.0, quadratic.largest, jnp.inf))
    return s._replace(trial=trial, promised=promised, step=step, hessian=H)


LINK = Link("newton_admm", _iterated, rows=True, due=_due, finish_step=residual_step)
