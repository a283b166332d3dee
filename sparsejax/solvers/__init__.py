"""Solvers, one algorithm a file, all ``(problem, init=None, *, tol, maxiter, history) -> Solution``.

`SOLVERS` is the one table of solvers. An entry says which problems a solver takes, and which solvers continue
if it does not converge. `sparsejax.solve`, `sparsejax.path` and the tests read the table; a test compares the
tables of docs/choose-a-solver.md with this one. To add a solver, write its file, its entry here and its row
there.
"""

from collections.abc import Callable
from dataclasses import replace

from sparsejax.driver import Link, unfinished
from sparsejax.losses import CoxLoss, sizes
from sparsejax.problem import Problem
from sparsejax.solution import number_of
from sparsejax.solvers import (
    _admm,
    _alm,
    _central_path,
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
from sparsejax.solvers._central_path import interior_point
from sparsejax.solvers._chains import SOLVERS, Resume, Solver, chain_of, pick, solved_by
from sparsejax.solvers._chains import chosen_chain as chosen_chain
from sparsejax.solvers._davis_yin import davis_yin
from sparsejax.solvers._fista import fista
from sparsejax.solvers._irls import irls
from sparsejax.solvers._newton_admm import newton_admm
from sparsejax.solvers._prox_newton import prox_newton
from sparsejax.solvers._smoothed_apg import smoothed_apg
from sparsejax.solvers._solve import solve
from sparsejax.solvers._variational import variational_newton
from sparsejax.solvers._working_set import working_set


def _always(problem: Problem) -> bool:
    return True


def _many_features(problem: Problem) -> bool:
    if not _prox_newton.has_room(problem):
        return False
    if problem.smooth.quadratic_model().exact:
        return _prox_newton.few_active(problem)
    return not (_newton_admm.unfit(problem) is None and _newton_admm.few_features(problem))


def _wide(problem: Problem) -> bool:
    """Whether `variational_newton` suits the problem and `prox_newton` is not the faster one for it."""
    if not _variational.suits(problem):
        return False
    return not (_prox_newton.unfit(problem) is None and _many_features(problem))


def _small(problem: Problem) -> bool:
    """Whether `newton_admm` suits the problem.

    The Hessian must be small. There must be several rows of data for each feature, unless `prox_newton` takes
    the problem too, or the loss is Cox's, whose curvature is far below the bound that `admm` needs.
    """
    for_prox_newton = _prox_newton.unfit(problem) is None
    of_cox = _newton_admm.unfit(problem) is None and isinstance(problem.smooth, CoxLoss)
    return _newton_admm.suits(problem) or ((for_prox_newton or of_cox) and _newton_admm.few_features(problem))


def _by_features(problem: Problem) -> bool:
    """Whether `working_set` suits the problem: many features, or classes that are too many for Newton."""
    return _working_set.suits(problem) or (_working_set.has_classes(problem) and not _small(problem))


def _if_fit(link: Link, unfit: Callable[[Problem], str | None]) -> Callable[[Problem], Link | None]:
    """A function (problem) -> the link if its solver takes the problem, else None."""
    return lambda problem: link if unfit(problem) is None else None


def _fista_of_classes(problem: Problem) -> Link | None:
    """`fista` for `SoftmaxLoss` with a dense X, else None.

    With most features active `fista` takes half of the time of `admm`.
    """
    return _fista.LINK if _working_set.has_classes(problem) else None


_admm_if_fit = _if_fit(_admm.LINK, _admm.unfit)
_newton_if_fit = _if_fit(_newton_admm.LINK, _newton_admm.unfit)
# For use after `interior_point`, which reaches the floor of rounding errors by itself: `newton_admm` does not
# continue from a solve that has stalled.
_newton_if_unfinished = _if_fit(replace(_newton_admm.LINK, due=unfinished), _newton_admm.unfit)

SOLVERS.update({
    "interior_point": Solver(
        interior_point,
        _central_path.unfit,
        "Newton steps along the central path, for quantiles and l1",
        _central_path.LINK,
        _central_path.suits,
        then=(_newton_if_unfinished,),
    ),
    "variational_newton": Solver(
        variational_newton,
        _variational.unfit,
        "Newton on one scalar a row or group, for norms on many features",
        _variational.LINK,
        _wide,
        then=(_variational.larger_working_set, _admm_if_fit),
        resume=Resume(_variational.share, _variational.start, _variational.resume),
    ),
    "prox_newton": Solver(
        prox_newton,
        _prox_newton.unfit,
        "Newton by descent on few features, for norms of rows or groups",
        _prox_newton.LINK,
        _many_features,
        then=(_newton_if_fit, _admm_if_fit, lambda problem: _fista.LINK),
        resume=Resume(sizes, _prox_newton.nothing_before, _prox_newton.resume),
    ),
    "working_set": Solver(
        working_set,
        _working_set.unfit,
        "`admm` or `fista` on the features that matter, for sparse rows on many features",
        _working_set.LINK,
        _by_features,
        then=(_newton_if_fit, _fista_of_classes, _admm_if_fit, lambda problem: _fista.LINK),
    ),
    "newton_admm": Solver(
        newton_admm,
        _newton_admm.unfit,
        "Newton for losses that are not quadratic, any columns and penalty of one term: `admm` within",
        _newton_admm.LINK,
        _small,
        resume=Resume(sizes, _newton_admm.nothing_before, _newton_admm.resume),
    ),
    "admm": Solver(
        admm,
        _admm.unfit,
        "two-block ADMM: one factorisation, exact joint prox",
        _admm.LINK,
        _always,
        then=(_newton_if_fit,),
        resume=Resume(_admm.share, lambda shared, problem, init: shared.factor.mean, _admm.resume),
    ),
    "fista": Solver(
        fista, _fista.unfit, "accelerated proximal gradient, restart, backtracking", _fista.LINK, _always
    ),
    "alm": Solver(
        alm,
        _alm.unfit,
        "`admm` by default; `faithful=True` is IJCAI 2019's Algorithm 2 as printed",
        _alm.LINK,
    ),
    "irls": Solver(
        irls,
        _irls.unfit,
        "reweighting for `ExclusiveGroupL21`, AAAI 2016; zeros with `polish=True`",
        _irls.LINK,
    ),
    "davis_yin": Solver(
        davis_yin,
        _davis_yin.unfit,
        "three-operator splitting, for penalties of two terms such as two label views",
        _davis_yin.LINK,
    ),
    "smoothed_apg": Solver(
        smoothed_apg,
        _smoothed_apg.unfit,
        "ACM MM 2011's smoothing of `ExclusiveGroupLasso`; `faithful=True` as printed",
        _smoothed_apg.LINK,
    ),
})  # fmt: skip
for _name in SOLVERS:  # the numbers of solvers follow this order, whichever is used first
    number_of(_name)


__all__ = [
    "SOLVERS",
    "Resume",
    "Solver",
    "admm",
    "alm",
    "chain_of",
    "davis_yin",
    "fista",
    "interior_point",
    "irls",
    "newton_admm",
    "pick",
    "prox_newton",
    "smoothed_apg",
    "solve",
    "solved_by",
    "variational_newton",
    "working_set",
]
