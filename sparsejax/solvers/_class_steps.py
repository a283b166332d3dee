"""`fista` for a softmax loss, with two products with X in each step and no loop for the intercepts."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import eps_of
from sparsejax._core.matrices.products import times
from sparsejax.driver import Algorithm, Loop
from sparsejax.losses import Facts, SoftmaxLoss
from sparsejax.problem import Problem
from sparsejax.solution import Solution
from sparsejax.solvers._fista import ITERATIONS_PER_CHECK, MAX_HALVINGS, longer


class Point(NamedTuple):
    """W with its predictions, which are linear in W, and an intercept near the best one."""

    W: jax.Array  # (d, k)
    H: jax.Array  # (n, k), XW
    b: jax.Array  # (k,)

    def beyond(self, last: "Point", share: jax.Array) -> "Point":
        """This point plus ``share`` times the change from the point ``last`` to this point."""
        return Point(*(new + share * (new - old) for new, old in zip(self, last, strict=True)))


class State(NamedTuple):
    """As the state of `fista`, with predictions and without a momentum sequence."""

    at: Point  # the last prox point
    ahead: Point  # the extrapolated point
    step: jax.Array  # (), 1/L


class _Trial(NamedTuple):
    """A prox-gradient step that backtracking tries."""

    at: Point  # the point after the step
    step: jax.Array  # (), the step size
    short: jax.Array  # () boolean, whether the step is short enough: the quadratic bound holds
    n: jax.Array  # () int32, trials so far


def iterated(
    problem: Problem, init: jax.Array, step: jax.Array, tol: jax.Array, maxiter: jax.Array
) -> tuple[Solution, jax.Array]:
    """`fista` without its finish, for a `SoftmaxLoss`, to call inside a compiled program.

    The predictions of the extrapolated point follow from those of the last two points, so that a step needs
    one product XW and one product of X' with the slopes. Each evaluation moves the intercept by a single
    Newton step. Intercept and gap are therefore nearly right only, and the caller certifies the answer. The
    momentum of greedy FISTA (Liang, Luo & Schoenlieb, SIAM Journal on Scientific Computing 44(3), 2022) takes
    a sixth fewer steps here than the momentum of `fista`.

    Args:
      problem, init, tol, maxiter: as `sparsejax.fista`, checked.
      step: a first estimate of 1/L, such as the step of a similar problem.

    Returns:
      `Solution`, and the last step.

    Never raises: the caller has checked the arguments.

    >>> import jax, jax.numpy as jnp, sparsejax as sj
    >>> Y = jax.nn.one_hot(jnp.array([0, 1, 2, 0]), 3)
    >>> problem = sj.Problem(sj.losses.SoftmaxLoss(jnp.eye(4), Y, intercept=True), sj.penalties.L21(0.05))
    >>> options = jnp.asarray(1.0), jnp.asarray(1e-5), jnp.int32(1000)
    >>> bool(iterated(problem, jnp.zeros((4, 3)), *options)[0].converged)
    True
    """
    smooth: SoftmaxLoss = problem.smooth
    H = times(smooth.X, init)
    start = Point(init, H, smooth.near_intercept(H))
    algorithm = Algorithm(
        state=State(start, start, step),
        block=lambda s, n: lax.fori_loop(0, n, lambda _, s: _iterate(problem, s), s),
        candidate=lambda s: s.at.W,
        step=lambda s: s.step,
        check_every=ITERATIONS_PER_CHECK,
        facts=lambda s, W: _facts(smooth, s.at),
    )
    solution, state = Loop(problem, init, algorithm, tol, maxiter, 0).run()
    return solution, state.step


def _facts(smooth: SoftmaxLoss, at: Point) -> Facts:
    """The facts of the loss at a point, with an intercept one Newton step from the point's intercept."""
    near = smooth.near(at.H, at.b)
    rounding = 10 * eps_of(near.value) * jnp.abs(near.value)
    return Facts(near.value, times(smooth.X, near.slopes, transposed=True), rounding, None, near.H)


def _iterate(problem: Problem, s: State) -> State:
    """One iteration of `fista` with another momentum: 0 if the last step points uphill, else 1.

    1 is the limit of the momentum in `fista`.
    """
    smooth: SoftmaxLoss = problem.smooth
    near = smooth.near(s.ahead.H, s.ahead.b)
    G, V = times(smooth.X, near.slopes, transposed=True), s.ahead._replace(b=near.b)
    eps = eps_of(G)

    def attempt(last: _Trial) -> _Trial:
        step = last.step / 2
        W = problem.penalty.prox(V.W - step * G, step)
        D, H = W - V.W, times(smooth.X, W)
        reached = smooth.near(H, V.b)
        bound = near.value + jnp.sum(D * (G + D / (2 * step)))
        rounding = 10 * eps * (jnp.abs(near.value) + jnp.sum(jnp.abs(G * W)))
        return _Trial(Point(W, H, reached.b), step, reached.value <= bound + rounding, last.n + 1)

    # The first trial halves this step, which is therefore twice the one to try.
    first = _Trial(V, 2 * longer(s.step), jnp.zeros((), bool), jnp.int32(0))
    found = lax.while_loop(lambda c: ~c.short & (c.n <= MAX_HALVINGS), attempt, first)
    at = found.at
    uphill = jnp.sum((V.W - at.W) * (at.W - s.at.W)) > 0
    return State(at, at.beyond(s.at, jnp.where(uphill, 0.0, 1.0).astype(G.dtype)), found.step)
