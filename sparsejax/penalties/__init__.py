r"""Penalties :math:`g(W)` on the rows of a (d, k) matrix, one row a feature.

Each penalty is a pytree whose strengths are leaves, so that `jax.vmap` can batch them and `jax.grad` can
differentiate in them. It has an exact prox, or ``terms`` with an exact prox each. Most penalties have a
conjugate, for the duality gap, and know the entries in which they are smooth, for derivatives of solutions.
The protocol is `sparsejax.penalties.Penalty`; docs/adding-a-penalty.md shows how to write another penalty.

A strength is a scalar or has one value a row, shape (d,), or one a group; `L1` also takes one a column or one
an entry, `TotalVariation` a scalar only, `SortedL1` one value a row only. W may be a vector (d,): then every
row has one entry. Strengths are cast to the dtype of W.
"""

from sparsejax.penalties._base import Penalty, RowNorm
from sparsejax.penalties._base import cast_strengths as cast_strengths
from sparsejax.penalties._base import check_strengths as check_strengths
from sparsejax.penalties._base import of_each_block as of_each_block
from sparsejax.penalties._base import scale_strengths as scale_strengths
from sparsejax.penalties._base import split_strengths as split_strengths
from sparsejax.penalties._base import strengths_valid as strengths_valid
from sparsejax.penalties._base import with_valid_strengths as with_valid_strengths
from sparsejax.penalties._by_leaf import ByLeaf
from sparsejax.penalties._exclusive import ExclusiveL21, ExclusiveLasso
from sparsejax.penalties._exclusive_groups import ExclusiveGroupL21
from sparsejax.penalties._group_lasso import GroupLasso
from sparsejax.penalties._label_views import ExclusiveGroupLasso
from sparsejax.penalties._named_sums import ElasticNet, SparseGroupLasso
from sparsejax.penalties._norms import L1, L21, L1Inf
from sparsejax.penalties._plain import PlainPenalty as PlainPenalty
from sparsejax.penalties._plain import as_penalty as as_penalty
from sparsejax.penalties._plain import is_penalty as is_penalty
from sparsejax.penalties._rules import as_given as as_given
from sparsejax.penalties._rules import by_entry as by_entry
from sparsejax.penalties._rules import feasible as feasible
from sparsejax.penalties._rules import for_shape_of as for_shape_of
from sparsejax.penalties._rules import half_derivative as half_derivative
from sparsejax.penalties._rules import in_units as in_units
from sparsejax.penalties._rules import leaf_names as leaf_names
from sparsejax.penalties._rules import prox_columns as prox_columns
from sparsejax.penalties._rules import prox_start as prox_start
from sparsejax.penalties._rules import rescaled as rescaled
from sparsejax.penalties._rules import row_strengths as row_strengths
from sparsejax.penalties._rules import row_units as row_units
from sparsejax.penalties._rules import unpenalised as unpenalised
from sparsejax.penalties._simple import Box, NonNegative, SquaredL2
from sparsejax.penalties._sorted_l1 import SortedL1, slope_strengths
from sparsejax.penalties._sum import Sum
from sparsejax.penalties._sum import least_active as least_active
from sparsejax.penalties._sum_to import SumTo
from sparsejax.penalties._terms import joined as joined
from sparsejax.penalties._terms import shared as shared
from sparsejax.penalties._terms import split as split
from sparsejax.penalties._terms import unpenalised_entries as unpenalised_entries
from sparsejax.penalties._total_variation import TotalVariation

__all__ = [
    "L1",
    "L21",
    "Box",
    "ByLeaf",
    "ElasticNet",
    "ExclusiveGroupL21",
    "ExclusiveGroupLasso",
    "ExclusiveL21",
    "ExclusiveLasso",
    "GroupLasso",
    "L1Inf",
    "NonNegative",
    "Penalty",
    "RowNorm",
    "SortedL1",
    "SparseGroupLasso",
    "SquaredL2",
    "Sum",
    "SumTo",
    "TotalVariation",
    "slope_strengths",
]
