r"""Newton's method on a loss with a curvature, by least squares problems with the same penalty."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.linalg import apply_if, choose, columns, hidden_zeros, safe_divide
from sparsejax._core.tiles import TILE
from sparsejax.certificate import Certificate
from sparsejax.driver import Algorithm, Link, Loop, kinds, prepare
from sparsejax.driver.curvature import residual_step
from sparsejax.driver.feature_subsets import model_of_part
from sparsejax.driver.loop import empty_history
from sparsejax.losses import Facts, QuadraticModel, facts_unless_known, no_facts, num_rows
from sparsejax.losses import sizes as sizes_of_loss
from sparsejax.problem import Problem
from sparsejax.solution import Solution
from sparsejax.solvers._block_descent import MAX_FEATURES, Descent, Layout, by_blocks, has_sparse_columns
from sparsejax.solvers._block_problem import Gram
from sparsejax.solvers._chains import solved_by
from sparsejax.solvers._newton_on_scales import Newton, params_at, start_point
from sparsejax.solvers._norm_blocks import blocks_of
from sparsejax.solvers._scaled_least_squares import least_squares
from sparsejax.solvers._trend import Trend

MAX_STEPS = 50  # of the solver, and of `Newton` in one step where groups differ in size
GAP_SHARE = 0.01  # gap of the least squares problem, as a share of the gap of the whole
# Beyond these limits `variational_newton` is faster. For least squares of several columns they limit the
# entries of W for each row of X, and the columns of W; for groups, the features for each row of X.
MAX_ENTRIES_PER_ROW, MAX_FEATURES_PER_ROW_OF_GROUPS = 80, 20
MAX_COLUMNS = 10
# With fewer features than MIN_FEATURES, and for one column also fewer entries of X than MIN_ENTRIES_OF_X,
# `sparsejax.solve` takes another solver, whose first call takes half as long.
MIN_FEATURES, MIN_ENTRIES_OF_X = 512, 2**17
# The columns of a sparse X are dense in a step. `sparsejax.solve` takes this solver if all columns for which
# there is room have at most so many entries: 128 MB in float32.
MAX_ENTRIES_OF_COLUMNS = 2**25
# With at least as many rows as features a new Gram matrix costs more than a step. The next step then uses the
# old one again, if the last step has left at most this share of the gap.
NEAR_SHARE = 0.2
# A step is taken if the objective falls by this share of the fall of <grad f(W), V> + g(V).
MIN_DECREASE_SHARE = 1e-3
MIN_CROSSING = 1e-3  # the least share of a refused step that is tried next
MIN_STEP_LENGTH = 1e-6  # the shortest step that is tried, as a share of the whole step


def prox_newton(
    problem: Problem,
    init: ArrayLike | None = None,
    *,
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
    history: int = 0,
) -> Solution:
    r"""Minimise by steps towards the answers of :math:`\min_v \tfrac12\|Av - B\|^2 + g(v)`.

    A and B are the loss to second order about the last point (`sparsejax.losses.QuadraticModel`). The step is
    shortened until the objective falls by a share of the fall of :math:`\langle\nabla f(W), V\rangle + g(V)`,
    V the new point. At small strengths, or with labels that are nearly separated, a few steps replace
    thousands of first-order ones. For a least squares loss the model is exact, and a step exchanges features
    only.

    The least squares problem is restricted to the active blocks (rows, or groups of rows) and about as many
    others: those whose slopes exceed their strengths most. It is solved by cyclic descent on the Gram matrix
    of their columns of A, in float32, with a Newton step on the support every 10 or 16 sweeps, until 5 % of
    the violation of the optimality conditions is left. A step therefore costs two products with X; all other
    costs depend on the number of active features. In a path the next strength begins with the Gram matrix of
    the last one. Groups of very different sizes use the iteration of
    `variational_newton` on all features instead.

    The first of `newton_admm`, `admm` and `fista` that takes the problem continues if more blocks are active
    than a step can move, if no step lowers the objective, or after 50 steps.

    Args:
      problem: a loss of one column, such as `LogisticLoss`, `HuberLoss` or `SquaredLoss`, or `SquaredLoss` of
        several columns with weights by row; and a norm of each row or group: `L1` of one column, `L21`,
        `GroupLasso` of disjoint groups that hold all features. `SquaredL2` may be added, and `L1` too (the
        sparse group lasso) if groups are of about one size, and `NonNegative` alone or with `L1` of one
        column. A step moves at most 2048 features, rounded up to whole groups, but has room for two groups of
        any size. X may be sparse, up to some 32 000 rows: the columns that a step moves become dense, and
        from 1300 rows on there are fewer of them, at least 1024.
      init, tol, maxiter, history: as `admm`; an iteration is a step, at most 50.

    Returns:
      `Solution`, with exact zeros.

    Raises:
      TypeError, ValueError: an unfit problem or argument, before tracing.
    Source: Lee, Sun & Saunders, SIAM Journal on Optimization 24(3), 2014; descent on the Gram matrix:
      Friedman, Hastie & Tibshirani, Journal of Statistical Software 33(1), 2010.

    >>> import numpy as np, sparsejax as sj
    >>> loss = sj.losses.LogisticLoss(np.eye(4, 3), np.array([1.0, 0.0, 0.0, 1.0]))
    >>> problem = sj.Problem(loss, sj.penalties.L1(0.05))
    >>> print(sj.prox_newton(problem, tol=1e-9).params.round(2))  # ln 4
    [ 1.39 -1.39 -1.39]
    """
    return solved_by(LINK, *prepare("prox_newton", problem, init, tol, maxiter, history, unfit))


def unfit(problem: Problem) -> str | None:
    """Why the solver does not take the problem, in words; None if it does."""
    smooth, penalty = problem.smooth, problem.penalty
    shape = smooth.params_shape if "shape" in smooth.provides else None
    norm = penalty.row_norm(shape) if shape is not None and "row norm" in penalty.provides else None
    model = smooth.quadratic_model() if norm is None else _model(problem)
    if shape is None or None in (model.majorizer, model.least_squares_at):
        return (
            "needs a loss with majorizer and least_squares_at in its quadratic_model(), got "
            f"{kinds(problem)}."
        )
    one_column = shape[1:] in ((), (1,))
    if not one_column and not (model.exact and model.target is not None):
        return f"needs a single column, or a quadratic loss, got W of shape {shape}."
    if norm is None:
        return f"needs a norm of each row or group, got {kinds(problem)}."
    if norm.nonnegative and not one_column:
        return f"takes NonNegative with a single column, got W of shape {shape}."
    if not (one_column and norm.entries is None) and not by_blocks(problem):
        return "needs groups of about one size where there are several columns or a norm of entries besides."
    return None


def _model(problem: Problem) -> QuadraticModel:
    """The quadratic model of the loss; for a sparse X, of one tile of features: its columns may be dense."""
    smooth = problem.smooth
    if not (has_sparse_columns(problem) and by_blocks(problem)):
        return smooth.quadratic_model()
    ix = np.zeros(Layout.of(problem, num_rows(smooth) or 0).tile, np.int32)
    return model_of_part(smooth, lambda smooth: smooth.columns_at(ix))


def has_room(problem: Problem) -> bool:
    """Whether the features that a step moves take no more memory than the solver may use.

    False for a group of more than `MAX_FEATURES` features, of which there is room for two, and for a sparse X
    so long that its columns, dense, would take too much memory.
    """
    norm = problem.penalty.row_norm(problem.smooth.params_shape)
    if norm.groups is not None and norm.groups.max_size > MAX_FEATURES:
        return False
    if not has_sparse_columns(problem):
        return True
    n = num_rows(problem.smooth) or 0
    return by_blocks(problem) and n * Layout.of(problem, n).room <= MAX_ENTRIES_OF_COLUMNS


def few_active(problem: Problem) -> bool:
    """Whether `sparsejax.solve` takes this solver for least squares: if few features will be active.

    With many more features than rows, and several columns or groups, more features than rows are active, and
    `variational_newton` is faster.
    """
    n, (d, k) = num_rows(problem.smooth), (*problem.smooth.params_shape, 1)[:2]
    if n is None or min(n, d) <= TILE or not by_blocks(problem):
        return False
    norm = problem.penalty.row_norm(problem.smooth.params_shape)
    if norm.groups is not None:
        return k == 1 and (norm.entries is not None or d <= MAX_FEATURES_PER_ROW_OF_GROUPS * n)
    if k == 1:
        return d >= MIN_FEATURES or n * d >= MIN_ENTRIES_OF_X
    return k <= MAX_COLUMNS and d >= MIN_FEATURES and k * d <= MAX_ENTRIES_PER_ROW * n


class State(NamedTuple):
    """The last point W, the step from it, and a trial point on the step. Fields without a shape are ()."""

    W: jax.Array  # (d, k) or (d,)
    facts: Facts  # of the loss at W
    penalised: jax.Array  # value of the penalty at W
    measure: jax.Array  # gap (or residual) at W
    change: jax.Array  # shape of W, the step: answer of the quadratic problem minus W
    promised: jax.Array  # change of <grad f(W), V> + g(V) over the whole step
    length: jax.Array  # share of the step, in (0, 1]
    trial: jax.Array  # shape of W, W + length * change
    taken: jax.Array  # whether W is the last trial: a new step is due
    stuck: jax.Array  # whether no step lowers the objective
    near: jax.Array  # whether the next step may reuse the curvature of the last one
    gram: Gram | None  # the Gram matrix of the last step; None without descent


class Last(NamedTuple):
    """What one problem of a path passes on to the next."""

    W: jax.Array  # the last point; NaN if there is none whose facts are known
    facts: Facts  # of the loss at W
    gram: Gram | None  # the Gram matrix of the last step; None without descent
    ridge: jax.Array | None  # (blocks,), strengths of `SquaredL2`, which the Gram matrix has on its diagonal
    trend: Trend


def nothing_before(sizes: Any, problem: Problem, init: jax.Array) -> Last:
    """The `Last` with which a path begins."""
    gram = ridge = None
    if by_blocks(problem):
        descent = Descent(problem, _rows(problem, init))
        gram, ridge = descent.passed_on(descent.no_gram()), descent.ridge
    facts = no_facts(problem.smooth, init, sizes)
    return Last(jnp.full_like(init, jnp.nan), facts, gram, ridge, Trend.none(init))


def resume(
    problem: Problem,
    sizes: Any,
    init: jax.Array,
    last: Last,
    tol: jax.Array,
    maxiter: jax.Array,
    history: int = 0,
    at_zero: Facts | None = None,
) -> tuple[Solution, Last]:
    """The solution of the next problem of a path.

    Args:
      sizes: `sparsejax.losses.sizes` of the loss.
      last: what the problem before passes on. Its facts are used if the start is its W, and its Gram matrix
        if that matrix has the ridge of this problem.
      at_zero: for a problem that is not part of a path, the facts of the loss at W = 0, which ``last`` holds
        too; None in a path.
    """
    smooth, penalty = problem.smooth, problem.penalty
    init, trend = (init, last.trend) if at_zero is not None else last.trend.start(problem, init)
    step = residual_step(smooth, init)
    zero = jnp.zeros_like(init)
    rows = _rows(problem, init)
    share = NEAR_SHARE if rows >= init.shape[0] else 0.0
    descent = Descent(problem, rows) if by_blocks(problem) else None
    scalars = _by_scalars(problem, init, tol, rows) if descent is None else None

    def direction(s: State) -> State:
        """The state with a new step: to the answer of the quadratic problem at W."""
        if descent is not None and s.gram is not None:
            change, gram = descent.step(s.W, s.facts, tol, s.near, s.gram)
        elif scalars is not None:
            change, gram = scalars(s), None
        promised = jnp.sum(s.facts.gradient * change) + penalty.value(s.W + change) - s.penalised
        return s._replace(change=change, promised=promised, length=jnp.ones((), init.dtype), gram=gram)

    def attempt(s: State) -> State:
        s = apply_if(s.taken, direction, s)
        return s._replace(trial=s.W + s.length * s.change)

    one, no = jnp.ones((), init.dtype), jnp.zeros((), bool)
    gram = ridge = None
    if descent is not None and last.gram is not None:
        gram, ridge = descent.received(last.gram), descent.ridge
        gram = gram._replace(used=jnp.where(jnp.all(ridge == last.ridge), gram.used, 0))
    # The start is a trial from an infinite objective, so that the first check takes it.
    start = State(last.W, last.facts, one * jnp.inf, one, zero, -one, one, init, no, no, no, gram)
    algorithm = Algorithm(
        state=start,
        block=lambda s, n: lax.fori_loop(0, n, lambda _, s: attempt(s), s),
        candidate=lambda s: s.trial,
        step=lambda s: step,
        check_every=1,
        learn=partial(_learned, problem, tol, share),
        leaves=lambda s: s.stuck,
        facts=lambda s, W: facts_unless_known(smooth, W, sizes, s.W, s.facts),
    )
    limit = jnp.minimum(maxiter, MAX_STEPS)
    solution, s = Loop(problem, init, algorithm, tol, limit, history, sizes=sizes, at_zero=at_zero).run()
    if descent is not None and s.gram is not None:  # a solve that has not converged passes on no Gram matrix
        gram = descent.passed_on(s.gram._replace(used=jnp.where(solution.converged, s.gram.used, 0)))
    taken = jnp.isfinite(s.penalised)  # else no trial was finite, and the facts are not those at W
    return solution, Last(jnp.where(taken, s.W, jnp.nan), s.facts, gram, ridge, trend)


def _steps(problem: Problem, init: jax.Array, tol: jax.Array, maxiter: jax.Array, history: int) -> Solution:
    known = sizes_of_loss(problem.smooth)
    zero = hidden_zeros(init.shape, init.dtype)
    at_zero = problem.smooth.facts(zero, known)
    # Most solves start at 0: with these facts the start takes no product with X.
    last = nothing_before(known, problem, init)._replace(W=zero, facts=at_zero)
    return resume(problem, known, init, last, tol, maxiter, history=history, at_zero=at_zero)[0]


def _rows(problem: Problem, init: jax.Array) -> int:
    """Number of rows of A."""
    model = problem.smooth.quadratic_model()
    return num_rows(problem.smooth) or int(jax.eval_shape(model.least_squares_at, init, None)[0].shape[0])


def _learned(
    problem: Problem, tol: jax.Array, share: float, s: State, facts: Facts, certificate: Certificate
) -> State:
    """The state with the trial as W, if the objective falls by a share of the promised change.

    The next step is ``near`` if the loss is quadratic. It is also ``near`` after a whole step whose
    certificate is at most ``share`` of the last one, or after which one more such step would reach ``tol``.
    """
    exact = problem.smooth.quadratic_model().exact
    penalised = problem.penalty.value(s.trial)
    fall = (s.facts.value - facts.value) + (s.penalised - penalised)
    rounding = s.facts.rounding + facts.rounding
    falls = fall + rounding >= -MIN_DECREASE_SHARE * s.length * s.promised
    shorter = s.length * _crossing(s, facts)
    stuck = ~(s.promised < 0) | (~falls & (shorter <= MIN_STEP_LENGTH))
    again = safe_divide(certificate.measure, s.measure) * certificate.measure
    near = exact | ((again <= tol) | (certificate.measure <= share * s.measure)) & (s.length == 1)
    old = s.W, s.facts, s.penalised, s.measure
    new = s.trial, facts, penalised, certificate.measure
    W, facts, penalised, measure = choose(falls, new, old)
    s = s._replace(W=W, facts=facts, penalised=penalised, measure=measure)
    return s._replace(taken=falls, stuck=stuck, near=near, length=jnp.where(falls, s.length, shorter))


def _crossing(s: State, facts: Facts) -> jax.Array:
    """The share of a refused step at whose end the tangents of the loss at W and at the trial cross.

    A convex loss is nowhere below its tangents. If it falls at W and rises at the trial, this lower bound is
    least where the tangents cross. The share is 1/2 for a quadratic loss, and small for a loss with a kink
    near W, such as a hinge. It is from `MIN_CROSSING` to 1/2, and 1/2 if the tangents do not cross ahead.
    """
    change = s.length * s.change
    at_W, at_trial = jnp.sum(s.facts.gradient * change), jnp.sum(facts.gradient * change)
    share = (facts.value - s.facts.value - at_trial) / (at_W - at_trial)
    return jnp.where(share > 0, jnp.clip(share, MIN_CROSSING, 0.5), 0.5)


def _by_scalars(problem: Problem, init: jax.Array, tol: jax.Array, rows: int) -> Callable[[State], jax.Array]:
    """The function (state) -> step that solves the quadratic problem by `Newton`, on all features."""
    smooth, penalty = problem.smooth, problem.penalty
    model, zero = smooth.quadratic_model(), jnp.zeros_like(init)
    blocks = blocks_of(penalty, init, rows)
    at_zero = smooth(zero) + penalty.value(zero)

    def change(s: State) -> jax.Array:
        quadratic = least_squares(*model.least_squares_at(s.W, s.facts.predictions))
        point = start_point(quadratic, blocks, columns(s.W), columns(s.facts.gradient))
        # `Newton` measures gaps relative to the model at W = 0, ||B||^2 / 2: convert tol to that unit.
        unit = safe_divide(at_zero, quadratic.size / 2, 1.0)
        wanted = jnp.maximum(GAP_SHARE * s.measure, tol / 4) * unit
        newton = Newton(quadratic, blocks, wanted, jnp.int32(MAX_STEPS))
        end = newton.run(point, empty_history(0, init.dtype)).point
        return jnp.where(end.known, params_at(blocks, end, init) - s.W, 0)

    return change


LINK = Link("prox_newton", _steps)
