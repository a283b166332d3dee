r"""The system of a derivative: the Hessian on the support of an answer, and the answer settled before it.

Of many features the system is gathered on those of the support, where these are few (`_room`). It is solved
by conjugate gradients, preconditioned by the inverse itself where that is cheap.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import cho_solve

from sparsejax._core.linalg import (
    columns,
    conjugate_gradients,
    eps_of,
    like,
    norm,
    once,
    safe_divide,
    safe_norm,
    take,
)
from sparsejax.driver.batching import by_lanes
from sparsejax.driver.curvature import Factor, factorise, residual_step
from sparsejax.driver.feature_subsets import LARGEST, chosen
from sparsejax.losses import GramLoss, condensed, num_rows
from sparsejax.penalties import by_entry, half_derivative, least_active
from sparsejax.problem import Problem

Product = Callable[[jax.Array], jax.Array]  # with a symmetric matrix

DENSE = 256  # unknowns up to which the Hessian is factorised
FINER = 1e-2  # how much further conjugate gradients go where they are preconditioned by the inverse itself
INNER = 2000  # conjugate gradient steps at most
# Of the mean eigenvalue of A'A, in the preconditioner; between 0.1 and 1 the number of steps hardly changes.
BALANCE = 0.2
# Of a derivative, on entries that may still leave the support: beyond, it is NaN.
DOUBT = 0.1
ROUNDS = 10  # Newton steps at most that settle a support
ROOM_TILE, MAX_ROOM = 64, 512  # features on which a system is gathered: a multiple of the first


# ------------------------------------------------------------------ room


def _room(problem: Problem, W: jax.Array) -> int | None:
    """For how many features the system is gathered; None: for all of them.

    Half as many as there are rows in the data: of more features few supports are.
    """
    smooth, penalty = problem.smooth, problem.penalty
    n = num_rows(smooth)
    if "columns" not in smooth.provides or "sparse rows" not in penalty.provides or n is None:
        return None
    wanted = least_active(penalty) + n / 2
    m = min(ROOM_TILE * math.ceil(max(wanted, 1) / ROOM_TILE), MAX_ROOM)
    return m if W.shape[0] >= 2 * m else None


def _part(problem: Problem, ix: jax.Array) -> Problem:
    """The problem of these features; an index of d is none."""
    smooth, penalty = problem.smooth, by_entry(problem.penalty, problem.smooth.params_shape)
    return problem._replace(smooth=smooth.columns_at(ix), penalty=penalty.rows_at(ix))


# ------------------------------------------------------------------ the system


class _System(NamedTuple):
    """The Hessian on the support, the identity off it."""

    gradient: jax.Array  # on the support
    matvec: Product
    precondition: Product
    exact: bool  # whether the preconditioner is nearly the inverse


def _system(problem: Problem, W: jax.Array, mask: jax.Array) -> _System:
    smooth, penalty = problem.smooth, problem.penalty
    cheap = condensed(smooth)  # the same Hessian, in cheaper products
    problem = problem._replace(smooth=cheap)
    G, hessian = jax.linearize(jax.grad(problem), W)

    def matvec(V: jax.Array) -> jax.Array:
        return mask * hessian(mask * V) + (1 - mask) * V

    # Any symmetric positive definite preconditioner gives the same derivative.
    if W.size <= DENSE:
        return _System(mask * G, matvec, _dense(matvec, W), True)
    if smooth.quadratic_model().majorizer is None:
        return _System(mask * G, matvec, lambda R: R, False)
    gram = cheap.G if isinstance(cheap, GramLoss) else None
    if _of_row_norms(smooth, penalty, W):
        rows = _by_rows(smooth, gram, penalty.row_norm(W.shape), W, mask)
        return _System(mask * G, matvec, rows, True)
    return _System(mask * G, matvec, _split(smooth, gram, penalty, W, mask), False)


def solve_on_support(
    problem: Problem, W: jax.Array, mask: jax.Array, rhs: jax.Array, measure: jax.Array, loose: jax.Array
) -> jax.Array:
    """The Hessian on the support times the answer is ``rhs``; linear in it, and differentiable again.

    NaN where that fails, or where too much of the answer is ``loose``.
    """
    _, hessian = jax.linearize(jax.grad(problem), W)

    def matvec(V: jax.Array) -> jax.Array:
        return mask * hessian(mask * V) + (1 - mask) * V

    fixed = lax.stop_gradient((problem, W, mask, measure, loose))
    return lax.custom_linear_solve(matvec, rhs, lambda _, b: _solutions(*fixed, b), symmetric=True)


def _solution(
    problem: Problem, W: jax.Array, mask: jax.Array, measure: jax.Array, loose: jax.Array, b: jax.Array
) -> jax.Array:
    def solved(problem: Problem, W: jax.Array, mask: jax.Array, b: jax.Array) -> jax.Array:
        system = _system(problem, W, mask)
        finer = FINER**2 if system.exact else 1  # one step more or two: little beside the factorisation
        return accurate(system.matvec, b, system.precondition, measure * finer)

    m = _room(problem, W)
    if m is None:
        x = solved(problem, W, mask, b)
    else:
        on = jnp.any(columns(mask) > 0, axis=0)
        (ix,) = jnp.nonzero(on, size=m, fill_value=W.shape[0])
        fits = jnp.sum(on) <= m

        def some(_: Any) -> jax.Array:
            x = solved(_part(problem, ix), *(take(a, ix, 0) for a in (W, mask, b)))
            return jnp.where(mask > 0, jnp.zeros_like(W).at[ix].add(x, mode="drop"), b)

        x = once(fits, some, jnp.zeros_like(b))
        x = once(~fits, lambda _: solved(problem, W, mask, b), x)
    lost = norm(jnp.where(loose, mask * x, 0)) > DOUBT * norm(x)
    return jnp.where(lost, jnp.nan, x)


_solutions = by_lanes(_solution)


def accurate(matvec: Product, b: jax.Array, precondition: Product, measure: jax.Array) -> jax.Array:
    """The answer as accurate as a solution with this certificate deserves; NaN where that fails."""
    eps = eps_of(b)
    tol = jnp.clip(3e-2 * jnp.sqrt(measure), max(1e-11, 8 * eps), 1e-4).astype(b.dtype)
    x, r = conjugate_gradients(matvec, b, precondition, tol, INNER, confirmed=True)
    failed = ~(norm(r) <= jnp.maximum(eps**0.5, 10 * tol) * norm(b))
    return jnp.where(failed, jnp.nan, x)


# ------------------------------------------------------------------ settled


class _Settling(NamedTuple):
    W: jax.Array
    loose: jax.Array  # entries that the last Newton step has led over 0, or changed by half their row
    first: jax.Array  # those of the first step
    more: jax.Array
    number: jax.Array


def _settle(problem: Problem, W: jax.Array) -> tuple[jax.Array, jax.Array]:
    """W after Newton steps until one leaves the support as it is, and what the last one has not left so.

    What a step leads over 0 ends at 0, and what should not be 0 comes in by a proximal step: the objective
    may rise on the way, but not from the first point to the last.
    """
    penalty, step, eps = problem.penalty, residual_step(problem.smooth, W), eps_of(W)

    def body(c: _Settling) -> _Settling:
        support = penalty.smooth_where(c.W)
        system = _system(problem, c.W, support.astype(W.dtype))
        D, _ = conjugate_gradients(system.matvec, system.gradient, system.precondition, eps**0.5, INNER)
        V = c.W - D
        across = jnp.where(V * c.W > 0, V, 0)
        stays = penalty.smooth_where(across)
        loose = support & (~stays | _turned(c.W, D))
        V = jnp.where(stays, V, across)
        if len(penalty.terms) == 1:
            V = penalty.prox(V - step * jax.grad(problem.smooth)(V), step)
        changed = jnp.any(loose) | jnp.any(penalty.smooth_where(V) != support)
        first = jnp.where(c.number == 1, loose, c.first)
        return _Settling(V, loose, first, changed & (c.number < ROUNDS), c.number + 1)

    none = jnp.zeros(W.shape, bool)
    start = _Settling(W, none, none, jnp.ones((), bool), jnp.int32(1))
    end = lax.while_loop(lambda c: c.more, body, start)
    before = problem(W)
    falls = problem(end.W) <= before + 8 * eps * jnp.abs(before)
    return jnp.where(falls, end.W, W), jnp.where(falls, end.loose, end.first)


def _turned(W: jax.Array, D: jax.Array) -> jax.Array:
    """The entries of rows that a step D changes by more than half."""
    Wt = columns(W)
    rows = (2 * safe_norm(columns(D)) > safe_norm(Wt)) & jnp.any(Wt != 0, axis=0)
    return like(jnp.broadcast_to(rows, Wt.shape), W)


def _settled(problem: Problem, W: jax.Array, measure: jax.Array) -> tuple[jax.Array, jax.Array]:
    m = _room(problem, W)
    nothing = W, jnp.zeros(W.shape, bool)
    due = measure > 64 * eps_of(W)
    if m is None:
        return once(due, lambda _: _settle(problem, W), nothing)
    on = jnp.any(columns(problem.penalty.smooth_where(W)), axis=0)
    fits = jnp.sum(on) <= m

    def some(_: Any) -> tuple[jax.Array, jax.Array]:
        # The support and, of the other features, those that are nearest to it.
        slopes = problem.penalty.row_slopes(jax.grad(problem.smooth)(W), W)
        ix = chosen(on, slopes, m, m)
        near, loose = _settle(_part(problem, ix), take(W, ix, 0))
        return tuple(jnp.zeros(W.shape, a.dtype).at[ix].set(a, mode="drop") for a in (near, loose))  # type: ignore[return-value]

    return once(due & fits, some, nothing)


# ``(problem, W, measure)`` -> an answer nearer to the solution than W, and the entries whose sign or row is
# not settled there, boolean.
settled = by_lanes(_settled)


# ------------------------------------------------------------------ preconditioners


def _dense(matvec: Product, W: jax.Array) -> Product:
    """The inverse of the Hessian, a little shifted: it commutes with it, so answers are of least norm."""
    eye = jnp.eye(W.size, dtype=W.dtype).reshape(W.size, *W.shape)
    H = lax.stop_gradient(jax.vmap(matvec)(eye).reshape(W.size, W.size))
    shift = eps_of(W) ** 0.5 * jnp.max(jnp.diagonal(H))
    factor = jnp.linalg.cholesky(H + shift * jnp.eye(W.size, dtype=W.dtype))
    return lambda R: cho_solve((factor, True), R.ravel()).reshape(R.shape)


def _of_row_norms(smooth: Any, penalty: Any, W: jax.Array) -> bool:
    """Whether the Hessian is one matrix for all columns and a norm of each row, and small enough."""
    model = smooth.quadratic_model()
    if "row norm" not in penalty.provides or not model.exact or model.laplacian is not None:
        return False
    norm = penalty.row_norm(W.shape)
    plain = norm is not None and norm.groups is None
    return plain and W.ndim == 2 and W.shape[1] > 1 and W.shape[0] <= LARGEST


def _by_rows(smooth: Any, gram: jax.Array | None, penalty: Any, W: jax.Array, mask: jax.Array) -> Product:
    r"""The inverse of the Hessian on the support, :math:`V = (A'A + D)^{-1}` but for one direction a row.

    In the direction u of a row a norm is flat: with :math:`D = \operatorname{diag}(\alpha_i/\|w_i\| + m_i)`
    Woodbury's identity leaves a system with one unknown a row, whose matrix is a diagonal less
    :math:`V\circ(UU^\top)`. A little of D is kept there, so that it is positive definite.
    """
    Wt, (d, _), eps = columns(W), W.shape, eps_of(W)
    if gram is None:
        A = smooth.quadratic_model().majorizer()
        gram = A.T @ A
    on, sizes = jnp.any(columns(mask) > 0, axis=0), safe_norm(Wt)
    alpha, ridge = (
        jnp.broadcast_to(jnp.asarray(0 if strength is None else strength, W.dtype), (d,))
        for strength in (penalty.alpha, penalty.ridge)
    )
    beta = jnp.where(on, safe_divide(alpha, sizes), 0)
    shift = eps**0.5 * jnp.trace(gram) / d
    M = jnp.where(on[:, None] & on[None], gram, 0) + jnp.diag(jnp.where(on, beta + ridge + shift, 1))
    V = cho_solve((jnp.linalg.cholesky(M, symmetrize_input=False), True), jnp.eye(d, dtype=W.dtype))
    U = jnp.where(beta > 0, safe_divide(Wt, sizes[None]), 0)
    kept = safe_divide(1.0, (1 - eps ** (1 / 3)) * beta, 1.0)
    root = jnp.linalg.cholesky(jnp.diag(kept) - V * (U.T @ U), symmetrize_input=False)
    right = jnp.all(jnp.isfinite(root))

    def apply(R: jax.Array) -> jax.Array:
        first = columns(mask * R) @ V
        along = cho_solve((root, True), jnp.sum(U * first, axis=0))
        product: jax.Array = mask * like(first + (U * along[None]) @ V, R) + (1 - mask) * R
        return jnp.where(right, product, R)

    return apply


def _split(smooth: Any, gram: jax.Array | None, penalty: Any, W: jax.Array, mask: jax.Array) -> Product:
    r"""``J^{1/2} (A'A + rho I)^{-1} J^{1/2}`` with J the derivative of the prox at step 1/rho.

    The linear part of one step of the splitting W = Z, made symmetric.
    """
    plain = smooth.quadratic_model().laplacian is None
    inverse, rho = _cholesky(smooth, gram) if plain else _eigen(factorise(smooth))
    half = half_derivative(penalty, W, 1 / rho)

    def apply(R: jax.Array) -> jax.Array:
        Rt = inverse(columns(half(mask * R)))
        return mask * half(like(Rt, R)) + (1 - mask) * R

    return apply


def _eigen(factor: Factor) -> tuple[Product, jax.Array]:
    """The inverse of A'A + rho I on columns, and rho; by eigenvectors, with a graph of labels."""
    rho = BALANCE * factor.mean
    if factor.labels is None and factor.square:  # one product instead of two
        inverse = factor.basis.T @ (factor.basis / (factor.values + rho)[:, None])
        return lambda Rt: Rt @ inverse, rho
    return lambda Rt: factor.rotate_back(factor.solve(factor.rotate(Rt), factor.shift(rho))), rho


def _cholesky(smooth: Any, gram: jax.Array | None) -> tuple[Product, jax.Array]:
    """The same where there is none: a tenth of the work, and less where A'A is known."""
    if gram is None:
        A = smooth.quadratic_model().majorizer()
        n, d = A.shape
        gram, total = A @ A.T if n < d else A.T @ A, jnp.sum(A * A)
    else:
        n = d = gram.shape[0]
        total = jnp.trace(gram)
    mean = total / d
    rho = BALANCE * jnp.where(mean > 0, mean, 1)
    root = jnp.linalg.cholesky(gram + rho * jnp.eye(min(n, d), dtype=gram.dtype), symmetrize_input=False)

    def solve(R: jax.Array) -> jax.Array:
        return cho_solve((root, True), R)

    if n < d:
        return lambda Rt: (Rt - solve(A @ Rt.T).T @ A) / rho, rho
    return lambda Rt: solve(Rt.T).T, rho
