"""The one loop of every solver: blocks of iterations, a certificate after each, an honest end.

A solver supplies its state, ``block(state, n)`` that makes n iterations, and ``candidate(state)``,
the W to be judged. The loop keeps the best W seen, counts, records, and decides when to stop.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._pytree import as_float, is_traced
from sparsejax.implicit import evaluate
from sparsejax.problem import (
    CONVERGED,
    MAX_ITER,
    NON_FINITE,
    STALLED,
    Certificate,
    History,
    Problem,
    Solution,
    certify,
    check_problem,
    scale_of,
    zeros,
)
from sparsejax.solvers._newton import newton_on_support

RUNNING = -1
# A solver is at the floor of its dtype if the best certificate has not halved for this many iterations and
# is small enough for rounding to be the reason: below 1000 eps, or below sqrt(eps) for ten times as many.
PATIENCE = 300


class _Carry(NamedTuple):
    state: Any
    best: jax.Array  # W with the smallest measure so far
    parts: tuple[jax.Array, ...] | None  # its subgradients of the penalty's terms, where there are several
    certificate: Certificate  # its certificate
    mark: jax.Array  # measure that must be halved for progress to be seen
    marked: jax.Array  # iterations when it last was
    num_iters: jax.Array
    status: jax.Array
    history: History


def run(
    problem: Problem,
    init: jax.Array,
    state: Any,
    block: Callable[[Any, jax.Array], Any],
    candidate: Callable[[Any], jax.Array],
    *,
    step: Callable[[Any], jax.Array],
    tol: jax.Array,
    maxiter: jax.Array,
    check_every: int,
    history: int,
    quick: Problem | None = None,
    ended: Callable[[Any], jax.Array] | None = None,
    split: Callable[[Any], tuple[jax.Array, ...]] | None = None,
) -> tuple[Solution, Any]:
    """Iterate until the certificate meets ``tol``; returns the `Solution` and the last state.

    A solve that stalls is finished by Newton steps on the support of the best W seen.

    ``quick`` is the same problem in a form that is cheaper to evaluate: it is used until its
    certificate meets ``tol``, which is then confirmed on ``problem``. ``step(state)`` = 1/L defines the
    residual. ``ended(state)`` is an algorithm's own stopping rule, for those that are kept as
    published: what it stops is the last point, not the best, is not finished by Newton, and counts
    as stalled unless the certificate agrees. ``split(state)`` are subgradients of the penalty's terms
    for the certificate, where there are several.
    """
    scale = scale_of(problem, init)
    check_every = 1 if history else check_every
    eps = float(jnp.finfo(init.dtype).eps)
    floor = 2 * eps
    inner = problem if quick is None else quick

    def confirm(W, rough, step, parts):
        if quick is None:
            return rough
        met = rough.measure <= jnp.maximum(tol, floor)
        return lax.cond(met, lambda: certify(problem, W, step, scale, parts), lambda: rough)

    def record(h, k, c):
        if not history:
            return h
        return History(h.objective.at[k].set(c.objective, mode="drop"), h.gap.at[k].set(c.gap, mode="drop"))

    def judge(carry: _Carry) -> _Carry:
        k = carry.num_iters
        W = candidate(carry.state)
        t = step(carry.state)
        parts = None if split is None else split(carry.state)
        c = confirm(W, certify(inner, W, t, scale, parts), t, parts)

        over = jnp.zeros((), bool) if ended is None else ended(carry.state)
        better = (c.measure < carry.certificate.measure) | over | (k == 0)
        # Until a certificate is known, the lowest objective.
        better |= jnp.isinf(carry.certificate.measure) & (c.objective < carry.certificate.objective)
        certificate = Certificate(
            *(jnp.where(better, a, b) for a, b in zip(c, carry.certificate, strict=True))
        )
        measure = certificate.measure
        halved = measure <= carry.mark / 2
        marked = jnp.where(halved, k, carry.marked)
        stuck = (k - marked >= PATIENCE) & (measure <= 1000 * eps)
        stuck |= (k - marked >= 10 * PATIENCE) & (measure <= eps**0.5)
        stalled = over | ((measure <= floor) & (k > 0)) | stuck
        finite = jnp.isfinite(c.objective) & ~jnp.isnan(c.measure)
        status = jnp.where(k < maxiter, RUNNING, MAX_ITER)
        status = jnp.where(stalled, STALLED, status)
        status = jnp.where(measure <= tol, CONVERGED, status)
        status = jnp.where(finite, status, NON_FINITE).astype(jnp.int32)
        return _Carry(
            state=carry.state,
            best=jnp.where(better, W, carry.best),
            parts=jax.tree.map(lambda a, b: jnp.where(better, a, b), parts, carry.parts),
            certificate=certificate,
            mark=jnp.where(halved, measure, carry.mark),
            marked=marked,
            num_iters=k,
            status=status,
            history=record(carry.history, k, c),
        )

    def body(carry: _Carry) -> _Carry:
        # In this order the certificate, much the largest part of the program, is compiled once for the
        # start, the iterates and the end.
        carry = judge(carry)
        running = carry.status == RUNNING
        n = jnp.where(running, jnp.minimum(check_every, maxiter - carry.num_iters), 0)
        state = lax.cond(running, lambda s: block(s, n), lambda s: s, carry.state)
        return carry._replace(state=state, num_iters=carry.num_iters + n)

    infinite = jnp.full((), jnp.inf, init.dtype)
    empty = History(*(jnp.full((history,), jnp.nan, init.dtype) for _ in History._fields))
    carry = _Carry(
        state=state,
        best=init,
        parts=None if split is None else split(state),
        certificate=Certificate(infinite, infinite, infinite),
        mark=infinite,
        marked=jnp.int32(0),
        num_iters=jnp.int32(0),
        status=jnp.int32(RUNNING),
        history=empty,
    )
    carry = lax.while_loop(lambda c: c.status == RUNNING, body, carry)
    best, c, status = carry.best, carry.certificate, carry.status
    if ended is None:
        # A tol that no certificate can resolve asks for every digit, even where the gap has rounded to 0.
        polish = (status == STALLED) | ((status == CONVERGED) & (tol < floor))
        best, c = newton_on_support(problem, best, carry.parts, step(carry.state), scale, polish)
    met = (c.measure <= tol) & (status != NON_FINITE)
    # The quick certificate may have met tol at a point that the data do not bear out.
    status = jnp.where(met, CONVERGED, jnp.where(status == CONVERGED, STALLED, status))
    solution = Solution(
        best, c.objective, c.gap, c.residual, carry.num_iters, status.astype(jnp.int32), carry.history
    )
    return solution, carry.state


def prepare(
    name: str,
    problem: Problem,
    init: Any,
    tol: ArrayLike | None,
    maxiter: ArrayLike,
    history: int,
) -> tuple[Any, jax.Array, jax.Array]:
    """Check a solver's arguments before anything is traced; returns init, tol, maxiter as arrays."""
    check_problem(name, problem)
    if init is None:
        init = zeros(problem)
    elif hasattr(problem.smooth, "params_shape"):
        init = as_float("init", init, (1, 2), problem.smooth.dtype)
        shape = problem.smooth.params_shape
        if init.shape != shape:
            raise ValueError(f"{name}: init has shape {init.shape}; the parameters have shape {shape}.")
    else:
        init = _as_params(name, init)
        _check_function(name, problem, init)
    dtype = jax.tree.leaves(init)[0].dtype
    if tol is None:
        tol = 1e-6 if dtype == jnp.float64 else 1e-4
    tol = as_float("tol", tol, (0,), dtype)
    if not is_traced(tol) and np.asarray(tol) < 0:
        raise ValueError(f"{name}: tol must be >= 0, got {np.asarray(tol):g}.")
    if not is_traced(maxiter):
        count: Any = np.asarray(maxiter)
        whole = count.ndim == 0 and count.dtype.kind in "iuf" and count == np.floor(count)
        if not (whole and 0 <= count <= np.iinfo(np.int32).max):
            raise ValueError(f"{name}: maxiter must be an integer >= 0, got {maxiter!r}.")
    if isinstance(history, bool) or not isinstance(history, int) or history < 0:
        raise ValueError(f"{name}: history must be an integer >= 0, got {history!r}.")
    return init, tol, jnp.asarray(maxiter, jnp.int32)


def _as_params(name: str, init: Any) -> Any:
    """``init`` for a plain function: an array of any rank, or a pytree of arrays of one dtype."""
    if not jax.tree.leaves(init):
        raise ValueError(f"{name}: init has no arrays; it must be an array or a pytree of arrays.")
    init = jax.tree.map(lambda leaf: as_float("init", leaf, tuple(range(33))), init)
    dtypes = {leaf.dtype.name for leaf in jax.tree.leaves(init)}
    if len(dtypes) > 1:
        raise TypeError(f"{name}: the arrays of init have dtypes {', '.join(sorted(dtypes))}; give them one.")
    return init


def _check_function(name: str, problem: Problem, init: Any) -> None:
    """Raise if a plain ``smooth`` is no differentiable scalar function of W, or the prox changes its form."""
    try:
        value = jax.eval_shape(evaluate, problem.smooth, init)
        shapes = [leaf.shape for leaf in jax.tree.leaves(value)]
        if shapes != [()] or not jnp.issubdtype(value.dtype, jnp.floating):
            raise TypeError(f"it returns {value}, not one real number")
        jax.eval_shape(_gradient, problem.smooth, init)
    except Exception as error:
        raise TypeError(
            f"{name}: smooth must be a differentiable function W -> () at W of the shape of init: {error}"
        ) from error
    form = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), init)
    after = jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype),
        jax.eval_shape(_prox, problem.penalty, init),
    )
    if form != after:
        raise TypeError(f"{name}: penalty.prox must return W's shapes and dtypes, {form}, got {after}.")


# By name, so that jax recognises what it has traced before.
def _gradient(smooth, W):
    return jax.grad(smooth)(W)


def _prox(penalty, W):
    return penalty.prox(W, jnp.ones((), jax.tree.leaves(W)[0].dtype))


def smoothness(A: jax.Array) -> jax.Array:
    r"""An upper bound, at most 6 % too large up to 1000 rows or columns, of the largest eigenvalue of A'A.

    :math:`\|G^{m}\|_F^{1/m}` with m = 64 by repeated squaring of the smaller Gram matrix: products
    only, so cheap on every device and in a batch, and never below the true value, unlike a power
    iteration.
    """
    n, d = A.shape
    G = A.T @ A if d <= n else A @ A.T
    squarings = 6
    log_norm = jnp.zeros((), A.dtype)
    for i in range(squarings + 1):
        size = jnp.sqrt(jnp.sum(G * G))
        log_norm = log_norm + jnp.where(size > 0, jnp.log(jnp.where(size > 0, size, 1)), -jnp.inf) / 2**i
        G = G / jnp.where(size > 0, size, 1)
        if i < squarings:
            G = G @ G
    # Room for the rounding of the products.
    return jnp.exp(log_norm) * (1 + 8 * math.sqrt(min(n, d)) * jnp.finfo(A.dtype).eps)


def curvature(smooth: Any) -> jax.Array:
    """An upper bound of the largest eigenvalue of the Hessian of a loss with ``majorizer``."""
    bound = smoothness(smooth.majorizer())
    if hasattr(smooth, "laplacian"):
        bound = bound + jnp.linalg.eigvalsh(smooth.laplacian())[-1]
    return bound
