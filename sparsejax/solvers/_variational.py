r"""Least squares with a norm of each row or group, by Newton's method on one scalar each."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.linalg import columns, safe_divide
from sparsejax._core.linalg import norm as norm_of
from sparsejax.certificate import Scale, certify
from sparsejax.driver import Link, kinds, prepare
from sparsejax.driver.curvature import cautious_step
from sparsejax.driver.feature_subsets import can_be_active, most_features
from sparsejax.driver.loop import empty_history, make_solution
from sparsejax.dual_point import free_features
from sparsejax.losses import Loss, sizes
from sparsejax.penalties import strengths_valid
from sparsejax.problem import Problem
from sparsejax.solution import Solution
from sparsejax.solvers import _working_set
from sparsejax.solvers._chains import solved_by
from sparsejax.solvers._newton_on_scales import Newton, Point, params_at, start_point, unevaluated_point
from sparsejax.solvers._norm_blocks import Grouped, Rows, blocks_of
from sparsejax.solvers._scaled_least_squares import quadratic_of

MIN_FEATURES = 512  # `sparsejax.solve` takes this solver for at least so many features
# Where most rows can be active, `admm` is faster than Newton's method at strengths below lambda_max/32.
MAX_STRENGTH_RATIO = 32
WORKING_SET_FACTOR = 3  # size of the working set of the next solver, in sizes of the largest bucket
MAX_EXTRAPOLATION = 2.0  # longest step of a path that is extrapolated, in lengths of the step before


def variational_newton(
    problem: Problem,
    init: ArrayLike | None = None,
    *,
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
    history: int = 0,
) -> Solution:
    r"""Minimise :math:`\tfrac12\|AW - B\|_F^2 + \sum_i \alpha_i\|w_i\|_2` by Newton on d scalars, whatever k.

    With :math:`\alpha\|w\| = \min_{t\ge0} (\|w\|^2/t + \alpha^2 t)/2` and W eliminated,

    .. math:: \min_{t\ge 0}\; \phi(t) = \tfrac12\langle B, K^{-1}B\rangle + \tfrac12\sum_i \alpha_i^2 t_i,
              \qquad K = I + A\operatorname{diag}(t)A^\top ,

    which is smooth and convex, with :math:`W = \operatorname{diag}(t)\,C`, :math:`C = A^\top K^{-1}B` minus
    the gradient of the loss, :math:`\partial\phi/\partial t_i = (\alpha_i^2 - \|c_i\|^2)/2` and the Hessian
    :math:`(A^\top K^{-1}A)\circ(CC^\top)`. The residual :math:`B - AW = K^{-1}B` is also the dual point:
    the gap converges quadratically, as the objective does.

    A step moves a bucket of m features: all with t > 0, and others with the largest
    :math:`\|c_i\|/\alpha_i`. Its matrices consist of tiles of 64 x 64, and only tiles in use are computed:
    one program serves every m up to a limit that follows from the shape of A. The quadratic program with
    :math:`t \ge 0` is solved by a primal-dual active set method. A solve from W = 0 halves the strengths at
    every step until they are the given ones. Attempts at a step differ in the right-hand side. The first is
    Newton's method for :math:`1/\|c_i\| = 1/\alpha_i`, exact for one feature; the second is Newton's method
    for :math:`\phi`; later ones add growing shifts to the diagonal, until :math:`\phi` falls. The Hessian,
    with a diagonal that is 3e-4 larger, and the quadratic program are in float32 for every dtype;
    :math:`\phi`, its gradient and the gap are in the dtype of the problem.

    A group has one scalar, with :math:`\|C_g\|_F` in place of :math:`\|c_i\|`. The entry of the Hessian for
    two groups is the sum over their members; a bucket holds all of a group or nothing. With a ridge
    :math:`\tfrac{\mu}{2}\|w\|^2` the scales are :math:`s = t/(1 + \mu t)`:

    .. math:: K = I + A\operatorname{diag}(s)A^\top , \quad W = \operatorname{diag}(s)\,C , \quad
              \frac{\partial\phi}{\partial t} = \frac12\Big(\alpha^2 - \frac{\|c\|^2}{(1+\mu t)^2}\Big) ,

    :math:`\phi` stays convex, since its first term decreases and is convex in s, which is concave in t. The
    residual is dual feasible without scaling.

    If this solver stops without an answer, another one continues from its last W, eagerly and inside a trace:
    first `working_set` on three times as many features as the largest bucket holds, if these are at most half
    of all features and it takes the problem; last `admm`. Besides too many steps, reasons to stop are:
    more active rows than the largest bucket holds; a group larger than this bucket; a strength 0 of the norm;
    a tol below the rounding of the products; units of X beyond 1e18 or below 1e-18, since steps are computed
    in float32; and in float64, from W = 0, strengths below lambda_max/32 of k columns with fewer than
    min(k + 2, 8) features a sample (2 if k is 1).

    Args:
      problem: a quadratic loss (`SquaredLoss` with no weights or weights by row, with or without intercept,
        or what its `gram` returns), and `L21`, `L1` of a single column, or `GroupLasso` of disjoint groups
        that hold all features; each alone or with `SquaredL2`, by row or, with groups, of one strength.
      init, tol, maxiter, history: as `admm`; an iteration is a Newton step, here at most 100.

    Returns:
      `Solution`; rows or groups with t = 0 are exactly 0.

    Raises:
      TypeError, ValueError: an unfit problem or argument, before tracing.
    Source: the variational form of a norm: Bach, Jenatton, Mairal & Obozinski, Foundations and Trends in
      Machine Learning 4(1), 2012, Section 5; the active set method: Hintermueller, Ito & Kunisch, SIAM
      Journal on Optimization 13(3), 2002.

    >>> import numpy as np, sparsejax as sj
    >>> problem = sj.Problem(sj.losses.SquaredLoss(np.eye(4, 3), np.eye(4, 2)), sj.penalties.L21(0.0625))
    >>> print(sj.variational_newton(problem).params.round(2))
    [[0.75 0.  ]
     [0.   0.75]
     [0.   0.  ]]
    """
    return solved_by(LINK, *prepare("variational_newton", problem, init, tol, maxiter, history, unfit))


def unfit(problem: Problem) -> str | None:
    """Why the solver does not take the problem, in words; None if it does."""
    smooth, penalty = problem.smooth, problem.penalty
    both = kinds(problem)
    if "shape" not in smooth.provides:
        return f"needs a quadratic loss that knows the shape of W, got {both}; fista takes any."
    norm = penalty.row_norm(smooth.params_shape) if "row norm" in penalty.provides else None
    if norm is None or norm.entries is not None or norm.nonnegative:
        what = "a norm of each row or group of this W, without l1 or NonNegative"
        return f"needs {what}, got {both}; admm takes any penalty."
    model = smooth.quadratic_model()
    if model.majorizer is None or not model.exact:
        return f"needs a quadratic loss with one Hessian for all columns, got {both}."
    if model.laplacian is not None:
        return f"takes no graph of labels, got {both}."
    if model.target is None and _majorizer_rows(smooth) < smooth.params_shape[0]:
        return f"needs a target in the quadratic_model() of its loss, got {both}."
    return None


def suits(problem: Problem) -> bool:
    """Whether `sparsejax.solve` may take this solver: for many features. For few, `admm` compiles faster."""
    return int(problem.smooth.params_shape[0]) >= MIN_FEATURES


def _is_crowded(problem: Problem) -> bool:
    """Whether most rows may be active. False in float32, where `admm` seldom converges on such problems."""
    n, (d, k) = _majorizer_rows(problem.smooth), (*problem.smooth.params_shape, 1)[:2]
    return bool(d < can_be_active(n, k)) and np.finfo(problem.smooth.dtype).bits > 32


def _majorizer_rows(smooth: Any) -> int:
    """Number of rows of A: the rows of the data if the loss has a target B, else those of its majorizer."""
    model = smooth.quadratic_model()
    if model.target is not None and model.num_rows is not None:
        return int(model.num_rows)
    return int(jax.eval_shape(model.majorizer).shape[0])


def _declines(problem: Problem, init: jax.Array) -> bool:
    """Whether an eager call skips this solver, because `admm` is faster if most rows will be active."""
    cold = _is_crowded(problem) and not jax.device_get(init).any()
    return bool(cold and jax.device_get(_excess(problem, init)) > MAX_STRENGTH_RATIO)


@jax.jit
def _excess(problem: Problem, zero: jax.Array) -> jax.Array:
    """(), the largest ratio of a norm of the gradient at W = 0 to its strength: lambda_max/strength."""
    blocks, G = _blocks(problem, zero), columns(jax.grad(problem.smooth)(zero))
    return jnp.max(blocks.ratios(jnp.zeros_like(blocks.alpha), blocks.norms(G)))


def larger_working_set(problem: Problem) -> Link | None:
    """`working_set` on `WORKING_SET_FACTOR` times as many features as the largest bucket holds.

    None if these are more than half of all features, or if `working_set` does not take the problem.
    """
    if _working_set.unfit(problem) is not None:
        return None
    n, d = _majorizer_rows(problem.smooth), problem.smooth.params_shape[0]
    size = WORKING_SET_FACTOR * most_features(n, d, *problem.smooth.params_shape[1:] or (1,))
    return replace(_working_set.LINK, options=(("size", size),)) if 2 * size <= d else None


class Shared(NamedTuple):
    """Quantities that depend on the loss alone: all problems of a path share them."""

    quadratic: Any  # `Wide` or `Tall`
    C: jax.Array  # (k, d), minus the gradient of the loss at W = 0
    sizes: Any  # `sparsejax.losses.Sizes`, for the rounding error of the loss


def share(smooth: Loss) -> Shared:
    """Compute `Shared` for a loss."""
    quadratic = quadratic_of(smooth)
    return Shared(quadratic, quadratic.evaluate(quadratic.zero())[0], sizes(smooth))


class PathState(NamedTuple):
    """Results of the last two problems of a path, from which the next start is extrapolated."""

    point: Point  # the last point
    alpha: jax.Array  # (b,), the last strengths
    norms: jax.Array  # (b,), the norms of the blocks of W at ``alpha``
    alpha_before: jax.Array  # (b,), the strengths before the last; 0 if there were none
    norms_before: jax.Array  # (b,), the norms at ``alpha_before``


def start(shared: Shared, problem: Problem, init: jax.Array) -> PathState:
    """The state at the start of a path: at W = 0 the point is known, at another ``init`` t is estimated."""
    quadratic, blocks = shared.quadratic, _blocks(problem, init)
    none = jnp.zeros_like(blocks.alpha)
    point = lax.cond(
        jnp.any(init != 0),
        lambda: start_point(quadratic, blocks, columns(init), columns(jax.grad(problem.smooth)(init))),
        lambda: unevaluated_point(quadratic, none, shared.C),
    )
    return PathState(point, none, none, none, none)


def _predicted(blocks: Rows | Grouped, path: PathState) -> Point:
    """The point at which Newton's method starts for the next strengths of a path.

    The norms of the blocks are extrapolated linearly in the strength. For a single column they are linear as
    long as no row enters or leaves the active set. The scalars t stay if there was no step before, if a
    strength has not fallen in both steps, or if the new step is at least `MAX_EXTRAPOLATION` times as long.
    """
    point, alpha, norms, alpha_before, norms_before = path
    times = safe_divide(alpha - blocks.alpha, alpha_before - alpha)
    near = (times > 0) & (times < MAX_EXTRAPOLATION)
    right = jnp.all(near & (alpha_before > 0) & (blocks.alpha > 0))
    ahead = jnp.maximum(norms + times * jnp.where(norms > 0, norms - norms_before, 0), 0)
    t = jnp.where(right, safe_divide(ahead, blocks.alpha), point.t)
    same = jnp.all(t == point.t)
    if blocks.ridge is not None:  # the ridge may have changed too, and with it the scales s of every t > 0
        same = ~jnp.any(t > 0)
    return point._replace(t=t, known=point.known & same)


def _blocks(problem: Problem, W: jax.Array) -> Rows | Grouped:
    return blocks_of(problem.penalty, W, _majorizer_rows(problem.smooth))


def resume(
    problem: Problem,
    shared: Shared,
    init: jax.Array,
    state: PathState | None,
    tol: jax.Array,
    maxiter: jax.Array,
    history: int = 0,
) -> tuple[Solution, PathState]:
    """Solve from the state of a path, or from ``init`` if the state is None.

    Returns:
      The solution and the next state.
    """
    smooth, penalty = problem.smooth, problem.penalty
    quadratic, blocks = shared.quadratic, _blocks(problem, init)
    path = start(shared, problem, init) if state is None else state
    point = _predicted(blocks, path)
    max_ratio: jax.Array | float = jnp.inf
    if state is None and _is_crowded(problem):
        max_ratio = jnp.where(jnp.any(init != 0), jnp.inf, MAX_STRENGTH_RATIO)
    newton = Newton(quadratic, blocks, tol, maxiter, max_ratio=max_ratio)
    end = newton.run(point, empty_history(history, init.dtype))
    W = jnp.where(end.point.known, params_at(blocks, end.point, init), init)
    step = cautious_step(quadratic.trace)
    valid = smooth.valid() & strengths_valid(penalty)
    value_at_zero = quadratic.size / 2 + 0 * jnp.sum(blocks.alpha)  # NaN if a strength is NaN
    basis, free = free_features(problem, init)
    scale = Scale(value_at_zero, norm_of(shared.C), basis, shared.sizes, valid, free)
    certificate = certify(problem, W, step, scale, smooth.facts(W, shared.sizes))
    solution = make_solution(W, certificate, tol, end.k, end.history, scale)
    return solution, PathState(end.point, blocks.alpha, blocks.alpha * end.point.t, path.alpha, path.norms)


def _iterated(
    problem: Problem, init: jax.Array, tol: jax.Array, maxiter: jax.Array, history: int
) -> Solution:
    return resume(problem, share(problem.smooth), init, None, tol, maxiter, history=history)[0]


LINK = Link("variational_newton", _iterated, declines=_declines)
