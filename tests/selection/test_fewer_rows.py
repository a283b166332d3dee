"""Least squares of many rows, which the solves of a path see on few."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsejax as sj
from sparsejax.losses import held_out_on_few_rows, on_few_rows
from sparsejax.selection import fewer_rows

N, D = 1100, 120
ALPHAS = np.geomspace(0.5, 0.01, 10)


def data(n=N, d=D, k=None, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + np.arange(d) % 3
    X[:, 3], X[:, 5] = X[:, 2], 0  # a copy and an empty column
    W = np.where(np.arange(d) % 7 == 0, 1.0, 0) if k is None else rng.standard_normal((d, k))
    return X, X @ W + 3 + rng.standard_normal((n,) if k is None else (n, k))


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("n", "k"), [(97, None), (96, 2), (30, 3)])
def test_the_same_function(n, k, weighted, intercept, rng):
    X, Y = data(n, 11, k)
    weights = rng.uniform(0, 2, n) * (np.arange(n) % 5 > 0) if weighted else None
    loss = sj.losses.SquaredLoss(X, Y, weights=weights, scale=0.3, intercept=intercept)
    few = jax.jit(on_few_rows)(loss)
    assert few.X.shape[0] == 11 + (k or 1) and not few.has_intercept and few.weights is None
    for W in (np.zeros(loss.params_shape), rng.standard_normal(loss.params_shape)):
        np.testing.assert_allclose(few(W), loss(W), rtol=1e-13)
        np.testing.assert_allclose(jax.grad(few)(W), jax.grad(loss)(W), rtol=1e-10, atol=1e-12)
        problems = (sj.Problem(smooth, sj.penalties.L1(0.1)) for smooth in (few, loss))
        np.testing.assert_allclose(*(sj.duality_gap(problem, W) for problem in problems), rtol=1e-10)
        b = rng.standard_normal(W.shape[1:])
        held = held_out_on_few_rows(loss)(np.concatenate([W, np.asarray(b)[None]]))
        np.testing.assert_allclose(held, loss.evaluate(W, b), rtol=1e-13)


@pytest.mark.parametrize("sizes", [(1e-300, 1e-20, 1.0), (1e-250, 1e-100, 1e50), (1e170, 1e140, 1.0)])
def test_extreme_weights(sizes, rng):
    """Products of weights and data of these sizes over- or underflow."""
    X, y = data(97, 11)
    weights, unit, size = rng.uniform(0, 1, 97), sizes[1], sizes[2]
    plain = sj.losses.SquaredLoss(X, y, weights=weights, intercept=True)
    scale = plain.scale / sizes[0] / size**2
    loss = sj.losses.SquaredLoss(unit * X, size * y, weights=sizes[0] * weights, scale=scale, intercept=True)
    W = rng.standard_normal(11)
    for few in (on_few_rows(loss), held_out_on_few_rows(loss)):
        at = W * size / unit if few.X.shape[1] == 11 else np.append(W * size / unit, 2 * size)
        expected = plain(W) if few.X.shape[1] == 11 else plain.evaluate(W, 2.0)
        np.testing.assert_allclose(few(at), expected, rtol=1e-12)


def test_bad_weights_give_no_answer():
    """Under jit, where no error can be raised."""
    X, y = data(60, 6)
    for bad in (-1.0, np.nan):
        few = jax.jit(lambda w: on_few_rows(sj.losses.SquaredLoss(X, y, weights=w)))(np.full(60, bad))
        assert np.isnan(few(np.zeros(6)))


@pytest.fixture(autouse=True)
def folds_too(monkeypatch):
    """A fold has 736 rows here, a subsample 576: fewer entries than save time, but enough to test."""
    monkeypatch.setattr(fewer_rows, "MIN_ENTRIES", 2**15)


@pytest.mark.parametrize("rows", [N, 736, 576])
def test_these_sizes_have_fewer_rows(rows):
    smooth = sj.losses.SquaredLoss(np.ones((rows, D)), np.ones(rows))
    own = {"problem": sj.Problem(smooth, sj.penalties.L1(0.1)), "size": len(ALPHAS), "mode": "warm"}
    assert fewer_rows.saves(type("Arguments", (), own))


def strengths(penalty):
    return jax.vmap(penalty)(jnp.asarray(ALPHAS))


class AllRows(sj.losses.SquaredLoss):
    """The same loss, of a class that keeps its rows."""

    _self_contained = True


def problem(k=None, penalty=None, **options):
    form = penalty or (sj.penalties.L1 if k is None else sj.penalties.L21)
    return sj.Problem(sj.losses.SquaredLoss(*data(k=k), **options), form(0.1))


def with_all_rows(p):
    smooth = p.smooth
    options = {"scale": smooth.scale, "weights": smooth.weights, "intercept": smooth.has_intercept}
    return p.replace(smooth=AllRows(smooth.X, smooth.Y, **options))


@pytest.mark.parametrize("k", [None, 2])
def test_a_path(k):
    """As a loop of solves; eager, in a jit, in chunks, and its derivatives."""
    p = problem(k, intercept=True, weights=np.linspace(0, 2, N))
    form = type(p.penalty)
    grid = strengths(form)
    found = sj.path(p, grid, tol=1e-9)
    assert found.converged.all()
    for i in (1, 5, 9):
        one = sj.solve(p.replace(penalty=form(ALPHAS[i])), tol=1e-9)
        assert abs(found.objective[i] - one.objective) <= 2e-9 * one.objective
        assert sj.duality_gap(p.replace(penalty=form(ALPHAS[i])), found.params[i]) <= 1e-9
        assert found[i].solver == one.solver
    inside = jax.jit(lambda p: sj.path(p, grid, tol=1e-9))(p)
    for other in (inside, sj.path(p, grid, tol=1e-9, progress=True)):
        assert other.converged.all()
        np.testing.assert_allclose(other.objective, found.objective, rtol=2e-9)


def test_derivatives_of_a_path():
    p = problem(intercept=True)
    grid = strengths(sj.penalties.L1)

    @jax.jit
    @jax.grad
    def slopes(Y, p):
        return sj.path(p.replace(smooth=p.smooth._replace(Y=Y)), grid, tol=1e-12).params.sum()

    np.testing.assert_allclose(slopes(p.smooth.Y, p), slopes(p.smooth.Y, with_all_rows(p)), atol=1e-6)


@pytest.mark.parametrize("leaf", ["weights", "Y"])
def test_derivatives_of_held_out_losses(leaf):
    """Where a weight is 0, and where a column is."""
    weights = np.linspace(0, 2, N) * (np.arange(N) % 7 > 0)
    p, grid = problem(intercept=True, weights=weights), strengths(sj.penalties.L1)

    @jax.jit
    @jax.grad
    def slopes(x, p):
        changed = p.replace(smooth=p.smooth._replace(**{leaf: x}))
        return sj.cross_validate(changed, grid, folds=3, tol=1e-12, mode="warm").fold_loss.sum()

    found, expected = (slopes(getattr(p.smooth, leaf), q) for q in (p, with_all_rows(p)))
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("options", [{}, {"progress": True}, {"per_output": True}, {"scoring": "r2"}])
def test_folds(options):
    form = sj.penalties.L1 if "per_output" in options else sj.penalties.L21
    p = problem(2, form, intercept=True)
    call = lambda p: sj.cross_validate(p, strengths(form), folds=3, tol=1e-9, **options)
    few, all_rows = call(p), call(with_all_rows(p))
    assert few.converged.all()
    np.testing.assert_allclose(few.fold_loss, all_rows.fold_loss, rtol=1e-5)
    np.testing.assert_allclose(few.score, all_rows.score, rtol=1e-5)
    np.testing.assert_array_equal(few.index, all_rows.index)


def test_stability():
    p = problem()
    call = lambda p: sj.stability_selection(p, strengths(sj.penalties.L1), num_subsamples=6)
    np.testing.assert_array_equal(call(p).frequencies, call(with_all_rows(p)).frequencies)


def test_what_keeps_its_rows():
    X, y = data()
    keeps = {
        "few solves": (sj.losses.SquaredLoss(X, y), 9, "warm"),
        "a batch": (sj.losses.SquaredLoss(X, y), 10, "batch"),
        "float32": (sj.losses.SquaredLoss(X.astype(np.float32), y), 10, "warm"),
        "a subclass": (AllRows(X, y), 10, "warm"),
        "another loss": (sj.losses.HuberLoss(X, y), 10, "warm"),
        "few rows": (sj.losses.SquaredLoss(X[:240], y[:240]), 10, "warm"),
        "weights by entry": (sj.losses.SquaredLoss(X, y[:, None], weights=np.ones((N, 1))), 10, "warm"),
    }

    def saves(loss, size, mode):
        problem = sj.Problem(loss, sj.penalties.L1(0.1))
        return fewer_rows.saves(type("Arguments", (), {"problem": problem, "size": size, "mode": mode}))

    for name, case in keeps.items():
        assert not saves(*case), name
    assert saves(sj.losses.SquaredLoss(X, y), 10, "warm")


def test_few_rows_in_float32(rng):
    """The error is of the order of rounding, also with hundreds of rows left."""
    X, y = rng.standard_normal((700, 300)).astype(np.float32), np.ones(700, np.float32)
    loss = sj.losses.SquaredLoss(X, y)
    few = on_few_rows(loss)
    A, B = (np.asarray(x, float) for x in (X, few.X))
    expected, found = A.T @ A / 1400, float(few.scale) * (B.T @ B)
    assert np.linalg.norm(found - expected, 2) <= 3e-6 * np.linalg.norm(expected, 2)
