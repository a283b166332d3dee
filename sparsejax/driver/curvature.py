"""The curvature of a loss: eigenvectors or a Cholesky factor of its Hessian, and step lengths 1/L."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import eps_of, largest_eigenvalue_bound, norm, safe_divide, tiny_of
from sparsejax._core.tiles import inverse_root
from sparsejax.losses import Loss

# `first_step` tries at most MAX_PROBES steps, each shorter than the last by PROBE_RATIO: 16^-23 is 2e-28.
PROBE_RATIO, MAX_PROBES = 16.0, 24


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

    @property
    def least_shift(self) -> jax.Array:
        """The rounding error of the largest eigenvalue: smaller shifts have no meaning."""
        return eps_of(self.values) * self.largest

    def rotate(self, Rt: jax.Array) -> jax.Array:
        """Rt (k, d) in the basis of eigenvectors of L."""
        return Rt if self.labels is None else self.labels @ Rt

    def rotate_back(self, Rt: jax.Array) -> jax.Array:
        """The inverse of `rotate`."""
        return Rt if self.labels is None else self.labels.T @ Rt

    def shift(self, rho: jax.Array) -> jax.Array:
        """The shifts, (k, 1) or (1, 1): in the basis of `rotate` the Hessian + rho I acts on row i as
        A'A + shift_i I.
        """
        return rho[None, None] if self.shifts is None else rho + self.shifts

    def solve(self, Rt: jax.Array, shift: jax.Array) -> jax.Array:
        """Rt (A'A + shift)^-1, Rt (k, d) in the basis of `rotate`; for n < d by Woodbury's identity."""
        if self.square:
            return ((Rt @ self.basis.T) / (self.values[None] + shift)) @ self.basis
        Rt = Rt / shift
        return Rt - ((Rt @ self.basis.T) / (self.values[None] + shift)) @ self.basis

    def nothing_prepared(self) -> Any:
        """The ``before`` of the first call of `prepared_for`: None, since eigenvectors serve every rho."""
        return None

    def prepared_for(self, before: Any, rho: jax.Array) -> Any:
        """The argument ``prepared`` of `step` and `minimiser` for rho; here nothing is needed.

        ``before`` is the result for the last rho, or `nothing_prepared`.
        """
        return before

    def step(self, Rt: jax.Array, rho: jax.Array, prepared: Any) -> jax.Array:
        """The inverse of the Hessian + rho I, times Rt (k, d)."""
        return self.rotate_back(self.solve(self.rotate(Rt), self.shift(rho)))

    def linear(self, Rt: jax.Array) -> jax.Array:
        r"""The linear term as `minimiser` takes it.

        Args:
          Rt: minus the gradient at 0, (k, d); for n < d the targets B, (k, n): a division by small
            eigenvalues would lose digits.
        """
        return self.rotate(Rt @ (self.basis.T if self.square else self.left))

    def minimiser(self, Tt: jax.Array, linear: jax.Array, rho: jax.Array, prepared: Any) -> jax.Array:
        r"""The minimiser W (k, d) of the quadratic loss :math:`+ \tfrac\rho2\|W - T\|^2`.

        For n < d Woodbury's identity is applied to the change from T: with a small rho, other forms cancel
        and leave few digits in float32.
        """
        shift, Tt = self.shift(rho), self.rotate(Tt)
        if self.square:
            W = ((rho * (Tt @ self.basis.T) + linear) / (self.values[None] + shift)) @ self.basis
        else:
            Tt = Tt if self.shifts is None else Tt * (rho / shift)
            W = Tt - ((Tt @ self.basis.T - linear) / (self.values[None] + shift)) @ self.basis
        return self.rotate_back(W)


class CholeskyFactor(NamedTuple):
    """Cholesky factors of A'A + rho I, or of AA' + rho I for n < d: each new rho needs a new factor.

    A Cholesky factor takes a seventh of the time of the eigenvectors of `Factor`, so that this class is
    better for few values of rho. Its methods do the same as the methods of `Factor` with the same names.
    """

    A: jax.Array  # (n, d); only its shape is used if d <= n
    squares: jax.Array  # (m, m) with m = min(n, d): A'A or AA'

    @classmethod
    def of(cls, A: jax.Array) -> "CholeskyFactor":
        """The factors of A'A + rho I, with A'A or AA' computed."""
        return cls(A, A.T @ A if A.shape[1] <= A.shape[0] else A @ A.T)

    @property
    def square(self) -> bool:
        """Whether d <= n."""
        return self.A.shape[1] <= self.A.shape[0]

    @property
    def largest(self) -> jax.Array:
        """A bound of the largest eigenvalue: the norm of all entries."""
        return norm(self.squares)

    @property
    def mean(self) -> jax.Array:
        """The mean eigenvalue of the Hessian, or 1 if that is 0."""
        mean = jnp.trace(self.squares) / self.A.shape[1]
        return jnp.where(mean > 0, mean, 1)

    @property
    def least_shift(self) -> jax.Array:
        """The smallest shift for which a Cholesky factor exists in spite of rounding errors."""
        return len(self.squares) * eps_of(self.A) * self.largest

    def nothing_prepared(self) -> Any:
        """The ``before`` of the first call of `prepared_for`: zeros, and rho = NaN.

        NaN equals no rho, so that the first call computes a factor.
        """
        return jnp.zeros_like(self.squares), jnp.full((), jnp.nan, self.A.dtype)

    def prepared_for(self, before: Any, rho: jax.Array) -> Any:
        """The inverse of the Cholesky factor, and its rho: ``before`` unchanged if it is for this rho."""
        return lax.cond(before[1] == rho, lambda: before[0], lambda: inverse_root(self.squares, rho)), rho

    def step(self, Rt: jax.Array, rho: jax.Array, prepared: Any) -> jax.Array:
        """Same as `Factor.step`."""
        if self.square:
            return self._inverse(Rt, prepared)
        return (Rt - self._inverse(Rt @ self.A.T, prepared) @ self.A) / rho

    def linear(self, Rt: jax.Array) -> jax.Array:
        """Same as `Factor.linear`."""
        return Rt

    def minimiser(self, Tt: jax.Array, linear: jax.Array, rho: jax.Array, prepared: Any) -> jax.Array:
        """Same as `Factor.minimiser`."""
        if self.square:
            return self._inverse(rho * Tt + linear, prepared)
        return Tt - self._inverse(Tt @ self.A.T - linear, prepared) @ self.A

    def _inverse(self, Rt: jax.Array, prepared: Any) -> jax.Array:
        """Rt (k, m) times the inverse of ``squares`` + rho I."""
        return (Rt @ prepared[0].T) @ prepared[0]


def factorise(smooth: Loss) -> Factor:
    """The decomposition for a loss with a majorizer; it depends on X, weights, scale and graph only."""
    model = smooth.quadratic_model()
    A = model.majorizer()  # type: ignore[misc]  # solvers refuse a loss without one
    labels = shifts = None
    if model.laplacian is not None:
        values, vectors = jnp.linalg.eigh(model.laplacian(), symmetrize_input=False)
        labels, shifts = vectors.T, jnp.maximum(values, 0)[:, None]
    square = A.shape[1] <= A.shape[0]
    values, vectors = jnp.linalg.eigh(A.T @ A if square else A @ A.T, symmetrize_input=False)
    basis, left = (vectors.T, jnp.zeros((0, 0), A.dtype)) if square else (vectors.T @ A, vectors)
    return Factor(basis, jnp.maximum(values, 0), left, labels, shifts)


HessianFactor = Factor | CholeskyFactor


def few_shifts(smooth: Loss) -> HessianFactor:
    """The cheaper factor of a loss with a majorizer, for a solver that needs few values of rho.

    It is a `CholeskyFactor` for a quadratic loss without a graph, else a `Factor`. A loss that is not
    quadratic takes many iterations with one rho, in which eigenvectors save more time than they cost.
    """
    model = smooth.quadratic_model()
    if model.laplacian is not None or not model.exact:
        return factorise(smooth)
    return CholeskyFactor.of(model.majorizer())  # type: ignore[misc]  # see `factorise`


def cautious_step(trace: jax.Array) -> jax.Array:
    """1/L with L the trace of a bound A'A of the Hessian.

    This short step serves residuals only: a solver would need too many such steps.
    """
    return safe_divide(1.0, trace, 1.0)


def step_length(smooth: Loss) -> jax.Array:
    """1/L with L an upper bound of the curvature of a loss; 1 if L is 0 (a linear loss) or underflows.

    Args:
      smooth: a loss whose quadratic model has a majorizer, as most of `sparsejax.losses` do.

    Returns:
      The step length, shape (): a gradient step of this length never raises the loss. NaN if L is NaN,
      infinite or so large that 1/L underflows, so that a solve ends as non-finite.

    Never raises.

    >>> import numpy as np, sparsejax as sj
    >>> bool(0.99 <= sj.driver.step_length(sj.losses.SquaredLoss(np.eye(2), np.ones(2), scale=0.5)) <= 1)
    True
    """
    model = smooth.quadratic_model()
    bound = largest_eigenvalue_bound(model.majorizer())  # type: ignore[misc]  # see `factorise`
    if model.laplacian is not None:
        bound = bound + jnp.linalg.eigvalsh(model.laplacian())[-1]
    return jnp.where(bound < 1 / tiny_of(bound), safe_divide(1.0, bound, 1.0), jnp.nan)


class _Probe(NamedTuple):
    """The last step along the gradient by which `first_step` measures the curvature; each field is ()."""

    length: jax.Array
    curvature: jax.Array  # the least one measured so far, infinity if none was finite
    n: jax.Array  # int32, probes so far
    over: jax.Array  # boolean, whether no shorter probe is needed


def first_step(smooth: Loss, init: jax.Array) -> jax.Array:
    """A first estimate of 1/L, from the change of the gradient over a short step along it; finite and > 0.

    The curvature along one direction is at most L, so this step may be too long: backtracking shortens it.
    A probe that is much longer than 1/L times the gradient may meet another curvature: an exponential loss
    may even overflow there. Shorter probes follow until one is short enough or finds the same curvature.
    """
    G = jax.grad(smooth)(init)
    size = norm(G)
    direction = safe_divide(G, size, G)
    # With a length of eps^(1/4) rounding errors, about eps, are a small part of the change of the gradient.
    length = jnp.maximum(1, norm(init)) * eps_of(init) ** 0.25

    def probe(last: _Probe) -> _Probe:
        length = last.length / PROBE_RATIO
        change = norm(jax.grad(smooth)(init - length * direction) - G)
        curvature = change / length
        over = (change <= size) | (curvature > last.curvature / 2)
        return _Probe(length, jnp.fmin(curvature, last.curvature), last.n + 1, over)

    infinite = jnp.full((), jnp.inf, init.dtype)
    start = _Probe(PROBE_RATIO * length, infinite, jnp.int32(0), jnp.zeros((), bool))
    found = lax.while_loop(lambda c: ~c.over & (c.n < MAX_PROBES), probe, start).curvature
    step = safe_divide(1.0, jnp.where(jnp.isfinite(found), found, 0), 1.0)
    return jnp.maximum(step, tiny_of(init))


def residual_step(smooth: Loss, W: jax.Array) -> jax.Array:
    """1/L for the residual alone: `cautious_step` if the loss has a majorizer, else `first_step` at W."""
    model = smooth.quadratic_model()
    if model.trace is not None:
        trace = model.trace()
    elif model.majorizer is not None:
        trace = jnp.sum(model.majorizer() ** 2)
    else:
        return first_step(smooth, W)
    # The Hessian is the sum of A'A and the Laplacian of a graph; each trace bounds a largest eigenvalue.
    return cautious_step(trace if model.laplacian is None else trace + jnp.trace(model.laplacian()))
