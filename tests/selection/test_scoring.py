"""Scores of held-out rows against scikit-learn, refits, and the choice they make."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import K, data, problem
from loss_cases import LOSSES
from penalty_cases import D
from sklearn.metrics import accuracy_score, f1_score, r2_score, roc_auc_score

import sparsejax as sj
from sparsejax import losses, penalties
from sparsejax.selection.scoring import SCORES, score_of

ROWS = 40
W0 = np.random.default_rng(5).standard_normal((D, K))
HELD_OUT = np.arange(ROWS) % 3 == 0


def smooth_of(loss, Y, **options):
    X, _ = data(n=ROWS)
    return losses.SquaredLoss(X, Y, **options) if loss is None else loss(X, Y, **options)


def scored(scoring, smooth, W=W0):
    """On the rows held out, with weights that differ."""
    w = np.linspace(1, 2, ROWS) * HELD_OUT
    found = score_of(scoring, smooth, jnp.asarray(W), smooth.intercept(jnp.asarray(W)), jnp.asarray(w))
    H = np.asarray(smooth.X) @ W + np.asarray(smooth.intercept(jnp.asarray(W)))
    return float(found), H[HELD_OUT], w[HELD_OUT]


@pytest.mark.parametrize("name", ["LogisticLoss", "SquaredHingeLoss", "SquaredLoss"])
def test_scores_of_labels(name):
    """Several labels a row: of each on its own, at probability 1/2, or 0 between -1 and 1."""
    case = LOSSES["LogisticLoss" if name == "SquaredLoss" else name]
    Y = case.targets(data(n=ROWS)[1])
    smooth = smooth_of(getattr(losses, name), Y, intercept=True)
    true = (Y > 0)[HELD_OUT]
    assert (true.sum(1) > 1).any()
    for scoring, expected in {
        "accuracy": accuracy_score,
        "f1": lambda t, p, sample_weight: f1_score(t, p, average="macro", sample_weight=sample_weight),
        "f1_micro": lambda t, p, sample_weight: f1_score(t, p, average="micro", sample_weight=sample_weight),
    }.items():
        found, H, w = scored(scoring, smooth)
        predicted = (0.5 if name == "SquaredLoss" else 0) < H
        np.testing.assert_allclose(found, expected(true, predicted, sample_weight=w), rtol=1e-12)
    found, H, w = scored("roc_auc", smooth)
    np.testing.assert_allclose(found, roc_auc_score(true, H, sample_weight=w), rtol=1e-12)


def test_scores_of_classes():
    """One label a row: the largest prediction."""
    y = np.arange(ROWS) % K
    smooth = smooth_of(None, np.eye(K)[y], intercept=True)
    found, H, w = scored("accuracy", smooth)
    np.testing.assert_allclose(found, accuracy_score(y[HELD_OUT], H.argmax(1), sample_weight=w), rtol=1e-12)
    found, H, w = scored("f1", smooth)
    options = {"labels": np.arange(K), "average": "macro", "zero_division": 0, "sample_weight": w}
    expected = f1_score(y[HELD_OUT], H.argmax(1), **options)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_scores_of_numbers():
    Y = data(n=ROWS)[1]
    found, H, w = scored("r2", smooth_of(None, Y, intercept=True))
    np.testing.assert_allclose(found, r2_score(Y[HELD_OUT], H, sample_weight=w), rtol=1e-12)
    found, _, w = scored(lambda Y, P, w: -jnp.sum(w[:, None] * jnp.abs(Y - P)), smooth_of(None, Y))
    np.testing.assert_allclose(
        found, -np.sum(w[:, None] * abs(Y - np.asarray(data(n=ROWS)[0]) @ W0)[HELD_OUT])
    )
    # a function sees what is expected of Y: probabilities
    zero_one = LOSSES["LogisticLoss"].targets(Y)
    brier = lambda Y, P, w: -jnp.sum(w[:, None] * (Y - P) ** 2)
    found, H, w = scored(brier, smooth_of(losses.LogisticLoss, zero_one))
    np.testing.assert_allclose(found, -np.sum(w[:, None] * (zero_one[HELD_OUT] - 1 / (1 + np.exp(-H))) ** 2))


def small_problem():
    X, H = data(n=30, k=None)
    return sj.Problem(losses.LogisticLoss(X, (np.median(H) < H) * 1.0, intercept=True), penalties.L1(0.1))


def test_cross_validation_by_auc():
    """Greater is better; the folds' scores are those of a loop; the refit is of all rows at the best."""
    known = small_problem().smooth
    X, Y = np.asarray(known.X), np.asarray(known.Y)
    p = sj.Problem(losses.SquaredLoss(X, Y, intercept=True), penalties.L1(0.1))
    alphas = np.array([0.3, 0.1, 0.03, 0.001])
    options = {"folds": 3, "scoring": "roc_auc", "refit": True, "mode": "batch", "tol": 1e-10}
    cv = sj.cross_validate(p, jax.vmap(penalties.L1)(alphas), **options)
    expected = np.empty((3, 4))
    for fold in range(3):
        out = np.arange(30) % 3 == fold
        train = losses.SquaredLoss(X[~out], Y[~out], intercept=True)
        for i, alpha in enumerate(alphas):
            W = sj.solve(sj.Problem(train, penalties.L1(alpha)), tol=1e-10).params
            expected[fold, i] = roc_auc_score(Y[out], X[out] @ W)
    np.testing.assert_allclose(cv.score, expected, rtol=1e-12)
    assert int(cv.index) == expected.mean(0).argmax()
    assert float(cv.best.strength) == alphas[int(cv.index)]
    np.testing.assert_allclose(cv.standard_error, expected.std(0, ddof=1) / 3**0.5, rtol=1e-10)
    whole = sj.solve(p.replace(penalty=cv.best), tol=1e-10)
    np.testing.assert_allclose(cv.solution.params, whole.params, atol=1e-7)
    np.testing.assert_allclose(cv.intercept, p.smooth.intercept(whole.params), atol=1e-7)


def negative_error(Y, P, weights):
    return -jnp.sum(weights[:, None] * jnp.abs(Y - P)) / jnp.sum(weights)


def test_two_axes_of_strengths():
    """A grid of two strengths is the same as its list; indices are tuples; under jit too."""
    p = problem("SquaredLoss", "ExclusiveL21")
    make = lambda a, b: penalties.ExclusiveL21(jnp.full(D, a), jnp.full(D, b))
    alphas, betas = np.array([0.5, 0.1, 0.02]), np.array([0.1, 0.01])
    grid = jax.vmap(lambda a: jax.vmap(lambda b: make(a, b))(betas))(alphas)
    flat = jax.tree.map(lambda leaf: leaf.reshape(6, *leaf.shape[2:]), grid)
    options = {"folds": 3, "scoring": negative_error, "refit": True, "tol": 1e-9}
    cv, listed = (sj.cross_validate(p, strengths, **options) for strengths in (grid, flat))
    for name in ("fold_loss", "score", "num_nonzero", "gap", "converged"):
        assert getattr(cv, name).shape == (3, 3, 2)
        np.testing.assert_array_equal(getattr(cv, name).reshape(3, 6), getattr(listed, name))
    assert cv.loss.shape == cv.standard_error.shape == (3, 2)
    for index, one in ((cv.index, listed.index), (cv.index_1se, listed.index_1se)):
        assert np.ravel_multi_index([int(i) for i in index], (3, 2)) == int(one)
    for name in ("best", "best_1se"):
        two, one = getattr(cv, name), getattr(listed, name)
        np.testing.assert_array_equal(two.alpha, one.alpha)
        np.testing.assert_array_equal(two.beta, one.beta)
    assert float(cv.loss[cv.index]) == float(listed.loss[listed.index])
    np.testing.assert_array_equal(cv.solution.params, listed.solution.params)
    jitted = jax.jit(lambda p, grid: sj.cross_validate(p, grid, **options))(p, grid)
    np.testing.assert_allclose(jitted.score, cv.score, rtol=1e-6)
    np.testing.assert_allclose(jitted.solution.params, cv.solution.params, atol=1e-5)


def test_equal_scores_choose_the_first():
    """Shares of the same rows in another order differ by rounding."""
    score = jnp.array([[0.1, 0.3], [0.3, 0.2], [0.2, 0.1]])
    for shares in (score, score[:, ::-1]):
        none = jnp.zeros(shares.shape)
        found = sj.CrossValidation(jax.vmap(penalties.L1)(jnp.ones(2)), -shares, none, none, none, shares)
        assert int(found.index) == 0


def test_no_finite_score_is_said():
    """One class in every fold."""
    X, _ = data(n=30)
    y = np.repeat([0.0, 1.0], 15)
    p = sj.Problem(losses.LogisticLoss(X, y), penalties.L1(0.1))
    with pytest.warns(UserWarning, match="no candidate has a finite score"):
        cv = sj.cross_validate(
            p, jax.vmap(penalties.L1)(np.array([0.3, 0.1])), folds=(y > 0) * 1, scoring="roc_auc"
        )
    assert np.isnan(cv.score).all()


@pytest.mark.parametrize("heavy, where", [(1, "no row"), (0, "all rows")])
def test_a_fold_needs_rows_that_count(heavy, where):
    """A loss of 0 of no rows would count as the best; under jit, where nothing is raised, it is NaN."""
    X, Y = data(n=32)
    fold, grid = np.arange(32) % 2, jax.vmap(penalties.L21)(np.array([0.3, 0.1]))
    weights = (fold == heavy) * 1.0

    def folds(weights):
        p = sj.Problem(losses.SquaredLoss(X, Y, weights=weights), penalties.L21(0.1))
        return sj.cross_validate(p, grid, folds=fold)

    with pytest.raises(ValueError, match=f"fold 0 holds {where} of weight > 0"):
        folds(weights)
    found = jax.jit(folds)(weights)
    assert np.isnan(found.fold_loss[0]).all() and not (found.converged & np.isfinite(found.fold_loss)).any()
    p = sj.Problem(losses.SquaredLoss(X, Y, weights=weights), penalties.L21(0.1))
    closed_over = jax.jit(lambda grid: sj.cross_validate(p, grid, folds=fold).fold_loss)(grid)
    np.testing.assert_array_equal(closed_over, found.fold_loss)


def test_no_finite_concordance_is_said():
    """The only event of each fold is the last row."""
    X, _ = data(n=30)
    time, fold = np.arange(1.0, 31), np.arange(30) % 2
    p = sj.Problem(losses.CoxLoss(X, time, np.r_[np.zeros(28), 1, 1]), penalties.L1(0.1))
    with pytest.warns(UserWarning, match="no event is followed by another row"):
        sj.cross_validate(p, jax.vmap(penalties.L1)(np.array([0.3, 0.1])), folds=fold, scoring="concordance")


@pytest.mark.parametrize(
    "change, error, match",
    [
        (
            {"scoring": "auc"},
            ValueError,
            "scoring .* must be one of 'accuracy', 'f1', 'f1_micro', 'roc_auc', 'r2', got 'auc'",
        ),
        ({"scoring": 3}, ValueError, "scoring .* must be one of"),
        ({"scoring": lambda Y, P: 0.0}, TypeError, r"function \(Y, predictions, weights\) -> \(\)"),
        ({"scoring": lambda Y, P, w: Y - P}, TypeError, "it returns .*not one real number"),
        ({"refit": 1}, TypeError, "refit must be True or False"),
    ],
)
def test_bad_scoring(change, error, match):
    with pytest.raises(error, match=match):
        sj.cross_validate(small_problem(), jax.vmap(penalties.L1)(np.array([0.3, 0.1])), **change)


def test_scoring_that_does_not_suit_the_targets():
    X, Y = data(n=ROWS)
    candidates = jax.vmap(penalties.L1)(np.array([0.3, 0.1]))
    numbers = sj.Problem(losses.SquaredLoss(X, Y), penalties.L1(0.1))
    for scoring in set(SCORES) - {"r2", "concordance"}:
        with pytest.raises(ValueError, match=f"scoring='{scoring}' needs a Y of labels"):
            sj.cross_validate(numbers, candidates, scoring=scoring)
    by_entry = losses.LogisticLoss(X, LOSSES["LogisticLoss"].targets(Y), weights=np.ones((ROWS, K)))
    with pytest.raises(ValueError, match="accuracy is of whole rows"):
        sj.cross_validate(numbers.replace(smooth=by_entry), candidates, scoring="accuracy")


def test_a_loss_without_predictions():
    class Known(sj.Loss, leaves=("inner",)):
        def __call__(self, W):
            return self.inner(W)

        params_shape = property(lambda self: self.inner.params_shape)
        dtype = property(lambda self: self.inner.dtype)
        weights = property(lambda self: self.inner.weights)

        def quadratic_model(self):
            return losses.QuadraticModel(num_rows=ROWS)

        def reweighted(self, weights):
            return self._replace(inner=self.inner.reweighted(weights))

        def evaluate(self, W, intercept=0.0):
            return self.inner.evaluate(W, intercept)

        def intercept(self, W):
            return self.inner.intercept(W)

    p = sj.Problem(Known(losses.SquaredLoss(*data(n=ROWS))), penalties.L1(0.1))
    with pytest.raises(TypeError, match=r"scoring needs a loss with predictions\(\).*got Known"):
        sj.cross_validate(p, jax.vmap(penalties.L1)(np.array([0.3, 0.1])), scoring="r2")


def test_a_fold_may_not_hold_all_events():
    X, _ = data(n=30)
    time, event = np.arange(1.0, 31), np.arange(30) % 3 == 0
    p = sj.Problem(losses.CoxLoss(X, time, event), penalties.L1(0.1))
    with pytest.raises(ValueError, match="fold 1 holds all events out"):
        sj.cross_validate(p, jax.vmap(penalties.L1)(np.array([0.3, 0.1])), folds=event * 1)


def columns_apart(missing, seed=0):
    """A problem of two columns with weights by entry, and the first column alone."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((60, 6))
    Y, weights = 0.5 * X[:, :2] + 1.5 * rng.standard_normal((60, 2)), np.ones((60, 2))
    weights[missing(np.arange(60), rng), 0] = 0
    of = lambda Y, w: sj.Problem(sj.losses.SquaredLoss(X, Y, weights=w, intercept=True), sj.penalties.L1(0.1))
    return of(Y, weights), of(Y[:, 0], weights[:, 0])


def error_by_entry(Y, predictions, weights):
    return -jnp.sum(weights * jnp.abs(Y - predictions)) / jnp.sum(weights)


@pytest.mark.parametrize("scoring", [None, "r2", error_by_entry])
def test_each_output_is_as_if_alone(scoring):
    """Where one column lacks other rows than the other: the same scale of strengths, and scores."""
    both, alone = columns_apart(lambda i, rng: (i % 4 > 0) & (rng.random(60) < 0.6), 1)
    grid = jax.vmap(sj.penalties.L1)(jnp.array([0.3, 0.1, 0.02]))
    options = {"folds": 4, "scoring": scoring, "tol": 1e-13}
    found, one = (
        sj.cross_validate(both, grid, per_output=True, **options),
        sj.cross_validate(alone, grid, **options),
    )
    np.testing.assert_allclose(found.score[:, :, 0], one.score, rtol=1e-6)
    np.testing.assert_allclose(found.fold_loss[:, :, 0], one.fold_loss, rtol=1e-6)
    np.testing.assert_array_equal(found.num_nonzero[:, :, 0], one.num_nonzero)


def test_an_output_without_a_score():
    grid = jax.vmap(sj.penalties.L1)(jnp.array([0.3, 0.1]))
    lacks = {"fold 0 holds all rows": lambda i, _: i % 4 > 0, "fold 2 holds no row": lambda i, _: i % 4 == 2}
    for message, missing in lacks.items():
        with pytest.raises(ValueError, match=f"{message} of weight > 0 in column 0 out"):
            sj.cross_validate(columns_apart(missing)[0], grid, folds=4, per_output=True)
    smooth = columns_apart(lambda i, _: i < 0)[0].smooth
    Y = np.array(smooth.Y > 0, float)
    Y[::4, 0] = 0  # one class in the first fold
    problem = sj.Problem(sj.losses.LogisticLoss(smooth.X, Y, intercept=True), sj.penalties.L1(0.1))
    with pytest.warns(UserWarning, match=r"no candidate has a finite score in column\(s\) \[0\]"):
        sj.cross_validate(problem, grid, folds=4, scoring="roc_auc", per_output=True)


def test_accuracy_where_probabilities_round_to_one():
    H, Y = jnp.array([[50.0, 40.0, 0.0], [40.0, 50.0, 0.0], [0.0, 40.0, 50.0]]), jnp.eye(3)
    for name in ("accuracy", "f1", "f1_micro"):
        assert SCORES[name](Y, H, jax.nn.sigmoid(H), jnp.ones(3)) == 1


def test_a_row_of_weight_0_without_label_does_not_change_the_score():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 5))
    Y = np.eye(3)[np.argmax(X[:, :3] + 0.3 * rng.standard_normal((60, 3)), axis=1)]
    weights = np.where(np.arange(60) == 0, 0.0, 1.0)
    penalties = jax.vmap(sj.penalties.L1)(jnp.array([0.05, 0.01]))

    def scores(Y, scoring):
        loss = sj.losses.SquaredLoss(X, Y, weights=weights, intercept=True)
        problem = sj.Problem(loss, sj.penalties.L1(0.0))
        return sj.cross_validate(problem, penalties, folds=3, scoring=scoring).score

    unlabelled = np.where(weights[:, None] > 0, Y, 0)
    for scoring in ("accuracy", "f1"):
        np.testing.assert_allclose(scores(unlabelled, scoring), scores(Y, scoring))
