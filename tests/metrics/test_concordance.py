"""The concordance index against its definition, pair by pair, and against scikit-survival."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsejax as sj
from sparsejax.metrics import concordance_index

jitted = jax.jit(concordance_index)


def by_pairs(time, event, risk, weights=None):
    """The definition."""
    w = np.ones(len(time)) if weights is None else weights
    right = total = 0.0
    for i in np.flatnonzero(event):
        for j in range(len(time)):
            if time[i] < time[j] or (i != j and time[i] == time[j] and not event[j]):
                total += w[i] * w[j]
                right += w[i] * w[j] * ((risk[i] > risk[j]) + (risk[i] == risk[j]) / 2)
    return right / total if total else np.nan


def drawn(seed, n=26):
    """Times, events, risks with ties, and weights of which some are 0."""
    rng = np.random.default_rng(seed)
    risk = np.round(3 * rng.standard_normal(n))
    time = np.round(5 * rng.exponential(np.exp(-risk / 3))) + 1
    return time, rng.random(n) < 0.6, risk, rng.uniform(0.2, 2, n) * (rng.random(n) < 0.8)


@pytest.mark.parametrize("seed", range(6))
def test_concordance_by_its_definition(seed):
    time, event, risk, weights = drawn(seed)
    np.testing.assert_allclose(jitted(time, event, risk), by_pairs(time, event, risk), rtol=1e-14)
    expected = by_pairs(time, event, risk, weights)
    np.testing.assert_allclose(jitted(time, event, risk, weights), expected, rtol=1e-13)
    assert jitted(time, event, risk) == concordance_index(time, event, risk)
    whole = concordance_index(time.astype(int), event, risk.astype(np.float32), weights)
    assert whole.dtype == np.float32
    np.testing.assert_allclose(whole, expected, rtol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 64, 65, 300])
def test_concordance_of_any_number_of_rows(n):
    time, event, risk, weights = drawn(1, n)
    for w in (None, weights):
        found = concordance_index(time, event, risk, w)
        np.testing.assert_allclose(found, by_pairs(time, event, risk, w), rtol=1e-12)


@pytest.mark.parametrize("unit", [1e-300, 1e300])
def test_concordance_does_not_depend_on_the_unit_of_weights(unit):
    """Their products may be 0 or infinite."""
    time, event, risk, weights = drawn(0)
    found = jitted(time, event, risk, unit * weights)
    np.testing.assert_allclose(found, jitted(time, event, risk, weights), rtol=1e-13)


def test_concordance_under_vmap():
    """Over risks and over masks of rows; a lane without pairs is NaN and disturbs no other."""
    time, event, risk, weights = drawn(2)
    masks = np.stack([weights, np.ones(26), np.eye(26)[0]])
    risks = np.stack([risk, -risk, risk])
    found = jax.vmap(functools.partial(jitted, time, event))(risks, masks)
    expected = [by_pairs(time, event, r, m) for r, m in zip(risks, masks, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert np.isnan(found[2]) and not np.isnan(found[:2]).any()


def test_concordance_of_special_cases():
    assert np.isnan(concordance_index([1.0, 2.0], [0, 0], [1.0, 2.0]))
    assert np.isnan(concordance_index([1.0, 1.0], [1, 1], [1.0, 2.0]))  # whose order is not known
    assert concordance_index([1.0, 1.0], [1, 0], [2.0, 1.0]) == 1  # the censored one outlives the time
    assert concordance_index([2**40, 2**40 + 1], [1, 1], [2.0, 1.0]) == 1
    assert jitted(2**53 + np.arange(2), np.ones(2), -np.arange(2.0)) == 1  # a float could not tell them apart
    assert np.isnan(jitted(jnp.array([1.0, jnp.nan]), jnp.ones(2), jnp.ones(2)))
    assert np.isnan(jitted(jnp.arange(2.0), jnp.array([1.0, 2.0]), jnp.ones(2)))
    assert np.isnan(jitted(jnp.arange(2.0), jnp.ones(2), jnp.array([1.0, jnp.nan])))
    for weight in (-1.0, jnp.nan):
        assert np.isnan(jitted(jnp.arange(3.0), jnp.ones(3), jnp.arange(3.0), jnp.array([1.0, 1.0, weight])))


@pytest.mark.parametrize("seed", range(3))
def test_concordance_agrees_with_scikit_survival(seed):
    sksurv = pytest.importorskip("sksurv.metrics")
    time, event, risk, _ = drawn(seed, 200)
    expected = sksurv.concordance_index_censored(event, time, risk)[0]
    np.testing.assert_allclose(concordance_index(time, event, risk), expected, rtol=1e-12)


BAD = {
    "short": (dict(time=[1.0]), "risk has 2 rows and time has 1; they must agree"),
    "event": (dict(event=[1, 2]), "event must hold 0 and 1 only; it has 2"),
    "NaN": (dict(risk=[1.0, np.nan]), "risk has 1 .*NaN"),
    "weights": (dict(weights=[1.0, -1.0]), "weights must be >= 0, got -1"),
    "empty": (dict(time=[], event=[], risk=[]), "risk is empty"),
    "rank": (dict(time=[[1.0, 2.0]]), "time has shape .*must be 1-d"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    changed, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        concordance_index(**(dict(time=[1.0, 2.0], event=[1, 0], risk=[1.0, 2.0]) | changed))


def test_folds_are_scored_by_concordance():
    """Of the rows held out, and refused where there are no times; other names are refused where there are."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((26, 6))
    time, event = rng.exponential(np.exp(-X[:, 0])), rng.random(26) < 0.8
    weights = rng.uniform(0.5, 2, 26)
    p = sj.Problem(sj.losses.CoxLoss(X, time, event, weights=weights), sj.penalties.L1(0.1))
    candidates = jax.vmap(sj.penalties.L1)(np.array([0.2, 0.05]))
    result = sj.cross_validate(p, candidates, folds=2, scoring="concordance", tol=1e-10)
    for fold in range(2):
        out = np.arange(26) % 2 == fold
        train = p.smooth.reweighted(np.where(out, 0, weights * weights.sum() / weights[~out].sum()))
        for i, penalty in enumerate((sj.penalties.L1(0.2), sj.penalties.L1(0.05))):
            W = np.asarray(sj.solve(sj.Problem(train, penalty), tol=1e-10).params)
            expected = by_pairs(time[out], event[out], X[out] @ W, weights[out])
            np.testing.assert_allclose(result.score[fold, i], expected, rtol=1e-12)
    # Times that float32 could not tell apart.
    narrow = sj.losses.CoxLoss(
        X.astype(np.float32), 1e8 + np.argsort(np.argsort(time)), event, weights=weights
    )
    again = sj.cross_validate(p.replace(smooth=narrow), candidates, folds=2, scoring="concordance")
    np.testing.assert_allclose(again.score, result.score, atol=0.01)
    squared = sj.Problem(sj.losses.SquaredLoss(X, time), sj.penalties.L1(0.1))
    with pytest.raises(ValueError, match="'concordance' is not of SquaredLoss: it needs times and events"):
        sj.cross_validate(squared, candidates, scoring="concordance")
