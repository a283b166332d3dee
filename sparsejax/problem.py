r"""The problem :math:`\min_W F(W) = f(W) + g(W)` with a smooth convex loss f and a penalty g."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from sparsejax._core.checks import check_params, is_eager, on_device
from sparsejax._core.linalg import hidden_zeros
from sparsejax._core.pytree import Pytree
from sparsejax.losses import Loss, Units, as_loss, as_pytree, balanced
from sparsejax.penalties import (
    Penalty,
    as_penalty,
    feasible,
    is_penalty,
    rescaled,
    row_strengths,
    row_units,
    split_strengths,
)
from sparsejax.penalties import in_units as in_their_units


class Problem(Pytree, leaves=("smooth", "penalty")):
    """``minimise smooth(W) + penalty.value(W)``.

    Args:
      smooth: a convex loss: one of `sparsejax.losses`, a `sparsejax.Loss` of your own, any function W -> (),
        or any callable pytree, such as ``jax.tree_util.Partial(fun, *data)``. Convexity is not checked.
        Solutions can be differentiated in the arrays that a function closes over, and a function that closes
        over other arrays is not compiled again. A function is traced again in every eager call. A Partial
        with arrays, or an object of a class, is not traced again: its leaves and static parts alone decide
        whether a compiled program can be used again, so a global that it reads must not change.
      penalty: one of `sparsejax.penalties`, a `sparsejax.Penalty` of your own, or any pytree with
        ``value(W)`` and ``prox(V, scaling)``. If its class does not inherit from `sparsejax.Penalty`, only
        these two methods are used, and the groups *dual* and *support* if the class has all their methods.

    Raises:
      TypeError: ``smooth`` is not callable, ``penalty`` lacks value or prox, or one of them defines a group
        of methods in part.
      ValueError: a strength by row that does not fit the number of features.

    >>> import jax.numpy as jnp, numpy as np, sparsejax as sj
    >>> problem = sj.Problem(sj.losses.SquaredLoss(np.eye(4, 3), np.eye(4, 2)), sj.penalties.L21(0.0625))
    >>> round(float(problem(jnp.zeros((3, 2)))), 4)
    0.25
    >>> problem.replace(penalty=sj.penalties.L1(0.1)).penalty.strength.item() > 0
    True
    """

    smooth: Any
    penalty: Any

    def __init__(self, smooth: Any, penalty: Any):
        if is_penalty(smooth) and isinstance(penalty, Loss):
            given, other = type(smooth).__name__, type(penalty).__name__
            raise TypeError(
                f"smooth must be callable, W -> (), got {given}. Problem takes the loss first, then the "
                f"penalty: Problem({other}(...), {given}(...))."
            )
        smooth = as_pytree(smooth)
        loss, known = as_loss(smooth), as_penalty(penalty)
        if "shape" in loss.provides:
            known.check(loss.params_shape)
        self._set(smooth=smooth, penalty=penalty)

    def __call__(self, W: jax.Array) -> jax.Array:
        """The objective at W, shape ()."""
        loss = as_loss(self.smooth)
        if "shape" in loss.provides:
            check_params(W, loss.params_shape)
        return loss(W) + self.penalty.value(W)

    def replace(self, **changes: Any) -> "Problem":
        """A problem with another ``smooth`` or ``penalty``, checked anew."""
        unknown = set(changes) - {"smooth", "penalty"}
        if unknown:
            raise TypeError(f"Problem has no {', '.join(sorted(unknown))}; it has smooth and penalty.")
        return Problem(**({"smooth": self.smooth, "penalty": self.penalty} | changes))


class _InUnits(Problem, leaves=("smooth", "penalty"), static=("even",)):
    """A problem in units of its data.

    ``even`` is `even_strengths` of the original problem: units by row turn a number into a strength by row.
    """

    even: bool


def even_strengths(problem: Problem) -> bool:
    """Whether all strengths are numbers, so that none is given by row or entry."""
    if isinstance(problem, _InUnits):
        return problem.even
    return all(np.ndim(strength) == 0 for strength in split_strengths(problem.penalty)[0])


def check_problem(caller: str, problem: Any) -> None:
    """Raise a TypeError unless the argument is a `Problem`; ``caller`` is for the message."""
    if not isinstance(problem, Problem):
        how = ""
        if isinstance(problem, Loss):
            how = f": write {caller}(sparsejax.Problem(loss, penalty), ...)"
        raise TypeError(f"{caller}: problem must be a sparsejax.Problem, got {type(problem).__name__}{how}.")


def as_protocol(caller: str, problem: Any) -> Problem:
    """The problem with its parts as `Loss` and `Penalty`, wrapped if needed; ``caller`` is for errors."""
    check_problem(caller, problem)
    return problem._replace(smooth=as_loss(problem.smooth), penalty=as_penalty(problem.penalty))


def zeros(problem: Problem) -> jax.Array:
    """W = 0 in the shape and dtype of the parameters; a TypeError if the loss does not know the shape."""
    if "shape" not in problem.smooth.provides:
        raise TypeError(
            "the shape of W is unknown because smooth is a plain function, or a loss without params_shape: "
            "give init, or use a loss of sparsejax.losses."
        )
    shape, dtype = tuple(problem.smooth.params_shape), problem.smooth.dtype
    return on_device(0.0, np.dtype(dtype), shape) if is_eager(()) else hidden_zeros(shape, dtype)


class Scaled(NamedTuple):
    """The part of a problem in units of its data that does not depend on the strengths."""

    loss: Loss  # the loss in units of the data
    units: Units


def units_of(problem: Problem, rows: bool | jax.Array = False) -> Scaled | None:
    r"""The loss :math:`\gamma f(\sigma V/s)/\sigma^2` in units of its data, and the units; None if not known.

    In these units nothing underflows; without them, squares of a Y of the order of 1e-22 are 0 in float32.

    Args:
      problem: the problem in the protocol.
      rows: False: s = 1. True: units s (d,) that bring the columns of X nearer to one size, if loss and
        penalty allow this; columns of unequal size then cost few iterations and no digits. Or s itself.
    """
    penalty = problem.penalty
    if "units" not in problem.smooth.provides or "units" not in penalty.provides:
        return None
    known = problem.smooth.in_units()
    if known is None or len(penalty.degrees) != len(penalty.strengths):
        return None
    loss, units = known.loss, known.units
    if rows is not False and known.rescaled is not None and known.row_units is not None:
        possible = _row_units(penalty, known.row_units) if rows is True else rows
        if possible is not None:
            loss, units = known.rescaled(possible), units._replace(rows=possible)
    return Scaled(loss, units)


def _row_units(penalty: Penalty, by_columns: Callable[[], jax.Array]) -> jax.Array | None:
    """Units by the columns of X and by strengths that differ from row to row."""

    def wanted() -> jax.Array:
        units = by_columns()
        strengths = row_strengths(penalty, units.shape[0])
        return units if strengths is None or strengths.ndim == 0 else balanced(units, strengths)

    return row_units(penalty, wanted)


def in_units(problem: Problem, scaled: Scaled | None) -> Problem:
    r"""The problem in these units: a strength of degree p is multiplied by :math:`\gamma\sigma^{p-2}/s^p`.

    If ``scaled`` is None, the problem is returned unchanged.
    """
    if scaled is None:
        return problem
    loss, units = scaled
    penalty = in_their_units(problem.penalty, units.sigma, units.gamma)
    if units.rows is not None:
        penalty = rescaled(penalty, units.rows)
    changed = object.__new__(_InUnits)  # the constructor of `Problem` takes no ``even``
    changed._set(smooth=loss, penalty=penalty, even=even_strengths(problem))
    return changed


class FlatPenalty(Penalty, leaves=("penalty",), static=("restore",)):
    """A penalty on a pytree as a penalty on the vector of all its entries; ``restore``: vector -> pytree."""

    strengths = ("penalty",)
    penalty: Any
    restore: Any

    @property
    def provides(self) -> frozenset[str]:
        """The group "support" if the penalty has it; no other group."""
        return self.penalty.provides & {"support"}

    @property
    def _valued(self) -> bool:  # type: ignore[override]
        return self.penalty._valued

    def value(self, W: jax.Array) -> jax.Array:
        return self.penalty.value(self.restore(W))

    def prox(self, V: jax.Array, scaling: ArrayLike = 1.0) -> jax.Array:
        return ravel_pytree(self.penalty.prox(self.restore(V), scaling))[0]

    def smooth_where(self, W: jax.Array) -> jax.Array:
        return ravel_pytree(self.penalty.smooth_where(self.restore(W)))[0]

    def _feasible(self, W: jax.Array) -> jax.Array:
        return ravel_pytree(feasible(self.penalty, self.restore(W)))[0]


class FlatLoss(Loss, leaves=("loss",), static=("restore",)):
    """A loss of a pytree as a loss of the vector of all its entries; ``restore``: vector -> pytree."""

    loss: Any
    restore: Any

    def __call__(self, W: jax.Array) -> jax.Array:
        return self.loss(self.restore(W))

    def valid(self) -> jax.Array:
        return self.loss.valid()


def flattened(problem: Problem, params: Any) -> tuple[Problem, jax.Array, Any]:
    """The problem on one array, ``params`` as this array, and the function that restores the pytree.

    If ``params`` is already an array with at least one axis, problem and params are returned unchanged.
    """
    if jax.tree_util.all_leaves([params]) and np.ndim(params) > 0:
        return problem, params, lambda W: W
    vector, restore = ravel_pytree(params)
    flat = problem._replace(
        smooth=FlatLoss(problem.smooth, restore), penalty=FlatPenalty(problem.penalty, restore)
    )
    return flat, vector, restore
