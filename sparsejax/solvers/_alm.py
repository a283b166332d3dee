"""Algorithm 2 of Ming & Ding (IJCAI 2019), as printed; the default is the engine instead."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax.implicit import differentiable
from sparsejax.losses import SquaredLoss
from sparsejax.penalties import L21, ExclusiveL21, ExclusiveLasso, columns, like
from sparsejax.problem import Problem, Solution
from sparsejax.prox import exclusive_l21_columns, l2_columns
from sparsejax.solvers import _admm, _loop

RHO = 1.1
EPS_OBJECTIVE, EPS_SPLIT = 1e-8, 1e-5


class State(NamedTuple):
    W: jax.Array  # (k, d)
    Z: jax.Array  # (k, d)
    multiplier: jax.Array  # Lambda, (k, d)
    R: jax.Array  # Y - XW, (k, n), kept up to date by the row sweep
    nu: jax.Array
    objective: jax.Array
    done: jax.Array  # the paper's stopping rule holds


def alm(
    problem: Problem,
    init: ArrayLike | None = None,
    *,
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
    history: int = 0,
    faithful: bool = False,
) -> Solution:
    r"""The augmented Lagrangian method for exclusive l2,1: mended by default, as printed on request.

    ``faithful=False`` is a call of `sparsejax.admm`, which splits W = Z likewise but solves both steps
    exactly and keeps the penalty parameter bounded, so that it reaches the optimum.

    ``faithful=True`` is the printed algorithm: Z by the prox of the squared l1 norm, one sweep over the
    rows of W by the prox of the l2 norm, then :math:`\Lambda \mathrel{+}= \nu(Z - W)`, :math:`\nu
    \mathrel{*}= 1.1` from :math:`\nu_0 = 1/\|X\|_F`. **It freezes before the optimum**: one sweep an
    iteration is no W-step, and since :math:`\nu \to \infty` satisfies both tests of its stopping rule
    (relative change of the objective <= 1e-8, ``max|Z - W|`` <= 1e-5), it does not notice. Where the
    rule ends the run and the duality gap is above ``tol``, the status is stalled, not converged.

    Args:
      problem: `SquaredLoss` without weights by entry, and `ExclusiveL21`, `L21` or `ExclusiveLasso` of
      any strengths.
      init: start; default zeros. The paper starts at random weights: pass them here; the point at which the
        printed algorithm freezes depends on them.
      tol, maxiter, history: as `sparsejax.admm`.
      faithful: run the paper's Algorithm 2.

    Returns:
      `Solution`; with ``faithful`` its ``params`` is the paper's W, whose rows can be exactly zero but whose
      entries within a row are zero in Z only.

    Raises:
      TypeError, ValueError: an unfit problem or argument, before tracing.
    Source: Ming & Ding, IJCAI 2019, Algorithms 1 and 2, Eqs. (17)-(26); with the loss at scale 1, to
      which the problem is brought by dividing it by ``scale``.
    """
    init, tol, maxiter = _loop.prepare("alm", problem, init, tol, maxiter, history)
    penalty = problem.penalty
    fits = isinstance(penalty, (ExclusiveL21, L21, ExclusiveLasso)) and isinstance(
        problem.smooth, SquaredLoss
    )
    if not fits or not problem.smooth.quadratic:
        raise TypeError(
            "alm needs SquaredLoss (weights by row at most) with ExclusiveL21, L21 or ExclusiveLasso, got "
            f"{type(problem.smooth).__name__} with {type(penalty).__name__}; admm and fista take more."
        )
    if not faithful:
        return _admm.admm(problem, init, tol=tol, maxiter=maxiter, history=history)
    return _alm(problem, init, tol, maxiter, history)


@differentiable("history")
def _alm(problem, init, tol, maxiter, history):
    smooth, penalty = problem.smooth, problem.penalty
    scale = smooth.scale
    # At scale 1, with the weights and the centring of an intercept in X and Y.
    A = smooth.majorizer()
    X = A / jnp.sqrt(2 * scale)
    Yt = columns(smooth.target()) / jnp.sqrt(2 * scale)
    zero = jnp.zeros((), X.dtype)
    alpha = getattr(penalty, "alpha", zero).astype(X.dtype) / scale
    beta = getattr(penalty, "beta", zero).astype(X.dtype) / scale
    squares = jnp.sum(X * X, axis=0)

    def sweep(i, carry):
        """Eqs. (22)-(24): the row w_i, given all others through the residual R = Y - XW."""
        W, R, target, nu = carry
        x, w, a = X[:, i], W[:, i], squares[i]
        b = R @ x + a * w  # x_i'Y_{-i}
        d = (2 * b + target[:, i]) / (2 * a + nu)
        new = l2_columns(d[:, None], jnp.broadcast_to(alpha, (X.shape[1],))[i] / (2 * a + nu))[:, 0]
        return W.at[:, i].set(new), R - jnp.outer(new - w, x), target, nu

    def iterate(s: State) -> State:
        e = s.W - s.multiplier / s.nu
        Z, _ = exclusive_l21_columns(e, zero, beta / s.nu, zero)
        W, R, _, _ = lax.fori_loop(0, X.shape[1], sweep, (s.W, s.R, s.nu * Z + s.multiplier, s.nu))
        multiplier = s.multiplier + s.nu * (Z - W)
        objective = jnp.sum(R * R) + penalty.value(like(W, init)) / scale
        done = jnp.abs(objective - s.objective) <= EPS_OBJECTIVE * s.objective
        done &= jnp.max(jnp.abs(Z - W)) <= EPS_SPLIT
        return State(W, Z, multiplier, R, RHO * s.nu, objective, done)

    Wt = columns(init)
    R = Yt - Wt @ X.T
    objective = jnp.sum(R * R) + penalty.value(init) / scale
    size = jnp.sqrt(jnp.sum(X * X))
    nu = 1 / jnp.where(size > 0, size, 1)
    state = State(Wt, Wt, jnp.zeros_like(Wt), R, nu, objective, jnp.zeros((), bool))
    largest = _loop.smoothness(A)
    solution, _ = _loop.run(
        problem,
        init,
        state,
        lambda s, n: lax.fori_loop(0, n, lambda _, s: iterate(s), s),
        lambda s: like(s.W, init),
        step=lambda _: 1 / jnp.where(largest > 0, largest, 1),
        tol=tol,
        maxiter=maxiter,
        check_every=1,
        history=history,
        ended=lambda s: s.done,
    )
    return solution
