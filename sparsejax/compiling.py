"""How a solver is called: compiled, in units of the data, with the derivative of its answer.

Inside a user's `jax.jit`, `jax.vmap` or the like a solver is one nested program. Called eagerly it is
compiled for a short first call (`OPTIONS`); a solve that ends at the floor of its dtype is finished by a
second program, and a derivative is a third, so that `jax.grad` after a solve compiles the solver no second
time.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from sparsejax._core.checks import is_eager, is_traced
from sparsejax._core.linalg import eps_of
from sparsejax.factor import Factor
from sparsejax.hoisting import hoisted
from sparsejax.implicit import attach
from sparsejax.losses import Units
from sparsejax.problem import Problem, Scaled, in_units, units_of
from sparsejax.solution import CONVERGED, STALLED, History, Solution, warn_unconverged

# Of XLA, for an eager call on a CPU: half the time to compile the same kernels, which run as fast.
OPTIONS = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_backend_optimization_level": 1,
    "xla_cpu_parallel_codegen_split_count": 1,
}


class Compiled:
    """A function compiled with `OPTIONS` for eager calls, where it may be another; nested without."""

    def __init__(
        self,
        function: Callable[..., Any],
        static: tuple[str, ...] = (),
        eager: Callable[..., Any] | None = None,
    ):
        alone = function if eager is None else eager
        self.nested = jax.jit(function, static_argnames=static)
        self.eager = jax.jit(alone, static_argnames=static)
        self.quick = jax.jit(alone, static_argnames=static, compiler_options=dict(OPTIONS))
        self.accepted = True  # the options, by this version of XLA

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it, `alone` where nothing is traced."""
        call = self.alone if is_eager((args, kwargs)) else self.nested
        return call(*args, **kwargs)

    def alone(self, *args: Any, **kwargs: Any) -> Any:
        """Call it where nothing is traced."""
        args = _placed(args)
        if self.accepted and jax.default_backend() == "cpu":
            try:
                return self.quick(*args, **kwargs)
            except jax.errors.JaxRuntimeError as error:
                if "compile option" not in str(error):
                    raise
                self.accepted = False
        return self.eager(*args, **kwargs)


# (problem, factor, solution, tol) -> solution, all in units of the data.
Finish = Callable[[Problem, Factor | None, Solution, jax.Array], Solution]


def differentiable(
    *static: str, rows: bool = False, finish: Finish | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Solution]]:
    """Decorate ``solver(problem, init, tol, ...)``: compiled, in units of the data, differentiable.

    ``static`` names its static arguments. A solver returns its `Solution` and, if it has one, its `Factor`,
    with which the derivative is cheaper. Outside jit what did not converge comes with a warning.

    Args:
      rows: in units of each column of X, too.
      finish: how a solution at the floor of its dtype is finished. Such a solver takes ``finish: bool``,
        False where that is left to this function.
    """

    def decorate(solver: Callable[..., Any]) -> Callable[..., Solution]:
        def whole(eager: bool, problem: Problem, init: Any, *args: Any) -> tuple[Solution, Factor | None]:
            def run(problem: Problem, start: Any) -> tuple[Solution, Factor | None, Factor | None]:
                known = {} if finish is None else {"finish": not (eager and _can_wait(problem))}
                result = solver(problem, start, *args, **known)
                solution, factor = result if type(result) is tuple else (result, None)
                # An output takes memory: in a batch once for each of its problems.
                return solution, factor, factor if eager else None

            return solve_in_units(run, problem, init, units_of(problem, rows))

        # jit reads the names of static arguments from the signature
        nested, alone = (functools.wraps(solver)(functools.partial(whole, flag)) for flag in (False, True))
        compiled = Compiled(nested, static, alone)

        def end(problem: Problem, factor: Factor | None, solution: Solution, tol: jax.Array) -> Solution:
            assert finish is not None
            known = units_of(problem, rows)
            solution = finish(in_units(problem, known), factor, _in_units(solution, known), tol)
            return _in_users_units(solution, known)

        def derivative(problem: Problem, factor: Factor | None, solution: Solution) -> Solution:
            known = units_of(problem, rows)
            return _in_users_units(
                attach(in_units(problem, known), _in_units(solution, known), factor), known
            )

        compiled_end, compiled_derivative = Compiled(end), jax.jit(derivative)

        @functools.wraps(solver)
        def call(problem: Problem, init: Any, tol: Any, *args: Any) -> Solution:
            problem = hoisted(problem, init)
            constant, *rest = jax.tree.map(_constant, (problem, init, tol, *args))
            solution: Solution
            if is_eager((constant, rest)):
                solution, factor = compiled.alone(constant, *rest)
                if finish is not None and _can_wait(constant) and _at_the_floor(solution, rest[1]):
                    solution = compiled_end.alone(constant, factor, solution, rest[1])
                if any(map(is_traced, jax.tree.leaves(problem))):
                    solution = compiled_derivative(problem, factor, solution)
            else:
                solution, _ = compiled.nested(problem, init, tol, *args)
            warn_unconverged(problem, solution, tol)
            return solution

        return call

    return decorate


def _placed(tree: Any) -> Any:
    """On their device for good, where there is but one: jit compiles anew for what a user has put there."""
    if jax.device_count() > 1:
        return tree
    leaves, treedef = jax.tree.flatten(tree)
    loose = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array) and not leaf.committed]
    placed = jax.device_put([leaves[i] for i in loose], jax.devices()[0])
    for i, leaf in zip(loose, placed, strict=True):
        leaves[i] = leaf
    return jax.tree.unflatten(treedef, leaves)


def _constant(x: Any) -> Any:
    """Under an eager `jax.grad` the value alone; traced still under jit and vmap."""
    return lax.stop_gradient(x) if is_traced(x) else x


def _can_wait(problem: Problem) -> bool:
    """The finish needs nothing but W."""
    return "support" in problem.penalty.provides and len(problem.penalty.terms) == 1


def _at_the_floor(solution: Solution, tol: Any) -> bool:
    status, below = int(solution.status), float(tol) < 2 * eps_of(solution.objective)
    return status == STALLED or (status == CONVERGED and below)


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
    return _in_users_units(attach(scaled, solution, factor), known), more


def _in_users_units(solution: Solution, known: Scaled | None) -> Solution:
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
