"""Fitting, and the models: two classes, a grid of budgets or of C, one class against the rest."""

import contextlib
import functools
import math
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax._pytree import Pytree, as_classes, as_float, is_traced
from sparsejax.models.multivariate._callback import VMAP_METHODS, in_graph
from sparsejax.models.multivariate._cutting_plane import (
    SCHEDULES,
    CuttingPlane,
    Progress,
    WorkingSet,
    groups_of,
    memberships,
)
from sparsejax.models.multivariate._measures import Measure, as_measure, as_signs
from sparsejax.problem import CONVERGED, MESSAGES

Schedule = Literal["interleaved", "two-layer", "printed"]
VmapMethod = Literal["sequential", "expand_dims", "broadcast_all"]


class Report(NamedTuple):
    """How a solve on the host went.

    Attributes:
      history: (num_iters, 2), best objective and best lower bound after each master problem.
      num_outer, num_oracle_calls: times that a group was added; labellings searched for.
      seconds: by "oracle", "products" (with X), "master", and "all".
      memberships: d, (m,), the minimiser in the norm of w: the share of the groups that a feature is in.
      groups: indices of the features of each group that w is made of: as many as B, rounded.
      group_weights: their weights mu, sum 1; ``memberships[j]`` is the sum over the groups with j.
      working_set: what another fit can start from.
    """

    history: np.ndarray
    num_outer: int
    num_oracle_calls: int
    seconds: dict[str, float]
    memberships: np.ndarray
    groups: tuple[np.ndarray, ...]
    group_weights: np.ndarray
    working_set: WorkingSet

    def __repr__(self):
        return f"Report({len(self.history)} masters, {len(self.groups)} groups)"


class Model(
    Pytree, leaves=("w", "objective", "lower_bound", "gap", "status", "num_iters", "report"), static=()
):
    """A fitted linear model without intercept; a pytree.

    Attributes:
      w: (m,), float64 (from inside jit: the dtype of X); exactly 0 for features in no group.
      objective: J(w), of the best w seen, which is this one (up to a tenth of the gap, spent on sparsity).
      lower_bound: no w has a smaller J.
      gap: ``(objective - lower_bound) / objective``.
      status: code of `sparsejax.problem`; `message` says it in words.
      num_iters: master problems solved.
      report: `Report`, or None if the fit was traced.
    """

    w: Any
    objective: Any
    lower_bound: Any
    gap: Any
    status: Any
    num_iters: Any
    report: Report | None

    def __init__(self, w, objective, lower_bound, gap, status, num_iters, report):
        self._set(
            w=w, objective=objective, lower_bound=lower_bound, gap=gap, status=status, num_iters=num_iters,
            report=report,
        )  # fmt: skip

    @property
    def converged(self):
        """True if the gap met tol."""
        return self.status == CONVERGED

    @property
    def message(self) -> str:
        """The status in words; not available under jit."""
        if is_traced(self.status):
            raise TypeError("Model.message is text: read it outside jit and vmap.")
        return MESSAGES[int(self.status)]

    @property
    def selected(self) -> np.ndarray:
        """Indices of the features with a weight, the largest |w| first; not available under jit."""
        if is_traced(self.w):
            raise TypeError("Model.selected has no fixed shape: read it outside jit and vmap.")
        w = np.abs(np.asarray(self.w))
        order = np.argsort(-w, kind="stable")
        return order[: np.count_nonzero(w)]

    @property
    def groups(self) -> tuple[np.ndarray, ...]:
        """The groups of features that w is made of; their weights are ``report.group_weights``."""
        if self.report is None:
            raise AttributeError("groups are known of fits on the host only, not of traced ones.")
        return self.report.groups

    def decision_function(self, X: Any) -> Any:
        """Scores Xw, (n,); X dense or scipy.sparse. NumPy arrays in, NumPy out, and so for JAX."""
        if np.ndim(X) != 2 or X.shape[1] != self.w.shape[0]:
            raise ValueError(f"X has shape {np.shape(X)}; it must be (n, {self.w.shape[0]}).")
        if hasattr(X, "tocsc"):
            return X @ np.asarray(self.w)
        if isinstance(X, jax.Array) or isinstance(self.w, jax.Array):
            X = as_float("X", X, (2,), None)
            return X @ jnp.asarray(self.w, X.dtype)
        return np.asarray(X) @ self.w

    def predict(self, X: Any, threshold: float = 0.0) -> Any:
        """Labels -1 and 1, int32, (n,): 1 where the score exceeds the threshold (see `tune_threshold`)."""
        scores = self.decision_function(X)
        where = jnp.where if isinstance(scores, jax.Array) else np.where
        return where(scores > threshold, 1, -1).astype("int32")


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
    progress: Callable[[Progress], Any] | None = None,
    vmap_method: VmapMethod = "sequential",
) -> Model:
    r"""Select features for a measure of the whole labelling.

    .. math:: \min_w \tfrac12\min_{0\le d\le1,\,\sum_jd_j=B}\sum_j\frac{w_j^2}{d_j}
              + \frac Cn\max\Big(0,\,\max_{y'}\Delta(y',y)-\sum_i(y_i-y'_i)\,x_i^\top w\Big) .

    The first term is half the squared B-support norm: B = 1 gives the l1 norm, B = m the l2 norm. Usually
    more than B features have a weight, in proportion to B. There is no intercept, and columns of larger scale
    are taken first: normalise rows or columns before. Works on the host in float64, for numpy, JAX and
    scipy.sparse X; a sparse X is copied once, by columns, and never made dense. Beside it there are n bytes a
    cut, and a dense block of cuts by features in the master: these are about B to 15 B, all m if B = m.

    Inside `jax.jit`, `jax.vmap` and `jax.lax.map`, with anything of X, y, budget, C and tol traced, the same
    solve is one callback: values are not checked then, what would be an error is NaN and a status, and
    there is no ``report``.

    Args:
      X: (n, m), finite. In sparse formats explicit zeros and duplicates (which add up) are allowed.
      y: (n,), -1 and 1, both present.
      measure: `hamming`, `f_beta`, `prbep`, `precision_at`, `recall_at`, `roc_area` called with their
        arguments, or a function ``delta(a, b, c, d)`` as for `contingency`.
      budget: B > 0, real; more than m counts as m.
      C: > 0. The paper's C under its Eq. (6), where losses are divided by n, is C/n here. Losses that are
        100 at most, while scores add up over the examples, keep their trade-off if C/n goes like 1/n^2
        (SVMperf's c is ``C/n (n/50)^2``); `hamming` keeps it with C/n (at scale 2 half of an SVM's C).
      tol: on the relative gap, >= 0. At about 1e-9 and below the status will be STALLED.
      eps_delta: the gap may also be this part of the loss, times C/n: useful where the data can be
        separated and J tends to 0.
      maxiter: most master problems to solve.
      schedule: "interleaved" adds cuts and the features of the missing group after every master, which knows
        all groups of these features; "two-layer" is the paper's Algorithm 2: one group at a time, when the
        cuts are exhausted, but cuts are kept and there is a search on segments; "printed" is that algorithm
        without either, starting each inner layer anew: slow.
      init: a model of the same X and y to start from, of another budget or C: its cuts and
        features are kept.
      progress: called on the host with a `Progress` after every master.
      vmap_method: of `jax.pure_callback`, in traced calls.

    Returns:
      `Model`; its status tells whether the gap met tol.

    Raises:
      TypeError, ValueError: before the first cut; the message says which argument and what is allowed.
    Source: Mao & Tsang, IEEE TNNLS 24 (2013), Algorithm 2, with the certificate of the B-support norm.
    """
    measure = as_measure(measure)
    _check_options(eps_delta, maxiter, schedule, vmap_method)
    if init is not None and (not isinstance(init, Model) or init.report is None):
        raise TypeError("init must be a Model that was fitted on the host.")
    if any(map(is_traced, (X, y, budget, C, tol))):
        if progress is not None or init is not None:
            raise TypeError(
                "progress and init are for calls on the host: leave them out inside jit and vmap."
            )
        return _fit_traced(X, y, measure, budget, C, tol, eps_delta, maxiter, schedule, vmap_method)
    data = as_data(X)
    run = functools.partial(
        _fit, data, y, measure, tol=tol, eps_delta=eps_delta, maxiter=maxiter, schedule=schedule
    )
    return run(budget, C, init=init, progress=progress)


def path(
    X: Any,
    y: Any,
    *,
    measure: Measure | Callable[..., Any],
    budget: float | Sequence[float],
    C: float | Sequence[float],
    **options: Any,
) -> list[Model]:
    """`fit` along a grid of budgets or of C, each from what the one before has found.

    Args:
      X, y, measure: as in `fit`.
      budget, C: one of them a sequence; increasing is cheapest.
      options: tol, eps_delta, maxiter, schedule, progress of `fit`.

    Returns:
      One `Model` for each value, in the order given.

    Raises:
      TypeError, ValueError: as `fit`; budget and C both sequences, or neither.
    """
    if (np.ndim(budget), np.ndim(C)) not in ((0, 1), (1, 0)):
        raise ValueError("exactly one of budget and C must be a sequence.")
    size = len(np.atleast_1d(budget if np.ndim(budget) else C))
    data, models, init = as_data(X), [], None
    for b, c in zip(np.broadcast_to(budget, size), np.broadcast_to(C, size), strict=True):
        init = fit(data, y, measure=measure, budget=float(b), C=float(c), init=init, **options)
        models.append(init)
    return models


class OneVsRest(Pytree, leaves=("models",), static=("classes",)):
    """A model for each class against the others; a pytree.

    Attributes:
      models: one `Model` a class.
      classes: tuple of the k labels, in their order.
    """

    models: tuple[Model, ...]
    classes: tuple[Any, ...]

    def __init__(self, models, classes):
        self._set(models=models, classes=classes)

    def decision_function(self, X: Any) -> Any:
        """Scores, (n, k), one column a class."""
        columns = [model.decision_function(X) for model in self.models]
        return (jnp if isinstance(columns[0], jax.Array) else np).stack(columns, axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """The label of the largest score of each row, (n,); on the host (under jit use the scores)."""
        return np.asarray(self.classes)[np.asarray(self.decision_function(X)).argmax(1)]


def fit_one_vs_rest(
    X: Any,
    y: Any,
    *,
    measure: Measure | Callable[..., Any] | Sequence[Measure],
    budget: float,
    C: float,
    workers: int = 1,
    **options: Any,
) -> OneVsRest:
    """`fit` for each class against the rest, in parallel processes.

    Args:
      X: as in `fit`.
      y: (n,), labels of any sortable kind, at least two different ones.
      measure: as in `fit`, or a sequence of one a class, in sorted order of the labels (such as
        ``recall_at(2 * p)`` with each class's p).
      budget, C: as in `fit`, for all classes.
      workers: processes. They are spawned, so that a script that asks for more than one must keep what it
        runs under ``if __name__ == "__main__":``; X is copied to each.
      options: tol, eps_delta, maxiter, schedule of `fit`.

    Returns:
      `OneVsRest`.

    Raises:
      TypeError, ValueError: as `fit`; one class only; a NaN among the labels; workers < 1; a number of
        measures that is not the number of classes.
    """
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ValueError(f"workers must be an integer >= 1, got {workers!r}.")
    data = as_data(X)
    y, classes = as_classes(y, data.shape[0])
    several = isinstance(measure, Sequence)
    measures = list(measure) if several else [measure] * len(classes)  # type: ignore[arg-type]
    if len(measures) != len(classes):
        raise ValueError(f"there are {len(measures)} measures for {len(classes)} classes.")
    jobs = [
        dict(y=np.where(y == c, 1, -1), measure=as_measure(one), budget=budget, C=C, **options)
        for c, one in zip(classes, measures, strict=True)
    ]
    for job in jobs:  # what is wrong with one is told here, not in a process
        job["measure"].oracle(job["y"] == 1)
    _check_budget(budget), _check_positive("C", C)
    if workers == 1:
        models = [fit(data, **job) for job in jobs]
    else:
        context = multiprocessing.get_context("spawn")  # JAX has threads, which a fork would not survive
        with (
            _one_thread_each(),
            ProcessPoolExecutor(min(workers, len(jobs)), context, _receive, (data,)) as pool,
        ):
            models = list(pool.map(_fit_received, jobs))
    return OneVsRest(tuple(models), tuple(classes.tolist()))


_received: list[Any] = []


def _receive(data):
    _received[:] = [data]


def _fit_received(job):
    return fit(_received[0], **job)


@contextlib.contextmanager
def _one_thread_each():
    """Processes started here keep their linear algebra to one thread."""
    names = [n for n in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS") if n not in os.environ]
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)


# ---------------------------------------------------------------- one solve


def _solve(
    data, positive, measure, budget, C, tol, *, init=None, eps_delta, maxiter, schedule, progress=None
):
    with np.errstate(all="ignore"):  # what is not finite is found by looking at values
        oracle, bound = measure.oracle(positive), C / data.shape[0]
        plane = CuttingPlane(data, oracle, min(budget, data.shape[1]), bound, schedule)
        return plane.run(tol, eps_delta, maxiter, progress, init)


def _fit(data, y, measure, budget, C, *, tol, init, progress, **options):
    positive = as_signs(y)
    if len(positive) != data.shape[0]:
        raise ValueError(f"X has {data.shape[0]} rows and y has {len(positive)}.")
    if positive.all() or not positive.any():
        raise ValueError(f"y has one class only, {1 if positive.all() else -1}; both are needed.")
    start = None if init is None else init.report.working_set
    if start is not None and len(start.codes[0] if start.codes else positive) != len(positive):
        raise ValueError(f"init was fitted to {len(start.codes[0])} rows; X has {len(positive)}.")
    budget, C, tol = _check_budget(budget), _check_positive("C", C), _check_tol(tol)
    r = _solve(data, positive, measure, budget, C, tol, init=start, progress=progress, **options)
    gap = (r.objective - r.lower_bound) / r.objective if r.objective > 0 else 0.0
    d = memberships(r.w, min(budget, len(r.w)))
    report = Report(r.history, r.num_outer, r.num_oracle_calls, r.seconds, d, *groups_of(d), r.working_set)
    return Model(
        r.w, np.float64(r.objective), np.float64(r.lower_bound), np.float64(gap), np.int32(r.status),
        np.int32(r.num_iters), report,
    )  # fmt: skip


def _fit_traced(X, y, measure, budget, C, tol, eps_delta, maxiter, schedule, vmap_method):
    X = as_float("X", X, (2,)) if is_traced(X) else as_data(X)
    if np.shape(y) != X.shape[:1]:
        raise ValueError(f"y must have shape ({X.shape[0]},), one for each row of X; got {np.shape(y)}.")
    k = measure.parameter if measure.name in ("precision_at", "recall_at") else 1
    if k > X.shape[0]:
        raise ValueError(f"{measure.name}: k must be at most the number of examples, {X.shape[0]}; got {k}.")
    scalars, check_C = [], functools.partial(_check_positive, "C")
    for name, value, check in (
        ("budget", budget, _check_budget),
        ("C", C, check_C),
        ("tol", tol, _check_tol),
    ):
        if np.shape(value):
            raise ValueError(
                f"{name} must be a number, got shape {np.shape(value)}; use jax.vmap for several."
            )
        scalars.append(value if is_traced(value) else check(value))

    def solve(X, y, budget, C, tol):
        data = X if hasattr(X, "tocsc") else np.asarray(X, dtype=float)
        positive = as_signs(y)
        if positive.all() or not positive.any():
            raise ValueError("one class")
        _check_budget(budget), _check_positive("C", C), _check_tol(tol)
        options = {"eps_delta": eps_delta, "maxiter": maxiter, "schedule": schedule}
        return _solve(data, positive, measure, budget, C, tol, **options)

    w, objective, lower, gap, status, num_iters = in_graph(solve, X, y, tuple(scalars), X.shape, vmap_method)
    return Model(w, objective, lower, gap, status, num_iters, None)


# ---------------------------------------------------------------- checks


def as_data(X: Any) -> Any:
    """X as float64: by columns if sparse, else a numpy array; checked."""
    if hasattr(X, "tocsc"):
        from scipy import sparse  # type: ignore[import-untyped]  # noqa: PLC0415

        _check_real(X.dtype)
        if hasattr(X, "check_format"):
            try:
                X.check_format(full_check=True)
            except ValueError as error:
                raise ValueError(
                    f"X is not a valid sparse array (too small an index dtype?): {error}"
                ) from None
        X = sparse.csc_array(X, dtype=float)
        values = X.data
    else:
        if hasattr(X, "todense"):
            raise TypeError(f"X is a {type(X).__name__}; a dense or scipy.sparse array is needed.")
        X = np.asarray(X)
        _check_real(X.dtype)
        X = values = np.asarray(X, dtype=float)
    if len(X.shape) != 2 or 0 in X.shape:
        raise ValueError(f"X must have shape (n, m) with n, m >= 1, got {X.shape}.")
    bad = ~np.isfinite(values)
    if bad.any():
        raise ValueError(f"X has {int(bad.sum())} value(s) that are NaN or infinite; all must be finite.")
    return X


def _check_real(dtype):
    if dtype.kind not in "biuf":
        raise TypeError(f"X has dtype {dtype}; real numbers are needed.")


def _check_number(name, value):
    if isinstance(value, (bool, np.bool_)) or np.ndim(value) or np.asarray(value).dtype.kind not in "iuf":
        raise TypeError(f"{name} must be a number, got {value!r}.")
    return float(value)


def _check_positive(name, value):
    value = _check_number(name, value)
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be > 0 and finite, got {value:g}.")
    return value


def _check_budget(budget):
    budget = _check_number("budget", budget)
    if not budget > 0:
        raise ValueError(f"budget must be > 0, got {budget:g}.")
    return budget


def _check_tol(tol):
    tol = _check_number("tol", tol)
    if not 0 <= tol < math.inf:
        raise ValueError(f"tol must be >= 0 and finite, got {tol:g}.")
    return tol


def _check_options(eps_delta, maxiter, schedule, vmap_method):
    if not 0 <= _check_number("eps_delta", eps_delta) < math.inf:
        raise ValueError(f"eps_delta must be >= 0 and finite, got {eps_delta:g}.")
    if isinstance(maxiter, bool) or not isinstance(maxiter, (int, np.integer)) or maxiter < 1:
        raise ValueError(f"maxiter must be an integer >= 1, got {maxiter!r}.")
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {schedule!r}.")
    if vmap_method not in VMAP_METHODS:
        raise ValueError(f"vmap_method must be one of {', '.join(VMAP_METHODS)}, got {vmap_method!r}.")
