"""The rule of `jax.vmap` for a solve: the lanes run one after the other, or all in one loop."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from sparsejax._core.compiled import Compiled
from sparsejax._core.precision import full_precision
from sparsejax._core.shards import map_lanes_per_device, per_device

# ``at_once(arguments, lanes)``: whether all lanes run in one loop on a CPU. ``lanes`` has the structure of
# the arguments and says of each leaf whether it differs from lane to lane.
AtOnce = Callable[[Any, Any], bool]


def never(args: Any, lanes: Any) -> bool:
    """The default of ``at_once``: on a CPU the lanes run one after the other."""
    return False


def by_lanes(
    function: Callable[..., Any],
    at_once: AtOnce = never,
    one_by_one: Callable[[Any], bool] = lambda lanes: False,
) -> Callable[..., Any]:
    """Give ``function``, of pytrees of arrays, a rule for `jax.vmap`.

    A batched `lax.cond` computes both of its branches, and a batched `lax.while_loop` runs until its slowest
    lane ends, so that a batched solve costs much more than its lanes one by one. This rule runs the lanes one
    after the other (`lax.map`) on a CPU, unless ``at_once`` is True, and all in one loop on an accelerator,
    unless ``one_by_one`` is True. If the lanes are sharded over devices, each device runs the lanes that it
    holds.

    Args:
      function: carries no derivatives; it is traced once for each structure and shape of its arguments, and
        again where lanes run together.
      at_once: ``at_once(arguments, lanes)``: whether all lanes run in one loop on a CPU, see `AtOnce`.
      one_by_one: ``one_by_one(lanes)``: True runs the lanes one after the other on every device, whatever
        ``at_once`` returns.

    Returns:
      The function, to be called inside a trace.
    """
    function = full_precision()(function)
    program = Compiled(function)  # keeps its trace from call to call

    @jax.custom_batching.custom_vmap
    def one(*args: Any) -> Any:
        return program.nested(*args)

    def all_lanes(*args: Any, batched: tuple[bool, ...], together: bool) -> Any:
        # ``batched`` says of each leaf whether its first axis runs over the lanes.
        leaves, treedef = jax.tree.flatten(args)
        moving = [leaf for leaf, moves in zip(leaves, batched, strict=True) if moves]
        shared = [leaf for leaf, moves in zip(leaves, batched, strict=True) if not moves]

        def lane(moving: list[Any], shared: list[Any], call: Callable[..., Any]) -> Any:
            """``call`` with the arguments of one lane, made of its own leaves and of the shared ones."""
            own, common = iter(moving), iter(shared)
            return call(*jax.tree.unflatten(treedef, [next(own if moves else common) for moves in batched]))

        if together:
            return jax.vmap(lambda moving: lane(moving, shared, function))(moving)

        def mapped(moving: list[Any], shared: list[Any]) -> Any:
            return lax.map(lambda own: lane(own, shared, one), moving)

        return (
            map_lanes_per_device(mapped, moving, shared) if jax.device_count() > 1 else mapped(moving, shared)
        )

    compiled = Compiled(all_lanes, ("batched", "together"))

    @one.def_vmap
    def rule(size: int, batched: Any, *args: Any) -> tuple[Any, Any]:
        flags = tuple(jax.tree.leaves(batched))
        together = not one_by_one(batched) and (jax.default_backend() != "cpu" or at_once(args, batched))
        found = compiled(*args, batched=flags, together=together)
        return found, jax.tree.map(lambda _: True, found)

    return per_device(one)


def shared_by_lanes(function: Callable[[Any], Any], tree: Any, lanes: Any) -> Any:
    """The shapes and dtypes of ``function(tree)``; None if it depends on a leaf that lanes do not share.

    Args:
      function: takes the tree of one lane and returns arrays.
      tree: the leaves of all lanes.
      lanes: for each leaf of the tree whether its first axis runs over the lanes.
    """
    leaves, treedef = jax.tree.flatten(tree)
    axes = [0 if moves else None for moves in jax.tree.leaves(lanes)]
    of_lane = lambda *leaves: function(jax.tree.unflatten(treedef, leaves))
    if not any(axis == 0 for axis in axes):
        return jax.eval_shape(of_lane, *leaves)
    try:
        return jax.eval_shape(jax.vmap(of_lane, in_axes=axes, out_axes=None), *leaves)
    except ValueError:  # ``out_axes=None`` is refused where the value depends on a batched leaf
        return None
