r"""The derivative of a solution, from the equations it solves rather than from the iterations.

On the support A of :math:`W^\star` (the entries in which the penalty is smooth, see
``penalty.smooth_where``) the optimality conditions are :math:`\nabla F(W;\theta)_A = 0`, with
:math:`\theta` every leaf of the problem: strengths, X, Y, weights, scale, or whatever a plain function holds.
By the implicit function theorem

.. math:: \nabla^2 F(W^\star)_{AA}\; dW_A = -\,\big(\partial_\theta \nabla F(W^\star)\,d\theta\big)_A ,
          \qquad dW = 0 \text{ elsewhere.}

The system is symmetric, so that one linear solve serves forward and reverse mode, under `jax.jit` and
`jax.vmap`, and can be differentiated again. Preconditioned conjugate gradients solve it by Hessian products.
The Hessian is formed for small problems only, where its factorisation is the preconditioner.

* Where the support changes, at a kink of the path, the solution has two one-sided derivatives. The one
  returned keeps the present zeros at zero. At and above `sparsejax.lambda_max` the derivative is 0.
* Dependent columns on the support make the system singular. If it has solutions, the derivative is one of
  them: the one of least norm up to `MAX_DENSE_UNKNOWNS` unknowns, beyond that the one of least norm in the
  metric of the preconditioner. The derivatives of predictions and objective are the same for all of them. If
  the system has no solution, the derivative is NaN.
* The derivative is as accurate as the solution: the relative residual of the system is
  ``3e-2 * sqrt(gap)``, or a hundredth of this if the preconditioner is nearly the inverse; at most 1e-4 and
  at least 1e-11 (1e-6 in float32). If the solution has not converged, its derivative belongs to a nearby
  problem at best; outside jit a warning says so.
* Unless gap or residual is at rounding error (8 eps), Newton steps on the support and the features nearest to
  it first improve the point at which the derivative is taken; the solution that is returned stays as it is.
  If the system is gathered on few features and the support has more, there are no such steps. The number of
  gathered features (`_gathered_size` in support.py) is for data of n rows about n if W has one column and the
  loss a least squares form, else min(k/2, 4) n for k columns; it is at most 512. If the steps do not settle
  the support, and entries that may still leave the support hold more than `MAX_UNSETTLED_SHARE` of the
  derivative, the derivative is NaN.
* A penalty that gives its prox but no support is differentiated through its prox, as a fixed point of the
  prox-gradient step, without these steps and this check.
* Gap, residual and history have no derivative; nothing has a derivative in the start or the tolerance.

Source: the theorem on the support, for the lasso, is in Bertrand et al., JMLR 23, 2022 (sparse-ho).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.checks import is_eager, is_traced, without_gradient
from sparsejax._core.compiled import Compiled
from sparsejax._core.linalg import eps_of, norm, safe_divide
from sparsejax._core.pytree import floating_leaves, movable, moving
from sparsejax._core.shards import marked, per_device, varying_axes
from sparsejax.driver.preconditioners import Product
from sparsejax.driver.support import accurate, settled, solve_on_support
from sparsejax.problem import Problem, flattened, in_units, units_of
from sparsejax.solution import Solution

NOISE = 1e3  # times eps: if J leaves at most this share of a cotangent, J maps it to 0, see `_through_prox`


def attach(problem: Problem, solution: Solution, *, rows: bool) -> Solution:
    """Attach to a solution its derivative in the leaves of the problem.

    One program computes what depends on the solution alone. A second one is linear in the tangent, and JAX
    transposes it. Eager calls and traces use the same two programs.

    Args:
      problem: the problem, traced, perhaps by `jax.grad`.
      solution: the solution of the problem with its gradients stopped.
      rows: whether the units also bring the columns of X to one size, as in `Link`.
    """
    axes = varying_axes((problem, solution))
    if axes:
        values, rebuild = floating_leaves(problem)
        values = tuple(marked(value, axes) for value in values)
        params, objective = _in_shards(rows)(values, lax.stop_gradient(rebuild(values)), solution)
    else:
        params, objective = _attached(rows)(_of_jax(problem), solution)
    return solution._replace(params=params, objective=objective)


def _of_jax(problem: Problem) -> Problem:
    """The problem with leaves that `jax.custom_jvp` takes.

    Inside `jax.jit`, JAX 0.11.2 and earlier fail at the lanes that `jax.vmap` makes of a numpy array
    (AssertionError: "non-canonical constant"). A copy is an array of JAX, and takes no time in a program.
    """
    if is_eager(jax.tree.map(without_gradient, problem)):
        return problem
    return jax.tree.map(lambda leaf: jnp.copy(leaf) if is_traced(leaf) else leaf, problem)


@functools.cache
def _attached(rows: bool) -> Callable[[Problem, Solution], Any]:
    """The function (problem, solution) -> (params, objective) that has the derivative rule."""

    @jax.custom_jvp
    def attached(problem: Problem, solution: Solution) -> Any:
        return solution.params, solution.objective

    @functools.partial(attached.defjvp, symbolic_zeros=True)
    def jvp(primals: Any, tangents: Any) -> Any:
        problem, solution = primals
        params, objective = attached(*primals)
        moves, tangent = moving(tangents[0])
        if not tangent:
            return (params, objective), jax.tree.map(jnp.zeros_like, (params, objective))
        solution = solution._replace(params=params, objective=objective)
        return (params, objective), _apply(_linear(problem, solution, moves=moves, rows=rows), tangent)

    return attached


@functools.cache
def _in_shards(rows: bool) -> Callable[[Any, Problem, Solution], Any]:
    """`_attached` inside a `jax.shard_map`, in reverse mode: each device transposes its own program."""

    @jax.custom_vjp
    def attached(values: Any, problem: Problem, solution: Solution) -> Any:
        return solution.params, solution.objective

    def pullback(problem: Problem, solution: Solution, ct: Any) -> Any:
        values, rebuild = floating_leaves(problem)
        return jax.vjp(lambda values: _attached(rows)(rebuild(values), solution), values)[1](ct)[0]

    def forward(values: Any, problem: Problem, solution: Solution) -> Any:
        return (solution.params, solution.objective), (problem, solution)

    def backward(known: Any, ct: Any) -> Any:
        return per_device(pullback)(*known, ct), None, None

    attached.defvjp(forward, backward)
    return attached


def _linearised(problem: Problem, solution: Solution, *, moves: tuple[bool, ...], rows: bool) -> Any:
    """The derivative of params and objective: a linear function of the tangents of the leaves that move."""
    primal, with_values = movable(problem, moves)

    def answer(values: Any) -> tuple[Any, jax.Array]:
        changed = with_values(values)
        known = units_of(changed, rows)
        units = None if known is None else lax.stop_gradient(known.units)
        W = solution.params if units is None else units.start(solution.params)
        F = solution.objective if units is None else units.start_objective(solution.objective)
        W, F = _attach(in_units(changed, known), W, F, solution.measure)
        return (W, F) if known is None else (known.units.params(W), known.units.objective(F))

    return jax.linearize(answer, primal)[1]


_linear = Compiled(_linearised, ("moves", "rows"), whole=False)
_apply = jax.jit(lambda function, tangent: function(tangent))


@jax.custom_jvp
def _attach(problem: Problem, params: Any, objective: jax.Array, measure: jax.Array) -> tuple[Any, jax.Array]:
    """``params`` and ``objective``, with `_attach_jvp` as the derivative rule in the problem's leaves."""
    return params, objective


@functools.partial(_attach.defjvp, symbolic_zeros=True)
def _attach_jvp(primals: Any, tangents: Any) -> Any:
    problem, _, _, measure = primals
    answer = params, _ = _attach(*primals)
    moves, tangent = moving(tangents[0])
    if not tangent:
        return answer, jax.tree.map(jnp.zeros_like, answer)
    primal, with_values = movable(problem, moves)
    flat_problem, W, restore = flattened(problem, params)
    if "support" not in flat_problem.penalty.provides:
        dW, c = _through_prox(flat_problem, W, with_values, params, primal, tangent, measure)
        _, dF = jax.jvp(lambda values: with_values(values)(params), (primal,), (tangent,))
        # dF also depends on dW = c + Jz where a constraint moves. Only c counts: along Jz the objective is
        # stationary. The slope is NaN where the value has no derivative (a norm at 0); there W stays at 0.
        # An objective that lacks the value of the penalty is not stationary: all of dW counts.
        part = c if flat_problem.penalty._valued else dW
        try:
            slope = jax.grad(flat_problem)(W)
        except (ValueError, TypeError, NotImplementedError):
            # The value of a user's penalty has no derivative in reverse mode, such as a `lax.while_loop`.
            return answer, (restore(dW), jnp.nan * dF)
        return answer, (restore(dW), dF + jnp.vdot(jnp.where(jnp.isnan(slope), 0, slope), part))
    near, unsettled = settled(*lax.stop_gradient((flat_problem, W, measure)))
    W = W + lax.stop_gradient(near - W)  # second derivatives need the dependence of W on ``params``

    def gradient(values: Any) -> jax.Array:
        return jax.grad(flattened(with_values(values), params)[0])(W)

    # The system of the module's docstring: the right-hand side, dW on the support, and the chain rule for dF.
    mask = lax.stop_gradient(flat_problem.penalty.smooth_where(W)).astype(W.dtype)
    rhs = -mask * jax.jvp(gradient, (primal,), (tangent,))[1]
    dW = restore(solve_on_support(flat_problem, W, mask, rhs, measure, unsettled))
    _, dF = jax.jvp(lambda values, W: with_values(values)(W), (primal, params), (tangent, dW))
    return answer, (dW, dF)


def _through_prox(
    problem: Problem,
    W: jax.Array,
    with_values: Callable[[Any], Any],
    params: Any,
    primal: Any,
    tangent: Any,
    measure: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    r"""The derivative dW of the fixed point :math:`W = \operatorname{prox}_{\eta g}(W - \eta\nabla f(W))`.

    This is for a penalty that gives its prox but no support. Let J be the derivative of the prox (symmetric,
    0 <= J <= I), H the Hessian of f, and c the derivative of the right side at fixed W. Then
    ``dW = J(I - eta H) dW + c``, so that ``dW = c + Jz``, where z solves the symmetric system
    ``(J(I - J) + eta JHJ) z = J(I - eta H) c``. Returns dW and c.
    """
    grad, hessian = jax.linearize(jax.grad(problem.smooth), W)
    # Any eta gives the same derivative; this one is 1 / (curvature along the gradient), if that is not 0.
    probe = lax.stop_gradient(jnp.where(jnp.any(grad != 0), grad, jnp.ones_like(grad)))
    curvature = norm(hessian(probe)) / norm(probe)
    eta = lax.stop_gradient(safe_divide(1.0, curvature, 1.0))

    def forward(values: Any, W: jax.Array) -> jax.Array:
        flat_problem, _, _ = flattened(with_values(values), params)
        return flat_problem.penalty.prox(W - eta * jax.grad(flat_problem.smooth)(W), eta)

    c: jax.Array = jax.jvp(lambda values: forward(values, W), (primal,), (tangent,))[1]
    _, J = jax.linearize(lambda V: problem.penalty.prox(V, eta), W - eta * grad)

    def matvec(z: jax.Array) -> jax.Array:
        Jz = J(z)
        return J(z - Jz + eta * hessian(Jz))

    rhs = J(c - eta * hessian(c))

    # c is a second unknown, so that ``solve`` can compare b[0] with b[1], which is c or, in reverse mode, the
    # cotangent. If J maps the cotangent to 0 (on a ball a cotangent along W), b[0] is rounding error, for
    # which no z exists: b[0] then counts as 0.
    def solve(both: Any, b: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        known = norm(b[0]) > NOISE * eps_of(W) * norm(b[1])
        alone: Product = lambda z: both((z, jnp.zeros_like(z)))[0]
        return accurate(alone, jnp.where(known, b[0], 0), lambda r: r, lax.stop_gradient(measure)), b[1]

    system = lambda x: (matvec(x[0]), x[1])
    z, same = lax.custom_linear_solve(system, (rhs, c), solve, symmetric=True)
    return same + J(z), c
