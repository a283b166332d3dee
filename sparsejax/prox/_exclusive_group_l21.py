r"""The prox of the exclusive group l2,1 penalty over groups of rows, disjoint or overlapping.

.. math:: \operatorname*{argmin}_U \tfrac12\|U-V\|_F^2
          + \sum_g a_g \big(\textstyle\sum_{i\in g}\|u_i\|_2\big)^2 .

Rows keep their directions; their norms r solve, with :math:`\rho_i = \|v_i\|_2`,
:math:`K = M\operatorname{diag}(a)M^\top` (M the memberships) and :math:`H = I + 2K`,

.. math:: \min_{r \ge 0}\; \tfrac12 r^\top H r - \rho^\top r ,

A semismooth Newton method minimises the dual function
:math:`\phi(v) = \tfrac12\|(\rho - 2Kv)_+\|^2 + v^\top K v`. Let A be the rows in which
:math:`\rho - 2Kv > 0`. The next point solves :math:`H_{AA} v_A = \rho_A` and is 0 in the other rows. When A
repeats, the point is the exact answer. For disjoint groups the linear systems have a closed form, and A only
shrinks.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.linalg import (
    columns,
    conjugate_gradients,
    eps_of,
    like,
    norm,
    safe_divide,
    safe_norm,
    unit_of,
)
from sparsejax.groups import Groups, check_groups
from sparsejax.prox._arguments import factor, floating

MAX_NEWTON_STEPS = 30  # 1 to 4 are usual
MAX_CG_STEPS = 500  # conjugate gradient steps in each Newton step


def exclusive_group_l21(
    V: jax.Array, alpha: ArrayLike, groups: Groups, scaling: ArrayLike = 1.0
) -> jax.Array:
    r"""The prox of :math:`g(U) = \sum_g \alpha_g (\sum_{i\in g}\|u_i\|_2)^2`, all rows at once.

    Rows keep their directions. Their norms solve a nonnegative quadratic programme, by a semismooth Newton
    method that ends at the exact answer. For disjoint groups its linear systems have a closed form. For
    overlapping groups, one alpha for all and at most 1024 features it uses a Cholesky factorisation of d x d;
    else conjugate gradients, whose steps take time proportional to the number of memberships.

    Args:
      V: floating, (d, k), or (d,) for rows of one entry.
      alpha: >= 0, shape () or (G,), one for each group.
      groups: `sparsejax.groups.Groups` of d features; rows in no group are not changed.
      scaling: step size multiplying the penalty, >= 0, shape ().

    Returns:
      U, shape and dtype of ``V``.

    Raises:
      TypeError, ValueError: ``groups`` is not a `Groups`; ``V`` is not floating or does not have d rows;
        alpha or scaling is negative or of another shape.
    Source: Kong et al., AAAI 2016, Eq. (2) for the penalty; their Eq. (19) computes the prox by reweighting.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> groups = sj.groups.from_lists([[0, 1]], num_features=3)
    >>> print(sj.prox.exclusive_group_l21(jnp.array([3.0, 0.5, 1.0]), 0.5, groups))
    [1.5 0.  1. ]
    """
    name = "exclusive_group_l21"
    check_groups(groups)
    V = floating(name, "V", V)
    if V.ndim not in (1, 2) or V.shape[0] != groups.num_features:
        raise ValueError(
            f"prox.{name}: V has shape {V.shape}; it must have {groups.num_features} rows, as groups has "
            "features."
        )
    strength = factor(name, "alpha", alpha, V, (0, 1)) * factor(name, "scaling", scaling, V)
    groups.check(f"prox.{name}", strength, V.shape)
    unit, _ = unit_of(V)  # squares of V neither overflow nor underflow; the prox of cV is c times that of V
    U, _ = exclusive_group_l21_columns(columns(V / unit), strength, groups, None)
    return unit * like(U, V)


class Warm(NamedTuple):
    """Results of a call that make the next call with a similar argument cheaper."""

    active: jax.Array  # (d,) bool, the rows A of the last Newton point
    factor: jax.Array  # (d, d), Cholesky factor of H on A; (0, 0) if H is not factorised
    strength: jax.Array  # shape of strength, the strength for which factor was computed; NaN: not valid
    v: jax.Array  # (d,), the last Newton point


def exclusive_group_l21_start(rho: jax.Array, strength: jax.Array, groups: Groups) -> Warm:
    """The `Warm` of a first call."""
    size = rho.shape[0] if _dense(strength, groups) else 0
    unknown = jnp.full(jnp.shape(strength), jnp.nan, rho.dtype)
    return Warm(rho > 0, jnp.zeros((size, size), rho.dtype), unknown, jnp.zeros_like(rho))


class _Carry(NamedTuple):
    active: jax.Array  # (d,) bool, the rows A of the next Newton step
    v: jax.Array  # (d,), the point
    Kv: jax.Array  # (d,), K v
    factor: jax.Array  # Cholesky factor of H on the rows of the last step
    done: jax.Array  # () bool: v is the answer
    n: jax.Array  # () int32, steps so far


@jax.jit  # without jit an eager call would compile the loops every time
def shrink_warm(rho: jax.Array, strength: jax.Array, groups: Groups, warm: Warm) -> tuple[jax.Array, Warm]:
    """The norms r (d,) and the `Warm` for the next call; ``strength`` () or (G,) includes the step size."""
    diagonal = _diagonal(strength, groups)

    def newton_point(active: jax.Array, factor: jax.Array, guess: jax.Array) -> tuple[jax.Array, ...]:
        """v with H_AA v_A = rho_A on the active rows A, Kv, and whether A repeats there: v is then exact."""
        new = _solve(active, rho, strength, groups, factor, guess)
        K_new = _product(new, strength, groups)
        return new, K_new, _repeats(active, new, K_new, rho, diagonal)

    v, Kv, done = warm.v, jnp.zeros_like(rho), jnp.zeros((), bool)
    if _dense(strength, groups):
        # With the same A and strength, the last factor gives the answer in one solve.
        v, Kv, repeats = newton_point(warm.active, warm.factor, v)
        done = (warm.strength == strength) & repeats

    def body(c: _Carry) -> _Carry:
        factor = _factor(c.active, strength, groups, rho.dtype)
        new, K_new, repeats = newton_point(c.active, factor, c.v)
        # The method starts from v = 0; the guess of the first step is for the linear solver only.
        first = c.n == 0
        v, Kv = jnp.where(first, 0, c.v), jnp.where(first, 0, c.Kv)
        D, KD = new - v, K_new - Kv
        t = _step_length(v, Kv, D, KD, rho)
        v, Kv = jnp.where(t == 1, new, v + t * D), jnp.where(t == 1, K_new, Kv + t * KD)
        done = (t == 1) & repeats
        active = jnp.where(done, c.active, rho - 2 * Kv > 0)
        return _Carry(active, v, Kv, factor, done, c.n + 1)

    carry = _Carry(warm.active, v, Kv, warm.factor, done, jnp.int32(0))
    c = lax.while_loop(lambda c: ~c.done & (c.n < MAX_NEWTON_STEPS), body, carry)
    made_for = jnp.where(c.done, strength, jnp.full_like(strength, jnp.nan))
    return jnp.maximum(c.v, 0), Warm(c.active, c.factor, made_for, c.v)


def _repeats(
    active: jax.Array, v: jax.Array, Kv: jax.Array, rho: jax.Array, diagonal: jax.Array
) -> jax.Array:
    """Whether the Newton point v of the active rows has the same active rows, up to rounding."""
    # Rounding decides on a row at the boundary: such a row passes if |min(v_i, (Hv - rho)_i / H_ii)|, its
    # violation of the optimality conditions v >= 0, Hv >= rho, v'(Hv - rho) = 0, is of the size of rounding.
    violation = jnp.abs(jnp.minimum(v, (v + 2 * Kv - rho) / diagonal))
    top = jnp.max(rho, initial=0)
    rounding = 4 * eps_of(v) * (jnp.max(jnp.abs(v), initial=0) + top / diagonal)
    return jnp.all(((rho - 2 * Kv > 0) == active) | (violation <= rounding))


def _step_length(v: jax.Array, Kv: jax.Array, D: jax.Array, KD: jax.Array, rho: jax.Array) -> jax.Array:
    """The first of 1, 1/2, ..., 2^-20 at which phi decreases enough from v along D (Armijo), or the last."""

    def phi(v: jax.Array, Kv: jax.Array) -> jax.Array:
        return 0.5 * jnp.sum(jnp.maximum(rho - 2 * Kv, 0) ** 2) + jnp.sum(v * Kv)

    slope = 2 * jnp.sum((v - jnp.maximum(rho - 2 * Kv, 0)) * KD)
    value = phi(v, Kv)
    rounding = 4 * eps_of(v) * value

    def too_long(t: jax.Array) -> jax.Array:
        return ~(phi(v + t * D, Kv + t * KD) <= value + 1e-4 * t * slope + rounding) & (t > 1e-6)

    return lax.while_loop(too_long, lambda t: t / 2, jnp.ones((), v.dtype))


@jax.custom_jvp
def shrink(rho: jax.Array, strength: jax.Array, groups: Groups) -> jax.Array:
    """The norms r (d,), without a warm start; differentiable."""
    return shrink_warm(rho, strength, groups, exclusive_group_l21_start(rho, strength, groups))[0]


@shrink.defjvp
def _shrink_jvp(
    primals: tuple[jax.Array, jax.Array, Groups], tangents: tuple[jax.Array, jax.Array, Any]
) -> tuple[jax.Array, jax.Array]:
    # On the rows A with r > 0: H_AA dr_A = (drho - 2 dK r)_A; dr is 0 elsewhere.
    rho, strength, groups = primals
    drho, dstrength, _ = tangents
    r = shrink(rho, strength, groups)
    active = r > 0
    rhs = jnp.where(active, drho - 2 * groups.spread(dstrength * groups.sums(r)), 0)

    def matvec(x: jax.Array) -> jax.Array:
        product = _product(jnp.where(active, x, 0), strength, groups)
        return x + jnp.where(active, 2 * product, 0)

    def solve(_: Any, b: jax.Array) -> jax.Array:
        factor = _factor(active, strength, groups, rho.dtype)
        return jnp.where(active, _solve(active, b, strength, groups, factor, jnp.zeros_like(b)), b)

    return r, lax.custom_linear_solve(matvec, rhs, solve, symmetric=True)


def exclusive_group_l21_columns(
    Vt: jax.Array, strength: jax.Array, groups: Groups, warm: Warm | None
) -> tuple[jax.Array, Warm | None]:
    """The prox of Vt (k, d), the transpose of V, and the next warm start, or None if ``warm`` is None."""
    rho = safe_norm(Vt)
    if warm is None:
        r = shrink(rho, strength, groups)
    else:
        r, warm = shrink_warm(rho, strength, groups, warm)
    # Where a row of V is 0, the prox is 0. The derivative there is 0 if another row of its groups is not 0;
    # else it is the factor by which the prox shrinks a row that is alone in its groups.
    alone = 1 / _diagonal(strength, groups)
    competes = groups.spread(strength * groups.sums(r)) > 0
    ratio = safe_divide(r, rho, jnp.where(competes, 0, alone))
    return Vt * ratio[None], warm


def _dense(strength: jax.Array, groups: Groups) -> bool:
    """Whether H is factorised as a (d, d) matrix."""
    return not groups.disjoint and groups.common.shape[0] > 0 and jnp.ndim(strength) == 0


def _product(v: jax.Array, strength: jax.Array, groups: Groups) -> jax.Array:
    """K v."""
    if _dense(strength, groups):
        return strength * (groups.common.astype(v.dtype) @ v)
    return groups.spread(strength * groups.sums(v))


def _diagonal(strength: jax.Array, groups: Groups) -> jax.Array:
    """The diagonal of H, (d,)."""
    return 1 + 2 * groups.spread(jnp.broadcast_to(strength, (groups.num_groups,)))


def _factor(active: jax.Array, strength: jax.Array, groups: Groups, dtype: np.dtype) -> jax.Array:
    """The Cholesky factor of H on the active rows and the identity elsewhere, (d, d); or (0, 0)."""
    if not _dense(strength, groups):
        return jnp.zeros((0, 0), dtype)
    d = groups.num_features
    on = active.astype(dtype)
    H = 2 * strength * groups.common.astype(dtype) * (on[:, None] * on[None])
    # At huge strengths the identity in H = I + 2K is lost to rounding, and K may be singular: add a shift.
    shift = d * eps_of(H) * jnp.max(jnp.diagonal(H), initial=0)
    return jnp.linalg.cholesky(H + (1 + shift) * jnp.eye(d, dtype=dtype), symmetrize_input=False)


def _solve(
    active: jax.Array, b: jax.Array, strength: jax.Array, groups: Groups, factor: jax.Array, guess: jax.Array
) -> jax.Array:
    """The solution of H_AA x_A = b_A on the active rows A, 0 elsewhere, (d,)."""
    b = jnp.where(active, b, 0)
    if groups.disjoint:
        return _solve_disjoint(active, b, strength, groups)

    def matvec(x: jax.Array) -> jax.Array:
        return x + jnp.where(active, 2 * _product(x, strength, groups), 0)

    if _dense(strength, groups):
        x = jax.scipy.linalg.cho_solve((factor, True), b)
        # One step of iterative refinement removes the effect of the shift in the factor.
        return jnp.where(active, x + jax.scipy.linalg.cho_solve((factor, True), b - matvec(x)), 0)
    diagonal = _diagonal(strength, groups)
    smallest = 2 * eps_of(b) * norm(b)

    def refine(_: Any, x: jax.Array) -> jax.Array:
        residual = b - matvec(x)
        tol = smallest / jnp.maximum(norm(residual), jnp.where(smallest > 0, smallest, 1))
        return x + conjugate_gradients(matvec, residual, lambda r: r / diagonal, tol, MAX_CG_STEPS)[0]

    # Twice: at large strengths the residual of the recurrence drifts from the true one.
    return lax.fori_loop(0, 2, refine, jnp.where(active, guess, 0))


def _solve_disjoint(active: jax.Array, b: jax.Array, strength: jax.Array, groups: Groups) -> jax.Array:
    """x_i = (b_i + 2 a sum_j (b_i - b_j)) / (1 + 2 a count), sum and count over the active rows of the group.

    The sum is computed from the differences between each b_j and the largest, so that nothing cancels at huge
    strengths.
    """
    on = active.astype(b.dtype)
    top = groups.maxima(jnp.where(active, b, -jnp.inf))
    below = jnp.where(active, groups.spread(jnp.where(jnp.isfinite(top), top, 0)) - b, 0)
    count = groups.sums(on)
    twice = 2 * groups.spread(jnp.broadcast_to(strength, (groups.num_groups,)))
    excess = groups.spread(groups.sums(below)) - groups.spread(count) * below
    return jnp.where(active, (b + twice * excess) / (1 + twice * groups.spread(count)), 0)
