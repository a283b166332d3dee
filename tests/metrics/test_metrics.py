"""Metrics against scikit-learn, numpy and the numbers printed by Kong et al., AAAI 2016."""

import itertools

import aaai16_example
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import accuracy_score, precision_recall_fscore_support, r2_score, roc_auc_score

from sparsejax.metrics import (
    accuracy,
    auc,
    mean_abs_correlation,
    mean_auc,
    precision_recall_f1,
    r2,
    selection_error,
)

AVERAGES = ("macro", "micro")


# ------------------------------------------------------------------ precision, recall, F1


def labels(seed, n=20, k=7):
    """Predictions better than chance; label 0 nobody has, 1 nobody is given, 2 neither, 3 is always right."""
    rng = np.random.default_rng(seed)
    true = rng.random((n, k)) < 0.4
    pred = np.where(rng.random((n, k)) < 0.7, true, rng.random((n, k)) < 0.5)
    true[:, [0, 2]] = pred[:, [1, 2]] = False
    pred[:, 3] = true[:, 3]
    return true.astype(float), pred.astype(float)


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("seed", range(5))
def test_scores_agree_with_scikit_learn(average, seed):
    true, pred = labels(seed)
    expected = precision_recall_fscore_support(true, pred, average=average, zero_division=0)[:3]
    np.testing.assert_allclose(precision_recall_f1(true, pred, average), expected, rtol=1e-14)


@pytest.mark.parametrize("average", AVERAGES)
def test_scores_of_one_label(average):
    true, pred = labels(0)
    for j in range(true.shape[1]):
        expected = precision_recall_fscore_support(true[:, j], pred[:, j], average="binary", zero_division=0)[
            :3
        ]
        np.testing.assert_allclose(precision_recall_f1(true[:, j], pred[:, j], average), expected, rtol=1e-14)
        np.testing.assert_array_equal(
            precision_recall_f1(true[:, j], pred[:, j]), precision_recall_f1(true[:, [j]], pred[:, [j]])
        )


def test_scores_where_nothing_is_to_be_divided():
    zero, one = np.zeros((4, 2)), np.ones((4, 2))
    for average in AVERAGES:
        np.testing.assert_array_equal(precision_recall_f1(zero, zero, average), (0, 0, 0))
        np.testing.assert_array_equal(precision_recall_f1(zero, one, average), (0, 0, 0))
        np.testing.assert_array_equal(precision_recall_f1(one, zero, average), (0, 0, 0))
        np.testing.assert_array_equal(precision_recall_f1(one, one, average), (1, 1, 1))


@pytest.mark.parametrize("average", AVERAGES)
def test_scores_under_jit_and_vmap(average):
    call = lambda t, p: precision_recall_f1(t, p, average)
    true, pred = (np.stack(Y) for Y in zip(*map(labels, range(4)), strict=True))
    eager = [call(t, p) for t, p in zip(true, pred, strict=True)]
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-15)
    close(jax.jit(call)(true[0], pred[0]), eager[0])
    close(jax.vmap(call)(true, pred), np.transpose(eager))
    one_truth = [call(true[0], p) for p in pred]
    close(jax.vmap(call, (None, 0))(true[0], pred), np.transpose(one_truth))
    for strange in (np.nan, 0.5, -1.0):
        wrong = true[0].copy()
        wrong[2, 1] = strange
        assert np.isnan(jax.jit(call)(wrong, pred[0])).all()
        assert np.isnan(jax.jit(call)(true[0], wrong)).all()


@pytest.mark.float32_only_ok
def test_scores_keep_the_dtype():
    true, pred = labels(1)
    default = jnp.result_type(float)
    expected = precision_recall_fscore_support(true, pred, average="macro", zero_division=0)[:3]
    for kind, dtype in ((np.float32, np.float32), (bool, default), (int, default)):
        scores = precision_recall_f1(true.astype(kind), pred.astype(bool))
        assert all(s.dtype == dtype and s.shape == () for s in scores)
        np.testing.assert_allclose(scores, expected, rtol=1e-6)


# ------------------------------------------------------------------ area under the ROC curve

TIES = {"none": None, "some": 10, "heavy": 2, "all": 1}  # distinct scores


def ranked(seed, ties, n=40, k=20):
    """Scores that say something of the labels; label 0 nobody has, label 1 all have. k is above one batch."""
    rng = np.random.default_rng(seed)
    true = rng.random((n, k)) < rng.uniform(0.05, 0.95, k)
    true[0], true[1] = True, False  # both kinds in every label
    scores = rng.standard_normal((n, k)) + true
    if TIES[ties]:
        scores = np.floor(scores * TIES[ties] / 4) if TIES[ties] > 1 else np.zeros_like(scores)
    true[:, 0], true[:, 1] = False, True
    return true.astype(float), scores


@pytest.mark.parametrize("ties", TIES)
def test_auc_agrees_with_scikit_learn(ties):
    for seed in range(3):
        true, scores = ranked(seed, ties)
        areas = np.asarray(auc(true, scores))
        assert areas.shape == (20,)
        assert np.isnan(areas[:2]).all()
        expected = [roc_auc_score(t, s) for t, s in zip(true.T[2:], scores.T[2:], strict=True)]
        np.testing.assert_allclose(areas[2:], expected, rtol=1e-14)
        assert float(auc(true[:, 5], scores[:, 5])) == areas[5]
        np.testing.assert_allclose(np.asarray(auc(1 - true, scores))[2:], 1 - areas[2:], rtol=1e-13)
        mean, left_out = mean_auc(true, scores)
        np.testing.assert_allclose(mean, np.mean(expected), rtol=1e-14)
        assert left_out == 2 and left_out.dtype == np.int32


def test_auc_is_the_share_of_ordered_pairs():
    """The definition, on scores with zeros of both signs, extreme values and ties across the labels."""
    true = np.array([1, 0, 1, 0, 0, 1, 1, 0.0])
    scores = np.array([0.0, -0.0, 3e300, -3e300, 5e-308, 1, 1, 1])
    a, b = scores[true == 1][:, None], scores[true == 0][None]
    assert auc(true, scores) == np.mean((a > b) + 0.5 * (a == b))
    assert auc(true, true) == 1 and auc(true, -true) == 0


def test_auc_of_labels_that_have_none():
    """NaN and counted; the mean of none is NaN."""
    one = np.ones((4, 3))
    for labels in (one, 0 * one):
        assert np.isnan(auc(labels, one)).all()
        mean, left_out = mean_auc(labels, one)
        assert np.isnan(mean) and left_out == 3
    assert np.isnan(auc(one[:, 0], one[:, 0])) and mean_auc(one[:, 0], one[:, 0]).left_out == 1


def test_auc_under_jit_and_vmap():
    true, scores = (np.stack(A) for A in zip(*(ranked(seed, "some") for seed in range(3)), strict=True))
    eager = [mean_auc(t, s) for t, s in zip(true, scores, strict=True)]
    exact = 0 if jax.default_backend() == "cpu" else 1e-15  # a GPU adds in an order of its own
    np.testing.assert_allclose(jax.jit(mean_auc)(true[0], scores[0]), eager[0], rtol=exact)
    np.testing.assert_allclose(jax.vmap(mean_auc)(true, scores), np.transpose(eager), rtol=1e-15)
    found = jax.vmap(auc, (None, 0))(true[0], scores)[2]
    np.testing.assert_allclose(found, auc(true[0], scores[2]), rtol=exact)
    one_label = jax.vmap(auc, 1)(true[0], scores[0])
    np.testing.assert_allclose(one_label, auc(true[0], scores[0]), rtol=exact)
    for strange, changed in ((0.5, 0), (np.nan, 0), (np.nan, 1)):
        wrong = [true[0].copy(), scores[0].copy()]
        wrong[changed][2, 7] = strange
        areas = np.asarray(jax.jit(auc)(*wrong))
        assert np.isnan(areas[7]) and np.isnan(areas).sum() == 3
        assert np.isnan(jax.jit(mean_auc)(*wrong).mean)


@pytest.mark.float32_only_ok
def test_auc_keeps_the_dtype():
    true, scores = ranked(0, "some")
    default = jnp.result_type(float)
    expected = [roc_auc_score(t, s) for t, s in zip(true.T[2:], scores.T[2:], strict=True)]
    for kind, dtype in ((np.float32, np.float32), (int, default)):
        areas = auc(true.astype(bool), scores.astype(kind))
        assert areas.dtype == mean_auc(true.astype(bool), scores.astype(kind)).mean.dtype == dtype
    np.testing.assert_allclose(np.asarray(auc(true, scores.astype(np.float32)))[2:], expected, rtol=1e-6)


# ------------------------------------------------------------------ weights, accuracy, R^2


def row_weights(n):
    """Half of them 0, as of rows that are not held out."""
    rng = np.random.default_rng(5)
    return rng.uniform(0.1, 3, n) * (rng.random(n) < 0.5)


def test_weights_agree_with_scikit_learn():
    """By row; a weight of 0 is a row less; by entry, columns on their own."""
    true, pred = labels(3)
    w = row_weights(len(true))
    for average in AVERAGES:
        expected = precision_recall_fscore_support(
            true, pred, average=average, zero_division=0, sample_weight=w
        )[:3]
        np.testing.assert_allclose(precision_recall_f1(true, pred, average, w), expected, rtol=1e-13)
    by_entry = w[:, None] * np.linspace(1, 2, true.shape[1])[None]
    np.testing.assert_allclose(  # a factor of a column changes no ratio of the column
        precision_recall_f1(true, pred, "macro", by_entry), precision_recall_f1(true, pred, "macro", w)
    )
    np.testing.assert_allclose(accuracy(true, pred, w), accuracy_score(true, pred, sample_weight=w))
    np.testing.assert_allclose(accuracy(true, true), 1)
    np.testing.assert_allclose(accuracy(true[:, 4], pred[:, 4]), accuracy_score(true[:, 4], pred[:, 4]))
    true, scores = ranked(0, "some")
    w = row_weights(len(true))
    expected = [roc_auc_score(t, s, sample_weight=w) for t, s in zip(true.T[2:], scores.T[2:], strict=True)]
    np.testing.assert_allclose(np.asarray(auc(true, scores, w))[2:], expected, rtol=1e-12)
    np.testing.assert_allclose(auc(true, scores, w > 0), auc(true[w > 0], scores[w > 0]), rtol=1e-13)
    large = auc(true, scores, 100 * w)  # the sum of weights is not the number of rows
    np.testing.assert_allclose(np.asarray(large)[2:], expected, rtol=1e-12)
    assert mean_auc(true, scores, w).left_out == 2
    assert mean_auc(true, scores, 0 * w).left_out == 20


def test_r2_agrees_with_scikit_learn():
    rng = np.random.default_rng(0)
    Y = rng.standard_normal((15, 3)) + 4
    P, w = Y + 0.5 * rng.standard_normal(Y.shape), row_weights(15)
    np.testing.assert_allclose(r2(Y, P), r2_score(Y, P))
    np.testing.assert_allclose(r2(Y, P, w), r2_score(Y, P, sample_weight=w))
    np.testing.assert_allclose(r2(Y[:, 0], P[:, 0], w), r2_score(Y[:, 0], P[:, 0], sample_weight=w))
    flat = np.ones((4, 2))
    assert r2(flat, flat) == r2_score(flat, flat) == 1
    assert r2(flat, flat + 1) == r2_score(flat, flat + 1) == 0
    assert r2(0.1 * np.ones(7), np.zeros(7)) == 0  # where the mean is not 0.1 in floating point
    assert np.isnan(r2(Y, P, np.eye(15)[0]))  # of one row
    for size in (1e-200, 1e-160, 1e200):
        np.testing.assert_allclose(r2(size * Y, size * P), r2(Y, P))
    np.testing.assert_allclose(jax.jit(jax.vmap(r2))(Y[None], P[None])[0], r2(Y, P))


def test_bad_weights():
    true, pred = labels(0)
    for weights, match in ((-np.ones(20), "weights must be >= 0"), (np.ones(19), "weights has shape")):
        for call in (precision_recall_f1, auc, accuracy, r2):
            with pytest.raises(ValueError, match=match):
                call(true, pred, weights=weights)
    with pytest.raises(ValueError, match="weights has shape"):
        accuracy(true, pred, np.ones(true.shape))
    with pytest.raises(ValueError, match="Y_pred must hold 0 and 1"):
        accuracy(true, pred + 0.5)
    assert np.isnan(jax.jit(accuracy)(true, pred + 0.5)) and np.isnan(accuracy(true, pred, np.zeros(20)))


# ------------------------------------------------------------------ selection error


def least_squares(X, Y, order):
    """The definition, one `lstsq` a prefix; columns of equal norm, to which its rank tolerance is fair."""
    norm = np.linalg.norm(X, axis=0)
    X, Y = X / np.where(norm > 0, norm, 1), Y.reshape(len(X), -1)
    errors = []
    for r in range(1, len(order) + 1):
        A = X[:, order[:r]]
        errors.append(np.sum((Y - A @ np.linalg.lstsq(A, Y, rcond=1e-11)[0]) ** 2) / np.sum(Y**2))
    return np.array(errors)


def check_selection_error(X, Y, order, atol=1e-10):
    J = np.asarray(selection_error(X, Y, order))
    assert J.shape == (len(order),)
    assert (J >= 0).all() and (J <= 1).all() and (np.diff(J) <= 0).all()
    np.testing.assert_allclose(J, least_squares(np.asarray(X), np.asarray(Y), order), rtol=0, atol=atol)
    return J


@pytest.mark.parametrize("seed", range(3))
def test_selection_error_of_random_data(seed):
    rng = np.random.default_rng(seed)
    X, Y = rng.standard_normal((30, 20)) + 2 * rng.standard_normal((30, 1)), rng.standard_normal((30, 4))
    check_selection_error(X, Y, rng.permutation(20))
    check_selection_error(X, Y, rng.permutation(20)[:6])
    check_selection_error(X * np.logspace(-12, 12, 20), Y, rng.permutation(20))
    one = check_selection_error(X, Y[:, 0], np.arange(20))
    np.testing.assert_array_equal(selection_error(X, Y[:, :1], np.arange(20)), one)


@pytest.mark.parametrize("seed", range(3))
def test_selection_error_of_dependent_columns(seed):
    """A zero column, repeated, opposite and combined ones: none lowers the error once its parts are in."""
    rng = np.random.default_rng(seed)
    B, Y = rng.standard_normal((25, 5)), rng.standard_normal((25, 3))
    X = np.hstack([B, B[:, :2], -3e5 * B[:, :1], B @ rng.standard_normal((5, 4)), np.zeros((25, 1))])
    J = check_selection_error(X, Y, np.arange(13))
    np.testing.assert_array_equal(J[5:], J[4])  # exactly
    order = rng.permutation(13)
    check_selection_error(X, Y, order)
    np.testing.assert_array_equal(selection_error(X, Y, [12, 0])[0], 1)


@pytest.mark.parametrize("seed", range(3))
def test_selection_error_of_more_columns_than_rows(seed):
    rng = np.random.default_rng(seed)
    X, Y = rng.standard_normal((8, 40)), rng.standard_normal((8, 3))
    X[:, 3] = X[:, 1] + X[:, 2]
    J = check_selection_error(X, Y, np.arange(40))
    assert J[7] > 1e-6 and (J[8:] < 1e-28).all()  # column 3 is one of the first eight
    check_selection_error(X, Y, rng.permutation(40))
    np.testing.assert_array_equal(selection_error(X[:1], Y[:1], [0, 1]) < 1e-28, True)


@pytest.mark.parametrize("angle, size", [(1e-7, 1e-3), (1e-3, 1e-7)])
def test_selection_error_of_a_tiny_residual_and_nearly_dependent_columns(angle, size):
    """The first needs both passes of Gram-Schmidt; 1 less the explained share has no digit of the second."""
    rng = np.random.default_rng(0)
    B = rng.standard_normal((40, 10))
    X = B[:, :1] + angle * B
    Q = np.linalg.qr(np.hstack([B[:, :1], B[:, 1:] - B[:, :1]]))[0]  # the same span, well conditioned
    noise = rng.standard_normal((40, 2))
    noise -= Q @ (Q.T @ noise)
    signal = Q @ rng.standard_normal((10, 2))
    J = selection_error(X, signal + size * noise, np.arange(10))[-1]
    np.testing.assert_allclose(J, np.sum((size * noise) ** 2) / np.sum(signal**2), rtol=1e-5)


def test_selection_error_does_not_depend_on_scales():
    rng = np.random.default_rng(1)
    X, Y = rng.standard_normal((10, 6)), rng.standard_normal((10, 2))
    J = selection_error(X, Y, np.arange(6))
    for s in (2.0**-900, 2.0**900):
        np.testing.assert_array_equal(selection_error(s * X, Y, np.arange(6)), J)
        np.testing.assert_allclose(selection_error(X, s * Y, np.arange(6)), J, rtol=1e-13)


def test_selection_error_under_jit_and_vmap():
    rng = np.random.default_rng(2)
    X, Y = rng.standard_normal((3, 9, 12)), rng.standard_normal((3, 9, 2))
    X[1, :, 4] = X[1, :, 5]
    orders = np.stack([rng.permutation(12) for _ in range(3)])
    loop = np.stack([selection_error(*a) for a in zip(X, Y, orders, strict=True)])
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
    close(jax.jit(selection_error)(X[0], Y[0], orders[0]), loop[0])
    close(jax.vmap(selection_error)(X, Y, orders), loop)
    same_data = np.stack([selection_error(X[0], Y[0], o) for o in orders])
    close(jax.vmap(selection_error, (None, None, 0))(X[0], Y[0], orders), same_data)


def test_selection_error_of_bad_values_in_a_trace():
    rng = np.random.default_rng(3)
    X, Y = rng.standard_normal((9, 5)), rng.standard_normal((9, 2))
    call, right = jax.jit(selection_error), np.asarray(selection_error(X, Y, [0, 1, 2]))
    for outside in (5, 99, -1):
        J = np.asarray(call(X, Y, np.array([0, 1, outside, 2])))
        np.testing.assert_allclose(J, [right[0], right[1], np.nan, np.nan], rtol=1e-13)
    np.testing.assert_array_equal(
        call(X, Y, np.array([0, 1, 1, 2]))[2], call(X, Y, np.array([0, 1, 1, 2]))[1]
    )
    assert np.isnan(call(X, 0 * Y, np.arange(3))).all()


@pytest.mark.float32_only_ok
def test_selection_error_in_float32():
    rng = np.random.default_rng(4)
    B, Y = rng.standard_normal((50, 12)), rng.standard_normal((50, 3))
    X = np.hstack([B, B @ rng.standard_normal((12, 6))]).astype(np.float32)
    J = selection_error(X, Y, np.arange(18))  # X's dtype decides
    assert J.dtype == np.float32
    np.testing.assert_array_equal(J[12:], J[11])
    np.testing.assert_allclose(J[:12], least_squares(B, Y, np.arange(12)), atol=1e-6)
    for s in (1e-30, 1e30):
        scaled = selection_error(np.float32(s) * X, np.float32(s) * Y.astype(np.float32), np.arange(18))
        np.testing.assert_allclose(scaled, J, atol=1e-6)


# ------------------------------------------------------------------ correlation


def from_matrix(C):
    return np.nanmean(np.abs(C)[np.triu_indices(len(C), 1)])


@pytest.mark.parametrize("seed", range(3))
def test_correlation_agrees_with_numpy(seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((15, 9)) * np.logspace(-3, 3, 9) + rng.standard_normal((15, 1)) + 5
    U = X / np.linalg.norm(X, axis=0)
    for r in (2, 3, 9):
        selected = rng.permutation(9)[:r]
        expected = from_matrix(np.corrcoef(X[:, selected].T))
        np.testing.assert_allclose(mean_abs_correlation(X, selected), expected, rtol=1e-10)
        expected = from_matrix((U.T @ U)[np.ix_(selected, selected)])
        np.testing.assert_allclose(mean_abs_correlation(X, selected, centered=False), expected, rtol=1e-13)


def test_correlation_without_the_columns_that_have_none():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((11, 7))
    X[:, 1], X[:, 3], X[:, 4] = 0, 0.1, -1e9 / 3
    some = mean_abs_correlation(X, [0, 2, 5])
    np.testing.assert_allclose(mean_abs_correlation(X, [0, 1, 2, 3, 4, 5]), some, rtol=1e-14)
    cosines = mean_abs_correlation(X, [0, 2, 3, 5], centered=False)
    np.testing.assert_allclose(mean_abs_correlation(X, [0, 1, 2, 3, 5], centered=False), cosines, rtol=1e-14)
    np.testing.assert_allclose(mean_abs_correlation(X, [3, 4], centered=False), 1, rtol=1e-14)
    for none in ([0, 1], [0, 3, 4], [1, 3]):
        assert np.isnan(mean_abs_correlation(X, none))
    assert np.isnan(mean_abs_correlation(X, [0, 1], centered=False))
    assert np.isnan(mean_abs_correlation(X[:1], [0, 2]))


def test_correlation_is_at_most_one():
    x = np.random.default_rng(0).standard_normal((50, 1))
    X = x * np.linspace(-3, 3, 20)[None] * 1e150
    for centered in (True, False):
        value = mean_abs_correlation(X, np.arange(20), centered=centered)
        assert 1 - 1e-14 < value <= 1
    # Means far above the deviations, which are still there to nine digits.
    X = 1e6 + np.random.default_rng(1).standard_normal((50, 4))
    expected = from_matrix(np.corrcoef((X - 1e6).T))
    np.testing.assert_allclose(mean_abs_correlation(X, np.arange(4)), expected, rtol=1e-9)


@pytest.mark.parametrize("centered", [True, False])
def test_correlation_under_jit_and_vmap(centered):
    call = lambda X, s: mean_abs_correlation(X, s, centered=centered)
    rng = np.random.default_rng(5)
    X, lists = rng.standard_normal((3, 8, 6)), np.stack([rng.permutation(6)[:4] for _ in range(3)])
    X[1, :, lists[1, 0]] = 0
    loop = np.stack([call(*a) for a in zip(X, lists, strict=True)])
    np.testing.assert_allclose(jax.jit(call)(X[0], lists[0]), loop[0], rtol=1e-14)
    np.testing.assert_allclose(jax.vmap(call)(X, lists), loop, rtol=1e-14)
    same_data = np.stack([call(X[0], s) for s in lists])
    np.testing.assert_allclose(jax.vmap(call, (None, 0))(X[0], lists), same_data, rtol=1e-14)
    for outside in (6, -1):
        assert np.isnan(jax.jit(call)(X[0], np.array([0, outside, 1])))


@pytest.mark.float32_only_ok
def test_correlation_in_float32():
    X = np.random.default_rng(6).standard_normal((30, 5))
    expected = from_matrix(np.corrcoef(X.T))
    for s in (1e-30, 1.0, 1e30):
        value = mean_abs_correlation((s * X).astype(np.float32), np.arange(5))
        assert value.dtype == np.float32
        np.testing.assert_allclose(value, expected, rtol=1e-5)
    X[:, 0] = 0.1  # its mean in float32 is another number
    value = mean_abs_correlation(X.astype(np.float32), np.arange(5))
    np.testing.assert_allclose(value, from_matrix(np.corrcoef(X[:, 1:].T)), rtol=1e-5)


# ------------------------------------------------------------------ the example of Kong et al., AAAI 2016


def test_printed_selection_errors():
    """All four to the printed digits, but divided by ||Y||^2 = 8, and with their numbers of features swapped.

    Printed: r = 4, 0.4956 for l2,1 and 0.4259 for theirs; r = 3, 0.3978 and 0.3437. They are the errors of
    {1, 2, 7}, {1, 2, 6} (three features) and {1, 2, 6, 7}, {1, 2, 5, 6} (four), the paper's numbers, and of
    no other of the 127 sets of features. So with Eq. (6) and (8), the supports are nested, l2,1 adding
    feature 6 to {1, 2, 7} and theirs feature 5 to {1, 2, 6}.
    """
    X, Y = aaai16_example.X, aaai16_example.Y
    digits = lambda order: np.round(np.asarray(selection_error(X, Y, np.array(order) - 1)), 4).tolist()
    assert np.sum(Y**2) == 8
    assert digits([1, 2, 7, 6])[2:] == [0.4956, 0.3978]
    assert digits([1, 2, 6, 5])[2:] == [0.4259, 0.3437]

    printed = {0.4956: {1, 2, 7}, 0.4259: {1, 2, 6}, 0.3978: {1, 2, 6, 7}, 0.3437: {1, 2, 5, 6}}
    orders = np.array(list(itertools.permutations(range(7))))  # every set of features begins one of them
    J = np.round(np.asarray(jax.jit(jax.vmap(selection_error, (None, None, 0)))(X, Y, orders)), 4)
    for value, features in printed.items():
        found = {frozenset((orders[i, : r + 1] + 1).tolist()) for i, r in np.argwhere(value == J)}
        assert found == {frozenset(features)}


def test_printed_correlations():
    """The five with feature 7 to the printed digits, as cosines; the paper says the features are centred."""
    printed = {2: 0.5083, 3: 0.3859, 4: 0.4858, 5: 0.5555, 6: 0.3143}
    for feature, value in printed.items():
        pair = np.array([feature, 7]) - 1
        cosine = np.asarray(mean_abs_correlation(aaai16_example.X, pair, centered=False))
        assert np.round(cosine, 4) == value
        assert abs(mean_abs_correlation(aaai16_example.X, pair) - value) > 0.02


def test_the_four_features_printed_as_uncorrelated_are_more_correlated():
    """{1, 2, 5, 6} have less error than l2,1's {1, 2, 6, 7}, but the mean of their |R| is larger, by R_15."""
    means = [
        float(mean_abs_correlation(aaai16_example.X, np.array(features) - 1, centered=centered))
        for centered in (False, True)
        for features in ([1, 2, 5, 6], [1, 2, 6, 7])
    ]
    np.testing.assert_allclose(means[:2], [0.2468, 0.2333], atol=5e-5)


# ------------------------------------------------------------------ bad input

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((6, 4)), RNG.standard_normal((6, 2))
L = (Y > 0).astype(float)
NAN = np.full((6, 2), np.nan)
scores, error, correlation = precision_recall_f1, selection_error, mean_abs_correlation

BAD = {
    "Y_true -1": (lambda: scores(2 * L - 1, L), ValueError, "Y_true must hold 0 and 1 only; it has -1"),
    "Y_pred 0.5": (lambda: scores(L, L / 2), ValueError, "Y_pred must hold 0 and 1 only; it has 0.5"),
    "Y_true NaN": (lambda: scores(NAN, L), ValueError, "Y_true has 12 .*NaN"),
    "Y_pred NaN": (lambda: scores(L, NAN), ValueError, "Y_pred has 12 .*NaN"),
    "label names": (lambda: scores(["a", "b"], [0, 1]), TypeError, "Y_true has dtype <U1"),
    "complex labels": (lambda: scores(L, L + 0j), TypeError, "Y_pred is complex"),
    "scores shapes": (lambda: scores(L, L[:5]), ValueError, r"Y_true has shape \(6, 2\) and Y_pred \(5, 2\)"),
    "scores ranks": (lambda: scores(L[:, :1], L[:, 0]), ValueError, r"Y_true has shape \(6, 1\) and"),
    "scores rank 3": (lambda: scores(L[None], L[None]), ValueError, "Y_true has shape .* 1-d or 2-d"),
    "no samples": (lambda: scores(L[:0], L[:0]), ValueError, r"Y_true is empty.*\(0, 2\)"),
    "no labels": (lambda: scores(L[:, :0], L[:, :0]), ValueError, r"Y_true is empty.*\(6, 0\)"),
    "average": (lambda: scores(L, L, "weighted"), ValueError, "average must be 'macro' or 'micro', got 'wei"),
    "average None": (lambda: scores(L, L, None), ValueError, "average must be .*None"),
    "X rank": (lambda: error(X[:, 0], Y, [0]), ValueError, "X has shape .* 2-d"),
    "X NaN": (lambda: error(X * np.nan, Y, [0]), ValueError, "X has 24 .*NaN"),
    "X complex": (lambda: error(X + 0j, Y, [0]), TypeError, "X is complex"),
    "X without rows": (lambda: error(X[:0], Y[:0], [0]), ValueError, "X is empty"),
    "X without columns": (lambda: error(X[:, :0], Y, [0]), ValueError, "X is empty"),
    "rows": (lambda: error(X, Y[:5], [0]), ValueError, "X has 6 rows and Y has 5"),
    "Y infinite": (lambda: error(X, Y / 0.0, [0]), ValueError, "Y has 12 .*infinite"),
    "Y zero": (lambda: error(X, 0 * Y, [0]), ValueError, "Y is zero.*undefined"),
    "Y without columns": (lambda: error(X, Y[:, :0], [0]), ValueError, "Y has no columns"),
    "Y rank": (lambda: error(X, Y[None], [0]), ValueError, "Y has shape .* 1-d or 2-d"),
    "order empty": (lambda: error(X, Y, []), ValueError, "order lists 0 columns; at least 1"),
    "order ragged": (lambda: error(X, Y, [[0], [1, 2]]), ValueError, "order is not a list of columns"),
    "order a number": (lambda: error(X, Y, 2), ValueError, r"order has shape \(\); it must be 1-d"),
    "order by class": (
        lambda: error(X, Y, [[0, 1]]),
        ValueError,
        r"order has shape \(1, 2\); it must be 1-d",
    ),
    "order floating": (lambda: error(X, Y, [0.0, 1.0]), TypeError, "order has dtype float64; integers"),
    "order a mask": (lambda: error(X, Y, [True, False]), TypeError, "order has dtype bool; integers"),
    "order too high": (
        lambda: error(X, Y, [0, 4]),
        ValueError,
        "order has the index 4; X has columns 0 to 3",
    ),
    "order negative": (
        lambda: error(X, Y, jnp.asarray([0, -1])),
        ValueError,
        "order has the index -1; X has",
    ),
    "order repeated": (lambda: error(X, Y, [2, 0, 2]), ValueError, "order lists column 2 more than once"),
    "selected one": (lambda: correlation(X, [0]), ValueError, "selected lists 1 columns; at least 2"),
    "selected high": (lambda: correlation(X, [0, 7]), ValueError, "selected has the index 7; X has columns"),
    "selected twice": (lambda: correlation(X, [1, 1]), ValueError, "selected lists column 1 more than once"),
    "selected a mask": (lambda: correlation(X, X[0] > 0), TypeError, "selected has dtype bool; integers"),
    "selected rank": (lambda: correlation(X, [[0, 1]]), ValueError, r"selected has shape \(1, 2\)"),
    "X infinite": (lambda: correlation(X / 0.0, [0, 1]), ValueError, "X has 24 .*infinite"),
    "centered": (
        lambda: correlation(X, [0, 1], centered=1),
        TypeError,
        "centered must be True or False, got 1",
    ),
    "label 2": (lambda: auc(2 * L, Y), ValueError, "Y_true must hold 0 and 1 only; it has 2"),
    "label NaN": (lambda: auc(NAN, Y), ValueError, "Y_true has 12 .*NaN"),
    "score NaN": (lambda: mean_auc(L, NAN), ValueError, "scores has 12 .*NaN"),
    "score infinite": (lambda: auc(L, Y / 0.0), ValueError, "scores has 12 .*infinite"),
    "auc shapes": (lambda: auc(L, Y[:5]), ValueError, r"Y_true has shape \(6, 2\) and scores \(5, 2\)"),
    "auc ranks": (lambda: auc(L[:, 0], Y[:, :1]), ValueError, r"Y_true has shape \(6,\) and scores \(6, 1\)"),
    "auc empty": (lambda: mean_auc(L[:, :0], Y[:, :0]), ValueError, "Y_true is empty"),
    "rows, traced": (lambda: jax.jit(error)(X, Y[:5], np.array([0])), ValueError, "X has 6 rows and Y has 5"),
    "dtype, traced": (lambda: jax.jit(correlation)(X, X[0]), TypeError, "selected has dtype float64"),
    "shapes, traced": (lambda: jax.jit(scores)(L, L[:5]), ValueError, "they must agree"),
    "auc, traced": (lambda: jax.jit(auc)(L, Y[:5]), ValueError, "they must agree"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, kind, message = BAD[name]
    with np.errstate(divide="ignore"), pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize("strange", [np.nan, -1.0])
def test_traced_weights_that_are_not_allowed(strange):
    Y, P = np.array([[1, 0], [0, 1], [1, 1], [0, 0.0]]), np.array([[1, 0], [1, 1], [0, 1], [0, 0.0]])
    weights = np.array([3, strange, 1, 1])
    for call in (precision_recall_f1, accuracy, r2, auc):
        found = jax.jit(lambda w, call=call: call(Y, P, weights=w))(weights)
        assert all(np.isnan(x).all() for x in jax.tree.leaves(found))
    by_entry = np.stack([np.ones(4), weights], axis=1)
    found = jax.jit(lambda w: mean_auc(Y, P, weights=w))(by_entry)
    assert np.isnan(found.mean) and found.left_out == 0


def test_traced_targets_that_are_not_allowed():
    Y = np.array([[np.nan, 1], [0, 0], [0, 1], [0, 0.0]])
    P = np.array([[0.9, 0.1], [0.2, 0.3], [0.5, 0.4], [0, 0]])
    assert np.isnan(jax.jit(mean_auc)(Y, P).mean)
    for strange in (np.nan, np.inf):
        assert np.isnan(jax.jit(r2)(np.where(np.isnan(Y), strange, Y), P))


def test_selection_error_of_zero_targets_and_a_zero_column():
    X = np.eye(6, 3) * np.array([0, 1, 1])
    assert np.isnan(jax.jit(selection_error)(X, np.zeros((6, 2)), np.arange(3))).all()


def test_r2_takes_no_unit_from_rows_of_weight_0():
    Y, P = np.array([1, 2, 3, 4, 1e30], np.float32), np.array([4, 3, 2, 1, 0], np.float32)
    for row in ((1e30, 0), (0, 1e30)):
        Y[4], P[4] = row
        assert r2(Y, P, np.array([1, 1, 1, 1, 0], np.float32)) == pytest.approx(-3)


def test_a_traced_index_beyond_int32_is_out_of_range():
    X, far = np.random.default_rng(0).standard_normal((9, 5)), jnp.array([2**32, 1])
    assert jnp.isnan(jax.jit(mean_abs_correlation)(X, far))
    assert jnp.isnan(jax.jit(selection_error)(X, X[:, 0], far)).all()


def test_auc_with_weights_is_at_most_one():
    rng = np.random.default_rng(0)
    for n in range(1000, 1030):
        w, scores = rng.random(n).astype(np.float32), np.arange(n, dtype=np.float32)
        assert auc(np.arange(n) >= n // 2, scores, w) <= 1
