"""The curvature of a loss, and what else a solver needs to know of its data."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from sparsejax.losses._curvature import by_products


class BoundedSlope(NamedTuple):
    r"""A loss of one column, :math:`\sum_i c_i \max_{l \le v \le u} [v(h_i - y_i) - \mu v^2/2]`, h = Xw + b.

    >>> import numpy as np, sparsejax as sj
    >>> loss = sj.losses.HuberLoss(np.eye(2), np.ones(2), delta=3.0)
    >>> loss.quadratic_model().bounded_slope().high.item()
    3.0
    """

    X: jax.Array  # (n, d)
    intercept: bool  # True: b is the best intercept at w; False: b = 0
    weights: jax.Array  # c, (n,), weights of the rows times the scale
    y: jax.Array  # (n,)
    width: jax.Array  # mu, ()
    low: jax.Array  # l < 0, ()
    high: jax.Array  # u > 0, ()


class QuadraticModel(NamedTuple):
    r"""The curvature of a loss f(W), W (d, k), as far as the class of the loss knows it.

    A field that is expensive to compute is a function, which a solver calls once, inside its own program.
    None means that the field is not known. The argument H is ``facts(W).predictions``, or None.

    * ``majorizer()``: A, (m, d), with :math:`\nabla^2 f \preceq I_k \otimes A^\top A + L \otimes I_d`;
    * ``trace()``: (), an upper bound of the trace of A'A that costs less than A;
    * ``exact``: True if the bound of ``majorizer`` is the Hessian at every W, so that f is quadratic;
    * ``laplacian()``: L, (k, k); None: L = 0;
    * ``target()``: for a quadratic f, B (shape of the targets) with ``f = 1/2 ||AW - B||^2`` + constant;
    * ``factored()``: a matrix M in memory, (m, d), and factors r, (m,), with ``A = diag(r) M``;
    * ``condensed()``: the same function of W in a form that is cheaper to evaluate;
    * ``hessian(W, H)``: the Hessian in the stacked columns of W, (1, kd, kd). If ``separable``, the Hessian
      in each column, (k, d, d), or for n < d a root A of each Hessian A'A, (k, n, d). Without ``hessian``
      solvers use Hessian-vector products;
    * ``separable``: True if f is a sum of functions of the single columns of W;
    * ``least_squares_at(W, H)``: A, (m, d), and B, (m, 1). For a W of one column
      :math:`\tfrac12\|AV - B\|^2` + constant equals f(V) to second order about W, or has a larger
      second-order term. If the loss has some of the features only, by ``columns_at``, A has these and H is
      still of all features;
    * ``bounded_slope()``: `BoundedSlope`, for a loss of one column with X in memory;
    * ``num_rows``: the number of rows of the data, needed if ``weights`` is None;
    * ``column_sizes()``: the number of stored entries that each feature takes in ``columns_at``, (d,), and
      the number of entries in all for which ``columns_at`` has room. None: it has room for any features;
    * ``sizes()``: numbers that ``facts`` takes as its second argument, so that they are computed once;
    * ``rereads``: True if every product with X reads the data again: solvers then use as few as they can.

    >>> import numpy as np, sparsejax as sj
    >>> model = sj.losses.SquaredLoss(np.eye(2), np.ones(2), scale=0.5).quadratic_model()
    >>> model.exact, model.majorizer().tolist()
    (True, [[1.0, 0.0], [0.0, 1.0]])
    """

    majorizer: Callable[[], jax.Array] | None = None
    trace: Callable[[], jax.Array] | None = None
    exact: bool = False
    laplacian: Callable[[], jax.Array] | None = None
    target: Callable[[], jax.Array] | None = None
    factored: Callable[[], tuple[jax.Array, jax.Array]] | None = None
    condensed: Callable[[], Any] | None = None
    hessian: Callable[[jax.Array, Any], jax.Array] | None = None
    separable: bool = False
    least_squares_at: Callable[[jax.Array, Any], tuple[jax.Array, jax.Array]] | None = None
    bounded_slope: Callable[[], BoundedSlope] | None = None
    num_rows: int | None = None
    column_sizes: Callable[[], tuple[jax.Array, int]] | None = None
    sizes: Callable[[], Any] | None = None
    rereads: bool = False


# A loss is Any in these functions: `Loss` is defined in a file that imports this one.


def condensed(loss: Any) -> Any:
    """The same function of W in the form that is cheapest to evaluate."""
    cheaper = loss.quadratic_model().condensed
    return loss if cheaper is None else cheaper()


def hessian(loss: Any, W: jax.Array, H: Any = None) -> jax.Array:
    """The Hessian of any loss at W, with shape and argument H as in `QuadraticModel.hessian`."""
    known = loss.quadratic_model().hessian
    return by_products(loss, W) if known is None else known(W, H)


def num_rows(loss: Any) -> int | None:
    """The number of rows of the data, by the quadratic model or by the weights; None if neither knows it."""
    known: int | None = loss.quadratic_model().num_rows
    return int(loss.weights.shape[0]) if known is None and loss.weights is not None else known


def sizes(loss: Any) -> Any:
    """The second argument of ``loss.facts``; None if the loss needs none."""
    found = loss.quadratic_model().sizes
    return None if found is None else found()
