"""What is compiled when: a second call of the same shapes compiles nothing."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
import threadpoolctl
from cases import K, data
from jax.experimental.compilation_cache import compilation_cache
from penalty_cases import D

import sparsejax as sj
from sparsejax import losses, penalties
from sparsejax._core.compiled import GPU_OPTIONS, OPTIONS, Compiled, options
from sparsejax._core.threads import MAX_ONE_THREAD_SIZE, one_blas_thread
from sparsejax.sklearn import SparseRegressorCV

EVENT = "/jax/core/compile/backend_compile_duration"


@contextlib.contextmanager
def compiled() -> Iterator[list[str]]:
    """The names of the programs that are compiled within."""
    names: list[str] = []

    def listen(event: str, _: float, **about: str) -> None:
        if event == EVENT:
            names.append(str(about.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


X, Y = data(n=13)
OF_JAX, ON_DEVICE = jax.tree.map(jnp.asarray, (X, Y)), jax.device_put((X, Y), jax.devices()[0])
STRENGTH = jnp.asarray(0.25)
LOSS = losses.SquaredLoss(X, Y, intercept=True)


def problem(alpha=0.1, loss=LOSS):
    return sj.Problem(loss, penalties.ExclusiveL21(alpha, 0.02))


def solve(*args, **options):
    return sj.solve(problem(*args), **options)


AGAIN = {
    "another strength": lambda: solve(0.2),
    "a strength of numpy": lambda: solve(np.float64(0.2)),
    "a strength of the other dtype": lambda: solve(np.float32(0.2)),
    "a strength of JAX": lambda: solve(STRENGTH),
    "an integer strength": lambda: solve(1),
    "tol": lambda: solve(tol=1e-5),
    "tol of the other dtype": lambda: solve(tol=np.float32(1e-5)),
    "maxiter": lambda: solve(maxiter=1000),
    "maxiter of numpy": lambda: solve(maxiter=np.int64(1000)),
    "init": lambda: solve(init=np.ones((D, K))),
    "init of the other dtype": lambda: solve(init=np.ones((D, K), np.float32)),
    "init as lists": lambda: solve(init=np.ones((D, K)).tolist()),
    "data as lists": lambda: solve(0.1, losses.SquaredLoss(X.tolist(), Y.tolist(), intercept=True)),
    "data of JAX": lambda: solve(0.1, losses.SquaredLoss(*OF_JAX, intercept=True)),
    "another data set": lambda: solve(0.1, losses.SquaredLoss(X + 1, Y - 1, intercept=True)),
    "another scale": lambda: solve(0.1, losses.SquaredLoss(X, Y, scale=0.3, intercept=True)),
    "data on a device": lambda: solve(0.1, losses.SquaredLoss(*ON_DEVICE, intercept=True)),
    "throw": lambda: solve(throw=True),
    "by name": lambda: sj.admm(problem()),
    "alm": lambda: sj.alm(problem()),
}


@pytest.mark.parametrize("case", AGAIN)
def test_a_second_solve_compiles_nothing(case):
    solve()
    with compiled() as names:
        AGAIN[case]()
    assert names == []


def test_a_function_with_derivative_rules_of_jax_compiles_once():
    """JAX remembers in the rules what they returned: the program is still the same."""
    problem = sj.Problem(lambda W: jnp.sum(jax.nn.softplus(LOSS.X @ W)), penalties.L1(0.1))
    start = np.ones(LOSS.params_shape)
    sj.solve(problem, start, maxiter=3)
    with compiled() as names:
        sj.solve(problem, start, maxiter=3)
    assert names == []


def test_a_start_inside_a_simplex_is_compiled_once():
    """The nearest point of the constraint is sought by a loop, which no later call compiles again."""
    again = lambda total: sj.solve(sj.Problem(LOSS, penalties.SumTo(total) + penalties.NonNegative()))
    again(1.0)
    with compiled() as names:
        again(2.0)
    assert names == []


@pytest.mark.parametrize(
    "prox",
    [
        lambda x, c: sj.prox.sorted_l1(x, c * np.linspace(2, 1, 13)),
        sj.prox.total_variation,
        lambda x, c: sj.prox.on_a_sum(x[None], jnp.full((1, 1), c), jnp.asarray(c), True),
        lambda x, c: (penalties.L1Inf(c) + penalties.ElasticNet(c, c)).prox(x[:, None] * np.ones(3)),
        lambda x, c: (penalties.SortedL1(c * np.linspace(2, 1, 13)) + penalties.L21(c)).prox(
            x[:, None] * np.ones(3)
        ),
    ],
)
def test_a_second_prox_compiles_nothing(prox):
    """Not the loop of a prox either."""
    prox(X[:, 0], 0.3)
    with compiled() as names:
        prox(X[:, 1], 0.2)
    assert names == []


def test_a_gap_is_compiled_once_for_points_of_all_kinds():
    """A solution, and numbers of numpy."""
    options()  # the first call in a process compiles a program to learn what XLA knows
    p, top = problem(loss=losses.SquaredLoss(X[2:], Y[2:])), sj.Problem(LOSS, penalties.L21(0.1))
    with compiled() as names:
        s = sj.solve(p)
        for W in (s.params, np.asarray(s.params), np.zeros((D, K), np.float32)):
            sj.duality_gap(p, W)
        sj.lambda_max(top)
        sj.lambda_max(top.replace(smooth=losses.SquaredLoss(*ON_DEVICE, intercept=True)))
    assert sorted(names) == ["jit(_duality_gap)", "jit(_lambda_max)", "jit(admm)"]


def slope(alpha):
    return jax.grad(lambda a: jnp.sum(sj.solve(problem(a)).params))(alpha)


def test_a_gradient_does_not_compile_the_solver_again():
    solve()
    with compiled() as names:
        slope(0.1)
    assert "jit(admm)" not in names
    with compiled() as names:
        slope(0.2)
    assert names == []


def test_the_finish_is_a_program_of_its_own():
    """At the floor of the dtype; the rest is compiled for no other tol."""
    solve()
    with compiled() as names:
        solve(tol=0.0)
    assert names == ["jit(finish)"]
    with compiled() as names:
        solve(0.2, tol=0.0)
    assert names == []


def test_a_first_solve_compiles_one_program():
    options()  # which compiles a program to see what XLA knows
    with compiled() as names:
        loss = losses.SquaredLoss(X[1:], Y[1:], intercept=True)
        sj.solve(sj.Problem(loss, penalties.L21(0.1)), throw=True)
    assert names == ["jit(admm)"]


PATHS = {
    "other strengths": lambda: path(np.geomspace(0.2, 0.02, 4)),
    "of the other dtype": lambda: path(np.geomspace(0.2, 0.02, 4, dtype=np.float32)),
    "tol": lambda: path(np.geomspace(0.2, 0.02, 4), tol=1e-5),
    "init": lambda: path(np.geomspace(0.2, 0.02, 4), init=np.ones((D, K))),
}


def path(alphas, **options):
    return sj.path(problem(), penalties.ExclusiveL21(alphas, 0.02), **options)


@pytest.mark.parametrize("case", PATHS)
def test_a_second_path_compiles_nothing(case):
    path(np.geomspace(0.1, 0.01, 4))
    with compiled() as names:
        PATHS[case]()
    assert names == []


@pytest.mark.parametrize("fault", ["not a folder", "damaged"])
def test_a_cache_that_cannot_be_used(fault, tmp_path, cache_settings):
    """jax warns, and the answer is the same."""
    folder, p = tmp_path / "cache", sj.Problem(losses.SquaredLoss(X[3:], Y[3:]), penalties.L21(0.1))
    expected = sj.solve(p)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    compilation_cache.reset_cache()
    if fault == "not a folder":
        folder.write_text("")
    else:
        jax.clear_caches()
        sj.solve(p)
        for path in folder.iterdir():
            path.write_text("not a program")
    jax.clear_caches()
    with pytest.warns(UserWarning, match="persistent compilation cache"):
        found = sj.solve(p)
    np.testing.assert_array_equal(found.params, expected.params)


def test_estimators_on_data_of_similar_size_share_the_programs_of_their_folds(rng):
    """Five folds of 60 rows, and three of 63: tables and copies have as many rows."""
    model = SparseRegressorCV(alphas=4)
    fit = lambda n, cv: model.set_params(cv=cv).fit(rng.standard_normal((n, 7)), rng.standard_normal(n))
    with compiled() as names:
        fit(60, 5)
        assert "_all_folds" in str(names)
        names.clear()
        fit(63, 3)
    assert "_all_folds" not in str(names)


def test_eager_and_nested_calls_agree():
    """They are compiled apart: to rounding, and below the floor of the dtype too."""
    for tol in (1e-6, 0.0):
        alone = solve(0.1, tol=tol)
        within = jax.jit(lambda p, tol=tol: sj.solve(p, tol=tol))(problem())
        assert int(alone.num_iters) == int(within.num_iters)
        assert int(alone.status) == int(within.status)
        np.testing.assert_allclose(alone.params, within.params, atol=1e-12)


@pytest.mark.parametrize("backend, known", [("cpu", OPTIONS), ("gpu", GPU_OPTIONS), ("tpu", {})])
def test_without_an_option(backend, known, monkeypatch):
    """A version of XLA that does not know one compiles with the others."""
    if jax.default_backend() not in ("cpu", backend):
        pytest.skip("XLA refuses options of a CPU elsewhere")
    expected = dict(known)
    twice = Compiled(lambda x: 2 * x)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    if known:
        monkeypatch.setitem(known, "xla_no_such_option", True)
    assert float(twice(np.ones(()))) == 2 and known == expected == options()
    monkeypatch.undo()
    assert float(jax.jit(twice)(np.ones(()))) == 2
    assert float(jax.grad(twice)(np.ones(()))) == 2


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="small programs have one thread on a CPU only")
def test_blas_has_one_thread_while_a_program_of_small_matrices_runs():
    """And as many as before afterwards; large matrices have all threads, other threads what they find."""

    def blas():
        return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}

    with one_blas_thread():  # which loads the library
        pass
    seen = []
    count = lambda: seen.append(blas()) or np.float32(0)
    call = Compiled(lambda x: jax.pure_callback(count, jax.ShapeDtypeStruct((), np.float32)))
    with threadpoolctl.threadpool_limits(3, user_api="blas"):
        for size in (2, MAX_ONE_THREAD_SIZE + 1):
            call(jnp.ones((size, size)))
        with ThreadPoolExecutor(1) as pool:
            pool.submit(call, jnp.ones((2, 2))).result()
        assert seen == [{1}, {3}, {3}] and blas() == {3}


@pytest.mark.parametrize("way", ["jit", "vmap"])
def test_a_second_traced_call_compiles_nothing(way):
    """Of other strengths, data, weights and tolerances."""
    w = np.linspace(0.5, 2.0, len(X))
    one = lambda loss, a, tol: sj.solve(sj.Problem(loss, penalties.L21(a)), tol=tol).params
    call = jax.jit(one if way == "jit" else jax.vmap(one, in_axes=(None, 0, None)))
    strengths = lambda a: jnp.asarray(a if way == "jit" else [a, a / 2])
    losses_of = lambda X, Y, w: losses.SquaredLoss(X, Y, weights=w)
    call(losses_of(X, Y, w), strengths(0.1), jnp.asarray(1e-6))
    others = [
        (X, Y, w, 0.2, 1e-6),
        (X + 1, Y - 1, w, 0.1, 1e-6),
        (X, Y, w[::-1], 0.1, 1e-6),
        (X, Y, w, 0.1, 1e-4),
    ]
    arguments = [(losses_of(X, Y, w), strengths(a), jnp.asarray(tol)) for X, Y, w, a, tol in others]
    with compiled() as names:
        for each in arguments:
            call(*each)
    assert names == []


def test_a_function_is_compiled_once():
    """The same lambda with other strengths; made anew, as in a loop, too, and with other data."""
    Xs, Ys = [jnp.asarray(X), jnp.asarray(X) + 1], jnp.asarray(Y[:, 0])
    function_of = lambda X: lambda W: jnp.sum((X @ W - Ys) ** 2)
    start = jnp.zeros(X.shape[1])
    run = lambda loss, a: sj.solve(sj.Problem(loss, penalties.L1(a)), start)
    same = function_of(Xs[0])
    run(same, 0.5)
    with compiled() as names:
        run(same, 0.2)
        for data in Xs:
            run(function_of(data), 0.3)
    assert names == []


def hidden_in_a_jit(a):
    return jax.jit(lambda W: jnp.sum((W - a) ** 2))


def hidden_in_a_rule(a):
    @jax.custom_jvp
    def value(W):
        return jnp.sum((W - 1) ** 2)

    @value.defjvp
    def _(W, V):
        return value(*W), jnp.sum(2 * (W[0] - a) * V[0])

    return value


def hidden_on_the_host(a):
    @jax.custom_jvp
    def value(W):
        like = jax.ShapeDtypeStruct((), W.dtype)
        return jax.pure_callback(lambda W: np.sum((W - a) ** 2), like, W, vmap_method="sequential")

    value.defjvp(lambda W, V: (value(*W), jnp.sum(2 * (W[0] - value(jnp.zeros(3)) ** 0.5 / 3**0.5) * V[0])))
    return value


def hidden_deeper(hidden):
    return lambda a: jax.jit(jax.jit(hidden(a)))


HIDDEN = [hidden_in_a_jit, hidden_in_a_rule, hidden_on_the_host]


@pytest.mark.parametrize("hidden", [*HIDDEN, *map(hidden_deeper, HIDDEN)])
def test_functions_whose_programs_look_alike(hidden):
    """They also close over an array of their own, which becomes an argument of their program."""

    def solved(a):
        one, b = hidden(a), np.zeros(3)
        smooth = lambda W: one(W) + jnp.sum(b * W)
        # The solve of the second need not converge, as the rule of another function is no derivative.
        return np.asarray(sj.fista(sj.Problem(smooth, penalties.L1(0.1)), jnp.zeros(3), maxiter=30).params)

    one, two = solved(np.full(3, 1.0)), solved(np.full(3, 2.0))
    np.testing.assert_allclose(one, 0.95, atol=1e-6)
    assert np.abs(two - one).min() > 0.5


TIME, OBSERVED = np.exp(Y[:, 0]), np.arange(len(X)) % 3 != 0
LOOPS = {
    "Cox": lambda X: losses.CoxLoss(X, TIME, OBSERVED),
    "Cox, efron": lambda X: losses.CoxLoss(X, np.round(TIME) + 1, OBSERVED, ties="efron"),
    "sparse X": lambda X: losses.SquaredLoss(scipy.sparse.csr_array(X), Y),
}


@pytest.mark.parametrize("loss", LOOPS)
def test_a_second_value_of_a_loss_compiles_nothing(loss):
    """Nor does a second gradient: the loops inside are compiled once."""
    first, second = LOOPS[loss](X), LOOPS[loss](X + 1)
    W = jnp.ones(first.params_shape)
    other = jnp.full_like(W, 2)
    jax.value_and_grad(first)(W), first(W)
    with compiled() as names:
        jax.value_and_grad(second)(other), second(other)
    assert names == []
