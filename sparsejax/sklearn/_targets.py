"""Targets of regressors: missing entries, weights by entry, exposure, and the smoothing of a quantile."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.utils import check_array
from sklearn.utils.validation import check_consistent_length

from sparsejax.losses import PoissonLoss
from sparsejax.sklearn._tables import as_real, as_sample_weight, check_no_dates, check_unmasked, names_of

SHARE_OF_SPREAD = 0.01  # the default smoothing of a quantile, relative to the interquartile range of y


class Targets(NamedTuple):
    """The targets of a regressor."""

    y: np.ndarray  # as given, (n,) or (n, k), NaN where missing
    Y: np.ndarray  # (n, k), with observed values in place of missing ones
    weights: np.ndarray  # (n,), or (n, k) if they differ between outputs
    exposure: np.ndarray | None  # (n,)

    @property
    def columns(self) -> np.ndarray:
        """The columns of a table: Y; with an exposure, counts per unit of exposure and then the exposure."""
        if self.exposure is None:
            return self.Y
        return np.c_[self.Y / self.exposure[:, None], self.exposure]


def checked_y(estimator: Any, y: Any) -> np.ndarray:
    """y as floats, (n,) or (n, k), in which NaN is a missing target."""
    if y is None:
        kind = type(estimator).__name__
        raise ValueError(f"This {kind} estimator requires y to be passed, but the target y is None.")
    check_unmasked("y", y)
    check_no_dates("y", y)
    names = names_of(y)
    options = {"ensure_2d": False, "ensure_all_finite": "allow-nan", "input_name": "y"}
    y = check_array(y, dtype=None, estimator=estimator, **options)
    if y.dtype.kind not in "iufb":
        try:
            y = y.astype(np.float64)
        except (TypeError, ValueError) as error:
            error_class = TypeError if isinstance(error, TypeError) else ValueError
            raise error_class(f"y must hold numbers ({error}); SparseClassifier takes labels.") from None
    if y.ndim > 2:
        raise ValueError(f"y has shape {y.shape}; it must be (n,) or (n, outputs).")
    missing = np.isnan(y).reshape(len(y), -1).all(axis=0)
    if missing.any():
        column = int(np.argmax(missing))
        name = str(column) if names is None else repr(names[column])
        which = f"column {name} of y" if y.ndim == 2 else "y"
        raise ValueError(f"{which} is NaN in every row: no target was observed.")
    return y


def as_targets(estimator: Any, X: Any, y: Any, sample_weight: Any, offset: Any) -> Targets:
    """The checked targets, weights and exposure of the rows of X."""
    y = checked_y(estimator, y)
    check_consistent_length(X, y)
    Y = y.reshape(len(y), -1)
    missing = np.isnan(Y)
    weights = as_sample_weight(sample_weight, len(y), Y.shape[1])
    if missing.any():
        weights = np.where(missing, 0, weights.reshape(len(y), -1))
        # A missing entry gets an observed value of its column, which the loss accepts, and weight 0.
        Y = np.where(missing, np.nanmax(Y, axis=0), Y)
        if not weights.any(axis=0).all():
            where = f" in column {np.argmin(weights.any(axis=0))} of y" if y.ndim == 2 else ""
            raise ValueError(f"every row with an observed target{where} has sample_weight 0.")
    if weights.ndim == 2 and (weights == weights[:, :1]).all():
        weights = weights[:, 0]
    return Targets(y, Y, weights, as_exposure(offset, estimator.loss, len(y)))


def as_exposure(offset: Any, loss: Any, n: int) -> np.ndarray | None:
    """The exposure ``exp(offset)``, (n,); None without an offset."""
    if offset is None:
        return None
    if not isinstance(loss, str) or loss != "poisson":
        raise ValueError(f'offset is for loss="poisson", got loss={loss!r}.')
    offset = as_real("offset", offset)
    if offset.shape != (n,):
        raise ValueError(f"offset must have shape ({n},), one for each row; got {offset.shape}.")
    with np.errstate(over="ignore", under="ignore"):
        exposure = np.exp(offset)
    if not np.isfinite(exposure).all() or not (exposure > 0).all():
        raise ValueError("offset has a value that is not finite, or whose exponential is 0 or infinite.")
    return exposure


def default_smoothing(Y: np.ndarray, weights: np.ndarray) -> float:
    """A hundredth of the spread of y, the interquartile range; of several outputs the least spread above 0.

    If the range of an output is 0, its spread is the mean absolute deviation from the median. If all spreads
    are 0, the result is a hundredth. Y is (n, k), ``weights`` (n,) or (n, k).
    """
    found = []
    # As float64: numpy subtracts no booleans, and differences of small integers overflow.
    for j, y in enumerate(Y.T.astype(np.float64)):
        w = weights if weights.ndim == 1 else weights[:, j]
        order = np.argsort(y, kind="stable")
        mass = np.cumsum(w[order])
        # If the mass up to a row is exactly a share, this row is the quantile; the rounding of the sums could
        # choose the next row, so that each share is made a little smaller.
        shares = np.array([0.25, 0.5, 0.75]) * (1 - 1e-9) * mass[-1]
        low, median, high = y[order][np.searchsorted(mass, shares)]
        spread = high - low or np.average(np.abs(y - median), weights=w)
        found.append(spread)
    return SHARE_OF_SPREAD * min((x for x in found if x > 0), default=1.0)


class ExposedPoissonLoss(PoissonLoss, leaves=("exposure",)):
    r"""`PoissonLoss` of rates: ``Y`` holds counts per unit of exposure, which multiplies the weights.

    Up to a constant, ``scale * sum_i weights_i exposure_i [e^h_i - y_i h_i]`` is the loss of the counts
    ``y_i exposure_i`` with the means :math:`e^{h_i + \log \text{exposure}_i}`. ``weights`` do not include the
    exposure, so that folds are scaled by their numbers of rows.
    """

    exposure: jax.Array

    def __init__(self, X: Any, Y: Any, *, exposure: Any, **options: Any):
        self._set(exposure=jnp.asarray(exposure, np.asarray(Y).dtype).reshape(-1, 1))
        super().__init__(X, Y, **options)

    def _weights(self) -> jax.Array:
        return super()._weights() * self.exposure


def exposed(X: Any, Y: Any, **options: Any) -> ExposedPoissonLoss:
    """The loss of a table with `Targets.columns`, whose last column is the exposure."""
    return ExposedPoissonLoss(X, Y[:, :-1], exposure=Y[:, -1], **options)
