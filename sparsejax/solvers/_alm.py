"""Algorithm 2 of Ming & Ding (IJCAI 2019), as printed on request; by default a call of `admm`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checks import check_bool
from sparsejax._core.linalg import columns, like, norm, safe_divide
from sparsejax.driver import Algorithm, Link, Loop, kinds, prepare
from sparsejax.driver.curvature import step_length
from sparsejax.losses import SquaredLoss
from sparsejax.penalties import L21, ExclusiveL21, ExclusiveLasso
from sparsejax.problem import Problem
from sparsejax.prox import exclusive_l21_columns, l2_columns
from sparsejax.solution import Solution
from sparsejax.solvers._admm import LINK as ADMM
from sparsejax.solvers._chains import solved_by

NU_GROWTH = 1.1  # factor of nu at every iteration (rho in the paper)
# The paper's stopping rule: the largest relative change of the objective, and the largest entry of |Z - W|.
MAX_OBJECTIVE_CHANGE, MAX_SPLIT_ERROR = 1e-8, 1e-5


class State(NamedTuple):
    """State of the printed algorithm, on transposes."""

    W: jax.Array  # (k, d), the variable of the loss and of the l2,1 norm
    Z: jax.Array  # (k, d), the variable of the exclusive lasso
    multiplier: jax.Array  # (k, d), Lambda
    R: jax.Array  # (k, n), the residual Y - XW; the sweep updates it after every row of W
    nu: jax.Array  # (), the penalty parameter
    objective: jax.Array  # (), the paper's objective at W
    done: jax.Array  # (), whether the paper's stopping rule holds


def alm(
    problem: Problem,
    init: ArrayLike | None = None,
    *,
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
    history: int = 0,
    faithful: bool = False,
) -> Solution:
    r"""The augmented Lagrangian method for exclusive l2,1: `admm` by default, as printed on request.

    ``faithful=False`` is a call of `sparsejax.admm`, which splits W = Z likewise but solves both steps
    exactly and keeps the penalty parameter bounded, so that it reaches the optimum.

    ``faithful=True`` is the printed algorithm: Z by the prox of the squared l1 norm, one sweep over the
    rows of W by the prox of the l2 norm, then :math:`\Lambda \mathrel{+}= \nu(Z - W)`, :math:`\nu
    \mathrel{*}= 1.1` from :math:`\nu_0 = 1/\|X\|_F` (1 if X is 0). **It freezes before the optimum**: one
    sweep does not solve the W-step, and a growing :math:`\nu` alone meets both tests of the stopping rule
    (relative change of the objective <= 1e-8, ``max|Z - W|`` <= 1e-5). If the rule ends the run while the
    duality gap is above ``tol``, the status is stalled, not converged.

    Args:
      problem: `SquaredLoss` with X in memory, not sparse, and without weights by entry; `ExclusiveL21`, `L21`
        or `ExclusiveLasso` of any strengths.
      init: start; default zeros. The paper starts at random weights: pass them here; the point at which the
        printed algorithm freezes depends on them.
      tol, maxiter, history: as `sparsejax.admm`; with ``faithful`` no Newton steps end a solve.
      faithful: run the paper's Algorithm 2.

    Returns:
      `Solution`; with ``faithful`` its ``params`` is the paper's W, whose rows can be exactly zero but whose
      entries within a row are zero in Z only.

    Raises:
      TypeError, ValueError: an unfit problem or argument, before tracing.
    Source: Ming & Ding, IJCAI 2019, Algorithms 1 and 2, Eqs. (17)-(26). The paper's loss has scale 1, so that
      the printed algorithm works on the problem divided by the ``scale`` of its loss.

    >>> import numpy as np, sparsejax as sj
    >>> problem = sj.Problem(sj.losses.SquaredLoss(np.eye(4, 3), np.eye(4, 2)), sj.penalties.L21(0.0625))
    >>> sj.alm(problem).converged.item()
    True
    """
    check_bool("alm: faithful", faithful)
    return solved_by(LINK if faithful else ADMM, *prepare("alm", problem, init, tol, maxiter, history, unfit))


def unfit(problem: Problem) -> str | None:
    """Why the solver does not take the problem, in words; None if it does."""
    known = isinstance(problem.penalty, (ExclusiveL21, L21, ExclusiveLasso))
    if known and isinstance(problem.smooth, SquaredLoss):
        model = problem.smooth.quadratic_model()
        if model.exact and model.majorizer is not None:
            return None
    return (
        "needs SquaredLoss (X in memory and not sparse, weights by row at most) with ExclusiveL21, L21 or "
        f"ExclusiveLasso, got {kinds(problem)}; admm and fista take more."
    )


def _iterated(
    problem: Problem, init: jax.Array, tol: jax.Array, maxiter: jax.Array, history: int
) -> Solution:
    smooth, penalty = problem.smooth, problem.penalty
    scale, model = smooth.scale, smooth.quadratic_model()
    # The paper's loss has scale 1. Weights and the centring for an intercept are applied to X and Y.
    X = model.majorizer() / jnp.sqrt(2 * scale)
    Yt = columns(model.target()) / jnp.sqrt(2 * scale)
    zero = jnp.zeros((), X.dtype)
    alpha = penalty.alpha if isinstance(penalty, ExclusiveL21 | L21) else zero
    beta = penalty.beta if isinstance(penalty, ExclusiveL21 | ExclusiveLasso) else zero
    alpha, beta = alpha.astype(X.dtype) / scale, beta.astype(X.dtype) / scale
    alphas, squares = jnp.broadcast_to(alpha, (X.shape[1],)), jnp.sum(X * X, axis=0)

    def sweep(i: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        """Eqs. (22)-(24): a new row w_i; the other rows enter through the residual R = Y - XW."""
        W, R, target, nu = carry
        x, w, a = X[:, i], W[:, i], squares[i]
        b = R @ x + a * w  # x_i'Y_{-i}
        d = (2 * b + target[:, i]) / (2 * a + nu)
        new = l2_columns(d[:, None], alphas[i] / (2 * a + nu))[:, 0]
        return W.at[:, i].set(new), R - jnp.outer(new - w, x), target, nu

    def iterate(_: jax.Array, s: State) -> State:
        # L = f(W) + alpha ||W||_21 + beta sum_i ||z_i||_1^2 + <Lambda, Z - W> + nu/2 ||Z - W||^2. Its minimum
        # over Z is the prox at W - Lambda/nu. Beside f, its linear term in W is -<nu Z + Lambda, W>.
        e = s.W - s.multiplier / s.nu
        Z, _ = exclusive_l21_columns(e, zero, beta / s.nu, zero)
        W, R, _, _ = lax.fori_loop(0, X.shape[1], sweep, (s.W, s.R, s.nu * Z + s.multiplier, s.nu))
        multiplier = s.multiplier + s.nu * (Z - W)
        objective = jnp.sum(R * R) + penalty.value(like(W, init)) / scale
        done = jnp.abs(objective - s.objective) <= MAX_OBJECTIVE_CHANGE * s.objective
        done &= jnp.max(jnp.abs(Z - W)) <= MAX_SPLIT_ERROR
        return State(W, Z, multiplier, R, NU_GROWTH * s.nu, objective, done)

    Wt = columns(init)
    R = Yt - Wt @ X.T
    objective = jnp.sum(R * R) + penalty.value(init) / scale
    nu, step = safe_divide(1.0, norm(X), 1.0), step_length(smooth)
    algorithm = Algorithm(
        state=State(Wt, Wt, jnp.zeros_like(Wt), R, nu, objective, jnp.zeros((), bool)),
        block=lambda s, n: lax.fori_loop(0, n, iterate, s),
        candidate=lambda s: like(s.W, init),
        step=lambda _: step,
        check_every=1,
        ended=lambda s: s.done,
    )
    return Loop(problem, init, algorithm, tol, maxiter, history).run()[0]


LINK = Link("alm", _iterated)
