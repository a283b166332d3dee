"""The result of cross-validation: the candidates, their scores, and the chosen ones."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax._core.checks import is_eager
from sparsejax._core.compiled import Compiled
from sparsejax._core.linalg import eps_of, unit_of
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
    """The scores of m candidates on K folds, and the chosen candidates.

    If the strengths have several leading axes, shapes have these axes in place of m, and an index is a tuple.
    Without ``per_output``, ``result.loss[result.index]`` is the loss of the chosen candidate.

    Attributes:
      penalties: the candidates; every strength has a leading axis of length m.
      score: (K, m), of the held-out rows, greater is better; minus ``fold_loss`` without ``scoring``.
      fold_loss: (K, m), the loss of the held-out rows, multiplied by the sum of all weights and divided by
        the sum of the weights of the held-out rows.
      num_nonzero: (K, m), number of nonzero weights of each solution; 0 for a solve that an interruption has
        left out (mode "batch"), whose score is NaN.
      gap, converged: (K, m), the certificates of the solutions.
      index: the first candidate with the greatest mean score, up to rounding errors.
      index_1se: the candidate with the fewest nonzero weights (mean over folds) among the candidates whose
        mean score is within one standard error of the greatest; among equally sparse ones the best.
      solution, intercept: with ``refit``, the solution and intercept of candidate ``index`` on all rows; else
        None.
      outputs: with ``per_output`` the shape (d, k) of W, else None. With ``per_output`` the arrays ``score``,
        ``fold_loss`` and ``num_nonzero`` are (K, m, k), each index is (k,), one candidate for each column,
        and ``best`` is one penalty with the strengths of all columns.

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
        index, index_1se = _best_two(score, num_nonzero, per_output=outputs is not None)
        self._set(
            penalties=penalties, score=score, fold_loss=fold_loss, num_nonzero=num_nonzero, gap=gap,
            converged=converged, index=index, index_1se=index_1se, solution=None, intercept=None,
            outputs=outputs,
        )  # fmt: skip

    @property
    def loss(self) -> jax.Array:
        """The mean of ``fold_loss`` over the folds."""
        return jnp.mean(self.fold_loss, axis=self._lanes)

    @property
    def standard_error(self) -> jax.Array:
        """The standard error of the mean of ``score`` over the folds."""
        return _standard_error(self.score, self._lanes)

    @property
    def best(self) -> Any:
        """The penalty with the greatest mean score, by default the least mean loss."""
        return self._candidate(self.index)

    @property
    def best_1se(self) -> Any:
        """The sparsest penalty whose mean score is within one standard error of the greatest."""
        return self._candidate(self.index_1se)

    @property
    def _lanes(self) -> int:
        """The number of leading axes of all arrays that are lanes of `jax.vmap`."""
        index = self.index[0] if isinstance(self.index, tuple | list) else self.index
        return index.ndim - (self.outputs is not None)

    def _candidate(self, index: Any) -> Any:
        def chosen(strengths: Any, index: Any) -> Any:
            found = [leaf[index] for leaf in strengths]
            if self.outputs is not None and self.outputs[1] in (1, self.outputs[0]):
                # With k = 1 or k = d, strengths (k,) would be taken for strengths by row: make them (d, k).
                found = [jnp.broadcast_to(leaf, self.outputs) for leaf in found]
            return found

        for _ in range(self._lanes):
            chosen = jax.vmap(chosen)
        strengths, rebuild = floating_leaves(self.penalties)
        if not self._lanes and is_eager((strengths, index)):  # JAX would compile many small programs
            strengths, index = jax.tree.map(np.asarray, (strengths, index))
        return rebuild(jax.tree.map(jnp.asarray, chosen(strengths, index)))


def _standard_error(score: jax.Array, axis: int = 0) -> jax.Array:
    """The standard error of the mean over the folds, which are on this axis."""
    score = jnp.moveaxis(score, axis, -1)
    # In a unit for each candidate, no square of a large or tiny loss overflows or underflows.
    unit, inverse = jnp.vectorize(unit_of, signature="(k)->(),()")(score)
    return jnp.std(score * inverse[..., None], axis=-1, ddof=1) * unit / score.shape[-1] ** 0.5


def _chosen(score: jax.Array, num_nonzero: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Indices of the best and of the sparsest candidate within one standard error.

    Args:
      score, num_nonzero: (K, m).
    """
    mean = jnp.mean(score, axis=0)
    # A candidate without a finite mean score is chosen only if no candidate has one.
    mean = jnp.where(jnp.isfinite(mean), mean, -jnp.inf)
    # Equal scores in another order of folds have means that differ by a few eps: the first of them is chosen.
    greatest = jnp.max(mean)
    index = jnp.argmax(mean >= greatest - 8 * eps_of(mean) * jnp.abs(greatest))
    near = mean >= mean[index] - _standard_error(score)[index]
    mean_nonzero = jnp.mean(num_nonzero.astype(mean.dtype), axis=0)
    least = jnp.min(jnp.where(near, mean_nonzero, jnp.inf))
    return index, jnp.argmax(jnp.where(near & (mean_nonzero == least), mean, -jnp.inf))


def _each_chosen(score: jax.Array, num_nonzero: jax.Array, *, per_output: bool) -> tuple[Any, Any]:
    """`_chosen` for arrays of any leading axes: an index, or a tuple with one index for each axis."""
    if per_output:
        return jax.vmap(_chosen, -1)(score, num_nonzero)
    folds, *shape = score.shape
    best, sparsest = _chosen(score.reshape(folds, -1), num_nonzero.reshape(folds, -1))
    if len(shape) == 1:
        return best, sparsest
    return jnp.unravel_index(best, shape), jnp.unravel_index(sparsest, shape)


_best_two = Compiled(_each_chosen, ("per_output",))  # one program where JAX would compile thirty small ones
