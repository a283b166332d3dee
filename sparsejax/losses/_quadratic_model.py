"""What a loss is to second order, and what a solver asks of its data besides."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from sparsejax.losses._curvature import by_products


class QuadraticModel(NamedTuple):
    r"""The curvature of a loss f(W), W (d, k), as far as its class knows it.

    What takes work is a function without arguments, or of W, which a solver calls once and inside its own
    program; None stands for what is not known.

    * ``majorizer()``: A, (m, d), with :math:`\nabla^2 f \preceq I_k \otimes A^\top A + L \otimes I_d`;
    * ``exact``: whether that is the Hessian, everywhere: f is quadratic;
    * ``laplacian()``: L, (k, k); None: 0;
    * ``target()``: of a quadratic f: B, the shape of the targets, with ``f = 1/2 ||AW - B||^2`` + constant;
    * ``factored()``: A in two parts: a matrix in memory, (m, d), and by what its rows are multiplied, (m,);
    * ``condensed()``: the same function of W in a form that is cheaper to evaluate;
    * ``hessian(W, H)``: the Hessian of all columns of W one after the other, (1, kd, kd); of each where
      ``separable``, (k, d, d), or for n < d roots of them, (k, n, d), the A of blocks A'A. H: the predictions
      where ``facts`` has them, else None. Without: by products with the Hessian;
    * ``separable``: whether the columns of W do not meet in f;
    * ``least_squares_at(W, H)``: A, (m, d), and B, (m, 1), such that for a W of a single column
      :math:`\tfrac12\|AV - B\|^2` is f(V) to second order about W, but for a constant, or is more curved. H:
      the predictions where ``facts`` has them, else None. A of some features, by ``columns_at``, is asked for
      at the H of all features;
    * ``num_rows``: the number of rows of the data, where ``weights`` does not say it;
    * ``column_sizes()``: what each feature takes in ``columns_at``, (d,), and the most of all; None: room for
      any;
    * ``sizes()``: what ``facts`` wants to have computed once;
    * ``rereads``: whether every product reads the data again, so that few products matter and nothing else.

    >>> import numpy as np, sparsejax as sj
    >>> model = sj.losses.SquaredLoss(np.eye(2), np.ones(2), scale=0.5).quadratic_model()
    >>> model.exact, model.majorizer().tolist()
    (True, [[1.0, 0.0], [0.0, 1.0]])
    """

    majorizer: Callable[[], jax.Array] | None = None
    exact: bool = False
    laplacian: Callable[[], jax.Array] | None = None
    target: Callable[[], jax.Array] | None = None
    factored: Callable[[], tuple[jax.Array, jax.Array]] | None = None
    condensed: Callable[[], Any] | None = None
    hessian: Callable[[jax.Array, jax.Array | None], jax.Array] | None = None
    separable: bool = False
    least_squares_at: Callable[[jax.Array, jax.Array | None], tuple[jax.Array, jax.Array]] | None = None
    num_rows: int | None = None
    column_sizes: Callable[[], tuple[jax.Array, int]] | None = None
    sizes: Callable[[], Any] | None = None
    rereads: bool = False


def condensed(loss: Any) -> Any:
    """The same function of W where there is a form that is cheaper to evaluate, else the loss itself."""
    cheaper = loss.quadratic_model().condensed
    return loss if cheaper is None else cheaper()


def hessian(loss: Any, W: jax.Array, H: jax.Array | None = None) -> jax.Array:
    """The Hessian as `QuadraticModel` has it, of any loss; H: the predictions, where they are known."""
    known = loss.quadratic_model().hessian
    return by_products(loss, W) if known is None else known(W, H)


def num_rows(loss: Any) -> int | None:
    """The number of rows of the data, None where neither the model nor the weights say it."""
    known: int | None = loss.quadratic_model().num_rows
    return int(loss.weights.shape[0]) if known is None and loss.weights is not None else known


def sizes(loss: Any) -> Any:
    """What ``loss.facts`` wants to have computed once."""
    found = loss.quadratic_model().sizes
    return None if found is None else found()
