"""A term of a sum of penalties: several penalties whose joint prox has a closed form."""

from typing import Any

import jax
import jax.numpy as jnp

from sparsejax._core.linalg import columns, like, safe_divide
from sparsejax.penalties._base import Penalty
from sparsejax.penalties._blocks import Members, Rows, scales
from sparsejax.penalties._exclusive_groups import ExclusiveGroupL21
from sparsejax.penalties._group_lasso import GroupLasso
from sparsejax.penalties._norms import L1, L21, entrywise
from sparsejax.penalties._preconditioner import Map, one_by_one
from sparsejax.penalties._rules import covers, is_a, penalised, prox_columns, prox_start
from sparsejax.penalties._simple import Box, SquaredL2
from sparsejax.penalties._terms import either
from sparsejax.penalties._transposed import RowPenalty, cast


class Joint(RowPenalty, leaves=("cores", "square", "box"), static=("positive",)):
    """``sum of cores + square`` under a constraint; `Sum` lists the combinations and why the prox is exact.

    ``cores`` is one of: empty; a single penalty of one term; any number of `L1` and then at most one `L21` or
    `GroupLasso` of disjoint groups.
    """

    cores: tuple[Any, ...]
    square: SquaredL2 | None
    box: Box | None  # only with no core, or with `L1` alone
    positive: bool  # whether W >= 0 is a constraint

    def plain(self) -> Any:
        """The only core, if the term has neither square nor constraint; else this term."""
        bare = len(self.cores) == 1 and self.square is None and self.box is None and not self.positive
        return self.cores[0] if bare else self

    @property
    def provides(self) -> frozenset[str]:
        """The groups of the protocol that follow from those of the parts."""
        cores, found = self.cores, set()
        # W >= 0 alone has no dual. With a square the conjugate comes from the prox of the cores; a user's
        # prox may be inexact, so each core must have a dual itself.
        alone = self.positive and not cores and self.square is None
        if not alone and all("dual" in core.provides for core in cores):
            found |= {"dual"}
        if self.box is None and all("support" in core.provides for core in cores):
            found |= {"support"}
        # With competing groups and W >= 0 a working set takes as long as ADMM on all features.
        slow = self.positive and any(isinstance(core, ExclusiveGroupL21) for core in cores)
        if self.box is None and not slow and cores and all("sparse rows" in core.provides for core in cores):
            found |= {"sparse rows"}
        return frozenset(found)

    @property
    def finite_conjugate(self) -> bool:  # type: ignore[override]  # a class attribute of the base
        """True with a square or a box, or if the conjugate of the only core is finite everywhere."""
        if self.square is not None or self.box is not None:
            return True
        return len(self.cores) == 1 and bool(self.cores[0].finite_conjugate)

    @property
    def _offset(self) -> bool:  # type: ignore[override]
        return self.box is not None or self._sums

    @property
    def _sums(self) -> bool:
        """Whether a core is `SumTo`, or `OnASum`, whose conjugate at 0 may differ from 0."""
        return any(core._offset for core in self.cores)

    @property
    def _self_contained(self) -> bool:  # type: ignore[override]
        return all(core._self_contained for core in self.cores)

    def _feasible(self, W: jax.Array) -> jax.Array:
        """W; with a user's core the prox of W at a scaling of 0 if the term is infinite at W."""
        return W if self._self_contained else Penalty._feasible(self, W)

    @property
    def chain(self) -> bool:
        """Whether all cores are norms whose proxes are applied one after the other."""
        return all(is_a(core, L1, L21, GroupLasso) for core in self.cores)

    def smooth_where(self, W: jax.Array) -> jax.Array:
        """The entries in which all cores are smooth at W, and > 0 under W >= 0; the box does not count."""
        on = W > 0 if self.positive else jnp.ones(W.shape, bool)
        for core in self.cores:
            on &= core.smooth_where(W)
        return on

    def row_slopes(self, Z: jax.Array, W: jax.Array | None = None) -> jax.Array:
        """(d,), at most 1 where a zero row stays zero if Z is minus the gradient.

        These are the slopes of the only core. With several cores a slope is 1/s, s the result of `_scales`.
        """
        Zt = self._relevant(columns(Z))
        if len(self.cores) == 1:
            return self.cores[0].row_slopes(like(Zt, Z), W)
        return safe_divide(1.0, self._scales(Zt), jnp.inf)

    def rows_at(self, ix: jax.Array) -> "Joint":
        """The term of a W with these rows only. It has no box, since a term with a box has no sparse rows."""
        square = None if self.square is None else self.square.rows_at(ix)
        return self._replace(cores=tuple(core.rows_at(ix) for core in self.cores), square=square)

    # ------------------------------------------------------------------ hooks of `RowPenalty`

    def _relevant(self, Zt: jax.Array) -> jax.Array:
        """Zt, or its positive part under W >= 0, where the conjugate does not depend on negative entries."""
        return jnp.where(Zt > 0, Zt, 0) if self.positive else Zt

    def _value(self, Wt: jax.Array) -> jax.Array:
        total = jnp.zeros((), Wt.dtype)
        for part in (*self.cores, self.square, self.box):
            total += 0 if part is None else part.value(Wt.T)
        return jnp.where(jnp.all(Wt >= 0), total, jnp.inf) if self.positive else total

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        return self.warm_columns(Vt, scaling, self.start_columns(Vt), rough=False)[0]

    def start_columns(self, Vt: jax.Array) -> Any:
        return prox_start(self.cores[0], Vt.T) if len(self.cores) == 1 else ()

    def warm_columns(
        self, Vt: jax.Array, scaling: jax.Array, warm: Any, rough: bool = True
    ) -> tuple[jax.Array, Any]:
        cores = self.cores
        Vt = self._relevant(Vt)
        if self.square is not None:
            # prox_{t(g + m/2 ||.||^2)}(V) = prox_{t/(1+tm) g}(V/(1+tm)), see `Sum`.
            shrink = 1 / (1 + scaling * cast(self.square.strength, Vt))
            Vt = Vt * (shrink if shrink.ndim == 0 else shrink[None])
            if shrink.ndim:  # m by row: the strengths of the cores are scaled in place of t
                cores = self._cores_by_row(scaling * shrink)
                scaling = jnp.ones((), Vt.dtype)
            else:
                scaling = scaling * shrink
        if len(cores) == 1 and rough:
            Vt, warm = prox_columns(cores[0], Vt, scaling, warm, Vt.T)
        else:
            for core in cores:
                Vt = columns(core.prox(Vt.T, scaling))
        if self.box is not None:
            Vt = jnp.clip(Vt, *self.box.bounds(Vt))
        return Vt, warm

    def _cores_by_row(self, factor: jax.Array) -> tuple[Any, ...]:
        """The cores, which are sums over rows, times a factor for each row."""
        return tuple(core._by_row(factor) for core in self.cores)

    def _conjugate(self, Zt: jax.Array) -> jax.Array:
        if self.square is None:
            return self._flat_conjugate(Zt)
        m = jnp.broadcast_to(cast(self.square.strength, Zt), Zt.shape[1:])
        flat = self._replace(square=None)
        # P = argmax <Z, P> - flat(P) - m/2 ||P||^2 is the prox of flat at Z/m with step 1/m; m may be by row.
        step = safe_divide(1.0, m)
        if jnp.ndim(self.square.strength) == 0:
            P = flat._prox(step[0] * Zt, step[0])
        else:
            scaled = flat._replace(cores=flat._cores_by_row(step))
            P = scaled._prox(step[None] * Zt, jnp.ones((), Zt.dtype))
        P = jnp.where(m[None] > 0, P, 0)
        squares = jnp.sum(m * jnp.sum(P * P, axis=0)) / 2
        if self.chain and self.box is None:  # <Z - mP, P> = flat(P) for a norm, so the maximum is m/2 ||P||^2
            return jnp.where(jnp.isnan(squares), jnp.inf, squares)
        if self.box is not None:  # by entry: P is 0 in rows without m, which the box may exclude
            each = Zt * P - entrywise(self.cores, Zt) * jnp.abs(P) - m[None] * P * P / 2
            return jnp.sum(jnp.where(m[None] > 0, each, flat._flat_entries(Zt, self.box)))
        curved = jnp.sum(Zt * P) - flat.value(P.T) - squares
        curved = jnp.where(jnp.isnan(curved), jnp.inf, curved)
        if self._sums:  # the conjugate of 0 without the square is not 0
            return jnp.where(jnp.all(m > 0), curved, flat._flat_conjugate(Zt))
        return curved + flat._flat_conjugate(jnp.where(m[None] > 0, 0, Zt))

    def _flat_conjugate(self, Zt: jax.Array) -> jax.Array:
        """The conjugate of the term without its square."""
        Zt = self._relevant(Zt)
        if self.box is not None:
            return jnp.sum(self._flat_entries(Zt, self.box))
        if self.chain:  # the conjugate of a sum of norms is 0 in its dual ball, to which `dual_scale` scales
            return jnp.zeros((), Zt.dtype)
        return self.cores[0].conjugate(Zt.T)

    def _flat_entries(self, Zt: jax.Array, box: Box) -> jax.Array:
        """The conjugate of each entry with the box and without the square, a maximum at 0 or at a bound."""
        Zt, strength = self._relevant(Zt), entrywise(self.cores, Zt)
        low, high = box.bounds(Zt)

        def at(bound: jax.Array) -> jax.Array:
            end = jnp.where(jnp.isinf(bound), 0, bound)
            return jnp.where(jnp.isinf(bound), -jnp.inf, Zt * end - strength * jnp.abs(end))

        inner = jnp.where((low <= 0) & (high >= 0), 0, -jnp.inf)
        return jnp.maximum(jnp.maximum(at(low), at(high)), inner)

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        Zt = self._relevant(Zt)
        if self.square is not None:
            m = jnp.broadcast_to(cast(self.square.strength, Zt), Zt.shape[1:])
            Zt = jnp.where(m[None] > 0, 0, Zt)
        if self.box is not None:
            low, high = self.box.bounds(Zt)
            Zt = jnp.where(((Zt > 0) & (high == jnp.inf)) | ((Zt < 0) & (low == -jnp.inf)), Zt, 0)
        if len(self.cores) == 1:
            return self.cores[0].dual_scale(Zt.T)
        return jnp.min(self._scales(Zt))

    def _scales(self, Zt: jax.Array) -> jax.Array:
        """For each row the largest s with sZ in the sum of the dual balls of the cores, (d,)."""
        strength = entrywise(self.cores, Zt)
        last = next((core for core in self.cores if not is_a(core, L1)), None)
        if isinstance(last, GroupLasso):
            return scales(Members(last, Zt), strength, Zt)
        return scales(Rows(0.0 if last is None else last.alpha, Zt), strength, Zt)

    def _half_derivative(self, W: jax.Array, scaling: jax.Array) -> Map:
        """Approximate: only the maps of the last core and of the square, one after the other."""
        parts = [part for part in (*self.cores[-1:], self.square) if part is not None]
        return one_by_one(parts, W, scaling)

    def _inside(self, W: jax.Array) -> jax.Array:
        """The entries strictly within the bounds in which all cores are known to be smooth."""
        if not all("support" in core.provides for core in self.cores):
            return jnp.zeros(W.shape, bool)
        if self.box is None:
            return self.smooth_where(W)
        low, high = self.box.bounds(columns(W))
        within = like((columns(W) > low) & (columns(W) < high), W)
        return within & self._replace(box=None).smooth_where(W)

    def _penalised(self, Wt: jax.Array) -> jax.Array:
        """The rows or entries on which a core or the square depends; all under a constraint."""
        if self.positive or self.box is not None:
            return jnp.ones(Wt.shape[1:], bool)
        return _in_some_part(penalised, self, Wt)

    def _covers(self, Wt: jax.Array) -> jax.Array:
        return _in_some_part(covers, self, Wt)


def is_ridge(term: Joint, square: SquaredL2) -> bool:
    """Whether the prox of the term plus the square has a closed form.

    This is so if the strength of the square is a scalar, or if all cores are sums over rows.
    """
    if jnp.ndim(square.strength) == 0:
        return True
    return all(
        isinstance(core, RowPenalty) and not isinstance(core, ExclusiveGroupL21) for core in term.cores
    )


def _in_some_part(rule: Any, penalty: Joint, Wt: jax.Array) -> jax.Array:
    """The rows or entries that the rule returns for a core or for the square."""
    parts = [part for part in (*penalty.cores, penalty.square) if part is not None]
    return either(jnp.zeros(Wt.shape[1:], bool), *(rule(part, Wt) for part in parts))
