"""Functions that call a private method of a penalty's class in this library; `Penalty` has the defaults."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax


class Rule:
    """Calls a private method of a penalty: the method of the class that `known_class` finds.

    That class is in this library, so that a user's class cannot replace the method by chance. If a user's
    class replaces ``value`` or ``prox``, the method of its base may not fit the new function: the default of
    `Penalty` is called.
    """

    def __init__(self, method: str):
        self.method = method

    def __call__(self, penalty: Any, *args: Any) -> Any:
        return getattr(known_class(penalty.__class__), self.method)(penalty, *args)


@lru_cache(maxsize=256)
def known_class(cls: Any) -> Any:
    """The class whose methods hold for ``cls``: its first base (or itself) that is defined in this library.

    It is `Penalty` if a class outside the library defines value or prox before that base.
    """
    for base in cls.__mro__:
        if base.__module__.split(".")[0] == __name__.split(".")[0]:
            return base
        if "value" in vars(base) or "prox" in vars(base):
            break
    return cls._root  # `Penalty`, which this module cannot import


def is_a(penalty: Any, *classes: Any) -> bool:
    """Whether a penalty has the value and the prox of one of these classes of the library."""
    return issubclass(known_class(penalty.__class__), classes)


def added(found: Sequence[jax.Array | None]) -> jax.Array | None:
    """The sum of those that are not None; None if there are none."""
    some = [one for one in found if one is not None]
    return sum(some[1:], start=some[0]) if some else None


# The methods of `Penalty` say what each rule returns.
penalised = Rule("_penalised")
covers = Rule("_covers")
cleared = Rule("_cleared")
inside = Rule("_inside")
unpenalised = Rule("_unpenalised")
feasible = Rule("_feasible")
in_units = Rule("_in_units")
row_units = Rule("_row_units")
row_strengths = Rule("_row_strengths")
rescaled = Rule("_rescaled")
by_entry = Rule("_by_entry")
prox_start = Rule("_prox_start")
prox_columns = Rule("_prox_columns")
half_derivative = Rule("_half_derivative")
for_shape_of = Rule("_for_shape_of")
as_given = Rule("_as_given")
leaf_names = Rule("_leaf_names")
