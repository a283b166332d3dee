"""What fitted linear models share."""

import jax
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float
from sparsejax._core.pytree import Pytree
from sparsejax.ranking import FeatureRanking, rank_features
from sparsejax.solution import Solution


class LinearModel(Pytree):
    """Scores and the ranking of features from W, (d, k) or (d,), and the intercept, (k,) or ()."""

    W: jax.Array
    intercept: jax.Array
    solution: Solution

    def decision_function(self, X: ArrayLike) -> jax.Array:
        """Scores XW + b, shape (n, k), or (n,) if W is a vector."""
        X = as_float("X", X, (2,), self.W.dtype)
        if X.shape[1] != self.W.shape[0]:
            raise ValueError(f"X has {X.shape[1]} columns; the model was fitted with {self.W.shape[0]}.")
        return X @ self.W + self.intercept[None]

    def rank_features(self, num: int | None = None) -> FeatureRanking:
        """`sparsejax.rank_features` of W."""
        return rank_features(self.W, num)
