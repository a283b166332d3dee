"""Classes whose abilities come in groups, each given whole or not at all, checked when a class is made."""

from collections.abc import Sequence
from typing import Any, ClassVar

from sparsejax._core.pytree import Pytree


class Protocol(Pytree):
    """Base of `Penalty` and `Loss`, which say what is required and which groups of methods are optional.

    A group counts as given where a class, or one of its bases below `Penalty` or `Loss`, defines all of its
    names, as methods, attributes, annotated fields or leaves. An error when the class is made:

    * a required method is missing; a group is given in part;
    * a subclass of a complete class replaces a part of a group, or the function itself (``required``) but not
      all the groups that are about that function: what it would inherit would be untrue.
    """

    _required: ClassVar[tuple[str, ...]] = ()
    _groups: ClassVar[dict[str, tuple[str, ...]]] = {}
    _independent: ClassVar[tuple[str, ...]] = ()  # groups that say nothing about the function's values
    _page: ClassVar[str] = ""
    _root: ClassVar[Any] = None  # Penalty or Loss
    _given: ClassVar[frozenset[str]] = frozenset()
    # Turns hooks of its subclasses into the protocol's methods: these are no function of its own.
    _adapter: ClassVar[bool] = False
    # All that it computes with is in its leaves; not known of a class from elsewhere: it may close over more.
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
        """True if the group is given, False if it is not, an error if it is half given."""
        names = cls._groups[group]
        absent = [name for name in names if cls._provider(name) in (None, cls._root)]
        if absent and len(absent) < len(names):
            there = [name for name in names if name not in absent]
            raise TypeError(
                f"{cls.__name__} defines {', '.join(there)} without {', '.join(absent)}: the group "
                f"'{group}' is given whole or not at all; see {cls._page}."
            )
        return not absent

    @classmethod
    def _provider(cls, name: str) -> Any:
        """The class in whose body a name is defined or which made it a leaf; the root if it is the root's."""
        found = None
        for base in cls.__mro__:
            if name in vars(base) or name in vars(base).get("__annotations__", {}):
                found = base
                break
        if found not in (None, cls._root):
            return found
        listing = [base for base in cls.__mro__ if name in vars(base).get("_leaves", ())]
        return listing[-1] if listing else found

    @classmethod
    def _check_replaced(cls, parent: Any) -> None:
        changed = {
            group: [name for name in names if cls._provider(name) is not parent._provider(name)]
            for group, names in {"function": cls._required, **cls._groups}.items()
        }
        for group, names in {"function": cls._required, **cls._groups}.items():
            if group not in ("function", *parent._given):
                continue
            about = changed["function"] and group not in cls._independent
            kept = [name for name in names if name not in changed[group]]
            if kept and (changed[group] or about):
                replaced = changed[group] or changed["function"]
                raise TypeError(
                    f"{cls.__name__} replaces {', '.join(replaced)} of {parent.__name__} but keeps its "
                    f"{', '.join(kept)}, which would no longer be true: replace them too, or inherit from "
                    f"sparsejax.{cls._root.__name__}; see {cls._page}."
                )

    @property
    def provides(self) -> frozenset[str]:
        """The groups of methods that this object has."""
        return self._given
