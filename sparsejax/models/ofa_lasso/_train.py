"""The fits of all outputs at all strengths, in one compiled call."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsejax import kernels
from sparsejax._core.checks import is_traced
from sparsejax._core.precision import full_precision
from sparsejax._core.progress import Bar
from sparsejax.models.ofa_lasso import _kernel_admm
from sparsejax.models.ofa_lasso._active_columns import Along
from sparsejax.models.ofa_lasso._certificate import FULL, Lasso, Unit
from sparsejax.models.ofa_lasso._kernel_columns import Data, inputs
from sparsejax.solution import MAX_ITER

FIRST_BUCKET_COLUMNS = 128  # columns of the first working set
OUTPUTS_AT_ONCE = 4  # outputs that are solved at once


class Fitted(NamedTuple):
    """Solutions: the first axis is the output, the second has the S starts, then the L pairs of strengths."""

    lasso: Lasso
    intercept: jax.Array


def train(
    data: Data,
    lams: jax.Array,
    betas: jax.Array,
    start_lams: jax.Array,
    tol: jax.Array,
    maxiter: jax.Array,
    mu: jax.Array,
    growth: jax.Array,
    algorithm: str,
    bar: Bar | None = None,
) -> Fitted:
    """Fit every output at ``start_lams`` (S, d) without the kernels of the others, then at the L pairs of
    ``lams`` and ``betas`` (L, d).

    If the working set (bucket) is too small for any output, all outputs are fitted again with three times as
    many columns; inside jit, where this is not possible, the status is ``MAX_ITER``. With a bar the host
    makes one solve after another, and raises KeyboardInterrupt after Ctrl-C.
    """
    p = data.Y.shape[0] + data.num_inputs
    traced = any(map(is_traced, jax.tree.leaves((data, lams, betas, start_lams))))
    bucket = min(p, 256 if traced else FIRST_BUCKET_COLUMNS)
    arguments = data, (lams, betas, start_lams), (tol, maxiter, mu, growth)
    run: Callable[..., Fitted] = _train_bucket if bar is None else partial(_one_by_one, bar)
    while True:
        fitted = run(*arguments, algorithm=algorithm, bucket=bucket)
        status = fitted.lasso.status
        if traced or bucket == p or not (np.asarray(status) == FULL).any():
            break
        bucket = min(p, 3 * bucket)
    ended = fitted.lasso._replace(status=jnp.where(status == FULL, MAX_ITER, status))
    return fitted._replace(lasso=ended)


def solves(shape: tuple[int, ...], q: int, strengths: int) -> int:
    """The number of solves that a progress bar counts: one at each strength for each round of outputs.

    shape: shape of Y; q: number of columns of the inputs.
    """
    return _rounds(shape, q)[0] * strengths


def _rounds(shape: tuple[int, ...], q: int) -> tuple[int, int]:
    """The number of rounds, and the number of outputs in each round."""
    n, d = shape
    # At most `OUTPUTS_AT_ONCE`, and as many as fit in 2^27 numbers, a gigabyte in float64. Rounds have equal
    # size: the last one repeats outputs.
    together = min(OUTPUTS_AT_ONCE, max(1, 2**27 // ((n + q) * n)))
    rounds = -(-d // together)
    return rounds, -(-d // rounds)


class _Output(NamedTuple):
    """The lasso problems of one output."""

    At: jax.Array  # (p, n), the centred columns, one a row
    y: jax.Array  # (n,), centred, divided by ``unit``
    unit: Unit
    limits: jax.Array  # (S + L, p), limits of all problems, divided by ``unit``
    means: jax.Array  # (p,), means of the columns
    mean: jax.Array  # (), mean of y


class _Outputs:
    """The solves of all outputs at all strengths; a round solves several outputs at once."""

    def __init__(
        self,
        data: Data,
        strengths: tuple[jax.Array, jax.Array, jax.Array],
        numbers: tuple[jax.Array, ...],
        algorithm: str,
        bucket: int,
    ):
        self.data, self.strengths, self.numbers = data, strengths, numbers
        self.algorithm, self.bucket = algorithm, bucket
        self.rounds, self.together = _rounds(data.Y.shape, data.num_inputs)
        self.length = strengths[0].shape[0] + strengths[2].shape[0]

    def output(self, F: jax.Array, j: jax.Array) -> _Output:
        """The problems of output j; F (n, q): the columns of the inputs, which all outputs share."""
        data, Y, q = self.data, self.data.Y, F.shape[1]
        lams, betas, start_lams = self.strengths
        others = jnp.where(jnp.arange(Y.shape[1])[None] == j, 0, Y)
        G = kernels.kernel_of(data.kernel, data.degree, data.output_bandwidth[j], others, others)
        At = jnp.concatenate([(A - jnp.mean(A, axis=0, keepdims=True)).T for A in (F, G)])
        mean = jnp.mean(Y, axis=0)[j]
        y = Y[:, j] - mean
        # A residual is at most as long as y: with this strength no column of G can become active.
        off = 1 + 2 * jnp.sqrt(jnp.max(jnp.sum(At * At, axis=1)) * jnp.sum(y * y))
        lam = jnp.concatenate([start_lams[:, j], lams[:, j]])
        beta = jnp.concatenate([jnp.broadcast_to(off, start_lams.shape[:1]), betas[:, j]])
        halves = jnp.stack([lam, beta], axis=1) / 2
        limits = jnp.repeat(halves, np.array([q, Y.shape[0]]), axis=1, total_repeat_length=At.shape[0])
        unit = Unit.of(y)
        means = jnp.concatenate([jnp.mean(F, axis=0), jnp.mean(G, axis=0)])
        return _Output(At, y / unit.size, unit, unit.limits(limits), means, mean)

    def stepper(self, o: _Output) -> tuple[Any, Callable[[Any, jax.Array], tuple[Any, Lasso]]]:
        """The first state, and (state, limits) -> the next one and the solution."""
        tol, maxiter, mu, growth = self.numbers
        if self.algorithm == "auto":
            path = Along(o.At, o.y, o.limits[0], tol, maxiter, self.bucket)
            return path.start, path.step
        if self.algorithm == "admm":
            solve = lambda limit: _kernel_admm.admm(o.At, o.y, limit, tol, maxiter, mu)
        else:
            q = self.data.num_inputs
            solve = lambda limit: _kernel_admm.printed(o.At, q, o.y, limit, tol, maxiter, mu, growth)
        return None, lambda _, limit: (None, solve(limit))

    def fitted(self, o: _Output, solved: Lasso) -> Fitted:
        solved = o.unit.undone(solved)
        return Fitted(solved, o.mean - solved.z @ o.means)

    def all(self, F: jax.Array, j: jax.Array) -> Fitted:
        """Solve one output at all strengths."""
        o = self.output(F, j)
        start, step = self.stepper(o)
        return self.fitted(o, lax.scan(step, start, o.limits)[1])

    def one(self, o: _Output, state: Any, number: Any) -> tuple[Any, Fitted]:
        """Solve one output at one strength, and return the next state."""
        state, solved = self.stepper(o)[1](state, o.limits[number])
        return state, self.fitted(o, solved)

    def prepare(self, number: Any) -> tuple[Any, Any]:
        """The problems of a round of outputs and their first states; the last round repeats some."""
        j = (number * self.together + jnp.arange(self.together)) % self.data.Y.shape[1]
        outputs = jax.vmap(partial(self.output, inputs(self.data, self.data.X)))(j)
        return outputs, jax.vmap(lambda o: self.stepper(o)[0])(outputs)


@full_precision()
@partial(jax.jit, static_argnames=("algorithm", "bucket"))
def _train_bucket(data: Data, strengths: Any, numbers: Any, **options: Any) -> Fitted:
    outputs = _Outputs(data, strengths, numbers, **options)
    one = partial(outputs.all, inputs(data, data.X))
    d, rounds, together = data.Y.shape[1], outputs.rounds, outputs.together
    fitted = lax.map(one, jnp.arange(rounds * together) % d, batch_size=together)
    return jax.tree.map(lambda leaf: leaf[:d], fitted)


@full_precision()
@partial(jax.jit, static_argnames=("algorithm", "bucket"))
def _prepare(data: Data, strengths: Any, numbers: Any, number: int, **options: Any) -> tuple[Any, Any]:
    return _Outputs(data, strengths, numbers, **options).prepare(number)


@full_precision()
@partial(jax.jit, static_argnames=("algorithm", "bucket"))
def _solve(
    data: Data, strengths: Any, numbers: Any, prepared: Any, state: Any, number: int, **options: Any
) -> tuple[Any, Fitted]:
    """Solve one strength for the outputs of a round, and return the next state."""
    outputs = _Outputs(data, strengths, numbers, **options)
    return jax.vmap(lambda o, state: outputs.one(o, state, number))(prepared, state)


def _one_by_one(bar: Bar, *args: Any, **options: Any) -> Fitted:
    """`_train_bucket` by a call for each solve, after which Ctrl-C is obeyed."""
    outputs, found = _Outputs(*args, **options), []
    for number in range(outputs.rounds):
        prepared, state = _prepare(*args, number, **options)
        solved = []
        for i in range(outputs.length):
            state, new = _solve(*args, prepared, state, i, **options)
            solved.append(new)
            bar.show(number * outputs.length + i + 1, float(np.max(new.lasso.gap)))
            bar.check()
        found.append(jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *solved))
    d = outputs.data.Y.shape[1]  # the last round repeats some outputs
    return jax.tree.map(lambda *leaves: jnp.asarray(np.concatenate(leaves)[:d]), *found)
