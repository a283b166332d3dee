r"""Measures of selected features and of multi-label predictions.

Each checks its arguments outside a transformation. Inside `jax.jit` or `jax.vmap` only shapes and dtypes are
known; values that would have been refused there make the result NaN, or do what its docstring says.
"""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float, check_bool, check_labels, is_traced
from sparsejax._core.linalg import eps_of, safe_divide


class PrecisionRecallF1(NamedTuple):
    """Averages over labels, from `precision_recall_f1`."""

    precision: jax.Array  # () right positives over predicted positives
    recall: jax.Array  # () right positives over true positives
    f1: jax.Array  # () their harmonic mean


def precision_recall_f1(
    Y_true: ArrayLike, Y_pred: ArrayLike, average: Literal["macro", "micro"] = "macro"
) -> PrecisionRecallF1:
    r"""Precision, recall and F1 of multi-label predictions.

    With :math:`a_j` the samples that have label j and are given it, :math:`p_j` those that are given it
    and :math:`t_j` those that have it:

    * macro: the means over j of :math:`a_j/p_j`, :math:`a_j/t_j` and :math:`2a_j/(p_j+t_j)`;
    * micro: the same three ratios of :math:`\sum_j a_j`, :math:`\sum_j p_j`, :math:`\sum_j t_j`.

    0/0 counts as 0: a label that nobody is given has precision 0, one that nobody has has recall 0. The
    macro F1 is the mean of the labels' F1, not the F1 of the mean precision and recall.

    Args:
      Y_true, Y_pred: zeros and ones, (n, k), or (n,) for one label; booleans and integers too.
      average: "macro" or "micro".

    Returns:
      `PrecisionRecallF1`, each (), of Y_true's dtype, or of the default float if that is not floating. NaN
      if a traced value is neither 0 nor 1.

    Raises:
      TypeError: an array is not real.
      ValueError: a value is not 0 or 1, an array is empty or of the wrong rank, shapes differ, or
        ``average`` is something else.
    Source: Yang, Information Retrieval 1, 1999; the metrics of Kong et al., AAAI 2016.
    """
    Y_true = as_float("Y_true", Y_true, (1, 2))
    Y_pred = as_float("Y_pred", Y_pred, (1, 2), Y_true.dtype)
    if Y_true.shape != Y_pred.shape:
        raise ValueError(f"Y_true has shape {Y_true.shape} and Y_pred {Y_pred.shape}; they must agree.")
    if Y_true.size == 0:
        raise ValueError(f"Y_true is empty: its shape is {Y_true.shape}.")
    for name, Y in (("Y_true", Y_true), ("Y_pred", Y_pred)):
        check_labels(Y, (0, 1), name=name)
    if not isinstance(average, str) or average not in ("macro", "micro"):
        raise ValueError(f"average must be 'macro' or 'micro', got {average!r}.")
    scores: PrecisionRecallF1 = _precision_recall_f1(Y_true, Y_pred, average)
    return scores


@partial(jax.jit, static_argnames="average")
def _precision_recall_f1(Y_true: jax.Array, Y_pred: jax.Array, average: str) -> PrecisionRecallF1:
    true, given = Y_true == 1, Y_pred == 1
    axis = 0 if average == "macro" else None
    # Whole numbers until the sums: exact.
    right, have, get = (jnp.sum(Y, axis=axis).astype(Y_true.dtype) for Y in (true & given, true, given))
    valid = jnp.all((true | (Y_true == 0)) & (given | (Y_pred == 0)))

    def mean(above: jax.Array, below: jax.Array) -> jax.Array:
        return jnp.where(valid, jnp.mean(safe_divide(above, below)), jnp.nan)

    return PrecisionRecallF1(mean(right, get), mean(right, have), mean(2 * right, get + have))


class MeanAUC(NamedTuple):
    """Average over labels, from `mean_auc`."""

    mean: jax.Array  # () mean over the labels whose area is defined; NaN if there is none
    left_out: jax.Array  # () int32, how many labels are not in the mean


def auc(Y_true: ArrayLike, scores: ArrayLike) -> jax.Array:
    r"""Area under the ROC curve of each label.

    The share of the pairs of a sample with the label and one without that the scores put in the right order;
    a tie counts one half:

    .. math:: \frac{1}{|P||N|} \sum_{i \in P} \sum_{j \in N} [s_i > s_j] + \tfrac12 [s_i = s_j].

    One sort a label, O(n log n), a few labels at a time; memory is O(nk), a few copies of the scores.

    Args:
      Y_true: zeros and ones, (n, k), or (n,) for one label; booleans and integers too.
      scores: the same shape; the larger, the more likely the label.

    Returns:
      (k,), or () for one label, of the scores' dtype, or of the default float if that is not floating; in
      [0, 1]. NaN for a label that all samples or none have, and for a traced label that is neither 0 nor 1
      or a traced score that is NaN.

    Raises:
      TypeError: an array is not real.
      ValueError: a label is not 0 or 1, a score not finite; an array is empty or of the wrong rank; shapes
        differ.
    Source: Hanley & McNeil, Radiology 143, 1982; the metric of Chen et al., MM 2011.
    """
    areas: jax.Array = _auc(*_labels_and_scores(Y_true, scores))[0]
    return areas


def mean_auc(Y_true: ArrayLike, scores: ArrayLike) -> MeanAUC:
    """Mean of `auc` over the labels that some samples have and some lack.

    Args:
      Y_true, scores: as `auc`.

    Returns:
      `MeanAUC`: the mean, of the dtype of `auc`, and the number of labels left out of it.

    Raises:
      TypeError, ValueError: as `auc`.
    Source: Chen et al., MM 2011, Section 4.2, which does not say what labels without samples count.
    """
    areas, defined = _auc(*_labels_and_scores(Y_true, scores))
    count = jnp.sum(defined, dtype=jnp.int32)
    total = jnp.sum(jnp.where(defined, areas, 0))
    return MeanAUC(safe_divide(total, count.astype(total.dtype), jnp.nan), defined.size - count)


def _labels_and_scores(labels: ArrayLike, scores: ArrayLike) -> tuple[jax.Array, jax.Array]:
    scores = as_float("scores", scores, (1, 2))
    Y_true = as_float("Y_true", labels, (1, 2), scores.dtype)
    if Y_true.shape != scores.shape:
        raise ValueError(f"Y_true has shape {Y_true.shape} and scores {scores.shape}; they must agree.")
    if Y_true.size == 0:
        raise ValueError(f"Y_true is empty: its shape is {Y_true.shape}.")
    check_labels(Y_true, (0, 1), name="Y_true")
    return Y_true, scores


@jax.jit
def _auc(Y: jax.Array, S: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The area of each label, and whether it is defined."""
    if Y.ndim == 1:
        return _auc_of_label((Y, S))
    areas, defined = lax.map(_auc_of_label, (Y.T, S.T), batch_size=16)
    return areas, defined


def _auc_of_label(label: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    y, s = label
    valid = jnp.all((y == 0) | (y == 1)) & ~jnp.any(jnp.isnan(s))
    s, y = lax.sort((s, y), num_keys=1)
    negative = (y != 1).astype(jnp.int32)
    seen = jnp.cumsum(negative)
    differ, edge = s[1:] != s[:-1], jnp.ones(1, bool)
    first, last = jnp.concatenate([edge, differ]), jnp.concatenate([differ, edge])
    # Negatives below, and up to the end of, the samples tied with each one.
    below = lax.cummax(jnp.where(first, seen - negative, 0))
    through = lax.cummin(jnp.where(last, seen, len(s)), reverse=True)
    positives, negatives = len(s) - seen[-1], seen[-1]
    defined = (positives > 0) & (negatives > 0)
    share = (below + through).astype(s.dtype) / (2 * jnp.maximum(negatives, 1)).astype(s.dtype)
    area = jnp.sum(jnp.where(negative == 0, share, 0)) / jnp.maximum(positives, 1).astype(s.dtype)
    return jnp.where(defined & valid, area, jnp.nan), defined


def selection_error(X: ArrayLike, Y: ArrayLike, order: ArrayLike) -> jax.Array:
    r"""How much of Y the first features of a ranking leave unexplained, for every number of them.

    .. math:: J_r = \min_W \|Y - X_r W\|_F^2 \,/\, \|Y\|_F^2, \qquad r = 1, \dots, \text{len(order)},

    X_r the first r columns in ``order``. There is no intercept: centre X and Y to have one. A column is taken
    for a combination of those before it, and changes nothing, if what they leave of it is at most
    10 eps sqrt(n) of its norm, eps that of the dtype. One pass, O(n r min(n, r) + n r k).

    Args:
      X: (n, d).
      Y: (n, k) or (n,), not all zero.
      order: distinct columns of X, best first, integers, shape (r,).

    Returns:
      (r,), of X's dtype, in [0, 1] and never increasing. In a trace, where values raise nothing: NaN if Y is
      zero, NaN from an index out of range on, and a repeated index changes nothing.

    Raises:
      TypeError: X or Y is not real, or ``order`` not integer.
      ValueError: shapes do not fit, an array is empty or not finite, Y is zero, or ``order`` has an index
        that is out of range or repeated.
    Source: Kong et al., AAAI 2016, Eq. (9). It lacks the factor :math:`1/\|Y\|_F^2`, but the values printed
      there have it.
    """
    X = as_float("X", X, (2,))
    A = _listed(X, "order", order, least=1)
    Y = as_float("Y", Y, (1, 2), X.dtype)
    if Y.shape[0] != X.shape[0]:
        raise ValueError(f"X has {X.shape[0]} rows and Y has {Y.shape[0]}; they must agree.")
    if Y.ndim == 2 and Y.shape[1] == 0:
        raise ValueError("Y has no columns.")
    if not is_traced(Y) and not np.asarray(Y).any():
        raise ValueError("Y is zero: the error relative to ||Y||_F^2 is undefined.")
    errors: jax.Array = _selection_error(A, Y[:, None] if Y.ndim == 1 else Y)
    return errors


@jax.jit
def _selection_error(A: jax.Array, Y: jax.Array) -> jax.Array:
    """Gram-Schmidt, each column twice against those before it; then R, what is left of Y, loses it too."""
    n, r = A.shape
    tolerance = 10 * eps_of(A) * n**0.5
    Carry = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
    R = Y / jnp.max(jnp.abs(Y))
    R = R / jnp.sqrt(jnp.sum(R * R))

    def step(carry: Carry, v: jax.Array) -> tuple[Carry, jax.Array]:
        Q, rank, R, J = carry  # Q has `rank` orthonormal rows, then zeros
        size = jnp.sqrt(jnp.sum(v * v))
        for _ in range(2):
            v = v - _dot(_dot(Q, v), Q)
        left = jnp.sqrt(jnp.sum(v * v))
        dependent = left <= tolerance * size  # False for NaN, which is to be seen
        q = jnp.where(dependent, 0, v / jnp.where(dependent, 1, left))
        R = R - q[:, None] * _dot(q, R)[None]
        J = jnp.where(dependent, J, jnp.minimum(J, jnp.sum(R * R)))
        return (Q.at[rank].set(q, mode="drop"), rank + jnp.where(dependent, 0, 1), R, J), J

    start = (jnp.zeros((min(n, r), n), A.dtype), jnp.int32(0), R, jnp.ones((), A.dtype))
    return lax.scan(step, start, _scaled(A).T)[1]


def mean_abs_correlation(X: ArrayLike, selected: ArrayLike, *, centered: bool = True) -> jax.Array:
    r"""Mean absolute correlation of the pairs of selected features.

    .. math:: \frac{1}{|P|} \sum_{(s,t) \in P} \frac{|\langle x_s, x_t\rangle|}{\|x_s\|_2\,\|x_t\|_2},

    x_s the columns of X, less their means if ``centered``, and P the pairs s < t of selected columns. A
    column that is constant (not centred: zero) has no correlation; its pairs are left out of P.

    Args:
      X: (n, d).
      selected: at least two distinct columns of X, integers, shape (r,).
      centered: True for Pearson's correlation, False for cosines.

    Returns:
      (), of X's dtype, in [0, 1]; NaN if P is empty or, in a trace, an index is out of range.

    Raises:
      TypeError: X is not real, ``selected`` not integer, ``centered`` not a bool.
      ValueError: X is empty or not finite, or ``selected`` is not 1-d, has fewer than two entries, or one
        that is out of range or repeated.
    Source: Kong et al., AAAI 2016, Eq. (4), stated for centred columns; the values printed there are cosines.
    """
    A = _listed(as_float("X", X, (2,)), "selected", selected, least=2)
    check_bool("centered", centered)
    mean: jax.Array = _mean_abs_correlation(A, centered)
    return mean


@partial(jax.jit, static_argnames="centered")
def _mean_abs_correlation(A: jax.Array, centered: bool) -> jax.Array:
    U = _scaled(A)
    if centered:
        # A constant column less its rounded mean would be noise, not zero.
        U = jnp.where((jnp.max(A, axis=0) == jnp.min(A, axis=0))[None], 0, U - jnp.mean(U, axis=0)[None])
        U = U - jnp.mean(U, axis=0)[None]  # the rounding error of the first mean
    norm = jnp.sqrt(jnp.sum(U * U, axis=0))
    none = norm == 0
    U = U / jnp.where(none, 1, norm)[None]
    C = jnp.minimum(jnp.abs(_dot(U.T, U)), 1)
    pairs = jnp.triu(~(none[:, None] | none[None]), 1)
    return jnp.sum(jnp.where(pairs, C, 0)) / jnp.sum(pairs).astype(A.dtype)


def _listed(X: jax.Array, name: str, index: ArrayLike, least: int) -> jax.Array:
    """The listed columns of X; NaN for an index out of range, which only a traced one can be."""
    n, d = X.shape
    if n == 0 or d == 0:
        raise ValueError(f"X is empty: its shape is {X.shape}.")
    if not isinstance(index, jax.Array):
        try:
            index = np.asarray(index)
        except ValueError as error:  # ragged lists
            raise ValueError(f"{name} is not a list of columns: {error}") from None
    if index.ndim != 1:
        raise ValueError(f"{name} has shape {tuple(index.shape)}; it must be 1-d, a list of columns of X.")
    if index.size < least:
        raise ValueError(f"{name} lists {index.size} columns; at least {least} needed.")
    if not jnp.issubdtype(index.dtype, jnp.integer):
        raise TypeError(f"{name} has dtype {index.dtype}; integers are needed, the columns' numbers.")
    if not is_traced(index):
        values = np.asarray(index)
        wrong = values[(values < 0) | (values >= d)]
        if wrong.size:
            raise ValueError(f"{name} has the index {wrong[0]}; X has columns 0 to {d - 1}.")
        distinct, counts = np.unique(values, return_counts=True)
        if (counts > 1).any():
            raise ValueError(f"{name} lists column {distinct[counts > 1][0]} more than once.")
    index = jnp.asarray(index).astype(jnp.int32)
    return jnp.take(X, jnp.where(index < 0, d, index), axis=1, mode="fill", fill_value=jnp.nan)


def _scaled(A: jax.Array) -> jax.Array:
    """Columns divided by their largest entry, so that squares neither overflow nor vanish."""
    largest = jnp.max(jnp.abs(A), axis=0)
    return A / jnp.where(largest == 0, 1, largest)[None]


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """In the full precision of the dtype, also where the default is less, as on GPUs."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)
