"""The curvature of a loss: its decomposition, and step lengths 1/L."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sparsejax._core.linalg import eps_of, largest_eigenvalue_bound, norm, safe_divide


class Factor(NamedTuple):
    r"""Eigendecomposition of the (bound of the) Hessian of a loss, so that any shift of it is a diagonal.

    In the rows of W' (k, d) the Hessian M is :math:`A'A`, plus a graph Laplacian of the labels from the left.
    """

    basis: jax.Array  # d <= n: eigenvectors of A'A as rows, (d, d). n < d: U'A, (n, d), U those of AA'
    values: jax.Array  # their eigenvalues, (min(n, d),)
    left: jax.Array  # U if n < d, else (0, 0)
    labels: jax.Array | None  # (k, k), eigenvectors of the Laplacian as rows; None without one
    shifts: jax.Array | None  # (k, 1), its eigenvalues

    @property
    def square(self) -> bool:
        """True if d <= n."""
        return self.basis.shape[0] == self.basis.shape[1]

    @property
    def largest(self) -> jax.Array:
        """The largest eigenvalue of M."""
        return self.values[-1] if self.shifts is None else self.values[-1] + self.shifts[-1, 0]

    @property
    def mean(self) -> jax.Array:
        """The mean eigenvalue of M, 1 if it is 0."""
        mean = jnp.sum(self.values) / self.basis.shape[1]
        if self.shifts is not None:
            mean = mean + jnp.mean(self.shifts)
        return jnp.where(mean > 0, mean, 1)

    def rotate(self, Rt: jax.Array) -> jax.Array:
        """To the eigenvectors of the Laplacian."""
        return Rt if self.labels is None else self.labels @ Rt

    def rotate_back(self, Rt: jax.Array) -> jax.Array:
        """From the eigenvectors of the Laplacian."""
        return Rt if self.labels is None else self.labels.T @ Rt

    def shift(self, rho: jax.Array) -> jax.Array:
        """What is added to A'A in every rotated row of M + rho I, (k, 1) or (1, 1)."""
        return rho[None, None] if self.shifts is None else rho + self.shifts

    def solve(self, Rt: jax.Array, shift: jax.Array) -> jax.Array:
        """(A'A + shift)^-1 R in rotated rows; for n < d by Woodbury's identity."""
        if self.square:
            return ((Rt @ self.basis.T) / (self.values[None] + shift)) @ self.basis
        Rt = Rt / shift
        return Rt - ((Rt @ self.basis.T) / (self.values[None] + shift)) @ self.basis


def factorise(smooth: Any) -> Factor:
    """Decompose the bound of the Hessian of a loss; it depends on X, weights, scale and graphs only."""
    model = smooth.quadratic_model()
    A = model.majorizer()
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
    """1/L with the trace of a bound A'A of the Hessian for L: for a residual, where nothing is stepped."""
    return safe_divide(1.0, trace, 1.0)


def step_length(smooth: Any) -> jax.Array:
    """1/L with an upper bound L of the curvature of a loss; 1 where the loss is linear.

    Args:
      smooth: a loss with a majorizer in its quadratic model, as those of `sparsejax.losses` have it.

    Returns:
      The step length, shape (): a gradient step of this length never raises the loss.

    Never raises.

    >>> import numpy as np, sparsejax as sj
    >>> bool(0.99 <= sj.driver.step_length(sj.losses.SquaredLoss(np.eye(2), np.ones(2), scale=0.5)) <= 1)
    True
    """
    model = smooth.quadratic_model()
    bound = largest_eigenvalue_bound(model.majorizer())
    if model.laplacian is not None:
        bound = bound + jnp.linalg.eigvalsh(model.laplacian())[-1]
    return safe_divide(1.0, bound, 1.0)


def first_step(smooth: Any, init: jax.Array) -> jax.Array:
    """1/L from the change of the gradient over a short step along it; backtracking mends it."""
    G = jax.grad(smooth)(init)
    length = jnp.maximum(1, norm(init)) * eps_of(init) ** 0.25
    change = jax.grad(smooth)(init - length * safe_divide(G, norm(G), G)) - G
    # The curvature along one direction is at most L: begin with a longer step than it may allow.
    return safe_divide(1.0, norm(change) / length, 1.0)


def residual_step(smooth: Any, W: jax.Array) -> jax.Array:
    """1/L for a residual, where nothing is stepped: cautious where the curvature is bounded, else near W."""
    majorizer = smooth.quadratic_model().majorizer
    if majorizer is not None:
        return cautious_step(jnp.sum(majorizer() ** 2))
    return first_step(smooth, W)
