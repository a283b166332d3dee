"""A quadratic loss given by its Gram matrix."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparsejax._core.checks import check_params
from sparsejax._core.linalg import eps_of
from sparsejax.losses._base import Facts, Loss
from sparsejax.losses._curvature import quadratic_scaling
from sparsejax.losses._quadratic_model import QuadraticModel


class GramLoss(Loss, leaves=("G", "B", "constant")):
    r"""A quadratic by its Gram matrix: :math:`\tfrac12\langle W, GW\rangle - \langle B, W\rangle + c`.

    `SquaredLoss.gram` returns it. An evaluation costs d x d x k whatever n is. Near the optimum it has fewer
    digits than the squared loss, so that solvers confirm their certificates on the squared loss.

    Args:
      G: (d, d), symmetric positive semidefinite.
      B: (d, k) or (d,).
      constant: c, the value at W = 0, so large that the quadratic is nowhere negative.

    >>> import numpy as np, sparsejax as sj
    >>> loss, zero = sj.losses.SquaredLoss(np.eye(4, 3), np.eye(4, 2)), np.zeros((3, 2))
    >>> bool(loss.gram()(zero) == loss(zero))
    True
    """

    G: jax.Array
    B: jax.Array
    constant: jax.Array

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
        return half_quadratic(self.G, W) - jnp.sum(W * self.B) + self.constant

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

    def dual_scaling(
        self, W: jax.Array, limit: jax.Array, H: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """The best s and the change of the conjugate, ``l*(sU) = s (<W, B> - 2c) + s^2 f(W)``."""
        return quadratic_scaling(jnp.sum(W * self.B) - 2 * self.constant, self(W), limit)

    def facts(self, W: jax.Array, sizes: Any = None) -> Facts:
        """Value and gradient; ``rounding`` covers the three summands, which cancel near the optimum."""
        value, gradient = jax.value_and_grad(self)(W)
        return Facts(value, gradient, self._rounding(W), jnp.sum(W * self.B) - 2 * self.constant)

    def _rounding(self, W: jax.Array) -> jax.Array:
        linear = jnp.sum(jnp.abs(W * self.B))
        # |G_ij| <= sqrt(G_ii G_jj): the summands of <W, GW> add up to at most (sum_i sqrt(G_ii) |w_i|)^2.
        curved = jnp.sum((jnp.sqrt(jnp.abs(jnp.diagonal(self.G))) @ jnp.abs(W)) ** 2)
        return eps_of(W) * (curved + linear + jnp.abs(self.constant))


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
