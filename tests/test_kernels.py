"""Kernels against scikit-learn, and where they could go wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import pdist
from sklearn.metrics import pairwise

from sparsejax import kernels


@pytest.fixture
def rows(rng):
    return rng.standard_normal((30, 4)), rng.standard_normal((11, 4))


@pytest.mark.parametrize(
    "ours, theirs",
    [
        (
            lambda *a: kernels.gaussian(*a, bandwidth=1.7),
            lambda *a: pairwise.rbf_kernel(*a, gamma=0.5 / 1.7**2),
        ),
        (
            lambda *a: kernels.polynomial(*a, degree=3, scale=0.5, offset=2.0),
            lambda *a: pairwise.polynomial_kernel(*a, degree=3, gamma=0.5, coef0=2.0),
        ),
        (kernels.linear, pairwise.linear_kernel),
        (kernels.squared_distances, lambda *a: pairwise.euclidean_distances(*a, squared=True)),
    ],
    ids=["gaussian", "polynomial", "linear", "squared_distances"],
)
def test_against_scikit_learn(ours, theirs, rows):
    X, Z = rows
    np.testing.assert_allclose(ours(X), theirs(X), rtol=1e-12, atol=1e-13)
    expected = theirs(X, Z)
    np.testing.assert_allclose(ours(X, Z), expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(jax.jit(ours)(X, Z), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.float32_only_ok
def test_distances_in_float32_far_from_the_origin(rng):
    X = (rng.standard_normal((40, 3))).astype(np.float32)
    X[5] = X[3]
    far = X + np.float32(1000)  # without centring, an error of about 0.2
    exact = pairwise.euclidean_distances(far.astype(float), squared=True)
    D = np.asarray(kernels.squared_distances(far))
    assert D.dtype == np.float32 and (D >= 0).all()
    assert (np.diag(D) == 0).all() and (np.diag(kernels.gaussian(far, bandwidth=1e-3)) == 1).all()
    np.testing.assert_allclose(D, exact, atol=2e-5)


@pytest.mark.parametrize("bandwidth", [1e-300, 1e-320])
def test_gaussian_of_the_least_bandwidths_tells_equal_from_unequal(bandwidth):
    """The second one is 0 in XLA."""
    X = np.asarray([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])  # centring and products are exact
    assert (np.asarray(kernels.gaussian(X, X, bandwidth=bandwidth)) == np.eye(4)).all()


def test_gaussian_of_a_tiny_bandwidth_in_float32():
    """The square of 1e-25 is 0 in float32."""
    X = np.asarray([[0.0], [1e-25], [3e-25]], np.float32)
    K = np.asarray(kernels.gaussian(X, bandwidth=np.float32(1e-25)))
    np.testing.assert_allclose(K[0], np.exp([0, -0.5, -4.5]), rtol=1e-6)


@pytest.mark.parametrize("n", [2, 7, 8])
def test_median_is_over_pairs(n, rng):
    """The zeros of the diagonal are left out; an even number of pairs has the mean of the middle two."""
    X = rng.standard_normal((n, 3))
    expected = np.median(pdist(X))
    np.testing.assert_allclose(kernels.median_bandwidth(X), expected, rtol=1e-12)
    np.testing.assert_allclose(jax.jit(kernels.median_bandwidth)(jnp.asarray(X)), expected, rtol=1e-12)
    batch = jax.vmap(kernels.median_bandwidth)(jnp.stack([jnp.asarray(X), 2 * jnp.asarray(X)]))
    np.testing.assert_allclose(batch, [expected, 2 * expected], rtol=1e-12)


def test_derivative_in_the_bandwidth(rows):
    X, Z = rows
    f = lambda s: jnp.sum(kernels.gaussian(X, Z, bandwidth=s))
    h = 1e-6
    np.testing.assert_allclose(jax.grad(f)(1.3), (f(1.3 + h) - f(1.3 - h)) / (2 * h), rtol=1e-7)


def test_memory_of_many_rows():
    """2e4 x 5e3 x 50 would be 40 GB; beside the result (800 MB) at most one array of its size is kept."""
    X, Z = jnp.zeros((20_000, 50)), jnp.zeros((5_000, 50))
    compiled = kernels._gaussian.lower(X, Z, jnp.asarray(1.0)).compile().memory_analysis()
    assert compiled.output_size_in_bytes == 20_000 * 5_000 * 8
    assert compiled.temp_size_in_bytes < 1.1 * compiled.output_size_in_bytes


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda X: kernels.median_bandwidth(X[:1]), ValueError, "one row"),
        (lambda X: kernels.median_bandwidth(X[[0, 0, 0]]), ValueError, "median distance .* is 0"),
        # Their computed distances are rounding errors: the mean of copies of 0.1 is not 0.1.
        (lambda X: kernels.median_bandwidth(np.full((6, 3), 0.1)), ValueError, "median distance .* is 0"),
        (lambda X: kernels.median_bandwidth(1e300 * X), ValueError, "overflow in float64: rescale X"),
        (lambda X: kernels.median_bandwidth(1e-170 * X), ValueError, "underflow in float64"),
        (lambda X: kernels.median_bandwidth(np.r_[X, [[1e20] * 4]]), ValueError, "rounding errors beside"),
        (lambda X: kernels.gaussian(X, bandwidth=0.0), ValueError, "bandwidth must be > 0, got 0"),
        (lambda X: kernels.gaussian(X, bandwidth=-1.0), ValueError, "bandwidth must be > 0, got -1"),
        (lambda X: kernels.gaussian(X, bandwidth=np.nan), ValueError, "bandwidth has 1 value"),
        (lambda X: kernels.gaussian(X, X[:, :2], bandwidth=1.0), ValueError, "4 columns and Z has 2"),
        (lambda X: kernels.linear(np.where(X > 0, np.nan, X)), ValueError, "X has .* NaN"),
        (lambda X: kernels.linear(X[0]), ValueError, "must be 2-d"),
        (lambda X: kernels.linear(X[:0]), ValueError, "X is empty"),
        (lambda X: kernels.polynomial(X, degree=0), ValueError, "degree must be an integer >= 1, got 0"),
        (lambda X: kernels.polynomial(X, scale=0.0), ValueError, "scale must be > 0"),
    ],
)
def test_bad_input(call, error, words, rows):
    with pytest.raises(error, match=words):
        call(rows[0])


def test_gradient_of_the_median_with_equal_rows(rng):
    X = rng.standard_normal((9, 3))
    X[3] = X[5]
    assert np.isfinite(jax.grad(kernels.median_bandwidth)(jnp.asarray(X))).all()


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_the_gaussian_kernel_does_not_depend_on_the_unit(unit, rng):
    """Squares of the distances underflow, or overflow."""
    X, Z = rng.standard_normal((6, 3)), rng.standard_normal((4, 3))
    for rows in ((X,), (X, Z)):
        found = kernels.gaussian(*(unit * A for A in rows), bandwidth=1.3 * unit)
        np.testing.assert_allclose(found, kernels.gaussian(*rows, bandwidth=1.3), rtol=1e-12)


def test_a_nan_is_no_equal_row(rng):
    """Under jit, where nothing can be raised."""
    X, Z = rng.standard_normal((4, 3)), rng.standard_normal((2, 3))
    X[1, 2] = np.nan
    K = jax.jit(lambda X: kernels.gaussian(X, Z, bandwidth=1.0))(X)
    np.testing.assert_array_equal(np.isnan(K), np.tile([[False], [True], [False], [False]], 2))


def test_a_huge_row_leaves_the_other_similarities(rng):
    """Its squares overflow; in its own unit the squares of all others would underflow."""
    X, Z = rng.standard_normal((2, 4, 3)).astype(np.float32)
    known = kernels.gaussian(X, Z, bandwidth=1.0)
    X[3] = 1e20
    np.testing.assert_allclose(kernels.gaussian(X, Z, bandwidth=1.0)[:3], known[:3], rtol=1e-6)
    assert (kernels.gaussian(X, Z, bandwidth=1.0)[3] == 0).all()


def test_gaussian_of_a_row_that_overflows_is_zero():
    """Also where the products with the rows of Z would add infinities of both signs."""
    X, Z = np.float32([[1e38, -1e38], [3e-3, 3e-3]]), np.float32([[3e-3, 3e-3], [1e-3, -2e-3]])
    found = np.asarray(kernels.gaussian(X, Z, bandwidth=1e-3))
    assert (found[0] == 0).all() and found[1, 0] == 1


def test_a_row_of_nan_is_not_equal_to_itself(rng):
    """Under jit, where nothing can be raised. The mean that is subtracted is NaN, too."""
    X = rng.standard_normal((4, 3))
    X[1, 2] = np.nan
    for kernel in (kernels.squared_distances, lambda X: kernels.gaussian(X, bandwidth=1.0)):
        assert np.isnan(jax.jit(kernel)(X)).all()
