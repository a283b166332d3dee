"""`alm`: a call of `admm`, or with ``faithful=True`` Algorithm 2 of Ming & Ding (IJCAI 2019) as printed."""

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

NU_GROWTH = 1.1  # rho of the paper: every iteration multiplies the penalty parameter nu by this factor
# Limits of the paper's stopping rule, epsilon_1 and epsilon_2: the relative change of the objective in one
# iteration, and the largest entry of |Z - W|. The run ends when both are met.
MAX_OBJECTIVE_CHANGE, MAX_SPLIT_ERROR = 1e-8, 1e-5


class State(NamedTuple):
    """State of the printed algorithm between two iterations; all matrices are stored transposed.

    Z, the copy of W in the exclusive lasso, is not a part: each iteration computes it from the other fields.
    """

    W: jax.Array  # (k, d), the variable of the loss and of the l2,1 norm
    multiplier: jax.Array  # (k, d), Lambda, the multiplier of Z = W
    R: jax.Array  # (k, n), the residual Y - XW; the sweep updates it after every row of W
    nu: jax.Array  # (), the penalty parameter of the next iteration
    objective: jax.Array  # (), the paper's objective at W
    done: jax.Array  # () boolean, whether the paper's stopping rule held after the last iteration


def alm(
    problem: Problem,
    init: ArrayLike | None = None,
    *,
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
    history: int = 0,
    faithful: bool = False,
) -> Solution:
    r"""Minimise by the augmented Lagrangian method for exclusive l2,1: `admm`, or the printed algorithm.

    ``faithful=False`` calls `sparsejax.admm`. It splits W = Z too, with the loss on W and both penalties on
    Z. It solves both steps exactly and keeps the penalty parameter bounded, so that it reaches the optimum.

    ``faithful=True`` runs the printed algorithm, with the loss and the l2,1 norm on W and the exclusive lasso
    on Z. An iteration computes Z by the prox of the squared l1 norm, and each row of W once, in a sweep, by
    the prox of the l2 norm. It then adds :math:`\nu(Z - W)` to :math:`\Lambda` and multiplies :math:`\nu` by
    1.1. :math:`\nu` starts at :math:`1/\|X\|_F` (1 if X is 0). **The algorithm freezes before the optimum**:
    one sweep does not solve the W-step, and the growth of :math:`\nu` alone meets both tests of the stopping
    rule (relative change of the objective <= 1e-8, ``max|Z - W|`` <= 1e-5).

    The run also ends, as converged, once the duality gap is at most ``tol``. If the stopping rule ends the
    run while the gap is above ``tol``, the status is stalled.

    Args:
      problem: `SquaredLoss` with X in memory, not sparse, and without weights by entry; `ExclusiveL21`, `L21`
        or `ExclusiveLasso` of any strengths.
      init: start, shape of W; default zeros. The paper starts at random weights, which you can pass here. The
        point at which the printed algorithm freezes depends on its start.
      tol, maxiter, history: as for `sparsejax.admm`; with ``faithful`` no Newton steps follow a solve that
        stalls.
      faithful: run the paper's Algorithm 2 instead of `sparsejax.admm`.

    Returns:
      `Solution`. With ``faithful`` its ``params`` is the paper's W, not Z: whole rows can be exactly zero,
      while single entries of other rows are not. W is the last one if the stopping rule ends the run, else
      the one with the best certificate.

    Raises:
      TypeError, ValueError: an unfit problem or argument, before tracing.
    Source: Ming & Ding, IJCAI 2019, Algorithm 2, Eqs. (17)-(26); the prox of the library replaces Algorithm 1
      and has the same result. The paper's loss has scale 1: the printed algorithm solves the problem divided
      by the ``scale`` of its loss.

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
        # ``exact`` is False for weights by entry; ``majorizer`` is None if X is sparse or not in memory.
        if model.exact and model.majorizer is not None:
            return None
    return (
        "needs SquaredLoss (X in memory and not sparse, weights by row or none) with ExclusiveL21, L21 or "
        f"ExclusiveLasso, got {kinds(problem)}; admm and fista take more."
    )


def _iterated(
    problem: Problem, init: jax.Array, tol: jax.Array, maxiter: jax.Array, history: int
) -> Solution:
    """The printed algorithm: ``run`` of `LINK`, on a problem that `unfit` has accepted."""
    smooth, penalty = problem.smooth, problem.penalty
    scale, model = smooth.scale, smooth.quadratic_model()
    # With A, B from the model, the loss is 1/2 ||AW - B||^2 + constant. Both contain scale, weights and the
    # centring for an intercept. A division by sqrt(2 scale) gives X and Y of the paper's loss ||XW - Y||^2.
    X = model.majorizer() / jnp.sqrt(2 * scale)
    Yt = columns(model.target()) / jnp.sqrt(2 * scale)
    zero = jnp.zeros((), X.dtype)
    alpha = penalty.alpha if isinstance(penalty, ExclusiveL21 | L21) else zero
    beta = penalty.beta if isinstance(penalty, ExclusiveL21 | ExclusiveLasso) else zero
    alpha, beta = alpha.astype(X.dtype) / scale, beta.astype(X.dtype) / scale
    # The sweep reads one alpha for each feature by its index, and ||x_i||^2, which the paper calls a.
    alphas, squares = jnp.broadcast_to(alpha, (X.shape[1],)), jnp.sum(X * X, axis=0)

    def sweep(i: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        """Minimise over row w_i, the others fixed, by Eqs. (22)-(24); update W and the residual R = Y - XW.

        ``carry`` is W, R, nu Z + Lambda and nu; the last two stay as they are.
        """
        W, R, linear, nu = carry
        x, w, a = X[:, i], W[:, i], squares[i]
        b = R @ x + a * w  # Eq. (22): x_i'Y_{-i} with Y_{-i} = R + x_i w_i, the residual without feature i
        d = (2 * b + linear[:, i]) / (2 * a + nu)  # Eq. (23)
        new = l2_columns(d[:, None], alphas[i] / (2 * a + nu))[:, 0]  # Eq. (24), the prox of the l2 norm at d
        return W.at[:, i].set(new), R - jnp.outer(new - w, x), linear, nu

    def iterate(_: jax.Array, s: State) -> State:
        """One iteration of Algorithm 2, on the augmented Lagrangian L of Eq. (16), with f = ||XW - Y||^2.

        L = f(W) + alpha ||W||_21 + beta sum_i ||z_i||_1^2 + <Lambda, Z - W> + nu/2 ||Z - W||^2.
        """
        # Eqs. (18)-(20): the minimiser Z of L is the prox of beta/nu sum_i ||z_i||_1^2 at e = W - Lambda/nu.
        # The first ``zero`` leaves the l2 norm out of the prox; the second is a guess of its threshold.
        e = s.W - s.multiplier / s.nu
        Z, _ = exclusive_l21_columns(e, zero, beta / s.nu, zero)
        # Eq. (21): in W, L is f(W) + alpha ||W||_21 - <nu Z + Lambda, W> + nu/2 ||W||^2 + constant.
        W, R, _, _ = lax.fori_loop(0, X.shape[1], sweep, (s.W, s.R, s.nu * Z + s.multiplier, s.nu))
        multiplier = s.multiplier + s.nu * (Z - W)  # Eq. (25)
        objective = jnp.sum(R * R) + penalty.value(like(W, init)) / scale  # Eq. (14)
        done = jnp.abs(objective - s.objective) <= MAX_OBJECTIVE_CHANGE * s.objective
        done &= jnp.max(jnp.abs(Z - W)) <= MAX_SPLIT_ERROR
        return State(W, multiplier, R, NU_GROWTH * s.nu, objective, done)  # nu by Eq. (26)

    Wt = columns(init)
    R = Yt - Wt @ X.T
    objective = jnp.sum(R * R) + penalty.value(init) / scale
    nu = safe_divide(1.0, norm(X), 1.0)  # Algorithm 2, line 1; 1 if X is 0
    step = step_length(smooth)  # 1/L, for the residual of the certificate only
    algorithm = Algorithm(
        state=State(Wt, jnp.zeros_like(Wt), R, nu, objective, jnp.zeros((), bool)),
        block=lambda s, n: lax.fori_loop(0, n, iterate, s),
        candidate=lambda s: like(s.W, init),
        step=lambda _: step,
        check_every=1,  # `Loop` reads ``ended`` at certificates only, and any iteration may end the run
        ended=lambda s: s.done,
    )
    return Loop(problem, init, algorithm, tol, maxiter, history).run()[0]


LINK = Link("alm", _iterated)
