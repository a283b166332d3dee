"""Iteratively reweighted least squares: a sequence of ridge problems."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._linalg import conjugate_gradients, safe_norm
from sparsejax._pytree import as_float, is_traced
from sparsejax.implicit import differentiable
from sparsejax.penalties import ExclusiveGroupL21, columns, like
from sparsejax.problem import Problem, Solution
from sparsejax.solvers import _loop

CHECK = 5
SHRINK = 0.5  # of the smoothing, at every step, until it is ``epsilon``
INNER = 50  # conjugate gradient steps at most, in each Newton step
# Least weight of a row, relative to the mean eigenvalue of the Hessian: unpenalised ones have none, and the
# ridge problem must have a solution.
FLOOR = 1e-9


class State(NamedTuple):
    W: jax.Array  # (d, k) or (d,)
    epsilon: jax.Array  # the smoothing in use


def irls(
    problem: Problem,
    init: ArrayLike | None = None,
    *,
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 500,
    history: int = 0,
    epsilon: ArrayLike = 1e-8,
    faithful: bool = False,
    polish: bool = False,
) -> Solution:
    r"""Minimise a loss with `ExclusiveGroupL21` by reweighting: each step is one ridge problem.

    With the smoothed row norms :math:`\nu_i = \sqrt{\|w_i\|^2 + \epsilon^2}` of the last W,

    .. math:: W = \operatorname*{argmin}_W f(W) + \operatorname{tr}(W^\top F W), \qquad
              F_{ii} = \sum_{g \ni i} \alpha_g \frac{\sum_{j \in g} \nu_j}{\nu_i} .

    Every step decreases :math:`f(W) + \sum_g \alpha_g(\sum_{i\in g}\nu_i)^2`, a bound of F that tends to it
    with :math:`\epsilon`. For `SquaredLoss` a step is one Cholesky factorisation, d x d if d <= n, else
    n x n by Woodbury's identity. For other losses it is one Newton step, by conjugate gradients with that
    factorisation (of their quadratic bound) as preconditioner, halved until it decreases.

    What it cannot do: a row that is zero in the minimiser only shrinks, so without ``polish`` no row is
    exactly zero. A row that is zero by mistake leaves zero by a constant factor at each step, from
    :math:`\epsilon` on (never, if there were no :math:`\epsilon`). And :math:`\epsilon` biases the result: in
    the paper's example at alpha = 1 by 4e-5 and 2e-9 of the objective for 1e-2 and 1e-4.

    Args:
      problem: a loss with ``majorizer`` (`SquaredLoss`, `LogisticLoss`, the hinge losses) and
        `ExclusiveGroupL21`.
      init: start, shape of W; default: the ridge problem with :math:`\nu = 1`.
      tol: largest accepted gap (or residual), as `sparsejax.admm`.
      maxiter: steps, >= 0.
      history: record that many steps (it makes each of them evaluate the certificate).
      epsilon: > 0, the smoothing at the end, relative to the largest row norm of the first W.
      faithful: that smoothing from the first step on. By default it starts at 1 and is halved at every step,
        since a small one keeps rows that are near zero there for long.
      polish: return the prox-gradient point of the last W, which has exact zeros.

    Returns:
      `Solution`; it certifies the point that is returned.

    Raises:
      TypeError, ValueError: an unfit problem or argument, before tracing.
    Source: Kong et al., AAAI 2016, Eqs. (10)-(12) and footnote 3; Eq. (11) is mended. The paper claims the
      global minimum in 10-20 steps, which holds where no row vanishes.
    """
    init_given = init is not None
    start, tol, maxiter = _loop.prepare("irls", problem, init, tol, maxiter, history)
    fits = hasattr(problem.smooth, "majorizer") and not hasattr(problem.smooth, "laplacian")
    if not isinstance(problem.penalty, ExclusiveGroupL21) or not fits:
        raise TypeError(
            "irls needs a loss with majorizer() (SquaredLoss, LogisticLoss, the hinge losses) and "
            f"ExclusiveGroupL21, got {type(problem.smooth).__name__} with {type(problem.penalty).__name__}; "
            "admm and fista take more."
        )
    epsilon = as_float("epsilon", epsilon, (0,), start.dtype)
    if not is_traced(epsilon) and not np.asarray(epsilon) > 0:
        raise ValueError(f"irls: epsilon must be > 0, got {np.asarray(epsilon):g}.")
    for name, value in (("faithful", faithful), ("polish", polish)):
        if not isinstance(value, bool):
            raise TypeError(f"irls: {name} must be True or False, got {value!r}.")
    return _irls(problem, start, tol, maxiter, epsilon, history, init_given, faithful, polish)


@differentiable("history", "init_given", "faithful", "polish")
def _irls(problem, init, tol, maxiter, epsilon, history, init_given, faithful, polish):
    smooth, penalty = problem.smooth, problem.penalty
    A = smooth.majorizer()
    n, d = A.shape
    exact = bool(smooth.quadratic)
    mean = jnp.sum(A * A) / d
    gram = A.T @ A if d <= n else jnp.zeros((0, 0), A.dtype)
    eye = jnp.eye(min(n, d), dtype=A.dtype)
    linear = -jax.grad(smooth)(jnp.zeros_like(init))
    objective = lambda W, F: smooth(W) + jnp.sum(F * jnp.sum(columns(W) ** 2, axis=0))

    def ridge(F):
        """The solver of (A'A + 2 diag(F)) W = R, scaled so that the largest F do no harm."""
        F = jnp.maximum(2 * F, FLOOR * jnp.where(mean > 0, mean, 1))
        S = 1 / jnp.sqrt(F)[None]
        if d <= n:
            factor = jax.scipy.linalg.cho_factor(gram * (S * S.T) + eye)
            return lambda R: like(S * jax.scipy.linalg.cho_solve(factor, (S * columns(R)).T).T, R)
        B = A * S
        factor = jax.scipy.linalg.cho_factor(B @ B.T + eye)

        def solve(R):
            Rt = S * columns(R)
            return like(S * (Rt - jax.scipy.linalg.cho_solve(factor, B @ Rt.T).T @ B), R)

        return solve

    def step(W, F):
        solve = ridge(F)
        if exact:
            return solve(linear)
        G, hessian = jax.linearize(jax.grad(smooth), W)
        G = G + 2 * like(columns(W) * F[None], W)
        matvec = lambda D: hessian(D) + 2 * like(columns(D) * F[None], D)
        D = conjugate_gradients(matvec, -G, solve, 1e-2, INNER)
        before, slope = objective(W, F), jnp.sum(G * D)
        too_long = lambda t: ~(objective(W + t * D, F) <= before + 1e-4 * t * slope) & (t > 1e-4)
        t = lax.while_loop(too_long, lambda t: t / 2, jnp.ones((), W.dtype))
        # At the precision of the dtype nothing decreases any more: stay.
        return jnp.where(objective(W + t * D, F) <= before, W + t * D, W)

    def weights(W, epsilon):
        nu = jnp.sqrt(safe_norm(columns(W)) ** 2 + epsilon**2)
        slopes = penalty._slopes(nu)
        return jnp.where(slopes > 0, slopes / nu, 0)

    def iterate(s: State) -> State:
        W = step(s.W, weights(s.W, s.epsilon))
        return State(W, jnp.maximum(s.epsilon * SHRINK, last))

    first = init if init_given else step(init, penalty._slopes(jnp.ones(d, A.dtype)))
    scale = jnp.max(safe_norm(columns(first)))
    last = epsilon * jnp.where(scale > 0, scale, 1)
    largest = _loop.smoothness(A)
    length = 1 / jnp.where(largest > 0, largest, 1)

    def candidate(s: State) -> jax.Array:
        if not polish:
            return s.W
        return penalty.prox(s.W - length * jax.grad(smooth)(s.W), length)

    return _loop.run(
        problem,
        init,
        State(first, last if faithful else jnp.maximum(last, scale)),
        lambda s, n: lax.fori_loop(0, n, lambda _, s: iterate(s), s),
        candidate,
        step=lambda _: length,
        tol=tol,
        maxiter=maxiter,
        check_every=CHECK,
        history=history,
    )[0]
