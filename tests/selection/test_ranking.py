"""Features in the order of their size, a ranking for each column."""

import jax
import jax.numpy as jnp
import numpy as np

import sparsejax as sj


def test_rank_features():
    W = jnp.asarray([[0.0, 3.0], [-2.0, 0.0], [1.0, 0.0]])
    ranking = sj.rank_features(W, 2)
    np.testing.assert_array_equal(ranking.indices, [[1, 0], [2, 1]])
    np.testing.assert_array_equal(ranking.scores, [[2, 3], [1, 0]])
    np.testing.assert_array_equal(jax.jit(sj.rank_features, static_argnums=1)(W, 2).indices, ranking.indices)
    assert sj.rank_features(W[:, 0]).indices.tolist() == [1, 2, 0]
