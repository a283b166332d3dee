"""Base of the fitted linear models."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float
from sparsejax._core.precision import full_precision
from sparsejax._core.pytree import Pytree
from sparsejax.models._summary import summary
from sparsejax.selection.ranking import FeatureRanking, rank_features
from sparsejax.solution import Solution


class LinearModel(Pytree):
    """A fitted linear model: scores XW + b, and a ranking of features by W."""

    W: jax.Array  # (d, k) or (d,)
    intercept: jax.Array  # b, (k,) or ()
    solution: Solution

    @full_precision()
    def decision_function(self, X: ArrayLike) -> jax.Array:
        """Scores XW + b for X (n, d), shape (n, k), or (n,) if W is a vector."""
        X = as_float("X", X, (2,), self.W.dtype)
        if X.shape[1] != self.W.shape[0]:
            raise ValueError(f"X has {X.shape[1]} columns; the model was fitted with {self.W.shape[0]}.")
        return X @ self.W + self.intercept[None]

    def __repr__(self) -> str:
        return summary(self, self._sizes(), [self.solution], self._selected)

    def _sizes(self) -> str:
        """The numbers of models, features and columns as text."""
        batch = jnp.shape(self.solution.status)
        features, *columns = jnp.shape(self.W)[len(batch) :]
        models = f"{list(batch)} models of " if batch else ""
        return f"{models}{features} features" + (f", {columns[0]} columns" if columns else "")

    def _selected(self) -> str:
        """The number of nonzero rows of W as text; for a batch the smallest and the largest number."""
        batch = np.ndim(self.solution.status)
        W = np.asarray(self.W)
        rows = (W.reshape(*W.shape[: batch + 1], -1) != 0).any(axis=-1).reshape(-1, W.shape[batch])
        counts = rows.sum(axis=1)
        low, high = int(counts.min()), int(counts.max())
        return f"{low} kept" if low == high else f"{low} to {high} kept"

    def rank_features(self, num: int | None = None) -> FeatureRanking:
        """The features ranked by W, as `sparsejax.rank_features` does; ``num`` is the number returned."""
        return rank_features(self.W, num)
