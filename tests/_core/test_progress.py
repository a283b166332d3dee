"""Work in chunks on the host: shown, stopped by Ctrl-C between two of them, the same whatever their size."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import data
from penalty_cases import D

import sparsejax as sj
from sparsejax import losses, penalties
from sparsejax._core import progress
from sparsejax.models import mil, multivariate, ofa_lasso
from sparsejax.selection.cross_validation import judged_on_folds
from sparsejax.solution import CONVERGED, INTERRUPTED, MESSAGES

X, Y = data(n=30)
LOSS = losses.SquaredLoss(X, Y[:, 0])
PROBLEM = sj.Problem(LOSS, penalties.L1(0.1))
STRENGTHS = jax.vmap(penalties.L1)(np.geomspace(0.5, 0.05, 6))
MASTERS = {"measure": multivariate.f_beta(), "budget": 3, "C": 60.0}


class Shown(contextlib.nullcontext):
    """In place of tqdm: what it was told, and Ctrl-C once it has shown enough."""

    bars: ClassVar[list] = []
    enough: ClassVar[int | None] = None

    def __init__(self, total, desc, unit):
        super().__init__(self)
        self.total, self.desc, self.n, self.seen, self.postfix = total, desc, 0, [], None
        self.bars.append(self)

    def set_postfix_str(self, text, refresh):
        self.postfix = text

    def update(self, n):
        self.n += n
        self.seen.append((self.n, self.postfix))
        if self.enough is not None and self.n >= self.enough:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def shown(monkeypatch):
    """Chunks of one solve, shown without a terminal; Ctrl-C is what it is in a program."""
    monkeypatch.setattr(progress, "_tqdm", lambda caller: Shown)
    monkeypatch.setattr(progress, "CHUNK_SECONDS", 0.0)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield Shown
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # left as it was found
    signal.signal(signal.SIGINT, before)
    Shown.bars, Shown.enough = [], None


def stopped(shown, enough, call):
    """What Ctrl-C leaves after so many solves."""
    shown.enough = enough
    with pytest.raises(sj.Interrupted) as raised:
        call()
    shown.enough = None
    return raised.value


def assert_alike(one, other, rtol=1e-12, atol=1e-14):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


# ------------------------------------------------------------------ chunks


class Count:
    """Each solve adds what its round has prepared; a round starts where the last one ended."""

    rounds, length = 3, 5

    def prepare(self, number):
        return 10 * number + 10, jnp.zeros_like(number)

    def solve(self, prepared, at, state, found):
        state = state + prepared + at[1]
        return state, found.at[at].set(state), at[1], jnp.float32(0.5)


@pytest.mark.parametrize("work", [1, 7, 10**6])
@pytest.mark.parametrize("setup", [0, 5, 1e30])
def test_where_a_chunk_stops_changes_nothing(work, setup):
    expected = np.cumsum(10 * np.arange(1, 4)[:, None] + np.arange(5), axis=1)
    run = jax.jit(lambda place, budget: progress.chunk(Count(), place, budget))
    place = progress.first_place(jax.eval_shape(Count().prepare, jnp.int32(0)), np.zeros((3, 5), np.int32))
    before, calls = 0, 0
    while before < 15:
        place, (done, took, setups, gap) = run(place, progress.Budget(np.float32(work), np.float32(setup)))
        solves = np.arange(before, int(done))
        assert int(took) == np.sum(solves % 5 + 1) and float(gap) == 0.5 and len(solves)
        assert setups <= 1 or setup < work  # one at a time where that is dear
        before, calls = int(done), calls + 1
    np.testing.assert_array_equal(place.found, expected)
    expected_calls = {(1, 0): 15, (1, 5): 15, (1, 1e30): 15, (7, 0): 6, (7, 5): 9, (7, 1e30): 9}
    expected_calls |= {(10**6, 0): 1, (10**6, 5): 1, (10**6, 1e30): 6}
    assert calls == expected_calls[work, setup]


def test_a_pace_learns_from_what_chunks_took(monkeypatch):
    monkeypatch.setattr(progress, "CHUNK_SECONDS", 0.5)
    pace = progress._Pace()
    pace.learn(9.0, 3, 1.0)  # compiled
    assert pace.work == progress.FIRST_CHUNK_WORK and pace.setup == progress.UNKNOWN_SETUP_WORK
    pace.learn(0.01, 10, 0.0)
    assert pace.work == progress.MAX_CHUNK_GROWTH * 11  # not 500 at once
    pace.learn(0.2, 100, 1.0)  # of 1000 a second: 100 for the solves, as many to prepare
    assert pace.setup == pytest.approx(100) and pace.work == 500


# ------------------------------------------------------------------ the same answers, shown


@functools.cache
def plain_path():
    return sj.path(PROBLEM, STRENGTHS, mode="warm", tol=1e-12)


@functools.cache
def plain_folds():
    return sj.cross_validate(PROBLEM, STRENGTHS, folds=3, scoring="r2", mode="warm", tol=1e-12)


@pytest.mark.parametrize("mode", ["warm", "batch"])
def test_path(mode, shown):
    path = lambda **options: sj.path(PROBLEM, STRENGTHS, mode=mode, tol=1e-12, progress=True, **options)
    plain, seen = plain_path(), path()
    if mode == "warm":
        assert_alike(seen, plain)
    else:
        np.testing.assert_allclose(seen.params, plain.params, atol=1e-9)
    (bar,) = shown.bars
    assert bar.total == bar.n == 6 and bar.desc == "path" and bar.seen[-1][1].startswith("gap ")
    assert len(bar.seen) == 6  # solves, one at a time

    partial = stopped(shown, 3, path).partial
    assert partial.status.tolist() == [CONVERGED] * 3 + [INTERRUPTED] * 3
    assert_alike(partial[:3], seen[:3])
    for leaf in (partial.params, partial.objective, partial.gap, partial.residual):
        assert np.isnan(leaf[3:]).all()
    assert not partial.converged[3:].any() and partial.message[3] == MESSAGES[INTERRUPTED]


def test_path_on_two_axes_by_a_solver_that_leaves_something(shown):
    """`variational_newton` leaves strengths to `admm`, after the walk."""
    wide = np.random.default_rng(0).standard_normal((6, 520))
    p = sj.Problem(losses.SquaredLoss(wide, wide[:, 0] + 0.1), penalties.L1(0.1))
    grid = jax.vmap(jax.vmap(penalties.L1))(np.array([[0.3, 0.1], [0.05, 0.0]]))
    path = lambda **options: sj.path(p, grid, mode="warm", maxiter=300, **options)
    assert_alike(path(progress=True), path(), rtol=1e-9, atol=1e-12)
    stop = stopped(shown, 1, lambda: path(progress=True))
    assert stop.partial.status.tolist() == [[CONVERGED, INTERRUPTED], [INTERRUPTED, INTERRUPTED]]
    assert "after 1 of 4 solves" in str(stop)


@pytest.mark.parametrize("mode", ["warm", "batch"])
def test_cross_validate(mode, shown):
    validate = lambda: sj.cross_validate(
        PROBLEM, STRENGTHS, folds=3, scoring="r2", mode=mode, tol=1e-12, progress=True
    )
    plain, seen = plain_folds(), validate()
    np.testing.assert_allclose(seen.fold_loss, plain.fold_loss, rtol=1e-9)
    np.testing.assert_allclose(seen.score, plain.score, rtol=1e-9)
    np.testing.assert_array_equal(seen.num_nonzero, plain.num_nonzero)
    assert seen.converged.all() and seen.gap.shape == (3, 6) and seen.index == plain.index
    assert shown.bars[0].total == shown.bars[0].n == 18
    partial = stopped(shown, 12, validate).partial
    if mode == "warm":  # two folds of three
        assert_alike(partial.fold_loss, seen.fold_loss[:2])
        assert partial.index == np.argmax(plain.score[:2].mean(0))
        assert stopped(shown, 11, validate).partial is None
    else:  # four strengths of six
        assert_alike(partial.fold_loss[:, :4], seen.fold_loss[:, :4])
        assert np.isnan(partial.score[:, 4:]).all() and not partial.converged[:, 4:].any()
        assert partial.index == np.argmax(plain.score[:, :4].mean(0))


def test_a_judge_of_fits_scores_what_was_solved(shown):
    judge = lambda fits: -np.abs(np.asarray(fits.params)).sum(-1)
    validate = lambda: judged_on_folds(PROBLEM, STRENGTHS, judge, folds=3, tol=1e-12, progress=True)
    whole, partial = validate(), stopped(shown, 12, validate).partial
    np.testing.assert_allclose(partial.score, whole.score[:2], rtol=1e-9)
    assert partial.index == 0 != np.argmin(partial.fold_loss.mean(0))


def test_stability_selection(shown, cores_are):
    """One thread or two; in slices; what is known of some of the subsamples."""
    select = lambda mode="warm", **options: sj.stability_selection(
        PROBLEM, STRENGTHS, num_subsamples=5, fraction=0.4, mode=mode, **options
    )
    cores_are(2)
    plain = select()
    assert_alike(select(progress=True), plain)
    assert shown.bars[0].total == shown.bars[0].n == 30
    assert_alike(select("batch", progress=True), plain, atol=1e-6)
    cores_are(1)
    stop = stopped(shown, 15, lambda: select(progress=True))
    assert str(stop) == "stability_selection: interrupted after 2 of 5 subsamples"
    assert_alike(stop.partial.num_selected, plain.num_selected[:2])
    assert_alike(stop.partial.gap, plain.gap[:2])
    assert np.isnan(stop.partial.bound)
    two = stop.partial.frequencies * 2
    assert set(np.unique(two)) <= {0, 1, 2} and np.all(two <= 5 * plain.frequencies + 1e-9)
    assert stopped(shown, 2, lambda: select(progress=True)).partial is None


def test_tune(shown):
    held_out = losses.SquaredLoss(*data(n=20, seed=1, k=None))
    tune = lambda **options: sj.tune(PROBLEM, held_out, maxiter=4, **options)
    plain = tune()
    assert_alike(tune(progress=True), plain)
    assert shown.bars[0].seen[0][1].startswith("slope ") and shown.bars[0].n == 4
    partial = stopped(shown, 2, lambda: tune(progress=True)).partial
    assert int(partial.num_solves) == 2 and not partial.converged
    assert partial.message.startswith("interrupted")
    assert_alike(partial.tried.loss[:2], plain.tried.loss[:2])
    assert float(partial.loss) == np.min(plain.tried.loss[:2])


def test_output_features(shown):
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((12, 3))
    outputs = np.sin(inputs[:, [0, 1, 2, 0, 1]]) + 0.1 * rng.standard_normal((12, 5))
    fit = lambda **options: ofa_lasso.fit(inputs, outputs, 0.1, 0.1, tol=1e-8, **options)
    assert_alike(fit(progress=True), fit(), atol=1e-12)
    assert [bar.n for bar in shown.bars] == [4]  # five outputs in two rounds, without and with the others
    assert stopped(shown, 1, lambda: fit(progress=True)).partial is None


# ------------------------------------------------------------------ the cutting planes, which are on the host


def ctrl_c(after):
    def progress(p):
        if p.num_iters == after:
            raise KeyboardInterrupt

    return progress


def test_cutting_planes(shown):
    rng = np.random.default_rng(0)
    A = rng.standard_normal((60, 20))
    y = np.where(A[:, 0] + 0.5 * rng.standard_normal(60) > 0, 1, -1)
    fit = lambda **options: multivariate.fit(A, y, **MASTERS, **options)
    plain = fit(progress=True)
    (bar,) = shown.bars
    high, low = plain.report.history[-1]
    assert bar.n == plain.num_iters and bar.seen[-1][1] == f"gap {(high - low) / high:.1e}"

    partial = stopped(shown, None, lambda: fit(progress=ctrl_c(2))).partial
    assert partial.status == INTERRUPTED and not partial.converged and partial.num_iters == 2
    assert partial.lower_bound <= plain.objective <= partial.objective
    again = fit(init=partial)
    assert again.converged and again.objective == pytest.approx(plain.objective, rel=2e-3)
    assert stopped(shown, 2, lambda: fit(progress=True)).partial.num_iters == 2

    grid = lambda progress: multivariate.path(A, y, **MASTERS | {"C": [6.0, 60.0]}, progress=progress)
    models = []
    partial = stopped(
        shown, None, lambda: grid(lambda p: models.append(p) or (len(models) == 20 and ctrl_c(p[0])(p)))
    ).partial
    assert [type(model) for model in partial] == [multivariate.Model] * len(partial)
    assert partial[-1].status == INTERRUPTED

    ids = np.arange(60) // 2
    bags = stopped(shown, None, lambda: mil.fit(A, ids, y[::2], **MASTERS, progress=ctrl_c(2))).partial
    assert isinstance(bags, mil.Model) and bags.linear.status == INTERRUPTED

    classes = np.digitize(A[:, 0], [-0.5, 0.5])
    rest = lambda: multivariate.fit_one_vs_rest(A, classes, **MASTERS, progress=True)
    shown.bars.clear()
    rest()
    assert [bar.n for bar in shown.bars] == [3]
    assert "after 1 of 3 classes" in str(stopped(shown, 1, rest))


# ------------------------------------------------------------------ a real Ctrl-C

SCRIPT = """
import json, sys, threading, time
import jax, numpy as np
jax.config.update("jax_enable_x64", True)
import sparsejax as sj
from sparsejax._core import progress
progress.CHUNK_SECONDS = 0.02
X = np.random.default_rng(0).standard_normal((30, 8))
problem = sj.Problem(sj.losses.SquaredLoss(X, X[:, :2]), sj.penalties.L21(0.1))
strengths = jax.vmap(sj.penalties.L21)(np.geomspace(0.5, 0.01, 20_000))
threads = threading.active_count()
try:
    sj.path(problem, strengths, tol=0.0, progress=True, mode="warm")
except KeyboardInterrupt as stop:
    begin = time.process_time()
    time.sleep(0.3)
    used = time.process_time() - begin
    status = stop.partial.status.tolist()
    print(json.dumps({"done": sum(s != 5 for s in status), "used": used, "error": type(stop).__name__,
                      "finite": int(np.isfinite(stop.partial.objective).sum())}))
"""


def test_ctrl_c_in_a_process():
    """Sent while a path of thousands runs: it hands back some of them, and nothing works on."""
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        while "gap" not in (line := child.stderr.readline(40)):
            assert line, "it ended before it showed anything"
        child.send_signal(signal.SIGINT)
        out, errors = child.communicate(timeout=120)
    finally:
        child.kill()
    told = json.loads(out)
    assert told["error"] == "Interrupted" and child.returncode == 0, errors
    assert 0 < told["done"] == told["finite"] < 20_000
    assert told["used"] < 0.1


# ------------------------------------------------------------------ what is not possible


def test_bad_input(monkeypatch):
    path = lambda p, progress=True: sj.path(p, STRENGTHS, progress=progress)
    with pytest.raises(TypeError, match="path: progress must be True or False, got 'yes'"):
        path(PROBLEM, "yes")
    calls = {
        "path": path,
        "cross_validate": lambda p: sj.cross_validate(p, STRENGTHS, progress=True),
        "stability_selection": lambda p: sj.stability_selection(p, STRENGTHS, progress=True),
        "tune": lambda p: sj.tune(p, LOSS, progress=True),
    }
    for name, call in calls.items():
        with pytest.raises(TypeError, match=f"{name}: progress=True is for calls outside jit"):
            jax.jit(call)(PROBLEM)
    with pytest.raises(TypeError, match="fit: progress=True is for calls outside jit"):
        jax.jit(lambda X: ofa_lasso.fit(X, Y, 1.0, 1.0, bandwidth=1.0, output_bandwidth=1.0, progress=True))(
            X
        )
    with pytest.raises(TypeError, match="progress must be True, False or a function"):
        multivariate.fit(np.eye(4), [1, 1, -1, -1], **MASTERS, progress=1.0)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ModuleNotFoundError, match=r'path: progress=True needs tqdm.*"sparsejax\[progress\]"'):
        path(PROBLEM)


def test_a_process_without_stderr(monkeypatch):
    """The constructor of a bar would fail there, and its lock stay taken."""
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(RuntimeError, match=r"path: progress=True needs sys.stderr"):
        sj.path(PROBLEM, STRENGTHS, progress=True)


def test_the_bar_never_runs_backwards(shown):
    """Where solves are made again, as by `ofa_lasso` with more columns, it waits."""
    with progress.bar_of("path", 4) as bar:
        counts = [bar.show(done, 0.1) or bar.count for done in (1, 2, 3, 1, 2, 3, 4)]
    assert counts == [1, 2, 3, 3, 3, 3, 4]


def test_in_another_thread_it_is_only_shown(shown):
    """Where Ctrl-C does not come."""
    found = []
    thread = threading.Thread(
        target=lambda: found.append(sj.path(PROBLEM, STRENGTHS, mode="warm", progress=True))
    )
    thread.start()
    thread.join()
    assert found[0].converged.all() and found[0].params.shape == (6, D)


@pytest.mark.parametrize("mode", ["warm", "batch"])
def test_a_solution_that_is_missing_names_no_solver(mode, monkeypatch):
    monkeypatch.setattr(progress.Bar, "show", lambda bar, done, gap: bar.stop.set())
    strengths = jax.vmap(sj.penalties.L1)(np.geomspace(0.5, 0.01, 40))
    with pytest.raises(sj.Interrupted) as caught:
        sj.path(PROBLEM, strengths, progress=True, mode=mode)
    partial = caught.value.partial
    missing = np.asarray(partial.status) == sj.solution.INTERRUPTED
    assert missing.any() and set(partial[missing].solver) == {""} and "" not in partial[~missing].solver
