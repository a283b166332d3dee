"""No false certificate: what the gap says is true of the point returned, however awkward the problem."""

from types import SimpleNamespace

import certificates
import conic
import jax
import jax.numpy as jnp
import numbers_of
import numpy as np
import pytest

import sparsejax as sj
from sparsejax.solution import CONVERGED, NON_FINITE, STALLED

LONG = np.longdouble
pytestmark = pytest.mark.filterwarnings("ignore::sparsejax.ConvergenceWarning")


def logistic_in_long_doubles(X, Y, W):
    """Mean logistic loss of columns of labels, evaluated apart."""
    H = np.asarray(X, LONG) @ np.asarray(W, LONG)
    return float(np.sum(np.logaddexp(LONG(0), np.where(np.asarray(Y) > 0, -H, H))) / len(X))


def near_copies(seed, distance, dtype, n=20):
    """Two columns that differ by ``distance``, and a third."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 3))
    X[:, 1] = X[:, 0] + distance * rng.standard_normal(n)
    Y = (X[:, :1] + rng.standard_normal((n, 2)) > 0).astype(dtype)
    return X.astype(dtype), Y


# ------------------------------------------------------------------ huge W whose predictions cancel


def test_near_copies_of_columns_and_almost_no_penalty():
    """Was: gap 0 and "converged" at an objective of 1.46e33, where W = 0 has 0.693 a label."""
    X, Y = near_copies(0, 1e-15, np.float64)
    problem = sj.Problem(sj.losses.LogisticLoss(X, Y), sj.penalties.L1(1e-20))
    solve = jax.jit(lambda tol: sj.solve(problem, tol=tol, maxiter=3000))
    for tol in (1e-6, 1e-12):
        s = solve(tol)
        truth = logistic_in_long_doubles(X, Y, s.params) + 1e-20 * float(np.abs(s.params).sum())
        assert truth <= 2 * np.log(2) * (1 + 1e-9)
        # The objective that is told is the true one, or the gap covers the difference.
        excess = (float(s.objective) - truth) / max(truth, 2 * np.log(2))
        assert abs(excess) <= 1e-6 or float(s.gap) >= abs(excess)


def test_near_copies_of_columns_in_float32():
    """Was: 4 of 6 seeds with objectives of 1.7 to 1.8e17, gap 0, converged."""

    def solve(X, Y):
        loss = sj.losses.LogisticLoss(X, Y)
        top = jnp.max(jnp.abs(jax.grad(loss)(jnp.zeros((3, 2), jnp.float32))))
        return sj.solve(sj.Problem(loss, sj.penalties.L1(1e-12 * top)), maxiter=3000)

    data = [near_copies(seed, 1e-7, np.float32) for seed in range(6)]
    lanes = jax.jit(jax.vmap(solve))(*(np.stack(arrays) for arrays in zip(*data, strict=True)))
    for i, (X, Y) in enumerate(data):
        truth = logistic_in_long_doubles(X, Y, lanes.params[i])
        assert truth <= 2 * np.log(2) * (1 + 1e-6)
        assert abs(truth - float(lanes.objective[i])) <= max(1e-4, 2 * float(lanes.gap[i])) * 2 * np.log(2)


@pytest.mark.parametrize("penalty", ["L1", "L21", "ExclusiveL21"])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_the_gap_counts_the_rounding_of_the_predictions(loss, penalty):
    """At W of 1e12 in two columns that cancel, the objective seems small; it is not, and no gap says so."""
    X, Y = near_copies(1, 1e-13, np.float64)
    make = getattr(sj.penalties, penalty)
    strengths = (1e-25, 1e-38)[: 2 if penalty == "ExclusiveL21" else 1]
    f = {"squared": sj.losses.SquaredLoss, "logistic": sj.losses.LogisticLoss}[loss](X, Y)
    problem = sj.Problem(f, make(*strengths))
    best = sj.solve(problem, tol=1e-9, maxiter=2000)
    for size in (1e8, 1e12, 1e16):
        W = np.array(best.params)
        W[0] += size
        W[1] -= size
        if loss == "logistic":
            truth = logistic_in_long_doubles(X, Y, W)
        else:
            truth = float(np.sum((X.astype(LONG) @ W.astype(LONG) - Y) ** 2) / (2 * len(X)))
        at_zero = float(problem(np.zeros((3, 2))))
        suboptimality = (truth - float(best.objective)) / max(truth, at_zero)
        assert float(sj.duality_gap(problem, W)) >= suboptimality - 1e-9


def test_a_point_above_another_is_not_better_than_their_difference():
    """A certificate that is blind to a huge W: the start's objective bounds it all the same."""

    class Blind(sj.Loss, leaves=("X", "Y")):
        """Least squares that states no dual: the gap rests on the conjugate of the penalty."""

        params_shape = property(lambda self: (self.X.shape[-1],))
        dtype = property(lambda self: self.X.dtype)

        def __call__(self, W):
            return jnp.sum((self.X @ W - self.Y) ** 2) / 40

    X, Y = near_copies(2, 0.5, np.float64)

    class Liar(sj.Penalty, leaves=("a",)):
        """Its conjugate makes every gap negative."""

        finite_conjugate = True

        def value(self, W):
            return self.a * jnp.sum(W * W)

        def prox(self, V, scaling=1.0):
            return V / (1 + 2 * scaling * self.a)

        def conjugate(self, Z, aux=None):
            return jnp.full((), -1e9)

        def dual_scale(self, Z):
            return jnp.full((), jnp.inf)

    start = np.full(3, 100.0)
    s = sj.fista(sj.Problem(Blind(jnp.asarray(X), jnp.asarray(Y[:, 0])), Liar(0.1)), start, maxiter=200)
    assert float(s.objective) < 1


def test_the_gap_counts_the_rounding_of_the_intercept():
    """Was: 7.7e-11 at points worse by 4.5e-10, in float32: slopes that sum to 0 but for rounding, times b."""
    ratios = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((14, 8)).astype(np.float32)
        Y = (3e5 + 1e5 * (X @ rng.standard_normal((8, 2)))).astype(np.float32)
        centred = X - X.mean(axis=0, dtype=float), Y - Y.mean(axis=0, dtype=float)
        W = np.linalg.lstsq(*centred, rcond=None)[0]  # with almost no residual
        W = (W * (1 + 1e-4 * rng.standard_normal(W.shape))).astype(np.float32)
        problem = sj.Problem(sj.losses.SquaredLoss(X, Y, intercept=True), sj.penalties.L21(1e-8))
        with numbers_of.long_doubles():
            truth = conic.objective(problem, W) - conic.penalty_value(problem.penalty, W)
            ratios.append(float(truth / conic.objective(problem, 0 * W)) / float(sj.duality_gap(problem, W)))
    assert 0.1 < max(ratios) <= 1


def test_the_gap_knows_slopes_near_their_labels():
    """Was: 1.4e-27 at a point worse by 1.3e-16: p - y where p is 1 but for the last digit."""
    X = np.random.default_rng(0).standard_normal((12, 3))
    Y = (X[:, :2] > 0).astype(float)
    problem = sj.Problem(sj.losses.LogisticLoss(X, Y), sj.penalties.L21(1e-25))
    at_zero = 2 * np.log(2)
    for size in (100.0, 250.0, 300.0):
        W = size * np.eye(3, 2)
        excess = logistic_in_long_doubles(X, Y, W) - logistic_in_long_doubles(X, Y, 2 * W)
        assert float(sj.duality_gap(problem, W)) >= excess / at_zero * (1 - 1e-9)


# ------------------------------------------------------------------ data far from 1


@pytest.mark.parametrize("dtype, size", [(np.float32, 1e-22), (np.float64, 1e-170), (np.float64, 1e160)])
@pytest.mark.parametrize("penalty", ["L21", "ExclusiveL21", "ExclusiveLasso"])
def test_tiny_and_huge_targets(dtype, size, penalty):
    """Was: W = 0, gap 0, converged, with a true relative suboptimality of 0.976."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 4)).astype(dtype)
    Y = (X @ rng.standard_normal((4, 2)) + 0.1 * rng.standard_normal((20, 2))).astype(dtype)
    make, strengths, degrees = {
        "L21": (sj.penalties.L21, (0.1,), (1,)),
        "ExclusiveL21": (sj.penalties.ExclusiveL21, (0.1, 0.05), (1, 2)),
        "ExclusiveLasso": (sj.penalties.ExclusiveLasso, (0.05,), (2,)),
    }[penalty]
    tol = 1e-5 if dtype == np.float32 else 1e-12
    at_one = sj.solve(sj.Problem(sj.losses.SquaredLoss(X, Y), make(*map(dtype, strengths))), tol=tol)
    factor = dtype(2.0 ** round(np.log2(size)))
    scaled = [dtype(s) * factor ** (2 - p) for s, p in zip(strengths, degrees, strict=True)]
    problem = sj.Problem(sj.losses.SquaredLoss(X, Y * factor), make(*scaled))
    s = sj.solve(problem, tol=tol)
    assert bool(s.converged)
    np.testing.assert_allclose(s.params / factor, at_one.params, rtol=1e-4, atol=1e-6)
    assert not float(sj.duality_gap(problem, np.zeros((4, 2), dtype))) < 0.5  # 0 is no solution
    losses = (problem.smooth, sj.losses.SquaredLoss(X, Y))
    tops = [sj.lambda_max(sj.Problem(f, sj.penalties.L21(0.0))) for f in losses]
    np.testing.assert_allclose(float(tops[0]) / factor, float(tops[1]), rtol=1e-6)


def test_derivatives_of_tiny_targets():
    rng = np.random.default_rng(0)
    X, factor = rng.standard_normal((20, 4)), 2.0**-500
    y = X @ rng.standard_normal(4)

    def first(alpha, factor):
        problem = sj.Problem(sj.losses.SquaredLoss(X, y * factor), sj.penalties.L1(alpha))
        return jnp.sum(sj.solve(problem, tol=1e-12).params)

    np.testing.assert_allclose(jax.grad(first)(0.1 * factor, factor), jax.grad(first)(0.1, 1.0), rtol=1e-6)


def test_data_too_small_for_a_plain_function_are_not_certified():
    X, y = np.eye(3, dtype=np.float32), np.full(3, 1e-25, np.float32)
    plain = jax.tree_util.Partial(lambda X, y, W: jnp.sum((X @ W - y) ** 2), X, y)
    s = sj.solve(sj.Problem(plain, sj.penalties.ExclusiveLasso(np.float32(0.1))), np.zeros(3, np.float32))
    assert int(s.status) == NON_FINITE and not bool(s.converged)


# ------------------------------------------------------------ what cannot be refused under a transformation


RNG = np.random.default_rng(3)
X = RNG.standard_normal((20, 4))
Y = X @ RNG.standard_normal((4, 2)) + 0.1 * RNG.standard_normal((20, 2))
LABELS = (np.median(Y, axis=0) < Y).astype(float)
BAD = np.array([0.1, -0.1, np.inf, np.nan, 0.2])


@pytest.mark.parametrize("penalty", ["L1", "ExclusiveL21", "ExclusiveGroupL21"])
def test_strengths_that_are_negative_or_infinite_in_a_batch(penalty):
    pairs = sj.groups.from_lists([[0, 1], [2, 3]], 4)
    make = {
        "L1": sj.penalties.L1,
        "ExclusiveL21": lambda s: sj.penalties.ExclusiveL21(0.01, s),
        "ExclusiveGroupL21": lambda s: sj.penalties.ExclusiveGroupL21(s, pairs),
    }[penalty]
    loss = sj.losses.SquaredLoss(X, Y)
    s = jax.jit(jax.vmap(lambda strength: sj.solve(sj.Problem(loss, make(strength)))))(BAD)
    expected = [CONVERGED, NON_FINITE, NON_FINITE, NON_FINITE, CONVERGED]
    assert np.asarray(s.status).tolist() == expected
    assert np.isnan(s.gap).tolist() == [False, True, True, True, False]
    assert np.isnan(s.residual)[1:4].all()
    gaps = jax.vmap(lambda strength: sj.duality_gap(sj.Problem(loss, make(strength)), np.zeros((4, 2))))(BAD)
    assert np.isnan(gaps).tolist() == [False, True, True, True, False]


@pytest.mark.parametrize("kind", ["squared", "logistic"])
def test_negative_weights_and_scales_in_a_batch(kind):
    make, target = {
        "squared": (sj.losses.SquaredLoss, Y),
        "logistic": (sj.losses.LogisticLoss, LABELS),
    }[kind]
    weights = np.ones((3, 20))
    weights[1, 4] = -2.0
    scale = np.array([0.1, 0.1, -0.1])

    def solve(weights, scale):
        loss = make(X, target, weights=weights, scale=scale)
        return sj.solve(sj.Problem(loss, sj.penalties.L1(0.05)))

    s = jax.jit(jax.vmap(solve))(weights, scale)
    assert np.asarray(s.status).tolist() == [CONVERGED, NON_FINITE, NON_FINITE]
    assert np.isnan(s.gap).tolist() == [False, True, True]


def test_negative_similarities_in_a_batch():
    def solve(similarity, strength):
        graph = sj.losses.GraphLaplacian(similarity, strength)
        return sj.solve(sj.Problem(sj.losses.SquaredLoss(X, Y) + graph, sj.penalties.L21(0.05)))

    similarity = np.ones((3, 2, 2)) * np.array([1.0, -5.0, 1.0])[:, None, None]
    s = jax.jit(jax.vmap(solve))(similarity, np.array([0.1, 0.1, -3.0]))
    assert np.asarray(s.status).tolist() == [CONVERGED, NON_FINITE, NON_FINITE]


# ------------------------------------------------------------------ Gram matrices


def test_gram_of_weights_by_entry_is_refused():
    loss = sj.losses.SquaredLoss(X, Y, weights=np.ones((20, 2)))
    with pytest.raises(TypeError, match="weights by entry"):
        loss.gram()


def test_gram_of_a_sum_with_a_graph():
    """Was: a crash. The Gram form is the same function, and a problem like any other."""
    total = sj.losses.SquaredLoss(X, Y) + sj.losses.GraphLaplacian(np.ones((2, 2)), 0.3)
    gram = total.gram()
    W = RNG.standard_normal((4, 2))
    np.testing.assert_allclose(gram(W), total(W), rtol=1e-12)
    np.testing.assert_allclose(jax.grad(gram)(W), jax.grad(total)(W), rtol=1e-10)
    expected = sj.solve(sj.Problem(total, sj.penalties.L21(0.05)), tol=1e-12)
    for loss in (gram, sj.losses.SquaredLoss(X, Y).gram()):
        s = sj.solve(sj.Problem(loss, sj.penalties.L21(0.05)), tol=1e-10)
        assert bool(s.converged)
        if loss is gram:
            np.testing.assert_allclose(s.objective, expected.objective, rtol=1e-9)
            np.testing.assert_allclose(s.params, expected.params, atol=1e-5)


# ------------------------------------------------------------------ said once, and in words


def test_an_unconverged_solve_outside_jit_warns_once():
    problem = sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.L21(0.01))
    for call in (
        lambda: sj.solve(problem, tol=1e-12, maxiter=2),
        lambda: sj.fista(problem, tol=1e-12, maxiter=2),
        lambda: sj.path(problem, jax.vmap(sj.penalties.L21)(np.array([0.1, 0.01])), tol=1e-12, maxiter=2),
    ):
        with pytest.warns(sj.ConvergenceWarning, match="not converge .*maxiter reached") as caught:
            call()
        assert len(caught) == 1 and caught[0].filename == __file__
    with pytest.warns(sj.ConvergenceWarning, match="2 of 2 solves"):
        sj.path(problem, jax.vmap(sj.penalties.L21)(np.array([0.1, 0.01])), tol=1e-12, maxiter=2)


def test_nothing_is_said_where_all_is_well_or_traced(recwarn):
    problem = sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.L21(0.01))
    sj.solve(problem, tol=1e-6)
    jax.jit(lambda p: sj.solve(p, tol=1e-12, maxiter=2))(problem)
    assert not [w for w in recwarn if issubclass(w.category, sj.ConvergenceWarning)]


# ------------------------------------------------------------------ one W at a time


@pytest.mark.parametrize(
    "loss", [sj.losses.SquaredLoss(X, Y, intercept=True), sj.losses.SquaredLoss(X, Y).gram()]
)
def test_a_batch_of_parameters_is_refused(loss):
    batch = np.zeros((3, 4, 2))
    problem = sj.Problem(loss, sj.penalties.L21(0.1))
    calls = [loss, problem, problem.penalty.value, problem.penalty.prox, lambda W: sj.duality_gap(problem, W)]
    if isinstance(loss, sj.losses.SquaredLoss):
        calls += [loss.intercept, loss.evaluate]
    for call in calls:
        with pytest.raises(ValueError, match=r"\(3, 4, 2\).*jax.vmap"):
            call(jnp.asarray(batch))
    assert jax.vmap(loss)(batch).shape == (3,)


def test_solve_of_something_else_names_solve():
    with pytest.raises(TypeError, match=r"^solve: problem must be a sparsejax\.Problem"):
        sj.solve(sj.losses.SquaredLoss(X, Y), sj.penalties.L1(0.1))


# ------------------------------------------------------------------ a loss that does not know the shape of W


def plain(X, Y, W):
    return jnp.sum((X @ W - Y) ** 2) / (2 * X.shape[0])


def test_path_tune_and_lambda_max_take_init():
    problem = sj.Problem(jax.tree_util.Partial(plain, X, Y), sj.penalties.L21(0.1))
    known = problem.replace(smooth=sj.losses.SquaredLoss(X, Y))
    init = np.zeros((4, 2))
    np.testing.assert_allclose(sj.lambda_max(problem, init), sj.lambda_max(known), rtol=1e-12)
    alphas = jax.vmap(sj.penalties.L21)(np.array([0.2, 0.1]))
    mine, theirs = sj.path(problem, alphas, init, tol=1e-9), sj.path(known, alphas, tol=1e-9)
    np.testing.assert_allclose(mine.params, theirs.params, atol=1e-6)
    held_out = sj.losses.SquaredLoss(X[::2], Y[::2])
    mine = sj.tune(problem, held_out, init, maxiter=3, solver_tol=1e-9)
    theirs = sj.tune(known, held_out, maxiter=3, solver_tol=1e-9)
    np.testing.assert_allclose(mine.loss, theirs.loss, rtol=1e-5)
    for call in (sj.lambda_max, lambda p: sj.path(p, alphas), lambda p: sj.tune(p, held_out)):
        with pytest.raises(TypeError, match="give init"):
            call(problem)


def test_by_leaf_problems_go_over_paths():
    def fun(X, y, p):
        return jnp.sum((X @ p["w"] + p["b"] - y) ** 2) / 40

    problem = sj.Problem(
        jax.tree_util.Partial(fun, X, Y[:, 0]), sj.penalties.ByLeaf({"w": sj.penalties.L1(0.1), "b": None})
    )
    init = {"w": np.zeros(4), "b": np.zeros(())}
    penalties = jax.vmap(lambda a: sj.penalties.ByLeaf({"w": sj.penalties.L1(a), "b": None}))(
        np.array([0.2, 0.1])
    )
    path = sj.path(problem, penalties, init, tol=1e-9)
    alone = sj.solve(problem, init, tol=1e-9)
    np.testing.assert_allclose(path.params["w"][1], alone.params["w"], atol=1e-6)
    tuned = sj.tune(problem, jax.tree_util.Partial(fun, X[::2], Y[::2, 0]), init, maxiter=2)
    assert np.isfinite(float(tuned.loss))


# ------------------------------------------------------------------ tuning


def test_tune_from_above_lambda_max_says_so():
    problem = sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.L21(100.0))
    tuned = sj.tune(problem, sj.losses.SquaredLoss(X[::2], Y[::2]))
    assert not bool(tuned.converged) and "every weight is 0" in tuned.message


def test_tune_with_a_loss_that_is_nan():
    """Was: a fabricated "converged, gap 0"."""
    problem = sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.L21(0.1))
    tuned = sj.tune(problem, jax.tree_util.Partial(lambda W: jnp.sum(W) * jnp.nan), maxiter=4)
    assert not bool(tuned.converged) and "NaN" in tuned.message and int(tuned.num_solves) == 1
    assert np.isnan(tuned.loss)
    # the solution is that of the first strengths, not an invention
    np.testing.assert_allclose(tuned.solution.params, sj.solve(problem).params, atol=1e-9)


def test_tune_with_a_slope_that_is_nan():
    problem = sj.Problem(sj.losses.SquaredLoss(X, Y), sj.penalties.L21(0.1))
    tuned = sj.tune(problem, jax.tree_util.Partial(lambda W: jnp.sum(jnp.sqrt(jnp.abs(W * 0)))), maxiter=4)
    assert not bool(tuned.converged) and "slope is NaN" in tuned.message


def test_a_plain_function_that_is_zero_at_zero_is_solved():
    """Its minimum is negative: that its value at 0 is 0 is no sign of an underflow."""
    f = jax.tree_util.Partial(lambda y, W: jnp.sum(W * W) / 2 - jnp.sum(W * y), np.arange(1.0, 4.0))
    s = sj.solve(sj.Problem(f, sj.penalties.L1(0.5)), np.zeros(3), tol=1e-10)
    assert bool(s.converged)
    np.testing.assert_allclose(s.params, [0.5, 1.5, 2.5], atol=1e-9)


# ------------------------------------------------------------------ the program that looks for more


@pytest.mark.parametrize(
    "lie, found",
    [
        ({}, None),
        ({"gap": 0.1}, "gap 0.1 below the truth"),
        ({"objective": 0.2}, "objective wrong"),
        ({"status": CONVERGED, "gap": 1.0}, "converged, and worse"),
        ({"params": np.full((3, 1), np.nan)}, "not finite"),
        ({"params": np.full((3, 1), np.nan), "status": NON_FINITE}, None),
    ],
)
def test_certificates_py_sees_a_lie(lie, found):
    """Of a point that is worse by half: what certificates.py says of what a solver may say of it."""
    fields = {"params": np.ones((3, 1)), "objective": 1.0, "gap": 0.51, "status": STALLED}
    answer = SimpleNamespace(**fields | lie)
    answer.converged = answer.status == CONVERGED
    told = certificates.judged(answer, LONG(1), LONG(0.5), LONG(1), np.float64, None).wrong
    assert (not told) if found is None else (len(told) == 1 and found in told[0])


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_certificates_py_sees_an_objective_that_is_not_finite(value):
    """Such as that of a W outside the constraints."""
    answer = SimpleNamespace(
        params=np.ones((3, 1)), objective=1.0, gap=1e-9, status=CONVERGED, converged=True
    )
    told = certificates.judged(answer, LONG(value), LONG(0.5), LONG(1), np.float64, None).wrong
    assert len(told) == 1 and "certified" in told[0]
