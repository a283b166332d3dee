"""The fits of all outputs at all strengths, in one compiled call."""

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
from sparsejax.models.ofa_lasso._active_columns import LassoPath
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
    solves one round of outputs after another, and raises KeyboardInterrupt after Ctrl-C.
    """
    p = data.Y.shape[0] + data.num_inputs
    arguments = data, (lams, betas, start_lams), (tol, maxiter, mu, growth), bar
    traced = any(map(is_traced, jax.tree.leaves(arguments)))
    # Inside jit the bucket cannot grow, and so it is larger from the start.
    bucket = min(p, 256 if traced else FIRST_BUCKET_COLUMNS)
    while True:
        fitted = _train_bucket(*arguments, algorithm=algorithm, bucket=bucket)
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


def _solved(
    data: Data, strengths: Any, numbers: Any, algorithm: str, bucket: int, F: jax.Array, j: jax.Array
) -> Fitted:
    """Solve output j at all strengths; F (n, q): the columns of the inputs, which all outputs share."""
    (lams, betas, start_lams), (tol, maxiter, mu, growth) = strengths, numbers
    Y, q = data.Y, F.shape[1]
    others = jnp.where(jnp.arange(Y.shape[1])[None] == j, 0, Y)
    G = kernels.kernel_of(data.kernel, data.degree, data.output_bandwidth[j], others, others)
    # Columns and y are centred; At (p, n) has one column of F or G a row.
    At = jnp.concatenate([(A - jnp.mean(A, axis=0, keepdims=True)).T for A in (F, G)])
    means, mean = jnp.concatenate([jnp.mean(F, axis=0), jnp.mean(G, axis=0)]), jnp.mean(Y, axis=0)[j]
    y = Y[:, j] - mean
    # A residual is at most as long as y: with this strength no column of G can become active.
    off = 1 + 2 * jnp.sqrt(jnp.max(jnp.sum(At * At, axis=1)) * jnp.sum(y * y))
    lam = jnp.concatenate([start_lams[:, j], lams[:, j]])
    beta = jnp.concatenate([jnp.broadcast_to(off, start_lams.shape[:1]), betas[:, j]])
    halves = jnp.stack([lam, beta], axis=1) / 2
    limits = jnp.repeat(halves, np.array([q, Y.shape[0]]), axis=1, total_repeat_length=At.shape[0])
    unit = Unit.of(y)
    y, limits = y / unit.size, unit.limits(limits)
    if algorithm == "auto":
        path = LassoPath(At, y, limits[0], tol, maxiter, bucket)
        solved = lax.scan(path.step, path.start, limits)[1]
    elif algorithm == "admm":
        solved = lax.map(lambda limit: _kernel_admm.admm(At, y, limit, tol, maxiter, mu), limits)
    else:
        one = lambda limit: _kernel_admm.printed(At, q, y, limit, tol, maxiter, mu, growth)
        solved = lax.map(one, limits)
    solved = unit.undone(solved)
    return Fitted(solved, mean - solved.z @ means)


@full_precision()
@partial(jax.jit, static_argnames=("together", "algorithm", "bucket"))
def _train_outputs(
    data: Data, strengths: Any, numbers: Any, j: Any, together: int, algorithm: str, bucket: int
) -> Fitted:
    """Solve the outputs with the numbers j, ``together`` of them at once; repeated outputs are left out."""
    one = partial(_solved, data, strengths, numbers, algorithm, bucket, inputs(data, data.X))
    fitted = lax.map(one, j, batch_size=together)
    return jax.tree.map(lambda leaf: leaf[: data.Y.shape[1]], fitted)


def _train_bucket(data: Data, strengths: Any, numbers: Any, bar: Bar | None, **options: Any) -> Fitted:
    """Solve all outputs; with a bar by a call for each round of outputs, after which Ctrl-C is obeyed."""
    d, (rounds, together) = data.Y.shape[1], _rounds(data.Y.shape, data.num_inputs)
    j = np.arange(rounds * together) % d  # the last round repeats some outputs
    solve = partial(_train_outputs, data, strengths, numbers, together=together, **options)
    if bar is None:
        return solve(j)
    found = []
    for number, part in enumerate(np.split(j, rounds)):
        found.append(jax.tree.map(np.asarray, solve(part)))
        gap = found[-1].lasso.gap
        bar.show((number + 1) * gap.shape[1], float(gap[:, -1].max()))
        bar.check()
    return jax.tree.map(lambda *leaves: jnp.asarray(np.concatenate(leaves)[:d]), *found)
