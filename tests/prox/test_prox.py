"""Every prox: the documented objective, optimality entry by entry, corner cases, derivatives."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import PROXES
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from properties import assert_firm, assert_optimal, drawn, properties

from sparsejax import penalties, prox
from sparsejax.groups import from_lists

ids = [p.name for p in PROXES]
every = pytest.mark.parametrize("p", PROXES, ids=ids)


@functools.cache
def with_jacobians(p):
    """(x, *strengths, scaling) -> the prox and its Jacobians in x and the strengths: one program."""
    numbers = tuple(range(1 + len(p.strengths)))
    return jax.jit(lambda *args: (p.call(*args), jax.jacobian(p.call, argnums=numbers)(*args)))


def arguments(p, x, strengths, scaling=1.0, dtype=np.float64):
    """Of `with_jacobians`: of one dtype, so that what is compiled is shared."""
    return [jnp.asarray(a, dtype) for a in (x, *strengths, scaling)]


@every
@pytest.mark.parametrize("scaling", [1.0, 0.3, 4.0])
def test_minimises_the_documented_objective(p, scaling, rng):
    """No point nearby or on the way to 0, to x or to a sparser point is better."""

    @jax.jit
    @jax.vmap
    def excess(x, steps):
        z = p.call(x, *p.strengths, scaling)
        objective = lambda z: 0.5 * jnp.sum((z - x) ** 2) + scaling * p.penalty(z, *p.strengths)
        sparser = jnp.where(jnp.abs(z) == jnp.min(jnp.abs(z)), 0, z)
        ways = jnp.concatenate([steps, jnp.stack([x, 0 * x, sparser, 2 * z]) - z[None]])
        others = jnp.concatenate([z[None] + radius * ways for radius in (1e-1, 1e-3, 1e-5)])
        return jnp.min(jax.vmap(objective)(others)) - objective(z), objective(z)

    X = jnp.asarray(rng.standard_normal((200, 6)) * 3)
    worse, value = excess(X, jnp.asarray(rng.standard_normal((200, 20, 6))))
    assert (worse >= -1e-14 * value).all()


VALUES = {
    "l1": lambda z, s: s * np.abs(z).sum(),
    "l2": lambda z, s: s * np.sqrt((z * z).sum()),
    "linf": lambda z, s: s * np.abs(z).max(),
    "squared_l1": lambda z, b: b * np.abs(z).sum() ** 2,
    "exclusive_l21": lambda z, a, b: a * np.sqrt((z * z).sum()) + b * np.abs(z).sum() ** 2,
}
SQUARES = {"squared_l1": (True,), "exclusive_l21": (False, True)}  # which strengths multiply squares
# In units of each other 60 decades apart, 0 and alike; subnormal numbers come from units.
NUMBERS = (0.0, 5e-324, -1e-310, 1e-30, 1e-12, 1.0, 1.0, -1.0, 3.0, 0.1, 1e12, 1e30, -1e30)
numbers = arrays(np.float64, 7, elements=st.sampled_from(NUMBERS) | st.floats(-10, 10))


@functools.cache
def of_rows(p):
    return jax.jit(jax.vmap(p.call, in_axes=(0, *(0 for _ in p.strengths), None)))


@properties
@every
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@drawn(25)
@given(
    x=numbers,
    y=numbers,
    parts=arrays(np.float64, 2, elements=st.sampled_from([0.0, 1e-12, 0.3, 1 - 1e-12, 1.0, 2.0, 1e6])),
    seed=st.integers(0, 99),
    power=st.integers(-150, 150),
)
def test_what_a_prox_is(p, dtype, x, y, parts, seed, power):
    """Optimal, firmly non-expansive, blind to order and signs, and of numbers in other units the same."""
    rng, eps, tiny = np.random.default_rng(seed), np.finfo(dtype).eps, float(np.finfo(dtype).tiny)
    power = power / 2 if dtype == np.float32 and x.any() else power
    unit = 2.0 ** np.round(power - np.log2(max(np.abs(x).max(), 1e-30)) if dtype == np.float32 else power)
    x, y = x.astype(dtype), y.astype(dtype)
    order, sign = rng.permutation(7), rng.choice([-1, 1], 7).astype(dtype)
    square = SQUARES.get(p.name, (False,))
    size = np.linalg.norm(x.astype(float))
    strengths = [dtype(part if sq else part * size) for part, sq in zip(parts, square, strict=False)]
    in_units = [s if sq else dtype(s * unit) for s, sq in zip(strengths, square, strict=True)]
    rows = np.stack([x, y, x[order], x * sign, (x * unit).astype(dtype)])
    by_row = [np.array([s, s, s, s, t]) for s, t in zip(strengths, in_units, strict=True)]
    z, zy, permuted, flipped, scaled = np.asarray(of_rows(p)(rows, *by_row, dtype(1)))
    largest = np.abs(x).astype(float).max()
    near = 8 * eps * largest + 100 * tiny * max(1, 1 / unit)  # subnormal numbers count as 0
    assert np.isfinite(z).all()
    value = lambda u: VALUES[p.name](np.asarray(u, np.longdouble), *map(np.longdouble, strengths))
    others = [y, zy, 0 * x, x, z * (1 + 1e-3 * rng.standard_normal(7)), np.where(rng.random(7) < 0.5, z, 0)]
    assert_optimal(x, z, others, value, 1, 20 * eps, 100 * tiny)
    assert_firm(x, y, z, zy, 20 * eps, 100 * tiny)
    np.testing.assert_allclose(permuted, z[order], rtol=0, atol=near)
    np.testing.assert_allclose(flipped, z * sign, rtol=0, atol=near)
    np.testing.assert_allclose(scaled / unit, z, rtol=0, atol=near)


def kkt_error(x, w, alpha, beta):
    """Largest violation of the subgradient equation of exclusive l2,1, relative to max|x|."""
    norm, total = np.linalg.norm(w), np.abs(w).sum()
    if norm == 0:
        return max(0.0, np.linalg.norm(x) - alpha) / max(np.abs(x).max(), 1e-300)
    on = w != 0
    error = np.abs(w - x + alpha * w / norm + 2 * beta * total * np.sign(w))[on].max()
    if not on.all():
        error = max(error, (np.abs(x[~on]) - 2 * beta * total).max())
    return error / np.abs(x).max()


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    arrays(np.float64, 7, elements=st.floats(-100, 100, allow_subnormal=False).map(lambda v: round(v, 3))),
    st.sampled_from([0.0, 1e-12, 1e-3, 0.3, 0.9, 0.999999, 1 - 1e-12, 1.0, 2.0]),
    st.floats(-9, 12),
    st.booleans(),
)
@example(np.array([0, 0, 0, 0, 0, 20.188, 60.188]), 1.0, 1.0, False)
def test_exclusive_l21_optimality(x, part, log_beta, ties):
    if ties:
        x = np.round(x / 50)
    if not np.abs(x).max() > 0:
        x = np.ones(7)
    alpha, beta = part * np.linalg.norm(x), 10.0**log_beta
    w = np.asarray(exclusive(jnp.asarray(x), alpha, beta))
    assert np.isfinite(w).all()
    assert np.all((w == 0) | (np.sign(w) == np.sign(x)))
    assert kkt_error(x, w, alpha, beta) < 3e-15
    if beta < 1e9:  # beyond, rounding 2 beta ||w||_1 alone exceeds this
        w = np.asarray(exclusive(jnp.asarray(x), 0.0, beta))
        np.testing.assert_allclose(np.asarray(squared(jnp.asarray(x), beta)), w, rtol=0, atol=0)


exclusive = jax.jit(prox.exclusive_l21)
squared = jax.jit(prox.squared_l1)


@pytest.mark.parametrize("p", [1, 2, 5, 64, 65, 300])
def test_exclusive_l21_any_length(p, rng):
    """Both ways of summing (written out up to 64 entries, reduced beyond) and long active sets."""
    for beta in (1e-6, 1e-2, 1.0, 1e3):
        for x in (rng.standard_normal(p), 2.0 ** -np.arange(p, dtype=float), np.ones(p)):
            alpha = 0.3 * np.linalg.norm(x)
            w = np.asarray(exclusive(jnp.asarray(x), alpha, beta))
            assert kkt_error(x, w, alpha, beta) < 1e-14


def test_any_start_gives_the_same_point(rng):
    """The guess of theta saves passes and changes nothing."""
    X = jnp.asarray(rng.standard_normal((5, 40)) * 3)
    alpha, beta, zero = jnp.asarray(0.8), jnp.asarray(0.4), jnp.zeros(40)
    columns = jax.jit(prox.exclusive_l21_columns)
    w, theta = map(np.asarray, columns(X, alpha, beta, zero))
    for start in (theta, theta * 1.01, theta * 0.9, np.full(40, -3.0), theta + 100, np.full(40, np.nan)):
        again, theta_again = columns(X, alpha, beta, start)
        np.testing.assert_allclose(again, w, atol=2e-15)
        np.testing.assert_allclose(theta_again, theta, atol=2e-15)


def test_tail_threshold(rng):
    """Smallest m with ||(|z| - m)_+|| <= alpha, also at alpha = 0, ties and zero columns."""
    Z = rng.standard_normal((6, 30))
    Z[:, 0], Z[:, 1], Z[:, 2] = 0, 1, np.arange(6)
    for alpha in (0.0, 1e-8, 0.5, 1.5, 100.0):
        m = np.asarray(prox.tail_threshold(jnp.asarray(Z), jnp.asarray(alpha)))
        tail = np.sqrt((np.maximum(np.abs(Z) - m, 0) ** 2).sum(0))
        assert (m >= 0).all()
        assert (tail <= alpha + 1e-13).all()
        binding = m > 0
        np.testing.assert_allclose(tail[binding], alpha, atol=1e-13)


def test_derivatives_of_tail_threshold(rng):
    """In both modes, also with alpha = 0, where the threshold is the largest entry, and where it is 0."""
    Z, alpha = jnp.asarray(rng.standard_normal((4, 3))), jnp.array([0.7, 0.0, 9.0])
    forward, reverse = (jac(prox.tail_threshold, (0, 1))(Z, alpha) for jac in (jax.jacfwd, jax.jacrev))
    for a, b in zip(forward, reverse, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    dZ, dalpha = 1e-6 * rng.standard_normal((4, 3)), 1e-6 * np.ones(3)
    at = prox.tail_threshold(Z, alpha)
    moved = prox.tail_threshold(Z + dZ, alpha), prox.tail_threshold(Z, alpha + dalpha)
    np.testing.assert_allclose(jnp.tensordot(reverse[0], dZ, 2), moved[0] - at, atol=1e-10)
    np.testing.assert_allclose(reverse[1] @ dalpha, moved[1] - at, atol=1e-10)


@pytest.mark.parametrize("p", [1, 2, 5, 64, 65, 300])
def test_linf_is_what_the_projection_on_the_l1_ball_leaves(p, rng):
    """Against the sorted formula: ties, long columns, and levels near 0 and near max|x|."""
    for x in (rng.standard_normal(p), 2.0 ** -np.arange(p, dtype=float), np.ones(p), rng.standard_cauchy(p)):
        above = np.cumsum(np.sort(np.abs(x))[::-1])
        for part in (0.0, 1e-14, 1e-6, 0.3, 0.9, 1 - 1e-12, 1.0, 1.5):
            t = part * above[-1]
            level = max(0.0, ((above - t) / np.arange(1, p + 1)).max())
            z = np.asarray(linf(jnp.asarray(x), t))
            np.testing.assert_allclose(z, np.sign(x) * np.minimum(np.abs(x), level), atol=1e-14 * above[-1])
            # t is met to the last digits of x, not only to those of the sum
            if 0 < part < 1:
                np.testing.assert_allclose(np.abs(x - z).sum(), t, atol=2e-16 * p * np.abs(x).max())


linf = jax.jit(prox.linf)


# ------------------------------------------------------------------ named corner cases


@every
def test_strength_zero_is_the_identity(p, rng):
    x = rng.standard_normal(5)
    x[2] = 0
    z, (J, *_) = with_jacobians(p)(*arguments(p, x, [0.0] * len(p.strengths)))
    np.testing.assert_array_equal(z, x)
    np.testing.assert_allclose(J, np.eye(5), atol=1e-15)
    z, _ = with_jacobians(p)(*arguments(p, x, p.strengths, 0.0))
    np.testing.assert_array_equal(z, x)


def test_linf_at_strength_zero():
    """The identity in x, also at ties; in the strength one-sided: the largest entries share the loss."""
    jacobians = jax.jit(jax.jacfwd(prox.linf, argnums=(0, 1)))
    for x, slope in (([3.0, -2.0, 1.0], [-1, 0, 0]), ([1.0, -3.0, 3.0], [0, 0.5, -0.5])):
        in_x, in_strength = jacobians(jnp.asarray(x), 0.0)
        np.testing.assert_allclose(in_x, np.eye(3), atol=1e-15)
        np.testing.assert_allclose(in_strength, slope, atol=1e-15)
        np.testing.assert_allclose(
            linf(jnp.asarray(x), 1e-3), np.add(x, np.multiply(slope, 1e-3)), atol=1e-15
        )


@every
def test_zero_input(p):
    z, jacobians = with_jacobians(p)(*arguments(p, np.zeros(5), p.strengths))
    np.testing.assert_array_equal(z, 0)
    assert all(np.isfinite(J).all() for J in jacobians)


@every
def test_ties_are_treated_alike(p):
    for x in ([1.0, 1.0, 1.0, 1.0, 1.0], [2.0, -2.0, 1.0, -1.0, 1.0], [3.0, 1.0, 1.0, 0.0, 0.0]):
        z, jacobians = with_jacobians(p)(*arguments(p, x, p.strengths))
        z = np.asarray(z)
        for size in np.unique(np.abs(x)):
            assert len(np.unique(np.abs(z[np.abs(np.asarray(x)) == size]))) == 1
        assert all(np.isfinite(J).all() for J in jacobians)


@every
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("huge", [1e8, 1e15, 1e30])
def test_huge_strength(p, dtype, huge):
    strengths = [huge for _ in p.strengths]
    z, jacobians = with_jacobians(p)(*arguments(p, [3.0, -2.0, 0.5, 0.1, -1.0], strengths, dtype=dtype))
    assert np.isfinite(z).all()
    assert np.abs(z).max() <= 3 / huge  # 0 for norms, about x / (2 beta) for the squared one
    assert all(np.isfinite(J).all() for J in jacobians)


def test_one_entry_is_known():
    """p = 1: soft thresholding by alpha, then the ridge factor 1 / (1 + 2 beta)."""
    x = np.linspace(-3, 3, 13)[:, None]
    z = jax.jit(jax.vmap(lambda x: prox.exclusive_l21(x, 0.5, 0.7)))(x)
    np.testing.assert_allclose(z, np.sign(x) * np.maximum(np.abs(x) - 0.5, 0) / 2.4, atol=1e-15)


def test_exclusive_l21_contains_its_parts(rng):
    x = jnp.asarray(rng.standard_normal(7))  # as above
    l2 = jax.jit(prox.l2)
    np.testing.assert_allclose(exclusive(x, 0.7, 0.0), l2(x, 0.7), atol=1e-15)
    np.testing.assert_allclose(exclusive(x, 0.0, 0.7), squared(x, 0.7), atol=1e-15)
    # and is not the composition of the two
    composed = l2(squared(x, 0.7), 0.7)
    assert np.abs(np.asarray(exclusive(x, 0.7, 0.7)) - np.asarray(composed)).max() > 1e-3


# ------------------------------------------------------------------ derivatives and transformations


def safe_points(p, rng, count=12):
    """Points with zeros and ties at the top that last for 1e-3, so that differences mean something."""

    def pattern(x):
        z = p.call(x, *p.strengths)
        return jnp.where(z == 0, 0, jnp.where(jnp.abs(z) == jnp.max(jnp.abs(z)), 2, 1))

    @jax.jit
    def patterns(x, steps):
        return pattern(x), jax.vmap(lambda s: pattern(x + 1e-3 * s))(steps)

    points = []
    while len(points) < count:
        x = jnp.asarray(rng.standard_normal(5) * 2)
        z, near = patterns(x, jnp.asarray(rng.standard_normal((20, 5))))
        if bool((near == z[None]).all()) and bool(z.any()):
            points.append(x)
    return points


@every
def test_derivatives(p, rng):
    """jvp = vjp = central differences, in x, the strengths and the scaling; the Jacobian is symmetric."""

    def f(x, strengths, scaling):
        return p.call(x, *strengths, scaling)

    strengths, scaling = tuple(jnp.asarray(s) for s in p.strengths), jnp.asarray(0.8)
    f = jax.jit(f)
    forward, reverse = jax.jit(jax.jacfwd(p.call)), jax.jit(jax.jacrev(p.call))
    for x in safe_points(p, rng):
        chex.assert_numerical_grads(f, (x, strengths, scaling), order=1, atol=1e-6, rtol=1e-6, eps=1e-5)
        J = forward(x, *p.strengths)
        np.testing.assert_allclose(J, reverse(x, *p.strengths), atol=1e-14)
        np.testing.assert_allclose(J, J.T, atol=1e-14)


@every
def test_second_derivatives(p, rng):
    """Derivatives of the derivative rule itself."""
    f = lambda x: jnp.sum(jnp.sin(p.call(x, *p.strengths)))
    grad, hessian = jax.jit(jax.grad(f)), jax.jit(jax.hessian(f))
    h = 1e-5
    for x in safe_points(p, rng, 4):
        H = hessian(x)
        rows = [(grad(x + h * e) - grad(x - h * e)) / (2 * h) for e in np.eye(5)]
        np.testing.assert_allclose(H, np.stack(rows), atol=1e-7)


@every
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_transformations(p, dtype, rng):
    """jit = eager; vmap over rows, over strengths and over both = a loop; dtype in = dtype out."""
    X = jnp.asarray(rng.standard_normal((7, 5)) * 2, dtype)
    strengths = [jnp.asarray(s * np.linspace(0.2, 2, 7), dtype) for s in p.strengths]
    tol = {"atol": 1e-6 if dtype == np.float32 else 1e-14}
    first = [s[0] for s in strengths]
    loop = np.stack([p.call(x, *first) for x in X])
    assert loop.dtype == dtype
    np.testing.assert_allclose(jax.jit(p.call)(X[0], *first), loop[0], **tol)
    np.testing.assert_allclose(jax.jit(jax.vmap(lambda x: p.call(x, *first)))(X), loop, **tol)
    over = np.stack([p.call(X[0], *s) for s in zip(*strengths, strict=True)])
    np.testing.assert_allclose(jax.jit(jax.vmap(lambda *s: p.call(X[0], *s)))(*strengths), over, **tol)
    both = np.stack([p.call(x, *s) for x, *s in zip(X, *strengths, strict=True)])
    np.testing.assert_allclose(jax.jit(jax.vmap(p.call))(X, *strengths), both, **tol)
    gradient = jax.grad(lambda x, *s: jnp.sum(p.call(x, *s) ** 2))
    single, grads = jax.jit(gradient), jax.jit(jax.vmap(gradient))(X, *strengths)
    each = [single(x, *s) for x, *s in zip(X, *strengths, strict=True)]
    np.testing.assert_allclose(grads, np.stack(each), **tol)
    np.testing.assert_allclose(gradient(X[0], *first), each[0], **tol)


@every
@pytest.mark.parametrize("bad, error", [(np.arange(3), TypeError), ("matrix", ValueError)])
def test_bad_input(p, bad, error):
    if isinstance(bad, str):
        if p.name == "l1":
            pytest.skip("l1 is elementwise: any shape is allowed")
        bad = jnp.ones((2, 2))
    with pytest.raises(error, match=rf"prox\.{p.name}"):
        p.call(bad, *p.strengths)


@every
def test_a_step_size_by_entry_is_refused_under_jit_too(p):
    x = jnp.ones(3)
    with pytest.raises(ValueError, match=rf"prox\.{p.name}: scaling has shape \(3,\)"):
        jax.jit(lambda scaling: p.call(x, *p.strengths, scaling))(x)


# ------------------------------------------------------------------ penalties are their proxes by row


@pytest.mark.parametrize(
    "penalty, row",
    [
        (penalties.L1, prox.l1),
        (penalties.L21, prox.l2),
        (penalties.L1Inf, prox.linf),
        (penalties.ExclusiveLasso, prox.squared_l1),
        (penalties.ExclusiveL21, prox.exclusive_l21),
    ],
)
@pytest.mark.parametrize("by_row", [False, True])
def test_penalty_prox_is_the_row_prox(penalty, row, by_row, rng):
    V = jnp.asarray(rng.standard_normal((6, 4)))
    count = 2 if penalty is penalties.ExclusiveL21 else 1
    strengths = [jnp.asarray(rng.uniform(0.1, 1, 6 if by_row else ())) for _ in range(count)]
    full = [jnp.broadcast_to(s, (6,)) for s in strengths]
    scaling = jnp.asarray(0.7)
    expected = jax.jit(jax.vmap(lambda v, *s: row(v, *s, scaling)))(V, *full)
    np.testing.assert_allclose(prox_of(penalty(*strengths), V, scaling), expected, atol=1e-15)
    vector, column = (np.asarray(prox_of(penalty(*strengths), part, scaling)) for part in (V[:, 0], V[:, :1]))
    np.testing.assert_allclose(vector, column[:, 0], atol=1e-15)


prox_of = jax.jit(lambda penalty, V, scaling: penalty.prox(V, scaling))


@pytest.mark.parametrize("unit", [1e-300, 1e300])
def test_exclusive_group_l21_does_not_depend_on_the_unit(unit, rng):
    """Squares of V are 0 or infinite."""
    V, pairs = rng.standard_normal((4, 2)), from_lists([[0, 1], [2, 3]], 4)
    ours, plain = (prox.exclusive_group_l21(W, 0.3, pairs) for W in (unit * V, V))
    np.testing.assert_allclose(ours, unit * plain, rtol=1e-13)


def test_rough_threshold_after_a_guess_near_the_top_that_is_not_usable() -> None:
    x, alpha, beta = jnp.array([[1.0], [0.0]]), jnp.array([0.95]), jnp.array([50.0])
    theta = prox.exclusive_l21_columns(x, alpha, beta, jnp.array([0.07]), rough=True)[1]
    np.testing.assert_allclose(1 - theta, 96 / 101, rtol=0.02)


def test_a_product_of_strength_and_scaling_that_overflows():
    x = np.float32([1.0, 2.0])
    for found in (prox.squared_l1(x, 1e30, 1e10), prox.exclusive_l21(x, 0.0, 1e30, 1e10)):
        np.testing.assert_array_equal(found, 0)
