"""The data of a fit, checked, and its kernel columns."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax import kernels
from sparsejax._pytree import Pytree, as_float, is_traced

Kernel = Literal["gaussian", "polynomial", "linear"]
Input = Literal["kernel", "linear"]


class Data(Pytree, leaves=("X", "Y", "bandwidth", "output_bandwidth"), static=("kernel", "degree", "input")):
    """What is fitted to, checked."""

    X: jax.Array
    Y: jax.Array
    bandwidth: jax.Array  # ()
    output_bandwidth: jax.Array  # (d,)
    kernel: Kernel
    degree: int
    input: Input

    def __init__(self, **attributes: Any):
        self._set(**attributes)


def check(X, Y, kernel, input, bandwidth, output_bandwidth, degree) -> Data:
    if kernel not in ("gaussian", "polynomial", "linear"):
        raise ValueError(f"kernel must be 'gaussian', 'polynomial' or 'linear', got {kernel!r}.")
    if input not in ("kernel", "linear"):
        raise ValueError(f"input must be 'kernel' or 'linear', got {input!r}.")
    if isinstance(degree, bool) or not isinstance(degree, int) or degree < 1:
        raise ValueError(f"degree must be an integer >= 1, got {degree!r}.")
    X = as_float("X", X, (2,))
    Y = as_float("Y", Y, (2,), X.dtype)
    if X.shape[0] != Y.shape[0]:
        raise ValueError(f"X has {X.shape[0]} rows and Y has {Y.shape[0]}; they must agree.")
    if X.shape[0] < 2 or X.shape[1] < 1:
        raise ValueError(f"X has shape {tuple(X.shape)}; at least two rows and one column are needed.")
    d = Y.shape[1]
    if d < 2:
        raise ValueError(f"Y has {d} column(s); an output needs at least one other to be its feature.")
    one = jnp.ones((), X.dtype)
    if kernel != "gaussian":
        bandwidth, output_bandwidth = one, one
    if input == "linear":
        bandwidth = one
    if bandwidth is None:
        bandwidth = kernels.median_bandwidth(X)
    if output_bandwidth is None:
        output_bandwidth = jnp.stack([_output_median(Y, j) for j in range(d)])
    return Data(
        X=X, Y=Y, bandwidth=strength("bandwidth", bandwidth, 0, X.dtype),
        output_bandwidth=strength("output_bandwidth", output_bandwidth, d, X.dtype),
        kernel=kernel, degree=degree, input=input,
    )  # fmt: skip


def _output_median(Y: jax.Array, j: int) -> jax.Array:
    try:
        return kernels.median_bandwidth(jnp.delete(Y, j, axis=1))
    except ValueError as error:
        raise ValueError(
            f"without column {j} the rows of Y have a median distance of 0 (constant or repeated outputs): "
            "give output_bandwidth."
        ) from error


def strength(name: str, x: Any, d: int, dtype: Any) -> jax.Array:
    """Positive, of shape (d,) (() if d is 0); a scalar is repeated."""
    x = as_float(name, x, (0, 1) if d else (0,), dtype)
    if x.ndim == 1 and x.shape != (d,):
        raise ValueError(
            f"{name} has {x.shape[0]} values; it must be a scalar or one for each of {d} outputs."
        )
    require_positive(name, x)
    return jnp.broadcast_to(x, (d,)) if d else x


def require_positive(name: str, x: jax.Array) -> jax.Array:
    if not is_traced(x) and (np.asarray(x) <= 0).any():
        raise ValueError(f"{name} must be > 0, got {np.asarray(x).min():g}.")
    return x


def stopping(tol, maxiter, method, dtype):
    """tol and maxiter as arrays, checked."""
    tol = as_float("tol", (1e-6 if dtype == jnp.float64 else 1e-4) if tol is None else tol, (0,), dtype)
    if not is_traced(tol) and not tol >= 0:
        raise ValueError(f"tol must be >= 0, got {tol:g}.")
    maxiter = (100 if method == "auto" else 20_000) if maxiter is None else maxiter
    if isinstance(maxiter, bool) or not isinstance(maxiter, (int, np.integer)) or maxiter < 0:
        raise ValueError(f"maxiter must be an integer >= 0, got {maxiter!r}.")
    return tol, jnp.int32(maxiter)


def inputs(data: Any, X: jax.Array) -> jax.Array:
    """The columns that u belongs to, for the rows of X."""
    return X if data.input == "linear" else kernel_of(data.kernel, data.degree, data.bandwidth, X, data.X)


def kernel_of(kernel: Kernel, degree: int, bandwidth: jax.Array, X: jax.Array, Z: jax.Array) -> jax.Array:
    if kernel == "gaussian":
        return kernels.gaussian(X, Z, bandwidth=bandwidth)
    return kernels.polynomial(X, Z, degree=degree) if kernel == "polynomial" else kernels.linear(X, Z)
