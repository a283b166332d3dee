"""Tuning: choosing strengths by the gradient of a held-out loss."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.typing import ArrayLike

from sparsejax._core.checks import as_float, as_int, as_nonnegative, is_traced
from sparsejax._core.compiled import Compiled
from sparsejax._core.linalg import choose
from sparsejax._core.matrices.sharded import check_one_process
from sparsejax._core.progress import Interrupted, Report, bar_of, check_progress, in_chunks
from sparsejax._core.pytree import Pytree
from sparsejax.closures import with_program_of_function
from sparsejax.driver import prepare
from sparsejax.losses import Loss, as_loss
from sparsejax.penalties import Penalty, as_given, split_strengths
from sparsejax.problem import Problem
from sparsejax.solution import Solution, warn_unconverged
from sparsejax.solvers import solve

# The optimiser updates log strengths: its first step, of length 1, multiplies or divides each strength by e.
OPTIMISER = optax.adam(optax.exponential_decay(1.0, 1, 0.9), b1=0.5, b2=0.9)

RUNNING = -1
CONVERGED, MAX_ITER, NON_FINITE, ALL_ZERO, INTERRUPTED = range(5)
MESSAGES = {
    CONVERGED: "converged: the slope of the held-out loss is at most tol",
    MAX_ITER: "maxiter solves were made before the slope fell below tol; the best of them is returned",
    NON_FINITE: (
        "the held-out loss or its slope is NaN or infinite; of the solves made, that of the least held-out "
        "loss, or the first, is returned. The slope is NaN where the support of a solution is not settled: "
        "lower solver_tol. Else check the held-out data, and whether the solves converged"
    ),
    ALL_ZERO: (
        "every weight is 0, so that the slope of the held-out loss is 0: start from smaller strengths, such "
        "as lambda_max / 10"
    ),
    INTERRUPTED: "interrupted; the best solve so far is returned",
}


class Tried(NamedTuple):
    """Every solve of a search in its order; NaN after the last."""

    penalties: Any  # strengths with a leading axis (maxiter,)
    loss: jax.Array  # (maxiter,), the held-out loss
    slope: jax.Array  # (maxiter,), the norm of its gradient in the log strengths that no bound stops
    measure: jax.Array  # (maxiter,), the gap of each solve, or its residual if no gap is known


class Tuning(Pytree, leaves=("penalty", "solution", "loss", "num_solves", "status", "tried")):
    """The best strengths of a search, and the search.

    Attributes:
      penalty: the problem's penalty, with the strengths of the least held-out loss.
      solution: the solution for this penalty.
      loss: the held-out loss of this solution.
      num_solves: () int32, the number of solves made.
      status: () int32, how the search ended; `message` is its text.
      tried: every solve, as `Tried`.

    >>> import numpy as np, sparsejax as sj
    >>> X = np.random.default_rng(0).standard_normal((30, 5))
    >>> problem = sj.Problem(sj.losses.SquaredLoss(X[:20], X[:20, 0]), sj.penalties.L1(0.1))
    >>> bool(sj.tune(problem, sj.losses.SquaredLoss(X[20:], X[20:, 0])).loss < 0.01)
    True
    """

    penalty: Any
    solution: Solution
    loss: jax.Array
    num_solves: jax.Array
    status: jax.Array
    tried: Tried

    @property
    def converged(self) -> jax.Array:
        """True if the slope fell below tol at a solution with nonzero weights."""
        return self.status == CONVERGED

    @property
    def message(self) -> str | list[str]:
        """The text of the status, for each search of a batch; not available under jit."""
        if is_traced(self.status):
            raise TypeError("Tuning.message is text: read it outside jit and vmap.")
        texts = [MESSAGES[code] for code in np.ravel(self.status).tolist()]
        return texts if self.status.ndim else texts[0]


def tune(
    problem: Problem,
    held_out: Callable[[Any], Any],
    init: Any = None,
    *,
    low: ArrayLike = 1e-3,
    high: ArrayLike = 1e3,
    optimizer: optax.GradientTransformation = OPTIMISER,
    tol: ArrayLike = 1e-3,
    maxiter: int = 20,
    solver_tol: ArrayLike | None = None,
    solver_maxiter: ArrayLike = 20_000,
    progress: bool = False,
) -> Tuning:
    r"""Minimise a held-out loss over all strengths of the penalty at once, by its gradient.

    .. math:: \min_{\log\lambda}\; h(W^\star(\lambda)), \qquad
              W^\star(\lambda) = \operatorname*{argmin}_W f(W) + g_\lambda(W),

    An optax optimiser changes :math:`\log\lambda`, with the derivative of the solution
    (`sparsejax.driver.implicit`); each solve starts from the last solution. The function is not convex, and
    not smooth where the support changes. Start where some weights are nonzero, for example at
    ``lambda_max / 10``: above lambda_max every slope is 0, and the search ends with a message.

    Args:
      problem: its loss is minimised in each solve; its strengths (those that the penalty names), all > 0, are
        the start.
      held_out: the loss h, W -> (): a loss of this library, which is evaluated with the intercept of the fit,
        or any callable pytree. If the problem's loss is a `GramLoss` or a function, the intercept of the fit
        is not known: a held-out loss with ``intercept=True`` then fits an intercept to the held-out rows.
      init: start of the first solve, as in `sparsejax.solve`; required if the loss is a plain function.
      low, high: the strengths stay within these multiples of the start.
      optimizer: any optax gradient transformation; it updates the log strengths. The solves of a line search,
        as in ``optax.lbfgs()``, do not count as solves.
      tol: stop when the norm of the gradient is at most tol times the held-out loss; log strengths that a
        bound stops do not count.
      maxiter: largest number of solves.
      solver_tol, solver_maxiter: ``tol`` and ``maxiter`` of `sparsejax.solve`.
      progress: show a tqdm bar of the solves with the last slope, and stop at Ctrl-C after the solve that is
        running.

    Returns:
      `Tuning`: the best of all tried strengths, not the last; look at ``converged`` and ``message``.

    Raises:
      Interrupted: Ctrl-C, with ``progress=True``. Its ``partial`` is the `Tuning` so far, or None before the
        first solve.
      TypeError, ValueError: before tracing, an argument is invalid, a strength is 0, or the penalty names no
        strengths; and under `jax.grad` and `jax.jvp`, since the search has no derivative.

    Warns:
      ConvergenceWarning: outside jit, the returned solution did not converge.
    Source: implicit differentiation for the lasso family: Bertrand et al., JMLR 23, 2022.

    >>> import numpy as np, sparsejax as sj
    >>> X = np.random.default_rng(0).standard_normal((30, 5))
    >>> problem = sj.Problem(sj.losses.SquaredLoss(X[:20], X[:20, 0]), sj.penalties.L1(0.1))
    >>> bool(sj.tune(problem, sj.losses.SquaredLoss(X[20:], X[20:, 0])).loss < 0.01)
    True
    """
    known, init, solver_tol, solver_maxiter, _ = prepare(
        "tune", problem, init, solver_tol, solver_maxiter, names=("solver_tol", "solver_maxiter")
    )
    held_out = as_loss(held_out, "tune: held_out")
    held_out = with_program_of_function(known._replace(smooth=held_out), init).smooth
    _check_strengths(known.penalty)
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(f"tune: optimizer must be an optax.GradientTransformation, got {optimizer!r}.")
    maxiter = as_int("tune: maxiter", maxiter, 1)
    dtype = jax.tree.leaves(init)[0].dtype
    low, high = (as_float(f"tune: {name}", x, (0,), dtype) for name, x in (("low", low), ("high", high)))
    tol = as_nonnegative("tune: tol", tol, dtype)
    if not any(map(is_traced, (low, high))) and not 0 < np.asarray(low) <= 1 <= np.asarray(high):
        raise ValueError(f"tune: 0 < low <= 1 <= high is needed, got low {low:g} and high {high:g}.")
    search = _Search(
        known, held_out, jnp.log(low), jnp.log(high), tol, solver_tol, solver_maxiter, optimizer, maxiter
    )
    check_progress("tune", progress, (search, init))
    check_one_process("tune", progress, (search, init))
    tuning: Tuning = (_shown if progress else _tune)(search, init)
    warn_unconverged(known, tuning.solution, solver_tol)
    return tuning


def _check_strengths(penalty: Penalty) -> None:
    strengths = split_strengths(penalty)[0]
    if not strengths:
        raise TypeError(
            f"tune: {type(penalty).__name__} names no strengths: a subclass of sparsejax.Penalty sets "
            "strengths = (...) to the names of its leaves >= 0 that scale it."
        )
    for leaf in strengths:
        if not is_traced(leaf) and not (np.asarray(leaf) > 0).all():
            raise ValueError("tune: every strength must be > 0: tune changes its logarithm.")


class _Best(NamedTuple):
    loss: jax.Array  # (), held out
    logs: Any  # the log strengths, a tuple of arrays in the shapes of the strengths
    solution: Solution


class _Carry(NamedTuple):
    logs: Any  # the log strengths of the next solve
    optimizer: Any  # the state of the optimiser
    init: Any  # the start of the next solve
    best: _Best
    n: jax.Array  # () int32, solves made
    status: jax.Array  # () int32
    tried: Tried


class _Search(
    Pytree,
    leaves=("problem", "held_out", "low", "high", "tol", "solver_tol", "solver_maxiter"),
    static=("optimizer", "maxiter"),
):
    """The search as a loop body, which makes one solve and one step of the optimiser."""

    problem: Problem
    held_out: Loss
    low: jax.Array  # (), the log of the argument ``low``
    high: jax.Array  # (), the log of the argument ``high``
    tol: jax.Array  # ()
    solver_tol: jax.Array  # ()
    solver_maxiter: jax.Array  # () int32
    optimizer: optax.GradientTransformation
    maxiter: int

    @property
    def first(self) -> Any:
        """The log strengths of the start."""
        return jax.tree.map(jnp.log, split_strengths(self.problem.penalty)[0])

    @property
    def bounds(self) -> tuple[Any, Any]:
        """The least and the greatest log strengths."""
        add = lambda bound: jax.tree.map(lambda x: x + bound.astype(x.dtype), self.first)
        return add(self.low), add(self.high)

    def rebuilt(self, strengths: Any) -> Any:
        """The penalty with these strengths."""
        return split_strengths(self.problem.penalty)[1](strengths)

    def tuning(self, c: _Carry) -> Tuning:
        tried = c.tried._replace(penalties=as_given(self.rebuilt(c.tried.penalties)))
        return Tuning(as_given(self.penalty(c.best.logs)), c.best.solution, c.best.loss, c.n, c.status, tried)

    def penalty(self, logs: Any) -> Any:
        return self.rebuilt(jax.tree.map(jnp.exp, logs))

    def judge(self, logs: Any, init: Any) -> tuple[jax.Array, Solution]:
        """The held-out loss and the solution for these log strengths."""
        changed = self.problem._replace(penalty=self.penalty(logs))
        solution = solve(changed, init, tol=self.solver_tol, maxiter=self.solver_maxiter)
        if "data" in self.held_out.provides and "data" in self.problem.smooth.provides:
            b = self.problem.smooth.intercept(solution.params)
            loss = self.held_out.evaluate(solution.params, b)
        else:
            loss = jnp.asarray(self.held_out(solution.params))
        if loss.shape or not jnp.issubdtype(loss.dtype, jnp.floating):
            raise TypeError(f"tune: held_out must return one real number, got {loss.dtype} {loss.shape}.")
        # A held-out loss of float64 data is float64, also for a problem of float32.
        return loss.astype(solution.objective.dtype), solution

    def start(self, init: Any) -> _Carry:
        """The carry before the first solve."""
        shapes = jax.eval_shape(self.judge, self.first, init)[1]
        dtype = jax.tree.leaves(init)[0].dtype
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        nan = jnp.full((), jnp.nan, dtype)
        repeated = lambda x: jnp.full((self.maxiter, *x.shape), jnp.nan, x.dtype)
        empty = jax.tree.map(repeated, Tried(self.first, nan, nan, nan))
        best, state = _Best(nan, self.first, nothing), self.optimizer.init(self.first)
        return _Carry(self.first, state, init, best, jnp.int32(0), jnp.int32(RUNNING), empty)

    def body(self, c: _Carry) -> _Carry:
        """The carry after one solve and one step of the optimiser."""
        (loss, solution), grad = jax.value_and_grad(self.judge, has_aux=True)(c.logs, c.init)
        slope = optax.tree.norm(jax.tree.map(_within, grad, c.logs, *self.bounds))
        better = (loss < c.best.loss) | (c.n == 0)
        best = choose(better, _Best(loss, c.logs, solution), c.best)
        shown = Tried(jax.tree.map(jnp.exp, c.logs), loss, slope, solution.measure)
        tried = jax.tree.map(lambda h, x: h.at[c.n].set(x), c.tried, shown)
        logs, state = self.step(c, loss, grad)
        status = self.status(c.n + 1, loss, slope, solution)
        return _Carry(logs, state, solution.params, best, c.n + 1, status, tried)

    def step(self, c: _Carry, loss: jax.Array, grad: Any) -> tuple[Any, Any]:
        update = optax.with_extra_args_support(self.optimizer).update
        more = {"value": loss, "grad": grad, "value_fn": lambda logs: self.judge(logs, c.init)[0]}
        # optax mixes dtypes and ranks, which the user may have forbidden.
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            updates, state = update(grad, c.optimizer, c.logs, **more)
        move = lambda x, u, low, high: jnp.clip(x + u, low, high)
        return jax.tree.map(move, c.logs, updates, *self.bounds), state

    def status(self, n: jax.Array, loss: jax.Array, slope: jax.Array, solution: Solution) -> jax.Array:
        nothing = ~jnp.any(jnp.stack([jnp.any(leaf != 0) for leaf in jax.tree.leaves(solution.params)]))
        status = jnp.where(n < self.maxiter, RUNNING, MAX_ITER)
        flat = slope <= self.tol * jnp.abs(loss)
        status = jnp.where(flat, jnp.where(nothing, ALL_ZERO, CONVERGED), status)
        finite = jnp.isfinite(loss) & jnp.isfinite(slope)
        return jnp.where(finite, status, NON_FINITE).astype(jnp.int32)


def _within(g: jax.Array, x: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """The gradient g, set to 0 where x is at a bound and descent leads beyond it."""
    return jnp.where(((x <= low) & (g > 0)) | ((x >= high) & (g < 0)), 0, g)


@jax.custom_jvp
def _without_derivative(arguments: Any) -> Any:
    return arguments


@_without_derivative.defjvp
def _no_derivative(primals: Any, tangents: Any) -> Any:
    raise TypeError(
        "tune: the search has no derivative. Differentiate a solve at the strengths that it found, or pass "
        "arguments through jax.lax.stop_gradient."
    )


@Compiled
def _tune(search: _Search, init: Any) -> Tuning:
    search, init = _without_derivative((search, init))
    return search.tuning(lax.while_loop(lambda c: c.status == RUNNING, search.body, search.start(init)))


_start = Compiled(_Search.start)


@Compiled
def _next(search: _Search, carry: _Carry) -> tuple[_Carry, Report]:
    carry = search.body(carry)
    # The bar counts a search that has ended as all its solves: `in_chunks` goes on until then.
    done = jnp.where(carry.status == RUNNING, carry.n, search.maxiter)
    return carry, Report(done, jnp.int32(1), jnp.int32(0), carry.tried.slope[carry.n - 1])


def _shown(search: _Search, init: Any) -> Tuning:
    """The same search as `_tune` with a progress bar, by a program that makes one solve."""
    with bar_of("tune", search.maxiter, what="slope") as bar:
        step = lambda _, carry, __: _next(search, carry)
        (carry,) = in_chunks(step, [_start(search, init)], [search.maxiter], bar)
        if bar.stop.is_set():
            carry = carry._replace(status=np.int32(INTERRUPTED))
            best = search.tuning(carry) if int(carry.n) else None
            raise Interrupted(f"tune: interrupted after {int(carry.n)} solves", best)
    return search.tuning(carry)
