"""A selector of the features that most subsamples of the rows select."""

import warnings
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, column_or_1d

from sparsejax._core.checks import as_strength
from sparsejax.penalties import split_strengths
from sparsejax.problem import Problem
from sparsejax.selection.resampling import subsample_size
from sparsejax.selection.stability import stability_selection
from sparsejax.sklearn._classification import encoded, targets
from sparsejax.sklearn._problems import CLASSIFICATION, REGRESSION, choose, family, strengths
from sparsejax.sklearn._tables import Estimator, centred, check_dense, is_text, precision, validated

# The smallest default strength, relative to lambda_max. Weaker strengths would select many noise features.
DEFAULT_SPAN = 0.1
LOSSES = CLASSIFICATION | REGRESSION  # "squared" takes numbers
LOSSES_OF_LABELS = tuple(name for name in CLASSIFICATION if name not in REGRESSION)


@dataclass(eq=False, repr=False)
class StabilitySelector(Estimator, SelectorMixin, BaseEstimator):
    r"""Select the features that a penalty selects on most subsamples of the rows.

    For every strength each feature has a frequency: the share of the subsamples on which its coefficients are
    not all 0. Features are selected if their largest frequency is at least the threshold; ``bound_`` bounds
    the expected number of false selections (`sparsejax.stability_selection`). Columns of X should be on
    comparable scales, as a StandardScaler makes them.

    float64 data are solved in float64, even if JAX's 64-bit numbers are switched off, and float32 data in
    float32. All rows are equally likely to be drawn: there are no sample weights. X may be a matrix or array
    of scipy.sparse.

    Args:
      penalty: "l21", "l1", "l1_inf", "exclusive_l21"; or a penalty of `sparsejax.penalties`, whose
        strengths are multiplied by alphas.
      loss: for numbers y (n,) or (n, outputs): "squared", "huber", "poisson"; for labels y (n,):
        "softmax", "logistic", "squared_hinge", "huber_hinge".
      alphas: the strengths, >= 0; or their number, >= 2, from the least strength that selects no feature
        (`sparsejax.lambda_max`) down to a tenth of this strength.
      beta: >= 0, the strength of the exclusive part, if the penalty has one.
      num_subsamples, fraction, threshold: as in `sparsejax.stability_selection`; num_subsamples must be even
        if fraction is a half.
      random_state: seed or generator of the subsamples, as in scikit-learn.
      tol: largest relative duality gap of a fit; None is 1e-6 for float64 and 1e-4 for float32.

    Attributes:
      support_: (d,) booleans, the features selected; `get_support` returns them.
      frequencies_: (strengths, d), the frequency of each feature.
      alphas_: (strengths,), from large to small.
      bound_: bound on the expected number of false selections; NaN for a fraction above a half.
      gap_: the largest certificate of all fits.
      n_features_in_, feature_names_in_: the number and the names of the columns of X.

    Raises:
      TypeError, ValueError: an argument is not as above, which the message names; y has one class only.

    Warns:
      sparsejax.ConvergenceWarning: some gaps did not reach tol.
      UserWarning: no feature is selected; the message says what to change.
    Source: Meinshausen & Buehlmann, J. R. Statist. Soc. B 72, 2010; Shah & Samworth, ibid. 75, 2013.

    >>> import numpy as np
    >>> from sparsejax.sklearn import StabilitySelector
    >>> X = np.random.default_rng(0).standard_normal((60, 8))
    >>> selector = StabilitySelector(threshold=0.9, alphas=[0.5, 0.3]).fit(X, X[:, 0] - X[:, 1])
    >>> selector.get_support(indices=True).tolist(), selector.transform(X).shape
    ([0, 1], (60, 2))
    """

    penalty: Any = "l21"
    _: KW_ONLY
    loss: str = "squared"
    alphas: Any = 10
    beta: Any = 0.01
    num_subsamples: int = 100
    fraction: float = 0.5
    threshold: float = 0.6
    random_state: Any = 0
    tol: float | None = None

    _true_tags = ("target_tags.required", "target_tags.multi_output", "input_tags.sparse")

    def fit(self, X: Any, y: Any) -> Self:
        """Select among the features of X (n, d) by y (n,), numbers or labels, or (n, outputs)."""
        choose("loss", self.loss, LOSSES)
        of_labels = self.loss in LOSSES_OF_LABELS
        labels = np.asarray(y)  # text in a column of a DataFrame has the dtype object
        text = labels.dtype == object and any(map(is_text, labels.ravel()))
        if not of_labels and (text or labels.dtype.kind in "US"):
            raise ValueError(f"y has text labels: loss={self.loss!r} is of numbers; use loss='logistic'.")
        check_dense("y", y)
        X, y = validated(self, X, y, multi_output=True, y_numeric=not of_labels, ensure_min_samples=2)
        if of_labels:
            classes, codes = encoded(column_or_1d(y), np.ones(len(y)))
            Y = targets(self.loss, codes, len(classes))
        else:
            Y = y.reshape(len(y), -1)
        X, _ = centred(X, np.ones(len(Y)), True)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        with precision(X):
            penalty_of, has = family(self.penalty)
            if "alpha" not in has:
                raise ValueError(f"penalty={self.penalty!r} leaves no feature out, however strong it is.")
            beta = as_strength("beta", self.beta if "beta" in has else 0).astype(X.dtype)
            loss = LOSSES[self.loss](X, Y.astype(X.dtype), intercept=True)
            problem = Problem(loss, penalty_of(jnp.ones((), X.dtype), beta))
            if not split_strengths(problem.penalty)[0]:
                raise ValueError(f"penalty={self.penalty!r} has no strength that alphas could multiply.")
            alphas = strengths("alphas", self.alphas, problem, True, X.dtype, DEFAULT_SPAN)
            stable = stability_selection(
                problem,
                jax.vmap(lambda alpha: penalty_of(alpha, beta))(jnp.asarray(alphas)),
                num_subsamples=self.num_subsamples,
                fraction=self.fraction,
                threshold=self.threshold,
                seed=seed,
                tol=self.tol,
            )
            self.support_, self.frequencies_ = np.asarray(stable.selected), np.asarray(stable.frequencies)
            self.bound_, self.gap_ = float(stable.bound), float(stable.gap.max())
        self.alphas_ = alphas
        if not self.support_.any():
            self._advise(X.shape[0])
        return self

    def _advise(self, rows: int) -> None:
        """Warn that nothing was selected, and say what to change."""
        most = self.frequencies_.max()
        text = (
            f"StabilitySelector selected no feature: the largest frequency is {most:.2f}, and threshold is "
            f"{self.threshold:g}. "
        )
        if most == 0:
            text += f"No strength tried selects any: try weaker alphas, below {self.alphas_[-1]:.3g}. "
        else:
            text += (
                f"Try weaker strengths, such as alphas=numpy.geomspace({self.alphas_[0]:.3g}, "
                f"{self.alphas_[0] / 100:.3g}, 10), or a lower threshold, above 0.5 so that bound_ holds. "
            )
        drawn = subsample_size(self.fraction, rows)
        text += f"A subsample has {drawn} of {rows} rows: few rows can support only few features."
        warnings.warn(text, UserWarning, stacklevel=3)

    def _get_support_mask(self) -> np.ndarray:
        check_is_fitted(self)
        return self.support_
