r"""`admm`, also called the engine: two-block ADMM with one factorisation and the exact joint prox."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.linalg import columns, joint_norm, like, safe_divide, tiny_of
from sparsejax.driver import Algorithm, Link, Loop, kinds, prepare
from sparsejax.driver.batching import shared_by_lanes
from sparsejax.driver.curvature import HessianFactor, factorise
from sparsejax.losses import Loss, condensed, num_rows
from sparsejax.penalties import joined, prox_columns, prox_start, split, unpenalised
from sparsejax.problem import Problem
from sparsejax.solution import Solution
from sparsejax.solvers._chains import solved_by

RELAXATION = 1.6  # over-relaxation, in the range 1.5 to 1.8 that Boyd et al., Section 3.4.3, recommend
# `newton_admm` continues after MAX_FLOPS floating point operations, about the cost of compiling Newton's
# method and of its first step; but after 1000 + 8d iterations at least, and MAX_ITERATIONS at most.
MAX_ITERATIONS, MAX_FLOPS = 15_000, 10**10
# On a CPU the lanes of a batch run together if an iteration has at most so many floating point operations.
# Above this limit, waiting for the slowest lane costs more than sharing products saves.
MAX_LANE_FLOPS = 10**5
MAX_SPLIT_CYCLES = 100  # cycles of Dykstra's algorithm, for a rough split of the first gradient by terms
ITERATIONS_PER_CHECK = 10  # iterations between two certificates; rho is balanced at each certificate
# After so many iterations a problem of one term changes rho at every second certificate only: changes every
# ten iterations can make the iteration oscillate for ever.
EARLY_ITERATIONS = 50
# rho is balanced so that the relative dual residual is RESIDUAL_RATIO times the relative primal residual;
# with several terms, whose copies must agree too, the primal residual is to be smaller. rho changes by a
# factor of at least MIN_RHO_CHANGE.
RESIDUAL_RATIO, RESIDUAL_RATIO_OF_TERMS, MIN_RHO_CHANGE = 0.3, 3.0, 1.2
# Where few rows determine many features, or columns are nearly copies, balancing changes rho for ever or ends
# at a poor value. With a quadratic loss and one term rho is therefore set to REST_SHARE times the mean
# eigenvalue of M at iteration REST_BEGINS, and stays until REST_ENDS: most solves that took 10 000 iterations
# or more take 1000 to 3000.
REST_BEGINS, REST_ENDS, REST_SHARE = 1000, 9000, 0.005


class Shared(NamedTuple):
    """Quantities that depend on the loss alone: all problems of a path share them."""

    factor: HessianFactor  # of the majorizer M
    cheap: Any  # the loss in condensed form; None if that is the loss itself or it is not known


class State(NamedTuple):
    """State of the iteration, on transposes (k, d)."""

    Z: tuple[jax.Array, ...]  # (k, d), the last prox point of every term, with exact zeros
    V: tuple[jax.Array, ...]  # (k, d), arguments of the proxes: Z = prox(V), V - Z = U, the scaled multiplier
    W: jax.Array  # (k, d), the last W-step; only a W-step with a gradient uses it (`_Engine.exact` is False)
    rho: jax.Array  # (), the sum over the terms; the W-step adds it to M
    warm: Any  # state that the prox of each term passes to its next call
    prepared: Any  # with `CholeskyFactor` the inverse root for one rho, and that rho; with `Factor` None


def admm(
    problem: Problem,
    init: ArrayLike | None = None,
    *,
    tol: ArrayLike | None = None,
    maxiter: ArrayLike = 20_000,
    history: int = 0,
) -> Solution:
    r"""Minimise by the alternating direction method of multipliers on :math:`W = Z`.

    .. math:: W &\leftarrow (M + \rho I)^{-1}(M \bar W - \nabla f(\bar W) + \rho(Z - U)), \qquad
              \hat W = \alpha W + (1 - \alpha) Z , \\
              Z &\leftarrow \operatorname{prox}_{g/\rho}(\hat W + U), \qquad
              U \leftarrow \hat W + U - Z ,

    with :math:`\alpha = 1.6` and :math:`\bar W` the last W. M is the Hessian for `SquaredLoss`, so that
    :math:`\bar W` has no effect, and an upper bound of it for `LogisticLoss` or weights by entry. M is
    decomposed once: d x d if d <= n, else n x n by Woodbury's identity.

    :math:`\rho` starts at the mean eigenvalue of M. It is balanced between the primal and the dual residual
    every ten iterations (for one term every twenty after the 50th), for the last time at half of ``maxiter``.
    For a quadratic loss and one term rho stays at 1/200 of the mean eigenvalue from iteration 1000 to 9000 if
    ``maxiter`` is at least 2000. The duality gap of Z is computed every ten iterations; the loop ends when it
    is at most ``tol``.

    With small strengths and nearly separated labels, ADMM needs many iterations: if the loss is not quadratic
    and `newton_admm` takes the problem, `newton_admm` continues after 1000 to 15 000 iterations.

    A graph Laplacian on the labels is a part of M and is decomposed too. A penalty of K ``terms`` has K
    copies Z, each with :math:`\rho/K`. The answer is the last copy, with zeros in every group that is zero in
    another copy; the multipliers are the parts of the gradient that the gap needs.

    Args:
      problem: its loss must bound its curvature (the majorizer of its quadratic model), as those of
        `sparsejax.losses` do.
      init: start, shape of W; default zeros.
      tol: largest accepted gap; default 1e-6 in float64, 1e-4 in float32. Below the precision of the
        dtype (``tol=0``) the solve runs to the floor, is finished by Newton steps on the support, and
        ends as stalled unless the gap met tol.
      maxiter: iterations, >= 0.
      history: number of iterations to record; if not 0, every iteration of the solve is certified.

    Returns:
      `Solution`; ``params`` is Z, with exact zeros.

    Raises:
      TypeError, ValueError: an unfit problem or argument, before tracing.
    Source: Boyd et al., Foundations and Trends in Machine Learning 3(1), 2011, Sections 3.4.1 and 3.4.3; the
      splitting of Ming & Ding, IJCAI 2019, Eq. (15), with both steps exact and rho bounded.

    >>> import numpy as np, sparsejax as sj
    >>> problem = sj.Problem(sj.losses.SquaredLoss(np.eye(4, 3), np.eye(4, 2)), sj.penalties.L21(0.0625))
    >>> print(sj.admm(problem).params.round(2))
    [[0.75 0.  ]
     [0.   0.75]
     [0.   0.  ]]
    """
    return solved_by(LINK, *prepare("admm", problem, init, tol, maxiter, history, unfit))


def unfit(problem: Problem) -> str | None:
    """Why the solver does not take the problem, in words; None if it does."""
    if problem.smooth.quadratic_model().majorizer is not None:
        return None
    return (
        "needs a loss with a majorizer in its quadratic_model(), as those of sparsejax.losses have, got "
        f"{kinds(problem)}; fista takes any smooth function."
    )


def _budget(problem: Problem) -> int:
    """Number of iterations after which `newton_admm` continues.

    They take about as long as the compilation of Newton's method or, for large problems, one of its steps.
    """
    n = num_rows(problem.smooth)
    if n is None:
        return MAX_ITERATIONS
    d, k = (*problem.smooth.params_shape, 1)[:2]
    return min(MAX_ITERATIONS, max(MAX_FLOPS // (n * k * (4 * d + 1000)), 1000 + 8 * d))


def _iterated(
    problem: Problem, init: jax.Array, tol: jax.Array, maxiter: jax.Array, history: int, finish: bool = False
) -> Solution:
    return resume(problem, share(problem.smooth), init, None, tol, maxiter, history, finish)[0]


def resume(
    problem: Problem,
    shared: Shared,
    init: jax.Array,
    rho: jax.Array | None,
    tol: jax.Array,
    maxiter: jax.Array,
    history: int = 0,
    finish: bool = False,
) -> tuple[Solution, jax.Array]:
    """ADMM from ``init`` and rho; the first multiplier is minus the gradient at ``init``.

    Args:
      problem, init, tol, maxiter, history: as `admm`.
      shared: `share` of the loss, or for one problem alone `Shared` with `few_shifts` of the loss.
      rho: (); None means the mean eigenvalue of M.
      finish: whether Newton steps on the support finish a solve that stalls.

    Returns:
      The `Solution` and the last rho.
    """
    engine = _Engine(problem, shared.factor, init, maxiter, shared.cheap)
    loop = Loop(problem, init, engine.algorithm(rho), tol, maxiter, history, finish)
    solution, (state, _) = loop.run()
    return solution, state.rho


def share(smooth: Loss) -> Shared:
    """Compute `Shared` for a loss."""
    factor = factorise(smooth)
    cheap = _cheap(smooth, factor)
    return Shared(factor, None if cheap is smooth else cheap)


def _cheap(smooth: Loss, factor: HessianFactor) -> Any:
    return condensed(smooth) if factor.square else smooth


def _step(factor: HessianFactor) -> jax.Array:
    return safe_divide(1.0, factor.largest, 1.0)


def _differences(a: Sequence[jax.Array], b: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """a - b for tuples with one array for each term."""
    return tuple(x - y for x, y in zip(a, b, strict=True))


class _Engine:
    """The iteration for one problem, on transposes (k, d)."""

    def __init__(
        self, problem: Problem, factor: HessianFactor, init: jax.Array, maxiter: jax.Array, cheap: Any = None
    ):
        self.smooth, self.penalty, self.terms = problem.smooth, problem.penalty, problem.penalty.terms
        self.factor, self.init, self.maxiter = factor, init, maxiter
        self.K = len(self.terms)
        self.tiny = tiny_of(init) * 1e4
        model = self.smooth.quadratic_model()
        target: Any = model.target() if model.exact and model.target is not None else None
        # M W - grad f(W) is the same for every W if M is the Hessian: the W-step then needs no gradient. For
        # n < d this constant comes from the target, see `Factor.linear`.
        self.exact = model.exact and (factor.square or target is not None)
        self.cheap = _cheap(self.smooth, factor) if cheap is None else cheap
        if self.exact:
            zero = jnp.zeros_like(columns(init))
            self.linear = factor.linear(-self.grad(zero) if factor.square else columns(target))

    def algorithm(self, rho: jax.Array | None) -> Algorithm:
        # The condensed loss has no residuals, which the certificate needs if features are unpenalised.
        any_free = unpenalised(self.penalty, self.init.shape[0], self.init.dtype).shape[-1] > 0
        quick = None if any_free or self.cheap is self.smooth else self.cheap
        return Algorithm(
            state=(self.start(rho), jnp.int32(0)),
            block=self.block,
            candidate=lambda carry: like(joined(self.penalty, carry[0].Z, self.init), self.init),
            step=lambda _: _step(self.factor),
            check_every=ITERATIONS_PER_CHECK,
            begin=self.begin if self.K == 1 else None,
            split=self.split if self.K > 1 else None,
            quick=quick,
        )

    def start(self, rho: jax.Array | None) -> State:
        rho = self.factor.mean if rho is None else rho
        Zt = columns(self.init)
        warm = tuple(prox_start(term, like(Zt, self.init)) for term in self.terms)
        V: tuple[jax.Array, ...] = (Zt,)
        if self.K > 1:
            G = like(self.grad(Zt), self.init)
            parts = map(columns, split(self.penalty, -G, self.init, cycles=MAX_SPLIT_CYCLES))
            V = tuple(Zt + (self.K / rho) * part for part in parts)
        return State((Zt,) * self.K, V, Zt, rho, warm, self.factor.nothing_prepared())

    def begin(self, carry: tuple[State, jax.Array], gradient: jax.Array) -> tuple[State, jax.Array]:
        """The state at the start, with minus the gradient at the start as the multiplier of the one term."""
        s, k = carry
        return s._replace(V=(s.Z[0] - columns(gradient) / s.rho,)), k

    def grad(self, Wt: jax.Array) -> jax.Array:
        return columns(jax.grad(self.cheap)(like(Wt, self.init)))

    def w_step(self, s: State, prepared: Any) -> jax.Array:
        """(M + rho I)^-1 (M W - grad f(W) + rho (2Z - V)) at the last W, with means of Z and V over terms."""
        target: Any = sum(2 * Z - V for Z, V in zip(s.Z, s.V, strict=True)) / self.K
        if self.exact:
            return self.factor.minimiser(target, self.linear, s.rho, prepared)
        return s.W + self.factor.step(s.rho * (target - s.W) - self.grad(s.W), s.rho, prepared)

    def iterate(self, s: State, prepared: Any) -> State:
        W = self.w_step(s, prepared)
        # The relaxed W plus U, with U = V - Z.
        V = tuple(V + RELAXATION * (W - Z) for V, Z in zip(s.V, s.Z, strict=True))
        points = [
            prox_columns(term, v, self.K / s.rho, warm, self.init)
            for term, v, warm in zip(self.terms, V, s.warm, strict=True)
        ]
        Z, warm = zip(*points, strict=True)
        # With an exact W-step the last W is not used: the loop then does not store it.
        return s._replace(Z=Z, V=V, W=s.W if self.exact else W, warm=warm)

    def block(self, carry: tuple[State, jax.Array], n: jax.Array) -> tuple[State, jax.Array]:
        s, k = carry
        prepared = self.factor.prepared_for(s.prepared, s.rho)
        s = s._replace(prepared=None)  # a loop would copy it

        # n - 1 iterations, then one more: `balanced` compares the last two states. Both are turns of one
        # loop, so that the iteration is compiled once.
        def turn(which: jax.Array, last_two: tuple[State, State]) -> tuple[State, State]:
            s = last_two[1]
            iterations = jnp.where(which == 0, n - 1, 1)
            return s, lax.fori_loop(0, iterations, lambda _, s: self.iterate(s, prepared), s)

        old, new = lax.fori_loop(0, 2, turn, (s, s))
        return self.balanced(old, new, k, n)._replace(prepared=prepared), k + n

    def balanced(self, old: State, new: State, k: jax.Array, n: jax.Array) -> State:
        """The state with rho changed, if a change is due and the residuals are out of balance.

        Source: Boyd et al., Section 3.4.1, with the square root of the ratio of the residuals as the factor.
        """
        K, tiny = self.K, self.tiny
        U = _differences(new.V, new.Z)
        W = old.Z[-1] + (new.V[-1] - old.V[-1]) / RELAXATION  # the last W, from the update of V in `iterate`
        primal = joint_norm(_differences((W,) * K, new.Z)) / jnp.maximum(joint_norm(new.Z), tiny)
        dual = joint_norm(_differences(new.Z, old.Z)) / jnp.maximum(joint_norm(U), tiny)
        ratio = (RESIDUAL_RATIO if K == 1 else RESIDUAL_RATIO_OF_TERMS) * primal / jnp.maximum(dual, tiny)
        change_by = jnp.clip(jnp.sqrt(ratio), 0.1, 10.0)
        # rho stays above the rounding error of the largest eigenvalue: below it, the steps in directions
        # without curvature are magnified rounding errors.
        change_by = jnp.maximum(change_by, jnp.minimum(self.factor.least_shift / new.rho, 1))
        k = k + n
        every = jnp.where((k <= EARLY_ITERATIONS) | (K > 1), ITERATIONS_PER_CHECK, 2 * ITERATIONS_PER_CHECK)
        due = (k // every > (k - n) // every) & (2 * k <= self.maxiter)
        change = due & ((change_by > MIN_RHO_CHANGE) | (change_by < 1 / MIN_RHO_CHANGE))
        if self.exact and K == 1:
            late = k >= REST_BEGINS
            begins = late & (k - n < REST_BEGINS) & (2 * k <= self.maxiter)
            change = jnp.where(late & (k < REST_ENDS), begins, change)
            rest = jnp.maximum(REST_SHARE * self.factor.mean, self.factor.least_shift)
            change_by = jnp.where(begins, rest / new.rho, change_by)
        rho = jnp.where(change, new.rho * change_by, new.rho)
        # The multiplier rho U stays the same.
        V = tuple(jnp.where(change, Z + u / change_by, V) for Z, u, V in zip(new.Z, U, new.V, strict=True))
        return new._replace(V=V, rho=rho)

    def split(self, carry: tuple[State, jax.Array]) -> tuple[jax.Array, ...]:
        """The multipliers: a subgradient of every term at its point."""
        s, _ = carry
        return tuple(like((s.rho / self.K) * u, self.init) for u in _differences(s.V, s.Z))


def _at_once(problem: Problem, lanes: Any) -> bool:
    """Whether the lanes of a batch run together: they share one decomposition and iterations are cheap."""
    if not problem.smooth.quadratic_model().exact:
        return False

    def curvature(smooth: Any) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        model = smooth.quadratic_model()
        laplacian = None if model.laplacian is None else model.laplacian()
        # The zeros tell the shape of W in one lane: ``problem.smooth`` holds the leaves of all lanes.
        return model.majorizer(), jnp.zeros(smooth.params_shape), laplacian

    found = shared_by_lanes(curvature, problem.smooth, lanes.smooth)
    if found is None:
        return False
    A, W, _ = found
    flops = 4 * W.size * min(A.shape)
    return bool(flops <= MAX_LANE_FLOPS)


LINK = Link(
    "admm",
    _iterated,
    rows=True,
    budget=_budget,
    finish_step=lambda smooth, W: _step(factorise(smooth)),
    at_once=_at_once,
)
