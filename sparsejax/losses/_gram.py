"""A quadratic loss given by its Gram matrix."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float, check_params, is_traced
from sparsejax._core.linalg import eps_of
from sparsejax.losses._base import Facts, Loss, Pair
from sparsejax.losses._curvature import quadratic_scaling
from sparsejax.losses._quadratic_model import QuadraticModel


class GramLoss(Loss, leaves=("G", "B", "constant"), static=("from_data",)):
    r"""A quadratic by its Gram matrix: :math:`\tfrac12\langle W, GW\rangle - \langle B, W\rangle + c`.

    `SquaredLoss.gram` returns such a loss. An evaluation costs d x d x k whatever n is. Near the optimum the
    value has fewer digits than the value of the squared loss, so that solvers confirm their certificates on
    the squared loss.

    The gap of a solution is relative to the value at W = 0, which is c. For least squares with G = X'X and
    B = X'Y, c is
    :math:`\tfrac12\|Y\|_F^2`. If c is so small that the quadratic is negative somewhere, no data have this
    loss, and the best scaling of a dual point is unknown: c must be at least
    :math:`\tfrac12\langle B, G^+ B\rangle`, and B in the range of G. If c is not known,
    leave it out: the gap is then NaN, and solvers judge a solution by its residual.

    Args:
      G: (d, d), symmetric (up to 8 sqrt(d eps) of its largest entry) and positive semidefinite (up to d eps
        of its largest eigenvalue); half the sum of G and its transpose is used. Float32 or float64, the dtype
        of the whole solve.
      B: (d, k) or (d,), converted to the dtype of G.
      constant: c, shape (), such that the quadratic is nowhere negative (up to 8 sqrt(d eps) times c); None
        if it is not known.

    Raises:
      TypeError, ValueError: NaN or inf, wrong dtype or rank, shapes that disagree; G is not symmetric or not
        positive semidefinite; the constant is too small. Under jit a G that is not positive semidefinite or a
        constant that is too small gives a solution with gap and residual NaN, as a negative strength does.

    >>> import numpy as np, sparsejax as sj
    >>> loss, zero = sj.losses.SquaredLoss(np.eye(4, 3), np.eye(4, 2)), np.zeros((3, 2))
    >>> bool(loss.gram()(zero) == loss(zero))
    True
    >>> alone = sj.losses.GramLoss(np.eye(2), np.array([1.0, 0.5]))
    >>> solution = sj.solve(sj.Problem(alone, sj.penalties.L1(0.1)))
    >>> bool(abs(solution.params[0] - 0.9) < 1e-3), bool(solution.converged), bool(np.isnan(solution.gap))
    (True, True, True)
    """

    G: jax.Array
    B: jax.Array
    constant: jax.Array | None
    from_data: bool  # G, B and the constant are products of data: the quadratic is nowhere negative

    def __init__(self, G: ArrayLike, B: ArrayLike, constant: ArrayLike | None = None):
        G = as_float("G", G, (2,))
        B = as_float("B", B, (1, 2), G.dtype)
        if G.shape[0] != G.shape[1] or not G.size:
            raise ValueError(f"G has shape {G.shape}; it must be square, (d, d) with d >= 1.")
        if len(B) != len(G) or not B.size:
            raise ValueError(f"B has shape {B.shape} and G {G.shape}; B must be (d, k) or (d,).")
        c = None if constant is None else as_float("constant", constant, (0,), G.dtype)
        if not any(map(is_traced, (G, B, c))):
            _check_values(G, B, c)
        self._set(G=(G + G.T) / 2, B=B, constant=c, from_data=False)

    @classmethod
    def of_data(cls, G: jax.Array, B: jax.Array, constant: jax.Array) -> "GramLoss":
        """The loss of products of data, without checks: G = A'A, B = A'Y, ``constant = ||Y||^2 / 2``."""
        loss = object.__new__(cls)
        loss._set(G=G, B=B, constant=constant, from_data=True)
        return loss

    @property
    def provides(self) -> frozenset[str]:
        """The groups of the protocol that the class has; without the constant there is no dual."""
        return self._given - {"dual"} if self.constant is None else self._given

    @property
    def params_shape(self) -> tuple[int, ...]:
        """Shape of W, which is the shape of B."""
        return tuple(self.B.shape)

    @property
    def dtype(self) -> np.dtype:
        """dtype of B."""
        return self.B.dtype

    def __call__(self, W: jax.Array) -> jax.Array:
        check_params(W, self.B.shape)
        value = half_quadratic(self.G, W) - jnp.sum(W * self.B)
        return value if self.constant is None else value + self.constant

    def quadratic_model(self) -> QuadraticModel:
        """The loss is quadratic; A is a square root of G, (d, d)."""
        return QuadraticModel(majorizer=self.root, exact=True)

    def root(self) -> jax.Array:
        """A, (d, d), with A'A = G."""
        values, vectors = jnp.linalg.eigh(self.G, symmetrize_input=False)
        return jnp.sqrt(jnp.maximum(values, 0))[:, None] * vectors.T

    def gram(self) -> "GramLoss":
        """This loss: it is given by its Gram matrix already."""
        return self

    def dual_scaling(self, W: jax.Array, limit: jax.Array, H: jax.Array | None = None) -> Pair:
        """The best s and the change of the conjugate, ``l*(sU) = s (<W, B> - 2c) + s^2 f(W)``.

        This holds for every c at which the quadratic is nowhere negative. If c exceeds the least such c, the
        gap is larger by ``(1 - s)^2`` times the excess. A constant that a user gives is first raised by the
        error that `nowhere_negative` tolerates.
        """
        c = jnp.zeros((), self.dtype) if self.constant is None else self.constant
        more = 0.0 if self.from_data else tolerance(self.G) * c
        return quadratic_scaling(jnp.sum(W * self.B) - 2 * (c + more), self(W) + more, limit)

    def facts(self, W: jax.Array, sizes: Any = None) -> Facts:
        """Value and gradient; ``rounding`` covers the three summands, which cancel near the optimum."""
        value, gradient = jax.value_and_grad(self)(W)
        linear = None
        if self.from_data and self.constant is not None:
            linear = jnp.sum(W * self.B) - 2 * self.constant
        return Facts(value, gradient, self._rounding(W), linear)

    def valid(self) -> jax.Array:
        """() boolean: the quadratic is convex, and nowhere negative if the constant is known."""
        if self.from_data:
            return jnp.ones((), bool)
        convex, least = least_constant(jnp, self.G, self.B)
        return convex & nowhere_negative(self.G, least, self.constant)

    def _rounding(self, W: jax.Array) -> jax.Array:
        linear = jnp.sum(jnp.abs(W * self.B))
        # |G_ij| <= sqrt(G_ii G_jj): the summands of <W, GW> add up to at most (sum_i sqrt(G_ii) |w_i|)^2.
        curved = jnp.sum((jnp.sqrt(jnp.abs(jnp.diagonal(self.G))) @ jnp.abs(W)) ** 2)
        return eps_of(W) * (curved + linear + (0.0 if self.constant is None else jnp.abs(self.constant)))


def tolerance(G: Any) -> float:
    """The relative error that is allowed in the symmetry of G and, if G is nearly singular, in the constant.

    If G and B come from data, B has a part of about sqrt(d eps) in directions whose eigenvalues are rounding
    errors.
    """
    return 8 * (len(G) * float(np.finfo(G.dtype).eps)) ** 0.5


def least_constant(xp: Any, G: Any, B: Any) -> tuple[Any, Any]:
    """Whether G is positive semidefinite but for rounding; and about 1/2 <B, G^+ B>, inf if G is 0 and B not.

    An eigenvalue below d eps times the largest counts as d eps times the largest: in its direction a B that
    comes from data is nearly 0. xp: numpy or jax.numpy.
    """
    values, vectors = xp.linalg.eigh(G)
    floor = len(G) * float(np.finfo(G.dtype).eps) * xp.max(xp.abs(values))
    squares = (vectors.T @ B.reshape(len(G), -1)) ** 2
    each = xp.sum(squares, axis=1) / xp.where(floor > 0, xp.maximum(values, floor), 1)
    # If G is 0 the quadratic is linear: it is nowhere negative only if B is 0.
    each = xp.where((floor > 0) | (xp.sum(squares, axis=1) == 0), each, xp.inf)
    return values[0] >= -floor, xp.sum(each) / 2


def nowhere_negative(G: Any, least: Any, constant: Any) -> Any:
    """Whether the constant is at least ``least``, but for rounding; True if the constant is None."""
    return True if constant is None else least <= constant * (1 + tolerance(G))


def _check_values(G: Any, B: Any, constant: Any) -> None:
    """Raise if the concrete G is not symmetric positive semidefinite, or the constant is too small."""
    G, B = np.asarray(G), np.asarray(B)
    largest = np.max(np.abs(G))
    if np.max(np.abs(G - G.T)) > tolerance(G) * largest:
        raise ValueError("G is not symmetric: an X'X is needed.")
    convex, least = least_constant(np, (G + G.T) / 2, B)
    if not convex:
        raise ValueError(
            "G is not positive semidefinite, and the quadratic is not convex: its least eigenvalue is "
            f"{np.linalg.eigvalsh((G + G.T) / 2)[0]:.6g}."
        )
    if not nowhere_negative(G, least, None if constant is None else np.asarray(constant)):
        raise ValueError(
            f"constant must be at least 1/2 <B, G^+ B> = {least:.6g}, or the quadratic is negative "
            f"somewhere, got {np.asarray(constant):.6g}. For least squares it is 1/2 ||Y||^2. Leave it out "
            "if it is not known: the residual then judges a solution."
        )


@jax.custom_jvp
def half_quadratic(G: jax.Array, W: jax.Array) -> jax.Array:
    """``1/2 <W, GW>`` for a symmetric G."""
    return 0.5 * jnp.sum(W * (G @ W))


@half_quadratic.defjvp
def _half_quadratic_jvp(primals: Any, tangents: Any) -> Any:
    # G is symmetric: one product GW serves value and gradient, where plain differentiation takes two.
    (G, W), (dG, dW) = primals, tangents
    GW = G @ W
    return 0.5 * jnp.sum(W * GW), jnp.sum(GW * dW) + 0.5 * jnp.sum(W * (dG @ W))
