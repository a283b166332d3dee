"""Measures of predictions, with weights of rows or entries."""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float, as_weights, check_labels
from sparsejax._core.linalg import safe_divide


class PrecisionRecallF1(NamedTuple):
    """The result of `precision_recall_f1`: averages over labels.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> Y_true, Y_pred = jnp.array([[1], [1], [0], [0]]), jnp.array([[1], [0], [1], [0]])
    >>> result = sj.metrics.precision_recall_f1(Y_true, Y_pred)
    >>> float(result.precision), float(result.recall), float(result.f1)
    (0.5, 0.5, 0.5)
    """

    precision: jax.Array  # (), correctly predicted positives over all predicted positives
    recall: jax.Array  # (), correctly predicted positives over all actual positives
    f1: jax.Array  # (), the harmonic mean of the two: for "macro" of each label, then averaged over labels


def precision_recall_f1(
    Y_true: ArrayLike,
    Y_pred: ArrayLike,
    average: Literal["macro", "micro"] = "macro",
    weights: ArrayLike | None = None,
) -> PrecisionRecallF1:
    r"""Precision, recall and F1 of multi-label predictions.

    Let :math:`a_j` be the number of samples that have label j and are predicted to have it, :math:`p_j` the
    number predicted to have it, and :math:`t_j` the number that have it.

    * macro: the means over j of :math:`a_j/p_j`, :math:`a_j/t_j` and :math:`2a_j/(p_j+t_j)`;
    * micro: the same three ratios of :math:`\sum_j a_j`, :math:`\sum_j p_j`, :math:`\sum_j t_j`.

    0/0 counts as 0: the precision of a label that is never predicted is 0, and the recall of a label that no
    sample has is 0. The macro F1 is the mean of the F1 of all labels, not the F1 of the mean precision and
    recall.

    Args:
      Y_true, Y_pred: zeros and ones, (n, k), or (n,) for one label; booleans and integers too.
      average: "macro" or "micro".
      weights: None, (n,) by row, or the shape of Y_true by entry, >= 0: how often a row or entry counts; 0
        leaves it out.

    Returns:
      `PrecisionRecallF1`, each (), in the dtype of Y_true, or in the default float if Y_true is not floating.
      NaN if a traced value is neither 0 nor 1, or a traced weight is negative or NaN.

    Raises:
      TypeError: an array is not real.
      ValueError: a value is not 0 or 1, an array is empty or of the wrong rank, shapes differ, a weight is
        negative, or ``average`` is something else.
    Source: Yang, Information Retrieval 1, 1999; the metrics of Kong et al., AAAI 2016.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> Y_true, Y_pred = jnp.array([[1], [1], [0], [0]]), jnp.array([[1], [0], [1], [0]])
    >>> result = sj.metrics.precision_recall_f1(Y_true, Y_pred)
    >>> float(result.precision), float(result.recall), float(result.f1)
    (0.5, 0.5, 0.5)
    """
    Y_true, Y_pred = _zeros_and_ones(Y_true, Y_pred)
    if not isinstance(average, str) or average not in ("macro", "micro"):
        raise ValueError(f"average must be 'macro' or 'micro', got {average!r}.")
    w = _counts(weights, Y_true)
    return _precision_recall_f1(Y_true, Y_pred, w, average)


def _zeros_and_ones(Y_true: ArrayLike, Y_pred: ArrayLike) -> tuple[jax.Array, jax.Array]:
    Y_true, Y_pred = _pair(Y_true, Y_pred)
    for name, Y in (("Y_true", Y_true), ("Y_pred", Y_pred)):
        check_labels(Y, (0, 1), name=name)
    return Y_true, Y_pred


def _pair(Y_true: ArrayLike, Y_pred: ArrayLike) -> tuple[jax.Array, jax.Array]:
    Y_true = as_float("Y_true", Y_true, (1, 2))
    Y_pred = as_float("Y_pred", Y_pred, (1, 2), Y_true.dtype)
    _check_shapes(Y_true, "Y_pred", Y_pred)
    return Y_true, Y_pred


def _check_shapes(Y_true: jax.Array, name: str, other: jax.Array) -> None:
    if Y_true.shape != other.shape:
        raise ValueError(f"Y_true has shape {Y_true.shape} and {name} {other.shape}; they must agree.")
    if Y_true.size == 0:
        raise ValueError(f"Y_true is empty: its shape is {Y_true.shape}.")


def _counts(weights: ArrayLike | None, Y: jax.Array) -> jax.Array:
    """The weights with as many axes as Y; integer ones for None, since sums of integers are exact."""
    if weights is None:
        return jnp.ones((1,) * Y.ndim, jnp.int32)
    w = as_weights(weights, Y)
    return w.reshape(w.shape + (1,) * (Y.ndim - w.ndim))


@partial(jax.jit, static_argnames="average")
def _precision_recall_f1(
    Y_true: jax.Array, Y_pred: jax.Array, w: jax.Array, average: str
) -> PrecisionRecallF1:
    true, given = Y_true == 1, Y_pred == 1
    axis = 0 if average == "macro" else None
    a, t, p = (  # as in the docstring of `precision_recall_f1`
        jnp.sum(jnp.where(Y, w, 0), axis=axis).astype(Y_true.dtype) for Y in (true & given, true, given)
    )
    valid = jnp.all((true | (Y_true == 0)) & (given | (Y_pred == 0))) & jnp.all(w >= 0)

    def mean(above: jax.Array, below: jax.Array) -> jax.Array:
        return jnp.where(valid, jnp.mean(safe_divide(above, below)), jnp.nan)

    return PrecisionRecallF1(mean(a, p), mean(a, t), mean(2 * a, p + t))


class MeanAUC(NamedTuple):
    """The result of `mean_auc`: an average over labels.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> result = sj.metrics.mean_auc(jnp.array([[1, 1], [0, 1]]), jnp.array([[0.9, 0.1], [0.2, 0.3]]))
    >>> float(result.mean), int(result.left_out)
    (1.0, 1)
    """

    mean: jax.Array  # (), mean over the labels whose area is defined; NaN if there are none
    left_out: jax.Array  # () int32, the number of labels that are not in the mean


def auc(Y_true: ArrayLike, scores: ArrayLike, weights: ArrayLike | None = None) -> jax.Array:
    r"""Area under the ROC curve of each label.

    A pair is a sample with the label (set P) and a sample without it (set N). The area is the share of pairs
    in which the sample with the label has the higher score; a tie counts one half:

    .. math:: \frac{1}{|P||N|} \sum_{i \in P} \sum_{j \in N} [s_i > s_j] + \tfrac12 [s_i = s_j].

    The time is one sort for each label, O(n log n); the memory is a few copies of the scores, O(nk).

    Args:
      Y_true: zeros and ones, (n, k), or (n,) for one label; booleans and integers too.
      scores: shape of Y_true; larger means that the label is more likely.
      weights: None, (n,) by row, or the shape of Y_true by entry, >= 0: the weight of a pair is the product
        of the two weights.

    Returns:
      (k,), or () for one label, in the dtype of the scores, or in the default float if they are not floating;
      in [0, 1]. NaN for a label that all samples of positive weight have, or none of them; also if a traced
      label is neither 0 nor 1, a traced score is NaN, or a traced weight is negative or NaN. Under jit an
      infinite score is not noticed.

    Raises:
      TypeError: an array is not real.
      ValueError: a label is not 0 or 1, a score not finite, a weight negative; an array is empty or of the
        wrong rank; shapes differ.
    Source: Hanley & McNeil, Radiology 143, 1982; the metric of Chen et al., MM 2011.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> float(sj.metrics.auc(jnp.array([1, 0, 1, 0]), jnp.array([0.9, 0.1, 0.4, 0.6])))
    0.75
    """
    return _auc(*_labels_and_scores(Y_true, scores, weights))[0]


def mean_auc(Y_true: ArrayLike, scores: ArrayLike, weights: ArrayLike | None = None) -> MeanAUC:
    """Mean of `auc` over the labels that some samples of positive weight have and others do not.

    Args:
      Y_true, scores, weights: as `auc`.

    Returns:
      `MeanAUC`: the mean, in the dtype of `auc`, and the number of labels left out of the mean.

    Raises:
      TypeError, ValueError: as `auc`.
    Source: Chen et al., MM 2011, Section 4.2, which does not say how labels without samples count.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> float(sj.metrics.mean_auc(jnp.array([[1, 0], [0, 1]]), jnp.array([[0.9, 0.1], [0.2, 0.3]])).mean)
    1.0
    """
    areas, defined = _auc(*_labels_and_scores(Y_true, scores, weights))
    count = jnp.sum(defined, dtype=jnp.int32)
    total = jnp.sum(jnp.where(defined, areas, 0))
    return MeanAUC(safe_divide(total, count.astype(total.dtype), jnp.nan), defined.size - count)


def _labels_and_scores(
    labels: ArrayLike, scores: ArrayLike, weights: ArrayLike | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    scores = as_float("scores", scores, (1, 2))
    Y_true = as_float("Y_true", labels, (1, 2), scores.dtype)
    _check_shapes(Y_true, "scores", scores)
    check_labels(Y_true, (0, 1), name="Y_true")
    return Y_true, scores, _counts(weights, Y_true)


@jax.jit
def _auc(Y: jax.Array, S: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The area for each label, and whether the mean counts it: the area is defined, or its data are bad."""
    w = jnp.broadcast_to(w, Y.shape)
    if Y.ndim == 1:
        return _auc_of_label((Y, S, w))
    areas, defined = lax.map(_auc_of_label, (Y.T, S.T, w.T), batch_size=16)
    return areas, defined


def _auc_of_label(label: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    y, s, w = label
    valid = jnp.all((y == 0) | (y == 1)) & ~jnp.any(jnp.isnan(s)) & jnp.all(w >= 0)
    s, y, w = lax.sort((s, y, w), num_keys=1)
    negative, positive = jnp.where(y == 1, 0, w), jnp.where(y == 1, w, 0)
    seen = jnp.cumsum(negative)
    differ, edge = s[1:] != s[:-1], jnp.ones(1, bool)
    first, last = jnp.concatenate([edge, differ]), jnp.concatenate([differ, edge])
    # For each sample the weight of negatives with a lower score, and of negatives with at most its score.
    # Neither exceeds the sum of all negatives, although rounded cumulative sums may decrease.
    below = jnp.minimum(lax.cummax(jnp.where(first, seen - negative, 0)), seen[-1])
    through = lax.cummin(jnp.where(last, seen, seen[-1]), reverse=True)
    positives, negatives = jnp.sum(positive), seen[-1]
    defined = (positives > 0) & (negatives > 0)
    share = safe_divide((below + through).astype(s.dtype), (2 * negatives).astype(s.dtype))
    area = safe_divide(jnp.sum(positive.astype(s.dtype) * share), positives.astype(s.dtype))
    return jnp.where(defined & valid, area, jnp.nan), defined | ~valid


def accuracy(Y_true: ArrayLike, Y_pred: ArrayLike, weights: ArrayLike | None = None) -> jax.Array:
    """The share of the rows in which all labels are predicted correctly.

    If each column is a class and every row has one class, this is the usual accuracy of classes.

    Args:
      Y_true, Y_pred: zeros and ones, (n, k), or (n,) for one label; booleans and integers too.
      weights: None or (n,), one a row, >= 0.

    Returns:
      (), of Y_true's dtype, or of the default float if that is not floating; in [0, 1]. NaN if all weights
      are 0, a traced value is neither 0 nor 1, or a traced weight is negative or NaN.

    Raises:
      TypeError: an array is not real.
      ValueError: a value is not 0 or 1, an array is empty or of the wrong rank, shapes differ, a weight is
        negative.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> float(sj.metrics.accuracy(jnp.array([1, 0, 0, 1]), jnp.array([1, 0, 0, 0])))
    0.75
    """
    Y_true, Y_pred = _zeros_and_ones(Y_true, Y_pred)
    rows = jnp.ones(Y_true.shape[:1], Y_true.dtype) if weights is None else weights
    rows = as_float("weights", rows, (1,), Y_true.dtype)
    return _accuracy(Y_true, Y_pred, _counts(rows, Y_true))


@jax.jit
def _accuracy(Y_true: jax.Array, Y_pred: jax.Array, w: jax.Array) -> jax.Array:
    Y, P, w = (x.reshape(x.shape[0], -1) for x in (Y_true, Y_pred, w))
    valid = jnp.all(((Y == 0) | (Y == 1)) & ((P == 0) | (P == 1))) & jnp.all(w >= 0)
    right = jnp.all(Y == P, axis=1, keepdims=True)
    share = safe_divide(jnp.sum(jnp.where(right, w, 0)), jnp.sum(w), jnp.nan)
    return jnp.where(valid, share, jnp.nan)


def r2(Y_true: ArrayLike, Y_pred: ArrayLike, weights: ArrayLike | None = None) -> jax.Array:
    r"""The coefficient of determination: the share of the variance explained, averaged over columns.

    .. math:: R^2 = 1 - \sum_i w_i (y_i - p_i)^2 \big/ \sum_i w_i (y_i - \bar y)^2, \qquad
              \bar y = \sum_i w_i y_i \big/ \sum_i w_i .

    R^2 is at most 1. Predicting the mean of the column gives 0; worse predictions give negative values.

    Args:
      Y_true, Y_pred: (n, k) or (n,).
      weights: None, (n,) by row, or the shape of Y_true by entry, >= 0.

    Returns:
      (), in the dtype of Y_true, or in the default float if Y_true is not floating. As in scikit-learn, a
      constant column counts 1 if it is predicted exactly, else 0. A column with fewer than two rows of
      positive weight gives NaN; so does a traced value that is not finite or a traced weight below 0.

    Raises:
      TypeError: an array is not real.
      ValueError: an array is empty, not finite or of the wrong rank, shapes differ, a weight is negative.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> round(float(sj.metrics.r2(jnp.array([1.0, 2.0, 3.0]), jnp.array([1.0, 2.0, 2.0]))), 3)
    0.5
    """
    Y_true, Y_pred = _pair(Y_true, Y_pred)
    return _r2(Y_true, Y_pred, _counts(weights, Y_true).astype(Y_true.dtype))


@jax.jit
def _r2(Y: jax.Array, P: jax.Array, w: jax.Array) -> jax.Array:
    valid = jnp.all(jnp.isfinite(Y) & jnp.isfinite(P)) & jnp.all(w >= 0)
    w = jnp.broadcast_to(w, Y.shape)
    Y, P = (jnp.where(w > 0, x, 0) for x in (Y, P))  # the size of entries with weight 0 does not count
    # In units of a power of two near the largest |y| of each column, so that squares do not underflow.
    exponent = jnp.frexp(jnp.max(jnp.abs(Y), axis=0, keepdims=True))[1]
    Y, P = jnp.ldexp(Y, -exponent), jnp.ldexp(P, -exponent)
    C = Y - safe_divide(jnp.sum(w * Y, axis=0), jnp.sum(w, axis=0))[None]
    left, whole = jnp.sum(w * (Y - P) ** 2, axis=0), jnp.sum(w * C * C, axis=0)
    # The rounding error of the mean of a constant column is no variance.
    least = jnp.min(jnp.where(w > 0, Y, jnp.inf), axis=0)
    whole = jnp.where(least < jnp.max(jnp.where(w > 0, Y, -jnp.inf), axis=0), whole, 0)
    shares = 1 - safe_divide(left, whole, jnp.where(left == 0, 0, 1))
    return jnp.mean(jnp.where(valid & (jnp.sum(w > 0, axis=0) > 1), shares, jnp.nan))
