"""What a user writes of their own: every form is taken for what it states, and for nothing else."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsejax as sj

RNG = np.random.default_rng(0)
X = RNG.standard_normal((20, 4)) + 0.5 * RNG.standard_normal((20, 1))
Y = X @ np.array([1.5, -1.0, 0.0, 0.0]) + 0.1 * RNG.standard_normal(20)
LOSS = sj.losses.SquaredLoss(X, Y)
STRENGTH = 0.1


def _value(self, W):
    return self.a * jnp.sum(jnp.abs(W))


def _prox(self, V, scaling=1.0):
    return jnp.sign(V) * jnp.maximum(jnp.abs(V) - scaling * self.a, 0)


class ByKeyword(sj.Penalty, leaves=("a",)):
    strengths = ("a",)
    value = _value  # methods assigned in the class body count
    prox = _prox


class ByKeywordWithInit(sj.Penalty, leaves=("a",)):
    value, prox = _value, _prox

    def __init__(self, a):
        self.a = jnp.asarray(a)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["a"], meta_fields=[])
@dataclass(frozen=True)
class ByDataclass(sj.Penalty):
    a: float
    strengths = ("a",)
    value, prox = _value, _prox


@jax.tree_util.register_pytree_node_class
class ByNodeClass(sj.Penalty):
    value, prox = _value, _prox

    def __init__(self, a):
        self.a = a

    def tree_flatten(self):
        return (self.a,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["a"], meta_fields=[])
@dataclass(frozen=True)
class Plain:
    a: float
    value, prox = _value, _prox


FORMS = (ByKeyword, ByKeywordWithInit, ByDataclass, ByNodeClass, Plain)
forms = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)


@functools.cache
def known(strength=STRENGTH):
    return sj.solve(sj.Problem(LOSS, sj.penalties.L1(strength)), tol=1e-13)


@forms
def test_value_and_prox_are_enough(form):
    """No gap is claimed, the residual decides, and the answer is that of the same penalty with a dual."""
    s = sj.solve(sj.Problem(LOSS, form(STRENGTH)), tol=1e-11)
    assert np.isnan(s.gap) and bool(s.converged) and 0 < float(s.residual) <= 1e-11 and int(s.num_iters) > 0
    np.testing.assert_allclose(s.objective, known().objective, rtol=1e-12)
    np.testing.assert_allclose(s.params, known().params, atol=1e-9)
    assert "residual is at most tol" in s.message and "gap is at most" in known().message
    assert np.isnan(sj.duality_gap(sj.Problem(LOSS, form(STRENGTH)), np.zeros(4)))


@forms
def test_derivative_through_the_prox(form):
    """A penalty known by its prox alone: the derivative is that of the l1 norm, objective included."""

    def at(strength, make):
        s = sj.solve(sj.Problem(LOSS, make(strength)), tol=1e-13)
        return jnp.sum(s.params**2) + s.objective

    mine = jax.grad(at)(STRENGTH, form)
    np.testing.assert_allclose(mine, jax.grad(at)(STRENGTH, sj.penalties.L1), rtol=1e-7)


class Clipped(sj.Penalty, leaves=("strength", "bound")):
    """l1 within a box: its prox clips."""

    strengths = ("strength",)

    def value(self, W):
        return self.strength * jnp.sum(jnp.abs(W)) + jnp.where(jnp.all(jnp.abs(W) <= self.bound), 0, jnp.inf)

    def prox(self, V, scaling=1.0):
        shrunk = jnp.sign(V) * jnp.maximum(jnp.abs(V) - scaling * self.strength, 0)
        return jnp.clip(shrunk, -self.bound, self.bound)


def test_derivative_where_the_prox_clips():
    def squares(bound):
        s = sj.solve(sj.Problem(LOSS, Clipped(STRENGTH, bound)), np.zeros(4), tol=1e-12)
        return jnp.sum(s.params**2)

    step = 1e-5
    difference = (squares(0.8 + step) - squares(0.8 - step)) / (2 * step)
    assert abs(float(difference)) > 0.5
    np.testing.assert_allclose(jax.grad(squares)(0.8), difference, rtol=1e-6)


class PlainNorm(sj.Penalty, leaves=("alpha",)):
    """Rows by `jnp.linalg.norm`, whose derivative at 0 is NaN."""

    def value(self, W):
        return self.alpha * jnp.sum(jnp.linalg.norm(W, axis=1))

    def prox(self, V, scaling=1.0):
        return jax.vmap(lambda v: sj.prox.l2(v, self.alpha, scaling))(V)


def test_a_norm_without_a_derivative_at_zero():
    loss = sj.losses.SquaredLoss(X, np.stack([Y, -Y], axis=1))

    def at(alpha, make):
        s = sj.solve(sj.Problem(loss, make(alpha)), tol=1e-13)
        return jnp.sum(s.params**2) + s.objective

    assert not np.any(np.asarray(sj.solve(sj.Problem(loss, PlainNorm(0.4)), tol=1e-13).params)[2:])
    np.testing.assert_allclose(jax.grad(at)(0.4, PlainNorm), jax.grad(at)(0.4, sj.penalties.L21), rtol=1e-7)


def test_other_floating_leaves_are_not_strengths():
    """A bound may be negative, is not tuned, and may be varied by a path."""
    test = sj.losses.SquaredLoss(X[::2], Y[::2])
    problem = sj.Problem(LOSS, Clipped(jnp.asarray(STRENGTH), jnp.asarray(0.8)))
    tuned = sj.tune(problem, test, maxiter=3)
    assert float(tuned.penalty.bound) == 0.8 and float(tuned.penalty.strength) != STRENGTH

    class Shifted(sj.Penalty, leaves=("a", "centre")):
        strengths = ("a",)
        degrees = (1,)

        def value(self, W):
            return self.a * jnp.sum(jnp.abs(W - self.centre))

        def prox(self, V, scaling=1.0):
            return self.centre + _prox(self, V - self.centre, scaling)

    s = jax.jit(lambda c: sj.solve(sj.Problem(LOSS, Shifted(0.1, c)), tol=1e-9))(-1.0)
    assert bool(s.converged)
    problem = sj.Problem(LOSS, Shifted(jnp.asarray(0.1), jnp.asarray(0.0)))
    path = sj.path(problem, Shifted(jnp.asarray(0.1), jnp.asarray([-1.0, 1.0])), tol=1e-9)
    assert path.converged.all()


def test_penalty_without_strengths_is_not_tuned():
    with pytest.raises(TypeError, match="ByNodeClass names no strengths"):
        sj.tune(sj.Problem(LOSS, ByNodeClass(0.1)), LOSS)


@pytest.mark.parametrize("named", ["strength", ("b",), ("strength", "b")])
def test_strengths_that_are_no_leaves_are_an_error_when_the_class_is_made(named):
    with pytest.raises(
        TypeError, match=r"strengths of Misspelt (must be a tuple of names|names b: no leaf has such a name)"
    ):

        class Misspelt(sj.Penalty, leaves=("strength",)):
            strengths = named

            def value(self, W):
                return 0.0 * jnp.sum(W)

            def prox(self, V, scaling=1.0):
                return V


def test_missing_methods_are_an_error_when_the_class_is_made():
    with pytest.raises(TypeError, match=r"NoProx must define prox: see docs/adding-a-penalty.md"):

        class NoProx(sj.Penalty, leaves=("a",)):
            value = _value

    with pytest.raises(TypeError, match=r"NoCall must define __call__: see docs/adding-a-loss.md"):

        class NoCall(sj.Loss, leaves=("a",)):
            pass

    with pytest.raises(TypeError, match=r"NoEntries must define entries and derivatives"):

        class NoEntries(sj.losses.LinearModelLoss):
            pass


def test_a_group_in_part_is_an_error_when_the_class_is_made():
    with pytest.raises(TypeError, match=r"conjugate without dual_scale, finite_conjugate: the group 'dual'"):

        class HalfDual(sj.Penalty, leaves=("a",)):
            value, prox = _value, _prox

            def conjugate(self, Z, aux=None):
                return jnp.zeros(())

    with pytest.raises(TypeError, match=r"row_slopes without rows_at: the group 'sparse rows'"):

        class HalfRows(sj.Penalty, leaves=("a",)):
            value, prox = _value, _prox

            def row_slopes(self, Z):
                return Z

    with pytest.raises(TypeError, match=r"evaluate without reweighted, intercept: the group 'data'"):

        class HalfData(sj.Loss, leaves=("weights",)):
            def __call__(self, W):
                return jnp.sum(W * W)

            def evaluate(self, W, intercept=0.0):
                return self(W)

    @functools.partial(jax.tree_util.register_dataclass, data_fields=["a"], meta_fields=[])
    @dataclass(frozen=True)
    class HalfPlain:
        a: float
        value, prox = _value, _prox
        finite_conjugate = True

    with pytest.raises(TypeError, match=r"finite_conjugate without conjugate, dual_scale"):
        sj.Problem(LOSS, HalfPlain(0.1))


@pytest.mark.parametrize(
    "parent", [sj.penalties.L1, sj.penalties.ExclusiveL21, sj.penalties.ExclusiveGroupL21]
)
def test_a_subclass_does_not_keep_what_is_no_longer_true(parent):
    with pytest.raises(TypeError, match=r"replaces value, prox of \w+ but keeps its conjugate, dual_scale"):

        class Other(parent):
            value, prox = _value, _prox

    with pytest.raises(TypeError, match=r"replaces prox of \w+ but keeps its value"):

        class OtherProx(parent):
            prox = _prox

    with pytest.raises(
        TypeError, match=r"but keeps its dual_scale, finite_conjugate|but keeps its finite_conj"
    ):

        class OtherConjugate(parent):
            def conjugate(self, Z, aux=None):
                return jnp.zeros(())


def test_what_the_quadratic_model_replaced_is_refused():
    with pytest.raises(TypeError, match=r"Old defines majorizer, which `quadratic_model` .* have replaced"):

        class Old(sj.Loss, leaves=("a",)):
            def __call__(self, W):
                return jnp.sum(W * W)

            def majorizer(self):
                return jnp.eye(3)

    @functools.partial(jax.tree_util.register_dataclass, data_fields=["a"], meta_fields=[])
    @dataclass(frozen=True)
    class OldPlain:
        a: float

        def __call__(self, W):
            return jnp.sum(W * W)

        def majorizer(self):
            return jnp.eye(3)

    with pytest.raises(
        TypeError, match=r"OldPlain defines majorizer, which `quadratic_model` .* have replaced"
    ):
        sj.Problem(OldPlain(0.1), sj.penalties.L1(0.1))


def test_a_subclass_of_a_loss_does_not_either():
    with pytest.raises(TypeError, match=r"replaces __call__ of SquaredLoss but keeps its quadratic_model"):

        class Other(sj.losses.SquaredLoss):
            def __call__(self, W):
                return jnp.sum(W * W)

    with pytest.raises(TypeError, match=r"replaces some of .* of LogisticLoss but keeps"):

        class OtherEntries(sj.losses.LogisticLoss):
            def entries(self, H):
                return H * H


def test_a_subclass_that_adds_a_method_is_welcome():
    class Named(sj.penalties.L1, leaves=("strength",)):
        def half(self):
            return self.strength / 2

    s = sj.solve(sj.Problem(LOSS, Named(STRENGTH)), tol=1e-12)
    np.testing.assert_allclose(s.objective, known().objective, rtol=1e-12)
    assert float(s.gap) <= 1e-12


class LogCosh(sj.losses.LinearModelLoss):
    """log cosh (h - y), by functions of the predictions."""

    curvature = 1.0
    reach = 1e3

    def entries(self, H):
        R = H - self.Y
        return jnp.logaddexp(R, -R) - np.log(2)

    def derivatives(self, H):
        t = jnp.tanh(H - self.Y)
        return t, 1 - t * t


class LogCoshWithDual(LogCosh):
    def divergence(self, H, first, change):
        u = first + change
        inside = jnp.abs(u) <= 1
        u = jnp.where(inside, u, 0)
        conjugate = (jax.scipy.special.xlogy(1 + u, 1 + u) + jax.scipy.special.xlogy(1 - u, 1 - u)) / 2
        conjugate += u * self.Y
        value = self.entries(H)
        return jnp.where(inside, jnp.maximum(value + conjugate - u * H, 0), jnp.inf)


def test_a_loss_by_functions_of_the_predictions():
    """admm takes it, weights and intercept and folds work, and the divergence gives a gap."""
    weights = RNG.uniform(0.5, 2, 20)
    make = functools.partial(LogCoshWithDual, X, Y, weights=weights, intercept=True)
    s = sj.admm(sj.Problem(make(), sj.penalties.L1(0.05)), tol=1e-12)
    assert bool(s.converged) and float(s.gap) <= 1e-12

    def plain(W):
        b = W[4]
        R = X @ W[:4] + b - Y
        return jnp.sum(weights * (jnp.logaddexp(R, -R) - np.log(2))) / 20

    penalty = sj.penalties.L1(np.array([0.05] * 4 + [0.0]))
    reference = sj.fista(sj.Problem(jax.tree_util.Partial(plain), penalty), np.zeros(5), tol=1e-11)
    np.testing.assert_allclose(s.objective, reference.objective, rtol=1e-10)
    np.testing.assert_allclose(make().intercept(s.params), reference.params[4], atol=1e-6)
    without = sj.solve(sj.Problem(LogCosh(X, Y, weights=weights, intercept=True), sj.penalties.L1(0.05)))
    assert np.isnan(without.gap) and bool(without.converged)
    folds = sj.cross_validate(
        sj.Problem(make(), sj.penalties.L1(0.0)), jax.vmap(sj.penalties.L1)(np.array([0.1, 0.01])), folds=4
    )
    assert folds.converged.all()


WRONG_SHAPES = {
    "entries": {"entries": lambda self, H: jnp.mean((H - self.Y) ** 2)},
    "derivatives": {"derivatives": lambda self, H: H - self.Y},
    "derivatives of one number": {"derivatives": lambda self, H: (H - self.Y, 1.0)},
}


@pytest.mark.parametrize("name", WRONG_SHAPES)
def test_functions_of_the_predictions_have_their_shape(name):
    """A mean over the rows is no loss of each row: it would be summed again."""
    right = {
        "curvature": 1.0,
        "entries": lambda self, H: (H - self.Y) ** 2 / 2,
        "derivatives": lambda self, H: (H - self.Y, jnp.ones_like(H)),
    }
    kind = type("Mine", (sj.losses.LinearModelLoss,), right | WRONG_SHAPES[name])
    method = name.split()[0]
    with pytest.raises(TypeError, match=f"solve: {method} of Mine must return shape"):
        sj.solve(sj.Problem(kind(X, Y), sj.penalties.L1(0.1)))
    kind = type("Mine", (sj.losses.LinearModelLoss,), right)
    assert sj.solve(sj.Problem(kind(X, Y), sj.penalties.L1(0.1)), maxiter=10).num_iters > 0


class Bowl(sj.Loss, leaves=("X", "Y")):
    """A loss that knows its shape and nothing else."""

    params_shape = property(lambda self: (self.X.shape[-1],))
    dtype = property(lambda self: self.X.dtype)

    def __call__(self, W):
        return jnp.sum((self.X @ W - self.Y) ** 2) / (2 * self.X.shape[0])


def test_closed_over_tracers_are_differentiated_whatever_the_loss_states():
    """`params_shape` does not switch off the hoisting."""

    def at(shift, kind):
        if kind == "loss":

            class Closing(Bowl, leaves=("X", "Y")):
                def __call__(self, W):
                    return jnp.sum((self.X @ W - self.Y + shift) ** 2) / (2 * self.X.shape[0])

            problem = sj.Problem(Closing(jnp.asarray(X), jnp.asarray(Y)), sj.penalties.L1(STRENGTH))
        else:
            problem = sj.Problem(sj.losses.SquaredLoss(X, Y - shift), sj.penalties.L1(STRENGTH))
        return jnp.sum(sj.solve(problem, np.zeros(4), tol=1e-11).params)

    expected = jax.grad(at)(0.3, "data")
    assert abs(float(expected)) > 1e-3
    np.testing.assert_allclose(jax.grad(at)(0.3, "loss"), expected, rtol=1e-5)


class Model:
    """A target and a factor, which a method of an object reads; both change."""

    def __init__(self):
        self.target, self.factor = Y.copy(), 1.0

    def loss(self, W):
        return self.factor * jnp.sum((X @ W - self.target) ** 2) / (2 * len(X))


CHANGES = {
    "another array": lambda model: setattr(model, "target", -Y),
    "the array in place": lambda model: model.target.__imul__(-1),
    "a number": lambda model: setattr(model, "factor", 3.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_plain_function_is_traced_again_in_every_call(change, tmp_path):
    """Globals, attributes and arrays that have changed since the last call count, in certificates too."""
    model, start = Model(), np.zeros(4)
    problem = sj.Problem(model.loss, sj.penalties.L1(0.01) + sj.penalties.SquaredL2(0.1))
    path = lambda: sj.path(
        problem, jax.tree.map(lambda s: s[None], problem.penalty), start, checkpoint=tmp_path
    )
    first, top, _ = sj.solve(problem, start), sj.lambda_max(problem, start), path()
    CHANGES[change](model)
    second = sj.solve(problem, start)
    assert second.converged and np.max(np.abs(second.params - first.params)) > 1e-3
    np.testing.assert_allclose(second.objective, problem(second.params), rtol=1e-12)
    assert sj.duality_gap(problem, second.params) <= 1e-6
    assert sj.duality_gap(problem, first.params) > 1e-3
    np.testing.assert_allclose(sj.lambda_max(problem, start), top * model.factor, rtol=1e-12)
    with pytest.raises(ValueError, match="differs in: loss"):
        path()


def test_closed_over_tracers_of_a_loss_with_an_intercept():
    """The best intercept depends on them too; derivatives may come as a list."""
    labels = (Y > 0).astype(Y.dtype)

    def at(factor):
        class Steep(sj.losses.LinearModelLoss):
            curvature, reach = None, 20.0

            def entries(self, H):
                return jnp.logaddexp(0, factor * H) - self.Y * factor * H

            def derivatives(self, H):
                p = jax.nn.sigmoid(factor * H)
                return [factor * (p - self.Y), factor**2 * p * (1 - p)]

        loss = Steep(jnp.asarray(X), jnp.asarray(labels), intercept=True)
        solution = sj.solve(sj.Problem(loss, sj.penalties.L1(0.05)), np.zeros(4), tol=1e-11)
        return jnp.sum(jnp.sin(solution.params)) + jnp.sin(loss.intercept(solution.params))

    expected = (at(1.3 + 1e-5) - at(1.3 - 1e-5)) / 2e-5
    assert abs(float(expected)) > 1e-3
    for derivative in (jax.grad(at), jax.jacfwd(at), jax.jit(jax.grad(at))):
        np.testing.assert_allclose(derivative(1.3), expected, rtol=1e-6)


def test_closed_over_tracers_of_a_penalty():
    def at(strength, kind):
        class Closing(sj.Penalty, leaves=()):
            def value(self, W):
                return strength * jnp.sum(jnp.abs(W))

            def prox(self, V, scaling=1.0):
                return sj.prox.l1(V, strength, scaling)

        penalty = Closing() if kind == "closing" else sj.penalties.L1(strength)
        return jnp.sum(sj.solve(sj.Problem(LOSS, penalty), tol=1e-12).params ** 2)

    np.testing.assert_allclose(jax.grad(at)(STRENGTH, "closing"), jax.grad(at)(STRENGTH, "leaf"), rtol=1e-6)


def test_attributes_are_set_once():
    penalty = sj.penalties.L1(0.1)
    with pytest.raises(AttributeError, match="immutable"):
        penalty.strength = 2.0
    with pytest.raises(AttributeError, match="immutable"):
        del penalty.strength
    with pytest.raises(TypeError, match="ByKeyword takes a once each"):
        ByKeyword(0.1, a=0.2)
    with pytest.raises(TypeError, match="takes a"):
        ByKeyword(0.1, 0.2)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["shift"], meta_fields=["a"])
@dataclass(frozen=True)
class StaticStrength(sj.Penalty):
    shift: float
    a: float
    strengths = ("a",)
    value, prox = _value, _prox


def test_a_static_attribute_is_not_a_strength():
    with pytest.raises(TypeError, match="no leaf has such a name"):
        sj.solve(sj.Problem(LOSS, StaticStrength(1.0, 0.5)), np.zeros(4))


def test_a_subclass_may_annotate_the_leaves_of_its_base():
    class Annotated(sj.losses.SquaredLoss, leaves=("X", "Y", "scale", "weights"), static=("has_intercept",)):
        weights: jax.Array | None

    loss = sj.losses.SquaredLoss(X, Y)
    assert Annotated(X, Y).provides == loss.provides
    problem = sj.Problem(Annotated(X, Y), sj.penalties.L1(0.1))
    np.testing.assert_allclose(
        sj.solve(problem).params, sj.solve(problem.replace(smooth=loss)).params, atol=1e-6
    )
