"""Predictions on new rows, and the messages that lead a user from a mistake to the right call."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from jax.experimental import sparse
from scipy.special import expit, softmax

import sparsejax as sj
from sparsejax import losses, penalties

RNG = np.random.default_rng(0)
X, NEW = RNG.standard_normal((30, 5)), RNG.standard_normal((7, 5))
y = X[:, 0] + 0.1 * RNG.standard_normal(30)
CODES = np.digitize(X[:, 0], [-0.5, 0.5])
MEANS = {
    "squared": (lambda **o: losses.SquaredLoss(X, y, **o), lambda H: H),
    "several": (lambda **o: losses.SquaredLoss(X, np.stack([y, X[:, 1]], axis=1), **o), lambda H: H),
    "huber": (lambda **o: losses.HuberLoss(X, y, **o), lambda H: H),
    "logistic": (lambda **o: losses.LogisticLoss(X, y > 0, **o), expit),
    "poisson": (lambda **o: losses.PoissonLoss(X, CODES, **o), np.exp),
    "softmax": (lambda **o: losses.SoftmaxLoss(X, np.eye(3)[CODES], **o), lambda H: softmax(H, axis=1)),
}


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("name", MEANS)
def test_predict(name, intercept):
    """The mean of X W + b, computed by hand; also in jit, for sparse X and on the rows of the loss itself."""
    make, mean = MEANS[name]
    loss = make(intercept=intercept)
    problem = sj.Problem(loss, penalties.L1(0.05))
    solution = sj.solve(problem)
    W, b = np.asarray(solution.params), np.asarray(loss.intercept(solution.params))
    np.testing.assert_allclose(sj.predict(solution, problem, NEW, linear=True), NEW @ W + b, atol=1e-12)
    found = sj.predict(solution, problem, NEW)
    np.testing.assert_allclose(found, mean(NEW @ W + b), atol=1e-12)
    np.testing.assert_allclose(jax.jit(sj.predict)(solution, problem, NEW), found, atol=1e-12)
    np.testing.assert_allclose(sj.predict(solution, problem, scipy.sparse.csr_array(NEW)), found, atol=1e-12)
    own = loss.predictions(solution.params, loss.intercept(solution.params)).mean
    np.testing.assert_allclose(sj.predict(solution, problem, X), own, atol=1e-12)


def test_predict_of_losses_without_a_mean():
    """Cox: the logarithm of the relative risk; a Gram matrix: XW; batches: XW + b."""
    squared = losses.SquaredLoss(X, y, intercept=True)
    batches = losses.SquaredLoss.from_batches([(X[:20], y[:20]), (X[20:], y[20:])], intercept=True)
    cox = losses.CoxLoss(X, 1 + np.arange(len(X)), y > 0)
    for loss in (cox, losses.SquaredLoss(X, y).gram(), batches):
        problem = sj.Problem(loss, penalties.L1(0.02))
        solution = sj.solve(problem)
        b = squared.intercept(solution.params) if loss is batches else 0.0
        for linear in (False, True):
            found = sj.predict(solution, problem, NEW, linear=linear)
            np.testing.assert_allclose(found, NEW @ solution.params + b, atol=1e-12)
        assert np.any(solution.params != 0)


def test_predict_of_a_path_of_a_sum_and_of_targets():
    problem = sj.Problem(losses.SquaredLoss(X, y, intercept=True), penalties.L1(0.05))
    solutions = sj.path(problem, jax.vmap(penalties.L1)(jnp.array([0.2, 0.1])))
    each = jax.vmap(lambda one: sj.predict(one, problem, NEW))(solutions)
    for i in range(2):
        np.testing.assert_allclose(each[i], sj.predict(solutions[i], problem, NEW), atol=1e-12)
    graph = losses.GraphLaplacian(np.ones((2, 2)), 0.1)
    both = losses.SquaredLoss(X, np.stack([y, X[:, 1]], axis=1), intercept=True) + graph
    problem = sj.Problem(both, penalties.L21(0.05))
    solution = sj.solve(problem)
    expected = NEW @ solution.params + both.intercept(solution.params)[None]
    np.testing.assert_allclose(sj.predict(solution, problem, NEW), expected, atol=1e-12)

    def of(strength):
        problem = sj.Problem(losses.SquaredLoss(X, y), penalties.L1(strength))
        return sj.predict(sj.solve(problem, tol=1e-12), problem, NEW)[0]

    # only the first weight is not 0: it is (x'y/n - strength) / (x'x/n)
    slope = -30 / (X[:, 0] @ X[:, 0]) * NEW[0, 0]
    np.testing.assert_allclose(jax.grad(of)(0.1), slope, rtol=1e-9)


PROBLEM = sj.Problem(losses.SquaredLoss(X, y), penalties.L1(0.1))
TEXTS = np.where(y > 0, "yes", "no")
LOSS, PENALTY, HALF = PROBLEM.smooth, PROBLEM.penalty, [0.2, 0.1]
ADVICE = {
    "list of strengths": (
        lambda: sj.path(PROBLEM, HALF),
        r"Write jax\.vmap\(sj\.penalties\.L1\)\(strengths\)",
    ),
    "cross-validation": (lambda: sj.cross_validate(PROBLEM, HALF), r"jax\.vmap\(sj\.penalties\.L1\)"),
    "two strengths": (
        lambda: sj.path(PROBLEM.replace(penalty=penalties.ExclusiveL21(0.1, 0.1)), HALF),
        r"jax\.vmap\(sj\.penalties\.ExclusiveL21\)\(alpha, beta\)",
    ),
    "no problem": (lambda: sj.solve(LOSS, PENALTY), r"write solve\(sparsejax\.Problem\(loss, penalty\)"),
    "lambda_max": (lambda: sj.lambda_max(LOSS), r"write lambda_max\(sparsejax\.Problem"),
    "labels 1 and 2": (lambda: losses.LogisticLoss(X, 1 + (y > 0)), "of 1 and 2: Y - 1"),
    "text": (lambda: losses.LogisticLoss(X, TEXTS), r"Y = \(labels == one_of_them\)"),
    "objects": (lambda: losses.SquaredLoss(X, TEXTS.astype(object)), "sparsejax.sklearn take labels"),
    "intercept": (lambda: sj.solve(PROBLEM).intercept, r"problem\.smooth\.intercept\(solution\.params\)"),
    "coef_": (lambda: sj.solve(PROBLEM).coef_, r"the weights are solution\.params"),
    "no such name": (lambda: sj.solve(PROBLEM).answer, "'Solution' object has no attribute 'answer'"),
    "predict of X": (lambda: sj.predict(X, PROBLEM, NEW), "solution must be a sparsejax.Solution"),
    "predict columns": (lambda: sj.predict(sj.solve(PROBLEM), PROBLEM, NEW[:, :3]), "X has 3 columns"),
    "predict a batch": (
        lambda: sj.predict(sj.path(PROBLEM, jax.vmap(penalties.L1)(jnp.array(HALF))), PROBLEM, NEW),
        r"jax\.vmap\(lambda one: sj\.predict",
    ),
    "predict a function": (
        lambda: sj.predict(sj.solve(PROBLEM), sj.Problem(lambda W: jnp.sum(W**2), PENALTY), NEW),
        r"write X @ solution\.params",
    ),
}


@pytest.mark.parametrize("case", ADVICE)
def test_advice(case):
    call, message = ADVICE[case]
    with pytest.raises((TypeError, ValueError, AttributeError), match=message):
        call()


PRECISION = """
import warnings, jax, numpy as np, sparsejax as sj
X = np.eye(4, 3)
def told(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in caught if "64-bit" in str(w.message)]
small = X.astype(np.float32)
make = lambda X: sj.losses.SquaredLoss(X, np.ones(4))
assert not told(lambda: make(small)) and not told(lambda: make(X.astype(int)))
assert not told(lambda: jax.jit(lambda X: make(X)(np.zeros(3, np.float32)))(X))
assert not told(lambda: jax.jit(lambda: make(X)(np.zeros(3, np.float32)))())
first = told(lambda: make(X))
assert len(first) == 1 and 'jax.config.update("jax_enable_x64", True)' in first[0], first
assert not told(lambda: make(X))
try:
    make(1e300 * X)
except ValueError as error:
    assert "too large for float32" in str(error) and "jax_enable_x64" in str(error)
else:
    raise AssertionError("a cast to infinity was not refused")
problem = sj.Problem(make(X), sj.penalties.L1(0.1))
stalled = sj.solve(problem)._replace(status=np.int32(3))
assert 'jax.config.update("jax_enable_x64", True)' in stalled.message, stalled.message
jax.config.update("jax_enable_x64", True)
assert not told(lambda: make(X))
precise = sj.solve(sj.Problem(make(X), sj.penalties.L1(0.1)))._replace(status=np.int32(3))
assert "float64" not in precise.message, precise.message
"""


def test_a_cast_to_float32_is_told_once():
    """In a process of its own: not for float32, not in jit; and no advice to use float64 to who does."""
    done = subprocess.run([sys.executable, "-c", PRECISION], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_complex_sparse_x_is_refused():
    problem = sj.Problem(losses.SquaredLoss(X, y), penalties.L1(0.1))
    with pytest.raises(TypeError, match="complex"):
        sj.predict(sj.solve(problem), problem, scipy.sparse.csr_matrix(NEW * (1 + 1j)))


def test_a_bcsr_is_sparse_too():
    X = np.random.default_rng(0).standard_normal((20, 4))
    problem = sj.Problem(sj.losses.SquaredLoss(X, X[:, 0], intercept=True), sj.penalties.L1(0.1))
    solution = sj.solve(problem)
    found = sj.predict(solution, problem, sparse.BCSR.fromdense(X))
    np.testing.assert_allclose(found, sj.predict(solution, problem, X), rtol=1e-12)


def test_rows_too_large_for_the_dtype_are_refused():
    X = np.random.default_rng(0).standard_normal((20, 4))
    problem = sj.Problem(sj.losses.SquaredLoss(np.float32(X), np.float32(X[:, 0])), sj.penalties.L1(0.1))
    solution = sj.solve(problem)
    X[0, 0] = 1e300
    with pytest.raises(ValueError, match="too large for float32"):
        sj.predict(solution, problem, X)


def test_predict_refuses_a_sparse_format_as_the_losses_do():
    X = np.eye(4, dtype=np.float32)
    problem = sj.Problem(sj.losses.SquaredLoss(X, X[:, 0]), sj.penalties.L1(0.01))
    solution = sj.solve(problem)
    for kind in (sparse.COO, sparse.CSR, sparse.CSC):
        with pytest.raises(TypeError, match=r"BCOO, BCSR or a matrix of scipy.sparse is needed"):
            sj.predict(solution, problem, kind.fromdense(jnp.asarray(X)))


def test_the_warning_of_a_cast_in_predict_names_the_users_line(monkeypatch):
    monkeypatch.setattr("sparsejax._core.precision._told", False)
    monkeypatch.setattr("sparsejax._core.precision.is_cast", lambda dtype: dtype == np.float64)
    X = np.eye(4, dtype=np.float32)
    problem = sj.Problem(sj.losses.SquaredLoss(X, X[:, 0]), sj.penalties.L1(0.01))
    solution = sj.solve(problem)
    with pytest.warns(UserWarning, match="X is float64") as told:
        sj.predict(solution, problem, X.astype(float))
    assert told[0].filename == __file__
