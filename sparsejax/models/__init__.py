"""The models of the papers: each module has a ``fit`` that returns a pytree with ``predict`` and ``score``.

Labels follow one convention. A vector y has one label for each row: numbers, booleans, or strings and other
objects that can be sorted. The sorted labels are the ``classes`` of the fitted model; if there are two, the
second is the positive class: 1, True, or "yes" of "no" and "yes". A matrix Y has one column for each label.
The column marks the rows that have the label, by 0 and 1, by -1 and 1 or by booleans, in the same way in all
columns.

``predict`` returns labels like those given to ``fit``. Whole numbers are returned as int32 if they fit.
``predict`` of `sparsejax.models.multi_semantic` returns scores, and that of `sparsejax.models.ofa_lasso`
numbers. The values of a traced array are not known: its labels are taken to be 0 and 1, and -1 counts as 0;
in `sparsejax.models.multivariate` they are taken to be -1 and 1. The squared loss of
`sparsejax.models.uncorrelated_group` is fitted to traced numbers as they are, and ``predict`` takes them for
0 and 1. The fits of `sparsejax.models.exclusive_l21` and `sparsejax.models.mil` refuse traced labels.

A greater ``score`` is better. It is the accuracy for labels, R^2 for numbers, the mean area under the ROC
curve for pairs of labels (`sparsejax.models.multi_semantic`), and the measure that a model was fitted for in
`sparsejax.models.multivariate` and `sparsejax.models.mil`.

>>> import numpy as np, sparsejax as sj
>>> X, y = np.eye(4, 3), np.array(["no", "yes", "no", "yes"])
>>> sj.models.exclusive_l21.fit(X, y, alpha=0.01, beta=0.01).predict(X[:2]).tolist()
['no', 'yes']
"""

from sparsejax.models import exclusive_l21, mil, multi_semantic, multivariate, ofa_lasso, uncorrelated_group

__all__ = ["exclusive_l21", "mil", "multi_semantic", "multivariate", "ofa_lasso", "uncorrelated_group"]
