"""Penalties of several terms, each with an exact prox: what follows from the terms alone."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.linalg import columns, conjugate_gradients, eps_of, like, norm, safe_divide, tiny_of
from sparsejax._core.pytree import movable, moving
from sparsejax.penalties._base import Penalty
from sparsejax.penalties._in_units import prox_in_units
from sparsejax.penalties._rules import Rule
from sparsejax.penalties._warm import prox_columns, prox_start, prox_warm

CYCLES = 1000  # of Dykstra's algorithm at most
SOLVES = 2000  # conjugate gradient steps for its derivative at most

Parts = tuple[jax.Array, ...]


@Rule
def covers(penalty: Any, Wt: jax.Array) -> jax.Array:
    """(d,) boolean: the rows in which the subgradients of g at some W are not 0 alone; W' (k, d)."""
    return jnp.ones(Wt.shape[1:], bool)


@Rule
def cleared(penalty: Any, Z: jax.Array) -> jax.Array:
    """Z, a subgradient of g but for rounding, without that part of the rounding which no subgradient has."""
    return Z


@Rule
def inside(penalty: Any, W: jax.Array) -> jax.Array:
    """The entries, boolean, in which g is known to be smooth at W, wherever the others stay."""
    return penalty.smooth_where(W) if "support" in penalty.provides else jnp.zeros(W.shape, bool)


@Rule
def unpenalised(penalty: Any, d: int, dtype: Any) -> jax.Array:
    """What g does not see of W (d, k): indices of rows (f,), or orthonormal directions of a column (d, f)."""
    return penalty.free


@Rule
def feasible(penalty: Any, W: Any) -> Any:
    """A point near W at which g is finite: W itself, or the prox at a scaling of 0 where g is infinite."""
    outside = penalty.value(W) == jnp.inf
    return jax.tree.map(lambda w, near: jnp.where(outside, near, w), W, penalty.prox(W, 0.0))


@Rule
def split(
    penalty: Any, Z: jax.Array, W: jax.Array, guess: Parts | None = None, cycles: int = CYCLES
) -> tuple[jax.Array, ...]:
    """Parts of Z, one a term, that sum to it and are subgradients at W if Z is one of g.

    Where a term is smooth at W its part is the gradient there. What is left to choose is taken from
    ``guess``; without one it is found by Dykstra's algorithm: ``W = prox(W + tZ, t)``, and the parts are
    those of tZ.
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
    # At a W that is only near a zero of its group the gradient there is far from any subgradient.
    better = penalty.dual_scale(Z, exact) >= penalty.dual_scale(Z, near)
    return tuple(jnp.where(better, a, b) for a, b in zip(exact, near, strict=True))


class SeveralTerms(Penalty):
    """The protocol by ``terms``; of a single one by the hooks of a `RowPenalty`, on columns."""

    _adapter: ClassVar[bool] = True
    finite_conjugate: bool = False

    @property
    def terms(self) -> tuple[Any, ...]:
        """Parts with an exact prox each."""
        return (self,)

    def value(self, W: jax.Array) -> jax.Array:
        """g(W), shape ()."""
        return self._value(columns(W))

    def prox(self, V: jax.Array, scaling: ArrayLike = 1.0) -> jax.Array:
        """The proximal point of V; where there are several terms to the last digits, by iteration."""
        found = prox_in_units(self, lambda penalty, Vt, step: penalty._prox(Vt, step), columns(V), scaling)
        return like(found, V)

    def conjugate(self, Z: jax.Array, aux: Any = None) -> jax.Array:
        """An upper bound of g*(Z): the sum over a split ``aux`` of Z, one part a term; exact for the best.

        aux: the parts; or a W at which Z is nearly a subgradient, from which they are found; or None.
        """
        if len(self.terms) == 1:
            return self._conjugate(columns(Z))
        parts = self._parts(Z, aux)
        return sum(
            (term.conjugate(part) for term, part in zip(self.terms, parts, strict=True)),
            start=jnp.zeros((), Z.dtype),
        )

    def dual_scale(self, Z: jax.Array, aux: Any = None) -> jax.Array:
        """The largest s at which the conjugate of every part of sZ is finite; aux as for `conjugate`."""
        if len(self.terms) == 1:
            return self._dual_scale(columns(Z))
        parts = self._parts(Z, aux)
        scales = [term.dual_scale(part) for term, part in zip(self.terms, parts, strict=True)]
        return jnp.min(jnp.stack(scales))

    def _parts(self, Z: jax.Array, aux: Any) -> Parts:
        if isinstance(aux, tuple):
            return aux
        if aux is None:
            # argmax <Z, W> - g(W) - ||W||^2 / (2t), for a large t
            t = 1e8 / jnp.maximum(jnp.max(jnp.abs(Z)), tiny_of(Z) * 1e10)
            aux = self.prox(t * Z, t)
        return split(self, Z, aux)

    def smooth_where(self, W: jax.Array) -> jax.Array:
        """Where all terms are."""
        on = jnp.ones(W.shape, bool)
        for term in self.terms:
            on &= term.smooth_where(W)
        return on

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        points = dykstra(self, Vt, scaling, jnp.int32(CYCLES))[0]
        return joined(self, points, Vt.T)

    def _value(self, Wt: jax.Array) -> jax.Array:
        raise NotImplementedError

    def _conjugate(self, Zt: jax.Array) -> jax.Array:
        raise NotImplementedError

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        raise NotImplementedError


@prox_warm.register(SeveralTerms)
def _(penalty: SeveralTerms, V: jax.Array, scaling: jax.Array, warm: Any) -> tuple[jax.Array, Any]:
    """The prox without the units of `prox`: solvers call it, and have changed to units of the data."""
    return like(penalty._prox(columns(V), scaling), V), warm


@feasible.register(SeveralTerms)
def _(penalty: SeveralTerms, W: jax.Array) -> jax.Array:
    """W as it is."""
    return W


class _Cycle(NamedTuple):
    points: Parts
    parts: Parts
    moving: jax.Array
    n: jax.Array


def shared(penalty: Penalty, parts: Parts, Z: jax.Array, wanted: Parts | None = None) -> Parts:
    """Parts of nearly Z, one a term, so changed that they sum to Z: by the same in all terms that can.

    Where ``wanted``, 0 or 1 in each entry of each part, names such terms, the others stay as they are.
    """
    parts = tuple(cleared(term, part) for term, part in zip(penalty.terms, parts, strict=True))
    rest, shape = Z - sum(parts), columns(Z).shape
    able = [like(jnp.broadcast_to(covers(t, columns(Z)).astype(Z.dtype), shape), Z) for t in penalty.terms]
    # What no term can take is left with the last, where the certificate sees it.
    able[-1] = jnp.where(sum(able) > 0, able[-1], 1)
    if wanted is not None:
        both = [a * b for a, b in zip(able, wanted, strict=True)]
        some = sum(both) > 0
        able = [jnp.where(some, a, b) for a, b in zip(both, able, strict=True)]
    total = sum(able)
    return tuple(part + a / total * rest for part, a in zip(parts, able, strict=True))


@jax.custom_jvp
def dykstra(penalty: Any, Vt: jax.Array, scaling: jax.Array, cycles: jax.Array) -> tuple[Parts, Parts]:
    """The prox of the sum of the terms at V: a point of each term, and the parts of V minus the last one.

    Differentiated at the fixed point, forward and in reverse; see `_dykstra_jvp`.

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
    r"""From :math:`W = \operatorname{prox}_k(W + P_k)` for each of K terms and :math:`V = W + \sum_k P_k`.

    With :math:`U_k = dW + dP_k`, :math:`J_k` the derivative of the prox of a term (symmetric) and c_k what
    it changes by at a fixed argument, :math:`J_k U_k + c_k = dW = (\sum_j U_j - dV)/(K - 1)`: a symmetric
    system, indefinite and singular where the parts are not unique, so that its square is solved.
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
        x, rest = conjugate_gradients(square, b, lambda r: r, 8 * eps_of(b), SOLVES, confirmed=True)
        return jnp.where(norm(rest) <= eps_of(b) ** 0.5 * norm(b), x, jnp.nan)

    U = lax.custom_linear_solve(
        lambda U: system(system(U)), -system(c + dV[None] / others), solve, symmetric=True
    )
    dW = (jnp.sum(U, axis=0) - dV) / others
    return (points, parts), ((dW,) * len(points), tuple(u - dW for u in U))


def joined(penalty: Any, points: Parts, W: jax.Array) -> jax.Array:
    """Of one prox point a term the last, set to zero where another term's point is zero in its whole group.

    Points are transposes of matrices like W.
    """
    *others, Wt = points
    terms = penalty.terms
    for term, other in zip(terms, others, strict=False):
        point = like(other, W)
        on = term.smooth_where(point) if "support" in term.provides else point != 0
        Wt = jnp.where(columns(on), Wt, 0)
    return columns(feasible(penalty, like(Wt, W)))
