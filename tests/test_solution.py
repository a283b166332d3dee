"""How a solve ends: statuses are honest, NaN is reported and stays in its lane."""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import EVERYTHING, SOLVERS, K, data, problem, solution
from loss_cases import LOSSES
from penalty_cases import PENALTIES, D

import sparsejax as sj
from sparsejax import penalties
from sparsejax.solution import CONVERGED, MAX_ITER, NON_FINITE, STALLED, History, warn_unconverged
from sparsejax.solvers import _solve

START = np.random.default_rng(0).standard_normal((D, K))


@pytest.mark.parametrize("loss, penalty", EVERYTHING)
def test_status(loss, penalty):
    """Converged exactly where the gap meets tol; stalled at the floor; cut off by maxiter."""
    p = problem(loss, penalty)
    s = solution(loss, penalty)  # tol = 0
    assert int(s.status) == (CONVERGED if float(s.gap) == 0 else STALLED)
    assert bool(s.converged) == (int(s.status) == CONVERGED)

    s = sj.solve(p, START, tol=1e-13, maxiter=1)
    assert int(s.status) == MAX_ITER and int(s.num_iters) == 1 and float(s.gap) > 1e-13
    assert "raise maxiter" in s.message
    s = sj.solve(p, START, tol=1e-13, maxiter=0)
    assert int(s.status) == MAX_ITER and int(s.num_iters) == 0
    np.testing.assert_array_equal(s.params, START)
    if len(p.penalty.terms) == 1:  # of several, the start is split in more cycles
        np.testing.assert_allclose(float(s.gap), float(sj.duality_gap(p, START)), rtol=1e-12)
    s = sj.solve(p, START, tol=1e9, maxiter=0)
    assert bool(s.converged) and int(s.num_iters) == 0


def test_throw():
    p = problem("SquaredLoss", "L21")
    with pytest.raises(sj.ConvergenceError) as error:
        sj.solve(p, tol=1e-13, maxiter=2, throw=True)
    s = sj.solve(p, tol=1e-13, maxiter=2)
    text = str(error.value)
    assert re.search(r"gap (\S+) after 2 iterations, tol is (\S+):", text).groups() == (
        f"{float(s.gap):.3g}", "1e-13",
    )  # fmt: skip
    assert "raise maxiter" in text
    with pytest.raises(sj.ConvergenceError, match=r"tol is 1e-06"):
        sj.solve(p, maxiter=0, throw=True)
    X = np.random.default_rng(0).standard_normal((20, D))
    no_gap = sj.Problem(sj.losses.GramLoss(X.T @ X, X.T @ np.ones((20, 2))), penalties.L21(1.0))
    with pytest.raises(sj.ConvergenceError, match=r"residual \S+ after 1 iterations"):
        sj.solve(no_gap, tol=1e-13, maxiter=1, throw=True)
    assert bool(sj.solve(p, throw=True).converged)
    with pytest.raises(TypeError, match="throw=True cannot raise inside jit"):
        jax.jit(lambda p: sj.solve(p, throw=True))(p)


def test_maxiter_is_warned_of_at_any_tol():
    """A tol below what float32 resolves is never met, but a solve that only began has not met it either."""
    X = np.random.default_rng(0).integers(-1, 2, (60, 3)).astype(np.float32)
    p = sj.Problem(sj.losses.SquaredLoss(X, (X[:, 0] > X[:, 1]).astype(np.float32)), sj.penalties.L1(0.02))
    with pytest.warns(sj.ConvergenceWarning, match="maxiter reached"):
        assert not sj.fista(p, tol=2e-7, maxiter=4).converged
    with pytest.raises(TypeError, match="tol must be a number, got True"):
        sj.solve(p, tol=True)


def test_throw_leaves_the_filters_of_warnings_alone(monkeypatch):
    """Filters belong to the process: threads that each restore what they found may leave another's behind."""
    during = []
    run = _solve.run

    def seen(*args, **kwargs):
        during.append(list(warnings.filters))
        return run(*args, **kwargs)

    monkeypatch.setattr(_solve, "run", seen)
    before = list(warnings.filters)
    with warnings.catch_warnings(record=True) as caught, pytest.raises(sj.ConvergenceError):
        warnings.simplefilter("always")
        asked = list(warnings.filters)
        sj.solve(problem("SquaredLoss", "L21"), tol=1e-13, maxiter=2, throw=True)
    assert during == [asked] and warnings.filters == before
    assert not caught  # the error says it


def test_pytrees_round_trip():
    """Problems and solutions pass through jit whole, are frozen, and print without their data."""
    p = problem("LogisticLoss", "ExclusiveL21")
    q = jax.jit(lambda p: p)(p)
    assert jax.tree.structure(p) == jax.tree.structure(q)
    with pytest.raises(AttributeError, match="immutable"):
        p.penalty = None
    assert "float64[14, 8]" in repr(p)
    assert "alpha=0.06" in repr(p.replace(penalty=penalties.ExclusiveL21(0.06, 0.02)))
    s = sj.solve(p)
    assert "status=0" in repr(jax.jit(lambda s: s)(s))
    assert s.message.startswith("converged")


def batch(*shape):
    """A solution of which every field says where it is from."""
    size = int(np.prod(shape))
    fields = [
        np.arange(size * np.prod(inner, dtype=int)).reshape(*shape, *inner) for inner in [(2, 3), *[()] * 5]
    ]
    history = sj.solution.History(*(np.zeros((*shape, 0)) for _ in range(2)))
    return jax.tree.map(jnp.asarray, sj.Solution(*fields, history))


@pytest.mark.parametrize(
    "index", [0, -1, slice(1), (1, 2), (slice(None), 0), np.array([1, 0, 1]), np.eye(2, 3, dtype=bool), ...]
)
def test_an_index_is_one_of_every_field(index):
    whole = batch(2, 3)
    part = whole[index]
    assert part.status.shape == np.zeros((2, 3))[index].shape
    for name in ("params", "gap", "status", "num_iters"):
        np.testing.assert_array_equal(getattr(part, name), np.asarray(getattr(whole, name))[index])
    assert part.history.gap.shape == (*part.status.shape, 0)


def test_an_index_out_of_range_or_of_one_problem():
    whole = batch(3)
    assert [int(one.status) for one in whole] == [0, 1, 2]
    for index in (3, -4, (0, 0)):  # not into the rows of params
        with pytest.raises(IndexError):
            whole[index]
    np.testing.assert_array_equal(jax.jit(lambda s, i: s[i].params)(whole, 1), whole.params[1])
    np.testing.assert_array_equal(whole[jnp.int32(2)].params, whole.params[2])
    with pytest.raises(TypeError, match="of one problem"):
        whole[0][0]


# ------------------------------------------------------------------ NaN, and lanes of a batch


@pytest.mark.parametrize(
    "solver, loss, penalty",
    [
        ("admm", "SquaredLoss", "ExclusiveL21"),
        ("fista", "SquaredLoss", "L1"),
        ("admm", "LogisticLoss", "L21"),
    ],
)
def test_nan_is_reported_and_stays_in_its_lane(solver, loss, penalty):
    """Values are not checked under jit: the status tells; other lanes are as if solved alone."""
    batch = [data(seed=seed) for seed in range(4)]
    X, Y = (np.stack(arrays) for arrays in zip(*batch, strict=True))
    Y = np.stack([LOSSES[loss].targets(y) for y in Y])
    X[1, 2, 3] = np.nan
    Y[3, 0, 0] = np.inf
    case = PENALTIES[penalty]

    def solve(X, Y):
        smooth = LOSSES[loss].make(X, Y, intercept=True)
        return SOLVERS[solver].function(sj.Problem(smooth, case.make(*case.strengths)), tol=1e-9)

    lanes = jax.jit(jax.vmap(solve))(X, Y)
    assert np.asarray(lanes.status).tolist() == [CONVERGED, NON_FINITE, CONVERGED, NON_FINITE]
    assert np.asarray(lanes.converged).tolist() == [True, False, True, False]
    assert [m.startswith("a NaN") for m in lanes.message] == [False, True, False, True]
    alone = jax.jit(solve)
    for i in range(4):
        s = alone(X[i], Y[i])
        assert int(s.status) == int(lanes.status[i])
        assert int(s.num_iters) == int(lanes.num_iters[i])
        if bool(s.converged):
            np.testing.assert_allclose(lanes.params[i], s.params, rtol=1e-7, atol=1e-9)
            np.testing.assert_allclose(lanes.objective[i], s.objective, rtol=1e-12)
        else:
            assert int(s.num_iters) == 0
            for params in (s.params, lanes.params[i]):  # not the start, which would be an answer
                assert np.isnan(params).all()
            assert "NaN or infinity" in s.message


def test_nan_in_start_or_strength_under_jit():
    p = problem("SquaredLoss", "L21")
    solve = jax.jit(lambda init, alpha: sj.solve(p.replace(penalty=penalties.L21(alpha)), init))
    good, alpha = np.zeros((D, K)), np.full(D, 0.05)
    assert bool(solve(good, alpha).converged)
    assert int(solve(good + np.nan, alpha).status) == NON_FINITE
    assert int(solve(good, alpha * np.nan).status) == NON_FINITE
    assert int(solve(good + 1e200, alpha).status) == NON_FINITE  # its objective overflows


def test_the_warning_names_the_residual_where_the_solve_that_failed_has_no_gap():
    gap, residual = np.array([1e-8, np.nan]), np.array([1e-8, 0.1])
    codes, none = np.array([CONVERGED, MAX_ITER], np.int32), np.zeros((2, 0))
    batch = sj.Solution(np.zeros((2, 3)), gap, gap, residual, codes, codes, History(none, none))
    with pytest.warns(sj.ConvergenceWarning, match=r"\(residual 1.0e-01\)"):
        warn_unconverged(None, batch, 1e-6)


def test_warning_names_the_status_of_the_worst_solve():
    gap = np.array([1e-3, np.nan])
    batch = sj.Solution(
        np.zeros((2, 3)),
        np.zeros(2),
        gap,
        gap,
        np.ones(2, np.int32),
        np.array([MAX_ITER, NON_FINITE], np.int32),
        History(np.zeros((2, 0)), np.zeros((2, 0))),
    )
    with pytest.warns(sj.ConvergenceWarning, match="NaN or infinity"):
        warn_unconverged(None, batch, 1e-6)
