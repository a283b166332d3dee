"""Certificates of optimality: the relative duality gap with its rounding error, and the residual."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float, check_params, is_traced
from sparsejax._core.compiled import Compiled
from sparsejax._core.linalg import eps_of, hidden_zeros, joint_norm, norm, safe_divide, tiny_of
from sparsejax.closures import with_program_of_function
from sparsejax.dual_point import Free, Parts, dual_point, free_features
from sparsejax.losses import Facts, Loss, Sizes, by_row, lower_bound, sizes, value_known
from sparsejax.penalties import L1, Penalty, feasible, for_shape_of, shared, strengths_valid, unpenalised
from sparsejax.penalties import split as split_terms
from sparsejax.problem import Problem, as_protocol, in_units, units_of, zeros

MIN_STEP_SHARE = 0.01  # the step of a residual times the norm of the gradient is at least this share of |W|
NEWTON_STEPS, NEWTON_HALVINGS = 50, 10  # at most, to the best constants of `lambda_max`
MAX_FREE_WEIGHTS = 2048  # weights of features in no group that `lambda_max` fits: their Hessian takes 32 MB


class Scale(NamedTuple):
    """Numbers that all certificates of a problem share: gap and residual are relative to them."""

    value: jax.Array  # (), the objective at W = 0, or at the nearest point where it is finite
    gradient: jax.Array  # (), the norm of the gradient of the loss at that point
    basis: jax.Array | None  # (n, r), spans the predictions of unpenalised features; None: none are known
    sizes: Any  # second argument of ``loss.facts``, for the rounding error of the loss
    valid: jax.Array  # () boolean: the problem is convex, and its squares do not underflow
    free: Free | None = None  # None: which features are free is known before the program runs
    lower_bound: ArrayLike = 0.0  # a number () that the objective is never below

    def size(self, objective: jax.Array) -> jax.Array:
        """The denominator of the relative gap at a point with this objective, see `duality_gap`."""
        size = jnp.maximum(jnp.abs(objective), self.value)
        return jnp.minimum(size, jnp.maximum(objective, self.value) - self.lower_bound)


class Certificate(NamedTuple):
    """Objective, relative gap and residual of a point, each of shape (); see `Solution`."""

    objective: jax.Array
    gap: jax.Array
    residual: jax.Array

    @property
    def measure(self) -> jax.Array:
        """The number that is compared with tol: the gap, or the residual where no gap is known."""
        return jnp.where(jnp.isnan(self.gap), self.residual, self.gap)


def scale_of(
    problem: Problem,
    W: jax.Array,
    smooth: Loss | None = None,
    known: Any = None,
    at_zero: Facts | None = None,
) -> Scale:
    """The `Scale` of a problem with parameters like W.

    Args:
      problem, W: the problem, and an array like its parameters.
      smooth: a cheaper form of its loss, if there is one.
      known: the `sizes` of its loss, if they are known.
      at_zero: the facts of its loss at W = 0, if they are known and 0 is feasible.
    """
    penalty = problem.penalty
    zero = feasible(penalty, hidden_zeros(W.shape, W.dtype))
    known = sizes(problem.smooth) if known is None else known
    if at_zero is None:  # products of `facts` with X' are faster than those of `jax.grad`
        at_zero = (problem.smooth if smooth is None else smooth).facts(zero, known)
    objective, G = at_zero.value + penalty.value(zero), at_zero.gradient
    basis, free = free_features(problem, W)
    slope, smallest = norm(G), tiny_of(W) / eps_of(W)
    # The squares in the value and in the gradient underflow: no certificate is possible.
    lost = (jnp.abs(objective) < smallest) & (slope * slope < smallest) & jnp.any(G != 0)
    valid = problem.smooth.valid() & strengths_valid(penalty) & ~lost
    valid &= jnp.isfinite(objective + slope)  # else a gap or a residual relative to them would be 0
    return Scale(objective, slope, basis, known, valid, free, lower_bound(problem.smooth))


def certify(
    problem: Problem,
    W: jax.Array,
    step: jax.Array,
    scale: Scale,
    facts: Facts,
    split: Parts | None = None,
    settle: jax.Array | bool = False,
) -> Certificate:
    """Objective, relative gap and residual of W.

    Args:
      problem: the problem in the protocol.
      W: the point.
      step: 1/L, the least step of the prox-gradient residual; a large W gets a longer step.
      scale: `scale_of` the problem.
      facts: facts of the loss at W.
      split: for a penalty of several terms, approximate subgradients, one for each term.
      settle: how the split is corrected to sum to -grad f(W): False, by the same amount in each term; True,
        by `penalties.split`.
    """
    G = facts.gradient
    parts, slope = _split(problem.penalty, W, G, split, settle), jnp.maximum(norm(G), scale.gradient)
    value, gap = facts.value + problem.penalty.value(W), relative_gap(problem, W, facts, scale, parts)
    # A step that is shorter than the rounding error of W would leave W as it is, wherever W is.
    longer = jnp.maximum(step, MIN_STEP_SHARE * safe_divide(norm(W), slope))
    # One prox-gradient mapping for each term, (W - prox_k(W + step * part_k, step)) / step = G_k + S_k.
    mappings = [
        (W - term.prox(W + longer * part, longer)) / longer
        for term, part in zip(problem.penalty.terms, parts, strict=True)
    ]
    length = joint_norm(mappings)
    largest = joint_norm([mapping + part for mapping, part in zip(mappings, parts, strict=True)])
    size = jnp.maximum(slope, largest)
    residual = safe_divide(length, size, length)
    if isinstance(scale.sizes, Sizes):
        error = eps_of(W) * jnp.abs(W) / longer
        rounded = [jnp.abs(mapping) + error for mapping in mappings]
        residual = jnp.maximum(residual, _possible_decrease(rounded, step, scale, value))
    return Certificate(value, gap, jnp.where(scale.valid, residual, jnp.nan))


def _possible_decrease(slopes: list[jax.Array], step: jax.Array, scale: Scale, value: jax.Array) -> jax.Array:
    """About how far the objective would fall if each entry moved alone, relative to its size.

    The entries of the gradient are as large as the columns of X: beside one large column, the norm of the
    residual does not show what is left in the others. An entry of slope r and curvature h promises
    r^2 / (2h). Here h is L = 1/step times the squared norm of the column of X, divided by the largest
    squared norm of a column.
    """
    squares = scale.sizes.squares
    # A column that is smaller by more than 1/eps counts as if it were that small: no factor is infinite.
    factor = jnp.minimum(safe_divide(jnp.max(squares), squares), eps_of(squares) ** -2)
    factor = by_row(step / 2 * factor, slopes[0])
    fall = sum(jnp.sum(slope * factor * slope) for slope in slopes)
    return safe_divide(fall, scale.size(value), fall)


def _split(
    penalty: Penalty, W: jax.Array, G: jax.Array, split: Parts | None = None, settle: jax.Array | bool = False
) -> Parts:
    """Parts of -G, one for each term, that are nearly subgradients of the terms at W."""
    if len(penalty.terms) == 1:
        return (-G,)
    if split is None:
        return split_terms(penalty, -G, W)
    even = shared(penalty, split, -G)
    if settle is False:  # a static False leaves the other split out of the program
        return even
    return lax.cond(settle, lambda: tuple(split_terms(penalty, -G, W, split)), lambda: even)


def relative_gap(problem: Problem, W: jax.Array, facts: Facts, scale: Scale, parts: Parts) -> jax.Array:
    """The relative gap that `duality_gap` documents, (); NaN where no dual is known."""
    penalty, smooth = problem.penalty, problem.smooth
    G, scalable = facts.gradient, "dual" in smooth.provides
    finite = "dual" in penalty.provides and bool(penalty.finite_conjugate)
    if "dual" not in penalty.provides or not (finite or scalable) or not value_known(smooth):
        return jnp.full((), jnp.nan, G.dtype)
    point, free = dual_point(problem, W, facts, (scale.basis, scale.free), parts), scale.free
    # P - D(s) = g(W) + <G, W> + g*(-sG) + [l*(sU) - l*(U)], see `duality_gap`.
    # The bound on a conjugate needs the parts if there are several terms, else the point.
    aux = W if len(parts) == 1 else point.parts
    at_W, conjugate, products = penalty.value(W), penalty.conjugate(-point.scaled, aux), point.gradient * W
    excess = at_W + jnp.sum(products) + conjugate + point.change
    magnitude = jnp.abs(at_W) + jnp.sum(jnp.abs(products)) + jnp.abs(conjugate) + jnp.abs(point.change)
    error = 2 * eps_of(G) * magnitude + facts.rounding + point.left
    bound = jnp.maximum(excess, 0) + jnp.where(jnp.isnan(error), jnp.inf, error)
    size = scale.size(facts.value + at_W)
    gap = safe_divide(bound, size, bound)
    unknown = (point.limit < 1) | ~scale.valid
    if free is not None:
        unknown |= free.some & ~free.known
    # limit < 1 here means that no dual point is known: -G cannot be scaled into the domain of the conjugate,
    # or the loss has no ``dual_scaling``.
    return jnp.where(unknown, jnp.nan, gap)


def duality_gap(problem: Problem, W: ArrayLike) -> jax.Array:
    r"""Relative duality gap of W: ``(P - D)/max(|P|, P(0))``, 0 where both are 0.

    If the penalty excludes W = 0 (`SumTo` of another total than 0, a `Box`), P at the nearest point that the
    penalty allows stands in place of P(0). A loss may have a large constant, as `losses.PoissonLoss` of large
    counts has. If the loss has a lower bound c, the gap is therefore relative to ``max(P, P(0)) - c`` where
    this is smaller.

    With :math:`f(W)=\ell(XW)`, :math:`U=\nabla\ell(XW)`, :math:`G=\nabla f(W)=X^\top U` and any s,
    :math:`D(s) = -\ell^*(sU) - g^*(-sG)` is a lower bound of the minimum, and by Fenchel's equality

    .. math:: P - D(s) = g(W) + \langle G, W\rangle + g^*(-sG) + [\ell^*(sU) - \ell^*(U)] ,

    where no large terms cancel near the optimum. If :math:`g^*` is finite everywhere (squared norms,
    exclusive l2,1) then s = 1, the bracket is 0, and f may be any convex function. For norms, s is the best
    scaling that keeps :math:`-sG` in the dual ball, and the loss must have ``dual_scaling``. A bound on the
    rounding error of all terms is added, so that a W with huge entries, whose terms cancel, has a large gap.

    Args:
      problem: the problem.
      W: finite, of the shape of the parameters.

    Returns:
      Shape (), >= 0. NaN where no dual is known: a plain function with a norm; a strength that is one number
      and 0, so that nothing is penalised; a `losses.GramLoss` without its constant. Features of strength 0,
      given by row or entry, have a gap with least squares and with logistic, Poisson, Huber, quantile,
      softmax (by row) and Cox losses of a dense X without a graph (not of `SquaredLoss.gram` or batches), up
      to 64 of them in a column of W; else, under `NonNegative` or a `Box`, beside `TotalVariation`, and if
      they are nearly collinear, it is NaN. Features in no group, and constant columns under `TotalVariation`,
      have a gap with the same losses. Beside `SumTo` (with neither `SquaredL2` nor, for `L1`, `NonNegative`)
      it is NaN with two strengths of 0 of `L1` in a column of W, or one of another norm: a dual point needs
      entries of G that are equal. NaN also where the objective is infinite at W, and where a negative
      strength or weight, under jit, makes the problem not convex.

    Raises:
      TypeError, ValueError: problem is not a `Problem`, or W has another shape or dtype.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> problem = sj.Problem(sj.losses.SquaredLoss(jnp.eye(2), jnp.ones(2)), sj.penalties.L1(0.1))
    >>> float(sj.duality_gap(problem, jnp.zeros(2))) > 0.1
    True
    """
    problem = as_protocol("duality_gap", problem)
    smooth = problem.smooth
    W = as_float("W", W, (1, 2, 3), smooth.dtype if "shape" in smooth.provides else None)
    if "shape" in smooth.provides:
        check_params(W, smooth.params_shape)
    problem = with_program_of_function(problem, W)
    return _duality_gap(problem._replace(penalty=for_shape_of(problem.penalty, W)), W)


@Compiled
def _duality_gap(problem: Problem, W: jax.Array) -> jax.Array:
    scaled = units_of(problem)
    problem = in_units(problem, scaled)
    W = W if scaled is None else scaled.units.start(W)
    scale = scale_of(problem, W)
    facts = problem.smooth.facts(W, scale.sizes)
    return relative_gap(problem, W, facts, scale, _split(problem.penalty, W, facts.gradient))


def lambda_max(problem: Problem, init: ArrayLike | None = None) -> jax.Array:
    r"""The smallest ``strength`` (`L1`) or ``alpha`` (`L21`, `L1Inf`, `ExclusiveL21`) with W = 0.

    It is the dual norm of :math:`G = \nabla f(0)`, rounded up by 4 eps, and does not depend on the strengths
    in ``problem``: ``max_ij |G_ij|`` for l1, ``max_i ||G_i||_2`` for l2,1, ``max_i ||G_i||_1`` for l1,inf.
    For exclusive l2,1 it does not depend on beta, since the slope of a square is 0 at zero. For a sum of
    penalties it is the smallest common factor of all strengths in ``problem`` that gives W = 0, and so it is
    for `SortedL1`, and for strengths of `L1` by column or entry. For `TotalVariation` it is the strength from
    which every column of W is constant. With features in no group (`GroupLasso`) it is the strength from
    which all others are 0.

    Args:
      problem: its penalty must have ``dual_norm``.
      init: an array of the shape and dtype of W, needed if the loss is a plain function.

    Returns:
      Shape ().

    Raises:
      ValueError: no finite strength gives W = 0 (`ExclusiveLasso`; a sum with bounds that leave out 0);
        features in no group have more than 2048 weights; ``init`` has another shape than W.
      TypeError: another penalty has no ``dual_norm``; the shape of W is unknown because ``smooth`` is a
        plain function, and ``init`` is not given.

    >>> import jax.numpy as jnp, sparsejax as sj
    >>> problem = sj.Problem(sj.losses.SquaredLoss(jnp.eye(2), jnp.ones(2)), sj.penalties.L1(0.1))
    >>> round(float(sj.lambda_max(problem)), 6)
    0.5
    """
    problem = as_protocol("lambda_max", problem)
    penalty = problem.penalty
    if "dual norm" not in penalty.provides:
        kind = type(problem.penalty).__name__
        if "dual" in penalty.provides and penalty.finite_conjugate:
            raise ValueError(
                f"{kind} has no finite strength with W = 0: a squared norm has slope 0 at zero, so that its "
                "minimiser only shrinks like 1/strength, and a constraint has no strength. Add L1, L21 or "
                "ExclusiveL21."
            )
        raise TypeError(f"lambda_max needs a penalty with dual_norm, got {kind}.")
    dtype = problem.smooth.dtype if "shape" in problem.smooth.provides else None
    start = zeros(problem) if init is None else as_float("init", init, tuple(range(33)), dtype)
    if "shape" in problem.smooth.provides and start.shape != tuple(problem.smooth.params_shape):
        shape = tuple(problem.smooth.params_shape)
        raise ValueError(f"lambda_max: init has shape {start.shape}; the parameters have shape {shape}.")
    problem = with_program_of_function(problem, start)
    top: jax.Array = _lambda_max(problem._replace(penalty=for_shape_of(penalty, start)), start)
    if not is_traced(top) and np.isinf(top):
        raise ValueError(f"no finite factor of the strengths of {penalty!r} makes W = 0.")
    return top


@Compiled
def _lambda_max(problem: Problem, W: jax.Array) -> jax.Array:
    # Work in units of the data: those for an `L1`, so that the strengths of the penalty do not matter.
    scaled = units_of(problem._replace(penalty=L1(jnp.zeros((), W.dtype))))
    smooth, free = problem.smooth if scaled is None else scaled.loss, _free_directions(problem, W)
    zero = hidden_zeros(W.shape, W.dtype)
    if free is None:
        G = jax.grad(smooth)(zero)
    else:
        G = jax.grad(smooth)(_best_along(smooth, free, zero))
        G = G - free @ (free.T @ G)
    top = problem.penalty.dual_norm(-G) * (1 + 4 * eps_of(G))
    top = top if scaled is None else top / scaled.units.gamma * scaled.units.sigma
    return jnp.where(problem.smooth.valid() & jnp.all(jnp.isfinite(G)), top, jnp.nan)


def _free_directions(problem: Problem, W: jax.Array) -> jax.Array | None:
    """Directions (d, f) in which the penalty is constant; None if there are none."""
    free = unpenalised(problem.penalty, W.shape[0], W.dtype) if W.ndim else problem.penalty.free
    if free.ndim == 1 and free.shape[0]:
        if free.shape[0] * (W.size // W.shape[0]) > MAX_FREE_WEIGHTS:
            raise ValueError(
                f"lambda_max: {free.shape[0]} features in no group have more than {MAX_FREE_WEIGHTS} "
                "weights, which must be fitted first: give groups to most of them."
            )
        free = jnp.eye(W.shape[0], dtype=W.dtype)[:, free]
    return free if free.ndim == 2 else None


def _best_along(smooth: Loss, free: jax.Array, W: jax.Array) -> jax.Array:
    """The minimiser of a loss over these directions (d, f) from W, by Newton steps; few unknowns."""
    fixed = lax.stop_gradient(smooth)

    def of(c: jax.Array, loss: Loss = fixed) -> jax.Array:
        return loss(W + free @ c)

    def newton(c: jax.Array, loss: Loss = fixed) -> jax.Array:
        """The Newton step at c; it has no component in directions in which the loss is flat."""
        slope = jax.grad(of)(c, loss).reshape(-1)
        curvature = jax.hessian(of)(c).reshape(slope.size, slope.size)
        return (jnp.linalg.pinv(curvature, hermitian=True) @ slope).reshape(c.shape)

    def step(carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        c, _, n = carry
        move = newton(c)
        lengths = 0.5 ** jnp.arange(NEWTON_HALVINGS, dtype=c.dtype)
        tried = c[None] - lengths.reshape(-1, *(1,) * c.ndim) * move[None]
        values = jax.vmap(of)(tried)
        best = tried[jnp.argmin(values)]
        # Near the minimum rounding hides the decrease of the values: then take the whole step.
        best = jnp.where(jnp.min(values) < of(c), best, tried[0])
        return best, norm(best - c) > 4 * eps_of(c) * norm(best), n + 1

    first = jnp.zeros((free.shape[1], *W.shape[1:]), W.dtype), jnp.ones((), bool), jnp.int32(0)
    c = lax.while_loop(lambda carry: carry[1] & (carry[2] < NEWTON_STEPS), step, first)[0]
    return W + free @ (c - newton(c, smooth))  # a last step has the derivative of c in the loss
