"""A fitted model, and the report of its fit."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax._core.checks import as_float, is_traced
from sparsejax._core.precision import full_precision
from sparsejax._core.pytree import Pytree
from sparsejax.models._labels import Classes, as_threshold, decoded, positives
from sparsejax.models._summary import summary
from sparsejax.models.multivariate._data import as_data
from sparsejax.models.multivariate._measures import Measure
from sparsejax.models.multivariate._restricted import WorkingSet
from sparsejax.models.multivariate._support_norm import by_size
from sparsejax.solution import CONVERGED, MESSAGES


class Report(NamedTuple):
    """A report of a solve on the host.

    Attributes:
      history: (num_iters, 2), best objective and best lower bound after each master problem.
      num_outer: number of times that groups (or their features) were added.
      num_oracle_calls: number of times that the most violated labelling was computed.
      seconds: seconds spent in "oracle", "products" (with X) and "master", and in "all".
      memberships: (m,), the minimiser d in the norm of w: the total weight of the groups that hold a feature.
      groups: for each group of features of which w is made, their indices. A group has B features, where B is
        rounded down or up.
      group_weights: weights of the groups, with the sum 1; ``memberships[j]`` is the sum of the weights of
        the groups that hold feature j.
      working_set: cuts and groups from which another fit can start (``init`` of `fit`).

    >>> import numpy as np
    >>> from sparsejax.models import multivariate
    >>> X, y = np.eye(4, 3), np.array([1, -1, -1, 1])
    >>> report = multivariate.fit(X, y, measure=multivariate.f_beta(), budget=2, C=1.0).report
    >>> report.num_oracle_calls > 0, sorted(report.seconds)[:1]
    (True, ['all'])
    """

    history: np.ndarray
    num_outer: int
    num_oracle_calls: int
    seconds: dict[str, float]
    memberships: np.ndarray
    groups: tuple[np.ndarray, ...]
    group_weights: np.ndarray
    working_set: WorkingSet

    def __repr__(self) -> str:
        return f"Report({len(self.history)} masters, {len(self.groups)} groups)"


class Model(
    Pytree,
    leaves=("w", "objective", "lower_bound", "gap", "status", "num_iters", "report"),
    static=("classes", "measure"),
):
    """A fitted linear model without intercept; a pytree.

    Attributes:
      w: (m,), float64; from a traced fit in the dtype of a traced X, else in JAX's default float. Features in
        no group have a weight of exactly 0.
      objective: J(w), which `fit` minimises. w is the best point seen, with its smallest weights set to 0: as
        many as raise the gap by at most a tenth.
      lower_bound: no w has a smaller J.
      gap: ``(objective - lower_bound) / objective``, 0 if the objective is 0.
      status: code of `sparsejax.solution`; `message` is its text.
      num_iters: master problems solved.
      report: `Report`, or None if the fit was traced.
      classes: the two labels, of which the second is the positive class; (-1, 1) if y was traced.
      measure: the `Measure` that the model was fitted for.

    >>> import numpy as np
    >>> from sparsejax.models import multivariate
    >>> X, y = np.eye(4, 3), np.array([1, -1, -1, 1])
    >>> model = multivariate.fit(X, y, measure=multivariate.f_beta(), budget=2, C=1.0)
    >>> model.w.shape, bool(model.gap <= 1e-3)
    ((3,), True)
    """

    w: Any
    objective: Any
    lower_bound: Any
    gap: Any
    status: Any
    num_iters: Any
    report: Report | None
    classes: Classes
    measure: Measure

    def _check_single(self) -> None:
        """Raise if the model is a batch, as `jax.vmap` of a fit returns."""
        if batch := np.shape(self.w)[:-1]:
            raise ValueError(f"this is a batch of {batch} models: use them inside jax.vmap, or one of them.")

    def __repr__(self) -> str:
        *batch, features = np.shape(self.w)
        models = f"{batch} models of " if batch else ""
        kept = lambda: f"{int(np.asarray(self.w).any(axis=tuple(range(len(batch)))).sum())} kept"
        return summary(self, f"{self.measure.name}, {models}{features} features", [self], kept)

    @property
    def converged(self) -> Any:
        """True if the gap met ``tol`` or ``eps_delta``."""
        return self.status == CONVERGED

    @property
    def message(self) -> str | list[str]:
        """The status as text, a flat list of texts for a batch; under jit a TypeError."""
        if is_traced(self.status):
            raise TypeError("Model.message is text: read it outside jit and vmap.")
        texts = [MESSAGES[int(code)] for code in np.ravel(self.status)]
        return texts if np.ndim(self.status) else texts[0]

    @property
    def selected(self) -> np.ndarray:
        """Indices of the features whose weight is not 0, the largest |w| first; under jit a TypeError."""
        if is_traced(self.w):
            raise TypeError("Model.selected has no fixed shape: read it outside jit and vmap.")
        self._check_single()
        return by_size(np.asarray(self.w))

    @property
    def groups(self) -> tuple[np.ndarray, ...]:
        """The groups of features that w is made of; their weights are ``report.group_weights``.

        After a traced fit, which has no report, this is an AttributeError.
        """
        if self.report is None:
            raise AttributeError("groups are known of fits on the host only, not of traced ones.")
        return self.report.groups

    @full_precision()
    def decision_function(self, X: Any) -> Any:
        """Scores Xw, (n,), for X (n, m), dense or of scipy.sparse.

        The scores are a JAX array if X is one, or if w is one and X is dense; otherwise a numpy array.
        """
        self._check_single()
        sparse = hasattr(X, "tocsc")
        if isinstance(X, jax.Array) or (isinstance(self.w, jax.Array) and not sparse):
            X = as_float("X", X, (2,))
        else:
            checked = as_data(X)
            X = X if sparse else checked.X
        if X.shape[1:] != self.w.shape:
            raise ValueError(f"X has shape {X.shape}; it must be (n, {self.w.shape[0]}).")
        return X @ (jnp.asarray(self.w, X.dtype) if isinstance(X, jax.Array) else np.asarray(self.w))

    def predict(self, X: Any, threshold: float = 0.0) -> Any:
        """Labels like those given to `fit`, (n,): the second class where the score > threshold.

        Whole numbers, such as -1 and 1, are int32. `tune_threshold` finds a threshold.
        """
        return decoded(self.decision_function(X) > as_threshold(threshold), self.classes)

    def score(self, X: Any, y: Any) -> float:
        """The score by the measure that the model was fitted for, for labels y (n,); greater is better.

        The score is F for `f_beta` and the accuracy for `hamming`, both of `predict` at threshold 0. For
        `precision_at` and `recall_at` it is the precision or recall of the k rows with the largest scores;
        `prbep` takes as many rows as y has positives. For `roc_area` the score is the area under the curve,
        and for your own loss minus the loss of `predict`, or NaN if that loss is -inf. Scores that are not
        finite, as after a traced fit that failed, are a ValueError.
        """
        return self.measure.score(np.asarray(self.decision_function(X)), positives(y, self.classes))
