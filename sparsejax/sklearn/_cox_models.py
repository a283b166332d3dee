"""Cox's model in which a penalty selects features."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length

from sparsejax._core.checks import check_choice
from sparsejax._core.compiled import Compiled
from sparsejax._core.labels import complete_labels
from sparsejax.losses import CoxLoss
from sparsejax.metrics import concordance_index
from sparsejax.problem import Problem
from sparsejax.sklearn._folds import ByFolds, used_folds
from sparsejax.sklearn._problems import Fitted, as_penalty, fitted
from sparsejax.sklearn._survival_targets import (
    Targets,
    all_times,
    as_numbers,
    options_of,
    read_targets,
    times_and_events,
)
from sparsejax.sklearn._tables import (
    Estimator,
    Table,
    as_real,
    as_sample_weight,
    gathered,
    precision,
    validated,
)

MAX_MEAN_WEIGHT = 1e9  # sample weights with a mean above this, or below the inverse, are scaled to mean 1

_log_risk = Compiled(lambda loss, W: loss.log_risk(W))


@dataclass(eq=False, repr=False)
class CoxModel(Estimator, BaseEstimator):
    """Base of the Cox estimators: their common parameters, and predictions from the coefficients."""

    penalty: Any = "l1"
    _: KW_ONLY
    ties: str = "breslow"
    tol: float | None = None
    max_iter: int = 20_000

    _true_tags = ("input_tags.sparse", "target_tags.required", "target_tags.positive_only")

    def predict(self, X: Any) -> np.ndarray:
        """The logarithm of the relative risk, ``X coef``, (n,): the larger it is, the sooner the event."""
        return np.asarray(self._rows(X) @ self.coef_)

    def predict_survival_function(self, X: Any, times: Any = None, strata: Any = None) -> np.ndarray:
        r"""The probability of no event up to each time, :math:`e^{-H_0(t)\,e^h}`, (rows, times).

        :math:`H_0` is Breslow's estimate of the cumulative baseline hazard in the stratum of the row, also
        after a fit with Efron's ties.

        Args:
          X: (rows, d).
          times: (times,), not NaN; None for ``event_times_``.
          strata: (rows,) labels if the model was fitted with strata, else None.

        Raises:
          ValueError: times of another shape or NaN; strata missing, superfluous, or not among ``strata_``.
        """
        h = self.predict(X).astype(float)
        times = self.event_times_ if times is None else as_real("times", times)
        if times.ndim != 1 or np.isnan(times).any():
            raise ValueError("times must be (times,), without NaN.")
        codes = self._codes(strata, len(h))
        found = np.empty((len(h), len(times)))
        for code, (at, log_hazard) in enumerate(self._baseline):
            # The logarithm of H_0 at each time: of 0 before the first event, then of the last event so far.
            log_h0 = np.append(-np.inf, log_hazard)[np.searchsorted(at, times, side="right")]
            rows = codes == code
            with np.errstate(over="ignore"):
                found[rows] = np.exp(-np.exp(log_h0[None] + h[rows, None]))
        return found

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """`sparsejax.metrics.concordance_index` of the predictions for X (n, d); y as in ``fit``.

        Pairs of rows from different strata count as well.
        """
        risk = self.predict(X).astype(float)  # float32 has no weights of 1e39 or 1e-50, and no times of 1e300
        time, event = times_and_events(y)
        check_consistent_length(risk, time)
        weights = None if sample_weight is None else as_sample_weight(sample_weight, len(risk))
        with precision(risk):
            return float(concordance_index(time, event, risk, weights))

    def _codes(self, strata: Any, rows: int) -> np.ndarray:
        """The number of the stratum of each row, (rows,)."""
        if (strata is None) != (self.strata_ is None):
            without = "the model was fitted without strata: leave strata out here."
            having = "the model was fitted with strata: give strata here, too."
            raise ValueError(without if self.strata_ is None else having)
        if self.strata_ is None:
            return np.zeros(rows, int)
        strata = complete_labels("strata", strata)
        if strata.shape != (rows,):
            raise ValueError(f"strata must have shape ({rows},), one label a row; got {strata.shape}.")
        if not np.isin(strata, self.strata_).all():
            strange = strata[~np.isin(strata, self.strata_)][0]
            raise ValueError(f"strata has {strange!r}, which the model was not fitted to.")
        return np.searchsorted(self.strata_, strata)

    def _read(self, X: Any, y: Any, sample_weight: Any, strata: Any, entry: Any) -> tuple[Any, ...]:
        """The checked X, targets and weights of the rows."""
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None.")
        check_choice("ties", self.ties, ("breslow", "efron"))
        X = validated(self, X, ensure_min_samples=2)
        check_consistent_length(X, y)
        weights = as_sample_weight(sample_weight, X.shape[0])
        return X, read_targets(y, strata, entry, weights > 0), weights

    def _table(self, X: Any, targets: Targets, weights: np.ndarray, folds: Any = None) -> Table:
        """The table of the rows, with weights that have the same sum as the given weights.

        The sum matters, because a factor of all weights adds a constant to the objective. If the sum is
        extreme, the weights have mean 1 instead, and the objective differs by that constant.
        """
        numbers = as_numbers(targets, self.ties == "efron")
        table = gathered(X, numbers, weights, folds=folds, widen=isinstance(self.penalty, str))
        with np.errstate(over="ignore"):
            factor = weights.sum() / len(table.weights)
        extreme = not 1 / MAX_MEAN_WEIGHT < factor < MAX_MEAN_WEIGHT
        return table if extreme else table._replace(weights=table.weights * table.weights.dtype.type(factor))

    def _keep(self, found: Fitted, loss: CoxLoss, table: Table, targets: Targets) -> Self:
        """Set the fitted attributes.

        ``_baseline`` has for each stratum the times of its events, and the logarithm of the cumulative
        baseline hazard from each of them on.
        """
        self.coef_, self.gap_, self.n_iter_ = found.coef, found.gap, found.num_iters
        self.strata_ = targets.strata
        coef = np.pad(found.coef, (0, table.X.shape[1] - len(found.coef)))
        log_risk = np.asarray(_log_risk(loss, coef), float)
        ranks, event, codes = (column.astype(int) for column in table.Y.T[:3])
        weights = np.where(event > 0, table.weights, 0).astype(float)
        times = all_times(targets).astype(float)  # the time of rank r is times[r - 1]
        self.event_times_ = times[np.unique(ranks[weights > 0]) - 1]
        self._baseline = []
        for code in range(1 if targets.strata is None else len(targets.strata)):
            rows = (weights > 0) & (codes == code)
            event_ranks, number = np.unique(ranks[rows], return_inverse=True)
            # Breslow: H_0(t) = sum over events i with t_i <= t of s_i / sum_{j in R_i} s_j e^{h_j}.
            log_jumps = np.log(weights[rows]) - log_risk[rows]
            top = log_jumps.max() if len(log_jumps) else 0.0  # the largest jump is 1: no sum overflows
            jumps = np.bincount(number, np.exp(log_jumps - top), len(event_ranks))
            with np.errstate(divide="ignore"):
                log_hazard = np.log(np.cumsum(jumps)) + top
            self._baseline.append((times[event_ranks - 1], log_hazard))
        return self


@dataclass(eq=False, repr=False, kw_only=True)
class SparseCox(CoxModel):
    r"""Cox's model of the time until an event, in which a penalty selects features.

    .. math:: \min_w \frac{1}{\sum_i s_i} \sum_{i:\,\text{event}_i} s_i
              \Bigl[\log \sum_{j \in R_i} s_j\, e^{x_j^\top w} - x_i^\top w\Bigr] + g(w) ,

    where :math:`R_i` holds the rows at risk at the time of i, and s the sample weights. Ties, strata and late
    entry are as in `sparsejax.losses.CoxLoss`. With Breslow's ties a row of weight k counts as k rows; a row
    of weight 0 counts as none. Columns of X should have comparable scales: use a StandardScaler first.

    Fits of float64 data are in float64, whether or not JAX's 64-bit numbers are enabled, and fits of float32
    data in float32. X may be a matrix or array of scipy.sparse, which is made dense only up to 511 columns
    and 128 MB.

    Args:
      penalty: "l1"; "l21", "l1_inf", "exclusive_lasso", "exclusive_l21"; or a penalty of
        `sparsejax.penalties`, such as ``ElasticNet(0.1, 0.05)``, which has its own strengths: alpha and beta
        then have no effect.
      alpha: >= 0, () or (d,), the strength of the absolute values, for all names but "exclusive_lasso".
      beta: >= 0, () or (d,), the strength of the exclusive part, if the penalty has one.
      ties: "breslow" or "efron".
      tol: largest relative duality gap; None is 1e-6 for float64 and 1e-4 for float32.
      max_iter: largest number of iterations.

    Attributes:
      coef_: (d,), with exact zeros.
      gap_: the certificate: no coefficients lower the objective by more than ``gap_`` times the objective, or
        times its value at 0 if that is larger; NaN if none is known (`sparsejax.Solution`).
      n_iter_: number of iterations.
      event_times_: the different times of the events, sorted.
      strata_: the labels of the strata, sorted, or None.
      n_features_in_, feature_names_in_: the number and the names of the columns of X.

    Raises:
      TypeError, ValueError: a wrong argument, which the message names; data that scikit-learn's validation
        refuses; a wrong y, strata or entry, see `fit`; no event, or no event with another row at risk.

    Warns:
      sparsejax.ConvergenceWarning: the gap did not reach tol.

    >>> import numpy as np
    >>> from sparsejax.sklearn import SparseCox
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((80, 6))
    >>> y = np.array(list(zip(rng.random(80) < 0.8, rng.exponential(np.exp(-2 * X[:, 1])))),
    ...              dtype=[("event", bool), ("time", float)])
    >>> model = SparseCox(alpha=0.1).fit(X, y)
    >>> np.flatnonzero(model.coef_).tolist(), model.score(X, y) > 0.8
    ([1], True)
    >>> model.predict_survival_function(X[:3], times=[0.1, 1.0]).shape
    (3, 2)
    """

    alpha: Any = 0.01
    beta: Any = 0.01

    def fit(self, X: Any, y: Any, sample_weight: Any = None, strata: Any = None, entry: Any = None) -> Self:
        """Fit to X (n, d) and the times of y.

        Args:
          X: (n, d).
          y: an array (n, 2) with the columns (event, time): event is boolean, or 0 and 1, and time > 0. Or an
            array (n,) of times, each of an event. Or two named columns, in a structured array, as in
            scikit-survival, or a DataFrame. The name "event" or "time" tells which is which; without these
            names the event is the boolean column if there is exactly one, else the first column.
          sample_weight: (n,), >= 0.
          strata: (n,) labels; each stratum has its own baseline hazard and risk sets.
          entry: (n,), less than the time of the row: the row is at risk only after its entry.
        """
        X, targets, weights = self._read(X, y, sample_weight, strata, entry)
        table = self._table(X, targets, weights)
        with precision(X):
            penalty = as_penalty(self, X.shape[1], table.X.shape[1])
            loss = CoxLoss(table.X, ties=self.ties, **options_of(table, targets))
            found = fitted(Problem(loss, penalty), X.shape[1], self.tol, self.max_iter)
            return self._keep(found, loss, table, targets)


@dataclass(eq=False, repr=False, kw_only=True)
class SparseCoxCV(ByFolds, CoxModel):
    r"""`SparseCox` with the strengths of the best score on held-out rows.

    One compiled program (`sparsejax.cross_validate`) solves all folds and strengths, each fold along its
    path. A last fit, with the chosen strengths, is to all rows.

    Args:
      penalty: as `SparseCox`; the strengths of a penalty object are multiplied by alphas.
      alphas: the strengths to try, >= 0; or their number, >= 2, from the least strength that selects no
        feature (`sparsejax.lambda_max`) down to a thousandth of this strength.
      betas: the strengths of the exclusive part to try, if the penalty has one: a number or several.
      ties, tol, max_iter: as `SparseCox`.
      cv: as in scikit-learn: None for five folds, a number, a splitter, or an iterable of splits. It must
        hold out every row once. For sorted rows use ``KFold(5, shuffle=True)``.
      scoring: None for the partial likelihood of the held-out rows, on the risk sets that they form;
        "concordance"; or a function as for `sparsejax.cross_validate`, with Y (n, 2): ranks of times, and
        events.
      selection: "best", or "1se": the fewest features within one standard error of the best score.
      progress, checkpoint, verbose: as `SparseRegressorCV`.

    Attributes:
      alpha_, beta_: the chosen strengths; 0 for a strength that the penalty does not have.
      alphas_, betas_: the strengths that were tried, in decreasing order.
      scores_: (folds, alphas, betas), of the held-out rows, greater is better.
      cross_validation_: the `sparsejax.CrossValidation`, with the axes (folds, betas, alphas).
      coef_, gap_, n_iter_, event_times_, strata_, n_features_in_, feature_names_in_: as `SparseCox`, of the
        fit to all rows.

    Raises:
      TypeError, ValueError: as `SparseCox`; a cv that does not hold out each row once; a number of alphas for
        a penalty whose solution is 0 at no finite strength.

    Warns:
      sparsejax.ConvergenceWarning: the gap of some fits did not reach tol.
      UserWarning: no strengths have a finite mean score; a fold holds no event out.

    >>> import numpy as np
    >>> from sparsejax.sklearn import SparseCoxCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((80, 6))
    >>> y = np.stack([rng.random(80) < 0.8, rng.exponential(np.exp(-2 * X[:, 1]))], axis=1)
    >>> model = SparseCoxCV(alphas=[0.5, 0.05]).fit(X, y)
    >>> model.alpha_, model.scores_.shape
    (0.05, (5, 2, 1))
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None, strata: Any = None, entry: Any = None) -> Self:
        """Choose strengths on X (n, d) and the times of y, and fit; arguments as those of `SparseCox.fit`."""
        X, targets, weights = self._read(X, y, sample_weight, strata, entry)
        folds = used_folds(self.cv, X, targets.time, weights, classifier=False)
        table = self._table(X, targets, weights, folds)
        with precision(X):
            loss = CoxLoss(table.X, ties=self.ties, **options_of(table, targets))
            found = self._choose(loss, table.folds, X.shape[1], scoring=self.scoring)
            return self._keep(found, loss, table, targets)
