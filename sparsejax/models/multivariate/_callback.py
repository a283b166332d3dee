"""The whole solve as one `jax.pure_callback` with fixed shapes and a status, for jit, vmap and lax.map.

The callback calls no JAX function and raises only KeyboardInterrupt, after Ctrl-C: where the function on the
host would raise, the result is NaN and a status.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax._core.checks import is_traced
from sparsejax.models.multivariate._cutting_plane import Result
from sparsejax.solution import HOST_FAILURE, INTERRUPTED, NON_FINITE

VMAP_METHODS = ("sequential", "expand_dims", "broadcast_all")

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
      vmap_method: one of `VMAP_METHODS`, as `jax.pure_callback` understands them.

    Returns:
      w (m,), objective, lower_bound, gap (), in the dtype of X if it is traced; status, num_iters, int32.
    """
    traced = is_traced(X)
    dtype = X.dtype if traced else jax.dtypes.canonicalize_dtype(float)
    m = shape[1]

    def one(X: Any, y: np.ndarray, scalars: list[np.ndarray]) -> tuple[Any, ...]:
        try:
            values = (y, *scalars, X) if traced else (y, *scalars)
            if not all(np.isfinite(a).all() for a in values):
                return (np.full(m, np.nan), np.nan, np.nan, np.nan, NON_FINITE, 0)
            r = host_solve(X, y, *map(float, scalars))
            if r.status == INTERRUPTED:
                raise KeyboardInterrupt  # else the program goes on with the next lane
            return (r.w, r.objective, r.lower_bound, r.gap, r.status, r.num_iters)
        except KeyboardInterrupt:
            raise
        except BaseException:  # also panics of a solver, since raising in a callback is undefined behaviour
            return (np.full(m, np.nan), np.nan, np.nan, np.nan, HOST_FAILURE, 0)

    def callback(*args: Any) -> tuple[np.ndarray, ...]:
        arrays = [np.asarray(a) for a in args]
        A, y, scalars = (arrays[0], arrays[1], arrays[2:]) if traced else (X, arrays[0], arrays[1:])
        batch = np.broadcast_shapes(A.shape[:-2] if traced else (), y.shape[:-1], *[s.shape for s in scalars])
        out = [np.empty((*batch, m), dtype), *[np.empty(batch, dtype) for _ in range(3)]]
        out += [np.empty(batch, np.int32) for _ in range(2)]
        ys = np.broadcast_to(y, (*batch, y.shape[-1]))
        values = [np.broadcast_to(s, batch) for s in scalars]
        with np.errstate(all="ignore"):
            for i in np.ndindex(batch):
                at = np.broadcast_to(A, (*batch, *A.shape[-2:]))[i] if traced else A
                for array, value in zip(out, one(at, ys[i], [s[i] for s in values]), strict=True):
                    array[i] = value
        return tuple(out)

    kinds = ((m,), dtype), *[((), dtype)] * 3, *[((), jnp.int32)] * 2
    shapes = tuple(jax.ShapeDtypeStruct(shape, kind) for shape, kind in kinds)
    args = (*((X,) if traced else ()), jnp.asarray(y), *map(jnp.asarray, scalars))
    return jax.pure_callback(callback, shapes, *args, vmap_method=vmap_method)
