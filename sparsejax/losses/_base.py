"""The protocol of losses: what is required, what is optional, and what is lost without."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax._core.protocol import Protocol
from sparsejax.losses._quadratic_model import QuadraticModel
from sparsejax.losses._units import Units

# Methods that `QuadraticModel` and `InUnits` have replaced.
FORMER = ("majorizer", "least_squares_at", "row_units")


class Facts(NamedTuple):
    """All that a certificate asks of a loss at W."""

    value: jax.Array
    gradient: jax.Array
    rounding: jax.Array  # (), a bound of the rounding error of the value and of <grad f(W), W>
    linear: jax.Array | None = None  # of a quadratic: ``l*(sU) = s * linear + s^2 * value``
    predictions: jax.Array | None = None  # of a linear model, (n, k), so that they are found once


class InUnits(NamedTuple):
    r"""A loss in units of its data, by `Loss.in_units`: :math:`V \mapsto \gamma f(\sigma V)/\sigma^2`."""

    loss: Any
    units: Units  # sigma and gamma
    row_units: Callable[[], jax.Array] | None = None  # see `Loss`
    rescaled: Callable[[jax.Array], Any] | None = None


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
    * *quadratic model*, for `sparsejax.admm` and the other fast solvers: ``quadratic_model()`` -> a
      `QuadraticModel`;
    * *dual*, for a gap with norms: ``dual_scaling(W, limit)``: with :math:`f = \ell(XW)` and
      :math:`U = \nabla\ell(XW)`, the s with ``0 <= s <= limit`` that makes :math:`\ell^*(sU)` least, or
      nearly, and :math:`\ell^*(sU) - \ell^*(U)` (without: a gap only where the conjugate of the penalty is
      finite);
    * *free features*, for a gap where features are not penalised: ``unpenalised_basis(free)``,
      ``dual_projection(W, basis)``, as those of `sparsejax.losses.LinearModelLoss`;
    * *data*, for cross-validation: ``weights`` (None, (n,) or (n, k)), ``reweighted(weights)``: the same loss
      with other weights; ``intercept(W)``: the best one; ``evaluate(W, intercept)``: the loss of rows held
      out. Where ``weights`` is None, ``num_rows`` in the quadratic model says how many rows there are;
    * *predictions*, for ``scoring`` in cross-validation: ``predictions(W, intercept)`` -> `Predictions`;
    * *columns*, for `sparsejax.working_set`: ``columns_at(ix)``: the loss of a W of these features, an index
      of d being none;
    * *units*, so that nothing underflows: ``in_units()`` -> `InUnits` or None: the loss
      :math:`V \mapsto \gamma f(\sigma V)/\sigma^2`, sigma and gamma; of that loss, for columns of unequal
      size, ``row_units()``: powers of two near the root of the size of what each row of W multiplies, (d,),
      and ``rescaled(units)``: its function of V = W * units, row by row.

    Two methods have defaults that are always right: ``facts(W, sizes)`` and ``valid()``. Where ``facts``
    finds predictions H, `dual_scaling` and `dual_projection` are called with them as a last argument;
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
        "quadratic model": ("quadratic_model",),
        "dual": ("dual_scaling",),
        "free features": ("unpenalised_basis", "dual_projection"),
        "data": ("weights", "reweighted", "evaluate", "intercept"),
        "predictions": ("predictions",),
        "columns": ("columns_at",),
        "facts": ("facts",),
        "units": ("in_units",),
    }
    _independent: ClassVar[tuple[str, ...]] = ("shape",)
    _page: ClassVar[str] = "docs/adding-a-loss.md"

    __add__: ClassVar[Callable[[Any, Any], Any]]  # both make a `SumLoss`, whose file defines them
    __radd__: ClassVar[Callable[[Any, Any], Any]]

    params_shape: Any = None
    dtype: Any = None
    weights: Any = None

    def __call__(self, W: Any) -> jax.Array:
        """f(W), shape ()."""
        raise NotImplementedError

    def __init_subclass__(cls, **options: Any) -> None:
        former = [name for name in FORMER if name in vars(cls)]
        if former and "quadratic_model" not in vars(cls):
            raise TypeError(replaced(cls.__name__, former))
        super().__init_subclass__(**options)

    # ------------------------------------------------------------------ right for every loss

    def quadratic_model(self) -> QuadraticModel:
        """What is known of the curvature: nothing."""
        return QuadraticModel()

    def facts(self, W: jax.Array, sizes: Any = None) -> Facts:
        """What a certificate wants to know at W; ``sizes`` are those of `quadratic_model`."""
        value, gradient = jax.value_and_grad(self)(W)
        return Facts(value, gradient, jnp.zeros((), W.dtype))

    def valid(self) -> jax.Array:
        """() boolean: False where weights or the like make the loss no convex function."""
        return jnp.ones((), bool)

    def in_units(self) -> InUnits | None:
        """The loss in units of its data; None: these are not known."""
        return None

    # ------------------------------------------------------------------ never called where not provided

    def columns_at(self, ix: jax.Array) -> "Loss":
        """The loss of a W of these features; an index of d is none."""
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


def replaced(name: str, former: list[str]) -> str:
    """The message for a class with methods that no solver asks for any more."""
    return (
        f"{name} defines {', '.join(former)}, which `quadratic_model` and `in_units` have replaced: "
        f"see {Loss._page}."
    )
