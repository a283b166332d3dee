"""Functions compiled for eager calls, with fast compilation; arrays of numpy and of JAX share a program."""

import contextlib
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding

from sparsejax._core.checks import default_device, is_eager
from sparsejax._core.matrices.sharded import by_compiler, check_same, mesh_of, whole_on
from sparsejax._core.precision import full_precision
from sparsejax._core.pytree import form_of
from sparsejax._core.threads import factorises_batches, one_at_a_time, threads_for

# Compiler options of XLA for eager calls on a CPU. They halve the time to compile, and programs run as fast
# as with XLA's defaults.
OPTIONS = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_backend_optimization_level": 1,
    "xla_cpu_parallel_codegen_split_count": 1,
}
# Further options where each core runs a program of its own. Several threads make sums slower there, but not
# products: only products (DOT) go to YNNPACK, which uses threads.
ONE_PER_CORE_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT"}
# On a GPU XLA compiles a kernel of its own for each matrix product in many variants and times them: that is
# three quarters of the time of a first solve. Products by cuBLAS are as fast here.
GPU_OPTIONS = {"xla_gpu_enable_triton_gemm": False}


def options(each: bool = False) -> dict[str, Any]:
    """The compiler options of an eager program; ``each``: several such programs run at once, one a core."""
    chosen = {"cpu": (OPTIONS, ONE_PER_CORE_OPTIONS)[: 1 + each], "gpu": (GPU_OPTIONS,)}
    found: dict[str, Any] = {}
    for known in chosen.get(jax.default_backend(), ()):
        for name in _unknown(tuple(known.items())):
            del known[name]
        found |= known
    return found


@functools.cache
def _unknown(options: tuple[tuple[str, Any], ...]) -> tuple[str, ...]:
    """The names of the options that this version of XLA does not know; XLA documents none of its options."""
    if _compiles(dict(options)):
        return ()
    return tuple(name for name, value in options if not _compiles({name: value}))


def _compiles(options: dict[str, Any]) -> bool:
    try:
        jax.jit(lambda x: x, compiler_options=options).lower(np.float32(0)).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


_every: weakref.WeakSet["Compiled"] = weakref.WeakSet()


def forget_programs() -> None:
    """Let every `Compiled` trace its function again, since a table that the functions read has changed."""
    for compiled in list(_every):
        compiled.nested.clear_cache()  # type: ignore[attr-defined]  # it is there
        compiled._programs.clear()
        compiled._batched.clear()


class Compiled:
    """A function compiled with `OPTIONS` in eager calls, and by plain `jax.jit` inside other programs.

    Args:
      function: what is compiled.
      static: names of its static arguments.
      whole: for arrays sharded over devices: True if every device gets all of every output, so that each
        process can read the outputs.
    """

    def __init__(self, function: Callable[..., Any], static: tuple[str, ...] = (), whole: bool = True):
        self.nested = jax.jit(function, static_argnames=static)
        self._function, self._whole = function, whole
        self._programs: dict[Any, Any] = {}
        self._batched: dict[Any, bool] = {}
        _every.add(self)

    def _jitted(
        self, where: Mesh | jax.Device | None, options: dict[str, Any], static: dict[str, Any]
    ) -> Any:
        """The jitted function of one device or a mesh, with compiler options and static arguments."""
        key = where, *options.items(), *static.items()
        if key not in self._programs:
            placed: dict[str, Any] = {}
            if isinstance(where, Mesh):
                placed["out_shardings"] = whole_on(where) if self._whole else None
            elif where is not None:  # without this jit compiles again for arguments committed to the device
                placed["in_shardings"] = SingleDeviceSharding(where)
            function = functools.partial(self._function, **static)
            self._programs[key] = jax.jit(function, compiler_options=dict(options) or None, **placed)
        return self._programs[key]

    @full_precision()
    def __call__(self, *args: Any, **static: Any) -> Any:
        """Call the function: by `alone` if nothing is traced, else as a part of the program being traced."""
        call = self.alone if is_eager(args) else self.nested
        return call(*args, **static)

    @full_precision()
    def alone(self, *args: Any, **static: Any) -> Any:
        """Call the function with arguments that are not traced."""
        leaves = jax.tree.leaves(args)
        mesh = mesh_of(leaves)
        if mesh is not None:
            args = by_compiler(args)
            leaves = jax.tree.leaves(args)
            mesh = mesh_of(leaves)
            check_same(leaves, mesh)
        program = self._jitted(mesh or only_device(leaves), options(), static)
        locked = threading.active_count() > 1 and self._factorises_batches(program, args)
        with threads_for(leaves), one_at_a_time() if locked else contextlib.nullcontext():
            return jax.block_until_ready(program(*args))

    def _factorises_batches(self, program: Any, args: tuple[Any, ...]) -> bool:
        """`factorises_batches` of the program for these arguments, remembered by their shapes."""
        key = program, form_of(args)
        if key not in self._batched:
            self._batched[key] = factorises_batches(program.trace(*args).jaxpr.jaxpr)
        return self._batched[key]

    def together(self, shared: tuple[Any, ...], parts: Sequence[tuple[Any, ...]], **static: Any) -> list[Any]:
        """Call the function with ``shared`` and each of the parts, at the same time; nothing is traced.

        All parts have the same shapes. There are at most as many threads as cores; JAX runs the calls of one
        thread one after another. The program is compiled, and ``shared`` is put on the device, before the
        threads start: a context such as `jax.enable_x64` does not reach a new thread, which would convert
        arrays of numpy to another precision. If the arrays are on several devices, the calls are made one
        after another, since communication must be in the same order on all devices.
        """
        if mesh_of((shared, parts)) is not None:
            return [self.alone(*shared, *part, **static) for part in parts]
        shared = jax.device_put(shared)
        program = self.program(*shared, *parts[0], **static)
        wait: Callable[[Any], Any] = jax.block_until_ready
        with threads_for((shared, parts)), ThreadPoolExecutor(min(len(parts), cores())) as pool:
            return list(pool.map(lambda part: wait(program(*shared, *part)), parts))

    @full_precision()
    def program(self, *args: Any, **static: Any) -> Callable[..., Any]:
        """The program compiled for arguments of these shapes, which are not traced; threads may call it."""
        where = mesh_of(args) or only_device(jax.tree.leaves(args))
        program = self._jitted(where, options(each=True), static)
        compiled: Callable[..., Any] = program.lower(*args).compile()
        if not self._factorises_batches(program, args):
            return compiled

        def alone(*args: Any) -> Any:
            with one_at_a_time():
                return jax.block_until_ready(compiled(*args))

        return alone


def only_device(leaves: list[Any]) -> jax.Device | None:
    """The only device of this process, if all arrays are there; else None, and jit chooses.

    With several devices, or a default device that the user has set, None is returned: ``in_shardings`` would
    commit results to one device.
    """
    if jax.device_count() > 1 or default_device() is not None:
        return None
    here = jax.devices()[0]
    return here if all(leaf.device == here for leaf in leaves if isinstance(leaf, jax.Array)) else None


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
