"""A single fit, on the host or traced."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import jax.numpy as jnp
import numpy as np

from sparsejax._core.checks import as_float, as_int, check_choice, is_traced
from sparsejax._core.precision import users_level
from sparsejax._core.progress import Interrupted, bar_of
from sparsejax._core.threads import one_blas_thread
from sparsejax.models._labels import SIGNS, two_classes
from sparsejax.models.multivariate._callback import in_graph
from sparsejax.models.multivariate._checks import as_budget, nonnegative, positive
from sparsejax.models.multivariate._cutting_plane import CuttingPlane, Progress, Result
from sparsejax.models.multivariate._data import Data, as_data
from sparsejax.models.multivariate._measures import Measure, as_measure, as_signs
from sparsejax.models.multivariate._model import Model, Report
from sparsejax.models.multivariate._restricted import WorkingSet
from sparsejax.models.multivariate._support_norm import groups_of, memberships
from sparsejax.solution import CONVERGED, INTERRUPTED, ConvergenceWarning

NAME = "multivariate.fit"
TINY = float(np.finfo(float).tiny)

Schedule = Literal["interleaved", "two-layer", "printed"]
VmapMethod = Literal["sequential", "expand_dims", "broadcast_all"]

CHECKS: dict[str, Callable[[Any], float]] = {
    "budget": as_budget,
    "C": functools.partial(positive, "C"),
    "tol": functools.partial(nonnegative, "tol"),
}


def fit(
    X: Any,
    y: Any,
    *,
    measure: Measure | Callable[..., Any],
    budget: Any,
    C: Any,
    tol: Any = 1e-3,
    eps_delta: float = 0.0,
    maxiter: int = 1000,
    schedule: Schedule = "interleaved",
    init: Model | None = None,
    progress: Callable[[Progress], Any] | bool | None = None,
    vmap_method: VmapMethod = "sequential",
) -> Model:
    r"""Select features by minimising a performance measure of the whole labelling.

    .. math:: \min_w \tfrac12\min_{0\le d\le1,\,\sum_jd_j=B}\sum_j\frac{w_j^2}{d_j}
              + \frac Cn\max\Big(0,\,\max_{y'}\Delta(y',y)-\sum_i(y_i-y'_i)\,x_i^\top w\Big) .

    The first term is half the squared B-support norm: B = 1 gives the l1 norm, B = m the l2 norm. The
    number of features with a weight is usually more than B: up to about 2 B if C is small (4.5 B seen at B
    = 2). If C is large, nearly all features that matter get a weight, whatever B is. There is no intercept.
    Columns of larger scale are preferred: normalise rows or columns first. The solve runs on the host in
    float64, for numpy, JAX and scipy.sparse X; a sparse X is copied once, by columns, and never made dense.
    Each cut takes n more bytes (8 n for `roc_area`), and the master holds a dense array of cuts by
    features. The master has few more features than get a weight, or all m if B = m.

    Inside `jax.jit`, `jax.vmap` and `jax.lax.map`, if X, y, budget, C or tol is traced, the same solve is one
    callback. Values are not checked then: where a concrete value would raise, the result is NaN, with a
    status that tells why. ``report`` is None.

    Args:
      X: (n, m), finite. In sparse formats explicit zeros and duplicates (which add up) are allowed.
      y: (n,), labels of two classes (see `sparsejax.models`). Both must occur, and the second is the
        positive class. Traced labels must be -1 and 1.
      measure: `hamming`, `f_beta`, `prbep`, `precision_at`, `recall_at`, `roc_area` called with their
        arguments, or a function ``delta(a, b, c, d)`` as for `contingency`.
      budget: B > 0, real; more than m counts as m.
      C: > 0, the C of the paper under its Eq. (6), where losses and scores are divided by n. The sum of
        scores grows with n. To keep the balance of loss and scores for another n, a loss of at most 100,
        which does not grow, needs C/n proportional to 1/n^2 (SVMperf's c is ``C/n (n/50)^2``). `hamming`
        grows with n, and needs a constant C/n (at scale 2, C/n is half of an SVM's C).
      tol: bound on the relative gap, >= 0. Below about 1e-9 the status will be STALLED.
      eps_delta: >= 0. The solve also ends when the absolute gap is at most ``eps_delta * C/n``, which is
        useful for separable data, where the minimum of the objective may be nearly 0.
      maxiter: largest number of master problems.
      schedule: "interleaved" adds cuts and the features of the missing group after every master, which has
        all groups of all its features. "two-layer" is Algorithm 2 of the paper, which adds one group when no
        cut is missing, but keeps cuts and searches on segments. "printed" is Algorithm 2 as printed, which
        starts each inner layer with the first cut alone and is slow.
      init: a model fitted to the same X, y and measure with another budget or C: the solve starts from its
        cuts and features.
      progress: True for a progress bar of the masters with the gap, by tqdm; or a function that is called on
        the host with a `Progress` after every master.
      vmap_method: argument of `jax.pure_callback`, for traced calls.

    Returns:
      `Model`; its status says whether the gap met tol.

    Raises:
      Interrupted: Ctrl-C, with or without progress, during a master. Its ``partial`` is the best `Model` so
        far with its bounds, which can be ``init`` of another fit. A traced call ends with an error of JAX
        that names KeyboardInterrupt.
      TypeError, ValueError: a wrong argument, before the first cut; the message says what is allowed.

    Warns:
      ConvergenceWarning: outside jit, the gap did not reach tol.
    Source: Mao & Tsang, IEEE TPAMI 35 (2013), Algorithm 2, with the certificate of the B-support norm.

    >>> import numpy as np
    >>> from sparsejax.models import multivariate
    >>> X, y = np.eye(4, 3), np.array([1, -1, -1, 1])
    >>> model = multivariate.fit(X, y, measure=multivariate.f_beta(), budget=2, C=1.0)
    >>> model.w.shape, bool(model.gap <= 1e-3)
    ((3,), True)
    """
    measure = as_measure(measure)
    check_choice("schedule", schedule, get_args(Schedule))
    check_choice("vmap_method", vmap_method, get_args(VmapMethod))
    eps_delta, maxiter = nonnegative("eps_delta", eps_delta), as_int("maxiter", maxiter, 1)
    solve = functools.partial(_solve, measure, eps_delta, maxiter, schedule)
    if init is not None and (not isinstance(init, Model) or init.report is None):
        raise TypeError("init must be a Model that was fitted on the host.")
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise TypeError(f"progress must be True, False or a function of a Progress, got {progress!r}.")
    if any(map(is_traced, (X, y, budget, C, tol))):
        if progress or init is not None:
            raise TypeError(
                "progress and init are for calls on the host: leave them out inside jit and vmap."
            )
        given = {"budget": budget, "C": C, "tol": tol}
        return _fit_traced(X, y, measure, given, solve, vmap_method)
    data, (signs, classes) = as_data(X), two_classes(y)
    if len(signs) != data.shape[0]:
        raise ValueError(f"X has {data.shape[0]} rows and y has {len(signs)}.")
    start = None if init is None or init.report is None else init.report.working_set
    if start is not None:
        _check_cuts(start, measure, signs)
    budget, C, tol = CHECKS["budget"](budget), CHECKS["C"](C), CHECKS["tol"](tol)
    with _told(progress) as tell:
        r = solve(data, signs, budget, C, tol, tell, start)
    d = memberships(r.w, budget)
    report = Report(r.history, r.num_outer, r.num_oracle_calls, r.seconds, d, *groups_of(d), r.working_set)
    numbers = map(np.float64, (r.objective, r.lower_bound, r.gap))
    model = Model(r.w, *numbers, np.int32(r.status), np.int32(r.num_iters), report, classes, measure)
    if r.status == INTERRUPTED:
        raise Interrupted(f"{NAME}: interrupted after {r.num_iters} masters", model)
    warn_unconverged_fit(model)
    return model


def _check_cuts(start: WorkingSet, measure: Measure, signs: np.ndarray) -> None:
    """Raise unless the cuts of an earlier fit fit this measure and truth: else no bound holds."""
    for z, delta in zip(start.codes, start.deltas, strict=True):
        if len(z) != len(signs):
            raise ValueError(f"init was fitted to {len(z)} rows; X has {len(signs)}.")
        if not np.isclose(measure.loss_of_code(z, signs), delta, rtol=1e-9):
            raise ValueError("init was fitted to other labels or for another measure.")


def warn_unconverged_fit(model: Model) -> None:
    """Warn if a fit on the host did not converge."""
    if model.status != CONVERGED:
        text = f"the fit did not converge (relative duality gap {float(model.gap):.1e}): {model.message}."
        warnings.warn(text, ConvergenceWarning, stacklevel=users_level())


@contextlib.contextmanager
def _told(progress: Any) -> Iterator[Callable[[Progress], Any] | None]:
    """The function to call after every master: the user's, one that updates a progress bar, or None."""
    if progress is not True:
        yield progress or None
        return
    with bar_of(NAME, None, "master", deferred=False) as bar:
        yield lambda p: bar.show(p.num_iters, (p.objective - p.lower_bound) / max(p.objective, TINY))


def _solve(
    measure: Measure,
    eps_delta: float,
    maxiter: int,
    schedule: str,
    data: Data,
    signs: np.ndarray,
    budget: float,
    C: float,
    tol: float,
    progress: Callable[[Progress], Any] | None = None,
    start: WorkingSet | None = None,
) -> Result:
    # The solve tests for values that are not finite, so that numpy need not warn of them. The matrices are so
    # small that several BLAS threads would mostly wait for one another.
    with np.errstate(all="ignore"), one_blas_thread():
        oracle, bound = measure.oracle(signs), C / data.shape[0]
        plane = CuttingPlane(data, oracle, budget, bound, tol, eps_delta, schedule)
        return plane.run(maxiter, progress, start)


def _fit_traced(
    X: Any, y: Any, measure: Measure, given: dict[str, Any], solve: Callable[..., Result], vmap_method: str
) -> Model:
    X = as_float("X", X, (2,)) if is_traced(X) else as_data(X)
    n = X.shape[0]
    if np.shape(y) != (n,):
        raise ValueError(f"y must have shape ({n},), one for each row of X; got {np.shape(y)}.")
    classes = SIGNS
    if not is_traced(y):
        signs, classes = two_classes(y)
        y = np.where(signs, 1, -1)
    measure.check_count(n)
    scalars = []
    for name, value in given.items():
        if np.shape(value):
            raise ValueError(
                f"{name} must be a number, got shape {np.shape(value)}; use jax.vmap for several."
            )
        scalars.append(value if is_traced(value) else CHECKS[name](value))
    scalars[0] = jnp.minimum(scalars[0], X.shape[1])  # the budget, which may be infinite

    def host_solve(X: Any, y: np.ndarray, *scalars: float) -> Result:
        data, signs = X if isinstance(X, Data) else Data(np.asarray(X, dtype=float)), as_signs(y)
        if signs.all() or not signs.any():
            raise ValueError("y has one class only; both are needed.")
        checked = [check(x) for check, x in zip(CHECKS.values(), scalars, strict=True)]
        return solve(data, signs, *checked)

    return Model(*in_graph(host_solve, X, y, tuple(scalars), X.shape, vmap_method), None, classes, measure)
