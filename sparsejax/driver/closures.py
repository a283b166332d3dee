"""What a user's loss or penalty closes over, made leaves: derivatives see them, programs take them."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.extend.core
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax._core.checkpoints import named
from sparsejax._core.checks import is_traced
from sparsejax.driver.shards import unmarked
from sparsejax.losses import Loss, PlainLoss
from sparsejax.penalties import Penalty
from sparsejax.problem import Problem


def hoisted(problem: Problem, init: Any) -> Problem:
    """The problem with the arrays that its parts close over as leaves.

    A plain function's arrays all become leaves, so that the same function with other arrays compiles nothing
    anew. A class that closes over traced arrays is then known by what it computes alone: no certificate,
    curvature or support, whose code may close over more.
    """
    smooth, penalty = problem.smooth, problem.penalty
    if not smooth._self_contained:
        call, arrays = traced(evaluate, smooth, init)
        plain = isinstance(smooth, PlainLoss) and not smooth.provides
        if plain and arrays and not jax.tree.leaves(smooth):
            # Known by its program alone: the same function made anew, as a lambda in a loop is, is the same.
            smooth = HoistedLoss((), arrays, call.of((), init))
        elif (plain and arrays) or any(map(is_traced, arrays)):
            smooth = HoistedLoss(smooth, arrays, call)
    if not penalty._self_contained:
        step = jnp.ones((), jax.tree.leaves(init)[0].dtype)
        (value, in_value), (prox, in_prox) = (
            traced(value_of, penalty, init),
            traced(prox_of, penalty, init, step),
        )
        if any(map(is_traced, (*in_value, *in_prox))):
            penalty = HoistedPenalty(penalty, in_value, in_prox, value, prox)
    return problem._replace(smooth=smooth, penalty=penalty)


class HoistedLoss(Loss, leaves=("loss", "arrays"), static=("call",)):
    """A loss whose function takes as arguments the arrays that it closed over."""

    _self_contained: ClassVar[bool] = True
    loss: Any
    arrays: Any
    call: Any

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


class HoistedPenalty(Penalty, leaves=("penalty", "in_value", "in_prox"), static=("call_value", "call_prox")):
    """A penalty whose value and prox take as arguments the arrays that they closed over."""

    _self_contained: ClassVar[bool] = True
    strengths = ("penalty",)
    penalty: Any
    in_value: Any
    in_prox: Any
    call_value: Any
    call_prox: Any

    def value(self, W: Any) -> jax.Array:
        return self.call_value(self.in_value, self.penalty, W)

    def prox(self, V: Any, scaling: ArrayLike = 1.0) -> Any:
        scaling = jnp.asarray(scaling, jax.tree.leaves(V)[0].dtype)
        return self.call_prox(self.in_prox, self.penalty, V, scaling)


# By name, so that jax recognises what it has traced before.
def evaluate(smooth: Any, W: Any) -> Any:
    """``smooth(W)``."""
    return smooth(W)


def value_of(penalty: Any, W: Any) -> Any:
    """``penalty.value(W)``."""
    return penalty.value(W)


def prox_of(penalty: Any, V: Any, scaling: jax.Array) -> Any:
    """``penalty.prox(V, scaling)``."""
    return penalty.prox(V, scaling)


class Traced:
    """A function of pytrees of one form, with the arrays it closes over as its first argument.

    Compared by the form of what it was traced with and by the text of its program: the same function traced
    again, with other arrays in the places of those it closes over, is equal, and `jax.jit` compiles it once.
    """

    def __init__(self, form: Any, jaxpr: Any, structure: Any):
        self._key = form, named(jaxpr)
        self._hash = hash(self._key)
        self._jaxpr, self._structure = jaxpr, structure

    def of(self, *arguments: Any) -> "Traced":
        """The same program of arguments of another form, with the same leaves."""
        return Traced(jax.tree.structure(arguments), self._jaxpr, self._structure)

    def __call__(self, arrays: Any, *arguments: Any) -> Any:
        closed = jax.extend.core.ClosedJaxpr(self._jaxpr, list(arrays))
        leaves = jax.tree.leaves(arguments)
        return jax.tree.unflatten(self._structure, jax.extend.core.jaxpr_as_fun(closed)(*leaves))

    def __eq__(self, other: Any) -> bool:
        """Programs of the same text do the same."""
        return isinstance(other, Traced) and self._key == other._key

    def __hash__(self) -> int:
        """Of the text."""
        return self._hash

    def __repr__(self) -> str:
        """The text: a checkpoint knows the program by it."""
        return self._key[1]


def traced(function: Callable[..., Any], *arguments: Any) -> tuple[Traced, tuple[Any, ...]]:
    """``function(*arguments)`` as a program, and the arrays that it closes over."""
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
    closed = unmarked(closed)
    structure = jax.tree.structure(shape)
    return Traced(jax.tree.structure(arguments), closed.jaxpr, structure), tuple(closed.consts)
