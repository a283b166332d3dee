r"""Least squares with a norm of each row or group, by Newton's method on one scalar each."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.linalg import columns, safe_divide
from sparsejax._core.linalg import norm as norm_of
from sparsejax.certificate import Scale, certify
from sparsejax.driver import Link, prepare
from sparsejax.driver.curvature import cautious_step
from sparsejax.driver.feature_subsets import most_features
from sparsejax.driver.loop import empty_history, judged
from sparsejax.losses import sizes
from sparsejax.penalties import strengths_valid
from sparsejax.problem import Problem
from sparsejax.solution import Solution
from sparsejax.solvers import _working_set
from sparsejax.solvers._chains import solved_by
from sparsejax.solvers._norm_blocks import Grouped, Rows, blocks_of
from sparsejax.solvers._quadratics import quadratic_of
from sparsejax.solvers._scalars import Newton, Point, at_zero, begun, weighted

SMALLEST = 512  # features from which `sparsejax.solve` takes this solver
# Where there are not MANY times more features than samples, most rows will be active below lambda_max/WEAK,
# and the engine is the faster for that.
MANY, WEAK = 8, 32
BEYOND = 3  # times the features for which there is room
FARTHEST = 2.0  # times the last change of the strengths: how far along a path the norms are extrapolated


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
    :math:`(A^\top K^{-1}A)\circ(CC^\top)`. The residual :math:`B - AW = K^{-1}B` is the dual point too, so
    that the gap falls as fast as the objective: quadratically.

    A step moves m features, its bucket: those with t > 0 and those of the largest :math:`\|c_i\|/\alpha_i`.
    All its matrices are made of tiles of 64, of which only those in use cost anything: one program serves
    every m up to a room that follows from the shape of A. The quadratic program with :math:`t \ge 0` is
    solved by a primal-dual active set method. From W = 0 the strengths are lowered to those asked for by
    halves, a step each. The first right side tried is that of Newton's method for :math:`1/\|c_i\| =
    1/\alpha_i`, exact for one feature; then that of :math:`\phi`, then with growing shifts of the diagonal,
    until :math:`\phi` falls. The Hessian, its diagonal 3e-4 larger, and the quadratic program are in float32
    whatever the dtype; :math:`\phi`, its gradient and the gap are not.

    Of groups there is one scalar each, with :math:`\|C_g\|_F` for :math:`\|c_i\|` and the Hessian summed over
    the members of both groups; a group is in a bucket as a whole or not at all. With a ridge
    :math:`\tfrac{m}{2}\|w\|^2` the weights are :math:`s = t/(1 + mt)`:

    .. math:: K = I + A\operatorname{diag}(s)A^\top , \quad W = \operatorname{diag}(s)\,C , \quad
              \frac{\partial\phi}{\partial t} = \frac12\Big(\alpha^2 - \frac{\|c\|^2}{(1+mt)^2}\Big) ,

    :math:`\phi` is convex still, decreasing and convex in the concave s, and the residual needs no scaling to
    be dual feasible.

    What this does not solve, others take over from where it stands, eagerly and inside a trace. Where more
    rows are active than the room holds, `working_set` goes on on three times as many features, if these are
    at most half of all. `admm` solves the rest: a group larger than the room, a strength of the norm of 0, a
    tol below the rounding of the products, units of X beyond 1e18 or below 1e-18 (steps, not what they are
    judged by, are in float32); and from W = 0, in float64, strengths below lambda_max/32 where there are not
    eight times more features than samples.

    Args:
      problem: a quadratic loss (`SquaredLoss` with no weights or weights by row, with or without intercept;
        its `gram`), and `L21`, `L1` of a single column, or `GroupLasso` of disjoint groups that hold all
        features; each with `SquaredL2` added, by row or, with groups, of one strength.
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
    problem, init, tol, maxiter, history = prepare(
        "variational_newton", problem, init, tol, maxiter, history, unfit
    )
    return solved_by(LINK, problem, init, tol, maxiter, history)


def unfit(problem: Problem) -> str | None:
    """Why the solver does not take the problem, in words; None if it does."""
    smooth, penalty = problem.smooth, problem.penalty
    kind = type(penalty).__name__
    both = f"{type(smooth).__name__} with {kind}"
    if "row norm" not in penalty.provides or "shape" not in smooth.provides:
        return f"needs a penalty that is a norm of each row or group, got {both}; admm takes any."
    norm = penalty.row_norm(smooth.params_shape)
    if norm is None or norm.entries is not None:
        return f"needs a norm of each row or group, which {kind} is for a single column only."
    model = smooth.quadratic_model()
    if model.majorizer is None or not model.exact:
        return f"needs a quadratic loss with one Hessian for all columns, got {both}."
    if model.laplacian is not None:
        return f"takes no graph of labels, got {both}."
    if model.target is None and _majorizer_rows(smooth) < smooth.params_shape[0]:
        return f"needs a target in the quadratic_model() of its loss, got {both}."
    return None


def suits(problem: Problem) -> bool:
    """Whether `sparsejax.solve` takes it: for many features; for few the engine compiles faster."""
    return int(problem.smooth.params_shape[0]) >= SMALLEST


def _is_crowded(problem: Problem) -> bool:
    """Whether most rows may be active; in float32 the engine seldom gets to the end of that."""
    n, d = _majorizer_rows(problem.smooth), problem.smooth.params_shape[0]
    return bool(d < MANY * n) and np.finfo(problem.smooth.dtype).bits > 32


def _majorizer_rows(smooth: Any) -> int:
    """The number of rows of A: of the data where A times W is compared with a target."""
    model = smooth.quadratic_model()
    if model.target is not None and model.num_rows is not None:
        return int(model.num_rows)
    return int(jax.eval_shape(model.majorizer).shape[0])


def _declines(problem: Problem, init: jax.Array) -> bool:
    """Whether most rows will be active, so that `admm` is the faster."""
    cold = _is_crowded(problem) and not jax.device_get(init).any()
    return bool(cold and jax.device_get(_excess(problem, init)) > WEAK)


@jax.jit
def _excess(problem: Problem, zero: jax.Array) -> jax.Array:
    """By how much the gradient at 0 exceeds the strengths."""
    blocks, G = _blocks(problem, zero), columns(jax.grad(problem.smooth)(zero))
    return jnp.max(blocks.ratios(jnp.zeros_like(blocks.alpha), blocks.norms(G)))


def larger_working_set(problem: Problem) -> Link | None:
    """The link for where the last bucket is full: more features, but at most half of all."""
    if _working_set.unfit(problem) is not None:
        return None
    n, d = _majorizer_rows(problem.smooth), problem.smooth.params_shape[0]
    size = BEYOND * most_features(n, d, *problem.smooth.params_shape[1:] or (1,))
    return _working_set.of_size(size) if 2 * size <= d else None


class Shared(NamedTuple):
    """What depends on the loss alone."""

    quadratic: Any
    C: jax.Array  # at W = 0
    sizes: Any  # for the rounding error of the loss


def share(smooth: Any) -> Shared:
    """What depends on the loss alone."""
    quadratic = quadratic_of(smooth)
    return Shared(quadratic, quadratic.look(quadratic.zero())[0], sizes(smooth))


class Walked(NamedTuple):
    """Where a path is: the last point, and the norms of the blocks at the last two strengths."""

    point: Point
    alpha: jax.Array
    norms: jax.Array
    alpha_before: jax.Array
    norms_before: jax.Array


def start(shared: Shared, problem: Problem, init: jax.Array) -> Walked:
    """The start of a path."""
    none = jnp.zeros_like(_blocks(problem, init).alpha)
    return Walked(_start(shared, problem, init), none, none, none, none)


def _predicted(blocks: Rows | Grouped, walked: Walked) -> Point:
    """The point from which the next strengths are gone on to.

    The norms are extrapolated, which are linear in the strength for a single column while no row enters or
    leaves; where all strengths have changed, and by about as much as before.
    """
    point, alpha, norms, alpha_before, norms_before = walked
    times = safe_divide(alpha - blocks.alpha, alpha_before - alpha)
    right = jnp.all((times > 0) & (times < FARTHEST)) & jnp.all((alpha_before > 0) & (blocks.alpha > 0))
    ahead = jnp.maximum(norms + times * jnp.where(norms > 0, norms - norms_before, 0), 0)
    t = jnp.where(right, safe_divide(ahead, blocks.alpha), point.t)
    same = jnp.all(t == point.t)
    if blocks.ridge is not None:  # of another ridge, perhaps
        same = ~jnp.any(t > 0)
    return point._replace(t=t, known=point.known & same)


def _start(shared: Shared, problem: Problem, init: jax.Array) -> Point:
    """The point of a start."""
    quadratic, blocks = shared.quadratic, _blocks(problem, init)

    def known() -> Point:
        return begun(quadratic, blocks, columns(init), columns(jax.grad(problem.smooth)(init)))

    return lax.cond(
        jnp.any(init != 0), known, lambda: at_zero(quadratic, jnp.zeros_like(blocks.alpha), shared.C)
    )


def _blocks(problem: Problem, W: jax.Array) -> Rows | Grouped:
    return blocks_of(problem.penalty, W, _majorizer_rows(problem.smooth))


def resume(
    problem: Problem,
    shared: Shared,
    init: jax.Array,
    state: Walked | None,
    tol: jax.Array,
    maxiter: jax.Array,
    brief: bool = False,
    finish: bool = False,
    history: int = 0,
) -> tuple[Solution, Walked]:
    """From where a path is, or from W; no residual if ``brief``."""
    smooth, penalty = problem.smooth, problem.penalty
    quadratic, blocks = shared.quadratic, _blocks(problem, init)
    walked = start(shared, problem, init) if state is None else state
    point = _predicted(blocks, walked)
    weakest: jax.Array | float = jnp.inf
    if state is None and _is_crowded(problem):
        weakest = jnp.where(jnp.any(init != 0), jnp.inf, WEAK)
    newton = Newton(quadratic, blocks, tol, maxiter, weakest=weakest)
    end = newton.run(point, empty_history(history, init.dtype))
    W = jnp.where(end.point.known, weighted(blocks, end.point, init), init)
    step = cautious_step(quadratic.trace)
    valid = smooth.valid() & strengths_valid(penalty)
    at_zero = quadratic.size / 2 + 0 * jnp.sum(blocks.alpha)  # NaN where a strength is
    scale = Scale(at_zero, norm_of(shared.C), None, shared.sizes, valid)
    certificate = certify(problem, W, step, scale, smooth.facts(W, shared.sizes), brief=brief)
    solution = judged(W, certificate, tol, end.k, end.history, scale)
    return solution, Walked(end.point, blocks.alpha, blocks.alpha * end.point.t, walked.alpha, walked.norms)


def _iterated(
    problem: Problem, init: jax.Array, tol: jax.Array, maxiter: jax.Array, history: int
) -> Solution:
    return resume(problem, share(problem.smooth), init, None, tol, maxiter, history=history)[0]


LINK = Link("variational_newton", _iterated, declines=_declines)
