"""Cox's partial likelihood, for times until an event that for some rows was not seen."""

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike

from sparsejax._core.checks import (
    as_float,
    as_positive,
    check_bool,
    check_labels,
    check_params,
    check_weights,
    is_traced,
)
from sparsejax._core.linalg import along, eps_of, opaque, safe_divide, safe_sqrt
from sparsejax._core.matrices.products import Products
from sparsejax._core.matrices.sharded import check_here
from sparsejax._core.matrices.sparse import Sparse, as_matrix, columns_at, divided
from sparsejax.losses._base import Facts, InUnits, Loss
from sparsejax.losses._linear_model import FLATTEST
from sparsejax.losses._quadratic_model import QuadraticModel
from sparsejax.losses._risks import (
    Risks,
    by_falling_time,
    decayed_sums,
    one_later,
    risks_of,
    running_max,
    running_sum,
)
from sparsejax.losses._sizes import Sizes, sizes_of
from sparsejax.losses._units import Units, power_of_two, row_units


class CoxLoss(Loss, leaves=("X", "event", "scale", "weights", "order", "ends")):
    r"""Cox's negative log partial likelihood with Breslow's treatment of ties.

    .. math:: \text{scale} \sum_{i:\,\text{event}_i = 1} \text{weights}_i
              \Bigl[\log \sum_{j:\,\text{time}_j \ge \text{time}_i} \text{weights}_j\, e^{h_j} - h_i\Bigr],
              \qquad h = Xw .

    A row of weight 2 counts as two rows and one of weight 0 as none, in the sum over events and in the
    risk sets alike: the weighted likelihood of R's survival. A factor c of all weights therefore multiplies
    the loss and adds ``scale log(c)`` times the weights of the events, a constant.

    Sorting is done once, here; a value costs two cumulative sums. An event that is alone in its risk set adds
    nothing. Rows held out by `sparsejax.cross_validate` are judged by the risk sets that they form
    themselves: use few folds, or shuffle rows so that each has events.

    Args:
      X: (n, d), as for `SquaredLoss`.
      time: (n,), finite; until the event, or until the row was last seen. Only its order matters, and ties
        are times that are equal as they are given.
      event: (n,), 1 or True where the event was seen at ``time``, 0 or False where the row is censored.
      scale: > 0, shape (); default ``1/n``, n the number of all rows.
      weights: None (all one) or (n,) by row, >= 0.
      intercept: False; it is here to say why there is none.

    Raises:
      TypeError, ValueError: as `SquaredLoss`; a time that is not finite; an event that is not 0 or 1; lengths
        that disagree; ``intercept=True``, which would cancel; data whose likelihood is constant: no event of
        positive weight, or none with another row in its risk set.
    Source: Cox, Journal of the Royal Statistical Society B 34, 1972; ties: Breslow, Biometrics 30, 1974.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> X, time, event = jnp.array([[1.0], [0.0], [0.5]]), jnp.array([2.0, 3.0, 5.0]), jnp.array([1, 0, 1])
    >>> loss = sj.losses.CoxLoss(X, time, event, scale=1.0)
    >>> bool(jnp.allclose(loss(jnp.array([0.0])), jnp.log(3.0)))
    True
    """

    X: Any  # an array, or `Sparse`
    event: jax.Array
    scale: jax.Array
    weights: jax.Array | None
    order: jax.Array  # rows by falling time
    ends: jax.Array  # the last place in that order with the time of each place

    def __init__(
        self,
        X: Any,
        time: ArrayLike,
        event: ArrayLike,
        *,
        scale: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        intercept: bool = False,
    ):
        X = as_matrix("X", X)
        n, d = X.shape
        if n == 0 or d == 0:
            raise ValueError(f"X is empty: its shape is {X.shape}.")
        check_here("time", time)
        checked = as_float("time", time, (1,))
        time = checked if is_traced(time) else np.asarray(time)  # as given: a cast could make ties
        event = as_float("event", event, (1,), X.dtype)
        if weights is not None:
            weights = as_float("weights", weights, (1,), X.dtype)
        for name, given in (("time", time), ("event", event), ("weights", weights)):
            if given is not None and given.shape[0] != n:
                raise ValueError(f"X has {n} rows and {name} has {given.shape[0]}; they must agree.")
            check_here(name, given)
        if weights is not None:
            check_weights(weights)
        check_labels(event, (0, 1), "CoxLoss", name="event")
        check_bool("intercept", intercept)
        if intercept:
            raise ValueError(
                "CoxLoss has no intercept: it would add the same to every h of a risk set and cancel."
            )
        scale = as_positive("scale", 1 / n if scale is None else scale, X.dtype)
        order, ends = by_falling_time(time)
        self._set(X=X, event=event, scale=scale, weights=weights, order=order, ends=ends)
        self._check_varies()

    def _check_varies(self) -> None:
        """Raise where the loss is the same for every w."""
        leaves = (self.event, self.weights, self.order)
        if any(map(is_traced, leaves)):
            return
        counted = np.ones(len(self.event), bool) if self.weights is None else np.asarray(self.weights) > 0
        order, ends = np.asarray(self.order), np.asarray(self.ends)
        events = (counted & (np.asarray(self.event) > 0))[order]
        if not events.any():
            names = "event" if self.weights is None else "event and weights"
            raise ValueError(f"{names}: every row is censored or has weight 0, so there is nothing to fit.")
        if not (events & (np.cumsum(counted[order])[ends] > 1)).any():
            raise ValueError(
                "event: every event is the only row in its risk set, the rows with time at least its own, so "
                "that the likelihood is the same for every w."
            )

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
        return self._value(self._risks(self._predict(W)))

    def _predict(self, W: jax.Array) -> jax.Array:
        """H = XW, (n,)."""
        check_params(W, self.params_shape)
        return self.X @ W

    def _sorted(self, rows: jax.Array) -> jax.Array:
        """In the order of falling time."""
        return rows.at[self.order].get(unique_indices=True)

    def _as_rows(self, sorted_: jax.Array) -> jax.Array:
        """The inverse."""
        return jnp.zeros_like(sorted_).at[self.order].set(sorted_, unique_indices=True)

    def _weights(self) -> jax.Array:
        return jnp.ones_like(self.event) if self.weights is None else self._sorted(self.weights)

    def _risks(self, H: jax.Array) -> Risks:
        return risks_of(self._sorted(H), self._weights(), self._sorted(self.event), self.ends)

    def _value(self, r: Risks) -> jax.Array:
        return self.scale * jnp.sum(r.events * r.excess)

    def _slopes(self, r: Risks) -> jax.Array:
        """The derivative in each h, in the order of falling time."""
        return self.scale * (r.stop * r.mass() - r.events)

    # ------------------------------------------------------------------ the protocol

    @property
    def provides(self) -> frozenset[str]:
        """All that a sparse X allows."""
        return self._given - self.X.lacks if isinstance(self.X, Products) else self._given

    def quadratic_model(self) -> QuadraticModel:
        """Of X in memory a bound of the curvature, and least squares."""
        X = self.X
        in_memory = not isinstance(X, Products)
        return QuadraticModel(
            majorizer=self._majorizer if in_memory else None,
            least_squares_at=self._least_squares_at if in_memory else None,
            num_rows=int(X.shape[-2]),
            column_sizes=(lambda: (X.sizes, X.room)) if isinstance(X, Sparse) else None,
            sizes=lambda: sizes_of(X),
        )

    def facts(self, W: jax.Array, sizes: Sizes | None = None) -> Facts:
        """With the predictions."""
        H = self._predict(W)
        risks = self._risks(H)
        U = self._slopes(risks)
        rounding = self._rounding(risks, U, W, sizes)
        return Facts(self._value(risks), self._as_rows(U) @ self.X, rounding, None, H)

    def _rounding(self, r: Risks, U: jax.Array, W: jax.Array, sizes: Sizes | None) -> jax.Array:
        """From the rounding of h = Xw, to second order, and of the sums over risk sets."""
        sizes = sizes_of(self.X) if sizes is None else sizes
        eps = eps_of(U)
        error = 2 * eps * self._sorted(sizes.rows) * safe_sqrt(sizes.squares @ (W * W))
        error = jnp.where(r.weights > 0, error, 0)
        # The variance of an error over a risk set is at most the largest square of it.
        total = self.scale * jnp.sum(r.events)
        moved = 2 * jnp.sum(jnp.abs(U) * error) + total / 2 * jnp.max(error) ** 2
        # Sums of positive terms, block by block, whose errors are as often up as down.
        steps = 4 + 2 * len(U) ** 0.25
        own = jnp.abs(U * r.h) + 2 * self.scale * r.events * (1 + jnp.abs(r.h))
        return moved + steps * eps * jnp.sum(own)

    def _majorizer(self) -> jax.Array:
        r"""A (n, d): rows of X less their mean, times the root of what bounds the curvature in each h.

        The Hessian in h is ``scale`` times the sum over events e of ``weights_e (diag(p) - pp')``, p the
        probabilities over its risk set. With y = Xv the bracket gives Var_p(y), which depends neither on a
        shift of the rows of X nor on rows outside of the risk set, and

        * is at most :math:`(y_a - y_b)^2/4 \le (y_a^2 + y_b^2)/2`, a and b the ends of its range: half the
          sum of squares over the risk set;
        * is at most the largest :math:`y_j^2 \le \kappa \|y\|^2` with the largest leverage
          :math:`\kappa = \max_j x_j^\top (X^\top X)^{-1} x_j`: less, where there are many rows a feature.

        For each event the one of smaller trace is taken.
        """
        w = self._weights()
        events = w * self._sorted(self.event)
        counted = (w > 0).astype(self.dtype)
        X = self._sorted(self.X)
        X = counted[:, None] * (X - safe_divide(counted @ X, jnp.sum(counted))[None])
        squares = jnp.sum(X * X, axis=1)
        half = running_sum(squares)[self.ends] / 2
        kappa = self._leverage(X)
        small = half <= kappa * jnp.sum(squares)
        # A row is in the risk sets of the events at its end and after it.
        at_ends = jnp.zeros_like(w).at[self.ends].add(jnp.where(small, events, 0))
        bound = running_sum(at_ends[::-1])[::-1] / 2 + kappa * jnp.sum(jnp.where(small, 0, events))
        # Where a user's jit has made X a constant, XLA would fold products of A for minutes.
        return opaque(jnp.sqrt(self.scale * bound)[:, None] * X)

    @staticmethod
    def _leverage(X: jax.Array) -> jax.Array:
        """The largest leverage of a row of X, but for rounding; 1 where there are fewer rows than columns."""
        n, d = X.shape
        if n <= d:
            return jnp.ones((), X.dtype)
        G = X.T @ X
        # Room for a root where columns depend on each other.
        room = 8 * d * eps_of(X) * jnp.trace(G)
        L = jnp.linalg.cholesky(G + jnp.where(room > 0, room, 1) * jnp.eye(d, dtype=X.dtype))
        half = X @ solve_triangular(L, jnp.eye(d, dtype=X.dtype), lower=True).T
        return jnp.minimum(jnp.max(jnp.sum(half * half, axis=1)), 1)

    def dual_scaling(
        self, W: jax.Array, limit: jax.Array, H: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        r"""``s = min(limit, 1)`` and the change of the conjugate.

        U + scale * events, over the scale, says how much of the events' weights stops at each row (see
        `Risks`): :math:`\ell^*` is finite where that can be, which it can for sU, 0 <= s <= 1, if for U,
        since at s = 0 each event stops at its own row. The conjugate of a sum is the least sum of the
        conjugates, entropies over the risk sets, over all ways to bring the weights there; the best, those of
        one h, have the same probability to stop for all events. So

        .. math:: \ell^*(sU) - \ell^*(U) = (s - 1)\langle U, h\rangle
                  + \text{scale} \sum_e \text{weights}_e \operatorname{KL}(q_e \,\|\, p_e) ,

        p the probabilities at h and q those at which s times ``U`` stop, as `Risks.divergence` has them.
        """
        r = self._risks(self._predict(W) if H is None else H)
        s, mass = jnp.minimum(limit, 1), r.mass()
        U = self.scale * (r.stop * mass - r.events)
        stopping = s * r.stop * mass + (1 - s) * r.events
        passing = s * r.onward * mass + (1 - s) * self._waiting(r)
        return s, (s - 1) * jnp.sum(U * r.h) + self.scale * r.divergence(stopping, passing)

    def unpenalised_basis(self, free: jax.Array) -> jax.Array:
        """Orthonormal columns (n, r) that span X[:, free] and a constant, in the rows of some risk set."""
        F = jnp.concatenate([jnp.ones((self.X.shape[0], 1), self.dtype), along(self.X, free)], axis=1)
        U, sizes, _ = jnp.linalg.svd(self._as_rows(self._in_risk())[:, None] * F, full_matrices=False)
        keep = sizes > max(F.shape) * eps_of(F) * sizes[0]
        return jnp.where(keep[None], U, 0)

    def _in_risk(self) -> jax.Array:
        """1 for rows of positive weight in the risk set of an event, in the order of falling time."""
        w = self._weights()
        events = jnp.zeros_like(w).at[self.ends].add(w * self._sorted(self.event))
        return ((w > 0) & (running_max(events[::-1])[::-1] > 0)).astype(self.dtype)

    def _waiting(self, r: Risks) -> jax.Array:
        """The weights of events on their way to their own rows, within the rows of one time."""
        return jnp.maximum(
            one_later(running_sum(r.events - jnp.zeros_like(r.events).at[r.ends].add(r.events))), 0
        )

    def dual_projection(
        self, W: jax.Array, basis: jax.Array, H: jax.Array | None = None, s: jax.Array | float = 1.0
    ) -> tuple[jax.Array, jax.Array]:
        """``X' dU`` and the divergence, as of `LinearModelLoss`; infinite where weights cannot stop so."""
        r = self._risks(self._predict(W) if H is None else H)
        mass = r.mass()
        dU = -(basis @ (basis.T @ self._as_rows(self.scale * (r.stop * mass - r.events))))
        counted = self._in_risk() > 0
        change = jnp.where(counted, self._sorted(dU) / self.scale, 0)
        # What stops more at earlier places passes the later ones.
        stopping = r.stop * mass + change
        passing = jnp.where(r.first, 0, r.onward * mass + one_later(running_sum(change)))
        possible = jnp.all(jnp.where(counted, (stopping >= 0) & (passing >= 0), True))
        stopping = s * stopping + (1 - s) * r.events
        passing = s * passing + (1 - s) * self._waiting(r)
        stopping, passing = (jnp.where(counted & possible, x, 0) for x in (stopping, passing))
        divergence = self.scale * r.divergence(stopping, passing)
        U = self._as_rows(self.scale * (r.stop * mass - r.events))
        return self.X.T @ (s * dU + (s - 1) * U), jnp.where(possible, divergence, jnp.inf)

    def _least_squares_at(self, W: jax.Array, H: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
        r"""A (n, d) with A'A the Hessian, and B.

        As rows enter one by one, in the order of falling time, the sum of squares about the mean of the risk
        set grows by that of one row: with :math:`S_k` the sum of :math:`w e^h` and :math:`\mu_k` the
        mean of X over the first k, :math:`(S_{k-1}/S_k)\, w_k e^{h_k}\, a_k a_k^\top` with
        :math:`a_k = x_k - \mu_{k-1}`. So the Hessian is :math:`\sum_k c_k a_k a_k^\top`, where
        :math:`c_k = (S_{k-1}/S_k)\, g_k` and :math:`g_k` is scale times the sum of the probabilities of row
        k over the events, and solving from the last row on, the gradient is :math:`\sum_k \rho_k a_k` with
        :math:`\rho_k = U_k - (w_k e^{h_k}/S_k) \sum_{i \le k} U_i`.
        As in other losses c is at least `FLATTEST` times :math:`|\rho|`.
        """
        r = self._risks(self._predict(W) if H is None else H)
        total = self.scale * r.mass()
        U = r.stop * total - self.scale * r.events
        X = self._sorted(self.X)
        mean = safe_divide(decayed_sums(r.top, r.each[:, None] * X), r.sums[:, None])
        A = X - one_later(mean)
        rho = U - r.stop * running_sum(U)
        c = jnp.maximum(r.onward * r.stop * total, FLATTEST * jnp.abs(rho))
        root = safe_sqrt(c)
        A = root[:, None] * A
        return A, (A @ W - safe_divide(rho, root))[:, None]

    def valid(self) -> jax.Array:
        """Scale > 0 and finite, no negative weight or event."""
        valid = (self.scale > 0) & (self.scale < jnp.inf) & jnp.all(self.event >= 0)
        return valid if self.weights is None else valid & jnp.all(self.weights >= 0)

    def reweighted(self, weights: jax.Array) -> Self:
        """The same loss with other weights, not checked."""
        return self._replace(weights=weights)

    def intercept(self, W: jax.Array) -> jax.Array:
        """0: any would cancel."""
        self._predict(W)
        return jnp.zeros((), self.dtype)

    def evaluate(self, W: jax.Array, intercept: ArrayLike = 0.0) -> jax.Array:
        """The loss of W, whatever the intercept."""
        return self(W)

    def columns_at(self, ix: jax.Array) -> Self:
        """The same loss of these columns of X."""
        return self._replace(X=columns_at(self.X, ix))

    def in_units(self) -> InUnits:
        """Scale times the weights of the events near 1, where it is not of that order already."""
        weights = self.event if self.weights is None else self.event * self.weights
        gamma = 1 / power_of_two(lax.stop_gradient(self.scale * jnp.sum(weights)))
        loss, units = self._replace(scale=self.scale * gamma), Units(jnp.ones((), self.dtype), gamma)
        return InUnits(loss, units, loss._row_units, loss._rescaled)

    def _row_units(self) -> jax.Array:
        """By the deviations of each column of X from its mean."""
        return row_units(lax.stop_gradient(self.X), centred=True)

    def _rescaled(self, units: jax.Array) -> Self:
        """Columns of X divided by the units."""
        return self._replace(X=divided(self.X, units))
