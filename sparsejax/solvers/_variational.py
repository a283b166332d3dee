r"""Least squares with a norm of each row, by Newton's method on one scalar a row."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import cho_solve
from jax.typing import ArrayLike

from sparsejax._core.buckets import buckets, chosen, take
from sparsejax._core.checks import is_eager
from sparsejax._core.layout import columns, like
from sparsejax._core.linalg import eps_of, norm, safe_divide, safe_norm, tiny_of
from sparsejax.certificate import Scale, certify
from sparsejax.compiling import Finish, differentiable
from sparsejax.factor import cautious_step
from sparsejax.penalties import strengths_valid
from sparsejax.problem import Problem
from sparsejax.solution import History, Solution
from sparsejax.solvers import _admm, _loop
from sparsejax.solvers._arguments import prepare
from sparsejax.solvers._loop import once
from sparsejax.solvers._quadratics import cholesky, quadratic_of

NEWTON = 100  # steps at most
# Factorisations of the active set method in the first attempt at a step; twice as many in the others.
SWEEPS = 4
ATTEMPTS = 16  # at a step: the last ones are those of steepest descent
FILL = 0.95  # of a bucket: a full one could not exchange features
SHRINK = 0.5  # from the strength at which W = 0 down to that asked for, a Newton step each
SMALLEST = 512  # features from which `sparsejax.solve` takes this solver
# Where there are not MANY times more features than samples, most rows will be active below lambda_max/WEAK,
# and the engine is the faster for that.
MANY, WEAK = 8, 32


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

    A step is taken in a bucket of m features, those with t > 0 and those of the largest
    :math:`\|c_i\|/\alpha_i`; m is one of a few static sizes that follow from the shape of A (`buckets`). The
    quadratic program with :math:`t \ge 0` is solved by a primal-dual active set method. From W = 0 the
    strengths are lowered to those asked for by halves, a step each. The first right side tried is that of
    Newton's method for :math:`1/\|c_i\| = 1/\alpha_i`, exact for one feature; then that of :math:`\phi`, then
    with growing shifts of the diagonal, until :math:`\phi` falls.

    What this does not solve, `admm` takes over from where it stands: more active rows than the last bucket
    holds, a strength of 0, a tol below the rounding of the products; and from W = 0, in float64, strengths
    below lambda_max/32 where there are not eight times more features than samples.

    Args:
      problem: a quadratic loss (`SquaredLoss` with no weights or weights by row, with or without intercept;
        its `gram`), and `L21`, or `L1` of a single column.
      init, tol, maxiter, history: as `admm`; an iteration is a Newton step, here at most 100.

    Returns:
      `Solution`; rows with t = 0 are exactly 0.

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
    # Seen before anything is compiled for it.
    cold = is_eager((problem, init)) and not np.any(init)
    if cold and _is_crowded(problem) and float(_excess(problem, init)) > WEAK:
        return _admm.admm(problem, init, tol=tol, maxiter=maxiter, history=history)
    return _variational_newton(problem, init, tol, maxiter, history)


def unfit(problem: Problem) -> str | None:
    """Why the solver does not take the problem, in words; None if it does."""
    leaves, treedef = jax.tree.flatten((problem.smooth, problem.penalty))
    return _reason(treedef, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves))


@functools.lru_cache(maxsize=1024)  # shapes are found by tracing, which takes milliseconds
def _reason(treedef: Any, leaves: tuple[Any, ...]) -> str | None:
    found: list[str | None] = []

    def inspect(both: Any) -> jax.Array:
        found.append(_reason_of(*both))
        return jnp.zeros(())

    shapes = [jax.ShapeDtypeStruct(*leaf) for leaf in leaves]  # type: ignore[no-untyped-call]
    jax.eval_shape(inspect, jax.tree.unflatten(treedef, shapes))
    return found[0]


def _reason_of(smooth: Any, penalty: Any) -> str | None:
    both = f"{type(smooth).__name__} with {type(penalty).__name__}"
    if "row norm" not in penalty.provides or "shape" not in smooth.provides:
        return f"needs a penalty that is a norm of each row, got {both}; admm takes any."
    if penalty.row_norm(smooth.params_shape) is None:
        return f"needs a norm of each row, which {type(penalty).__name__} is for a single column only."
    if "curvature" not in smooth.provides or not smooth.quadratic:
        return f"needs a quadratic loss with one Hessian for all columns, got {both}."
    wide = smooth.majorizer().shape[0] < smooth.params_shape[0]
    if smooth.laplacian() is not None or (wide and smooth.target() is None):
        return f"needs the target() of its loss and no graph of labels, got {both}."
    return None


def suits(problem: Problem) -> bool:
    """Whether `sparsejax.solve` takes it: for many features; for few the engine compiles faster."""
    return int(problem.smooth.params_shape[0]) >= SMALLEST


def _is_crowded(problem: Problem) -> bool:
    """Whether most rows may be active; in float32 the engine seldom gets to the end of that."""
    n, d = jax.eval_shape(problem.smooth.majorizer).shape
    return bool(d < MANY * n) and np.finfo(problem.smooth.dtype).bits > 32


@jax.jit
def _excess(problem: Problem, zero: jax.Array) -> jax.Array:
    """By how much the gradient at 0 exceeds the strengths."""
    return 1 / problem.penalty.dual_scale(-jax.grad(problem.smooth)(zero))  # type: ignore[no-any-return]


class Point(NamedTuple):
    """t, and what is known there."""

    t: jax.Array  # (d,)
    aux: Any
    C: jax.Array  # (k, d)
    c: jax.Array  # (d,), the norms of its columns
    residual: jax.Array  # ||B - AW||^2
    along: jax.Array  # <B, B - AW>


def look(quadratic: Any, t: jax.Array, aux: Any) -> Point:
    """The point of t: the one product with all of A."""
    C, residual, along = quadratic.look(aux)
    return Point(t, aux, C, safe_norm(C), residual, along)


class State(NamedTuple):
    """What is iterated."""

    point: Point
    primal: jax.Array
    dual: jax.Array
    level: jax.Array  # number of the bucket; as many as there are: nothing more can be done
    shift: jax.Array  # attempts the last step took
    tau: jax.Array  # >= 1, what the strengths are multiplied with in the next step
    k: jax.Array
    history: History


class _Model(NamedTuple):
    """The quadratic model of phi in the largest bucket, and how it is to be minimised."""

    aux: Any
    ix: jax.Array  # numbers of features; d where there is none
    t: jax.Array
    C: jax.Array
    r: jax.Array  # right side
    beyond: jax.Array  # ||c_i|| > alpha_i
    nu: jax.Array  # relative shift of the diagonal
    sweeps: jax.Array


class _Attempt(NamedTuple):
    """At a step."""

    number: jax.Array
    t: jax.Array
    aux: Any
    along: jax.Array
    phi: jax.Array


class Newton:
    """The iteration for one problem."""

    def __init__(
        self,
        quadratic: Any,
        alpha: jax.Array,
        tol: jax.Array,
        maxiter: jax.Array,
        *,
        sizes: tuple[int, ...],
        patient: bool | jax.Array = True,  # at weak strengths too
    ):
        self.quadratic, self.alpha = quadratic, alpha
        self.tol, self.maxiter = tol, jnp.minimum(maxiter, NEWTON)
        self.sizes, self.patient = sizes, patient
        self.over = len(sizes)

    def run(self, point: Point, history: History) -> State:
        primal, dual, excess = self.values(point)
        level = jnp.where(jnp.all(self.alpha > 0), self.level(point.t, jnp.int32(0)), self.over)
        level = jnp.where(self.patient | (excess <= WEAK), level, self.over)
        tau, zero = jnp.maximum(SHRINK * excess, 1), jnp.int32(0)
        state = State(point, primal, dual, level, zero, tau, zero, history)
        return lax.while_loop(self.going, self.body, self.recorded(state))

    def values(self, point: Point) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The objective of W, the best dual value along its residual, and the largest ||c_i||/alpha_i."""
        primal = point.residual / 2 + jnp.sum(self.alpha * point.t * point.c)
        excess = jnp.max(self.ratios(point.c))
        s = 1 / jnp.maximum(excess, 1)
        return primal, s * point.along - s * s * point.residual / 2, excess

    def ratios(self, c: jax.Array) -> jax.Array:
        return safe_divide(c, self.alpha, jnp.inf)

    def gap(self, s: State) -> jax.Array:
        return safe_divide(s.primal - s.dual, jnp.maximum(s.primal, self.quadratic.size / 2))

    def level(self, t: jax.Array, level: jax.Array) -> jax.Array:
        """The first bucket, not below this one, that is not full."""
        count = jnp.sum(t > 0)
        for number, m in enumerate(self.sizes):
            full = count > (int(FILL * m) if m < t.shape[0] else m)
            level = jnp.where((level == number) & full, number + 1, level)
        return level.astype(jnp.int32)

    def recorded(self, s: State) -> State:
        return s._replace(history=_loop.recorded(s.history, s.k, s.primal, self.gap(s)))

    def going(self, s: State) -> jax.Array:
        return (self.gap(s) > self.tol) & (s.k < self.maxiter) & (s.level < self.over)

    def body(self, s: State) -> State:
        t, aux, shift = self.step(s)
        point = look(self.quadratic, t, aux)
        primal, dual, _ = self.values(point)
        level = jnp.where(shift < ATTEMPTS, self.level(t, s.level), self.over)
        tau = jnp.maximum(SHRINK * s.tau, 1)
        return self.recorded(State(point, primal, dual, level, shift, tau, s.k + 1, s.history))

    def step(self, s: State) -> tuple[jax.Array, Any, jax.Array]:
        """t and ``aux`` after a Newton step, and the attempts it took."""
        point, eps = s.point, eps_of(s.point.t)
        room = jnp.asarray(self.sizes, jnp.int32)[jnp.minimum(s.level, self.over - 1)]
        ix = chosen(point.t > 0, self.ratios(point.c), room, self.sizes[-1])
        t, C, alpha = take(point.t, ix, 0), take(point.C, ix, 1), s.tau * take(self.alpha, ix, 0)
        squares, q = alpha * alpha, safe_divide(safe_norm(C), alpha)
        phi = (point.along + jnp.sum(squares * t)) / 2

        def attempt(c: _Attempt) -> _Attempt:
            j = c.number + 1
            r = squares * jnp.where(j == 0, q * q * (q - 1), (q * q - 1) / 2)
            larger = 10.0 ** (jnp.minimum(j, ATTEMPTS).astype(t.dtype) - 5)
            nu = jnp.where(j < 2, eps ** (2 / 3), larger)
            model = _Model(point.aux, ix, t, C, r, q > 1, nu, jnp.where(j == 0, SWEEPS, 2 * SWEEPS))
            moved = c.t, c.aux, c.along
            for number, m in enumerate(self.sizes):
                moved = once(s.level == number, functools.partial(self.moved, model, m), moved)
            new, aux, along = moved
            return _Attempt(j, new, aux, along, (along + jnp.sum(squares * new)) / 2)

        def failed(c: _Attempt) -> jax.Array:
            return ~(c.phi <= phi + 8 * eps * jnp.abs(phi)) & (c.number < ATTEMPTS)

        before = _Attempt(
            jnp.maximum(s.shift - 1, 0) - 1, t, point.aux, point.along, jnp.full_like(phi, jnp.inf)
        )
        c = lax.while_loop(failed, attempt, before)
        return jnp.zeros_like(point.t).at[ix].set(c.t, mode="drop"), c.aux, c.number

    def moved(self, model: "_Model", m: int, _: Any) -> tuple[jax.Array, Any, jax.Array]:
        """t of the bucket, ``aux`` and <B, K^-1 B> after the step of the model in its first m features."""
        ix, t, C, r, beyond = (x[..., :m] for x in (model.ix, model.t, model.C, model.r, model.beyond))
        part = self.quadratic.part(ix)
        H = self.quadratic.curvature(model.aux, t, part) * (C.T @ C)
        H = H + jnp.diag(model.nu * jnp.diagonal(H) + tiny_of(H))
        new = jnp.maximum(t + _bounded(H, r, t, (t > 0) | beyond, model.sweeps), 0)
        aux, along = self.quadratic.evaluate(new, part)
        return jnp.zeros_like(model.t).at[:m].set(new), self.quadratic.placed(ix, aux), along


def _bounded(H: jax.Array, r: jax.Array, t: jax.Array, free: jax.Array, sweeps: jax.Array) -> jax.Array:
    """The least of x'Hx/2 - r'x over x >= -t, by a primal-dual active set that starts with ``free``."""

    def sweep(c: Any) -> Any:
        free, _, i, _ = c
        fixed = jnp.where(free, 0, -t)
        masked = jnp.where(free[:, None] & free[None], H, 0) + jnp.diag(jnp.where(free, 0, 1).astype(H.dtype))
        x = fixed + cho_solve((cholesky(masked), True), jnp.where(free, r - H @ fixed, 0))
        new = jnp.where(free, t + x > 0, H @ x < r)
        return new, x, i + 1, jnp.any(new != free)

    start = (free, t, jnp.int32(0), jnp.ones((), bool))
    return lax.while_loop(lambda c: c[3] & (c[2] < sweeps), sweep, start)[1]


class Shared(NamedTuple):
    """What depends on the loss alone."""

    quadratic: Any
    zero: Point  # t = 0
    sizes: Any  # for the rounding error of the loss


def share(smooth: Any) -> Shared:
    """What depends on the loss alone."""
    quadratic = quadratic_of(smooth)
    t = jnp.zeros(smooth.params_shape[:1], smooth.dtype)
    return Shared(quadratic, look(quadratic, t, quadratic.zero()), smooth.sizes())


def start(shared: Shared, smooth: Any, init: jax.Array) -> Point:
    """The point of a start."""

    def known() -> Point:
        n, (k, d) = jax.eval_shape(smooth.majorizer).shape[0], columns(init).shape
        gradient = columns(jax.grad(smooth)(init))
        return point_of(shared.quadratic, columns(init), gradient, buckets(n, d, k)[-1])

    point: Point = lax.cond(jnp.any(init != 0), known, lambda: shared.zero)
    return point


def point_of(quadratic: Any, Wt: jax.Array, gradient: jax.Array, m: int) -> Point:
    """The point of weights: t_i = ||w_i||/||c_i||, as at an optimum, for the m largest of them."""
    sizes = safe_norm(Wt)
    ix = chosen(jnp.zeros(sizes.shape, bool), sizes, m, m)
    t = safe_divide(take(sizes, ix, 0), safe_norm(take(gradient, ix, 1)))
    aux, _ = quadratic.evaluate(t, quadratic.part(ix))
    return look(quadratic, jnp.zeros_like(sizes).at[ix].set(t, mode="drop"), quadratic.placed(ix, aux))


def resume(
    problem: Problem,
    shared: Shared,
    init: jax.Array,
    state: Point | None,
    tol: jax.Array,
    maxiter: jax.Array,
    history: int = 0,
    complete: bool = True,
) -> tuple[Solution, Point]:
    """From a point, or from W; where ``complete`` is True, `admm` does what is left."""
    smooth, penalty = problem.smooth, problem.penalty
    quadratic = shared.quadratic
    point = start(shared, smooth, init) if state is None else state
    (d, k), n = columns(init).shape[::-1], jax.eval_shape(smooth.majorizer).shape[0]
    alpha = jnp.broadcast_to(penalty.row_norm(init.shape), (d,)).astype(init.dtype)
    patient = state is not None or not _is_crowded(problem) or jnp.any(init != 0)
    newton = Newton(quadratic, alpha, tol, maxiter, sizes=buckets(n, d, k), patient=patient)
    end = newton.run(point, _loop.empty_history(history, init.dtype))
    point = end.point
    W = like(point.t[None] * point.C, init)
    step = cautious_step(quadratic.trace)
    valid = smooth.valid() & strengths_valid(penalty)
    scale = Scale(quadratic.size / 2, norm(shared.zero.C), None, shared.sizes, valid)
    certificate = certify(problem, W, step, scale, smooth.facts(W, shared.sizes))
    solution = _loop.judged(W, certificate, tol, end.k, end.history)
    if complete:
        solution = _admm.completed(problem, solution, tol, maxiter)
    return solution, point


@differentiable("history", finish=Finish(_admm.take_over, _admm.unfinished))
def _variational_newton(
    problem: Problem, init: jax.Array, tol: jax.Array, maxiter: jax.Array, history: int, finish: bool
) -> Solution:
    return resume(problem, share(problem.smooth), init, None, tol, maxiter, history, finish)[0]
