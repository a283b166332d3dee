r"""Penalties with sparse rows on many features: `admm` or `fista` on a working set of features."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.linalg import columns, take
from sparsejax._core.matrices.products import Products
from sparsejax._core.matrices.sparse import RowOrder
from sparsejax.certificate import Certificate
from sparsejax.driver import Algorithm, Link, Loop, kinds, prepare
from sparsejax.driver.curvature import cautious_step, few_shifts, first_step, residual_step
from sparsejax.driver.feature_subsets import (
    MAX_BUCKET_FEATURES,
    MIN_FEATURES_TO_GATHER,
    can_be_active,
    chosen,
    model_of_part,
    working_set_size,
)
from sparsejax.losses import Facts, Loss, SoftmaxLoss, num_rows
from sparsejax.penalties import by_entry, least_active
from sparsejax.problem import Problem
from sparsejax.solution import MAX_ITER, Solution
from sparsejax.solvers import _admm, _class_steps
from sparsejax.solvers._chains import solved_by
from sparsejax.solvers._fista import iterated

MAX_ROUNDS = 30
GAP_SHARE = 0.03  # gap to which the problem of the working set is solved, as a share of the whole gap
MAX_GAP_RATIO = 0.95  # a round makes progress if the gap falls below this share of the gap before
MAX_ACTIVE_SHARE = 0.8  # largest share of active rows in a working set; beyond it the next solver continues
MIN_SLOPE = 0.9  # above it a row may enter a working set of `fista`; above 1 a zero row does not stay 0
MAX_INNER_ITERATIONS = 10_000  # of `admm` or `fista`, in one round


def working_set(
    problem: Problem,
    init: ArrayLike | None = None,
    *,
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
    history: int = 0,
) -> Solution:
    r"""Minimise by `admm` on a working set of features; its static size is the same in every round.

    A zero row stays zero if minus the gradient of the loss is in the subdifferential of the penalty at 0. The
    working set of a round holds the active rows, and the zero rows that violate this condition most
    (``penalty.row_slopes``). The problem of these features is solved to a gap of 3 % of the whole gap, from
    the W of the last round. Then the gradient of the whole loss is computed once.

    For a sparse X with many rows the working set is sparse too. It holds an eighth of the features (or as
    many as a dense one, if these are more) and up to a quarter of the entries of X (or 16 384, if these are
    more), and `fista` solves its problem: the cost of a product is proportional to the number of entries.

    With `SoftmaxLoss` `fista` solves the problem of every working set, because the curvature of a class is
    far below the bound that `admm` needs. For a sparse X this working set is always sparse, with room for a
    third of the features and for all entries. For a dense X of fewer than 512 features it holds all of them.

    If active rows fill more than 4/5 of a working set that does not hold all features, if their entries of a
    sparse X fill more than 4/5 of the room for entries, or if rounds make no progress, the first of
    `newton_admm`, `admm` and `fista` that takes the problem continues from the last W; with `SoftmaxLoss` and
    a dense X the first of `newton_admm` and `fista`.

    Args:
      problem: a loss with ``columns_at`` and either a majorizer in its quadratic model or a sparse X; a
        penalty that makes some rows 0, such as `ExclusiveL21`, `L21`, `L1`, `SortedL1`, or
        `ExclusiveGroupL21`, if its groups do not overlap too much (64 families of disjoint groups at most).
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
    return solved_by(LINK, *prepare("working_set", problem, init, tol, maxiter, history, unfit))


def unfit(problem: Problem) -> str | None:
    """Why the solver does not take the problem, in words; None if it does."""
    smooth, penalty = problem.smooth, problem.penalty
    if "sparse rows" not in penalty.provides:
        return f"needs a penalty that makes rows zero, with row_slopes() and rows_at(), got {kinds(problem)}."
    known = {"shape", "columns"} <= smooth.provides
    model = smooth.quadratic_model()
    if not known or (model.majorizer is None and model.column_sizes is None):
        return (
            "needs a loss with columns_at(), and a majorizer in its quadratic_model() or a sparse X, got "
            f"{kinds(problem)}."
        )
    return None


def _majorized(smooth: Loss, m: int) -> bool:
    """Whether the loss of m features has a majorizer: the whole loss has one, or its columns become dense."""
    if smooth.quadratic_model().majorizer is not None:
        return True
    none = jnp.zeros(m, jnp.int32)
    part = model_of_part(smooth, lambda smooth: _columns_at(smooth, none, _row_order(smooth)))
    return part.majorizer is not None


def _row_order(smooth: Loss) -> RowOrder | None:
    """What `_columns_at` needs besides the columns, the same for all working sets."""
    return smooth.row_order() if isinstance(smooth, SoftmaxLoss) else None


def _columns_at(smooth: Loss, ix: jax.Array, order: RowOrder | None) -> Any:
    """The loss of some features; `SoftmaxLoss` keeps a sparse X sparse."""
    return smooth.sparse_columns_at(ix, order) if isinstance(smooth, SoftmaxLoss) else smooth.columns_at(ix)


def _by_fista(part: Problem, start: jax.Array, step: jax.Array, tol: jax.Array) -> tuple[Solution, jax.Array]:
    """The solution of a working set by `fista`, and the step from which the next one starts.

    For softmax losses `fista` has a form that carries predictions.
    """
    most = jnp.int32(MAX_INNER_ITERATIONS)
    if isinstance(part.smooth, SoftmaxLoss):
        return _class_steps.iterated(part, start, step, tol, most)
    return iterated(part, start, tol, most, 0, finish=False), step


def _size(problem: Problem, params_shape: tuple[int, ...]) -> int:
    """Number of features in a working set; it is larger if the working set is sparse."""
    smooth = problem.smooth
    if has_classes(problem) and params_shape[0] < MIN_FEATURES_TO_GATHER:  # gathering would not save time
        return params_shape[0]
    rows = num_rows(smooth) or params_shape[0]
    m = working_set_size(rows, params_shape, least_active(problem.penalty))
    if _majorized(smooth, m):
        return m
    share = 3 if isinstance(smooth, SoftmaxLoss) else 8
    return min(params_shape[0], max(m, params_shape[0] // share))


def has_classes(problem: Problem) -> bool:
    """Whether the loss is a `SoftmaxLoss` with a dense X, which `fista` on a working set suits.

    `fista` takes a tenth of the time of `admm`, whose bound is far above the curvature of a class, and of
    Newton's method, whose Hessian all classes share. With a sparse X, `fista` on all features is as fast.
    """
    return isinstance(problem.smooth, SoftmaxLoss) and not isinstance(problem.smooth.X, Products)


def suits(problem: Problem) -> bool:
    """Whether `sparsejax.solve` takes this solver: many features, and so few samples that few are active."""
    n, (d, *columns) = num_rows(problem.smooth), problem.smooth.params_shape
    always = least_active(problem.penalty)
    if n is None or d < MIN_FEATURES_TO_GATHER or 2 * working_set_size(n, (d, *columns), always) > d:
        return False
    # The features that can be active are seldom all active, so their number may be up to 5/4 of the largest
    # working set. If more are active than the set holds, the rounds were useless.
    return bool(always == 0 or always + can_be_active(n, *columns or (1,)) <= MAX_BUCKET_FEATURES * 5 // 4)


class State(NamedTuple):
    """The answer of the last round, and the settings of the next. A field without a shape is a scalar."""

    W: jax.Array  # (d, k) or (d,)
    gradient: jax.Array  # shape of W, the gradient of the loss at W
    measure: jax.Array  # gap (or residual) at W
    wanted: jax.Array  # gap to which the next round solves its problem
    rho: jax.Array  # the last rho of `admm`, or the last step of `fista`
    limited: jax.Array  # whether the last round stopped at `MAX_INNER_ITERATIONS`
    over: jax.Array  # whether the loop ends, since more rounds would make no progress


def _first_steps(problem: Problem, init: jax.Array, by_fista: bool) -> tuple[jax.Array, jax.Array]:
    """1/L for the residual, and the first rho of `admm` or the first step of `fista`."""
    smooth = problem.smooth
    majorizer = smooth.quadratic_model().majorizer
    if majorizer is None:  # X is sparse; a working set may be dense all the same, and have a majorizer
        first = first_step(smooth, init)
        return first, first if by_fista else 0.1 / first
    if by_fista:
        return residual_step(smooth, init), first_step(smooth, init)
    squares = jnp.sum(majorizer() ** 2)
    # rho starts near the mean eigenvalue of the Hessian of a working set: columns have similar norms.
    return cautious_step(squares), jnp.where(squares > 0, squares / init.shape[0], 1)


def _rounds(
    problem: Problem, init: jax.Array, tol: jax.Array, maxiter: jax.Array, history: int, size: int = 0
) -> Solution:
    """The solver, with ``size`` features in a working set; 0 means a number that depends on the shape."""
    smooth, penalty = problem.smooth, by_entry(problem.penalty, init.shape)
    d, m = init.shape[0], size or _size(problem, init.shape)
    model = smooth.quadratic_model()
    by_fista = isinstance(smooth, SoftmaxLoss) or not _majorized(smooth, m)
    room = int(MAX_ACTIVE_SHARE * m) if m < d else d  # most active rows with which another round begins
    order = _row_order(smooth)
    # Stored entries of each column, and the number of entries for which a working set has room.
    sizes, most = (None, 0) if model.column_sizes is None else model.column_sizes()
    most = most if order is None else smooth.X.data.shape[0]  # `sparse_columns_at` has room for all
    step, rho = _first_steps(problem, init, by_fista)

    def learn(s: State, facts: Facts, certificate: Certificate) -> State:
        """The state with the gap and the gradient at W, and with the settings of the next round."""
        measure, on = certificate.measure, active(s.W)
        over = ~(measure <= MAX_GAP_RATIO * s.measure) | (jnp.sum(on) > room)
        if sizes is not None:
            over |= jnp.sum(jnp.where(on, sizes, 0)) > int(MAX_ACTIVE_SHARE * most)
        # With penalties that make rows compete, rows become 0 late: the answer of a loosely solved problem
        # has too many active rows. A more precise solve comes before the loop ends.
        finer = over & (s.wanted > tol / 2) & (least_active(penalty) > 0)
        wanted = jnp.maximum(GAP_SHARE * jnp.minimum(measure, jnp.where(finer, s.wanted, 1)), tol / 2)
        over &= ~finer
        if not model.exact:
            # If majorised steps reached their limit and the gap has not fallen to a tenth, the next solver
            # continues.
            over |= s.limited & (measure > s.measure / 10)
        return s._replace(gradient=facts.gradient, measure=measure, wanted=wanted, over=over)

    def solve_part(s: State) -> State:
        """The state with the answer of the problem on the next working set."""
        slopes = penalty.row_slopes(-s.gradient, s.W)
        if by_fista:  # few entries make products fast: leave out rows that will hardly become active
            slopes = jnp.where(slopes > MIN_SLOPE, slopes, -jnp.inf)
        ix = chosen(active(s.W), slopes, m, m, sizes, most)
        part = problem._replace(smooth=_columns_at(smooth, ix, order), penalty=penalty.rows_at(ix))
        start, rho, wanted = take(s.W, ix, 0), s.rho, s.wanted
        if by_fista:
            solution, rho = _by_fista(part, start, rho, wanted)
        else:
            shared = _admm.Shared(few_shifts(part.smooth), None)
            solution, rho = _admm.resume(part, shared, start, rho, wanted, jnp.int32(MAX_INNER_ITERATIONS))
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
    return Loop(problem, init, algorithm, tol, jnp.minimum(maxiter, MAX_ROUNDS), history).run()[0]


def active(W: jax.Array) -> jax.Array:
    """The rows that are not 0, (d,)."""
    return jnp.any(columns(W) != 0, axis=0)


LINK = Link("working_set", _rounds, rows=True)
