"""What a batch of solves becomes under `jax.vmap`: one after the other, or all lanes in one loop."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from sparsejax._core.compiled import Compiled
from sparsejax.driver.shards import of_each_shard, where_they_are

# (arguments, for each of their leaves whether it differs from lane to lane): all lanes in one loop?
AtOnce = Callable[[Any, Any], bool]


def _never(args: Any, lanes: Any) -> bool:
    return False


def by_lanes(
    function: Callable[..., Any], at_once: AtOnce = _never, apart: Callable[[Any], bool] = lambda lanes: False
) -> Callable[..., Any]:
    """``function`` of pytrees of arrays, with a rule for `jax.vmap`.

    A batched `lax.cond` computes both of its branches and a batched `lax.while_loop` runs until its slowest
    lane ends, so that a batch of branching programs costs a multiple of its lanes. By this rule the lanes run
    one after the other (`lax.map`) on a CPU, unless ``at_once``; on an accelerator all lanes run at once.

    Lanes that are sharded over devices run where they are: each device goes through its own.

    Args:
      function: sees no gradients; it is traced once for each form of its arguments.
      at_once: called with the arguments and, in the same structure, whether each leaf is batched.
      apart: called with the second of these: whether lanes may never go at once.

    Returns:
      The function, to be called inside a trace.
    """
    program = jax.jit(function)  # keeps its trace

    @jax.custom_batching.custom_vmap
    def one(*args: Any) -> Any:
        return program(*args)

    def all_lanes(*args: Any, batched: tuple[bool, ...], together: bool) -> Any:
        leaves, treedef = jax.tree.flatten(args)
        moving = [leaf for leaf, moves in zip(leaves, batched, strict=True) if moves]
        shared = [leaf for leaf, moves in zip(leaves, batched, strict=True) if not moves]

        def lane(moving: list[Any], shared: list[Any], call: Callable[..., Any]) -> Any:
            own, common = iter(moving), iter(shared)
            return call(*jax.tree.unflatten(treedef, [next(own if moves else common) for moves in batched]))

        if together:
            return jax.vmap(lambda moving: lane(moving, shared, function))(moving)

        def mapped(moving: list[Any], shared: list[Any]) -> Any:
            return lax.map(lambda own: lane(own, shared, one), moving)

        return where_they_are(mapped, moving, shared) if jax.device_count() > 1 else mapped(moving, shared)

    compiled = Compiled(all_lanes, ("batched", "together"))

    @one.def_vmap
    def rule(size: int, batched: Any, *args: Any) -> tuple[Any, Any]:
        flags = tuple(jax.tree.leaves(batched))
        together = not apart(batched) and (jax.default_backend() != "cpu" or at_once(args, batched))
        found = compiled(*args, batched=flags, together=together)
        return found, jax.tree.map(lambda _: True, found)

    return of_each_shard(one)


def shared_by_lanes(function: Callable[[Any], Any], tree: Any, lanes: Any) -> Any:
    """The shapes of ``function(tree)``, arrays, if it is the same for all lanes; None if it is not.

    Args:
      function: of the tree of one lane.
      tree: of all lanes.
      lanes: of each leaf of the tree, whether it has an axis of lanes, the first.
    """
    leaves, treedef = jax.tree.flatten(tree)
    axes = [0 if moves else None for moves in jax.tree.leaves(lanes)]
    of_lane = lambda *leaves: function(jax.tree.unflatten(treedef, leaves))
    if not any(axis == 0 for axis in axes):
        return jax.eval_shape(of_lane, *leaves)
    try:
        return jax.eval_shape(jax.vmap(of_lane, in_axes=axes, out_axes=None), *leaves)
    except ValueError:  # one answer is asked for of what has one for each lane
        return None
