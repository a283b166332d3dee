r"""The duality gap and the status of solutions of the weighted lassos.

.. math:: \min_z P(z) = \|y - Az\|^2 + 2\sum_i \ell_i |z_i|
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax._core.linalg import safe_divide, unit_of
from sparsejax.solution import CONVERGED, MAX_ITER, NON_FINITE, STALLED

RUNNING = -1  # status of a solve that goes on
FULL = -2  # status of a solve whose working set is too small: it is repeated with a larger one


class Lasso(NamedTuple):
    """The solution of a weighted lasso, and how good it is."""

    z: jax.Array  # (p,)
    objective: jax.Array  # (), P(z)
    gap: jax.Array  # (), relative to max(objective, objective at 0)
    num_iters: jax.Array  # () int32
    status: jax.Array  # () int32, a code of `sparsejax.solution`, `RUNNING` or `FULL`


class Certificate(NamedTuple):
    objective: jax.Array  # (), P(z)
    gap: jax.Array  # (), relative to max(objective, objective at 0), including ``rounding``
    rounding: jax.Array  # (), a bound on the rounding error of the gap


def lengths_of(At: jax.Array) -> jax.Array:
    """The norms of the columns of A, (p,), from ``At`` = A' (p, n); nothing overflows or underflows."""
    largest = jnp.max(jnp.abs(At), axis=1)
    unit = jnp.where(largest > 0, largest, 1)
    return largest * jnp.sqrt(jnp.sum((At / unit[:, None]) ** 2, axis=1))


def certify(
    y: jax.Array,
    residual: jax.Array,
    c: jax.Array,
    limit: jax.Array,
    lengths: jax.Array,
    z: jax.Array,
    support: jax.Array | slice = slice(None),
) -> Certificate:
    r"""Objective and relative duality gap of z.

    The dual point is :math:`\theta = 2s r` with the best s >= 0 for which all :math:`|s c_i| \le \ell_i`, and

    .. math:: P - D = \sum_i (2\ell_i|z_i| - 2 s c_i z_i) + (1 - s)^2\|r\|^2 ,

    a sum of nonnegative terms, in which no large terms cancel. (If y and the columns of A are centred, so is
    r, and the dual point is feasible for the problem with a free intercept too.) Rounding errors are bounded:
    s allows for an error of eps :math:`\|a_i\|\|r\|` in :math:`c_i`. The gap includes eps times the sum of
    the magnitudes of all terms of P - D, and of the terms that add up to :math:`c_i` and r. The gap is NaN
    where a limit is not > 0 or a value is NaN.

    Args:
      y: (n,).
      residual: r = y - Az, (n,).
      c: A'r, (p,).
      limit: :math:`\ell`, (p,), > 0.
      lengths: (p,), norms of the columns of A.
      z: the entries of z that may differ from 0.
      support: the indices of these entries among the p.
    """
    eps = float(np.finfo(y.dtype).eps)
    size = jnp.sum(residual * residual)
    length = jnp.sqrt(size)
    ratio = jnp.max((jnp.abs(c) + eps * length * lengths) / limit)
    s = safe_divide(jnp.sum(residual * y), size, 1)
    s = jnp.clip(s, 0, safe_divide(1, ratio, jnp.inf))
    scaled, z_size = limit[support] * jnp.abs(z), jnp.sum(jnp.abs(z) * lengths[support])
    objective = size + 2 * jnp.sum(scaled)
    excess = 2 * jnp.sum(scaled - s * c[support] * z) + (1 - s) ** 2 * size
    origin = jnp.sum(y * y)
    rounding = 2 * jnp.sum(scaled) + (1 - s) ** 2 * size
    rounding += 2 * length * (z_size + jnp.abs(1 - s) * jnp.sqrt(origin))
    scale = jnp.maximum(objective, origin)
    error = safe_divide(eps * rounding, scale)
    known = (jnp.min(limit) > 0) & ~jnp.isnan(ratio) & ~jnp.isnan(objective)
    gap = jnp.where(known, safe_divide(jnp.maximum(excess, 0), scale) + error, jnp.nan)
    return Certificate(objective, gap, error)


def judge(
    certificate: Certificate,
    num_iters: jax.Array,
    tol: jax.Array,
    maxiter: jax.Array,
    stalled: jax.Array,
    otherwise: jax.Array | int = RUNNING,
) -> jax.Array:
    """The status of a solve, () int32.

    In this order: NON_FINITE if objective or gap is not finite; CONVERGED if the gap is at most ``tol``;
    STALLED if ``stalled``, or if the gap is at most twice its rounding error; MAX_ITER if ``num_iters`` has
    reached ``maxiter``; else ``otherwise``.
    """
    _, gap, rounding = certificate
    status = jnp.where(num_iters < maxiter, otherwise, MAX_ITER)
    status = jnp.where(stalled | (gap <= 2 * rounding), STALLED, status)
    status = jnp.where(gap <= tol, CONVERGED, status)
    finite = jnp.isfinite(certificate.objective) & jnp.isfinite(gap)
    return jnp.where(finite, status, NON_FINITE).astype(jnp.int32)


class Unit(NamedTuple):
    """The unit in which a problem is solved, a power of two near the largest absolute entry of y.

    ``limits`` converts the limits of the problem to this unit, ``undone`` converts the solution back. Without
    the unit, squares of a tiny y would underflow, and with them the gap. A solution that overflows when it is
    converted back has the status NON_FINITE.
    """

    size: jax.Array  # ()

    @classmethod
    def of(cls, y: jax.Array) -> "Unit":
        return cls(unit_of(y)[0])

    def limits(self, limits: jax.Array) -> jax.Array:
        # An infinite limit times a z of 0 would be NaN.
        return jnp.minimum(limits / self.size, np.finfo(limits.dtype).max)

    def undone(self, solved: Lasso) -> Lasso:
        z, objective = solved.z * self.size, solved.objective * self.size * self.size
        finite = jnp.all(jnp.isfinite(z), axis=-1) & jnp.isfinite(objective)
        status = jnp.where(finite, solved.status, NON_FINITE).astype(jnp.int32)
        return solved._replace(z=z, objective=objective, status=status)
