"""The arguments that all solvers share, checked before anything is traced."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sparsejax._core.checks import (
    INT32_MAX,
    as_float,
    as_int,
    as_nonnegative,
    default_tol,
    is_traced,
    on_device,
)
from sparsejax.closures import evaluate, with_closures_as_leaves
from sparsejax.losses import LinearModelLoss, Loss, PlainLoss
from sparsejax.penalties import Penalty, PlainPenalty, Sum, cast_strengths
from sparsejax.problem import Problem, as_protocol, zeros


def prepare(
    name: str,
    problem: Problem,
    init: Any,
    tol: ArrayLike | None,
    maxiter: ArrayLike,
    history: int = 0,
    unfit: Callable[[Problem], str | None] | None = None,
    names: tuple[str, str] = ("tol", "maxiter"),
) -> tuple[Problem, Any, jax.Array, jax.Array, int]:
    """Check the arguments of the solver ``name`` and convert them.

    Args:
      name: the solver's name, for error messages.
      problem: the problem as the user gave it.
      init, tol, maxiter, history: the arguments of `sparsejax.admm`; None stands for the default.
      unfit: returns the reason in words why the solver does not take a problem, or None if it takes it.
      names: the caller's names of tol and maxiter, for error messages.

    Returns:
      The problem in the protocol; init as an array or pytree; tol and maxiter as arrays (); history.

    Raises:
      TypeError, ValueError: an argument is invalid, or ``unfit`` gives a reason; both before tracing.

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
        if jax.tree_util.all_leaves([init]) and init.ndim > 0:
            problem.penalty.check(init.shape)  # `Problem` did not know the shape
    check_penalty(name, problem.penalty, init)
    check_function(name, problem, init)
    dtype = jax.tree.leaves(init)[0].dtype
    try:
        tol = _as_tol(names[0], tol, dtype)
        maxiter = _as_maxiter(names[1], maxiter)
        history = as_int("history", history, 0)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None
    # This comes before `unfit`: a class that closes over traced arrays loses its optional capabilities.
    problem = with_closures_as_leaves(problem, init)
    problem = problem._replace(penalty=cast_strengths(problem.penalty, dtype))
    reason = None if unfit is None else unfit(problem)
    if reason is not None:
        raise TypeError(f"{name} {reason}")
    return problem, init, tol, maxiter, history


def _as_tol(name: str, tol: ArrayLike | None, dtype: np.dtype) -> jax.Array:
    if tol is None:
        return on_device(default_tol(dtype), dtype)
    if isinstance(tol, float) and 0 <= tol <= 1:  # the usual case; the checks below take longer
        return on_device(float(tol), dtype)
    if isinstance(tol, (bool, np.bool_)):
        raise TypeError(f"{name} must be a number, got {tol!r}.")
    value = as_nonnegative(name, tol, dtype)
    if is_traced(value):
        return jnp.where(jnp.isfinite(value), value, jnp.nan)  # nothing meets a tolerance of NaN
    return on_device(float(value), dtype)


def _as_maxiter(name: str, maxiter: ArrayLike) -> jax.Array:
    if not is_traced(maxiter):
        return on_device(as_int(name, maxiter, 0, floats=True), np.dtype(np.int32))
    if not jnp.issubdtype(jnp.result_type(maxiter), jnp.integer):
        raise TypeError(f"{name} must be an integer, got {jnp.result_type(maxiter)} under jit.")
    if jnp.ndim(maxiter):
        raise ValueError(f"{name} has shape {jnp.shape(maxiter)}; it must be 0-d.")
    large = jnp.asarray(maxiter, jnp.float32) >= 2.0**31  # the cast would wrap around
    return jnp.where(large, INT32_MAX, jnp.asarray(maxiter, jnp.int32))


def _as_array(name: str, problem: Problem, init: Any) -> jax.Array:
    """``init`` as an array of the shape and dtype of W, which the loss knows; zeros for None."""
    if init is None:
        return zeros(problem)
    shape = tuple(problem.smooth.params_shape)
    start = as_float("init", init, tuple(sorted({1, 2, len(shape)})), problem.smooth.dtype)
    if start.shape != shape:
        raise ValueError(f"{name}: init has shape {start.shape}; the parameters have shape {shape}.")
    return start


def _as_params(name: str, init: Any) -> Any:
    """``init`` where the loss does not know the shape of W: any array, or a pytree of arrays of one dtype."""
    if not jax.tree.leaves(init):
        raise ValueError(f"{name}: init has no arrays; it must be an array or a pytree of arrays.")
    init = jax.tree.map(lambda leaf: as_float("init", leaf, tuple(range(33))), init)
    if any(leaf.size == 0 for leaf in jax.tree.leaves(init)):
        raise ValueError(f"{name}: init has an empty array; every array of it needs an entry.")
    dtypes = {leaf.dtype.name for leaf in jax.tree.leaves(init)}
    if len(dtypes) > 1:
        raise TypeError(f"{name}: the arrays of init have dtypes {', '.join(sorted(dtypes))}, not one.")
    return init


def check_function(name: str, problem: Problem, init: Any) -> None:
    """Trace a loss that the user wrote, and check what it returns.

    Raises:
      TypeError: ``smooth`` is no differentiable function W -> (), or a hook returns another shape.
      ValueError: ``curvature`` is not > 0 and finite.
    """
    if not problem.smooth._self_contained:
        if isinstance(problem.smooth, LinearModelLoss):
            _check_entries(name, problem.smooth)
            _check_curvature(name, problem.smooth)
        try:
            value = jax.eval_shape(evaluate, problem.smooth, init)
            shapes = [leaf.shape for leaf in jax.tree.leaves(value)]
            if shapes != [()] or not jnp.issubdtype(value.dtype, jnp.floating):
                raise TypeError(f"it returns {value}, not one real number")
            dtype = jax.tree.leaves(init)[0].dtype
            if value.dtype != dtype:
                raise TypeError(f"it returns {value.dtype} where init is {dtype}: give init in that dtype")
            jax.eval_shape(_gradient, problem.smooth, init)
        except Exception as error:
            raise TypeError(
                f"{name}: smooth must be a differentiable function W -> () at W of the shape of init: {error}"
            ) from error


def check_penalty(name: str, penalty: Penalty, init: Any) -> None:
    """Trace the methods of a penalty, or of parts of a sum, that the user wrote, and check what they return.

    Raises:
      TypeError: a method fails at W, or returns another shape or dtype than the protocol says; ``strengths``
        or ``degrees`` do not fit.
    """
    if isinstance(penalty, Sum):
        for part in penalty.parts:
            check_penalty(name, part, init)
        return
    if penalty._self_contained:
        return
    _check_strengths_named(name, penalty)
    kind, one = _kind(penalty), jnp.ones((), jax.tree.leaves(init)[0].dtype)
    try:
        returned = jax.eval_shape(_returned, penalty, init, one)
    except Exception as error:
        raise TypeError(f"{name}: a method of {kind} fails at W of the shape of init: {error}") from error
    expected = {"prox": jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), init)}
    expected["smooth_where"] = jax.tree.map(lambda leaf: (leaf.shape, np.dtype(bool)), init)
    for method, value in returned.items():
        found = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), value)
        if method in expected and found != expected[method]:
            raise TypeError(f"{name}: {method} of {kind} must return {expected[method]}, got {found}.")
        if method not in expected and [leaf.shape for leaf in jax.tree.leaves(value)] != [()]:
            raise TypeError(f"{name}: {method} of {kind} must return one number, got {found}.")


def _check_entries(name: str, loss: LinearModelLoss) -> None:
    """Raise unless ``entries`` and ``derivatives`` return arrays of the shape of the predictions."""
    H, kind = jax.ShapeDtypeStruct(jnp.shape(loss.Y), loss.dtype), type(loss).__name__
    entries, derivatives = jax.eval_shape(_hooks, loss, H)
    for method, value, count in (("entries", entries, 1), ("derivatives", derivatives, 2)):
        found = [leaf.shape for leaf in jax.tree.leaves(value)]
        if found != (expected := count * [H.shape]):
            raise TypeError(f"{name}: {method} of {kind} must return shape {expected}, got {found}.")


def _check_curvature(name: str, loss: LinearModelLoss) -> None:
    """Raise unless ``curvature`` is None or a finite number > 0."""
    bound = loss.curvature
    if bound is None or is_traced(bound):
        return
    known, kind = np.asarray(bound), type(loss).__name__
    if known.shape != () or known.dtype.kind not in "fiu":
        raise TypeError(f"{name}: curvature of {kind} must be None or one number, got {bound!r}.")
    if not 0 < known < np.inf:
        raise ValueError(f"{name}: curvature of {kind} must be > 0 and finite, got {bound!r}.")


def _check_strengths_named(name: str, penalty: Penalty) -> None:
    """Raise if ``strengths`` names something else than leaves, or has another length than ``degrees``."""
    structure: Any = jax.tree.structure(penalty)
    known, size = {*dir(penalty)}, structure.num_leaves
    # Two penalties without a leaf in common: what both have is static.
    one, other = (jax.tree.unflatten(structure, range(first, first + size)) for first in (0, size))

    def static(strength: str) -> bool:
        values, others = (jax.tree.leaves(getattr(tree, strength)) for tree in (one, other))
        return bool(values) and values == others

    absent = [strength for strength in penalty.strengths if strength not in known or static(strength)]
    if absent:
        raise TypeError(
            f"{name}: strengths of {_kind(penalty)} names {', '.join(absent)}: no leaf has such a name."
        )
    if "units" in penalty.provides and np.shape(penalty.degrees) != (len(penalty.strengths),):
        kind, count = _kind(penalty), len(penalty.strengths)
        raise TypeError(f"{name}: degrees of {kind} must be a tuple of {count}, got {penalty.degrees!r}.")


# Named functions and no lambdas: JAX reuses the trace of a function object that it has seen before.
def _hooks(loss: LinearModelLoss, H: jax.Array) -> Any:
    return loss.entries(H), loss.derivatives(H)


def _returned(penalty: Penalty, W: Any, scaling: jax.Array) -> dict[str, Any]:
    """The results of the methods of a penalty, by the name of the method."""
    found = {"value": penalty.value(W), "prox": penalty.prox(W, scaling)}
    if "support" in penalty.provides:
        found["smooth_where"] = penalty.smooth_where(W)
    if "dual" in penalty.provides and len(penalty.terms) == 1:
        found |= {"conjugate": penalty.conjugate(W), "dual_scale": penalty.dual_scale(W)}
    return found


def _gradient(smooth: Loss, W: Any) -> Any:
    return jax.grad(smooth)(W)


def kinds(problem: Problem) -> str:
    """The names of the classes of a problem's loss and penalty, for error messages.

    Args:
      problem: `sparsejax.Problem`, in the protocol or not.

    Returns:
      ``"Loss with Penalty"``; for a wrapped function or penalty the name of the user's own class.

    Never raises.

    >>> import numpy as np, sparsejax as sj
    >>> kinds(sj.Problem(sj.losses.SquaredLoss(np.eye(2), np.ones(2)), sj.penalties.L1(0.1)))
    'SquaredLoss with L1'
    """
    return f"{_kind(problem.smooth)} with {_kind(problem.penalty)}"


def _kind(part: Loss | Penalty) -> str:
    """The name of the class of a loss or penalty; of a wrapped one, of the user's own class."""
    own: Any = part
    if isinstance(part, PlainLoss):
        own = part.fun
    if isinstance(part, PlainPenalty):
        own = part.penalty
    return type(own).__name__
