"""A term of a sum: penalties whose joint prox has a closed form."""

from typing import Any

import jax
import jax.numpy as jnp

from sparsejax._core.linalg import columns, like, safe_divide
from sparsejax.penalties._blocks import Members, Rows, scales
from sparsejax.penalties._exclusive_groups import ExclusiveGroupL21
from sparsejax.penalties._group_lasso import GroupLasso
from sparsejax.penalties._norms import L1, L21
from sparsejax.penalties._row_penalty import RowPenalty, cast
from sparsejax.penalties._simple import SquaredL2
from sparsejax.penalties._terms import covers, inside
from sparsejax.penalties._warm import prox_columns, prox_start


class Joint(RowPenalty, leaves=("cores", "square", "box"), static=("positive",)):
    """``sum of cores + square``, on a constraint; see `Sum` for which there are and why the prox is exact.

    ``cores`` is empty, or a single penalty of one term, or `L1` ones with at most one `L21` or family of
    disjoint groups at their end.
    """

    cores: tuple[Any, ...]
    square: Any  # SquaredL2 or None
    box: Any  # Box or None, with `L1` alone
    positive: bool  # W >= 0

    @classmethod
    def of(cls, cores: Any, *, square: Any = None, box: Any = None, positive: bool = False) -> "Joint":
        """Unchecked."""
        return cls(tuple(cores), square, box, positive)

    def plain(self) -> Any:
        """A core itself where nothing was added."""
        bare = len(self.cores) == 1 and self.square is None and self.box is None and not self.positive
        return self.cores[0] if bare else self

    @property
    def provides(self) -> frozenset[str]:
        """What follows from the parts."""
        cores, found = self.cores, set()
        # A square would give any exact prox a conjugate; that of a class that states none is not relied on.
        alone = self.positive and not cores and self.square is None
        if not alone and all("dual" in core.provides for core in cores):
            found |= {"dual"}
        if self.box is None and all("support" in core.provides for core in cores):
            found |= {"support"}
        # Groups that compete under W >= 0: rounds take as long as the engine on all features.
        slow = self.positive and any(isinstance(core, ExclusiveGroupL21) for core in cores)
        if self.box is None and not slow and cores and all("sparse rows" in core.provides for core in cores):
            found |= {"sparse rows"}
        return frozenset(found)

    @property
    def finite_conjugate(self) -> bool:  # type: ignore[override]
        """With a square or bounds, or where that of the only core is."""
        if self.square is not None or self.box is not None:
            return True
        return len(self.cores) == 1 and bool(self.cores[0].finite_conjugate)

    @property
    def _offset(self) -> bool:  # type: ignore[override]
        return any(core._offset for core in self.cores)

    @property
    def chain(self) -> bool:
        """Of `L1` and what is scaled after it, or nothing; else of a single core."""
        return all(isinstance(core, (L1, L21, GroupLasso)) for core in self.cores)

    def smooth_where(self, W: jax.Array) -> jax.Array:
        """Where all parts are."""
        on = W > 0 if self.positive else jnp.ones(W.shape, bool)
        for core in self.cores:
            on &= core.smooth_where(W)
        return on

    def row_slopes(self, Z: jax.Array, W: jax.Array | None = None) -> jax.Array:
        """(d,), those of the only core, else by the scale that a row allows."""
        Zt = self._side(columns(Z))
        if len(self.cores) == 1:
            return self.cores[0].row_slopes(like(Zt, Z), W)
        return safe_divide(1.0, self._scales(Zt), jnp.inf)

    def rows_at(self, ix: jax.Array) -> "Joint":
        """Of a W of these rows; it has no box where it has sparse rows."""
        square = None if self.square is None else self.square.rows_at(ix)
        return self._replace(cores=tuple(core.rows_at(ix) for core in self.cores), square=square)

    # ------------------------------------------------------------------ on columns

    def _side(self, Zt: jax.Array) -> jax.Array:
        """What of a gradient counts."""
        return jnp.where(Zt > 0, Zt, 0) if self.positive else Zt

    def _value(self, Wt: jax.Array) -> jax.Array:
        total = jnp.zeros((), Wt.dtype)
        for part in (*self.cores, self.square, self.box):
            total += 0 if part is None else part.value(Wt.T)
        return jnp.where(jnp.all(Wt >= 0), total, jnp.inf) if self.positive else total

    def _prox(self, Vt: jax.Array, scaling: jax.Array) -> jax.Array:
        return self.warm_columns(Vt, scaling, self.start_columns(Vt), exact=True)[0]

    def start_columns(self, Vt: jax.Array) -> Any:
        return prox_start(self.cores[0], Vt.T) if len(self.cores) == 1 else ()

    def warm_columns(
        self, Vt: jax.Array, scaling: jax.Array, warm: Any, exact: bool = False
    ) -> tuple[jax.Array, Any]:
        cores = self.cores
        Vt = self._side(Vt)
        if self.square is not None:
            shrink = 1 / (1 + scaling * cast(self.square.strength, Vt))
            Vt = Vt * (shrink if shrink.ndim == 0 else shrink[None])
            if shrink.ndim:  # by row: strengths that are scaled so
                cores = self._cores_by_row(scaling * shrink)
                scaling = jnp.ones((), Vt.dtype)
            else:
                scaling = scaling * shrink
        if len(cores) == 1 and not exact:
            Vt, warm = prox_columns(cores[0], Vt, scaling, warm, Vt.T)
        else:
            for core in cores:
                Vt = columns(core.prox(Vt.T, scaling))
        if self.box is not None:
            low, high = self.box.bounds(Vt)
            Vt = jnp.clip(Vt, low, high)
        return Vt, warm

    def _cores_by_row(self, factor: jax.Array) -> tuple[Any, ...]:
        """The cores, sums over rows, times a factor for each row."""
        return tuple(core._by_row(factor) for core in self.cores)

    def _conjugate(self, Zt: jax.Array) -> jax.Array:
        if self.square is None:
            return self._flat_conjugate(Zt)
        m = jnp.broadcast_to(cast(self.square.strength, Zt), Zt.shape[1:])
        flat = self._replace(square=None)
        # argmax <Z, P> - flat(P) - m/2 ||P||^2, row by row where m is
        step = safe_divide(1.0, m)
        if jnp.ndim(self.square.strength) == 0:
            P = flat._prox(step[0] * Zt, step[0])
        else:
            scaled = flat._replace(cores=flat._cores_by_row(step))
            P = scaled._prox(step[None] * Zt, jnp.ones((), Zt.dtype))
        P = jnp.where(m[None] > 0, P, 0)
        squares = jnp.sum(m * jnp.sum(P * P, axis=0)) / 2
        if self.chain and self.box is None:  # a norm is <its subgradient, P>
            return jnp.where(jnp.isnan(squares), jnp.inf, squares)
        curved = jnp.sum(Zt * P) - flat.value(P.T) - squares
        curved = jnp.where(jnp.isnan(curved), jnp.inf, curved)
        if self._offset:  # the conjugate of 0 without the square is not 0
            return jnp.where(jnp.all(m > 0), curved, flat._flat_conjugate(Zt))
        return curved + flat._flat_conjugate(jnp.where(m[None] > 0, 0, Zt))

    def _flat_conjugate(self, Zt: jax.Array) -> jax.Array:
        """Without the square."""
        Zt = self._side(Zt)
        if self.box is not None:
            low, high = self.box.bounds(Zt)
            strength = self._entrywise(Zt)
            ends = [
                jnp.where(jnp.isinf(end), -jnp.inf, Zt * end - strength * jnp.abs(end))
                for end in (jnp.where(jnp.isinf(low), 0, low), jnp.where(jnp.isinf(high), 0, high))
            ]
            inner = jnp.where((low <= 0) & (high >= 0), 0, -jnp.inf)
            return jnp.sum(jnp.maximum(jnp.maximum(*ends), inner))
        if self.chain:
            return jnp.zeros((), Zt.dtype)
        return self.cores[0].conjugate(Zt.T)

    def _dual_scale(self, Zt: jax.Array) -> jax.Array:
        Zt = self._side(Zt)
        if self.square is not None:
            m = jnp.broadcast_to(cast(self.square.strength, Zt), Zt.shape[1:])
            Zt = jnp.where(m[None] > 0, 0, Zt)
        if self.box is not None:
            low, high = self.box.bounds(Zt)
            Zt = jnp.where(((Zt > 0) & (high == jnp.inf)) | ((Zt < 0) & (low == -jnp.inf)), Zt, 0)
        if len(self.cores) == 1:
            return self.cores[0].dual_scale(Zt.T)
        return jnp.min(self._scales(Zt))

    def _entrywise(self, Zt: jax.Array) -> jax.Array:
        """The strength of l1, (1, 1) or (1, d)."""
        entries = [core.entrywise(Zt) for core in self.cores if isinstance(core, L1)]
        return sum(entries, start=jnp.zeros((1, 1), Zt.dtype))

    def _scales(self, Zt: jax.Array) -> jax.Array:
        """By row, the largest s with sZ in the sum of the dual balls."""
        strength = self._entrywise(Zt)
        last = next((core for core in self.cores if not isinstance(core, L1)), None)
        if isinstance(last, GroupLasso):
            return scales(Members(last, Zt), strength, Zt)
        return scales(Rows(0.0 if last is None else last.alpha, Zt), strength, Zt)


def is_ridge(term: Joint, square: SquaredL2) -> bool:
    """Whether a term takes the square into its prox: by one factor, or by row where it is a sum over rows."""
    if jnp.ndim(square.strength) == 0:
        return True
    return all(
        isinstance(core, RowPenalty) and not isinstance(core, ExclusiveGroupL21) for core in term.cores
    )


@inside.register(Joint)
def _(penalty: Joint, W: jax.Array) -> jax.Array:
    """The entries within the bounds at which the cores are smooth, as far as they say."""
    if not all("support" in core.provides for core in penalty.cores):
        return jnp.zeros(W.shape, bool)
    if penalty.box is None:
        return penalty.smooth_where(W)
    low, high = penalty.box.bounds(columns(W))
    within = like((columns(W) > low) & (columns(W) < high), W)
    return within & penalty._replace(box=None).smooth_where(W)


@covers.register(Joint)
def _(penalty: Joint, Wt: jax.Array) -> jax.Array:
    room = jnp.zeros(Wt.shape[1:], bool)
    if penalty.square is not None:
        room |= cast(penalty.square.strength, Wt) > 0
    for core in penalty.cores:
        if isinstance(core, L1):
            room |= jnp.any(jnp.broadcast_to(core.entrywise(Wt) > 0, Wt.shape), axis=0)
        elif isinstance(core, L21):
            room |= jnp.broadcast_to(jnp.asarray(core.alpha) > 0, room.shape)
        else:
            room |= covers(core, Wt)
    return room
