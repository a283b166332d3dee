"""Losses of a linear model on rows that are read again for every product with X."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from sparsejax._core.checks import is_eager
from sparsejax._core.matrices.streamed import Chunked, Source
from sparsejax._core.precision import tell_of_cast
from sparsejax.losses._batches import checked_batch, layout_of
from sparsejax.losses._cox import CoxLoss
from sparsejax.losses._linear_model import LinearModelLoss

Batches = Iterable[tuple[Any, Any]]


def from_batches(
    loss: type[LinearModelLoss], batches: Batches | Callable[[], Batches], **options: Any
) -> LinearModelLoss:
    r"""A loss whose rows of X are read again, batch by batch, for every product with X.

    This is for losses that are not quadratic (logistic, softmax, Poisson, Huber, ...). Least squares need one
    pass over the data in all: `SquaredLoss.from_batches`. A value takes one pass over the rows and its
    gradient another, whatever the number of columns of W, of folds or of strengths in a batch. The memory
    needed is one batch and a few arrays of the size of Y, (n, k). Intercept, weights, gap, `path` and
    `cross_validate` work as with X in memory. There is no derivative in X, `sparsejax.working_set` refuses
    the loss, and the gap is NaN if features are not penalised.

    `sparsejax.fista` solves such a problem, and so does `sparsejax.newton_admm` if the loss is separable in
    the columns of W: it takes about a dozen steps, each with one more pass for the Hessian (k, d, d).

    The host reads the rows, so that X is never on an accelerator. If a later read fails, or gives batches of
    other shapes than the first or values that are not finite, the loss is NaN. If reads go on failing,
    a solve does not converge: its status is ``NON_FINITE`` and W is NaN, or it ends at ``MAX_ITER`` at a
    point at which all batches could be read. The warning names the error, and ``loss.X.source.failed`` is the
    error.

    Args:
      loss: a subclass of `LinearModelLoss`, such as `LogisticLoss`; not `CoxLoss`.
      batches: pairs (X, Y), as the loss takes them but dense, of one row or more: a list, or a function
        without arguments that begins to read from the start whenever it is called. They must be the same rows
        in the same order every time. Float32 batches make a loss in float32.
      options: all other arguments of the loss, such as ``intercept=True``; weights are for all rows.

    Returns:
      An instance of the loss. Making it takes two passes over the rows.

    Raises:
      TypeError, ValueError: another loss; an iterator or generator, which can be read only once; a function
        that returns the same iterator twice; no batch; a batch that is not finite, or differs from earlier
        ones in its columns or dtype (the message gives its number); as the loss.

    >>> import numpy as np, sparsejax as sj
    >>> X = np.random.default_rng(0).standard_normal((100, 4))
    >>> read = lambda: ((X[i : i + 30], X[i : i + 30, 0] > 0) for i in range(0, 100, 30))
    >>> loss = sj.losses.from_batches(sj.losses.LogisticLoss, read, intercept=True)
    >>> np.flatnonzero(sj.solve(sj.Problem(loss, sj.penalties.L1(0.1))).params).tolist()
    [0]
    """
    if not (isinstance(loss, type) and issubclass(loss, LinearModelLoss)):
        why = ", whose risk sets hold rows of all batches: it is no sum over rows" if loss is CoxLoss else ""
        raise TypeError(f"loss must be a class such as LogisticLoss, got {loss!r}{why}.")
    rows = _read_anew(batches)
    targets, counts, layout = [], [], None
    squares: Any = 0.0
    for number, batch in enumerate(rows.begin()):
        X, Y = checked_batch(number, batch, layout)
        layout = layout_of(batch, X, Y)
        squares = squares + np.sum(np.square(X, dtype=np.float64), axis=0)
        targets.append(Y.astype(np.float64, copy=False))
        counts.append(len(X))
    if layout is None:
        raise ValueError("batches is empty; at least one (X, Y) is needed.")
    d, _, given = layout
    source = Source(rows, tuple(counts), d)
    lengths = source.lengths(squares)  # the second pass
    tell_of_cast("X", given, lambda: is_eager(()))
    dtype = jax.dtypes.canonicalize_dtype(np.float32 if given == np.float32 else np.float64)
    squares, lengths = (jax.device_put(a.astype(dtype)) for a in (squares, lengths))
    streamed = Chunked(squares, lengths, source, (len(lengths), d))
    return loss(streamed, np.concatenate(targets), **options)


@dataclass(frozen=True)
class _Rows:
    """A function that returns a new iterator over the X of all batches; pickled if ``batches`` can be."""

    batches: Any

    def begin(self) -> Iterator[Any]:
        """A new iterator over the batches."""
        return iter(self.batches() if callable(self.batches) else self.batches)

    def __call__(self) -> Iterator[np.ndarray]:
        return (np.asarray(X) for X, _ in self.begin())


def _read_anew(batches: Any) -> _Rows:
    """The batches as `_Rows`; an error if they can be read only once."""
    again = batches if callable(batches) else lambda: batches
    first, second = again(), again()
    kind = type(first).__name__
    try:
        same = iter(first) is iter(second)
    except TypeError:
        what = f"a function that returned {kind}" if callable(batches) else kind
        raise TypeError(
            f"batches must be a list of (X, Y), or a function that reads them, got {what}."
        ) from None
    if same:
        what = "a function that gives the same iterator again" if callable(batches) else f"a {kind}"
        raise ValueError(
            f"batches is {what}, which can be read once only; every product reads the rows again: give a "
            "list, or a function that begins anew whenever it is called, such as `lambda: read(path)`."
        )
    return _Rows(batches)
