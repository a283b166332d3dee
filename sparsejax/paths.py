"""Regularisation paths: one problem, many strengths."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._pytree import is_traced, split_floating
from sparsejax.implicit import attach, factorise
from sparsejax.problem import Problem, Solution
from sparsejax.solve import solve
from sparsejax.solvers import _admm, _loop


def path(
    problem: Problem,
    penalties: Any,
    *,
    mode: str = "auto",
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
) -> Solution:
    """Solve ``problem`` for a whole batch of penalties, in one compiled call.

    Args:
      problem: its penalty gives the structure; its strengths are not used.
      penalties: one penalty of the same type in which every leaf that is varied has one more, leading,
        axis than in ``problem.penalty``, as ``jax.vmap(sj.penalties.L21)(alphas)`` makes it. The leading
        axes agree; leaves without one are shared.
      mode: "warm" solves one after the other (`lax.scan`), each from the last answer (order strengths from
        large to small); "batch" solves all at once (`jax.vmap`); "auto" is warm on a CPU, where the
        arithmetic is the limit, and batch on an accelerator, where it is not.
      tol, maxiter: as `sparsejax.solve`, for each.

    Returns:
      `Solution` in which every field has the leading axis.

    Raises:
      TypeError, ValueError: penalties of another type, nothing varied, axes that disagree, an unknown mode.
    """
    return batched_path(problem, *prepare_path("path", problem, penalties, mode, tol, maxiter))


def prepare_path(name: str, problem: Problem, penalties: Any, mode: str, tol: Any, maxiter: Any):
    """Check the arguments of `path`; returns those of `batched_path` after the problem."""
    modes = ("auto", "warm", "batch")
    if mode not in modes:
        raise ValueError(f"{name}: mode must be one of {modes}, got {mode!r}.")
    init, tol, maxiter = _loop.prepare(name, problem, None, tol, maxiter, 0)
    penalties = _shared_indices(name, problem.penalty, penalties)
    axes = _varied_axes(name, problem.penalty, penalties)
    if mode == "auto":
        mode = "warm" if jax.default_backend() == "cpu" else "batch"
    return penalties, init, tol, maxiter, axes, mode


@partial(jax.jit, static_argnames=("axes", "mode"))
def batched_path(problem, penalties, init, tol, maxiter, axes, mode):
    strengths, rebuild = split_floating(penalties)
    varied = [leaf for leaf, axis in zip(strengths, axes, strict=True) if axis is not None]

    def at(values):
        values = iter(values)
        full = [leaf if axis is None else next(values) for leaf, axis in zip(strengths, axes, strict=True)]
        return problem._replace(penalty=rebuild(full))

    fixed = lax.stop_gradient(problem)
    factor = factorise(fixed.smooth) if hasattr(problem.smooth, "majorizer") else None

    def one(values, init, rho):
        if factor is not None:
            problem = at(values)
            args = lax.stop_gradient((problem, init))
            solution, rho = _admm.solve_factored(args[0], factor, args[1], rho, tol, maxiter, 0)
            return attach(problem, solution, factor), rho
        return solve(at(values), init, tol=tol, maxiter=maxiter), rho

    if mode == "batch":
        return jax.vmap(lambda values: one(values, init, None)[0])(varied)

    def step(carry, values):
        solution, rho = one(values, *carry)
        return (solution.params, rho), solution

    rho = None if factor is None else _admm.first_rho(factor, init)
    return lax.scan(step, (init, rho), varied)[1]


def _shared_indices(caller, penalty, penalties):
    """``penalties`` with one copy of the groups, which `jax.vmap` of a constructor has repeated."""
    if len({jax.tree.structure(penalty), jax.tree.structure(penalties)}) > 1:
        raise TypeError(
            f"{caller}: penalties must be a {type(penalty).__name__} like problem.penalty, with a leading "
            f"axis on what varies; got {penalties!r}."
        )

    def shared(new, old):
        if jnp.issubdtype(jnp.result_type(new), jnp.floating) or jnp.shape(new) == jnp.shape(old):
            return new
        same = is_traced(new) or (np.asarray(new) == np.asarray(new)[:1]).all()
        if jnp.shape(new)[1:] != jnp.shape(old) or not same:
            raise ValueError(f"{caller}: the groups must be the same in all penalties.")
        return new[0]

    return jax.tree.map(shared, penalties, penalty)


def _varied_axes(caller, penalty, penalties) -> tuple[int | None, ...]:
    """For each strength 0 if it has one more axis than in ``penalty``, else None."""
    axes: list[int | None] = []
    lengths = set()
    paths, _ = jax.tree_util.tree_flatten_with_path(penalties)
    for (key, new), old in zip(paths, jax.tree.leaves(penalty), strict=True):
        if not jnp.issubdtype(jnp.result_type(new), jnp.floating):
            continue
        extra = jnp.ndim(new) - jnp.ndim(old)
        name = jax.tree_util.keystr(key).lstrip(".")
        if not is_traced(new):
            values = np.asarray(new)  # jax.vmap of a constructor has checked nothing
            if not (np.isfinite(values).all() and (values >= 0).all()):
                raise ValueError(f"{caller}: {name} must be finite and >= 0, got {values}.")
        if extra == 1:
            lengths.add(new.shape[0])
        if extra not in (0, 1) or jnp.shape(new)[extra:] != jnp.shape(old):
            raise ValueError(
                f"{caller}: {name} has shape {jnp.shape(new)}; it must be that of problem.penalty, "
                f"{jnp.shape(old)}, or have one more leading axis."
            )
        axes.append(0 if extra == 1 else None)
    if not lengths:
        raise ValueError(f"{caller}: nothing varies: give at least one strength a leading axis.")
    if len(lengths) > 1 or 0 in lengths:
        raise ValueError(
            f"{caller}: leading axes must agree and not be empty, got lengths {sorted(lengths)}."
        )
    return tuple(axes)
