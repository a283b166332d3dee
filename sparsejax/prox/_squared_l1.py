"""Proximal operators of the exclusive lasso and of exclusive l2,1, and a threshold for its conjugate."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.linalg import safe_divide, safe_norm, unit_of
from sparsejax.prox._arguments import factor, one_group
from sparsejax.prox._threshold import moments, newton, sum_squares

Arrays = tuple[jax.Array, ...]
Pair = tuple[jax.Array, jax.Array]


def squared_l1(x: jax.Array, beta: ArrayLike, scaling: ArrayLike = 1.0) -> jax.Array:
    r"""Prox of the exclusive lasso of one row, :math:`g(z) = \beta\,\|z\|_1^2`.

    Args:
      x: one row, floating, shape (p,).
      beta: >= 0, shape ().
      scaling: step size multiplying the penalty, >= 0, shape ().

    Returns:
      Soft thresholding of ``x`` at ``2*scaling*beta*||z||_1``; shape and dtype of ``x``.
      Unlike the prox of ``l1``, it is zero only if ``x`` is zero.

    Raises:
      TypeError, ValueError: ``x`` is not floating, not 1-d or empty; beta or scaling is negative or not a
        scalar.
    Source: Ming & Ding, IJCAI 2019, Theorem 5; their lambda in Eq. (3) is ``2*scaling*beta``. Their
      Lemma 1(ii) must read "w_i = 0 or sign(w_i) = sign(a_i)".

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> print(sj.prox.squared_l1(jnp.array([3.0, 0.5]), 0.5))
    [1.5 0. ]
    """
    x = one_group("squared_l1", x)
    (unit, _), zero = unit_of(x), jnp.zeros((), x.dtype)
    beta = factor("squared_l1", "beta", beta, x) * factor("squared_l1", "scaling", scaling, x)
    return unit * exclusive_l21_columns(x / unit, zero, beta, zero)[0]


def exclusive_l21(x: jax.Array, alpha: ArrayLike, beta: ArrayLike, scaling: ArrayLike = 1.0) -> jax.Array:
    r"""Prox of exclusive l2,1 of one row, :math:`g(z) = \alpha\,\|z\|_2 + \beta\,\|z\|_1^2`.

    The answer is 0 where :math:`\|x\|_2 \le \text{scaling}\cdot\alpha`; otherwise, with
    :math:`a, b` the scaled strengths,

    .. math:: z_i = \operatorname{sign}(x_i)\,(1-a/N)\,(|x_i|-\theta)_+ ,\qquad
              \theta = 2b\,(1-a/N)\,A, \quad A=\textstyle\sum_i(|x_i|-\theta)_+,\;
              N = \|(|x|-\theta)_+\|_2 ,

    A monotone Newton iteration finds the scalar :math:`\theta`, without a sort or an inner solver. In
    practice it ends after a few steps at the exact value, up to rounding.

    Args:
      x: one row, floating, shape (p,).
      alpha, beta: >= 0, shape ().
      scaling: step size multiplying both, >= 0, shape ().

    Returns:
      Shape and dtype of ``x``.

    Raises:
      TypeError, ValueError: ``x`` is not floating, not 1-d or empty; a strength or scaling is negative or not
        a scalar.
    Source: derived here. Ming & Ding, IJCAI 2019, split the two terms and alternate between their proxes
      (Eqs. 19-24); the composition of the two proxes is not the prox of the sum.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> print(sj.prox.exclusive_l21(jnp.array([3.0, 0.5]), 0.5, 0.5))
    [1.25 0.  ]
    >>> print(sj.prox.exclusive_l21(jnp.array([0.3, 0.4]), 0.5, 0.5))
    [0. 0.]
    """
    x = one_group("exclusive_l21", x)
    name, (unit, inverse) = "exclusive_l21", unit_of(x)
    scaling = factor(name, "scaling", scaling, x)
    alpha, beta = factor(name, "alpha", alpha, x) * scaling, factor(name, "beta", beta, x) * scaling
    return unit * exclusive_l21_columns(x / unit, alpha * inverse, beta, jnp.zeros((), x.dtype))[0]


def exclusive_l21_columns(
    x: jax.Array, alpha: jax.Array, beta: jax.Array, start: jax.Array, rough: bool = False
) -> Pair:
    """`exclusive_l21` of every column of ``x`` (p, ...), and its thetas (...).

    ``alpha`` and ``beta`` are broadcastable to the columns (...). ``start`` (...) is a guess of theta, such
    as the theta of the last call. A near guess saves passes over x; the result does not depend on the guess,
    unless ``rough``. ``rough`` is for solvers whose guesses improve as they converge: the last Newton step
    changes delta = max|x| - theta by at most a tenth, and the error left in delta is of the order of 1 %.
    """
    columns = x.shape[1:]
    alpha, beta = jnp.broadcast_to(alpha, columns), jnp.broadcast_to(beta, columns)
    # A product of strength and step size may overflow; beta / (0.5 + beta) of an infinite beta would be NaN.
    beta = jnp.minimum(beta, float(jnp.finfo(x.dtype).max))
    return _shrink(x, alpha, beta, lax.stop_gradient(start), rough)


@functools.partial(jax.custom_jvp, nondiff_argnums=(4,))
def _shrink(x: jax.Array, alpha: jax.Array, beta: jax.Array, start: jax.Array, rough: bool) -> Pair:
    m = jnp.abs(x)
    # The maximum is stored once: XLA would recompute a cheaper expression for every entry that uses it.
    top = jnp.max(m, axis=0)
    below = top[None] - m
    delta, alive = _threshold(below, top, alpha, beta, start, rough)
    a1, n2, _ = moments(delta, below)
    norm, twice_beta_a = jnp.sqrt(n2), 2 * beta * a1
    theta = top - delta
    # r = m - theta in both forms: the first is exact at theta = 0, the second has more digits near top.
    r = jnp.maximum(jnp.where((theta < delta)[None], m - theta[None], delta[None] - below), 0)
    # kappa = 1 - alpha/N = theta / (2 beta A): the first form cancels where kappa is small (huge beta), the
    # second where theta is small. The second has more digits if 2 beta A > top. (The test theta > top * kappa
    # would be equivalent without rounding, but kappa is pure rounding error where alpha = ||x||.)
    kappa = 1 - safe_divide(alpha, norm)
    kappa = jnp.where(twice_beta_a > top, safe_divide(theta, twice_beta_a, kappa), kappa)
    kappa = jnp.where(alive, jnp.maximum(kappa, 0), jnp.where(jnp.isnan(alpha), alpha, 0))
    return jnp.sign(x) * (kappa[None] * r), theta


@functools.partial(jax.jit, static_argnames="rough")  # without jit an eager call would compile the loop
def _threshold(
    below: jax.Array, top: jax.Array, alpha: jax.Array, beta: jax.Array, start: jax.Array, rough: bool
) -> Pair:
    """Solve theta = 2 beta A (1 - alpha/N) in each column; returns delta = top - theta, and ||x|| > alpha.

    psi(theta) = A (1 - alpha/N) is convex and decreasing where N > alpha, kinks included (A is
    piecewise linear and convex, -A/N is convex on every piece, and at a kink only the slope of A
    jumps, upwards, with the factor 1 - alpha/N >= 0). So theta - 2 beta psi is concave and
    increasing: one Newton step from anywhere lands at or left of the root, and from there Newton
    rises monotonically without overshooting, however the active set changes on the way.
    The equation is divided by 1 + 2 beta, so that nothing overflows.
    """
    b, complement = beta / (0.5 + beta), 0.5 / (0.5 + beta)  # 2 beta / (1 + 2 beta), 1 / (1 + 2 beta)

    def step(delta: jax.Array) -> Pair:
        a1, n2, count = moments(delta, below)
        n2 = jnp.where(n2 > 0, n2, 1)
        norm = jnp.sqrt(n2)
        p = alpha / norm
        # (2 beta psi - theta) / (1 + 2 beta), which increases in delta, and its slope: the derivative of A in
        # delta is the number of active entries, and the derivative of N is A/N.
        value = complement * (delta - top) + b * a1 * (1 - p)
        slope = complement + b * (count * (1 - p) + p * a1 * a1 / n2)
        return delta - safe_divide(value, slope), norm > alpha  # slope 0: delta is 0 and beta huge

    alive = jnp.sqrt(sum_squares(top[None] - below)) > alpha
    # theta = 2 beta A (1 - alpha/N) <= 2 beta m delta, with m entries in x, gives a lower bound > 0 of delta.
    least = top * complement / (complement + b * below.shape[0])
    return newton(step, top, alive, least=least, guess=top - start, rough=rough), alive


@_shrink.defjvp
def _shrink_jvp(rough: bool, primals: Arrays, tangents: Arrays) -> tuple[Pair, Pair]:
    # On the support, with t = ||w||, u = w/t, s = sign(w), p = alpha/t, q = 1 + p, S = ||w||_1:
    # (q I - p u u' + 2 beta s s') dw = dx - u dalpha - 2 S s dbeta; solved for its two rank-one
    # terms in closed form. At strength 0 the support is everything: the prox is the identity. With beta = 0
    # the prox is w = (1 - alpha/||x||) x, so that every entry of a nonzero column is on the support.
    (x, alpha, beta, start), (dx, dalpha, dbeta, _) = primals, tangents
    w, theta = _shrink(x, alpha, beta, start, rough)
    alpha, beta, dalpha, dbeta = alpha[None], beta[None], dalpha[None], dbeta[None]
    add = functools.partial(jnp.sum, axis=0, keepdims=True)
    on = (w != 0) | ((beta == 0) & ((alpha == 0) | jnp.any(w != 0, axis=0, keepdims=True)))
    s = jnp.sign(w)
    if len(x) == 1:  # with alpha = 0 the prox of one entry is x / (1 + 2 beta), also at 0
        on, s = on | (alpha == 0), jnp.where(w == 0, 1, s)
    dx = jnp.where(on, dx, 0)
    t = safe_norm(w)[None]
    u, p = safe_divide(w, t), safe_divide(alpha, t)
    total, tau = add(jnp.abs(w)), add(jnp.abs(s))
    q, g = 1 + p, safe_divide(total, t)
    # beta enters as b = 2 beta / (1 + 2 beta), which keeps huge strengths finite.
    b, complement = beta / (0.5 + beta), 0.5 / (0.5 + beta)
    rhs = dx - u * dalpha - 2 * s * (total * dbeta)
    u_rhs, s_rhs = add(u * rhs), add(s * rhs)
    det = complement * q + b * tau + b * p * g * g
    x1 = safe_divide((complement * q + b * tau) * u_rhs - b * g * s_rhs, det)
    x2 = safe_divide(b * (s_rhs + p * g * u_rhs), det)
    dw = jnp.where(on, (rhs + u * (p * x1) - s * x2) / q, 0)
    # theta serves only as the guess of the next call, which has no derivative.
    return (w, theta), (dw, jnp.zeros_like(theta))


@jax.custom_jvp
@jax.jit
def tail_threshold(z: jax.Array, alpha: jax.Array) -> jax.Array:
    r"""The smallest m >= 0 with :math:`\|(|z|-m)_+\|_2 \le \alpha`, for every column of ``z`` (p, ...).

    The conjugate of exclusive l2,1 is the sum of :math:`m^2/(4\beta)` over rows. The norm is convex and
    decreasing in m, so that Newton's method from m = 0 is monotone.
    """
    u = jnp.abs(z)
    top = jnp.max(u, axis=0)
    below = top[None] - u
    alpha = jnp.broadcast_to(alpha, top.shape)

    def step(delta: jax.Array) -> Pair:
        a1, n2, _ = moments(delta, below)
        norm = jnp.sqrt(n2)
        return delta - safe_divide((norm - alpha) * norm, a1), norm > alpha

    return top - newton(step, top, top > 0)


@tail_threshold.defjvp
def _tail_threshold_jvp(primals: Arrays, tangents: Arrays) -> Pair:
    # With r = (|z| - m)_+ the equation ||r||_2 = alpha gives <r, d|z|> - sum(r) dm = alpha dalpha. At
    # alpha = 0 r is 0; then the limit for alpha -> 0, with r = alpha / sqrt(c) in all c largest entries.
    (z, alpha), (dz, dalpha) = primals, tangents
    m, u = tail_threshold(z, alpha), jnp.abs(z)
    alive = m > 0
    r, alpha = jnp.maximum(u - m[None], 0), jnp.broadcast_to(alpha, m.shape)
    total = jnp.sum(r, axis=0)
    largest = (u == m[None]).astype(u.dtype)
    count = jnp.sum(largest, axis=0)
    shares = safe_divide(r, total[None], largest / jnp.maximum(count, 1)[None])
    per_alpha = safe_divide(alpha, total, safe_divide(1.0, jnp.sqrt(count)))
    shares, per_alpha = jnp.where(alive[None], shares, 0), jnp.where(alive, per_alpha, 0)
    return m, jnp.sum(shares * jnp.sign(z) * dz, axis=0) - per_alpha * dalpha
