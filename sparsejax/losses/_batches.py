"""Least squares on rows that are read in batches and are never all in memory."""

from collections.abc import Iterable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sparsejax._core.checks import (
    as_int,
    as_intercept,
    as_numpy,
    as_positive,
    check_bool,
    check_params,
    is_sparse,
)
from sparsejax._core.linalg import eps_of, safe_divide
from sparsejax.losses._base import Facts, Loss, Pair
from sparsejax.losses._gram import GramLoss
from sparsejax.losses._quadratic_model import QuadraticModel

ROWS_AT_ONCE = 16384  # rows of a batch whose (X, Y) are copied and multiplied at once: bounds the memory
# Relative error of the stored products, in units of eps. BLAS adds up at most `ROWS_AT_ONCE` products.
PRODUCT_ERROR = 16


class BatchedSquaredLoss(
    Loss, leaves=("G", "B", "c", "x", "y", "origin", "weights", "scale"), static=("has_intercept",)
):
    r"""Least squares by the mean products of the rows of F blocks; `SquaredLoss.from_batches` returns it.

    The function is ``scale * sum_f n_f mean_f ||x W + b - y||^2``, where the mean runs over the rows of block
    f and the weight :math:`n_f` is their number. For cross-validation each block counts as one row: a fold
    gives some blocks the weight 0, and no data are read again. An evaluation costs d x d x (F + k), whatever
    n is.

    The products of a block are about its own mean. The products of several blocks about a point are the
    products within each block plus the products of the block means about the point. These are sums of
    squares, so that no digits cancel.

    Args:
      G: (F, d, d), mean of x'x in each block, about the means of the block.
      B: (F, d, k) or (F, d), mean of x'y, about the means of the block.
      c: (F,), mean of ||y||^2, about the mean of the block.
      x, y: (F, d) and (F, k) or (F,), means of x and of y in each block, minus the origin.
      origin: the mean of all x and of all y, (d,) and (k,) or (); 0 without an intercept.
      weights: (F,), numbers of rows; 0 leaves a block out.
      scale: > 0, ().
      has_intercept: whether b is fitted; else b = 0.

    >>> import jax.numpy as jnp, numpy as np, sparsejax as sj
    >>> loss = sj.losses.SquaredLoss.from_batches([(np.eye(4, 3), np.eye(4, 2))])
    >>> type(loss).__name__, float(loss(jnp.zeros((3, 2))))
    ('BatchedSquaredLoss', 0.25)
    """

    G: jax.Array
    B: jax.Array
    c: jax.Array
    x: jax.Array
    y: jax.Array
    origin: tuple[jax.Array, jax.Array]
    weights: jax.Array
    scale: jax.Array
    has_intercept: bool

    @property
    def params_shape(self) -> tuple[int, ...]:
        """(d, k) or (d,)."""
        return tuple(self.B.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        """The dtype of G, B and c."""
        return self.G.dtype

    def gram(self) -> GramLoss:
        """The same function of W by X'X and X'Y of all rows, centred at their means if b is fitted."""
        w, (x, y) = self.weights, self._about()
        flat = y.reshape(len(w), -1)
        G = jnp.tensordot(w, self.G, 1) + (w[:, None] * x).T @ x
        B = jnp.tensordot(w, self.B, 1) + ((w[:, None] * x).T @ flat).reshape(self.params_shape)
        c = w @ self.c + jnp.sum(w[:, None] * flat * flat)
        return GramLoss.of_data(2 * self.scale * G, 2 * self.scale * B, self.scale * c)

    def __call__(self, W: jax.Array) -> jax.Array:
        return self.gram()(W)

    def quadratic_model(self) -> QuadraticModel:
        """The loss is quadratic; its curvature is computed from `gram`."""
        return QuadraticModel(majorizer=lambda: self.gram().root(), exact=True, condensed=self.gram)

    def dual_scaling(self, W: jax.Array, limit: jax.Array, H: jax.Array | None = None) -> Pair:
        """Same as `GramLoss.dual_scaling`."""
        return self.gram().dual_scaling(W, limit)

    def facts(self, W: jax.Array, sizes: Any = None) -> Facts:
        """Same as `GramLoss.facts`, but ``rounding`` also covers the rounding of products and means."""
        facts, w = self.gram().facts(W), self.weights
        (x, y), size = self._about(), jnp.abs(W)
        # A residual r of the means has an error e of some roundings of |x||W| + |y|:
        # (r + e)^2 - r^2 <= (2|r| + e) e.
        reach = jnp.abs(self.x) @ size + jnp.abs(self.y)
        there = (w > 0).reshape((-1,) + (1,) * (reach.ndim - 1))
        error = 4 * eps_of(W) * (reach + jnp.max(jnp.where(there, reach, 0), axis=0, keepdims=True))
        each = ((2 * jnp.abs(x @ W - y) + error) * error).reshape(len(w), -1)
        of_means = self.scale * jnp.sum(w * jnp.sum(each, axis=1))
        return facts._replace(rounding=PRODUCT_ERROR * facts.rounding + of_means)

    def valid(self) -> jax.Array:
        """() boolean: no weight is negative, and the scale is positive and finite."""
        return jnp.all(self.weights >= 0) & (self.scale > 0) & (self.scale < jnp.inf)

    def reweighted(self, weights: jax.Array) -> Self:
        """The same loss with other numbers of rows, which are not checked."""
        return self._replace(weights=weights)

    def intercept(self, W: jax.Array) -> jax.Array:
        """The best intercept at W, (k,) or (); 0 if none is fitted."""
        check_params(W, self.params_shape)
        x0, y0 = self.origin
        if not self.has_intercept:
            return jnp.zeros_like(y0)
        x, y = self._means()
        return y + y0 - (x + x0) @ W

    def evaluate(self, W: jax.Array, intercept: ArrayLike = 0.0) -> jax.Array:
        """The value of the loss at W with this intercept, (k,) or ()."""
        check_params(W, self.params_shape)
        x0, y0 = self.origin
        b = as_intercept(intercept, y0.shape, self.dtype)
        # Mean square of the residuals of a block = mean square about their mean + square of their mean.
        fitted = jnp.sum((self.G @ W) * W[None], axis=tuple(range(1, W.ndim + 1)))
        crossed = jnp.sum(self.B * W[None], axis=tuple(range(1, W.ndim + 1)))
        within = jnp.maximum(fitted - 2 * crossed + self.c, 0)
        mean = (self.x @ W - self.y + (b + x0 @ W - y0)[None]).reshape(len(self.c), -1)
        return self.scale * jnp.sum(self.weights * (within + jnp.sum(mean * mean, axis=1)))

    def _about(self) -> Pair:
        """The means of the blocks about the mean of all if b is fitted, else about 0."""
        if not self.has_intercept:
            return self.x, self.y
        x, y = self._means()
        return self.x - x[None], self.y - y[None]

    def _means(self) -> Pair:
        """The means of all x and all y, minus the origin."""
        total = jnp.sum(self.weights)
        return safe_divide(self.weights @ self.x, total), safe_divide(self.weights @ self.y, total)


class _Sum:
    """A compensated sum of arrays (Neumaier, Z. Angew. Math. Mech. 54, 1974)."""

    def __init__(self, shape: tuple[int, ...]):
        self.total, self.compensation = np.zeros(shape), np.zeros(shape)

    def add(self, a: np.ndarray) -> None:
        new = self.total + a
        larger = np.abs(self.total) >= np.abs(a)
        # Add the part of the smaller summand that rounding has removed from the sum.
        self.compensation += np.where(larger, (self.total - new) + a, (a - new) + self.total)
        self.total = new

    @property
    def value(self) -> np.ndarray:
        return self.total + self.compensation


class _Moments:
    """Number, mean and products about the mean of the rows (x, y) of a block, updated by some rows at a time.

    Source: Chan, Golub & LeVeque, The American Statistician 37(3), 1983, pairwise update.
    """

    def __init__(self, d: int, k: int):
        self.count = 0
        self.mean = _Sum((d + k,))
        self.products, self.squares = _Sum((d, d + k)), _Sum(())  # of x and (x, y); of ||y||^2

    def add(self, rows: np.ndarray) -> None:
        """Add rows (m, d + k), which are overwritten."""
        if not len(rows):
            return
        d, m, old = len(self.products.total), len(rows), self.count
        self.count += m
        mean = rows.mean(0)
        rows -= mean
        left = rows.mean(0)  # not 0, since the mean was rounded
        rows -= left
        self._add_products(rows.T[:d] @ rows, rows[:, d:])
        # products += (old m / count) step step', where step is the mean of these rows minus the mean before.
        step = (mean - self.mean.total) + (left - self.mean.compensation)
        apart = np.sqrt(old * m / self.count) * step
        self._add_products(np.outer(apart[:d], apart), apart[d:])
        self.mean.add(step * (m / self.count) if old else mean)
        if not old:
            self.mean.add(left)

    def _add_products(self, products: np.ndarray, targets: np.ndarray) -> None:
        self.products.add(products)
        self.squares.add(np.sum(targets**2))


def from_batches(
    batches: Iterable[tuple[Any, Any]],
    *,
    folds: int = 1,
    scale: ArrayLike | None = None,
    intercept: bool = False,
) -> BatchedSquaredLoss:
    """See `SquaredLoss.from_batches`; `sparsejax.losses.from_batches` is in `_streamed.py`."""
    folds = as_int("folds", folds, 1)
    check_bool("intercept", intercept)
    blocks: list[_Moments] = []
    form: tuple[int, ...] = ()
    seen, layout = 0, None
    for number, batch in enumerate(_iterated(batches)):
        X, Y = checked_batch(number, batch, layout)
        if layout is None:
            layout, form = layout_of(batch, X, Y), Y.shape[1:]
            blocks = [_Moments(X.shape[1], int(np.prod(form))) for _ in range(folds)]
        for start in range(0, len(X), ROWS_AT_ONCE):
            x, y = X[start : start + ROWS_AT_ONCE], Y[start : start + ROWS_AT_ONCE]
            both = np.concatenate([x, y.reshape(len(y), -1)], axis=1, dtype=np.float64)
            for fold in range(folds):
                # Row i of all rows belongs to fold i % folds; row 0 of ``both`` is row seen + start.
                blocks[fold].add(both[(fold - seen - start) % folds :: folds])
        seen += len(X)
    if layout is None:
        raise ValueError(
            "batches is empty; at least one (X, Y) is needed. An iterator can be read once only."
        )
    if seen < folds:
        raise ValueError(f"folds must be at most the number of rows, {seen}, got {folds}.")
    return _loss_of(blocks, form, scale, intercept)


def _loss_of(
    blocks: list[_Moments], form: tuple[int, ...], scale: ArrayLike | None, intercept: bool
) -> BatchedSquaredLoss:
    d, counts = len(blocks[0].products.total), np.array([block.count for block in blocks], float)
    products = np.stack([block.products.value / block.count for block in blocks])
    means = [block.mean for block in blocks]
    origin = np.zeros_like(means[0].total)
    if intercept:
        origin = counts @ np.stack([mean.value for mean in means]) / counts.sum()
    mean = np.stack([(mean.total - origin) + mean.compensation for mean in means])
    G = products[:, :, :d]
    leaves = {
        "G": (G + G.transpose(0, 2, 1)) / 2,
        "B": products[:, :, d:].reshape(len(blocks), d, *form),
        "c": np.stack([block.squares.value / block.count for block in blocks]),
        "x": mean[:, :d],
        "y": mean[:, d:].reshape(len(blocks), *form),
        "origin": (origin[:d], origin[d:].reshape(form)),
        "weights": counts,
    }
    dtype = jax.dtypes.canonicalize_dtype(np.float64)
    placed = jax.tree.map(lambda a: jax.device_put(np.asarray(a, dtype)), leaves)
    size = as_positive("scale", 1 / (2 * counts.sum()) if scale is None else scale, dtype)
    return BatchedSquaredLoss(**placed, scale=size, has_intercept=bool(intercept))


def _iterated(batches: Any) -> Any:
    try:
        return iter(batches)
    except TypeError:
        raise TypeError(f"batches must be an iterable of (X, Y), got {type(batches).__name__}.") from None


def checked_batch(number: int, batch: Any, layout: Any) -> tuple[np.ndarray, np.ndarray]:
    """X and Y of batch ``number``, checked: float32 stays float32, other dtypes become float64.

    ``layout`` is the `layout_of` earlier batches, which this batch must share; None for the first batch.
    """
    if not (isinstance(batch, (tuple, list)) and len(batch) == 2):
        raise TypeError(f"batch {number} must be a pair (X, Y), got {type(batch).__name__}.")
    X, Y = (_numbers(f"{name} of batch {number}", a) for name, a in zip("XY", batch, strict=True))
    if X.ndim != 2 or Y.ndim not in (1, 2) or len(X) != len(Y):
        raise ValueError(
            f"batch {number}: X has shape {X.shape} and Y {Y.shape}; (n, d), and (n,) or (n, k), are needed."
        )
    if not X.size or not Y.size:
        raise ValueError(f"batch {number} is empty: X has shape {X.shape}, Y {Y.shape}.")
    own = layout_of(batch, X, Y)
    if layout not in (None, own):
        raise ValueError(
            f"batch {number}: X has {own[0]} columns and dtype {own[2]}, and a row of Y has shape {own[1]}; "
            f"in earlier batches these are {layout[0]}, {layout[2]} and {layout[1]}."
        )
    return X, Y


def layout_of(batch: Any, X: np.ndarray, Y: np.ndarray) -> tuple[int, tuple[int, ...], Any]:
    """The layout that all batches must share: number of columns of X, shape of a row of Y, dtype of X."""
    return X.shape[1], Y.shape[1:], np.asarray(batch[0]).dtype


def _numbers(name: str, a: Any) -> np.ndarray:
    """``a`` as a numpy array: float32 stays float32, other dtypes become float64 (whatever JAX's default).

    An error if ``a`` is sparse, is not of real numbers, or has a NaN or an infinity.
    """
    if is_sparse(a):
        raise TypeError(f"{name} is a sparse {type(a).__name__}; a dense array is needed.")
    a = as_numpy(name, a)
    if a.dtype.kind not in "fiub":
        raise TypeError(f"{name} has dtype {a.dtype}; real numbers are needed.")
    numbers: np.ndarray = a if a.dtype == np.float32 else a.astype(np.float64, copy=False)
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name} has values that are NaN or infinite; all must be finite.")
    return numbers
