"""The whole solve as one `jax.pure_callback` with fixed shapes and a status, for jit, vmap and lax.map.

The callback calls no JAX function and raises only KeyboardInterrupt, after Ctrl-C: where the function on the
host would raise, or an input is not finite, the result is NaN with a status.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax._core.checks import is_traced
from sparsejax.models.multivariate._cutting_plane import Result
from sparsejax.solution import HOST_FAILURE, INTERRUPTED, NON_FINITE

Answer = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]


def in_graph(
    host_solve: Callable[..., Result],
    X: Any,
    y: Any,
    scalars: tuple[Any, ...],
    shape: tuple[int, ...],
    vmap_method: str,
) -> Answer:
    """``host_solve(X, y, *scalars) -> Result`` as a JAX operation.

    Args:
      host_solve: the solve on the host, which may raise.
      X: a traced array; or an object that stays on the host and may be sparse.
      y: (n,).
      scalars: each of shape (), traced or not.
      shape: (n, m).
      vmap_method: argument of `jax.pure_callback`.

    Returns:
      w (m,), objective, lower_bound, gap (): in the dtype of a traced X, else JAX's default dtype;
      status, num_iters: int32.
    """
    traced, m = is_traced(X), shape[1]
    dtype = X.dtype if traced else jax.dtypes.canonicalize_dtype(float)
    # If X is on the host, the callback gets zeros (m,) in its place, whose length is that of w.
    matrix = X if traced else jnp.zeros(m, dtype)

    def one(matrix: np.ndarray, y: np.ndarray, *scalars: np.ndarray) -> tuple[Any, ...]:
        status = NON_FINITE
        try:
            if all(np.isfinite(a).all() for a in (matrix, y, *scalars)):
                r = host_solve(matrix if traced else X, y, *map(float, scalars))
                if r.status == INTERRUPTED:
                    raise KeyboardInterrupt  # otherwise the program would continue with the next lane
                return (r.w, r.objective, r.lower_bound, r.gap, r.status, r.num_iters)
        except KeyboardInterrupt:
            raise
        except BaseException:  # panics of a solver too: the program continues, with a status
            status = HOST_FAILURE
        return (np.full(m, np.nan), np.nan, np.nan, np.nan, status, 0)

    kinds = [dtype] * 4 + [np.int32] * 2
    inputs = ",".join(["(n,m)" if traced else "(m)", "(n)", *["()"] * len(scalars)])
    each = np.vectorize(one, kinds, signature=f"{inputs}->(m),(),(),(),(),()")

    def callback(*args: Any) -> tuple[np.ndarray, ...]:
        with np.errstate(all="ignore"):
            answer: tuple[np.ndarray, ...] = each(*args)
        return answer

    shapes = [jax.ShapeDtypeStruct((m,) if i == 0 else (), kind) for i, kind in enumerate(kinds)]
    args = matrix, jnp.asarray(y), *map(jnp.asarray, scalars)
    return jax.pure_callback(callback, tuple(shapes), *args, vmap_method=vmap_method)
