"""Proximal operators of the norms l1, l2 and l infinity (not squared)."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax._core.linalg import safe_divide, safe_norm, unit_of
from sparsejax.prox._arguments import factor, floating, one_group
from sparsejax.prox._threshold import moments, newton, sum_squares

Arrays = tuple[jax.Array, ...]


def l1(x: jax.Array, strength: ArrayLike, scaling: ArrayLike = 1.0) -> jax.Array:
    r"""Soft thresholding: the prox of :math:`g(z) = \text{strength}\,\|z\|_1`.

    Args:
      x: floating, any shape (the operator is elementwise).
      strength: >= 0, broadcastable to ``x``.
      scaling: step size multiplying the penalty, >= 0, shape ().

    Returns:
      ``sign(x) max(|x| - scaling*strength, 0)``, shape and dtype of ``x``.

    Raises:
      TypeError, ValueError: ``x`` is not floating; strength or scaling is negative or of another shape.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> print(sj.prox.l1(jnp.array([3.0, -0.5]), 1.0))
    [ 2. -0.]
    """
    x = floating("l1", "x", x)
    t = factor("l1", "strength", strength, x, tuple(range(x.ndim + 1))) * factor("l1", "scaling", scaling, x)
    try:
        t = jnp.broadcast_to(t, x.shape)
    except ValueError:
        raise ValueError(f"prox.l1: strength has shape {t.shape}, x has {x.shape}.") from None
    return _soft_threshold(x, t)


def soft_threshold(x: jax.Array, t: jax.Array) -> jax.Array:
    """`l1` with threshold t, of the rank of x and broadcastable to it; of any floating dtype, unchecked."""
    return _soft_threshold(x, jnp.broadcast_to(t, x.shape))


@jax.custom_jvp
def _soft_threshold(x: jax.Array, t: jax.Array) -> jax.Array:
    return jnp.sign(x) * jnp.maximum(jnp.abs(x) - t, 0)


@_soft_threshold.defjvp
def _soft_threshold_jvp(primals: Arrays, tangents: Arrays) -> tuple[jax.Array, jax.Array]:
    # dz = dx - sign(x) dt where |x| > t, else 0; for t = 0 the prox is the identity, also at x = 0.
    (x, t), (dx, dt) = primals, tangents
    on = (jnp.abs(x) > t) | (t == 0)
    return _soft_threshold(x, t), jnp.where(on, dx - jnp.sign(x) * dt, 0)


def l2(x: jax.Array, strength: ArrayLike, scaling: ArrayLike = 1.0) -> jax.Array:
    r"""Block soft thresholding: the prox of :math:`g(z) = \text{strength}\,\|z\|_2` (not squared).

    Args:
      x: one group, floating, shape (p,).
      strength: >= 0, shape ().
      scaling: step size multiplying the penalty, >= 0, shape ().

    Returns:
      ``max(1 - scaling*strength/||x||, 0) x``, shape and dtype of ``x``.

    Raises:
      TypeError, ValueError: ``x`` is not floating, not 1-d or empty; strength or scaling is negative or not a
        scalar.
    Source: Ming & Ding, IJCAI 2019, Eq. (24), where the strength is written alpha / (2a + nu).

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> print(sj.prox.l2(jnp.array([3.0, 4.0]), 2.5))
    [1.5 2. ]
    """
    x = one_group("l2", x)
    unit, inverse = unit_of(x)  # squares of x / unit neither over- nor underflow
    t = factor("l2", "strength", strength, x) * factor("l2", "scaling", scaling, x)
    return unit * l2_columns(x / unit, t * inverse)


def l2_columns(x: jax.Array, alpha: jax.Array) -> jax.Array:
    """`l2` of every column of ``x`` (p, ...); ``alpha`` is broadcastable to the columns (...)."""
    return _l2_columns(x, jnp.broadcast_to(alpha, x.shape[1:]))


@jax.custom_jvp
def _l2_columns(x: jax.Array, alpha: jax.Array) -> jax.Array:
    norm = jnp.sqrt(sum_squares(x))
    return x * jnp.where(norm <= alpha, 0, 1 - safe_divide(alpha, norm))[None]  # NaN if alpha is NaN


@_l2_columns.defjvp
def _l2_columns_jvp(primals: Arrays, tangents: Arrays) -> tuple[jax.Array, jax.Array]:
    # On the active piece z = (1 - alpha/n) x with n = ||x||, u = x/n:
    # dz = (1 - alpha/n) dx + (alpha/n) u (u.dx) - u dalpha. For alpha = 0, dz = dx also at x = 0.
    (x, alpha), (dx, dalpha) = primals, tangents
    z = _l2_columns(x, alpha)
    norm, alpha, dalpha = safe_norm(x)[None], alpha[None], dalpha[None]
    on = (norm > alpha) | (alpha == 0)
    u, p = safe_divide(x, norm), safe_divide(alpha, norm)
    dz = (1 - p) * dx + u * (p * jnp.sum(u * dx, axis=0, keepdims=True) - dalpha)
    return z, jnp.where(on, dz, 0)


def linf(x: jax.Array, strength: ArrayLike, scaling: ArrayLike = 1.0) -> jax.Array:
    r"""Clipping at a level: the prox of :math:`g(z) = \text{strength}\,\|z\|_\infty`.

    With t the scaled strength, z = 0 if :math:`\|x\|_1 \le t`; otherwise

    .. math:: z_i = \operatorname{sign}(x_i)\min(|x_i|, \theta), \qquad
              \textstyle\sum_i(|x_i|-\theta)_+ = t ,

    so that every entry above the level :math:`\theta` becomes :math:`\theta`. A monotone Newton iteration
    finds :math:`\theta` exactly and without a sort.

    Args:
      x: one group, floating, shape (p,).
      strength: >= 0, shape ().
      scaling: step size multiplying the penalty, >= 0, shape ().

    Returns:
      Shape and dtype of ``x``.

    Raises:
      TypeError, ValueError: ``x`` is not floating, not 1-d or empty; strength or scaling is negative or not a
        scalar.
    Source: Quattoni, Carreras, Collins & Darrell, ICML 2009, for the projection on the ball of l1,inf. By
      Moreau's identity the prox is ``x`` minus its projection on the l1 ball of radius t.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> print(sj.prox.linf(jnp.array([3.0, 1.0]), 1.0))
    [2. 1.]
    """
    x = one_group("linf", x)
    return linf_columns(x, factor("linf", "strength", strength, x) * factor("linf", "scaling", scaling, x))


def linf_columns(x: jax.Array, strength: jax.Array) -> jax.Array:
    """`linf` of every column of ``x`` (p, ...); ``strength`` is broadcastable to the columns (...)."""
    return _linf_columns(x, jnp.broadcast_to(strength, x.shape[1:]))


@jax.custom_jvp
def _linf_columns(x: jax.Array, t: jax.Array) -> jax.Array:
    return jnp.sign(x) * jnp.minimum(jnp.abs(x), _level(jnp.abs(x), t)[None])


@jax.jit  # without jit an eager call would compile the loop every time
def _level(m: jax.Array, t: jax.Array) -> jax.Array:
    """The theta of `linf` for each column of m = |x|; 0 for a column whose prox is zero.

    The sum of (m - theta)_+ is convex, decreasing and piecewise linear in theta, so that Newton's method from
    theta = 0 is monotone, and exact as soon as the set of entries above theta is right. The unknown is
    delta = max(m) - theta, with below = max(m) - m: sum (delta - below)_+ = t.
    """
    top = jnp.max(m, axis=0)
    below = top[None] - m
    alive = jnp.sum(m, axis=0) > t

    def step(delta: jax.Array) -> tuple[jax.Array, jax.Array]:
        total, _, count = moments(delta, below)
        return delta - safe_divide(total - t, count), alive

    delta = newton(step, top, alive)
    # For t = 0 the level is exactly the maximum of m; for t = NaN it is NaN.
    return jnp.where(t > 0, top - delta, jnp.where(jnp.isnan(t), t, top))


@_linf_columns.defjvp
def _linf_columns_jvp(primals: Arrays, tangents: Arrays) -> tuple[jax.Array, jax.Array]:
    # Entries with |z| = theta = max|z| have the derivative of s theta, s = sign(x); dz = dx for the others.
    # With tau entries at theta, dtheta = (sum over them of s dx - dt) / tau. At t = 0, where theta = max|x|,
    # entries at theta have dz = dx too, and the derivative -s / tau in t.
    (x, t), (dx, dt) = primals, tangents
    z = _linf_columns(x, t)
    theta = jnp.max(jnp.abs(z), axis=0, keepdims=True)
    unchanged, zero = (t == 0)[None], theta == 0
    at = jnp.abs(x) >= theta
    s = jnp.where(at, jnp.sign(x), 0)
    tau = jnp.sum(at.astype(x.dtype), axis=0, keepdims=True)
    dtheta = jnp.sum(s * dx, axis=0, keepdims=True) / tau  # without the part of dt
    dz = jnp.where(at & ~unchanged, s * dtheta, dx) - s * (dt[None] / tau)
    return z, jnp.where(zero & ~unchanged, 0, dz)
