r"""What is solved, what comes back, and the certificate of its quality.

A problem is :math:`\min_W F(W) = f(W) + g(W)`: a smooth convex loss and a penalty.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from sparsejax._linalg import joint_norm, norm
from sparsejax._pytree import Pytree, as_float, is_traced
from sparsejax.penalties import support_of, terms_of

CONVERGED, MAX_ITER, NON_FINITE, STALLED, HOST_FAILURE = range(5)

MESSAGES = {
    CONVERGED: "converged: the certificate is at most tol",
    MAX_ITER: "maxiter reached before tol: raise maxiter, or tol",
    NON_FINITE: "a NaN or infinity appeared: look at the data, the strengths and the start",
    STALLED: (
        "stopped above tol with no progress left: at the precision of the dtype (use float64, or a "
        "larger tol), or by a published stopping rule that the certificate does not bear out"
    ),
    HOST_FAILURE: "the solver called on the host failed",
}


class Problem(Pytree, leaves=("smooth", "penalty")):
    """``minimise smooth(W) + penalty.value(W)``.

    Args:
      smooth: a convex loss: one of `sparsejax.losses`, or any callable pytree W -> (), such as
        ``jax.tree_util.Partial(fun, *data)``. Convexity is taken for granted.
      penalty: one of `sparsejax.penalties`, or any pytree with ``value(W)`` and ``prox(V, scaling)``.

    Raises:
      TypeError: ``smooth`` is not callable, or ``penalty`` lacks value or prox.
      ValueError: a strength by row that does not fit the number of features.
    """

    smooth: Any
    penalty: Any

    def __init__(self, smooth: Any, penalty: Any):
        if not callable(smooth) or isinstance(smooth, type):
            what = f"the class {smooth.__name__}" if isinstance(smooth, type) else type(smooth).__name__
            raise TypeError(f"smooth must be callable, W -> (), got {what}.")
        if any(leaf is smooth for leaf in jax.tree.leaves(smooth)):
            raise TypeError(
                "smooth is a plain function, which cannot pass through jit: wrap it and its data as "
                "jax.tree_util.Partial(fun, *data)."
            )
        missing = [name for name in ("value", "prox") if not callable(getattr(penalty, name, None))]
        if missing or isinstance(penalty, type):
            what = (
                "a class, not an instance"
                if isinstance(penalty, type)
                else f"without {' and '.join(missing)}"
            )
            raise TypeError(f"penalty must have value(W) and prox(V, scaling), got {penalty!r}: {what}.")
        if hasattr(smooth, "params_shape") and hasattr(penalty, "check"):
            penalty.check(smooth.params_shape)
        self._set(smooth=smooth, penalty=penalty)

    def __call__(self, W: jax.Array) -> jax.Array:
        """The objective at W, shape ()."""
        _check_shape(self, W)
        return self.smooth(W) + self.penalty.value(W)

    def replace(self, **changes: Any) -> "Problem":
        """A problem with another ``smooth`` or ``penalty``, checked anew."""
        unknown = set(changes) - {"smooth", "penalty"}
        if unknown:
            raise TypeError(f"Problem has no {', '.join(sorted(unknown))}; it has smooth and penalty.")
        return Problem(**({"smooth": self.smooth, "penalty": self.penalty} | changes))


def check_problem(name: str, problem: Any) -> None:
    """Raise if ``problem`` is not a `Problem`; ``name`` is the function that was called."""
    if not isinstance(problem, Problem):
        raise TypeError(f"{name}: problem must be a sparsejax.Problem, got {type(problem).__name__}.")


def _check_shape(problem: Problem, W: Any) -> None:
    shape = getattr(problem.smooth, "params_shape", None)
    if shape is not None and jnp.shape(W) != shape:
        raise ValueError(f"W has shape {jnp.shape(W)}; the parameters of this problem have shape {shape}.")


class History(NamedTuple):
    """The first iterations of a solver, the start at index 0, NaN after its end."""

    objective: jax.Array  # (history,)
    gap: jax.Array  # (history,)


class Solution(Pytree, leaves=("params", "objective", "gap", "residual", "num_iters", "status", "history")):
    """How a solver ended.

    Attributes:
      params: the point with the best certificate that was seen; shape and dtype of W.
      objective: F(params), shape ().
      gap: relative duality gap of params, ``(P - D) / max(|P|, P(0))``: no point is better than
        params by more. NaN where no dual is known (a plain function with a norm, or strength 0).
      residual: relative prox-gradient residual, ``||G + S|| / max(||G||, ||S||, ||grad f(0)||)`` with
        ``G = grad f(W)`` and ``S = L(W - T) - G``, a subgradient of g at the prox-gradient step
        ``T = prox(W - G/L, 1/L)``; it decides where gap is NaN. For a penalty of several terms the same
        of each term with its part of -G, all of them together.
      num_iters: () int32, 0 if the start was good enough.
      status: () int32, one of the codes in `sparsejax.problem`; `message` says it in words.
      history: `History` of length ``history`` (0 unless asked for).
    """

    params: jax.Array
    objective: jax.Array
    gap: jax.Array
    residual: jax.Array
    num_iters: jax.Array
    status: jax.Array
    history: History

    def __init__(self, params, objective, gap, residual, num_iters, status, history):
        self._set(
            params=params, objective=objective, gap=gap, residual=residual,
            num_iters=num_iters, status=status, history=history,
        )  # fmt: skip

    @property
    def converged(self) -> jax.Array:
        """True where the certificate met tol, shape of ``status``."""
        return self.status == CONVERGED

    @property
    def message(self) -> str | list[str]:
        """The status in words, one for each problem of a batch; not available under jit."""
        if is_traced(self.status):
            raise TypeError("Solution.message is text: read it outside jit and vmap.")
        if self.status.ndim == 0:
            return MESSAGES[int(self.status)]
        return [MESSAGES[int(code)] for code in self.status.ravel()]


class Certificate(NamedTuple):
    objective: jax.Array
    gap: jax.Array
    residual: jax.Array

    @property
    def measure(self) -> jax.Array:
        """What is compared with tol: the gap, or the residual where no gap is known."""
        return measure_of(self)


def measure_of(certified: "Certificate | Solution") -> jax.Array:
    """The gap, or the residual where no gap is known."""
    return jnp.where(jnp.isnan(certified.gap), certified.residual, certified.gap)


def duality_gap(problem: Problem, W: ArrayLike) -> jax.Array:
    r"""Relative duality gap of W: ``(P - D)/max(|P|, P(0))``, 0 where both are 0.

    With :math:`f(W)=\ell(XW)`, :math:`U=\nabla\ell(XW)`, :math:`G=\nabla f(W)=X^\top U` and any s,
    :math:`D(s) = -\ell^*(sU) - g^*(-sG)` is a lower bound of the minimum, and by Fenchel's equality

    .. math:: P - D(s) = g(W) + \langle G, W\rangle + g^*(-sG) + [\ell^*(sU) - \ell^*(U)] ,

    where nothing large cancels near the optimum. Where :math:`g^*` is finite (squared norms, exclusive
    l2,1) s = 1, the bracket vanishes and f may be any convex function. For norms s is the best
    scaling that keeps :math:`-sG` in the dual ball, and the loss must bring ``dual_scaling``.

    Args:
      problem: what W is a candidate for.
      W: finite, of the shape of the parameters.

    Returns:
      Shape (), >= 0. NaN where no dual is known: a plain function with a norm, or an unpenalised row
      (strength 0).
    """
    check_problem("duality_gap", problem)
    W = as_float("W", W, (1, 2), getattr(problem.smooth, "dtype", None))
    _check_shape(problem, W)
    return _duality_gap(problem, W)


@jax.jit
def _duality_gap(problem, W):
    value, G = jax.value_and_grad(problem.smooth)(W)
    return _gap(problem, W, value, G, scale_of(problem, W), _split(problem.penalty, W, G))


class Scale(NamedTuple):
    """What gap and residual are relative to, and what every certificate of a problem shares."""

    value: jax.Array  # the objective at W = 0
    gradient: jax.Array  # the norm of the gradient of the loss there
    basis: jax.Array | None  # of the predictions that unpenalised features can change


def scale_of(problem: Problem, W: jax.Array) -> Scale:
    """The `Scale` of a problem whose W has this shape."""
    zero = _opaque(jnp.zeros_like(W))
    value, G = jax.value_and_grad(problem.smooth)(zero)
    free, basis = getattr(problem.penalty, "free", None), None
    if free is not None and free.shape[0] and hasattr(problem.smooth, "unpenalised_basis"):
        basis = problem.smooth.unpenalised_basis(free)
    return Scale(value + problem.penalty.value(zero), norm(G), basis)


def certify(
    problem: Problem,
    W: jax.Array,
    step: jax.Array,
    scale: Scale,
    split: tuple[jax.Array, ...] | None = None,
    settle: jax.Array | bool = False,
) -> Certificate:
    """Objective, relative gap and residual of W from one gradient; ``step`` = 1/L.

    For a penalty of several ``terms`` the solver's ``split`` holds subgradients, one a term. They are made
    to sum to -grad f(W), each by the same amount, or where ``settle`` is True by ``penalty.split``.
    """
    value, G = jax.value_and_grad(problem.smooth)(W)
    parts = _split(problem.penalty, W, G, split, settle)
    mappings = [
        (W - term.prox(W + step * part, step)) / step
        for term, part in zip(terms_of(problem.penalty), parts, strict=True)
    ]
    length = joint_norm(mappings)
    largest = joint_norm([mapping + part for mapping, part in zip(mappings, parts, strict=True)])
    size = jnp.maximum(jnp.maximum(norm(G), largest), scale.gradient)
    residual = length / jnp.where(size > 0, size, 1)
    gap = _gap(problem, W, value, G, scale, parts)
    return Certificate(value + problem.penalty.value(W), gap, residual)


def _split(penalty, W, G, split=None, settle=False):
    """-G in one part a term, near subgradients of the terms at W."""
    if len(terms_of(penalty)) == 1:
        return (-G,)
    if split is None:
        return penalty.split(-G, W)
    rest = -(G + sum(split)) / len(split)
    even = tuple(part + rest for part in split)
    if settle is False:  # statically: solvers' certificates go without the other split
        return even
    return tuple(jnp.where(settle, s, e) for s, e in zip(penalty.split(-G, W, split), even, strict=True))


def lambda_max(problem: Problem) -> jax.Array:
    r"""The smallest ``strength`` (`L1`) or ``alpha`` (`L21`, `L1Inf`, `ExclusiveL21`) with W = 0.

    The dual norm of :math:`\nabla f(0)`, rounded up by 4 eps, whatever strengths ``problem`` holds:
    ``max_ij |G_ij|``, ``max_i ||G_i||_2`` or, for l1,inf, ``max_i ||G_i||_1``; for exclusive l2,1 it does
    not depend on beta, since the slope of a square is 0 at zero.

    Raises:
      ValueError: no finite strength gives W = 0 (`ExclusiveLasso`).
      TypeError: the shape of W is unknown because ``smooth`` is a plain function.
    """
    check_problem("lambda_max", problem)
    if not hasattr(problem.penalty, "dual_norm"):
        raise TypeError(f"lambda_max needs a penalty with dual_norm, got {type(problem.penalty).__name__}.")
    G = jax.jit(_gradient_at_zero)(problem)
    return problem.penalty.dual_norm(G) * (1 + 4 * jnp.finfo(G.dtype).eps)


def _gradient_at_zero(problem):
    return jax.grad(problem.smooth)(zeros(problem))


def zeros(problem: Problem) -> jax.Array:
    """W = 0 of the right shape and dtype."""
    if not hasattr(problem.smooth, "params_shape"):
        raise TypeError(
            "the shape of W is unknown because smooth is a plain function: give init, or use a loss "
            "of sparsejax.losses."
        )
    return _opaque(jnp.zeros(problem.smooth.params_shape, problem.smooth.dtype))


def _opaque(zero):
    """Zeros whose product with data that a user's jit has made constants XLA does not fold for seconds."""
    return lax.optimization_barrier(zero)


class _FlatPenalty(Pytree, leaves=("penalty",), static=("restore",)):
    """A penalty on a pytree as one on the vector of all its entries."""

    penalty: Any
    restore: Any

    def __init__(self, penalty: Any, restore: Any):
        self._set(penalty=penalty, restore=restore)

    def value(self, W: jax.Array) -> jax.Array:
        return self.penalty.value(self.restore(W))

    def prox(self, V: jax.Array, scaling: ArrayLike = 1.0) -> jax.Array:
        return ravel_pytree(self.penalty.prox(self.restore(V), scaling))[0]

    @property
    def by_prox(self) -> bool:
        return getattr(self.penalty, "by_prox", False)

    def support(self, W: jax.Array) -> jax.Array:
        return ravel_pytree(support_of(self.penalty, self.restore(W)))[0]


def flattened(problem: Problem, params: Any) -> tuple[Problem, jax.Array, Any]:
    """The problem in one array, its value, and the way back: as they are if ``params`` is an array."""
    if jax.tree_util.all_leaves([params]):
        return problem, params, lambda W: W
    vector, restore = ravel_pytree(params)
    smooth = jax.tree_util.Partial(lambda smooth, W: smooth(restore(W)), problem.smooth)
    return Problem(smooth, _FlatPenalty(problem.penalty, restore)), vector, restore


def _gap(problem, W, value, G, scale, parts):
    penalty, smooth = problem.penalty, problem.smooth
    finite = getattr(penalty, "finite_conjugate", False)
    if not hasattr(penalty, "conjugate") or not (finite or hasattr(smooth, "dual_scaling")):
        return jnp.full((), jnp.nan, G.dtype)
    offset = jnp.zeros((), G.dtype)
    if scale.basis is not None:
        # A dual point must be orthogonal to the unpenalised features: take its projection, at the price of
        # the divergence of the conjugate.
        dG, offset = smooth.dual_projection(W, scale.basis)
        G = (G + dG).at[penalty.free].set(0)
    limit = penalty.dual_scale(-G)
    s, change = jnp.ones((), G.dtype), offset
    if hasattr(smooth, "dual_scaling") and scale.basis is None:
        s_loss, change_loss = smooth.dual_scaling(W, limit)
        free = jnp.isinf(limit) if finite else jnp.zeros((), bool)
        s, change = jnp.where(free, s, s_loss), jnp.where(free, change, change_loss)
        limit = jnp.where(limit == 0, 0, 1)
    primal = value + penalty.value(W)
    # The bound of a conjugate needs a split where there are several terms, and elsewhere the point.
    aux = W if len(parts) == 1 else tuple(s * part for part in parts)
    excess = penalty.value(W) + jnp.sum(G * W) + penalty.conjugate(-s * G, aux) + change
    size = jnp.maximum(jnp.abs(primal), scale.value)
    gap = jnp.maximum(excess, 0) / jnp.where(size > 0, size, 1)
    # limit < 1 for a plain function, or 0: -G cannot be scaled into the domain of the conjugate.
    return jnp.where(limit < 1, jnp.nan, gap)
