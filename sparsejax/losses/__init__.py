r"""Smooth convex losses of a linear model, :math:`f(W) = \ell(XW)`.

A loss is a callable pytree: ``loss(W)`` is a scalar and `jax.grad(loss)` its gradient. Its data are leaves,
so that a loss can be vmapped over folds and differentiated in X, Y and weights. With
``intercept=True`` the loss is :math:`f(W) = \min_b \ell(XW + \mathbf 1 b^\top)`: the unpenalised
intercept b is not among the parameters; ``loss.intercept(W)`` returns it.

``loss + GraphLaplacian(similarity, strength)`` penalises differences between columns of similar labels.

The protocol is `sparsejax.losses.Loss`; docs/adding-a-loss.md shows how to write another, most simply as a
`LinearModelLoss`. Any other callable pytree is accepted as a loss too. Of a plain function, such as
``jax.tree_util.Partial(fun, *data)``, solvers use only values and gradients. Of an object they also use the
groups *shape*, *quadratic model* and *dual* of the protocol, if its class defines them.
"""

from sparsejax.losses._base import Facts as Facts
from sparsejax.losses._base import InUnits as InUnits
from sparsejax.losses._base import Loss
from sparsejax.losses._base import facts_unless_known as facts_unless_known
from sparsejax.losses._base import no_facts as no_facts
from sparsejax.losses._batches import BatchedSquaredLoss
from sparsejax.losses._cox import CoxLoss
from sparsejax.losses._curvature import quadratic_scaling as quadratic_scaling
from sparsejax.losses._few_rows import held_out_on_few_rows as held_out_on_few_rows
from sparsejax.losses._few_rows import mean_row as mean_row
from sparsejax.losses._few_rows import on_few_rows as on_few_rows
from sparsejax.losses._function import PlainLoss as PlainLoss
from sparsejax.losses._function import as_loss as as_loss
from sparsejax.losses._function import as_pytree as as_pytree
from sparsejax.losses._gram import GramLoss
from sparsejax.losses._graph import GraphLaplacian, SumLoss
from sparsejax.losses._graph import lower_bound as lower_bound
from sparsejax.losses._graph import value_known as value_known
from sparsejax.losses._hinge import HuberHingeLoss, SquaredHingeLoss
from sparsejax.losses._linear_model import LinearModelLoss
from sparsejax.losses._logistic import LogisticLoss
from sparsejax.losses._observed import observed
from sparsejax.losses._poisson import PoissonLoss
from sparsejax.losses._quadratic_model import BoundedSlope as BoundedSlope
from sparsejax.losses._quadratic_model import QuadraticModel as QuadraticModel
from sparsejax.losses._quadratic_model import condensed as condensed
from sparsejax.losses._quadratic_model import hessian as hessian
from sparsejax.losses._quadratic_model import num_rows as num_rows
from sparsejax.losses._quadratic_model import sizes as sizes
from sparsejax.losses._robust import HuberLoss, QuantileLoss
from sparsejax.losses._row_subset import rows_alone as rows_alone
from sparsejax.losses._sizes import Sizes as Sizes
from sparsejax.losses._softmax import SoftmaxLoss
from sparsejax.losses._squared import SquaredLoss
from sparsejax.losses._streamed import from_batches
from sparsejax.losses._units import Units as Units
from sparsejax.losses._units import balanced as balanced
from sparsejax.losses._units import by_row as by_row

__all__ = [
    "BatchedSquaredLoss",
    "CoxLoss",
    "GramLoss",
    "GraphLaplacian",
    "HuberHingeLoss",
    "HuberLoss",
    "LinearModelLoss",
    "LogisticLoss",
    "Loss",
    "PoissonLoss",
    "QuantileLoss",
    "SoftmaxLoss",
    "SquaredHingeLoss",
    "SquaredLoss",
    "SumLoss",
    "from_batches",
    "observed",
]
