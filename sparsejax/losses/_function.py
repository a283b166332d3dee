"""Makes a `Loss` of a callable of the user whose class does not inherit from `Loss`."""

from functools import partial
from types import MethodType
from typing import Any, ClassVar

import jax

from sparsejax._core.checks import check_registered
from sparsejax.losses._base import FORMER_METHODS, Loss, Pair, replaced
from sparsejax.losses._quadratic_model import QuadraticModel

# The groups of the protocol that a class which does not inherit from `Loss` may define.
PLAIN_GROUPS = ("shape", "quadratic model", "dual")


class PlainLoss(Loss, leaves=("fun",)):
    """A callable pytree ``fun`` as a `Loss`, which has the groups of `PLAIN_GROUPS` that ``fun`` defines."""

    _self_contained: ClassVar[bool] = False  # ``fun`` may use data that are not its leaves
    fun: Any

    @property
    def provides(self) -> frozenset[str]:
        return frozenset(group for group in PLAIN_GROUPS if _defines(self.fun, group))

    @property
    def params_shape(self) -> Any:
        return tuple(self.fun.params_shape)

    @property
    def dtype(self) -> Any:
        return self.fun.dtype

    def __call__(self, W: Any) -> jax.Array:
        return self.fun(W)

    def quadratic_model(self) -> QuadraticModel:
        return self.fun.quadratic_model() if hasattr(self.fun, "quadratic_model") else QuadraticModel()

    def dual_scaling(self, W: jax.Array, limit: jax.Array, H: jax.Array | None = None) -> Pair:
        return self.fun.dual_scaling(W, limit)  # H is None: ``facts`` of this class returns no predictions


def as_loss(x: Any, name: str = "smooth") -> Loss:
    """A `Loss` as it is, any other callable pytree wrapped in `PlainLoss`.

    Raises:
      TypeError: x is a class, not callable, or not registered with JAX; x defines some methods of a group but
        not all (``dtype`` alone is allowed); or x defines `FORMER_METHODS`, which earlier versions asked for,
        without ``quadratic_model``.
    """
    if isinstance(x, Loss):
        check_registered(name, x, Loss._page)
        return x
    if not callable(x) or isinstance(x, type):
        what = f"the class {x.__name__}" if isinstance(x, type) else type(x).__name__
        raise TypeError(f"{name} must be callable, W -> (), got {what}.")
    x = as_pytree(x)
    check_registered(name, x, Loss._page)
    for group in PLAIN_GROUPS:
        _defines(x, group)
    former = [method for method in FORMER_METHODS if hasattr(x, method)]
    if former and not hasattr(x, "quadratic_model"):
        raise TypeError(replaced(type(x).__name__, former))
    return PlainLoss(x)


def as_pytree(x: Any) -> Any:
    """A function or method that JAX would take for a leaf, as a pytree without leaves; all else unchanged."""
    # A function has ``__get__``, by which a class makes a method of it; most other callables have none.
    function = isinstance(x, MethodType | partial | jax.custom_jvp | jax.custom_vjp) or (
        callable(vars(type(x)).get("__get__")) and not isinstance(x, type)
    )
    is_leaf = function and any(leaf is x for leaf in jax.tree.leaves(x))
    return jax.tree_util.Partial(x) if is_leaf else x


def _defines(x: Any, group: str) -> bool:
    """Whether x defines the whole group; an error if x defines only a part, except ``dtype`` alone."""
    found = [name for name in Loss._groups[group] if hasattr(x, name)]
    if found == ["dtype"]:
        return False  # a dtype without a shape says nothing
    return Loss._is_whole(group, found, type(x).__name__)
