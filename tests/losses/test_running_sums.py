"""Sums and maxima up to each place: by loops on a CPU, by associative scans elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsejax as sj
from sparsejax.losses import _running_sums
from sparsejax.losses._running_sums import (
    decayed_rows,
    decayed_sums,
    decays_of,
    running_max,
    running_sum,
    sums_to_come,
)

N = 37
STRATA = np.repeat(np.arange(4, dtype=np.int32), [10, 1, 20, 6])


@pytest.fixture(params=["cpu", "accelerator"])
def device(request, monkeypatch):
    """The device for which the functions are traced; both forms run here."""
    if request.param != "cpu":
        monkeypatch.setattr(_running_sums.jax, "default_backend", lambda: "gpu")


def expected(decay, x):
    """The recurrence in longdouble."""
    sums = np.zeros(x.shape, np.longdouble)
    for i, (factor, new) in enumerate(zip(decay, x, strict=True)):
        sums[i] = (factor * sums[i - 1] if i else 0) + new
    return sums


@pytest.mark.parametrize("strata", [None, STRATA])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_and_maxima(device, strata, dtype, rng):
    eps = np.finfo(dtype).eps
    x, rows = rng.standard_normal(N).astype(dtype), rng.standard_normal((N, 3)).astype(dtype)
    m = np.sort(3 * rng.standard_normal(N)).astype(dtype)
    decay = np.asarray(decays_of(m, strata))
    assert decay.dtype == dtype and (decay[1:] <= 1).all() and (decay >= 0).all()
    np.testing.assert_allclose(decayed_sums(decay, x), expected(decay, x), atol=8 * eps)
    np.testing.assert_allclose(decayed_rows(decay, rows), expected(decay, rows), atol=40 * eps)
    matrix = np.asarray(jax.vmap(decayed_sums, (None, 0), 1)(decay, np.eye(N, dtype=dtype)))
    np.testing.assert_allclose(sums_to_come(decay, x), matrix.T @ x, atol=40 * eps)
    one = np.ones(N, int) if strata is None else strata
    same = (one[:, None] == one) & np.tri(N, dtype=bool)
    np.testing.assert_allclose(running_sum(x, strata), same @ x.astype(np.longdouble), atol=16 * eps)
    np.testing.assert_array_equal(running_max(x, strata), np.max(np.where(same, x, -np.inf), axis=1))


def test_derivatives_and_lanes(device, rng):
    """Linear in x: any derivative is the same sum; a batch is its lanes."""
    decay = rng.uniform(0.2, 1, N)
    x, dx = rng.standard_normal((2, N))
    out, tangent = jax.jvp(lambda x: decayed_sums(decay, x), (x,), (dx,))
    np.testing.assert_allclose(tangent, decayed_sums(decay, dx), atol=1e-14)
    pulled = jax.vjp(lambda x: decayed_sums(decay, x), x)[1](jnp.asarray(dx))[0]
    np.testing.assert_allclose(pulled, sums_to_come(decay, dx), atol=1e-14)
    np.testing.assert_allclose(
        jax.vmap(decayed_sums)(np.stack([decay] * 2), np.stack([x, dx]))[0], out, atol=1e-15
    )


def test_a_long_sum_of_equal_numbers_in_float32(device):
    """Added one by one they are off by a percent."""
    x = np.full(10**6, 0.1, np.float32)
    total = float(jax.jit(lambda x: running_sum(x)[-1])(x))  # a new function: traced for each device
    assert abs(total / (float(x[0]) * 10**6) - 1) <= 2e-7


def test_the_loss_on_another_device(monkeypatch, rng):
    """Facts, Hessian and least squares of Cox's loss are the same by loops and by associative scans."""
    X, time = rng.standard_normal((N, 3)), rng.integers(1, 20, N).astype(float)
    W = rng.standard_normal(3)

    def found():
        loss = sj.losses.CoxLoss(X, time, time % 3 > 0, strata=STRATA)
        facts = loss.facts(W)
        A, B = loss.quadratic_model().least_squares_at(W, facts.predictions)
        return facts.value, facts.gradient, sj.losses.hessian(loss, W, facts.predictions), A, B

    here = found()
    monkeypatch.setattr(_running_sums.jax, "default_backend", lambda: "gpu")
    for ours, there in zip(here, found(), strict=True):
        np.testing.assert_allclose(there, ours, atol=1e-13)
