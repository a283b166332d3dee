"""The checked data of a fit, and its kernel columns."""

from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax import kernels
from sparsejax._core.checks import (
    as_float,
    as_int,
    as_nonnegative,
    check_choice,
    default_tol,
    is_traced,
    refuse_boolean,
)
from sparsejax._core.matrices.sparse import as_dense
from sparsejax._core.pytree import Pytree

Kernel = Literal["gaussian", "polynomial", "linear"]
Input = Literal["kernel", "linear"]
MAXITER = {"auto": 100, "admm": 20_000}  # by method


class Data(Pytree, leaves=("X", "Y", "bandwidth", "output_bandwidth"), static=("kernel", "degree", "input")):
    """The checked data and kernels of a fit."""

    X: jax.Array
    Y: jax.Array
    bandwidth: jax.Array  # ()
    output_bandwidth: jax.Array  # (d,)
    kernel: Kernel
    degree: int
    input: Input

    @property
    def num_inputs(self) -> int:
        """The number of columns of the inputs: of X, or of its kernel matrix."""
        return int(self.X.shape[1 if self.input == "linear" else 0])


def check(
    X: Any, Y: Any, kernel: Kernel, input: Input, bandwidth: Any, output_bandwidth: Any, degree: Any
) -> Data:
    """The `Data` of these arguments; raises TypeError or ValueError if they do not fit together."""
    check_choice("kernel", kernel, get_args(Kernel))
    check_choice("input", input, get_args(Input))
    degree = as_int("degree", degree, 1)
    X = as_dense("X", X)
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
            f"without column {j} the rows of Y have a median distance of 0 (constant or repeated outputs) or "
            "one whose square overflows or underflows: give output_bandwidth, or rescale Y."
        ) from error


def strength(name: str, x: Any, d: int, dtype: np.dtype) -> jax.Array:
    """The checked x > 0, of shape (d,), or () if d is 0; a scalar is repeated d times."""
    refuse_boolean(name, x)
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


def stopping(tol: Any, maxiter: Any, method: str, dtype: np.dtype) -> tuple[jax.Array, jax.Array]:
    """tol and maxiter as checked arrays; None stands for the default of the dtype or the method."""
    tol = as_nonnegative("tol", default_tol(dtype) if tol is None else tol, dtype)
    return tol, jnp.int32(as_int("maxiter", MAXITER[method] if maxiter is None else maxiter, 0))


def inputs(data: Any, X: jax.Array) -> jax.Array:
    """The columns whose coefficients are u, for the rows of X (m, k): X itself, or kernels (m, n)."""
    if data.input == "linear":
        return X
    return kernels.kernel_of(data.kernel, data.degree, data.bandwidth, X, data.X)
