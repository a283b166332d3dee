"""The fitted models and their predictions."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float, as_int, as_nonnegative, is_traced
from sparsejax._core.linalg import unit_of
from sparsejax._core.precision import full_precision
from sparsejax._core.pytree import Pytree
from sparsejax.models._labels import r2_score
from sparsejax.models._summary import summary
from sparsejax.models.ofa_lasso._certificate import Lasso
from sparsejax.models.ofa_lasso._kernel_columns import Data, Input, Kernel, inputs
from sparsejax.models.ofa_lasso._predict import Outputs, Prediction, search
from sparsejax.models.ofa_lasso._train import Fitted
from sparsejax.solution import History, Solution


class Model(
    Pytree,
    leaves=(
        "X", "Y", "u", "v", "intercept", "start_u", "start_intercept", "bandwidth", "output_bandwidth",
        "solution", "start_solution",
    ),
    static=("kernel", "degree", "input"),
):  # fmt: skip
    """Fitted models of d outputs; a pytree.

    Attributes:
      X, Y: the training data, (n, k) and (n, d).
      u: (d, n), or (d, k) for ``input="linear"``, weights of the inputs, with exact zeros.
      v: (d, n), weights of the kernels between outputs, with exact zeros.
      intercept: (d,).
      start_u, start_intercept: u and intercept of independent lassos, which have no part of the outputs.
        Predictions start from these lassos.
      bandwidth, output_bandwidth: bandwidths of the Gaussian kernels, () and (d,).
      solution, start_solution: `sparsejax.Solution` with a leading axis of d: ``params`` is [u, v] of each
        output, ``num_iters`` counts rounds (or iterations of ``method="admm"``), ``residual`` is NaN.
      kernel, degree, input: arguments of `fit`.

    >>> import numpy as np
    >>> from sparsejax.models import ofa_lasso
    >>> X, Y = np.random.default_rng(0).standard_normal((2, 6, 2))
    >>> model = ofa_lasso.fit(X, Y, lam=0.5, beta=0.5)
    >>> model.predict(X).shape, bool(model.solution.converged.all())
    ((6, 2), True)
    """

    X: jax.Array
    Y: jax.Array
    u: jax.Array
    v: jax.Array
    intercept: jax.Array
    start_u: jax.Array
    start_intercept: jax.Array
    bandwidth: jax.Array
    output_bandwidth: jax.Array
    solution: Solution
    start_solution: Solution
    kernel: Kernel
    degree: int
    input: Input

    def __repr__(self) -> str:
        *batch, n, d = jnp.shape(self.Y)
        models = f"{list(batch)} models of " if batch else ""

        def kept() -> str:
            inputs, others = (int(np.count_nonzero(weights)) for weights in (self.u, self.v))
            return f"{inputs} weights of inputs and {others} of outputs kept"

        return summary(self, f"{models}{d} outputs, {n} rows", [self.solution, self.start_solution], kept)

    def score(self, X: ArrayLike, Y: ArrayLike) -> float:
        """`sparsejax.metrics.r2` of `predict`: the mean over outputs of the variance explained."""
        return r2_score(Y, self.predict(X))

    def predict(self, X: ArrayLike) -> jax.Array:
        """The outputs of the rows of X, (m, d): ``predict_with_info(X).y``."""
        return self.predict_with_info(X).y

    def predict_with_info(
        self, X: ArrayLike, *, num_starts: int = 1, tol: float | None = None, maxiter: int = 200
    ) -> Prediction:
        r"""Predictions by L-BFGS, :math:`\min_y \sum_j (y_j - f^j(x, y^{-j}))^2`, and their residuals.

        The objective usually has several local minima, so that the result depends on the start. The first
        search starts at the prediction of the independent lassos, as in the paper; further searches start at
        training outputs, evenly spaced in their order. The result is the end of the search with the least
        residual, or the first start if no search improves on it.

        Args:
          X: (m, k).
          num_starts: number of searches for each point, from 1 to n + 1.
          tol: a search ends where no entry of the gradient exceeds ``tol * (1 + objective)``. Outputs are in
            units of their standard deviations in training, and the objective is divided by the mean of their
            squares. The default is 1e-6 in float64 and 1e-3 in float32. Two ends are distinct if an output
            differs by more than ``sqrt(tol)`` units.
          maxiter: largest number of L-BFGS steps for each search.

        Returns:
          `Prediction`.

        Raises:
          TypeError, ValueError: X of other columns than in training or not finite; num_starts out of range;
            tol or maxiter < 0.
        """
        return predict(self, X, num_starts, tol, maxiter, support_of(self.v))


def predict(
    model: Model, X: ArrayLike, num_starts: int, tol: float | None, maxiter: int, support: int
) -> Prediction:
    """`Model.predict_with_info`, with ``support`` kernels for each output, at least ``support_of(v)``."""
    dtype = model.X.dtype
    X = as_float("X", X, (2,), dtype)
    if model.Y.ndim != 2:
        batch = tuple(model.Y.shape[:-2])
        raise ValueError(f"this is a batch of {batch} models: predict inside jax.vmap, or by one of them.")
    n, d = model.Y.shape
    if X.shape[1] != model.X.shape[1]:
        raise ValueError(f"X has {X.shape[1]} columns; the model was fitted with {model.X.shape[1]}.")
    num_starts, maxiter = as_int("num_starts", num_starts, 1, n + 1), as_int("maxiter", maxiter, 0)
    default = 1e-6 if dtype == jnp.float64 else 1e-3
    stationary = as_nonnegative("tol", default if tol is None else tol, dtype)
    if X.shape[0] == 0:
        none = jnp.zeros((0,), dtype)
        nothing = jnp.zeros((0, d), dtype)
        return Prediction(nothing, none, nothing, none, none.astype(jnp.int32))
    rows = np.linspace(0, n - 1, num_starts - 1).round().astype(int)
    return _predict(model, X, jnp.asarray(rows, int), stationary, maxiter, support=support)


def model_of(data: Data, fitted: Fitted, start: int, joint: int) -> Model:
    """The model of two solutions; ``start`` and ``joint`` are their indices on the second axis."""
    start_lasso, lasso = (Lasso(*(leaf[:, i] for leaf in fitted.lasso)) for i in (start, joint))
    q = data.num_inputs
    return Model(
        X=data.X, Y=data.Y, u=lasso.z[:, :q], v=lasso.z[:, q:], intercept=fitted.intercept[:, joint],
        start_u=start_lasso.z[:, :q], start_intercept=fitted.intercept[:, start], bandwidth=data.bandwidth,
        output_bandwidth=data.output_bandwidth, solution=solution_of(lasso),
        start_solution=solution_of(start_lasso), kernel=data.kernel, degree=data.degree, input=data.input,
    )  # fmt: skip


def solution_of(lasso: Lasso) -> Solution:
    """The `Solution` of fitted lassos."""
    unknown = jnp.full_like(lasso.gap, jnp.nan)
    none = jnp.zeros((lasso.gap.shape[0], 0), lasso.gap.dtype)
    return Solution(
        lasso.z, lasso.objective, lasso.gap, unknown, lasso.num_iters, lasso.status, History(none, none)
    )


def support_of(v: jax.Array) -> int:
    """The number of kernels between outputs that a prediction evaluates for each output; v (d, n).

    It is the largest number of nonzero weights of an output, rounded up to a power of 2, so that few programs
    are compiled; for a traced v it is n.
    """
    if is_traced(v):
        return v.shape[1]
    most = int((np.asarray(v) != 0).sum(axis=1).max())
    return min(int(v.shape[1]), 1 << max(most - 1, 0).bit_length())


@full_precision()
@partial(jax.jit, static_argnames="support")
def _predict(
    model: Model, X: jax.Array, rows: jax.Array, tol: jax.Array, maxiter: int, *, support: int
) -> Prediction:
    gaussian, d = model.kernel == "gaussian", model.Y.shape[1]
    # A Gaussian kernel is the same in every unit of the outputs. In this unit, a power of 2, squares of
    # outputs neither overflow nor underflow; other kernels keep the user's unit.
    unit, inverse = unit_of(model.Y) if gaussian else (jnp.ones((), X.dtype), jnp.ones((), X.dtype))
    F, Y, bandwidth = inputs(model, X), model.Y * inverse, model.output_bandwidth * inverse
    shift = jnp.mean(Y, axis=0) if gaussian else jnp.zeros(d, X.dtype)
    used = lax.top_k((model.v != 0).astype(jnp.int32), support)[1]  # (d, support)
    centers = (Y - shift[None])[used] * (1 - jnp.eye(d, dtype=X.dtype))[:, None]
    outputs = Outputs(centers, jnp.take_along_axis(model.v * inverse, used, axis=1), bandwidth, shift)
    scale = jnp.std(Y, axis=0)
    scale = jnp.where(scale > 0, scale, 1)
    base = (F @ model.u.T + model.intercept[None]) * inverse
    start = (F @ model.start_u.T + model.start_intercept[None]) * inverse
    found = search(model.kernel, model.degree, outputs, base, start, Y[rows], scale, tol, maxiter)
    first, residual = found.start_residual * unit * unit, found.residual * unit * unit
    return Prediction(found.y * unit, residual, found.start * unit, first, found.num_stationary)
