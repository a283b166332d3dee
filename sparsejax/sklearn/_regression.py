"""Linear regression with any loss and penalty."""

import functools
import numbers
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_consistent_length

from sparsejax import losses
from sparsejax.losses import LinearModelLoss
from sparsejax.sklearn._problems import REGRESSION, Fitted, choose, fitted_to, mean_of
from sparsejax.sklearn._tables import Estimator, as_sample_weight, precision, validated
from sparsejax.sklearn._targets import Targets, as_exposure, as_targets, checked_y, default_smoothing, exposed


@dataclass(eq=False, repr=False)
class LinearRegressor(Estimator, MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Base of the linear regressors: their common parameters, and predictions from ``coef_``."""

    penalty: Any = "l21"
    _: KW_ONLY
    loss: Any = "squared"
    quantile: float = 0.5
    groups: Any = None
    fit_intercept: bool = True
    tol: float | None = None
    max_iter: int = 20_000

    _true_tags = ("input_tags.sparse",)

    def predict(self, X: Any, offset: Any = None) -> np.ndarray:
        """Predictions, (n,) or (n, outputs): ``X coef' + intercept``, or the mean that the loss gives.

        For "poisson" the mean is the exponential of ``X coef' + intercept``; for "quantile" the prediction is
        the quantile itself.

        Args:
          X: (n, d).
          offset: (n,), added to ``X coef' + intercept``, for ``loss="poisson"`` only.
        """
        X = self._rows(X)
        exposure = as_exposure(offset, self.loss, X.shape[0])
        H: np.ndarray = X @ self.coef_.T + self.intercept_
        if self._mean is None:
            return H
        with precision(H):
            mean = np.asarray(self._mean.mean(H))
        if exposure is None:
            return mean
        return mean * exposure.astype(mean.dtype).reshape(-1, *(1,) * (mean.ndim - 1))

    def score(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None) -> float:
        """The mean over outputs of R^2; entries that are NaN or have weight 0 do not count."""
        predicted = np.asarray(self.predict(X, offset), float)
        y = checked_y(self, y).astype(float)
        check_consistent_length(predicted, y)
        predicted, Y = predicted.reshape(len(y), -1), y.reshape(len(y), -1)
        if Y.shape != predicted.shape:
            raise ValueError(f"y has {Y.shape[1]} output(s), but the fit had {predicted.shape[1]}.")
        weights = as_sample_weight(sample_weight, *Y.shape)
        each = weights if weights.ndim > 1 else np.broadcast_to(weights[:, None], Y.shape)
        seen = ~np.isnan(Y) & (each > 0)
        if not seen.any(axis=0).all():
            column = int(np.argmin(seen.any(axis=0)))
            raise ValueError(f"output {column} has no observed target with a sample_weight above 0.")
        scores = [
            r2_score(Y[rows, j], predicted[rows, j], sample_weight=each[rows, j])
            for j, rows in enumerate(seen.T)
        ]
        return float(np.mean(scores))

    def _read(self, X: Any, y: Any, sample_weight: Any, offset: Any) -> tuple[Any, Targets]:
        X = validated(self, X)
        return X, as_targets(self, X, y, sample_weight, offset)

    def _make(self, targets: Targets) -> Any:
        """The function that makes the loss."""
        if isinstance(self.loss, losses.Loss):
            raise TypeError(
                "loss must be a name or a function that makes a loss, such as losses.SquaredLoss, got a loss "
                f"that already holds data, {type(self.loss).__name__}."
            )
        names = {**REGRESSION, "quantile": losses.QuantileLoss}
        given = callable(self.loss)
        make = self.loss if given else choose("loss", self.loss, names, " or a function that makes a loss")
        if self.loss != "quantile" and self.quantile != 0.5:
            raise ValueError(f"quantile={self.quantile!r} needs loss='quantile', got loss={self.loss!r}.")
        if given:
            return make
        if targets.exposure is not None:
            return exposed
        if self.loss == "quantile":
            q = self.quantile
            if isinstance(q, bool) or not isinstance(q, numbers.Real) or not 0 < float(q) < 1:
                raise ValueError(f"quantile must be a number above 0 and below 1, got {q!r}.")
            smoothing = default_smoothing(targets.Y, targets.weights)
            return functools.partial(make, q=float(q), smoothing=smoothing)
        return make

    def _keep(self, found: Fitted, loss: LinearModelLoss, y: np.ndarray) -> Self:
        """Set the fitted attributes."""
        flat = y.ndim == 1
        self.coef_ = found.coef[0] if flat else found.coef
        self.intercept_ = found.intercept[0] if flat else found.intercept
        self.gap_, self.n_iter_, self._mean = found.gap, found.num_iters, mean_of(loss)
        return self


@dataclass(eq=False, repr=False, kw_only=True)
class SparseRegressor(LinearRegressor):
    r"""Linear regression in which a penalty selects features.

    .. math:: \min_{W,b} \frac{1}{\sum_i s_i} \sum_i s_i\, \phi(x_i^\top W + b;\, y_i) + g(W) ,

    where s are the sample weights: weight k counts as k copies of the row, weight 0 leaves the row out. With
    weights by entry, :math:`s_{ij}`, the sum of the weighted losses of all entries is divided by the sum of
    the weights per output, :math:`\sum_{ij} s_{ij} / k` for k outputs. A target that is NaN was not observed:
    it has weight 0, and no influence. At equal
    strengths ``penalty="l1"`` is scikit-learn's Lasso and ``"l21"`` its MultiTaskLasso. Columns of X should
    be on comparable scales, as a StandardScaler makes them.

    float64 data are solved in float64, even if JAX's 64-bit numbers are switched off, and float32 data in
    float32. Data sets of equally many columns and about as many rows share a compiled program. X may be a
    matrix or array of scipy.sparse, which is made dense only up to 511 columns and 128 MB.

    Args:
      penalty: "l21" (rows of coefficients vanish for all outputs at once), "l1", "l1_inf", "exclusive_lasso",
        "exclusive_l21", "group_lasso" (groups of columns vanish together); or a penalty of
        `sparsejax.penalties`, such as ``L1(0.1) + NonNegative()``, whose own strengths then apply instead of
        alpha and beta.
      loss: phi: "squared" (half the square), "huber", "poisson", "quantile"; or a function that makes a
        `losses.LinearModelLoss`, such as ``functools.partial(losses.HuberLoss, delta=2.0)``.
      quantile: between 0 and 1, for "quantile": 0.5 is the median. The corner of the pinball loss is rounded
        over 1/100 of the interquartile range of y, which lowers the loss by at most 1/200 of that range
        (`losses.QuantileLoss`, with this ``smoothing``; of several outputs the smallest range counts, and
        for a range of 0 the mean absolute deviation from the median).
      groups: for "group_lasso", :math:`\sum_g \alpha_g \|W_g\|_F`: a list with an entry for each group. An
        entry is a list of columns (indices, or names), or a text with which the names of the columns begin,
        as "color_" after one-hot encoding. Or a ColumnTransformer, or the names of its output columns: each
        transformer is then a group. A column in none of the groups is a group of its own.
      alpha: >= 0, () or (d,), the strength of the row norms (for "l1": of the absolute values). For
        "group_lasso" () or one value for each group, not multiplied by the root of the size of the group.
      beta: >= 0, () or (d,), the strength of the exclusive part, if the penalty has one.
      fit_intercept: fit b, which is not penalised.
      tol: largest relative duality gap; None is 1e-6 for float64 and 1e-4 for float32.
      max_iter: largest number of iterations.

    Attributes:
      coef_: (d,), or (outputs, d) for a y with columns; exact zeros.
      intercept_: () or (outputs,).
      gap_: the certificate: no coefficients lower the objective by more than ``gap_`` times the objective, or
        times its value at 0 if that is larger; NaN if none is known (`sparsejax.Solution`).
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
    >>> model = SparseRegressor("group_lasso", groups=[[0, 1], [2, 3]], alpha=0.2).fit(X, X[:, 0])
    >>> np.flatnonzero(model.coef_).tolist()  # columns 0 and 1 stay together
    [0, 1]
    >>> model = SparseRegressor("l1", loss="quantile", quantile=0.9).fit(X, X[:, 0] + X[:, 1] ** 2)
    >>> bool(0.8 < np.mean(X[:, 0] + X[:, 1] ** 2 <= model.predict(X)) < 1)
    True
    """

    alpha: Any = 0.01
    beta: Any = 0.01

    def fit(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None) -> Self:
        """Fit to X (n, d) and y (n,) or (n, outputs).

        Args:
          X: (n, d).
          y: (n,) or (n, outputs); NaN is a target that was not observed, which has no influence.
          sample_weight: (n,), or (n, outputs) by entry of y, >= 0.
          offset: (n,), for ``loss="poisson"``: the mean is ``exp(x'w + b + offset)``. For an exposure t, as
            the length of time in which a count was taken, it is log t.
        """
        X, targets = self._read(X, y, sample_weight, offset)
        with precision(X):
            found, loss = fitted_to(self, X, targets.columns, targets.weights, self._make(targets))
            return self._keep(found, loss, targets.y)
