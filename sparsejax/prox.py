r"""Exact proximal operators, one row (or group) at a time, with their derivatives.

Each function solves, for one vector ``x`` of shape (p,),

.. math:: \operatorname*{argmin}_z \; \tfrac12\|z-x\|_2^2 + \text{scaling}\cdot g(z)

with :math:`g` written in its docstring. Many rows: `jax.vmap`. All are exact up to rounding, also at
ties, at ``x = 0``, at strength 0 (where they are the identity) and at huge strengths, and their
derivatives are finite there. (Squares must not underflow: entries below 1e-150, or 1e-18 in float32, count as
zero where a norm is taken.) The derivative is that of the smooth piece on which the answer lies;
at a kink it is the one of the piece where the entries at zero stay at zero.

Functions ending in ``_columns`` are the same operators on a matrix whose *columns* are the rows
of W, shape (p, ...): with the p entries leading, every step is a vector operation over the rows.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax import _group_prox
from sparsejax._linalg import safe_norm

_MAX_PASSES = 200  # of the monotone Newton iteration below; 4 to 8 are usual
_UNROLL = 64  # entries a column up to which a reduction over them is written out


def l1(x: jax.Array, strength: ArrayLike, scaling: ArrayLike = 1.0) -> jax.Array:
    r"""Soft thresholding: the prox of :math:`g(z) = \text{strength}\,\|z\|_1`.

    Args:
      x: floating, any shape (the operator is elementwise).
      strength: >= 0, broadcastable to ``x``.
      scaling: step size multiplying the penalty, >= 0, shape ().

    Returns:
      ``sign(x) max(|x| - scaling*strength, 0)``, shape and dtype of ``x``.

    Raises:
      TypeError: ``x`` is not floating.
    """
    x = _floating("l1", x)
    t = jnp.broadcast_to(_cast(strength, x) * _cast(scaling, x), x.shape)
    return _soft_threshold(x, t)


def l2(x: jax.Array, strength: ArrayLike, scaling: ArrayLike = 1.0) -> jax.Array:
    r"""Block soft thresholding: the prox of :math:`g(z) = \text{strength}\,\|z\|_2` (not squared).

    Args:
      x: one group, floating, shape (p,).
      strength: >= 0, shape ().
      scaling: step size multiplying the penalty, >= 0, shape ().

    Returns:
      ``max(1 - scaling*strength/||x||, 0) x``, shape and dtype of ``x``.

    Raises:
      TypeError, ValueError: ``x`` is not floating, or not 1-d.
    Source: Ming & Ding, IJCAI 2019, Eq. (24), with strength alpha / (2a + nu).
    """
    x = _one_group("l2", x)
    return l2_columns(x, _cast(strength, x) * _cast(scaling, x))


def squared_l1(x: jax.Array, beta: ArrayLike, scaling: ArrayLike = 1.0) -> jax.Array:
    r"""Prox of the exclusive lasso of one row, :math:`g(z) = \beta\,\|z\|_1^2`.

    Args:
      x: one row, floating, shape (p,).
      beta: >= 0, shape ().
      scaling: step size multiplying the penalty, >= 0, shape ().

    Returns:
      Soft thresholding of ``x`` at ``2*scaling*beta*||z||_1``; shape and dtype of ``x``.
      Unlike the prox of ``l1`` it is never zero unless ``x`` is.

    Raises:
      TypeError, ValueError: ``x`` is not floating, or not 1-d.
    Source: Ming & Ding, IJCAI 2019, Theorem 5; their lambda in Eq. (3) is ``2*scaling*beta``. Their
      Lemma 1(ii) must read "w_i = 0 or sign(w_i) = sign(a_i)".
    """
    x = _one_group("squared_l1", x)
    zero = jnp.zeros((), x.dtype)
    return exclusive_l21_columns(x, zero, _cast(beta, x) * _cast(scaling, x), zero)[0]


def exclusive_l21(x: jax.Array, alpha: ArrayLike, beta: ArrayLike, scaling: ArrayLike = 1.0) -> jax.Array:
    r"""Prox of exclusive l2,1 of one row, :math:`g(z) = \alpha\,\|z\|_2 + \beta\,\|z\|_1^2`.

    The answer is 0 where :math:`\|x\|_2 \le \text{scaling}\cdot\alpha`; otherwise, with
    :math:`a, b` the scaled strengths,

    .. math:: z_i = \operatorname{sign}(x_i)\,(1-a/N)\,(|x_i|-\theta)_+ ,\qquad
              \theta = 2b\,(1-a/N)\,A, \quad A=\textstyle\sum_i(|x_i|-\theta)_+,\;
              N = \|(|x|-\theta)_+\|_2 ,

    and the scalar :math:`\theta` is found by a Newton iteration that is monotone, so exact and
    finite in practice: no sort and no inner solver.

    Args:
      x: one row, floating, shape (p,).
      alpha, beta: >= 0, shape ().
      scaling: step size multiplying both, >= 0, shape ().

    Returns:
      Shape and dtype of ``x``.

    Raises:
      TypeError, ValueError: ``x`` is not floating, or not 1-d.
    Source: ours. Ming & Ding, IJCAI 2019, split the two terms and only alternate between their
      proxes (Eqs. 19-24); composing the two proxes is not the prox of the sum.
    """
    x = _one_group("exclusive_l21", x)
    scaling = _cast(scaling, x)
    alpha, beta = _cast(alpha, x) * scaling, _cast(beta, x) * scaling
    return exclusive_l21_columns(x, alpha, beta, jnp.zeros((), x.dtype))[0]


def linf(x: jax.Array, strength: ArrayLike, scaling: ArrayLike = 1.0) -> jax.Array:
    r"""Cutting off at a level: the prox of :math:`g(z) = \text{strength}\,\|z\|_\infty`.

    With t the scaled strength the answer is 0 where :math:`\|x\|_1 \le t`; otherwise

    .. math:: z_i = \operatorname{sign}(x_i)\min(|x_i|, \theta), \qquad
              \textstyle\sum_i(|x_i|-\theta)_+ = t ,

    so that every entry above the level :math:`\theta` ends at it. A monotone Newton iteration finds
    :math:`\theta`, exactly and without a sort.

    Args:
      x: one group, floating, shape (p,).
      strength: >= 0, shape ().
      scaling: step size multiplying the penalty, >= 0, shape ().

    Returns:
      Shape and dtype of ``x``.

    Raises:
      TypeError, ValueError: ``x`` is not floating, or not 1-d.
    Source: Quattoni, Carreras, Collins & Darrell, ICML 2009, for the projection on the ball of l1,inf; here
      by Moreau's identity, ``x`` minus its projection on the l1 ball of radius t.
    """
    x = _one_group("linf", x)
    return linf_columns(x, _cast(strength, x) * _cast(scaling, x))


# ---------------------------------------------------------------- the operators on columns


@jax.custom_jvp
def _soft_threshold(x, t):
    return jnp.sign(x) * jnp.maximum(jnp.abs(x) - t, 0)


@_soft_threshold.defjvp
def _soft_threshold_jvp(primals, tangents):
    (x, t), (dx, dt) = primals, tangents
    on = (jnp.abs(x) > t) | (t == 0)
    return _soft_threshold(x, t), jnp.where(on, dx - jnp.sign(x) * dt, 0)


def l2_columns(x: jax.Array, alpha: jax.Array) -> jax.Array:
    """`l2` of every column of ``x`` (p, ...); ``alpha`` is broadcastable to the columns (...)."""
    return _l2_columns(x, jnp.broadcast_to(alpha, x.shape[1:]))


@jax.custom_jvp
def _l2_columns(x, alpha):
    norm = jnp.sqrt(_sum_squares(x))
    return x * jnp.where(norm > alpha, 1 - alpha / jnp.where(norm > 0, norm, 1), 0)[None]


@_l2_columns.defjvp
def _l2_columns_jvp(primals, tangents):
    # On the active piece z = (1 - alpha/n) x with n = ||x||, u = x/n:
    # dz = (1 - alpha/n) dx + (alpha/n) u (u.dx) - u dalpha.
    (x, alpha), (dx, dalpha) = primals, tangents
    z = _l2_columns(x, alpha)
    norm, alpha, dalpha = safe_norm(x)[None], alpha[None], dalpha[None]
    on = (norm > alpha) | (alpha == 0)
    safe = jnp.where(norm > 0, norm, 1)
    u, p = x / safe, alpha / safe
    dz = (1 - p) * dx + u * (p * jnp.sum(u * dx, axis=0, keepdims=True) - dalpha)
    return z, jnp.where(on, dz, 0)


def exclusive_l21_columns(
    x: jax.Array, alpha: jax.Array, beta: jax.Array, start: jax.Array, passes: int | None = None
):
    """`exclusive_l21` of every column of ``x`` (p, ...), and its thetas (...).

    ``alpha`` and ``beta`` are broadcastable to the columns (...). ``start`` (...) is a guess of theta,
    say from the last call of an iterative solver: any value is correct, a near one saves passes.
    ``passes`` limits the Newton steps, for a solver whose guesses get better as it converges: the error
    of theta is then of the order of the square of that of the guess, for one pass.
    """
    columns = x.shape[1:]
    alpha, beta = jnp.broadcast_to(alpha, columns), jnp.broadcast_to(beta, columns)
    if passes is None:
        return _exclusive_l21_columns(x, alpha, beta, lax.stop_gradient(start))
    return _with_threshold(x, alpha, beta, start, passes)


@jax.custom_jvp
def _exclusive_l21_columns(x, alpha, beta, start):
    return _with_threshold(x, alpha, beta, start, None)


def _with_threshold(x, alpha, beta, start, passes):
    m = jnp.abs(x)
    # As a reduction: XLA computes anything simpler anew for every entry in which it is used.
    top = jnp.max(m, axis=0)
    below = top[None] - m
    delta, alive = _threshold(below, top, alpha, beta, start, passes)
    a1, n2, _ = _moments(delta, below)
    norm, a1 = jnp.sqrt(n2), 2 * beta * a1
    theta = top - delta
    # The same number either way; the first is exact at theta = 0, the second keeps digits near top.
    r = jnp.maximum(jnp.where((theta < delta)[None], m - theta[None], delta[None] - below), 0)
    # kappa = 1 - alpha/N = theta / (2 beta A): the first cancels where kappa is small (huge beta),
    # the second where theta is; take the one that keeps more digits.
    kappa = 1 - alpha / jnp.where(norm > 0, norm, 1)
    kappa = jnp.where(theta > top * kappa, theta / jnp.where(a1 > 0, a1, 1), kappa)
    kappa = jnp.where(alive, jnp.maximum(kappa, 0), 0)
    return jnp.sign(x) * (kappa[None] * r), theta


@functools.partial(jax.jit, static_argnames="passes")  # eagerly, a loop would be compiled anew every time
def _threshold(below, top, alpha, beta, start, passes):
    """Solve theta = 2 beta A (1 - alpha/N) in each column; returns delta = top - theta.

    psi(theta) = A (1 - alpha/N) is convex and decreasing where N > alpha, kinks included (A is
    piecewise linear and convex, -A/N is convex on every piece, and at a kink only the slope of A
    jumps, upwards, with the factor 1 - alpha/N >= 0). So theta - 2 beta psi is concave and
    increasing: one Newton step from anywhere lands at or left of the root, and from there Newton
    rises monotonically without overshooting, however the active set changes on the way.
    The unknown is delta = max|x| - theta, and r = (delta - below)_+ with below = max|x| - |x|, so
    that nothing cancels when beta is huge and theta close to max|x|; the equation is divided by
    1 + 2 beta, so that nothing overflows.
    """
    b, rest = 2 * beta / (1 + 2 * beta), 1 / (1 + 2 * beta)

    def newton(delta):
        a1, n2, count = _moments(delta, below)
        n2 = jnp.where(n2 > 0, n2, 1)
        norm = jnp.sqrt(n2)
        p = alpha / norm
        value = rest * (delta - top) + b * a1 * (1 - p)
        slope = rest + b * (count * (1 - p) + p * a1 * a1 / n2)
        return jnp.where(norm > alpha, delta - value / slope, top), norm > alpha

    alive = jnp.sqrt(_sum_squares(top[None] - below)) > alpha
    # theta = 2 beta A (1 - alpha/N) <= 2 beta p delta bounds delta from below, away from 0.
    least = top * rest / (rest + b * below.shape[0])
    # theta >= 0 is delta <= top. A guess outside (0, top], or at which N <= alpha, falls back to top.
    guess = top - start
    guess = jnp.where((guess > 0) & (guess <= top), guess, top)
    first, usable = newton(guess)
    delta = jnp.where(usable, jnp.clip(first, least, top), top)
    if passes is not None:
        for _ in range(passes - 1):
            new, usable = newton(delta)
            delta = jnp.where(usable, jnp.clip(new, least, top), delta)
        return delta, alive

    def cond(carry):
        _, moving, n = carry
        return jnp.any(moving) & (n < _MAX_PASSES)

    def body(carry):
        delta, _, n = carry
        new, usable = newton(delta)
        # Monotone until rounding: the first step that does not shrink delta is the last. It is
        # taken all the same, since it repairs what the long step before it lost to cancellation.
        moving = usable & (new < delta * (1 - 4 * jnp.finfo(delta.dtype).eps))
        return jnp.where(usable, jnp.clip(new, least, top), delta), moving, n + 1

    delta, _, _ = lax.while_loop(cond, body, (delta, alive, jnp.int32(0)))
    return delta, alive


@_exclusive_l21_columns.defjvp
def _exclusive_l21_columns_jvp(primals, tangents):
    # On the support, with t = ||w||, u = w/t, s = sign(w), p = alpha/t, q = 1 + p, S = ||w||_1:
    # (q I - p u u' + 2 beta s s') dw = dx - u dalpha - 2 S s dbeta; solved for its two rank-one
    # terms in closed form. At strength 0 the support is everything: the prox is the identity.
    (x, alpha, beta, start), (dx, dalpha, dbeta, _) = primals, tangents
    w, theta = _exclusive_l21_columns(x, alpha, beta, start)
    alpha, beta, dalpha, dbeta = alpha[None], beta[None], dalpha[None], dbeta[None]
    add = functools.partial(jnp.sum, axis=0, keepdims=True)
    on = (w != 0) | ((alpha == 0) & (beta == 0))
    dx = jnp.where(on, dx, 0)
    s = jnp.sign(w)
    t = safe_norm(w)[None]
    safe = jnp.where(t > 0, t, 1)
    u, p = w / safe, jnp.where(t > 0, alpha / safe, 0)
    total, tau = add(jnp.abs(w)), add(jnp.abs(s))
    q, g = 1 + p, total / safe
    # beta enters as b = 2 beta / (1 + 2 beta), which keeps huge strengths finite.
    b, rest = 2 * beta / (1 + 2 * beta), 1 / (1 + 2 * beta)
    rhs = dx - u * dalpha - 2 * s * (total * dbeta)
    u_rhs, s_rhs = add(u * rhs), add(s * rhs)
    det = rest * q + b * tau + b * p * g * g
    x1 = ((rest * q + b * tau) * u_rhs - b * g * s_rhs) / det
    x2 = b * (s_rhs + p * g * u_rhs) / det
    dw = jnp.where(on, (rhs + u * (p * x1) - s * x2) / q, 0)
    return (w, theta), (dw, jnp.zeros_like(theta))


def linf_columns(x: jax.Array, strength: jax.Array) -> jax.Array:
    """`linf` of every column of ``x`` (p, ...); ``strength`` is broadcastable to the columns (...)."""
    return _linf_columns(x, jnp.broadcast_to(strength, x.shape[1:]))


@jax.custom_jvp
def _linf_columns(x, t):
    return jnp.sign(x) * jnp.minimum(jnp.abs(x), _level(jnp.abs(x), t)[None])


@jax.jit
def _level(m, t):
    """The theta of `linf` in each column of m = |x|, 0 where the column ends at zero.

    The sum of (m - theta)_+ is convex and decreasing in theta, so Newton from theta = 0 is monotone, and
    it is exact as soon as it knows which entries are above. The unknown is delta = max(m) - theta, so that
    nothing cancels when t is small and theta close to max(m).
    """
    top = jnp.max(m, axis=0)
    below = top[None] - m

    def newton(delta):
        total, _, count = _moments(delta, below)
        return delta - (total - t) / jnp.where(count > 0, count, 1)

    def cond(carry):
        _, moving, n = carry
        return jnp.any(moving) & (n < _MAX_PASSES)

    def body(carry):
        delta, _, n = carry
        new = newton(delta)
        # As in `_threshold`: the first step that does not shrink delta is the last, and is taken.
        moving = alive & (new < delta * (1 - 4 * jnp.finfo(delta.dtype).eps))
        return jnp.where(alive, jnp.clip(new, 0, top), delta), moving, n + 1

    alive = jnp.sum(m, axis=0) > t
    delta, _, _ = lax.while_loop(cond, body, (top, alive, jnp.int32(0)))
    return jnp.where(t > 0, top - delta, top)


@_linf_columns.defjvp
def _linf_columns_jvp(primals, tangents):
    # Entries that end at the level theta = max|z| move with it, the others freely. With s = sign(x) and
    # tau the number at the level, dtheta = (sum over them of s dx - dt) / tau. At t = 0, where
    # theta = max|x|, the entries at the level are free too, and fall at the rate 1 / tau as t grows.
    (x, t), (dx, dt) = primals, tangents
    z = _linf_columns(x, t)
    theta = jnp.max(jnp.abs(z), axis=0, keepdims=True)
    free, zero = (t == 0)[None], theta == 0
    at = jnp.abs(x) >= theta
    s = jnp.where(at, jnp.sign(x), 0)
    tau = jnp.sum(at.astype(x.dtype), axis=0, keepdims=True)
    level = jnp.sum(s * dx, axis=0, keepdims=True) / tau
    dz = jnp.where(at & ~free, s * level, dx) - s * (dt[None] / tau)
    return z, jnp.where(zero & ~free, 0, dz)


@jax.jit
def tail_threshold(z: jax.Array, alpha: jax.Array) -> jax.Array:
    r"""The smallest m >= 0 with :math:`\|(|z|-m)_+\|_2 \le \alpha`, for every column of ``z`` (p, ...).

    It gives the conjugate of exclusive l2,1: each row contributes :math:`m^2/(4\beta)`.
    N(m) is convex and decreasing, so Newton from the left is monotone; as above the unknown is
    delta = max|z| - m, which keeps small m and small alpha accurate.
    """
    u = jnp.abs(z)
    top = jnp.max(u, axis=0)
    below = top[None] - u
    alpha = jnp.broadcast_to(alpha, top.shape)

    def newton(delta):
        a1, n2, _ = _moments(delta, below)
        norm = jnp.sqrt(n2)
        return delta - (norm - alpha) * norm / jnp.where(a1 > 0, a1, 1), norm > alpha

    def cond(carry):
        _, moving, n = carry
        return jnp.any(moving) & (n < _MAX_PASSES)

    def body(carry):
        delta, _, n = carry
        new, outside = newton(delta)
        moving = outside & (new < delta * (1 - 4 * jnp.finfo(delta.dtype).eps))
        return jnp.where(outside, jnp.clip(new, 0, delta), delta), moving, n + 1

    delta, _, _ = lax.while_loop(cond, body, (top, top > 0, jnp.int32(0)))
    return top - delta


def exclusive_group_l21(V: jax.Array, alpha: ArrayLike, groups: Any, scaling: ArrayLike = 1.0) -> jax.Array:
    r"""The prox of :math:`g(U) = \sum_g \alpha_g (\sum_{i\in g}\|u_i\|_2)^2`, all rows at once.

    Rows keep their directions; their norms solve a nonnegative quadratic programme, by a semismooth Newton
    method that ends exactly: closed form for disjoint groups, a Cholesky factorisation of d x d up to 1024
    features, conjugate gradients beyond, in time proportional to the number of memberships.

    Args:
      V: floating, (d, k), or (d,) for rows of one entry.
      alpha: >= 0, shape () or one a group, (G,).
      groups: `sparsejax.groups.Groups` of d features; rows in no group stay as they are.
      scaling: step size multiplying the penalty, >= 0, shape ().

    Returns:
      U, shape and dtype of ``V``.

    Raises:
      TypeError, ValueError: ``V`` is not floating or does not have d rows; alpha of another shape.
    Source: the penalty: Kong et al., AAAI 2016, Eq. (2) and (19), where the prox is found by reweighting.
    """
    V = _floating("exclusive_group_l21", V)
    if V.ndim not in (1, 2) or V.shape[0] != groups.num_features:
        raise ValueError(
            f"prox.exclusive_group_l21: V has shape {V.shape}; it must have {groups.num_features} rows, as "
            "groups has features."
        )
    strength = _cast(alpha, V) * _cast(scaling, V)
    if strength.shape not in ((), (groups.num_groups,)):
        raise ValueError(
            f"prox.exclusive_group_l21: alpha has shape {strength.shape}; it must be a scalar or one value a "
            f"group, ({groups.num_groups},)."
        )
    columns = V[None] if V.ndim == 1 else V.T
    U, _ = _group_prox.exclusive_group_l21_columns(columns, strength, groups, None)
    return U[0] if V.ndim == 1 else U.T


# ---------------------------------------------------------------- helpers


def _moments(delta, below):
    """Sum, sum of squares and number of the positive entries r of delta - below, column by column.

    One pass over the matrix. Written out for the usual few entries a column, because XLA on a CPU
    takes up to 20 times as long for three separate reductions along a short leading axis, and
    about twice as long for one reduction with three results (which is what long columns get).
    """

    def add(x, y):
        return tuple(a + b for a, b in zip(x, y, strict=True))

    def powers(r):
        return r, r * r, (r > 0).astype(r.dtype)

    if below.shape[0] <= _UNROLL:
        return _fold(add, [powers(jnp.maximum(delta - row, 0)) for row in below])
    zero = jnp.zeros((), below.dtype)
    return lax.reduce(powers(jnp.maximum(delta[None] - below, 0)), (zero,) * 3, add, (0,))


def _fold(operation, rows):
    return functools.reduce(operation, list(rows))


def _sum_squares(x):
    """Of every column; written out for short columns for the same reason."""
    return _fold(jnp.add, x * x) if x.shape[0] <= _UNROLL else jnp.sum(x * x, axis=0)


def _cast(value: ArrayLike, like: jax.Array) -> jax.Array:
    return jnp.asarray(value, like.dtype)


def _floating(name: str, x: jax.Array) -> jax.Array:
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"prox.{name} needs a floating array, got {x.dtype}.")
    return x


def _one_group(name: str, x: jax.Array) -> jax.Array:
    x = _floating(name, x)
    if x.ndim != 1 or x.size == 0:
        raise ValueError(
            f"prox.{name}: one group has shape (p,) with p >= 1, got {x.shape}; use jax.vmap over groups."
        )
    return x
