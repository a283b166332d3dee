"""Solvers, one algorithm a file, all ``(problem, init=None, *, tol, maxiter, history) -> Solution``.

`SOLVERS` is the one table of them: `sparsejax.solve`, `sparsejax.path`, the tests and the README read it. To
add a solver, write its file and its entry here.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from sparsejax.factor import factorise
from sparsejax.problem import Problem
from sparsejax.solution import Solution
from sparsejax.solvers import _admm, _alm, _davis_yin, _fista, _irls, _smoothed_apg
from sparsejax.solvers._admm import admm
from sparsejax.solvers._alm import alm
from sparsejax.solvers._arguments import prepare
from sparsejax.solvers._davis_yin import davis_yin
from sparsejax.solvers._fista import fista
from sparsejax.solvers._irls import irls
from sparsejax.solvers._smoothed_apg import smoothed_apg


class Resume(NamedTuple):
    """How a solver goes through a path: what it computes once, and what it hands on to the next problem."""

    shared: Callable[[Any], Any]  # (loss) -> what depends on the loss alone
    first: Callable[[Any, Any], Any]  # (shared, init) -> the first state
    # (problem, shared, init, state, tol, maxiter) -> (Solution, state); state None: from scratch
    solve: Callable[..., tuple[Solution, Any]]


class Solver(NamedTuple):
    """An entry of the table."""

    function: Callable[..., Solution]
    # Of a problem in the protocol: None, or in words why the solver does not take it.
    fits: Callable[[Problem], str | None]
    summary: str  # for the README
    automatic: bool = False  # `sparsejax.solve` takes the first of these that fits
    resume: Resume | None = None  # without: a path hands on the solution alone


SOLVERS: dict[str, Solver] = {
    "admm": Solver(
        admm,
        _admm.unfit,
        "the engine: one factorisation, exact joint prox",
        automatic=True,
        resume=Resume(factorise, lambda factor, _: factor.mean, _admm.resume),
    ),
    "fista": Solver(
        fista, _fista.unfit, "accelerated proximal gradient, restart, backtracking", automatic=True
    ),
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
    """The first automatic solver that takes the problem; by its static structure."""
    return next(s for s in SOLVERS.values() if s.automatic and s.fits(problem) is None)


__all__ = [
    "SOLVERS",
    "Resume",
    "Solver",
    "admm",
    "alm",
    "davis_yin",
    "fista",
    "irls",
    "pick",
    "prepare",
    "smoothed_apg",
]
