"""Every solver against an interior-point conic solver, scikit-learn, and limits that must coincide.

Objectives are evaluated here, in numpy, from the formulas in the docstrings. The conic solver's point is
an upper bound of the optimum, and so is every point of ours: the lowest of all stands for the optimum.
"""

import functools
import warnings
from dataclasses import dataclass, replace

import cvxpy as cp
import jax
import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit
from sklearn.datasets import load_wine
from sklearn.linear_model import Lasso, LogisticRegression, MultiTaskLasso

import sparsejax as sj

TOLS = (1e-6, 1e-8, 1e-10)
ACCURACY = 1e-8  # relative, of the objective
CLARABEL = {
    "tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12, "tol_ktratio": 1e-10, "max_iter": 500,
}  # fmt: skip
LOSSES = {
    "squared": sj.losses.SquaredLoss,
    "logistic": sj.losses.LogisticLoss,
    "squared hinge": sj.losses.SquaredHingeLoss,
    "huber hinge": sj.losses.HuberHingeLoss,
}
DELTA = 0.5  # the default of the last


def target(loss, Y):
    """Y, or labels from it of the kind that the loss needs."""
    above = np.median(Y, axis=0) < Y
    return Y if loss == "squared" else above.astype(float) if loss == "logistic" else 2.0 * above - 1


def huber(slack):
    return np.where(slack < DELTA, slack**2 / (2 * DELTA), slack - DELTA / 2)


# ------------------------------------------------------------------ a problem in numpy and in cvxpy


@dataclass(frozen=True)
class Instance:
    """Plain numbers, and what follows from them without the library."""

    loss: str
    penalty: str
    X: np.ndarray
    Y: np.ndarray
    strengths: tuple
    weights: np.ndarray | None = None
    intercept: bool = False

    def problem(self):
        smooth = LOSSES[self.loss](self.X, self.Y, weights=self.weights, intercept=self.intercept)
        return sj.Problem(smooth, getattr(sj.penalties, self.penalty)(*self.strengths))

    def float64(self):
        """The same numbers in float64."""
        cast = lambda a: None if a is None else np.asarray(a, float)
        return replace(
            self, X=cast(self.X), Y=cast(self.Y), weights=cast(self.weights),
            strengths=tuple(map(cast, self.strengths)),
        )  # fmt: skip

    @property
    def scale(self):
        return (0.5 if self.loss == "squared" else 1.0) / len(self.X)

    def parts(self):
        """Y and weights as (n, k), strengths as (d,), all float64."""
        Y = self.Y.reshape(len(self.X), -1).astype(float)
        weights = np.ones_like(Y) if self.weights is None else self.weights.reshape(len(Y), -1).astype(float)
        strengths = [np.broadcast_to(np.asarray(s, float), self.X.shape[1:]) for s in self.strengths]
        return Y, np.broadcast_to(weights, Y.shape), strengths

    def objective(self, W):
        """F(W) with the best intercept, in float64."""
        Y, weights, strengths = self.parts()
        W = np.asarray(W, float).reshape(self.X.shape[1], -1)
        H = self.X.astype(float) @ W
        if self.intercept:
            H = H + np.array([self._intercept(*column) for column in zip(H.T, Y.T, weights.T, strict=True)])
        slack = np.maximum(1 - Y * H, 0)
        entries = {
            "squared": lambda: (H - Y) ** 2,
            "logistic": lambda: np.logaddexp(0, H) - Y * H,
            "squared hinge": lambda: slack**2,
            "huber hinge": lambda: huber(slack),
        }[self.loss]()
        value = self.scale * np.sum(weights * entries)
        l1, l2, top = np.abs(W).sum(1), np.sqrt((W**2).sum(1)), np.abs(W).max(1)
        terms = {"L1": [l1], "L21": [l2], "L1Inf": [top], "ExclusiveLasso": [l1**2]}
        terms["ExclusiveL21"] = [l2, l1**2]
        return value + sum(float(s @ t) for s, t in zip(strengths, terms[self.penalty], strict=True))

    def _intercept(self, h, y, w):
        if self.loss == "squared":
            return w @ (y - h) / w.sum()
        slope = {
            "logistic": lambda h: expit(h) - y,
            "squared hinge": lambda h: -y * np.maximum(1 - y * h, 0),
            "huber hinge": lambda h: -y * np.clip((1 - y * h) / DELTA, 0, 1),
        }[self.loss]
        bound = 50 + np.abs(h).max()
        return brentq(lambda b: w @ slope(h + b), -bound, bound, xtol=1e-15, rtol=1e-14)

    def reference(self):
        """W by Clarabel, from the epigraph form."""
        Y, weights, strengths = self.parts()
        d, k = self.X.shape[1], Y.shape[1]
        W = cp.Variable((d, k))
        H = self.X.astype(float) @ W
        if self.intercept:
            H = H + np.ones((len(Y), 1)) @ cp.Variable((1, k))
        constraints = []
        if self.loss == "squared":
            cost = self.scale * cp.sum_squares(cp.multiply(np.sqrt(weights), H - Y))
        elif self.loss == "logistic":
            cost = self.scale * cp.sum(cp.multiply(weights, cp.logistic(H) - cp.multiply(Y, H)))
        else:
            squared, plain = cp.Variable(Y.shape, nonneg=True), cp.Variable(Y.shape, nonneg=True)
            factor = self.scale
            if self.loss == "huber hinge":  # the slack in two parts, of which one is squared
                factor /= 2 * DELTA
            else:
                constraints += [plain == 0]
            constraints += [squared + plain >= 1 - cp.multiply(Y, H)]
            cost = factor * cp.sum_squares(cp.multiply(np.sqrt(weights), squared))
            cost += self.scale * cp.sum(cp.multiply(weights, plain))
        if self.penalty != "L21":
            A, t = cp.Variable((d, k)), cp.Variable(d)
            constraints += [A >= W, A >= -W]
            constraints += [t >= cp.max(A, axis=1) if self.penalty == "L1Inf" else t == cp.sum(A, axis=1)]
            if self.penalty in ("L1", "L1Inf"):
                cost += strengths[0] @ t
            else:
                cost += cp.sum_squares(cp.multiply(np.sqrt(strengths[-1]), t))
        if self.penalty in ("L21", "ExclusiveL21"):
            r = cp.Variable(d)
            constraints += [cp.norm(W, 2, axis=1) <= r]
            cost += strengths[0] @ r
        with warnings.catch_warnings():  # it asks for more digits than it can always reach
            warnings.filterwarnings("ignore", "Solution may be inaccurate")
            cp.Problem(cp.Minimize(cost), constraints).solve(solver=cp.CLARABEL, **CLARABEL)
        return W.value.reshape(self.X.shape[1:] + self.Y.shape[1:])


SHAPES = {"tall": (20, 6, 3), "wide": (8, 14, 3), "vector": (20, 6, None)}
STRENGTHS = {
    "L1": (0.04,),
    "L21": (0.06,),
    "L1Inf": (0.1,),
    "ExclusiveLasso": (0.03,),
    "ExclusiveL21": (0.04, 0.02),
}
# (loss, penalty, shape, weights, strengths, intercept): every pair of settings occurs; a row costs one
# compilation for admm, and a second one for fista where it is in WITH_FISTA.
CASES = [
    ("squared", "L1", "tall", None, "scalar", True),
    ("squared", "L1", "wide", "entry", "row", False),
    ("squared", "L21", "tall", "row", "row", True),
    ("squared", "L21", "wide", None, "scalar", False),
    ("squared", "ExclusiveLasso", "vector", "row", "scalar", True),
    ("squared", "ExclusiveLasso", "wide", "entry", "row", True),
    ("squared", "ExclusiveL21", "tall", "entry", "row", False),
    ("squared", "ExclusiveL21", "wide", "row", "scalar", True),
    ("logistic", "L1", "vector", None, "row", False),
    ("logistic", "L1", "wide", "row", "scalar", True),
    ("logistic", "L21", "tall", "entry", "scalar", True),
    ("logistic", "L21", "wide", None, "row", False),
    ("logistic", "ExclusiveLasso", "tall", None, "row", True),
    ("logistic", "ExclusiveLasso", "vector", "entry", "scalar", False),
    ("logistic", "ExclusiveL21", "tall", "row", "row", True),
    ("logistic", "ExclusiveL21", "wide", "entry", "scalar", False),
    ("squared", "L1Inf", "tall", "entry", "scalar", True),
    ("squared", "L1Inf", "wide", None, "row", False),
    ("squared hinge", "L21", "tall", "row", "scalar", True),
    ("squared hinge", "ExclusiveL21", "vector", "entry", "row", False),
    ("huber hinge", "L1", "wide", None, "scalar", False),
    ("huber hinge", "ExclusiveL21", "tall", "entry", "row", True),
]


WITH_FISTA = [CASES[i] for i in (0, 3, 5, 7, 8, 10, 12, 15, 16, 21)]


def case_id(case):
    return "-".join("intercept" if c is True else str(c) for c in case if c not in (None, False))


def instances(case, dtype=np.float64):
    """The instances of one structure: independent columns, and everything that is awkward."""
    loss, penalty, shape, weights_by, strengths_by, intercept = case
    rng = np.random.default_rng(CASES.index(case))
    n, d, k = SHAPES[shape]
    columns = () if k is None else (k,)
    made = []
    for awkward in (False, True):
        X = rng.standard_normal((n, d))
        if awkward:
            X = 0.4 * X + rng.standard_normal((n, 1))  # correlated
            X[:, 1] = X[:, 0]  # a tie between features
            X[:, 2] = 1.5  # a constant column
            X[:, 3] = 0
        truth = rng.standard_normal((d, *columns)) * (rng.random((d,) + (1,) * len(columns)) < 0.5)
        Y = X @ truth + 0.5 * rng.standard_normal((n, *columns))
        if awkward and columns:
            Y[:, 1] = Y[:, 0]  # a tie between classes
        Y = target(loss, Y)
        weights = None
        if weights_by is not None:
            weights = rng.uniform(0.2, 2, (n,) if weights_by == "row" else Y.shape)
            weights[:2] = 0
        strengths = STRENGTHS[penalty]
        if strengths_by == "row":
            strengths = tuple(s * rng.uniform(0.3, 3, d) for s in strengths)
            if penalty == "ExclusiveL21":  # rows with one of the two terms only
                strengths[0][:2] = 0
                strengths[1][2:4] = 0
        cast = lambda a: None if a is None else np.asarray(a, dtype)
        made.append(
            Instance(
                loss, penalty, cast(X), cast(Y), tuple(map(cast, strengths)), cast(weights), intercept
            )
        )  # fmt: skip
    if penalty == "ExclusiveL21" and strengths_by == "scalar":
        alpha, beta = made[1].strengths
        made.append(replace(made[1], strengths=(alpha, 0 * beta)))
        made.append(replace(made[1], strengths=(0 * alpha, beta)))
    return made


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_against_conic_solver(case):
    """Objective, certificate and status of all solvers, at three tolerances."""
    for instance in instances(case):
        problem = instance.problem()
        reference = instance.objective(instance.reference())
        solvers = (sj.admm, sj.fista) if case in WITH_FISTA else (sj.admm,)
        answers = [(tol, solve(problem, tol=tol)) for solve in solvers for tol in TOLS]
        # calls of the others, which share their compilation
        answers.append((1e-10, sj.solve(problem, tol=1e-10)))
        by_alm = instance.loss == "squared" and instance.penalty not in ("L1", "L1Inf")
        if by_alm and problem.smooth.quadratic:
            answers.append((1e-10, sj.alm(problem, tol=1e-10)))

        objectives = [instance.objective(s.params) for _, s in answers]
        optimum = min([reference, *objectives])
        at_zero = instance.objective(np.zeros_like(answers[0][1].params))
        assert reference <= optimum * (1 + ACCURACY)
        for (tol, s), objective in zip(answers, objectives, strict=True):
            assert bool(s.converged) and 0 <= float(s.gap) <= tol
            np.testing.assert_allclose(float(s.objective), objective, rtol=1e-13)
            excess = (objective - optimum) / max(abs(objective), at_zero)
            assert excess <= float(s.gap) + 1e-14
            if tol == TOLS[-1]:
                assert objective <= reference * (1 + ACCURACY)


@pytest.mark.parametrize("case", [CASES[i] for i in (0, 6, 7, 10)], ids=case_id)
def test_float32(case):
    """In float32 the gap bounds the excess too, and a gap above tol is never called converged."""
    for instance in instances(case, np.float32):
        problem = instance.problem()
        exact = instance.float64()
        optimum = exact.objective(exact.reference())
        for solve in (sj.solve, sj.fista) if case == CASES[7] else (sj.solve,):
            for tol in (1e-4, 1e-5):
                s = solve(problem, tol=tol)
                assert s.params.dtype == s.objective.dtype == s.gap.dtype == np.float32
                assert bool(s.converged) == (float(s.gap) <= np.float32(tol))
                assert bool(s.converged) or int(s.status) in (sj.problem.MAX_ITER, sj.problem.STALLED)
                assert bool(s.converged) or tol < 1e-4  # the default is reached
                objective = exact.objective(s.params)
                excess = (objective - optimum) / max(objective, exact.objective(np.zeros(s.params.shape)))
                assert excess <= float(s.gap) + 1e-6


def test_raw_columns_in_float32():
    """Columns of very unequal size (wine as it is measured: 0.1 to 750) in float32, to the default tol."""
    X, labels = load_wine(return_X_y=True)
    Y = np.eye(3)[labels]
    loss = sj.losses.SquaredLoss(X.astype(np.float32), Y.astype(np.float32), intercept=True)
    problem = sj.Problem(loss, sj.penalties.L21(1.0))
    problem = problem.replace(penalty=sj.penalties.L21(1e-3 * sj.lambda_max(problem)))
    s = sj.solve(problem)
    assert bool(s.converged) and int(s.num_iters) <= 1000
    exact = Instance("squared", "L21", X, Y, (float(problem.penalty.alpha),), intercept=True)
    optimum = exact.objective(sj.solve(exact.problem(), tol=1e-9).params)
    assert exact.objective(s.params) <= optimum * (1 + 2e-4)


# ------------------------------------------------------------------ a second library


def linear_data(n=20, d=6, k=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + 0.5 * rng.standard_normal((n, 1)) + 1
    truth = rng.standard_normal((d, k)) * (np.arange(d) < 3)[:, None]
    return X, X @ truth + 0.5 * rng.standard_normal((n, k)) - 2, rng


def test_lasso_and_multitask_lasso_of_scikit_learn():
    """Their scale is ours, 1/(2n); their weights are brought to the sum n, as a scale does here."""
    X, Y, rng = linear_data()
    weights = rng.uniform(0, 2, len(X))
    y = Y[:, 0]
    theirs = Lasso(alpha=0.1, tol=1e-14, max_iter=100_000).fit(X, y, sample_weight=weights)
    loss = sj.losses.SquaredLoss(X, y, weights=weights, intercept=True, scale=0.5 / weights.sum())
    ours = sj.solve(sj.Problem(loss, sj.penalties.L1(0.1)), tol=1e-13)
    assert 0 < np.count_nonzero(theirs.coef_) < 6
    np.testing.assert_allclose(ours.params, theirs.coef_, atol=1e-7)
    np.testing.assert_array_equal(np.asarray(ours.params) == 0, theirs.coef_ == 0)
    np.testing.assert_allclose(loss.intercept(ours.params), theirs.intercept_, atol=1e-7)

    theirs = MultiTaskLasso(alpha=0.3, tol=1e-14, max_iter=100_000).fit(X, Y)
    loss = sj.losses.SquaredLoss(X, Y, intercept=True)
    ours = sj.solve(sj.Problem(loss, sj.penalties.L21(0.3)), tol=1e-13)
    assert 0 < np.count_nonzero(theirs.coef_.any(axis=0)) < 6
    np.testing.assert_allclose(ours.params, theirs.coef_.T, atol=1e-7)
    np.testing.assert_array_equal(np.asarray(ours.params) == 0, theirs.coef_.T == 0)
    np.testing.assert_allclose(loss.intercept(ours.params), theirs.intercept_, atol=1e-7)


def test_logistic_regression_of_scikit_learn():
    """Their C is 1/(n strength); saga leaves the intercept unpenalised."""
    X, Y, _ = linear_data()
    y = (Y[:, 0] > np.median(Y[:, 0])).astype(float)
    theirs = LogisticRegression(
        C=1 / (len(X) * 0.05), l1_ratio=1, solver="saga", tol=1e-13, max_iter=200_000, random_state=0
    ).fit(X, y)
    loss = sj.losses.LogisticLoss(X, y, intercept=True)
    problem = sj.Problem(loss, sj.penalties.L1(0.05))
    ours = sj.solve(problem, tol=1e-13)
    assert 0 < np.count_nonzero(theirs.coef_) < 6
    np.testing.assert_allclose(ours.params, theirs.coef_[0], atol=1e-6)
    np.testing.assert_array_equal(np.asarray(ours.params) == 0, theirs.coef_[0] == 0)
    np.testing.assert_allclose(loss.intercept(ours.params), theirs.intercept_[0], atol=1e-6)


# ------------------------------------------------------------------ limits that must coincide


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_exclusive_l21_has_its_parts_as_limits(loss):
    """beta = 0 is L21, alpha = 0 the exclusive lasso: as functions, and once as a solution."""
    X, Y, rng = linear_data()
    smooth = LOSSES[loss](X, target(loss, Y))
    V, Z = rng.standard_normal((2, 6, 3))
    P = sj.penalties
    for both, part in (
        (P.ExclusiveL21(0.3, 0.0), P.L21(0.3)),
        (P.ExclusiveL21(0.0, 0.3), P.ExclusiveLasso(0.3)),
    ):
        np.testing.assert_allclose(both.value(V), part.value(V), rtol=1e-15)
        np.testing.assert_allclose(both.prox(V, 0.7), part.prox(V, 0.7), rtol=1e-14)
        np.testing.assert_allclose(both.dual_scale(Z), part.dual_scale(Z), rtol=1e-15)
        np.testing.assert_allclose(both.conjugate(0.01 * Z), part.conjugate(0.01 * Z), atol=1e-15)
        if loss == "logistic" or isinstance(part, P.ExclusiveLasso):
            continue  # nothing else of the penalty enters the solver; once is enough
        a, b = (sj.solve(sj.Problem(smooth, penalty), tol=1e-12) for penalty in (both, part))
        assert bool(a.converged) and bool(b.converged)
        np.testing.assert_allclose(a.params, b.params, atol=1e-7)
        np.testing.assert_allclose(a.objective, b.objective, rtol=1e-12)


def test_exclusive_lasso_of_one_class_is_ridge_regression():
    X, Y, rng = linear_data()
    y, weights, beta = Y[:, 0], rng.uniform(0, 2, len(X)), rng.uniform(0.01, 0.1, 6)
    centred, target = X - weights @ X / weights.sum(), y - weights @ y / weights.sum()
    A = centred.T * (weights / (2 * len(X)))
    ridge = np.linalg.solve(A @ centred + np.diag(beta), A @ target)
    loss = sj.losses.SquaredLoss(X, y, weights=weights, intercept=True)
    s = sj.solve(sj.Problem(loss, sj.penalties.ExclusiveLasso(beta)), tol=1e-14)
    np.testing.assert_allclose(s.params, ridge, atol=1e-7)


def same_function(a, b, rng):
    """Two losses are the same function of W: values, gradients, intercepts, curvature."""
    for W in rng.standard_normal((3, *a.params_shape)):
        (value, gradient), (other, other_gradient) = (jax.value_and_grad(loss)(W) for loss in (a, b))
        np.testing.assert_allclose(value, other, rtol=1e-13)
        np.testing.assert_allclose(gradient, other_gradient, rtol=1e-9, atol=1e-13)
        np.testing.assert_allclose(a.intercept(W), b.intercept(W), rtol=1e-9, atol=1e-13)
    A, B = np.asarray(a.majorizer()), np.asarray(b.majorizer())
    np.testing.assert_allclose(A.T @ A, B.T @ B, atol=1e-13)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_weights_leave_rows_out_and_repeat_them(loss, intercept):
    """Weight 0 is a row left out, weight 2 a row twice; weights by entry agree with weights by row."""
    X, Y, rng = linear_data()
    Y, make = target(loss, Y), LOSSES[loss]
    scale = make(X, Y).scale
    counts = rng.integers(0, 4, len(X))
    assert 0 in counts and 1 in counts and 3 in counts
    index = np.repeat(np.arange(len(X)), counts)
    repeated = make(X[index], Y[index], scale=scale, intercept=intercept)
    by_row = make(X, Y, weights=counts, intercept=intercept)
    by_entry = make(X, Y, weights=np.repeat(counts[:, None], 3, axis=1), intercept=intercept)
    same_function(repeated, by_row, rng)
    same_function(by_entry, by_row, rng)
    if intercept and loss == "squared":  # the solver sees no more of a loss than this
        problems = [sj.Problem(f, sj.penalties.L21(0.03)) for f in (repeated, by_row)]
        a, b = (sj.solve(p, tol=1e-12) for p in problems)
        np.testing.assert_allclose(a.params, b.params, atol=1e-6)
        np.testing.assert_allclose(a.objective, b.objective, rtol=1e-11)


def test_entries_left_out_are_columns_solved_alone():
    """With weights by entry each column sees its own rows."""
    X, Y, rng = linear_data()
    weights = rng.integers(0, 2, Y.shape)
    for loss, make in LOSSES.items():
        labels = target(loss, Y)
        whole = make(X, labels, weights=weights, intercept=True)
        W = rng.standard_normal((6, 3))
        alone = 0
        for j, w in enumerate(weights.T.astype(bool)):
            column = make(X[w], labels[w, j], scale=whole.scale, intercept=True)
            alone += column(W[:, j])
            np.testing.assert_allclose(whole.intercept(W)[j], column.intercept(W[:, j]), rtol=1e-9)
        np.testing.assert_allclose(whole(W), alone, rtol=1e-12)


def test_intercept_is_centring_by_hand():
    X, Y, rng = linear_data()
    same_function(
        sj.losses.SquaredLoss(X, Y, intercept=True),
        Centred(sj.losses.SquaredLoss(X - X.mean(0), Y - Y.mean(0)), Y.mean(0), X.mean(0)),
        rng,
    )
    a, b = (
        sj.solve(sj.Problem(loss, sj.penalties.ExclusiveL21(0.1, 0.05)), tol=1e-12)
        for loss in (
            sj.losses.SquaredLoss(X, Y, intercept=True),
            sj.losses.SquaredLoss(X - X.mean(0), Y - Y.mean(0)),
        )
    )
    np.testing.assert_allclose(a.params, b.params, atol=1e-6)
    np.testing.assert_allclose(a.objective, b.objective, rtol=1e-12)


class Centred:
    """A loss of centred data with the intercept that belongs to it."""

    def __init__(self, loss, y, x):
        self.loss, self.y, self.x = loss, y, x
        self.params_shape, self.majorizer = loss.params_shape, loss.majorizer

    def __call__(self, W):
        return self.loss(W)

    def intercept(self, W):
        return self.y - self.x @ W


def test_logistic_intercept_is_stationary_and_shift_free(rng):
    """Residuals sum to zero at the best intercept, and moving X moves nothing but the intercept."""
    X, Y, _ = linear_data()
    labels = (np.median(Y, axis=0) < Y).astype(float)
    for factor in (1e-3, 1.0, 1e3):  # linear, usual, and all sigmoids at 0 or 1
        W = factor * rng.standard_normal((6, 3))
        loss = sj.losses.LogisticLoss(X, labels, intercept=True)
        b = loss.intercept(W)
        residual = expit(X @ W + np.asarray(b)) - labels
        np.testing.assert_allclose(residual.sum(0), 0, atol=1e-10 * max(1, factor))
        moved = sj.losses.LogisticLoss(X + 1, labels, intercept=True)
        np.testing.assert_allclose(moved(W), loss(W), rtol=1e-10)
        if factor <= 1:  # beyond, a whole interval is best to the last digit
            np.testing.assert_allclose(moved.intercept(W), b - W.sum(0), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("loss", ["squared hinge", "huber hinge"])
def test_hinge_intercept_is_the_minimiser(loss, rng):
    """Against scipy, near and far from the data, also in columns all of one label; and its derivative."""
    X, Y, _ = linear_data()
    labels = target(loss, Y)
    labels[:, 1], labels[:, 2] = 1, -1
    weights = rng.integers(0, 3, labels.shape)
    smooth = LOSSES[loss](X, labels, weights=weights, intercept=True)
    phi = huber if loss == "huber hinge" else np.square
    for factor in (0.0, 0.1, 1.0, 1e3):
        W = factor * rng.standard_normal((6, 3))
        H, b = X @ W, np.asarray(smooth.intercept(W))

        def value(t):
            return np.sum(weights * phi(np.maximum(1 - labels * (H + t), 0)), axis=0) / len(X)

        ours = value(b)
        assert np.isfinite(b).all() and (ours[1:] <= 1e-30).all()
        best = minimize_scalar(lambda t: value(t)[0], bracket=(b[0] - 1, b[0] + 1), tol=1e-12).fun
        assert ours[0] <= best * (1 + 1e-14)
        np.testing.assert_allclose(smooth(W), ours.sum(), rtol=1e-13)
        shifted = LOSSES[loss](X + 1, labels, weights=weights, intercept=True)
        np.testing.assert_allclose(shifted(W), smooth(W), rtol=1e-9)
    W, step = rng.standard_normal((2, 6, 3))
    # with these weights all the intercepts of an interval can be best: the loss has its derivative still
    slope = jax.jvp(smooth, (W,), (step,))[1]
    np.testing.assert_allclose(slope, (smooth(W + 1e-6 * step) - smooth(W - 1e-6 * step)) / 2e-6, rtol=1e-7)
    smooth = LOSSES[loss](X, labels, weights=weights * rng.uniform(0.9, 1.1, labels.shape), intercept=True)
    slope = jax.jvp(smooth.intercept, (W,), (step,))[1]
    there, back = (smooth.intercept(W + h * step) for h in (1e-6, -1e-6))
    np.testing.assert_allclose(slope[0], (there - back)[0] / 2e-6, rtol=1e-7)


@pytest.mark.parametrize(
    "make", [sj.losses.SquaredHingeLoss, functools.partial(sj.losses.HuberHingeLoss, delta=4.0)]
)
def test_majorizer_of_hinge_losses(make):
    """It is the Hessian where every entry is on a curved part, such as at W = 0."""
    X, Y, rng = linear_data()
    loss = make(X, target("squared hinge", Y)[:, 0], weights=rng.uniform(0, 2, len(X)), intercept=True)
    A = np.asarray(loss.majorizer())
    np.testing.assert_allclose(A.T @ A, jax.hessian(loss)(np.zeros(6)), atol=1e-13)
