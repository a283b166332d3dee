"""One row, one feature, one column, numbers of any size: closed forms for all that there is."""

import itertools

import jax
import loss_cases
import numpy as np
import pytest
from cases import PROXES
from loss_cases import LOSSES

import sparsejax as sj
from sparsejax import groups, penalties

ONE, VIEWS = groups.from_lists([[0]], 1), groups.label_views(1)
NUMBERS = (0.0, 5e-324, -1e-310, 1e-30, -1e-12, 0.1, 1.0, -3.0, 1e12, -1e30)
STRENGTHS = (0.0, 1e-30, 1e-12, 0.3, 2.0, 1e6, 1e30)
GRID = [np.array(x) for x in zip(*itertools.product(NUMBERS, STRENGTHS, STRENGTHS), strict=True)]
# of the number w: a |w| + b w^2, or one of both
PENALTIES = {
    "L1": ("a", lambda a, _: penalties.L1(a)),
    "L21": ("a", lambda a, b: penalties.L21(a)),
    "L1Inf": ("a", lambda a, b: penalties.L1Inf(a)),
    "GroupLasso": ("a", lambda a, b: penalties.GroupLasso(a, ONE)),
    "ExclusiveL21": ("ab", penalties.ExclusiveL21),
    "L1 + SquaredL2": ("ab", lambda a, b: penalties.L1(a) + penalties.SquaredL2(2 * b)),
    "ExclusiveLasso": ("b", lambda a, b: penalties.ExclusiveLasso(b)),
    "ExclusiveGroupL21": ("b", lambda a, b: penalties.ExclusiveGroupL21(b, ONE)),
    "ExclusiveGroupLasso": ("b", lambda a, b: penalties.ExclusiveGroupLasso(2 * b, VIEWS)),
}
ROW = {"l1": "a", "l2": "a", "linf": "a", "squared_l1": "b", "exclusive_l21": "ab"}

WITH_INTERCEPT = ("SquaredLoss", "HuberLoss")


def parts(which, dtype=np.float64):
    """The grid in long doubles, where a strength is not used with 0 for it, and what rounding makes of w."""
    w, a, b = (x.astype(dtype).astype(np.longdouble) for x in GRID)
    eps, tiny = np.finfo(dtype).eps, 100 * np.finfo(dtype).tiny  # subnormal numbers count as 0
    return w, a * ("a" in which), b * ("b" in which), 4 * eps * np.abs(w) + tiny


def assert_shrunk(z, which, dtype=np.float64):
    w, a, b, rounding = parts(which, dtype)
    wanted = np.sign(w) * np.maximum(np.abs(w) - a, 0) / (1 + 2 * b)
    assert (np.abs(np.asarray(z).ravel() - wanted) <= rounding).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_proxes(dtype):
    def all_of(w, a, b):
        strengths = {"a": (a,), "b": (b,), "ab": (a, b)}
        return {p.name: p.call(w[None], *strengths[ROW[p.name]]) for p in PROXES}

    for name, z in jax.jit(jax.vmap(all_of))(*(x.astype(dtype) for x in GRID)).items():
        assert_shrunk(z, ROW[name], dtype)


def test_penalties():
    """Value, prox, conjugate and dual scale."""

    def all_of(w, a, b):
        made = {name: make(a, b) for name, (_, make) in PENALTIES.items()}
        W = w[None, None]
        return {name: (g.value(W), g.prox(W), g.conjugate(W), g.dual_scale(W)) for name, g in made.items()}

    for name, found in jax.jit(jax.vmap(all_of))(*GRID).items():
        value, z, conjugate, scale = map(np.asarray, found)
        which = PENALTIES[name][0]
        w, a, b, rounding = parts(which)
        size = np.abs(w)
        assert_shrunk(z, which)
        assert (np.abs(value - (a * size + b * w**2)) <= rounding * (1 + a + b * size)).all(), name
        squared, normal = b > 0, size >= np.finfo(float).tiny
        largest = np.where(squared | (size == 0), np.inf, a / np.where(size > 0, size, 1))
        assert np.allclose(scale[normal], largest[normal].astype(float), rtol=1e-15), name
        assert (scale[w == 0] == np.inf).all()
        wanted = np.maximum(size - a, 0) ** 2 / (4 * np.where(squared, b, 1))
        error, room = conjugate - wanted, size**2 / (4 * np.where(squared, b, 1)) + 1e-300
        assert (np.abs(error) <= 1e-15 * room)[squared].all(), name
        assert (conjugate[~squared & (size <= a)] == 0).all()


@jax.jit
def of_losses(smooth, w):
    """Value, slope, intercept, and the gap with a penalty."""
    W = w[None, None]
    gap = lambda f: sj.duality_gap(sj.Problem(f, penalties.L1(0.1) + penalties.SquaredL2(0.2)), W)
    return [(*jax.value_and_grad(f)(W), f.intercept(W), gap(f)) for f in smooth]


@pytest.mark.parametrize("y", [0.0, 1.0, 1e12])
def test_losses(y):
    """The formulas, and no gap is less than what any of many w is better by."""
    X, smooth = np.full((1, 1), -2.0), []
    for name, case in LOSSES.items():
        if name != "SoftmaxLoss":  # of two classes or more
            Y = case.targets(np.full((1, 1), y))
            smooth.append(case.make(X, Y, intercept=name in WITH_INTERCEPT))
    far = np.geomspace(1e-20, 1e13, 20_000)
    others = np.concatenate([[0], far, -far]).astype(np.longdouble)
    for w in (0.0, 5e-324, 1e-30, 0.3, -20.0):
        for f, found in zip(smooth, of_losses(smooth, w), strict=True):
            value, slope, b, gap = (np.longdouble(x.squeeze()) for x in found)
            entry, target = loss_cases.FORMULAS[type(f).__name__], np.asarray(f.Y)
            tried = np.append(others, w)
            scale, name = float(f.scale), type(f).__name__
            # a single row is fitted by its intercept alone
            H = 0 * tried + target[0, 0] if f.has_intercept else -2 * tried
            with np.errstate(over="ignore"):
                values = np.atleast_1d(np.squeeze(scale * entry.value(H[None], target, f)))
                wanted = 0 if f.has_intercept else -2 * scale * entry.slope(H[-1:], target, f)
            assert np.abs(value - values[-1]) <= 1e-14 * values[-1] + 1e-300, name
            assert np.abs(slope - wanted) <= 1e-14 * np.abs(wanted) + 1e-300, name
            if f.has_intercept:
                assert np.abs(b - (2 * w + target)) <= 1e-14 * (np.abs(target) + np.abs(w)) + 1e-300
            totals = values + np.abs(tried) / 10 + tried**2 / 10
            excess, size = totals[-1] - totals.min(), max(totals[-1], totals[0])
            assert gap * size >= excess * (1 - 1e-9) - 1e-16 * size - 1e-300, name
