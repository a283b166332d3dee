"""Every oracle finds what a search through all labellings finds, ties included."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import drawn, inner, properties
from sklearn.metrics import fbeta_score, roc_auc_score

from sparsejax.models import multivariate as mv


def gmean_loss(a, b, c, d):
    """Not concave, not monotone in b: only the search through all tables finds its maximum."""
    return 100 * (1 - np.sqrt(a / np.maximum(a + c, 1) * (d / np.maximum(b + d, 1)))) + 3 * np.cos(5 * b) ** 2


def at_most_three(a, b, c, d):
    return np.where(a + b <= 3, 10.0 * c + b, -np.inf)


MEASURES = {
    "hamming": lambda n, p: mv.hamming(),
    "hamming, scale 2": lambda n, p: mv.hamming(2.0),
    "F1": lambda n, p: mv.f_beta(),
    "F0.4": lambda n, p: mv.f_beta(0.4),
    "F3": lambda n, p: mv.f_beta(3.0),
    "prbep": lambda n, p: mv.prbep(),
    "precision at 1": lambda n, p: mv.precision_at(1),
    "precision at n": lambda n, p: mv.precision_at(n),
    "recall at p/2": lambda n, p: mv.recall_at(max(1, p // 2)),
    "recall at 2p": lambda n, p: mv.recall_at(min(n, 2 * p)),
    "own": lambda n, p: mv.contingency(gmean_loss),
    "own, restricted": lambda n, p: mv.contingency(at_most_three),
}


def cases(rng):
    """Scores of all kinds for truths of all kinds; n <= 7."""
    for n in (1, 2, 4, 7):
        for p in sorted({1, n // 2, n - 1, n} - {0}):
            y = np.full(n, -1)
            y[rng.permutation(n)[:p]] = 1
            yield y, np.zeros(n)
            yield y, rng.integers(-2, 3, n) / 2.0  # ties, also with the losses
            yield y, rng.standard_normal(n) * 10.0 ** rng.integers(-1, 3)


def test_roc_area_is_brute_force(rng):
    for y, v in cases(rng):
        plus, minus = np.flatnonzero(y == 1), np.flatnonzero(y == -1)
        if not len(minus):
            with pytest.raises(ValueError, match="no -1"):
                mv.most_violated(mv.roc_area(), v, y)
            continue
        hinge = np.maximum(1 - (v[plus][:, None] - v[minus][None]), 0)
        code, value = mv.most_violated(mv.roc_area(), v, y)
        assert value == pytest.approx(100 * hinge.mean(), rel=1e-12, abs=1e-12)
        assert code.sum() == pytest.approx(0, abs=1e-12)
        # its slope: the code is a subgradient of the risk, up to sign
        for _ in range(5):
            u = v + rng.standard_normal(len(v))
            risk = 100 * np.maximum(1 - (u[plus][:, None] - u[minus][None]), 0).mean()
            assert risk >= value - code @ (u - v) - 1e-10


def test_roc_area_counts_each_pair_once():
    """Rounding may differ between v_i - 1 < v_j and v_i < v_j + 1; the code must not."""
    rng = np.random.default_rng(1)
    for _ in range(300):
        v = rng.integers(0, 5, 12) * 0.1 + rng.integers(0, 2, 12) * 1.0
        y = np.where(rng.random(12) < 0.4, 1, -1)
        if 0 < (y == 1).sum() < 12:
            code, _ = mv.most_violated(mv.roc_area(), v, y)
            rho = 100 / ((y == 1).sum() * (y == -1).sum())
            assert code[y == 1].sum() == pytest.approx(-code[y == -1].sum(), abs=1e-12)
            np.testing.assert_allclose(code / rho, np.round(code / rho), atol=1e-9)


# ------------------------------------------------------------------ drawn


KINDS = ("normal", "ties", "subnormal", "decades", "huge", "neighbours", "zero", "enormous")


def scored(seed, kind):
    """A truth, of one class too, and scores; n from 1 to 30."""
    rng = np.random.default_rng(seed)
    n = int(rng.choice([1, 1, 2, 3, 5, 7, 30]))
    x, steps = rng.standard_normal(n), rng.integers(-3, 4, n)
    v = {
        "normal": x,
        "ties": steps / 1.0,
        "subnormal": 5e-324 * steps,
        "decades": x * 10.0 ** rng.integers(-320, 31, n),
        "huge": 1e30 * np.where(rng.random(n) < 0.5, x, steps),
        "neighbours": 1 + (steps + 3) * 2.0**-52,
        "zero": 0 * x,
        "enormous": 1e305 * np.sign(x),
    }[kind]
    return rng, np.where(rng.random(n) < rng.choice([0, 0.3, 0.7, 1]), 1, -1), v


def losses_of(name, k, y, guesses):
    """Delta of labellings, -inf where not allowed: the definitions, in long doubles."""
    p, q = ((y == s).sum().astype(np.longdouble) for s in (1, -1))
    a, b = (((y == s) & (guesses == 1)).sum(axis=1).astype(np.longdouble) for s in (1, -1))
    c, d = p - a, q - b
    if name.startswith("hamming"):
        return (2 if "2" in name else 1) * (b + c)
    if name.startswith("F"):
        square = np.longdouble(name[1:]) ** 2
        return 100 * (b + square * c) / ((1 + square) * a + b + square * c)
    if name.startswith("own"):
        return (gmean_loss if name == "own" else at_most_three)(*(x.astype(float) for x in (a, b, c, d)))
    allowed = b == c if name == "prbep" else a + b == k
    return np.where(allowed, 100 * (1 - a / (k if name.startswith("precision") else p)), -np.inf)


@properties
@drawn(60)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(KINDS))
def test_what_an_oracle_is(seed, kind):
    """Its value is that of its labelling; none of all, or of many, is better; in any order."""
    rng, y, v = scored(seed, kind)
    n, p, exact = len(y), int((y == 1).sum()), v.astype(np.longdouble)
    if n <= 7:
        guesses = np.array([*itertools.product((-1, 1), repeat=n)])
    else:
        guesses = np.where(rng.random((200, n)) < rng.random((200, 1)), 1, -1)
    near = 4 * np.finfo(float).eps * n * (100 + 2 * float(np.abs(v).sum()))
    order = rng.permutation(n)
    for name, make in MEASURES.items():
        if p == 0 and not name.startswith("hamming"):
            continue
        measure = make(n, p)
        labels, value = mv.most_violated(measure, v, y)
        swapped = np.stack([rng.permuted(np.append(labels, -labels[0]))[:n] for _ in range(20)])
        flipped = np.where(np.eye(n, dtype=bool), -labels, labels)
        tried = np.concatenate([guesses, swapped, flipped, labels[None]])
        violations = losses_of(name, measure.parameter, y, tried) - (y - tried) @ exact
        assert labels.dtype == y.dtype
        assert abs(violations[-1] - value) <= near and violations.max() <= value + near, name
        assert abs(mv.most_violated(measure, v[order], y[order])[1] - value) <= near, name


@properties
@drawn(60)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(KINDS))
def test_what_the_oracle_of_pairs_is(seed, kind):
    """The pairs it counts are those in the wrong order, by the definition, also where v + 1 is v."""
    _, y, v = scored(seed, kind)
    if len(set(y)) == 2:
        apart = v.astype(np.longdouble)[y == 1][:, None] - v[y == -1][None]
        code, delta = mv.roc_area().oracle(y == 1)(v)
        size = np.finfo(float).eps * (1 + np.abs(v).max())
        assert 100 * (apart <= max(1 - size, 0)).mean() <= delta + 1e-12  # ties of any size
        assert delta <= 100 * (apart < 1 + min(size, 0.5)).mean() + 1e-12
        risk = 100 * np.maximum(1 - apart, 0).mean()
        assert abs(delta - inner(code, v) - risk) <= 1e3 * len(y) * size


@properties
@drawn(60)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(KINDS))
def test_no_threshold_is_better(seed, kind):
    """Of all that part the scores, neighbours among the floating-point numbers, too."""
    _, y, v = scored(seed, kind)
    if len(set(y)) < 2:
        return
    for name in ("hamming", "F1", "F3", "own", "prbep"):
        lost = lambda t, name=name: losses_of(name, None, y, np.where(v > t, 1, -1)[None])[0]
        best = min((loss for loss in map(lost, [-np.inf, *np.unique(v)]) if np.isfinite(loss)), default=None)
        if best is None:
            with pytest.raises(ValueError, match="no threshold"):
                mv.tune_threshold(MEASURES[name](len(y), 1), v, y)
        else:
            assert abs(lost(mv.tune_threshold(MEASURES[name](len(y), 1), v, y)) - best) <= 1e-12


def test_large_problems_agree_with_the_search_through_tables(monkeypatch, rng):
    """n = 500, where labellings cannot be enumerated: the fast F against every table, in blocks."""
    monkeypatch.setattr("sparsejax.models.multivariate._oracles.BLOCK_ENTRIES", 1000)
    y = np.where(rng.random(500) < 0.2, 1, -1)
    for beta in (0.5, 1.0, 2.0):
        own = mv.contingency(mv.f_beta(beta).delta)
        for scale in (0.01, 0.3, 3.0):
            v = scale * (rng.standard_normal(500) + 0.5 * y)
            fast, slow = mv.most_violated(mv.f_beta(beta), v, y), mv.most_violated(own, v, y)
            assert fast[1] == pytest.approx(slow[1], rel=1e-12)
            np.testing.assert_array_equal(fast[0], slow[0])  # the same of several best
    monkeypatch.setattr("sparsejax.models.multivariate._oracles.MAX_STORED_ENTRIES", 0)
    assert mv.most_violated(own, v, y)[1] == slow[1]


def test_deltas_are_the_measures(rng):
    for _ in range(20):
        y, guess = (np.where(rng.random(9) < 0.5, 1, -1) for _ in range(2))
        y[0] = 1
        table = [float(((y == s) & (guess == t)).sum()) for s, t in ((1, 1), (-1, 1), (1, -1), (-1, -1))]
        for beta in (0.4, 1.0, 3.0):
            expected = pytest.approx(100 * (1 - fbeta_score(y, guess, beta=beta, zero_division=0)))
            assert mv.f_beta(beta).delta(*table) == expected
            assert losses_of(f"F{beta}", None, y, guess[None])[0] == expected
        assert mv.hamming(3.0).delta(*table) == 3 * (y != guess).sum()
    y, v = np.array([1, 1, -1, -1, -1]), np.array([2.0, 1.0, 1.0, 0.5, 3.0])
    # at scale -> infinity the risk is that of the order itself; ties count half in the area
    assert 100 * (1 - roc_auc_score(y, v)) == pytest.approx(100 * (1 + 1 + 0.5) / 6)
    assert mv.roc_area().delta is None


def test_threshold_is_the_best():
    """Of a number of positives; `test_no_threshold_is_better` asks of the other measures."""
    t = mv.tune_threshold(mv.precision_at(3), np.arange(10.0), np.where(np.arange(10) > 5, 1, -1))
    assert t == 6.5
    with pytest.raises(ValueError, match="no threshold"):
        mv.tune_threshold(mv.precision_at(3), np.zeros(4), np.array([1, 1, -1, -1]))
    with pytest.raises(ValueError, match="does not depend"):
        mv.tune_threshold(mv.roc_area(), np.zeros(2), np.array([1, -1]))


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: mv.f_beta(0), ValueError, "beta must be > 0"),
        (lambda: mv.f_beta(math.inf), ValueError, "beta must be > 0 and finite"),
        (lambda: mv.hamming(-1.0), ValueError, "scale must be > 0"),
        (lambda: mv.f_beta("1"), TypeError, "beta must be a number, got '1'"),
        (lambda: mv.precision_at(0), ValueError, "k must be an integer >= 1, got 0"),
        (lambda: mv.recall_at(2.5), ValueError, "k must be an integer >= 1, got 2.5"),
        (lambda: mv.precision_at(True), ValueError, "k must be an integer >= 1, got True"),
        (lambda: mv.contingency(3), TypeError, "function of"),
        (lambda: mv.most_violated("f1", [0.0], [1]), TypeError, "measure must be made by .* got 'f1'"),
        (lambda: mv.most_violated(mv.f_beta, [0.0], [1]), TypeError, r"call it, f_beta\(\.\.\.\)"),
        (lambda: mv.most_violated(mv.recall_at(3), [0.0, 1], [1, -1]), ValueError, "at most .* 2; got 3"),
        (lambda: mv.most_violated(mv.f_beta(), [0.0], [-1]), ValueError, "y has no \\+1"),
        (lambda: mv.most_violated(mv.f_beta(), [0.0, 0], [0, 1]), ValueError, r"-1 and 1 only.*2\*y - 1"),
        (lambda: mv.most_violated(mv.f_beta(), [0.0, 0], [True, False]), TypeError, "dtype bool"),
        (lambda: mv.most_violated(mv.f_beta(), [0.0, 0], [1, 2]), ValueError, "it has 2"),
        (lambda: mv.most_violated(mv.f_beta(), [[0.0]], [[1]]), ValueError, r"shape \(n,\)"),
        (lambda: mv.most_violated(mv.f_beta(), [0.0, np.nan], [1, -1]), ValueError, "v must be finite"),
        (lambda: mv.most_violated(mv.f_beta(), [0.0], [1, -1]), ValueError, "v must be finite and of"),
        (lambda: mv.most_violated(mv.f_beta(), [1e308, 0], [1, -1]), ValueError, "whose sum is no finite"),
        (lambda: mv.most_violated(lambda a, b, c, d: a * np.nan, [0.0], [1]), ValueError, "gives NaN"),
        (lambda: mv.most_violated(lambda a, b, c, d: -c, [0.0], [1]), ValueError, "negative loss"),
        (lambda: mv.most_violated(lambda *t: -np.inf, [0.0], [1]), ValueError, "allows no table"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_measures_are_values():
    """Equal by content, so that a jitted function that takes one is not traced anew."""
    assert mv.f_beta(2) == mv.f_beta(2.0) != mv.f_beta()
    assert len({mv.prbep(), mv.prbep(), mv.precision_at(3), mv.precision_at(np.int64(3))}) == 2
    assert repr(mv.recall_at(4)) == "Measure(name='recall_at', parameter=4)"


@pytest.mark.parametrize("measure", [mv.precision_at(4), mv.recall_at(4), mv.prbep()])
def test_scores_that_tie_count_by_chance(measure):
    """The mean over all orders of the rows with tied scores, whatever the order in which they come."""
    v, positive = np.array([2.0, 1, 1, 0, 1, 1, 0.5]), np.array([1, 1, 0, 1, 0, 0, 0]) > 0
    k = 3 if measure.name == "prbep" else 4
    right = [positive[np.lexsort((order, -v))[:k]].sum() for order in itertools.permutations(range(7))]
    expected = np.mean(right) / (k if measure.name == "precision_at" else 3)
    for order in (np.arange(7), np.arange(7)[::-1]):
        assert measure.score(v[order], positive[order]) == pytest.approx(expected)


def test_a_table_that_is_not_allowed_scores_nan():
    balanced = mv.contingency(lambda a, b, c, d: np.where(b == c, 1.0 * c, -np.inf))
    X, y = np.eye(4, 3), np.array([1, -1, -1, 1])
    model = mv.fit(X, y, measure=balanced, budget=2, C=1.0)
    assert np.isnan(model._replace(w=np.ones(3)).score(X, y)), "3 called positive, 2 are"


def test_scores_that_are_not_finite_are_refused():
    X, y = np.eye(4, 3), np.array([1, -1, -1, 1])
    model = mv.fit(X, y, measure=mv.hamming(), budget=2, C=1.0)
    with pytest.raises(ValueError, match="not all finite"):
        model._replace(w=np.full(3, np.nan)).score(X, y)


def test_the_area_of_scores_that_float32_cannot_tell_apart():
    X = np.array([[1.0, 0.0], [1.0, 1e-9], [1.0, 2e-9], [1.0, 3e-9]])
    y = np.array([-1, -1, 1, 1])
    model = mv.fit(X, y, measure=mv.roc_area(), budget=2, C=1.0)
    assert model._replace(w=np.ones(2)).score(X, y) == 1


def test_a_threshold_for_no_positive_row_names_the_cause():
    for measure in (mv.prbep(), mv.recall_at(1)):
        with pytest.raises(ValueError, match="y has no"):
            mv.tune_threshold(measure, [0.1, 0.2], [-1, -1])


@pytest.mark.parametrize("beta", [1e-200, 1e154, 1e200])
def test_f_beta_refuses_a_beta_whose_square_loses_the_tables(beta):
    with pytest.raises(ValueError, match="beta must be from 1e-100 to 1e100"):
        mv.f_beta(beta)


@pytest.mark.parametrize("low", [np.float32(1.0), np.nextafter(np.float32(1.0), np.float32(2.0))])
def test_a_threshold_between_neighbouring_scores_of_float32(low):
    scores = np.array([low, np.nextafter(low, np.float32(2.0))])
    threshold = mv.tune_threshold(mv.hamming(), scores, [-1, 1])
    assert (scores > threshold).tolist() == [False, True]


@pytest.mark.parametrize("beta", [1e-100, 1e-9, 1e-8, 1.0, 1e9, 1e100])
def test_f_beta_keeps_the_order_of_tables(beta):
    measure = mv.f_beta(beta)
    assert 0.2 < mv.tune_threshold(measure, [0.2, 0.4, 0.6], [-1, 1, 1]) < 0.4
    assert measure.delta(np.array([2.0, 1.0]), 0.0, np.array([0.0, 1.0]), 1.0)[1] > 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -3.0])
def test_tune_threshold_refuses_a_bad_loss(bad):
    delta = lambda a, b, c, d: np.where(a == 1, bad, b + c + 1.0)
    with pytest.raises(ValueError, match="delta gives"):
        mv.tune_threshold(delta, [0.2, 0.4, 0.6], [-1, 1, 1])


def test_most_violated_of_an_unsigned_truth():
    labels, _ = mv.most_violated(mv.hamming(), [-5.0, 1.0], np.ones(2, np.uint8))
    assert labels.tolist() == [-1, 1]


@pytest.mark.filterwarnings("ignore:invalid value")
def test_own_losses_get_numbers_of_numpy():
    y, v = np.array([1, -1, -1, 1, -1]), np.array([-3.0, -2, -2, -3, -2])
    precision = lambda a, b, c, d: 100 * (1 - np.where(a + b > 0, a / (a + b), 0))  # 0/0 where none is called
    assert mv.most_violated(mv.contingency(precision), v, y)[1] == 112
    assert mv.fit(np.eye(5, 3), y, measure=precision, budget=2, C=1.0).converged
    assert mv.most_violated(mv.contingency(lambda a, b, c, d: (b + c).clip(0, 2)), v, y)[1] == 14
    model = mv.fit(np.eye(5, 3), y, measure=precision, budget=2, C=1.0)
    assert mv.fit(np.eye(5, 3), y, measure=precision, budget=3, C=1.0, init=model).converged
    none = np.zeros((5, 3))
    assert model.score(none, y) == -100
