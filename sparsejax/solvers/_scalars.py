r"""Newton's method on one scalar a row or group: the iteration of `variational_newton` and `prox_newton`."""

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import cho_solve

from sparsejax._core.buckets import take
from sparsejax._core.layout import like
from sparsejax._core.linalg import eps_of, once, safe_divide, tiny_of
from sparsejax.solution import History
from sparsejax.driver.loop import recorded
from sparsejax.solvers._norm_blocks import Chosen, Grouped, Rows, Size, limited, scales, weights
from sparsejax.solvers._quadratics import cholesky

NEWTON = 100  # steps at most
# Factorisations of the active set method in the first attempt at a step; twice as many in the others.
SWEEPS = 4
ATTEMPTS = 16  # at a step: the last ones are those of steepest descent
# Of the diagonal of the Hessian, at least: without it the rounding of float32 leads astray where the rank is
# short. Steps are hardly worse for it, and where nearly equal columns compete better.
SHIFT = 3e-4
SHRINK = 0.5  # from the strength at which W = 0 down to that asked for, a Newton step each
# Of the rank that the Hessian can have, up to which a bucket may be larger than its active blocks ask for.
CURVED = 0.75


class Point(NamedTuple):
    """t, and what is known there."""

    t: jax.Array  # (b,), a scalar a block
    known: jax.Array  # whether the rest is that of t; else C is that of the weights with which it began
    aux: Any
    C: jax.Array  # (k, d)
    residual: jax.Array  # ||B - AW||^2
    along: jax.Array  # <B, B - AW>


def look(quadratic: Any, t: jax.Array, aux: Any) -> Point:
    """The point of t: the one product with all of A."""
    C, residual, along = quadratic.look(aux)
    return Point(t, jnp.ones((), bool), aux, C, residual, along)


def begun(quadratic: Any, blocks: Rows | Grouped, Wt: jax.Array, gradient: jax.Array) -> Point:
    """The point of weights, known where they are 0: W = diag(s) C, as at an optimum, for the largest s."""
    s = safe_divide(blocks.norms(Wt), blocks.norms(gradient))
    return at_zero(quadratic, limited(blocks, scales(s, blocks.ridge)), -gradient)


def at_zero(quadratic: Any, t: jax.Array, C: jax.Array) -> Point:
    """The point of t = 0, or of another t that is not known yet."""
    return Point(t, ~jnp.any(t > 0), quadratic.zero(), C, quadratic.size, quadratic.size)


def weighted(blocks: Rows | Grouped, point: Point, W: jax.Array) -> jax.Array:
    """diag(s) C, like W."""
    return like(blocks.spread(weights(point.t, blocks.ridge))[None] * point.C, W)


class State(NamedTuple):
    """What is iterated."""

    point: Point
    c: jax.Array  # (b,), the norms of the blocks of C
    primal: jax.Array
    dual: jax.Array
    level: jax.Array  # number of the bucket; as many as there are: nothing more can be done
    shift: jax.Array  # attempts the last step took
    tau: jax.Array  # >= 1, what the strengths are multiplied with in the next step
    k: jax.Array
    history: History


class _Model(NamedTuple):
    """The quadratic model of phi in the largest bucket, and how it is to be minimised."""

    aux: Any
    known: jax.Array  # whether the one above and C are those of t
    chosen: Chosen
    C: jax.Array  # of its features
    t: jax.Array  # of its blocks, as all that follows
    ridge: jax.Array | None
    alpha: jax.Array
    first: jax.Array  # whether the right side is that of Newton's method for 1/||c||
    nu: jax.Array  # relative shift of the diagonal
    sweeps: jax.Array


class _Attempt(NamedTuple):
    """At a step."""

    number: jax.Array
    t: jax.Array
    aux: Any
    phi: jax.Array


class Newton:
    """The iteration for one problem."""

    def __init__(
        self,
        quadratic: Any,
        blocks: Rows | Grouped,
        tol: jax.Array,
        maxiter: jax.Array,
        *,
        weakest: jax.Array | float = jnp.inf,  # ratio beyond which nothing is begun
    ):
        self.quadratic, self.blocks = quadratic, blocks
        self.tol, self.maxiter = tol, jnp.minimum(maxiter, NEWTON)
        self.weakest = weakest
        self.over = len(blocks.sizes)

    def run(self, point: Point, history: History) -> State:
        c, primal, dual, ratios = self.values(point)
        excess = jnp.max(ratios)
        right = jnp.all(self.blocks.alpha > 0) & (excess <= self.weakest)
        tau, zero = jnp.maximum(SHRINK * excess, 1), jnp.int32(0)
        level = jnp.where(right, self.level(point.t, ratios, tau), self.over)
        state = State(point, c, primal, dual, level, zero, tau, zero, history)
        return lax.while_loop(self.going, self.body, self.recorded(state))

    def values(self, point: Point) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """The norms of C, the objective of W, a dual value along its residual, the ratios of the norms."""
        c = self.blocks.norms(point.C)
        primal = point.residual / 2 + self.blocks.value(point.t, c)
        s, conjugate = self.blocks.conjugate(c)
        dual = s * point.along - s * s * point.residual / 2 - conjugate
        return c, primal, dual, self.blocks.ratios(point.t, c)

    def gap(self, s: State) -> jax.Array:
        gap = safe_divide(s.primal - s.dual, jnp.maximum(s.primal, self.quadratic.size / 2))
        return jnp.where(s.point.known, gap, jnp.inf)

    def level(self, t: jax.Array, ratios: jax.Array, tau: jax.Array) -> jax.Array:
        """The first bucket that is not full, or the next one where many blocks are about to come in.

        To let them in together saves steps, unless the Hessian becomes singular by it.
        """
        sizes, active = self.blocks.sizes, t > 0
        level = jnp.int32(0)
        for number, size in enumerate(sizes):
            full = self.blocks.full(size, active, ratios)
            level = jnp.where((level == number) & full, number + 1, level)
        wider: jax.Array = level
        for number, (size, (m, _)) in enumerate(itertools.pairwise(sizes)):
            if m <= CURVED * self.quadratic.rank:
                crowded = self.blocks.crowded(size, active, ratios > tau)
                wider = jnp.where((level == number) & crowded, number + 1, wider)
        chosen: jax.Array = wider.astype(jnp.int32)
        return chosen

    def recorded(self, s: State) -> State:
        if s.history.gap.shape[0] == 0:
            return s
        objective = jnp.where(s.point.known, s.primal, jnp.nan)
        gap = jnp.where(s.point.known, self.gap(s), jnp.nan)
        return s._replace(history=recorded(s.history, s.k, objective, gap))

    def going(self, s: State) -> jax.Array:
        more = (self.gap(s) > self.tol) | ~s.point.known
        going: jax.Array = more & (s.k < self.maxiter) & (s.level < self.over)
        return going

    def body(self, s: State) -> State:
        """A step, and the product with all of A where it ends."""
        t, aux, shift = self.step(s)
        point = look(self.quadratic, t, aux)
        c, primal, dual, ratios = self.values(point)
        tau = jnp.maximum(SHRINK * jnp.where(s.point.known, s.tau, jnp.max(ratios)), 1)
        level = jnp.where(shift < ATTEMPTS, self.level(t, ratios, tau), self.over)
        return self.recorded(State(point, c, primal, dual, level, shift, tau, s.k + 1, s.history))

    def step(self, s: State) -> tuple[jax.Array, Any, jax.Array]:
        """t and ``aux`` after a Newton step, and the attempts it took."""
        point, eps, blocks = s.point, eps_of(s.point.t), self.blocks
        known = point.known
        level = jnp.minimum(s.level, self.over - 1)
        chosen = blocks.chosen(point.t > 0, blocks.ratios(point.t, s.c), level)
        ix = chosen.blocks
        t, alpha = take(point.t, ix, 0), s.tau * take(blocks.alpha, ix, 0)
        ridge = None if blocks.ridge is None else take(blocks.ridge, ix, 0)
        C = take(point.C, chosen.ix, 1)
        squares = alpha * alpha
        most = float(np.finfo(t.dtype).max) / 2
        phi = jnp.where(known, (point.along + jnp.sum(squares * t)) / 2, most)

        def attempt(a: _Attempt) -> _Attempt:
            j = a.number + 1
            larger = 10.0 ** (jnp.minimum(j, ATTEMPTS).astype(t.dtype) - 5)
            nu = jnp.where(j < 2, SHIFT, larger)
            sweeps = jnp.where(j == 0, SWEEPS, 2 * SWEEPS)
            model = _Model(point.aux, known, chosen, C, t, ridge, alpha, j == 0, nu, sweeps)
            moved = a.t, a.aux
            for number, size in enumerate(blocks.sizes):
                moved = once(s.level == number, functools.partial(self.moved, model, size), moved)
            new, aux = moved
            return _Attempt(j, new, aux, (self.quadratic.along(aux) + jnp.sum(squares * new)) / 2)

        def failed(a: _Attempt) -> jax.Array:
            return ~(a.phi <= phi + 8 * eps * jnp.abs(phi)) & (a.number < ATTEMPTS)

        before = _Attempt(jnp.maximum(s.shift - 1, 0) - 1, t, point.aux, jnp.full_like(phi, jnp.inf))
        a = lax.while_loop(failed, attempt, before)
        return jnp.zeros_like(point.t).at[ix].set(a.t, mode="drop"), a.aux, a.number

    def moved(self, model: _Model, size: Size, _: Any) -> tuple[jax.Array, Any]:
        """t of the bucket, and ``aux``, after the step of the model in its first blocks."""
        m, b = size
        t, alpha, ix = model.t[:b], model.alpha[:b], model.chosen.ix[:m]
        at = None if model.chosen.at is None else model.chosen.at[:m]
        ridge = None if model.ridge is None else model.ridge[:b]

        def of_features(t: jax.Array) -> jax.Array:
            s = weights(t, ridge)
            return s if at is None else take(s, at, 0)

        quadratic, part = self.quadratic, self.quadratic.part(ix)
        root, kept = quadratic.kept_root(model.aux, m)

        def turn(c: Any) -> Any:
            """The step from where all that it needs is known, and that again where it ends."""
            number, new, _, root, C = c
            new = once(number == 1, functools.partial(stepped, root, C), new)
            aux, root = quadratic.evaluate(of_features(new), part)
            return number + 1, new, aux, root, quadratic.gradient(aux, part)

        def stepped(root: Any, C: jax.Array, t: jax.Array) -> jax.Array:
            c = self.blocks.norms_of(C, at, b)
            q = safe_divide(c if ridge is None else c / (1 + ridge * t), alpha)
            # In u = alpha t, the norms, H is of the order of A'A: float32 is precise enough for a step.
            low = jnp.float32
            root, data = jax.tree.map(lambda a: a.astype(low), (root, part))
            r = (alpha * jnp.where(model.first, q * q * (q - 1), (q * q - 1) / 2)).astype(low)
            C = C * safe_divide(1.0, alpha if at is None else take(alpha, at, 0))[None]
            H = self.blocks.curvature(quadratic, root, data, C.astype(low), at, b)
            if ridge is not None:  # by s, until now
                e = 1 / (1 + ridge * t)
                squares = (e * e).astype(low)
                H = squares[:, None] * H * squares[None] + jnp.diag((ridge * q * q * e).astype(low))
            H = H + jnp.diag(model.nu.astype(low) * jnp.diagonal(H) + tiny_of(H))
            u = (alpha * t).astype(low)
            x = _bounded(H, r, u, (t > 0) | (q > 1), model.sweeps)
            return jnp.where(x > -u, jnp.maximum(t + safe_divide(x.astype(t.dtype), alpha), 0), 0)

        # Two turns, of which the first only evaluates, so that this is compiled once.
        first = (model.known & kept).astype(jnp.int32)
        start = (first, t, quadratic.taken(ix, model.aux), root, model.C[:, :m])
        _, new, aux, _, _ = lax.while_loop(lambda c: c[0] < 2, turn, start)
        return jnp.zeros_like(model.t).at[:b].set(new), quadratic.placed(ix, aux)


def _bounded(H: jax.Array, r: jax.Array, t: jax.Array, free: jax.Array, sweeps: jax.Array) -> jax.Array:
    """The least of x'Hx/2 - r'x over x >= -t, by a primal-dual active set that starts with ``free``."""

    def sweep(c: Any) -> Any:
        free, _, i, _ = c
        fixed = jnp.where(free, 0, -t)
        masked = jnp.where(free[:, None] & free[None], H, 0) + jnp.diag(jnp.where(free, 0, 1).astype(H.dtype))
        x = fixed + cho_solve((cholesky(masked), True), jnp.where(free, r - H @ fixed, 0))
        new = jnp.where(free, t + x > 0, H @ x < r)
        return new, x, i + 1, jnp.any(new != free)

    start = (free, t, jnp.int32(0), jnp.ones((), bool))
    return lax.while_loop(lambda c: c[3] & (c[2] < sweeps), sweep, start)[1]
