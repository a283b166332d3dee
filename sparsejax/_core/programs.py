"""What tells one traced program from another: its text, its arrays, and the Python functions that it calls.

The text of a program does not show arrays inside nested programs, functions that run on the host, and
derivative rules, which JAX calls later.
"""

import contextlib
import functools
import inspect
import os
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple

import jax
import jaxlib
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.extend.linear_util import WrappedFun
from jax.sharding import AbstractMesh, Mesh, Sharding

from sparsejax._core.checkpoints import digest, named
from sparsejax._core.checks import is_traced

# Primitives whose functions are derivative rules: they are called only when a derivative is traced, and what
# they compute is then in the program of the derivative.
RULES = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
# Functions of these files and objects of these packages are known: with equal versions they are the same
# everywhere.
_FOLDERS = [Path(file).parent for file in (jax.__file__, jaxlib.__file__, np.__file__)]
_FOLDERS.append(Path(__file__).parents[1])  # of sparsejax
# Each ends with a separator, since "site-packages/jax" is also the start of "site-packages/jaxopt".
_KNOWN_FILES = (*(f"{folder}{os.sep}" for folder in _FOLDERS), functools.__file__)
_KNOWN_PACKAGES = ("jax", "jaxlib", "sparsejax", "numpy", "functools", "builtins")
# JAX's function that remembers the results of a derivative rule, in a dict that grows as it is called.
_REMEMBERING = "_memoize.<locals>.memoized"
_NAMES_ALONE = {*functools.WRAPPER_ASSIGNMENTS, "__dict__", "__weakref__"}  # attributes without effect
_PLACES = (Mesh, AbstractMesh, Sharding)  # they say where a program runs, not what it computes
_PLAIN = (str, bytes, int, float, complex, bool, range, slice, type(None), np.generic, np.dtype)


class Identity(NamedTuple):
    """What a program is: two programs with equal identities compute the same."""

    text: str  # the text of the program, without memory addresses
    values: tuple[str, ...]  # digests of its arrays, and values that its functions hold
    rules: tuple["Same", ...]  # derivative rules of the user
    functions: tuple["Same", ...]  # other Python functions of the user that it calls


class Same:
    """An object compared by identity."""

    def __init__(self, thing: Any):
        self.thing = thing

    def __eq__(self, other: Any) -> bool:
        """Whether both hold the same object."""
        return isinstance(other, Same) and self.thing is other.thing

    def __hash__(self) -> int:
        """The memory address of the object."""
        return id(self.thing)


def identity_of(jaxpr: Jaxpr) -> Identity:
    """The `Identity` of a program, without the arrays that it closes over itself."""
    search = _Search()
    search.program(jaxpr)
    return Identity(named(jaxpr), tuple(search.values), tuple(search.rules), tuple(search.functions))


def text_of_program(name: str, closed: ClosedJaxpr) -> str:
    """A text that identifies what a program computes, the same in any process; ``name`` is for errors.

    Raises:
      TypeError: the program calls a Python function on the host: nothing says what the function computes.
    """
    found = identity_of(closed.jaxpr)
    if found.functions:
        raise TypeError(
            f"checkpoint: {name} calls {found.functions[0].thing!r} on the host: what that computes "
            "cannot be told, so that its checkpoint would not be recognised. Leave out the checkpoint, or "
            "write this in JAX."
        )
    return digest(closed.consts, np.frombuffer(f"{found.text} {found.values}".encode(), np.uint8))


def runs_users_code(*things: Any) -> bool:
    """Whether a thing is or holds a function from outside `_KNOWN_FILES` and `_KNOWN_PACKAGES`."""
    search = _Search()
    search._all(things, search.functions)
    return bool(search.functions)


class _Search:
    """Collects what the text of a program leaves out."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self.rules: list[Same] = []
        self.functions: list[Same] = []
        # By memory address and list: what is seen as a derivative rule may be called on the host too. The
        # objects stay here, so that no address is used again.
        self._seen: dict[tuple[int, bool], Any] = {}

    def program(self, jaxpr: Any) -> None:
        """Collect from a program and the programs inside, without the constants of the program itself."""
        for equation in jaxpr.eqns:
            found = self.rules if equation.primitive.name in RULES else self.functions
            for atom in equation.invars:
                if isinstance(atom, Literal) and np.ndim(atom.val):
                    self.values.append(digest(atom.val))
            for value in equation.params.values():
                self._reach(value, found, inside=False)

    def _new(self, thing: Any, found: list[Same]) -> bool:
        key = id(thing), found is self.rules
        new = key not in self._seen
        self._seen[key] = thing
        return new

    def _reach(self, thing: Any, found: list[Same], inside: bool = True) -> None:
        """Collect from a parameter of an equation, or from what a function holds.

        Args:
          thing: the parameter.
          found: `rules` or `functions`, the list that functions of the user are added to.
          inside: whether a function holds the thing, so that the program's text lacks it.
        """
        if isinstance(thing, _PLAIN):
            self.values += [repr(thing)] if inside else []
        elif isinstance(thing, np.ndarray | jax.Array) and not is_traced(thing):
            self.values.append(digest(thing))
        elif not self._new(thing, found) or isinstance(thing, _PLACES):
            return
        elif isinstance(thing, ClosedJaxpr):  # with JAX 0.12 every program is one
            # JAX has array types of its own for constants, which are none of those above.
            self.values += [digest(const) for const in thing.consts if not is_traced(const)]
            self.program(thing.jaxpr)
        elif isinstance(thing, Jaxpr):
            self.program(thing)
        elif isinstance(thing, dict):
            self._all([*thing.keys(), *thing.values()], found, inside)
        elif isinstance(thing, tuple | list):
            self._all(thing, found, inside)
        elif isinstance(thing, FunctionType) and thing.__code__.co_filename.startswith(_KNOWN_FILES):
            self._all(_closed_over(thing), found)
        elif isinstance(thing, FunctionType) or not _known(thing):
            found.append(Same(thing))
        else:
            self._all(_held(thing), found)

    def _all(self, things: Any, found: list[Same], inside: bool = True) -> None:
        for thing in things:
            self._reach(thing, found, inside)


def _closed_over(function: FunctionType) -> list[Any]:
    """What a known function holds beside its code: its name, its defaults, and what it closes over."""
    held = [f"{function.__module__}.{function.__qualname__}", function.__defaults__, function.__kwdefaults__]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # the cell is empty
            held.append(cell.cell_contents)
    if function.__qualname__ == _REMEMBERING:
        held = [thing for thing in held if not isinstance(thing, dict)]
    return held


def _held(thing: Any) -> list[Any]:
    """What a known object holds, if it can be called."""
    if isinstance(thing, functools.partial):
        return [thing.func, thing.args, thing.keywords]
    if isinstance(thing, MethodType):
        return [thing.__func__, thing.__self__]
    if isinstance(thing, BuiltinFunctionType):
        name = f"{thing.__module__}.{thing.__qualname__}"  # other modules have functions of the same name
        return [name, *([] if inspect.ismodule(thing.__self__) else [thing.__self__])]
    if isinstance(thing, np.ufunc):
        return [thing.__name__]
    if isinstance(thing, type) or not (callable(thing) or isinstance(thing, WrappedFun)):
        return []
    names = {"__wrapped__", *(vars(thing) if "__dict__" in dir(thing) else ())}
    for kind in type(thing).__mro__:
        slots = vars(kind).get("__slots__", ())
        names.update([slots] if isinstance(slots, str) else slots)
    held = []
    for name in sorted(names - _NAMES_ALONE):
        with contextlib.suppress(AttributeError):  # a slot is empty
            held.append(getattr(thing, name))
    return held


def _known(thing: Any) -> bool:
    if isinstance(thing, np.ufunc):  # `numpy.frompyfunc` makes one of a function of the user
        return vars(np).get(thing.__name__) is thing
    kind = thing if isinstance(thing, type) else type(thing)
    return str(kind.__module__).split(".")[0] in _KNOWN_PACKAGES
