"""Real data sets, certified to 1e-9: the objective values are those of two independent solvers."""

import jax.numpy as jnp
import numpy as np
import pytest

import sparsejax as sj

# minimum of ||XW - Y||_F^2 + ||W||_{2,1} + sum_i ||w_i||_1^2, columns standardised, one-hot Y centred: on
# yale by row coordinate descent with Anderson extrapolation (gap 6e-14); on glioma by our two solvers alone
MINIMUM = {"yale": 20.808331020220837, "glioma": 3.577365085}


def standardised(folder, name):
    with np.load(folder / f"{name}.npz") as archive:
        X, y = np.asarray(archive["X"], float), np.asarray(archive["y"])
    X = X - X.mean(0)
    spread = X.std(0)
    X = X[:, spread > 1e-12] / spread[spread > 1e-12]
    Y = (y[:, None] == np.unique(y)).astype(float)
    return X, Y - Y.mean(0)


@pytest.mark.parametrize("name", MINIMUM)
def test_exclusive_l21_reaches_the_known_minimum(shared_data, name):
    X, Y = standardised(shared_data, name)
    problem = sj.Problem(sj.losses.SquaredLoss(X, Y, scale=1.0), sj.penalties.ExclusiveL21(1.0, 1.0))
    solution = sj.solve(problem, tol=1e-10, throw=True)
    np.testing.assert_allclose(solution.objective, MINIMUM[name], rtol=1e-9)
    # the intercept does the centring, and scale the strengths
    raw = sj.losses.SquaredLoss(X, Y + 0.3, intercept=True)
    same = sj.Problem(raw, sj.penalties.ExclusiveL21(*(2 * [1 / (2 * len(X))])))
    again = sj.solve(same, tol=1e-10, throw=True)
    np.testing.assert_allclose(again.objective * 2 * len(X), MINIMUM[name], rtol=1e-9)


def test_float32_on_real_data(shared_data):
    """1e-5 is within reach in float32, and below the floor the status says so."""
    X, Y = standardised(shared_data, "yale")
    X, Y = X.astype(np.float32), Y.astype(np.float32)
    loss = sj.losses.SquaredLoss(X, Y)
    alpha = sj.lambda_max(sj.Problem(loss, sj.penalties.L21(1.0))) / 10
    for penalty in (sj.penalties.L21(alpha), sj.penalties.ExclusiveL21(alpha, alpha)):
        problem = sj.Problem(loss, penalty)
        solution = sj.solve(problem, tol=1e-5)
        assert bool(solution.converged) and float(solution.gap) <= 1e-5
        assert solution.params.dtype == jnp.float32
        floor = sj.solve(problem, tol=0.0)
        assert bool(floor.converged) == (float(floor.gap) == 0)
        assert float(floor.gap) < 1e-5
