"""Scores of held-out predictions, by name or by a function. A greater score is better.

The named scores take Y, the predictions XW + b, the expected values of Y, all (n,) or (n, k), and weights.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from sparsejax import metrics
from sparsejax._core.checkpoints import digest, text_of
from sparsejax._core.checks import check_choice, check_labels, is_eager, is_traced
from sparsejax._core.matrices.sharded import answer_of
from sparsejax._core.precision import full_precision
from sparsejax._core.programs import identity_of, text_of_program
from sparsejax.losses import LinearModelLoss, Loss, SoftmaxLoss, SumLoss
from sparsejax.penalties import L1, NonNegative, Sum
from sparsejax.selection.resampling import weights_of

Scoring = str | Callable[[jax.Array, jax.Array, jax.Array], Any]


SCORES: dict[str, Callable[..., jax.Array]] = {
    "accuracy": lambda Y, linear, mean, w: metrics.accuracy(positive(Y), predicted(Y, mean, linear), w),
    # "f1" is the mean over columns, "f1_micro" the F1 of all entries together.
    "f1": lambda Y, linear, mean, w: _f1(Y, linear, mean, "macro", w),
    "f1_micro": lambda Y, linear, mean, w: _f1(Y, linear, mean, "micro", w),
    # The area uses XW + b, or the log odds of a softmax: many probabilities would round to 1.
    "roc_auc": lambda Y, linear, mean, w: metrics.mean_auc(positive(Y), linear, w).mean,
    "r2": lambda Y, linear, mean, w: metrics.r2(Y, mean, w),
    # The two columns of Y are times and events.
    "concordance": lambda Y, linear, mean, w: metrics.concordance_index(Y[:, 0], Y[:, 1], linear, w),
}


def _f1(Y: jax.Array, linear: jax.Array, mean: jax.Array, average: Any, weights: jax.Array) -> jax.Array:
    return metrics.precision_recall_f1(positive(Y), predicted(Y, mean, linear), average, weights).f1


def positive(Y: jax.Array) -> jax.Array:
    """Labels 0 and 1, or -1 and 1, as 0 and 1."""
    return (Y > 0).astype(Y.dtype)


def predicted(Y: jax.Array, mean: jax.Array, linear: jax.Array) -> jax.Array:
    """The predicted labels, 0 and 1, from the expected values ``mean`` of Y, or from XW + b, ``linear``.

    If every row of Y has exactly one of several labels, a row gets the label with its largest expected value.
    If several labels have this value, as probabilities may round to 1, it gets the one with the largest
    XW + b. Otherwise a label is 1 if its expected value is nearer to the positive label than to the other.
    """
    threshold = jnp.where(jnp.any(Y < 0), 0, 0.5).astype(mean.dtype)
    nearer = (mean > threshold).astype(Y.dtype)
    if Y.ndim == 1 or Y.shape[1] == 1:
        return nearer
    one_each = jnp.all(jnp.sum(Y > 0, axis=1) == 1)
    first = jnp.where(mean == jnp.max(mean, axis=1, keepdims=True), linear, -jnp.inf)
    largest = jax.nn.one_hot(jnp.argmax(first, axis=1), Y.shape[1], dtype=Y.dtype)
    return jnp.where(one_each, largest, nearer)


def score_of(
    scoring: Scoring,
    smooth: Loss,
    W: jax.Array,
    intercept: jax.Array,
    weights: jax.Array,
    counted: jax.Array | None = None,
) -> jax.Array:
    """The score of a fit W, ``intercept``; rows with weight 0 do not count.

    ``counted`` (n,) is False for the rows that have no weight in the problem at all. A name scores as if they
    had the first label: such a row may have none, and `predicted` asks whether every row has one label.
    """
    Y, linear, mean = smooth.predictions(W, intercept)
    if counted is not None and isinstance(scoring, str) and Y.ndim == 2:
        Y = jnp.where(counted[:, None], Y, jax.nn.one_hot(0, Y.shape[1], dtype=Y.dtype)[None])
    if scoring == "roc_auc":  # other scores compare entries of one row, where XW + b has no rounding errors
        inner = smooth.loss if isinstance(smooth, SumLoss) else smooth
        linear = _log_odds(linear) if isinstance(inner, SoftmaxLoss) else linear
    return _score(scoring, Y, linear, mean, weights)


def _log_odds(linear: jax.Array) -> jax.Array:
    """The logarithm of p / (1 - p) for the softmax p of each row of ``linear``, (n, k).

    A number that is added to a row of ``linear`` changes no p, so that entries of different rows cannot be
    compared. Their log odds can, also where p rounds to 1.
    """
    largest = jnp.arange(linear.shape[1])[None] == jnp.argmax(linear, axis=1, keepdims=True)
    total = jax.nn.logsumexp(linear, axis=1, keepdims=True)
    others = jax.nn.logsumexp(jnp.where(largest, -jnp.inf, linear), axis=1, keepdims=True)
    # p is at most 1/2 for all classes but the largest, so that 1 - p has all its digits.
    share = jnp.exp(jnp.where(largest, -1, linear - total))
    return linear - jnp.where(largest, others, total + jnp.log1p(-share))


def _score(
    scoring: Scoring, Y: jax.Array, linear: jax.Array, mean: jax.Array, weights: jax.Array
) -> jax.Array:
    if isinstance(scoring, str):
        return SCORES[scoring](Y, linear, mean, weights)
    return jnp.asarray(scoring(Y, mean, weights))


@full_precision()
@jax.jit
def _targets(smooth: Loss, W: jax.Array) -> tuple[jax.Array, jax.Array]:
    found = smooth.predictions(W)
    return found.targets, found.linear


def loss_by_output(smooth: LinearModelLoss, W: jax.Array, intercept: jax.Array) -> jax.Array:
    """The loss of each column of Y, (k,), whose sum is `LinearModelLoss.evaluate`."""
    weights, H = weights_of(smooth), smooth.predictions(W, intercept).linear
    each = weights if weights.ndim == H.ndim else weights[:, None]
    return smooth.scale * jnp.sum(each * smooth.entries(H), axis=0)


def score_by_output(
    scoring: Scoring, smooth: Loss, W: jax.Array, intercept: jax.Array, weights: jax.Array
) -> jax.Array:
    """`score_of` for each column as if it were the only one, (k,)."""

    def of(Y: jax.Array, linear: jax.Array, mean: jax.Array, weights: jax.Array) -> jax.Array:
        return _score(scoring, Y, linear, mean, weights)

    Y, linear, mean = (x.T[:, :, None] for x in smooth.predictions(W, intercept))  # (k, n, 1)
    if weights.ndim == 1:
        return jax.vmap(of, (0, 0, 0, None))(Y, linear, mean, weights)
    return jax.vmap(of)(Y, linear, mean, weights.T[:, :, None])


@dataclass(frozen=True)
class TracedScoring:
    """A scoring function as a program, so that a checkpoint identifies exactly what runs.

    Two of them are equal if they compute the same: a lambda that is defined again is not compiled again, but
    a function is if a global that it reads has changed.
    """

    closed: ClosedJaxpr = field(compare=False)
    key: tuple[Any, str]  # what identifies the program, and its constants

    def __call__(self, Y: jax.Array, mean: jax.Array, weights: jax.Array) -> jax.Array:
        """The score, ()."""
        return jaxpr_as_fun(self.closed)(Y, mean, weights)[0]


def text_of_scoring(scoring: Any) -> str:
    """A text that identifies a scoring, for checkpoints.

    Raises:
      TypeError: what the function computes cannot be told.
    """
    if isinstance(scoring, TracedScoring):
        return text_of_program("scoring", scoring.closed)
    return text_of(scoring)


def traced_scoring(caller: str, scoring: Any, smooth: Loss, init: Any, per_output: bool) -> Scoring:
    """A scoring function as `TracedScoring`.

    A name is returned as it is, and so is a function that closes over tracers, or is used under jit or by
    several processes.

    Raises:
      TypeError: the function fails, or does not return one real number.
    """
    if not callable(scoring):
        return scoring
    weights = weights_of(smooth)
    Y, _, mean = jax.eval_shape(lambda f, W: f.predictions(W, f.intercept(W)), smooth, init)
    like = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (Y, mean, weights)]
    if per_output:  # each column as (n, 1)
        like = [jax.ShapeDtypeStruct((*x.shape[:1], 1)[: x.ndim], x.dtype) for x in like]
    try:
        # A new function object, because JAX would reuse the trace of one that it has seen.
        closed = jax.make_jaxpr(lambda *arguments: jnp.asarray(scoring(*arguments)))(*like)
        (found,) = closed.out_avals
        if found.shape != () or not jnp.issubdtype(found.dtype, jnp.floating):
            raise TypeError(f"it returns {found}, not one real number")
    except Exception as error:
        raise TypeError(
            f"{caller}: scoring must be a function (Y, predictions, weights) -> () of all rows; those that "
            f"are not held out have weight 0: {error}"
        ) from error
    if not is_eager((smooth, init)) or jax.process_count() > 1 or any(map(is_traced, closed.consts)):
        return scoring
    return TracedScoring(closed, (identity_of(closed.jaxpr), digest(closed.consts)))


def check_scoring(caller: str, scoring: Scoring, smooth: Loss, init: Any, given: object) -> None:
    """Check ``scoring`` before anything is solved.

    Raises:
      TypeError, ValueError: ``scoring`` is no name and no function, or does not suit the loss or its targets.
    """
    if "predictions" not in smooth.provides:
        raise TypeError(
            f"{caller}: scoring needs a loss with predictions(), such as those of sparsejax.losses, got "
            f"{type(given).__name__}."
        )
    if callable(scoring):
        return  # `traced_scoring` checks it
    Y, linear = _targets(smooth, init)
    of_times = Y.ndim == 2 and linear.ndim == 1  # (time, event)
    names = tuple(name for name in SCORES if of_times == (name == "concordance"))
    if isinstance(scoring, str) and scoring in SCORES and scoring not in names:
        needs = "it needs times and events, as CoxLoss has" if not of_times else 'it has "concordance"'
        raise ValueError(f"{caller}: scoring={scoring!r} is not of {type(given).__name__}: {needs}.")
    check_choice(f"{caller}: scoring (unless it is a function or None)", scoring, names)
    if scoring == "accuracy" and weights_of(smooth).ndim > 1:
        raise ValueError(
            f"{caller}: accuracy is of whole rows, but the loss has weights by entry: use f1, f1_micro or "
            "roc_auc."
        )
    if not of_times and scoring != "r2" and not is_traced(Y):
        allowed = (-1, 1) if answer_of(_any_negative, Y) else (0, 1)
        hint = f"scoring={scoring!r} needs a Y of labels, 0, 1 or -1, 1; do not centre it, use intercept=True"
        check_labels(Y, allowed, caller, others=hint)


def _any_negative(xp: Any, y: Any) -> Any:
    return (y < 0).any()


def check_separable(caller: str, arguments: Any) -> None:
    """Raise unless the columns of W are independent problems, each with one strength."""
    smooth, penalty = arguments.problem.smooth, arguments.problem.penalty
    parts = penalty.parts if isinstance(penalty, Sum) else (penalty,)
    entries = [part for part in parts if type(part) is L1]
    plain = len(entries) == 1 and all(type(part) in (L1, NonNegative) for part in parts)
    if not plain or jnp.ndim(entries[0].strength):
        raise TypeError(
            f"{caller}: per_output needs a penalty of one number for each column, L1(strength), alone or "
            f"with NonNegative(), got {penalty!r}."
        )
    if len(arguments.shape) != 1:
        raise ValueError(
            f"{caller}: per_output needs candidates with one leading axis, got {arguments.shape}."
        )
    apart = isinstance(smooth, LinearModelLoss) and smooth.quadratic_model().separable
    if not apart or len(smooth.params_shape) < 2:
        raise TypeError(
            f"{caller}: per_output needs a loss of a Y (n, k) whose columns do not meet, as SquaredLoss or "
            f"LogisticLoss, got {type(smooth).__name__} of W {tuple(smooth.params_shape)}."
        )
