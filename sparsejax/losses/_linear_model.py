"""Losses of a linear model, from functions of its predictions."""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float, as_intercept, as_positive, as_weights, check_bool, check_params
from sparsejax._core.linalg import across, along, eps_of, opaque, safe_divide, safe_sqrt
from sparsejax._core.matrices.products import Products
from sparsejax._core.matrices.sparse import Sparse, as_matrix, columns_at, divided
from sparsejax._core.matrices.streamed import Chunked
from sparsejax.losses._base import Facts, InUnits, Loss, Predictions
from sparsejax.losses._curvature import of_columns
from sparsejax.losses._intercept import balance
from sparsejax.losses._quadratic_model import QuadraticModel
from sparsejax.losses._sizes import Sizes, sizes_of
from sparsejax.losses._units import Units, power_of_two, row_units

BASE_LEAVES, BASE_STATIC = ("X", "Y", "scale", "weights"), ("has_intercept",)
# What says what a loss is: of a class that is complete they are replaced together.
FUNCTION = ("entries", "derivatives", "curvature", "divergence")
FLATTEST = 1e-3  # of the first derivative: the second is at least this share of it in a quadratic model
HOOKS = (*FUNCTION, "dual_scaling", "quadratic_model", "in_units", "mean")
ALWAYS = frozenset(("shape", "quadratic model", "data", "predictions", "columns", "units"))  # groups
GROUPS_OF = {"divergence": ("dual", "free features"), "dual_scaling": ("dual",)}  # by hook


class LinearModelLoss(Loss):
    r"""``scale * sum_ij weights_ij phi(h_ij; y_ij)`` of ``H = XW + b``: the protocol, from functions of H.

    A subclass defines, all elementwise and without scale and weights,

    * ``entries(H)``: :math:`\phi`, the shape of H; required;
    * ``derivatives(H)``: the first and the second derivative in h; required;
    * ``curvature``: a bound of the second derivative, a number or an attribute of shape (); without it there
      is no `sparsejax.admm`;
    * ``divergence(H, first, change)``: :math:`\phi(h) + \phi^*(u) - uh \ge 0` with ``u = first + change``,
      inf where u is outside the domain of the conjugate; without it there is no gap with norms;
    * ``reach``: a best intercept lies within ``max|h| + reach``; without it there is no ``intercept=True``;
    * ``check_targets()``: raise for a Y that does not suit;
    * ``mean(H)``: what is expected of Y at H, if that is not H itself, as a probability or a rate.

    Everything else is inherited. ``class C(LinearModelLoss, leaves=("delta",))`` has the leaves X, Y, scale,
    weights and its own. With ``intercept=True`` the loss is
    :math:`f(W) = \min_b \ell(XW + \mathbf 1 b^\top)`.

    Args:
      X: (n, d), float32 or float64; integers and booleans are converted to the default float. Its
        dtype is that of the whole solve. A matrix of scipy.sparse, BCOO or BCSR stays sparse, see the guide.
        An array on several devices or processes stays there: docs/many-devices.md.
      Y: (n, k), or (n,) for a vector W; converted to the dtype of X.
      scale: > 0, shape (); default ``1/n``, n the number of rows of X whatever the weights.
      weights: None (all one), (n,) by row, or Y's shape by entry, >= 0; 0 leaves the entry out.
      intercept: fit an unpenalised b, by a safeguarded Newton iteration for each column.

    Raises:
      TypeError, ValueError: wrong rank, length or dtype, NaN or inf, empty data, a negative weight; for a
        class: as `sparsejax.Loss`.

    >>> import jax.numpy as jnp, numpy as np, sparsejax as sj
    >>> class Half(sj.losses.LinearModelLoss):
    ...     entries = lambda self, H: (H - self.Y) ** 2 / 2
    ...     derivatives = lambda self, H: (H - self.Y, jnp.ones_like(H))
    >>> float(Half(np.eye(4, 3), np.ones(4))(np.zeros(3)))
    0.5
    """

    _adapter: ClassVar[bool] = True
    _stated: ClassVar[frozenset[str]] = frozenset()  # groups
    curvature: Any = None
    reach: Any = None

    X: Any  # an array, or `Products`
    Y: jax.Array
    scale: jax.Array
    weights: jax.Array | None
    has_intercept: bool

    def __init_subclass__(
        cls, *, leaves: Sequence[str] = (), static: Sequence[str] = (), **options: Any
    ) -> None:
        extra, extra_static = ((x,) if isinstance(x, str) else tuple(x) for x in (leaves, static))
        cls._hooks_checked()
        super().__init_subclass__(
            leaves=(*BASE_LEAVES, *extra), static=(*BASE_STATIC, *extra_static), **options
        )
        stated = [hook for hook in GROUPS_OF if cls._provider(hook) not in (Loss, LinearModelLoss)]
        cls._stated = ALWAYS.union(*(GROUPS_OF[hook] for hook in stated))

    @classmethod
    def _hooks_checked(cls) -> None:
        own = vars(cls)
        if "__call__" in own or own.get("_adapter", False):
            return
        missing = [name for name in ("entries", "derivatives") if cls._provider(name) is LinearModelLoss]
        if missing:
            raise TypeError(f"{cls.__name__} must define {' and '.join(missing)}: see {cls._page}.")
        for parent in cls.__mro__[1:]:
            if not issubclass(parent, LinearModelLoss) or parent._adapter:
                continue
            given = [h for h in HOOKS if parent._provider(h) not in (None, Loss, LinearModelLoss)]
            kept = [h for h in given if cls._provider(h) is parent._provider(h)]
            if kept and len(kept) < len(given):
                raise TypeError(
                    f"{cls.__name__} replaces some of {', '.join(given)} of {parent.__name__} but keeps "
                    f"{', '.join(kept)}, which would no longer be true: see {cls._page}."
                )

    def __init__(
        self,
        X: Any,
        Y: ArrayLike,
        *,
        scale: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        intercept: bool = False,
    ):
        X = as_matrix("X", X)
        Y = as_float("Y", Y, (1, 2), X.dtype)
        n, d = X.shape
        if n == 0 or d == 0:
            raise ValueError(f"X is empty: its shape is {X.shape}.")
        if Y.shape[0] != n:
            raise ValueError(f"X has {n} rows and Y has {Y.shape[0]}; they must agree.")
        if Y.ndim == 2 and Y.shape[1] == 0:
            raise ValueError("Y has no columns.")
        scale = as_positive("scale", self._default_scale(n) if scale is None else scale, X.dtype)
        if weights is not None:
            weights = as_weights(weights, Y)
        check_bool("intercept", intercept)
        self._set(X=X, Y=Y, scale=scale, weights=weights, has_intercept=bool(intercept))
        if intercept and self.reach is None:
            raise ValueError(f"{type(self).__name__} does not fit an intercept: it states no reach.")
        self.check_targets()

    # ------------------------------------------------------------------ what a subclass says

    def _default_scale(self, n: int) -> float:
        return 1 / n

    def check_targets(self) -> None:
        """Raise for a Y that does not suit."""

    def mean(self, H: jax.Array) -> jax.Array:
        """What is expected of Y: H."""
        return H

    def entries(self, H: jax.Array) -> jax.Array:
        """The loss of each entry, without scale and weights."""
        raise NotImplementedError

    def derivatives(self, H: jax.Array) -> tuple[jax.Array, jax.Array]:
        """First and second derivative in h of each entry of the loss, without scale and weight."""
        raise NotImplementedError

    def divergence(self, H: jax.Array, first: jax.Array, change: jax.Array) -> jax.Array:
        """``phi(h) + phi*(u) - u h`` of each entry, u = first + change, without scale and weight."""
        raise NotImplementedError

    # ------------------------------------------------------------------ the protocol

    @property
    def provides(self) -> frozenset[str]:
        """Everything, as far as the hooks are given."""
        return self._stated - self.X.lacks if isinstance(self.X, Products) else self._stated

    @property
    def params_shape(self) -> tuple[int, ...]:
        """Shape of W: (d, k), or (d,) for a vector target."""
        return (self.X.shape[-1], *self.Y.shape[1:])

    @property
    def dtype(self) -> Any:
        """dtype of the work: that of X."""
        return self.X.dtype

    def quadratic_model(self) -> QuadraticModel:
        """By the second derivatives in H; of X in memory also a bound of them and least squares."""
        X = self.X
        in_memory = not isinstance(X, Products)
        return QuadraticModel(
            majorizer=self._majorizer if in_memory and self.curvature is not None else None,
            hessian=None if isinstance(X, Sparse) else self._hessian,
            separable=True,
            least_squares_at=self._least_squares_at if in_memory else None,
            num_rows=int(X.shape[-2]),
            column_sizes=(lambda: (X.sizes, X.room)) if isinstance(X, Sparse) else None,
            sizes=lambda: sizes_of(X),
            rereads=isinstance(X, Chunked),
        )

    def __call__(self, W: jax.Array) -> jax.Array:
        return self._value(self._predict(W))

    def intercept(self, W: jax.Array) -> jax.Array:
        """The best intercept b at W, shape (k,) or () for a vector target; 0 if none is fitted."""
        check_params(W, self.params_shape)
        if not self.has_intercept:
            return jnp.zeros(self.Y.shape[1:], self.dtype)
        return self._best_intercept(self.X @ W)[0]

    def reweighted(self, weights: jax.Array) -> Self:
        """The same loss with other weights, not checked."""
        return self._replace(weights=weights)

    def evaluate(self, W: jax.Array, intercept: ArrayLike = 0.0) -> jax.Array:
        """The loss of W with this intercept, (k,) or (), in place of the best: for rows held out of a fit."""
        return self._value(self.predictions(W, intercept).linear)

    def predictions(self, W: jax.Array, intercept: ArrayLike = 0.0) -> Predictions:
        """Y, XW + b and what is expected of Y there."""
        check_params(W, self.params_shape)
        b = as_intercept(intercept, self.Y.shape[1:], self.dtype)
        H = self.X @ as_float("W", W, (1, 2), self.dtype) + b[None]
        return Predictions(self.Y, H, self.mean(H))

    def _majorizer(self) -> jax.Array:
        """A (n, d), ``sqrt(scale * curvature * weights)`` times X, centred if an intercept is fitted."""
        w, X = self._weights(), self.X
        w = jnp.broadcast_to(jnp.max(w.reshape(w.shape[0], -1), axis=1), (X.shape[0],))
        if self.has_intercept:
            X = X - safe_divide(w @ X, jnp.sum(w))[None]
        # Where a user's jit has made X a constant, XLA would fold products of A for minutes.
        return opaque(jnp.sqrt(self.curvature * self.scale * w)[:, None] * X)

    def dual_scaling(
        self, W: jax.Array, limit: jax.Array, H: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        r"""``s = min(limit, 1)`` and the change of the conjugate.

        :math:`\ell^*(sU) - \ell^*(U) = \sum w\,[D(h, s\phi') + (s - 1)\,\phi' h]` with the divergence D, and
        :math:`w` the weights times the scale.
        """
        H = self._predict(W) if H is None else H
        s = jnp.minimum(limit, 1)
        first = self.derivatives(H)[0]
        change = self.divergence(H, first, (s - 1) * first) + (s - 1) * first * H
        return s, self.scale * jnp.sum(self._weights() * change)

    def unpenalised_basis(self, free: jax.Array) -> jax.Array | None:
        """Orthonormal columns (n, r) that span X[:, free] and the intercept, where weights are not 0.

        None where weights are by entry, so that each column would need its own.
        """
        w = self._weights()
        if w.ndim > 1 and w.shape[1] > 1:
            return None
        F = along(self.X, free)
        if self.has_intercept:
            F = jnp.concatenate([jnp.ones((F.shape[0], 1), F.dtype), F], axis=1)
        U, sizes, _ = jnp.linalg.svd(jnp.where(w.reshape(-1, 1) > 0, F, 0), full_matrices=False)
        keep = sizes > max(F.shape) * eps_of(F) * sizes[0]
        return jnp.where(keep[None], U, 0)

    def dual_projection(
        self, W: jax.Array, basis: jax.Array, H: jax.Array | None = None, s: jax.Array | float = 1.0
    ) -> tuple[jax.Array, jax.Array]:
        r"""``X' dU`` and the divergence, for dU that makes ``U + dU`` orthogonal to the basis, times s.

        The divergence is :math:`\ell(H) + \ell^*(U + dU) - \langle U + dU, H\rangle \ge 0` at ``H = XW + b``,
        where :math:`U = \nabla\ell(H)`; infinite where U + dU is outside the domain of the conjugate. That
        lasts while dU exceeds a probability close to 0 or 1: where unpenalised features nearly separate a
        label, there may never be a certificate.
        """
        H = self._predict(W) if H is None else H
        w = jnp.broadcast_to(self.scale * self._weights(), H.shape)
        first = self.derivatives(H)[0]
        dU = -(basis @ (basis.T @ (w * first)))
        change = s * safe_divide(dU, w) + (s - 1) * first
        dU = w * change
        return self.X.T @ dU, jnp.sum(jnp.where(w > 0, w * self.divergence(H, first, change), 0))

    def facts(self, W: jax.Array, sizes: Sizes | None = None) -> Facts:
        """With the predictions, found once: an intercept is a loop of its own."""
        H = self._predict(W)
        U = self.scale * self._weights() * self.derivatives(H)[0]  # a best intercept moves nothing
        return Facts(self._value(H), self._gradient(U), self._rounding(H, W, sizes), None, H)

    def _gradient(self, U: jax.Array) -> jax.Array:
        """X'U; by differentiation the product with X' would be slow where X is wide."""
        if isinstance(self.X, Products):
            return self.X.T @ U
        return U @ self.X if U.ndim == 1 else opaque(across(U, self.X)).T

    def _rounding(self, H: jax.Array, W: jax.Array, sizes: Sizes | None) -> jax.Array:
        """From the rounding of H = XW, to second order; huge where large terms cancel in H."""
        sizes = sizes_of(self.X) if sizes is None else sizes
        lengths = safe_sqrt(sizes.squares @ (W * W))
        reach = sizes.rows.reshape((-1,) + (1,) * lengths.ndim) * lengths[None]  # of XW
        (first, second), w = self.derivatives(H), self._weights()
        error, top = 2 * eps_of(H) * reach, second if self.curvature is None else self.curvature
        each = (2 * jnp.abs(first) + top / 2 * error) * error
        bound = jnp.sum(jnp.where(w > 0, w * each, 0))
        if self.has_intercept:
            # Slopes that do not quite sum to 0 tell the predictions from those without the intercept b.
            left = jnp.abs(self._left(jnp.where(w > 0, w * first, 0)))
            bound += jnp.sum(left * (jnp.min(jnp.abs(H) + reach, axis=0) + jnp.max(reach, axis=0)))
        return self.scale * bound

    def valid(self) -> jax.Array:
        """Scale > 0 and finite, no negative weight."""
        return (self.scale > 0) & (self.scale < jnp.inf) & jnp.all(self._weights() >= 0)

    def in_units(self) -> InUnits:
        """Scale times the sum of the weights near 1, where it is not of that order already."""
        sigma, gamma = self._unit_of_params(), self._unit_of_objective()
        return self._replace(scale=self.scale * gamma)._known_in(Units(sigma, gamma))

    def _known_in(self, units: Units) -> InUnits:
        """This loss as one that is in these units already."""
        if isinstance(self.X, Chunked):
            return InUnits(self, units)
        return InUnits(self, units, self._row_units, self._rescaled)

    def _least_squares_at(self, W: jax.Array, H: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
        """By the second derivatives at XW + b, at least `FLATTEST` times the first, with b eliminated."""
        H = self._predict(W) if H is None else H
        first, second = (x.reshape(-1, 1) for x in self.derivatives(H))
        w = jnp.broadcast_to(self.scale * self._weights(), H.shape).reshape(-1, 1)
        curved = w * jnp.maximum(second, FLATTEST * jnp.abs(first))
        X = self.X
        if self.has_intercept:
            X = X - safe_divide(curved[:, 0] @ X, jnp.sum(curved))[None]
        A = (root := jnp.sqrt(curved)) * X
        return A, A @ W.reshape(-1, 1) - safe_divide(w * first, root)

    def _hessian(self, W: jax.Array, H: jax.Array | None) -> jax.Array:
        """A block a column, (k, d, d), or for n < d its root, (k, n, d); b eliminated."""
        second = self.derivatives(self._predict(W) if H is None else H)[1]
        curved = (self.scale * self._weights() * second).reshape(self.X.shape[0], -1)
        if isinstance(self.X, Chunked):
            return self.X.gram(curved, centred=self.has_intercept)
        return of_columns(self.X, curved, self.has_intercept)

    def columns_at(self, ix: jax.Array) -> Self:
        """The same loss of these columns of X."""
        return self._replace(X=columns_at(self.X, ix))

    def _row_units(self) -> jax.Array:
        """By the deviations of each column of X from its mean, or without an intercept from 0."""
        return row_units(lax.stop_gradient(self.X), centred=self.has_intercept)

    def _rescaled(self, units: jax.Array) -> Self:
        """Columns of X divided by the units."""
        return self._replace(X=divided(self.X, units))

    # ------------------------------------------------------------------ within

    def _unit_of_params(self) -> jax.Array:
        return jnp.ones((), self.dtype)

    def _unit_of_objective(self) -> jax.Array:
        w = self._weights()
        total = self.scale * jnp.sum(w) * (self.X.shape[0] / w.shape[0])
        return 1 / power_of_two(lax.stop_gradient(total))

    def _left(self, slopes: jax.Array) -> jax.Array:
        return jnp.sum(slopes, axis=0)

    def _weights(self) -> jax.Array:
        """Weights broadcastable to Y."""
        if self.weights is None:
            return jnp.ones((1,) * self.Y.ndim, self.dtype)
        extra = self.Y.ndim - self.weights.ndim
        return self.weights.reshape(self.weights.shape + (1,) * extra)

    def _predict(self, W: jax.Array) -> jax.Array:
        check_params(W, self.params_shape)
        H: jax.Array = self.X @ W
        return H + self._best_intercept(H) if self.has_intercept else H

    def _value(self, H: jax.Array) -> jax.Array:
        return self.scale * jnp.sum(self._weights() * self.entries(H))

    def _best_intercept(self, H: jax.Array) -> jax.Array:
        """A b at which the weighted derivatives of each column sum to 0, as a row."""
        b = lax.stop_gradient(balance(*lax.stop_gradient((self, H))))
        # One more Newton step, this time differentiated: it moves nothing and has the derivative
        # db/dW of the root, so that second derivatives of the loss are right too.
        value, slope = self.imbalance(b, H)
        root: jax.Array = b - safe_divide(value, lax.stop_gradient(slope))
        return root[None]

    def imbalance(self, b: jax.Array, H: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The derivative in b of the weighted loss of each column, and its slope."""
        first, second = self.derivatives(H + b[None])
        w = self._weights()
        return jnp.sum(w * first, axis=0), jnp.sum(w * second, axis=0)
