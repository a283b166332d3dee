"""Solvers, one algorithm a file, all ``(problem, init=None, *, tol, maxiter, history) -> Solution``.

`SOLVERS` is the one table of them: `sparsejax.solve`, `sparsejax.path`, the tests and docs/choose-a-solver.md
read it. To add a solver, write its file and its entry here.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from sparsejax.factor import Factor
from sparsejax.problem import Problem
from sparsejax.solution import Solution
from sparsejax.solvers import (
    _admm,
    _alm,
    _davis_yin,
    _fista,
    _irls,
    _newton_admm,
    _prox_newton,
    _smoothed_apg,
    _variational,
    _working_set,
)
from sparsejax.solvers._admm import admm
from sparsejax.solvers._alm import alm
from sparsejax.solvers._arguments import prepare
from sparsejax.solvers._davis_yin import davis_yin
from sparsejax.solvers._fista import fista
from sparsejax.solvers._irls import irls
from sparsejax.solvers._newton_admm import newton_admm
from sparsejax.solvers._prox_newton import prox_newton
from sparsejax.solvers._smoothed_apg import smoothed_apg
from sparsejax.solvers._variational import variational_newton
from sparsejax.solvers._working_set import working_set


class Resume(NamedTuple):
    """How a solver goes through a path: what it computes once, and what it hands on to the next problem.

    >>> from sparsejax.solvers import SOLVERS
    >>> [name for name, entry in SOLVERS.items() if entry.resume is not None]
    ['variational_newton', 'admm']
    """

    shared: Callable[[Any], Any]  # (loss) -> what depends on the loss alone
    first: Callable[[Any, Any, Any], Any]  # (shared, problem, init) -> the first state
    # (problem, shared, init, state, tol, maxiter, complete=..., brief=...) -> (Solution, state); state None:
    # from scratch; complete False: without what `differentiable` has as its finish; brief True: perhaps
    # without a residual
    solve: Callable[..., tuple[Solution, Any]]
    factor: Callable[[Any], Factor | None] = lambda shared: None  # what of it makes the derivative cheaper
    rows: bool = True  # in units of each column of X
    rest: Callable[..., Solution] | None = None  # solves what complete=False leaves, as a program of its own


class Solver(NamedTuple):
    """An entry of the table.

    >>> import numpy as np, sparsejax as sj
    >>> from sparsejax.solvers import SOLVERS
    >>> SOLVERS["fista"].function is sj.fista, SOLVERS["fista"].summary
    (True, 'accelerated proximal gradient, restart, backtracking')
    """

    function: Callable[..., Solution]
    # Of a problem in the protocol: None, or in words why the solver does not take it.
    fits: Callable[[Problem], str | None]
    summary: str  # for docs/choose-a-solver.md
    # `sparsejax.solve` takes the first that fits and, by the shape of the problem, suits.
    suits: Callable[[Problem], bool] = lambda problem: False
    resume: Resume | None = None  # without: a path hands on the solution alone


def _always(problem: Problem) -> bool:
    return True


SOLVERS: dict[str, Solver] = {
    "variational_newton": Solver(
        variational_newton,
        _variational.unfit,
        "Newton on one scalar a row or group, for norms on many features; `admm` takes over where it must",
        _variational.suits,
        Resume(
            _variational.share, _variational.start, _variational.resume, rows=False, rest=_variational.rest
        ),
    ),
    "prox_newton": Solver(
        prox_newton,
        _prox_newton.unfit,
        "Newton on a loss of one column, for norms of rows or groups: `variational_newton` within",
        _always,
    ),
    "working_set": Solver(
        working_set,
        _working_set.unfit,
        "the engine on the features that matter, for sparse rows on many features",
        _working_set.suits,
    ),
    "newton_admm": Solver(
        newton_admm,
        _newton_admm.unfit,
        "Newton for losses that are not quadratic, any columns and penalty of one term: `admm` within",
        _newton_admm.suits,
    ),
    "admm": Solver(
        admm,
        _admm.unfit,
        "the engine: one factorisation, exact joint prox",
        _always,
        Resume(
            _admm.share,
            lambda shared, problem, init: shared.factor.mean,
            _admm.go_on,
            lambda shared: shared.factor,
        ),
    ),
    "fista": Solver(fista, _fista.unfit, "accelerated proximal gradient, restart, backtracking", _always),
    "alm": Solver(
        alm,
        _alm.unfit,
        "the engine by default; `faithful=True` is IJCAI 2019's Algorithm 2 as printed",
    ),
    "irls": Solver(
        irls, _irls.unfit, "reweighting for `ExclusiveGroupL21`, AAAI 2016; zeros with `polish=True`"
    ),
    "davis_yin": Solver(
        davis_yin,
        _davis_yin.unfit,
        "three-operator splitting, for penalties of two terms such as two label views",
    ),
    "smoothed_apg": Solver(
        smoothed_apg,
        _smoothed_apg.unfit,
        "ACM MM 2011's smoothing of `ExclusiveGroupLasso`; `faithful=True` as printed",
    ),
}


def pick(problem: Problem) -> Solver:
    """The first solver that takes the problem and suits it; by static structure and shape.

    Args:
      problem: `sparsejax.Problem`, in the protocol (`prepare` puts it there).

    Returns:
      Its entry of `SOLVERS`.

    Raises:
      Never raises for a problem in the protocol: `fista` takes what no other does.

    >>> import numpy as np, sparsejax as sj
    >>> problem = sj.Problem(sj.losses.SquaredLoss(np.eye(4, 3), np.eye(4, 2)), sj.penalties.L21(0.0625))
    >>> from sparsejax.solvers import pick
    >>> pick(problem).function is sj.admm
    True
    """
    return next(s for s in SOLVERS.values() if s.fits(problem) is None and s.suits(problem))


__all__ = [
    "SOLVERS",
    "Resume",
    "Solver",
    "admm",
    "alm",
    "davis_yin",
    "fista",
    "irls",
    "newton_admm",
    "pick",
    "prepare",
    "prox_newton",
    "smoothed_apg",
    "variational_newton",
    "working_set",
]
