"""Bad input is refused before anything is traced, by an error that names the argument and what is allowed."""

import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
import scipy.sparse
from cases import SOLVERS
from loss_cases import LOSSES
from penalty_cases import PENALTIES

import sparsejax as sj
from sparsejax import penalties, prox
from sparsejax._core.matrices import sharded
from sparsejax.interop import jaxopt
from sparsejax.interop.optax import proximal
from sparsejax.losses import HuberHingeLoss, LogisticLoss, SquaredHingeLoss, SquaredLoss
from sparsejax.penalties import L1, L21, ExclusiveL21

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


def Own(name, part):
    """A ridge penalty of one's own with one part of its class replaced."""
    parts = {
        "strengths": ("strength",),
        "degrees": (2,),
        "value": lambda self, W: self.strength / 2 * jnp.sum(W * W),
        "prox": lambda self, V, scaling=1.0: V / (1 + scaling * self.strength),
        "conjugate": lambda self, Z, aux=None: jnp.sum(Z * Z) / 2 / self.strength,
        "dual_scale": lambda self, Z: jnp.inf,
        "finite_conjugate": True,
        "smooth_where": lambda self, W: jnp.ones(W.shape, bool),
    }
    return type("Mine", (sj.Penalty,), parts | {name: part}, leaves=("strength",))(0.1)


PLAIN = jax.tree_util.Partial(plain)
STACKED = jax.vmap(L21)

# What no loss takes. name: (call of the loss with good targets, error, regex that the message must match)
DATA = {
    "X of rank 1": (lambda make, Y: make(X[:, 0], Y), ValueError, r"X has shape \(8,\).* 2-d"),
    "X of rank 3": (lambda make, Y: make(X[None], Y), ValueError, r"X has shape \(1, 8, 4\).* 2-d"),
    "X a number": (lambda make, Y: make(1.0, Y), ValueError, r"X has shape \(\).* 2-d"),
    "Y of rank 3": (lambda make, Y: make(X, Y[None]), ValueError, r"Y has shape .* 1-d or 2-d"),
    "Y a number": (lambda make, Y: make(X, 1.0), ValueError, r"Y has shape \(\).* 1-d or 2-d"),
    "rows disagree": (lambda make, Y: make(X, Y[:5]), ValueError, "X has 8 rows and Y has 5"),
    "X transposed": (lambda make, Y: make(X.T, Y), ValueError, "X has 4 rows and Y has 8"),
    "NaN in X": (lambda make, Y: make(NAN, Y), ValueError, r"X has 1 .*NaN.*\(2, 1\).*finite"),
    "infinity in X": (lambda make, Y: make(INF, Y), ValueError, r"X has 1 .*infinite.*\(0, 3\)"),
    "NaN in Y": (lambda make, Y: make(X, NAN), ValueError, r"Y has 1 .*NaN.*\(2, 1\)"),
    "complex X": (lambda make, Y: make(X * 1j, Y), TypeError, "X is complex.*real"),
    "complex Y": (lambda make, Y: make(X, Y + 0j), TypeError, "Y is complex.*real"),
    "float16": (lambda make, Y: make(X.astype(np.float16), Y), TypeError, "X has dtype float16; float32 or"),
    "bfloat16": (lambda make, Y: make(jnp.asarray(X, jnp.bfloat16), Y), TypeError, "X has dtype bfloat16"),
    "long double": (lambda make, Y: make(X.astype(np.longdouble), Y), TypeError, "X has dtype .*float64 is"),
    "scipy sparse Y": (
        lambda make, Y: make(X, scipy.sparse.csr_array(Y)),
        TypeError,
        r"Y is a sparse csr_array.*Y\.toarray",
    ),
    "ragged X": (lambda make, Y: make([[1, 2], [3]], Y), ValueError, "X is not a rectangular array"),
    "ragged Y": (lambda make, Y: make(X, [[1], [2, 3]]), ValueError, "Y is not a rectangular array"),
    "strings": (lambda make, Y: make([["a"]] * 8, Y), TypeError, "X has dtype <U1; real numbers"),
    "label names": (lambda make, Y: make(X, ["cat"] * 8), TypeError, "Y has dtype <U3; real numbers"),
    "dates": (lambda make, Y: make(X.astype("datetime64[D]"), Y), TypeError, "X has dtype datetime64"),
    "X is None": (lambda make, Y: make(None, Y), TypeError, "X .*real numbers"),
    "Y is None": (lambda make, Y: make(X, None), TypeError, "Y .*real numbers"),
    "no rows": (lambda make, Y: make(X[:0], Y[:0]), ValueError, r"X is empty: its shape is \(0, 4\)"),
    "no features": (lambda make, Y: make(X[:, :0], Y), ValueError, r"X is empty.*\(8, 0\)"),
    "no columns": (lambda make, Y: make(X, Y[:, :0]), ValueError, "Y has no columns"),
    "scale 0": (lambda make, Y: make(X, Y, scale=0), ValueError, "scale must be > 0, got 0"),
    "negative scale": (lambda make, Y: make(X, Y, scale=-1.0), ValueError, "scale must be > 0, got -1"),
    "NaN scale": (lambda make, Y: make(X, Y, scale=np.nan), ValueError, "scale has 1 .*NaN"),
    "scale by name": (lambda make, Y: make(X, Y, scale="mean"), TypeError, "scale has dtype <U4"),
    "scale by row": (lambda make, Y: make(X, Y, scale=np.ones(8)), ValueError, r"scale .*\(8,\).* 0-d"),
    "intercept 1": (lambda make, Y: make(X, Y, intercept=1), TypeError, "intercept .*True or False, got 1"),
    "intercept array": (
        lambda make, Y: make(X, Y, intercept=np.zeros(3)),
        TypeError,
        "intercept must be True",
    ),
}

WEIGHTS = {
    "negative": (-np.ones(8), ValueError, "must be >= 0.*-1"),
    "NaN": ([np.nan] * 8, ValueError, "has 8 .*NaN"),
    "too few": (np.ones(5), ValueError, r"has shape \(5,\).*\(8,\).*\(8, 3\)"),
    "a column": (np.ones((8, 1)), ValueError, r".*\(8, 1\)"),
    "transposed": (np.ones((3, 8)), ValueError, r".*\(3, 8\)"),
    "one number": (2.0, ValueError, r"has shape \(\)"),
    "by name": ("balanced", TypeError, "has dtype <U8"),
}

# What no strength may be.
STRENGTHS = {
    "negative": (-0.1, ValueError, r"must be >= 0, got -0\.1"),
    "negative entry": ([0.1, -0.2], ValueError, r"must be >= 0, got -0\.2"),
    "NaN": (np.nan, ValueError, "has 1 .*NaN"),
    "NaN entry": ([1, np.nan], ValueError, r"has 1 .*NaN.*\(1,\)"),
    "infinite": (np.inf, ValueError, "has 1 .*infinite"),
    "text": ("0.1", TypeError, "has dtype <U3; real numbers"),
    "None": (None, TypeError, ".*real numbers"),
    "a boolean": (True, TypeError, "must be a number, got True"),
    "complex": (1j, TypeError, "is complex"),
    "float16": (np.float16(0.1), TypeError, "has dtype float16"),
    "by entry": (np.ones((4, 3)), ValueError, r"has shape \(4, 3\).* 0-d or 1-d"),
    "empty": ([], ValueError, "is empty"),
}


@pytest.mark.parametrize("bad", [*DATA, *(f"weights: {name}" for name in WEIGHTS)])
@pytest.mark.parametrize("loss", LOSSES)
def test_data_of_every_loss(loss, bad):
    make, targets = LOSSES[loss].make, LOSSES[loss].targets(Y)
    if bad in DATA:
        call, error, pattern = DATA[bad]
    else:
        weights, error, pattern = WEIGHTS[bad.removeprefix("weights: ")]
        call, pattern = lambda make, Y: make(X, Y, weights=weights), f"weights {pattern}"
    with pytest.raises(error, match=pattern):
        call(make, targets)


def with_each(name, value):
    """[(strength, the strengths of the table with this one exchanged)]."""
    case = PENALTIES[name]
    names = case.make(*case.strengths).strengths
    return [(names[i], [*case.strengths[:i], value, *case.strengths[i + 1 :]]) for i in range(len(names))]


@pytest.mark.parametrize("bad", STRENGTHS)
@pytest.mark.parametrize("penalty", PENALTIES)
def test_strengths_of_every_penalty(penalty, bad):
    value, error, pattern = STRENGTHS[bad]
    if (penalty, bad) == ("L1", "by entry"):  # which it has
        value, pattern = value[None], r"has shape \(1, 4, 3\).* 0-d or 1-d or 2-d"
    for strength, values in with_each(penalty, value):
        with pytest.raises(error, match=f"{strength} {pattern}"):
            PENALTIES[penalty].make(*values)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_number_of_strengths_of_every_penalty(penalty):
    """One a row, or a group: not one a column, nor one in a list; also where a problem is changed."""
    good = cases.problem("SquaredLoss", penalty)
    for length in (1, PENALTIES[penalty].length + 1, cases.K + 1):
        for strength, values in with_each(penalty, np.ones(length)):
            with pytest.raises(ValueError, match=rf"{penalty}: {strength} has shape \({length},\)"):
                good.replace(penalty=PENALTIES[penalty].make(*values))


# Everything else. name: (call, error, regex that the message must match)
TABLE = {
    # ---- data
    "Y too large for float32": (
        lambda: SquaredLoss(X.astype(np.float32), 1e39 * abs(Y)),
        ValueError,
        r"Y has \d+ .*too large for float32",
    ),
    # ---- labels
    "labels that are numbers": (lambda: LogisticLoss(X, Y), ValueError, "Y must hold 0 and 1 only.*it has"),
    "labels -1 and 1": (lambda: LogisticLoss(X, 2 * LABELS - 1), ValueError, "0 and 1 only.* -1.*: Y > 0"),
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
    "one label only among the rows that count": (
        lambda: LogisticLoss(X, LABELS[:, 0], weights=LABELS[:, 0], intercept=True),
        ValueError,
        "column 0 of Y has one label only in its rows of weight > 0",
    ),
    "labels 0 and 1 for a hinge": (
        lambda: SquaredHingeLoss(X, LABELS),
        ValueError,
        "Y must hold -1 and 1 only for SquaredHingeLoss; it has 0",
    ),
    "class numbers for a hinge": (lambda: HuberHingeLoss(X, np.arange(8)), ValueError, "-1 and 1 only.* 0"),
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
    # ---- problems
    "smooth an array": (lambda: sj.Problem(X, L21(0.1)), TypeError, "smooth must be callable.*ndarray"),
    "smooth and penalty swapped": (
        lambda: sj.Problem(L21(0.1), SquaredLoss(X, Y)),
        TypeError,
        "smooth must be callable.*L21.*takes the loss first, then the penalty",
    ),
    "penalty a class": (lambda: problem(L21), TypeError, "penalty .*L21.*a class, not an instance"),
    "penalty a number": (lambda: problem(0.1), TypeError, r"penalty must have value.* prox.*got 0\.1"),
    "penalty without prox": (
        lambda: problem(type("Half", (), {"value": lambda self, W: 0.0})()),
        TypeError,
        "penalty .*without prox",
    ),
    "strengths of no leaf": (
        lambda: sj.solve(problem(Own("strengths", ("alpha",)))),
        TypeError,
        "strengths of Mine names alpha: no leaf has such a name",
    ),
    "prox returns a tuple": (
        lambda: sj.solve(problem(Own("prox", lambda self, V, scaling=1.0: (V,)))),
        TypeError,
        r"solve: prox of Mine must return .*got \(\(",
    ),
    "prox without scaling": (
        lambda: sj.solve(problem(Own("prox", lambda self, V: V))),
        TypeError,
        "a method of Mine fails .*positional arguments",
    ),
    "prox in a sum": (
        lambda: sj.solve(problem(Own("prox", lambda self, V, scaling=1.0: None) + L21(0.1))),
        TypeError,
        "prox of Mine must return .*got None",
    ),
    "value an array": (
        lambda: sj.solve(problem(Own("value", lambda self, W: W))),
        TypeError,
        "value of Mine must return one number",
    ),
    "conjugate an array": (
        lambda: sj.solve(problem(Own("conjugate", lambda self, Z, aux=None: Z))),
        TypeError,
        "conjugate of Mine must return one number",
    ),
    "smooth_where in numbers": (
        lambda: sj.solve(problem(Own("smooth_where", lambda self, W: abs(W)))),
        TypeError,
        "smooth_where of Mine must return .*bool.*got .*float",
    ),
    "degrees a number": (
        lambda: sj.solve(problem(Own("degrees", 1))),
        TypeError,
        r"degrees of Mine must be a tuple of 1, got 1\.",
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
    "stepsize True": (
        lambda: sj.fista(problem(), stepsize=True),
        TypeError,
        "stepsize must be a number, got True",
    ),
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
        "admm needs a loss with a majorizer.*fista takes any",
    ),
    "alm with logistic loss": (
        lambda: sj.alm(problem(smooth=LogisticLoss(X, LABELS))),
        TypeError,
        "alm needs SquaredLoss.*got LogisticLoss with L21; admm and fista",
    ),
    "alm of a sparse X": (
        lambda: sj.alm(sj.Problem(SquaredLoss(scipy.sparse.csr_array(X), Y), sj.penalties.L21(0.1))),
        TypeError,
        "alm needs SquaredLoss .*not sparse",
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
        r"path: leading axes must agree.*\[\(2,\), \(3,\)\]",
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
    "path: array": (lambda: sj.path(problem(), np.ones(3)), TypeError, "path: penalties must be .*L21.*vmap"),
    "path: array for a sum": (
        lambda: sj.path(problem(L1(0.1) + L21(0.1)), np.ones(3)),
        TypeError,
        r"path: penalties must be (?!.*vmap)",
    ),
    "path: a list": (
        lambda: sj.path(problem(), [L21(1), L21(2)]),
        TypeError,
        r"path: penalties must be .*L21.*jax\.tree\.map",
    ),
    "path: two axes and one": (
        lambda: sj.path(
            problem(ExclusiveL21(0.1, 0.1)),
            ExclusiveL21(0.1, 0.1)._replace(alpha=np.ones((2, 3)), beta=np.ones(2)),
        ),
        ValueError,
        r"path: leading axes must agree.*\[\(2,\), \(2, 3\)\]",
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
    "bound of long doubles": (
        lambda: penalties.Box(np.longdouble(0), 1.0),
        TypeError,
        r"low has dtype \w+; float32 or float64 is needed",
    ),
    "empty init": (
        lambda: sj.solve(sj.Problem(plain, L1(0.1)), np.zeros(0)),
        ValueError,
        "solve: init has an empty array",
    ),
    "projection that is no function": (
        lambda: jaxopt.ProjectedGradient(plain, np.ones(3)),
        TypeError,
        "ProjectedGradient: projection must be callable, got array",
    ),
    "from_projection of an array": (
        lambda: jaxopt.from_projection(jnp.ones(3)),
        TypeError,
        "from_projection: projection must be callable, got Array",
    ),
    "L1 of a square W": (
        lambda: problem(L1(np.ones(4)), SquaredLoss(X[:, :3], Y)),
        ValueError,
        r"\(\), \(3,\), \(3, 3\); \(3,\) is by row\.$",
    ),
    "value of W with too few rows": (
        lambda: L21(np.ones(4)).value(np.ones((1, 2))),
        ValueError,
        r"W has shape \(1, 2\)\. L21: alpha has shape \(4,\)",
    ),
    "optax, params of Python": (
        lambda: trained(1.0),
        TypeError,
        "proximal: params must be arrays, got float: 1.0",
    ),
    "optax, a penalised number": (lambda: trained(jnp.ones(())), ValueError, "V is a single number"),
}


def trained(params):
    optimizer = proximal(optax.sgd(0.1), L1(0.1), 0.1)
    return optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)


@pytest.mark.parametrize("name", sorted(PENALTIES))
@pytest.mark.parametrize("W", [[[0.1, 0.2]], None, "W", pd.DataFrame(np.ones((2, 2))), np.ones((8, 4), int)])
def test_value_of_what_is_no_array(name, W):
    """Integers too: strengths would be rounded to integers."""
    with pytest.raises(TypeError, match=r"W must be an array of JAX or numpy, got|W has dtype int64; float"):
        PENALTIES[name].make(*PENALTIES[name].strengths).value(W)


@pytest.mark.parametrize("name", TABLE)
def test_is_refused(name):
    call, error, pattern = TABLE[name]
    with pytest.raises(error, match=pattern) as caught:
        call()
    assert len(str(caught.value)) > 15


@pytest.mark.parametrize("solver", [sj.solve, *(solver.function for solver in SOLVERS.values())])
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


@pytest.mark.parametrize("within", [False, True])
def test_large_data_of_an_accelerator_are_checked_there(within, monkeypatch):
    """The same errors, outside and inside of a function that is being traced; only the answers are copied."""
    asked = []
    monkeypatch.setattr(
        sharded, "_stays_on_its_device", lambda x: asked.append(x) or isinstance(x, jax.Array)
    )
    X, Y = jnp.asarray(RNG.standard_normal((12, 3))), jnp.ones((12, 1))
    call = lambda X, Y: sj.losses.LogisticLoss(X, Y)(jnp.zeros((3, 1)))
    run = (lambda X, Y: jax.jit(lambda: call(X, Y))()) if within else call
    assert np.isfinite(run(X, Y)) and asked
    with pytest.raises(ValueError, match=r"X has 1 value\(s\) that are NaN.* the first at \(2, 1\)"):
        run(X.at[2, 1].set(jnp.nan), Y)
    with pytest.raises(ValueError, match=r"Y must hold 0 and 1 only.* it has 5"):
        run(X, Y.at[3].set(5.0))


class Halves(sj.Loss, leaves=("target",)):
    """A loss that knows the shape of W, which may have any number of axes."""

    target: jax.Array

    def __call__(self, W):
        return jnp.sum((W - self.target) ** 2) / 2

    @property
    def params_shape(self):
        return jnp.shape(self.target)

    @property
    def dtype(self):
        return self.target.dtype


class OfFour(sj.Penalty, leaves=("strength",)):
    """A ridge with a check of its own."""

    strengths = ("strength",)

    def value(self, W):
        return self.strength / 2 * jnp.sum(W * W)

    def prox(self, V, scaling=1.0):
        return V / (1 + scaling * self.strength)

    def check(self, params_shape):
        if params_shape == (6,):
            raise ValueError("six are too many")


@pytest.mark.parametrize("shape", [(), (2, 3, 4)])
def test_a_start_of_any_shape_that_the_loss_knows(shape):
    problem = sj.Problem(Halves(jnp.ones(shape)), OfFour(jnp.ones(())))
    solution = sj.fista(problem, jnp.zeros(shape), tol=1e-9)
    np.testing.assert_allclose(solution.params, 0.5, atol=1e-8)
    with pytest.raises(ValueError, match="init has shape"):
        sj.fista(problem, jnp.zeros((5, 2)))


def test_the_check_of_a_users_penalty_beside_a_plain_function():
    problem = sj.Problem(lambda w: jnp.sum((w - 1) ** 2), OfFour(jnp.ones(())))
    assert sj.fista(problem, jnp.zeros(4)).converged
    with pytest.raises(ValueError, match="six are too many"):
        sj.fista(problem, jnp.zeros(6))


def test_lambda_max_in_the_dtype_of_the_loss():
    loss = sj.losses.SquaredLoss(np.eye(4, 3) / 3, np.ones(4) / 7)
    problem = sj.Problem(loss, sj.penalties.L1(0.1))
    found = sj.lambda_max(problem, np.zeros(3, np.float32))
    assert found.dtype == loss.dtype and found == sj.lambda_max(problem)


def test_a_traced_maxiter_beyond_int32():
    problem = sj.Problem(sj.losses.SquaredLoss(np.eye(4, 3), np.ones(4)), sj.penalties.L1(0.01))
    many = jnp.asarray(2**31 + 5, jnp.uint32)
    assert jax.jit(lambda m: sj.fista(problem, maxiter=m))(many).converged


@pytest.mark.parametrize(
    ("name", "call"),
    {
        "total": lambda: sj.penalties.SumTo(True),
        "low": lambda: sj.penalties.Box(False, 1.0),
        "q": lambda: sj.losses.QuantileLoss(X, Y, True, 0.1),
        "constant": lambda: sj.losses.GramLoss(np.eye(2), np.zeros(2), True),
        "strength": lambda: sj.losses.GraphLaplacian(np.eye(2), True),
        "offset": lambda: sj.kernels.polynomial(X, offset=True),
    }.items(),
)
def test_a_boolean_is_no_number(name, call):
    with pytest.raises(TypeError, match=f"{name} has dtype bool; real numbers are needed"):
        call()


def test_an_integer_beyond_64_bits_is_told_the_largest():
    problem = sj.Problem(SquaredLoss(np.eye(2), np.ones(2)), L1(0.1))
    with pytest.raises(ValueError, match="the largest is 2147483647"):
        sj.solve(problem, maxiter=10**20)


def test_a_traced_maxiter_is_a_scalar():
    problem = sj.Problem(SquaredLoss(np.eye(4, 3), np.ones(4)), L1(0.1))
    with pytest.raises(ValueError, match=re.escape("fista: maxiter has shape (1,); it must be 0-d")):
        jax.jit(lambda m: sj.fista(problem, maxiter=m))(jnp.array([5]))
