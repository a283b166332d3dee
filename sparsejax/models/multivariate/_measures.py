r"""Measures of a whole labelling, and the labelling that violates the margin most.

With truth y, prediction y' and its table of a true positives, b false positives, c false negatives and
d true negatives, a measure is a loss :math:`\Delta(a, b, c, d)`, and its oracle finds

.. math:: \max_{y'} \Delta(y', y) - z^\top v, \qquad z = y - y' ,

for scores v. With a and b given, the best y' calls positive the a positives and the b negatives that have
the highest scores. So oracles search tables, not labellings. An oracle returns the code z and
:math:`\Delta`. Entries of z are -2, 0 and 2 (int8), or real numbers for the ROC area, which orders pairs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsejax._core.checks import as_int, as_numpy
from sparsejax.metrics import auc
from sparsejax.models._labels import two_classes
from sparsejax.models.multivariate import _oracles
from sparsejax.models.multivariate._checks import positive as positive_number
from sparsejax.models.multivariate._data import check_real


@dataclass(frozen=True)
class Measure:
    """A performance measure; `hamming`, `f_beta`, `prbep`, `precision_at`, `recall_at`, `roc_area` make one.

    Attributes:
      name: name of the function that made the measure, or "contingency".
      parameter: argument of that function: scale, beta, k or the user's function.

    >>> from sparsejax.models import multivariate
    >>> multivariate.precision_at(3).name, multivariate.precision_at(3).parameter
    ('precision_at', 3)
    """

    name: str
    parameter: Any = None

    @property
    def delta(self) -> Callable[..., Any] | None:
        """The function ``delta(a, b, c, d)`` of arrays that broadcast, the losses of these tables.

        -inf marks a table that the measure does not allow. The attribute is None for `roc_area`.
        """
        return None if self.name == "roc_area" else lambda a, b, c, d: _delta(self, a, b, c, d)

    def oracle(self, positive: np.ndarray) -> _oracles.Oracle:
        """The oracle v -> (z, Delta) for this truth, (n,) bool.

        Raises:
          ValueError: the measure is not defined for this truth, as with no positive row, or k > n.
        """
        p, n = int(positive.sum()), len(positive)
        if p == 0 and self.name != "hamming":
            raise ValueError(f"y has no +1, which {self.name} needs.")
        if p == n and self.name == "roc_area":
            raise ValueError("y has no -1, which roc_area needs.")
        self.check_count(n)
        if self.delta is None:
            return _oracles.swapped_pairs(positive)
        if self.name == "hamming":
            return _oracles.single_flips(positive, self.parameter)
        if self.name == "f_beta":
            return _oracles.concave_tables(positive, self.parameter, self.delta)
        if self.name == "contingency":
            return _oracles.all_tables(positive, self.delta)
        k = p if self.name == "prbep" else self.parameter
        return _oracles.selection(positive, k, 100.0 / (k if self.name == "precision_at" else p))

    def loss_of_code(self, z: np.ndarray, positive: np.ndarray) -> float:
        """Delta of the code z (n,) for this truth, (n,) bool; NaN if z is no code for them."""
        added, missed = z < 0, z > 0
        if (added & positive).any() or (missed & ~positive).any():
            return math.nan
        if (self.delta is None) != (z.dtype.kind == "f"):  # codes of labellings are integers
            return math.nan
        if self.delta is None:
            pairs = z * (positive.sum() * (~positive).sum() / 100)
            return float(z[positive].sum()) if np.abs(pairs - pairs.round()).max() < 1e-6 else math.nan
        b, c, p = (np.float64(x.sum()) for x in (added, missed, positive))
        with np.errstate(all="ignore"):
            return float(self.delta(p - c, b, c, len(z) - p - b))

    def check_count(self, n: int) -> None:
        """Raise a ValueError if k is above n, the number of examples."""
        if self.name in ("precision_at", "recall_at") and self.parameter > n:
            raise ValueError(
                f"{self.name}: k must be at most the number of examples, {n}; got {self.parameter}."
            )

    def score(self, v: np.ndarray, positive: np.ndarray) -> float:
        """The score of predictions v (n,) for this truth, (n,) bool; greater is better, see `Model.score`."""
        if v.shape != positive.shape:
            raise ValueError(f"y must have shape {v.shape}, a label for each row of X; got {positive.shape}.")
        if not np.isfinite(v).all():
            raise ValueError("the scores of the model are not all finite: look at its status.")
        n, p = len(v), int(positive.sum())
        if self.name == "roc_area":
            return float(auc(positive, np.unique(v, return_inverse=True)[1]))  # ranks lose nothing in float32
        if self.name in ("prbep", "precision_at", "recall_at"):
            self.check_count(n)
            if p == 0:
                raise ValueError(f"y has no positive label, which {self.name} needs.")
            k = p if self.name == "prbep" else self.parameter
            # Rows that share the k-th largest score count by their chance to be among the k largest.
            last = -np.partition(-v, k - 1)[k - 1]
            above, level = v > last, v == last
            right = positive[above].sum() + (k - above.sum()) * positive[level].mean()
            return float(right) / (k if self.name == "precision_at" else p)
        a, given = int((positive & (v > 0)).sum()), int((v > 0).sum())
        table = a, given - a, p - a, n - given - p + a
        if self.name == "hamming":
            return (table[0] + table[3]) / n
        with np.errstate(all="ignore"):
            loss = float(_delta(self, *map(np.float64, table)))
        if self.name == "f_beta":
            return 1 - loss / 100
        return -loss if loss > -math.inf else math.nan  # NaN: the measure does not allow the table


def hamming(scale: float = 1.0) -> Measure:
    """``Delta = scale * (b + c)``. With scale 2 the risk is twice the sum of the hinge losses, as in the SVM.

    Args:
      scale: the loss of one wrong label, > 0. There are b false positives and c false negatives.

    Raises:
      TypeError, ValueError: scale is not a number > 0, or infinite.

    >>> from sparsejax.models import multivariate
    >>> scores, y = [0.5, -0.5, 0.0], [1, -1, -1]
    >>> labels, value = multivariate.most_violated(multivariate.hamming(), scores, y)
    >>> labels.tolist(), float(value)
    ([1, -1, 1], 1.0)
    """
    return Measure("hamming", positive_number("scale", scale))


def f_beta(beta: float = 1.0) -> Measure:
    r"""``Delta = 100 (1 - F)``, :math:`F = (1+\beta^2)a / ((1+\beta^2)a + b + \beta^2 c)`, 0 where a = 0.

    Args:
      beta: > 0, how much more recall counts than precision; 1 is F1. There are a true positives, b false
        positives and c false negatives.

    Raises:
      TypeError, ValueError: beta is not a number from 1e-100 to 1e100.

    >>> from sparsejax.models import multivariate
    >>> scores, y = [0.5, -0.5, 0.0], [1, -1, -1]
    >>> labels, value = multivariate.most_violated(multivariate.f_beta(), scores, y)
    >>> labels.tolist(), round(float(value), 3)
    ([-1, -1, -1], 99.0)
    """
    beta = positive_number("beta", beta)
    if not 1e-100 <= beta <= 1e100:  # the squares of others, times counts, are 0 or infinite
        raise ValueError(f"beta must be from 1e-100 to 1e100, got {beta:g}.")
    return Measure("f_beta", beta)


def prbep() -> Measure:
    """``Delta = 100 (1 - a/p)`` over the labellings with b = c: the precision/recall break-even point.

    >>> from sparsejax.models import multivariate
    >>> scores, y = [0.5, -0.5, 0.0], [1, -1, -1]
    >>> labels, value = multivariate.most_violated(multivariate.prbep(), scores, y)
    >>> labels.tolist(), float(value)
    ([-1, -1, 1], 99.0)
    """
    return Measure("prbep")


def precision_at(k: int) -> Measure:
    """``Delta = 100 (1 - a/k)`` over the labellings with a + b = k.

    Args:
      k: the number of examples that are called positive, a of them correctly and b wrongly.

    Raises:
      ValueError: k is not a positive integer. The fit also raises if k > n.

    >>> from sparsejax.models import multivariate
    >>> scores, y = [0.5, -0.5, 0.0], [1, -1, -1]
    >>> labels, value = multivariate.most_violated(multivariate.precision_at(2), scores, y)
    >>> labels.tolist(), float(value)
    ([-1, 1, 1], 98.0)
    """
    return Measure("precision_at", as_int("k", k, 1))


def recall_at(k: int) -> Measure:
    """``Delta = 100 (1 - a/p)`` over the labellings with a + b = k.

    With k < p every labelling has Delta > 0. With k = n there is one labelling, and the solution is w = 0.

    Args:
      k: the number of examples that are called positive, a of them correctly and b wrongly; p are positive.

    Raises:
      ValueError: as `precision_at`.

    >>> from sparsejax.models import multivariate
    >>> scores, y = [0.5, -0.5, 0.0], [1, -1, -1]
    >>> labels, value = multivariate.most_violated(multivariate.recall_at(2), scores, y)
    >>> labels.tolist(), float(value)
    ([-1, 1, 1], 98.0)
    """
    return Measure("recall_at", as_int("k", k, 1))


def roc_area() -> Measure:
    """``Delta = 100 (1 - area)``, the percentage of pairs (positive, negative) in the wrong order.

    >>> import numpy as np
    >>> from sparsejax.models import multivariate
    >>> X, y = np.eye(4, 3), np.array([1, -1, -1, 1])
    >>> multivariate.fit(X, y, measure=multivariate.roc_area(), budget=2, C=1.0).converged.item()
    True
    """
    return Measure("roc_area")


def contingency(delta: Callable[..., Any]) -> Measure:
    """A measure with your own loss, ``delta(a, b, c, d)``.

    Args:
      delta: a function of float arrays that broadcast: a true positives, b false positives, c false
        negatives and d true negatives. It returns the losses of these tables: >= 0, or -inf for a table that
        is not allowed. All (p + 1)(q + 1) tables of p positives and q negatives are searched, O(n log n + p
        q). For parallel processes it must be defined at the top level of a module.

    Raises:
      TypeError: delta is not callable. The fit also raises a ValueError if delta gives NaN, inf or a negative
        loss, or allows no table.

    >>> from sparsejax.models import multivariate
    >>> own = multivariate.contingency(lambda a, b, c, d: 2.0 * b + c)  # a false alarm costs twice a miss
    >>> labels, value = multivariate.most_violated(own, [0.5, -0.5, 0.0], [1, -1, -1])
    >>> labels.tolist(), float(value)
    ([-1, 1, 1], 3.0)
    """
    if not callable(delta):
        raise TypeError(f"delta must be a function of (a, b, c, d), got {type(delta).__name__}.")
    return Measure("contingency", delta)


def most_violated(measure: Measure | Callable[..., Any], v: Any, y: Any) -> tuple[np.ndarray, float]:
    r"""The labelling y' that maximises ``Delta(y', y) - (y - y')' v``, and the maximum.

    The maximum is < 0 only if y itself is not allowed (`precision_at`, `recall_at` with k != p). If several
    labellings attain the maximum, `f_beta` and `contingency` return one with the fewest true positives and,
    of these, the fewest false positives.

    Args:
      measure: a `Measure`, or a function as for `contingency`.
      v: scores, (n,), finite.
      y: truth, (n,), -1 and 1.

    Returns:
      y', (n,), in the dtype of y (int8 if y is unsigned), and the value, a float. For `roc_area`,
      which has no labelling, the code z, (n,), in place of y'.

    Raises:
      TypeError, ValueError: as `fit` for measure and y; v not finite, so large that its sum is not, or of
        another length.

    >>> from sparsejax.models import multivariate
    >>> labels, value = multivariate.most_violated(multivariate.hamming(), [2.0, -2.0], [1, -1])
    >>> labels.tolist(), float(value)  # nothing is violated
    ([1, -1], 0.0)
    """
    measure, positive = as_measure(measure), as_signs(y)
    v = _as_scores(v, positive)
    if np.abs(v).max() > 1e308 / (2 * len(v) + 200):  # no entry of a code is above 100
        raise ValueError(f"v has values to {np.abs(v).max():.3g}, whose sum is no finite number.")
    z, delta = measure.oracle(positive)(v)
    value = delta - float(z @ v)
    if measure.name == "roc_area":
        return z, value
    y = np.asarray(y)
    y = y.astype(np.int8) if y.dtype.kind == "u" else y  # unsigned integers have no -1
    return (y - z.astype(y.dtype)).astype(y.dtype), value


def tune_threshold(measure: Measure | Callable[..., Any], v: Any, y: Any) -> float:
    """The threshold t with the least loss of the labelling "positive where v > t"; of several the largest.

    Args:
      measure: as in `fit`, but not `roc_area`.
      v: scores, (n,), finite: those of the training rows or, better, of rows held out.
      y: truth, (n,), labels of two classes as for `fit`. If the labels are -1 and 1, one class may be absent.

    Returns:
      A float midway between two scores; -inf if all rows should be positive, inf if none should be.

    Raises:
      TypeError, ValueError: as `most_violated`; `roc_area`; no threshold gives an allowed table, as for
        `precision_at` with ties.

    >>> from sparsejax.models import multivariate
    >>> round(multivariate.tune_threshold(multivariate.f_beta(), [0.2, 0.4, 0.6], [-1, 1, 1]), 3)
    0.3
    """
    y = as_numpy("y", y)
    signs = y.dtype.kind in "iuf" and set(np.unique(y)) <= {-1, 1}  # of one class, too
    positive = as_signs(y) if signs else two_classes(y)[0]
    dtype, measure, v = as_numpy("v", v).dtype, as_measure(measure), _as_scores(v, positive)
    if measure.delta is None:
        raise ValueError("roc_area does not depend on a threshold.")
    if measure.name in ("prbep", "recall_at") and not positive.any():
        raise ValueError(f"y has no +1, which {measure.name} needs.")
    order = np.argsort(-v, kind="stable")
    levels, p, n = v[order], positive.sum(), len(v)
    a = np.concatenate([[0.0], np.cumsum(positive[order])])
    b = np.arange(n + 1) - a
    losses = np.array(np.broadcast_to(measure.delta(a, b, p - a, n - p - b), (n + 1,)), float)
    _oracles.check_losses(losses)
    losses[1:-1][levels[1:] == levels[:-1]] = -np.inf  # no threshold separates equal scores
    if not np.isfinite(losses).any():
        raise ValueError(f"no threshold on these scores gives a table that {measure.name} allows.")
    i = int(np.argmin(np.where(np.isfinite(losses), losses, np.inf)))
    if i in (0, n):
        return math.inf if i == 0 else -math.inf
    middle = levels[i] / 2 + levels[i - 1] / 2  # not (a + b) / 2, since the sum may be infinite
    if dtype in (np.float16, np.float32):  # JAX compares scores and threshold in the dtype of the scores
        middle = float(middle.astype(dtype))
    return float(middle if levels[i] < middle < levels[i - 1] else levels[i])  # neighbouring floats


def _delta(measure: Measure, a: Any, b: Any, c: Any, d: Any) -> Any:
    name, parameter = measure.name, measure.parameter
    if name == "hamming":
        return parameter * (b + c)
    if name == "f_beta":
        square = parameter**2
        below = (1 + square) * a + b + square * c
        # Not 1 - (1 + beta^2) a / below: for a small beta all tables with b = 0 would have the loss 0.
        return 100 * np.where(below > 0, (b + square * c) / np.where(below > 0, below, 1), 1.0)
    if name == "prbep":
        return np.where(b == c, 100 * (1 - a / (a + c)), -np.inf)
    if name == "precision_at":
        return np.where(a + b == parameter, 100 * (1 - a / parameter), -np.inf)
    if name == "recall_at":
        return np.where(a + b == parameter, 100 * (1 - a / (a + c)), -np.inf)
    return parameter(a, b, c, d)


# ---------------------------------------------------------------- checks


def as_measure(measure: Any) -> Measure:
    """A `Measure` as it is; a function converted by `contingency`; an error for anything else."""
    if isinstance(measure, Measure):
        return measure
    if callable(measure) and not isinstance(measure, type):
        made = {hamming, f_beta, prbep, precision_at, recall_at, roc_area}
        if measure in made:
            raise TypeError(f"measure is the function {measure.__name__}: call it, {measure.__name__}(...).")
        return contingency(measure)
    raise TypeError(
        "measure must be made by hamming, f_beta, prbep, precision_at, recall_at or roc_area, or be a "
        f"function delta(a, b, c, d); got {measure!r}."
    )


def _as_scores(v: Any, positive: np.ndarray) -> np.ndarray:
    scores = as_numpy("v", v)
    check_real("v", scores.dtype)
    if scores.shape != positive.shape or not np.isfinite(scores).all():
        raise ValueError(f"v must be finite and of y's shape {positive.shape}, got shape {scores.shape}.")
    return scores.astype(float)


def as_signs(y: Any) -> np.ndarray:
    """True where y is 1, (n,); raises unless y holds -1 and 1 only."""
    y = as_numpy("y", y)
    if y.ndim != 1 or y.size == 0:
        raise ValueError(f"y must have shape (n,) with n >= 1, got shape {y.shape}.")
    if y.dtype.kind not in "iuf":
        raise TypeError(f"y has dtype {y.dtype}; numbers -1 and 1 are needed.")
    signs: np.ndarray = y == 1
    strange = y[~signs & (y != -1)]
    if strange.size:
        hint = "; for labels 0 and 1 give 2*y - 1" if set(np.unique(y).tolist()) <= {0, 1} else ""
        raise ValueError(f"y must hold -1 and 1 only; it has {strange[0]}{hint}.")
    return signs
