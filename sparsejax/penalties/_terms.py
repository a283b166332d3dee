"""Penalties that are sums of terms with an exact prox each: the protocol by the terms alone."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.linalg import (
    columns,
    conjugate_gradients,
    eps_of,
    like,
    mask_columns,
    norm,
    safe_divide,
    tiny_of,
)
from sparsejax._core.pytree import movable, moving
from sparsejax.penalties._base import Penalty
from sparsejax.penalties._rules import (
    Rule,
    cleared,
    covers,
    feasible,
    inside,
    penalised,
    prox_columns,
    prox_start,
    prox_warm,
)
from sparsejax.penalties._transposed import TransposedPenalty, checked

MAX_CYCLES = 1000  # of Dykstra's algorithm
MAX_CG_STEPS = 2000  # of conjugate gradients, for the derivative of Dykstra's algorithm

Parts = tuple[jax.Array, ...]  # one array for each term


@Rule
def split(
    penalty: Any, Z: jax.Array, W: jax.Array, guess: Parts | None = None, cycles: int = MAX_CYCLES
) -> tuple[jax.Array, ...]:
    """Parts of Z, one for each term, with the sum Z; subgradients of the terms at W if Z is one of g.

    In an entry in which a term is smooth at W, its part is the gradient of the term. Other entries come from
    ``guess``, or from Dykstra's algorithm: for a subgradient Z, ``W = prox(W + tZ, t)``, and the algorithm
    splits tZ.
    """
    if len(penalty.terms) == 1:
        return (Z,)
    if guess is None:
        size, wanted = jnp.max(jnp.abs(Z)), jnp.max(jnp.abs(W))
        t = jnp.where((size > 0) & (wanted > 0), safe_divide(wanted, size), 1)
        _, found = dykstra(penalty, columns(W + t * Z), t, jnp.int32(cycles))
        guess = tuple(like(part / t, Z) for part in found)
    parts, open_ = [], []
    for term, part in zip(penalty.terms, guess, strict=True):
        smooth = inside(term, W)
        slope = jax.grad(term.value)(W)
        parts.append(jnp.where(smooth, slope, part))
        open_.append(jnp.where(smooth, 0, 1).astype(W.dtype))
    exact = shared(penalty, tuple(parts), Z, tuple(open_))
    if "dual" not in penalty.provides:
        return exact
    near = shared(penalty, guess, Z)
    # If W has a group that should be 0 and is only nearly 0, the gradient is far from any subgradient at 0.
    better = penalty.dual_scale(Z, exact) >= penalty.dual_scale(Z, near)
    return tuple(jnp.where(better, a, b) for a, b in zip(exact, near, strict=True))


class SeveralTerms(TransposedPenalty):
    """Implements the protocol by ``terms``; with a single term by the hooks of `TransposedPenalty`."""

    _adapter: ClassVar[bool] = True

    @property
    def _valued(self) -> bool:  # type: ignore[override]
        return all(term._valued for term in self.terms if term is not self)

    def prox(self, V: jax.Array, scaling: ArrayLike = 1.0) -> jax.Array:
        """The proximal point of V; with several terms by iteration to the last digits."""
        return super().prox(V, scaling)

    def conjugate(self, Z: jax.Array, aux: Any = None) -> jax.Array:
        """An upper bound on g*(Z): the sum of the conjugates of the terms at parts of Z; exact for the best.

        ``aux``: the parts, one for each term; or a W at which Z is nearly a subgradient, from which parts are
        computed; or None, then W is computed too.
        """
        if len(self.terms) == 1:
            return super().conjugate(Z)
        parts = self._parts(Z, aux)
        conjugates = [term.conjugate(part) for term, part in zip(self.terms, parts, strict=True)]
        return functools.reduce(jnp.add, conjugates)

    def dual_scale(self, Z: jax.Array, aux: Any = None) -> jax.Array:
        """The largest s at which the conjugates of all parts of sZ are finite; ``aux`` as for `conjugate`."""
        if len(self.terms) == 1:
            return super().dual_scale(Z)
        parts = self._parts(Z, aux)
        scales = [term.dual_scale(part) for term, part in zip(self.terms, parts, strict=True)]
        return jnp.min(jnp.stack(scales))

    def _parts(self, Z: jax.Array, aux: Any) -> Parts:
        checked(self, Z, "Z")
        if isinstance(aux, tuple):
            return aux
        if aux is None:
            # argmax <Z, W> - g(W) - ||W||^2 / (2t) = prox(tZ, t) nearly attains g*(Z) for a large t
            t = 1e8 / jnp.maximum(jnp.max(jnp.abs(Z)), tiny_of(Z) * 1e10)
            aux = self.prox(t * Z, t)
        return split(self, Z, aux)

    def smooth_where(self, W: jax.Array) -> jax.Array:
        """The entries in which all terms are smooth at W."""
        on = jnp.ones(W.shape, bool)
        for term in self.terms:
            on &= term.smooth_where(W)
        return on

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        points = dykstra(self, Vt, scaling, jnp.int32(MAX_CYCLES))[0]
        return joined(self, points, Vt.T)


@prox_warm.register(SeveralTerms)
def _(penalty: SeveralTerms, V: jax.Array, scaling: jax.Array, warm: Any) -> tuple[jax.Array, Any]:
    """The prox, not computed in units of V: solvers, which call this, use units of the data already."""
    return like(penalty._prox(columns(V), scaling), V), warm


class _Cycle(NamedTuple):
    points: Parts  # the prox point of each term in the last cycle, transposes of matrices like W
    parts: Parts  # the correction of each term, same shapes
    moving: jax.Array  # () boolean: the points of the last cycle differ
    n: jax.Array  # () int32, cycles so far


def shared(penalty: Penalty, parts: Parts, Z: jax.Array, wanted: Parts | None = None) -> Parts:
    """Parts whose sum is nearly Z, corrected so that the sum is Z.

    The difference is shared equally by the terms that have subgradients other than 0 in its place (`covers`).
    The part of a term is 0 where the term does not depend on W, as where its strength is 0 (`penalised`).
    ``wanted``, 0 or 1 in each entry of each part, restricts the correction to the entries with 1, wherever
    some term that covers the row has a 1.
    """
    parts = tuple(
        like(jnp.where(_everywhere(penalised(term, columns(Z)), Z), columns(cleared(term, part)), 0), Z)
        for term, part in zip(penalty.terms, parts, strict=True)
    )
    difference = Z - sum(parts)
    able = [like(_everywhere(covers(term, columns(Z)), Z).astype(Z.dtype), Z) for term in penalty.terms]
    # A difference that no term covers goes to the last part, where the certificate takes it into account.
    able[-1] = jnp.where(sum(able) > 0, able[-1], 1)
    if wanted is not None:
        both = [a * b for a, b in zip(able, wanted, strict=True)]
        some = sum(both) > 0
        able = [jnp.where(some, a, b) for a, b in zip(both, able, strict=True)]
    total = sum(able)
    return tuple(part + a / total * difference for part, a in zip(parts, able, strict=True))


def either(*masks: jax.Array) -> jax.Array:
    """Where some mask holds; each is by row, (d,), or by entry of W', (k, d)."""
    wide = max(mask.ndim for mask in masks)
    return functools.reduce(jnp.logical_or, [m[None] if m.ndim < wide else m for m in masks])


def unpenalised_entries(penalty: Penalty, W: jax.Array) -> jax.Array:
    """Where no strength is > 0, by row (d,) or by entry of W' (k, d)."""
    return ~either(*(penalised(term, columns(W)) for term in penalty.terms))


def _everywhere(mask: jax.Array, Z: jax.Array) -> jax.Array:
    """A mask by row or by entry of W', as one by entry."""
    return jnp.broadcast_to(mask, columns(Z).shape)


@jax.custom_jvp
def dykstra(penalty: Penalty, Vt: jax.Array, scaling: jax.Array, cycles: jax.Array) -> tuple[Parts, Parts]:
    """The prox of the sum of the terms: a point for each term, and parts with the sum V - the last point.

    At convergence all points are equal. Derivatives, forward and reverse, are those of the fixed point, see
    `_dykstra_jvp`.

    Source: Bauschke & Combettes, Pacific Journal of Optimization 4(3), 2008, for proximity operators; Han,
      Mathematical Programming 40, 1988.
    """
    terms, W, size = penalty.terms, Vt.T, jnp.max(jnp.abs(Vt))

    def cycle(c: _Cycle) -> _Cycle:
        X, points, parts = c.points[-1], [], []
        for term, part in zip(terms, c.parts, strict=True):
            Y = X + part
            X = prox_columns(term, Y, scaling, prox_start(term, like(Y, W)), W)[0]
            points.append(X)
            parts.append(Y - X)
        apart = jnp.stack([jnp.max(jnp.abs(point - X)) for point in (c.points[-1], *points[:-1])])
        return _Cycle(tuple(points), tuple(parts), jnp.max(apart) > 2 * eps_of(X) * size, c.n + 1)

    zero = jnp.zeros_like(Vt)
    start = _Cycle((Vt,) * len(terms), (zero,) * len(terms), jnp.ones((), bool), jnp.int32(0))
    end = lax.while_loop(lambda c: c.moving & (c.n < cycles), cycle, start)
    return end.points, end.parts


@functools.partial(dykstra.defjvp, symbolic_zeros=True)
def _dykstra_jvp(primals: Any, tangents: Any) -> Any:
    r"""The derivative of :math:`W = \operatorname{prox}_k(W + P_k)` for K terms, :math:`V = W + \sum_k P_k`.

    Let :math:`U_k = dW + dP_k`, :math:`J_k` the derivative of the prox of term k in its argument (symmetric)
    and :math:`c_k` the change of that prox at a fixed argument. Then
    :math:`J_k U_k + c_k = dW = (\sum_j U_j - dV)/(K - 1)`. This symmetric system for U is indefinite, and
    singular where the parts are not unique: the normal equations are solved.
    """
    points, parts = dykstra(*primals)
    moves, tangent = moving(tangents)
    if not tangent:
        return (points, parts), jax.tree.map(jnp.zeros_like, (points, parts))
    primal, moved = movable(primals, moves)
    others = len(parts) - 1

    def proxes(values: Any, at: jax.Array) -> tuple[jax.Array, jax.Array]:
        penalty, Vt, scaling, _ = moved(values)
        found = [columns(term.prox(Y.T, scaling)) for term, Y in zip(penalty.terms, at, strict=True)]
        return jnp.stack(found), Vt

    at = jnp.stack([points[-1] + part for part in parts])
    c, dV = jax.jvp(lambda values: proxes(values, at), (primal,), (tangent,))[1]
    _, derivatives = jax.linearize(lambda at: proxes(primal, at)[0], at)

    def system(U: jax.Array) -> jax.Array:
        return derivatives(U) - jnp.sum(U, axis=0)[None] / others

    def solve(square: Callable[[jax.Array], jax.Array], b: jax.Array) -> jax.Array:
        x, residual = conjugate_gradients(square, b, lambda r: r, 8 * eps_of(b), MAX_CG_STEPS, confirmed=True)
        # A system that is not solved to half the digits has no derivative: NaN.
        return jnp.where(norm(residual) <= eps_of(b) ** 0.5 * norm(b), x, jnp.nan)

    U = lax.custom_linear_solve(
        lambda U: system(system(U)), -system(c + dV[None] / others), solve, symmetric=True
    )
    dW = (jnp.sum(U, axis=0) - dV) / others
    return (points, parts), ((dW,) * len(points), tuple(u - dW for u in U))


def within(penalty: Penalty, terms: Sequence[Penalty], W: jax.Array) -> jax.Array:
    """W after alternating projections onto the domains of these terms, until the penalty is finite.

    Zeros stay 0, if that is possible: half of the cycles keep them. The moves have no derivative: where an
    iterative prox has converged they are rounding errors.
    """
    penalty, terms, start = lax.stop_gradient((penalty, tuple(terms), W))

    def cycle(c: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        V, n = c
        for term in terms:
            V = jnp.where(n < MAX_CYCLES // 2, feasible(term, V), term.prox(V, 0.0))
        return V, n + 1

    def outside(c: tuple[jax.Array, jax.Array]) -> jax.Array:
        return (penalty.value(c[0]) == jnp.inf) & (c[1] < MAX_CYCLES)

    end = lax.while_loop(outside, cycle, (start, jnp.int32(0)))[0]
    return end + (W - start)  # exactly ``end``, with the derivative of W


def joined(penalty: Penalty, points: Parts, W: jax.Array) -> jax.Array:
    """The last of the prox points of the terms, with zeros where the point of another term has a zero group.

    ``points`` has one point for each term, transposes of matrices like W.
    """
    *others, Wt = points
    terms = penalty.terms
    for term, other in zip(terms, others, strict=False):
        point = like(other, W)
        on = term.smooth_where(point) if "support" in term.provides else point != 0
        Wt = jnp.where(mask_columns(on), Wt, 0)
    return columns(feasible(penalty, like(Wt, W)))
