r"""Sparse rows on many features: the engine on the few that matter."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.linalg import columns, take
from sparsejax.certificate import Certificate
from sparsejax.driver import Algorithm, Link, Loop, kinds, prepare
from sparsejax.driver.curvature import cautious_step, factorise, first_step
from sparsejax.driver.feature_subsets import LARGEST, MANY, can_be_active, chosen, working_set_size
from sparsejax.losses import Facts, num_rows
from sparsejax.penalties import by_entry, least_active
from sparsejax.problem import Problem
from sparsejax.solution import MAX_ITER, Solution
from sparsejax.solvers import _admm
from sparsejax.solvers._chains import solved_by
from sparsejax.solvers._fista import iterated

ROUNDS = 30  # at most
LOOSE = 0.03  # gap of the part, as a share of the gap of the whole
FEWER = 0.95  # a round that does not bring the gap below this share of the last makes no progress
FILL = 0.8  # of the working set by active rows: beyond it the engine takes all features
NEAR = 0.9  # slopes, of those that move a row, from which a row comes into a sparse working set
INNER = 10_000  # iterations of the engine in a round at most


def working_set(
    problem: Problem,
    init: ArrayLike | None = None,
    *,
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
    history: int = 0,
) -> Solution:
    r"""Minimise by `admm` on a working set of features, at most as many in every round.

    A row can only be active at the optimum if the gradient there leaves the subdifferential of the penalty at
    0. A round takes the active rows and those where it leaves it furthest (``penalty.row_slopes``), solves
    the problem of these features to a few hundredths of the gap of the whole, from where the last round
    ended, and looks at the gradient of the whole once.

    Of a sparse X with many rows the working set stays sparse, holds up to an eighth of the features and half
    of the entries, and `fista` solves its problem: a product costs what the entries of its features cost.

    What this does not solve another takes over from where it stands, the first of `newton_admm`, `admm` and
    `fista` that takes the problem: more active rows than the working set holds, or rounds without progress.

    Args:
      problem: a loss with ``columns_at``, as those of `sparsejax.losses` have; a penalty that is a sum over
        rows and makes some of them 0, such as `ExclusiveL21`, `L21`, `L1`, or `ExclusiveGroupL21`, if its
        groups do not overlap too much (64 families of disjoint groups at most).
      init, tol, maxiter, history: as `admm`; an iteration is a round, here at most 30.

    Returns:
      `Solution`; ``params`` is a prox point, with exact zeros.

    Raises:
      TypeError, ValueError: an unfit problem or argument, before tracing.
    Source: the working sets of Massias, Gramfort & Salmon, ICML 2018, Section 3, of one static size and for
      any such penalty.

    >>> import numpy as np, sparsejax as sj
    >>> problem = sj.Problem(sj.losses.SquaredLoss(np.eye(4, 3), np.eye(4, 2)), sj.penalties.L21(0.0625))
    >>> print(sj.working_set(problem).params.round(2))
    [[0.75 0.  ]
     [0.   0.75]
     [0.   0.  ]]
    """
    problem, init, tol, maxiter, history = prepare("working_set", problem, init, tol, maxiter, history, unfit)
    return solved_by(LINK, problem, init, tol, maxiter, history)


def unfit(problem: Problem) -> str | None:
    """Why the solver does not take the problem, in words; None if it does."""
    smooth, penalty = problem.smooth, problem.penalty
    if "sparse rows" not in penalty.provides:
        return f"needs a penalty that is a sum over rows and zero in some, got {kinds(problem)}."
    known = {"shape", "columns"} <= smooth.provides
    model = smooth.quadratic_model()
    if not known or (model.majorizer is None and model.column_sizes is None):
        return (
            f"needs a loss with columns_at() and a majorizer in its quadratic_model(), got {kinds(problem)}."
        )
    return None


def _part(smooth: Any, m: int) -> Any:
    """The loss of m features, in shapes: of a sparse X it is dense if they are few."""
    if smooth.quadratic_model().majorizer is not None:
        return smooth
    return jax.eval_shape(lambda smooth: smooth.columns_at(jnp.zeros(m, jnp.int32)), smooth)


def _size(problem: Problem, params_shape: tuple[int, ...]) -> int:
    """How many features a working set holds: more where they stay sparse."""
    smooth = problem.smooth
    rows = num_rows(smooth) or params_shape[0]
    m = working_set_size(rows, params_shape, least_active(problem.penalty))
    if _part(smooth, m).quadratic_model().majorizer is not None:
        return m
    return min(params_shape[0], max(m, params_shape[0] // 8))


def suits(problem: Problem) -> bool:
    """Whether `sparsejax.solve` takes it: many features, and samples so few that few of them are active."""
    n, (d, *columns) = num_rows(problem.smooth), problem.smooth.params_shape
    always = least_active(problem.penalty)
    if n is None or d < MANY or 2 * working_set_size(n, (d, *columns), always) > d:
        return False
    # Seldom is all active that can be; where it is, the rounds are lost.
    return bool(always == 0 or always + can_be_active(n, *columns or (1,)) <= LARGEST * 5 // 4)


class State(NamedTuple):
    """The answer of the last round, and what the next one is told."""

    W: jax.Array
    gradient: jax.Array  # of the loss at W
    measure: jax.Array  # of the certificate at W
    wanted: jax.Array  # gap of the next part
    rho: jax.Array  # of the engine
    limited: jax.Array  # whether the engine stopped at `INNER` iterations
    over: jax.Array  # whether more rounds would bring no progress


def _rounds(
    problem: Problem, init: jax.Array, tol: jax.Array, maxiter: jax.Array, history: int, size: int = 0
) -> Solution:
    """The rounds, of ``size`` features; 0: of what suits the shape."""
    smooth, penalty = problem.smooth, by_entry(problem.penalty, init.shape)
    d, m = init.shape[0], size or _size(problem, init.shape)
    model = smooth.quadratic_model()
    by_fista = _part(smooth, m).quadratic_model().majorizer is None
    sizes, most = (None, 0) if model.column_sizes is None else model.column_sizes()
    if model.majorizer is not None:
        squares = jnp.sum(model.majorizer() ** 2)
        step = cautious_step(squares)
        # of a matrix with a few columns: the mean eigenvalue of those of the working set is not far
        rho = jnp.where(squares > 0, squares / d, 1)
    else:
        step = first_step(smooth, init)
        rho = 0.1 / step

    def learn(s: State, facts: Facts, certificate: Certificate) -> State:
        """The state with what the certificate of W says of the next round."""
        measure, on = certificate.measure, active(s.W)
        over = ~(measure <= FEWER * s.measure) | (jnp.sum(on) > int(FILL * m))
        if sizes is not None:
            over |= jnp.sum(jnp.where(on, sizes, 0)) > int(FILL * most)
        # Rows that compete leave late: a part that was solved loosely has more of them than it will have.
        finer = over & (s.wanted > tol / 2) & (least_active(penalty) > 0)
        wanted = jnp.maximum(LOOSE * jnp.minimum(measure, jnp.where(finer, s.wanted, 1)), tol / 2)
        over &= ~finer
        if not model.exact:
            # What takes the majorised engine so long Newton's method does at once.
            over |= s.limited & (measure > s.measure / 10)
        return s._replace(gradient=facts.gradient, measure=measure, wanted=wanted, over=over)

    def solve_part(s: State) -> State:
        """The state with the answer on the features that matter most."""
        slopes = penalty.row_slopes(s.gradient, s.W)
        if by_fista:  # whose products are as fast as the entries are few
            slopes = jnp.where(slopes > NEAR, slopes, -jnp.inf)
        ix = chosen(active(s.W), slopes, m, m, sizes, most)
        part = problem._replace(smooth=smooth.columns_at(ix), penalty=penalty.rows_at(ix))
        start, rho, wanted = take(s.W, ix, 0), s.rho, s.wanted
        if by_fista:
            solution = iterated(part, start, wanted, jnp.int32(INNER), 0, finish=False)
        else:
            factor = factorise(part.smooth)
            solution, rho = _admm.resume(part, factor, start, rho, wanted, jnp.int32(INNER))
        W = jnp.zeros_like(s.W).at[ix].set(solution.params, mode="drop")
        return s._replace(W=W, rho=rho, limited=solution.status == MAX_ITER)

    one, no = jnp.ones((), init.dtype), jnp.zeros((), bool)
    algorithm = Algorithm(
        state=State(init, jnp.zeros_like(init), one * jnp.inf, one, rho, no, no),
        block=lambda s, n: lax.fori_loop(0, n, lambda _, s: solve_part(s), s),
        candidate=lambda s: s.W,
        step=lambda s: step,
        check_every=1,
        learn=learn,
        leaves=lambda s: s.over,
    )
    return Loop(problem, init, algorithm, tol, jnp.minimum(maxiter, ROUNDS), history).run()[0]


def active(W: jax.Array) -> jax.Array:
    """The rows that are not 0, (d,)."""
    return jnp.any(columns(W) != 0, axis=0)


LINK = Link("working_set", _rounds, rows=True)


def of_size(size: int) -> Link:
    """The link with so many features."""
    return replace(LINK, options=(("size", size),))
