"""Accelerated gradient descent on Nesterov's smoothing of the exclusive group lasso."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checks import as_positive
from sparsejax._core.linalg import choose, columns, like, norm, safe_divide
from sparsejax.driver import Algorithm, Link, Loop, kinds, prepare
from sparsejax.driver.curvature import step_length
from sparsejax.losses import condensed
from sparsejax.penalties import ExclusiveGroupLasso
from sparsejax.problem import Problem
from sparsejax.prox import view_norms
from sparsejax.solution import Solution
from sparsejax.solvers._chains import solved_by, with_flags

ITERATIONS_PER_CHECK = 25  # iterations between two certificates
# Continuation: the smoothing, relative to the largest group norm, starts at 1. It is multiplied by
# SMOOTHING_DECAY when the relative gradient of the smoothed objective is below GRADIENT_SHARE times the
# smoothing.
SMOOTHING_DECAY, GRADIENT_SHARE = 0.25, 0.3
# The loop ends when the relative gradient is below this share of the last smoothing.
SOLVED_GRADIENT_SHARE = 1e-3
MAX_STEP_ATTEMPTS = 20  # bounds of the curvature that one iteration tries


class State(NamedTuple):
    """State of the iteration, on transposes. A field without a shape is a scalar."""

    W: jax.Array  # (k, d), the answer so far
    V: jax.Array  # (k, d), W at the last change of mu, minus the sum of the gradient steps since then
    L: jax.Array  # bound of the curvature at all points since the last change of mu
    mu: jax.Array  # the present smoothing
    t: jax.Array  # iterations since the last change of mu
    solved: jax.Array  # whether the problem with the last smoothing is solved


def smoothed_apg(
    problem: Problem,
    init: ArrayLike | None = None,
    *,
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
    history: int = 0,
    mu: ArrayLike = 1e-5,
    continuation: bool = True,
    faithful: bool = False,
    polish: bool = False,
) -> Solution:
    r"""Minimise a loss with `ExclusiveGroupLasso` approximately, with its group norms smoothed.

    With :math:`h_\mu(r) = r^2/(2\mu)` for :math:`r \le \mu`, else :math:`r - \mu/2`,

    .. math:: g_\mu(W) = \tfrac12 \sum_i \text{strength}_i \sum_v q_{iv}^2, \qquad
              q_{iv} = \sum_{g \in \text{view } v} h_\mu(\|w_{i,g}\|_2) ,

    is below g by at most :math:`\mu \sum_{i,v} \text{strength}_i |v|^{3/2} R_i / 2`, where :math:`|v|` is the
    number of groups and :math:`R_i \ge \|w_i\|_2`. It is minimised together with the loss by

    .. math:: U &= (1-a)W + aV, \qquad a = 2/(t+2), \\
              V &= V - \nabla F_\mu(U)/(aL), \qquad W = (1-a)W + aV ,

    L being a bound of the curvature between U and the new W, from the loss and
    :math:`\max_i \text{strength}_i \sum_v (q_{iv}/\mu + |v|)`: the q are evaluated, since their bound
    :math:`\sqrt{|v|} R_i` needs an R that is not known before the solution.

    The gap is the gap of the problem itself. It comes down to the order of ``mu`` only: then the solve ends
    as stalled, unless the gap met ``tol``. With two views the gap needs a split of the gradient, for which
    the smoothed gradients serve: a start is not certified, even if it is the solution. No entry is exactly
    zero without ``polish``. `sparsejax.admm` is faster, exact and has zeros; this solver is for comparison.

    Args:
      problem: a loss with a majorizer, as those of `sparsejax.losses`, with or without graphs, and
        `ExclusiveGroupLasso`.
      init, tol, maxiter, history: as `sparsejax.admm`. With a history the smoothing can become smaller after
        every iteration, without one after every 25, so that the iterates differ.
      mu: > 0, shape (): the smoothing, in the units of W.
      continuation: start with a large smoothing and reduce it as the smoothed problems are solved.
      faithful: Algorithm 1 as printed, without continuation: L is
        :math:`d\sum_v(\sqrt2 R/\mu + |v|^2)` alone, :math:`R^2 = 2F(0)/(K \max_i\text{strength}_i)` for K
        views (the paper does not choose R; with one strength, no W that is better than 0 has a longer row), a
        is 1, 2, 1, 2/3, ..., and the gradient of the loss is taken at W. It can diverge: L omits the loss.
      polish: return the prox-gradient point of the last W, which has exact zeros. With two views, and an
        optimum with zeros, only this point has a derivative; without ``polish`` the derivative is NaN.

    Returns:
      `Solution`; it certifies the point that is returned.

    Raises:
      TypeError, ValueError: an unfit problem or argument, ``mu`` <= 0, before tracing.
    Source: Chen et al., ACM MM 2011, Eqs. (6)-(12) and Algorithm 1, whose Lipschitz constant (11) omits the
      loss and is too small for large views; continuation as they suggest in Section 3.2.

    >>> import numpy as np, sparsejax as sj
    >>> loss = sj.losses.SquaredLoss(np.eye(4, 3), np.eye(4, 2))
    >>> views = sj.groups.label_views(2)
    >>> problem = sj.Problem(loss, sj.penalties.ExclusiveGroupLasso(0.1, views))
    >>> sj.smoothed_apg(problem, tol=1e-2).params.shape
    (3, 2)
    """
    link = with_flags(LINK, continuation=continuation, faithful=faithful, polish=polish)
    problem, start, tol, maxiter, history = prepare(link.name, problem, init, tol, maxiter, history, unfit)
    smoothing = as_positive("smoothed_apg: mu", mu, start.dtype)
    return solved_by(link, problem, start, tol, maxiter, history, (smoothing,))


def unfit(problem: Problem) -> str | None:
    """Why the solver does not take the problem, in words; None if it does."""
    known = problem.smooth.quadratic_model().majorizer is not None
    if known and isinstance(problem.penalty, ExclusiveGroupLasso):
        return None
    return (
        "needs a loss with a majorizer in its quadratic_model(), as those of sparsejax.losses have, and "
        f"ExclusiveGroupLasso, got {kinds(problem)}; admm and fista take more."
    )


def _iterated(
    problem: Problem,
    init: jax.Array,
    tol: jax.Array,
    maxiter: jax.Array,
    history: int,
    mu: jax.Array,
    continuation: bool,
    faithful: bool,
    polish: bool,
) -> Solution:
    smoothing = _Smoothing(problem, init, mu)
    cheap, Wt = smoothing.cheap, columns(init)

    def candidate(s: State) -> jax.Array:
        W = like(s.W, init)
        if not polish:
            return W
        step = smoothing.step
        return problem.penalty.prox(W - step * jax.grad(cheap)(W), step)

    def split(s: State) -> tuple[jax.Array, ...]:
        return tuple(like(part, init) for part in smoothing.parts(s.W, s.mu)[0])

    start = smoothing.first(Wt) if continuation and not faithful else mu
    zero = jnp.zeros((), init.dtype)
    algorithm = Algorithm(
        state=State(Wt, Wt, zero, start, zero, jnp.zeros((), bool)),
        block=lambda s, n: smoothing.block(s, n, faithful),
        candidate=candidate,
        step=lambda _: smoothing.step,
        check_every=ITERATIONS_PER_CHECK,
        split=split if len(problem.penalty.views) > 1 else None,
        quick=None if cheap is problem.smooth else cheap,
        ended=lambda s: s.solved,
    )
    return Loop(problem, init, algorithm, tol, maxiter, history).run()[0]


class _Smoothing:
    """The loss plus the smoothed penalty, on W' (k, d)."""

    def __init__(self, problem: Problem, init: jax.Array, mu: jax.Array):
        smooth, self.init, self.mu = problem.smooth, init, mu
        self.views, self.strength = problem.penalty.views, problem.penalty.strength.astype(init.dtype)
        self.cheap, self.step = condensed(smooth), step_length(smooth)
        self.curvature = 1 / self.step
        value, G = jax.value_and_grad(smooth)(jnp.zeros_like(init))
        self.first_gradient = norm(G)
        # R and L of the ``faithful`` iteration.
        R = jnp.sqrt(2 * value / (len(self.views) * jnp.max(self.strength)))
        self.printed = init.shape[0] * sum(2**0.5 * R / mu + view.num_groups**2 for view in self.views)

    def grad(self, Wt: jax.Array) -> jax.Array:
        return columns(jax.grad(self.cheap)(like(Wt, self.init)))

    def parts(self, Wt: jax.Array, mu: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        """The gradient of the smoothed penalty of each view, and a bound of the curvature, loss included."""
        # q sums h_mu of the norms; the gradient of h_mu(||w||) is w / max(||w||, mu).
        parts, bound = [], jnp.zeros(Wt.shape[1:], Wt.dtype)
        for view in self.views:
            norms = view_norms(view, Wt)
            q = jnp.sum(jnp.where(norms > mu, norms - mu / 2, norms * norms / (2 * mu)), axis=0)
            parts.append((self.strength * q)[None] * Wt / jnp.maximum(norms, mu)[view.sorted_group_ids])
            bound += self.strength * (q / mu + view.num_groups)
        return parts, self.curvature + jnp.max(bound)

    def first(self, Wt: jax.Array) -> jax.Array:
        """The first smoothing: the largest group norm after a gradient step on the loss alone.

        It has the units of W.
        """
        return jnp.maximum(self.mu, self.largest(Wt - self.step * self.grad(Wt)))

    def largest(self, Wt: jax.Array) -> jax.Array:
        return jnp.max(jnp.stack([jnp.max(view_norms(view, Wt)) for view in self.views]))

    def iterate(self, s: State) -> State:
        a = 2 / (s.t + 2)
        U = (1 - a) * s.W + a * s.V
        parts, bound = self.parts(U, s.mu)
        G = self.grad(U) + sum(parts)

        def move(L: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            V = s.V - G / (a * L)
            W = (1 - a) * s.W + a * V
            return W, V, self.parts(W, s.mu)[1]

        def retry(carry: Any) -> Any:
            """The step with the bound L that the last W needs: a shorter step."""
            _, _, need, _, n = carry
            return *move(need), need, n + 1

        L = jnp.maximum(s.L, bound)
        carry = (*move(L), L, jnp.int32(0))  # W, V, the bound that W needs, L, attempts
        # q is convex: between U and W it is at most the larger of its values there, so that L bounds the
        # curvature on the whole segment.
        W, V, _, L, _ = lax.while_loop(lambda c: (c[2] > c[3]) & (c[4] < MAX_STEP_ATTEMPTS), retry, carry)
        return s._replace(W=W, V=V, L=L, t=s.t + 1)

    def iterate_printed(self, s: State) -> State:
        a = jnp.where(s.t > 0, 2 / jnp.maximum(s.t, 1), 1)
        U = (1 - a) * s.W + a * s.V
        V = s.V - (self.grad(s.W) + sum(self.parts(U, self.mu)[0])) / (a * self.printed)
        return s._replace(W=(1 - a) * s.W + a * V, V=V, t=s.t + 1)

    def block(self, s: State, n: jax.Array, faithful: bool) -> State:
        """n iterations, then a smaller smoothing if the problem with the present one is solved."""
        step = self.iterate_printed if faithful else self.iterate
        s = lax.fori_loop(0, n, lambda _, s: step(s), s)
        error = norm(self.grad(s.W) + sum(self.parts(s.W, s.mu)[0]))
        error = safe_divide(error, self.first_gradient, error)
        largest = self.largest(s.W)
        relative = safe_divide(s.mu, largest, s.mu)
        at_last = s.mu <= self.mu
        shrink = ~at_last & (error <= GRADIENT_SHARE * relative)
        new = jnp.maximum(self.mu, SMOOTHING_DECAY * jnp.minimum(s.mu, largest))
        restarted = State(s.W, s.W, jnp.zeros_like(s.L), new, jnp.zeros_like(s.t), jnp.zeros((), bool))
        s = s._replace(solved=at_last & (error <= SOLVED_GRADIENT_SHARE * jnp.minimum(relative, 1)))
        return choose(shrink, restarted, s)


LINK = Link(
    "smoothed_apg",
    _iterated,
    arrays_in_units=lambda units, arrays: tuple(mu / units.sigma for mu in arrays),
)
