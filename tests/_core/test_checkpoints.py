"""What is kept of long work: stopped at any moment, it goes on and ends with the same bits."""

import dataclasses
import errno
import functools
import os
import signal
import subprocess
import sys
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import data

import sparsejax as sj
from sparsejax import losses, penalties
from sparsejax._core import checkpoints, progress
from sparsejax._core.checkpoints import Checkpoint, digest, text_of
from sparsejax._core.programs import text_of_program
from sparsejax.driver import OPTIONS
from sparsejax.solvers import SOLVERS, Solver

X, Y = data(n=30)
PROBLEM = sj.Problem(losses.SquaredLoss(X, Y[:, 0]), penalties.L1(0.1))
STRENGTHS = jax.vmap(penalties.L1)(np.geomspace(0.5, 0.05, 6))

CALLS = {
    "path": functools.partial(sj.path, PROBLEM, STRENGTHS),
    "cross_validate": functools.partial(
        sj.cross_validate, PROBLEM, STRENGTHS, folds=3, scoring="r2", refit=True
    ),
    "stability_selection": functools.partial(
        sj.stability_selection, PROBLEM, STRENGTHS, num_subsamples=5, fraction=0.4
    ),
}


class Killed(BaseException):
    pass


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Chunks of one solve."""
    monkeypatch.setattr(progress, "CHUNK_SECONDS", 0.0)
    monkeypatch.setattr(progress, "MAX_SAVING_SHARE", np.inf)


@pytest.fixture
def most(monkeypatch):
    """A limit of the records that are written, till a call is killed."""
    left, write = [10**6], Checkpoint._write

    def limited(self, name, arrays):
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        write(self, name, arrays)

    monkeypatch.setattr(Checkpoint, "_write", limited)
    return left


def assert_same_bits(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


# ------------------------------------------------------------------ killed, and started again


@pytest.mark.parametrize(
    ("name", "mode", "threads"),
    [
        ("path", "warm", 1),
        ("path", "batch", 1),
        ("cross_validate", "warm", 1),
        ("stability_selection", "warm", 2),
        ("stability_selection", "batch", 1),
    ],
)
def test_killed_at_any_record(name, mode, threads, most, tmp_path, cores_are):
    cores_are(threads)
    call = functools.partial(CALLS[name], mode=mode, tol=1e-10)
    whole, killed = call(checkpoint=tmp_path / "whole"), 0
    while True:
        most[0] = 2
        try:
            again = call(checkpoint=str(tmp_path / "killed"))
        except Killed:
            killed += 1
            cores_are(1)  # it goes on with the threads it began with
            continue
        break
    assert_same_bits(again, whole)
    assert killed >= (2 if mode == "batch" else 3)
    most[0] = 0
    assert_same_bits(call(checkpoint=tmp_path / "killed"), whole)  # read, not written


def test_what_a_solver_leaves_to_another_is_kept(most, tmp_path):
    wide = np.random.default_rng(0).standard_normal((6, 520))
    p = sj.Problem(losses.SquaredLoss(wide, wide[:, 0] + 0.1), penalties.L1(0.1))
    path = functools.partial(
        sj.path, p, jax.vmap(penalties.L1)(np.array([0.3, 0.0])), mode="warm", maxiter=300
    )
    whole = path(checkpoint=tmp_path)
    assert (tmp_path / "rest-1.npz").exists()
    most[0] = 0
    assert_same_bits(path(checkpoint=tmp_path), whole)


SCRIPT = """
import sys
import jax
jax.config.update("jax_enable_x64", True)
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/../support"]
from test_checkpoints import CALLS, progress
from sparsejax.driver import OPTIONS
OPTIONS.update(eval(sys.argv[3]))
progress.CHUNK_SECONDS = 0.0
CALLS["path"](mode="warm", checkpoint=sys.argv[2], tol=1e-10)
"""


def test_a_process_that_is_killed(tmp_path):
    """At whatever it is doing once there is a record; another process, this one, goes on."""
    here = os.path.dirname(__file__)
    child = subprocess.Popen([sys.executable, "-c", SCRIPT, here, str(tmp_path / "killed"), repr(OPTIONS)])
    try:
        begin = time.monotonic()
        while not (tmp_path / "killed" / "part-0.npz").exists():
            assert child.poll() is None and time.monotonic() - begin < 120
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    path = functools.partial(CALLS["path"], mode="warm", tol=1e-10)
    assert_same_bits(path(checkpoint=tmp_path / "killed"), path(checkpoint=tmp_path / "whole"))
    assert not list(tmp_path.glob("*/*" + checkpoints.TEMPORARY))


def test_ctrl_c(tmp_path, monkeypatch):
    """It is seen with a checkpoint alone, without a bar."""
    save = Checkpoint.save

    def interrupted(self, name, tree):
        os.kill(os.getpid(), signal.SIGINT)
        return save(self, name, tree)

    path = functools.partial(CALLS["path"], mode="warm", checkpoint=tmp_path)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with monkeypatch.context() as m, pytest.raises(sj.Interrupted) as raised:
        m.setattr(Checkpoint, "save", interrupted)
        path()
    signal.signal(signal.SIGINT, before)
    done = raised.value.partial.converged
    assert 1 <= done.sum() < 6
    assert_same_bits(path()[: int(done.sum())], raised.value.partial[: int(done.sum())])


# ------------------------------------------------------------------ of another call, or damaged


def test_of_another_call(tmp_path):
    call = functools.partial(CALLS["cross_validate"], mode="warm", checkpoint=tmp_path)
    call()
    other = losses.SquaredLoss(X, Y[:, 0] * (1 + 1e-15))
    changed = {
        "loss": lambda: sj.cross_validate(
            PROBLEM.replace(smooth=other), STRENGTHS, folds=3, scoring="r2", refit=True, mode="warm",
            checkpoint=tmp_path,
        ),
        "tol": lambda: call(tol=1e-9),
        "maxiter": lambda: call(maxiter=100),
        "mode": lambda: call(mode="batch"),
        "folds": lambda: call(folds=np.arange(30) // 10),
        "scoring": lambda: call(scoring=lambda Y, H, weights: -jnp.sum(weights * (Y - H) ** 2)),
        "refit": lambda: call(refit=False),
        "folds, function, per_output, refit, scoring": lambda: sj.path(
            PROBLEM, STRENGTHS, mode="warm", checkpoint=tmp_path
        ),
    }  # fmt: skip
    for what, again in changed.items():
        with pytest.raises(ValueError, match=f"of another call, which differs in: {what}. Give another"):
            again()
    call()


def test_the_solver_is_seen(tmp_path):
    """Its name, and the code of one's own; every call asks the table that is there."""
    X = np.random.default_rng(0).standard_normal((20, 4))
    problem = sj.Problem(sj.losses.SquaredLoss(X, X[:, 0]), sj.penalties.L1(0.1))
    strengths = jax.vmap(sj.penalties.L1)(np.array([0.2, 0.1]))
    inner, before = SOLVERS["fista"].link.run, dict(SOLVERS)

    def with_link(run):
        mine = dataclasses.replace(SOLVERS["fista"].link, name="mine", run=run)
        SOLVERS.clear()
        SOLVERS["mine"] = Solver(sj.fista, lambda p: None, "mine", mine, suits=lambda p: True)
        SOLVERS.update(before)

    def wrong(*args, **options):
        solution = inner(*args, **options)
        return solution._replace(params=solution.params + 1)

    first = sj.path(problem, strengths, checkpoint=tmp_path / "first")
    try:
        with_link(wrong)
        assert sj.path(problem, strengths).solver == ["mine", "mine"]
        assert jax.jit(lambda p: sj.path(p, strengths))(problem).solver == ["mine", "mine"]
        sj.path(problem, strengths, checkpoint=tmp_path / "own")
        with pytest.raises(ValueError, match="solvers"):
            sj.path(problem, strengths, checkpoint=tmp_path / "first")
        with_link(inner)
        with pytest.raises(ValueError, match="another call, which differs in: program"):
            sj.path(problem, strengths, checkpoint=tmp_path / "own")
    finally:
        SOLVERS.clear()
        SOLVERS.update(before)
    again = sj.path(problem, strengths, checkpoint=tmp_path / "first")
    np.testing.assert_array_equal(again.params, first.params)
    assert again.solver == first.solver != ["mine", "mine"]


def test_damaged(tmp_path):
    call = functools.partial(CALLS["path"], mode="warm", checkpoint=tmp_path)
    call()
    rng = np.random.default_rng(0)
    for name in ("part-0", "call"):
        path = tmp_path / f"{name}.npz"
        whole = path.read_bytes()
        for cut in (0, 10, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:cut])
            with pytest.raises(ValueError, match=rf"path: checkpoint: .*{name}.npz is damaged .*Delete"):
                call()
        # in the first array; and what the archive says of it: how it is packed
        for place in (whole.index(b"NUMPY") + 130, whole.index(b"PK\1\2") + 10):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << rng.integers(8)
            path.write_bytes(flipped)
            with pytest.raises(ValueError, match="is damaged"):
                call()
        path.write_bytes(whole)
    os.rename(tmp_path / "part-0.npz", tmp_path / "kept")
    np.savez(tmp_path / "part-0.npz", **{"leaf-0": np.array([{}], object)})
    with pytest.raises(ValueError, match="is damaged"):  # pickles are not read
        call()
    os.rename(tmp_path / "kept", tmp_path / "part-0.npz")
    (tmp_path / "call.npz").unlink()
    with pytest.raises(ValueError, match=r"is damaged \(it is missing, others are there\)"):
        call()


def test_a_disk_that_is_full(tmp_path, monkeypatch):
    call = functools.partial(CALLS["path"], mode="warm", checkpoint=tmp_path)
    whole = call()
    records = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "part-0.npz").unlink()
    full = lambda *_, **__: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device"))
    with monkeypatch.context() as m:
        m.setattr(np, "savez", full)
        with pytest.raises(OSError, match=r"part-0.npz could not be written: No space left.* is whole"):
            call()
    assert [path.name for path in tmp_path.iterdir()] == ["call.npz"]
    assert_same_bits(call(), whole)
    assert {path.name for path in tmp_path.iterdir()} == set(records)


def test_bad_input(tmp_path):
    path = lambda checkpoint: sj.path(PROBLEM, STRENGTHS, checkpoint=checkpoint)
    with pytest.raises(TypeError, match="path: checkpoint must be the path of a folder, got 3"):
        path(3)
    with pytest.raises(ValueError, match="path: checkpoint must be the path of a folder, got ''"):
        path("")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file is a file"):
        path(tmp_path / "file")
    with pytest.raises(TypeError, match="path: checkpoint is for calls outside jit"):
        jax.jit(lambda p: sj.path(p, STRENGTHS, checkpoint=tmp_path))(PROBLEM)


# ------------------------------------------------------------------ what a call is


def test_digests_see_what_matters():
    def made(code, **names):
        scope = {"jnp": jnp, **names}
        exec(code, scope)
        return scope["f"]

    text = lambda f: text_of_program("scoring", jax.make_jaxpr(f)(1.0))
    one = made("f = lambda x: x + 1")
    assert text(one) == text(made("\n\nf = lambda x: x + 1"))  # moved in its file
    assert text(one) != text(made("f = lambda x: x + 2"))
    assert text(one) != text(made("f = lambda x: x - 1"))
    closed = lambda a: lambda x: x + a
    assert text(closed(np.ones(2))) == text(closed(np.ones(2))) != text(closed(np.zeros(2)))
    within = lambda a: lambda x: closed(a)(x) * closed(a)(x)
    assert text(within(1)) != text(within(2))
    assert text(functools.partial(lambda a, x: a - x, 1)) != text(functools.partial(lambda a, x: a - x, 2))
    with pytest.raises(TypeError, match=r"<object object at .*> cannot be identified"):
        text_of(object())
    assert digest(np.float32(0)) != digest(np.float64(0)) and digest(np.zeros(2)) != digest(-np.zeros(2))
    assert digest((1, None)) != digest([1, None])


LEVEL = 0.0  # read by a scoring function
MANY = np.zeros(30), np.eye(1, 30, 15)[0]  # of which numpy prints the ends alone, if told so


class Judge:
    def __init__(self, level, offsets=MANY[0]):
        self.level, self.offsets = level, offsets

    def score(self, Y, H, weights):
        return self.level - jnp.sum(weights * (Y - H) ** 2)

    def __call__(self, Y, H, weights):
        return -jnp.sum(weights * (Y - H - self.offsets) ** 2)

    def __repr__(self):
        """The repr of its array, which numpy cuts."""
        return f"Judge({np.array2string(self.offsets, threshold=4)})"


def keyword_only(Y, H, weights, *, level=0.0):
    return level - jnp.sum(weights * (Y - H) ** 2)


def with_a_global(Y, H, weights):
    return LEVEL - jnp.sum(weights * (Y - H) ** 2)


def changed_keyword():
    other = types.FunctionType(keyword_only.__code__, globals(), "keyword_only")
    other.__kwdefaults__ = {"level": 1.0}
    return other


def nested(offsets):
    inner = jax.jit(lambda r: r - offsets)
    return lambda Y, H, weights: -jnp.sum(weights * inner(Y - H) ** 2)


@pytest.mark.parametrize(
    ("one", "other"),
    {
        "keyword-only default": (keyword_only, changed_keyword()),
        "bound method": (Judge(0.0).score, Judge(1.0).score),
        "repr that is cut": (Judge(0.0, MANY[0]), Judge(0.0, MANY[1])),
        "array in a jitted function": (nested(MANY[0]), nested(MANY[1])),
    }.values(),
)
def test_scoring_functions_that_look_alike(one, other, tmp_path):
    judged = lambda scoring: sj.cross_validate(PROBLEM, STRENGTHS, folds=3, scoring=scoring, mode="warm")
    kept = lambda scoring: CALLS["cross_validate"](scoring=scoring, mode="warm", checkpoint=tmp_path)
    a, b = judged(one), judged(other)
    assert not np.allclose(a.score, b.score)
    np.testing.assert_allclose(kept(one).score, a.score, rtol=1e-12)
    with pytest.raises(ValueError, match="differs in: scoring"):
        kept(other)
    np.testing.assert_allclose(kept(one).score, a.score, rtol=1e-12)


def test_a_global_that_a_scoring_function_reads(tmp_path, monkeypatch):
    call = functools.partial(CALLS["cross_validate"], scoring=with_a_global, mode="warm")
    first = call(checkpoint=tmp_path / "0")
    monkeypatch.setitem(globals(), "LEVEL", 1.0)
    with pytest.raises(ValueError, match="differs in: scoring"):
        call(checkpoint=tmp_path / "0")
    # In this process the function has been compiled with the old value.
    np.testing.assert_allclose(call(checkpoint=tmp_path / "1").score, first.score + 1)
    np.testing.assert_allclose(call().score, first.score + 1)


def on_host(level):
    def score(Y, H, weights):
        like = jax.ShapeDtypeStruct((), Y.dtype)
        judge = lambda Y, H: np.asarray(level - np.sum((Y - H) ** 2), Y.dtype)
        return jax.pure_callback(judge, like, Y, H, vmap_method="sequential")

    return score


def test_what_cannot_be_told_gets_no_checkpoint(tmp_path):
    call = functools.partial(CALLS["cross_validate"], mode="warm")
    with pytest.raises(TypeError, match=r"checkpoint: scoring calls .*on_host.*on the host"):
        call(scoring=on_host(0.0), checkpoint=tmp_path)
    assert not list(tmp_path.iterdir())
    one, other = (call(scoring=on_host(level)) for level in (0.0, 1.0))
    np.testing.assert_allclose(other.score, one.score + 1)


def test_what_a_loss_of_ones_own_closes_over_is_seen(tmp_path):
    init = np.zeros(3)

    def path(a, scale=1.0):
        loss = jax.tree_util.Partial(lambda b, W: scale * jnp.sum((W - a - b) ** 2), jnp.zeros(3))
        p = sj.Problem(loss, penalties.L1(0.1))
        return sj.path(p, jax.vmap(penalties.L1)(np.array([0.5, 0.1])), init, checkpoint=tmp_path)

    first = path(np.ones(3))
    assert_same_bits(path(np.ones(3)), first)
    for other in (lambda: path(np.full(3, 2.0)), lambda: path(np.ones(3), 2.0)):
        with pytest.raises(ValueError, match="differs in: loss"):
            other()


def test_every_method_of_a_penalty_of_ones_own_is_seen(tmp_path):
    """Another conjugate gives another gap, and so another end of the solve."""

    def path(factor):
        class Mine(sj.Penalty, leaves=("strength",)):
            strengths = ("strength",)
            finite_conjugate = False

            def value(self, W):
                return self.strength * jnp.sum(jnp.abs(W))

            def prox(self, V, scaling=1.0):
                return sj.prox.l1(V, self.strength, scaling)

            def conjugate(self, Z, aux=None):
                return jnp.zeros((), Z.dtype) * factor

            def dual_scale(self, Z):
                return factor * self.strength / jnp.max(jnp.abs(Z))

        problem = PROBLEM.replace(penalty=Mine(jnp.asarray(0.1)))
        return sj.path(problem, Mine(np.array([0.5, 0.1])), mode="warm", checkpoint=tmp_path)

    first = path(1.0)
    assert_same_bits(path(1.0), first)
    with pytest.raises(ValueError, match="differs in: program"):
        path(0.5)


def test_rows_that_are_read_again_are_seen(tmp_path):
    """Of X and -X the columns and rows have the same lengths."""

    def path(X):
        loss = losses.from_batches(losses.HuberLoss, [(X[:20], Y[:20, 0]), (X[20:], Y[20:, 0])])
        return sj.path(
            sj.Problem(loss, penalties.L1(0.1)),
            jax.vmap(penalties.L1)(np.array([0.5, 0.1])),
            mode="warm",
            checkpoint=tmp_path,
        )

    first = path(X)
    assert_same_bits(path(X), first)
    with pytest.raises(ValueError, match="differs in: loss"):
        path(-X)


def test_the_precision_of_products_is_a_part_of_the_call(tmp_path):
    with jax.default_matmul_precision("highest"):
        sj.path(PROBLEM, STRENGTHS, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="another call, which differs in: precision of products"):
        sj.path(PROBLEM, STRENGTHS, checkpoint=tmp_path)


@pytest.mark.parametrize("mode", ["warm", "batch"])
def test_which_strengths_vary_is_a_part_of_the_call(mode, tmp_path):
    X = np.random.default_rng(0).standard_normal((30, 5))
    loss = losses.SquaredLoss(X, X[:, :3])
    alpha, beta = np.array([0.5, 0.4, 0.3, 0.2, 0.1]), np.array([0.3, 0.05, 0.2, 0.01, 0.1])
    strengths = penalties.ExclusiveL21(alpha, beta)
    pairs = sj.Problem(loss, penalties.ExclusiveL21(0.1, 0.1))  # alpha and beta vary
    by_row = sj.Problem(loss, penalties.ExclusiveL21(0.1, beta))  # alpha varies, beta is by row
    sj.path(pairs, strengths, mode=mode, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="another call, which differs in: penalties"):
        sj.path(by_row, strengths, mode=mode, checkpoint=tmp_path)
