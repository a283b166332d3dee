r"""The exact solution of a small weighted lasso from any start, by following a path of problems.

With :math:`H = A^\top A` and :math:`c = A^\top(y - Az)`, z minimises :math:`\|y - Az\|^2 + 2\sum_i
\ell_i|z_i|` iff :math:`c_i = \ell_i\,\mathrm{sign}(z_i)` where :math:`z_i \ne 0` and :math:`|c_i| \le \ell_i`
elsewhere. Any z has :math:`|c_i| \le b_i` for *some* bounds b. Along the path the active :math:`c_i` change
linearly to :math:`\ell_i s_i`, and the bounds of the other entries to :math:`\ell_i`. Between events z is
linear: at an event an active entry reaches 0 and leaves, or another entry reaches its bound and enters. For
z = 0 and proportional bounds this is the LARS-lasso path. From the solution of a neighbouring problem it is a
warm start, and from a nearly exact solution it is iterative refinement.

The inverse of :math:`H_{SS}` is stored in an (m, m) array with zeros outside S; an event changes it by one
outer product. All shapes are static, and under vmap all work is elementwise. The inverse is recomputed only
if an outer product would leave too few digits.

Equal columns, or columns that are dependent up to rounding, would make :math:`H_{SS}` singular: `proximal`
adds a small share of the diagonal of H to H. The end of the path then minimises the objective plus this
share of :math:`\sum_i H_{ii} (z_i - \text{start}_i)^2`, a step of the proximal-point method. Repeated steps
converge to the solution.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsejax._core.linalg import safe_divide

BOUND_SLACK = 1e-3  # share by which the bound of an entry that leaves the active set is raised


class Active(NamedTuple):
    z: jax.Array  # (m,), zero where inactive
    sign: jax.Array  # (m,), -1, 0 (inactive) or 1
    inverse: jax.Array  # (m, m), of H on the active set, zero outside


class _Path(NamedTuple):
    active: Active  # the solution at this place of the path
    c: jax.Array  # (m,), A'(y - Az) - D(z - start), where D is the diagonal that `proximal` adds to H
    bound: jax.Array  # (m,), bounds of |c| for inactive entries
    last: jax.Array  # () int32: the entry of the last event, which cannot go back at once
    steps: jax.Array  # () int32, events so far
    stale: jax.Array  # () boolean: the inverse has lost too many digits
    done: jax.Array  # () boolean: the end of the path is reached


def _diagonal_share(dtype: np.dtype) -> float:
    """The share of the diagonal that `proximal` adds."""
    return float(np.finfo(dtype).eps ** 0.6)


def proximal(H: jax.Array) -> jax.Array:
    """H (m, m) with a larger diagonal, so that it is positive definite."""
    return H + _diagonal_share(H.dtype) * jnp.diag(jnp.diagonal(H))


def follow(
    H: jax.Array, limit: jax.Array, bound: jax.Array, c: jax.Array, start: Active, maxsteps: int
) -> Active:
    """The solution for ``limit`` (m,) > 0, on a path from ``start``.

    At the start the correlations are ``c`` (m,), and the bounds of the path begin at max(bound, |c|). If the
    start solves another problem, ``bound`` is the limit of that problem, and only active entries are at their
    bounds. After ``maxsteps`` events, or if rounding breaks the path, the result is the point reached, which
    the caller judges by its duality gap. H must be a result of `proximal`.
    """

    def stretch(p: _Path) -> _Path:
        """Follow the path to its end, or to an event after which the inverse is inaccurate."""
        going = lambda p: ~p.done & ~p.stale & (p.steps < maxsteps)
        p = lax.while_loop(going, partial(_next_event, H, limit), p)
        inverse = renew(H, p.active.sign != 0, p.active.inverse, p.stale)
        return p._replace(active=p.active._replace(inverse=inverse), stale=jnp.zeros((), bool))

    # Rounding in an earlier path may leave an entry with the wrong sign. ``sign`` becomes that of z, so that
    # the path brings the entry back to 0.
    start = start._replace(sign=jnp.where(start.sign * start.z < 0, -start.sign, start.sign))
    path = _Path(
        active=start,
        c=c,
        bound=jnp.where(start.sign != 0, jnp.abs(c), jnp.maximum(bound, jnp.abs(c))),
        last=jnp.int32(-1),
        steps=jnp.int32(0),
        stale=jnp.zeros((), bool),
        done=jnp.zeros((), bool),
    )
    return lax.while_loop(lambda p: ~p.done & (p.steps < maxsteps), stretch, path).active


def _next_event(H: jax.Array, limit: jax.Array, p: _Path) -> _Path:
    """Follow the path to the next event, where an entry leaves or enters the active set, or to its end."""
    z, sign, _ = p.active
    active = sign != 0
    ids = jnp.arange(limit.shape[0], dtype=jnp.int32)
    dz = p.active.inverse @ jnp.where(active, p.c - limit * sign, 0)
    dc = -(H @ dz)
    dbound = limit - p.bound

    # For each entry the share of the remaining path after which it enters (at either bound) or leaves.
    others = ids != p.last
    enter_up = _time(p.bound - p.c, dc - dbound, ~active & others)
    enter_down = _time(p.bound + p.c, -dc - dbound, ~active & others)
    leave = _time(z * sign, -dz * sign, active & others)
    time = jnp.minimum(jnp.minimum(enter_up, enter_down), leave)
    i = jnp.argmin(time).astype(jnp.int32)
    end = time[i] >= 1
    step = jnp.minimum(time[i], 1)
    z, c = z + step * dz, p.c + step * dc
    bound = jnp.where(active, jnp.abs(c), p.bound + step * dbound)

    leaves, enters = active[i] & ~end, ~active[i] & ~end
    gone = (ids == i) & leaves
    inverse, stale = _exchange(H, p.active, i, leaves, enters)
    # An entry that leaves is set to exactly 0: c changes by H times what rounding has left of the entry.
    c = c + jnp.where(leaves, z[i], 0) * H[i]
    bound = jnp.where(active, bound, jnp.maximum(bound, jnp.abs(c)))
    # Bounds may be raised along the path; with slack no entries can enter and leave in turn without end.
    bound = jnp.where(gone, (1 + BOUND_SLACK) * jnp.abs(c), bound)
    side = jnp.where(enter_up[i] <= enter_down[i], 1, -1).astype(z.dtype)
    sign = jnp.where((ids == i) & enters, side, jnp.where(gone, 0, sign))
    return _Path(
        active=Active(jnp.where(gone, 0, z), sign, inverse),
        c=c,
        bound=bound,
        last=jnp.where(end, -1, i),
        steps=p.steps + 1,
        stale=stale & ~end,
        done=end,
    )


def _exchange(
    H: jax.Array, active: Active, i: jax.Array, leaves: jax.Array, enters: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The inverse after entry i has left or entered, and whether it has lost too many digits.

    The change is u u'/pivot if the entry enters (bordering), and -u u'/u_i if it leaves.
    """
    inverse, dtype, size = active.inverse, H.dtype, H[i, i]
    here = jnp.arange(H.shape[0], dtype=jnp.int32) == i
    h = jnp.where(active.sign != 0, H[i], 0)
    g = inverse @ h
    # The share that `proximal` added to the diagonal is a lower bound of the pivot; less is rounding.
    pivot = jnp.maximum(size - jnp.sum(h * g), _diagonal_share(dtype) / 2 * size)
    row = inverse[i]
    u = jnp.where(leaves, row, here.astype(dtype) - g)
    factor = jnp.where(enters, 1 / jnp.where(enters, pivot, 1), 0)
    factor = jnp.where(leaves, -1 / jnp.where(leaves, row[i], 1), factor)
    inverse = inverse + (factor * u)[:, None] * u[None]
    gone = here & leaves
    inverse = jnp.where(gone[:, None] | gone[None], 0, inverse)
    # A column that nearly depends on the others gives large entries, whose rounding errors remain later.
    ratio = size * jnp.where(leaves, row[i], factor)
    return inverse, ~(ratio < float(np.finfo(dtype).eps) ** -0.3)


def _time(distance: jax.Array, speed: jax.Array, possible: jax.Array) -> jax.Array:
    """The time distance / speed at which a distance is covered; infinite where it never is."""
    return safe_divide(jnp.maximum(distance, 0), jnp.where(possible, speed, 0), jnp.inf)


def renew(H: jax.Array, active: jax.Array, inverse: jax.Array, wrong: jax.Array) -> jax.Array:
    """The inverse on the active set, recomputed if the old one is ``wrong``.

    Sweeps over the active columns (Gauss-Jordan) recompute it, and no sweep is done if the old one is right:
    under vmap the cost arises only if a lane needs it. LAPACK is not called in the loop, since its threads
    would wait for each other.
    """
    mask = active[:, None] & active[None]
    order = jnp.argsort(~active)
    count = jnp.where(wrong, jnp.count_nonzero(active), 0)

    def sweep(step: jax.Array, M: jax.Array) -> jax.Array:
        k = order[step]
        here = jnp.arange(M.shape[0]) == k
        column = M[k]
        scaled = column / column[k]
        edge = jnp.where(here[:, None], scaled[None], scaled[:, None])
        swept = M - column[:, None] * scaled[None]
        swept = jnp.where(here[:, None] | here[None], edge, swept)
        return jnp.where(here[:, None] & here[None], -1 / column[k], swept)

    M = lax.fori_loop(0, count, sweep, jnp.where(wrong, jnp.where(mask, H, 0), -inverse))
    return jnp.where(mask, -M, 0)
