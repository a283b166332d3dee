"""Arrays that are sharded over devices: checks of their values that give all processes the same answer."""

import functools
import zlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec


def is_sharded(x: Any) -> bool:
    """True for a concrete array of which no device has all entries; a process may not be able to read it."""
    return isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer) and not x.is_fully_replicated


def mesh_of(tree: Any) -> Any:
    """The mesh of the first concrete array in the tree that is on a mesh, else None."""
    for leaf in jax.tree.leaves(tree):
        concrete = isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)
        if concrete and isinstance(leaf.sharding, NamedSharding):
            return leaf.sharding.mesh
    return None


def whole_on(mesh: Mesh) -> NamedSharding:
    """The sharding by which every device of the mesh has the whole array."""
    return NamedSharding(mesh, PartitionSpec())


def answer_of(question: Callable[..., Any], *arrays: Any, **options: Any) -> Any:
    """``question(xp, *arrays, **options)`` as numpy arrays, wherever the arrays are.

    Args:
      question: a function at module level (its compiled program is cached) with a small result. xp is numpy,
        or jax.numpy inside one program if an array is sharded, or large and on an accelerator.
      arrays: concrete arrays.
      options: static, hashable arguments.
    """
    mesh = next((mesh_of(array) for array in arrays if is_sharded(array)), None)
    if mesh is None and not any(map(_stays_on_its_device, arrays)):
        return question(np, *map(np.asarray, arrays), **options)
    with jax.ensure_compile_time_eval():  # a function that is being traced may ask, too
        return jax.device_get(_program(question, mesh, tuple(options.items()))(*arrays))


MAX_FETCHED_SIZE = 1 << 22  # entries; a copy of these to the host takes some 3 ms, a program 0.1 s to compile


def _stays_on_its_device(x: Any) -> bool:
    """Whether the array is on an accelerator and too large to be copied to the host."""
    large = isinstance(x, jax.Array) and x.size > MAX_FETCHED_SIZE
    return large and {device.platform for device in x.devices()} != {"cpu"}


@functools.cache
def _program(question: Callable[..., Any], mesh: Mesh | None, options: tuple[Any, ...]) -> Callable[..., Any]:
    placed: dict[str, Any] = {} if mesh is None else {"out_shardings": whole_on(mesh)}
    return jax.jit(functools.partial(question, jax.numpy, **dict(options)), **placed)


def first_of(xp: Any, mask: Any) -> tuple[Any, Any]:
    """The place of the first True of a mask: its index on the first axis, and on the other axes flattened."""
    rows = mask.reshape(mask.shape[0], -1)
    row = xp.argmax(rows.any(axis=1))
    return row, xp.argmax(rows[row])


def admitted(name: str, x: jax.Array) -> jax.Array:
    """An array on several devices, checked and prepared by `by_compiler`.

    Raises:
      TypeError: the array is not on a mesh.
      ValueError: its shape, dtype or sharding differs between processes.
    """
    sharding = x.sharding
    if not isinstance(sharding, NamedSharding):
        raise TypeError(f"{name} has a {type(sharding).__name__}; put it on a mesh by a NamedSharding.")
    mesh: Any = sharding.mesh
    if not is_same((x.shape, x.dtype.name, str(sharding.spec)), mesh):
        raise ValueError(
            f"{name} has shape {x.shape}, {x.dtype} and {sharding.spec} on process {jax.process_index()}, "
            "but not on all others: parts of unequal length make arrays of unequal length. Give every "
            "process the same dtype and the same number of rows: add rows of weight 0."
        )
    return by_compiler(x)


def by_compiler(tree: Any) -> Any:
    """The tree with arrays moved from a mesh with explicit axes to the same mesh with automatic axes.

    `jax.make_mesh` makes explicit axes, which are part of the types of arrays, so that every product would
    have to name them. Nothing is copied.
    """

    def one(leaf: Any) -> Any:
        mesh: Any = mesh_of(leaf)
        if mesh is None or all(kind == AxisType.Auto for kind in mesh.axis_types):
            return leaf
        return jax.device_put(leaf, NamedSharding(Mesh(mesh.devices, mesh.axis_names), leaf.sharding.spec))

    return jax.tree.map(one, tree)


def check_placed(name: str, x: Any) -> None:
    """Raise if a traced array has explicit axes of a mesh in its type."""
    if any(part is not None for part in jax.typeof(x).sharding.spec):
        raise TypeError(
            f"{name} is sharded by its type, {jax.typeof(x)}, which every product would have to name: make "
            "the mesh with axis_types=(AxisType.Auto, ...), or the loss outside jit."
        )


def check_one_process(caller: str, chunked: bool, tree: Any) -> None:
    """Raise if work is ``chunked`` and its arrays are on a mesh of several processes.

    Each process would choose the size of the chunks by its own clock.
    """
    mesh = mesh_of(tree) if chunked else None
    if mesh is not None and _is_shared(mesh):
        raise TypeError(
            f"{caller}: progress=True and checkpoint=... go by the clock of one process, and the data are on "
            "several: leave them out."
        )


def check_here(name: str, x: Any) -> None:
    """Raise if x is an array that this process cannot read."""
    if is_sharded(x) and not x.is_fully_addressable:
        raise TypeError(f"{name} is spread over processes; each must have all of it: give an array of numpy.")


def check_same(tree: Any, mesh: Mesh) -> None:
    """Raise unless the leaves that are not on the mesh are the same on all processes."""
    if not _is_shared(mesh):
        return
    there = [leaf for leaf in jax.tree.leaves(tree) if mesh_of(leaf) is None]
    hosts = [np.asarray(leaf) for leaf in there]
    if not is_same([(a.shape, a.dtype.name, zlib.crc32(a.tobytes())) for a in hosts], mesh):
        raise ValueError(
            "what is not sharded (strengths, init, tol, arrays of numpy) differs from process to process: it "
            "must be the same on all, so seed random numbers alike and read the same files."
        )


def is_same(facts: Any, mesh: Mesh) -> bool:
    """Whether all processes of a mesh have the same ``facts``, compared as text; all of them must call it."""
    if not _is_shared(mesh):
        return True
    code = np.full(1, zlib.crc32(str(facts).encode()) >> 1, np.int32)  # >> 1: an int32 holds 31 bits
    by_device = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    codes = jax.make_array_from_callback((mesh.size,), by_device, lambda _: code)
    low, high = answer_of(_range, codes)
    return bool(low == high)


def _range(xp: Any, codes: Any) -> Any:
    return xp.min(codes), xp.max(codes)


def _is_shared(mesh: Mesh) -> bool:
    return len({device.process_index for device in mesh.devices.flat}) > 1
