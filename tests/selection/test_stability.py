"""Stability selection against a loop of solves on the same subsamples, and its bound by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import N, data, problem
from penalty_cases import PENALTIES, D

import sparsejax as sj
from sparsejax import losses, penalties
from sparsejax.selection import stability

TOL = 1e-10


def grid(penalty, *factors):
    case = PENALTIES[penalty]
    return jax.vmap(case.make)(*(np.asarray(factors)[:, None] * s[None] for s in case.spread()))


def member(strengths, i):
    return jax.tree.map(lambda leaf: leaf[i] if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, strengths)


def selected_in_a_loop(p, strengths, masks, count):
    """(subsamples, strengths, d), by a solve each, of weights scaled up by numpy."""
    w = np.asarray(p.smooth.weights)
    found = np.zeros((len(masks), count, D), bool)
    for i, mask in enumerate(masks):
        smooth = p.smooth.reweighted(jnp.asarray(w * mask * (w.sum() / (w * mask).sum())))
        for j in range(count):
            solution = sj.solve(sj.Problem(smooth, member(strengths, j)), tol=TOL)
            assert bool(solution.converged)
            found[i, j] = np.any(np.asarray(solution.params) != 0, axis=1)
    return found


@pytest.mark.parametrize(
    "loss, penalty, mode",
    [
        ("SquaredLoss", "L21", "warm"),
        ("LogisticLoss", "L21", "warm"),
        ("SquaredLoss", "ExclusiveL21", "batch"),
    ],
)
def test_it_is_a_loop_of_solves(loss, penalty, mode):
    """Frequencies, the union over the path, the bound, certificates."""
    p, strengths = problem(loss, penalty), grid(penalty, 3.0, 1.0, 0.3)
    stable = sj.stability_selection(
        p, strengths, num_subsamples=6, threshold=0.65, seed=3, mode=mode, tol=TOL
    )
    found = selected_in_a_loop(p, strengths, stability.subsamples(6, 0.5, 3, N), 3)
    assert 0 < found.mean() < 1
    np.testing.assert_allclose(stable.frequencies, found.mean(0), rtol=1e-14)
    np.testing.assert_array_equal(stable.selected, found.mean(0).max(0) >= 0.65)
    np.testing.assert_array_equal(stable.num_selected, found.any(1).sum(1))
    q = found.any(1).sum(1).mean()
    np.testing.assert_allclose(stable.bound, q**2 / (0.3 * D), rtol=1e-12)
    assert stable.gap.shape == stable.converged.shape == (6, 3) and bool(stable.converged.all())
    assert float(stable.gap.max()) <= TOL


@pytest.mark.parametrize("rows", [9, 10])
def test_subsamples(rows):
    """Complementary pairs of half the rows, else independent draws; by the seed alone."""
    pairs = stability.subsamples(6, 0.5, 0, rows)
    assert (pairs.sum(1) == rows // 2).all()
    assert not (pairs[::2] & pairs[1::2]).any()
    np.testing.assert_array_equal(pairs, stability.subsamples(6, 0.5, 0, rows))
    assert (pairs != stability.subsamples(6, 0.5, 1, rows)).any()
    singles = stability.subsamples(5, 0.3, 0, rows)
    assert (singles.sum(1) == int(0.3 * rows)).all() and len(np.unique(singles, axis=0)) > 1
    assert (stability.subsamples(3, 0.29, 0, 100).sum(1) == 29).all()  # 0.29 * 100 is below 29


def test_chunks_jit_and_axes_change_nothing(monkeypatch):
    """On one call a core, in chunks of which the last is filled up, under jit, over two axes: the same."""
    p, strengths = problem("SquaredLoss", "L21"), grid("L21", 3.0, 1.0, 0.3)
    select = lambda p, strengths, mode: sj.stability_selection(
        p, strengths, num_subsamples=7, fraction=0.4, mode=mode, tol=TOL
    )
    stable = select(p, strengths, "warm")
    np.testing.assert_allclose(
        stable.bound, np.asarray(stable.num_selected).mean() ** 2 / (0.2 * D), rtol=1e-12
    )
    monkeypatch.setattr(stability, "_max_at_once", lambda *_: 3)
    in_chunks = select(p, strengths, "batch")
    jitted = jax.jit(lambda p, q: select(p, q, "warm"))(p, strengths)
    monkeypatch.setattr(stability, "_max_at_once", lambda *_: 1)
    for other in (in_chunks, jitted, select(p, strengths, "warm")):
        for name in ("frequencies", "selected", "num_selected", "bound"):
            np.testing.assert_allclose(getattr(other, name), getattr(stable, name), rtol=1e-14)
        assert other.gap.shape == (7, 3) and bool(other.converged.all())
    two = strengths._replace(alpha=strengths.alpha[:, None])
    square = select(p, two, "warm")
    np.testing.assert_array_equal(square.frequencies, np.asarray(stable.frequencies)[:, None])
    assert square.gap.shape == (7, 3, 1)


TRACES = []


class Traced(losses.LinearModelLoss):
    """Least squares that notes when it is traced."""

    curvature = 1.0

    def entries(self, H):
        TRACES.append(1)
        return (H - self.Y) ** 2 / 2

    def derivatives(self, H):
        return H - self.Y, jnp.ones_like(H)


def test_other_subsamples_need_no_other_program():
    X, Y = data(k=None)
    p = sj.Problem(Traced(X, Y), penalties.L1(0.1))
    strengths = jax.vmap(penalties.L1)(jnp.array([0.5, 0.1]))
    counts = []
    for options in ({}, {"seed": 1}, {"fraction": 0.3}, {"threshold": 0.9}, {"fraction": 0.6}):
        stable = sj.stability_selection(p, strengths, num_subsamples=4, **options)
        counts.append(len(TRACES))
        assert bool(stable.converged.all()) and stable.frequencies.shape == (2, D)
    assert counts[0] > 0 and set(counts) == {counts[0]}
    assert np.isnan(stable.bound)  # of fraction 0.6


def test_what_does_not_converge_is_said():
    p, strengths = problem("SquaredLoss", "L21"), grid("L21", 3.0, 1.0, 0.3)
    with pytest.warns(sj.ConvergenceWarning, match="solves did not converge"):
        stable = sj.stability_selection(p, strengths, num_subsamples=6, maxiter=0)
    assert not bool(stable.converged[:, -1].any()) and float(stable.gap[:, -1].min()) > 1e-6


def test_nan_selects_nothing():
    """A W of NaN has no row that is 0; a strength of NaN, or rows of NaN in some of the subsamples."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 6))
    spoilt = X.copy()
    spoilt[:2, 1] = np.nan

    @jax.jit
    def stable(X, strengths):
        p = sj.Problem(losses.SquaredLoss(X, X[:, 0]), penalties.L1(1.0))
        return sj.stability_selection(p, jax.vmap(penalties.L1)(strengths), num_subsamples=4)

    for rows, strengths, failed in ((spoilt, [10.0, 5.0], [0, 1]), (X, [10.0, np.nan], [1])):
        found = stable(rows, np.array(strengths))
        assert np.isnan(found.bound) and not found.selected.any()
        assert np.flatnonzero(np.isnan(found.frequencies).all(axis=1)).tolist() == failed
        assert not found.num_selected.any()  # the finite solves are above lambda_max


def test_it_finds_what_is_there():
    """Three of forty features, several columns, and a bound that says so."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 40))
    Y = X[:, :3] @ rng.standard_normal((3, 2)) + 0.5 * rng.standard_normal((80, 2))
    p = sj.Problem(losses.SquaredLoss(X, Y), penalties.L21(1.0))
    alphas = float(sj.lambda_max(p)) * np.array([0.7, 0.5, 0.35])
    stable = sj.stability_selection(p, jax.vmap(penalties.L21)(alphas), num_subsamples=50, threshold=0.9)
    assert np.flatnonzero(stable.selected).tolist() == [0, 1, 2]
    assert float(stable.bound) < 1


def bad(change):
    p, strengths = problem("SquaredLoss", "L21"), grid("L21", 1.0, 0.3)
    p = change.pop("problem", p)
    return lambda: sj.stability_selection(p, change.pop("penalties", strengths), **change)


@pytest.mark.parametrize(
    "change, error, match",
    [
        ({"num_subsamples": 7}, ValueError, "num_subsamples must be even at fraction 0.5"),
        ({"num_subsamples": 0}, ValueError, "num_subsamples must be an integer >= 1"),
        ({"num_subsamples": 2.5}, ValueError, "num_subsamples must be an integer"),
        ({"fraction": 0.0}, ValueError, "fraction must be above 0 and below 1"),
        ({"fraction": 1.0}, ValueError, "fraction must be above 0 and below 1"),
        ({"fraction": np.nan}, ValueError, "fraction must be above 0 and below 1"),
        ({"fraction": "half"}, TypeError, "fraction must be a number"),
        ({"fraction": 0.05}, ValueError, "less than one row"),
        ({"threshold": 0.5}, ValueError, "threshold must be above 1/2"),
        ({"threshold": 1.1}, ValueError, "threshold must be above 1/2"),
        ({"seed": -1}, ValueError, "seed must be an integer >= 0"),
        ({"seed": None}, ValueError, "seed must be an integer"),
        ({"mode": "cold"}, ValueError, "stability_selection: mode"),
        ({"penalties": penalties.L21(np.ones(D))}, ValueError, "stability_selection: nothing varies"),
    ],
)
def test_bad_input(change, error, match):
    with pytest.raises(error, match=match):
        bad(dict(change))()


def test_a_loss_without_weights_and_traced_options():
    X, Y = data()
    gram = sj.Problem(losses.SquaredLoss(X, Y).gram(), penalties.L21(1.0))
    strengths = jax.vmap(penalties.L21)(np.array([0.3, 0.1]))
    with pytest.raises(TypeError, match=r"stability_selection needs a loss with weights.*GramLoss"):
        sj.stability_selection(gram, strengths)
    p = sj.Problem(losses.SquaredLoss(X, Y), penalties.L21(1.0))
    for name in ("seed", "threshold", "fraction", "num_subsamples"):
        with pytest.raises(TypeError, match=f"{name} must be known outside jit"):
            jax.jit(lambda x, name=name: sj.stability_selection(p, strengths, **{name: x}))(1)


def test_a_subsample_without_weight():
    X, Y = data()
    weights = np.zeros(len(X))
    weights[:2] = 1
    p = sj.Problem(losses.SquaredLoss(X, Y, weights=weights), penalties.L21(1.0))
    strengths = jax.vmap(penalties.L21)(np.array([0.3, 0.1]))
    with pytest.raises(ValueError, match=r"subsample \d+ has no row of weight > 0"):
        sj.stability_selection(p, strengths, num_subsamples=10, fraction=0.3)
