r"""Newton's method on a smooth loss of one column, by least squares problems with the same penalty."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.linalg import columns, safe_divide
from sparsejax.certificate import Certificate, certify, scale_of
from sparsejax.driver import Link, kinds, prepare
from sparsejax.driver.curvature import cautious_step
from sparsejax.driver.loop import empty_history, judged, recorded
from sparsejax.driver.loop import unknown as no_certificate
from sparsejax.losses import Facts
from sparsejax.problem import Problem
from sparsejax.solution import History, Solution
from sparsejax.solvers._chains import solved_by
from sparsejax.solvers._norm_blocks import blocks_of
from sparsejax.solvers._quadratics import least_squares
from sparsejax.solvers._scalars import Newton, begun, weighted

STEPS = 50  # at most
LOOSE = 0.01  # gap of the least squares problem, as a share of the gap of the whole
SUFFICIENT, SHORTEST = 1e-3, 1e-6  # decrease, of what the model promises, and the shortest step tried


def prox_newton(
    problem: Problem,
    init: ArrayLike | None = None,
    *,
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
    history: int = 0,
) -> Solution:
    r"""Minimise by steps towards the answers of :math:`\min_v \tfrac12\|Av - B\|^2 + g(v)`.

    A and B are the loss to second order about the last point (``loss.least_squares_at``); each problem is
    solved by the iteration of `variational_newton`, from where the last one ended, and the step is halved
    until the objective falls by a share of what the model promises. A handful of steps where first-order
    ones are thousands: small strengths, labels that are nearly separated.

    What this does not solve `newton_admm` (`admm` where that does not fit) takes over from where it stands.

    Args:
      problem: a loss of one column with ``least_squares_at``, such as `LogisticLoss`, and a penalty that
        `variational_newton` takes: `L1`, `L21`, `GroupLasso`, with `SquaredL2` or without.
      init, tol, maxiter, history: as `admm`; an iteration is a step, here at most 50.

    Returns:
      `Solution`, with exact zeros.

    Raises:
      TypeError, ValueError: an unfit problem or argument, before tracing.
    Source: Lee, Sun & Saunders, SIAM Journal on Optimization 24(3), 2014.

    >>> import numpy as np, sparsejax as sj
    >>> loss = sj.losses.LogisticLoss(np.eye(4, 3), np.array([1.0, 0.0, 0.0, 1.0]))
    >>> problem = sj.Problem(loss, sj.penalties.L1(0.05))
    >>> print(sj.prox_newton(problem).params.round(2))
    [ 1.38 -1.38 -1.38]
    """
    problem, init, tol, maxiter, history = prepare("prox_newton", problem, init, tol, maxiter, history, unfit)
    return solved_by(LINK, problem, init, tol, maxiter, history)


def unfit(problem: Problem) -> str | None:
    """Why the solver does not take the problem, in words; None if it does."""
    smooth, penalty = problem.smooth, problem.penalty
    if not {"shape", "curvature", "least squares"} <= smooth.provides or smooth.quadratic:
        return f"needs a loss that is not quadratic, with least_squares_at(), got {kinds(problem)}."
    shape = smooth.params_shape
    if shape[1:] not in ((), (1,)):
        return f"needs a single column, got W of shape {shape}."
    if "row norm" not in penalty.provides or penalty.row_norm(shape) is None:
        return f"needs a norm of each row or group, got {kinds(problem)}."
    return None


class State(NamedTuple):
    """What is iterated."""

    W: jax.Array
    facts: Facts
    certificate: Certificate
    stuck: jax.Array
    k: jax.Array
    history: History


class _Search(NamedTuple):
    length: jax.Array
    W: jax.Array
    facts: Facts
    falls: jax.Array


def _steps(problem: Problem, init: jax.Array, tol: jax.Array, maxiter: jax.Array, history: int) -> Solution:
    smooth, penalty = problem.smooth, problem.penalty
    scale = scale_of(problem, init)
    step = cautious_step(jnp.sum(smooth.majorizer() ** 2))
    blocks = blocks_of(penalty, init, smooth.num_rows)

    def look(s: State) -> State:
        found = certify(problem, s.W, step, scale, s.facts)
        history = recorded(s.history, s.k, found.objective, found.gap)
        return s._replace(certificate=found, history=history)

    def going(s: State) -> jax.Array:
        return ~s.stuck & (s.certificate.measure > tol) & (s.k < jnp.minimum(maxiter, STEPS))

    def body(s: State) -> State:
        quadratic = least_squares(*smooth.least_squares_at(s.W))
        point = begun(quadratic, blocks, columns(s.W), columns(s.facts.gradient))
        # the gap of the model is relative to its own value at 0
        unit = safe_divide(scale.value, quadratic.size / 2, 1.0)
        wanted = jnp.maximum(LOOSE * s.certificate.measure, tol / 4) * unit
        newton = Newton(quadratic, blocks, wanted, jnp.int32(STEPS))
        end = newton.run(point, empty_history(0, init.dtype)).point
        change = jnp.where(end.known, weighted(blocks, end, init) - s.W, 0)
        before = penalty.value(s.W)
        promised = jnp.sum(s.facts.gradient * change) + penalty.value(s.W + change) - before

        def shorter(c: _Search) -> _Search:
            W = s.W + c.length * change
            facts = smooth.facts(W, scale.sizes)
            fall = (s.facts.value - facts.value) + (before - penalty.value(W))
            rounding = s.facts.rounding + facts.rounding
            return _Search(c.length / 2, W, facts, fall + rounding >= -SUFFICIENT * c.length * promised)

        one = jnp.ones((), init.dtype)
        search = _Search(one, s.W, s.facts, jnp.zeros((), bool))
        found = lax.while_loop(lambda c: ~c.falls & (c.length > SHORTEST), shorter, search)
        stuck = ~found.falls | ~(promised < 0)
        return look(State(found.W, found.facts, s.certificate, stuck, s.k + 1, s.history))

    unknown, empty = no_certificate(init.dtype), empty_history(history, init.dtype)
    facts = smooth.facts(init, scale.sizes)
    first = State(init, facts, unknown, jnp.zeros((), bool), jnp.int32(0), empty)
    end = lax.while_loop(going, body, look(first))
    return judged(end.W, end.certificate, tol, end.k, end.history, scale)


LINK = Link("prox_newton", _steps)
