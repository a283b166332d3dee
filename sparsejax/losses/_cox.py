"""Cox's partial likelihood, for times until an event; rows without an observed event are censored."""

from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checks import as_positive, check_bool, check_choice, check_params
from sparsejax._core.linalg import choose, columns_along, eps_of, opaque, safe_sqrt, take
from sparsejax._core.matrices.products import Products
from sparsejax._core.matrices.sparse import Sparse, as_matrix, columns_at, divided
from sparsejax.losses._base import Facts, InUnits, Loss, Pair, Predictions
from sparsejax.losses._cox_curvature import (
    bounding_rows,
    chain_hessian,
    chain_squares,
    off_basis_by_curvature,
    trace_bound,
)
from sparsejax.losses._curvature import centred
from sparsejax.losses._free_features import span
from sparsejax.losses._quadratic_model import QuadraticModel
from sparsejax.losses._risk_places import Places, Sums
from sparsejax.losses._risk_terms import Terms, balanced, levels_of, stopped, terms_of
from sparsejax.losses._risks import Risks, one_later, risks_of
from sparsejax.losses._running_sums import running_max, running_sum
from sparsejax.losses._sizes import Sizes, sizes_of
from sparsejax.losses._survival_data import survival_data
from sparsejax.losses._units import Units, power_of_two, row_units

TIES = ("breslow", "efron")


class RiskSums(NamedTuple):
    """What `CoxLoss.facts` keeps for other methods: all quantities that take a loop, (n,) by place."""

    h: jax.Array
    sums: tuple[jax.Array, ...]  # ``known`` of `risks_of` or of `terms_of`
    mass: jax.Array  # of `Risks`: the weight that reaches each place; of `Terms`: the weight that stops there


class CoxLoss(Loss, leaves=("X", "time", "event", "scale", "weights", "places"), static=("ties",)):
    r"""Cox's negative log partial likelihood, with ties, strata and delayed entry.

    .. math:: \text{scale} \sum_{i:\,\text{event}_i = 1} \text{weights}_i
              \Bigl[\log \sum_{j \in R_i} \text{weights}_j\, e^{h_j} - h_i\Bigr],
              \qquad h = Xw ,

    where the risk set :math:`R_i` holds the rows of the stratum of i with
    :math:`\text{entry}_j < \text{time}_i \le \text{time}_j`. This is Breslow's treatment of ties. With
    Efron's, the terms of a set D of d events of positive weight at one time in one stratum are replaced by

    .. math:: \text{scale} \Bigl[\sum_{k=0}^{d-1} \overline{\text{weights}}_D
              \log \Bigl(\sum_{j \in R} \text{weights}_j\, e^{h_j}
              - \frac{k}{d} \sum_{j \in D} \text{weights}_j\, e^{h_j}\Bigr)
              - \sum_{i \in D} \text{weights}_i\, h_i\Bigr]

    with their mean weight, as R's ``coxph``. A row of weight 0 counts as no row, both in the sum over events
    and in the risk sets; with Efron's the loss jumps if one of several tied events gets the weight 0. With
    Breslow's a row of weight 2 counts as two. A factor c of all weights multiplies the loss by c and adds a
    constant.

    The constructor sorts the rows once. A value and a gradient cost O(n), with ``entry`` O(n + m log m) for m
    times of events. Sums over risk sets add positive numbers only, so that small sums have full precision
    beside large ones. An event alone in its risk set adds a constant. `sparsejax.cross_validate`
    evaluates held-out rows on the risk sets that these rows form: use few folds, or shuffle the rows so that
    each fold has events.

    Args:
      X: (n, d), as for `SquaredLoss`.
      time: (n,), > 0 and finite, of the event, or of the last observation. Only the order matters. Ties are
        times that are equal in the dtype in which they are given.
      event: (n,), 1 or True where the event was seen at ``time``, 0 or False where the row is censored.
      ties: "breslow" or "efron".
      strata: None, or (n,) of labels that can be sorted: each stratum has its own risk sets, all share w. A
        stratum without events adds nothing.
      entry: None, or (n,), finite, each less than ``time``: the time from which on the row is observed.
      weights: None (all one) or (n,) by row, >= 0.
      scale: > 0, shape (); default ``1/n``, n the number of all rows.
      intercept: must be False: an intercept cancels. The argument exists for this error message.

    Raises:
      TypeError, ValueError: as `SquaredLoss`; a time that is not finite and > 0; an event that is not 0 or 1;
        an entry that is not before its time; labels that are missing or of several kinds; lengths that
        disagree; ``intercept=True``, which would cancel; data whose likelihood is constant: no event of
        positive weight, or none with another row in its risk set.
    Source: Cox, Journal of the Royal Statistical Society B 34, 1972; ties: Breslow, Biometrics 30, 1974, and
      Efron, Journal of the American Statistical Association 72, 1977.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> X, time, event = jnp.array([[1.0], [0.0], [0.5]]), jnp.array([2.0, 3.0, 5.0]), jnp.array([1, 0, 1])
    >>> loss = sj.losses.CoxLoss(X, time, event, scale=1.0)
    >>> bool(jnp.allclose(loss(jnp.array([0.0])), jnp.log(3.0)))
    True
    >>> late = sj.losses.CoxLoss(X, time, event, scale=1.0, entry=jnp.array([0.0, 2.5, 1.0]))
    >>> bool(jnp.allclose(late(jnp.array([0.0])), jnp.log(2.0)))
    True
    """

    X: Any  # an array, or `Sparse`
    time: jax.Array  # for scores: times in the dtype of X, or their ranks if this dtype would make some equal
    event: jax.Array
    scale: jax.Array
    weights: jax.Array | None
    places: Places
    ties: str

    def __init__(
        self,
        X: Any,
        time: ArrayLike,
        event: ArrayLike,
        *,
        ties: str = "breslow",
        strata: Any = None,
        entry: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        scale: ArrayLike | None = None,
        intercept: bool = False,
    ):
        X = as_matrix("X", X)
        n, d = X.shape
        if n == 0 or d == 0:
            raise ValueError(f"X is empty: its shape is {X.shape}.")
        check_choice("ties", ties, TIES)
        check_bool("intercept", intercept)
        if intercept:
            raise ValueError(
                "CoxLoss has no intercept: it would add the same to every h of a risk set and cancel."
            )
        data = survival_data(X, time, event, strata, entry, weights)
        scale = as_positive("scale", 1 / n if scale is None else scale, X.dtype)
        self._set(X=X, scale=scale, ties=ties, **data._asdict())

    # ------------------------------------------------------------------ the function

    @property
    def params_shape(self) -> tuple[int, ...]:
        """(d,)."""
        return (self.X.shape[-1],)

    @property
    def dtype(self) -> Any:
        """dtype of the work: that of X."""
        return self.X.dtype

    def __call__(self, W: jax.Array) -> jax.Array:
        return self.scale * self._risks(self._sorted(self._predict(W))).value()

    def _predict(self, W: jax.Array) -> jax.Array:
        """H = XW, (n,)."""
        check_params(W, self.params_shape)
        return self.X @ W

    def _sorted(self, rows: jax.Array) -> jax.Array:
        """Values by row, (n, ...), sorted into the order of `Places`."""
        return rows.at[self.places.order].get(unique_indices=True)

    def _as_rows(self, sorted_: jax.Array) -> jax.Array:
        """The inverse of `_sorted`: values by place as values by row."""
        return jnp.zeros_like(sorted_).at[self.places.order].set(sorted_, unique_indices=True)

    def _weights(self) -> jax.Array:
        return jnp.ones_like(self.event) if self.weights is None else self._sorted(self.weights)

    @property
    def _nested(self) -> bool:
        """Whether `Risks` applies: risk sets only grow as time falls, and tied events share one."""
        return self.ties == "breslow" and self.places.windows is None

    def _risks(self, h: jax.Array, sums: Sums = None) -> Risks | Terms:
        """The risk sets at h (n,), by place; ``sums`` as in `RiskSums`, if they are known."""
        return self._nested_risks(h, sums) if self._nested else self._terms(h, sums)

    def _nested_risks(self, h: jax.Array, sums: Sums = None) -> Risks:
        """`Risks` for Breslow's ties without ``entry``, also if the loss has other risk sets."""
        return risks_of(h, self._weights(), self._sorted(self.event), self.places, sums)

    def _terms(self, h: jax.Array, sums: Sums = None) -> Terms:
        efron = self.ties == "efron"
        return terms_of(h, self._weights(), self._sorted(self.event), self.places, efron, sums)

    def _evaluated(self, W: jax.Array, known: RiskSums | None = None) -> tuple[Risks | Terms, jax.Array]:
        """The risk sets at W, and the mass of `RiskSums`; ``known`` comes from ``facts`` at W."""
        if known is not None:
            return self._risks(known.h, known.sums), known.mass
        r = self._risks(self._sorted(self._predict(W)))
        return r, r.mass() if isinstance(r, Risks) else stopped(self._terms, r.h)

    def _slopes(self, r: Risks | Terms, mass: jax.Array) -> jax.Array:
        """The derivative of the loss in h, (n,) by place: weight that stops there minus the event."""
        return self.scale * ((r.stop * mass if isinstance(r, Risks) else mass) - r.events)

    # ------------------------------------------------------------------ the protocol

    @property
    def provides(self) -> frozenset[str]:
        """The groups of the protocol, without those that a sparse X lacks."""
        return self._given - self.X.lacks if isinstance(self.X, Products) else self._given

    def quadratic_model(self) -> QuadraticModel:
        """Sizes; for X in memory also a bound of the curvature, and least squares at a point."""
        X = self.X
        in_memory = not isinstance(X, Products)
        return QuadraticModel(
            majorizer=self._majorizer if in_memory else None,
            trace=self._trace if in_memory else None,
            hessian=self._hessian if in_memory and self._nested else None,
            least_squares_at=self._least_squares_at if in_memory else None,
            num_rows=int(X.shape[-2]),
            column_sizes=(lambda: (X.sizes, X.room)) if isinstance(X, Sparse) else None,
            sizes=lambda: sizes_of(X),
        )

    def facts(self, W: jax.Array, sizes: Sizes | None = None) -> Facts:
        """Value, gradient and rounding error of the loss at W, and the sums at W that take a loop."""
        r, mass = self._evaluated(W)
        U = self._slopes(r, mass)
        rounding = self._rounding(r, U, W, sizes)
        sums = (r.top, r.sums, r.log_sums) if isinstance(r, Risks) else (r.top, r.others)
        known = RiskSums(r.h, sums, mass)
        return Facts(self.scale * r.value(), self._as_rows(U) @ self.X, rounding, None, known)

    def _rounding(self, r: Risks | Terms, U: jax.Array, W: jax.Array, sizes: Sizes | None) -> jax.Array:
        """(), a bound of the rounding error of the value: of h = Xw, to second order, and of the sums."""
        sizes = sizes_of(self.X) if sizes is None else sizes
        eps = eps_of(U)
        error = 2 * eps * self._sorted(sizes.scaled_row_norms) * safe_sqrt(sizes.squares @ (W * W))
        error = jnp.where(r.weights > 0, error, 0)
        # The second-order term of an event is half the variance of the error over its risk set, which is at
        # most the largest squared error.
        total = self.scale * jnp.sum(r.events)
        of_h = 2 * jnp.abs(U) @ error + total / 2 * jnp.max(error) ** 2
        # Rounding of the sums: terms are positive, and factors other than 1 have errors of random sign. In
        # `Risks` a factor is 1 unless the largest h rises; in `Terms` any may differ from 1. In float64 sums
        # of n equal terms are off by n/11 eps.
        levels = 0 if self.places.windows is None else levels_of(self.places.windows)
        rises = jnp.sum(r.top[1:] != r.top[:-1]) if isinstance(r, Risks) else len(U)
        steps = 4 + 2 * jnp.sqrt(jnp.asarray(rises, U.dtype)) + levels
        steps += len(U) / 11 if U.dtype == jnp.float64 else 0
        own = jnp.abs(U) @ jnp.abs(r.h) + 2 * self.scale * (jnp.sum(r.events) + r.events @ jnp.abs(r.h))
        return of_h + steps * eps * own

    def _majorizer(self) -> jax.Array:
        w = self._weights()
        A = bounding_rows(self._sorted(self.X), w, self.scale * w * self._sorted(self.event), self.places)
        # If X is a constant of a user's jit, XLA would spend minutes on folding products of A at compile
        # time.
        return opaque(A)

    def _trace(self) -> jax.Array:
        w = jnp.ones_like(self.event) if self.weights is None else self.weights
        return trace_bound(self.X, w, self.scale * self._sorted(w * self.event), self.places)

    def dual_scaling(self, W: jax.Array, limit: jax.Array, known: RiskSums | None = None) -> Pair:
        r"""``s = min(limit, 1)``, and the conjugate at sU minus the conjugate at U.

        (U + scale * events) / scale is the weight of the draws that stop at each row (see `Risks`).
        :math:`\ell^*` is finite if draws with these stops exist. If they exist for U they exist for sU,
        0 <= s <= 1: for s = 0 each event stops at its own row. The conjugate of a sum of functions is the
        least sum of their conjugates, here entropies over the risk sets, over all draws with these stops. The
        least sum belongs to draws of one h, which stop at a row with the same probability for all events.
        Hence

        .. math:: \ell^*(sU) - \ell^*(U) = (s - 1)\langle U, h\rangle
                  + \text{scale} \sum_e \text{weights}_e \operatorname{KL}(q_e \,\|\, p_e) ,

        where p are the probabilities at h, and q those of draws with the stops of sU
        (`Risks.scaled_divergence`). If risk sets are not nested, `Terms.scaled_divergence` gives an upper
        bound.
        """
        r, mass = self._evaluated(W, known)
        s = jnp.minimum(limit, 1)
        divergence = r.scaled_divergence(s, mass) if isinstance(r, Risks) else r.scaled_divergence(s)
        return s, (s - 1) * jnp.sum(self._slopes(r, mass) * r.h) + self.scale * divergence

    def unpenalised_basis(self, free: jax.Array) -> jax.Array:
        """Orthonormal columns (n, r) that span X[:, free] and a constant; 0 in rows without `_in_risk`.

        With several strata the columns are centred in each stratum instead.
        """
        there, F = self._in_risk(), self._sorted(columns_along(self.X, free))
        if self.places.strata is None:
            F = jnp.concatenate([jnp.ones((len(F), 1), self.dtype), F], axis=1)
        else:
            F = centred(F, there, self.places.strata)
        return span(self._as_rows(there[:, None] * F))

    def _in_risk(self) -> jax.Array:
        """(n,) by place: 1 if the weight is > 0 and the stratum has an event by then, else 0."""
        w = self._weights()
        events = self.places.at_ends(w * self._sorted(self.event))
        strata = None if self.places.strata is None else self.places.strata[::-1]
        return ((w > 0) & (running_max(events[::-1], strata)[::-1] > 0)).astype(self.dtype)

    def dual_projection(
        self, W: jax.Array, basis: jax.Array, known: RiskSums | None = None, s: jax.Array | float = 1.0
    ) -> Pair:
        """``X' dU`` and the divergence, same as `LinearModelLoss.dual_projection`.

        The divergence is infinite if no draws have the stops of the projected point. If risk sets are not
        nested, the dual point belongs to other predictions, see `balanced`.
        """
        r, mass = self._evaluated(W, known)
        if not isinstance(r, Risks):
            dU, divergence = balanced(self._terms, r.h, self._sorted(basis), s)
            return self.X.T @ self._as_rows(self.scale * dU), self.scale * divergence
        U, counted, sorted_basis = self._slopes(r, mass), self._in_risk() > 0, self._sorted(basis)
        shortest = jnp.where(counted, -(sorted_basis @ (sorted_basis.T @ U)) / self.scale, 0)
        # Additional weight that stops at earlier places passes the later places.
        change = shortest, one_later(running_sum(shortest, self.places.strata))
        curved = off_basis_by_curvature(r, mass, sorted_basis, U / self.scale)
        of_shortest, of_curved = (r.after_change(mass, each, counted) for each in (change, curved))
        better = of_curved[-1] < of_shortest[-1]
        stopping, passing, divergence = choose(better, of_curved, of_shortest)
        dU = jnp.where(counted, self.scale * jnp.where(better, curved[0], shortest), 0)
        if isinstance(s, jax.Array) or s != 1:
            mixed = r.mixed_divergence(s, stopping, passing)
            divergence = jnp.where(jnp.isinf(divergence), jnp.inf, mixed)
        return self.X.T @ self._as_rows(s * dU + (s - 1) * U), self.scale * divergence

    def _hessian(self, W: jax.Array, known: RiskSums | None = None) -> jax.Array:
        """(1, d, d); only for nested risk sets."""
        r, mass = self._evaluated(W, known)
        if not isinstance(r, Risks):
            raise TypeError("The risk sets are not nested.")
        return self.scale * chain_hessian(r, self._sorted(self.X), r.stop * mass)[None]

    def _least_squares_at(self, W: jax.Array, known: RiskSums | None = None) -> Pair:
        """A and b with ||AW - b||^2 / 2 the second-order model: exact for nested risk sets, else close to it.

        See `chain_squares`.
        """
        r, mass = self._evaluated(W, known)
        chain, stops = (r, r.stop * mass) if isinstance(r, Risks) else (self._nested_risks(r.h), mass)
        A, z = chain_squares(chain, self._sorted(self.X), stops)
        root = jnp.sqrt(self.scale)
        A = root * A
        return A, (A @ W - root * z)[:, None]

    def valid(self) -> jax.Array:
        """() boolean: the scale is > 0 and finite, no weight negative, and every event 0 or 1.

        Under jit an event is NaN where a time is not allowed.
        """
        valid = (self.scale > 0) & (self.scale < jnp.inf) & jnp.all((self.event == 0) | (self.event == 1))
        return valid if self.weights is None else valid & jnp.all(self.weights >= 0)

    def reweighted(self, weights: jax.Array) -> Self:
        """The same loss with other weights, not checked."""
        return self._replace(weights=weights)

    def rows_alone(self, weights: jax.Array, most: int) -> Self:
        """The loss of the rows whose weight is not 0, filled up to ``most`` by rows of weight 0."""
        ix, places = self.places.restricted(weights != 0, most)
        X, time, event, w = (take(a, ix, 0) for a in (self.X, self.time, self.event, weights))
        return self._replace(X=X, time=time, event=event, weights=w, places=places)

    def intercept(self, W: jax.Array) -> jax.Array:
        """(), 0: every intercept cancels."""
        self._predict(W)
        return jnp.zeros((), self.dtype)

    def evaluate(self, W: jax.Array, intercept: ArrayLike = 0.0) -> jax.Array:
        """The loss of W; the intercept has no effect."""
        return self(W)

    def predictions(self, W: jax.Array, intercept: ArrayLike = 0.0) -> Predictions:
        """Times (or ranks, see ``time``) and events, (n, 2), and h, the log risk, without an intercept."""
        H = self._predict(jnp.asarray(W))
        return Predictions(jnp.stack([self.time, self.event], axis=1), H, H)

    def log_risk(self, W: jax.Array) -> jax.Array:
        """The logarithm of the sum of ``weights e^h`` over the risk set of each row with an event, (n,).

        The weights of the events over these sums are the jumps of Breslow's baseline hazard.
        """
        return self._as_rows(self._risks(self._sorted(self._predict(W))).at_risk())

    def columns_at(self, ix: jax.Array) -> Self:
        """The same loss with these columns of X only."""
        return self._replace(X=columns_at(self.X, ix))

    def in_units(self) -> InUnits:
        """The loss with a scale such that scale times the sum of the events' weights is of order 1."""
        weights = self.event if self.weights is None else self.event * self.weights
        gamma = 1 / power_of_two(lax.stop_gradient(self.scale * jnp.sum(weights)))
        loss, units = self._replace(scale=self.scale * gamma), Units(jnp.ones((), self.dtype), gamma)
        return InUnits(loss, units, loss._row_units, loss._rescaled)

    def _row_units(self) -> jax.Array:
        """Units (d,) of the rows of W, by the deviations of each column of X from its mean."""
        return row_units(lax.stop_gradient(self.X), centred=True)

    def _rescaled(self, units: jax.Array) -> Self:
        """The loss with the columns of X divided by the units."""
        return self._replace(X=divided(self.X, units))
