"""Choosing strengths by the gradient of a held-out loss."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.typing import ArrayLike

from sparsejax._pytree import Pytree, as_float, is_traced, split_floating
from sparsejax.problem import Problem, Solution, check_problem, measure_of
from sparsejax.solve import solve
from sparsejax.solvers import _loop

# In units of the logarithm: the first step multiplies or divides each strength by e, later ones by less. The
# best of six tried from four starts on yale and glioma (adam at constant rates, rprop, signs).
OPTIMISER = optax.adam(optax.exponential_decay(1.0, 1, 0.9), b1=0.5, b2=0.9)


class Tried(NamedTuple):
    """Every solve in its order; NaN after the last."""

    penalties: Any  # strengths with a leading axis (maxiter,)
    loss: jax.Array  # (maxiter,), held out
    slope: jax.Array  # (maxiter,), norm of the gradient in the log strengths that the bounds leave free
    measure: jax.Array  # (maxiter,), the certificate of each solve


class Tuning(Pytree, leaves=("penalty", "solution", "loss", "num_solves", "converged", "tried")):
    """The best that was tried.

    Attributes:
      penalty: the problem's, with the strengths of least held-out loss.
      solution: the solution there.
      loss: its held-out loss.
      num_solves: () int32.
      converged: the slope fell below tol before ``maxiter`` solves.
      tried: `Tried`.
    """

    penalty: Any
    solution: Solution
    loss: jax.Array
    num_solves: jax.Array
    converged: jax.Array
    tried: Tried

    def __init__(self, penalty, solution, loss, num_solves, converged, tried):
        self._set(
            penalty=penalty, solution=solution, loss=loss, num_solves=num_solves, converged=converged,
            tried=tried,
        )  # fmt: skip


def tune(
    problem: Problem,
    held_out: Any,
    *,
    low: ArrayLike = 1e-3,
    high: ArrayLike = 1e3,
    optimizer: optax.GradientTransformation = OPTIMISER,
    tol: ArrayLike = 1e-3,
    maxiter: int = 20,
    solver_tol: ArrayLike | None = None,
    solver_maxiter: ArrayLike = 20_000,
) -> Tuning:
    r"""Minimise a held-out loss over all strengths of the penalty at once, by gradient.

    .. math:: \min_{\log\lambda}\; h(W^\star(\lambda)), \qquad
              W^\star(\lambda) = \arg\min_W f(W) + g_\lambda(W),

    by an optax optimiser on :math:`\log\lambda` with the derivative of the solution
    (`sparsejax.implicit`), each solve starting from the last. The function is neither convex nor smooth
    where the support changes: begin where some weights are nonzero, such as ``lambda_max / 10``; above
    lambda_max every slope is 0.

    Args:
      problem: its loss is the one trained; its strengths, all > 0, are the start.
      held_out: the loss h, W -> (); a loss of this library (then with the intercept of the fit), or any
        callable pytree.
      low, high: the strengths stay within these multiples of the start.
      optimizer: of the log strengths; any optax gradient transformation.
      tol: stop when the norm of the gradient in the log strengths that are not held by a bound is at
        most tol times the held-out loss.
      maxiter: solves, at most.
      solver_tol, solver_maxiter: ``tol`` and ``maxiter`` of `sparsejax.solve`.

    Returns:
      `Tuning`: the best of all tried, not the last.

    Raises:
      TypeError, ValueError: an unfit argument, a strength of 0, before tracing.
    Source: implicit differentiation for the lasso family: Bertrand et al., JMLR 23, 2022.
    """
    check_problem("tune", problem)
    if not callable(held_out) or isinstance(held_out, type):
        raise TypeError(f"tune: held_out must be callable, W -> (), got {type(held_out).__name__}.")
    for leaf in split_floating(problem.penalty)[0]:
        if not is_traced(leaf) and not (np.asarray(leaf) > 0).all():
            raise ValueError("tune: every strength must be > 0: at 0 its logarithm has nowhere to start.")
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(f"tune: optimizer must be an optax.GradientTransformation, got {optimizer!r}.")
    if isinstance(maxiter, bool) or not isinstance(maxiter, int) or maxiter < 1:
        raise ValueError(f"tune: maxiter must be an integer >= 1, got {maxiter!r}.")
    init, solver_tol, solver_maxiter = _loop.prepare("tune", problem, None, solver_tol, solver_maxiter, 0)
    low, high, tol = (as_float(name, x, (0,), init.dtype) for name, x in zip(
        ("low", "high", "tol"), (low, high, tol), strict=True
    ))  # fmt: skip
    if not any(map(is_traced, (low, high))) and not 0 < np.asarray(low) <= 1 <= np.asarray(high):
        raise ValueError(f"tune: 0 < low <= 1 <= high is needed, got low {low:g} and high {high:g}.")
    return _tune(problem, held_out, init, low, high, tol, solver_tol, solver_maxiter, optimizer, maxiter)


@partial(jax.jit, static_argnames=("optimizer", "maxiter"))
def _tune(problem, held_out, init, low, high, tol, solver_tol, solver_maxiter, optimizer, maxiter):
    strengths, rebuild = split_floating(problem.penalty)
    start = jax.tree.map(jnp.log, strengths)

    def judge(logs, init):
        penalty = rebuild(jax.tree.map(jnp.exp, logs))
        solution = solve(problem._replace(penalty=penalty), init, tol=solver_tol, maxiter=solver_maxiter)
        W = solution.params
        if hasattr(held_out, "evaluate") and hasattr(problem.smooth, "intercept"):
            return held_out.evaluate(W, problem.smooth.intercept(W)), solution
        return held_out(W), solution

    class Carry(NamedTuple):
        logs: Any
        optimizer: Any
        init: jax.Array
        best: Any  # (loss, logs, solution)
        n: jax.Array
        done: jax.Array
        tried: Tried

    def body(c):
        (loss, solution), grad = jax.value_and_grad(judge, has_aux=True)(c.logs, c.init)
        # A slope that points out of the box is no slope.
        free = jax.tree.map(
            lambda g, x, x0: jnp.where(
                ((x <= x0 + jnp.log(low)) & (g > 0)) | ((x >= x0 + jnp.log(high)) & (g < 0)), 0, g
            ),
            grad, c.logs, start,
        )  # fmt: skip
        slope = optax.tree.norm(free)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes types, whatever the user has forbidden
            updates, state = optimizer.update(grad, c.optimizer, c.logs)
        logs = jax.tree.map(
            lambda x, u, x0: jnp.clip(x + u, x0 + jnp.log(low), x0 + jnp.log(high)), c.logs, updates, start
        )
        better = loss < c.best[0]
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), (loss, c.logs, solution), c.best)
        new = Tried(jax.tree.map(jnp.exp, c.logs), loss, slope, measure_of(solution))
        tried = jax.tree.map(lambda h, x: h.at[c.n].set(x), c.tried, new)
        done = slope <= tol * jnp.abs(loss)
        return Carry(logs, state, solution.params, best, c.n + 1, done, tried)

    shapes = jax.eval_shape(judge, start, init)[1]
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (start, shapes))
    dtype = init.dtype
    empty = Tried(
        jax.tree.map(lambda x: jnp.full((maxiter, *x.shape), jnp.nan, x.dtype), strengths),
        *(jnp.full((maxiter,), jnp.nan, dtype) for _ in range(3)),
    )
    best = (jnp.full((), jnp.inf, dtype), *nothing)
    carry = Carry(start, optimizer.init(start), init, best, jnp.int32(0), jnp.zeros((), bool), empty)
    c = lax.while_loop(lambda c: ~c.done & (c.n < maxiter), body, carry)
    loss, logs, solution = c.best
    tried = c.tried._replace(penalties=rebuild(c.tried.penalties))
    return Tuning(rebuild(jax.tree.map(jnp.exp, logs)), solution, loss, c.n, c.done, tried)
