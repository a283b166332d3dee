"""Functions of a penalty that work for every class, with better rules registered for some classes."""

from collections.abc import Callable
from functools import lru_cache, singledispatch
from typing import Any

from sparsejax.penalties._base import Penalty


class Rule:
    """A function of a penalty: the rule registered for its class, or else ``default``.

    The rule of a class holds for its subclasses, except for a subclass outside this library that replaces
    ``value`` or ``prox``: for such a class the default holds.
    """

    def __init__(self, default: Callable[..., Any]):
        self.table = singledispatch(default)

    def __call__(self, penalty: Any, *args: Any, **options: Any) -> Any:
        return self.table.dispatch(_known(penalty.__class__))(penalty, *args, **options)

    def register(self, *classes: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A decorator that makes a function the rule of these classes."""

        def add(rule: Callable[..., Any]) -> Callable[..., Any]:
            for cls in classes:
                self.table.register(cls, rule)
            return rule

        return add


@lru_cache(maxsize=256)
def _known(cls: type) -> type:
    """The first base of this library whose ``value`` and ``prox`` the class inherits, else `Penalty`."""
    for base in cls.__mro__:
        if base.__module__.split(".")[0] == __name__.split(".")[0]:
            return base
        if "value" in vars(base) or "prox" in vars(base):
            break
    return Penalty
