r"""The linear system of the derivative of a solution W, and the Newton steps that first settle its support.

The support holds the entries in which the penalty is smooth (``penalty.smooth_where``). The matrix is the
Hessian of the objective on the support and the identity off it. If few of many features are in the support,
the system is gathered on few features (`_gathered_size`). Preconditioned conjugate gradients solve it. Where
that is cheap, the preconditioner is nearly the inverse; Newton steps then take no conjugate gradients.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import (
    apply_if,
    columns,
    conjugate_gradients,
    eps_of,
    like,
    mask_columns,
    norm,
    safe_norm,
    take,
)
from sparsejax.driver.batching import by_lanes
from sparsejax.driver.curvature import residual_step
from sparsejax.driver.feature_subsets import MAX_BUCKET_FEATURES, chosen, model_of_part
from sparsejax.driver.preconditioners import (
    Product,
    dense_inverse,
    newton_inverse,
    norm_of_rows,
    one_column,
    row_norm_inverse,
    splitting_inverse,
)
from sparsejax.losses import GramLoss, condensed, num_rows
from sparsejax.penalties import by_entry, least_active
from sparsejax.problem import Problem

MAX_DENSE_UNKNOWNS = 256  # entries of W up to which the Hessian is formed and factorised
# If the preconditioner is nearly the inverse, each step of conjugate gradients gains much: `_solution`
# multiplies their tolerance by this factor.
EXACT_INVERSE_TOL_FACTOR = 1e-2
MAX_CG_STEPS = 2000  # conjugate gradient steps for one system
MAX_UNSETTLED_SHARE = 0.1  # largest share of the norm of a derivative on unsettled entries, see `_Settling`
MAX_SETTLING_STEPS = 10  # Newton steps that settle a support
# Steps x + P(b - Ax), with a preconditioner P that is nearly the inverse of A, see `_after_corrections`. In a
# direction of curvature c a step multiplies the error by about s / (c + s), where s is the shift of P.
CORRECTIONS = 4
# Largest share of the norm of a derivative that these steps would not find. They would not find 0.9 of the
# derivative in a direction of curvature c = 0.027 s, since (s / (c + s))^4 = 0.9.
MAX_UNRESOLVED_SHARE = 0.9
# A system is gathered on a multiple of GATHER_TILE_FEATURES, at most on MAX_GATHERED_FEATURES. It is gathered
# on fewer than MIN_GATHERED_FEATURES only if no more are wanted.
GATHER_TILE_FEATURES, MIN_GATHERED_FEATURES, MAX_GATHERED_FEATURES = 64, 256, 512
# Most features for each row of the data: an l2,1 of 15 columns has up to 3.7 active features for each row.
MAX_ROWS_SHARE = 4.0


# ------------------------------------------------------------------ gathered features


def _gathered_size(problem: Problem, W: jax.Array) -> int | None:
    """The number of features on which the system is gathered; None to keep all of them.

    The features wanted are `least_active` plus a share of the number of rows, since few supports are larger.
    The share is 1/2 for each column of W, at most `MAX_ROWS_SHARE`. It is 1 for the single column of
    `newton_inverse`, whose cost follows the support. The sum is rounded up to a multiple of
    `GATHER_TILE_FEATURES`. The result is at most `MAX_GATHERED_FEATURES` and at most half of the features. It
    is None if these bounds leave less than is wanted and less than `MIN_GATHERED_FEATURES`, if the number of
    rows is not known, or if the loss or the penalty cannot be restricted to some features.
    """
    smooth, penalty = problem.smooth, problem.penalty
    n, d, tile = num_rows(smooth), W.shape[0], GATHER_TILE_FEATURES
    if "columns" not in smooth.provides or "sparse rows" not in penalty.provides or n is None:
        return None
    share = 1 if one_column(smooth, W) else min(W.size / d / 2, MAX_ROWS_SHARE)
    wanted = tile * math.ceil(max(least_active(penalty) + share * n, 1) / tile)
    m = min(wanted, MAX_GATHERED_FEATURES, tile * (d // (2 * tile)))
    return m if m >= min(wanted, MIN_GATHERED_FEATURES) else None


def _on_features(problem: Problem, ix: jax.Array) -> Problem:
    """The problem restricted to the features ``ix``; the index d stands for no feature."""
    # `by_entry` makes strengths by column (1, k), so that `rows_at` does not take them for strengths by row.
    smooth, penalty = problem.smooth, by_entry(problem.penalty, problem.smooth.params_shape)
    return problem._replace(smooth=smooth.columns_at(ix), penalty=penalty.rows_at(ix))


def _stored(problem: Problem, m: int) -> tuple[jax.Array | None, int]:
    """The number of stored entries of each feature, and the number for which `_on_features` has room.

    The result is None and 0 if `_on_features` of m features has dense columns.
    """
    smooth, any_features = problem.smooth, jnp.zeros(m, jnp.int32)  # only their number m matters
    sizes_and_room = smooth.quadratic_model().column_sizes
    if sizes_and_room is None:
        return None, 0
    part = model_of_part(smooth, lambda loss: loss.columns_at(any_features))
    return (None, 0) if part.column_sizes is None else sizes_and_room()


def _fits(on: jax.Array, m: int, sizes: jax.Array | None, room: int) -> jax.Array:
    """Whether the features ``on`` are at most m and store at most ``room`` entries, see `_stored`."""
    few = jnp.sum(on) <= m
    return few if sizes is None else few & (jnp.sum(jnp.where(on, sizes, 0)) <= room)


# ------------------------------------------------------------------ the system


class _System(NamedTuple):
    """The system whose matrix is the Hessian on the support and the identity off it."""

    gradient: jax.Array  # of the objective, in the shape of W, 0 off the support
    matvec: Product
    precondition: Product
    exact: bool  # whether the preconditioner is nearly the inverse


def _gradient_and_matrix(problem: Problem, W: jax.Array, mask: jax.Array) -> tuple[jax.Array, Product]:
    """The gradient of the objective, on and off the support, and the products with the matrix."""
    G, hessian = jax.linearize(jax.grad(problem), W)
    return G, lambda V: mask * hessian(mask * V) + (1 - mask) * V


def _system(problem: Problem, W: jax.Array, mask: jax.Array) -> _System:
    """The system at W, with the cheapest preconditioner that the loss and the penalty allow."""
    smooth, penalty = problem.smooth, problem.penalty
    by_newton = MAX_DENSE_UNKNOWNS < W.size <= MAX_GATHERED_FEATURES and one_column(smooth, W)
    # With `newton_inverse` a solve takes so few products with the Hessian that it does not pay to form A'A.
    cheap = smooth if by_newton else condensed(smooth)  # has the same Hessian and cheaper products
    G, matvec = _gradient_and_matrix(problem._replace(smooth=cheap), W, mask)
    # Any symmetric positive definite preconditioner gives the same derivative, in more or fewer steps.
    if by_newton:
        return _System(mask * G, matvec, newton_inverse(smooth, penalty, W, mask), True)
    if W.size <= MAX_DENSE_UNKNOWNS:
        return _System(mask * G, matvec, dense_inverse(matvec, W), True)
    model = smooth.quadratic_model()
    if model.majorizer is None:
        return _System(mask * G, matvec, lambda R: R, False)  # no bound of the Hessian: the identity
    gram = cheap.G if isinstance(cheap, GramLoss) else None
    d, several_columns = W.shape[0], W.size > W.shape[0]
    row_norm = norm_of_rows(smooth, penalty, W) if several_columns else None
    if row_norm is not None and d <= MAX_BUCKET_FEATURES and model.exact:
        return _System(mask * G, matvec, row_norm_inverse(smooth, gram, row_norm, W, mask), True)
    return _System(mask * G, matvec, splitting_inverse(smooth, gram, penalty, W, mask), False)


def solve_on_support(
    problem: Problem, W: jax.Array, mask: jax.Array, rhs: jax.Array, measure: jax.Array, unsettled: jax.Array
) -> jax.Array:
    """Solve the system at W for ``rhs``; the result is linear in ``rhs`` and can be differentiated again.

    Args:
      problem: the problem, whose Hessian at W is the matrix on the support.
      W: the solution.
      mask: 1 on the support and 0 off it, in the shape and dtype of W.
      rhs: the right-hand side, in the shape of W. Off the support the result is equal to it.
      measure: gap or residual of the solution, from which the accuracy follows (`accurate`).
      unsettled: boolean, in the shape of W: the entries that may still leave the support.

    Returns:
      The solution of the system, in the shape of W. It is NaN, on the support at least, if the solve fails,
      or if `MAX_UNSETTLED_SHARE` or `MAX_UNRESOLVED_SHARE` is exceeded.
    """
    _, matvec = _gradient_and_matrix(problem, W, mask)
    fixed = lax.stop_gradient((problem, W, mask, measure, unsettled))
    return lax.custom_linear_solve(matvec, rhs, lambda _, b: _solutions(*fixed, b), symmetric=True)


def _solution(
    problem: Problem, W: jax.Array, mask: jax.Array, measure: jax.Array, unsettled: jax.Array, b: jax.Array
) -> jax.Array:
    """`solve_on_support` for b, without derivatives; on `_gathered_size` features if these suffice."""

    def solved(problem: Problem, W: jax.Array, mask: jax.Array, b: jax.Array) -> jax.Array:
        system = _system(problem, W, mask)
        # The tol of `accurate` is in proportion to the root of the measure, so the measure gets the square of
        # the factor. The one or two more steps cost little compared with the factorisation.
        finer = EXACT_INVERSE_TOL_FACTOR**2 if system.exact else 1
        x = accurate(system.matvec, b, system.precondition, measure * finer)
        if not system.exact:
            return x
        # With b = 0 the corrections give (I - PA)^CORRECTIONS x, P the preconditioner: the part of x in
        # directions whose curvature is far below the shift of P. The Newton steps make the same corrections
        # (`_newton_step`), and have not settled these directions: if they hold most of x, x is not known.
        unresolved = _after_corrections(system, x, jnp.zeros_like(x))
        return jnp.where(norm(unresolved) > MAX_UNRESOLVED_SHARE * norm(x), jnp.nan, x)

    m = _gathered_size(problem, W)
    if m is None:
        x = solved(problem, W, mask, b)
    else:
        on = jnp.any(columns(mask) > 0, axis=0)
        (ix,) = jnp.nonzero(on, size=m, fill_value=W.shape[0])
        fits = _fits(on, m, *_stored(problem, m))

        def on_gathered(_: Any) -> jax.Array:
            x = solved(_on_features(problem, ix), *(take(a, ix, 0) for a in (W, mask, b)))
            # Off the support the matrix is the identity, so that x = b.
            return jnp.where(mask > 0, jnp.zeros_like(W).at[ix].add(x, mode="drop"), b)

        x = apply_if(fits, on_gathered, jnp.zeros_like(b))
        x = apply_if(~fits, lambda _: solved(problem, W, mask, b), x)
    # An unsettled entry may leave the support; its derivative would then be 0. NaN if such entries matter.
    lost = norm(jnp.where(unsettled, mask * x, 0)) > MAX_UNSETTLED_SHARE * norm(x)
    return jnp.where(lost, jnp.nan, x)


_solutions = by_lanes(_solution)  # the same function with a rule for `jax.vmap`


def accurate(matvec: Product, b: jax.Array, precondition: Product, measure: jax.Array) -> jax.Array:
    """The solution of ``matvec(x) = b`` by conjugate gradients, about as accurate as W; NaN if they fail.

    ``measure`` is the gap of W, or the residual of W if no gap is known.
    """
    eps = eps_of(b)
    # A gap is quadratic in the distance to the solution: its root is the accuracy that W has. A residual is
    # treated in the same way. Below 8 eps there is only rounding.
    tol = jnp.clip(3e-2 * jnp.sqrt(measure), max(1e-11, 8 * eps), 1e-4).astype(b.dtype)
    # ``confirmed``: r is b - Ax itself, not the r of the recurrence, which may have drifted from b - Ax.
    x, r = conjugate_gradients(matvec, b, precondition, tol, MAX_CG_STEPS, confirmed=True)
    # Rounding errors may keep r above tol: a residual up to sqrt(eps) or 10 tol, relative to b, is accepted.
    failed = ~(norm(r) <= jnp.maximum(eps**0.5, 10 * tol) * norm(b))
    return jnp.where(failed, jnp.nan, x)


# ------------------------------------------------------------------ settling the support


class _Settling(NamedTuple):
    """The state of the loop in `_settle`."""

    W: jax.Array
    # Boolean, in the shape of W: entries of the support before the last Newton step that left the support by
    # crossing 0 in this step, or whose row the step changed by more than half. Entries that would be on the
    # support at 0 too are never unsettled.
    unsettled: jax.Array
    first: jax.Array  # ``unsettled`` after the first step: the result if the steps raise the objective
    more: jax.Array  # () boolean, whether another step follows
    number: jax.Array  # () int32, the number of the next step, from 1


def _settle(problem: Problem, W: jax.Array) -> tuple[jax.Array, jax.Array]:
    """W after Newton steps that settle its support, and the entries that are still unsettled (`_Settling`).

    The steps end when no entry is unsettled and the support stays the same, or after `MAX_SETTLING_STEPS`. If
    an entry that a step moves across 0 is not in the support when set to 0, it becomes 0. If the penalty has
    one term, a proximal step after each Newton step brings in entries that should not be 0. The objective may
    rise from step to step. If it is higher at the end than at the start, the result is the given W, with the
    entries that are unsettled after the first step.
    """
    penalty, step, eps = problem.penalty, residual_step(problem.smooth, W), eps_of(W)
    always = penalty.smooth_where(jnp.zeros_like(W))  # on the support at any value: no kink at 0

    def body(c: _Settling) -> _Settling:
        support = penalty.smooth_where(c.W)
        system = _system(problem, c.W, support.astype(W.dtype))
        D = _newton_step(system, eps)
        V = c.W - D
        same_sign = jnp.where(V * c.W > 0, V, 0)  # V with 0 for the entries that cross 0
        stays = penalty.smooth_where(same_sign)  # the support of that point
        moved = support & (~stays | _in_changed_rows(c.W, D))
        unsettled = moved & ~always
        V = jnp.where(stays, V, same_sign)
        if len(penalty.terms) == 1:  # the joint prox of several terms may be iterative
            V = penalty.prox(V - step * jax.grad(problem.smooth)(V), step)
        changed = jnp.any(moved) | jnp.any(penalty.smooth_where(V) != support)
        first = jnp.where(c.number == 1, unsettled, c.first)
        return _Settling(V, unsettled, first, changed & (c.number < MAX_SETTLING_STEPS), c.number + 1)

    none = jnp.zeros(W.shape, bool)
    start = _Settling(W, none, none, jnp.ones((), bool), jnp.int32(1))
    end = lax.while_loop(lambda c: c.more, body, start)
    before = problem(W)
    falls = problem(end.W) <= before + 8 * eps * jnp.abs(before)  # 8 eps: rounding of the two values
    return jnp.where(falls, end.W, W), jnp.where(falls, end.unsettled, end.first)


def _newton_step(system: _System, eps: float) -> jax.Array:
    """The solution D of the system for the gradient as its right-hand side: Newton's method goes to W - D.

    If the preconditioner is nearly the inverse, `_after_corrections` of D = 0 suffices. In directions where
    the matrix is singular, the gradient may be rounding error. Conjugate gradients would divide this by a
    curvature near 0, and such a step may have any length.
    """
    b = system.gradient
    if not system.exact:
        return conjugate_gradients(system.matvec, b, system.precondition, eps**0.5, MAX_CG_STEPS)[0]
    return _after_corrections(system, jnp.zeros_like(b), b)


def _after_corrections(system: _System, x: jax.Array, b: jax.Array) -> jax.Array:
    """x after `CORRECTIONS` steps x + P(b - Ax), with A the matrix and P the preconditioner of the system."""
    correct = lambda _, x: x + system.precondition(b - system.matvec(x))
    return lax.fori_loop(0, CORRECTIONS, correct, x)


def _in_changed_rows(W: jax.Array, D: jax.Array) -> jax.Array:
    """Boolean, in the shape of W: entries of nonzero rows that the step W - D changes by more than half."""
    Wt = columns(W)
    rows = (2 * safe_norm(columns(D)) > safe_norm(Wt)) & jnp.any(Wt != 0, axis=0)
    return like(jnp.broadcast_to(rows, Wt.shape), W)


def _settled(problem: Problem, W: jax.Array, measure: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`_settle` on `_gathered_size` features, or on all of them if that is None.

    If the support has more features than that, or if the measure is at rounding error, the result is W itself
    with no unsettled entry.
    """
    m = _gathered_size(problem, W)
    nothing = W, jnp.zeros(W.shape, bool)
    due = measure > 8 * eps_of(W)  # else the gap or residual is rounding error
    if m is None:
        return apply_if(due, lambda _: _settle(problem, W), nothing)
    on = jnp.any(mask_columns(problem.penalty.smooth_where(W)), axis=0)
    sizes, room = _stored(problem, m)
    fits = _fits(on, m, sizes, room)

    def on_gathered(_: Any) -> tuple[jax.Array, jax.Array]:
        # The features of the support, and of the others those that are nearest to entering it.
        slopes = problem.penalty.row_slopes(-jax.grad(problem.smooth)(W), W)
        ix = chosen(on, slopes, m, m, sizes, room)
        near, unsettled = _settle(_on_features(problem, ix), take(W, ix, 0))
        # All other features are off the support, where W is 0.
        # mypy does not know the length of a tuple from a generator.
        return tuple(jnp.zeros(W.shape, a.dtype).at[ix].set(a, mode="drop") for a in (near, unsettled))  # type: ignore[return-value]

    return apply_if(due & fits, on_gathered, nothing)


# ``settled(problem, W, measure)``: `_settled` with a rule for `jax.vmap`. It returns the point after the
# Newton steps, or W, and a boolean array of the entries that are still unsettled.
settled = by_lanes(_settled)
