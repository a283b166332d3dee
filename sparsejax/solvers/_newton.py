"""Newton's method on the support of W: the last digits, for which first-order steps take long."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._linalg import conjugate_gradients
from sparsejax.penalties import support_of
from sparsejax.problem import Certificate, Problem, Scale, certify

ROUNDS = 5
INNER = 1000  # conjugate gradient steps at most, in each


class _Carry(NamedTuple):
    W: jax.Array
    certificate: Certificate
    n: jax.Array
    go: jax.Array


def newton_on_support(
    problem: Problem,
    W: jax.Array,
    parts: tuple[jax.Array, ...] | None,
    step: jax.Array,
    scale: Scale,
    active: jax.Array,
) -> tuple[jax.Array, Certificate]:
    """Up to 5 Newton steps in the entries where the penalty is smooth; returns W and its certificate.

    The system is symmetric positive semidefinite and solved by conjugate gradients on Hessian
    products, so that dependent columns do no harm. Zeros stay exactly zero. A step is kept only if
    the residual falls and the gap does not rise beyond rounding; the first that is not ends the
    method. W is certified and kept where ``active`` is False. ``parts``: as the split of `certify`.
    """
    if getattr(problem.penalty, "by_prox", False):  # not known where it is smooth
        return W, certify(problem, W, step, scale, parts)
    support = support_of(problem.penalty, W)
    mask = support.astype(W.dtype)
    eps = float(jnp.finfo(W.dtype).eps)
    active &= jnp.any(support)

    def gradient(V):
        return jax.grad(problem)(V) * mask

    def body(c: _Carry) -> _Carry:
        first = c.n == 0  # no step yet: this pass certifies W, by the one certificate in the program
        value, hessian = jax.linearize(gradient, c.W)
        rhs = jnp.where(first, 0, value)
        new = c.W - conjugate_gradients(lambda D: hessian(D * mask), rhs, lambda r: r, eps, INNER)
        trial = certify(problem, new, step, scale, parts, ~first)
        # The gap is flat at its rounding error long before the residual is.
        keep = (trial.residual < c.certificate.residual) & ~(trial.gap > c.certificate.gap + 10 * eps)
        keep |= first
        pick = lambda a, b: jnp.where(keep, a, b)
        certificate = Certificate(*map(pick, trial, c.certificate))
        return _Carry(pick(new, c.W), certificate, c.n + 1, keep & active)

    unknown = jnp.zeros((), W.dtype)
    carry = _Carry(W, Certificate(unknown, unknown, unknown), jnp.int32(0), jnp.ones((), bool))
    carry = lax.while_loop(lambda c: c.go & (c.n <= ROUNDS), body, carry)
    return carry.W, carry.certificate
