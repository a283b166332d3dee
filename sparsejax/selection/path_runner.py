"""The solves of a path one after the other: within one program, or in chunks on the host."""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax._core.checkpoints import Checkpoint, digest, named, text_of
from sparsejax._core.compiled import Compiled
from sparsejax._core.progress import (
    SLICES,
    Bar,
    Budget,
    Place,
    Report,
    chunk,
    first_place,
    in_chunks,
    in_slices,
)
from sparsejax._core.pytree import floating_leaves
from sparsejax._core.threads import threads_for
from sparsejax._core.version import __version__
from sparsejax.driver.chain import continued, in_users_units
from sparsejax.driver.closures import evaluate, prox_of, value_of
from sparsejax.problem import Problem, in_units, units_of
from sparsejax.solution import INTERRUPTED, History, Solution
from sparsejax.solvers import chain_of, pick


class PathArguments(NamedTuple):
    """What `sparsejax.path` was given, checked."""

    problem: Problem
    penalties: Any
    init: Any
    tol: jax.Array
    maxiter: jax.Array
    axes: tuple[int | None, ...]  # of every floating leaf of the penalties: 0 if it varies
    mode: str
    shape: tuple[int, ...]  # the leading axes that were given; those of ``penalties`` are made one


def members(
    problem: Problem, penalties: Any, axes: tuple[int | None, ...]
) -> tuple[list[jax.Array], Callable[[list[jax.Array]], Problem]]:
    """The leaves that vary, and the problem with one value of each."""
    leaves, rebuild = floating_leaves(penalties)

    def problem_of(values: list[jax.Array]) -> Problem:
        remaining = iter(values)
        full = [leaf if axis is None else next(remaining) for leaf, axis in zip(leaves, axes, strict=True)]
        return problem._replace(penalty=rebuild(full))

    return [leaf for leaf, axis in zip(leaves, axes, strict=True) if axis is not None], problem_of


def length_of(penalties: Any, axes: tuple[int | None, ...]) -> int:
    """How many penalties there are."""
    leaves, _ = floating_leaves(penalties)
    return next(int(leaf.shape[0]) for leaf, axis in zip(leaves, axes, strict=True) if axis is not None)


def checkpoint_of(caller: str, directory: Any, arguments: PathArguments, **more: Any) -> Checkpoint | None:
    """The records of this call in a folder; None without one.

    Args:
      caller: the function, for errors.
      directory: its ``checkpoint``.
      arguments: of the path.
      more: what else its answer depends on, by name: arrays, or what is hashable.
    """
    if directory is None:
        return None
    p = arguments
    loss, penalty, init = p.problem.smooth, p.problem.penalty, p.init
    # The code of a user's loss or penalty, and what it closes over, are seen where it is traced.
    traced: dict[str, list[Any]] = {"loss": [loss], "penalties": [p.penalties]}
    if not loss._self_contained:
        traced["loss"] += _program(evaluate, loss, init)
    if not penalty._self_contained:
        step = np.ones((), jax.tree.leaves(init)[0].dtype)
        traced["penalties"] += _program(value_of, penalty, init) + _program(prox_of, penalty, init, step)
    return Checkpoint(
        caller,
        directory,
        {
            **{name: digest(*things) for name, things in traced.items()},
            **{name: text_of(x) for name, x in more.items()},
            "init": digest(init),
            "tol": digest(p.tol),
            "maxiter": digest(p.maxiter),
            "mode": p.mode,
            "version": f"sparsejax {__version__}, jax {jax.__version__}, {jax.default_backend()}",
            "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),  # other programs, other bits
        },
    )


def _program(function: Callable[..., Any], *arguments: Any) -> list[Any]:
    closed = jax.make_jaxpr(function)(*arguments)
    return [named(closed.jaxpr), *closed.consts]


class Solves:
    """The solves of a path of one problem, without derivatives.

    Unless ``complete`` by the first link of its chain alone: what that leaves is for the caller.
    """

    def __init__(
        self, arguments: Sequence[Any], axes: tuple[int | None, ...], complete: bool, brief: bool = False
    ):
        problem, penalties, self.init, self.tol, self.maxiter = arguments
        self.problem = problem
        self.varied, self.problem_of = members(problem, penalties, axes)
        solver = pick(problem)
        self.resume = solver.resume
        self.chain = chain_of(solver.link, problem)
        self.link, *self.others = self.chain.links_in_program() if complete else self.chain.links
        self.brief = brief  # no one asks for residuals
        self.complete = complete

    def prepare(self) -> tuple[Any, Any]:
        """What all solves share, and the state that the first one starts from."""
        if self.resume is None:
            return None, (self.init, None)
        known = units_of(self.problem, self.link.rows)
        scaled = in_units(self.problem, known)
        start = self.init if known is None else known.units.start(self.init)
        shared = self.resume.shared(scaled.smooth)
        return (known, shared), (self.init, self.resume.first(shared, scaled, start))

    def solve(self, prepared: Any, values: list[jax.Array], start: Any) -> tuple[Solution, Any]:
        """The solution for these strengths, and what the next one starts from."""
        changed, (init, state) = self.problem_of(values), start
        if self.resume is None:
            solution = self.link.first(changed, init, self.tol, self.maxiter, (), history=0)
        else:
            solution, state = self._resumed(self.resume, prepared, changed, init, state)
        if self.complete:
            solution = continued(self.others, changed, solution, self.tol, self.maxiter)
        return solution, (solution.params, state)

    def _resumed(
        self, resume: Any, prepared: Any, changed: Problem, init: Any, state: Any
    ) -> tuple[Solution, Any]:
        known, shared = prepared
        start = init if known is None else known.units.start(init)
        scaled, maxiter = in_units(changed, known), self.link.limited(self.maxiter)
        options = dict(self.link.options)
        solution, state = resume.solve(scaled, shared, start, state, self.tol, maxiter, self.brief, **options)
        return self.link.named(in_users_units(solution, known)), state


# ------------------------------------------------------------------ in chunks


class Task(Protocol):
    """What is solved along a path, and what is kept of it; hashable, by its values."""

    def rounds(self, data: Any) -> Any:
        """How many paths."""

    def problem(self, problem: Problem, data: Any, number: jax.Array) -> Problem:
        """The problem of a path."""

    def record(
        self, found: Any, solution: Solution, problem: Problem, data: Any, at: tuple[jax.Array, jax.Array]
    ) -> Any:
        """All that was found, with the solution ``at`` (path, strength); ``problem`` is the whole one."""


class _Walk:
    """The paths of a task, as a course."""

    def __init__(self, arguments: Sequence[Any], data: Any, options: dict[str, Any]):
        self.arguments, self.data, self.task = arguments, data, options["task"]
        self.axes, self.complete = options["axes"], options["complete"]
        self.rounds = self.task.rounds(data)
        self.length = length_of(arguments[1], self.axes)

    def of(self, number: jax.Array) -> Solves:
        problem, *rest = self.arguments
        return Solves((self.task.problem(problem, self.data, number), *rest), self.axes, self.complete)

    def prepare(self, number: jax.Array) -> tuple[Any, Any]:
        return self.of(number).prepare()

    def solve(
        self, prepared: Any, at: tuple[jax.Array, jax.Array], state: Any, found: Any
    ) -> tuple[Any, Any, jax.Array, jax.Array]:
        solves = self.of(at[0])
        solution, state = solves.solve(prepared, [leaf[at[1]] for leaf in solves.varied], state)
        found = self.task.record(found, solution, self.arguments[0], self.data, at)
        return state, found, solution.num_iters, solution.measure


def _walk(
    arguments: tuple[Any, ...], data: Any, place: Place, budget: Budget, **options: Any
) -> tuple[Place, Report]:
    return chunk(_Walk(arguments, data, options), place, budget)


_walked = Compiled(_walk, ("axes", "complete", "task"))


def walk(
    arguments: PathArguments,
    task: Task,
    parts: Sequence[tuple[Any, int]],
    found: Any,
    bar: Bar,
    complete: bool = True,
) -> list[Place]:
    """The paths of a task in chunks, in mode "warm": where they ended, which is early after ``bar.stop``.

    Args:
      arguments: of the path.
      task: what to do.
      parts: its data and how many paths these are, all data of the same shapes: each is gone through by
        itself, all at the same time.
      found: to be filled by ``task.record``, for each part.
      bar: as `sparsejax._core.progress.in_chunks`.
      complete: as `Solves`.
    """
    static = {"axes": arguments.axes, "complete": complete, "task": task}
    shared = arguments[:5]
    prepared = jax.eval_shape(
        lambda shared, data: _Walk(shared, data, static).prepare(jnp.int32(0)), shared, parts[0][0]
    )
    place, length = first_place(prepared, found), length_of(arguments.penalties, arguments.axes)

    def step(i: int, place: Place, budget: Budget) -> tuple[Place, Report]:
        return program(shared, parts[i][0], place, budget)

    program: Callable[..., tuple[Place, Report]]
    if len(parts) == 1:
        program = functools.partial(_walked.alone, **static)
    else:  # contexts such as `jax.enable_x64` do not reach threads: they are given the program
        shared = jax.device_put(shared)
        program = _walked.program(shared, parts[0][0], place, Budget(np.float32(0), np.float32(0)), **static)
    with threads_for(shared):
        return in_chunks(step, [place] * len(parts), [count * length for _, count in parts], bar)


def slices(arguments: PathArguments, call: Callable[[Any], Any], nothing: Any, axis: int, bar: Bar) -> Any:
    """``call`` of some of the penalties after the other, in mode "batch": the answers, till ``bar.stop``.

    Args:
      arguments: of the path.
      call: (penalties) -> a pytree with their axis at ``axis``, in which what has a gap is a `Solution`.
      nothing: what stands for all answers where they are missing.
      axis: see above.
      bar: as `sparsejax._core.progress.in_slices`.
    """
    leaves, rebuild = floating_leaves(arguments.penalties)
    count = length_of(arguments.penalties, arguments.axes)

    def some(numbers: np.ndarray) -> Any:
        pairs = zip(leaves, arguments.axes, strict=True)
        return call(rebuild([leaf if varies is None else leaf[numbers] for leaf, varies in pairs]))

    def gap(answer: Any) -> Any:
        parts = jax.tree.leaves(answer, is_leaf=lambda leaf: isinstance(leaf, Solution))
        return next(part.measure for part in parts if isinstance(part, Solution))

    answers = in_slices(some, count, -(-count // SLICES), bar, gap, nothing)

    def joined(missing: Any, *parts: Any) -> np.ndarray:
        # Those that are missing are all alike; what filled up the last slice goes.
        return np.take(np.concatenate([*parts, missing], axis), np.arange(count), axis)

    return jax.device_put(jax.tree.map(joined, nothing, *answers))


def unknown(like: Any, shape: tuple[int, ...]) -> Any:
    """What is like it, with these leading axes: NaN, 0 where it is not floating, the status INTERRUPTED."""

    def one(leaf: Any) -> np.ndarray:  # by numpy: JAX would compile each of these
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        return np.full((*shape, *leaf.shape), np.nan if floating else 0, leaf.dtype)

    def whole(part: Any) -> Any:
        full = jax.tree.map(one, part)
        if isinstance(part, Solution):
            full = full._replace(status=np.full_like(full.status, INTERRUPTED))
        return full

    return jax.tree.map(whole, like, is_leaf=lambda part: isinstance(part, Solution))


def solution_like(init: Any) -> Solution:
    """What has the shapes of a solution."""
    x = jax.tree.leaves(init)[0].dtype.type(0)
    none = np.zeros(0, x.dtype)
    return Solution(init, x, x, x, np.int32(0), np.int32(0), History(none, none), np.int32(0))  # type: ignore[arg-type]
