"""Cross-validation against a loop of separate fits, and tuning against a grid."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import K, data
from loss_cases import LOSSES
from penalty_cases import D

import sparsejax as sj
from sparsejax._core import progress
from sparsejax.selection import cross_validation, tuning

SETS = {"SquaredLoss": 0.5, "LogisticLoss": 0.1}


def small(loss, n=30, seed=0, **options):
    return LOSSES[loss](*data(n=n, seed=seed), **options)


@pytest.mark.parametrize("loss, mode", [("SquaredLoss", "warm"), ("LogisticLoss", "batch")])
def test_cross_validation_is_a_loop_of_fits(loss, mode):
    """Fits on the rows kept, at their own default scale, judged on the others with the fitted intercept."""
    smooth = small(loss, intercept=True)
    alphas = SETS[loss] * np.geomspace(1, 0.01, 4)
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [11, 11, 8]))
    problem = sj.Problem(smooth, sj.penalties.ExclusiveL21(1.0, 0.01))
    penalties = jax.vmap(lambda a: sj.penalties.ExclusiveL21(a, 0.01))(jnp.asarray(alphas))
    cv = sj.cross_validate(problem, penalties, folds=labels, mode=mode, tol=1e-13)
    X, Y = np.asarray(smooth.X), np.asarray(smooth.Y)
    expected = np.empty((3, 4))
    for fold in range(3):
        out = labels == fold
        train = LOSSES[loss].make(X[~out], Y[~out], intercept=True)
        test = LOSSES[loss].make(X[out], Y[out])
        for i, alpha in enumerate(alphas):
            W = sj.solve(sj.Problem(train, sj.penalties.ExclusiveL21(alpha, 0.01)), tol=1e-13).params
            expected[fold, i] = test.evaluate(W, train.intercept(W))
            assert int(cv.num_nonzero[fold, i]) == int((W != 0).sum())
    np.testing.assert_allclose(cv.fold_loss, expected, rtol=1e-6)
    np.testing.assert_allclose(cv.loss, expected.mean(0), rtol=1e-6)
    np.testing.assert_allclose(cv.standard_error, expected.std(0, ddof=1) / np.sqrt(3), rtol=1e-5)
    assert bool(cv.converged.all()) and cv.gap.shape == (3, 4)
    np.testing.assert_array_equal(cv.score, -cv.fold_loss)
    assert cv.solution is None and cv.intercept is None
    assert int(cv.index) == expected.mean(0).argmin()
    assert float(cv.best.alpha) == alphas[int(cv.index)] and cv.best.beta == 0.01


def test_the_sparsest_within_one_standard_error():
    fold_loss = jnp.array([[3.0, 1.30, 1.0, 1.2], [3.0, 1.28, 1.4, 1.2]])
    nonzero = jnp.array([[0, 4, 8, 4], [0, 4, 8, 4]])
    penalties = sj.penalties.L1(jnp.array([4.0, 3.0, 2.0, 1.0]))
    cv = sj.CrossValidation(penalties, fold_loss, nonzero, fold_loss, nonzero == 0)
    assert float(cv.best.strength) == 2.0  # of equal means the first
    assert float(cv.best_1se.strength) == 1.0  # two are equally sparse: the better of them
    worse = sj.CrossValidation(penalties, fold_loss.at[:, 3].set(jnp.nan), nonzero, fold_loss, nonzero == 0)
    assert float(worse.best.strength) == 2.0 and float(worse.best_1se.strength) == 3.0


def test_integer_folds_weights_and_jit():
    smooth = small("SquaredLoss", weights=np.linspace(1, 2, 30))
    problem = sj.Problem(smooth, sj.penalties.L1(0.1))
    penalties = jax.vmap(sj.penalties.L1)(jnp.array([0.3, 0.1, 0.01]))
    cv = sj.cross_validate(problem, penalties, folds=5)
    same = sj.cross_validate(problem, penalties, folds=np.arange(30) % 5)
    np.testing.assert_array_equal(cv.fold_loss, same.fold_loss)
    assert cv.fold_loss.shape == (5, 3)
    jitted = jax.jit(lambda p, q: sj.cross_validate(p, q, folds=5))(problem, penalties)
    np.testing.assert_allclose(jitted.fold_loss, cv.fold_loss, rtol=1e-8)


@pytest.mark.parametrize(
    "folds, match",
    [
        (1, "between 2"),
        (31, "between 2"),
        (True, "integer"),
        (np.zeros(30, int), "every label"),
        (np.arange(30) % 2 * 2, "every label"),
        (np.arange(29) % 3, "one integer a row"),
        (np.linspace(0, 1, 30), "integer"),
        (object(), "one integer a row"),
    ],
)
def test_bad_folds(folds, match):
    problem = sj.Problem(small("SquaredLoss"), sj.penalties.L1(0.1))
    with pytest.raises((TypeError, ValueError), match=match):
        sj.cross_validate(problem, jax.vmap(sj.penalties.L1)(jnp.array([0.1, 0.2])), folds=folds)


def test_cross_validation_needs_weights():
    gram = small("SquaredLoss").gram()
    with pytest.raises(TypeError, match="needs a loss with weights"):
        sj.cross_validate(sj.Problem(gram, sj.penalties.L1(0.1)), jax.vmap(sj.penalties.L1)(jnp.ones(2)))


def test_tuning_beats_a_grid():
    """Both strengths at once, to within 1 % of the best of a 12 x 12 grid, in at most 20 solves."""
    loss = "SquaredLoss"
    train, test = small(loss, intercept=True), small(loss, seed=3, n=60, intercept=True)
    # one model for both halves: the same weights by construction of ``data``
    problem = sj.Problem(train, sj.penalties.ExclusiveL21(1.0, 1.0))
    top = float(sj.lambda_max(problem))
    side = top * np.geomspace(1, 1e-3, 12)
    grid = np.stack([
        [float(test.evaluate(W, train.intercept(W))) for W in sj.path(
            problem, jax.vmap(lambda a, b=b: sj.penalties.ExclusiveL21(a, b))(jnp.asarray(side))
        ).params]
        for b in side
    ])  # fmt: skip
    start = problem.replace(penalty=sj.penalties.ExclusiveL21(top / 10, top / 10))
    tuned = sj.tune(start, test)
    assert int(tuned.num_solves) <= 20
    assert float(tuned.loss) <= 1.01 * grid.min()
    n = int(tuned.num_solves)
    loss_tried = np.asarray(tuned.tried.loss)
    assert np.isfinite(loss_tried[:n]).all() and np.isnan(loss_tried[n:]).all()
    assert float(tuned.loss) == loss_tried[:n].min()
    best = int(loss_tried[:n].argmin())
    assert float(tuned.tried.penalties.alpha[best]) == float(tuned.penalty.alpha)
    np.testing.assert_allclose(
        test.evaluate(tuned.solution.params, train.intercept(tuned.solution.params)), tuned.loss, rtol=1e-12
    )
    assert bool(tuned.solution.converged)


def test_tuning_keeps_its_bounds_and_stops_on_the_slope():
    train, test = small("SquaredLoss"), small("SquaredLoss", seed=3, n=60)
    top = sj.lambda_max(sj.Problem(train, sj.penalties.L1(1.0)))
    problem = sj.Problem(train, sj.penalties.L1(top / 2))
    held = sj.tune(problem, test, low=0.9, high=1.1)
    ratio = np.asarray(held.tried.penalties.strength)[: int(held.num_solves)] / float(top / 2)
    assert ((ratio >= 0.9 - 1e-9) & (ratio <= 1.1 + 1e-9)).all()
    # At a bound with the slope outward there is nothing to gain: it stops there.
    assert bool(held.converged) and int(held.num_solves) < 20
    flat = sj.tune(problem.replace(penalty=sj.penalties.L1(2 * top)), test)
    # above lambda_max every slope is 0: nothing was found, and it says so
    assert int(flat.num_solves) == 1 and not bool(flat.converged) and "every weight is 0" in flat.message


def test_tuning_takes_functions_and_optimisers():
    train = small("SquaredLoss")
    problem = sj.Problem(train, sj.penalties.L1(0.1))
    target = jnp.asarray(sj.solve(problem.replace(penalty=sj.penalties.L1(0.03)), tol=1e-10).params)
    distance = jax.tree_util.Partial(lambda target, W: jnp.sum((W - target) ** 2), target)
    tuned = sj.tune(problem, distance, optimizer=optax.sgd(0.5), maxiter=60, tol=1e-9)
    assert float(tuned.loss) < 0.1 * float(tuned.tried.loss[0])
    with jax.numpy_dtype_promotion("standard"):
        by_row = sj.tune(problem.replace(penalty=sj.penalties.L1(np.full(D, 0.1))), distance)
    assert by_row.penalty.strength.shape == (D,) and float(by_row.loss) < float(by_row.tried.loss[0])


@pytest.mark.parametrize(
    "change, match",
    [
        ({"held_out": 3}, "held_out must be callable"),
        ({"penalty": sj.penalties.ExclusiveL21(0.1, 0.0)}, "must be > 0"),
        ({"optimizer": 0.1}, "GradientTransformation"),
        ({"maxiter": 0}, "maxiter"),
        ({"low": 2.0}, "low <= 1"),
        ({"high": 0.5}, "low <= 1"),
        ({"solver_tol": -1.0}, "tol must be >= 0"),
    ],
)
def test_bad_input_of_tune(change, match):
    train = small("SquaredLoss")
    problem = sj.Problem(train, change.pop("penalty", sj.penalties.L1(0.1)))
    held_out = change.pop("held_out", train)
    with pytest.raises((TypeError, ValueError), match=match):
        sj.tune(problem, held_out, **change)


@pytest.mark.parametrize("per_output, most", [(False, 10**9), (True, 0)])
def test_long_work_is_solved_in_short_calls(per_output, most, monkeypatch, cores_are):
    """With the same results; five folds on two cores, whose parts have different numbers of folds.

    By the first solver, or, where that would take long to repeat, by the whole chain at once.
    """
    problem = sj.Problem(small("SquaredLoss", intercept=True), sj.penalties.L1(1.0))
    penalties = jax.vmap(sj.penalties.L1)(0.5 * np.geomspace(1, 0.01, 4))
    validate = lambda: sj.cross_validate(problem, penalties, per_output=per_output, scoring="r2", mode="warm")
    cores_are(2)
    whole = validate()
    monkeypatch.setattr(cross_validation, "MIN_LONG_WORK", 0)
    monkeypatch.setattr(cross_validation, "MAX_REPEATED_WORK", most)
    monkeypatch.setattr(progress, "CHUNK_SECONDS", 0.0)
    short = validate()
    for one, other in zip(jax.tree.leaves(short), jax.tree.leaves(whole), strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
    for name in ("fold_loss", "score", "num_nonzero", "converged"):
        np.testing.assert_allclose(getattr(short, name), getattr(whole, name), rtol=1e-9)


@pytest.mark.parametrize("tol, again", [(1e-6, []), (0.0, [(True, 3)])])
def test_a_fold_that_the_first_solver_leaves_is_solved_by_the_chain(tol, again, monkeypatch):
    """Only then does an eager call compile the whole chain; it returns what the jitted call returns.

    On an accelerator an eager call is one program, as a jitted one is. With tol = 0 the last link's finish is
    due in every solve.
    """
    problem = sj.Problem(small("LogisticLoss"), sj.penalties.ExclusiveL21(0.05, 0.01))
    penalties = jax.vmap(sj.penalties.ExclusiveL21, (0, None))(jnp.array([0.05, 0.002]), 0.01)
    validate = lambda: sj.cross_validate(problem, penalties, folds=3, mode="warm", tol=tol)
    calls, program = [], cross_validation._cross_validate

    def noted(shared, parts, **static):
        calls.append((static.get("complete", True), len(parts)))
        return together(shared, parts, **static)

    together = program.together
    monkeypatch.setattr(program, "together", noted)
    eager = validate()
    assert calls == ([(False, 3), *again] if jax.default_backend() == "cpu" else [])
    jitted = jax.jit(validate)()
    np.testing.assert_allclose(eager.fold_loss, jitted.fold_loss, rtol=1e-4 if tol else 1e-10)
    for name in ("num_nonzero", "converged"):
        np.testing.assert_array_equal(getattr(eager, name), getattr(jitted, name))


@pytest.mark.parametrize("progress", [False, True])
def test_a_held_out_function_that_changed_is_traced_again(progress):
    train, target = small("SquaredLoss"), np.zeros((D, K))
    problem, distance = sj.Problem(train, sj.penalties.L1(0.1)), lambda W: jnp.sum((W - target) ** 2)
    for _ in range(2):
        found = sj.tune(problem, distance, maxiter=1, progress=progress)
        np.testing.assert_allclose(found.loss, np.sum((found.solution.params - target) ** 2), rtol=1e-12)
        target += 1


def test_a_line_search_of_optax():
    X, H = map(np.asarray, data(n=60))
    train, test = (sj.losses.SquaredLoss(X[rows], H[rows, 0]) for rows in (slice(20), slice(20, 60)))
    problem = sj.Problem(train, sj.penalties.L1(sj.lambda_max(sj.Problem(train, sj.penalties.L1(1.0))) / 2))
    found, usual = sj.tune(problem, test, optimizer=optax.lbfgs(), maxiter=10), sj.tune(problem, test)
    tried = np.asarray(found.tried.loss[: found.num_solves])
    assert found.loss <= 1.001 * usual.loss < 0.9 * tried[0] and (np.diff(tried) <= 0).all()


def test_searches_in_a_batch_and_no_derivative():
    train, test = small("SquaredLoss"), small("SquaredLoss", seed=3, n=60)
    search = lambda strength: sj.tune(sj.Problem(train, sj.penalties.L1(strength)), test, maxiter=2)
    found = jax.vmap(search)(jnp.array([0.1, 1e3]))
    assert ["every weight is 0" in text for text in found.message] == [False, True]
    for derivative in (jax.grad, jax.jacfwd):
        with pytest.raises(TypeError, match="tune: the search has no derivative"):
            derivative(lambda strength: search(strength).loss)(0.1)


@pytest.mark.parametrize("form", ["strengths", "grid", "per_output"])
def test_cross_validations_in_a_batch(form):
    """Losses, errors and choices are those of each lane."""
    X, Y = map(np.asarray, data(n=30))
    Y = Y if form == "per_output" else Y[:, 0]
    more = np.random.default_rng(1).standard_normal(Y.shape)
    penalties = jax.vmap(sj.penalties.L1)(np.geomspace(1, 1e-3, 6))
    if form == "grid":
        penalties = jax.tree.map(lambda leaf: leaf.reshape(2, 3), penalties)

    def chosen(Y, factor):
        problem = sj.Problem(sj.losses.SquaredLoss(X, Y, scale=0.01), sj.penalties.L1(0.1))
        strengths = jax.tree.map(lambda leaf: factor * leaf, penalties)
        return sj.cross_validate(problem, strengths, folds=3, per_output=form == "per_output")

    read = lambda found: (found.best, found.best_1se, found.loss, found.standard_error)
    lanes = read(jax.vmap(jax.vmap(chosen, (0, None)), (None, 0))(np.stack([Y, more]), jnp.array([1.0, 2.0])))
    for i, factor in enumerate((1.0, 2.0)):
        for j, of_lane in enumerate((Y, more)):
            alone = read(chosen(of_lane, factor))
            for a, b in zip(jax.tree.leaves(lanes), jax.tree.leaves(alone), strict=True):
                np.testing.assert_allclose(a[i, j], b, rtol=1e-3)


def test_the_solver_has_its_own_maxiter():
    train, test = small("SquaredLoss"), small("SquaredLoss", seed=3, n=60)
    problem = sj.Problem(train, sj.penalties.L1(0.1))
    with pytest.warns(sj.ConvergenceWarning, match="maxiter reached"):
        found = sj.tune(problem, test, maxiter=2, solver_maxiter=1, solver_tol=1e-12)
    assert found.solution.num_iters <= 1 and not found.solution.converged


def test_the_message_of_a_nan_slope_names_solver_tol():
    assert "solver_tol" in tuning.MESSAGES[tuning.NON_FINITE]
