"""The papers' models, each a ``fit`` that returns a pytree with ``predict`` and ``score``.

Labels follow one convention. A vector y holds a label for each row, of any kind that can be sorted: 0 and 1,
-1 and 1, booleans, strings. Its labels in their order are the ``classes`` of the fitted model; where there
are two, the second is the positive one: 1, True, "yes" after "no". A matrix Y says in each column which rows
have that label, by 0 and 1, by -1 and 1 or by booleans, all over the matrix alike.

What ``predict`` gives are labels as they came, whole numbers as int32. A traced array, whose values are not
known, is taken for 0 and 1, by `sparsejax.models.multivariate` for -1 and 1.

``score`` is greater the better: the accuracy of labels, R^2 of numbers, the mean area under the ROC curve of
pairs of labels (`sparsejax.models.multi_semantic`), and in `sparsejax.models.multivariate` and
`sparsejax.models.mil` the measure that a model was fitted for.

>>> import numpy as np, sparsejax as sj
>>> X, y = np.eye(4, 3), np.array(["no", "yes", "no", "yes"])
>>> sj.models.exclusive_l21.fit(X, y, alpha=0.01, beta=0.01).predict(X[:2]).tolist()
['no', 'yes']
"""

from sparsejax.models import exclusive_l21, mil, multi_semantic, multivariate, ofa_lasso, uncorrelated_group

__all__ = ["exclusive_l21", "mil", "multi_semantic", "multivariate", "ofa_lasso", "uncorrelated_group"]
