"""A fitted model, and the report of its fit."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax._core.checks import as_float, is_traced
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
      num_outer: how often a group was added.
      num_oracle_calls: how often the most violated labelling was computed.
      seconds: time in "oracle", "products" (with X), "master", and "all".
      memberships: (m,), the minimiser d in the norm of w: the weight of the groups that hold each feature.
      groups: for each group of which w is made, the indices of its features: B of them, rounded.
      group_weights: weights of the groups, with the sum 1; ``memberships[j]`` sums the weights of groups with
        j.
      working_set: cuts and groups from which another fit can start.

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
      w: (m,), float64 (from inside jit: the dtype of X); exactly 0 for features in no group.
      objective: J(w), of the best w seen, which is this one (up to a tenth of the gap, spent on sparsity).
      lower_bound: no w has a smaller J.
      gap: ``(objective - lower_bound) / objective``.
      status: code of `sparsejax.solution`; `message` is its text.
      num_iters: master problems solved.
      report: `Report`, or None if the fit was traced.
      classes: the two labels, the second the positive one; (-1, 1) if the fit was traced.
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

    def __repr__(self) -> str:
        *batch, features = np.shape(self.w)
        models = f"{batch} models of " if batch else ""
        kept = lambda: f"{int(np.asarray(self.w).any(axis=tuple(range(len(batch)))).sum())} kept"
        return summary(self, f"{self.measure.name}, {models}{features} features", [self], kept)

    @property
    def converged(self) -> Any:
        """True if the gap met tol."""
        return self.status == CONVERGED

    @property
    def message(self) -> str:
        """The status as text; not available under jit."""
        if is_traced(self.status):
            raise TypeError("Model.message is text: read it outside jit and vmap.")
        return MESSAGES[int(self.status)]

    @property
    def selected(self) -> np.ndarray:
        """Indices of the features with a weight, the largest |w| first; not available under jit."""
        if is_traced(self.w):
            raise TypeError("Model.selected has no fixed shape: read it outside jit and vmap.")
        return by_size(np.asarray(self.w))

    @property
    def groups(self) -> tuple[np.ndarray, ...]:
        """The groups of features that w is made of; their weights are ``report.group_weights``."""
        if self.report is None:
            raise AttributeError("groups are known of fits on the host only, not of traced ones.")
        return self.report.groups

    def decision_function(self, X: Any) -> Any:
        """Scores Xw, (n,); X dense or scipy.sparse. NumPy arrays in, NumPy out, and so for JAX."""
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
        """Labels as they were given to fit, (n,): the second where the score exceeds the threshold.

        Whole numbers, such as -1 and 1, come as int32. For the threshold see `tune_threshold`.
        """
        return decoded(self.decision_function(X) > as_threshold(threshold), self.classes)

    def score(self, X: Any, y: Any) -> float:
        """The score at the measure that the model was fitted for, for labels y (n,); greater is better.

        `f_beta`: F of `predict`; `hamming`: its accuracy; `precision_at`, `recall_at`, `prbep`: precision or
        recall, in [0, 1], of as many of the largest scores; `roc_area`: the area; a loss of one's own: minus
        the loss of `predict`.
        """
        return self.measure.score(np.asarray(self.decision_function(X)), positives(y, self.classes))
