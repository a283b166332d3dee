"""A function compiled for eager calls: in little time, and once wherever its arguments come from."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
from jax.sharding import Mesh

from sparsejax._core.checks import is_eager
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


class Compiled:
    """A function compiled with `OPTIONS` for eager calls, where it may be another; nested without.

    Called eagerly with arrays that are spread over devices it returns what each device has whole, so that
    every process can read it: all, or the outputs that ``whole`` says, a prefix of their tree.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        static: tuple[str, ...] = (),
        eager: Callable[..., Any] | None = None,
        whole: Any = True,
    ):
        alone = function if eager is None else eager
        self.nested = jax.jit(function, static_argnames=static)
        self.eager = jax.jit(alone, static_argnames=static)
        self._alone, self._static, self._whole = alone, static, whole
        self._programs: dict[Any, Any] = {}

    def _jitted(self, mesh: Mesh | None, options: dict[str, Any]) -> Any:
        if mesh is None and not options:
            return self.eager
        key = mesh, *options.items()
        if key not in self._programs:
            everywhere = None if mesh is None else whole_on(mesh)
            placed: dict[str, Any] = {}
            if mesh is not None:
                placed["out_shardings"] = jax.tree.map(lambda one: everywhere if one else None, self._whole)
            self._programs[key] = jax.jit(
                self._alone, static_argnames=self._static, compiler_options=dict(options) or None, **placed
            )
        return self._programs[key]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it, `alone` where nothing is traced."""
        call = self.alone if is_eager((args, kwargs)) else self.nested
        return call(*args, **kwargs)

    def alone(self, *args: Any, **kwargs: Any) -> Any:
        """Call it where nothing is traced."""
        leaves, treedef = jax.tree.flatten(args)
        leaves = on_device(leaves)
        mesh = mesh_of(leaves)
        if mesh is not None:
            leaves = by_compiler(leaves)
            mesh = mesh_of(leaves)
            check_same(leaves, mesh)
        args = jax.tree.unflatten(treedef, leaves)
        with threads_for(leaves):
            return jax.block_until_ready(self._with_options(mesh, lambda jitted: jitted(*args, **kwargs)))

    def together(self, shared: tuple[Any, ...], parts: Sequence[tuple[Any, ...]], **static: Any) -> list[Any]:
        """Call it with ``shared`` and each of the parts, of one shape, at the same time; nothing is traced.

        A thread for each, as many at a time as there are cores: what one thread starts JAX runs one after the
        other. The threads run one program that is compiled before, since contexts such as `jax.enable_x64` do
        not reach them: nor do numpy's arrays, which would be read in a thread's own precision. On several
        devices it is one after the other: what these tell each other must be in the same order everywhere.
        """
        if mesh_of((shared, parts)) is not None:
            return [self.alone(*shared, *part, **static) for part in parts]
        shared = on_device(jax.device_put(shared))
        program = self.program(*shared, *parts[0], **static)
        wait: Callable[[Any], Any] = jax.block_until_ready
        with threads_for((shared, parts)), ThreadPoolExecutor(min(len(parts), cores())) as pool:
            return list(pool.map(lambda part: wait(program(*shared, *part)), parts))

    def program(self, *args: Any, **static: Any) -> Callable[..., Any]:
        """What is compiled for arguments of these shapes, none of them traced: to be called in threads."""
        args = on_device(args)
        return self._with_options(
            mesh_of(args), lambda jitted: jitted.lower(*args, **static).compile(), each=True
        )

    def _with_options(self, mesh: Mesh | None, call: Callable[[Any], Any], each: bool = False) -> Any:
        while (options := OPTIONS | EACH if each else OPTIONS) and jax.default_backend() == "cpu":
            try:
                return call(self._jitted(mesh, options))
            except jax.errors.JaxRuntimeError as error:
                unknown = [name for name in options if f"'{name}'" in str(error)]
                if "compile option" not in str(error) or not unknown:
                    raise
                for name in unknown:  # to this version of XLA; the others stay
                    OPTIONS.pop(name, None)
                    EACH.pop(name, None)
        return call(self._jitted(mesh, {}))


def cores() -> int:
    """How many cores this machine has."""
    return os.cpu_count() or 1


def on_device(tree: Any) -> Any:
    """On their device for good, where there is but one: jit compiles anew for what a user has put there."""
    if jax.device_count() > 1:
        return tree
    leaves, treedef = jax.tree.flatten(tree)
    here = jax.devices()[0]  # an array of another backend stays there
    loose = [
        i
        for i, leaf in enumerate(leaves)
        if isinstance(leaf, jax.Array) and not leaf.committed and leaf.devices() == {here}
    ]
    placed = jax.device_put([leaves[i] for i in loose], here)
    for i, leaf in zip(loose, placed, strict=True):
        leaves[i] = leaf
    return jax.tree.unflatten(treedef, leaves)
