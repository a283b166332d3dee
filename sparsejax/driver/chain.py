"""Chains of solvers: if a solver stops without an answer, the next one continues from its last point.

Every solver is called through `run`. A link gets a problem of arrays, without derivatives, in units of its
data. In an eager call each link is a program of its own, compiled when it is first needed; inside a user's
`jax.jit`, `jax.vmap` or another trace the whole chain is one program. Both return the same solution, by the
same links; but an eager call skips a first link that ``declines`` the problem.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax._core.checks import is_eager, is_traced, without_gradient
from sparsejax._core.compiled import Compiled
from sparsejax._core.linalg import apply_if, eps_of
from sparsejax.driver.batching import by_lanes, never
from sparsejax.driver.implicit import attach
from sparsejax.driver.loop import finish
from sparsejax.penalties import feasible
from sparsejax.problem import Problem, Scaled, flattened, in_units, units_of
from sparsejax.solution import CONVERGED, MAX_ITER, STALLED, History, Solution, number_of, warn_unconverged


def unfinished(solution: Solution, tol: jax.Array, maxiter: jax.Array) -> jax.Array:
    """Whether a link has stopped before ``maxiter`` without an answer: the default ``due`` of a `Link`.

    Args:
      solution: the `Solution` so far.
      tol, maxiter: the tolerance and the number of iterations of the whole chain.

    Returns:
      A boolean array: the status is ``MAX_ITER`` after fewer than ``maxiter`` iterations.

    Never raises.

    >>> import numpy as np, sparsejax as sj
    >>> problem = sj.Problem(sj.losses.SquaredLoss(np.eye(2), np.ones(2)), sj.penalties.L1(0.1))
    >>> bool(unfinished(sj.solve(problem), 1e-6, 100))
    False
    """
    return (solution.status == MAX_ITER) & (solution.num_iters < maxiter)


def at_the_floor(solution: Solution, tol: jax.Array, maxiter: jax.Array) -> jax.Array:
    """Whether rounding errors ended the solve: it stalled, or tol is below what a certificate can resolve."""
    status, below = solution.status, tol < 2 * eps_of(solution.objective)
    return (status == STALLED) | ((status == CONVERGED) & below)


@dataclass(frozen=True)
class Link:
    """A solver in a chain. Links with equal attributes are equal, so that equal chains are compiled once.

    Attributes:
      name: the solver's name, which `Solution.solver` returns.
      run: ``run(problem, start, tol, maxiter, history, *arrays, **options) -> Solution``.
      rows: whether the units of this link also bring the columns of X to about one size.
      due: ``due(solution, tol, maxiter)``: whether this link continues from the `Solution` so far.
      options: static keyword arguments of ``run``, as pairs.
      budget: ``budget(problem)``: number of iterations after which the next link continues, if there is one.
      limit: value of ``budget`` in a chain where another link follows; None elsewhere.
      finish_step: ``finish_step(smooth, W)``: 1/L, which defines the residual during the finish. The finish
        makes Newton steps on the support after a solve that stalls. It is a part of ``run`` if that gets the
        option ``finish=True``; in an eager call it is a program of its own. None: this link has no finish, or
        one that ``run`` always includes.
      declines: ``declines(problem, start)``, for a first link in an eager call, before anything is compiled:
        whether the link would leave everything to the next one.
      at_once: ``at_once(problem, lanes)``: whether the lanes of a batch on a CPU run in one loop; ``lanes``
        says of each leaf whether it differs from lane to lane.
      arrays_in_units: ``arrays_in_units(units, arrays)``: the further arguments of ``run``, converted from
        the user's units to the units of the data. None: they have no units.

    >>> import sparsejax as sj
    >>> sj.solvers.SOLVERS["fista"].link.name
    'fista'
    """

    name: str
    run: Callable[..., Solution]
    rows: bool = False
    due: Callable[[Solution, Any, Any], Any] = unfinished
    options: tuple[tuple[str, Any], ...] = ()
    budget: Callable[[Problem], int] | None = None
    limit: int | None = None
    finish_step: Callable[[Any, jax.Array], jax.Array] | None = None
    declines: Callable[[Problem, Any], bool] | None = None
    at_once: Callable[[Problem, Any], bool] = never
    arrays_in_units: Callable[[Any, tuple[Any, ...]], tuple[Any, ...]] | None = None

    def first(
        self,
        problem: Problem,
        init: Any,
        tol: jax.Array,
        maxiter: jax.Array,
        arrays: tuple[Any, ...],
        *,
        history: int,
    ) -> Solution:
        """The solution of this link from ``init``, or from a point near it at which the penalty is finite."""
        init = feasible(problem.penalty, init)
        known = units_of(problem, self.rows)
        start = init if known is None else known.units.start(init)
        if known is not None and self.arrays_in_units is not None:
            arrays = self.arrays_in_units(known.units, arrays)
        scaled, limit = in_units(problem, known), self.limited(maxiter)
        solution = self.run(scaled, start, tol, limit, history, *arrays, **dict(self.options))
        return self.named(in_users_units(solution, known))

    def after(self, problem: Problem, solution: Solution, tol: jax.Array, maxiter: jax.Array) -> Solution:
        """The solution of this link from the last point of another; iterations and history cover both."""
        before, history = solution.num_iters, solution.history
        length = history.gap.shape[0]
        own = self.first(problem, solution.params, tol, maxiter - before, (), history=length)
        # Entry i of a history is of iteration i: the entries of this link begin after those of the other.
        early = jnp.arange(length, dtype=jnp.int32) < before
        joined = [jnp.where(early, a, jnp.roll(b, before)) for a, b in zip(history, own.history, strict=True)]
        return own._replace(num_iters=before + own.num_iters, history=History(*joined))

    def finished(self, problem: Problem, solution: Solution, tol: jax.Array, maxiter: jax.Array) -> Solution:
        """The solution of this link after the finish, Newton steps on its support."""
        known = units_of(problem, self.rows)
        scaled = solution
        if known is not None:  # the inverse of `in_users_units`
            scaled = _converted(solution, known.units.start, known.units.start_objective)
        flat, W, restore = flattened(in_units(problem, known), scaled.params)
        step = self.finish_step(flat.smooth, W)  # type: ignore[misc]  # `Chain.steps` has checked it
        found = finish(flat, scaled._replace(params=W), step, tol)
        found = found._replace(params=restore(found.params), link=solution.link)
        return in_users_units(found, known)

    def limited(self, maxiter: jax.Array) -> jax.Array:
        """The number of iterations that the link may make: ``maxiter``, at most ``limit``."""
        return maxiter if self.limit is None else jnp.minimum(maxiter, self.limit)

    def named(self, solution: Solution) -> Solution:
        """The solution with this link's number, from which `Solution.solver` finds the name."""
        return solution._replace(link=jnp.int32(number_of(self.name)))


class Chain(NamedTuple):
    """Links in the order in which they continue; the last one may finish a solve that stalls.

    >>> import sparsejax as sj
    >>> len(Chain((sj.solvers.SOLVERS["fista"].link,)).links)
    1
    """

    links: tuple[Link, ...]
    finishes: bool = False  # whether the penalty gives its support, on which the finish works

    def within(self) -> tuple[Link, ...]:
        """The links for one program; if the chain has a finish, ``run`` of the last link includes it."""
        *others, last = self.links
        if not self._has_finish:
            return self.links
        return (*others, replace(last, options=(*last.options, ("finish", True))))

    @property
    def _has_finish(self) -> bool:
        return self.finishes and self.links[-1].finish_step is not None

    def steps(self) -> list[tuple[Callable[..., Any], Compiled]]:
        """The programs that may follow the first link in an eager call, each after its test ``due``."""
        last, found = self.links[-1], [(link.due, _programs(link)[1]) for link in self.links[1:]]

        def finish_due(solution: Solution, tol: jax.Array, maxiter: jax.Array) -> jax.Array:
            """`at_the_floor`, for a solution of the last link: in a trace its ``run`` includes the finish."""
            return at_the_floor(solution, tol, maxiter) & (solution.link == number_of(last.name))

        return [*found, (finish_due, _programs(last)[2])] if self._has_finish else found


def run(
    chain: Chain,
    problem: Problem,
    init: Any,
    tol: jax.Array,
    maxiter: jax.Array,
    history: int = 0,
    arrays: tuple[Any, ...] = (),
    quiet: bool = False,
) -> Solution:
    """Solve a prepared problem by a chain of links, and attach the derivative of the solution.

    Args:
      chain: the chain that `sparsejax.solvers.chain_of` returns, or links of your own.
      problem, init, tol, maxiter, history: what `sparsejax.driver.prepare` returns.
      arrays: further arguments of the first link.
      quiet: give no warning.

    Returns:
      `Solution`. Outside jit a `ConvergenceWarning` tells of a solution that did not converge.

    Never raises: `sparsejax.driver.prepare` has checked the arguments.

    >>> import numpy as np, sparsejax as sj
    >>> from sparsejax.driver import prepare
    >>> problem = sj.Problem(sj.losses.SquaredLoss(np.eye(2), np.ones(2)), sj.penalties.L1(0.1))
    >>> arguments = prepare("fista", problem, None, 1e-6, 1000)
    >>> run(Chain((sj.solvers.SOLVERS["fista"].link,)), *arguments).solver
    'fista'
    """
    leaves, treedef = jax.tree.flatten((problem, init, tol, maxiter, arrays))
    traced = any(map(is_traced, leaves))
    constant = list(map(without_gradient, leaves)) if traced else leaves
    # Under an eager `jax.grad` the values are concrete once their gradients are stopped.
    eager = is_eager(constant)
    solve = functools.partial(_run_eagerly, chain, history) if eager else as_one_program(chain, history)
    solution = solve(*jax.tree.unflatten(treedef, constant))
    if traced and any(map(is_traced, jax.tree.leaves(problem))):
        solution = attach(problem, solution, rows=chain.links[0].rows)
    if not quiet:
        warn_unconverged(problem, solution, tol)
    return solution


def _run_eagerly(
    chain: Chain,
    history: int,
    problem: Problem,
    init: Any,
    tol: jax.Array,
    maxiter: jax.Array,
    arrays: tuple[Any, ...],
) -> Solution:
    """The solution of the chain outside any trace, where every link is a program of its own."""
    first, *others = chain.links
    # With maxiter = 0 no link continues in a trace: the first one names the solution here, too.
    if others and first.declines is not None and int(maxiter) > 0 and first.declines(problem, init):
        chain = chain._replace(links=chain.links[1:])
    solution = _programs(chain.links[0])[0].alone(problem, init, tol, maxiter, arrays, history=history)
    return completed(chain, problem, solution, tol, maxiter)


def completed(
    chain: Chain, problem: Problem, solution: Solution, tol: jax.Array, maxiter: jax.Array
) -> Solution:
    """Continue from the solution of the first link by all further links that are due, outside any trace."""
    light = without_arrays(solution, tol, maxiter)
    for due, program in chain.steps():
        if due(*light):
            solution = program.alone(problem, solution, tol, maxiter)
            light = without_arrays(solution, tol, maxiter)
    return solution


def without_arrays(solution: Solution, tol: jax.Array, maxiter: jax.Array) -> tuple[Solution, Any, Any]:
    """The arguments of ``due`` as numpy arrays: the solution, or batch, without its params and history."""
    light = solution._replace(params=(), history=())
    return jax.tree.map(np.asarray, (light, tol, maxiter))


def continued(
    links: Sequence[Link], problem: Problem, solution: Solution, tol: jax.Array, maxiter: jax.Array
) -> Solution:
    """Same as `completed`, inside a trace; ``links`` are the links after the first.

    There is no program of the finish here: ``run`` of the last link of `Chain.within` includes the finish.
    """
    for link in links:
        go_on = functools.partial(link.after, problem, tol=tol, maxiter=maxiter)
        solution = apply_if(link.due(solution, tol, maxiter), go_on, solution)
    return solution


@functools.cache
def _programs(link: Link) -> tuple[Compiled, Compiled, Compiled]:
    """The programs of a link: from a start, from the last point of another link, and its finish."""
    start, after = with_name(link.name, link.first), with_name(link.name, link.after)
    return Compiled(start, ("history",)), Compiled(after), Compiled(with_name("finish", link.finished))


def with_name(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under another name, which its compiled program gets."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    return call


@functools.cache
def as_one_program(chain: Chain, history: int) -> Callable[..., Solution]:
    """The whole chain as one function, with its batching rule, to be called inside a trace."""
    first, *others = chain.within()

    def whole(
        problem: Problem, init: Any, tol: jax.Array, maxiter: jax.Array, arrays: tuple[Any, ...]
    ) -> Solution:
        solution = first.first(problem, init, tol, maxiter, arrays, history=history)
        return continued(others, problem, solution, tol, maxiter)

    def at_once(args: Any, lanes: Any) -> bool:
        return first.at_once(args[0], lanes[0])

    def one_by_one(lanes: Any) -> bool:
        return bool(lanes[3])  # lanes whose maxiter differ end at different iterations

    return by_lanes(with_name(first.name, whole), at_once, one_by_one)


def in_users_units(solution: Solution, known: Scaled | None) -> Solution:
    """The solution in the user's units, from a solution in units of the data."""
    if known is None:
        return solution
    return _converted(solution, known.units.params, known.units.objective)


def _converted(solution: Solution, params: Callable[..., Any], objective: Callable[..., Any]) -> Solution:
    """The solution with its params and its objectives converted by these functions."""
    history = History(objective(solution.history.objective), solution.history.gap)
    return solution._replace(
        params=params(solution.params), objective=objective(solution.objective), history=history
    )
