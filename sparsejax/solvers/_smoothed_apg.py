"""Accelerated gradient descent on Nesterov's smoothing of the exclusive group lasso."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._linalg import norm
from sparsejax._pytree import as_float, is_traced
from sparsejax._view_prox import group_norms, group_of
from sparsejax.implicit import differentiable
from sparsejax.penalties import ExclusiveGroupLasso, columns, like
from sparsejax.problem import Problem, Solution
from sparsejax.solvers import _loop

CHECK = 25
# Continuation: the smoothing, relative to the largest group norm, starts at 1 and falls by this factor
# whenever the relative gradient of the smoothed objective is below ACCURACY times it.
SHRINK, ACCURACY = 0.25, 0.3
SOLVED = 1e-3  # times the last smoothing: the gradient at which the smoothed problem counts as solved
ATTEMPTS = 20  # to find a step, in each iteration


class State(NamedTuple):
    W: jax.Array  # (k, d)
    V: jax.Array  # (k, d), where the gradient steps add up
    L: jax.Array  # bound of the curvature met so far
    mu: jax.Array  # the smoothing in use
    t: jax.Array  # iterations since the last change of mu
    solved: jax.Array  # the smoothed problem is


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

    The gap is that of the problem itself; the smoothed gradients split its gradient. It comes down to the
    order of ``mu`` only: then the solve ends as stalled, unless the gap met ``tol``. No entry is exactly zero
    without ``polish``. `sparsejax.admm` is faster, exact and has zeros; this is for comparison.

    Args:
      problem: a loss with ``majorizer``, as those of `sparsejax.losses`, with or without graphs, and
        `ExclusiveGroupLasso`.
      init, tol, maxiter, history: as `sparsejax.admm`.
      mu: > 0, shape (): the smoothing, in the units of W.
      continuation: start with a large smoothing and lessen it as the smoothed problems are solved.
      faithful: Algorithm 1 as printed, without continuation: L is
        :math:`d\sum_v(\sqrt2 R/\mu + |v|^2)` alone, with :math:`R^2 = 2F(0)/(K\,\text{strength})` for K views
        (the paper does not choose R; no W that is better than 0 has a longer row), a is 1, 2, 1, 2/3, ...,
        and the gradient of the loss is taken at W. It can diverge, since L forgets the loss.
      polish: return the prox-gradient point of the last W, which has exact zeros.

    Returns:
      `Solution`; it certifies the point that is returned.

    Raises:
      TypeError, ValueError: an unfit problem or argument, ``mu`` <= 0, before tracing.
    Source: Chen et al., ACM MM 2011, Eqs. (6)-(12) and Algorithm 1, whose Lipschitz constant (11) omits the
      loss and is too small for large views; continuation as they suggest in Section 3.2.
    """
    start, tol, maxiter = _loop.prepare("smoothed_apg", problem, init, tol, maxiter, history)
    if not isinstance(problem.penalty, ExclusiveGroupLasso) or not hasattr(problem.smooth, "majorizer"):
        raise TypeError(
            "smoothed_apg needs a loss with majorizer(), as those of sparsejax.losses have, and "
            f"ExclusiveGroupLasso, got {type(problem.smooth).__name__} with "
            f"{type(problem.penalty).__name__}; admm and fista take more."
        )
    smoothing = as_float("mu", mu, (0,), start.dtype)
    if not is_traced(smoothing) and not np.asarray(smoothing) > 0:
        raise ValueError(f"smoothed_apg: mu must be > 0, got {np.asarray(smoothing):g}.")
    for name, value in (("continuation", continuation), ("faithful", faithful), ("polish", polish)):
        if not isinstance(value, bool):
            raise TypeError(f"smoothed_apg: {name} must be True or False, got {value!r}.")
    return _smoothed_apg(problem, start, tol, maxiter, smoothing, history, continuation, faithful, polish)


@differentiable("history", "continuation", "faithful", "polish")
def _smoothed_apg(problem, init, tol, maxiter, mu, history, continuation, faithful, polish):
    smooth, penalty = problem.smooth, problem.penalty
    views, d = penalty.views, init.shape[0]
    strength = penalty.strength.astype(init.dtype)
    tall = bool(smooth.quadratic) and smooth.X.shape[0] > d
    quick = problem._replace(smooth=smooth.gram()) if tall else None
    of_loss = _loop.curvature(smooth)
    step = 1 / jnp.where(of_loss > 0, of_loss, 1)

    def grad(Wt):
        return columns(jax.grad((quick or problem).smooth)(like(Wt, init)))

    def smoothed(Wt, mu):
        """The gradient of every view, and the bound of the curvature at W, loss included."""
        parts, bound = [], jnp.zeros(d, Wt.dtype)
        for view in views:
            norms = group_norms(view, Wt)
            q = jnp.sum(jnp.where(norms > mu, norms - mu / 2, norms * norms / (2 * mu)), axis=0)
            parts.append((strength * q)[None] * Wt / jnp.maximum(norms, mu)[group_of(view)])
            bound += strength * (q / mu + view.num_groups)
        return parts, of_loss + jnp.max(bound)

    def gradient(Wt, mu):
        return grad(Wt) + sum(smoothed(Wt, mu)[0])

    def iterate(_, s: State) -> State:
        a = 2 / (s.t + 2)
        U = (1 - a) * s.W + a * s.V
        parts, bound = smoothed(U, s.mu)
        G = grad(U) + sum(parts)

        def move(L):
            V = s.V - G / (a * L)
            W = (1 - a) * s.W + a * V
            return W, V, smoothed(W, s.mu)[1]

        def longer(carry):
            _, _, need, _, n = carry
            return *move(need), need, n + 1

        L = jnp.maximum(s.L, bound)
        carry = (*move(L), L, jnp.int32(0))
        # q is convex: on the way from U to W it is nowhere above its values at the ends.
        W, V, _, L, _ = lax.while_loop(lambda c: (c[2] > c[3]) & (c[4] < ATTEMPTS), longer, carry)
        return s._replace(W=W, V=V, L=L, t=s.t + 1)

    zero = jnp.zeros_like(init)
    R = jnp.sqrt(2 * smooth(zero) / (len(views) * jnp.max(strength)))
    printed = d * sum(2**0.5 * R / mu + view.num_groups**2 for view in views)

    def iterate_printed(_, s: State) -> State:
        a = jnp.where(s.t > 0, 2 / jnp.maximum(s.t, 1), 1)
        U = (1 - a) * s.W + a * s.V
        V = s.V - (grad(s.W) + sum(smoothed(U, mu)[0])) / (a * printed)
        return s._replace(W=(1 - a) * s.W + a * V, V=V, t=s.t + 1)

    first_gradient = norm(jax.grad(smooth)(zero))

    def block(s: State, n) -> State:
        s = lax.fori_loop(0, n, iterate_printed if faithful else iterate, s)
        error = norm(gradient(s.W, s.mu)) / jnp.where(first_gradient > 0, first_gradient, 1)
        largest = jnp.max(jnp.stack([jnp.max(group_norms(view, s.W)) for view in views]))
        relative = s.mu / jnp.where(largest > 0, largest, 1)
        at_last = s.mu <= mu
        shrink = ~at_last & (error <= ACCURACY * relative)
        new = jnp.maximum(mu, SHRINK * jnp.minimum(s.mu, largest))
        restarted = State(s.W, s.W, jnp.zeros_like(s.L), new, jnp.zeros_like(s.t), jnp.zeros((), bool))
        s = s._replace(solved=at_last & (error <= SOLVED * jnp.minimum(relative, 1)))
        return jax.tree.map(lambda a, b: jnp.where(shrink, a, b), restarted, s)

    def candidate(s: State) -> jax.Array:
        W = like(s.W, init)
        if not polish:
            return W
        return penalty.prox(W - step * jax.grad((quick or problem).smooth)(W), step)

    Wt = columns(init)
    # A step of the loss alone tells the units of W.
    scale = jnp.max(jnp.stack([jnp.max(group_norms(view, Wt - step * grad(Wt))) for view in views]))
    start = jnp.maximum(mu, scale) if continuation and not faithful else mu
    none = jnp.zeros((), init.dtype)
    return _loop.run(
        problem,
        init,
        State(Wt, Wt, none, start, none, jnp.zeros((), bool)),
        block,
        candidate,
        split=(lambda s: tuple(like(part, init) for part in smoothed(s.W, s.mu)[0]))
        if len(views) > 1
        else None,
        step=lambda _: step,
        tol=tol,
        maxiter=maxiter,
        check_every=CHECK,
        history=history,
        quick=quick,
        ended=lambda s: s.solved,
    )[0]
