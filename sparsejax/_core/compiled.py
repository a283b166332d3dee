"""A function compiled for eager calls: in little time, and once wherever its arguments come from."""

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding

from sparsejax._core.checks import default_device, is_eager
from sparsejax._core.matrices.sharded import by_compiler, check_same, mesh_of, whole_on
from sparsejax._core.threads import threads_for

# Of XLA, for an eager call on a CPU: half the time to compile the same kernels, which run as fast.
OPTIONS = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_backend_optimization_level": 1,
    "xla_cpu_parallel_codegen_split_count": 1,
}
# Of programs of which one runs a core: sums on several threads take longer there, as products do not.
EACH = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT"}


def options(each: bool = False) -> dict[str, Any]:
    """What an eager program is compiled with; ``each``: one of several programs, each of which has a core."""
    if jax.default_backend() != "cpu":
        return {}
    for known in (OPTIONS, EACH) if each else (OPTIONS,):
        for name in _unknown(tuple(known.items())):
            del known[name]
    return OPTIONS | EACH if each else OPTIONS


@functools.cache
def _unknown(options: tuple[tuple[str, Any], ...]) -> tuple[str, ...]:
    """The names of the options that this version of XLA does not know: none of them is public."""
    if _compiles(dict(options)):
        return ()
    return tuple(name for name, value in options if not _compiles({name: value}))


def _compiles(options: dict[str, Any]) -> bool:
    try:
        jax.jit(lambda x: x, compiler_options=options).lower(np.float32(0)).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


class Compiled:
    """A function compiled with `OPTIONS` for eager calls, where it may be another; nested without.

    Called eagerly with arrays that are spread over devices it returns what each device has whole, so that
    every process can read it: all, or the outputs that ``whole`` says, a prefix of their tree.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        static: tuple[str, ...] = (),
        whole: Any = True,
    ):
        self.nested = jax.jit(function, static_argnames=static)
        self._function, self._whole = function, whole
        self._programs: dict[Any, Any] = {}

    def _jitted(
        self, where: Mesh | jax.Device | None, options: dict[str, Any], static: dict[str, Any]
    ) -> Any:
        """The jitted function of one device or a mesh, with compiler options and static arguments."""
        key = where, *options.items(), *static.items()
        if key not in self._programs:
            placed: dict[str, Any] = {}
            if isinstance(where, Mesh):
                everywhere = whole_on(where)
                placed["out_shardings"] = jax.tree.map(lambda one: everywhere if one else None, self._whole)
            elif where is not None:  # otherwise jit compiles anew for what a user has put on its device
                placed["in_shardings"] = SingleDeviceSharding(where)
            function = functools.partial(self._function, **static)
            self._programs[key] = jax.jit(function, compiler_options=dict(options) or None, **placed)
        return self._programs[key]

    def __call__(self, *args: Any, **static: Any) -> Any:
        """Call it, `alone` where nothing is traced."""
        call = self.alone if is_eager(args) else self.nested
        return call(*args, **static)

    def alone(self, *args: Any, **static: Any) -> Any:
        """Call it where nothing is traced."""
        leaves = jax.tree.leaves(args)
        mesh = mesh_of(leaves)
        if mesh is not None:
            args = by_compiler(args)
            leaves = jax.tree.leaves(args)
            mesh = mesh_of(leaves)
            check_same(leaves, mesh)
        with threads_for(leaves):
            return jax.block_until_ready(self._jitted(mesh or only_device(leaves), options(), static)(*args))

    def together(self, shared: tuple[Any, ...], parts: Sequence[tuple[Any, ...]], **static: Any) -> list[Any]:
        """Call it with ``shared`` and each of the parts, of one shape, at the same time; nothing is traced.

        A thread for each, as many at a time as there are cores: what one thread starts JAX runs one after the
        other. The threads run one program that is compiled before, since contexts such as `jax.enable_x64` do
        not reach them: nor do numpy's arrays, which would be read in a thread's own precision. On several
        devices it is one after the other: what these tell each other must be in the same order everywhere.
        """
        if mesh_of((shared, parts)) is not None:
            return [self.alone(*shared, *part, **static) for part in parts]
        shared = jax.device_put(shared)
        program = self.program(*shared, *parts[0], **static)
        wait: Callable[[Any], Any] = jax.block_until_ready
        with threads_for((shared, parts)), ThreadPoolExecutor(min(len(parts), cores())) as pool:
            return list(pool.map(lambda part: wait(program(*shared, *part)), parts))

    def program(self, *args: Any, **static: Any) -> Callable[..., Any]:
        """What is compiled for arguments of these shapes, none of them traced: to be called in threads."""
        where = mesh_of(args) or only_device(jax.tree.leaves(args))
        return self._jitted(where, options(each=True), static).lower(*args).compile()


def only_device(leaves: list[Any]) -> jax.Device | None:
    """The device of this process where it has but one and all arrays are there; None: jit has to look.

    With several devices a result must stay free to go to any of them, which ``in_shardings`` forbids.
    """
    if jax.device_count() > 1 or default_device() is not None:
        return None
    here = jax.devices()[0]
    return here if all(leaf.device == here for leaf in leaves if isinstance(leaf, jax.Array)) else None


def cores() -> int:
    """How many cores this machine has."""
    return os.cpu_count() or 1
