"""Chains of solvers: where one has left something the next goes on, the same eagerly and inside a trace.

`run` is how every solver is called. A link sees no gradients, arrays alone, and the problem in units of its
data. Called eagerly each link is a program of its own, compiled when it is first needed; inside a user's
`jax.jit`, `jax.vmap` or the like the chain is one program. Which links run, and what they return, is the
same.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsejax._core.checks import is_eager, is_traced
from sparsejax._core.compiled import Compiled
from sparsejax._core.linalg import eps_of, once
from sparsejax.driver.batching import by_lanes
from sparsejax.driver.implicit import attach
from sparsejax.driver.loop import finish
from sparsejax.losses import Units
from sparsejax.problem import Problem, Scaled, flattened, in_units, units_of
from sparsejax.solution import CONVERGED, MAX_ITER, STALLED, History, Solution, number_of, warn_unconverged


def unfinished(solution: Solution, tol: Any, maxiter: Any) -> Any:
    """Whether a link has stopped before ``maxiter`` without an answer: the default ``due`` of a `Link`.

    Args:
      solution: `Solution` so far.
      tol, maxiter: of the whole chain.

    Returns:
      A boolean array: the status is ``MAX_ITER`` after fewer than ``maxiter`` iterations.

    Never raises.

    >>> import numpy as np, sparsejax as sj
    >>> problem = sj.Problem(sj.losses.SquaredLoss(np.eye(2), np.ones(2)), sj.penalties.L1(0.1))
    >>> bool(unfinished(sj.solve(problem), 1e-6, 100))
    False
    """
    return (solution.status == MAX_ITER) & (solution.num_iters < maxiter)


def at_the_floor(solution: Solution, tol: Any, maxiter: Any) -> Any:
    """Whether only rounding was left: stalled, or converged at a tol that no certificate can resolve."""
    status, below = solution.status, tol < 2 * eps_of(solution.objective)
    return (status == STALLED) | ((status == CONVERGED) & below)


def _no_lanes(problem: Problem, lanes: Any) -> bool:
    """Lanes of a batch go one after the other."""
    return False


@dataclass(frozen=True)
class Link:
    """A solver in a chain; compared by its values, so that equal chains are compiled once.

    Attributes:
      name: of the solver, which `Solution.solver` says.
      run: ``run(problem, start, tol, maxiter, history, *arrays, **options) -> Solution``.
      rows: in units of each column of X, too.
      due: ``due(solution, tol, maxiter)``, of the `Solution` so far: whether this link goes on from there.
      options: static keyword arguments of ``run``, as pairs.
      budget: ``budget(problem)``: iterations after which the next link goes on, if there is one.
      limit: that number, in a chain where there is one.
      finish_step: ``run`` takes ``finish``: whether a solve that stalls is finished by Newton steps on its
        support within the program, and this is ``finish_step(smooth, W)``, the 1/L of its residual. Called
        eagerly the finish is a program of its own. None: it has no finish, or always within.
      declines: ``declines(problem, start)``, called eagerly before anything is compiled: whether the link
        would leave everything to the next one.
      at_once: ``at_once(problem, lanes)``: whether lanes of a batch on a CPU go together, where ``lanes``
        says of each leaf whether it differs from lane to lane.

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
    at_once: Callable[[Problem, Any], bool] = _no_lanes

    def first(
        self, problem: Problem, init: Any, tol: Any, maxiter: Any, arrays: tuple[Any, ...], *, history: int
    ) -> Solution:
        """The solution from a start."""
        known = units_of(problem, self.rows)
        start = init if known is None else known.units.start(init)
        scaled, limit = in_units(problem, known), self.limited(maxiter)
        solution = self.run(scaled, start, tol, limit, history, *arrays, **dict(self.options))
        return self.named(in_users_units(solution, known))

    def after(self, problem: Problem, solution: Solution, tol: Any, maxiter: Any) -> Solution:
        """The solution from where another link has stopped; iterations and history are those of both."""
        before, history = solution.num_iters, solution.history
        length = history.gap.shape[0]
        rest = self.first(problem, solution.params, tol, maxiter - before, (), history=length)
        early = jnp.arange(length, dtype=jnp.int32) < before
        joined = [
            jnp.where(early, a, jnp.roll(b, before)) for a, b in zip(history, rest.history, strict=True)
        ]
        return rest._replace(num_iters=before + rest.num_iters, history=History(*joined))

    def finished(self, problem: Problem, solution: Solution, tol: Any, maxiter: Any) -> Solution:
        """The solution of this link after Newton steps on its support."""
        known = units_of(problem, self.rows)
        scaled = _in_units(solution, known)
        flat, W, restore = flattened(in_units(problem, known), scaled.params)
        if self.finish_step is None:
            raise TypeError(f"{self.name} has no finish.")
        found = finish(flat, scaled._replace(params=W), self.finish_step(flat.smooth, W), tol)
        found = found._replace(params=restore(found.params), link=solution.link)
        return in_users_units(found, known)

    def limited(self, maxiter: Any) -> Any:
        """Iterations that the link may make."""
        return maxiter if self.limit is None else jnp.minimum(maxiter, self.limit)

    def named(self, solution: Solution) -> Solution:
        """The solution, which says by its number that it is of this link."""
        return solution._replace(link=jnp.int32(number_of(self.name)))


class Chain(NamedTuple):
    """Links one after the other, the last of which finishes what stalls, if it can.

    >>> import sparsejax as sj
    >>> len(Chain((sj.solvers.SOLVERS["fista"].link,)).links)
    1
    """

    links: tuple[Link, ...]
    finishes: bool = False  # the penalty says where it is smooth

    def within(self) -> tuple[Link, ...]:
        """The links of one program, with the finish in the last one."""
        *others, last = self.links
        if not self._has_finish:
            return self.links
        return (*others, replace(last, options=(*last.options, ("finish", True))))

    @property
    def _has_finish(self) -> bool:
        return self.finishes and self.links[-1].finish_step is not None

    def steps(self) -> list[tuple[Callable[..., Any], Compiled]]:
        """What follows the first link in an eager call: when it is due, and its program."""
        found = [(link.due, _programs(link)[1]) for link in self.links[1:]]
        return [*found, (at_the_floor, _finish_of(self.links[-1]))] if self._has_finish else found


def run(
    chain: Chain,
    problem: Problem,
    init: Any,
    tol: jax.Array,
    maxiter: jax.Array,
    history: int = 0,
    arrays: tuple[Any, ...] = (),
) -> Solution:
    """Solve a prepared problem by a chain of links, with the derivative of the answer.

    Args:
      chain: of `sparsejax.solvers.chain_of`, or of links of your own.
      problem, init, tol, maxiter, history: what `sparsejax.driver.prepare` returns.
      arrays: further arguments of the first link.

    Returns:
      `Solution`. Outside jit what did not converge comes with a warning.

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
    constant = list(map(stopped, leaves)) if traced else leaves
    solve = functools.partial(_eagerly, chain, history) if is_eager(constant) else within(chain, history)
    solution = solve(*jax.tree.unflatten(treedef, constant))
    if traced and any(map(is_traced, jax.tree.leaves(problem))):
        solution = attach(problem, solution, rows=chain.links[0].rows)
    warn_unconverged(problem, solution, tol)
    return solution


def stopped(x: Any) -> Any:
    """Under an eager `jax.grad` the value alone; traced still under jit and vmap."""
    return lax.stop_gradient(x) if is_traced(x) else x


def _eagerly(
    chain: Chain, history: int, problem: Problem, init: Any, tol: Any, maxiter: Any, arrays: Any
) -> Solution:
    first = chain.links[0]
    if first.declines is not None and first.declines(problem, init):
        chain = chain._replace(links=chain.links[1:])
    program = _programs(chain.links[0])[0]
    solution: Solution = program.alone(problem, init, tol, maxiter, arrays, history=history)
    return completed(chain, problem, solution, tol, maxiter)


def completed(chain: Chain, problem: Problem, solution: Solution, tol: Any, maxiter: Any) -> Solution:
    """What the chain makes of the solution of its first link, outside any trace."""
    for due, program in chain.steps():
        if bool(due(*without_arrays(solution, tol, maxiter))):
            solution = program.alone(problem, solution, tol, maxiter)
    return solution


def without_arrays(solution: Solution, tol: Any, maxiter: Any) -> tuple[Any, Any, Any]:
    """What a question about a solution may look at, on the host."""
    light = solution._replace(params=(), history=())
    return jax.tree.map(np.asarray, (light, tol, maxiter))


def continued(
    links: Sequence[Link], problem: Problem, solution: Solution, tol: Any, maxiter: Any
) -> Solution:
    """What further links make of a solution, inside a trace."""
    for link in links:
        go_on = functools.partial(link.after, problem, tol=tol, maxiter=maxiter)
        solution = once(link.due(solution, tol, maxiter), go_on, solution)
    return solution


@functools.cache
def _programs(link: Link) -> tuple[Compiled, Compiled]:
    """A link from a start, and from where another has stopped."""
    return Compiled(named(link.name, link.first), ("history",)), Compiled(named(link.name, link.after))


@functools.cache
def _finish_of(link: Link) -> Compiled:
    return Compiled(named("finish", link.finished))


def named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under the name that its program is to have."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    return call


@functools.cache
def within(chain: Chain, history: int) -> Callable[..., Solution]:
    """A chain as one program, to be called inside a trace."""
    first, *others = chain.within()

    def whole(problem: Problem, init: Any, tol: Any, maxiter: Any, arrays: Any) -> Solution:
        solution = first.first(problem, init, tol, maxiter, arrays, history=history)
        return continued(others, problem, solution, tol, maxiter)

    def at_once(args: Any, lanes: Any) -> bool:
        return first.at_once(args[0], lanes[0])

    def apart(lanes: Any) -> bool:
        return bool(lanes[3])  # those with a maxiter of their own end apart

    return by_lanes(named(first.name, whole), at_once, apart)


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
    units: Units = known.units
    history = solution.history
    return solution._replace(
        params=units.start(solution.params),
        objective=units.start_objective(solution.objective),
        history=History(units.start_objective(history.objective), history.gap),
    )
