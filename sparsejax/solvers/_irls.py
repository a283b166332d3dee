"""Iteratively reweighted least squares: a sequence of ridge problems."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checks import as_positive
from sparsejax._core.linalg import columns, conjugate_gradients, like, safe_norm
from sparsejax.driver import Algorithm, Link, Loop, kinds, prepare
from sparsejax.driver.curvature import step_length
from sparsejax.penalties import ExclusiveGroupL21
from sparsejax.problem import Problem
from sparsejax.solution import Solution
from sparsejax.solvers._chains import solved_by, with_flags

STEPS_PER_CHECK = 5  # steps between two certificates
SMOOTHING_DECAY = 0.5  # factor of the smoothing at every step, until the smoothing is ``epsilon``
MAX_CG_STEPS = 50  # conjugate gradient steps in each Newton step
CG_TOL = 1e-2  # largest residual of a Newton step, relative to the gradient: the next step corrects the rest
# Least weight of a row, as a share of the mean eigenvalue of the Hessian. Unpenalised rows have the weight 0,
# with which the ridge problem may have no unique solution.
MIN_WEIGHT_SHARE = 1e-9


class State(NamedTuple):
    """State of the iteration."""

    W: jax.Array  # (d, k) or (d,), the solution of the last ridge problem
    epsilon: jax.Array  # (), the smoothing of the next step


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

    Every step decreases :math:`f(W) + \sum_g \alpha_g(\sum_{i\in g}\nu_i)^2`, an upper bound of the objective
    that tends to the objective as :math:`\epsilon` tends to 0. For `SquaredLoss` a step is one Cholesky
    factorisation, d x d if d <= n, else n x n by Woodbury's identity. For other losses it is one Newton step
    on the ridge problem by conjugate gradients, halved until the objective of this problem decreases; the
    preconditioner is the same factorisation, of the quadratic bound of the loss.

    Its limits: a row that is zero in the minimiser only shrinks, so without ``polish`` no row is exactly
    zero. A row that is zero by mistake grows from :math:`\epsilon` by a constant factor at each step. And
    :math:`\epsilon` biases the result: in the paper's example at alpha = 1 by 4e-5 of the objective for
    :math:`\epsilon` = 1e-2, and by 1e-10 for 1e-4.

    Args:
      problem: a loss with a majorizer (`SquaredLoss`, `LogisticLoss`, the hinge losses), without a graph of
        labels, and `ExclusiveGroupL21`.
      init: start, shape of W; default: a step from W = 0 with :math:`\nu = 1`.
      tol: largest accepted gap (or residual), as `sparsejax.admm`.
      maxiter: largest number of steps, >= 0.
      history: number of steps to record; if not 0, every step of the solve is certified.
      epsilon: > 0, shape (), the smoothing at the end, relative to the largest row norm of the first W.
      faithful: use the smoothing at the end from the first step on, as the paper does. By default the
        smoothing starts at the largest row norm of the first W and is halved at every step until it is
        ``epsilon`` times this norm: with a small smoothing, rows near zero stay there for many steps.
      polish: return the prox-gradient point of the last W, which has exact zeros.

    Returns:
      `Solution`; its certificate is of the point that is returned, with or without ``polish``.

    Raises:
      TypeError, ValueError: an unfit problem or argument, before tracing.
    Source: Kong et al., AAAI 2016, Eqs. (10)-(12) and footnote 3; Eq. (11) is mended, and the norms in its
      sums are smoothed too, which the weights in the footnote lack. The paper says that the method typically
      reaches the global minimum in 10-20 steps, which holds where no row vanishes.

    >>> import numpy as np, sparsejax as sj
    >>> loss = sj.losses.SquaredLoss(np.eye(4, 3), np.eye(4, 2))
    >>> problem = sj.Problem(loss, sj.penalties.ExclusiveGroupL21(0.1, sj.groups.from_labels([0, 0, 1])))
    >>> sj.irls(problem).converged.item()
    True
    """
    link = with_flags(LINK, init_given=init is not None, faithful=faithful, polish=polish)
    problem, start, tol, maxiter, history = prepare("irls", problem, init, tol, maxiter, history, unfit)
    smoothing = as_positive("irls: epsilon", epsilon, start.dtype)
    return solved_by(link, problem, start, tol, maxiter, history, (smoothing,))


def unfit(problem: Problem) -> str | None:
    """Why the solver does not take the problem, in words; None if it does."""
    model = problem.smooth.quadratic_model()
    known = model.majorizer is not None and model.laplacian is None
    if known and isinstance(problem.penalty, ExclusiveGroupL21):
        return None
    return (
        "needs a loss with a majorizer in its quadratic_model() (SquaredLoss, LogisticLoss, the hinge "
        f"losses) and ExclusiveGroupL21, got {kinds(problem)}; admm and fista take more."
    )


def _iterated(
    problem: Problem,
    init: jax.Array,
    tol: jax.Array,
    maxiter: jax.Array,
    history: int,
    epsilon: jax.Array,
    init_given: bool,
    faithful: bool,
    polish: bool,
) -> Solution:
    smooth, penalty = problem.smooth, problem.penalty
    ridge = _Ridge(smooth, init)
    first = init if init_given else ridge.step(init, penalty.slopes(jnp.ones(init.shape[0], init.dtype)))
    scale = jnp.max(safe_norm(columns(first)))
    final = epsilon * jnp.where(scale > 0, scale, 1)  # the smoothing at the end
    length = step_length(smooth)

    def iterate(_: jax.Array, s: State) -> State:
        nu = jnp.sqrt(safe_norm(columns(s.W)) ** 2 + s.epsilon**2)
        slopes = penalty.slopes(nu)
        W = ridge.step(s.W, jnp.where(slopes == 0, 0, slopes / nu))  # NaN stays NaN
        return State(W, jnp.maximum(s.epsilon * SMOOTHING_DECAY, final))

    def candidate(s: State) -> jax.Array:
        if not polish:
            return s.W
        return penalty.prox(s.W - length * jax.grad(smooth)(s.W), length)

    algorithm = Algorithm(
        state=State(first, final if faithful else jnp.maximum(final, scale)),
        block=lambda s, n: lax.fori_loop(0, n, iterate, s),
        candidate=candidate,
        step=lambda _: length,
        check_every=STEPS_PER_CHECK,
    )
    return Loop(problem, init, algorithm, tol, maxiter, history, finish=True).run()[0]


class _Ridge:
    """The problems ``min_W f(W) + sum_i F_i ||w_i||^2``."""

    def __init__(self, smooth: Any, init: jax.Array):
        model = smooth.quadratic_model()
        self.smooth, self.A, self.exact = smooth, model.majorizer(), model.exact
        n, d = self.A.shape
        mean = jnp.sum(self.A * self.A) / d
        self.least = MIN_WEIGHT_SHARE * jnp.where(mean > 0, mean, 1)
        self.tall = d <= n
        self.gram = self.A.T @ self.A if self.tall else jnp.zeros((0, 0), self.A.dtype)
        self.linear = -jax.grad(smooth)(jnp.zeros_like(init))

    def solver(self, F: jax.Array) -> Callable[[jax.Array], jax.Array]:
        """The function R -> W that solves (A'A + 2 diag(F)) W = R.

        Rows are scaled by S = 1/sqrt(2F): the matrix S A'A S + I is well conditioned however large F is.
        """
        S = 1 / jnp.sqrt(jnp.maximum(2 * F, self.least))[None]
        eye = jnp.eye(min(self.A.shape), dtype=self.A.dtype)
        if self.tall:
            factor = jax.scipy.linalg.cho_factor(self.gram * (S * S.T) + eye)
            return lambda R: like(S * jax.scipy.linalg.cho_solve(factor, (S * columns(R)).T).T, R)
        B = self.A * S
        factor = jax.scipy.linalg.cho_factor(B @ B.T + eye)

        def solve(R: jax.Array) -> jax.Array:
            Rt = S * columns(R)
            return like(S * (Rt - jax.scipy.linalg.cho_solve(factor, B @ Rt.T).T @ B), R)

        return solve

    def objective(self, W: jax.Array, F: jax.Array) -> jax.Array:
        """``f(W) + sum_i F_i ||w_i||^2``."""
        return self.smooth(W) + jnp.sum(F * jnp.sum(columns(W) ** 2, axis=0))

    def step(self, W: jax.Array, F: jax.Array) -> jax.Array:
        """The minimiser if f is quadratic; else the point after a Newton step from W.

        The step is halved until the objective decreases.
        """
        solve = self.solver(F)
        if self.exact:
            return solve(self.linear)
        G, hessian = jax.linearize(jax.grad(self.smooth), W)
        G = G + 2 * like(columns(W) * F[None], W)
        matvec = lambda D: hessian(D) + 2 * like(columns(D) * F[None], D)
        D, _ = conjugate_gradients(matvec, -G, solve, CG_TOL, MAX_CG_STEPS)
        before, slope = self.objective(W, F), jnp.sum(G * D)
        # Armijo's rule with a share of 1e-4. The last t is 2^-14, the first one below 1e-4.
        too_long = lambda t: ~(self.objective(W + t * D, F) <= before + 1e-4 * t * slope) & (t > 1e-4)
        t = lax.while_loop(too_long, lambda t: t / 2, jnp.ones((), W.dtype))
        # At the precision of the dtype no step decreases the objective: return W.
        return jnp.where(self.objective(W + t * D, F) <= before, W + t * D, W)


LINK = Link("irls", _iterated)
