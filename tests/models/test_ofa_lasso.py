"""Zhang et al., "Output Feature Augmented Lasso", ICDM 2014: training against a conic solver,
the certificate, the paper's algorithm, prediction, bad input.
"""

import functools

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import Lasso
from sklearn.metrics import r2_score
from sklearn.metrics.pairwise import rbf_kernel

from sparsejax import kernels
from sparsejax._core.precision import full_precision
from sparsejax.models import ofa_lasso
from sparsejax.models.ofa_lasso import (
    _active_columns,
    _certificate,
    _cross_validation,
    _kernel_admm,
    _kernel_columns,
    _predict,
)
from sparsejax.solution import CONVERGED, MAX_ITER, NON_FINITE, STALLED, ConvergenceWarning

LAM, BETA = 0.05, 0.03


@functools.cache
def data(n=14, seed=0):
    """Nonlinear in the inputs, and the third output a function of the first."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 5))
    noise = 0.1 * rng.standard_normal((n, 3))
    first = np.sin(X[:, 0]) + noise[:, 0]
    return X, np.c_[first, X[:, 1] * X[:, 2] + noise[:, 1], np.sin(2 * first) + X[:, 3] + noise[:, 2]]


@functools.cache
def fitted(input="kernel", dtype=np.float64, tol=1e-12):
    X, Y = data()
    return ofa_lasso.fit(X.astype(dtype), Y.astype(dtype), LAM, BETA, input=input, tol=tol)


def features(model, j):
    """[K, G^j] (or [X, G^j]), by scikit-learn."""
    gamma = lambda s: 0.5 / float(s) ** 2
    X, others = np.asarray(model.X), np.delete(np.asarray(model.Y), j, axis=1)
    K = X if model.input == "linear" else rbf_kernel(X, gamma=gamma(model.bandwidth))
    return K, rbf_kernel(others, gamma=gamma(model.output_bandwidth[j]))


@functools.cache
def reference(input, j, lam=LAM, beta=BETA):
    """The optimum by a conic solver."""
    model = fitted(input)
    K, G = features(model, j)
    u, v, b = cp.Variable(K.shape[1]), cp.Variable(G.shape[1]), cp.Variable()
    loss = cp.sum_squares(np.asarray(model.Y)[:, j] - K @ u - G @ v - b)
    problem = cp.Problem(cp.Minimize(loss + lam * cp.norm1(u) + beta * cp.norm1(v)))
    tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-12)
    problem.solve(solver=cp.CLARABEL, **tight)
    return problem.value


def objective(model, j, lam=LAM, beta=BETA):
    K, G = features(model, j)
    u, v, b = (np.asarray(a[j]) for a in (model.u, model.v, model.intercept))
    r = np.asarray(model.Y)[:, j] - K @ u - G @ v - b
    return r @ r + lam * abs(u).sum() + beta * abs(v).sum()


# ------------------------------------------------------------------ training


@pytest.mark.parametrize("input", ["kernel", "linear"])
def test_optimum(input):
    model = fitted(input)
    assert model.solution.converged.all() and (model.solution.gap <= 1e-12).all()
    for j in range(3):
        value = objective(model, j)
        np.testing.assert_allclose(value, reference(input, j), rtol=1e-8)
        np.testing.assert_allclose(value, model.solution.objective[j], rtol=1e-12)
        assert 0 < np.count_nonzero(model.v[j]) < 14  # both kinds of feature are in use, exact zeros too
        assert 0 < np.count_nonzero(model.u[j]) < model.u.shape[1] or input == "linear"
    np.testing.assert_array_equal(model.solution.params, jnp.concatenate([model.u, model.v], axis=1))


def test_start_is_the_lasso_without_outputs():
    model = fitted("linear")
    X, Y = data()
    for j in range(3):
        lasso = Lasso(alpha=LAM / (2 * len(X)), tol=1e-14, max_iter=10**6).fit(X, Y[:, j])
        np.testing.assert_allclose(model.start_u[j], lasso.coef_, atol=1e-7)
        np.testing.assert_allclose(model.start_intercept[j], lasso.intercept_, atol=1e-7)
    np.testing.assert_array_equal(model.start_solution.params[:, 5:], 0)


def test_strengths_by_output():
    """And at strengths that leave nothing every coefficient is exactly zero, after no round at all."""
    X, Y = data()
    model = ofa_lasso.fit(X, Y, np.asarray([LAM, 0.4, 1e3]), np.asarray([BETA, BETA, 1e3]), tol=1e-12)
    np.testing.assert_allclose(objective(model, 0), reference("kernel", 0), rtol=1e-8)
    np.testing.assert_allclose(objective(model, 1, 0.4), reference("kernel", 1, 0.4), rtol=1e-8)
    assert not model.u[2].any() and not model.v[2].any() and model.solution.num_iters[2] == 0
    np.testing.assert_allclose(model.intercept[2], Y[:, 2].mean())


def test_gap_is_an_upper_bound_and_closes():
    """Along an algorithm that approaches slowly, and by the definition of a dual value."""
    optimum = [reference("kernel", j) for j in range(3)]
    X, Y = data()
    gaps = []
    for maxiter in (0, 25, 100, 400, 4000):
        model = ofa_lasso.fit(X, Y, LAM, BETA, method="admm", mu=0.1, tol=0.0, maxiter=maxiter)
        for j in range(3):
            value, size = objective(model, j), np.sum((Y[:, j] - Y[:, j].mean()) ** 2)
            excess = (value - optimum[j]) / max(value, size)
            assert model.solution.gap[j] >= excess - 1e-9
        gaps.append(float(model.solution.gap.max()))
    assert gaps == sorted(gaps, reverse=True) and gaps[-1] < 1e-6


def test_admm_reaches_the_optimum():
    X, Y = data()
    model = ofa_lasso.fit(X, Y, LAM, BETA, method="admm", mu=0.1, tol=1e-10)
    assert model.solution.converged.all()
    for j in range(3):
        np.testing.assert_allclose(objective(model, j), reference("kernel", j), rtol=1e-8)


def test_algorithm_1_stops_early():
    """The printed algorithm's own rule ends it above the optimum, the more so the faster mu grows."""
    X, Y = data()
    excess = []
    for growth in (1.01, 1.1, 1.5, 2.0):
        model = ofa_lasso.fit(X, Y, LAM, BETA, method="admm", faithful=True, growth=growth)
        assert (model.solution.status == STALLED).all()  # and not converged
        excess.append([objective(model, j) / reference("kernel", j) - 1 for j in range(3)])
    excess = np.asarray(excess)
    assert (excess > 1e-3).all() and (np.diff(excess, axis=0) > 0).all()
    assert (excess[1] > 0.1).all() and (excess[3] > 0.5).all()


# ------------------------------------------------------------------ the working set


def lassos(n=60, p=150, seed=1):
    """Nearly collinear columns, some of them equal."""
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0, 3, (p, 1)), axis=0)
    At = rbf_kernel(t, np.linspace(0, 3, n)[:, None], gamma=10.0)
    At[7] = At[90]
    At -= At.mean(1, keepdims=True)
    y = np.sin(4 * np.linspace(0, 3, n)) + 0.3 * rng.standard_normal(n)
    return jnp.asarray(At), jnp.asarray(y - y.mean())


@functools.partial(jax.jit, static_argnames="bucket")
def solve_path(At, y, limits, tol, bucket):
    path = _active_columns.LassoPath(At, y, limits[0], tol, jnp.int32(100), bucket)
    return jax.lax.scan(path.step, path.start, limits)[1]


def test_working_set_in_a_batch():
    """A path down and up again, of collinear and repeated columns, in buckets smaller than the problem."""
    At, y = lassos()
    top = float(jnp.max(jnp.abs(At @ y)))
    strengths = top * np.asarray([1.0, 0.3, 0.03, 0.003, 0.0003, 0.03, 2.0])
    limits = jnp.broadcast_to(jnp.asarray(strengths)[:, None], (7, 150))
    batch = jax.vmap(lambda scale: solve_path(At, scale * y, scale * limits, jnp.asarray(1e-10), 48))
    a = jax.tree.map(np.asarray, batch(jnp.asarray([1.0, 1e4])))
    assert (a.status == CONVERGED).all() and (a.gap <= 1e-10).all()
    np.testing.assert_allclose(a.objective[1], 1e8 * a.objective[0], rtol=1e-8)
    np.testing.assert_allclose(a.objective[0, 2], a.objective[0, 5], rtol=1e-9)  # whichever way it came
    assert (a.z[:, [0, 6]] == 0).all() and (a.num_iters[:, 0] == 0).all()
    for z, strength, value in zip(a.z[0], strengths, a.objective[0], strict=True):
        r = y - z @ At
        np.testing.assert_allclose(r @ r + 2 * strength * abs(z).sum(), value, rtol=1e-12)
        # optimality: |A'r| <= strength, with equality and the sign of z where z is not 0
        c = np.asarray(At @ r)
        assert (abs(c) <= strength * (1 + 1e-4)).all()
        np.testing.assert_allclose(c[z != 0], strength * np.sign(z[z != 0]), rtol=1e-4)


def test_ties_do_not_stop_the_homotopy():
    """Clipped data, as images are, have equal and nearly dependent kernel columns: every fit is solved."""
    rng = np.random.default_rng(10)
    factors = rng.standard_normal((150, 3))
    X = np.clip(1.5 * factors @ rng.standard_normal((3, 6)), -1, 1)
    Y = 1.5 * factors @ rng.standard_normal((3, 4)) + 0.1 * rng.standard_normal((150, 4))
    strengths = jnp.asarray(0.1 * 5.0 ** np.arange(1, 6))
    data = _kernel_columns.check(X, np.clip(Y, -1, 1), "gaussian", "kernel", None, None, 3)
    tol, maxiter = jnp.asarray(1e-6), jnp.int32(100)
    solved = _cross_validation.train_grid(data, strengths, strengths, tol, maxiter)[0].lasso
    assert (solved.status == CONVERGED).all() and solved.gap.max() <= 1e-6


def test_status_of_the_working_set():
    At, y = lassos()
    limits = jnp.full((1, 150), 1e-3)
    full = solve_path(At, y, limits, jnp.asarray(1e-10), 8)
    assert int(full.status[0]) == _certificate.FULL and full.gap[0] > 1e-10
    stalled = solve_path(At, y, limits, jnp.asarray(0.0), 48)
    assert int(stalled.status[0]) in (STALLED, CONVERGED) and stalled.gap[0] < 1e-12


# ------------------------------------------------------------------ the certificate


@functools.cache
def solvers():
    """Both algorithms on the same problem: At, y, limits (1, p), tol -> Lasso with a leading 1."""

    def admm(At, y, limits, tol):
        mu = jnp.asarray(0.1, y.dtype)
        one = _kernel_admm.admm(At, y, limits[0], tol, jnp.int32(4000), mu)
        return jax.tree.map(lambda leaf: leaf[None], one)

    working_set = lambda *problem: solve_path(*problem, 64)
    return {"working set": jax.jit(working_set), "admm": jax.jit(admm)}


@pytest.mark.parametrize("algorithm", ["working set", "admm"])
def test_gap_bounds_its_rounding_error(algorithm):
    """In float32, asked for more than it can give, the gap bounds the true excess, and tol 0 is not met."""
    At, y = (a.astype(jnp.float32) for a in lassos())
    exact_At, exact_y = At.astype(float), y.astype(float)
    top = float(jnp.max(jnp.abs(At @ y)))
    for strength in (0.3, 0.03, 0.003, 0.0003):
        limits = jnp.full((1, 150), strength * top, jnp.float32)
        weight = float(limits[0, 0])
        best = solvers()["working set"](exact_At, exact_y, limits.astype(float), jnp.asarray(1e-12))
        assert int(best.status[0]) == CONVERGED
        found = solvers()[algorithm](At, y, limits, jnp.zeros((), jnp.float32))
        z = found.z[0].astype(float)
        value = float(jnp.sum((exact_y - z @ exact_At) ** 2) + 2 * weight * jnp.sum(jnp.abs(z)))
        scale = max(value, float(exact_y @ exact_y))
        assert int(found.status[0]) in (STALLED, MAX_ITER) and found.gap[0] > 1e-8
        assert (value - float(best.objective[0])) / scale <= found.gap[0]


@pytest.mark.parametrize("algorithm", ["working set", "admm"])
@pytest.mark.parametrize("dtype, power", [(np.float64, -565), (np.float32, -73)])
def test_squares_that_underflow(algorithm, dtype, power):
    """Data of size 1e-170, or 1e-22 in float32, is solved as that of size 1: bit for bit."""
    At, y = (a.astype(dtype) for a in lassos())
    limits = jnp.full((1, 150), 0.03 * jnp.max(jnp.abs(At @ y)))
    tol, unit = jnp.asarray(1e-3, dtype), dtype(2.0) ** dtype(power)

    def solve(y, limits):
        own = _certificate.Unit.of(y)
        with full_precision():
            return own.undone(solvers()[algorithm](At, y / own.size, own.limits(limits), tol))

    usual = solve(y, limits)
    assert int(usual.status[0]) == CONVERGED and usual.z.any()
    scaled = solve(y * unit, limits * unit)
    np.testing.assert_array_equal(scaled.z, usual.z * unit)
    for name in ("gap", "num_iters", "status"):
        np.testing.assert_array_equal(getattr(scaled, name), getattr(usual, name))
    huge = solve(y / unit, limits / unit)  # whose objective has no number
    assert int(huge.status[0]) == NON_FINITE


@pytest.mark.parametrize("method", ["auto", "admm"])
@pytest.mark.parametrize("dtype, size", [(np.float64, 1e-170), (np.float32, 1e-22)])
def test_tiny_outputs(method, dtype, size):
    """They are not "0, converged": the coefficients are those of outputs of size 1, in units."""
    X, Y = (a.astype(dtype) for a in data())
    strengths = [dtype(size * strength) for strength in (LAM, BETA)]
    options = dict(bandwidth=2.0, output_bandwidth=1.0, tol=1e-4)
    model = ofa_lasso.fit(X, (size * Y).astype(dtype), *strengths, method=method, mu=0.1, **options)
    # The kernel of outputs so small against its bandwidth is constant, which leaves the lasso in K.
    expected = ofa_lasso.fit(X, Y, LAM, BETA, **options).start_u
    assert model.solution.converged.all() and model.u.any(axis=1).all() and not model.v.any()
    np.testing.assert_allclose(model.u / dtype(size), expected, atol=0.05 * np.abs(expected).max())


def test_inputs_whose_squares_underflow():
    """Unlike the outputs they have no unit: the answer is right, or not called converged."""
    X, Y = data()
    unit = 2.0**-565
    model = ofa_lasso.fit(X * unit, Y, 0.3 * unit, 1e9, input="linear")
    reference = ofa_lasso.fit(X, Y, 0.3, 1e9, input="linear")
    solved = model.solution.converged
    assert reference.u.any()
    np.testing.assert_allclose(model.u[solved] * unit, reference.u[solved], atol=1e-6)
    assert not (solved & (model.u == 0).all(axis=1)).any()


@pytest.mark.parametrize("method", ["auto", "admm"])
def test_bad_values_give_a_status_in_jit(method):
    """A NaN gap, or one of a strength that is not positive, is no certificate."""
    X, Y = map(jnp.asarray, data())
    options = dict(bandwidth=2.0, output_bandwidth=1.5, method=method)
    fit = jax.jit(lambda Y, lam: ofa_lasso.fit(X, Y, lam, BETA, **options).solution)
    for lam in (0.0, -1.0, -1e-3, np.nan, -np.inf):
        solution = fit(Y, lam)
        assert (solution.status == NON_FINITE).all() and not solution.converged.any()
    assert fit(Y, np.inf).converged.all()
    of_inputs = jax.jit(lambda X: ofa_lasso.fit(X, Y, LAM, BETA, **options).solution)
    # Each output sees all rows of X, and the other outputs by their kernel.
    for broken in (fit(Y.at[3, 1].set(jnp.nan), LAM), of_inputs(X.at[3, 1].set(jnp.nan))):
        assert (broken.status == NON_FINITE).all() and np.isnan(broken.gap).all()


def test_bucket_grows(monkeypatch):
    monkeypatch.setattr("sparsejax.models.ofa_lasso._train.FIRST_BUCKET_COLUMNS", 4)
    X, Y = data()
    model = ofa_lasso.fit(X, Y, LAM, BETA, tol=1e-12)
    assert model.solution.converged.all()
    assert np.count_nonzero(model.solution.params, axis=1).max() > 4
    np.testing.assert_allclose(model.solution.objective, fitted().solution.objective, rtol=1e-10)


@pytest.mark.float32_only_ok
def test_float32():
    model = fitted(dtype=np.float32, tol=1e-4)
    assert model.solution.converged.all()
    assert {leaf.dtype.name for leaf in jax.tree.leaves(model)} == {"float32", "int32"}
    X, _ = data()
    info = model.predict_with_info(X[:6].astype(np.float32))
    assert info.y.dtype == np.float32 and np.isfinite(info.y).all()
    assert (info.residual <= info.start_residual).all()


def test_jit_and_vmap():
    """A fit inside jit and vmap is the fit outside: over strengths."""
    X, Y = map(jnp.asarray, data())
    one = lambda lam: ofa_lasso.fit(X, Y, lam, BETA, tol=1e-12, bandwidth=2.0, output_bandwidth=1.5).u
    lams = jnp.asarray([LAM, 0.4])
    batch = jax.jit(jax.vmap(one))(lams)
    for lam, u in zip(lams, batch, strict=True):
        np.testing.assert_allclose(u, one(lam), atol=1e-8)


# ------------------------------------------------------------------ prediction


def agreement_by_hand(model, x, y):
    """The objective of prediction from its definition."""
    K = model.X if model.input == "linear" else None
    total = 0.0
    for j in range(len(y)):
        rest, centers = np.delete(y, j)[None], np.delete(np.asarray(model.Y), j, axis=1)
        g = kernels.gaussian(rest, centers, bandwidth=model.output_bandwidth[j])[0]
        k = x if K is not None else kernels.gaussian(x[None], model.X, bandwidth=model.bandwidth)[0]
        total += (y[j] - k @ model.u[j] - g @ model.v[j] - model.intercept[j]) ** 2
    return float(total)


@pytest.mark.parametrize("input", ["kernel", "linear"])
def test_prediction(input, rng):
    model = fitted(input)
    X = rng.standard_normal((6, 5))
    info = model.predict_with_info(X, num_starts=4)
    np.testing.assert_array_equal(info.y, model.predict_with_info(X, num_starts=4).y)  # deterministic
    assert (info.residual <= info.start_residual).all()
    assert (info.num_stationary >= 1).all() and (info.num_stationary <= 4).all()
    for i in range(6):
        at = lambda y, i=i: agreement_by_hand(model, X[i], np.asarray(y))
        np.testing.assert_allclose(info.residual[i], at(info.y[i]), atol=1e-12)
        np.testing.assert_allclose(info.start_residual[i], at(info.start[i]), rtol=1e-9)
        h = 1e-5
        slope = [(at(info.y[i] + h * e) - at(info.y[i] - h * e)) / (2 * h) for e in np.eye(3)]
        np.testing.assert_allclose(slope, 0, atol=2e-5)
    if input == "kernel":
        single = model.predict_with_info(X)
        assert (info.residual <= single.residual + 1e-12).all()
        np.testing.assert_array_equal(single.y, model.predict(X))
    K = X if input == "linear" else kernels.gaussian(X, model.X, bandwidth=model.bandwidth)
    np.testing.assert_allclose(info.start, K @ model.start_u.T + model.start_intercept[None], atol=1e-12)


def test_score_and_repr():
    X, Y = data()
    model = fitted()
    assert model.score(X, Y) == pytest.approx(r2_score(Y, model.predict(X))) and model.score(X, Y) > 0.5
    used = [int(np.count_nonzero(weights)) for weights in (model.u, model.v)]
    shown = (
        f"ofa_lasso.Model(3 outputs, 14 rows, {used[0]} weights of inputs and {used[1]} of outputs kept, gap "
    )
    assert repr(model).startswith(shown) and repr(model).endswith(", converged)")
    unsolved = model.start_solution._replace(status=model.start_solution.status.at[0].set(1))
    assert repr(model._replace(start_solution=unsolved)).endswith(", not converged)")


def test_no_worse_than_the_start():
    """Not even if no search is allowed a single step, and no other start is better: at the start itself."""
    model = fitted("linear")
    info = model.predict_with_info(np.ones((6, 5)) * np.arange(6)[:, None], num_starts=4, maxiter=0)
    assert (info.residual <= info.start_residual).all() and (info.num_stationary == 0).all()
    np.testing.assert_array_equal((info.y == info.start).all(1), info.residual == info.start_residual)


def test_several_stationary_points_are_counted():
    """y1 = 2 g(y2), y2 = 2 g(y1) with a bump g at 2 holds for y1 = y2 = 2, 1.7316 and 0.0007."""
    outputs = _predict.Outputs(
        centers=jnp.asarray([[[0.0, 2.0]], [[2.0, 0.0]]]),
        weights=jnp.asarray([[2.0], [2.0]]),
        bandwidth=jnp.asarray([0.5, 0.5]),
        shift=jnp.zeros(2),
    )
    further = jnp.asarray([[1.9, 1.9], [2.1, 2.1], [0.01, 0.0]])
    zero, one = jnp.zeros((1, 2)), jnp.ones(2)
    search = functools.partial(_predict.search, "gaussian", 3, outputs, zero, zero, scale=one)
    info = search(further=further, tol=1e-7, maxiter=200)
    assert int(info.num_stationary[0]) == 3  # of four searches: two meet
    assert float(info.residual[0]) < 1e-12
    same = search(further=jnp.zeros((3, 2)), tol=1e-7, maxiter=200)
    np.testing.assert_allclose(same.y[0], 2 * np.exp(-8), atol=1e-5)  # the start decides
    assert int(same.num_stationary[0]) == 1


def test_cross_validation():
    """The errors are those of a fit of each pair, and the gaps hold on the way from pair to pair."""
    X, Y = data()
    lams, betas = np.asarray([0.02, 0.5, 0.1]), np.asarray([0.3, 0.05])
    cv = ofa_lasso.cross_validate(X, Y, lams, betas, folds=2, tol=1e-10)
    assert cv.fold_mae.shape == (2, 3, 2) and cv.converged.all() and (cv.gap <= 1e-10).all()
    out = np.arange(14) % 2 == 1
    model = ofa_lasso.fit(X[~out], Y[~out], lams[2], betas[1], tol=1e-10)
    info = model.predict_with_info(X[out])
    np.testing.assert_allclose(cv.fold_mae[1, 2, 1], abs(Y[out] - info.y).sum(1).mean(), rtol=1e-3)
    np.testing.assert_allclose(cv.start_mae[1, 2], abs(Y[out] - info.start).sum(1).mean(), rtol=1e-4)
    mean = np.asarray(cv.fold_mae).mean(0)
    i, j = np.unravel_index(mean.argmin(), mean.shape)
    assert cv.lam == lams[i] and cv.beta == betas[j]
    assert cv.start_lam == lams[np.asarray(cv.start_mae).mean(0).argmin()]
    with pytest.warns(UserWarning, match="no pair of strengths has a finite error"):
        ofa_lasso.cross_validate(1e60 * X, Y, lams, betas, folds=2, kernel="polynomial", degree=13)


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(folds=1), "folds must be"),
        (dict(folds=15), "folds must be"),
        (dict(lams=[1.0, 0.0]), "lams must be > 0"),
        (dict(betas=np.nan), "betas has 1 value"),
    ],
)
def test_bad_cross_validation(change, words):
    X, Y = data()
    with pytest.raises(ValueError, match=words):
        ofa_lasso.cross_validate(**(dict(X=X, Y=Y, lams=[1.0], betas=[1.0]) | change))


# ------------------------------------------------------------------ bad input


def test_constant_and_repeated():
    X, Y = data()
    Y = np.c_[Y, np.ones(14)]
    X, Y = np.r_[X, X[:3]], np.r_[Y, Y[:3]]
    model = ofa_lasso.fit(X, Y, LAM, BETA)
    assert model.solution.converged.all()
    assert not model.u[3].any() and not model.v[3].any() and model.intercept[3] == 1
    assert np.isfinite(model.predict(X)).all()


@pytest.mark.parametrize(
    "change, error, words",
    [
        (lambda X, Y: dict(X=X[:1], Y=Y[:1]), ValueError, "two rows"),
        (lambda X, Y: dict(X=X[:-1]), ValueError, "13 rows and Y has 14"),
        (lambda X, Y: dict(Y=Y[:, :1]), ValueError, "1 column"),
        (lambda X, Y: dict(Y=Y[:, 0]), ValueError, "Y has shape"),
        (lambda X, Y: dict(Y=np.where(Y > 1, np.nan, Y)), ValueError, "Y has .* NaN"),
        (lambda X, Y: dict(X=np.where(X > 1, np.inf, X)), ValueError, "X has .* infinite"),
        (lambda X, Y: dict(X=np.ones_like(X)), ValueError, "median distance .* is 0"),
        (
            lambda X, Y: dict(Y=1e300 * Y),
            ValueError,
            "without column 0 .* overflows or underflows: .* rescale Y",
        ),
        (
            lambda X, Y: dict(Y=np.c_[Y[:, 0], np.ones(14)]),
            ValueError,
            "without column 0 .* output_bandwidth",
        ),
        (lambda X, Y: dict(bandwidth=0.0), ValueError, "bandwidth must be > 0, got 0"),
        (lambda X, Y: dict(output_bandwidth=[1.0, -1.0, 1.0]), ValueError, "output_bandwidth must be > 0"),
        (lambda X, Y: dict(output_bandwidth=[1.0, 1.0]), ValueError, "has 2 values"),
        (lambda X, Y: dict(lam=0.0), ValueError, "lam must be > 0, got 0"),
        (lambda X, Y: dict(beta=[1.0, 2.0]), ValueError, "beta has 2 values"),
        (lambda X, Y: dict(kernel="rbf"), ValueError, "kernel must be"),
        (lambda X, Y: dict(input="raw"), ValueError, "input must be"),
        (lambda X, Y: dict(degree=0), ValueError, "degree must be"),
        (lambda X, Y: dict(method="lars"), ValueError, "method must be"),
        (lambda X, Y: dict(faithful=True), ValueError, "method='admm'"),
        (lambda X, Y: dict(method="admm", mu=0.0), ValueError, "mu must be > 0"),
        (lambda X, Y: dict(method="admm", growth=0.5), ValueError, "growth must be >= 1, got 0.5"),
        (lambda X, Y: dict(method="admm", growth=True), TypeError, "growth must be a number, got True"),
        (lambda X, Y: dict(tol=-1.0), ValueError, "tol must be >= 0"),
        (lambda X, Y: dict(maxiter=1.5), ValueError, "maxiter must be"),
    ],
)
def test_bad_input(change, error, words):
    X, Y = data()
    with pytest.raises(error, match=words):
        ofa_lasso.fit(**(dict(X=X, Y=Y, lam=LAM, beta=BETA) | change(X, Y)))


def test_bad_prediction():
    model = fitted()
    with pytest.raises(ValueError, match="X has 4 columns; the model was fitted with 5"):
        model.predict(np.zeros((2, 4)))
    with pytest.raises(ValueError, match="NaN"):
        model.predict(np.full((2, 5), np.nan))
    with pytest.raises(ValueError, match="num_starts must be"):
        model.predict_with_info(np.zeros((2, 5)), num_starts=0)
    assert model.predict(np.zeros((0, 5))).shape == (0, 3)


def test_maxiter_is_reported():
    X, Y = data()
    model = ofa_lasso.fit(X, Y, LAM, BETA, maxiter=0)
    assert (model.solution.status == MAX_ITER).all() and not model.solution.converged.any()


def test_options_of_cross_validation():
    X, Y = data()
    options = dict(input="linear", output_bandwidth=1.5)
    cv = ofa_lasso.cross_validate(X, Y, [0.1], [0.05], folds=2, num_starts=3, tol=1e-10, **options)
    out = np.arange(14) % 2 == 1
    model = ofa_lasso.fit(X[~out], Y[~out], 0.1, 0.05, tol=1e-10, **options)
    y = model.predict_with_info(X[out], num_starts=3).y
    np.testing.assert_allclose(cv.fold_mae[1, 0, 0], abs(Y[out] - y).sum(1).mean(), rtol=1e-3)


def test_forward_derivative_outside_jit():
    X, Y = np.random.default_rng(0).standard_normal((2, 12, 2))
    fit = lambda lam: jnp.sum(jnp.sin(ofa_lasso.fit(X, Y, lam, 0.5).u))
    push = lambda lam: jax.jvp(fit, (lam,), (jnp.ones_like(lam),))[1]
    lam = jnp.asarray(0.5)
    np.testing.assert_allclose(push(lam), jax.jit(push)(lam), rtol=1e-4)


def test_num_starts_is_refused_before_the_fits(monkeypatch):
    def trained(*args):
        raise AssertionError("trained")

    monkeypatch.setattr("sparsejax.models.ofa_lasso._cross_validation.train_grid", trained)
    X, Y = np.random.default_rng(0).standard_normal((2, 6, 2))
    with pytest.raises(ValueError, match="num_starts must be"):
        ofa_lasso.cross_validate(X, Y, [0.5], [0.5], num_starts=0)


@pytest.mark.parametrize(("kernel", "degree"), [("polynomial", 2), ("linear", 3)])
def test_other_kernels(kernel, degree):
    """The optimum of a conic solver; a prediction agrees by its definition, and is stationary."""
    X, Y = data()
    model = ofa_lasso.fit(X, Y, 5.0, 5.0, kernel=kernel, degree=degree, tol=1e-10)
    gram = lambda A, B: (A @ B.T + 1) ** degree if kernel == "polynomial" else A @ B.T
    others = [np.delete(Y, j, axis=1) for j in range(3)]
    for j, Z in enumerate(others):
        u, v, b = cp.Variable(14), cp.Variable(14), cp.Variable()
        loss = cp.sum_squares(Y[:, j] - gram(X, X) @ u - gram(Z, Z) @ v - b)
        best = cp.Problem(cp.Minimize(loss + 5 * cp.norm1(u) + 5 * cp.norm1(v))).solve(solver=cp.CLARABEL)
        r = Y[:, j] - gram(X, X) @ model.u[j] - gram(Z, Z) @ model.v[j] - model.intercept[j]
        value = r @ r + 5 * np.abs(model.u[j]).sum() + 5 * np.abs(model.v[j]).sum()
        np.testing.assert_allclose(value, best, rtol=1e-6)
        np.testing.assert_allclose(model.solution.objective[j], value, rtol=1e-10)
    new = 0.3 * np.random.default_rng(1).standard_normal((4, 5))
    info = model.predict_with_info(new)

    def at(x, y):
        known = (gram(x[None], X) @ model.u.T)[0] + model.intercept
        of_others = [gram(np.delete(y, j)[None], Z)[0] @ model.v[j] for j, Z in enumerate(others)]
        return float(np.sum((y - known - np.array(of_others)) ** 2))

    for x, y, residual in zip(new, np.asarray(info.y), np.asarray(info.residual), strict=True):
        np.testing.assert_allclose(residual, at(x, y), atol=1e-10)
        slope = [(at(x, y + 1e-5 * e) - at(x, y - 1e-5 * e)) / 2e-5 for e in np.eye(3)]
        np.testing.assert_allclose(slope, 0, atol=1e-4)


@pytest.mark.parametrize(("unit", "dtype"), [(2.0**-565, np.float64), (2.0**-70, np.float32)])
def test_predictions_do_not_depend_on_the_unit_of_the_outputs(unit, dtype):
    """Squares of such outputs underflow."""
    X, model, u = data()[0].astype(dtype), fitted(dtype=dtype, tol=1e-4), dtype(unit)
    small = model._replace(
        Y=u * model.Y,
        u=u * model.u,
        v=u * model.v,
        intercept=u * model.intercept,
        start_u=u * model.start_u,
        start_intercept=u * model.start_intercept,
        output_bandwidth=u * model.output_bandwidth,
    )
    known, info = (m.predict_with_info(X[:6], num_starts=3) for m in (model, small))
    np.testing.assert_array_equal(info.y / u, known.y)
    np.testing.assert_array_equal(info.num_stationary, known.num_stationary)
    assert (known.y != known.start).any(axis=1).all()


def test_a_large_output_leaves_the_kernels_of_small_ones():
    """In float32 (1e4^2 + 1) - 1e4^2 is not 1: the model of the large output would see other outputs."""
    X, Y = (x.astype(np.float32) for x in data())
    large = np.asarray([1e4, 1, 1], np.float32)
    model = ofa_lasso.fit(X, large * Y, LAM * large, BETA * large)
    info, wide = model.predict_with_info(X[:4]), jax.tree.map(lambda leaf: leaf.astype(float), model)
    for i in range(4):
        expected = agreement_by_hand(wide, X[i].astype(float), np.asarray(info.start[i], float))
        np.testing.assert_allclose(info.start_residual[i], expected, rtol=1e-2)


def test_a_start_that_failed_is_reported(monkeypatch):
    train = _cross_validation.train_grid

    def with_a_failed_start(*args):
        fitted, index = train(*args)
        status = fitted.lasso.status.at[1, 0].set(MAX_ITER)  # of output 1 at the first strength, a start
        return fitted._replace(lasso=fitted.lasso._replace(status=status)), index

    monkeypatch.setattr(_cross_validation, "train_grid", with_a_failed_start)
    with pytest.warns(ConvergenceWarning, match="4 of 8 pairs of strengths and folds"):
        cv = ofa_lasso.cross_validate(*data(), [0.1, 0.05], [0.05, 0.03])
    assert not cv.converged[:, 0].any() and cv.converged[:, 1].all()


def test_outputs_whose_squares_underflow_are_told():
    X, Y = np.random.default_rng(0).standard_normal((2, 6, 2)).astype(np.float32)
    with pytest.raises(ValueError, match="underflows: give output_bandwidth, or rescale Y"):
        ofa_lasso.fit(X, Y * np.float32(1e-25), lam=0.5, beta=0.5)


@pytest.mark.parametrize("name", ["tol", "mu"])
def test_vmap_over_an_option_alone(name, rng):
    """More than 128 columns, so that a full bucket would be looked at."""
    X, Y = rng.standard_normal((2, 70, 2))
    more = {"method": "admm", "maxiter": 20} if name == "mu" else {}
    fit = lambda x: ofa_lasso.fit(X, Y, 5.0, 5.0, **more, **{name: x}).u
    found = jax.vmap(fit)(jnp.array([1e-3, 1e-5]) if name == "tol" else jnp.array([1.0, 2.0]))
    assert found.shape == (2, 2, 70) and jnp.isfinite(found).all()


def test_prediction_of_a_batch_is_refused(rng):
    X, Y = rng.standard_normal((2, 6, 2))
    models = jax.vmap(lambda lam: ofa_lasso.fit(X, Y, lam, 0.5))(jnp.array([0.5, 1.0]))
    with pytest.raises(ValueError, match="a batch of"):
        models.predict(X)
    assert jax.vmap(lambda model: model.predict(X))(models).shape == (2, 6, 2)


def test_the_rounding_error_of_a_certificate_is_not_negative():
    """With s = 10 the term (1 - s)||y|| was subtracted."""
    r, y = 1e-3 * jnp.array([0.5, 0.75**0.5]), jnp.array([1.0, 0.0])
    found = _certificate.certify(y, r, r, jnp.array([5e-3, 2e-2]), jnp.ones(2), y - r)
    assert found.rounding > 0
