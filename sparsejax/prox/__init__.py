r"""Exact proximal operators, one row (or group) at a time, with their derivatives.

Each function solves, for one vector ``x`` of shape (p,),

.. math:: \operatorname*{argmin}_z \; \tfrac12\|z-x\|_2^2 + \text{scaling}\cdot g(z)

with :math:`g` given in its docstring (`l1` takes any shape, `exclusive_group_l21` all rows of a matrix). For
many rows use `jax.vmap`. The results are exact up to rounding, also at ties, at ``x = 0``, at strength 0
(where the operators are the identity) and at huge strengths, and the derivatives are finite there. The
derivative is that of the smooth piece on which the result lies; at a kink it is the derivative of the piece
on which entries that are zero stay zero.

Functions ending in ``_columns`` are the same operators on a matrix whose *columns* are the rows
of W, shape (p, ...): with the p entries leading, every step is a vector operation over the rows.

The public functions with l2 norms first divide by a power of two near the largest entry, so that its square
neither overflows nor underflows. Entries below 1e-150 times the largest one (1e-18 in float32) do not count
in norms. The ``_columns`` functions do not divide: in their norms entries below 1e-150 (1e-18) do not count.

Strengths and step sizes are checked where they are known: under jit and vmap a negative one is not an error.
"""

from sparsejax.prox._exclusive_group_l21 import exclusive_group_l21 as exclusive_group_l21
from sparsejax.prox._exclusive_group_l21 import exclusive_group_l21_columns as exclusive_group_l21_columns
from sparsejax.prox._exclusive_group_l21 import exclusive_group_l21_start as exclusive_group_l21_start
from sparsejax.prox._exclusive_group_lasso import view_columns as view_columns
from sparsejax.prox._exclusive_group_lasso import view_norms as view_norms
from sparsejax.prox._exclusive_group_lasso import view_slopes as view_slopes
from sparsejax.prox._exclusive_group_lasso import views_support as views_support
from sparsejax.prox._exclusive_group_lasso import views_value as views_value
from sparsejax.prox._on_a_sum import on_a_sum as on_a_sum
from sparsejax.prox._pooled import falling_order as falling_order
from sparsejax.prox._pooled import piecewise as piecewise
from sparsejax.prox._pooled import sorted_l1 as sorted_l1
from sparsejax.prox._pooled import sorted_magnitudes as sorted_magnitudes
from sparsejax.prox._pooled import total_variation as total_variation
from sparsejax.prox._row_norms import l1 as l1
from sparsejax.prox._row_norms import l2 as l2
from sparsejax.prox._row_norms import l2_columns as l2_columns
from sparsejax.prox._row_norms import linf as linf
from sparsejax.prox._row_norms import linf_columns as linf_columns
from sparsejax.prox._row_norms import soft_threshold as soft_threshold
from sparsejax.prox._squared_l1 import exclusive_l21 as exclusive_l21
from sparsejax.prox._squared_l1 import exclusive_l21_columns as exclusive_l21_columns
from sparsejax.prox._squared_l1 import squared_l1 as squared_l1
from sparsejax.prox._squared_l1 import tail_threshold as tail_threshold

# Functions for users. The others are for penalties and solvers, which work on transposes of W.
__all__ = [
    "exclusive_group_l21",
    "exclusive_l21",
    "l1",
    "l2",
    "linf",
    "sorted_l1",
    "squared_l1",
    "total_variation",
]
