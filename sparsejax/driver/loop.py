"""The loop that every solver uses: blocks of iterations, each followed by a certificate.

A solver supplies an `Algorithm`: its state, ``block(state, n)`` that makes n iterations, and
``candidate(state)``, the W to certify. The loop keeps the best W seen, counts iterations, records the history
and decides when to stop.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import apply_if, choose, eps_of, of_all_lanes
from sparsejax.certificate import Certificate, Scale, certify, scale_of
from sparsejax.driver.newton import MAX_FINISH_STEPS, newton_step
from sparsejax.losses import Facts, Loss
from sparsejax.problem import Problem
from sparsejax.solution import CONVERGED, MAX_ITER, NON_FINITE, STALLED, History, Solution

RUNNING = -1  # the status before a solve ends
# A solve has stalled, because of rounding, if its best certificate has not halved for PATIENCE iterations and
# is at most 1000 eps, or has not halved for ten times as many and is at most sqrt(eps).
PATIENCE = 300
UNCLEAR_MEASURE = 0.5  # of two points with measures from this on, the one with the lower objective is better


@dataclass(frozen=True)
class Algorithm:
    """An iteration, in the form that `Loop` runs. The first five attributes are required.

    Attributes:
      state: the first state, any pytree of fixed shapes and dtypes.
      block: ``block(state, n)``: the state n iterations later.
      candidate: ``candidate(state)``: the W to certify.
      step: ``step(state)``: 1/L, which defines the residual.
      check_every: number of iterations between two certificates.
      begin: ``begin(state, gradient)``: the first state, for algorithms that start from the gradient of the
        loss at their candidate.
      patience: number of iterations without progress after which the solve counts as stalled, if its
        certificate is near the precision of the dtype; see `PATIENCE`.
      learn: ``learn(state, facts, certificate)``: the state after each certificate, from the `Facts` of the
        loss and the `Certificate` at the candidate. The candidates are then trial points, and all but the
        first may be infinite.
      leaves: ``leaves(state)``: whether the algorithm stops with the status ``MAX_ITER``, so that the next
        link continues. An algorithm with ``leaves`` has this status also where others count as stalled.
      split: ``split(state)``: a subgradient of each term of the penalty for the certificate, if there are
        several terms.
      facts: ``facts(state, W)``: the `Facts` of the loss at W, or nearly so, for an algorithm that knows
        parts of them already. W is the candidate or, in the finish, another point.
      quick: the loss in a form that is cheaper to evaluate. It is used until its certificate meets tol; the
        loss itself then confirms that certificate.
      ended: ``ended(state)``: the stopping rule of an algorithm that is kept as published. If it stops the
        solve, the result is the last point, not the best, without Newton steps, and with the status
        ``STALLED`` unless its certificate meets tol.

    >>> import jax.numpy as jnp
    >>> halves = Algorithm(
    ...     state=jnp.ones(2),
    ...     block=lambda W, n: W / 2.0**n,
    ...     candidate=lambda W: W,
    ...     step=lambda W: jnp.ones(()),
    ...     check_every=10,
    ... )
    >>> halves.patience
    300
    """

    state: Any
    block: Callable[[Any, jax.Array], Any]
    candidate: Callable[[Any], jax.Array]
    step: Callable[[Any], jax.Array]
    check_every: int
    begin: Callable[[Any, jax.Array], Any] | None = None
    patience: int = PATIENCE
    learn: Callable[[Any, Facts, Certificate], Any] | None = None
    leaves: Callable[[Any], jax.Array] | None = None
    split: Callable[[Any], tuple[jax.Array, ...]] | None = None
    facts: Callable[[Any, jax.Array], Facts] | None = None
    quick: Loss | None = None
    ended: Callable[[Any], jax.Array] | None = None


class _Carry(NamedTuple):
    state: Any  # the state of the algorithm
    best: jax.Array  # the best W so far, as `Loop._compared` decides
    parts: tuple[jax.Array, ...] | None  # at ``best`` a subgradient of each term of the penalty, if several
    certificate: Certificate  # the certificate of ``best``
    lowest: jax.Array  # (), the least objective seen, at W = 0 too: an upper bound of the minimum
    to_halve: jax.Array  # (), the measure at the last progress; progress is a measure of at most half of it
    last_progress: jax.Array  # () int32, iterations made at the last progress
    num_iters: jax.Array  # () int32
    status: jax.Array  # () int32, `RUNNING` or a status of `Solution`
    history: History
    exact: jax.Array  # () boolean, whether the next certificate is of the loss itself, not of its quick form
    trial: jax.Array  # the next W of the finish
    round: jax.Array  # () int32, step of the finish: 0 while it certifies ``best``, -1 before the finish
    over: jax.Array  # () boolean, whether the loop ends


class _Certified(NamedTuple):
    """A point and its certificate."""

    W: jax.Array
    parts: tuple[jax.Array, ...] | None  # a subgradient of each term of the penalty, if there are several
    certificate: Certificate
    facts: Facts  # value and gradient of the loss at W
    lowest: jax.Array  # (), the least objective seen, this point included
    finish: jax.Array  # () boolean, whether the point belongs to the finish
    again: jax.Array  # () boolean: the quick loss met tol, so the loss itself must certify the same point


class Loop:
    """Iterate until the certificate meets ``tol``.

    With ``finish`` the loop makes Newton steps on the support of the best W seen after a solve that stalls;
    without, the function `finish` can do so in a program of its own. The certificate is the largest part of
    the program: one loop certifies the start, the iterates, their confirmation and the finish, so that the
    certificate is compiled once.

    Args:
      problem: `sparsejax.Problem` in the protocol.
      init: the first W to certify.
      algorithm: `Algorithm`.
      tol: relative duality gap, or residual where no gap is known.
      maxiter: largest number of iterations.
      history: number of iterations whose objective and gap are recorded, static.
      finish: whether the loop includes the finish.
      sizes: `sparsejax.losses.sizes` of the loss, if they are known.
      at_zero: `Facts` of the loss at W = 0, if they are known and 0 is feasible.

    >>> import jax.numpy as jnp, numpy as np, sparsejax as sj
    >>> problem = sj.Problem(sj.losses.SquaredLoss(np.eye(2), np.ones(2)), sj.penalties.L1(1.0))
    >>> to_zero = Algorithm(
    ...     state=jnp.ones(2),
    ...     block=lambda W, n: jnp.zeros(2),
    ...     candidate=lambda W: W,
    ...     step=lambda W: jnp.ones(()),
    ...     check_every=1,
    ... )
    >>> solution, state = Loop(problem, jnp.ones(2), to_zero, jnp.asarray(1e-3), 5, 0).run()
    >>> bool(solution.converged), int(solution.num_iters)
    (True, 1)
    """

    def __init__(
        self,
        problem: Problem,
        init: jax.Array,
        algorithm: Algorithm,
        tol: jax.Array,
        maxiter: jax.Array,
        history: int,
        finish: bool = False,
        sizes: Any = None,
        at_zero: Facts | None = None,
    ):
        if algorithm.check_every < 1:
            raise ValueError(f"Algorithm: check_every must be at least 1, got {algorithm.check_every}.")
        self.problem, self.init, self.algorithm = problem, init, algorithm
        self.tol, self.maxiter, self.history = tol, maxiter, history
        self.scale = scale_of(problem, init, algorithm.quick, sizes, at_zero)
        self.check_every = 1 if history else algorithm.check_every
        self.eps = eps_of(init)
        self.floor = 2 * self.eps  # a smaller tol cannot be certified
        self.polishes = finish and algorithm.ended is None and "support" in problem.penalty.provides

    def run(self, start: _Carry | None = None) -> tuple[Solution, Any]:
        """Run the loop; returns the `Solution` and the last state of the algorithm."""
        c = lax.while_loop(lambda c: ~c.over, self._body, self.start() if start is None else start)
        certificate = c.certificate
        lost = jnp.isnan(certificate.objective) | ~is_finite_at_zero(self.scale)
        status = jnp.where(lost, NON_FINITE, c.status)
        met = (certificate.measure <= self.tol) & (status != NON_FINITE)
        # The quick loss may have met tol at a point where the loss itself does not.
        status = jnp.where(met, CONVERGED, jnp.where(status == CONVERGED, STALLED, status))
        # An algorithm with ``learn`` ends as non-finite if even its shortest steps lead to NaN. ``best`` may
        # then be the start, which would look like an answer.
        if self.algorithm.learn is not None:
            lost |= status == NON_FINITE
        best = jnp.where(lost, jnp.nan, c.best)
        solution = Solution(best, *certificate, c.num_iters, status.astype(jnp.int32), c.history)
        return solution, c.state

    def start(self) -> _Carry:
        """The carry before the first certificate."""
        infinite = jnp.full((), jnp.inf, self.init.dtype)
        split, state = self.algorithm.split, self.algorithm.state
        at_zero = self.scale.value
        return _Carry(
            state=state,
            best=self.init,
            parts=None if split is None else split(state),
            certificate=Certificate(infinite, infinite, infinite),
            lowest=at_zero + 8 * self.eps * jnp.abs(at_zero),  # 8 eps: rounding of the value at zero
            to_halve=infinite,
            last_progress=jnp.int32(0),
            num_iters=jnp.int32(0),
            status=jnp.int32(RUNNING),
            history=empty_history(self.history, self.init.dtype),
            exact=jnp.zeros((), bool),
            trial=self.init,
            round=jnp.int32(-1),
            over=jnp.zeros((), bool),
        )

    def _body(self, carry: _Carry) -> _Carry:
        """Certify the current point, update the best one and the status, and iterate or finish."""
        point = self._certified(carry)
        better, certificate = self._compared(carry, point)
        best = jnp.where(better, point.W, carry.best)
        learn, state = self.algorithm.learn, carry.state
        carry = carry._replace(
            state=state if learn is None else learn(state, point.facts, point.certificate),
            best=best,
            parts=choose(better, point.parts, carry.parts),
            certificate=certificate,
            lowest=point.lowest,
        )
        carry = self._with_status(carry, point)
        return self._advanced(carry, point, better)

    def _certified(self, carry: _Carry) -> _Certified:
        """The candidate, or the next point of the finish, with its certificate."""
        algorithm, finish = self.algorithm, carry.round >= 0
        W = jnp.where(finish, carry.trial, algorithm.candidate(carry.state))
        parts: tuple[jax.Array, ...] | None = None
        settle: jax.Array | bool = False
        if algorithm.split is not None:
            parts = choose(finish, carry.parts, algorithm.split(carry.state))
            settle = carry.round > 0 if self.polishes else False
        facts = self._facts(W, carry)
        step = algorithm.step(carry.state)
        c = certify(self.problem, W, step, self.scale, facts, parts, settle)
        lowest = jnp.fmin(carry.lowest, c.objective + facts.rounding)
        c = self._bounded(c, lowest)
        if algorithm.quick is None:
            again = jnp.zeros((), bool)
        else:
            again = ~(carry.exact | finish) & (c.measure <= jnp.maximum(self.tol, self.floor))
        return _Certified(W, parts, c, facts, lowest, finish, again)

    def _facts(self, W: jax.Array, carry: _Carry) -> Facts:
        """The facts of the loss at W, or of its quick form, if there is one, unless ``carry.exact``."""
        smooth, quick, sizes = self.problem.smooth, self.algorithm.quick, self.scale.sizes
        if self.algorithm.facts is not None:
            return self.algorithm.facts(carry.state, W)
        facts: Facts = (smooth if quick is None else quick).facts(W, sizes)
        return facts if quick is None else apply_if(carry.exact, lambda _: smooth.facts(W, sizes), facts)

    def _bounded(self, c: Certificate, lowest: jax.Array) -> Certificate:
        """The certificate, with gap and residual at least (objective - lowest) / scale.

        The minimum is at most ``lowest``, so that the objective is at least this much above the minimum.
        """
        if not self.problem.penalty._valued:  # the objectives lack its part
            return c
        size = self.scale.size(c.objective)
        behind = jnp.where(size > 0, (c.objective - lowest) / jnp.where(size > 0, size, 1), 0)
        return c._replace(gap=jnp.maximum(c.gap, behind), residual=jnp.maximum(c.residual, behind))

    def _compared(self, carry: _Carry, point: _Certified) -> tuple[jax.Array, Certificate]:
        """Whether the point replaces the best one, and the certificate of the better of the two."""
        c, old, ended = point.certificate, carry.certificate, self.algorithm.ended
        # Large measures do not tell bad points from worse ones, as the gap is relative to the objective: W of
        # any size has a gap of about 1. The lower objective is then better.
        unclear = UNCLEAR_MEASURE if self.problem.penalty._valued else jnp.inf
        large = jnp.minimum(c.measure, old.measure) >= unclear
        better = jnp.where(large, c.objective < old.objective, c.measure < old.measure)
        better |= carry.num_iters == 0
        if ended is not None:
            better |= ended(carry.state)
        # In the finish the residual decides: the gap reaches its rounding error long before the residual.
        keep = (c.residual < old.residual) & ~(c.gap > old.gap + 10 * self.eps)
        better = jnp.where(point.finish, (carry.round == 0) | keep, better & ~point.again)
        return better, choose(better, c, old)

    def _with_status(self, carry: _Carry, point: _Certified) -> _Carry:
        """The carry with its status, last progress and history updated."""
        k, c, measure = carry.num_iters, point.certificate, carry.certificate.measure
        used = ~(point.finish | point.again)
        # Progress, and whether there has been none for too long (see `PATIENCE`).
        halved = used & (measure <= carry.to_halve / 2)
        last_progress = jnp.where(halved, k, carry.last_progress)
        patience = self.algorithm.patience
        stuck = (k - last_progress >= patience) & (measure <= 1000 * self.eps)
        stuck |= (k - last_progress >= 10 * patience) & (measure <= self.eps**0.5)
        stalled = ((measure <= self.floor) & (k > 0)) | stuck
        leaves, ended = self.algorithm.leaves, self.algorithm.ended
        if ended is not None:
            stalled |= ended(carry.state)
        if leaves is not None:
            stalled |= leaves(carry.state)
        finite = jnp.isfinite(c.objective) & ~jnp.isnan(c.measure)
        # Each line takes precedence over those before.
        status = jnp.where(k < self.maxiter, RUNNING, MAX_ITER)
        status = jnp.where(stalled, STALLED if leaves is None else MAX_ITER, status)
        status = jnp.where(measure <= self.tol, CONVERGED, status)
        if self.algorithm.learn is not None:
            # The objective of a trial after the start may be infinite or NaN. At maxiter, if no solver can
            # continue, it must not be NaN.
            last = status == MAX_ITER if leaves is None else jnp.zeros((), bool)
            finite |= (k > 0) & ~(last & jnp.isnan(c.objective))
        status = jnp.where(finite, status, NON_FINITE).astype(jnp.int32)
        return carry._replace(
            to_halve=jnp.where(halved, measure, carry.to_halve),
            last_progress=last_progress,
            status=jnp.where(used, status, carry.status),
            history=recorded(carry.history, jnp.where(used, k, self.history), c.objective, c.gap),
        )

    def _advanced(self, carry: _Carry, point: _Certified, better: jax.Array) -> _Carry:
        """The carry after the next block of iterations, or with the next point of the finish."""
        # A block of iterations.
        k, status, block = carry.num_iters, carry.status, self.algorithm.block
        running = ~(point.finish | point.again) & (status == RUNNING)
        n = jnp.where(running, jnp.minimum(self.check_every, self.maxiter - k), 0)
        # All lanes of a batch make as many iterations as the running lane that has the fewest left.
        fewer = of_all_lanes(jnp.where(running, self.check_every - n, 0))
        n = jnp.where(running, self.check_every - fewer, 0)
        begin, state = self.algorithm.begin, carry.state
        if begin is not None:
            state = choose(running & (k == 0), begin(state, point.facts.gradient), state)
        n_of_all_lanes = of_all_lanes(n)
        state = apply_if(running, lambda s: block(s, n_of_all_lanes), state)
        carry = carry._replace(state=state, num_iters=k + n)
        if self.algorithm.ended is not None or self.algorithm.leaves is not None:
            ended = (status != RUNNING) & ~point.again
            return carry._replace(exact=point.again, over=ended)
        # The finish. A tol below the floor asks for every digit, even if the gap has rounded to 0.
        polish = (status == STALLED) | ((status == CONVERGED) & (self.tol < self.floor))
        sure = (status == CONVERGED) & ~polish  # the loss itself has certified the point
        to_finish = point.finish | ((status != RUNNING) & ~sure & ~point.again)
        number = jnp.where(to_finish, carry.round + 1, carry.round)
        trial, more = carry.best, jnp.zeros((), bool)
        if self.polishes:
            more = point.finish & better & polish & (carry.round < MAX_FINISH_STEPS)
            trial, more = apply_if(more, lambda s: newton_step(self.problem, s[0]), (carry.best, more))
        return carry._replace(
            exact=point.again | (number >= 0),
            trial=trial,
            round=number,
            over=jnp.where(point.finish, ~more, sure),
        )


def finish(problem: Problem, solution: Solution, step: jax.Array, tol: jax.Array) -> Solution:
    """The finish of a `Loop` that was run without it. Parts for several terms are computed anew."""
    W = solution.params
    no_iteration = Algorithm((), lambda s, n: s, lambda s: W, lambda s: step, 1)
    loop = Loop(problem, W, no_iteration, tol, jnp.int32(0), 0, finish=True)
    start = loop.start()._replace(status=jnp.int32(STALLED), exact=jnp.ones((), bool), round=jnp.int32(0))
    finished, _ = loop.run(start)
    return finished._replace(num_iters=solution.num_iters, history=solution.history)


def is_finite_at_zero(scale: Scale) -> jax.Array:
    """() boolean, whether value and gradient at W = 0 are finite; False if data or a strength are NaN."""
    return jnp.isfinite(scale.value + scale.gradient)


def make_solution(
    W: jax.Array,
    certificate: Certificate,
    tol: jax.Array,
    num_iters: jax.Array,
    history: History,
    scale: Scale,
) -> Solution:
    """The solution of an algorithm with its own loop; its status: converged, non-finite, else maxiter."""
    possible = is_finite_at_zero(scale)
    finite = jnp.isfinite(certificate.objective) & ~jnp.isnan(certificate.measure) & possible
    status = jnp.where(certificate.measure <= tol, CONVERGED, MAX_ITER)
    status = jnp.where(finite, status, NON_FINITE).astype(jnp.int32)
    # NaN, since a program may ignore the status and take W for an answer.
    W = jnp.where(possible, W, jnp.nan)
    return Solution(W, *certificate, num_iters, status, history)


def empty_history(length: int, dtype: Any) -> History:
    """A history of this length before the first iteration: NaN everywhere."""
    return History(*(jnp.full((length,), jnp.nan, dtype) for _ in History._fields))


def recorded(history: History, k: jax.Array, objective: jax.Array, gap: jax.Array) -> History:
    """The history with objective and gap after k iterations; unchanged if k is beyond its length."""
    if history.gap.shape[0] == 0:
        return history
    return History(
        history.objective.at[k].set(objective, mode="drop"), history.gap.at[k].set(gap, mode="drop")
    )
