"""Base of the losses of a linear model: a subclass gives functions of the predictions H = XW + b."""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float, as_intercept, as_positive, as_weights, check_bool, check_params
from sparsejax._core.linalg import across, eps_of, opaque, safe_divide, safe_sqrt
from sparsejax._core.matrices.products import Products
from sparsejax._core.matrices.sparse import Sparse, as_matrix, columns_at, divided
from sparsejax._core.matrices.streamed import Chunked
from sparsejax.losses._base import Facts, InUnits, Loss, Pair, Predictions
from sparsejax.losses._curvature import centred, of_columns
from sparsejax.losses._free_features import basis_of, newton_change, projected
from sparsejax.losses._intercept import best_intercept
from sparsejax.losses._quadratic_model import QuadraticModel
from sparsejax.losses._sizes import Sizes, sizes_of, trace_of
from sparsejax.losses._units import Units, power_of_two, row_units

BASE_LEAVES, BASE_STATIC = ("X", "Y", "scale", "weights"), ("has_intercept",)
FUNCTION_HOOKS = ("entries", "derivatives", "curvature", "divergence", "mean", "reach", "_best_intercept")
FLATTEST = 1e-3  # least second derivative of a quadratic model, over |first derivative|, up to `curvature`
# A subclass of a complete class replaces all of these hooks that the class defines, or none.
HOOKS = (*FUNCTION_HOOKS, "dual_scaling", "dual_projection", "facts", "quadratic_model", "in_units")
# The groups of the protocol that every subclass has, and the groups that come with a hook.
ALWAYS_PROVIDED = frozenset(("shape", "quadratic model", "data", "predictions", "columns", "units"))
GROUPS_OF_HOOK = {"divergence": ("dual", "free features"), "dual_scaling": ("dual",)}


class LinearModelLoss(Loss):
    r"""``scale * sum_ij weights_ij phi(h_ij; y_ij)`` of ``H = XW + b``, for any phi that a subclass defines.

    A subclass defines these hooks, which work on each entry of H and leave out scale and weights:

    * ``entries(H)``: :math:`\phi`, shape of H; required;
    * ``derivatives(H)``: the first and the second derivative of phi in h; required;
    * ``curvature``: an upper bound on the second derivative, shape (); `sparsejax.admm` needs one;
    * ``divergence(H, first, change)``: :math:`\phi(h) + \phi^*(u) - uh \ge 0`, u = first + change, inf where
      :math:`\phi^*(u)` is infinite; without it there is no gap where the penalty is a norm;
    * ``reach``: a best intercept has ``|b| <= max|XW| + reach``; without it ``intercept=True`` is an error;
    * ``check_targets()``: raise for a Y that phi does not allow;
    * ``mean(H)``: the expected value of Y at H, such as a probability or a rate; the default is H.

    All other methods are inherited. ``class C(LinearModelLoss, leaves=("delta",))`` has the leaves X, Y,
    scale, weights and delta. With ``intercept=True`` the loss is
    :math:`f(W) = \min_b \ell(XW + \mathbf 1 b^\top)`.

    Args:
      X: (n, d), float32 or float64; integers and booleans are converted to the default float. The dtype of X
        is the dtype of the whole solve. A matrix of scipy.sparse, BCOO or BCSR stays sparse, see the guide.
        An array on several devices or processes stays there: docs/many-devices.md.
      Y: (n, k), or (n,) for a vector W; converted to the dtype of X.
      scale: > 0, shape (); default ``1/n``, n the number of rows of X whatever the weights.
      weights: None (all one), (n,) by row, or Y's shape by entry, >= 0; 0 leaves the entry out.
      intercept: fit an unpenalised b, by a safeguarded Newton iteration for each column.

    Raises:
      TypeError, ValueError: wrong rank, length or dtype, NaN or inf, empty data, a negative weight; when a
        class is made: as `sparsejax.Loss`.

    >>> import jax.numpy as jnp, numpy as np, sparsejax as sj
    >>> class Half(sj.losses.LinearModelLoss):
    ...     entries = lambda self, H: (H - self.Y) ** 2 / 2
    ...     derivatives = lambda self, H: (H - self.Y, jnp.ones_like(H))
    >>> float(Half(np.eye(4, 3), np.ones(4))(np.zeros(3)))
    0.5
    """

    _adapter: ClassVar[bool] = True
    _stated: ClassVar[frozenset[str]] = frozenset()  # the groups of the protocol that the class has
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
        cls._check_hooks()
        super().__init_subclass__(
            leaves=(*BASE_LEAVES, *extra), static=(*BASE_STATIC, *extra_static), **options
        )
        if "__call__" in vars(cls):
            cls._check_replaced(LinearModelLoss)
        stated = [hook for hook in GROUPS_OF_HOOK if cls._provider(hook) not in (Loss, LinearModelLoss)]
        cls._stated = ALWAYS_PROVIDED.union(*(GROUPS_OF_HOOK[hook] for hook in stated))

    @classmethod
    def _check_hooks(cls) -> None:
        """Raise if a required hook is missing, or if hooks of a complete parent are replaced in part."""
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
            inherited = [h for h in given if cls._provider(h) is parent._provider(h)]
            if inherited and len(inherited) < len(given):
                raise TypeError(
                    f"{cls.__name__} replaces some of {', '.join(given)} of {parent.__name__} but keeps "
                    f"{', '.join(inherited)}, which would no longer be true: replace them too, or inherit "
                    f"from sparsejax.losses.LinearModelLoss; see {cls._page}."
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
        if intercept and type(self).reach is None:
            raise ValueError(f"{type(self).__name__} does not fit an intercept: it states no reach.")
        self.check_targets()

    # ---- hooks of a subclass
    def _default_scale(self, n: int) -> float:
        return 1 / n

    def check_targets(self) -> None:
        """Raise for a Y that phi does not allow; here every finite Y is allowed."""

    def mean(self, H: jax.Array) -> jax.Array:
        """The expected value of Y at H; here H."""
        return H

    def entries(self, H: jax.Array) -> jax.Array:
        """The loss of each entry, without scale and weights."""
        raise NotImplementedError

    def derivatives(self, H: jax.Array) -> Pair:
        """First and second derivative in h of each entry of the loss, without scale and weight."""
        raise NotImplementedError

    def divergence(self, H: jax.Array, first: jax.Array, change: jax.Array) -> jax.Array:
        """``phi(h) + phi*(u) - u h`` of each entry, u = first + change, without scale and weight."""
        raise NotImplementedError

    # ------------------------------------------------------------------ the protocol

    @property
    def provides(self) -> frozenset[str]:
        """The groups that follow from the hooks of the class, less those that sparse or streamed X lack."""
        return self._stated - self.X.lacks if isinstance(self.X, Products) else self._stated

    @property
    def params_shape(self) -> tuple[int, ...]:
        """Shape of W: (d, k), or (d,) for a vector target."""
        return (self.X.shape[-1], *self.Y.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        """dtype of X, in which everything is computed."""
        return self.X.dtype

    def quadratic_model(self) -> QuadraticModel:
        """The Hessian unless X is sparse; for X an array also a majorizer and ``least_squares_at``."""
        X = self.X
        is_array, plain = not isinstance(X, Products), self.weights is None and not self.has_intercept
        return QuadraticModel(
            majorizer=self._majorizer if is_array and self.curvature is not None else None,
            hessian=None if isinstance(X, Sparse) else self._hessian,
            separable=True,
            least_squares_at=self._least_squares_at if is_array else None,
            num_rows=int(X.shape[-2]),
            column_sizes=(lambda: (X.sizes, X.room)) if isinstance(X, Sparse) else None,
            trace=trace_of(X, self.curvature, self.scale) if plain else None,
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
        """The same loss with other weights, which are not checked."""
        return self._replace(weights=weights)

    def evaluate(self, W: jax.Array, intercept: ArrayLike = 0.0) -> jax.Array:
        """The value at W with this intercept, (k,) or (), in place of the best one: for rows held out."""
        return self._value(self.predictions(W, intercept).linear)

    def predictions(self, W: jax.Array, intercept: ArrayLike = 0.0) -> Predictions:
        """Y, H = XW + b with the intercept given, and the expected value of Y at H."""
        check_params(W, self.params_shape)
        b = as_intercept(intercept, self.Y.shape[1:], self.dtype)
        H = self.X @ as_float("W", W, (1, 2), self.dtype) + b[None]
        return Predictions(self.Y, H, self.mean(H))

    def _majorizer(self) -> jax.Array:
        """A (n, d): X, centred for an intercept, times the root of scale * curvature * the row's weight."""
        w, X = self._weights(), self.X
        w = jnp.broadcast_to(jnp.max(w.reshape(w.shape[0], -1), axis=1), (X.shape[0],))
        if self.has_intercept:
            X = centred(X, w)
        # If X is a constant of a user's jit, XLA would spend minutes on constant folding of products of A.
        return opaque(jnp.sqrt(self.curvature * self.scale * w)[:, None] * X)

    def dual_scaling(self, W: jax.Array, limit: jax.Array, H: jax.Array | None = None) -> Pair:
        r"""``s = min(limit, 1)`` and the change :math:`\ell^*(sU) - \ell^*(U)` of the conjugate.

        :math:`\ell^*(sU) - \ell^*(U) = \sum w\,[D(h, s\phi') + (s - 1)\,\phi' h]`, where :math:`D(h, u)` is
        the divergence of h and u, and :math:`w` the weights times the scale.
        """
        H = self._predict(W) if H is None else H
        s = jnp.minimum(limit, 1)
        first, w = self.derivatives(H)[0], self._weights()
        change = self.divergence(H, first, (s - 1) * first) + (s - 1) * first * H
        return s, self.scale * jnp.sum(jnp.where(w > 0, w * change, 0))

    def unpenalised_basis(self, free: jax.Array) -> jax.Array | None:
        """Orthonormal columns (n, r) that span X[:, free] and the intercept, where weights are not 0.

        A basis for each column of Y, (k, n, r), if weights are by entry or ``free`` is by column, (k, f).
        """
        k = self.Y.shape[1] if self.Y.ndim > 1 else 1
        return basis_of(self.X, free, self._weights(), k, self.has_intercept)

    def dual_projection(
        self, W: jax.Array, basis: jax.Array, H: jax.Array | None = None, s: jax.Array | float = 1.0
    ) -> Pair:
        r"""``X' dU`` and the divergence, where ``U + dU`` is s times U projected orthogonal to the basis.

        With ``H = XW + b`` and :math:`U = \nabla\ell(H)` the divergence is
        :math:`\ell(H) + \ell^*(U + dU) - \langle U + dU, H\rangle \ge 0`. It is infinite where U + dU is
        outside the domain of the conjugate. The shortest change (`_off_basis`) may leave the domain, as where
        a probability is close to 0 or 1. The change in the metric of the second derivatives
        (`_off_basis_by_curvature`) is small there. The change with less divergence at s = 1 counts.
        """
        H = self._predict(W) if H is None else H
        w, first = jnp.broadcast_to(self.scale * self._weights(), H.shape), self.derivatives(H)[0]
        excess = lambda change: jnp.sum(jnp.where(w > 0, w * self.divergence(H, first, change), 0))
        dU, curved = self._off_basis(first, w, basis), self._off_basis_by_curvature(H, w, basis)
        dU = jnp.where(excess(curved) < excess(dU), curved, dU)
        # Here dU is the change by the projection alone; in the docstring dU includes the factor s.
        change = s * dU + (s - 1) * first
        return self.X.T @ (w * change), excess(change)

    def _off_basis(self, first: jax.Array, w: jax.Array, basis: jax.Array) -> jax.Array:
        """What the projection orthogonal to the basis adds to U = w * first, per unit of weight."""
        return -safe_divide(projected(basis, w * first), w)

    def _off_basis_by_curvature(self, H: jax.Array, w: jax.Array, basis: jax.Array) -> jax.Array:
        """Same as `_off_basis`, in the metric of the second derivatives: a Newton step in free features."""
        first, second = self.derivatives(H)
        return -second * newton_change(basis, w * first, w * second)

    def facts(self, W: jax.Array, sizes: Sizes | None = None) -> Facts:
        """Facts at W with the predictions, so that the loop for the best intercept runs once."""
        H = self._predict(W)
        # f'(W) = X'U: the derivative of the best intercept does not count (envelope theorem).
        U = self.scale * self._weights() * self.derivatives(H)[0]
        return Facts(self._value(H), self._gradient(U), self._rounding(H, W, sizes), None, H)

    def _gradient(self, U: jax.Array) -> jax.Array:
        """X'U, in a form that is faster for a wide X than the one that differentiation gives."""
        if isinstance(self.X, Products):
            return self.X.T @ U
        return U @ self.X if U.ndim == 1 else opaque(across(U, self.X)).T

    def _rounding(self, H: jax.Array, W: jax.Array, sizes: Sizes | None) -> jax.Array:
        """A bound, to second order, on the error of the value by rounding of H; huge if terms cancel in H."""
        sizes = sizes_of(self.X) if sizes is None else sizes
        lengths = safe_sqrt(sizes.squares @ (W * W))
        # Each entry is at least sum_l |x_il w_lj|, see `Sizes`; w_j is column j of W.
        reach = sizes.scaled_row_norms.reshape((-1,) + (1,) * lengths.ndim) * lengths[None]
        (first, second), w = self.derivatives(H), self._weights()
        error, top = 2 * eps_of(H) * reach, second if self.curvature is None else self.curvature
        each = (2 * jnp.abs(first) + top / 2 * error) * error
        bound = jnp.sum(jnp.where(w > 0, w * each, 0))
        if self.has_intercept:
            # At the exact best intercept the slopes sum to 0. The error is their sum times a bound on |b|.
            left = jnp.abs(self._slope_sums(jnp.where(w > 0, w * first, 0)))
            bound += jnp.sum(left * (jnp.min(jnp.abs(H) + reach, axis=0) + jnp.max(reach, axis=0)))
        return self.scale * bound

    def valid(self) -> jax.Array:
        """() boolean: the scale is > 0 and finite, no weight is negative."""
        return (self.scale > 0) & (self.scale < jnp.inf) & jnp.all(self._weights() >= 0)

    def in_units(self) -> InUnits:
        """The loss with scale times the sum of the weights near 1, if that is very small or very large."""
        sigma, gamma = self._unit_of_params(), self._unit_of_objective()
        return self._replace(scale=self.scale * gamma)._known_in(Units(sigma, gamma))

    def _known_in(self, units: Units) -> InUnits:
        """This loss, which is in the given units already, as `InUnits`."""
        if isinstance(self.X, Chunked):
            return InUnits(self, units)
        return InUnits(self, units, self._row_units, self._rescaled)

    def _least_squares_at(self, W: jax.Array, H: jax.Array | None = None) -> Pair:
        """(A, B) of `QuadraticModel`, b eliminated; A by the second derivatives of `_model_curvature`."""
        H = self._predict(W) if H is None else H
        first, second = self.derivatives(H)
        w = jnp.broadcast_to(self.scale * self._weights(), H.shape).reshape(-1, 1)
        curved = w * self._model_curvature(H, first, second).reshape(-1, 1)
        X = self.X
        if self.has_intercept:
            X = centred(X, curved[:, 0])
        A = (root := jnp.sqrt(curved)) * X
        return A, A @ W.reshape(-1, 1) - safe_divide(w * first.reshape(-1, 1), root)

    def _model_curvature(self, H: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
        """Second derivatives of a quadratic model: at least `FLATTEST` |first|, or the bound if less."""
        bound = jnp.inf if self.curvature is None else self.curvature
        return jnp.maximum(second, jnp.minimum(FLATTEST * jnp.abs(first), bound))

    def _hessian(self, W: jax.Array, H: jax.Array | None) -> jax.Array:
        """A block for each column of W, (k, d, d), or for n < d a root of it, (k, n, d); b is eliminated."""
        second = self.derivatives(self._predict(W) if H is None else H)[1]
        curved = (self.scale * self._weights() * second).reshape(self.X.shape[0], -1)
        if isinstance(self.X, Chunked):
            return self.X.gram(curved, centred=self.has_intercept)
        return of_columns(self.X, curved, self.has_intercept)

    def columns_at(self, ix: jax.Array) -> Self:
        """The same loss with these columns of X only."""
        return self._replace(X=columns_at(self.X, ix))

    def _row_units(self) -> jax.Array:
        """Units (d,) by the size of each column of X, about its mean or, without an intercept, about 0."""
        return row_units(lax.stop_gradient(self.X), centred=self.has_intercept)

    def _rescaled(self, units: jax.Array) -> Self:
        """The loss of V = W * units: each column of X is divided by its unit."""
        return self._replace(X=divided(self.X, units))

    def _unit_of_params(self) -> jax.Array:
        return jnp.ones((), self.dtype)

    def _unit_of_objective(self) -> jax.Array:
        w = self._weights()
        total = self.scale * jnp.sum(w) * (self.X.shape[0] / w.shape[0])
        return 1 / power_of_two(lax.stop_gradient(total))

    def _slope_sums(self, slopes: jax.Array) -> jax.Array:
        """The sum of weighted slopes (n, k) in each column, which is 0 at the best intercept."""
        return jnp.sum(slopes, axis=0)

    def _weights(self) -> jax.Array:
        """Weights, with as many dimensions as Y."""
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
        """An intercept at which the weighted derivatives of each column sum to 0, (1, k) or (1,)."""
        return best_intercept(self, H)[None]

    def imbalance(self, b: jax.Array, H: jax.Array) -> Pair:
        """First and second derivative in b of the weighted loss of each column, each of shape (k,) or ()."""
        (first, second), w = self.derivatives(H + b[None]), self._weights()
        return jnp.sum(w * first, axis=0), jnp.sum(w * second, axis=0)
