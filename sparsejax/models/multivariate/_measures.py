r"""Measures of a whole labelling, and the labelling that violates the margin most.

With truth y, prediction y' and its table of a true positives, b false positives, c false negatives and
d true negatives, a measure is a loss :math:`\Delta(a, b, c, d)`, and its oracle finds

.. math:: \max_{y'} \Delta(y', y) - z^\top v, \qquad z = y - y' ,

for scores v. With a and b given, the best y' calls the a highest positives and the b highest negatives
positive, so that tables are searched, not labellings. What the solver sees is the code z and
:math:`\Delta`: entries of z are -2, 0 and 2 (int8), or real for the ROC area, which orders pairs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

BLOCK = 1 << 20  # entries of a table looked at together
KEPT = 1 << 22  # entries of a user's table that are kept rather than computed anew


@dataclass(frozen=True)
class Measure:
    """What to optimise: made by `hamming`, `f_beta`, `prbep`, `precision_at`, `recall_at`, `roc_area`.

    Attributes:
      name: that of the function that made it, or "contingency".
      parameter: its argument: scale, beta, k or the user's function.
    """

    name: str
    parameter: Any = None

    @property
    def delta(self) -> Callable[..., np.ndarray] | None:
        """The loss of tables (a, b, c, d), arrays that broadcast; -inf where not allowed; None for pairs."""
        return None if self.name == "roc_area" else lambda a, b, c, d: _delta(self, a, b, c, d)

    def oracle(self, positive: np.ndarray) -> Callable[[np.ndarray], tuple[np.ndarray, float]]:
        """The function v -> (z, Delta) for this truth, (n,) bool; raises if it has none."""
        p, n = int(positive.sum()), len(positive)
        if p == 0 and self.name != "hamming":
            raise ValueError(f"y has no +1, which {self.name} needs.")
        if p == n and self.name == "roc_area":
            raise ValueError("y has no -1, which roc_area needs.")
        if self.name in ("precision_at", "recall_at") and self.parameter > n:
            raise ValueError(
                f"{self.name}: k must be at most the number of examples, {n}; got {self.parameter}."
            )
        return _ORACLES[self.name](self, positive)


def hamming(scale: float = 1.0) -> Measure:
    """``Delta = scale * (b + c)``. With scale 2 the risk is twice the sum of the hinge losses: the SVM.

    Raises:
      ValueError: scale is not > 0 and finite.
    """
    return Measure("hamming", _positive("scale", scale))


def f_beta(beta: float = 1.0) -> Measure:
    r"""``Delta = 100 (1 - F)``, :math:`F = (1+\beta^2)a / ((1+\beta^2)a + b + \beta^2 c)`, 0 where a = 0.

    Raises:
      ValueError: beta is not > 0 and finite.
    """
    return Measure("f_beta", _positive("beta", beta))


def prbep() -> Measure:
    """``Delta = 100 (1 - a/p)`` over the labellings with b = c: the precision/recall break-even point."""
    return Measure("prbep")


def precision_at(k: int) -> Measure:
    """``Delta = 100 (1 - a/k)`` over the labellings with a + b = k.

    Raises:
      TypeError, ValueError: k is not a positive integer. At the fit: k > n.
    """
    return Measure("precision_at", _count(k))


def recall_at(k: int) -> Measure:
    """``Delta = 100 (1 - a/p)`` over the labellings with a + b = k.

    It does not reach 0 where k < p, nor the risk where k > p. With k = n there is one labelling and w = 0.

    Raises:
      TypeError, ValueError: as `precision_at`.
    """
    return Measure("recall_at", _count(k))


def roc_area() -> Measure:
    """``Delta = 100 (1 - area)``, the percentage of pairs (positive, negative) in the wrong order."""
    return Measure("roc_area")


def contingency(delta: Callable[..., Any]) -> Measure:
    """A loss of one's own, ``delta(a, b, c, d)``.

    Args:
      delta: given float arrays that broadcast, the losses of the tables: >= 0, or -inf for tables that are
        not allowed. Its maximum over the p q tables of one truth is searched through: O(n log n + p q).
        To be used in parallel processes it must be a function of a module.

    Raises:
      TypeError: delta is not callable.
    """
    if not callable(delta):
        raise TypeError(f"delta must be a function of (a, b, c, d), got {type(delta).__name__}.")
    return Measure("contingency", delta)


def most_violated(measure: Measure | Callable[..., Any], v: Any, y: Any) -> tuple[np.ndarray, float]:
    r"""The labelling y' of largest ``Delta(y', y) - (y - y')' v``, and that value.

    The value is < 0 only if y itself is not allowed (`precision_at`, `recall_at` with k != p). Of equal
    labellings one with the fewest true, then the fewest false positives is taken where tables are searched.

    Args:
      measure: a `Measure`, or a function as for `contingency`.
      v: scores, (n,), finite.
      y: truth, (n,), -1 and 1.

    Returns:
      y', (n,), dtype of y, and the value, a float. For `roc_area`, which has no labelling, the code z, (n,),
      in place of y'.

    Raises:
      TypeError, ValueError: as `fit` for measure and y; v not finite or of another length.
    """
    measure, positive, v = as_measure(measure), as_signs(y), np.asarray(v, dtype=float)
    if v.shape != positive.shape or not np.isfinite(v).all():
        raise ValueError(f"v must be finite and of y's shape {positive.shape}, got shape {v.shape}.")
    z, delta = measure.oracle(positive)(v)
    value = delta - float(z @ v)
    if measure.name == "roc_area":
        return z, value
    y = np.asarray(y)
    return (y - z.astype(y.dtype)).astype(y.dtype), value


def tune_threshold(measure: Measure | Callable[..., Any], v: Any, y: Any) -> float:
    """The threshold t on scores at which "positive where v > t" loses least; the largest such t, if tied.

    Args:
      measure: as in `fit`, a loss of tables (not `roc_area`).
      v: scores, (n,), finite: of the training data, or better of others held out.
      y: truth, (n,), -1 and 1.

    Returns:
      Midway between two scores; -inf or inf where all or none should be positive.

    Raises:
      ValueError: `roc_area`, or no threshold gives an allowed table (`precision_at` with ties).
    """
    measure, positive, v = as_measure(measure), as_signs(y), np.asarray(v, dtype=float)
    if measure.delta is None:
        raise ValueError("roc_area does not depend on a threshold.")
    if v.shape != positive.shape or not np.isfinite(v).all():
        raise ValueError(f"v must be finite and of y's shape {positive.shape}, got shape {v.shape}.")
    order = np.argsort(-v, kind="stable")
    levels, p, n = v[order], positive.sum(), len(v)
    a = np.concatenate([[0.0], np.cumsum(positive[order])])
    b = np.arange(n + 1) - a
    losses = np.array(np.broadcast_to(measure.delta(a, b, p - a, n - p - b), (n + 1,)))
    losses[1:-1][levels[1:] == levels[:-1]] = -np.inf  # no threshold parts them
    if not np.isfinite(losses).any():
        raise ValueError(f"no threshold on these scores gives a table that {measure.name} allows.")
    i = int(np.argmin(np.where(np.isfinite(losses), losses, np.inf)))
    if i in (0, n):
        return math.inf if i == 0 else -math.inf
    return float(levels[i] + (levels[i - 1] - levels[i]) / 2)


# ------------------------------------------------ oracles, (measure, positive) -> (v -> z, Delta)


def _hamming_oracle(measure, positive):
    y = np.where(positive, 1.0, -1.0)

    def oracle(v):
        flip = measure.parameter > 2 * y * v
        return (2 * y * flip).astype(np.int8), measure.parameter * float(flip.sum())

    return oracle


def _selection_oracle(measure, positive):
    """Exactly k are called positive: those of largest 2v - s [y = 1], s the loss of a true positive."""
    p, n = int(positive.sum()), len(positive)
    k = p if measure.name == "prbep" else measure.parameter
    s = 100.0 / (k if measure.name == "precision_at" else p)
    y = np.where(positive, 1, -1).astype(np.int8)

    def oracle(v):
        called = np.zeros(n, bool)
        called[np.argpartition(s * positive - 2 * v, k - 1)[:k]] = True
        return y - np.where(called, 1, -1).astype(np.int8), 100.0 - s * float((called & positive).sum())

    return oracle


def _f_beta_oracle(measure, positive):
    """For each a the value is concave in b; its maximum is found by bisection, for all a together."""
    square = measure.parameter**2
    p, q = int(positive.sum()), int((~positive).sum())
    a, k = np.arange(p + 1.0), 100 * (1 + square)
    steps = math.ceil(math.log2(q + 1)) + 1

    def search(high, low, P, N):
        low = np.append(low, -np.inf)
        b, end = np.zeros(p + 1, int), np.full(p + 1, q)
        for _ in range(steps):  # b becomes the first at which one more false positive gains nothing
            middle = (b + end) // 2
            s = a + middle + square * p
            gains = 2 * low[middle] + k * a / (s * (s + 1)) > 0
            b, end = np.where(gains, middle + 1, b), np.where(gains, end, middle)
        value = -k * a / (a + b + square * p) + 2 * P + 2 * N[b]
        best = int(np.argmax(value))
        return best, int(b[best])

    return _table_oracle(measure, positive, search)


def _contingency_oracle(measure, positive):
    """Every table, in blocks of values of a."""
    p, q = int(positive.sum()), int((~positive).sum())
    a, b = np.arange(p + 1.0)[:, None], np.arange(q + 1.0)[None]
    rows = max(1, BLOCK // (q + 1))

    def block(start):
        some = a[start : start + rows]
        losses = np.asarray(measure.delta(some, b, p - some, q - b), float)
        return np.broadcast_to(losses, (len(some), q + 1))

    allowed, kept = False, {}
    for start in range(0, p + 1, rows):
        losses = block(start)
        if np.isnan(losses).any() or (losses == np.inf).any():
            raise ValueError("delta gives NaN or infinity for some table; finite values or -inf are needed.")
        if (losses[np.isfinite(losses)] < -1e-9).any():
            raise ValueError("delta gives a negative loss for some table; >= 0 or -inf is needed.")
        allowed = allowed or bool(np.isfinite(losses).any())
        if (p + 1) * (q + 1) <= KEPT:
            kept[start] = losses
    if not allowed:
        raise ValueError("delta allows no table (all its values are -inf).")

    def search(high, low, P, N):
        best = (-np.inf, 0, 0)
        for start in range(0, p + 1, rows):
            values = (kept[start] if kept else block(start)) + 2 * P[start : start + rows, None] + 2 * N[None]
            i, j = np.unravel_index(np.argmax(values), values.shape)
            if values[i, j] > best[0]:
                best = (values[i, j], start + int(i), int(j))
        return best[1:]

    return _table_oracle(measure, positive, search)


def _table_oracle(measure, positive, search):
    """Sorts, lets ``search(high, low, P, N)`` choose a and b by prefix sums, and writes down the code."""
    plus, minus = np.flatnonzero(positive), np.flatnonzero(~positive)
    p, q, n = len(plus), len(minus), len(positive)

    def oracle(v):
        top, low = plus[np.argsort(-v[plus], kind="stable")], minus[np.argsort(-v[minus], kind="stable")]
        P, N = (np.concatenate([[0.0], np.cumsum(v[order])]) for order in (top, low))
        a, b = search(v[top], v[low], P, N)
        z = np.zeros(n, np.int8)
        z[top[a:]], z[low[:b]] = 2, -2
        return z, float(measure.delta(float(a), float(b), float(p - a), float(q - b)))

    return oracle


def _roc_oracle(measure, positive):
    """A pair (i, j) counts as swapped iff v_i - v_j < 1; the counts of both sides come from one search."""
    plus, minus = np.flatnonzero(positive), np.flatnonzero(~positive)
    rho = 100.0 / (len(plus) * len(minus))

    def oracle(v):
        order = plus[np.argsort(v[plus], kind="stable")]
        below = np.searchsorted(v[order], v[minus] + 1, side="left")  # positives swapped with each negative
        above = np.cumsum(np.bincount(below, minlength=len(plus) + 1)[::-1])[::-1][1:]
        z = np.zeros(len(v))
        z[order], z[minus] = rho * above, -rho * below
        return z, rho * float(below.sum())

    return oracle


_ORACLES = {
    "hamming": _hamming_oracle,
    "f_beta": _f_beta_oracle,
    "prbep": _selection_oracle,
    "precision_at": _selection_oracle,
    "recall_at": _selection_oracle,
    "roc_area": _roc_oracle,
    "contingency": _contingency_oracle,
}


def _delta(measure, a, b, c, d):
    name, parameter = measure.name, measure.parameter
    if name == "hamming":
        return parameter * (b + c)
    if name == "f_beta":
        square = parameter**2
        below = (1 + square) * a + b + square * c
        return 100 * (1 - (1 + square) * a / np.where(below > 0, below, 1))
    if name == "prbep":
        return np.where(b == c, 100 * (1 - a / (a + c)), -np.inf)
    if name == "precision_at":
        return np.where(a + b == parameter, 100 * (1 - a / parameter), -np.inf)
    if name == "recall_at":
        return np.where(a + b == parameter, 100 * (1 - a / (a + c)), -np.inf)
    return parameter(a, b, c, d)


# ---------------------------------------------------------------- checks


def as_measure(measure: Any) -> Measure:
    """A `Measure`; a function becomes one by `contingency`."""
    if isinstance(measure, Measure):
        return measure
    if callable(measure):
        made = {hamming, f_beta, prbep, precision_at, recall_at, roc_area}
        if measure in made:
            raise TypeError(f"measure is the function {measure.__name__}: call it, {measure.__name__}(...).")
        return contingency(measure)
    raise TypeError(
        "measure must be made by hamming, f_beta, prbep, precision_at, recall_at or roc_area, or be a "
        f"function delta(a, b, c, d); got {measure!r}."
    )


def as_signs(y: Any) -> np.ndarray:
    """True where y is 1, (n,); raises unless y holds -1 and 1 only."""
    y = np.asarray(y)
    if y.ndim != 1 or y.size == 0:
        raise ValueError(f"y must have shape (n,) with n >= 1, got shape {y.shape}.")
    if y.dtype.kind not in "iuf":
        raise TypeError(f"y has dtype {y.dtype}; numbers -1 and 1 are needed.")
    strange = y[(y != 1) & (y != -1)]
    if strange.size:
        hint = "; for labels 0 and 1 give 2*y - 1" if set(np.unique(y).tolist()) <= {0, 1} else ""
        raise ValueError(f"y must hold -1 and 1 only; it has {strange[0]}{hint}.")
    return y == 1


def _positive(name, value):
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float, np.number))
        or not 0 < float(value) < math.inf
    ):
        raise ValueError(f"{name} must be > 0 and finite, got {value!r}.")
    return float(value)


def _count(k):
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        raise TypeError(f"k must be an integer, got {k!r}.")
    if k < 1:
        raise ValueError(f"k must be >= 1, got {k}.")
    return int(k)
