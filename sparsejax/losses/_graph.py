"""Graph Laplacians, which make the parameters of similar labels similar, and their sums with a loss."""

from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float, as_nonnegative, is_sparse, is_traced
from sparsejax._core.linalg import eps_of
from sparsejax.losses._base import Facts, Loss, Pair, Predictions
from sparsejax.losses._gram import GramLoss, half_quadratic
from sparsejax.losses._poisson import PoissonLoss
from sparsejax.losses._quadratic_model import QuadraticModel, condensed


class GraphLaplacian(Loss, leaves=("similarity", "strength")):
    r"""``strength/2 * tr(W L W')``: columns of W whose labels are similar are pulled together.

    A label is a column of Y and of W. L is the Laplacian of a graph whose nodes are the labels:

    .. math:: \tfrac{\text{strength}}{2} \operatorname{tr}(W L W^\top)
              = \tfrac{\text{strength}}{2} \sum_{j<k} P_{jk}\, \|W_{:j} - W_{:k}\|_2^2 ,
              \qquad L = \operatorname{diag}(P\mathbf 1) - P .

    Add a graph to a loss: ``SquaredLoss(X, Y) + GraphLaplacian(P, 0.1)``. Alone, a graph is a loss without
    data: a solve needs ``init``.

    Args:
      similarity: P (k, k), >= 0, one row a label, dense or sparse. It is stored as a dense array, since
        solvers decompose L, and made symmetric, ``(P + P')/2``. The diagonal of P has no effect.
      strength: >= 0, shape ().

    Raises:
      TypeError, ValueError: P not real, not finite, not square, negative; strength negative or not finite.
    Source: Chen et al., ACM MM 2011, the trace in the line below Eq. (4). The sum over all pairs (j, k) in
      Eq. (4) itself is twice as large.

    >>> import jax.numpy as jnp, numpy as np, sparsejax as sj
    >>> graph = sj.losses.GraphLaplacian(np.array([[0.0, 1.0], [1.0, 0.0]]), 2.0)
    >>> float(graph(jnp.array([[1.0, 3.0], [2.0, 2.0]])))
    4.0
    """

    similarity: jax.Array
    strength: jax.Array

    def __init__(self, similarity: ArrayLike, strength: ArrayLike):
        P = as_float("similarity", dense(similarity), (2,))
        if P.shape[0] != P.shape[1] or P.shape[0] == 0:
            raise ValueError(f"similarity must be square, one row a label, got shape {P.shape}.")
        if not is_traced(P) and (np.asarray(P) < 0).any():
            raise ValueError(f"similarity must be >= 0, got {np.asarray(P).min():g}.")
        self._set(similarity=(P + P.T) / 2, strength=as_nonnegative("strength", strength, P.dtype))

    def matrix(self, dtype: np.dtype) -> jax.Array:
        """``strength * L``, (k, k)."""
        P = self.similarity.astype(dtype)
        return self.strength.astype(dtype) * (jnp.diag(jnp.sum(P, axis=1)) - P)

    def __call__(self, W: jax.Array) -> jax.Array:
        labels = self.similarity.shape[0]
        if jnp.ndim(W) != 2 or W.shape[1] != labels:
            raise ValueError(f"W has shape {jnp.shape(W)}; similarity is of {labels} labels.")
        return half_quadratic(self.matrix(W.dtype), W.T)

    def valid(self) -> jax.Array:
        """() boolean: similarities and strength are >= 0 and finite."""
        strength_fits = (self.strength >= 0) & (self.strength < jnp.inf)
        return strength_fits & jnp.all((self.similarity >= 0) & (self.similarity < jnp.inf))


class SumLoss(Loss, leaves=("loss", "graphs")):
    """The sum of a loss of a linear model and of graph Laplacians on its labels; write ``loss + graph``.

    ``intercept`` and ``evaluate`` use the loss alone: held-out rows are judged without the graphs.

    Args:
      loss: a loss that knows the shape of W, which must be a matrix (d, k).
      graphs: tuple of one or more `GraphLaplacian`, each with k labels.

    Raises:
      TypeError, ValueError: another type of loss or graph, no graph, or another number of labels.

    >>> import numpy as np, sparsejax as sj
    >>> loss = sj.losses.SquaredLoss(np.eye(4, 3), np.eye(4, 2))
    >>> total = loss + sj.losses.GraphLaplacian(np.array([[0.0, 1.0], [1.0, 0.0]]), 2.0)
    >>> float(total(np.zeros((3, 2)))), type(total).__name__
    (0.25, 'SumLoss')
    """

    _self_contained: ClassVar[bool] = False  # the loss may be of a user's class
    loss: Any  # a `Loss`, which may have methods of its own, as ``gram``
    graphs: tuple[GraphLaplacian, ...]

    def __init__(self, loss: Loss, graphs: tuple[GraphLaplacian, ...]):
        if not isinstance(loss, Loss) or "shape" not in loss.provides:
            raise TypeError(
                "a graph is added to a loss that knows the shape of W, as those of a linear model do, got "
                f"{type(loss).__name__}."
            )
        if not graphs:
            raise ValueError("graphs is empty; a SumLoss holds at least one GraphLaplacian.")
        for graph in graphs:
            if not isinstance(graph, GraphLaplacian):
                raise TypeError(f"graphs must hold GraphLaplacian, got {type(graph).__name__}.")
            shape, labels = loss.params_shape, graph.similarity.shape[-1]
            if shape[1:] != (labels,):
                columns = f"{shape[1]} columns" if len(shape) == 2 else "no columns"
                raise ValueError(f"similarity is of {labels} labels; Y has {columns}.")
        self._set(loss=loss, graphs=tuple(graphs))

    @property
    def provides(self) -> frozenset[str]:
        """The groups of the loss, except free features, columns and units."""
        return self.loss.provides & {"shape", "quadratic model", "dual", "data", "predictions"}

    def __call__(self, W: jax.Array) -> jax.Array:
        return self.loss(W) + self._graph_value(W)

    def _graph_value(self, W: jax.Array) -> jax.Array:
        return half_quadratic(self._laplacian(), W.T)

    def _laplacian(self) -> jax.Array:
        """The sum of ``strength * L`` over the graphs, (k, k): their Hessian in each row of W."""
        first, *rest = (graph.matrix(self.dtype) for graph in self.graphs)
        return sum(rest, start=first)

    @property
    def params_shape(self) -> tuple[int, ...]:
        """Shape of W, as the loss has it."""
        return self.loss.params_shape

    @property
    def dtype(self) -> np.dtype:
        """dtype of the loss."""
        return self.loss.dtype

    @property
    def weights(self) -> jax.Array | None:
        """Weights of the loss."""
        return self.loss.weights

    def reweighted(self, weights: jax.Array) -> Self:
        """The loss with other weights, and the same graphs."""
        return self._replace(loss=self.loss.reweighted(weights))

    def intercept(self, W: jax.Array) -> jax.Array:
        """The best intercept of the loss at W; the graphs do not depend on it."""
        return self.loss.intercept(W)

    def evaluate(self, W: jax.Array, intercept: ArrayLike = 0.0) -> jax.Array:
        """The value of the loss alone, without the graphs."""
        return self.loss.evaluate(W, intercept)

    def predictions(self, W: jax.Array, intercept: ArrayLike = 0.0) -> Predictions:
        """Same as ``predictions`` of the loss."""
        return self.loss.predictions(W, intercept)

    def quadratic_model(self) -> QuadraticModel:
        """The quadratic model of the loss, with the Hessian of the graphs as its ``laplacian``."""
        model = self.loss.quadratic_model()
        with_condensed_loss = lambda: self._replace(loss=condensed(self.loss))
        return QuadraticModel(
            majorizer=model.majorizer,
            exact=model.exact,
            laplacian=self._laplacian,
            target=model.target,
            condensed=None if model.condensed is None else with_condensed_loss,
            num_rows=model.num_rows,
            sizes=model.sizes,
            trace=model.trace,
            rereads=model.rereads,
        )

    def gram(self) -> Self:
        """The same sum with ``loss.gram()`` in place of the loss."""
        return self._replace(loss=self.loss.gram())

    def facts(self, W: jax.Array, sizes: Any = None) -> Facts:
        """The facts of the loss plus the facts of h, the sum of the graphs.

        The graphs do not change ``linear``: h*(s grad h(W)) = s^2 h(W) has no term that is linear in s. The
        ``value`` includes h(W).
        """
        facts = self.loss.facts(W, sizes)
        value, gradient = jax.value_and_grad(self._graph_value)(W)
        return facts._replace(
            value=facts.value + value,
            gradient=facts.gradient + gradient,
            rounding=facts.rounding + self._graph_rounding(W),
        )

    def dual_scaling(self, W: jax.Array, limit: jax.Array, H: jax.Array | None = None) -> Pair:
        """s of the loss (see `Loss`, *dual*), and the change of the conjugate of the whole sum.

        s is the best one for the loss alone; each s up to ``limit`` gives a valid gap. Let h be the sum of
        the graphs. Its conjugate at s grad h(W) is s^2 h(W), so that h adds (s^2 - 1) h(W) to the change.
        """
        known = () if H is None else (H,)
        s, change = self.loss.dual_scaling(W, limit, *known)
        return s, change + (s - 1) * (s + 1) * self._graph_value(W)

    def _graph_rounding(self, W: jax.Array) -> jax.Array:
        """An estimate of the rounding error of ``<W, WL>``: 2 eps times the sum of absolute products."""
        products = jnp.abs(W) * (jnp.abs(W) @ jnp.abs(self._laplacian()))
        return 2 * eps_of(W) * jnp.sum(products)

    def valid(self) -> jax.Array:
        """() boolean: the loss and all graphs are valid."""
        valid = self.loss.valid()
        for graph in self.graphs:
            valid &= graph.valid()
        return valid


def value_known(loss: Any) -> bool:
    """Whether the value of the loss is known, not only up to a constant.

    False for a `GramLoss` without its constant, alone or in a `SumLoss`: no gap can then be relative to the
    objective at W = 0.
    """
    inner = loss.loss if isinstance(loss, SumLoss) else loss
    return not (isinstance(inner, GramLoss) and inner.constant is None)


def lower_bound(loss: Any) -> ArrayLike:
    """A number () that the loss is never below: gaps are relative to objectives above it.

    It is known for Poisson's loss only. For all others it is -inf, since a user's loss may have any value;
    a loss >= 0 needs no bound.
    """
    inner = loss.loss if isinstance(loss, SumLoss) else loss  # graphs are not negative
    known = isinstance(inner, PoissonLoss) and type(inner).entries is PoissonLoss.entries
    return inner.lower_bound() if known else -np.inf


def dense(matrix: Any) -> Any:
    """A sparse matrix of scipy or JAX as a dense array; anything else unchanged."""
    if not is_sparse(matrix):
        return matrix
    return matrix.toarray() if hasattr(matrix, "toarray") else matrix.todense()


def _add(loss: Any, other: Any) -> Any:
    """``loss + graph``, a `SumLoss`."""
    if not isinstance(other, GraphLaplacian):
        return NotImplemented
    return SumLoss(loss.loss, (*loss.graphs, other)) if isinstance(loss, SumLoss) else SumLoss(loss, (other,))


Loss.__add__ = Loss.__radd__ = _add
