"""Classes whose optional methods come in groups; a class defines all of a group or none, which is checked."""

import sys
from collections.abc import Sequence
from typing import Any, ClassVar

from sparsejax._core.pytree import Pytree

if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations

    # Annotations are evaluated when they are read. With this format a name that is imported for type checkers
    # alone is no NameError.
    _FORMAT = {"format": Format.FORWARDREF}
else:
    from inspect import get_annotations

    _FORMAT: dict[str, Any] = {}


class Protocol(Pytree):
    """Base of `Penalty` and `Loss`, which list the required methods and the optional groups of methods.

    A class has a group if the class, or one of its bases below `Penalty` or `Loss`, defines all names of the
    group, as methods, attributes, annotated fields or leaves. Making a class is a TypeError if

    * a required method is missing, or the class defines only a part of a group;
    * a subclass of a complete class replaces a part of a group and inherits the other part;
    * a subclass of a complete class replaces the function (a required method) but inherits another required
      method, or a group that describes the function: what it inherits would no longer be true.
    """

    _required: ClassVar[tuple[str, ...]] = ()
    _groups: ClassVar[dict[str, tuple[str, ...]]] = {}
    _independent: ClassVar[tuple[str, ...]] = ()  # groups that say nothing about the function's values
    _page: ClassVar[str] = ""
    _root: ClassVar[Any] = None  # Penalty or Loss
    _given: ClassVar[frozenset[str]] = frozenset()
    # True for a class that implements methods of the protocol by hooks of its subclasses.
    _adapter: ClassVar[bool] = False
    # True if the class computes with its leaves alone. Classes outside this library may use other data.
    _self_contained: ClassVar[bool] = False

    def __init_subclass__(
        cls, *, leaves: Sequence[str] | None = None, static: Sequence[str] = (), **options: Any
    ) -> None:
        super().__init_subclass__(leaves=leaves, static=static, **options)
        if "_required" in vars(cls):
            cls._root = cls
            return
        cls._adapter = vars(cls).get("_adapter", False)
        ours = cls.__module__.split(".")[0] == __name__.split(".")[0]
        cls._self_contained = vars(cls).get("_self_contained", ours)
        cls._given = frozenset(name for name in cls._groups if cls._whole(name))
        missing = [name for name in cls._required if cls._provider(name) in (None, cls._root)]
        if missing:
            raise TypeError(f"{cls.__name__} must define {' and '.join(missing)}: see {cls._page}.")
        parents: tuple[Any, ...] = cls.__mro__[1:]
        for parent in parents:
            complete = issubclass(parent, cls._root) and parent is not cls._root and not parent._adapter
            if complete:
                cls._check_replaced(parent)

    @classmethod
    def _whole(cls, group: str) -> bool:
        """Whether the class defines all names of a group; an error if it defines only some."""
        there = [name for name in cls._groups[group] if cls._provider(name) not in (None, cls._root)]
        return cls._is_whole(group, there, cls.__name__)

    @classmethod
    def _is_whole(cls, group: str, there: Sequence[str], owner: str) -> bool:
        """Whether ``there`` are all names of a group, or an error if only some; ``owner`` names the class."""
        absent = [name for name in cls._groups[group] if name not in there]
        if there and absent:
            raise TypeError(
                f"{owner} defines {', '.join(there)} without {', '.join(absent)}: the group "
                f"'{group}' is given whole or not at all; see {cls._page}."
            )
        return not absent

    @classmethod
    def _provider(cls, name: str) -> Any:
        """The class that defines a name: in its body, as a field or as a leaf; else the root, or None."""
        # A subclass lists the leaves of its base again and may annotate them, which replaces nothing: the
        # last base that states a field or a leaf has introduced it.
        annotating = [base for base in cls.__mro__ if name in get_annotations(base, **_FORMAT)]
        listing = [base for base in cls.__mro__ if name in vars(base).get("_leaves", ())]
        below = [base for base in cls.__mro__ if base is not cls._root]
        introducing = [base for base in below if base in annotating or base in listing][-1:]
        fields = [base for base in annotating if base in introducing or base is cls._root]
        found: Any = next((base for base in cls.__mro__ if name in vars(base) or base in fields), None)
        return found if found not in (None, cls._root) else next(iter(introducing), found)

    @classmethod
    def _check_replaced(cls, parent: Any) -> None:
        """Raise if the class replaces names of a complete parent but inherits names that belong to them."""
        other = lambda name: cls._provider(name) is not parent._provider(name)
        function = list(filter(other, cls._required))
        for group, names in {"function": cls._required, **cls._groups}.items():
            if group not in ("function", *parent._given):
                continue
            replaced = list(filter(other, names)) or (function if group not in cls._independent else [])
            kept = [name for name in names if not other(name)]
            if kept and replaced:
                raise TypeError(
                    f"{cls.__name__} replaces {', '.join(replaced)} of {parent.__name__} but keeps its "
                    f"{', '.join(kept)}, which would no longer be true: replace them too, or inherit from "
                    f"sparsejax.{cls._root.__name__}; see {cls._page}."
                )

    @property
    def provides(self) -> frozenset[str]:
        """The groups of methods that this object has."""
        return self._given
