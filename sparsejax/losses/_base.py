"""The protocol of losses: what is required, what is optional, and what is lost without."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax._core.protocol import Protocol
from sparsejax.losses._curvature import by_products
from sparsejax.losses._units import Units


class Facts(NamedTuple):
    """All that a certificate asks of a loss at W."""

    value: jax.Array
    gradient: jax.Array
    rounding: jax.Array  # (), see `Loss.rounding`
    linear: jax.Array | None = None  # of a quadratic: ``l*(sU) = s * linear + s^2 * value``
    predictions: jax.Array | None = None  # of a linear model, (n, k), so that they are found once


class Predictions(NamedTuple):
    """What a loss says of the rows of its data, by `Loss.predictions`."""

    targets: jax.Array  # Y, (n, k) or (n,)
    linear: jax.Array  # H = XW + b, of the same shape
    mean: jax.Array  # what is expected of Y there: H itself, or probabilities, or rates


class Loss(Protocol):
    r"""Base of every smooth convex loss f(W).

    Required: ``loss(W)`` -> (). Its gradient is `jax.grad`. This is enough for `sparsejax.fista`, with
    ``init`` given. What else a class knows comes in groups, each whole or not at all:

    * *shape*: ``params_shape`` (of W) and ``dtype`` (without: ``init`` is asked for);
    * *curvature*, for `sparsejax.admm` and the solvers like it: ``majorizer()``: a matrix A, (m, d), with
      :math:`\nabla^2 f \preceq I_k \otimes A^\top A`; ``quadratic`` (bool): it is the Hessian, everywhere;
    * *dual*, for a gap with norms: ``dual_scaling(W, limit)``: with :math:`f = \ell(XW)` and
      :math:`U = \nabla\ell(XW)`, the s with ``|s| <= limit`` that makes :math:`\ell^*(sU)` least, or nearly,
      and :math:`\ell^*(sU) - \ell^*(U)` (without: a gap only where the conjugate of the penalty is finite);
    * *free features*, for a gap where features are not penalised: ``unpenalised_basis(free)``,
      ``dual_projection(W, basis)``, as those of `sparsejax.losses.LinearModelLoss`;
    * *data*, for cross-validation: ``weights`` (None, (n,) or (n, k)), ``reweighted(weights)``: the same loss
      with other weights; ``intercept(W)``: the best one; ``evaluate(W, intercept)``: the loss of rows held
      out. Where ``weights`` is None, ``num_rows`` too;
    * *predictions*, for ``scoring`` in cross-validation: ``predictions(W, intercept)`` -> `Predictions`;
    * *columns*, for `sparsejax.working_set`: ``columns_at(ix)``: the loss of a W of these features, an index
      of d being none;
    * *least squares*, for `sparsejax.prox_newton`: ``least_squares_at(W)``: A, (m, d), and B, (m, 1), such
      that for a W of a single column :math:`\tfrac12\|AV - B\|^2` is f(V) to second order about W, but for
      a constant, or is more curved;
    * *units*, so that nothing underflows: ``in_units()``;
    * *rows*, for columns of unequal size: ``row_units()``: powers of two near the root of the size of what
      each row of W multiplies, (d,); ``rescaled(units)``: :math:`V \mapsto f(V / \text{units})`, row by row.

    Further methods have defaults that are always right: ``condensed()``, ``target()``, ``laplacian()``,
    ``rounding(W, sizes)``, ``valid()``, and together ``separable`` (False; True: the columns of W do not
    meet) and ``hessian(W)``, for `sparsejax.newton_admm`. Where ``facts`` finds predictions H,
    `dual_scaling`, `dual_projection` and ``hessian`` are called with them as a last argument;
    `dual_projection` with s, the scale of the dual point, besides where the penalty is a norm.

    A class is registered with JAX as a `sparsejax.Penalty` is; all data that are differentiated are leaves.

    Raises:
      TypeError: when a class is made without ``__call__``, with a group in part, or as a subclass of another
        loss of which it replaces only some of what belongs together; see docs/adding-a-loss.md.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> class LogCosh(sj.Loss, leaves=("X", "y")):
    ...     def __call__(self, w):
    ...         r = self.X @ w - self.y
    ...         return jnp.mean(jnp.logaddexp(r, -r))
    >>> problem = sj.Problem(LogCosh(jnp.eye(3), jnp.ones(3)), sj.penalties.L1(0.1))
    >>> bool(sj.solve(problem, jnp.zeros(3)).converged)
    True
    """

    _required: ClassVar[tuple[str, ...]] = ("__call__",)
    _groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "shape": ("params_shape", "dtype"),
        "curvature": ("majorizer", "quadratic"),
        "dual": ("dual_scaling",),
        "free features": ("unpenalised_basis", "dual_projection"),
        "data": ("weights", "reweighted", "evaluate", "intercept"),
        "predictions": ("predictions",),
        "columns": ("columns_at",),
        "least squares": ("least_squares_at",),
        "units": ("in_units",),
        "rows": ("row_units", "rescaled"),
    }
    _independent: ClassVar[tuple[str, ...]] = ("shape",)
    _page: ClassVar[str] = "docs/adding-a-loss.md"

    __add__: ClassVar[Callable[[Any, Any], Any]]  # both make a `SumLoss`, whose file defines them
    __radd__: ClassVar[Callable[[Any, Any], Any]]

    quadratic: Any = False
    separable: Any = False
    rereads: Any = False  # every product reads the data again: few of them matter, not what they cost besides
    params_shape: Any = None
    dtype: Any = None
    weights: Any = None

    def __call__(self, W: Any) -> jax.Array:
        """f(W), shape ()."""
        raise NotImplementedError

    # ------------------------------------------------------------------ right for every loss

    def condensed(self) -> "Loss":
        """The same function of W where there is a form that is cheaper to evaluate, else the loss itself."""
        return self

    def target(self) -> jax.Array | None:
        """B, shape of Y, if the loss is ``1/2 ||AW - B||^2`` + constant, A of ``majorizer``; else None."""
        return None

    def factored(self) -> tuple[jax.Array, jax.Array | None]:
        """A of ``majorizer``: a matrix in memory, and by what its rows are to be multiplied, (n,) or None."""
        return self.majorizer(), None

    def laplacian(self) -> jax.Array | None:
        """(k, k): what the Hessian has in each row of W beside A'A; None if nothing."""
        return None

    def hessian(self, W: jax.Array, H: jax.Array | None = None) -> jax.Array:
        """Of all columns of W one after the other, (1, kd, kd); of each where ``separable``, (k, d, d).

        H: the predictions where ``facts`` has them. Instead of blocks A'A the A (k, n, d) if n < d.
        """
        return by_products(self, W)

    def facts(self, W: jax.Array, sizes: Any) -> Facts:
        """What a certificate wants to know at W; ``sizes`` are those of `sizes`."""
        value, gradient = jax.value_and_grad(self)(W)
        return Facts(value, gradient, self.rounding(W, sizes))

    def sizes(self) -> Any:
        """What ``rounding`` wants to have computed once."""
        return None

    def rounding(self, W: jax.Array, sizes: Any) -> jax.Array:
        """A bound of the error that rounding leaves in f(W) and in ``<grad f(W), W>``, shape ()."""
        return jnp.zeros((), W.dtype)

    def valid(self) -> jax.Array:
        """() boolean: False where weights or the like make the loss no convex function."""
        return jnp.ones((), bool)

    def in_units(self) -> "tuple[Loss, Units] | None":
        r""":math:`V \mapsto \gamma f(\sigma V)/\sigma^2` in units of the data, and these; None: not known."""
        return None

    @property
    def num_rows(self) -> int | None:
        """How many rows the data have; None where ``weights`` does not say."""
        return None if self.weights is None else int(self.weights.shape[0])

    # ------------------------------------------------------------------ never called where not provided

    def least_squares_at(self, W: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A and B: f is ||AV - B||^2 / 2 to second order about W, for a single column."""
        raise NotImplementedError

    def columns_at(self, ix: jax.Array) -> "Loss":
        """The loss of a W of these features; an index of d is none."""
        raise NotImplementedError

    def column_sizes(self) -> tuple[jax.Array, int] | None:
        """What each feature takes in ``columns_at``, (d,), and the most of all; None: room for any."""
        return None

    def row_units(self) -> jax.Array:
        """Powers of two near the root of the size of what each row of W multiplies, (d,)."""
        raise NotImplementedError

    def rescaled(self, units: jax.Array) -> "Loss":
        """The loss of V = W * units, row by row."""
        raise NotImplementedError

    def majorizer(self) -> jax.Array:
        """A with A'A above the Hessian of every column."""
        raise NotImplementedError

    def dual_scaling(
        self, W: jax.Array, limit: jax.Array, H: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """The best s and the change of the conjugate; H: the predictions where ``facts`` has them."""
        raise NotImplementedError

    def unpenalised_basis(self, free: jax.Array) -> jax.Array | None:
        """Orthonormal columns that span the predictions of the free features; None where there is no such."""
        raise NotImplementedError

    def dual_projection(
        self, W: jax.Array, basis: jax.Array, H: jax.Array | None = None, s: jax.Array | float = 1.0
    ) -> tuple[jax.Array, jax.Array]:
        """What makes the dual point orthogonal to the basis, and its price."""
        raise NotImplementedError

    def reweighted(self, weights: jax.Array) -> "Loss":
        """The same loss with other weights, not checked."""
        raise NotImplementedError

    def evaluate(self, W: jax.Array, intercept: ArrayLike = 0.0) -> jax.Array:
        """The loss of W with this intercept."""
        raise NotImplementedError

    def intercept(self, W: jax.Array) -> jax.Array:
        """The best intercept at W."""
        raise NotImplementedError

    def predictions(self, W: jax.Array, intercept: ArrayLike = 0.0) -> Predictions:
        """Targets and predictions of all rows, with this intercept."""
        raise NotImplementedError
