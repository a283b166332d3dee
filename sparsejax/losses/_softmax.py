"""Multinomial logistic regression, with one column of Y for each class."""

import math
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsejax._core.checks import is_traced
from sparsejax._core.linalg import eps_of, safe_sqrt
from sparsejax._core.matrices.products import Products
from sparsejax._core.matrices.sharded import answer_of
from sparsejax._core.matrices.sparse import RowOrder, Sparse
from sparsejax.losses._curvature import by_products, of_classes
from sparsejax.losses._entropy import relative_entropy
from sparsejax.losses._free_features import by_column, coefficients
from sparsejax.losses._intercept import Classes, balance_classes, best_intercepts
from sparsejax.losses._linear_model import LinearModelLoss
from sparsejax.losses._quadratic_model import QuadraticModel
from sparsejax.losses._sizes import Sizes

HESSIAN_COLUMNS_AT_ONCE = 16  # columns of a Hessian that are computed at once by Hessian-vector products
MAX_FREE_UNKNOWNS = 256  # up to this number of free features times classes, projections use the curvature
MAX_SUM_ERROR = 16  # in units of k eps: if changes have a larger sum, the new probabilities do not sum to 1


class Near(NamedTuple):
    """A softmax loss with an intercept near the best one."""

    value: jax.Array  # ()
    slopes: jax.Array  # (n, k), derivative of the value in the predictions
    b: jax.Array  # (k,), the intercept
    H: jax.Array  # (n, k), predictions with the intercept


class SoftmaxLoss(LinearModelLoss):
    r"""Multinomial logistic regression, ``scale * sum_i weights_i [logsumexp(h_i) - <y_i, h_i>]``.

    ``H = XW + b``, one column a class. The target of a row is one class, or a distribution over the classes.
    For labels that do not exclude each other use `LogisticLoss`.

    Args:
      X: (n, d), as for `SquaredLoss`.
      Y: (n, k), k >= 2, each row one-hot or probabilities: >= 0, with the sum 1 within 10 eps k.
      scale: > 0, shape (); default ``1/n``.
      weights: None or (n,) by row, >= 0.
      intercept: fit an unpenalised b, by Newton's method for all classes at once. A constant added to all
        entries of b changes nothing, so that b is chosen to sum to 0. Under jit, as in a fold, a class that
        no row has gets an intercept at which its probability underflows to 0, and the other entries sum to 0.

    Raises:
      TypeError, ValueError: as `SquaredLoss`; Y that is not as above; weights by entry; with ``intercept``,
        a class that no row of weight > 0 has, whose best intercept is minus infinity.
    Source: Boehning, Annals of the Institute of Statistical Mathematics 44, 1992, for the bound 1/2 on the
      curvature.

    >>> import jax, jax.numpy as jnp, sparsejax as sj
    >>> classes = jnp.array([0, 1, 2, 0])
    >>> loss = sj.losses.SoftmaxLoss(jnp.eye(4), jax.nn.one_hot(classes, 3), intercept=True)
    >>> p = jax.nn.softmax(loss.intercept(jnp.zeros((4, 3))))
    >>> [round(float(x), 4) for x in p]
    [0.5, 0.25, 0.25]
    """

    curvature = 0.5
    reach = math.inf  # `balance_classes` needs no interval in which the intercepts lie

    def quadratic_model(self) -> QuadraticModel:
        """The model of a loss whose columns are not separable, without ``least_squares_at``."""
        model = super().quadratic_model()
        return model._replace(hessian=self._hessian, separable=False, least_squares_at=None)

    def row_order(self) -> RowOrder | None:
        """What `sparse_columns_at` needs besides the columns: the entries of a sparse X row by row."""
        return self.X.row_order() if isinstance(self.X, Sparse) else None

    def sparse_columns_at(self, ix: jax.Array, order: RowOrder | None) -> Self:
        """Same as ``columns_at``, but columns of a sparse X stay sparse, with room for all entries."""
        X = self.X
        if not isinstance(X, Sparse) or order is None:
            return self.columns_at(ix)
        return self._replace(X=X.sparse_columns_at(ix, order))

    def check_targets(self) -> None:
        """Raise unless rows are distributions and, with an intercept, every class has a row of weight > 0."""
        if self.Y.ndim != 2 or self.Y.shape[1] < 2:
            raise ValueError(
                f"Y has shape {self.Y.shape}; SoftmaxLoss needs a row of class probabilities for each row "
                "of X, (n, k) with k >= 2: of labels 0..k-1 that is jax.nn.one_hot(labels, k)."
            )
        if self.weights is not None and self.weights.ndim != 1:
            raise ValueError(
                f"weights has shape {self.weights.shape}; the classes of a row share one loss, so "
                f"SoftmaxLoss needs weights by row, {self.Y.shape[:1]}."
            )
        if is_traced(self.Y):
            return
        tol = 10 * eps_of(self.Y) * self.Y.shape[1]
        wrong, row, total, least = answer_of(_first_wrong, self.Y, tol=tol)
        if wrong:
            what = f"sums to {total:.17g}" if least >= 0 else f"has {least:g}"
            raise ValueError(
                f"row {row} of Y {what}; each row must be one-hot or probabilities: >= 0, with the sum 1."
            )
        if not self.has_intercept or is_traced(self.weights):
            return
        given = (self.Y,) if self.weights is None else (self.Y, self.weights)
        counts = answer_of(_counts, *given)
        absent = np.flatnonzero(counts == 0)
        if absent.size and counts.any():
            left = counts.size - absent.size
            which = "Y has one class only" if left == 1 else f"no row of Y has class {absent[0]}"
            where = "" if self.weights is None else ", among its rows of weight > 0"
            raise ValueError(
                f"{which}{where}, so the best intercept is infinite: drop the columns without a row, or use "
                "intercept=False."
            )

    def entries(self, H: jax.Array) -> jax.Array:
        """logsumexp(h) - <y, h> of each row, (n, 1)."""
        # The largest prediction is subtracted, so that nothing overflows and both parts are >= 0. The last
        # term is 0 where targets sum to 1; it counts in derivatives with respect to Y.
        top = lax.stop_gradient(jnp.max(H, axis=1, keepdims=True))
        H = H - top
        total = jnp.log(jnp.sum(jnp.exp(H), axis=1, keepdims=True))
        missing = 1 - jnp.sum(self.Y, axis=1, keepdims=True)
        return total - jnp.sum(self.Y * H, axis=1, keepdims=True) + missing * top

    def _hessian(self, W: jax.Array, H: jax.Array | None) -> jax.Array:
        """The Hessian of all classes together, (1, kd, kd)."""
        if isinstance(self.X, Products):
            return by_products(self, W, HESSIAN_COLUMNS_AT_ONCE)
        p = jax.nn.softmax(self._predict(W) if H is None else H, axis=1)
        w = jnp.broadcast_to(self.scale * self._weights()[:, 0], p.shape[:1])
        return of_classes(self.X, p, w, self.has_intercept)[None]

    def mean(self, H: jax.Array) -> jax.Array:
        """The probabilities of the classes, (n, k)."""
        return jax.nn.softmax(H, axis=1)

    def derivatives(self, H: jax.Array) -> tuple[jax.Array, jax.Array]:
        """p - y, with p = softmax(h), and the diagonal p (1 - p) of the second derivative."""
        p = jnp.exp(jax.nn.log_softmax(H, axis=1))  # bit for bit the p of `divergence`
        return p - self.Y, p * (1 - p)

    def divergence(self, H: jax.Array, first: jax.Array, change: jax.Array) -> jax.Array:
        """The Kullback-Leibler divergence of the probabilities ``p + change`` from p, one summand per class.

        It is infinite where the changes of a row do not sum to 0: the conjugate is infinite off the simplex.
        """
        sum_error = jnp.abs(jnp.sum(change, axis=1, keepdims=True))
        on_simplex = sum_error <= MAX_SUM_ERROR * H.shape[1] * eps_of(H)
        return jnp.where(on_simplex, relative_entropy(jax.nn.log_softmax(H, axis=1), change), jnp.inf)

    def unpenalised_basis(self, free: jax.Array) -> jax.Array | None:
        """Same as `LinearModelLoss.unpenalised_basis`; None for features that are free by class."""
        return None if by_column(free) else super().unpenalised_basis(free)

    def _off_basis(self, first: jax.Array, w: jax.Array, basis: jax.Array) -> jax.Array:
        """Same as `LinearModelLoss._off_basis`, minus the mean of each row: rows sum to 0 up to rounding."""
        change = super()._off_basis(first, w, basis)
        return change - jnp.mean(change, axis=1, keepdims=True)

    def _off_basis_by_curvature(self, H: jax.Array, w: jax.Array, basis: jax.Array) -> jax.Array:
        """Same as `LinearModelLoss._off_basis_by_curvature`, for the Hessian of all classes together."""
        r, k = basis.shape[1], H.shape[1]
        if r * k > MAX_FREE_UNKNOWNS:
            return jnp.full_like(H, jnp.nan)
        p, sums = self.mean(H), basis.T @ (w * self.derivatives(H)[0])
        c = coefficients(of_classes(basis, p, w[:, 0], False), sums.T.reshape(-1))
        step = basis @ c.reshape(k, r).T
        # Newton's step subtracts ``step`` from H; the Hessian of a row is diag(p) - pp'.
        return p * (jnp.sum(p * step, axis=1, keepdims=True) - step)

    def _classes(self, H: jax.Array) -> Classes:
        w = jnp.broadcast_to(self._weights()[:, 0], H.shape[:1])
        return Classes(H, w, w @ self.Y)

    def _best_intercept(self, H: jax.Array) -> jax.Array:
        classes = self._classes(H)
        b = best_intercepts(classes)
        away = lax.stop_gradient(self._absent(H, b))
        return jnp.where(classes.present, b, away)[None]

    def near_intercept(self, H: jax.Array) -> jax.Array:
        """The best intercept (k,) at predictions H (n, k) without one, a start for `near`."""
        if not self.has_intercept:
            return jnp.zeros_like(H[0])
        return balance_classes(self._classes(H))

    def near(self, H: jax.Array, b: jax.Array) -> Near:
        """The loss with an intercept that is one Newton step from b, and so nearer to the best than b.

        H (n, k) are predictions without intercept. The probabilities after the step are proportional to the
        probabilities at b times a factor for each class: one exponential of H gives the probabilities at b
        and after the step.
        """
        classes, step = self._classes(H), jnp.zeros_like(b)
        w, H = classes.w[:, None], H + jnp.where(classes.present, b, self._absent(H, b))[None]
        top = jnp.max(H, axis=1, keepdims=True)
        E = jnp.exp(H - top)
        total = jnp.sum(E, axis=1, keepdims=True)
        if self.has_intercept:
            step = classes.step(E * (safe_sqrt(w) / total))
            factor = jnp.exp(step)
            E, total = E * factor[None], (E @ factor)[:, None]
        # The formulas of `entries` and `derivatives`. The step adds <counts, step> to the sum of w <y, h>.
        missing = 1 - jnp.sum(self.Y, axis=1, keepdims=True)
        each = jnp.log(total) - jnp.sum(self.Y * (H - top), axis=1, keepdims=True) + missing * top
        value = jnp.sum(w * each) - classes.counts @ step
        slopes = (self.scale * w) * (E / total - self.Y)
        return Near(self.scale * value, slopes, b + step, H + step[None])

    def _absent(self, H: jax.Array, b: jax.Array) -> jax.Array:
        """An intercept so low that the probability of a class without a row underflows to exactly 0."""
        # Below every other prediction by this distance: e^-distance is less than half the least number > 0.
        distance = 2 - float(np.log(np.finfo(H.dtype).smallest_subnormal))
        return -(jnp.max(H) - jnp.min(H) + jnp.max(jnp.abs(b)) + distance)

    def _slope_sums(self, slopes: jax.Array) -> jax.Array:
        """The sum of slopes of each class minus the mean of the sums: equal shifts of b have no effect."""
        sums = jnp.sum(slopes, axis=0)
        return sums - jnp.mean(sums)

    def _rounding(self, H: jax.Array, W: jax.Array, sizes: Sizes | None) -> jax.Array:
        """The bound of the base class, plus a bound for an intercept that Newton's method left inexact."""
        error = super()._rounding(H, W, sizes)
        if not self.has_intercept:
            return error
        classes = self._classes(H)
        # The part of the gradient in b that exceeds rounding (64 eps of the weights), times a bound on the
        # distance to the best intercept: the range of the predictions, plus 40, beyond which a probability is
        # 0 or 1 up to rounding (e^-40 < eps).
        left = jnp.abs(classes.imbalance(jnp.zeros_like(H[0]))[0])
        beyond = jnp.maximum(left - 64 * eps_of(H) * jnp.sum(classes.counts), 0)
        far = jnp.where(classes.w[:, None] > 0, jnp.abs(H), 0)
        return error + self.scale * jnp.sum(beyond) * (40 + 2 * jnp.max(far))


def _first_wrong(xp: Any, y: Any, tol: float) -> tuple[Any, ...]:
    """Whether a row is no distribution, and the number, the sum and the least entry of the first such row."""
    wrong = (xp.abs(y.sum(axis=1) - 1) > tol) | (y < 0).any(axis=1)
    row = xp.argmax(wrong)
    return wrong[row], row, y[row].sum(), y[row].min()


def _counts(xp: Any, y: Any, weights: Any = None) -> Any:
    """The weight of each class, (k,); without weights the sum of its column of y."""
    return y.sum(axis=0) if weights is None else weights @ y
