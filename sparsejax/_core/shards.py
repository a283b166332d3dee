"""Solves on several devices: each device solves the problems that it holds and waits for no other.

`per_device` makes them do so within a user's `jax.shard_map`, `map_lanes_per_device` for the sharded lanes
of a `jax.vmap`.

JAX calls an array "varying" along an axis of the mesh if devices along that axis hold different values; the
checks of `jax.shard_map` follow this mark through a program.
"""

import itertools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, use_abstract_mesh


def per_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make ``function``, of pytrees of arrays, pass the checks of `jax.shard_map`.

    The checks want every array in a loop marked, constants included. ``function`` exchanges nothing with
    other devices. It is therefore traced as a program for one device, without marks, and its results are
    marked as varying along every axis along which an argument varies.
    """

    def call(*args: Any) -> Any:
        leaves, treedef = jax.tree.flatten(args)
        axes = varying_axes(args)
        if not axes:
            return function(*args)
        program = jax.jit(lambda *leaves: function(*jax.tree.unflatten(treedef, leaves)))
        unmarked = list(map(_shape_on_one_device, leaves))
        with use_abstract_mesh(AbstractMesh((), ())):
            closed, shapes = jax.make_jaxpr(program, return_shape=True)(*unmarked)
        answers = jax.extend.core.jaxpr_as_fun(closed)(*leaves)
        return jax.tree.unflatten(jax.tree.structure(shapes), [marked(x, axes) for x in answers])

    return call


def varying_axes(tree: Any) -> frozenset[Any]:
    """The axes of the mesh along which an array of the tree varies, inside a `jax.shard_map`."""
    return frozenset().union(*map(_varying_axes_of, jax.tree.leaves(tree)))


def marked(x: Any, axes: frozenset[Any]) -> Any:
    """The array marked as varying along these axes; its cotangent is summed over the axes that are new."""
    more = tuple(axes - _varying_axes_of(x))
    return lax.pcast(x, more, to="varying") if more else x


def on_one_device(closed: jax.extend.core.ClosedJaxpr) -> jax.extend.core.ClosedJaxpr:
    """A program traced inside a `jax.shard_map`, without marks: for one device, with the same constants."""
    if not varying_axes(closed.consts) and not any(map(_axes_of_type, closed.in_avals)):
        return closed
    inputs, consts = ([_shape_on_one_device(x) for x in xs] for xs in (closed.in_avals, closed.consts))

    def evaluated(consts: Any, arguments: Any) -> Any:
        return _evaluated(closed.jaxpr, consts, arguments)

    with use_abstract_mesh(AbstractMesh((), ())):
        found = jax.make_jaxpr(evaluated)(consts, inputs).jaxpr
    count = len(consts)
    jaxpr = jax.extend.core.Jaxpr(found.invars[:count], found.invars[count:], found.outvars, found.eqns)
    return jax.extend.core.ClosedJaxpr(jaxpr, closed.consts)


def _shape_on_one_device(x: Any) -> Any:
    """The shape and dtype of ``x``, not marked as varying."""
    struct: Any = jax.ShapeDtypeStruct
    return struct(jnp.shape(x), jnp.result_type(x))


def _evaluated(jaxpr: Any, consts: Any, arguments: Any) -> list[Any]:
    """The results of a program, nested jits included, without the operations that mark arrays as varying."""
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True))

    def read(v: Any) -> Any:
        return v.val if isinstance(v, jax.extend.core.Literal) else known[v]

    for eqn in jaxpr.eqns:
        name, outvars = eqn.primitive.name, [v for v in eqn.outvars if type(v).__name__ != "DropVar"]
        if name in {"pvary", "pcast"}:
            known.update(zip(eqn.outvars, map(read, eqn.invars), strict=True))
        elif name in {"jit", "pjit"}:
            inner = eqn.params["jaxpr"]
            answers = _evaluated(inner.jaxpr, inner.consts, [read(v) for v in eqn.invars])
            known.update(zip(eqn.outvars, answers, strict=True))
        else:
            # Every other operation is run as a program of its own.
            invars = list({v: None for v in eqn.invars if not isinstance(v, jax.extend.core.Literal)})
            alone = jax.extend.core.ClosedJaxpr(jax.extend.core.Jaxpr([], invars, outvars, [eqn]), [])
            answers = jax.extend.core.jaxpr_as_fun(alone)(*map(read, invars))
            known.update(zip(outvars, answers, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _varying_axes_of(x: Any) -> frozenset[Any]:
    return _axes_of_type(jax.typeof(x))


def _axes_of_type(kind: Any) -> frozenset[Any]:
    mark = _MARK(kind)
    return mark.varying if _HAS_AXIS_TYPE else mark


# The attribute of an array's type that holds its varying axes: in older versions of JAX the set of axes, in
# newer ones an object whose attribute ``varying`` is the set.
_HAS_AXIS_TYPE = "manual_axis_type" in dir(jax.core.ShapedArray)
_MARK = operator.attrgetter("manual_axis_type" if _HAS_AXIS_TYPE else "vma")


def map_lanes_per_device(mapped: Callable[..., Any], moving: list[Any], shared: list[Any]) -> Any:
    """``mapped(moving, shared)``, where each device runs the lanes that it holds.

    Lanes, the problems of a batch, are the first axis of the arrays of ``moving`` and of the results. The
    arrays of ``shared``, the same for all lanes, are copied to every device. Left to itself the compiler lets
    all devices work on each lane, in loops whose lengths differ from lane to lane.
    """
    structure = jax.tree.structure(jax.eval_shape(mapped, moving, shared))
    count = len(moving)

    def flat(*leaves: Any) -> tuple[Any, ...]:
        return tuple(jax.tree.leaves(program(list(leaves[:count]), list(leaves[count:]))))

    program = jax.jit(mapped)  # takes the constants of ``mapped``, which `custom_partitioning` refuses
    split: Any = custom_partitioning(flat)

    def mesh_axis(shapes: Any) -> Any:  # along which the lanes are sharded, if they are
        specs = [shape.sharding.spec for shape in shapes[:count]]
        return next((spec[0] for spec in specs if len(spec) and spec[0] is not None), None)

    P: Any = PartitionSpec

    def placed_results(mesh: Mesh, axis: Any, shapes: Any) -> Any:
        return jax.tree.map(lambda _: NamedSharding(mesh, P(axis)), shapes)

    def partition(mesh: Mesh, arguments: Any, answers: Any) -> Any:
        axis = mesh_axis(arguments)
        placed = [NamedSharding(mesh, P(axis if i < count else None)) for i in range(len(arguments))]
        return mesh, flat, placed_results(mesh, axis, answers), tuple(placed)

    def infer(mesh: Mesh, arguments: Any, answers: Any) -> Any:
        return placed_results(mesh, mesh_axis(arguments), answers)

    outputs = jax.eval_shape(flat, *moving, *shared)
    rule = _rule([jnp.ndim(leaf) for leaf in (*moving, *shared)], count, [out.ndim for out in outputs])
    split.def_partition(partition=partition, infer_sharding_from_operands=infer, sharding_rule=rule)

    # `custom_partitioning` has no rule for `jax.vmap`: under a further one the lanes are mapped without it.
    @jax.custom_batching.custom_vmap
    def lanes(*leaves: Any) -> Any:
        return tuple(split(*leaves))

    @lanes.def_vmap
    def further_lanes(size: int, batched: Any, *leaves: Any) -> tuple[Any, Any]:
        found = jax.vmap(flat, [0 if moves else None for moves in batched])(*leaves)
        return found, tuple(True for _ in found)

    return jax.tree.unflatten(structure, lanes(*moving, *shared))


def _rule(ranks: list[int], count: int, answers: list[int]) -> str:
    """The sharding rule as text, such as ``lane x0, x1 -> lane x2``: ``lane`` is the axis of lanes.

    Args:
      ranks: ranks of the arguments, of which the first ``count`` have the axis of lanes.
      answers: ranks of the results, which all have the axis of lanes.
    """
    number = itertools.count()

    def axes(rank: int, lane: bool) -> str:
        own = [f"x{next(number)}" for _ in range(rank - lane)]
        return " ".join(["lane", *own] if lane else own)

    left = [axes(rank, i < count) for i, rank in enumerate(ranks)]
    return f"{', '.join(left)} -> {', '.join(axes(rank, True) for rank in answers)}"
