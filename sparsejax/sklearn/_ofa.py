"""Regression of several outputs, each of which also uses the other outputs as features."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import jax
import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin

from sparsejax import kernels, penalties
from sparsejax._core.checks import as_int, as_positive, as_strength, check_choice
from sparsejax.losses import SquaredLoss
from sparsejax.models import ofa_lasso
from sparsejax.problem import Problem
from sparsejax.sklearn._problems import check_max_iter, fitted, loss_of
from sparsejax.sklearn._tables import Estimator, centred, check_dense, filled, gathered, precision, validated


@dataclass(eq=False, repr=False)
class OFALassoRegressor(Estimator, MultiOutputMixin, RegressorMixin, BaseEstimator):
    r"""Regression of several outputs on kernels of the inputs and of the other outputs.

    .. math:: f^j(x, y^{-j}) = \sum_i u^j_i\, k(x, x_i) + \sum_i v^j_i\, k_j(y^{-j}, y^{-j}_i) + b^j ,
              \qquad
              \min_{u,v,b} \frac{1}{2n} \|y^j - f^j\|^2 + \alpha \|u^j\|_1 + \beta \|v^j\|_1 ,

    where :math:`y^{-j}` are the outputs without output j. A prediction is a y that agrees with all
    :math:`f^j`; a search finds this y, starting at the prediction by the inputs alone. With one output the
    model is a lasso on kernels of the inputs. Columns of X and of y should be on comparable scales: put a
    StandardScaler before this estimator, and a TransformedTargetRegressor around it.

    float64 data are solved in float64, even if JAX's 64-bit numbers are switched off, and float32 data in
    float32. There are no sample weights.

    Args:
      alpha: > 0, () or (outputs,); `models.ofa_lasso.fit` has ``lam = 2 n alpha``.
      beta: > 0, () or (outputs,), converted in the same way; without effect for a single output.
      kernel: "gaussian", "polynomial" or "linear", for the inputs and the outputs.
      input: "kernel", or "linear" for ``x'u`` in place of the kernels of the inputs.
      bandwidth, output_bandwidth: bandwidths of the Gaussian kernels of the inputs, (), and of the outputs,
        () or (outputs,), > 0; None for the median distance.
      degree: degree of the polynomial kernel, >= 1.
      tol: largest relative duality gap of each output; None is 1e-6 for float64 and 1e-4 for float32.
      max_iter: largest number of rounds; None is 100. For a single output the largest number of iterations;
        None is 20 000.

    Attributes:
      dual_coef_: u, (outputs, n), or (n,) for a 1-d y; only for ``input="kernel"``; exact zeros.
      coef_: u, (outputs, d), or (d,) for a 1-d y; only for ``input="linear"``; exact zeros.
      output_coef_: v, (outputs, n), only for several outputs; exact zeros.
      intercept_: (outputs,), or () for a 1-d y.
      gap_: the largest certificate of an output: no output's objective can be lower by more than this share
        of it, or of its value at 0, if that is larger.
      n_iter_: largest number of rounds of an output; for a single output the number of iterations.
      n_features_in_, feature_names_in_: the number and the names of the columns of X.

    Raises:
      TypeError, ValueError: an argument is not as above, which the message names; a bandwidth is not given
        and the median distance is 0.

    Warns:
      sparsejax.ConvergenceWarning: a gap did not reach tol.
    Source: Zhang et al., ICDM 2014, Eq. (10), at scale 1/(2n).

    >>> import numpy as np
    >>> from sparsejax.sklearn import OFALassoRegressor
    >>> X = np.random.default_rng(0).standard_normal((40, 3))
    >>> Y = np.stack([np.sin(X[:, 0]), np.sin(X[:, 0]) + 0.1 * X[:, 1]], axis=1)
    >>> model = OFALassoRegressor(alpha=0.001, beta=0.01).fit(X, Y)
    >>> model.dual_coef_.shape, model.output_coef_.shape, model.gap_ < 1e-6
    ((2, 40), (2, 40), True)
    """

    _: KW_ONLY
    alpha: Any = 0.01
    beta: Any = 0.01
    kernel: str = "gaussian"
    input: str = "kernel"
    bandwidth: float | None = None
    output_bandwidth: Any = None
    degree: int = 3
    tol: float | None = None
    max_iter: int | None = None

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to X (n, d) and y (n, outputs), or (n,) for one output."""
        check_dense("y", y)
        X, y = validated(self, X, y, multi_output=True, y_numeric=True, ensure_min_samples=2)
        if self.max_iter is not None:
            check_max_iter(self.max_iter)
        for old in {"coef_", "dual_coef_", "output_coef_"} & set(vars(self)):  # of an earlier fit
            delattr(self, old)
        self._flat = y.ndim == 1
        Y = y.reshape(len(X), -1).astype(X.dtype)
        with precision(X):
            alpha, beta = (self._strengths(name, Y.shape[1]).astype(X.dtype) for name in ("alpha", "beta"))
            one = Y.shape[1] == 1
            u = self._fit_one(X, Y, alpha) if one else self._fit_several(X, Y, alpha, beta)
        name = "coef_" if self.input == "linear" else "dual_coef_"
        setattr(self, name, u[0] if self._flat else u)
        self.intercept_ = self._intercepts[0] if self._flat else self._intercepts
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The outputs, (n, outputs), or (n,) where y was 1-d."""
        X = self._rows(X)
        with precision(self._X):
            if self._model is None:
                u = self.coef_ if self.input == "linear" else self.dual_coef_
                Y = self._columns(X) @ np.atleast_2d(u).T + self._intercepts
            else:
                Y = np.asarray(self._model.predict(filled(X)))[: len(X)]
        return Y[:, 0] if self._flat else Y

    def _strengths(self, name: str, outputs: int) -> np.ndarray:
        """The parameter with this name, (outputs,)."""
        given = np.asarray(as_strength(name, getattr(self, name)))
        if given.ndim and len(given) != outputs:
            raise ValueError(
                f"{name} has {len(given)} values; a number or one for each of {outputs} outputs."
            )
        if not given.all():
            raise ValueError(f"{name} must be > 0, got 0.")
        return np.broadcast_to(given, outputs)

    def _fit_several(self, X: np.ndarray, Y: np.ndarray, alpha: Any, beta: Any) -> np.ndarray:
        # `fit` declares Literals for ``kernel`` and ``input``, and checks the strings that come from here.
        model = ofa_lasso.fit(
            X, Y, 2 * len(X) * alpha, 2 * len(X) * beta,
            kernel=self.kernel, input=self.input, bandwidth=self.bandwidth,  # type: ignore[arg-type]
            output_bandwidth=self.output_bandwidth, degree=self.degree, tol=self.tol, maxiter=self.max_iter,
        )  # fmt: skip
        solution = model.solution
        self._X, self._model = X, jax.tree.map(np.asarray, model)
        self._intercepts, self.output_coef_ = self._model.intercept, self._model.v
        self.gap_, self.n_iter_ = float(solution.gap.max()), int(solution.num_iters.max())
        return np.asarray(self._model.u)

    def _fit_one(self, X: np.ndarray, Y: np.ndarray, alpha: Any) -> np.ndarray:
        check_choice("input", self.input, ("kernel", "linear"))
        check_choice("kernel", self.kernel, ("gaussian", "polynomial", "linear"))
        as_int("degree", self.degree, 1)
        self._X, self._model, self._bandwidth = X, None, None
        if self.input == "kernel" and self.kernel == "gaussian":
            given = kernels.median_bandwidth(X) if self.bandwidth is None else self.bandwidth
            self._bandwidth = np.asarray(as_positive("bandwidth", given, X.dtype))
        F, middle = centred(self._columns(X), np.ones(len(X)), True)
        table = gathered(F, Y, np.ones(len(X)))
        problem = Problem(loss_of(table, SquaredLoss, True), penalties.L1(alpha[0]))
        found = fitted(problem, F.shape[1], self.tol, 20_000 if self.max_iter is None else self.max_iter)
        found = found.uncentred(middle)
        self._intercepts, self.gap_, self.n_iter_ = found.intercept, found.gap, found.num_iters
        return found.coef

    def _columns(self, X: np.ndarray) -> np.ndarray:
        """The features of the lasso of a single output: X (m, d), or its kernels with the rows of the fit."""
        if self.input == "linear":
            return X
        K = kernels.kernel_of(self.kernel, self.degree, self._bandwidth, filled(X), filled(self._X))
        return np.asarray(K)[: len(X), : len(self._X)]
