r"""Newton's method on a loss of one column, by least squares problems with the same penalty."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.linalg import columns, of_all_lanes, once, safe_divide, take
from sparsejax._core.tiles import TILE, rows_at, whole
from sparsejax.certificate import Certificate
from sparsejax.driver import Algorithm, Link, Loop, kinds, prepare
from sparsejax.driver.curvature import residual_step
from sparsejax.driver.feature_subsets import chosen
from sparsejax.driver.loop import empty_history
from sparsejax.losses import Facts, num_rows, sizes
from sparsejax.problem import Problem
from sparsejax.solution import Solution
from sparsejax.solvers._chains import solved_by
from sparsejax.solvers._gram_descent import LOW, Gram, descended, gram_of, no_gram, slopes_of
from sparsejax.solvers._norm_blocks import blocks_of
from sparsejax.solvers._quadratics import least_squares
from sparsejax.solvers._scalars import Newton, begun, weighted

# Least squares of more steps has nearly as many active features as rows, where the engine is faster.
STEPS, STEPS_OF_QUADRATIC = 50, 20
LOOSE = 0.01  # gap of the least squares problem, as a share of the gap of the whole
SHARE = 0.05  # of the violation of the optimality conditions, that descent leaves
MOST = 2048  # features that descent moves
# Least squares on fewer features, or on MANY times more features than rows, is for other solvers.
SMALLEST, MANY = 512, 8
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

    A and B are the loss to second order about the last point (`sparsejax.losses.QuadraticModel`), and the
    step is halved until the objective falls by a share of what the model promises. A handful of steps where
    first-order ones are thousands: small strengths, labels that are nearly separated. A loss may be least
    squares itself: a step is then an exchange of features.

    For norms of rows a problem is solved on the active features and about as many others, those whose slopes
    exceed their strengths most: by cyclic descent on the Gram matrix of their columns of A, in float32, with
    a Newton step on the support every 6 sweeps, until 5 % of the violation of the optimality conditions is
    left. So a step costs two products with X, and what follows the number of active features. For groups,
    and where X has at most 64 rows or columns, it is the iteration of `variational_newton`, on all features.

    What this does not solve `newton_admm` (`admm` where that does not fit) takes over from where it stands.

    Args:
      problem: a loss of one column, such as `LogisticLoss` or `SquaredLoss`, and a penalty that
        `variational_newton` takes: `L1`, `L21`, `GroupLasso`, with `SquaredL2` or without. At most 2048
        features can move in a step.
      init, tol, maxiter, history: as `admm`; an iteration is a step, here at most 50, of least
        squares 20.

    Returns:
      `Solution`, with exact zeros.

    Raises:
      TypeError, ValueError: an unfit problem or argument, before tracing.
    Source: Lee, Sun & Saunders, SIAM Journal on Optimization 24(3), 2014; descent on the Gram matrix:
      Friedman, Hastie & Tibshirani, Journal of Statistical Software 33(1), 2010.

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
    model = smooth.quadratic_model()
    known = "shape" in smooth.provides and None not in (model.majorizer, model.least_squares_at)
    if not known:
        return (
            "needs a loss with majorizer and least_squares_at in its quadratic_model(), got "
            f"{kinds(problem)}."
        )
    shape = smooth.params_shape
    if shape[1:] not in ((), (1,)):
        return f"needs a single column, got W of shape {shape}."
    if "row norm" not in penalty.provides or penalty.row_norm(shape) is None:
        return f"needs a norm of each row or group, got {kinds(problem)}."
    return None


def few_active(problem: Problem) -> bool:
    """Whether `sparsejax.solve` takes it for least squares: many features, and rows not far fewer."""
    n, (d, *_) = num_rows(problem.smooth), problem.smooth.params_shape
    grouped = problem.penalty.row_norm(problem.smooth.params_shape).groups is not None
    return n is not None and not grouped and n > TILE and SMALLEST <= d < MANY * n


class State(NamedTuple):
    """The last point taken, the step from there, and the trial at a share of the step."""

    W: jax.Array
    facts: Facts  # of the loss at W
    penalised: jax.Array  # the penalty at W
    measure: jax.Array  # of the certificate at W
    change: jax.Array  # the step: from W to the answer of the quadratic problem
    promised: jax.Array  # what the quadratic problem says that the objective changes by
    length: jax.Array  # the share of the step that the trial is at
    trial: jax.Array
    taken: jax.Array  # whether W is the last trial
    stuck: jax.Array  # whether no step brings the objective down
    near: jax.Array  # whether one more step like the last would do: it may use the same curvature
    gram: Gram | None  # of the last step by descent


def _steps(problem: Problem, init: jax.Array, tol: jax.Array, maxiter: jax.Array, history: int) -> Solution:
    smooth, penalty = problem.smooth, problem.penalty
    model = smooth.quadratic_model()
    step = residual_step(smooth, init)
    zero = jnp.zeros_like(init)
    rows = num_rows(smooth) or jax.eval_shape(model.least_squares_at, init, None)[0].shape[0]
    grouped = penalty.row_norm(init.shape).groups is not None
    # Systems of one tile cost nothing, and Newton on scalars takes fewer steps.
    exact = grouped or min(rows, init.shape[0]) <= TILE
    if exact:
        directed, gram = _by_scalars(problem, init, tol, rows), cast(Gram | None, None)
    else:
        directed = _by_descent(problem, tol, rows)
        gram = no_gram(_room(rows, init.shape[0]), init.shape[0])

    def learn(s: State, facts: Facts, certificate: Certificate) -> State:
        """The state with the trial taken, if the objective falls by a share of what was promised."""
        penalised = penalty.value(s.trial)
        fall = (s.facts.value - facts.value) + (s.penalised - penalised)
        rounding = s.facts.rounding + facts.rounding
        falls = fall + rounding >= -SUFFICIENT * s.length * s.promised
        stuck = ~(s.promised < 0) | (~falls & (s.length / 2 <= SHORTEST))
        again = safe_divide(certificate.measure, s.measure) * certificate.measure
        near = model.exact | (again <= tol) & (s.length == 1)
        old = s.W, s.facts, s.penalised, s.measure
        new = s.trial, facts, penalised, certificate.measure
        W, facts, penalised, measure = jax.tree.map(lambda a, b: jnp.where(falls, a, b), new, old)
        s = s._replace(W=W, facts=facts, penalised=penalised, measure=measure)
        return s._replace(taken=falls, stuck=stuck, near=near)

    def direction(s: State) -> State:
        """The state with the step to the answer of the quadratic problem at W."""
        change, gram = directed(s)
        promised = jnp.sum(s.facts.gradient * change) + penalty.value(s.W + change) - s.penalised
        return s._replace(change=change, promised=promised, length=jnp.ones((), init.dtype), gram=gram)

    def attempt(s: State) -> State:
        s = once(s.taken, direction, s._replace(length=s.length / 2))
        return s._replace(trial=s.W + s.length * s.change)

    form = jax.eval_shape(lambda: smooth.facts(init, sizes(smooth)))
    facts = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), form)
    one, no = jnp.ones((), init.dtype), jnp.zeros((), bool)
    # The start is a trial that is taken: from an infinite objective.
    facts = facts._replace(value=one * jnp.inf)
    start = State(init, facts, 0 * one, one, zero, -one, one, init, no, no, no, gram)
    algorithm = Algorithm(
        state=start,
        block=lambda s, n: lax.fori_loop(0, n, lambda _, s: attempt(s), s),
        candidate=lambda s: s.trial,
        step=lambda s: step,
        check_every=1,
        learn=learn,
        leaves=lambda s: s.stuck,
    )
    limit = jnp.minimum(maxiter, STEPS_OF_QUADRATIC if model.exact else STEPS)
    return Loop(problem, init, algorithm, tol, limit, history).run()[0]


def _by_scalars(
    problem: Problem, init: jax.Array, tol: jax.Array, rows: int
) -> Callable[[State], tuple[jax.Array, Any]]:
    """The step to the answer, of rows or groups: by Newton's method on one scalar each, on all features."""
    smooth, penalty = problem.smooth, problem.penalty
    model, zero = smooth.quadratic_model(), jnp.zeros_like(init)
    blocks = blocks_of(penalty, init, rows)
    at_zero = smooth(zero) + penalty.value(zero)

    def change(s: State) -> tuple[jax.Array, Any]:
        quadratic = least_squares(*model.least_squares_at(s.W, s.facts.predictions))
        point = begun(quadratic, blocks, columns(s.W), columns(s.facts.gradient))
        # the gap of the model is relative to its own value at 0
        unit = safe_divide(at_zero, quadratic.size / 2, 1.0)
        wanted = jnp.maximum(LOOSE * s.measure, tol / 4) * unit
        newton = Newton(quadratic, blocks, wanted, jnp.int32(STEPS))
        end = newton.run(point, empty_history(0, init.dtype)).point
        return jnp.where(end.known, weighted(blocks, end, init) - s.W, 0), None

    return change


def _room(rows: int, d: int) -> int:
    """How many features descent may move: hardly more than the rows are active, and some come and go."""
    return whole(min(d, max(2 * TILE, min(rows + rows // 4 + 32, MOST))))


def _by_descent(problem: Problem, tol: jax.Array, rows: int) -> Callable[[State], tuple[jax.Array, Any]]:
    """The step towards the answer for rows: by descent on the Gram matrix of the features that matter.

    These are the active ones, and of those whose slopes exceed their strengths about as many again. The
    matrix of the last step stays where one more like it will do, and all that matters is in it.
    """
    smooth, penalty = problem.smooth, problem.penalty
    (d, *columns), model = smooth.params_shape, smooth.quadratic_model()
    norm = penalty.row_norm(smooth.params_shape)
    alpha, ridge = (
        jnp.broadcast_to(jnp.asarray(0 if strength is None else strength, smooth.dtype), (d,))
        for strength in (norm.alpha, norm.ridge)
    )

    def look(s: State, gram: Gram, on: jax.Array, ratio: jax.Array) -> Gram:
        """The Gram matrix of what matters at W."""
        w, H, (m, _), T = s.W.reshape(-1), s.facts.predictions, gram.G.shape, TILE
        count, outside = jnp.sum(on), jnp.sum(~on & (ratio > 1))
        least = max(m // 4, T)
        wanted = jnp.maximum(least, count + jnp.minimum(outside, jnp.maximum(count, least)) + 4)
        tiles = of_all_lanes(jnp.minimum(-(-wanted // T), m // T).astype(jnp.int32))
        ix = chosen(on, ratio, tiles * T, min(m, d))
        ix = jnp.pad(ix, (0, m - ix.shape[0]), constant_values=d)
        at = take(w, ix, 0)
        by_tile = H is not None and "columns" in smooth.provides
        whole_A = None if by_tile else model.least_squares_at(s.W, H)[0]

        def strip(i: jax.Array) -> jax.Array:
            """Columns of A, as rows."""
            here = rows_at(ix, i, T)
            if whole_A is not None:
                return take(whole_A, here, 1).T.astype(LOW)
            part, W = smooth.columns_at(here), rows_at(at, i, T).reshape(T, *columns)
            return part.quadratic_model().least_squares_at(W, H)[0].T.astype(LOW)

        return Gram(ix, tiles, gram_of(strip, take(ridge, ix, 0), tiles, rows, gram.G))

    def change(s: State) -> tuple[jax.Array, Any]:
        w, kept = s.W.reshape(-1), cast(Gram, s.gram)
        g = s.facts.gradient.reshape(-1) + ridge * w
        on, ratio = (w != 0) | (alpha == 0), safe_divide(jnp.abs(g), alpha, jnp.inf)
        outside = (on | (ratio > 1 + tol / 10)).at[kept.ix].set(False, mode="drop")
        again = (kept.tiles == 0) | ~s.near | jnp.any(outside)
        gram = once(of_all_lanes(again), lambda gram: look(s, gram, on, ratio), kept)
        ix = gram.ix
        at = take(w, ix, 0)
        within = jnp.arange(ix.shape[0], dtype=jnp.int32) < gram.tiles * TILE
        slopes = slopes_of(at, take(g, ix, 0), take(alpha, ix, 0), within)
        e, v = descended(gram, at, slopes, SHARE)
        step = jnp.where(v == 0, -at, e.astype(w.dtype))
        return jnp.zeros_like(w).at[ix].set(step, mode="drop").reshape(s.W.shape), gram

    return change


LINK = Link("prox_newton", _steps)
