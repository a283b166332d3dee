"""How a solver is called: compiled, in units of the data, with the derivative of its answer.

Inside a user's `jax.jit`, `jax.vmap` or the like a solver is one nested program. Called eagerly it is
compiled for a short first call (`Compiled`); what few solves need (the last digits, another solver that takes
over) is a second program, and a derivative is a third, so that `jax.grad` after a solve compiles the solver
no second time.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsejax._core.checks import is_eager, is_traced
from sparsejax._core.compiled import OPTIONS, Compiled, cores, on_device
from sparsejax._core.pytree import movable, moving
from sparsejax.factor import Factor
from sparsejax.hoisting import hoisted
from sparsejax.implicit import attach
from sparsejax.losses import Units
from sparsejax.problem import Problem, Scaled, in_units, units_of
from sparsejax.solution import History, Solution, warn_unconverged

__all__ = [
    "OPTIONS",
    "Compiled",
    "Finish",
    "cores",
    "differentiable",
    "in_users_units",
    "on_device",
    "solve_in_units",
]


class Finish(NamedTuple):
    """What is left of some solves for a second program, which is compiled only if it is needed."""

    # (problem, factor, solution, tol, maxiter) -> solution, all in units of the data
    run: Callable[[Problem, Factor | None, Solution, jax.Array, jax.Array], Solution]
    due: Callable[[Solution, Any, Any], Any]  # (solution, tol, maxiter): whether it is needed
    waits: Callable[[Problem], bool] = lambda problem: True  # whether it needs nothing but the solution


def differentiable(
    *static: str, rows: bool = False, finish: Finish | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Solution]]:
    """Decorate ``solver(problem, init, tol, ...)``: compiled, in units of the data, differentiable.

    ``static`` names its static arguments. A solver returns its `Solution` and, if it has one, its `Factor`,
    with which the derivative is cheaper. Outside jit what did not converge comes with a warning.

    Args:
      rows: in units of each column of X, too.
      finish: what it leaves to a second program if it is called eagerly. Such a solver takes
        ``finish: bool``, False where that is left to this function.
    """

    def decorate(solver: Callable[..., Any]) -> Callable[..., Solution]:
        def whole(eager: bool, problem: Problem, init: Any, *args: Any) -> tuple[Solution, _Kept | None]:
            known = units_of(problem, rows)

            def run(problem: Problem, start: Any) -> tuple[Solution, Factor | None, Factor | None]:
                options = {} if finish is None else {"finish": not (eager and finish.waits(problem))}
                result = solver(problem, start, *args, **options)
                solution, factor = result if type(result) is tuple else (result, None)
                return solution, factor, factor

            solution, factor = solve_in_units(run, problem, init, known)
            # An output takes memory: in a batch once for each of its problems.
            return solution, _Kept(factor, known and known.units.rows) if eager else None

        # jit reads the names of static arguments from the signature
        nested, alone = (functools.wraps(solver)(functools.partial(whole, flag)) for flag in (False, True))
        compiled = Compiled(nested, static, alone, whole=(True, False))

        def end(problem: Problem, kept: _Kept, solution: Solution, *limits: jax.Array) -> Solution:
            assert finish is not None
            known = kept.units_of(problem)
            solution = finish.run(in_units(problem, known), kept.factor, _in_units(solution, known), *limits)
            return in_users_units(solution, known)

        def derivative(problem: Problem, kept: _Kept, solution: Solution) -> Solution:
            known = kept.units_of(problem)
            solution = attach(in_units(problem, known), _in_units(solution, known), kept.factor)
            return in_users_units(solution, known)

        compiled_end, attached = Compiled(end), _with_derivative(derivative)

        @functools.wraps(solver)
        def call(problem: Problem, init: Any, tol: Any, *args: Any) -> Solution:
            problem = hoisted(problem, init)
            constant, *rest = jax.tree.map(_constant, (problem, init, tol, *args))
            solution: Solution
            if is_eager((constant, rest)):
                solution, kept = compiled.alone(constant, *rest)
                limits = rest[1:3]  # tol and maxiter
                light = solution._replace(params=())
                if finish is not None and finish.waits(constant) and _on_host(finish.due, light, *limits):
                    solution = compiled_end.alone(constant, kept, solution, *limits)
                if any(map(is_traced, jax.tree.leaves(problem))):
                    solution = attached(problem, kept, solution)
            else:
                solution, _ = compiled.nested(problem, init, tol, *args)
            warn_unconverged(problem, solution, tol)
            return solution

        return call

    return decorate


def _with_derivative(derivative: Callable[..., Solution]) -> Callable[..., Solution]:
    """What attaches the derivative to an eager solution of a problem that `jax.grad` or the like has traced.

    All that depends on the solution alone is one program, compiled by `Compiled`; what is linear in the
    tangent is another, which JAX transposes.
    """

    def linear(moves: tuple[bool, ...], problem: Problem, kept: _Kept, solution: Solution) -> Any:
        primal, moved = movable(problem, moves)

        def answer(values: Any) -> tuple[Any, jax.Array]:
            found = derivative(moved(values), kept, solution)
            return found.params, found.objective

        return jax.linearize(answer, primal)[1]

    linearised = Compiled(linear, ("moves",), whole=False)
    apply = jax.jit(lambda function, tangent: function(tangent))

    @jax.custom_jvp
    def attached(problem: Problem, kept: _Kept, solution: Solution) -> tuple[Any, jax.Array]:
        return solution.params, solution.objective

    @functools.partial(attached.defjvp, symbolic_zeros=True)
    def jvp(primals: Any, tangents: Any) -> Any:
        problem, kept, solution = primals
        params, objective = attached(*primals)
        moves, tangent = moving(tangents[0])
        if not tangent:
            return (params, objective), jax.tree.map(jnp.zeros_like, (params, objective))
        solution = solution._replace(params=params, objective=objective)
        function = linearised(moves, problem, kept, solution)
        return (params, objective), apply(function, tangent)

    def attach_to(problem: Problem, kept: _Kept, solution: Solution) -> Solution:
        params, objective = attached(problem, kept, solution)
        return solution._replace(params=params, objective=objective)

    return attach_to


class _Kept(NamedTuple):
    """What an eager solve leaves for its finish and its derivative."""

    factor: Factor | None
    rows: jax.Array | None  # units

    def units_of(self, problem: Problem) -> Scaled | None:
        return units_of(problem, False if self.rows is None else self.rows)


def _constant(x: Any) -> Any:
    """Under an eager `jax.grad` the value alone; traced still under jit and vmap."""
    return lax.stop_gradient(x) if is_traced(x) else x


def _on_host(question: Callable[..., Any], *values: Any) -> bool:
    """The answer, by numpy: each of its operations would be compiled first."""
    return bool(question(*jax.tree.map(np.asarray, values)))


def solve_in_units(
    solver: Callable[[Problem, Any], tuple[Solution, Factor | None, Any]],
    problem: Problem,
    init: Any,
    known: Scaled | None,
) -> tuple[Solution, Any]:
    """The solution by ``solver`` with its derivative, and what else it returns; ``known`` by `units_of`.

    The solver sees no gradients; it returns a solution, a decomposition of the curvature or None, and
    anything.
    """
    scaled = in_units(problem, known)
    start = init if known is None else known.units.start(init)
    solution, factor, more = solver(*lax.stop_gradient((scaled, start)))
    return in_users_units(attach(scaled, solution, factor), known), more


def in_users_units(solution: Solution, known: Scaled | None) -> Solution:
    """A solution of the problem in units as one of the problem."""
    if known is None:
        return solution
    units, history = known.units, solution.history
    return solution._replace(
        params=units.params(solution.params),
        objective=units.objective(solution.objective),
        history=History(units.objective(history.objective), history.gap),
    )


def _in_units(solution: Solution, known: Scaled | None) -> Solution:
    if known is None:
        return solution
    units: Units = lax.stop_gradient(known.units)
    history = solution.history
    return solution._replace(
        params=units.start(solution.params),
        objective=units.start_objective(solution.objective),
        history=History(units.start_objective(history.objective), history.gap),
    )
