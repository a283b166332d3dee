"""Regularisation paths: one problem solved for many strengths."""

import functools
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax import penalties as known_penalties
from sparsejax._core.checkpoints import Checkpoint, saved_or_computed
from sparsejax._core.checks import check_choice, is_eager, is_traced, without_gradient
from sparsejax._core.compiled import Compiled
from sparsejax._core.matrices.sharded import answer_of
from sparsejax._core.progress import Interrupted, bar_of
from sparsejax._core.pytree import floating_leaves
from sparsejax.driver import prepare
from sparsejax.driver.batching import by_lanes
from sparsejax.driver.chain import Chain, as_one_program, completed, with_name, without_arrays
from sparsejax.driver.implicit import attach
from sparsejax.penalties import (
    as_given,
    as_penalty,
    cast_strengths,
    check_strengths,
    for_shape_of,
    is_penalty,
    leaf_names,
)
from sparsejax.problem import Problem, as_protocol
from sparsejax.selection.fewer_rows import with_fewer_rows
from sparsejax.selection.path_runner import (
    PathArguments,
    PathSolver,
    checkpoint_of,
    run_in_chunks,
    run_in_slices,
    solution_like,
    unsolved,
    varied_leaves,
    with_varied,
)
from sparsejax.solution import INTERRUPTED, MAX_ITER, Solution, warn_unconverged

MODES = ("auto", "warm", "batch")


def path(
    problem: Problem,
    penalties: Any,
    init: Any = None,
    *,
    mode: str = "auto",
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
    progress: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Solution:
    """Solve ``problem`` for a batch of penalties in one compiled call.

    In mode "warm" outside jit, a solve that the first solver does not finish takes a further call from its
    last point or, if the solve ran out of iterations and the solve before was unfinished too, from the
    solution of the solve before. In this mode a path of ten penalties or more for a `SquaredLoss` in float64
    with many more rows than features may use d + k rows instead: the triangle R of a QR decomposition of
    (X, Y), where Y has k columns. The problem is the same up to rounding.

    Args:
      problem: its penalty gives the structure; its strengths are not used.
      penalties: one penalty of the type of ``problem.penalty``, in which every varied leaf has extra leading
        axes: ``jax.vmap(sj.penalties.L21)(alphas)`` makes one axis, a `jax.vmap` within another a grid of two
        strengths, and ``jax.vmap(lambda a: sj.penalties.GroupLasso(a, groups))(alphas)`` varies one of two
        arguments. The leading axes of the varied leaves agree; the other leaves are shared.
      init: the start of the first solve, in mode "batch" of every solve, as in `sparsejax.solve`; required if
        the loss is a plain function.
      mode: "warm" solves one after the other (`lax.scan`), each from the last solution: order strengths from
        large to small; of several leading axes the last one varies fastest. "batch" solves all at once
        (`jax.vmap`). "auto" is warm on a CPU, where fewer iterations save time, and batch on an accelerator,
        where parallel work does.
      tol, maxiter: as in `sparsejax.solve`, for each solve.
      progress: show a tqdm bar with the last gap, and stop at Ctrl-C (see Raises). Another program makes the
        same solves in chunks of about 0.3 seconds, in mode "batch" in at most eight chunks.
      checkpoint: a folder for the solves made so far, which are written after every chunk (see ``progress``).
        In mode "warm" a chunk takes longer than 0.3 seconds if writing takes more than 1/20 of the time.
        Called again with the same arguments after the process was killed, the function continues from there,
        and on the same kind of machine ends with the same bits. A finished result is read, not solved again.
        A folder is refused if the data, an option, the code of your own loss, penalty or solver, the device,
        or the version of sparsejax or JAX differs.

    Returns:
      `Solution` in which every field has the leading axes; ``solutions[i]`` is one of them.

    Raises:
      Interrupted: Ctrl-C, with ``progress=True`` or a checkpoint, at the end of the running solve, chunk or
        compilation. Its ``partial`` is the `Solution` so far; missing solutions are NaN and have the status
        `sparsejax.solution.INTERRUPTED`. Without progress and checkpoint, Ctrl-C takes effect only when the
        whole path ends.
      TypeError, ValueError: penalties of another type, nothing varied, axes that disagree, an unknown mode; a
        checkpoint that is damaged or of another call.
      OSError: the checkpoint cannot be written; the solves written before are intact.

    Warns:
      ConvergenceWarning: outside jit, once a call, some solutions did not converge.

    >>> import jax, jax.numpy as jnp, sparsejax as sj
    >>> problem = sj.Problem(sj.losses.SquaredLoss(jnp.eye(3), jnp.ones(3)), sj.penalties.L1(0.0))
    >>> solutions = sj.path(problem, jax.vmap(sj.penalties.L1)(jnp.array([0.3, 0.2, 0.1])))
    >>> solutions.params.shape
    (3, 3)
    """
    arguments = prepare_path("path", problem, penalties, init, mode, tol, maxiter)
    store = checkpoint_of("path", checkpoint, arguments, progress)
    chunked = progress or store is not None
    solution = _path_in_chunks(arguments, progress, store) if chunked else unchecked_path(arguments)
    warn_unconverged(arguments.problem, solution, arguments.tol)
    return with_axes(solution, arguments.shape)


def prepare_path(
    name: str,
    problem: Problem,
    penalties: Any,
    init: Any,
    mode: str,
    tol: ArrayLike | None,
    maxiter: ArrayLike,
) -> PathArguments:
    """Check and convert the arguments of `path`; several leading axes of the penalties become one axis.

    `cross_validate` and `stability_selection` call this too; ``name`` is the public function, for errors.
    """
    check_choice(f"{name}: mode", mode, MODES)
    given = as_protocol(name, problem).penalty
    problem, init, tol, maxiter, _ = prepare(name, problem, init, tol, maxiter)
    # `prepare` has replaced a penalty that closes over traced arrays by a `ClosurePenalty`.
    if not _same_structure(problem.penalty, for_shape_of(given, init)):
        raise TypeError(
            f"{name}: {type(given).__name__} closes over traced arrays: make them its leaves, so that each "
            "penalty of a path has its own."
        )
    # The form that problem.penalty has after `prepare`; `_shared_indices` refuses what is not a penalty.
    penalties = for_shape_of(as_penalty(penalties), init) if is_penalty(penalties) else penalties
    penalties = _shared_indices(name, problem.penalty, penalties)
    check_strengths(name, penalties)
    axes, shape = _varied_axes(name, problem.penalty, penalties)
    penalties = cast_strengths(penalties, jax.tree.leaves(init)[0].dtype)
    if len(shape) > 1:
        one_axis = lambda leaf: leaf.reshape(math.prod(shape), *leaf.shape[len(shape) :])
        penalties = with_varied(penalties, axes, one_axis)
    if mode == "auto":
        mode = "warm" if jax.default_backend() == "cpu" else "batch"
    return PathArguments(problem, penalties, init, tol, maxiter, axes, mode, shape, first=None)


def with_axes(tree: Any, shape: tuple[int, ...], at: int = 0) -> Any:
    """The tree with axis ``at`` of each leaf, one entry a penalty, reshaped to the user's axes ``shape``."""
    return tree if len(shape) == 1 else _reshaped(tree, shape, at)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _reshaped(tree: Any, shape: tuple[int, ...], at: int) -> Any:
    return jax.tree.map(lambda leaf: leaf.reshape(*leaf.shape[:at], *shape, *leaf.shape[at + 1 :]), tree)


def full_penalties(arguments: PathArguments) -> Any:
    """The penalties of a path in which every floating leaf has all the leading axes that the user gave."""
    leaves, rebuild = floating_leaves(arguments.penalties)
    shape = arguments.shape
    full = [
        jnp.broadcast_to(leaf, (*shape, *leaf.shape)) if axis is None else with_axes(jnp.asarray(leaf), shape)
        for leaf, axis in zip(leaves, arguments.axes, strict=True)
    ]
    return as_given(rebuild(full))  # the inverse of `for_shape_of` in `prepare_path`


def unchecked_path(p: PathArguments, complete: bool = True) -> Solution:
    """`path` without its checks, on one leading axis; with derivatives if problem or penalties are traced.

    The whole chain of solvers runs. Only inside a trace, in mode "warm", does ``complete=False`` change this:
    the first link runs alone.
    """
    constant = jax.tree.map(without_gradient, p.without_shape)
    solutions: Solution
    if is_eager(constant):
        constant = with_fewer_rows(constant)
        solutions = _path_program.alone(constant)
        # `_completed` yields all solutions again after each solve; the last yield is the result.
        for solutions in _completed(constant, solutions):  # noqa: B007, B020
            pass
    else:
        solutions = _path_in_trace(complete)(constant)
    if not any(map(is_traced, jax.tree.leaves((p.problem, p.penalties)))):
        return solutions
    # The derivative is of the problem as given: ``p`` carries gradients and all rows, ``constant`` does not.
    varied, problem_of = varied_leaves(p)
    rows = p.chain.links[0].rows  # whether the units bring the columns of X to one size, see `Link`
    with_derivative = lambda values, solution: attach(problem_of(values), solution, rows=rows)
    return jax.vmap(with_derivative)(varied, solutions)


def unfinished_solves(p: PathArguments, chain: Chain, solutions: Solution) -> np.ndarray:
    """For each solution of the first solver whether another program continues from it; outside any trace.

    The program is a later solver or, after a solve that rounding errors ended, the finish of the last solver.
    """
    light, tol, maxiter = without_arrays(solutions, p.tol, p.maxiter)
    answers = [due(light, tol, maxiter) for due, _ in chain.steps()]
    none = np.zeros(light.status.shape, bool)  # the answer of a chain without further programs
    found: np.ndarray = np.any([none, *answers], axis=0)
    return found & (light.status != INTERRUPTED)  # not solved: there is no point to continue from


def _completed(p: PathArguments, solutions: Solution, store: Checkpoint | None = None) -> Iterator[Solution]:
    """Complete the solutions that the first solver left unfinished; yields all solutions after each."""
    if p.mode == "batch":
        return  # its program holds the whole chain
    chain = p.chain
    unfinished = np.flatnonzero(unfinished_solves(p, chain, solutions)).tolist()
    if not unfinished:
        return
    varied, problem_of = varied_leaves(p)
    status = np.asarray(solutions.status)
    for i in unfinished:
        member = problem_of([leaf[i] for leaf in varied])
        one = jax.tree.map(lambda leaf, i=i: leaf[i], solutions)
        if i - 1 in unfinished and status[i] == MAX_ITER:
            # Solve i - 1 has just been completed: a better start than the point at which solve i ran out of
            # iterations. A solve that stalled keeps its own point, which is near its answer.
            one = one._replace(params=jax.tree.map(lambda leaf, i=i: leaf[i - 1], solutions.params))
        complete = functools.partial(completed, chain, member, one, p.tol, p.maxiter)
        found = saved_or_computed(store, f"rest-{i}", one, complete)
        solutions = jax.tree.map(lambda a, b, i=i: a.at[i].set(b), solutions, found)
        yield solutions


@dataclass(frozen=True)
class _OnePath:
    """One path as a `path_runner.Task`: it needs no data and records every solution."""

    def rounds(self, data: None) -> int:
        return 1

    def of(self, problem: Problem, data: None, number: jax.Array) -> tuple[Problem, None]:
        return problem, None

    def record(self, found: Any, solution: Any, judge: None, at: Any) -> Any:
        _, strength = at  # the numbers of the path, here 0, and of the strength
        return jax.tree.map(lambda whole, one: whole.at[strength].set(one), found, solution)


def _path_in_chunks(p: PathArguments, progress: bool, store: Checkpoint | None) -> Solution:
    """The path by many short calls, with a progress bar and a checkpoint; `Interrupted` after Ctrl-C."""
    p, nothing = with_fewer_rows(p), unsolved(solution_like(p.init), (p.size,))
    with bar_of("path", p.size, shown=progress, checkpoint=store) as bar:
        if p.mode == "warm":
            one = [(None, 1)]  # no data, one path
            (place,) = run_in_chunks(p, _OnePath(), one, nothing, bar, complete=False)
            solutions: Solution = place.found
        else:
            call = lambda some: _path_program.alone(p.without_shape._replace(penalties=some))
            solutions = run_in_slices(p, call, nothing, axis=0, bar=bar)
        more = _completed(p, solutions, store)
        while not bar.stop.is_set() and (after := next(more, None)) is not None:
            solutions = after
        if bar.stop.is_set():
            done = int(np.sum(np.asarray(solutions.status) != INTERRUPTED))
            text = f"path: interrupted after {done} of {p.size} solves, which are in .partial"
            raise Interrupted(text, with_axes(solutions, p.shape))
    return solutions


def _all_solves(p: PathArguments, *, complete: bool) -> Solution:
    """All solutions of a path, without derivatives.

    The whole chain of solvers runs with ``complete`` or in mode "batch", else its first link.
    """
    # Calls inside a trace reduce the rows here; eager callers have done so before, and rows are reduced only
    # once. Inside this function, on a CPU, the lanes of `jax.vmap` reduce their rows one after the other.
    p = with_fewer_rows(p)
    solves = PathSolver(p, complete)
    if p.mode == "batch":
        solve, arrays = as_one_program(p.chain, history=0), ()  # the first link has no further arguments
        lane: Any = lambda values: solve(solves.problem_of(values), p.init, p.tol, p.maxiter, arrays)
        return jax.vmap(lane)(solves.varied)
    prepared, start = solves.prepare()

    def step(start: Any, values: list[jax.Array]) -> tuple[Any, Solution]:
        solution, after = solves.solve(prepared, values, start)
        return after, solution

    return lax.scan(step, start, solves.varied)[1]


_path_program = Compiled(with_name("path", functools.partial(_all_solves, complete=False)))


@functools.cache
def _path_in_trace(complete: bool) -> Callable[..., Solution]:
    """The whole path as one function with its batching rule, to be called inside a trace."""
    return by_lanes(with_name("path", functools.partial(_all_solves, complete=complete)))


def _same_structure(a: Any, b: Any) -> bool:
    first: Any = jax.tree.structure(a)
    return bool(first == jax.tree.structure(b))


def _advice(penalty: Any, given: Any) -> str:
    """The end of an error message: how to make ``penalties`` of the strengths or list of penalties ``given``.

    It is empty if ``given`` is neither, or if a user wrote the class of ``penalty``.
    """
    leaves = jax.tree.leaves(given)
    if leaves and isinstance(given, (list, tuple)) and all(_same_structure(penalty, one) for one in given):
        return (
            " To make one penalty of a list of them write jax.tree.map(lambda *x: jnp.stack(x), *penalties)."
        )
    if is_penalty(given) or not all(
        isinstance(x, (int, float, np.ndarray, np.number, jax.Array)) for x in leaves
    ):
        return ""
    kind, names = type(penalty).__name__, penalty.strengths
    if kind not in vars(known_penalties) or not names:
        return ""
    # The strengths of a `Sum` or a `ByLeaf` are whole penalties, which numbers cannot replace.
    if not jax.tree_util.all_leaves([getattr(penalty, name) for name in names]):
        return ""
    values, make = ", ".join(names), f"sj.penalties.{kind}"
    others = [leaf for leaf in penalty._leaves if leaf not in names]
    if others:
        make = f"lambda {values}: {make}({', '.join([*names, *others])})"
    return f" Write jax.vmap({make})({values if len(names) > 1 else 'strengths'})."


def _shared_indices(caller: str, penalty: Any, penalties: Any) -> Any:
    """``penalties`` without the copies of groups and other integers that `jax.vmap` of a constructor makes.

    TypeError: ``penalties`` has another structure. ValueError: copies differ (traced ones are not compared).
    """
    if not _same_structure(penalty, penalties):
        raise TypeError(
            f"{caller}: penalties must be a {type(penalty).__name__} like problem.penalty, with a leading "
            f"axis on what varies; got {penalties!r}.{_advice(penalty, penalties)}"
        )

    def shared(new: Any, old: Any) -> Any:
        shape = jnp.shape(old)
        if jnp.issubdtype(jnp.result_type(new), jnp.floating) or jnp.shape(new) == shape:
            return new
        extra = jnp.ndim(new) - len(shape)
        fits = extra > 0 and jnp.shape(new)[extra:] == shape
        new = new if is_traced(new) else np.asarray(new)  # inside jit an index of a jax.Array is traced
        first = new[(0,) * extra] if fits else new
        if not fits or not (is_traced(new) or (new == first).all()):
            raise ValueError(
                f"{caller}: the groups, and all other leaves that are integers, must be the same in all "
                "penalties; give strengths as floating numbers."
            )
        return first

    return jax.tree.map(shared, penalties, penalty)


def _varied_axes(caller: str, penalty: Any, penalties: Any) -> tuple[tuple[int | None, ...], tuple[int, ...]]:
    """Which floating leaves of ``penalties`` vary, and the shape of the leading axes that they share.

    A leaf varies if it has leading axes that ``penalty`` lacks: its entry is then 0, else None.
    """
    axes: list[int | None] = []
    shapes = set()
    leaves = zip(leaf_names(penalties), jax.tree.leaves(penalties), jax.tree.leaves(penalty), strict=True)
    for name, new, old in leaves:
        if not jnp.issubdtype(jnp.result_type(new), jnp.floating):
            continue
        extra = jnp.ndim(new) - jnp.ndim(old)
        if not is_traced(new) and answer_of(_any_nan, new):  # infinite values are allowed: bounds have them
            raise ValueError(f"{caller}: {name} must not be NaN, got {new}.")
        if extra < 0 or jnp.shape(new)[extra:] != jnp.shape(old):
            raise ValueError(
                f"{caller}: {name} has shape {jnp.shape(new)}; it must have the shape of problem.penalty's, "
                f"{jnp.shape(old)}, or further leading axes."
            )
        if extra:
            shapes.add(tuple(new.shape[:extra]))
        axes.append(0 if extra else None)
    if not shapes:
        raise ValueError(f"{caller}: nothing varies: give at least one strength a leading axis.")
    if len(shapes) > 1 or any(0 in shape for shape in shapes):
        raise ValueError(f"{caller}: leading axes must agree and not be empty, got {sorted(shapes)}.")
    return tuple(axes), shapes.pop()


def _any_nan(xp: Any, x: Any) -> Any:
    """A question for `answer_of`, which passes numpy or jax.numpy as ``xp``."""
    return xp.isnan(x).any()
