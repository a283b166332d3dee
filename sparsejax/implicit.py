r"""The derivative of a solution, from the equations it solves rather than from the iterations.

On the support A of :math:`W^\star` (the entries in which the penalty is smooth, see
``penalty.smooth_where``) the optimality conditions are :math:`\nabla F(W;\theta)_A = 0`, with
:math:`\theta` every leaf of the problem: strengths, X, Y, weights, scale, or whatever a plain function holds.
By the implicit function theorem

.. math:: \nabla^2 F(W^\star)_{AA}\; dW_A = -\,\big(\partial_\theta \nabla F(W^\star)\,d\theta\big)_A ,
          \qquad dW = 0 \text{ elsewhere.}

One symmetric linear solve serves forward and reverse mode, under `jax.jit` and `jax.vmap`, and can
itself be differentiated. It is solved by preconditioned conjugate gradients on Hessian products: the
Hessian is never formed, but for small problems, where its factorisation is the preconditioner.

* Where the support changes (at a kink of the path) the solution has two one-sided derivatives; this is the
  one of the piece on which today's zeros stay zero. At and above `sparsejax.lambda_max` it is 0.
* Dependent columns on the support make the system singular. If it can be solved at all, the derivative
  is one of its solutions: the least-norm one up to `DENSE` unknowns, beyond that the one of least norm in the
  metric of the preconditioner. What does not depend on the choice, such as the derivative of the
  predictions and of the objective, is exact. If it cannot, the solution has no derivative, and it is NaN.
* Its accuracy is that of the solution: the relative residual is ``3e-2 * sqrt(gap)``, at least
  1e-11 (1e-6 in float32). The derivative of a solution that has not converged is that of a
  nearby problem at best; outside jit it comes with a warning.
* Where it rests on a support that the solution has not settled, it is NaN: if a point as good as W by its gap
  lies as far off along the derivative as the entries of W are large, and a Newton step from W does lead over
  0, or changes a row by half, where more than `DOUBT` of the derivative is. So columns 1e-3 to 1e-5 apart, of
  which the gap does not tell which one is needed, give NaN until ``tol`` is low enough, and not a large
  number without meaning. How near copies share what they have in common may stay as undetermined by the gap
  as in W itself.
* A penalty known by its prox alone is differentiated through its prox: the fixed point of the prox-gradient
  step, without this check.
* Gap, residual and history carry no derivative; the start and the tolerance have none.

Source: the theorem on the support, for the lasso, is in Bertrand et al., JMLR 23, 2022 (sparse-ho).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import cho_solve

from sparsejax._core.buckets import LARGEST, MANY, take, working_set_size
from sparsejax._core.layout import columns, like
from sparsejax._core.linalg import conjugate_gradients, eps_of, norm, once, safe_divide, safe_norm
from sparsejax._core.pytree import movable, moving
from sparsejax.factor import Factor, factorise
from sparsejax.losses import GramLoss
from sparsejax.problem import Problem, flattened
from sparsejax.solution import Solution

Product = Callable[[jax.Array], jax.Array]  # with a symmetric matrix

FINER = 1e-2  # how much further conjugate gradients go where they are preconditioned by the inverse itself
DENSE = 256  # unknowns up to which the Hessian is factorised
INNER = 2000  # conjugate gradient steps at most
# Of the mean eigenvalue of A'A, in the preconditioner; between 0.1 and 1 the number of steps hardly changes.
BALANCE = 0.2
# Of a derivative, on entries that may still leave the support: beyond, it is NaN.
DOUBT = 0.1


def attach(problem: Problem, solution: Solution, factor: Factor | None = None) -> Solution:
    """``solution`` (of ``problem`` with its gradients stopped) with the derivative of the solution."""
    params, objective = _attach(problem, solution.params, solution.objective, solution.measure, factor)
    return solution._replace(params=params, objective=objective)


@jax.custom_jvp
def _attach(
    problem: Problem, params: Any, objective: jax.Array, measure: jax.Array, factor: Factor | None
) -> tuple[Any, jax.Array]:
    return params, objective


@functools.partial(_attach.defjvp, symbolic_zeros=True)
def _attach_jvp(primals: Any, tangents: Any) -> Any:
    problem, params, _, measure, factor = primals
    params, objective = _attach(*primals)
    moves, tangent = moving(tangents[0])
    if not tangent:
        return (params, objective), jax.tree.map(jnp.zeros_like, (params, objective))
    primal, moved = movable(problem, moves)

    def gradient(values: Any) -> jax.Array:
        flat_problem, W, _ = flattened(moved(values), params)
        G: jax.Array = jax.grad(flat_problem)(W)
        return G

    flat_problem, W, restore = flattened(problem, params)
    if "support" not in flat_problem.penalty.provides:
        dW = restore(_through_prox(flat_problem, W, moved, params, primal, tangent, measure))
        # By the envelope theorem: at W the objective is flat, and its value may have no derivative there.
        _, dF = jax.jvp(lambda values: moved(values)(params), (primal,), (tangent,))
        return (params, objective), (dW, dF)
    mask = lax.stop_gradient(flat_problem.penalty.smooth_where(W)).astype(W.dtype)
    rhs = -mask * jax.jvp(gradient, (primal,), (tangent,))[1]
    dW = restore(_solve(flat_problem, W, mask, rhs, measure, factor))
    _, dF = jax.jvp(lambda values, W: moved(values)(W), (primal, params), (tangent, dW))
    return (params, objective), (dW, dF)


def _solve(
    problem: Problem,
    W: jax.Array,
    mask: jax.Array,
    rhs: jax.Array,
    measure: jax.Array,
    factor: Factor | None,
) -> jax.Array:
    """The masked Newton system; of many features on those of the support, where they are few enough."""
    m = _room(problem, W)
    if m is None:
        return _solve_all(problem, W, mask, rhs, measure, factor)
    on = jnp.any(columns(mask) > 0, axis=0)
    (ix,) = jnp.nonzero(on, size=m, fill_value=W.shape[0])

    def some() -> jax.Array:
        part = problem._replace(smooth=problem.smooth.columns_at(ix), penalty=problem.penalty.rows_at(ix))
        W_part, mask_part, rhs_part = (take(x, ix, 0) for x in (W, mask, rhs))
        dW = _solve_all(part, W_part, mask_part, rhs_part, measure, None)
        return jnp.zeros_like(W).at[ix].add(dW, mode="drop")

    dW: jax.Array = lax.cond(
        jnp.sum(on) <= m, some, lambda: _solve_all(problem, W, mask, rhs, measure, factor)
    )
    return dW


def _room(problem: Problem, W: jax.Array) -> int | None:
    """For how many features of the support the system is gathered; None: for all of them."""
    smooth, penalty = problem.smooth, problem.penalty
    if "columns" not in smooth.provides or "sparse rows" not in penalty.provides or smooth.num_rows is None:
        return None
    m = working_set_size(smooth.num_rows, W.shape, penalty.least_active)
    return m if W.shape[0] >= max(MANY, 2 * m) else None


def _solve_all(
    problem: Problem,
    W: jax.Array,
    mask: jax.Array,
    rhs: jax.Array,
    measure: jax.Array,
    factor: Factor | None,
) -> jax.Array:
    """With the identity off the support."""
    smooth, penalty = problem.smooth, problem.penalty
    condensed = smooth.condensed()  # the same Hessian, in cheaper products
    problem = problem._replace(smooth=condensed)
    G, hessian = jax.linearize(jax.grad(problem), W)

    def matvec(V: jax.Array) -> jax.Array:
        product: jax.Array = mask * hessian(mask * V) + (1 - mask) * V
        return product

    size = jnp.maximum(jnp.abs(problem(W)), problem(jnp.zeros_like(W)))
    doubt = _Doubt(*lax.stop_gradient((penalty, W, mask, mask * G, measure * size)))

    # Any symmetric positive definite preconditioner gives the same derivative.
    if W.size <= DENSE:
        precondition = _dense(matvec, W)
    elif "curvature" in smooth.provides:
        gram = condensed.G if isinstance(condensed, GramLoss) else None
        smooth, gram, penalty, W, factor = lax.stop_gradient((smooth, gram, penalty, W, factor))
        if _of_row_norms(smooth, penalty, W):
            precondition = _by_rows(smooth, gram, penalty.row_norm(W.shape), W, mask)
            measure = measure * FINER**2  # one step more or two: little beside the factorisation
        else:
            precondition = _split(smooth, gram, penalty, W, factor, mask)
    else:
        precondition = lambda R: R
    return _symmetric_solve(matvec, rhs, precondition, measure, doubt)


class _Doubt(NamedTuple):
    """What tells whether the support of W is settled where a derivative needs it."""

    penalty: Any
    W: jax.Array
    mask: jax.Array
    gradient: jax.Array  # of the objective on the support
    excess: jax.Array  # of the objective over its minimum, at most

    def fails(self, solve: Product, x: jax.Array, b: jax.Array) -> jax.Array:
        """Whether too much of x = solve(b), a derivative, lies on what may still leave the support.

        That is where a Newton step from W leads over 0, or changes a row by more than half. The step is made
        only where along x a point as good as W, which is as far as ``excess = curvature / 2`` allows, is that
        far from W: elsewhere the gap has settled what the derivative depends on.
        """
        reach = jnp.sqrt(safe_divide(2 * self.excess, jnp.abs(jnp.sum(x * b)))) * jnp.abs(x)
        far = self.on(2 * reach > jnp.abs(self.W), x)
        failed: jax.Array = once(far, lambda _: self.on(self.loose(solve), x), far)
        return failed

    def loose(self, solve: Product) -> jax.Array:
        """The entries that may still leave the support, or in which the curvature may still change much."""
        moved = self.W - solve(self.gradient)
        across = jnp.where(moved * self.W > 0, moved, 0)
        Wt, step = columns(self.W), columns(moved - self.W)
        turned = (2 * safe_norm(step) > safe_norm(Wt)) & jnp.any(Wt != 0, axis=0)
        rows = like(jnp.broadcast_to(turned, Wt.shape), self.W)
        loose: jax.Array = rows | ~self.penalty.smooth_where(across)
        return loose

    def on(self, where: jax.Array, x: jax.Array) -> jax.Array:
        """Whether more than `DOUBT` of x is there."""
        return norm(jnp.where(where, self.mask * x, 0)) > DOUBT * norm(x)


def _through_prox(
    problem: Problem,
    W: jax.Array,
    moved: Callable[[Any], Any],
    params: Any,
    primal: Any,
    tangent: Any,
    measure: jax.Array,
) -> jax.Array:
    r"""The derivative of the fixed point :math:`W = \operatorname{prox}_{\eta g}(W - \eta\nabla f(W))`.

    For a penalty known by its prox alone. With J the derivative of the prox (symmetric, 0 <= J <= I), H the
    Hessian of f and c the change of the right side at fixed W: ``dW = J(I - eta H) dW + c``. So ``dW =
    c + Jz``, where z solves the symmetric system ``(J(I - J) + eta JHJ) z = J(I - eta H) c``.
    """
    grad, hessian = jax.linearize(jax.grad(problem.smooth), W)
    # Any step will do; this one is 1 / (curvature along the gradient), where there is one.
    probe = lax.stop_gradient(jnp.where(jnp.any(grad != 0), grad, jnp.ones_like(grad)))
    curvature = norm(hessian(probe)) / norm(probe)
    eta = lax.stop_gradient(safe_divide(1.0, curvature, 1.0))

    def forward(values: Any, W: jax.Array) -> jax.Array:
        flat_problem, _, _ = flattened(moved(values), params)
        point: jax.Array = flat_problem.penalty.prox(W - eta * jax.grad(flat_problem.smooth)(W), eta)
        return point

    c: jax.Array = jax.jvp(lambda values: forward(values, W), (primal,), (tangent,))[1]
    _, J = jax.linearize(lambda V: problem.penalty.prox(V, eta), W - eta * grad)

    def matvec(z: jax.Array) -> jax.Array:
        Jz = J(z)
        product: jax.Array = J(z - Jz + eta * hessian(Jz))
        return product

    z = _symmetric_solve(matvec, J(c - eta * hessian(c)), lambda r: r, measure)
    dW: jax.Array = c + J(z)
    return dW


def _symmetric_solve(
    matvec: Product,
    rhs: jax.Array,
    precondition: Product,
    measure: jax.Array,
    doubt: _Doubt | None = None,
) -> jax.Array:
    """Solve as accurately as a solution with this certificate deserves; NaN where that fails."""
    eps = eps_of(rhs)
    tol = jnp.clip(3e-2 * jnp.sqrt(lax.stop_gradient(measure)), max(1e-11, 8 * eps), 1e-4).astype(rhs.dtype)

    def solve(matvec: Product, b: jax.Array) -> jax.Array:
        x, r = conjugate_gradients(matvec, b, precondition, tol, INNER, confirmed=True)
        failed = ~(norm(r) <= jnp.maximum(eps**0.5, 10 * tol) * norm(b))
        if doubt is not None:
            failed |= doubt.fails(lambda b: conjugate_gradients(matvec, b, precondition, tol, INNER)[0], x, b)
        return jnp.where(failed, jnp.nan, x)

    solution: jax.Array = lax.custom_linear_solve(matvec, rhs, solve, symmetric=True)
    return solution


def _dense(matvec: Product, W: jax.Array) -> Product:
    """The inverse of the Hessian, a little shifted: it commutes with it, so answers are of least norm."""
    eye = jnp.eye(W.size, dtype=W.dtype).reshape(W.size, *W.shape)
    H = lax.stop_gradient(jax.vmap(matvec)(eye).reshape(W.size, W.size))
    shift = eps_of(W) ** 0.5 * jnp.max(jnp.diagonal(H))
    factor = jnp.linalg.cholesky(H + shift * jnp.eye(W.size, dtype=W.dtype))
    return lambda R: cho_solve((factor, True), R.ravel()).reshape(R.shape)


def _of_row_norms(smooth: Any, penalty: Any, W: jax.Array) -> bool:
    """Whether the Hessian is one matrix for all columns and a norm of each row, and small enough."""
    if "row norm" not in penalty.provides or "curvature" not in smooth.provides or not smooth.quadratic:
        return False
    norm = penalty.row_norm(W.shape)
    plain = norm is not None and norm.groups is None and smooth.laplacian() is None
    return plain and W.ndim == 2 and W.shape[1] > 1 and W.shape[0] <= LARGEST


def _by_rows(smooth: Any, gram: jax.Array | None, penalty: Any, W: jax.Array, mask: jax.Array) -> Product:
    r"""The inverse of the Hessian on the support, :math:`V = (A'A + D)^{-1}` but for one direction a row.

    In the direction u of a row a norm is flat: with :math:`D = \operatorname{diag}(\alpha_i/\|w_i\| + m_i)`
    Woodbury's identity leaves a system with one unknown a row, whose matrix is a diagonal less
    :math:`V\circ(UU^\top)`. A little of D is kept there, so that it is positive definite.
    """
    Wt, (d, _), eps = columns(W), W.shape, eps_of(W)
    if gram is None:
        A = smooth.majorizer()
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


def _split(
    smooth: Any, gram: jax.Array | None, penalty: Any, W: jax.Array, factor: Factor | None, mask: jax.Array
) -> Product:
    r"""``J^{1/2} (A'A + rho I)^{-1} J^{1/2}`` with J the derivative of the prox at step 1/rho.

    The linear part of one step of the splitting W = Z, made symmetric.
    """
    inverse, rho = (
        _cholesky(smooth, gram)
        if factor is None and smooth.laplacian() is None
        else _eigen(factorise(smooth) if factor is None else factor)
    )
    half = penalty.half_derivative(W, 1 / rho)

    def apply(R: jax.Array) -> jax.Array:
        Rt = inverse(columns(half(mask * R)))
        product: jax.Array = mask * half(like(Rt, R)) + (1 - mask) * R
        return product

    return apply


def _eigen(factor: Factor) -> tuple[Product, jax.Array]:
    """The inverse of A'A + rho I on columns, and rho; from a factorisation that a solver has left."""
    rho = BALANCE * factor.mean
    if factor.labels is None and factor.square:  # one product instead of two
        inverse = factor.basis.T @ (factor.basis / (factor.values + rho)[:, None])
        return lambda Rt: Rt @ inverse, rho
    return lambda Rt: factor.rotate_back(factor.solve(factor.rotate(Rt), factor.shift(rho))), rho


def _cholesky(smooth: Any, gram: jax.Array | None) -> tuple[Product, jax.Array]:
    """The same where there is none: a tenth of the work, and less where A'A is known."""
    if gram is None:
        A = smooth.majorizer()
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
