"""For those who come from jaxopt, which is no longer maintained: its conventions, on our solvers.

Nothing here needs jaxopt but `to_jaxopt`, which imports it when called.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax.penalties import Penalty
from sparsejax.problem import Problem
from sparsejax.solution import Solution
from sparsejax.solvers import fista


class OptStep(NamedTuple):
    """What ``run`` returns, as in jaxopt; the state is our `Solution`."""

    params: Any
    state: Solution


class FromProx(Penalty, leaves=("hyperparams",), static=("fun", "value_fun")):
    """A penalty known by its prox alone, in jaxopt's form ``fun(x, hyperparams, scaling)``.

    Projections are such: see `from_projection`. Solutions have no duality gap (``gap`` is NaN and
    ``residual`` decides), and their derivative is taken through the prox, which must be differentiable.

    Args:
      fun: the prox; x may be a pytree.
      hyperparams: its second argument, any pytree.
      value: ``value(x, hyperparams)``, shape (); default 0, as of a constraint.
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
        for name, function in (("fun", fun), ("value", value)):
            if not callable(function) and not (name == "value" and function is None):
                raise TypeError(f"FromProx: {name} must be callable, got {function!r}.")
        self._set(hyperparams=hyperparams, fun=fun, value_fun=value)

    def value(self, W: Any) -> jax.Array:
        """The penalty at W, 0 if only its prox is known."""
        if self.value_fun is None:
            return jnp.zeros((), jax.tree.leaves(W)[0].dtype)
        return self.value_fun(W, self.hyperparams)

    def prox(self, V: Any, scaling: ArrayLike = 1.0) -> Any:
        """``fun(V, hyperparams, scaling)``."""
        return self.fun(V, self.hyperparams, scaling)


def from_projection(projection: Callable[..., Any], hyperparams: Any = None) -> FromProx:
    """The constraint x in C(hyperparams) as a penalty, from ``projection(x, hyperparams)``.

    With ``hyperparams=None`` the projection is called with x alone, as those of `optax.projections` are.
    """
    return FromProx(_Projection(projection, hyperparams is None), hyperparams)


@dataclass(frozen=True)
class _Projection:
    """A projection as a prox; equal for equal projections, so that jit compiles once."""

    fun: Callable[..., Any]
    alone: bool

    def __call__(self, x: Any, hyperparams: Any, scaling: ArrayLike) -> Any:
        return self.fun(x) if self.alone else self.fun(x, hyperparams)


@dataclass(frozen=True)
class _PenaltyProx:
    kind: type

    def __call__(self, x: Any, hyperparams: Any, scaling: ArrayLike = 1.0) -> Any:
        many = isinstance(hyperparams, (tuple, list))
        return self.kind(*(hyperparams if many else (hyperparams,))).prox(x, scaling)


def prox(penalty: type) -> Callable[..., Any]:
    """A penalty class as a prox in jaxopt's form: ``prox(penalties.L21)(x, alpha, scaling)``.

    The hyperparameters are the strengths, a tuple if there are several.
    """
    if not (isinstance(penalty, type) and issubclass(penalty, Penalty)):
        raise TypeError(f"prox: penalty must be a class of sparsejax.penalties, got {penalty!r}.")
    return _PenaltyProx(penalty)


class ProximalGradient:
    """jaxopt's ``ProximalGradient``, run by `sparsejax.fista`.

    Args:
      fun: ``fun(params, *args, **kwargs)``, shape (); smooth and convex.
      prox: ``prox(x, hyperparams, scaling)``; default none.
      maxiter, tol: as `sparsejax.fista`; tol bounds the *relative* residual.
      stepsize: 0 for backtracking.
      has_aux: ``fun`` returns ``(value, aux)``; the aux is dropped.

    Derivatives of ``run`` are implicit, in hyperparams, args and kwargs.
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
        for name, function in (("fun", fun), ("prox", prox)):
            if not callable(function) and not (name == "prox" and function is None):
                raise TypeError(f"ProximalGradient: {name} must be callable, got {function!r}.")
        self._fun = _Fun(fun, has_aux)
        self._prox = prox or _Projection(_identity, True)
        self._options: dict[str, Any] = {"maxiter": maxiter, "tol": tol, "stepsize": stepsize or None}

    def run(self, init_params: Any, hyperparams_prox: Any = None, *args: Any, **kwargs: Any) -> OptStep:
        """Minimise ``fun(x, *args, **kwargs) + g(x; hyperparams_prox)`` from ``init_params``."""
        smooth = jax.tree_util.Partial(self._fun, args, kwargs)  # type: ignore[no-untyped-call]
        problem = Problem(smooth, FromProx(self._prox, hyperparams_prox))
        solution = fista(problem, init_params, **self._options)
        return OptStep(solution.params, solution)


class ProjectedGradient(ProximalGradient):
    """jaxopt's ``ProjectedGradient``: as `ProximalGradient`, with ``projection(x, hyperparams)``."""

    def __init__(self, fun: Callable[..., Any], projection: Callable[..., Any], **options: Any):
        super().__init__(fun, _Projection(projection, False), **options)


@dataclass(frozen=True)
class _Fun:
    fun: Callable[..., Any]
    has_aux: bool

    def __call__(self, args: Any, kwargs: Any, params: Any) -> Any:
        value = self.fun(params, *args, **kwargs)
        return value[0] if self.has_aux else value


def _identity(x: Any) -> Any:
    return x


def to_jaxopt(problem: Problem, **options: Any) -> Any:
    """``jaxopt.ProximalGradient`` for ``problem``; run it with ``.run(init, problem.penalty)``.

    Raises:
      ImportError: jaxopt is not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import jaxopt  # noqa: PLC0415

    return jaxopt.ProximalGradient(
        fun=problem.smooth, prox=lambda x, penalty, scaling=1.0: penalty.prox(x, scaling), **options
    )
