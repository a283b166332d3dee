"""The arguments that all solvers share, checked before anything is traced."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float, as_int, as_nonnegative, default_tol, is_traced, on_device
from sparsejax.driver.closures import evaluate, hoisted, prox_of
from sparsejax.losses import PlainLoss
from sparsejax.penalties import PlainPenalty, cast_strengths, feasible
from sparsejax.problem import Problem, as_protocol, zeros


def prepare(
    name: str,
    problem: Any,
    init: Any,
    tol: ArrayLike | None,
    maxiter: ArrayLike,
    history: Any = 0,
    unfit: Callable[[Problem], str | None] | None = None,
    names: tuple[str, str] = ("tol", "maxiter"),
) -> tuple[Problem, Any, jax.Array, jax.Array, int]:
    """The arguments of the solver ``name``: the problem in the protocol, init, tol and maxiter as arrays.

    Args:
      name: of the solver, for messages.
      problem: as the user gave it.
      init, tol, maxiter, history: as `sparsejax.admm`; None is the default.
      unfit: says in words why the solver does not take a problem, None if it does.
      names: what the user calls tol and maxiter.

    Raises:
      TypeError, ValueError: an unfit problem or argument, before tracing.

    >>> import numpy as np, sparsejax as sj
    >>> problem = sj.Problem(sj.losses.SquaredLoss(np.eye(4, 3), np.eye(4, 2)), sj.penalties.L21(0.0625))
    >>> from sparsejax.driver import prepare
    >>> known, init, tol, maxiter, history = prepare("mine", problem, None, None, 100)
    >>> init.shape, int(maxiter)
    ((3, 2), 100)
    """
    problem = as_protocol(name, problem)
    if "shape" in problem.smooth.provides:
        init = _as_array(name, problem, init)
    else:
        init = zeros(problem) if init is None else _as_params(name, init)
    init = feasible(problem.penalty, init)
    check_function(name, problem, init)
    dtype = jax.tree.leaves(init)[0].dtype
    try:
        tol = _as_tol(names[0], tol, dtype)
        if is_traced(maxiter):
            maxiter = jnp.asarray(maxiter, jnp.int32)
        else:
            maxiter = on_device(as_int(names[1], maxiter, 0, floats=True), np.dtype(np.int32))
        history = as_int("history", history, 0)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None
    # Before anything asks what its parts can do: by what they close over they may be able to do less.
    problem = hoisted(problem, init)
    problem = problem._replace(penalty=cast_strengths(problem.penalty, dtype))
    reason = None if unfit is None else unfit(problem)
    if reason is not None:
        raise TypeError(f"{name} {reason}")
    return problem, init, tol, maxiter, history


def _as_tol(name: str, tol: Any, dtype: Any) -> jax.Array:
    if tol is None:
        return on_device(default_tol(dtype), dtype)
    value = as_nonnegative(name, tol, dtype)
    return value if is_traced(value) else on_device(float(value), dtype)


def _as_array(name: str, problem: Problem, init: Any) -> jax.Array:
    if init is None:
        return zeros(problem)
    start = as_float("init", init, (1, 2), problem.smooth.dtype)
    shape = tuple(problem.smooth.params_shape)
    if start.shape != shape:
        raise ValueError(f"{name}: init has shape {start.shape}; the parameters have shape {shape}.")
    return start


def _as_params(name: str, init: Any) -> Any:
    """``init`` for a plain function: an array of any rank, or a pytree of arrays of one dtype."""
    if not jax.tree.leaves(init):
        raise ValueError(f"{name}: init has no arrays; it must be an array or a pytree of arrays.")
    init = jax.tree.map(lambda leaf: as_float("init", leaf, tuple(range(33))), init)
    dtypes = {leaf.dtype.name for leaf in jax.tree.leaves(init)}
    if len(dtypes) > 1:
        raise TypeError(f"{name}: the arrays of init have dtypes {', '.join(sorted(dtypes))}; give them one.")
    return init


def check_function(name: str, problem: Problem, init: Any) -> None:
    """Raise if a user's ``smooth`` is no differentiable scalar function of W, or a prox changes the form."""
    if not problem.smooth._self_contained:
        try:
            value = jax.eval_shape(evaluate, problem.smooth, init)
            shapes = [leaf.shape for leaf in jax.tree.leaves(value)]
            if shapes != [()] or not jnp.issubdtype(value.dtype, jnp.floating):
                raise TypeError(f"it returns {value}, not one real number")
            jax.eval_shape(_gradient, problem.smooth, init)
        except Exception as error:
            raise TypeError(
                f"{name}: smooth must be a differentiable function W -> () at W of the shape of init: {error}"
            ) from error
    if not problem.penalty._self_contained:
        form = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), init)
        step = jnp.ones((), jax.tree.leaves(init)[0].dtype)
        after = jax.tree.map(
            lambda leaf: (leaf.shape, leaf.dtype), jax.eval_shape(prox_of, problem.penalty, init, step)
        )
        if form != after:
            raise TypeError(f"{name}: penalty.prox must return W's shapes and dtypes, {form}, got {after}.")


# By name, so that jax recognises what it has traced before.
def _gradient(smooth: Any, W: Any) -> Any:
    return jax.grad(smooth)(W)


def kinds(problem: Problem) -> str:
    """The names of a problem's two classes, for messages.

    Args:
      problem: `sparsejax.Problem`, in the protocol or not.

    Returns:
      ``"Loss with Penalty"``; of a wrapped function or penalty the user's own name.

    Never raises.

    >>> import numpy as np, sparsejax as sj
    >>> kinds(sj.Problem(sj.losses.SquaredLoss(np.eye(2), np.ones(2)), sj.penalties.L1(0.1)))
    'SquaredLoss with L1'
    """
    smooth, penalty = problem.smooth, problem.penalty
    if isinstance(smooth, PlainLoss):
        smooth = smooth.fun
    if isinstance(penalty, PlainPenalty):
        penalty = penalty.penalty
    return f"{type(smooth).__name__} with {type(penalty).__name__}"
