r"""The derivative of a solution, from the equations it solves rather than from the iterations.

On the support A of :math:`W^\star` (the entries in which the penalty is smooth, see
``penalty.support``) the optimality conditions are :math:`\nabla F(W;\theta)_A = 0`, with
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
* Gap, residual and history carry no derivative; the start and the tolerance have none.

Source: the theorem on the support, for the lasso, is in Bertrand et al., JMLR 23, 2022 (sparse-ho).
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

from sparsejax._linalg import conjugate_gradients, norm
from sparsejax._pytree import is_traced
from sparsejax.penalties import columns, like, support_of
from sparsejax.problem import Problem, Solution, flattened, measure_of

DENSE = 256  # unknowns up to which the Hessian is factorised
INNER = 2000  # conjugate gradient steps at most
# Of the mean eigenvalue of A'A, in the preconditioner; between 0.1 and 1 the number of steps hardly changes.
BALANCE = 0.2


def differentiable(*static: str) -> Callable[[Callable[..., Solution]], Callable[..., Solution]]:
    """Decorate ``solver(problem, init, ...) -> Solution``: compiled, and with the derivative above.

    ``static`` names its static arguments. A solver may return ``(Solution, Factor)`` instead: then the
    derivative uses its decomposition of the loss.
    """

    def decorate(solver: Callable[..., Solution]) -> Callable[..., Solution]:
        @functools.partial(jax.jit, static_argnames=static)
        @functools.wraps(solver)  # jit reads the names from the signature
        def compiled(problem, init, *args, **kwargs):
            fixed, start = lax.stop_gradient((problem, init))
            result = solver(fixed, start, *args, **kwargs)
            return attach(problem, *result) if type(result) is tuple else attach(problem, result)

        @functools.wraps(solver)
        def call(problem, init, *args, **kwargs):
            problem = hoist(problem, init)
            solution = compiled(problem, init, *args, **kwargs)
            _warn(problem, solution)
            return solution

        return call

    return decorate


class Factor(NamedTuple):
    r"""Eigendecomposition of the (bound of the) Hessian of a loss, so that any shift of it is a diagonal.

    In the rows of W' (k, d) the Hessian M is :math:`A'A`, plus a graph Laplacian of the labels from the left.
    """

    basis: jax.Array  # d <= n: eigenvectors of A'A as rows, (d, d). n < d: U'A, (n, d), U those of AA'
    values: jax.Array  # their eigenvalues, (min(n, d),)
    left: jax.Array  # U if n < d, else (0, 0)
    labels: jax.Array | None  # (k, k), eigenvectors of the Laplacian as rows; None without one
    shifts: jax.Array | None  # (k, 1), its eigenvalues

    def rotate(self, Rt: jax.Array) -> jax.Array:
        """To the eigenvectors of the Laplacian."""
        return Rt if self.labels is None else self.labels @ Rt

    def rotate_back(self, Rt: jax.Array) -> jax.Array:
        return Rt if self.labels is None else self.labels.T @ Rt

    def shift(self, rho: jax.Array) -> jax.Array:
        """What is added to A'A in every rotated row of M + rho I, (k, 1) or (1, 1)."""
        return rho[None, None] if self.shifts is None else rho + self.shifts

    def solve(self, Rt: jax.Array, shift: jax.Array) -> jax.Array:
        """(A'A + shift)^-1 R in rotated rows; for n < d by Woodbury's identity."""
        if self.basis.shape[0] == self.basis.shape[1]:
            return ((Rt @ self.basis.T) / (self.values[None] + shift)) @ self.basis
        Rt = Rt / shift
        return Rt - ((Rt @ self.basis.T) / (self.values[None] + shift)) @ self.basis


def factorise(smooth: Any) -> Factor:
    """Decompose the bound of the Hessian of a loss; it depends on X, weights, scale and graphs only."""
    A = smooth.majorizer()
    labels = shifts = None
    if hasattr(smooth, "laplacian"):
        values, vectors = jnp.linalg.eigh(smooth.laplacian(), symmetrize_input=False)
        labels, shifts = vectors.T, jnp.maximum(values, 0)[:, None]
    n, d = A.shape
    if d <= n:
        values, vectors = jnp.linalg.eigh(A.T @ A, symmetrize_input=False)
        return Factor(vectors.T, jnp.maximum(values, 0), jnp.zeros((0, 0), A.dtype), labels, shifts)
    values, vectors = jnp.linalg.eigh(A @ A.T, symmetrize_input=False)
    return Factor(vectors.T @ A, jnp.maximum(values, 0), vectors, labels, shifts)


def largest_eigenvalue(factor: Factor) -> jax.Array:
    """Of M."""
    largest = factor.values[-1]
    return largest if factor.shifts is None else largest + factor.shifts[-1, 0]


def attach(problem: Problem, solution: Solution, factor: Factor | None = None) -> Solution:
    """``solution`` (of ``problem`` with its gradients stopped) with the derivative of the solution."""
    params, objective = _attach(problem, solution.params, solution.objective, measure_of(solution), factor)
    return solution._replace(params=params, objective=objective)


def hoist(problem: Problem, init: Any) -> Problem:
    """The problem with what a plain ``smooth`` closes over made its leaves, so that it is differentiated."""
    smooth = problem.smooth
    if hasattr(smooth, "params_shape"):  # a loss of this library: all data are leaves
        return problem
    if not _closes_over_tracers(smooth, init):
        return problem
    converted, found = jax.closure_convert(evaluate, smooth, init)

    def call(smooth, found, W):
        return converted(smooth, W, *found)

    return problem._replace(smooth=jax.tree_util.Partial(call, smooth, found))


def evaluate(smooth, W):
    """``smooth(W)``; by name, so that jax recognises what it has traced before."""
    return smooth(W)


def _closes_over_tracers(smooth, init):
    try:
        return _looked_up(*(_form(tree) for tree in (smooth, init)))
    except _Found:
        return True


class _Found(Exception):
    pass


# Found is raised, not returned: a function that closes over tracers must not be kept in the cache.
@functools.lru_cache(maxsize=256)
def _looked_up(*forms):
    trees = [
        jax.tree.unflatten(treedef, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
        for treedef, leaves in forms
    ]
    if jax.closure_convert(evaluate, *trees)[1]:
        raise _Found
    return False


def _form(tree):
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)


def _warn(problem, solution):
    differentiated = any(map(is_traced, jax.tree.leaves(problem)))
    if not differentiated or is_traced(solution.status):
        return
    measure = np.asarray(measure_of(solution))
    # tol = 0 asks for the floor of the dtype and never counts as converged.
    reliable = np.asarray(solution.converged) | (measure <= np.finfo(measure.dtype).eps * 1000)
    if not reliable.all():
        warnings.warn(
            "the derivative of a solution that did not converge is not reliable: its certificate is "
            f"{measure.max():.1e}",
            stacklevel=4,
        )


@jax.custom_jvp
def _attach(problem, params, objective, measure, factor):
    return params, objective


@functools.partial(_attach.defjvp, symbolic_zeros=True)
def _attach_jvp(primals, tangents):
    problem, params, _, measure, factor = primals
    params, objective = _attach(*primals)
    leaves, treedef = jax.tree.flatten(problem)
    changes = jax.tree.leaves(tangents[0], is_leaf=lambda x: isinstance(x, SymbolicZero))
    moves = [
        jnp.issubdtype(leaf.dtype, jnp.inexact) and not isinstance(change, SymbolicZero)
        for leaf, change in zip(leaves, changes, strict=True)
    ]
    if not any(moves):
        return (params, objective), jax.tree.map(jnp.zeros_like, (params, objective))

    def moved(values):
        values = iter(values)
        return jax.tree.unflatten(
            treedef, [next(values) if move else leaf for leaf, move in zip(leaves, moves, strict=True)]
        )

    primal = [leaf for leaf, move in zip(leaves, moves, strict=True) if move]
    tangent = [change for change, move in zip(changes, moves, strict=True) if move]

    def gradient(values):
        flat_problem, W, _ = flattened(moved(values), params)
        return jax.grad(flat_problem)(W)

    flat_problem, W, restore = flattened(problem, params)
    if getattr(problem.penalty, "by_prox", False):
        dW = _through_prox(flat_problem, W, moved, params, primal, tangent, measure)
    else:
        mask = lax.stop_gradient(support_of(flat_problem.penalty, W)).astype(W.dtype)
        rhs = -mask * jax.jvp(gradient, (primal,), (tangent,))[1]
        dW = _solve(flat_problem, W, mask, rhs, measure, factor)
    dW = restore(dW)
    _, dF = jax.jvp(lambda values, W: moved(values)(W), (primal, params), (tangent, dW))
    return (params, objective), (dW, dF)


def _solve(problem, W, mask, rhs, measure, factor):
    """The masked Newton system, with the identity off the support."""
    smooth = problem.smooth
    if getattr(smooth, "quadratic", False) and smooth.X.shape[-2] > smooth.X.shape[-1]:
        problem = problem._replace(smooth=smooth.gram())  # the same Hessian, in cheaper products
    _, hessian = jax.linearize(jax.grad(problem), W)

    def matvec(V):
        return mask * hessian(mask * V) + (1 - mask) * V

    # Any symmetric positive definite preconditioner gives the same derivative.
    if W.size <= DENSE:
        precondition = _dense(matvec, W)
    elif hasattr(smooth, "majorizer") and hasattr(problem.penalty, "_half_derivative"):
        fixed = lax.stop_gradient((smooth, problem.penalty, W, factor))
        precondition = _split(*fixed, mask)
    else:
        precondition = lambda R: R
    return _symmetric_solve(matvec, rhs, precondition, measure)


def _through_prox(problem, W, moved, params, primal, tangent, measure):
    r"""The derivative of the fixed point :math:`W = \operatorname{prox}_{\eta g}(W - \eta\nabla f(W))`.

    For a penalty known by its prox alone. With J the derivative of the prox (symmetric, 0 <= J <= I), H the
    Hessian of f and c the change of the right side at fixed W: ``dW = J(I - eta H) dW + c``. So ``dW =
    c + Jz``, where z solves the symmetric system ``(J(I - J) + eta JHJ) z = J(I - eta H) c``.
    """
    grad, hessian = jax.linearize(jax.grad(problem.smooth), W)
    # Any step will do; this one is 1 / (curvature along the gradient), where there is one.
    probe = lax.stop_gradient(jnp.where(jnp.any(grad != 0), grad, jnp.ones_like(grad)))
    curvature = norm(hessian(probe)) / norm(probe)
    eta = lax.stop_gradient(jnp.where(curvature > 0, 1 / jnp.where(curvature > 0, curvature, 1), 1))

    def forward(values, W):
        flat_problem, _, _ = flattened(moved(values), params)
        return flat_problem.penalty.prox(W - eta * jax.grad(flat_problem.smooth)(W), eta)

    c = jax.jvp(lambda values: forward(values, W), (primal,), (tangent,))[1]
    _, J = jax.linearize(lambda V: problem.penalty.prox(V, eta), W - eta * grad)

    def matvec(z):
        Jz = J(z)
        return J(z - Jz + eta * hessian(Jz))

    z = _symmetric_solve(matvec, J(c - eta * hessian(c)), lambda r: r, measure)
    return c + J(z)


def _symmetric_solve(matvec, rhs, precondition, measure):
    """Solve as accurately as a solution with this certificate deserves; NaN where that fails."""
    eps = float(jnp.finfo(rhs.dtype).eps)
    tol = jnp.clip(3e-2 * jnp.sqrt(lax.stop_gradient(measure)), max(1e-11, 8 * eps), 1e-4).astype(rhs.dtype)

    def solve(matvec, b):
        x = conjugate_gradients(matvec, b, precondition, tol, INNER)
        failed = ~(norm(b - matvec(x)) <= jnp.maximum(eps**0.5, 10 * tol) * norm(b))
        return jnp.where(failed, jnp.nan, x)

    return lax.custom_linear_solve(matvec, rhs, solve, symmetric=True)


def _dense(matvec, W):
    """The inverse of the Hessian, a little shifted: it commutes with it, so answers are of least norm."""
    eye = jnp.eye(W.size, dtype=W.dtype).reshape(W.size, *W.shape)
    H = lax.stop_gradient(jax.vmap(matvec)(eye).reshape(W.size, W.size))
    shift = jnp.finfo(W.dtype).eps ** 0.5 * jnp.max(jnp.diagonal(H))
    factor = jnp.linalg.cholesky(H + shift * jnp.eye(W.size, dtype=W.dtype))
    return lambda R: jax.scipy.linalg.cho_solve((factor, True), R.ravel()).reshape(R.shape)


def _split(smooth, penalty, W, factor, mask):
    r"""``J^{1/2} (A'A + rho I)^{-1} J^{1/2}`` with J the derivative of the prox at step 1/rho.

    The linear part of one step of the splitting W = Z, made symmetric.
    """
    factor = factorise(smooth) if factor is None else factor
    basis = factor.basis
    mean = jnp.sum(factor.values) / basis.shape[1]
    rho = BALANCE * jnp.where(mean > 0, mean, 1)
    half = penalty._half_derivative(columns(W), 1 / rho)
    inverse = None
    if factor.labels is None and basis.shape[0] == basis.shape[1]:  # one product instead of two
        inverse = basis.T @ (basis / (factor.values + rho)[:, None])

    def apply(R):
        Rt = half(columns(mask * R))
        if inverse is None:
            Rt = factor.rotate_back(factor.solve(factor.rotate(Rt), factor.shift(rho)))
        else:
            Rt = Rt @ inverse
        return mask * like(half(Rt), R) + (1 - mask) * R

    return apply
