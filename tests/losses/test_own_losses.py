"""Losses of one's own: what a class states, replaces and keeps."""

import jax.numpy as jnp
import numpy as np
import pytest

import sparsejax as sj
from sparsejax import losses, penalties


def test_a_loss_by_predictions_with_a_value_of_its_own():
    with pytest.raises(TypeError, match="replaces __call__ of LinearModelLoss but keeps its quadratic_model"):

        class Ridge(losses.LinearModelLoss):
            entries = lambda self, H: (H - self.Y) ** 2 / 2
            derivatives = lambda self, H: (H - self.Y, jnp.ones_like(H))
            __call__ = lambda self, W: losses.LinearModelLoss.__call__(self, W) + jnp.sum(W * W)


def test_another_function_than_the_one_of_the_parent():
    with pytest.raises(TypeError, match="of PoissonLoss but keeps reach, _best_intercept"):

        class Own(losses.PoissonLoss):
            entries = lambda self, H: H * H / 2 - self.Y * H
            derivatives = lambda self, H: (H - self.Y, jnp.ones_like(H))
            divergence = lambda self, H, first, change: change * change / 2
            mean = lambda self, H: H


def test_a_bounded_slope_without_num_rows_is_refused_in_words():
    inner = losses.HuberLoss(np.eye(6, 3), np.ones(6))

    class Bounded(sj.Loss, leaves=("inner",)):
        params_shape, dtype = property(lambda self: (3,)), property(lambda self: self.inner.dtype)
        __call__ = lambda self, W: self.inner(W)
        quadratic_model = lambda self: losses.QuadraticModel(
            bounded_slope=self.inner.quadratic_model().bounded_slope
        )

    problem = sj.Problem(Bounded(inner), penalties.L1(0.1))
    with pytest.raises(TypeError, match="interior_point needs num_rows"):
        sj.interior_point(problem)
    assert sj.solve(problem).converged


def test_a_reach_may_depend_on_a_leaf():
    class Own(losses.LinearModelLoss, leaves=("delta",)):
        def __init__(self, X, Y, delta, **options):
            super().__init__(X, Y, **options)
            self.delta = jnp.asarray(delta, self.dtype)

        reach = property(lambda self: jnp.max(jnp.abs(self.Y)) + self.delta)
        entries = lambda self, H: (H - self.Y) ** 2 / 2
        derivatives = lambda self, H: (H - self.Y, jnp.ones_like(H))

    loss = Own(np.eye(4, 3), np.arange(4.0), 1.0, intercept=True)
    np.testing.assert_allclose(loss.intercept(np.zeros(3)), 1.5)


@pytest.mark.parametrize("tree", [False, True])
def test_a_loss_that_is_not_valid_has_no_answer_on_a_tree_either(tree):
    class Weighted(sj.Loss, leaves=("w",)):
        def __call__(self, W):
            return jnp.sum(self.w * ((W["a"] if tree else W) - 1) ** 2)

        def valid(self):
            return jnp.all(self.w >= 0)

    class Absolute(sj.Penalty, leaves=("strength",)):
        def value(self, W):
            return self.strength * jnp.sum(jnp.abs(W["a"] if tree else W))

        def prox(self, V, scaling=1.0):
            cut = scaling * self.strength
            one = lambda v: jnp.sign(v) * jnp.maximum(jnp.abs(v) - cut, 0)
            return {"a": one(V["a"])} if tree else one(V)

    problem = sj.Problem(Weighted(jnp.array([1.0, 1.0, -1e-3])), Absolute(jnp.asarray(0.1)))
    init = {"a": jnp.zeros(3)} if tree else jnp.zeros(3)
    with pytest.warns(sj.ConvergenceWarning):
        assert not sj.fista(problem, init).converged
