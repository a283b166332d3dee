"""Similarities of labels against the formulas, entry by entry."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsejax.graphs import from_views, ngd_similarity

# ------------------------------------------------------------------ normalised Google distance


def labels(seed, n=30, k=6):
    """Label 0 nobody has, label 1 all have, label 3 is label 2, label 4 is never with label 2."""
    Y = np.random.default_rng(seed).random((n, k)) < 0.3
    Y[:, 0], Y[:, 1], Y[:, 3], Y[0, 2], Y[1, 4] = False, True, Y[:, 2], True, True
    Y[:, 3] = Y[:, 2]
    Y[:, 4] &= ~Y[:, 2]
    return Y


def counts(Y, smoothing):
    """N, f (k,) and f (k, k) as the docstring has them."""
    n, k = Y.shape
    Y = Y.astype(float)
    c, both, N = Y.sum(0), Y.T @ Y, n + smoothing
    f = c + smoothing / 2
    F = np.empty((k, k))
    for a, b in itertools.product(range(k), repeat=2):
        x, y = (a, b) if c[a] <= c[b] else (b, a)
        F[a, b] = f[x] * (both[a, b] + smoothing * f[y] / N) / (c[x] + smoothing)
    return N, f, F


def distances(N, f, F):
    """The printed formula."""
    D = np.zeros_like(F)
    for x, y in itertools.product(range(len(f)), repeat=2):
        above = max(math.log(f[x]), math.log(f[y])) - math.log(F[x, y])
        D[x, y] = above / (math.log(N) - min(math.log(f[x]), math.log(f[y])))
    return D


@pytest.mark.parametrize("smoothing", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("seed", range(2))
def test_ngd_is_the_formula(seed, smoothing):
    Y = labels(seed)
    N, f, F = counts(Y, smoothing)
    low = np.minimum(f[:, None], f[None])
    assert (F > 0).all() and (low - F >= -1e-12).all() and (low < N).all()
    for eta in (0.5, 2.0):
        expected = np.exp(-distances(N, f, F) / eta)
        np.fill_diagonal(expected, 0)
        P = np.asarray(ngd_similarity(Y, eta=eta, smoothing=smoothing))
        np.testing.assert_allclose(P, expected, rtol=1e-12)
        np.testing.assert_array_equal(P, P.T)
        assert (P <= 1).all()


def test_ngd_tends_to_the_unsmoothed_one():
    rng = np.random.default_rng(0)
    Y = rng.random((200, 5)) < 0.4
    c = Y.sum(0)
    exact = np.exp(-distances(len(Y), c, Y.T.astype(float) @ Y))
    np.fill_diagonal(exact, 0)
    np.testing.assert_allclose(ngd_similarity(Y, smoothing=1e-9), exact, rtol=1e-9)


def test_labels_without_samples_are_independent_of_all():
    """Distance 1, also to each other. Below: equal labels, and two that are never seen together."""
    Y = labels(0)
    P = np.asarray(ngd_similarity(Y))
    np.testing.assert_allclose(P[0, 2:], np.exp(-1), rtol=1e-12)
    np.testing.assert_allclose(ngd_similarity(0 * Y)[0, 1:], np.exp(-1), rtol=1e-12)
    assert P[2, 3] > 0.9 and P[2, 4] < np.exp(-1.2)


@pytest.mark.float32_only_ok
def test_ngd_in_float32_where_logarithms_nearly_cancel():
    """25 000 samples, labels that all but one have: the logarithms of N and f differ by 1e-5."""
    Y = np.ones((25_000, 4), np.float32)
    Y[0, 1] = Y[1, 2] = Y[:, 3] = 0
    P = ngd_similarity(Y)
    assert P.dtype == np.float32
    expected = np.exp(-distances(*counts(Y.astype(np.float64), 1.0)))
    np.testing.assert_allclose(P, expected * (1 - np.eye(4)), rtol=2e-5)
    assert ngd_similarity(Y.astype(int)).dtype == jnp.result_type(float)


def test_ngd_under_jit_vmap_and_grad():
    Y = jnp.asarray(np.stack([labels(0), labels(1)]), float)
    call = lambda Y, eta, s: ngd_similarity(Y, eta=eta, smoothing=s)
    eager = call(Y[0], 0.7, 2.0)
    np.testing.assert_allclose(jax.jit(call)(Y[0], 0.7, 2.0), eager, rtol=1e-14)
    np.testing.assert_allclose(jax.vmap(call, (0, None, None))(Y, 0.7, 2.0)[0], eager, rtol=1e-14)
    total = lambda eta, s: jnp.sum(call(Y[0], eta, s))
    h = 1e-5
    for at, slope in enumerate(jax.grad(total, (0, 1))(0.7, 2.0)):
        step = h * np.eye(2)[at]
        near = (total(0.7 + step[0], 2 + step[1]) - total(0.7 - step[0], 2 - step[1])) / (2 * h)
        np.testing.assert_allclose(slope, near, rtol=1e-7)


# ------------------------------------------------------------------ combinations of labels


def test_combinations_that_differ_in_one_view():
    """Every pair of columns, for three views: one by its number, two by similarities."""
    rng = np.random.default_rng(0)
    A, B = rng.random((3, 3)), rng.random((4, 4))
    A, B = A + A.T, B + B.T
    shape = (3, 2, 4)
    P = np.asarray(from_views(A, 2, B))
    assert P.shape == (24, 24)
    weights = (A, np.ones((2, 2)), B)
    for a, b in itertools.product(itertools.product(*map(range, shape)), repeat=2):
        differ = [v for v in range(3) if a[v] != b[v]]
        expected = weights[differ[0]][a[differ[0]], b[differ[0]]] if len(differ) == 1 else 0
        assert P[np.ravel_multi_index(a, shape), np.ravel_multi_index(b, shape)] == expected


def test_one_view_and_an_asymmetric_similarity():
    S = np.array([[5.0, 1.0], [3.0, 7.0]])
    np.testing.assert_array_equal(from_views(S), [[0, 2], [2, 0]])
    np.testing.assert_array_equal(from_views(3), 1 - np.eye(3))
    np.testing.assert_array_equal(from_views(1), [[0]])
    np.testing.assert_array_equal(from_views(np.int64(1), S), [[0, 2], [2, 0]])


@pytest.mark.float32_only_ok
def test_views_keep_the_dtype_and_trace():
    S = np.array([[0, 0.5], [0.5, 0]], np.float32)
    assert from_views(2, S, S.astype(int)).dtype == np.float32
    assert from_views(2, 3).dtype == jnp.result_type(float)
    np.testing.assert_array_equal(jax.jit(lambda S: from_views(S, 3))(S), from_views(S, 3))


# ------------------------------------------------------------------ bad input

Y, S = np.eye(3), np.ones((2, 2))

BAD = {
    "not 0/1": (lambda: ngd_similarity(2 * Y), ValueError, "Y must hold 0 and 1 only; it has 2"),
    "NaN": (lambda: ngd_similarity(Y * np.nan), ValueError, "Y has 9 .*NaN"),
    "rank": (lambda: ngd_similarity(Y[0]), ValueError, r"Y has shape \(3,\); it must be 2-d"),
    "no samples": (lambda: ngd_similarity(Y[:0]), ValueError, r"Y is empty.*\(0, 3\)"),
    "names": (lambda: ngd_similarity([["a", "b"]]), TypeError, "Y has dtype <U1"),
    "eta": (lambda: ngd_similarity(Y, eta=0), ValueError, "eta must be > 0, got 0"),
    "eta NaN": (lambda: ngd_similarity(Y, eta=np.nan), ValueError, "eta has 1 .*NaN"),
    "eta rank": (lambda: ngd_similarity(Y, eta=[1.0]), ValueError, r"eta has shape \(1,\)"),
    "smoothing": (lambda: ngd_similarity(Y, smoothing=-1), ValueError, "smoothing must be > 0, got -1"),
    "traced": (lambda: jax.jit(ngd_similarity)(Y[0]), ValueError, "Y has shape"),
    "no view": (from_views, TypeError, "at least one view"),
    "size 0": (lambda: from_views(2, 0), ValueError, "view 1 must have at least 1 label, got 0"),
    "size of XLA's end": (
        lambda: from_views(2**31),
        ValueError,
        "view 0 must have at most 46340 labels, got",
    ),
    "sizes": (
        lambda: from_views(300, 300),
        ValueError,
        "views have 90000 combinations of labels; at most 46340",
    ),
    "size ragged": (lambda: from_views([[1, 2], [3]]), ValueError, "view 0 is not a rectangular array"),
    "size 2.0": (lambda: from_views(2.0), TypeError, "view 0 must be a number of labels or .* got 2.0"),
    "size True": (lambda: from_views(True), TypeError, "view 0 must be a number of labels"),
    "not square": (lambda: from_views(2, S[:1]), ValueError, r"view 1 has shape \(1, 2\).* square"),
    "vector": (lambda: from_views(S[0]), ValueError, r"view 0 has shape \(2,\); it must be 2-d"),
    "empty": (lambda: from_views(S[:0, :0]), ValueError, "view 0 has shape .*empty"),
    "negative": (lambda: from_views(3, -S), ValueError, "view 1 has the similarity -1; all must be >= 0"),
    "S NaN": (lambda: from_views(S * np.nan), ValueError, "view 0 has 4 .*NaN"),
    "S text": (lambda: from_views("ab"), TypeError, "view 0 must be a number of labels or a sim.* got 'ab'"),
    "S traced": (lambda: jax.jit(from_views)(S[:1]), ValueError, "square"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, kind, message = BAD[name]
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize("smoothing", [1e-30, 1e-20, 1e30])
def test_smoothing_of_extreme_size_in_float32(smoothing):
    Y = np.zeros((8, 4), np.float32)  # nobody has label 2 or 3
    Y[:5, 0], Y[3:7, 1] = 1, 1
    P = np.asarray(ngd_similarity(Y, smoothing=np.float32(smoothing)))
    with jax.enable_x64(True):
        exact = np.asarray(ngd_similarity(Y.astype(float), smoothing=smoothing))
    np.testing.assert_allclose(P, exact, rtol=1e-5)
    np.testing.assert_allclose(P[[0, 1, 2], [2, 3, 3]], np.exp(-1), rtol=1e-5)


def test_similarities_near_the_largest_number_stay_finite():
    S = np.array([[0, 3e38], [3e38, 0]], np.float32)
    np.testing.assert_array_equal(from_views(S), S)
