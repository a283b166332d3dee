"""The fit at given strengths."""

import contextlib
from typing import Literal

from jax.typing import ArrayLike

from sparsejax._core.checks import as_positive, check_bool, check_choice, is_traced
from sparsejax._core.progress import bar_of, check_progress
from sparsejax.models.ofa_lasso._fitted import Model, model_of, solution_of
from sparsejax.models.ofa_lasso._kernel_columns import MAXITER, Input, Kernel, check, stopping, strength
from sparsejax.models.ofa_lasso._train import solves, train
from sparsejax.solution import warn_unconverged

NAME = "ofa_lasso.fit"


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
    progress: bool = False,
) -> Model:
    r"""Fit every output by the inputs, the other outputs and an intercept.

    With :math:`K_{ip} = k(x_i, x_p)` and :math:`G^j_{ip} = k_j(y_i^{-j}, y_p^{-j})`, for each j

    .. math:: \min_{u,v,b} \|y^j - Ku - G^jv - b\|_2^2 + \lambda\|u\|_1 + \beta\|v\|_1 .

    ``method="auto"`` solves working sets exactly and certifies the result by the duality gap in all
    columns. ``method="admm"`` is the alternating direction method with two blocks and a fixed ``mu``, which
    converges but is slower. With ``faithful=True`` it is Algorithm 1 of the paper, with four blocks and a
    ``mu`` that is multiplied by ``growth`` at every step. **That algorithm stops too early**: on a problem
    with 14 rows and weak strengths its objective is up to 1.8 times the optimum at ``growth`` 1.01, and 3.4
    times at 2; its status is then stalled, not converged. (The paper does not state mu and growth.)

    Args:
      X: (n, k), n >= 2.
      Y: (n, d), d >= 2; outputs should be on comparable scales, since they share strengths and kernels.
      lam, beta: > 0, shape () or (d,), one value for each output.
      kernel: "gaussian"; "polynomial", :math:`(x^\top x' + 1)^{\text{degree}}`; or "linear", for which the
        part of the outputs is superfluous (Prop. II.1 of the paper).
      input: "kernel", or "linear" for ``x'u`` in place of ``Ku`` (groups II and I of the paper).
      bandwidth: bandwidth of a Gaussian k, > 0, shape (); default `kernels.median_bandwidth` of X. It is
        ignored for other kernels and for ``input="linear"``.
      output_bandwidth: bandwidth of Gaussian k_j, > 0, shape () or (d,), ignored for other kernels; default
        `kernels.median_bandwidth` of Y without column j.
      degree: degree of the polynomial kernel.
      method, faithful, mu, growth: see above; mu > 0 and growth >= 1 are for ``"admm"`` only.
      tol: bound on the relative duality gap; default 1e-6, in float32 1e-4.
      maxiter: rounds of the working set, default 100; iterations of ``"admm"``, default 20000.
      progress: show a progress bar with the last gap, by tqdm, and stop at Ctrl-C after the running batch of
        up to four outputs. The bar counts two solves for each batch: without and with the part of the others.

    Returns:
      `Model`. Under jit the working set has at most 256 columns; if that is too few, the status is
      ``MAX_ITER``.

    Raises:
      Interrupted: Ctrl-C, with ``progress=True``. Its ``partial`` is None, since a model needs all outputs.
      TypeError, ValueError: arrays that are not finite or do not fit together; fewer than two rows or
        outputs; strengths or bandwidths <= 0; a median distance of 0, or one whose square
        overflows or underflows, where a bandwidth is not given.

    Warns:
      ConvergenceWarning: outside jit, some solves did not converge: of the outputs, or of the lassos from
        which predictions start.
    Source: Zhang et al., ICDM 2014, Eq. (10), with the bias of Eq. (8).

    >>> import numpy as np
    >>> from sparsejax.models import ofa_lasso
    >>> X, Y = np.random.default_rng(0).standard_normal((2, 6, 2))
    >>> model = ofa_lasso.fit(X, Y, lam=0.5, beta=0.5)
    >>> model.predict(X).shape, bool(model.solution.converged.all())
    ((6, 2), True)
    """
    data = check(X, Y, kernel, input, bandwidth, output_bandwidth, degree)
    d, dtype = data.Y.shape[1], data.Y.dtype
    lam, beta = strength("lam", lam, d, dtype), strength("beta", beta, d, dtype)
    check_choice("method", method, tuple(MAXITER))
    check_bool("faithful", faithful)
    if faithful and method != "admm":
        raise ValueError("faithful=True is Algorithm 1 of the paper: give method='admm' with it.")
    mu, growth = as_positive("mu", mu, dtype), as_positive("growth", growth, dtype)
    if not is_traced(growth) and not growth >= 1:
        raise ValueError(f"growth must be >= 1, got {growth:g}.")
    algorithm = "printed" if faithful else method
    ends = stopping(tol, maxiter, method, dtype)
    check_progress(NAME, progress, (data, lam, beta, ends))
    total = solves(data.Y.shape, data.num_inputs, 2)
    with bar_of(NAME, total) if progress else contextlib.nullcontext() as bar:
        fitted = train(data, lam[None], beta[None], lam[None], *ends, mu, growth, algorithm, bar)
    warn_unconverged(None, solution_of(fitted.lasso), ends[0])
    return model_of(data, fitted, 0, 1)
