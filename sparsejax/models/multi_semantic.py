"""Labels from two views at once, and their pairs (Chen et al., ACM MM 2011)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float
from sparsejax._core.matrices.sparse import as_dense
from sparsejax.groups import label_views
from sparsejax.losses import GraphLaplacian, Loss, SquaredLoss
from sparsejax.metrics import mean_auc
from sparsejax.models._labels import presence
from sparsejax.models._linear_fit import LinearModel
from sparsejax.penalties import ExclusiveGroupLasso
from sparsejax.problem import Problem
from sparsejax.solvers import solve

__all__ = ["Marginals", "Model", "enrich", "fit"]


class Marginals(NamedTuple):
    """The result of `Model.marginals`: scores of the labels of each view alone.

    >>> import numpy as np, sparsejax as sj
    >>> X, Y1, Y2 = np.eye(4, 3), np.eye(2)[[0, 0, 1, 1]], np.eye(2)[[0, 1, 0, 1]]
    >>> model = sj.models.multi_semantic.fit(X, Y1, Y2, strength=0.01)
    >>> model.predict(X).shape, model.marginals(X).view1.shape
    ((4, 2, 2), (4, 2))
    """

    view1: jax.Array  # (n, L1), scores of the labels of the first view
    view2: jax.Array  # (n, L2), scores of the labels of the second view


class Model(LinearModel, leaves=("W", "intercept", "solution"), static=("sizes",)):
    """A fitted linear model of the pairs of labels; a pytree.

    The pair of label i of the first view and label j of the second is column ``i * L2 + j``.

    Attributes:
      W: (d, L1 * L2); entries that the penalty removes are exactly zero.
      intercept: (L1 * L2,).
      solution: the `sparsejax.Solution` of the fit; check ``solution.converged``.
      sizes: (L1, L2).

    >>> import numpy as np, sparsejax as sj
    >>> X, Y1, Y2 = np.eye(4, 3), np.eye(2)[[0, 0, 1, 1]], np.eye(2)[[0, 1, 0, 1]]
    >>> model = sj.models.multi_semantic.fit(X, Y1, Y2, strength=0.01)
    >>> model.predict(X).shape, model.marginals(X).view1.shape, model.score(X, Y1, Y2)
    ((4, 2, 2), (4, 2), 1.0)
    """

    sizes: tuple[int, int]

    def predict(self, X: ArrayLike) -> jax.Array:
        """`decision_function` with an axis for each view, (n, L1, L2).

        Entry (i, j) is a linear estimate of the probability that a row has both labels of the pair. It may
        lie outside [0, 1]; use it to rank.
        """
        return self.decision_function(X).reshape(-1, *self.sizes)

    def marginals(self, X: ArrayLike) -> Marginals:
        r"""Scores of the labels of each view alone: sums of `predict` over the other view.

        The targets of the pairs sum over j to :math:`Y1_i \sum_j Y2_j`, so that ``view1[:, i]`` estimates the
        number of pairs with label i. If every row has exactly one label of the other view, this is the
        probability of label i; if every row has at most one, it is the probability of i together with any
        label of the other view. Otherwise it is larger for rows with many labels of the other view.

        Returns:
          `Marginals`.
        """
        scores = self.predict(X)
        return Marginals(jnp.sum(scores, axis=2), jnp.sum(scores, axis=1))

    def score(self, X: ArrayLike, Y1: ArrayLike, Y2: ArrayLike) -> float:
        """The mean area under the ROC curve of the pairs that some rows have and others do not.

        Y1, Y2: labels of each view, as for `fit`. NaN if there is no such pair.
        """
        scores = self.decision_function(X)
        A, B = _labels("Y1", Y1, scores), _labels("Y2", Y2, scores)
        sizes = A.shape[1], B.shape[1]
        if sizes != self.sizes:
            raise ValueError(f"Y1 and Y2 have {sizes} columns; the model was fitted with {self.sizes}.")
        return float(mean_auc(enrich(A, B), scores).mean)


def fit(
    X: ArrayLike,
    Y1: ArrayLike,
    Y2: ArrayLike,
    strength: ArrayLike,
    graph: GraphLaplacian | None = None,
    *,
    scale: ArrayLike | None = None,
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
) -> Model:
    r"""Fit all pairs of a label of one view and a label of another by least squares.

    .. math:: \min_{W,b}\; \text{scale} \|XW + \mathbf 1 b^\top - Y\|_F^2
              + \tfrac{\text{strength}}{2} \sum_i \Big[ \Big(\sum_{l} \|w_{i,(l,\cdot)}\|_2\Big)^2
              + \Big(\sum_{m} \|w_{i,(\cdot,m)}\|_2\Big)^2 \Big]
              + \tfrac{\gamma}{2} \operatorname{tr}(W L W^\top),

    where row r of Y is the Kronecker product of the rows r of Y1 and Y2: its entry for the pair (i, j) is 1
    if the row has label i and label j. The middle term makes the labels of each view compete for features.
    The last term, with a graph, makes the weights of similar pairs similar; without it W = 0 for a pair that
    no row has.

    Columns of X should be on comparable scales.

    Args:
      X: (n, d).
      Y1, Y2: (n, L1) and (n, L2) of 0 and 1, or of -1 and 1, or booleans. A row may have any number of labels
        of a view, or none.
      strength: >= 0, shape () or (d,).
      graph: `sparsejax.losses.GraphLaplacian` of the L1 * L2 pairs, which holds the strength gamma, or None.
        Its similarity: ``graphs.from_views(L1, L2)``, or ``graphs.ngd_similarity(enrich(Y1, Y2))`` as in
        the paper.
      scale: > 0, default ``1/(2n)``; strengths of the paper are for ``scale=1/2``.
      tol, maxiter: as `sparsejax.solve`.

    Returns:
      `Model`.

    Raises:
      TypeError: an argument is not real, or ``graph`` is not a `GraphLaplacian`.
      ValueError: as `SquaredLoss` and `ExclusiveGroupLasso`; Y1 or Y2 is not 2-d, has no columns, another
        number of rows than X, or another value; the graph is of another number of pairs.
    Source: Chen et al., ACM MM 2011, Eq. (5), with an unpenalised intercept added.

    >>> import numpy as np, sparsejax as sj
    >>> X, Y1, Y2 = np.eye(4, 3), np.eye(2)[[0, 0, 1, 1]], np.eye(2)[[0, 1, 0, 1]]
    >>> model = sj.models.multi_semantic.fit(X, Y1, Y2, strength=0.01)
    >>> model.predict(X).shape, model.marginals(X).view1.shape
    ((4, 2, 2), (4, 2))
    """
    X = as_dense("X", X)
    A, B = _labels("Y1", Y1, X), _labels("Y2", Y2, X)
    L1, L2 = sizes = (A.shape[1], B.shape[1])
    loss = SquaredLoss(X, enrich(A, B), scale=scale, intercept=True)
    smooth: Loss = loss
    if graph is not None:
        if not isinstance(graph, GraphLaplacian):
            raise TypeError(f"graph must be a losses.GraphLaplacian or None, got {type(graph).__name__}.")
        pairs, labels = L1 * L2, graph.similarity.shape[0]
        if labels != pairs:
            raise ValueError(
                f"graph is of {labels} labels; Y1 and Y2 have {L1} and {L2}, that is {pairs} pairs."
            )
        smooth = loss + graph
    penalty = ExclusiveGroupLasso(strength, label_views(*sizes))
    solution = solve(Problem(smooth, penalty), tol=tol, maxiter=maxiter)
    return Model(solution.params, loss.intercept(solution.params), solution, sizes)


def enrich(scores1: ArrayLike, scores2: ArrayLike) -> jax.Array:
    r"""Scores of pairs from scores of each view: the Kronecker product of the rows, ``y1 (x) y2``.

    This is the baseline for views that are independent given the features. For labels 0 and 1 the result
    holds the labels of the pairs. Convert scores of both signs to probabilities first: two negative scores
    have a positive product.

    Args:
      scores1, scores2: (n, L1) and (n, L2).

    Returns:
      (n, L1 * L2), in the dtype of ``scores1``, or in the default float if ``scores1`` is not floating.

    Raises:
      TypeError, ValueError: not real, not finite, not 2-d, or of different numbers of rows.
    Source: Chen et al., ACM MM 2011, Eq. (13).

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> print(sj.models.multi_semantic.enrich(jnp.array([[1.0, 0.0]]), jnp.array([[0.25, 0.75]])))
    [[0.25 0.75 0.   0.  ]]
    """
    A = as_float("scores1", scores1, (2,))
    B = as_float("scores2", scores2, (2,), A.dtype)
    if len(A) != len(B):
        raise ValueError(f"scores1 has {len(A)} rows and scores2 has {len(B)}; they must agree.")
    return (A[:, :, None] * B[:, None, :]).reshape(len(A), A.shape[1] * B.shape[1])


def _labels(name: str, Y: ArrayLike, X: jax.Array) -> jax.Array:
    known, _ = presence(name, Y, X.dtype)
    if len(known) != len(X) or known.shape[1] == 0:
        shape = known.shape
        raise ValueError(f"{name} must have {len(X)} rows, as X, and a column a label; got shape {shape}.")
    return known
