"""Regularisation paths: one problem, many strengths."""

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checks import check_choice, is_eager, is_traced
from sparsejax.compiling import Compiled, solve_in_units
from sparsejax.factor import Factor
from sparsejax.hoisting import hoisted
from sparsejax.penalties import as_penalty, cast_strengths, check_strengths, is_penalty
from sparsejax.problem import Problem, in_units, units_of
from sparsejax.solution import CONVERGED, ConvergenceWarning, Solution, warn_unconverged
from sparsejax.solvers import pick, prepare

MODES = ("auto", "warm", "batch")


def path(
    problem: Problem,
    penalties: Any,
    init: Any = None,
    *,
    mode: str = "auto",
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
) -> Solution:
    """Solve ``problem`` for a whole batch of penalties, in one compiled call.

    Args:
      problem: its penalty gives the structure; its strengths are not used.
      penalties: one penalty of the same type in which every leaf that is varied has one or more leading axes
        more than in ``problem.penalty``, as ``jax.vmap(sj.penalties.L21)(alphas)`` makes it, or a
        `jax.vmap` within another for a grid of two strengths. The leading axes agree; leaves
        without are shared.
      init: the first start, as `sparsejax.solve`; needed where the loss is a plain function.
      mode: "warm" solves one after the other (`lax.scan`), each from the last answer (order strengths from
        large to small; of several leading axes the last one runs fastest); "batch" solves all at once
        (`jax.vmap`); "auto" is warm on a CPU, where the arithmetic is the limit, and batch on an
        accelerator, where it is not.
      tol, maxiter: as `sparsejax.solve`, for each.

    Returns:
      `Solution` in which every field has the leading axes; ``solutions[i]`` is one of them.

    Raises:
      TypeError, ValueError: penalties of another type, nothing varied, axes that disagree, an unknown mode.

    Warns:
      ConvergenceWarning: outside jit, solutions that did not converge, once a call.

    >>> import jax, jax.numpy as jnp, sparsejax as sj
    >>> problem = sj.Problem(sj.losses.SquaredLoss(jnp.eye(3), jnp.ones(3)), sj.penalties.L1(0.0))
    >>> solutions = sj.path(problem, jax.vmap(sj.penalties.L1)(jnp.array([0.3, 0.2, 0.1])))
    >>> solutions.params.shape
    (3, 3)
    """
    arguments = prepare_path("path", problem, penalties, init, mode, tol, maxiter)
    solution = batched_path(arguments)
    warn_unconverged(arguments.problem, solution, arguments.tol)
    shaped: Solution = with_axes(solution, arguments.shape)
    return shaped


class PathArguments(NamedTuple):
    """What `path` was given, checked."""

    problem: Problem
    penalties: Any
    init: Any
    tol: jax.Array
    maxiter: jax.Array
    axes: tuple[int | None, ...]  # of every floating leaf of the penalties: 0 if it varies
    mode: str
    shape: tuple[int, ...]  # the leading axes that were given; those of ``penalties`` are made one


def prepare_path(
    name: str, problem: Any, penalties: Any, init: Any, mode: str, tol: Any, maxiter: Any
) -> PathArguments:
    """Check the arguments of `path` and of what goes over a path."""
    check_choice(f"{name}: mode", mode, MODES)
    problem, init, tol, maxiter, _ = prepare(name, problem, init, tol, maxiter)
    penalties = as_penalty(penalties) if is_penalty(penalties) else penalties
    penalties = _shared_indices(name, problem.penalty, penalties)
    check_strengths(name, penalties)
    axes, shape = _varied_axes(name, problem.penalty, penalties)
    penalties = _in_one_axis(cast_strengths(penalties, jax.tree.leaves(init)[0].dtype), axes, shape)
    problem = hoisted(problem, init)
    if not _same_structure(problem.penalty, penalties):
        raise TypeError(
            f"{name}: {type(problem.penalty).__name__} closes over traced arrays: make them its leaves, as "
            "all penalties of a path must hold their own."
        )
    if mode == "auto":
        mode = "warm" if jax.default_backend() == "cpu" else "batch"
    return PathArguments(problem, penalties, init, tol, maxiter, axes, mode, shape)


def with_axes(tree: Any, shape: tuple[int, ...], at: int = 0) -> Any:
    """The tree with its axis ``at``, of a path, as the leading axes that were given."""
    if len(shape) == 1:
        return tree
    return jax.tree.map(lambda leaf: leaf.reshape(*leaf.shape[:at], *shape, *leaf.shape[at + 1 :]), tree)


def full_penalties(arguments: PathArguments) -> Any:
    """The candidates of a path as they were given, every strength with all leading axes."""
    leaves, rebuild = floating_leaves(arguments.penalties)
    shape = arguments.shape
    full = [
        jnp.broadcast_to(leaf, (*shape, *leaf.shape)) if axis is None else with_axes(jnp.asarray(leaf), shape)
        for leaf, axis in zip(leaves, arguments.axes, strict=True)
    ]
    return rebuild(full)


def batched_path(arguments: PathArguments) -> Solution:
    """`path` without checks, on one leading axis."""
    p = arguments
    options = {"axes": p.axes, "mode": p.mode}
    solutions: Solution = _path(p.problem, p.penalties, p.init, p.tol, p.maxiter, **options)
    resume = pick(p.problem).resume
    if resume is None or resume.rest is None or not is_eager((p, solutions)):
        return solutions
    varied, problem_of = _members(p.problem, p.penalties, p.axes)
    for i in np.flatnonzero(np.asarray(solutions.status) != CONVERGED):
        member = problem_of([leaf[i] for leaf in varied])
        with warnings.catch_warnings():  # of the path as a whole
            warnings.simplefilter("ignore", ConvergenceWarning)
            one = resume.rest(member, solutions.params[i], tol=p.tol, maxiter=p.maxiter)
        solutions = jax.tree.map(lambda a, b, i=i: a.at[i].set(b), solutions, one)
    return solutions


def _members(
    problem: Problem, penalties: Any, axes: tuple[int | None, ...]
) -> tuple[list[jax.Array], Callable[[list[jax.Array]], Problem]]:
    """The leaves that vary, and the problem with one value of each."""
    leaves, rebuild = floating_leaves(penalties)

    def problem_of(values: list[jax.Array]) -> Problem:
        remaining = iter(values)
        full = [leaf if axis is None else next(remaining) for leaf, axis in zip(leaves, axes, strict=True)]
        return problem._replace(penalty=rebuild(full))

    return [leaf for leaf, axis in zip(leaves, axes, strict=True) if axis is not None], problem_of


def _whole_path(
    complete: bool,
    problem: Problem,
    penalties: Any,
    init: Any,
    tol: jax.Array,
    maxiter: jax.Array,
    *,
    axes: tuple[int | None, ...],
    mode: str,
) -> Solution:
    varied, problem_of = _members(problem, penalties, axes)
    solver = pick(problem)
    resume = solver.resume
    known = shared = first = None
    if resume is not None:
        complete = complete or resume.rest is None
        known = units_of(problem, resume.rows)
        scaled = in_units(problem, known)
        start = init if known is None else known.units.start(init)
        shared = resume.shared(lax.stop_gradient(scaled.smooth))
        first = resume.first(shared, *lax.stop_gradient((scaled, start)))

    def one(values: list[jax.Array], init: Any, state: Any) -> tuple[Solution, Any]:
        changed = problem_of(values)
        if resume is None:
            return solver.function(changed, init, tol=tol, maxiter=maxiter), state

        def go_on(changed: Problem, init: Any) -> tuple[Solution, Any, Any]:
            solution, new = resume.solve(changed, shared, init, state, tol, maxiter, complete=complete)
            return solution, shared if isinstance(shared, Factor) else None, new

        return solve_in_units(go_on, changed, init, known)

    if mode == "batch":
        return jax.vmap(lambda values: one(values, init, None)[0])(varied)

    def step(carry: tuple[Any, Any], values: list[jax.Array]) -> tuple[tuple[Any, Any], Solution]:
        solution, state = one(values, *carry)
        return (solution.params, state), solution

    return lax.scan(step, (init, first), varied)[1]


_path = Compiled(
    functools.partial(_whole_path, True),
    ("axes", "mode"),
    functools.partial(_whole_path, False),
)


def floating_leaves(tree: Any) -> tuple[tuple[jax.Array, ...], Any]:
    """The floating leaves of a penalty, and the function that puts others in their places.

    The other leaves are the indices of groups.
    """
    leaves, treedef = jax.tree.flatten(tree)
    floating = [jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in leaves]

    def rebuild(values: Any) -> Any:
        values = iter(values)
        return jax.tree.unflatten(
            treedef, [next(values) if f else leaf for f, leaf in zip(floating, leaves, strict=True)]
        )

    return tuple(leaf for f, leaf in zip(floating, leaves, strict=True) if f), rebuild


def _same_structure(a: Any, b: Any) -> bool:
    first: Any = jax.tree.structure(a)
    return bool(first == jax.tree.structure(b))


def _shared_indices(caller: str, penalty: Any, penalties: Any) -> Any:
    """``penalties`` with one copy of the groups, which `jax.vmap` of a constructor has repeated."""
    if not _same_structure(penalty, penalties):
        raise TypeError(
            f"{caller}: penalties must be a {type(penalty).__name__} like problem.penalty, with a leading "
            f"axis on what varies; got {penalties!r}."
        )

    def shared(new: Any, old: Any) -> Any:
        shape = jnp.shape(old)
        if jnp.issubdtype(jnp.result_type(new), jnp.floating) or jnp.shape(new) == shape:
            return new
        extra = jnp.ndim(new) - len(shape)
        fits = extra > 0 and jnp.shape(new)[extra:] == shape
        first = new[(0,) * extra] if fits else new
        if not fits or not (is_traced(new) or (np.asarray(new) == np.asarray(first)).all()):
            raise ValueError(f"{caller}: the groups must be the same in all penalties.")
        return first

    return jax.tree.map(shared, penalties, penalty)


def _varied_axes(caller: str, penalty: Any, penalties: Any) -> tuple[tuple[int | None, ...], tuple[int, ...]]:
    """For each floating leaf 0 if it has more axes than in ``penalty``, else None; and those axes."""
    axes: list[int | None] = []
    shapes = set()
    paths, _ = jax.tree_util.tree_flatten_with_path(penalties)
    for (key, new), old in zip(paths, jax.tree.leaves(penalty), strict=True):
        if not jnp.issubdtype(jnp.result_type(new), jnp.floating):
            continue
        extra = jnp.ndim(new) - jnp.ndim(old)
        name = jax.tree_util.keystr(key).lstrip(".")
        if not is_traced(new) and np.isnan(np.asarray(new)).any():  # bounds may be infinite
            raise ValueError(f"{caller}: {name} must not be NaN, got {np.asarray(new)}.")
        if extra < 0 or jnp.shape(new)[extra:] != jnp.shape(old):
            raise ValueError(
                f"{caller}: {name} has shape {jnp.shape(new)}; it must be that of problem.penalty, "
                f"{jnp.shape(old)}, or have further leading axes."
            )
        if extra:
            shapes.add(tuple(new.shape[:extra]))
        axes.append(0 if extra else None)
    if not shapes:
        raise ValueError(f"{caller}: nothing varies: give at least one strength a leading axis.")
    if len(shapes) > 1 or any(0 in shape for shape in shapes):
        raise ValueError(f"{caller}: leading axes must agree and not be empty, got {sorted(shapes)}.")
    return tuple(axes), shapes.pop()


def _in_one_axis(penalties: Any, axes: tuple[int | None, ...], shape: tuple[int, ...]) -> Any:
    if len(shape) == 1:
        return penalties
    leaves, rebuild = floating_leaves(penalties)
    size = math.prod(shape)
    return rebuild([
        leaf if axis is None else leaf.reshape(size, *leaf.shape[len(shape) :])
        for leaf, axis in zip(leaves, axes, strict=True)
    ])  # fmt: skip
