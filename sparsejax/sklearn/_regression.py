"""Linear regression with any loss and penalty."""

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from sparsejax.losses import LinearModelLoss
from sparsejax.problem import Problem
from sparsejax.sklearn._problems import (
    REGRESSION,
    Fitted,
    as_penalty,
    choose,
    fitted,
    loss_of,
    mean_of,
)
from sparsejax.sklearn._tables import FLOATS, as_sample_weight, gathered, precision, validate_data


class LinearRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Base of the linear regressors: predictions from ``coef_``."""

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def predict(self, X: Any) -> np.ndarray:
        """The expected y, (n,) or (n, outputs): ``X coef' + intercept``, or for "poisson" its exponential."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=FLOATS, reset=False, accept_sparse="csr")
        H: np.ndarray = X @ self.coef_.T + self.intercept_
        if self._mean is None:
            return H
        with precision(H):
            return np.asarray(self._mean.mean(H))

    def _read(self, X: Any, y: Any) -> tuple[Any, np.ndarray]:
        options = {"multi_output": True, "y_numeric": True, "accept_sparse": "csr"}
        X, y = validate_data(self, X, y, dtype=FLOATS, **options)
        return X, y

    def _make(self) -> Any:
        """The function that makes the loss."""
        if callable(self.loss):
            return self.loss
        return choose("loss", self.loss, REGRESSION, " or a function that makes a loss")

    def _keep(self, found: Fitted, loss: LinearModelLoss, y: np.ndarray) -> Self:
        """Set the fitted attributes."""
        flat = y.ndim == 1
        self.coef_ = found.coef[0] if flat else found.coef
        self.intercept_ = found.intercept[0] if flat else found.intercept
        self.gap_, self.n_iter_, self._mean = found.gap, found.num_iters, mean_of(loss)
        return self


class SparseRegressor(LinearRegressor):
    r"""Linear regression in which a penalty selects features.

    .. math:: \min_{W,b} \frac{1}{\sum_i s_i} \sum_i s_i\, \phi(x_i^\top W + b;\, y_i) + g(W) ,

    where s are the sample weights: weight k counts as k copies of the row, weight 0 leaves the row out. At
    equal strengths ``penalty="l1"`` is scikit-learn's Lasso and ``"l21"`` its MultiTaskLasso. Columns of X
    should be on comparable scales, as a StandardScaler makes them.

    float64 data are solved in float64, even if JAX's 64-bit numbers are switched off, and float32 data in
    float32. Data sets of similar size share a compiled program. X may be a matrix or array of scipy.sparse,
    which is never made dense.

    Args:
      penalty: "l21" (rows of coefficients vanish for all outputs at once), "l1", "l1_inf", "exclusive_lasso",
        "exclusive_l21"; or a penalty of `sparsejax.penalties`, such as ``L1(0.1) + NonNegative()``, whose own
        strengths then apply instead of alpha and beta.
      loss: phi: "squared" (half the square), "huber", "poisson"; or a function that makes a
        `losses.LinearModelLoss`, such as ``functools.partial(losses.HuberLoss, delta=2.0)``.
      alpha: >= 0, () or (d,), the strength of the row norms (for "l1": of the absolute values).
      beta: >= 0, () or (d,), the strength of the exclusive part, if the penalty has one.
      fit_intercept: fit b, which is not penalised.
      tol: largest relative duality gap; None is 1e-6 for float64 and 1e-4 for float32.
      max_iter: largest number of iterations.

    Attributes:
      coef_: (d,), or (outputs, d) for a y with columns; exact zeros.
      intercept_: () or (outputs,).
      gap_: the certificate: no coefficients have an objective lower by more than this share of it; NaN if
        none is known (`sparsejax.Solution`).
      n_iter_: number of iterations made.
      n_features_in_, feature_names_in_: the number and the names of the columns of X.

    Raises:
      TypeError, ValueError: an argument is not as above, which the message names; or scikit-learn refuses it.

    Warns:
      sparsejax.ConvergenceWarning: the gap did not reach tol.

    >>> import numpy as np
    >>> from sparsejax.sklearn import SparseRegressor
    >>> X = np.random.default_rng(0).standard_normal((50, 6))
    >>> model = SparseRegressor("l1", alpha=0.1).fit(X, 2 * X[:, 0] - X[:, 3])
    >>> np.flatnonzero(model.coef_).tolist(), model.gap_ < 1e-6
    ([0, 3], True)
    """

    def __init__(
        self,
        penalty: Any = "l21",
        *,
        loss: Any = "squared",
        alpha: Any = 0.01,
        beta: Any = 0.01,
        fit_intercept: bool = True,
        tol: float | None = None,
        max_iter: int = 20_000,
    ):
        self.penalty = penalty
        self.loss = loss
        self.alpha = alpha
        self.beta = beta
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to X (n, d) and y (n,) or (n, outputs)."""
        X, y = self._read(X, y)
        weights = as_sample_weight(sample_weight, len(y))
        widen = isinstance(self.penalty, str)
        table = gathered(X, y.reshape(len(y), -1), weights, widen=widen)
        with precision(X):
            penalty = as_penalty(self.penalty, self.alpha, self.beta, X.shape[1], table.X.shape[1])
            loss = loss_of(table, self._make(), self.fit_intercept)
            found = fitted(Problem(loss, penalty), X.shape[1], self.tol, self.max_iter)
            return self._keep(found, loss, y)
