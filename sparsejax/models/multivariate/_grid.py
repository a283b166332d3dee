"""Several fits: along a grid of budgets or of C, and one class against the rest."""

import multiprocessing
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax._core.checks import as_int, as_numpy
from sparsejax._core.progress import Bar, Interrupted, bar_of, check_progress
from sparsejax._core.pytree import Pytree
from sparsejax.models._labels import agreement, classes_of, labels_at
from sparsejax.models._summary import summary
from sparsejax.models.multivariate._checks import as_budget, positive
from sparsejax.models.multivariate._data import Data, as_data
from sparsejax.models.multivariate._fit import fit, warn_unconverged_fit
from sparsejax.models.multivariate._measures import Measure, as_measure
from sparsejax.models.multivariate._model import Model
from sparsejax.solution import ConvergenceWarning

NAME = "multivariate.fit_one_vs_rest"


def path(
    X: Any,
    y: Any,
    *,
    measure: Measure | Callable[..., Any],
    budget: float | Sequence[float],
    C: float | Sequence[float],
    **options: Any,
) -> list[Model]:
    """Call `fit` for several budgets or several C, each time from the cuts and features of the last fit.

    Args:
      X, y, measure: as in `fit`.
      budget, C: one is a number, the other a sequence, which is cheapest in increasing order.
      options: tol, eps_delta, maxiter, schedule, progress of `fit`; init, for the first fit.

    Returns:
      One `Model` for each value, in the order given.

    Raises:
      Interrupted: Ctrl-C. Its ``partial`` is the list of the models so far; the last has not converged.
      TypeError, ValueError: as `fit`; budget and C both sequences, or neither, or an empty one.

    Warns:
      ConvergenceWarning: as `fit`, for each value.

    >>> import numpy as np
    >>> from sparsejax.models import multivariate
    >>> X, y = np.eye(4, 3), np.array([1, -1, -1, 1])
    >>> models = multivariate.path(X, y, measure=multivariate.f_beta(), budget=2, C=[0.5, 1.0])
    >>> [bool(model.converged) for model in models]
    [True, True]
    """
    budgets, Cs = as_numpy("budget", budget), as_numpy("C", C)
    if (budgets.ndim, Cs.ndim) not in ((0, 1), (1, 0)):
        raise ValueError("exactly one of budget and C must be a sequence.")
    for name, values in (("budget", budgets), ("C", Cs)):
        if not values.size:
            raise ValueError(f"{name} is empty; at least one value is needed.")
    size = max(budgets.size, Cs.size)
    budgets, Cs = (np.broadcast_to(values, size).tolist() for values in (budgets, Cs))
    data, init = as_data(X), options.pop("init", None)
    models: list[Model] = []
    for b, c in zip(budgets, Cs, strict=True):
        try:
            init = fit(data, y, measure=measure, budget=b, C=c, init=init, **options)
        except Interrupted as stop:
            text = f"multivariate.path: interrupted after {len(models)} of {size} fits"
            last = [] if stop.partial is None else [stop.partial]  # None: no master was running
            raise Interrupted(text, models + last) from None
        models.append(init)
    return models


class OneVsRest(Pytree, leaves=("models",), static=("classes",)):
    """A model for each class against the others; a pytree.

    Attributes:
      models: one `Model` a class.
      classes: tuple of the k labels, in the order of the models.

    >>> import numpy as np
    >>> from sparsejax.models import multivariate
    >>> X, y = np.eye(4, 3), np.array(["a", "b", "c", "a"])
    >>> model = multivariate.fit_one_vs_rest(X, y, measure=multivariate.hamming(), budget=2, C=10.0)
    >>> model.decision_function(X).shape
    (4, 3)
    """

    models: tuple[Model, ...]
    classes: tuple[Any, ...]

    def __repr__(self) -> str:
        def kept() -> str:
            return f"{int(np.any([np.asarray(model.w) for model in self.models], axis=0).sum())} kept"

        sizes = f"{len(self.classes)} classes, {self.models[0].w.shape[-1]} features"
        return summary(self, sizes, self.models, kept)

    def score(self, X: Any, y: Any) -> float:
        """The accuracy: the share of the labels y (n,) that `predict` gives."""
        return agreement(y, self.predict(X))

    def decision_function(self, X: Any) -> Any:
        """Scores, (n, k), one column a class."""
        columns = [model.decision_function(X) for model in self.models]
        return (jnp if isinstance(columns[0], jax.Array) else np).stack(columns, axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """The label with the largest score in each row, (n,). Under jit use `decision_function` instead."""
        return labels_at(self.classes, np.asarray(self.decision_function(X)).argmax(1))


def fit_one_vs_rest(
    X: Any,
    y: Any,
    *,
    measure: Measure | Callable[..., Any] | Sequence[Measure],
    budget: float,
    C: float,
    workers: int = 1,
    progress: bool = False,
    **options: Any,
) -> OneVsRest:
    """Call `fit` for each class against all others, in parallel processes if ``workers`` is above 1.

    Args:
      X: as in `fit`.
      y: (n,), labels (see `sparsejax.models`), at least two different ones.
      measure: as in `fit`, or a sequence with one measure for each class, in the sorted order of the labels
        (such as ``recall_at(2 * p)`` with the p of each class).
      budget, C: as in `fit`, for all classes.
      workers: number of processes; with 1 the fits run one after the other in this process. More are
        spawned, and each gets a copy of X: a script then needs ``if __name__ == "__main__":``.
      progress: show a progress bar of the classes with the gap of the last one, by tqdm.
      options: tol, eps_delta, maxiter, schedule of `fit`.

    Returns:
      `OneVsRest`.

    Raises:
      Interrupted: Ctrl-C; ``partial`` is None, since a model needs all classes. All processes are ended.
      TypeError, ValueError: as `fit`; one class only; a NaN or infinity among the labels; workers < 1;
        another number of measures than of classes.

    Warns:
      ConvergenceWarning: as `fit`, for each class.

    >>> import numpy as np
    >>> from sparsejax.models import multivariate
    >>> X, y = np.eye(4, 3), np.array(["a", "b", "c", "a"])
    >>> model = multivariate.fit_one_vs_rest(X, y, measure=multivariate.hamming(), budget=2, C=10.0)
    >>> model.predict(X)[:3].tolist()
    ['a', 'b', 'c']
    """
    workers = as_int("workers", workers, 1)
    check_progress(NAME, progress, ())
    data = as_data(X)
    y, classes = classes_of(y, data.shape[0])
    measures = list(measure) if isinstance(measure, Sequence) else [measure] * len(classes)
    if len(measures) != len(classes):
        raise ValueError(f"there are {len(measures)} measures for {len(classes)} classes.")
    jobs = [
        dict(y=np.where(y == c, 1, -1), measure=as_measure(one), budget=budget, C=C, **options)
        for c, one in zip(classes, measures, strict=True)
    ]
    for job in jobs:  # a measure that a class cannot have raises here, before any process starts
        job["measure"].oracle(job["y"] == 1)
    as_budget(budget), positive("C", C)
    models: list[Model] = []
    with bar_of(NAME, len(jobs), "class", deferred=False, shown=progress) as bar:
        try:
            _fit_all(data, jobs, workers, models, bar)
        except KeyboardInterrupt:
            text = f"{NAME}: interrupted after {len(models)} of {len(jobs)} classes"
            raise Interrupted(text) from None
    return OneVsRest(tuple(models), tuple(classes.tolist()))


def _fit_all(data: Data, jobs: list[dict[str, Any]], workers: int, models: list[Model], bar: Bar) -> None:
    """Append the fitted models of the jobs to a list, in the order of the jobs."""

    def add(model: Model) -> None:
        models.append(model)
        bar.show(len(models), float(model.gap))

    if workers == 1:
        for job in jobs:
            add(fit(data, **job))
        return
    context = multiprocessing.get_context("spawn")  # JAX has threads, which a fork would not survive
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(min(workers, len(jobs)), context, _receive, (data,)) as pool:
        try:
            for model in pool.map(_fit_received, jobs):
                warn_unconverged_fit(model)
                add(model)
        except BaseException:  # an error, or Ctrl-C: the remaining fits are not needed
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise


_received: list[Data] = []


def _receive(data: Data) -> None:
    _received[:] = [data]


def _fit_received(job: dict[str, Any]) -> Model:
    with warnings.catch_warnings():  # the process that started this one warns
        warnings.simplefilter("ignore", ConvergenceWarning)
        return fit(_received[0], **job)
