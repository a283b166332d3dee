"""What cross-validation has found: the candidates, their scores, and which is chosen."""

from typing import Any

import jax
import jax.numpy as jnp

from sparsejax._core.pytree import Pytree, floating_leaves
from sparsejax.solution import Solution


class CrossValidation(
    Pytree,
    leaves=(
        "penalties", "score", "fold_loss", "num_nonzero", "gap", "converged", "index", "index_1se",
        "solution", "intercept",
    ),
    static=("outputs",),
):  # fmt: skip
    """What was tried, m candidates on K folds, and the choices.

    Where the strengths have several leading axes, these stand in the place of m, and an index is a tuple: in
    either case ``result.loss[result.index]`` is the loss of the candidate.

    Attributes:
      penalties: the candidates, every strength with the leading axis of length m.
      score: (K, m), of the rows left out, greater is better; minus ``fold_loss`` unless asked for otherwise.
      fold_loss: (K, m), the loss of the rows left out, at the scale of the whole set.
      num_nonzero: (K, m), nonzero weights of each solution.
      gap, converged: (K, m), the certificates.
      index: the candidate of the greatest mean score.
      index_1se: the candidate with the fewest nonzero weights (mean over folds) among those whose mean
        score is within one standard error of the greatest; of equally sparse ones the better.
      solution, intercept: with ``refit``, those of the candidate ``index`` on all rows; else None.
      outputs: with ``per_output`` the shape (d, k) of W, else None. Then ``score``, ``fold_loss`` and
        ``num_nonzero`` are (K, m, k), the indices (k,), a candidate for each column, and ``best`` is one
        penalty of them all.

    >>> import jax, jax.numpy as jnp, numpy as np, sparsejax as sj
    >>> X = np.random.default_rng(0).standard_normal((30, 5))
    >>> problem = sj.Problem(sj.losses.SquaredLoss(X, X[:, 0]), sj.penalties.L1(0.0))
    >>> result = sj.cross_validate(problem, jax.vmap(sj.penalties.L1)(jnp.array([0.5, 0.05])))
    >>> int(result.index)
    1
    >>> grid = jax.vmap(jax.vmap(sj.penalties.L1))(jnp.array([[0.5, 0.05], [0.2, 0.1]]))
    >>> result = sj.cross_validate(problem, grid, scoring="r2", refit=True)
    >>> result.score.shape, [int(i) for i in result.index], result.solution.params.shape
    ((5, 2, 2), [0, 1], (5,))
    """

    penalties: Any
    score: jax.Array
    fold_loss: jax.Array
    num_nonzero: jax.Array
    gap: jax.Array
    converged: jax.Array
    index: Any
    index_1se: Any
    solution: Solution | None
    intercept: jax.Array | None
    outputs: tuple[int, ...] | None

    def __init__(
        self,
        penalties: Any,
        fold_loss: jax.Array,
        num_nonzero: jax.Array,
        gap: jax.Array,
        converged: jax.Array,
        score: jax.Array | None = None,
        outputs: tuple[int, ...] | None = None,
    ):
        score = -fold_loss if score is None else score
        self._set(
            penalties=penalties, score=score, fold_loss=fold_loss, num_nonzero=num_nonzero, gap=gap,
            converged=converged, solution=None, intercept=None, outputs=outputs,
        )  # fmt: skip
        if outputs is None:
            folds = score.shape[0]
            index, index_1se = _chosen(score.reshape(folds, -1), num_nonzero.reshape(folds, -1))
            self._set(index=self._in_axes(index), index_1se=self._in_axes(index_1se))
        else:
            index, index_1se = jax.vmap(_chosen, -1)(score, num_nonzero)
            self._set(index=index, index_1se=index_1se)

    def _in_axes(self, index: jax.Array) -> Any:
        shape = self.score.shape[1:]
        return index if len(shape) == 1 else jnp.unravel_index(index, shape)

    @property
    def loss(self) -> jax.Array:
        """(m,), the mean over folds."""
        return jnp.mean(self.fold_loss, axis=0)

    @property
    def standard_error(self) -> jax.Array:
        """(m,), of the mean score, which is by default that of the mean loss."""
        return _standard_error(self.score)

    @property
    def best(self) -> Any:
        """The penalty of the greatest mean score, by default the least mean loss."""
        return self._candidate(self.index)

    @property
    def best_1se(self) -> Any:
        """The sparsest penalty within one standard error of it."""
        return self._candidate(self.index_1se)

    def _candidate(self, index: Any) -> Any:
        strengths, rebuild = floating_leaves(self.penalties)
        chosen = [leaf[index] for leaf in strengths]
        if self.outputs is not None and self.outputs[1] in (1, self.outputs[0]):
            # One value a column would be taken for one a row.
            chosen = [jnp.broadcast_to(leaf, self.outputs) for leaf in chosen]
        return rebuild(chosen)


def _standard_error(score: jax.Array) -> jax.Array:
    return jnp.std(score, axis=0, ddof=1) / score.shape[0] ** 0.5


def _chosen(score: jax.Array, num_nonzero: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The best of m candidates and the sparsest within one standard error, of scores and sizes (K, m)."""
    mean = jnp.mean(score, axis=0)
    # A candidate without a finite score is never chosen.
    mean = jnp.where(jnp.isfinite(mean), mean, -jnp.inf)
    index = jnp.argmax(mean)
    near = mean >= mean[index] - _standard_error(score)[index]
    size = jnp.mean(num_nonzero.astype(mean.dtype), axis=0)
    least = jnp.min(jnp.where(near, size, jnp.inf))
    return index, jnp.argmax(jnp.where(near & (size == least), mean, -jnp.inf))
