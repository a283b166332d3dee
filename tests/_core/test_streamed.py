"""Losses whose rows are read again for every product: the same as with all rows in memory."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import sparsejax as sj
from sparsejax import losses
from sparsejax.losses import from_batches
from sparsejax.penalties import L21

rng = np.random.default_rng(0)
X = rng.standard_normal((50, 6)) + 1
Y = X[:, :3] - 3 * X[:, 3:] + rng.standard_normal((50, 3)) + 2
ONE_HOT = np.eye(3)[np.argmax(Y, axis=1)]
LOSSES = {
    "LogisticLoss": (Y > 0) * 1.0,
    "SoftmaxLoss": ONE_HOT,
    "HuberLoss": Y,
}


def batches(Y, size=17, X=X):
    return [(X[i : i + size], Y[i : i + size]) for i in range(0, len(X), size)]


def both(name, **options):
    loss, targets = getattr(losses, name), LOSSES[name]
    return loss(X, targets, **options), from_batches(loss, batches(targets), **options)


@pytest.mark.parametrize("name", LOSSES)
def test_is_the_loss_of_all_rows(name):
    """Value, gradient, gap, Hessian products; with weights and an intercept."""
    whole, read = both(name, intercept=True, weights=np.arange(50) % 3.0)
    W, V = rng.standard_normal((2, 6, 3)) / 5

    @jax.jit
    def facts(loss):
        gradient, along = jax.jvp(jax.grad(loss), (W,), (V,))
        gap = sj.duality_gap(sj.Problem(loss, L21(0.01)), W)
        return loss(W), gradient, along, gap, loss.intercept(W), loss.facts(W).rounding

    for ours, theirs in zip(facts(read), facts(whole), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_solution_and_folds():
    """By `fista` and by `newton_admm`, whose Hessian is one pass; folds as masks; a batch of problems."""
    whole, read = (sj.Problem(loss, L21(0.05)) for loss in both("LogisticLoss", intercept=True))
    reference = sj.solve(whole, tol=1e-10)
    assert sj.solvers.pick(read).function is sj.newton_admm
    for solver in (sj.newton_admm, sj.fista):
        solution = solver(read, tol=1e-9)
        assert solution.converged
        np.testing.assert_allclose(solution.objective, reference.objective, rtol=1e-8)
        np.testing.assert_allclose(solution.params, reference.params, atol=1e-4)
    grid = jax.vmap(L21)(jnp.array([0.2, 0.05]))
    a, b = (sj.cross_validate(problem, grid, folds=2, tol=1e-9) for problem in (read, whole))
    np.testing.assert_allclose(a.fold_loss, b.fold_loss, rtol=1e-6)


def test_a_batch_is_one_pass():
    passes = []

    def read():
        passes.append(1)
        return batches(Y)

    loss = from_batches(losses.HuberLoss, read)
    W = rng.standard_normal((4, 6, 3))
    wanted = jax.vmap(losses.HuberLoss(X, Y))(W)
    passes.clear()
    np.testing.assert_allclose(jax.vmap(loss)(W), wanted, rtol=1e-12)
    assert len(passes) == 1


def test_a_read_that_fails_is_no_solution():
    shrinking = [batches(Y), batches(Y), batches(Y), batches(Y), batches(Y)[:2]]
    loss = from_batches(losses.HuberLoss, lambda: shrinking.pop(0) if len(shrinking) > 1 else shrinking[0])
    assert np.isnan(loss(jnp.zeros((6, 3))))
    assert "there are 2 batches; at first there were 3" in str(loss.X.source.failed)


@pytest.mark.parametrize("mode", ["solve", "warm", "batch"])
@pytest.mark.parametrize("good", [5, 9, 14])
def test_reads_that_fail_within_a_solve(good, mode):
    """Before the first point, or at a step: W is NaN, not the start, and the warning names the error."""
    reads = iter(range(100_000))

    def read():
        if next(reads) > good:
            raise OSError("the disk is gone")
        return iter(batches(Y[:, 0] > 0))

    p = sj.Problem(from_batches(losses.LogisticLoss, read, intercept=True), sj.penalties.L1(0.01))
    with pytest.warns(sj.ConvergenceWarning, match="could not be read again: .*the disk is gone"):
        if mode == "solve":
            solution = sj.solve(p)
        else:
            solution = sj.path(p, jax.vmap(sj.penalties.L1)(np.array([0.1, 0.01])), mode=mode)
    # The first strength of a path may be solved before, or end at a point that was read whole.
    lost = np.isnan(solution.params).all(axis=-1)
    assert np.ravel(lost)[-1] and np.all(np.asarray(solution.status)[lost] == sj.solution.NON_FINITE)
    assert mode == "warm" or lost.all()


def test_an_error_names_the_read_that_failed():
    reads = iter(range(100_000))

    def read():
        if next(reads) > 5:
            raise OSError("the disk is gone")
        return iter(batches(Y[:, 0] > 0))

    p = sj.Problem(from_batches(losses.LogisticLoss, read), sj.penalties.L1(0.01))
    with pytest.raises(sj.ConvergenceError, match="the disk is gone") as error:
        sj.solve(p, throw=True)
    assert isinstance(error.value.__cause__, OSError)


def test_a_batch_that_is_not_finite_any_more():
    rows = batches(Y)
    loss = from_batches(losses.HuberLoss, lambda: iter(rows))
    rows[1] = (rows[1][0] * np.nan, rows[1][1])
    assert np.isnan(loss(jnp.zeros((6, 3))))
    assert "batch 1 is not finite" in str(loss.X.source.failed)


def generated():
    yield X, Y


ONCE = generated()
BAD = {
    "generator": (generated(), ValueError, "batches is a generator, which can be read once only"),
    "the same again": (lambda: ONCE, ValueError, "batches is a function that gives the same iterator"),
    "number": (3, TypeError, "or a function that reads them, got int"),
    "function of a number": (lambda: 3, TypeError, "got a function that returned int"),
    "empty": ([], ValueError, "batches is empty"),
    "no pair": ([X], TypeError, "batch 0 must be a pair"),
    "width": ([(X, Y), (X[:, :5], Y)], ValueError, "batch 1: X has 5 columns"),
    "NaN": ([(X, Y), (X * np.nan, Y)], ValueError, "X of batch 1 has values that are NaN"),
    "sparse": ([(scipy.sparse.csr_matrix(X), Y)], TypeError, "X of batch 0 is a sparse"),
    "labels": ([(X, Y)], ValueError, "Y must hold 0 and 1 only"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_batches(name):
    given, error, message = BAD[name]
    with pytest.raises(error, match=message):
        from_batches(losses.LogisticLoss, given)


def test_no_class():
    message = r"loss must be a class such as LogisticLoss.*risk sets hold rows of all batches"
    with pytest.raises(TypeError, match=message):
        from_batches(losses.CoxLoss, batches(Y))


def test_a_list_is_pickled():
    """With the batches; a function that reads them is pickled if it can be."""
    loss = both("LogisticLoss", intercept=True)[1]
    again = pickle.loads(pickle.dumps(loss))
    W = rng.standard_normal((6, 3)) / 5
    np.testing.assert_array_equal(again(W), loss(W))


@pytest.mark.parametrize(
    "W", [np.array([1, 0, 2, -1]), np.array([True, False, True, True]), np.float32([0.3, 0, 1, 2])]
)
def test_w_of_another_dtype_is_as_with_a_dense_x(W):
    """The product is computed in the dtype that X and W have together, not in the dtype of W."""
    X = np.random.default_rng(0).standard_normal((20, 4))
    y = X[:, 0]
    dense = losses.SquaredLoss(X, y, intercept=True)
    streamed = losses.from_batches(losses.SquaredLoss, [(X[:9], y[:9]), (X[9:], y[9:])], intercept=True)
    with jax.numpy_dtype_promotion("standard"):
        for loss in (streamed, losses.SquaredLoss(scipy.sparse.csr_matrix(X), y, intercept=True)):
            np.testing.assert_allclose(loss(W), dense(W), rtol=1e-12)
            np.testing.assert_allclose(loss.intercept(W), dense.intercept(W), rtol=1e-12)
