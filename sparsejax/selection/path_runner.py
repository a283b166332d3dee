"""The solves of a path one after the other, in one program or in chunks that the host calls."""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax._core.checkpoints import Checkpoint, digest, named, text_of
from sparsejax._core.compiled import Compiled
from sparsejax._core.matrices.sharded import check_one_process
from sparsejax._core.programs import runs_users_code, text_of_program
from sparsejax._core.progress import (
    SLICES,
    Bar,
    Budget,
    Place,
    Report,
    check_progress,
    chunk,
    first_place,
    in_chunks,
    in_slices,
)
from sparsejax._core.pytree import Pytree, floating_leaves, movable
from sparsejax._core.threads import threads_for
from sparsejax._core.version import __version__
from sparsejax.closures import ClosureLoss, ClosurePenalty, evaluate, prox_of, value_of
from sparsejax.driver.chain import Chain, continued, in_users_units
from sparsejax.penalties import feasible, with_valid_strengths
from sparsejax.problem import Problem, in_units, units_of
from sparsejax.selection.fewer_rows import with_fewer_rows
from sparsejax.solution import INTERRUPTED, History, Solution, lost_unless, number_of
from sparsejax.solvers import SOLVERS, chosen_chain, pick


class PathArguments(
    Pytree,
    leaves=("problem", "penalties", "init", "tol", "maxiter"),
    static=("axes", "mode", "shape", "first"),
):
    """The arguments of `sparsejax.path`, checked."""

    problem: Problem
    penalties: Any  # one penalty whose varied strengths have one leading axis
    init: Any
    tol: jax.Array  # ()
    maxiter: jax.Array  # () int32
    axes: tuple[int | None, ...]  # for every floating leaf of the penalties: 0 if it varies, else None
    mode: str  # "warm" or "batch"
    shape: tuple[int, ...]  # the leading axes as given, which are one axis in ``penalties``
    first: str | None  # the solver that begins, if it is not the one that `pick` finds

    @property
    def size(self) -> int:
        """The number of penalties."""
        return len(varied_leaves(self)[0][0])

    @property
    def chain(self) -> Chain:
        """The solvers of each problem."""
        return chosen_chain(self.problem, self.first)

    @property
    def resume(self) -> Any:
        """How the first solver continues from problem to problem, or None."""
        return (pick(self.problem) if self.first is None else SOLVERS[self.first]).resume

    @property
    def without_shape(self) -> "PathArguments":
        """The arguments with shape (), so that a program does not depend on the user's axes."""
        return self._replace(shape=())


def varied_leaves(p: PathArguments) -> tuple[list[jax.Array], Callable[[list[jax.Array]], Problem]]:
    """The leaves of the penalties that vary, and the function that puts one value of each in the problem."""
    leaves, rebuild = floating_leaves(p.penalties)
    varied, with_values = movable(leaves, tuple(axis is not None for axis in p.axes))
    return varied, lambda values: p.problem._replace(penalty=rebuild(with_values(values)))


def with_varied(penalties: Any, axes: tuple[int | None, ...], change: Callable[[Any], Any]) -> Any:
    """The penalties after ``change`` of each leaf that varies."""
    leaves, rebuild = floating_leaves(penalties)
    pairs = zip(leaves, axes, strict=True)
    return rebuild([leaf if axis is None else change(leaf) for leaf, axis in pairs])


def checkpoint_of(
    caller: str, directory: Any, arguments: PathArguments, progress: bool = False, **more: Any
) -> Checkpoint | None:
    """The `Checkpoint` of a call, identified by all that its result depends on; None without a folder.

    Args:
      caller: the public function, for error messages.
      directory: its argument ``checkpoint``.
      arguments: the arguments of the path.
      progress: the argument of the function, which is checked.
      more: further arguments of the function, by name: arrays or hashable values.
    """
    check_progress(caller, progress, arguments, directory)
    check_one_process(caller, progress or directory is not None, arguments)
    if directory is None:
        return None
    p = arguments
    loss, penalty, init = p.problem.smooth, p.problem.penalty, p.init
    # Traced programs show the code of a user's loss or penalty, and the arrays that it closes over.
    # A strength by row may have the shape of a strength that varies: which leaves vary is a part of the call.
    varies = [axis is not None for axis in p.axes]
    traced: dict[str, list[Any]] = {"loss": [loss], "penalties": [p.penalties, varies]}
    users_loss = not loss._self_contained or isinstance(loss, ClosureLoss)
    users_penalty = not penalty._self_contained or isinstance(penalty, ClosurePenalty)
    if users_loss:
        traced["loss"] += _traced("the loss", evaluate, loss, init)
    if users_penalty:
        step = np.ones((), jax.tree.leaves(init)[0].dtype)
        traced["penalties"] += _traced("the penalty", value_of, penalty, init)
        traced["penalties"] += _traced("the penalty", prox_of, penalty, init, step)
    links = p.chain.links
    config: Any = jax.config  # its attributes are made at run time
    users_solver = runs_users_code(p.resume, *(link.run for link in links))
    if users_loss or users_penalty or users_solver:
        # Derivatives, certificates and all other methods: the program of the whole path.
        traced["program"] = _traced("the problem or solver", _path_of, p.without_shape)
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
            "solvers": named([(link.name, number_of(link.name), link.options) for link in links]),
            "shards": str([_sharding(leaf) for leaf in jax.tree.leaves(p)]),
            "version": f"sparsejax {__version__}, jax {jax.__version__}, {jax.default_backend()}",
            "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),  # they change the last bits
            "precision of products": str(config.jax_default_matmul_precision),
        },
    )


def _sharding(leaf: Any) -> Any:
    """How an array is divided among devices, which changes the last bits of sums; None: it is not divided."""
    divided = isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1
    return leaf.sharding if divided else None


def _traced(name: str, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """The text of the program of a user's function as an array, which `digest` takes."""
    # A new function object, because JAX would reuse the trace of one that it has seen before.
    text = text_of_program(name, jax.make_jaxpr(functools.partial(function))(*arguments))
    return [np.frombuffer(text.encode(), np.uint8)]


def _path_of(p: PathArguments) -> Any:
    """The first solve of a path by the whole chain."""
    solves = PathSolver(p, True)
    prepared, start = solves.prepare()
    return solves.solve(prepared, [leaf[0] for leaf in solves.varied], start)


class PathSolver:
    """Solves one problem for the strengths of a path, one after the other, without derivatives.

    With ``complete`` the whole chain of solvers runs, else its first link alone; the caller then runs the
    other links.
    """

    def __init__(self, p: PathArguments, complete: bool):
        self.problem, self.init, self.tol, self.maxiter = p.problem, p.init, p.tol, p.maxiter
        self.varied, self.problem_of = varied_leaves(p)
        self.resume, chain = p.resume, p.chain
        self.link, *self.others = chain.within() if complete else chain.links[:1]

    def prepare(self) -> tuple[Any, Any]:
        """The data that all solves share, and the state from which the first one starts."""
        if self.resume is None:
            return None, (self.init, None)  # `Link.first` moves it to where the penalty is finite
        init, known = feasible(self.problem.penalty, self.init), units_of(self.problem, self.link.rows)
        scaled = in_units(self.problem, known)
        start = init if known is None else known.units.start(init)
        shared = self.resume.shared(scaled.smooth)
        return (known, shared), (init, self.resume.first(shared, scaled, start))

    def solve(self, prepared: Any, values: list[jax.Array], start: Any) -> tuple[Solution, Any]:
        """The solution for these strengths, and the state from which the next solve starts."""
        problem, (init, state) = self.problem_of(values), start
        # Make no iterations if a strength is not allowed: a NaN would stay in the starts of all later solves.
        penalty, valid = with_valid_strengths(problem.penalty)
        changed, maxiter = problem._replace(penalty=penalty), jnp.where(valid, self.maxiter, 0)
        if self.resume is None:
            solution = self.link.first(changed, init, self.tol, maxiter, (), history=0)
        else:
            known, shared = prepared
            scaled_init = init if known is None else known.units.start(init)
            scaled, limit = in_units(changed, known), self.link.limited(maxiter)
            found, state = self.resume.solve(
                scaled, shared, scaled_init, state, self.tol, limit, **dict(self.link.options)
            )
            solution = self.link.named(in_users_units(found, known))
        solution = continued(self.others, changed, solution, self.tol, maxiter)
        return lost_unless(valid, solution), (solution.params, state)


# ------------------------------------------------------------------ in chunks


MAX_CARRIED_BYTES = 2**24  # most bytes of arrays of one path, such as rows of a fold, that a call passes on


class Task(Protocol):
    """Which paths to solve, and what to record of each solution; hashable, equal by its values."""

    def rounds(self, data: Any) -> Any:
        """The number of paths."""

    def of(self, problem: Problem, data: Any, number: jax.Array) -> tuple[Problem, Any]:
        """The problem of the path with this number, and what `record` needs to judge its solutions."""

    def record(self, found: Any, solution: Solution, judge: Any, at: tuple[jax.Array, jax.Array]) -> Any:
        """The records ``found`` with the solution ``at`` (path, strength) added."""


class _TaskPaths:
    """The paths of a task in the form that `sparsejax._core.progress.chunk` runs: a `Course`."""

    def __init__(self, arguments: PathArguments, data: Any, task: Task, complete: bool):
        self.arguments, self.data, self.task, self.complete = arguments, data, task, complete
        self.rounds, self.length = task.rounds(data), arguments.size

    def of(
        self, number: jax.Array, own: list[jax.Array] | None = None
    ) -> tuple[PathSolver, Any, list[jax.Array]]:
        """The solver of the path with this number, its judge, and the arrays that no other path uses.

        Args:
          number: the number of the path.
          own: these arrays from an earlier call, so that rows are not copied again for each strength. Arrays
            beyond `MAX_CARRIED_BYTES`, of the problem or its judge, are left out: each call would copy them.
        """
        problem = self.arguments.problem
        shared = set(map(id, jax.tree.leaves(problem)))
        changed, judge = self.task.of(problem, self.data, number)
        arguments = with_fewer_rows(self.arguments._replace(problem=changed))
        changed = arguments.problem
        leaves, treedef = jax.tree.flatten((changed, judge))
        copies: dict[int, Any] = {}
        for part in (changed, judge):
            new = {id(leaf): leaf for leaf in jax.tree.leaves(part) if id(leaf) not in shared}
            if sum(leaf.size * leaf.dtype.itemsize for leaf in (copies | new).values()) <= MAX_CARRIED_BYTES:
                copies |= new
        own = list(copies.values()) if own is None else own
        # Arrays from the earlier call replace those just made: XLA then drops the computation of the latter.
        carried = dict(zip(copies, own, strict=True))
        leaves = [carried.get(id(leaf), leaf) for leaf in leaves]
        changed, judge = jax.tree.unflatten(treedef, leaves)
        return PathSolver(arguments._replace(problem=changed), self.complete), judge, own

    def prepare(self, number: jax.Array) -> tuple[Any, Any]:
        solves, _, own = self.of(number)
        prepared, start = solves.prepare()
        return (own, prepared), start

    def solve(
        self, prepared: Any, at: tuple[jax.Array, jax.Array], state: Any, found: Any
    ) -> tuple[Any, Any, jax.Array, jax.Array]:
        own, prepared = prepared
        solves, judge, _ = self.of(at[0], own)
        solution, state = solves.solve(prepared, [leaf[at[1]] for leaf in solves.varied], state)
        found = self.task.record(found, solution, judge, at)
        return state, found, solution.num_iters, solution.measure


def _run_chunk(
    arguments: PathArguments, data: Any, place: Place, budget: Budget, **options: Any
) -> tuple[Place, Report]:
    return chunk(_TaskPaths(arguments, data, **options), place, budget)


_chunk_program = Compiled(_run_chunk, ("complete", "task"))
# Used for the shapes of the results alone; JAX remembers them for a function of the module.
_prepared = Compiled(
    lambda arguments, data, **options: _TaskPaths(arguments, data, **options).prepare(jnp.int32(0)),
    ("complete", "task"),
)


def run_in_chunks(
    arguments: PathArguments,
    task: Task,
    parts: Sequence[tuple[Any, int]],
    found: Any,
    bar: Bar,
    complete: bool = True,
) -> list[Place]:
    """Solve the paths of a task in chunks, in mode "warm".

    Args:
      arguments: the arguments of the path.
      task: the task.
      parts: pairs of data for the task and their number of paths; all data have the same shapes. The parts
        run at the same time, each in a thread of its own.
      found: the empty records of a part, which ``task.record`` fills.
      bar: as in `sparsejax._core.progress.in_chunks`.
      complete: as in `PathSolver`.

    Returns:
      The place that each part reached: its end, or an earlier one after ``bar.stop``.
    """
    static: dict[str, Any] = {"complete": complete, "task": task}
    shared = arguments.without_shape
    prepared = _prepared.nested.eval_shape(shared, parts[0][0], **static)
    place = first_place(prepared, found)

    program: Callable[..., tuple[Place, Report]]
    if len(parts) == 1:
        program = functools.partial(_chunk_program.alone, **static)
    else:  # threads do not see contexts such as `jax.enable_x64`, so the program is made here
        shared = jax.device_put(shared)
        program = _chunk_program.program(
            shared, parts[0][0], place, Budget(np.float32(0), np.float32(0)), **static
        )

    def step(i: int, place: Place, budget: Budget) -> tuple[Place, Report]:
        return program(shared, parts[i][0], place, budget)

    with threads_for(shared):
        return in_chunks(step, [place] * len(parts), [count * arguments.size for _, count in parts], bar)


def run_in_slices(
    arguments: PathArguments, call: Callable[[Any], Any], nothing: Any, axis: int, bar: Bar
) -> Any:
    """Solve a path in mode "batch" in slices, some of the penalties in each call, until ``bar.stop``.

    Args:
      arguments: the arguments of the path.
      call: ``call(penalties)``: a pytree of results whose axis ``axis`` is that of the penalties; it holds a
        `Solution`, for the gap that the bar shows.
      nothing: the results for all penalties before they are solved (`unsolved`).
      axis: the position of the axis of penalties in the results.
      bar: as in `sparsejax._core.progress.in_slices`.

    Returns:
      The results for all penalties; those not solved are as in ``nothing``.
    """
    count = arguments.size

    def some(numbers: np.ndarray) -> Any:
        return call(with_varied(arguments.penalties, arguments.axes, lambda leaf: leaf[numbers]))

    def gap(answer: Any) -> Any:
        parts = jax.tree.leaves(answer, is_leaf=lambda leaf: isinstance(leaf, Solution))
        return next(part.measure for part in parts if isinstance(part, Solution))

    answers = in_slices(some, count, -(-count // SLICES), bar, gap, nothing)

    def whole(missing: Any, *parts: Any) -> np.ndarray:
        # All entries of ``missing`` are equal. Beyond ``count`` are repeats that fill up the last slice.
        return np.take(np.concatenate([*parts, missing], axis), np.arange(count), axis)

    return jax.device_put(jax.tree.map(whole, nothing, *answers))


def joined(parts: Sequence[Any], count: int) -> Any:
    """The first ``count`` results of all parts together, along their first axis."""
    return jax.device_put(jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *parts))


def unsolved(like: Any, shape: tuple[int, ...]) -> Any:
    """Results of the structure ``like`` with leading axes, before they are solved.

    Floating leaves are NaN, others 0; the status of a `Solution` is INTERRUPTED.
    """

    def one(leaf: Any) -> np.ndarray:  # by numpy, because JAX would compile each shape
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        return np.full((*shape, *leaf.shape), np.nan if floating else 0, leaf.dtype)

    def whole(part: Any) -> Any:
        full = jax.tree.map(one, part)
        if isinstance(part, Solution):
            none = np.full_like(full.link, -1)  # no solver has found these solutions
            full = full._replace(status=np.full_like(full.status, INTERRUPTED), link=none)
        return full

    return jax.tree.map(whole, like, is_leaf=lambda part: isinstance(part, Solution))


def solution_like(init: Any) -> Solution:
    """A `Solution` with the shapes and dtypes of a solve from ``init``; its values mean nothing."""
    x = jax.tree.leaves(init)[0].dtype.type(0)
    none = np.zeros(0, x.dtype)
    # numpy scalars stand for JAX arrays, so that nothing is compiled.
    return Solution(init, x, x, x, np.int32(0), np.int32(0), History(none, none), np.int32(0))  # type: ignore[arg-type]
