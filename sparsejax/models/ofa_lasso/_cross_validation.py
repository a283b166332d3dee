"""Cross-validation of the strengths, with a grid of strengths for each fold in one call."""

import contextlib
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float, as_int, is_traced
from sparsejax._core.matrices.sparse import as_dense
from sparsejax._core.precision import users_level
from sparsejax._core.progress import Bar, Interrupted, bar_of, check_progress
from sparsejax.models.ofa_lasso._fitted import model_of, predict, support_of
from sparsejax.models.ofa_lasso._kernel_columns import Data, Input, Kernel, check, require_positive, stopping
from sparsejax.models.ofa_lasso._train import Fitted, solves, train
from sparsejax.solution import CONVERGED, ConvergenceWarning

NAME = "ofa_lasso.cross_validate"


class CrossValidation(NamedTuple):
    """Errors for all pairs of strengths on K folds, and the best strengths.

    Attributes:
      lams, betas: (a,) and (b,), the candidates for the strengths of the inputs and of the outputs.
      fold_mae: (K, a, b), ``1/m sum_i sum_j |y_ij - predicted_ij|`` over the m rows left out.
      start_mae: (K, a), the same error of the independent lassos, from which the predictions start.
      gap: (K, a, b), the largest relative duality gap of all outputs, and of the lassos of this strength from
        which the predictions start.
      converged: (K, a, b), whether the fits of all outputs, and these lassos, converged.
      lam, beta: (), the pair with the least mean of ``fold_mae`` over the folds.
      start_lam: (), the candidate in ``lams`` with the least mean of ``start_mae``.

    >>> import numpy as np
    >>> from sparsejax.models import ofa_lasso
    >>> X, Y = np.random.default_rng(0).standard_normal((2, 6, 2))
    >>> result = ofa_lasso.cross_validate(X, Y, np.array([0.5]), np.array([0.5]), folds=2)
    >>> float(result.lam), result.fold_mae.shape
    (0.5, (2, 1, 1))
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
    progress: bool = False,
) -> CrossValidation:
    """The prediction error on rows left out, for every pair of strengths.

    All outputs and pairs of a fold are fitted in one compiled call, each pair starting from the solution of a
    neighbouring pair. The function works on the host and cannot be used under jit.

    Args:
      X, Y: as `fit`.
      lams, betas: the candidates, > 0, shapes (a,) and (b,).
      folds: K >= 2; row i is left out in fold ``i % K`` (shuffle sorted rows first).
      kernel, input, bandwidth, output_bandwidth, degree, tol, maxiter: as `fit`; a default bandwidth is the
        median over the rows of the fold that are fitted.
      num_starts: as `Model.predict_with_info`.
      progress: show a progress bar with the last gap, and stop at Ctrl-C, as `fit`: after a batch of outputs
        has been solved for all candidates.

    Returns:
      `CrossValidation`.

    Raises:
      Interrupted: Ctrl-C, with ``progress=True``. Its ``partial`` is the `CrossValidation` of the finished
        folds, or None.
      TypeError, ValueError: as `fit`; traced arguments; no candidates; fewer than two folds, or folds that
        leave fewer than two rows.

    Warns:
      ConvergenceWarning: fits of some folds did not converge.
      UserWarning: no pair of strengths has a finite error on all folds.
    Source: Zhang et al., ICDM 2014, Section IV (strengths 0.1 * 5^1..5^5, two folds).

    >>> import numpy as np
    >>> from sparsejax.models import ofa_lasso
    >>> X, Y = np.random.default_rng(0).standard_normal((2, 6, 2))
    >>> result = ofa_lasso.cross_validate(X, Y, np.array([0.5]), np.array([0.5]), folds=2)
    >>> float(result.lam), result.fold_mae.shape
    (0.5, (2, 1, 1))
    """
    if any(map(is_traced, jax.tree.leaves((X, Y, lams, betas)))):
        raise TypeError("ofa_lasso.cross_validate works on the host: call it outside jit and vmap.")
    X, Y = as_dense("X", X), as_float("Y", Y, (2,))
    lams, betas = (
        require_positive(name, jnp.atleast_1d(as_float(name, x, (0, 1), Y.dtype)))
        for name, x in (("lams", lams), ("betas", betas))
    )
    if not (lams.size and betas.size):
        raise ValueError("lams and betas must each hold at least one strength.")
    n = X.shape[0]
    if Y.shape[0] != n:
        raise ValueError(f"X has {n} rows and Y has {Y.shape[0]}.")
    folds = as_int("folds", folds, 2)
    if folds > n or n - -(-n // folds) < 2:
        raise ValueError(f"folds must be at most the {n} rows and leave two of them, got {folds}.")
    check_progress(NAME, progress, (X, Y, lams, betas))
    results: list[tuple[jax.Array, ...]] = []
    rows, strengths = n - -(-n // folds), lams.shape[0] * (1 + betas.shape[0])
    num_starts = as_int("num_starts", num_starts, 1, rows + 1)
    total = solves((rows, Y.shape[1]), X.shape[1] if input == "linear" else rows, strengths)
    try:
        with bar_of(NAME, folds * total) if progress else contextlib.nullcontext() as bar:
            for fold in range(folds):
                if bar is not None:
                    bar.before = fold * total
                out = np.arange(n) % folds == fold
                data = check(X[~out], Y[~out], kernel, input, bandwidth, output_bandwidth, degree)
                fitted, index = train_grid(data, lams, betas, *stopping(tol, maxiter, "auto", Y.dtype), bar)
                results.append(_fold_errors(data, fitted, index, X[out], Y[out], num_starts, bar))
            if bar is not None:
                bar.check()
    except Interrupted:
        known = _chosen(lams, betas, results) if results else None
        raise Interrupted(f"{NAME}: interrupted after {len(results)} of {folds} folds", known) from None
    return _chosen(lams, betas, results)


def _chosen(lams: jax.Array, betas: jax.Array, results: list[tuple[jax.Array, ...]]) -> CrossValidation:
    """The `CrossValidation` of the finished folds, with the best strengths."""
    mae, start_mae, gap, converged = (jnp.stack(values) for values in zip(*results, strict=True))
    # An error that is not finite is never the least.
    means = (jnp.mean(x, axis=0) for x in (mae, start_mae))
    mean, start_mean = (jnp.where(jnp.isfinite(x), x, jnp.inf) for x in means)
    if not bool(jnp.isfinite(mean).any()):
        text = "ofa_lasso.cross_validate: no pair of strengths has a finite error on all folds."
        warnings.warn(text, UserWarning, stacklevel=users_level())
    if missed := int((~converged).sum()):
        worst = float(jnp.max(jnp.where(converged, 0, gap)))
        text = (
            f"{missed} of {converged.size} pairs of strengths and folds have a fit that did not converge "
            f"(relative duality gap {worst:.1e})."
        )
        warnings.warn(text, ConvergenceWarning, stacklevel=users_level())
    i, j = np.unravel_index(int(jnp.argmin(mean)), mae.shape[1:])
    start = jnp.argmin(start_mean)
    return CrossValidation(lams, betas, mae, start_mae, gap, converged, lams[i], betas[j], lams[start])


def train_grid(
    data: Data,
    lams: jax.Array,
    betas: jax.Array,
    tol: jax.Array,
    maxiter: jax.Array,
    bar: Bar | None = None,
) -> tuple[Fitted, np.ndarray]:
    """The fits of all outputs at all pairs of strengths, and the index of each pair in `Fitted`, (a, b).

    The path takes the strengths of the outputs from large to small. For each of them it goes through the
    strengths of the inputs, upwards and downwards in turn, so that every step is between neighbours.
    """
    a, b, d = lams.shape[0], betas.shape[0], data.Y.shape[1]
    down_lam, down_beta = np.argsort(-np.asarray(lams)), np.argsort(-np.asarray(betas))
    index = np.zeros((a, b), int)
    pairs = [(i, j) for k, j in enumerate(down_beta) for i in (down_lam if k % 2 else down_lam[::-1])]
    for position, pair in enumerate(pairs):
        index[pair] = a + position
    of_lam, of_beta = np.asarray(pairs).T
    joint_lams, joint_betas, start_lams = (
        jnp.broadcast_to(x[:, None], (x.shape[0], d)) for x in (lams[of_lam], betas[of_beta], lams[down_lam])
    )
    zero = jnp.zeros((), data.Y.dtype)
    fitted = train(data, joint_lams, joint_betas, start_lams, tol, maxiter, zero, zero, "auto", bar)
    # In the result the starts come first, in the order of ``lams``, then the pairs.
    order = np.concatenate([np.argsort(down_lam), np.arange(a, a + a * b)])
    return jax.tree.map(lambda leaf: leaf[:, order], fitted), index


def _fold_errors(
    data: Data,
    fitted: Fitted,
    index: np.ndarray,
    X: jax.Array,
    Y: jax.Array,
    num_starts: int,
    bar: Bar | None,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Errors of prediction of the pairs and of the starts, gaps and convergence."""

    def error(predicted: jax.Array) -> float:
        return float(jnp.mean(jnp.sum(jnp.abs(Y - predicted), axis=1)))

    a, b = index.shape
    support = support_of(fitted.lasso.z[:, :, data.num_inputs :].reshape(-1, data.Y.shape[0]))
    mae, start_mae = np.zeros((a, b)), np.zeros(a)
    for i in range(a):
        for j in range(b):
            if bar is not None:
                bar.check()
            model = model_of(data, fitted, i, int(index[i, j]))
            info = predict(model, X, num_starts, None, 200, support)  # one program for all pairs
            mae[i, j], start_mae[i] = error(info.y), error(info.start)
    # Of all outputs at each start, the first a entries, and at each pair.
    gap, ended = jnp.max(fitted.lasso.gap, axis=0), jnp.all(fitted.lasso.status == CONVERGED, axis=0)
    worst, converged = jnp.maximum(gap[index], gap[:a, None]), ended[index] & ended[:a, None]
    return jnp.asarray(mae, Y.dtype), jnp.asarray(start_mae, Y.dtype), worst, converged
