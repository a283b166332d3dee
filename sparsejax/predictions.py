"""Predictions on new rows, from a solution and its problem."""

from typing import Any

import jax
import jax.numpy as jnp

from sparsejax._core.checks import as_float, check_bool, is_sparse
from sparsejax._core.compiled import Compiled
from sparsejax._core.matrices.sparse import as_matrix
from sparsejax._core.precision import full_precision
from sparsejax.losses import BatchedSquaredLoss, CoxLoss, GramLoss, LinearModelLoss, SumLoss
from sparsejax.problem import Problem, as_protocol
from sparsejax.solution import Solution

# The intercept of a loss at W as one program, where JAX would compile a dozen small ones.
intercept_of = Compiled(lambda loss, W: loss.intercept(W))


@full_precision()
def predict(solution: Solution, problem: Problem, X: Any, *, linear: bool = False) -> jax.Array:
    r"""The expected value of Y for the rows of X, :math:`\mu(XW + b)`.

    W is ``solution.params`` and b ``problem.smooth.intercept(solution.params)``, which is 0 if the loss has
    no intercept, such as `GramLoss`. :math:`\mu` is the ``mean`` of the loss: the probability of 1 for
    `LogisticLoss`, the probabilities of the classes for `SoftmaxLoss`, the rate for `PoissonLoss`, and XW + b
    for all other losses of this library; for `CoxLoss` this is the logarithm of the relative risk. The
    function may be called in jit, vmap and grad.

    Args:
      solution: the `Solution` of one problem. For the batch of solutions of `sparsejax.path` write
        ``jax.vmap(lambda one: sj.predict(one, problem, X))(solutions)``.
      problem: the problem that was solved; the penalty has no influence.
      X: (m, d), new rows, with the columns of the data; converted to the dtype of the data. It may be sparse.
      linear: True returns XW + b for every loss.

    Returns:
      (m, k), or (m,) for a vector W.

    Raises:
      TypeError: the loss has no linear model, such as a function, a `losses.GraphLaplacian` alone, or a class
        of your own that does not inherit from `losses.LinearModelLoss`; ``solution`` is not a `Solution`.
      ValueError: X has another number of columns or is not finite, or ``solution`` is a batch.

    >>> import numpy as np, sparsejax as sj
    >>> X = np.random.default_rng(0).standard_normal((40, 5))
    >>> loss = sj.losses.LogisticLoss(X[:30], X[:30, 1] > 0, intercept=True)
    >>> problem = sj.Problem(loss, sj.penalties.L1(0.02))
    >>> solution = sj.solve(problem)
    >>> probability = sj.predict(solution, problem, X[30:])
    >>> probability.shape, bool(np.mean((probability > 0.5) == (X[30:, 1] > 0)) >= 0.9)
    ((10,), True)
    """
    check_bool("predict: linear", linear)
    if not isinstance(solution, Solution):
        kind = type(solution).__name__
        raise TypeError(
            f"predict: solution must be a sparsejax.Solution, got {kind}: predict(solution, problem, X)."
        )
    loss = as_protocol("predict", problem).smooth
    while isinstance(loss, SumLoss):
        loss = loss.loss
    if not isinstance(loss, LinearModelLoss | CoxLoss | GramLoss | BatchedSquaredLoss):
        raise TypeError(
            f"predict needs a loss of a linear model, such as SquaredLoss(X, Y), got {type(loss).__name__}: "
            "write X @ solution.params."
        )
    W, shape = solution.params, tuple(loss.params_shape)
    if jnp.shape(W) != shape:
        raise ValueError(
            f"predict: solution.params has shape {jnp.shape(W)}, and one W of this problem has {shape}: for "
            "a batch write jax.vmap(lambda one: sj.predict(one, problem, X))(solutions)."
        )
    if is_sparse(X) and not jnp.issubdtype(X.dtype, jnp.complexfloating):  # `as_matrix` refuses complex X
        from jax.experimental.sparse import BCOO, BCSR, JAXSparse  # noqa: PLC0415

        X = X.to_bcoo() if isinstance(X, BCSR) else X
        if isinstance(X, BCOO) or not isinstance(X, JAXSparse):  # `as_matrix` refuses JAX's COO, CSR and CSC
            X = X.astype(loss.dtype)
    X = as_matrix("X", X)
    if X.shape[-1] != shape[0]:
        raise ValueError(f"predict: X has {X.shape[-1]} columns; the problem has {shape[0]} features.")
    if isinstance(X, jax.Array) and X.dtype != loss.dtype:
        X = as_float("X", X, (2,), loss.dtype)  # raises if an entry is too large for this dtype
    H = X @ W
    if not isinstance(loss, GramLoss):  # it has no intercept
        H = H + intercept_of(loss, W)[None]
    return loss.mean(H) if isinstance(loss, LinearModelLoss) and not linear else H
