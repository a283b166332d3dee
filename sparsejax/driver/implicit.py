r"""The derivative of a solution, from the equations it solves rather than from the iterations.

On the support A of :math:`W^\star` (the entries in which the penalty is smooth, see
``penalty.smooth_where``) the optimality conditions are :math:`\nabla F(W;\theta)_A = 0`, with
:math:`\theta` every leaf of the problem: strengths, X, Y, weights, scale, or whatever a plain function holds.
By the implicit function theorem

.. math:: \nabla^2 F(W^\star)_{AA}\; dW_A = -\,\big(\partial_\theta \nabla F(W^\star)\,d\theta\big)_A ,
          \qquad dW = 0 \text{ elsewhere.}

One symmetric linear solve serves forward and reverse mode, under `jax.jit` and `jax.vmap`, and can
itself be differentiated. It is solved by preconditioned conjugate gradients on Hessian products: the
Hessian is never formed, but for small problems, where its factorisation is the preconditioner.

* Where the support changes (at a kink of the path) the solution has two one-sided derivatives; this is the
  one of the piece on which today's zeros stay zero. At and above `sparsejax.lambda_max` it is 0.
* Dependent columns on the support make the system singular. If it can be solved at all, the derivative
  is one of its solutions: the least-norm one up to `DENSE` unknowns, beyond that the one of least norm in the
  metric of the preconditioner. What does not depend on the choice, such as the derivative of the
  predictions and of the objective, is exact. If it cannot, the solution has no derivative, and it is NaN.
* Its accuracy is that of the solution: the relative residual is ``3e-2 * sqrt(gap)``, at least
  1e-11 (1e-6 in float32). The derivative of a solution that has not converged is that of a
  nearby problem at best; outside jit it comes with a warning.
* Where the support of the solution is not settled, the solution is carried further first, by Newton steps on
  the features that matter, for the derivative alone: what is returned stays as it is. Where these steps
  settle nothing, and more than `DOUBT` of the derivative lies on entries that may still leave the support, it
  is NaN.
* A penalty known by its prox alone is differentiated through its prox: the fixed point of the prox-gradient
  step, without this check.
* Gap, residual and history carry no derivative; the start and the tolerance have none.

Source: the theorem on the support, for the lasso, is in Bertrand et al., JMLR 23, 2022 (sparse-ho).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.compiled import Compiled
from sparsejax._core.linalg import norm, safe_divide
from sparsejax._core.pytree import floating_leaves, movable, moving
from sparsejax.driver.shards import differing, marked, of_each_shard
from sparsejax.driver.support import Product, accurate, settled, solve_on_support
from sparsejax.problem import Problem, flattened, in_units, units_of
from sparsejax.solution import Solution


def attach(problem: Problem, solution: Solution, *, rows: bool) -> Solution:
    """``solution``, of ``problem`` with its gradients stopped, with the derivative of the solution.

    The same eagerly and inside a trace: what depends on the solution alone is one program, what is linear in
    the tangent is another, which JAX transposes.

    Args:
      problem: traced, perhaps by `jax.grad`.
      solution: of its value.
      rows: in units of each column of X, too.
    """
    axes = differing((problem, solution))
    if axes:
        values, rebuild = floating_leaves(problem)
        values = tuple(marked(value, axes) for value in values)
        params, objective = _in_shards(rows)(values, lax.stop_gradient(rebuild(values)), solution)
    else:
        params, objective = _attached(rows)(problem, solution)
    return solution._replace(params=params, objective=objective)


@functools.cache
def _attached(rows: bool) -> Callable[[Problem, Solution], Any]:
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
    """The same inside a `jax.shard_map`, in reverse mode: a device transposes what is its own."""

    @jax.custom_vjp
    def attached(values: Any, problem: Problem, solution: Solution) -> Any:
        return solution.params, solution.objective

    def pullback(problem: Problem, solution: Solution, ct: Any) -> Any:
        values, rebuild = floating_leaves(problem)
        return jax.vjp(lambda values: _attached(rows)(rebuild(values), solution), values)[1](ct)[0]

    def forward(values: Any, problem: Problem, solution: Solution) -> Any:
        return (solution.params, solution.objective), (problem, solution)

    def backward(known: Any, ct: Any) -> Any:
        return of_each_shard(pullback)(*known, ct), None, None

    attached.defvjp(forward, backward)
    return attached


def _linearised(problem: Problem, solution: Solution, *, moves: tuple[bool, ...], rows: bool) -> Any:
    """The derivative of params and objective in the leaves that move, as a function of their tangents."""
    primal, moved = movable(problem, moves)

    def answer(values: Any) -> tuple[Any, jax.Array]:
        changed = moved(values)
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
    return params, objective


@functools.partial(_attach.defjvp, symbolic_zeros=True)
def _attach_jvp(primals: Any, tangents: Any) -> Any:
    problem, params, _, measure = primals
    params, objective = _attach(*primals)
    moves, tangent = moving(tangents[0])
    if not tangent:
        return (params, objective), jax.tree.map(jnp.zeros_like, (params, objective))
    answer = params, objective
    primal, moved = movable(problem, moves)
    flat_problem, W, restore = flattened(problem, params)
    if "support" not in flat_problem.penalty.provides:
        dW = restore(_through_prox(flat_problem, W, moved, params, primal, tangent, measure))
        # By the envelope theorem: at W the objective is flat, and its value may have no derivative there.
        _, dF = jax.jvp(lambda values: moved(values)(params), (primal,), (tangent,))
        return answer, (dW, dF)
    near, loose = settled(*lax.stop_gradient((flat_problem, W, measure)))
    W = W + lax.stop_gradient(near - W)  # so that second derivatives know how it moves

    def gradient(values: Any) -> jax.Array:
        return jax.grad(flattened(moved(values), params)[0])(W)

    mask = lax.stop_gradient(flat_problem.penalty.smooth_where(W)).astype(W.dtype)
    rhs = -mask * jax.jvp(gradient, (primal,), (tangent,))[1]
    dW = restore(solve_on_support(flat_problem, W, mask, rhs, measure, loose))
    _, dF = jax.jvp(lambda values, W: moved(values)(W), (primal, params), (tangent, dW))
    return answer, (dW, dF)


def _through_prox(
    problem: Problem,
    W: jax.Array,
    moved: Callable[[Any], Any],
    params: Any,
    primal: Any,
    tangent: Any,
    measure: jax.Array,
) -> jax.Array:
    r"""The derivative of the fixed point :math:`W = \operatorname{prox}_{\eta g}(W - \eta\nabla f(W))`.

    For a penalty known by its prox alone. With J the derivative of the prox (symmetric, 0 <= J <= I), H the
    Hessian of f and c the change of the right side at fixed W: ``dW = J(I - eta H) dW + c``. So ``dW =
    c + Jz``, where z solves the symmetric system ``(J(I - J) + eta JHJ) z = J(I - eta H) c``.
    """
    grad, hessian = jax.linearize(jax.grad(problem.smooth), W)
    # Any step will do; this one is 1 / (curvature along the gradient), where there is one.
    probe = lax.stop_gradient(jnp.where(jnp.any(grad != 0), grad, jnp.ones_like(grad)))
    curvature = norm(hessian(probe)) / norm(probe)
    eta = lax.stop_gradient(safe_divide(1.0, curvature, 1.0))

    def forward(values: Any, W: jax.Array) -> jax.Array:
        flat_problem, _, _ = flattened(moved(values), params)
        return flat_problem.penalty.prox(W - eta * jax.grad(flat_problem.smooth)(W), eta)

    c: jax.Array = jax.jvp(lambda values: forward(values, W), (primal,), (tangent,))[1]
    _, J = jax.linearize(lambda V: problem.penalty.prox(V, eta), W - eta * grad)

    def matvec(z: jax.Array) -> jax.Array:
        Jz = J(z)
        return J(z - Jz + eta * hessian(Jz))

    rhs = J(c - eta * hessian(c))

    def solve(matvec: Product, b: jax.Array) -> jax.Array:
        return accurate(matvec, b, lambda r: r, lax.stop_gradient(measure))

    z = lax.custom_linear_solve(matvec, rhs, solve, symmetric=True)
    return c + J(z)
