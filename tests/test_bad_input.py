"""Bad input is refused before anything is traced, by an error that names the argument and what is allowed."""

import copy
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from jax.experimental import sparse

import sparsejax as sj
from sparsejax import losses, penalties, prox
from sparsejax.losses import HuberHingeLoss, LogisticLoss, SquaredHingeLoss, SquaredLoss
from sparsejax.penalties import L1, L21, ExclusiveL21, ExclusiveLasso, L1Inf

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((8, 4)), RNG.standard_normal((8, 3))
LABELS = (Y > 0).astype(float)
SIGNS = 2 * LABELS - 1
W = np.zeros((4, 3))
NAN, INF = X.copy(), X.copy()
NAN[2, 1], INF[0, 3] = np.nan, -np.inf


def problem(penalty=None, smooth=None):
    return sj.Problem(smooth or SquaredLoss(X, Y), penalty or L21(0.1))


def plain(W):
    return jnp.sum(W**2)


PLAIN = jax.tree_util.Partial(plain)
STACKED = jax.vmap(L21)

# name: (call, error, regex that the message must match)
TABLE = {
    # ---- data
    "X of rank 1": (lambda: SquaredLoss(X[:, 0], Y), ValueError, r"X has shape \(8,\).* 2-d"),
    "X of rank 3": (lambda: LogisticLoss(X[None], LABELS), ValueError, r"X has shape \(1, 8, 4\).* 2-d"),
    "X a number": (lambda: SquaredLoss(1.0, Y), ValueError, r"X has shape \(\).* 2-d"),
    "Y of rank 3": (lambda: SquaredLoss(X, Y[None]), ValueError, r"Y has shape .* 1-d or 2-d"),
    "Y a number": (lambda: SquaredLoss(X, 1.0), ValueError, r"Y has shape \(\).* 1-d or 2-d"),
    "rows disagree": (lambda: SquaredLoss(X, Y[:5]), ValueError, "X has 8 rows and Y has 5"),
    "X transposed": (lambda: LogisticLoss(X.T, LABELS), ValueError, "X has 4 rows and Y has 8"),
    "NaN in X": (lambda: SquaredLoss(NAN, Y), ValueError, r"X has 1 .*NaN.*\(2, 1\).*finite"),
    "infinity in X": (lambda: LogisticLoss(INF, LABELS), ValueError, r"X has 1 .*infinite.*\(0, 3\)"),
    "NaN in Y": (lambda: SquaredLoss(X, NAN), ValueError, r"Y has 1 .*NaN.*\(2, 1\)"),
    "NaN labels": (lambda: LogisticLoss(X, NAN), ValueError, r"Y has 1 .*NaN"),
    "Y too large for float32": (
        lambda: SquaredLoss(X.astype(np.float32), 1e39 * abs(Y)),
        ValueError,
        r"Y has \d+ .*too large for float32",
    ),
    "complex X": (lambda: SquaredLoss(X * 1j, Y), TypeError, "X is complex.*real"),
    "complex Y": (lambda: SquaredLoss(X, Y + 0j), TypeError, "Y is complex.*real"),
    "float16": (lambda: SquaredLoss(X.astype(np.float16), Y), TypeError, "X has dtype float16; float32 or"),
    "bfloat16": (lambda: SquaredLoss(jnp.asarray(X, jnp.bfloat16), Y), TypeError, "X has dtype bfloat16"),
    "long double": (lambda: SquaredLoss(X.astype(np.longdouble), Y), TypeError, "X has dtype .*float64 is"),
    "scipy sparse X": (
        lambda: SquaredLoss(scipy.sparse.csr_matrix(X), Y),
        TypeError,
        r"X is a sparse csr_matrix.*X\.toarray",
    ),
    "scipy sparse Y": (
        lambda: SquaredLoss(X, scipy.sparse.csr_array(Y)),
        TypeError,
        r"Y is a sparse csr_array.*Y\.toarray",
    ),
    "jax sparse X": (lambda: SquaredLoss(sparse.BCOO.fromdense(jnp.asarray(X)), Y), TypeError, "X "),
    "ragged X": (lambda: SquaredLoss([[1, 2], [3]], Y), ValueError, "X is not a rectangular array"),
    "ragged Y": (lambda: SquaredLoss(X, [[1], [2, 3]]), ValueError, "Y is not a rectangular array"),
    "strings": (lambda: SquaredLoss([["a"]] * 8, Y), TypeError, "X has dtype <U1; real numbers"),
    "label names": (lambda: LogisticLoss(X, ["cat"] * 8), TypeError, "Y has dtype <U3; real numbers"),
    "dates": (lambda: SquaredLoss(X.astype("datetime64[D]"), Y), TypeError, "X has dtype datetime64"),
    "X is None": (lambda: SquaredLoss(None, Y), TypeError, "X .*real numbers"),
    "Y is None": (lambda: SquaredLoss(X, None), TypeError, "Y .*real numbers"),
    "no rows": (lambda: SquaredLoss(X[:0], Y[:0]), ValueError, r"X is empty: its shape is \(0, 4\)"),
    "no features": (lambda: LogisticLoss(X[:, :0], LABELS), ValueError, r"X is empty.*\(8, 0\)"),
    "no columns": (lambda: SquaredLoss(X, Y[:, :0]), ValueError, "Y has no columns"),
    # ---- labels
    "labels that are numbers": (lambda: LogisticLoss(X, Y), ValueError, "Y must hold 0 and 1 only.*it has"),
    "labels -1 and 1": (lambda: LogisticLoss(X, 2 * LABELS - 1), ValueError, "0 and 1 only.* -1"),
    "class numbers": (lambda: LogisticLoss(X, np.arange(8)), ValueError, "0 and 1 only.* 2"),
    "one label only": (
        lambda: LogisticLoss(X, np.c_[LABELS, np.ones(8)], intercept=True),
        ValueError,
        "column 3 of Y has one label only.*intercept=False",
    ),
    "one label only, vector": (
        lambda: LogisticLoss(X, np.zeros(8), intercept=True),
        ValueError,
        "column 0 of Y has one label",
    ),
    "labels 0 and 1 for a hinge": (
        lambda: SquaredHingeLoss(X, LABELS),
        ValueError,
        "Y must hold -1 and 1 only for SquaredHingeLoss; it has 0",
    ),
    "class numbers for a hinge": (lambda: HuberHingeLoss(X, np.arange(8)), ValueError, "-1 and 1 only.* 0"),
    "NaN labels for a hinge": (lambda: HuberHingeLoss(X, NAN[:, :3]), ValueError, r"Y has 1 .*NaN"),
    "NaN in X for a hinge": (lambda: SquaredHingeLoss(NAN, SIGNS), ValueError, r"X has 1 .*NaN.*\(2, 1\)"),
    "delta 0": (lambda: HuberHingeLoss(X, SIGNS, delta=0), ValueError, "delta must be > 0, got 0"),
    "negative delta": (
        lambda: HuberHingeLoss(X, SIGNS, delta=-0.5),
        ValueError,
        r"delta must be > 0, got -0\.5",
    ),
    "NaN delta": (lambda: HuberHingeLoss(X, SIGNS, delta=np.nan), ValueError, "delta has 1 .*NaN"),
    "infinite delta": (lambda: HuberHingeLoss(X, SIGNS, delta=np.inf), ValueError, "delta has 1 .*infinite"),
    "delta by class": (
        lambda: HuberHingeLoss(X, SIGNS, delta=np.ones(3)),
        ValueError,
        r"delta has shape \(3,\).* 0-d",
    ),
    "delta by name": (lambda: HuberHingeLoss(X, SIGNS, delta="half"), TypeError, "delta has dtype <U4"),
    # ---- weights, scale, intercept
    "negative weights": (
        lambda: SquaredLoss(X, Y, weights=-np.ones(8)),
        ValueError,
        "weights must be >= 0.*-1",
    ),
    "NaN weights": (lambda: SquaredLoss(X, Y, weights=[np.nan] * 8), ValueError, "weights has 8 .*NaN"),
    "too few weights": (
        lambda: LogisticLoss(X, LABELS, weights=np.ones(5)),
        ValueError,
        r"weights has shape \(5,\).*\(8,\).*\(8, 3\)",
    ),
    "weights as a column": (
        lambda: SquaredLoss(X, Y, weights=np.ones((8, 1))),
        ValueError,
        r"weights .*\(8, 1\)",
    ),
    "weights transposed": (
        lambda: SquaredLoss(X, Y, weights=np.ones((3, 8))),
        ValueError,
        r"weights .*\(3, 8\)",
    ),
    "one weight": (lambda: SquaredLoss(X, Y, weights=2.0), ValueError, r"weights has shape \(\)"),
    "weights by name": (lambda: SquaredLoss(X, Y, weights="balanced"), TypeError, "weights has dtype <U8"),
    "scale 0": (lambda: SquaredLoss(X, Y, scale=0), ValueError, "scale must be > 0, got 0"),
    "negative scale": (lambda: LogisticLoss(X, LABELS, scale=-1.0), ValueError, "scale must be > 0, got -1"),
    "NaN scale": (lambda: SquaredLoss(X, Y, scale=np.nan), ValueError, "scale has 1 .*NaN"),
    "scale by name": (lambda: SquaredLoss(X, Y, scale="mean"), TypeError, "scale has dtype <U4"),
    "scale by row": (
        lambda: SquaredLoss(X, Y, scale=np.ones(8)),
        ValueError,
        r"scale has shape \(8,\).* 0-d",
    ),
    "intercept 1": (
        lambda: SquaredLoss(X, Y, intercept=1),
        TypeError,
        "intercept must be True or False, got 1",
    ),
    "intercept array": (
        lambda: SquaredLoss(X, Y, intercept=np.zeros(3)),
        TypeError,
        "intercept must be True",
    ),
    # ---- strengths
    "negative alpha": (lambda: L21(-0.1), ValueError, r"alpha must be >= 0, got -0\.1"),
    "negative alpha of l1,inf": (lambda: L1Inf(-1), ValueError, "alpha must be >= 0, got -1"),
    "negative entry": (lambda: L1([0.1, -0.2]), ValueError, r"strength must be >= 0, got -0\.2"),
    "negative beta": (lambda: ExclusiveL21(0.1, -1), ValueError, "beta must be >= 0, got -1"),
    "NaN strength": (lambda: L1(np.nan), ValueError, "strength has 1 .*NaN"),
    "NaN beta": (lambda: ExclusiveLasso([1, np.nan]), ValueError, r"beta has 1 .*NaN.*\(1,\)"),
    "infinite alpha": (lambda: ExclusiveL21(np.inf, 1), ValueError, "alpha has 1 .*infinite"),
    "strength as text": (lambda: L21("0.1"), TypeError, "alpha has dtype <U3; real numbers"),
    "strength None": (lambda: L21(None), TypeError, "alpha .*real numbers"),
    "complex strength": (lambda: L21(1j), TypeError, "alpha is complex"),
    "float16 strength": (lambda: L1(np.float16(0.1)), TypeError, "strength has dtype float16"),
    "strength by entry": (lambda: L21(np.ones((4, 3))), ValueError, r"alpha has shape \(4, 3\).* 0-d or 1-d"),
    "no strength": (lambda: L21([]), ValueError, "alpha is empty"),
    # ---- problems
    "strengths of the wrong length": (
        lambda: problem(L21(np.ones(3))),
        ValueError,
        r"L21: alpha has shape \(3,\).*one value a row, \(4,\)",
    ),
    "one strength in a list": (lambda: problem(L1([0.1])), ValueError, r"L1: strength has shape \(1,\)"),
    "beta of the wrong length": (
        lambda: problem(ExclusiveL21(0.1, np.ones(5))),
        ValueError,
        r"ExclusiveL21: beta has shape \(5,\)",
    ),
    "strength by class": (lambda: problem(ExclusiveLasso(np.ones(3))), ValueError, r"beta .*\(3,\).*\(4,\)"),
    "replace with a wrong length": (
        lambda: problem().replace(penalty=L1(np.ones(3))),
        ValueError,
        "strength",
    ),
    "smooth an array": (lambda: sj.Problem(X, L21(0.1)), TypeError, "smooth must be callable.*ndarray"),
    "smooth and penalty swapped": (
        lambda: sj.Problem(L21(0.1), SquaredLoss(X, Y)),
        TypeError,
        "smooth must be callable.*L21",
    ),
    "penalty a class": (lambda: problem(L21), TypeError, "penalty .*L21.*a class, not an instance"),
    "penalty a number": (lambda: problem(0.1), TypeError, r"penalty must have value.* prox.*got 0\.1"),
    "penalty without prox": (
        lambda: problem(type("Half", (), {"value": lambda self, W: 0.0})()),
        TypeError,
        "penalty .*without prox",
    ),
    "unknown attribute": (
        lambda: problem().replace(loss=1),
        TypeError,
        "Problem has no loss; .*smooth and penalty",
    ),
    "not a problem": (
        lambda: sj.admm(SquaredLoss(X, Y)),
        TypeError,
        r"problem must be a sparsejax\.Problem.*Squ",
    ),
    "a tuple": (lambda: sj.solve((X, Y)), TypeError, r"problem must be a sparsejax\.Problem, got tuple"),
    "None": (lambda: sj.fista(None), TypeError, r"fista: problem must be a sparsejax\.Problem, got NoneType"),
    # ---- solvers
    "negative tol": (lambda: sj.solve(problem(), tol=-1.0), ValueError, "tol must be >= 0, got -1"),
    "NaN tol": (lambda: sj.fista(problem(), tol=np.nan), ValueError, "tol has 1 .*NaN"),
    "infinite tol": (lambda: sj.fista(problem(), tol=np.inf), ValueError, "tol has 1 .*infinite"),
    "tol a list": (lambda: sj.alm(problem(), tol=[1e-3]), ValueError, r"tol has shape \(1,\).* 0-d"),
    "tol as text": (lambda: sj.admm(problem(), tol="low"), TypeError, "tol has dtype <U3"),
    "maxiter a list": (lambda: sj.admm(problem(), maxiter=[1]), ValueError, r"maxiter must be .*got \[1\]"),
    "history a bool": (lambda: sj.solve(problem(), history=True), ValueError, "history must be .*got True"),
    "history negative": (
        lambda: sj.fista(problem(), history=-1),
        ValueError,
        "fista: history .*>= 0, got -1",
    ),
    "history a float": (lambda: sj.admm(problem(), history=2.0), ValueError, r"admm: history .*got 2\.0"),
    "stepsize 0": (lambda: sj.fista(problem(), stepsize=0), ValueError, "stepsize must be > 0, got 0"),
    "negative stepsize": (
        lambda: sj.fista(problem(), stepsize=-1.0),
        ValueError,
        "stepsize must be > 0, got -1",
    ),
    "NaN stepsize": (lambda: sj.fista(problem(), stepsize=np.nan), ValueError, "stepsize has 1 .*NaN"),
    "stepsize by name": (lambda: sj.fista(problem(), stepsize="auto"), TypeError, "stepsize has dtype"),
    "init transposed": (
        lambda: sj.solve(problem(), W.T),
        ValueError,
        r"init has shape \(3, 4\).*\(4, 3\)",
    ),
    "init of one class": (
        lambda: sj.fista(problem(), W[:, 0]),
        ValueError,
        r"init has shape \(4,\).*\(4, 3\)",
    ),
    "init a number": (lambda: sj.fista(problem(), 0.0), ValueError, r"init has shape \(\).* 1-d or 2-d"),
    "NaN in init": (lambda: sj.solve(problem(), W + np.nan), ValueError, "init has 12 .*NaN"),
    "init by name": (lambda: sj.admm(problem(), "zeros"), TypeError, "init has dtype <U5"),
    "init of a wrong dtype": (
        lambda: sj.admm(problem(), W.astype(np.float16)),
        TypeError,
        "init has dtype float16",
    ),
    "plain function without init": (
        lambda: sj.solve(problem(smooth=PLAIN)),
        TypeError,
        "shape of W is unknown.*give init",
    ),
    "admm with a plain function": (
        lambda: sj.admm(problem(smooth=PLAIN), W),
        TypeError,
        "admm needs a loss with majorizer.*fista takes any",
    ),
    "alm with logistic loss": (
        lambda: sj.alm(problem(smooth=LogisticLoss(X, LABELS))),
        TypeError,
        "alm needs SquaredLoss.*got LogisticLoss with L21; admm and fista",
    ),
    "alm with lasso": (lambda: sj.alm(problem(L1(0.1))), TypeError, "alm needs .*got SquaredLoss with L1"),
    "faithful alm with lasso": (lambda: sj.alm(problem(L1(0.1)), faithful=True), TypeError, "alm needs"),
    "alm with weights by entry": (
        lambda: sj.alm(problem(smooth=SquaredLoss(X, Y, weights=np.ones((8, 3))))),
        TypeError,
        "alm needs .*weights by row",
    ),
    # ---- paths
    "path: nothing varied": (
        lambda: sj.path(problem(), L21(0.1)),
        ValueError,
        "path: nothing varies.*leading axis",
    ),
    "path: axes disagree": (
        lambda: sj.path(problem(ExclusiveL21(0.1, 0.1)), ExclusiveL21(np.ones(3), np.ones(2))),
        ValueError,
        r"path: leading axes must agree.*\[2, 3\]",
    ),
    "path: no strengths": (
        lambda: sj.path(problem(), STACKED(np.ones(0))),
        ValueError,
        r"path: .*not be empty",
    ),
    "path: other type": (
        lambda: sj.path(problem(), jax.vmap(L1)(np.ones(3))),
        TypeError,
        "path: penalties must be .*L21.*got L1",
    ),
    "path: an array": (lambda: sj.path(problem(), np.ones(3)), TypeError, "path: penalties must be .*L21"),
    "path: a list": (
        lambda: sj.path(problem(), [L21(1), L21(2)]),
        TypeError,
        "path: penalties must be .*L21",
    ),
    "path: two axes": (
        lambda: sj.path(problem(), jax.vmap(STACKED)(np.ones((2, 3)))),
        ValueError,
        r"path: alpha has shape \(2, 3\)",
    ),
    "path: rows of the wrong length": (
        lambda: sj.path(problem(L21(np.ones(4))), STACKED(np.ones((2, 3)))),
        ValueError,
        r"alpha .*\(2, 3\).*\(4,\)",
    ),
    "path: negative": (
        lambda: sj.path(problem(), STACKED(np.array([1, -1.0]))),
        ValueError,
        "path: alpha .*>= 0",
    ),
    "path: NaN": (
        lambda: sj.path(problem(), STACKED(np.array([1, np.nan]))),
        ValueError,
        "path: alpha .*finite",
    ),
    "path: mode": (
        lambda: sj.path(problem(), STACKED(np.ones(2)), mode="cold"),
        ValueError,
        "path: mode must be .*warm.*'cold'",
    ),
    "path: tol": (
        lambda: sj.path(problem(), STACKED(np.ones(2)), tol=-1),
        ValueError,
        "path: tol must be >= 0",
    ),
    "path: maxiter": (
        lambda: sj.path(problem(), STACKED(np.ones(2)), maxiter=1.5),
        ValueError,
        "path: maxiter must be .*1.5",
    ),
    "path: not a problem": (
        lambda: sj.path(X, STACKED(np.ones(2))),
        TypeError,
        r"problem must be a sparsejax",
    ),
    "path: plain function": (
        lambda: sj.path(problem(smooth=PLAIN), STACKED(np.ones(2))),
        TypeError,
        "shape of W is unknown",
    ),
    # ---- rankings
    "ranking: rank 3": (
        lambda: sj.rank_features(np.ones((2, 2, 2))),
        ValueError,
        r"W must have shape \(d, k\) or",
    ),
    "ranking: a number": (lambda: sj.rank_features(1.0), ValueError, r"W must have shape .*got \(\)"),
    "ranking: no features": (lambda: sj.rank_features(np.ones((0, 2))), ValueError, r"W .*got \(0, 2\)"),
    "ranking: none": (
        lambda: sj.rank_features(W, 0),
        ValueError,
        "num must be an integer from 1 to 4, got 0",
    ),
    "ranking: too many": (lambda: sj.rank_features(W, 5), ValueError, "num must be .*from 1 to 4, got 5"),
    "ranking: a float": (lambda: sj.rank_features(W, 2.0), ValueError, r"num must be an integer.*got 2\.0"),
    # ---- proxes
    "prox of integers": (
        lambda: prox.l1(np.arange(3), 1.0),
        TypeError,
        r"prox\.l1 needs a floating array.*int",
    ),
    "prox of a matrix": (
        lambda: prox.squared_l1(X, 0.1),
        ValueError,
        r"prox\.squared_l1: one group has shape \(p,\).*vmap",
    ),
    "prox of two groups": (
        lambda: prox.exclusive_l21(X, 0.1, 0.1),
        ValueError,
        r"prox\.exclusive_l21: .*vmap",
    ),
    "prox of rows by linf": (lambda: prox.linf(X, 0.1), ValueError, r"prox\.linf: one group .*vmap"),
    "prox of nothing": (lambda: prox.l2(np.ones(0), 0.1), ValueError, r"prox\.l2: .*p >= 1, got \(0,\)"),
}


@pytest.mark.parametrize("name", TABLE)
def test_is_refused(name):
    call, error, pattern = TABLE[name]
    with pytest.raises(error, match=pattern) as caught:
        call()
    assert len(str(caught.value)) > 15


@pytest.mark.parametrize("solver", [sj.admm, sj.fista, sj.alm, sj.solve])
@pytest.mark.parametrize("maxiter", [-1, 1.5, np.nan, np.inf, None, "many", "9", True, 1j, 2**31, [3]])
def test_maxiter(solver, maxiter):
    pattern = "maxiter must be an integer >= 0, got " + re.escape(repr(maxiter))
    with pytest.raises(ValueError, match=pattern):
        solver(problem(), maxiter=maxiter)


@pytest.mark.parametrize("make", [SquaredLoss, LogisticLoss])
def test_shapes_are_checked_inside_jit_too(make):
    """Values are not, shapes always."""
    with pytest.raises(ValueError, match="X has 8 rows and Y has 5"):
        jax.jit(lambda X, Y: make(X, Y)(W))(X, LABELS[:5])
    with pytest.raises(ValueError, match=r"weights has shape \(5,\)"):
        jax.jit(lambda w: make(X, LABELS, weights=w)(W))(np.ones(5))
    with pytest.raises(ValueError, match=r"alpha has shape \(3,\)"):
        jax.jit(lambda a: sj.solve(sj.Problem(make(X, LABELS), L21(a))).gap)(np.ones(3))
    with pytest.raises(ValueError, match=r"init has shape \(3, 4\)"):
        jax.jit(lambda W: sj.solve(sj.Problem(make(X, LABELS), L21(0.1)), W).gap)(W.T)
    assert np.isnan(jax.jit(lambda X: make(X, LABELS)(W + 1))(NAN))


# ------------------------------------------------------------------ what looks strange and is fine


@pytest.mark.parametrize("dtype", [int, bool, np.int8, np.uint64])
def test_integers_become_the_default_float(dtype):
    whole = (10 * X).astype(dtype)
    default = jnp.result_type(float)
    for loss in (SquaredLoss(whole, whole[:, :2]), SquaredLoss(whole.tolist(), whole[:, 0].tolist())):
        assert loss.X.dtype == loss.Y.dtype == default
        np.testing.assert_array_equal(loss.X, whole.astype(float))
    assert LogisticLoss(whole, LABELS.astype(dtype)).Y.dtype == default
    assert L21(3).alpha.dtype == ExclusiveLasso([1, 2]).beta.dtype == default


def test_dtype_of_x_rules():
    loss = SquaredLoss(X.astype(np.float32), Y, weights=np.ones(8), scale=np.float64(0.5))
    assert {leaf.dtype for leaf in jax.tree.leaves(loss)} == {np.dtype(np.float32)}
    s = sj.solve(problem(smooth=loss), W)  # float64 strengths and start
    assert s.params.dtype == s.gap.dtype == np.float32 and bool(s.converged)


def test_memory_layouts_and_containers():
    """Strided, Fortran-ordered, read-only, jax arrays, lists and tuples: all the same numbers."""
    strided = np.repeat(np.repeat(X, 2, axis=0), 3, axis=1)[::2, ::3]
    reversed_ = X[::-1, ::-1].copy()[::-1, ::-1]
    frozen = X.copy()
    frozen.flags.writeable = False
    expected = SquaredLoss(X, Y)(W + 1)
    for other in (strided, reversed_, np.asfortranarray(X), frozen, jnp.asarray(X), X.tolist(), tuple(X)):
        np.testing.assert_array_equal(SquaredLoss(other, Y)(W + 1), expected)


def aligned(values):
    """A writable copy at a multiple of 64 bytes, which JAX on a CPU would rather borrow than copy."""
    values = np.asarray(values, float)
    memory = np.empty(values.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    array = memory[start : start + values.nbytes].view(float).reshape(values.shape)
    array[...] = values
    return array


def test_data_are_copied():
    """Arrays that the caller changes later do not change the problem."""
    mine = [aligned(values) for values in (X, Y, np.ones(8), np.full(4, 0.1))]
    p = sj.Problem(SquaredLoss(mine[0], mine[1], weights=mine[2]), L21(mine[3]))
    before = float(p(W + 1))
    for array in mine:
        array[...] = 0
    assert float(p(W + 1)) == before


def test_degenerate_data_are_allowed():
    """Constant and zero columns, one row, one feature, one class, all targets alike, no weight at all."""
    constant = X.copy()
    constant[:, 1], constant[:, 2] = 3.0, 0.0
    some = {"weights": np.ones(8), "intercept": True}
    for loss in (
        SquaredLoss(constant, Y, **some),
        SquaredLoss(X, 0 * Y, **some),
        SquaredLoss(0 * X, Y, **some),
        SquaredLoss(X, Y, weights=np.zeros(8), intercept=True),
        SquaredLoss(X[:1, :1], Y[:1, :1], intercept=True),
        LogisticLoss(constant, LABELS, intercept=True),
        HuberHingeLoss(constant, np.c_[SIGNS, np.ones(8)], intercept=True),  # one column has one label
        LogisticLoss(X[:1], np.ones(1)),
    ):
        s = sj.solve(sj.Problem(loss, ExclusiveL21(0.05, 0.05)), tol=1e-8)
        assert bool(s.converged) and np.isfinite(s.params).all()
        if loss.X.shape == X.shape:
            unused = np.asarray(loss.X == 0).all(axis=0)
            unused |= np.ptp(np.asarray(loss.X), axis=0) == 0  # the intercept does it
            assert not np.any(np.asarray(s.params)[unused])


@pytest.mark.parametrize(
    "make",
    [
        problem,
        lambda: losses.LogisticLoss(X, LABELS),
        lambda: penalties.ExclusiveL21(0.1, 0.2),
        lambda: sj.solve(problem()),
    ],
)
def test_objects_are_frozen(make):
    frozen = make()
    name = frozen._leaves[0]
    for change in (
        lambda: setattr(frozen, name, 1),
        lambda: setattr(frozen, "unknown", 1),
        lambda: delattr(frozen, name),
    ):
        with pytest.raises(AttributeError, match=f"{type(frozen).__name__} is immutable"):
            change()
    for other in (copy.copy(frozen), copy.deepcopy(frozen), pickle.loads(pickle.dumps(frozen))):
        assert jax.tree.structure(other) == jax.tree.structure(frozen)
        jax.tree.map(np.testing.assert_array_equal, other, frozen)
