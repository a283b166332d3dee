"""The curvature of a loss: the eigendecomposition of its Hessian, and step lengths 1/L."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from sparsejax._core.linalg import eps_of, largest_eigenvalue_bound, norm, safe_divide
from sparsejax.losses import Loss


class Factor(NamedTuple):
    r"""Eigendecomposition of the Hessian of a loss, or of a bound of it.

    The Hessian maps V (k, d), the layout of W', to :math:`V A'A + L V`: A (n, d) comes from the data, and L
    (k, k) is the Laplacian of a graph of the labels, if there is one.
    """

    basis: jax.Array  # d <= n: eigenvectors of A'A as rows, (d, d). n < d: U'A, (n, d)
    values: jax.Array  # (min(n, d),), the eigenvalues of A'A or AA', from small to large
    left: jax.Array  # n < d: U, (n, n), eigenvectors of AA' as columns. d <= n: (0, 0)
    labels: jax.Array | None  # (k, k), eigenvectors of L as rows; None without a graph
    shifts: jax.Array | None  # (k, 1), eigenvalues of L

    @property
    def square(self) -> bool:
        """Whether d <= n, so that ``basis`` is square."""
        return self.basis.shape[0] == self.basis.shape[1]

    @property
    def largest(self) -> jax.Array:
        """The largest eigenvalue of the Hessian."""
        return self.values[-1] if self.shifts is None else self.values[-1] + self.shifts[-1, 0]

    @property
    def mean(self) -> jax.Array:
        """The mean eigenvalue of the Hessian, or 1 if that is 0."""
        mean = jnp.sum(self.values) / self.basis.shape[1]
        if self.shifts is not None:
            mean = mean + jnp.mean(self.shifts)
        return jnp.where(mean > 0, mean, 1)

    def rotate(self, Rt: jax.Array) -> jax.Array:
        """Rt (k, d) in the basis of eigenvectors of L."""
        return Rt if self.labels is None else self.labels @ Rt

    def rotate_back(self, Rt: jax.Array) -> jax.Array:
        """The inverse of `rotate`."""
        return Rt if self.labels is None else self.labels.T @ Rt

    def shift(self, rho: jax.Array) -> jax.Array:
        """(k, 1) or (1, 1): in the basis of `rotate` row i of the Hessian + rho I is A'A + shift_i I."""
        return rho[None, None] if self.shifts is None else rho + self.shifts

    def solve(self, Rt: jax.Array, shift: jax.Array) -> jax.Array:
        """Rt (A'A + shift)^-1, Rt (k, d) in the basis of `rotate`; for n < d by Woodbury's identity."""
        if self.square:
            return ((Rt @ self.basis.T) / (self.values[None] + shift)) @ self.basis
        Rt = Rt / shift
        return Rt - ((Rt @ self.basis.T) / (self.values[None] + shift)) @ self.basis


def factorise(smooth: Loss) -> Factor:
    """The decomposition for a loss with a majorizer; it depends on X, weights, scale and graph only."""
    model = smooth.quadratic_model()
    A = model.majorizer()  # type: ignore[misc]  # solvers refuse a loss without one
    labels = shifts = None
    if model.laplacian is not None:
        values, vectors = jnp.linalg.eigh(model.laplacian(), symmetrize_input=False)
        labels, shifts = vectors.T, jnp.maximum(values, 0)[:, None]
    n, d = A.shape
    if d <= n:
        values, vectors = jnp.linalg.eigh(A.T @ A, symmetrize_input=False)
        return Factor(vectors.T, jnp.maximum(values, 0), jnp.zeros((0, 0), A.dtype), labels, shifts)
    values, vectors = jnp.linalg.eigh(A @ A.T, symmetrize_input=False)
    return Factor(vectors.T @ A, jnp.maximum(values, 0), vectors, labels, shifts)


def cautious_step(trace: jax.Array) -> jax.Array:
    """1/L with L the trace of a bound A'A of the Hessian: too short for steps, good enough for a residual."""
    return safe_divide(1.0, trace, 1.0)


def step_length(smooth: Loss) -> jax.Array:
    """1/L with L an upper bound of the curvature of a loss; 1 if the loss is linear.

    Args:
      smooth: a loss whose quadratic model has a majorizer, as most of `sparsejax.losses` do.

    Returns:
      The step length, shape (): a gradient step of this length never raises the loss.

    Never raises.

    >>> import numpy as np, sparsejax as sj
    >>> bool(0.99 <= sj.driver.step_length(sj.losses.SquaredLoss(np.eye(2), np.ones(2), scale=0.5)) <= 1)
    True
    """
    model = smooth.quadratic_model()
    bound = largest_eigenvalue_bound(model.majorizer())  # type: ignore[misc]  # see `factorise`
    if model.laplacian is not None:
        bound = bound + jnp.linalg.eigvalsh(model.laplacian())[-1]
    return safe_divide(1.0, bound, 1.0)


def first_step(smooth: Loss, init: jax.Array) -> jax.Array:
    """A first estimate of 1/L, from the change of the gradient over a short step along it.

    The curvature along one direction is at most L, so this step may be too long: backtracking shortens it.
    """
    G = jax.grad(smooth)(init)
    # With a length of eps^(1/4) rounding errors, about eps, are a small part of the change of the gradient.
    length = jnp.maximum(1, norm(init)) * eps_of(init) ** 0.25
    change = jax.grad(smooth)(init - length * safe_divide(G, norm(G), G)) - G
    return safe_divide(1.0, norm(change) / length, 1.0)


def residual_step(smooth: Loss, W: jax.Array) -> jax.Array:
    """1/L for the residual alone: `cautious_step` if the loss has a majorizer, else `first_step` at W."""
    model = smooth.quadratic_model()
    if model.trace is not None:
        return cautious_step(model.trace())
    if model.majorizer is not None:
        return cautious_step(jnp.sum(model.majorizer() ** 2))
    return first_step(smooth, W)
