r"""Several outputs that are features of one another (Zhang et al., ICDM 2014).

.. math:: f^j(x, y^{-j}) = \sum_i u^j_i\, k(x, x_i) + \sum_i v^j_i\, k_j(y^{-j}, y^{-j}_i) + b^j

where :math:`y^{-j}` are the outputs but j. Each f^j is a lasso in kernel columns, convex and exact; the
prediction, a y that agrees with all :math:`f^j`, is not convex and depends on where it starts.
"""

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax import kernels
from sparsejax._pytree import Pytree, as_float, is_traced
from sparsejax.models import _ofa_admm
from sparsejax.models._ofa_predict import Outputs, Prediction, search
from sparsejax.models._ofa_train import FULL, Lasso, solve_path
from sparsejax.problem import CONVERGED, MAX_ITER, History, Solution

Kernel = Literal["gaussian", "polynomial", "linear"]
Input = Literal["kernel", "linear"]
BUCKET = 128  # columns solved together at first
TOGETHER = 4  # outputs solved together


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
      u: (d, n), or (d, k) for ``input="linear"``; exact zeros.
      v: (d, n), weights of the kernels between outputs; exact zeros.
      intercept: (d,).
      start_u, start_intercept: the same without the outputs' part: independent lassos, from which
        predictions start.
      bandwidth, output_bandwidth: of the Gaussian kernels, () and (d,).
      solution, start_solution: `sparsejax.Solution` with a leading axis of d: ``params`` is [u, v] of each
        output, ``num_iters`` counts rounds (or iterations of ``method="admm"``), ``residual`` is NaN.
      kernel, degree, input: as given to `fit`.
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

    def __init__(self, **attributes: Any):
        self._set(**attributes)

    def predict(self, X: ArrayLike) -> jax.Array:
        """The outputs of the rows of X, (m, d): ``predict_with_info(X).y``."""
        return self.predict_with_info(X).y

    def predict_with_info(
        self, X: ArrayLike, *, num_starts: int = 1, tol: float | None = None, maxiter: int = 200
    ) -> Prediction:
        r"""Predictions by L-BFGS, :math:`\min_y \sum_j (y_j - f^j(x, y^{-j}))^2`, and their residuals.

        The objective has several local minima as a rule, so that the answer depends on the start. The first
        search starts at the independent lassos' prediction, as in the paper; further ones at training
        outputs, evenly spaced in their order. The stationary point of least residual is returned.

        Args:
          X: (m, k).
          num_starts: searches for each point, at least 1 and at most n + 1.
          tol: a search ends where no entry of the gradient exceeds it, every output in units of its standard
            deviation in training; default 1e-6 in float64 and 1e-3 in float32. Two ends are distinct if
            an output differs by more than ``sqrt(tol)`` of those units.
          maxiter: L-BFGS steps for each search.

        Raises:
          TypeError, ValueError: X of other columns than in training or not finite; num_starts out of range.
        """
        return self._predict(X, num_starts, tol, maxiter, _support(self.v))

    def _predict(self, X, num_starts, tol, maxiter, support) -> Prediction:
        X = as_float("X", X, (2,), self.X.dtype)
        n, d = self.Y.shape
        if X.shape[1] != self.X.shape[1]:
            raise ValueError(f"X has {X.shape[1]} columns; the model was fitted with {self.X.shape[1]}.")
        if isinstance(num_starts, bool) or not isinstance(num_starts, int) or not 1 <= num_starts <= n + 1:
            raise ValueError(f"num_starts must be an integer from 1 to {n + 1}, got {num_starts!r}.")
        tol = (1e-6 if self.X.dtype == jnp.float64 else 1e-3) if tol is None else tol
        if X.shape[0] == 0:
            none = jnp.zeros((0,), X.dtype)
            nothing = jnp.zeros((0, d), X.dtype)
            return Prediction(nothing, none, nothing, none, none.astype(jnp.int32))
        rows = np.linspace(0, n - 1, num_starts - 1).round().astype(int)
        return _predict(self, X, jnp.asarray(rows, int), tol, maxiter, support=support)


def fit(
    X: ArrayLike,
    Y: ArrayLike,
    lam: ArrayLike,
    beta: ArrayLike,
    *,
    kernel: Kernel = "gaussian",
    input: Input = "kernel",
    bandwidth: ArrayLike | None = None,
    output_bandwidth: ArrayLike | None = None,
    degree: int = 3,
    method: Literal["auto", "admm"] = "auto",
    faithful: bool = False,
    mu: ArrayLike = 1.0,
    growth: ArrayLike = 1.1,
    tol: ArrayLike | None = None,
    maxiter: int | None = None,
) -> Model:
    r"""Fit every output in the inputs and in the other outputs, with an intercept.

    With :math:`K_{ip} = k(x_i, x_p)` and :math:`G^j_{ip} = k_j(y_i^{-j}, y_p^{-j})`, for each j

    .. math:: \min_{u,v,b} \|y^j - Ku - G^jv - b\|_2^2 + \lambda\|u\|_1 + \beta\|v\|_1 .

    ``method="auto"`` is a working set solved exactly, certified by the duality gap in all 2n columns.
    ``method="admm"`` is the alternating direction method in two blocks, with a fixed ``mu``: right, but
    slower. With ``faithful=True`` it is the paper's Algorithm 1, four blocks and a ``mu`` that grows by
    ``growth`` at every step: **it stops early**, up to a third above the optimum at ``growth`` 1.01 and more
    than double at 2 on small problems; its status is then stalled, not converged. (The paper does not state
    mu and growth.)

    Args:
      X: (n, k), n >= 2.
      Y: (n, d), d >= 2; outputs on comparable scales, since the strengths are shared and the kernels mix
        them.
      lam, beta: > 0, shape () or (d,), one an output.
      kernel: "gaussian"; "polynomial", :math:`(x^\top x' + 1)^{\text{degree}}`; or "linear", which makes the
        outputs' part superfluous (the paper's Prop. II.1).
      input: "kernel", or "linear" for ``x'u`` in place of ``Ku`` (the paper's groups II and I).
      bandwidth: of k, > 0, shape (); default `kernels.median_bandwidth` of X.
      output_bandwidth: of the k_j, > 0, shape () or (d,); default the median of Y without column j.
      degree: of the polynomial kernel.
      method, faithful, mu, growth: see above; mu > 0 and growth >= 1 are those of ``"admm"``.
      tol: on the relative duality gap; default 1e-6, in float32 1e-4.
      maxiter: rounds of the working set, default 100; iterations of ``"admm"``, default 20000.

    Returns:
      `Model`. Under jit the working set cannot grow beyond 256 columns (`maxiter reached` if that binds).

    Raises:
      TypeError, ValueError: arrays that are not finite or do not fit together; fewer than two rows or
        outputs; strengths or bandwidths <= 0; a median distance of 0 where a bandwidth is not given.
    Source: Zhang et al., ICDM 2014, Eq. (10), with the bias of Eq. (8).
    """
    data = _check(X, Y, kernel, input, bandwidth, output_bandwidth, degree)
    d, dtype = data.Y.shape[1], data.Y.dtype
    lam, beta = _strength("lam", lam, d, dtype), _strength("beta", beta, d, dtype)
    if method not in ("auto", "admm"):
        raise ValueError(f"method must be 'auto' or 'admm', got {method!r}.")
    if faithful and method != "admm":
        raise ValueError("faithful=True is Algorithm 1 of the paper: give method='admm' with it.")
    mu, growth = as_float("mu", mu, (0,), dtype), as_float("growth", growth, (0,), dtype)
    if not is_traced(mu) and not mu > 0:
        raise ValueError(f"mu must be > 0, got {mu:g}.")
    if not is_traced(growth) and not growth >= 1:
        raise ValueError(f"growth must be >= 1, got {growth:g}.")
    tol, maxiter = _stop(tol, maxiter, method, dtype)
    algorithm = "printed" if faithful else method
    fitted = _train(data, lam[None], beta[None], lam[None], tol, maxiter, mu, growth, algorithm)
    return _model(data, fitted, 0, 1)


class CrossValidation(NamedTuple):
    """What was tried, a strengths for the inputs by b for the outputs on K folds, and the choice.

    Attributes:
      lams, betas: (a,) and (b,).
      fold_mae: (K, a, b), ``1/m sum_i sum_j |y_ij - predicted_ij|`` over the m rows left out.
      start_mae: (K, a), the same of the independent lassos, from which the predictions start.
      gap: (K, a, b), the largest of the outputs' relative duality gaps.
      converged: (K, a, b), every output's training.
      lam, beta: the pair of least mean error, and ``start_lam`` that of the independent lassos; ().
    """

    lams: jax.Array
    betas: jax.Array
    fold_mae: jax.Array
    start_mae: jax.Array
    gap: jax.Array
    converged: jax.Array
    lam: jax.Array
    beta: jax.Array
    start_lam: jax.Array


def cross_validate(
    X: ArrayLike,
    Y: ArrayLike,
    lams: ArrayLike,
    betas: ArrayLike,
    *,
    folds: int = 2,
    kernel: Kernel = "gaussian",
    input: Input = "kernel",
    bandwidth: ArrayLike | None = None,
    output_bandwidth: ArrayLike | None = None,
    degree: int = 3,
    tol: ArrayLike | None = None,
    maxiter: int | None = None,
    num_starts: int = 1,
) -> CrossValidation:
    """The error of prediction for every pair of strengths on rows left out.

    All outputs and pairs of a fold are trained in one compiled call, each pair from the solution of a
    neighbour. On the host: not for use under jit.

    Args:
      X, Y: as `fit`.
      lams, betas: the candidates, > 0, shapes (a,) and (b,).
      folds: K >= 2; row i is left out in fold ``i % K`` (shuffle sorted rows first).
      kernel, input, bandwidth, output_bandwidth, degree, tol, maxiter: as `fit`; a median is that of the
        rows fitted to.
      num_starts: as `Model.predict_with_info`.

    Raises:
      TypeError, ValueError: as `fit`; folds that leave fewer than two rows.
    Source: Zhang et al., ICDM 2014, Section IV (strengths 0.1 * 5^1..5^5, two folds).
    """
    X, Y = as_float("X", X, (2,)), as_float("Y", Y, (2,))
    lams, betas = (
        _require_positive(name, jnp.atleast_1d(as_float(name, x, (0, 1), Y.dtype)))
        for name, x in (("lams", lams), ("betas", betas))
    )
    n = min(X.shape[0], Y.shape[0])
    if isinstance(folds, bool) or not isinstance(folds, int) or not 2 <= folds <= n or n - -(-n // folds) < 2:
        raise ValueError(f"folds must be an integer >= 2 that leaves two rows of {n}, got {folds!r}.")
    results = []
    for fold in range(folds):
        out = np.arange(X.shape[0]) % folds == fold
        data = _check(X[~out], Y[~out], kernel, input, bandwidth, output_bandwidth, degree)
        fitted, index = _train_grid(data, lams, betas, *_stop(tol, maxiter, "auto", Y.dtype))
        results.append(_fold_errors(data, fitted, index, X[out], Y[out], num_starts))
    mae, start_mae, gap, converged = (jnp.stack(values) for values in zip(*results, strict=True))
    i, j = np.unravel_index(int(jnp.argmin(jnp.mean(mae, axis=0))), mae.shape[1:])
    best = jnp.argmin(jnp.mean(start_mae, axis=0))
    return CrossValidation(lams, betas, mae, start_mae, gap, converged, lams[i], betas[j], lams[best])


def _train_grid(data: "_Data", lams, betas, tol, maxiter) -> "tuple[_Fitted, np.ndarray]":
    """All outputs at all pairs, and where on the second axis of `_Fitted` the pair (lams[i], betas[j]) is.

    The path goes through the strengths of the inputs up and down, each time with a smaller one of the
    outputs: every step is between neighbours.
    """
    a, b, d = lams.shape[0], betas.shape[0], data.Y.shape[1]
    down_lam, down_beta = np.argsort(-np.asarray(lams)), np.argsort(-np.asarray(betas))
    index = np.zeros((a, b), int)
    pairs = [(i, j) for k, j in enumerate(down_beta) for i in (down_lam if k % 2 else down_lam[::-1])]
    for position, pair in enumerate(pairs):
        index[pair] = a + position
    rows, columns = np.asarray(pairs).T
    each = lambda strengths: jnp.broadcast_to(strengths[:, None], (strengths.shape[0], d))
    zero = jnp.zeros((), data.Y.dtype)
    fitted = _train(
        data, each(lams[rows]), each(betas[columns]), each(lams[down_lam]), tol, maxiter, zero, zero, "auto"
    )
    # The starts of lams in their own order, in front.
    order = np.concatenate([np.argsort(down_lam), np.arange(a, a + a * b)])
    return jax.tree.map(lambda leaf: leaf[:, order], fitted), index


def _fold_errors(data, fitted, index, X, Y, num_starts):
    """Errors of prediction of the pairs and of the starts, gaps and convergence."""
    error = lambda predicted: jnp.mean(jnp.sum(jnp.abs(Y - predicted), axis=1))
    a, b = index.shape
    q = fitted.lasso.z.shape[2] - data.Y.shape[0]
    support = _support(fitted.lasso.z[:, :, q:].reshape(-1, data.Y.shape[0]))
    mae, start_mae = np.zeros((a, b)), np.zeros(a)
    for i in range(a):
        for j in range(b):
            model = _model(data, fitted, i, int(index[i, j]))
            info = model._predict(X, num_starts, None, 200, support)  # one program for all pairs
            mae[i, j], start_mae[i] = error(info.y), error(info.start)
    worst = jnp.max(fitted.lasso.gap, axis=0)[index]
    converged = jnp.all(fitted.lasso.status == CONVERGED, axis=0)[index]
    return jnp.asarray(mae, Y.dtype), jnp.asarray(start_mae, Y.dtype), worst, converged


class _Data(Pytree, leaves=("X", "Y", "bandwidth", "output_bandwidth"), static=("kernel", "degree", "input")):
    """What is fitted to, checked."""

    X: jax.Array
    Y: jax.Array
    bandwidth: jax.Array  # ()
    output_bandwidth: jax.Array  # (d,)
    kernel: Kernel
    degree: int
    input: Input

    def __init__(self, **attributes: Any):
        self._set(**attributes)


def _check(X, Y, kernel, input, bandwidth, output_bandwidth, degree) -> _Data:
    if kernel not in ("gaussian", "polynomial", "linear"):
        raise ValueError(f"kernel must be 'gaussian', 'polynomial' or 'linear', got {kernel!r}.")
    if input not in ("kernel", "linear"):
        raise ValueError(f"input must be 'kernel' or 'linear', got {input!r}.")
    if isinstance(degree, bool) or not isinstance(degree, int) or degree < 1:
        raise ValueError(f"degree must be an integer >= 1, got {degree!r}.")
    X = as_float("X", X, (2,))
    Y = as_float("Y", Y, (2,), X.dtype)
    if X.shape[0] != Y.shape[0]:
        raise ValueError(f"X has {X.shape[0]} rows and Y has {Y.shape[0]}; they must agree.")
    if X.shape[0] < 2 or X.shape[1] < 1:
        raise ValueError(f"X has shape {tuple(X.shape)}; at least two rows and one column are needed.")
    d = Y.shape[1]
    if d < 2:
        raise ValueError(f"Y has {d} column(s); an output needs at least one other to be its feature.")
    one = jnp.ones((), X.dtype)
    if kernel != "gaussian":
        bandwidth, output_bandwidth = one, one
    if input == "linear":
        bandwidth = one
    if bandwidth is None:
        bandwidth = kernels.median_bandwidth(X)
    if output_bandwidth is None:
        output_bandwidth = jnp.stack([_output_median(Y, j) for j in range(d)])
    return _Data(
        X=X, Y=Y, bandwidth=_strength("bandwidth", bandwidth, 0, X.dtype),
        output_bandwidth=_strength("output_bandwidth", output_bandwidth, d, X.dtype),
        kernel=kernel, degree=degree, input=input,
    )  # fmt: skip


def _output_median(Y: jax.Array, j: int) -> jax.Array:
    try:
        return kernels.median_bandwidth(jnp.delete(Y, j, axis=1))
    except ValueError as error:
        raise ValueError(
            f"without column {j} the rows of Y have a median distance of 0 (constant or repeated outputs): "
            "give output_bandwidth."
        ) from error


def _strength(name: str, x: Any, d: int, dtype: Any) -> jax.Array:
    """Positive, of shape (d,) (() if d is 0); a scalar is repeated."""
    x = as_float(name, x, (0, 1) if d else (0,), dtype)
    if x.ndim == 1 and x.shape != (d,):
        raise ValueError(
            f"{name} has {x.shape[0]} values; it must be a scalar or one for each of {d} outputs."
        )
    _require_positive(name, x)
    return jnp.broadcast_to(x, (d,)) if d else x


def _require_positive(name: str, x: jax.Array) -> jax.Array:
    if not is_traced(x) and (np.asarray(x) <= 0).any():
        raise ValueError(f"{name} must be > 0, got {np.asarray(x).min():g}.")
    return x


def _stop(tol, maxiter, method, dtype):
    """tol and maxiter as arrays, checked."""
    tol = as_float("tol", (1e-6 if dtype == jnp.float64 else 1e-4) if tol is None else tol, (0,), dtype)
    if not is_traced(tol) and not tol >= 0:
        raise ValueError(f"tol must be >= 0, got {tol:g}.")
    maxiter = (100 if method == "auto" else 20_000) if maxiter is None else maxiter
    if isinstance(maxiter, bool) or not isinstance(maxiter, (int, np.integer)) or maxiter < 0:
        raise ValueError(f"maxiter must be an integer >= 0, got {maxiter!r}.")
    return tol, jnp.int32(maxiter)


class _Fitted(NamedTuple):
    """Solutions of every output (first axis): of the starts, then of the pairs of strengths (second)."""

    lasso: Lasso
    intercept: jax.Array


def _train(data, lams, betas, start_lams, tol, maxiter, mu, growth, algorithm) -> _Fitted:
    """All outputs without the others' part at ``start_lams`` (S, d), then at the pairs of ``lams``, ``betas``
    (L, d); again with a larger bucket where the first is too small.
    """
    p = data.Y.shape[0] + (data.X.shape[1] if data.input == "linear" else data.Y.shape[0])
    traced = is_traced(data.Y) or is_traced(lams)
    bucket = min(p, 256 if traced else BUCKET)
    while True:
        fitted = _train_bucket(
            data, lams, betas, start_lams, tol, maxiter, mu, growth, algorithm=algorithm, bucket=bucket
        )
        status = fitted.lasso.status
        if traced or bucket == p or not (np.asarray(status) == FULL).any():
            break
        bucket = min(p, 3 * bucket)
    ended = fitted.lasso._replace(status=jnp.where(status == FULL, MAX_ITER, status))
    return fitted._replace(lasso=ended)


@partial(jax.jit, static_argnames=("algorithm", "bucket"))
def _train_bucket(data, lams, betas, start_lams, tol, maxiter, mu, growth, *, algorithm, bucket) -> _Fitted:
    Y = data.Y
    n, d = Y.shape
    F = _inputs(data, data.X)
    Ft = (F - jnp.mean(F, axis=0, keepdims=True)).T  # shared by the outputs
    q = Ft.shape[0]
    mean = jnp.mean(Y, axis=0)

    def solve(At, y, limits):
        if algorithm == "auto":
            return solve_path(At, y, limits, tol, maxiter, bucket)
        if algorithm == "admm":
            one = lambda limit: _ofa_admm.admm(At, y, limit, tol, maxiter, mu)
        else:
            one = lambda limit: _ofa_admm.printed(At, q, y, limit, tol, maxiter, mu, growth)
        return lax.map(one, limits)

    def output(j):
        others = jnp.where(jnp.arange(d)[None] == j, 0, Y)
        G = _kernel(data.kernel, data.degree, data.output_bandwidth[j], others, others)
        At = jnp.concatenate([Ft, (G - jnp.mean(G, axis=0, keepdims=True)).T])
        y = Y[:, j] - mean[j]
        # No residual is longer than y: at this strength no column of G can enter.
        off = 1 + 2 * jnp.sqrt(jnp.max(jnp.sum(At * At, axis=1)) * jnp.sum(y * y))
        lam = jnp.concatenate([start_lams[:, j], lams[:, j]])
        beta = jnp.concatenate([jnp.broadcast_to(off, start_lams.shape[:1]), betas[:, j]])
        half = lambda strengths, size: jnp.broadcast_to(strengths[:, None] / 2, (strengths.shape[0], size))
        solved = solve(At, y, jnp.concatenate([half(lam, q), half(beta, n)], axis=1))
        means = jnp.concatenate([jnp.mean(F, axis=0), jnp.mean(G, axis=0)])
        return _Fitted(solved, mean[j] - solved.z @ means)

    # As many at a time as fit in about a gigabyte, in rounds of equal size; the last repeats a few.
    together = min(TOGETHER, max(1, 2**27 // ((n + q) * n)))
    rounds = -(-d // together)
    together = -(-d // rounds)
    fitted = lax.map(output, jnp.arange(rounds * together) % d, batch_size=together)
    return jax.tree.map(lambda leaf: leaf[:d], fitted)


def _inputs(data: "_Data | Model", X: jax.Array) -> jax.Array:
    """The columns that u belongs to, for the rows of X."""
    return X if data.input == "linear" else _kernel(data.kernel, data.degree, data.bandwidth, X, data.X)


def _kernel(kernel: Kernel, degree: int, bandwidth: jax.Array, X: jax.Array, Z: jax.Array) -> jax.Array:
    if kernel == "gaussian":
        return kernels.gaussian(X, Z, bandwidth=bandwidth)
    return kernels.polynomial(X, Z, degree=degree) if kernel == "polynomial" else kernels.linear(X, Z)


def _model(data: _Data, fitted: _Fitted, start: int, joint: int) -> Model:
    """The model of two of the solutions, by their index on the second axis."""
    pick = lambda i: jax.tree.map(lambda leaf: leaf[:, i], fitted.lasso)
    start_lasso, lasso = pick(start), pick(joint)
    q = lasso.z.shape[1] - data.Y.shape[0]
    return Model(
        X=data.X, Y=data.Y, u=lasso.z[:, :q], v=lasso.z[:, q:], intercept=fitted.intercept[:, joint],
        start_u=start_lasso.z[:, :q], start_intercept=fitted.intercept[:, start], bandwidth=data.bandwidth,
        output_bandwidth=data.output_bandwidth, solution=_solution(lasso),
        start_solution=_solution(start_lasso), kernel=data.kernel, degree=data.degree, input=data.input,
    )  # fmt: skip


def _solution(lasso: Lasso) -> Solution:
    unknown = jnp.full_like(lasso.gap, jnp.nan)
    none = jnp.zeros((lasso.gap.shape[0], 0), lasso.gap.dtype)
    return Solution(
        lasso.z, lasso.objective, lasso.gap, unknown, lasso.num_iters, lasso.status, History(none, none)
    )


def _support(v: jax.Array) -> int:
    """Kernels between outputs that a prediction evaluates for each: a power of 2, so that few programs do."""
    if is_traced(v):
        return v.shape[1]
    most = int((np.asarray(v) != 0).sum(axis=1).max())
    return min(v.shape[1], 1 << max(most - 1, 0).bit_length())


@partial(jax.jit, static_argnames="support")
def _predict(model: Model, X, rows, tol, maxiter, *, support) -> Prediction:
    d = model.Y.shape[1]
    F = _inputs(model, X)
    shift = jnp.mean(model.Y, axis=0) if model.kernel == "gaussian" else jnp.zeros(d, X.dtype)
    used = lax.top_k((model.v != 0).astype(jnp.int32), support)[1]  # (d, support)
    centers = (model.Y - shift[None])[used] * (1 - jnp.eye(d, dtype=X.dtype))[:, None]
    outputs = Outputs(centers, jnp.take_along_axis(model.v, used, axis=1), model.output_bandwidth, shift)
    scale = jnp.std(model.Y, axis=0)
    scale = jnp.where(scale > 0, scale, 1)
    base = F @ model.u.T + model.intercept[None]
    start = F @ model.start_u.T + model.start_intercept[None]
    return search(model.kernel, model.degree, outputs, base, start, model.Y[rows], scale, tol, maxiter)
