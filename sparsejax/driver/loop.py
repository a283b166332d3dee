"""The one loop of every solver: blocks of iterations, a certificate after each, an honest end.

A solver supplies an `Algorithm`: its state, ``block(state, n)`` that makes n iterations, and
``candidate(state)``, the W to be judged. The loop keeps the best W seen, counts, records, and decides when to
stop.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import eps_of, of_all_lanes, once
from sparsejax.certificate import Certificate, Scale, certify, scale_of
from sparsejax.driver.newton import ROUNDS, newton_step
from sparsejax.losses import Facts
from sparsejax.problem import Problem
from sparsejax.solution import CONVERGED, MAX_ITER, NON_FINITE, STALLED, History, Solution

RUNNING = -1
# A solver is at the floor of its dtype if the best certificate has not halved for this many iterations and
# is small enough for rounding to be the reason: below 1000 eps, or below sqrt(eps) for ten times as many.
PATIENCE = 300


@dataclass(frozen=True)
class Algorithm:
    """What is iterated.

    Attributes:
      state: the first state, any pytree of fixed shapes and dtypes.
      block: ``block(state, n)``: the state n iterations later.
      candidate: ``candidate(state)``: the W of a state.
      step: ``step(W)``: 1/L, which defines the residual.
      check_every: number of iterations between two certificates.
      begin: ``begin(state, gradient)``: the first state, where it begins with the gradient of the loss at its
        candidate.
      patience: number of iterations without progress that count as stalled, at the precision of the dtype.
      learn: ``learn(state, facts, certificate)``: the state after each certificate, told the facts of the
        loss and the `Certificate` at its candidate. Then candidates are trials, of which all but the first
        may be infinite.
      leaves: ``leaves(state)``: whether the algorithm leaves the rest to the next link of its chain, with the
        status ``MAX_ITER``. It does so, too, where others count as stalled.
      split: ``split(state)``: subgradients of the penalty's terms for the certificate, where there are
        several.
      quick: the problem's loss in a form that is cheaper to evaluate: used until its certificate meets tol,
        which is then confirmed on the loss itself.
      ended: ``ended(state)``: an algorithm's own stopping rule, for those that are kept as published. What
        the rule stops is the last point, not the best, is not finished by Newton, and counts as stalled
        unless the certificate agrees.

    >>> import jax.numpy as jnp
    >>> halves = Algorithm(
    ...     state=jnp.ones(2),
    ...     block=lambda W, n: W / 2.0**n,  # n iterations
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
    quick: Any = None
    ended: Callable[[Any], jax.Array] | None = None


class _Carry(NamedTuple):
    state: Any
    best: jax.Array  # W with the smallest measure so far
    parts: tuple[jax.Array, ...] | None  # its subgradients of the penalty's terms, where there are several
    certificate: Certificate  # its certificate
    lowest: jax.Array  # the least objective seen, 0 included: no solution lies above it
    mark: jax.Array  # measure that must be halved for progress to be seen
    marked: jax.Array  # iterations when it last was
    num_iters: jax.Array
    status: jax.Array
    history: History
    exact: jax.Array  # the next certificate is by the problem itself, not by its quick form
    trial: jax.Array  # the next point of the finish
    round: jax.Array  # of the finish, 0 while it certifies ``best``; -1 before it
    over: jax.Array


class _Look(NamedTuple):
    """What one certificate shows."""

    W: jax.Array
    parts: tuple[jax.Array, ...] | None
    certificate: Certificate
    facts: Facts
    lowest: jax.Array
    finish: jax.Array  # it belongs to the finish
    again: jax.Array  # it was quick and met tol: not used, the next pass is the exact one of the same point


class Loop:
    """Iterate until the certificate meets ``tol``.

    With ``finish`` a solve that stalls goes on by Newton steps on the support of the best W seen; without,
    that is left to `finish`, a program of its own. One loop holds all of it, so that the certificate, the
    largest part of the program, is compiled once for the start, the iterates, their confirmation and the
    finish.

    Args:
      problem: `sparsejax.Problem` in the protocol.
      init: the first W to be judged.
      algorithm: `Algorithm`.
      tol: relative duality gap, or residual where no gap is known.
      maxiter: number of iterations.
      history: number of iterations of which objective and gap are recorded, static.
      finish: whether the program holds the finish.

    >>> import jax.numpy as jnp, numpy as np, sparsejax as sj
    >>> problem = sj.Problem(sj.losses.SquaredLoss(np.eye(2), np.ones(2)), sj.penalties.L1(1.0))
    >>> halves = Algorithm(
    ...     state=jnp.ones(2),
    ...     block=lambda W, n: jnp.zeros(2),
    ...     candidate=lambda W: W,
    ...     step=lambda W: jnp.ones(()),
    ...     check_every=1,
    ... )
    >>> solution, state = Loop(problem, jnp.ones(2), halves, jnp.asarray(1e-3), 5, 0).run()
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
    ):
        self.problem, self.init, self.algorithm = problem, init, algorithm
        self.tol, self.maxiter, self.history = tol, maxiter, history
        self.scale = scale_of(problem, init, algorithm.quick)
        self.check_every = 1 if history else algorithm.check_every
        self.eps = eps_of(init)
        self.floor = 2 * self.eps
        self.polishes = finish and algorithm.ended is None and "support" in problem.penalty.provides

    def run(self, start: _Carry | None = None) -> tuple[Solution, Any]:
        """The `Solution` and the last state."""
        c = lax.while_loop(lambda c: ~c.over, self._body, self.start() if start is None else start)
        certificate, status = c.certificate, c.status
        met = (certificate.measure <= self.tol) & (status != NON_FINITE)
        # The quick certificate may have met tol at a point that the data do not bear out.
        status = jnp.where(met, CONVERGED, jnp.where(status == CONVERGED, STALLED, status))
        best = nan_where_unknown(c.best, self.scale)
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
            certificate=unknown(self.init.dtype),
            lowest=at_zero + 8 * self.eps * jnp.abs(at_zero),
            mark=infinite,
            marked=jnp.int32(0),
            num_iters=jnp.int32(0),
            status=jnp.int32(RUNNING),
            history=empty_history(self.history, self.init.dtype),
            exact=jnp.zeros((), bool),
            trial=self.init,
            round=jnp.int32(-1),
            over=jnp.zeros((), bool),
        )

    def _body(self, carry: _Carry) -> _Carry:
        """One certificate, what it decides, and the next block of iterations."""
        look = self._look(carry)
        better, certificate = self._compared(carry, look)
        best = jnp.where(better, look.W, carry.best)
        learn, state = self.algorithm.learn, carry.state
        carry = carry._replace(
            state=state if learn is None else learn(state, look.facts, look.certificate),
            best=best,
            parts=jax.tree.map(lambda a, b: jnp.where(better, a, b), look.parts, carry.parts),
            certificate=certificate,
            lowest=look.lowest,
        )
        carry = self._judged(carry, look)
        return self._moved(carry, look, better)

    def _look(self, carry: _Carry) -> _Look:
        """The certificate of the candidate, or of the next point of the finish."""
        algorithm, finish = self.algorithm, carry.round >= 0
        W = jnp.where(finish, carry.trial, algorithm.candidate(carry.state))
        parts: tuple[jax.Array, ...] | None = None
        settle: jax.Array | bool = False
        if algorithm.split is not None:
            now = algorithm.split(carry.state)
            parts = jax.tree.map(lambda a, b: jnp.where(finish, a, b), carry.parts, now)
            settle = carry.round > 0 if self.polishes else False
        facts = self._facts(W, carry.exact)
        step = algorithm.step(carry.state)
        c = certify(self.problem, W, step, self.scale, facts, parts, settle)
        lowest = jnp.fmin(carry.lowest, c.objective + facts.rounding)
        c = self._bounded(c, lowest)
        if algorithm.quick is None:
            again = jnp.zeros((), bool)
        else:
            again = ~(carry.exact | finish) & (c.measure <= jnp.maximum(self.tol, self.floor))
        return _Look(W, parts, c, facts, lowest, finish, again)

    def _facts(self, W: jax.Array, exact: jax.Array) -> Facts:
        smooth, quick, sizes = self.problem.smooth, self.algorithm.quick, self.scale.sizes
        if quick is None:
            facts: Facts = smooth.facts(W, sizes)
        else:
            facts = once(exact, lambda _: smooth.facts(W, sizes), quick.facts(W, sizes))
        return facts

    def _bounded(self, c: Certificate, lowest: jax.Array) -> Certificate:
        """A point above another that was seen is no better than their difference."""
        size = jnp.maximum(jnp.abs(c.objective), self.scale.value)
        behind = jnp.where(size > 0, (c.objective - lowest) / jnp.where(size > 0, size, 1), 0)
        return c._replace(gap=jnp.maximum(c.gap, behind), residual=jnp.maximum(c.residual, behind))

    def _compared(self, carry: _Carry, look: _Look) -> tuple[jax.Array, Certificate]:
        """Whether the point replaces the best one, and the certificate of the better."""
        c, old, ended = look.certificate, carry.certificate, self.algorithm.ended
        better = (c.measure < old.measure) | (carry.num_iters == 0)
        if ended is not None:
            better |= ended(carry.state)
        # Until a certificate is known, the lowest objective.
        better |= jnp.isinf(old.measure) & (c.objective < old.objective)
        # In the finish: the gap is flat at its rounding error long before the residual is.
        keep = (c.residual < old.residual) & ~(c.gap > old.gap + 10 * self.eps)
        better = jnp.where(look.finish, (carry.round == 0) | keep, better & ~look.again)
        return better, Certificate(*(jnp.where(better, a, b) for a, b in zip(c, old, strict=True)))

    def _judged(self, carry: _Carry, look: _Look) -> _Carry:
        """The carry with its status and what progress was made."""
        k, c, measure = carry.num_iters, look.certificate, carry.certificate.measure
        used = ~(look.finish | look.again)
        halved = used & (measure <= carry.mark / 2)
        marked = jnp.where(halved, k, carry.marked)
        patience = self.algorithm.patience
        stuck = (k - marked >= patience) & (measure <= 1000 * self.eps)
        stuck |= (k - marked >= 10 * patience) & (measure <= self.eps**0.5)
        stalled = ((measure <= self.floor) & (k > 0)) | stuck
        leaves, ended = self.algorithm.leaves, self.algorithm.ended
        if ended is not None:
            stalled |= ended(carry.state)
        if leaves is not None:
            stalled |= leaves(carry.state)
        finite = jnp.isfinite(c.objective) & ~jnp.isnan(c.measure)
        if self.algorithm.learn is not None:
            finite |= k > 0
        status = jnp.where(k < self.maxiter, RUNNING, MAX_ITER)
        status = jnp.where(stalled, STALLED if leaves is None else MAX_ITER, status)
        status = jnp.where(measure <= self.tol, CONVERGED, status)
        status = jnp.where(finite, status, NON_FINITE).astype(jnp.int32)
        return carry._replace(
            mark=jnp.where(halved, measure, carry.mark),
            marked=marked,
            status=jnp.where(used, status, carry.status),
            history=recorded(carry.history, jnp.where(used, k, self.history), c.objective, c.gap),
        )

    def _moved(self, carry: _Carry, look: _Look, better: jax.Array) -> _Carry:
        """The next block of iterations, or the next point of the finish."""
        k, status, block = carry.num_iters, carry.status, self.algorithm.block
        running = ~(look.finish | look.again) & (status == RUNNING)
        n = jnp.where(running, jnp.minimum(self.check_every, self.maxiter - k), 0)
        begin, state = self.algorithm.begin, carry.state
        if begin is not None:
            first = running & (k == 0)
            state = jax.tree.map(
                lambda a, b: jnp.where(first, a, b), begin(state, look.facts.gradient), state
            )
        # Lanes of a batch begin together, so that those at work are at the same iteration.
        together = of_all_lanes(n)
        state = once(running, lambda s: block(s, together), state)
        carry = carry._replace(state=state, num_iters=k + n)
        if self.algorithm.ended is not None or self.algorithm.leaves is not None:
            ended = (status != RUNNING) & ~look.again
            return carry._replace(exact=look.again, over=ended)
        # A tol that no certificate can resolve asks for every digit, even where the gap has rounded to 0.
        polish = (status == STALLED) | ((status == CONVERGED) & (self.tol < self.floor))
        sure = (status == CONVERGED) & ~polish  # met by an exact certificate
        to_finish = look.finish | ((status != RUNNING) & ~sure & ~look.again)
        number = jnp.where(to_finish, carry.round + 1, carry.round)
        trial, more = carry.best, jnp.zeros((), bool)
        if self.polishes:
            more = look.finish & better & polish & (carry.round < ROUNDS)
            trial, more = once(more, lambda s: newton_step(self.problem, s[0]), (carry.best, more))
        return carry._replace(
            exact=look.again | (number >= 0),
            trial=trial,
            round=number,
            over=jnp.where(look.finish, ~more, sure),
        )


def finish(problem: Problem, solution: Solution, step: jax.Array, tol: jax.Array) -> Solution:
    """The solution of a `Loop` without its finish, finished; for a penalty of one term."""
    W = solution.params
    still = Algorithm((), lambda s, n: s, lambda s: W, lambda s: step, 1)
    loop = Loop(problem, W, still, tol, jnp.int32(0), 0, finish=True)
    start = loop.start()._replace(status=jnp.int32(STALLED), exact=jnp.ones((), bool), round=jnp.int32(0))
    finished, _ = loop.run(start)
    return finished._replace(num_iters=solution.num_iters, history=solution.history)


def nan_where_unknown(W: jax.Array, scale: Scale) -> jax.Array:
    """W; NaN in every entry where the data or a strength are NaN, which value and gradient at 0 tell.

    Zeros or the start would be an answer, on which a program that does not look at the status goes on.
    """
    return jnp.where(jnp.isfinite(scale.value + scale.gradient), W, jnp.nan)


def judged(
    W: jax.Array,
    certificate: Certificate,
    tol: jax.Array,
    num_iters: jax.Array,
    history: History,
    scale: Scale,
) -> Solution:
    """The solution of an algorithm with a loop of its own: what did not converge has reached its maxiter."""
    finite = jnp.isfinite(certificate.objective) & ~jnp.isnan(certificate.measure)
    status = jnp.where(certificate.measure <= tol, CONVERGED, MAX_ITER)
    status = jnp.where(finite, status, NON_FINITE).astype(jnp.int32)
    return Solution(nan_where_unknown(W, scale), *certificate, num_iters, status, history)


def empty_history(length: int, dtype: Any) -> History:
    """NaN everywhere."""
    return History(*(jnp.full((length,), jnp.nan, dtype) for _ in History._fields))


def recorded(history: History, k: jax.Array, objective: jax.Array, gap: jax.Array) -> History:
    """The history with what is known after k iterations."""
    if history.gap.shape[0] == 0:
        return history
    return History(
        history.objective.at[k].set(objective, mode="drop"), history.gap.at[k].set(gap, mode="drop")
    )


def unknown(dtype: Any) -> Certificate:
    """The certificate before the first."""
    infinite = jnp.full((), jnp.inf, dtype)
    return Certificate(infinite, infinite, infinite)
