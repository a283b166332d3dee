r"""Regression of several outputs, in which each output is a feature of the others (Zhang et al., ICDM 2014).

.. math:: f^j(x, y^{-j}) = \sum_i u^j_i\, k(x, x_i) + \sum_i v^j_i\, k_j(y^{-j}, y^{-j}_i) + b^j

where :math:`y^{-j}` holds all outputs except j. Fitting each :math:`f^j` is a lasso in kernel columns, a
convex problem that is solved exactly. Prediction searches for a y that agrees with all :math:`f^j`. This
problem is not convex: the result depends on the start.
"""

from sparsejax.models.ofa_lasso._cross_validation import CrossValidation, cross_validate
from sparsejax.models.ofa_lasso._fit_ofa import fit
from sparsejax.models.ofa_lasso._fitted import Model
from sparsejax.models.ofa_lasso._predict import Prediction

__all__ = ["CrossValidation", "Model", "Prediction", "cross_validate", "fit"]
