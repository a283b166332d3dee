"""Checkpoints beside files of the user, read again, and with options of numpy."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsejax as sj

X = np.random.default_rng(0).standard_normal((40, 5))
PROBLEM = sj.Problem(sj.losses.SquaredLoss(X, X[:, 0]), sj.penalties.L1(0.1))
STRENGTHS = jax.vmap(sj.penalties.L1)(np.array([0.3, 0.2, 0.1]))


def test_a_checkpoint_removes_its_own_temporary_files_alone(tmp_path):
    (tmp_path / "novel.writing").write_text("mine")
    (tmp_path / "part-0.npz.123.writing").write_text("")
    sj.path(PROBLEM, STRENGTHS, checkpoint=tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert "novel.writing" in names and "part-0.npz.123.writing" not in names


def test_a_refit_that_is_read_holds_arrays_of_jax(tmp_path):
    call = lambda: sj.cross_validate(PROBLEM, STRENGTHS, refit=True, checkpoint=tmp_path)
    call()
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(call().solution))


def test_booleans_of_numpy_and_a_scoring_function_under_jit(tmp_path):
    call = lambda refit: sj.cross_validate(PROBLEM, STRENGTHS, refit=refit, checkpoint=tmp_path)
    np.testing.assert_array_equal(call(np.True_).solution.params, call(True).solution.params)
    score = lambda Y, mean, w: -jnp.sum(w * (Y - mean) ** 2)
    with pytest.raises(TypeError, match="cross_validate: checkpoint is for calls outside jit"):
        jax.jit(lambda p: sj.cross_validate(p, STRENGTHS, scoring=score, checkpoint=tmp_path).index)(PROBLEM)


def test_a_refit_that_is_read_warns_again(tmp_path):
    problem = sj.Problem(sj.losses.LogisticLoss(X, X[:, 0] > X[:, 1]), sj.penalties.L1(0.1))
    weak = jax.vmap(sj.penalties.L1)(np.array([0.02, 0.01]))
    texts = []
    for _ in range(2):  # solved, then read
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = sj.cross_validate(problem, weak, maxiter=1, refit=True, checkpoint=tmp_path)
        assert not bool(found.solution.converged)
        texts.append([str(one.message) for one in caught])
    assert texts[0] == texts[1] and len(texts[0]) == 2
