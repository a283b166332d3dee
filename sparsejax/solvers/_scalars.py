r"""Newton's method on one scalar a row or group: the iteration of `variational_newton` and `prox_newton`."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsejax._core.linalg import eps_of, like, once, safe_divide, take, tiny_of
from sparsejax._core.tiles import Root, factorised, lower_solve, no_root, rows_at, tile_at, upper_solve
from sparsejax.driver.loop import recorded
from sparsejax.solution import History
from sparsejax.solvers._norm_blocks import LOW, Chosen, Grouped, Rows, limited, scales, weights
from sparsejax.solvers._quadratics import Wide

NEWTON = 100  # steps at most
# Factorisations of the active set method in the first attempt at a step; twice as many in the others.
SWEEPS = 4
ATTEMPTS = 16  # at a step: the last ones are those of steepest descent
# Of the diagonal of the Hessian, at least: without it the rounding of float32 leads astray where the rank is
# short. Steps are hardly worse for it, and where nearly equal columns compete better.
SHIFT = 3e-4
SHRINK = 0.5  # from the strength at which W = 0 down to that asked for, a Newton step each
# Of the rank that the Hessian can have, up to which a bucket may be larger than its active blocks ask for,
# and by how much.
CURVED, WIDER = 0.75, 1.6


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
    """Where Newton's method stands."""

    point: Point
    c: jax.Array  # (b,), the norms of the blocks of C
    primal: jax.Array
    dual: jax.Array
    tiles: jax.Array  # of features in the next bucket; more than there are: nothing more can be done
    attempt: jax.Array  # number of the next attempt at a step
    tau: jax.Array  # >= 1, what the strengths are multiplied with in the next step
    k: jax.Array  # steps
    history: History


class _Model(NamedTuple):
    """The quadratic model of phi in the blocks of a bucket, (b,) each, and how it is to be minimised."""

    t: jax.Array
    alpha: jax.Array
    ridge: jax.Array | None
    c: jax.Array  # norms of the blocks of C
    C: jax.Array  # (m, k), of the features
    chosen: Chosen
    attempt: jax.Array


class _Scratch(NamedTuple):
    """Arrays that every step overwrites, carried along so that they are written with zeros once."""

    features: jax.Array | None  # (m, N)
    halves: jax.Array | None  # (m, N)
    hessian: jax.Array  # (b, b)
    root: Root  # (b, b)


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
        self.over = blocks.tiles + 1

    def run(self, point: Point, history: History) -> State:
        c, primal, dual, ratios = self.values(point)
        excess = jnp.max(ratios)
        right = jnp.all(self.blocks.alpha > 0) & (excess <= self.weakest)
        tau, zero = jnp.maximum(SHRINK * excess, 1), jnp.int32(0)
        tiles = jnp.where(right, self.tiles(point.t, ratios, tau), self.over)
        state = State(point, c, primal, dual, tiles, zero, tau, zero, history)
        start = self.recorded(state), self.scratch()
        return lax.while_loop(lambda pair: self.going(pair[0]), self.body, start)[0]

    def scratch(self) -> _Scratch:
        blocks, quadratic = self.blocks, self.quadratic
        m, b = blocks.most
        features = halves = None
        if isinstance(quadratic, Wide):
            features = quadratic.room(m)
            halves = jnp.zeros(features.shape, LOW)
        return _Scratch(features, halves, blocks.room(), no_root(b, blocks.block_tile, LOW))

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

    def tiles(self, t: jax.Array, ratios: jax.Array, tau: jax.Array) -> jax.Array:
        """Tiles of the next bucket: of the active blocks, and of others where many are about to come in.

        To let them in together saves steps, unless the Hessian becomes singular by it.
        """
        blocks = self.blocks
        least, better = blocks.wanted(t > 0, ratios > 1, ratios > tau)
        least = jnp.maximum(jnp.ceil(least / blocks.tile), blocks.least)
        most = jnp.maximum(least, CURVED * self.quadratic.rank // blocks.tile)
        wanted = jnp.minimum(jnp.ceil(better / blocks.tile), jnp.minimum(jnp.ceil(WIDER * least), most))
        tiles = jnp.minimum(jnp.maximum(least, wanted), blocks.tiles)
        return jnp.where(least <= blocks.tiles, tiles, self.over).astype(jnp.int32)

    def recorded(self, s: State) -> State:
        if s.history.gap.shape[0] == 0:
            return s
        objective = jnp.where(s.point.known, s.primal, jnp.nan)
        gap = jnp.where(s.point.known, self.gap(s), jnp.nan)
        return s._replace(history=recorded(s.history, s.k, objective, gap))

    def going(self, s: State) -> jax.Array:
        more = (self.gap(s) > self.tol) | ~s.point.known
        return more & (s.k < self.maxiter) & (s.tiles < self.over)

    def body(self, pair: tuple[State, _Scratch]) -> tuple[State, _Scratch]:
        """An attempt at a step, and the product with all of A where it ends.

        A point of which not all is known is not moved, but looked at.
        """
        s, scratch = pair
        point = s.point
        (t, aux, phi, before, known), scratch = self.attempted(s, scratch)
        falls = phi <= before + 8 * eps_of(phi) * jnp.abs(before)
        new = look(self.quadratic, t, aux)
        c, primal, dual, ratios = self.values(new)
        tau = jnp.maximum(SHRINK * jnp.where(point.known, s.tau, jnp.max(ratios)), 1)
        attempt = jnp.where(falls, jnp.maximum(s.attempt - 1, 0), s.attempt + 1)
        attempt = jnp.where(known, attempt, s.attempt)
        tiles = jnp.where(attempt <= ATTEMPTS, self.tiles(t, ratios, tau), self.over)
        moved = State(new, c, primal, dual, tiles, attempt, tau, s.k + known.astype(jnp.int32), s.history)
        stays = s._replace(attempt=attempt, tiles=jnp.where(attempt <= ATTEMPTS, s.tiles, self.over))
        after = jax.tree.map(lambda a, b: jnp.where(falls | ~known, a, b), moved, stays)
        return self.recorded(after), scratch

    def attempted(self, s: State, scratch: _Scratch) -> tuple[tuple[Any, ...], _Scratch]:
        """t and ``aux`` after an attempt, phi there and before; and whether it was one."""
        point, blocks, quadratic = s.point, self.blocks, self.quadratic
        chosen = blocks.chosen(point.t > 0, blocks.ratios(point.t, s.c), s.tiles)
        numbers = chosen.blocks
        t, alpha = take(point.t, numbers, 0), s.tau * take(blocks.alpha, numbers, 0)
        ridge = None if blocks.ridge is None else take(blocks.ridge, numbers, 0)
        C = take(point.C, chosen.ix, 1).T
        model = _Model(t, alpha, ridge, take(s.c, numbers, 0), C, chosen, s.attempt)
        (new, aux, known), scratch = _Bucket(quadratic, blocks, model, s.tiles).stepped(point, scratch)
        squares = alpha * alpha
        phi = (quadratic.along(aux) + jnp.sum(squares * new)) / 2
        before = (point.along + jnp.sum(squares * t)) / 2
        t = jnp.zeros_like(point.t).at[numbers].set(new, mode="drop")
        return (t, aux, phi, before, known), scratch


class _Bucket:
    """A step in the blocks of a bucket."""

    def __init__(self, quadratic: Any, blocks: Rows | Grouped, model: _Model, tiles: jax.Array):
        self.quadratic, self.blocks, self.model, self.tiles = quadratic, blocks, model, tiles
        self.ix, self.T = model.chosen.ix, blocks.tile
        self.rooted = isinstance(quadratic, Wide)  # whether K has a root
        m = self.ix.shape[0]
        self.few = min(quadratic.gram_features, m) if self.rooted else m  # features for a Gram matrix

    def stepped(self, point: Point, scratch: _Scratch) -> tuple[tuple[Any, ...], _Scratch]:
        """t of the bucket and ``aux`` there, after a step if all that it needs is known at the point."""
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
            found = once(small, lambda f: self.by_gram(known, f), found)
            found = once(~small, lambda f: self.by_root(known, f), found)
        t, aux, scratch = found
        return (t, aux, known), scratch

    def by_root(self, known: jax.Array, found: Any) -> Any:
        """The step from where all that it needs is known, and the point where it ends."""
        t, aux, scratch = found

        def step(pair: tuple[jax.Array, _Scratch]) -> tuple[jax.Array, _Scratch]:
            _, scratch = pair
            features, room = scratch.features, scratch.halves
            P = self.quadratic.halves_of_root(aux, features, self.tiles, self.T, room)
            S = lambda i, j: rows_at(P, i, self.T) @ rows_at(P, j, self.T).T
            return self.minimised(S, scratch._replace(halves=P))

        t, scratch = once(known, step, (t, scratch))
        aux = self.quadratic.by_root(self.scales(t), scratch.features, self.tiles, self.T)
        return t, aux, scratch

    def by_gram(self, known: jax.Array, found: Any) -> Any:
        """The same, of few features or many rows."""
        t, aux, scratch = found
        m, T, ix = self.few, self.T, self.ix[: self.few]
        features = None if scratch.features is None else scratch.features[:m]
        gram = self.quadratic.gram(features, ix, self.tiles, T)

        # Two turns, the second of which only looks at the end, so that the solve is compiled once.
        def turn(c: Any) -> Any:
            number, t, _, scratch = c
            W, root, h = gram.solved(self.scales(t)[:m])

            def step(pair: tuple[jax.Array, _Scratch]) -> tuple[jax.Array, _Scratch]:
                P = gram.halves(root, h)

                def S(i: jax.Array, j: jax.Array) -> jax.Array:
                    return tile_at(gram.G, i, j, T).astype(LOW) - rows_at(P, i, T) @ rows_at(P, j, T).T

                return self.minimised(S, pair[1])

            return number + 1, *once(number == 0, step, (t, scratch)), W

        def turned(c: Any) -> Any:
            number, t, scratch, W = c
            number, t, scratch, W = turn((number, t, W, scratch))
            return number, t, scratch, W

        W = jnp.zeros((m, gram.b.shape[1]), gram.b.dtype)
        first = (~known).astype(jnp.int32)
        _, t, scratch, W = lax.while_loop(lambda c: c[0] < 2, turned, (first, t, scratch, W))
        return t, self.quadratic.by_gram(W, features, ix, self.tiles, T, aux), scratch

    def scales(self, t: jax.Array) -> jax.Array:
        """Of the features of the bucket."""
        s, at = weights(t, self.model.ridge), self.model.chosen.at
        return s if at is None else take(s, at, 0)

    def minimised(self, S: Any, scratch: _Scratch) -> tuple[jax.Array, _Scratch]:
        """t after the step of the model whose A'K^-1 A has the tiles S(i, j)."""
        m, at = self.model, self.model.chosen.at
        t, alpha, ridge = m.t, m.alpha, m.ridge
        q = safe_divide(m.c if ridge is None else m.c / (1 + ridge * t), alpha)
        # In u = alpha t, the norms, H is of the order of A'A: float32 is precise enough for a step.
        r = alpha * jnp.where(m.attempt == 0, q * q * (q - 1), (q * q - 1) / 2)
        inverse = safe_divide(1.0, alpha if at is None else take(alpha, at, 0))
        H = self.blocks.windows(S, (m.C * inverse[:, None]).astype(LOW), at, self.tiles, scratch.hessian)
        shift = jnp.where(m.attempt < 2, SHIFT, 10.0 ** (m.attempt.astype(t.dtype) - 5)).astype(LOW)
        diagonal, factor = jnp.diagonal(H)[: t.shape[0]], jnp.ones(t.shape, LOW)
        if ridge is not None:  # by s, until now
            e = 1 / (1 + ridge * t)
            factor, curved = (e * e).astype(LOW), (ridge * q * q * e).astype(LOW)
            diagonal = factor * factor * diagonal
            more = curved + shift * (diagonal + curved) + tiny_of(H)
        else:
            more = shift * diagonal + tiny_of(H)
        sweeps = jnp.where(m.attempt == 0, SWEEPS, 2 * SWEEPS)
        u, free = (alpha * t).astype(LOW), (t > 0) | (q > 1)
        quadratic = _Quadratic(H, factor, more, r.astype(LOW), m.chosen.block_tiles, self.blocks.block_tile)
        x, root = quadratic.bounded(u, free, sweeps, scratch.root)
        new = jnp.where(x > -u, jnp.maximum(t + safe_divide(x.astype(t.dtype), alpha), 0), 0)
        return new, scratch._replace(hessian=H, root=root)


class _Quadratic(NamedTuple):
    """x'Mx/2 - r'x, where M is H with rows and columns times the factor, and more on its diagonal."""

    H: jax.Array
    factor: jax.Array
    more: jax.Array
    r: jax.Array
    tiles: jax.Array
    T: int

    def times(self, x: jax.Array) -> jax.Array:
        """Mx."""
        scaled = jnp.pad(self.factor * x, (0, self.H.shape[0] - x.shape[0]))
        T = self.T
        row = lambda i, y: lax.dynamic_update_slice_in_dim(y, rows_at(self.H, i, T) @ scaled, i * T, 0)
        product: jax.Array = lax.fori_loop(0, self.tiles, row, jnp.zeros_like(x))
        return self.factor * product + self.more * x

    def bounded(self, t: jax.Array, free: jax.Array, sweeps: jax.Array, room: Root) -> tuple[jax.Array, Root]:
        """The least over x >= -t, by a primal-dual active set that starts with ``free``; and the room."""
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
