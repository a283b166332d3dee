"""Sums of penalties: a single term if the prox has a closed form, else several terms."""

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sparsejax._core.checks import is_traced
from sparsejax._core.linalg import columns, safe_divide
from sparsejax.penalties._added_norms import added_norms
from sparsejax.penalties._base import Penalty, RowNorm, scale_strengths
from sparsejax.penalties._by_leaf import ByLeaf
from sparsejax.penalties._exclusive_groups import ExclusiveGroupL21
from sparsejax.penalties._gauge import gauge
from sparsejax.penalties._group_lasso import GroupLasso
from sparsejax.penalties._joint import Joint, is_ridge
from sparsejax.penalties._norms import L1, L21
from sparsejax.penalties._on_vectors import OnVectors, on_vectors
from sparsejax.penalties._plain import as_penalty, is_penalty
from sparsejax.penalties._preconditioner import Map, one_by_one
from sparsejax.penalties._rules import (
    Rule,
    added,
    by_entry,
    feasible,
    for_shape_of,
    in_units,
    is_a,
    leaf_names,
    prox_columns,
    prox_start,
    rescaled,
    row_strengths,
    row_units,
    unpenalised,
)
from sparsejax.penalties._simple import Box, NonNegative, SquaredL2
from sparsejax.penalties._sum_to import SumTo
from sparsejax.penalties._terms import SeveralTerms, within
from sparsejax.penalties._transposed import RowPenalty


class Sum(SeveralTerms, leaves=("parts",)):
    r"""``g(W) = sum_p g_p(W)``; ``+`` of penalties makes it.

    Parts with a joint prox in closed form are one term. Solvers are fastest if there is a single term:

    * `L1` with `L21` or disjoint `GroupLasso`: soft thresholding of the entries, then of the norms. The
      second step multiplies a row by a positive factor, which does not change the subgradients of l1 (Yu,
      NeurIPS 2013);
    * anything with `SquaredL2`: :math:`\operatorname{prox}_{t(g + m\|\cdot\|^2/2)}(V) =
      \operatorname{prox}_{t/(1+tm)\,g}(V/(1+tm))`, by completing the square; with strengths by row where g is
      a sum over rows;
    * `NonNegative` with a penalty that depends on :math:`|W|` only and does not decrease in it, as all of
      this library do except `Box`, `TotalVariation` and `SumTo`: the prox at :math:`\max(V, 0)`, since 0 is
      best for an entry that is negative in V;
    * `Box` with `L1`: the prox, clipped to the interval in each entry, since a convex function of one
      variable increases with the distance from its minimiser;
    * `TotalVariation` with `L1` of one number, and `SumTo` with any `L1` and with `NonNegative`.

    Any other sum is split into such terms, which `admm` treats one by one; ``prox`` is then iterative
    (Dykstra's algorithm). The gap is known if it is known for all parts: the conjugate of a sum at Z is the
    least sum of the conjugates over all splits of Z.

    Args:
      parts: penalties of this library or with ``value`` and ``prox``; sums are flattened.

    Raises:
      TypeError: a part is not a penalty, or it is `ByLeaf` (put sums inside it).
      ValueError: there is no part; a penalty occurs twice (write ``2 * penalty``); the boxes have no point in
        common, or bounds of different lengths; two `SumTo` have different totals.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> penalty = sj.penalties.L1(1.0) + sj.penalties.SquaredL2(1.0)
    >>> print(penalty.prox(jnp.array([3.0, -0.5])))
    [ 1. -0.]
    """

    strengths = ("parts",)
    parts: tuple[Any, ...]

    def __init__(self, parts: Sequence[Any]):
        if not isinstance(parts, Iterable):
            raise TypeError(f"parts must be a sequence of penalties, got {parts!r}.")
        flat: list[Any] = []
        for part in parts:
            known = as_penalty(part)
            if isinstance(known, ByLeaf):
                raise TypeError("a sum with ByLeaf: put the sum inside, ByLeaf({'weight': a + b}).")
            flat += known.parts if isinstance(known, Sum) else [known]
        if not flat:
            raise ValueError("parts is empty; at least one penalty is needed.")
        if len({id(part) for part in flat}) < len(flat):
            raise ValueError("a sum of a penalty with itself: write 2 * penalty.")
        self._set(parts=tuple(flat))
        bounds = [bound for part in flat if isinstance(part, Box) for bound in (part.low, part.high)]
        lengths = {jnp.shape(bound)[-1] for bound in bounds if jnp.ndim(bound)}  # before it: along a path
        if len(lengths) > 1:
            raise ValueError(f"the boxes of the sum have bounds of different lengths, {sorted(lengths)}.")
        low, high = _bounds(flat)
        if not (is_traced(low) or is_traced(high)) and (np.asarray(low) > high).any():
            raise ValueError("the bounds of the sum (Box, NonNegative) have no point in common.")
        totals = [part.total for part in flat if isinstance(part, SumTo)]
        if not any(map(is_traced, totals)) and len({float(np.asarray(total)) for total in totals}) > 1:
            raise ValueError(f"SumTo: no column has two sums, {totals[0]:g} and {totals[-1]:g}.")

    # ------------------------------------------------------------------ terms

    @property
    def terms(self) -> tuple[Any, ...]:
        """Terms with an exact prox each: boxes in the last one, and W >= 0 unless `SumTo` has joined it."""
        squares = [part for part in self.parts if is_a(part, SquaredL2)]
        boxes = [part for part in self.parts if isinstance(part, Box)]
        positive = any(isinstance(part, NonNegative) for part in self.parts)
        others = [part for part in self.parts if not isinstance(part, (Box, NonNegative))]
        others = [part for part in others if not is_a(part, SquaredL2)]
        cores, positive = _joined(others, positive)
        # Terms of norms; then one square and one box for all squares and boxes; the constraint W >= 0 joins
        # the last term if its penalties allow, else the box.
        groups = _chains([term for core in cores for term in core.terms])
        square: Any = squares[0] if squares else None
        if len(squares) > 1:
            square = square._replace(strength=sum(jnp.asarray(s.strength) for s in squares))
        box = None
        if boxes or (positive and not _absolute(groups[-1] if groups else [])):
            low, high = _bounds(boxes)
            box = Box._replace(
                boxes[0] if boxes else Box(0.0, 0.0), low=jnp.maximum(low, 0) if positive else low, high=high
            )
            positive = False
        # The box joins the last term if that is `L1` or empty, else it is a term of its own.
        last = groups.pop() if groups else []
        alone = box is not None and not all(is_a(core, L1) for core in last)
        terms = [Joint(tuple(chain), None, None, positive=False) for chain in groups]
        terms.append(Joint(tuple(last), None, None if alone else box, positive))
        if square is not None:
            # The square joins the first term whose prox with the square has a closed form.
            host = next((i for i, term in enumerate(terms) if is_ridge(term, square)), None)
            if host is None:
                terms.insert(0, Joint((), square, box=None, positive=False))
            else:
                terms[host] = terms[host]._replace(square=square)
        if alone:
            terms.append(Joint((), None, box, positive=False))
        return tuple(term.plain() for term in terms)

    @property
    def provides(self) -> frozenset[str]:
        """The groups of the protocol that follow from those of the parts."""
        terms, known = self.terms, {"dual", "support", "sparse rows"}
        found = {name for name in known if all(name in term.provides for term in terms)}
        if len(terms) > 1:
            found -= {"sparse rows"}
            found |= {"terms"}
        if all(is_a(part, SquaredL2) or "row norm" in part.provides for part in self.parts):
            found |= {"row norm"}
        if all("units" in part.provides for part in self.parts):
            found |= {"units"}
            if "dual" in found and any(1 in part.degrees for part in self.parts):
                found |= {"dual norm"}
        return frozenset(found)

    @property
    def degrees(self) -> tuple[int, ...]:  # type: ignore[override]  # a class attribute of the base
        """A placeholder for the one entry of `strengths`: each part has its own degrees, see `in_units`."""
        return (0,)

    @property
    def finite_conjugate(self) -> bool:  # type: ignore[override]  # a class attribute of the base
        """True if the conjugate of some term is finite everywhere: its part of Z may then be any array."""
        return any(bool(term.finite_conjugate) for term in self.terms)

    @property
    def _offset(self) -> bool:  # type: ignore[override]
        return any(term._offset for term in self.terms)

    @property
    def _self_contained(self) -> bool:  # type: ignore[override]
        return all(part._self_contained for part in self.parts)

    # ------------------------------------------------------------------ methods that use the parts

    def prox(self, V: jax.Array, scaling: ArrayLike = 1.0) -> jax.Array:
        """The proximal point of V; with several terms by at most 1000 cycles of Dykstra's algorithm."""
        return super(Sum, for_shape_of(self, V)).prox(V, scaling)

    def conjugate(self, Z: jax.Array, aux: Any = None) -> jax.Array:
        """An upper bound on g*(Z), exact for one term; ``aux`` as in `SeveralTerms.conjugate`."""
        return super(Sum, for_shape_of(self, Z)).conjugate(Z, aux)

    def dual_scale(self, Z: jax.Array, aux: Any = None) -> jax.Array:
        """The largest s at which the conjugate at sZ is finite; ``aux`` as in `SeveralTerms.conjugate`."""
        return super(Sum, for_shape_of(self, Z)).dual_scale(Z, aux)

    def value(self, W: jax.Array) -> jax.Array:
        """The sum of the values of the parts, shape ()."""
        return reduce(jnp.add, [part.value(W) for part in self.parts])

    def check(self, params_shape: tuple[int, ...]) -> None:
        """Raise if a part does not fit parameters of this shape."""
        for part in self.parts:
            part.check(params_shape)
        for part in (part for part in self.parts if isinstance(part, SumTo)):
            part.fits(*_bounds(self.parts), params_shape[0])

    def _times(self, factor: jax.Array) -> "Sum":
        return self._replace(parts=tuple(part * factor for part in self.parts))

    def dual_norm(self, Z: jax.Array) -> jax.Array:
        """The smallest common factor of the strengths at which 0 is the prox of Z; inf if there is none."""
        parts = [part for part in for_shape_of(self, Z).parts if not part.degrees or 1 in part.degrees]
        near = self._replace(parts=tuple(map(at_zero, parts)))
        top = gauge(near, Z) if len(near.terms) > 1 else safe_divide(1.0, near.dual_scale(Z), jnp.inf)
        constraints = [part.value(jnp.zeros_like(Z)) for part in self.parts if not part.degrees]
        return jnp.where(jnp.any(jnp.isinf(jnp.array(constraints))), jnp.inf, top) if constraints else top

    def row_norm(self, params_shape: tuple[int, ...]) -> RowNorm | None:
        """The sum of the norms and squares, if all norms have the same blocks; else None."""
        return added_norms(self.parts, params_shape)

    # ------------------------------------------------------------------ methods that use the only term

    def row_slopes(self, Z: jax.Array, W: jax.Array | None = None) -> jax.Array:
        """(d,), slopes of the only term: at most 1 where a zero row stays zero if Z is minus the gradient."""
        return self.terms[0].row_slopes(Z, W)

    def rows_at(self, ix: jax.Array) -> "Sum":
        """The penalty of a W with these rows only."""
        return self._replace(
            parts=tuple(part if isinstance(part, NonNegative) else part.rows_at(ix) for part in self.parts)
        )

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        if len(self.terms) == 1:
            return columns(self.terms[0].prox(Vt.T, scaling))
        return super()._prox(Vt, scaling)

    def _conjugate(self, Zt: jax.Array) -> jax.Array:
        return self.terms[0].conjugate(Zt.T)

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        return self.terms[0].dual_scale(Zt.T)

    def _feasible(self, W: jax.Array) -> jax.Array:
        """A point near W that satisfies all constraints, applied in turn; by `within` for several terms."""
        own = for_shape_of(self, W)
        constraints = [part for part in own.parts if isinstance(part, (Box, NonNegative))]
        for part in sorted(constraints, key=lambda part: isinstance(part, Box)):
            W = part.prox(W)
        cores = [core for term in own.terms for core in _cores(term)]
        sums = [core for core in cores if core._offset and not isinstance(core, Box)]
        for core in sums:
            W = feasible(core, W)
        others = [*sums, *(term for term in own.terms if not term._self_contained)]
        needed = others and (len(own.terms) > 1 or not own._self_contained)
        return within(own, [*others, *constraints], W) if needed else W

    def _unpenalised(self, d: int, dtype: Any) -> jax.Array:
        """The unpenalised directions of the only part; none if there are several parts."""
        return unpenalised(self.parts[0], d, dtype) if len(self.parts) == 1 else self.free

    def _row_units(self, wanted: Callable[[], jax.Array]) -> jax.Array | None:
        """The units wanted if all parts but one `GroupLasso` are sums over rows, which accept any units."""
        kinds = RowPenalty, Box, NonNegative
        groups = [part for part in self.parts if isinstance(part, GroupLasso)]
        others = [part for part in self.parts if not isinstance(part, GroupLasso)]
        competing = any(isinstance(part, ExclusiveGroupL21) for part in others)
        if len(groups) > 1 or competing or not all(isinstance(part, kinds) for part in others):
            return None
        return row_units(groups[0], wanted) if groups else wanted()

    def _of_parts(self, rule: Rule, *args: Any) -> "Sum":
        """The sum with the result of the rule in place of each part."""
        return self._replace(parts=tuple(rule(part, *args) for part in self.parts))

    def _rescaled(self, units: jax.Array) -> "Sum":
        return self._of_parts(rescaled, units)

    def _in_units(self, sigma: jax.Array, gamma: jax.Array) -> "Sum":
        return self._of_parts(in_units, sigma, gamma)

    def _by_entry(self, params_shape: tuple[int, ...]) -> "Sum":
        return self._of_parts(by_entry, params_shape)

    def _half_derivative(self, W: jax.Array, scaling: jax.Array) -> Map:
        return one_by_one(self.terms, W, scaling)

    def _row_strengths(self, d: int) -> jax.Array | None:
        """The sum of the strengths of the parts."""
        return added([row_strengths(part, d) for part in self.parts])

    def _leaf_names(self) -> list[str]:
        """The names of the leaves of each part, with its class; parts of one class are counted from 1."""
        kinds, names = [type(part).__name__ for part in self.parts], []
        for i, (kind, part) in enumerate(zip(kinds, self.parts, strict=True)):
            count = f" {kinds[: i + 1].count(kind)}" if kinds.count(kind) > 1 else ""
            names += [f"{name} of {kind}{count}" for name in leaf_names(part)]
        return names

    def _for_shape_of(self, W: jax.Array) -> "Sum":
        """The sum with users' parts as `OnVectors` if W is a vector."""
        parts = tuple(map(on_vectors, self.parts))
        users = any(part is not own for part, own in zip(parts, self.parts, strict=True))
        return self._replace(parts=parts) if users and [*map(jnp.ndim, jax.tree.leaves(W))] == [1] else self

    def _prox_start(self, V: jax.Array) -> Any:
        """The start of the only term; an empty start for several terms."""
        return prox_start(self.terms[0], V) if len(self.terms) == 1 else ()

    def _prox_columns(
        self, Vt: jax.Array, scaling: jax.Array, warm: Any, W: jax.Array
    ) -> tuple[jax.Array, Any]:
        """The prox of the only term; the iterative prox for several terms."""
        if len(self.terms) == 1:
            return prox_columns(self.terms[0], Vt, scaling, warm, W)
        return self._prox(Vt, scaling), warm

    def _as_given(self) -> "Sum":
        own = (part.penalty if isinstance(part, OnVectors) else part for part in self.parts)
        return self._replace(parts=tuple(own))


def least_active(penalty: Penalty) -> int:
    """About how many rows `ExclusiveGroupL21` keeps nonzero however large the strengths are.

    These are one row of every group and the rows in no group. The number is 0 for other penalties.
    """
    term = penalty.terms[0]
    groups = [core.groups for core in _cores(term) if isinstance(core, ExclusiveGroupL21)]
    return sum(known.num_groups + int(known.free.shape[-1]) for known in groups)


def at_zero(part: Any) -> Any:
    """The directional derivative of a part at 0, as a penalty of the same class.

    Norms keep their strengths, squares get 0, since their derivative at 0 is 0, and a box becomes a cone.
    """
    if isinstance(part, OnVectors):
        return on_vectors(at_zero(part.penalty))
    if isinstance(part, Box):
        low, high = jnp.asarray(part.low), jnp.asarray(part.high)
        return part._replace(low=jnp.where(low < 0, -jnp.inf, 0), high=jnp.where(high > 0, jnp.inf, 0))
    return scale_strengths(part, [jnp.asarray(float(degree == 1)) for degree in part.degrees])


def _cores(term: Any) -> tuple[Any, ...]:
    return term.cores if isinstance(term, Joint) else (term,)


def _joined(cores: list[Any], positive: bool) -> tuple[list[Any], bool]:
    """The cores after each has joined others (`Penalty._join`), and whether W >= 0 is left to require."""
    for core in tuple(cores):
        if any(core is one for one in cores):
            joint, others, positive = core._join([one for one in cores if one is not core], positive)
            cores = cores if joint is core else [*others, joint]
    return cores, positive


def _chains(cores: list[Any]) -> list[list[Any]]:
    """Lists of cores, one for each term: the proxes of a list, one after another, make its joint prox."""
    entries = [core for core in cores if is_a(core, L1)]
    others = [core for core in cores if not is_a(core, L1)]
    if not entries:
        return [[core] for core in others]
    partner = next((c for c in others if is_a(c, L21, GroupLasso)), None)
    single = [[core] for core in others if core is not partner]
    return [*single, entries if partner is None else [*entries, partner]]


def _absolute(chain: list[Any]) -> bool:
    return all(vars(type(core)).get("_absolute", False) for core in chain)


def _bounds(parts: Sequence[Any]) -> tuple[Any, Any]:
    """The bounds of the entries of W that all boxes together, and W >= 0 if it is a part, leave."""
    boxes = [part for part in parts if isinstance(part, Box)]
    low = 0.0 if any(isinstance(part, NonNegative) for part in parts) else -np.inf
    if not boxes:
        return low, np.inf
    least, high = reduce(jnp.maximum, [b.low for b in boxes]), reduce(jnp.minimum, [b.high for b in boxes])
    return jnp.maximum(least, low), high


def _add(penalty: Penalty, other: Any) -> Any:
    """``penalty + other``, a `Sum`."""
    return Sum((penalty, other)) if is_penalty(other) else NotImplemented


def _radd(penalty: Penalty, other: Any) -> Any:
    """``other + penalty``; ``0 + penalty``, with which Python's `sum` begins, is the penalty."""
    if isinstance(other, int | np.integer) and other == 0:
        return penalty
    return Sum((other, penalty))


Penalty.__add__, Penalty.__radd__ = _add, _radd
