"""Cox's loss beside Coxnet, lifelines and statsmodels, where they are there: in CI, for some of the cases."""

import jax
import numpy as np
import pytest

import sparsejax as sj

N, D = 120, 6
RNG = np.random.default_rng(5)
X = RNG.standard_normal((N, D))
TIME = np.ceil(20 * RNG.exponential(np.exp((X[:, 1] - X[:, 0]) / 2)))
EVENT = RNG.random(N) < 0.7
STRATA = RNG.integers(0, 3, N)
LATE = np.floor(TIME * RNG.random(N)) - 0.5
ENTRY = np.where(RNG.random(N) < 0.5, 0, np.maximum(LATE, 0))  # off the times of events
WEIGHTS = RNG.uniform(0.2, 2, N)
TIES = pytest.mark.parametrize("ties", ["breslow", "efron"])


def unpenalised(**options):
    loss = sj.losses.CoxLoss(X, TIME, EVENT, **options)
    solution = sj.solve(sj.Problem(loss, sj.penalties.L1(0.0)), tol=1e-12)
    assert np.abs(jax.jit(jax.grad(loss))(solution.params)).max() <= 1e-7
    return solution.params


@TIES
@pytest.mark.parametrize("stratified", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_statsmodels_agrees(ties, stratified, late):
    """Unpenalised coefficients with ties, strata and delayed entry."""
    phreg = pytest.importorskip("statsmodels.duration.hazard_regression")
    strata, entry = STRATA if stratified else None, ENTRY if late else None
    model = phreg.PHReg(TIME, X, status=EVENT * 1, ties=ties, strata=strata, entry=entry)
    theirs = model.fit(method="newton", maxiter=100, tol=1e-12, disp=False)
    ours = unpenalised(ties=ties, strata=strata, entry=entry)
    np.testing.assert_allclose(ours, theirs.params, atol=1e-6)
    loss = sj.losses.CoxLoss(X, TIME, EVENT, ties=ties, strata=strata, entry=entry, scale=1.0)
    np.testing.assert_allclose(loss(np.full(D, 0.1)), -model.loglike(np.full(D, 0.1)), rtol=1e-10)


@pytest.mark.parametrize("stratified", [False, True])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_lifelines_agrees(stratified, late, weighted):
    """After Efron, with weights: tied events share their mean weight."""
    lifelines, pd = pytest.importorskip("lifelines"), pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=list("abcdef")).assign(time=TIME, event=EVENT)
    frame = frame.assign(strata=STRATA, entry=ENTRY, weights=WEIGHTS)
    left_out = {"strata": stratified, "entry": late, "weights": weighted}
    frame = frame.drop(columns=[name for name, used in left_out.items() if not used])
    named = {"weights_col": "weights" if weighted else None, "entry_col": "entry" if late else None}
    named |= {"strata": ["strata"] if stratified else None, "fit_options": {"precision": 1e-12}}
    theirs = lifelines.CoxPHFitter().fit(frame, "time", "event", robust=weighted, **named)
    options = {"strata": STRATA, "entry": ENTRY, "weights": WEIGHTS}
    ours = unpenalised(ties="efron", **{name: options[name] for name, used in left_out.items() if used})
    np.testing.assert_allclose(ours, theirs.params_.loc[list("abcdef")], atol=1e-6)


def test_coxnet_agrees():
    """Along a path with l1, Breslow's ties; and with half of the strength squared."""
    sksurv = pytest.importorskip("sksurv.linear_model")
    y = np.array(list(zip(EVENT, TIME, strict=True)), [("event", bool), ("time", float)])
    alphas = np.array([0.1, 0.05, 0.01])
    for ratio in (1.0, 0.5):
        model = sksurv.CoxnetSurvivalAnalysis(l1_ratio=ratio, alphas=alphas, tol=1e-15, max_iter=10**6)
        make = lambda a, r=ratio: sj.penalties.L1(a * r) + sj.penalties.SquaredL2(a * (1 - r))
        p = sj.Problem(sj.losses.CoxLoss(X, TIME, EVENT), make(0.1))
        path = sj.path(p, jax.vmap(make)(alphas), tol=1e-12)
        np.testing.assert_allclose(path.params.T, model.fit(X, y).coef_, atol=1e-6)
