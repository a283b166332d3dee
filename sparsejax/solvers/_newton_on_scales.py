r"""Newton's method on one scalar a row or group: the iteration of `variational_newton` and `prox_newton`."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import apply_if, choose, eps_of, like, safe_divide, take, tiny_of
from sparsejax._core.tiles import Root, factorised, lower_solve, no_root, rows_at, tile_at, upper_solve
from sparsejax.driver.loop import recorded
from sparsejax.solution import History
from sparsejax.solvers._norm_blocks import LOW, Chosen, Grouped, Rows, limited, scalars_of, scales_of
from sparsejax.solvers._scaled_least_squares import Wide

MAX_NEWTON_STEPS = 100
# Most factorisations of the active set method at attempt 0 (see `State`); all other attempts have twice this.
MAX_FACTORISATIONS = 4
MAX_ATTEMPTS = 16  # largest number of an attempt, see `State`; there the shift makes it steepest descent
# The least shift, as a share of the diagonal of the Hessian. If the Hessian is singular, float32 without a
# shift gives wrong steps. Other steps hardly change, and steps with nearly equal columns become better.
DIAGONAL_SHARE = 3e-4
STRENGTH_RATIO = 0.5  # of the strengths of one step to those before, from lambda_max down to the given ones
# A bucket with blocks that are about to enter has at most MAX_WIDENING times the features that it needs, and
# at most MAX_RANK_SHARE times the largest possible rank of the Hessian.
MAX_RANK_SHARE, MAX_WIDENING = 0.75, 1.6


class Point(NamedTuple):
    """The scalars t, and quantities of the least squares problem at t."""

    t: jax.Array  # (b,), one scalar a block
    known: jax.Array  # (), whether the next fields belong to t; else C is minus the gradient at the start
    aux: Any  # what `Wide` or `Tall` stores at t
    C: jax.Array  # (k, d)
    residual: jax.Array  # ||B - AW||^2
    target_product: jax.Array  # <B, B - AW>


def evaluated(quadratic: Any, t: jax.Array, aux: Any) -> Point:
    """The point at t, evaluated: this is the one product with all of A in a step."""
    C, residual, target_product = quadratic.evaluate(aux)
    return Point(t, jnp.ones((), bool), aux, C, residual, target_product)


def start_point(quadratic: Any, blocks: Rows | Grouped, Wt: jax.Array, gradient: jax.Array) -> Point:
    """The point to start from a W (k, d) with this gradient of the loss; ``known`` only if W = 0.

    At an optimum W = diag(s) C, so that s is the ratio of the norms of W and C. Only the largest s that fit
    into a bucket stay.
    """
    s = safe_divide(blocks.norms(Wt), blocks.norms(gradient))
    point = unevaluated_point(quadratic, limited(blocks, scalars_of(s, blocks.ridge)), -gradient)
    return point._replace(known=~jnp.any(Wt != 0))  # t is 0 also for blocks whose gradient is 0 at W


def unevaluated_point(quadratic: Any, t: jax.Array, C: jax.Array) -> Point:
    """The point at t without an evaluation: it is known only if t = 0."""
    return Point(t, ~jnp.any(t > 0), quadratic.zero(), C, quadratic.size, quadratic.size)


def params_at(blocks: Rows | Grouped, point: Point, W: jax.Array) -> jax.Array:
    """diag(s) C in the shape of W: the answer at a point."""
    return like(blocks.by_feature(scales_of(point.t, blocks.ridge))[None] * point.C, W)


class State(NamedTuple):
    """State of Newton's method. A field without a shape is a scalar."""

    point: Point
    c: jax.Array  # (b,), norms of the blocks of C
    primal: jax.Array  # the objective at W = diag(s) C
    dual: jax.Array  # the dual objective at the scaled residual
    tiles: jax.Array  # tiles of features in the next bucket; `Newton.too_many`: stop
    attempt: jax.Array  # the next attempt, from 0: a failed attempt adds 1, a step taken subtracts 1
    tau: jax.Array  # >= 1, factor of the strengths in the next step
    k: jax.Array  # number of steps
    history: History


class _Model(NamedTuple):
    """Data of the quadratic model of phi, restricted to a bucket of b blocks and m features."""

    t: jax.Array  # (b,)
    alpha: jax.Array  # (b,), the strengths, times tau
    ridge: jax.Array | None  # (b,)
    c: jax.Array  # (b,), norms of the blocks of C
    C: jax.Array  # (m, k), minus the gradient of the loss
    chosen: Chosen  # the bucket
    attempt: jax.Array  # (), which decides the right-hand side and the shift


class _Scratch(NamedTuple):
    """Arrays that every step overwrites; the loop carries them, so that they are allocated once."""

    features: jax.Array | None  # (m, N), the columns of A of a bucket, as rows; None for `Tall`
    halves: jax.Array | None  # (m, N), P with A'K^-1 A = PP'; None for `Tall`
    hessian: jax.Array  # (b', b'), b' >= b, in alpha times the scales s
    root: Root  # (b, b), Cholesky factor of the shifted Hessian


class Newton:
    """Newton's method on the phi of `variational_newton`, for one problem.

    Args:
      quadratic: `Wide` or `Tall`, the least squares problem.
      blocks: the norms.
      tol: largest accepted relative gap, ().
      maxiter: steps, ().
      max_ratio: no step is made if at the start a norm of C exceeds its strength by more than this factor,
        or if a strength is 0.
    """

    def __init__(
        self,
        quadratic: Any,
        blocks: Rows | Grouped,
        tol: jax.Array,
        maxiter: jax.Array,
        *,
        max_ratio: jax.Array | float = jnp.inf,
    ):
        self.quadratic, self.blocks = quadratic, blocks
        self.tol, self.maxiter = tol, jnp.minimum(maxiter, MAX_NEWTON_STEPS)
        self.max_ratio = max_ratio
        self.too_many = blocks.tiles + 1

    def run(self, point: Point, history: History) -> State:
        c, primal, dual, ratios = self.values(point)
        excess = jnp.max(ratios)
        suited = jnp.all(self.blocks.alpha > 0) & (excess <= self.max_ratio)
        tau, zero = jnp.maximum(STRENGTH_RATIO * excess, 1), jnp.int32(0)
        tiles = jnp.where(suited, self.tiles(point.t, ratios, tau), self.too_many)
        state = State(point, c, primal, dual, tiles, zero, tau, zero, history)
        start = self.recorded(state), self.scratch()
        return lax.while_loop(lambda pair: self.continues(pair[0]), self.body, start)[0]

    def scratch(self) -> _Scratch:
        blocks, quadratic = self.blocks, self.quadratic
        m, b = blocks.most
        features = halves = None
        if isinstance(quadratic, Wide):
            features = quadratic.room(m)
            halves = jnp.zeros(features.shape, LOW)
        return _Scratch(features, halves, blocks.room(), no_root(b, blocks.block_tile, LOW))

    def values(self, point: Point) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """The norms of C, the objective of W, the dual objective, and the ratios of the norms of C to alpha.

        The dual point is s times the residual R, with the largest s <= 1 that is feasible: the dual objective
        is ``s <B, R> - s^2 ||R||^2 / 2 - g*(sC)``.
        """
        c = self.blocks.norms(point.C)
        primal = point.residual / 2 + self.blocks.value(point.t, c)
        s, conjugate = self.blocks.conjugate(c)
        dual = s * point.target_product - s * s * point.residual / 2 - conjugate
        return c, primal, dual, self.blocks.ratios(point.t, c)

    def gap(self, s: State) -> jax.Array:
        gap = safe_divide(s.primal - s.dual, jnp.maximum(s.primal, self.quadratic.size / 2))
        return jnp.where(s.point.known, gap, jnp.inf)

    def tiles(self, t: jax.Array, ratios: jax.Array, tau: jax.Array) -> jax.Array:
        """Tiles of the next bucket: for the active blocks, and for blocks that are about to become active.

        Blocks that enter in the same step save steps, but too many of them make the Hessian singular.
        """
        blocks = self.blocks
        least, better = blocks.wanted(t > 0, ratios > 1, ratios > tau)
        least = jnp.maximum(jnp.ceil(least / blocks.tile), blocks.least)
        most = jnp.maximum(least, MAX_RANK_SHARE * self.quadratic.rank // blocks.tile)
        most = jnp.minimum(jnp.ceil(MAX_WIDENING * least), most)
        wanted = jnp.minimum(jnp.ceil(better / blocks.tile), most)
        tiles = jnp.minimum(jnp.maximum(least, wanted), blocks.tiles)
        return jnp.where(least <= blocks.tiles, tiles, self.too_many).astype(jnp.int32)

    def recorded(self, s: State) -> State:
        objective = jnp.where(s.point.known, s.primal, jnp.nan)
        gap = jnp.where(s.point.known, self.gap(s), jnp.nan)
        return s._replace(history=recorded(s.history, s.k, objective, gap))

    def continues(self, s: State) -> jax.Array:
        more = (self.gap(s) > self.tol) | ~s.point.known
        return more & (s.k < self.maxiter) & (s.tiles < self.too_many)

    def body(self, pair: tuple[State, _Scratch]) -> tuple[State, _Scratch]:
        """Attempt a step, and evaluate the point where it ends.

        The step is taken if phi falls. A point that is not known is not moved: it is evaluated.
        """
        s, scratch = pair
        point = s.point
        (t, aux, phi, before, known), scratch = self.attempted(s, scratch)
        # Allow for the rounding of phi: near the optimum its change is smaller.
        falls = phi <= before + 8 * eps_of(phi) * jnp.abs(before)
        new = evaluated(self.quadratic, t, aux)
        c, primal, dual, ratios = self.values(new)
        tau = jnp.maximum(STRENGTH_RATIO * jnp.where(point.known, s.tau, jnp.max(ratios)), 1)
        attempt = jnp.where(falls, jnp.maximum(s.attempt - 1, 0), s.attempt + 1)
        attempt = jnp.where(known, attempt, s.attempt)
        tiles = jnp.where(attempt <= MAX_ATTEMPTS, self.tiles(t, ratios, tau), self.too_many)
        moved = State(new, c, primal, dual, tiles, attempt, tau, s.k + known.astype(jnp.int32), s.history)
        stays = s._replace(attempt=attempt, tiles=jnp.where(attempt <= MAX_ATTEMPTS, s.tiles, self.too_many))
        return self.recorded(choose(falls | ~known, moved, stays)), scratch

    def attempted(self, s: State, scratch: _Scratch) -> tuple[tuple[Any, ...], _Scratch]:
        """Attempt a step.

        Returns:
          t (b,) and ``aux`` at its end, phi there and before, and whether t was moved.
        """
        point, blocks, quadratic = s.point, self.blocks, self.quadratic
        chosen = blocks.chosen(point.t > 0, blocks.ratios(point.t, s.c), s.tiles)
        numbers = chosen.blocks
        t, alpha = take(point.t, numbers, 0), s.tau * take(blocks.alpha, numbers, 0)
        ridge = None if blocks.ridge is None else take(blocks.ridge, numbers, 0)
        C = take(point.C, chosen.ix, 1).T
        model = _Model(t, alpha, ridge, take(s.c, numbers, 0), C, chosen, s.attempt)
        (new, aux, known), scratch = _Bucket(quadratic, blocks, model, s.tiles).stepped(point, scratch)
        # phi = (<B, K^-1 B> + sum alpha^2 t) / 2
        squares = alpha * alpha
        phi = (quadratic.target_product(aux) + jnp.sum(squares * new)) / 2
        before = (point.target_product + jnp.sum(squares * t)) / 2
        t = jnp.zeros_like(point.t).at[numbers].set(new, mode="drop")
        return (t, aux, phi, before, known), scratch


class _Bucket:
    """One step of Newton's method, restricted to the blocks of a bucket."""

    def __init__(self, quadratic: Any, blocks: Rows | Grouped, model: _Model, tiles: jax.Array):
        self.quadratic, self.blocks, self.model, self.tiles = quadratic, blocks, model, tiles
        self.ix, self.T = model.chosen.ix, blocks.tile
        self.rooted = isinstance(quadratic, Wide)  # whether K has a root
        m = self.ix.shape[0]
        # Up to so many features the Gram matrix of the bucket is used, beyond it the root of K.
        self.few = min(quadratic.gram_features, m) if self.rooted else m

    def stepped(self, point: Point, scratch: _Scratch) -> tuple[tuple[Any, ...], _Scratch]:
        """t of the bucket after a step, ``aux`` there, and whether a step was made.

        A step needs a point that is known and, for `Wide` beyond ``few`` features, a root of K in ``aux``
        that belongs to t.
        """
        if scratch.features is not None:
            features = self.quadratic.features(self.ix, self.tiles, self.T, scratch.features)
            scratch = scratch._replace(features=features)
        small = self.tiles * self.T <= self.few
        known = point.known & (small | point.aux[2]) if self.rooted else point.known
        found = self.model.t, point.aux, scratch
        if not self.rooted:
            found = self.by_gram(known, found)
        elif not self.few:
            found = self.by_root(known, found)
        else:
            found = apply_if(small, lambda f: self.by_gram(known, f), found)
            found = apply_if(~small, lambda f: self.by_root(known, f), found)
        t, aux, scratch = found
        return (t, aux, known), scratch

    def by_root(self, known: jax.Array, found: Any) -> Any:
        """Make the step if the point is known, and compute ``aux`` at its end, both by the root of K."""
        t, aux, scratch = found

        def step(pair: tuple[jax.Array, _Scratch]) -> tuple[jax.Array, _Scratch]:
            _, scratch = pair
            features, room = scratch.features, scratch.halves
            P = self.quadratic.halves_of_root(aux, features, self.tiles, self.T, room)
            S = lambda i, j: rows_at(P, i, self.T) @ rows_at(P, j, self.T).T
            return self.minimised(S, scratch._replace(halves=P))

        t, scratch = apply_if(known, step, (t, scratch))
        aux = self.quadratic.by_root(self.scales(t), scratch.features, self.tiles, self.T)
        return t, aux, scratch

    def by_gram(self, known: jax.Array, found: Any) -> Any:
        """Same as `by_root`, by the Gram matrix of the features: for few features or many rows."""
        t, aux, scratch = found
        m, T, ix = self.few, self.T, self.ix[: self.few]
        features = None if scratch.features is None else scratch.features[:m]
        gram = self.quadratic.gram(features, ix, self.tiles, T)

        # A loop of two rounds, so that the solve is compiled once; the second only solves for W at the new t.
        def turn(c: Any) -> Any:
            number, t, scratch, _ = c
            W, root, h = gram.solved(self.scales(t)[:m])

            def step(pair: tuple[jax.Array, _Scratch]) -> tuple[jax.Array, _Scratch]:
                P = gram.halves(root, h)

                def S(i: jax.Array, j: jax.Array) -> jax.Array:
                    return tile_at(gram.G, i, j, T).astype(LOW) - rows_at(P, i, T) @ rows_at(P, j, T).T

                return self.minimised(S, pair[1])

            return number + 1, *apply_if(number == 0, step, (t, scratch)), W

        W = jnp.zeros((m, gram.b.shape[1]), gram.b.dtype)
        first = (~known).astype(jnp.int32)
        _, t, scratch, W = lax.while_loop(lambda c: c[0] < 2, turn, (first, t, scratch, W))
        return t, self.quadratic.by_gram(W, features, ix, self.tiles, T, aux), scratch

    def scales(self, t: jax.Array) -> jax.Array:
        """(m,), the scales s of the features of the bucket at t (b,)."""
        s, at = scales_of(t, self.model.ridge), self.model.chosen.at
        return s if at is None else take(s, at, 0)

    def minimised(self, S: Any, scratch: _Scratch) -> tuple[jax.Array, _Scratch]:
        """t (b,) after the step of the quadratic model, given the tiles S(i, j) of A'K^-1 A."""
        m, at = self.model, self.model.chosen.at
        t, alpha, ridge = m.t, m.alpha, m.ridge
        q = safe_divide(m.c if ridge is None else m.c / (1 + ridge * t), alpha)
        # The unknowns are u = alpha t, the norms of W. H in u is of the order of A'A: float32 is precise
        # enough. r is minus the gradient of phi in u; at attempt 0 the factor 2q^2/(1 + q) turns the step
        # into Newton's for 1/c = 1/alpha.
        r = alpha * jnp.where(m.attempt == 0, q * q * (q - 1), (q * q - 1) / 2)
        inverse = safe_divide(1.0, alpha if at is None else take(alpha, at, 0))
        H = self.blocks.windows(S, (m.C * inverse[:, None]).astype(LOW), at, self.tiles, scratch.hessian)
        shift = jnp.where(m.attempt < 2, DIAGONAL_SHARE, 10.0 ** (m.attempt.astype(t.dtype) - 5)).astype(LOW)
        diagonal, factor = jnp.diagonal(H)[: t.shape[0]], jnp.ones(t.shape, LOW)
        if ridge is not None:  # H is the Hessian in alpha s, s = t/(1 + mt): change to alpha t by ds/dt = e^2
            e = 1 / (1 + ridge * t)
            factor, curved = (e * e).astype(LOW), (ridge * q * q * e).astype(LOW)
            diagonal = factor * factor * diagonal
            more = curved + shift * (diagonal + curved) + tiny_of(H)
        else:
            more = shift * diagonal + tiny_of(H)
        sweeps = jnp.where(m.attempt == 0, MAX_FACTORISATIONS, 2 * MAX_FACTORISATIONS)
        u, free = (alpha * t).astype(LOW), (t > 0) | (q > 1)
        quadratic = _Quadratic(H, factor, more, r.astype(LOW), m.chosen.block_tiles, self.blocks.block_tile)
        x, root = quadratic.bounded(u, free, sweeps, scratch.root)
        new = jnp.where(x > -u, jnp.maximum(t + safe_divide(x.astype(t.dtype), alpha), 0), 0)
        return new, scratch._replace(hessian=H, root=root)


class _Quadratic(NamedTuple):
    """``x'Mx/2 - r'x`` with ``M = diag(factor) H diag(factor) + diag(more)``."""

    H: jax.Array  # (b', b'), b' >= b
    factor: jax.Array  # (b,)
    more: jax.Array  # (b,)
    r: jax.Array  # (b,)
    tiles: jax.Array  # (), tiles of H in use
    T: int  # rows of a tile

    def times(self, x: jax.Array) -> jax.Array:
        """Mx."""
        scaled = jnp.pad(self.factor * x, (0, self.H.shape[0] - x.shape[0]))
        T = self.T
        row = lambda i, y: lax.dynamic_update_slice_in_dim(y, rows_at(self.H, i, T) @ scaled, i * T, 0)
        product: jax.Array = lax.fori_loop(0, self.tiles, row, jnp.zeros_like(x))
        return self.factor * product + self.more * x

    def bounded(self, t: jax.Array, free: jax.Array, sweeps: jax.Array, room: Root) -> tuple[jax.Array, Root]:
        """The minimiser over x >= -t, and the last root, which overwrites ``room``.

        Primal-dual active set method: entries that are not free are -t, the others solve Mx = r. Next, a free
        entry stays free if t + x > 0, and a fixed one becomes free if its gradient (Mx - r) is negative.
        """
        T = self.T
        eye = jnp.eye(T, dtype=self.H.dtype)

        def sweep(c: Any) -> Any:
            free, _, i, _, room = c
            fixed, on = jnp.where(free, 0, -t), jnp.where(free, self.factor, 0)
            diagonal = jnp.where(free, self.more, 1)

            def tile(i: jax.Array, j: jax.Array) -> jax.Array:
                part = tile_at(self.H, i, j, T) * rows_at(on, i, T)[:, None] * rows_at(on, j, T)[None]
                return part + jnp.where(i == j, eye * rows_at(diagonal, i, T)[:, None], 0)

            root = factorised(tile, self.tiles, room, inverted=False)
            right = jnp.where(free, self.r - self.times(fixed), 0)[None]
            x = fixed + upper_solve(root, lower_solve(root, right, self.tiles), self.tiles)[0]
            new = jnp.where(free, t + x > 0, self.times(x) < self.r)
            return new, x, i + 1, jnp.any(new != free), root

        start = (free, t, jnp.int32(0), jnp.ones((), bool), room)
        _, x, _, _, root = lax.while_loop(lambda c: c[3] & (c[2] < sweeps), sweep, start)
        return x, root
