r"""Smooth convex losses of a linear model, :math:`f(W) = \ell(XW)`.

A loss is a callable pytree: ``loss(W)`` is a scalar, its gradient is `jax.grad(loss)`, its data
are leaves, so it can be vmapped over folds and differentiated in X, Y and weights. With
``intercept=True`` it is :math:`f(W) = \min_b \ell(XW + \mathbf 1 b^\top)`: the unpenalised
intercept never appears among the parameters; ``loss.intercept(W)`` returns it.

Beyond its value a loss here knows two things that solvers and certificates use:

* ``majorizer()``: a matrix A with :math:`\nabla^2 f \preceq I_k \otimes A^\top A`; an equality if
  ``quadratic`` is True;
* ``dual_scaling(W, limit)``: with :math:`U = \nabla\ell(XW)`, the s with ``|s| <= limit`` that makes
  :math:`\ell^*(sU)` least, and :math:`\ell^*(sU) - \ell^*(U)` (see `problem.duality_gap`).

``loss + GraphLaplacian(similarity, strength)`` pulls the columns of similar labels together.

Any other callable pytree serves as a loss too, such as ``jax.tree_util.Partial(fun, *data)``;
solvers then do without these.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.scipy.special import xlogy
from jax.typing import ArrayLike

from sparsejax._pytree import Pytree, as_float, as_positive, check_labels, is_traced


class _LinearModelLoss(Pytree):
    """What the losses share: data, their checks, predictions, the fitted intercept."""

    X: jax.Array
    Y: jax.Array
    scale: jax.Array
    weights: jax.Array | None
    has_intercept: bool

    @property
    def quadratic(self) -> bool:
        """True if one matrix A'A (see ``majorizer``) is the Hessian of every column, everywhere."""
        return False

    def _init(self, X, Y, scale, default_scale, weights, intercept):
        X = as_float("X", X, (2,))
        Y = as_float("Y", Y, (1, 2), X.dtype)
        n, d = X.shape
        if n == 0 or d == 0:
            raise ValueError(f"X is empty: its shape is {X.shape}.")
        if Y.shape[0] != n:
            raise ValueError(f"X has {n} rows and Y has {Y.shape[0]}; they must agree.")
        if Y.ndim == 2 and Y.shape[1] == 0:
            raise ValueError("Y has no columns.")
        scale = as_positive("scale", default_scale(n) if scale is None else scale, X.dtype)
        if weights is not None:
            weights = as_float("weights", weights, (1, 2), X.dtype)
            if weights.shape not in ((n,), Y.shape):
                raise ValueError(
                    f"weights has shape {weights.shape}; it must be one a row, {(n,)}, or Y's {Y.shape}."
                )
            if not is_traced(weights) and (np.asarray(weights) < 0).any():
                raise ValueError(f"weights must be >= 0, got {np.asarray(weights).min():g}.")
        if not isinstance(intercept, bool):
            raise TypeError(f"intercept must be True or False, got {intercept!r}.")
        self._set(X=X, Y=Y, scale=scale, weights=weights, has_intercept=intercept)

    @property
    def params_shape(self) -> tuple[int, ...]:
        """Shape of W: (d, k), or (d,) for a vector target."""
        return (self.X.shape[-1], *self.Y.shape[1:])

    @property
    def dtype(self):
        """dtype of the work: that of X."""
        return self.X.dtype

    def _weights(self) -> jax.Array:
        """Weights broadcastable to Y."""
        if self.weights is None:
            return jnp.ones((1,) * self.Y.ndim, self.dtype)
        extra = self.Y.ndim - self.weights.ndim
        return self.weights.reshape(self.weights.shape + (1,) * extra)

    def _predict(self, W: jax.Array) -> jax.Array:
        H = self.X @ W
        return H + self._best_intercept(H) if self.has_intercept else H

    def intercept(self, W: jax.Array) -> jax.Array:
        """The best intercept b at W, shape (k,) or () for a vector target; 0 if none is fitted."""
        if not self.has_intercept:
            return jnp.zeros(self.Y.shape[1:], self.dtype)
        return self._best_intercept(self.X @ W)[0]

    def reweighted(self, weights: jax.Array) -> Any:
        """The same loss with other weights, not checked."""
        return self._replace(weights=weights)

    def __add__(self, other: Any) -> "SumLoss":
        return SumLoss(self, (other,)) if isinstance(other, GraphLaplacian) else NotImplemented

    __radd__ = __add__

    def evaluate(self, W: jax.Array, intercept: ArrayLike = 0.0) -> jax.Array:
        """The loss of W with this intercept, (k,) or (), in place of the best: for rows held out of a fit."""
        H = self.X @ W
        b = jnp.broadcast_to(jnp.asarray(intercept, self.dtype), H.shape[1:])
        return self._value(H + b[None])

    def __call__(self, W: jax.Array) -> jax.Array:
        return self._value(self._predict(W))

    def _value(self, H: jax.Array) -> jax.Array:
        raise NotImplementedError

    def _derivatives(self, H: jax.Array) -> tuple[jax.Array, jax.Array]:
        """First and second derivative in h of each entry of the loss, without scale and weight."""
        raise NotImplementedError

    # A best intercept lies within ``max|h| + _reach``.
    _reach: float

    def _best_intercept(self, H: jax.Array) -> jax.Array:
        """A b at which the weighted derivatives of each column sum to 0, as a row."""
        b = lax.stop_gradient(_balance(*lax.stop_gradient((self, H))))
        # One more Newton step, this time differentiated: it moves nothing and has the derivative
        # db/dW of the root, so that second derivatives of the loss are right too.
        value, slope = self._imbalance(b, H)
        slope = lax.stop_gradient(slope)
        return (b - jnp.where(slope > 0, value / _nonzero(slope), 0))[None]

    def _imbalance(self, b: jax.Array, H: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The derivative in b of the weighted loss of each column, and its slope."""
        first, second = self._derivatives(H + b[None])
        w = self._weights()
        return jnp.sum(w * first, axis=0), jnp.sum(w * second, axis=0)

    def unpenalised_basis(self, free: jax.Array) -> jax.Array | None:
        """Orthonormal columns (n, r) that span X[:, free] and the intercept, where weights are not 0.

        None where weights are by entry, so that each column would need its own.
        """
        w = self._weights()
        if w.ndim > 1 and w.shape[1] > 1:
            return None
        F = self.X[:, free]
        if self.has_intercept:
            F = jnp.concatenate([jnp.ones((F.shape[0], 1), F.dtype), F], axis=1)
        U, sizes, _ = jnp.linalg.svd(jnp.where(w.reshape(-1, 1) > 0, F, 0), full_matrices=False)
        keep = sizes > max(F.shape) * jnp.finfo(F.dtype).eps * sizes[0]
        return jnp.where(keep[None], U, 0)

    def dual_projection(self, W: jax.Array, basis: jax.Array) -> tuple[jax.Array, jax.Array]:
        r"""``X' dU`` and the divergence, for dU that makes ``U + dU`` orthogonal to the basis.

        The divergence is :math:`\ell(H) + \ell^*(U + dU) - \langle U + dU, H\rangle \ge 0` at ``H = XW + b``,
        where :math:`U = \nabla\ell(H)`; infinite where U + dU is outside the domain of the conjugate. That
        lasts while dU exceeds a probability close to 0 or 1: where unpenalised features nearly separate a
        label, there may never be a certificate.
        """
        H = self._predict(W)
        w = jnp.broadcast_to(self.scale * self._weights(), H.shape)
        first = self._derivatives(H)[0]
        dU = -(basis @ (basis.T @ (w * first)))
        change = jnp.where(w > 0, dU / jnp.where(w > 0, w, 1), 0)
        return self.X.T @ dU, jnp.sum(jnp.where(w > 0, w * self._divergence(H, first, change), 0))

    def _divergence(self, H: jax.Array, first: jax.Array, change: jax.Array) -> jax.Array:
        """``phi(h) + phi*(u) - u h`` of each entry, u = first + change, without scale and weight."""
        raise NotImplementedError

    def _design(self, curvature: ArrayLike) -> jax.Array:
        """sqrt(scale * curvature * weights) times X, centred if an intercept is fitted."""
        w = self._weights()
        w = jnp.broadcast_to(jnp.max(w.reshape(w.shape[0], -1), axis=1), (self.X.shape[0],))
        X = self.X
        if self.has_intercept:
            X = X - ((w @ X) / _nonzero(jnp.sum(w)))[None]
        # The barrier: where a user's jit has made X a constant, XLA would fold products of A for minutes.
        return lax.optimization_barrier(jnp.sqrt(curvature * self.scale * w)[:, None] * X)


class SquaredLoss(_LinearModelLoss, leaves=("X", "Y", "scale", "weights"), static=("has_intercept",)):
    r"""Least squares, ``scale * sum_i weights_i ||x_i W + b - y_i||^2``.

    Args:
      X: (n, d), float32 or float64; integers and booleans are converted to the default float. Its
        dtype is the dtype of the whole solve. Constant columns are allowed.
      Y: (n, k), or (n,) for a vector W; converted to the dtype of X.
      scale: > 0, shape (); default ``1/(2n)``, n the number of rows of X whatever the weights.
      weights: None (all one), (n,) by row, or Y's shape by entry, >= 0; 0 leaves the entry out.
      intercept: fit an unpenalised b (then b is the weighted mean residual of each column).

    Raises:
      TypeError, ValueError: wrong rank, length or dtype, NaN or inf, empty data, a negative weight.
    Source: the scale of scikit-learn, celer, skglm. Ming & Ding (IJCAI 2019, Eq. 14) have scale 1,
      Chen et al. (ACM MM 2011) scale 1/2.
    """

    def __init__(
        self,
        X: ArrayLike,
        Y: ArrayLike,
        *,
        scale: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        intercept: bool = False,
    ):
        self._init(X, Y, scale, lambda n: 1 / (2 * n), weights, intercept)

    @property
    def quadratic(self) -> bool:
        """True unless weights are by entry."""
        return self.weights is None or self.weights.ndim < self.Y.ndim or self.Y.ndim == 1

    def _value(self, H: jax.Array) -> jax.Array:
        R = H - self.Y
        return self.scale * jnp.sum(self._weights() * R * R)

    def _derivatives(self, H: jax.Array) -> tuple[jax.Array, jax.Array]:
        return 2 * (H - self.Y), jnp.full_like(H, 2)

    def _divergence(self, H, first, change):
        return change * change / 4

    def majorizer(self) -> jax.Array:
        """A (n, d) such that A'A is the Hessian of each column (an upper bound if weights are by entry)."""
        return self._design(2.0)

    def dual_scaling(self, W: jax.Array, limit: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The best s, ``|s| <= limit``, and the change of the conjugate; see the module."""
        R = self._predict(W) - self.Y
        wR = self._weights() * R
        return _quadratic_scaling(2 * self.scale * jnp.sum(wR * self.Y), self.scale * jnp.sum(wR * R), limit)

    def gram(self) -> "GramLoss":
        """The same function of W from X'X and X'Y alone, for n > d; needs ``quadratic``."""
        A, B = self.majorizer(), self.target()
        return GramLoss(A.T @ A, A.T @ B, 0.5 * jnp.sum(B * B))

    def target(self) -> jax.Array:
        """B, shape of Y: the loss is ``1/2 ||AW - B||^2`` with A of ``majorizer``; needs ``quadratic``."""
        Y, w = self.Y, self._weights()
        if self.has_intercept:
            Y = Y - self._best_intercept(jnp.zeros_like(Y))
        return jnp.sqrt(2 * self.scale * w) * Y

    def _best_intercept(self, H: jax.Array) -> jax.Array:
        w = jnp.broadcast_to(self._weights(), H.shape)
        total = jnp.sum(w, axis=0, keepdims=True)
        return jnp.sum(w * (self.Y - H), axis=0, keepdims=True) / _nonzero(total)


class GramLoss(Pytree, leaves=("G", "B", "constant")):
    r"""A quadratic by its Gram matrix: :math:`\tfrac12\langle W, GW\rangle - \langle B, W\rangle + c`.

    What `SquaredLoss.gram` returns: each evaluation costs d x d x k whatever n. ``G (d, d)`` is
    symmetric positive semidefinite, ``B (d, k)`` or ``(d,)``, and the constant is the value at W = 0.
    """

    G: jax.Array
    B: jax.Array
    constant: jax.Array

    def __init__(self, G: jax.Array, B: jax.Array, constant: jax.Array):
        self._set(G=G, B=B, constant=constant)

    @property
    def params_shape(self) -> tuple[int, ...]:
        return self.B.shape

    @property
    def dtype(self):
        return self.B.dtype

    def __call__(self, W: jax.Array) -> jax.Array:
        return _half_quadratic(self.G, W) - jnp.sum(W * self.B) + self.constant

    def dual_scaling(self, W: jax.Array, limit: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _quadratic_scaling(jnp.sum(W * self.B) - 2 * self.constant, self(W), limit)


@jax.custom_jvp
def _half_quadratic(G, W):
    return 0.5 * jnp.sum(W * (G @ W))


@_half_quadratic.defjvp
def _half_quadratic_jvp(primals, tangents):
    # Plain differentiation would multiply by G and by its transpose, which is the same matrix.
    (G, W), (dG, dW) = primals, tangents
    GW = G @ W
    return 0.5 * jnp.sum(W * GW), jnp.sum(GW * dW) + 0.5 * jnp.sum(W * (dG @ W))


class LogisticLoss(_LinearModelLoss, leaves=("X", "Y", "scale", "weights"), static=("has_intercept",)):
    r"""Logistic loss of each label on its own, ``scale * sum_ij weights_ij [log(1 + e^h_ij) - y_ij h_ij]``.

    ``H = XW + b``, one column a label (multi-label: the columns do not compete).

    Args:
      X: (n, d), as for `SquaredLoss`.
      Y: (n, k) or (n,), every entry 0 or 1.
      scale: > 0, shape (); default ``1/n``.
      weights: None, (n,) by row, or Y's shape by entry, >= 0.
      intercept: fit an unpenalised b, by a safeguarded Newton iteration for each column.

    Raises:
      TypeError, ValueError: as `SquaredLoss`; a label that is not 0 or 1; with ``intercept``, a
        column of Y that is constant, whose best intercept is infinite.
    """

    def __init__(
        self,
        X: ArrayLike,
        Y: ArrayLike,
        *,
        scale: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        intercept: bool = False,
    ):
        self._init(X, Y, scale, lambda n: 1 / n, weights, intercept)
        check_labels(self.Y, (0, 1), "LogisticLoss")
        if intercept and not is_traced(self.Y):
            y = np.asarray(self.Y)
            constant = np.flatnonzero(np.atleast_1d((y == y[:1]).all(axis=0)))
            if constant.size:
                raise ValueError(
                    f"column {constant[0]} of Y has one label only, so its intercept has no finite "
                    "minimiser: drop it, or use intercept=False."
                )

    def _value(self, H: jax.Array) -> jax.Array:
        values = optax.losses.sigmoid_binary_cross_entropy(H, self.Y)
        return self.scale * jnp.sum(self._weights() * values)

    def _divergence(self, H, first, change):
        # Kullback-Leibler: of the probabilities that belong to first + change from sigmoid(H)
        p = self.Y + first + change
        inside = (p >= 0) & (p <= 1)
        p = jnp.where(inside, p, 0)
        excess = xlogy(p, p) - p * jax.nn.log_sigmoid(H)
        excess += xlogy(1 - p, 1 - p) - (1 - p) * jax.nn.log_sigmoid(-H)
        return jnp.where(inside, jnp.maximum(excess, 0), jnp.inf)

    def majorizer(self) -> jax.Array:
        """A (n, d) with A'A above the Hessian of each column: the logistic curvature is at most 1/4."""
        return self._design(0.25)

    def dual_scaling(self, W: jax.Array, limit: jax.Array) -> tuple[jax.Array, jax.Array]:
        r"""``s = min(limit, 1)`` and the change of the conjugate; see the module.

        ``l*(sU) = scale * sum weights h(y + s(sigmoid - y))``, ``h(p) = p log p + (1-p) log(1-p)``.
        """
        s = jnp.minimum(limit, 1)
        sigma = jax.nn.sigmoid(self._predict(W))

        def entropy(p):
            return xlogy(p, p) + xlogy(1 - p, 1 - p)

        p = self.Y + s * (sigma - self.Y)
        return s, self.scale * jnp.sum(self._weights() * (entropy(p) - entropy(sigma)))

    # Beyond it every sigmoid is 0 or 1 in float64 too; where the weighted labels of a column are all
    # alike the answer is this bound.
    _reach = 40.0

    def _derivatives(self, H: jax.Array) -> tuple[jax.Array, jax.Array]:
        p = jax.nn.sigmoid(H)
        return p - self.Y, p * (1 - p)


class _HingeLoss(_LinearModelLoss):
    """What the hinge losses share: their certificate, and the slack ``max(0, 1 - yh)`` of each entry."""

    # At b > 1 + max|h| no positive label has slack, at b < -1 - max|h| no negative one; twice that for
    # labels that a derivative has moved.
    _reach = 2.0

    def unpenalised_basis(self, free: jax.Array) -> None:
        """None: entries without slack are at the edge of the domain, and any projection leaves it."""
        return None

    def _slack(self, H: jax.Array) -> jax.Array:
        margin = self.Y * H
        return jnp.where(margin < 1, 1 - margin, 0)


class SquaredHingeLoss(_HingeLoss, leaves=("X", "Y", "scale", "weights"), static=("has_intercept",)):
    r"""Squared hinge loss, ``scale * sum_ij weights_ij max(0, 1 - y_ij h_ij)^2``.

    ``H = XW + b``, one column a label. That of support vector machines, made smooth by the square.

    Args:
      X: (n, d), as for `SquaredLoss`.
      Y: (n, k) or (n,), every entry -1 or 1.
      scale: > 0, shape (); default ``1/n``.
      weights: None, (n,) by row, or Y's shape by entry, >= 0.
      intercept: fit an unpenalised b, by a safeguarded Newton iteration for each column. Where several
        are best, as for a column with one label only, b is one of them.

    Raises:
      TypeError, ValueError: as `SquaredLoss`; a label that is not -1 or 1.
    Source: Fan et al., JMLR 9, 2008 (LIBLINEAR), where scale is C and the intercept is penalised as well.
    """

    def __init__(
        self,
        X: ArrayLike,
        Y: ArrayLike,
        *,
        scale: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        intercept: bool = False,
    ):
        self._init(X, Y, scale, lambda n: 1 / n, weights, intercept)
        check_labels(self.Y, (-1, 1), type(self).__name__)

    def _value(self, H: jax.Array) -> jax.Array:
        r = self._slack(H)
        return self.scale * jnp.sum(self._weights() * r * r)

    def _derivatives(self, H: jax.Array) -> tuple[jax.Array, jax.Array]:
        r = self._slack(H)
        return -2 * self.Y * r, jnp.where(r > 0, 2 * self.Y * self.Y, 0)

    def majorizer(self) -> jax.Array:
        """A (n, d) with A'A above the Hessian of each column: the curvature of an entry is 0 or 2."""
        return self._design(2.0)

    def dual_scaling(self, W: jax.Array, limit: jax.Array) -> tuple[jax.Array, jax.Array]:
        r"""The best s, ``0 <= s <= limit``, and the change of the conjugate; see the module.

        ``l*(sU) = sum -s a + (s a)^2 / (4 scale weights)`` for s >= 0, where ``a = -U/Y = 2 scale weights r``
        with the slack r.
        """
        r = self._slack(self._predict(W))
        wr = self._weights() * r
        return _quadratic_scaling(-2 * self.scale * jnp.sum(wr), self.scale * jnp.sum(wr * r), limit)


class HuberHingeLoss(_HingeLoss, leaves=("X", "Y", "scale", "weights", "delta"), static=("has_intercept",)):
    r"""Hinge loss with its corner rounded off, ``scale * sum_ij weights_ij phi(y_ij h_ij)``.

    .. math:: \phi(m) = 0 \text{ if } m \ge 1, \qquad (1-m)^2/(2\delta) \text{ if } 1-\delta < m < 1,
              \qquad 1-m-\delta/2 \text{ otherwise;}

    at most :math:`\delta/2` below the hinge loss ``max(0, 1 - m)``. ``H = XW + b``, one column a label.

    Args:
      X: (n, d), as for `SquaredLoss`.
      Y: (n, k) or (n,), every entry -1 or 1.
      delta: > 0, shape (): the width of the rounded part.
      scale: > 0, shape (); default ``1/n``.
      weights: None, (n,) by row, or Y's shape by entry, >= 0.
      intercept: fit an unpenalised b, by a safeguarded Newton iteration for each column. Where several
        are best, as for a column with one label only, b is one of them.

    Raises:
      TypeError, ValueError: as `SquaredLoss`; a label that is not -1 or 1; delta not > 0.
    Source: Chapelle, Neural Computation 19(5), 2007, whose loss is centred at m = 1: this one with
      ``delta = 2h``, its margins moved by h.
    """

    delta: jax.Array

    def __init__(
        self,
        X: ArrayLike,
        Y: ArrayLike,
        *,
        delta: ArrayLike = 0.5,
        scale: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        intercept: bool = False,
    ):
        self._init(X, Y, scale, lambda n: 1 / n, weights, intercept)
        check_labels(self.Y, (-1, 1), type(self).__name__)
        self._set(delta=as_positive("delta", delta, self.dtype))

    def _bent(self, r: jax.Array) -> jax.Array:
        """min(r, delta): delta times the slope of phi in the slack r."""
        return jnp.where(r < self.delta, r, self.delta)

    def _value(self, H: jax.Array) -> jax.Array:
        r = self._slack(H)
        q = self._bent(r)
        return self.scale * jnp.sum(self._weights() * (q / self.delta) * (r - q / 2))

    def _derivatives(self, H: jax.Array) -> tuple[jax.Array, jax.Array]:
        r = self._slack(H)
        curved = (r > 0) & (r < self.delta)
        return -self.Y * self._bent(r) / self.delta, jnp.where(curved, self.Y * self.Y / self.delta, 0)

    def majorizer(self) -> jax.Array:
        """A (n, d) with A'A above the Hessian of each column: the curvature of an entry is 0 or 1/delta."""
        return self._design(1 / self.delta)

    def dual_scaling(self, W: jax.Array, limit: jax.Array) -> tuple[jax.Array, jax.Array]:
        r"""The best s, ``0 <= s <= limit`` and ``s p <= 1``, and the change of the conjugate; see the module.

        ``l*(sU) = sum -s a + delta (s a)^2 / (2 scale weights)`` for ``0 <= s a <= scale weights``, where
        ``a = -U/Y = scale weights p`` with ``p = min(r/delta, 1)``, r the slack.
        """
        p = self._bent(self._slack(self._predict(W))) / self.delta
        w = self._weights()
        top = jnp.max(jnp.where(w > 0, p, 0))
        limit = jnp.minimum(limit, jnp.where(top > 0, 1 / _nonzero(top), jnp.inf))
        linear, square = -self.scale * jnp.sum(w * p), 0.5 * self.delta * self.scale * jnp.sum(w * p * p)
        return _quadratic_scaling(linear, square, limit)


class GraphLaplacian(Pytree, leaves=("similarity", "strength")):
    r"""Similar labels have similar weights: ``strength/2 * tr(W L W')``, L the Laplacian of their graph.

    .. math:: \tfrac{\text{strength}}{2} \operatorname{tr}(W L W^\top)
              = \tfrac{\text{strength}}{2} \sum_{j<k} P_{jk}\, \|W_{:j} - W_{:k}\|_2^2 ,
              \qquad L = \operatorname{diag}(P\mathbf 1) - P .

    Add it to a loss: ``SquaredLoss(X, Y) + GraphLaplacian(P, 0.1)``. By itself it is a loss without data.

    Args:
      similarity: P (k, k), >= 0, one row a label, dense or sparse (kept dense: solvers decompose L). Made
        symmetric, ``(P + P')/2``; its diagonal has no effect.
      strength: >= 0, shape ().

    Raises:
      TypeError, ValueError: P not real, not finite, not square, negative; strength negative or not finite.
    Source: Chen et al., ACM MM 2011, Eq. (4) and the line below it, which are not equal: this is the trace,
      and the sum over all pairs (j, k) in Eq. (4) is twice as large.
    """

    similarity: jax.Array
    strength: jax.Array

    def __init__(self, similarity: ArrayLike, strength: ArrayLike):
        dense: Any = similarity
        for method in ("toarray", "todense"):  # of scipy.sparse and of jax.experimental.sparse
            if hasattr(similarity, method):
                dense = getattr(similarity, method)()
                break
        P = as_float("similarity", dense, (2,))
        if P.shape[0] != P.shape[1] or P.shape[0] == 0:
            raise ValueError(f"similarity must be square, one row a label, got shape {P.shape}.")
        if not is_traced(P) and (np.asarray(P) < 0).any():
            raise ValueError(f"similarity must be >= 0, got {np.asarray(P).min():g}.")
        strength = as_float("strength", strength, (0,), P.dtype)
        if not is_traced(strength) and np.asarray(strength) < 0:
            raise ValueError(f"strength must be >= 0, got {np.asarray(strength):g}.")
        self._set(similarity=(P + P.T) / 2, strength=strength)

    def laplacian(self, dtype: Any) -> jax.Array:
        """``strength * L``, (k, k)."""
        P = self.similarity.astype(dtype)
        return self.strength.astype(dtype) * (jnp.diag(jnp.sum(P, axis=1)) - P)

    def __call__(self, W: jax.Array) -> jax.Array:
        labels = self.similarity.shape[0]
        if jnp.ndim(W) != 2 or W.shape[1] != labels:
            raise ValueError(f"W has shape {jnp.shape(W)}; similarity is of {labels} labels.")
        return _half_quadratic(self.laplacian(W.dtype), W.T)


class SumLoss(Pytree, leaves=("loss", "graphs")):
    """A loss of a linear model and graph Laplacians on its labels; write ``loss + graph``.

    ``intercept`` and ``evaluate`` are those of the loss: rows held out are judged without the graphs.

    Args:
      loss: one of the losses above, with a matrix Y.
      graphs: tuple of `GraphLaplacian`, of as many labels as Y has columns.

    Raises:
      TypeError, ValueError: something else, or another number of labels.
    """

    loss: Any
    graphs: tuple[GraphLaplacian, ...]

    def __init__(self, loss: Any, graphs: tuple[GraphLaplacian, ...]):
        if not isinstance(loss, (_LinearModelLoss, GramLoss)):
            raise TypeError(f"a graph is added to a loss of sparsejax.losses, got {type(loss).__name__}.")
        for graph in graphs:
            if not isinstance(graph, GraphLaplacian):
                raise TypeError(f"graphs must hold GraphLaplacian, got {type(graph).__name__}.")
            shape, labels = loss.params_shape, graph.similarity.shape[-1]
            if shape[1:] != (labels,):
                columns = f"{shape[1]} columns" if len(shape) == 2 else "no columns"
                raise ValueError(f"similarity is of {labels} labels; Y has {columns}.")
        self._set(loss=loss, graphs=tuple(graphs))

    def __add__(self, other: Any) -> "SumLoss":
        if not isinstance(other, GraphLaplacian):
            return NotImplemented
        return SumLoss(self.loss, (*self.graphs, other))

    __radd__ = __add__

    def __call__(self, W: jax.Array) -> jax.Array:
        return self.loss(W) + self._graph_value(W)

    def _graph_value(self, W: jax.Array) -> jax.Array:
        return _half_quadratic(self.laplacian(), W.T)

    def laplacian(self) -> jax.Array:
        """The Hessian of the graphs in each row of W, (k, k)."""
        first, *rest = (graph.laplacian(self.dtype) for graph in self.graphs)
        return sum(rest, start=first)

    @property
    def params_shape(self) -> tuple[int, ...]:
        return self.loss.params_shape

    @property
    def dtype(self):
        return self.loss.dtype

    @property
    def quadratic(self) -> bool:
        return self.loss.quadratic

    @property
    def X(self) -> jax.Array:
        return self.loss.X

    @property
    def weights(self) -> jax.Array | None:
        return self.loss.weights

    def reweighted(self, weights: jax.Array) -> Any:
        return self._replace(loss=self.loss.reweighted(weights))

    def intercept(self, W: jax.Array) -> jax.Array:
        return self.loss.intercept(W)

    def evaluate(self, W: jax.Array, intercept: ArrayLike = 0.0) -> jax.Array:
        return self.loss.evaluate(W, intercept)

    def majorizer(self) -> jax.Array:
        """That of the loss: the Hessian is at most ``I_k (x) A'A + laplacian() (x) I_d``."""
        return self.loss.majorizer()

    def target(self) -> jax.Array:
        return self.loss.target()

    def gram(self) -> "SumLoss":
        return self._replace(loss=self.loss.gram())

    def dual_scaling(self, W: jax.Array, limit: jax.Array) -> tuple[jax.Array, jax.Array]:
        """As that of the loss; the conjugate of the graphs at s times their gradient is s^2 their value."""
        s, change = self.loss.dual_scaling(W, limit)
        return s, change + (s - 1) * (s + 1) * self._graph_value(W)


@jax.jit
def _balance(loss, H):
    """A root b of the increasing function ``loss._imbalance(b, H)``, by Newton with a bisection safeguard."""
    bound = loss._reach + jnp.max(jnp.abs(H), axis=0)
    eps = jnp.finfo(H.dtype).eps

    def body(carry):
        b, low, high, _, n = carry
        value, slope = loss._imbalance(b, H)
        low, high = jnp.where(value < 0, b, low), jnp.where(value > 0, b, high)
        step = b - value / jnp.where(slope > 0, slope, 1)
        inside = (slope > 0) & (step > low) & (step < high)
        new = jnp.where(value == 0, b, jnp.where(inside, step, (low + high) / 2))
        return new, low, high, jnp.abs(new - b) > 2 * eps * (1 + jnp.abs(b)), n + 1

    def cond(carry):
        return jnp.any(carry[3]) & (carry[4] < 100)

    start = (jnp.zeros_like(bound), -bound, bound, jnp.ones(bound.shape, bool), jnp.int32(0))
    return lax.while_loop(cond, body, start)[0]


def _quadratic_scaling(linear, square, limit):
    """For l*(sU) = s*linear + s^2*square: its minimiser over |s| <= limit, and l*(sU) - l*(U)."""
    best = jnp.where(square > 0, -linear / (2 * _nonzero(square)), 1)
    s = jnp.clip(best, -limit, limit)
    return s, (s - 1) * (linear + (s + 1) * square)


def _nonzero(x):
    return jnp.where(x == 0, 1, x)
