"""Checkpoints: the finished parts of long work in a folder, so that another process can continue the work.

A record is a file ``NAME.npz`` of numpy, without pickle. It is written to a temporary file, which is then
renamed, so that at any moment the old or the new record is complete. The record "call" identifies the call
to which the other records belong.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

FORMAT = "1"  # version of the format of records
CALL = "call"  # name of the record that identifies the call
TEMPORARY = ".writing"  # how the names of temporary files end
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # the memory address in the repr of an object


class Checkpoint:
    """The records of one call in a folder.

    Args:
      caller: name of the function that was called, for errors.
      directory: path of the folder, which is made if it does not exist.
      call: a digest of each argument, by the name of the argument.
    """

    def __init__(self, caller: str, directory: Any, call: Mapping[str, str]):
        name = f"{caller}: checkpoint"
        if not isinstance(directory, (str, os.PathLike)):
            raise TypeError(f"{name} must be the path of a folder, got {directory!r}.")
        if not os.fspath(directory):
            raise ValueError(f"{name} must be the path of a folder, got {directory!r}.")
        self.directory, self._name = Path(directory), name
        if self.directory.exists() and not self.directory.is_dir():
            raise ValueError(f"{name} must be the path of a folder, but {self.directory} is a file.")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except ValueError as error:  # a null character
            raise ValueError(f"{name} must be the path of a folder, got {directory!r}: {error}.") from None
        for left in self.directory.glob("*.npz.*" + TEMPORARY):
            left.unlink(missing_ok=True)  # a process was killed while it wrote this file
        self._call = {"format": FORMAT, "function": caller, **call}
        saved = self._read(CALL)
        if saved is not None:
            self._check(saved)
        elif any(self._path(record).exists() for record in ("part-0", "slice-0")):
            raise self._damaged(self._path(CALL), "it is missing, others are there")
        else:
            self._write(CALL, {"call": np.array(json.dumps(self._call))})

    def load(self, name: str, like: Any) -> Any:
        """The tree saved under a name, None if there is none; ``like``: its expected structure and dtypes."""
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
        """Save a tree of arrays, completely or not at all; returns the seconds that this took."""
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
                np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's stub has a keyword that is a bool
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
                return {key: file[key] for key in file.files}  # compares check sums
        except Exception as error:  # zipfile raises many types for a damaged file, even NotImplementedError
            raise self._damaged(path, str(error)) from None

    def _check(self, saved: dict[str, np.ndarray]) -> None:
        """Raise unless the record "call" is that of this call."""
        try:
            call = json.loads(str(saved["call"]))
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


def saved_or_computed(store: Checkpoint | None, name: str, like: Any, call: Callable[[], Any]) -> Any:
    """The tree saved under this name; if there is none, the result of ``call()``, which is then saved."""
    found = None if store is None else store.load(name, like)
    if found is None:
        found = call()
        if store is not None:
            store.save(name, found)
    return found


# ------------------------------------------------------------------ how a call is identified


def digest(*things: Any) -> str:
    """A hash of pytrees: of their structures and of every bit of their arrays."""
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
    """A text that identifies an argument, the same in any process.

    The argument is an array, a string, a number or None, or a tuple or list of these.

    Functions are identified by the programs that they trace to: `sparsejax._core.programs`.

    Raises:
      TypeError: the argument is anything else; its repr may be the same for things that differ.
    """
    if isinstance(thing, (np.ndarray, jax.Array)):
        return digest(thing)
    if isinstance(thing, tuple | list):
        return str([text_of(part) for part in thing])
    if isinstance(thing, str | int | float | None):
        return repr(thing)
    raise TypeError(
        f"checkpoint: {thing!r} cannot be identified: it must be an array, a string, a number, None, or a "
        "tuple or list of these."
    )


def named(thing: Any) -> str:
    """The text of a tree structure or program without memory addresses: the same in any process."""
    return ADDRESS.sub("", str(thing))
