"""Classes that compete: values, intercepts, the conjugate on the simplex, and what the columns share."""

import conic
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import K, data, problem, smooth, weights
from loss_cases import classes
from peers import L1_OF_SCIKIT_LEARN
from penalty_cases import D
from scipy.special import logsumexp, softmax
from sklearn.linear_model import LogisticRegression

import sparsejax as sj
from sparsejax import groups, penalties
from sparsejax.losses import LogisticLoss, SoftmaxLoss, rows_alone
from sparsejax.losses._intercept import Classes, balance_classes

X, H = data()
Y = classes(H)
FREE = groups.from_lists([[0, 1], [1, 4]], D)


@jax.jit
def facts(loss, W):
    return *jax.value_and_grad(loss)(W), loss.intercept(W)


@jax.jit
def hessian_and_product(loss, W, V):
    """The Hessian as `newton_admm` has it, and times V by differentiation."""
    return sj.losses.hessian(loss, W)[0], jax.jvp(jax.grad(loss), (W,), (V,))[1]


@pytest.mark.parametrize("loss", ["SoftmaxLoss", "PoissonLoss", "HuberLoss", "QuantileLoss"])
@pytest.mark.parametrize("penalty", ["L1", "L21"])
def test_against_the_conic_solver(loss, penalty):
    """With weights by row and an intercept; with exclusive l2,1 that is in test_reference.py."""
    p = problem(loss, penalty)
    best, s = conic.minimise(p), sj.solve(p, tol=1e-9)
    assert bool(s.converged) and 0 <= float(s.gap) <= 1e-9
    objective = conic.objective(p, s.params)
    np.testing.assert_allclose(float(s.objective), objective, rtol=1e-13)
    np.testing.assert_allclose(objective, best.objective, rtol=1e-8)
    np.testing.assert_allclose(s.params, best.params, atol=1e-3)
    zeros = (np.asarray(s.params) == 0).mean()
    assert 0.05 < zeros < 0.95 or penalty == "L21"


def test_two_classes_are_one_label(rng):
    """softmax of (0, h) is the sigmoid of h."""
    label = (H[:, 0] > np.median(H[:, 0])).astype(float)
    two = SoftmaxLoss(X, np.stack([1 - label, label], axis=1), weights=weights(), intercept=True)
    one = LogisticLoss(X, label, weights=weights(), intercept=True)
    w = rng.standard_normal(D)
    value, gradient, b = facts(two, np.stack([0 * w, w], axis=1))
    other, other_gradient, other_b = facts(one, w)
    np.testing.assert_allclose(value, other, rtol=1e-13)
    np.testing.assert_allclose(gradient, np.stack([-other_gradient, other_gradient], axis=1), atol=1e-13)
    np.testing.assert_allclose(b, np.array([-other_b, other_b]) / 2, atol=1e-10)


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e2, 1e4])
def test_intercept_is_stationary_has_the_sum_0_and_is_free_of_shifts(factor):
    """Up to predictions of thousands, where almost every probability is 0 or 1."""
    W = factor * np.random.default_rng(0).standard_normal((D, K))
    w = weights()
    value, gradient, b = facts(smooth("SoftmaxLoss"), W)
    P = softmax(X @ W + np.asarray(b), axis=1)
    np.testing.assert_allclose(w @ (P - Y), 0, atol=1e-12 * max(1, factor))
    np.testing.assert_allclose(np.sum(b), 0, atol=1e-12 * max(1, factor))
    assert np.isfinite(gradient).all()
    moved = smooth("SoftmaxLoss")._replace(X=jnp.asarray(X + 1))
    np.testing.assert_allclose(facts(moved, W)[0], value, rtol=1e-12)
    # and a constant added to the rows of H changes nothing
    np.testing.assert_allclose(facts(smooth("SoftmaxLoss"), W + 3.0)[0], value, rtol=1e-12)


def test_predictions_of_hundreds():
    """No overflow, no NaN: the largest prediction is taken out."""
    loss = SoftmaxLoss(X, Y)
    for size in (1e2, 1e3, 1e150):
        W = size * np.random.default_rng(1).standard_normal((D, K))
        value, gradient, _ = facts(loss, W)
        F = X @ W
        np.testing.assert_allclose(value, np.mean(logsumexp(F, axis=1) - np.sum(Y * F, axis=1)), rtol=1e-13)
        np.testing.assert_allclose(gradient, X.T @ (softmax(F, axis=1) - Y) / len(X), atol=1e-12)


def test_majorizer_bounds_the_hessian(rng):
    loss = smooth("SoftmaxLoss")
    A = np.asarray(loss.quadratic_model().majorizer())
    bound, hessian_at = np.kron(A.T @ A, np.eye(K)), jax.jit(jax.hessian(loss))
    for factor in (0.0, 1.0):
        W = factor * rng.standard_normal((D, K))
        hessian = np.asarray(hessian_at(W)).reshape(D * K, D * K)
        assert np.linalg.eigvalsh(bound - hessian).min() >= -1e-12


# ------------------------------------------------------------------ the conjugate


def test_divergence_is_that_of_the_formula(rng):
    """Kullback-Leibler in extended precision, from changes that cancel to those near the border."""
    loss, big = SoftmaxLoss(X, Y), np.longdouble
    H = 3 * rng.standard_normal(Y.shape)
    h = H.astype(big)
    log_p = h - np.log(np.exp(h).sum(axis=1, keepdims=True))
    p = np.exp(log_p)
    first = loss.derivatives(H)[0]
    divergence = jax.jit(loss.divergence)
    for size in (1e-6, 1e-3, 0.008, 0.012, 0.9):
        change = size * p * rng.uniform(-0.5, 0.5, p.shape)
        change = (change - p * change.sum(axis=1, keepdims=True)).astype(float)
        q = p + change
        expected = (q * np.log1p(change / p) - change).astype(float)
        np.testing.assert_allclose(divergence(H, first, change), expected, rtol=1e-10)
    # and that is phi(h) + phi*(u) - <u, h>, with the entropy as the conjugate
    u = first + change
    by_parts = loss.entries(H)[:, 0] + np.sum((u + Y) * np.log(u + Y) - u * H, axis=1)
    np.testing.assert_allclose(np.sum(divergence(H, first, change), axis=1), by_parts, rtol=1e-10)
    # a class whose probability falls to 0 is inside, a negative one or another sum outside
    to_targets = -SoftmaxLoss(X, np.eye(K)[np.arange(len(X)) % K]).derivatives(H)[0]
    assert np.isfinite(divergence(H, first, to_targets)).all()
    assert np.isinf(np.sum(divergence(H, first, 1.01 * to_targets), axis=1)).all()
    assert np.isinf(divergence(H, first, np.full_like(H, 1e-10))).all()


def test_gap_with_unpenalised_features():
    """The projection keeps the sums of rows, and the gap bounds the excess."""
    p = sj.Problem(smooth("SoftmaxLoss"), penalties.ExclusiveGroupL21(0.05, FREE))
    best, rng = sj.solve(p, tol=1e-10), np.random.default_rng(0)
    assert bool(best.converged) and 0 <= float(best.gap) <= 1e-10
    for radius, gap, excess, scale in conic.near(p, best.params, best.objective, (1e-6, 1e-3, 1e-1), rng):
        assert gap * scale >= excess * (1 - 1e-6)
        assert gap <= radius or radius > 1e-5  # infinite where it leaves the simplex


def test_a_class_without_a_row_where_values_are_not_looked_at():
    """As in a fold: its probability is 0, and the problem is that of the other classes."""
    one_hot = np.eye(K)[np.arange(len(X)) % (K - 1)]
    p = problem("SoftmaxLoss", "L21")
    s = sj.solve(p.replace(smooth=p.smooth._replace(Y=jnp.asarray(one_hot))), tol=1e-9)
    others = SoftmaxLoss(X, one_hot[:, :-1], weights=weights(), intercept=True)
    best = conic.minimise(p.replace(smooth=others))
    assert bool(s.converged)
    np.testing.assert_allclose(s.objective, best.objective, rtol=1e-8)
    np.testing.assert_allclose(s.params, np.c_[best.params, np.zeros(D)], atol=1e-3)
    b = np.asarray(facts(p.smooth._replace(Y=jnp.asarray(one_hot)), s.params)[2])
    np.testing.assert_allclose(b[:-1].sum(), 0, atol=1e-12)
    assert np.isfinite(b).all() and (softmax(X @ np.asarray(s.params) + b, axis=1)[:, -1] == 0).all()


def test_intercepts_by_steps(rng):
    """A few steps of `near` find the best intercept; value and derivative are then those of the loss."""
    loss, W = problem("SoftmaxLoss", "L21").smooth, rng.standard_normal((D, K))
    value, gradient, best = facts(loss, W)
    b = jnp.zeros(K)
    for _ in range(8):
        near = loss.near(loss.X @ W, b)
        b = near.b
    np.testing.assert_allclose(near.value, value, rtol=1e-13)
    np.testing.assert_allclose(loss.X.T @ near.slopes, gradient, atol=1e-13)
    np.testing.assert_allclose(b, best, atol=1e-10)
    np.testing.assert_allclose(near.H, loss.X @ W + b[None], atol=1e-13)


def test_intercepts_end_where_rounding_errors_add_up(monkeypatch):
    """Where all rows have the same predictions, no step has a gradient of a few eps: the loop ends too."""
    steps, imbalance = [], Classes.imbalance
    monkeypatch.setattr(Classes, "imbalance", lambda *a: steps.append(1) or imbalance(*a))
    counts = np.random.default_rng(0).integers(60, 90, 20) * 1.0
    classes = Classes(jnp.zeros((int(counts.sum()), 20)), jnp.ones(int(counts.sum())), jnp.asarray(counts))
    with jax.disable_jit():
        b = balance_classes(classes)
    assert len(steps) <= 10
    np.testing.assert_allclose(b, np.log(counts) - np.log(counts).mean(), atol=1e-12)


# ------------------------------------------------------------------ with the rest of the library


def test_cross_validation():
    """The held-out loss of each fold by hand, with the intercept of the fit."""
    p = sj.Problem(SoftmaxLoss(X, Y, intercept=True), penalties.L21(0.1))
    folds = np.arange(len(X)) // 2 % 2
    tried = sj.cross_validate(p, jax.vmap(penalties.L21)(np.array([0.3, 0.1])), folds=folds, tol=1e-10)
    assert tried.converged.all() and tried.fold_loss.shape == (2, 2)
    out = folds == 1
    train, test = (SoftmaxLoss(X[rows], Y[rows], intercept=True) for rows in (~out, out))
    fit = conic.minimise(p.replace(smooth=train))
    F = X[out] @ fit.params + fit.intercept
    by_hand = np.mean(logsumexp(F, axis=1) - np.sum(Y[out] * F, axis=1))
    np.testing.assert_allclose(tried.fold_loss[1, 1], by_hand, rtol=1e-3)
    np.testing.assert_allclose(test.evaluate(fit.params, fit.intercept), by_hand, rtol=1e-12)


@pytest.mark.optimised
def test_multinomial_regression_of_scikit_learn():
    """Their C is 1/(n strength); saga leaves the intercept unpenalised."""
    X, F = data(n=30, k=3)
    label = F.argmax(axis=1)
    theirs = LogisticRegression(
        C=1 / (len(X) * 0.03),
        solver="saga",
        tol=1e-13,
        max_iter=200_000,
        random_state=0,
        **L1_OF_SCIKIT_LEARN,
    ).fit(X, label)
    p = sj.Problem(SoftmaxLoss(X, np.eye(3)[label], intercept=True), penalties.L1(0.03))
    ours = sj.solve(p, tol=1e-13)
    assert 0 < np.count_nonzero(theirs.coef_) < theirs.coef_.size
    np.testing.assert_allclose(ours.objective, conic.objective(p, theirs.coef_.T), rtol=1e-10)
    np.testing.assert_allclose(ours.params, theirs.coef_.T, atol=1e-5)


HALF = np.full((8, 2), 0.5)
SMALL = np.random.default_rng(0).standard_normal((8, 4))
ONE = np.eye(3)[np.zeros(8, int)]
BAD = {
    "labels": (lambda: SoftmaxLoss(SMALL, np.arange(8)), r"Y has shape \(8,\).*one_hot\(labels, k\)"),
    "one column": (lambda: SoftmaxLoss(SMALL, np.ones((8, 1))), r"Y has shape \(8, 1\).*k >= 2"),
    "sum": (lambda: SoftmaxLoss(SMALL, HALF * np.r_[[[1]] * 5, [[1.001]] * 3]), "row 5 of Y sums to 1.00"),
    "negative": (lambda: SoftmaxLoss(SMALL, HALF + np.array([[1, -1]])), "row 0 of Y has -0.5"),
    "by entry": (lambda: SoftmaxLoss(SMALL, HALF, weights=np.ones((8, 2))), r"weights has shape .*by row"),
    "one class": (lambda: SoftmaxLoss(SMALL, ONE, intercept=True), "Y has one class only.*intercept=False"),
    "absent": (
        lambda: SoftmaxLoss(SMALL, np.eye(3)[np.arange(8) % 2], intercept=True),
        "no row of Y has class 2.*intercept=False",
    ),
    "left out": (
        lambda: SoftmaxLoss(SMALL, np.eye(2)[[0, *[1] * 7]], weights=[0, *[1] * 7], intercept=True),
        "Y has one class only",
    ),
    "labels under jit": (
        lambda: jax.jit(lambda y: SoftmaxLoss(SMALL, y).Y)(np.ones(8)),
        r"Y has shape \(8,\)",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_is_refused(name):
    call, pattern = BAD[name]
    with pytest.raises(ValueError, match=pattern):
        call()


def test_what_needs_no_intercept_may_have_one_class():
    assert float(SoftmaxLoss(SMALL, ONE)(jnp.zeros((4, 3)))) == pytest.approx(np.log(3))
    # within the rounding of a normalisation, in float32 too
    p = np.random.default_rng(0).random((8, 50)).astype(np.float32)
    SoftmaxLoss(SMALL.astype(np.float32), p / p.sum(axis=1, keepdims=True))


def test_newton_for_one_column_does_not_take_it():
    with pytest.raises(TypeError, match="prox_newton needs"):
        sj.prox_newton(problem("SoftmaxLoss", "L21"))


@pytest.mark.parametrize("options", [{}, {"intercept": True}, {"intercept": True, "weights": True}])
def test_hessian(options):
    """All classes in one block, the best intercepts eliminated: by finite products, and symmetric."""
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((20, 3)), np.eye(4)[rng.integers(0, 4, 20)]
    given = options | ({"weights": rng.uniform(0.5, 2, 20)} if "weights" in options else {})
    loss, W = sj.losses.SoftmaxLoss(X, Y, **given), jnp.asarray(rng.standard_normal((3, 4)))
    for _ in range(3):
        V = rng.standard_normal((3, 4))
        H, product = map(np.asarray, hessian_and_product(loss, W, V))
        np.testing.assert_allclose((H @ V.T.ravel()).reshape(4, 3).T, product, atol=1e-13)


def test_the_gradient_at_zero_of_many_rows():
    """jaxlib 0.10.2 makes a program that reads what was never written of a product with known zeros."""
    n, d, k = 4000, 200, 5
    X, Y = np.random.default_rng(0).standard_normal((n, d)), np.eye(k)[np.arange(n) % k]
    expected = np.linalg.norm(X.T @ (1 / k - Y), axis=1).max() / n
    problem = sj.Problem(sj.losses.SoftmaxLoss(X, Y), sj.penalties.L21(0.1))
    for _ in range(4):
        used = [np.full(size << 12, np.nan) for size in range(1, 40)]
        del used  # this memory is what comes next
        np.testing.assert_allclose(sj.lambda_max(problem), expected, rtol=1e-12)


def test_rows_that_fill_up_a_copy_leave_the_gap_of_a_softmax():
    X = np.random.default_rng(0).standard_normal((10, 4))
    loss = SoftmaxLoss(X, np.eye(3)[np.arange(10) % 3], intercept=True)
    weights = jnp.asarray(np.arange(10) < 6, float)
    gaps = [
        sj.duality_gap(sj.Problem(f, penalties.L21(0.05)), np.eye(4, 3))
        for f in (rows_alone(loss, weights, 8), loss.reweighted(weights))
    ]
    np.testing.assert_allclose(gaps[0], gaps[1], rtol=1e-12)
