"""Penalties whose strengths are 0, NaN or huge, that are infinite at W = 0, or that a user derives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsejax as sj
from sparsejax import groups, losses, penalties, prox
from sparsejax.penalties._preconditioner import in_planes


class Half(penalties.L1, leaves=("strength",)):
    """Half of an `L1`: replaces all groups, as docs/adding-a-penalty.md allows."""

    finite_conjugate, degrees, strengths = False, (1,), ("strength",)

    @property
    def half(self):
        return penalties.L1._replace(penalties.L1(1.0), strength=self.strength / 2)

    def value(self, W):
        return self.half.value(W)

    def prox(self, V, scaling=1.0):
        return self.half.prox(V, scaling)

    def conjugate(self, Z, aux=None):
        return self.half.conjugate(Z)

    def dual_scale(self, Z):
        return self.half.dual_scale(Z)

    def dual_norm(self, Z):
        return 2 * jnp.max(jnp.abs(Z))

    def smooth_where(self, W):
        return self.half.smooth_where(W)

    def row_norm(self, params_shape):
        return self.half.row_norm(params_shape)

    def row_slopes(self, Z, W=None):
        return self.half.row_slopes(Z, W)

    def rows_at(self, ix):
        return self


def test_gap_of_a_sum_with_a_subclass():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 4))
    y = X @ np.array([1.0, -1.0, 0.5, 0.0]) + 0.1 * rng.standard_normal(30)
    loss = sj.losses.SquaredLoss(X, np.stack([y, X[:, 0] - y], 1))
    users = sj.Problem(loss, Half(0.4) + penalties.L21(0.1))
    same = sj.Problem(loss, penalties.L1(0.2) + penalties.L21(0.1))
    W = 1.2 * sj.solve(same, tol=1e-10).params
    excess = same(W) - same(W / 1.2)
    assert excess > 1e-3
    assert sj.duality_gap(users, W) * max(users(W), users(0 * W)) >= excess


def test_factor_of_by_leaf():
    groups = sj.groups.from_labels([0, 0, 1])
    parts = {"w": penalties.GroupLasso(1.0, groups), "b": penalties.Box(-1.0, 1.0), "c": None}
    twice = 2 * penalties.ByLeaf(parts)
    V = {"w": jnp.array([3.0, 4.0, 0.5]), "b": jnp.array([5.0]), "c": jnp.ones(1)}
    W = twice.prox(V)
    np.testing.assert_allclose(W["w"], (2 * parts["w"]).prox(V["w"]))
    assert W["b"].tolist() == [1.0] and W["c"].tolist() == [1.0]
    np.testing.assert_allclose(twice.value(W), 2 * parts["w"].value(W["w"]))


class Held(sj.Penalty, leaves=("inner",)):
    """A penalty of one's own around another one."""

    strengths = ("inner",)

    def value(self, W):
        return self.inner.value(W)

    def prox(self, V, scaling=1.0):
        return self.inner.prox(V, scaling)


def test_factor_of_a_class_that_holds_a_penalty():
    """The strengths of what it holds are multiplied, and not the indices of its groups."""
    inner, W = penalties.GroupLasso(1.0, sj.groups.from_labels([0, 0, 1])), jnp.array([3.0, 4.0, 1.0])
    assert (2 * Held(inner)).value(W) == (2 * inner).value(W) == 12


class AtLeastOne(sj.Penalty, leaves=()):
    def value(self, W):
        return jnp.where(jnp.all(W >= 1), 0.0, jnp.inf)

    def prox(self, V, scaling=1.0):
        return jnp.maximum(V, 1.0)


@jax.tree_util.register_pytree_node_class
class PlainAtLeastOne:
    def tree_flatten(self):
        return (), None

    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls()

    value, prox = AtLeastOne.value, AtLeastOne.prox


@pytest.mark.parametrize(
    "make",
    [
        lambda: AtLeastOne() + penalties.SquaredL2(1e-9),
        lambda: AtLeastOne() + penalties.SquaredL2(1e-9) + penalties.L1(1e-9),
        PlainAtLeastOne,
        lambda: penalties.ByLeaf(penalties.Box(1.0, jnp.inf)),
    ],
    ids=["ridge", "ridge l1", "plain", "by leaf"],
)
def test_zero_is_infeasible(make):
    X = np.random.default_rng(0).standard_normal((30, 4))
    loss = sj.losses.SquaredLoss(X, X @ np.array([2.0, 0.0, 1.5, -1.0]))
    found = sj.solve(sj.Problem(loss, make()))
    exact = sj.solve(sj.Problem(loss, penalties.Box(1.0, np.inf)))
    assert found.converged
    np.testing.assert_allclose(found.params, exact.params, atol=1e-4)


def test_zero_is_infeasible_in_a_tree():
    X = np.random.default_rng(0).standard_normal((30, 4))
    loss = sj.losses.SquaredLoss(X, X @ np.array([2.0, 0.0, 1.5, -1.0]))
    problem = sj.Problem(lambda W: loss(W["w"]), penalties.ByLeaf({"w": penalties.Box(1.0, 2.0)}))
    assert sj.solve(problem, {"w": jnp.zeros(4)}).converged


def test_derivative_on_the_simplex_at_its_kinks():
    on = penalties.SumTo(1.0) + penalties.NonNegative()
    J = jax.jacobian(on.prox)(jnp.array([1.0, 0.0, 0.0]))
    np.testing.assert_allclose(J, 0)
    free = jax.jacobian((penalties.SumTo(0.0) + penalties.L1(0.0)).prox)(jnp.zeros(3))
    np.testing.assert_allclose(free, jnp.eye(3) - 1 / 3)
    kink = jax.jacobian((penalties.SumTo(0.0) + penalties.L1(1.0)).prox)(jnp.array([3.0, -3.0, 1.0]))
    np.testing.assert_allclose(kink, [[0.5, -0.5, 0], [-0.5, 0.5, 0], [0, 0, 0]])
    v = jnp.array([2.0, 0.7, -5.0, 0.1])
    for p in (
        on,
        penalties.SumTo(0.5) + penalties.L1(0.3),
        penalties.SumTo(0.5) + penalties.L1(jnp.array([0.0, 0.3, 0.2, 0.0])),
    ):
        J = jax.jacobian(p.prox)(v)
        D = np.stack([(p.prox(v + 1e-6 * e) - p.prox(v - 1e-6 * e)) / 2e-6 for e in jnp.eye(4)], 1)
        np.testing.assert_allclose(J, D, atol=1e-8)
        assert np.isnan(p.prox(v.at[0].set(jnp.nan))).any()


labels = sj.groups.from_labels([0, 0, 1])


@pytest.mark.parametrize(
    "f",
    [
        lambda x: prox.total_variation(x, 0.0),
        lambda x: prox.sorted_l1(x, jnp.zeros(3)),
        lambda x: penalties.SortedL1(jnp.zeros(3)).prox(x),
        lambda x: penalties.GroupLasso(0.0, labels).prox(x),
        lambda x: penalties.ExclusiveGroupLasso(0.0, sj.groups.label_views(3)).prox(x[None])[0],
        lambda x: penalties.L1(1.0).prox(x, 0.0),
        lambda x: penalties.L21(1.0).prox(x, 0.0),
        lambda x: penalties.L1Inf(1.0).prox(x, 0.0),
    ],
    ids=["tv", "sorted l1", "SortedL1", "GroupLasso", "views", "l1", "l21", "l1inf"],
)
def test_identity_at_strength_zero_has_its_derivative_at_zero(f):
    np.testing.assert_allclose(jax.jacobian(f)(jnp.zeros(3)), jnp.eye(3))
    np.testing.assert_allclose(jax.jacobian(f)(jnp.array([1.0, 1.0, 0.0])), jnp.eye(3))


def test_sorted_l1_keeps_zeros_at_the_kink():
    J = jax.jacobian(lambda x: prox.sorted_l1(x, jnp.array([1.0, 0.5])))(jnp.array([3.0, 0.5]))
    assert J.tolist() == [[1.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    "f",
    [
        prox.l2,
        prox.linf,
        lambda x, s: prox.exclusive_l21(x, s, 0.1),
        lambda x, s: penalties.GroupLasso(s, sj.groups.from_labels([0, 0])).prox(x),
        lambda x, s: penalties.L21(s).prox(x),
        lambda x, s: penalties.L1Inf(s).prox(x),
    ],
    ids=["l2", "linf", "el21", "gl", "L21", "L1Inf"],
)
def test_nan_strength_under_jit(f):
    assert np.isnan(jax.jit(f)(jnp.array([3.0, 4.0]), jnp.nan)).all()


@pytest.mark.parametrize("beta, dtype", [(1e308, jnp.float64), (2e38, jnp.float32)])
def test_huge_beta(beta, dtype):
    z = prox.squared_l1(jnp.array([1.0, 2.0], dtype), beta)
    assert np.isfinite(z).all() and np.abs(z).max() < 1e-30
    z = prox.exclusive_l21(jnp.array([1.0, 2.0], dtype), 0.1, beta)
    assert np.isfinite(z).all() and np.abs(z).max() < 1e-30


def test_numpy_array_in_dual_scale_of_log_contrast():
    penalty, Z = penalties.SumTo(0.0) + penalties.L1(1.0), np.array([[1.0, 2.0], [0.0, 1.0], [3.0, 0.0]])
    assert penalty.dual_scale(Z) == penalty.dual_scale(jnp.asarray(Z))


def test_sorted_l1_without_strengths_has_a_derivative_in_them():
    x, s = jnp.array([3.0, -2.0, 0.0]), jnp.array([3.0, 2.0, 1.0])
    for prox_at in (lambda t: prox.sorted_l1(x, t * s), lambda t: penalties.SortedL1(t * s).prox(x)):
        np.testing.assert_allclose(jax.jacfwd(prox_at)(0.0), [-3.0, 2.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(jax.jacfwd(penalties.SortedL1(0 * s).prox)(x), np.eye(3), atol=1e-12)


@pytest.mark.parametrize(
    "penalty",
    [
        penalties.ExclusiveLasso(0.5),
        penalties.ExclusiveL21(0.0, 0.5),
        penalties.ExclusiveGroupL21(0.5, groups.from_labels([0, 1])),
    ],
)
def test_one_column_competes_with_nothing(penalty):
    X = np.random.default_rng(0).standard_normal((6, 2))
    params = lambda penalty: lambda y: sj.solve(sj.Problem(losses.SquaredLoss(X, y), penalty)).params
    got, ridge = (jax.jacfwd(params(g))(jnp.zeros(6)) for g in (penalty, penalties.SquaredL2(1.0)))
    np.testing.assert_allclose(got, ridge, rtol=1e-6)
    np.testing.assert_allclose(jax.jacfwd(penalty.prox)(jnp.zeros(2)), np.eye(2) / 2, atol=1e-12)


def test_a_view_of_one_group_is_a_ridge():
    X, at = np.random.default_rng(0).standard_normal((6, 2)), jnp.zeros((6, 2))
    penalty = penalties.ExclusiveGroupLasso(1.0, groups.from_labels([0, 0]))
    params = lambda penalty: lambda Y: sj.solve(sj.Problem(losses.SquaredLoss(X, Y), penalty)).params
    got, ridge = (jax.jacfwd(params(g))(at) for g in (penalty, penalties.SquaredL2(1.0)))
    np.testing.assert_allclose(got, ridge, atol=1e-8)
    slopes = jax.jacfwd(penalty.prox)(jnp.zeros((2, 2))).reshape(4, 4)
    np.testing.assert_allclose(slopes, np.eye(4) / 2, atol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "q"), [(np.float32, 1e7), (np.float32, 1e12), (np.float64, 1e16), (np.float64, 1e20)]
)
def test_the_preconditioner_of_a_row_that_is_nearly_zero(dtype, q):
    u, one = np.array([[1.0, 0.0, 0.0], [0.6, -0.48, 0.64]]).T, np.ones((3, 2))
    half = in_planes(jnp.asarray(u, dtype), jnp.full(2, q, dtype), jnp.zeros(2, dtype))
    along = u * np.sum(u * one, axis=0)
    wanted = along + (one - along) / np.sqrt(1 + q)  # (I + q(I - uu'))^(-1/2) one
    rtol = 10 * np.finfo(dtype).eps
    np.testing.assert_allclose(half(jnp.asarray(one, dtype)), wanted, rtol=rtol, atol=rtol)
