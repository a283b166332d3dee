"""The whole solve inside jit, vmap and lax.map: one `jax.pure_callback` with fixed shapes and a status.

Nothing of JAX is called in the callback, and nothing is raised: what the host form refuses with an error
comes back as NaN and a status.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax._pytree import is_traced
from sparsejax.problem import HOST_FAILURE, NON_FINITE

VMAP_METHODS = ("sequential", "expand_dims", "broadcast_all")


def in_graph(
    host_solve: Callable[..., Any], X: Any, y: Any, scalars: tuple[Any, ...], shape: Any, vmap_method: str
) -> tuple[jax.Array, ...]:
    """``host_solve(X, y, *scalars) -> Result`` as a JAX operation.

    Args:
      host_solve: may raise.
      X: a traced array, or anything else, which then stays on the host and may be sparse.
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

    def one(X, y, scalars):
        try:
            if not (
                np.isfinite(y).all() and (not traced or np.isfinite(X).all()) and np.isfinite(scalars).all()
            ):
                return (np.full(m, np.nan), np.nan, np.nan, np.nan, NON_FINITE, 0)
            r = host_solve(X, y, *map(float, scalars))
            gap = (r.objective - r.lower_bound) / r.objective if r.objective > 0 else 0.0
            return (r.w, r.objective, r.lower_bound, gap, r.status, r.num_iters)
        except BaseException:  # a solver's panic too: raising here is undefined behaviour
            return (np.full(m, np.nan), np.nan, np.nan, np.nan, HOST_FAILURE, 0)

    def callback(*args):
        arrays = [np.asarray(a) for a in args]
        A, y, scalars = (arrays[0], arrays[1], arrays[2:]) if traced else (X, arrays[0], arrays[1:])
        batch = np.broadcast_shapes(
            A.shape[:-2] if traced else (), y.shape[:-1], *[s.shape for s in scalars]
        )  # fmt: skip
        out = [np.empty((*batch, m), dtype), *[np.empty(batch, dtype) for _ in range(3)]]
        out += [np.empty(batch, np.int32) for _ in range(2)]
        ys = np.broadcast_to(y, (*batch, y.shape[-1]))
        values = [np.broadcast_to(s, batch) for s in scalars]
        for i in np.ndindex(batch):
            at = np.broadcast_to(A, (*batch, *A.shape[-2:]))[i] if traced else A
            for array, value in zip(out, one(at, ys[i], [s[i] for s in values]), strict=True):
                array[i] = value
        return tuple(out)

    spec = jax.ShapeDtypeStruct
    shapes = (spec((m,), dtype), *[spec((), dtype)] * 3, *[spec((), jnp.int32)] * 2)
    args = (*((X,) if traced else ()), jnp.asarray(y), *map(jnp.asarray, scalars))
    return jax.pure_callback(callback, shapes, *args, vmap_method=vmap_method)
