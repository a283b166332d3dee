"""What a user's loss or penalty closes over, made its leaves, so that derivatives see it too."""

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax.losses import Loss
from sparsejax.penalties import Penalty
from sparsejax.problem import Problem


def hoisted(problem: Problem, init: Any) -> Problem:
    """The problem with traced arrays that its parts close over as leaves.

    Parts that do so are then known by what they compute alone: no certificate, curvature or support, whose
    code may close over more.
    """
    smooth, penalty = problem.smooth, problem.penalty
    if not smooth._self_contained and _closes_over(evaluate, smooth, init):
        call, found = jax.closure_convert(evaluate, smooth, init)
        smooth = HoistedLoss(smooth, found, call)
    if not penalty._self_contained:
        step = jnp.ones((), jax.tree.leaves(init)[0].dtype)
        if _closes_over(prox_of, penalty, init, step) or _closes_over(value_of, penalty, init):
            prox, in_prox = jax.closure_convert(prox_of, penalty, init, step)
            value, in_value = jax.closure_convert(value_of, penalty, init)
            penalty = HoistedPenalty(penalty, in_value, in_prox, value, prox)
    return problem._replace(smooth=smooth, penalty=penalty)


class HoistedLoss(Loss, leaves=("loss", "found"), static=("call",)):
    """``call(loss, W, *found)``."""

    _self_contained: ClassVar[bool] = True
    loss: Any
    found: Any
    call: Any

    @property
    def provides(self) -> frozenset[str]:
        return self.loss.provides & {"shape"}  # type: ignore[no-any-return]

    @property
    def params_shape(self) -> Any:
        return self.loss.params_shape

    @property
    def dtype(self) -> Any:
        return self.loss.dtype

    def __call__(self, W: Any) -> jax.Array:
        return self.call(self.loss, W, *self.found)  # type: ignore[no-any-return]


class HoistedPenalty(Penalty, leaves=("penalty", "in_value", "in_prox"), static=("call_value", "call_prox")):
    """``call_value(penalty, W, *in_value)``, ``call_prox(penalty, V, scaling, *in_prox)``."""

    _self_contained: ClassVar[bool] = True
    strengths = ("penalty",)
    penalty: Any
    in_value: Any
    in_prox: Any
    call_value: Any
    call_prox: Any

    def value(self, W: Any) -> jax.Array:
        return self.call_value(self.penalty, W, *self.in_value)  # type: ignore[no-any-return]

    def prox(self, V: Any, scaling: ArrayLike = 1.0) -> Any:
        scaling = jnp.asarray(scaling, jax.tree.leaves(V)[0].dtype)
        return self.call_prox(self.penalty, V, scaling, *self.in_prox)


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


def _closes_over(function: Any, *trees: Any) -> bool:
    try:
        return _looked_up(function, *map(_form, trees))
    except _Found:
        return True


class _Found(Exception):
    pass


# Found is raised, not returned: a function that closes over tracers must not be kept in the cache.
@functools.lru_cache(maxsize=256)
def _looked_up(function: Any, *forms: Any) -> bool:
    trees = [
        jax.tree.unflatten(treedef, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])  # type: ignore[no-untyped-call]
        for treedef, leaves in forms
    ]
    if jax.closure_convert(function, *trees)[1]:
        raise _Found
    return False


def _form(tree: Any) -> Any:
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
