"""The arrays that a user's loss or penalty closes over become leaves of the problem.

As leaves they are arguments of the compiled program, and solutions can be differentiated in them.
"""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.extend.core
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax._core.checks import is_traced
from sparsejax._core.programs import identity_of
from sparsejax._core.shards import on_one_device
from sparsejax.losses import Loss, PlainLoss
from sparsejax.penalties import Penalty, for_shape_of
from sparsejax.problem import Problem


def with_closures_as_leaves(problem: Problem, init: Any) -> Problem:
    """The problem in which the arrays that its loss and penalty close over are leaves.

    A loss that closes over traced arrays keeps only its value and the shape of W, and such a penalty keeps
    only value and prox: the methods for certificate, curvature or support may close over further arrays.
    """
    problem = with_program_of_function(problem, init)
    smooth, penalty = problem.smooth, problem.penalty
    if not smooth._self_contained:
        call, arrays = trace(evaluate, smooth, init)
        if any(map(is_traced, arrays)):
            smooth = ClosureLoss(smooth, arrays, call)
    if not penalty._self_contained:
        scaling = jnp.ones((), jax.tree.leaves(init)[0].dtype)
        value, in_value = trace(value_of, penalty, init)
        prox, in_prox = trace(prox_of, penalty, init, scaling)
        if any(map(is_traced, (*in_value, *in_prox))):
            penalty = ClosurePenalty(penalty, in_value, in_prox, value, prox)
    return problem._replace(smooth=smooth, penalty=for_shape_of(penalty, init))


def with_program_of_function(problem: Problem, init: Any) -> Problem:
    """The problem with a plain function replaced by its program and the arrays that it closes over.

    The function is traced again in every call, so that changed globals, attributes and arrays count. If the
    program is the same, other arrays need no new compilation; nor does a lambda that a loop makes again and
    again. An object with leaves, such as a `jax.tree_util.Partial`, is traced once for all values of its
    leaves.
    """
    smooth = problem.smooth
    if smooth._self_contained or not isinstance(smooth, PlainLoss) or smooth.provides:
        return problem
    if jax.tree.leaves(smooth):
        call, arrays = trace(evaluate, smooth, init)
        return problem._replace(smooth=ClosureLoss(smooth, arrays, call)) if arrays else problem
    # A new function object, since JAX reuses the trace of one that it has seen.
    call, arrays = trace(functools.partial(evaluate), smooth, init)
    return problem._replace(smooth=ClosureLoss((), arrays, call.of((), init)))


class ClosureLoss(Loss, leaves=("loss", "arrays"), static=("call",)):
    """A loss whose function takes the arrays that it closed over as an argument."""

    _self_contained: ClassVar[bool] = True
    loss: Any  # the user's loss; () if the loss has no leaves, so that the program is all that is needed
    arrays: tuple[jax.Array, ...]  # the arrays that the loss closes over
    call: "TracedFunction"  # ``call(arrays, loss, W)``, the value

    @property
    def provides(self) -> frozenset[str]:
        return self.loss.provides & {"shape"} if self.loss else frozenset()

    @property
    def params_shape(self) -> Any:
        return self.loss.params_shape

    @property
    def dtype(self) -> Any:
        return self.loss.dtype

    def __call__(self, W: Any) -> jax.Array:
        return self.call(self.arrays, self.loss, W)


class ClosurePenalty(Penalty, leaves=("penalty", "in_value", "in_prox"), static=("call_value", "call_prox")):
    """A penalty whose value and prox take the arrays that they closed over as an argument."""

    _self_contained: ClassVar[bool] = True
    strengths = ("penalty",)
    penalty: Penalty  # the user's penalty
    in_value: tuple[jax.Array, ...]  # the arrays that its value closes over
    in_prox: tuple[jax.Array, ...]  # the arrays that its prox closes over
    call_value: "TracedFunction"  # ``call_value(in_value, penalty, W)``
    call_prox: "TracedFunction"  # ``call_prox(in_prox, penalty, V, scaling)``

    @property
    def _valued(self) -> bool:  # type: ignore[override]
        return self.penalty._valued

    def value(self, W: Any) -> jax.Array:
        return self.call_value(self.in_value, self.penalty, W)

    def prox(self, V: Any, scaling: ArrayLike = 1.0) -> Any:
        scaling = jnp.asarray(scaling, jax.tree.leaves(V)[0].dtype)
        return self.call_prox(self.in_prox, self.penalty, V, scaling)


# Named functions, not lambdas: JAX reuses the trace of a function object that it has seen, so that objects of
# a class are not traced again in every call.
def evaluate(smooth: Loss, W: Any) -> Any:
    """``smooth(W)``."""
    return smooth(W)


def value_of(penalty: Penalty, W: Any) -> Any:
    """``penalty.value(W)``."""
    return penalty.value(W)


def prox_of(penalty: Penalty, V: Any, scaling: jax.Array) -> Any:
    """``penalty.prox(V, scaling)``."""
    return penalty.prox(V, scaling)


class TracedFunction:
    """A traced function of pytrees; its first argument holds the arrays that the original closes over.

    Two of them are equal if the structures of their arguments and the identities of their programs are equal.
    So `jax.jit` compiles a function once, however often it is traced and whatever arrays it closes over.
    """

    def __init__(self, form: Any, jaxpr: Any, structure: Any):
        self._key = form, identity_of(jaxpr)
        self._hash = hash(self._key)
        self._jaxpr, self._structure = jaxpr, structure

    def of(self, *arguments: Any) -> "TracedFunction":
        """The same program for arguments of another structure that has the same leaves."""
        return TracedFunction(jax.tree.structure(arguments), self._jaxpr, self._structure)

    def __call__(self, arrays: Any, *arguments: Any) -> Any:
        closed = jax.extend.core.ClosedJaxpr(self._jaxpr, list(arrays))
        leaves = jax.tree.leaves(arguments)
        return jax.tree.unflatten(self._structure, jax.extend.core.jaxpr_as_fun(closed)(*leaves))

    def __eq__(self, other: Any) -> bool:
        """Whether the structures of the arguments and the identities of the programs are equal."""
        return isinstance(other, TracedFunction) and self._key == other._key

    def __hash__(self) -> int:
        """The hash of the structure of the arguments and of the identity of the program."""
        return self._hash

    def __repr__(self) -> str:
        """The text of the program."""
        return self._key[1].text


def trace(function: Callable[..., Any], *arguments: Any) -> tuple[TracedFunction, tuple[Any, ...]]:
    """The program of ``function(*arguments)``, and the arrays that the function closes over."""
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
    closed = on_one_device(closed)
    structure = jax.tree.structure(shape)
    return TracedFunction(jax.tree.structure(arguments), closed.jaxpr, structure), tuple(closed.consts)
