"""The protocol of losses: required methods, optional groups of methods, and the use of each group."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsejax._core.linalg import apply_if
from sparsejax._core.protocol import Protocol
from sparsejax.losses._quadratic_model import QuadraticModel
from sparsejax.losses._units import Units

Pair = tuple[jax.Array, jax.Array]

# Methods of an earlier protocol, which `QuadraticModel` and `InUnits` have replaced.
FORMER_METHODS = ("majorizer", "least_squares_at", "row_units")


class Facts(NamedTuple):
    """What a certificate needs to know of a loss f at W."""

    value: jax.Array  # f(W), ()
    gradient: jax.Array  # shape of W
    rounding: jax.Array  # (), a bound on the rounding error of the value and of <grad f(W), W>
    # (), of a quadratic f only: ``l*(sU) = s * linear + s^2 * value``, with l and U as in `Loss`, *dual*.
    linear: jax.Array | None = None
    # H = XW + b, (n, k) or (n,), or another result at W that methods of the loss share and compute once.
    predictions: Any = None


def no_facts(loss: Any, W: jax.Array, sizes: Any) -> Facts:
    """Zeros in the shapes of ``loss.facts(W, sizes)``: the first state of a loop, before its first point."""
    form: Facts = jax.eval_shape(lambda: loss.facts(W, sizes))
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), form)


def facts_unless_known(loss: Any, W: jax.Array, sizes: Any, at: jax.Array, known: Facts) -> Facts:
    """``known`` where W equals ``at``, the point of these facts; else ``loss.facts(W, sizes)``."""
    found: Facts = apply_if(jnp.any(at != W), lambda _: loss.facts(W, sizes), known)
    return found


class InUnits(NamedTuple):
    r"""What `Loss.in_units` returns: the loss :math:`V \mapsto \gamma f(\sigma V)/\sigma^2` and its units."""

    loss: Any  # the rescaled loss, of the same class as the original
    units: Units  # sigma and gamma
    row_units: Callable[[], jax.Array] | None = None  # () -> units (d,), one for each row of W; see `Loss`
    rescaled: Callable[[jax.Array], "Loss"] | None = None  # units (d,) -> the loss of V = W * units


class Predictions(NamedTuple):
    """What `Loss.predictions` returns, one entry for each entry of Y."""

    targets: jax.Array  # Y, (n, k) or (n,)
    linear: jax.Array  # H = XW + b, shape of Y
    mean: jax.Array  # the expected value of Y at H, shape of Y: H itself, probabilities or rates


class Loss(Protocol):
    r"""Base of every smooth convex loss f(W).

    Required: ``loss(W)`` -> (), which `jax.grad` differentiates. This is enough for `sparsejax.fista`, with
    ``init`` given. All other methods come in groups; a class defines all names of a group or none:

    * *shape*: ``params_shape`` (of W) and ``dtype``; without them a solver needs ``init``;
    * *quadratic model*, for `sparsejax.admm` and the other fast solvers: ``quadratic_model()`` -> a
      `QuadraticModel`;
    * *dual*, for a duality gap where the penalty is a norm: ``dual_scaling(W, limit)`` -> (s, change). With
      :math:`f = \ell(XW)` and :math:`U = \nabla\ell(XW)`, s (nearly) minimises :math:`\ell^*(sU)` over
      ``0 <= s <= limit``, a limit that the penalty sets, and change is :math:`\ell^*(sU) - \ell^*(U)`.
      Without this group a gap is known only where the conjugate of the penalty is finite everywhere;
    * *free features*, for a gap where features are not penalised: ``unpenalised_basis(free)`` and
      ``dual_projection(W, basis)``, see `sparsejax.losses.LinearModelLoss`;
    * *data*, for cross-validation: ``weights`` (None, (n,) or (n, k)); ``reweighted(weights)``: the same loss
      with other weights; ``intercept(W)``: the best intercept; ``evaluate(W, intercept)``: the loss of rows
      held out. Where ``weights`` is None, ``num_rows`` of the quadratic model is the number of rows;
    * *predictions*, for ``scoring`` in cross-validation: ``predictions(W, intercept)`` -> `Predictions`;
    * *columns*, for `sparsejax.working_set`: ``columns_at(ix)``: the loss of a W with the features ``ix``
      only; the index d, the number of features, stands for no feature;
    * *units*, so that nothing underflows: ``in_units()`` -> `InUnits` or None. Its ``loss`` is
      :math:`V \mapsto \gamma f(\sigma V)/\sigma^2`. For columns of X of unequal size `InUnits` also has
      ``row_units()``: powers of two (d,), each near the square root of the size of a column of X, and
      ``rescaled(units)``: the loss as a function of V = W * units, row by row.

    The defaults of ``facts(W, sizes)`` and ``valid()`` serve every loss. Where ``facts`` returns predictions
    H, `dual_scaling` and `dual_projection` get H as a further argument. Where the penalty is a norm,
    `dual_projection` also gets s, the scale of the dual point.

    A class is registered with JAX as a `sparsejax.Penalty` is; all data that are differentiated are leaves.

    Raises:
      TypeError: when a class is made without ``__call__``, with a part of a group, with a method of an
        earlier protocol (``majorizer``, ``least_squares_at``, ``row_units``) and without
        ``quadratic_model``, or as a subclass of another loss that replaces a part of a group and inherits the
        other part; see docs/adding-a-loss.md.

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

    __add__: ClassVar[Callable[[Any, Any], Any]]  # _graph.py sets both: they return a `SumLoss`
    __radd__: ClassVar[Callable[[Any, Any], Any]]

    params_shape: Any = None
    dtype: Any = None
    weights: Any = None

    def __call__(self, W: Any) -> jax.Array:
        """f(W), shape ()."""
        raise NotImplementedError

    def __init_subclass__(cls, **options: Any) -> None:
        former = [name for name in FORMER_METHODS if name in vars(cls)]
        if former and "quadratic_model" not in vars(cls):
            raise TypeError(replaced(cls.__name__, former))
        super().__init_subclass__(**options)

    # ------------------------------------------------------------------ right for every loss

    def quadratic_model(self) -> QuadraticModel:
        """What is known of the curvature of the loss; here nothing."""
        return QuadraticModel()

    def facts(self, W: jax.Array, sizes: Any = None) -> Facts:
        """The `Facts` at W, here with rounding 0; ``sizes``: ``quadratic_model().sizes()``, or None."""
        value, gradient = jax.value_and_grad(self)(W)
        return Facts(value, gradient, jnp.zeros((), W.dtype))

    def valid(self) -> jax.Array:
        """() boolean: whether the loss is convex with its weights and parameters."""
        return jnp.ones((), bool)

    def in_units(self) -> InUnits | None:
        """The loss in units of its data; None if the class knows no units."""
        return None

    # ------------------------------------------------------------------ called if ``provides`` has the group

    def columns_at(self, ix: jax.Array) -> "Loss":
        """The loss of a W with the features ``ix`` only; the index d stands for no feature."""
        raise NotImplementedError

    def dual_scaling(self, W: jax.Array, limit: jax.Array, H: Any = None) -> Pair:
        """s and change, () each, see *dual* in `Loss`; H: the predictions at W if ``facts`` returns them."""
        raise NotImplementedError

    def unpenalised_basis(self, free: jax.Array) -> jax.Array | None:
        """Orthonormal columns (n, r) that span the predictions of the free features; None if unknown.

        ``free`` is one of: indices (f,), where d stands for no feature; directions (d, f), floating; indices
        (k, f), a row for each column of W, for which the result is a basis a column, (k, n, r), or None.
        """
        raise NotImplementedError

    def dual_projection(
        self, W: jax.Array, basis: jax.Array, H: Any = None, s: jax.Array | float = 1.0
    ) -> Pair:
        """``X' dU``, shape of W, and the amount () that dU adds to the gap.

        ``U + dU`` is sU projected orthogonal to the basis.
        """
        raise NotImplementedError

    def reweighted(self, weights: jax.Array) -> "Loss":
        """The same loss with other weights, which are not checked."""
        raise NotImplementedError

    def evaluate(self, W: jax.Array, intercept: ArrayLike = 0.0) -> jax.Array:
        """The value of the loss at W with this intercept, (k,) or (), in place of the best one."""
        raise NotImplementedError

    def intercept(self, W: jax.Array) -> jax.Array:
        """The best intercept at W, (k,), or () for a vector W."""
        raise NotImplementedError

    def predictions(self, W: jax.Array, intercept: ArrayLike = 0.0) -> Predictions:
        """Targets and predictions of all rows at W with this intercept."""
        raise NotImplementedError


def replaced(name: str, former: list[str]) -> str:
    """The message of the error for a class that defines `FORMER_METHODS`."""
    return (
        f"{name} defines {', '.join(former)}, which `quadratic_model` and `in_units` have replaced: "
        f"see {Loss._page}."
    )
