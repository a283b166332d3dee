r"""The linear system of a derivative, and the Newton steps that settle the support before it is solved.

The matrix is the Hessian on the support and the identity off it. If few of many features are in the support,
the system is gathered on few features (`_gathered_size`). Conjugate gradients solve it, preconditioned by the
inverse itself where that is cheap.
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
from sparsejax.driver.feature_subsets import MAX_BUCKET_FEATURES, chosen
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
EXACT_INVERSE_TOL_FACTOR = 1e-2  # of tol, if the preconditioner is nearly the inverse: each step gains much
MAX_CG_STEPS = 2000
MAX_UNSETTLED_SHARE = 0.1  # of the norm of a derivative, on entries that may still leave the support
MAX_SETTLING_STEPS = 10  # Newton steps that settle a support
CORRECTIONS = 4  # of a Newton step, by a preconditioner that is nearly the inverse
MAX_UNRESOLVED_SHARE = 0.9  # of the norm of a derivative, that these corrections would not find
# A system is gathered on a multiple of GATHER_TILE_FEATURES, at most on MAX_GATHERED_FEATURES. It is gathered
# on fewer than MIN_GATHERED_FEATURES only if no more are wanted.
GATHER_TILE_FEATURES, MIN_GATHERED_FEATURES, MAX_GATHERED_FEATURES = 64, 256, 512


# ------------------------------------------------------------------ gathered features


def _gathered_size(problem: Problem, W: jax.Array) -> int | None:
    """The number of features on which the system is gathered; None to keep all of them.

    It is half the number of rows of the data, since few supports are larger, or all rows if the cost follows
    the support (`newton_inverse`); but at most half of the features, and at most `MAX_GATHERED_FEATURES`.
    """
    smooth, penalty = problem.smooth, problem.penalty
    n, d, T = num_rows(smooth), W.shape[0], GATHER_TILE_FEATURES
    if "columns" not in smooth.provides or "sparse rows" not in penalty.provides or n is None:
        return None
    share = 1 if one_column(smooth, W) else 0.5
    wanted = T * math.ceil(max(least_active(penalty) + share * n, 1) / T)
    m = min(wanted, MAX_GATHERED_FEATURES, T * (d // (2 * T)))
    return m if m >= min(wanted, MIN_GATHERED_FEATURES) else None


def _on_features(problem: Problem, ix: jax.Array) -> Problem:
    """The problem restricted to the features ``ix``; the index d stands for no feature."""
    smooth, penalty = problem.smooth, by_entry(problem.penalty, problem.smooth.params_shape)
    return problem._replace(smooth=smooth.columns_at(ix), penalty=penalty.rows_at(ix))


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
    by_tiles = MAX_DENSE_UNKNOWNS < W.size <= MAX_GATHERED_FEATURES and one_column(smooth, W)
    # `newton_inverse` leaves two or three products with the Hessian, for which no A'A need be formed.
    cheap = smooth if by_tiles else condensed(smooth)  # has the same Hessian and cheaper products
    G, matvec = _gradient_and_matrix(problem._replace(smooth=cheap), W, mask)
    # Any symmetric positive definite preconditioner gives the same derivative, in more or fewer steps.
    if by_tiles:
        return _System(mask * G, matvec, newton_inverse(smooth, penalty, W, mask), True)
    if W.size <= MAX_DENSE_UNKNOWNS:
        return _System(mask * G, matvec, dense_inverse(matvec, W), True)
    model = smooth.quadratic_model()
    if model.majorizer is None:
        return _System(mask * G, matvec, lambda R: R, False)
    gram = cheap.G if isinstance(cheap, GramLoss) else None
    d, several = W.shape[0], W.size > W.shape[0]
    rows = norm_of_rows(smooth, penalty, W) if several else None
    if rows is not None and d <= MAX_BUCKET_FEATURES and model.exact:
        return _System(mask * G, matvec, row_norm_inverse(smooth, gram, rows, W, mask), True)
    return _System(mask * G, matvec, splitting_inverse(smooth, gram, penalty, W, mask), False)


def solve_on_support(
    problem: Problem, W: jax.Array, mask: jax.Array, rhs: jax.Array, measure: jax.Array, unsettled: jax.Array
) -> jax.Array:
    """Solve the system at W for ``rhs``; the result is linear in ``rhs`` and can be differentiated again.

    Args:
      problem: the problem, whose Hessian at W is the matrix on the support.
      W: the solution.
      mask: 1 on the support and 0 off it, in the shape and dtype of W.
      rhs: the right-hand side, in the shape of W.
      measure: gap or residual of the solution, from which the accuracy follows (`accurate`).
      unsettled: boolean, the entries that may still leave the support.

    Returns:
      The shape of W; NaN where the solve fails, or `MAX_UNSETTLED_SHARE` or `MAX_UNRESOLVED_SHARE` is
      exceeded.
    """
    _, matvec = _gradient_and_matrix(problem, W, mask)
    fixed = lax.stop_gradient((problem, W, mask, measure, unsettled))
    return lax.custom_linear_solve(matvec, rhs, lambda _, b: _solutions(*fixed, b), symmetric=True)


def _solution(
    problem: Problem, W: jax.Array, mask: jax.Array, measure: jax.Array, unsettled: jax.Array, b: jax.Array
) -> jax.Array:
    """`solve_on_support` without derivatives, on the support's features alone where they fit."""

    def solved(problem: Problem, W: jax.Array, mask: jax.Array, b: jax.Array) -> jax.Array:
        system = _system(problem, W, mask)
        # `accurate` takes the root of the measure, hence the square. One or two more steps cost little
        # compared with the factorisation.
        finer = EXACT_INVERSE_TOL_FACTOR**2 if system.exact else 1
        x = accurate(system.matvec, b, system.precondition, measure * finer)
        if not system.exact:
            return x
        # What corrections leave of x lies where the curvature is far below the shift of the preconditioner.
        # If that is most of x, the Newton steps have not settled these directions either.
        left = _after_corrections(system, x, jnp.zeros_like(x))
        return jnp.where(norm(left) > MAX_UNRESOLVED_SHARE * norm(x), jnp.nan, x)

    m = _gathered_size(problem, W)
    if m is None:
        x = solved(problem, W, mask, b)
    else:
        on = jnp.any(columns(mask) > 0, axis=0)
        (ix,) = jnp.nonzero(on, size=m, fill_value=W.shape[0])
        fits = jnp.sum(on) <= m

        def some(_: Any) -> jax.Array:
            x = solved(_on_features(problem, ix), *(take(a, ix, 0) for a in (W, mask, b)))
            return jnp.where(mask > 0, jnp.zeros_like(W).at[ix].add(x, mode="drop"), b)

        x = apply_if(fits, some, jnp.zeros_like(b))
        x = apply_if(~fits, lambda _: solved(problem, W, mask, b), x)
    lost = norm(jnp.where(unsettled, mask * x, 0)) > MAX_UNSETTLED_SHARE * norm(x)
    return jnp.where(lost, jnp.nan, x)


_solutions = by_lanes(_solution)


def accurate(matvec: Product, b: jax.Array, precondition: Product, measure: jax.Array) -> jax.Array:
    """The solution of ``matvec(x) = b``, as accurate as the certificate ``measure`` of W; NaN if CG fails."""
    eps = eps_of(b)
    # A gap is quadratic in the distance to the solution: its root is the accuracy that W has.
    tol = jnp.clip(3e-2 * jnp.sqrt(measure), max(1e-11, 8 * eps), 1e-4).astype(b.dtype)
    x, r = conjugate_gradients(matvec, b, precondition, tol, MAX_CG_STEPS, confirmed=True)
    failed = ~(norm(r) <= jnp.maximum(eps**0.5, 10 * tol) * norm(b))
    return jnp.where(failed, jnp.nan, x)


# ------------------------------------------------------------------ settling the support


class _Settling(NamedTuple):
    W: jax.Array
    # Boolean, in the shape of W: entries that the last Newton step moved across 0, or whose row it changed by
    # more than half.
    unsettled: jax.Array
    first: jax.Array  # ``unsettled`` after the first step
    more: jax.Array  # () boolean, whether another step follows
    number: jax.Array  # () int32, the number of the next step, from 1


def _settle(problem: Problem, W: jax.Array) -> tuple[jax.Array, jax.Array]:
    """W after Newton steps until one does not change the support, and the entries that are unsettled then.

    An entry that a step moves across 0 becomes 0. A proximal step after each Newton step brings in entries
    that should not be 0. The objective may rise from step to step; if it is higher at the end than at the
    start, the result is the given W.
    """
    penalty, step, eps = problem.penalty, residual_step(problem.smooth, W), eps_of(W)

    def body(c: _Settling) -> _Settling:
        support = penalty.smooth_where(c.W)
        system = _system(problem, c.W, support.astype(W.dtype))
        D = _newton_step(system, eps)
        V = c.W - D
        same_sign = jnp.where(V * c.W > 0, V, 0)
        stays = penalty.smooth_where(same_sign)
        unsettled = support & (~stays | _in_changed_rows(c.W, D))
        V = jnp.where(stays, V, same_sign)
        if len(penalty.terms) == 1:  # the joint prox of several terms may be iterative
            V = penalty.prox(V - step * jax.grad(problem.smooth)(V), step)
        changed = jnp.any(unsettled) | jnp.any(penalty.smooth_where(V) != support)
        first = jnp.where(c.number == 1, unsettled, c.first)
        return _Settling(V, unsettled, first, changed & (c.number < MAX_SETTLING_STEPS), c.number + 1)

    none = jnp.zeros(W.shape, bool)
    start = _Settling(W, none, none, jnp.ones((), bool), jnp.int32(1))
    end = lax.while_loop(lambda c: c.more, body, start)
    before = problem(W)
    falls = problem(end.W) <= before + 8 * eps * jnp.abs(before)  # 8 eps: rounding of the two values
    return jnp.where(falls, end.W, W), jnp.where(falls, end.unsettled, end.first)


def _newton_step(system: _System, eps: float) -> jax.Array:
    """The solution of the system for its gradient.

    If the preconditioner is nearly the inverse, a few corrections by it suffice. Conjugate gradients would go
    on to the rounding errors in directions where the matrix is singular, by steps of any length.
    """
    b = system.gradient
    if not system.exact:
        return conjugate_gradients(system.matvec, b, system.precondition, eps**0.5, MAX_CG_STEPS)[0]
    return _after_corrections(system, jnp.zeros_like(b), b)


def _after_corrections(system: _System, x: jax.Array, b: jax.Array) -> jax.Array:
    """x after `CORRECTIONS` of its residual b - Ax, each by the preconditioner."""
    correct = lambda _, x: x + system.precondition(b - system.matvec(x))
    return lax.fori_loop(0, CORRECTIONS, correct, x)


def _in_changed_rows(W: jax.Array, D: jax.Array) -> jax.Array:
    """Boolean, in the shape of W: the entries of rows whose norm is less than twice that of D's row."""
    Wt = columns(W)
    rows = (2 * safe_norm(columns(D)) > safe_norm(Wt)) & jnp.any(Wt != 0, axis=0)
    return like(jnp.broadcast_to(rows, Wt.shape), W)


def _settled(problem: Problem, W: jax.Array, measure: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`_settle` on `_gathered_size` features; W itself if more are on its support, or at rounding error."""
    m = _gathered_size(problem, W)
    nothing = W, jnp.zeros(W.shape, bool)
    due = measure > 8 * eps_of(W)
    if m is None:
        return apply_if(due, lambda _: _settle(problem, W), nothing)
    on = jnp.any(mask_columns(problem.penalty.smooth_where(W)), axis=0)
    fits = jnp.sum(on) <= m

    def some(_: Any) -> tuple[jax.Array, jax.Array]:
        # The features of the support, and of the others those that are nearest to entering it.
        slopes = problem.penalty.row_slopes(-jax.grad(problem.smooth)(W), W)
        ix = chosen(on, slopes, m, m)
        near, unsettled = _settle(_on_features(problem, ix), take(W, ix, 0))
        # mypy does not know the length of a tuple from a generator.
        return tuple(jnp.zeros(W.shape, a.dtype).at[ix].set(a, mode="drop") for a in (near, unsettled))  # type: ignore[return-value]

    return apply_if(due & fits, some, nothing)


# ``settled(problem, W, measure)``: a point nearer to the solution than W, and a boolean array of its
# unsettled entries.
settled = by_lanes(_settled)
