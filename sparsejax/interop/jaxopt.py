"""The conventions of jaxopt, which is no longer maintained, on the solvers of this library.

Only `to_jaxopt` needs jaxopt, and imports it when called.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax._core.checks import as_number, check_bool
from sparsejax.penalties import Penalty
from sparsejax.problem import Problem, check_problem
from sparsejax.solution import Solution
from sparsejax.solvers import fista

__all__ = [
    "FromProx",
    "OptStep",
    "ProjectedGradient",
    "ProximalGradient",
    "from_projection",
    "prox",
    "to_jaxopt",
]


class OptStep(NamedTuple):
    """The result of ``run``, as in jaxopt; here the state is a `Solution`.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> from sparsejax.interop import jaxopt
    >>> fit = jaxopt.ProximalGradient(lambda w: jnp.sum((w - 1) ** 2) / 2, jaxopt.prox(sj.penalties.L1))
    >>> step = fit.run(jnp.zeros(3), 0.25)
    >>> print(step.params.round(2))
    [0.75 0.75 0.75]
    """

    params: Any
    state: Solution


class FromProx(Penalty, leaves=("hyperparams",), static=("fun", "value_fun")):
    """A penalty given by its prox in jaxopt's form, ``fun(x, hyperparams, scaling)``.

    For a projection see `from_projection`. Solutions have no duality gap: ``gap`` is NaN and ``residual``
    decides. Their derivative is taken through the prox, which must be differentiable.

    Args:
      fun: the prox; x may be a pytree.
      hyperparams: the second argument of ``fun``, any pytree.
      value: ``value(x, hyperparams)``, shape (). None: the value counts as 0, so that the objective of a
        solution is the loss alone. For a constraint this is the whole objective.

    Raises:
      TypeError: ``fun`` or ``value`` is not callable.

    >>> import jax.numpy as jnp
    >>> from sparsejax.interop import jaxopt
    >>> half = jaxopt.FromProx(lambda x, strength, scaling: x / (1 + strength * scaling), 1.0)
    >>> print(half.prox(jnp.array([2.0, 4.0])))
    [1. 2.]
    """

    _self_contained = False  # its functions are the user's
    hyperparams: Any
    fun: Callable[..., Any]
    value_fun: Callable[..., jax.Array] | None

    def __init__(
        self,
        fun: Callable[..., Any],
        hyperparams: Any = None,
        value: Callable[..., jax.Array] | None = None,
    ):
        _check_callable("FromProx: fun", fun)
        if value is not None:
            _check_callable("FromProx: value", value)
        self._set(hyperparams=hyperparams, fun=fun, value_fun=value)

    def value(self, W: Any) -> jax.Array:
        """The value of the penalty at W; 0 if ``value`` was not given."""
        if self.value_fun is None:
            return jnp.zeros((), jax.tree.leaves(W)[0].dtype)
        return self.value_fun(W, self.hyperparams)

    @property
    def _valued(self) -> bool:  # type: ignore[override]
        # Not for a projection either: outside its set, where a solve may begin, the value is not 0.
        return self.value_fun is not None

    def prox(self, V: Any, scaling: ArrayLike = 1.0) -> Any:
        """``fun(V, hyperparams, scaling)``."""
        return self.fun(V, self.hyperparams, scaling)


def from_projection(projection: Callable[..., Any], hyperparams: Any = None) -> FromProx:
    """The constraint x in C(hyperparams) as a penalty, from ``projection(x, hyperparams)``.

    Args:
      projection: the projection of a pytree onto the set.
      hyperparams: parameters of the set; with None the projection is called with x alone, as the projections
        of `optax.projections` are.

    Returns:
      `FromProx`, whose value counts as 0.

    Raises:
      TypeError: the projection is not callable.

    >>> import jax.numpy as jnp
    >>> from sparsejax.interop import jaxopt
    >>> box = jaxopt.from_projection(lambda x, bound: jnp.clip(x, -bound, bound), 1.0)
    >>> print(box.prox(jnp.array([2.0, 0.5])))
    [1.  0.5]
    """
    _check_callable("from_projection: projection", projection)
    return FromProx(_Projection(projection, hyperparams is None), hyperparams)


def _check_callable(name: str, function: Any) -> None:
    """Raise unless the function can be called."""
    if not callable(function):
        raise TypeError(f"{name} must be callable, got {function!r}.")


@dataclass(frozen=True)
class _Projection:
    """A projection as a prox; equal projections make equal objects, so that jit compiles once."""

    fun: Callable[..., Any]
    alone: bool  # whether ``fun`` is called with x alone

    def __call__(self, x: Any, hyperparams: Any, scaling: ArrayLike) -> Any:
        return self.fun(x) if self.alone else self.fun(x, hyperparams)


@dataclass(frozen=True)
class _PenaltyProx:
    """The prox of a penalty class whose strengths are the hyperparameters."""

    kind: type

    def __call__(self, x: Any, hyperparams: Any, scaling: ArrayLike = 1.0) -> Any:
        if hyperparams is None:  # the default of ``run``, for a class without arguments such as `NonNegative`
            hyperparams = ()
        arguments = hyperparams if isinstance(hyperparams, (tuple, list)) else (hyperparams,)
        return self.kind(*arguments).prox(x, scaling)


def prox(penalty: type) -> Callable[..., Any]:
    """The prox of a penalty class in jaxopt's form: ``prox(penalties.L21)(x, alpha, scaling)``.

    Args:
      penalty: the class; the hyperparameters are the arguments of its constructor, in a tuple or list if
        there are several, and None if there are none. Strengths by row are an array.

    Returns:
      A function of (x, hyperparams, scaling=1.0) that returns the prox, in the shape and dtype of x.

    Raises:
      TypeError: ``penalty`` is not a subclass of `sparsejax.Penalty`.
      TypeError, ValueError: when the prox is called, the class refuses its strengths.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> from sparsejax.interop import jaxopt
    >>> print(jaxopt.prox(sj.penalties.L1)(jnp.array([2.0, 0.5]), 1.0, 1.0))
    [1. 0.]
    """
    if not (isinstance(penalty, type) and issubclass(penalty, Penalty)):
        raise TypeError(f"prox: penalty must be a class of sparsejax.penalties, got {penalty!r}.")
    return _PenaltyProx(penalty)


class ProximalGradient:
    """jaxopt's ``ProximalGradient``, solved by `sparsejax.fista`.

    The derivatives of ``run`` in hyperparams, args and kwargs are implicit.

    Args:
      fun: ``fun(params, *args, **kwargs)``, shape (); smooth and convex.
      prox: ``prox(x, hyperparams, scaling)``; by default there is no penalty.
      maxiter, tol: as in `sparsejax.fista`, with jaxopt's defaults; tol bounds the *relative* residual.
      stepsize: a number > 0, at most 1/L; 0 for backtracking. A function, as jaxopt takes, is an error.
      has_aux: whether ``fun`` returns ``(value, aux)``; aux is dropped.

    Raises:
      TypeError: ``fun`` or ``prox`` is not callable, ``stepsize`` is not a number, or ``has_aux`` not a bool.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> from sparsejax.interop import jaxopt
    >>> fit = jaxopt.ProximalGradient(lambda w: jnp.sum((w - 1) ** 2) / 2, jaxopt.prox(sj.penalties.L1))
    >>> step = fit.run(jnp.zeros(3), 0.25)
    >>> print(step.params.round(2))
    [0.75 0.75 0.75]
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        prox: Callable[..., Any] | None = None,
        *,
        maxiter: int = 500,
        tol: float = 1e-3,
        stepsize: float = 0.0,
        has_aux: bool = False,
    ):
        _check_callable("ProximalGradient: fun", fun)
        if prox is not None:
            _check_callable("ProximalGradient: prox", prox)
        check_bool("ProximalGradient: has_aux", has_aux)
        self._fun = _Fun(fun, has_aux)
        self._prox = prox or _Projection(_identity, True)
        step = as_number("ProximalGradient: stepsize", stepsize) or None
        self._options: dict[str, Any] = {"maxiter": maxiter, "tol": tol, "stepsize": step}

    def run(self, init_params: Any, hyperparams_prox: Any = None, *args: Any, **kwargs: Any) -> OptStep:
        """Minimise ``fun(x, *args, **kwargs) + g(x; hyperparams_prox)`` from ``init_params``.

        Args:
          init_params: the start, an array or a pytree of arrays.
          hyperparams_prox: the second argument of ``prox``.
          args, kwargs: further arguments of ``fun``.

        Returns:
          `OptStep`; its ``params`` are like ``init_params``.
        """
        smooth = jax.tree_util.Partial(self._fun, args, kwargs)
        problem = Problem(smooth, FromProx(self._prox, hyperparams_prox))
        solution = fista(problem, init_params, **self._options)
        return OptStep(solution.params, solution)


class ProjectedGradient(ProximalGradient):
    """jaxopt's ``ProjectedGradient``: `ProximalGradient` with ``projection(x, hyperparams)`` as the prox.

    Args:
      fun: ``fun(x, *args, **kwargs)``, shape (); smooth and convex.
      projection: ``projection(x, hyperparams)``, the projection onto the set.
      options: the options of `ProximalGradient`.

    >>> import jax.numpy as jnp
    >>> from sparsejax.interop import jaxopt
    >>> fun = lambda w: jnp.sum((w - 1) ** 2) / 2
    >>> fit = jaxopt.ProjectedGradient(fun, lambda w, high: jnp.minimum(w, high))
    >>> print(fit.run(jnp.zeros(3), 0.25).params.round(2))
    [0.25 0.25 0.25]
    """

    def __init__(self, fun: Callable[..., Any], projection: Callable[..., Any], **options: Any):
        _check_callable("ProjectedGradient: projection", projection)
        super().__init__(fun, _Projection(projection, False), **options)


@dataclass(frozen=True)
class _Fun:
    """``fun`` with its data first and without aux, as `jax.tree_util.Partial` calls it."""

    fun: Callable[..., Any]
    has_aux: bool

    def __call__(self, args: Any, kwargs: Any, params: Any) -> Any:
        value = self.fun(params, *args, **kwargs)
        return value[0] if self.has_aux else value


def _identity(x: Any) -> Any:
    return x


def to_jaxopt(problem: Problem, **options: Any) -> Any:
    """``jaxopt.ProximalGradient`` for ``problem``; run it with ``.run(init, problem.penalty)``.

    Args:
      problem: `sparsejax.Problem`.
      options: options of jaxopt's class: ``maxiter``, ``tol``, ...

    Returns:
      A solver of jaxopt, whose hyperparameters are a penalty like ``problem.penalty``.

    Raises:
      ImportError: jaxopt is not installed.
      TypeError: ``problem`` is not a `sparsejax.Problem`.

    >>> import numpy as np, sparsejax as sj
    >>> problem = sj.Problem(sj.losses.SquaredLoss(np.eye(4, 3), np.eye(4, 2)), sj.penalties.L21(0.0625))
    >>> from sparsejax.interop import jaxopt
    >>> solver = jaxopt.to_jaxopt(problem, maxiter=7)
    >>> solver.maxiter
    7
    """
    check_problem("to_jaxopt", problem)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import jaxopt  # noqa: PLC0415

    return jaxopt.ProximalGradient(
        fun=problem.smooth, prox=lambda x, penalty, scaling=1.0: penalty.prox(x, scaling), **options
    )
