r"""Losses with a bounded slope, and l1: a primal-dual interior point method."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.linalg import eps_of, safe_divide
from sparsejax._core.tiles import inverse_root
from sparsejax.driver import Algorithm, Link, Loop, kinds, prepare
from sparsejax.driver.curvature import residual_step
from sparsejax.losses import BoundedSlope, num_rows
from sparsejax.penalties import of_each_block
from sparsejax.problem import Problem
from sparsejax.solution import MAX_ITER, STALLED, Solution
from sparsejax.solvers._chains import solved_by

MAX_STEPS = 60
MAX_SHORTER_SIDE = 2048  # largest min(n, d); for n < d <= 2n the matrix factorised is (d, d)
# The matrix of a step has d rows, or n with more than MAX_FEATURES_PER_ROW features for each row of data.
MAX_FEATURES_PER_ROW = 2
# Once the mean product is at most eps times the mean product at the start, LATE_STEPS steps still gain
# digits. Then the solve has stalled.
LATE_STEPS = 6
DIAGONAL_SHIFT = 8  # added to the diagonal of a matrix, in units of its rounding errors
SHARE_TO_BOUNDARY = 0.995  # largest share of the way to the nearest bound that a step goes


def interior_point(
    problem: Problem,
    init: ArrayLike | None = None,
    *,
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
    history: int = 0,
) -> Solution:
    r"""Minimise a loss of bounded slope plus an l1 norm in about 20 steps, however small its smoothing is.

    A loss :math:`\sum_i c_i \max_{l\le v_i\le u} v_i r_i - \tfrac\mu2 v_i^2` of the residuals
    :math:`r = Xw + b - y`, with the penalty :math:`\sum_j \alpha_j|w_j| + \tfrac{m_j}{2}w_j^2`, has the
    optimality conditions

    .. math:: c_i(r_i - \mu v_i) + p_i - q_i = 0, \quad z = X^\top(c\circ v), \quad c^\top v = 0, \quad
              w = w^+ - w^-,

    in which all of :math:`p_i, q_i, w^\pm_j \ge 0`, and each of the products :math:`p_i(v_i - l)`,
    :math:`q_i(u - v_i)`, :math:`w^+_j(\alpha_j + z_j + m_jw_j)` and
    :math:`w^-_j(\alpha_j - z_j - m_jw_j)` is 0 (:math:`c^\top v = 0` only with an intercept b). The method
    follows the points at which every product is the same number :math:`\tau`, by Mehrotra's steps towards
    smaller :math:`\tau`. The start v = 0, w = 0 meets all other conditions. A step solves two systems with
    one matrix :math:`I + B^\top B`, where B is X with its rows and columns scaled. If d > 2n, this matrix
    holds the n largest columns of B, and a second matrix the others.

    In the answer :math:`w_j` is exactly 0 if :math:`|w_j| / \max_i|w_i|` is at most its slack
    :math:`\alpha_j \pm (z_j + m_jw_j)` divided by :math:`\alpha_j`.
    Rounding errors leave a relative gap of the order of the precision divided by :math:`\mu`, in units of y.
    `newton_admm` continues where some :math:`\alpha_j` is 0, where a step fails, and after 60 steps.

    Args:
      problem: a loss of one column whose slope is bounded: `QuantileLoss` or `HuberLoss`, with X
        in memory; and `L1`, perhaps with `SquaredL2`; min(n, d) at most 2048.
      init: certified first, and the answer if it meets tol; the method itself always starts from 0.
      tol, maxiter, history: as `admm`; an iteration is a step, at most 60.

    Returns:
      `Solution`, with exact zeros.

    Raises:
      TypeError, ValueError: an unfit problem or argument, before tracing.
    Source: Mehrotra, SIAM Journal on Optimization 2(4), 1992; for quantile regression: Portnoy & Koenker,
      Statistical Science 12(4), 1997.

    >>> import numpy as np, sparsejax as sj
    >>> loss = sj.losses.QuantileLoss(np.eye(4, 3), np.array([3.0, -2.0, 0.5, 0.0]), 0.5, 1e-6)
    >>> problem = sj.Problem(loss, sj.penalties.L1(0.1))
    >>> print(sj.interior_point(problem).params.round(2))
    [ 3.  -2.   0.5]
    """
    return solved_by(LINK, *prepare("interior_point", problem, init, tol, maxiter, history, unfit))


def unfit(problem: Problem) -> str | None:
    """Why the solver does not take the problem, in words; None if it does."""
    smooth, penalty = problem.smooth, problem.penalty
    model = smooth.quadratic_model()
    shape: tuple[int, ...] = smooth.params_shape if "shape" in smooth.provides else ()
    if shape[1:] not in ((), (1,)):
        return f"needs a single column, got W of shape {shape}."
    if model.bounded_slope is None:
        return f"needs a loss with bounded_slope in its quadratic_model(), got {kinds(problem)}."
    norm = penalty.row_norm(shape) if "row norm" in penalty.provides else None
    if norm is None or norm.groups is not None or norm.entries is not None or norm.nonnegative:
        return f"needs the penalty L1, perhaps with SquaredL2, got {kinds(problem)}."
    n = num_rows(smooth)
    if n is None:
        return f"needs num_rows in the quadratic_model() of its loss, got {kinds(problem)}."
    if min(n, shape[0]) > MAX_SHORTER_SIDE:
        return f"needs min(n, d) of at most {MAX_SHORTER_SIDE}, got {n} x {shape[0]}: use admm."
    return None


def suits(problem: Problem) -> bool:
    """Whether `sparsejax.solve` takes this solver: if no least squares model serves, as for a quantile."""
    return problem.smooth.quadratic_model().least_squares_at is None


class State(NamedTuple):
    """The point. Its first eight fields are four pairs, whose products the method makes small and equal.

    These fields are > 0. The second of each pair is a slack. Slacks are fields, since differences of v and
    its bounds, or of z and alpha, would leave few digits of small ones.
    """

    p: jax.Array  # (n,), multipliers of the lower bounds
    above: jax.Array  # (n,), v - l
    q: jax.Array  # (n,), multipliers of the upper bounds
    below: jax.Array  # (n,), u - v
    plus: jax.Array  # (d,), w+
    rises: jax.Array  # (d,), alpha + z + m w
    minus: jax.Array  # (d,), w-
    falls: jax.Array  # (d,), alpha - z - m w
    v: jax.Array  # (n,), the dual point, within its bounds
    w: jax.Array  # (d,), w+ - w-
    b: jax.Array  # (), the intercept

    def pairs(self) -> list[tuple[jax.Array, jax.Array]]:
        """The factors of the four kinds of products."""
        return [(self[i], self[i + 1]) for i in (0, 2, 4, 6)]

    def ahead(self, length: jax.Array, move: "State") -> "State":
        """The point after this length of a step; ``move`` holds the change of every field."""
        return State(*(x + length * dx for x, dx in zip(self, move, strict=True)))

    def mean(self) -> jax.Array:
        """The mean product."""
        total: Any = sum(x @ y for x, y in self.pairs())
        return total / (2 * len(self.v) + 2 * len(self.w))

    def room(self, move: "State") -> jax.Array:
        """The length of a step at which the first factor becomes 0; inf if none decreases."""
        rates = [jnp.max(-dx / x) for x, dx in zip(self[:8], move[:8], strict=True)]
        fastest = jnp.max(jnp.stack(rates))
        return safe_divide(1.0, jnp.maximum(fastest, 0), jnp.inf)


class _Equations:
    """The optimality conditions of one problem."""

    def __init__(self, loss: BoundedSlope, alpha: jax.Array, ridge: jax.Array):
        self.loss, self.alpha, self.ridge = loss, alpha, ridge
        self.A = loss.weights[:, None] * loss.X  # z = A'v

    def start(self, b: jax.Array) -> State:
        """v = 0 and w = 0, with p and q that meet the first condition, and about equal products."""
        loss = self.loss
        slope = loss.weights * (b - loss.y)  # c r at w = 0
        size = jnp.mean(jnp.abs(slope))
        p, q = jnp.maximum(-slope, 0) + size, jnp.maximum(slope, 0) + size
        # w+ = w- = part: its product with alpha is the mean of the products of p and q.
        part = jnp.mean(q * loss.high - p * loss.low) / 2 / self.alpha
        v, above = jnp.zeros_like(slope), jnp.full_like(slope, -loss.low)
        below = jnp.full_like(slope, loss.high)
        return State(p, above, q, below, part, self.alpha, part, self.alpha, v, jnp.zeros_like(part), b)

    def stepped(self, s: State) -> State:
        """The point after one step."""
        system, tau = _System(self, s), s.mean()

        # The first turn is Mehrotra's predictor: it aims at products of 0 and reaches the mean ``reached``.
        # The second is the corrector, whose move is taken. The corrector aims at tau (reached / tau)^3, less
        # the products of the predictor's changes.
        def turn(_: jax.Array, carry: Any) -> Any:
            goals, *_ = carry
            move = system.move(goals)
            room = s.room(move)
            reached = s.ahead(jnp.minimum(room, 1), move).mean()
            goal = (reached / tau) ** 3 * tau
            return [goal - dx * dy for dx, dy in move.pairs()], move, room

        none = jax.tree.map(jnp.zeros_like, s)
        start = [x for x, _ in none.pairs()], none, jnp.zeros_like(tau)
        _, move, room = lax.fori_loop(0, 2, turn, start)  # a loop, so that the step is compiled once
        return s.ahead(jnp.minimum(SHARE_TO_BOUNDARY * room, 1), move)

    def answer(self, s: State) -> jax.Array:
        """w (d,), exactly 0 where its share of the largest |w| is at most its slack's share of alpha."""
        slack = jnp.where(s.w > 0, s.rises, s.falls)
        return jnp.where(jnp.abs(s.w) * self.alpha > slack * jnp.max(jnp.abs(s.w)), s.w, 0)


class _System:
    """The linear system of a step at one point, factorised."""

    def __init__(self, equations: _Equations, s: State):
        self.equations, self.s = equations, s
        loss = equations.loss
        D = loss.weights * loss.width + s.p / s.above + s.q / s.below
        E = s.plus / s.rises + s.minus / s.falls
        # Newton's equations give D dv - A dw and (1 + ridge E) dw + E A'dv, up to the change of b. In the
        # units g = sqrt(D) dv and f = dw / sqrt(E / shrink) they give g - Bf and f + B'g.
        self.shrink = 1 + equations.ridge * E
        self.rows, self.columns = jnp.sqrt(D), jnp.sqrt(E / self.shrink)
        self.B = equations.A / self.rows[:, None] * self.columns[None]
        self._factorise()
        r = loss.X @ s.w + s.b - loss.y
        self.residual = loss.weights * (r - loss.width * s.v) + s.p - s.q
        if loss.intercept:
            self.c = loss.weights / self.rows
            self.per_b = self.solve(self.c, jnp.zeros_like(E))

    def _factorise(self) -> None:
        """The root of I + B'B; if d > 2n, the roots of I + FF' and I + C' (I + FF')^-1 C, with B = [C, F].

        A root is the inverse of a Cholesky factor. C holds the n longest columns of B. ``others`` is F, with
        columns of zeros in place of C, and ``largest`` is ``others_root`` times C. A root of I + BB' alone
        would have no digits left at the end, where more v are within their bounds than w are active: the rows
        of B for these v are then huge, but of low rank.
        """
        (n, d), B = self.B.shape, self.B
        self.ix = None
        if d <= MAX_FEATURES_PER_ROW * n:
            self.root = _root(B.T @ B)
            return
        self.ix = lax.top_k(jnp.sum(B * B, axis=0), n)[1]
        self.others = B.at[:, self.ix].set(0)
        self.others_root = _root(self.others @ self.others.T)
        self.largest = self.others_root @ B[:, self.ix]
        self.root = _root(self.largest.T @ self.largest)

    def solve(self, t: jax.Array, f: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(g, x) with g - Bx = t and x + B'g = f."""
        if self.ix is None:
            x = (self.root @ (f - t @ self.B)) @ self.root
            return t + self.B @ x, x
        u = self.others_root @ (t + self.others @ f)
        of_largest = (self.root @ (f[self.ix] - u @ self.largest)) @ self.root  # x at the indices ix
        g = (u + self.largest @ of_largest) @ self.others_root
        return g, (f - g @ self.others).at[self.ix].set(of_largest)

    def move(self, goals: list[Any]) -> State:
        """The step to the point at which the four kinds of products are ``goals``, to first order."""
        e, s = self.equations, self.s
        p, q, plus, minus = (goal / y - x for goal, (x, y) in zip(goals, s.pairs(), strict=True))
        # p, q, plus and minus would be the changes of these fields if the slacks stayed.
        g, f = self.solve((self.residual + p - q) / self.rows, (plus - minus) / self.shrink / self.columns)
        db = jnp.zeros_like(s.b)
        if e.loss.intercept:
            db = -(e.loss.weights @ s.v + self.c @ g) / (self.c @ self.per_b[0])
            g, f = g + db * self.per_b[0], f + db * self.per_b[1]
        dv, dw = g / self.rows, self.columns * f
        slope = dv @ e.A + e.ridge * dw
        plus, minus = plus - s.plus / s.rises * slope, minus + s.minus / s.falls * slope
        # The change of the larger of w+ and w- follows from dw and the change of the smaller: a division by
        # the slack of the larger, which is small, would magnify rounding errors.
        plus_larger = s.w > 0
        plus, minus = jnp.where(plus_larger, dw + minus, plus), jnp.where(plus_larger, minus, plus - dw)
        p, q = p - s.p / s.above * dv, q + s.q / s.below * dv
        return State(p, dv, q, -dv, plus, slope, minus, -slope, dv, dw, db)


def _root(S: jax.Array) -> jax.Array:
    """The inverse of the Cholesky factor of I + S, whose diagonal is shifted by some rounding errors.

    Without the shift, rounding would make I + S indefinite at the end, where S is huge, if active columns
    depend on one another.
    """
    shift = DIAGONAL_SHIFT * eps_of(S) * jnp.diagonal(S)
    return inverse_root(S + jnp.diag(shift), jnp.ones((), S.dtype))


def _iterated(
    problem: Problem, init: jax.Array, tol: jax.Array, maxiter: jax.Array, history: int
) -> Solution:
    smooth, norm = problem.smooth, problem.penalty.row_norm(init.shape)
    found, d = smooth.quadratic_model().bounded_slope(), init.shape[0]
    alpha, ridge = (of_each_block(strength, d, init.dtype) for strength in (norm.alpha, norm.ridge))
    equations = _Equations(found, alpha, ridge)
    first = equations.start(smooth.intercept(jnp.zeros_like(init)).reshape(()))
    step, small = residual_step(smooth, init), eps_of(init) * first.mean()

    def moved(c: Progress) -> Progress:
        s = equations.stepped(c.at)
        W = jnp.where(finite(s), equations.answer(s).reshape(init.shape), init)
        return Progress(s, W, c.late + (s.mean() <= small).astype(jnp.int32))

    algorithm = Algorithm(
        state=Progress(first, init, jnp.int32(0)),
        block=lambda c, n: lax.fori_loop(0, n, lambda _, c: moved(c), c),
        candidate=lambda c: c.W,
        step=lambda c: step,
        check_every=1,
        leaves=lambda c: ~finite(c.at) | (c.late >= LATE_STEPS),
    )
    limit = jnp.minimum(maxiter, MAX_STEPS)
    solution, end = Loop(problem, init, algorithm, tol, limit, history).run()
    ended = (solution.status == MAX_ITER) & (end.late >= LATE_STEPS)
    return solution._replace(status=jnp.where(ended, STALLED, solution.status))


class Progress(NamedTuple):
    """State of the loop."""

    at: State
    W: jax.Array  # the answer at the point; the start of the solve where the point is not finite
    late: jax.Array  # () int32, number of steps with a mean product at rounding errors, see `LATE_STEPS`


def finite(s: State) -> jax.Array:
    """Whether the whole point is finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in s]))


LINK = Link("interior_point", _iterated)
