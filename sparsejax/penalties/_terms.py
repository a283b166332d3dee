"""Sums of terms with an exact prox each: prox, conjugate, dual scale and support, from those of each term."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

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
    cleared,
    covers,
    feasible,
    inside,
    penalised,
    prox_columns,
    prox_start,
)
from sparsejax.penalties._transposed import TransposedPenalty, checked

MAX_CYCLES = 1000  # largest number of cycles of Dykstra's algorithm, and of `within`
MAX_CG_STEPS = 2000  # conjugate gradient steps for the derivative of Dykstra's algorithm

Parts = tuple[jax.Array, ...]  # an array split into one part for each term; `Sum.parts` are penalties


def split(
    penalty: Any, Z: jax.Array, W: jax.Array, guess: Parts | None = None, cycles: int = MAX_CYCLES
) -> tuple[jax.Array, ...]:
    """Parts that sum to Z, one for each term.

    If Z is a subgradient of g at W, each part is nearly a subgradient of its term. The first candidate is
    ``guess``. The second is the gradient of each term in the entries in which the term is smooth at W, and
    ``guess`` in the others. Both are corrected to the sum Z. The result is the candidate with the larger
    ``dual_scale``, or the second candidate if the penalty has no dual. Without a guess, Dykstra's algorithm
    gives one: for a subgradient Z, ``W = prox(W + tZ, t)``, and the algorithm splits tZ.

    Args:
      penalty: g, with ``terms``.
      Z, W: of the shape of the parameters.
      guess: approximate parts, or None.
      cycles: largest number of cycles of Dykstra's algorithm.
    """
    if len(penalty.terms) == 1:
        return (Z,)
    if guess is None:
        size_Z, size_W = jnp.max(jnp.abs(Z)), jnp.max(jnp.abs(W))
        t = jnp.where((size_Z > 0) & (size_W > 0), safe_divide(size_W, size_Z), 1)  # tZ is as large as W
        _, found = dykstra(penalty, columns(W + t * Z), t, jnp.int32(cycles))
        guess = tuple(like(part / t, Z) for part in found)
    parts, open_ = [], []
    for term, part in zip(penalty.terms, guess, strict=True):
        smooth = inside(term, W)
        # A user's value may return an integer, such as 0 of a constraint, which has no gradient.
        slope = jax.grad(lambda W, term=term: jnp.asarray(term.value(W), W.dtype))(W)
        parts.append(jnp.where(smooth, slope, part))
        open_.append(jnp.where(smooth, 0, 1).astype(W.dtype))
    by_slopes = shared(penalty, tuple(parts), Z, tuple(open_))
    if "dual" not in penalty.provides:
        return by_slopes
    by_guess = shared(penalty, guess, Z)
    # If W has a group that should be 0 and is only nearly 0, the gradient is far from any subgradient at 0.
    better = penalty.dual_scale(Z, by_slopes) >= penalty.dual_scale(Z, by_guess)
    return tuple(jnp.where(better, a, b) for a, b in zip(by_slopes, by_guess, strict=True))


class SeveralTerms(TransposedPenalty):
    """Implements the protocol by ``terms``; with a single term by the hooks of `TransposedPenalty`.

    The prox of several terms takes at most `MAX_CYCLES` cycles of `dykstra`.
    """

    _adapter: ClassVar[bool] = True

    @property
    def _valued(self) -> bool:  # type: ignore[override]
        return all(term._valued for term in self.terms if term is not self)

    def conjugate(self, Z: jax.Array, aux: Any = None) -> jax.Array:
        """An upper bound on g*(Z): the sum of the conjugates of the terms at parts of Z.

        For the best parts the bound is equal to g*(Z). ``aux`` has the parts, one for each term; or it is a W
        at which Z is nearly a subgradient, from which parts are computed; or None: W is then computed too.
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
            t = 1e8 / jnp.maximum(jnp.max(jnp.abs(Z)), tiny_of(Z) * 1e10)  # max|tZ| is 1e8; t stays finite
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

    def _prox_columns(
        self, Vt: jax.Array, scaling: jax.Array, warm: Any, W: jax.Array
    ) -> tuple[jax.Array, Any]:
        """The prox, without the change of units that `prox` makes: solvers have changed the units already."""
        return self._prox(Vt, scaling), warm


class _Cycle(NamedTuple):
    points: Parts  # the prox point of each term in the last cycle, transposes of matrices like W
    parts: Parts  # the correction of each term, same shapes
    warm: tuple[Any, ...]  # of each term, from which its next prox starts
    unsettled: jax.Array  # () boolean: the points of the last cycle differ
    n: jax.Array  # () int32, cycles so far


def shared(penalty: Penalty, parts: Parts, Z: jax.Array, open_: Parts | None = None) -> Parts:
    """Parts whose sum is nearly Z, corrected so that the sum is Z.

    Each part is first projected onto the span of the subgradients of its term (`cleared`), and set to 0 in
    the entries that the term does not depend on (`penalised`), such as entries of strength 0. The difference
    between Z and the sum is then distributed, entry by entry: the terms for which `covers` is True in the
    entry get equal shares; if there is none, the last term gets all. ``open_`` has 0 or 1 in each entry of
    each part, 0 where the part is known and should stay: among the terms that cover an entry, those with a 1
    get all of its difference, if there are any.
    """

    def projected(term: Penalty, part: jax.Array) -> jax.Array:
        on = _by_entry(penalised(term, columns(Z)), Z)
        return like(jnp.where(on, columns(cleared(term, part)), 0), Z)

    parts = tuple(projected(term, part) for term, part in zip(penalty.terms, parts, strict=True))
    difference = Z - sum(parts)
    able = [like(_by_entry(covers(term, columns(Z)), Z).astype(Z.dtype), Z) for term in penalty.terms]
    # A difference that no term covers goes to the last part, where the certificate takes it into account.
    able[-1] = jnp.where(sum(able) > 0, able[-1], 1)
    if open_ is not None:
        both = [a * b for a, b in zip(able, open_, strict=True)]
        some = sum(both) > 0
        able = [jnp.where(some, a, b) for a, b in zip(both, able, strict=True)]
    total = sum(able)
    return tuple(part + a / total * difference for part, a in zip(parts, able, strict=True))


def either(*masks: jax.Array) -> jax.Array:
    """Where some mask is True; each mask is by row, (d,), or by entry of W', (k, d)."""
    wide = max(mask.ndim for mask in masks)
    return functools.reduce(jnp.logical_or, [m[None] if m.ndim < wide else m for m in masks])


def unpenalised_entries(penalty: Penalty, W: jax.Array) -> jax.Array:
    """Where no term depends on W (`penalised`), by row (d,) or by entry of W' (k, d)."""
    return ~either(*(penalised(term, columns(W)) for term in penalty.terms))


def _by_entry(mask: jax.Array, Z: jax.Array) -> jax.Array:
    """A mask by row or by entry of W', as a mask by entry, (k, d)."""
    return jnp.broadcast_to(mask, columns(Z).shape)


@jax.custom_jvp
def dykstra(penalty: Penalty, Vt: jax.Array, scaling: jax.Array, cycles: jax.Array) -> tuple[Parts, Parts]:
    """The prox of the sum of the terms by at most ``cycles`` cycles: a point and a part for each term.

    The parts sum to V minus the last point. At convergence all points are equal. Forward and reverse
    derivatives are derivatives of the fixed point, see `_dykstra_jvp`. Points and parts are (k, d).

    Source: Bauschke & Combettes, Pacific Journal of Optimization 4(3), 2008, for proximity operators; Han,
      Mathematical Programming 40, 1988.
    """
    # A penalty of the user may close over arrays, which jit would keep.
    program = _dykstra_program if penalty._self_contained else _dykstra
    return program(penalty, Vt, scaling, cycles)


def _dykstra(penalty: Penalty, Vt: jax.Array, scaling: jax.Array, cycles: jax.Array) -> tuple[Parts, Parts]:
    """`dykstra` without derivatives."""
    terms, V, size = penalty.terms, Vt.T, jnp.max(jnp.abs(Vt), initial=0)

    def cycle(c: _Cycle) -> _Cycle:
        point, points, parts, warm = c.points[-1], [], [], []
        for term, part, start in zip(terms, c.parts, c.warm, strict=True):
            shifted = point + part
            point, next_start = prox_columns(term, shifted, scaling, start, V)
            points.append(point)
            parts.append(shifted - point)
            warm.append(next_start)
        before = c.points[-1], *points[:-1]
        apart = jnp.stack([jnp.max(jnp.abs(other - point), initial=0) for other in before])
        unsettled = jnp.max(apart) > 2 * eps_of(point) * size  # the points differ by more than rounding
        return _Cycle(tuple(points), tuple(parts), tuple(warm), unsettled, c.n + 1)

    zero = jnp.zeros_like(Vt)
    warm = tuple(prox_start(term, V) for term in terms)
    start = _Cycle((Vt,) * len(terms), (zero,) * len(terms), warm, jnp.ones((), bool), jnp.int32(0))
    end = lax.while_loop(lambda c: c.unsettled & (c.n < cycles), cycle, start)
    return end.points, end.parts


# Without jit an eager call would compile the loop every time.
_dykstra_program = jax.jit(_dykstra, inline=True)


@functools.partial(dykstra.defjvp, symbolic_zeros=True)
def _dykstra_jvp(primals: Any, tangents: Any) -> Any:
    r"""The derivative of :math:`W = \operatorname{prox}_k(W + P_k)` where :math:`V = W + \sum_k P_k`.

    There are K >= 2 terms. Let :math:`U_k = dW + dP_k`, :math:`J_k` the derivative of the prox of term k in
    its argument (symmetric) and :math:`c_k` the change of that prox at a fixed argument. Then
    :math:`J_k U_k + c_k = dW = (\sum_j U_j - dV)/(K - 1)`. This symmetric system for U is indefinite, and
    singular where the parts are not unique: the normal equations are solved.
    """
    points, parts = dykstra(*primals)
    moves, tangent = moving(tangents)
    if not tangent:
        return (points, parts), jax.tree.map(jnp.zeros_like, (points, parts))
    primal, with_values = movable(primals, moves)
    others = len(parts) - 1

    def proxes(values: Any, at: jax.Array) -> tuple[jax.Array, jax.Array]:
        penalty, Vt, scaling, _ = with_values(values)
        found = [columns(term.prox(Y.T, scaling)) for term, Y in zip(penalty.terms, at, strict=True)]
        return jnp.stack(found), Vt

    at = jnp.stack([points[-1] + part for part in parts])
    c, dV = jax.jvp(lambda values: proxes(values, at), (primal,), (tangent,))[1]
    _, J = jax.linearize(lambda at: proxes(primal, at)[0], at)

    def system(U: jax.Array) -> jax.Array:
        # J_k U_k - sum_j U_j / (K - 1), which is to be -(c_k + dV / (K - 1))
        return J(U) - jnp.sum(U, axis=0)[None] / others

    def solve(square: Callable[[jax.Array], jax.Array], b: jax.Array) -> jax.Array:
        x, residual = conjugate_gradients(square, b, lambda r: r, 8 * eps_of(b), MAX_CG_STEPS, confirmed=True)
        # If the system is not solved to half the digits, the derivative is NaN.
        return jnp.where(norm(residual) <= eps_of(b) ** 0.5 * norm(b), x, jnp.nan)

    U = lax.custom_linear_solve(
        lambda U: system(system(U)), -system(c + dV[None] / others), solve, symmetric=True
    )
    dW = (jnp.sum(U, axis=0) - dV) / others
    return (points, parts), ((dW,) * len(points), tuple(u - dW for u in U))


def within(penalty: Penalty, terms: Sequence[Penalty], W: jax.Array) -> jax.Array:
    """W moved into the domains of these terms in turn, until the penalty is finite, for `MAX_CYCLES` at most.

    The first half of the cycles keeps zeros (`feasible`), the second half projects. The derivative of the
    moves counts as 0: where an iterative prox has converged, they are rounding errors.
    """
    penalty, terms, start = lax.stop_gradient((penalty, tuple(terms), W))

    def cycle(c: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        V, n = c
        for term in terms:
            V = jnp.where(n < MAX_CYCLES // 2, feasible(term, V), term.prox(V, jnp.zeros((), V.dtype)))
        return V, n + 1

    def outside(c: tuple[jax.Array, jax.Array]) -> jax.Array:
        return (penalty.value(c[0]) == jnp.inf) & (c[1] < MAX_CYCLES)

    end = lax.while_loop(outside, cycle, (start, jnp.int32(0)))[0]
    return end + (W - start)  # exactly ``end``, with the derivative of W


def joined(penalty: Penalty, points: Parts, W: jax.Array) -> jax.Array:
    """The last of the prox points, with the zeros of the other points, moved to where the penalty is finite.

    ``points`` has one point for each term, (k, d), and so is the result. Only the shape of W matters.
    """
    *others, Wt = points
    terms = penalty.terms
    for term, other in zip(terms, others, strict=False):  # the last term has no other point
        point = like(other, W)
        on = term.smooth_where(point) if "support" in term.provides else point != 0
        Wt = jnp.where(mask_columns(on), Wt, 0)
    return columns(feasible(penalty, like(Wt, W)))
