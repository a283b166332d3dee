"""What is done of long work, in a folder, so that it goes on after the process has ended.

A record is a file ``NAME.npz`` of numpy, without pickle. It is written beside and then renamed, so that at
any moment there is the old one or the new one. The record "call" tells to which call the others belong.
"""

import functools
import hashlib
import inspect
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import jax
import numpy as np

FORMAT = "1"
CALL = "call"  # the record of what the folder is for
TEMPORARY = ".writing"
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Checkpoint:
    """The records of one call in a folder.

    Args:
      caller: for errors.
      directory: the folder, made if it is not there.
      call: what the call is, as digests by name of what they are of.
    """

    def __init__(self, caller: str, directory: Any, call: Mapping[str, str]):
        name = f"{caller}: checkpoint"
        if not isinstance(directory, (str, os.PathLike)):
            raise TypeError(f"{name} must be the path of a folder, got {directory!r}.")
        self.directory, self._name = Path(directory), name
        if self.directory.exists() and not self.directory.is_dir():
            raise ValueError(f"{name} must be the path of a folder, but {self.directory} is a file.")
        self.directory.mkdir(parents=True, exist_ok=True)
        for left in self.directory.glob("*" + TEMPORARY):
            left.unlink(missing_ok=True)  # of a process that was killed while it wrote
        self._call = {"format": FORMAT, "function": caller, **call}
        kept = self._read(CALL)
        if kept is not None:
            self._check(kept)
        elif any(self._path(name).exists() for name in ("part-0", "slice-0")):
            raise self._damaged(self._path(CALL), "it is missing, others are there")
        else:
            self._write(CALL, {"call": np.array(json.dumps(self._call))})

    def load(self, name: str, like: Any) -> Any:
        """What was saved under a name, None if nothing; ``like``: a tree of its structure and dtypes."""
        arrays = self._read(name)
        if arrays is None:
            return None
        leaves, treedef = jax.tree.flatten(like)
        dtypes = [str(np.dtype(leaf.dtype)) for leaf in leaves]
        found = [arrays.get(f"leaf-{i}", np.array("")) for i in range(len(leaves))]
        if len(arrays) != len(leaves) or [str(leaf.dtype) for leaf in found] != dtypes:
            raise self._damaged(self._path(name), "it holds other arrays")
        return jax.tree.unflatten(treedef, found)

    def save(self, name: str, tree: Any) -> float:
        """Save a tree of arrays, at once or not at all; the seconds that it took."""
        begin = time.perf_counter()
        leaves = map(np.asarray, jax.tree.leaves(tree))
        self._write(name, {f"leaf-{i}": leaf for i, leaf in enumerate(leaves)})
        return time.perf_counter() - begin

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.npz"

    def _write(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        path = self._path(name)
        beside = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY}")
        try:
            with beside.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except OSError as error:
            beside.unlink(missing_ok=True)
            why = error.strerror or error
            text = f"{self._name}: {path} could not be written: {why}. What was there before is whole."
            raise OSError(error.errno, text) from error

    def _read(self, name: str) -> dict[str, np.ndarray] | None:
        path = self._path(name)
        if not path.exists():
            return None
        try:
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                return {key: file[key] for key in file.files}  # each against its check sum
        except Exception as error:  # a flipped bit has made a reader of zip raise NotImplementedError
            raise self._damaged(path, str(error)) from None

    def _check(self, kept: dict[str, np.ndarray]) -> None:
        try:
            call = json.loads(str(kept["call"]))
            other = sorted(key for key in {*call, *self._call} if call.get(key) != self._call.get(key))
        except (KeyError, ValueError, AttributeError, TypeError) as error:
            raise self._damaged(self._path(CALL), str(error)) from None
        if other:
            raise ValueError(
                f"{self._name}: {self.directory} is of another call, which differs in: {', '.join(other)}. "
                "Give another folder, or delete this one to begin again."
            )

    def _damaged(self, path: Path, why: str) -> ValueError:
        return ValueError(f"{self._name}: {path} is damaged ({why}). Delete {self.directory} to begin again.")


def kept_in(store: Checkpoint | None, name: str, like: Any, call: Callable[[], Any]) -> Any:
    """What was saved under this name, else what ``call`` returns, which is then saved."""
    found = None if store is None else store.load(name, like)
    if found is None:
        found = call()
        if store is not None:
            store.save(name, found)
    return found


# ------------------------------------------------------------------ what a call is


def digest(*things: Any) -> str:
    """Of pytrees: their structure, and every bit of their arrays."""
    found = hashlib.sha256()
    for thing in things:
        leaves, treedef = jax.tree.flatten(thing)
        found.update(named(treedef).encode())
        for leaf in leaves:
            array = np.asarray(leaf)
            found.update(f"{array.dtype} {array.shape} ".encode())
            found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def text_of(thing: Any) -> str:
    """What an argument is, the same in any process: a function is its code and what it closes over.

    Raises:
      TypeError: only its place in memory tells it from others.
    """
    if isinstance(thing, (np.ndarray, jax.Array)):
        return digest(thing)
    if isinstance(thing, functools.partial):
        return f"partial {text_of(thing.func)} {text_of(thing.args)} {text_of(thing.keywords)}"
    if isinstance(thing, tuple | list):
        return str([text_of(part) for part in thing])
    if isinstance(thing, dict):
        return str([(key, text_of(thing[key])) for key in sorted(thing, key=repr)])
    function = inspect.unwrap(thing)  # by `jax.jit`
    if isinstance(function, FunctionType):
        around = text_of([cell.cell_contents for cell in function.__closure__ or ()])
        named = f"{function.__module__}.{function.__qualname__}"
        return f"{named} {_code(function.__code__)} {text_of(function.__defaults__)} {around}"
    if ADDRESS.search(repr(thing)):
        raise TypeError(f"checkpoint: what {thing!r} does cannot be told: give a function, or it a __repr__.")
    return repr(thing)


def _code(code: CodeType) -> str:
    constants = [_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def named(thing: Any) -> str:
    """The text of a structure or program, the same in any process."""
    return ADDRESS.sub("", str(thing))
