"""On accelerators JAX multiplies float32 in three digits unless asked; solvers and certificates must ask."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sparsejax as sj
from sparsejax._core.threads import jaxprs_in

rng = np.random.default_rng(0)
X = rng.standard_normal((12, 7)).astype(np.float32)
Y = rng.standard_normal((12, 2)).astype(np.float32)


@pytest.fixture(autouse=True, scope="module")
def on_an_accelerator():
    """Programs are traced as on a GPU; none of them runs, and no trace is kept."""
    jax.clear_caches()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: "gpu")
        yield
    jax.clear_caches()


def problem(a=0.1, penalty=sj.penalties.L21):
    return sj.Problem(sj.losses.SquaredLoss(X, Y), penalty(jnp.float32(a)))


def products(jaxpr):
    """The precision of each product of a program, those of nested programs too."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation.params["precision"]
        for inside in jaxprs_in(tuple(equation.params.values())):
            yield from products(inside)


def found(function, *args):
    return set(products(jax.make_jaxpr(function)(*args).jaxpr))


solve = lambda a: sj.solve(problem(a))
logistic = sj.losses.LogisticLoss(X, (Y > 0).astype(np.float32), intercept=True)
survival = sj.losses.CoxLoss(X, np.abs(Y[:, 0]) + 1, np.ones(12, bool))
CALLS = {
    "solve": solve,
    "solve, logistic": lambda a: sj.solve(sj.Problem(logistic, sj.penalties.L1(a))),
    "solve, Cox": lambda a: sj.solve(sj.Problem(survival, sj.penalties.L1(a))),
    "solve, exclusive": lambda a: sj.solve(problem(a, lambda a: sj.penalties.ExclusiveL21(a, a))),
    "duality_gap": lambda a: sj.duality_gap(problem(a), jnp.ones((7, 2), jnp.float32)),
    "lambda_max": lambda a: sj.lambda_max(problem(a)),
    "path": lambda a: sj.path(problem(), sj.penalties.L21(a * jnp.ones(3, jnp.float32))),
    "derivative": jax.grad(lambda a: (solve(a).params ** 2).sum()),
    "forward derivative": lambda a: jax.jvp(lambda a: solve(a).params, (a,), (a,)),
    "derivative of a batch": jax.grad(
        lambda a: (jax.vmap(solve)(a * jnp.ones(3, jnp.float32)).params ** 2).sum()
    ),
    "predict": lambda a: sj.predict(solve(a), problem(a), X),
    "kernels": lambda a: sj.kernels.gaussian(X, bandwidth=a) + sj.kernels.polynomial(X, scale=a, degree=2),
    "selection error": lambda a: sj.metrics.selection_error(a * X, Y, np.arange(3)),
    "mean correlation": lambda a: sj.metrics.mean_abs_correlation(a * X, np.arange(3)),
    "tune": lambda a: sj.tune(problem(a), sj.losses.SquaredLoss(X, Y), maxiter=2),
}


@pytest.mark.parametrize("name", CALLS)
def test_products_have_full_precision(name):
    full = (lax.Precision.HIGHEST, lax.Precision.HIGHEST)
    assert found(CALLS[name], jnp.float32(0.1)) == {full}


def test_what_the_user_has_set_stays():
    with jax.default_matmul_precision("tensorfloat32"):
        assert found(solve, jnp.float32(0.1)) == {(lax.Precision.HIGH, lax.Precision.HIGH)}


def test_a_cpu_has_full_precision_already(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    jax.clear_caches()
    assert found(solve, jnp.float32(0.1)) == {None}
