"""`fista` for a softmax loss, with two products with X in each step and no loop for the intercepts."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import eps_of
from sparsejax.driver import Algorithm, Loop
from sparsejax.driver.curvature import first_step
from sparsejax.losses import SoftmaxLoss
from sparsejax.problem import Problem
from sparsejax.solution import Solution
from sparsejax.solvers._fista import GROWTH, ITERATIONS_PER_CHECK, MAX_HALVINGS


class Point(NamedTuple):
    """W with its predictions, which are linear in W, and an intercept near the best one."""

    W: jax.Array  # (d, k)
    H: jax.Array  # (n, k), XW
    b: jax.Array  # (k,)

    def beyond(self, last: "Point", share: jax.Array) -> "Point":
        """The point on the line from the last one through this one, by a share of their distance further."""
        return Point(*(new + share * (new - old) for new, old in zip(self, last, strict=True)))


class State(NamedTuple):
    """As the state of `fista`, with predictions."""

    at: Point  # the last prox point
    ahead: Point  # the extrapolated point
    t: jax.Array  # (), momentum sequence
    step: jax.Array  # (), 1/L


class _Trial(NamedTuple):
    """A prox-gradient step of some length."""

    at: Point
    step: jax.Array  # ()
    short: jax.Array  # () boolean, whether the quadratic bound holds
    n: jax.Array  # () int32, trials so far


def iterated(problem: Problem, init: jax.Array, tol: jax.Array, maxiter: jax.Array) -> Solution:
    """`fista` without its finish, for a `SoftmaxLoss`, to call inside a compiled program.

    The predictions of the extrapolated point follow from those of the last two points, so that a step needs
    one product XW and one X'U. The intercept follows W by one Newton step in each evaluation; certificates
    use the best intercept.

    Args:
      problem, init, tol, maxiter: as `sparsejax.fista`, checked.

    Returns:
      `Solution`.

    Never raises: the caller has checked the arguments.

    >>> import jax, jax.numpy as jnp, sparsejax as sj
    >>> Y = jax.nn.one_hot(jnp.array([0, 1, 2, 0]), 3)
    >>> problem = sj.Problem(sj.losses.SoftmaxLoss(jnp.eye(4), Y, intercept=True), sj.penalties.L21(0.05))
    >>> bool(iterated(problem, jnp.zeros((4, 3)), jnp.float32(1e-5), jnp.int32(1000)).converged)
    True
    """
    smooth: SoftmaxLoss = problem.smooth
    H = smooth.X @ init
    start = Point(init, H, smooth.near_intercept(H))
    algorithm = Algorithm(
        state=State(start, start, jnp.ones((), init.dtype), first_step(smooth, init)),
        block=lambda s, n: lax.fori_loop(0, n, lambda _, s: _iterate(problem, s), s),
        candidate=lambda s: s.at.W,
        step=lambda s: s.step,
        check_every=ITERATIONS_PER_CHECK,
    )
    return Loop(problem, init, algorithm, tol, maxiter, 0, finish=False).run()[0]


def _iterate(problem: Problem, s: State) -> State:
    """One iteration, as that of `fista`."""
    smooth: SoftmaxLoss = problem.smooth
    V = s.ahead
    value, U, b = smooth.near(V.H, V.b)
    G, V = smooth._gradient(U), V._replace(b=b)
    eps = eps_of(G)

    def attempt(last: _Trial) -> _Trial:
        step = last.step / 2
        W = problem.penalty.prox(V.W - step * G, step)
        D, H = W - V.W, smooth.X @ W
        reached, _, b = smooth.near(H, V.b)
        bound = value + jnp.sum(G * D) + jnp.sum(D * D) / (2 * step)
        rounding = 10 * eps * (jnp.abs(value) + jnp.sum(jnp.abs(G * W)))
        return _Trial(Point(W, H, b), step, reached <= bound + rounding, last.n + 1)

    # The first trial halves this step, which is therefore twice the one to try.
    first = _Trial(V, 2 * GROWTH * s.step, jnp.zeros((), bool), jnp.int32(0))
    found = lax.while_loop(lambda c: ~c.short & (c.n <= MAX_HALVINGS), attempt, first)
    at = found.at
    uphill = jnp.sum((V.W - at.W) * (at.W - s.at.W)) > 0
    t = jnp.where(uphill, 1, s.t)
    t_next = (1 + jnp.sqrt(1 + 4 * t * t)) / 2
    return State(at, at.beyond(s.at, jnp.where(uphill, 0, (t - 1) / t_next)), t_next, found.step)
