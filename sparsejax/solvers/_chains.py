"""The chain of solvers for a problem: the first one, and those that continue if it does not converge."""

from collections import UserDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax

from sparsejax._core.checks import check_bool
from sparsejax._core.compiled import forget_programs
from sparsejax._core.pytree import form_of
from sparsejax.driver import Chain, Link, run
from sparsejax.problem import Problem, as_protocol
from sparsejax.solution import Solution


class Resume(NamedTuple):
    """How a solver solves the problems of a path: with shared quantities, and a state that each passes on.

    >>> from sparsejax.solvers import SOLVERS
    >>> [name for name, entry in SOLVERS.items() if entry.resume is not None]
    ['variational_newton', 'prox_newton', 'newton_admm', 'admm']
    """

    shared: Callable[[Any], Any]  # (loss) -> what depends on the loss alone
    first: Callable[[Any, Any, Any], Any]  # (shared, problem, init) -> the first state
    # (problem, shared, init, state, tol, maxiter, **options of the link) -> (Solution, state)
    solve: Callable[..., tuple[Solution, Any]]


class Solver(NamedTuple):
    """An entry of `SOLVERS`.

    >>> import numpy as np, sparsejax as sj
    >>> from sparsejax.solvers import SOLVERS
    >>> SOLVERS["fista"].function is sj.fista, SOLVERS["fista"].summary
    (True, 'accelerated proximal gradient, restart, backtracking')
    """

    function: Callable[..., Solution]
    # (problem in the protocol) -> None if the solver takes it, else the reason in words.
    fits: Callable[[Problem], str | None]
    summary: str  # for docs/choose-a-solver.md
    link: Link  # the solver as a part of a chain
    # `sparsejax.solve` takes the first entry of the table for which ``fits`` is None and ``suits`` is True.
    suits: Callable[[Problem], bool] = lambda problem: False
    # Functions (problem) -> link of a solver that may continue, or None. The first link found continues.
    then: tuple[Callable[[Problem], Link | None], ...] = ()
    resume: Resume | None = None  # None: a path passes on the solution alone


class _Table(UserDict[str, Solver]):
    """The table of solvers. A change discards the chosen chains, and the compiled programs with them."""

    def __setitem__(self, name: str, solver: Solver) -> None:
        super().__setitem__(name, solver)
        self._changed()

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._changed()

    # `UserDict.__ior__` does not call `__setitem__`.
    def __ior__(self, other: Any) -> "_Table":  # type: ignore[misc, override]  # `__or__` is of any dict
        self.update(other)
        return self

    def _changed(self) -> None:
        _chosen.clear()
        forget_programs()


_chosen: dict[Any, Chain] = {}  # by the name of the first solver, or None, and the form of the problem
MAX_CHOSEN = 1024  # entries of `_chosen`; it is emptied when full
SOLVERS = _Table()  # `sparsejax.solvers` fills it


def pick(problem: Problem) -> Solver:
    """The first solver of the table that takes the problem and suits it, by static structure and shapes.

    Args:
      problem: `sparsejax.Problem`.

    Returns:
      Its entry of `SOLVERS`.

    Raises:
      TypeError: ``problem`` is not a `sparsejax.Problem`. Every problem has a solver: `fista` takes all.

    >>> import numpy as np, sparsejax as sj
    >>> problem = sj.Problem(sj.losses.SquaredLoss(np.eye(4, 3), np.eye(4, 2)), sj.penalties.L21(0.0625))
    >>> from sparsejax.solvers import pick
    >>> pick(problem).function is sj.admm
    True
    """
    known = as_protocol("pick", problem)
    return next(s for s in SOLVERS.values() if s.fits(known) is None and s.suits(known))


def chain_of(link: Link, problem: Problem) -> Chain:
    """The chain that begins with a link, by the static structure and the shapes of the problem.

    Args:
      link: the link of an entry of `SOLVERS`.
      problem: `sparsejax.Problem`, in the protocol, as `sparsejax.driver.prepare` returns it.

    Returns:
      `sparsejax.driver.Chain`; the entries ``then`` of the table give the links that follow.

    Never raises.

    >>> import numpy as np, sparsejax as sj
    >>> loss = sj.losses.LogisticLoss(np.eye(4, 65), np.array([1.0, 0.0, 0.0, 1.0]))
    >>> problem = sj.Problem(loss, sj.penalties.L1(0.05))
    >>> from sparsejax.solvers import chain_of, pick
    >>> [link.name for link in chain_of(pick(problem).link, problem).links]
    ['prox_newton', 'newton_admm']
    """
    links = [link]
    while (following := _next(links[-1], problem)) is not None:
        if links[-1].budget is not None:
            links[-1] = replace(links[-1], limit=links[-1].budget(problem))
        links.append(following)
    return Chain(tuple(links), finishes="support" in problem.penalty.provides)


def chosen_chain(problem: Problem, first: str | None = None) -> Chain:
    """The chain that begins with the solver ``first``, or with the one that `pick` finds.

    It is cached by the form of the problem.

    Args:
      problem: `sparsejax.Problem`, in the protocol.
      first: the name of the first solver; None: `pick` chooses.

    Never raises.
    """
    form = first, form_of(problem)
    chain = _chosen.get(form)
    if chain is None:
        if len(_chosen) >= MAX_CHOSEN:
            _chosen.clear()
        solver = pick(problem) if first is None else SOLVERS[first]
        chain = _chosen[form] = chain_of(solver.link, problem)
    return chain


def _next(link: Link, problem: Problem) -> Link | None:
    """The link that continues after this one by the table's ``then``; None after a link of a user's own."""
    if link.name not in SOLVERS:
        return None
    return next((found for take in SOLVERS[link.name].then if (found := take(problem)) is not None), None)


def with_flags(link: Link, **flags: bool) -> Link:
    """The link with these options, each of which must be True or False."""
    for name, value in flags.items():
        check_bool(f"{link.name}: {name}", value)
    return replace(link, options=tuple((name, bool(value)) for name, value in flags.items()))


def solved_by(
    link: Link,
    problem: Problem,
    init: Any,
    tol: jax.Array,
    maxiter: jax.Array,
    history: int,
    arrays: tuple[Any, ...] = (),
) -> Solution:
    """The solution of a prepared problem by the chain that begins with a link.

    Args:
      link: the link of the first solver.
      problem, init, tol, maxiter, history: what `sparsejax.driver.prepare` returns.
      arrays: further arguments of the link.

    Returns:
      `Solution`. Outside jit a solution that did not converge comes with a warning.

    Never raises: `sparsejax.driver.prepare` has checked the arguments.

    >>> import numpy as np, sparsejax as sj
    >>> problem = sj.Problem(sj.losses.SquaredLoss(np.eye(2), np.ones(2)), sj.penalties.L1(0.1))
    >>> arguments = sj.driver.prepare("fista", problem, None, 1e-6, 1000)
    >>> sj.solvers.solved_by(sj.solvers.SOLVERS["fista"].link, *arguments).solver
    'fista'
    """
    return run(chain_of(link, problem), problem, init, tol, maxiter, history, arrays)
